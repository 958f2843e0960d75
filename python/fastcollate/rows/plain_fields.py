"""Plain values in place of fields: the lengths of their rows give the alignment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from fastcollate._fastcollate import RowSpans
from fastcollate.common.arguments import is_sequence, suggests_names, tally
from fastcollate.common.arrays import is_array, is_tensor, offsets_of, ranges_of, to_numpy
from fastcollate.common.text import in_words, show
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.fields import FIELDS, AnyField, Field
from fastcollate.rows.lengths import Integers
from fastcollate.rows.tokens import Parts, Tokens, Whole, row_len
from fastcollate.rows.versions import (
    NO_VERSION,
    Lag,
    WeightVersions,
    check_versions,
    read_versions,
)

Alignment: TypeAlias = Literal["response", "sequence"]

_ALIGNS: tuple[Alignment, Alignment] = ("response", "sequence")


class _Lengths(NamedTuple):
    """Lengths of the batch's rows, in tokens."""

    responses: Integers
    sequences: Integers


def with_fields(
    fields: Any,
    tokens: Tokens,
    row: int | None = None,
    first: Mapping[str, Any] | None = None,
    own: Sequence[int] | None = None,
) -> Any:
    """Return the argument ``fields`` of `build_batch` with a :class:`Field` for plain values.

    All of their rows have the lengths of responses or all the lengths of sequences, not both.

    Parameters
    ----------
    fields, tokens
        Of all rows, or of one.
    row
        The index of one row.
    first
        Fields of the first row, which give the alignment of one that may have either, as it has no
        prompt.
    own
        The rows of a shard, which are read alone if all are lists and these give the alignment.

    Raises
    ------
    TypeError
        Other values; the message gives the fields to choose from.
    """
    if not isinstance(fields, Mapping) or all(isinstance(one, AnyField) for one in fields.values()):
        return fields
    lengths: _Lengths | str | None = None
    if row is not None:
        lengths = _of_tokens(_as_column(tokens))
    made = dict(fields)
    for key, one in fields.items():
        if isinstance(one, AnyField):
            continue
        place, shown, values = f"fields[{show(key)}]", " ".join(show(one).split()), one
        if row is not None:
            place, values = f"{place} of row {row}", [one]
            if _is_number(one):
                raise _error(place, shown, "one number", _of_numbers(shown))
        if not is_sequence(one):
            raise TypeError(f"{place} is {shown}; pass {FIELDS}")
        align = getattr((first or {}).get(key), "options", {}).get("align")
        if own is not None and (found := _of_shard(one, tokens, own)) is not None:
            made[key] = Field(one, found)
            continue
        lengths = lengths or _of_tokens(tokens)
        made[key] = Field(one, _align(place, values, lengths, shown, align))
    return made


@suggests_names
@dataclass(frozen=True, eq=False)
class ReadVersions(Field):
    """Weight versions of tokens that have been read; those that are too old are masked already."""

    lag: Lag | None = None
    """For metrics."""


def with_versions(
    fields: Mapping[str, Any], loss_mask: Any, tokens: Tokens, *, may_be_named: bool = True
) -> tuple[Mapping[str, Any], Any, tuple[tuple[str, Lag], ...]]:
    """Return fields with :class:`ReadVersions` for each :class:`WeightVersions`, and the loss mask.

    Returns
    -------
    fields
        The fields.
    loss_mask
        The loss mask, 0 on tokens that are too old.
    lags
        The options of fields whose lag is counted, by key.
    """
    made, lags = dict(fields), list[tuple[str, Lag]]()
    for key, field in fields.items():
        if isinstance(field, ReadVersions) and field.lag is not None:
            lags.append((key, field.lag))
        if not isinstance(field, WeightVersions):
            continue
        lag, lengths = Lag.of(key, field), _of_tokens(tokens)
        if isinstance(lengths, str):
            raise TypeError(f"{key} has weight versions {lengths}; pass tokens that can be read")
        versions = read_versions(key, field.rows, lengths.responses)
        if not versions.is_per_row and np.array_equal(versions.values.lengths, lengths.sequences):
            versions = versions._replace(values=_of_responses(versions.values, lengths))
        check_versions(key, versions, lag)
        if versions.has_names and not may_be_named:
            raise ValueError(f"{key} has versions that each worker numbers anew; pass numbers")
        spread: Any = "all" if versions.is_per_row else None
        made[key] = ReadVersions(
            versions.values, fill=NO_VERSION, dtype="int32", spread=spread, lag=lag
        )
        if lag is not None:
            lags.append((key, lag))
            stale = lag.stale(versions.of_tokens(lengths.responses))
            if lag.max_lag is not None and len(stale) == lengths.responses.sum():
                loss_mask = _without(loss_mask, stale, lengths)
    return made, loss_mask, tuple(lags)


def versions_of_row(
    fields: Mapping[str, Any], loss_mask: Any, tokens: Tokens
) -> tuple[Mapping[str, Any], Any]:
    """Return the fields of one row with versions per token, and its loss mask."""
    given = {key: one for key, one in fields.items() if isinstance(one, WeightVersions)}
    if not given:
        return fields, loss_mask

    def alone(value: Any) -> Any:
        is_field = isinstance(value, (Field, WeightVersions))
        return dataclasses.replace(value, rows=[value.rows]) if is_field else [value]

    mask = None if loss_mask is None else alone(loss_mask)
    columns = {key: alone(one) for key, one in given.items()}
    made, mask, _ = with_versions(columns, mask, _as_column(tokens), may_be_named=False)
    for key, field in made.items():
        is_per_row = field.spread is not None
        versions = (
            np.repeat(field.rows, row_len(tokens, "response")) if is_per_row else field.rows[0]
        )
        columns[key] = dataclasses.replace(field, rows=versions, spread=None)
    if isinstance(mask, Field):
        mask = dataclasses.replace(mask, rows=mask.rows[0])
    elif mask is not None:
        mask = mask[0]
    return {**fields, **columns}, mask


def _without(loss_mask: Any, stale: Any, lengths: _Lengths) -> Any:
    """Return a loss mask with 0 on response tokens that are marked, of all rows end to end."""
    if loss_mask is None:
        return Ragged((~stale).astype(np.uint8), offsets_of(lengths.responses))
    rows, lens, default = loss_mask, lengths.responses, None
    if isinstance(loss_mask, Field):
        rows, default = loss_mask.rows, loss_mask.default
        lens = lengths.sequences if loss_mask.align == "sequence" else lens
    if default is not None and isinstance(rows, (list, tuple)):
        counts = lens.tolist()
        rows = [[default] * counts[at] if row is None else row for at, row in enumerate(rows)]
    mask = ragged(rows, dtype="float64")
    if not np.array_equal(mask.lengths, lens):
        return loss_mask  # the error names the row
    values = to_numpy(mask.values).copy()
    responses = ranges_of(mask.offsets[1:] - lengths.responses, lengths.responses)
    values[responses[stale]] = 0
    weights = Ragged(values, mask.offsets)
    is_field = isinstance(loss_mask, Field)
    return dataclasses.replace(loss_mask, rows=weights) if is_field else weights


def _as_column(row: Tokens) -> Tokens:
    """Return the tokens of one row as those of a column of it."""
    if isinstance(row, Parts):
        return Parts([row.prompts], [row.responses])
    return Whole([row.sequences], np.array([row.prompt_lens or 0]))


def _of_responses(rows: Ragged, lengths: _Lengths) -> Ragged:
    """Return the values of responses, of rows of whole sequences."""
    places = ranges_of(rows.offsets[1:] - lengths.responses, lengths.responses)
    return Ragged(to_numpy(rows.values)[places], offsets_of(lengths.responses))


def _of_shard(values: Any, tokens: Tokens, own: Sequence[int]) -> Alignment | None:
    """Return the alignment of lists by a shard's rows; None if it takes others to know."""
    columns: list[Any] = [values, *tokens]
    given = [column for column in columns if column is not None]
    counts = {len(one) if type(one) in (list, np.ndarray) else -1 for one in given}
    if len(counts) > 1 or max(own, default=0) >= counts.pop():
        return None
    rows = [None if one is None else [one[row] for row in own] for one in columns]
    found, is_flat = _of_rows(rows[0])
    lengths = _of_tokens(type(tokens)(*rows[1:]))  # type: ignore[arg-type]
    if found is None or not is_flat or isinstance(lengths, str):
        return None
    fits = [np.array_equal(found, lens) for lens in lengths]
    return _ALIGNS[fits.index(True)] if sum(fits) == 1 else None


def _is_number(value: Any) -> bool:
    """Return True for a number, also of NumPy, torch and Arrow."""
    value = value.as_py() if hasattr(value, "as_py") else value
    return isinstance(value, (Number, np.generic)) or (is_array(value) and value.ndim == 0)


def _align(place: str, values: Any, lengths: _Lengths | str, shown: str, align: Any) -> Alignment:
    """Return the alignment of plain values, or raise an error with the fields to choose from."""
    if _is_number(next(iter(values), None)):
        raise _error(place, shown, "one number per row", _of_numbers(shown))
    found, is_flat = _of_rows(values)
    of_tokens = [f"fc.Field({shown})", f'fc.Field({shown}, align="sequence")']
    if found is None:
        if isinstance(values, (list, tuple)) and any(row is None for row in values):
            choices = [f"fc.Field({shown}, default=...)", f"fc.PerRow({shown}, dtype=object)"]
            raise _error(place, shown, "not a row of numbers each", choices)
        raise _error(place, shown, "not a row of numbers each", [f"fc.PerRow({shown})"])
    if not is_flat:
        what = "several values per token"
        others = [f"fc.Field({shown}, ragged=True)", f"fc.RoutedExperts({shown})"]
        raise _error(place, shown, what, [*of_tokens, *others])
    if isinstance(lengths, str):
        raise _error(place, shown, lengths, of_tokens)
    responses, sequences = lengths
    fits_responses, fits_sequences = (np.array_equal(found, lens) for lens in lengths)
    if fits_responses and fits_sequences:
        if align is None:
            what = "as long as responses and as sequences, since no row has a prompt"
            raise _error(place, shown, what, of_tokens)
        return cast("Alignment", align)
    if fits_responses or fits_sequences:
        return _ALIGNS[fits_sequences]
    choices = [*of_tokens, f"fc.PerRow({shown})"]
    if len(found) != len(responses):
        rows, expected = tally(len(found), "row"), tally(len(responses), "row")
        raise _error(place, shown, f"{rows}, but the batch has {expected}", choices)
    differs = (found != responses) & (found != sequences)
    row = int((differs if differs.any() else found != responses).argmax())
    subscript = "" if "of row" in place else f"[{row}]"
    message = (
        f"{place}{subscript} has {tally(int(found[row]), 'item')}, but its response has "
        f"{responses[row]}, and {sequences[row]} with the prompt"
    )
    for name, lens in zip(("response", "sequence"), lengths, strict=True):
        if 2 * np.count_nonzero(found == lens) > len(found):
            raise ValueError(f"{message}; pass {lens[row]}: most rows have one per {name} token")
    if (lacks := found - responses).min() == lacks.max() == -1:
        raise ValueError(
            f"{message}; pass one value per response token: all rows lack one, as of values whose "
            "first or last token was cut off"
        )
    raise TypeError(f"{message}; pass {in_words(choices, 'or')}")


def _of_numbers(shown: str) -> list[str]:
    return [f'fc.Field({shown}, spread="trained")', f"fc.PerRow({shown})"]


def _error(place: str, shown: str, what: str, choices: list[str]) -> TypeError:
    if "version" in place:
        choices = [f"fc.WeightVersions({shown})", *choices]
    return TypeError(f"{place} is {shown}: {what}; pass {in_words(choices, 'or')}")


def _of_tokens(tokens: Tokens) -> _Lengths | str:
    """Return the lengths of responses and of sequences, or why they cannot be read."""
    first, _ = _of_rows(tokens[0])
    if isinstance(tokens, Parts):
        responses, _ = _of_rows(tokens.responses)
        if first is not None and responses is not None and len(first) == len(responses):
            return _Lengths(responses, first + responses)
    elif first is not None:
        prompts = np.asarray(0 if tokens.prompt_lens is None else tokens.prompt_lens)
        if prompts.ndim == 0 or len(prompts) == len(first):
            return _Lengths(first - prompts, first)
    return "beside tokens whose lengths cannot be read or do not fit together"


def _of_rows(rows: Any) -> tuple[Integers | None, bool]:
    """Return the length of each row, or None, and True if a token has one value."""
    if is_array(rows) and rows.ndim > 1 and not (is_tensor(rows) and rows.is_nested):
        return np.full(len(rows), rows.shape[1], np.int64), rows.ndim == 2
    if isinstance(rows, Ragged):
        return rows.lengths, rows.trailing == ()
    if isinstance(rows, RowSpans):
        return rows.lengths, True
    if hasattr(rows, "__arrow_c_stream__") and not hasattr(type(rows), "__len__"):
        return None, True  # a stream may yield its rows only once
    is_of_columns = hasattr(rows, "__arrow_c_array__") or hasattr(rows, "__arrow_c_stream__")
    if is_sequence(rows) and not is_of_columns and not is_tensor(rows):
        items = list(rows)
        if not all(is_sequence(item) for item in items):
            return None, True
        full: Any = next((item for item in items if len(item) > 0), [0])
        is_flat = full.ndim == 1 if is_array(full) else not hasattr(full[0], "__len__")
        return np.fromiter(map(len, items), np.int64, len(items)), is_flat
    try:
        column = ragged(rows)
    except (TypeError, ValueError):
        return None, True
    return column.lengths, column.trailing == ()
