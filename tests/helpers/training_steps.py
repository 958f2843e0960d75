"""Losses and gradients of steps, against rows one by one."""

from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from packings import PADDING_AS, SHIFTS

import fastcollate as fc

torch = pytest.importorskip("torch")

from policy import Policy, response_log_probs  # noqa: E402

VOCABULARY = 13

REDUCTIONS = ["sum", "token", "row"]
WHOLE_ALGORITHMS = ["ffd", "ff", "bfd", "mffd", "next_fit", "balanced"]


def small_policy():
    """Return a model of random weights, the same each time."""
    torch.manual_seed(0)
    return Policy(VOCABULARY, max_positions=96, width=16, heads=2, layers=1).double()


def rollouts(seed, prompts):
    """Make turns of trajectories of the given number of prompts, and their columns."""
    rng = np.random.default_rng(seed)

    def ids(low, high):
        return rng.integers(1, VOCABULARY, rng.integers(low, high)).tolist()

    turns = {name: [] for name in ("prompts", "responses", "trajectory_ids", "uids")}
    for uid in range(prompts):
        question = ids(1, 6)
        for trajectory in range(rng.integers(1, 4)):
            prompt = question
            for _ in range(rng.integers(1, 4)):
                response = ids(1, 5)
                turns["prompts"].append(prompt)
                turns["responses"].append(response)
                turns["trajectory_ids"].append(f"{uid}-{trajectory}")
                turns["uids"].append(uid)
                goes_on = rng.random() < 0.8
                prompt = (prompt + response if goes_on else ids(1, 8)) + ids(0, 4)
    masked_prompts = rng.random(prompts) < 0.3
    for name in ("loss_mask", "rewards"):
        turns[name] = []
    for uid, response in zip(turns["uids"], turns["responses"], strict=True):
        mask = rng.integers(0, 2, len(response)) * (not masked_prompts[uid])
        turns["loss_mask"].append(mask.tolist())
        turns["rewards"].append(rng.standard_normal(len(response)).tolist())
    return turns


def build(turns, merge=None, **options):
    return fc.build_batch(**turns, pad_token_id=0, merge=merge, position_ids="zero", **options)


def forward(policy, batch):
    """Return the log-probabilities and the loss of every response token."""
    log_probs = response_log_probs(policy, batch)
    return log_probs, -log_probs * batch.rewards * batch.loss_mask


def row_means(losses, batch):
    return losses.sum(1) / batch.loss_mask.sum(1).clip(1)


def gradients_of(policy, losses):
    """Differentiate each loss."""
    parameters = list(policy.parameters())
    return [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]


def losses_alone(policy, batch):
    """Reduce a mini-batch's loss by its own sizes."""
    _, losses = forward(policy, batch)
    trained = losses[batch.loss_mask != 0]
    mean = trained.mean() if len(trained) > 0 else losses.sum()
    return [losses.sum(), mean, row_means(losses, batch).mean()]


def same(found, expected, what):
    torch.testing.assert_close(
        found, expected, rtol=0, atol=1e-9, msg=lambda message: f"{what}: {message}"
    )


class Step(NamedTuple):
    """A step's turns, the batch of all its rows, and its plan."""

    turns: dict[str, list]
    policy: str | None
    merge: fc.planning.MergePlan | str | None
    whole: fc.Batch
    plan: fc.planning.StepPlan
    prompts: int

    def build(self, **options: Any) -> fc.Batch:
        """Build rows of the step."""
        return build(self.turns, self.merge, **options)

    def shards(self, mini_batch):
        return [self.plan.shard(mini_batch, rank) for rank in range(self.plan.dp_size)]

    def alone(self, mini_batch):
        """Build a mini-batch by itself, left-padded: its turns, without a plan or padding rows."""
        first = mini_batch * self.prompts
        chosen = [first <= uid < first + self.prompts for uid in self.turns["uids"]]
        turns = {name: list(compress(values, chosen)) for name, values in self.turns.items()}
        return build(turns, self.policy)


@st.composite
def steps(draw, is_packed):
    """Draw a step, planned from a batch, a merge plan or lengths."""
    prompts = draw(st.integers(1, 5))
    turns = rollouts(draw(st.integers(0, 2**32 - 1)), prompts)
    names = {name: turns[name] for name in ("uids", "trajectory_ids")}
    policy = draw(st.sampled_from([None, "exact", "branch"]))
    merge = None
    if policy is not None:
        ids = turns["trajectory_ids"]
        tokens = (turns["prompts"], turns["responses"])
        merge = fc.merge_turns(*tokens, trajectory_ids=ids, policy=policy)
    whole = build(turns, merge)
    options = {
        "prompts_per_mini_batch": draw(st.integers(1, prompts)),
        "dp_size": draw(st.integers(1, 5)),
        "allow_partial": True,
    }
    if is_packed:
        longest = int((whole.prompt_lens + whole.response_lens).max())
        options["layout"] = fc.Packed(
            draw(st.integers(longest + 3, longest + 40)),
            algorithm=draw(st.sampled_from(WHOLE_ALGORITHMS)),
            multiple_of=draw(st.sampled_from([1, 1, 4])),
            shift=draw(st.sampled_from(SHIFTS)),
            padding_as=draw(st.sampled_from(PADDING_AS)),
        )
    else:
        options["pad_rows"] = draw(st.sampled_from(["copy_first", "copy_cycle", "synthetic"]))
        options["shard_by"] = draw(st.sampled_from(["contiguous", "strided", "tokens"]))
        options["keep_together"] = draw(st.sampled_from([None, "prompt", "trajectory"]))
    known = draw(st.sampled_from(["batch", "lengths", "totals"]))
    if known == "batch":
        plan = fc.plan_step(whole, **options)
    elif merge is not None:
        plan = fc.plan_step(merge, uids=names["uids"], **options)
    else:
        lens = (whole.prompt_lens, whole.response_lens)
        plan = fc.plan_step(lens if known == "lengths" else sum(lens), **names, **options)
    return Step(turns, policy, merge, whole, plan, options["prompts_per_mini_batch"])


def losses_of_shard(policy, batch, tokens, rows):
    """Reduce a shard's share of its mini-batch's loss; return log-probabilities, too."""
    log_probs = response_log_probs(policy, batch)
    if batch.plan.has_bins and not batch.plan.is_shifted:
        log_probs = torch.nn.functional.pad(log_probs[:, :-1], (1, 0))
    losses = -log_probs * batch.rewards * batch.loss_mask
    means = [
        loss.sum() / mask.sum().clip(1)
        for loss, mask in zip(
            batch.gather(losses, align="response"),
            batch.gather(batch.loss_mask, align="response"),
            strict=True,
        )
    ]
    reduced = [losses.sum(), losses.sum() / tokens, sum(means, losses.sum() * 0) / rows]
    return log_probs.detach() * batch.response_mask, reduced
