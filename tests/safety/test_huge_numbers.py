"""Integers beyond any dtype: every error names the argument, and is short."""

import numpy as np
import pytest

import fastcollate as fc

Costs = fc.planning.Costs


def batch(**options):
    inputs = {"prompts": [[1]], "responses": [[2]], "pad_token_id": 0, "array_type": "numpy"}
    return fc.build_batch(**{**inputs, **options})


def add(**values):
    return fc.BatchBuilder(pad_token_id=0, array_type="numpy").add([1], [2], **values)


CALLS = {
    "responses[0][0]": lambda big: batch(responses=[[big]]),
    "pad_token_id": lambda big: batch(pad_token_id=big),
    "rewards[0]": lambda big: batch(rewards=[big]),
    "rewards[0][0]": lambda big: batch(rewards=[[big]]),
    "advantages[0]": lambda big: batch(advantages=[big]),
    "x has fill": lambda big: batch(fields={"x": fc.Field([[1]], fill=big)}),
    "x[0]": lambda big: batch(fields={"x": fc.PerRow([big])}),
    "prompt_lens[0]": lambda big: batch(
        prompts=None, responses=None, sequences=[[1, 2]], prompt_lens=[big]
    ),
    "cp_size": lambda big: batch(layout=fc.Packed(8), cp=(big, 0)),
    "missing": lambda big: batch().gather(np.zeros((1, 1)), missing=big),
    "vocab_size": lambda big: batch().check(big),
    "rewards[0] ": lambda big: add(rewards=big),
    "pad_to": lambda big: fc.Left(pad_to=big),
    "capacity": lambda big: fc.Packed(big),
    "max_cost": lambda big: fc.Packed(8, max_cost=big),
    "per_token": Costs,
    "window_share": lambda big: Costs(1.0, window=4, window_share=big),
    "timings[0][0]": lambda big: Costs.fit([([big], 1.0)] * 6),
    "timings[0][1]": lambda big: Costs.fit([([4], big)] * 6),
    "rows has fill": lambda big: fc.pad([[1]], fill=big, array_type="numpy"),
    "lengths[0]": lambda big: fc.planning.pack([big], fc.Packed(8)),
    "lengths has": lambda big: fc.planning.partition([big, 2], 2),
    "rows_per_mini_batch": lambda big: fc.plan_step([3, 2], rows_per_mini_batch=big, dp_size=1),
    "max_drift_tokens": lambda big: fc.planning.Merge("realign", max_drift_tokens=big),
}


@pytest.mark.parametrize("big", [10**400, -(10**5000)], ids=["400 digits", "5000 digits"])
@pytest.mark.parametrize("name", CALLS)
def test_errors_name_the_argument_in_a_few_words(name, big):
    with pytest.raises((TypeError, ValueError)) as caught:
        CALLS[name](big)
    assert name.strip() in str(caught.value)
    assert len(str(caught.value)) < 400


ENDLESS = {
    "ragged": fc.ragged,
    "ragged, rows": lambda endless: fc.ragged([[1], endless]),
    "prompts": lambda endless: batch(prompts=endless),
    "rewards": lambda endless: batch(rewards=endless),
    "prompt_lens": lambda endless: batch(
        prompts=None, responses=None, sequences=[[1, 2]], prompt_lens=endless
    ),
    "uids": lambda endless: batch(uids=endless),
    "trajectory_ids": lambda endless: fc.merge_turns([[1]], [[2]], trajectory_ids=endless),
    "keep_together": lambda endless: fc.planning.pack([1, 2], fc.Packed(8), keep_together=endless),
    "lengths": fc.plan_step,
    "uids of a step": lambda endless: fc.plan_step([3, 2], uids=endless),
    "weights": lambda endless: fc.planning.partition(endless, 2),
    "sequences": lambda endless: fc.planning.pack(endless, fc.Packed(8)),
    "values": lambda endless: batch(fields={"x": fc.PerRow(endless)}),
}


@pytest.mark.parametrize("count", [10**18, 10**19], ids=["within 64 bits", "beyond"])
@pytest.mark.parametrize("name", ENDLESS)
def test_ranges_that_no_memory_holds(name, count):
    with pytest.raises((TypeError, ValueError), match=rf"range\(0, {count}\)") as caught:
        ENDLESS[name](range(count))
    assert "has more items than any memory holds; pass fewer" in str(caught.value)


def test_layouts_and_plans_have_hashes():
    lengths = [3, 4, 5]
    first, again = (fc.planning.pack(lengths, fc.Packed(8)) for _ in range(2))
    other = fc.planning.pack(lengths, fc.Packed(9))
    assert len({fc.Packed(plan=first), fc.Packed(plan=again), fc.Packed(plan=other)}) == 2
    steps = [fc.plan_step(lengths, rows_per_mini_batch=n, dp_size=1) for n in (3, 3, 1)]
    assert len(set(steps)) == 2
    assert len({step.shard(0, 0) for step in steps}) == 2
