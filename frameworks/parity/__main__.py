"""The command line: ``python -m frameworks.parity [FRAMEWORK ...] [--seconds N] [--seed N]``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from importlib.util import find_spec

from fastcollate.compat.versions import VERIFIED
from frameworks.parity import NAMES, framework
from frameworks.parity.framework import Framework

NEEDED = ("hypothesis", "pyarrow", "torch")
"""Packages without which most functions cannot be compared."""


def main(arguments: list[str] | None = None) -> int:
    """Compare, print a table for each framework, and return the exit code.

    The exit code is 1 if a function differs, a framework that was named is missing, or nothing was
    compared; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser("python -m frameworks.parity", description=__doc__)
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=", ".join(NAMES))
    parser.add_argument("--seconds", type=float, default=10, help="for each framework (10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first cases (0)")
    options = parser.parse_args(arguments)
    if unknown := set(options.frameworks) - set(NAMES):
        parser.error(f"unknown framework {min(unknown)}; pass some of {', '.join(NAMES)}")
    if not 0 < options.seconds < math.inf:
        parser.error(f"argument --seconds: seconds is {options.seconds}; pass a number above 0")
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        parser.error(f"{missing[0]} is not installed; run: pip install {' '.join(missing)}")
    try:
        results = [
            report(framework(name), options.seconds, options.seed)
            for name in options.frameworks or NAMES
        ]
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has ended, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    is_complete = None not in results if options.frameworks else any(results)
    return 0 if is_complete and False not in results else 1


def report(framework: Framework, seconds: float, seed: int) -> bool | None:
    """Print a framework's table; return True if all is the same, None if there is no framework."""
    peer = framework.peer()
    if peer is None:
        print(
            f"{framework.title}: nothing to compare with; install it, or run `{framework.download}`"
        )
        return None
    from frameworks.parity.running import compare  # imports Hypothesis

    verified = VERIFIED[framework.name]
    note = "" if peer.version in verified else f"; verified: {', '.join(verified)}"
    print(f"{framework.title} {peer.version} ({peer.origin}{note})")
    are_same = True
    for name, comparison in framework.comparisons.items():
        outcome = compare(comparison, peer, seconds / len(framework.comparisons), seed)
        verdict = "same" if outcome.difference is None else "DIFFERS"
        print(f"  {name:<58} {outcome.cases:>7,} cases  {verdict}", flush=True)
        if outcome.difference is not None:
            are_same = False
            print(f"{framework.title} {peer.version}, {name}, {outcome.difference}", flush=True)
    for name, reason in framework.not_compared.items():
        print(f"  {name:<58} {'':>13}  not compared: {reason}")
    return are_same


if __name__ == "__main__":
    sys.exit(main())
