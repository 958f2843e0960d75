"""Token ids of rows: prompts and responses, or sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fastcollate.arguments import checked_count
from fastcollate.plan.lengths import Integers, checked_lengths

if TYPE_CHECKING:
    from fastcollate.ingest.fields import Rows


class Parts(NamedTuple):
    """Prompts and the responses to them, of all rows or of one."""

    prompts: Rows
    responses: Rows


class Whole(NamedTuple):
    """Sequences, of all rows or of one."""

    sequences: Rows
    prompt_lens: Integers | int | None = None
    """How many of their tokens are prompts; None for none."""


Tokens: TypeAlias = Parts | Whole


def checked_tokens(
    prompts: Any | None, responses: Any | None, sequences: Any | None, prompt_lens: Any | None
) -> Tokens:
    """Check the arguments that hold token ids."""
    if prompts is not None and responses is not None and sequences is prompt_lens is None:
        return Parts(prompts, responses)  # first, since small batches take a few microseconds
    _check_form(prompts=prompts, responses=responses, sequences=sequences, prompt_lens=prompt_lens)
    if sequences is None:
        return Parts(prompts, responses)
    return Whole(
        sequences, None if prompt_lens is None else checked_lengths("prompt_lens", prompt_lens)
    )


def checked_row_tokens(
    prompt: Any | None, response: Any | None, sequence: Any | None, prompt_len: Any | None
) -> Tokens:
    """Check the arguments that hold the token ids of one row."""
    _check_form(prompt=prompt, response=response, sequence=sequence, prompt_len=prompt_len)
    if sequence is None:
        return Parts(prompt, response)
    if prompt_len is not None:
        prompt_len = checked_count("prompt_len", prompt_len, "a number of tokens", least=0)
    return Whole(sequence, prompt_len)


def _check_form(**given: Any) -> None:
    """Check that tokens are given in one of the two forms."""
    prompts, responses, sequences, prompt_lens = given
    forms = f"pass {prompts} and {responses}, or {sequences} with {prompt_lens}"
    is_whole = given[sequences] is not None
    if given[prompt_lens] is not None and not is_whole:
        raise TypeError(f"{prompt_lens} is given without {sequences}; {forms}")
    for name in (prompts, responses):
        if is_whole and given[name] is not None:
            raise TypeError(f"{name} is given beside {sequences}; {forms}")
        if not is_whole and given[name] is None:
            raise TypeError(f"{name} is None; {forms}")
