"""``python -m fastcollate``: the command line."""

from __future__ import annotations

import sys

PACKAGES = {"pyarrow", "rich", "tokenizers", "typer"}
"""Packages of the extra ``cli``."""


def main() -> int:
    """Run the command line; return the exit code."""
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
