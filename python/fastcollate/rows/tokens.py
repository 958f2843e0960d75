"""Token ids of rows: prompts and responses, or sequences."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fastcollate.common.arguments import check_count
from fastcollate.common.text import show
from fastcollate.rows.lengths import Integers, check_lengths

if TYPE_CHECKING:
    from fastcollate.rows.fields import Rows


class Parts(NamedTuple):
    """Prompts and responses, of all rows or of one."""

    prompts: Rows
    responses: Rows


class Whole(NamedTuple):
    """Sequences, of all rows or of one."""

    sequences: Rows
    prompt_lens: Integers | int | None = None
    """Numbers of prompt tokens; None for 0."""

    @property
    def prompts(self) -> None:
        """None: they are in the sequences. The core asks for them, to tell the two classes."""


Tokens: TypeAlias = Parts | Whole


def check_tokens(
    prompts: Any | None, responses: Any | None, sequences: Any | None, prompt_lens: Any | None
) -> Tokens:
    """Check the arguments that hold token ids."""
    is_whole = _is_whole(
        (prompts, responses, sequences, prompt_lens),
        ("prompts", "responses", "sequences", "prompt_lens"),
    )
    if not is_whole:
        return Parts(prompts, responses)
    if prompt_lens is not None:
        prompt_lens = check_lengths("prompt_lens", prompt_lens)
    return Whole(sequences, prompt_lens)


def check_row_tokens(
    prompt: Any | None, response: Any | None, sequence: Any | None, prompt_len: Any | None
) -> Tokens:
    """Check the arguments that hold the token ids of one row."""
    is_whole = _is_whole(
        (prompt, response, sequence, prompt_len), ("prompt", "response", "sequence", "prompt_len")
    )
    if not is_whole:
        return Parts(prompt, response)
    if prompt_len is not None:
        prompt_len = check_count("prompt_len", prompt_len, "a number of tokens", least=0)
    return Whole(sequence, prompt_len)


def _is_whole(given: tuple[Any, Any, Any, Any], names: tuple[str, str, str, str]) -> bool:
    """Return True if tokens are given as sequences, False for prompts and responses."""
    prompts, responses, sequences, prompt_lens = given
    if sequences is None:
        if prompts is not None and responses is not None and prompt_lens is None:
            return False
        wrong = f"{names[0] if prompts is None else names[1]} is None"
        if prompt_lens is not None:
            wrong = f"{names[3]} is given without {names[2]}"
    elif prompts is None and responses is None:
        return True
    else:
        wrong = f"{names[1] if prompts is None else names[0]} is given with {names[2]}"
    advice = f"pass {names[0]} and {names[1]}, or {names[2]} with {names[3]}"
    first = prompts[0] if isinstance(prompts, (list, tuple)) and prompts else prompts
    if isinstance(prompts, (str, PathLike)):
        advice = "read the file first: pass **calls.batch of calls = fc.rollouts.read(...)"
    elif hasattr(prompts, "turn_rows"):
        advice = f"pass the plan as merge=, beside {names[0]} and {names[1]}"
    elif hasattr(prompts, "turns"):
        advice = "pass the columns of calls by name, as **calls.batch"
    elif hasattr(prompts, "to_layout"):
        advice = f"pass the {names[0]} and {names[1]} of the batch, or call its to_layout(layout)"
    elif isinstance(first, Mapping) or hasattr(first, "column_names") or hasattr(first, "columns"):
        advice = (
            f"pass columns by name, as {names[0]}=table['prompt'] and {names[1]}=table['response'] "
            "(or **calls.batch of calls = fc.rollouts.read(...)), or the whole table, or samples, "
            "to a fc.Collator"
        )
    raise TypeError(f"{wrong}; {advice}")


def check_sampled(name: str, prompt_lens: Any, loss_mask: Any, **values: Any) -> None:
    """Check that whole sequences with values of sampled tokens say which tokens were sampled.

    `name` is that of the numbers of prompt tokens.
    """
    for key, rows in values.items():
        if prompt_lens is None and loss_mask is None and rows is not None:
            raise ValueError(
                f"{key} is given for whole sequences without {name} or loss_mask, so prompts "
                f"would train, too; pass {name} (0 where there is no prompt), or loss_mask"
            )


def check_continued(name: str, tokens: Tokens) -> None:
    """Check that sequences which are merged say where their responses begin.

    `name` is that of the numbers of prompt tokens.
    """
    if isinstance(tokens, Whole) and tokens.prompt_lens is None:
        raise ValueError(
            f"whole sequences are merged without {name}, so no turn would continue another, and "
            f"tokens of earlier turns would train again; pass {name} (0 where there is no prompt)"
        )


def row_len(tokens: Tokens, align: str) -> int:
    """Return the number of values of a row, along its response or its sequence."""
    is_whole = align == "sequence"
    if isinstance(tokens, Whole):
        cut: Any = 0 if is_whole else tokens.prompt_lens or 0
        return count_items("sequence", tokens.sequences) - int(cut)
    before = count_items("prompt", tokens.prompts) if is_whole else 0
    return before + count_items("response", tokens.responses)


def count_items(name: str, row: Any) -> int:
    """Return the number of tokens that a row says it has."""
    try:
        return len(row)
    except (TypeError, ValueError, OverflowError) as error:  # none, below 0, or beyond 64 bits
        advice = "pass a list or tuple of numbers, or a 1-D array or tensor"
        raise TypeError(f"{name} is {show(row)}; {advice}") from error
