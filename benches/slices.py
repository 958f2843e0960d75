"""Measure the slices of ranks: routed experts over context-parallel and pipeline ranks.

8 to 64 rows of 500 to 8,192 tokens with 8 experts in each of 48 layers (uint8), captured for all
tokens but the last, in one packed row of places of multiples of 8; tp 1, cp 4 and pp 4, which are
16 ranks. A line is one rank, the second of each; its *slice* is a sixteenth of all routes.

read, written
    Bytes of routes that a rank's `build_batch(cp=..., RoutedExperts(layers=...))` reads and writes,
    padding and ``router_padding_mask`` included, and how many times the slice that is. All other
    routes passed are invalid, and would be an error if they were read.
whole
    Bytes that it writes if every rank is handed everything.
slice
    The time of the rank's call; its ids, positions and masks are written, too.
whole, cut
    The time to write all, and to copy the rank's part of it.
NumPy
    The same routes and mask by one slice write per chunk in NumPy, without the other outputs.
fill
    Writing as many bytes, to memory in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import VOCABULARY, fill
from fastcollate.testing import reference

LAYERS, TOPK, EXPERTS = 48, 8, 128
CP, PP = 4, 4
CP_RANK, STAGE = 1, range(12, 24)
MULTIPLE = 2 * CP

BYTES = ("read", "written", "whole")


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure four numbers of rows."""
    lens = (20, 80) if effort.is_smoke else (500, 8_192)
    for count in (2, 4) if effort.is_smoke else (8, 16, 32, 64):
        columns, routes = rows(count, lens)
        build = partial(
            fc.build_batch,
            **columns,
            pad_token_id=0,
            layout=fc.Packed.single_row(multiple_of=MULTIPLE),
            array_type="numpy",
        )

        def routed(rows: Any, layers: range | None = None) -> dict[str, Any]:
            return {"routes": fc.RoutedExperts(rows, num_experts=EXPERTS, layers=layers)}

        ours = partial(build, fields=routed(routes, STAGE), cp=(CP, CP_RANK))
        whole = partial(build, fields=routed(routes))
        peer = partial(by_numpy, routes, columns)
        expected = cut(whole())
        keys = "routes", "router_padding_mask"
        reference.assert_same(
            {key: ours()[key] for key in keys}, dict(zip(keys, expected, strict=True))
        )
        reference.assert_same(
            dict(zip(keys, peer(), strict=True)), dict(zip(keys, expected, strict=True))
        )
        own = [
            of_rank(len(row), len(ids)) for row, ids in zip(routes, columns["prompts"], strict=True)
        ]
        # Values outside the slice are invalid.
        poisoned = [np.full_like(row, 255) for row in routes]
        for row, other, spans in zip(poisoned, routes, own, strict=True):
            for span in spans:
                row[span, STAGE.start : STAGE.stop] = other[span, STAGE.start : STAGE.stop]
        found = build(fields=routed(poisoned, STAGE), cp=(CP, CP_RANK))
        reference.assert_same(
            {key: found[key] for key in keys}, dict(zip(keys, expected, strict=True))
        )
        token = len(STAGE) * TOPK
        read = sum(span.stop - span.start for spans in own for span in spans) * token
        written = sum(values.nbytes for values in expected)
        sliced = sum(map(len, routes)) * LAYERS * TOPK / (CP * PP)
        calls: dict[str, Callable[[], object]] = {
            "slice": ours,
            "whole, cut": lambda whole=whole: cut(whole()),
            "NumPy": peer,
            "fill": partial(fill, list(expected)),
        }
        bytes_of = {
            "of slice": sliced,
            "read": read,
            "written": written,
            "whole": sum(whole()[key].nbytes for key in keys),
        }
        yield f"{count} rows", bytes_of | effort.run(calls)


def rows(count: int, lens: tuple[int, int]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Make rows of all lengths between two, with routes for all tokens but the last."""
    rng = np.random.default_rng(0)
    prompts, responses, routes = [], [], []
    for length in rng.integers(*lens, count, endpoint=True).tolist():
        prompts.append(rng.integers(VOCABULARY, size=length, dtype=np.int32))
        responses.append(prompts[-1][:0])
        shape = (length - 1, LAYERS, TOPK)
        routes.append(rng.integers(EXPERTS, size=shape, dtype=np.uint8))
    return {"prompts": prompts, "responses": responses}, routes


def of_rank(captured: int, tokens: int) -> list[slice]:
    """Return the indices of a row's captured tokens on the rank."""
    chunk = -(-tokens // MULTIPLE) * MULTIPLE // (2 * CP)
    begins = (CP_RANK * chunk, (2 * CP - 1 - CP_RANK) * chunk)
    return [slice(min(at, captured), min(at + chunk, captured)) for at in begins]


def cut(whole: fc.Batch) -> tuple[np.ndarray, np.ndarray]:
    """Copy the rank's part of a whole batch's routes and their mask."""
    part = whole.cp_split(CP, CP_RANK)
    return part["routes"][:, :, STAGE.start : STAGE.stop].copy(), part["router_padding_mask"]


def by_numpy(routes: list[np.ndarray], columns: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Write the rank's routes and their mask row by row."""
    chunks = [-(-len(ids) // MULTIPLE) * MULTIPLE // (2 * CP) for ids in columns["prompts"]]
    width = 2 * sum(chunks)
    out = np.empty((1, width, len(STAGE), TOPK), np.uint8)
    mask = np.ones((1, width), np.bool_)
    at = 0
    for row, ids, chunk in zip(routes, columns["prompts"], chunks, strict=True):
        for span in of_rank(len(row), len(ids)):
            end = at + span.stop - span.start
            out[0, at:end] = row[span, STAGE.start : STAGE.stop]
            out[0, end : at + chunk] = np.arange(TOPK)
            mask[0, at:end] = False
            at += chunk
    return out, mask


def cell(figures: Figures, name: str) -> str:
    """Format bytes, those of a rank beside its slice, and times."""
    if name in ("of slice", *BYTES):
        text = f"{figures[name] / 1e6:.2f} MB"
        return (
            text if name == "of slice" else f"{text} ({figures[name] / figures['of slice']:.3f}x)"
        )
    return time_cell(figures, name, ours=["slice"])


if __name__ == "__main__":
    main(__doc__, measure, cell)
