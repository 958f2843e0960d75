"""The snippets of docs/balance.md run, one after the other, on one step."""

import re
from pathlib import Path

import numpy as np

import fastcollate as fc

PAGE = Path(__file__).parents[1] / "docs" / "balance.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def compute(lengths):
    """Take about as long as tokens say."""
    np.zeros(int(lengths.sum()) * 8).cumsum()


def test_the_snippets():
    lengths = np.random.default_rng(0).lognormal(7, 0.8, 256).astype(int).clip(1, 16384)
    rng = np.random.default_rng(1)
    micro_batches = [lengths[rng.integers(0, 256, rng.integers(1, 9))] for _ in range(40)]
    names = {"fc": fc, "lengths": lengths, "micro_batches": micro_batches, "train": compute}
    for snippet in SNIPPETS:
        exec(snippet, names)
    assert names["plan"].dp_size == 8
