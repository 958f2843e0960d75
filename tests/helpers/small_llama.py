"""Small models of random weights, the same each time."""

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip


def llama(attention="sdpa", **options):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, attn_implementation=attention, **options)
    return transformers.LlamaForCausalLM(config)


def qwen2(**options):
    import torch
    import transformers

    torch.manual_seed(1)
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, **options))
