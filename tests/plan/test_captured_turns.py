"""Captured fields that begin at a token, and those of merged turns."""

import re

import numpy as np
import pytest

import fastcollate as fc
from fastcollate.rollouts import Calls
from fastcollate.testing.reference import assert_same

PROMPTS = [[1], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
RESPONSES = [[2, 3], [5], [7, 8]]
LENS = [3, 5, 8]


def routes(turn, first, end):
    """Return routes of one layer and two experts that name the turn and the token."""
    return np.array([[[turn, token]] for token in range(first, end)], np.int64).reshape(-1, 1, 2)


def build(field, key="routed_experts", layout="left", **options):
    options = {"pad_token_id": 0, "array_type": "numpy", **options}
    return fc.build_batch(PROMPTS, RESPONSES, fields={key: field}, layout=layout, **options)


def spans(turns):
    return fc.RoutedExperts(
        [routes(turn, first, end) for turn, (first, end) in enumerate(turns)],
        starts=[first for first, _ in turns],
    )


def joined(spans_of_turns, **options):
    """Build the row of all turns; return which turn each of its tokens has routes of."""
    batch = build(
        spans(spans_of_turns), merge="exact", is_last_step=[False, False, True], **options
    )
    found, mask = batch.routed_experts[0, :, 0], batch.router_padding_mask[0]
    assert found[~mask, 1].tolist() == np.flatnonzero(~mask).tolist()
    assert (found[mask] == [0, 1]).all()
    turns = np.where(mask, -1, found[:, 0].astype(int))
    assert batch.metrics["batch/routed_experts_uncaptured_tokens"] == np.count_nonzero(mask)
    return turns.tolist()


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        # All of each pass: the first that read a token, not the one that captured it last.
        ([(0, 2), (0, 4), (0, 7)], [0, 0, 1, 1, 2, 2, 2, -1]),
        # What was not known before, from the last token on, which the turn itself did not read.
        ([(0, 2), (2, 4), (4, 7)], [0, 0, 1, 1, 2, 2, 2, -1]),
        # Engines that fill up the row of the last token: it is replaced.
        ([(0, 3), (2, 5), (4, 8)], [0, 0, 1, 1, 2, 2, 2, 2]),
        ([(0, 3), (3, 5), (5, 8)], [0, 0, 0, 1, 1, 2, 2, 2]),
        # Responses alone.
        ([(1, 2), (4, 4), (6, 7)], [-1, 0, -1, -1, -1, -1, 2, -1]),
        # Later passes fill holes.
        ([(1, 2), (3, 4), (0, 7)], [2, 0, 2, 1, 2, 2, 2, -1]),
        ([(0, 0), (0, 0), (0, 0)], [-1] * 8),
    ],
)
def test_turns_join_what_they_captured(turns, expected):
    assert joined(turns) == expected


def test_realigned_turns_have_routes_up_to_the_difference():
    prompts, responses = [[1], [1, 9, 3]], [[2, 3], [4]]
    batch = fc.build_batch(
        prompts,
        responses,
        pad_token_id=0,
        array_type="numpy",
        fields={"routed_experts": fc.RoutedExperts([routes(0, 0, 2), routes(1, 0, 3)])},
        merge="realign",
        is_last_step=[False, True],
    )
    assert batch.input_ids.tolist() == [[1, 9, 3, 4]]
    assert batch.routed_experts[0, :3, 0].tolist() == [[0, 0], [1, 1], [1, 2]]


LAYOUTS = ["left", "right", "two_segment", "jagged", fc.Packed(16)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_and_back(layout):
    field = spans([(1, 2), (2, 4), (0, 7)])
    options = {"merge": "exact", "trajectory_ids": [0, 1, 1]}
    batch = build(field, layout=layout, **options)
    for row, found in zip(build(field, **options).rows(), batch.rows(), strict=True):
        assert_same(found, row)
    assert_same(batch.to_layout(fc.Left()), build(field, **options))


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([2, 0, 0], "routed_experts[0] has 2 items from token 2 on, but prompts[0] + responses[0]"),
        ([0, 0, 99], "routed_experts[2] has 7 items from token 99 on, but prompts[2] +"),
        ([0, 0], "starts of routed_experts has 2 rows, but prompts has 3"),
        ([0, -1, 0], "starts of routed_experts[1] is -1"),
        ([0, 0.5, 0], "starts of routed_experts[1] is 0.5"),
    ],
)
def test_starts_that_cannot_be(starts, message):
    rows = [routes(turn, 0, count - 1) for turn, count in enumerate(LENS)]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        build(fc.RoutedExperts(rows, starts=starts))


@pytest.mark.parametrize("kind", [fc.RoutedExperts, fc.Captured])
def test_later_routes_without_starts_are_refused(kind):
    """They would be placed from the first token on."""
    rows = [routes(0, 0, 3), routes(1, 0, 0), routes(2, 4, 7)]
    expected = "has 3 items, but {} 8 tokens; pass starts=, "
    with pytest.raises(
        ValueError, match=re.escape(expected.format("prompts[2] + responses[2] have"))
    ):
        build(kind(rows), key="routes")
    builder = fc.BatchBuilder(pad_token_id=0)
    with pytest.raises(
        ValueError, match=re.escape("routes[0] " + expected.format("its sequence has"))
    ):
        builder.add(PROMPTS[2], RESPONSES[2], fields={"routes": kind(rows[2])})
    mask = "router_padding_mask" if kind is fc.RoutedExperts else "routes_padding_mask"
    found = build(kind(rows, starts=[0, 0, 4]), key="routes", layout="right")[mask]
    assert (~found).sum(1).tolist() == [3, 0, 3]
    assert not found[2, 4:7].any()


def test_calls_of_engines_have_their_routes_as_a_field():
    field = spans([(0, 2), (2, 4), (4, 7)])
    calls = Calls(
        PROMPTS, RESPONSES, routed_experts=field.rows, routed_starts=np.array(field.starts)
    )
    options = {"pad_token_id": 0, "array_type": "numpy"}
    assert_same(fc.build_batch(**calls.batch, **options), build(field))
    builder = fc.BatchBuilder(**options)
    builder.extend(calls)
    assert_same(builder.finish(), build(field))
    calls.columns["routed_experts"] = [None, *field.rows[1:]]
    assert fc.build_batch(**calls.batch, **options).router_padding_mask[0].all()


# A model
