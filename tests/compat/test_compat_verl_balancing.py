"""compat.verl balances as verl does, with the same results, ties and exceptions."""

import inspect
import multiprocessing

import numpy as np
import pytest
from outcomes import outcome
from raising import raises
from recorded import recorded

import fastcollate as fc
from fastcollate.compat import verl
from frameworks.verl import rearrange_loops

torch = pytest.importorskip("torch")

GOLDEN = recorded("verl_partitions")
ERRORS = {"AssertionError": AssertionError, "ValueError": ValueError}


# Partitions


@pytest.mark.parametrize("case", GOLDEN["partitions"])
def test_partitions_are_those_of_verl(case):
    weights = torch.tensor(case["weights"], dtype=getattr(torch, case["dtype"]))
    args = case["k"], case["equal_size"]
    for given_as in (weights, weights.numpy(), list(weights)):
        assert verl.karmarkar_karp(given_as, *args) == case["parts"]
        expected = [sorted(part) for part in case["parts"]]
        assert verl.get_seqlen_balanced_partitions(given_as, *args) == expected


@pytest.mark.parametrize(
    ("args", "error"),
    [
        # Errors of verl itself.
        (([], 1, False), (IndexError, AssertionError)),
        (([], 1, True), (IndexError, AssertionError)),
        (([1, 2], 3, False), ([[1], [0], []], AssertionError)),
        (([1, 2, 3], 2, True), (AssertionError, AssertionError)),
        (([1, 2], 0, False), (IndexError, IndexError)),
        (([1, 2], 0, True), (ZeroDivisionError, ZeroDivisionError)),
        (([1, 2], -1, False), (IndexError, IndexError)),
        (([1, 2], -1, True), (IndexError, IndexError)),
        (([1, 2, 3], -2, True), (AssertionError, AssertionError)),
        # Checked by fastcollate only.
        (([1, -2], 1, False), (ValueError, ValueError)),
        (([1, float("nan")], 1, False), (ValueError, ValueError)),
    ],
)
def test_errors(args, error):
    found = outcome(verl.karmarkar_karp, *args)
    assert (found, outcome(verl.get_seqlen_balanced_partitions, *args)) == error


def test_signatures():
    names = "batch max_token_len dp_group num_batches_divided_by same_micro_num_in_dp"
    names += " min_num_micro_batch use_dynamic_bsz_balance force_group_size"
    parameters = inspect.signature(verl.rearrange_micro_batches).parameters
    assert list(parameters) == names.split()
    assert [p.default for p in parameters.values()][2:] == [None, None, True, None, True, 1]
    for function in (verl.karmarkar_karp, verl.get_seqlen_balanced_partitions):
        names = ["seqlen_list", "k_partitions", "equal_size"]
        assert list(inspect.signature(function).parameters) == names


# Micro-batches


def padded(lengths, width=None, dtype=torch.int64):
    """Make a dict of a left-padded batch, in which a row's tokens are its number."""
    width = max([*lengths, 0]) if width is None else width
    places = torch.arange(width) >= width - torch.tensor(lengths, dtype=torch.int64)[:, None]
    ids = torch.arange(len(lengths))[:, None] * places
    return {"input_ids": ids, "attention_mask": places.to(dtype)}


def nested(lengths):
    rows = [torch.full((length,), row) for row, length in enumerate(lengths)]
    return {"input_ids": torch.nested.nested_tensor(rows, layout=torch.jagged)}


def rows_in(micro_batch):
    """Tell the rows of a micro-batch by their tokens."""
    ids = micro_batch["input_ids"]
    if isinstance(ids, fc.Ragged):
        return [row[0] for row in ids.to_list()]
    return [int(row.max()) for row in (ids.unbind() if torch.is_tensor(ids) else ids)]


@pytest.mark.parametrize("case", GOLDEN["micro_batches"])
def test_micro_batches_are_those_of_verl(case):
    lengths, options = case["lengths"], case["options"]
    arrays = {key: value.numpy() for key, value in padded(lengths).items()}
    ragged = {"input_ids": fc.ragged([[row] * n for row, n in enumerate(lengths)])}
    for batch in (
        padded(lengths),
        padded(lengths, dtype=torch.bool),
        nested(lengths),
        arrays,
        ragged,
    ):
        found = outcome(verl.rearrange_micro_batches, batch, case["max_token_len"], **options)
        if "error" in case:
            assert found is ERRORS[case["error"]]
            continue
        micro_batches, indices = found
        assert indices == case["indices"]
        assert list(map(rows_in, micro_batches)) == indices


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_all_that_has_rows_is_picked():
    lengths = [3, 1, 2, 2]
    two = torch.nested.nested_tensor_from_jagged(
        torch.arange(16).reshape(2, 8), torch.tensor([0, 3, 4, 6, 8]), jagged_dim=2
    )
    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(9), torch.tensor([0, 4, 5, 7, 9]), torch.tensor(lengths)
    )
    batch = {
        **nested(lengths),
        "positions": two,
        "holes": holes,
        "strided": torch.nested.nested_tensor([torch.full((n,), n) for n in lengths]),
        "ragged": fc.ragged([[n] * n for n in lengths]),
        "array": np.arange(8).reshape(4, 2),
        "tensor": torch.arange(4),
        "uids": list("abcd"),
        "pair": (1, 2),
        "number": 4,
        "none": None,
        "temperature": torch.tensor(1.0),
        "table": torch.zeros(3, 4),
    }
    micro_batches, indices = verl.rearrange_micro_batches(batch, 4)
    assert sorted(row for rows in indices for row in rows) == [0, 1, 2, 3]
    for micro_batch, rows in zip(micro_batches, indices, strict=True):
        assert micro_batch.keys() == batch.keys()
        for key in ("positions", "holes", "strided"):
            assert micro_batch[key].layout is torch.jagged
            parts = [part.tolist() for part in micro_batch[key].unbind()]
            assert parts == [batch[key].unbind()[row].tolist() for row in rows]
            # As wide as the longest row, not as all tokens.
            assert micro_batch[key].to_padded_tensor(0).shape[-1] == max(lengths[i] for i in rows)
        assert micro_batch["ragged"].to_list() == [[lengths[row]] * lengths[row] for row in rows]
        assert micro_batch["array"].tolist() == [[2 * row, 2 * row + 1] for row in rows]
        assert micro_batch["tensor"].tolist() == rows
        assert micro_batch["uids"] == ["abcd"[row] for row in rows]
        for key in ("pair", "number", "none", "temperature", "table"):
            assert micro_batch[key] is batch[key]


def test_a_batch(array_type):
    lengths = [3, 1, 2, 2]
    rows = [[row] * n for row, n in enumerate(lengths)]
    for layout in ("left", "two_segment", "jagged"):
        batch = fc.build_batch(
            rows, rows, pad_token_id=0, layout=layout, array_type=array_type, uids=list("abcd")
        )
        micro_batches, indices = verl.rearrange_micro_batches(batch, 8)
        doubled = nested([2 * n for n in lengths])
        assert indices == verl.rearrange_micro_batches(doubled, 8)[1]
        for micro_batch, rows_of in zip(micro_batches, indices, strict=True):
            assert isinstance(micro_batch, fc.Batch)
            assert micro_batch.uids == ["abcd"[row] for row in rows_of]
        # The longest row counts, not how wide the batch is.
        with pytest.raises(AssertionError, match="max_token_len is 5"):
            verl.rearrange_micro_batches(batch, 5)


def test_a_tensordict():
    tensordict = pytest.importorskip("tensordict")
    lengths = [3, 1, 2, 2]
    batch = tensordict.TensorDict(
        {**padded(lengths), "positions": nested(lengths)["input_ids"]}, batch_size=[4]
    )
    batch["meta"] = tensordict.NonTensorData({"step": 3})
    batch["uids"] = tensordict.NonTensorStack(*"abcd")
    micro_batches, indices = verl.rearrange_micro_batches(batch, 4)
    assert list(map(rows_in, micro_batches)) == indices
    for micro_batch, rows in zip(micro_batches, indices, strict=True):
        assert isinstance(micro_batch, tensordict.TensorDict)
        assert micro_batch.batch_size == torch.Size([len(rows)])
        assert micro_batch["meta"] == {"step": 3}
        assert list(micro_batch["uids"]) == ["abcd"[row] for row in rows]
        expected = [torch.full((lengths[row],), row).tolist() for row in rows]
        assert [row.tolist() for row in micro_batch["positions"].unbind()] == expected


def test_rows_without_tokens():
    batch = {"input_ids": torch.zeros(3, 2), "attention_mask": torch.zeros(3, 2, dtype=torch.int64)}
    assert verl.rearrange_micro_batches(batch, 2)[1] == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("batch", "args", "message"),
    [
        (padded([]), (4,), "batch has no rows"),
        (
            padded([3], 5),
            (4,),
            "AssertionError: max_token_len is 4, but the batch has a width of 5",
        ),
        (padded([3]), (4.0,), "TypeError: max_token_len is 4.0"),
        (padded([3, 1]), (4, None, 2, True, 3), "needs 4 micro-batches"),
        (padded([3]), (4, None, 0), "num_batches_divided_by is 0"),
        (padded([3]), (4, None, None, True, 1.5), "TypeError: min_num_micro_batch is 1.5"),
        (padded([3]), (4, None, None, True, None, True, 0), "force_group_size is 0"),
        # Made in the test: torch's first nested tensor imports its compiler.
        ([3, 3], (4, None, None, True, None, True, 2), "have 6 tokens"),
        (3, (4,), "TypeError: batch is 3"),
        ({"input_ids": torch.zeros(2, 3)}, (4,), "KeyError: attention_mask"),
        ({**padded([3]), "attention_mask": [[1]]}, (4,), "TypeError: attention_mask is"),
        (
            {**padded([3, 1]), "attention_mask": torch.tensor([[1, 1, 1], [-1, -1, -1]])},
            (4,),
            r"^attention_mask\[1\] has the sum -3; pass 1 for tokens and 0 for padding$",
        ),
        (
            padded([3], dtype=torch.float32),
            (4,),
            r"TypeError: ^attention_mask is float32 Tensor of shape \(1, 3\); pass integers or",
        ),
        (
            {**padded([1]), "attention_mask": np.array([[np.nan]])},
            (4,),
            r"TypeError: ^attention_mask is float64 ndarray",
        ),
    ],
)
def test_bad_input(batch, args, message):
    batch = nested(batch) if isinstance(batch, list) else batch
    with raises(message):
        verl.rearrange_micro_batches(batch, *args)


# Ranks that have to agree

RANKS = [
    # Tokens of two ranks' rows, the limit, and options.
    ([[6, 6, 6, 1, 1], [1, 1, 1, 1, 1]], 10, {}),
    ([[6, 6, 6, 1, 1], [1, 1, 1, 1, 1]], 10, {"same_micro_num_in_dp": False}),
    ([[6, 5, 5, 6, 4, 4], [9, 9, 9, 1, 1, 1]], 10, {"num_batches_divided_by": 2}),
    ([[6, 6, 6, 6, 6, 6], [1, 1]], 10, {}),
    ([[6, 6, 6, 6, 6, 6], [1, 1, 1, 1, 1]], 10, {}),
    ([[4, 4, 4, 4], [4, 4, 4, 7]], 10, {"force_group_size": 2}),
    ([[4, 4, 4, 4], [4, 4, 4, 4, 5]], 10, {"force_group_size": 2}),
    ([[4, 4, 4, 4], [12, 4]], 10, {}),
    (np.random.default_rng(0).integers(1, 30, (2, 40)).tolist(), 40, {}),
    (np.random.default_rng(1).integers(1, 30, (2, 40)).tolist(), 40, {"num_batches_divided_by": 3}),
]


def rank_main(rank, store, queue):
    from torch import distributed

    store = distributed.FileStore(store, 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    group = distributed.group.WORLD
    for lengths, limit, options in RANKS:
        found = outcome(
            verl.rearrange_micro_batches, nested(lengths[rank]), limit, group, **options
        )
        queue.put((rank, found if isinstance(found, type) else found[1]))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_get_the_same_number_of_micro_batches(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch is built without distributed")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [
        context.Process(target=rank_main, args=(rank, str(tmp_path / "store"), queue), daemon=True)
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    found = {0: [], 1: []}
    for _ in range(2 * len(RANKS)):
        rank, result = queue.get(timeout=120)
        found[rank].append(result)
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    for (lengths, limit, options), *results in zip(RANKS, found[0], found[1], strict=True):
        size = options.get("force_group_size", 1)
        if any(len(each) % size or max(each) > limit for each in lengths):
            assert results == [ValueError, AssertionError]
        elif not options.get("same_micro_num_in_dp", True):
            assert results == [rearrange_loops([each], limit)[0] for each in lengths]
        else:
            options = {name: options[name] for name in options if name != "same_micro_num_in_dp"}
            expected = rearrange_loops(lengths, limit, **options)
            assert results == ([ValueError] * 2 if expected is None else expected)
