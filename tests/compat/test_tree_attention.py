"""Decoders of transformers with the registered attention learn from trees as from rows alone."""

import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import recorded
from small_llama import SIZES

import fastcollate as fc

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rows_alone import loss_of, outcome, trained_alone  # noqa: E402

from fastcollate.compat.transformers import attention, register_tree_attention  # noqa: E402
from frameworks.installed import real  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

NAME = register_tree_attention()
TRL = "trl.experimental.async_grpo.packing"

# Forks in prompts and in responses, copies, a prefix, no prompt, no response, and one of its own.
PROMPTS = [[5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6], [5, 6, 7], [], [9], [11, 12]]
RESPONSES = [
    [8, 9, 3, 4],
    [8, 9, 3, 4],
    [8, 2, 1, 9, 9],
    [7, 8, 9],
    [8, 9],
    [5, 6, 1],
    [],
    [13, 14],
]
MASKS = [[1.0] * len(row) for row in RESPONSES]
MASKS[5][0], MASKS[2][1] = 0.0, 0.5

LAYOUTS = {
    "left": fc.Left(),
    "right": fc.Right(),
    "two_segment": fc.TwoSegment(),
    "jagged": fc.Jagged(),
    "packed": fc.Packed(12),
    "rounded": fc.Packed(16, multiple_of=4, padding_as="last_segment"),
    "one row": fc.Packed.single_row(),
    "tree": fc.Tree(),
    "trees": fc.Tree(12, multiple_of=2),
    "early": fc.Tree(20, fork_early=True),
    "long runs": fc.Tree(30, min_shared=3),
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 3}
MODELS = {
    "gpt2": lambda attention: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=64, n_positions=64, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0, attn_implementation=attention,
        )
    ),
    "llama": lambda attention: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, attn_implementation=attention)
    ),
    "qwen2": lambda attention: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            **SIZES, **WINDOWED, layer_types=["sliding_attention", "full_attention"],
            attn_implementation=attention,
        )
    ),
    "mistral": lambda attention: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, sliding_window=3, attn_implementation=attention)
    ),
}  # fmt: skip


def model_of(family, attention):
    torch.manual_seed(0)
    return MODELS[family](attention).double()


def assert_same(found, expected, family):
    tolerance = 1e-9 if family == "gpt2" else 1e-7  # rotations round to float32
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    rounding = tolerance * max(1.0, expected[1].abs().max().item())
    torch.testing.assert_close(found[1], expected[1], rtol=tolerance * 100, atol=rounding)


def built(layout, **options):
    return fc.build_batch(
        PROMPTS, RESPONSES, pad_token_id=0, loss_mask=MASKS, layout=layout, **options
    )


@pytest.mark.parametrize("attention", [NAME, "sdpa", "eager"])
@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_one_line_trains_the_rows_in_every_layout(layout, family, attention):
    if attention == "eager" and family != "gpt2":
        return  # it rounds to float32
    model = model_of(family, "sdpa")
    expected = trained_alone(model, PROMPTS, RESPONSES, MASKS)
    model.set_attn_implementation(attention)
    batch = built(layout)
    inputs = batch.model_inputs(model=model)
    assert ("tree_kv_index" in inputs) == (attention == NAME and layout.name not in (
        "left", "right", "two_segment",
    ))  # fmt: skip
    assert_same(outcome(model, loss_of(model, batch, inputs)), expected, family)


@pytest.mark.parametrize("kernel", [None, "dense", "paths"])
@pytest.mark.parametrize("layout", ["packed", "jagged", "trees", "left"])
def test_the_registered_attention_takes_masks_and_paths(layout, kernel):
    model = model_of("gpt2", NAME)
    batch = built(LAYOUTS[layout])
    inputs = batch.model_inputs(kernel, model)
    expected = trained_alone(model_of("gpt2", "sdpa"), PROMPTS, RESPONSES, MASKS)
    assert_same(outcome(model, loss_of(model, batch, inputs)), expected, "gpt2")


@pytest.mark.parametrize(
    ("layout", "attention"),
    [("trees", NAME), ("trees", "flex_attention"), ("packed", "flex_attention")],
)
def test_block_masks_have_the_windows_of_layers(layout, attention):
    """Compiled FlexAttention does not run in float64, nor backward on every CPU, and takes long."""
    model = model_of("qwen2", attention).float()
    batch = built(LAYOUTS[layout])
    kernel = {NAME: "block"}.get(attention)
    with torch.no_grad():
        with torch.compiler.set_stance("force_eager"):
            found = model(**batch.model_inputs(kernel, model)).logits
        masks = batch.model_inputs("dense", model)
        model.set_attn_implementation("sdpa")
        expected = model(**masks).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_trees(data):
    tokens = st.lists(st.integers(1, 3), max_size=6)
    rows = data.draw(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=5))
    rows = [(prompt or [1], response) for prompt, response in rows]
    prompts, responses = (list(column) for column in zip(*rows, strict=True))
    masks = [[1.0] * len(response) for response in responses]
    if not any(responses):
        return
    family = data.draw(st.sampled_from(["gpt2", "mistral"]))
    layout = fc.Tree(
        data.draw(st.sampled_from([12, 60])),
        fork_early=data.draw(st.booleans()),
        min_shared=data.draw(st.integers(1, 3)),
    )
    batch = fc.build_batch(prompts, responses, pad_token_id=0, layout=layout)
    model = model_of(family, NAME)
    found = outcome(model, loss_of(model, batch, batch.model_inputs(model=model)))
    expected = trained_alone(model_of(family, "sdpa"), prompts, responses, masks)
    assert_same(found, expected, family)


def test_labels_of_their_own_are_a_models_loss():
    masks = [[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0], [0, 0], [0, 1, 1], [], [1, 1]]
    model = model_of("gpt2", NAME)
    layout = fc.Tree(30, fork_early=True)
    batch = fc.build_batch(
        PROMPTS, RESPONSES, pad_token_id=0, loss_mask=masks, layout=layout, labels="aligned"
    )
    loss = model(**batch.model_inputs(model=model)).loss * batch.loss_mask.sum()
    masks = [[float(one) for one in mask] for mask in masks]
    expected = trained_alone(model_of("gpt2", "sdpa"), PROMPTS, RESPONSES, masks)
    assert loss.item() == pytest.approx(expected[0], rel=1e-6)


def check_paths(rows, prompt_lens, loss_mask, expected):
    """Compare paths and labels with TRL's, which are lists."""
    batch = fc.build_batch(
        sequences=rows, prompt_lens=prompt_lens, pad_token_id=0, loss_mask=loss_mask,
        labels="shifted", layout=fc.Tree(fork_early=True),
    )  # fmt: skip
    inputs = batch.model_inputs("paths")
    for name, dtype in [
        ("kv_index", torch.int64),
        ("cu_seqlens_q", torch.int32),
        ("cu_seqlens_k", torch.int32),
    ]:
        assert inputs[f"tree_{name}"].tolist() == expected[f"tree_{name}"]
        assert inputs[f"tree_{name}"].dtype == dtype
    longest = [inputs["tree_max_seqlen_q"], inputs["tree_max_seqlen_k"]]
    assert longest == expected["tree_max_seqlens"]
    for name in "input_ids", "position_ids", "shift_labels":
        assert inputs[name][0].tolist() == expected[name]
    assert batch.predictors[batch.loss_mask != 0].tolist() == expected["token_index"]


@pytest.mark.parametrize("case", recorded("trl_tree_paths")["cases"])
def test_paths_and_labels_that_trl_itself_gave(case):
    check_paths(case["rows"], case["prompt_lens"], case["loss_mask"], case["result"])


@pytest.mark.skipif(real(TRL) is None, reason="make peers")
@given(st.data())
def test_paths_and_labels_are_those_of_trl(data):
    tokens = st.lists(st.integers(1, 3), min_size=1, max_size=7)
    rows = sorted(data.draw(st.lists(tokens, min_size=1, max_size=6)))
    lens = [data.draw(st.integers(1, len(row))) for row in rows]
    counts = [len(row) - size for row, size in zip(rows, lens, strict=True)]
    masks = [data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)) for n in counts]
    theirs = real(TRL).TreeRow()
    for row, size, mask in zip(rows, lens, masks, strict=True):
        theirs.add({
            "input_ids": torch.tensor(row), "completion_mask": torch.tensor([0] * size + mask),
            "old_log_probs": torch.zeros(len(row)), "advantage": 0.0, "group_id": 0,
        })  # fmt: skip
    expected = {name: value.tolist() for name, value in theirs.pack().items()}
    check_paths(rows, lens, masks, expected)


def test_flash_attention_gets_offsets_of_all_positions():
    batch = built(LAYOUTS["rounded"])
    inputs = batch.model_inputs("flash")
    assert "attention_mask" not in inputs
    ends = inputs["cu_seq_lens_q"]
    assert ends is inputs["cu_seq_lens_k"]
    assert ends[-1] == batch.input_ids.numel()
    assert inputs["max_length_q"] == inputs["max_length_k"] == ends.diff().max()
    assert batch.attention_paths().cu_seqlens_k.tolist() == ends.tolist()
    assert "attention_mask" in built(LAYOUTS["left"]).model_inputs("flash")


def test_what_a_model_cannot_take():
    tree = built(LAYOUTS["tree"])
    with pytest.raises(ValueError, match="kernel is 'flash', which takes no trees"):
        tree.model_inputs("flash")
    with pytest.raises(TypeError, match="has no config"):
        tree.model_inputs(model=torch.nn.Linear(1, 1))
    model = model_of("gpt2", "sdpa")
    engine = types.SimpleNamespace(config={"bf16": {}}, module=model)  # as DeepSpeed's
    for batch, wrapped in ((tree, torch.nn.DataParallel(model)), (built(LAYOUTS["left"]), engine)):
        with pytest.raises(TypeError, match=r"has no config; pass model=model\.module"):
            batch.model_inputs(model=wrapped)
    model.config._attn_implementation_internal = "paged|x"
    with pytest.raises(ValueError, match=r"attention 'paged\|x'; pass kernel as one of 'dense'"):
        tree.model_inputs(model=model)
    model = model_of("llama", NAME)
    model.config.layer_types = ["chunked_attention"]
    with pytest.raises(ValueError, match="layers of 'chunked_attention', which take no mask"):
        tree.model_inputs(model=model)
    model = model_of("llama", "sdpa")
    inputs = tree.model_inputs("paths")
    with pytest.raises(RuntimeError):  # its own attention does not ignore paths
        model(**inputs)
    attend = transformers.AttentionInterface()[NAME]
    query = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="attention has softcap, which"):
        attend(None, query, query, query, None, tree_kv_index=torch.zeros(1), softcap=30.0)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_kernels_of_variable_lengths_run_models(family):
    batch = built(LAYOUTS["trees"]).to("cuda")
    model = model_of(family, NAME).bfloat16().cuda()
    with torch.no_grad():
        found = model(**batch.model_inputs(model=model)).logits
        expected = model(**batch.model_inputs("dense", model)).logits
    tokens = batch.input_ids != 0
    torch.testing.assert_close(found[tokens], expected[tokens], rtol=5e-2, atol=5e-2)


class Recorded:
    """A stand-in for a tensor, or for a module with a kernel, whose options are kept."""

    def __init__(self, shape=(9, 2, 8)):
        self.shape, self.is_cuda, self.dtype = shape, True, torch.float16
        self.flash_attn_varlen_func = self.varlen_attn = lambda *_, **options: options


@pytest.mark.parametrize(("window", "reach"), [(None, (-1, -1)), (3, (2, 0))])
def test_kernels_get_windows_and_dropout(monkeypatch, window, reach):
    """flash-attn's, then torch's, which has no dropout, then one segment after the other."""
    query, key = Recorded((5, 4, 8)), Recorded()

    def attend(dropout):
        return attention._attend(query, key, key, (), 0.5, dropout, window)

    monkeypatch.setattr(attention, "_by_segment", lambda *_: "by segment")
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", Recorded())
    monkeypatch.setitem(sys.modules, "flash_attn", Recorded())
    options = {"dropout_p": 0.1, "softmax_scale": 0.5, "causal": True, "window_size": reach}
    assert attend(0.1) == options
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert attend(0.1) == "by segment"
    assert attend(0) == {"scale": 0.5, "window_size": (reach[0], 0), "enable_gqa": True}
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert attend(0) == "by segment"
