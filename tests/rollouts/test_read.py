"""Calls from the outputs of engines, by stand-ins with the engines' attributes."""

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.plan.grouping import group_numbers
from fastcollate.rollouts import parse, read


@dataclass
class Logprob:
    """An entry of vLLM's dictionaries."""

    logprob: float
    rank: int | None = 1


@dataclass
class Flat:
    """vLLM's flat log-probabilities: lists over all entries, and the span of each token's."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def __len__(self):
        return len(self.start_indices)

    def __iter__(self):
        raise AssertionError("flat log-probabilities are not iterated")


@dataclass
class Sample:
    """A sample of a request."""

    token_ids: Any
    logprobs: Any = None
    finish_reason: str | None = "stop"
    weight_versions: Any = None


@dataclass
class Request:
    """The output of a request."""

    prompt_token_ids: list[int]
    outputs: list[Sample]


@dataclass
class Sampled:
    """A sequence of tinker."""

    tokens: Any
    logprobs: Any
    stop_reason: str = "stop"


class Response:
    """An object of OpenAI's client."""

    def __init__(self, body):
        self.body = body

    def model_dump_json(self):
        return json.dumps(self.body)


def flat_of(entries):
    """Return dictionaries as flat lists."""
    flat = Flat()
    for entry in entries:
        flat.start_indices.append(len(flat.logprobs))
        flat.token_ids += entry or ()
        flat.logprobs += [one.logprob for one in (entry or {}).values()]
        flat.end_indices.append(len(flat.logprobs))
    return flat


TOKENS = st.lists(st.tuples(st.integers(0, 99), st.floats(-9, 0), st.integers(0, 3)), max_size=6)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 99)), st.lists(TOKENS, max_size=3)),
        min_size=1,
        max_size=3,
    )
)
def test_vllm_equals_plain_loops(requests):
    expected = [
        (index, prompt, sample)
        for index, (prompt, samples) in enumerate(requests)
        for sample in samples
    ]
    for form in (list, flat_of):
        outputs = []
        for prompt, samples in requests:
            outputs.append(Request(prompt, []))
            for sample in samples:
                entries = [
                    {one: Logprob(value)} | {100 + more: Logprob(-1.0) for more in range(others)}
                    for one, value, others in sample
                ]
                outputs[-1].outputs.append(Sample([one for one, *_ in sample], form(entries)))
        calls = read(outputs)
        assert calls.prompts.to_list() == [prompt for _, prompt, _ in expected]
        assert calls.responses.to_list() == [[one for one, *_ in sample] for *_, sample in expected]
        requests_of = group_numbers("uids", [index for index, *_ in expected])
        assert group_numbers("uids", calls.uids).tolist() == requests_of.tolist()
        if expected:
            values = [value for *_, sample in expected for _, value, _ in sample]
            np.testing.assert_array_equal(calls.logprobs.values, np.array(values, np.float32))
        assert calls.responses.dtype == np.int32


def test_objects_and_bytes_are_alike():
    bodies = [
        {
            "output_ids": [7, 8],
            "meta_info": {
                "finish_reason": {"type": "stop"},
                "output_token_logprobs": [[-0.5, 7, None], [-1.0, 8, "x"]],
                "weight_versions": [{"version": "3", "start": 0, "end": 2}],
            },
        },
        [
            {
                "output_ids": [9],
                "meta_info": {
                    "finish_reason": {"type": "length"},
                    "output_token_logprobs": [[-2.0, 9, None]],
                },
            }
        ]
        * 2,
    ]
    prompts = [[1], [2, 3]]
    from_bytes = parse([json.dumps(body).encode() for body in bodies], prompts=prompts)
    from_objects = read(bodies, prompts=prompts)
    for name in ("prompts", "responses", "logprobs"):
        assert getattr(from_bytes, name) == getattr(from_objects, name)
    for name in ("versions", "finish_reasons"):
        assert list(getattr(from_bytes, name)) == list(getattr(from_objects, name))
    groups = [group_numbers("uids", one.uids).tolist() for one in (from_bytes, from_objects)]
    assert groups[0] == groups[1]
    assert from_objects.finish_reasons == ["stop", "length", "length"]

    body = {
        "choices": [
            {
                "token_ids": [7],
                "finish_reason": "stop",
                "logprobs": {"content": [{"token": "a", "logprob": -1}]},
            }
        ],
        "prompt_token_ids": [1],
    }
    assert read([Response(body)]).logprobs == parse([json.dumps(body).encode()]).logprobs


def test_tinker():
    sampled = Sampled(np.array([7, 8]), np.array([-0.5, -1.0], np.float32))
    calls = read([sampled, sampled], prompts=[[1], [2]])
    assert calls.logprobs.to_list() == [[-0.5, -1.0]] * 2
    batch = fc.build_batch(**calls.batch, pad_token_id=0, array_type="numpy")
    assert batch.logprobs.tolist() == [[-0.5, -1.0]] * 2


@pytest.mark.parametrize("form", [list, flat_of])
def test_log_probabilities_of_other_tokens(form):
    entries = [{7: Logprob(-1.0)}, {9: Logprob(-1.0)}]
    with pytest.raises(ValueError, match=r"outputs\[0\]: call 0 .* token 1 is 9, but 8 in the"):
        read([Request([1], [Sample([7, 8], form(entries))])])
    with pytest.raises(ValueError, match="has 2 log-probabilities, but its response has 1 token"):
        read([Request([1], [Sample([7], form(entries))])])


def test_the_sampled_token_may_not_be_the_first():
    """Its entry is looked up; numbers may stand in place of objects, as in TensorRT-LLM."""
    entries = [{9: Logprob(-1.0), 7: Logprob(-2.0)}, {8: -0.5}]
    assert read([Request([1], [Sample([7, 8], entries)])]).logprobs.to_list() == [[-2.0, -0.5]]
    assert read([Request([1], [Sample([7, 8], [-2, -0.5])])]).logprobs.to_list() == [[-2.0, -0.5]]


@pytest.mark.parametrize(
    "logprobs",
    [
        [(-1.0, "x")],
        ["a"],
        [{7: "a"}],
        [{"a": Logprob(-1.0)}],
        [{7: Logprob("a")}],
        3,
        Flat([5], [6], [7], [-1.0]),
        Flat(["a"], [6], [7], [-1.0]),
        Flat([0], [1], None, [-1.0]),
    ],
)
def test_objects_of_other_kinds(logprobs):
    with pytest.raises(
        (TypeError, ValueError, IndexError), match=r"outputs\[1\]: call 0 could not"
    ):
        read([Request([1], [Sample([7])]), Request([1], [Sample([7], logprobs)])])


@pytest.mark.parametrize("form", [list, flat_of])
def test_bad_log_probabilities(form):
    entries = form([{7: Logprob(-1.0)}, None, {9: Logprob(math.nan)}])
    outputs = [Request([1], [Sample([7, 8, 9], entries)])]
    with raises(r"outputs\[0\]: call 0 has the invalid log-probability NaN at response token 1"):
        read(outputs)
    masked = read(outputs, bad_logprobs="mask")
    assert masked.logprobs.to_list() == [[-1.0, 0.0, 0.0]]
    assert masked.loss_mask.to_list() == [[1, 0, 0]]
    assert masked.bad_logprobs.tolist() == [[2, 0, 0, 0]]
    kept = read(outputs, bad_logprobs="keep")
    assert kept.loss_mask is None
    assert np.isnan(kept.logprobs.values[1:]).all()
    without = [*outputs, Request([1], [Sample([5])])]
    assert read(without, bad_logprobs="mask").loss_mask.to_list() == [[1, 0, 0], [0]]
    assert read([Request([1], [Sample([5])])]).logprobs is None


def test_arguments():
    with pytest.raises(TypeError, match=r"outputs\[0\] is 3; pass outputs of vLLM"):
        read([3])
    with pytest.raises(ValueError, match=r"outputs\[0\] has no prompt ids; pass prompts="):
        read([{"output_ids": [7]}])
    with pytest.raises(ValueError, match="prompts has 2 rows, but there are 1 body"):
        read([{"output_ids": [7]}], prompts=[[1], [2]])
    with pytest.raises(ValueError, match="did not finish"):
        read([Request([1], [Sample([7], finish_reason="abort")])])
    assert len(read([Request([1], [Sample([7], finish_reason="abort")])], unfinished="skip")) == 0
    assert len(read([])) == 0


def test_bodies_as_dictionaries_are_read_as_their_bytes_are():
    body = {
        "request_id": "a",
        "prompt_token_ids": [1, 2],
        "choices": [
            {
                "index": 0,
                "token_ids": [3],
                "finish_reason": "stop",
                "logprobs": {"content": [{"token_id": 3, "logprob": -0.5}]},
            }
        ],
    }
    found = fc.rollouts.read([body])
    assert found.responses.to_list() == [[3]]
    assert found.logprobs.to_list() == [[-0.5]]
    with pytest.raises(TypeError, match=r"which fc\.rollouts\.parse reads"):
        read([b'{"output_ids": [7]}'])


@pytest.mark.parametrize("wrong", [0, 1, 2])
@pytest.mark.parametrize("bad", ["text", 3, [1]])
def test_a_value_in_place_of_an_object_names_its_output(wrong, bad):
    meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": [(-0.5, 7, None)]}
    outputs = [{"output_ids": [7], "meta_info": meta} for _ in range(3)]
    outputs[wrong] = {"output_ids": [7], "meta_info": bad}
    # Two calls of the first output: calls are not numbered as outputs are.
    outputs[0] = [{"output_ids": [7], "meta_info": meta}, outputs[0]]
    with pytest.raises(
        ValueError, match=rf"^outputs\[{wrong}\]: found .* object is expected; correct it, or pass"
    ):
        read(outputs, prompts=[[1]] * 3)


@pytest.mark.parametrize("logprobs", [{0: -0.5, 1: -0.3}, {}, "12"])
def test_keys_and_characters_are_not_log_probabilities(logprobs):
    schema = fc.rollouts.Schema(prompts="prompt", responses="ids", logprobs="logprobs")
    with pytest.raises(TypeError, match=r"^outputs\[0\]: call 0 .* where a list is expected$"):
        read([{"prompt": [1], "ids": [2, 3], "logprobs": logprobs}], schema)


@pytest.mark.parametrize("flag", [1.5, math.inf])
def test_flags_that_are_not_whole_are_refused(flag):
    schema = fc.rollouts.Schema(prompts="prompt", responses="ids", loss_mask="flags&2")
    with raises(r"^outputs\[0\]: call 0 has .* at item 1 of its loss mask"):
        read([{"prompt": [1], "ids": [2, 3], "flags": [2, flag]}], schema)


def test_values_that_change_while_they_are_read():
    class Fickle:
        reads = 0

        @property
        def out(self):
            self.reads += 1
            return "text" if self.reads == 1 else {"ids": [2]}

    schema = fc.rollouts.Schema(prompts="prompt", responses="out.ids")
    output = Fickle()
    output.prompt = [1]
    with pytest.raises(ValueError, match="an object is expected"):
        read([output], schema)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 40])
@pytest.mark.parametrize(
    ("empties", "error", "message"),
    [
        ("entries", TypeError, "an entry is expected"),
        ("items", ValueError, "has only 1 log-probabilities for"),
    ],
)
def test_log_probabilities_that_are_emptied_while_they_are_read(empties, error, message, count):
    class Emptying:
        @property
        def logprob(self):
            for item in items:
                if isinstance(item, dict):
                    item.clear()
            if empties == "items":
                items.clear()
            return -0.5

    items = [({5: Emptying()}, {5: -0.1}, (-0.2, 5))[index % 3] for index in range(count)]
    output = {"prompt": [1], "ids": [5] * count, "logprobs": items}
    schema = fc.rollouts.Schema(prompts="prompt", responses="ids", logprobs="logprobs")
    if count == 1:
        assert read([output], schema).logprobs.to_list() == [[-0.5]]
        return
    with pytest.raises(error, match=rf"^outputs\[0\].*{message}"):
        read([output], schema)


def test_reference_counts_of_the_parts_of_items():
    token, number = 10**6, float("-0.125")
    for item in ((number, token), {token: number}):
        items = [item] * 40
        before = sys.getrefcount(token), sys.getrefcount(number)
        schema = fc.rollouts.Schema(prompts="prompt", responses="ids", logprobs="logprobs")
        calls = read([{"prompt": [1], "ids": [token] * 40, "logprobs": items}], schema)
        assert calls.logprobs.to_list() == [[number] * 40]
        assert (sys.getrefcount(token), sys.getrefcount(number)) == before
