"""Routed experts, weight versions and sampling support of engines' responses."""

import base64
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcollate.rollouts import parse, read


def npy(array):
    """Return an array in NumPy's format, as base64."""
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def raw(array):
    """Return the bytes of an array as base64."""
    return base64.b64encode(array.tobytes()).decode()


def vllm(*routes, tokens=4, **more):
    """A response of vLLM with a prompt of two tokens, and a choice for each routes."""
    choices = [
        {"token_ids": [*range(tokens)], "finish_reason": "stop", "routed_experts": one} | more
        for one in routes
    ]
    return json.dumps({"prompt_token_ids": [1, 2], "choices": choices}).encode()


def sglang(routes, tokens=4, **meta):
    """A response of SGLang's generate endpoint."""
    meta = {"finish_reason": {"type": "stop"}, "routed_experts": routes} | meta
    return {"output_ids": [*range(tokens)], "prompt_token_ids": [1, 2], "meta_info": meta}


@given(
    st.sampled_from(["uint8", "uint16", "int32"]),
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_routes_of_vllm(dtype, rows, layers, topk, seed):
    routes = np.random.default_rng(seed).integers(0, 99, (rows, layers, topk)).astype(dtype)
    calls = parse([vllm(npy(routes), None)])
    found, none = calls.routed_experts
    assert found.dtype == routes.dtype
    np.testing.assert_array_equal(found, routes)
    assert none is None
    assert calls.routed_starts.tolist() == [5 - rows, 0]


@given(st.integers(0, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32))
def test_routes_of_sglang(rows, layers, topk, seed):
    routes = np.random.default_rng(seed).integers(0, 99, (rows, layers, topk)).astype(np.int32)
    body = sglang(raw(routes))
    for calls in (
        parse([json.dumps(body).encode()], layers=layers, topk=topk),
        read([body], layers=layers, topk=topk),
    ):
        np.testing.assert_array_equal(calls.routed_experts[0], routes)
        assert calls.routed_starts.tolist() == [5 - rows]


def test_escaped_base64():
    """JSON may escape slashes."""
    routes = np.full((5, 2, 2), 255, np.uint8)
    text = npy(routes)
    assert "/" in text
    body = vllm(text).replace(b"/", b"\\/")
    np.testing.assert_array_equal(parse([body]).routed_experts[0], routes)


def test_routes_and_versions_of_a_chat_are_its_first_choices():
    routes = np.arange(10, dtype=np.int32).reshape(5, 1, 2)
    choice = {"response_token_ids": [1, 2, 3, 4], "finish_reason": "stop"}
    spans = [{"version": "7", "start": 0, "end": 4}]
    body = {
        "choices": [choice, choice],
        "sglext": {"input_ids": [1, 2], "routed_experts": raw(routes)},
        "metadata": {"weight_versions": spans},
    }
    calls = parse([json.dumps(body).encode()] * 2, layers=1, topk=2)
    for call, (found, versions) in enumerate(
        zip(calls.routed_experts, calls.versions, strict=True)
    ):
        assert versions == (None if call % 2 else spans)
        assert (found is None) == (call % 2 == 1)
    np.testing.assert_array_equal(calls.routed_experts[2], routes)


def test_routes_of_streams():
    routes = np.zeros((5, 1, 2), np.int32)
    events = [sglang(None, 2), sglang(raw(routes))]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in [*events, "X"])
    stream = stream.replace('"X"', "[DONE]").encode()
    calls = parse([stream], layers=1, topk=2)
    np.testing.assert_array_equal(calls.routed_experts[0], routes)


GOOD = np.zeros((5, 1, 2), np.uint8)
HEADER = base64.b64decode(npy(GOOD))


def altered(old, new):
    """Return routes with another header."""
    assert old in HEADER
    assert len(old) == len(new)
    return base64.b64encode(HEADER.replace(old, new)).decode()


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ("A", "not base64"),
        ("AA=A", "not base64"),
        ("AAA*", "not base64"),
        ("AAAA AAA", "not base64"),
        ("====", "not base64"),
        (3, r"of shape \(\)"),
        (raw(GOOD), "int32 without a shape; pass layers= and topk="),
        (npy(GOOD[:, 0]), r"uint8' of shape \(5, 2\)"),
        (npy(GOOD.astype(float)), "float64"),
        (npy(np.asfortranarray(np.zeros((5, 2, 2), np.uint8))), "in Fortran order"),
        (npy(np.zeros((6, 1, 2), np.uint8)), "has 6 tokens, but routed experts of 6; pass"),
        (altered(b"(5, 1, 2)", b"(9, 1, 2)"), r"have 10 bytes, but their header says"),
        (altered(b"(5, 1, 2)", b"(-5,1,-2)"), r"header says|bad header"),
        (altered(b"(5, 1, 2)", b"(5, 1, x)"), "bad header"),
        (altered(b"'|u1'", b"'|O1'"), "header|has"),
        (altered(b"'|u1'", b"'<u4'"), "have 10 bytes"),
        (altered(b"NUMPY\x01", b"NUMPY\x09"), "bad header"),
        (base64.b64encode(HEADER[:40]).decode(), "bad header"),
        (base64.b64encode(HEADER[:-1]).decode(), "have 9 bytes"),
        (base64.b64encode(HEADER[:8]).decode(), "bad header"),
    ],
)
def test_bad_routes(routes, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse([vllm(routes)])
    assert "\n" not in str(caught.value)
    assert "; pass " in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "topk", "message"),
    [
        (2, 2, "have 40 bytes, but 2 layers of 2 experts have 16 a token; pass the model's lay"),
        (0, 1, "layers is 0; pass the number of the model's"),
        (1, -2, "topk is -2; pass the number of the model's"),
        ("1", 2, "layers is '1'"),
    ],
)
def test_bad_shapes_of_routes(layers, topk, message):
    routes = raw(np.zeros((5, 1, 2), np.int32))
    for source, body in ((parse, json.dumps(sglang(routes)).encode()), (read, sglang(routes))):
        with pytest.raises((TypeError, ValueError), match=message):
            source([body], layers=layers, topk=topk)


@pytest.mark.parametrize(
    "spans",
    [
        *([(0, 5)], [(-1, 2)], [(0, 2), (1, 4)], [(2, 4), (0, 2)], [(3, 2)], [(0.0, 1)]),
        *([("0", 1)], [(0, True)], [(None, None)]),
    ],
)
def test_bad_spans_of_versions(spans):
    given = [{"version": "1", "start": start, "end": end} for start, end in spans]
    with pytest.raises(ValueError, match=r"versions\[0\] has .*(of 4 tokens|start, end)"):
        parse([vllm(None, weight_versions=given)])


@pytest.mark.parametrize("spans", [3, "x", {"version": 1}, [3], [{}], [[1, 2]], ["x"]])
def test_versions_that_are_no_spans(spans):
    body = sglang(None, weight_versions=spans)
    for source, one in ((parse, json.dumps(body).encode()), (read, body)):
        with pytest.raises(ValueError, match=r"versions\[0\] (is|has) "):
            source([one])


def test_support():
    assert parse([vllm(None, sampling_mask=[[1]] * 4)]).support == [[[1]] * 4]
    body = sglang(None, output_token_sampling_mask=[[1]] * 4)
    assert parse([json.dumps(body).encode()]).support == read([body]).support == [[[1]] * 4]
    with pytest.raises(ValueError, match="support of 3 tokens, but its response has 4"):
        parse([vllm(None, sampling_mask=[[1]] * 3)])
