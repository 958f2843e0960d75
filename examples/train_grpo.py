"""Train a small transformer by GRPO to play higher or lower: from nothing, in a minute.

Run it from the root of the repository::

    python examples/train_grpo.py --plot grpo.png         # one process
    python examples/train_grpo.py --ddp                   # two, by DistributedDataParallel
    python examples/train_grpo.py --ddp --no-balance      # rows go to ranks in turn, not by cost
    python examples/train_grpo.py --ray                   # two actors; no process has all tokens
    python examples/train_grpo.py --no-merge --no-pack    # a padded row per turn
    python examples/train_grpo.py --tree                  # what rows begin with in common, once
    python examples/train_grpo.py --ddp --narrow    # each rank as wide as its own rows

The policy plays games of several turns (``grpo/playing.py``), whose turns are merged, planned and
packed here, and learns from the batches (``grpo/learning.py``). All options give the same losses,
up to rounding, which grows from step to step until a different token is drawn: after some 20 steps,
or a hundred with ``--dtype float64``.
"""

from __future__ import annotations

import tutorials.preflight  # isort: skip  # noqa: F401  # errors of one line

import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console

import fastcollate as fc
from grpo.command_line import read_command_line
from grpo.game import PAD
from grpo.learning import Learner
from grpo.options import TIMEOUT, Options
from grpo.playing import Turns
from grpo.reporting import Clock, ProgressBar, Report, plot, table_of


def train(options: Options, rank: int = 0) -> list[Report]:
    """Play and learn, step by step."""
    learner = Learner(options, rank)
    reports: list[Report] = []
    with ProgressBar(options, is_shown=rank == 0) as bar:
        for step in range(options.steps):
            clock = Clock()
            with clock.measure("playing"):
                turns, elapsed = exchanged(learner.play(step), bar.elapsed, options.ranks)
            if reports and elapsed > options.seconds:
                break
            reports.append(train_step(learner, turns, clock))
            bar.show(reports[-1])
    return reports


def exchanged(turns: Turns, elapsed: float, ranks: int) -> tuple[Turns, float]:
    """Send all ranks the turns of all ranks, and the time of the first."""
    if ranks == 1:
        return turns, elapsed
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, (turns, elapsed))
    return Turns.joined([turns for turns, _ in parts]), parts[0][1]


def train_step(learner: Learner, turns: Turns, clock: Clock) -> Report:
    """Learn from a step's turns, one mini-batch after the other."""
    options = learner.options
    columns = turns.columns(options.samples)
    with clock.measure("planning"):
        # All rows without padding, for their lengths and numbers of trained tokens.
        whole = fc.build_batch(**columns, pad_token_id=PAD, merge=options.merging, layout="jagged")
        rows: fc.Batch | fc.planning.TreePlan = whole
        if options.tree:
            tokens_of = columns["prompts"], columns["responses"]
            rows = fc.planning.prefix_tree(*tokens_of, merge=whole.merge_plan)
        plan = fc.plan_step(rows, uids=whole.uids, **options.planning)
        tokens = whole.loss_normalizers(plan).tokens

    def batches() -> Iterator[fc.Batch]:
        for mini_batch in range(plan.num_mini_batches):
            shard = plan.shard(mini_batch, learner.rank)
            yield fc.build_batch(
                **columns,
                pad_token_id=PAD,
                merge=whole.merge_plan,
                shard=shard.narrow() if options.narrow else shard,
                position_ids="zero",  # or positions of padding would exceed the model's
            )

    losses, positions = learner.learn_all(batches(), tokens, clock)
    reward = sum(turns.rewards) / len(turns.rewards)
    return Report(reward, losses, len(turns), plan.num_real_rows, positions, clock.seconds)


def train_ddp(options: Options) -> list[Report]:
    """Train in as many processes as there are ranks."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with interrupts_ignored():
            ranks: Any = mp.spawn(  # type: ignore[attr-defined, no-untyped-call]
                run_rank, (options, Path(folder)), options.ranks, join=False, daemon=True
            )
        while not ranks.join():
            pass
        reports: list[Report] = pickle.loads((Path(folder) / "reports").read_bytes())
        return reports


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, until they enable it themselves."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def run_rank(rank: int, options: Options, folder: Path) -> None:
    """Train as one of the ranks, which connect through a folder."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also sent if the parent dies
    use_one_core()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "ranks"), options.ranks),  # type: ignore[attr-defined]
        rank=rank,
        world_size=options.ranks,
        timeout=TIMEOUT,
    )
    try:
        reports = train(options, rank)
    finally:
        dist.destroy_process_group()
    if rank == 0:
        (folder / "reports").write_bytes(pickle.dumps(reports))
    sys.stdout.flush()
    os._exit(0)  # a running thread of torch's sometimes aborts a process that exits normally


def use_one_core() -> None:
    """Leave other cores to other ranks and to collating: the model is too small to need more."""
    torch.set_num_threads(1)


def main() -> None:
    """Train by the options of the command line."""
    options, where, path = read_command_line((__doc__ or "").partition("\n")[0])
    console = Console()
    try:
        if where == "ray":
            from grpo.on_ray import train_on_ray

            reports = train_on_ray(options)
        elif where == "ddp":
            reports = train_ddp(options)
        else:
            use_one_core()
            reports = train(options)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:
        console.show_cursor()  # the bar of a killed process leaves it hidden
    console.print(table_of(reports))
    if path is not None:
        plot(reports, path)


if __name__ == "__main__":
    main()
