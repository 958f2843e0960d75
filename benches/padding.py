"""Measure padding rows, and taking the padding out, by themselves: `pad` and `unpad`.

Rows of int64 with lengths drawn evenly from a hundredth of the longest to the longest. A line of
the table is one interleaved run (see `common.timing`), on one thread of torch.

fastcollate
    `pad` of rows of this form, or `unpad` with lengths or a mask, and how many times as long the
    faster peer takes.
torch
    `pad_sequence` of tensors, which are made of lists first; for unpadding, `torch.cat` of slices,
    or indexing with the mask.
NumPy
    The fastest that we could write with it: of all rows joined, scattered by a mask that is made of
    an `arange`, or indexing with the mask, which is made if lengths are given.
fill
    Writing as many bytes, to memory in use.
read
    Visiting every number of lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import fill, read

Calls = dict[str, Callable[[], Any]]

SIZES = ((100, 500), (1_500, 60), (1_500, 600), (1_500, 6_000), (15_000, 6_000))
"""Numbers of rows, and tokens of the longest."""

LISTS_UP_TO = 10_000_000
"""Tokens that lists may have: each is an object of 32 bytes."""


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure all sizes."""
    import torch

    torch.set_num_threads(1)
    for count, longest in ((8, 20),) if effort.is_smoke else SIZES:
        rng = np.random.default_rng(count)
        lens = rng.integers(-(-longest // 100), longest, count, endpoint=True)
        arrays = [rng.integers(50_000, size=n) for n in lens]
        size = f"{count:,} rows of up to {longest:,}"
        forms: list[tuple[str, Any]] = [("arrays", arrays), ("Ragged", fc.ragged(arrays))]
        forms.append(("tensors", [torch.from_numpy(row) for row in arrays]))
        if sum(lens) <= LISTS_UP_TO:
            forms.append(("lists", [row.tolist() for row in arrays]))
        for form, rows in forms:
            yield f"pad, {size}, {form}", with_faster(effort.run(padding(rows, form, arrays, lens)))
        x = fc.pad(arrays, array_type="numpy")
        for by in "lengths", "mask":
            yield f"unpad, {size}, {by}", with_faster(effort.run(unpadding(x, lens, by)))


def padding(rows: Any, form: str, arrays: list[NDArray[Any]], lens: NDArray[Any]) -> Calls:
    """Check that results are the same; return what a line of the table compares."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def of_numpy() -> NDArray[Any]:
        given = arrays
        if form in ("lists", "tensors"):
            given = [np.asarray(row) if form == "lists" else row.numpy() for row in rows]
        out = np.zeros((len(lens), lens.max()), np.int64)
        out[np.arange(lens.max()) < lens[:, None]] = np.concatenate(given)
        return out

    def of_torch() -> torch.Tensor:
        make = torch.tensor if form == "lists" else torch.as_tensor
        return pad_sequence([make(row) for row in rows], batch_first=True)

    calls: Calls = {"fastcollate": partial(fc.pad, rows), "torch": of_torch, "NumPy": of_numpy}
    out = calls["NumPy"]()
    assert all(
        torch.equal(torch.as_tensor(call()), torch.from_numpy(out)) for call in calls.values()
    )
    calls["fill"] = partial(fill, [out])
    if form == "lists":
        calls["read"] = partial(read, {"rows": rows})
    return calls


def unpadding(x: NDArray[Any], lens: NDArray[Any], by: str) -> Calls:
    """Check that results are the same; return what a line of the table compares."""
    import torch

    tensor, listed = torch.from_numpy(x), lens.tolist()
    mask = np.arange(x.shape[1]) < lens[:, None]
    of_torch: Callable[[], Any] = partial(tensor.__getitem__, torch.from_numpy(mask))
    if by == "lengths":
        of_torch = lambda: torch.cat([tensor[row, :n] for row, n in enumerate(listed)])  # noqa: E731
    how: dict[str, Any] = {"lengths": lens, "side": "right"} if by == "lengths" else {"mask": mask}
    of_numpy: Callable[[], Any] = partial(x.__getitem__, mask)
    if by == "lengths":
        of_numpy = lambda: x[np.arange(x.shape[1]) < lens[:, None]]  # noqa: E731
    calls: Calls = {
        "fastcollate": partial(fc.unpad, x, **how),
        "torch": of_torch,
        "NumPy": of_numpy,
    }
    values = calls["fastcollate"]().values
    assert np.array_equal(values, calls["torch"]().numpy())
    assert np.array_equal(values, calls["NumPy"]())
    calls["fill"] = partial(fill, [values.copy()])
    return calls


def with_faster(figures: Figures) -> Figures:
    """Add the time of the faster peer."""
    figures["faster"] = min(figures["torch"], figures["NumPy"])
    return figures


def cell(figures: Figures, name: str) -> str:
    """Format a time."""
    return time_cell(figures, name, ours=["fastcollate"], peer="faster")


if __name__ == "__main__":
    main(__doc__, measure, cell)
