"""Measure reading the responses of engines: `fc.rollouts.parse` of bytes.

64 responses of 2,000 tokens with their log-probabilities, as compact JSON. Times are nanoseconds a
token, with the garbage collector off; a line is one interleaved run (see `common.timing`).

parse
    The calls of all bodies.
batch
    The calls, and a padded batch of them, with the share of reading.
orjson
    `orjson.loads` of the bodies, if it is installed, each result freed before the next; else
    `json.loads`. Lists of ids and log-probabilities, and the batch, come on top.
UTF-8
    Decoding the bodies as text: a pass over all bytes.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main

Rng = np.random.Generator


def generate(ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    """Return a response of vLLM's generate endpoint."""
    content = [
        {
            "token_id": one,
            "logprob": value,
            "rank": 1,
            "top_logprobs": [{"token_id": one, "logprob": value, "rank": 1}],
        }
        for one, value in zip(ids, logprobs, strict=True)
    ]
    return of_choice(
        {"index": 0, "logprobs": {"content": content}, "finish_reason": "stop", "token_ids": ids}
    )


def chat(ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    """Return a response of vLLM's chat endpoint."""
    texts = [" abcdefgh"[: 2 + one % 7] for one in ids]
    content = [
        {"token": text, "logprob": value, "bytes": [*text.encode()], "top_logprobs": []}
        for text, value in zip(texts, logprobs, strict=True)
    ]
    message = {"role": "assistant", "content": "".join(texts)}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": content},
        "finish_reason": "stop",
    }
    return of_choice({**choice, "token_ids": ids})


def of_choice(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a response of vLLM with one choice."""
    return {
        "id": "a",
        "choices": [choice],
        "prompt_token_ids": [1, 2, 3],
        "usage": {"prompt_tokens": 3},
    }


def sglang(ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    """Return a response of SGLang's generate endpoint."""
    content = [[value, one, None] for value, one in zip(logprobs, ids, strict=True)]
    meta = {
        "id": "a",
        "finish_reason": {"type": "stop", "matched": 2},
        "output_token_logprobs": content,
    }
    return {"text": "a" * (4 * len(ids)), "output_ids": ids, "meta_info": meta}


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure all formats."""
    rng = np.random.default_rng(0)
    bodies_each, tokens = (2, 5) if effort.is_smoke else (64, 2000)
    for name, make in {
        "vLLM generate": generate,
        "vLLM chat": chat,
        "SGLang generate": sglang,
    }.items():
        bodies = []
        for _ in range(bodies_each):
            ids = rng.integers(0, 150_000, tokens).tolist()
            logprobs = (-rng.exponential(size=tokens)).astype(np.float32).astype(float).tolist()
            bodies.append(json.dumps(make(ids, logprobs), separators=(",", ":")).encode())
        prompts = [[1, 2, 3]] * bodies_each
        load = loads()

        def parse(bodies: list[bytes] = bodies, prompts: Any = prompts) -> Any:
            return fc.rollouts.parse(bodies, prompts=prompts)

        calls: dict[str, Callable[[], Any]] = {
            "parse": parse,
            "batch": lambda parse=parse: fc.build_batch(
                **parse().batch, pad_token_id=0, array_type="numpy"
            ),
            "orjson": lambda bodies=bodies, load=load: [load(body) and None for body in bodies],
            "UTF-8": lambda bodies=bodies: [body.decode() for body in bodies],
        }
        gc.disable()
        yield (
            name,
            {key: value / (bodies_each * tokens) for key, value in effort.run(calls).items()},
        )
        gc.enable()


def loads() -> Callable[[bytes], Any]:
    """Return the fastest parser that is installed."""
    try:
        import orjson
    except ImportError:
        return json.loads
    return orjson.loads


def cell(times: Figures, name: str) -> str:
    """Return a time in nanoseconds, and how it compares with reading."""
    ratio = times[name] / times["parse"]
    more = {"orjson": f" ({ratio:.1f}x)", "batch": f" ({1 / ratio:.0%})"}.get(name, "")
    return f"{times[name] * 1e9:.0f} ns{more}"


if __name__ == "__main__":
    main(__doc__, measure, cell)
