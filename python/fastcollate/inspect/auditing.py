"""The audit: every sampled token trains once, or is left out for a known reason.

Plan tables give the expected position of each token; arrays and the caller's turns are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.arguments import tally
from fastcollate.common.arrays import describe, offsets_of, ranges_of, to_numpy
from fastcollate.inspect.audit_ledger import CUT, MASKED, NONE, TRAINED, UNPREDICTED, Ledger
from fastcollate.inspect.audit_tables import (
    AuditRows,
    Grid,
    Turns,
    check_turns,
    find_unpredicted_tokens,
    span_of,
)
from fastcollate.ops.model_inputs import positions
from fastcollate.plan.audit_report import Audit, Where
from fastcollate.plan.dtypes import labels_key
from fastcollate.plan.plan_tables import PlanTables
from fastcollate.plan.shard import Shard
from fastcollate.rows.lengths import Integers

if TYPE_CHECKING:
    from fastcollate._fastcollate import Merge
    from fastcollate.ops.batch_state import BatchState
    from fastcollate.plan.merging import MergePlan
    from fastcollate.plan.step_plan import StepPlan


Given: TypeAlias = tuple[Any, Any, Any, Any, Any]
"""Prompts, responses, sequences, lengths of prompts and loss mask of turns, as passed."""


def audit_step(plan: StepPlan, batches: Any, turns: Given, merge: MergePlan | None) -> Audit:
    """See :meth:`fastcollate.planning.StepPlan.audit`."""
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"batches is {describe(batches)}; pass a list of the batches or shards of all ranks"
        )
    given = list(batches)
    ranks = [(m, r) for m in range(plan.num_mini_batches) for r in range(plan.dp_size)]
    if len(given) != len(ranks):
        raise ValueError(
            f"batches has {tally(len(given), 'item')}, but the plan has "
            f"{tally(plan.num_mini_batches, 'mini-batch', 'mini-batches')} for "
            f"{tally(plan.dp_size, 'rank')}; pass one item for every rank of every mini-batch, "
            "in this order"
        )
    items, wheres, planned = [], [], []
    for index, (item, rank) in enumerate(zip(given, ranks, strict=True)):
        shard = plan.shard(*rank)
        if not isinstance(item, (list, tuple)):
            items.append(item)
            wheres.append(Where(index, *rank))
            planned.append(shard)
            continue
        items += item
        wheres += [Where(index, *rank, part) for part in range(len(item))]
        planned += _parts_of(shard, item)
    merged = None if merge is None else merge._merge
    return _audit(items, wheres, check_turns(*turns), merged, planned, plan.row_lengths)


def audit_merge(plan: MergePlan, batches: Any, turns: Given) -> Audit:
    """See :meth:`fastcollate.planning.MergePlan.audit`."""
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches is {describe(batches)}; pass a batch, or a list of batches")
    items: list[Any] = [batches] if isinstance(batches, Mapping) else list(batches)
    for index, item in enumerate(items):
        if isinstance(item, Shard):
            raise TypeError(
                f"batches[{index}] is a Shard; pass it to the audit of its step plan, with "
                "this plan as merge"
            )
    wheres = [Where(index) for index in range(len(items))]
    return _audit(items, wheres, check_turns(*turns), plan._merge)


def _audit(
    items: Iterable[Any],
    wheres: Sequence[Where],
    turns: Turns | None,
    merge: Merge | None,
    planned: Sequence[Shard] | None = None,
    row_lengths: Integers | None = None,
) -> Audit:
    """Audit batches or shards.

    Parameters
    ----------
    items
        Batches or shards.
    wheres
        The position of each item.
    turns
        The turns, if ids are to be compared.
    merge
        The merge of turns into rows, if any.
    planned
        The rows that each of the items should have.
    row_lengths
        Prompt and response tokens of the step's rows.
    """
    items = list(items)
    for index, item in enumerate(items):
        if not isinstance(item, Shard) and not hasattr(item, "_state"):
            raise TypeError(
                f"batches[{wheres[index].batch}] is {describe(item)}; pass the Batch that "
                "build_batch returned, or the shard to build"
            )
    if merge is None:
        plans = (item.merge_plan for item in items if not isinstance(item, Shard))
        merge = next((plan._merge for plan in plans if plan is not None), None)
    auditor = _Auditor(_lengths(items, turns, merge, row_lengths), turns, merge, wheres)
    for index, item in enumerate(items):
        auditor.index = index
        expected = None if planned is None else planned[index]
        if isinstance(item, Shard):
            auditor.enter_shard(item, expected, row_lengths)
        else:
            auditor.enter_batch(item._state, expected)
    return auditor.close()


def _parts_of(shard: Shard, parts: Sequence[Any]) -> list[Shard]:
    """Return the expected rows of a shard's micro-batches; the last has all remaining ones."""
    sizes = [
        len(part) if isinstance(part, Shard) else part.plan.num_rows
        for part in parts
        if isinstance(part, Shard) or hasattr(part, "_state")  # others are rejected later
    ]
    ends = np.cumsum(sizes).tolist()
    ends[-1:] = [len(shard)]
    return [
        Shard(shard.rows[begin:end], shard.is_padding[begin:end], shard.num_rows)
        for begin, end in pairwise([0, *ends])
    ]


def _lengths(
    items: Sequence[Any], turns: Turns | None, merge: Merge | None, row_lengths: Integers | None
) -> Integers:
    """Return the response tokens of each turn."""
    if turns is not None:
        return turns.responses.lengths
    if merge is not None:
        return merge.turn_response_lens
    plans = [item.plan for item in items if not isinstance(item, Shard)]
    lengths = None if row_lengths is None else np.ascontiguousarray(row_lengths[:, 1])
    if lengths is None or (len(plans) > 0 and plans[0].num_turns != len(lengths)):
        lengths = np.zeros(plans[0].num_turns, np.int64)
    for plan in plans:
        tables = PlanTables(plan)
        if tables.turns is None:
            return tables.turn_response_lens
        # Of turns in no batch, only the step knows the lengths.
        lengths[tables.turns[tables.turns < len(lengths)]] = tables.turn_response_lens
    return lengths


class _Auditor(Ledger):
    """Reads batches and shards."""

    def enter_batch(self, state: BatchState, expected: Shard | None) -> None:
        """Read a batch's arrays according to its plan."""
        state.check_whole()
        rows = AuditRows(state.plan)
        is_same = state.plan.num_turns == len(self.lengths)
        if is_same:
            lengths = self.lengths if rows.turns is None else self.lengths[rows.turns]
            is_same = np.array_equal(lengths, rows.turn_response_lens)
        if not is_same:
            raise ValueError(
                f"batches[{self.index}] was built from other turns; pass batches of the same "
                "turns, and these turns"
            )
        responses, streams = rows.response_grid, rows.stream_grid
        self._open(responses.size, responses.width)
        if expected is not None:
            source = rows.source
            if self.merge is not None and len(source) > 0:
                source = np.where(source < 0, -1, self.turn_rows[source])
            self._check_rows(source, rows.is_padding, expected)
        tokens = rows.sampled(self.offsets)
        held = self._check_weights(state, rows, responses, streams, tokens)
        ids = to_numpy(state.data["input_ids"]).reshape(-1)
        self._check_padding(state, ids, streams)
        if self.turns is not None:
            self._check_ids(rows, streams, tokens, ids)
        if (labels := state.spec.outputs.labels) is not None:
            key = labels_key(is_shifted=labels[0])
            values = to_numpy(state.data[key]).reshape(-1)
            self._check_labels(values, labels[0], rows, ids, held)
        if state.plan.is_tree:
            self._check_tree(state, rows, responses, streams, tokens)

    def _check_rows(self, found: Integers, is_padding: NDArray[np.bool_], expected: Shard) -> None:
        """Compare the rows of a batch or shard with the plan's."""
        if len(found) != len(expected):
            self._find("rows", found=len(found), expected=len(expected))
            return
        wrong = (found != expected.rows) | (is_padding != expected.is_padding)
        for row in np.flatnonzero(wrong).tolist():
            planned = int(expected.rows[row])
            self._find("rows", row=row, found=int(found[row]), expected=planned)

    def _check_weights(
        self, state: BatchState, rows: AuditRows, grid: Grid, streams: Grid, tokens: Integers
    ) -> NDArray[np.bool_]:
        """Find the tokens that train; return a mask over the response tokens of all rows."""
        weights = to_numpy(state.data["loss_mask"]).reshape(-1)
        items = span_of(rows.response_offsets[grid.row] + grid.start, grid.length)
        places = grid.places
        at_places = weights[places]
        trains = at_places != 0
        token = tokens[items]
        is_real: Any = True
        if rows.is_padding.any():
            is_real = np.repeat(~rows.is_padding[grid.row], grid.length)
        is_sampled = is_real & (token >= 0)
        counts = trains & is_sampled

        if np.count_nonzero(weights) != np.count_nonzero(trains):
            stray = weights != 0
            stray[places] = False
            self._find_places("unsampled", np.flatnonzero(stray), grid.width)
        if np.count_nonzero(counts) < np.count_nonzero(trains):
            self._find_places("unsampled", places[trains & (token < 0)], grid.width)
            wrong = trains & (token >= 0) & ~is_sampled
            of = self._locate(token[wrong])
            self._find_places("padding trains", places[wrong], grid.width, of=of)
        trained: Any = slice(None) if counts.all() else counts
        at_places, sampled = at_places[trained], token[trained]
        self._enter(sampled, places[trained], grid.width)

        unpredicted = find_unpredicted_tokens(rows, streams)
        idle = np.flatnonzero(is_sampled & ~trains)
        left = token[idle]
        given = None if self.turns is None else self.turns.weights
        reason = np.full(len(left), NONE, np.uint8)
        if given is not None:
            reason[given[left] == 0] = MASKED
        elif any(spec.weighs for spec in state.spec.fields):
            reason[:] = MASKED
        for key, lag in state.spec.lags:
            versions = to_numpy(state.data[key]).reshape(-1)
            reason[lag.stale(versions[places[idle]])] = MASKED
        of_rows = idle if isinstance(items, slice) else items[idle]
        reason[np.isin(of_rows, unpredicted)] = UNPREDICTED
        silent = reason == NONE
        of = self._locate(left[silent])
        self._find_places("untrained", places[idle][silent], grid.width, of=of)
        self._note(left, reason, self.bases[self.index] + places[idle])
        if is_real is not True:
            self.padding_tokens += int(np.count_nonzero(~is_real & (token >= 0)))

        if given is not None:
            self.compared.add("loss_mask")
            expected = given[sampled]
            with np.errstate(over="ignore"):
                wrong = at_places != expected.astype(weights.dtype)
            values = at_places[wrong], expected[wrong], self._locate(sampled[wrong])
            self._find_places("weight", places[trained][wrong], grid.width, *values)
        if len(token) < len(tokens):  # some have no position
            unplaced = np.ones(len(tokens), np.bool_)
            unplaced[items] = False
            unplaced &= (tokens >= 0) & np.repeat(~rows.is_padding, rows.response_lens)
            lost = np.flatnonzero(unplaced)
            self._note(tokens[lost], np.where(np.isin(lost, unpredicted), UNPREDICTED, CUT))
        held = np.zeros(len(tokens), np.bool_)
        held[items] = trains
        return held

    def _enter(self, tokens: Integers, places: Integers, width: int) -> None:
        """Record tokens as trained at response positions, and find repeated ones."""
        here = self.bases[self.index] + places
        first, last = tokens[[0, -1]].tolist() if len(tokens) > 0 else (0, -1)
        if last - first == len(tokens) - 1 and (tokens[1:] - tokens[:-1] == 1).all():
            at: Any = slice(first, last + 1)  # no token is repeated
            was = self.reasons[at] == TRAINED
            self.reasons[at], self.places[at] = TRAINED, here
        else:
            was = self.reasons[tokens] == TRAINED
            self.reasons[tokens], self.places[tokens] = TRAINED, here
            was |= self.places[tokens] != here  # of several positions, the last remains
        if was.any():
            self._find_places("repeated", places[was], width, of=self._locate(tokens[was]))

    def _check_padding(self, state: BatchState, ids: NDArray[Any], grid: Grid) -> None:
        """Check that positions outside of rows hold padding."""
        outputs = {"attention_mask": 0, "input_ids": state.spec.pad_token_id}
        for key, fill in outputs.items():
            if key not in state.spec.table:
                continue
            values = ids if key == "input_ids" else to_numpy(state.data[key]).reshape(-1)
            there = values[grid.places]
            # Rows of a tree share positions.
            is_stray = np.count_nonzero(values != fill) != np.count_nonzero(there != fill)
            if is_stray or state.plan.is_tree:
                stray = values != fill
                stray[grid.places] = False
                self._find_places("padding", np.flatnonzero(stray), grid.width)
            if key == "attention_mask" and not there.all():
                wrong = grid.places[there == 0]
                self._find_places("not attended", wrong, grid.width)

    def _check_ids(self, rows: AuditRows, grid: Grid, tokens: Integers, ids: NDArray[Any]) -> None:
        """Compare the ids with the turns'."""
        assert self.turns is not None
        self.compared.add("ids")
        prompts, responses = self.turns.prompts, self.turns.responses
        is_of_turn = rows.source[grid.row] >= 0
        row, start, length = (x[is_of_turn] for x in (grid.row, grid.start, grid.length))
        dst, source = grid.dst[is_of_turn], rows.source[row]
        in_prompt = np.clip(prompts.lengths[source] - start, 0, length)
        for kind, spans, begin, skip, count in (
            ("altered prompt", prompts, start, 0 * length, in_prompt),
            (
                "altered",
                responses,
                np.maximum(start - prompts.lengths[source], 0),
                in_prompt,
                length - in_prompt,
            ),
        ):
            found = ids[span_of(dst + skip, count)]
            expected = spans.values[span_of(spans.starts[source] + begin, count)]
            if not np.array_equal(found, expected):
                wrong = np.flatnonzero(found != expected)
                segment = np.searchsorted(np.cumsum(count), wrong, side="right")
                within = wrong - offsets_of(count)[segment]
                of = source[segment], begin[segment] + within
                places = dst[segment] + skip[segment] + within
                self._find_places(kind, places, grid.width, found[wrong], expected[wrong], of)
        if self.merge is None:
            return
        # Responses before a row's last turn are compared with their own turns.
        places = rows.places_of_responses(grid)
        known = np.flatnonzero((tokens >= 0) & (places >= 0))
        token, place = tokens[known], places[known]
        turn, position = self._locate(token)
        found, expected = ids[place], responses.values[responses.starts[turn] + position]
        wrong = (found != expected) & (turn != rows.source[rows.of_responses[known]])
        of = turn[wrong], position[wrong]
        self._find_places("altered", place[wrong], grid.width, found[wrong], expected[wrong], of)

    def _check_labels(
        self,
        labels: NDArray[Any],
        is_shifted: bool,
        rows: AuditRows,
        ids: NDArray[Any],
        trains: NDArray[np.bool_],
    ) -> None:
        """Compare labels with the ids of tokens that train."""
        self.compared.add("labels")
        grid = rows.stream_grid
        places = rows.places_of_responses(grid)
        if not trains.all() or places.min(initial=0) < 0:
            places = places[trains & (places >= 0)]
        at = places - 1 if is_shifted else places
        found = labels[at]
        wrong = found != ids[places]
        self._find_places("label", at[wrong], grid.width, found[wrong])
        if np.count_nonzero(labels != IGNORE_INDEX) != np.count_nonzero(found != IGNORE_INDEX):
            stray = labels != IGNORE_INDEX
            stray[at] = False
            self._find_places("label", np.flatnonzero(stray), grid.width, labels[stray])

    def _check_tree(
        self, state: BatchState, rows: AuditRows, responses: Grid, streams: Grid, tokens: Integers
    ) -> None:
        """Compare targets with the ids of rows, and follow predictors from token to token."""
        places, width = responses.places, streams.width
        items = span_of(rows.response_offsets[responses.row] + responses.start, responses.length)
        row = rows.of_responses[items]
        step = (np.arange(len(tokens)) - rows.response_offsets[rows.of_responses])[items]
        data = state.data
        targets, predictors = (to_numpy(data[key])[places] for key in ("targets", "predictors"))
        outputs = data["input_ids"], positions(state), data["subtree_end"]
        ids, depths, ends = (to_numpy(output).reshape(-1) for output in outputs)
        is_real = rows.source[row] >= 0
        if self.turns is not None:
            expected = rows.ids(self.turns, tokens, self.offsets)[items]
            wrong = is_real & (targets != expected)
            self._find_places(
                "target", places[wrong], responses.width, targets[wrong], expected[wrong]
            )
        depth = rows.prompt_lens[row] + step - 1
        inside = (predictors >= 0) & (predictors < len(ids))
        at = np.where(inside, predictors, 0)
        wrong = ~inside | (depths[at] != depth)
        if len(at) > 0:
            before, last = np.roll(targets, 1), np.roll(at, 1)
            follows = (last < at) & (at // width == last // width) & (at % width < ends[last])
            wrong |= (step > 0) & (depth > 0) & ((ids[at] != before) | ~follows)
        wrong &= is_real & (depth >= 0)
        self._find_places("predictor", places[wrong], responses.width, predictors[wrong])

    # Shards

    def enter_shard(
        self, shard: Shard, expected: Shard | None, row_lengths: Integers | None
    ) -> None:
        """Count the tokens that a batch of a shard will train."""
        assert row_lengths is not None
        if expected is not None:
            self._check_rows(shard.rows, shard.is_padding, expected)
        rows = shard.rows[~shard.is_padding]
        slots = np.flatnonzero(~shard.is_padding)
        known = (rows >= 0) & (rows < len(row_lengths))
        rows, slots = rows[known], slots[known]
        width = int(row_lengths[rows].sum(1).max(initial=1))
        if self.merge is None:
            length = self.offsets[rows + 1] - self.offsets[rows]
            turn, start, at = rows, 0 * rows, 0 * rows
        else:
            offsets = self.pieces["piece_offsets"]
            counts = offsets[rows + 1] - offsets[rows]
            picked = self.pieces["pieces"][ranges_of(offsets[rows], counts)]
            turn, start, at, length, _ = picked.T
            slots, rows = np.repeat(slots, counts), np.repeat(rows, counts)
        self._open(len(shard) * width, width)
        token = ranges_of(self.offsets[turn] + start, length)
        place = ranges_of(slots * width + at, length)
        self._enter(token, place, width)
        has_no_prompt = row_lengths[rows, 0] == 0
        first = (self.offsets[turn] + start)[has_no_prompt & (at == 0) & (length > 0)]
        self.reasons[first] = UNPREDICTED
        copies = shard.rows[shard.is_padding]
        self.padding_tokens += int(row_lengths[copies[copies >= 0], 1].sum())
