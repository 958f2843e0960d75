"""Calls from objects: the outputs of engines in the same process, traces and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastcollate.common.arguments import suggests_names
from fastcollate.common.text import show
from fastcollate.rollouts.calls import BadLogprobs, Calls, LogprobsAre, Unfinished
from fastcollate.rollouts.making import Options, Place
from fastcollate.rollouts.of_engines import lay_out
from fastcollate.rollouts.parsing import is_response, parse_given, schema_of
from fastcollate.rollouts.schema import Schema
from fastcollate.rollouts.sources import ENGINES, OUTPUTS, ROW_KEYS
from fastcollate.rollouts.walking import fits_of, recognised, walk

SAMPLED = ("tokens", "stop_reason")
"""Attributes of tinker's sequences."""


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
    Calls of 1 call: 2 prompt tokens, 2 response tokens; logprobs, finish_reasons, uids
    """
    options = Options(prompts, bad_logprobs, unfinished, logprobs_are, layers, topk).check()
    if hasattr(outputs, "__arrow_c_stream__"):
        return _read_table(outputs, schema, options)
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if any(isinstance(output, (bytes, bytearray, memoryview)) for output in listed):
        raise TypeError("outputs are bytes, which fc.rollouts.parse reads; pass them there")
    place = Place("outputs[{}]", advice="; pass prompts=, one row per output")
    if schema:
        known = schema_of(schema)
    else:
        is_engine = not listed or (_is_engine(listed[0]) and not any(map(_is_row, listed)))
        known = OUTPUTS if is_engine else recognised(fits_of(listed[0])) or ENGINES
    if listed and known is ENGINES and all(map(_is_response, listed)):
        # Reading the client's objects takes longer than writing and reading their JSON.
        return parse_given(list(map(_json_of, listed)), None, options)
    if known is ENGINES and schema is None:
        index, other = next(one for one in enumerate(listed) if not _is_response(one[1]))
        raise TypeError(
            f"outputs[{index}] is {show(other)}; pass outputs of vLLM, SGLang, TensorRT-LLM, "
            "tinker or OpenAI's client, dictionaries or a table (of a file: "
            "pyarrow.parquet.read_table(path)), or bytes of JSON to fc.rollouts.parse"
        )
    if known is OUTPUTS:  # of which those without samples have no calls
        listed = [one if getattr(one, "outputs", True) else [] for one in listed]
    calls = walk(listed, known, options, place)
    return lay_out(calls, layers, topk) if known is OUTPUTS else calls


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


def _read_table(table: Any, schema: Schema | str | None, options: Options) -> Calls:
    """Return the calls of a table of Arrow, Polars, DuckDB or pandas."""
    import pyarrow as pa

    from fastcollate.rollouts.tables import example_of, read_table

    table = pa.table(table)
    found = schema_of(schema) if schema else recognised(fits_of(example_of(table.schema)))
    if found is None:
        raise ValueError(
            f"the table has the columns {', '.join(table.column_names) or 'none'}, which belong "
            "to no known source; pass a fc.rollouts.Schema"
        )
    return read_table(table, found, options, Place("row {}"))


def _is_engine(output: Any) -> bool:
    """Return True for the outputs of engines, and for rows that share the name of their tokens."""
    if isinstance(output, (list, tuple)):
        return not output or _is_engine(output[0])
    if isinstance(output, Mapping):
        return "output_ids" in output
    sequences = getattr(output, "sequences", None) or [output]
    is_sampled = all(hasattr(sequences[0], name) for name in SAMPLED)
    is_row = any(hasattr(output, name) for name in ROW_KEYS - {"logprobs", *SAMPLED})
    return hasattr(output, "outputs") or (is_sampled and not is_row)


def _is_row(output: Any) -> bool:
    """Return True for a dictionary with columns that outputs of engines do not have."""
    if isinstance(output, (list, tuple)):
        return any(map(_is_row, output))
    return (
        isinstance(output, Mapping) and not is_response(output) and not ROW_KEYS.isdisjoint(output)
    )
