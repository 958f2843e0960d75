"""Columns of calls from bytes, objects and tables: keys that are absent, null or there twice."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.rollouts import Calls, Schema, parse, read

pa = pytest.importorskip("pyarrow")
Source = pytest.importorskip("fastcollate.cli.files").Source

FORMS = {
    "bytes": lambda bodies, schema=None, **options: parse(
        [json.dumps(body).encode() for body in bodies], schema, **options
    ),
    "dictionaries": lambda bodies, schema=None, **options: read(bodies, schema, **options),
    "tables": lambda bodies, schema=None, **options: read(
        pa.Table.from_pylist(bodies, schema=None), schema, **options
    ),
}

KEYS = st.dictionaries(st.sampled_from(["a", "b", "uid", "end"]), st.none() | st.just("x"))


@given(st.lists(KEYS, min_size=1, max_size=4))
def test_a_column_is_there_if_a_call_has_its_key(keys):
    """Its calls have None where it is null or absent."""
    schema = Schema(prompts="p", responses="r", one=("a", "b"), uids="uid", finish_reasons="end")
    bodies = [{"p": [1], "r": [2]} | own for own in keys]
    expected = {}
    for name, paths in {"one": ("a", "b"), "uids": ("uid",), "finish_reasons": ("end",)}.items():
        if any(path in own for own in keys for path in paths):
            expected[name] = [
                next((own[path] for path in paths if own.get(path) is not None), None)
                for own in keys
            ]
    for name, form in FORMS.items():
        given = bodies
        if name == "tables":  # whose rows have all columns
            given = [{key: None for own in keys for key in own} | body for body in bodies]
        assert form(given, schema, unfinished="keep").columns == expected
        if None in expected.get("finish_reasons", ()):
            with pytest.raises(ValueError, match="did not finish: finish_reason is None"):
                form(given, schema)


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"token_ids": [2], "finish_reason": None}], "prompt_token_ids": [1]},
        {"output_ids": [2], "prompt_token_ids": [1], "meta_info": {"finish_reason": None}},
    ],
)
def test_reasons_that_are_all_null_are_not_finished(body):
    for form in (FORMS["bytes"], FORMS["dictionaries"]):
        with pytest.raises(ValueError, match="call 0 did not finish: finish_reason is None"):
            form([body])
        assert form([body], unfinished="keep").finish_reasons == [None]
        assert len(form([body], unfinished="skip")) == 0


def test_columns_of_engines_are_there_if_their_keys_are():
    body = {"prompt_token_ids": [1], "choices": [{"token_ids": [2], "routed_experts": None}]}
    calls = FORMS["bytes"]([body, body | {"id": None}])
    assert calls.routed_experts == calls.request_ids == [None, None]
    assert "versions" not in calls.columns
    parts = [calls, FORMS["bytes"]([body | {"id": "a"}])]
    assert Calls.concat(parts).request_ids == [None, None, "a"]
    assert Calls.from_arrow(calls.to_arrow()).columns["request_ids"] == [None, None]


def test_routes_of_later_tokens_need_their_starts():
    columns = {"routed_experts": [np.zeros((1, 1, 2), np.int32)]}
    calls = Calls([[1, 2]], [[3]], **columns)
    with pytest.raises(ValueError, match=r"routed_experts\[0\] has 1 item, .* pass starts="):
        fc.build_batch(**calls.batch, pad_token_id=0)
    calls = Calls([[1, 2]], [[3]], routed_starts=[1], **columns)
    batch = fc.build_batch(**calls.batch, pad_token_id=0)
    assert batch.router_padding_mask.tolist() == [[True, False, True]]


def test_arguments_that_are_null():
    nothing = {"rewards": [None] * 2, "uids": [None] * 2, "trajectory_ids": [None] * 2}
    calls = Calls([[1], [1, 2]], [[2], [3]], is_last_step=[None] * 2, note=[None] * 2, **nothing)
    assert sorted(calls.batch) == ["fields", "prompts", "responses"]
    assert sorted(calls.turns) == ["prompts", "responses"]
    batch = fc.build_batch(**calls.batch, rewards=[1.0, 2.0], pad_token_id=0)
    assert batch.note == [None, None]
    for name in ("uids", "trajectory_ids", "is_last_step"):
        some = Calls([[1], [1, 2]], [[2], [3]], **{name: ["a", None]})
        with raises(rf"{name}\[1\] is None, but other calls have one; set"):
            _ = some.batch
        some.columns[name] = [True, True]
        assert some.batch[name] == [True, True]


def test_nulls_are_shown_and_reported(tmp_path):
    nothing = dict.fromkeys(("reward", "uid", "trajectory_id", "is_last_step"))
    body = {"prompts": [1], "responses": [2, 3]} | nothing
    calls = FORMS["bytes"]([body, body])
    assert calls.rewards == calls.uids == [None, None]
    assert "call 1, prompt 1, response 2" in calls.show().text(60).replace("\xa0", " ")
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(body) + "\n" + json.dumps(body) + "\n")
    (rows,) = Source.of(path, {}).chunks()
    assert (rows.values, rows.ids) == ({}, {})
    assert rows.build().input_ids.tolist() == [1, 2, 3] * 2


PATHS = {"responses": ("r", "x.r", "y[].id"), "logprobs": ("l", "y[].lp"), "note": ("n", "m")}


@given(st.sets(st.sampled_from(["r", "x", "y", "l", "n", "m"]), min_size=1), st.randoms())
def test_the_first_path_of_a_column_is_read(keys, random):
    """Whatever the order of keys in a body is, and in items after the first."""
    ids = {"r": [1, 2, 3], "x": [4, 5, 6], "y": [7, 8, 9]}
    values = {"l": [-1.0, -2, -3], "y": [-4.0, -5, -6]}
    items = [{"id": id_, "lp": lp} for id_, lp in zip(ids["y"], values["y"], strict=True)]
    whole = {"r": ids["r"], "x": {"r": ids["x"]}, "y": items, "l": values["l"], "n": "n", "m": "m"}
    order = sorted(keys)
    random.shuffle(order)
    body = {"p": [0]} | {key: whole[key] for key in order}
    schema = Schema(prompts="p", **PATHS)
    response = next((ids[key] for key in "rxy" if key in keys), None)
    logprobs = next((values[key] for key in "ly" if key in keys), None)
    for form in FORMS.values():
        if response is None:
            with pytest.raises(ValueError, match="no token ids of a response"):
                form([body, body], schema)
            continue
        calls = form([body, body], schema)
        assert calls.responses.to_list() == [response] * 2
        assert (calls.logprobs and calls.logprobs.to_list()) == (logprobs and [logprobs] * 2)
        note = next((key for key in "nm" if key in keys), None)
        assert calls.columns == ({} if note is None else {"note": [note] * 2})
    nulls = {key: None for key in "rl" if key in keys} | {"n": None}
    if {"x", "y"} & keys:
        other = FORMS["bytes"]([body | nulls], schema, bad_logprobs="keep")
        assert other.responses.to_list() == [ids["x" if "x" in keys else "y"]]


BAD_IDS = [
    ([1.0], "is 1.0 .float.; pass an integer"),
    ([True], "is a bool; pass token ids, not a mask"),
    ([-1], "is -1; token ids are integers from 0 to 2147483647"),
    ([2**31], "is 2147483648; token ids are integers from 0 to 2147483647"),
    ([2**70], "is 1180591620717411303424, which does not fit int64"),
    ([None], "is None .NoneType.; pass an integer"),
    (["a"], "is 'a' .str.; tokenize it first"),
]


@pytest.mark.parametrize(("row", "message"), BAD_IDS)
@pytest.mark.parametrize("name", ["prompts", "responses"])
def test_ids_that_are_none(name, row, message):
    """One check for every way to make calls."""
    schema = Schema(prompts="prompts", responses="responses")
    good = {"prompts": [5, 6], "responses": [7, 8]}
    body = good | {name: [3, *row]}
    with pytest.raises((TypeError, ValueError), match=rf"{name}\[1\]\[1\] {message}"):
        Calls(**{key: [good[key], body[key]] for key in good})
    with pytest.raises((TypeError, ValueError), match=rf"\[1\]: {name}\[0\]\[1\] {message}"):
        read([good, body], schema)
    with pytest.raises(ValueError, match=r"bodies\[1\], byte"):
        FORMS["bytes"]([good, body], schema)
    engine = {"prompt_token_ids": body["prompts"], "output_ids": body["responses"]}
    with pytest.raises((TypeError, ValueError), match=rf"\[0\]: {name}\[0\]\[1\] {message}"):
        read([engine])
    if type(row[0]) in (float, bool) or row[0] in (-1, 2**31):
        table = Calls([[1], [1]], [[2], [2]]).to_arrow()
        table = table.set_column(table.column_names.index(name), name, pa.array([row * 2, row * 2]))
        with pytest.raises((TypeError, ValueError), match=name):
            Calls.from_arrow(table)


@pytest.mark.parametrize("dtype", ["float32", "bool", "float64"])
def test_arrays_that_are_no_ids(dtype):
    rows = [np.array([1, 0], dtype)]
    with pytest.raises(TypeError, match=r"prompts\[0\]"):
        Calls(rows, [[1]])
    with pytest.raises(TypeError, match=r"responses\[0\]"):
        Calls([[1]], fc.ragged(rows))


@given(st.lists(st.lists(st.integers(0, 2**31 - 1)), min_size=1))
def test_ids_of_any_container(rows):
    forms = [rows, fc.ragged(rows, "int64"), pa.array(rows, pa.list_(pa.int64())), tuple(rows)]
    forms.append([np.array(row, np.uint32) for row in rows])
    for form in forms:
        calls = Calls(form, form)
        assert calls.prompts.to_list() == calls.responses.to_list() == rows
        assert calls.prompts.dtype == np.int32


def test_prompts_that_are_not_rows():
    for source, body in ((parse, b'{"output_ids": [1]}'), (read, {"output_ids": [1]})):
        with pytest.raises(TypeError, match=r"prompts\[0\] is 1 \(int\); pass one list, array"):
            source([body], prompts=[1, 2])


@pytest.mark.parametrize("rows", [True, 0, 1.5, [0.5], [[0]], "a", None])
def test_selections_that_are_neither_indices_nor_a_mask(rows):
    with pytest.raises(TypeError, match=r"calls is .*; pass indices, or one bool per call"):
        Calls([[1], [2]], [[3], [4]]).select(rows)


def test_selections_of_other_lengths():
    calls = Calls([[1], [2]], [[3], [4]], skipped=3)
    with pytest.raises(IndexError, match="calls has 1 bool, but there are 2 calls; pass one per"):
        calls.select([True])
    with pytest.raises(IndexError, match="2"):
        calls.select([2])
    assert calls.select([1]).skipped == 3
    assert calls.select([-1]).responses.to_list() == [[4]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"responses": ()}, r"responses is \(\); pass a path"),
        ({"responses": ("a", 3)}, r"pass a path"),
        ({"calls": 3, "responses": "a"}, "calls is 3; pass a path"),
        ({"calls": "a[]", "nodes": "b[]", "responses": ".r"}, "calls and nodes are both given"),
        ({"responses": "a", "skipped": "b"}, "Calls has a skipped of its own; pass another name"),
        ({"responses": "a", "batch": "b"}, "Calls has a batch of its own"),
        ({"responses": "a&2"}, "bits of 'a' are not a loss mask"),
        ({"responses": "a", "loss_mask": "b&0"}, "bits of 'b' are not a loss mask"),
        (
            {"responses": "a[]", "prompts": "a[0]"},
            "paths name both all items of an array and single",
        ),
    ],
)
def test_odd_schemas(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Schema(**given)
    with pytest.raises(ValueError, match="Calls has a report of its own"):
        Calls([[1]], [[2]], report=[1])


@pytest.mark.parametrize(
    ("columns", "body"),
    [
        ({"responses": "r"}, {"r": 3}),
        ({"responses": "r"}, {"r": "abc"}),
        ({"responses": "r[]"}, {"r": {"a": 1}}),
        ({"responses": "r", "loss_mask": "m"}, {"r": [1], "m": 3}),
        ({"responses": "r", "loss_mask": "m"}, {"r": [1], "m": "x"}),
        ({"responses": "r", "loss_mask": "m"}, {"r": [1], "m": [[1]]}),
        ({"responses": "r", "loss_mask": "m"}, {"r": [1], "m": ["a"]}),
        ({"sequences": "r", "prompt_lens": "n"}, {"r": [1], "n": [1]}),
        ({"sequences": "r", "prompt_lens": "n"}, {"r": [1], "n": "1"}),
        ({"responses": "r", "trains": "t"}, {"r": [1], "t": [1, 0]}),
        ({"responses": "r", "trains": "t"}, {"r": [1], "t": "no"}),
    ],
)
def test_values_of_other_kinds(columns, body):
    for form, place in zip(FORMS.values(), ("bodies[0]", "outputs[0]", "row 0"), strict=True):
        with pytest.raises((TypeError, ValueError)) as caught:
            form([{"p": [5]} | body], Schema(prompts="p", **columns))
        assert str(caught.value).startswith(place)


def test_flags_of_training():
    schema = Schema(prompts="p", responses="r", trains="t", masked="m")
    for form in FORMS.values():
        for flags, trains in [({"t": 2}, 1), ({"t": 0}, 0), ({"m": 2}, 0), ({"m": False}, 1)]:
            calls = form([{"p": [1], "r": [2]} | flags], schema)
            assert (calls.loss_mask is None) == bool(trains)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([["a"], [1.0]], r"rewards\[0\]\[0\] is 'a'"),
        ([[1.0], 1.0], r"rewards\[1\] is 1.0 \(float\)"),
        ([[1.0], None], "call 1 has 0 rewards, but its response has 1 token"),
    ],
)
def test_rewards_of_other_kinds(rewards, message):
    schema = Schema(prompts="p", responses="r", rewards="w")
    bodies = [{"p": [1], "r": [2], "w": one} for one in rewards]
    for form in (FORMS["bytes"], FORMS["dictionaries"]):
        with pytest.raises((TypeError, ValueError), match=message):
            form(bodies, schema)


def test_rewards_of_a_call_without_a_prompt_are_its_own():
    schema = Schema(prompts="p", responses="r", rewards="w")
    bodies = [{"p": [1], "r": [2], "w": [1.0]}, {"p": [], "r": [3], "w": []}]
    with pytest.raises(ValueError, match="call 1 has 0 rewards, but its response has 1 token"):
        read(bodies, schema)
