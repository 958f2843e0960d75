"""Measure taking the padding out of padded tensors: `ragged(x, lengths=)`.

1,024 rows of int64, padded on the right to four widths, with lengths drawn evenly from 1 to the
width. A line of the table is one interleaved run (see `common.timing`), on one thread of torch.

ragged
    `ragged`, and how many times as long the faster of the next two takes.
cat
    `torch.cat` of slices, which are made row by row.
mask
    Indexing with a boolean mask, which is made of an `arange`.
rows
    `ragged` of a list of the padded rows, each a tensor, with their lengths.
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
from common.workload import fill

WIDTHS = (64, 512, 4_096, 16_384)


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure four widths."""
    import torch

    torch.set_num_threads(1)
    count = 16 if effort.is_smoke else 1_024
    for width in WIDTHS:
        drawn = np.random.default_rng(width).integers(1, width + 1, count)
        x = torch.randint(0, 50_000, (count, width))
        lengths, position = torch.from_numpy(drawn), torch.arange(width)
        listed = drawn.tolist()
        calls: dict[str, Callable[[], Any]] = {
            "ragged": partial(fc.ragged, x, lengths=drawn),
            "cat": lambda x=x, listed=listed: torch.cat(
                [x[row, :length] for row, length in enumerate(listed)]
            ),
            "mask": lambda x=x, lengths=lengths, position=position: x[position < lengths[:, None]],
            "rows": partial(fc.ragged, list(x), lengths=drawn),
        }
        values = calls["ragged"]().values
        assert torch.equal(values, calls["cat"]())
        assert torch.equal(values, calls["mask"]())
        assert torch.equal(values, calls["rows"]().values)
        calls["fill"] = partial(fill, [values.numpy().copy()])
        figures = effort.run(calls)
        figures["faster"] = min(figures["cat"], figures["mask"])
        yield f"{count:,} x {width:,}", figures


def cell(figures: Figures, name: str) -> str:
    """Format a time."""
    return time_cell(figures, name, ours=["ragged"], peer="faster")


if __name__ == "__main__":
    main(__doc__, measure, cell)
