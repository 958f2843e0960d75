"""Shards train as the mini-batch that they are of: the loss, its gradients, the results."""

from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from training_steps import (
    REDUCTIONS,
    build,
    forward,
    gradients_of,
    losses_alone,
    rollouts,
    row_means,
    same,
    small_policy,
    torch,
)

import fastcollate as fc
from fastcollate.testing.reference import assert_same


@pytest.fixture(scope="module")
def policy():
    return small_policy()


class Step(NamedTuple):
    turns: dict[str, list]
    policy: str | None
    merge: fc.planning.MergePlan | None
    whole: fc.Batch
    plan: fc.planning.StepPlan
    prompts: int

    def build(self, **options: Any) -> fc.Batch:
        """Build rows of the step."""
        return build(self.turns, self.merge, **options)

    def shards(self, mini_batch):
        return [self.plan.shard(mini_batch, rank) for rank in range(self.plan.dp_size)]

    def alone(self, mini_batch):
        """Build a mini-batch by itself: its turns, without a plan or padding rows."""
        first = mini_batch * self.prompts
        chosen = [first <= uid < first + self.prompts for uid in self.turns["uids"]]
        turns = {name: list(compress(values, chosen)) for name, values in self.turns.items()}
        return build(turns, self.policy)


@st.composite
def steps(draw):
    prompts = draw(st.integers(1, 5))
    turns = rollouts(draw(st.integers(0, 2**32 - 1)), prompts)
    options = {
        "prompts_per_mini_batch": draw(st.integers(1, prompts)),
        "dp_size": draw(st.integers(1, 5)),
        "pad_rows": draw(st.sampled_from(["copy_first", "copy_cycle", "synthetic"])),
        "shard_by": draw(st.sampled_from(["contiguous", "strided", "tokens"])),
        "keep_together": draw(st.sampled_from([None, "prompt", "trajectory"])),
        "allow_partial": True,
    }
    names = {name: turns[name] for name in ("uids", "trajectory_ids")}
    policy = draw(st.sampled_from([None, "exact", "branch"]))
    merge = None
    if policy is not None:
        ids = turns["trajectory_ids"]
        tokens = (turns["prompts"], turns["responses"])
        merge = fc.merge_turns(*tokens, trajectory_ids=ids, policy=policy)
    whole = build(turns, merge)
    known = draw(st.sampled_from(["batch", "lengths", "totals"]))
    if known == "batch":
        plan = fc.plan_step(whole, **options)
    elif merge is not None:
        plan = fc.plan_step(merge, uids=names["uids"], **options)
    else:
        lens = (whole.prompt_lens, whole.response_lens)
        plan = fc.plan_step(lens if known == "lengths" else sum(lens), **names, **options)
    return Step(turns, policy, merge, whole, plan, options["prompts_per_mini_batch"])


def losses_of_shard(policy, shard, tokens, rows):
    """Reduce a shard's share of its mini-batch's loss."""
    log_probs, losses = forward(policy, shard)
    reduced = [losses.sum(), losses.sum() / tokens, row_means(losses, shard).sum() / rows]
    return log_probs.detach() * shard.response_mask, reduced


@pytest.mark.parametrize("made_by", ["build_batch", "select"])
@share(2)
@given(step=steps())
def test_shards_train_as_their_mini_batch(policy, made_by, step):
    plan, whole = step.plan, step.whole
    normalizers = whole.loss_normalizers(plan)
    results, gathered = [], []
    for mini_batch in range(plan.num_mini_batches):
        tokens, rows = (float(counts[mini_batch]) for counts in normalizers)
        total = torch.zeros(len(REDUCTIONS), dtype=torch.float64)
        gradients = [[torch.zeros_like(p) for p in policy.parameters()] for _ in REDUCTIONS]
        shapes = set()
        for shard in step.shards(mini_batch):
            batch = whole.select(shard) if made_by == "select" else step.build(shard=shard)
            shapes.add((batch.input_ids.shape, batch.response_mask.shape))
            log_probs, losses = losses_of_shard(policy, batch, tokens, rows)
            results.append(log_probs)
            gathered.append(batch.gather(log_probs, align="response"))
            total += torch.stack(losses).detach()
            for sums, parts in zip(gradients, gradients_of(policy, losses), strict=True):
                for one, part in zip(sums, parts, strict=True):
                    one += part
        assert len(shapes) == 1

        alone = step.alone(mini_batch)
        start, end = plan.mini_batches[mini_batch]
        assert end - start == alone.plan.num_rows
        expected = losses_alone(policy, alone)
        expected_gradients = gradients_of(policy, expected)
        for index, reduction in enumerate(REDUCTIONS):
            same(total[index], expected[index].detach(), f"loss per {reduction}")
            for found, gradient in zip(gradients[index], expected_gradients[index], strict=True):
                same(found, gradient, f"gradient per {reduction}")

    in_order, _ = forward(policy, whole)
    in_order = in_order.detach() * whole.response_mask
    by_slot = torch.cat(results)
    assert len(by_slot) == plan.num_rows
    same(by_slot[plan.inverse], in_order, "inverse")
    same(fc.planning.drop_padding(by_slot, plan), in_order, "drop_padding")
    of_rows = fc.planning.drop_padding(fc.Ragged.concat(gathered), plan)
    expected = whole.gather(in_order, align="response")
    assert of_rows.offsets.tolist() == expected.offsets.tolist()
    same(of_rows.values, expected.values, "drop_padding of rows")


@given(step=steps())
def test_padding_is_in_no_normalizer(step):
    plan, whole = step.plan, step.whole
    alone = [step.alone(mini_batch) for mini_batch in range(plan.num_mini_batches)]
    # Of the batch of all rows, and of those of all slots.
    slots = fc.planning.Shard(plan.rows, plan.is_padding, plan.num_real_rows, plan.widths)
    for batch in whole, whole.select(slots), step.build(shard=slots):
        tokens, rows = batch.loss_normalizers(plan)
        assert tokens.tolist() == [max(float(batch.loss_mask.sum()), 1) for batch in alone]
        assert rows.tolist() == [batch.plan.num_rows for batch in alone]


@given(step=steps())
def test_selected_shards_are_those_built_from_turns(step):
    for mini_batch in range(step.plan.num_mini_batches):
        for shard in step.shards(mini_batch):
            assert_same(step.whole.select(shard), step.build(shard=shard))


@pytest.mark.parametrize("pad_rows", ["copy_first", "synthetic"])
def test_masked_mini_batches_train_nothing(policy, pad_rows):
    turns = rollouts(0, prompts=3)
    turns["loss_mask"] = [[0] * len(row) for row in turns["responses"]]
    whole = build(turns)
    # There are more ranks than rows in a mini-batch: some get nothing but padding.
    plan = fc.plan_step(whole, prompts_per_mini_batch=1, dp_size=16, pad_rows=pad_rows)
    tokens, rows = whole.loss_normalizers(plan)
    assert tokens.tolist() == [1, 1, 1]
    assert rows.tolist() == np.diff(plan.mini_batches).ravel().tolist()
    for mini_batch in range(3):
        for rank in range(16):
            batch = whole.select(plan.shard(mini_batch, rank))
            _, losses = losses_of_shard(policy, batch, tokens[mini_batch], rows[mini_batch])
            assert not torch.stack(losses).any()
            for gradients in gradients_of(policy, losses):
                assert not any(gradient.any() for gradient in gradients)
