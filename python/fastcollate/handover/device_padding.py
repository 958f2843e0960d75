"""Padding where the batch trains: fewer bytes go there than a padded batch has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fastcollate.arrays import is_tensor, offsets_of
from fastcollate.dtypes import checked_outputs
from fastcollate.handover.device import checked_tensors, has_bus
from fastcollate.handover.pinning import pinned
from fastcollate.handover.slabs import over
from fastcollate.layouts import checked_layout
from fastcollate.plan.step_plan import Shard

if TYPE_CHECKING:
    from fastcollate._fastcollate import FieldSpec, OutputSpec, Plan
    from fastcollate.batch import Batch, Recipe

IGNORED = -100
"""The label that losses leave out."""

_OF_JAGGED = frozenset({"cu_seqlens", "offsets", "max_seqlen", "response_offsets"})
"""Outputs that padded layouts have not."""


def pad_on_device(
    batch: Batch,
    layout: Literal["left", "two_segment", "right"] | None = None,
    *,
    pad_to: int | None = None,
    pad_to_multiple_of: int = 1,
    max_prompt_len: int | None = None,
    max_response_len: int | None = None,
    dtypes: Literal["reference", "compact"] | Mapping[str, Any] = "reference",
) -> Batch:
    """Pad a jagged batch on the device where it is, or widen the dtypes of a compact one.

    Of a jagged batch with ``dtypes="compact"``, padding and masks do not cross the bus.

    Parameters
    ----------
    batch
        A batch in the jagged layout, or one that has `layout` already; of tensors on any device.
    layout
        The layout to bring it into; that of the batch if None.
    pad_to, pad_to_multiple_of, max_prompt_len, max_response_len
        As :func:`build_batch`. By default, the widths come from these rows: of a shard that was
        built jagged, pass those of its step.
    dtypes
        As :func:`build_batch`, of the outputs that are no fields, or by key of any.

    Returns
    -------
    Batch
        The same values, dtypes and shapes as :func:`build_batch` would have written with these
        options, on the device of `batch`. Fields keep their dtypes, unless `dtypes` names them.

    Raises
    ------
    ValueError
        The batch is neither jagged nor of that layout, a row is wider than fixed widths, or a dtype
        cannot be.
    TypeError
        `batch` is no batch of tensors.
    MissingPlanError
        It was made from a mapping.

    Notes
    -----
    A few operations of torch per output, and one small copy of where rows begin: nothing waits for
    the device.
    """
    from fastcollate.batch import Batch

    if not isinstance(batch, Batch):
        raise TypeError(f"batch is of type {type(batch).__name__}; pass a Batch")
    checked_tensors(batch)
    plan, recipe = batch.plan, batch.recipe
    name = plan.layout if layout is None else layout
    widths = (pad_to, max_prompt_len, max_response_len, pad_to_multiple_of)
    if name == "jagged" or (name == "packed" and plan.layout != "packed"):
        raise ValueError(
            f"layout is {name!r}; pass 'left', 'two_segment' or 'right' to pad on the device"
        )
    if plan.layout != "jagged" and (name != plan.layout or widths != (None, None, None, 1)):
        raise ValueError(
            f"the batch has layout={plan.layout!r}: pad_on_device pads jagged ones; "
            "call to_layout before it is on a device"
        )
    before = recipe.outputs
    outputs, fields = checked_outputs(
        dtypes,
        name,
        before.position_ids[0],
        None if before.labels is None else ("shifted" if before.labels[0] else "aligned"),
        [(None, spec) for spec in recipe.fields],
        "torch",
        before.loss_mask is not None,
    )
    recipe = recipe._replace(fields=[spec for _, spec in fields], outputs=outputs)
    wanted = _dtypes_of(outputs, recipe.fields)
    data = {key: _as_dtype(value, wanted.get(key)) for key, value in batch.items()}
    if plan.layout == "jagged":
        layout_spec = checked_layout(name, *widths)
        rows = np.arange(plan.num_rows)
        everything = Shard(rows, np.zeros(len(rows), np.bool_), plan.num_rows)
        plan = plan.pick(everything, layout_spec)
        data = _Padding(data, plan, recipe, batch.is_padding).outputs()
    again = batch._like(data)
    again._plan_or_call = plan
    again._recipe = recipe
    return again


def _dtypes_of(outputs: OutputSpec, fields: list[FieldSpec]) -> dict[str, str]:
    names = {
        "input_ids": outputs.input_ids,
        "attention_mask": outputs.attention_mask,
        "response_mask": outputs.response_mask,
        "sequence_ids": outputs.sequence_ids,
        "position_ids": outputs.position_ids[1],
    }
    if outputs.labels is not None:
        names["labels"] = outputs.labels[1]
    if outputs.loss_mask is not None:
        names["loss_mask"] = outputs.loss_mask
    return names | {spec.key: spec.dtype for spec in fields if spec.dtype is not None}


def _as_dtype(value: Any, name: str | None) -> Any:
    import torch

    if name is None or not is_tensor(value):
        return value
    return value.to(getattr(torch, name))


def _on_device(tables: Any, device: Any) -> Any:
    """Copy to a device, without waiting for what it is doing."""
    slab = pinned(tables.nbytes) if has_bus(device) else None
    if slab is None:
        return tables.to(device)
    on_host = over(slab, 0, tables)
    on_host.copy_(tables)
    return on_host.to(device, non_blocking=True)


class _Padding:
    """Pads the outputs of one jagged batch."""

    def __init__(
        self,
        data: dict[str, Any],
        plan: Plan,
        recipe: Recipe,
        is_padding: Sequence[bool] | None,
    ) -> None:
        import torch

        self._torch = torch
        self._data, self._plan, self._recipe = data, plan, recipe
        self._is_padding = np.array(is_padding or [False] * plan.num_rows)
        self._fields = {spec.key: spec for spec in recipe.fields}
        self._device = data["input_ids"].device
        lens = plan.prompt_lens + plan.response_lens
        starts, response_starts = plan.row_starts()
        # One copy for all tables. Where values stand is worked out on the device.
        tables = torch.from_numpy(
            np.stack(
                [
                    lens,
                    starts,
                    starts - offsets_of(lens)[:-1],
                    plan.response_lens,
                    response_starts - offsets_of(plan.response_lens)[:-1],
                ]
            )
        )
        tables = _on_device(tables, self._device)
        self._lens, self._starts = tables[0], tables[1]
        self._tokens = self._places(tables[2], tables[0], int(lens.sum()))
        self._answers = self._places(tables[4], tables[3], int(plan.response_lens.sum()))

    def _places(self, shifts: Any, lens: Any, count: int) -> Any:
        """Return where each value stands among all positions: int64 (values,)."""
        torch = self._torch
        of_rows = torch.repeat_interleave(shifts, lens, output_size=count)
        return of_rows.add_(torch.arange(count, device=self._device))

    def outputs(self) -> dict[str, Any]:
        """Return all outputs, in the order of the padded layouts."""
        plan, recipe = self._plan, self._recipe
        masks = recipe.outputs.attention_mask, recipe.outputs.response_mask
        data: dict[str, Any] = {
            "input_ids": self._padded(self._data["input_ids"], self._tokens, recipe.pad_token_id),
            "attention_mask": self._mask(self._tokens, plan.width, masks[0]),
            "response_mask": self._mask(self._real_answers(), plan.response_width, masks[1]),
        }
        for key, value in self._data.items():
            if key not in data and key not in _OF_JAGGED:
                data[key] = self._output(key, value)
        return data

    def _real_answers(self) -> Any:
        """Return where response tokens of real rows stand."""
        if not self._is_padding.any():
            return self._answers
        is_real = np.repeat(~self._is_padding, self._plan.response_lens)
        tokens = self._torch.from_numpy(np.flatnonzero(is_real))
        return self._answers.index_select(0, _on_device(tokens, self._device))

    def _output(self, key: str, value: Any) -> Any:
        if key == "position_ids":
            return self._position_ids(value)
        if key == "labels":
            return self._padded(value, self._tokens, IGNORED)
        if key == "router_padding_mask":
            return self._padded(value, self._tokens, True)
        if key == "loss_mask":
            return self._padded(value, self._answers, 0)
        spec = self._fields.get(key)
        if spec is None or spec.align == "row":
            return value
        if spec.align == "response":
            return self._padded(value, self._answers, spec.fill)
        fill: Any = spec.fill
        if spec.align == "experts":
            fill = self._torch.arange(value.shape[-1], dtype=value.dtype, device=self._device)
        return self._padded(value, self._tokens, fill)

    def _padded(self, values: Any, places: Any, fill: Any) -> Any:
        """Put values to their places in a table of another value."""
        width = self._plan.width if places is self._tokens else self._plan.response_width
        rows = self._plan.num_rows
        table = values.new_empty((rows * width, *values.shape[1:]))
        if is_tensor(fill):
            table.copy_(fill.expand_as(table))
        else:
            table.fill_(fill)
        table.index_copy_(0, places, values)
        return table.view(rows, width, *values.shape[1:])

    def _mask(self, places: Any, width: int, dtype: str) -> Any:
        torch, rows = self._torch, self._plan.num_rows
        mask = torch.zeros(rows * width, dtype=getattr(torch, dtype), device=self._device)
        return mask.index_fill_(0, places, 1).view(rows, width)

    def _position_ids(self, values: Any) -> Any:
        padding, _ = self._recipe.outputs.position_ids
        if padding != "repeat_last":
            return self._padded(values, self._tokens, 1 if padding == "one" else 0)
        torch, width = self._torch, self._plan.width
        columns = torch.arange(width, device=self._device)
        firsts = torch.arange(self._plan.num_rows, device=self._device) * width
        ends = self._starts - firsts + self._lens
        lasts = (self._lens - 1).clamp_(min=0).to(values.dtype)
        behind = torch.where(columns >= ends[:, None], lasts[:, None], 0).to(values.dtype)
        behind.view(-1).index_copy_(0, self._tokens, values)
        return behind
