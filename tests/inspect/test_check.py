"""`batch.check()`: each kind of mistake is planted and found, and a batch without one has none."""

from itertools import repeat

import numpy as np
import pytest

import fastcollate as fc
from fastcollate.planning import MissingPlanError
from rollouts import PAD_TOKEN_ID, load_rollouts, load_tokenizer

EOS = 9
LAYOUTS = [
    *("left", "right", "two_segment", "jagged"),
    fc.Packed(capacity=8),
    fc.Packed(capacity=8, multiple_of=2),
    fc.Packed(capacity=8, shift="next_token"),
    fc.Tree(capacity=8),
]
pytestmark = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def good_input(layout=None):
    """Three rows that nothing is wrong with: 4, 3 and 5 tokens."""
    return {
        "prompts": [[1, 2], [3], [4, 5]],
        "responses": [[6, EOS], [7, EOS], [8, 7, EOS]],
        "loss_mask": [[1, 1], [1, 1], [1, 0, 1]],
        "rewards": [[0.0, 1.0], [0.0, 2.0], [0.0, 0.0, 3.0]],
        "logprobs": [[-0.5, -1.0], [0.0, -2.0], [-3.0, 0.0, -0.25]],
        "pad_token_id": 0,
        "labels": None if isinstance(layout, fc.Tree) else "aligned",  # a tree has none
    }


@pytest.fixture
def build(layout, array_type):
    def build(**changes):
        columns = good_input(layout) | changes
        return fc.build_batch(**columns, layout=layout, array_type=array_type)

    return build


def found(batch, **options):
    findings = batch.check(**options)
    kinds = []
    for one in findings:
        assert len(one.reasons) == min(max(len(one.rows), 1), 3)
        assert all(one.reasons)
        assert one.advice
        positions = repeat(None) if one.positions is None else one.positions.tolist()
        kinds += zip(repeat(one.kind), one.rows.tolist() or [None], positions)
    return kinds


@pytest.mark.parametrize("name", ["rewards", "advantages"])
def test_infinite_values(name, build):
    rows = [[0.0, 1.0], [0.0, -np.inf], [0.0, np.inf, np.inf]]
    (finding,) = (one for one in build(**{name: rows}).check() if one.kind == "nan")
    assert finding.severity == "error"
    assert finding.rows.tolist() == [1, 2]
    assert finding.reasons == [f"{name} has -inf", f"{name} has inf (2 such tokens in the row)"]


@pytest.mark.parametrize("end", [0, -1])
def test_shifted_logprobs(end, build):
    """All rows have a 0 at one end, and few others."""
    rows = {
        "prompts": [[row + 1] for row in range(8)],
        "responses": [[row + 3, row + 4, row + 5] for row in range(8)],
        "logprobs": np.full((8, 3), -0.5, np.float32),
        "loss_mask": None,
        "rewards": None,
    }
    rows["logprobs"][:, end] = 0
    (finding,) = (one for one in build(**rows).check() if one.kind != "padding")
    assert (finding.kind, finding.severity) == ("shifted_logprobs", "warning")
    where = "first" if end == 0 else "last"
    assert finding.reasons == [
        f"logprobs is 0 on the {where} token of all 8 rows, as if values were shifted by one"
    ]
    rows["logprobs"][7, end] = -0.1
    assert found(build(**rows)) in ([], [("padding", None, None)])
    rows["logprobs"][:, end] = rows["logprobs"][:3, 1] = 0  # zeros elsewhere, too
    assert found(build(**rows)) in ([], [("padding", None, None)])


def test_zero_logprobs_of_what_trains(build):
    logprobs = [[-0.5, -1.0], [0.0, -2.0], [0.0, -1.0, 0.0]]
    batch = build(loss_mask=[[1, 1], [1, 1], [1, 0, 1]], logprobs=logprobs, rewards=None)
    (finding,) = batch.check()
    assert (finding.kind, finding.rows.tolist()) == ("zero_logprobs", [2])
    assert finding.reasons[0].endswith("on all of its 2 trained tokens")


def test_samples_of_a_prompt_may_be_equal(build):
    rows = {
        "prompts": [[3], [3], [3], [3]],
        "responses": [[4, 5], [4, 5], [4, 6], [4, 5]],
        "loss_mask": None,
        "rewards": None,
        "logprobs": None,
    }
    assert found(build(**rows)) == [("duplicate", 1, None), ("duplicate", 3, None)]
    assert found(build(**rows, uids=list("aaab"))) == [("duplicate", 3, None)]


def test_a_good_batch_has_no_finding(build):
    batch = build()
    assert found(batch, vocab_size=10, eos_token_id=EOS) == []
    assert repr(batch.check()) == "no findings"


def test_a_row_that_trains_nothing(build):
    masks = [[1, 1], [0, 0], [1, 0, 1]]
    rewards = [[0.0, 1.0], [0.0, 2.0], [0.0, 0.0, 3.0]]  # in addition to earlier findings
    batch = build(loss_mask=masks, rewards=rewards)
    assert found(batch) == [("trains_nothing", 1, None)]
    assert "none of its 2 response tokens trains" in batch.check()[0].reasons[0]


def test_a_row_without_a_response(build):
    columns = {
        "responses": [[6, EOS], [], [8, 7, EOS]],
        "loss_mask": [[1, 1], [], [1, 0, 1]],
        "logprobs": None,
        "rewards": None,
    }
    assert found(build(**columns), eos_token_id=EOS) == [("trains_nothing", 1, None)]


def test_everything_is_masked(build):
    batch = build(loss_mask=[[0, 0], [0, 0], [0, 0, 0]])
    assert found(batch, eos_token_id=EOS) == [("all_masked", None, None)]
    one = {name: rows[1:2] for name, rows in good_input().items() if isinstance(rows, list)}
    assert found(build(**one | {"loss_mask": [[0, 0]]})) == [("all_masked", None, None)]


@pytest.mark.parametrize("labels", ["aligned", "shifted"])
def test_a_label_on_a_first_token(build, layout, labels):
    if isinstance(layout, fc.Tree):
        pytest.skip("a tree has no labels")
    batch = build(labels=labels)
    plan = batch.plan.to_dict()
    is_shifted = labels == "shifted"
    # The first token of row 1, or the last position, which would predict that of the next row.
    spans = [span for span in plan["sequence_segments"].tolist() if span[0] == 1]
    _, start, length, output_row, column = spans[-1] if is_shifted else spans[0]
    place = output_row * int(plan["sequence_shape"][1]) + column + (length - 1) * is_shifted
    batch["shift_labels" if is_shifted else "labels"].reshape(-1)[place] = 4
    position = start + length - 1 if is_shifted else 0
    assert found(batch) == [("trains_first_token", 1, position)]


@pytest.mark.filterwarnings("ignore:packing split")
def test_a_label_on_the_first_token_of_a_part(layout, array_type):
    if not isinstance(layout, fc.Packed):
        pytest.skip("only packers split rows")
    columns = {"prompts": [[1, 2]], "responses": [[3, 4, 5, 6, 7, 8]], "pad_token_id": 0}
    layout = fc.Packed(capacity=4, algorithm="concat", shift=layout.shift)
    labels = "shifted" if layout.shift == "next_token" else "aligned"
    batch = fc.build_batch(**columns, labels=labels, layout=layout, array_type=array_type)
    assert found(batch) == []
    if labels == "shifted":
        batch["shift_labels"][0, 3] = 5
        assert found(batch) == [("trains_first_token", 0, 3)]
    else:
        batch["labels"][1, 0] = 5
        batch["loss_mask"][1, 0] = 1
        assert found(batch) == [("trains_first_token", 0, 4)] * 2


def test_a_loss_mask_on_padding(build):
    batch = build(labels=None)
    padding = batch.loss_mask.reshape(-1).shape[0] - batch.plan.response_lens.sum()
    batch.loss_mask[...] = 1
    assert found(batch) == [("trains_padding", None, None)] * bool(padding)


def test_a_loss_mask_on_a_first_token(build, layout):
    columns = {"prompts": [[1, 2], [], [4, 5]], "loss_mask": [[1, 1], [0, 1], [1, 0, 1]]}
    batch = build(**columns, labels=None)
    assert found(batch) == []
    if batch.plan.is_shifted:
        return  # it has no place
    (_, start, _, output_row, column), *_ = (
        span for span in batch.plan.to_dict()["response_segments"].tolist() if span[0] == 1
    )
    assert start == 0
    width = int(batch.plan.to_dict()["response_shape"][1])
    batch["loss_mask"].reshape(-1)[output_row * width + column] = 1
    assert found(batch) == [("trains_first_token", 1, 0)]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("nan", "nan"),
        (0.5, "positive_logprob"),
        ("-inf", "infinite_logprob"),
        (-9999.0, "infinite_logprob"),
    ],
)
def test_log_probabilities_that_are_none(build, value, kind):
    logprobs = good_input()["logprobs"]
    logprobs[2] = [-3.0, 0.0, float(value)]
    assert found(build(logprobs=logprobs)) == [(kind, 2, 4)]


def test_several_positions_of_a_row_are_one_finding(build):
    logprobs = good_input()["logprobs"]
    logprobs[2] = [float("nan"), 0.0, float("nan")]
    batch = build(logprobs=logprobs)
    assert found(batch) == [("nan", 2, 2)]
    assert "(2 such tokens in the row)" in batch.check()[0].reasons[0]


def test_what_padding_holds_is_not_looked_at(build):
    fields = {"gains": fc.Field([[1.0] * 2, [1.0] * 2, [1.0] * 3], fill=np.nan)}
    assert found(build(fields=fields)) == []
    fields = {"gains": fc.Field([[], [], []], fill=np.nan)}
    columns = {"loss_mask": None, "rewards": None, "logprobs": None, "responses": [[], [], []]}
    assert found(build(**columns, fields=fields)) == [("all_masked", None, None)]


@pytest.mark.parametrize("trains", [0, 1])
def test_parts_of_a_row_in_any_order(layout, array_type, trains):
    if not isinstance(layout, fc.Packed) or layout.shift == "next_token":
        pytest.skip("only packers split rows")
    batch = fc.build_batch(
        [[1], [1, 2]],
        [[2, 3, 4, 5, EOS], [3, 4, 5, 6, 7, 8, 14, 10, 11, 12, 13, EOS]],
        loss_mask=[[1] * 5, [1] * 7 + [0] + [trains] * 4],
        logprobs=[[-1.0] * 5, [-1.0] * 6 + [np.nan] * 6],
        pad_token_id=0,
        layout=fc.Packed(capacity=10, algorithm="ff", oversize="split"),
        array_type=array_type,
    )
    assert [batch.bin_plan.bins, batch.bin_plan.starts.tolist()] == [[[0, 1], [1]], [0, 10, 0]]
    cut_off = [] if trains else [("cut_off", 1, 8)]
    assert found(batch, eos_token_id=EOS) == [("nan", 1, 8), *cut_off]


def test_rounding_is_no_positive_log_probability(build):
    assert found(build(logprobs=[[1e-6, 0.0], [0.0, 1e-7], [0.0, 0.0, -1e-6]])) == []


def test_log_probabilities_that_are_all_zero(build):
    """As of an engine that was not asked for them: ratios to them are not those of a policy."""
    zeros = [[-0.5, -1.0], [0.0, -0.0], [0.0, 0.0, 0.0]]
    assert found(build(logprobs=zeros)) == [("zero_logprobs", 1, None), ("zero_logprobs", 2, None)]
    masks = [[1, 1], [1, 1], [0, 0, 0]]
    rewards = [[0.0, 1.0], [0.0, 2.0], [0.0] * 3]
    kinds = found(build(logprobs=zeros, loss_mask=masks, rewards=rewards))
    assert kinds == [("zero_logprobs", 1, None), ("trains_nothing", 2, None)]


def test_masks_that_are_modified(build):
    batch = build()
    shape, targets = tuple(batch["loss_mask"].shape), batch.targets
    batch["loss_mask"][...] = batch["loss_mask"] * targets  # 6 and 9, 7 and 9, 8 and 9
    assert set(found(batch)) == {
        ("labels_as_mask", row, len_) for row, len_ in ((0, 2), (1, 1), (2, 2))
    }
    batch = build()
    mask = batch["loss_mask"].reshape(-1)
    mask[mask != 0] = -100
    assert {kind for kind, *_ in found(batch)} >= {"labels_as_mask"}
    batch = build()
    mask = batch["loss_mask"].reshape(-1)
    mask[mask != 0] = -0.5
    assert found(batch) == [
        ("negative_mask", 0, 2),
        ("negative_mask", 1, 1),
        ("negative_mask", 2, 2),
    ]
    assert tuple(batch["loss_mask"].shape) == shape


def test_labels_hold_no_weights(build, layout):
    has_labels = not isinstance(layout, fc.Tree)
    weights = [[0.5, 2.0], [3, 0.25], [1, 0, 0.125]]
    assert found(build(loss_mask=weights)) == [("weighted_labels", None, None)] * has_labels
    assert found(build(loss_mask=weights, labels=None)) == []


def test_nan_in_other_fields(build):
    values = [[0.0] * 4, [1.0, np.nan, 0.0], [0.0] * 5]
    fields = {
        "entropy": fc.Field(values, align="sequence"),
        "top": fc.Field([[[0.5, -1.0]] * 2, [[0.0, np.nan]] * 2, [[0.0, 0.0]] * 3]),
        "difficulty": fc.PerRow([0.5, 0.5, 0.5]),
        "numbers": fc.Field([[1, 2], [3, 4], [5, 6, 7]], dtype="int64"),
    }
    assert found(build(fields=fields)) == [("nan", 1, 1), ("nan", 1, 1)]


def test_bfloat16_is_read(layout, array_type):
    if array_type == "numpy":
        pytest.skip("NumPy has no bfloat16")
    columns = good_input(layout) | {"logprobs": [[-0.5, 2.0], [0.0, -2.0], [-3.0, 0.0, -0.25]]}
    batch = fc.build_batch(**columns, layout=layout, dtypes={"logprobs": "bfloat16"})
    assert found(batch) == [("positive_logprob", 0, 3)]


def test_a_reward_beside_an_untrained_token(build):
    rewards = good_input()["rewards"]
    rewards[2] = [0.0, 0.75, 3.0]
    batch = build(rewards=rewards)
    assert found(batch) == [("untrained_reward", 2, 3)]
    assert "0.75" in batch.check()[0].reasons[0]


def test_an_id_beyond_the_vocabulary(build):
    assert found(build(), vocab_size=9) == [
        ("outside_vocabulary", 0, 3),
        ("outside_vocabulary", 1, 2),
        ("outside_vocabulary", 2, 4),
    ]
    prompts = [[1, 2], [-3], [4, 5]]
    assert found(build(prompts=prompts), vocab_size=10) == [("outside_vocabulary", 1, 0)]


def test_labels_as_ids(build):
    """Without the size of the vocabulary, too: no embedding has the index -100."""
    batch = build(prompts=[[1, 2], [-100], [4, 5]])
    assert found(batch) == [("outside_vocabulary", 1, 0)]
    assert "the id -100 is not from 0 on" in str(batch.check()[0])
    batch = build(pad_token_id=-1)
    is_padded = batch.plan.num_positions > int(batch.metrics["batch/tokens"])
    assert found(batch) == ([("outside_vocabulary", None, None)] if is_padded else [])


def test_a_padding_token_beyond_the_vocabulary(build):
    batch = build(pad_token_id=10)
    tokens = int(batch.metrics["batch/tokens"])
    is_padded = batch.plan.num_positions > tokens
    expected = [("outside_vocabulary", None, None)] if is_padded else []
    assert found(batch, vocab_size=10) == expected


@pytest.mark.parametrize("eos", [EOS, [77, EOS], np.int64(EOS), np.array([EOS, 77])])
def test_an_answer_that_is_cut_off(build, eos):
    responses = [[6, EOS], [7, 8], [8, 7, EOS]]
    batch = build(responses=responses)
    assert found(batch) == []
    assert found(batch, eos_token_id=eos) == [("cut_off", 1, 2)]


def test_what_follows_the_end_token_may_be_masked(build):
    responses, masks = [[EOS, 6], [7, EOS], [8, EOS, 5]], [[1, 0], [1, 1], [1, 1, 0]]
    batch = build(responses=responses, loss_mask=masks, rewards=None)
    assert found(batch, eos_token_id=EOS) == []


def test_an_end_that_repeats_as_padding_does(build):
    responses, masks = [[6, EOS, EOS], [7, EOS], [8, EOS, EOS]], [[1, 1, 1], [1, 1], [1, 1, 0]]
    batch = build(responses=responses, loss_mask=masks, rewards=None, logprobs=None)
    assert found(batch, eos_token_id=EOS) == [("repeated_end", 0, 4)]
    assert found(batch, eos_token_id=[7, EOS]) == [("repeated_end", 0, 4)]


def test_responses_that_begin_with_their_prompts(build):
    columns = {"loss_mask": None, "rewards": None, "logprobs": None}
    responses = [[1, 2, 6, EOS], [7, EOS], [4, 5, EOS]]
    assert found(build(responses=responses, **columns)) == []
    responses[1] = [3, 7, EOS]
    expected = [("repeated_prompt", row, None) for row in range(3)]
    assert found(build(responses=responses, **columns)) == expected
    prompts = [[1, 2], [], [4, 5]]  # a row without one repeats nothing
    expected = [("repeated_prompt", row, None) for row in (0, 2)]
    assert found(build(prompts=prompts, responses=responses, **columns)) == expected


def test_rows_that_were_padded(build):
    columns = {"loss_mask": None, "rewards": None, "logprobs": None}
    prompts, responses = [[0, 0, 2], [0, 5], [4, 0, 0]], [[6, EOS], [7, EOS], [4, 0, EOS]]
    expected = [("padded_row", row, None) for row in (0, 2)]
    assert found(build(prompts=prompts, responses=responses, **columns)) == expected
    prompts, responses = [[], [0], [0]], [[6, EOS], [7, 0, 0], [0, 5]]
    expected = [("padded_row", row, None) for row in (1, 2)]
    assert found(build(prompts=prompts, responses=responses, **columns)) == expected


def test_many_rows_that_are_there_twice(layout):
    random = np.random.default_rng(0)
    lens = random.integers(0, 4, (2, 100_000))
    prompts, responses = (
        fc.Ragged(random.integers(0, 4, of_all.sum()), np.append(0, of_all.cumsum()))
        for of_all in lens
    )
    batch = fc.build_batch(prompts, responses, pad_token_id=0, array_type="numpy", layout=layout)
    (duplicates,) = (one for one in batch.check() if one.kind == "duplicate")
    firsts = {}
    rows = zip(prompts.to_list(), responses.to_list(), strict=True)
    first_of = [firsts.setdefault(str(row), index) for index, row in enumerate(rows)]
    again = [(row, first) for row, first in enumerate(first_of) if first < row]
    assert duplicates.rows.tolist() == [row for row, _ in again]
    assert duplicates.reasons == [
        f"it has the same tokens as row {first}" for _, first in again[:3]
    ]


def test_a_row_that_is_there_twice(build):
    tokens = {"prompts": [[4, 5], [1, 2], [4, 5]], "responses": [[8, 9], [6, 9], [8, 9]]}
    columns = tokens | {"loss_mask": None, "rewards": None, "logprobs": None}
    batch = build(**columns)
    assert found(batch) == [("duplicate", 2, None)]
    assert "row 0" in batch.check()[0].reasons[0]
    # The same tokens, of which others are the prompt, are another row.
    assert found(build(**columns | {"prompts": [[4], [1, 2], [4, 5]]})) == []
    moved = {
        "prompts": [[4], [4, 5], [1], [1, 2]],
        "responses": [[5, 8, 9], [8, 9], [2, 6, 7], [6, 8]],
    }
    assert found(build(**columns | moved)) == []


def test_padding_that_packing_saves(layout, array_type):
    prompts, responses = [[1] * n for n in (50, 1, 2, 3, 4, 5, 6, 7)], [[2]] * 8
    if isinstance(layout, (fc.Packed, fc.Tree)):
        layout = type(layout)(capacity=60, pad_to=400)
    batch = fc.build_batch(prompts, responses, pad_token_id=0, layout=layout, array_type=array_type)
    is_block = layout in ("left", "right", "two_segment")
    assert found(batch) == ([("padding", None, None)] if is_block else [])
    if is_block:
        width = batch.input_ids.shape[1]
        padding = 1 - 86 / (8 * width)
        finding = batch.check()[0]
        assert finding.reasons[0].startswith(
            f"{padding:.0%} padding: packed at {width} it would be"
        )
        packed = fc.build_batch(
            *(prompts, responses), pad_token_id=0, layout=fc.Packed(capacity=width)
        )
        share = packed.metrics["batch/padding_fraction"]
        assert finding.reasons[0].endswith(f" {share:.0%}")
        assert finding.advice == f"pass layout=fc.Packed(capacity={width})"


def test_padding_rows_are_not_looked_at(layout, array_type):
    columns = good_input(layout)
    rows = [4, 3, 5]
    if isinstance(layout, fc.Tree):
        rows = fc.planning.prefix_tree(columns["prompts"], columns["responses"])
    for dp_size in (2, 4):
        plan = fc.plan_step(rows, dp_size=dp_size, layout=layout, pad_rows="copy_first")
        shards = [plan.shard(0, rank) for rank in range(dp_size)]
        batches = [
            fc.build_batch(**columns, shard=shard, array_type=array_type) for shard in shards
        ]
        for batch in batches:
            assert found(batch, vocab_size=10, eos_token_id=EOS) == []
        kinds = [kind for batch in batches for kind, *_ in found(batch, vocab_size=9)]
        assert kinds == ["outside_vocabulary"] * 3
    assert any(any(batch.is_padding) for batch in batches)


def test_bad_arguments(build):
    batch = build()
    for options, message in [
        ({"vocab_size": 0}, "vocab_size is 0; pass the number of token ids, 1 or more"),
        ({"vocab_size": "x"}, "vocab_size is 'x'; pass the number of token ids"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; pass the id of the token"),
        ({"eos_token_id": []}, "pass the id of the token that ends an answer"),
        ({"eos_token_id": [1.5]}, r"eos_token_id\[0\] is 1.5"),
        ({"vocab": 3}, "no argument 'vocab'; pass vocab_size"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            batch.check(**options)
    with pytest.raises(MissingPlanError):
        fc.Batch(batch).check()


def test_findings_print_as_a_table(build, monkeypatch):
    """Of a kind, three rows are described and all are there."""
    columns = {
        "prompts": [[1, 2], [3], [4, 5], [6]],
        "responses": [[6, EOS], [7, EOS], [8, 7, EOS], [8, EOS]],
        "loss_mask": [[1, 0], [1, 0], [1, 0, 0], [1, 0]],
        "rewards": [[1.0, 1.0]] * 2 + [[1.0] * 3, [1.0, 1.0]],
        "logprobs": None,
    }
    findings = build(**columns).check()
    monkeypatch.setenv("COLUMNS", "60")
    assert repr(findings) == (
        "1 error\n\n"
        "error: untrained_reward in 4 rows\n"
        "  row 0, token 3: the reward 1 is on a token that does not\n"
        "      train\n"
        "  row 1, token 2: the reward 1 is on a token that does not\n"
        "      train\n"
        "  row 2, token 3: the reward 1 is on a token that does not\n"
        "      train (2 such tokens in the row)\n"
        "  and 1 more\n"
        "  -> put it on a token that trains, or correct loss_mask"
    )
    assert "untrained_reward in 4 rows" in findings._repr_html_()
    assert findings[0].rows.tolist() == [0, 1, 2, 3]
    assert findings[0].positions.tolist() == [3, 2, 3, 2]


@pytest.mark.parametrize("merge", [None, "exact", "realign"])
def test_findings_of_recorded_rollouts_are_true(layout, merge):
    if isinstance(layout, fc.Packed):
        layout = fc.Packed(capacity=16384, multiple_of=layout.multiple_of, shift=layout.shift)
    if isinstance(layout, fc.Tree):
        layout = fc.Tree(capacity=16384)
    rollouts, tokenizer = load_rollouts(), load_tokenizer()
    uids = set(rollouts.uids[:600])
    rows = [row for row, uid in enumerate(rollouts.uids) if uid in uids]
    names = ("prompts", "responses", "loss_mask", "logprobs", "trajectory_ids", "is_last_step")
    columns = {name: [getattr(rollouts, name)[row] for row in rows] for name in names}
    batch = fc.build_batch(
        **columns, pad_token_id=PAD_TOKEN_ID, merge=merge, layout=layout, array_type="numpy"
    )
    findings = batch.check(tokenizer.get_vocab_size(), tokenizer.token_to_id("<|end|>"))
    right = batch if layout == "right" else batch.to_layout("right")
    tokens = [
        (int(prompt), *ids[mask != 0].tolist())
        for prompt, ids, mask in zip(
            batch.prompt_lens, right.input_ids, right.attention_mask, strict=True
        )
    ]
    again = [row for row, one in enumerate(tokens) if one in tokens[:row]]
    assert [row for one in findings if one.kind == "duplicate" for row in one.rows] == again
    assert {one.kind for one in findings} <= {"duplicate", "padding"}
    if layout == "left":
        assert batch.metrics["batch/padding_fraction"] > 0.5
        assert findings[-1].kind == "padding"
