"""Columns of ``datasets`` and pandas in forms that the core reads: Arrow's memory, or a list."""

from __future__ import annotations

import sys
from typing import Any

from fastcollate.rows import dataset_columns


def is_column(value: Any) -> bool:
    """Return True for a ``Column`` of a dataset, or a ``Series`` of pandas.

    A ``DataFrame`` of one column counts as that column, like a table of Arrow.
    """
    is_single = is_frame(value) and value.shape[1] == 1
    return (
        is_single
        or _is_pandas("Series", value)
        or dataset_columns.is_column(value)
        or _is_grouped(value)
    )


def read_column(column: Any) -> Any:
    """Return all rows of a column, in order; the index of a ``Series`` is ignored.

    pandas could convert lists and arrays to Arrow too, but that takes longer than reading them in
    the core, and turns NaN into nulls.
    """
    if _is_grouped(column):
        raise TypeError(
            "it is a pandas GroupBy, with one table per group; pass the table's columns, and the "
            "column of the groups as uids=table[...]"
        )
    if dataset_columns.is_column(column):
        return dataset_columns.read_column(column)
    series = column.iloc[:, 0] if is_frame(column) else column
    is_arrow = hasattr(series.dtype, "pyarrow_dtype")
    return series.array.__arrow_array__() if is_arrow else series.tolist()


def is_frame(value: Any) -> bool:
    """Return True for a ``DataFrame`` of pandas."""
    return _is_pandas("DataFrame", value)


def _is_grouped(value: Any) -> bool:
    return type(value).__name__ in ("DataFrameGroupBy", "SeriesGroupBy")


def _is_pandas(name: str, value: Any) -> bool:
    kind = getattr(sys.modules.get("pandas"), name, None)
    return kind is not None and isinstance(value, kind)
