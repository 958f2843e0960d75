"""A model learns from a tree what it learns from rows one by one."""

import sys
from pathlib import Path

import pytest

import fastcollate as fc

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from policy import Policy  # noqa: E402

# Forks in prompts and in responses, a copy, a prefix, a row without a prompt, and one of its own.
ROWS = [
    ([5, 6, 7], [8, 9, 3, 4]),
    ([5, 6, 7], [8, 9, 3, 4]),
    ([5, 6, 7], [8, 2, 1]),
    ([5, 6], [7, 8, 9]),
    ([5, 6, 4], [4, 4]),
    ([5, 6, 7], [8, 9]),
    ([], [5, 6, 7, 1, 2]),
    ([9], []),
    ([11, 12], [13]),
    ([11], [12, 13, 14, 15, 1]),
]
PROMPTS, RESPONSES = zip(*ROWS, strict=True)
MASKS = [[float(bool(prompt) or at > 0) for at in range(len(row))] for prompt, row in ROWS]
MASKS[3][1], MASKS[9][0] = 0.0, 0.5

LAYOUTS = [
    *(
        fc.Tree(),
        fc.Tree(multiple_of=4),
        fc.Tree(12),
        fc.Tree(9, pad_to=16),
        fc.Tree(8, share="prompts"),
    ),
    fc.Tree(16, share="group"),
]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Policy(32, 32, width=16, heads=2, layers=2).double()


def log_probs_of(model, ids, positions, mask):
    """Return the log-probabilities of all next tokens at all positions."""
    hidden = model.tokens(ids) + model.positions(positions)
    for block in model.blocks:
        hidden, _ = block(hidden, visible=mask)
    return model.head(model.norm(hidden)).log_softmax(-1)


def advantages():
    generator = torch.Generator().manual_seed(1)
    draw = lambda row: torch.randn(len(row), generator=generator, dtype=torch.float64)  # noqa: E731
    return [draw(row) for row in RESPONSES], [draw(row) / 4 - 2 for row in RESPONSES]


def token_sum(log_probs, mask, advantage, old, rows):
    return -(log_probs * mask * advantage).sum()


def mean_of_rows(log_probs, mask, advantage, old, rows):
    of_rows = torch.zeros(len(ROWS), dtype=torch.float64)
    sums = of_rows.index_add(0, rows, -log_probs * mask)
    return (sums / of_rows.index_add(0, rows, mask).clamp(min=1)).mean()


def grpo(log_probs, mask, advantage, old, rows):
    ratio = (log_probs - old).exp()
    clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return mean_of_rows(clipped, mask, advantage, old, rows)


def outcome(model, loss):
    """Return a loss, and its gradients in one line."""
    model.zero_grad()
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def one_by_one(model, loss):
    """Read each row by itself."""
    found = []
    for prompt, response in ROWS:
        ids = torch.tensor([[*prompt, *response]])
        causal = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        of_next = log_probs_of(model, ids, torch.arange(ids.shape[1])[None], causal)[0, :-1]
        of_next = of_next.gather(-1, ids[0, 1:, None])[:, 0]
        # Nothing predicts the first token of a row; it is masked.
        found.append(torch.cat([of_next.new_zeros(1), of_next])[len(prompt) :])
    advantage, old = map(torch.cat, advantages())
    mask = torch.cat([torch.tensor(row, dtype=torch.float64) for row in MASKS])
    rows = torch.repeat_interleave(torch.tensor([len(row) for row in RESPONSES]))
    return outcome(model, loss(torch.cat(found), mask, advantage, old, rows))


@pytest.mark.parametrize("loss", [token_sum, mean_of_rows, grpo])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_losses_and_gradients_are_those_of_rows(model, layout, loss):
    advantage, old = advantages()
    batch = fc.build_batch(
        PROMPTS,
        RESPONSES,
        pad_token_id=0,
        loss_mask=MASKS,
        fields={
            "advantages": fc.Field(advantage, dtype="float64"),
            "old": fc.Field(old, dtype="float64"),
        },
        uids=[len(prompt) for prompt in PROMPTS],
        layout=layout,
    )
    places = torch.arange(batch.input_ids.shape[1])
    mask = (places <= places[:, None]) & (places[:, None] < batch.subtree_end[:, None])
    of_next = log_probs_of(model, batch.input_ids, batch.position_ids, mask[:, None])
    found = of_next.flatten(0, 1)[batch.predictors, batch.targets]
    rows = torch.repeat_interleave(batch.response_offsets.diff())
    arguments = (batch.loss_mask.double(), batch.advantages, batch.old, rows)
    value, gradients = outcome(model, loss(found, *arguments))
    expected, of_rows = one_by_one(model, loss)
    assert value == pytest.approx(expected, rel=1e-9)
    assert torch.allclose(gradients, of_rows, rtol=1e-9, atol=1e-12)
    if loss is token_sum:
        assert batch.plan.num_placed < sum(len(p) + len(r) for p, r in ROWS)

    # The head on the positions that the loss reads alone.
    pos, inv = batch.loss_positions()
    again = of_next.detach().flatten(0, 1)[pos][inv, batch.targets]
    assert torch.equal(again[batch.loss_mask > 0], found.detach()[batch.loss_mask > 0])
