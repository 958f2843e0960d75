"""With the batch's masks, kernels and models give each token the values of its row alone."""

import pytest
from attention_rows import built

import fastcollate as fc

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

LENS = [(3, 4), (5, 2), (2, 8), (6, 6)]


def outcome(model, log_probs):
    """Return log-probabilities, and gradients of a loss of them, in which each counts otherwise."""
    weights = torch.linspace(-1, 2, len(log_probs))
    gradients = torch.autograd.grad((log_probs * weights).sum(), list(model.parameters()))
    return torch.cat([log_probs.detach(), *map(torch.flatten, gradients)])


def learn_like_rows(model, batch, mask, position_ids):
    """Compare the training of a model on a batch with that on its rows one by one."""
    leading = position_ids.shape
    hidden = model.model(
        input_ids=batch.input_ids.reshape(leading), position_ids=position_ids,
        attention_mask=mask, use_cache=False,
    ).last_hidden_state  # fmt: skip
    pos, inv = batch.loss_positions()
    log_probs = model.lm_head(hidden.flatten(0, 1)[pos]).log_softmax(-1)[inv, batch.targets]
    found = outcome(model, torch.cat(list(batch.gather(log_probs, align="response"))))
    rows = []
    streams = batch.to_layout("jagged").input_ids.split([p + r for p, r in LENS])
    for ids, (prompt_len, _) in zip(streams, LENS, strict=True):
        logits = model(input_ids=ids[None], use_cache=False).logits[0, prompt_len - 1 : -1]
        rows.append(logits.log_softmax(-1).gather(-1, ids[prompt_len:, None])[:, 0])
    torch.testing.assert_close(found, outcome(model, torch.cat(rows)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_windows_are_those_of_models(layout):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, use_sliding_window=True, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config)
    batch = built(LENS, layout, "torch")
    masks = {
        "full_attention": batch.dense_mask(),
        "sliding_attention": batch.dense_mask(window=config.sliding_window),
    }
    learn_like_rows(model, batch, masks, batch.position_ids)


@pytest.fixture
def fixed_shapes():
    """Compile for the shapes of this test: for any shape, torch writes C++ that does not compile.

    It compiles what it finds for any shape once it has seen a second one, in an earlier test too.
    """
    torch._dynamo.reset()
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("fixed_shapes")
def test_flex_attention_reads_the_tables():
    """On the CPU it does so only if it is compiled, and then without a backward pass."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention)
    torch.manual_seed(0)
    size = 512
    q, k, v = torch.randn(3, 1, 2, size, 16)
    attend = torch.nn.functional.scaled_dot_product_attention
    packed = built(
        [(90, 60), (150, 30), (1, 0), (50, 90)], fc.Packed.single_row(pad_to=size), "torch"
    )
    responses = [[2] * 60 + [row] * (20 * row) for row in range(1, 5)]
    tree = fc.build_batch(
        [[1] * 150] * 4, responses, pad_token_id=0, layout=fc.Tree(pad_to=size)
    )  # fmt: skip
    for batch, windows in (packed, [None]), (tree, [None, 40]):  # each compiles for seconds
        for window in windows:
            mask = batch.block_mask(window=window)
            assert mask.kv_num_blocks.shape[-1] == 4
            expected = attend(q, k, v, batch.dense_mask(window=window))
            torch.testing.assert_close(compiled(q, k, v, block_mask=mask), expected)
        mask.kv_num_blocks[..., -1] -= 1
        assert not torch.allclose(compiled(q, k, v, block_mask=mask), expected, atol=1e-3)


@pytest.mark.gpu
def test_flex_attention_learns_by_the_tables_on_a_gpu():
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention)
    attend = torch.nn.functional.scaled_dot_product_attention
    torch.manual_seed(0)
    responses = [[2] * 60 + [row] * (20 * row) for row in range(1, 5)]
    batch = fc.build_batch(
        [[1] * 150] * 4, responses, pad_token_id=0, layout=fc.Tree(pad_to=512)
    ).to("cuda")
    inputs = torch.randn(3, 1, 2, 512, 16, device="cuda").requires_grad_()
    weights = torch.randn(1, 2, 512, 16, device="cuda")
    for window in None, 40:
        found = compiled(*inputs, block_mask=batch.block_mask(window=window))
        expected = attend(*inputs, batch.dense_mask(window=window))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        gradients = [
            torch.autograd.grad((values * weights).sum(), inputs)[0] for values in (found, expected)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("fixed_shapes")
def test_a_compiled_loss_reads_the_batch():
    """The compiler traces NumPy as torch, whose sums of booleans are not implemented."""
    batch = fc.build_batch(
        [[1], [2, 3]], [[7, 8], [9, 10]], pad_token_id=0, loss_mask=[[1, 0], [1, 1]]
    )

    def loss(batch, scores):
        positions, inverse = batch.loss_positions()
        logits = scores[batch.input_ids].flatten(0, 1)[positions]
        losses = -logits.log_softmax(-1)[inverse, batch.targets] * batch.loss_mask
        return losses[batch.loss_mask != 0].sum()

    scores = torch.randn(11, 11)
    compiled = torch.compile(loss, backend="eager")
    torch.testing.assert_close(compiled(batch, scores), loss(batch, scores))
