"""Calls of the columns that a reader found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.arguments import check_choice, tally
from fastcollate.common.arrays import offsets_of, ranges_of, row_and_token
from fastcollate.common.text import show
from fastcollate.rollouts.calls import (
    BAD_LOGPROBS,
    UNFINISHED_CHOICES,
    BadLogprobs,
    Calls,
    LogprobsAre,
    Unfinished,
    finished,
    ids_of,
)
from fastcollate.rollouts.schema import Schema
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged, pick

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    layers: int | None = None
    topk: int | None = None

    def check(self) -> Options:
        """Check the arguments of readers, and return them."""
        check_choice("unfinished", self.unfinished, UNFINISHED_CHOICES)
        check_choice("bad_logprobs", self.bad_logprobs, BAD_LOGPROBS)
        return self


def calls_of(
    found: Mapping[str, Any],
    kept: Mapping[str, Any],
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
    kept = dict(kept)
    if schema.are_nodes:
        found, kept = _rows_of_nodes(found, kept, schema, options, place)
    prompts, responses = _prompts(found, options.prompts, place), Ragged(*found["responses"])
    attention = None if found["attention"] is None else Ragged(*found["attention"])
    for name in ("uids", "trajectory_ids"):
        if isinstance(kept.get(name), list):
            kept[name] = list(map(_id, kept[name]))
    numbers, mask = found["logprobs"], found["loss_mask"]
    labels = kept.pop("labels", ())
    label_rows = None
    if any(one is not None for one in labels):
        label_rows = _rows_of("labels", labels, attention)
    if label_rows is not None and found.get("are_whole"):
        rows = _of_responses("labels", label_rows, prompts, responses)
        prompts, responses, is_kept = _split_by_labels(rows, responses)
        numbers, mask = (one if one is None else one[is_kept] for one in (numbers, mask))
    for name in ("rewards", "advantages"):
        if any(isinstance(one, (list, tuple, np.ndarray)) for one in kept.get(name, ())):
            rows = _rows_of(name, kept[name], attention)
            kept[name] = _of_responses(name, rows, prompts, responses)
    if label_rows is not None:
        mask = _mask_of_labels(label_rows, mask, prompts, responses)
    if mask is not None and ((mask == 0) | (mask == 1)).all():
        mask = mask.astype(np.int32)
    calls = Calls(
        prompts,
        responses,
        logprobs=None if numbers is None else Ragged(numbers, responses.offsets),
        loss_mask=None if mask is None else Ragged(mask, responses.offsets),
        bad_logprobs=found["bad_logprobs"],
        logprobs_are=options.logprobs_are,
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
    rows = ids_of("prompts", given)
    if len(rows) != found["num_bodies"]:
        count = tally(found["num_bodies"], "body", "bodies")
        raise ValueError(
            f"prompts has {tally(len(rows), 'row')}, but there are {count}; pass one row for each"
        )
    rows = pick(rows, bodies)
    for call in np.flatnonzero(have):
        if not np.array_equal(rows[int(call)], own[int(call)]):
            raise ValueError(
                f"prompts[{bodies[call]}] differs from the prompt of its body; leave prompts out"
            )
    return rows


def _rows_of(name: str, column: Sequence[Any], attention: Ragged | None) -> Ragged:
    """Return the values of each call, none for None, and without those on a response's padding."""
    try:
        rows = ragged([[] if one is None else one for one in column])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}{str(error).removeprefix('x')}") from None
    if attention is None:
        return rows
    is_padded = rows.lengths == attention.lengths
    is_kept = np.ones(len(rows.values), bool)
    is_kept[np.repeat(is_padded, rows.lengths)] = (
        attention.values[np.repeat(is_padded, attention.lengths)] != 0
    )
    ends = offsets_of(is_kept)[rows.offsets]
    return Ragged(rows.values[is_kept], ends)


def _of_responses(name: str, rows: Ragged, prompts: Ragged, responses: Ragged) -> Ragged:
    """Return the values of response tokens, of rows with one per token of these or of sequences."""
    lengths = responses.lengths
    whole = prompts.lengths + lengths
    # Values over a sequence that is shifted lack the first, which is the prompt's.
    shifted = np.maximum(whole - 1, lengths)
    fits = (rows.lengths == lengths) | (rows.lengths == whole) | (rows.lengths == shifted)
    if not fits.all():
        call = int(fits.argmin())
        raise ValueError(
            f"call {call} has {tally(int(rows.lengths[call]), name.removesuffix('s'))}, but its "
            f"response has {tally(int(lengths[call]), 'token')}; pass one per token, and none for "
            "padding"
        )
    values = rows.values[ranges_of(rows.offsets[1:] - lengths, lengths)]
    return Ragged(values, responses.offsets)


def _split_by_labels(labels: Ragged, sequences: Ragged) -> tuple[Ragged, Ragged, NDArray[np.bool_]]:
    """Split sequences at their first label: prompts, responses, and which tokens are theirs."""
    starts, ends = sequences.offsets[:-1], sequences.offsets[1:]
    labeled = np.append(np.flatnonzero(labels.values != IGNORE_INDEX), ends[-1:])
    splits = np.minimum(labeled[np.searchsorted(labeled, starts)], ends)
    is_kept = np.arange(len(sequences.values)) >= np.repeat(splits, sequences.lengths)
    tokens = sequences.values
    prompts = Ragged(tokens[~is_kept], offsets_of(splits - starts))
    return prompts, Ragged(tokens[is_kept], offsets_of(ends - splits)), is_kept


def _mask_of_labels(
    rows: Ragged, mask: Any, prompts: Ragged, responses: Ragged
) -> NDArray[np.float32]:
    """Return the loss mask that labels stand for, which is 0 where they are -100.

    Raises
    ------
    ValueError
        If labels are shifted, train tokens of a prompt, or train others than a mask.
    """
    found = _of_responses("labels", rows, prompts, responses)
    trains = found.values != IGNORE_INDEX
    wrong = trains & (found.values != responses.values)
    if mask is not None:
        wrong |= trains != (mask != 0)
    if wrong.any():
        call, token = row_and_token(responses.offsets, int(wrong.argmax()))
        raise ValueError(
            f"call {call} has the label {found[call][token]} for response token {token}, which is "
            f"{responses[call][token]}"
            + ("" if mask is None else f", with a loss mask of {mask[wrong.argmax()]:g}")
            + "; labels are the token itself if it trains, else -100 (rename those of another kind)"
        )
    if np.count_nonzero(rows.values != IGNORE_INDEX) > np.count_nonzero(trains):
        raise ValueError(
            "labels train tokens of prompts, or before the first that the loss mask trains; leave "
            "out prompts, or the mask"
        )
    made: NDArray[np.float32] = trains.astype(np.float32) if mask is None else mask
    return made


def _rows_of_nodes(
    found: Mapping[str, Any], kept: dict[str, Any], schema: Schema, options: Options, place: Place
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the rows of leaves in place of nodes."""
    trees, indices = found["trees"].tolist(), found["indices"].tolist()
    ids, names, links = (kept.pop(name, None) for name in ("node_ids", "parents", "links"))

    def wrong(node: int, reason: str) -> ValueError:
        return ValueError(f"{place.of(int(found['bodies'][node]))}: {reason}")

    if "parents" in schema.columns:
        names = names or [None] * len(trees)
        parents = _parents(trees, indices, ids or indices, names, wrong)
    else:  # the nodes before, in the same array
        pairs = zip([None, *trees], trees, strict=False)
        parents = [node - 1 if before == own else -1 for node, (before, own) in enumerate(pairs)]
    dropped = _dropped(trees, indices, links) if links else [False] * len(trees)
    arrays = np.array(parents, np.int64), np.array(dropped, bool)
    rows = found["nodes"].join(*arrays, options.bad_logprobs, place)
    leaves = rows["leaves"].tolist()
    return rows, {name: [column[leaf] for leaf in leaves] for name, column in kept.items()}


def _parents(
    trees: list[int],
    indices: list[int],
    ids: Sequence[Any],
    names: Sequence[Any],
    wrong: Callable[[int, str], ValueError],
) -> list[int]:
    """Return the number of each node's parent, or -1; `wrong` makes the error of a node.

    Raises
    ------
    ValueError
        If a node names a parent that is not there, or two have the same id.
    """
    known: dict[tuple[int, Any], int] = {}
    for node, key in enumerate(map(_key, trees, ids)):
        if (other := known.setdefault(key, node)) != node:
            both = f"{indices[other]} and {indices[node]}"
            raise wrong(node, f"nodes {both} have the id {show(ids[node])}")
    parents = []
    for node, name in enumerate(names):
        parent = -1 if name is None else known.get(_key(trees[node], name))
        if parent is None:
            its = f"node {indices[node]} has the parent {show(name)}"
            raise wrong(node, f"{its}, which is not there")
        parents.append(parent)
    return parents


def _key(tree: int, name: Any) -> tuple[int, Any]:
    """Return the key of a node: its tree and its id, which is text or a whole number."""
    is_id = isinstance(name, (str, int, np.integer)) and not isinstance(name, bool)
    return tree, name if is_id else repr(name)


def _dropped(trees: list[int], indices: list[int], links: Sequence[Any]) -> list[bool]:
    """Return True for attempts at a compaction that no node continues from (verifiers)."""
    lists = [one if isinstance(one, (list, tuple)) else () for one in links]
    of_type = [[(_get(link, "type"), _get(link, "node")) for link in one] for one in lists]
    accepted = {
        (tree, node)
        for tree, of_node in zip(trees, of_type, strict=True)
        for kind, node in of_node
        if kind == "compaction"
    }
    return [
        any(kind == "compaction_attempt" for kind, _ in one) and key not in accepted
        for one, key in zip(of_type, zip(trees, indices, strict=True), strict=True)
    ]


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
