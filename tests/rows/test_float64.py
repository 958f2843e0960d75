"""Fields of float64, and fills that a dtype can hold or cannot."""

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from making import make_batch
from raising import raises

import fastcollate as fc
from fastcollate.testing.reference import assert_same

PROMPTS, RESPONSES = [[1, 2], [3]], [[4], [5, 6, 7]]
EXACT = [[1 + 2**-40], [0.1, 1e300, 2**53 - 1]]
"""Numbers that float32 has not."""

ROWS = np.array([[0, 0, EXACT[0][0]], EXACT[1]])
"""As a block of responses in the left layout."""


def kept(values, **options):
    return make_batch(PROMPTS, RESPONSES, **options, fields={"x": values})["x"]


def kinds_of(rows):
    """The same rows as everything that holds float64."""
    pyarrow = pytest.importorskip("pyarrow")
    yield rows
    yield [tuple(row) for row in rows]
    yield [np.array(row) for row in rows]
    yield [np.array(row, np.longdouble) for row in rows]
    yield [np.array(row, ">f8") for row in rows]
    yield [list(map(np.float64, row)) for row in rows]
    yield fc.ragged(rows)
    yield pyarrow.array(rows, pyarrow.list_(pyarrow.float64()))


def test_all_bits_of_lists_and_arrays(array_type):
    for rows in kinds_of(EXACT):
        outputs = {"x": kept(fc.Field(rows, dtype="float64"), array_type=array_type)}
        assert_same(outputs, {"x": ROWS})
        assert not np.array_equal(np.asarray(kept(fc.Field(rows))), ROWS)
        outputs = {"x": kept(fc.Field(rows), dtypes={"x": np.float64}, array_type=array_type)}
        assert_same(outputs, {"x": ROWS})


def test_integers_are_rounded_once():
    odd = 2**53 + 1
    for row in ([odd, 2**64, -odd], np.array([odd, 2**53, -odd]), [np.uint64(2**64 - 1), odd, 1.5]):
        x = kept(fc.Field([[1], row], dtype="float64"))
        assert x[1].tolist() == [float(number) for number in row]
    x = kept(fc.Field([[1], np.array([2**64 - 1, 2**63, 1], np.uint64)], dtype="float64"))
    assert x[1].tolist() == [2.0**64, 2.0**63, 1]


@NEEDS_TORCH
def test_tensors():
    import torch

    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64):
        rows = [torch.tensor(row).to(dtype) for row in ([3.0], [1.0, 2.5, 1.5])]
        x = kept(fc.Field(rows, dtype=torch.float64), array_type="torch")
        assert x.dtype is torch.float64
        assert x[1].tolist() == rows[1].double().tolist()
    exact = [torch.tensor(row, dtype=torch.float64) for row in EXACT]
    x = kept(fc.Field(exact, dtype=torch.float64), array_type="torch")
    assert torch.from_dlpack(x).tolist() == ROWS.tolist()


@pytest.mark.parametrize("name", ["rewards", "logprobs", "loss_mask"])
def test_built_in_fields(name):
    options = {"dtypes": {name: "float64"}}
    batch = make_batch(PROMPTS, RESPONSES, **options, **{name: EXACT})
    assert_same({name: batch[name]}, {name: ROWS})
    if name == "rewards":
        for numbers in (
            [0.1, 1e300],
            np.array([0.1, 1e300]),
            np.array([0.1, 1e300], np.longdouble),
        ):
            rewards = make_batch(PROMPTS, RESPONSES, **options, rewards=numbers).rewards
            assert rewards[:, -1].tolist() == [0.1, 1e300]


def test_labels_train_where_the_mask_is_not_zero_in_its_dtype():
    masks = [[1e-60], [1e-60, 0, 1]]
    for dtype in ("float64", "float32"):
        batch = make_batch(
            PROMPTS, RESPONSES, loss_mask=masks, labels="aligned", dtypes={"loss_mask": dtype}
        )
        assert ((batch.labels[:, -3:] != -100) == (batch.loss_mask != 0)).all()


def test_values_per_row():
    x = kept(fc.PerRow([0.1, 2**53 - 1], dtype="float64"))
    assert x.dtype == np.float64
    assert x.tolist() == [0.1, 2**53 - 1]
    table = np.array([[0.1, 1e300], [2.5, -1e300]])
    assert_same({"x": kept(fc.PerRow(table, dtype=np.float64))}, {"x": table})
    ids = np.array([2**64 - 1, 1], np.uint64)
    assert kept(fc.PerRow(ids, dtype="float64")).tolist() == [2.0**64, 1]


def test_integers_per_row_beyond_int64():
    numbers = [2**63, -(2**64), 2**63 - 1]
    for values in (numbers, [np.uint64(2**63), *numbers[1:]], [*numbers[:2], float(2**63 - 1)]):
        batch = make_batch(
            [[1]] * 3,
            [[2]] * 3,
            fields={"x": fc.PerRow(values, dtype="float64"), "y": fc.PerRow([1.5, *values[1:]])},
        )
        assert batch["x"].tolist() == list(map(float, numbers))
        assert batch["y"].tolist() == [1.5, *map(float, numbers[1:])]
        for dtype in (None, "int64"):
            if all(isinstance(value, int) for value in values):
                with pytest.raises(ValueError, match=r"x\[0\] is 9223372036854775808, .* int64"):
                    kept(fc.PerRow(values[:2], dtype=dtype))
    for dtype in (None, "float64"):
        with raises(r"x\[1\] is an integer of \d+ bits, which .*; pass a smaller"):
            kept(fc.PerRow([0.5, 10**400], dtype=dtype))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "int64"])
def test_whole_floats_fill_integers(dtype, array_type):
    rows = [[1], [1, 0, 1]]
    for fill in (0.0, 1.0, -0.0, np.float32(1), np.float64(0)):
        x = kept(fc.Field(rows, fill=fill, dtype=dtype), array_type=array_type)
        assert_same({"x": x}, {"x": np.array([[fill, fill, 1], [1, 0, 1]]).astype(dtype)})


def test_whole_floats_up_to_the_limits():
    rows = [[1], [1, 0, 1]]
    for fill, dtype in ((-(2.0**63), "int64"), (2.0**31 - 1, "int32"), (255.0, "uint8")):
        assert kept(fc.Field(rows, fill=fill, dtype=dtype))[0, 0] == int(fill)


@pytest.mark.parametrize(
    ("fill", "dtype"),
    [
        (0.5, "int64"),
        (float("nan"), "int64"),
        (float("inf"), "int32"),
        (2.0**63, "int64"),
        (2**63, "int64"),
        (2.0**31, "int32"),
        (-1.0, "uint8"),
        (2.0, "bool"),
        (70_000, "float16"),
        (70_000.0, "float16"),
        (-65_520.0, "float16"),
        (1e39, "float32"),
        (10**39, "float32"),
        (-3.4e38 * 1.01, "float32"),
        (3.4e38, "bfloat16"),
        (10**400, "float64"),
    ],
)
def test_fills_that_do_not_fit(fill, dtype):
    rows = [[1], [1, 0, 1]]
    for fills in ({"fill": fill}, {"gap_fill": fill}):
        with pytest.raises(ValueError, match=rf"x has .*fill.*{dtype}"):
            kept(fc.Field(rows, **fills, dtype=dtype), array_type="torch")
        if dtype != "float64":
            with pytest.raises(ValueError, match=rf"x has .*fill.*(float32|{dtype})"):
                kept(fc.Field(rows, **fills), dtypes={"x": dtype}, array_type="torch")


def test_fills_that_are_not_finite_stay_so(array_type):
    for dtype in ("float16", "float32", "float64"):
        for fill in (np.inf, -np.inf, np.nan, 0.1, 65_504):
            x = kept(fc.Field([[1], [1, 0, 1]], fill=fill, dtype=dtype), array_type=array_type)
            expected = np.array([[fill, fill, 1], [1, 0, 1]]).astype(dtype)
            assert_same({"x": x}, {"x": expected})
