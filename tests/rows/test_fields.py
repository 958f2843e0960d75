"""Fields of any dtype and shape, values per row, routed experts and uids, against the loops."""

import pickle

import numpy as np
import pytest
from any_layout import layouts
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from small_input import build
from strategies import FIELD_DTYPES, as_inputs, extras, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops

LAYOUTS = ["left", "two_segment", "right", "jagged"]
NAN = float("nan")

PROMPTS, RESPONSES = [[1, 2], [3]], [[4], [5, 6, 7]]


def build_fields(layout="left", array_type="numpy", **fields):
    """Build rows of 2 + 1 and 1 + 3 tokens with these fields, and give what is new."""
    batch = fc.build_batch(
        PROMPTS, RESPONSES, pad_token_id=0, fields=fields, layout=layout, array_type=array_type
    )
    bare = fc.build_batch(PROMPTS, RESPONSES, pad_token_id=0, layout=layout, array_type=array_type)
    assert list(batch)[: len(bare)] == list(bare)
    return {key: value for key, value in batch.items() if key not in bare}


def raises(match, exception=(TypeError, ValueError)):
    return pytest.raises(exception, match=match)


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(drawn=st.data())
def test_everything_equals_the_loops(layout, drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=40))
    more = drawn.draw(extras(data, array_type))
    options = {"pad_token_id": drawn.draw(st.sampled_from([7, 0, -1])), **more}
    options["layout"] = drawn.draw(layouts(layout, data))
    inputs = drawn.draw(as_inputs(data))
    batch = fc.build_batch(**inputs, **options, array_type=array_type)
    assert_same(batch, build_batch_loops(**data._asdict(), **options))
    assert batch.uids == more.get("uids")
    assert batch.trajectory_ids == more.get("trajectory_ids")


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("left", [[-1, -1, 0.5], [1, 2, 3]]),
        ("two_segment", [[0.5, -1, -1], [1, 2, 3]]),
        ("right", [[0.5, -1, -1], [1, 2, 3]]),
        ("jagged", [0.5, 1, 2, 3]),
    ],
)
def test_a_field_of_responses_written_out(layout, expected, array_type):
    field = fc.Field([[0.5], [1, 2, 3]], fill=-1)
    outputs = build_fields(layout, array_type, advantages=field)
    assert_same(outputs, {"advantages": np.array(expected, np.float32)})


def test_the_default_dtype_is_float32_whatever_the_rows_are(array_type):
    for row in ([1], [True], np.array([1], np.int64), np.array([1], np.float64)):
        outputs = build_fields("left", array_type, x=fc.Field([row, [1, 0, 1]]))
        assert_same(outputs, {"x": np.array([[0, 0, 1], [1, 0, 1]], np.float32)})


@pytest.mark.parametrize("dtype", [dtype for dtype in FIELD_DTYPES if dtype != "bfloat16"])
def test_each_dtype(dtype, array_type):
    rows = [np.array([1]), np.array([0, 1, 1])]
    rows = [row.astype(dtype) for row in rows]
    for named in (dtype, np.dtype(dtype), getattr(np, "bool_" if dtype == "bool" else dtype)):
        outputs = build_fields("left", array_type, x=fc.Field(rows, fill=1, dtype=named))
        assert_same(outputs, {"x": np.array([[1, 1, 1], [0, 1, 1]], dtype)})


@NEEDS_TORCH
def test_dtypes_of_torch():
    import torch

    rows = [[1], [0, 1 + 2**-9, -0.0]]
    for dtype in (torch.float16, torch.bfloat16, torch.int32, torch.bool):
        wanted = torch.tensor([[0, 0, 1], [0, 1 + 2**-9, -0.0]])
        given_rows = rows
        if not dtype.is_floating_point:
            wanted, given_rows = torch.tensor([[0, 0, 1], [0, 1, 1]]), [[1], [0, 1, 1]]
        if dtype is torch.bool:
            given_rows = [[True], [False, True, True]]
        outputs = build_fields("left", "torch", x=fc.Field(given_rows, dtype=dtype))
        assert outputs["x"].dtype is dtype
        assert_same(outputs, {"x": wanted.to(dtype)})


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_limits_of_integers(dtype, array_type):
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    row = [least, most, 0]
    for values in (row, np.array(row, np.int64), np.array(row, dtype)):
        field = fc.Field([[most], values], fill=least, dtype=dtype)
        outputs = build_fields("left", array_type, x=field)
        assert_same(outputs, {"x": np.array([[least, least, most], row], dtype)})


def test_keys_are_in_the_order_of_the_mapping(array_type):
    fields = {
        "z": fc.PerRow([np.zeros(1)] * 2, concat=True),
        "routes": fc.RoutedExperts([np.zeros((0, 1, 1), np.int64)] * 2),
        "a": fc.Field([[1], [1, 2, 3]]),
    }
    batch = fc.build_batch(
        PROMPTS,
        RESPONSES,
        pad_token_id=0,
        rewards=[1, 2],
        labels="aligned",
        position_ids="zero",
        fields=fields,
        array_type=array_type,
    )
    assert list(batch) == [
        *("input_ids", "attention_mask", "response_mask", "position_ids", "labels", "loss_mask"),
        *("rewards", "z", "z_offsets", "routes", "router_padding_mask", "a"),
    ]
    assert batch.a is batch["a"]


@pytest.mark.parametrize("trailing", [(2,), (3, 2), (0,)])
def test_rows_of_no_token_keep_the_trailing_dimensions(trailing, array_type):
    rows = [np.zeros((0, *trailing), np.float32), np.ones((1, *trailing), np.float32)]
    options = {"pad_token_id": 0, "array_type": array_type}
    batch = fc.build_batch([[1], [2]], [[], [3]], fields={"x": fc.Field(rows)}, **options)
    assert_same({"x": batch.x}, {"x": np.stack([rows[1] * 0, rows[1]])})
    batch = fc.build_batch([[1]], [[]], fields={"x": fc.Field(rows[:1])}, **options)
    assert tuple(batch.x.shape) == (1, 0, *trailing)


def test_a_field_is_immutable():
    field = fc.Field([[1]])
    assert (field.align, field.fill, field.gap_fill, field.dtype) == ("response", 0, None, None)
    with pytest.raises(AttributeError):
        field.align = "sequence"


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], None, np.array([1, 2], np.int64)),
        ([True, False], None, np.array([1, 0], np.int64)),
        ([1, 0.5], None, np.array([1, 0.5], np.float32)),
        ([2**53 + 1, -1], None, np.array([2**53 + 1, -1], np.int64)),
        (np.array([1, 2], np.int16), None, np.array([1, 2], np.int64)),
        (np.array([1.5, NAN]), None, np.array([1.5, NAN], np.float32)),
        ([np.float32(0.5), np.int8(1)], None, np.array([0.5, 1], np.float32)),
        ([1, 2], "float32", np.array([1, 2], np.float32)),
        ([1, 2], "int32", np.array([1, 2], np.int32)),
        ([True, False], "bool", np.array([True, False])),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_per_row(layout, values, dtype, expected, array_type):
    outputs = build_fields(layout, array_type, number=fc.PerRow(values, dtype=dtype))
    assert_same(outputs, {"number": expected})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_of_numbers_per_row(layout, array_type):
    for source, dtype in (("float64", "float32"), ("uint8", "int64"), ("bool", "int64")):
        table = np.array([[0, 1, 0], [1, 1, 0]])
        outputs = build_fields(layout, array_type, grid=fc.PerRow(table.astype(source)))
        assert_same(outputs, {"grid": table.astype(dtype)})


ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((1, 3), np.float32)]


def test_arrays_per_row_stay_a_list(array_type):
    outputs = build_fields("left", array_type, pixel_values=fc.PerRow(ARRAYS))
    assert type(outputs["pixel_values"]) is list
    kinds = {type(value).__name__ for value in outputs["pixel_values"]}
    assert kinds == {"Tensor" if array_type == "torch" else "ndarray"}
    assert_same(outputs, {"pixel_values": ARRAYS})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_per_row_joined(layout, array_type):
    outputs = build_fields(layout, array_type, pixel_values=fc.PerRow(ARRAYS, concat=True))
    expected = np.array([[0, 1, 2], [3, 4, 5], [1, 1, 1]], np.float32)
    offsets = np.array([0, 2, 3], np.int64)
    assert_same(outputs, {"pixel_values": expected, "pixel_values_offsets": offsets})


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
    ("layout", "experts", "no_route"),
    [
        ("left", [[[0, 1], [5, 4], [3, 2], [0, 1]], [[7, 6], [0, 1], [0, 1], [0, 1]]], "1001 0111"),
        (
            "two_segment",
            [[[5, 4], [3, 2], [0, 1], [0, 1], [0, 1]], [[0, 1], [7, 6], [0, 1], [0, 1], [0, 1]]],
            "00111 10111",
        ),
        (
            "right",
            [[[5, 4], [3, 2], [0, 1], [0, 1]], [[7, 6], [0, 1], [0, 1], [0, 1]]],
            "0011 0111",
        ),
        ("jagged", [[5, 4], [3, 2], [0, 1], [7, 6], [0, 1], [0, 1], [0, 1]], "0010111"),
    ],
)
def test_routed_experts_written_out(layout, experts, no_route, array_type):
    field = fc.RoutedExperts(routes([[5, 4], [3, 2]], [[7, 6]]), starts=[0, 0])
    mask = np.array([[bit == "1" for bit in row] for row in no_route.split()])
    expected = {
        "routed_experts": np.array(experts, np.uint8)[..., None, :],
        "router_padding_mask": mask[0] if layout == "jagged" else mask,
    }
    assert_same(build_fields(layout, array_type, routed_experts=field), expected)


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


def test_no_route_in_any_row(array_type):
    found = build_fields("left", array_type, routed_experts=fc.RoutedExperts(routes([], [])))
    assert found["routed_experts"].tolist() == [[[[0, 1]]] * 4] * 2
    assert found["router_padding_mask"].tolist() == [[True] * 4] * 2


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


# uids


def test_uids_are_kept_beside_the_outputs(array_type):
    uids, trajectory_ids = ["a", "b", "b"], [7, "x", None]
    batch = build(uids=uids, trajectory_ids=trajectory_ids, array_type=array_type)
    assert list(batch) == list(build(array_type=array_type))
    for again in (batch, pickle.loads(pickle.dumps(batch))):
        assert again.uids == uids
        assert again.trajectory_ids == trajectory_ids
    uids.append("c")
    assert batch.uids == ["a", "b", "b"]


def test_without_uids():
    batch = build()
    assert batch.uids is None
    assert batch.trajectory_ids is None


@pytest.mark.parametrize("name", ["uids", "trajectory_ids"])
@pytest.mark.parametrize("values", [[], ["a"], ["a"] * 4])
def test_different_counts_of_uids(name, values):
    with raises(rf"{name}\b.* {len(values)}\b.* 3\b", ValueError):
        build(**{name: values})


@pytest.mark.parametrize("values", ["abc", 5, {"a", "b", "c"}, (uid for uid in "abc")])
def test_uids_that_are_no_sequence(values):
    with raises("uids", TypeError):
        build(uids=values)


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
    with raises(r"mask\[1\] has 3 items.* 4\b", ValueError):
        build_fields(mask=fc.Field(rows, align="sequence"))


@pytest.mark.parametrize(
    ("dtype", "item"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int16", 2**15),
        ("int32", -(2**31) - 1),
        ("int64", 2**63),
        ("int32", NAN),
        ("int64", 1.5),
        ("bool", NAN),
        ("bool", 2),
        ("uint8", None),
    ],
)
def test_items_that_do_not_fit_the_dtype(dtype, item):
    with raises(r"x\[1\]\[2\]"):
        build_fields(x=fc.Field([[1], [0, 1, item]], dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "row"),
    [
        ("uint8", np.array([0, 1, 256])),
        ("int16", np.array([0, 1, -(2**15) - 1], np.int32)),
        ("int64", np.array([0, 1, 2**63], np.uint64)),
    ],
)
def test_items_of_arrays_that_do_not_fit_the_dtype(dtype, row):
    with raises(r"x\[1\]\[2\]", ValueError):
        build_fields(x=fc.Field([[1], row], dtype=dtype))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
def test_float_arrays_in_an_integer_field(dtype):
    for values in ([0, 1, NAN], [0, 1, 1]):
        with raises(r"x\[1\]"):
            build_fields(x=fc.Field([[1], np.array(values, np.float32)], dtype=dtype))


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


@pytest.mark.parametrize("key", [None, 3, b"x", ("x",)])
def test_keys_that_are_no_names(key):
    with raises("fields", TypeError):
        build(fields={key: fc.PerRow([1, 2, 3])})


@pytest.mark.parametrize("field", [None, [[1], [2, 3], [4]], np.zeros((3, 2)), "x", fc])
def test_values_that_are_no_fields(field):
    with raises("advantages.*Field", TypeError):
        build(fields={"advantages": field})


@pytest.mark.parametrize("fields", [[], "advantages", 5, [("x", 1)]])
def test_fields_that_are_no_mapping(fields):
    with raises("fields", TypeError):
        build(fields=fields)


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
