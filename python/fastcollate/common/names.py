"""Names of other libraries for our arguments, and misspelled names."""

from __future__ import annotations

import functools
import sys
from abc import ABCMeta
from collections.abc import Collection, Iterable
from inspect import ismethod
from opcode import opmap
from typing import TYPE_CHECKING, Any

from fastcollate.common.row_columns import IDS, OTHER_NAMES, TOKENS

_OF_ROWS = {**TOKENS, **IDS}

_FIELD = "pass fields={'<name>': fc.Field(...)}"
_CUT = "rows are never truncated: cut them first"
_LIMITS = (
    "max_length max_len max_seq_len max_seq_length max_sequence_length truncation truncate "
    "truncation_side"
)
_RESPONSE_LIMITS = "max_response_len max_response_length max_completion_length max_new_tokens"
_BUDGETS = (
    "max_tokens max_token_len max_tokens_per_gpu max_batch_tokens token_budget max_tokens_per_bin "
    "max_tokens_per_microbatch bin_capacity bin_size seq_len seq_length"
)
_PACKED = "pass layout=fc.Packed(capacity=...)"
_OF_PACKED = (
    *("shift", "algorithm", "oversize", "max_sequences", "min_bins", "bins_multiple_of"),
    *("max_cost", "grow_by", "allow_fewer_bins", "padding_as"),
)

ADVICE: tuple[tuple[str, str, str], ...] = (
    # Columns of rows.
    ("input_ids", "sequences", "pass sequences, with the lengths of their prompts as prompt_lens"),
    ("input_ids", "sequence", "pass sequence, with the length of its prompt as prompt_len"),
    (
        *("response_mask", "loss_mask"),
        "pass loss_mask: the batch's response_mask is made from the lengths",
    ),
    ("values returns ref_logprobs ref_logps reference_logprobs entropies", "fields", _FIELD),
    (
        "non_tensor_batch",
        "fields uids",
        "pass uids, and others as fields of fc.PerRow",
    ),
    (
        *("uids uid group_ids groups", "trajectory_ids policy"),
        "pass trajectory_ids, one per turn; uids are of build_batch and plan_step",
    ),
    ("versions weight_versions", "fields", "pass fields={'versions': fc.WeightVersions(...)}"),
    (
        *("old_logprobs old_logps old_per_token_logps policy_logprobs", "fields"),
        f"{_FIELD}, or logprobs if the sampler returned them",
    ),
    (
        *("attention_mask", "prompts"),
        "it is made from the lengths: pass rows without padding, such as "
        "fc.unpad(rows, mask=attention_mask)",
    ),
    ("attention_mask", "prompt", "it is made from the lengths: pass a row without padding"),
    ("attention_mask", "x mask", "pass mask"),
    ("rows", "prompts", "pass prompts and responses, or sequences with prompt_lens"),
    ("rows", "num_bins", "pass num_bins"),
    ("merge", "policy", "pass policy"),
    ("lengths", "x dtype", "pass x=fc.unpad(x, lengths=...)"),
    (
        *("chosen chosen_ids rejected rejected_ids", "pad_token_id"),
        "pass pairs as samples to fc.Collator: dicts of prompt_ids, chosen_ids and rejected_ids",
    ),
    ("tokenizer", "pad_token_id", "tokenize rows first; pass pad_token_id=tokenizer.pad_token_id"),
    # Widths and capacities.
    ("truncation_side truncation_mode", "keep", "pass keep='start' or 'end', with max_length"),
    (_LIMITS, "max_length", "pass max_length"),
    (_LIMITS, "seq_length", "pass seq_length"),
    (_LIMITS, "layout", f"{_CUT}; layout=fc.Left(pad_to=...) fixes the width"),
    (_LIMITS, "capacity", "pass capacity, the tokens of a bin; rows are never truncated"),
    (_LIMITS, "pad_to", f"{_CUT}; pad_to fixes the width"),
    (_LIMITS, "pad_response_to", f"{_CUT}; pad_prompt_to and pad_response_to fix the widths"),
    (
        *("max_prompt_len max_prompt_length", "layout"),
        f"{_CUT}; layout=fc.TwoSegment(pad_prompt_to=...) fixes the width",
    ),
    ("max_prompt_len max_prompt_length", "pad_prompt_to", f"{_CUT}; pad_prompt_to fixes the width"),
    (_RESPONSE_LIMITS, "layout", f"{_CUT}; layout=fc.Left(pad_response_to=...) fixes the width"),
    (_RESPONSE_LIMITS, "pad_response_to", f"{_CUT}; pad_response_to fixes the width"),
    (_BUDGETS, "capacity", "pass capacity"),
    (f"{_BUDGETS} capacity packing pack", "layout", _PACKED),
    ("bins", "num_bins plan", "pass num_bins for their number, or the bins themselves as plan"),
    ("bins", "num_bins", "pass num_bins for their number"),
    ("bins", "plan", "pass plan"),
    ("bins", "layout", "pass layout=fc.Packed(plan=bins)"),
    *((name, "layout", f"pass layout=fc.Packed(capacity=..., {name}=...)") for name in _OF_PACKED),
    ("padding_free", "layout", "pass layout=fc.Packed.single_row()"),
    ("padding", "layout", "rows are as wide as the longest; pass layout=fc.Left(pad_to=...)"),
    ("padding", "pad_to", "pass pad_to for a fixed width"),
    ("pad_to", "layout", "pass layout=fc.Left(pad_to=...)"),
    ("pad_to_multiple_of", "multiple_of", "pass multiple_of"),
    ("pad_to_multiple_of multiple_of", "lengths layout", "pass layout=fc.Packed(multiple_of=...)"),
    (
        *("pad_to_multiple_of multiple_of", "layout"),
        "pass layout=fc.Right(multiple_of=...), or fc.Left",
    ),
    ("padding_side", "side", "pass side"),
    ("padding_side", "x dtype", "pass x=fc.unpad(x, lengths=..., side=...)"),
    ("padding_side", "layout", "pass layout='left' or 'right'"),
    ("padding_value pad_value fill_value value pad_token_id pad_id", "fill", "pass fill"),
    ("batch_first", "fill", "leave it out: rows are first in any case"),
    ("num_workers", "depth", "depth is the number of batches ahead; workers are the DataLoader's"),
    ("padding_value pad_id", "pad_token_id", "pass pad_token_id"),
    ("pad_token", "pad_token_id", "pass the token's id as pad_token_id"),
    # Steps and ranks.
    (
        *("micro_batch_size num_micro_batches", "rows_per_mini_batch"),
        "shard.micro_batches(n) splits a shard, and fc.planning.micro_batches makes a plan",
    ),
    ("balance cost costs", "shard_by", "pass shard_by, such as shard_by='tokens'"),
    ("balance", "algorithm", "pass algorithm"),
    (
        *("balance", "shard"),
        "plan balanced ranks by fc.plan_step(..., shard_by='tokens'), and pass a shard",
    ),
    ("world_size dp_world_size num_ranks num_shards num_gpus n_gpus dp", "dp_size", "pass dp_size"),
    (
        "batch_size batch_rows mini_batch_size train_batch_size num_mini_batches num_minibatches",
        "rows_per_mini_batch",
        "pass rows_per_mini_batch, or prompts_per_mini_batch if it counts prompts",
    ),
    # Memory and devices.
    ("pin_memory", "pool", 'pass pool="pinned"'),
    (
        *("out", "pool"),
        "outputs are written to memory of a pool: pass pool=fc.memory.BufferPool(...)",
    ),
    ("return_tensors", "array_type", "pass array_type='torch' or 'numpy'"),
    ("device", "pad_token_id", "batches are built in host memory: call batch.to(device)"),
    ("device", "array_type", "the result is in host memory: call .to(device)"),
    (
        *("dtype torch_dtype", "non_blocking"),
        "pass dtypes= to build_batch, or cast an output, as batch.rewards.to(dtype)",
    ),
    ("vocab", "vocab_size", "pass vocab_size"),
    (
        *("tokenizer", "vocab_size"),
        "pass vocab_size=len(tokenizer), and eos_token_id=tokenizer.eos_token_id",
    ),
    ("mlm mlm_probability", "labels", "leave it out: labels are those of causal models"),
)
"""Advice for names of other libraries: the names, the arguments that the callee needs for it, and
the text, in which ``<name>`` is the unknown argument. The first that fits is used."""


INSTEAD = {
    "Batch": "fc.build_batch makes one of all rows",
    "Calls.concat": "pass a list of calls",
    "Collator()": "make one first, fc.Collator(pad_token_id=tokenizer.pad_token_id), then call it "
    "with samples of token ids",
    "Ragged": "fc.ragged makes one of rows",
    "TreePlan": "fc.planning.prefix_tree makes one",
    "plan_step()": "pass a batch, or the number of tokens of each row, such as [len(prompt) + "
    "len(response) for prompt, response in zip(prompts, responses)]",
    "Patcher.patch": "functions that it replaces keep their own options; fc.build_batch and "
    "fc.Collator have layouts, and fastcollate.compat.trl.patch takes one",
}
"""What to call where arguments or attributes of a class, or arguments of a method, are wrong; with
``()``, where arguments lack names."""

VALUES = {
    "costs": "fastcollate.planning.Costs(...)",
    "pad_token_id": "tokenizer.pad_token_id",
    "plan": "fastcollate.plan_step(...)",
}
"""Where the values of arguments come from."""

ITEMS = {
    "StepPlan": "call plan.shard(mini_batch, rank)",
    "MicroBatches": "call plan.shard(micro_batch, rank)",
    "BinPlan": "plan.bins lists the rows of each bin",
    "TreeBins": "plan.bins lists the rows of each bin",
    "TreePlan": "plan.select(rows) is the plan of some rows",
    "Calls": "call calls.select([0]) for some calls, read a column, as calls.prompts[0], or pass "
    "**calls.batch to build_batch and **calls.turns to merge_turns",
    "MergePlan": "plan.report has its breaks, and plan.sources the turn of each row",
    "Shard": "shard.rows are its rows, and shard.micro_batches() its parts",
}
"""What to call for the items of a plan."""


OF_INSTANCES = {
    "BatchBuilder": "add(...) and extend(calls) add rows, finish() returns the batch of all rows, "
    "and clear() drops them",
    "Ragged": "it has values (the numbers of all rows in one array), offsets and lengths, and rows "
    "by index; to_list(), to_torch_nested() and fastcollate.pad(rows) convert it",
    "Plan": "it has the positions of a batch's rows: see prompt_lens and metrics of the batch, or "
    "fc.plan_step for a plan of mini-batches and shards",
}
"""What to use for attributes of an object that has many of its own."""


class NamesAttributes(type):
    """The type of classes whose error for an unknown attribute names what to use."""

    if not TYPE_CHECKING:  # type checkers would take any name for an attribute

        def __getattr__(cls, name):
            methods = [one for one in public_names(cls) if ismethod(getattr(cls, one))]
            advice = f"it has {', '.join(methods or public_names(cls))}"
            advice = INSTEAD.get(cls.__name__, advice)
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}; {advice}")


class NamesAttributesOfMapping(NamesAttributes, ABCMeta):
    """The same for classes of mappings."""


class ListsNames(metaclass=NamesAttributes):
    """The error for an unknown attribute lists the public ones."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("_"):  # a protocol that Python or a library tries
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            raise AttributeError(unknown_attribute(type(self), name))

        def __add__(self, other):
            name = type(self).__name__
            if not hasattr(type(self), "concat"):
                return NotImplemented
            raise TypeError(f"{name} cannot be added; call {name}.concat([...])")

        def __getitem__(self, index):
            name = type(self).__name__
            advice = ITEMS.get(name, f"it has {', '.join(public_names(type(self)))}")
            raise TypeError(f"a {name} has no items; {advice}")

        def __len__(self):
            name, names = type(self).__name__, public_names(type(self))
            counts = [one for one in names if one.startswith(("num_", "per_rank"))] or names
            raise TypeError(f"a {name} has no length; it has {', '.join(counts)}")

        def __bool__(self):
            return type(self).__len__ is ListsNames.__len__ or len(self) > 0


def no_such_name(message: str) -> Exception:
    """Return the error for a name that a module lacks, to raise in its ``__getattr__``.

    In place of an AttributeError, ``from module import name`` would raise an error of its own.
    """
    frame = sys._getframe(1).f_back  # None if it is called from C
    if frame is not None and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
        return ImportError(message)
    return AttributeError(message)


def list_names_of(module: str, advice: str = "") -> None:
    """Let a module's error for an unknown attribute list its public names."""
    own = sys.modules[module]

    def find(name: str) -> Any:
        found = advice or f"it has {', '.join(own.__all__)}"
        raise no_such_name(f"module {module!r} has no attribute {name!r}; {found}")

    own.__getattr__ = find  # type: ignore[method-assign]
    if hasattr(own, "__all__"):
        own.__dir__ = lambda: own.__all__  # type: ignore[method-assign]


def unknown_attribute(owner: type, name: str) -> str:
    """Return the error message for an attribute that an instance of a class lacks."""
    advice = OF_INSTANCES.get(owner.__name__) or f"it has {', '.join(public_names(owner))}"
    return f"{owner.__name__} has no attribute {name!r}; {advice}"


@functools.cache
def public_names(owner: type) -> tuple[str, ...]:
    """Return the public attributes of a class."""
    return tuple(one for one in dir(owner) if one[0].islower())


def advice_for(name: str, known: Collection[str]) -> str | None:
    """Return what to pass in place of an unknown argument, or None."""
    if (same := same_word(name, known)) is not None:
        if _OF_ROWS.get(name) == same:
            return f"pass {same}: each call takes one row"
        return f"did you mean {same!r}?"
    for others, needs, text in ADVICE:
        if same_word(name, others.split()) is not None and {*needs.split()} <= {*known}:
            return text.replace("<name>", name)
    column = column_called(name)
    if column is not None:
        ours = (one for one in (column, _OF_ROWS.get(column)) if one in known)
        if (argument := next(ours, None)) is not None:
            return f"pass {argument}"
    return None


@functools.lru_cache(maxsize=256)  # for `hasattr`, and `get` of a mapping
def column_called(name: str) -> str | None:
    """Return the column of rollouts that other libraries call so, or None."""
    for column, others in OTHER_NAMES.items():
        if same_word(name, (column, *others)) is not None:
            return column
    return None


def same_word(name: str, known: Iterable[str]) -> str | None:
    """Return the name that is the same word: in another case or number, or with a letter wrong.

    Similar names are other things: ``ref_logprobs`` is not another spelling of ``logprobs``.
    """
    known = list(known)
    if name in known:
        return name
    folded = fold(name)
    of_word = (one for one in known if fold(one) == folded)
    return next(of_word, None) or next((one for one in known if _is_slip(name, one)), None)


@functools.lru_cache(maxsize=256)
def fold(name: str) -> str:
    """Return a name in lower case, in the singular and without underscores."""
    letters = name.lower().replace("_", "").replace("-", "")
    if letters.endswith("ches"):
        return letters[:-2]
    return letters if letters.endswith("ss") else letters.removesuffix("s")


_LEAST_LETTERS = 6
"""Letters of a name in which one may be wrong: shorter names like that are other words."""

_LEAST_EXTENDED = 3
"""The same for an extra letter."""


def _is_slip(name: str, known: str) -> bool:
    """Return True if a letter is missing, extra, wrong or in the place of its neighbour."""
    start = 0
    while start < min(len(name), len(known)) and name[start] == known[start]:
        start += 1
    rest, other = name[start:], known[start:]
    if len(name) > len(known):
        return rest[1:] == other and len(known) >= _LEAST_EXTENDED
    if max(len(name), len(known)) < _LEAST_LETTERS:
        return False
    if len(name) < len(known):
        return rest == other[1:]
    return rest[1:] == other[1:] or (rest[1::-1] + rest[2:]) == other
