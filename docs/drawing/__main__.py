"""Draw all pictures of the site into `docs/pictures`: `make pictures`."""

from __future__ import annotations

import argparse
from pathlib import Path

import batch
import glossary
import layouts
import merged
import packed
import speed
from svg import PICTURES, Picture


def draw() -> dict[str, Picture]:
    """Draw every picture."""
    return {
        **batch.draw(),
        **glossary.draw(),
        **layouts.draw(),
        **merged.draw(),
        **packed.draw(),
        **speed.draw(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--out", type=Path, default=PICTURES, help="default: %(default)s")
    folder = parser.parse_args().out
    for name, picture in draw().items():
        (folder / f"{name}.svg").write_text(picture.svg(), "utf-8")
