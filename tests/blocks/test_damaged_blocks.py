"""Damaged blocks: an error names the block and the column, or there is no harm."""

import dataclasses
import pickle
import re

import numpy as np
import pytest
from worker_blocks import built

import fastcollate as fc
from fastcollate.blocks import spans
from fastcollate.blocks.joining import join
from fastcollate.blocks.storing import store
from fastcollate.blocks.trees import join_trees
from fastcollate.testing.reference import assert_same

NAMES = ["left worker", "right worker"]
MISSING = object()

pytestmark = pytest.mark.filterwarnings("ignore:.*rewards lie on tokens that merging")


def columns_of(worker):
    responses = [[1], [2, 3], [4, 5, 6]]
    lens = list(map(len, responses))
    image = np.ones((2, 3), np.float32)
    return {
        "prompts": [[7, 8]] * 3,
        "responses": responses,
        "rewards": [1.0, 0.0, 2.0],
        "logprobs": [[-0.5] * count for count in lens],
        "loss_mask": [[1] * count for count in lens],
        "uids": [f"{worker}a", f"{worker}a", f"{worker}b"],
        "trajectory_ids": [f"{worker}{row}" for row in range(3)],
        "is_last_step": [True] * 3,
        "fields": {
            "token": fc.Field([[1.5] * (2 + count) for count in lens], align="sequence"),
            "number": fc.PerRow([1.5, 2.5, 3.5]),
            "images": fc.PerRow([image] * 3, concat=True),
            "object": fc.PerRow([{"a": 1}] * 3, dtype=object),
            "routes": fc.RoutedExperts([np.ones((1 + count, 2, 2), np.int64) for count in lens]),
        },
    }


def changed(value, path, change):
    """Copy a value with a change at a path of keys, indices and attributes."""
    if not path:
        return change(value)
    key, *rest = path
    inner = getattr(value, key) if hasattr(value, str(key)) else value[key]
    new = changed(inner, rest, change)
    if isinstance(value, dict):
        return {one: it for one, it in {**value, key: new}.items() if it is not MISSING}
    new = None if new is MISSING else new
    if hasattr(value, "_replace"):
        return value._replace(**{key: new})
    if isinstance(value, tuple):
        return tuple(new if index == key else one for index, one in enumerate(value))
    return dataclasses.replace(value, **{key: new})


def paths(value, at=()):
    """Yield the paths of all parts of a table or of columns."""
    yield at
    if isinstance(value, dict):
        keys = list(value)
    elif hasattr(value, "_fields"):
        keys = value._fields
    elif isinstance(value, tuple):
        keys = range(len(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        keys = [one.name for one in dataclasses.fields(value)]
    else:
        return
    for key in keys:
        inner = getattr(value, key) if hasattr(value, str(key)) else value[key]
        yield from paths(inner, (*at, key))


def last(value, number):
    array = np.array(value)
    array.flat[-1] = number
    return array


CHANGES = {
    "missing": lambda value: MISSING,
    "none": lambda value: None,
    "text": lambda value: "x",
    "number": lambda value: 7,
    "shorter": lambda value: value[:-1],
    "longer": lambda value: (
        np.concatenate([value, value[-1:]]) if isinstance(value, np.ndarray) else value + value[-1:]
    ),
    "empty": lambda value: value[:0],
    "huge": lambda value: last(value, 2**62),
    "negative": lambda value: last(value, -5),
    "floats": lambda value: (
        fc.Ragged(value.values.astype(np.float64), value.offsets)
        if isinstance(value, fc.Ragged)
        else np.asarray(value, np.float64) + 0.5
    ),
    "objects": lambda value: np.array([None] * len(value), object),
    "nested": lambda value: np.asarray(value)[:, None],
    "dict": lambda value: {},
}

# Not used; compared with nothing; or numbers, of which any may be right.
HARMLESS = re.compile(
    r"'(merge_plan|sharing|order|shared|prompt_hashes|arrays|num_bytes|masked_rewards|loss_weights|trailing|default|options)'"
    r"|'(dtype|field|rewards|number|same_inputs)'|'part_offsets'\) longer"
)


def build_all(tables, parts, layout):
    """Plan a step of blocks, and build the shards of its ranks."""
    step = join(tables, NAMES)
    rows, options = (step.plan.prompt_lens, step.plan.response_lens), {"uids": step.names["uids"]}
    if layout == "tree":
        rows, inputs = join_trees(tables, NAMES)
        options["layout"] = fc.Tree(64, same_inputs=inputs)
    plan = fc.plan_step(rows, dp_size=2, **options)
    step.loss_normalizers(plan)
    more = {"pad_token_id": 0, "array_type": "numpy"}
    return [built(step, plan.shard(0, rank), parts, **more) for rank in range(2)]


def outcome(*arguments):
    """Return the shards, or the text of the error."""
    try:
        return build_all(*arguments), None
    except (ValueError, TypeError) as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("layout", "how"),
    [
        ("left", {}),
        ("left", {"merge": "exact"}),
        ("tree", {"share": "group"}),
        ("tree", {"share": "prompts"}),
    ],
    ids=str,
)
def test_damage_is_named(layout, how):
    tables, parts = [], []
    for worker in "lr":
        table, of_block = store(**columns_of(worker), part_bytes=1, **how)
        tables.append(table)
        parts += of_block
    expected = build_all(tables, dict(enumerate(parts)), layout)
    count = 0
    for of_table, whole in ((True, tables[1]), (False, parts[-1])):
        for path in paths(whole):
            for name, change in CHANGES.items():
                try:
                    damaged = changed(whole, path, change)
                except Exception:  # there is no such change of this value
                    continue
                new_tables = [tables[0], damaged] if of_table else tables
                new_parts = parts if of_table else [*parts[:-1], damaged]
                found, error = outcome(new_tables, dict(enumerate(new_parts)), layout)
                if error is not None:
                    keys = [str(key) for key in path if isinstance(key, str)]
                    named = ["right worker", *keys[-3:], "trajectory_ids", "is_last_step"]
                    assert any(key in error for key in named), (path, name, error)
                    count += 1
                elif HARMLESS.search(f"{path} {name}") is None:
                    for one, other in zip(found, expected, strict=True):
                        assert_same(one, other)
    assert count > 400


def test_what_the_messages_say():
    (table, parts), (other, _) = store(**columns_of("l")), store(**columns_of("r"))
    step = join([table], ["left worker"])
    shard = fc.plan_step((step.plan.prompt_lens, step.plan.response_lens)).shard(0, 0)
    again = "; put its rows again, and plan the step again"
    for path, change, message in (
        (("loss_mask",), "missing", "loss_mask is missing"),
        (("loss_mask",), "shorter", "loss_mask has 2 rows, expected 3"),
        (("loss_mask",), "none", "loss_mask is None (NoneType), expected a Ragged"),
        (("fields", "token"), "missing", "token is missing"),
        (("rewards",), "longer", "rewards is float32 ndarray of shape (4,), expected numbers of"),
        (("fields", "object"), "shorter", "fields['object'] has 2 items, expected 3"),
        ((), "none", "it is None (NoneType), expected a dict of columns"),
    ):
        damaged = changed(parts[0], path, CHANGES[change])
        damaged = None if damaged is MISSING else damaged
        with pytest.raises(ValueError, match="has changed since it was put") as raised:
            built(step, shard, {0: damaged}, pad_token_id=0, array_type="numpy")
        text = str(raised.value)
        assert text.startswith(
            f"block 0 (left worker) with rows 0 to 2 has changed since it was put: {message}"
        )
        assert text.endswith(again)
    for path, change, message in (
        (("plan", "pieces"), "missing", "this is not a valid plan: pieces is missing"),
        (("plan", "source"), "missing", "source is missing"),
        (("names", "uids"), "shorter", "uids has 2 items, expected 3"),
        (("loss_weights",), "empty", "loss_weights is float64 ndarray of shape (0,), expected"),
        (("part_offsets",), "huge", "part_offsets is int64 ndarray of shape (2,), expected rising"),
        (("fields", "token", "form"), "text", "the form of fields['token'] is 'x' (str), expected"),
    ):
        with pytest.raises(ValueError, match="has changed since it was put") as raised:
            join([table, changed(other, path, CHANGES[change])], NAMES)
        text = str(raised.value)
        assert text.startswith(f"block 1 (right worker) has changed since it was put: {message}")
        assert text.endswith(again)


def test_damaged_shards_of_a_batch():
    batch = fc.build_batch([[1]] * 4, [[2, 3]] * 4, pad_token_id=0, array_type="numpy")
    plan = fc.plan_step(batch, dp_size=2)
    shards = spans.pack_arrays(batch, [batch.select(plan.shard(0, rank)) for rank in range(2)])
    name = "the shard of mini-batch 0 and rank 1"
    _, (pickled, of_plan) = shards.batches
    short = [array[:-1] for array in shards.arrays]
    for damaged, message in (
        (shards._replace(arrays=short), "an array has 3 items, expected at least 4"),
        (shards._replace(arrays=shards.arrays[:1]), "list index out of range"),
        (shards._replace(batches=shards.batches[:1]), "list index out of range"),
        (shards._replace(batches=[(pickled[:-9], of_plan)] * 2), "pickle data was truncated"),
        (shards._replace(batches=[(b"", of_plan)] * 2), "Ran out of input"),
        (shards._replace(batches=[(pickle.dumps(7), of_plan)] * 2), "'int' object has no"),
    ):
        with pytest.raises(ValueError, match=f"^{name} has changed since it was put: .*{message}"):
            spans.unpack(damaged, 1, False, name)
    late = spans.unpack(shards._replace(batches=[(pickled, of_plan[:-9])] * 2), 1, False, name)
    with pytest.raises(ValueError, match=f"^{name} has changed since it was put: pickle data"):
        late.plan  # noqa: B018
