"""From one layout to another: a batch's own outputs are the columns of the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import Stretches
from fastcollate.arrays import dtype_name, flattened
from fastcollate.dtypes import needs_loss_mask
from fastcollate.ingest.fields import RESERVED
from fastcollate.plan.merging import Merging
from fastcollate.shards import name_rows, objects_of

if TYPE_CHECKING:
    from fastcollate._fastcollate import FieldSpec, LayoutSpec, OutputSpec, Plan
    from fastcollate.batch import Batch
    from fastcollate.plan.step_plan import Shard


def laid_out(batch: Batch, layout: LayoutSpec, shard: Shard | None = None) -> Batch:
    """Write a batch, or some of its rows, again (see :meth:`fastcollate.Batch.to_layout`)."""
    from fastcollate.collating import collate_fields, in_order

    plan, recipe = batch.plan, batch.recipe
    _check_whole(plan)
    rows: Any = slice(None)
    picks = None
    sequence_starts, response_starts = plan.row_starts()
    if shard is not None:
        rows, picks = shard.of_read_rows()
        plan = plan.of_rows(rows)
        sequence_starts, response_starts = sequence_starts[rows], response_starts[rows]
    prompt_lens, response_lens = plan.prompt_lens, plan.response_lens
    lens = prompt_lens + response_lens
    leading = 1 if batch.plan.layout == "jagged" else 2

    def column(spec: FieldSpec) -> Any:
        if spec.align == "row":
            return batch[spec.key][rows]
        values = flattened(batch[spec.key], leading)
        if spec.align == "response":
            return Stretches([(values, response_starts, response_lens)])
        if spec.align == "sequence":
            return Stretches([(values, sequence_starts, lens)])
        mask = flattened(batch["router_padding_mask"], leading)
        return Stretches([(values, sequence_starts, _captured(mask, sequence_starts, lens))])

    ids = flattened(batch["input_ids"], leading)
    again = collate_fields(
        Stretches([(ids, sequence_starts, prompt_lens)]),
        Stretches([(ids, sequence_starts + prompt_lens, response_lens)]),
        recipe.pad_token_id,
        [
            (column(spec), spec.with_dtype(dtype_name(batch[spec.key].dtype)))
            for spec in recipe.fields
        ],
        "numpy" if isinstance(ids, np.ndarray) else "torch",
        layout,
        _outputs(batch, layout, shard),
        merging=Merging(plan, batch.merge_plan, masked_rewards=batch._masked_rewards),
        shard=picks,
    )
    name_rows(again, batch, shard)
    objects = objects_of(batch, None if shard is None else shard.rows.tolist())
    order = [key for key in batch if key not in RESERVED or key == "router_padding_mask"]
    again._data = in_order(again._data | objects, order)
    return again


def _outputs(batch: Batch, layout: LayoutSpec, shard: Shard | None) -> OutputSpec:
    """Return the outputs that are no fields; whether a loss mask is one depends on the layout."""
    outputs = batch.recipe.outputs
    if any(spec.key == "loss_mask" for spec in batch.recipe.fields):
        return outputs
    is_made = (batch.merge_plan, batch.is_padding, shard) != (None, None, None)
    dtype = (outputs.loss_mask or "float32") if needs_loss_mask(layout.name, is_made) else None
    return outputs.with_loss_mask(dtype)


def _check_whole(plan: Plan) -> None:
    """Check that every value of a packed batch has a place, those of a row in one stretch."""
    if (bins := plan.bins()) is None:
        return
    if len(bins[1]) != plan.num_rows:
        message = "the batch has rows that were split when they were packed; build it anew instead"
        raise ValueError(message)
    headless = np.flatnonzero((plan.prompt_lens == 0) & (plan.response_lens > 0))
    if plan.is_shifted and len(headless) > 0:
        raise ValueError(
            f"row {headless[0]} has no prompt, so with shift='next_token' the batch holds nothing "
            "of its first response token; build it anew instead"
        )


def _captured(mask: Any, starts: np.ndarray, lens: np.ndarray) -> np.ndarray:
    """Count the tokens of each row whose routes were captured: where the mask is not set."""
    mask = np.asarray(mask)
    stretches = zip(starts.tolist(), lens.tolist(), strict=True)
    counts = [count - np.count_nonzero(mask[start : start + count]) for start, count in stretches]
    return np.array(counts, np.int64)
