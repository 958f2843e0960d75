"""Forecast the waiting of ranks, with plans of fastcollate and other frameworks.

A line is a mini-batch of one of three workloads on 8 or 64 ranks, by the FLOPs of a model of 3 B
parameters; figures are means of several mini-batches. *Log-normal*: a median of 2,000 tokens, at
most 16,384. *Agentic*: of 100 rows, six have 8,000 to 32,000 tokens, others 100 to 1,000.
*Recorded*: the rollouts in `examples/rollouts`, merged, drawn again and again.

bound
    The least waiting: the costliest row alone may take longer than the mean of all ranks.
packed
    `plan_step` with `Packed`: the default, by cost, in the same number of bins for every rank.
rows
    `plan_step` without bins: the same number of rows for every rank.
dealt out
    Packed, bins go to ranks in turn (``shard_by="strided"``).
verl, equal
    verl's `get_seqlen_balanced_partitions` of its own workloads, parts of any or of equal size.
SkyRL
    SkyRL's `make_seq_packer`, first fit decreasing, whose bins go to ranks in turn.
TRL
    TRL's `_balance_by_squared_length`.
plan
    The time to plan "packed".

The lines of trees have other figures. *Samples*: groups of one prompt, a median of 1,000 tokens,
with responses as long. *Long prompts*: a median of 3,000 tokens, responses of 500. *Agents*: groups
of 8 trajectories of one task, of a median of 2,000 tokens and at most the capacity, some of which
fork late. *Recorded*: the merged rollouts, each once.

bound
    The least waiting: the costliest row, or the mean of all ranks if no more tokens are computed
    twice than capacity, and the time itself, require. Ranks and bins that hold tokens below a fork
    hold those above it, too.
tree
    `plan_step` with `Tree`: the share of the slowest rank's time that exceeds the mean without
    tokens that are computed twice.
slowest
    The slowest rank over that of the bound.
saves
    The time of the packed step over that of the tree step.
shared
    The costs of all rows over those without shared tokens: what sharing saves on one rank.
bins
    Bins of each rank.

The last lines are plans of up to 1,000,000 rows, by fitted costs; those of trees begin with the
tokens that groups of 8 share.

Peers need `make peers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastcollate as fc
from common.report import Effort, Figures, main, time_text
from fastcollate.planning import TreePlan
from frameworks.installed import real
from rollouts import load_rollouts

Lengths = NDArray[np.int64]
Parts = list[list[int]]

COSTS = fc.planning.Costs.from_config(
    {
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "intermediate_size": 11008,
        "vocab_size": 151936,
    }
)
FITTED = fc.planning.Costs(1.3e-7, 4e-12, 2e-6, 0.012)
CAPACITY = 32_768


def log_normal(rng: np.random.Generator, count: int) -> Lengths:
    """Draw rows of about the same length."""
    return rng.lognormal(np.log(2000), 0.8, count).astype(np.int64).clip(16, 16_384)


def agentic(rng: np.random.Generator, count: int) -> Lengths:
    """Draw many short rows and few long ones."""
    lengths = rng.integers(100, 1_000, count)
    is_long = rng.random(count) < 0.06
    lengths[is_long] = rng.integers(8_000, 32_000, int(is_long.sum()))
    return lengths


def recorded() -> Callable[[np.random.Generator, int], Lengths]:
    """Return a function that draws rows of recorded rollouts."""
    rollouts = load_rollouts()
    turns = {"trajectory_ids": rollouts.trajectory_ids, "is_last_step": rollouts.is_last_step}
    merged = fc.merge_turns(rollouts.prompts, rollouts.responses, **turns)
    lengths = np.array(merged.prompt_lens) + np.array(merged.response_lens)
    return lambda rng, count: rng.choice(lengths, count)


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Forecast all workloads, and measure the time of plans."""
    workloads = {"log-normal": log_normal, "agentic": agentic, "recorded": recorded()}
    counts = {8: (256,)} if effort.is_smoke else {8: (256, 1024), 64: (1024, 4096)}
    for name, draw in workloads.items():
        for ranks, sizes in counts.items():
            for count in sizes:
                rng = np.random.default_rng(count)
                rounds = [draw(rng, count) for _ in range(1 if effort.is_smoke else 5)]
                yield f"{name}, {count:,} on {ranks}", of_mini_batches(effort, rounds, ranks)
    for name, ranks, capacity, tree in trees(effort):
        yield f"{name} on {ranks}, {capacity:,}", of_tree(tree, ranks, capacity)
    for count in (1_000, 10_000, 100_000, 1_000_000):
        count //= 64 if effort.is_smoke else 1
        lengths = log_normal(np.random.default_rng(0), count)
        tree = samples(np.random.default_rng(0), count // 8, 8, 1_000, 1_000, 16_384)
        calls = {
            "packed": partial(plan, lengths, 8, FITTED),
            "rows": partial(fc.plan_step, lengths, dp_size=8, shard_by=FITTED, layout="jagged"),
            "tree": partial(fc.plan_step, tree, dp_size=8, shard_by=FITTED, layout=fc.Tree(16_384)),
        }
        times = effort.run(calls)
        yield f"planning {count:,} rows for 8", {f"plan {name}": times[name] for name in calls}


def plan(lengths: Lengths, ranks: int, costs: fc.planning.Costs) -> fc.planning.StepPlan:
    """Plan a packed step."""
    return fc.plan_step(lengths, dp_size=ranks, layout=fc.Packed(CAPACITY), shard_by=costs)


def of_mini_batches(effort: Effort, rounds: list[Lengths], ranks: int) -> Figures:
    """Return the share that ranks wait, of each plan."""
    found = [of_mini_batch(lengths, ranks) for lengths in rounds]
    figures = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    times = effort.run({"plan": partial(plan, rounds[0], ranks, COSTS)})
    return figures | {"plan packed": times["plan"]}


def of_mini_batch(lengths: Lengths, ranks: int) -> Figures:
    """Return the share that ranks wait, of each plan."""
    costs = COSTS.of(lengths)
    mean = costs.sum() / ranks

    def idle(parts: Parts) -> float:
        return float(1 - mean / max(costs[part].sum() for part in parts))

    def waiting(step: fc.planning.StepPlan) -> float:
        return step.forecast(COSTS, computes_padding=False).idle

    rows = {"dp_size": ranks, "layout": "jagged", "shard_by": COSTS}
    figures = {
        "bound": float(1 - mean / max(mean, costs.max())),
        "packed": waiting(plan(lengths, ranks, COSTS)),
        "rows": waiting(fc.plan_step(lengths, **rows)),
        "dealt out": waiting(
            fc.plan_step(lengths, dp_size=ranks, layout=fc.Packed(CAPACITY), shard_by="strided")
        ),
    }
    return figures | {name: idle(parts) for name, parts in peers(lengths, ranks).items()}


def trees(effort: Effort) -> Iterator[tuple[str, int, int, TreePlan]]:
    """Draw the rows of tree steps, with ranks and capacities."""
    for capacity in (8_192, 16_384):
        for ranks, count in (
            ((8, 64),) if effort.is_smoke else ((8, 64), (8, 256), (64, 512), (64, 2048))
        ):
            rng = np.random.default_rng(count)
            for size in (8, 16):
                tree = samples(rng, count // size, size, 1_000, 1_000, capacity)
                yield f"samples by {size}, {count:,}", ranks, capacity, tree
            tree = samples(rng, count // 8, 8, 3_000, 500, capacity)
            yield f"long prompts, {count:,}", ranks, capacity, tree
            yield f"agents, {count:,}", ranks, capacity, agents(rng, count, capacity)
        rollouts = load_rollouts()
        turns = {"trajectory_ids": rollouts.trajectory_ids, "is_last_step": rollouts.is_last_step}
        merge = fc.merge_turns(rollouts.prompts, rollouts.responses, **turns)
        tree = fc.planning.prefix_tree(rollouts.prompts, rollouts.responses, merge=merge)
        for ranks in (8, 64):
            yield f"recorded, {len(tree.order)}", ranks, capacity, tree


def samples(
    rng: np.random.Generator, groups: int, size: int, prompt: int, response: int, capacity: int
) -> TreePlan:
    """Draw groups of samples of one prompt."""
    most = capacity // 2
    prompts = rng.lognormal(np.log(prompt), 0.5, groups).astype(np.int64).clip(16, most)
    lengths = rng.lognormal(np.log(response), 0.8, groups * size).astype(np.int64).clip(16, most)
    shared = prompts.repeat(size)
    shared[::size] = 0
    return TreePlan(np.arange(len(shared)), shared, prompts.repeat(size), lengths)


def agents(rng: np.random.Generator, count: int, capacity: int) -> TreePlan:
    """Draw groups of 8 trajectories, of which some fork late."""
    tasks = rng.lognormal(np.log(600), 0.5, count // 8).astype(np.int64).clip(100, 2_000).repeat(8)
    lengths = rng.lognormal(np.log(2_000), 1.1, len(tasks)).astype(np.int64).clip(50)
    lengths = np.minimum(lengths, capacity - tasks)
    late = np.minimum(lengths, np.append(0, lengths[:-1])) * rng.random(len(tasks))
    shared = tasks + np.where(rng.random(len(tasks)) < 0.3, late, 0).astype(np.int64)
    shared[::8] = 0
    return TreePlan(np.arange(len(tasks)), shared, tasks, lengths)


def of_tree(tree: TreePlan, ranks: int, capacity: int) -> Figures:
    """Return the waiting of a tree step, and its time relative to that of the packed step."""
    from tree_bounds import bound_of  # of tests/helpers, which `common` adds to the path

    step, packed = (
        fc.plan_step(rows, layout=layout, dp_size=ranks, shard_by=COSTS)
        for rows, layout in ((tree, fc.Tree(capacity)), (tree.lengths, fc.Packed(capacity)))
    )
    forecasts = [plan.forecast(COSTS, computes_padding=False) for plan in (step, packed)]
    times = [forecast.time for forecast in forecasts]
    nodes = tree.nodes
    mean = float(COSTS.of_added(nodes.depths + nodes.lengths, nodes.depths).sum()) / ranks
    bound = bound_of(tree, COSTS, ranks, capacity)
    return {
        "bound": 1 - mean / bound,
        "tree": 1 - mean / times[0],
        "slowest": times[0] / bound,
        "saves": times[1] / times[0],
        "shared": float(COSTS.of(tree.lengths).sum()) / (mean * ranks),
        "bins": forecasts[0].times[0].shape[1],
    }


def peers(lengths: Lengths, ranks: int) -> dict[str, Parts]:
    """Return the rows of each rank by other frameworks' own functions."""
    found: dict[str, Parts] = {}
    if (verl := real("verl.utils.seqlen_balancing")) is not None:
        import torch

        work = verl.calculate_workload(torch.from_numpy(lengths)).tolist()
        parts = verl.get_seqlen_balanced_partitions
        found["verl"] = parts(work, ranks, equal_size=False)
        found["equal"] = parts(work, ranks, equal_size=True)
    if (skyrl := real("skyrl.train.dataset.bin_packing")) is not None:
        packer = skyrl.make_seq_packer(
            "first_fit_decreasing", CAPACITY, min_bin_count=ranks, bin_count_multiple=ranks
        )
        bins = packer.pack(lengths.tolist())
        found["SkyRL"] = [list(chain(*bins[rank::ranks])) for rank in range(ranks)]
    trl = real("trl.experimental.async_distillation.async_distillation_trainer")
    if trl is not None:
        rows = [
            {"input_ids": range(length), "row": row} for row, length in enumerate(lengths.tolist())
        ]
        groups: Any = trl._balance_by_squared_length(rows, ranks)
        found["TRL"] = [[row["row"] for row in group] for group in groups]
    return found


def cell(figures: Figures, name: str) -> str:
    """Format a share, or a time."""
    if name.startswith("plan "):
        return time_text(figures[name])
    if name in ("slowest", "saves", "shared"):
        return f"{figures[name]:.3f}x"
    return f"{figures[name]:.0f}" if name == "bins" else f"{figures[name]:.2%}"


if __name__ == "__main__":
    main(__doc__, measure, cell)
