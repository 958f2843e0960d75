"""Past bugs of packing: each case failed before its fix."""

import numpy as np
import pytest
from making import make_batch

import fastcollate as fc
from fastcollate.compat.verl import karmarkar_karp
from fastcollate.testing.reference import assert_same

PROMPTS = [[1], [1], [1]]
RESPONSES = [[5, 6], [7, 8, 9], [3, 4]]
LENGTHS = ([1, 1, 1], [2, 3, 2])


@pytest.mark.parametrize(
    "plan",
    [
        lambda cost: (
            fc.planning.pack([3, 4, 5], fc.Packed(100, max_cost=1e9, cost=cost)).sequence_lengths
        ),
        lambda cost: fc.planning.micro_batches([3, 4, 5], 100, cost=cost).lengths,
    ],
)
def test_a_cost_function_that_works_in_place(plan):
    def cost(lengths):
        lengths *= lengths
        return lengths

    assert plan(cost).tolist() == [3, 4, 5]


@pytest.mark.parametrize("rows", [2**24, 2**40, 2**58])
def test_a_plan_of_more_rows_than_bins(rows):
    batch = make_batch([[1]], [[2]], layout=fc.Packed.single_row())
    tables = batch.plan.to_dict()
    tables["sequence_shape"] = tables["response_shape"] = np.array([rows, 2])
    with pytest.raises(ValueError, match=r"not a valid plan|exceeds any memory"):
        type(batch.plan)._from_dict(tables)


@pytest.mark.parametrize("parts", [2**33, 2**62, 2**64 - 1, 2**64])
def test_more_parts_than_lists(parts):
    with pytest.raises(ValueError, match=f"k_partitions is {parts}"):
        karmarkar_karp([1, 2, 3], parts, False)


def test_swaps_come_to_an_end():
    lengths = 1.001 ** np.arange(30_000)
    assert len(fc.planning.partition(lengths, 2, algorithm="lpt_swap")) == 2


def test_no_two_of_more_than_half_share_a_micro_batch():
    assert fc.planning.micro_batches([51] * 8_000, 100).per_rank == 8_000


@pytest.mark.parametrize(
    "options", [{"bins_multiple_of": 2**40}, {"min_bins": 2**62}, {"min_bins": -5}]
)
def test_numbers_of_bins_that_no_step_can_have(options):
    with pytest.raises(ValueError, match="bins"):
        fc.plan_step([1, 2, 3], layout=fc.Packed(10, **options))


@pytest.mark.parametrize(
    "tables",
    [
        ([0, 2], [0, 1], [0, 0], [2**63 - 1] * 2, 2, 10),
        ([0, 1], [0], [0], [2**62 + 1], 1, 10),
        ([0, 2], [0, 0], [0, 2**63 - 1], [2**63 - 1, 1], 1, 10),
        ([0, 1], [0], [0], [1], 1, 10, 2**62),
    ],
)
def test_plans_of_bins_that_would_overflow(tables):
    with pytest.raises(ValueError, match="not a valid bin plan"):
        fc.planning.BinPlan(*tables)


def test_a_plan_keeps_nothing_that_others_can_write():
    base = np.array([0, 1, 2])
    view = base[:]
    view.flags.writeable = False
    plan = fc.planning.BinPlan(view, [0, 1], [0, 0], [3, 4], 2, 10)
    base[1] = 2
    assert plan.bins == [[0], [1]]


def test_places_are_rounded_up_as_planned():
    step = fc.plan_step(LENGTHS, dp_size=1, layout=fc.Packed(12))
    columns = {"prompts": PROMPTS, "responses": RESPONSES, "pad_token_id": 0}
    with pytest.raises(ValueError, match=r"layout is Packed\(capacity=12, multiple_of=8\)"):
        fc.build_batch(**columns, shard=step.shard(0, 0), layout=fc.Packed(12, multiple_of=8))
    with pytest.raises(ValueError, match="multiple_of is 8"):
        fc.Packed(plan=fc.planning.pack([3, 4, 3], fc.Packed(12)), multiple_of=8)


def test_a_value_without_a_place_is_checked_all_the_same():
    """The first token of a part: its weight is not written, but has to be one."""
    arguments = {
        "prompts": [[], [1]],
        "responses": [[2], [3, 4]],
        "pad_token_id": 0,
        "layout": fc.Packed(2, algorithm="concat"),
        "array_type": "numpy",
    }
    for masks, place in (([["x"], [1, 1]], r"\[0\]\[0\]"), ([[1], ["x", 1]], r"\[1\]\[0\]")):
        with pytest.raises(TypeError, match=rf"loss_mask{place}"):
            fc.build_batch(**arguments, loss_mask=masks)
    batch = fc.build_batch(**arguments, loss_mask=[[1], [1, 1]])
    assert batch.loss_mask.sum() == batch.response_mask.sum() - 2


def test_lists_that_are_read_in_another_order():
    """Their memory is asked for ahead; only a sanitizer sees that of others being read."""
    prompts = [[1] * length for length in (5, 50, 7, 300, 9, 40, 100, 3)]
    options = {"pad_token_id": 0, "layout": fc.Packed(400)}
    arrays = fc.build_batch([np.array(row) for row in prompts], [[1, 2]] * 8, **options)
    assert_same(fc.build_batch(prompts, [[1, 2]] * 8, **options), arrays)
