"""Inputs that once crashed, hung or gave wrong numbers."""

import os
import subprocess
import sys
import warnings
from collections import deque

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from small_input import Acts, build, good_input, refuses, with_item, with_row

import fastcollate as fc
from fastcollate._fastcollate import stored_columns


def run(code, *, flags=(), env=None):
    """Run code in a Python of its own; give what it printed."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@NEEDS_TORCH
def test_tensors_that_move_while_other_rows_are_read():
    import torch

    tensor = torch.arange(100_000)
    prompts = [[Acts(tensor.share_memory_)], tensor]
    with pytest.raises(ValueError, match=r"prompts\[1\] was resized, moved or given another dtype"):
        fc.build_batch(prompts, [[1], [1]], pad_token_id=0, array_type="numpy")


def test_subclasses_with_methods_of_their_own():
    class Liar(np.ndarray):
        def astype(self, *args, **kwargs):
            return np.zeros(1, np.int64)

    rows = [np.arange(10).astype(">i8").view(Liar)]
    batch = fc.build_batch(rows, [[1]], pad_token_id=0, array_type="numpy")
    assert batch.input_ids.tolist() == [[*range(10), 1]]


@pytest.mark.parametrize("name", ["prompts", "loss_mask", "rewards"])
def test_masked_arrays(name):
    row = np.ma.array(good_input()[name][1], mask=True)
    if name == "prompts":
        row = row.astype(np.int64)
    refuses(with_row(name, row), TypeError, rf"{name}\[1\] is a masked array", "filled")


@pytest.mark.parametrize("item", [np.array("5"), np.array(b"5"), np.void(b"12345678"), np.str_(5)])
def test_text_is_no_number(item):
    refuses(with_item("rewards", item), TypeError, r"rewards\[1\]\[0\] is")


@NEEDS_TORCH
def test_complex_tensors():
    import torch

    with pytest.warns(UserWarning, match="ComplexHalf"):
        row = torch.tensor([1 + 2j, 3 + 4j], dtype=torch.complex32)
    refuses(with_row("rewards", row), TypeError, r"rewards\[1\]")
    refuses(with_item("rewards", torch.tensor(1 + 0j)), TypeError, r"rewards\[1\]\[0\] is")


@NEEDS_TORCH
def test_tensors_on_other_devices_are_named():
    import torch

    numbers = [torch.tensor(1.0, device="meta")] * 3
    refuses({"rewards": numbers}, ValueError, r"^rewards\[0\] could not be read: .*meta")


def test_more_rows_than_memory():
    with pytest.raises(MemoryError, match=f"{2**40} rows"):
        fc.build_batch(np.zeros((2**40, 0), int), [[1]], pad_token_id=0, array_type="numpy")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
def test_a_thread_that_cannot_be_started():
    code = """if True:
        import resource
        import numpy as np
        import fastcollate as fc
        rows = [np.arange(20_000)] * 500
        expected = fc.build_batch(rows, rows, pad_token_id=0, array_type="numpy")
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        batch = fc.build_batch(rows, rows, pad_token_id=0, array_type="numpy")
        assert all((batch[key] == expected[key]).all() for key in batch)
        print("same")
    """
    # A stack larger than the limit of the address space.
    env = {**os.environ, "RUST_MIN_STACK": str(8 << 30)}
    assert run(code, env=env) == "same\n"


def test_torch_that_is_blocked():
    code = """if True:
        import sys
        sys.modules["torch"] = None
        from collections import deque
        import fastcollate as fc
        batch = fc.build_batch(
            deque([[1]]), [[2]], pad_token_id=0, rewards=[1.0], array_type="numpy"
        )
        print(batch.rewards.tolist())
        for act in (lambda: batch.to("cpu"), lambda: batch.to("cuda"), batch.pin_memory):
            try:
                act()
            except TypeError as error:
                print(error)
    """
    message = (
        "the batch holds NumPy arrays, which cannot be on a device; "
        "build it with array_type='torch'"
    )
    assert run(code) == "[[1.0]]\n" + f"{message}\n" * 3


def test_outer_containers_that_are_long_gone():
    rows = deque([[1, 2], [3]])
    batch = fc.build_batch(rows, rows, pad_token_id=0, array_type="numpy")
    rows.clear()
    assert batch.input_ids.tolist() == [[1, 2, 1, 2], [0, 0, 3, 3]]


def test_batches_that_are_no_batches():
    assert not hasattr(fc.Batch({"a": 1}), "plan")
    with pytest.raises(RuntimeError, match="made from a mapping"):
        _ = fc.Batch({"a": 1}).metrics
    with pytest.raises(AttributeError, match="has no attribute '_"):  # and not endless recursion
        _ = fc.Batch.__new__(fc.Batch).input_ids
    assert "1  int" in repr(fc.Batch({1: 2}))
    assert "1" in dir(fc.Batch({1: 2}))
    assert fc.Batch({})._replace(made_by=build().plan).prompt_lens.tolist() == [2, 1, 3]


ROW_TABLES = ("source", "prompt_lens", "response_lens", "is_padding")


def plan_with(**tables):
    return fc.planning.Plan._from_dict({**build().plan.to_dict(), **tables})


def test_plans_of_other_tables():
    plan = build().plan
    assert plan_with(source=[0, 1, 2]) == plan
    assert plan_with(source=np.arange(3, dtype=np.int32)) == plan
    unaligned = np.frombuffer(b"\0" + np.arange(3).tobytes(), np.int64, 3, 1)
    assert plan_with(source=unaligned) == plan


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"source": [0.0, 1.0, 2.0]}, "source must hold signed integers; pass the tables"),
        ({"source": [[0, 1, 2]]}, "source has another number of dimensions"),
        ({"pieces": [0, 1, 2]}, "pieces has another number of dimensions"),
        ({"response_segments": [[0, 0, 1, 0, 0], [1, 0, 2, 1, 1]]}, "leaves the 3 x 2 grid"),
        ({name: np.zeros(0, int) for name in ROW_TABLES}, "no row"),
    ],
)
def test_tables_that_are_no_plan(tables, message):
    with pytest.raises(ValueError, match=message):
        plan_with(**tables)


def test_plans_of_more_tokens_than_can_be_counted():
    lens = [2**62, 2**62, 2**62]
    with pytest.raises(ValueError, match="turns up to 1 have more tokens than can be counted"):
        plan_with(response_lens=lens, turn_response_lens=lens)


def test_plans_of_more_tokens_than_memory():
    lens = [2**61, 2**61, 2**61]
    plan = plan_with(response_lens=lens, turn_response_lens=lens)
    with pytest.raises(MemoryError, match=f"cannot take memory for {3 * 2**61} values"):
        plan.gather_positions(of_sequence=False)


@pytest.mark.parametrize("table", ["sequence_shape", "response_shape"])
@pytest.mark.parametrize("shape", [(2**63 - 1, 1), (1, 2**63 - 1), (0, 2**62), (2**40, 2**20)])
def test_plans_of_grids_larger_than_memory(table, shape):
    name = table.replace("shape", "segments")
    empty = np.zeros((0, 5), np.int64)
    with pytest.raises(ValueError, match="positions exceeds any memory"):
        plan_with(**{table: list(shape), name: empty})


def test_batches_of_other_outputs_than_their_plan():
    batch = build()
    kind, state = batch.__reduce__()
    for wrong in (np.zeros((1, 1), np.int64), np.zeros(7), np.zeros((2**10, 0), np.int64)):
        _, data, *rest = state
        with pytest.raises(ValueError, match=r"input_ids has shape .*, but its plan lays out"):
            kind(type(batch), {**data, "input_ids": wrong}, *rest)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("starts", 5),
        ("lengths", 0),
        ("parents", 7),
        ("parents", -2),
        ("depths", -1),
        ("subtree_ends", 2**62),
        ("leaves", 2**62),
        ("leaves", -5),
    ],
)
def test_nodes_of_other_tables(column, value):
    tree = fc.planning.prefix_tree([[1, 2], [1, 3]], [[4], [5]])
    names = ("starts", "lengths", "parents", "depths", "subtree_ends", "leaves")
    columns = {name: getattr(tree.nodes, name).copy() for name in names}
    assert type(tree.nodes)(**columns) == tree.nodes
    columns[column][-1] = value
    with pytest.raises(ValueError, match="not a valid tree"):
        type(tree.nodes)(**columns)
    with pytest.raises(ValueError, match="not of one length"):
        type(tree.nodes)(**{**columns, "lengths": columns["lengths"][:-1]})


def test_comparisons_hold_under_optimisation():
    code = """if True:
        import numpy as np
        from fastcollate.testing.reference import assert_same
        try:
            assert_same({"a": np.zeros(1, int)}, {"a": np.zeros(1)})
        except AssertionError:
            print("differs")
    """
    assert run(code, flags=["-O"]) == "differs\n"


def test_rewards_in_an_arrow_array_that_points_past_its_values():
    # Asked for its first item, Arrow's library ends the process.
    code = """if True:
        import pyarrow as pa
        import fastcollate as fc
        place, size = pa.array([2**31 - 1], pa.int32()), pa.array([1], pa.int32())
        rewards = pa.ListViewArray.from_arrays(place, size, pa.array([1.0]))
        try:
            fc.build_batch([[1]], [[2]], pad_token_id=0, rewards=rewards, array_type="numpy")
        except ValueError as error:
            print(error)
    """
    pytest.importorskip("pyarrow")
    assert run(code).startswith("rewards could not be read")


def test_booleans_of_numpy_in_lists():
    field = fc.Field([[np.True_], [np.False_, 1], [True, np.True_]], dtype="bool")
    batch = build(fields={"field": field}, layout="right")
    assert batch.field.tolist() == [[True, False], [False, True], [True, True]]


class Index:
    def __index__(self):
        return 8


def test_widths_that_only_stand_for_numbers():
    assert build(layout=fc.Left(pad_to=Index(), multiple_of=Index())).input_ids.shape == (3, 8)


@pytest.mark.parametrize(
    ("field", "exception", "message"),
    [
        (
            fc.PerRow([np.array([300])] * 3, dtype="uint8"),
            ValueError,
            r"f\[0\]\[0\] is 300, .* uint8; pass",
        ),
        (fc.PerRow([np.array([1.5])] * 3, dtype="int64"), ValueError, r"f\[0\]\[0\] is 1.5"),
        (fc.PerRow([[2**40]] * 3, dtype="int8"), ValueError, r"f\[0\]\[0\] is 1099511627776"),
        (fc.PerRow([np.ones(1)] * 3, dtype=""), TypeError, "dtype"),
        (fc.PerRow([[1], [[1], [2, 3]], [1]]), ValueError, r"f\[1\] cannot be read"),
        (fc.PerRow([np.ma.array([1], mask=[True])] * 3), TypeError, r"f\[0\] is a masked array"),
        (fc.Field([[1], [2, 3], [4, 5]], fill="x"), TypeError, "fill of f is 'x'"),
        (
            fc.Field([[1], [2, 3], [4, 5]], fill=10**400),
            ValueError,
            "f has fill=an integer of 1329 bits",
        ),
        (fc.RoutedExperts([], num_experts=2**63), ValueError, "num_experts of f is 92233720368"),
        (fc.RoutedExperts([], num_experts=1.0), TypeError, "num_experts of f is 1.0"),
    ],
    ids=str,
)
def test_odd_arguments_of_fields(field, exception, message):
    refuses({"fields": {"f": field}}, exception, message)


@NEEDS_TORCH
def test_nested_tensors_that_are_not_jagged_are_lists_of_rows():
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        rows = torch.nested.nested_tensor([torch.ones(1), torch.ones(2), torch.ones(2)])
    assert build(logprobs=rows).logprobs.tolist() == [[0, 1], [1, 1], [1, 1]]


@pytest.mark.parametrize("values", [["a", "b", "c"], [None, 1, 2], np.ma.ones(3)], ids=str)
def test_what_cannot_be_broadcast(values, array_type):
    with pytest.raises(TypeError, match="per_row is a"):
        build(array_type=array_type).broadcast(values)


def test_a_field_of_any_length_in_jagged_rows():
    """No function makes such a field, but an altered pickle may contain one."""
    batch = fc.build_batch(
        [[1], [2, 3]], [[4], [5, 6]], pad_token_id=0, loss_mask=[[1], [1, 1]], array_type="numpy"
    )
    make, arguments = batch.__reduce__()[:2]
    restore, given = batch.spec.fields[0].__reduce__()[:2]
    changed = restore(*given[:6], True, *given[7:])
    spec = batch.spec._replace(fields=[changed])
    spoilt = make(*(spec if one is batch.spec else one for one in arguments))
    with pytest.raises(ValueError, match="any length"):
        spoilt.to_layout("jagged")


def test_parts_of_plans_are_checked():
    plan = fc.build_batch([[1, 2]], [[3]], pad_token_id=0, array_type="numpy").plan
    with pytest.raises(ValueError, match="block_size is 0"):
        plan.block_tables(0, None)
    for bin_ in (1, 2**62):
        with pytest.raises(ValueError, match=f"there is no output row {bin_}"):
            plan.of_bin(bin_, 1)
    for multiple_of, width in ((0, 3), (1, 3), (4, 3), (2**63, 3)):
        assert plan.of_bin(0, multiple_of).width == width
    assert stored_columns([]) == []


def test_nulls_of_arrow_are_named():
    pa = pytest.importorskip("pyarrow")
    for numbers in (pa.array([1.0, None]), pa.chunked_array([pa.array([1]), pa.nulls(1, "int64")])):
        for name in ("rewards", "advantages"):
            with pytest.raises(ValueError, match=rf"{name}\[1\] is null; fill or drop nulls first"):
                fc.build_batch(
                    [[1], [2]], [[3], [4]], pad_token_id=0, array_type="numpy", **{name: numbers}
                )
        with pytest.raises(ValueError, match="lengths has 1 null; fill or drop nulls first"):
            fc.planning.partition(numbers, 2)
