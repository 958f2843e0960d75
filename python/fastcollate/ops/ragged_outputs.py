"""Outputs with any number of values per token: values, and their offsets at every position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fastcollate.common.arrays import like_of, offsets_of, on_host, ranges_of, take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcollate._fastcollate import OutputTable
    from fastcollate.ops.batch_state import BatchState
    from fastcollate.rows.lengths import Integers

_SUFFIX = "_values"


class RaggedOutput(NamedTuple):
    """The two outputs of a ragged field.

    Attributes
    ----------
    values, offsets
        Their keys.
    align
        ``"sequence"``, ``"stream"`` or ``"response"``: the positions that have offsets.
    """

    values: str
    offsets: str
    align: str


def ragged_outputs(table: OutputTable) -> Iterator[RaggedOutput]:
    """Return the ragged fields of a batch, in order."""
    values = ""
    for output in table:
        if output.align == "values":
            values = output.key
        elif output.align.endswith(_SUFFIX):
            yield RaggedOutput(values, output.key, output.align.removesuffix(_SUFFIX))


def taken_values(state: BatchState, output: RaggedOutput, positions: Integers) -> dict[str, Any]:
    """Return the outputs of a ragged field at other positions, flat indices; values are copied."""
    values, offsets = state.data[output.values], state.data[output.offsets]
    ends = on_host(offsets)
    starts = ends[positions]
    counts = ends[positions + 1] - starts
    return {
        output.values: take(values, ranges_of(starts, counts)),
        output.offsets: like_of(offsets_of(counts), offsets),
    }


def viewed_values(state: BatchState, output: RaggedOutput, span: slice) -> dict[str, Any]:
    """Return the outputs of a ragged field in a span of positions; values are views."""
    values, offsets = state.data[output.values], state.data[output.offsets]
    ends = offsets[span.start : span.stop + 1]
    return {
        output.values: values[int(ends[0]) : int(ends[-1])],
        output.offsets: ends - ends[0],
    }
