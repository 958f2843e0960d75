"""Plans that are restored: of tables, as pickle restores them, or of JSON."""

import json
import pickle

import fastcollate as fc
from fastcollate._fastcollate import Merge
from fastcollate.plan.merging import MergePlan


def restore_merge(tables):
    """Return the merge plan of the tables of `MergePlan.to_dict`."""
    return MergePlan(Merge._from_dict(tables))


def check_copies(plan):
    """Check that copies of a step's plan, and of its shards, are the same."""
    loaded = fc.planning.StepPlan.from_dict(json.loads(json.dumps(plan.to_dict())))
    for again in (pickle.loads(pickle.dumps(plan)), loaded):
        assert again == plan
        assert again.layout == plan.layout
        assert repr(again) == repr(plan)
        assert again.describe() == plan.describe()
        assert again.shards() == plan.shards()
    last = plan.shard(plan.num_mini_batches - 1, plan.dp_size - 1)
    assert pickle.loads(pickle.dumps(last)) == last
