"""Hand-over on a real Ray cluster of several nodes: what arrives is what one call would build."""

import os
import time

import numpy as np
import pytest
from conftest import NEEDS_TORCH

import fastcollate as fc
from fastcollate.testing.reference import assert_same

ray = pytest.importorskip("ray")

import fastcollate.ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

# Ray's own code, in this process and at its end.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")

WORKERS = 4
STORE_BYTES = 80 << 20  # nearly the least that Ray takes
NAMES = ("uids", "trajectory_ids", "is_last_step", "is_padding")


@pytest.fixture(scope="module")
def cluster():
    """Start three nodes, each with an object store of its own."""
    # Worker processes find the tests' module, and the library where this process has it.
    paths = [os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options = {"object_store_memory": STORE_BYTES, "num_cpus": 4}
        cluster = Cluster(True, head_node_args={**options, "include_dashboard": False})
        try:
            for name in ("second", "third"):
                cluster.add_node(**options, resources={name: 100})
            ray.init(address=cluster.address, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def columns(worker):
    """Make the turns of four prompts with two trajectories each, as one worker samples them."""
    rng = np.random.default_rng(worker)
    turns = {name: [] for name in ("prompts", "responses", "rewards", "loss_masks", "logprobs")}
    names = {name: [] for name in ("uids", "trajectory_ids", "is_last_step")}
    routes, weights = [], []
    for trajectory in range(8):
        prompt = rng.integers(1, 50, rng.integers(3, 9)).tolist()
        count = int(rng.integers(1, 4))
        for turn in range(count):
            response = rng.integers(1, 50, rng.integers(2, 9)).tolist()
            turns["prompts"].append(prompt)
            turns["responses"].append(response)
            turns["rewards"].append([0.0] * (len(response) - 1) + [float(rng.normal())])
            turns["loss_masks"].append(rng.integers(0, 2, len(response)).tolist())
            turns["logprobs"].append((-rng.random(len(response))).tolist())
            names["uids"].append(f"prompt {worker}-{trajectory // 2}")
            names["trajectory_ids"].append(f"{worker}-{trajectory}")
            names["is_last_step"].append(turn == count - 1)
            tokens = len(prompt) + len(response)
            routes.append(rng.integers(0, 8 if worker else 300, (tokens, 2, 4)))
            weights.append(int(rng.integers(0, 9)))
            if rng.random() < 0.8:
                prompt = prompt + response + rng.integers(1, 50, 2).tolist()
            else:  # a new row
                prompt = rng.integers(1, 50, 4).tolist()
    fields = {"routes": fc.RoutedExperts(routes), "weight": fc.PerRow(weights)}
    return {**turns, **names, "fields": fields}


def joined(parts):
    """Join columns as a driver that holds everything has them."""
    out = {
        name: [row for part in parts for row in part[name]] for name in parts[0] if name != "fields"
    }
    fields = [part["fields"] for part in parts]
    routes = [row for one in fields for row in one["routes"].rows]
    weights = [value for one in fields for value in one["weight"].values]
    return {**out, "fields": {"routes": fc.RoutedExperts(routes), "weight": fc.PerRow(weights)}}


@ray.remote(num_cpus=0.1)
class Rollout:
    def __init__(self, worker):
        self.worker = worker

    def put(self, merge=None, changed=None, **options):
        turns = {**columns(self.worker), **(changed or {})}
        return fc.ray.put_turns(turns, merge=merge, **options)

    def put_by_builder(self, merge):
        turns = columns(self.worker)
        fields = turns.pop("fields")
        builder = fc.BatchBuilder(pad_token_id=0, merge=merge)
        for row in range(len(turns["prompts"])):
            names = ("uid", "trajectory_id", "is_last_step")
            values = (turns[name][row] for name in ("uids", "trajectory_ids", "is_last_step"))
            builder.add(
                turns["prompts"][row],
                turns["responses"][row],
                rewards=turns["rewards"][row],
                loss_mask=turns["loss_masks"][row],
                logprobs=turns["logprobs"][row],
                fields={
                    "routes": fc.RoutedExperts(fields["routes"].rows[row]),
                    "weight": fc.PerRow(fields["weight"].values[row]),
                },
                **dict(zip(names, values, strict=True)),
            )
        block = fc.ray.put_turns(builder)
        return block, len(builder)

    def die(self):
        os._exit(1)


@ray.remote(num_cpus=0.1)
class Consumer:
    def collate(self, shard, **options):
        batch = fc.ray.collate(shard, **{"pad_token_id": 0, "array_type": "numpy", **options})
        return batch, {name: getattr(batch, name) for name in NAMES}

    def collate_and_die(self, shard):
        self.collate(shard)
        os._exit(1)

    def get(self, ref, **options):
        batch = fc.ray.get_shard(ref, **options)
        return batch, {name: getattr(batch, name) for name in NAMES}

    def is_writeable(self, ref):
        return [
            fc.ray.get_shard(ref, copy=copy).input_ids.flags.writeable for copy in (0 > 1, 1 > 0)
        ]


@pytest.fixture(scope="module")
def rollouts(cluster):
    nodes = [{}, {"second": 1}, {"third": 1}, {}]
    return [Rollout.options(resources=node).remote(i) for i, node in enumerate(nodes)]


@pytest.fixture(scope="module")
def consumers(cluster):
    nodes = [{}, {"second": 1}, {"third": 1}, {"second": 1}]
    return [Consumer.options(resources=node).remote() for node in nodes]


def get(refs):
    return ray.get(refs, timeout=120)


def check(found, shard, merge=None, **options):
    """Compare with one call on the driver."""
    batch, names = found
    whole = joined([columns(worker) for worker in range(WORKERS)])
    options = {"pad_token_id": 0, "array_type": "numpy", **options}
    expected = fc.build_batch(**whole, merge=merge, rows=shard.shard, **options)
    assert_same(batch, expected)
    assert batch.plan == expected.plan
    assert batch.merge_plan == expected.merge_plan
    for name in NAMES:
        assert getattr(batch, name) == names[name] == getattr(expected, name)


@pytest.mark.parametrize(("merge", "layout"), [(None, "left"), ("exact", "two_segment")])
def test_shards_are_those_of_one_call_though_a_consumer_dies(rollouts, consumers, merge, layout):
    blocks = get([worker.put.remote(merge, part_bytes=2_000) for worker in rollouts])
    plan = fc.ray.plan_step(
        blocks, prompts_per_mini_batch=8, dp_size=4, shards="tokens", pad_to_multiple_of=1
    )
    assert plan.step == fc.plan_step(
        fc.build_batch(
            **joined([columns(worker) for worker in range(WORKERS)]),
            merge=merge,
            pad_token_id=0,
            array_type="numpy",
        ),
        prompts_per_mini_batch=8,
        dp_size=4,
        shards="tokens",
    )
    victim = Consumer.remote()
    for mini_batch in range(plan.num_mini_batches):
        shards = [plan.shard(mini_batch, rank) for rank in range(4)]
        waiting = [
            worker.collate.remote(shard, layout=layout)
            for worker, shard in zip(consumers, shards, strict=True)
        ]
        if mini_batch == 0:
            lost = victim.collate_and_die.remote(shards[0])
            with pytest.raises(ray.exceptions.RayActorError):
                ray.get(lost, timeout=120)
            # Another one takes over.
            waiting[0] = Consumer.remote().collate.remote(shards[0], layout=layout)
        for shard, found in zip(shards, get(waiting), strict=True):
            check(found, shard, merge, layout=layout)
    widths = {found[0].input_ids.shape[1] for found in get(waiting)}
    assert len(widths) == 1
