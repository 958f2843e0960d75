"""Calls from JSON."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastcollate._fastcollate import read_calls
from fastcollate.common.arguments import suggests_names
from fastcollate.common.text import show
from fastcollate.rollouts.calls import BadLogprobs, Calls, LogprobsAre, Unfinished
from fastcollate.rollouts.making import Options, Place, calls_of
from fastcollate.rollouts.of_engines import engine_columns, lay_out
from fastcollate.rollouts.schema import RESPONSES, Schema
from fastcollate.rollouts.sources import ENGINES, OTHER, ROW_KEYS, SOURCES
from fastcollate.rollouts.walking import fits_of, recognised

STREAM = re.compile(rb"(\xef\xbb\xbf)?\s*(data|event|id|retry)?:")
"""How a stream of server-sent events begins."""

ROW = re.compile(b"|".join(b'"%s"' % key.encode() for key in ROW_KEYS))
"""A key of rows that are not responses of engines."""


@suggests_names
def parse(
    bodies: bytes | Sequence[bytes],
    schema: Schema | str | None = None,
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
        A :class:`Schema`, or the name of a source in :data:`SOURCES`, such as ``"rllm"``. None:
        responses of vLLM (generate, chat, completions), SGLang (generate, chat) and compatible
        servers, or traces of a known source, by the keys of the first body.
    prompts
        Token ids of prompts, one row per body, for bodies that do not repeat the prompt.
    bad_logprobs
        Log-probabilities that are none: NaN, infinite (also as the texts ``"NaN"``, ``"Infinity"``
        and ``"-Infinity"``), null, missing, or -9999 (which vLLM writes for these). ``"error"``
        names the body and token; ``"mask"`` writes 0 and takes the tokens out of the loss mask;
        ``"keep"`` keeps them, and writes NaN for missing ones.
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
    >>> choice = {"token_ids": [7, 8], "logprobs": {"content": content},
    ...           "finish_reason": "stop"}
    >>> body = json.dumps({"prompt_token_ids": [5, 6], "choices": [choice]}).encode()
    >>> calls = fc.rollouts.parse([body])
    >>> calls.logprobs.to_list()
    [[-0.5, -1.0]]
    >>> batch = fc.build_batch(**calls.batch, pad_token_id=0)
    """
    options = Options(prompts, bad_logprobs, unfinished, logprobs_are, layers, topk).check()
    return parse_given(_as_bytes(bodies), schema, options)


def parse_given(given: bytes | list[bytes], schema: Schema | str | None, options: Options) -> Calls:
    """Read checked arguments of :func:`parse`."""
    place = Place("line {}", 1) if isinstance(given, bytes) else Place("bodies[{}]")
    found = ENGINES if schema is None else schema_of(schema)
    known = None
    try:
        calls = read_bodies(given, found, options, place)
        if schema is None and not hasattr(calls, "finish_reasons") and _may_be_rows(given):
            known = other_source(_first(given))
    except ValueError:
        if (known := None if schema else other_source(_first(given))) is None:
            raise
    if known is not None:
        calls, found = read_bodies(given, known, options, place), known
    return lay_out(calls, options.layers, options.topk) if found is ENGINES else calls


def read_bodies(
    bodies: bytes | list[bytes], schema: Schema, options: Options, place: Place
) -> Calls:
    """Read the calls of bodies; errors name these by `place`."""
    found = read_calls(bodies, schema._core, options.bad_logprobs, place)
    are_of_engines = "event.index" in schema.columns
    # Objects of the JSON of each column, in one call; routes are read from bytes.
    kept: dict[str, Any] = {
        name: [None if text == b"null" else text for text in texts]
        if are_of_engines and name.endswith("routed_experts")
        else json.loads(b"[" + b",".join(text or b"null" for text in texts) + b"]")
        for name, texts in found["kept"].items()
    }
    if are_of_engines:
        kept = engine_columns(found, kept)
    return calls_of(found, kept, schema, options, place)


def schema_of(given: Any) -> Schema:
    """Return a schema, or the one of a name."""
    if isinstance(given, str):
        if given not in SOURCES:
            raise ValueError(f"schema is {show(given)}; {OTHER}")
        return SOURCES[given]
    if not isinstance(given, Schema):
        raise TypeError(
            f"schema is {show(given)}; pass a fc.rollouts.Schema, or the name of a source: {OTHER}"
        )
    if not {*RESPONSES} & {*given.columns}:
        raise ValueError(
            f"schema has {', '.join(given.columns) or 'no columns'}, but no tokens of responses; "
            "pass Schema(responses=...), or sequences="
        )
    return given


def _first(bodies: bytes | list[bytes]) -> Any:
    """Return the first body; None if there is none that is JSON."""
    each = bodies if isinstance(bodies, list) else io.BytesIO(bodies)  # not a copy
    try:
        return json.loads(next(filter(bytes.strip, each), b""))
    except (ValueError, RecursionError):
        return None


def _may_be_rows(bodies: bytes | list[bytes]) -> bool:
    """Return True for bodies with keys of rows; without parsing, since texts may be long."""
    texts = bodies if isinstance(bodies, list) else [bodies]
    return any(b'"meta_info"' not in text and ROW.search(text) for text in texts)


def other_source(body: Any) -> Schema | None:
    """Return the schema of a body that is not a response of an engine; None if it is one."""
    one = body[0] if isinstance(body, list) and body else body
    return None if is_response(one) or not body else recognised(fits_of(body))


def is_response(body: Any) -> bool:
    """Return True for a response of an engine, whose tokens may have the names of a row's."""
    keys = ("choices", "meta_info")
    return isinstance(body, Mapping) and any(body.get(key) is not None for key in keys)


def _as_bytes(bodies: Any) -> bytes | list[bytes]:
    """Return bodies as bytes."""
    if isinstance(bodies, (bytes, bytearray, memoryview)):
        given = bytes(bodies)
        return [given] if STREAM.match(given) else given
    is_list = isinstance(bodies, Iterable) and not isinstance(bodies, (str, Mapping))
    found = list(bodies) if is_list else [bodies]
    for index, body in enumerate(found):
        if not isinstance(body, (bytes, bytearray, memoryview)):
            place = f"bodies[{index}]" if is_list else "bodies"
            advice = "; fc.rollouts.read reads objects"
            if isinstance(body, str):
                advice = f"; {place}.encode() of a text"
            raise TypeError(
                f"{place} is {show(body)}; pass bytes, such as response.content of an HTTP client, "
                f"or pathlib.Path(path).read_bytes() of a file{advice}"
            )
    return [bytes(body) for body in found]
