"""Snippets of pages that need a Ray cluster, on one; the others are in `test_docs.py`."""

import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")

from local_ray import local_ray  # noqa: E402
from snippets import SNIPPETS, run  # noqa: E402

import fastcollate as fc  # noqa: E402
import fastcollate.ray  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray

PROMPTS, SAMPLES = 32, 2


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray(4):
        yield


def worker_names():
    """Return what the page on Ray defines: Ray pickles functions without a module."""

    names = {"__name__": "page"}
    run(snippet_with("docs/ray.md", "def sampled_turns"), names)
    return names


def snippet_with(page, text):
    (found,) = (one for one in SNIPPETS[page] if text in one.code)
    return found._replace(code=found.code.replace('"cuda"', '"cpu"'))  # workers have no GPU


def test_ray_data():
    """First: actors of the other tests hold the CPUs that it reads with."""
    names = {"data": [{"prompt": [1], "response": [2, 3]}], "collate": fc.Collator(pad_token_id=0)}
    run(snippet_with("docs/collators.md", "ray.data"), names)
    collate = names["collate"].for_ray_data()
    (batch,) = names["dataset"].iter_torch_batches(batch_size=32, collate_fn=collate)
    assert batch["input_ids"].tolist() == [[1, 2, 3]]


def test_workers_and_ranks():
    names = worker_names()
    run(snippet_with("docs/ray.md", "class Rollout"), names)
    plan = names["plan"]
    assert (plan.num_mini_batches, plan.step.num_rows) == (1, 2 * PROMPTS * SAMPLES)
    batches = [fc.ray.collate(plan.shard(0, rank), pad_token_id=0) for rank in range(2)]
    assert sum(int(batch.loss_mask.sum()) for batch in batches) == 2 * 2 * PROMPTS * SAMPLES


def test_trees():
    def filled():
        builder = fc.BatchBuilder(pad_token_id=0)
        for turn in worker_names()["sampled_turns"]():
            builder.add(**turn)
        return builder

    blocks = [fc.ray.put_turns(filled(), share="prompts") for _ in range(16)]
    names = {"fc": fc, "builder": filled(), "blocks": blocks, "mini_batch": 0, "rank": 0}
    run(snippet_with("docs/trees.md", "fc.ray.plan_step"), names)
    assert names["batch"].plan.layout == "tree"
    # Prompts of all workers are equal: every bin has theirs once.
    assert names["batch"].input_ids.flatten().tolist().count(4) == len(names["batch"].input_ids)
