"""Bad input is a ValueError or TypeError that names field, row, position, found and expected."""

import re
import sys
import types
from array import array

import numpy as np
import pytest
from small_input import (
    FIELDS,
    OF_SKYRL,
    ROWS,
    TOKENS,
    build,
    good_input,
    refuses,
    with_item,
    with_row,
)
from strategies import as_kind

import fastcollate as fc
from fastcollate.testing.reference import assert_same

NAN = float("nan")


def kind_of(value):
    return type(value).__name__


def with_array(name, array_type):
    """Make row 1 an array of its values."""
    return with_row(name, array_type(good_input()[name][1]))


# Counts and lengths


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("name", ROWS)
def test_different_row_counts(name, rows):
    changes = {name: (good_input()[name] * 2)[:rows]}
    other = "prompts" if name != "prompts" else "responses"
    refuses(changes, ValueError, rf"{name}\b", rf"{other}\b", rf"\b{rows}\b", r"\b3\b")


@pytest.mark.parametrize("empty", [[], (), np.zeros((0, 3), np.int64), np.empty(0, object)])
def test_empty_batch(empty):
    refuses(dict.fromkeys(ROWS, empty), ValueError, "empty")


@pytest.mark.parametrize("row", [[], [1.0], [1.0, 2.0, 3.0], np.zeros(3), array("d", [1.0])])
@pytest.mark.parametrize("name", FIELDS)
def test_length_of_a_field(name, row):
    message = rf"{name}\[1\] has {len(row)} items?, but responses\[1\] has 2"
    refuses(with_row(name, row), ValueError, message)


@pytest.mark.parametrize("name", FIELDS)
def test_length_of_a_field_in_two_dimensions(name):
    refuses({name: np.zeros((3, 2))}, ValueError, rf"{name}\[0\] has 2", r"responses\[0\] has 1")


def test_number_per_row_without_a_last_token():
    changes = {**with_row("responses", []), "loss_mask": None, "logprobs": None}
    for rewards in ([1, 2, 3], np.ones(3), array("f", [1, 2, 3])):
        refuses({**changes, "rewards": rewards}, ValueError, r"rewards\[1\]", r"responses\[1\]")


# Items

NOT_NUMBERS = [None, "7", b"7", [7], (7,), {}, {7}, 1j, np.complex64(1), object(), np.array([7])]


@pytest.mark.parametrize("item", [1.5, 1.0, np.float32(2), NAN, *NOT_NUMBERS], ids=kind_of)
@pytest.mark.parametrize("name", TOKENS)
def test_items_that_are_no_token_ids(name, item):
    advice = "tokenize it first" if isinstance(item, dict) else "integer"  # text: convert it to
    refuses(with_item(name, item), TypeError, rf"{name}\[1\]\[0\] is", kind_of(item), advice)


@pytest.mark.parametrize("item", NOT_NUMBERS, ids=kind_of)
@pytest.mark.parametrize("name", FIELDS)
def test_items_that_are_no_numbers(name, item):
    refuses(with_item(name, item), TypeError, rf"{name}\[1\]\[0\] is", kind_of(item), "number")


def test_found_value_is_quoted():
    refuses(with_row("prompts", [3, 4, 1.5]), TypeError, re.escape("prompts[1][2] is 1.5 (float)"))
    refuses(with_row("responses", (8, None)), TypeError, re.escape("responses[1][1] is None"))
    refuses(with_row("prompts", [["x" * 10_000]]), TypeError, r"^.{,300}$")


@pytest.mark.parametrize(
    "item", [2**63, -(2**63) - 1, 2**200, np.uint64(2**63)], ids=lambda item: f"{float(item):.0e}"
)
@pytest.mark.parametrize("name", TOKENS)
def test_token_ids_over_int64(name, item):
    refuses(with_item(name, item), ValueError, rf"{name}\[1\]\[0\] is {item}\b", "int64")


@pytest.mark.parametrize("dtype", [np.uint64, ">u8"])
def test_token_ids_over_int64_in_an_array(dtype):
    row = np.array([3, 2**63], dtype)
    refuses(with_row("prompts", row), ValueError, rf"prompts\[1\]\[1\] is {2**63}\b", "int64")
    table = np.array([[1, 2], [3, 2**63], [4, 5]], dtype)
    refuses({"prompts": table}, ValueError, rf"prompts\[1\]\[1\] is {2**63}\b", "int64")


@pytest.mark.parametrize("name", FIELDS)
def test_whole_numbers_over_float64(name):
    refuses(with_item(name, 10**400), ValueError, rf"{name}\[1\]\[0\]")


@pytest.mark.parametrize("dtype", [None, "f2", "f4", "f8", "longdouble", ">f4", ">f8"])
def test_nan_in_a_loss_mask(dtype):
    row = [1.0, NAN] if dtype is None else np.array([1.0, NAN], dtype)
    refuses(with_row("loss_mask", row), ValueError, r"loss_mask\[1\]\[1\] is NaN")
    build(**with_row("rewards", row), **with_row("logprobs", row))


NEGATIVE = r"is -100, but a token cannot train with a negative weight; pass 0 .*labels != -100"


@pytest.mark.parametrize("dtype", [None, "i1", "i2", "i4", "i8", "f2", "f4", "f8", ">i4", ">f8"])
def test_labels_as_a_loss_mask(dtype):
    """Their sum, the divisor of losses, would be negative."""
    row = [1, -100] if dtype is None else np.array([1, -100], dtype)
    refuses(with_row("loss_mask", row), ValueError, rf"loss_mask\[1\]\[1\] {NEGATIVE}")
    build(**with_row("rewards", row), **with_row("logprobs", row))
    assert build(**with_row("loss_mask", [1, -0.0])).loss_mask[1, -1] == 0


@pytest.mark.parametrize("merge", [None, "exact"])
@pytest.mark.parametrize("dtype", [None, "int64", "float64", "bool"])
@pytest.mark.parametrize("make", [list, np.array])
def test_labels_along_sequences_as_a_loss_mask(make, dtype, merge):
    """They are negative on prompts, of which no value is written, and ids elsewhere."""
    turns = {"prompts": [[1, 2], [3]], "responses": [[4], [5, 6]], "trajectory_ids": [0, 1]}
    options = {"pad_token_id": 0, "merge": merge, "array_type": "numpy"}
    options |= {} if dtype is None else {"dtypes": {"loss_mask": dtype}}
    ids = [0, 1] if dtype == "bool" else [4, 6]
    good = [make([0, 0, ids[1]]), make([0, *ids])]
    labels = [make([0, 0, ids[1]]), make([-100, *ids])]
    inner = [make([0, -100, ids[1]]), make([0, *ids])]

    def add_all(rows):
        builder = fc.BatchBuilder(**options)
        for prompt, response, row in zip(*list(turns.values())[:2], rows, strict=True):
            own = fc.Field(row, align="sequence")
            builder.add(prompt, response, loss_mask=own, trajectory_id=len(builder))
        return builder.finish()

    mask = fc.Field(good, align="sequence")
    assert_same(add_all(good), fc.build_batch(**turns, loss_mask=mask, **options))
    for rows, place in ((labels, r"\[1\]\[0\]"), (inner, r"\[0\]\[1\]")):
        mask = fc.Field(rows, align="sequence")
        with pytest.raises(ValueError, match=f"loss_mask{place} {NEGATIVE}"):
            fc.build_batch(**turns, loss_mask=mask, **options)
        with pytest.raises(ValueError, match=f"loss_mask{place} {NEGATIVE}"):
            add_all(rows)


def test_a_collator_refuses_labels_as_a_loss_mask():
    samples = [{"prompt": [1], "response": [2, 3], "loss_mask": [-100, 3]}]
    with pytest.raises(ValueError, match=rf"loss_mask\[0\]\[0\] {NEGATIVE}"):
        fc.Collator(pad_token_id=0)(samples)
    turns = {"prompts": [[1], [1, 2, 3]], "responses": [[2], [4]], "trajectory_ids": [0, 0]}
    with pytest.raises(ValueError, match=rf"loss_mask\[1\]\[0\] {NEGATIVE}"):
        fc.merge_turns(**turns, loss_mask=[[0], [-100]], drop_untrainable=True)


def test_masks_of_frameworks_may_be_negative():
    """As theirs, which multiply by them."""
    torch = pytest.importorskip("torch")
    from fastcollate.compat import skyrl

    found = skyrl.convert_prompts_responses_to_batch_tensors(
        pad_token_id=0, prompts=[[1]], responses=[[2, 3]], rewards=[[0.0, 1.0]],
        loss_masks=[[-100, 1]],
    )  # fmt: skip
    assert any(torch.is_tensor(one) and (one == -100).any() for one in found)


def test_nan_in_a_loss_mask_of_torch():
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        for requires_grad in (False, True):
            row = torch.tensor([1.0, NAN], dtype=dtype, requires_grad=requires_grad)
            refuses(with_row("loss_mask", row), ValueError, r"loss_mask\[1\]\[1\] is NaN")


@pytest.mark.parametrize("token_kind", ["list", "numpy.uint64"])
@pytest.mark.parametrize("field_kind", ["list", "numpy.float32"])
@pytest.mark.parametrize("name", ["prompts", "responses", "loss_mask"])
def test_a_bad_item_in_a_large_batch(name, token_kind, field_kind):
    """Large enough for threads."""
    rows = dict.fromkeys(ROWS, [as_kind([1] * 1000, token_kind, ids=True)] * 1000)
    rows["loss_mask"] = [as_kind([1.0] * 1000, field_kind, ids=False)] * 1000
    rows[name] = list(rows[name])
    rows[name][777] = rows[name][777].copy()
    rows[name][777][555] = NAN if name == "loss_mask" else 2**63
    refuses(rows, ValueError, rf"{name}\[777\]\[555\] is")


# Rows

NOT_ROWS = {
    "None": lambda row: None,
    "str": lambda row: "89",
    "bytes": lambda row: b"89",
    "bytearray": lambda row: bytearray(b"89"),
    "dict": lambda row: dict.fromkeys(row),
    "set": set,
    "generator": lambda row: (item for item in row),
    "object": lambda row: object(),
    "object array": lambda row: np.array(row, object),
    "complex array": lambda row: np.array(row, np.complex64),
    "str array": lambda row: np.array(row, str),
    "bytes array": lambda row: np.array(row, "S2"),
    "date array": lambda row: np.array([0, 1], "M8[s]"),
    "duration array": lambda row: np.array([0, 1], "m8[s]"),
    "record array": lambda row: np.zeros(2, [("id", np.int64)]),
}


@pytest.mark.parametrize("kind", NOT_ROWS)
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_wrong_kind(name, kind):
    refuses(with_array(name, NOT_ROWS[kind]), TypeError, rf"{name}\[1\]")


@pytest.mark.parametrize(
    ("item", "advice"),
    [
        (None, "pass a real number, such as 0 with a loss mask of 0"),
        ({5: -0.1}, "pass a real number; fc.rollouts.read reads the objects of an engine"),
    ],
)
def test_log_probabilities_as_engines_return_them(item, advice):
    with pytest.raises(TypeError, match=f"{advice}$"):
        fc.build_batch([[1]], [[2]], pad_token_id=0, logprobs=[[item]])


@pytest.mark.parametrize("name", [*TOKENS, "loss_mask", "logprobs"])
@pytest.mark.parametrize("number", [5, 1.5, np.int64(5)])
def test_numbers_in_place_of_rows(name, number):
    refuses(with_row(name, number), TypeError, rf"{name}\[1\]")
    refuses({name: [number] * 3}, TypeError, rf"{name}\[0\]")
    with pytest.raises((TypeError, ValueError), match=name):
        build(**{name: np.array([number] * 3)})


def test_rewards_are_numbers_or_rows_but_not_both():
    refuses(with_row("rewards", 1.5), TypeError, r"rewards\[1\]")
    refuses({"rewards": [1.5, [1.0, 2.0], 2.5]}, TypeError, r"rewards\[1\]")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble", ">f4", ">f8"])
@pytest.mark.parametrize("name", TOKENS)
def test_float_arrays_of_token_ids(name, dtype):
    changes = with_array(name, lambda row: np.array(row, dtype))
    refuses(changes, TypeError, rf"{name}\[1\]", "float", "integer|token id")
    refuses({name: np.zeros((3, 2), dtype)}, TypeError, name, "float", "integer|token id")


@pytest.mark.parametrize("shape", [(), (1, 2), (2, 1), (2, 2), (0, 2), (1, 1, 2)])
@pytest.mark.parametrize("name", ROWS)
def test_arrays_of_another_rank_as_a_row(name, shape):
    for order in "CF":
        with pytest.raises((TypeError, ValueError), match=rf"{name}\[1\]"):
            build(**with_row(name, np.zeros(shape, np.int64, order)))


@pytest.mark.parametrize("name", ROWS)
def test_arrays_of_three_dimensions_as_rows(name):
    with pytest.raises((TypeError, ValueError), match=name):
        build(**{name: np.zeros((3, 2, 2), np.int64)})


def test_nested_lists():
    refuses(with_row("prompts", [[3]]), TypeError, r"prompts\[1\]\[0\]", "list")
    refuses({"prompts": [[[1]], [[2]], [[3]]]}, TypeError, r"prompts\[0\]\[0\]", "list")


@pytest.mark.parametrize("name", ROWS)
def test_torch_rows_that_cannot_be_read(name):
    torch = pytest.importorskip("torch")
    for row in (
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, device="meta"),
        torch.zeros(2).to_sparse(),
        torch.zeros(1, 2),
        torch.tensor(1),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"{name}\[1\]"):
            build(**with_row(name, row))


def test_torch_rows_of_floats_are_no_token_ids():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        row = torch.ones(1, dtype=dtype)
        refuses(with_row("prompts", row), TypeError, r"prompts\[1\]", "float", "integer|token id")


# Containers of rows

NOT_SEQUENCES = {
    "None": lambda rows: None,
    "int": lambda rows: 5,
    "str": lambda rows: "abc",
    "bytes": lambda rows: b"abc",
    "dict": lambda rows: dict(enumerate(rows)),
    "set": lambda rows: {tuple(row) for row in rows},
    "generator": lambda rows: (row for row in rows),
    "map": lambda rows: map(list, rows),
    "object": lambda rows: object(),
}


# None is no field, and that is no error.
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in ROWS for kind in NOT_SEQUENCES if kind != "None" or name in TOKENS],
)
def test_outer_objects_that_are_no_sequences(name, kind):
    refuses({name: NOT_SEQUENCES[kind](good_input()[name])}, TypeError, name)


# Options


@pytest.mark.parametrize(
    ("changes", "exception", "patterns"),
    [
        ({"pad_token_id": None}, TypeError, ("pad_token_id", "None", "pass|eos")),
        *(({"pad_token_id": one}, TypeError, ("pad_token_id",)) for one in ("0", 1.5, 0.0, [0])),
        ({"pad_token_id": 2**63}, ValueError, ("pad_token_id", "int64")),
        ({"pad_token_id": -(2**63) - 1}, ValueError, ("pad_token_id", "int64")),
        ({"reward": [1, 2, 3]}, TypeError, ("reward",)),
        ({"array_type": "jax"}, ValueError, ("array_type", "jax", "numpy", "torch")),
        ({"array_type": None}, TypeError, ("array_type",)),
        ({"array_type": 3}, TypeError, ("array_type",)),
    ],
)
def test_options(changes, exception, patterns):
    refuses(changes, exception, *patterns)


def test_pad_token_id_is_required_by_keyword():
    with pytest.raises(TypeError, match="pad_token_id"):
        fc.build_batch([[1]], [[2]])
    with pytest.raises(TypeError, match="without a name; pass others by name: pad_token_id"):
        fc.build_batch([[1]], [[2]], 0)


def test_a_pad_token_in_place_of_its_id():
    message = "pad_token_id is '<pad>'; pass the id of the token, such as tokenizer.pad_token_id"
    with pytest.raises(TypeError, match=message):
        fc.build_batch([[1]], [[2]], pad_token_id="<pad>")


def test_torch_that_another_thread_is_importing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # nothing in it yet
    assert fc.Ragged(np.arange(3), [0, 1, 3]).to_list() == [[0], [1, 2]]


def test_compat_names_the_place_as_well():
    pytest.importorskip("torch")
    from fastcollate.compat.skyrl import convert_prompts_responses_to_batch_tensors

    good = [good_input()[name] for name in OF_SKYRL]
    for position, name in enumerate(OF_SKYRL):
        args = list(good)
        args[position] = with_item(name, "x")[name]
        with pytest.raises(TypeError, match=rf"^{name}s?\[1\]\[0\] is 'x'"):
            convert_prompts_responses_to_batch_tensors(0, *args)
