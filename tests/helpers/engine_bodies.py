"""Bodies of engines, drawn by Hypothesis: ours, by the fields that the engines document."""

import copy
import json
import math

import numpy as np
from hypothesis import strategies as st

IDS = st.integers(0, 2**31 - 1) | st.integers(0, 200)
LOGPROBS = (
    st.floats(-30, 0)
    | st.floats(-30, 0, width=32)
    | st.integers(-20, 0)
    | st.sampled_from([0.0, -0.0, -1e-7, -1.5e-38, -9998.5, -12345678901234567890, -1e-300])
)
BAD = st.sampled_from([None, math.nan, -math.inf, -9999.0])
TEXTS = st.text(max_size=4) | st.sampled_from(
    [" the", 'a"b', "\\", "é", "\U0001f600", "\n", "]", "},{"]
)

VALUES = [
    *(None, "x", 3, -1, 1.5, True, [], {}, [1], {"a": 1}, [[1]], 2**31, 2**63, math.inf, -0.0),
    *(-9999.0, "NaN", "token_id:5", "token_id:05"),
]
"""Values of every kind."""


@st.composite
def calls_of(draw, logprobs):
    """Draw the calls of a body: ids, and log-probabilities or None."""
    calls = []
    for _ in range(draw(st.integers(1, 3))):
        ids = draw(st.lists(IDS, max_size=6))
        have = draw(st.booleans())
        calls.append((ids, [draw(logprobs) for _ in ids] if have else None))
    return calls


def top(draw, ids, logprob, key):
    """Draw the alternatives of a token: the sampled one first."""
    first = [{key: ids, "logprob": logprob}]
    return first + [{key: ids, "logprob": draw(LOGPROBS)} for _ in range(draw(st.integers(0, 2)))]


def vllm_generate(draw, prompt, calls):
    """A body of vLLM's generate endpoint."""
    choices = []
    for index, (ids, logprobs) in enumerate(calls):
        content = logprobs and [
            {
                "token_id": one,
                "logprob": logprob,
                "rank": draw(st.none() | st.integers(1, 9)),
                "top_logprobs": top(draw, one, logprob, "token_id"),
            }
            for one, logprob in zip(ids, logprobs, strict=True)
        ]
        choices.append(
            {
                "index": index,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": ids,
                "logprobs": None if logprobs is None else {"content": content},
            }
        )
    return {"request_id": "r", "choices": choices, "prompt_token_ids": prompt, "usage": {"n": [1]}}


def vllm_chat(draw, prompt, calls):
    """A body of vLLM's chat endpoint."""
    choices = []
    for index, (ids, logprobs) in enumerate(calls):
        content = logprobs and [
            {
                "token": (text := draw(TEXTS)),
                "logprob": logprob,
                "bytes": [*text.encode("utf-8", "replace")],
                "top_logprobs": top(draw, text, logprob, "token") if draw(st.booleans()) else [],
            }
            for logprob in logprobs
        ]
        message = {"role": "assistant", "content": draw(TEXTS)}
        choices.append(
            {
                "index": index,
                "message": message,
                "token_ids": ids,
                "finish_reason": "length",
                "logprobs": None if logprobs is None else {"content": content},
            }
        )
    return {"id": "c", "object": "chat.completion", "choices": choices, "prompt_token_ids": prompt}


def vllm_completions(draw, prompt, calls):
    """A body of vLLM's completions endpoint."""
    choices = []
    for index, (ids, logprobs) in enumerate(calls):
        tokens = [f"token_id:{one}" for one in ids]
        of_choice = {"token_logprobs": logprobs, "tokens": tokens, "text_offset": []}
        choices.append(
            {
                "index": index,
                "text": draw(TEXTS),
                "logprobs": None if logprobs is None else of_choice,
                "finish_reason": "stop",
                "token_ids": ids,
                "prompt_token_ids": prompt,
            }
        )
    return {"id": "t", "object": "text_completion", "choices": choices}


def sglang_generate(draw, prompt, calls):
    """A body of SGLang's generate endpoint: a list for several samples; it has no prompt."""
    bodies = []
    for ids, logprobs in calls:
        meta = {"id": "s", "finish_reason": {"type": "stop", "matched": draw(st.none() | IDS)}}
        if logprobs is not None:
            texts = [draw(st.none() | TEXTS) for _ in ids]
            meta["output_token_logprobs"] = [*map(list, zip(logprobs, ids, texts, strict=True))]
        bodies.append({"text": draw(TEXTS), "output_ids": ids, "meta_info": meta})
    return bodies


def places_in(value, path=()):
    """Yield the paths to all values."""
    if path:
        yield path
    keys = value if isinstance(value, dict) else range(len(value)) if type(value) is list else ()
    for key in keys:
        yield from places_in(value[key], (*path, key))


def change(random, body):
    """Replace, remove, repeat or reorder a value."""
    *outer, key = random.choice([*places_in(body)])
    for one in outer:
        body = body[one]
    kind = random.randrange(3)
    if kind == 0:
        body[key] = copy.deepcopy(random.choice(VALUES))
    elif kind == 1:
        del body[key]
    elif isinstance(body, list):
        body.insert(key, body[key])
    else:
        body[key] = body.pop(key)


WIRES = [vllm_generate, vllm_chat, vllm_completions, sglang_generate]


def dumped(draw, body):
    """Write a body with drawn spaces."""
    options = [{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}]
    return json.dumps(body, **draw(st.sampled_from(options))).encode("utf-8", "surrogatepass")


def rounded(values):
    """Return numbers as float32, rounded from float64; None is NaN."""
    with np.errstate(over="ignore"):
        return np.array([math.nan if one is None else one for one in values], np.float64).astype(
            np.float32
        )


def flat(rows):
    """Return rows as values and offsets."""
    values = np.array([one for row in rows for one in row], np.int32)
    return values, np.cumsum([0, *map(len, rows)])
