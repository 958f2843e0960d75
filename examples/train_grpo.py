"""Train a small transformer by GRPO to play higher or lower: from nothing, in a minute.

Run it from the root of the repository::

    python examples/train_grpo.py --plot grpo.png         # one process
    python examples/train_grpo.py --ddp                   # two, by DistributedDataParallel
    python examples/train_grpo.py --ray                   # two actors; no process has all tokens
    python examples/train_grpo.py --no-merge --no-pack    # a padded row per turn

The policy plays games of several turns (``grpo/playing.py``), whose turns are merged, planned and
packed here, and learns from the batches (``grpo/learning.py``). All ways have the same losses, but
for rounding: with ``--dtype float64`` for as long as they run, else until another token is drawn.
"""

from __future__ import annotations

import argparse
import math
import pickle
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console

import fastcollate as fc
from grpo.game import PAD
from grpo.learning import Learner
from grpo.options import Options
from grpo.playing import Turns
from grpo.reporting import Clock, ProgressBar, Report, plot, table_of

RANKS = 2  # with --ddp or --ray


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
    """Give all ranks the turns of all of them, and the first one's time."""
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
        # All rows without padding: how long they are, and how many tokens are trained on.
        whole = fc.build_batch(**columns, pad_token_id=PAD, merge=options.merging, layout="jagged")
        plan = fc.plan_step(whole, **options.planning)
        tokens = whole.loss_normalizers(plan).tokens

    def batches() -> Iterator[fc.Batch]:
        for mini_batch in range(plan.num_mini_batches):
            yield fc.build_batch(
                **columns,
                pad_token_id=PAD,
                merge=whole.merge_plan,
                rows=plan.shard(mini_batch, learner.rank),
                **options.layout,
            )

    losses, positions = learner.learn_all(batches(), tokens, clock)
    reward = sum(turns.rewards) / len(turns.rewards)
    return Report(reward, losses, len(turns), plan.num_real_rows, positions, clock.seconds)


def train_ddp(options: Options) -> list[Report]:
    """Train in as many processes as there are ranks."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        mp.spawn(run_rank, (options, Path(folder)), options.ranks)  # type: ignore
        reports: list[Report] = pickle.loads((Path(folder) / "reports").read_bytes())
        return reports


def run_rank(rank: int, options: Options, folder: Path) -> None:
    """Train as one of the ranks, who meet in a folder."""
    use_one_core()
    dist.init_process_group(
        "gloo",
        init_method=(folder / "ranks").as_uri(),
        rank=rank,
        world_size=options.ranks,
        timeout=timedelta(minutes=2),
    )
    try:
        reports = train(options, rank)
    finally:
        dist.destroy_process_group()
    if rank == 0:
        (folder / "reports").write_bytes(pickle.dumps(reports))


def use_one_core() -> None:
    """Leave other cores to other ranks and to collating: the model is too small to need more."""
    torch.set_num_threads(1)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--merge", action=switch, default=True, help="one row per game, not turn")
    parser.add_argument("--pack", action=switch, default=True, help="several rows share one")
    parser.add_argument("--prefetch", action=switch, default=True, help="collate while it trains")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--ddp", action="store_true", help=f"{RANKS} processes")
    where.add_argument("--ray", action="store_true", help=f"{RANKS} actors of Ray")
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw reward and time")
    arguments = vars(parser.parse_args())
    ddp, on_ray, path = (arguments.pop(name) for name in ("ddp", "ray", "plot"))
    options = Options(**arguments, ranks=RANKS if ddp or on_ray else 1)
    if path is not None:
        import matplotlib  # noqa: F401 - or it would be missed only in the end
    if on_ray:
        from grpo.on_ray import train_on_ray

        reports = train_on_ray(options)
    elif ddp:
        reports = train_ddp(options)
    else:
        use_one_core()
        reports = train(options)
    Console().print(table_of(reports))
    if path is not None:
        plot(reports, path)


if __name__ == "__main__":
    main()
