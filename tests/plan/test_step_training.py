"""Shards train as the mini-batch that they are of: the loss, its gradients, the results."""

import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from training_steps import (
    REDUCTIONS,
    forward,
    gradients_of,
    losses_alone,
    losses_of_shard,
    same,
    small_policy,
    steps,
    torch,
)

import fastcollate as fc


@pytest.fixture(scope="module")
def policy():
    return small_policy()


@pytest.mark.parametrize("made_by", ["build_batch", "select", "packed", "micro_batches"])
@share(2)
@given(drawn=st.data())
def test_shards_train_as_their_mini_batch(policy, made_by, drawn):
    """Also if the gradients of its micro-batches are added up."""
    is_packed = made_by in ("packed", "micro_batches")
    step = drawn.draw(steps(is_packed))
    plan, whole = step.plan, step.whole
    normalizers = whole.loss_normalizers(plan)
    results, gathered = [], []
    for mini_batch in range(plan.num_mini_batches):
        tokens, rows = (float(counts[mini_batch]) for counts in normalizers)
        total = torch.zeros(len(REDUCTIONS), dtype=torch.float64)
        gradients = [[torch.zeros_like(p) for p in policy.parameters()] for _ in REDUCTIONS]
        shapes = set()
        shards = step.shards(mini_batch)
        if made_by == "micro_batches":
            shards = [part for shard in shards for part in shard.micro_batches()]
        for shard in shards:
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

    # Every log-probability comes back to its row.
    in_order, _ = forward(policy, whole)
    in_order = in_order.detach() * whole.response_mask
    if not is_packed:
        by_slot = torch.cat(results)
        assert len(by_slot) == plan.num_rows
        same(by_slot[plan.inverse], in_order, "inverse")
        same(fc.planning.drop_padding(by_slot, plan), in_order, "drop_padding")
    of_rows = fc.planning.drop_padding(fc.Ragged.concat(gathered), plan)
    expected = whole.gather(in_order, align="response")
    assert of_rows.offsets.tolist() == expected.offsets.tolist()
    same(of_rows.values, expected.values, "drop_padding of rows")


@given(step=steps(is_packed=False))
def test_padding_is_in_no_normalizer(step):
    plan, whole = step.plan, step.whole
    alone = [step.alone(mini_batch) for mini_batch in range(plan.num_mini_batches)]
    # Of the batch of all rows, and of those of all slots.
    slots = fc.planning.Shard(plan.rows, plan.is_padding, plan.num_real_rows, plan.widths)
    for batch in whole, whole.select(slots), step.build(shard=slots):
        tokens, rows = batch.loss_normalizers(plan)
        assert tokens.tolist() == [max(float(batch.loss_mask.sum()), 1) for batch in alone]
        assert rows.tolist() == [batch.plan.num_rows for batch in alone]
