"""The audit: every sampled token trains once, or is left out for a known reason.

Plan tables give the expected position of each token; arrays and the caller's turns are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.arrays import describe, offsets_of, places_of, to_numpy
from fastcollate.dtypes import labels_key
from fastcollate.plan.audit_report import REASONS, Audit, AuditSpan, Where
from fastcollate.plan.audit_tables import (
    Grid,
    Rows,
    Turns,
    span_of,
    unpredicted_tokens,
    weights_of,
)
from fastcollate.plan.shard import Shard

if TYPE_CHECKING:
    from fastcollate._fastcollate import Merge

Integers = NDArray[np.int64]

_NONE, _TRAINED, _MASKED, _UNPREDICTED, _CUT, _DRIFT, _DROPPED = range(len(REASONS))

MOST_FINDINGS = 100
"""Number of findings of each kind that are kept."""


def audited(
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
        if not isinstance(item, Shard) and not hasattr(item, "_plan"):
            raise TypeError(
                f"batches[{wheres[index].batch}] is {describe(item)}; pass the Batch that "
                "build_batch returned, or the shard that it is to be built of"
            )
    if merge is None:
        plans = (item.merge_plan for item in items if not isinstance(item, Shard))
        merge = next((plan._merge for plan in plans if plan is not None), None)
    ledger = _Ledger(_lengths(items, turns, merge, row_lengths), turns, merge, wheres)
    for index, item in enumerate(items):
        expected = None if planned is None else planned[index]
        if isinstance(item, Shard):
            ledger.enter_shard(index, item, expected, row_lengths)
        else:
            ledger.enter_batch(index, item, expected)
    return ledger.close()


def parts_of(shard: Shard, parts: Sequence[Any]) -> list[Shard]:
    """Return the expected rows of a shard's micro-batches; the last has all remaining ones."""
    sizes = [
        len(part) if isinstance(part, Shard) else part.plan.num_rows
        for part in parts
        if isinstance(part, Shard) or hasattr(part, "_plan")  # others are rejected later
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
    for item in items:
        if not isinstance(item, Shard):
            return np.asarray(item.plan.to_dict()["turn_response_lens"])
    if merge is not None:
        return merge.turn_response_lens
    assert row_lengths is not None
    return np.ascontiguousarray(row_lengths[:, 1])


class _Ledger:
    """The outcomes of sampled tokens so far."""

    def __init__(
        self,
        lengths: Integers,
        turns: Turns | None,
        merge: Merge | None,
        wheres: Sequence[Where],
    ) -> None:
        self.turns, self.merge, self.wheres = turns, merge, wheres
        self.offsets = offsets_of(lengths)
        total = int(self.offsets[-1])
        self.reasons = np.zeros(total, np.uint8)
        self.places = np.full(total, -1)
        """Position of each token, counted over the responses of all batches."""
        self.bases = [0]
        self.widths: list[int] = []
        self.findings: list[AuditSpan] = []
        self.problems: dict[str, int] = {}
        self.padding_tokens = 0
        self.compared: set[str] = set()
        if merge is not None:
            self.pieces = merge.to_dict()
            stands = np.zeros(total, np.bool_)
            turn, start, _, length, _ = self.pieces["pieces"].T
            stands[places_of(self.offsets[turn] + start, length)] = True
            self.reasons[~stands] = _DRIFT
            is_dropped = np.repeat(merge.turn_rows < 0, lengths)
            self.reasons[is_dropped] = _DROPPED

    # Batches

    def enter_batch(self, index: int, batch: Any, expected: Shard | None) -> None:
        """Read a batch's arrays according to its plan."""
        batch._check_whole()
        # Segments are those read, not written: in a tree, rows share positions.
        tables = batch.plan.to_dict() | {"sequence_segments": batch.plan.read_segments()}
        if not np.array_equal(np.diff(self.offsets), tables["turn_response_lens"]):
            raise ValueError(
                f"batches[{index}] was built from other turns; pass batches of the same turns, and "
                "these turns"
            )
        rows = Rows.of(tables)
        if expected is not None:
            self._check_rows(index, rows, expected)
        responses = Grid.of(tables, "response")
        streams = Grid.of(tables, "sequence")
        tokens = rows.tokens(self.offsets)
        weights = weights_of(batch)
        self._open(responses.size, responses.width)
        held = self._check_weights(index, batch, rows, responses, streams, tokens, weights)
        ids = to_numpy(batch._data["input_ids"]).reshape(-1)
        self._check_padding(index, batch, ids, streams)
        if self.turns is not None:
            self._check_ids(index, rows, streams, tokens, ids)
        if batch.spec.outputs.labels is not None:
            self._check_labels(index, batch, rows, streams, ids, held)
        if batch.plan.is_tree:
            self._check_tree(index, batch, rows, responses, streams, tokens)

    def _check_rows(self, index: int, rows: Rows, expected: Shard) -> None:
        """Compare the rows of a batch with those of the plan."""
        found = rows.source
        if self.merge is not None and len(found) > 0:
            found = np.where(found < 0, -1, self.merge.turn_rows[found])
        if len(found) != len(expected):
            self._find("rows", index, found=len(found), expected=len(expected))
            return
        wrong = (found != expected.rows) | (rows.is_padding != expected.is_padding)
        for row in np.flatnonzero(wrong).tolist():
            planned = int(expected.rows[row])
            self._find("rows", index, row=row, found=int(found[row]), expected=planned)

    def _check_weights(
        self,
        index: int,
        batch: Any,
        rows: Rows,
        grid: Grid,
        streams: Grid,
        tokens: Integers,
        weights: NDArray[Any],
    ) -> NDArray[np.bool_]:
        """Find the tokens that train; return a mask over the response tokens of all rows."""
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
            self._find_places("unsampled", index, np.flatnonzero(stray), grid.width)
        if np.count_nonzero(counts) < np.count_nonzero(trains):
            self._find_places("unsampled", index, places[trains & (token < 0)], grid.width)
            wrong = trains & (token >= 0) & ~is_sampled
            self._find_tokens("padding trains", index, token[wrong], places[wrong], grid.width)
        trained: Any = slice(None) if counts.all() else counts
        at_places, sampled = at_places[trained], token[trained]
        self._enter(index, sampled, places[trained], grid.width)

        unpredicted = unpredicted_tokens(rows, streams)
        idle = np.flatnonzero(is_sampled & ~trains)
        left = token[idle]
        given = None if self.turns is None else self.turns.weights
        reason = np.full(len(left), _NONE, np.uint8)
        if given is not None:
            reason[given[left] == 0] = _MASKED
        elif any(spec.weighs for spec in batch.spec.fields):
            reason[:] = _MASKED
        of_rows = idle if isinstance(items, slice) else items[idle]
        reason[np.isin(of_rows, unpredicted)] = _UNPREDICTED
        silent = reason == _NONE
        self._find_tokens("untrained", index, left[silent], places[idle][silent], grid.width)
        self._note(left, reason, self.bases[index] + places[idle])
        if is_real is not True:
            self.padding_tokens += int(np.count_nonzero(~is_real & (token >= 0)))

        if given is not None:
            self.compared.add("loss_mask")
            expected = given[sampled]
            with np.errstate(over="ignore"):
                wrong = at_places != expected.astype(weights.dtype)
            self._find_tokens(
                "weight",
                index,
                sampled[wrong],
                places[trained][wrong],
                grid.width,
                at_places[wrong],
                expected[wrong],
            )
        if len(token) < len(tokens):  # some have no position
            unplaced = np.ones(len(tokens), np.bool_)
            unplaced[items] = False
            unplaced &= (tokens >= 0) & np.repeat(~rows.is_padding, rows.response_lens)
            lost = np.flatnonzero(unplaced)
            self._note(tokens[lost], np.where(np.isin(lost, unpredicted), _UNPREDICTED, _CUT))
        held = np.zeros(len(tokens), np.bool_)
        held[items] = trains
        return held

    def _enter(self, index: int, tokens: Integers, places: Integers, width: int) -> None:
        """Record tokens as trained at response positions, and find repeated ones."""
        here = self.bases[index] + places
        first, last = tokens[[0, -1]].tolist() if len(tokens) > 0 else (0, -1)
        if last - first == len(tokens) - 1 and (tokens[1:] - tokens[:-1] == 1).all():
            at: Any = slice(first, last + 1)  # no token is repeated
            was = self.reasons[at] == _TRAINED
            self.reasons[at], self.places[at] = _TRAINED, here
        else:
            was = self.reasons[tokens] == _TRAINED
            self.reasons[tokens], self.places[tokens] = _TRAINED, here
            was |= self.places[tokens] != here  # of several positions, the last remains
        if was.any():
            self._find_tokens("repeated", index, tokens[was], places[was], width)

    def _check_padding(self, index: int, batch: Any, ids: NDArray[Any], grid: Grid) -> None:
        """Check that positions outside of rows hold padding."""
        outputs = {"attention_mask": 0, "input_ids": batch.spec.pad_token_id}
        for key, fill in outputs.items():
            if key not in batch.spec.table:
                continue
            values = ids if key == "input_ids" else to_numpy(batch._data[key]).reshape(-1)
            there = values[grid.places]
            # Rows of a tree share positions.
            is_stray = np.count_nonzero(values != fill) != np.count_nonzero(there != fill)
            if is_stray or batch.plan.is_tree:
                stray = values != fill
                stray[grid.places] = False
                self._find_places("padding", index, np.flatnonzero(stray), grid.width)
            if key == "attention_mask" and not there.all():
                wrong = grid.places[there == 0]
                self._find_places("not attended", index, wrong, grid.width)

    def _check_ids(
        self, index: int, rows: Rows, grid: Grid, tokens: Integers, ids: NDArray[Any]
    ) -> None:
        """Compare the ids with those of the turns."""
        assert self.turns is not None
        self.compared.add("ids")
        prompts, responses = self.turns.prompts, self.turns.responses
        is_of_turn = rows.source[grid.row] >= 0
        row, start, length = (x[is_of_turn] for x in (grid.row, grid.start, grid.length))
        dst, source = grid.dst[is_of_turn], rows.source[row]
        in_prompt = np.clip(prompts.lengths[source] - start, 0, length)
        for part, spans, begin, skip, count in (
            ("prompt", prompts, start, 0 * length, in_prompt),
            (
                "response",
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
                place = dst[segment] + skip[segment] + within
                self._find_ids(
                    *(index, part, source[segment], begin[segment] + within, place, grid.width),
                    *(found[wrong], expected[wrong]),
                )
        if self.merge is None:
            return
        # Responses before a row's last turn are compared with their own turns.
        places = rows.places_of_responses(grid)
        known = np.flatnonzero((tokens >= 0) & (places >= 0))
        token, place = tokens[known], places[known]
        turn = np.searchsorted(self.offsets, token, side="right") - 1
        position = token - self.offsets[turn]
        found, expected = ids[place], responses.values[responses.starts[turn] + position]
        wrong = (found != expected) & (turn != rows.source[rows.of_responses[known]])
        self._find_ids(
            *(index, "response", turn[wrong], position[wrong], place[wrong], grid.width),
            *(found[wrong], expected[wrong]),
        )

    def _check_labels(
        self,
        index: int,
        batch: Any,
        rows: Rows,
        grid: Grid,
        ids: NDArray[Any],
        trains: NDArray[np.bool_],
    ) -> None:
        """Compare labels with the ids of tokens that train."""
        self.compared.add("labels")
        is_shifted = batch.spec.outputs.labels[0]
        labels = to_numpy(batch._data[labels_key(is_shifted)]).reshape(-1)
        places = rows.places_of_responses(grid)
        if not trains.all() or places.min(initial=0) < 0:
            places = places[trains & (places >= 0)]
        at = places - 1 if is_shifted else places
        found = labels[at]
        wrong = found != ids[places]
        self._find_places("label", index, at[wrong], grid.width, found[wrong])
        if np.count_nonzero(labels != IGNORE_INDEX) != np.count_nonzero(found != IGNORE_INDEX):
            stray = labels != IGNORE_INDEX
            stray[at] = False
            self._find_places("label", index, np.flatnonzero(stray), grid.width, labels[stray])

    def _check_tree(
        self,
        index: int,
        batch: Any,
        rows: Rows,
        responses: Grid,
        streams: Grid,
        tokens: Integers,
    ) -> None:
        """Compare targets with the ids of rows, and follow predictors from token to token."""
        places, width = responses.places, streams.width
        items = span_of(rows.response_offsets[responses.row] + responses.start, responses.length)
        row = rows.of_responses[items]
        step = (np.arange(len(tokens)) - rows.response_offsets[rows.of_responses])[items]
        data = batch._data
        targets, predictors = (to_numpy(data[key])[places] for key in ("targets", "predictors"))
        outputs = data["input_ids"], batch._position_ids, data["subtree_end"]
        ids, depths, ends = (to_numpy(output).reshape(-1) for output in outputs)
        is_real = rows.source[row] >= 0
        if self.turns is not None:
            expected = rows.ids(self.turns, tokens)[items]
            wrong = is_real & (targets != expected)
            self._find_places(
                "target", index, places[wrong], responses.width, targets[wrong], expected[wrong]
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
        self._find_places("predictor", index, places[wrong], responses.width, predictors[wrong])

    # Shards

    def enter_shard(
        self, index: int, shard: Shard, expected: Shard | None, row_lengths: Integers | None
    ) -> None:
        """Count the tokens that a batch of a shard will train."""
        assert row_lengths is not None
        if expected is not None:
            self._check_shard(index, shard, expected)
        rows = shard.rows[~shard.is_padding]
        slots = np.flatnonzero(~shard.is_padding)
        known = (rows >= 0) & (rows < len(row_lengths))
        rows, slots = rows[known], slots[known]
        if self.merge is None:
            turn, start, at, length = rows, 0 * rows, 0 * rows, np.diff(self.offsets)[rows]
        else:
            offsets = self.pieces["piece_offsets"]
            counts = np.diff(offsets)[rows]
            picked = self.pieces["pieces"][places_of(offsets[rows], counts)]
            turn, start, at, length, _ = picked.T
            slots, rows = np.repeat(slots, counts), np.repeat(rows, counts)
        width = int(row_lengths.sum(1).max(initial=1))
        self._open(len(shard) * width, width)
        token = places_of(self.offsets[turn] + start, length)
        place = places_of(slots * width + at, length)
        self._enter(index, token, place, width)
        has_no_prompt = row_lengths[rows, 0] == 0
        first = (self.offsets[turn] + start)[has_no_prompt & (at == 0) & (length > 0)]
        self.reasons[first] = _UNPREDICTED
        copies = shard.rows[shard.is_padding]
        self.padding_tokens += int(row_lengths[copies[copies >= 0], 1].sum())

    def _check_shard(self, index: int, shard: Shard, expected: Shard) -> None:
        """Compare the rows of a shard with those of the plan."""
        if len(shard) != len(expected):
            self._find("rows", index, found=len(shard), expected=len(expected))
            return
        wrong = (shard.rows != expected.rows) | (shard.is_padding != expected.is_padding)
        for row in np.flatnonzero(wrong).tolist():
            found, planned = int(shard.rows[row]), int(expected.rows[row])
            self._find("rows", index, row=row, found=found, expected=planned)

    # Findings

    def _open(self, size: int, width: int) -> None:
        """Begin the next batch, with `size` response positions."""
        self.bases.append(self.bases[-1] + size)
        self.widths.append(max(width, 1))

    def _note(
        self, tokens: Integers, reasons: NDArray[Any], places: Integers | None = None
    ) -> None:
        """Record the reasons of untrained tokens, unless they train elsewhere."""
        fresh = self.reasons[tokens] != _TRAINED
        self.reasons[tokens[fresh]] = reasons[fresh]
        if places is not None:
            self.places[tokens[fresh]] = places[fresh]

    def _find(self, kind: str, index: int, count: int = 1, **details: Any) -> None:
        """Add a finding in a batch, up to the limit of its kind."""
        before = self.problems.get(kind, 0)
        self.problems[kind] = before + count
        if sum(finding.reason == kind for finding in self.findings) < MOST_FINDINGS:
            where = self.wheres[index]
            self.findings.append(AuditSpan(kind, **where._asdict(), **details))

    def _find_tokens(
        self,
        kind: str,
        index: int,
        tokens: Integers,
        places: Integers,
        width: int,
        found: NDArray[Any] | None = None,
        expected: NDArray[Any] | None = None,
    ) -> None:
        """Add findings of sampled tokens at response positions."""
        turns = np.searchsorted(self.offsets, tokens, side="right") - 1
        positions = tokens - self.offsets[turns]
        self._find_runs(kind, index, turns, positions, places, width, found, expected)

    def _find_places(
        self,
        kind: str,
        index: int,
        places: Integers,
        width: int,
        found: NDArray[Any] | None = None,
        expected: NDArray[Any] | None = None,
    ) -> None:
        """Add findings of positions without a token."""
        self._find_runs(kind, index, None, None, places, width, found, expected)

    def _find_ids(
        self,
        index: int,
        part: str,
        turns: Integers,
        positions: Integers,
        places: Integers,
        width: int,
        found: NDArray[Any],
        expected: NDArray[Any],
    ) -> None:
        """Add findings of ids that differ from those of turns."""
        kind = "altered" if part == "response" else "altered prompt"
        self._find_runs(kind, index, turns, positions, places, width, found, expected)

    def _find_runs(
        self,
        kind: str,
        index: int,
        turns: Integers | None,
        positions: Integers | None,
        places: Integers,
        width: int,
        found: NDArray[Any] | None = None,
        expected: NDArray[Any] | None = None,
    ) -> None:
        """Join consecutive findings, and add them."""
        if len(places) == 0:
            return
        width = max(width, 1)
        begins = np.diff(places, prepend=places[0] - 2) != 1
        begins |= places % width == 0
        for ids in (turns, positions):
            if ids is not None:
                begins |= np.diff(ids, prepend=-9) != (1 if ids is positions else 0)
        first = np.flatnonzero(begins)
        lengths = np.diff(np.append(first, len(places)))
        for at, length in zip(first.tolist(), lengths.tolist(), strict=True):
            row, column = divmod(int(places[at]), width)
            self._find(
                kind,
                index,
                length,
                turn=None if turns is None else int(turns[at]),
                position=None if positions is None else int(positions[at]),
                length=length,
                row=row,
                column=column,
                found=None if found is None else found[at].item(),
                expected=None if expected is None else expected[at].item(),
            )

    def close(self) -> Audit:
        """Return the result."""
        missing = np.flatnonzero((self.reasons == _NONE) & (self.places < 0))
        if len(missing) > 0:
            turns = np.searchsorted(self.offsets, missing, side="right") - 1
            positions = missing - self.offsets[turns]
            first = np.flatnonzero(
                (np.diff(missing, prepend=-2) != 1) | (np.diff(turns, prepend=-1) != 0)
            )
            lengths = np.diff(np.append(first, len(missing)))
            self.problems["missing"] = len(missing)
            self.findings += [
                AuditSpan(
                    "missing", turn=int(turns[at]), position=int(positions[at]), length=length
                )
                for at, length in zip(first[:MOST_FINDINGS], lengths.tolist(), strict=False)
            ]
        counts = [int(np.count_nonzero(self.reasons == reason)) for reason in range(len(REASONS))]
        return Audit(
            num_turns=len(self.offsets) - 1,
            num_tokens=int(self.offsets[-1]),
            counts={name: n for name, n in zip(REASONS, counts, strict=True) if name and n},
            padding_tokens=self.padding_tokens,
            problems=self.problems,
            findings=self.findings,
            compared=sorted(self.compared),
            _offsets=self.offsets,
            _reasons=self.reasons,
            _places=self.places,
            _bases=np.array(self.bases),
            _widths=self.widths,
            _wheres=self.wheres,
        )
