"""compat.skyrl.patch() on SkyRL's own modules, out of `.peers` (after `make peers`)."""

import importlib.metadata
import sys
from email.message import Message
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from fastcollate.compat import skyrl as compat
from fastcollate.compat.skyrl import PATCHER
from fastcollate.testing.reference import assert_same
from frameworks import installed

MODULES = {each.module for each in PATCHER.replacements} | {
    name for each in PATCHER.replacements for name in each.bound_in
}


@pytest.fixture
def skyrl(monkeypatch):
    """SkyRL's modules by name, as if it were installed; what they import is replaced by stubs."""
    version = installed.version("skyrl")
    if version is None:
        pytest.skip("SkyRL was not downloaded (make peers)")
    metadata = Message()
    metadata["Version"] = version
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata)
    with installed.as_installed("skyrl"):
        yield {name: sys.modules[name] for name in MODULES}


def attributes(modules):
    return {
        (name, key): id(value)
        for name, module in modules.items()
        for key, value in vars(module).items()
    }


def test_all_modules_are_patched_and_restored(skyrl):
    before = attributes(skyrl)
    with compat.patch() as patched:
        replaced = {
            f"{name}.{key}"
            for name, module in skyrl.items()
            for key, value in vars(module).items()
            if str(getattr(value, "__module__", "")).startswith("fastcollate.")
        }
        assert replaced == set(patched.bindings)
        assert len(replaced) == 9 + 7, "definitions, and bindings in other modules"
        assert patched.skipped == ()
        trainer = skyrl["skyrl.train.trainer"]
        assert trainer.merge_stepwise_output is compat.merge_stepwise_output
    assert attributes(skyrl) == before


def test_the_trainer_makes_the_same_batch(skyrl):
    trainer = skyrl["skyrl.train.trainer"]
    off_policy = SimpleNamespace(tis_ratio_type=None, sequence_mask_metric=None)
    cfg = SimpleNamespace(
        trainer=SimpleNamespace(
            algorithm=SimpleNamespace(max_seq_len=None, off_policy_correction=off_policy),
            critic=SimpleNamespace(model=SimpleNamespace(path=None)),
            policy_mini_batch_size=1,
            train_batch_size=2,
        ),
        generator=SimpleNamespace(n_samples_per_prompt=2, step_wise_trajectories=True),
    )
    self = SimpleNamespace(
        tokenizer=SimpleNamespace(pad_token_id=0),
        cfg=cfg,
        all_metrics={},
        dispatch=SimpleNamespace(get_lcm_dp_size=lambda: 4),
    )
    output = {
        "prompt_token_ids": [[1, 2], [1, 2, 5, 7], [3]],
        "response_ids": [[5], [6], [4, 4]],
        "rewards": [[0.0], [1.0], [0.0, 0.5]],
        "loss_masks": [[1], [1], [0, 1]],
        "rollout_logprobs": [[-0.5], [-0.25], [-1.0, -2.0]],
        "trajectory_ids": ["a", "a", "b"],
        "is_last_step": [False, True, True],
    }

    def batch():
        merged = trainer.merge_stepwise_output(output)
        convert = trainer.RayPPOTrainer.convert_to_training_input
        return convert(self, merged, merged["trajectory_ids"])

    expected = batch()
    with compat.patch():
        found = batch()
    assert found["sequences"].tolist()[:2] == [[1, 2, 5, 7, 6], [0, 0, 3, 4, 4]]
    assert len(found["sequences"]) == 4, "padded for four ranks by SkyRL"
    assert_same(plain(found), plain(expected))
    assert found.metadata == expected.metadata


def plain(batch):
    return {key: value for key, value in batch.items() if value is not None}
