"""Calls from objects: the outputs of engines in the same process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastcollate._fastcollate import compact_ids, read_logprobs
from fastcollate.common.arguments import suggests_names, tally
from fastcollate.common.arrays import is_array, to_numpy
from fastcollate.common.text import show
from fastcollate.rollouts.calls import (
    BadLogprobs,
    Calls,
    LogprobsAre,
    Unfinished,
    finished,
    logprob_columns,
)
from fastcollate.rollouts.making import Options, Place
from fastcollate.rollouts.of_engines import lay_out
from fastcollate.rollouts.parsing import parse, schema_of
from fastcollate.rollouts.schema import Schema
from fastcollate.rollouts.sources import ENGINES
from fastcollate.rollouts.walking import fits_of, recognised, walk
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged


class _Call(NamedTuple):
    """One call of an engine: the number of its output, and its own number there."""

    output: int
    number: int
    prompt: Any
    response: Any
    logprobs: Any
    finish_reason: Any
    more: dict[str, Any]


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
    responses = _ids("responses", [call.response for call in found])
    calls = Calls(
        prompts=_prompts(prompts, found, len(listed)),
        responses=responses,
        logprobs_are=logprobs_are,
        uids=np.array([call.output for call in found], np.int64),
        finish_reasons=[call.finish_reason for call in found],
        **_logprobs(found, responses, bad_logprobs),
        **_more(found),
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
        meta = output.get("meta_info", {})
        more = {
            "versions": meta.get("weight_versions"),
            "routed_experts": meta.get("routed_experts"),
            "support": meta.get("output_token_sampling_mask"),
        }
        logprobs, reason = meta.get("output_token_logprobs"), meta.get("finish_reason", "stop")
        yield output.get("prompt_token_ids"), output["output_ids"], logprobs, reason, more
    elif hasattr(output, "outputs"):
        for sample in output.outputs:
            more = {
                "versions": getattr(sample, "weight_versions", None),
                "routed_experts": getattr(sample, "routed_experts", None),
                "support": getattr(getattr(sample, "sampling_mask", None), "token_ids", None),
            }
            prompt, reason = output.prompt_token_ids, sample.finish_reason
            yield prompt, sample.token_ids, sample.logprobs, reason, more
    elif hasattr(output, "sequences"):
        for one in output.sequences:
            yield from _calls_of(index, one)
    elif hasattr(output, "tokens") and hasattr(output, "logprobs"):
        reason = getattr(output, "stop_reason", "stop")
        yield None, output.tokens, output.logprobs, reason, {}
    else:
        raise TypeError(
            f"outputs[{index}] is {show(output)}; pass outputs of vLLM, SGLang, TensorRT-LLM, "
            "tinker or OpenAI's client, or the bytes of a server to fc.rollouts.parse"
        )


def _more(found: list[_Call]) -> dict[str, Any]:
    """Return the columns that some calls have."""
    names = dict.fromkeys(name for call in found for name in call.more)
    columns = {name: [call.more.get(name) for call in found] for name in names}
    return {name: items for name, items in columns.items() if any(one is not None for one in items)}


def _prompts(given: Any, found: list[_Call], count: int) -> Ragged:
    """Return the prompts of calls: the outputs' own, or given ones."""
    if given is None:
        for call in found:
            if call.prompt is None:
                raise ValueError(
                    f"outputs[{call.output}] has no prompt; pass prompts=, one row per output"
                )
        return _ids("prompts", [call.prompt for call in found])
    rows = ragged(given, "int32")
    if len(rows) != count:
        raise ValueError(f"prompts has {tally(len(rows), 'row')}, but there are {count} outputs")
    return ragged([rows[call.output] for call in found]) if found else rows


def _ids(name: str, rows: list[Any]) -> Ragged:
    """Return rows of token ids as int32."""
    found = ragged([compact_ids(name, row, index) for index, row in enumerate(rows)], "int32")
    if found.values.min(initial=0) < 0:
        place = int((found.values < 0).argmax())
        row = int(np.searchsorted(found.offsets, place, side="right")) - 1
        raise ValueError(
            f"{name}[{row}][{place - found.offsets[row]}] is {found.values[place]}, which is not a "
            "token id"
        )
    return found
