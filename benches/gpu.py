"""Measure the delivery of batches to a GPU, and write `docs/gpu.md` with its figures.

The page describes the measurements; `device/` has a file for each part. Without a GPU, nothing is
measured; `--smoke` uses a stand-in.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from common.report import Effort, Figures

if TYPE_CHECKING:
    from device.machines import Machine

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Look for a GPU, test, measure, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="on little data, keeping nothing")
    parser.add_argument("--rounds", type=int, default=11, help="at least (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="default: %(default)s")
    parser.add_argument("--tests", action="store_true", help="run the tests that need a GPU first")
    args = parser.parse_args()
    if missing := [name for name in ("torch", "matplotlib") if not find_spec(name)]:
        print(f"{' and '.join(missing)} not installed; nothing was run")
        return
    import torch

    has_gpu = torch.cuda.is_available()
    if not has_gpu and not args.smoke:
        print("no GPU: torch.cuda.is_available() is False; nothing was run")
        return
    if args.tests:
        command = [sys.executable, "-m", "pytest", "-m", "gpu"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            sys.exit("tests that need a GPU have failed; nothing was measured")
    from device.machines import Gpu, StandIn

    machine: Machine = Gpu() if has_gpu else StandIn()
    if args.smoke:
        with TemporaryDirectory() as folder:
            write(Effort(True, 1), machine, Path(folder))
    else:
        write(Effort(False, args.rounds), machine, args.out)


def write(effort: Effort, machine: Machine, folder: Path) -> None:
    """Measure, and write the page and its figures, even if some parts fail.

    If nothing was measured, the existing page stays.
    """
    from device.page import page
    from device.plots import draw

    results: dict[str, list[Figures]] = {}
    try:
        for part, figures in measure(effort, machine):
            print(part, ", ".join(f"{name}: {value:.4g}" for name, value in figures.items()))
            results.setdefault(part, []).append(figures)
    finally:
        if results:
            (folder / "gpu.md").write_text(page(machine.about(), results))
            draw(results, folder)


def measure(effort: Effort, machine: Machine) -> Iterator[tuple[str, Figures]]:
    """Measure all parts, as the page names them."""
    from common.clocks import HostClock
    from common.trainer import of_trainer
    from device.batches import all_rollouts
    from device.copying import of_copying
    from device.padding import of_padding
    from device.pinning import of_pinning
    from device.waiting import of_waiting

    for rows in all_rollouts(effort):
        yield "pinning", of_pinning(effort, machine, rows)
        yield "copies", of_copying(effort, machine, rows)
        yield "padding", of_padding(effort, machine, rows)
        yield from of_waiting(effort, machine, rows)
    # A model cannot train on a stand-in.
    yield "trainer", of_trainer(effort, machine if machine.device == "cuda" else HostClock())


if __name__ == "__main__":
    main()
