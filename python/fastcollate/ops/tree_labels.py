"""Labels of trees whose positions predict one token each, made from targets and predictors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.arrays import convert, like_of, offsets_of, on_host, was_written, zeros
from fastcollate.ops.loss_positions import places_of
from fastcollate.rows.fields import LABELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastcollate.ops.batch_state import BatchState


def tree_label_keys(state: BatchState) -> tuple[str, ...]:
    """Return the keys of labels that can be made: of a tree, if it was built with labels."""
    options = state.options
    if options is None or not options.forks_early or options.outputs.labels is None:
        return ()
    is_shifted, _ = options.outputs.labels
    return LABELS[1:] if is_shifted else LABELS


def tree_labels(state: BatchState, key: str) -> Any:
    """Return the ids of trained tokens, and -100 elsewhere, in the shape of the ids.

    ``labels`` are at their own positions, ``shift_labels`` at those that predict them.
    """
    plan, data = state.plan, state.data
    ids, labels = data["input_ids"], state.spec.outputs.labels
    assert labels is not None
    if not labels[0] and was_written(data["loss_mask"]):
        check_trained_once(state)
    trained = _trained(state)
    if key == "shift_labels":
        at = on_host(data["predictors"])[trained]
    else:
        at = places_of(plan, next_token=False)[1][trained]
    found = zeros(tuple(ids.shape), ids, labels[1])
    found[...] = IGNORE_INDEX
    targets = data["targets"][like_of(trained, ids)]
    found.reshape(-1)[like_of(at, ids)] = convert(targets, found.dtype)
    return found


def check_trained_once(state: BatchState) -> None:
    """Check that no position trains two rows: a loss of positions would count them once.

    Raises
    ------
    ValueError
        A position does.
    """
    trained = _trained(state)
    predictors = on_host(state.data["predictors"])[trained]
    order = np.argsort(predictors, kind="stable")
    again = np.flatnonzero(np.diff(predictors[order]) == 0)
    if len(again) == 0:
        return
    values = trained[order[again[0] : again[0] + 2]]
    offsets = offsets_of(state.plan.response_lens)
    rows = np.searchsorted(offsets, values, "right") - 1
    (first, second), (row, other) = values - offsets[rows], rows
    bin_, position = divmod(int(predictors[order[again[0]]]), state.plan.width)
    raise ValueError(
        f"labels is 'aligned', but response token {first} of row {row} and response token "
        f"{second} of row {other} train position {position} of bin {bin_}, which a loss over "
        "positions counts once; pass labels='shifted', and take the loss of batch.targets"
    )


def _trained(state: BatchState) -> NDArray[np.int64]:
    """Return the response values whose tokens train."""
    return np.flatnonzero(on_host(state.data["loss_mask"] != 0))
