"""Port of TRL's packing of the rows of a dataset, value by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastcollate.testing.reference import pack_loops

Columns = Mapping[str, Sequence[Sequence[Any]]]


def pack_dataset(columns: Columns, seq_length: int, strategy: str = "bfd") -> dict[str, Any]:
    """Return one batch of a dataset packed as by TRL's function of this name.

    Parameters
    ----------
    columns
        Rows of values by name; a row has as many values in every column.
    seq_length
        Most values of a packed row.
    strategy
        ``"bfd"``, ``"bfd_split"`` or ``"wrapped"``.

    Returns
    -------
    dict
        Packed rows by name, and but for ``"wrapped"`` the ``seq_lengths`` of each.

    Notes
    -----
    TRL 1.16.0, ``pack_dataset`` of ``trl/data_utils.py``.
    """
    if strategy == "wrapped":
        packed: dict[str, Any] = {}
        for name, rows in columns.items():
            joined = [value for row in rows for value in row]
            packed[name] = [
                joined[start : start + seq_length] for start in range(0, len(joined), seq_length)
            ]
        return packed

    lengths = [len(values) for values in next(iter(columns.values()))]
    if strategy == "bfd":
        lengths = [min(length, seq_length) for length in lengths]
    rows_with_values = [row for row, length in enumerate(lengths) if length]
    bins = pack_loops(
        [lengths[row] for row in rows_with_values], seq_length, algorithm="bfd", oversize="split"
    )
    packed = {name: [] for name in columns}
    packed["seq_lengths"] = []
    for members in bins:
        for name, rows in columns.items():
            joined = []
            for item, start, length in members:
                joined += rows[rows_with_values[item]][start : start + length]
            packed[name].append(joined)
        packed["seq_lengths"].append([length for *_, length in members])
    return packed
