"""The command line of `examples/train_grpo.py`."""

from __future__ import annotations

import argparse
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from grpo.options import Options
from grpo.reporting import check_plot
from tutorials.preflight import check_device, hint_of

RANKS = 2  # with --ddp or --ray

Where = Literal["here", "ddp", "ray"]


def read_command_line(description: str) -> tuple[Options, Where, Path | None]:
    """Return the options of the run, the kind of processes, and the file of the plot.

    Options that cannot work are an error of argparse here, not at the end of a run.
    """
    parser = argparse.ArgumentParser(description=description)
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--merge", action=switch, default=True, help="one row per game, not turn")
    parser.add_argument("--pack", action=switch, default=True, help="several rows share one")
    help_ = "ranks get rows of about the same cost, not in turn"
    parser.add_argument("--balance", action=switch, default=True, help=help_)
    help_ = "a rank's batch is as wide as its own longest row, not the step's"
    parser.add_argument("--narrow", action=switch, default=False, help=help_)
    parser.add_argument("--tree", action=switch, default=False, help="or share what they can")
    parser.add_argument("--prefetch", action=switch, default=True, help="collate while it trains")
    where = parser.add_mutually_exclusive_group()
    parser.set_defaults(where="here")
    for name, ranks in ("ddp", "processes"), ("ray", "actors of Ray"):
        where.add_argument(
            f"--{name}", dest="where", action="store_const", const=name, help=f"{RANKS} {ranks}"
        )
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw reward and time")
    arguments = vars(parser.parse_args())
    where, path = arguments.pop("where"), arguments.pop("plot")
    try:
        options = Options(**arguments, ranks=1 if where == "here" else RANKS)
    except ValueError as error:
        parser.error(str(error))
    if where == "ray" and find_spec("ray") is None:
        parser.error("argument --ray: Ray is not installed; pip install 'fastcollate[ray]'")
    check_device(parser, options.device)
    if path is not None:
        try:
            check_plot(path)
        except (ImportError, OSError, ValueError) as error:
            parser.error(f"argument --plot: {hint_of(error) or error}")
    return options, where, path
