"""Conversion between layouts: a batch's outputs are the input of the next batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX, FieldSpec, RowSpans, SomeTokens
from fastcollate.common.arrays import (
    dtype_name,
    flatten,
    offsets_of,
    on_host,
    ranges_of,
    row_and_token,
    take,
    was_written,
)
from fastcollate.ops.collating import Request, collate
from fastcollate.ops.ragged_outputs import ragged_outputs
from fastcollate.plan.merging import RowSource
from fastcollate.plan.shard import Shard
from fastcollate.rows.captured import runs_of
from fastcollate.rows.fields import LABELS, LOSS_MASK
from fastcollate.rows.lengths import Integers
from fastcollate.rows.tokens import Whole

if TYPE_CHECKING:
    from fastcollate._fastcollate import LayoutSpec, Plan
    from fastcollate.ops.batch_state import BatchState


def relayout(state: BatchState, layout: LayoutSpec, shard: Shard | None = None) -> BatchState:
    """Write a batch, or some of its rows, again (see :meth:`fastcollate.Batch.to_layout`)."""
    own: Integers | None = None
    if shard is not None and (part := state.plan.part(shard.spec)) is not None:
        # The shard's rows alone, with their places in all outputs.
        own = part[1]
        state, shard = _part(state, *part, shard)
    plan, spec = state.plan, state.spec
    table = spec.table
    _check_whole(plan, shard)
    sequence_starts, response_starts = plan.row_starts()
    prompt_lens, response_lens = plan.prompt_lens, plan.response_lens
    lens = prompt_lens + response_lens
    places = plan.stream_positions()
    dimensions = {
        "sequence": len(plan.leading_shape(of_sequence=True)),
        "response": len(plan.leading_shape(of_sequence=False)),
        "stream": 1,
    }
    ragged = {output.values: output for output in ragged_outputs(table)}
    # Of a field's two outputs, the one without its values.
    beside = {
        output.field: output.key
        for output in table
        if output.field is not None and output.key != spec.fields[output.field].key
    }

    def per_token(key: str) -> Any:
        align = table[key].align
        values = flatten(state.data[key], dimensions[align])
        # Rows of a tree share positions: streams are taken out row by row.
        return values if places is None or align != "sequence" else take(values, places)

    def spans_of(align: str) -> tuple[Integers, Integers]:
        """Return the start and the length of each row's values."""
        return (response_starts, response_lens) if align == "response" else (sequence_starts, lens)

    def column(index: int, spec: FieldSpec) -> Any:
        value: Any = state.data[spec.key]
        if spec.align in ("row", "array", "object"):
            if own is None:
                return value
            is_list = isinstance(value, list)
            return [value[row] for row in own.tolist()] if is_list else take(value, own)
        if spec.align == "joined":
            ends = np.asarray(state.data[beside[index]])
            spans = np.stack([ends[:-1], ends[1:]], 1)[slice(None) if own is None else own]
            return [value[start:stop] for start, stop in spans.tolist()]
        if spec.align in ("response_counts", "sequence_counts"):
            spans_of_rows = spans_of(spec.align.removesuffix("_counts"))
            return RowSpans([(np.diff(on_host(value)), *spans_of_rows)])
        if spec.align == "ragged":
            starts, tokens = spans_of(ragged[spec.key].align)
            firsts = np.where(tokens, starts, 0)
            ends = on_host(state.data[ragged[spec.key].offsets])
            return RowSpans([(value, ends[firsts], ends[firsts + tokens] - ends[firsts])])
        values = per_token(spec.key)
        starts, _ = spans_of(table[spec.key].align)
        counts = FieldSpec.row_lens(spec.align, prompt_lens, response_lens)
        if counts is not None:
            return RowSpans([(values, starts, counts)])
        # A mask marks the tokens without values.
        is_read = np.ones(len(lens), np.bool_)
        if shard is not None:
            is_read = np.isin(np.arange(len(lens)), shard.rows)
        counts = np.where(is_read, lens, 0)
        mask = np.asarray(per_token(beside[index]))[ranges_of(starts, counts)]
        runs = runs_of(~mask, offsets_of(counts))
        return SomeTokens.within(RowSpans([(values, starts, lens)]), runs)

    if any(map(was_written, state.data.values())):
        read = np.arange(len(lens)) if shard is None else np.unique(shard.rows[shard.rows >= 0])
        numbers = read if own is None else own[read]
        _check_unchanged(state, per_token, (sequence_starts, response_starts), read, numbers)
    fields = [(column(index, spec), spec) for index, spec in enumerate(spec.fields)]
    if LOSS_MASK.key in state.data and all(spec.key != LOSS_MASK.key for _, spec in fields):
        # None was given, but what was written may have changed since.
        mask = LOSS_MASK.with_dtype(dtype_name(state.data[LOSS_MASK.key].dtype))
        fields = [(column(-1, mask), mask), *fields]
    ids = per_token("input_ids")
    request = Request(
        Whole(RowSpans([(ids, sequence_starts, lens)]), prompt_lens),
        spec.pad_token_id,
        fields,
        "numpy" if isinstance(ids, np.ndarray) else "torch",
        layout,
        spec.outputs,
        ids=state.ids,
        merging=RowSource(plan, state.merge_plan, masked_rewards=state.masked_rewards),
        shard=shard,
    )
    collated = collate(request)
    collated = collated._replace(
        options=collated.spec._replace(lags=spec.lags),
        own_tokens_added=state.own_tokens_added,
        truncated=state.truncated,
    )
    was = state.is_padding
    if shard is None:
        collated = collated._replace(is_padding=was)
    elif was is not None:
        rows = zip(shard.rows.tolist(), shard.is_padding.tolist(), strict=True)
        collated = collated._replace(is_padding=[padding or was[row] for row, padding in rows])
    call = state.call
    if call is not None and shard is None:  # the kernel suited the former layout
        call = call._replace(kernel=None)
    return collated._replace(call=call)


def _check_unchanged(
    state: BatchState,
    per_token: Callable[[str], Any],
    starts: tuple[Integers, Integers],
    rows: Integers,
    numbers: Integers,
) -> None:
    """Check that no output was changed which is written again, by the loss mask, ids and lengths.

    `starts` are those of each row's tokens and of its response. Of the state only `rows` are read;
    `numbers` are those of the rows for the caller.
    """
    data, table, plan = state.data, state.spec.table, state.plan
    sequence_starts, response_starts = (of_rows[rows] for of_rows in starts)
    prompt_lens, response_lens = plan.prompt_lens[rows], plan.response_lens[rows]
    firsts = sequence_starts + prompt_lens

    def is_written(key: str, *by: str) -> bool:
        is_ours = key in data and table[key].field is None
        return is_ours and any(was_written(data[one]) for one in (key, *by))

    def check(key: str, found: Any, expected: Any, lens: Integers) -> None:
        if (found == expected).all():
            return
        at = int((found != expected).argmax())
        row, token = row_and_token(offsets_of(lens), at)
        of = "response token" if lens is response_lens else "token"
        advice = (
            f"selected rows and other layouts would have {int(expected[at])} there, from the ids "
            "and lengths of rows; change it after select, to_layout or rows()"
        )
        if key == "response_mask" or found[at] == IGNORE_INDEX:
            advice = (
                "loss_mask, which selected rows and other layouts follow, is not 0 there; set it "
                "to 0, too"
            )
        raise ValueError(
            f"{key} is {int(found[at])} for {of} {token} of row {numbers[row]}, but {advice}"
        )

    of_responses = ("response_mask", "targets", *LABELS)
    for key in [key for key in of_responses if is_written(key, "input_ids")]:
        places = ranges_of(response_starts, response_lens)
        is_trained = on_host(per_token("loss_mask") != 0)[places]
        expected = np.ones(len(places), np.int64)
        if key != "response_mask":
            expected = on_host(per_token("input_ids"))[ranges_of(firsts, response_lens)]
        if key in LABELS:
            places = ranges_of(firsts - (key != "labels"), response_lens)
        found = on_host(per_token(key))[places]
        check(key, np.where(is_trained, found, expected), expected, response_lens)
    lens = np.where(state.is_real[rows], prompt_lens + response_lens, 0)
    for key in [key for key in ("attention_mask", "position_ids") if is_written(key)]:
        places = ranges_of(sequence_starts, lens)
        expected = places - np.repeat(sequence_starts, lens)
        if key == "attention_mask":
            expected = np.ones(len(places), np.int64)
        check(key, on_host(per_token(key))[places], expected, lens)


def _part(state: BatchState, plan: Plan, rows: Integers, shard: Shard) -> tuple[BatchState, Shard]:
    """Return the rows of a shard as a state of their own, and the shard numbered by it."""
    was = state.is_padding
    part = state._replace(
        made_by=plan,
        is_padding=None if was is None else [was[row] for row in rows.tolist()],
        **state.ids_of(rows.tolist()),
    )
    numbers = np.where(shard.rows < 0, -1, np.searchsorted(rows, shard.rows))
    own = {"rows": numbers, "num_rows": len(rows)}
    return part, Shard._trusted(**{**shard._named(), **own})


def _check_whole(plan: Plan, shard: Shard | None) -> None:
    """Check that every value of the packed rows has a place, with each row in one span."""
    if (bins := plan.bins()) is None:
        return
    is_read = np.ones(plan.num_rows, np.bool_)
    advice = "call build_batch with another layout"
    if shard is not None:
        is_read = np.isin(np.arange(plan.num_rows), shard.rows)
        advice = "call build_batch with the rows to select"
    split = np.flatnonzero(is_read & (np.bincount(bins[1], minlength=plan.num_rows) > 1))
    if len(split) > 0:
        raise ValueError(f"row {split[0]} of the batch was split when it was packed; {advice}")
    headless = np.flatnonzero(is_read & (plan.prompt_lens == 0) & (plan.response_lens > 0))
    if plan.is_shifted and len(headless) > 0:
        raise ValueError(
            f"row {headless[0]} of the batch has no prompt, so with shift='next_token' no value of "
            f"its first response token was kept; {advice}"
        )
