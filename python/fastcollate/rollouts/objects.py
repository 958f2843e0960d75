"""Calls from objects: the outputs of engines in the same process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastcollate._fastcollate import read_logprobs
from fastcollate.common.arguments import suggests_names, tally
from fastcollate.common.arrays import is_array, to_numpy
from fastcollate.common.text import show
from fastcollate.rollouts.calls import (
    BadLogprobs,
    Calls,
    LogprobsAre,
    Unfinished,
    finished,
    ids_of,
    taken,
)
from fastcollate.rollouts.making import Options, Place, logprob_columns
from fastcollate.rollouts.of_engines import lay_out
from fastcollate.rollouts.parsing import parse, schema_of
from fastcollate.rollouts.schema import Schema, Steps
from fastcollate.rollouts.sources import ENGINES
from fastcollate.rollouts.walking import ABSENT, fits_of, get, recognised, walk
from fastcollate.rows.columns import Ragged

SGLANG = {
    "finish_reasons": "finish_reason",
    "versions": "weight_versions",
    "routed_experts": "routed_experts",
    "support": "output_token_sampling_mask",
}
"""Columns in SGLang's `meta_info`."""

VLLM: dict[str, Steps] = {
    "finish_reasons": ("finish_reason",),
    "versions": ("weight_versions",),
    "routed_experts": ("routed_experts",),
    "support": ("sampling_mask", "token_ids"),
}
"""Columns in vLLM's samples."""


class _Call(NamedTuple):
    """One call of an engine: the number of its output, and its own number there."""

    output: int
    number: int
    prompt: Any
    response: Any
    logprobs: Any
    more: dict[str, Any]
    """Values of other columns, ``ABSENT`` where the output has no such attribute."""


@suggests_names
def read(
    outputs: Any,
    schema: Schema | str | None = None,
    *,
    prompts: Any = None,
    bad_logprobs: BadLogprobs = "error",
    unfinished: Unfinished = "error",
    logprobs_are: LogprobsAre | None = None,
    layers: int | None = None,
    topk: int | None = None,
) -> Calls:
    """Read calls from the outputs of an engine in the same process.

    Parameters
    ----------
    outputs
        A list of outputs, or one: vLLM's and TensorRT-LLM's ``RequestOutput``, SGLang's
        dictionaries, tinker's ``SampledSequence`` or responses of them, and objects of OpenAI's
        client. They are recognised by their attributes; no engine is imported. Also traces: a list
        of objects or dictionaries, or a table of Arrow, Polars, DuckDB or pandas.
    schema
        As in :func:`parse`: for objects, dictionaries of a source, or of your own.
    prompts
        Token ids of prompts, one row per output, for outputs without them (SGLang, tinker).
    bad_logprobs, unfinished, logprobs_are, layers, topk
        As in :func:`parse`.

    Returns
    -------
    Calls
        In the order of outputs and of their samples. ``uids`` has the number of each call's output.

    Raises
    ------
    TypeError
        If an output is of an unknown kind.
    ValueError
        As in :func:`parse`, and if log-probabilities do not begin with the sampled token's.

    Examples
    --------
    >>> output = {"output_ids": [7, 8], "meta_info": {"finish_reason": {"type": "stop"},
    ...     "output_token_logprobs": [(-0.5, 7, None), (-1.0, 8, None)]}}
    >>> fc.rollouts.read([output], prompts=[[5, 6]])
    Calls of 1 call: 2 prompt tokens, 2 response tokens; logprobs, uids, finish_reasons
    """
    options = Options.check(prompts, bad_logprobs, unfinished, logprobs_are)
    if hasattr(outputs, "__arrow_c_stream__"):
        return _read_table(outputs, schema, options)
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if any(isinstance(output, (bytes, bytearray, memoryview)) for output in listed):
        raise TypeError("outputs are bytes, which fc.rollouts.parse reads; pass them there")
    place = Place("outputs[{}]", advice="; pass prompts=, one row per output")
    is_engine = schema is None and (not listed or _is_engine(listed[0]))
    known = None if is_engine else schema_of(schema) if schema else recognised(fits_of(listed[0]))
    if listed and known in (None, ENGINES) and all(map(_is_response, listed)):
        # Reading the client's objects takes longer than writing and reading their JSON.
        return parse(
            list(map(_json_of, listed)),
            prompts=prompts,
            bad_logprobs=bad_logprobs,
            unfinished=unfinished,
            logprobs_are=logprobs_are,
            layers=layers,
            topk=topk,
        )
    if known is not None:
        return walk(listed, known, options, place)
    found = [
        _Call(index, number, *call)
        for index, output in enumerate(listed)
        for number, call in enumerate(_calls_of(index, output))
    ]

    def name_of(call: int) -> str:
        return f"{place.of(found[call].output)}: call {found[call].number}"

    responses = ids_of("responses", [call.response for call in found], name_of)
    calls = Calls(
        prompts=_prompts(prompts, found, len(listed), name_of),
        responses=responses,
        logprobs_are=logprobs_are,
        uids=np.array([call.output for call in found], np.int64),
        **_more(found),
        **_logprobs(found, responses, bad_logprobs),
    )
    return lay_out(finished(calls, unfinished), layers, topk)


def _is_response(output: Any) -> bool:
    """Return True for the body of a server's response, as a client's object or a dictionary."""
    is_body = isinstance(output, Mapping) and "choices" in output
    return is_body or hasattr(output, "model_dump_json")


def _json_of(response: Any) -> bytes:
    """Return the body of a response as JSON."""
    if isinstance(response, Mapping):
        return json.dumps(response).encode()
    text: str = response.model_dump_json()
    return text.encode()


def _logprobs(found: list[_Call], responses: Ragged, policy: BadLogprobs) -> dict[str, Any]:
    """Return the columns of log-probabilities."""
    rows = [call.logprobs for call in found]
    rows = [to_numpy(row).astype(np.float64) if is_array(row) else row for row in rows]
    names = [(call.output, call.number) for call in found]
    settled = read_logprobs(rows, responses.values, responses.offsets, names, policy)
    return logprob_columns(settled, None, responses.offsets, policy)


def _read_table(table: Any, schema: Schema | str | None, options: Options) -> Calls:
    """Return the calls of a table of Arrow, Polars, DuckDB or pandas."""
    import pyarrow as pa

    from fastcollate.rollouts.tables import fits_of_table, read_table

    table = pa.table(table)
    found = schema_of(schema) if schema else recognised(fits_of_table(table))
    if found is None:
        raise ValueError(
            f"the table has the columns {', '.join(table.column_names) or 'none'}, which are not "
            "those of a known source; pass a fc.rollouts.Schema"
        )
    return read_table(table, found, options, Place("row {}"))


def _is_engine(output: Any) -> bool:
    """Return True for the outputs of engines, which are read by their own functions."""
    if isinstance(output, Mapping):
        return "output_ids" in output
    sequences = getattr(output, "sequences", None) or [output]
    is_sampled = all(hasattr(sequences[0], name) for name in ("tokens", "stop_reason"))
    return isinstance(output, (list, tuple)) or hasattr(output, "outputs") or is_sampled


def _calls_of(index: int, output: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the calls of an output, without their numbers."""
    if isinstance(output, (list, tuple)):
        for one in output:
            yield from _calls_of(index, one)
    elif isinstance(output, Mapping) and "output_ids" in output:
        meta = output.get("meta_info")
        meta = meta if isinstance(meta, Mapping) else {}
        more = {name: meta.get(key, ABSENT) for name, key in SGLANG.items()}
        logprobs = meta.get("output_token_logprobs")
        yield output.get("prompt_token_ids"), output["output_ids"], logprobs, more
    elif hasattr(output, "outputs"):
        for sample in output.outputs:
            more = {name: get(sample, steps) for name, steps in VLLM.items()}
            yield output.prompt_token_ids, sample.token_ids, sample.logprobs, more
    elif hasattr(output, "sequences"):
        for one in output.sequences:
            yield from _calls_of(index, one)
    elif hasattr(output, "tokens") and hasattr(output, "logprobs"):
        more = {"finish_reasons": getattr(output, "stop_reason", ABSENT)}
        yield None, output.tokens, output.logprobs, more
    else:
        raise TypeError(
            f"outputs[{index}] is {show(output)}; pass outputs of vLLM, SGLang, TensorRT-LLM, "
            "tinker or OpenAI's client, or the bytes of a server to fc.rollouts.parse"
        )


def _more(found: list[_Call]) -> dict[str, Any]:
    """Return the other columns, those that any call has."""
    columns: dict[str, list[Any]] = {}
    for number, call in enumerate(found):
        for name, value in call.more.items():
            if value is not ABSENT:
                columns.setdefault(name, [None] * len(found))[number] = value
    return columns


def _prompts(given: Any, found: list[_Call], count: int, name_of: Callable[[int], str]) -> Ragged:
    """Return the prompts of calls: the outputs' own, or given ones."""
    if given is None:
        for call in found:
            if call.prompt is None:
                raise ValueError(
                    f"outputs[{call.output}] has no prompt; pass prompts=, one row per output"
                )
        return ids_of("prompts", [call.prompt for call in found], name_of)
    rows = ids_of("prompts", given)
    if len(rows) != count:
        raise ValueError(f"prompts has {tally(len(rows), 'row')}, but there are {count} outputs")
    return taken(rows, np.array([call.output for call in found], np.int64))
