"""Attention masks of every layout, against the definition, pair by pair."""

from itertools import pairwise

import numpy as np
import pytest
from attention_rows import LAYOUTS, ROWS, built, with_prompts
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from raising import raises

from fastcollate.common.arrays import to_numpy


def paths_of(batch):
    """Say of each position of each output row which path leads there; None of padding."""
    rows = []
    if hasattr(batch, "attention_mask"):
        for mask in to_numpy(batch.attention_mask).tolist():
            tokens = iter(chain(0, sum(mask)))
            rows.append([next(tokens) if is_token else None for is_token in mask])
    elif batch.plan.is_tree:
        for bin_ in range(batch.plan.num_output_rows):
            own = [
                row
                for row, of in zip(rows_of_batch(batch), to_numpy(batch.row_bins), strict=True)
                if of == bin_
            ]
            row = list(dict.fromkeys(row[: i + 1] for row in sorted(own) for i in range(len(row))))
            rows.append(row)
    elif batch.bin_plan is None:
        ends = to_numpy(batch.cu_seqlens).tolist()
        rows = [
            [path for number, (a, b) in enumerate(pairwise(ends)) for path in chain(number, b - a)]
        ]
    else:
        bins = batch.bin_plan
        for begin, end in pairwise(bins.offsets):
            row = []
            for number in range(begin, end):
                row += chain(number, length := int(bins.lengths[number]))
                row += [None] * (-length % bins.multiple_of)
            rows.append(row)
    return [row + [None] * (batch.plan.width - len(row)) for row in rows]


def rows_of_batch(batch):
    ids = batch.to_layout("jagged")
    ends = to_numpy(ids.cu_seqlens).tolist()
    return [tuple(to_numpy(ids.input_ids)[a:b].tolist()) for a, b in pairwise(ends)]


def chain(number, length):
    """Give the paths of a sequence that shares nothing."""
    return [(-1 - number, *range(depth)) for depth in range(length)]


def mask_of(batch, window=None):
    """Say of each pair of positions if the first looks at the second: bool (N, 1, W, W)."""

    def looks(row, q, k):
        if row[q] is None or row[k] is None:
            return q == k
        distance = len(row[q]) - len(row[k])
        is_ancestor = row[q][: len(row[k])] == row[k]
        return is_ancestor and (window is None or distance < window)

    width = range(batch.plan.width)
    rows = paths_of(batch)
    mask = [[[[looks(row, q, k) for k in width] for q in width]] for row in rows]
    return np.array(mask, np.bool_).reshape(len(rows), 1, len(width), len(width))


@pytest.mark.parametrize("layout", LAYOUTS)
@share(6)
@given(lens=ROWS, window=st.none() | st.integers(1, 20))
def test_masks_are_as_defined(layout, array_type, lens, window):
    batch = built(with_prompts(lens, layout), layout, array_type)
    expected = mask_of(batch)
    assert expected.any(-1).all()
    ends = batch.subtree_end
    assert str(ends.dtype).endswith("int32")
    assert ends.shape == batch.input_ids.shape
    ends = to_numpy(ends).reshape(len(expected), 1, 1, -1)
    columns = np.arange(ends.shape[-1])
    np.testing.assert_array_equal(
        (columns <= columns[:, None]) & (columns[:, None] < ends), expected
    )
    mask = batch.dense_mask("bool", window)
    assert isinstance(mask, type(batch.input_ids))
    expected = mask_of(batch, window)
    np.testing.assert_array_equal(to_numpy(mask), expected, strict=True)
    additive = batch.dense_mask(window=window)
    least = np.finfo(np.float32).min
    np.testing.assert_array_equal(
        to_numpy(additive), np.where(expected, np.float32(0), least), strict=True
    )


@NEEDS_TORCH
def test_dtypes_of_dense_masks():
    import torch

    batch = built([(2, 3), (1, 1)], "packed", "torch")
    for dtype in torch.bfloat16, torch.float16, torch.float64:
        mask = batch.dense_mask(dtype)
        assert mask.dtype == dtype
        assert mask.unique().tolist() == [torch.finfo(dtype).min, 0]
    assert batch.dense_mask(torch.bool).dtype == torch.bool
    for name in "int64", "float8_e4m3fn":
        with pytest.raises(TypeError, match=f"dtype is '{name}'; pass bool, or the dtype of the"):
            batch.dense_mask(name)
    with pytest.raises(TypeError, match="'bfloat16', which NumPy does not have"):
        built([(2, 3)], "packed").dense_mask("bfloat16")


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (0, "window is 0; pass a number of tokens or None, 1 or more"),
        (True, "TypeError: window is True .*; pass a number of tokens or None"),
        (1 << 31, "window is 2147483648, which does not fit int32"),
    ],
)
def test_windows_that_cannot_be(window, message):
    with raises(message):
        built([(2, 3)], "packed").dense_mask(window=window)


@NEEDS_TORCH
@pytest.mark.parametrize("layout", LAYOUTS)
@share(3)
@given(lens=ROWS, size=st.integers(1, 9), window=st.none() | st.integers(1, 20))
def test_tables_of_blocks_are_those_of_torch(layout, lens, size, window):
    from torch.nn.attention.flex_attention import create_block_mask

    batch = built(with_prompts(lens, layout), layout, "torch")
    found = batch.block_mask(size, window=window)
    rows, width = mask_of(batch).shape[0], batch.plan.width
    if rows * width == 0:
        return
    expected = create_block_mask(
        found.mask_mod, rows, 1, width, width, device="cpu", BLOCK_SIZE=size
    )
    assert (found.shape, found.BLOCK_SIZE) == (expected.shape, expected.BLOCK_SIZE)
    for side in "kv", "full_kv", "q", "full_q":
        counts, indices = (getattr(found, f"{side}_{name}") for name in ("num_blocks", "indices"))
        assert counts.dtype == indices.dtype == expected.kv_indices.dtype
        wanted = getattr(expected, f"{side}_num_blocks"), getattr(expected, f"{side}_indices")
        np.testing.assert_array_equal(counts, wanted[0], strict=True)
        is_block = np.arange(indices.shape[-1]) < counts.numpy()[..., None]
        np.testing.assert_array_equal(indices[is_block], wanted[1][is_block])
        assert (indices >= 0).all()
        assert (indices < indices.shape[-1]).all()
    index = np.ix_(range(rows), [0], range(width), range(width))
    mask = found.mask_mod(*map(torch_index, index))
    np.testing.assert_array_equal(mask, mask_of(batch, window))


def torch_index(index):
    import torch

    return torch.from_numpy(index)


@pytest.mark.parametrize("layout", LAYOUTS)
@share(3)
@given(lens=ROWS)
def test_ranges_are_the_mask(layout, array_type, lens):
    lens = with_prompts(lens, layout)
    batch = built(lens, layout, array_type)
    ranges = batch.attention_ranges()
    assert isinstance(ranges.is_causal, type(batch.input_ids))
    q_ranges, k_ranges, is_causal = map(to_numpy, ranges)
    assert (q_ranges.dtype, k_ranges.dtype, is_causal.dtype) == (np.int32, np.int32, np.bool_)
    expected = mask_of(batch)
    rows, _, width, _ = expected.shape
    count = np.zeros((rows * width, rows * width), np.int64)
    for (q, q_end), (k, k_end), causal in zip(q_ranges, k_ranges, is_causal, strict=True):
        square = np.ones((q_end - q, k_end - k), np.int64)
        count[q:q_end, k:k_end] += np.tril(square) if causal else square
    flat = np.zeros_like(count)
    for row, mask in enumerate(expected[:, 0]):
        flat[row * width :, row * width :][:width, :width] = mask
    is_token = [position is not None for row in paths_of(batch) for position in row]
    flat[np.logical_not(is_token)] = 0
    np.testing.assert_array_equal(count, flat)
    if layout not in ("two_segment", "one row", "split", "tree", "trees"):
        assert len(is_causal) == sum(p + r > 0 for p, r in lens)


def test_block_masks_of_other_batches():
    with pytest.raises(TypeError, match="outputs are NumPy arrays; call dense_mask, or build"):
        built([(2, 3)], "packed").block_mask()


@NEEDS_TORCH
def test_sizes_of_blocks():
    batch = built([(2, 3)], "packed", "torch")
    with pytest.raises(ValueError, match="block_size is 0; pass a number of positions, 1 or more"):
        batch.block_mask(0)
    with pytest.raises(TypeError, match=r"block_size is 1\.5; pass a number of positions"):
        batch.block_mask(1.5)
    with pytest.raises(ValueError, match="window is -1"):
        batch.block_mask(window=-1)


@NEEDS_TORCH
def test_torch_without_flex_attention(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch.nn.attention.flex_attention", None)
    with pytest.raises(RuntimeError, match=r"torch .* has no FlexAttention .*; call dense_mask"):
        built([(2, 3)], "packed", "torch").block_mask()


@NEEDS_TORCH
def test_memory_that_there_is_not():
    rows = [[1] * 2_000_000]
    batch = make_batch(rows, [[1]], layout="jagged", array_type="torch")
    with pytest.raises(MemoryError, match="Unable to allocate"):
        batch.block_mask(1)


def test_rows_wider_than_int32_counts():
    plan = built([(1, 1)], "left").plan
    tables = plan.to_dict() | {"sequence_shape": np.array([1, 1 << 31])}
    wide = type(plan)._from_dict(tables)
    for call in wide.subtree_ends, wide.depths, wide.attention_ranges:
        with pytest.raises(ValueError, match="output rows have 2147483648 positions, more than"):
            call()
