"""Measure small calls against frameworks' own functions, where the fixed cost of a call counts.

fastcollate
    The function of `fastcollate.compat`, or, for TRL's `flush_left` and axolotl's packers, lines
    over `pad`, `unpad` and `planning.pack`; and how many times as long the framework takes.
framework
    Its own function, after `make peers`; axolotl's with numba, if that is installed.

A line of the table is one interleaved run (see `common.timing`). torch computes on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from fastcollate.compat import skyrl as ours
from frameworks.installed import real

Pair = tuple[str, Callable[[], Any], Callable[[], Any]]

LARGE = 1 << 16
"""Tokens at which stacking tensors takes longer than a call for each."""

TOKENIZER = SimpleNamespace(pad_token_id=0)


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure all calls whose framework was downloaded."""
    if not find_spec("torch"):
        return
    import torch

    torch.set_num_threads(1)
    for calls in (of_rows, of_uids, of_examples, of_flushing, of_packing):
        for name, call, peer in calls():
            yield name, effort.run({"fastcollate": call, "framework": peer})


def of_rows() -> Iterator[Pair]:
    """SkyRL's batches of few rows, with all fields."""
    if not (skyrl := real("skyrl.train.dataset.preprocess")):
        return
    convert = "convert_prompts_responses_to_batch_tensors"
    for form, make in (("lists", list), ("arrays", np.array)):
        for rows in (1, 2, 8):
            columns = [[make([value] * 64)] * rows for value in (7, 8, 0.5, 1, -0.5)]
            both = (partial(getattr(each, convert), 0, *columns) for each in (ours, skyrl))
            yield f"SkyRL, batch of {rows} x 64, {form}", *both


def of_uids() -> Iterator[Pair]:
    """SkyRL's boundaries of prompts."""
    if not (skyrl := real("skyrl.train.dataset.preprocess")):
        return
    for rows in (4, 64, 1_024):
        uids = [f"prompt {row // 8}" for row in range(rows)]
        both = (partial(each.compute_prompt_boundaries, uids) for each in (ours, skyrl))
        yield f"SkyRL, prompts of {rows:,} rows", *both


def of_examples() -> Iterator[Pair]:
    """SkyRL's collators."""
    if not (skyrl := real("skyrl.train.dataset.collators")):
        return
    lengths = np.random.default_rng(0).integers(50, 500, 16)
    for lens in ([50] * 4, lengths.tolist()):
        examples = [
            {
                "input_ids": list(range(length)),
                "attention_mask": [1] * length,
                "num_actions": length // 2,
                "loss_mask": [1] * (length // 2),
            }
            for length in lens
        ]
        count = len(lens)
        padded = (ours.collate_sft_batch, real("skyrl.train.sft_trainer").collate_sft_batch)
        calls = (partial(each, examples, TOKENIZER) for each in padded)
        yield f"SkyRL, {count} examples, padded", *calls
        weighted = [{**one, "loss_mask": [0.5] * one["num_actions"]} for one in examples]
        calls = (partial(each, weighted, TOKENIZER) for each in padded)
        yield f"SkyRL, {count} examples, weighted", *calls
        options = (TOKENIZER, 2_048, 1, 1, 1, 4, count, 1)
        packers = (each.PackedDataCollator(*options) for each in (ours, skyrl))
        yield (
            f"SkyRL, {count} examples, packed",
            *(partial(each, examples, count) for each in packers),
        )


def of_flushing() -> Iterator[Pair]:
    """TRL's shift of rows to the left, of a mask and two tensors."""
    import torch

    if not (trl := real("trl.trainer.utils")):
        return
    for rows, width in ((4, 64), (8, 512), (64, 2_048)):
        lens = torch.arange(rows) * width // rows + 1
        mask = (torch.arange(width) >= width - lens[:, None]).long()
        tensors = (mask, mask * 5, mask * 7)
        yield (
            f"TRL, flush_left of {rows} x {width:,}",
            partial(flush_left, *tensors),
            partial(trl.flush_left, *tensors),
        )


def flush_left(*tensors: Any) -> Any:
    """Remove the padding of tensors, the first of which is the mask, and pad them on the right."""
    import torch

    if tensors[0].numel() > LARGE:
        return [fc.pad(fc.unpad(x, mask=tensors[0])) for x in tensors]
    return fc.pad(fc.unpad(torch.stack(tensors, -1), mask=tensors[0])).unbind(-1)


def of_packing() -> Iterator[Pair]:
    """Packing in the order of the input, by axolotl."""
    axolotl = real("axolotl.utils.samplers.multipack") if find_spec("numba") else None
    if not axolotl:
        return
    for count in (16, 1_024):
        lens = np.random.default_rng(0).lognormal(6.5, 1, count).clip(1, 8_192).astype(np.int64)
        layout = fc.Packed(8_192, algorithm="next_fit")
        yield (
            f"axolotl, {count:,} lengths in sequence",
            lambda lens=lens, layout=layout: fc.planning.pack(lens, layout).bins,
            partial(axolotl.allocate_sequentially, lens, 0, 8_192, 1),
        )


def cell(figures: Figures, name: str) -> str:
    """Format a time."""
    return time_cell(figures, name, ours=["fastcollate"], peer="framework")


if __name__ == "__main__":
    main(__doc__, measure, cell)
