"""Packed batches come from the workers of a DataLoader with few descriptors, however many bins."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import fastcollate as fc

torch = pytest.importorskip("torch")

BINS = 300
KEYS = ("row_cu_seqlens", "row_cu_seqlens_padded")


def packed(bins=BINS, **options):
    prompts = [[1 + row % 5] * (1 + row % 3) for row in range(2 * bins)]
    responses = [[7] * (1 + row % 4) for row in range(2 * bins)]
    lists = [[row, row + bins] for row in range(bins)]
    return fc.build_batch(
        prompts, responses, pad_token_id=0, layout=fc.Packed(plan=lists, multiple_of=4), **options
    )


def check(found, expected):
    for key in KEYS:
        assert type(found[key]) is type(getattr(found, key)) is list
        assert len(found[key]) == len(expected[key])
        for one, other in zip(found[key], expected[key], strict=True):
            assert type(one) is type(other)
            assert str(one.dtype).endswith("int32")
            assert one.tolist() == other.tolist()
    assert {key: type(value) for key, value in dict(found).items()} == {
        key: type(value) for key, value in expected.items()
    }


@pytest.mark.parametrize("array_type", ["torch", "numpy"])
def test_pickled_lists_are_lists_again(array_type):
    batch = packed(array_type=array_type)
    once = pickle.loads(pickle.dumps(batch))
    check(once, batch)
    check(pickle.loads(pickle.dumps(once)), batch)
    check(packed(1), packed(1))
    once.row_cu_seqlens[0] = once.row_cu_seqlens[0] + 1
    changed = pickle.loads(pickle.dumps(once)).row_cu_seqlens[0]
    assert changed.tolist() == [1 + place for place in batch.row_cu_seqlens[0].tolist()]


def test_a_list_of_tensors_is_pickled_as_one():
    batch = packed()
    tensors = sum(isinstance(value, torch.Tensor) for value in batch.values())
    before, seen = torch.Tensor.__reduce_ex__, []
    try:
        torch.Tensor.__reduce_ex__ = lambda self, p: seen.append(0) or before(self, p)
        pickle.dumps(batch)
    finally:
        torch.Tensor.__reduce_ex__ = before
    assert len(seen) == tensors + len(KEYS)


def test_lists_that_cannot_be_joined_stay_as_they_are():
    mixed = [torch.zeros(2), torch.zeros(3, dtype=torch.int64), torch.tensor(1), "text"]
    batch = fc.Batch({"mixed": mixed, "images": [torch.ones(2, 3), torch.zeros(1, 3)], "none": []})
    again = pickle.loads(pickle.dumps(batch))
    assert [value if isinstance(value, str) else value.tolist() for value in again["mixed"]] == [
        [0, 0],
        [0, 0, 0],
        1,
        "text",
    ]
    assert [value.tolist() for value in again["images"]] == [[[1] * 3] * 2, [[0] * 3]]
    assert again["none"] == []


WORKERS = dedent(
    """
    import resource
    import fastcollate as fc
    from torch.utils.data import DataLoader
    from test_packed_workers import check, packed

    def build(rows):
        return packed() if rows[0] % 4 else dict(packed())

    if __name__ == "__main__":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, hard))
        loader = DataLoader(range(8), batch_size=2, num_workers=2, collate_fn=build)
        found = list(loader)
        for batch in found:
            batch = fc.Batch(batch) if isinstance(batch, dict) else batch
            check(batch, packed())
            check(batch.to("cpu"), packed())
            assert batch.input_ids.equal(packed().input_ids)
        print(len(found))
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted as on Linux")
def test_workers_send_few_descriptors(tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    out = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert out.stdout == "4\n", out.stderr[-2000:]
