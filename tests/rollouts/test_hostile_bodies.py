"""Hostile bodies: they are read as JSON is, or refused in one line."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcollate.rollouts import parse, read

DEEP = 1_000_000


def refused(body, message, **options):
    """Check that a body is an error of one line, which names it."""
    with pytest.raises(ValueError, match=message) as caught:
        parse([body], **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("bodies[0]")
    assert len(text) < 300


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b'{"x":' * DEEP,
        b'{"x": ' + b"[" * DEEP + b"]" * DEEP + b', "output_ids": [1]}',
        b'{"output_ids": [1], "meta_info": {"output_token_logprobs": ' + b"[" * DEEP,
        b'{"choices": [{"logprobs": {"content": [{"top_logprobs": ' + b"[" * DEEP,
        b'{"choices": [{"finish_reason": ' + b'{"a":' * DEEP,
        b'data: {"choices": [{"sampling_mask": ' + b"[" * DEEP + b"\n",
    ],
    ids=range(7),
)
def test_nesting_of_a_million(body):
    refused(body, "recursion limit|expected|no token ids|EOF")


BIG = 16 << 20


@pytest.mark.parametrize(
    "template",
    [
        b'{"text": "%s", "output_ids": [1]}',
        b'{"%s": 1, "output_ids": [1]}',
        b'{"output_ids": [1], "meta_info": {"output_token_logprobs": [[-0.%s, 1, "a"]]}}',
        b'{"output_ids": [1], "meta_info": {"output_token_logprobs": [[-0.5, 1, "%s"]]}}',
    ],
)
def test_long_texts_and_numbers_take_no_memory(template):
    body = template % (b"0" * BIG)
    tracemalloc.start()
    try:
        assert parse([body], prompts=[[1]]).responses.to_list() == [[1]]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_lines_are_not_copied():
    line = b'{"prompt_ids": [1], "response_ids": [2], "text": "%s"}\n' % (b"0" * (1 << 16))
    lines = b" \n" + line * 256
    tracemalloc.start()
    try:
        assert len(parse(lines)) == 256
        assert tracemalloc.get_traced_memory()[1] < len(lines) / 4
    finally:
        tracemalloc.stop()


def test_long_numbers_that_are_no_ids():
    refused(b'{"output_ids": [' + b"1" * (1 << 20) + b"]}", "out of range")
    refused(b'{"output_ids": [-' + b"0" * (1 << 20) + b"]}", "byte")


@pytest.mark.parametrize("number", [b"03", b"00", b"0123456", b"3.0", b"3e0", b"3.", b"+3"])
@pytest.mark.parametrize("rest", [b"", b", 4, 5, 6, 7, 8, 9"])
def test_numbers_that_are_no_ids(number, rest):
    refused(b'{"output_ids": [1, %s%s]}' % (number, rest), "byte")


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
@pytest.mark.parametrize(
    "template",
    [
        b'{"text": "%s", "output_ids": [1]}',
        b'{"%s": 1, "output_ids": [1]}',
        b'{"meta_info": {"output_token_logprobs": [[0, 1, "a"], [0, 2, "%s"]]}, "output_ids": []}',
        b'data: {"text": "%s", "output_ids": [1]}\n',
    ],
)
def test_texts_that_are_not_utf_8(template, text):
    refused(template % text, f"byte {template.index(b'%s')}: this is not UTF-8", prompts=[[1]])


@given(st.text(), st.booleans())
def test_texts_that_are_skipped(text, is_ascii):
    """Any text, escaped or not; the same in the first item as in later ones."""
    rows = [[-0.5, one, text] for one in range(3)]
    body = {"text": text, "output_ids": [0, 1, 2], "meta_info": {"output_token_logprobs": rows}}
    calls = parse([json.dumps(body, ensure_ascii=is_ascii).encode()], prompts=[[1]])
    np.testing.assert_array_equal(calls.logprobs.values, np.full(3, -0.5, np.float32))


@pytest.mark.parametrize(
    "text", [r"\ud800", r"\udfff\ud800", r"\u12", r"\x", "\t", r"\u00e9 \n", r"\ud83d\ude00"]
)
def test_escapes_are_read_or_refused_alike(text):
    """In a first item, which the parser reads, and in later ones, read by its shape."""
    outcomes = []
    for texts in ((text, "a", "b"), ("a", text, "b"), ("a", "b", text)):
        rows = ", ".join(f'[-0.5, {one}, "{text}"]' for one, text in enumerate(texts))
        body = f'{{"output_ids": [0, 1, 2], "meta_info": {{"output_token_logprobs": [{rows}]}}}}'
        try:
            outcomes.append(len(parse([body.encode()], prompts=[[1]])))
        except ValueError as error:
            outcomes.append(str(error).rpartition(": ")[2])
    assert len(set(outcomes)) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"output_ids": [1], "output_ids": [2]}', "occurs twice"),
        (b'{"output_ids": [1], "meta_info": {}, "meta_info": {}}', "occurs twice"),
        (b'{"choices": [{"token_ids": [1]}], "choices": []}', "occurs twice"),
        (
            b'{"choices": [{"logprobs": {"content": [{"logprob": 0, "logprob": 0}]}}]}',
            "occurs twice",
        ),
        (
            b'{"output_ids": [1], "meta_info": {"output_token_logprobs": [["0", 1]]}}',
            "byte 61: expected a number, null, or the text NaN",
        ),
        (b'{"output_ids": [1], "meta_info": {"output_token_logprobs": [[0, 1.5]]}}', "byte"),
        (b'{"output_ids": [1], "meta_info": {"output_token_logprobs": [[0, -1]]}}', "-1 is not a"),
        (b'{"output_ids": [1], "meta_info": {"output_token_logprobs": [[0, 2]]}}', "token 0 is 2"),
        (b'{"output_ids": [true]}', "byte 16"),
        (b'{"output_ids": [null]}', "byte 16"),
        (b'{"output_ids": [1e3]}', "byte"),
        (b"\xef\xbb\xbf", "byte 3"),
        (b"\xff\xfe{\x00", "byte 0: this is not UTF-8"),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", "is not JSON; pass the body"),
        (b'{"output_ids": [1]}\0\0', "byte 19: trailing characters"),
        (b'{"output_ids": [1]}\r{"output_ids": [1]}', "byte 20: trailing characters"),
        (b"", "byte 0"),
        (b" ", "byte 1"),
        (b"Internal Server Error", "'Internal Server Error' is not JSON; pass the body of a"),
        (b"<html>502</html>", "'<html>502</html>' is not JSON; pass the body of a successful"),
    ],
)
def test_bodies_that_are_refused(body, message):
    refused(body, message, prompts=[[1]])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_cut_bodies(count):
    """A body that ends anywhere before its end is an error, whatever its shape."""
    rows = [[-0.5, one, "a"] for one in range(count)]
    meta = {"output_token_logprobs": rows, "finish_reason": {"type": "stop"}}
    sglang = {"output_ids": [*range(count)], "meta_info": meta}
    content = [{"token_id": one, "logprob": -0.5, "top_logprobs": []} for one in range(count)]
    choice = {"token_ids": [*range(count)], "logprobs": {"content": content}}
    for body in (sglang, {"choices": [choice], "prompt_token_ids": [1]}):
        text = json.dumps(body).encode()
        for end in range(len(text)):
            refused(text[:end], "byte")


@pytest.mark.parametrize("value", ["x", 3, True, [1], {"a": 1}])
@pytest.mark.parametrize(
    "keys",
    [
        *(("choices",), ("choices", 0), ("choices", 0, "logprobs")),
        *(("choices", 0, "logprobs", "content"), ("choices", 0, "logprobs", "content", 0)),
        *(("meta_info",), ("meta_info", "output_token_logprobs")),
    ],
)
def test_values_of_other_kinds_on_paths(keys, value):
    """They are errors, not values that are not there."""
    if keys[0] == "choices":
        choice = {"token_ids": [1], "logprobs": {"content": [{"logprob": -0.5, "token_id": 1}]}}
        body = {"prompt_token_ids": [1], "choices": [choice]}
    else:
        body = {"output_ids": [1], "meta_info": {"output_token_logprobs": [[-0.5, 1, None]]}}
    at = body
    for key in keys[:-1]:
        at = at[key]
    is_list = isinstance(at[keys[-1]], list)
    if (isinstance(value, list) and is_list) or (isinstance(value, dict) and not is_list):
        return
    at[keys[-1]] = value
    for call, one in ((parse, json.dumps(body).encode()), (read, body)):
        with pytest.raises((TypeError, ValueError)) as caught:
            call([one], prompts=[[1]])
        assert "\n" not in str(caught.value)
