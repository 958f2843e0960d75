"""Batches, plans and findings in a notebook."""

import re

import numpy as np
import pytest
from html_page import Html
from making import make_batch

import fastcollate as fc

PROMPTS = [[1, 2], [1, 2, 3], [4], [4, 5, 6], [7]]
RESPONSES = [[3], [5], [8], [7, 8, 9], [1]]


def words(one):
    """Return the text of an object in a notebook, in one line."""
    return lines(Html(one._repr_html_()).text)


def lines(text):
    """Return a text in one line."""
    return " ".join(text.split())


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
    assert found.startswith(lines(repr(batch)))
    assert "row 0, prompt\xa02".replace("\xa0", " ") in found
    assert "and 1 more row" in found


@pytest.mark.parametrize(("fields", "width"), [((), 10_000), ("logprobs", 100)])
def test_the_browser_breaks_lines_but_those_with_values_below(fields, width):
    batch = make_batch([[*range(100)]], [[200, 201]], loss_mask=[[1, 0]], logprobs=[[-1.0, -2.0]])
    view = batch.show(fields=fields, fold=None)
    html = view._repr_html_()
    shown = [line.rstrip() for line in Html(html).text.splitlines()]
    assert shown == view.text(width).splitlines()
    assert ('class="text"' in html) == bool(fields)
    # Nothing is coloured beyond the marks.
    assert not re.search(r'class="(prompt|trained|masked)">[^<]* <', html)


def test_a_batch_that_knows_little():
    layout = fc.Packed(capacity=8, multiple_of=4)
    batch = make_batch([[1, 2]], [[3, 4]], layout=layout)
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
    plan = merge()
    assert words(plan) == lines(f"{plan!r} {plan.report}")
    assert "turn 3 of trajectory 1 (drift): at position 1 the prompt has 5 instead of 8" in words(
        plan
    )
    assert words(plan.report.tree()) == lines(str(plan.report.tree()))


@pytest.mark.parametrize(
    "plan",
    [
        fc.plan_step(np.arange(1, 41), rows_per_mini_batch=4, dp_size=2),
        fc.planning.pack([3, 4, 2, 5], fc.Packed(8)),
        fc.planning.pack([], fc.Packed(8)),
    ],
    ids=["step", "bins", "no bins"],
)
def test_a_plan(plan):
    assert words(plan) == lines(plan.describe())


def test_a_tree_plan():
    plan = fc.planning.prefix_tree(PROMPTS, RESPONSES)
    assert words(plan) == lines(f"{plan!r} {plan.report}")


def test_findings():
    batch = make_batch([[1]] * 9, [[2]] * 9, loss_mask=[[0]] * 8 + [[1]])
    assert words(batch.check()) == lines(repr(batch.check()))


def test_empty_plans():
    empty = np.zeros(0, np.int64)
    for plan in (
        fc.planning.TreePlan(empty, empty, empty, empty),
        fc.planning.pack([], fc.Packed(4)),
    ):
        assert repr(plan) in words(plan)
