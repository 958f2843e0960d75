"""`fastcollate verify` with the frameworks that `make peers` downloads.

``python -m frameworks.parity [FRAMEWORK ...] [--seconds N] [--seed N]`` compares with each
framework: the installed one, else the downloaded one. Modules of `.peers` are loaded one by one,
with stubs in place of what they import; they are listed in `frameworks.installed`.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from fastcollate.testing.verifying import FRAMEWORKS
from fastcollate.testing.verifying.subjects import Peer, find_installed
from fastcollate.testing.verifying.verification import comparisons, print_lines
from frameworks import installed, trl_collators  # noqa: F401, which adds comparisons


def find_peer(name: str) -> Peer | None:
    """Return the installed framework, else that of ``make peers``, else None."""
    if (peer := find_installed(name)) is not None:
        return peer
    if (version := installed.version(name)) is None:
        return None
    if name != "skyrl":  # compat imports modules of SkyRL alone
        return Peer(version, installed.load, False)
    return Peer(version, installed.load, False, partial(installed.as_installed, name))


def main(arguments: list[str] | None = None) -> int:
    """Compare, print a table, and return the exit code.

    The exit code is 1 if a function differs or a framework that was named is missing; 130 after
    Ctrl-C.
    """
    parser = argparse.ArgumentParser("python -m frameworks.parity", description=__doc__)
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=", ".join(FRAMEWORKS))
    parser.add_argument("--seconds", type=float, default=20, help="for all comparisons (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the first cases (0)")
    options = parser.parse_args(arguments)
    try:
        return int(
            print_lines(*comparisons(options.frameworks, options.seconds, options.seed, find_peer))
        )
    except (ValueError, ImportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has ended, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1


if __name__ == "__main__":
    sys.exit(main())
