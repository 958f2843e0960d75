"""Hand-over on a real Ray cluster of several nodes: the batches are those of one call."""

import dataclasses
import logging
import os
import re
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from raising import raises

import fastcollate as fc
from benches.common.processes import peak_bytes
from fastcollate.testing.reference import assert_same

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

import fastcollate.ray  # noqa: E402
from fastcollate.ray import whole  # noqa: E402

# Ray's own code, in this process and at its end.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")

WORKERS = 4
STORE_BYTES = 80 << 20  # nearly the least that Ray takes
NAMES = ("uids", "trajectory_ids", "is_last_step", "is_padding")
FIELDS = {
    "routes": fc.RoutedExperts,
    "chosen": fc.Captured,
    "support": partial(fc.Field, ragged=True, own_token="add"),
    "versions": partial(fc.WeightVersions, current=9, max_lag=6),
    "weight": fc.PerRow,
}


@pytest.fixture(scope="module")
def cluster():
    """Start three nodes, each with an object store of its own."""
    # Worker processes find the tests' module, and the library where this process has it.
    here = Path(__file__).parent
    paths = map(str, (here, here.parent, here.parent / "helpers"))
    paths = [*paths, *filter(None, [os.environ.get("PYTHONPATH")])]
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
    """Make the turns of four prompts with two trajectories each, as one worker samples them.

    A later turn of a row has the routes of its new tokens alone.
    """
    rng = np.random.default_rng(worker)
    turns = {name: [] for name in ("prompts", "responses", "rewards", "loss_mask", "logprobs")}
    names = {name: [] for name in ("uids", "trajectory_ids", "is_last_step")}
    rows = {name: [] for name in (*FIELDS, "starts")}
    for trajectory in range(8):
        prompt = rng.integers(1, 50, rng.integers(3, 9)).tolist()
        count, start = int(rng.integers(1, 4)), 0
        for turn in range(count):
            response = rng.integers(1, 50, rng.integers(2, 9)).tolist()
            turns["prompts"].append(prompt)
            turns["responses"].append(response)
            turns["rewards"].append([0.0] * (len(response) - 1) + [float(rng.normal())])
            turns["loss_mask"].append(rng.integers(0, 2, len(response)).tolist())
            turns["logprobs"].append((-rng.random(len(response))).tolist())
            names["uids"].append(f"prompt {worker}-{trajectory // 2}")
            names["trajectory_ids"].append(f"{worker}-{trajectory}")
            names["is_last_step"].append(turn == count - 1)
            last = len(prompt) + len(response) - 1
            rows["routes"].append(rng.integers(0, 8 if worker else 300, (last - start, 2, 4)))
            rows["chosen"].append(rng.integers(-1, 500, (last - start, 1, 3)))
            rows["starts"].append(start)
            rows["support"].append([rng.integers(1, 50, rng.integers(0, 4)) for _ in response])
            rows["versions"].append([(turn, 0, 1), (turn + 4, 1, len(response))])
            rows["weight"].append(int(rng.integers(0, 9)))
            if rng.random() < 0.8:
                prompt, start = prompt + response + rng.integers(1, 50, 2).tolist(), last
            else:  # a new row
                prompt, start = rng.integers(1, 50, 4).tolist(), 0
    return {**turns, **names, "fields": fields_of(rows)}


def fields_of(rows):
    starts = {"starts": rows["starts"]}
    options = {"routes": starts, "chosen": starts}
    return {key: make(rows[key], **options.get(key, {})) for key, make in FIELDS.items()}


def rows_of(fields):
    """Return the values of fields."""
    rows = {
        key: getattr(one, "values" if key == "weight" else "rows") for key, one in fields.items()
    }
    return {**rows, "starts": fields["routes"].starts}


def joined(parts):
    """Join columns as a driver that holds everything has them."""
    out = {
        name: [row for part in parts for row in part[name]] for name in parts[0] if name != "fields"
    }
    fields = [rows_of(part["fields"]) for part in parts]
    rows = {key: [row for one in fields for row in one[key]] for key in fields[0]}
    return {**out, "fields": fields_of(rows)}


@ray.remote(num_cpus=0.1)
class Rollout:
    def __init__(self, worker):
        self.worker = worker

    def put(self, merge=None, changed=None, **options):
        turns = {**columns(self.worker), **(changed or {})}
        return fc.ray.put_turns(turns, merge=merge, **options)

    def put_by_builder(self, merge):
        turns = columns(self.worker)
        fields = rows_of(turns.pop("fields"))
        builder = fc.BatchBuilder(pad_token_id=0, merge=merge)
        for row in range(len(turns["prompts"])):
            names = ("uid", "trajectory_id", "is_last_step")
            values = (turns[name][row] for name in ("uids", "trajectory_ids", "is_last_step"))
            builder.add(
                turns["prompts"][row],
                turns["responses"][row],
                rewards=turns["rewards"][row],
                loss_mask=turns["loss_mask"][row],
                logprobs=turns["logprobs"][row],
                fields=fields_of({key: values[row] for key, values in fields.items()}),
                **dict(zip(names, values, strict=True)),
            )
        block = fc.ray.put_turns(builder)
        return block, len(builder)


@ray.remote(num_cpus=0.1)
class Consumer:
    def collate(self, shard, **options):
        batch = fc.ray.collate(shard, **{"pad_token_id": 0, "array_type": "numpy", **options})
        return batch, {name: getattr(batch, name) for name in NAMES}

    def collate_and_die(self, shard, **options):
        self.collate(shard, **options)
        os._exit(1)

    def get(self, ref, **options):
        batch = fc.ray.get_shard(ref, **options)
        return batch, {name: getattr(batch, name) for name in NAMES}

    def is_writeable(self, ref):
        return [
            fc.ray.get_shard(ref, copy=copy).input_ids.flags.writeable for copy in (False, True)
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
    expected = fc.build_batch(**whole, merge=merge, shard=shard.shard, **options)
    assert_same(batch, expected)
    assert batch.plan == expected.plan
    assert batch.merge_plan == expected.merge_plan
    for name in NAMES:
        assert getattr(batch, name) == names[name] == getattr(expected, name)
    assert batch.metrics == expected.metrics


@pytest.mark.parametrize(
    ("merge", "layout", "how"),
    [
        (None, "left", {"shard_by": "tokens"}),
        ("exact", "two_segment", {"pad_rows": "synthetic"}),
        ("branch", None, {"layout": fc.Packed(capacity=64, multiple_of=2)}),
    ],
)
def test_shards_are_those_of_one_call_though_a_consumer_dies(
    rollouts, consumers, merge, layout, how
):
    how = {"prompts_per_mini_batch": 8, "dp_size": 4, **how}
    blocks = get([worker.put.remote(merge, part_bytes=2_000) for worker in rollouts])
    plan = fc.ray.plan_step(blocks, **how)
    all_columns = joined([columns(worker) for worker in range(WORKERS)])
    whole = fc.build_batch(**all_columns, merge=merge, pad_token_id=0, array_type="numpy")
    assert plan.step == fc.plan_step(whole, **how)
    normalizers = plan.loss_normalizers()
    assert_same(normalizers._asdict(), whole.loss_normalizers(plan.step)._asdict())
    victim = Consumer.remote()
    for mini_batch in range(plan.num_mini_batches):
        shards = [plan.shard(mini_batch, rank) for rank in range(4)]
        for shard in shards:
            assert shard.loss_normalizers == tuple(of_all[mini_batch] for of_all in normalizers)
        waiting = [
            worker.collate.remote(shard, layout=layout)
            for worker, shard in zip(consumers, shards, strict=True)
        ]
        if mini_batch == 0:
            lost = victim.collate_and_die.remote(shards[0], layout=layout)
            with pytest.raises(ray.exceptions.RayActorError):
                ray.get(lost, timeout=120)
            # Another one takes over.
            waiting[0] = Consumer.remote().collate.remote(shards[0], layout=layout)
        for shard, found in zip(shards, get(waiting), strict=True):
            check(found, shard, merge, layout=layout)
    widths = {found[0].input_ids.shape[1] for found in get(waiting)}
    assert len(widths) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_driver_never_holds_routes(cluster):
    """It plans a step with 54 MB of routes and lists in less than 8 MB, imports included."""

    @ray.remote(num_cpus=0.1)
    def collect(worker):
        routes = np.full((100, 25, 64), worker, np.uint8)
        support = np.full(990, worker, np.int32), np.full(99, 10)
        fields = {
            "routes": fc.RoutedExperts([routes] * 80, num_experts=64),
            "support": fc.Field([support] * 80, ragged=True),
        }
        return fc.ray.put_turns(
            {"prompts": [[2]] * 80, "responses": [[1] * 99] * 80, "fields": fields}
        )

    waiting = [collect.remote(worker) for worker in range(4)]
    ray.wait(waiting, num_returns=4)

    def plan():
        step = fc.ray.plan_step(get(waiting), dp_size=16)
        return [step.shard(0, rank) for rank in range(16)]

    most, shards = peak_bytes(plan)
    assert most < 8e6
    batch = fc.ray.collate(shards[15], pad_token_id=0, array_type="numpy")
    assert batch.routes.nbytes == 20 * 100 * 25 * 64
    assert (batch.routes == 3).all()
    assert len(batch["support"]) == 20 * 990


def test_a_builder_puts_what_its_rows_are(rollouts, consumers):
    found = get([worker.put_by_builder.remote("exact") for worker in rollouts])
    assert [left for _, left in found] == [0] * WORKERS
    plan = fc.ray.plan_step([block for block, _ in found], dp_size=2)
    shard = plan.shard(0, 1)
    check(get(consumers[0].collate.remote(shard)), shard, "exact")
    assert plan.merge_plan.num_turns == sum(block.num_turns for block, _ in found)


def test_widths_are_the_plan_s(rollouts, consumers):
    blocks = get([worker.put.remote() for worker in rollouts])
    plan = fc.ray.plan_step(blocks, dp_size=2, layout=fc.Left(pad_to=64))
    shards = [plan.shard(0, rank) for rank in range(2)]
    first = consumers[0].collate.remote(shards[0])
    second = consumers[1].collate.remote(shards[1], layout=fc.Left(pad_to=64))
    for shard, found in zip(shards, get([first, second]), strict=True):
        check(found, shard, layout=fc.Left(pad_to=64))
    message = r"layout is Left\(pad_to=32\), but .* planned with layout=Left\(pad_to=64\)"
    with pytest.raises(ValueError, match=message):
        get(consumers[1].collate.remote(shards[1], layout=fc.Left(pad_to=32)))
    with pytest.raises(ValueError, match=r"layout is Left\(multiple_of=8\), but .* planned with"):
        fc.ray.collate(shards[0], pad_token_id=0, layout=fc.Left(multiple_of=8))
    with pytest.raises(ValueError, match="row 0 has 14 tokens, but pad_to is 2"):
        fc.ray.collate(
            fc.ray.plan_step(blocks, layout=fc.Left(pad_to=2)).shard(0, 0),
            pad_token_id=0,
            array_type="numpy",
        )


def test_micro_batches_have_their_own_widths_and_parts(rollouts):
    blocks = get([worker.put.remote(part_bytes=2_000) for worker in rollouts])
    plan = fc.ray.plan_step(blocks, dp_size=2)
    shard = plan.shard(0, 1)
    parts = shard.micro_batches(4)
    assert [row for part in parts for row in part.shard.rows.tolist()] == shard.shard.rows.tolist()
    for part in parts:
        assert part.loss_normalizers == shard.loss_normalizers
        for one in (part, part.narrow()):
            batch = fc.ray.collate(one, pad_token_id=0, array_type="numpy")
            check((batch, {name: getattr(batch, name) for name in NAMES}), one)


def test_a_shard_twice_and_a_task_that_is_retried(rollouts, consumers, tmp_path):
    shard = fc.ray.plan_step(get([worker.put.remote() for worker in rollouts])).shard(0, 0)
    marker = tmp_path / "was here"

    @ray.remote(num_cpus=0.1, max_retries=2)
    def train():
        batch = fc.ray.collate(shard, pad_token_id=0, array_type="numpy")
        if not marker.exists():
            marker.touch()
            os._exit(1)
        return batch, {name: getattr(batch, name) for name in NAMES}

    once, twice = get([consumers[2].collate.remote(shard) for _ in range(2)])
    for found in (once, twice, get(train.remote())):
        check(found, shard)
    assert marker.exists()


def test_a_lost_worker_is_named(rollouts, consumers):
    worker = Rollout.options(name="rollout 7").remote(0)
    blocks = get([rollouts[1].put.remote(), worker.put.remote(), rollouts[2].put.remote()])
    plan = fc.ray.plan_step(blocks, dp_size=3)
    assert len(plan.shard(0, 1).parts) > 1
    # Those that need nothing of it are not affected.
    few = fc.ray.plan_step(blocks, rows_per_mini_batch=1).shard(0, 0)
    ray.kill(worker)
    message = (
        r"the shard of mini-batch 0 and rank 1 cannot be collated: block 1 \(put by actor "
        r"rollout 7 on node \w+\) with rows \d+ to \d+ is lost \(OwnerDiedError: .*\); put its "
        r"rows again and plan the step again, and keep the process that puts them, or the actor's "
        "handle, until it is trained"
    )
    with pytest.raises(fc.ray.ShardError, match=message):
        get(consumers[3].collate.remote(plan.shard(0, 1)))
    assert len(get(consumers[3].collate.remote(few))[0].input_ids) == 1


def test_blocks_of_tasks_stay_and_those_of_dropped_actors_do_not(cluster):
    @ray.remote(num_cpus=0.1, max_calls=1)
    def collect(worker):
        return fc.ray.put_turns(columns(worker))

    # On this node: copies on others would stay.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    worker = Rollout.options(scheduling_strategy=here).remote(1)
    blocks = get([collect.remote(0), worker.put.remote()])
    shards = [fc.ray.plan_step([block]).shard(0, 0) for block in blocks]
    del worker

    def collate_for_a_while():
        for _ in range(300):  # until Ray notices
            fc.ray.collate(shards[1], pad_token_id=0, array_type="numpy")
            time.sleep(0.1)

    with pytest.raises(fc.ray.ShardError, match=r"OwnerDiedError.* keep .* the actor's handle"):
        collate_for_a_while()
    assert len(fc.ray.collate(shards[0], pad_token_id=0, array_type="numpy").input_ids) > 0


class Unreadable:
    def __reduce__(self):
        return int, ("a module of another version",)


def test_what_cannot_be_read_is_named(rollouts):
    shard = fc.ray.plan_step([get(rollouts[0].put.remote())]).shard(0, 0)
    broken = dataclasses.replace(shard, parts={0: ray.put(Unreadable())})
    message = (
        r"rank 0 .*: block 0 .* cannot be read \(RaySystemError: .*'a module of another v.*'\)$"
    )
    with pytest.raises(fc.ray.ShardError, match=message):
        fc.ray.collate(broken, pad_token_id=0)


def test_what_does_not_arrive_is_named(rollouts):
    @ray.remote(num_cpus=0.1)
    def never():
        time.sleep(600)

    shard = fc.ray.plan_step(get([rollouts[0].put.remote()])).shard(0, 0)
    waiting = never.remote()
    try:
        late = dataclasses.replace(shard, parts={0: waiting})
        with pytest.raises(TimeoutError, match=r"block 0 .* did not arrive within 0.5 seconds"):
            fc.ray.collate(late, pad_token_id=0, timeout=0.5)
        # The first one is there, though on another node.
        blocks = get([worker.put.remote() for worker in rollouts[1:3]])
        both = fc.ray.plan_step(blocks).shard(0, 0)
        late = dataclasses.replace(both, parts={0: both.parts[0], 1: waiting})
        with pytest.raises(TimeoutError, match=r": block 1 .* did not arrive within 1 seconds"):
            fc.ray.collate(late, pad_token_id=0, timeout=1)
        late = dataclasses.replace(shard, step=waiting)
        with pytest.raises(fc.ray.ShardTimeoutError, match=r"rank 0 .*: the plan of the step did"):
            fc.ray.collate(late, pad_token_id=0, timeout=0.5)
        with pytest.raises(fc.ray.ShardTimeoutError, match=r"batch 2 and rank 1 .* its object"):
            fc.ray.get_shard(fc.ray.ShardRef(2, 1, waiting), timeout=0.5)
    finally:
        ray.cancel(waiting, force=True)


def test_blocks_that_do_not_go_together(rollouts):
    one, other = get([worker.put.remote(name=f"w{n}") for n, worker in enumerate(rollouts[:2])])
    again = get(rollouts[0].put.remote(name="again"))
    with pytest.raises(ValueError, match=r"'0-0' is in block 0 \(w0\) and in block 2 \(again\)"):
        fc.ray.plan_step([one, other, again])
    with raises(r"blocks\[1\] and blocks\[0\] are the same \(w0\); pass each"):
        fc.ray.plan_step([one, one])
    with pytest.raises(ValueError, match="blocks is empty; pass at least one"):
        fc.ray.plan_step([])
    with pytest.raises(TypeError, match=r"blocks\[1\] is ObjectRef.*; call ray.get on it"):
        fc.ray.plan_step([one, rollouts[1].put.remote()])
    with pytest.raises(TypeError, match="pass a list of what put_turns returned"):
        fc.ray.plan_step(one)
    with raises("TypeError: uids is not an argument of plan_step; pass it to put_turns"):
        fc.ray.plan_step([one], uids=["a"])


def forking(worker):
    """Make the turns of three prompts, one of which all workers have, with two samples each."""
    rng = np.random.default_rng(worker)
    turns = {name: [] for name in ("prompts", "responses", "uids", "trajectory_ids")}
    for sample in range(6):
        prompt = [9, 8, 7, 6] if sample < 2 else [worker, sample // 2, 5]
        for turn in range(int(rng.integers(1, 4))):
            response = rng.integers(1, 3, rng.integers(2, 6)).tolist()
            turns["prompts"].append(prompt)
            turns["responses"].append(response)
            turns["uids"].append(f"{worker}-{sample // 2}")
            turns["trajectory_ids"].append(f"{worker}-{sample}")
            prompt = [*prompt, *response[turn:], 4]
    return turns


@pytest.mark.parametrize("rule", ["group", "prompts"])
def test_trees_are_those_of_one_process(consumers, rule):
    @ray.remote(num_cpus=0.1)
    def put(worker, share):
        return fc.ray.put_turns(forking(worker), merge="branch", share=share, part_bytes=100)

    blocks = get([put.remote(worker, rule) for worker in range(3)])
    of_all = [forking(worker) for worker in range(3)]
    columns = {name: [row for one in of_all for row in one[name]] for name in of_all[0]}
    tokens = columns["prompts"], columns["responses"]
    merge = fc.merge_turns(*tokens, trajectory_ids=columns["trajectory_ids"], policy="branch")
    ids = columns["uids"] if rule == "group" else None
    tree = fc.planning.prefix_tree(*tokens, merge=merge, share=rule, uids=ids)
    assert tree.token_ratio > 1.1
    how = {"prompts_per_mini_batch": 9, "dp_size": 2, "layout": fc.Tree(48)}
    plan = fc.ray.plan_step(blocks, **how)
    assert plan.step == fc.plan_step(
        tree, uids=[columns["uids"][turn] for turn in merge.sources.tolist()], **how
    )
    shards = [plan.shard(0, rank) for rank in range(2)]
    waiting = [
        worker.collate.remote(shard) for worker, shard in zip(consumers, shards, strict=False)
    ]
    for shard, (batch, names) in zip(shards, get(waiting), strict=True):
        expected = fc.build_batch(
            **columns, merge="branch", shard=shard.shard, pad_token_id=0, array_type="numpy"
        )
        assert_same(batch, expected)
        assert batch.plan == expected.plan
        assert names["uids"] == expected.uids
    (part,) = shards[0].micro_batches()[:1]
    assert "predictors" in fc.ray.collate(part, pad_token_id=0, array_type="numpy")
    # Those who share may also be packed.
    packed = fc.ray.plan_step(blocks, layout=fc.Packed(48))
    assert packed.step == fc.plan_step(merge, uids=columns["uids"], layout=fc.Packed(48))
    with pytest.raises(ValueError, match="layout has a share, but the blocks have the shared"):
        fc.ray.plan_step(blocks, layout=fc.Tree(48, share="group"))
    with pytest.raises(
        ValueError, match=r"block 1 .put by task .* was put without share; .* to put_turns"
    ):
        fc.ray.plan_step([blocks[0], get(put.remote(3, None))], layout=fc.Tree(48))
    with pytest.raises(ray.exceptions.RayTaskError, match="share is 'all', but rows of different"):
        get(put.remote(0, "all"))


def test_blocks_are_named(rollouts, caplog):
    @ray.remote(num_cpus=0.1)
    def collect():
        return fc.ray.put_turns(columns(0)).name

    log = logging.getLogger("ray")
    log.addHandler(caplog.handler)
    try:
        names = [fc.ray.put_turns(columns(0)).name, get(collect.remote())]
    finally:
        log.removeHandler(caplog.handler)
    names += [get(rollouts[0].put.remote(name=name)).name for name in (None, "mine")]
    patterns = (
        "put by the driver on node",
        r"put by task \w{8} on",
        r"put by actor \w{8} on",
        "mine",
    )
    for name, pattern in zip(names, patterns, strict=True):
        assert re.match(pattern, name)
    assert not caplog.records


@NEEDS_TORCH
def test_a_driver_puts_shards_of_its_batch(consumers):
    columns_ = joined([columns(worker) for worker in range(WORKERS)])
    columns_["fields"]["half"] = fc.Field(columns_["logprobs"], dtype="bfloat16")
    image = [np.full((n % 3, 2), n, np.float32) for n in range(len(columns_["uids"]))]
    columns_["fields"] |= {"image": fc.PerRow(image), "other": fc.PerRow(image, concat=True)}
    for array_type in ("torch", "numpy"):
        if array_type == "numpy":
            del columns_["fields"]["half"]
        batch = fc.build_batch(**columns_, merge="exact", pad_token_id=0, array_type=array_type)
        plan = fc.plan_step(batch, prompts_per_mini_batch=4, dp_size=3)
        alone, paired = (
            fc.ray.put_shards(batch, plan),
            fc.ray.put_shards(batch, plan, ranks_per_node=2),
        )
        assert [len({ref.ref for ref in ranks}) for ranks in (alone[0], paired[0])] == [3, 2]
        for refs, mini_batch, rank in ((alone, 0, 0), (alone, 3, 2), (alone, 3, 2), (paired, 1, 1)):
            ref = refs[mini_batch][rank]
            assert (ref.mini_batch, ref.rank) == (mini_batch, rank)
            expected = batch.select(plan.shard(mini_batch, rank))
            for copy in (False, True):
                found, names = get(consumers[1].get.remote(ref, copy=copy))
                assert_same(found, expected)
                assert found.plan == expected.plan
                assert found.merge_plan == expected.merge_plan
                for name in NAMES:
                    assert names[name] == getattr(found, name) == getattr(expected, name)
    refs = alone
    assert get(consumers[1].is_writeable.remote(refs[0][0])) == [False, True]


def test_ranks_of_one_node_share_objects(cluster, monkeypatch):
    batch = fc.build_batch([[1]] * 4, [[2]] * 4, pad_token_id=0, array_type="numpy")
    plan = fc.plan_step(batch, dp_size=2)
    for num_nodes, num_objects in ((1, 1), (3, 2)):
        monkeypatch.setattr(whole, "_num_nodes", lambda num_nodes=num_nodes: num_nodes)
        (refs,) = fc.ray.put_shards(batch, plan)
        assert len({ref.ref for ref in refs}) == num_objects
        for rank, ref in enumerate(refs):
            assert_same(fc.ray.get_shard(ref), batch.select(plan.shard(0, rank)))


def test_a_shard_is_got_and_made_as_wide_as_its_own_rows(cluster):
    columns_ = columns(0)
    for layout in ("left", "right", "two_segment", "jagged"):
        options = {**columns_, "pad_token_id": 0, "array_type": "numpy", "layout": layout}
        plan = fc.plan_step(batch := fc.build_batch(**options), dp_size=3)
        for rank, ref in enumerate(fc.ray.put_shards(batch, plan)[0]):
            found = fc.ray.get_shard(ref).to_layout(layout)
            expected = fc.build_batch(**options, shard=plan.shard(0, rank).narrow())
            assert_same(found, expected)
            assert found.is_padding == expected.is_padding


@NEEDS_TORCH
def test_a_driver_puts_tensors_by_their_boundaries(consumers):
    import torch

    data = {
        "sequences": torch.arange(36).reshape(9, 4),
        "loss_mask": torch.ones(9, 4),
        "half": torch.arange(9.0).bfloat16(),
        "images": [torch.full((row % 2, 2), float(row)) for row in range(9)],
        "rewards": None,
    }
    refs = fc.ray.put_shards(data, boundaries=[(0, 4), (4, 9)], dp_size=2, pad_rows="copy_first")
    assert [[(ref.mini_batch, ref.rank) for ref in ranks] for ranks in refs] == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1)],
    ]
    rows = [[[0, 1], [2, 3]], [[4, 5, 6], [7, 8, 4]]]
    for mini_batch in range(2):
        for rank in range(2):
            of_rank = rows[mini_batch][rank]
            for copy in (False, True):
                found = fc.ray.get_shard(refs[mini_batch][rank], copy=copy)
                assert type(found) is dict
                assert list(found) == list(data)
                assert torch.equal(found["sequences"], data["sequences"][of_rank])
                assert torch.equal(found["half"], data["half"][of_rank])
                assert found["rewards"] is None
                for image, row in zip(found["images"], of_rank, strict=True):
                    assert torch.equal(image, data["images"][row])
    assert found["loss_mask"][:, 0].tolist() == [1, 1, 0]
    plan = fc.plan_step([4] * 9, dp_size=3)
    (planned,) = fc.ray.put_shards(data, plan)
    assert fc.ray.get_shard(planned[2])["half"].tolist() == [6, 7, 8]


def test_arguments(rollouts):
    turns = columns(0)
    for wrong, message in (
        ([1], r"turns is \[1\] \(list\); pass a BatchBuilder, or a mapping"),
        ({**turns, "prompt": []}, "turns has the key 'prompt', but the columns are prompts, "),
        ({**turns, "pad_token_id": 0}, "'pad_token_id'.*options of build_batch to .*collate"),
        ({"prompts": [[1]]}, "responses is None; pass prompts and responses"),
    ):
        with pytest.raises(TypeError, match=message):
            fc.ray.put_turns(wrong)
    builder = fc.BatchBuilder(pad_token_id=0, merge="exact")
    with raises(r"merge is Merge\('branch'\), but the BatchBuilder has merge=Merge\('exact'\)"):
        fc.ray.put_turns(builder, merge="branch")
    with pytest.raises(ValueError, match="part_bytes is 0"):
        fc.ray.put_turns(turns, part_bytes=0)
    block = fc.ray.put_turns(turns)
    shard = fc.ray.plan_step([block]).shard(0, 0)
    for options, message in (
        ({"merge": "exact"}, "merge is not an argument of collate; pass it to put_turns"),
        ({"timeout": "1"}, "timeout is '1'"),
    ):
        with pytest.raises(TypeError, match=message):
            fc.ray.collate(shard, pad_token_id=0, **options)
    for timeout in (-1, float("inf")):
        with pytest.raises(ValueError, match=f"timeout is {timeout}; pass"):
            fc.ray.collate(shard, pad_token_id=0, timeout=timeout)
    with pytest.raises(TypeError, match=r"pass plan.shard"):
        fc.ray.collate(shard.shard, pad_token_id=0)
    with pytest.raises(TypeError, match="one of what put_shards returned"):
        fc.ray.get_shard(shard)
    for wrong, options, error, message in (
        ([1], {}, TypeError, "pass a Batch or a mapping of tensors"),
        (data := {"ids": np.ones((3, 2))}, {}, TypeError, "or boundaries and dp_size"),
        (
            data,
            {"plan": fc.plan_step([1])},
            ValueError,
            "batch has 3 rows, but plan was made for 1",
        ),
        (data, {"plan": fc.plan_step([1] * 3), "dp_size": 2}, TypeError, "leave dp_size out"),
        (data, {"plan": 1, "boundaries": [(0, 3)]}, TypeError, "pass one of them"),
        (data, {"boundaries": [(0, 4)], "dp_size": 1}, ValueError, "but batch has 3 rows"),
    ):
        with pytest.raises(error, match=message):
            fc.ray.put_shards(wrong, **options)
    batch = fc.build_batch([[1]], [[2]], pad_token_id=0, array_type="numpy")
    with pytest.raises(TypeError, match=r"pass a plan of fastcollate.plan_step"):
        fc.ray.put_shards(batch, None)
    with pytest.raises(TypeError, match=r"batch is a Batch; pass plan, or dict\(batch\)"):
        fc.ray.put_shards(batch, boundaries=[(0, 1)], dp_size=1)
    with pytest.raises(ValueError, match="ranks_per_node is 0"):
        fc.ray.put_shards(batch, fc.plan_step(batch), ranks_per_node=0)
    with pytest.raises(ValueError, match="responses has 1 row, but"):
        fc.ray.put_turns({"prompts": [[1], [2]], "responses": [[1]]})
