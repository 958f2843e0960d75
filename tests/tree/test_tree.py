"""The tree layout: tokens that rows begin with in common once, against the loops."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from conftest import share
from hypothesis import assume, given
from hypothesis import strategies as st
from making import make_batch
from raising import raises
from strategies import as_inputs, extras, forks, name_turns, trajectories, with_fields
from ways import by_builder

import fastcollate as fc
from fastcollate.ops.missing_outputs import REFUSED
from fastcollate.planning import prefix_tree
from fastcollate.testing.reference import (
    assert_same,
    build_batch_loops,
    build_merged_batch_loops,
    merge_turns_loops,
)


@st.composite
def masked(draw, data):
    """Mask first tokens that nothing predicts, in one way or another."""
    if draw(st.integers(0, 2)) == 0:
        return data._replace(prompts=[prompt or [3] for prompt in data.prompts])
    masks = data.loss_mask or [[1] * len(row) for row in data.responses]
    rows = zip(data.prompts, masks, strict=True)
    return data._replace(loss_mask=[m if p else [0, *m[1:]][: len(m)] for p, m in rows])


@st.composite
def cases(draw, array_type, **limits):
    """Draw rows that fork, how they are laid out, and what the loops take for it."""
    data = draw(forks(**limits))
    data = draw(masked(draw(with_fields(data.prompts, data.responses))))
    more = draw(extras(data, array_type))
    more.pop("labels", None)
    count = len(data.prompts)
    lens = [len(prompt) + len(row) for prompt, row in zip(*data[:2], strict=True)]
    ids = st.lists(st.integers(0, 2), min_size=count, max_size=count)
    rule = draw(st.sampled_from(["all", "all", "group", "prompts"]))
    if rule == "group":
        more.setdefault("uids", draw(ids))
    same_inputs = draw(st.none() | ids)
    has_images = any(getattr(f, "concat", False) for f in more.get("fields", {}).values())
    sharing = {"share": rule, "uids": more.get("uids") if rule == "group" else None}
    all_differ = list(range(count))
    known = all_differ if same_inputs is None and has_images else same_inputs
    plan = prefix_tree(*data[:2], **sharing, same_inputs=known)
    options = {"multiple_of": draw(st.sampled_from([1, 1, 2, 5]))}
    capacity = draw(st.none() | st.integers(1, max(1, sum(lens))).map(lambda n: n + max(lens) + 5))
    bins = None if capacity is None else plan.pack(fc.Tree(capacity, **options))
    how = draw(st.sampled_from(["tokens", "plan", "bins"]))
    if how == "tokens":
        layout = {"capacity": capacity, "share": rule, "same_inputs": same_inputs}
    elif how == "plan" or bins is None:
        layout = {"capacity": capacity, "plan": plan, "same_inputs": known}
    else:
        layout = {"plan": bins, "same_inputs": known}
    widest = max(bins.loads) if bins else -(-plan.tokens_after // 5) * 5 + 5 * plan.num_trees
    if draw(st.integers(0, 3)) == 0:
        options["pad_to"] = -(-int(widest) // 10) * 10 + 10
    reference = {"bins": bins.bins if bins else None, **sharing, "same_inputs": known, **options}
    uids = reference.pop("uids")
    layout = fc.Tree(**layout, **options)
    return data, layout, reference | ({} if uids is None else {"uids": uids}), more


def loops(data, reference, more):
    """Build the batch by the loops."""
    uids = {} if "uids" in reference else {"uids": None}
    return build_batch_loops(
        **data._asdict(), pad_token_id=9, layout="tree", **more | uids | reference
    )


@share(2)
@given(drawn=st.data())
def test_every_output_is_that_of_the_loops(drawn, array_type):
    data, layout, reference, more = drawn.draw(cases(array_type))
    inputs = drawn.draw(as_inputs(data))
    batch = fc.build_batch(**inputs, pad_token_id=9, layout=layout, array_type=array_type, **more)
    assert_same(batch, loops(data, reference, more))
    assert batch.plan.layout == "tree"


LAYOUTS = [
    *(fc.Left(pad_to=700), fc.Right(multiple_of=3), fc.TwoSegment(), fc.Jagged()),
    *(fc.Packed.single_row(), fc.Packed(10**6, multiple_of=4), fc.Tree(), fc.Tree(10**6)),
]


def unrouted(batch):
    """Return a batch without captured fields: shared tokens have those of the first row."""
    captured = (
        "routed_experts",
        "router_padding_mask",
        "indexer_topk",
        "indexer_topk_padding_mask",
    )
    return {k: v for k, v in batch.items() if k not in captured}


@share(2)
@given(drawn=st.data())
def test_other_layouts_and_back(drawn, array_type):
    data, layout, _, more = drawn.draw(cases(array_type, max_many=30))
    other = drawn.draw(st.sampled_from(LAYOUTS))
    options = {"pad_token_id": 9, "array_type": array_type, **data._asdict(), **more}
    batch = fc.build_batch(**options, layout=layout)
    there = batch.to_layout(other)
    assert_same(unrouted(there), unrouted(fc.build_batch(**options, layout=other)))
    assert_same(unrouted(there.to_layout(layout)), unrouted(batch))
    back = fc.build_batch(**options, layout=other).to_layout(layout)
    assert_same(unrouted(back), unrouted(batch))
    assert there.uids == batch.uids
    copy = pickle.loads(pickle.dumps(batch))
    assert_same(copy, batch)
    assert copy.plan == batch.plan
    assert list(map(repr, copy.spec.table)) == list(map(repr, batch.spec.table))


@share(2)
@given(drawn=st.data())
def test_values_go_back_to_rows(drawn, array_type):
    data, layout, reference, _ = drawn.draw(cases(array_type, max_many=30))
    options = {"pad_token_id": 9, "array_type": array_type, "loss_mask": data.loss_mask}
    batch = fc.build_batch(*data[:2], layout=layout, uids=reference.get("uids"), **options)
    assert rows_of(batch.gather(batch.targets)) == data.responses
    tokens = batch.gather(batch.input_ids, align="sequence", shift="none")
    assert rows_of(tokens) == data.responses
    # The value at a position is about the token after it in each row.
    bins, width = batch.input_ids.shape
    places = np.arange(bins * width).reshape(bins, width)
    if array_type == "torch":
        places = batch.input_ids.new_tensor(places)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some positions predict several tokens
        before = batch.gather(places, align="sequence", shift="next_token", missing=0)
        shorter = batch.gather(places[:, :-1], align="sequence", shift="next_token", missing=0)
    assert np.asarray(before.values).tolist() == batch.predictors.tolist()
    assert np.asarray(shorter.values).tolist() == batch.predictors.tolist()
    of_rows = np.arange(len(data.prompts))
    put = batch.broadcast(of_rows, on="response")
    assert put.tolist() == np.repeat(of_rows, list(map(len, data.responses))).tolist()


def rows_of(ragged):
    return [row.tolist() for row in ragged]


@share(3)
@given(drawn=st.data())
def test_some_bins(drawn, array_type):
    data, layout, _, more = drawn.draw(cases(array_type, max_many=30))
    options = {"pad_token_id": 9, "array_type": array_type, **more}
    batch = fc.build_batch(**data._asdict(), **options, layout=layout)
    count = len(batch.input_ids)
    bins = drawn.draw(st.permutations(range(count)))[: drawn.draw(st.integers(1, count))]
    found = batch.select(bins=bins)
    row_bins = batch.row_bins.tolist()
    rows = [row for row, bin_ in enumerate(row_bins) if bin_ in bins]
    assert found.input_ids.tolist() == [batch.input_ids.tolist()[bin_] for bin_ in bins]
    assert found.subtree_end.tolist() == [batch.subtree_end.tolist()[bin_] for bin_ in bins]
    assert found.row_bins.tolist() == [bins.index(row_bins[row]) for row in rows]
    width = batch.input_ids.shape[1]
    before = fc.Ragged(batch.predictors, batch.response_offsets)
    after = fc.Ragged(found.predictors, found.response_offsets)
    for number, row in enumerate(rows):
        is_led = [len(data.prompts[row]) > 0 or at > 0 for at in range(len(data.responses[row]))]
        for old, new, has_one in zip(before[row], after[number], is_led, strict=True):
            bin_, column = divmod(int(old), width)
            assert int(new) == (bins.index(bin_) * width + column if has_one else 0)
    # The result of the same rows alone, except for their positions.
    alone = fc.build_batch(**data._asdict(), **options, layout="jagged")
    every = alone.select(fc.planning.Shard(rows, [False] * len(rows), len(data.prompts)))
    again = found.to_layout("jagged")
    assert_same(unrouted(again), unrouted(every))
    assert again.uids == every.uids
    assert_same(pickle.loads(pickle.dumps(found)), found)


def test_bins_that_cannot_be_selected():
    batch = fc.build_batch([[1], [2]], [[3], [4]], pad_token_id=0, layout=fc.Tree(2))
    for bins in ([], [2], [0, 0]):
        with raises("bins is .*has 2 bins; pass .* from 0 to 1, each once"):
            batch.select(bins=bins)
    with pytest.raises(TypeError, match="bins"):
        batch.select(bins=[0.5])
    with pytest.raises(TypeError, match="shard, rows and bins are None; pass one"):
        batch.select()
    with pytest.raises(ValueError, match="layout='left'"):
        batch.to_layout("left").select(bins=[0])
    shard = fc.plan_step([2, 2], dp_size=2).shard(0, 0)
    with pytest.raises(ValueError, match=r"layout='tree'.*build_batch or bins=\.\.\."):
        batch.select(shard)


def build(prompts=((1, 2), (1, 2), (3,)), responses=((4, 5), (4, 6), (7,)), **options):
    return make_batch(prompts, responses, **options)


def test_written_out(array_type):
    batch = build(
        [[5], [5], [5]],
        [[6, 1], [6, 2, 3], [9]],
        rewards=[1.0, 2.0, 3.0],
        layout=fc.Tree(multiple_of=4),
        fields={"ages": fc.Field([[1, 2, 3], [4, 5, 6, 7], [8, 9]], align="sequence")},
        array_type=array_type,
    )
    expected = {
        "input_ids": np.array([[5, 6, 1, 2, 3, 9, 0, 0]]),
        "position_ids": np.array([[0, 1, 2, 2, 3, 1, 0, 0]]),
        "subtree_end": np.array([[6, 5, 3, 5, 5, 6, 7, 8]], np.int32),
        "targets": np.array([6, 1, 6, 2, 3, 9]),
        "predictors": np.array([0, 1, 0, 1, 3, 0]),
        "response_offsets": np.array([0, 2, 5, 6]),
        "row_bins": np.array([0, 0, 0]),
        "sequence_offsets": np.array([0, 3, 7, 9]),
        "loss_mask": np.ones(6, np.float32),
        "rewards": np.array([0, 1, 0, 0, 2, 3], np.float32),
        "ages": np.arange(1, 10, dtype=np.float32),
    }
    assert_same(batch, expected)
    metrics = batch.metrics
    assert metrics["batch/tokens"] == 9
    assert metrics["batch/token_ratio"] == 1.5
    assert metrics["batch/padding_fraction"] == 0.25
    assert metrics["batch/bins"] == 1
    assert repr(batch).startswith("Batch of 3 rows in 1 bin, 9 tokens, 25.0% padding")


def test_routes_of_shared_tokens_are_of_the_first_row_that_captured_them():
    routes = [np.full((4, 1, 1), row) for row in (1, 2)] + [np.full((2, 1, 1), 3)]
    routes[0] = routes[0][:1]  # not captured further
    batch = build(layout="tree", fields={"routes": fc.RoutedExperts(routes, starts=[0] * 3)})
    assert batch.input_ids.tolist() == [[1, 2, 4, 5, 6, 3, 7]]
    assert batch["routes"].ravel().tolist() == [1, 2, 2, 0, 2, 3, 3]
    assert batch.router_padding_mask.tolist() == [[False, False, False, True, False, False, False]]
    left = batch.to_layout("right")
    assert left["routes"].squeeze().tolist() == [[1, 2, 2, 0], [1, 2, 2, 2], [3, 3, 0, 0]]


@pytest.mark.parametrize("lacks", [0, 1])
def test_routes_of_turns_that_are_rows(lacks):
    """Of its last token a turn has no routes, or a placeholder: the next one read it."""
    prompts, responses = [[1], [1, 2, 3, 4]], [[2, 3], [5]]
    routes = [np.full((3 - lacks, 1, 1), 1), np.full((5 - lacks, 1, 1), 2)]
    options = {"layout": "tree", "pad_token_id": 0, "array_type": "numpy"}
    for starts in (None, [0, 2]):
        cut = [row[start:] for row, start in zip(routes, starts or [0, 0], strict=True)]
        fields = {"routes": fc.RoutedExperts(cut, starts=starts)}
        batch = fc.build_batch(prompts, responses, fields=fields, **options)
        assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5]]
        assert batch["routes"].ravel().tolist() == [1, 1, 2, 2, 0 if lacks else 2]
        assert batch.router_padding_mask.tolist() == [[False] * 4 + [bool(lacks)]]


@pytest.mark.parametrize("source", ["plan", "bins"])
def test_a_plan_is_compared_with_the_rows(source):
    plan = prefix_tree([(1, 2), (1, 2), (3,)], [(4, 5), (4, 6), (7,)])
    layout = fc.Tree(plan=plan if source == "plan" else plan.pack(fc.Tree(10)))
    assert_same(build(layout=layout), build(layout="tree"))
    message = (
        "3 tokens in common for row 1 and row 0, but they differ at token 1; pass a plan of these"
    )
    with pytest.raises(ValueError, match=message):
        build([(1, 2), (1, 9), (3,)], layout=layout)
    with pytest.raises(ValueError, match=r"3 tokens in common .* they differ at token 2"):
        build(responses=[(4, 5), (9, 6), (7,)], layout=layout)
    with pytest.raises(ValueError, match=r"has 4 tokens in row 1, but the row has 5; pass a plan"):
        build([(1, 2), (1, 2, 2), (3,)], layout=layout)
    with pytest.raises(ValueError, match=r"has 3 sequences, but there are 1 rows; pass a plan"):
        build([(1, 2)], [(4, 5)], layout=layout)
    large = [list(range(200_000)) for _ in range(2)]
    plan = prefix_tree(large, [[1], [2]])
    large[1][150_000] = 0
    for rows in (large, [np.array(row) for row in large]):
        with pytest.raises(ValueError, match="differ at token 150000"):
            build(rows, [[1], [2]], layout=fc.Tree(plan=plan))


def test_rows_share_what_is_the_same_for_the_model():
    images = {"images": fc.PerRow([np.ones((1, 2))] * 3, concat=True)}
    assert build(layout="tree", fields=images).input_ids.shape == (1, 10)
    same = fc.Tree(same_inputs=["a", "a", "b"])
    assert build(layout=same, fields=images).input_ids.shape == (1, 7)
    assert build(layout=fc.Tree(same_inputs=[1, 2, 3])).input_ids.shape == (1, 10)
    plan = prefix_tree([(1, 2), (1, 2), (3,)], [(4, 5), (4, 6), (7,)])
    message = "each row has inputs of its own .PerRow with concat=True.; pass same_inputs"
    with pytest.raises(ValueError, match=message):
        build(layout=fc.Tree(plan=plan), fields=images)
    with pytest.raises(ValueError, match=r"3 tokens in common .* but their same_inputs differ"):
        build(layout=fc.Tree(plan=plan, same_inputs=[0, 1, 2]))
    for layout in (fc.Tree(same_inputs=[0, 1]), fc.Tree(plan=plan, same_inputs=[0, 1])):
        with pytest.raises(ValueError, match=r"same_inputs has 2 rows, but .* has 3"):
            build(layout=layout)
    # Arrays of rows that are no inputs of the model do not matter.
    notes = {"notes": fc.PerRow(["x", "y", "z"])}
    assert build(layout="tree", fields=notes).input_ids.shape == (1, 7)


def test_what_a_tree_does_not_have():
    for labels in ("aligned", "shifted"):
        with pytest.raises(ValueError, match=r"labels is .*batch.targets .*batch.predictors"):
            build(layout="tree", labels=labels)
    with pytest.raises(ValueError, match="share of the layout is 'group', but uids is None"):
        build(layout=fc.Tree(share="group"))
    with pytest.raises(ValueError, match="row 1 has 4 tokens"):
        build(layout=fc.Tree(3), prompts=((1,), (1, 2), (3,)))
    with pytest.raises(ValueError, match="pad_to"):
        build(layout=fc.Tree(pad_to=6))
    headless = {"prompts": [[1], []], "responses": [[2], [1, 2]], "layout": "tree"}
    for masks in ({}, {"loss_mask": [[1], [1, 1]]}, {"loss_mask": [[1], [0, 1]]}):
        batch = build(**headless, **masks)
        assert batch.input_ids.tolist() == [[1, 2]]
        assert batch.predictors.tolist() == [0, 0, 0]
        assert batch.loss_mask.tolist() == [1, 0, 1]
        assert batch.metrics["batch/tokens_without_predecessor"] == 1
    with pytest.raises(ValueError, match="fields has 'predictors', but batch"):
        build(layout="tree", fields={"predictors": fc.PerRow([1, 2, 3])})
    with pytest.raises(ValueError, match=r"context parallelism"):
        build(layout="tree").cp_split(2, 0)


@share(3)
@given(drawn=st.data())
def test_values_of_shards_are_those_of_the_jagged_layout(drawn):
    """Padding rows have no values, and share nothing."""
    data, layout, _, more = drawn.draw(cases("numpy", max_many=20))
    assume(layout.plan is None)
    lens = [len(prompt) + len(response) for prompt, response in zip(*data[:2], strict=True)]
    plan = fc.plan_step(lens, dp_size=drawn.draw(st.integers(1, 4)))
    for rank in range(plan.dp_size):
        options = {**data._asdict(), **more, "shard": plan.shard(0, rank), "pad_token_id": 9}
        found = fc.build_batch(**options, layout=layout, array_type="numpy")
        jagged = fc.build_batch(**options, layout="jagged", array_type="numpy")
        for key, value in jagged.items():
            if key in found and jagged.spec.table[key].align != "sequence":
                assert_same({key: found[key]}, {key: value})
        assert found.is_padding == jagged.is_padding
        assert_same(unrouted(found.to_layout("jagged")), unrouted(jagged))


@pytest.mark.parametrize("pad_rows", ["copy_first", "synthetic"])
def test_padding_rows_share_nothing(pad_rows):
    rows = [(1, 2), (3,), (1, 2)], [(4, 5), (7,), (4, 6)]
    shard = fc.plan_step([4, 2, 4], dp_size=2, pad_rows=pad_rows).shard(0, 1)
    assert shard.is_padding.tolist() == [False, True]
    batch = build(*rows, shard=shard, layout="tree")
    prompt, response = ([1, 2], [4, 5]) if pad_rows == "copy_first" else ([0], [0])
    expected = {
        "input_ids": [*prompt, *response, 1, 2, 4, 6],
        "position_ids": [*range(len(prompt + response)), 0, 1, 2, 3],
        "targets": [4, 6, *response],
        "loss_mask": [1, 1, *[0 for _ in response]],
    }
    for key, values in expected.items():
        assert batch[key].ravel().tolist() == values, key
    assert batch.predictors.tolist()[:2] == [len(prompt + response) + at for at in (1, 2)]
    assert batch.metrics["batch/tokens"] == 4


def test_a_batch_on_its_way(array_type):
    columns = {"prompts": [[1, 2], [1, 2], [3]], "responses": [[4, 5], [4, 6], [7]]}
    batch = by_builder(columns, pad_token_id=0, layout="tree", array_type=array_type)
    assert_same(batch, build(layout="tree"))
    if array_type == "torch":
        assert_same(batch.to("cpu"), batch)
        wide = batch.pad_on_device(dtypes={"loss_mask": "float64"})
        assert wide.loss_mask.tolist() == batch.loss_mask.tolist()
        assert (
            wide.to_layout("left").input_ids.tolist() == batch.to_layout("left").input_ids.tolist()
        )


def test_a_collator_attaches_a_mask(array_type):
    samples = [
        {"prompt": [1, 2], "response": [4, 5]},
        {"prompt": [1, 2], "response": [4, 6]},
        {"prompt": [3], "response": [7]},
    ]
    collate = fc.Collator(pad_token_id=0, layout="tree", kernel="dense", array_type=array_type)
    batch = pickle.loads(pickle.dumps(collate))(samples)
    plain = build(layout="tree")
    assert list(batch) == ["input_ids", "attention_mask", "position_ids", "use_cache"]
    assert np.array_equal(batch["attention_mask"], plain.dense_mask())
    assert batch.to_layout("left").input_ids.tolist() == plain.to_layout("left").input_ids.tolist()
    assert "kernel='dense'" in repr(collate)
    names = {"input_ids": "ids", "attention_mask": "mask"}
    packed = fc.Collator(
        pad_token_id=0, layout=fc.Packed(8), kernel="dense", outputs=names, array_type=array_type
    )
    assert packed(samples)["mask"].shape == (2, 1, 8, 8)
    # Whole sequences have no labels in a tree.
    rows = [{"input_ids": [1, 2, 3], "prompt_len": 1}, {"input_ids": [1, 2], "prompt_len": 1}]
    assert collate(rows).targets.tolist() == [2, 3, 2]
    labelled = collate([{"input_ids": [1, 2, 3], "labels": [-100, -100, 3]}])
    assert labelled.loss_mask.tolist() == [1]
    assert "labels" not in labelled
    first = collate([{"input_ids": [1, 2], "labels": [1, 2]}])  # nothing predicts the first token
    assert first.loss_mask.tolist() == [0, 1]
    if array_type == "torch":
        block = fc.Collator(pad_token_id=0, layout="tree", kernel="block")(samples)
        assert type(block["attention_mask"]).__name__ == "BlockMask"


CHAIN = """
import resource
import numpy as np
import fastcollate as fc

rows, turn = 6_000, 2
ids = np.arange(1, rows * turn + 2)
prompts = [ids[: 1 + row * turn] for row in range(rows)]
responses = [np.r_[ids[len(prompt) :][:turn], 0] for prompt in prompts]  # each ends otherwise
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
batch = fc.build_batch(
    prompts, responses, pad_token_id=0, layout=fc.Tree(), array_type="numpy"
)
pos, inv = batch.loss_positions()
assert (batch.targets == np.concatenate(responses)).all()
assert (pos[inv] == batch.predictors).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_chain_of_prefixes_takes_no_memory_of_its_square():
    """Every row begins with all but the end of the one before it, as turns of a trajectory may."""
    run = subprocess.run([sys.executable, "-c", CHAIN], capture_output=True, text=True, check=True)
    kilobytes = int(run.stdout)
    assert kilobytes < 100_000  # a span of each row's path for each row above it: 720 MB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "tree", "kernel": "sparse"}, "kernel is 'sparse'; pass 'dense', 'block'"),
        ({"layout": "tree", "kernel": "flash"}, "kernel is 'flash', which takes no trees"),
        ({"layout": "tree", "kernel": "block", "array_type": "numpy"}, "pass kernel='dense', or"),
    ],
)
def test_masks_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        fc.Collator(pad_token_id=0, **options)


@share(3)
@given(drawn=st.data())
def test_plans_of_other_rows_never_write_other_tokens(drawn):
    data, layout, _, _ = drawn.draw(cases("numpy", max_many=20))
    prompts, responses = [list(map(list, rows)) for rows in data[:2]]
    row = drawn.draw(st.integers(0, len(prompts) - 1))
    if stream := (prompts if drawn.draw(st.booleans()) else responses)[row]:
        stream[drawn.draw(st.integers(0, len(stream) - 1))] = 77
    assume(layout.plan is not None)
    options = {"pad_token_id": 9, "array_type": "numpy", "loss_mask": data.loss_mask}
    try:
        batch = fc.build_batch(prompts, responses, layout=layout, **options)
    except ValueError as error:
        if "in common" in str(error):
            return
        raise
    jagged = fc.build_batch(prompts, responses, layout="jagged", **options)
    assert_same(batch.to_layout("jagged"), jagged)


def test_tables_that_are_no_tree():
    tables = build(layout=fc.Tree(pad_to=9)).plan.to_dict()
    assert tables["sequence_segments"].tolist() == [
        [0, 0, 4, 0, 0],
        [1, 3, 1, 0, 4],
        [2, 0, 2, 0, 5],
    ]
    again = fc.planning.Plan._from_dict(tables)
    assert again.layout == "tree"
    for place, values in {
        (0, 1): [1],  # the first row shares with none
        (1, 1): [4, 2, 2**62],
        (1, 2): [0, 2],
        (1, 4): [5],  # padding inside of a tree
        (2, 1): [1],
        (1, 0): [0, 3],
        (2, 3): [1],
    }.items():
        for value in values:
            changed = {name: np.array(table) for name, table in tables.items()}
            changed["sequence_segments"][place] = value
            with pytest.raises(ValueError, match="not a valid plan"):
                fc.planning.Plan._from_dict(changed)
    for name in ("sequence_segments", "response_segments"):
        with pytest.raises(ValueError, match="not a valid plan"):
            fc.planning.Plan._from_dict({**tables, name: tables[name][:-1]})


@share(2)
@given(drawn=st.data())
def test_merged_rows_share_tokens(drawn, array_type):
    data = drawn.draw(trajectories(max_long_len=20))
    if drawn.draw(st.booleans()):
        turns = [[9, *prompt] for prompt in data.turns.prompts]
        data = data._replace(turns=data.turns._replace(prompts=turns))
    policy = drawn.draw(st.sampled_from(["exact", "branch", "realign"]))
    more = drawn.draw(extras(data.turns, array_type)) | {"pad_token_id": 7}
    more.pop("labels", None)
    more.pop("uids", None)
    more |= {"trajectory_ids": None, "is_last_step": None, **drawn.draw(name_turns(data))}
    arguments = {**data.turns._asdict(), **more}
    has_images = any(getattr(f, "concat", False) for f in more.get("fields", {}).values())
    tokens = {"prompts": data.turns.prompts, "responses": data.turns.responses}
    names = {name: more[name] for name in ("trajectory_ids", "is_last_step")}
    count = len(merge_turns_loops(**tokens, **names, policy=policy).rows)
    reference = {"share": "all", "same_inputs": list(range(count)) if has_images else None}
    merge = fc.planning.Merge(policy, rewards="sum")
    built = {"merge": merge, "array_type": array_type, "layout": "tree"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = build_merged_batch_loops(
                **arguments, merge=merge, layout="tree", **reference
            )
        except ValueError:
            with pytest.raises(ValueError, match="prompt"):
                fc.build_batch(**arguments, **built)
            return
        batch = fc.build_batch(**arguments, **built)
        jagged = fc.build_batch(**arguments, **{**built, "layout": "jagged"})
    assert_same(batch, expected)
    assert_same(unrouted(batch.to_layout("jagged")), unrouted(jagged))
    per = {"per": "turn", "missing": -1}
    found, plain = (
        batch.gather(batch.targets, align="response", **per),
        jagged.gather(jagged.targets, align="response", **per),
    )
    assert rows_of(found) == rows_of(plain)
    assert batch.metrics["batch/trained_tokens"] == jagged.metrics["batch/trained_tokens"]


def test_a_mask_that_is_not_there_is_named():
    batch = fc.build_batch([[1], [1]], [[2], [3]], pad_token_id=0, layout="tree")
    with pytest.raises(AttributeError, match=r"pass batch\.dense_mask\(\) or batch\.block_mask"):
        _ = batch.attention_mask
    assert not hasattr(batch, "attention_mask")
    assert batch["attention_mask"] is REFUSED


@pytest.mark.parametrize("option", ["algorithm", "cost", "oversize", "share"])
def test_arrays_are_no_options(option):
    with pytest.raises((TypeError, ValueError), match=f"{option} (is|has) .*pass "):
        fc.Tree(16, **{option: np.zeros((3, 2))})


def test_one_value_for_several_next_tokens_is_warned_of(array_type):
    rows = {"prompts": [[1, 2], [1, 2], [3]], "responses": [[5, 6], [5, 7], [8]]}
    how = {"pad_token_id": 0, "array_type": array_type}

    def gather(layout, **shift):
        batch = fc.build_batch(**rows, **how, layout=layout)
        return batch.gather(batch.input_ids, align="sequence", **shift)

    with pytest.warns(UserWarning, match="at 1 fork of the tree, several tokens get"):
        gather(fc.Tree(16), shift="next_token")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gather(fc.Tree(16), shift="none")
        gather(fc.Tree(16, fork_early=True), shift="next_token")
        gather(fc.Packed(16), shift="next_token")
