"""Measure `fastcollate.RoutedExperts` against a copy per row in NumPy.

64 rows of 6,000 to 8,192 tokens with 8 experts in each of 48 layers, captured for all tokens but
the last. All calls build a whole batch, of which the routes are 99%.

pool, fresh
    fastcollate in steady state, on memory of an earlier batch, and with `pool=None`.
NumPy
    The same outputs by one slice write per row, in the dtype that fits the indices.
fill mapped, fill fresh
    Writing as many bytes, to memory in use and to memory taken anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import VOCABULARY, arrays_of, fill, fill_fresh
from fastcollate.testing import reference
from fastcollate.testing.reference.fields import smallest_dtype
from frameworks.numpy_rows import build_batch_numpy

LAYERS, TOPK = 48, 8


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure routes in bytes, and in a dtype whose indices have to be checked."""
    for dtype in "uint8", "int32":
        ours, peer = candidates(effort.is_smoke, dtype)
        reference.assert_same(ours(), peer())
        outputs = arrays_of(peer())
        calls: dict[str, Callable[[], object]] = {
            "pool": ours,
            "fresh": partial(ours, pool=None),
            "NumPy": peer,
            "fill mapped": partial(fill, outputs),
            "fill fresh": partial(fill_fresh, outputs),
        }
        yield f"routes in {dtype}", effort.run(calls)


def candidates(is_smoke: bool, dtype: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Make routes; return calls that build a batch of them."""
    rows, lens = (2, (60, 80)) if is_smoke else (64, (6_000, 8_192))
    rng = np.random.default_rng(0)
    prompts, responses, routes = [], [], []
    for length in rng.integers(*lens, rows, endpoint=True):
        ids = rng.integers(VOCABULARY, size=length)
        prompts.append(ids[: length // 4])
        responses.append(ids[length // 4 :])
        shape = (length - 1, LAYERS, TOPK)
        routes.append(rng.integers(128, size=shape, dtype=np.uint8).astype(dtype))
    ours = partial(
        fc.build_batch,
        prompts,
        responses,
        pad_token_id=0,
        fields={"routed_experts": fc.RoutedExperts(routes)},
        array_type="numpy",
    )
    return ours, partial(build_numpy, prompts, responses, routes)


def build_numpy(prompts: Any, responses: Any, routes: Any) -> dict[str, Any]:
    batch = build_batch_numpy(prompts, responses, pad_token_id=0)
    rows, width = batch["input_ids"].shape
    dtype = routes[0].dtype.name
    if dtype != "uint8":
        dtype = smallest_dtype(max(int(row.max()) for row in routes))
    experts = np.empty((rows, width, LAYERS, TOPK), dtype)
    is_padding = np.ones((rows, width), np.bool_)
    unrouted = np.arange(TOPK, dtype=dtype)
    for out, mask, prompt, response, row in zip(
        experts, is_padding, prompts, responses, routes, strict=True
    ):
        start = width - len(prompt) - len(response)
        end = start + len(row)
        out[:start] = unrouted
        out[start:end] = row
        out[end:] = unrouted
        mask[start:end] = False
    return batch | {"routed_experts": experts, "router_padding_mask": is_padding}


if __name__ == "__main__":
    main(__doc__, measure, partial(time_cell, ours=["pool", "fresh"]))
