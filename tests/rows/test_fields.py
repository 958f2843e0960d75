"""Fields of any dtype and shape, values per row, routed experts and uids, against the loops."""

import pickle

import numpy as np
import pytest
import raising
from conftest import NEEDS_TORCH
from making import make_batch
from small_input import build

import fastcollate as fc
from fastcollate.testing.reference import assert_same

LAYOUTS = ["left", "two_segment", "right", "jagged"]
NAN = float("nan")

PROMPTS, RESPONSES = [[1, 2], [3]], [[4], [5, 6, 7]]


def build_fields(layout="left", array_type="numpy", **fields):
    """Build rows of 2 + 1 and 1 + 3 tokens with these fields, and give what is new."""
    batch = make_batch(PROMPTS, RESPONSES, fields=fields, layout=layout, array_type=array_type)
    bare = make_batch(PROMPTS, RESPONSES, layout=layout, array_type=array_type)
    assert list(batch._data)[: len(bare._data)] == list(bare._data)
    return {key: value for key, value in batch.items() if key not in bare}


def raises(match, exception=(TypeError, ValueError)):
    return pytest.raises(exception, match=match)


def test_a_field_is_immutable():
    field = fc.Field([[1]])
    assert (field.align, field.fill, field.gap_fill, field.dtype) == ("response", 0, None, None)
    with pytest.raises(AttributeError):
        field.align = "sequence"


GRID = np.array([[0, 1, 0], [1, 1, 0]])


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], None, np.array([1, 2], np.int64)),
        ([True, False], None, np.array([True, False])),
        ([np.bool_(True), False], None, np.array([True, False])),
        (np.array([True, False]), None, np.array([True, False])),
        ([True, 2], None, np.array([1, 2], np.int64)),
        ([True, 0.5], None, np.array([1, 0.5], np.float32)),
        ([True, False], "int64", np.array([1, 0], np.int64)),
        ([1, 0.5], None, np.array([1, 0.5], np.float32)),
        ([2**53 + 1, -1], None, np.array([2**53 + 1, -1], np.int64)),
        (np.array([1, 2], np.int16), None, np.array([1, 2], np.int64)),
        (np.array([1.5, NAN]), None, np.array([1.5, NAN], np.float32)),
        ([np.float32(0.5), np.int8(1)], None, np.array([0.5, 1], np.float32)),
        ([1, 2], "float32", np.array([1, 2], np.float32)),
        ([1, 2], "int32", np.array([1, 2], np.int32)),
        ([True, False], "bool", np.array([True, False])),
        (GRID.astype(np.float64), None, GRID.astype(np.float32)),
        (GRID.astype(np.uint8), None, GRID),
        (GRID.astype(np.bool_), None, GRID.astype(np.bool_)),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_per_row(layout, values, dtype, expected, array_type):
    outputs = build_fields(layout, array_type, number=fc.PerRow(values, dtype=dtype))
    assert_same(outputs, {"number": expected})


ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((1, 3), np.float32)]


def test_arrays_per_row_stay_a_list(array_type):
    outputs = build_fields("left", array_type, pixel_values=fc.PerRow(ARRAYS))
    assert type(outputs["pixel_values"]) is list
    kinds = {type(value).__name__ for value in outputs["pixel_values"]}
    assert kinds == {"Tensor" if array_type == "torch" else "ndarray"}
    assert_same(outputs, {"pixel_values": ARRAYS})


@pytest.mark.parametrize("layout", [*LAYOUTS, "packed"])
@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["a", "bc"], {}),
        (np.array(["a", "bc"]), {}),
        ([b"a", b""], {}),
        ([{"answer": 42}, {}], {}),
        ([["a"], ["b", "c"]], {}),
        ([fc.Left(), fc.Right()], {}),
        ([1, None], {"dtype": object}),
        ([[1, [2]], "x"], {"dtype": "object"}),
        (("a", "bc"), {"dtype": np.dtype(object)}),
    ],
)
def test_objects_per_row_are_kept(layout, values, options, array_type):
    layout = fc.Packed.single_row() if layout == "packed" else layout
    bare = {"pad_token_id": 0, "layout": layout, "array_type": array_type}
    batch = fc.build_batch(PROMPTS, RESPONSES, fields={"x": fc.PerRow(values, **options)}, **bare)
    assert type(batch["x"]) is list
    assert batch["x"] == list(values)
    assert pickle.loads(pickle.dumps(batch))["x"] == list(values)
    if not isinstance(values, np.ndarray):
        assert all(found is given for found, given in zip(batch["x"], values, strict=True))


def test_objects_of_merged_rows_shards_and_builders():
    """The last turn's, None in synthetic rows, and the same objects everywhere."""
    prompts, responses = [[1], [1, 2, 3], [7]], [[2], [4], [8]]
    texts = [{"n": 0}, {"n": 1}, {"n": 2}]
    options = {"pad_token_id": 0, "array_type": "numpy"}
    merged = fc.build_batch(
        prompts, responses, trajectory_ids=[0, 0, 1], merge="exact",
        fields={"x": fc.PerRow(texts)}, **options,
    )  # fmt: skip
    assert [one is two for one, two in zip(merged["x"], texts[1:], strict=True)] == [True, True]
    plan = fc.plan_step(merged, dp_size=3, pad_rows="synthetic")
    shards = [merged.select(plan.shard(0, rank))["x"] for rank in range(3)]
    assert shards == [[{"n": 1}], [{"n": 2}], [None]]
    builder = fc.BatchBuilder(**options)
    for prompt, response, text in zip(prompts, responses, texts, strict=True):
        builder.add(prompt, response, fields={"x": fc.PerRow(text)})
    with raises(r"x\[3\] is None", ValueError):
        builder.add([1], [2], fields={"x": fc.PerRow(None)})
    batch = builder.finish()
    assert all(found is given for found, given in zip(batch["x"], texts, strict=True))
    builder.add([1], [2], fields={"x": fc.PerRow(None, dtype=object)})
    assert builder.finish()["x"] == [None]


@NEEDS_TORCH
def test_objects_go_to_no_device():
    import torch

    values = [{"image": torch.ones(1), "array": np.ones(2)}, {}]
    batch = fc.build_batch(PROMPTS, RESPONSES, pad_token_id=0, fields={"x": fc.PerRow(values)})
    moved = batch.to("meta")
    assert moved.input_ids.device.type == "meta"
    assert moved["x"][0] is values[0]


@NEEDS_TORCH
def test_tensors_per_row_are_handed_through():
    import torch

    images = [torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(1, 3, dtype=torch.bfloat16)]
    outputs = build_fields("left", "torch", images=fc.PerRow(images))
    assert_same(outputs, {"images": images})
    outputs = build_fields("left", "torch", images=fc.PerRow(images, concat=True))
    assert outputs["images"].dtype is torch.bfloat16
    assert outputs["images"].float().tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert outputs["images_offsets"].tolist() == [0, 2, 3]


def routes(*rows):
    """Make rows of routes of one layer and two experts."""
    return [np.array(row, np.int64).reshape(len(row), 1, 2) for row in rows]


@pytest.mark.parametrize(
    ("largest", "options", "dtype"),
    [
        (255, {}, "uint8"),
        (256, {}, "int16"),
        (2**15 - 1, {}, "int16"),
        (2**15, {}, "int32"),
        (2**31 - 1, {}, "int32"),
        (3, {"num_experts": 256}, "uint8"),
        (3, {"num_experts": 257}, "int16"),
        (3, {"num_experts": 2**15 + 1}, "int32"),
        (3, {"dtype": "int32"}, "int32"),
        (3, {"dtype": np.int16}, "int16"),
        (3, {"dtype": "int16", "num_experts": 4}, "int16"),
    ],
)
def test_the_dtype_of_routed_experts(largest, options, dtype, array_type):
    field = fc.RoutedExperts(routes([], [[largest, 0]] * 4), **options)
    found = build_fields("left", array_type, routed_experts=field)["routed_experts"]
    assert str(found.dtype).removeprefix("torch.") == dtype
    assert found[1, 0, 0].tolist() == [largest, 0]


def test_the_padding_counts_for_the_dtype(array_type):
    rows = [np.zeros((0, 1, 257), np.int64)] * 2
    found = build_fields("left", array_type, routed_experts=fc.RoutedExperts(rows))
    assert str(found["routed_experts"].dtype).removeprefix("torch.") == "int16"
    assert found["routed_experts"][0, 0, 0].tolist() == list(range(257))


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (routes([[0, 1]], [[0, 1], [-2, 0]]), {}, r"routed_experts\[1\]\[1\].* -2"),
        (routes([[0, 1]], [[0, -1]]), {"num_experts": 8}, r"routed_experts\[1\]\[0\].* -1"),
        (routes([[0, 1]], [[0, 8]]), {"num_experts": 8}, r"routed_experts\[1\]\[0\].* 8\b"),
        (routes([[0, 256]], []), {"dtype": "uint8"}, r"routed_experts\[0\]\[0\].* 256\b"),
        (routes([[0, 2**31]], []), {}, r"routed_experts\[0\]\[0\].* 2147483648\b"),
        (routes([], [[0, 1]] * 5), {}, r"routed_experts\[1\].* 5\b.* 4\b"),
        (routes([[0, 1]]), {}, r"routed_experts\b.* 1\b.* 2\b"),
        ([*routes([[0, 1]]), np.zeros((1, 2, 2), int)], {}, r"routed_experts\[1\]"),
        ([*routes([[0, 1]]), np.zeros((1, 1, 3), int)], {}, r"routed_experts\[1\]"),
        ([*routes([[0, 1]]), np.zeros((1, 2), int)], {}, r"routed_experts\[1\]"),
        ([*routes([[0, 1]]), np.zeros((1, 1, 2))], {}, r"routed_experts\[1\]"),
        ([*routes([[0, 1]]), None], {}, r"routed_experts\[1\]"),
        ([np.zeros((1, 1, 0), int)] * 2, {}, "routed_experts"),
        (routes([[0, 1]], []), {"dtype": "float32"}, "float32"),
        (routes([[0, 1]], []), {"num_experts": 0}, "num_experts"),
        (routes([[0, 1]], []), {"num_experts": "8"}, "num_experts"),
        (routes([[0, 0]], []), {"num_experts": 1}, "num_experts"),  # no padding of two experts
    ],
)
def test_routed_experts_that_cannot_be(rows, options, message):
    with raises(message):
        build_fields(routed_experts=fc.RoutedExperts(rows, starts=[0] * len(rows), **options))


def test_only_one_field_can_have_the_routes():
    field = fc.RoutedExperts(routes([[0, 1]], []))
    with raises("pass the others as fc.Captured", ValueError):
        build_fields(routed_experts=field, other=field)


NAMES = ["uids", "trajectory_ids"]


def test_uids_are_kept_beside_the_outputs(array_type):
    uids, trajectory_ids = ["a", "b", "b"], [7, "x", None]
    batch = build(uids=uids, trajectory_ids=trajectory_ids, array_type=array_type)
    assert list(batch) == list(build(array_type=array_type))
    for again in (batch, pickle.loads(pickle.dumps(batch))):
        assert again.uids == uids
        assert again.trajectory_ids == trajectory_ids
    uids.append("c")
    assert batch.uids == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: ["a"] * n}, rf"{name}\b.* {n}\b.* 3\b") for name in NAMES for n in (0, 1, 4)),
        *(({"uids": uids}, "TypeError: uids") for uids in ("abc", 5, {"a", "b", "c"}, iter("abc"))),
        *(
            ({"fields": {key: fc.PerRow([1, 2, 3])}}, "TypeError: fields")
            for key in (None, 3, b"x", ("x",))
        ),
        *(
            ({"fields": {"advantages": field}}, "TypeError: advantages.*Field")
            for field in (None, "x", fc)
        ),
        *(
            (
                {"fields": {"advantages": rows}},
                r"ValueError: fields\['advantages'\].* most rows have one per",
            )
            for rows in ([[1], [2, 3], [4]], np.zeros((3, 2)))
        ),
        *(
            ({"fields": fields}, "TypeError: fields")
            for fields in ([], "advantages", 5, [("x", 1)])
        ),
    ],
)
def test_uids_and_fields_that_cannot_be(options, message):
    with raising.raises(message):
        build(**options)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.5], [1, 2]], r"advantages\[1\] has 2 items, but responses\[1\] has 3"),
        ([[], [1, 2, 3]], r"advantages\[0\] has 0 items, but responses\[0\] has 1"),
        ([[0.5]], r"advantages\b.* 1 row.* 2\b"),
        ([[0.5], [1, 2, 3], []], r"advantages\b.* 3 rows.* 2\b"),
        ([[0.5], None], r"advantages\[1\]"),
        ([[0.5], [1, "x", 3]], r"advantages\[1\]\[1\] is 'x'"),
        ([0.5, 1], r"advantages\[0\]"),
        (None, "advantages"),
        (5, "advantages"),
        ([np.zeros((1, 2)), np.zeros((3, 3))], r"advantages\[1\]"),
        ([np.zeros((1, 2)), np.zeros((3, 2, 1))], r"advantages\[1\]"),
        ([np.zeros((1, 2)), np.zeros(3)], r"advantages\[1\]"),
        ([np.zeros(1), np.zeros((3, 1))], r"advantages\[1\]"),
        ([np.zeros((1, 2)), np.zeros((2, 2))], r"advantages\[1\] has 2 .*responses\[1\] has 3"),
    ],
)
def test_rows_that_do_not_fit(rows, message):
    with raises(message):
        build_fields(advantages=fc.Field(rows))


def test_a_field_of_sequences_that_does_not_fit():
    rows = [[1, 2, 3], [1, 2, 3]]
    with raises(r"extra\[1\] has 3 items.* 4\b", ValueError):
        build_fields(extra=fc.Field(rows, align="sequence"))


@pytest.mark.parametrize(
    ("dtype", "row", "message"),
    [
        ("uint8", [0, 1, 256], r"x\[1\]\[2\]"),
        ("uint8", [0, 1, -1], r"x\[1\]\[2\]"),
        ("uint8", [0, 1, None], r"TypeError: x\[1\]\[2\]"),
        ("uint8", np.array([0, 1, 256]), r"x\[1\]\[2\]"),
        ("int16", [0, 1, 2**15], r"x\[1\]\[2\]"),
        ("int16", np.array([0, 1, -(2**15) - 1], np.int32), r"x\[1\]\[2\]"),
        ("int32", [0, 1, -(2**31) - 1], r"x\[1\]\[2\]"),
        ("int32", [0, 1, NAN], r"TypeError: x\[1\]\[2\]"),
        ("int64", [0, 1, 2**63], r"x\[1\]\[2\]"),
        ("int64", [0, 1, 1.5], r"TypeError: x\[1\]\[2\]"),
        ("int64", np.array([0, 1, 2**63], np.uint64), r"x\[1\]\[2\]"),
        ("bool", [0, 1, NAN], r"TypeError: x\[1\]\[2\]"),
        ("bool", [0, 1, 2], r"x\[1\]\[2\]"),
        *(
            (dtype, np.array([0, 1, last], np.float32), r"TypeError: x\[1\]")
            for dtype in ("bool", "uint8", "int32", "int64")
            for last in (NAN, 1)
        ),
    ],
)
def test_values_that_do_not_fit_the_dtype(dtype, row, message):
    with raising.raises(message):
        build_fields(x=fc.Field([[1], row], dtype=dtype))


@pytest.mark.parametrize("dtype", ["complex64", "float128", "uint16", "text", 3, object()])
def test_dtypes_of_fields_that_cannot_be(dtype):
    with raises(r"\bx\b"):
        build_fields(x=fc.Field([[1], [1, 2, 3]], dtype=dtype))


def test_bfloat16_needs_torch():
    with raises("bfloat16.*NumPy", ValueError):
        build_fields(x=fc.Field([[1], [1, 2, 3]], dtype="bfloat16"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align": "prompt"}, "align.*'prompt'"),
        ({"align": None}, "align"),
        ({"fill": "x"}, "fill"),
        ({"fill": None}, "fill"),
        ({"fill": NAN, "dtype": "int32"}, "fill"),
        ({"fill": 256, "dtype": "uint8"}, "fill.*256"),
        ({"fill": -1, "dtype": "uint8"}, "fill.*-1"),
        ({"fill": 0.5, "dtype": "int64"}, "fill.*0.5"),
    ],
)
def test_options_of_a_field_that_cannot_be(options, message):
    with raises(message):
        build_fields(x=fc.Field([[1], [1, 2, 3]], **options))


def test_keys_that_other_fields_make():
    fields = {"x": fc.PerRow(ARRAYS, concat=True), "x_offsets": fc.PerRow([1, 2])}
    for names in (["x", "x_offsets"], ["x_offsets", "x"]):
        with raises("'x_offsets'", ValueError):
            build_fields(**{name: fields[name] for name in names})


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1], {}, r"x\b.* 1\b.* 2\b"),
        ([1, 2, 3], {}, r"x\b.* 3\b.* 2\b"),
        ([1, None], {}, r"x\[1\]"),
        ([None, None], {}, r"x\[0\]"),
        ([ARRAYS[0], None], {}, r"x\[1\]"),
        ([None, ARRAYS[0]], {"concat": True}, r"x\[0\]"),
        ([1, "2"], {}, r"x\[1\]"),
        ([1, ARRAYS[0]], {}, r"x\[\d\]"),
        ([1, 2**63], {}, r"x\[1\]"),
        ([0, 256], {"dtype": "uint8"}, r"x\[1\]"),
        ([1, 0.5], {"dtype": "int64"}, r"x\[\d\]"),
        ([1, NAN], {"dtype": "int64"}, r"x\[\d\]"),
        ([1, 2], {"concat": True}, "concat"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], {"concat": True}, r"x\[1\]"),
        (None, {}, "x"),
        ("ab", {}, "x"),
        ([1, 2], {"dtype": "complex64"}, "complex64"),
        (["a", None], {}, r"x\[1\] is None; .*dtype=object"),
        (["a", 1], {}, r"x\[1\] is a number, but x\[0\] is neither .*dtype=object"),
        (["a", [1]], {}, r"x\[1\] is an array, but x\[0\] is neither .*dtype=object"),
        ([[1, [2]], [3]], {}, r"x\[0\] cannot be read .*dtype=object"),
        ([1j, 2j], {}, r"x\[0\] is 1j; .*dtype=object"),
        (["a", "b"], {"dtype": "int64"}, r"x\[0\] is 'a'; .*dtype=object"),
        (["a", "b"], {"concat": True}, "concat=True, but its values are objects"),
        ([1, 2], {"dtype": object, "concat": True}, "concat=True, but its values are objects"),
        ({"a", "b"}, {}, "x is"),
    ],
)
def test_values_per_row_that_cannot_be(values, options, message):
    with raises(message):
        build_fields(x=fc.PerRow(values, **options))


def test_empty_lists_are_joined_as_no_arrays_of_the_others(array_type):
    """Tables hold rows without images so: they have neither a shape nor a dtype."""
    grids = fc.PerRow([[], [[1, 2, 2], [1, 4, 2]], []], concat=True)
    batch = fc.build_batch(
        [[1]] * 3, [[2]] * 3, pad_token_id=0, fields={"grids": grids}, array_type=array_type
    )
    assert (batch.grids.tolist(), str(batch.grids.dtype)[-5:]) == ([[1, 2, 2], [1, 4, 2]], "int64")
    assert batch.grids_offsets.tolist() == [0, 0, 2, 2]
