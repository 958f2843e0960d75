"""Routes and sample support of all rows in one buffer, instead of SkyRL's padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fastcollate.common.arrays import offsets_of
from fastcollate.common.text import show
from fastcollate.rows.lengths import Integers

ROUTE_DTYPES = ("uint8", "int16", "int32")


def check_routes(routes: Sequence[Any], rows: int) -> Sequence[Any]:
    """Check SkyRL's requirements on expert indices beyond those of `RoutedExperts`."""
    if len(routes) != rows:
        raise ValueError(
            f"rollout_expert_indices has {len(routes)} rows, but prompts has {rows}; "
            "it must contain routes for every trajectory"
        )
    for row, array in enumerate(routes):
        name = f"rollout_expert_indices[{row}]"
        if not isinstance(array, np.ndarray):
            raise TypeError(
                "rollout_expert_indices entries must be NumPy arrays, but "
                f"{name} is {show(array)}; pass an array for every row"
            )
        if array.ndim != 3 or len(array) == 0:
            raise ValueError(
                f"{name} has shape {array.shape}; rows must contain routes for every trajectory: "
                "pass shape (captured tokens, layers, topk) with at least one token"
            )
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} has dtype {array.dtype}; pass integers")
    return routes


def pack_routes(make: Callable[..., Any], routes: Sequence[Any], lens: Integers) -> Any:
    """Return routes of all tokens, row after row.

    Parameters
    ----------
    make
        SkyRL's ``PackedTensor``.
    routes
        For each row (captured tokens, layers, topk), of the widest dtype in the result.
    lens
        The tokens of each row. Those after the captured ones get ``arange(topk)``.
    """
    shape = routes[0].shape[1:]
    for row, array in enumerate(routes):
        name = f"rollout_expert_indices[{row}]"
        if array.dtype not in ROUTE_DTYPES:
            names = ", ".join(ROUTE_DTYPES)
            raise ValueError(
                f"{name} has dtype {array.dtype}; pass a canonical routed-expert dtype ({names})"
            )
        if array.shape[1:] != shape or shape[1] == 0:
            raise ValueError(
                f"{name} has shape {array.shape}, but rollout_expert_indices[0] {routes[0].shape}; "
                "entries must share [layers, topk]: pass one shape, with at least one expert per "
                "layer"
            )
        if len(array) > lens[row]:
            raise ValueError(
                f"{name} has {len(array)} route rows for {lens[row]} tokens; "
                "pass at most one per token"
            )
    dtype = max((array.dtype for array in routes), key=lambda dtype: dtype.itemsize)
    return _pack(make, routes, lens, dtype, np.arange(shape[1], dtype=dtype))


def find_packed_support(make: Callable[..., Any], support: Any, lens: Integers) -> Any:
    """Return the sample support of all response tokens, row after row.

    Parameters
    ----------
    make
        SkyRL's ``PackedTensor``.
    support
        For each row (response tokens, k), int32.
    lens
        The response tokens of each row.
    """
    if not isinstance(support, list):
        raise TypeError(
            "rollout_sample_support must be a list of NumPy arrays, but is of type "
            f"{type(support).__name__}; pass a list of one array per row"
        )
    if len(support) != len(lens):
        raise ValueError(
            f"rollout_sample_support has {len(support)} rows, but prompts has {len(lens)}; it must "
            "contain support for every trajectory"
        )
    for row, array in enumerate(support):
        name = f"rollout_sample_support[{row}]"
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"{name} is of type {type(array).__name__}; rollout_sample_support entries must be "
                "NumPy arrays"
            )
        if array.dtype != np.int32:
            raise ValueError(
                f"{name} has dtype {array.dtype}; pass a canonical sample-support dtype (int32)"
            )
        if array.ndim != 2 or array.shape[1:] != support[0].shape[1:] or array.shape[1] == 0:
            raise ValueError(
                f"{name} has shape {array.shape}; pass (response tokens, k) with the same k for "
                "all rows"
            )
        if len(array) != lens[row]:
            raise ValueError(
                f"{name} has {len(array)} support rows for {lens[row]} response tokens; "
                "pass one per response token"
            )
    return _pack(make, support, lens, np.dtype(np.int32), None)


def _pack(
    make: Callable[..., Any], rows: Sequence[Any], lens: Integers, dtype: Any, fill: Any
) -> Any:
    """Return rows one after the other, each filled up to its length."""
    import torch

    offsets = offsets_of(lens)
    values = np.empty((int(offsets[-1]), *rows[0].shape[1:]), dtype)
    for row, (start, stop) in zip(rows, pairwise(offsets.tolist()), strict=True):
        values[start : start + len(row)] = row
        if start + len(row) < stop:
            values[start + len(row) : stop] = fill
    return make(torch.from_numpy(values), torch.from_numpy(offsets.astype(np.int32)))
