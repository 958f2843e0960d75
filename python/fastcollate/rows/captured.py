"""Captured fields: indices that an engine chose for each token in each layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fastcollate._fastcollate import FieldSpec, SomeTokens
from fastcollate.common.arguments import check_int, suggests_names, tally
from fastcollate.common.arrays import check_dtype_name, describe
from fastcollate.rows.lengths import Integers, check_indices
from fastcollate.rows.tokens import Tokens, count_items, row_len


@suggests_names
@dataclass(frozen=True, eq=False)
class Captured:
    """Indices that an engine captured, for ``fields=`` of :func:`fastcollate.build_batch`.

    Such as the positions that sparse attention read (``indexer_topk``). Written as (B, W, layers,
    k), with ``<key>_padding_mask``, bool (B, W), which is True where nothing was captured: on
    padding and on a row's other tokens. Such positions hold -1. For the experts of tokens see
    :class:`RoutedExperts`.

    Parameters
    ----------
    rows
        One array, tensor or nested list (captured tokens, layers, k) of integers per row of the
        batch, or a :class:`Ragged` of them. Without `starts`, for all tokens of the row, all but
        the last, which an engine never reads, or none. Indices are written as they are, -1 for
        tokens with fewer than k included; others below 0 are errors.
    dtype
        int16 or int32; int32 if None.
    layers
        Write only these layers, such as ``range(12, 24)`` for a pipeline stage: (B, W, 12, k).
    starts
        The first captured token of each row, as engines return the rest of a sequence only: the
        captured tokens are those from ``starts[i]`` to before ``starts[i] + len(rows[i])``. Rows
        that lack more than the last token need it, also if they begin with the first (0).

    Notes
    -----
    Merged rows have what all of their turns captured. A token that several turns captured has the
    indices of the first one, in whose pass it was sampled or first read; the indices of a turn's
    last token come from the next turn, as no pass of its own read it.
    """

    rows: Any
    dtype: Any = None
    layers: range | None = None
    starts: Any = None

    def spec(self, key: str) -> FieldSpec:
        """Return how the field is read and written under a key."""
        dtype = check_dtype_name("int32" if self.dtype is None else self.dtype, key)
        return FieldSpec(
            key, key, align="captured", dtype=dtype, layers=check_layers(key, self.layers)
        )


@suggests_names
@dataclass(frozen=True, eq=False)
class RoutedExperts:
    """Expert indices of each token, for ``fields=`` of :func:`fastcollate.build_batch`.

    Written as (B, W, layers, topk), with ``router_padding_mask``, bool (B, W), which is True
    where no routes were captured: on padding and on a row's other tokens. Such positions
    hold ``arange(topk)``, so that the experts of a token are distinct.

    Parameters
    ----------
    rows
        As :class:`Captured`, of experts.
    num_experts
        Number of experts: larger indices are errors, and the dtype does not depend on the data.
    dtype
        uint8, which does not hold -1, int16 or int32. If None, the first of these that holds all
        indices below `num_experts`, or without it all indices of the batch; int32 if any is -1.
        This is the only dtype that depends on the data.
    layers
        As :class:`Captured`. Other layers are read only to choose the dtype from the batch, so that
        all stages agree.
    starts
        As :class:`Captured`, also for merged turns.

    Notes
    -----
    The contract follows SkyRL's ``rollout_expert_indices`` and ``make_router_padding_mask``.
    """

    rows: Any
    num_experts: int | None = None
    dtype: Any = None
    layers: range | None = None
    starts: Any = None

    def spec(self, key: str) -> FieldSpec:
        """Return how the field is read and written under a key."""
        dtype = None if self.dtype is None else check_dtype_name(self.dtype, key)
        num_experts = self.num_experts
        if num_experts is not None:
            num_experts = check_int(f"num_experts of {key}", num_experts, "an integer or None")
        layers = check_layers(key, self.layers)
        return FieldSpec(
            key, key, align="experts", num_experts=num_experts, dtype=dtype, layers=layers
        )


Captures: TypeAlias = Captured | RoutedExperts


def captured_rows(key: str, field: Captures) -> Any:
    """Return the rows of a field, with the tokens that they are for."""
    if field.starts is None:
        return field.rows
    name = f"starts of {key}"
    starts = check_indices(name, field.starts, "the first captured tokens")
    return SomeTokens.beginning(field.rows, name, starts)


def check_from_first(name: str, row: Any, tokens: Tokens) -> None:
    """Refuse a row without a start that may be of later tokens, as the core does for all rows."""
    captured, found = count_items(name, row), row_len(tokens, "sequence")
    if 0 < captured < found - 1:
        raise ValueError(
            f"{name} has {tally(captured, 'item')}, but its sequence has {tally(found, 'token')}; "
            "pass starts=, its first captured token (0 if these are the first ones)"
        )


def runs_of(is_captured: Any, offsets: Integers) -> Integers:
    """Return the runs of captured tokens, given a flag for each token of rows end to end.

    Returns
    -------
    numpy.ndarray
        The row of each run, its first token and one past its last: int64 (runs, 3), in order.
    """
    flags = np.zeros(len(is_captured) + 2, np.bool_)
    flags[1:-1] = is_captured
    begins = offsets[:-1][np.diff(offsets) > 0]
    first, last = np.zeros((2, len(is_captured)), np.bool_)
    first[begins], last[begins - 1] = True, True
    starts = np.flatnonzero(flags[1:-1] & (first | ~flags[:-2]))
    ends = np.flatnonzero(flags[1:-1] & (last | ~flags[2:])) + 1
    rows = np.searchsorted(offsets, starts, "right") - 1
    return np.stack([rows, starts - offsets[rows], ends - offsets[rows]], 1)


def check_layers(key: str, layers: Any) -> tuple[int, int] | None:
    """Return the first layer of a range and one past its last, or None."""
    if layers is None:
        return None
    if not isinstance(layers, range):
        raise TypeError(f"layers of {key} is {describe(layers)}; pass range(first, end), or None")
    if layers.step != 1 or not 0 <= layers.start < layers.stop < 2**63:
        raise ValueError(
            f"layers of {key} is {layers}; pass range(first, end) of one layer or more, from 0 on"
        )
    return layers.start, layers.stop
