"""compat.verl splits DataProtos, restores their order and balances prompt groups as verl does."""

import inspect

import numpy as np
import pytest
from outcomes import outcome
from raising import raises
from recorded import recorded

import fastcollate as fc
from fastcollate.compat import verl
from frameworks.installed import DataProto, real
from frameworks.verl import group_balanced_loops

torch = pytest.importorskip("torch")

GROUPS = recorded("verl_groups")["groups"]
MICRO_BATCHES = recorded("verl_partitions")["micro_batches"]

there = real("verl.utils.seqlen_balancing")


@pytest.mark.skipif(there is None, reason="make peers")
@pytest.mark.parametrize(
    "name",
    [
        "calculate_workload",
        "get_group_balanced_partitions",
        "prepare_dynamic_batch",
        "restore_dynamic_batch",
    ],
)
def test_signatures(name):
    own = inspect.signature(getattr(verl, name)).parameters.values()
    expected = inspect.signature(getattr(there, name)).parameters.values()
    assert [(p.name, p.default) for p in own] == [(p.name, p.default) for p in expected]


# Costs


def test_costs_of_numbers():
    assert verl.calculate_workload(3) == 3 * 24_576 + 9
    assert verl.calculate_workload(np.int64(3)) == 3 * 24_576 + 9
    assert verl.calculate_workload(np.array([3])).tolist() == [3 * 24_576 + 9]
    assert verl.calculate_workload(torch.tensor([3.0], dtype=torch.float16)).dtype is torch.float16
    with pytest.raises(TypeError, match=r"seqlen_list is \[1, 2\]"):
        verl.calculate_workload([1, 2])


# Groups


@pytest.mark.parametrize("case", GROUPS)
def test_groups_are_those_of_verl(case):
    lengths, uids, k = case["lengths"], case["uids"], case["k"]
    expected = AssertionError if case["parts"] is None else case["parts"]
    for of_rows in (lengths, torch.tensor(lengths), np.array(lengths, np.int32)):
        assert outcome(verl.get_group_balanced_partitions, of_rows, uids, k) == expected
    port = group_balanced_loops(lengths, uids, k)
    assert port == case["parts"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([1, 2], ["a"], 1), "AssertionError: seqlen_list has 2 items, but uid_list has 1"),
        (([1, 2], ["a", "a"], 2), "AssertionError: uid_list has 1 groups, but k_partitions is 2"),
        (([1, 2, 3], list("abc"), 2), "AssertionError: which k_partitions=2 does not divide"),
        (([1], ["a"], 0), "ZeroDivisionError: by zero"),
        (([-1], ["a"], 1), r"seqlen_list\[0\] is -1"),
        (([1.0], ["a"], 1), "TypeError: seqlen_list"),
        (([1], "a", 1), "TypeError: uid_list is 'a'"),
    ],
)
def test_bad_groups(args, message):
    with raises(message):
        verl.get_group_balanced_partitions(*args)


# Micro-batches


def padded(lengths):
    """Make a left-padded batch, in which a row's tokens are its number."""
    width = max([*lengths, 0])
    places = torch.arange(width) >= width - torch.tensor(lengths, dtype=torch.int64)[:, None]
    ids = torch.arange(len(lengths))[:, None] * places
    return {"input_ids": ids, "attention_mask": places.to(torch.int64)}


def data_proto(lengths):
    uids = np.array([f"row {row}" for row in range(len(lengths))], dtype=object)
    meta_info = {"temperature": 1.0, "steps": [3]}
    return DataProto(padded(lengths), {"uid": uids, "turns": np.arange(len(uids))}, meta_info)


@pytest.mark.parametrize("case", MICRO_BATCHES)
def test_micro_batches_are_those_of_verl(case):
    options = dict(case["options"])
    if options.pop("force_group_size", 1) > 1:
        return
    lengths, limit = case["lengths"], case["max_token_len"]
    found = outcome(verl.prepare_dynamic_batch, data_proto(lengths), limit, **options)
    if "error" in case:
        assert found.__name__ == case["error"]
        return
    assert found[1] == case["indices"]
    assert_parts(data_proto(lengths), *found)


def assert_parts(batch, micro_batches, indices):
    for micro_batch, rows in zip(micro_batches, indices, strict=True):
        assert type(micro_batch) is DataProto
        for key, value in batch.batch.items():
            assert torch.equal(micro_batch.batch[key], value[rows])
        for key, value in batch.non_tensor_batch.items():
            assert micro_batch.non_tensor_batch[key].tolist() == value[rows].tolist()
            assert micro_batch.non_tensor_batch[key].dtype == value.dtype
        assert micro_batch.meta_info == batch.meta_info
        assert micro_batch.meta_info["steps"] is not batch.meta_info["steps"]


def test_all_other_batches():
    lengths = [3, 1, 2, 2]
    expected = verl.rearrange_micro_batches(padded(lengths), 4)
    micro_batches, indices = verl.prepare_dynamic_batch(padded(lengths), 4)
    assert indices == expected[1]
    for found, one in zip(micro_batches, expected[0], strict=True):
        assert torch.equal(found["input_ids"], one["input_ids"])
    rows = [[row] * n for row, n in enumerate(lengths)]
    batch = fc.build_batch(rows, rows, pad_token_id=0)
    micro_batches, _ = verl.prepare_dynamic_batch(batch, 8)
    assert all(isinstance(one, fc.Batch) for one in micro_batches)
    with pytest.raises(TypeError, match="batch is 3"):
        verl.prepare_dynamic_batch(3, 4)


def test_a_data_proto_of_a_tensordict():
    tensordict = pytest.importorskip("tensordict")
    batch = data_proto([3, 1, 2, 2])
    batch.batch = tensordict.TensorDict(batch.batch, batch_size=[4])
    assert_parts(batch, *verl.prepare_dynamic_batch(batch, 4))


# Restored order


def test_rows_of_any_container_are_restored():
    parts, order = [[2, 0], [1]], [1, 2, 0]
    tall = torch.randn(2, 3, dtype=torch.float64)
    for data in (torch.arange(3), tall.T, torch.randn(3, 2, 2)):
        found = verl.restore_dynamic_batch(data, parts)
        assert torch.equal(found, data[order])
        as_array = verl.restore_dynamic_batch(data.numpy(), parts)
        assert isinstance(as_array, np.ndarray)
        assert as_array.tolist() == found.tolist()
    rows = [[2, 2], [], [1]]
    found = verl.restore_dynamic_batch(fc.ragged(rows, "int64"), parts)
    assert found.to_list() == [rows[place] for place in order]


def test_gradients_flow():
    data = torch.randn(3, 2, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0])
    (verl.restore_dynamic_batch(data, [[2, 0], [1]]) * weights[:, None]).sum().backward()
    assert data.grad[:, 0].tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ([[0, 1]], AssertionError, "batch_idx_list has 2 rows, but data has 3"),
        ([[0, 1], [3]], IndexError, "batch_idx_list has row 3, but there are 3"),
        ([[0, 1], [1]], ValueError, "row 2 is missing"),
        ([[0, 1], [2.5]], TypeError, r"batch_idx_list is 2\.5"),
    ],
)
def test_bad_indices(indices, error, message):
    with pytest.raises(error, match=message):
        verl.restore_dynamic_batch(torch.zeros(3), indices)
    if there and error is not ValueError:
        with pytest.raises(error):
            there.restore_dynamic_batch(torch.zeros(3), indices)


def test_restoring_something_else():
    with pytest.raises(TypeError, match="data is 3"):
        verl.restore_dynamic_batch(3, [[0]])
