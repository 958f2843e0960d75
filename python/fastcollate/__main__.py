"""``python -m fastcollate``: the command line."""

from __future__ import annotations

import sys

from fastcollate import __version__

PACKAGES = {"pyarrow", "rich", "tokenizers", "typer"}
"""Packages of the extra ``cli``."""


def main() -> int:
    """Run the command line; return the exit code."""
    if sys.argv[1:] == ["--version"]:  # without the time to import the commands
        print(__version__)
        return 0
    try:
        from fastcollate.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        print(
            f"fastcollate: {error.name} is not installed; run pip install 'fastcollate[cli]'",
            file=sys.stderr,
        )
        return 1
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
