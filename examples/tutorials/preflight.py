"""Problems of a run in one line each: an old Python, a missing package, an unusable device.

Scripts import this module before any package. It changes nothing about other errors.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036  # examples also run where nothing is installed
    version = ".".join(map(str, sys.version_info[:3]))
    sys.exit(f"Python {version} is too old; run this with Python 3.10 or newer")

import argparse
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

PACKAGES = ("matplotlib", "numpy", "ray", "rich", "tokenizers", "torch", "transformers")
INSTALL = {name: f"pip install {name}" for name in PACKAGES}
INSTALL["fastcollate"] = "pip install . (in the root of the repository)"


def hint_of(error: BaseException) -> str | None:
    """Return one line on a package that is missing or too old, or None for other errors."""
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        if name in INSTALL and find_spec(name) is None:
            return f"{name} is not installed; run: {INSTALL[name]}"
    if isinstance(error, ImportError) and str(error).startswith("fastcollate "):
        return str(error)  # says what to do itself
    return None


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error; a package to install and Ctrl-C take one line."""
    line = "interrupted" if kind is KeyboardInterrupt else hint_of(error)
    if line is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(line, file=sys.stderr)


sys.excepthook = report
sys.path.append(str(Path(__file__).parents[1]))  # for the recorded rollouts


def read_arguments(description: str | None, steps: int) -> argparse.Namespace:
    """Return the options of a tutorial: `steps` and `device`.

    Parameters
    ----------
    description
        The script's docstring; ``--help`` shows its first line.
    steps
        Default number of steps.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=steps, help="optimizer steps (%(default)s)")
    parser.add_argument("--device", default="cpu", help="device of the model (%(default)s)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"argument --steps: steps is {arguments.steps}; pass 1 or more")
    check_device(parser, arguments.device)
    return arguments


def check_device(parser: argparse.ArgumentParser, device: str) -> None:
    """Exit with one line if torch cannot compute on a device, or copy values from it."""
    import torch

    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without it
        reason = str(error).partition("\n")[0]
        parser.error(
            f"argument --device: {device!r} cannot be used: {reason}; pass --device cpu, or "
            "install a torch for this device"
        )
