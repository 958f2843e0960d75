"""Attention by paths of every layout, against dense masks, and against a trie of the rows."""

from itertools import pairwise

import numpy as np
import pytest
from attention_rows import LAYOUTS, ROWS, built, with_prompts
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from raising import raises
from strategies import forks

import fastcollate as fc
from fastcollate.common.arrays import to_numpy

PAD = 1_000_000


def attended(paths, positions, window=None):
    """Say of each pair of positions if the first attends to the second, by the paths alone."""
    kv_index, q_offsets, k_offsets = (to_numpy(array).tolist() for array in paths[:3])
    mask = np.zeros((positions, positions), np.bool_)
    for (q, q_end), (k, k_end) in zip(pairwise(q_offsets), pairwise(k_offsets), strict=True):
        for distance, query in enumerate(range(q_end - 1, q - 1, -1)):
            keys = kv_index[k : k_end - distance]
            mask[query, keys if window is None else keys[-window:]] = True
    return mask


def flat_mask(batch, window=None):
    """Return the dense mask over all output rows; padding attends to its run."""
    rows = to_numpy(batch.dense_mask("bool", window))[:, 0]
    count, width = rows.shape[:2]
    mask = np.zeros((count * width, count * width), np.bool_)
    for row, of_row in enumerate(rows):
        mask[row * width :, row * width :][:width, :width] = of_row
    return mask


def check_sizes(paths, positions):
    kv_index, q_offsets, k_offsets, longest_segment, longest_path = map(to_numpy, paths)
    assert (kv_index.dtype, q_offsets.dtype, k_offsets.dtype) == (np.int64, np.int32, np.int32)
    assert (q_offsets[0], q_offsets[-1]) == (0, positions)
    assert (k_offsets[0], k_offsets[-1]) == (0, len(kv_index))
    assert (np.diff(q_offsets) > 0).all()
    assert (np.diff(k_offsets) >= np.diff(q_offsets)).all()
    assert longest_segment == np.diff(q_offsets).max(initial=0)
    assert longest_path == np.diff(k_offsets).max(initial=0)
    assert type(paths.max_seqlen_q) is type(paths.max_seqlen_k) is int


@pytest.mark.parametrize("layout", LAYOUTS)
@share(6)
@given(lens=ROWS, window=st.none() | st.integers(1, 20))
def test_paths_are_the_mask(layout, array_type, lens, window):
    batch = built(with_prompts(lens, layout), layout, array_type)
    paths = batch.attention_paths()
    assert isinstance(paths.kv_index, type(batch.input_ids))
    positions = batch.plan.num_positions
    check_sizes(paths, positions)
    found, expected = attended(paths, positions, window), flat_mask(batch, window)
    # A run of padding attends to itself, a token of one position included.
    padding = to_numpy(batch.input_ids).reshape(-1) == 0
    assert not found[np.ix_(~padding, padding)].any()
    assert not found[np.ix_(padding, ~padding)].any()
    np.testing.assert_array_equal(found[~padding], expected[~padding])
    assert found.diagonal().all()
    for bin_ in range(batch.plan.num_output_rows):
        own = batch.attention_paths(bin_)
        width = batch.plan.width
        check_sizes(own, width)
        rows = slice(bin_ * width, (bin_ + 1) * width)
        np.testing.assert_array_equal(attended(own, width, window), found[rows, rows])


@given(forks(), st.sampled_from([fc.Tree(), fc.Tree(share="prompts"), fc.Tree(multiple_of=4)]))
def test_segments_are_as_long_as_can_be(forked, layout):
    """A segment ends before a fork and at leaves: its parent has several children, or none."""
    batch = fc.build_batch(*forked[:2], pad_token_id=PAD, layout=layout, array_type="numpy")
    paths = batch.attention_paths()
    width = batch.plan.width
    mask = flat_mask(batch)
    depths = mask.sum(1)
    parents = [
        max(np.flatnonzero(mask[at][:at]), key=lambda key: depths[key], default=-1)
        for at in range(width)
    ]
    children = np.bincount([parent for parent in parents if parent >= 0], minlength=width)
    padding = batch.input_ids.reshape(-1) == PAD
    begins = [
        at
        for at in range(width)
        if (padding[at] and not (at and padding[at - 1]))
        or (not padding[at] and (parents[at] < 0 or children[parents[at]] > 1))
    ]
    assert paths.cu_seqlens_q.tolist() == [*begins, width]
    keys = np.diff(paths.cu_seqlens_k).sum()
    assert batch.metrics["batch/path_keys"] == len(paths.kv_index) == keys
    if layout == fc.Tree():
        tree = fc.planning.prefix_tree(*forked[:2])
        assert tree.report.path_keys == keys


@pytest.mark.parametrize(("bin_", "message"), [
    (2, "bin is 2, but the batch has 1 output row; pass a number from 0 to 0"),
    (-1, "bin is -1; pass the number of an output row"),
    (True, "TypeError: bin is True"),
    ("0", "TypeError: bin is '0'"),
])  # fmt: skip
def test_bins_that_there_are_not(bin_, message):
    with raises(message):
        built([(2, 9), (3, 9)], "trees").attention_paths(bin_)


def test_a_chain_of_forks_has_as_many_keys_as_the_square_of_its_forks():
    rows = [[1] * depth + [2] for depth in range(100)]
    batch = make_batch(rows, [[3]] * 100, layout=fc.Tree())
    assert batch.metrics["batch/path_keys"] == len(batch.attention_paths().kv_index) > 100**2 / 2


def test_more_keys_than_int32_counts():
    """By the tables of a plan: the tokens of such rows take seconds to compare."""
    rows, shared = 45_000, 50_000
    responses = [[2 + row] for row in range(rows)]
    plan = make_batch([[1]] * rows, responses, layout=fc.Tree()).plan
    tables = plan.to_dict()
    for name in ("turn_prompt_lens", "prompt_lens"):
        tables[name] = np.full(rows, shared)
    tables["sequence_segments"][:, [1, 4]] += shared - 1
    tables["sequence_segments"][0] = 0, 0, shared + 1, 0, 0
    tables["sequence_shape"] = np.array([1, shared + rows])
    plan = type(plan)._from_dict(tables)
    assert plan.path_sizes()[1] > 1 << 31
    with pytest.raises(ValueError, match=r"keys of attention paths are more than .* one bin at"):
        plan.attention_paths()


@NEEDS_TORCH
@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("layout", ["packed", "trees"])
def test_kernels_of_variable_lengths_take_paths(layout, window):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    batch = built([(3, 9), (5, 7), (4, 8), (8, 2)], layout, "torch").to("cuda")
    paths = batch.attention_paths()
    shape = (3, batch.plan.num_positions, 2, 64)
    query, key, value = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    keys, values = key[paths.kv_index], value[paths.kv_index]
    try:
        from flash_attn import flash_attn_varlen_func

        found = flash_attn_varlen_func(
            query, keys, values, *paths[1:], causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0),
        )  # fmt: skip
    except ImportError:
        from torch.nn.attention.varlen import varlen_attn

        reach = -1 if window is None else window - 1
        found = varlen_attn(query, keys, values, *paths[1:], window_size=(reach, 0))
    mask = torch.from_numpy(flat_mask(batch.to("cpu"), window)).cuda()
    inputs = (one.transpose(0, 1).float() for one in (query, key, value))
    expected = scaled_dot_product_attention(*inputs, attn_mask=mask).transpose(0, 1)
    tokens = batch.input_ids.reshape(-1) != 0
    torch.testing.assert_close(found.float()[tokens], expected[tokens], rtol=2e-2, atol=2e-2)
