"""The snippets of docs/attention.md, one after the other, on small models."""

import re
from pathlib import Path

import pytest

import fastcollate as fc

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

PAGE = Path(__file__).parents[1] / "docs" / "attention.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)

PROMPTS, RESPONSES = [[1, 2, 3], [1, 2, 3], [4]], [[5, 6], [5, 7, 8], [9, 3, 4, 5]]
SIZES = {
    "vocab_size": 16, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip


def llama(attention):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, attn_implementation=attention)
    return transformers.LlamaForCausalLM(config)


def qwen():
    layers = ["sliding_attention", "full_attention"]
    config = transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=3, layer_types=layers
    )
    return transformers.Qwen2ForCausalLM(config)


@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_the_snippets(layout, monkeypatch):
    # Compiling takes a minute; and FlexAttention has no backward pass on the CPU.
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    names = {
        "fc": fc, "torch": torch, "prompts": PROMPTS, "responses": RESPONSES,
        "masks": [[1] * len(row) for row in RESPONSES], "old": [[0.0] * len(r) for r in RESPONSES],
        "advantages": [[1.0] * len(row) for row in RESPONSES], "model": llama("sdpa"),
        "flex_model": llama("flex_attention"), "windowed_model": qwen(),
    }  # fmt: skip
    hidden, losses = [], []
    for code in SNIPPETS:
        if layout == "tree":
            code = code.replace("fc.Packed(capacity=16384)", "fc.Tree(capacity=16384)")
        with torch.set_grad_enabled("backward" in code):
            exec(code, names)
        hidden.append(names["hidden"].detach())
        losses.append(names["loss"].item())
    assert names["batch"].plan.layout == layout
    torch.testing.assert_close(hidden[0], hidden[2])
    expected = 0
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        ids = torch.tensor([prompt + response])
        logits = names["model"](ids).logits[0, len(prompt) - 1 : -1]
        expected -= logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None]).sum()
    assert losses[0] == pytest.approx(expected.item(), rel=1e-4)
    assert names["mask"].dtype == names["model"].dtype
    assert names["attn_type_map"].tolist().count(1) == len(names["q_ranges"]) or layout == "tree"
