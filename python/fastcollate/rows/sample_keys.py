"""Keys of samples: known ones, those renamed, and advice for all others."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastcollate.common.names import column_called, same_word
from fastcollate.common.row_columns import IDS, TOKENS, VALUES
from fastcollate.common.text import in_words
from fastcollate.rows.fields import LABELS, is_reserved, other_key
from fastcollate.rows.pairs import LOGPS, PAIR
from fastcollate.rows.sample_tokens import SEQ_LENGTHS, SEQUENCE, TURN

COLUMNS = {name: name for name in VALUES} | {key: name for name, key in IDS.items()}
"""Keys of samples besides the tokens, and their arguments of `build_batch`."""

KEYS = tuple(dict.fromkeys((*TURN, *SEQUENCE, *PAIR, *LOGPS, *COLUMNS)))
"""Keys with a meaning."""

ARGUMENTS = {
    **TOKENS,
    "sequences": "input_ids",
    **{name: key for key, name in COLUMNS.items() if name != key},
}
"""Arguments of `build_batch`, and the keys of samples that they come from."""

_OF_OBJECTS = ("uid", "trajectory_id")
"""Keys of any objects, such as strings."""

_OF_PAIRS = {
    "prompt_input_ids": "prompt_ids",
    **dict.fromkeys(("chosen", "chosen_input_ids"), "chosen_ids"),
    **dict.fromkeys(("rejected", "rejected_input_ids"), "rejected_ids"),
}
"""Other names for the keys of pairs."""

_MADE_BY = {
    "WeightVersions": ("versions", "version", "weight_versions", "policy_versions"),
    "RoutedExperts": ("routed_experts", "routes", "expert_indices"),
}
"""Classes of fields, and keys of their rows."""

_RESPONSE_LENGTHS = ("response_length", "response_len", "completion_length", "completion_len")

_OF_PACKED = (
    *("position_ids", "segment_ids", "sequence_ids", "document_ids", "seq_idx"),
    *("cu_seqlens", "cu_seq_lens_q", "seq_lens", "sequence_lengths"),
)
"""Keys by which other packers tell the sequences of a sample apart."""

First = Callable[[str], Any]
"""Returns the first row of a key, or raises if there is none."""


class Keys(NamedTuple):
    """The keys of samples that are used."""

    of_fields: Collection[str]
    """Those that fields read."""
    renamed: Mapping[str, str]
    """Other names of known keys."""
    ignore: Collection[str] | None
    """Ignored keys; None for all that are unknown."""

    def used(self, keys: Iterable[str], first: First, *, is_first: bool = True) -> dict[str, str]:
        """Return the used keys, and the known key of each.

        `is_first` is False for samples after the first one, which may lack keys.

        Raises
        ------
        ValueError
            Unknown keys that are not ignored, all in one message; two keys of one meaning; a
            missing key of `renamed`.
        """
        keys = list(keys)
        missing = [key for key in self.renamed if key not in keys]
        if missing and is_first:
            raise ValueError(
                f"columns has {missing[0]!r}, which samples do not have (their keys are {keys}); "
                "pass a key of samples"
            )
        ignored = () if self.ignore is None else self.ignore
        names = {key: self.renamed.get(key, key) for key in keys if key not in ignored}
        for key, name in self.renamed.items():
            if key in names and key != name and names.get(name) == name:
                raise ValueError(
                    f"samples have {name!r}, and columns has {key!r} for it; leave one out, or "
                    f"name it in ignore: ignore=[{name!r}]"
                )
        unknown = [key for key in names if names[key] not in KEYS and key not in self.of_fields]
        if unknown and self.ignore is not None:
            raise ValueError(_message(unknown, names, first))
        return {key: name for key, name in names.items() if key not in unknown}


def conversion_of(text: Any) -> str:
    """Return what to do with text in place of token ids."""
    is_of_digits = re.fullmatch(r"[\d\[\], '\"-]*", str(text)[:80])
    how = "convert it to integers first, as by json.loads" if is_of_digits else "tokenize it first"
    return f"{how}, and pass the ids"


def _message(unknown: list[str], names: Mapping[str, str], first: First) -> str:
    """Return the error for unknown keys, with a way to handle each."""
    own = {name: key for key, name in names.items()}

    def of_name(name: str) -> Any:
        return first(own.get(name, name))

    def shown(keys: list[str]) -> str:
        return in_words([repr(key) for key in keys], "and")

    text = [key for key in unknown if _is_text(read(of_name, key))]
    columns = _columns_for(unknown, names, text)
    tokens = own.keys() & {*TURN, *PAIR, "input_ids"}
    has_tokens = any(_known(name) in (*TURN, *PAIR, "input_ids") for name in columns.values())
    if text and not has_tokens and all(_is_text(read(of_name, key)) for key in tokens):
        found = read(of_name, text[0])
        keys = "'input_ids', or 'prompt' and 'response'"
        if {"chosen", "rejected"} <= set(text):
            keys = ", ".join(map(repr, PAIR))
        how = f"{conversion_of(found)} as {keys}"
        if not isinstance(found, str) and isinstance(found[0], Mapping):
            how = (
                "apply the chat template first, and pass its 'input_ids' and 'assistant_masks': "
                "tokenizer.apply_chat_template(messages, return_dict=True, "
                "return_assistant_tokens_mask=True)"
            )
        return f"samples have text in {shown(text)}, but no token ids; {how}"
    own |= {ARGUMENTS.get(name, name): key for key, name in columns.items()}
    fields: dict[str, str] = {}
    handled = {*columns, *text}
    for key in unknown:
        if key in handled:
            continue
        both = _of_both_rows(key, names)
        if (field := _field_for(both, of_name)) is not None:
            # A field of both rows has neither's name.
            words = (word for word in str(both[0]).split("_") if word != "chosen")
            name = key if len(both) == 1 else "_".join(words) or both[0]
            fields[other_key(name) if is_reserved(name) else name] = field
            handled |= {*both}
    rest = [key for key in unknown if key not in columns and (key in text or key not in handled)]
    ways = [f"columns={columns!r}"] if columns else []
    if fields:
        made = ", ".join(f"{key!r}: {field}" for key, field in fields.items())
        ways.append(f"fields={{{made}}}")
    if rest:
        ways.append(f"ignore={rest!r}")
    advice = in_words(ways, "and") + ("" if rest == unknown else f", or ignore={unknown!r}")
    keys, verb = ("key", "is") if len(unknown) == 1 else ("keys", "are")
    about = ""
    if text:
        kept = f"fields={{{text[0]!r}: fc.PerRow({text[0]!r})}}"
        about = f" (tokenize text in {shown(text)} first, or keep it by {kept})"
    for key in unknown:
        if same_word(str(key), _RESPONSE_LENGTHS) and "prompt_len" not in own:
            about += f" (for {key!r} pass 'prompt_len', the number of tokens before the response)"
        if same_word(str(key), _OF_PACKED):
            about += f" (for packed samples pass the lengths of their sequences as {SEQ_LENGTHS!r})"
    return f"samples have the {keys} {shown(unknown)}, which {verb} not known{about}; pass {advice}"


def _columns_for(
    unknown: list[str], names: Mapping[str, str], text: Collection[str]
) -> dict[str, str]:
    """Return the keys that other libraries, or a typing error, give to known ones."""
    taken = {*names.values()}
    columns: dict[str, str] = {}
    called = {
        key: same_word(str(key), (*KEYS, *ARGUMENTS))
        or _OF_PAIRS.get(str(key))
        or column_called(str(key))
        for key in unknown
    }
    if "prompt" in taken and any(called[key] == PAIR[1] and key not in text for key in unknown):
        columns["prompt"] = PAIR[0]
        taken = taken - {"prompt"} | {PAIR[0]}
    tokens = (*TURN, *PAIR, "input_ids")
    # Keys of tokens first: they decide which others fit.
    for key, name in sorted(called.items(), key=lambda item: _known(item[1]) not in tokens):
        known = _known(name)
        if known is None or known not in _fitting(taken) or known in taken:
            continue
        if key not in text or known in _OF_OBJECTS:
            columns[key] = known if name == key else str(name)
            taken.add(known)
    if "response" in taken and "prompt" not in taken and PAIR[0] in taken:
        columns[PAIR[0]] = "prompts"
    return columns


def _known(name: str | None) -> str | None:
    return None if name is None else ARGUMENTS.get(name, name)


def _fitting(taken: Collection[str]) -> Collection[str]:
    """Return the keys that samples with `taken` ones may have."""
    if PAIR[1] in taken:
        return (*PAIR, "uid")
    if "input_ids" in taken:
        return (*SEQUENCE, *COLUMNS)
    return (*TURN, *COLUMNS) if {*TURN} & {*taken} else KEYS


def _is_text(row: Any) -> bool:
    """Return True for a string, or messages."""
    if isinstance(row, (list, tuple)) and row:
        return isinstance(row[0], (str, Mapping))
    return isinstance(row, str)


def _of_both_rows(key: str, keys: Collection[str]) -> tuple[str, ...]:
    """Return a key, for pairs the chosen row's key and the rejected row's."""
    name = str(key)
    chosen, rejected = name.replace("rejected", "chosen"), name.replace("chosen", "rejected")
    is_of_pair = PAIR[1] in keys and chosen != rejected and {chosen, rejected} <= {*keys}
    return (chosen, rejected) if is_of_pair else (key,)


def _field_for(keys: tuple[str, ...], first: First) -> str | None:
    """Return a suggested field for a key, or two keys of pairs, judging by the first row."""
    if keys[0] in LABELS or same_word(str(keys[0]), _RESPONSE_LENGTHS):
        return None
    row, count, tokens = read(first, keys[0]), _length(first, keys[0]), _length(first, "input_ids")
    response = _length(first, "response")
    if len(keys) > 1:
        response = _length(first, PAIR[1])
        tokens = None if response is None else response + (_length(first, PAIR[0]) or 0)
    elif tokens is not None:
        prompt_len = read(first, "prompt_len")
        response = tokens - prompt_len if isinstance(prompt_len, int) else None
    elif response is not None:
        tokens = response + (_length(first, "prompt") or 0)
    source = repr(keys[0]) if len(keys) == 1 else repr(keys)
    for kind, names in _MADE_BY.items():
        if same_word(str(keys[0]), names):
            return f"fc.{kind}({source})"
    if isinstance(row, (int, float, np.number)):
        return f"fc.PerRow({source})"
    if count is not None and count == response:
        return f"fc.Field({source})"
    if count is not None and count == tokens:
        return f"fc.Field({source}, align='sequence')"
    return None


def read(first: First, key: str) -> Any:
    """Return the first row of a key as a Python object; None if there is none."""
    try:
        row = first(key)
    except (LookupError, TypeError):
        return None
    return row.as_py() if hasattr(row, "as_py") else row


def _length(first: First, key: str) -> int | None:
    """Return the number of items of the first row of a key; None if it has none to count."""
    row = read(first, key)
    is_row = hasattr(row, "__len__") and not isinstance(row, (str, bytes, Mapping))
    return len(row) if is_row and getattr(row, "ndim", 1) > 0 else None
