"""Padding on the device: fewer bytes cross the bus than for a padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import OutputTable
from fastcollate.common.arrays import is_tensor, offsets_of
from fastcollate.device.to_device import check_tensors, has_bus
from fastcollate.memory.pinning import pinned
from fastcollate.memory.slabs import over
from fastcollate.plan.dtypes import Outputs, Preset
from fastcollate.plan.layouts import BY_NAME, LayoutArgument, check_layout
from fastcollate.plan.shard import Shard

if TYPE_CHECKING:
    from fastcollate._fastcollate import FieldSpec, Output, Plan
    from fastcollate.ops.batch_state import BatchSpec, BatchState


def pad_state(
    state: BatchState,
    layout: LayoutArgument | None = None,
    dtypes: Preset | Mapping[str, Any] = "default",
) -> BatchState:
    """See :meth:`fastcollate.Batch.pad_on_device`."""
    check_tensors(state)
    plan, spec = state.plan, state.spec
    target = BY_NAME.get(plan.layout) if layout is None else check_layout(layout)
    if plan.is_jagged:
        if target is None or not target.spec.is_padded:
            raise ValueError(
                f"layout is {layout!r}; pass 'left', 'right' or 'two_segment' or, with widths, "
                "fc.Left(...), fc.Right(...) or fc.TwoSegment(...)"
            )
    elif target != BY_NAME.get(plan.layout):
        raise ValueError(
            f"layout is {layout!r}, but the batch has layout={plan.layout!r} and only jagged "
            "batches are padded; call to_layout before the batch is moved to a device"
        )
    name = plan.layout if target is None else target.name
    before = spec.outputs
    wanted = Outputs.check(
        dtypes,
        _POSITIONS.get(before.position_ids[0], before.position_ids[0]),
        None if before.labels is None else ("shifted" if before.labels[0] else "aligned"),
    )
    outputs, fields = wanted.of_batch(name, [(None, spec) for spec in spec.fields], "torch")
    specs = [spec for _, spec in fields]
    rounds_up = plan.multiple_of > 1
    table = OutputTable.of_layout(name, rounds_up, spec.pad_token_id, specs, outputs)
    _check_weights(spec.fields, specs)
    spec = spec._replace(fields=specs, outputs=outputs, table=table)
    dtype_of = {output.key: output.dtype for output in table}
    data = {key: _as_dtype(value, dtype_of.get(key)) for key, value in state.data.items()}
    if target is not None and plan.is_jagged:
        rows = np.arange(plan.num_rows)
        everything = Shard(rows, np.zeros(len(rows), np.bool_), plan.num_rows)
        plan = plan.pick(everything.spec, target.spec)
        data = _Padding(data, plan, spec, state.is_padding).outputs()
    return state._replace(data=data, owner=None, made_by=plan, options=spec)


_POSITIONS = {"default": None, "omitted": False}
"""Positions of a spec as the argument that gave them, where it is no padding."""

_WHOLE = ("bool", "int32", "int64")
"""Integer dtypes; each holds the values of those before it."""


def _check_weights(before: Sequence[FieldSpec], after: Sequence[FieldSpec]) -> None:
    """Check that the dtype holds all weights by dtype alone: values would need a sync."""
    for was, now in zip(before, after, strict=True):
        found, asked = str(was.dtype), str(now.dtype)
        if was.weighs and asked in _WHOLE and found not in _WHOLE[: _WHOLE.index(asked) + 1]:
            raise ValueError(
                f"{was.key} is {found} in the batch, but {asked} in dtypes, which may not "
                f"hold its weights; pass dtypes={{{was.key!r}: {asked!r}}} to build_batch, which "
                "checks them"
            )


def _as_dtype(value: Any, name: str | None) -> Any:
    import torch

    if name is None or not is_tensor(value):
        return value
    return value.to(getattr(torch, name))


def _on_device(tables: Any, device: Any) -> Any:
    """Copy to a device without synchronizing with it."""
    slab = pinned(tables.nbytes) if has_bus(device) else None
    if slab is None:
        return tables.to(device)
    on_host = over(slab, 0, tables)
    on_host.copy_(tables)
    return on_host.to(device, non_blocking=True)


class _Padding:
    """Pads the outputs of one jagged batch."""

    def __init__(
        self, data: dict[str, Any], plan: Plan, spec: BatchSpec, is_padding: Sequence[bool] | None
    ) -> None:
        import torch

        self._torch = torch
        self._data, self._plan, self._spec = data, plan, spec
        self._is_padding = np.array(is_padding or [False] * plan.num_rows)
        self._device = data["input_ids"].device
        lens = plan.prompt_lens + plan.response_lens
        starts, response_starts = plan.row_starts()
        # One copy for all tables. The positions of values are computed on the device.
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
        """Return the flat position of each value: int64 (values,)."""
        torch = self._torch
        of_rows = torch.repeat_interleave(shifts, lens, output_size=count)
        return of_rows.add_(torch.arange(count, device=self._device))

    def outputs(self) -> dict[str, Any]:
        """Return all outputs, in the order of the padded layouts."""
        return {output.key: self._output(output) for output in self._spec.table}

    def _real_answers(self) -> Any:
        """Return the flat positions of the real rows' response tokens."""
        if not self._is_padding.any():
            return self._answers
        is_real = np.repeat(~self._is_padding, self._plan.response_lens)
        tokens = self._torch.from_numpy(np.flatnonzero(is_real))
        return self._answers.index_select(0, _on_device(tokens, self._device))

    def _output(self, output: Output) -> Any:
        values = self._data.get(output.key)
        if values is None and output.key == "position_ids":  # by default only with left padding
            values = self._positions().to(getattr(self._torch, str(output.dtype)))
        elif values is None:  # a mask that only padded layouts have
            mask = self._table(output, (), getattr(self._torch, str(output.dtype)), 0)
            places = self._real_answers() if output.align == "response" else self._tokens
            mask.flatten().index_fill_(0, places, 1)
            return mask
        if output.align in ("sequence_values", "response_values"):
            return self._offsets(output, values)
        if output.align not in ("sequence", "response"):
            return values
        if output.fill == "repeat_last":
            table = self._last_positions(values.dtype)
        else:
            table = self._table(output, values.shape[1:], values.dtype, output.fill)
        places = self._answers if output.align == "response" else self._tokens
        table.flatten(0, 1).index_copy_(0, places, values)
        return table

    def _offsets(self, output: Output, offsets: Any) -> Any:
        """Return the offsets of values, which stay as they are, at all positions."""
        is_of_responses = output.align == "response_values"
        width = self._plan.response_width if is_of_responses else self._plan.width
        ends = offsets.new_zeros(self._plan.num_rows * width + 1)
        places = self._answers if is_of_responses else self._tokens
        ends.index_copy_(0, places + 1, offsets.diff())
        return ends.cumsum_(0)

    def _positions(self) -> Any:
        """Return the position of each token in its row: int64 (tokens,)."""
        count = len(self._tokens)
        firsts = self._torch.repeat_interleave(self._starts, self._lens, output_size=count)
        return self._tokens - firsts

    def _table(self, output: Output, trailing: tuple[int, ...], dtype: Any, fill: Any) -> Any:
        """Return an output that is all padding."""
        width = self._plan.response_width if output.align == "response" else self._plan.width
        shape = (self._plan.num_rows, width, *trailing)
        table = self._torch.empty(shape, dtype=dtype, device=self._device)
        if fill == "indices":
            indices = self._torch.arange(trailing[-1], dtype=dtype, device=self._device)
            return table.copy_(indices.expand_as(table))
        return table.fill_(fill)

    def _last_positions(self, dtype: Any) -> Any:
        """Return position ids of padding: the last token's after a row, 0 before it."""
        torch, width = self._torch, self._plan.width
        columns = torch.arange(width, device=self._device)
        firsts = torch.arange(self._plan.num_rows, device=self._device) * width
        ends = self._starts - firsts + self._lens
        lasts = (self._lens - 1).clamp_(min=0).to(dtype)
        return torch.where(columns >= ends[:, None], lasts[:, None], 0).to(dtype)
