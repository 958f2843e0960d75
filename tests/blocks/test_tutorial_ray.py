"""The tutorial on Ray: its output, and its loss against rows one by one."""

import sys

import numpy as np
import pytest
from example_runs import EXAMPLES, numbers, run_example
from local_ray import local_ray

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ray")

from rows_alone import assert_same, log_probs_alone, outcome  # noqa: E402

sys.path.append(str(EXAMPLES / "tutorials"))

import ray_rollouts  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and transformers


def test_ray_rollouts():
    run = run_example("tutorials/ray_rollouts.py", "--steps", "20")
    assert run.returncode == 0, run.stderr
    rewards = numbers("reward", run.stdout)
    assert len(rewards) == 3
    assert rewards[-1] > rewards[0] + 0.1


def test_losses_of_ranks_add_up_to_that_of_rows_one_by_one(monkeypatch):
    torch.manual_seed(0)
    model = ray_rollouts.make_model().double()
    monkeypatch.setattr(ray_rollouts, "PROMPTS", 4)
    turns = [
        ray_rollouts.sample_turns(model, np.random.default_rng(rank), rank) for rank in range(2)
    ]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    expected, count = 0, 0
    for part in turns:
        advantages = ray_rollouts.group_advantages(part["rewards"]).astype(np.float32)
        rows = zip(part["prompts"], part["responses"], part["logprobs"], advantages, strict=True)
        for prompt, response, old, advantage in rows:
            new = log_probs_alone(model, prompt, response.tolist())
            ratio = (new - torch.tensor(old.tolist(), dtype=torch.float32)).exp()
            gain = float(advantage)
            expected -= torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum()
            count += len(response)
    expected = outcome(model, expected / count)

    with local_ray(1):
        blocks = [ray_rollouts.fc.ray.put_turns(part) for part in turns]
        plan = ray_rollouts.fc.ray.plan_step(blocks, dp_size=2)
        shards = [plan.shard(0, rank) for rank in range(2)]
        found = outcome(model, sum(ray_rollouts.loss_of(model, shard) for shard in shards))
    assert_same(found, expected)
