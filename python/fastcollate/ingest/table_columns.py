"""Columns of ``datasets`` and pandas as the core reads rows: Arrow's memory, or a list."""

from __future__ import annotations

import sys
from typing import Any

from fastcollate.ingest import dataset_columns


def is_column(value: Any) -> bool:
    """Say whether something is a ``Column`` of a dataset, or a ``Series`` of pandas.

    A ``DataFrame`` of one column counts as that column, as tables of Arrow do.
    """
    is_single = is_frame(value) and value.shape[1] == 1
    return is_single or _is_pandas("Series", value) or dataset_columns.is_column(value)


def read_column(column: Any) -> Any:
    """Return all rows of a column, in its order: the index of a ``Series`` means nothing.

    pandas would make Arrow of lists and arrays too, but takes longer than the core takes to read
    them, and makes nulls of NaN.
    """
    if dataset_columns.is_column(column):
        return dataset_columns.read_column(column)
    series = column.iloc[:, 0] if is_frame(column) else column
    return series.array.__arrow_array__() if _is_arrow(series) else series.tolist()


def is_frame(value: Any) -> bool:
    """Say whether something is a ``DataFrame`` of pandas."""
    return _is_pandas("DataFrame", value)


def _is_arrow(series: Any) -> bool:
    return hasattr(series.dtype, "pyarrow_dtype")


def _is_pandas(name: str, value: Any) -> bool:
    kind = getattr(sys.modules.get("pandas"), name, None)
    return kind is not None and isinstance(value, kind)
