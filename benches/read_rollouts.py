"""Measure reading an engine's objects in the same process: `fc.rollouts.read`.

32 responses of 2,000 tokens with their log-probabilities. Times are nanoseconds a token, with the
garbage collector off; a line is one interleaved run (see `common.timing`).

read
    The calls of all outputs.
comprehension
    A list of the log-probabilities, by a comprehension that reads one attribute or item per token.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from functools import partial
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main


@dataclass
class Logprob:
    """An entry of vLLM's log-probabilities."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Sample = make_dataclass("Sample", ["token_ids", "logprobs", "finish_reason"])
Output = make_dataclass("Output", ["prompt_token_ids", "outputs"])
Flat = make_dataclass("Flat", ["start_indices", "end_indices", "token_ids", "logprobs"])


def of_vllm(logprobs: Callable[[list[int], list[float]], Any]) -> Callable[..., Any]:
    """Return outputs of vLLM, whose log-probabilities are made of ids and numbers."""

    def make(ids: list[int], numbers: list[float]) -> Any:
        return Output([1, 2, 3], [Sample(ids, logprobs(ids, numbers), "stop")])

    return make


def entries(alternatives: int, ids: list[int], numbers: list[float]) -> list[dict[int, Logprob]]:
    """Return a dictionary per token, with other tokens than the sampled one."""
    return [
        {one: Logprob(number, 1), **{-other: Logprob(-9.0) for other in range(1, alternatives + 1)}}
        for one, number in zip(ids, numbers, strict=True)
    ]


def flat(ids: list[int], numbers: list[float]) -> Any:
    """Return flat log-probabilities, one a token."""
    return Flat([*range(len(ids))], [*range(1, len(ids) + 1)], ids, numbers)


def sglang(ids: list[int], numbers: list[float]) -> dict[str, Any]:
    """Return an output of SGLang."""
    pairs = [(number, one, None) for number, one in zip(numbers, ids, strict=True)]
    meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": pairs}
    return {"output_ids": ids, "meta_info": meta}


def of_sample(output: Any) -> list[float]:
    """Read dictionaries."""
    sample = output.outputs[0]
    pairs = zip(sample.logprobs, sample.token_ids, strict=True)
    return [entry[token].logprob for entry, token in pairs]


KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], list[float]]]] = {
    "dictionaries": (of_vllm(partial(entries, 0)), of_sample),
    "dictionaries, 5 alternatives": (of_vllm(partial(entries, 5)), of_sample),
    "flat": (
        of_vllm(flat),
        lambda output: [
            output.outputs[0].logprobs.logprobs[start]
            for start in output.outputs[0].logprobs.start_indices
        ],
    ),
    "SGLang's tuples": (
        sglang,
        lambda output: [pair[0] for pair in output["meta_info"]["output_token_logprobs"]],
    ),
}


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure all kinds."""
    rng = np.random.default_rng(0)
    count, tokens = (2, 5) if effort.is_smoke else (32, 2000)
    for name, (make, listed) in KINDS.items():
        ids = rng.integers(0, 150_000, (count, tokens)).tolist()
        numbers = (-rng.exponential(size=(count, tokens))).tolist()
        outputs = list(map(make, ids, numbers))
        prompts = [[1, 2, 3]] * count if make is sglang else None
        calls: dict[str, Callable[[], Any]] = {
            "read": partial(fc.rollouts.read, outputs, prompts=prompts),
            "comprehension": lambda outputs=outputs, listed=listed: list(map(listed, outputs)),
        }
        gc.disable()
        yield name, {key: value / (count * tokens) for key, value in effort.run(calls).items()}
        gc.enable()


def cell(times: Figures, name: str) -> str:
    """Return a time in nanoseconds, and how it compares with the comprehension."""
    ratio = f" ({times[name] / times['comprehension']:.2f}x)" if name == "read" else ""
    return f"{times[name] * 1e9:.0f} ns{ratio}"


if __name__ == "__main__":
    main(__doc__, measure, cell)
