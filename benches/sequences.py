"""Measure whole sequences with the lengths of their prompts, beside prompts and responses.

A line of the table is one interleaved run (see `common.timing`) of batches with all six outputs.

parts
    Prompts and responses, as they were made.
sequences
    The same rows as `sequences` and `prompt_lens`, and how many times as long `parts` takes.
along
    The same, with fields along the sequences: `fc.Field(rows, align="sequence")`.
slices
    Prompts and responses sliced out of the sequences, and a batch of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import Rollouts, as_lists, long_rollouts, rollouts
from fastcollate.testing.reference import assert_same

FIELDS = ("rewards", "loss_mask", "logprobs")


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure long rows and few short ones."""
    rows = 20 if effort.is_smoke else 1_500
    for name, arrays in (
        (f"{rows:,} long", long_rollouts(rows)),
        ("8 of 512", rollouts(8, prompts=(256, 256), responses=(256, 256))),
    ):
        yield f"{name}, lists", effort.run(calls_of(as_lists(arrays)))
        yield f"{name}, arrays", effort.run(calls_of(arrays))


def calls_of(parts: Rollouts) -> dict[str, Any]:
    """Check that the results are equal; return the calls of a line of the table."""
    build = partial(fc.build_batch, pad_token_id=0, array_type="numpy")
    lens = [len(row) for row in parts["prompts"]]
    fields = {name: parts[name] for name in FIELDS}
    whole: Rollouts = {"sequences": whole_rows(parts["prompts"], parts["responses"])}
    whole["prompt_lens"] = np.array(lens)
    zeros = [np.zeros(n, np.int32) for n in lens]
    if isinstance(parts["prompts"][0], list):
        zeros = [row.tolist() for row in zeros]
    along = {
        name: fc.Field(whole_rows(zeros, rows), align="sequence") for name, rows in fields.items()
    }

    def sliced() -> Any:
        rows = list(zip(whole["sequences"], lens, strict=True))
        prompts = [row[:n] for row, n in rows]
        return build(prompts, [row[n:] for row, n in rows], **fields)

    calls = {
        "parts": partial(build, **parts),
        "sequences": partial(build, **whole, **fields),
        "along": partial(build, **whole, **along),
        "slices": sliced,
    }
    for call in calls.values():
        assert_same(call(), calls["parts"]())
    return calls


def whole_rows(first: list[Any], rest: list[Any]) -> list[Any]:
    """Join rows that are lists or arrays."""
    pairs = zip(first, rest, strict=True)
    if isinstance(first[0], list):
        return [a + b for a, b in pairs]
    return [np.concatenate([a, b]) for a, b in pairs]


if __name__ == "__main__":
    main(__doc__, measure, partial(time_cell, ours=["sequences", "along"], peer="parts"))
