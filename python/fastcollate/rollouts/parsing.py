"""Calls from JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fastcollate._fastcollate import read_calls
from fastcollate.common.arguments import check_choice, suggests_names, tally
from fastcollate.common.text import show
from fastcollate.rollouts.calls import (
    BAD_LOGPROBS,
    BadLogprobs,
    Calls,
    LogprobsAre,
    Unfinished,
    finished,
    logprob_columns,
)
from fastcollate.rollouts.of_engines import lay_out
from fastcollate.rollouts.schema import ENGINES, Schema
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged


@suggests_names
def parse(
    bodies: bytes | Sequence[bytes],
    schema: Schema | None = None,
    *,
    prompts: Any = None,
    bad_logprobs: BadLogprobs = "error",
    unfinished: Unfinished = "error",
    logprobs_are: LogprobsAre | None = None,
    layers: int | None = None,
    topk: int | None = None,
) -> Calls:
    """Read calls from JSON: the responses of an engine, or traces of them.

    The bytes are read in Rust with the interpreter released, without an object per token.

    Parameters
    ----------
    bodies
        Bodies of responses, a call for each choice; or one ``bytes`` of JSON lines, with a body in
        each line. A body may be an array of bodies, as SGLang returns for several samples, or a
        stream of server-sent events, from its first byte to its last.
    schema
        Paths of the columns. None: responses of vLLM (generate, chat, completions), SGLang
        (generate, chat) and compatible servers, which are told apart by their keys.
    prompts
        Token ids of prompts, one row per body, for bodies that do not repeat the prompt.
    bad_logprobs
        Log-probabilities that are none: NaN, infinite, null, missing, or -9999 (which vLLM writes
        for these). ``"error"`` names the body and token; ``"mask"`` writes 0 and takes the tokens
        out of the loss mask; ``"keep"`` keeps them, and writes NaN for missing ones.
    unfinished
        Calls that were aborted or are still running; a reached length limit counts as finished.
        ``"error"``, ``"skip"``, or ``"keep"``.
    logprobs_are
        ``"raw"`` or ``"processed"``, if known, for :class:`Calls`: vLLM's are raw unless the server
        has another ``logprobs_mode``.
    layers, topk
        Layers with experts, and experts of a token, to read the routed experts of SGLang, which are
        bytes without a shape.

    Returns
    -------
    Calls
        In the order of bodies and of their choices.

    Raises
    ------
    TypeError
        If ``bodies`` are not bytes.
    ValueError
        If a body is not valid JSON or has no token ids of a response; if lengths or ids do not
        agree; for bad log-probabilities and unfinished calls, unless other options are passed.
        Messages name the body, the call and the byte or token.

    Examples
    --------
    >>> import json
    >>> content = [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": -1}]
    >>> choice = {"token_ids": [7, 8], "logprobs": {"content": content}, "finish_reason": "stop"}
    >>> body = json.dumps({"prompt_token_ids": [5, 6], "choices": [choice]}).encode()
    >>> calls = fc.rollouts.parse([body])
    >>> calls.logprobs.to_list()
    [[-0.5, -1.0]]
    >>> batch = fc.build_batch(**calls.batch, pad_token_id=0)
    """
    check_choice("unfinished", unfinished, ("error", "skip", "keep"))
    check_choice("bad_logprobs", bad_logprobs, BAD_LOGPROBS)
    if schema is None:
        schema = ENGINES
    elif not isinstance(schema, Schema):
        raise TypeError(f"schema is {show(schema)}; pass a fc.rollouts.Schema, or leave it out")
    found = read_calls(_as_bytes(bodies), schema._core, bad_logprobs)
    columns: dict[str, Any] = {name: _objects(texts) for name, texts in found["kept"].items()}
    if schema is ENGINES:
        columns |= _of_engines(found, columns)
    responses = Ragged(*found["responses"])
    calls = Calls(
        prompts=_prompts(prompts, found),
        responses=responses,
        logprobs_are=logprobs_are,
        **logprob_columns(found["logprobs"], found["loss_mask"], responses.offsets, bad_logprobs),
        **columns,
    )
    calls = finished(calls, unfinished)
    return lay_out(calls, layers, topk) if schema is ENGINES else calls


def _as_bytes(bodies: Any) -> bytes | list[bytes]:
    """Return bodies as bytes."""
    if isinstance(bodies, (bytes, bytearray, memoryview)):
        return bytes(bodies)
    if isinstance(bodies, str):
        raise TypeError("bodies is a str; pass bytes, as response.content of an HTTP client")
    if not isinstance(bodies, Iterable):
        raise TypeError(f"bodies is {show(bodies)}; pass bytes, or a list of bytes")
    found = list(bodies)
    for index, body in enumerate(found):
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"bodies[{index}] is {show(body)}; pass bytes, as response.content of a client"
            )
    return [bytes(body) for body in found]


def _objects(texts: list[bytes | None]) -> list[Any] | None:
    """Parse the JSON of a column; None if no call has any."""
    if not any(texts):
        return None
    found: list[Any] = json.loads(b"[" + b",".join(text or b"null" for text in texts) + b"]")
    return found


def _of_engines(found: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """Return more columns of engines' responses."""
    if found["cut"]:
        reasons = columns["finish_reasons"] or [None] * len(found["bodies"])
        columns["finish_reasons"] = reasons
        for call in found["cut"]:
            reasons[call] = None
    # SGLang's chat has the versions and routes of its first choice alone.
    first, versions = columns.pop("first_versions"), columns["versions"]
    if first is not None:
        is_first = found["indices"] == 0
        versions = [None] * len(first) if versions is None else versions
        versions = [
            one if one is not None or not is_first[call] else first[call]
            for call, one in enumerate(versions)
        ]
    routes = found["routes"] if any(one is not None for one in found["routes"]) else None
    return {"uids": _groups(found), "versions": versions, "routed_experts": routes}


def _groups(found: dict[str, Any]) -> np.ndarray:
    """Return the group of each call: its body, and its own prompt if a body has several."""
    bodies: np.ndarray = found["bodies"]
    own = Ragged(*found["prompts"])
    is_new = np.diff(bodies, prepend=-1)
    for call in np.flatnonzero(is_new == 0):
        is_new[call] = not np.array_equal(own[int(call)], own[int(call) - 1])
    return np.cumsum(is_new) - 1


def _prompts(given: Any, found: dict[str, Any]) -> Ragged:
    """Return the prompts of calls: the bodies' own, or given ones."""
    bodies, have = found["bodies"], found["have_prompts"]
    own = Ragged(*found["prompts"])
    if given is None:
        if not have.all():
            body = int(bodies[~have][0])
            raise ValueError(
                f"bodies[{body}] has no prompt ids; pass prompts=, one row per body (vLLM returns "
                "them with return_token_ids)"
            )
        return own
    rows = ragged(given, "int32")
    count = tally(found["num_bodies"], "body", "bodies")
    if len(rows) != found["num_bodies"]:
        raise ValueError(f"prompts has {tally(len(rows), 'row')}, but there are {count}")
    rows = ragged([rows[int(body)] for body in bodies]) if len(bodies) else rows
    for call in np.flatnonzero(have):
        if not np.array_equal(rows[int(call)], own[int(call)]):
            raise ValueError(
                f"prompts[{bodies[call]}] differs from the prompt of its body; leave prompts out"
            )
    return rows
