"""The tree layout: tokens that rows begin with in common once, against the loops."""

import pickle

import numpy as np
from conftest import share
from hypothesis import given
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.planning import prefix_tree
from fastcollate.testing.reference import assert_same, build_batch_loops, prefix_tree_loops
from fastcollate.testing.strategies import as_inputs, extras, forks, with_fields


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
    bins = None if capacity is None else plan.pack(capacity, **options)
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


@given(drawn=st.data())
def test_every_output_is_that_of_the_loops(drawn, array_type):
    data, layout, reference, more = drawn.draw(cases(array_type))
    inputs = drawn.draw(as_inputs(data))
    batch = fc.build_batch(**inputs, pad_token_id=9, layout=layout, array_type=array_type, **more)
    assert_same(batch, loops(data, reference, more))
    assert batch.plan.layout == "tree"


@given(drawn=st.data())
def test_positions_look_at_ancestors_and_themselves(drawn, array_type):
    data, layout, reference, more = drawn.draw(cases(array_type, max_many=40))
    batch = fc.build_batch(
        *data[:2],
        pad_token_id=9,
        layout=layout,
        array_type=array_type,
        loss_mask=data.loss_mask,
        uids=reference.get("uids"),
        fields=more.get("fields"),  # rows of images share nothing
    )
    names = ("share", "uids", "same_inputs")
    trie = prefix_tree_loops(*data[:2], **{k: reference[k] for k in names if k in reference})
    bins, width = batch.input_ids.shape
    expected = np.tile(np.eye(width, dtype=np.bool_), (bins, 1, 1))
    for bin_, rows in enumerate(reference["bins"] or [trie.order]):
        kept = sorted({position for row in rows for position in trie.paths[row]})
        columns, end = [], 0
        for position in kept:
            if trie.parents[position] < 0:
                end += -end % reference["multiple_of"]
            columns.append(end)
            end += 1
        expected[bin_][np.ix_(columns, columns)] = trie.mask[np.ix_(kept, kept)]
    ends = np.asarray(batch["subtree_end"])
    query, key = np.mgrid[:width, :width]
    assert np.array_equal((key <= query) & (query < ends[:, None, :]), expected)
    assert np.array_equal(np.asarray(batch.dense_mask())[:, 0], expected)
    assert np.array_equal(np.asarray(batch.subtree_end), ends)


LAYOUTS = [
    *(fc.Left(pad_to=700), fc.Right(multiple_of=3), fc.TwoSegment(), fc.Jagged()),
    *(fc.Packed.single_row(), fc.Packed(10**6, multiple_of=4), fc.Tree(), fc.Tree(10**6)),
]


def unrouted(batch):
    """Leave out what rows that share tokens have of the first one."""
    return {k: v for k, v in batch.items() if k not in ("routed_experts", "router_padding_mask")}


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
    tokens = batch.gather(batch.input_ids, of="sequence", shift="none")
    assert rows_of(tokens) == data.responses
    # What stands at a position is about the token that follows on it in each row.
    bins, width = batch.input_ids.shape
    places = np.arange(bins * width).reshape(bins, width)
    if array_type == "torch":
        places = batch.input_ids.new_tensor(places)
    before = batch.gather(places, of="sequence", shift="next_token", missing=0)
    assert np.asarray(before.values).tolist() == batch.predictors.tolist()
    shorter = batch.gather(places[:, :-1], of="sequence", shift="next_token", missing=0)
    assert np.asarray(shorter.values).tolist() == batch.predictors.tolist()
    of_rows = np.arange(len(data.prompts))
    put = batch.broadcast(of_rows, on="response")
    assert put.tolist() == np.repeat(of_rows, list(map(len, data.responses))).tolist()


def rows_of(ragged):
    return [row.tolist() for row in ragged]
