"""How TRL packs the rows of a dataset, value by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Columns = Mapping[str, Sequence[Sequence[Any]]]


def pack_dataset(columns: Columns, seq_length: int, strategy: str = "bfd") -> dict[str, Any]:
    """Do what TRL's function of this name does to one batch of a dataset.

    Parameters
    ----------
    columns
        Rows of values by name; a row has as many values in every column.
    seq_length
        How many values a packed row has at most.
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

    pieces: list[tuple[int, int, int]] = []  # of which row, from where, to where
    for row, values in enumerate(next(iter(columns.values()))):
        length = len(values)
        if strategy == "bfd":
            length = min(length, seq_length)
        for start in range(0, length, seq_length):
            pieces.append((row, start, min(start + seq_length, length)))
    lengths = [end - start for _, start, end in pieces]
    bins = best_fit_decreasing(lengths, seq_length)
    packed = {name: [] for name in columns}
    packed["seq_lengths"] = []
    for members in bins:
        for name, rows in columns.items():
            joined = []
            for piece in members:
                row, start, end = pieces[piece]
                joined += rows[row][start:end]
            packed[name].append(joined)
        packed["seq_lengths"].append([lengths[piece] for piece in members])
    return packed


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put each piece, the longest first, into the bin with the least room for it.

    Of pieces of one length, the first comes first; of bins with equally much room the one that has
    had just so much for longest.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    since: list[int] = []
    order = sorted(range(len(lengths)), key=lambda piece: -lengths[piece])
    for time, piece in enumerate(order):
        fitting = [index for index in range(len(bins)) if room[index] >= lengths[piece]]
        if fitting:
            best = min(fitting, key=lambda index: (room[index], since[index]))
        else:
            best = len(bins)
            bins.append([])
            room.append(capacity)
            since.append(time)
        bins[best].append(piece)
        room[best] -= lengths[piece]
        since[best] = time
    return bins
