"""Ragged columns from Arrow arrays and to them, by the PyCapsule interface."""

import gc
import pickle
import re
import subprocess
import sys
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ragged_lists import address, ragged_lists, refuses, same
from raising import raises

import fastcollate as fc
from fastcollate._fastcollate import arrow_lists
from fastcollate.testing.reference import assert_same

pa = pytest.importorskip("pyarrow")

ROWS = [[5, 6], [], [7, 8, 9]]
NUMBERS = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}
LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]


def value_type(rows):
    """Tell the Arrow type of rows' tokens."""
    ragged = fc.ragged(rows)
    kind = NUMBERS[ragged.dtype.name]
    return pa.list_(kind, *ragged.trailing) if ragged.trailing else kind


# In


@pytest.mark.parametrize("make", LISTS)
@given(data=st.data())
def test_sliced_and_chunked(make, data):
    rows = data.draw(ragged_lists())
    kind = make(value_type(rows))
    whole = pa.array(rows, kind)
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    part = whole[begin:end]
    ragged = fc.ragged(part)
    assert same(ragged.to_list(), rows[begin:end])
    assert ragged.offsets[0] == 0
    chunks = [whole[:begin], part, whole[end:]]
    assert same(fc.ragged(pa.chunked_array(chunks)).to_list(), rows)
    assert same(fc.ragged(pa.chunked_array([part])).to_list(), rows[begin:end])


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("make", LISTS)
def test_dtypes(make, name):
    values = np.array([0, 1, 1, 0, 1]).astype(name)
    rows = [values[:2], [], values[2:]]
    ragged = fc.ragged(pa.array(rows, make(NUMBERS[name])))
    assert ragged.dtype == np.dtype(name)
    assert ragged == fc.Ragged(values, [0, 2, 2, 5])
    array = pa.array(ragged)
    assert array.type == pa.large_list(NUMBERS[name])
    assert fc.ragged(array) == ragged


@pytest.mark.parametrize("make", LISTS)
def test_views_of_the_memory(make):
    whole = pa.array(ROWS * 100, make(pa.int32()))
    data = whole.values.buffers()[1].address
    for array in (whole, pa.chunked_array([whole]), pa.table({"tokens": whole})):
        ragged = fc.ragged(array)
        assert address(ragged.values) == data
        assert not ragged.values.flags.writeable
    ragged = fc.ragged(whole[2:])
    assert address(ragged.values) == data + 4 * 2
    assert address(fc.ragged(pa.chunked_array([whole[:0], whole[2:]])).values) == data + 4 * 2
    expected = ragged.to_list()
    del whole, array
    gc.collect()
    assert ragged.to_list() == expected


def test_a_child_with_an_offset_of_its_own():
    child = pa.array(range(100))[40:45]
    for make, kind in [(pa.ListArray, pa.int32()), (pa.LargeListArray, pa.int64())]:
        array = make.from_arrays(pa.array([1, 3, 3, 5], kind), child)
        assert fc.ragged(array).to_list() == [[41, 42], [], [43, 44]]
        assert fc.ragged(array[2:]).to_list() == [[43, 44]]
    flat = pa.array(range(100))[10:22]
    pairs = pa.FixedSizeListArray.from_arrays(flat, 2)[1:]
    array = pa.ListArray.from_arrays(pa.array([1, 3, 5], pa.int32()), pairs)
    assert fc.ragged(array[1:]).to_list() == [[[18, 19], [20, 21]]]
    fixed = pa.FixedSizeListArray.from_arrays(pairs[:4], 2)[1:]
    assert fc.ragged(fixed).to_list() == [[[16, 17], [18, 19]]]


def corrupt(kind, *buffers):
    """Make an array of wrong list offsets (and sizes); set later, as pyarrow looks at first."""
    memory = [np.zeros(len(buffer), buffer.dtype) for buffer in buffers]
    rows = len(buffers[-1]) - (len(buffers) == 1)
    child = pa.array([1, 2, 3])
    array = pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, memory)], children=[child])
    for part, buffer in zip(memory, buffers, strict=True):
        part[:] = buffer
    return array


@pytest.mark.parametrize(("make", "width"), [(pa.list_, np.int32), (pa.large_list, np.int64)])
@pytest.mark.parametrize("offsets", [[0, 4], [0, 2, 1], [-1, 2], [0, 2**30], [3, 0], [3, 4, 3]])
def test_offsets_past_the_values(offsets, make, width):
    array = corrupt(make(pa.int64()), np.array(offsets, width))
    message = (
        "x could not be read: .*its list offsets fall, or end beyond its 3 values; pass a valid"
    )
    refuses(ValueError, message, fc.ragged, array)


@pytest.mark.parametrize(
    ("make", "width"), [(pa.list_view, np.int32), (pa.large_list_view, np.int64)]
)
@pytest.mark.parametrize(
    ("offsets", "sizes"), [([0, 2], [1, 2]), ([-1, 0], [1, 1]), ([0, 0], [1, -1]), ([4, 0], [0, 1])]
)
def test_views_past_the_values(offsets, sizes, make, width):
    array = corrupt(make(pa.int64()), np.array(offsets, width), np.array(sizes, width))
    message = "one of its list views ends beyond its 3 values"
    refuses(ValueError, message, fc.ragged, array)


@given(views=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=5))
def test_views_out_of_order(views):
    offsets, sizes = ([view[i] for view in views] for i in range(2))
    child = pa.array(range(10, 19))
    array = pa.ListViewArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(sizes, pa.int32()), child
    )
    assert fc.ragged(array).to_list() == [
        list(range(10 + begin, 10 + begin + size)) for begin, size in views
    ]


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_nulls_in_views_out_of_order(width):
    make = {np.int32: pa.ListViewArray, np.int64: pa.LargeListViewArray}[width]
    pairs = pa.array([[1, 2], None, [3, 4], [5, None], [6, 7]], pa.list_(pa.int64(), 2))

    def views(*views):
        offsets, sizes = (pa.array(np.array(part, width)) for part in zip(*views, strict=True))
        return make.from_arrays(offsets, sizes, pairs)

    assert fc.ragged(views((4, 1), (0, 1), (2, 1))).to_list() == [[[6, 7]], [[1, 2]], [[3, 4]]]
    refuses(ValueError, r"x\[1\]\[1\] is null", fc.ragged, views((4, 1), (0, 2), (2, 1)))
    refuses(ValueError, r"x\[2\]\[1\] is null", fc.ragged, views((4, 1), (0, 1), (2, 2)))


@pytest.mark.parametrize("begin", range(10))
def test_nulls_anywhere(begin):
    """In bitmaps that begin at any bit."""
    for null in range(begin, 30):
        rows = [[7]] * null + [None] + [[7]] * (30 - null)
        part = pa.array(rows, pa.list_(pa.int8()))[begin:]
        refuses(ValueError, rf"^x\[{null - begin}\] is null", fc.ragged, part)
        assert fc.ragged(part[: null - begin]).to_list() == [[7]] * (null - begin)


@given(data=st.data())
def test_booleans_from_any_bit(data):
    flags = data.draw(st.lists(st.booleans(), max_size=40))
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(flags))] * 2)))
    array = pa.ListArray.from_arrays(
        pa.array([0, end - begin], pa.int32()), pa.array(flags, pa.bool_())[begin:]
    )
    assert fc.ragged(array).to_list() == [flags[begin:end]]


def test_fixed_size_lists():
    flat = np.arange(24)
    kinds = [pa.list_(pa.int64(), 3), pa.list_(pa.list_(pa.int64(), 2), 3)]
    for kind, shape in zip(kinds, [(8, 3), (4, 3, 2)], strict=True):
        array = pa.array(flat.reshape(shape).tolist(), kind)
        assert fc.ragged(array).to_list() == flat.reshape(shape).tolist()
        assert fc.ragged(array) == fc.ragged(flat.reshape(shape))
        assert fc.ragged(array[1:-1]).to_list() == flat.reshape(shape)[1:-1].tolist()


def test_trailing_dimensions_are_viewed():
    flat = pa.array(np.arange(24, dtype=np.int16))
    inner = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 2), 3)
    array = pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), inner)
    ragged = fc.ragged(array[1:])
    assert ragged.trailing == (3, 2)
    assert ragged.to_list() == [np.arange(6, 24).reshape(3, 3, 2).tolist()]
    assert address(ragged.values) == flat.buffers()[1].address + 2 * 6


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.list_(pa.bool_(), 2))])
def test_no_rows_or_no_chunks(kind):
    for array in (pa.array([], kind), pa.chunked_array([], kind), pa.array([[], []], kind)):
        ragged = fc.ragged(array)
        assert ragged.to_list() == [[] for _ in range(len(array))]
        assert ragged.dtype == (np.bool_ if ragged.trailing else np.float32)
        assert ragged.trailing == ((2,) if kind != pa.list_(pa.float32()) else ())


def test_tables():
    table = pa.table({"tokens": pa.array(ROWS), "rewards": pa.array([1.0, 2.0, 3.0])})
    assert fc.ragged(table.select(["tokens"])).to_list() == ROWS
    assert fc.ragged(table.to_batches()[0].select(["tokens"])[1:]).to_list() == ROWS[1:]
    assert fc.ragged(table["tokens"]).to_list() == ROWS
    refuses(TypeError, "x is a table of 2 columns; pass one of them", fc.ragged, table)


def test_dtype_of_arrow():
    assert fc.ragged(pa.array(ROWS), "int16") == fc.ragged(ROWS, "int16")
    with raises(r"x\[2\]\[1\] is 300, which"):
        fc.ragged(pa.array([[1], [], [2, 300]]), "uint8")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("rows", "kind", "place"),
    [
        ([[1], [2], None], pa.list_(pa.int64()), r"x\[2\]"),
        ([[1], [2], None], pa.large_list_view(pa.int64()), r"x\[2\]"),
        ([[1], [], [2, 3, None]], pa.large_list(pa.int64()), r"x\[2\]\[2\]"),
        ([[1], [], [2, None]], pa.list_view(pa.float32()), r"x\[2\]\[1\]"),
        ([[1], [], [None]], pa.list_(pa.int64()), r"x\[2\]\[0\]"),
        ([[True], [True, None]], pa.list_(pa.bool_()), r"x\[1\]\[1\]"),
        ([[[1, 2]], [[1, 2], None]], pa.list_(pa.list_(pa.int64(), 2)), r"x\[1\]\[1\]"),
        ([[[1, 2]], [[1, 2], [3, None]]], pa.list_(pa.list_(pa.int64(), 2)), r"x\[1\]\[1\]"),
        ([[1, 2], None], pa.list_(pa.int64(), 2), r"x\[1\]"),
        ([[1, 2], [3, None]], pa.list_(pa.int64(), 2), r"x\[1\]\[1\]"),
    ],
)
def test_nulls(rows, kind, place, chunked):
    array = pa.array(rows, kind)
    if chunked:
        array = pa.chunked_array([array[:1], array[1:]])
    refuses(ValueError, f"^{place} is null; fill or drop nulls first$", fc.ragged, array)


def test_nulls_outside_a_slice():
    assert fc.ragged(pa.array([None, [1], [2, None]])[1:2]).to_list() == [[1]]
    fixed = pa.array([None, [1, 2], [2, None]], pa.list_(pa.int64(), 2))
    assert fc.ragged(fixed[1:2]).to_list() == [[1, 2]]
    rows = pa.array([[[None, 1]], [[2, 3]]], pa.list_(pa.list_(pa.int64(), 2)))
    assert fc.ragged(rows[1:]).to_list() == [[[2, 3]]]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 2]),
        pa.array(["a"]),
        pa.array([["a"]]),
        pa.array([[[1], [2]]]),
        pa.nulls(2),
        pa.array([[1]], pa.list_(pa.timestamp("s"))),
        pa.array([{"a": 1}]),
        pa.chunked_array([], pa.int64()),
    ],
    ids=lambda array: str(array.type),
)
def test_wrong_types(array):
    message = (
        "x is an Arrow .* of type .*; pass (lists of integers, floats or b|that column by itself)"
    )
    refuses(TypeError, message, fc.ragged, array)


def polars(rows):
    return pytest.importorskip("polars").Series(rows)


def polars_nulls(rows):
    pl = pytest.importorskip("polars")
    return pl.DataFrame({"rows": pl.Series(rows, dtype=pl.List(pl.Null))})


def duckdb(rows):
    values = ", ".join(["([])"] * len(rows))
    return pytest.importorskip("duckdb").sql(f"SELECT * FROM (VALUES {values})").to_arrow_table()


def pandas(rows):
    return pytest.importorskip("pandas").Series(rows)


def pandas_nulls(rows):
    pd = pytest.importorskip("pandas")
    return pd.Series(rows, dtype=pd.ArrowDtype(pa.list_(pa.null())))


EMPTY = {
    **{str(kind): partial(pa.array, type=kind) for make in LISTS for kind in [make(pa.null())]},
    "fixed size of null": partial(pa.array, type=pa.list_(pa.null(), 0)),
    "list of int64": partial(pa.array, type=pa.list_(pa.int64())),
    "list of float32": partial(pa.array, type=pa.list_(pa.float32())),
    "fixed size of int64": partial(pa.array, type=pa.list_(pa.int64(), 0)),
    "slice": lambda rows: pa.array([*rows, [], []])[1:-1],
    "chunks": lambda rows: pa.chunked_array([pa.array([row]) for row in rows]),
    "table": lambda rows: pa.table({"rows": rows}),
    **{make.__name__: make for make in (polars, polars_nulls, duckdb, pandas, pandas_nulls)},
    "ragged": lambda rows: fc.Ragged(np.zeros(0, np.int64), [0] * (len(rows) + 1)),
    "ragged floats": lambda rows: fc.Ragged(np.zeros(0), [0] * (len(rows) + 1)),
    "array": lambda rows: np.zeros((len(rows), 0), np.int64),
    "arrays": lambda rows: [np.array(row) for row in rows],
}
CALLS = {
    "prompts": lambda rows: ((rows, [[7, 8]] * len(rows)), {}),
    "responses": lambda rows: (([[1]] * len(rows), rows), {}),
    "both": lambda rows: ((rows, rows), {}),
    "sequences": lambda rows: ((), {"sequences": rows, "prompt_lens": [0] * len(rows)}),
    "loss_mask": lambda rows: (([[1]] * len(rows), [[]] * len(rows)), {"loss_mask": rows}),
    "rewards": lambda rows: (([[1]] * len(rows), [[]] * len(rows)), {"rewards": rows}),
    "logprobs": lambda rows: (([[1]] * len(rows), [[]] * len(rows)), {"logprobs": rows}),
    "field": lambda rows: (
        ([[1]] * len(rows), [[]] * len(rows)), {"fields": {"x": fc.Field(rows, dtype="int32")}}
    ),
    "field along sequences": lambda rows: (
        ([[]] * len(rows), [[]] * len(rows)), {"fields": {"x": fc.Field(rows, align="sequence")}}
    ),
    "merge": lambda rows: (
        ([[1]] * len(rows), rows), {"merge": "exact", "trajectory_ids": range(len(rows))}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", EMPTY)
def test_lists_without_numbers_are_read_as_empty_lists(kind):
    for call, count in product(CALLS, (1, 3)):
        same_as_lists(kind, call, [[] for _ in range(count)])


def same_as_lists(kind, call, lists):
    (found, options), (expected, others) = CALLS[call](EMPTY[kind](lists)), CALLS[call](lists)
    for layout in ("left", "two_segment", "jagged", fc.Packed(8), "tree"):
        if layout in ("jagged", "tree") and call == "field along sequences":
            continue  # nothing is written
        same_options = {"pad_token_id": 0, "array_type": "numpy", "layout": layout}
        try:
            wanted = fc.build_batch(*expected, **others, **same_options)
        except ValueError as error:
            with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
                fc.build_batch(*found, **options, **same_options)
            continue
        assert_same(fc.build_batch(*found, **options, **same_options), wanted)


@pytest.mark.parametrize("kind", EMPTY)
def test_columns_without_numbers(kind):
    rows = [[], [], []]
    column = EMPTY[kind](rows)
    assert fc.ragged(column).to_list() == rows
    assert fc.pad(column, "left", fill=0, array_type="numpy").shape == (3, 0)
    if "null" in kind:
        assert fc.ragged(column).dtype == fc.ragged(rows).dtype == np.float64


@pytest.mark.parametrize("make", LISTS)
def test_nulls_of_no_type(make):
    """Lists of nulls alone are refused where the first null is."""
    column = pa.array([[], [None, None], [None]], make(pa.null()))
    message = r"^x\[1\]\[0\] is null; fill or drop nulls first$"
    refuses(ValueError, message, fc.ragged, column)
    refuses(ValueError, message, fc.ragged, pa.chunked_array([column[:1], column[1:]]))
    with pytest.raises(ValueError, match=r"responses\[1\]\[0\] is null"):
        fc.build_batch([[1]] * 3, column, pad_token_id=0)
    null_row = pa.array([[], None], make(pa.null()))
    refuses(ValueError, r"^x\[1\] is null; fill", fc.ragged, null_row)


def test_nulls_of_no_type_in_lists_of_one_size():
    column = pa.array([[None, None]] * 3, pa.list_(pa.null(), 2))
    refuses(ValueError, r"^x\[0\]\[0\] is null; fill", fc.ragged, column)
    assert fc.ragged(column[:0]).to_list() == []


class Strange:
    """An object that claims to be Arrow's."""

    def __init__(self, result):
        self.result = result

    def __arrow_c_array__(self, requested_schema=None):
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def test_strange_objects():
    refuses(ValueError, "x could not be read: .*strange", fc.ragged, Strange(OSError("strange")))
    for result in (None, (), (1, 2), (object(), object())):
        with pytest.raises((TypeError, ValueError), match="x could not be read: "):
            fc.ragged(Strange(result))
    with pytest.raises(KeyboardInterrupt):
        fc.ragged(Strange(KeyboardInterrupt()))


def test_streams_that_fail():
    def batches():
        yield pa.record_batch({"tokens": [[1]]})
        raise ValueError("the disk is gone")

    schema = pa.schema({"tokens": pa.list_(pa.int64())})
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    refuses(ValueError, "x could not be read: .*the disk is gone", fc.ragged, reader)


@given(rows=ragged_lists())
def test_round_trip(rows):
    ragged = fc.ragged(rows)
    array = pa.array(ragged)
    assert array.type == pa.large_list(value_type(rows))
    array.validate(full=True)
    assert same(array.to_pylist(), rows)
    assert fc.ragged(array) == ragged
    cut = len(rows) // 2
    assert same(pa.array(ragged[cut:]).to_pylist(), rows[cut:])


def test_the_memory_is_shared(array_type):
    values = np.arange(24).reshape(4, 3, 2)
    ragged = fc.ragged([values[:1], values[1:]])
    if array_type == "torch":
        import torch

        ragged = fc.Ragged(torch.from_numpy(values.copy()).float().requires_grad_(), [0, 1, 4])
    array = pa.array(ragged)
    assert array.buffers()[1].address == address(ragged.offsets)
    assert array.values.values.values.buffers()[1].address == address(ragged.values)
    part = pa.array(ragged[1:])
    assert part.values.values.values.buffers()[1].address == address(ragged[1:].values)
    expected = ragged.to_list()
    del ragged, part, values
    gc.collect()
    assert array.to_pylist() == expected


def test_strided_unaligned_and_degenerate_values():
    strided = fc.Ragged(np.arange(12).reshape(6, 2)[::-1, 1], [0, 2, 6])
    assert pa.array(strided).to_pylist() == strided.to_list()
    unaligned = np.frombuffer(b"." + np.arange(3).tobytes(), np.int64, offset=1)
    assert pa.array(fc.Ragged(unaligned, [0, 3])).to_pylist() == [[0, 1, 2]]
    for values in (np.arange(6)[::2], unaligned):
        with pytest.raises(ValueError, match="contiguous and aligned"):
            arrow_lists(values, np.array([0, 3]), None)
    empty = pa.array(fc.Ragged(np.zeros((3, 0, 2)), [0, 1, 3]))
    assert empty.to_pylist() == [[[]], [[], []]]
    assert fc.ragged(empty).trailing == (0, 2)


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_requested_lists(make):
    for rows in (ROWS, [[[1, 2]], [], [[3, 4], [5, 6]]]):
        array = pa.array(fc.ragged(rows), make(value_type(rows)))
        assert array.type == make(value_type(rows))
        assert array.to_pylist() == rows


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (
            [[300]],
            pa.list_(pa.int8()),
            r"requested_schema is List\(Int8\), but this is LargeList\(Int64\)",
        ),
        ([[1.5]], pa.large_list(pa.int64()), "but this is .*; cast the result, or pass"),
        ([[1.5]], pa.float64(), "requested_schema is .*Float64"),
        ([[1, 2]], pa.list_(pa.int64(), 2), "requested_schema is "),
    ],
)
def test_requested_what_does_not_fit(rows, kind, message):
    refuses(ValueError, message, fc.ragged(rows).__arrow_c_array__, kind.__arrow_c_schema__())


def test_what_arrow_has_not():
    torch = pytest.importorskip("torch")
    half = fc.Ragged(torch.ones(2, dtype=torch.bfloat16), [0, 2])
    refuses(TypeError, "Arrow has no bfloat16; pass", pa.array, half)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is float64 here")
def test_long_doubles():
    wide = fc.Ragged(np.ones(2, np.longdouble), [0, 2])
    refuses(TypeError, "Arrow has no float", pa.array, wide)
    assert pa.array(fc.ragged(wide, "float32")).to_pylist() == [[1.0, 1.0]]


def test_pickled_memory_of_arrow():
    ragged = fc.ragged(pa.array(ROWS))
    assert pickle.loads(pickle.dumps(ragged, protocol=5)) == ragged


@pytest.mark.parametrize("like", [pa.int32(), pa.float32()], ids=str)
def test_arrow_to_torch_nested(like):
    pytest.importorskip("torch")
    array = pa.array(ROWS, pa.list_(like))
    nested = fc.ragged(array).to_torch_nested()
    assert nested.values().data_ptr() == array.values.buffers()[1].address
    assert [row.tolist() for row in nested.unbind()] == ROWS


def test_polars():
    pl = pytest.importorskip("polars")
    series = pl.Series("tokens", ROWS)
    assert fc.ragged(series).to_list() == ROWS
    assert fc.ragged(series[1:]).to_list() == ROWS[1:]
    assert fc.ragged(pl.concat([series, series], rechunk=False)).to_list() == ROWS * 2
    assert fc.ragged(series.to_frame()).to_list() == ROWS
    pairs = pl.Series([[[1, 2]], [], [[3, 4], [5, 6]]], dtype=pl.List(pl.Array(pl.Int16, 2)))
    ragged = fc.ragged(pairs)
    assert ragged.dtype == np.int16
    assert ragged.to_list() == [[[1, 2]], [], [[3, 4], [5, 6]]]
    assert pl.Series(ragged).to_list() == pairs.to_list()
    assert fc.ragged(pl.Series([[True, False], []])).to_list() == [[True, False], []]
    refuses(ValueError, r"x\[1\] is null", fc.ragged, pl.Series([[1], None]))


@pytest.mark.slow
def test_duckdb():
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.sql("select range(i % 9) as tokens from range(5000) rows(i) order by i")
    assert fc.ragged(relation).to_list() == [list(range(i % 9)) for i in range(5000)]
    pairs = duckdb.sql("select [[1, 2]::int[2], [3, 4]::int[2]] as tokens")
    assert fc.ragged(pairs).to_list() == [[[1, 2], [3, 4]]]


def test_arro3():
    arro3 = pytest.importorskip("arro3.core")
    array = arro3.Array.from_arrow(pa.array(ROWS))
    assert fc.ragged(array).to_list() == ROWS
    assert fc.ragged(arro3.ChunkedArray([array, array.slice(1)])).to_list() == ROWS + ROWS[1:]
    assert arro3.Array.from_arrow(fc.ragged(ROWS)).to_pylist() == ROWS


def test_nothing_is_imported():
    code = (
        "import sys, fastcollate as fc; fc.ragged([[1]]).__arrow_c_array__(); "
        "collate = fc.Collator(pad_token_id=0, array_type='numpy'); "
        "collate([{'prompt': [1], 'response': [2]}]); "
        "names = ('pyarrow', 'polars', 'torch', 'datasets'); "
        "print([name for name in names if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_columns_of_texts():
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(["[1, 2]"], kind)
        with pytest.raises(TypeError, match="convert these texts, by json"):
            fc.build_batch(column, [[3]], pad_token_id=0)
