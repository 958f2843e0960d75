"""The snippets of docs/balance.md run, one after the other, on one step."""

import re
from pathlib import Path

import numpy as np

import fastcollate as fc

PAGE = Path(__file__).parents[1] / "docs" / "balance.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_the_snippets():
    lengths = np.random.default_rng(0).lognormal(7, 0.8, 256).astype(int).clip(1, 16384)
    names = {"fc": fc, "lengths": lengths}
    for snippet in SNIPPETS:
        exec(snippet, names)
    assert names["plan"].dp_size == 8
