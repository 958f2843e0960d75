"""Bodies of which anything was changed, compared with a plain reader of their JSON."""

import json
import math

import numpy as np
import pytest
from helpers.engine_bodies import LOGPROBS, WIRES, calls_of, change, dumped, rounded
from hypothesis import given
from hypothesis import strategies as st

from fastcollate.rollouts import parse

BYTES = [b"1", b"-", b"0", b"e", b".", b'"', b",", b"]", b"}", b"null", b"\xff", b"\\", b"\n", b" "]


class Object(dict):
    """An object, with the keys that stand in it more than once."""

    def __init__(self, pairs):
        super().__init__(pairs)
        keys = [key for key, _ in pairs]
        self.twice = {key for key in keys if keys.count(key) > 1}


def of_kind(kind, value):
    """Return a value that is of a kind or null."""
    if value is not None and type(value) is not kind:
        raise ValueError(f"{value} is not {kind}")
    return value


def at(value, *keys):
    """Return the value under keys; None if it is not there."""
    for key in keys:
        value = of_kind(Object, value) or Object([])
        if key in value.twice:
            raise ValueError(f"{key} stands twice")
        value = value.get(key)
    return value


def id_of(value):
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"{value} is not an id")
    return value


def token_of(text):
    """Return the id in a text, if it is one."""
    if text is None:
        return None
    digits = str.removeprefix(text, "token_id:") if isinstance(text, str) else id_of(text)
    is_id = digits != text and digits.isascii() and digits.isdigit() and str(int(digits)) == digits
    return int(digits) if is_id and int(digits) < 2**31 else None


def number(value):
    if isinstance(value, str):
        return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}[value]
    if type(value) not in (int, float, type(None)):
        raise ValueError(f"{value} is not a number")
    return math.nan if value is None else float(value)


def calls_in(text):
    """Yield the response, the log-probabilities and the ids beside these of each call."""
    body = json.loads(text.decode(), object_pairs_hook=Object)
    for one in body if isinstance(body, list) else [body]:
        for choice in of_kind(list, at(one, "choices")) or ():
            content = of_kind(list, at(choice, "logprobs", "content"))
            values = of_kind(list, at(choice, "logprobs", "token_logprobs"))
            items = [of_kind(Object, item) or Object([]) for item in content or ()]
            ids = [id_of(at(item, "token_id")) if "token_id" in item else None for item in items]
            tokens = [at(item, "token") for item in items]
            if content is None:
                tokens = of_kind(list, at(choice, "logprobs", "tokens")) or ()
            elif not content or any("logprob" in item for item in items):
                values = [at(item, "logprob") for item in items]
            yield at(choice, "token_ids"), values, (ids, [*map(token_of, tokens)])
        if at(one, "choices") is None:
            items = of_kind(list, at(one, "meta_info", "output_token_logprobs"))
            rows = [of_kind(list, item) or () for item in items or ()]
            values = None if items is None else [next(iter(row), None) for row in rows]
            if rows and not any(rows):
                values = None
            yield (
                at(one, "output_ids"),
                values,
                ([id_of(row[1]) if row[1:] else None for row in rows],),
            )


def change_bytes(random, text):
    """Flip a bit, cut, insert, remove or repeat bytes."""
    at = random.randrange(len(text))
    kind = random.randrange(5)
    if kind == 0:
        text[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        del text[at:]
    elif kind == 2:
        text[at : at + random.randrange(3)] = random.choice(BYTES)
    elif kind == 3:
        del text[at : at + random.randrange(4)]
    else:
        text[at:at] = text[max(0, at - random.randrange(20)) : at]


@pytest.mark.parametrize("wire", WIRES)
@given(st.data(), st.randoms(use_true_random=False))
def test_changed_bodies_are_refused_or_read_as_a_plain_reader_does(wire, data, random):
    body = wire(data.draw, [1, 2], data.draw(calls_of(LOGPROBS)))
    for _ in range(random.randrange(3)):
        if body:
            change(random, body)
    text = bytearray(dumped(data.draw, body))
    for _ in range(random.randrange(3)):
        if text:
            change_bytes(random, text)
    options = {"bad_logprobs": "keep", "unfinished": "keep"}
    try:
        found = parse([bytes(text)], prompts=[[1, 2]], **options)
    except ValueError:
        return
    expected = [*calls_in(bytes(text))]
    assert len(found) == len(expected)
    for call, (response, values, of_values) in enumerate(expected):
        wanted = response
        if response is None:  # servers without ids of responses name those of log-probabilities
            wanted = next((ids for ids in of_values if ids and None not in ids), [])
        assert found.responses[call].tolist() == [id_of(one) for one in of_kind(list, wanted)]
        for ids in of_values:
            assert all(one in (None, other) for one, other in zip(ids, wanted, strict=False))
        if found.logprobs is None:
            assert values is None
            continue
        row = rounded(map(number, of_kind(list, values) or ()))
        row = row[2:] if len(row) == len(wanted) + 2 else row
        missing = np.full(len(wanted) - len(row), np.nan, np.float32)
        np.testing.assert_array_equal(found.logprobs[call], np.concatenate([row, missing]))
