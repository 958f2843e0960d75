"""Hand-over between machines by Ray's object store: no token passes through the driver.

::

    @ray.remote
    class Rollout:                                   # where the tokens are
        def collect(self):
            builder = fc.BatchBuilder(pad_token_id=0)
            ...                                      # builder.add(...), turn by turn
            return fc.ray.put_turns(builder, merge="exact")

    blocks = ray.get([worker.collect.remote() for worker in workers])
    plan = fc.ray.plan_step(blocks, prompts_per_mini_batch=64, dp_size=8)
    trainer.train.remote(plan.shard(mini_batch, rank))

    class Trainer:
        def train(self, shard):
            batch = fc.ray.collate(shard, pad_token_id=0)
            loss = losses.sum() / shard.loss_normalizers.tokens   # of the mini-batch, all ranks

A driver that holds the whole batch puts its shards by :func:`put_shards`, and :func:`get_shard`
views them in place.

Not imported by ``import fastcollate``: write ``import fastcollate.ray``. Needs Ray:
``pip install 'fastcollate[ray]'``.
"""

from importlib.util import find_spec

from fastcollate.common.names import list_names_of
from fastcollate.common.requirements import LEAST_RAY, check_version

if find_spec("ray") is None:
    raise ImportError("fastcollate.ray needs Ray: pip install 'fastcollate[ray]'")

from ray import __version__ as _version_of_ray

check_version("Ray", _version_of_ray, LEAST_RAY, "pip install --upgrade ray")

from fastcollate.ray.fetching import ShardError, ShardTimeoutError
from fastcollate.ray.planning import BlockShard, collate, plan_step
from fastcollate.ray.putting import Block, put_turns
from fastcollate.ray.whole import ShardRef, get_shard, put_shards

__all__ = [
    "Block",
    "BlockShard",
    "ShardError",
    "ShardRef",
    "ShardTimeoutError",
    "collate",
    "get_shard",
    "plan_step",
    "put_shards",
    "put_turns",
]

list_names_of(__name__)
