"""Models that do not separate packed rows by positions get a dense mask, or an error."""

import ast
import pickle
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest
from small_llama import SIZES

import fastcollate as fc
from fastcollate.compat.transformers import register_tree_attention, token_logprobs
from fastcollate.ops.model_kinds import BLIND, OWN_POSITIONS

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)

PROMPTS = [[9, 3, 5], [9, 3, 5], [4, 8, 1, 2, 7], [6, 2]]
RESPONSES = [[7, 8, 9, 10], [7, 8, 11], [12, 13, 14, 15], [5]]
LAYOUTS = ["jagged", fc.Packed(14), fc.Tree(16)]

GPT = {"vocab_size": 64, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
HEADS = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WINDOWS = {"head_dim": 8, "sliding_window": 4, "num_experts_per_tok": 1, "pad_token_id": 0}
MODELS = {
    "afmoe": {**SIZES, **WINDOWS, "moe_intermediate_size": 16, "num_experts": 2,
              "num_dense_layers": 1, "num_shared_experts": 1},
    "bart": {"vocab_size": 64, "d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2,
             "decoder_ffn_dim": 16},
    "biogpt": {**HEADS, "intermediate_size": 16},
    "bloom": {"vocab_size": 64, "hidden_size": 16, "n_layer": 2, "n_head": 2},
    "cohere": {**SIZES, "pad_token_id": 0},
    "falcon": HEADS,
    "gpt_neo": {"vocab_size": 64, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
                "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gemma2": {**SIZES, "head_dim": 8, "pad_token_id": 0, "final_logit_softcapping": 2.0},
    "gpt_oss": {**SIZES, **WINDOWS, "num_local_experts": 2,
                "layer_types": ["sliding_attention", "full_attention"]},
    "granite": {**SIZES, "pad_token_id": 0, "logits_scaling": 8.0},
    "lfm2": {**SIZES, "layer_types": ["conv", "full_attention"]},
    "mamba": {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
    "mpt": {"vocab_size": 64, "d_model": 16, "n_heads": 2, "n_layers": 2},
    "openai-gpt": GPT,
    "opt": {**HEADS, "ffn_dim": 16, "word_embed_proj_dim": 16},
    "phimoe": {**SIZES, "num_local_experts": 2, "num_experts_per_tok": 1, "pad_token_id": 0},
    "qwen2_5_vl": {
        "text_config": {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                     "mrope_section": [4, 2, 2]}},
        "vision_config": {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16,
                          "out_hidden_size": 32},
    },
    "recurrent_gemma": {**SIZES, "num_hidden_layers": 3, "lru_width": 32},
    "roberta": {**HEADS, "intermediate_size": 16, "is_decoder": True},
    "rwkv": {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2,
             "attention_hidden_size": 16},
    "xglm": {"vocab_size": 64, "d_model": 16, "ffn_dim": 16, "num_layers": 2, "attention_heads": 2},
}  # fmt: skip


def model_of(kind, attention="eager", **options):
    """Make a model of large weights, so that each token counts."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **MODELS[kind], **options)
    has_images = hasattr(config, "vision_config")
    kinds = (
        transformers.AutoModelForImageTextToText
        if has_images
        else transformers.AutoModelForCausalLM
    )
    model = kinds.from_config(config, attn_implementation=attention)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def of_rows(model):
    """Return the log-probabilities of response tokens, row by row."""
    import torch
    from rows_alone import log_probs_alone

    rows = zip(PROMPTS, RESPONSES, strict=True)
    return torch.cat([log_probs_alone(model, *row) for row in rows])


def of_batch(model, layout, **options):
    """Return the same of a batch."""
    batch = fc.build_batch(PROMPTS, RESPONSES, pad_token_id=0, layout=layout, **options)
    return of_inputs(model, batch, batch.model_inputs(model=model))


def of_collator(model, layout):
    """Return the same of a collator's batch of rollouts, which came from another process."""
    samples = [
        {"prompt": prompt, "response": response, "rewards": 0.5}
        for prompt, response in zip(PROMPTS, RESPONSES, strict=True)
    ]
    collate = pickle.loads(pickle.dumps(fc.Collator(pad_token_id=0, layout=layout, model=model)))
    batch = pickle.loads(pickle.dumps(collate(samples)))
    return of_inputs(model, batch, batch)


def of_inputs(model, batch, inputs):
    logits = model(**inputs).logits
    pos, inv = batch.loss_positions()
    logps = logits.flatten(0, 1)[pos].log_softmax(-1)[inv, batch.targets]
    return batch.gather(logps, align="response").values


@pytest.mark.parametrize("layout", ["left", "right", *LAYOUTS], ids=str)
@pytest.mark.parametrize(
    "kind", ["afmoe", "biogpt", "falcon", "gpt_oss", "opt", "qwen2_5_vl", "xglm"]
)
def test_models_that_do_not_read_positions_get_a_dense_mask(kind, layout):
    import torch

    model = model_of(kind)
    expected = of_rows(model)
    for way in (of_batch, of_collator):
        torch.testing.assert_close(way(model, layout), expected, rtol=0, atol=2e-4)


def test_log_probabilities_of_a_block_of_such_models():
    import torch

    rows = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    ids, mask = fc.pad(rows), fc.pad([[1] * len(row) for row in rows])
    scored = fc.pad([[0] * len(p) + [1] * len(r) for p, r in zip(PROMPTS, RESPONSES, strict=True)])
    model = model_of("gpt_oss")
    found = token_logprobs(model, ids, mask, scored, layout=fc.Packed(14)).log_probs
    torch.testing.assert_close(found[scored[:, 1:] != 0], of_rows(model), rtol=0, atol=2e-4)


REFUSED = {
    "bloom": (LAYOUTS, "'bloom' have positions or masks of their own"),
    "mpt": (LAYOUTS, "'mpt' have positions or masks of their own"),
    "openai-gpt": (LAYOUTS, "'openai-gpt' have positions or masks of their own"),
    "gpt_neo": (LAYOUTS[2:], "local layers of 'gpt_neo' count positions"),
    "lfm2": (LAYOUTS, "carry a state"),
    "mamba": (LAYOUTS, "carry a state"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_take_padded_rows_alone(kind):
    import torch

    layouts, message = REFUSED[kind]
    model = model_of(kind)
    for layout in layouts:
        for way in (of_batch, of_collator):
            with pytest.raises(ValueError, match=f"{message}.*pass a padded layout"):
                way(model, layout)
    torch.testing.assert_close(of_batch(model, "left"), of_rows(model), rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", ["bart", "recurrent_gemma", "roberta", "rwkv"])
def test_models_that_count_padding_on_the_left(kind):
    """Despite mask and positions, without an error of theirs."""
    import torch

    model, options, message = model_of(kind), {}, "count padding on the left; pass layout='right'"
    if kind == "roberta":
        options = {"position_ids": False}
        with pytest.raises(ValueError, match=r"'roberta' do not count .*position_ids=False"):
            of_batch(model, "right")
    keys = ["input_ids", "attention_mask", "labels"]
    for layout in ("left", "two_segment"):
        for way in (of_batch, of_collator):
            with pytest.raises(ValueError, match=r"pass .*layout='right'"):
                way(model, layout)
        with pytest.raises(ValueError, match=f"'{kind}' {message}"):
            of_batch(model, layout, **options)
        with pytest.raises(ValueError, match=f"'{kind}' {message}"):
            fc.Collator(pad_token_id=0, layout=layout, outputs=keys, model=model, **options)
    found = of_batch(model, "right", **options)
    torch.testing.assert_close(found, of_rows(model), rtol=0, atol=2e-4)


@pytest.mark.parametrize("labels", ["aligned", "shifted"])
@pytest.mark.parametrize("kind", ["bart", "roberta", "rwkv"])
def test_losses_of_models_that_do_not_shift_labels(kind, labels):
    """BART's would teach to repeat the token that was read."""
    model, options = model_of(kind), {"layout": "right", "position_ids": False}
    batch = fc.build_batch(PROMPTS, RESPONSES, pad_token_id=0, labels=labels, **options)
    if kind == "bart":
        outputs = ["input_ids", "labels" if labels == "aligned" else "shift_labels"]
        for make in (
            lambda: batch.model_inputs(model=model),
            lambda: fc.Collator(pad_token_id=0, outputs=outputs, model=model, **options),
        ):
            with pytest.raises(ValueError, match=r"'bart' do not shift labels.*leave labels out"):
                make()
        return
    loss = model(**batch.model_inputs(model=model)).loss.item()
    assert loss == pytest.approx(-of_rows(model).mean().item(), rel=1e-4)


@pytest.mark.parametrize("layout", ["left", "jagged", fc.Packed.single_row(), fc.Tree()], ids=str)
@pytest.mark.parametrize("kind", ["cohere", "gemma2", "granite"])
def test_logits_that_a_model_changes_after_its_head(kind, layout):
    """The head alone, as in the lines for other models, gives another loss."""
    import torch

    model = model_of(kind)
    expected = of_rows(model)
    batch = fc.build_batch(PROMPTS, RESPONSES, pad_token_id=0, layout=layout)
    inputs = batch.model_inputs(model=model)
    pos, inv = batch.loss_positions()

    def of_logits(logits):
        logps = logits.log_softmax(-1)[inv, batch.targets]
        return batch.gather(logps, align="response").values

    whole = of_logits(model(**inputs).logits.flatten(0, 1)[pos])
    torch.testing.assert_close(whole, expected, rtol=0, atol=2e-4)
    if layout != "left":
        few = of_logits(model(**inputs, logits_to_keep=pos).logits[0])
        torch.testing.assert_close(few, expected, rtol=0, atol=2e-4)
    hidden = model.base_model(**inputs).last_hidden_state.flatten(0, 1)[pos]
    assert (of_logits(model.lm_head(hidden)) - expected).abs().max() > 0.1


def test_options_of_models_count():
    with pytest.raises(ValueError, match="'falcon' have positions or masks of their own"):
        of_batch(model_of("falcon", alibi=True), LAYOUTS[1])
    model = model_of("gpt_neo")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="flash attention of 'gpt_neo' gets no offsets"):
        of_batch(model, LAYOUTS[1])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_tokens_that_peft_adds_are_of_one_row(layout):
    model = model_of("granite")
    model.active_peft_config = types.SimpleNamespace(is_prompt_learning=True)
    of_batch(model, "left")
    with pytest.raises(ValueError, match=r"PEFT adds tokens.*pass a padded layout"):
        of_batch(model, layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_scores_of_rows_need_output_rows(layout):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_labels=1, pad_token_id=0)
    model = transformers.LlamaForSequenceClassification(config).eval()
    rows = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    expected = torch.cat([model(torch.tensor([row])).logits for row in rows])
    batches = [
        fc.build_batch(PROMPTS, RESPONSES, pad_token_id=0, layout=one) for one in ("left", layout)
    ]
    torch.testing.assert_close(model(**batches[0].model_inputs(model=model)).logits, expected)
    for known in (model, torch.compile(model)):
        with pytest.raises(ValueError, match=r"scores output rows by .*pass a padded layout"):
            batches[1].model_inputs(model=known)
    batches[1].model_inputs(model=model.base_model)


@pytest.mark.parametrize("layout", ["left", fc.Packed(14)], ids=str)
def test_an_encoder_would_read_the_responses(layout):
    import transformers

    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, num_heads=2))
    with pytest.raises(ValueError, match=r"has an encoder.*pass a decoder"):
        of_batch(model, layout)


@pytest.mark.parametrize("kind", ["bloom", "mpt", "xglm"])
@pytest.mark.parametrize("layout", ["left", fc.Packed(14)], ids=str)
def test_layers_that_do_not_call_registered_attention(kind, layout):
    model = model_of(kind, register_tree_attention())
    with pytest.raises(ValueError, match="do not call registered attention"):
        of_batch(model, layout)


@pytest.mark.parametrize("layout", ["left", fc.Packed(14)], ids=str)
def test_attention_sinks_are_not_left_out(layout):
    model = model_of("gpt_oss", register_tree_attention())
    with pytest.raises(ValueError, match=r"has s_aux.*attn_implementation='eager'"):
        of_batch(model, layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_windows_that_layers_do_not_pass(layout):
    """They are in the mask alone, which paths replace."""
    import torch

    expected = of_rows(model_of("phimoe", sliding_window=9))
    model = model_of("phimoe", register_tree_attention(), sliding_window=9)
    torch.testing.assert_close(of_batch(model, layout), expected, rtol=0, atol=2e-4)
    model = model_of("phimoe", register_tree_attention(), sliding_window=4)
    with pytest.raises(ValueError, match=r"sliding window of 4 .*attn_implementation='eager'"):
        of_batch(model, layout)
    model.set_attn_implementation("sdpa")
    expected = of_rows(model)
    torch.testing.assert_close(of_batch(model, layout), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_layers_that_view_what_attention_returns(layout):
    import torch

    model = model_of("afmoe", register_tree_attention())
    torch.testing.assert_close(
        of_batch(model, layout), of_rows(model_of("afmoe")), rtol=0, atol=2e-4
    )


MASKS = {"create_causal_mask", "create_sliding_window_causal_mask", "mask_function"}


def makes_masks_without_positions(code):
    """Return True if a file makes causal masks without positions, or attention without masks."""
    calls, has_attention = [], False
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in MASKS:
            names = {keyword.arg for keyword in node.keywords}
            calls.append(bool(names & {"position_ids", None}))
        elif isinstance(node, ast.Dict):
            names = {getattr(key, "value", None) for key in node.keys}
            if {"inputs_embeds", "attention_mask"} <= names:
                calls.append("position_ids" in names)
        elif isinstance(node, ast.ClassDef):
            has_attention |= "Attention" in node.name
    return not all(calls) or (has_attention and not calls)


def test_all_models_that_do_not_read_positions_are_known():
    """In the transformers that is installed."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import (
        CONFIG_MAPPING,
        model_type_to_module_name,
    )

    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
        pytest.skip("of other models")
    models = Path(sys.modules["transformers"].__file__).parent / "models"

    def code_of(kind):
        name = model_type_to_module_name(kind)
        path = models / name / f"modeling_{name}.py"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    found = set()
    for kind, cls in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        code = code_of(kind)
        if cls.endswith("ConditionalGeneration") or "_is_stateful = True" in code:
            continue  # its text model is of another type
        if makes_masks_without_positions(code):
            found.add(kind)
    for kind in modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES:
        code = code_of(kind)  # positions of two dimensions become three, or four with those of text
        if "text_position_ids = None" in code and ".expand(4," not in code:
            found.add(CONFIG_MAPPING[kind]().get_text_config().model_type)
    assert "qwen2_5_vl_text" in found
    assert found - BLIND - OWN_POSITIONS == set()
