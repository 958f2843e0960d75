"""compat.skyrl gives what SkyRL's function gives, down to its leniencies and exceptions."""

import logging
import re
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import as_tensors, recorded

torch = pytest.importorskip("torch")

from raising import raises  # noqa: E402
from strategies import as_inputs, rollouts  # noqa: E402

from fastcollate.compat.skyrl import (  # noqa: E402
    compute_prompt_boundaries,
    compute_prompt_mini_batch_boundaries,
    convert_prompts_responses_to_batch_tensors,
    make_router_padding_mask,
)
from fastcollate.testing.reference import assert_same  # noqa: E402
from frameworks import skyrl as port  # noqa: E402
from frameworks.installed import as_installed, real  # noqa: E402

NAMES = (
    *("sequences", "attention_mask", "response_mask", "rewards", "loss_masks", "logprobs"),
    *("rollout_expert_indices", "rollout_sample_support"),
)


class Inputs(NamedTuple):
    """Rollouts by SkyRL's names of arguments."""

    prompts: list
    responses: list
    rewards: list
    loss_masks: list
    logprobs: list | None = None


def named(results):
    assert isinstance(results, tuple)
    named = {}
    for name, value in zip(NAMES, results, strict=True):
        if hasattr(value, "cu_seqlens"):
            named |= {name: value.values, f"cu_seqlens of {name}": value.cu_seqlens}
        elif value is not None:
            named[name] = value
    return named


def check(pad_token_id, *args, **kwargs):
    """Compare with the port, and with SkyRL where `make peers` has it, as if it were installed."""
    actual = convert_prompts_responses_to_batch_tensors(pad_token_id, *args, **kwargs)
    expected = port.convert_prompts_responses_to_batch_tensors(pad_token_id, *args, **kwargs)
    assert_same(named(actual), named(expected))
    if skyrl:
        with as_installed("skyrl"):
            with_skyrl = convert_prompts_responses_to_batch_tensors(pad_token_id, *args, **kwargs)
        with np.errstate(over="ignore"):
            there = skyrl.convert_prompts_responses_to_batch_tensors(pad_token_id, *args, **kwargs)
        assert_same(named(with_skyrl), named(there))
        assert list(map(type, with_skyrl)) == list(map(type, there))
    return actual


skyrl = real("skyrl.train.dataset.preprocess")


GOLDEN = recorded("skyrl_batch_tensors")


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_what_skyrl_itself_gave(case):
    """Recorded results: ours may not be wrong in the way of our oracle."""
    expected = tuple(as_tensors(case.pop("results")))
    actual = convert_prompts_responses_to_batch_tensors(**case)
    assert_same(named(actual), named(expected))


@st.composite
def skyrl_rollouts(draw):
    """Rollouts whose fields are per token, of any length up to R, and given but for logprobs."""
    data = draw(rollouts(max_long_len=60, nan_in_masks=True))
    rows, longest = len(data.prompts), max(map(len, data.responses))
    number = st.floats(width=32) | st.floats() | st.integers(-(2**24), 2**24) | st.booleans()
    loose = st.lists(number, max_size=min(longest, 8))

    def per_token(field):
        if field is None or not isinstance(field[0], list) or draw(st.booleans()):
            return draw(st.lists(loose, min_size=rows, max_size=rows))
        return field

    logprobs = draw(st.sampled_from([data.logprobs, [], "fewer"]))
    if logprobs == "fewer":
        logprobs = draw(st.lists(loose, max_size=rows))
    rewards, masks = per_token(data.rewards), per_token(data.loss_mask)
    return Inputs(data.prompts, data.responses, rewards, masks, logprobs)


@given(drawn=st.data())
def test_every_kind_of_input_gives_what_lists_give(drawn):
    data = drawn.draw(skyrl_rollouts().filter(lambda data: data.logprobs != []))
    inputs = drawn.draw(as_inputs(data))
    expected = port.convert_prompts_responses_to_batch_tensors(7, *data)
    actual = convert_prompts_responses_to_batch_tensors(7, **inputs)
    assert_same(named(actual), named(expected))


@pytest.fixture
def inputs():
    return Inputs(
        prompts=[[1, 2], [3]],
        responses=[[4], [5, 6]],
        rewards=[[0.5], [1.0, 2.0]],
        loss_masks=[[1], [0, 1]],
    )


@pytest.mark.parametrize("number", [2**60 + 2**36 + 1, 2**53 + 1, -(2**62) - 2**38 - 1])
def test_whole_numbers_round_as_in_skyrl(inputs, number):
    rewards, field = [[0.5], [0.5, number]], [[number], [1, number]]
    check(7, *inputs._replace(rewards=rewards, loss_masks=field, logprobs=field))


TENSOR = torch.tensor([0.5, 1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: [[1.0], [1.0, 2.0, 3.0]]}, rf"{name}\[1\] has 3 items, but the longest resp")
            for name in ("rewards", "loss_masks", "logprobs")
        ),
        ({"logprobs": [[]] * 3}, "IndexError: logprobs has 3 rows, but prompts has 2"),
        *(
            ({name: [[]] * rows}, f"AssertionError: ({name}|responses) has [0-3] rows")
            for name in ("prompts", "responses", "rewards", "loss_masks")
            for rows in (0, 1, 3)
        ),
        ({name: [] for name in Inputs._fields[:4]}, "AssertionError: prompts has 0 rows; pass"),
        ({"rewards": None}, "TypeError: rewards is None"),
        ({"rewards": [0.5, 1.0]}, r"TypeError: rewards\[0\] is 0.5 \(float\)"),
        ({"rewards": TENSOR}, r"TypeError: rewards\[0\] is float32 Tensor"),
        *(({"pad_token_id": one}, "TypeError: pad_token_id is") for one in (None, "0", 1.5)),
    ],
)
def test_what_is_refused(inputs, changes, message):
    with raises(message):
        convert_prompts_responses_to_batch_tensors(
            **{"pad_token_id": 7, **inputs._asdict(), **changes}
        )


# Routed experts


def route(*experts, dtype=np.uint8):
    """Make routes of one layer."""
    return np.array(experts, dtype)[:, None]


def test_routes_and_sample_support_are_packed(inputs):
    routes = [route([5, 4], [3, 2]), route([700, 6], dtype=np.int16)]
    support = [np.full((1, 2), 9, np.int32), np.full((2, 2), 8, np.int32)]
    results = check(7, *inputs, rollout_expert_indices=routes, rollout_sample_support=support)
    assert results[6].values[:, 0].tolist() == [
        *([5, 4], [3, 2], [0, 1]),
        *([700, 6], [0, 1], [0, 1]),
    ]
    assert results[7].cu_seqlens.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("key", "rows", "message"),
    [
        ("rollout_expert_indices", [np.zeros((1, 1, 2), int)] * 2, r"\[0\].* int64"),
        ("rollout_sample_support", np.zeros((2, 2), "i4"), "TypeError: list of NumPy arrays"),
        ("rollout_sample_support", [np.zeros((1, 2), "i4")], "1 rows, but prompts has 2"),
        ("rollout_sample_support", [[[1]], [[2]]], "TypeError: entries must be NumPy arrays"),
        ("rollout_sample_support", [np.zeros((1, 2), int)] * 2, r"\[0\].* int64"),
        (
            "rollout_sample_support",
            [np.zeros((1, 2), "i4")] * 2,
            r"\[1\] has 1 support rows for 2 response tokens",
        ),
        (
            "rollout_sample_support",
            [np.zeros((1, 2), "i4"), np.zeros((2, 3), "i4")],
            r"\[1\] has shape",
        ),
    ],
)
def test_what_packed_tensors_cannot_be_made_of(inputs, key, rows, message):
    with raises(message):
        convert_prompts_responses_to_batch_tensors(7, *inputs, **{key: rows})


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_one_reward_per_row(inputs, make):
    rewards = make([1.0] * len(inputs.prompts))
    with raises(r"TypeError: rewards\[0\] is .*; pass rows of one reward per response token"):
        convert_prompts_responses_to_batch_tensors(7, *inputs._replace(rewards=rewards))


def test_rewards_that_require_gradients(inputs):
    rewards = [torch.tensor(row, requires_grad=True) for row in inputs.rewards]
    results = convert_prompts_responses_to_batch_tensors(7, *inputs._replace(rewards=rewards))
    expected = port.convert_prompts_responses_to_batch_tensors(7, *inputs)
    assert torch.equal(results[3], expected[3])


NO_ROUTES = np.zeros((0, 1, 2), np.uint8)


@pytest.mark.parametrize(
    ("routes", "exception", "message"),
    [
        ([route([0, 1]), [[[0, 1]]]], TypeError, r"NumPy arrays.*\b1\b"),
        ([None, route([0, 1])], TypeError, r"NumPy arrays.*\b0\b"),
        ([torch.zeros(1, 1, 2), route([0, 1])], TypeError, r"NumPy arrays.*\b0\b"),
        ([[[[0]]]], ValueError, r"\b1\b.*\b2\b"),
        ([route([0, 1])], ValueError, r"\b1\b.*\b2\b.*routes for every trajectory"),
        ([route([0, 1])] * 3, ValueError, r"\b3\b.*\b2\b"),
        ([route([0, 1]), NO_ROUTES], ValueError, r"\b1\b"),
        ([route([0, 1]), np.zeros((1, 2), np.uint8)], ValueError, r"\b1\b"),
        ([np.zeros((1, 1, 1, 2), np.uint8)] * 2, ValueError, r"\b0\b"),
        ([route([0, 1]), np.zeros((1, 2, 2), np.uint8)], ValueError, r"\b1\b"),
        ([route([0, 1]), route([0, 1, 2])], ValueError, r"\b1\b"),
        ([np.zeros((1, 1, 0), np.uint8)] * 2, ValueError, "topk|experts"),
        ([route([0, 1]), route(*[[0, 1]] * 4)], ValueError, r"\b1\b.*\b4\b.*\b3\b"),
        ([route([0, -1], dtype=np.int32), route([0, 1])], ValueError, "-1"),
        ([route([0, 1], dtype=np.float32)] * 2, ValueError, r"\b0\b.*float32; pass integers"),
        ([route([0, 1], dtype=bool)] * 2, ValueError, r"\b0\b.*bool"),
        ([route([0, 1], dtype=np.complex64)] * 2, ValueError, r"\b0\b.*complex64"),
    ],
)
def test_routed_experts_that_cannot_be(inputs, routes, exception, message):
    with pytest.raises(exception, match=message) as caught:
        convert_prompts_responses_to_batch_tensors(7, *inputs, rollout_expert_indices=routes)
    assert type(caught.value) is exception


# The mask of positions without routes


@pytest.mark.parametrize(
    ("attention_mask", "captured", "message"),
    [
        (torch.ones(3), [1, 1, 1], "Expected 2D attention_mask"),
        (torch.ones(1, 2, 3), [1], "attention_mask"),
        (torch.ones(2, 3), [1], r"Expected one captured route length per trajectory.*\b1\b.*\b2\b"),
        (torch.ones(2, 3), [1, 1, 1], r"\b3\b.*\b2\b"),
        (torch.ones(2, 3), [1, -1], r"-1"),
        (torch.ones(2, 3), [1, 4], r"must be within trajectory lengths.*\b4\b.*\b3\b"),
        (torch.tensor([[0, 1, 1], [1, 1, 1]]), [3, 3], r"\b3\b.*\b2\b"),
    ],
)
def test_router_padding_masks_that_cannot_be(attention_mask, captured, message):
    with pytest.raises(ValueError, match=message):
        make_router_padding_mask(attention_mask, captured)


def test_max_seq_len_is_logged(inputs, caplog):
    with caplog.at_level(logging.WARNING):
        convert_prompts_responses_to_batch_tensors(7, *inputs, max_seq_len=3)
        assert not caplog.records
        results = convert_prompts_responses_to_batch_tensors(7, *inputs, max_seq_len=2)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.name.startswith("fastcollate")
    assert re.search(r"\b3\b.*\b2\b", record.getMessage())
    assert results[0].shape == (2, 3)


def test_the_uid_is_named_as_in_skyrl():
    uids, message = ["p0", "p0", "p1", "p0"], "uid 'p0' appears in non-contiguous positions at in"
    for call in (compute_prompt_boundaries, compute_prompt_mini_batch_boundaries):
        with pytest.raises(AssertionError, match=message):
            call(uids, *[1, 2, True, 1][: 4 * (call is not compute_prompt_boundaries)])
