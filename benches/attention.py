"""Measure how long it takes to make FlexAttention's block masks, in blocks of 128 positions.

First lines: 131,072 positions in one output row. Then growing numbers of positions of one
sequence. Last lines: attention paths of trees of 8 rows with 64 tokens in common and 32 others.

fastcollate
    `Batch.block_mask`, and how many times as long torch takes.
tables
    The tables alone, as the core writes them; of paths all arrays.
filling
    Filling the bytes of the tables in fresh memory: `np.full` for all counts, and for
    all indices; of paths for each array.
to filling
    The time of the tables divided by that of filling.
create_block_mask
    torch's own function, which evaluates each pair of positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from torch.nn.attention.flex_attention import create_block_mask

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell

BLOCK = 128
WINDOW = 4_096


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure every kind of rows, and one sequence of growing length."""
    width = 2_048 if effort.is_smoke else 131_072
    layout = fc.Packed.single_row(pad_to=width)
    batches = {
        "one sequence": built([width], layout),
        "128 sequences": built([width // 128] * 128, layout),
        "uneven sequences": built(uneven(width), layout),
        "a tree of 64 rows": tree(width),
    }
    for case, batch in batches.items():
        yield case, figures(effort, batch, None)
    for case in "one sequence", "a tree of 64 rows":
        yield f"{case}, window", figures(effort, batches[case], WINDOW)
    for size in (256, 512) if effort.is_smoke else (1_024, 2_048, 4_096, 8_192):
        batch = built([size], fc.Packed.single_row())
        yield f"{size:,} positions", figures(effort, batch, None, with_torch=True)
    for segments in (90, 900) if effort.is_smoke else (900, 9_000, 90_000, 900_000):
        yield f"paths, {segments:,} segments", paths(effort, segments)


def uneven(width: int) -> list[int]:
    """Cut a row at random positions."""
    cuts = np.random.default_rng(0).choice(np.arange(1, width), width // 1_024, replace=False)
    return np.diff([0, *np.sort(cuts), width]).tolist()


def built(lens: list[int], layout: fc.Packed) -> fc.Batch:
    """Build a batch of rows of these lengths."""
    rows = [np.ones(length - 1, np.int32) for length in lens]
    ends = [np.ones(1, np.int32)] * len(rows)
    return fc.build_batch(rows, ends, pad_token_id=0, layout=layout)


def tree(width: int) -> fc.Batch:
    """Build a tree of 8 groups of 8 rows; a group's prompt is as long as all of its responses."""
    prompt, response = width // 16, width // 128
    prompts = [np.full(prompt, 1 + row // 8, np.int32) for row in range(64)]
    responses = [np.full(response, 100 + row, np.int32) for row in range(64)]
    batch = fc.build_batch(prompts, responses, pad_token_id=0, layout=fc.Tree())
    assert batch.input_ids.shape == (1, width)
    return batch


def paths(effort: Effort, segments: int) -> Figures:
    """Measure the paths of trees with nine segments each, and filling of their bytes."""
    rows = segments // 9 * 8
    prompts = [np.full(64, 1 + row // 8, np.int32) for row in range(rows)]
    responses = [np.full(32, 1_000_000 + row % 8, np.int32) for row in range(rows)]
    batch = fc.build_batch(prompts, responses, pad_token_id=0, layout=fc.Tree())
    found = batch.attention_paths()
    assert len(found.cu_seqlens_q) == segments + 1
    keys = len(found.kv_index)

    def fill() -> object:
        return np.full(keys, 1, np.int64), *(np.full(segments + 1, 1, np.int32) for _ in range(2))

    calls = {
        "fastcollate": batch.attention_paths,
        "tables": batch.plan.attention_paths,
        "filling": fill,
    }
    times = effort.run(calls)
    return times | {"to filling": times["tables"] / times["filling"]}


def figures(
    effort: Effort, batch: fc.Batch, window: int | None, with_torch: bool = False
) -> Figures:
    """Measure the mask of a batch, filling of its bytes, and torch."""
    mask = batch.block_mask(BLOCK, window=window)
    count = mask.kv_indices.shape[-1]

    def fill() -> object:
        return np.full(4 * count, 1, np.int32), np.full(4 * count**2, 1, np.int32)

    width = batch.plan.width
    calls = {
        "fastcollate": partial(batch.block_mask, BLOCK, window=window),
        "tables": partial(batch.plan.block_tables, BLOCK, window),
        "filling": fill,
    }
    if with_torch:
        calls["create_block_mask"] = partial(
            create_block_mask, mask.mask_mod, 1, 1, width, width, device="cpu", BLOCK_SIZE=BLOCK
        )
    times = effort.run(calls, slow=["create_block_mask"])
    return times | {"to filling": times["tables"] / times["filling"]}


def cell(times: Figures, name: str) -> str:
    """Format a time, or a ratio."""
    if name == "to filling":
        return f"{times[name]:.1f}x"
    ours = ["fastcollate"] if "create_block_mask" in times else []
    return time_cell(times, name, ours=ours, peer="create_block_mask")


if __name__ == "__main__":
    main(__doc__, measure, cell)
