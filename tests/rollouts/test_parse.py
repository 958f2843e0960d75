"""Calls from JSON, compared with json.loads and plain loops."""

import json
import math
from decimal import Decimal

import numpy as np
import pytest
from helpers.engine_bodies import (
    BAD,
    IDS,
    LOGPROBS,
    WIRES,
    calls_of,
    dumped,
    flat,
    rounded,
    sglang_generate,
)
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.rollouts import Calls, Schema, parse


@pytest.mark.parametrize("wire", WIRES)
@given(st.data())
def test_bodies_equal_plain_loops(wire, data):
    prompts, bodies, expected = [], [], []
    for _ in range(data.draw(st.integers(1, 3))):
        prompt = data.draw(st.lists(IDS, max_size=4))
        calls = data.draw(calls_of(LOGPROBS | BAD))
        prompts.append(prompt)
        bodies.append(dumped(data.draw, wire(data.draw, prompt, calls)))
        expected += [(prompt, *call) for call in calls]
    given_prompts = {"prompts": fc.Ragged(*flat(prompts))} if wire is sglang_generate else {}
    found = parse(bodies, bad_logprobs="keep", **given_prompts)
    assert len(found) == len(expected)
    have = any(logprobs is not None for _, _, logprobs in expected)
    assert (found.logprobs is not None) == have
    for index, (prompt, ids, logprobs) in enumerate(expected):
        assert found.prompts[index].tolist() == prompt
        assert found.responses[index].tolist() == ids
        if have:
            wanted = rounded([None] * len(ids) if logprobs is None else logprobs)
            np.testing.assert_array_equal(
                found.logprobs[index].view(np.int32) & 0x7FC0_0000,
                wanted.view(np.int32) & 0x7FC0_0000,
            )
            np.testing.assert_array_equal(found.logprobs[index], wanted)
    assert found.responses.dtype == np.int32
    assert found.prompts.dtype == np.int32


MIDWAY = st.builds(
    lambda one, more: format(Decimal(float(one) + float(np.spacing(one)) / 2), "f") + more,
    st.floats(-30, -(2.0**-20), width=32).map(np.float32),
    st.sampled_from(["", "0" * 20, "0" * 20 + "1"]),
)
"""Numbers as far from two float32, or hardly farther from one of them."""

WRITTEN = (
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.decimals(allow_nan=False, allow_infinity=False).map(lambda one: format(one, "f"))
    | st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
    | MIDWAY
)


@given(st.lists(WRITTEN))
def test_numbers_are_rounded_twice(texts):
    """As float64 first, then as float32, as json.loads and NumPy do."""
    body = f'{{"ids": {[*range(len(texts))]}, "values": [{", ".join(texts)}]}}'
    items = ", ".join(f"[{text},{one}]" for one, text in enumerate(texts))
    shaped = f'{{"output_ids": {[*range(len(texts))]}, "prompt_token_ids": [1], "meta_info": '
    shaped += f'{{"output_token_logprobs": [{items}]}}}}'
    options = {"prompts": [[1]], "bad_logprobs": "keep"}
    wanted = rounded(map(float, texts))
    for found in (
        parse([body.encode()], Schema(responses="ids", logprobs="values"), **options),
        parse([shaped.encode()], **options),
    ):
        assert found.logprobs[0].tobytes() == wanted.tobytes()


def body_of(ids=(7, 8), logprobs=(-0.5, -0.25), prompt=(5,), **more):
    """Return a body of vLLM's generate endpoint."""
    content = [
        {"token_id": one, "logprob": value} for one, value in zip(ids, logprobs, strict=False)
    ]
    choice = {
        "token_ids": list(ids),
        "logprobs": {"content": content},
        "finish_reason": "stop",
    } | more
    return {"choices": [choice], "prompt_token_ids": list(prompt)}


def parsed(*bodies, **options):
    """Parse bodies given as objects."""
    return parse([json.dumps(body).encode() for body in bodies], **options)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf, None, -9999.0, -1e5])
def test_log_probabilities_that_are_none(value):
    body = body_of(logprobs=(-0.5, value))
    with raises(r"bodies\[0\]: call 0 has the invalid log-probability .* at response token 1"):
        parsed(body)
    masked = parsed(body, body_of(), bad_logprobs="mask")
    assert masked.logprobs.to_list() == [[-0.5, 0.0], [-0.5, -0.25]]
    assert masked.loss_mask.to_list() == [[1, 0], [1, 1]]
    assert masked.bad_logprobs.sum(axis=1).tolist() == [1, 0]
    kept = parsed(body, bad_logprobs="keep")
    assert kept.loss_mask is None
    np.testing.assert_array_equal(kept.logprobs[0], rounded([-0.5, value]))


def test_missing_log_probabilities():
    short, none = body_of(logprobs=(-0.5,)), body_of(logprobs=()) | {}
    none["choices"][0]["logprobs"] = None
    with pytest.raises(ValueError, match="only 1 log-probabilities for 2 response tokens; "):
        parsed(short)
    with raises(r"bodies\[1\]: call 0 has no log-probabilities, but other"):
        parsed(body_of(), none)
    found = parsed(short, none, body_of(), bad_logprobs="mask")
    assert found.loss_mask.to_list() == [[1, 0], [0, 0], [1, 1]]
    assert found.logprobs.to_list() == [[-0.5, 0.0], [0.0, 0.0], [-0.5, -0.25]]
    assert parsed(none, none).logprobs is None
    with pytest.raises(ValueError, match="has 4 log-probabilities, but its response has 2 tokens"):
        parsed(
            body_of(ids=(7, 8), logprobs=(-1, -1))
            | {"choices": [{"token_ids": [7, 8], "logprobs": {"token_logprobs": [-1, -1, -1, -1]}}]}
        )


def test_counts_of_bad_log_probabilities():
    """They are counted by kind and call, and survive selections."""
    values = (math.nan, None, -math.inf, -9999.0, -1.0)
    bodies = [
        body_of(ids=range(6), logprobs=values),
        body_of(),
        body_of(finish_reason="abort"),
        body_of(ids=(3,), logprobs=()) | {},
    ]
    bodies[3]["choices"][0]["logprobs"] = None
    calls = parsed(*bodies, bad_logprobs="mask", unfinished="skip")
    assert calls.bad_logprobs.tolist() == [[2, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert calls.report == {
        "calls": 3,
        "prompt_tokens": 3,
        "response_tokens": 9,
        "unfinished": 1,
        "logprobs_nan": 2,
        "logprobs_infinite": 1,
        "logprobs_placeholder": 1,
        "logprobs_missing": 2,
    }
    assert calls.select([2, 1]).bad_logprobs.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert Calls.concat([calls, calls]).report["logprobs_missing"] == 4
    assert "6 log-probabilities without a value" in repr(calls)
    kept = parsed(*bodies, bad_logprobs="keep", unfinished="keep")
    assert kept.report["unfinished"] == 1
    assert (kept.bad_logprobs[[0, 1, 3]] == calls.bad_logprobs).all()


def test_errors_of_servers():
    for body in ({"error": {"message": "no such model"}}, {"detail": "Not Found"}):
        with pytest.raises(ValueError, match="refused the request: pass bodies of successful"):
            parsed(body_of(), body)


def test_log_probabilities_are():
    calls = parsed(body_of(), logprobs_are="raw")
    assert (calls.logprobs_are, calls.select([0]).logprobs_are) == ("raw", "raw")
    assert Calls.concat([calls, calls]).logprobs_are == "raw"
    assert Calls.concat([calls, parsed(body_of())]).logprobs_are is None
    with pytest.raises(ValueError, match="logprobs_are is 'cooked'"):
        parsed(body_of(), logprobs_are="cooked")


@pytest.mark.parametrize("reason", ["abort", "cancelled", "timeout", None])
@pytest.mark.parametrize("sglang", [False, True])
def test_unfinished_calls(reason, sglang):
    if sglang:
        bodies = [
            {"output_ids": [7], "meta_info": {"finish_reason": {"type": one}}}
            for one in (reason, "length")
        ]
        options = {"prompts": [[5], [6]]}
    else:
        bodies, options = (
            [body_of(finish_reason=reason), body_of(ids=(9,), finish_reason="length")],
            {},
        )
    with raises(r"call 0 did not finish: .*; pass unfinished='skip' or 'keep'"):
        parsed(*bodies, **options)
    assert len(parsed(*bodies, unfinished="keep", **options)) == 2
    assert parsed(*bodies, unfinished="skip", **options).finish_reasons == ["length"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "byte 1: EOF while parsing an object; it is cut off: pass the whole body"),
        (
            b'{"choices": [{"token_ids": [1, 2',
            "inside an array; it is cut off: pass the whole body",
        ),
        (
            b'{"choices": [{"token_ids": [1, 2,]}]}',
            "byte 33: .*; correct it, or pass a schema",
        ),
        (b'{"choices": [{"token_ids": [1 2]}]}', "expected ',' or '\\]'"),
        (b'{"choices": [{"token_ids": [01]}]}', "byte 2"),
        (b'{"choices": [{"token_ids": [1.0]}]}', "byte 28"),
        (b'{"choices": [{"token_ids": [-1]}]}', "-1 is not a token id"),
        (b'{"choices": [{"token_ids": [2147483648]}]}', "2147483648 is not a token id"),
        (b'{"choices": [{"token_ids": [99999999999999999999999]}]}', "99 is not a token id"),
        (b'{"choices": [{"token_ids": [1, 3.5]}]}', "byte 31: 3.5 is not a token id"),
        (b'{"choices": [{"token_ids": ["1"]}]}', "byte 28"),
        (b'{"choices": [{"token_ids": 1}]}', "byte 27: expected an array; correct it, or pass"),
        (b'{"choices": [{"token_ids": {"a": [1]}}]}', "byte 27: expected an array"),
        (b'{"choices": [{"token_ids": [1], "token_ids": [2]}]}', "occurs twice"),
        (b'{"choices": [{"text": "no ids"}]}', "no token ids of a response"),
        (b'{"object": "error", "message": "no"}', "no token ids of a response"),
        (b"null", "no token ids"),
        (
            b'{"choices": [{"token_ids": [1], "logprobs":'
            b' {"content": [{"token_id": 2, "logprob": -1}]}}]}',
            "token 0 is 2, but 1 in the response",
        ),
    ],
)
def test_bad_bodies(body, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse([b'{"choices": [], "output_ids": [3]}', body], prompts=[[1], [1]])
    assert str(caught.value).startswith("bodies[1]")
    assert "\n" not in str(caught.value)


def test_arguments():
    for bodies, message in [
        ("{}", "bodies is '{}'"),
        (3, "bodies is 3"),
        ([b"{}", "x"], r"bodies\[1\] is 'x'"),
    ]:
        with pytest.raises(TypeError, match=message):
            parse(bodies)
    with pytest.raises(ValueError, match="bad_logprobs is 'drop'"):
        parse([], bad_logprobs="drop")
    with pytest.raises(ValueError, match="has no prompt ids; pass prompts="):
        parse([b'{"output_ids": [1]}'])
    with pytest.raises(ValueError, match="prompts has 2 rows, but there are 1 body"):
        parse([b'{"output_ids": [1]}'], prompts=[[1], [2]])
    without = json.dumps({"choices": [], "output_ids": [2]}).encode()
    assert parse([b"[]", without, b"[]"], prompts=[[1], [3], [1]]).prompts.to_list() == [[3]]
    with pytest.raises(
        ValueError, match="prompts has 2 rows, but there are 3 bodies; pass one row for each"
    ):
        parse([b"[]", without, b"[]"], prompts=[[1], [3]])
    with pytest.raises(ValueError, match=r"prompts\[0\] differs from the prompt of its body"):
        parsed(body_of(), prompts=[[6]])
    assert len(parse([])) == 0


def test_lines_and_lists_are_alike():
    bodies = [json.dumps(body_of(ids=(one, one + 1))).encode() for one in range(4)]
    lines = parse(b"\n\n".join(bodies) + b"\n")
    listed = parse(bodies)
    for one, other in (
        (lines.responses, listed.responses),
        (lines.prompts, listed.prompts),
        (lines.logprobs, listed.logprobs),
    ):
        assert one == other
    with pytest.raises(ValueError, match="line 3, byte 1"):
        parse(b"\n\n{")
    with pytest.raises(ValueError, match="line 2, byte 0"):  # a file that was cut
        parse(bodies[0] + b"\n" + b"\0" * 9)
    for marked in (b"\xef\xbb\xbf" + b"\r\n".join(bodies) + b"\r\n", b"\xef\xbb\xbf" + bodies[0]):
        assert (
            parse(marked).responses.to_list() == listed.responses.to_list()[: marked.count(b'{"ch')]
        )
    assert parse(memoryview(bodies[0])).responses == parse([bodies[0]]).responses


def test_schema_of_a_trace():
    trace = Schema(
        "steps[]",
        prompts="steps[].prompt",
        responses="steps[].out.ids",
        rewards="reward",
        loss_mask="steps[].mask",
        uids="task",
        note=("steps[].note", "note"),
    )
    line = {
        "task": "a",
        "reward": 1.5,
        "note": {"x": 1},
        "steps": [
            {"prompt": [1], "out": {"ids": [2, 3]}, "mask": [1, 0]},
            {"prompt": [1, 2], "out": {"ids": [4]}, "mask": [True], "note": "own"},
        ],
    }
    calls = parsed(line, schema=trace)
    assert (calls.uids, calls.rewards, calls.note) == (["a", "a"], [1.5, 1.5], [{"x": 1}, "own"])
    assert calls.loss_mask.to_list() == [[1, 0], [1]]
    batch = fc.build_batch(**calls.batch, pad_token_id=0, array_type="numpy")
    assert batch.loss_mask.tolist() == [[1, 0], [0, 1]]
    assert repr(trace).startswith("Schema(calls='steps[]', prompts='steps[].prompt'")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"responses": "a..b"}, "'a..b' is not a path"),
        ({"responses": "a[x]"}, "not a path"),
        ({"responses": ""}, "not a path"),
        ({"responses": "a", "logprobs": "a"}, "two columns have the path 'a'"),
        ({"responses": "a", "logprobs": "a.b"}, "continues"),
        ({"responses": "a", "uids": "b[].c"}, "several values for a call"),
    ],
)
def test_bad_schemas(given, message):
    with pytest.raises(ValueError, match=message):
        Schema(**given)
    with pytest.raises(TypeError, match="responses is 3; pass a path"):
        Schema(responses=3)


def test_calls_that_cannot_be():
    calls = parsed(body_of(), body_of(ids=(9,), logprobs=(-1.0,)))
    assert calls.select(np.array([True, False])).responses.to_list() == [[7, 8]]
    with pytest.raises(ValueError, match="parts is empty"):
        Calls.concat([])
    with pytest.raises(ValueError, match=r"parts\[1\] has the columns prompts, responses, but"):
        Calls.concat([calls, Calls([[1]], [[2]])])
    with pytest.raises(AttributeError, match="have no column 'nothing'; they have prompts"):
        _ = calls.nothing
    assert "logprobs, finish_reasons, uids" in repr(calls)
    for wrong in ({"rewards": [1.0]}, {"logprobs": [[1.0]]}, {"prompts": [[1]]}, {"uids": "abc"}):
        given = {"prompts": [[1], [2]], "responses": [[3], [4, 5]]} | wrong
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Calls(**given)


def test_an_item_without_a_log_probability_keeps_its_place():
    content = [{"logprob": -0.5}, {"token": "x"}, {"logprob": -0.25}, None, {"logprob": -1}]
    choice = {"index": 0, "token_ids": [1, 2, 3, 4, 5], "logprobs": {"content": content}}
    body = json.dumps({"prompt_token_ids": [7, 8], "choices": [choice]}).encode()
    calls = fc.rollouts.parse([body], bad_logprobs="mask")
    assert calls.logprobs.to_list() == [[-0.5, 0, -0.25, 0, -1]]
    assert calls.loss_mask.to_list() == [[1, 0, 1, 0, 1]]
    with pytest.raises(ValueError, match="NaN at response token 1"):
        fc.rollouts.parse([body])


def test_events_without_log_probabilities_keep_their_place():
    def event(token, logprob):
        content = None if logprob is None else {"content": [{"logprob": logprob}]}
        choice = {"index": 0, "token_ids": [token], "logprobs": content}
        return b"data: " + json.dumps({"prompt_token_ids": [7], "choices": [choice]}).encode()

    events = [event(1, None), event(2, -0.5), event(3, None), event(4, -1), b"data: [DONE]", b""]
    calls = fc.rollouts.parse([b"\n\n".join(events)], bad_logprobs="mask", unfinished="keep")
    assert calls.logprobs.to_list() == [[0, -0.5, 0, -1]]
    assert calls.loss_mask.to_list() == [[0, 1, 0, 1]]


def test_ids_in_texts_have_no_zero_in_front():
    content = {"tokens": ["token_id:07"], "token_logprobs": [-0.5]}
    body = {"choices": [{"token_ids": [8], "logprobs": content, "finish_reason": "stop"}]}
    assert parse([json.dumps(body).encode()], prompts=[[1]]).responses.to_list() == [[8]]


def test_an_empty_array_of_an_item_lacks_nothing():
    schema = Schema(prompts="p", responses="items[].ids", logprobs="items[].l")
    items = [{"ids": [], "l": []}, {"ids": [2, 3], "l": [-0.5, -0.25]}]
    calls = parse([json.dumps({"p": [1], "items": items}).encode()], schema)
    assert calls.logprobs.to_list() == [[-0.5, -0.25]]
