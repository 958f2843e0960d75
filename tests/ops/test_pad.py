"""Padding and unpadding by themselves: `pad` and `unpad`."""

from unittest import mock

import numpy as np
import pytest
from conftest import NEEDS_TORCH, share
from gathering import like
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from ragged_lists import refuses
from raising import raises

import fastcollate as fc
from fastcollate.ops import writing

DTYPES = ["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
SIDES = ["right", "left"]

# Few bytes are copied by NumPy, more by the core.
SMALL = st.sampled_from([0, writing.SMALL])


def padded(rows, side, fill, width, dtype, trailing=()):
    """Pad rows in the plain way: one token after the other."""
    out = np.full((len(rows), width, *trailing), fill, dtype)
    for index, row in enumerate(rows):
        start = 0 if side == "right" else width - len(row)
        for place, token in enumerate(row):
            out[index, start + place] = token
    return out


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from(DTYPES))
    trailing = draw(st.sampled_from([(), (2,), (1, 3), (2, 0)]))
    lens = draw(st.lists(st.integers(0, 7), max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rows = [
        rng.integers(0, 2 if dtype == "bool" else 99, (n, *trailing)).astype(dtype) for n in lens
    ]
    multiple = draw(st.sampled_from([1, 1, 4]))
    longest = max(lens, default=0)
    pad_to = draw(st.sampled_from([None, -(-longest // multiple) * multiple, 8]))
    options = {
        "side": draw(st.sampled_from(SIDES)),
        "fill": draw(st.sampled_from([0, 1])),
        "pad_to": pad_to,
        "multiple_of": multiple,
    }
    width = -(-(longest if pad_to is None else pad_to) // multiple) * multiple
    return rows, dtype, trailing, options, width


def same(found, expected):
    found = found if isinstance(found, np.ndarray) else found.numpy()
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@given(case=cases())
def test_rows_of_arrays(case):
    rows, dtype, trailing, options, width = case
    expected = padded(rows, options["side"], options["fill"], width, dtype, trailing)
    if not rows:
        expected = expected.astype(np.int64).reshape(0, width)  # rows have neither
    same(fc.pad(rows, **options, array_type="numpy"), expected)
    if rows:
        column = fc.ragged(rows)
        same(fc.pad(column, **options, array_type="numpy"), expected)
        wide = padded(rows, options["side"], options["fill"], width, "float64", trailing)
        same(fc.pad(column, **options, dtype="float64", array_type="numpy"), wide)


@NEEDS_TORCH
@given(case=cases(), needs_grad=st.booleans())
def test_rows_of_tensors(case, needs_grad):
    import torch

    rows, dtype, trailing, options, width = case
    tensors = [torch.from_numpy(row) for row in rows]
    if not rows:
        return
    expected = padded(rows, options["side"], options["fill"], width, dtype, trailing)
    if needs_grad and "float" in dtype:
        tensors[0].requires_grad_()
        found = fc.pad(tensors, **options)
        assert found.requires_grad
        found.sum().backward()
        assert torch.equal(tensors[0].grad, torch.ones_like(tensors[0]))
        found = found.detach()
    else:
        found = fc.pad(tensors, **options)
    same(found, expected)
    column = fc.ragged([tensor.detach() for tensor in tensors])
    same(fc.pad(column, **options), expected)
    if trailing != (2, 0):
        same(fc.pad(column.to_torch_nested(), **options), expected)


@NEEDS_TORCH
@given(case=cases())
def test_what_pad_sequence_gives(case):
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rows, _, _, options, _ = case
    tensors = [torch.from_numpy(row) for row in rows]
    if tensors:
        expected = pad_sequence(tensors, batch_first=True, padding_value=options["fill"])
        assert torch.equal(fc.pad(tensors, fill=options["fill"]), expected)


@given(
    shapes=st.integers(1, 3).flatmap(
        lambda rank: st.lists(st.tuples(*[st.integers(0, 3)] * rank), min_size=1, max_size=4)
    ),
    side=st.sampled_from(SIDES),
    fill=st.sampled_from([0, -100]),
    kind=st.sampled_from(["arrays", "lists", "tensors", "gradients"]),
    multiple=st.sampled_from([1, 4]),
)
def test_trailing_dimensions_of_different_sizes(shapes, side, fill, kind, multiple):
    if kind in ("tensors", "gradients"):
        torch = pytest.importorskip("torch")
    dtype = np.float32 if kind == "gradients" else np.int64
    rows = [np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype) for shape in shapes]
    most = np.max(shapes, axis=0)
    most[0] = -(-most[0] // multiple) * multiple
    expected = np.full((len(rows), *most), fill, dtype)
    for target, row in zip(expected, rows, strict=True):
        at = most[0] - len(row) if side == "left" else 0
        target[(slice(at, at + len(row)), *map(slice, row.shape[1:]))] = row
    options = {"side": side, "fill": fill, "multiple_of": multiple, "pad_trailing": True}
    if kind in ("arrays", "lists"):
        given_rows = [row.tolist() for row in rows] if kind == "lists" else rows
        if kind == "lists" and any(0 in shape[:-1] for shape in shapes):
            return  # lists without items do not have these shapes
        same(fc.pad(given_rows, **options, array_type="numpy"), expected)
        return
    tensors = [torch.tensor(row, requires_grad=kind == "gradients") for row in rows]
    found = fc.pad(tensors, **options)
    same(found.detach().numpy(), expected)
    if kind == "gradients":
        found.sum().backward()
        assert all(bool((one.grad == 1).all()) for one in tensors if one.numel())


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [np.ones((2, 3)), np.ones(2)],
            {},
            r"rows\[1\] has 1 dimension, another row 2; pass equally",
        ),
        ([[[1, 2], [3]]], {}, r"rows\[0\] cannot be read: "),
        ([[[1]]], {"pad_trailing": 1}, "pad_trailing is 1; pass True or False"),
        ([np.ones((1, 2)), np.ones((1, 3))], {"pad_trailing": False}, r"rows\[1\] has values of"),
    ],
)
def test_trailing_dimensions_that_cannot_be(rows, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        fc.pad(rows, **{"pad_trailing": True, **options}, array_type="numpy")


@given(case=cases())
def test_lists(case):
    rows, dtype, trailing, options, width = case
    lists = [row.tolist() for row in rows]
    if 0 not in trailing:
        expected = padded(rows, options["side"], options["fill"], width, dtype, trailing)
        if not any(lists):  # no trailing shape is known
            expected = np.zeros((len(rows), width), dtype) + np.array(options["fill"], dtype)
        same(fc.pad(lists, **options, dtype=dtype, array_type="numpy"), expected)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ([[], [7], [8]], "int64"),
        ([[], [0.5], [1]], "float32"),
        ([[True], [False]], "bool"),
        ([[[0.5, 1]], []], "float32"),
        ([(), []], "int64"),
        ([], "int64"),
        ([[], np.ones(2, np.int16)], "int16"),
        ([[np.float64(0.5)], [1]], "float64"),
        (np.array([[1, 2], [3, 4]], np.uint8), "uint8"),
        (np.array([np.ones(2, np.int32), np.ones(1, np.int32)], dtype=object), "int32"),
    ],
)
def test_own_dtypes(rows, dtype):
    assert fc.pad(rows, array_type="numpy").dtype == dtype


def test_fills_that_compare_equal_stay_apart():
    for fill in (0, 0.0, -0.0, False, 1, 1.0, True):
        (padded,) = fc.pad([[], [2.5]], fill=fill, array_type="numpy")[0]
        assert str(padded) == str(np.float32(fill))


@NEEDS_TORCH
@pytest.mark.parametrize("count", [1, 200])
def test_tensors_of_other_dtypes(count):
    import torch

    with pytest.raises(ValueError, match="dtype of rows is int8; pass one of float32"):
        fc.pad([torch.ones(2, dtype=torch.int8)] * count)


@NEEDS_TORCH
def test_tensors_of_bfloat16():
    import torch

    rows = [torch.tensor([0.5, 1.5]).bfloat16(), torch.tensor([2.5]).bfloat16()]
    found = fc.pad(rows, "left", fill=-1)
    assert torch.equal(found, torch.tensor([[0.5, 1.5], [-1, 2.5]]).bfloat16())
    assert torch.equal(fc.pad(fc.ragged(rows), "left", -1), found)
    assert fc.pad(rows, dtype="float32", array_type="numpy").dtype == np.float32
    refuses(ValueError, "which NumPy does not have", fc.pad, rows, array_type="numpy")


@NEEDS_TORCH
def test_tensors_of_a_device():
    """Padding by torch gives the result of the core."""
    import torch

    rows = fc.ragged([[1.0, 2], [], [3]], "float32")
    values = torch.from_numpy(rows.values).requires_grad_()
    column = fc.Ragged(values, rows.offsets)
    found = fc.pad(column, "left", 9, multiple_of=4, dtype="float64")
    assert found.dtype == torch.float64
    assert found.tolist() == [[9, 9, 1, 2], [9, 9, 9, 9], [9, 9, 9, 3]]
    found[0].sum().backward()
    assert values.grad.tolist() == [1, 1, 0]
    half = fc.Ragged(torch.tensor([1.5], requires_grad=True), [0, 0, 1])
    refuses(ValueError, r"rows\[1\]\[0\] is 1.5, which does not", fc.pad, half, dtype="int64")
    refuses(ValueError, "row 1 has 1 token", fc.pad, half, pad_to=0)


@pytest.mark.parametrize("form", ["array", "chunked", "table", "polars"])
def test_arrow(form):
    pa = pytest.importorskip("pyarrow")
    rows = [[5, 6], [], [7]]
    kind = pa.list_(pa.int32())
    given = {
        "array": lambda: pa.array(rows, kind),
        "chunked": lambda: pa.chunked_array([rows[:1], rows[1:]], kind),
        "table": lambda: pa.table({"ids": pa.array(rows, kind)}),
        "polars": lambda: (
            pytest.importorskip("polars")
            .Series(rows)
            .cast(pytest.importorskip("polars").List(pytest.importorskip("polars").Int32))
        ),
    }[form]()
    same(fc.pad(given, "left", array_type="numpy"), np.array([[5, 6], [0, 0], [0, 7]], np.int32))


def test_columns_of_datasets():
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"ids": [[5, 6], [], [7]]}).shuffle(seed=1)
    expected = [row + [0] * (2 - len(row)) for row in list(dataset["ids"])]
    assert fc.pad(dataset["ids"], array_type="numpy").tolist() == expected


def test_memory_of_the_default_pool():
    pool = fc.memory.BufferPool(1 << 26)
    before = fc.memory.set_default_pool(pool)
    try:
        found = fc.pad([[1] * 5000] * 9, array_type="numpy")
        assert pool.live_bytes >= found.nbytes
        column = fc.unpad(found, [4000] * 9, side="right")
        del found
        assert pool.idle_bytes > 0
        assert column.lengths.tolist() == [4000] * 9
    finally:
        fc.memory.set_default_pool(before)


@pytest.mark.parametrize(
    ("message", "rows", "options"),
    [
        ("row 1 has 3 tokens, but pad_to is 2", [[1, 2], [3, 4, 5]], {"pad_to": 2}),
        (
            "pad_to is 3, but multiple_of is 2; pass a multiple of 2",
            [[1]],
            {"pad_to": 3, "multiple_of": 2},
        ),
        ("side is 'up'; pass 'right', 'left'", [[1]], {"side": "up"}),
        ("TypeError: side is 7; pass the padding value by name: fill=7", [[1]], {"side": 7}),
        ("rows has the fill 0.5, which does not fit int64", [[1]], {"fill": 0.5}),
        ("TypeError: fill of rows is 'a'", [[1]], {"fill": "a"}),
        (
            r"TypeError: rows\[1\]\[0\] is 0.5 \(float\); pass an integer as the first "
            "number is, or dtype='float32'",
            [[0], [0.5]],
            {},
        ),
        (
            r"TypeError: rows\[1\]\[0\] is 0.5 \(float\); pass an integer$",
            [[0], [0.5]],
            {"dtype": "int64"},
        ),
        (r"rows\[1\] is None", [[0], None], {}),
        (r"TypeError: rows is 'ab' \(str\)", "ab", {}),
        ("TypeError: rows is 3", 3, {}),
        (r"TypeError: rows\[0\] is 1 \(int\)", [1, 2], {}),
        (
            r"rows\[1\] has values of shape \[3\] per token, but rows\[0\] of \[2\]",
            [np.ones((1, 2)), np.ones((1, 3))],
            {},
        ),
        ("dtype of rows is int8; pass one of float32", [np.ones(1, np.int8)], {}),
        (r"rows\[0\]\[1\] is 300, which does not fit uint8", [[1, 300]], {"dtype": "uint8"}),
        (f"pad_to is {2**62}, so a batch of 0 rows exceeds any memory", [], {"pad_to": 2**62}),
        (
            f"multiple_of is {2**62}, so a batch of 1 row exceeds any memory",
            [[1]],
            {"multiple_of": 2**62},
        ),
        ("array_type is 'jax'", [[1]], {"array_type": "jax"}),
    ],
)
def test_bad_rows_and_options(message, rows, options):
    with raises(message):
        fc.pad(rows, **{"array_type": "numpy", **options})


def test_rows_that_contain_themselves():
    row = []
    row.append(row)
    refuses(ValueError, r"rows\[0\] is nested in more than 64 dimensions; pass", fc.pad, row)
    refuses(ValueError, r"rows\[1\] is nested in more than 64 dimensions; pass", fc.pad, [[], row])


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([np.ones(1, np.float16), np.ones(1, np.float32)], ("float32", "float16")),
        ([np.ones(1, np.float64), np.ones(1, np.float32)], ("float32", "float64")),
        ([np.ones(1, np.float32), np.ones(1, np.int64)], ("int64", "float32")),
        ([[0.5], np.ones(1, np.float64)], ("float64", "float32")),
        ([[np.ones(1, np.float32)], [np.ones(1, np.float64)]], ("float64", "float32")),
    ],
)
def test_floats_of_different_dtypes(rows, found):
    message = r"rows\[1\] holds {}, but rows\[0\] {}; pass dtype to convert them".format(*found)
    refuses(TypeError, message, fc.pad, rows)
    assert fc.pad(rows, dtype="float32", array_type="numpy").dtype == np.float32


@st.composite
def masks(draw):
    rows, width = draw(st.integers(0, 5)), draw(st.integers(0, 9))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    mask = rng.random((rows, width)) < draw(st.sampled_from([0, 0.05, 0.5, 0.95, 1]))
    if draw(st.booleans()):  # one span of each row
        columns, (starts, ends) = np.arange(width), rng.integers(0, width + 1, (2, rows, 1))
        mask = (columns >= starts) & (columns < ends)
    trailing = draw(st.sampled_from([(), (3,), (2, 0)]))
    dtype = draw(st.sampled_from([*DTYPES, "uint32"]))
    base = rng.integers(0, 2 if dtype == "bool" else 99, (rows, width + 2, *trailing)).astype(dtype)
    return base[:, draw(st.integers(0, 2)) :][:, :width], mask


@share(2)
@given(case=masks(), kind=st.sampled_from(["bool", "int64", "float32", "list"]), small=SMALL)
def test_masks(case, kind, array_type, small):
    x, mask = case
    with mock.patch.object(writing, "SMALL", small):
        column = fc.unpad(like(x, array_type), mask=form(mask, kind, array_type))
    assert column.dtype == like(x, array_type).dtype
    assert column.lengths.tolist() == mask.sum(1).tolist()
    assert column.values.tolist() == x[mask].tolist()
    assert column.trailing == x.shape[2:]


def test_masks_of_long_runs(array_type):
    x = np.arange(4 * 500).reshape(4, 500)
    mask = (x % 500 > 50) & (x % 97 != 0)
    mask[2] = False
    column = fc.unpad(like(x, array_type), mask=mask)
    assert column.to_list() == [row[of].tolist() for row, of in zip(x, mask, strict=True)]


@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("spans", [(40, 500), (0, 430), (0, 500), (130, 131), (250, 250)])
def test_masks_of_one_span_a_row(array_type, count, spans):
    x = np.arange(count * 500 * 2).reshape(count, 500, 2)
    mask = np.zeros((count, 500), np.int64)
    mask[:, slice(*spans)] = 1
    mask[1, 10:20] = mask[1, 470:480] = 1  # several spans
    mask[2] = 0
    for kept in (mask, mask == 1, np.asfortranarray(mask), mask.astype(np.uint8)):
        column = fc.unpad(like(x, array_type), mask=like(kept, array_type))
        assert column.values.tolist() == x[mask == 1].tolist()
        assert column.lengths.tolist() == mask.sum(1).tolist()


def form(mask, kind, array_type):
    return mask.tolist() if kind == "list" and mask.size else like(
        mask.astype("bool" if kind == "list" else kind), array_type
    )  # fmt: skip


@given(case=cases(), side=st.sampled_from(SIDES), small=SMALL)
def test_there_and_back(case, side, array_type, small):
    rows = case[0]
    if rows:
        column = fc.ragged([like(row, array_type) for row in rows])
        block = fc.pad(column, side, array_type=array_type)
        lengths = column.lengths
        with mock.patch.object(writing, "SMALL", small):
            assert fc.unpad(block, lengths, side=side) == column
        mask = np.arange(block.shape[1]) < lengths[:, None]
        assert fc.unpad(block, mask=mask[:, ::-1] if side == "left" else mask) == column


def test_masks_of_rows_of_different_widths():
    assert fc.unpad([[0, 5, 6], [7]], mask=[[0, 1, 1], [True]]).to_list() == [[5, 6], [7]]
    column = fc.unpad(fc.ragged([[0, 5], [7], []]), mask=[[1, 0], [0], []])
    assert column.to_list() == [[0], [], []]


@NEEDS_TORCH
def test_gradients_through_masks():
    import torch

    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    mask = torch.tensor([[True, False, True], [False, False, True]])
    (fc.unpad(x, mask=mask).values * 2).sum().backward()
    assert torch.equal(x.grad, 2.0 * mask)


X = np.ones((2, 3))


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("TypeError: lengths and mask are both None; pass one", {}),
        ("TypeError: lengths and mask are both given; pass one", {"lengths": [1, 1], "mask": X}),
        (
            r"mask has shape \(3, 2\); pass one of the shape of x's tokens, \(2, 3\), ",
            {"mask": X.T},
        ),
        (r"goes with their part of x, as x\[:, -2:\]$", {"mask": X[:, 1:]}),
        (r"mask\[1\]\[2\] is 2; pass True or 1", {"mask": [[0, 1, 0], [1, 0, 2]]}),
        (r"mask\[0\]\[1\] is nan", {"mask": [[0, np.nan, 0], [1, 0, 2]]}),
        (r"mask\[0\]\[0\] is -1", {"mask": [[-1, 1, 0], [1, 0, 1]]}),
        (r"mask has rows of different lengths; pass shape \(2, 3\)", {"mask": [[1], [1, 0, 1]]}),
        ("side is 'left', but mask says where", {"mask": X, "side": "left"}),
        ("TypeError: has no argument 'padding_side'; pass side", {"padding_side": "left"}),
    ],
)
def test_bad_masks(message, options):
    with raises(message):
        fc.unpad(X, **options)


@pytest.mark.parametrize("make", [list, np.array])
def test_lengths_do_not_say_the_side(make):
    """Right-padded, the rows of a left-padded block would be padding and half of the tokens."""
    left = make([[0, 0, 5, 6], [1, 2, 3, 4]])
    message = (
        r"side is None, but lengths\[0\] is 2 and x\[0\] has 4 tokens; pass side='left'.*'right'"
    )
    refuses(ValueError, message, fc.unpad, left, [2, 4])
    refuses(ValueError, r"lengths\[1\] is 0", fc.unpad, left, lengths=[4, 0])
    assert fc.unpad(left, [2, 4], side="left").to_list() == [[5, 6], [1, 2, 3, 4]]
    assert fc.unpad(left, [2, 4], side="right").to_list() == [[0, 0], [1, 2, 3, 4]]
    assert fc.unpad(left, [4, 4]).to_list() == [[0, 0, 5, 6], [1, 2, 3, 4]]
    assert fc.unpad(left, mask=[[0, 0, 1, 1], [1] * 4]).to_list() == [[5, 6], [1, 2, 3, 4]]
    refuses(ValueError, "side is 'right', but mask says", fc.unpad, left, mask=left, side="right")
    refuses(ValueError, r"lengths\[1\] is 5, but x\[1\] has 4", fc.unpad, left, [2, 5])


@pytest.mark.parametrize("side", SIDES)
def test_the_message_of_padded_rows_suggests_a_call_that_works(side):
    rows = fc.pad([[5] * 3, [6] * 9, [7] * 4], side=side, array_type="numpy")
    with pytest.warns(UserWarning, match="fc.unpad") as found:
        make_batch(rows, [[1]] * 3)
    call = str(found[0].message).split("remove it with ")[1].split(", or by mask")[0]
    call = call.replace("...", "[3, 9, 4]")
    assert eval(call, {"fc": fc, "prompts": rows}).to_list() == [[5] * 3, [6] * 9, [7] * 4]


def test_bad_masks_of_rows():
    refuses(ValueError, "mask has 1 rows, but x has 2", fc.unpad, [[1], [2]], mask=[[1]])
    message = r"mask\[1\] has 1 items, but x\[1\] has 2 tokens"
    refuses(ValueError, message, fc.unpad, [[1], [2, 3]], mask=[[1], [1]])
    refuses(ValueError, r"mask\[1\]\[1\] is 3", fc.unpad, [[1], [2, 3]], mask=[[1], [1, 3]])


def test_arguments_of_ragged_that_unpad_has():
    for name in ("lengths", "padding_side"):
        message = rf"ragged has no argument '{name}'; pass x=fc.unpad\(x, lengths"
        refuses(TypeError, message, fc.ragged, [[1]], **{name: None})
