"""From one layout to another: a batch's own outputs are the columns of the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import Stretches
from fastcollate.arrays import flattened
from fastcollate.fields import RESERVED
from fastcollate.merging import Merging
from fastcollate.shards import name_rows, objects_of

if TYPE_CHECKING:
    from fastcollate._fastcollate import FieldSpec, LayoutSpec
    from fastcollate.batch import Batch
    from fastcollate.step_plan import Shard


def laid_out(batch: Batch, layout: LayoutSpec, shard: Shard | None = None) -> Batch:
    """Write a batch, or some of its rows, again (see :meth:`fastcollate.Batch.to_layout`)."""
    from fastcollate.collating import collate_fields, in_order

    plan, recipe = batch.plan, batch.recipe
    sequence_starts, response_starts = plan.row_starts()
    prompt_lens, response_lens = plan.prompt_lens, plan.response_lens
    lens = prompt_lens + response_lens
    leading = 1 if plan.layout == "jagged" else 2

    def column(spec: FieldSpec) -> Any:
        if spec.align == "row":
            return batch[spec.key]
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
        [(column(spec), spec.with_dtype(_dtype(batch[spec.key]))) for spec in recipe.fields],
        "numpy" if isinstance(ids, np.ndarray) else "torch",
        layout,
        recipe.outputs,
        merging=Merging(plan, batch.merge_plan),
        shard=shard,
    )
    name_rows(again, batch, shard)
    rows = None if shard is None else shard.rows.tolist()
    objects: dict[str, Any] = {}
    for key, values in objects_of(batch).items():
        objects |= values.outputs(key, rows)
    order = [key for key in batch if key not in RESERVED or key == "router_padding_mask"]
    again._data = in_order(again._data | objects, order)
    return again


def _dtype(values: Any) -> str:
    return str(values.dtype).removeprefix("torch.")


def _captured(mask: Any, starts: np.ndarray, lens: np.ndarray) -> np.ndarray:
    """Count the tokens of each row whose routes were captured: where the mask is not set."""
    before = np.concatenate([[0], np.cumsum(~np.asarray(mask))])
    captured: np.ndarray = before[starts + lens] - before[starts]
    return captured
