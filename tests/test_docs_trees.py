"""The snippets of docs/trees.md on steps, on few rows."""

import re
from pathlib import Path

import fastcollate as fc

PAGE = Path(__file__).parents[1] / "docs" / "trees.md"
STEP = PAGE.read_text("utf-8").partition("## In a step")[2].partition("## On Ray")[0]


def test_a_rank_gets_its_trees():
    (code,) = re.findall(r"^```python\n(.*?)^```", STEP, re.DOTALL | re.MULTILINE)
    prompts = [[1, 2, 3]] * 8 + [[4]] * 8
    names = {"fc": fc, "prompts": prompts, "responses": [[row] for row in range(16)]}
    names["uids"] = [0] * 8 + [1] * 8
    exec(code.replace("prompts_per_mini_batch=64", "prompts_per_mini_batch=2"), names)
    assert names["batch"].plan.layout == "tree"
    assert names["plan"].dp_size == 8
