"""Fields with any number of values per token: `fc.Field(rows, ragged=True)`."""

import copy
import dataclasses
import pickle
import re

import numpy as np
import pytest
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from raising import raises
from recorded import recorded
from strategies import ragged_fields, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops
from fastcollate.testing.reference.ragged import as_lists

LAYOUTS = {
    **{name: name for name in ("left", "right", "two_segment", "jagged")},
    "packed": fc.Packed(64, multiple_of=3),
    "shifted": fc.Packed(64, shift="next_token"),
    "tree": fc.Tree(64),
}

PROMPTS = [[1, 2], [3], [4, 5, 6]]
RESPONSES = [[7, 8, 9], [10], [11, 12]]
SUPPORT = [[[7, 70], [], [9, 90, 91]], [[10]], [[11], [12, 120]]]


def small(rows=SUPPORT, layout="left", **options):
    field = {"align", "dtype", "own_token", "fill", "gap_fill", "spread", "default"}
    of_field = {name: options.pop(name) for name in field & set(options)}
    fields = {"support": fc.Field(rows, ragged=True, **of_field)}
    return make_batch(PROMPTS, RESPONSES, fields=fields, layout=layout, **options)


def with_prompts(data):
    """Return rollouts without empty prompts: shifted values of first tokens have no position."""
    return data._replace(prompts=[row if len(row) else [1] for row in data.prompts])


def lists_of(batch, key="support"):
    """Return the values of each row's tokens, by `rows`."""
    return [row[key].to_list() for row in batch.rows()]


def of_positions(batch):
    """Return the lists of the flattened grid."""
    return fc.Ragged(batch["support"], batch["support_offsets"]).to_list()


def built(data, field, layout, array_type):
    fields = {"before": fc.Field(data.responses), "support": field}
    return make_batch(
        data.prompts, data.responses, fields=fields, layout=layout, array_type=array_type
    )


@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one not in ("packed", "shifted")])
@share(5)
@given(drawn=st.data())
def test_equals_the_loops(layout, array_type, drawn):
    data = drawn.draw(rollouts())
    field = drawn.draw(ragged_fields(data, array_type))
    layout = fc.Tree(1 << 20) if layout == "tree" else layout
    arguments = {"pad_token_id": -3, "fields": {"support": field}, "layout": layout}
    found = fc.build_batch(data.prompts, data.responses, array_type=array_type, **arguments)
    assert_same(found, build_batch_loops(data.prompts, data.responses, **arguments))


@pytest.mark.parametrize("layout", LAYOUTS)
@share(7)
@given(drawn=st.data())
def test_ways_back(layout, array_type, drawn):
    """Rows, pickles, selections, other layouts and copies have the same lists."""
    data = with_prompts(drawn.draw(rollouts(max_long_len=20)))
    field = drawn.draw(ragged_fields(data, array_type))
    how = {"packed": fc.Packed(64, multiple_of=3), "shifted": fc.Packed(64, shift="next_token")}
    batch = built(data, field, how.get(layout, LAYOUTS[layout]), array_type)
    kept = as_lists(dataclasses.replace(field, dtype=None)).rows
    expected = lists_of(built(data, field, "jagged", array_type))
    assert [list(map(len, row)) for row in expected] == [list(map(len, row)) for row in kept]

    def same(found, rows=expected):
        np.testing.assert_equal(lists_of(found), rows)

    same(batch)
    for changed in (pickle.loads(pickle.dumps(batch)), copy.copy(batch)):
        assert_same(changed, batch)
    other = drawn.draw(st.sampled_from(sorted(LAYOUTS)))
    same(batch.to_layout(LAYOUTS[other]))
    if not batch.plan.has_bins:
        some = drawn.draw(st.lists(st.sampled_from(range(len(kept))), min_size=1, unique=True))
        same(batch.select(rows=some), [expected[row] for row in some])
        first = drawn.draw(st.integers(0, len(kept) - 1))
        same(batch.select(rows=list(range(first, len(kept)))), expected[first:])


def gathered(batch, **options):
    """Return the lists of responses, gathered from all positions."""
    positions = fc.Ragged(batch["support"], batch["support_offsets"])
    return as_lists(fc.Field(batch.gather(positions, **options), ragged=True)).rows


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), fc.Packed(5, oversize="split")])
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_gathered_lists(layout, rank, array_type):
    """Lists of all positions return to rows and to turns, also from the shards of a step."""
    prompts = [[1, 2], [1, 2, 3, 4, 5], [9], [8, 8], [7, 7, 7]]
    responses = [[3, 4], [6, 7], [10, 11, 12], [5], [4, 4]]
    lists = [
        [[turn] * ((turn + at) % 3) for at in range(len(r))] for turn, r in enumerate(responses)
    ]
    inputs = {
        "trajectory_ids": ["a", "a", "b", "c", "d"],
        "prompts": prompts,
        "responses": responses,
    }
    merge = fc.merge_turns(**inputs)
    shard = None if rank is None else fc.plan_step(merge, dp_size=2).shard(0, rank)
    batch = make_batch(
        **inputs,
        fields={"support": fc.Field(lists, ragged=True)},
        layout=layout,
        array_type=array_type,
        merge=merge,
        shard=shard,
    )
    rows = [[*lists[0], [], *lists[1]], *lists[2:]]
    if array_type == "torch":
        assert type(batch["support"]).__name__ == "Tensor"
    own = range(4) if shard is None else shard.rows.tolist()
    assert gathered(batch, align="response") == [rows[row] for row in own]
    turns = gathered(batch, align="response", per="turn")
    kept = {turn for row in own for turn in ([0, 1] if row == 0 else [row + 1])}
    assert turns == [one if turn in kept else [] for turn, one in enumerate(lists)]


@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one != "tree"])
def test_gathered_lists_of_sequences(layout):
    rows = [[*p, *r] for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    lists = [[[token] * at for at, token in enumerate(row)] for row in rows]
    batch = small(lists, LAYOUTS[layout], align="sequence")
    expected = [row[len(p) :] for row, p in zip(lists, PROMPTS, strict=True)]
    assert gathered(batch, align="sequence", shift="none") == expected


def test_lists_that_cannot_be_gathered():
    batch = small()
    positions = fc.Ragged(batch["support"], batch["support_offsets"])
    with pytest.raises(ValueError, match=r"x has a list per position.*; leave missing out"):
        batch.gather(positions, missing=0)
    with raises("x has 2 lists, but align is 'response'.*pass a list for each"):
        batch.gather(positions[:2])


def test_lists_of_a_tree_with_as_many_targets_as_positions():
    rows = [[1], [1]], [[2, 3], [2, 4]]
    batch = make_batch(*rows, layout=fc.Tree())
    assert batch.input_ids.size == batch.targets.size
    lists = fc.Ragged(np.arange(8), [0, 2, 4, 6, 8])
    values, counts = batch.gather(lists, align="sequence", shift="none")
    assert values.to_list() == [[2, 3, 4, 5], [2, 3, 6, 7]]
    assert counts.to_list() == [[2, 2], [2, 2]]


ARRAYS = [np.array([1, 2]), np.array([1, 1, 0])]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((ARRAYS[0], ARRAYS[1][:2]), r"support\[0\] has 2 items, but responses\[0\] has 3"),
        (
            (ARRAYS[0], np.array([1, 1, 1])),
            r"support\[0\] has 2 values, but the counts of its tokens add up to 3; pass all",
        ),
        ((ARRAYS[0], np.array([1, 2, -1])), r"support\[0\]\[2\] has a count of -1, but a.*; pass"),
        ((ARRAYS[0], np.array([1, 0.5, 0.5])), r"support\[0\] has dtype float64"),
        (
            (np.array([[1], [2]]), ARRAYS[1]),
            r"support\[0\] is \(array.*values, counts\) of two 1-D",
        ),
        ((ARRAYS[0], ARRAYS[1][None]), r"support\[0\] is \(array.*values, counts\) of two 1-D"),
        ((ARRAYS[0], ARRAYS[1] == 1), r"support\[0\] is \(array.*values, counts\) of two 1-D"),
        (
            (ARRAYS[0], np.full(3, 2**63 - 1)),
            r"support\[0\] has 2 values, but .* add up to 9223372036",
        ),
        (None, r"support\[0\] is None \(NoneType\); fill or drop missing rows first"),
        ([[1], None, [2]], r"support\[0\]\[1\] is None"),
        ([[1], 5, [2]], r"support\[0\]\[1\] is 5 \(int\)"),
        ([7, 8, 9], r"support\[0\]\[0\] is 7 \(int\)"),
        ([[1], [2, "x"], [2]], r"support\[0\]\[1\]\[1\] is 'x' \(str\)"),
        ([[1], [2, float("nan")], [2]], r"support\[0\]\[1\]\[1\] is nan"),
        ([[1], [[2]], [2]], r"support\[0\]\[1\]\[0\] is \[2\] \(list\)"),
        ([[1], [3, 2**40], []], r"support\[0\]\[1\]\[1\] is 1099511627776, which does not fit"),
        (
            (np.array([1, 2**40]), np.array([1, 0, 1])),
            r"support\[0\]\[2\] is 1099511627776, which does not fit int32",
        ),
        (np.array([[1], [2], [-1]]), r"support\[0\] is array.*fc.unpad\(row, mask=row != pad\)"),
        ([[1], [2]], r"support\[0\] has 2 items, but responses\[0\] has 3"),
    ],
)
def test_bad_rows(row, message):
    with pytest.raises((TypeError, ValueError), match=message):
        small([row, *SUPPORT[1:]])
    builder = fc.BatchBuilder(pad_token_id=0)
    with pytest.raises((TypeError, ValueError), match=r"support\[0\]"):
        builder.add(PROMPTS[0], RESPONSES[0], fields={"support": fc.Field(row, ragged=True)})
    assert len(builder) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fill": 3}, r"support is ragged and has fill=3"),
        ({"gap_fill": 3}, r"support is ragged and has gap_fill=3"),
        ({"default": 3}, r"support is ragged and has default=3"),
        ({"spread": "last"}, r"support is ragged and has spread='last'"),
        ({"own_token": "no"}, r"own_token of support is 'no'; pass 'keep', 'add', 'error'"),
        ({"own_token": "add", "dtype": "float32"}, r"ids of tokens are integers; pass dtype='int"),
        ({"align": "tokens"}, r"align of support is 'tokens'"),
        ({"rows": SUPPORT[:2]}, r"support has 2 rows, but prompts has 3"),
        ({"rows": fc.ragged(RESPONSES)}, r"support is Ragged .*pass a tuple \(values, counts\)"),
        ({"rows": np.ones((3, 2))}, r"support is float64 ndarray .*pass a tuple \(values, counts"),
        ({"dtypes": {"support_offsets": "int32"}}, r"support_offsets is int32; pass one of int64"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        small(**options)


@pytest.mark.parametrize("own_token", ["add", "error"])
def test_lists_that_are_padded_are_no_ids(own_token):
    padded = [[[2, -1], [3, 4]]]
    field = fc.Field(padded, ragged=True, own_token=own_token)
    with pytest.raises(
        ValueError, match=r"support\[0\]\[0\] is -1; token ids are integers from 0 "
    ):
        fc.build_batch([[1]], [[2, 3]], pad_token_id=0, fields={"support": field})


def test_other_fields_have_no_lists():
    with pytest.raises(ValueError, match=r"loss_mask is an fc\.Field with ragged=True"):
        fc.build_batch(PROMPTS, RESPONSES, pad_token_id=0, loss_mask=fc.Field(SUPPORT, ragged=True))
    with pytest.raises(ValueError, match="has own_token='add', but is not ragged"):
        fc.build_batch(
            PROMPTS, RESPONSES, pad_token_id=0,
            fields={"support": fc.Field(RESPONSES, own_token="add")},
        )  # fmt: skip
    fields = {"support": fc.Field(SUPPORT, ragged=True), "support_offsets": fc.Field(RESPONSES)}
    with pytest.raises(ValueError, match=re.escape("the offsets of fields['support']")):
        fc.build_batch(PROMPTS, RESPONSES, pad_token_id=0, fields=fields)


def test_a_changed_pickle_is_refused():
    batch = small()
    function, arguments, *_ = batch.__reduce__()
    kind, data, *state = arguments
    with pytest.raises(ValueError, match="support has 8 values, but support_offsets ends at"):
        function(kind, {**data, "support": data["support"][:-1]}, *state)


@given(drawn=st.data())
def test_own_tokens(drawn):
    """Ids that are missing among the values of their tokens are added at the end, or an error."""
    data = with_prompts(drawn.draw(rollouts(max_long_len=10)))
    align = drawn.draw(st.sampled_from(["response", "sequence"]))
    rows = zip(data.prompts, data.responses, strict=True)
    ids = [[int(one) for one in (r if align == "response" else [*p, *r])] for p, r in rows]
    some = [one for row in ids for one in row if one >= 0] or [0]
    few = st.lists(st.sampled_from(some), max_size=4)
    lists = [[drawn.draw(few) for _ in row] for row in ids]
    expected, missing = [], []
    for row, (own, of_row) in enumerate(zip(ids, lists, strict=True)):
        pairs = list(zip(own, of_row, strict=True))
        expected.append([[*one, id_] if one and id_ not in one else one for id_, one in pairs])
        missing += [(row, at) for at, (id_, one) in enumerate(pairs) if one and id_ not in one]

    def build(own_token, rows):
        field = fc.Field(rows, align, ragged=True, dtype="int64", own_token=own_token)
        layout = drawn.draw(st.sampled_from(sorted(LAYOUTS)))
        return make_batch(
            data.prompts, data.responses, fields={"support": field}, layout=LAYOUTS[layout]
        )

    added = build("add", lists)
    assert lists_of(added) == expected
    assert added.metrics["batch/own_tokens_added_to_support"] == len(missing)
    other = added.to_layout("jagged")
    assert other.metrics["batch/own_tokens_added_to_support"] == len(missing)
    assert lists_of(build("keep", lists)) == lists
    assert lists_of(build("error", expected)) == expected
    if missing:
        with pytest.raises(
            ValueError, match=re.escape("support[{}][{}] does ".format(*missing[0]))
        ):
            build("error", lists)


@given(drawn=st.data())
def test_a_fixed_number_with_padding(drawn):
    """Rows (tokens, k) with -1 after the values of a token, there and back."""
    k = drawn.draw(st.integers(1, 4))
    counts = [[drawn.draw(st.integers(0, k)) for _ in row] for row in RESPONSES]
    fixed = [
        np.array([[*range(count), *[-1] * (k - count)] for count in row]).reshape(-1, k)
        for row in counts
    ]
    batch = small([fc.unpad(row, mask=row != -1) for row in fixed], "jagged")
    assert lists_of(batch) == [[list(range(count)) for count in row] for row in counts]
    lists = fc.Ragged(batch["support"], batch["support_offsets"])
    padded = fc.pad(lists, fill=-1, pad_to=k, array_type="numpy", dtype="int64")
    np.testing.assert_array_equal(padded, np.concatenate(fixed))


def test_arrow():
    pa = pytest.importorskip("pyarrow")
    expected = small()
    kinds = [
        pa.list_(pa.list_(pa.int32())),
        pa.large_list(pa.list_(pa.int64())),
        pa.list_(pa.large_list(pa.int16())),
        pa.list_view(pa.list_view(pa.int32())),
    ]
    for kind in kinds:
        array = pa.array([[[1]], *SUPPORT], kind)[1:]
        parts = pa.chunked_array([pa.array(SUPPORT[:1], kind), pa.array(SUPPORT[1:], kind)])
        for rows in (array, parts, pa.table({"support": array})):
            assert_same(small(rows), expected)
    for rows, message in [
        ([SUPPORT[0], None, SUPPORT[2]], r"support\[1\] is null"),
        ([[[1], None, []], *SUPPORT[1:]], r"support\[0\]\[1\] is null"),
        ([[[1], [None], []], *SUPPORT[1:]], r"support\[0\]\[1\] is null"),
        (RESPONSES, r"pass lists of lists of integers"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            small(pa.array(rows))


@pytest.mark.parametrize("layout", ["left", "jagged", "tree", fc.Packed(64)])
@pytest.mark.parametrize("case", recorded("skyrl_sample_support")["cases"])
def test_merged_support_is_that_of_skyrl(case, layout):
    """Recorded from SkyRL, whose tokens have k ids or -1; there and back."""
    rows = [np.array(row).reshape(-1, 3) for row in case["support"]]
    batch = make_batch(
        case["prompts"],
        case["responses"],
        trajectory_ids=case["trajectory_ids"],
        merge="exact",
        fields={"support": fc.Field([fc.unpad(row, mask=row != -1) for row in rows], ragged=True)},
        layout=layout,
    )
    found = [fc.pad(row["support"], fill=-1, pad_to=3, array_type="numpy") for row in batch.rows()]
    assert [row.tolist() for row in found] == case["merged"]


def replayed(logits, inverse, support, offsets, targets):
    """Return log-probabilities of targets among their support, as in the docs."""
    import torch

    counts, places = offsets.diff(), inverse.flatten()
    tokens = torch.repeat_interleave(torch.arange(len(counts)), counts)
    scores = logits[places[tokens], support.long()]
    whole = logits.logsumexp(-1)[places]
    most = torch.zeros_like(whole)
    most = most.scatter_reduce(0, tokens, scores.detach(), "amax", include_self=False)
    sums = torch.zeros_like(whole).index_add(0, tokens, (scores - most[tokens]).exp())
    among = most + torch.where(counts > 0, sums, 1.0).log()
    chosen = logits[places, targets.flatten()]
    return chosen - torch.where(counts > 0, among, whole)


@NEEDS_TORCH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_replay_equals_a_mask_over_the_vocabulary(layout):
    import torch

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 40, size).tolist() for size in (3, 1, 5, 2)]
    responses = [rng.integers(1, 40, size).tolist() for size in (4, 7, 1, 0)]
    support = [
        [
            [] if rng.random() < 0.2 else [id_, *rng.choice(np.arange(40, 64), 5, False).tolist()]
            for id_ in row
        ]
        for row in responses
    ]
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, layout=LAYOUTS[layout],
        fields={"support": fc.Field(support, ragged=True)},
    )  # fmt: skip
    embedding = torch.nn.Embedding(64, 16, dtype=torch.float64)
    head = torch.nn.Linear(16, 64, dtype=torch.float64)
    hidden = embedding(batch.input_ids.flatten()).tanh()
    pos, inv = batch.loss_positions()
    logits = head(hidden[pos])
    found = replayed(logits, inv, batch["support"], batch["support_offsets"], batch.targets)

    is_kept = torch.zeros(inv.numel(), 64, dtype=torch.bool)
    for place, ids in enumerate(of_positions(batch)):
        is_kept[place, ids] = True
        is_kept[place] |= not ids
    dense = logits[inv.flatten()].masked_fill(~is_kept, -torch.inf).log_softmax(-1)
    dense = dense.gather(-1, batch.targets.flatten()[:, None])[:, 0]
    trained = batch.loss_mask.flatten() != 0
    assert int(trained.sum()) == sum(map(len, responses))
    torch.testing.assert_close(found[trained], dense[trained], atol=1e-12, rtol=0)
    gradients = [
        torch.autograd.grad(one[trained].sum(), [*head.parameters()], retain_graph=True)
        for one in (found, dense)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


@NEEDS_TORCH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_to_devices(layout):
    import torch

    batch = small(layout=LAYOUTS[layout], array_type="torch")
    assert_same(batch.to("cpu"), batch)
    on_meta = batch.to(torch.device("meta"))
    assert on_meta["support"].shape == batch["support"].shape
    assert on_meta["support_offsets"].shape == batch["support_offsets"].shape


def test_calls_have_support():
    calls = fc.rollouts.Calls(
        [[5, 6], [5, 6], [1]], [[7], [8, 9], [3]], support=[[[7, 1]], None, [[3]]]
    )
    batch = make_batch(**calls.batch)
    assert lists_of(batch) == [[[7, 1]], [[], []], [[3]]]
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    builder.extend(calls)
    assert_same(builder.finish(), batch)


def test_gather_of_other_positions_names_the_rows_of_the_batch():
    """In a tree, sequences of ragged fields have other positions than input_ids."""
    batch = make_batch(
        *([[1, 2], [1, 2]], [[3, 4], [3, 5]]),
        layout="tree",
        fields={"x": fc.Field([[[1], [2], [3], [4]]] * 2, ragged=True, align="sequence")},
    )
    message = "x has 8 lists, but align is 'sequence', and the batch has 5 such positions"
    with pytest.raises(ValueError, match=rf"{message}.*batch\.rows\(\)"):
        batch.gather(fc.Ragged(batch.x, batch.x_offsets), align="sequence", shift="none")
    assert [row["x"].to_list() for row in batch.rows()] == [[[1], [2], [3], [4]]] * 2
