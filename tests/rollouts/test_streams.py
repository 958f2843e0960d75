"""Streams of server-sent events, compared with whole responses."""

import json

import numpy as np
import pytest
from helpers.engine_bodies import IDS, LOGPROBS, calls_of
from hypothesis import given
from hypothesis import strategies as st

from fastcollate.plan.grouping import group_numbers
from fastcollate.rollouts import parse


def parts_of(draw, count):
    """Draw the ends of parts of a sequence."""
    ends = draw(st.lists(st.integers(0, count), max_size=3))
    return [*zip([0, *(ends := sorted(ends))], [*ends, count], strict=True)]


def vllm(draw, prompt, calls, shape):
    """Events of vLLM: deltas by choice in any order, prompts first, versions last."""
    events, last = [], []
    for index, (ids, logprobs) in enumerate(calls):
        one = {"index": index, "finish_reason": None}
        first = {
            "choices": [one | ({"prompt_token_ids": prompt} if shape == "completions" else {})]
        }
        parts = [first if shape == "completions" else first | {"prompt_token_ids": prompt}]
        for start, end in parts_of(draw, len(ids)):
            own = None if logprobs is None else logprobs[start:end]
            if shape == "completions":
                content = {"token_logprobs": own, "tokens": ["a"] * (end - start)}
            elif shape == "chat":
                content = {"content": [{"token": "a", "logprob": value} for value in own or ()]}
            else:
                pairs = zip(ids[start:end], own or (), strict=False)
                content = {"content": [{"token_id": id_, "logprob": value} for id_, value in pairs]}
            content = {"logprobs": None if own is None else content}
            masks = {"sampling_mask": [[id_] for id_ in ids[start:end]]}
            parts.append({"choices": [one | {"token_ids": ids[start:end]} | content | masks]})
        spans = [{"version": "1", "start": 0, "end": len(ids)}]
        parts.append({"choices": [one | {"finish_reason": "stop", "weight_versions": spans}]})
        last.append(parts)
    while any(last):  # events of the choices, each in its order
        parts = draw(st.sampled_from([parts for parts in last if parts]))
        events.append({"id": "r", **parts.pop(0)})
    return [*events, {"choices": [], "usage": {}}]


def sglang(draw, prompt, calls, is_incremental):
    """Events of SGLang's generate endpoint: all tokens so far, or the next ones."""
    parts = []
    for index, (ids, logprobs) in enumerate(calls):
        of_call, reason = [], None
        ends = parts_of(draw, len(ids))
        for number, (start, end) in enumerate(ends):
            start = start if is_incremental else 0
            if number == len(ends) - 1:
                reason = {"type": "stop"}
            meta = {"id": "s", "finish_reason": reason, "completion_tokens": end}
            if logprobs is not None:
                rows = zip(logprobs[start:end], ids[start:end], ["a"] * (end - start), strict=True)
                meta["output_token_logprobs"] = [*map(list, rows)]
            meta["output_token_sampling_mask"] = [[id_] for id_ in ids[start:end]]
            meta["weight_versions"] = [{"version": "1", "start": 0, "end": end}]
            event = {"text": "a", "output_ids": ids[start:end], "meta_info": meta, "index": index}
            of_call.append(event | {"prompt_token_ids": prompt})
        parts.append(of_call)
    events = []
    while any(parts):
        events.append(draw(st.sampled_from([one for one in parts if one])).pop(0))
    return events


def sglang_chat(draw, prompt, calls, is_framed):
    """Events of SGLang's chat endpoint: log-probabilities first, ids of all choices last."""
    events = []
    for index, (ids, logprobs) in enumerate(calls):
        for start, end in parts_of(draw, len(ids)):
            content = [{"token": "a", "logprob": value} for value in (logprobs or ())[start:end]]
            content = None if logprobs is None else {"content": content}
            choice = {"index": index, "delta": {"content": "a"}, "logprobs": content}
            events.append({"choices": [choice | {"finish_reason": None}]})
        events.append({"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]})
    extension = {"input_ids": prompt, "output_ids": [ids for ids, _ in calls]}
    name = {"event": "sglext_ids"} if is_framed else {}
    return [*events, {"choices": [], "sglext": extension} | name]


SHAPES = {
    "vLLM generate": (vllm, "generate"),
    "vLLM chat": (vllm, "chat"),
    "vLLM completions": (vllm, "completions"),
    "SGLang": (sglang, False),
    "SGLang, incremental": (sglang, True),
    "SGLang chat": (sglang_chat, 0),
    "SGLang chat, framed": (sglang_chat, 1),
}


def sent(events, end="\n\n", is_done=True):
    """Return the bytes of events."""
    parts = []
    for event in events:
        name = f"event: {event.pop('event')}{end[: len(end) // 2]}" if "event" in event else ""
        parts.append(f"{name}data: {json.dumps(event)}{end}")
    return "".join([*parts, f"data: [DONE]{end}" if is_done else ""]).encode()


LINES = st.sampled_from(["", ": ping", "id: 3", "retry: 10", ":"])


def between_events(draw, stream, end):
    """Put lines that are no data between events, end these in other ways, and split their data."""
    line_end = end[: len(end) // 2]
    parts = []
    for event in stream.split(end):
        pieces = event.split(", ")
        for at in sorted(draw(st.sets(st.integers(1, len(pieces)), max_size=2)) - {len(pieces)}):
            pieces[at] = f"{line_end}data: {pieces[at]}"
        parts.append(", ".join(pieces) + draw(st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"])))
        if line := draw(LINES):
            parts.append(line + end)
    return "".join(parts)


@pytest.mark.parametrize("shape", SHAPES)
@given(st.data())
def test_streams_equal_responses(shape, data):
    prompt = data.draw(st.lists(IDS, max_size=3))
    calls = data.draw(calls_of(LOGPROBS))
    make, option = SHAPES[shape]
    events = make(data.draw, prompt, calls, option)
    end = data.draw(st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]))
    alive = [*data.draw(st.lists(st.sampled_from([": ping", ":", ": data: {}"]), max_size=3))]
    stream = "".join(f"{line}{end}" for line in alive).encode() + sent(events, end)
    stream = between_events(data.draw, stream.decode(), end).encode()
    stream = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + stream
    choices = [
        {
            "token_ids": ids,
            "finish_reason": "stop",
            "logprobs": None
            if logprobs is None
            else {"content": [{"token": "a", "logprob": value} for value in logprobs]},
        }
        for ids, logprobs in calls
    ]
    body = json.dumps({"prompt_token_ids": prompt, "choices": choices}).encode()
    options = {"bad_logprobs": "keep"}
    whole = parse([body], **options)
    for found in (parse([stream], **options), parse(stream, **options)):
        assert found.prompts == whole.prompts
        assert found.responses == whole.responses
        assert found.logprobs == whole.logprobs or shape.startswith("SGLang chat")
        if whole.responses.values.size:
            assert found.logprobs == whole.logprobs
        assert found.finish_reasons == whole.finish_reasons
        assert len(set(found.uids)) == min(len(calls), 1)
        if not shape.startswith("SGLang chat"):
            assert found.support == [[[id_] for id_ in ids] for ids, _ in calls]
            spans = [[{"version": "1", "start": 0, "end": len(ids)}] for ids, _ in calls]
            assert found.versions == spans


def chunk(ids, total, reason=None):
    """Return an event of SGLang."""
    meta = {"completion_tokens": total, "finish_reason": reason and {"type": reason}}
    return {"output_ids": ids, "meta_info": meta}


def test_an_abort_sends_the_last_token_again():
    events = [chunk([5, 6], 2), chunk([7, 8, 8], 4, "abort")]
    options = {"prompts": [[1]], "unfinished": "keep"}
    assert parse([sent(events)], **options).responses.to_list() == [[5, 6, 7, 8]]
    assert parse(
        [sent([chunk([5], 1), chunk([5], 1, "abort")])], **options
    ).responses.to_list() == [[5]]
    for wrong in ([chunk([5, 6], 2), chunk([7, 9, 8], 4)], [chunk([5, 6], 2), chunk([7], 4)]):
        with pytest.raises(ValueError, match=r"call 0 has 2 tokens, and [13] more .* but 4 then"):
            parse([sent(wrong)], **options)


def test_streams_that_are_cut_did_not_finish():
    events = [chunk([5], 1), chunk([5, 6], 2, "stop")]
    whole = sent(events)
    assert parse([whole], prompts=[[1]]).responses.to_list() == [[5, 6]]
    assert parse([whole.strip()], prompts=[[1]]).responses.to_list() == [[5, 6]]
    for end in range(whole.index(b"data: ", 3) + 1, len(whole) - 4):
        cut = whole[:end]
        with pytest.raises(ValueError, match="call 0 did not finish"):
            parse([cut], prompts=[[1]])
        kept = parse([cut], prompts=[[1]], unfinished="keep")
        assert kept.responses.to_list() in ([[5]], [[5, 6]])
        assert kept.report["unfinished"] == 1
        assert len(parse([cut], prompts=[[1]], unfinished="skip")) == 0


def test_streams_that_end_with_an_error_did_not_finish():
    events = [chunk([5], 1), {"error": {"message": "the engine died"}}]
    with pytest.raises(ValueError, match="call 0 did not finish: finish_reason is None"):
        parse([sent(events)], prompts=[[1]])


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"data: [DONE]\n\n", "no token ids of a response in 'data: \\[DONE\\]"),
        (b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n', 'no token ids .*"no"'),
        (b'data: {"output_ids": [1]\n\n', "byte 25"),
        (b'data: {"output_ids": [1]}\ndata: [DONE]\ndata: {}\n', "byte 39: the stream goes on"),
        (b'data: {"choices": [{"index": -1}]}\n', "-1 is not a length or index"),
        (b'data: {"choices": [{"index": "a"}]}\n', "byte 29"),
        (b'data: {"choices": [{"index": 0, "sampling_mask": 3}]}\n', "expected an array"),
    ],
)
def test_bad_streams(stream, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse([b'{"choices": [], "output_ids": [3]}', stream], prompts=[[1], [1]])
    assert str(caught.value).startswith("bodies[1]")
    assert "\n" not in str(caught.value)


def test_prompts_that_differ_between_events():
    events = [chunk([5], 1) | {"prompt_token_ids": [1]}, chunk([5, 6], 2, "stop")]
    assert parse([sent(events)]).prompts.to_list() == [[1]]
    events[1]["prompt_token_ids"] = [2]
    with pytest.raises(ValueError, match=r"bodies\[0\]: events of one call have different prompts"):
        parse([sent(events)])
    shared = [{"prompt_token_ids": [one], "choices": [{"token_ids": [7]}]} for one in (1, 2)]
    with pytest.raises(ValueError, match=r"bodies\[0\]: events of one call have different prompts"):
        parse([sent(shared)])


def test_streams_without_a_reason_did_not_finish():
    stream = sent([{"choices": [{"index": 0, "token_ids": [5]}]}])
    with pytest.raises(ValueError, match="call 0 did not finish: finish_reason is None"):
        parse([stream], prompts=[[1]])


def test_log_probabilities_begin_at_the_tokens_of_their_event():
    def event(ids, content):
        return {"choices": [{"index": 0, "token_ids": ids, "logprobs": content}]}

    content = [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": -1.0}]
    events = [event([5, 6], None), event([7, 8], {"content": content})]
    options = {"prompts": [[1]], "unfinished": "keep", "bad_logprobs": "mask"}
    calls = parse([sent(events)], **options)
    assert calls.logprobs.to_list() == [[0, 0, -0.5, -1.0]]
    assert calls.loss_mask.to_list() == [[0, 0, 1, 1]]


def test_choices_of_one_index():
    choices = [{"index": index, "token_ids": [7]} for index in (0, 1, 0)]
    body = {"prompt_token_ids": [1], "choices": choices}
    for one in (json.dumps(body).encode(), sent([body])):
        with pytest.raises(ValueError, match=r"bodies\[0\]: two choices have the index 0"):
            parse([one], unfinished="keep")
    body["choices"] = choices[1::-1]
    assert parse([json.dumps(body).encode()]).responses.to_list() == [[7], [7]]


def test_events_of_keys_that_change():
    """Of alternatives, the first that any event has is read, not all of them in turn."""
    choice = {"token_ids": [7, 8], "finish_reason": "stop"}
    last = {"response_token_ids": [9], "finish_reason": "stop"}
    for events in ([choice, last], [last, choice]):
        stream = sent([{"prompt_token_ids": [1], "choices": [one]} for one in events])
        assert parse([stream]).responses.to_list() == [[7, 8]]


def test_prompts_of_one_body_form_groups():
    choice = {"token_ids": [7], "finish_reason": "stop"}
    choices = [choice | {"prompt_token_ids": prompt} for prompt in ([1], [1], [2], [2])]
    body = json.dumps({"choices": choices}).encode()
    groups = group_numbers("uids", parse([body, body]).uids)
    assert groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert np.array_equal(parse([body]).prompts.lengths, [1] * 4)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_data_of_several_lines_is_one_event(end):
    event = json.dumps(chunk([5, 6], 2, "stop"), indent=1).splitlines()
    for between in (end, f"{end}: ping{end}id: 3{end}"):
        lines = between.join(f"data: {line}" for line in event)
        stream = f"{lines}{end}{end}data: [DONE]{end}{end}".encode()
        assert parse([stream], prompts=[[1]]).responses.to_list() == [[5, 6]]
    parts = f"data: {event[0]}{end}{end}data: {''.join(event[1:])}{end}{end}".encode()
    with pytest.raises(ValueError, match=r"bodies\[0\], byte"):
        parse([parts], prompts=[[1]])
    text = f'data: {{"output_ids": [1], "text": "a{end}data: b"}}{end}{end}'.encode()
    with pytest.raises(ValueError, match=r"bodies\[0\], byte .* control character"):
        parse([text], prompts=[[1]])
