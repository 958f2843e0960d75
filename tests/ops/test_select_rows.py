"""Rows of a batch by index: their batch, the loss of a model on it, and errors."""

import copy
import pickle

import numpy as np
import pytest
from any_layout import layouts
from conftest import NEEDS_TORCH, share
from hypothesis import assume, given
from hypothesis import strategies as st
from making import make_batch
from packed_cases import cases as packed_cases
from packed_cases import quiet
from raising import raises
from step_shards import shard_of
from strategies import as_inputs, extras, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_shard_loops

LAYOUTS = ["left", "two_segment", "right", "jagged"]
NAMES = ("uids", "trajectory_ids", "is_last_step")


def selections(count):
    """Draw indices of some rows, each once: in any order, or consecutive."""
    ranges = st.tuples(st.integers(0, count - 1), st.integers(1, count)).map(
        lambda one: list(range(one[0], min(sum(one), count)))
    )
    anywhere = st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True)
    return anywhere | ranges


@pytest.mark.parametrize("layout", LAYOUTS)
@share(8)
@given(drawn=st.data())
def test_rows_of_padded_and_jagged_batches(layout, drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=30))
    inputs, more = drawn.draw(as_inputs(data)), drawn.draw(extras(data, array_type))
    options = {**more, "pad_token_id": 7, "layout": drawn.draw(layouts(layout, data))}
    count = len(data.prompts)
    ends = drawn.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    whole = fc.build_batch(**inputs, **options, is_last_step=ends, array_type=array_type)
    before = pickle.dumps(dict(whole))
    rows = drawn.draw(selections(count))
    batch = whole.select(rows=drawn.draw(st.sampled_from([rows, np.array(rows), tuple(rows)])))
    shard = shard_of(rows, [False] * len(rows), data.prompts, data.responses)
    assert_same(batch, build_shard_loops(**data._asdict(), **options, shard=shard))
    if layout != "jagged":
        width = batch.input_ids.shape[1], batch.response_mask.shape[1]
        assert width == (whole.input_ids.shape[1], whole.response_mask.shape[1])
    for name, values in {**more, "is_last_step": ends}.items():
        if name in NAMES:
            assert getattr(batch, name) == [values[row] for row in rows]
    assert batch.is_padding is None
    assert batch.plan.prompt_lens.tolist() == [len(data.prompts[row]) for row in rows]
    is_view = rows == list(range(rows[0], rows[0] + len(rows)))
    ids = np.asarray(batch.input_ids), np.asarray(whole.input_ids)
    assert np.shares_memory(*ids) == (is_view and ids[0].size > 0)
    for value in batch.values():
        assert not hasattr(value, "is_contiguous") or value.is_contiguous()
    assert pickle.dumps(dict(whole)) == before


@share(2)
@given(drawn=st.data())
def test_rows_of_packed_batches_stay_in_their_bins(drawn, array_type):
    data, inputs, options, _, more = drawn.draw(packed_cases(array_type))
    with quiet():
        try:
            whole = fc.build_batch(**inputs, **options, **more, array_type=array_type)
        except ValueError:
            assume(False)
    rows = drawn.draw(selections(len(data.prompts)))
    layout, plan = options["layout"], whole.bin_plan
    counts = np.bincount(plan.indices, minlength=len(data.prompts))
    headless = [row for row in rows if data.responses[row] and not data.prompts[row]]
    if (counts[rows] > 1).any() or (layout.shift == "next_token" and headless):
        with pytest.raises(ValueError, match=r"row \d+ of the batch (was split|has no prompt)"):
            whole.select(rows=rows)
        return
    batch = whole.select(rows=rows)
    number = {row: index for index, row in enumerate(rows)}
    bins = [[number[row] for row in bin_ if row in number] for bin_ in plan.bins]
    again = fc.Packed(
        plan=[bin_ for bin_ in bins if bin_],
        multiple_of=whole.plan.multiple_of,
        pad_to=whole.plan.width,
        shift=layout.shift,
        padding_as=layout.padding_as,
    )
    padded = fc.build_batch(**inputs, **more, array_type=array_type).select(rows=rows)
    assert_same(batch, padded.to_layout(again))
    assert batch.plan == padded.to_layout(again).plan
    assert batch.uids == padded.uids
    assert batch.is_padding is None
    assert_same(pickle.loads(pickle.dumps(batch)), batch)


def small(layout="left", **options):
    prompts, responses = [[5, 6], [7], [8], [4, 4]], [[8, 9], [3], [4, 5, 6], [1]]
    return make_batch(prompts, responses, layout=layout, **options)


@pytest.mark.parametrize("layout", [*LAYOUTS, fc.Packed(6)])
def test_padding_rows_stay_padding(layout):
    rewards, ids = [1.0, 2.0, 3.0, 4.0], list("abcd")
    plan = fc.plan_step([4, 2, 4, 3], dp_size=3)
    padded = small(rewards=rewards, uids=ids, shard=plan.shard(0, 2)).to_layout(layout)
    assert padded.is_padding == [False, True]
    batch = padded.select(rows=[1, 0])
    assert (batch.is_padding, batch.uids) == ([True, False], ["pad1", "d"])
    of_padding = [] if batch.plan.is_packed else [[0]]
    assert batch.gather(batch.loss_mask, align="response").to_list() == [*of_padding, [1]]
    assert batch.gather(batch.rewards, align="response").to_list() == [*of_padding, [4]]
    assert padded.select(rows=[1]).is_padding == [True]
    assert padded.select(rows=[0, 1]).is_padding == [False, True]
    assert float(padded.select(rows=[1]).loss_mask.sum()) == 0


@pytest.mark.parametrize("layout", [*LAYOUTS, fc.Packed(8)])
def test_rows_of_merged_turns_keep_their_pieces(layout):
    turns = ([[1], [1, 2, 3], [6], [7]], [[2], [4], [5, 5], [8]])
    ids = {"trajectory_ids": list("aabc"), "uids": list("ppqr")}
    whole = make_batch(*turns, merge="exact", rewards=[[1], [2], [3, 4], [5]], **ids, layout=layout)
    batch = whole.select(rows=[2, 0])
    assert (batch.uids, batch.trajectory_ids) == (["r", "p"], ["c", "a"])
    assert batch.gather(batch.loss_mask, align="response").to_list() == [[1], [1, 0, 1]]
    assert batch.gather(
        batch.rewards, align="response", per="turn", missing=-1
    ).to_list() == [[1], [2], [-1, -1], [5]]  # fmt: skip
    assert batch.merge_plan is whole.merge_plan
    assert fc.plan_step(batch).num_rows == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([4], r"rows\[0\] is 4, but the batch has 4 rows; pass indices from 0 to 3"),
        ([0, -1], r"rows\[1\] is -1; pass indices of 0 or more"),
        ([2, 0, 2], r"rows\[0\] and rows\[2\] are both 2, .* train twice; pass each"),
        ([], "rows is empty; pass the index of at least one row"),
        ([0.5], r"TypeError: rows\[0\] is 0.5; pass an integer"),
        ([True, False], r"TypeError: rows\[0\] is True"),
        (2, r"TypeError: rows is 2 \(int\); call batch.select\(rows=\[...\]\)"),
        (slice(1, 3), r"TypeError: batch.select\(rows=\[...\]\)"),
        (np.array([True, False, True, True]), r"TypeError: a mask; pass indices .*flatnonzero"),
        ("0", r"TypeError: rows is '0' \(str\); call batch.select\(rows=\[...\]\)"),
    ],
)
@pytest.mark.parametrize("layout", ["left", "jagged", fc.Packed(8), "tree"])
def test_rows_that_cannot_be_selected(layout, rows, message):
    with raises(message):
        small(layout).select(rows=rows)


def test_rows_of_trees_are_selected_by_bins_or_in_another_layout():
    tree = small("tree")
    with pytest.raises(ValueError, match=r"bins=..., or call batch.to_layout\('jagged'\).select"):
        tree.select(rows=[2, 0])
    rows = tree.to_layout("jagged").select(rows=[2, 0])
    assert rows.to_layout("tree").input_ids.shape == (1, 8)


def test_the_arguments_exclude_each_other():
    batch = small()
    shard = fc.plan_step(batch).shard(0, 0)
    for arguments, found in [
        ({}, "shard, rows and bins are None"),
        ({"shard": shard, "rows": [0]}, "shard and rows are given"),
        ({"rows": [0], "bins": [0]}, "rows and bins are given"),
    ]:
        with pytest.raises(TypeError, match=f"{found}; pass one of shard, rows and bins"):
            batch.select(**arguments)
    with pytest.raises(RuntimeError, match="made from a mapping and has no plan"):
        type(batch)(dict(batch)).select(rows=[0])


@pytest.mark.parametrize(
    "key",
    [0, np.int64(2), [0, 3], (1, 2), slice(2, 4), np.array([3, 1]), (slice(None), 0), None, 0.5],
)
def test_indices_of_rows_are_not_keys(key):
    batch = small()
    advice = r"call batch.select\(rows=\[...\]\) for a batch of rows, or batch.show\(rows="
    with pytest.raises(KeyError, match=f"the key of an output, such as 'input_ids', .*{advice}"):
        batch[key]
    if key is not None and not isinstance(key, float):
        with pytest.raises(TypeError, match=advice):
            batch.select(key)
    with pytest.raises(KeyError, match=advice):
        type(batch)(dict(batch))[key]


ROUTES = {"fields": {"routes": fc.RoutedExperts([np.zeros((0, 1, 2), int)] * 4)}}
WHOLE = {"x": fc.Field([[0] * n for n in (4, 2, 4, 3)], align="sequence")}
PACKED, ALIGNED = {"layout": fc.Packed(8)}, {"layout": fc.Packed(8, multiple_of=2)}
JAGGED, TREE = {"layout": "jagged"}, {"layout": fc.Tree(8)}

# What is said of an output that was not made, and what makes it.
ADVICE = {
    "labels": ("labels='aligned'", {"labels": "aligned"}),
    "shift_labels": ("labels='shifted'", {"labels": "shifted"}),
    "position_ids": ("position_ids=True", {"position_ids": True}),
    "rewards": ("rewards=...", {"rewards": [1.0] * 4}),
    "logprobs": ("logprobs=...", {"logprobs": [[0, 0], [0], [0] * 3, [0]]}),
    "advantages": ("advantages=...", {"advantages": [[1, 1], [1], [1] * 3, [1]]}),
    "router_padding_mask": ("fields={'routes': fc.RoutedExperts(...)}", ROUTES),
    "cu_seqlens": ("layout=fc.Packed(...) or layout='jagged'", JAGGED),
    "max_seqlen": ("layout=fc.Packed(...) or layout='jagged'", PACKED),
    "row_cu_seqlens": ("layout=fc.Packed(...)", PACKED),
    "sequence_ids": ("layout=fc.Packed(...)", PACKED),
    "cu_seqlens_padded": ("layout=fc.Packed(..., multiple_of=...)", ALIGNED),
    "max_seqlen_padded": ("layout=fc.Packed(..., multiple_of=...)", ALIGNED),
    "row_cu_seqlens_padded": ("layout=fc.Packed(..., multiple_of=...)", ALIGNED),
    "offsets": ("layout='jagged'", JAGGED),
    "response_offsets": ("layout='jagged' or layout=fc.Tree(...)", TREE),
    "sequence_offsets": (
        "layout=fc.Tree(...) and a field with align='sequence'",
        {"layout": "tree", "fields": WHOLE},
    ),
    "predictors": ("layout=fc.Tree(...)", TREE),
    "row_bins": ("layout=fc.Tree(...)", TREE),
}


def test_every_optional_output_has_advice():
    layouts = [*LAYOUTS, fc.Packed(8, multiple_of=2), fc.Tree(8)]
    keys = {key for layout in layouts for key in small(layout)}
    keys |= {key for _, options in ADVICE.values() for key in small(**options)}
    of_callers = {"routes", "x"}
    always = {"input_ids", "attention_mask", "response_mask", "loss_mask", "targets"}
    always |= {"subtree_end"}
    assert keys - always - of_callers == set(ADVICE)


@pytest.mark.parametrize("name", ADVICE)
def test_outputs_that_were_not_made(name):
    made, (advice, options) = small(position_ids=False), ADVICE[name]
    for batch in (made, type(made)(dict(made))):
        with pytest.raises(AttributeError, match=f"^Batch has no {name}; ") as error:
            getattr(batch, name)
        assert f"pass {advice}" in str(error.value)
        with pytest.raises(KeyError) as missing:
            batch[name]
        assert missing.value.args[0] == str(error.value)
        assert not hasattr(batch, name)
        assert name not in batch
        assert batch.get(name) is None
    assert name in small(**options)  # the advice is true


@pytest.mark.parametrize(
    ("layout", "name", "message"),
    [
        (
            "jagged",
            "attention_mask",
            "share output rows; call the model with **batch.model_inputs()",
        ),
        (
            fc.Packed(8),
            "attention_mask",
            "share output rows; call the model with **batch.model_inputs()",
        ),
        ("tree", "attention_mask", "share output rows; call the model with **batch.model_inputs()"),
        ("jagged", "response_mask", "end to end in its layout, without padding; see batch.res"),
        ("tree", "response_mask", "end to end in its layout, without padding; see batch.res"),
        ("tree", "labels", "can predict several tokens; see batch.targets and batch.predictors"),
    ],
)
def test_outputs_that_a_layout_cannot_have(layout, name, message):
    batch = small(layout)
    for read in (lambda: getattr(batch, name), lambda: batch[name]):
        with pytest.raises((AttributeError, KeyError)) as error:
            read()
        assert f"Batch has no {name}, since " in error.value.args[0]
        assert message in error.value.args[0]


def test_other_names():
    batch = small()
    for read in (lambda: batch["reward"], lambda: batch.reward):
        with pytest.raises((AttributeError, KeyError)) as error:
            read()
        assert "Batch has no reward; pass rewards=... to build_batch" in str(error.value)
    with pytest.raises(KeyError, match=r"'prompt_lens' is not an output but an attribute; use bat"):
        batch["prompt_lens"]
    with pytest.raises(AttributeError, match="no attribute '_private'"):
        batch._private  # noqa: B018


@NEEDS_TORCH
@pytest.mark.parametrize("key", ["response_mask", "labels", "shift_labels"])
@pytest.mark.parametrize(
    "layout", [*LAYOUTS, fc.Packed(8), fc.Packed(9, shift="next_token"), fc.Packed.single_row()]
)
def test_masks_that_change_without_the_loss_mask(layout, key):
    """They are written again by it, so that their tokens would train after all."""
    labels = {"labels": "aligned", "shift_labels": "shifted"}.get(key)
    options = {"pad_token_id": 0, "layout": layout, "labels": labels, "uids": ["a", "b", "c"]}
    prompts, responses = [[1], [2, 3, 4], [5, 6]], [[7, 8, 9], [10], [11, 12]]
    batch = fc.build_batch(prompts, responses, **options)
    if key not in batch:
        assert layout == "jagged"
        return
    ways = [
        lambda: batch.select(rows=[0, 2]),
        lambda: batch.to_layout("right" if layout == "left" else "left").select(rows=[0, 2]),
    ]
    for way in ways:
        assert int(way().loss_mask.sum()) == 5
    left_out = -100 if labels else 0
    tokens = batch.targets if key == "response_mask" else batch.input_ids
    if key == "shift_labels":
        tokens = tokens.roll(-1)
    batch[key][tokens == 12] = left_out
    for way in ways:
        with pytest.raises(ValueError, match=rf"{key} is {left_out} for response token 1 of row 2"):
            way()
    batch.loss_mask[batch.targets == 12] = 0
    batch[key][tokens == 9] = batch[key][tokens == 9]  # written, but not changed
    for way in ways:
        assert int(way().loss_mask.sum()) == 4


@NEEDS_TORCH
@pytest.mark.parametrize(
    ("changed", "key", "found"),
    [
        ("input_ids", "labels", "12 for response token 1 of row 2, but .* have 30 there"),
        ("input_ids", "shift_labels", "12 for response token 1 of row 2, but .* have 30 there"),
        ("input_ids", "targets", "12 for response token 1 of row 2, but .* have 30 there"),
        ("labels", "labels", "30 for response token 1 of row 2, but .* have 12 there"),
        ("attention_mask", "attention_mask", "0 for token 3 of row 2, but .* have 1 there"),
        ("position_ids", "position_ids", "9 for token 3 of row 2, but .* have 3 there"),
    ],
)
@pytest.mark.parametrize("layout", [*LAYOUTS, fc.Packed(8), "tree"])
def test_outputs_that_change_without_what_they_are_written_by(layout, changed, key, found):
    """Copies have them as they were, or by the new ids: a model would train on other tokens."""
    options = {"pad_token_id": 0, "layout": layout, "position_ids": True}
    if key in ("labels", "shift_labels") and layout != "tree":
        options["labels"] = "aligned" if key == "labels" else "shifted"
    batch = fc.build_batch([[1], [2, 3, 4], [5, 6]], [[7, 8, 9], [10], [11, 12]], **options)
    if key not in batch.spec.table:
        return
    new = {"attention_mask": 0, "position_ids": 9}.get(changed, 30)
    batch[changed][batch.input_ids == 12] = new
    for copied in (batch, pickle.loads(pickle.dumps(batch))):
        with pytest.raises(ValueError, match=rf"{key} is {found}.*; change it after select"):
            copied.to_layout("right" if layout == "left" else "left")


@NEEDS_TORCH
@pytest.mark.parametrize("dtypes", ["default", "compact"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_that_change_after_they_were_made(layout, dtypes):
    """Copies make them again: a model would count from 0 after all."""
    rows = [[1], [2, 3, 4], [5, 6]], [[7, 8, 9], [10], [11, 12]]
    options = {"pad_token_id": 0, "layout": layout, "dtypes": dtypes}
    ways = [
        lambda batch: pickle.loads(pickle.dumps(batch)),
        copy.deepcopy,
        lambda batch: batch.to("meta"),
        lambda batch: batch.select(rows=[0, 1]),
        lambda batch: batch.select(rows=[0, 2]),
        lambda batch: batch.to_layout("right" if layout == "left" else "left"),
    ]
    batch = fc.build_batch(*rows, **options)
    batch.position_ids[batch.input_ids == 0] = 1  # of padding
    for way in ways:
        assert way(batch).plan.num_rows > 0
    batch.position_ids[batch.input_ids == 4] = 9
    found = "position_ids is 9 for token 2 of row 1"
    message = f"{found}, but copies.* have 2 there.*pass position_ids=True"
    for way in ways:
        with pytest.raises(ValueError, match=message):
            way(batch)
    batch = fc.build_batch(*rows, **options, position_ids=True)
    batch.position_ids[batch.input_ids == 4] = 9
    for way in ways[:2]:
        assert way(batch).position_ids.tolist() == batch.position_ids.tolist()


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore:.*split")
@pytest.mark.parametrize("labels", ["aligned", "shifted"])
def test_rows_that_are_not_selected_may_be_split_or_lack_a_prompt(labels):
    layout = fc.Packed(9, oversize="split", shift="next_token")
    rows = [[1, 2, 3], [4], []], [[7] * 12, [9, 10], [3, 4]]
    batch = fc.build_batch(*rows, pad_token_id=0, layout=layout, labels=labels)
    expected = batch.select(rows=[1])
    selected = pickle.loads(pickle.dumps(batch)).select(rows=[1])  # its tensors were written
    assert {key: selected[key].tolist() for key in ("loss_mask", "position_ids", "input_ids")} == {
        key: expected[key].tolist() for key in ("loss_mask", "position_ids", "input_ids")
    }


@NEEDS_TORCH
@pytest.mark.parametrize("labels", ["aligned", "shifted"])
@pytest.mark.parametrize("layout", [*LAYOUTS, fc.Packed(8)])
def test_labels_of_ids_that_were_replaced(layout, labels):
    """They are as they were written, also if the loss mask changes: noise is not learned."""
    options = {"pad_token_id": 0, "layout": layout, "labels": labels}
    batch = fc.build_batch([[1], [2, 3]], [[7, 8], [9, 10]], **options)
    key = "labels" if labels == "aligned" else "shift_labels"
    batch.loss_mask[batch.targets == 8] = 0
    expected = batch[key].tolist()
    batch.input_ids[batch.input_ids == 9] = 30
    batch.loss_mask[batch.targets == 30] *= 0.5
    assert batch[key].tolist() == expected


@pytest.mark.parametrize("per_row", [True, False])
def test_advantages_of_tokens_that_are_masked_for_a_while(per_row, array_type):
    """Copies keep them as views do, however they were given."""
    advantages = [1, 2, 3] if per_row else [[1, 1], [2, 2, 2], [3]]
    batch = make_batch(
        *([[1], [2], [6]], [[3, 4], [5, 6, 7], [8]]), advantages=advantages, array_type=array_type
    )
    before = batch.advantages.tolist()
    batch.loss_mask[1, 0] = 0
    for changed in (
        batch.select(rows=[0, 1, 2]),
        batch.select(rows=[1, 0, 2]).select(rows=[1, 0, 2]),
        batch.to_layout("jagged").to_layout("left"),
        batch.to_layout("tree").to_layout("left"),
    ):
        assert changed.advantages.tolist() == before
