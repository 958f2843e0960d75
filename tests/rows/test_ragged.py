"""Ragged columns: a validated value over one array, and everything that it is made from."""

import copy
import gc
import pickle
import re
from array import array
from collections import UserList
from itertools import chain, pairwise

import numpy as np
import pytest
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from ragged_lists import ROWS, address, make, ragged_lists, refuses, same
from raising import raises

import fastcollate as fc

NAN = float("nan")


def column(array_type, rows=ROWS):
    """Make a Ragged of rows of plain ints."""
    offsets = np.cumsum([0, *map(len, rows)])
    return fc.Ragged(make(list(chain(*rows)), array_type, np.int64), offsets)


def test_what_it_holds(array_type):
    values = make(range(5), array_type)
    ragged = fc.Ragged(values, [0, 2, 2, 5])
    assert ragged.values is values
    assert ragged.offsets.tolist() == [0, 2, 2, 5]
    assert ragged.offsets.dtype == np.int64
    assert ragged.lengths.tolist() == [2, 0, 3]
    assert ragged.dtype == values.dtype
    assert ragged.trailing == ()
    assert len(ragged) == 3


@pytest.mark.parametrize("kind", [list, tuple, np.array, np.uint8, "int32 tensor"])
def test_kinds_of_offsets(kind):
    offsets = [0, 2, 2, 5]
    if kind == "int32 tensor":
        offsets = pytest.importorskip("torch").tensor(
            offsets, dtype=pytest.importorskip("torch").int32
        )
    else:
        offsets = np.array(offsets, np.uint8) if kind is np.uint8 else kind(offsets)
    assert fc.Ragged(np.arange(5), offsets).offsets.tolist() == [0, 2, 2, 5]


def test_cannot_be_changed(array_type):
    offsets = np.array([0, 2, 5])
    ragged = fc.Ragged(make(range(5), array_type), offsets)
    offsets[1] = 99
    assert ragged.offsets.tolist() == [0, 2, 5]
    for part in (ragged, ragged[1:], fc.Ragged.concat([ragged, ragged])):
        refuses(ValueError, "read-only", part.offsets.__setitem__, 0, 1)
        for name in ("values", "offsets", "anything"):
            refuses(AttributeError, ".", setattr, part, name, 1)
    ragged.lengths[:] = 0
    assert ragged.lengths.tolist() == [2, 3]
    refuses(TypeError, "unhashable", hash, ragged)


def test_subclasses_of_ndarray_are_viewed_as_ndarray(tmp_path):
    values = np.memmap(tmp_path / "values", np.int64, "w+", shape=4)
    ragged = fc.Ragged(values, [0, 4])
    assert type(ragged.values) is np.ndarray
    assert address(ragged.values) == address(values)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([], r"offsets has shape \(0,\); pass rows \+ 1 integers"),
        ([[0, 5]], r"offsets has shape \(1, 2\)"),
        (5, r"offsets has shape \(\)"),
        ([0.0, 5.0], "TypeError: offsets is of dtype float64; pass integers"),
        ([False, True], "TypeError: offsets is of dtype bool"),
        (["0", "5"], "TypeError: offsets is of dtype <U1"),
        ([1, 5], r"offsets must start at 0 and end at 5 .* from 1 to 5; pass"),
        ([-1, 5], "offsets must start at 0 .* go from -1 to 5"),
        ([0, 3, 2, 5], "offsets fall from 3 to 2 at index 2; pass offsets"),
        ([0, -1, 5], "offsets fall from 0 to -1 at index 1"),
        ([0, 2**63 - 1, -(2**63), 5], "fall .* to -9223372036854775808 at index 2"),
        ([0, 4], "end at 5 .* but go from 0 to 4; pass"),
        ([0, 2, 6], "end at 5 .* but go from 0 to 6; pass"),
        ([0], "end at 5 .* but go from 0 to 0; pass"),
        (np.array([0, 2**63], np.uint64), r"offsets\[1\] is 9223372036854775808,"),
    ],
)
def test_bad_offsets(offsets, message, array_type):
    with raises(message):
        fc.Ragged(make(range(5), array_type), offsets)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2], r"TypeError: values is \[1, 2\] \(list\); pass a NumPy array or a torch tensor"),
        (None, "TypeError: values is None"),
        (np.array(1), r"values has shape \(\)"),
        (np.array(["a", "b"]), "TypeError: values is an array of dtype <U1"),
        (np.array([None, None]), "TypeError: values is an array of dtype object"),
        (np.zeros(2, np.complex64), "TypeError: values is an array of dtype complex64"),
        (np.zeros(2, ">i4"), "TypeError: values is an array of dtype >i4"),
        (
            np.ma.array([1, 2], mask=[0, 1]),
            r"TypeError: values is a masked array; pass values.filled\(",
        ),
    ],
)
def test_bad_values(values, message):
    with raises(message):
        fc.Ragged(values, [0, 2])


@NEEDS_TORCH
def test_bad_tensors():
    import torch

    nested = torch.nested.nested_tensor_from_jagged(torch.ones(2), torch.tensor([0, 2]))
    refuses(TypeError, "values is a nested tensor; pass ", fc.Ragged, nested, [0, 2])
    refuses(TypeError, "sparse", fc.Ragged, torch.ones(2).to_sparse(), [0, 2])
    refuses(TypeError, "complex64", fc.Ragged, torch.ones(2, dtype=torch.complex64), [0, 2])
    refuses(ValueError, r"shape \(\)", fc.Ragged, torch.tensor(1), [0, 1])


def test_rows_are_views(array_type):
    ragged = column(array_type)
    for index, begin in [(0, 0), (2, 2), (-1, 2), (np.int64(2), 2)]:
        assert ragged[index].tolist() == ROWS[index]
        assert address(ragged[index]) == address(ragged.values) + 8 * begin
    assert [row.tolist() for row in ragged] == ROWS
    for index in (3, -4):
        with raises(f"IndexError: row {index} is out of range; pass an index from -3 to 2"):
            ragged[index]
    refuses(TypeError, "integer", ragged.__getitem__, 1.0)


@share(2)
@given(data=st.data())
def test_slices_are_views(data, array_type):
    rows = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=5))
    whole = column(array_type, rows)
    index = data.draw(st.builds(slice, *[st.none() | st.integers(-7, 7)] * 2))
    part = whole[index]
    assert part.to_list() == rows[index]
    assert fc.Ragged(part.values, part.offsets) == part  # valid
    if part.values.shape[0]:
        start = index.indices(len(rows))[0]
        assert address(part.values) == address(whole.values) + 8 * int(whole.offsets[start])


@pytest.mark.parametrize("step", [2, -1])
def test_slices_with_a_step(step, array_type):
    with raises(f"a step of {step}"):
        column(array_type)[slice(None, None, step)]


def test_trailing_dimensions(array_type):
    ragged = fc.Ragged(make(np.arange(24).reshape(4, 3, 2), array_type), [0, 1, 4])
    assert ragged.trailing == (3, 2)
    assert tuple(ragged[1].shape) == (3, 3, 2)
    assert ragged.to_list() == [
        np.arange(6).reshape(1, 3, 2).tolist(),
        np.arange(6, 24).reshape(3, 3, 2).tolist(),
    ]


@NEEDS_TORCH
def test_gradients_flow():
    import torch

    values = torch.arange(5.0, requires_grad=True)
    ragged = fc.Ragged(values, [0, 2, 2, 5])
    (ragged[0].sum() + 10 * ragged[1:][1].sum()).backward()
    assert values.grad.tolist() == [1, 1, 10, 10, 10]
    values.grad = None
    fc.ragged(list(ragged)).values.sum().backward()
    assert values.grad.tolist() == [1] * 5
    values.grad = None
    fc.Ragged.concat([ragged, ragged]).to_torch_nested().values().sum().backward()
    assert values.grad.tolist() == [2] * 5
    values.grad = None
    fc.unpad(values[:4].reshape(2, 2), lengths=[1, 2], side="right").values.sum().backward()
    assert values.grad.tolist() == [1, 0, 1, 1, 0]


def test_equality(array_type):
    ragged = column(array_type)
    assert ragged == column(array_type)
    assert ragged[1:] == column(array_type, ROWS[1:])
    others = [
        column(array_type, [[5], [6], [7, 8, 9]]),
        column(array_type, [[5, 6], [], [7, 8, 0]]),
        column(array_type, ROWS[:2]),
        fc.ragged(ragged, np.int32),
        fc.Ragged(ragged.values[:, None], ragged.offsets),
        ROWS,
        None,
    ]
    for other in others:
        assert ragged != other
        assert (ragged == other) is False


def test_equality_of_nan(array_type):
    first, second = (fc.Ragged(make([NAN, 0.0, 1.0], array_type), [0, 3]) for _ in range(2))
    assert first == second
    assert first != fc.Ragged(make([NAN, 0.0, NAN], array_type), [0, 3])


@NEEDS_TORCH
def test_arrays_and_tensors_are_not_equal():
    assert column("numpy") != column("torch")


@share(2)
@given(cuts=st.lists(st.integers(0, 3), max_size=4).map(sorted))
def test_concat(cuts, array_type):
    whole = column(array_type)
    ends = [0, *cuts, len(whole)]
    parts = [whole[begin:end] for begin, end in pairwise(ends)]
    joined = fc.Ragged.concat(iter(parts))
    assert joined == whole
    assert fc.Ragged(joined.values, joined.offsets) == whole  # valid


def test_concat_of_what_does_not_fit(array_type):
    ragged = column(array_type)
    refuses(ValueError, "parts is empty", fc.Ragged.concat, [])
    refuses(TypeError, r"parts\[1\] is \[\] \(list\)", fc.Ragged.concat, [ragged, []])
    message = r"parts\[1\] holds a int32 (array|tensor on cpu), but parts\[0\] a int64"
    refuses(TypeError, message, fc.Ragged.concat, [ragged, fc.ragged(ragged, "int32")])
    pairs = fc.Ragged(make(np.zeros((1, 2), np.int64), array_type), [0, 1])
    message = r"parts\[1\] has tokens of shape \(2,\), but parts\[0\] of \(\)"
    refuses(ValueError, message, fc.Ragged.concat, [ragged, pairs])


def test_repr():
    ragged = fc.ragged([[1], [], [2, 3]])
    assert repr(ragged) == "Ragged of 3 rows, 3 tokens: int64 array, lengths 0 to 2"
    assert repr(ragged[:0]) == "Ragged of 0 rows, 0 tokens: int64 array"
    pairs = fc.ragged([[[1.0, 2.0]]])
    assert (
        repr(pairs) == "Ragged of 1 row, 1 token: float64 array with (2,) a token, lengths 1 to 1"
    )


@NEEDS_TORCH
def test_another_device():
    """Data stays on its device; torch's "meta" stands for one."""
    import torch

    rows = [torch.ones(2, device="meta"), torch.ones(0, device="meta")]
    ragged = fc.ragged(rows)
    assert repr(ragged) == "Ragged of 2 rows, 2 tokens: float32 tensor on meta, lengths 0 to 2"
    for part in (ragged[:1], fc.Ragged.concat([ragged, ragged]), fc.ragged(ragged, "bfloat16")):
        assert part.values.device.type == "meta"
    assert ragged != fc.ragged([torch.ones(2), torch.ones(0)])
    refuses(TypeError, "meta", ragged.__arrow_c_array__)


def pickled(ragged):
    """Pickle with buffers out of band; return the stream and the buffers."""
    buffers = []
    return pickle.dumps(ragged, protocol=5, buffer_callback=buffers.append), buffers


def test_pickled_out_of_band(array_type):
    ragged = fc.Ragged(make(range(100_000), array_type), [0, 10, 100_000])[1:]
    stream, buffers = pickled(ragged)
    assert len(stream) < 1000
    raw = [buffer.raw() for buffer in buffers]
    assert sum(memory.nbytes for memory in raw) == ragged.values.nbytes + ragged.offsets.nbytes
    assert address(ragged.values) in [np.frombuffer(memory, np.uint8).ctypes.data for memory in raw]
    # Ray hands read-only memory back.
    received = [memory.tobytes() for memory in raw]
    back = pickle.loads(stream, buffers=received)
    assert back == ragged
    assert address(back.values) in [
        np.frombuffer(memory, np.uint8).ctypes.data for memory in received
    ]
    del received, raw, buffers
    gc.collect()
    assert back == ragged


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("rows", [ROWS, [], [[]]])
def test_pickled(protocol, rows, array_type):
    ragged = column(array_type, rows)
    assert pickle.loads(pickle.dumps(ragged, protocol)) == ragged
    assert copy.copy(ragged) == copy.deepcopy(ragged) == ragged


def test_strided_values_are_pickled_out_of_band(array_type):
    ragged = fc.Ragged(make(np.arange(20_000).reshape(10_000, 2), array_type)[:, 1], [0, 10_000])
    stream, buffers = pickled(ragged)
    assert len(stream) < 1000
    assert pickle.loads(stream, buffers=buffers) == ragged


@NEEDS_TORCH
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool", "float16"])
def test_dtypes_of_tensors_pickled(dtype):
    import torch

    values = torch.tensor([[0.0, 1.0]] * 10_000).to(getattr(torch, dtype))
    ragged = fc.Ragged(values, [0, 4, 10_000])
    stream, buffers = pickled(ragged)
    assert len(stream) < 1000
    back = pickle.loads(stream, buffers=buffers)
    assert back.dtype == values.dtype
    assert back.values.float().equal(values.float())


@NEEDS_TORCH
def test_gradients_are_pickled_by_torch():
    import torch

    values = torch.arange(100_000.0, requires_grad=True)
    stream = pickle.dumps(fc.Ragged(values, [0, 99_990, 100_000])[1:])
    assert len(stream) < 2000  # not what the slice is a view of
    back = pickle.loads(stream)
    assert back.values.requires_grad
    assert back.to_list() == [values[99_990:].tolist()]


@NEEDS_TORCH
@pytest.mark.parametrize("rows", [ROWS, [[]], []])
def test_to_torch_nested(rows, array_type):
    import torch

    ragged = column(array_type, rows)
    nested = ragged.to_torch_nested()
    assert nested.layout is torch.jagged
    if any(rows):
        assert address(nested.values()) == address(ragged.values)
    assert nested.offsets().tolist() == ragged.offsets.tolist()
    lengths = [*map(len, rows)]
    assert (nested._min_seqlen, nested._max_seqlen) == (
        min(lengths, default=0),
        max(lengths, default=0),
    )
    assert [row.tolist() for row in nested.unbind()] == rows
    nested.offsets().fill_(7)
    assert ragged == column(array_type, rows)


@NEEDS_TORCH
def test_read_only_values_to_torch_nested():
    values = np.arange(5)
    values.setflags(write=False)
    ragged = fc.Ragged(values, [0, 2, 5])
    nested = ragged.to_torch_nested()
    assert address(nested.values()) == address(values)
    del values, ragged
    gc.collect()
    assert nested.values().tolist() == [0, 1, 2, 3, 4]


@NEEDS_TORCH
def test_of_nested():
    import torch

    values = torch.arange(10.0).reshape(5, 2)
    offsets = torch.tensor([0, 2, 2, 5])
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
    ragged = fc.ragged(jagged)
    assert ragged == fc.Ragged(values, offsets)
    assert address(ragged.values) == address(values)
    offsets.fill_(3)
    assert ragged.offsets.tolist() == [0, 2, 2, 5]
    assert fc.ragged(fc.Ragged(values, [0, 5]).to_torch_nested(), "int64").dtype == torch.int64

    inner = torch.nested.nested_tensor_from_jagged(values, torch.tensor([1, 2, 4]))
    assert fc.ragged(inner).to_list() == [values[1:2].tolist(), values[2:4].tolist()]
    holes = torch.nested.nested_tensor_from_jagged(
        values, torch.tensor([0, 2, 5]), lengths=torch.tensor([1, 2])
    )
    assert fc.ragged(holes).to_list() == [values[:1].tolist(), values[2:4].tolist()]
    turned = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5])).transpose(1, 2)
    refuses(ValueError, "x is not jagged in dimension 1; transpose", fc.ragged, turned)


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_of_strided_nested():
    import torch

    rows = [torch.ones(2, 3), torch.zeros(1, 3)]
    assert fc.ragged(torch.nested.nested_tensor(rows)) == fc.ragged(rows)
    assert len(fc.ragged(torch.nested.nested_tensor([]))) == 0
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 2)])
    with raises(r"x\[1\] has tokens of shape \(2,\), but x\[0\] of \(3,\)"):
        fc.ragged(ragged)


@given(rows=ragged_lists())
def test_round_trip_of_lists(rows):
    ragged = fc.ragged(rows)
    assert same(ragged.to_list(), rows)
    items = list(chain(*rows))
    assert ragged.dtype == np.array(items).dtype
    assert ragged == fc.ragged(tuple(map(tuple, rows))) == fc.ragged(UserList(rows))


@share(2)
@given(rows=ragged_lists(min_rows=1, trailing=False).filter(lambda rows: any(rows)))
def test_rows_of_every_kind(rows, array_type):
    dtype = np.array(list(chain(*rows))).dtype
    expected = fc.ragged(rows, dtype)
    arrays = [make(row, array_type, dtype) for row in rows]
    kinds = [arrays, tuple(arrays)]
    if array_type == "numpy":
        objects = np.empty(len(rows), object)
        objects[:] = arrays
        kinds += [objects, [arrays[0], *rows[1:]] if rows[0] else arrays]
    else:
        expected = fc.Ragged(make(expected.values, "torch"), expected.offsets)
    for kind in kinds:
        assert fc.ragged(kind) == expected


def test_rows_with_trailing_dimensions(array_type):
    shapes = [(2, 3, 2), (0, 3, 2), (1, 3, 2)]
    arrays = [make(np.arange(np.prod(shape)).reshape(shape), array_type) for shape in shapes]
    ragged = fc.ragged(arrays)
    assert ragged.trailing == (3, 2)
    assert ragged.to_list() == [array.tolist() for array in arrays]
    if array_type == "numpy":
        assert fc.ragged([[*array] for array in arrays]) == ragged
        assert fc.ragged([arrays[0], [], arrays[2]]) == ragged


def test_empty_lists():
    for rows in ([], [[]], [[], ()]):
        ragged = fc.ragged(rows)
        assert ragged.to_list() == [[] for _ in rows]
        assert ragged.dtype == np.float64
        assert fc.ragged(rows, dtype="int32").dtype == np.int32


def test_array_array():
    assert fc.ragged([array("d", [1.0]), array("d")]).to_list() == [[1.0], []]


def test_of_ragged(array_type):
    ragged = column(array_type)
    assert fc.ragged(ragged) is ragged
    assert fc.ragged(ragged, "int64") is ragged
    assert fc.ragged(ragged, "float32") == fc.Ragged(
        make([5, 6, 7, 8, 9], array_type, "f4"), [0, 2, 2, 5]
    )


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_conversions(source, target, array_type):
    fits = fc.Ragged(make([0, 1, 1], array_type, source), [0, 1, 3])
    for dtype in (target, np.dtype(target)):
        assert fc.ragged(fits, dtype) == fc.Ragged(make([0, 1, 1], array_type, target), [0, 1, 3])


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (1.5, "float32", "int64"),
        (NAN, "float64", "int32"),
        (float("inf"), "float16", "int64"),
        (2.0**63, "float64", "int64"),
        (-1.0, "float32", "uint8"),
        (256, "int16", "uint8"),
        (-1, "int64", "uint8"),
        (2**31, "int64", "int32"),
        (-(2**31) - 1, "int64", "int32"),
        (128, "uint8", "int8"),
        (2, "int64", "bool"),
        (0.5, "float32", "bool"),
        (NAN, "float32", "bool"),
    ],
)
def test_what_does_not_fit(value, source, target, array_type):
    values = make([0, 0, 1, value, value], array_type, source)
    message = rf"x\[2\]\[1\] is {re.escape(str(values[3].item()))}, which does not fit {target}"
    refuses(ValueError, message, fc.ragged, fc.Ragged(values, [0, 2, 2, 5]), target)
    refuses(ValueError, r"x\[2\]\[0\] is ", fc.ragged, fc.Ragged(values, [0, 3, 3, 5]), target)
    pairs = fc.Ragged(make([[0, 0], [1, value]], array_type, source), [0, 2])
    refuses(ValueError, r"x\[0\]\[1\]\[1\] is ", fc.ragged, pairs, target)
    rows = [values[:1], make([1], array_type, "uint8"), values[1:]]
    refuses(ValueError, r"x\[2\]\[2\] is ", fc.ragged, rows, target)


def test_largest_that_fit():
    for dtype in ("int64", "int32", "uint8"):
        info = np.iinfo(dtype)
        assert fc.ragged([[info.min, info.max]], dtype).to_list() == [[info.min, info.max]]
    assert fc.ragged([[1e300, 0.1]], "float32").values.tolist() == [np.inf, float(np.float32(0.1))]


@NEEDS_TORCH
def test_dtypes_of_torch():
    import torch

    assert fc.ragged([[1]], torch.float32).dtype == np.float32
    assert fc.ragged(torch.ones(1, 1, dtype=torch.uint16), "int64").to_list() == [[1]]
    ragged = fc.ragged([torch.ones(1), torch.ones(2, dtype=torch.int64)], torch.bfloat16)
    assert ragged.dtype == torch.bfloat16
    assert ragged == fc.ragged([torch.ones(1), torch.ones(2)], "bfloat16")
    with raises("TypeError: dtype is 'bfloat16', which NumPy does not have; pass"):
        fc.ragged([[1]], "bfloat16")
    refuses(TypeError, "dtype is 'nonsense'", fc.ragged, torch.ones(1, 1), "nonsense")
    refuses(TypeError, "dtype is 'complex64'", fc.ragged, torch.ones(1, 1), "complex64")


@pytest.mark.parametrize("dtype", ["nonsense", "complex64", "str", object(), "object"])
def test_bad_dtypes(dtype):
    refuses(TypeError, "dtype is ", fc.ragged, [[1]], dtype)


DENSE = np.ones((2, 3))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, r"TypeError: x is None \(NoneType\); pass rows"),
        (5, r"TypeError: x is 5 \(int\)"),
        ("ab", r"TypeError: x is 'ab' \(str\)"),
        (b"ab", r"TypeError: x is b'ab' \(bytes\)"),
        ({0: [1]}, r"TypeError: x is \{0: \[1\]\} \(dict\)"),
        (iter([[1]]), r"TypeError: x is .*\(list_iterator\); pass rows"),
        ([1, 2], r"TypeError: x\[0\] is 1 \(int\); pass one list or array of numbers per row"),
        ([[1], None], r"TypeError: x\[1\] is None \(NoneType\)"),
        ([[1], "ab"], r"TypeError: x\[1\] is 'ab' \(str\)"),
        ([[1], [2, "ab"]], r"TypeError: x\[1\]\[1\] is 'ab' \(str\); pass numbers"),
        ([[1], [None]], r"TypeError: x\[1\]\[0\] is None \(NoneType\)"),
        ([[1], [1j]], r"TypeError: x\[1\]\[0\] is 1j \(complex\)"),
        ([[1], [[2]]], r"x\[1\] has tokens of shape \(1,\), but x\[0\] of \(\)"),
        ([[], [[1, 2]], [[3]]], r"x\[2\] has tokens of shape \(1,\), but x\[1\] of"),
        ([[[[1], [2, 3]]]], r"x\[0\]\[0\] is .*, which holds lists of different.*;"),
        ([[1, 2**64]], r"x\[0\]\[1\] is 18446744073709551616, which does not fit int64"),
        ([[1], [-1, 2**63]], r"x\[1\]\[1\] is 9223372036854775808, which does not fit"),
        (np.ones(3), r"x has shape \(3,\); pass an array of shape \(rows"),
        (np.array([["a"]]), "TypeError: x is an array of dtype <U1"),
        ([np.ones(2), np.ones(2, int)], r"TypeError: x\[1\] holds int64, but x\[0\] float64; pass"),
        ([np.ones(2), np.ones((2, 2))], r"x\[1\] has tokens of shape \(2,\)"),
        ([np.ones(2), np.array(1.0)], r"TypeError: x\[1\] is float64 ndarray of shape \(\)"),
        ([np.ones(2), np.array(["a"])], r"TypeError: x\[1\] is an array of dtype <U1"),
        ([np.ones(2), [[1], [2, 3]]], r"x\[1\] cannot be read \(.*inhomogeneous.*\); pass"),
        ([np.ones(2), np.ma.ones(2)], r"TypeError: x\[1\] is a masked array"),
    ],
)
def test_bad_rows(rows, message):
    with raises(message):
        fc.ragged(rows)


@NEEDS_TORCH
def test_bad_rows_of_tensors():
    import torch

    message = r"x\[1\] is \[1.0\] \(list\), but x\[0\] is float32 Tensor of shape \(2,\)"
    refuses(TypeError, message, fc.ragged, [torch.ones(2), [1.0]])
    refuses(TypeError, r"x\[1\] is float32 Tensor", fc.ragged, [np.ones(2), torch.ones(2)])
    with raises(r"TypeError: x\[1\] holds int64, but x\[0\] float32"):
        fc.ragged([torch.ones(1), torch.ones(1).long()])
    refuses(ValueError, r"x has shape \(2,\)", fc.ragged, torch.ones(2))


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        ([[1]], {"lengths": [1], "side": "up"}, "side is 'up'; pass 'right', 'left'"),
        (
            DENSE,
            {"lengths": [1, 4]},
            r"lengths\[1\] is 4, but x\[1\] has 3 tokens; pass a length from 0 to 3",
        ),
        (DENSE, {"lengths": [-1, 3]}, r"lengths\[0\] is -1"),
        (DENSE, {"lengths": [1]}, "lengths has 1 item, but x has 2 rows"),
        (DENSE, {"lengths": [1.0, 2.0]}, r"TypeError: lengths\[0\] is 1.0; pass an integer"),
        ([[1], [2, 3]], {"lengths": [0, 3]}, r"lengths\[1\] is 3, but x\[1\] has 2"),
        ([[1]], {"lengths": [-1]}, r"lengths\[0\] is -1; pass lengths"),
        ([[1]], {"lengths": [1, 1]}, "lengths has 2 items, but x has 1 row;"),
        ([[1]], {"lengths": [1.0]}, r"TypeError: lengths\[0\] is 1.0; pass an integer"),
        ([1], {"lengths": [1]}, r"TypeError: x\[0\] is 1 \(int\)"),
        (fc.Ragged(np.ones(2), [0, 2]), {"lengths": [1]}, "TypeError: x is Ragged"),
    ],
)
def test_lengths_that_cannot_be(x, options, message, array_type):
    x = make(x, array_type) if x is DENSE else x
    with raises(message):
        fc.unpad(x, **options)


CONTRADICTIONS = [
    ([0, 4, 2, 6], None, "the offsets of {} fall from 4 to 2 at index 2; pass"),
    ([-1, 2, 4, 6], None, "the offsets of {} start at -1; make "),
    ([0, 2, 4, 6], [2, 3, 2], "row 1 of {} has a length of 3, but its offsets are 2 apart; make"),
    ([0, 2, 4, 6], [2, 2, -1], "row 2 of {} has a length of -1, but its offsets are 2 apart"),
    ([0, 2, 4, 6], [2, 2], r"{} has 2 lengths, but 4 offsets"),
]


@NEEDS_TORCH
@pytest.mark.parametrize(("offsets", "lengths", "message"), CONTRADICTIONS)
def test_jagged_tensors_that_contradict_themselves(offsets, lengths, message):
    import torch

    lengths = None if lengths is None else torch.tensor(lengths)
    nested = torch.nested.nested_tensor_from_jagged(torch.arange(6), torch.tensor(offsets))
    nested.lengths = lambda: lengths  # torch itself refuses some of these
    rows = [[1], [2], [3]]
    calls = {
        "x": lambda: fc.ragged(nested),
        "prompts": lambda: fc.build_batch(nested, rows, pad_token_id=0),
        "responses": lambda: fc.build_batch(rows, nested, pad_token_id=0),
        "logprobs": lambda: fc.build_batch(rows, rows, logprobs=nested, pad_token_id=0),
    }
    for name, call in calls.items():
        refuses(ValueError, message.format(name), call)
    turns = lambda: fc.merge_turns(nested, rows, trajectory_ids=[0, 0, 1])  # noqa: E731
    refuses(ValueError, message.format("prompts"), turns)


@NEEDS_TORCH
def test_offsets_of_a_jagged_tensor_that_end_behind_its_values():
    import torch

    nested = torch.nested.nested_tensor_from_jagged(torch.arange(6), torch.tensor([0, 2, 9]))
    refuses(ValueError, "the offsets of x end at 9, but it has 6 values; make", fc.ragged, nested)
    message = r"prompts\[1\] starts at 2 and has 7 tokens, but there are only 6"
    refuses(ValueError, message, fc.build_batch, nested, [[1], [2]], pad_token_id=0)
