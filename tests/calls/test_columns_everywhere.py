"""Columns of every kind are those of the loops: in all layouts, merged, in shards, by each caller.

Fields of one number a row, the argument `advantages`, and loss masks of integers and booleans.
"""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from any_layout import layouts
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from merging_first import merge_of
from packings import lens_of, packed_options
from spreading import outcome, same
from step_shards import shards
from strategies import (
    as_inputs,
    extras,
    merge_options,
    name_turns,
    rollouts,
    spread_fields,
    taking_numbers,
    token_fields,
    trajectories,
)
from ways import by_blocks, by_builder, by_collator
from worker_blocks import through_blocks

import fastcollate as fc
from fastcollate.testing.reference import (
    assert_same,
    build_batch_loops,
    build_merged_batch_loops,
    build_shard_loops,
)

LAYOUTS = ["left", "two_segment", "right", "jagged"]
EACH_KIND = pytest.mark.parametrize("kind", ["spread", "advantages", "whole masks"])

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*policy=.realign. masked", "ignore:.*split", "ignore:.*no token before"
)

BITS = [0, 1, True, False, 0.0, 1.0, -0.0]
WHOLE = [
    lambda rng, n: rng.integers(0, 2, n).tolist(),
    lambda rng, n: (rng.random(n) < 0.5).tolist(),
    lambda rng, n: rng.integers(0, 2, n).astype(float).tolist(),
    lambda rng, n: [BITS[i] for i in rng.integers(0, len(BITS), n)],
]
COUNTS = [
    lambda rng, n: rng.integers(0, 2**20, n).tolist(),
    lambda rng, n: rng.integers(0, 128, n).astype(float).tolist(),
]


@st.composite
def whole_masks(draw, responses, dtype):
    """Draw loss masks that an output of integers or booleans can hold, in any type of numbers."""
    family = draw(st.sampled_from(WHOLE if dtype == "bool" else WHOLE + COUNTS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [family(rng, len(response)) for response in responses]


@st.composite
def columns(draw, kind, data, array_type="numpy"):
    """Give rollouts columns of a kind: the rollouts, and options of `build_batch` and the loops."""
    if kind == "whole masks":
        dtype = draw(st.sampled_from(["bool", "int32", "int64"]))
        data = data._replace(loss_mask=draw(whole_masks(data.responses, dtype)))
        return data, {"dtypes": {"loss_mask": dtype}}, {"loss_mask_dtype": dtype}
    if kind == "advantages":
        count = len(data.prompts)
        numbers = st.lists(st.floats(width=32), min_size=count, max_size=count)
        return data._replace(advantages=draw(numbers | st.just(data.advantages))), {}, {}
    fields = {"tokens": draw(token_fields(data, array_type))}
    for spread in ("all", "trained", "last"):
        fields[spread] = replace(draw(spread_fields(data, array_type)), spread=spread)
    return data, {"fields": fields}, {"fields": fields}


@EACH_KIND
@pytest.mark.parametrize("layout", [*LAYOUTS, "packed"])
@share(5)
@given(drawn=st.data())
def test_equals_the_loops(kind, layout, drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=40))
    data, ours, theirs = drawn.draw(columns(kind, data, array_type))
    more = {"pad_token_id": drawn.draw(st.sampled_from([7, 0, -1]))}
    more |= drawn.draw(extras(data, array_type))
    if layout == "packed":
        how, reference = drawn.draw(packed_options(lens_of(data), shifts=["none"]))
    else:
        how = reference = {"layout": drawn.draw(layouts(layout, data))}
    arguments = {**drawn.draw(as_inputs(data)), **more, **ours, **how, "array_type": array_type}
    of_loops = {**data._asdict(), **more, **theirs}
    batch = outcome(lambda: fc.build_batch(**arguments))
    loops = outcome(lambda: build_batch_loops(**{**of_loops, **reference}))
    there = drawn.draw(st.sampled_from(LAYOUTS))

    def check(batch):
        assert_same(pickle.loads(pickle.dumps(batch)), batch)
        assert (batch.uids, batch.trajectory_ids) == (more.get("uids"), more.get("trajectory_ids"))
        if layout == "packed":
            return
        # Also where a field of a packed batch would be longer than what trains.
        moved = batch.to_layout(there)
        assert_same(moved, build_batch_loops(**{**of_loops, "layout": there}))
        assert_same(moved.to_layout("jagged").to_layout(how["layout"]), batch)

    same(batch, loops, check)


@EACH_KIND
@given(drawn=st.data())
def test_merged_turns_equal_the_loops(kind, drawn):
    trajectory = drawn.draw(trajectories(max_long_len=12))
    data, ours, theirs = drawn.draw(columns(kind, trajectory.turns))
    if kind == "whole masks" and drawn.draw(st.booleans()):
        data = data._replace(loss_mask=None)  # then it is what was sampled
    merge = taking_numbers(drawn.draw(merge_options()), data.rewards)
    names = {"trajectory_ids": None, "is_last_step": None, **drawn.draw(name_turns(trajectory))}
    arguments = {**data._asdict(), **names, "pad_token_id": 7}
    here, there = drawn.draw(st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)))
    options = {**ours, "merge": merge_of(arguments, merge), "array_type": "numpy"}
    of_loops = {**arguments, **theirs, "merge": merge}
    batch = outcome(lambda: fc.build_batch(**arguments, **options, layout=here))
    loops = outcome(lambda: build_merged_batch_loops(**of_loops, layout=here))

    def check(batch):
        assert_same(batch.to_layout(there), build_merged_batch_loops(**of_loops, layout=there))

    same(batch, loops, check)


@EACH_KIND
@given(drawn=st.data())
def test_shards_equal_the_loops(kind, drawn):
    data, ours, theirs = drawn.draw(columns(kind, drawn.draw(rollouts(max_long_len=20))))
    shard, layout = drawn.draw(shards(data)), drawn.draw(st.sampled_from(LAYOUTS))
    options = {**data._asdict(), "pad_token_id": 7, "layout": layout}
    batch = outcome(lambda: fc.build_batch(**options, **ours, shard=shard, array_type="numpy"))
    loops = outcome(lambda: build_shard_loops(**options, **theirs, shard=shard))
    whole = outcome(lambda: fc.build_batch(**options, **ours, array_type="numpy"))

    def check(batch):
        if whole is not None:
            assert_same(whole.select(shard), batch)

    same(batch, loops, check)


@EACH_KIND
@given(drawn=st.data())
def test_builders_collators_and_blocks_equal_a_batch(kind, drawn):
    data, ours, _ = drawn.draw(columns(kind, drawn.draw(rollouts(max_rows=4, max_long_len=20))))
    rows = {name: column for name, column in data._asdict().items() if column is not None}
    options = {"pad_token_id": 7, "array_type": "numpy", **ours}
    fields = options.pop("fields", {})
    for key, field in fields.items():  # rows of their own, as builders get them
        given_rows = field.rows.tolist() if hasattr(field.rows, "tolist") else list(field.rows)
        fields[key] = replace(field, rows=given_rows)
    if fields:
        fields["tokens"] = fc.Field([[1.5] * len(row) for row in data.responses])
    whole = {**rows, "fields": fields}
    expected = outcome(lambda: fc.build_batch(**whole, **options))
    same(outcome(lambda: by_builder(whole, **options)), expected, lambda batch: None)
    if expected is None:
        return
    if not fields:
        labels = {"labels": "aligned"}
        assert_same(
            by_collator(whole, **options, **labels), fc.build_batch(**whole, **options, **labels)
        )
    shard = fc.plan_step(expected, dp_size=1).shard(0, 0)
    batch, _ = through_blocks([whole], lambda _: shard, options)
    assert_same(batch, fc.build_batch(**whole, **options, shard=shard))


TOKENS = {"prompts": [[1], [1, 2, 3, 4], [5]], "responses": [[2, 3], [5], [6, 7, 8]]}
ROUTES = [np.arange(2 * n * 5).reshape(n, 5, 2) % 7 for n in (2, 5, 3)]
EXACT = [[0.1, 1 + 2**-40], [1e300], [2.5, -0.0, 5e-324]]
SPANS = [[{"version": "3", "start": 0, "end": 2}], None, [{"version": "8", "start": 1, "end": 3}]]
LISTS = [[[2, 20], []], [[7]], [[6], [7, 70, 71], []]]

# Fields by their keys, and arguments beside them.
FIELDS = {
    "values": {"x": fc.Field([[1, 2], [3], [4, 5, 6]], dtype="int16", fill=-1)},
    "values of sequences": {"x": fc.Field([[0] * n for n in (3, 5, 4)], align="sequence")},
    "all bits": {"x": fc.Field(EXACT, dtype="float64"), "y": fc.PerRow([0.1, 3, -1], "float64")},
    "trailing dimensions": {"x": fc.Field([np.ones((n, 2, 3)) * n for n in (2, 1, 3)])},
    "rows that are None": {"x": fc.Field([None, [7.5], None], default=3)},
    "numbers on tokens": {"x": fc.Field([1, None, 3], spread="trained", default=-2)},
    "layers of routes": {"x": fc.RoutedExperts(ROUTES, layers=range(1, 4))},
    "captured from a token on": {"x": fc.Captured([r[1:] for r in ROUTES], starts=[1, 1, 1])},
    "lists": {"x": fc.Field(LISTS, ragged=True)},
    "lists with own tokens": {"x": fc.Field(LISTS, ragged=True, own_token="add")},
    "versions": {"x": fc.WeightVersions(SPANS, current=9)},
    "versions that are too old": {"x": fc.WeightVersions(SPANS, current=9, max_lag=1)},
    "numbers of rows": {"x": fc.PerRow([3, 1, 2]), "y": fc.PerRow([0.5, 1, 2])},
    "objects": {"x": fc.PerRow(["a", "b", "c"])},
    "images": {"x": fc.PerRow([np.ones((n, 2)) for n in (1, 0, 2)], concat=True)},
}


@pytest.mark.parametrize("more", [{}, {"loss_mask": [[1, 2], [0], [1, 1, 3]], "uids": list("aab")}])
@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_by_every_way(kind, more):
    """The outputs and their metrics are those of one call, also in the shards of a step."""
    columns = {**TOKENS, "fields": FIELDS[kind], **more}
    options = {"pad_token_id": 0, "array_type": "numpy"}
    expected = fc.build_batch(**columns, **options)
    step = fc.plan_step(([1, 4, 1], [2, 1, 3]), dp_size=2)
    pairs = [(way(columns, **options), expected) for way in (by_builder, by_collator)]
    for shard in (step.shard(0, rank) for rank in range(2)):
        one_call = fc.build_batch(**columns, **options, shard=shard)
        pairs.append((by_blocks(columns, shard, **options), one_call))
    for found, wanted in pairs:
        assert_same({key: found[key] for key in wanted}, wanted)
        assert found.uids == wanted.uids
        assert found.metrics.items() >= {**wanted.metrics}.items()
