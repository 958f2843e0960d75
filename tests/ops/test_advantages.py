"""Step-wise advantages, what they are normalised by, and results without padding."""

import dataclasses
import re

import numpy as np
import pytest
from advantage_loops import drop_padding_loops, loss_normalizers_loops, normalize_loops
from conftest import NEEDS_TORCH, share
from gathering import like
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from making import make_batch
from raising import raises

import fastcollate as fc

normalized, loss_normalizers = fc.Batch.normalize, fc.Batch.loss_normalizers

BOUNDARIES = ["mini_batch", "batch", "prompt"]
DTYPES = ["float16", "float32", "float64"]


@dataclasses.dataclass(frozen=True, eq=False)
class Slots:
    """The part of a step plan that this module reads."""

    rows: np.ndarray
    is_padding: np.ndarray
    mini_batch_offsets: np.ndarray
    row_lengths: np.ndarray
    prompt_offsets: np.ndarray
    dp_size: int = 1
    bin_offsets: None = None

    @property
    def inverse(self):
        slots = np.flatnonzero(~self.is_padding)
        return slots[np.argsort(self.rows[slots])]


def plan_of(rows, is_padding, mini_batch_offsets, prompt_offsets, lengths):
    return Slots(
        np.array(rows, np.int64),
        np.array(is_padding, np.bool_),
        np.array(mini_batch_offsets, np.int64),
        np.array(lengths, np.int64).reshape(-1, 2),
        np.array(prompt_offsets, np.int64),
    )


def to_numpy(x):
    return x if isinstance(x, np.ndarray) else x.detach().numpy()


def refuses(exception, pattern, function, *args, **kwargs):
    with pytest.raises(exception) as caught:
        function(*args, **kwargs)
    assert type(caught.value) is exception, repr(caught.value)
    assert re.search(pattern, str(caught.value)), f"{pattern} is not in: {caught.value}"


# Normalising. Three prompts of two, one and two rows; the plan turns rows around.

PLAN = plan_of(
    rows=[1, 0, 2, -1, 4, 3],
    is_padding=[False, False, False, True, False, False],
    mini_batch_offsets=[0, 4, 6],
    prompt_offsets=[0, 2, 3, 5],
    lengths=[[1, 2], [1, 2], [1, 1], [1, 3], [2, 1]],
)
LENS = [(1, 2), (1, 2), (1, 1), (1, 3), (2, 1)]


def batch_of(lens, layout="left", array_type="numpy", loss_mask=None):
    return make_batch(
        [[1] * prompt for prompt, _ in lens],
        [[2] * response for _, response in lens],
        loss_mask=loss_mask,
        layout=layout,
        array_type=array_type,
    )


def test_loss_masks_choose_and_padding_rows_do_not_count(array_type):
    lens = [LENS[row] if row >= 0 else (1, 1) for row in PLAN.rows]
    masks = [[1.0] * response for _, response in lens]
    masks[3] = [1.0]  # of a padding row: must not be read
    masks[0] = [0.0, 0.5]
    batch = batch_of(lens, array_type=array_type, loss_mask=masks)
    x = np.full((6, 3), np.nan, np.float32)
    x[0, 2], x[1, 1:], x[2, 2] = 1, 3, 5
    x[4, 2], x[5] = 6, 6
    found = to_numpy(normalized(batch, like(x, array_type), PLAN, "mini_batch"))
    expected = np.zeros((6, 3), np.float32)
    expected[0, 2], expected[2, 2] = -np.sqrt(2), np.sqrt(2)
    assert found.dtype == np.float32
    assert np.allclose(found, expected)
    tokens, rows = loss_normalizers(batch, PLAN)
    assert tokens.tolist() == [3.5, 4]
    assert rows.tolist() == [3, 2]
    assert (tokens.dtype, rows.dtype) == (np.float64, np.int64)


def test_nothing_is_divided_by_zero(array_type):
    masks = [[0.0] * response for _, response in LENS]
    batch = batch_of(LENS, array_type=array_type, loss_mask=masks)
    x = like(np.full((5, 3), np.inf, np.float32), array_type)
    for per in BOUNDARIES:
        assert not to_numpy(normalized(batch, x, PLAN, per)).any()
    found = loss_normalizers(batch, PLAN)
    assert type(found)._fields == ("tokens", "rows")
    assert found.tokens.tolist() == [1, 1]
    assert found.rows.tolist() == [3, 2]
    # A mini-batch that is all padding.
    plan = plan_of([0, -1], [False, True], [0, 1, 2], [0, 1], [[1, 2]])
    for batch in (batch_of([(1, 2)]), batch_of([(1, 2), (1, 1)])):
        found = loss_normalizers(batch, plan)
        assert found.tokens.tolist() == [2, 1]
        assert found.rows.tolist() == [1, 1]
        ones = np.ones(batch.response_mask.shape)
        assert not normalized(batch, ones, plan, "mini_batch").any()


def test_loss_weights_round_the_same_in_all_layouts(array_type):
    rng = np.random.default_rng(0)
    lens = [(2, 300), (1, 411)]
    masks = [rng.choice([1e-9, 0.1, 1 / 3, 3e8], response) for _, response in lens]
    plan = plan_of([1, 0], [False, False], [0, 2], [0, 2], lens)
    found = [
        loss_normalizers(batch_of(lens, layout, array_type, masks), plan).tokens.item()
        for layout in LAYOUTS
    ]
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(np.concatenate(masks).sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_means_lose_no_digits(dtype):
    plan = plan_of([0], [False], [0, 1], [0, 1], [[1, 4]])
    offset = {"float16": 1024, "float32": 2**20, "float64": 2.0**40}[dtype]
    x = (np.array([[0, 1, 2, 3]]) + offset).astype(dtype)
    found = normalized(batch_of([(1, 4)]), x, plan, "batch")
    expected = np.array([[-1.5, -0.5, 0.5, 1.5]]) / np.sqrt(1.25)
    assert found.dtype == dtype
    assert np.allclose(found, expected, rtol=1e-3 if dtype == "float16" else 1e-6, atol=0)
    constant = np.full((1, 4), 0.1, dtype)
    assert not normalized(batch_of([(1, 4)]), constant, plan, "batch").any()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layout", ["left", "jagged"])
@pytest.mark.parametrize("place", [0, -1])
def test_what_is_not_finite_stays_in_its_boundary(odd, layout, place, array_type):
    batch = batch_of(LENS, layout, array_type)
    mask = np.ones(9, bool) if layout == "jagged" else to_numpy(batch.response_mask) == 1
    of_prompt = np.array([0, 0, 0, 0, 1, 2, 2, 2, 2])
    flat = np.arange(9, dtype=np.float32)
    flat[np.flatnonzero(of_prompt == 2)[place]] = odd
    x = np.full(mask.shape, odd, np.float32)
    x[mask] = flat
    found = to_numpy(normalized(batch, like(x, array_type), PLAN, "prompt"))
    assert np.isnan(found[mask][of_prompt == 2]).all()
    assert np.isfinite(found[mask][of_prompt != 2]).all()
    assert not found[~mask].any()


@NEEDS_TORCH
@pytest.mark.parametrize("per", BOUNDARIES)
@pytest.mark.parametrize("layout", ["left", "jagged"])
def test_gradients_flow_through_normalising(per, layout):
    import torch

    batch = batch_of(LENS, layout, "torch")
    shape = (9,) if layout == "jagged" else (5, 3)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: normalized(batch, x, PLAN, per), x)


@NEEDS_TORCH
def test_advantages_of_the_other_library_and_of_integers():
    import torch

    batch = batch_of(LENS, array_type="torch")
    x = np.arange(15).reshape(5, 3)
    found = normalized(batch, x, PLAN, "batch")
    assert found.dtype == np.float32
    batch = batch_of(LENS, array_type="numpy")
    tensor = normalized(batch, torch.from_numpy(x).bfloat16(), PLAN, "batch")
    assert tensor.dtype is torch.bfloat16
    assert np.allclose(tensor.float().numpy(), found, rtol=1e-2)


@st.composite
def planned(draw):
    """Draw a plan, a batch in the order of rows or of slots, and advantages."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    prompts_of = np.cumsum([0, *sizes])
    rows = int(prompts_of[-1])
    lens = [(draw(st.integers(1, 3)), draw(st.integers(0, 4))) for _ in range(rows)]
    ends = draw(st.sets(st.integers(1, max(1, rows - 1)))) | {rows}
    slots, is_padding, offsets, start = [], [], [0], 0
    for end in sorted(ends):
        within = draw(st.permutations(range(start, end)))
        within += draw(st.lists(st.sampled_from([-1, *within]), max_size=3))
        padding = [False] * (end - start) + [True] * (len(within) - end + start)
        order = draw(st.permutations(range(len(within))))
        slots += [within[i] for i in order]
        is_padding += [padding[i] for i in order]
        offsets.append(len(slots))
        start = end
    plan = plan_of(slots, is_padding, offsets, prompts_of, lens)
    in_slots = draw(st.booleans()) and any(is_padding)
    if in_slots:
        lens = [lens[row] if row >= 0 else (1, 1) for row in slots]
    loss_mask = None
    if draw(st.booleans()):
        weights = st.sampled_from([0.0, 1.0, 1.0, 0.5])
        loss_mask = [draw(st.lists(weights, min_size=r, max_size=r)) for _, r in lens]
    return plan, in_slots, lens, loss_mask


LAYOUTS = ["left", "two_segment", "right", "jagged"]


@share(2)
@given(drawn=planned(), layout=st.sampled_from(LAYOUTS), data=st.data())
def test_normalising_equals_the_loops(drawn, layout, data, array_type):
    plan, in_slots, lens, loss_mask = drawn
    batch = batch_of(lens, layout, array_type, loss_mask)
    if layout == "jagged":
        shape = (sum(response for _, response in lens),)
    else:
        shape = tuple(batch.response_mask.shape)
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    x = data.draw(arrays(dtype, shape, elements=st.floats(-1e3, 1e3, width=16)))
    per = data.draw(st.sampled_from(BOUNDARIES))
    expected = normalize_loops(batch, x, plan, per, in_slots)
    found = to_numpy(normalized(batch, like(x, array_type), plan, per))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)
    tokens, rows = loss_normalizers_loops(batch, plan, in_slots)
    found = loss_normalizers(batch, plan)
    assert (found.tokens.tolist(), found.rows.tolist()) == (tokens, rows)


def test_without_padding_a_shard_that_is_the_whole_step_is_in_slot_order():
    plan = plan_of([1, 2, 0], [False] * 3, [0, 3], [0, 1, 3], [[1, 1], [1, 1], [1, 1]])
    of_rows = np.array([[1.0], [2.0], [4.0]])
    batch = batch_of([(1, 1)] * 3)
    assert normalized(batch, of_rows, plan, "prompt").tolist() == [[0], [-1], [1]]
    shard = batch._replace(is_padding=[False] * 3)
    found = normalized(shard, of_rows[[1, 2, 0]], plan, "prompt")
    assert found.tolist() == [[-1], [1], [0]]
    flagged = batch._replace(is_padding=[False, True, False])
    refuses(ValueError, r"is_padding\[1\] is True in the batch", loss_normalizers, flagged, plan)


@pytest.mark.parametrize("layout", [None, fc.Packed(capacity=16)])
@pytest.mark.parametrize("lens", [[2, 2, 2, 2, 2, 2], [1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("shard_by", ["contiguous", "strided"])
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_selected_rows_are_in_the_order_of_their_plan(layout, lens, dp_size, shard_by):
    """As the rows of a batch that was built: prompts may be left out before the plan is made."""
    options = {"uids": list("aabbcc"), "pad_token_id": 0, "array_type": "numpy"}
    batch = fc.build_batch([[1, 2]] * 6, [[3] * count for count in lens], **options)
    selected = batch.select(rows=range(6))
    ranks = {"dp_size": dp_size, "shard_by": shard_by}
    plan = fc.plan_step(selected, prompts_per_mini_batch=3, **ranks, layout=layout)
    rewards = batch.broadcast(np.array([1.0, 3, 10, 30, 5, 9]))
    expected = batch.normalize(rewards, plan, "prompt")
    assert np.array_equal(selected.normalize(rewards, plan, "prompt"), expected)
    expected = batch.loss_normalizers(plan).tokens
    assert selected.loss_normalizers(plan).tokens.tolist() == expected.tolist()
    assert expected.tolist() == [sum(lens)]


def test_selected_rows_of_a_shard_are_known_by_their_lengths():
    rows = {"prompts": [[1]] * 4, "responses": [[2] * count for count in (1, 2, 3, 4)]}
    options = {"uids": list("aabb"), "pad_token_id": 0, "array_type": "numpy"}
    batch = fc.build_batch(**rows, **options)
    of_shard = fc.build_batch(**rows, **options, shard=fc.plan_step(batch).shard(0, 0))
    selected = of_shard.select(rows=[0, 1, 2, 3])
    assert selected.is_padding == [False] * 4
    plan = fc.plan_step(batch, prompts_per_mini_batch=1, dp_size=2, shard_by="tokens")
    assert plan.rows.tolist() == [1, 0, 3, 2]
    assert selected.loss_normalizers(plan).tokens.tolist() == [3, 7]
    rewards = batch.broadcast(np.array([1.0, 3, 10, 30]))
    found = selected.normalize(rewards, plan, "prompt")
    assert np.array_equal(found, batch.normalize(rewards, plan, "prompt"))


def test_selected_rows_of_equal_lengths_are_known_by_their_uids():
    columns = {"prompts": [[1]] * 4, "responses": [[2]] * 4, "uids": list("aabb")}
    batch = fc.build_batch(**columns, pad_token_id=0, array_type="numpy")
    whole = fc.plan_step([2] * 4).shard(0, 0)
    plan = fc.plan_step(batch, dp_size=2, shard_by="strided")
    assert plan.rows.tolist() == [0, 2, 1, 3]
    rewards = batch.broadcast(np.array([1.0, 3, 10, 30]))
    expected = batch.normalize(rewards, plan, "prompt")
    for order in ([0, 1, 2, 3], plan.rows):
        of_shard = batch.select(rows=order).select(whole)
        found = of_shard.normalize(rewards[order], plan, "prompt")
        assert np.array_equal(found, expected[order])


def test_prompts_of_the_plan_are_those_of_the_batch():
    """Each row would be compared with itself: no advantage, silently."""
    batch = fc.build_batch([[1]] * 3, [[2]] * 3, pad_token_id=0, uids=["a", "a", "b"])
    with pytest.raises(ValueError, match=r"plan has 3 prompts, .* has 2 uids, .* to plan_step"):
        batch.normalize(batch.loss_mask, fc.plan_step([2] * 3), per="prompt")


def test_a_batch_of_something_else_is_refused():
    batch = batch_of(LENS)
    x = np.zeros((5, 3))
    refuses(ValueError, "per is 'row'", normalized, batch, x, PLAN, "row")
    pattern = r"advantages has shape \(5, 2\); .* \(5, 3\)"
    refuses(ValueError, pattern, normalized, batch, x[:, :2], PLAN, "batch")
    refuses(TypeError, "advantages is", normalized, batch, x.tolist(), PLAN, "batch")
    refuses(TypeError, "plan is", normalized, batch, x, batch.plan, "batch")
    pattern = "the batch has 4 rows, but the plan has 5 rows in 6 slots"
    refuses(ValueError, pattern, loss_normalizers, batch_of(LENS[:4]), PLAN)
    other = [*LENS[:3], (1, 2), (2, 1)]
    pattern = "row 3 of the batch has 3 tokens, but the plan has 4; pass"
    refuses(ValueError, pattern, loss_normalizers, batch_of(other), PLAN)
    bare = fc.Batch(dict(batch))
    refuses(fc.planning.MissingPlanError, "has no plan", loss_normalizers, bare, PLAN)


def test_padding_is_dropped(array_type):
    x = like(np.arange(12.0).reshape(6, 2), array_type)
    assert fc.planning.drop_padding(x, PLAN).tolist() == [[2, 3], [0, 1], [4, 5], [10, 11], [8, 9]]
    assert fc.planning.drop_padding(list("abcdef"), PLAN) == list("bacfe")
    assert fc.planning.drop_padding(tuple("abcdef"), PLAN) == list("bacfe")
    names = np.array(["a", "b", "c", "d", "e", None], object)
    assert fc.planning.drop_padding(names, PLAN).tolist() == ["b", "a", "c", None, "e"]
    values = like(np.arange(8), array_type)
    rows = fc.Ragged(values, [0, 2, 3, 3, 5, 5, 8])
    found = fc.planning.drop_padding(rows, PLAN)
    assert type(found) is fc.Ragged
    assert type(found.values) is type(values)
    assert found.to_list() == [[2], [0, 1], [], [5, 6, 7], []]


@NEEDS_TORCH
def test_gradients_flow_through_dropping():
    import torch

    x = torch.arange(6.0, requires_grad=True)
    fc.planning.drop_padding(x, PLAN).sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 0, 1, 1]


@share(2)
@given(drawn=planned(), data=st.data())
def test_dropping_equals_the_loops(drawn, data, array_type):
    plan = drawn[0]
    lists = [data.draw(st.lists(st.integers(0, 9), max_size=3)) for _ in plan.rows]
    expected = drop_padding_loops(lists, plan)
    assert fc.planning.drop_padding(lists, plan) == expected
    values = like(np.array([x for row in lists for x in row], np.int64), array_type)
    rows = fc.Ragged(values, np.cumsum([0, *map(len, lists)]))
    assert fc.planning.drop_padding(rows, plan).to_list() == expected
    numbers = like(plan.rows, array_type)
    assert fc.planning.drop_padding(numbers, plan).tolist() == list(range(len(plan.row_lengths)))


@pytest.mark.parametrize(
    ("values", "pattern"),
    [
        ([1, 2], "values has 2 items, but the plan has 6 slots"),
        (np.zeros((5, 3)), "values has 5 items"),
        (np.array(1.0), r"shape \(\)"),
        ("abcdef", "TypeError: values is 'abcdef'"),
        (3, "TypeError: values is 3"),
    ],
)
def test_bad_results(values, pattern):
    with raises(pattern):
        fc.planning.drop_padding(values, PLAN)
    refuses(TypeError, "plan is None", fc.planning.drop_padding, [1], None)
