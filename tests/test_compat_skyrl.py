"""compat.skyrl gives what SkyRL's function gives, down to its leniencies and exceptions."""

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fastcollate.compat.skyrl import convert_prompts_responses_to_batch_tensors  # noqa: E402
from fastcollate.testing import reference  # noqa: E402
from fastcollate.testing.reference import assert_same  # noqa: E402
from fastcollate.testing.strategies import Rollouts, as_inputs, rollouts  # noqa: E402

NAMES = (
    *("sequences", "attention_mask", "response_mask", "rewards", "loss_masks", "logprobs"),
    "rollout_expert_indices",
)


def named(results):
    assert isinstance(results, tuple)
    return {name: value for name, value in zip(NAMES, results, strict=True) if value is not None}


def check(pad_token_id, *args, **kwargs):
    actual = convert_prompts_responses_to_batch_tensors(pad_token_id, *args, **kwargs)
    expected = reference.convert_prompts_responses_to_batch_tensors(pad_token_id, *args, **kwargs)
    assert_same(named(actual), named(expected))
    return actual


GOLDEN = json.loads((Path(__file__).parent / "golden" / "skyrl_batch_tensors.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_what_skyrl_itself_gave(case):
    """Results recorded from SkyRL 0.3.0: ours may not be wrong in the way of our oracle."""

    def tensor(result):
        dtype = getattr(torch, result["dtype"].removeprefix("torch."))
        return torch.tensor(result["values"], dtype=dtype).reshape(result["shape"])

    recorded = [None if result is None else tensor(result) for result in case.pop("results")]
    actual = convert_prompts_responses_to_batch_tensors(**case)
    assert_same(named(actual), named(tuple(recorded)))


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
    return data._replace(
        rewards=per_token(data.rewards),
        loss_masks=per_token(data.loss_masks),
        logprobs=logprobs,
    )


@given(data=skyrl_rollouts(), pad_token_id=st.sampled_from([0, 7, -1, 2**63 - 1]))
def test_lists_give_what_skyrl_gives(data, pad_token_id):
    check(pad_token_id, *data)


@given(drawn=st.data())
def test_every_kind_of_input_gives_what_lists_give(drawn):
    data = drawn.draw(skyrl_rollouts().filter(lambda data: data.logprobs != []))
    inputs = drawn.draw(as_inputs(data))
    expected = reference.convert_prompts_responses_to_batch_tensors(7, *data)
    actual = convert_prompts_responses_to_batch_tensors(7, **inputs)
    assert_same(named(actual), named(expected))


@pytest.fixture
def inputs():
    return Rollouts(
        prompts=[[1, 2], [3]],
        responses=[[4], [5, 6]],
        rewards=[[0.5], [1.0, 2.0]],
        loss_masks=[[1], [0, 1]],
    )


def test_a_tokenizer_in_place_of_the_pad_token_id(inputs):
    check(SimpleNamespace(pad_token_id=11), *inputs)


def test_keywords_are_those_of_skyrl(inputs):
    actual = convert_prompts_responses_to_batch_tensors(
        7, **inputs._asdict(), rollout_expert_indices=None, max_seq_len=None
    )
    assert_same(named(actual), named(check(7, *inputs)))


def test_rewards_may_be_tensors(inputs):
    rewards = [torch.tensor([0.5, 1.5]), torch.tensor([2.0], dtype=torch.float64)]
    check(7, *inputs._replace(rewards=rewards))


@pytest.mark.parametrize("number", [2**60 + 2**36 + 1, 2**53 + 1, -(2**62) - 2**38 - 1])
def test_whole_numbers_round_as_in_skyrl(inputs, number):
    rewards, field = [[0.5], [0.5, number]], [[number], [1, number]]
    check(7, *inputs._replace(rewards=rewards, loss_masks=field, logprobs=field))


def test_whole_rewards_beyond_2_53_round_twice(inputs):
    """The one documented difference: a list of ints alone goes through int64 in SkyRL."""
    number = 2**60 + 2**36 + 1
    rewards = [[number], [1, number]]
    results = convert_prompts_responses_to_batch_tensors(
        7, **inputs._replace(rewards=rewards)._asdict()
    )
    expected = torch.tensor([[0, number], [1, number]], dtype=torch.float64).to(torch.float32)
    assert torch.equal(results[3], expected)


def test_short_fields_are_right_aligned(inputs):
    results = check(7, *inputs._replace(rewards=[[], [9.0]], loss_masks=[[1, 1], [1]]))
    assert results[3].tolist() == [[0, 0], [0, 9]]
    assert results[4].tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize("field", ["rewards", "loss_masks", "logprobs"])
def test_fields_longer_than_every_response_are_refused(inputs, field):
    inputs = inputs._replace(**{field: [[1.0], [1.0, 2.0, 3.0]]})
    with pytest.raises(ValueError, match=rf"{field}\[1\].*3"):
        convert_prompts_responses_to_batch_tensors(7, *inputs)


def test_sequences_of_no_token_are_float32():
    results = check(7, [[], []], [[], []], [[], []], [[], []], [[], []])
    assert results[0].dtype == torch.float32
    assert results[0].shape == (2, 0)


def test_nan_in_a_loss_mask(inputs):
    check(7, *inputs._replace(loss_masks=[[float("nan")], [1, 0]]))


@pytest.mark.parametrize("logprobs", [None, []])
def test_no_logprobs(inputs, logprobs):
    assert check(7, *inputs._replace(logprobs=logprobs))[5] is None


def test_fewer_rows_of_logprobs_leave_zeros(inputs):
    results = check(7, *inputs._replace(logprobs=[[-1.0]]))
    assert results[5].tolist() == [[0, -1], [0, 0]]


def test_more_rows_of_logprobs(inputs):
    with pytest.raises(IndexError):
        convert_prompts_responses_to_batch_tensors(7, *inputs._replace(logprobs=[[]] * 3))


@pytest.mark.parametrize("field", ["prompts", "responses", "rewards", "loss_masks"])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_row_counts_are_asserted(inputs, field, rows):
    with pytest.raises(AssertionError):
        convert_prompts_responses_to_batch_tensors(7, *inputs._replace(**{field: [[]] * rows}))


def test_an_empty_batch_is_asserted():
    with pytest.raises(AssertionError):
        convert_prompts_responses_to_batch_tensors(7, [], [], [], [])


@pytest.mark.parametrize("rewards", [None, [0.5, 1.0], torch.tensor([0.5, 1.0])])
def test_rewards_have_to_be_per_token(inputs, rewards):
    with pytest.raises(TypeError):
        convert_prompts_responses_to_batch_tensors(7, *inputs._replace(rewards=rewards))


@pytest.mark.parametrize("pad", [None, "0", 1.5, SimpleNamespace(pad_token_id=None)])
def test_the_pad_token_id_has_to_be_one(inputs, pad):
    with pytest.raises(TypeError, match="pad_token_id"):
        convert_prompts_responses_to_batch_tensors(pad, *inputs)


@pytest.mark.parametrize("experts", [None, []])
def test_no_routed_experts(inputs, experts):
    results = convert_prompts_responses_to_batch_tensors(7, *inputs, rollout_expert_indices=experts)
    assert results[6] is None


def test_routed_experts_are_not_there_yet(inputs):
    with pytest.raises(NotImplementedError):
        convert_prompts_responses_to_batch_tensors(
            7, *inputs, rollout_expert_indices=[[[[0]]], [[[1]]]]
        )


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
