"""The table of calls: selecting, joining, fields, Arrow, Parquet and views."""

import copy
import io
import json
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.blocks.joining import join
from fastcollate.blocks.storing import store
from fastcollate.plan.grouping import group_numbers
from fastcollate.rollouts import Calls, Schema, parse, read

pa = pytest.importorskip("pyarrow")


@st.composite
def tables(draw):
    """Draw calls with any columns."""
    count = draw(st.integers(0, 5))
    ids = st.lists(st.integers(0, 99), max_size=4)
    rows = [draw(ids) for _ in range(count)]
    columns = {"prompts": [draw(ids) for _ in range(count)], "responses": rows}
    columns = {name: fc.ragged(column, "int32") for name, column in columns.items()}
    tokens = sum(map(len, rows))
    offsets = columns["responses"].offsets
    if draw(st.booleans()):
        columns["logprobs"] = fc.Ragged(np.arange(tokens, dtype=np.float32), offsets)
    if draw(st.booleans()):
        columns["loss_mask"] = fc.Ragged(np.arange(tokens, dtype=np.int32) % 2, offsets)
    for name, values in {
        "rewards": st.floats(-1, 1),
        "uids": st.integers(0, 3),
        "finish_reasons": st.sampled_from(["stop", None]),
        "versions": st.none() | st.just([{"version": "1", "start": 0, "end": 1}]),
    }.items():
        if draw(st.booleans()):
            columns[name] = [draw(values) for _ in range(count)]
    bad = [[draw(st.integers(0, 2)) for _ in range(4)] for _ in range(count)]
    are = draw(st.sampled_from([None, "raw"]))
    return Calls(**columns, logprobs_are=are, bad_logprobs=bad, skipped=draw(st.integers(0, 2)))


def same(one, other):
    """Return True for calls with the same columns."""
    if one._names() != other._names() or one.report != other.report:
        return False
    for name in one._names():
        left, right = getattr(one, name), getattr(other, name)
        is_ragged = isinstance(left, fc.Ragged)
        if not (left == right if is_ragged else list(left) == list(right)):
            return False
    return (one.logprobs_are, one.skipped) == (other.logprobs_are, other.skipped)


@given(tables())
def test_arrow_and_parquet_return_the_same(calls):
    back = Calls.from_arrow(calls.to_arrow())
    assert same(back, calls) or not len(calls)
    file = io.BytesIO()
    calls.to_parquet(file)
    read_back = Calls.from_parquet(io.BytesIO(file.getvalue()))
    assert same(read_back, calls) or not len(calls)
    assert read_back.responses.dtype == np.int32


def test_tables_of_others():
    with pytest.raises(ValueError, match=r"not one of Calls\.to_arrow; pass tables of other"):
        Calls.from_arrow(pa.table({"prompts": [[1]]}))
    with raises("the table has the columns x, which belong to no known source"):
        read(pa.table({"x": [1]}))


@given(tables(), st.data())
def test_select_and_concat_equal_lists(calls, data):
    index = data.draw(st.lists(st.integers(0, len(calls) - 1))) if len(calls) else []
    chosen = calls.select(index)
    for name in calls._names():
        column = getattr(calls, name)
        found = getattr(chosen, name)
        plain = column.to_list() if isinstance(column, fc.Ragged) else list(column)
        found = found.to_list() if isinstance(found, fc.Ragged) else list(found)
        assert found == [plain[one] for one in index]
    joined = Calls.concat([calls, chosen])
    assert len(joined) == len(calls) + len(index)
    assert (chosen.skipped, joined.skipped) == (calls.skipped, 2 * calls.skipped)
    again = joined.select(np.arange(len(calls), len(joined)))
    again.skipped = chosen.skipped
    assert same(again, chosen)


@pytest.mark.parametrize("ids", [None, ["a", "a", "b", "b"]])
def test_trajectories_stay_apart_without_their_last_call(ids):
    """Whatever calls are left out: the last ones of both, or the first of the second."""
    body = {
        "prompt_token_ids": [[1], [1, 2, 3], [1, 2, 9], [1, 2, 9, 4, 8]],
        "response_ids": [[2], [5], [4], [6]],
        "is_last_step": [False, True, False, True],
        "trajectory_ids": ids,
    }
    for aborted, prompts in {
        (1, 3): [[1], [1, 2, 9]],
        (1, 2): [[1], [1, 2, 9, 4, 8]],
        (0, 3): [[1, 2, 3], [1, 2, 9]],
    }.items():
        body["stop_reasons"] = ["abort" if call in aborted else "stop" for call in range(4)]
        calls = parse([json.dumps(body).encode()], unfinished="skip")
        merge = fc.merge_turns(**calls.turns)
        assert merge.trajectories.tolist() == [0, 1]
        assert calls.prompts.to_list() == prompts
    calls = parse([json.dumps(body).encode()], unfinished="keep")
    assert calls.select([0, 1]).is_last_step == [False, True]
    assert calls.select([0]).is_last_step == [False]  # its end may be in another part
    assert (
        Calls.concat([calls.select([0]), calls.select([1, 2, 3])]).is_last_step
        == (body["is_last_step"])
    )


def responses_to(*prompts):
    """Return calls of bodies without ids, each with two choices."""
    logprobs = {"content": [{"token_id": 5, "logprob": -0.5}]}
    choice = {"token_ids": [5], "finish_reason": "stop", "logprobs": logprobs}
    bodies = [{"prompt_token_ids": [one], "choices": [choice, choice]} for one in prompts]
    return fc.rollouts.parse([json.dumps(body).encode() for body in bodies])


def test_prompts_of_separate_reads_are_separate_groups():
    """Wherever their rows meet, and whatever seeds their processes have in common."""
    parts = []
    for prompts in ((1, 2), (3,), (4,)):
        random.seed(0)
        parts.append(responses_to(*prompts))
    parts[-1] = parts[-1].select([1])
    groups = [0, 0, 1, 1, 2, 2, 3]
    assert group_numbers("uids", Calls.concat(parts).uids).tolist() == groups
    stored = [Calls.from_arrow(part.to_arrow()) for part in parts]
    assert Calls.concat(stored).uids == Calls.concat(parts).uids
    builder = fc.BatchBuilder(pad_token_id=0)
    for part in parts:
        builder.extend(part)
    assert group_numbers("uids", builder.finish().uids).tolist() == groups
    blocks = join([store(**part.batch)[0] for part in parts], ["a", "b", "c"])
    assert group_numbers("uids", blocks.names["uids"]).tolist() == groups
    for part in parts:
        part.columns["uids"] = ["task"] * len(part)
    assert Calls.concat(parts).uids == ["task"] * 7


@pytest.mark.parametrize("logprob", ["-0.5", "null"])
def test_masks_are_there_whatever_is_bad(logprob):
    """Else calls that are read one after another could not be joined."""
    body = b'{"prompt_ids": [1], "response_ids": [2, 3], "logprobs": [-1, %s]}' % logprob.encode()
    found = parse([body], bad_logprobs="mask")
    assert found.loss_mask.to_list() == [[1, int(logprob != "null")]]
    assert read([json.loads(body)], bad_logprobs="mask").loss_mask == found.loss_mask
    assert parse([body], bad_logprobs="keep").loss_mask is None


def test_routes_survive_arrow():
    routes = [np.arange(12, dtype=np.uint8).reshape(3, 2, 2), np.ones((1, 2, 2), np.uint8)]
    calls = Calls([[1], [2]], [[3], [4]], routed_experts=routes)
    back = Calls.from_arrow(calls.to_arrow())
    for found, expected in zip(back.routed_experts, routes, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


def test_columns_that_are_no_argument_become_fields():
    calls = Calls([[1], [2]], [[3, 4], [5]], rewards=[1.0, 0.0], uids=["a", "a"],
                  advantages=[0.5, -0.5], note=["x", None], versions=[[1], None])  # fmt: skip
    batch = fc.build_batch(**calls.batch, pad_token_id=0, array_type="numpy")
    assert batch.note == ["x", None]
    assert batch.versions == [[1], None]
    assert batch.advantages.tolist() == [[0.5, 0.5], [0.0, -0.5]]
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    builder.extend(calls)
    assert builder.finish().note == ["x", None]
    assert "fields" not in calls.turns


def test_calls_are_shown():
    calls = Calls([[1], [2], [3], [4]], [[5, 6], [7], [8], [9]], loss_mask=[[1, 0], [1], [1], [1]],
                  logprobs=[[-0.5, -1], [-2], [-3], [-4]])  # fmt: skip
    text = calls.show().text(60).replace("\xa0", " ")
    assert text.count("trained» ‹masked›") == 1
    assert "call 0, prompt 1, response 2, 1 trained\n  1 «5» ‹6›" in text
    assert "call 2" in text
    assert "call 3" not in text
    chosen = calls.show([3, 0], fields="logprobs").text(60).replace("\xa0", " ")
    assert chosen.index("call 3") < chosen.index("call 0")
    assert "-4" in chosen
    assert "<div" in calls.show()._repr_html_()
    masked = calls.show(np.array([False, True, False, False])).text(60).replace("\xa0", " ")
    assert "call 1, prompt 1" in masked
    with pytest.raises(ValueError, match="the batch is empty"):
        calls.select([]).show()


@pytest.mark.parametrize("kind", [list, np.array])
def test_one_reward_per_call_is_shown_with_the_call(kind):
    """Zeros beneath all tokens but the last would look like rewards of tokens."""
    calls = Calls([[1], [2]], [[3, 4], []], rewards=kind([0.5, float("nan")]))
    lines = calls.show(fields="rewards").text(60).replace("\xa0", " ").splitlines()
    assert lines[2:] == [
        "call 0, prompt 1, response 2, 2 trained, rewards 0.5",
        "  1 «3 4»",
        "",
        "call 1, prompt 1, response 0, 0 trained, rewards nan",
        "  2",
    ]
    of_tokens = Calls([[1]], [[3, 4]], rewards=[[0.5, 1.0]]).show(fields="rewards").text(60)
    assert of_tokens.splitlines()[-1].split() == ["rewards", "0.5", "1"]


def test_tables_of_several_rows():
    """Bodies of several calls, chunks, slices and nulls."""
    rows = [
        {"task": "a", "steps": [{"p": [1], "r": [2], "l": [-1.0]}, {"p": [1, 2, 3], "r": [4, 5]}]},
        {"task": "b", "steps": []},
        {"task": "c", "steps": [{"p": [7], "r": [8], "l": None}]},
    ]
    schema = Schema("steps[]?", prompts=".p", responses=".r", logprobs=".l", uids="task")
    table = pa.Table.from_pylist(rows)
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    for one in (table, chunked, pa.concat_tables([table, table]).slice(3)):
        calls = read(one, schema, bad_logprobs="mask")
        assert calls.prompts.to_list() == [[1], [1, 2, 3], [7]]
        assert calls.responses.to_list() == [[2], [4, 5], [8]]
        assert calls.loss_mask.to_list() == [[1], [0, 0], [0]]
        assert calls.uids == ["a", "a", "c"]
    short = pa.Table.from_pylist([rows[0] | {"steps": rows[0]["steps"][:1]}, *rows[1:]])
    with pytest.raises(ValueError, match="row 2: call 0 has no log-probabilities, but other calls"):
        read(short, schema)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("p", [[1, None]], r"row 0: prompts\[0\]\[1\] is None \(NoneType\); pass an integer"),
        ("p", [[3_000_000_000]], r"row 0: prompts\[0\]\[0\] is 3000000000; token ids are"),
        ("p", [[1.0]], r"row 0: prompts\[0\] has dtype float64, but"),
        ("p", [[True]], r"row 0: prompts\[0\]\[0\] is a bool; pass token ids, not a mask"),
        ("p", ["a"], r"row 0: prompts\[0\] is 'a' \(str\); tokenize it first, and pass the ids"),
        ("r", [[-1]], r"row 0: responses\[0\]\[0\] is -1; token ids are integers from 0 to"),
    ],
)
def test_bad_tables(column, values, message):
    table = pa.table({"p": [[1]], "r": [[2]]} | {column: values})
    with pytest.raises((TypeError, ValueError), match=message):
        read(table, Schema(prompts="p", responses="r"))


def test_encoded_columns_are_read_as_plain_ones():
    ids = pa.array([5, 6, 5]).dictionary_encode()
    rewards = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([0.5]))
    table = {"responses": pa.ListArray.from_arrays([0, 2, 3], ids), "prompts": [[1], [2]]}
    calls = read(pa.table(table | {"rewards": rewards}))
    assert calls.responses.to_list() == [[5, 6], [5]]
    assert calls.rewards == [0.5, 0.5]
    rewards = pa.array([0.5, 1.5]).cast(pa.decimal128(4, 2))
    assert read(pa.table(table | {"rewards": rewards})).rewards == [0.5, 1.5]


@pytest.mark.parametrize("reader", [parse, read])
def test_paths(reader, tmp_path):
    for path in (tmp_path / "r.jsonl", str(tmp_path), [tmp_path]):
        with pytest.raises(TypeError, match=r"read_bytes\(\) of a file|read_table\(path\)"):
            reader(path)


def test_a_misspelled_column_of_a_schema():
    with pytest.raises(TypeError, match="no column 'reward'; did you mean 'rewards'"):
        Schema(prompts="p", responses="r", reward="reward")
    assert Schema(prompts="p", responses="r", judge="score").columns["judge"] == ("score",)


def test_a_schema_without_responses():
    with pytest.raises(ValueError, match="schema has prompts, out, but no tokens of responses"):
        parse(b'{"p": [1], "r": [2]}', Schema(prompts="p", out="r"))


def test_other_tables_are_read_as_arrow():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"prompts": [[1]], "responses": [[2, 3]], "reward": [0.5]})
    calls = read(frame)
    assert calls.responses.to_list() == [[2, 3]]
    assert calls.rewards == [0.5]
    assert parse(b'{"prompts": [1], "responses": [2, 3]}').responses == calls.responses


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda calls: pickle.loads(pickle.dumps(calls))]
)
def test_calls_are_copied_and_pickled(again):
    calls = fc.rollouts.Calls([[1, 2]], [[3]], logprobs=[[-0.5]], uids=["a"])
    found = again(calls)
    assert found.batch["uids"] == ["a"]
    assert found.logprobs.to_list() == [[-0.5]]
    assert found.responses.to_list() == [[3]]


def test_rows_of_a_table_keep_their_counts():
    calls = Calls([[1], [2]], [[3], [4]], bad_logprobs=[[0, 0, 0, 0], [1, 0, 0, 2]])
    table = calls.to_arrow()
    assert Calls.from_arrow(table.take([1, 0])).bad_logprobs.tolist() == [[1, 0, 0, 2], [0] * 4]
    assert Calls.from_arrow(table.slice(1)).bad_logprobs.tolist() == [[1, 0, 0, 2]]
    assert len(Calls.from_arrow(table.slice(0, 0))) == 0


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([[3, 4], [5]], [[3, 4], [-1, 5]]),
        ([(3, 4), None], [[3, 4], [-1, -1]]),
        ([np.array([3, 4]), np.array([5], np.int32)], [[3, 4], [-1, 5]]),
        ([7, None], [[7, 7], [-1, -1]]),
        ([[{"version": "2", "start": 1, "end": 2}], []], [[-1, 2], [-1, -1]]),
    ],
)
def test_versions_are_read_as_weight_versions(versions, expected):
    """Of tokens, of calls, or spans: in one line."""
    calls = Calls([[1], [2]], [[3, 4], [5]], versions=versions)
    batch = fc.build_batch(**calls.batch, pad_token_id=0, array_type="numpy")
    assert batch.versions.tolist() == expected


@pytest.mark.parametrize("versions", [["a", "b"], [[1], [2]], [[True, True], [1]], [["3", 4], [5]]])
def test_other_versions_stay_objects(versions):
    calls = Calls([[1], [2]], [[3, 4], [5]], versions=versions)
    assert fc.build_batch(**calls.batch, pad_token_id=0, array_type="numpy").versions == versions
