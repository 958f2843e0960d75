"""Small models of random weights, in float64: learned positions, and rotary ones."""

from small_llama import SIZES


def small_model(family, attention):
    """Make a GPT-2, which learns its positions, or a Llama, which rotates by them."""
    import torch
    import transformers

    torch.manual_seed(0)
    if family == "llama":
        config = transformers.LlamaConfig(**SIZES, attn_implementation=attention)
        return transformers.LlamaForCausalLM(config).double()
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=64, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, attn_implementation=attention,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).double()
