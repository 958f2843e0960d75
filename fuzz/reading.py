"""Targets: responses of engines as bytes, one for each wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

import fastcollate as fc
from choices import Choices

Call = tuple[list[int], list[float]]
Body = dict[str, Any]


def _choice(shape: str, number: int, call: Call) -> Body:
    """Return a choice of vLLM or of SGLang's chat."""
    ids, logprobs = call
    if shape == "completions":
        content: Body = {"token_logprobs": logprobs, "tokens": [f"token_id:{one}" for one in ids]}
    elif shape == "chat":
        content = {"content": [{"token": "a\u00e9", "logprob": one} for one in logprobs]}
    else:
        pairs = zip(ids, logprobs, strict=True)
        content = {"content": [{"token_id": one, "logprob": value} for one, value in pairs]}
    return {"index": number, "token_ids": ids, "logprobs": content, "finish_reason": "stop"}


def _sglang(ids: list[int], logprobs: list[float], total: int, index: int = 0) -> Body:
    """Return a response, or an event, of SGLang."""
    rows = [[value, one, "a"] for value, one in zip(logprobs, ids, strict=True)]
    meta = {"completion_tokens": total, "output_token_logprobs": rows, "finish_reason": None}
    return {"output_ids": ids, "meta_info": meta, "index": index}


def _stream(events: list[Any]) -> bytes:
    """Return the bytes of a stream."""
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return f"{data}data: [DONE]\n\n".encode()


def _read(choices: Choices, make: Callable[[Choices, list[Call]], bytes]) -> None:
    """Read bytes: the values that they were made of, or an error of one line if they changed."""
    calls = []
    for _ in range(1 + choices.below(3)):
        ids = [choices.pick([0, 7, 150_000, 2**31 - 1]) for _ in range(choices.below(5))]
        values = [-0.0, -1.5, -0.1234567890123456789, -1e-30, -20.25, -3]
        calls.append((ids, [choices.pick(values) for _ in ids]))
    data = bytearray(make(choices, calls))
    changes = choices.below(3)
    for _ in range(changes):
        at = choices.below(len(data) + 1)
        new = choices.pick(
            [b"", b"1", b"-", b'"', b",", b"]", b"}", b"null", b"\xff", b"\\", b"\n"]
        )
        data[at : at + choices.below(3)] = new
    options = {"bad_logprobs": choices.pick(["keep", "mask", "error"]), "unfinished": "keep"}
    try:
        found = fc.rollouts.parse([bytes(data)], prompts=[[1]], **options)
    except ValueError as error:
        if changes and "\n" not in str(error):
            return
        raise
    lengths = found.responses.lengths
    assert (lengths == (lengths if found.logprobs is None else found.logprobs.lengths)).all()
    assert (found.responses.values >= 0).all()
    if not changes:
        assert found.responses.to_list() == [ids for ids, _ in calls]
        values = np.array([one for _, row in calls for one in row], np.float32)
        assert found.logprobs.values.tobytes() == values.tobytes()


def _of_choices(shape: str, is_stream: bool = False) -> Callable[[Choices, list[Call]], bytes]:
    """Return a function that writes a body, or a stream, with choices."""

    def make(choices: Choices, calls: list[Call]) -> bytes:
        whole = [_choice(shape, number, call) for number, call in enumerate(calls)]
        if not is_stream:
            separators = choices.pick([(",", ":"), (", ", ": ")])
            return json.dumps({"id": "r", "choices": whole}, separators=separators).encode()
        events = []
        for number, (ids, logprobs) in enumerate(calls):
            cut = choices.below(len(ids) + 1)
            for part in (slice(0, cut), slice(cut, None)):
                events.append(_choice(shape, number, (ids[part], logprobs[part])))
        return _stream([{"choices": [event]} for event in events])

    return make


def _sglang_body(choices: Choices, calls: list[Call]) -> bytes:
    """Write responses of SGLang's generate endpoint."""
    bodies = [_sglang(*call, len(call[0])) for call in calls]
    return json.dumps(bodies, separators=choices.pick([(",", ":"), (", ", ": ")])).encode()


def _sglang_stream(choices: Choices, calls: list[Call]) -> bytes:
    """Write a stream of SGLang's generate endpoint, cumulative or incremental."""
    events, is_cumulative = [], choices.one_in(2)
    for index, (ids, logprobs) in enumerate(calls):
        cut = choices.below(len(ids) + 1)
        events.append(_sglang(ids[:cut], logprobs[:cut], cut, index))
        start = 0 if is_cumulative else cut
        events.append(_sglang(ids[start:], logprobs[start:], len(ids), index))
    return _stream(events)


def read_vllm_generate(choices: Choices) -> None:
    """Read responses of vLLM's generate endpoint."""
    _read(choices, _of_choices("generate"))


def read_vllm_chat(choices: Choices) -> None:
    """Read responses of a chat endpoint."""
    _read(choices, _of_choices("chat"))


def read_vllm_completions(choices: Choices) -> None:
    """Read responses of a completions endpoint."""
    _read(choices, _of_choices("completions"))


def read_sglang(choices: Choices) -> None:
    """Read responses of SGLang's generate endpoint."""
    _read(choices, _sglang_body)


def read_vllm_stream(choices: Choices) -> None:
    """Read streams of vLLM."""
    _read(choices, _of_choices(choices.pick(["generate", "chat", "completions"]), is_stream=True))


def read_sglang_stream(choices: Choices) -> None:
    """Read streams of SGLang."""
    _read(choices, _sglang_stream)
