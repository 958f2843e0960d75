"""Audits: one token dropped, doubled or shifted anywhere is found and named."""

import pickle
from operator import add

import numpy as np
import pytest
from making import make_batch

import fastcollate as fc

LAYOUTS = [
    *("left", "right", "two_segment", "jagged"),
    *(fc.Packed(capacity=24), fc.Packed(capacity=24, shift="next_token")),
]
IDS = [str(layout) for layout in LAYOUTS]
RANKS = 2


class Step:
    """Turns of three lengths whose ids are all different, and batches of two ranks."""

    def __init__(self, layout, array_type="numpy", merge=None, **options):
        lens = [(3, 4), (2, 6), (5, 1), (3, 3), (4, 5), (2, 2), (3, 2)]
        ids = iter(range(1, 1000))
        self.prompts = [[next(ids) for _ in range(p)] for p, _ in lens]
        self.responses = [[next(ids) for _ in range(r)] for _, r in lens]
        self.plan = fc.plan_step(list(zip(*lens, strict=True)), dp_size=RANKS, layout=layout)
        self.turns = {"prompts": self.prompts, "responses": self.responses}
        self.batches = [
            fc.build_batch(
                **self.turns,
                pad_token_id=0,
                array_type=array_type,
                shard=self.plan.shard(0, rank),
                **options,
            )
            for rank in range(RANKS)
        ]

    def audit(self, **options):
        return self.plan.audit(self.batches, **self.turns, **options)

    def place_of(self, turn, position):
        """Return the rank, row and column of a token by its id, which is there once."""
        token = self.responses[turn][position]
        for rank, batch in enumerate(self.batches):
            found = np.argwhere(np.atleast_2d(np.asarray(batch["input_ids"])) == token)
            if len(found):
                return rank, *found[0].tolist()
        raise AssertionError(token)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("labels", [None, "aligned"])
def test_every_token_is_trained_once(layout, labels, array_type):
    step = Step(layout, array_type, labels=labels)
    audit = step.audit()
    assert audit.ok, audit
    audit.raise_if_failed()
    assert audit.counts == {"trained": 23}
    assert (audit.num_turns, audit.num_tokens) == (7, 23)
    assert audit.compared == ["ids", *(["labels"] if labels else [])]
    assert "23 sampled tokens of 7 turns: 23 trained" in repr(audit)
    for turn, response in enumerate(step.responses):
        (span,) = audit.spans(turn)
        assert (span.reason, span.position, span.length) == ("trained", 0, len(response))
        assert span.mini_batch == 0
        rank, row, column = step.place_of(turn, 0)
        assert (span.rank, span.row) == (rank, row)
        if str(layout).startswith("Packed"):
            assert span.column == column - (layout.shift == "next_token")


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_one_altered_id(layout):
    step = Step(layout)
    for turn, position in [(0, 0), (1, 5), (4, 2), (6, 1)]:
        rank, row, column = step.place_of(turn, position)
        ids = np.atleast_2d(step.batches[rank]["input_ids"])
        was, ids[row, column] = ids[row, column], 777
        audit = step.audit()
        (found,) = audit.findings
        assert found == (
            *("altered", turn, position, 1, rank, 0, rank, row, column, 777, was, None),
        )
        assert audit.problems == {"altered": 1}
        expected = f"altered: turn {turn}, position {position}, rank {rank}, mini-batch 0, "
        assert str(found) == f"{expected}row {row}, column {column}: 777 instead of {was}"
        with pytest.raises(ValueError, match=f"Audit failed: 1 altered(.|\n)*{expected}"):
            audit.raise_if_failed()
        ids[row, column] = was
    assert step.audit().ok


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_one_altered_prompt_and_padding(layout):
    step = Step(layout)
    ids = step.batches[0]["input_ids"].reshape(-1)
    place = np.flatnonzero(ids == step.prompts[1][1])[0]
    ids[place] = 778
    (found,) = step.audit().findings
    assert found[:4] == ("altered prompt", 1, 1, 1)
    ids[place] = step.prompts[1][1]
    if layout != "jagged" and (ids == 0).any():
        place = np.flatnonzero(ids == 0)[-1]
        ids[place] = 5
        (found,) = step.audit().findings
        assert (found.reason, found.turn) == ("padding", None)
        assert found.row * step.batches[0]["input_ids"].shape[-1] + found.column == place


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_ids_shifted_by_one(layout):
    step = Step(layout)
    ids = step.batches[1]["input_ids"].reshape(-1)
    ids[:] = np.roll(ids, 1)
    audit = step.audit()
    turns = {found.turn for found in audit.findings if found.reason == "altered"}
    assert turns == {3, 4, 5, 6} - set(range(7)) | {
        turn for turn in range(7) if step.plan.shard(0, 1).rows.tolist().count(turn)
    }
    assert all(found.rank == 1 for found in audit.findings)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_one_token_of_the_loss_mask(layout):
    step = Step(layout)
    for rank, batch in enumerate(step.batches):
        mask = np.atleast_2d(batch["loss_mask"])
        for row, column in np.argwhere(mask >= 0).tolist():
            was, mask[row, column] = mask[row, column], 1 - mask[row, column]
            audit = step.audit()
            (found,) = audit.findings
            assert found.reason == ("untrained" if was else "unsampled")
            assert (found.rank, found.row, found.column, found.length) == (rank, row, column, 1)
            if was:
                assert found in audit.spans(found.turn)
                assert sum(span.length for span in audit.spans(found.turn)) == len(
                    step.responses[found.turn]
                )
            mask[row, column] = was
    assert step.audit().ok


def test_one_row_shifted_in_the_loss_mask():
    step = Step("left")
    mask = step.batches[0]["loss_mask"]
    mask[0] = np.roll(mask[0], -1)
    kinds = {found.reason: found for found in step.audit().findings}
    assert set(kinds) == {"untrained", "unsampled"}
    assert kinds["untrained"][1:3] == (0, 3)


def test_a_loss_mask_of_the_users():
    masks = [[1, 0, 1, 1], [0.5] * 6, [1], [0, 0, 0], [1] * 5, [1, 1], [1, 0]]
    step = Step("left", loss_mask=masks)
    for audit in (step.audit(loss_mask=masks), step.audit(), step.plan.audit(step.batches)):
        assert audit.ok
        assert audit.counts == {"trained": 18, "masked": 5}
    assert [span.reason for span in step.audit().spans(0)] == ["trained", "masked", "trained"]
    assert step.audit(loss_mask=masks).compared == ["ids", "loss_mask"]
    whole = [[9] * len(p) + mask for p, mask in zip(step.prompts, masks, strict=True)]
    field = fc.Field(whole, align="sequence")
    assert step.audit(loss_mask=field).ok
    sequences = [*map(add, step.prompts, step.responses)]
    own = {"sequences": sequences, "prompt_lens": [*map(len, step.prompts)]}
    some = fc.Field([None if set(mask) == {1} else mask for mask in masks], default=1)
    assert step.plan.audit(step.batches, **own, loss_mask=some).ok
    # A mask of 0 that is not the user's, and another weight.
    mask = step.batches[0]["loss_mask"]
    mask[0, -1], mask[1, -1] = 0, 0.25
    found = {one.reason: one for one in step.audit(loss_mask=masks).findings}
    assert found["untrained"][1:4] == (0, 3, 1)
    assert found["weight"][1:4] == (1, 5, 1)
    assert (found["weight"].found, found["weight"].expected) == (0.25, 0.5)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_tokens_of_old_weights(layout):
    versions = fc.WeightVersions([3, 1, 3, 0, 2, 3, 3], current=3, max_lag=1)
    step = Step(layout, fields={"versions": versions})
    masks = [[1] * len(row) for row in step.responses]
    for audit in (step.audit(), step.audit(loss_mask=masks)):
        assert audit.ok, audit
        assert audit.counts == {"trained": 14, "masked": 9}
    assert [span.reason for span in audit.spans(1)] == ["masked"]
    row = step.place_of(0, 0)[0]
    mask = step.batches[row]["loss_mask"]
    mask[...] = 0  # of tokens that are young enough, too
    assert not step.audit(loss_mask=masks).ok


@pytest.mark.parametrize("labels", ["aligned", "shifted"])
@pytest.mark.parametrize("layout", LAYOUTS[:5], ids=IDS[:5])
def test_one_label(labels, layout):
    step = Step(layout, labels=labels)
    labels = step.batches[1]["labels" if labels == "aligned" else "shift_labels"]
    flat = labels.reshape(-1)
    for place in range(len(flat)):
        was, flat[place] = flat[place], 5
        (found,) = step.audit().findings
        assert (found.reason, found.rank) == ("label", 1)
        assert found.row * labels.shape[-1] + found.column == place
        flat[place] = -100
        assert [one.reason for one in step.audit().findings] == ["label"] * int(was != -100)
        flat[place] = was


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_a_batch_twice_and_another_missing(layout):
    step = Step(layout)
    audit = step.plan.audit([step.batches[0]] * 2, **step.turns)
    rows = [shard.rows[~shard.is_padding] for shard in (step.plan.shard(0, r) for r in range(2))]
    tokens = [sum(len(step.responses[row]) for row in rows_of) for rows_of in rows]
    assert audit.problems["repeated"] == tokens[0]
    assert audit.problems["missing"] == tokens[1]
    assert audit.problems["rows"] > 0
    assert {one.turn for one in audit.findings if one.reason == "missing"} == set(rows[1].tolist())
    shards = [step.plan.shard(0, 0)] * 2
    assert step.plan.audit(shards).problems == audit.problems
    assert {one.rank for one in audit.findings if one.reason == "repeated"} == {1}


def test_copies_do_not_train():
    plan = fc.plan_step([[2, 2, 2], [3, 4, 5]], dp_size=2, pad_rows="copy_first")
    turns = {"prompts": [[1, 2], [3, 4], [5, 6]], "responses": [[7] * 3, [8] * 4, [9] * 5]}
    batches = [make_batch(**turns, shard=plan.shard(0, rank)) for rank in range(2)]
    audit = plan.audit(batches, **turns)
    assert audit.ok
    assert audit.counts == {"trained": 12}
    shards = [plan.shard(0, rank) for rank in range(2)]
    assert plan.audit(shards).padding_tokens == 3
    rank, row = next(
        (r, b.is_padding.index(True)) for r, b in enumerate(batches) if any(b.is_padding)
    )
    batches[rank]["loss_mask"][row, -1] = 1
    (found,) = plan.audit(batches, **turns).findings
    assert found.reason in ("padding trains", "unsampled")
    assert (found.rank, found.row) == (rank, row)


def test_rows_without_a_prompt():
    plan = fc.plan_step([[0, 2], [3, 4]])
    turns = {"prompts": [[], [1, 2]], "responses": [[3, 4, 5], [6, 7, 8, 9]]}
    batch = make_batch(**turns, shard=plan.shard(0, 0))
    for audit in (plan.audit([batch], **turns), plan.audit([plan.shard(0, 0)])):
        assert audit.ok
        assert audit.counts == {"trained": 6, "unpredicted": 1}
        assert audit.spans(0)[0][:4] == ("unpredicted", 0, 0, 1)


PROMPTS = [[1, 2], [1, 2, 3, 4, 5, 50], [1, 2, 3, 4, 5, 50, 7, 90, 60], [30, 31]]
RESPONSES = [[3, 4, 5], [7, 8], [9, 10], [32]]
MASKS = [[1, 1, 1], [1, 1], [1, 1], [0]]


def merged(**options):
    return fc.merge_turns(
        PROMPTS,
        RESPONSES,
        trajectory_ids=["a", "a", "a", "b"],
        policy="realign",
        loss_mask=MASKS,
        drop_untrainable=True,
        **options,
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_merged_turns(layout):
    merge = merged()
    turns = {"prompts": PROMPTS, "responses": RESPONSES}
    batch = make_batch(**turns, merge=merge, loss_mask=MASKS, layout=layout, labels="aligned")
    for audit in (
        merge.audit(batch, **turns, loss_mask=MASKS),
        merge.audit([batch]),
        pickle.loads(pickle.dumps(merge)).audit(pickle.loads(pickle.dumps(batch)), **turns),
    ):
        assert audit.ok, audit
        assert audit.counts == {"trained": 6, "drift": 1, "dropped": 1}
    assert [(one.reason, one.position) for one in audit.spans(1)] == [("trained", 0), ("drift", 1)]
    # The second turn's sampled tokens differ from those in the last turn's prompt.
    sampled = [[3, 4, 5], [77, 8], [9, 10], [32]]
    (found,) = merge.audit(batch, PROMPTS, sampled).findings
    assert (found[:4], found.found, found.expected) == (("altered", 1, 0, 1), 7, 77)
    step = fc.plan_step(merge, layout=layout)
    shard = step.shard(0, 0)
    assert step.audit([shard], merge=merge).counts == audit.counts
    built = make_batch(**turns, merge=merge, loss_mask=MASKS, shard=shard)
    assert step.audit([built], **turns, loss_mask=MASKS).counts == audit.counts


TREE_PROMPTS = [[1, 2, 3], [1, 2, 3], [1, 2, 9], [4, 5], [4, 5], [6]]
TREE_RESPONSES = [[10, 11, 12], [10, 11, 13], [14], [15, 16], [15, 17, 18], [19, 20]]


def tree_step(**options):
    turns = {"prompts": TREE_PROMPTS, "responses": TREE_RESPONSES}
    plan = fc.plan_step([[len(row) for row in rows] for rows in turns.values()])
    batch = make_batch(
        **turns, shard=plan.shard(0, 0), layout=fc.Tree(24, multiple_of=8), **options
    )
    return plan, batch, turns


def test_trees():
    plan, batch, turns = tree_step()
    audit = plan.audit([batch], **turns)
    assert audit.ok, audit
    assert audit.counts == {"trained": 14}
    masks = [[1, 0, 1], [1, 1, 1], [0], [1, 1], [1, 1, 1], [1, 1]]
    plan, batch, turns = tree_step(loss_mask=masks)
    assert plan.audit([batch], **turns, loss_mask=masks).counts == {"trained": 12, "masked": 2}


def test_one_number_of_a_tree():
    plan, batch, turns = tree_step()
    kinds = {"input_ids": set(), "targets": set(), "predictors": set(), "loss_mask": set()}
    for key, found in kinds.items():
        flat = batch[key].reshape(-1)
        for place in range(len(flat)):
            was, flat[place] = flat[place], 1 - flat[place] if key == "loss_mask" else 99
            audit = plan.audit([batch], **turns)
            assert not audit.ok, (key, place)
            found.update(one.reason for one in audit.findings)
            if key == "targets":
                (one,) = (one for one in audit.findings if one.reason == "target")
                assert (one.column, one.found, one.expected) == (place, 99, was)
            flat[place] = was
    assert {"altered", "altered prompt", "padding"} <= kinds["input_ids"]
    assert "target" in kinds["targets"]
    assert kinds["predictors"] == {"predictor"}
    assert kinds["loss_mask"] == {"untrained"}
    assert plan.audit([batch], **turns).ok


def test_subtrees_that_end_too_early():
    plan, batch, turns = tree_step()
    batch["subtree_end"].reshape(-1)[batch["predictors"][0]] = 0
    found = plan.audit([batch], **turns).findings
    assert [(one.reason, one.column) for one in found] == [("predictor", 1), ("predictor", 4)]


def test_predictors_of_another_branch():
    """A predictor of the same depth and id, but in another row's branch."""
    turns = {"prompts": [[1], [1]], "responses": [[2, 5, 7], [3, 5, 8]]}
    plan = fc.plan_step([[1, 1], [3, 3]])
    batch = make_batch(**turns, shard=plan.shard(0, 0), layout=fc.Tree(16))
    assert plan.audit([batch], **turns).ok
    was = batch["predictors"][5]
    (other,) = (p for p in batch["predictors"][:3] if batch["input_ids"].reshape(-1)[p] == 5)
    batch["predictors"][5] = other
    assert was != other
    (found,) = plan.audit([batch], **turns).findings
    assert (found.reason, found.column, found.found) == ("predictor", 5, other)


def test_rows_that_share_less_than_planned():
    """Each row is compared along its path, also where another row wrote the tokens."""
    plan, batch, _ = tree_step()
    other = [TREE_PROMPTS[0], [7, *TREE_PROMPTS[1][1:]], *TREE_PROMPTS[2:]]
    (found,) = plan.audit([batch], other, TREE_RESPONSES).findings
    assert (found[:4], found.found, found.expected) == (("altered prompt", 1, 0, 1), 1, 7)


def test_merged_trees():
    merge = merged()
    turns = {"prompts": PROMPTS, "responses": RESPONSES}
    batch = make_batch(**turns, merge=merge, loss_mask=MASKS, layout=fc.Tree(32))
    audit = merge.audit(batch, **turns, loss_mask=MASKS)
    assert audit.ok, audit
    assert audit.counts == {"trained": 6, "drift": 1, "dropped": 1}


def test_context_parallel_batches():
    turns = {"prompts": [[1, 2]], "responses": [[3, 4]]}
    batch = make_batch(**turns, cp=(2, 0), layout=fc.Packed(8, multiple_of=4))
    with pytest.raises(ValueError, match="chunks of context-parallel rank 0 of 2 alone"):
        fc.plan_step([[2], [2]]).audit([batch], **turns)


def test_split_rows():
    batch = make_batch(
        [[1, 2], [3]],
        [[4, 5, 6, 7, 8], [9, 10]],
        layout=fc.Packed(capacity=4, oversize="split"),
        trajectory_ids=["a", "b"],
        merge="exact",
    )
    audit = batch.merge_plan.audit(batch, [[1, 2], [3]], [[4, 5, 6, 7, 8], [9, 10]])
    assert audit.ok, audit
    assert audit.counts == {"trained": 6, "unpredicted": 1}


def test_one_token_out_of_attention():
    step = Step("left")
    step.batches[1]["attention_mask"][0, -1] = 0
    (found,) = step.audit().findings
    assert (found.reason, found.rank, found.row) == ("not attended", 1, 0)
    assert found.column == step.batches[1]["input_ids"].shape[1] - 1


def test_a_row_twice_in_one_batch():
    step = Step("left")
    shard = fc.planning.Shard(rows=[0, 0, 1, 2], is_padding=[False] * 4, num_rows=7)
    step.batches[0] = make_batch(**step.turns, shard=shard)
    audits = (step.audit(), step.plan.audit([shard, step.plan.shard(0, 1)]))
    for audit in audits:
        found = {one.reason: one for one in audit.findings}
        assert found["repeated"][:4] == ("repeated", 0, 0, 4)
        assert audit.problems["repeated"] == 4
        assert audit.problems["rows"] == 3
        assert audit.problems["missing"] == 3


def test_tokens_without_a_place():
    step = Step("left")
    tables = step.batches[0].plan.to_dict()
    for name in ("sequence", "response"):
        tables[f"{name}_segments"][0, 2] -= 1  # the last token of a row has no place
    for key in ("input_ids", "attention_mask", "loss_mask"):
        step.batches[0][key][0, -1] = 0
    plan = fc.planning.Plan._from_dict(tables)
    step.batches[0] = step.batches[0]._replace(made_by=plan)
    audit = step.audit()
    assert audit.ok, audit
    assert audit.counts == {"trained": 22, "cut": 1}


def test_relaid_and_selected_batches():
    step = Step("left")
    whole = make_batch(**step.turns)
    plan = fc.plan_step(whole, dp_size=RANKS)
    selected = [whole.select(plan.shard(0, rank)) for rank in range(RANKS)]
    assert plan.audit(selected, **step.turns).counts == {"trained": 23}
    relaid = [batch.to_layout("two_segment") for batch in step.batches]
    assert step.plan.audit(relaid, **step.turns).counts == {"trained": 23}


def test_bad_arguments():
    step = Step("left")
    with pytest.raises(ValueError, match="batches has 1 item, but the plan has 1 mini-batch for 2"):
        step.plan.audit(step.batches[:1])
    with pytest.raises(TypeError, match=r"batches\[0\] is 3 .*; pass the Batch"):
        step.plan.audit([3, 4])
    with pytest.raises(TypeError, match=r"batches\[1\] is 3 .*; pass the Batch"):
        step.plan.audit([step.batches[0], [3, 4]])
    with pytest.raises(fc.planning.MissingPlanError):
        step.plan.audit([fc.Batch({"input_ids": np.zeros((1, 1))})] * 2)
    with pytest.raises(TypeError, match="loss_mask is given without turns"):
        step.plan.audit(step.batches, loss_mask=[[1]])
    with pytest.raises(ValueError, match="loss_mask has rows of other lengths"):
        step.audit(loss_mask=[[1]] * 7)
    with pytest.raises(ValueError, match="prompts has 1 row, but responses has 7"):
        step.plan.audit(step.batches, [[1]], step.responses)
    with pytest.raises(ValueError, match=r"batches\[0\] was built from other turns"):
        step.plan.audit(step.batches, step.prompts[:-1], step.responses[:-1])
    with pytest.raises(TypeError, match=r"batches\[0\] is a Shard"):
        merged().audit([step.plan.shard(0, 0)])
    with pytest.raises(IndexError):
        step.audit().spans(7)
    with pytest.raises(TypeError, match="did you mean 'responses'"):
        step.plan.audit(step.batches, response=[])


@pytest.mark.parametrize("layout", ["left", "jagged", fc.Packed(capacity=12)], ids=str)
def test_micro_batches(layout):
    step = Step(layout)
    count = None if isinstance(layout, fc.Packed) else 2
    shards = [step.plan.shard(0, rank).micro_batches(count) for rank in range(RANKS)]
    batches = [[make_batch(**step.turns, shard=part) for part in parts] for parts in shards]
    for items in (shards, batches, [shards[0], batches[1]]):
        audit = step.plan.audit(items, **step.turns)
        assert audit.ok, audit
        assert audit.counts == {"trained": 23}
    mask = np.atleast_2d(batches[1][1]["loss_mask"])
    row, column = np.argwhere(mask != 0)[-1].tolist()
    mask[row, column] = 0
    (found,) = step.plan.audit(batches, **step.turns).findings
    assert (found.rank, found.micro_batch, found.row, found.column) == (1, 1, row, column)
    assert "rank 1, mini-batch 0, micro-batch 1" in str(found)
    mask[row, column] = 1
    late = [batches[0], batches[1][1:]]  # the first micro-batch is missing
    problems = step.plan.audit(late, **step.turns).problems
    assert problems["missing"] == int(sum(part["loss_mask"].sum() for part in batches[1][:1]))
    assert problems["rows"] > 0


def test_an_audit_in_a_notebook():
    step = Step("left")
    step.batches[0]["loss_mask"][0, -1] = 0
    assert "untrained: turn 0, position 3" in step.audit()._repr_html_()


def test_many_findings_are_counted():
    prompts, responses = [[1, 2]] * 300, [[3, 4]] * 300
    plan = fc.plan_step(([2] * 300, [2] * 300))
    batch = make_batch(prompts, responses, shard=plan.shard(0, 0))
    batch["loss_mask"][:, 0] = 0
    audit = plan.audit([batch], prompts, responses)
    assert audit.problems == {"untrained": 300}
    assert len(audit.findings) == 100
    assert "and 92 more in findings" in str(audit)


@pytest.mark.parametrize("batches", [None, 3])
def test_what_are_no_batches(batches):
    step = fc.plan_step([3, 4])
    merge = fc.merge_turns([[1]], [[2]], trajectory_ids=[0])
    for plan in step, merge:
        with pytest.raises(TypeError, match=r"batches is .*; pass a "):
            plan.audit(batches)
