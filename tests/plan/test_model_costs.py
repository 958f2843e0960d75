"""Costs by a model's configuration, against the operations counted by torch."""

import numpy as np
import pytest

from fastcollate.planning import Costs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
FAMILIES = {
    "dense, without gate": lambda: transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=512
    ),
    "dense": lambda: transformers.LlamaConfig(**SMALL, intermediate_size=160),
    "grouped query": lambda: transformers.Qwen3Config(
        **SMALL, intermediate_size=160, num_key_value_heads=2, head_dim=32
    ),
    "experts": lambda: transformers.Qwen3MoeConfig(
        **SMALL,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=160,
        moe_intermediate_size=48,
        num_experts=8,
        num_experts_per_tok=2,
        mlp_only_layers=[0],
    ),
    "experts everywhere": lambda: transformers.MixtralConfig(
        **SMALL,
        num_key_value_heads=2,
        intermediate_size=96,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "shared experts": lambda: transformers.Qwen2MoeConfig(
        **SMALL,
        num_key_value_heads=2,
        intermediate_size=160,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=80,
        num_experts=4,
        num_experts_per_tok=2,
    ),
    "sliding window": lambda: transformers.MistralConfig(
        **SMALL, num_key_value_heads=2, head_dim=16, intermediate_size=160, sliding_window=5
    ),
    "layer types": lambda: transformers.Gemma2Config(
        **SMALL,
        num_key_value_heads=2,
        head_dim=24,
        intermediate_size=160,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
    ),
}


def model_of(config):
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # the loop over experts
    return transformers.AutoModelForCausalLM.from_config(config)


def count(model, length):
    """Count the operations of attention's two products, and all others."""
    from torch.utils.flop_counter import FlopCounterMode

    ids = torch.randint(0, 512, (1, length))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, use_cache=False).logits.sum().backward()
    counts = counter.get_flop_counts()["Global"]
    of_attention = sum(n for op, n in counts.items() if "bmm" in str(op))
    return of_attention, sum(counts.values()) - of_attention


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_are_those_that_torch_counts(family):
    config = FAMILIES[family]()
    costs = Costs.from_config(config)
    model = model_of(config)
    for length in (24, 48):
        attention, linear = count(model, length)
        # Eager attention computes all pairs, masked ones too.
        assert attention == pytest.approx(costs.per_pair * length**2, rel=0.02)
        assert linear == pytest.approx(costs.per_token * length, rel=0.02)


@pytest.mark.parametrize("family", ["dense", "sliding window", "layer types"])
def test_pairs_are_those_that_the_model_looks_at(family):
    config = FAMILIES[family]()
    costs = Costs.from_config(config)
    model = model_of(config)
    ids = torch.randint(0, 512, (1, 17))
    weights = model(input_ids=ids, output_attentions=True, use_cache=False).attentions
    seen = [int((layer > 0).sum()) / layer.shape[1] for layer in weights]
    np.testing.assert_allclose(costs.pairs([17]), [np.mean(seen)])


def test_chunks():
    config = transformers.Llama4TextConfig(
        **SMALL,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=48,
        intermediate_size_mlp=96,
        num_local_experts=4,
        attention_chunk_size=7,
        moe_layers=[1],
        layer_types=["chunked_attention", "full_attention"],
    )
    costs = Costs.from_config(config)
    assert (costs.chunk, costs.chunk_share) == (7, 0.5)
    weights = 2 * 2 * 64 * 6 * 16 + 3 * 64 * 96 + 64 * (4 + 3 * 2 * 48) + 64 * 512
    assert costs.per_token == 6 * weights


def test_configurations_as_dicts():
    config = FAMILIES["grouped query"]()
    assert Costs.from_config(config.to_dict()) == Costs.from_config(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config has hidden_size=None, .* needs a number of 1 or more"),
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"kv_lora_rank": 512}, r"config has kv_lora_rank, .* not known; pass Costs\(per_token"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types with 'linear_att"),
        ({"num_experts": 4}, "num_experts_per_tok=None"),
    ],
)
def test_models_that_are_not_known(changes, message):
    with pytest.raises(ValueError, match=message):
        Costs.from_config({**SMALL, **changes})
