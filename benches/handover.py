"""Measure the handover of a batch to its trainer: collating samples, waiting for them, staging.

collate ...
    `fastcollate.Collator` on samples for supervised fine-tuning, 16 rows of 200 to 4,000 tokens
    with labels, into ids, mask and labels; and how many times as long the plain ways take:
    "torch.tensor" pads lists and makes tensors of them, as Hugging Face's collators do;
    "pad_sequence" makes a tensor of each row first. "TRL" is its `DataCollatorForLanguageModeling`,
    after `make peers`.
pairs
    The same for preference pairs of 100 to 2,000 tokens each, from lists. "TRL" is its
    `DataCollatorForPreference`.
wait ...
    The share of the time that a training loop waits for batches of 256 rows, from lists and from
    arrays, with and without `prefetch`. A step leaves the processor idle, as on a device, for
    three times the time to build a batch.
stage ...
    What `prefetch` does with a batch that came from another process: all outputs are copied into
    one slab. "fill" writes as many bytes to memory in use, "clone" copies each output.

torch computes on one thread. What a GPU takes to get its batches is measured by `gpu.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import fastcollate as fc
from common.clocks import HostClock
from common.report import Effort, Figures, main, time_cell
from common.trainer import of_trainer
from common.workload import as_lists, fill, rollouts
from frameworks.installed import real

SHARES = ("wait", "prefetch")
"""Figures that are shares, not seconds."""


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure all that the hardware allows."""
    if not find_spec("torch"):
        return
    import torch

    torch.set_num_threads(1)
    for form in "lists", "arrays":
        yield f"collate {form}", of_collating(effort, form)
    if real("trl.trainer.dpo_trainer"):
        yield "pairs", of_pairs(effort)
    for form in "lists", "arrays":
        yield f"wait, {form}", of_waiting(effort, form)
    yield "wait, trainer", of_trainer(effort, HostClock())
    yield "stage", of_staging(effort)


# Samples


def of_collating(effort: Effort, form: str) -> Figures:
    """Measure collators of samples with labels."""
    rows = rollouts(4 if effort.is_smoke else 16, prompts=(100, 2_000), responses=(100, 2_000))
    samples = []
    for prompt, response in zip(rows["prompts"], rows["responses"], strict=True):
        ids = np.concatenate([prompt, response])
        labels = np.concatenate([np.full(len(prompt), -100, np.int32), response])
        samples.append({"input_ids": ids, "labels": labels})
    if form == "lists":
        samples = [{key: row.tolist() for key, row in sample.items()} for sample in samples]
    keys = ("input_ids", "attention_mask", "labels")
    collate = fc.Collator(pad_token_id=0, layout="right", outputs=keys)
    calls: dict[str, Callable[[], Any]] = {
        "fastcollate": partial(collate, samples),
        "torch.tensor": partial(by_tensor, samples),
        "pad_sequence": partial(by_pad_sequence, samples),
    }
    if trl := real("trl.trainer.sft_trainer"):
        calls["TRL"] = partial(trl.DataCollatorForLanguageModeling(0).torch_call, samples)
    return of_equals(effort, calls, keys)


def of_pairs(effort: Effort) -> Figures:
    """Measure collators of preference pairs."""
    count = 4 if effort.is_smoke else 16
    chosen = rollouts(count, prompts=(50, 1_000), responses=(50, 1_000))
    rejected = rollouts(count, prompts=(50, 1_000), responses=(50, 1_000))["responses"]
    columns = (chosen["prompts"], chosen["responses"], rejected)
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    pairs = [
        {name: row.tolist() for name, row in zip(names, rows, strict=True)}
        for rows in zip(*columns, strict=True)
    ]
    keys = ("input_ids", "attention_mask", "completion_mask")
    trl = real("trl.trainer.dpo_trainer")
    calls: dict[str, Callable[[], Any]] = {
        "fastcollate": partial(fc.Collator(pad_token_id=0, layout="right", outputs=keys), pairs),
        "TRL": partial(trl.DataCollatorForPreference(0).torch_call, pairs),
    }
    return of_equals(effort, calls, keys)


def of_equals(
    effort: Effort, calls: dict[str, Callable[[], Any]], keys: tuple[str, ...]
) -> Figures:
    """Measure calls with equal results."""
    expected = calls["fastcollate"]()
    for call in calls.values():
        assert all((call()[key] == expected[key]).all() for key in keys)
    return effort.run(calls)


def by_tensor(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad rows as lists, or as arrays if they are, and make tensors of all."""
    import torch

    width = max(len(sample["input_ids"]) for sample in samples)

    def padded(key: str, padding: int) -> Any:
        rows = [sample[key] for sample in samples]
        if isinstance(rows[0], list):
            return torch.tensor([row + [padding] * (width - len(row)) for row in rows])
        table = [np.pad(row, (0, width - len(row)), constant_values=padding) for row in rows]
        return torch.from_numpy(np.stack(table).astype(np.int64))

    lens = torch.tensor([len(sample["input_ids"]) for sample in samples])
    return {
        "input_ids": padded("input_ids", 0),
        "attention_mask": (torch.arange(width) < lens[:, None]).long(),
        "labels": padded("labels", -100),
    }


def by_pad_sequence(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a tensor of each row, and pad them together."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def padded(key: str, padding: int) -> Any:
        rows = [torch.as_tensor(sample[key], dtype=torch.int64) for sample in samples]
        return pad_sequence(rows, batch_first=True, padding_value=padding)

    lens = torch.tensor([len(sample["input_ids"]) for sample in samples])
    ids = padded("input_ids", 0)
    return {
        "input_ids": ids,
        "attention_mask": (torch.arange(ids.shape[1]) < lens[:, None]).long(),
        "labels": padded("labels", -100),
    }


# Waiting


def of_waiting(effort: Effort, form: str) -> Figures:
    """Measure the share of a loop's time that it waits for batches."""
    arrays = rollouts(8 if effort.is_smoke else 256, prompts=(100, 2_000), responses=(100, 4_000))
    columns = as_lists(arrays) if form == "lists" else arrays
    build = partial(fc.build_batch, **columns, pad_token_id=0)
    for _ in range(3):
        build()  # the first call takes fresh memory
    begin = time.perf_counter()
    for _ in range(3):
        build()
    step = time.perf_counter() - begin  # of three batches
    count = 3 if effort.is_smoke else 10

    def share_of(batches: Any) -> float:
        waited, begin = 0.0, time.perf_counter()
        for _ in range(count):
            asked = time.perf_counter()
            next(batches)
            waited += time.perf_counter() - asked
            time.sleep(step)
        return waited / (time.perf_counter() - begin)

    shares: dict[str, list[float]] = {"wait": [], "prefetch": []}
    for _ in range(1 if effort.is_smoke else 5):
        shares["wait"].append(share_of(build() for _ in range(count)))
        with fc.prefetch(build() for _ in range(count)) as batches:
            shares["prefetch"].append(share_of(batches))
    return {name: float(np.median(values)) for name, values in shares.items()}


# Staging


def large_batch(effort: Effort) -> fc.Batch:
    """Build a batch of 1,500 rows, 262 MB in the reference layout."""
    rows = rollouts(20 if effort.is_smoke else 1_500, prompts=(100, 2_000), responses=(100, 4_000))
    return fc.build_batch(**rows, pad_token_id=0)


def of_staging(effort: Effort) -> Figures:
    """Measure the copy into a slab."""
    import torch

    from fastcollate.device.to_device import pack_into
    from fastcollate.memory.slabs import offsets_of_packed

    tensors = [tensor.clone() for tensor in large_batch(effort).values()]
    offsets, size = offsets_of_packed(tensors)
    slab = torch.zeros(size, dtype=torch.uint8)
    clones = [torch.zeros_like(tensor) for tensor in tensors]

    def clone() -> None:
        for place, tensor in zip(clones, tensors, strict=True):
            place.copy_(tensor)

    outputs = [place.numpy() for place in clones]
    return effort.run(
        {
            "one slab": partial(pack_into, slab, tensors, offsets),
            "clone": clone,
            "fill": partial(fill, outputs),
        }
    )


def cell(figures: Figures, name: str) -> str:
    """Format a share, or a time and how many times as long the peer takes."""
    if name in SHARES:
        return f"{figures[name]:.0%}"
    return time_cell(
        figures,
        name,
        ours=("fastcollate",),
        peer="torch.tensor" if "torch.tensor" in figures else "TRL",
    )


if __name__ == "__main__":
    main(__doc__, measure, cell)
