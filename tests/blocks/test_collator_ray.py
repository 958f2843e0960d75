"""Collator in Ray Data: by Arrow tables, and by NumPy arrays, with rows as Ray keeps them."""

import pickle

import numpy as np
import pytest
from local_ray import local_ray

import fastcollate as fc
from fastcollate.testing.reference import assert_same, collate_loops

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")  # which needs pandas

# Ray's own code, and its wish that collators are classes of its own.
pytestmark = pytest.mark.filterwarnings("ignore")

LISTS = [
    {"prompt": list(range(i + 1)), "response": [i] * (i % 3 + 1), "rewards": i / 2}
    for i in range(10)
]
# Ray keeps arrays as tensors of its own types: of one shape, or of variable ones.
ARRAYS = [
    {
        "input_ids": np.arange(i + 2),
        "labels": np.where(np.arange(i + 2) > 0, np.arange(i + 2), -100),
    }
    for i in range(10)
]
ONE_SHAPE = [{"input_ids": np.arange(4) + i, "prompt_len": 2} for i in range(10)]
TRAILING = [
    {"prompt": [1], "response": np.arange(i % 2 + 1), "top": np.ones((i % 2 + 1, 2)) * i}
    for i in range(10)
]
FIELDS = [
    {
        "prompt": list(range(i % 4 + 1)),
        "response": [i] * (i % 3 + 1),
        "loss_mask": [i % 2] * (i % 3 + 1),
        "logprobs": [-0.5 * i] * (i % 3 + 1),
        "adv": [i / 4] * (i % 3 + 1),
        "entropy": [i / 8] * (i % 4 + i % 3 + 2),
        "difficulty": i / 2,
        "uid": f"prompt {i // 2}",
    }
    for i in range(10)
]
FIELDS_OF = {
    "top": fc.Field("top"),
    "adv": fc.Field("adv"),
    "entropy": fc.Field("entropy", align="sequence"),
    "difficulty": fc.PerRow("difficulty"),
}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_ray(2, logging_level="ERROR"):
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield


def fields_of(rows):
    return {key: field for key, field in FIELDS_OF.items() if key in rows[0]}


def collators(rows, **options):
    """Return a collator in all forms that Ray Data may be given."""
    collate = fc.Collator(pad_token_id=-1, fields=fields_of(rows), **options)
    forms = [collate, collate.for_ray_data()]
    return forms + [pickle.loads(pickle.dumps(form)) for form in forms]


def reference(rows):
    plain = [
        {key: getattr(value, "tolist", lambda v=value: v)() for key, value in row.items()}
        for row in rows
    ]
    return collate_loops(plain, fields=fields_of(rows), pad_token_id=-1)


def name_of(rows):
    return " ".join(rows[0])


@pytest.mark.parametrize("rows", [LISTS, ARRAYS, ONE_SHAPE, TRAILING, FIELDS], ids=name_of)
def test_ray_data(rows):
    data = ray.data.from_items(rows)
    for collate_fn in collators(rows, outputs=list(reference(rows))):
        batches = list(data.iter_torch_batches(batch_size=4, collate_fn=collate_fn))
        assert len(batches) == 3
        for batch, first in zip(batches, (0, 4, 8), strict=True):
            assert_same(batch, reference(rows[first : first + 4]))


def test_batches_are_what_a_model_is_called_with():
    """Ray keeps the items of a batch, and no attributes."""
    data = ray.data.from_items(ARRAYS)
    for collate_fn in collators(ARRAYS):
        (batch,) = data.iter_torch_batches(batch_size=10, collate_fn=collate_fn)
        assert {"input_ids", "attention_mask", "position_ids", "labels"} <= set(batch)
        assert "response_mask" not in batch
        whole = fc.Collator(pad_token_id=-1)(ARRAYS)
        assert_same(batch, whole.model_inputs())


@pytest.mark.parametrize("rows", [ARRAYS, ONE_SHAPE, TRAILING, FIELDS], ids=name_of)
def test_rows_of_several_blocks(rows):
    # Columns of several chunks, each with offsets and shapes of its own.
    data = ray.data.from_items(rows, override_num_blocks=4)
    for collate_fn in collators(rows, outputs=list(reference(rows))):
        (batch,) = data.iter_torch_batches(batch_size=10, collate_fn=collate_fn)
        assert_same(batch, reference(rows))


def test_worker_processes():
    @ray.remote(num_cpus=0)
    class Trainer:
        def batches_of(self, data, collate_fn):
            batches = data.iter_torch_batches(batch_size=4, collate_fn=collate_fn)
            return [{key: value.numpy() for key, value in batch.items()} for batch in batches]

    trainer = Trainer.remote()
    for collate_fn in collators(FIELDS, outputs=list(reference(FIELDS)))[:2]:
        data = ray.data.from_items(FIELDS).iterator()
        batches = ray.get(trainer.batches_of.remote(data, collate_fn), timeout=120)
        for batch, first in zip(batches, (0, 4, 8), strict=True):
            assert_same(batch, reference(FIELDS[first : first + 4]))


@pytest.mark.parametrize("rows", [LISTS, ARRAYS, ONE_SHAPE, TRAILING, FIELDS], ids=name_of)
def test_batches_of_bare_tables_keep_plan_and_names(rows):
    for collate in collators(rows)[:2]:
        tables = ray.data.from_items(rows).iter_batches(batch_size=5, batch_format="pyarrow")
        with fc.prefetch(map(collate, tables), "cpu") as batches:
            for batch, first in zip(batches, (0, 5), strict=True):
                assert_same(batch, reference(rows[first : first + 5]))
                assert batch.plan.num_rows == 5
                if "uid" in rows[0]:
                    assert batch.uids == [row["uid"] for row in rows[first : first + 5]]


def test_bad_samples_are_named():
    rows = [{"prompt": [1], "response": [1, 2], "loss_mask": [1] * (2 - i)} for i in range(2)]
    data = ray.data.from_items(rows)
    for collate_fn in collators(rows):
        with pytest.raises(ValueError, match=r"loss_mask\[1\] has 1 item"):
            list(data.iter_torch_batches(batch_size=2, collate_fn=collate_fn))
