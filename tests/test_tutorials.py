"""The tutorials: their output, their losses against rows one by one, and their pages."""

import ast
import copy
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from example_runs import EXAMPLES, output_of

import fastcollate as fc

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.append(str(EXAMPLES / "tutorials"))

import grpo_loop  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

DOCS = Path(__file__).parents[1] / "docs" / "tutorials"
SCRIPTS = sorted(path for path in EXAMPLES.glob("tutorials/*.py") if path.stem != "preflight")


def numbers(name, text):
    """Return the numbers after a name, in order."""
    return [float(found) for found in re.findall(rf"{name} (-?[\d.]+)", text)]


def outcome(model, loss):
    """Return a loss, and its gradients in one line."""
    model.zero_grad()
    loss.backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    return loss.item(), gradients


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert expected[1].abs().max() > 1e-3
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-7)


def log_probs_alone(model, prompt, response):
    """Return the log-probabilities of a response whose row is all that the model reads."""
    ids = torch.tensor([[*prompt, *response]])
    log_probs = model(ids, use_cache=False).logits[0, :-1].log_softmax(-1)
    return log_probs.gather(-1, ids[0, 1:, None])[len(prompt) - 1 :, 0]


# GRPO


def test_grpo_loop():
    printed = output_of("tutorials/grpo_loop.py", "--steps", "30")
    assert float(printed.partition("differ by ")[2].split()[0]) < 1e-5
    rewards = numbers("reward", printed)
    assert len(rewards) == 4
    assert rewards[-1] > rewards[0] + 0.2


@pytest.fixture
def rollouts():
    """Return the model and a step's rollouts, of which some end early."""
    torch.manual_seed(0)
    model = grpo_loop.make_model().double()
    rng = np.random.default_rng(0)
    prompts = [
        prompt for prompt in grpo_loop.draw_prompts(rng, 4) for _ in range(grpo_loop.SAMPLES)
    ]
    responses, log_probs = grpo_loop.sample(model, prompts)
    rewards = rng.random(len(prompts)).tolist()
    return model, prompts, responses, log_probs, rewards


def test_sampled_rows_end_with_their_end(rollouts):
    model, prompts, responses, log_probs, _ = rollouts
    lengths = set()
    for prompt, response, sampled in zip(prompts, responses, log_probs, strict=True):
        ids = response.tolist()
        assert ids.count(grpo_loop.END) == (ids[-1] == grpo_loop.END)
        assert len(ids) == grpo_loop.MAX_RESPONSE or ids[-1] == grpo_loop.END
        with torch.no_grad():
            expected = log_probs_alone(model, prompt, ids)
        torch.testing.assert_close(torch.as_tensor(sampled).double(), expected)
        lengths.add(len(ids))
    assert len(lengths) > 2


def test_the_grpo_loss_is_that_of_rows_one_by_one(rollouts):
    model, prompts, responses, old, rewards = rollouts
    batch = grpo_loop.collate(prompts, responses, old, rewards)
    plan = fc.plan_step(batch, prompts_per_mini_batch=2)
    tokens = batch.loss_normalizers(plan).tokens
    changed = copy.deepcopy(model)  # so that ratios differ from 1, and some are clipped
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    advantages = grpo_loop.group_advantages(rewards)
    clips = 0
    for index in range(plan.num_mini_batches):
        shard = plan.shard(index, 0)
        mini_batch = batch.select(shard)
        log_probs = grpo_loop.response_log_probs(changed, mini_batch)
        loss = grpo_loop.policy_loss(log_probs, mini_batch, tokens[index])
        expected, count = 0, 0
        for row in shard.rows.tolist():
            new = log_probs_alone(changed, prompts[row], responses[row].tolist())
            for one, other in zip(new, old[row].tolist(), strict=True):
                ratio = (one - np.float32(other).item()).exp()
                clipped = ratio.clamp(0.8, 1.2)
                advantage = np.float32(advantages[row]).item()
                expected -= torch.minimum(ratio * advantage, clipped * advantage)
                clips += bool(ratio != clipped)
                count += 1
        assert count == tokens[index]
        assert_same(outcome(changed, loss), outcome(changed, expected / count))
    assert clips > 10


# Pages


def blocks(page, language):
    """Return the fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_snippets_stand_in_the_script(script):
    """Each is a run of the script's lines, without their indentation, after the one before."""
    lines = script.read_text("utf-8").splitlines()
    page = (DOCS / f"{script.stem}.md").read_text("utf-8")
    snippets, place = blocks(page, "python"), 0
    assert len(snippets) >= 3
    for snippet in snippets:
        wanted = snippet.splitlines()
        starts = range(place, len(lines) - len(wanted) + 1)
        place = next(
            (
                start + len(wanted)
                for start in starts
                if textwrap.dedent("\n".join(lines[start : start + len(wanted)])).splitlines()
                == wanted
            ),
            None,
        )
        assert place is not None, f"not in {script.name}, or not in this order:\n{snippet}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_index_has_every_tutorial(script):
    assert f"({script.stem}.md)" in (DOCS / "index.md").read_text("utf-8")


def test_every_page_has_a_script():
    pages = {path.stem for path in DOCS.glob("*.md")}
    assert pages == {"index"} | {path.stem for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_short(script):
    text = script.read_text("utf-8")
    assert text.count("\n") <= 160
    assert ast.get_docstring(ast.parse(text)).count(f"examples/tutorials/{script.name}") == 1
