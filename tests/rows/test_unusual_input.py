"""Rows that iterate in their own way, dtypes that torch only stores, memory that is unaligned."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from making import make_batch
from raising import raises

import fastcollate as fc
from fastcollate.plan.costs import check_weights
from fastcollate.testing.reference import assert_same


class Doubled(list):
    """Iterates over other items than it stores: twice the stored ones, and a 4."""

    def __iter__(self):
        return (2 * item for item in [*super().__iter__(), 4])


class DoubledTuple(tuple):
    __slots__ = ()

    def __iter__(self):
        return (2 * item for item in [*super().__iter__(), 4])


class Named(NamedTuple):
    first: int
    second: int


class Plain(list):
    """A list by another name."""


@pytest.mark.parametrize("kind", [Doubled, DoubledTuple])
def test_rows_of_subclasses_are_what_they_give(kind):
    row = kind([1, 0])
    assert np.array(row).tolist() == [2, 0, 8]
    options = {"pad_token_id": 0, "array_type": "numpy"}
    columns = {
        name: [row, [5]] for name in ("prompts", "responses", "rewards", "loss_mask", "logprobs")
    }
    fields = {"x": fc.Field([row, [1]]), "y": fc.PerRow([row, [1]], concat=True)}
    expected = {name: [[2, 0, 8], [5]] for name in columns}
    expected_fields = {
        "x": fc.Field([[2, 0, 8], [1]]),
        "y": fc.PerRow([[2, 0, 8], [1]], concat=True),
    }
    assert_same(
        fc.build_batch(**columns, **options, fields=fields),
        fc.build_batch(**expected, **options, fields=expected_fields),
    )
    builder = fc.BatchBuilder(**options)
    builder.add(row, row, rewards=row, fields={"x": fc.Field(row)})
    assert builder.finish().rewards.tolist() == [[2, 0, 8]]
    assert fc.ragged([row, [5]]).to_list() == [[2, 0, 8], [5]]
    collate = fc.Collator(**options)
    assert collate([{"input_ids": row, "labels": row}]).input_ids.tolist() == [[2, 0, 8]]


def test_rows_of_plain_subclasses():
    options = {"pad_token_id": 0, "array_type": "numpy"}
    batch = fc.build_batch([Named(1, 2), Plain([3])], [Plain([4]), Named(5, 6)], **options)
    assert_same(batch, fc.build_batch([[1, 2], [3]], [[4], [5, 6]], **options))


def test_errors_of_a_row_that_iterates_name_it():
    class Broken(list):
        def __iter__(self):
            raise RuntimeError("no rows today")

    with pytest.raises(ValueError, match=r"prompts\[1\] could not be read: .*no rows today"):
        make_batch([[1], Broken([2])], [[1], [1]])


@NEEDS_TORCH
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_unsigned_tensors(bits):
    import torch

    dtype, most = getattr(torch, f"uint{bits}"), 2**bits - 1
    x = torch.tensor([[1, 2, 3], [4, 5, most]], dtype=dtype)
    options = {"align": "sequence", "shift": "next_token"}
    batch = fc.build_batch([[], [1]], [[1, 2, 3], [4, 5]], pad_token_id=0, layout="right")
    gathered = batch.gather(x, **options, missing=most)
    assert gathered.values.dtype is dtype
    assert gathered.to_list() == [[most, 1, 2], [4, 5]]
    per_row = torch.tensor([7, most], dtype=dtype)
    spread = batch.broadcast(per_row)
    assert spread.dtype is dtype
    assert spread.tolist() == [[0, 7, 7], [most, most, 0]]  # nothing predicts the first token
    rows = fc.ragged(x, dtype="float64")
    assert rows.values.tolist() == [1, 2, 3, 4, 5, float(most)]
    for narrow in ("uint8", "int16", "int32", "int64"):
        if bits < 64 and narrow == "int64":
            assert fc.ragged(x, dtype=narrow).values.tolist() == x.flatten().tolist()
            continue
        if (bits, narrow) == (16, "int32"):
            assert fc.ragged(x, dtype=narrow).to_list() == x.tolist()
            continue
        with pytest.raises(
            ValueError, match=rf"x\[1\]\[2\] is {most}, which does not fit {narrow}"
        ):
            fc.ragged(x, dtype=narrow)
    pixels = fc.PerRow([x[0], x[1][:2]], dtype="int32", concat=True)
    batch = fc.build_batch([[1], [1]], [[1], [1]], pad_token_id=0, fields={"p": pixels})
    assert batch["p"].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=NEEDS_TORCH)])
def test_integers_that_are_joined_stay_integers(kind):
    def joined(*dtypes):
        arrays = [np.array([row, 2**7]).astype(dtype) for row, dtype in enumerate(dtypes)]
        if kind == "torch":
            import torch

            arrays = list(map(torch.from_numpy, arrays))
        rows = [[1]] * len(arrays)
        field = fc.PerRow(arrays, concat=True)
        return make_batch(rows, rows, fields={"x": field}, array_type=kind)["x"]

    for dtypes, common in (
        (("uint16", "int64"), "int64"),
        (("uint32", "int32"), "int64"),
        (("uint8", "int16", "bool"), "int16"),
        (("uint64", "uint8"), "uint64"),
    ):
        assert str(joined(*dtypes).dtype).removeprefix("torch.") == common
        assert joined(*dtypes).tolist()[:4] == [0, 128, 1, 128]
    with raises("x holds int64 and uint64, but no integer dtype holds both"):
        joined("int64", "uint64")


def unaligned(values, dtype):
    """Return a read-only array that begins after one other byte."""
    array = np.array(values, dtype)
    found = np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1)
    assert not found.flags.aligned
    return found


@pytest.mark.parametrize("dtype", ["int64", "float64", "float32"])
def test_unaligned_costs(dtype):
    costs = [5, 1, 4, 2, 2]
    assert fc.planning.partition(unaligned(costs, dtype), 2) == fc.planning.partition(
        np.array(costs, dtype), 2
    )
    weights = check_weights("weights is", unaligned(costs, dtype), "item")
    assert weights.flags.aligned
    assert weights.tolist() == costs


def test_unaligned_tables():
    plan = fc.planning.pack([3, 4, 2], fc.Packed(8))
    tables = {name: unaligned(getattr(plan, name), "int64") for name in ("offsets", "indices")}
    again = dataclasses.replace(plan, **tables)
    assert again == plan
    assert again.offsets.flags.aligned
    assert again.indices.flags.aligned


def test_arrays_that_are_not_contiguous_or_not_aligned():
    expected = [[0, 2, 4], [6, 8, 10]]
    strided = np.arange(12).reshape(2, 6)[:, ::2]
    for rows in (strided, list(strided), [unaligned(row, "int64") for row in expected]):
        batch = make_batch(rows, rows)
        assert batch.input_ids.tolist() == [row + row for row in expected]


def test_ints_of_one_and_of_more_digits():
    """CPython keeps 30 bits in each."""
    ids = [2**30 - 1, 2**30, 2**30 + 5, 2**60 - 1, 2**60, 2**63 - 1]
    batch = make_batch([ids], [[1]])
    assert batch.input_ids.tolist() == [[*ids, 1]]


class WithoutDtype(np.ndarray):
    """An array without a dtype."""

    @property
    def dtype(self):
        return None


def test_arrays_of_subclasses_are_told_by_their_memory():
    rows = [np.arange(3).view(WithoutDtype)]
    field = {"images": fc.PerRow(rows)}
    batch = make_batch([[1]], [[2]], fields=field)
    np.testing.assert_array_equal(batch["images"][0], [0, 1, 2])


def tensor(row):
    return pytest.importorskip("torch").tensor(row)


@pytest.mark.parametrize("row_of", [list, tuple, np.array, tensor])
@pytest.mark.parametrize("where", ["prompts", "responses", "sequences"])
def test_masks_in_place_of_token_ids_are_refused(row_of, where):
    options = {"pad_token_id": 0, "array_type": "numpy"}
    mask = row_of([False, True])
    if where == "sequences":
        columns = {"sequences": [[5, 6], mask], "prompt_lens": [1, 1]}
        row = {"sequence": mask, "prompt_len": 1}
    else:
        columns = {"prompts": [[5], [6]], "responses": [[7], [8]]}
        row = {"prompt": [5], "response": [7]} | {where.removesuffix("s"): mask}
        columns[where] = [[5], mask]
    message = r"\[0\] is a bool; pass token ids, not a mask"
    with pytest.raises(TypeError, match=rf"{where}\[1\]{message}"):
        fc.build_batch(**columns, **options)
    with pytest.raises(TypeError, match=rf"{where}\[1\]{message}"):
        fc.merge_turns(**columns, trajectory_ids=[0, 1], is_last_step=[True, True])
    with pytest.raises(TypeError, match=rf"{where}\[0\]{message}"):
        fc.BatchBuilder(**options).add(**row)


@pytest.mark.parametrize("name", ["arrow", "ragged", "padded"])
def test_columns_of_masks_in_place_of_token_ids_are_refused(name):
    mask = {"padded": np.array([[True, False]]), "ragged": fc.ragged([np.array([True, False])])}
    if name == "arrow":
        mask["arrow"] = pytest.importorskip("pyarrow").array([[], [True, False]])
    message = rf"responses\[{int(name == 'arrow')}\]\[0\] is a bool; pass token ids, not a mask"
    prompts = [[1]] * len(mask[name])
    with pytest.raises(TypeError, match=message):
        make_batch(prompts, mask[name])
