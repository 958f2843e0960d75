"""Results of frameworks' own functions, recorded in `tests/golden`."""

import json
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def recorded(name):
    """Return the results of a file, by its name without suffix."""
    return json.loads((FOLDER / f"{name}.json").read_text())
