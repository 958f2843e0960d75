"""The tokens of samples: turns, or sequences with trained tokens marked."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import IGNORE_INDEX, RowSpans, compact_ids
from fastcollate.common.arguments import tally, warn_user
from fastcollate.common.arrays import is_tensor, offsets_of, ranges_of, row_and_token, to_numpy
from fastcollate.common.row_columns import IDS
from fastcollate.common.text import in_words
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.fields import Field
from fastcollate.rows.lengths import check_lengths
from fastcollate.rows.per_row import PerRow
from fastcollate.rows.truncation import Limit, Truncated

TURN = ("prompt", "response")
"""Keys of the tokens of a rollout's turn."""

SEQ_LENGTHS = "seq_lengths"
"""The key of the lengths of a packed sample's sequences."""

MASKS = ("completion_mask", "assistant_masks")
"""Keys of masks along a sequence; tokens train where all of them are 1."""

MARKS = ("labels", *MASKS)
"""Keys that mark the trained tokens along a sequence."""

SEQUENCE = ("input_ids", "prompt_len", *MARKS, "attention_mask", SEQ_LENGTHS)
"""Keys of sequences. All tokens train, unless ``prompt_len``, ``labels`` or masks are given."""

PACKED = ("input_ids", *MARKS, "attention_mask", SEQ_LENGTHS)
"""Keys of packed samples, with one item per token or sequence."""

OPTIONAL = (SEQ_LENGTHS, *MASKS)
"""Keys that may lose their own meaning if a field of the batch reads them."""


class Spans(NamedTuple):
    """Spans of samples' tokens, each a row of the batch."""

    ids: Ragged
    """The tokens of each sample."""
    starts: NDArray[np.int64]
    """Starts in the tokens of all samples: (rows,)."""
    lengths: NDArray[np.int64]

    def of(self, key: str, column: Any) -> RowSpans:
        """Return the rows of a column of samples, one value per token."""
        rows = _rows(key, column)
        _check_same_lengths(self.ids, key, rows)
        return self.rows(rows.values)

    def rows(self, values: Any) -> RowSpans:
        """Return the rows of the values of all samples' tokens."""
        return RowSpans([(values, self.starts, self.lengths)])

    def mask(self, values: NDArray[Any]) -> Ragged:
        """Return the same in one array: weight versions take tokens out of a mask."""
        offsets = offsets_of(self.lengths)
        if len(values) != offsets[-1] or not np.array_equal(offsets[:-1], self.starts):
            values = values[ranges_of(self.starts, self.lengths)]
        return Ragged(values, offsets)


class SampleTokens(NamedTuple):
    """Data of samples that follow from their tokens alone."""

    arguments: dict[str, Any]
    """Token ids, and loss masks if samples mark trained tokens, for `build_batch`."""
    spans: Spans | None = None
    """The rows, if they are not the samples: sequences of packed ones, or truncated ones."""
    truncated: Truncated | None = None


def tokens_of(columns: Mapping[str, Any], limit: Limit | None) -> SampleTokens:
    """Return the prompts and responses of samples' columns."""
    if "prompt" in columns or "response" in columns:
        others = [key for key in SEQUENCE if key in columns]
        if missing := [key for key in TURN if key not in columns]:
            present = next(key for key in TURN if key in columns)
            raise ValueError(f"samples have {present!r}, but no {missing[0]!r}; pass both")
        if others:
            marks = others[0] in MASKS and "loss_mask" not in columns
            of_response = f"columns={{{others[0]!r}: 'loss_mask'}} if it is along the response"
            raise ValueError(
                f"samples have {others[0]!r} besides 'prompt' and 'response'; "
                f"{f'pass {of_response}' if marks else 'leave it out'}, or name it in ignore"
            )
        if limit is not None:
            raise ValueError(
                "samples have 'prompt' and 'response', but max_length truncates 'input_ids' and "
                "preference pairs; leave max_length out, and limit lengths where responses are made"
            )
        return SampleTokens({"prompts": columns["prompt"], "responses": columns["response"]})
    if "input_ids" not in columns:
        why = f"their keys are {list(columns)}"
        if not columns:
            why = "none is there; if a Trainer removes them, pass remove_unused_columns=False"
        raise ValueError(
            f"samples have no tokens; pass 'prompt' and 'response', or 'input_ids' ({why})"
        )
    check_one_mark(columns, "prompt_len")
    ids = ids_of("input_ids", columns["input_ids"])
    if "attention_mask" in columns:
        _check_no_padding(ids, ids_of("attention_mask", columns["attention_mask"]))
    offsets, truncated = ids.offsets, None
    if SEQ_LENGTHS in columns:
        if limit is not None:
            raise ValueError(
                f"samples are packed, as they have {SEQ_LENGTHS!r}, but max_length is "
                f"{limit.max_length}; pass it to the packer of the dataset instead"
            )
        offsets = _sequence_offsets(ids, ids_of(SEQ_LENGTHS, columns[SEQ_LENGTHS]))
    spans = Spans(ids, offsets[:-1], np.diff(offsets))
    cut: Any = 0
    if limit is not None:
        cut, kept, truncated = limit.kept(spans.lengths)
        spans = Spans(ids, spans.starts + cut, kept)
    arguments: dict[str, Any] = {"sequences": spans.rows(ids.values)}
    if "prompt_len" in columns:
        prompt_lens = _prompt_lens(columns["prompt_len"], np.diff(offsets))
        arguments["prompt_lens"] = np.clip(prompt_lens - cut, 0, spans.lengths)
    elif (trained := _find_trained(ids, columns)) is not None:
        arguments["prompt_lens"] = _first(trained, spans)
        arguments["loss_mask"] = Field(spans.mask(trained), align="sequence")
    before = arguments.get("prompt_lens")  # the tokens before the first that trains
    if before is not None and (before == spans.lengths).all():
        warn_user(_untrained_message(columns, limit))
    is_whole = limit is None and SEQ_LENGTHS not in columns
    return SampleTokens(arguments, None if is_whole else spans, truncated)


def _untrained_message(columns: Collection[str], limit: Limit | None) -> str:
    """Return the warning for samples of which no token trains."""
    keys = in_words([key for key in ("prompt_len", *MARKS) if key in columns], "and")
    within = "" if limit is None else f" within max_length={limit.max_length}"
    advice = f"check their {keys}"
    if "assistant_masks" in columns:
        advice += ": chat templates mark what the assistant says by {% generation %}"
    return f"no token of these samples trains{within}; {advice}"


def check_one_mark(columns: Collection[str], key: str) -> None:
    """Refuse labels or masks beside another key that marks the trained tokens."""
    if key in columns and (found := [other for other in MARKS if other in columns]):
        raise ValueError(
            f"samples have {key!r} and {found[0]!r}, which both mark the tokens that train; "
            "pass one of them, or name the other in ignore"
        )


def check_spans(
    columns: Mapping[str, Any],
    fields: Mapping[str, Any],
    of_fields: Collection[str],
    limit: Limit | None,
) -> None:
    """Refuse columns and fields that do not fit the rows of packed or truncated samples.

    Packed samples have several sequences and responses; truncated ones lack tokens of a response.

    Parameters
    ----------
    columns
        The columns of samples by key.
    fields
        The fields of the batch by key.
    of_fields
        Keys of the samples that fields read.
    """
    known = PACKED if limit is None else (*SEQUENCE, *IDS.values())
    wrong = [key for key in columns if key not in known and key not in of_fields]
    wrong += [
        key
        for key, field in fields.items()
        if getattr(field, "align", "") != "sequence"
        and (limit is None or not isinstance(field, PerRow))
    ]
    if wrong:
        reason = (
            f"samples are packed, as they have {SEQ_LENGTHS!r}, but {wrong[0]!r} belongs to one "
            "sequence or its response"
            if limit is None
            else f"max_length is {limit.max_length}, but {wrong[0]!r} belongs to a response, which "
            "it may cut"
        )
        raise ValueError(
            f"{reason}; leave {wrong[0]!r} out, or pass one value per token as "
            "fc.Field(..., align='sequence')"
        )


def _sequence_offsets(ids: Ragged, lengths: Ragged) -> NDArray[np.int64]:
    """Return the offsets of the sequences of all samples in the tokens."""
    check_same_rows(SEQ_LENGTHS, len(lengths), len(ids))
    counts = to_numpy(lengths.values)
    if (counts < 1).any() or len(counts) == 0:
        index = int((counts < 1).argmax()) if len(counts) else 0
        row, position = row_and_token(lengths.offsets, index)
        found = f"[{row}][{position}] is {counts[index]}" if len(counts) else " has no lengths"
        raise ValueError(f"{SEQ_LENGTHS}{found}; pass lengths of 1 or more")
    # Checked one by one, as a sum of large numbers may overflow.
    most = np.repeat(ids.lengths, lengths.lengths)
    if (counts > most).any():
        index = int((counts > most).argmax())
        row, position = row_and_token(lengths.offsets, index)
        raise ValueError(
            f"{SEQ_LENGTHS}[{row}][{position}] is {counts[index]}, but input_ids[{row}] has "
            f"{tally(int(most[index]), 'token')}; pass lengths that add up to these"
        )
    offsets = offsets_of(counts)
    tokens = np.diff(offsets[lengths.offsets])
    if (tokens != ids.lengths).any():
        row = int((tokens != ids.lengths).argmax())
        raise ValueError(
            f"{SEQ_LENGTHS}[{row}] adds up to {tokens[row]}, but input_ids[{row}] has "
            f"{tally(int(ids.lengths[row]), 'token')}; pass lengths that add up to these"
        )
    return offsets


def ids_of(name: str, column: Any) -> Ragged:
    """Return a column of integers in one array, or one tensor, on the host."""
    if isinstance(column, (list, tuple)) or is_object_array(column):
        if not all(_is_integers(row) for row in column) or len({row.dtype for row in column}) > 1:
            # The core unpacks Python numbers, and its errors name the place.
            column = [compact_ids(name, row, index) for index, row in enumerate(column)]
        if len({row.dtype for row in column}) == 1:
            return Ragged(np.concatenate(column), offsets_of([len(row) for row in column]))
        return ragged(column, dtype="int64") if len(column) else Ragged(np.empty(0, np.int64), [0])
    rows = _rows(name, column)
    values = to_numpy(rows.values)
    if values.ndim != 1 or values.dtype.kind not in "biu":
        raise TypeError(
            f"{name} holds {values.dtype} of shape {values.shape[1:]} per token; pass one integer "
            "per token"
        )
    # A tensor stays one: the core looks up its memory, which another thread may move.
    is_view = is_tensor(rows.values) and rows.values.is_cpu
    return rows if is_view else Ragged(values, rows.offsets)


def _rows(name: str, column: Any) -> Ragged:
    try:
        return ragged(column)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} cannot be read: {error}") from error


def is_object_array(column: Any) -> bool:
    """Return True for an array of objects, such as rows of different lengths."""
    return isinstance(column, np.ndarray) and column.dtype.kind == "O"


def _is_integers(row: Any) -> bool:
    return type(row) is np.ndarray and row.ndim == 1 and row.dtype.kind in "iu"


def check_same_rows(name: str, found: int, expected: int, of: str = "input_ids") -> None:
    """Check that a column has as many rows as the token ids."""
    if found != expected:
        raise ValueError(
            f"{name} has {tally(found, 'row')}, but {of} has {expected}; pass one row per sample"
        )


def _check_same_lengths(ids: Ragged, name: str, other: Ragged) -> None:
    check_same_rows(name, len(other), len(ids))
    differ = other.lengths != ids.lengths
    if differ.any():
        row = int(differ.argmax())
        raise ValueError(
            f"{name}[{row}] has {tally(int(other.lengths[row]), 'item')}, but input_ids[{row}] has "
            f"{ids.lengths[row]}; pass one value per token"
        )


def _check_no_padding(ids: Ragged, mask: Ragged) -> None:
    _check_same_lengths(ids, "attention_mask", mask)
    values = to_numpy(mask.values)
    if (values != 1).any():
        index = int((values != 1).argmax())
        row, position = row_and_token(ids.offsets, index)
        raise ValueError(
            f"attention_mask[{row}][{position}] is {values[index]}, so the row is padded or packed "
            f"already; pass rows without padding, of packed ones the lengths as {SEQ_LENGTHS!r}"
        )


def _find_trained(ids: Ragged, columns: Mapping[str, Any]) -> np.ndarray | None:
    """Return True for tokens that train by labels or masks: bool (tokens,); None if all do."""
    if "labels" in columns:
        return _label(ids, ids_of("labels", columns["labels"]))
    masks = [_keep(ids, key, ids_of(key, columns[key])) for key in MASKS if key in columns]
    return functools.reduce(np.logical_and, masks) if masks else None


def _keep(ids: Ragged, key: str, mask: Ragged) -> np.ndarray:
    """Return True for tokens that a mask keeps: bool (tokens,)."""
    _check_same_lengths(ids, key, mask)
    values = to_numpy(mask.values)
    kept: np.ndarray = values == 1
    wrong = kept == (values == 0)
    if wrong.any():
        index = int(wrong.argmax())
        row, position = row_and_token(ids.offsets, index)
        raise ValueError(
            f"{key}[{row}][{position}] is {values[index]}; pass 1 for tokens that train and 0 for "
            "others"
        )
    return kept


def _label(ids: Ragged, labels: Ragged) -> np.ndarray:
    """Return True for tokens with a label: bool (tokens,)."""
    _check_same_lengths(ids, "labels", labels)
    targets, tokens = to_numpy(labels.values), to_numpy(ids.values)
    trained: np.ndarray = targets != IGNORE_INDEX
    wrong = targets != tokens
    wrong &= trained
    if wrong.any():
        index = int(wrong.argmax())
        row, position = row_and_token(ids.offsets, index)
        raise ValueError(
            f"labels[{row}][{position}] is {targets[index]}, but "
            f"input_ids[{row}][{position}] is {tokens[index]}; pass {IGNORE_INDEX} or the id of "
            "the same position (models shift labels themselves)"
        )
    return trained


def _first(trained: np.ndarray, spans: Spans) -> np.ndarray:
    """Return the number of tokens of each row before the first trained one: int64 (rows,)."""
    places = np.append(np.flatnonzero(trained), len(trained))
    first = places[np.searchsorted(places, spans.starts)]
    found: np.ndarray = np.minimum(first - spans.starts, spans.lengths)
    return found


def _prompt_lens(column: Any, lengths: np.ndarray) -> np.ndarray:
    prompt_lens = check_lengths("prompt_len", column)
    check_same_rows("prompt_len", len(prompt_lens), len(lengths))
    if (longer := np.flatnonzero(prompt_lens > lengths)).size:
        row = int(longer[0])
        raise ValueError(
            f"prompt_len[{row}] is {prompt_lens[row]}, but input_ids[{row}] has {lengths[row]} "
            f"tokens; pass a number from 0 to {lengths[row]}"
        )
    return prompt_lens
