"""What engines give with tokens: routed experts, weight versions and sampling support."""

from __future__ import annotations

import base64
import io
import json
from itertools import repeat
from typing import Any

import numpy as np

from fastcollate.common.arguments import check_count, tally
from fastcollate.common.arrays import is_array, to_numpy
from fastcollate.common.text import show
from fastcollate.rollouts.calls import Calls, prompt_ids
from fastcollate.rows.columns import Ragged
from fastcollate.rows.versions import PARTS, check_spans

NPY = b"\x93NUMPY"
"""The first bytes of NumPy's format."""

HEADER = 1 << 12
"""Bytes of a file in NumPy's format in which its header ends."""


def engine_columns(found: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """Return all columns of engines' responses: their own, and groups unless they have ids."""
    numbers = found["indices"].tolist()
    for name in ("versions", "routed_experts"):
        # SGLang's chat has the routes of its first choice only.
        if (first := columns.pop(f"first.{name}", None)) is not None:
            own = columns.get(name, repeat(None))
            columns[name] = [
                its if one is None and number == 0 else one
                for one, its, number in zip(own, first, numbers, strict=False)
            ]
    if "uids" in columns:
        return columns
    return columns | {"uids": prompt_ids(_groups(found))}


def _groups(found: dict[str, Any]) -> np.ndarray:
    """Return the group of each call: its body, and its own prompt if a body has several."""
    bodies: np.ndarray = found["bodies"]
    own = Ragged(*found["prompts"])
    is_new = np.diff(bodies, prepend=-1)
    for call in np.flatnonzero(is_new == 0):
        is_new[call] = not np.array_equal(own[int(call)], own[int(call) - 1])
    return np.cumsum(is_new) - 1


def lay_out(calls: Calls, layers: int | None, topk: int | None) -> Calls:
    """Return calls with routed experts as arrays, and checked spans and support."""
    for name, count in (("layers", layers), ("topk", topk)):
        if count is not None:
            check_count(name, count, "the number of the model's")
    columns = calls.columns
    tokens = calls.responses.lengths.tolist()
    if "routed_experts" in columns:
        prompts = calls.prompts.lengths.tolist()
        given = zip(columns["routed_experts"], prompts, tokens, strict=True)
        placed = [
            _routes(f"call {call}", routes, prompt + response, layers, topk)
            for call, (routes, prompt, response) in enumerate(given)
        ]
        columns["routed_experts"] = [routes for routes, _ in placed]
        columns["routed_starts"] = np.array([start for _, start in placed], np.int64)
    if "versions" in columns:
        spans = zip(columns["versions"], tokens, strict=True)
        columns["versions"] = [_spans(f"versions[{call}]", *one) for call, one in enumerate(spans)]
    for call, sets in enumerate(columns.get("support", ())):
        if sets is not None and (not isinstance(sets, list) or len(sets) != tokens[call]):
            found = tally(len(sets), "token") if isinstance(sets, list) else show(sets)
            raise ValueError(
                f"call {call} has the sampling support of {found}, but its response has "
                f"{tally(tokens[call], 'token')}"
            )
    return calls


def _routes(
    name: str, given: Any, tokens: int, layers: int | None, topk: int | None
) -> tuple[np.ndarray | None, int]:
    """Return routed experts (tokens, layers, topk), and the first token that has them."""
    if given is None:
        return None, 0
    routes = _as_array(name, given, layers, topk)
    start = tokens - 1 - len(routes)
    if start < 0:
        raise ValueError(
            f"{name} has {tally(tokens, 'token')}, but routed experts of {len(routes)}; pass the "
            "experts of all tokens but the last"
        )
    return routes, start


_AS_SENT = "pass the body as the engine sent it"


def _as_array(name: str, given: Any, layers: int | None, topk: int | None) -> np.ndarray:
    """Return routed experts (tokens, layers, topk): of base64, or of an array."""
    if isinstance(given, bytes):  # JSON
        is_plain = given[:1] == b'"' and b"\\" not in given
        given = given[1:-1] if is_plain else json.loads(given)
    if isinstance(given, (bytes, str)):
        try:
            data = np.frombuffer(base64.b64decode(given, validate=True), np.uint8)
        except ValueError as error:
            raise ValueError(
                f"routed_experts of {name} are not base64: {error}; {_AS_SENT}"
            ) from None
        given = _decoded(name, data, layers, topk)
    found: np.ndarray = to_numpy(given) if is_array(given) else np.asarray(given)
    if found.ndim != 3 or found.dtype.kind not in "iu":
        raise ValueError(
            f"routed_experts of {name} are {show(found.dtype.name)} of shape {found.shape}; pass "
            "integers of shape (tokens, layers, topk)"
        )
    return found


def _decoded(name: str, data: np.ndarray, layers: int | None, topk: int | None) -> np.ndarray:
    """Return the array in bytes: NumPy's format, or int32 without a shape."""
    if bytes(data[: len(NPY)]) != NPY:
        if layers is None or topk is None:
            raise ValueError(
                f"routed_experts of {name} are int32 without a shape; pass layers= and topk="
            )
        per_token = 4 * layers * topk
        if len(data) % per_token:
            raise ValueError(
                f"routed_experts of {name} have {len(data)} bytes, but {layers} layers of {topk} "
                f"experts have {per_token} a token; pass the model's layers= and topk="
            )
        return data.view("<i4").reshape(-1, layers, topk)
    header = io.BytesIO(data[:HEADER].tobytes())
    formats = np.lib.format
    try:
        version = formats.read_magic(header)
        read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
        shape, is_fortran, dtype = read(header)
    except ValueError as error:
        raise ValueError(
            f"routed_experts of {name} have a bad header: {error}; {_AS_SENT}"
        ) from None
    rest = data[header.tell() :]
    size = int(np.prod([dtype.itemsize, *shape], dtype=object))
    if is_fortran or dtype.hasobject or len(rest) != size or min(shape, default=0) < 0:
        raise ValueError(
            f"routed_experts of {name} have {len(rest)} bytes, but their header says "
            f"{dtype} of shape {shape}{' in Fortran order' if is_fortran else ''}; {_AS_SENT}"
        )
    return rest.view(dtype).reshape(shape)


def _spans(name: str, spans: Any, tokens: int) -> list[Any] | None:
    """Return the spans of weight versions in a response, checked."""
    if spans is None:
        return None
    if not isinstance(spans, (list, tuple)):
        raise ValueError(f"{name} is {show(spans)}; expected a list of spans")
    found = [
        {part: getattr(span, part, None) for part in PARTS} if hasattr(span, "version") else span
        for span in spans
    ]
    check_spans(name, found, tokens)
    return found
