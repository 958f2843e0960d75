"""Measure two builds of the extension against each other, such as two wheels of one version.

    python benches/builds.py dist/*cp311-cp311*.whl dist/*abi3*.whl

Both are loaded into one process and take turns. Without arguments, the installed package is
compared with itself, which measures the noise.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

from rich.console import Console

from common.report import Effort, Figures, table, time_text
from common.workload import as_lists, long_rollouts, rollouts


def main() -> None:
    """Measure, and print a table with the ratio of the second build to the first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheels", nargs="*", type=Path, help="two wheels for this Python")
    parser.add_argument("--rounds", type=int, default=31, help="at least (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="one round on little data")
    args = parser.parse_args()
    if len(args.wheels) not in (0, 2):
        parser.error(f"{len(args.wheels)} wheels; pass two, or none")
    effort = Effort(args.smoke, 1 if args.smoke else args.rounds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        wheels = args.wheels or [None, None]
        builds = {
            name: loaded(wheel, Path(folder)) for name, wheel in zip("AB", wheels, strict=True)
        }
        results = {
            case: effort.run({name: partial(call, build) for name, build in builds.items()})
            for case, call in cases(args.smoke).items()
        }
    for figures in results.values():
        figures["B / A"] = figures["B"] / figures["A"]
    Console(width=132).print(table(results, cell))


def cases(is_smoke: bool) -> dict[str, Callable[[Any], object]]:
    """Return the measured calls, each of the package of a build."""
    arrays = long_rollouts(8 if is_smoke else 1_500)
    lists = as_lists(arrays)
    short = as_lists(rollouts(64, prompts=(10, 100), responses=(10, 100)))
    weights = [len(row) for row in rollouts(4_096, prompts=(1, 9), responses=(1, 900))["responses"]]
    return {
        f"{len(lists['prompts']):,} long rows, lists": partial(batch_of, lists),
        f"{len(lists['prompts']):,} long rows, NumPy": partial(batch_of, arrays),
        "64 short rows, lists": partial(batch_of, short),
        "64 short rows, BatchBuilder": partial(built_of, short),
        "partition of 4,096 rows": lambda fc: fc.planning.partition(weights, 64),
    }


def batch_of(rows: dict[str, Any], fc: Any) -> object:
    """Build a batch of NumPy arrays in recycled memory."""
    return fc.build_batch(**rows, pad_token_id=0, array_type="numpy")


def built_of(rows: dict[str, Any], fc: Any) -> object:
    """Add rows one by one, and build their batch."""
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    names = {"prompts": "prompt", "responses": "response"}
    for values in zip(*rows.values(), strict=True):
        builder.add(**{names.get(name, name): row for name, row in zip(rows, values, strict=True)})
    return builder.finish()


def loaded(wheel: Path | None, folder: Path) -> ModuleType:
    """Import the package out of a wheel, apart from other builds of it."""
    if wheel is not None:
        ZipFile(wheel).extractall(folder / wheel.stem)
        sys.path.insert(0, str(folder / wheel.stem))
    for name in [name for name in sys.modules if name.partition(".")[0] == "fastcollate"]:
        del sys.modules[name]
    try:
        return importlib.import_module("fastcollate")
    finally:
        if wheel is not None:
            del sys.path[0]


def cell(figures: Figures, name: str) -> str:
    """Format a time, or the ratio."""
    return f"{figures[name]:.2f}" if name == "B / A" else time_text(figures[name])


if __name__ == "__main__":
    main()
