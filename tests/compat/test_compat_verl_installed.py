"""Pieces of the installed verl's own trainer give the same results when patched.

Skipped without verl, whose trainer needs most of its dependencies: in CI.
"""

import types

import numpy as np
import pytest

import fastcollate as fc
from fastcollate.compat import verl as compat
from frameworks.verl import clipped_losses, grpo_loops

torch = pytest.importorskip("torch")
pytest.importorskip("verl")
ray_trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", exc_type=ImportError)
engine = pytest.importorskip("verl.workers.engine.utils", exc_type=ImportError)

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")


class Config(dict):
    __getattr__ = dict.__getitem__


LOSS = Config(clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=None, global_batch_info={})


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 99, n).tolist() for n in rng.integers(1, 20, 16)]
    responses = [rng.integers(0, 99, n).tolist() for n in rng.integers(2, 30, 16)]
    return {
        "prompts": prompts,
        "responses": responses,
        "loss_mask": [[1, *rng.integers(0, 2, len(row) - 1).tolist()] for row in responses],
        "rewards": rng.integers(0, 3, 16).astype(float).tolist(),
        "logprobs": [(-rng.random(len(row))).tolist() for row in responses],
        "uids": [f"p{row // 4}" for row in range(16)],
    }


def data_proto(columns):
    from verl.protocol import DataProto

    batch = fc.build_batch(**columns, pad_token_id=0, layout="two_segment")
    return DataProto.from_tensordict(compat.to_tensordict(batch), meta_info={"steps": [1]})


def step(columns):
    """Return the results of a step: balance, advantages, micro-batches, outputs and losses."""
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.metric_utils import compute_data_metrics
    from verl.trainer.ppo.reward import extract_reward
    from verl.utils import seqlen_balancing, tensordict_utils

    metrics = {}
    trainer = types.SimpleNamespace(_get_dp_size=lambda group, role: 4, actor_rollout_wg=None)
    trainer.use_prefix_grouper = True
    ray_trainer.RayPPOTrainer._balance_batch(trainer, data_proto(columns), metrics, "groups")
    trainer.use_prefix_grouper = False
    data = data_proto(columns)
    data.check_consistency()
    ray_trainer.RayPPOTrainer._balance_batch(trainer, data, metrics)

    data.batch["token_level_scores"], _ = extract_reward(data)
    data.batch["token_level_rewards"] = data.batch["token_level_scores"]
    estimator = core_algos.AdvantageEstimator.GRPO
    data = ray_trainer.compute_advantage(data, estimator, config=Config())
    metrics |= compute_data_metrics(data, use_critic=False)

    no_padding = ray_trainer.left_right_2_no_padding(data.to_tensordict())
    tensordict_utils.assign_non_tensor(
        no_padding, use_dynamic_bsz=True, max_token_len_per_gpu=64, sp_size=1
    )
    micro_batches, indices = engine.prepare_micro_batches(no_padding, dp_group=None)
    outputs = [-0.01 * row for each in micro_batches for row in each["input_ids"].unbind()]
    outputs = torch.nested.as_nested_tensor(outputs, layout=torch.jagged)
    outputs = engine.restore_dynamic_batch(outputs, indices)
    new = ray_trainer.no_padding_2_padding(outputs, no_padding)

    old, mask = data.batch["rollout_log_probs"], data.batch["response_mask"].bool()
    advantages = data.batch["advantages"]
    losses = [
        core_algos.compute_policy_loss_vanilla(old, new, advantages, mask, mode, LOSS)[0].item()
        for mode in MODES
    ]
    parts, rows = seqlen_balancing.prepare_dynamic_batch(data, 120)
    ids = torch.cat([part.batch["input_ids"] for part in parts])
    assert torch.equal(seqlen_balancing.restore_dynamic_batch(ids, rows), data.batch["input_ids"])
    tensors = {key: value.tolist() for key, value in data.batch.items()}
    return losses, metrics, indices, rows, new.tolist(), tensors, list(data.non_tensor_batch["uid"])


def test_a_step_is_the_same_when_patched(columns):
    before = step(columns)
    with compat.patch() as patched:
        assert ray_trainer.calculate_workload is compat.calculate_workload
        assert engine.rearrange_micro_batches is compat.rearrange_micro_batches
        assert not patched.skipped
        np.testing.assert_equal(step(columns), before)
    assert ray_trainer.calculate_workload is not compat.calculate_workload
    np.testing.assert_equal(step(columns), before)


def test_losses_are_those_of_rows(columns):
    pairs = zip(columns["prompts"], columns["responses"], strict=True)
    new = [[-0.01 * token for token in [prompt[-1], *response[:-1]]] for prompt, response in pairs]
    advantages = grpo_loops(columns["rewards"], columns["uids"])
    rows = zip(columns["logprobs"], new, columns["loss_mask"], advantages, strict=True)
    losses = [clipped_losses(*row) for row in rows]
    expected = [np.mean(np.concatenate(losses)), np.mean([*map(sum, losses)])]
    expected.append(np.mean([*map(np.mean, losses)]))
    np.testing.assert_allclose(step(columns)[0], expected, rtol=1e-5)
