"""Measure `fastcollate.Field(ragged=True)` against a concatenation in NumPy.

Rows of arrays of values and counts, jagged, so that all outputs are as long as their rows. The
field's time is that of a batch with it, less that of the same batch without.

field
    The values and offsets, in steady state on memory of an earlier batch.
lists
    The same from nested lists.
NumPy
    The same two outputs by `np.concatenate` and `np.cumsum`.
copy mapped, copy fresh
    Copying the two outputs by `np.copyto`, to memory in use and to memory taken anew.
fill mapped, fill fresh
    Writing as many bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import arrays_of, fill, fill_fresh
from fastcollate.testing import reference

SIZES = {
    "4 rows of 64 tokens": (4, 64, 50),
    "16 rows of 250": (16, 250, 60),
    "32 rows of 2,000": (32, 2_000, 30),
    "64 rows of 4,000": (64, 4_000, 80),
}
"""Rows, tokens of each, and values of a token on average."""


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure batches of a few kilobytes to a hundred megabytes."""
    for name, (rows, tokens, mean) in SIZES.items():
        rng = np.random.default_rng(0)
        pairs = []
        for _ in range(rows):
            counts = rng.integers(0, 2 * mean, tokens if not effort.is_smoke else 8)
            pairs.append((rng.integers(0, 1 << 17, counts.sum(), dtype=np.int32), counts))
        lists = [fc.Ragged(one, np.append(0, counts.cumsum())).to_list() for one, counts in pairs]
        prompts, responses = [[1]] * rows, [counts for _, counts in pairs]
        build = partial(
            fc.build_batch, prompts, responses, pad_token_id=0, layout="jagged", array_type="numpy"
        )
        ours = partial(build, fields={"x": fc.Field(pairs, ragged=True)})
        peer = partial(in_numpy, pairs)
        reference.assert_same({key: ours()[key] for key in peer()}, peer())
        outputs = arrays_of(peer())
        copies = [np.empty_like(one) for one in outputs]
        calls: dict[str, Callable[[], object]] = {
            "field": ours,
            "lists": partial(build, fields={"x": fc.Field(lists, ragged=True)}),
            "none": build,
            "NumPy": peer,
            "copy mapped": partial(copy, outputs, copies),
            "copy fresh": partial(copy, outputs, None),
            "fill mapped": partial(fill, outputs),
            "fill fresh": partial(fill_fresh, outputs),
        }
        figures = effort.run(calls)
        rest = figures.pop("none")
        yield name, figures | {of: max(figures[of] - rest, 1e-9) for of in ("field", "lists")}


def copy(outputs: list[np.ndarray], to: list[np.ndarray] | None) -> None:
    """Copy arrays to others, or to memory taken anew."""
    for one, other in zip(outputs, to or [np.empty_like(one) for one in outputs], strict=True):
        np.copyto(other, one)


def in_numpy(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the two outputs."""
    values, counts = map(np.concatenate, zip(*pairs, strict=True))
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return {"x": values, "x_offsets": offsets}


if __name__ == "__main__":
    main(__doc__, measure, partial(time_cell, ours=["field", "lists"]))
