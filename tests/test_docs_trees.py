"""The snippets of docs/trees.md on steps, on few rows."""

import re
from pathlib import Path

import pytest

import fastcollate as fc

PAGE = Path(__file__).parents[1] / "docs" / "trees.md"
BATCH, _, STEP = PAGE.read_text("utf-8").partition("## In a batch")[2].partition("## In a step")
STEP = STEP.partition("## On Ray")[0]


def test_a_rank_gets_its_trees():
    (code,) = re.findall(r"^```python\n(.*?)^```", STEP, re.DOTALL | re.MULTILINE)
    prompts = [[1, 2, 3]] * 8 + [[4]] * 8
    names = {"fc": fc, "prompts": prompts, "responses": [[row] for row in range(16)]}
    names["uids"] = [0] * 8 + [1] * 8
    exec(code.replace("prompts_per_mini_batch=64", "prompts_per_mini_batch=2"), names)
    assert names["batch"].plan.layout == "tree"
    assert names["plan"].dp_size == 8


@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_loss_of_a_tree_is_that_of_packed_rows():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, attn_implementation="sdpa",
    )  # fmt: skip
    (code,) = re.findall(r"^```python\n(.*?)^```", BATCH, re.DOTALL | re.MULTILINE)
    code = code.replace(
        "batch.block_mask()", "batch.dense_mask()"
    )  # which has a backward pass here
    names = {"fc": fc, "prompts": [[1, 2, 3], [1, 2, 3], [4]], "responses": [[5], [5, 6], [7, 8]]}
    names["masks"] = names["old"] = [[1], [1, 0], [1, 1]]
    names |= {"adv": [[2.0], [-1, 3], [0.5, 1]], "model": transformers.LlamaForCausalLM(config)}
    found = []
    for layout in ("fc.Tree(", "fc.Packed("):
        exec(code.replace("fc.Tree(", layout), names)
        names["loss"].backward()
        parameters = list(names["model"].parameters())
        found.append([names["loss"].detach(), *(one.grad.clone() for one in parameters)])
        names["model"].zero_grad()
    assert names["batch"].plan.layout == "packed"
    torch.testing.assert_close(found[0], found[1])
