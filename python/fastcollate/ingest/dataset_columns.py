"""Datasets of the library ``datasets``: columns that Arrow holds, read without a row in between."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

_LISTS = ("List", "LargeList", "Sequence")
_NUMBERS_AND_TEXT = ("Value", "ClassLabel")
_OF_TABLES = ("arrow", "pandas", "polars")
"""Formats whose columns are those of a table."""


def is_dataset(value: Any) -> bool:
    """Say whether something is a ``Dataset``. Where ``datasets`` was not imported, nothing is."""
    return _is("Dataset", value)


def is_streamed(value: Any) -> bool:
    """Say whether something is an ``IterableDataset``, whose number of rows is not known."""
    return _is("IterableDataset", value, "datasets.iterable_dataset")


def is_column(value: Any) -> bool:
    """Say whether something is a ``Column`` of a dataset, as ``dataset["key"]`` is."""
    return _is("Column", value)


def makes_rows(dataset: Any) -> bool:
    """Say whether a function of the user's makes a dataset's rows, with keys of its own."""
    return bool(dataset.format["type"] == "custom")


def shown_columns(dataset: Any) -> list[str]:
    """Return the names of the columns that a dataset's rows have."""
    format = dataset.format
    names = dataset.column_names if format["output_all_columns"] else format["columns"]
    return list(names)


def first_row(dataset: Any) -> Any:
    """Return the first row as Python has it."""
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
        What holds numbers, text, or lists of these as Arrow. All else as the dataset gives it:
        images, for instance, are decoded.
    """
    plain = [] if makes_rows(dataset) else names
    plain = [name for name in plain if _is_plain(dataset.features[name])]
    # A shuffled or filtered dataset has its indices beside the table: slices of it follow them,
    # the table's own columns do not.
    table = dataset.with_format("arrow", columns=plain)[:] if plain else {}
    if dataset.format["type"] in _OF_TABLES:
        dataset = dataset.with_format(None)
    return {name: table[name] if name in plain else dataset[name][:] for name in names}


def _is(name: str, value: Any, module: str = "datasets.arrow_dataset") -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _is_plain(feature: Any) -> bool:
    """Say whether Arrow holds what the dataset gives: numbers, text, and lists of one length."""
    is_inner = False
    while type(feature).__name__ in _LISTS and not (is_inner and feature.length < 0):
        feature, is_inner = feature.feature, True
    return type(feature).__name__ in _NUMBERS_AND_TEXT
