"""Numeric arrays are viewed; tensors on another device are copied once per column."""

import tracemalloc
from array import array

import numpy as np
import pytest
from making import make_batch

import fastcollate as fc

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")

ROWS, TOKENS = 40, 25_000
BYTES = ROWS * TOKENS * 4


def offsets():
    return np.arange(ROWS + 1) * TOKENS


def numbers(dtype):
    return np.arange(ROWS * TOKENS).astype(dtype)


def strided(dtype):
    return np.repeat(numbers(dtype).reshape(ROWS, TOKENS), 2, axis=1)[:, ::2]


def arrow(dtype):
    return pa.LargeListArray.from_arrays(offsets(), numbers(dtype))


VIEWED = {
    "rows of arrays": lambda dtype: list(numbers(dtype).reshape(ROWS, TOKENS)),
    "rows of tensors": lambda dtype: list(torch.from_numpy(numbers(dtype)).view(ROWS, TOKENS)),
    "array.array": lambda dtype: [
        array(np.dtype(dtype).char, row.tobytes()) for row in numbers(dtype).reshape(ROWS, TOKENS)
    ],
    "2-D array": lambda dtype: numbers(dtype).reshape(ROWS, TOKENS),
    "2-D tensor": lambda dtype: torch.from_numpy(numbers(dtype)).view(ROWS, TOKENS),
    "Ragged": lambda dtype: fc.Ragged(numbers(dtype), offsets()),
    "Ragged of a tensor": lambda dtype: fc.Ragged(torch.from_numpy(numbers(dtype)), offsets()),
    "nested tensor": lambda dtype: fc.Ragged(numbers(dtype), offsets()).to_torch_nested(),
    "Arrow": arrow,
    "sliced Arrow": lambda dtype: pa.concat_arrays([arrow(dtype), arrow(dtype)])[
        ROWS // 2 : -ROWS // 2
    ],
    "chunked Arrow": lambda dtype: pa.chunked_array([arrow(dtype)[:3], arrow(dtype)[3:]]),
}


def peak_of_copies(rows, rewards):
    """Build a batch, and measure what NumPy takes meanwhile; the batch itself is not NumPy's."""
    tracemalloc.start()
    try:
        batch = make_batch(rows, rows, rewards=rewards)
        return batch, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", VIEWED)
def test_numbers_in_memory_are_viewed(kind):
    rows, rewards = VIEWED[kind]("int32"), VIEWED[kind]("float32")
    batch, peak = peak_of_copies(rows, rewards)
    assert peak < BYTES / 20
    assert batch.input_ids[-1, TOKENS - 1] == batch.input_ids[-1, -1]
    np.testing.assert_array_equal(np.diff(batch.rewards, axis=1), 1)


def test_the_measure_sees_copies():
    _, peak = peak_of_copies(strided("int32"), strided("float32"))
    assert peak > BYTES


class OnDevice(torch.Tensor):
    """A tensor that only another device can read, until it is copied."""

    copies = 0

    @property
    def is_cpu(self):
        return False

    def cpu(self):
        OnDevice.copies += 1
        return self.as_subclass(torch.Tensor)

    def numpy(self):
        raise TypeError("can't convert a device's tensor to NumPy; copy it first")


def on_device(values, dtype):
    return torch.tensor(values, dtype=dtype).as_subclass(OnDevice)


@pytest.mark.parametrize("array_type", ["numpy", "torch"])
def test_rows_on_a_device_are_copied_once_a_column(array_type):
    OnDevice.copies = 0
    rows = [[1, 2], [], [3], [4, 5, 6]]
    batch = fc.build_batch(
        [on_device(row, torch.int64) for row in rows],
        # Others may stand between them, and each dtype is a copy.
        [rows[0], *(on_device(row, torch.int32) for row in rows[1:])],
        pad_token_id=0,
        rewards=[on_device(row, torch.bfloat16) for row in rows],
        fields={
            "x": fc.Field(
                [on_device([[n, n]] * len(row), torch.float32) for n, row in enumerate(rows)]
            )
        },
        array_type=array_type,
    )
    assert OnDevice.copies == 4
    expected = make_batch(rows, rows, rewards=rows, array_type=array_type)
    assert batch.input_ids.tolist() == expected.input_ids.tolist()
    assert batch.rewards.tolist() == expected.rewards.tolist()
    assert batch["x"][3].tolist() == [[3, 3]] * 3
    assert batch["x"][0].tolist() == [[0, 0]] * 3


def test_columns_on_a_device_are_copied_once():
    OnDevice.copies = 0
    values = on_device([[1, 2], [3, 4]], torch.int64)
    ragged = fc.Ragged(on_device([0.5, 1, 1.5, 2], torch.float32), [0, 2, 4])
    batch = make_batch(values, values, rewards=ragged)
    assert OnDevice.copies == 3
    assert batch.input_ids.tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]]
    assert batch.rewards.tolist() == [[0.5, 1], [1.5, 2]]


@pytest.mark.parametrize(
    "rewards",
    [
        on_device([[0.5, 1], [1.5, 2]], torch.float32),
        on_device([1, 2], torch.float32),
        [on_device(1.0, torch.float32), on_device(2.0, torch.float32)],
    ],
    ids=["rows", "numbers", "list of numbers"],
)
def test_rewards_on_a_device_are_copied_once(rewards):
    OnDevice.copies = 0
    ids = [[1, 2], [3, 4]]
    batch = make_batch(ids, ids, rewards=rewards)
    assert OnDevice.copies == 1
    assert batch.rewards[:, 1].tolist() == [1, 2]


def test_rows_of_other_dimensions_on_a_device():
    rows = [on_device([1], torch.int64), on_device([[1, 2]], torch.int64)]
    with pytest.raises(ValueError, match=r"prompts\[1\] has shape \(1, 2\); pass one number"):
        fc.build_batch(rows, [[1], [2]], pad_token_id=0)
