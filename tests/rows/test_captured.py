"""Captured fields: several of them, -1, masks and layers."""

import re

import numpy as np
import pytest
from making import make_batch

import fastcollate as fc
from fastcollate.testing.reference import assert_same


def build(fields, lens=(3, 2), **options):
    prompts, responses = [[1]] * len(lens), [[2] * (count - 1) for count in lens]
    return make_batch(prompts, responses, fields=fields, **options)


def chosen(*rows):
    """Make rows of indices of one layer and two choices."""
    return [np.array(row, np.int32).reshape(-1, 1, 2) for row in rows]


def test_captured_indices_written_out():
    routes, indexer = chosen([[5, 4]] * 2, [[3, 2]]), chosen([[0, -1], [1, 0]], [[-1, -1]])
    batch = build(
        {"routed_experts": fc.RoutedExperts(routes), "indexer_topk": fc.Captured(indexer)}
    )
    expected = {
        "routed_experts": np.array([[[5, 4], [5, 4], [0, 1]], [[0, 1], [3, 2], [0, 1]]], np.uint8),
        "router_padding_mask": np.array([[False, False, True], [True, False, True]]),
        "indexer_topk": np.array([[[0, -1], [1, 0], [-1, -1]], [[-1, -1]] * 3], np.int32),
        "indexer_topk_padding_mask": np.array([[False, False, True], [True, False, True]]),
    }
    found = {key: batch[key].reshape(expected[key].shape) for key in expected}
    assert_same(found, expected)
    assert batch.spec.table["indexer_topk"].fill == -1


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({}, "int32"), ({"dtype": "int16"}, "int16"), ({"num_experts": 257}, "int16")],
)
def test_routes_keep_minus_one_where_the_dtype_holds_it(options, dtype):
    batch = build(
        {"routes": fc.RoutedExperts(chosen([[5, -1]], [[0, 1]]), starts=[0, 0], **options)}
    )
    assert batch.routes.dtype == dtype
    assert batch.routes[0, 0, 0].tolist() == [5, -1]


def test_masks_of_several_captured_fields_have_their_own_keys():
    some = chosen([[0, 1]], [[1, 0]] * 2)
    batch = build(
        {
            "a": fc.Captured(some, starts=[0, 0]),
            "b": fc.Captured(some[::-1]),
            "c": fc.RoutedExperts(some, starts=[0, 0]),
        }
    )
    assert batch.a_padding_mask.tolist() == [[False, True, True], [True, False, False]]
    assert batch.b_padding_mask.tolist() == [[False, False, True], [True, False, True]]
    assert batch.router_padding_mask.tolist() == batch.a_padding_mask.tolist()
    with pytest.raises(ValueError, match="a_padding_mask"):
        build({"a": fc.Captured(some, starts=[0, 0]), "a_padding_mask": fc.PerRow([1, 2])})


def test_stages_write_their_own_layers():
    rows = [np.arange(n * 8).reshape(n, 4, 2) for n in (2, 1)]
    both = {"routes": fc.RoutedExperts, "indexer_topk": fc.Captured}
    whole = build({key: make(rows) for key, make in both.items()})
    parts = [
        build({key: make(rows, layers=layers) for key, make in both.items()})
        for layers in (range(3), range(3, 4))
    ]
    for key in both:
        joined = np.concatenate([part[key] for part in parts], 2)
        assert_same({key: joined}, {key: whole[key]})


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (chosen([[0, -2]] * 2, []), {}, r"x[0][0] is -2; pass indices from 0 on, or -1 for none"),
        (chosen([[0, 1]] * 4, []), {}, "x[0] has 4 items, but prompts[0] + responses[0] have 3"),
        (
            chosen([[0, 40000]] * 2, []),
            {"dtype": "int16"},
            r"x[0][0] is 40000, which does not fit int16",
        ),
        (chosen([], []), {"dtype": "uint8"}, "dtype of x is uint8; pass one of int16, int32"),
        (chosen([], []), {"dtype": "int64"}, "dtype of x is int64; pass one of int16, int32"),
        ([[[1, 2]], [[3, 4]]], {}, "x has values of shape [2] per token; pass rows of shape (tok"),
        (chosen([], []), {"layers": range(2)}, "layers of x is range(0, 2), but its tokens have 1"),
    ],
)
def test_captured_indices_that_cannot_be(rows, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build({"x": fc.Captured(rows, **options)})
