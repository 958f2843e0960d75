"""Collator in Ray Data: by Arrow tables, and by NumPy arrays, with rows as Ray keeps them."""

import pickle
import warnings

import numpy as np
import pytest

import fastcollate as fc
from fastcollate.testing.reference import assert_same, collate_loops

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")  # which needs pandas

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


@pytest.fixture(scope="module")
def cluster():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init("local", num_cpus=1, logging_level="ERROR", object_store_memory=100 << 20)
        yield
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [LISTS, ARRAYS, ONE_SHAPE, TRAILING])
def test_ray_data(rows, cluster):
    ray.data.DataContext.get_current().enable_progress_bars = False
    fields = {"top": fc.Field("top")} if "top" in rows[0] else {}
    collate = fc.Collator(pad_token_id=-1, fields=fields)
    data = ray.data.from_items(rows)
    for collate_fn in (collate, collate.for_ray_data(), pickle.loads(pickle.dumps(collate))):
        batches = list(data.iter_torch_batches(batch_size=4, collate_fn=collate_fn))
        assert len(batches) == 3
        for batch, first in zip(batches, (0, 4, 8), strict=True):
            plain = [
                {key: getattr(value, "tolist", lambda v=value: v)() for key, value in row.items()}
                for row in rows[first : first + 4]
            ]
            assert_same(batch, collate_loops(plain, fields=fields, pad_token_id=-1))
    tables = data.iter_batches(batch_size=4, batch_format="pyarrow")
    for batch, expected in zip(map(collate, tables), batches, strict=True):
        assert_same(batch, expected)
