"""Context parallelism: each rank's part of packed rows, and the way back."""

import pickle
import re

import numpy as np
import pytest
from conftest import NEEDS_TORCH, share
from context_parallel_loops import cp_merge_loops, cp_split_loops
from gathering import DTYPES, like
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from packings import PADDING_AS, SHIFTS, bins, lens_of, plan_of
from raising import raises
from strategies import extras, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same

BUILT_IN = ["input_ids", "position_ids", "sequence_ids", "response_mask"]
BUILT_IN += ["labels", "shift_labels", "loss_mask"]


@st.composite
def arguments(draw, array_type, shifts=("none",)):
    """Draw arguments of a packed batch, and a number of ranks."""
    data = draw(rollouts(max_long_len=30))
    cp_size = draw(st.integers(1, 4))
    multiple = 2 * cp_size * draw(st.sampled_from([1, 1, 2]))
    more = draw(extras(data, array_type)) | {"pad_token_id": -3}
    if more.get("labels") == "aligned" and cp_size > 1:  # refused
        more["labels"] = "shifted"
    how = {"padding_as": draw(st.sampled_from(PADDING_AS)), "shift": draw(st.sampled_from(shifts))}
    parts = draw(bins(lens_of(data), splits=how["shift"] == "none"))
    loads = [sum(-(-part[2] // multiple) * multiple for part in bin_) for bin_ in parts]
    if draw(st.booleans()):
        how["pad_to"] = max(loads) + multiple * draw(st.integers(0, 3))
    layout = fc.Packed(plan=plan_of(parts, multiple), **how)
    return data._asdict() | more | {"layout": layout, "array_type": array_type}, cp_size


@st.composite
def cases(draw, array_type):
    """Draw a packed batch, the keys of what has a value per position, and a number of ranks."""
    drawn, cp_size = draw(arguments(array_type))
    batch = fc.build_batch(**drawn)
    of_rows = ("row", "object", "array", "joined", "ragged", "response_counts", "sequence_counts")
    fields = [spec.key for spec in batch.spec.fields if spec.align not in of_rows]
    keys = [*BUILT_IN, *fields, "router_padding_mask", "indexer_topk_padding_mask"]
    return batch, [key for key in keys if key in batch], cp_size


@share(2)
@given(drawn=st.data())
def test_equals_the_loops(drawn, array_type):
    batch, keys, cp_size = drawn.draw(cases(array_type))
    parts = [batch.cp_split(cp_size, rank) for rank in range(cp_size)]
    for rank, part in enumerate(parts):
        assert_same(part, cp_split_loops(batch, keys, cp_size, rank))
    for key in keys:
        found = batch.cp_merge([part[key] for part in parts])
        assert_same({key: found}, {key: batch[key]})


@share(2)
@given(drawn=st.data())
def test_parts_are_built_alone(drawn, array_type):
    drawn, cp_size = drawn.draw(arguments(array_type, shifts=SHIFTS))
    try:
        batch = fc.build_batch(**drawn)
    except ValueError as error:  # a first response token without a prompt has no place
        for rank in range(cp_size):
            with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
                fc.build_batch(**drawn, cp=(cp_size, rank))
        return
    for rank in range(cp_size):
        part = fc.build_batch(**drawn, cp=(cp_size, rank))
        expected = batch.cp_split(cp_size, rank)
        assert_same(part, expected)
        assert part.plan == batch.plan == expected.plan
        assert part.uids == batch.uids == expected.uids
        assert list(part) == list(batch)


@share(2)
@given(drawn=st.data())
def test_outputs_of_a_model_are_merged(drawn, array_type):
    batch, _, cp_size = drawn.draw(cases(array_type))
    rows, width = batch.input_ids.shape
    rng = np.random.default_rng(drawn.draw(st.integers(0, 2**32 - 1)))
    trailing = drawn.draw(st.sampled_from([(), (3,), (2, 2), (0,)]))
    dtype = drawn.draw(st.sampled_from(DTYPES))
    shape = (rows, width // cp_size, *trailing)
    values = [(rng.standard_normal(shape) * 100).astype(dtype) for _ in range(cp_size)]
    found = batch.cp_merge([like(value, array_type) for value in values])
    assert_same({"x": found}, {"x": cp_merge_loops(values, batch)})


PLAN = plan_of([[(0, 0, 6), (2, 0, 3)], [(1, 0, 2)]], 4)


def small(array_type="numpy", **changes):
    """Places of 8 and 4 positions in one row, and of 4 in the other, with 8 of padding."""
    inputs = {
        "prompts": [[1, 2, 3], [7], [8, 9]],
        "responses": [[4, 5, 6], [10], [11]],
        "pad_token_id": 0,
        "layout": fc.Packed(plan=PLAN),
        "array_type": array_type,
    }
    return fc.build_batch(**{**inputs, **changes})


def test_values_per_row_are_not_cut(array_type):
    """Not by their shape: here it is that of the token ids."""
    table = np.arange(24).reshape(2, 12)
    inputs = {"prompts": [[1] * 5] * 2, "responses": [[2] * 7] * 2, "layout": fc.Packed(12)}
    batch = small(array_type, **inputs, fields={"x": fc.PerRow(table)})
    assert batch.x.shape == batch.input_ids.shape
    part = batch.cp_split(3, 1)
    assert part.input_ids.shape == (2, 4)
    assert part.x is batch.x


def test_one_rank_has_everything(array_type):
    batch = small(array_type, layout=fc.Packed(7))  # odd places
    part = batch.cp_split(1, 0)
    assert_same(part, batch)
    assert_same({"x": batch.cp_merge([part.input_ids])}, {"x": batch.input_ids})


def test_a_part_has_the_plan_of_the_whole(array_type):
    batch = small(array_type, uids=list("abc"))
    parts = [small(array_type, uids=list("abc"), cp=(2, rank)) for rank in range(2)]
    for part in (batch.cp_split(2, 1), parts[1]):
        assert type(part) is fc.Batch
        again = pickle.loads(pickle.dumps(part))
        assert_same(again, part)
        assert again.plan == part.plan == batch.plan
        assert part.uids == again.uids == list("abc")
        assert repr(part).splitlines()[0] == repr(batch).splitlines()[0]
        merged = part.cp_merge([part.input_ids for part in parts])
        assert_same({"x": merged}, {"x": batch.input_ids})
        assert part.gather(merged, align="response").to_list() == [[4, 5, 6], [10], [11]]
        with pytest.raises(ValueError, match=r"x has shape \(2, 6\)"):
            part.gather(part.input_ids, align="response")
        plan = fc.plan_step(small(array_type))
        for call in (
            lambda part: part.cp_split(2, 0),
            lambda part: part.to_layout("left"),
            lambda part: part.broadcast(like(np.ones(3), array_type)),
            lambda part, plan=plan: part.loss_normalizers(plan),
            lambda part, plan=plan: part.normalize(part.input_ids, plan),
            lambda part: part.subtree_end,
            lambda part: part.dense_mask(),
            lambda part: part.block_mask(),
            lambda part: part.attention_ranges(),
            lambda part: part.targets,
            lambda part: part.loss_positions(),
        ):
            with pytest.raises(ValueError, match="context-parallel rank 1 of 2 alone; use the who"):
                call(part)


def test_after_pickling(array_type):
    batch = pickle.loads(pickle.dumps(small(array_type)))
    assert_same(batch.cp_split(2, 0), small(array_type).cp_split(2, 0))


def test_the_batch_stays_as_it_is(array_type):
    batch = small(array_type)
    for rank in range(2):
        part = batch.cp_split(2, rank)
        part.input_ids[...] = -1
    assert_same(batch, small(array_type))


@NEEDS_TORCH
@pytest.mark.parametrize("padding_as", PADDING_AS)
def test_attention_over_all_ranks_computes_the_same(padding_as):
    """A rank's queries attend to the earlier keys of their sequence on all ranks."""
    import torch

    torch.manual_seed(0)
    batch = small("torch", layout=fc.Packed(plan=PLAN, padding_as=padding_as))
    query, key, value = (torch.randn(12, 4, dtype=torch.float64) for _ in range(3))

    def attended(queries, keys):
        """Attend by the sequences and positions of the parts."""
        of_keys = [torch.cat([part[name] for part in keys], 1) for name in BUILT_IN[:3]]
        ids, positions, owners = (values[:, None, :] for values in of_keys)
        visible = owners == queries.sequence_ids[:, :, None]
        visible &= positions <= queries.position_ids[:, :, None]
        return torch.nn.functional.scaled_dot_product_attention(
            query[queries.input_ids], key[ids[:, 0]], value[ids[:, 0]], attn_mask=visible
        )

    parts = [batch.cp_split(2, rank) for rank in range(2)]
    merged = batch.cp_merge([attended(part, parts) for part in parts])
    expected = attended(batch, [batch])
    is_real = batch.sequence_ids >= 0
    torch.testing.assert_close(merged[is_real], expected[is_real], rtol=0, atol=1e-12)


@NEEDS_TORCH
def test_gradients():
    import torch

    batch = small("torch")
    parts = [torch.randn(2, 6, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda *parts: batch.cp_merge(parts), parts)


@pytest.mark.parametrize("padding", ["zero", "one", "repeat_last"])
@pytest.mark.parametrize("size", [2, 3])
def test_positions_of_padding(padding, size):
    """Also where the token that padding repeats is on another rank."""
    plan = plan_of([[(0, 0, 1), (2, 0, 2)], [(1, 0, 25)], [(3, 0, 0)], [(4, 0, 13)]], 12)
    lens = [1, 25, 2, 0, 13]
    columns = {"prompts": [[1] * n for n in lens], "responses": [[]] * 5, "pad_token_id": 0}
    for padding_as in PADDING_AS:
        columns["layout"] = fc.Packed(plan=plan, pad_to=48, padding_as=padding_as)
        options = {**columns, "position_ids": padding, "array_type": "numpy"}
        batch = fc.build_batch(**options)
        for rank in range(size):
            part = fc.build_batch(**options, cp=(size, rank))
            assert_same(part, batch.cp_split(size, rank))


def test_a_part_of_many_positions():
    """Written in several bands, without the interpreter, on several threads."""
    rng = np.random.default_rng(0)
    lens = rng.integers(1, 40_000, 60).tolist()
    columns = {
        "prompts": [np.arange(n % 900, dtype=np.int32) for n in lens],
        "responses": [np.arange(n, dtype=np.int32) for n in lens],
        "loss_mask": [(np.arange(n) % 3 > 0).astype(np.float32) for n in lens],
        "pad_token_id": 7,
        "layout": fc.Packed(131_072, multiple_of=8, shift="next_token"),
        "labels": "shifted",
        "position_ids": "repeat_last",
        "array_type": "numpy",
    }
    batch = fc.build_batch(**columns)
    for rank in range(4):
        part = fc.build_batch(**columns, cp=(4, rank))
        assert_same(part, batch.cp_split(4, rank))


def bytes_of(batch):
    return sum(value.nbytes for value in batch.values() if isinstance(value, np.ndarray))


@pytest.mark.parametrize("size", [2, 4])
def test_a_part_takes_its_share_of_the_memory(size):
    columns = {"prompts": [[1] * 40] * 64, "responses": [[2] * 60] * 64, "pad_token_id": 0}
    columns |= {"array_type": "numpy", "layout": fc.Packed(800, multiple_of=8)}
    whole = bytes_of(fc.build_batch(**columns))
    part = fc.build_batch(**columns, cp=(size, 1))
    assert abs(bytes_of(part) * size / whole - 1) < 0.05
    assert part._state.owner is not None


def test_shards_of_a_step_are_cut():
    lens = [9, 3, 30, 12, 7]
    columns = {"prompts": [[1]] * 5, "responses": [[2] * n for n in lens], "pad_token_id": 0}
    columns |= {"array_type": "numpy", "uids": list("abcde")}
    plan = fc.plan_step(fc.build_batch(**columns), dp_size=2, layout=fc.Packed(32, multiple_of=4))
    for rank in range(2):
        for shard in (plan.shard(0, rank), *plan.shard(0, rank).micro_batches()):
            for one in (shard, shard.narrow()):
                whole = fc.build_batch(**columns, shard=one)
                for cp_rank in range(2):
                    part = fc.build_batch(**columns, shard=one, cp=(2, cp_rank))
                    assert_same(part, whole.cp_split(2, cp_rank))
                    assert part.is_padding == whole.is_padding


@pytest.mark.parametrize(
    ("cp", "message"),
    [
        ((0, 0), "cp_size{} is 0; pass a number of ranks"),
        ((-2, 0), "cp_size{} is -2"),
        ((2, 2), "cp_rank{} is 2; pass a rank from 0 to 1"),
        ((2, -1), "cp_rank{} is -1"),
        ((1.5, 0), "TypeError: cp_size{} is 1.5"),
        ((2, None), "TypeError: cp_rank{} is None"),
        ((4, 0), "8 equal chunks, .* bin 0, column 8 has 4 positions; pass .*multiple_of=8"),
        ((2**40, 0), "multiple_of"),
    ],
)
def test_splits_that_cannot_be(cp, message):
    with raises(message.format("")):
        small().cp_split(*cp)
    with raises(message.format(" of cp")):
        small(cp=cp)


def test_aligned_labels_would_be_shifted_across_the_ends_of_chunks(array_type):
    options = {"pad_token_id": 0, "array_type": array_type, "layout": fc.Packed(8, multiple_of=4)}
    rows = [[1, 2], [5]], [[3, 4, 6, 7], [8]]
    batch = fc.build_batch(*rows, **options, labels="aligned")
    for make in (
        lambda: fc.build_batch(*rows, **options, labels="aligned", cp=(2, 0)),
        lambda: batch.cp_split(2, 0),
    ):
        with pytest.raises(ValueError, match=r"across the ends.*pass labels='shifted'"):
            make()
    assert batch.cp_split(1, 0)["labels"].tolist() == batch["labels"].tolist()
    shifted = fc.build_batch(*rows, **options, labels="shifted")
    parts = [shifted.cp_split(2, rank)["shift_labels"] for rank in range(2)]
    assert sum(int((part != -100).sum()) for part in parts) == 5


def test_other_layouts():
    left = make_batch([[1]], [[2]])
    with pytest.raises(ValueError, match=r"layout='left'.*layout=fc.Packed"):
        left.cp_split(2, 0)
    with pytest.raises(ValueError, match="layout='left'"):
        left.cp_merge([left.input_ids])


def test_parts_that_cannot_be(array_type):
    batch = small(array_type)

    def zeros(*shape, dtype=np.float32):
        return like(np.zeros(shape, dtype), array_type)

    for parts, exception, message in [
        ([], ValueError, "parts is empty"),
        ([zeros(2, 6)], ValueError, r"parts\[0\] has shape \(2, 6\); pass \(2, 12\)"),
        ([zeros(2, 6), zeros(2, 5)], ValueError, r"parts\[1\] has shape \(2, 5\)"),
        ([zeros(2, 6, 1), zeros(2, 6, 2)], ValueError, r"parts\[1\] has shape \(2, 6, 2\)"),
        ([zeros(2, 6), zeros(2, 6, dtype=np.int64)], TypeError, r"parts\[1\] is int64"),
        ([zeros(2, 6), None], TypeError, r"parts\[1\] is None"),
        (zeros(2, 2, 6), TypeError, "pass a sequence of one array per rank"),
        (None, TypeError, "parts is None"),
        ([zeros(2, 4)] * 3, ValueError, "multiple_of=6"),
    ]:
        with pytest.raises(exception, match=message):
            batch.cp_merge(parts)


@NEEDS_TORCH
def test_arrays_and_tensors_together():
    import torch

    with pytest.raises(TypeError, match=r"parts\[1\]"):
        small().cp_merge([np.zeros((2, 6)), torch.zeros(2, 6)])


@pytest.mark.parametrize(
    ("cp", "message"),
    [
        (2, r"TypeError: cp is 2 \(int\); pass \(cp_size, cp_rank\), or None"),
        ((2,), "TypeError: cp is .*; pass"),
        ("21", "TypeError: cp is .*; pass"),
        ((4, 0), "cp_size is 4, .* bin 0, column 8 has 4 positions"),
        ((2**40, 0), "cp_size is 1099511627776, .* multiple_of"),
    ],
)
def test_parts_that_cannot_be_built(cp, message):
    with raises(message):
        small(cp=cp)


@pytest.mark.parametrize("layout", ["left", "jagged", fc.TwoSegment()])
def test_parts_of_other_layouts(layout):
    with pytest.raises(ValueError, match=r"cp is \(2, 0\), but the layout is .*layout=fc.Packed"):
        small(layout=layout, cp=(2, 0))
