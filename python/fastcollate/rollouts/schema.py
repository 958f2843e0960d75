"""Schemas: the paths of columns in a source's JSON, objects or tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, final

from fastcollate._fastcollate import CallSchema
from fastcollate.common.names import same_word
from fastcollate.common.row_columns import COLUMNS
from fastcollate.common.text import show
from fastcollate.rollouts.calls import Calls

IDS = ("prompts", "responses", "sequences", "targets", "logprob_ids", "logprob_tokens")
"""Columns of token ids."""

RESPONSES = ("responses", "sequences", "logprob_ids", "logprob_tokens")
"""Those of which one gives the tokens of a response."""

LENGTHS = ("prompt_lens", "response_lens")
"""Columns of one length per call."""

NUMBERS = ("logprobs", "loss_mask", "attention_mask")
"""Columns of numbers per token."""

FLAGS = ("trains", "masked")
"""Flags of calls."""

OWN = (*IDS, *NUMBERS, *FLAGS, "rewards")
"""Columns of which :class:`Calls` has an attribute."""

Steps: TypeAlias = "tuple[str | int | None, ...]"
"""Keys, indices of items, and None for all items."""


class Path(NamedTuple):
    """A path, from an array of calls on."""

    base: str
    """The array of calls or of groups whose items have the value; empty for the body."""
    steps: Steps
    bits: int | None
    """The bits of flags that are a mask."""


@final
class Schema:
    """The path of each column of calls in a source.

    A path names keys from the beginning of a body: ``"step.response_ids"``, with ``[]`` for all
    items of an array and ``[0]`` for one: ``"choices[].logprobs.content[].logprob"``. A path that
    begins with a dot is that of each call. Several paths of a column are alternatives.

    Parameters
    ----------
    calls
        Path of the array of calls, if a body has one; for instance ``"choices[]"``, or
        ``"trajectories[].steps[]"``. Values outside it belong to all calls around them. With
        ``?`` at its end, items without a response are not calls. A tuple has alternatives, with
        ``""`` for the body itself; or, where each column is an array over calls, the paths of
        these arrays. None: a body is one call.
    nodes
        Path of an array of nodes, in place of `calls`. A node with a prompt is a call; without
        one it is a message, whose ``responses`` are what it adds to the tokens of its parent.
        The nodes of one array are a tree, and each leaf becomes a row. A node's parent is named by
        ``parents``, as ``node_ids`` name nodes, or by its position in the array; without one it is
        a root. In a schema without ``parents`` it is the node before.
    columns
        The path of each column, or a tuple of paths, of which the first that a call has is read.
        A column whose key no call has is left out; where others have it, or if it is null, a call
        has None.

        ``prompts`` and ``responses`` are token ids; or ``sequences`` hold both. These are split by
        ``prompt_lens`` or ``response_lens``, where a loss mask over them begins, or by a prompt or
        response beside them; all calls or none have one of these. With ``targets``, a sequence
        lacks its last token, and targets the first.

        ``logprobs`` and ``loss_mask`` have a value per token of the response or of the sequence,
        and log-probabilities also one per token at 1 of the mask. ``"flags&2"`` is a mask made of
        one bit of flags. ``attention_mask`` is 0 on padding, which is removed. Calls with
        a false value of ``trains``, or a true one of ``masked``, train nothing.

        ``logprob_ids``, or ``logprob_tokens`` with texts such as ``"token_id:17"``, are the tokens
        of log-probabilities, which are compared with the response, other texts and nulls aside. All
        other columns become Python objects, one per call.

    Raises
    ------
    TypeError
        If a path is not a string, or a column is misspelled, such as ``reward``.
    ValueError
        If a path is malformed, two columns have the same one, a length, flag or object has several
        values for a call, or a column has the name of another attribute of :class:`Calls`.

    Examples
    --------
    >>> trace = fc.rollouts.Schema(prompts="prompt_ids", responses="response_ids")
    >>> fc.rollouts.parse(b'{"prompt_ids": [5, 6], "response_ids": [7]}', trace)
    Calls of 1 call: 2 prompt tokens, 1 response token
    """

    __slots__ = ("_core", "_known", "are_nodes", "arrays", "calls", "columns", "optional")

    calls: tuple[str, ...]
    arrays: list[list[tuple[str, Steps]]]
    """The arrays of calls, each after those that it is in, and the steps from one to the next."""
    optional: set[str]
    """Those of which items without a response are not calls."""
    are_nodes: bool
    columns: dict[str, tuple[str, ...]]
    _core: CallSchema
    _known: dict[tuple[str, ...], list[Path]]

    def __init__(
        self,
        calls: str | tuple[str, ...] | None = None,
        *,
        nodes: str | tuple[str, ...] | None = None,
        **columns: str | tuple[str, ...],
    ) -> None:
        if calls is not None and nodes is not None:
            raise ValueError("calls and nodes are both given; pass the path of one array")
        for name in columns:
            _check_column(name)
        arrays = _paths("calls", (calls if nodes is None else nodes) or "")
        given = {name: _paths(name, paths) for name, paths in columns.items()}
        self.calls, self.are_nodes = arrays, nodes is not None
        known = [path.removesuffix("?") for path in arrays if path]
        self.optional = {path.removesuffix("?") for path in arrays if path.endswith("?")}
        self.arrays = [
            [
                (path[:end], steps_of(path[start : end - 2]))
                for start, end in pairwise([0, *(one.end() for one in re.finditer(r"\[\]", path))])
            ]
            for path in known
        ]
        self.columns = {
            name: tuple(path for one in paths for path in _absolute(one, arrays))
            for name, paths in given.items()
        }
        flat = [(name, path) for name, paths in self.columns.items() for path in paths]
        self._known = {}
        self._core = CallSchema([path for path in arrays if path], flat, self.are_nodes)

    def __repr__(self) -> str:
        """Show the call that makes the schema."""
        arrays = {"nodes" if self.are_nodes else "calls": self.calls} if any(self.calls) else {}
        given = {
            name: one if len(one) > 1 else one[0] for name, one in (arrays | self.columns).items()
        }
        return f"Schema({', '.join(f'{name}={path!r}' for name, path in given.items())})"

    def __eq__(self, other: object) -> bool:
        """Compare paths."""
        if not isinstance(other, Schema):
            return NotImplemented
        own = (self.calls, self.are_nodes, self.columns)
        return own == (other.calls, other.are_nodes, other.columns)

    def __hash__(self) -> int:
        """Return a hash of the paths."""
        return hash((self.calls, self.are_nodes, *self.columns.items()))

    def paths(self, paths: tuple[str, ...]) -> list[Path]:
        """Return paths from their arrays of calls on, the innermost arrays first."""
        if (found := self._known.get(paths)) is None:
            found = sorted(map(self._path, paths), key=lambda path: -len(path.base))
            self._known[paths] = found
        return found

    def _path(self, path: str) -> Path:
        """Return a path from its array of calls on."""
        bases = [base for bases in self.arrays for base, _ in bases]
        base = max((one for one in bases if _continues(path, one)), key=len, default="")
        rest, _, bits = path[len(base) :].partition("&")
        return Path(base, steps_of(rest), int(bits) if bits else None)

    def narrowed(self, fits: Callable[[str, str], bool | None]) -> Schema:
        """Return the schema with the paths of each column that calls like one of a source may have.

        `fits` returns None for a path that the call does not have, and False for values that are
        not those of a column. Of several that it has the first is read; of loss masks also others,
        for calls where it is null.
        """
        columns = {}
        for name, paths in self.columns.items():
            found = {path: fits(name, path) for path in paths}
            there = [path for path, fit in found.items() if fit]
            read = there if name == "loss_mask" else there[:1]
            if kept := tuple(path for path, fit in found.items() if fit is None or path in read):
                columns[name] = kept
        return self.with_columns(columns)

    def with_columns(self, columns: Mapping[str, Any]) -> Schema:
        """Return a schema of the same calls or nodes, with other columns."""
        arrays: dict[str, Any] = {"nodes" if self.are_nodes else "calls": self.calls}
        return Schema(**arrays, **columns)


@lru_cache(maxsize=1024)
def _check_column(name: str) -> None:
    """Check the name of a column."""
    if name not in OWN and hasattr(Calls, name):
        raise ValueError(f"Calls has a {name} of its own; pass another name for the column")
    if (meant := same_word(name, (*OWN, *LENGTHS, *COLUMNS)) or name) != name:
        raise TypeError(f"Schema has no column {name!r}; did you mean {meant!r}?")


def _paths(name: str, given: Any) -> tuple[str, ...]:
    """Return one path or several as a tuple."""
    paths = (given,) if isinstance(given, str) else given
    is_tuple = isinstance(paths, tuple) and len(paths) > 0
    if not is_tuple or not all(isinstance(path, str) for path in paths):
        raise TypeError(f"{name} is {show(given)}; pass a path, such as 'choices[].token_ids'")
    return paths


def _absolute(path: str, arrays: tuple[str, ...]) -> list[str]:
    """Return a path from the beginning of a body on, in each array of calls."""
    if not path.startswith("."):
        return [path]
    return [f"{one.removesuffix('?')}{path}" if one else path[1:] for one in arrays]


def _continues(path: str, base: str) -> bool:
    return path.startswith(base) and path[len(base) :][:1] in ("", ".", "[", "&")


@lru_cache(maxsize=1024)
def key_of(path: str) -> str:
    """Return the first key of a path."""
    return re.split(r"[.\[&]", path, maxsplit=1)[0]


def steps_of(path: str) -> Steps:
    """Return the steps of a path."""
    steps = re.findall(r"[^.\[\]]+|\[\d*\]", path)
    return tuple(
        step if step[0] != "[" else int(step[1:-1]) if step[1:-1] else None for step in steps
    )
