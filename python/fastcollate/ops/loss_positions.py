"""The positions whose outputs a loss reads, so that the LM head runs on these only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.arrays import is_tensor, like_of, on_host, take, zeros
from fastcollate.rows.fields import LABELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastcollate._fastcollate import Plan
    from fastcollate.ops.batch_state import BatchState


class LossPositions(NamedTuple):
    """The positions that predict trained tokens, and the index of each token's predictor.

    Attributes
    ----------
    pos : int64 (positions,)
        Flat indices into the positions of ``input_ids``: unique and ascending.
    inv : int64
        In the shape of the batch's response-aligned fields: the index into `pos` of the predictor
        of each value's token. 0 where no token trains.
    """

    pos: Any
    inv: Any


def loss_positions(state: BatchState) -> LossPositions:
    """See :meth:`fastcollate.Batch.loss_positions`."""
    plan, like, is_trained = state.plan, state.data["input_ids"], trained(state)
    values, predictors = places_of(plan, next_token=True)
    shape = plan.leading_shape(of_sequence=False)
    is_trained = is_trained[values]
    values, predictors = values[is_trained], predictors[is_trained]
    is_read = np.zeros(plan.num_positions, np.bool_)
    is_read[predictors] = True
    if len(predictors) == 0:
        is_read[:1] = True  # index 0 has to be valid, even if no token trains
    inv = np.zeros(shape, np.int64)
    inv.reshape(-1)[values] = (np.cumsum(is_read, dtype=np.int64) - 1)[predictors]
    return LossPositions(like_of(np.flatnonzero(is_read), like), like_of(inv, like))


def trained(state: BatchState) -> NDArray[np.bool_]:
    """Return True where the loss mask is not 0, flat; its caller may have changed it in place.

    Raises
    ------
    ValueError
        If padding would train, or a token that no token predicts.
    """
    plan = state.plan
    is_trained: NDArray[np.bool_] = on_host(state.data["loss_mask"] != 0).reshape(-1)
    counts = plan.count_in_responses(is_trained)
    if counts[state.is_real].sum() < np.count_nonzero(is_trained):
        raise ValueError(
            "loss_mask is not 0 on padding, which would train; keep it 0 there, for instance by "
            "batch.loss_mask[row] *= 0.5"
        )
    if plan.num_unpredicted > 0:
        values, predictors = places_of(plan, next_token=True)
        if is_trained[values[predictors < 0]].any():
            raise ValueError(
                "loss_mask is not 0 on the first token of a sequence, which no token predicts; "
                "pass loss_mask to build_batch, which masks such tokens"
            )
    return is_trained


def label_key(state: BatchState) -> str | None:
    """Return the key of labels that follow changes of the loss mask, which torch counts, if any."""
    options, mask = state.options, cast("Any", state.data.get("loss_mask"))
    if options is None or options.outputs.labels is None or not is_tensor(mask):
        return None
    key = next((key for key in LABELS if key in state.data), None)
    return key if key and not (mask.is_inference() or state.data[key].is_inference()) else None


def with_masked_labels(state: BatchState, key: str, first: Any, own: list[Any]) -> BatchState:
    """Return the state with labels of what its loss mask trains now; padding rows keep theirs.

    They are the `first` ones, whatever the ids are now, and those of the ids where these are none.
    They lose tokens that `own` labels lack, which the caller changed in place.

    Raises
    ------
    ValueError
        If the batch holds chunks, which lack the predictors of their first tokens.
    """
    if state.options is not None and state.options.cp is not None:
        raise ValueError(
            "loss_mask was changed in the chunks of a context-parallel rank, whose labels do not "
            "follow it; change it in the whole batch, before cp_split"
        )
    data, mask = state.data, state.data["loss_mask"]
    values, predictors = places_of(state.plan, True, state.is_real)
    _, tokens = places_of(state.plan, False, state.is_real)
    labels, is_predicted = data[key].clone(), predictors >= 0
    values, tokens = (like_of(x[is_predicted], labels) for x in (values, tokens))
    places = tokens if key == "labels" else like_of(predictors[is_predicted], labels)
    found = data["input_ids"].reshape(-1)[tokens].to(labels.dtype)
    first = first.reshape(-1)[places]
    found = first.where(first != IGNORE_INDEX, found)
    for given in own:
        found = given.reshape(-1)[places].where(found != IGNORE_INDEX, found)
    found = found.masked_fill(mask.reshape(-1)[values] == 0, IGNORE_INDEX)
    labels.view(-1)[places] = found
    return state._replace(data={**data, key: labels})


def targets(plan: Plan, ids: Any) -> Any:
    """See :attr:`fastcollate.Batch.targets`."""
    values, tokens = places_of(plan, next_token=False)
    found = zeros(plan.leading_shape(of_sequence=False), ids)
    found.reshape(-1)[like_of(values, ids)] = take(ids.reshape(-1), tokens)
    return found


def places_of(
    plan: Plan, next_token: bool, is_given: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of response values, and those of their tokens or predictors.

    Both are flat indices, of the given rows; -1 for a missing predictor.
    """
    values, lens = plan.gather_positions(of_sequence=False)
    tokens, _ = plan.gather_positions(of_sequence=True, next_token=next_token)
    has_value = values >= 0
    if is_given is not None:
        has_value &= np.repeat(is_given, lens)
    return values[has_value], tokens[has_value]
