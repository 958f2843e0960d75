"""Schemas: the paths of columns in a source's JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from fastcollate._fastcollate import CallSchema
from fastcollate.common.text import show


@final
@dataclass(frozen=True, init=False, repr=False)
class Schema:
    """Where the JSON of a source has the columns of calls.

    A path names keys from the beginning of a body: ``"step.response_ids"``, with ``[]`` for all
    items of an array and ``[0]`` for one: ``"choices[].logprobs.content[].logprob"``. Several
    paths of a column are alternatives.

    Parameters
    ----------
    calls
        Path of the array of calls, if a body has one; for instance ``"choices[]"``. Values outside
        it are those of all calls of the body. None: a body is one call.
    columns
        The path of each column, or a tuple of paths. ``prompts``, ``responses``, ``logprobs`` and
        ``loss_mask`` are read as numbers, one per token. ``logprob_ids``, or ``logprob_tokens``
        with texts such as ``"token_id:17"``, are the tokens of log-probabilities, which are
        compared with the response. All other columns become Python objects, one per call.

    Raises
    ------
    TypeError
        If a path is not a string.
    ValueError
        If a path is malformed, or two columns have the same one.

    Examples
    --------
    >>> trace = fc.rollouts.Schema(prompts="prompt_ids", responses="response_ids")
    >>> fc.rollouts.parse(b'{"prompt_ids": [5, 6], "response_ids": [7]}', trace)
    Calls of 1 call: 2 prompt tokens, 1 response token
    """

    calls: str | None
    columns: dict[str, tuple[str, ...]]
    _core: CallSchema

    def __init__(self, calls: str | None = None, **columns: str | tuple[str, ...]) -> None:
        paths = {name: (one,) if isinstance(one, str) else one for name, one in columns.items()}
        for name, given in {**paths, "calls": (calls or "",)}.items():
            if not isinstance(given, tuple) or not all(isinstance(path, str) for path in given):
                raise TypeError(
                    f"{name} is {show(given)}; pass a path, such as 'choices[].token_ids'"
                )
        flat = [(name, path) for name, given in paths.items() for path in given]
        object.__setattr__(self, "calls", calls)
        object.__setattr__(self, "columns", paths)
        object.__setattr__(self, "_core", CallSchema(calls, flat))

    def __repr__(self) -> str:
        """Show the call that makes the schema."""
        given: dict[str, Any] = {"calls": self.calls} if self.calls else {}
        given |= {name: one if len(one) > 1 else one[0] for name, one in self.columns.items()}
        return f"Schema({', '.join(f'{name}={path!r}' for name, path in given.items())})"


_OF_ENGINES: dict[str, str | tuple[str, ...]] = {
    "encoded.routes": (
        "choices[].routed_experts",
        "choices[].meta_info.routed_experts",
        "meta_info.routed_experts",
        "sglext.routed_experts",
    ),
    "calls.responses": "sglext.output_ids",
    "event.index": ("choices[].index", "index"),
    "event.total": "meta_info.completion_tokens",
}
"""Columns of engines alone, by names that no user can give."""

ENGINES = Schema(
    "choices[]",
    prompts=("prompt_token_ids", "choices[].prompt_token_ids", "sglext.input_ids"),
    responses=("choices[].token_ids", "choices[].response_token_ids", "output_ids"),
    logprobs=(
        "choices[].logprobs.content[].logprob",
        "choices[].logprobs.token_logprobs",
        "meta_info.output_token_logprobs[][0]",
    ),
    logprob_ids=(
        "choices[].logprobs.content[].token_id",
        "meta_info.output_token_logprobs[][1]",
    ),
    logprob_tokens=("choices[].logprobs.content[].token", "choices[].logprobs.tokens"),
    finish_reasons=("choices[].finish_reason", "meta_info.finish_reason"),
    versions=(
        "choices[].weight_versions",
        "choices[].meta_info.weight_versions",
        "meta_info.weight_versions",
    ),
    first_versions="metadata.weight_versions",
    support=(
        "choices[].sampling_mask",
        "choices[].meta_info.output_token_sampling_mask",
        "meta_info.output_token_sampling_mask",
    ),
    request_ids=("request_id", "id", "meta_info.id"),
    **_OF_ENGINES,
)
"""The responses of vLLM (generate, chat, completions), SGLang (generate, chat) and other servers of
OpenAI's API that return token ids. Their keys differ, so one schema reads all of them.

vLLM 0.33 (``return_token_ids``; ``return_tokens_as_token_ids`` for servers without), SGLang 0.5.23
(``return_logprob``, ``return_prompt_token_ids``).
"""
