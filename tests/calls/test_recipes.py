"""The losses that pages compute are those of rows one by one, also with weights as loss masks.

Each recipe is read from its page, from its first line to the one that begins with "loss =".
"""

import re
import sys
import textwrap
from pathlib import Path

import pytest
from example_runs import EXAMPLES
from small_models import small_model

import fastcollate as fc

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rows_alone import assert_same, log_probs_alone, outcome  # noqa: E402

sys.path.append(str(EXAMPLES / "tutorials"))

import grpo_loop  # noqa: E402
import trees  # noqa: E402
from grpo import learning  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).parents[2]
PROMPTS = [[5, 6, 7], [5, 6, 7], [8], [5, 6], [9, 10, 11, 12], []]
RESPONSES = [[13, 14], [13, 15, 16], [18, 19, 20, 21], [22], [23, 24], [15, 16, 17]]
WEIGHTS = [[1, 0.5], [0, 2, 0.5], [2, 0, 0, 1], [0], [0.5, 0.5], [2, 0.5, 1]]
ROWS = range(len(PROMPTS))
OLD = [[-0.5 * (token % 5) - 0.25 for token in row] for row in RESPONSES]
GAINS = [[1.5, -0.5], [0.25, -1, 2], [1, 1, -3, 0.5], [4], [-0.5, 2], [1, -2, 0.75]]

LAYOUTS = {
    "left": fc.Left(),
    "right": fc.Right(),
    "two_segment": fc.TwoSegment(),
    "jagged": fc.Jagged(),
    "packed": fc.Packed(8),
    "shifted": fc.Packed(8, shift="next_token"),
    "tree": fc.Tree(12),
}
EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
EACH_MASK = pytest.mark.parametrize("masks", [WEIGHTS, None], ids=["weights", "no_loss_mask"])


def recipe(page, first):
    """Return lines of a page: from one that has this text to the loss."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if first in line)
    after = range(start, len(lines))
    end = next(number for number in after if lines[number].lstrip().startswith("loss ="))
    code = textwrap.dedent("\n".join(lines[start : end + 1]))
    return re.sub(r"layout=fc\.\w+\(.*?\)\)", "layout=layout)", code)


@pytest.fixture
def model():
    # Eager attention: with others, a mask beside float64 has to be of float64.
    return small_model("gpt2", "eager")


def names(model, layout, masks, rows=ROWS):
    """Return the names that recipes use."""
    columns = {"prompts": PROMPTS, "responses": RESPONSES, "old": OLD, "advantages": GAINS}
    found = {name: [column[row] for row in rows] for name, column in columns.items()}
    found["masks"] = None if masks is None else [masks[row] for row in rows]
    found["batch"] = fc.build_batch(
        found["prompts"], found["responses"], pad_token_id=0, loss_mask=found["masks"],
        logprobs=found["old"], advantages=found["advantages"], layout=layout,
        fields={"ref_logprobs": found["old"]},
    )  # fmt: skip
    more = {"logprobs": found["old"], "adv": found["advantages"]}
    return found | more | {"fc": fc, "torch": torch, "model": model, "layout": layout}


def run(code, found):
    exec(compile(code, "recipe", "exec"), found)
    return found["loss"]


def mean_alone(model, masks, loss_of, rows=ROWS):
    """Return the outcome of the weighted mean of all rows' losses."""
    total, weights = alone(model, masks, loss_of, rows)
    return outcome(model, total / weights)


def alone(model, masks, loss_of, rows=ROWS):
    """Return the sum over rows of weighted losses, and the sum of their weights."""
    total, weights = 0, 0
    for row in rows:
        new = log_probs_alone(model, PROMPTS[row], RESPONSES[row])
        first = len(RESPONSES[row]) - len(new)  # nothing predicts the first token of a sequence
        weight, old, gain = (
            torch.tensor(values[row][first:], dtype=torch.float64)
            for values in (masks or [[1] * len(one) for one in RESPONSES], OLD, GAINS)
        )
        total = total + (weight * loss_of(new, old, gain)).sum()
        weights += weight.sum().item()
    return total, weights


def cross_entropy(new, old, gain):
    return -new


def policy_gradient(new, old, gain):
    return -new * gain


def clipped(new, old, gain):
    ratio = (new - old).exp()
    return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)


def with_kl(new, old, gain):
    return 0.05 * ((old - new).exp() - (old - new) - 1) - (new - old).exp() * gain


def token_loss(new, old, gain=None):
    return (new - old).square() - 0.5 * new


@EACH_MASK
@EACH_LAYOUT
def test_readme(model, layout, masks):
    expected = mean_alone(model, masks, cross_entropy)
    loss = run(recipe("README.md", "logits = model("), names(model, layout, masks))
    assert_same(outcome(model, loss), expected)


@pytest.mark.parametrize("page", ["docs/attention.md", "docs/trees.md"])
@EACH_MASK
@EACH_LAYOUT
def test_attention_and_trees(model, layout, masks, page):
    expected = mean_alone(model, masks, policy_gradient)
    code = recipe(page, "batch = fc.build_batch(prompts")
    assert "model_inputs(model=model)" in code
    for mask in [""] if layout.spec.is_padded else ["", '"dense", ']:
        found = names(model, layout, masks)
        loss = run(code.replace("(model=model)", f"({mask}model=model)"), found)
        assert found["batch"].plan.layout == layout.name
        assert_same(outcome(model, loss), expected)


@EACH_MASK
@EACH_LAYOUT
def test_packing(model, layout, masks):
    found = names(model, layout, masks)
    loss = run(recipe("docs/packing.md", "batch = fc.build_batch("), found)
    assert found["batch"].plan.layout == layout.name
    assert_same(outcome(model, loss), mean_alone(model, masks, cross_entropy))


@pytest.mark.parametrize("options", [{}, {"multiple_of": 4}, {"padding_as": "no_segment"}])
@EACH_MASK
def test_packing_with_a_shift(model, masks, options):
    layout = fc.Packed(12, shift="next_token", **options)
    found = names(model, layout, masks)
    found["cross_entropy"] = torch.nn.functional.cross_entropy
    loss = run(recipe("docs/packing.md", "shifted = fc.build_batch("), found)
    assert_same(outcome(model, loss), mean_alone(model, masks, cross_entropy))


@EACH_MASK
@EACH_LAYOUT
def test_what_trains(model, layout, masks):
    found = names(model, layout, masks)
    found["logprobs"] = grpo_loop.response_log_probs(model, found["batch"])
    found["advantages"] = found["batch"].advantages
    loss = run(recipe("docs/batches.md", "trained = batch.loss_mask"), found)
    assert_same(outcome(model, loss), mean_alone(model, masks, with_kl))


@EACH_MASK
def test_the_way_back(model, masks):
    rows = [row for row, prompt in enumerate(PROMPTS) if prompt]
    found = names(model, fc.Left(), masks, rows)
    found["per_row_advantages"] = torch.tensor([GAINS[row][0] for row in rows])

    def loss_of(new, old, gain):
        return -new * gain[0]

    loss = run(recipe("docs/batches.md", "def model_logprobs"), found)
    assert_same(outcome(model, loss), mean_alone(model, masks, loss_of, rows))


@pytest.mark.parametrize(
    ("page", "first", "name"),
    [
        ("docs/steps.md", "trained = mine.", "mine"),
        ("docs/steps.md", "# (bins, W)", "mine"),
        ("docs/steps.md", "# On this rank", "part"),
        ("docs/ray.md", "trained = batch.", "batch"),
    ],
)
@EACH_MASK
@EACH_LAYOUT
def test_shards(model, layout, masks, page, first, name):
    found = names(model, layout, masks)
    rows = found["batch"]
    if layout.name == "tree":
        rows = fc.planning.prefix_tree(PROMPTS, RESPONSES)
    plan = fc.plan_step(rows, dp_size=4, layout=layout if layout.spec.has_bins else None)
    tokens = found["batch"].loss_normalizers(plan).tokens[0]
    loss, code = 0, recipe(page, first)
    for rank in range(plan.dp_size):
        mine = fc.build_batch(
            PROMPTS, RESPONSES, pad_token_id=0, loss_mask=masks, advantages=OLD,
            shard=plan.shard(0, rank), layout=layout,
        )  # fmt: skip
        new = grpo_loop.response_log_probs(model, mine)
        given = dict.fromkeys(("cp_log_probs_of", "log_probs_of"), lambda part, new=new: new)
        found |= given | {name: mine, "token_loss": token_loss, "mini_batch": 0}
        found["tokens"] = [tokens] if "tokens[" in code else tokens
        if name == "batch":
            found["token_loss"] = lambda batch, trained, new=new: token_loss(
                new[trained], batch.advantages[trained]
            )
        loss = loss + run(code, found)
    total, weights = alone(model, masks, token_loss)
    assert tokens == weights
    assert_same(outcome(model, loss), outcome(model, total / weights))


@pytest.mark.parametrize("loop", [grpo_loop, learning])
@EACH_MASK
@EACH_LAYOUT
def test_grpo(model, layout, masks, loop):
    batch = names(model, layout, masks)["batch"]
    loss = loop.policy_loss(grpo_loop.response_log_probs(model, batch), batch, 2.0)
    assert_same(outcome(model, loss), outcome(model, alone(model, masks, clipped)[0] / 2))


@EACH_MASK
@EACH_LAYOUT
def test_trees(model, layout, masks):
    loss = trees.loss_of(model, names(model, layout, masks)["batch"])
    assert_same(outcome(model, loss), mean_alone(model, masks, cross_entropy))
