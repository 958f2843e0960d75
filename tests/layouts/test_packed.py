"""The packed layout: several sequences to a row, against the loops."""

import contextlib
import pickle
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from conftest import NEEDS_TORCH, share
from hypothesis import assume, given
from hypothesis import strategies as st
from making import make_batch
from packed_cases import cases, quiet, with_prompts
from packings import (
    ALGORITHMS,
    PADDING_AS,
    SHIFTS,
    lens_of,
    lost_to_splits,
    packed_options,
    plan_of,
)
from raising import raises
from strategies import as_inputs, extras, name_turns, rollouts, trajectories

import fastcollate as fc
from fastcollate.testing.reference import (
    assert_same,
    build_batch_loops,
    build_merged_batch_loops,
    build_shard_loops,
    merge_turns_loops,
)
from fastcollate.testing.reference.packed import parts_of
from frameworks.numpy_rows import build_packed_numpy

N = -100


@contextlib.contextmanager
def warns_of(lost):
    """Expect one warning that says how many tokens have no place, or none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "loss_mask (is 0 on all|has weights)|most log-prob")
        yield
    assert len(caught) == (lost > 0), [str(one.message) for one in caught]
    for one in caught:
        assert one.category is UserWarning
        assert f"{lost:,} " in str(one.message)
        assert one.filename.startswith(__file__.rpartition("/")[0])


def lost_of(data, reference):
    shift = reference.get("shift", "none")
    return lost_to_splits(data, reference["bins"]) if shift == "next_token" else 0


@share(2)
@given(drawn=st.data())
def test_equals_the_loops(drawn, array_type):
    data, inputs, options, reference, more = drawn.draw(cases(array_type))
    try:
        expected = build_batch_loops(**data._asdict(), **reference, **more)
    except ValueError:
        rows = [row for row, prompt in enumerate(data.prompts) if not prompt]
        names = "|".join(map(str, rows))
        with quiet(), pytest.raises(ValueError, match=rf"\b({names})\b.*prompt"):
            fc.build_batch(**inputs, **options, **more, array_type=array_type)
        return
    with warns_of(lost_of(data, reference)):
        batch = fc.build_batch(**inputs, **options, **more, array_type=array_type)
    assert_same(batch, expected)
    check_plan(batch, data, options, reference)
    check_pickled(batch)
    assert batch.uids == more.get("uids")
    assert batch.trajectory_ids == more.get("trajectory_ids")


def check_pickled(batch):
    again = pickle.loads(pickle.dumps(batch))
    assert_same(again, batch)
    assert again.plan == batch.plan
    assert again.bin_plan == batch.bin_plan
    assert type(again.plan)._from_dict(batch.plan.to_dict()) == batch.plan
    assert repr(again) == repr(batch)
    found, expected = (
        one.gather(one.response_mask, align="response", missing=7) for one in (again, batch)
    )
    assert_same({"values": found.values}, {"values": expected.values})


def check_plan(batch, data, options, reference):
    """Check a batch's attributes of rows, which are in the order of the input."""
    assert batch.plan.layout == "packed"
    assert batch.prompt_lens.tolist() == list(map(len, data.prompts))
    assert batch.response_lens.tolist() == list(map(len, data.responses))
    plan = batch.bin_plan
    assert plan.sequence_lengths.tolist() == lens_of(data)
    if reference["bins"] is None:
        assert plan.bins == [list(range(len(data.prompts)))]
    else:
        assert list(map(list, parts_of(plan))) == reference["bins"]
    rows, width = batch.input_ids.shape
    metrics = batch.metrics
    assert metrics["batch/bins"] == rows == plan.num_bins
    assert metrics["batch/rows"] == len(data.prompts)
    assert metrics["batch/tokens"] == sum(lens_of(data))
    assert metrics["batch/padded_tokens"] == rows * width
    if rows * width > 0:
        padding = 1 - sum(lens_of(data)) / (rows * width)
        assert metrics["batch/padding_fraction"] == pytest.approx(padding)


PARTS = [[(2, 0, 4), (1, 0, 2)], [(0, 0, 4)]]


def packed(multiple_of=1, **options):
    """Two rows for three sequences, of which the last two share one."""
    return fc.Packed(plan=plan_of(PARTS, multiple_of), multiple_of=multiple_of, **options)


def small(array_type="numpy", layout=None, **changes):
    """Three sequences of 2 + 2, 1 + 1 and 1 + 3 tokens."""
    inputs = {
        "prompts": [[1, 2], [3], [4]],
        "responses": [[5, 6], [7], [8, 9, 10]],
        "loss_mask": [[1, 1], [0], [0.5, 0, 1]],
        "rewards": [0.5, 1.0, 2.0],
        "pad_token_id": 0,
        "layout": packed() if layout is None else layout,
        "array_type": array_type,
    }
    return fc.build_batch(**{**inputs, **changes})


def lists_of(batch, *keys):
    """Give outputs as lists."""

    def plain(value):
        if isinstance(value, list):
            return list(map(plain, value))
        return value if isinstance(value, int) else value.tolist()

    return {key: plain(batch[key]) for key in keys or batch._data}


def test_written_out(array_type):
    assert lists_of(small(array_type, labels="aligned")) == {
        "input_ids": [[4, 8, 9, 10, 3, 7], [1, 2, 5, 6, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1]],
        "sequence_ids": [[2, 2, 2, 2, 1, 1], [0, 0, 0, 0, -1, -1]],
        "cu_seqlens": [0, 4, 6, 10, 12],
        "max_seqlen": 4,
        "row_cu_seqlens": [[0, 4, 6], [0, 4, 6]],
        "response_mask": [[0, 1, 1, 1, 0, 1], [0, 0, 1, 1, 0, 0]],
        "labels": [[N, 8, N, 10, N, N], [N, N, 5, 6, N, N]],
        "loss_mask": [[0, 0.5, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0]],
        "rewards": [[0, 0, 0, 2, 0, 1], [0, 0, 0, 0.5, 0, 0]],
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@share(2)
@given(drawn=st.data())
def test_options_of_pack(algorithm, drawn):
    data = drawn.draw(rollouts(max_long_len=30))
    lens = lens_of(data)
    multiple = drawn.draw(st.sampled_from([1, 1, 4]))
    how = {
        "capacity": max(lens) + drawn.draw(st.integers(4, 40)),
        "algorithm": algorithm,
        "max_sequences": drawn.draw(st.sampled_from([None, 2])),
    }
    if algorithm == "concat":
        assume(multiple == 1)
        how = {"capacity": drawn.draw(st.integers(1, 60)), "algorithm": algorithm}
    data = data._asdict() | {"pad_token_id": 0, "array_type": "numpy"}
    plan = fc.planning.pack(lens, fc.Packed(**how, multiple_of=multiple))
    batch = fc.build_batch(**data, layout=fc.Packed(plan=plan))
    layout = fc.Packed(**how, multiple_of=multiple)
    assert_same(batch, fc.build_batch(**data, layout=layout))
    assert parts_of(batch.bin_plan) == parts_of(plan)


@share(2)
@given(drawn=st.data())
def test_other_dtypes(drawn, array_type):
    data, inputs, options, _, more = drawn.draw(cases(array_type))
    for name in ("prompts", "responses"):
        inputs[name] = [[token % 1000 for token in row] for row in getattr(data, name)]
    more["labels"] = "aligned"
    with quiet():
        try:
            batch = fc.build_batch(**inputs, **options, **more, array_type=array_type)
        except ValueError:
            assume(False)
        compact = fc.build_batch(
            **inputs, **options, **more, array_type=array_type, dtypes="compact"
        )
    int32 = {"input_ids", "position_ids", "sequence_ids"}
    for key, value in batch.items():
        expected = value
        if key in int32:
            expected = value.astype(np.int32) if array_type == "numpy" else value.int()
        elif key == "response_mask":
            expected = value.astype(bool) if array_type == "numpy" else value.bool()
        assert_same({key: compact[key]}, {key: expected})
    assert list(compact) == list(batch)


def test_weights_that_their_dtype_rounds_to_zero(array_type):
    """They do not train: the fill is written."""
    options = {
        "prompts": [[], [1]],
        "responses": [[2, 3], [4]],
        "loss_mask": [[1e-9, 1], [1e-9]],
        "pad_token_id": 0,
        "layout": fc.Packed.single_row(shift="next_token"),
        "labels": "shifted",
        "array_type": array_type,
    }
    batch = fc.build_batch(**options, dtypes={"loss_mask": "float16"})
    assert lists_of(batch, "loss_mask", "shift_labels") == {
        "loss_mask": [[1, 0, 0, 0]],
        "shift_labels": [[3, N, N, N]],
    }
    assert fc.build_batch(**options).shift_labels.tolist() == [[3, N, 4, N]]


@share(2)
@given(drawn=st.data())
def test_merged_turns_equal_the_loops(drawn, array_type):
    data = drawn.draw(trajectories(max_long_len=20))
    if drawn.draw(st.booleans()):
        turns = [[9, *prompt] for prompt in data.turns.prompts]
        data = data._replace(turns=data.turns._replace(prompts=turns))
    policy = drawn.draw(st.sampled_from(["exact", "branch", "realign"]))
    more = drawn.draw(extras(data.turns, array_type)) | {"pad_token_id": 7}
    more |= {"trajectory_ids": None, "is_last_step": None, **drawn.draw(name_turns(data))}
    tokens = {"prompts": data.turns.prompts, "responses": data.turns.responses}
    names = {name: more[name] for name in ("trajectory_ids", "is_last_step")}
    merged = merge_turns_loops(**tokens, **names, policy=policy)
    lens = [len(row.prompt) + len(row.response) for row in merged.rows]
    options, reference = drawn.draw(packed_options(lens))
    if options["layout"].shift == "next_token" and "labels" in more:
        more["labels"] = "aligned"
    if "uids" in more:
        ends = np.flatnonzero(data.is_last_step)
        more["uids"] = [more["uids"][np.searchsorted(ends, turn)] for turn in range(ends[-1] + 1)]
    arguments = {**data.turns._asdict(), **more}
    merging = {"merge": fc.planning.Merge(policy, rewards="sum")}
    with quiet():
        try:
            expected = build_merged_batch_loops(**arguments, **merging, **reference)
        except ValueError:
            with pytest.raises(ValueError, match="prompt"):
                fc.build_batch(**arguments, **merging, **options, array_type=array_type)
            return
        batch = fc.build_batch(**arguments, **merging, **options, array_type=array_type)
    assert_same(batch, expected)
    assert batch.merge_plan.num_rows == len(merged.rows) == len(batch.prompt_lens)
    uids = more.get("uids")
    assert batch.uids == (None if uids is None else [uids[row.source] for row in merged.rows])


@st.composite
def shards(draw, data):
    """Draw rows of a step in bins, as a plan that packs assigns them; some are synthetic."""
    rows = draw(st.permutations(range(len(data.prompts))))
    rows = rows[: draw(st.integers(1, len(rows)))]
    rows += [-1] * draw(st.integers(0, 2))
    multiple = draw(st.sampled_from([1, 1, 2, 4]))
    lens = [lens_of(data)[row] if row >= 0 else 2 for row in rows]
    cuts = draw(st.lists(st.integers(1, len(rows) - 1), unique=True)) if len(rows) > 1 else []
    offsets = [0, *sorted(cuts), len(rows)]
    places = [-(-count // multiple) * multiple for count in lens]
    loads = [sum(places[a:b]) for a, b in pairwise(offsets)]
    width = max(loads) + multiple * draw(st.integers(0, 3))
    layout = fc.Packed(
        max(width, 1),
        multiple_of=multiple,
        shift=draw(st.sampled_from(SHIFTS)),
        padding_as=draw(st.sampled_from(PADDING_AS)),
    )
    return fc.planning.Shard(
        np.array(rows),
        np.array(rows) < 0,
        num_rows=len(data.prompts),
        first_pad=draw(st.integers(0, 3)),
        lengths=np.array(lens),
        bin_offsets=np.array(offsets),
        bin_width=width,
        layout=layout,
    )


@share(2)
@given(drawn=st.data())
def test_shards_equal_the_loops(drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=30).flatmap(with_prompts))
    inputs = drawn.draw(as_inputs(data))
    more = drawn.draw(extras(data, array_type)) | {"pad_token_id": 7}
    shard = drawn.draw(shards(data))
    layout = shard.layout
    if layout.shift == "next_token" and "labels" in more:
        more["labels"] = "aligned"
    try:
        expected = build_shard_loops(**data._asdict(), **more, shard=shard, layout=layout)
    except ValueError:
        with pytest.raises(ValueError, match="prompt"):
            fc.build_batch(**inputs, **more, shard=shard, array_type=array_type)
        return
    more["layout"] = drawn.draw(st.sampled_from([None, "packed", layout]))
    batch = fc.build_batch(**inputs, **more, shard=shard, array_type=array_type)
    assert_same(batch, expected)
    assert batch.is_padding == shard.is_padding.tolist()
    assert batch.bin_plan.offsets.tolist() == shard.bin_offsets.tolist()
    assert pickle.loads(pickle.dumps(shard)) == shard


@share(2)
@given(drawn=st.data())
def test_used_memory_gives_the_same(drawn, array_type):
    """Recycled memory is full of garbage: all of it is written."""
    data, inputs, options, reference, more = drawn.draw(cases(array_type, shifts=["none"]))
    expected = build_batch_loops(**data._asdict(), **reference, **more)
    rows, width = expected["input_ids"].shape
    pool = fc.memory.BufferPool(1 << 24)
    fc.build_batch(
        [[-1] * (width + 8)] * (rows + 8),
        [[-1] * (width + 8)] * (rows + 8),
        pad_token_id=-1,
        rewards=[[np.nan] * (width + 8)] * (rows + 8),
        array_type=array_type,
        pool=pool,
    )
    batch = fc.build_batch(**inputs, **options, **more, array_type=array_type, pool=pool)
    assert_same(batch, expected)


def lists(seed, rows, tokens):
    """Make rows of such lengths."""
    rng = np.random.default_rng(seed)
    lens = rng.integers(*tokens, (2, rows))
    return {
        "prompts": [rng.integers(0, 10**6, n).tolist() for n in lens[0]],
        "responses": [rng.integers(0, 10**6, n).tolist() for n in lens[1]],
        "loss_mask": [rng.integers(0, 2, n).tolist() for n in lens[1]],
        "logprobs": [rng.standard_normal(n).tolist() for n in lens[1]],
        "pad_token_id": seed,
    }


def arrays_of(batch):
    return [value for value in batch.values() if hasattr(value, "dtype")]


@pytest.mark.slow
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(
    ("kind", "array_type"), [("lists", "numpy"), pytest.param("arrays", "torch", marks=NEEDS_TORCH)]
)
def test_a_large_batch(kind, array_type, shift):
    """Large enough for threads, and for memory that was used before and has to be cleared."""
    for seed in (7, 0):
        data = lists(seed, rows=900, tokens=(50, 2_000))
        lens = list(map(len, map(list.__add__, data["prompts"], data["responses"])))
        plan = fc.planning.pack(lens, fc.Packed(5_000 + max(lens)))
        expected = build_packed_numpy(**data, pack=plan, shift=shift)
        if kind == "arrays":
            fields = ("prompts", "responses", "loss_mask", "logprobs")
            data |= {name: list(map(np.array, data[name])) for name in fields}
        batch = fc.build_batch(
            **data, layout=fc.Packed(plan=plan, shift=shift), array_type=array_type
        )
        assert sum(np.asarray(value).nbytes for value in arrays_of(batch)) > 64 << 20
        assert_same(batch, expected)
        del batch


@pytest.mark.parametrize("there", ["left", "two_segment", "right", "jagged"])
@share(4)
@given(drawn=st.data())
def test_to_and_from_other_layouts(there, drawn, array_type):
    data, _, options, reference, more = drawn.draw(cases(array_type))
    inputs = data._asdict() | more
    other = fc.build_batch(**inputs, layout=there, array_type=array_type)
    try:
        expected = build_batch_loops(**inputs, **reference)
    except ValueError:
        if data.loss_mask is None:
            with quiet(), pytest.raises(ValueError, match="prompt"):
                other.to_layout(options["layout"])
        return  # a loss mask that is an output is 0 where it is refused as an input
    with warns_of(lost_of(data, reference)):
        packed = other.to_layout(options["layout"])
    assert_same(packed, expected)
    check_plan(packed, data, options, reference)

    pairs = zip(data.prompts, data.responses, strict=True)
    if packed.bin_plan.is_split:
        message = "split"
    elif options["layout"].shift == "next_token" and any(r and not p for p, r in pairs):
        message = "no prompt"
    else:
        assert_same(packed.to_layout(there), other)
        again = packed.to_layout(fc.Packed.single_row())
        assert_same(again, other.to_layout(fc.Packed.single_row()))
        return
    with pytest.raises(ValueError, match=message):
        packed.to_layout(there)


OTHER = plan_of([[(2, 0, 4), (1, 0, 3)], [(0, 0, 4)]])
FEWER = plan_of([[(1, 0, 2)], [(0, 0, 4)]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": fc.Packed(3)}, "row 0 has 4 tokens, .* capacity=3; .* oversize='own_bin'"),
        ({"layout": fc.Packed(8, min_bins=5)}, "3 sequences.*5|5.*3 sequences"),
        ({"layout": fc.Packed(plan=OTHER)}, "3 tokens in row 1, but the row has 2"),
        ({"layout": fc.Packed(plan=FEWER)}, r"\b2\b.*\b3\b"),
        ({"layout": fc.Packed(plan=[[0, 1, 3]])}, "it has row 3, but there are 3 rows"),
        ({"layout": fc.Packed(plan=[[0, 1]])}, "does not fit the rows|bins"),
        ({"layout": fc.Packed(plan=[[0, 1], [2, 1]])}, "does not fit the rows|bins"),
        ({"layout": packed(pad_to=5)}, "6 .*pad_to.* 5|pad_to is 5"),
        ({"layout": fc.Packed.single_row(pad_to=9)}, "10 .*pad_to.* 9|pad_to is 9"),
        ({"dtypes": {"sequence_ids": "float32"}}, "sequence_ids"),
        ({"dtypes": {"attention_mask": "bool"}}, "attention_mask"),
        ({"fields": {"sequence_ids": fc.PerRow([1, 2, 3])}}, "sequence_ids"),
        ({"fields": {"row_cu_seqlens": fc.PerRow([1, 2, 3])}}, "row_cu_seqlens"),
        ({"responses": [[5, 6], [7], [8, 9]]}, "4 tokens in row 2, but the row has 3"),
    ],
)  # fmt: skip
def test_what_cannot_be(changes, message):
    with raises(message):
        small(**changes)
    assert small().input_ids.tolist() == [[4, 8, 9, 10, 3, 7], [1, 2, 5, 6, 0, 0]]


def test_a_shard_of_bins_needs_the_packed_layout():
    shard = fc.planning.Shard(
        np.array([0]), np.array([False]), 1, lengths=np.array([2]),
        bin_offsets=np.array([0, 1]), bin_width=2, layout=fc.Packed(2),
    )  # fmt: skip
    inputs = {"prompts": [[1]], "responses": [[2]], "pad_token_id": 0, "array_type": "numpy"}
    for layout in (None, "packed", fc.Packed(2)):
        assert fc.build_batch(**inputs, shard=shard, layout=layout).input_ids.tolist() == [[1, 2]]
    for other in ("left", fc.Packed(8)):
        with pytest.raises(ValueError, match=r"planned with layout=Packed\(capacity=2\)"):
            fc.build_batch(**inputs, shard=shard, layout=other)
    for layout in (None, fc.Left(), fc.Packed.single_row()):
        with pytest.raises(ValueError, match=r"bin_offsets belongs to layout=fc.Packed\(capacity"):
            replace(shard, layout=layout)


@pytest.mark.parametrize("field", ["loss_mask", "rewards", "logprobs", "fields"])
def test_a_first_value_without_a_place(field, array_type):
    """No token predicts it: the row trains without it."""
    inputs = {
        "prompts": [[1], []],
        "responses": [[2], [3, 4]],
        "loss_mask": [[1], [0, 1]],
        "rewards": [[1], [0, 1]],
        "logprobs": [[1], [0, 1]],
        "pad_token_id": 0,
        "layout": fc.Packed.single_row(shift="next_token"),
        "array_type": array_type,
    }
    batch = fc.build_batch(**inputs, fields={"x": fc.Field([[1], [9, 1]], fill=9)})
    assert batch.loss_mask.tolist() == [[1, 0, 1, 0]]
    assert batch.response_mask.tolist() == [[1, 0, 1, 0]]
    assert batch.x.tolist() == [[1, 9, 1, 9]]
    if field == "fields":
        spoilt = {"fields": {"loss": fc.Field([[1], [5, 1]], fill=9)}}
    else:
        spoilt = {field: [[1], [5, 1]]}
    again = fc.build_batch(**{**inputs, **spoilt})
    assert all(again[key].tolist() == batch[key].tolist() for key in inputs if key in batch)
    assert again.metrics["batch/tokens_without_predecessor"] == 1
    del inputs["loss_mask"]
    assert fc.build_batch(**inputs).loss_mask.tolist() == [[1, 0, 1, 0]]
    if field == "loss_mask":
        with pytest.raises(ValueError, match=r"loss_mask\[1\]\[0\] is NaN"):
            fc.build_batch(**inputs, loss_mask=[[1], [float("nan"), 1]])


@pytest.mark.parametrize("rewards", [[5, 0], [[5], [0, 0]]])
def test_a_response_of_one_token_without_a_place(rewards, array_type):
    inputs = {"prompts": [[], [1]], "responses": [[2], [3, 4]], "loss_mask": [[0], [1, 1]]}
    options = {"pad_token_id": 0, "array_type": array_type}
    shifted = fc.Packed.single_row(shift="next_token")
    batch = fc.build_batch(**inputs, **options, rewards=[0, 5], layout=shifted)
    assert batch.rewards.tolist() == [[0, 0, 5, 0]]
    assert batch.response_mask.tolist() == [[0, 1, 1, 0]]
    batch = fc.build_batch(**inputs, **options, rewards=rewards, layout=shifted)
    assert batch.rewards.tolist() == [[0, 0, 0, 0]]
    beside = fc.Packed.single_row()
    assert fc.build_batch(**inputs, **options, rewards=rewards, layout=beside).rewards[0, 0] == 5


def test_repr():
    head = repr(small()).splitlines()[0]
    assert "3 rows" in head
    assert "10 tokens" in head
    assert "2 bins" in head
    assert small().bin_plan == plan_of(PARTS)
    assert make_batch([[1]], [[2]]).bin_plan is None
