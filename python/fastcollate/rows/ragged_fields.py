"""Fields with any number of values per token, as the two columns that the core reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from fastcollate._fastcollate import FieldSpec, RowSpans, arrow_nested_chunks
from fastcollate.common.arguments import check_choice, tally
from fastcollate.common.arrays import (
    check_dtype_name,
    convert,
    describe,
    first_misfit,
    is_array,
    misfit,
    offsets_of,
    on_host,
    row_and_token,
)
from fastcollate.rows.columns import Ragged
from fastcollate.rows.table_columns import is_column, read_column
from fastcollate.rows.tokens import Tokens, row_len

if TYPE_CHECKING:
    from fastcollate.rows.fields import Field


OwnToken: TypeAlias = Literal["keep", "add", "error"]
"""What to do with a token whose values lack its own id."""


def offsets_key(key: str) -> str:
    """Return the key of the offsets of a ragged field."""
    return f"{key}_offsets"


def ragged_specs(key: str, field: Field) -> tuple[FieldSpec, FieldSpec]:
    """Return how the values and the counts of a ragged field are read and written."""
    field.check_align(key)
    for name, default in (("fill", 0), ("gap_fill", None), ("spread", None), ("default", None)):
        if (value := getattr(field, name)) != default:
            raise ValueError(
                f"{key} is ragged and has {name}={value!r}, but a ragged field has no values where "
                f"none are given; leave {name} out"
            )
    dtype = "int32" if field.dtype is None else check_dtype_name(field.dtype, key)
    check_choice(f"own_token of {key}", field.own_token, get_args(OwnToken))
    if field.own_token != "keep" and dtype not in ("uint8", "int16", "int32", "int64"):
        raise ValueError(
            f"{key} has own_token={field.own_token!r} and dtype {dtype}, but ids of tokens are "
            "integers; pass dtype='int32', or leave own_token out"
        )
    values = FieldSpec(key, key, align="ragged", dtype=dtype, own_token=field.own_token)
    counts = FieldSpec(offsets_key(key), key, align=f"{field.align}_counts", dtype="int64")
    return values, counts


def ragged_columns(key: str, rows: Any) -> tuple[Any, Any]:
    """Return the values and the counts of all rows; the core takes both out of other rows."""
    if isinstance(rows, Ragged) or is_array(rows):
        raise TypeError(
            f"{key} is {describe(rows)}, which has no number of values for each token; pass a "
            "tuple (values, counts) of two fastcollate.Ragged, with one count per token"
        )
    if is_column(rows):
        rows = read_column(rows)
    chunks = None if isinstance(rows, (list, tuple)) else arrow_nested_chunks(rows, key)
    if chunks is not None:
        values = [(values, ends[:-1], np.diff(ends)) for values, ends, _, _ in chunks]
        counts = [(counts, ends[:-1], np.diff(ends)) for _, _, counts, ends in chunks]
        return RowSpans(values), RowSpans(counts)
    is_pair = isinstance(rows, tuple) and len(rows) == 2
    if is_pair and all(isinstance(one, (Ragged, RowSpans)) for one in rows):
        values_of_rows, counts_of_rows = rows
        return values_of_rows, counts_of_rows
    return rows, rows


def ragged_row(key: str, index: int, field: Field, tokens: Tokens) -> tuple[Any, Any]:
    """Return copies of one row's values and counts, checked.

    Parameters
    ----------
    key, index
        The field's key, and the row's index for errors.
    field, tokens
        Those of the row alone.
    """
    spec, _ = ragged_specs(key, field)
    values, counts = map(np.array, map(on_host, spec.nested_row(field.rows, index)))
    place = f"{key}[{index}]"
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or values.ndim != 1:
        raise TypeError(
            f"{place} has values of shape {values.shape} and {counts.dtype} counts of shape "
            f"{counts.shape}; pass two arrays of one dimension, with integers as counts"
        )
    if len(counts) != (expected := row_len(tokens, field.align)):
        raise ValueError(
            f"{place} has {tally(len(counts), 'token')}, but its {field.align} has {expected}; "
            "pass the values of every token, [] for none"
        )
    if (counts < 0).any():
        token = int((counts < 0).argmax())
        raise ValueError(
            f"{place}[{token}] has a count of {counts[token]}, but a token has 0 values or more; "
            "pass the number of values of each token"
        )
    if counts.sum() != len(values):
        raise ValueError(
            f"{place} has {tally(len(values), 'value')}, but the counts of its tokens add up to "
            f"{counts.sum()}; pass all values of its tokens, one token after the other"
        )
    dtype = str(spec.dtype)
    target = np.dtype("float32" if dtype == "bfloat16" else dtype)
    if (at := first_misfit(values, target)) is not None:
        token, _ = row_and_token(offsets_of(counts), at)
        raise misfit(f"{place}[{token}]", values[at], dtype)
    return convert(values, target), counts
