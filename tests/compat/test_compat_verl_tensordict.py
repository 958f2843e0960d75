"""compat.verl.to_tensordict gives the batches that verl's rollouts give, and the same losses."""

import sys

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.compat import verl
from frameworks.installed import real
from frameworks.verl import clipped_losses, grpo_loops, rollout_loops

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")

core_algos = real("verl.trainer.ppo.core_algos")

INTEGERS = {
    *("prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask")
}


@st.composite
def rollouts(draw):
    """Draw the columns of `rollout_loops`; each row trains at least one token."""
    count = draw(st.integers(1, 5))
    ids = st.integers(0, 9)
    prompts = [draw(st.lists(ids, min_size=1, max_size=4)) for _ in range(count)]
    responses = [draw(st.lists(ids, min_size=1, max_size=5)) for _ in range(count)]
    masks = [[1, *draw(bits(len(row) - 1))] for row in responses]
    rewards = [float(draw(st.integers(-3, 3))) for _ in range(count)]
    logprobs = [[-0.25 * draw(ids) for _ in row] for row in responses]
    return prompts, responses, masks, rewards, logprobs


def bits(count):
    return st.lists(st.integers(0, 1), min_size=count, max_size=count)


def built(columns, **options):
    prompts, responses, masks, rewards, logprobs = columns
    return fc.build_batch(
        prompts,
        responses,
        pad_token_id=7,
        loss_mask=masks,
        rewards=rewards,
        logprobs=logprobs,
        **{"layout": "two_segment", **options},
    )


@share(2)
@given(
    rollouts(),
    st.sampled_from(["torch", "numpy"]),
    st.sampled_from(["default", "compact", {"rewards": "float64", "loss_mask": "bool"}]),
)
def test_batches_are_those_of_rollouts(columns, array_type, dtypes):
    uids = [f"p{row // 2}" for row in range(len(columns[0]))]
    batch = built(columns, array_type=array_type, dtypes=dtypes, uids=uids)
    found = verl.to_tensordict(batch)
    expected = rollout_loops(*columns, pad=7)
    assert set(found.keys()) == {*expected, "uid"}
    assert found.batch_size == torch.Size([len(uids)])
    for key, rows in expected.items():
        assert found[key].tolist() == rows
        assert found[key].dtype == (torch.int64 if key in INTEGERS else torch.float32)
    assert list(found["uid"]) == uids


def test_fields_keep_their_keys():
    columns = [[1, 2], [3]], [[4], [5, 6]], [[1], [0, 1]], [1.0, 2.0], [[-1.0], [-2.0, -3.0]]
    fields = {
        "ref_log_prob": fc.Field([[-1.5], [-2.5, -3.5]]),
        "level": fc.PerRow([3, 4]),
        "data_source": fc.PerRow(["a", "b"]),
    }
    batch = built(columns, fields=fields, position_ids="zero", labels="aligned")
    found = verl.to_tensordict(batch)
    for key in ("ref_log_prob", "level", "position_ids", "labels"):
        assert found[key] is batch[key]
    assert isinstance(found.get("data_source"), tensordict.NonTensorStack)
    assert list(found["data_source"]) == ["a", "b"]
    assert "uid" not in found.keys()  # noqa: SIM118
    for key in ("prompts", "responses"):
        assert (
            found[key].untyped_storage().data_ptr() == batch.input_ids.untyped_storage().data_ptr()
        )


def test_observations_of_merged_turns_do_not_train():
    batch = fc.build_batch(
        [[1, 2], [1, 2, 3, 4]],
        [[3], [5, 6]],
        pad_token_id=0,
        rewards=[0.0, 1.0],
        trajectory_ids=["t", "t"],
        is_last_step=[False, True],
        merge="exact",
        layout="two_segment",
    )
    assert batch.response_mask.tolist() == [[1, 1, 1, 1]]
    found = verl.to_tensordict(batch)
    assert found["response_mask"].tolist() == [[1, 0, 1, 1]]
    assert found["rm_scores"].tolist() == [[0, 0, 0, 1]]


def test_all_tokens_train_without_a_loss_mask():
    batch = fc.build_batch([[1], [2]], [[3], [4, 5]], pad_token_id=0, layout="two_segment")
    assert verl.to_tensordict(batch)["response_mask"].tolist() == [[1, 0], [1, 1]]


def test_a_mask_that_was_changed_to_train_padding():
    batch = fc.build_batch([[1], [2]], [[3], [4, 5]], pad_token_id=0, layout="two_segment")
    batch.loss_mask[:] = 1
    with pytest.raises(ValueError, match="loss_mask is not 0 on padding, which would train"):
        verl.to_tensordict(batch)


@given(rollouts(), st.data())
def test_losses_are_those_of_rows(columns, data):
    _, responses, masks, rewards, old = columns
    uids = [data.draw(st.sampled_from("ab")) for _ in responses]
    new = [[one + 0.25 * data.draw(st.integers(-2, 2)) for one in row] for row in old]
    batch = built(columns, uids=uids, fields={"new": fc.Field(new)})
    found = verl.to_tensordict(batch)
    losses = [
        clipped_losses(*row) for row in zip(old, new, masks, grpo_loops(rewards, uids), strict=True)
    ]
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        assert policy_loss(found, mode) == pytest.approx(mean_of(losses, mode), rel=1e-4, abs=1e-4)


def mean_of(losses, mode):
    if mode == "token-mean":
        return np.mean(np.concatenate(losses))
    return np.mean([np.mean(row) if mode.endswith("mean") else np.sum(row) for row in losses])


class Config(dict):
    __getattr__ = dict.__getitem__


CONFIG = Config(clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=None, global_batch_info={})


def policy_loss(found, mode):
    """Return verl's loss of a batch, by its own functions where they are."""
    uids = np.array(list(found["uid"]), dtype=object)
    mask, old, new = found["response_mask"], found["rollout_log_probs"], found["new"]
    if core_algos is not None:
        advantages, _ = core_algos.compute_grpo_outcome_advantage(found["rm_scores"], mask, uids)
        loss, _ = core_algos.compute_policy_loss_vanilla(
            old, new, advantages, mask.bool(), mode, CONFIG
        )
        return loss.item()
    advantages = torch.tensor(grpo_loops(found["rm_scores"].sum(1).tolist(), uids))[:, None] * mask
    ratio = (new - old).exp()
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    losses = torch.where(advantages < 0, torch.minimum(losses, -3 * advantages), losses) * mask
    if mode == "token-mean":
        return (losses.sum() / mask.sum()).item()
    rows = losses.sum(1) / (mask.sum(1) if mode.endswith("mean") else 1)
    return rows.mean().item()


# Errors


COLUMNS = [[1, 2], [3]], [[4], [5, 6]], [[1], [0, 1]], [1.0, 2.0], [[-1.0], [-2.0, -3.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "left"}, r"layout 'left', but verl's is 'two_segment'; pass batch.to_layout"),
        ({"layout": "jagged"}, "layout 'jagged'"),
        ({"layout": fc.Packed(capacity=8)}, "layout 'packed'"),
        ({"fields": {"rm_scores": fc.Field([[1], [1, 1]])}}, "two outputs that are rm_scores"),
        ({"fields": {"prompts": fc.PerRow([1, 2])}}, "two outputs that are prompts"),
        (
            {"fields": {"uid": fc.PerRow([1, 2])}, "uids": ["a", "b"]},
            "two outputs that are uid in verl; leave uid out",
        ),
        (
            {"fields": {"images": fc.PerRow([np.zeros((1, 2))] * 2, concat=True)}},
            "images has no item per row",
        ),
        ({"loss_mask": [[1], [0, 0.5]]}, r"loss_mask\[1, 1\] is 0.5, but verl's response_mask"),
        ({"loss_mask": [[2], [0, 1]]}, r"loss_mask\[0, 0\] is 2.0, but verl's response_mask"),
    ],
)
def test_bad_batches(options, message):
    prompts, responses, masks, rewards, _ = COLUMNS
    given = {"loss_mask": masks, "layout": "two_segment", **options}
    batch = fc.build_batch(prompts, responses, pad_token_id=0, rewards=rewards, **given)
    with pytest.raises(ValueError, match=message):
        verl.to_tensordict(batch)


def test_no_batch():
    with pytest.raises(TypeError, match=r"batch is \{\}"):
        verl.to_tensordict({})


def test_tensordict_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensordict", None)
    with pytest.raises(ImportError, match="to_tensordict needs tensordict; pip install tensordict"):
        verl.to_tensordict(built(COLUMNS))
