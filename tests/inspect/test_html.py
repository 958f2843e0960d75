"""Batches, plans and findings in a notebook."""

import re

import numpy as np
import pytest
from html_page import Html

import fastcollate as fc

PROMPTS = [[1, 2], [1, 2, 3], [4], [4, 5, 6], [7]]
RESPONSES = [[3], [5], [8], [7, 8, 9], [1]]


def words(one):
    """Return the text of an object in a notebook, in one line."""
    return " ".join(Html(one._repr_html_()).text.split())


@pytest.mark.parametrize("layout", ["left", "jagged", fc.Packed(capacity=8), fc.Tree(8)], ids=str)
def test_a_batch(layout, array_type):
    batch = fc.build_batch(
        *(PROMPTS, RESPONSES),
        loss_mask=[[1], [0], [1], [1, 0, 1], [1]],
        pad_token_id=0,
        layout=layout,
        array_type=array_type,
    )
    found = words(batch)
    assert repr(batch).splitlines()[0] in found
    assert f"{len(batch)} outputs" in found
    shape = tuple(batch.input_ids.shape)
    assert f"input_idsint64{shape}" in found
    assert "row 0, prompt\xa02".replace("\xa0", " ") in found
    assert "and 1 more row" in found
    if layout != fc.Tree(8):
        padding = batch.plan.num_positions - 17
        assert f"10 prompt, 5 trained, 2 masked, {padding} padding" in found
        shares = re.findall(r'style="flex:(\d+) 1 0"', batch._repr_html_())
        assert list(map(int, shares)) == [number for number in (10, 5, 2, padding) if number]


def test_a_batch_that_knows_little():
    layout = fc.Packed(capacity=8, multiple_of=4)
    batch = fc.build_batch([[1, 2]], [[3, 4]], pad_token_id=0, layout=layout, array_type="numpy")
    for part in (fc.Batch(batch), fc.Batch({}), batch.cp_split(2, 0)):
        assert repr(part).splitlines()[0] in words(part)
        assert all(key in words(part) for key in part)
    assert "<b>" not in fc.Batch({"<b>": 1})._repr_html_()


def merge(**changes):
    turns = {
        "prompts": PROMPTS,
        "responses": RESPONSES,
        "trajectory_ids": ["<b>a", "<b>a", 1, 1, 2],
    }
    return fc.merge_turns(**turns | changes)


def test_a_merge_plan():
    found = words(merge())
    assert found.startswith("MergePlan: 5 turns of 3 trajectories in 4 rows")
    assert "rows541.2x fewer" in found
    assert "rows of a trajectory trajectories 12 21".replace(" ", "") in found.replace(" ", "")
    assert "breaks: 1 (1 drift)" in found
    assert "turn 3 of trajectory 1 (drift): at position 1 the prompt has 5 instead of 8" in found
    many = merge(
        prompts=[[1]] * 24, responses=[[2]] * 24, trajectory_ids=[i // 2 for i in range(24)]
    )
    assert "and 4 more in plan.report.breaks" in words(many)


def test_a_step_plan():
    plan = fc.plan_step(np.arange(1, 41), rows_per_mini_batch=4, dp_size=2)
    found = words(plan)
    assert found.startswith(repr(plan))
    assert "mini-batchpromptsrowspadding" in found
    assert plan.describe().splitlines()[2].split()[-1] in found
    assert plan._repr_html_().count("<svg") == 8
    assert "and 2 more in plan.tokens_per_rank" in found


def test_a_bin_plan():
    plan = fc.planning.pack([3, 4, 2, 5], fc.Packed(8))
    found = words(plan)
    assert found.startswith(repr(plan))
    assert "per binleastmeanmosttokens" in found
    heights = re.findall(r'<rect [^>]*height="([\d.]+)"', plan._repr_html_())
    assert [round(float(height) / 40 * 8) for height in heights] == [8, 6]
    larger = fc.planning.pack([16, 4], fc.Packed(8, oversize="own_bin"))
    heights = re.findall(r'<rect [^>]*height="([\d.]+)"', larger._repr_html_())
    assert list(map(float, heights)) == [40, 10]
    many = fc.planning.pack([1] * 1000, fc.Packed(1))
    assert many._repr_html_().count("<rect") == 160
    assert "<svg" not in fc.planning.pack([], fc.Packed(8))._repr_html_()


def test_a_tree_plan():
    plan = fc.planning.prefix_tree(PROMPTS, RESPONSES)
    found = words(plan)
    assert found.startswith(repr(plan))
    assert f"tokens{plan.tokens_before}{plan.tokens_after}1.3x fewer" in found
    assert str(plan.report.shared[0]) in found
    assert "more in" not in found
    many = [[i, j] for i in range(10) for j in range(2)]
    assert "and 2 more in plan.report.shared" in words(fc.planning.prefix_tree(many, [[1]] * 20))


def test_findings():
    batch = fc.build_batch(
        [[1]] * 9, [[2]] * 9, loss_mask=[[0]] * 8 + [[1]], pad_token_id=0, array_type="numpy"
    )
    found = words(batch.check())
    assert found.startswith("2 findingstrains_nothing (8)row 0: none of its 1 response token")
    assert "→ leave the row out" in found
    assert "and 5 more" in found


def test_empty_plans():
    empty = np.zeros(0, np.int64)
    for plan in (
        fc.planning.TreePlan(empty, empty, empty, empty),
        fc.planning.pack([], fc.Packed(4)),
    ):
        assert repr(plan) in words(plan)
