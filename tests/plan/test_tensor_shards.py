"""Shards of tensors that are no batch, as SkyRL's `MeshDispatch.stage_chunks` makes them."""

import pickle
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from worker_blocks import carried

import fastcollate as fc
from fastcollate.blocks import spans
from fastcollate.blocks.slicing import check_rows, rows_of, shards_of

MASKS = ("loss_mask",)


def staged(data, boundaries, dp_size):
    """Cut mini-batches into chunks, row by row: the last ones end with copies of the first row."""
    chunks = []
    for start, end in boundaries:
        rows = list(range(start, end))
        count = len(rows)
        while len(rows) % dp_size:
            rows.append(start)
        size = len(rows) // dp_size
        chunks.append([])
        for first in range(0, len(rows), size):
            chunk = {}
            for key, value in data.items():
                items = None if value is None else [value[row] for row in rows[first:][:size]]
                if key == "loss_mask":
                    real = max(0, count - first)
                    items = items[:real] + [0 * item for item in items[real:]]
                chunk[key] = items
            chunks[-1].append(chunk)
    return chunks


@st.composite
def mappings(draw):
    rows, width = draw(st.integers(1, 12)), draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    data = {
        "sequences": rng.integers(0, 99, (rows, width)),
        "loss_mask": rng.integers(1, 3, (rows, width)).astype(np.float32),
        "columns": np.asfortranarray(rng.random((rows, 3))),
        "experts": rng.integers(0, 8, (rows, width, 2, 2)).astype(np.uint8),
        "rewards": None,
        "images": [np.full((row % 3, 2), row, np.float32) for row in range(rows)],
        "names": [f"row {row}" for row in range(rows)],
    }
    if find_spec("torch") and draw(st.booleans()):
        import torch

        for key in ("sequences", "loss_mask", "columns", "experts"):
            data[key] = torch.from_numpy(data[key])
        data["half"] = data["columns"].bfloat16()
        data["images"] = [torch.from_numpy(image) for image in data["images"]]
    cuts = draw(st.lists(st.integers(0, rows), min_size=2, max_size=6, unique=True))
    bounds = sorted(cuts)
    return data, list(pairwise(bounds)), draw(st.integers(1, 4))


def same(found, expected, whole):
    """Compare a shard with the chunk of the loops."""
    assert list(found) == list(expected)
    for key, value in found.items():
        if value is None:
            assert expected[key] is None
            continue
        assert type(value) is type(whole[key])
        assert len(value) == len(expected[key])
        if not isinstance(value, list):
            assert value.dtype == whole[key].dtype
        for one, other in zip(value, expected[key], strict=True):
            assert type(one) is type(other)
            assert one == other if isinstance(one, str) else bool((one == other).all())


@given(mappings(), st.booleans())
def test_mini_batches_are_those_of_stage_chunks(case, copy):
    data, boundaries, dp_size = case
    before = pickle.dumps(data)
    shards = shards_of(boundaries, dp_size, "copy_first", check_rows(data))
    for of_ranks, chunks in zip(shards, staged(data, boundaries, dp_size), strict=True):
        parts = [rows_of(data, shard, MASKS) for shard in of_ranks]
        found = carried(spans.pack_arrays(data, parts))
        for index, chunk in enumerate(chunks):
            same(parts[index], chunk, data)
            same(spans.unpack(found, index, copy), chunk, data)
    assert pickle.dumps(data) == before


@given(mappings(), st.data())
def test_plans_of_rows(case, data):
    rows, _, dp_size = case
    lengths = data.draw(
        st.lists(st.integers(1, 9), min_size=check_rows(rows), max_size=check_rows(rows))
    )
    order = data.draw(st.sampled_from(["contiguous", "strided", "tokens"]))
    plan = fc.plan_step(lengths, dp_size=dp_size, pad_rows="copy_cycle", shard_by=order)
    seen = []
    for rank in range(dp_size):
        shard = plan.shard(0, rank)
        found = rows_of(rows, shard, MASKS)
        assert list(found["names"]) == [f"row {row}" for row in shard.rows.tolist()]
        masks = np.asarray(found["loss_mask"])
        assert (masks[shard.is_padding] == 0).all()
        assert (masks[~shard.is_padding] > 0).all()
        flags = zip(found["names"], shard.is_padding, strict=True)
        seen += [name for name, is_padding in flags if not is_padding]
    assert sorted(seen) == sorted(rows["names"])


def test_adjacent_rows_are_carried_once():
    data = {"ids": np.arange(24).reshape(8, 3), "loss_mask": np.ones((8, 3), bool)}
    (shards,) = shards_of([(2, 8)], 3, "error", 8)
    arrays, _ = spans.pack_arrays(data, [rows_of(data, shard, MASKS) for shard in shards])
    assert len(arrays) == 2
    for array, key in zip(arrays, data, strict=True):
        assert np.shares_memory(array, data[key])
        assert len(array) == 6


X = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ("batch has no values", {}),
        ("batch has no values", {"a": None}),
        (r"batch\['b'\] has 3 rows, but batch\['a'\] has 4; ", {"a": X, "b": X[:3]}),
        (r"TypeError: batch\['a'\] is 3 \(int\); pass a tensor", {"a": 3}),
        (r"TypeError: batch\['a'\] is float64 ndarray of shape \(\)", {"a": np.array(1.0)}),
    ],
)
def test_bad_mappings(message, data):
    with raises(message):
        check_rows(data)


@NEEDS_TORCH
def test_tensors_of_a_device():
    import torch

    with pytest.raises(ValueError, match=r"batch\['a'\] lies on meta; pass batch\['a'\].cpu\(\)"):
        check_rows({"a": torch.ones(2, device="meta")})


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (r"boundaries\[1\] is \(2, 5\), but batch has 4 rows; pass 0 <= start < end <=",
         ([(0, 2), (2, 5)], 2, "error")),
        (r"boundaries\[0\] is \(2, 2\)", ([(2, 2)], 1, "error")),
        (r"boundaries\[0\] is \(-1, 2\)", ([(-1, 2)], 1, "error")),
        (r"boundaries\[0\] is \(0, 3\): 3 rows, which cannot be divided among "
         "dp_size=2 ranks; .* or pad_rows='copy_first'", ([(0, 3)], 2, "error")),
        ("dp_size is 0", ([(0, 3)], 0, "error")),
        ("TypeError: dp_size is None", ([(0, 3)], None, "error")),
        ("pad_rows is 'synthetic'; pass 'error', 'copy_first'", ([], 1, "synthetic")),
        (r"TypeError: boundaries is \[0, 3\] \(list\); pass a pair", ([0, 3], 1, "error")),
        ("TypeError: boundaries is .*pass a pair", ([(0.0, 3.0)], 1, "error")),
    ],
)  # fmt: skip
def test_bad_boundaries(message, arguments):
    with raises(message):
        shards_of(*arguments, 4)


def test_rows_that_fill_up_need_a_mask():
    ((_, last),) = shards_of([(0, 3)], 2, "copy_first", 4)
    with pytest.raises(ValueError, match=r"no key of masks=\('loss_mask',\), so copied"):
        rows_of({"ids": X}, last, MASKS)
    assert rows_of({"ids": X + 1, "m": X + 1}, last, ["m"])["m"].tolist() == [[1, 1], [0, 0]]
    with pytest.raises(TypeError, match=r"batch\['m'\] is .*pass a mask as a tensor"):
        rows_of({"m": [[1]] * 4}, last, ["m"])
    synthetic = fc.plan_step([1, 2, 3], dp_size=2, pad_rows="synthetic").shard(0, 1)
    with pytest.raises(ValueError, match="plan has synthetic rows, which need a Batch"):
        rows_of({"ids": X[:3]}, synthetic, MASKS)
    packed = fc.plan_step([1, 2, 3], layout=fc.Packed(4)).shard(0, 0)
    with pytest.raises(ValueError, match="plan has bins, which need a Batch"):
        rows_of({"ids": X[:3]}, packed, MASKS)
