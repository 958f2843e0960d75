"""Datasets of the library ``datasets``: columns read from Arrow, without making rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

_LISTS = ("List", "LargeList", "Sequence")
_NUMBERS_AND_TEXT = ("Value", "ClassLabel")
_OF_TABLES = ("arrow", "pandas", "polars")
"""Formats that return columns of a table."""


def is_dataset(value: Any) -> bool:
    """Return True for a ``Dataset``; False for anything if ``datasets`` is not imported."""
    return _is("Dataset", value)


def is_streamed(value: Any) -> bool:
    """Return True for an ``IterableDataset``, which has no length."""
    return _is("IterableDataset", value, "datasets.iterable_dataset")


def is_column(value: Any) -> bool:
    """Return True for a ``Column`` of a dataset, such as ``dataset["key"]``."""
    return _is("Column", value)


def makes_rows(dataset: Any) -> bool:
    """Return True if a user's function makes a dataset's rows, with its own keys."""
    return bool(dataset.format["type"] == "custom")


def show_columns(dataset: Any) -> list[str]:
    """Return the names of the columns in a dataset's rows."""
    format = dataset.format
    names = dataset.column_names if format["output_all_columns"] else format["columns"]
    return list(names)


def first_row(dataset: Any) -> Any:
    """Return the first row as Python objects."""
    return dataset.with_format(None)[0]


def read_column(column: Any) -> Any:
    """Return all rows of a ``Column``, as `read_columns` does."""
    if is_dataset(column.source):
        return read_columns(column.source, [column.column_name])[column.column_name]
    return column[:]


def read_columns(dataset: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return columns of a dataset, in the order of its rows.

    Returns
    -------
    dict
        Columns of numbers, text, or lists of these as Arrow. Others as the dataset returns them:
        images, for instance, are decoded.
    """
    plain = [] if makes_rows(dataset) else names
    plain = [name for name in plain if _is_plain(dataset.features[name])]
    # A shuffled or filtered dataset keeps indices into the table: slices of the dataset follow
    # them, the table's own columns do not.
    table = dataset.with_format("arrow", columns=plain)[:] if plain else {}
    if dataset.format["type"] in _OF_TABLES:
        dataset = dataset.with_format(None)
    return {name: table[name] if name in plain else dataset[name][:] for name in names}


def _is(name: str, value: Any, module: str = "datasets.arrow_dataset") -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _is_plain(feature: Any) -> bool:
    """Return True if Arrow's values are the dataset's: numbers, text, and lists of one length."""
    is_inner = False
    while type(feature).__name__ in _LISTS and not (is_inner and feature.length < 0):
        feature, is_inner = feature.feature, True
    return type(feature).__name__ in _NUMBERS_AND_TEXT
