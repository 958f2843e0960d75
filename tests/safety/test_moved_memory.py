"""Memory that moves, or becomes something else, while it is read or compared."""

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from small_input import Acts

import fastcollate as fc

MOVED = "was resized, moved or given another dtype while it was read"

TOKENS = 5000


# Arrays that become something else


def shrink_to_bytes(array):
    """As many items as before, at the same place, of an eighth of the memory."""
    items = len(array)
    array.resize(items // 8, refcheck=False)
    array.dtype = np.int8
    assert array.shape == (items,)


def cast(array):
    array.dtype = np.float64


def spread(array):
    array.strides = (0,)


def shrink(array):
    array.resize(1, refcheck=False)


def grow(array):
    array.resize(100_000, refcheck=False)


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")
@pytest.mark.parametrize("change", [shrink_to_bytes, cast, spread, shrink, grow])
@pytest.mark.parametrize(
    "as_rows", [lambda array: [array], lambda array: fc.Ragged(array, [0, 64])]
)
def test_arrays_that_become_something_else(change, as_rows):
    array = np.arange(64)
    act = Acts(lambda: change(array))
    with pytest.raises(ValueError, match=rf"^responses\[0\] {MOVED}"):
        fc.build_batch([[act]], as_rows(array), pad_token_id=0, array_type="numpy")


@NEEDS_TORCH
@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.share_memory_(),
        lambda tensor: tensor.resize_(100_000),
        lambda tensor: tensor.set_(tensor[:1].clone()),
        lambda tensor: setattr(tensor, "data", tensor.double()),
        lambda tensor: setattr(tensor, "data", tensor.view(tensor.int().dtype)[:64]),
        lambda tensor: setattr(tensor, "data", tensor.as_strided((64,), (0,))),
    ],
    ids=["moved", "grown", "shrunk", "cast", "other_bits", "other_strides"],
)
def test_tensors_that_become_something_else(change, request):
    import torch

    if "other" in request.node.name and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("older torch is read by NumPy's view, which stays as it was")
    tensor = torch.arange(64)
    act = Acts(lambda: change(tensor))
    with pytest.raises(ValueError, match=rf"^responses\[0\] {MOVED}"):
        fc.build_batch([[act]], [tensor], pad_token_id=0, array_type="numpy")


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_arrays_of_another_shape_are_read():
    array = np.arange(64)

    def fold():
        array.shape = (8, 8)

    batch = fc.build_batch([[Acts(fold)]], [array], pad_token_id=0, array_type="numpy")
    assert batch.input_ids.tolist() == [[5, *range(64)]]


# Rows that move while the other one's memory is looked up


def acting_tensor(values, act):
    """A tensor that runs a function on the next access of its memory."""
    import torch

    class Acting(torch.Tensor):
        def data_ptr(self):
            if acts:
                acts.pop()()
            return super().data_ptr()

    acts = []
    return torch.as_tensor(values).as_subclass(Acting), lambda: acts.append(act)


@NEEDS_TORCH
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("policy", ["exact", "branch", "realign"])
def test_rows_that_move_while_the_other_is_looked_up(kind, is_first, policy):
    import torch

    if kind == "numpy":
        victim = np.arange(TOKENS)
        tensor, arm = acting_tensor(victim.copy(), lambda: victim.resize(10**6, refcheck=False))
    else:
        victim = torch.arange(TOKENS)
        tensor, arm = acting_tensor(victim.clone(), victim.share_memory_)
    rows = [victim, tensor] if is_first else [tensor, victim]
    # The first trajectory arms the tensor, when all rows were looked at once.
    prompts = [[Acts(arm)], [5, 6], *rows]
    with pytest.raises(ValueError, match=rf"^prompts\[{3 - is_first}\] {MOVED}"):
        fc.merge_turns(prompts, [[], [], [], [1]], trajectory_ids=[0, 0, 1, 1], policy=policy)


@NEEDS_TORCH
@pytest.mark.parametrize("tokens", [1, 1000, 1024, 1025, 5000])
def test_tensors_are_compared_by_their_values(tokens):
    import torch

    ids = torch.arange(tokens)
    for differs in {0, tokens // 2, tokens - 1, None}:
        other = ids.clone()
        if differs is not None:
            other[differs] = -1
        plan = fc.merge_turns([ids, other], [[], [1]], trajectory_ids=[0, 0])
        assert plan.num_rows == (1 if differs is None else 2)
        breaks = plan.report.breaks
        assert [found.position for found in breaks] == ([] if differs is None else [differs])


@NEEDS_TORCH
def test_tensors_that_move_while_a_collator_reads_other_columns():
    import torch

    ids = torch.arange(2 * TOKENS)
    samples = {
        "input_ids": fc.Ragged(ids, [0, TOKENS, 2 * TOKENS]),
        "prompt_len": [TOKENS - 1, TOKENS - 1],
        "rewards": [Acts(ids.share_memory_), 1.0],
    }
    with pytest.raises(ValueError, match=rf"^sequences\[0\] {MOVED}"):
        fc.Collator(pad_token_id=0, array_type="numpy")(samples)
