"""Batches of merged turns: the same as merging lists first and building a batch of them."""

import pickle

import numpy as np
import pytest
from any_layout import layouts
from conftest import share
from hypothesis import assume, given
from hypothesis import strategies as st
from merging_first import merge_of, plan_of
from raising import raises
from restored_plans import restore_merge
from strategies import (
    Rollouts,
    as_inputs,
    extras,
    merge_options,
    name_turns,
    taking_numbers,
    trajectories,
)
from turns import check_plan, check_report

import fastcollate as fc
from fastcollate.blocks.storing import store
from fastcollate.testing.reference import assert_same, build_merged_batch_loops, merge_turns_loops

LAYOUTS = ["left", "two_segment", "right", "jagged"]
pytestmark = pytest.mark.filterwarnings("ignore:.*policy=.realign. masked")


@st.composite
def placed(draw, layout, merged):
    """Draw a layout with widths for merged rows."""
    rows = Rollouts([row.prompt for row in merged.rows], [row.response for row in merged.rows])
    return {"layout": draw(layouts(layout, rows))}


@st.composite
def cases(draw, array_type):
    """Draw turns with all that they may have: arguments of build_batch but for the layout.

    Returns
    -------
    inputs, kinds
        The same as plain lists, for the loops, and as any kind of input.
    options
        Arguments of merge_turns other than the ids and flags.
    """
    data = draw(trajectories(max_long_len=20))
    by_name = [{"policy": name} for name in ("exact", "branch", "realign")]
    options = draw(st.sampled_from(by_name) | merge_options())
    options = taking_numbers(options, data.turns.rewards)
    more = draw(extras(data.turns, array_type))
    if "uids" in more:
        ends = np.flatnonzero(data.is_last_step)
        more["uids"] = [more["uids"][np.searchsorted(ends, turn)] for turn in range(ends[-1] + 1)]
    more |= {
        "trajectory_ids": None,
        "is_last_step": None,
        "pad_token_id": 7,
        **draw(name_turns(data)),
    }
    inputs, kinds = data.turns._asdict(), draw(as_inputs(data.turns))
    rewards = kinds.get("rewards")
    if getattr(rewards, "ndim", 0) == 1 and rewards.dtype != object:
        inputs["rewards"] = rewards.tolist()  # rounded, as sums show
    return {**inputs, **more}, {**kinds, **more}, options


def merged_of(inputs, options):
    names = ("prompts", "responses", "trajectory_ids", "is_last_step")
    return merge_turns_loops(**{name: inputs[name] for name in names}, **options)


def check_ids(batch, inputs, merged):
    found = {name: inputs.get(name) for name in ("uids", "trajectory_ids", "is_last_step")}
    if found["is_last_step"] is None:  # then there are ids
        ids = list(found["trajectory_ids"])
        found["is_last_step"] = [one != two for one, two in zip(ids, [*ids[1:], ids], strict=True)]
    for name, values in found.items():
        expected = None if values is None else [values[row.source] for row in merged.rows]
        assert getattr(batch, name) == expected, name


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(drawn=st.data())
def test_equals_the_loops(layout, drawn, array_type):
    inputs, kinds, options = drawn.draw(cases(array_type))
    merged = merged_of(inputs, options)
    place = drawn.draw(placed(layout, merged))
    batch = fc.build_batch(**kinds, **place, merge=merge_of(kinds, options), array_type=array_type)
    assert_same(batch, build_merged_batch_loops(**inputs, **place, merge=options))
    check_ids(batch, inputs, merged)
    check_plan(batch.merge_plan, merged)
    assert batch.prompt_lens.tolist() == [len(row.prompt) for row in merged.rows]
    assert batch.response_lens.tolist() == [len(row.response) for row in merged.rows]
    assert batch.metrics.items() >= batch.merge_plan.report.metrics.items()
    assert batch.metrics["batch/rows"] == len(merged.rows)


@pytest.mark.parametrize("here", LAYOUTS)
@share(4)
@given(there=st.sampled_from(LAYOUTS), drawn=st.data())
def test_to_another_layout_and_back(here, there, drawn, array_type):
    inputs, _, options = drawn.draw(cases(array_type))
    merged = merged_of(inputs, options)
    first, second = drawn.draw(placed(here, merged)), drawn.draw(placed(there, merged))
    merge = merge_of(inputs, options)
    batch = fc.build_batch(**inputs, **first, merge=merge, array_type=array_type)
    other = batch.to_layout(**second)
    assert_same(other, build_merged_batch_loops(**inputs, **second, merge=options))
    check_ids(other, inputs, merged)
    assert other.merge_plan == batch.merge_plan
    assert_same(other.to_layout(**first), batch)


@given(drawn=st.data())
def test_dropped_trajectories_are_not_built(drawn):
    data = drawn.draw(trajectories(max_trajectories=5, max_turns=2, max_long_len=20))
    assume(data.turns.loss_mask is not None)
    options = {"loss_mask": data.turns.loss_mask, "drop_untrainable": True}
    options = taking_numbers(options, data.turns.rewards)
    inputs = {**data.turns._asdict(), "is_last_step": data.is_last_step, "trajectory_ids": None}
    merged = merged_of(inputs, options)
    assume(merged.rows)
    plan = plan_of(inputs, options)
    check_report(plan.report, merged)
    batch = fc.build_batch(**inputs, pad_token_id=0, merge=plan, array_type="numpy")
    assert_same(batch, build_merged_batch_loops(**inputs, pad_token_id=0, merge=options))
    assert batch.merge_plan.report.dropped == merged.dropped


def test_a_plan_with_a_loss_mask_needs_it_again():
    """Otherwise tokens would train that the plan's mask leaves out."""
    masks = [[0], [1, 1], [0]]
    turns = {name: INPUTS[name] for name in ("prompts", "responses", "trajectory_ids")}
    plan = fc.merge_turns(**turns, loss_mask=masks, drop_untrainable=True)
    for merge in (plan, pickle.loads(pickle.dumps(plan))):
        with pytest.raises(ValueError, match=r"made with a loss_mask, .*; pass the same"):
            small(merge=merge)
        assert small(merge=merge, loss_mask=masks).loss_mask.tolist() == [[0, 0, 1, 1]]


PROMPTS, RESPONSES = [[1, 2], [1, 2, 3, 4], [7]], [[3], [5, 6], [8]]
INPUTS = {
    "prompts": PROMPTS,
    "responses": RESPONSES,
    "trajectory_ids": ["s", "s", "t"],
    "pad_token_id": 0,
}


def small(array_type="numpy", **changes):
    """Build rows of 2 + 4 tokens, of which token 4 is an observation, and of 1 + 1."""
    return fc.build_batch(**{**INPUTS, "merge": "exact", "array_type": array_type, **changes})


def lists_of(batch, *keys):
    return {key: batch[key].tolist() for key in keys}


@share(2)
@given(drawn=st.data())
def test_ids_of_the_plan(drawn):
    """A plan knows the trajectories of its rows, whatever is passed beside it."""
    data = drawn.draw(trajectories(max_long_len=20))
    names = drawn.draw(name_turns(data))
    options = drawn.draw(merge_options())
    turns = data.turns.prompts, data.turns.responses
    plan = fc.merge_turns(*turns, **names, **options)
    arguments = {"pad_token_id": 0, "array_type": "numpy", "merge": plan}
    expected = fc.build_batch(*turns, **arguments, **names)
    batch = fc.build_batch(*turns, **arguments)
    assert batch.trajectory_ids == expected.trajectory_ids
    assert batch.is_last_step == expected.is_last_step
    assert (batch.trajectory_ids is None) == (names.get("trajectory_ids") is None)
    last = [data.is_last_step[turn] for turn in plan.sources.tolist()]
    assert batch.is_last_step == last
    step = fc.plan_step(batch, dp_size=2, keep_together="trajectory")
    for rank in range(2):
        shard = step.shard(0, rank)
        part = fc.build_batch(*turns, **arguments, shard=shard)
        whole = fc.build_batch(*turns, **arguments, **names, shard=shard)
        selected = batch.select(shard)
        for name in ("trajectory_ids", "is_last_step", "is_padding"):
            assert getattr(part, name) == getattr(whole, name) == getattr(selected, name)
    again = batch.to_layout("jagged")
    assert (again.trajectory_ids, again.is_last_step) == (batch.trajectory_ids, last)


def test_a_plan_is_good_for_other_turns_that_continue_alike(array_type):
    plan = restore_merge(small().merge_plan.to_dict())
    changes = {"prompts": [[9, 9], [9, 9, 7, 8], [9]], "responses": [[7], [6, 5], [4]]}
    batch = small(
        array_type, **changes, merge=plan, trajectory_ids=None, rewards=[[1], [2, 3], [4]]
    )
    # A row's tokens are those of its last turn.
    expected = {
        "input_ids": [[9, 9, 7, 8, 6, 5], [0, 0, 0, 0, 9, 4]],
        "rewards": [[1, 0, 2, 3], [0, 0, 0, 4]],
    }
    assert lists_of(batch, "input_ids", "rewards") == expected
    assert batch.trajectory_ids is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"responses": [[3], [5, 6, 9], [8]]}, r"\b1\b"),
        ({"responses": [[3, 3], [5, 6], [8]]}, r"\b0\b"),
        ({"prompts": [[1, 2], [1, 2, 3, 4], [7, 7]]}, r"\b2\b"),
        ({"prompts": [[1, 2], [1, 2, 3], [7]]}, r"\b1\b"),
        ({"prompts": PROMPTS[:2], "responses": RESPONSES[:2], "trajectory_ids": None}, r"\b[23]\b"),
    ],
)
def test_a_plan_of_other_turns(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes, merge=small().merge_plan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merge": "greedy"}, "merge is 'greedy'"),
        ({"merge": 5}, "merge is 5"),
        ({"trajectory_ids": None}, "trajectory_ids"),
        ({"trajectory_ids": ["s", "t", "s"]}, "'s'"),
        ({"is_last_step": [False, True, False]}, "last"),
        ({"trajectory_ids": ["s", "t"]}, "trajectory_ids"),
        ({"uids": ["u", "v"]}, "uids"),
        ({"is_last_step": [True, True]}, "is_last_step"),
        ({"rewards": [1, 2]}, "rewards"),
        ({"rewards": [[1], [2, 3]]}, "rewards"),
        ({"rewards": [[1], [2], [3]]}, r"rewards\[1\]"),
        ({"rewards": [[1, 1], [2, 3], [3]]}, r"rewards\[0\]"),
        ({"rewards": [1, [2, 3], [3]]}, r"TypeError: rewards\[\d\]"),
        ({"rewards": [[1], 2, [3]]}, r"TypeError: rewards\[\d\]"),
        ({"loss_mask": [[1, 1], [1, 1], [1]]}, r"loss_mask\[0\]"),
        ({"loss_mask": [[float("nan")], [1, 1], [1]]}, r"loss_mask\[0\]\[0\]"),
        ({"logprobs": [[None], [1, 1], [1]]}, r"TypeError: logprobs\[0\]\[0\]"),
        ({"prompts": [[1, None], PROMPTS[1], PROMPTS[2]]}, r"TypeError: prompts\[0\]\[1\]"),
        ({"fields": {"x": fc.Field([[1, 1], [1, 1], [1]])}}, r"x\[0\]"),
        ({"fields": {"x": fc.PerRow([1, 2])}}, r"\bx\b"),
        ({"fields": {"x": fc.Field([[1], [1] * 6, [1] * 2], align="sequence")}}, r"x\[0\]"),
        (
            {"fields": {"x": fc.RoutedExperts([np.ones((n, 1, 1), int) for n in (4, 6, 2)])}},
            r"x\[0\]",
        ),
    ],
)
def test_what_cannot_be_merged(changes, message):
    with raises(message):
        small(**changes)
    assert small().input_ids.shape == (2, 6)


@pytest.mark.parametrize("policy", ["exact", "branch", "realign"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_whole_sequences_without_the_lengths_of_prompts(policy, is_masked):
    """No turn would continue another, so tokens of earlier turns would train again."""
    sequences = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    masks = [[0] * len(p) + [1] * len(r) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    turns = {"sequences": sequences, "trajectory_ids": list("aab")}
    if is_masked:
        turns["loss_mask"] = fc.Field(masks, align="sequence")
    message = "whole sequences are merged without prompt_lens?, .* would train again; pass prompt_l"
    with pytest.raises(ValueError, match=message):
        fc.build_batch(**turns, pad_token_id=0, merge=policy)
    with pytest.raises(ValueError, match=message):
        fc.merge_turns(**turns, policy=policy)
    with pytest.raises(ValueError, match=message):
        fc.BatchBuilder(pad_token_id=0, merge=policy).add(sequence=sequences[0], trajectory_id="a")
    lens = list(map(len, PROMPTS))
    batch = fc.build_batch(**turns, prompt_lens=lens, pad_token_id=0, merge=policy)
    assert batch.loss_mask.sum() == sum(map(len, RESPONSES))


@pytest.mark.parametrize(
    "named",
    [
        {"trajectory_ids": list("aab")},
        {"trajectory_ids": list("abb"), "is_last_step": [True, False, True]},
        {"is_last_step": [True, True, True]},
        {"trajectory_ids": list("abcd")},
    ],
)
def test_names_of_other_trajectories_than_the_plan(named):
    turns = ([[1], [2], [2, 3, 4]], [[5], [3], [6]])
    plan = fc.merge_turns(*turns, trajectory_ids=list("abb"))
    if "is_last_step" in named and "trajectory_ids" in named:  # its own
        batch = fc.build_batch(*turns, pad_token_id=0, merge=plan, **named)
        assert (batch.trajectory_ids, batch.is_last_step) == (["a", "b"], [True, True])
        return
    with pytest.raises(ValueError, match=r"trajectory [01] of .* than in the plan of merge; pass"):
        fc.build_batch(*turns, pad_token_id=0, merge=plan, **named)


@pytest.mark.parametrize("array_type", ["numpy", "torch"])
@pytest.mark.parametrize("in_shard", [False, True])
def test_turns_with_images_of_their_own_are_not_merged(array_type, in_shard):
    """The row has the images of its last turn, by which earlier turns would train."""
    options = {**INPUTS, "merge": "exact", "array_type": array_type}
    if in_shard:
        options["merge"] = fc.merge_turns(PROMPTS, RESPONSES, trajectory_ids=["s", "s", "t"])
        options["shard"] = fc.plan_step(options["merge"], dp_size=1).shard(0, 0)

    def built(*images):
        fields = {"pixel_values": fc.PerRow([np.array(one) for one in images], concat=True)}
        return fc.build_batch(**options, fields=fields)

    batch = built([[1.0]], [[1.0], [2]], [[3.0]])
    assert batch.pixel_values.tolist() == [[1], [2], [3]]
    assert batch.to_layout("jagged").pixel_values.tolist() == [[1], [2], [3]]
    message = r"pixel_values\[0\] is not the beginning of pixel_values\[1\], .* leave merge out"
    for images in ([[1.0]], [[2.0]], [[3.0]]), ([[1.0], [2]], [[1.0]], [[3.0]]):
        with pytest.raises(ValueError, match=message):
            built(*images)
    if not in_shard:
        sounds = fc.PerRow([np.array([[one]]) for one in (1, 2, 3)], concat=True)
        fields = {"input_features": sounds}
        with pytest.raises(ValueError, match=r"input_features\[0\] is not the beginning"):
            store(PROMPTS, RESPONSES, trajectory_ids=["s", "s", "t"], merge="exact", fields=fields)


@pytest.mark.parametrize("kind", [list, np.array])
def test_plans_of_other_tokens(kind):
    """Turns of the same lengths: their tokens would train in rows that never sampled them."""
    turns = [[1], [1, 2, 3], [1, 2, 3, 4, 5]], [[2], [4], [6]]
    plan = fc.merge_turns(*turns, trajectory_ids=["a"] * 3)

    def built(prompts, responses):
        columns = [[kind(row) for row in rows] for rows in (prompts, responses)]
        return fc.build_batch(*columns, pad_token_id=0, merge=plan, array_type="numpy")

    assert_same(
        built(*turns), fc.build_batch(*turns, pad_token_id=0, merge=plan, array_type="numpy")
    )
    other = "merge is a plan for other tokens: token {} of turn {} is another one in turn 2"
    for row, token, message in ((0, 0, other.format(1, 0)), (1, 0, other.format(3, 1))):
        responses = [list(ids) for ids in turns[1]]
        responses[row][token] = 9
        with pytest.raises(ValueError, match=f"{message}, .*; pass a plan of these turns"):
            built(turns[0], responses)
    assert built(turns[0], [*turns[1][:2], [9]]).input_ids[0, -1] == 9  # a row's last turn
