"""Calls of the columns that a reader found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import join_call_nodes
from fastcollate.common.arguments import check_choice, tally
from fastcollate.common.arrays import ranges_of
from fastcollate.common.text import show
from fastcollate.rollouts.calls import (
    BAD_LOGPROBS,
    UNFINISHED_CHOICES,
    BadLogprobs,
    Calls,
    LogprobsAre,
    Unfinished,
    finished,
    logprob_columns,
    taken,
)
from fastcollate.rollouts.schema import Schema
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged


class Place(NamedTuple):
    """The name of a body in errors, with ``{}`` for its number from `first` on."""

    text: str
    first: int = 0
    advice: str = "; pass prompts=, one row per body (vLLM returns them with return_token_ids)"

    def of(self, body: int) -> str:
        """Name a body."""
        return self.text.replace("{}", str(self.first + body))


class Options(NamedTuple):
    """How calls are read."""

    prompts: Any
    bad_logprobs: BadLogprobs
    unfinished: Unfinished
    logprobs_are: LogprobsAre | None = None

    @classmethod
    def check(cls, prompts: Any, bad_logprobs: Any, unfinished: Any, logprobs_are: Any) -> Options:
        """Check the arguments of readers."""
        check_choice("unfinished", unfinished, UNFINISHED_CHOICES)
        check_choice("bad_logprobs", bad_logprobs, BAD_LOGPROBS)
        return cls(prompts, bad_logprobs, unfinished, logprobs_are)


def calls_of(
    found: Mapping[str, Any],
    kept: Mapping[str, Sequence[Any]],
    schema: Schema,
    options: Options,
    place: Place,
) -> Calls:
    """Return the calls of columns that were found, or the rows of nodes.

    Raises
    ------
    ValueError
        Calls without a prompt, unfinished ones, and nodes that form no trees.
    """
    kept = {name: column for name, column in kept.items() if column is not None}
    if schema.are_nodes:
        found, kept = _rows_of_nodes(found, kept, schema, options, place)
    prompts, responses = _prompts(found, options.prompts, place), Ragged(*found["responses"])
    for name in ("uids", "trajectory_ids"):
        if isinstance(kept.get(name), list):
            kept[name] = list(map(_id, kept[name]))
    for name in ("rewards", "advantages"):
        if name in kept:
            kept[name] = _along(name, kept[name], prompts, responses)
    policy = options.bad_logprobs
    calls = Calls(
        prompts,
        responses,
        logprobs_are=options.logprobs_are,
        **logprob_columns(found["logprobs"], found["loss_mask"], responses.offsets, policy),
        **kept,
    )
    return finished(calls, options.unfinished)


def _id(value: Any) -> Any:
    """Return an id that can be compared: text for a dictionary or an object of parts."""
    parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
    return value if parts is None else "/".join(map(str, parts.values()))


def _prompts(found: Mapping[str, Any], given: Any, place: Place) -> Ragged:
    """Return the prompts of calls: the bodies' own, or given ones."""
    bodies, have = found["bodies"], found["have_prompts"]
    own = Ragged(*found["prompts"])
    if given is None:
        if not have.all():
            body = int(bodies[~have][0])
            raise ValueError(f"{place.of(body)} has no prompt ids{place.advice}")
        return own
    rows = ragged(given, "int32")
    if len(rows) != found["num_bodies"]:
        count = tally(found["num_bodies"], "body", "bodies")
        raise ValueError(f"prompts has {tally(len(rows), 'row')}, but there are {count}")
    rows = taken(rows, bodies)
    for call in np.flatnonzero(have):
        if not np.array_equal(rows[int(call)], own[int(call)]):
            raise ValueError(
                f"prompts[{bodies[call]}] differs from the prompt of its body; leave prompts out"
            )
    return rows


def _along(name: str, column: Sequence[Any], prompts: Ragged, responses: Ragged) -> Any:
    """Return one value per call, or per response token where a source has one per token."""
    if not any(isinstance(one, (list, tuple, np.ndarray)) for one in column):
        return column
    rows, lengths = ragged([[] if one is None else one for one in column]), responses.lengths
    whole = prompts.lengths + lengths
    # Values over a sequence that is shifted lack the first.
    fits = (rows.lengths == lengths) | (rows.lengths == whole) | (rows.lengths == whole - 1)
    if not fits.all():
        call = int(fits.argmin())
        raise ValueError(
            f"call {call} has {tally(int(rows.lengths[call]), name.removesuffix('s'))}, but its "
            f"response has {tally(int(lengths[call]), 'token')}"
        )
    values = rows.values[ranges_of(rows.offsets[1:] - lengths, lengths)]
    return Ragged(values, responses.offsets)


def _rows_of_nodes(
    found: Mapping[str, Any], kept: dict[str, Any], schema: Schema, options: Options, place: Place
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the rows of leaves in place of nodes."""
    bodies, indices = found["bodies"], found["indices"]
    trees = np.cumsum(indices == 0)
    names, ids, links = (kept.pop(name, None) for name in ("parents", "node_ids", "links"))
    if names is None and "parents" in schema.columns:
        names = [None] * len(bodies)  # all are roots
    parents = _parents(trees, bodies, indices, names, ids, place)
    dropped = np.zeros(len(bodies), bool)
    if links is not None:
        dropped = _dropped(trees, indices, links)
    rows = join_call_nodes(found, parents, dropped, options.bad_logprobs, place.text, place.first)
    leaves = rows["leaves"].tolist()
    kept = {name: [column[leaf] for leaf in leaves] for name, column in kept.items()}
    return rows, kept


def _parents(
    trees: NDArray[np.int64],
    bodies: NDArray[np.int64],
    indices: NDArray[np.int64],
    names: Sequence[Any] | None,
    ids: Sequence[Any] | None,
    place: Place,
) -> NDArray[np.int64]:
    """Return the number of each node's parent, or -1.

    Raises
    ------
    ValueError
        If a node names a parent that is not there, or two have the same id.
    """
    count = len(bodies)
    if names is None and ids is None:
        return np.where(indices == 0, -1, np.arange(count) - 1)
    known: dict[tuple[int, Any], int] = {}
    named = indices.tolist() if ids is None else ids
    for node, key in enumerate(zip(trees.tolist(), named, strict=True)):
        if known.setdefault(key, node) != node:
            both = f"{indices[known[key]]} and {indices[node]}"
            raise ValueError(
                f"{place.of(int(bodies[node]))}: nodes {both} have the id {show(key[1])}"
            )
    parents = np.full(count, -1, np.int64)
    for node, name in enumerate(names or ()):
        if name is None:
            continue
        parent = known.get((int(trees[node]), name))
        if parent is None:
            raise ValueError(
                f"{place.of(int(bodies[node]))}: node {indices[node]} has the parent {show(name)}, "
                "which is not there"
            )
        parents[node] = parent
    return parents


def _dropped(
    trees: NDArray[np.int64], indices: NDArray[np.int64], links: Sequence[Any]
) -> NDArray[np.bool_]:
    """Return True for attempts at a compaction that no node continues from (verifiers)."""
    of_type = [[(_get(link, "type"), _get(link, "node")) for link in one or ()] for one in links]
    accepted = {
        (tree, node)
        for tree, of_node in zip(trees.tolist(), of_type, strict=True)
        for kind, node in of_node
        if kind == "compaction"
    }
    attempts = [any(kind == "compaction_attempt" for kind, _ in one) for one in of_type]
    keys = zip(trees.tolist(), indices.tolist(), strict=True)
    return np.array(
        [attempt and key not in accepted for attempt, key in zip(attempts, keys, strict=True)], bool
    )


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
