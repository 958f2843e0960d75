"""Planning of an optimizer step: mini-batches, padding rows and the shards of ranks."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from fastcollate import _fastcollate
from fastcollate._fastcollate import PAD_ROWS
from fastcollate.common.arguments import (
    check_bool,
    check_choice,
    check_count,
    suggests_names,
    tally,
)
from fastcollate.plan.costs import CostArgument, Costs
from fastcollate.plan.grouping import prompt_offsets
from fastcollate.plan.layouts import LayoutArgument, Tree, check_layout
from fastcollate.plan.step_packing import check_bins, check_tree, pack_slots, ranks_of
from fastcollate.plan.step_plan import StepPlan
from fastcollate.plan.step_rows import StepRows
from fastcollate.rows.lengths import Integers

PadRows: TypeAlias = Literal["synthetic", "copy_first", "copy_cycle", "error"]
ShardBy: TypeAlias = Literal["contiguous", "strided", "tokens", "flops"]
KeepTogether: TypeAlias = Literal["prompt", "trajectory"]

MAX_RANKS = 1 << 24
"""Maximum number of ranks times mini-batches."""


@suggests_names
def plan_step(
    rows: Any,
    *,
    uids: Any | None = None,
    prompts_per_mini_batch: int | None = None,
    rows_per_mini_batch: int | None = None,
    dp_size: int = 1,
    pad_rows: PadRows = "synthetic",
    shard_by: ShardBy | CostArgument | None = None,
    keep_together: KeepTogether | None = None,
    layout: LayoutArgument | None = None,
    allow_partial: bool = False,
    trajectory_ids: Any | None = None,
    is_last_step: Any | None = None,
) -> StepPlan:
    """Divide rows into mini-batches, and each mini-batch among data-parallel ranks.

    A prompt has any number of rows, a mini-batch a fixed number of prompts, and each rank of a
    mini-batch the same number of rows, padding included. The plan moves no tokens:
    ``build_batch(..., shard=plan.shard(...))`` and ``batch.select`` apply it.

    Parameters
    ----------
    rows
        The step's rows: a :class:`fastcollate.planning.MergePlan`, a :class:`Batch`, the token
        count of each row, or a pair of the token counts of prompts and responses. Counts are
        integers: arrays, tensors or sequences (rows,). With the layout :class:`Tree`, a
        :class:`fastcollate.planning.TreePlan`.
    uids
        The prompt id of each row, as in :func:`fastcollate.planning.prompt_boundaries`; for a merge
        plan, and a tree plan of merged turns, one per turn or one per row. By default from the
        batch. Without uids, each row is a prompt.
    prompts_per_mini_batch, rows_per_mini_batch
        Size of a mini-batch, in one of the two units. By default all rows are one mini-batch.
    dp_size
        Number of data-parallel ranks.
    pad_rows
        Padding rows that fill mini-batches up to a multiple of `dp_size`. ``"synthetic"``: rows of
        one prompt and one response token; ``"copy_first"``: copies of the mini-batch's first row;
        ``"copy_cycle"``: copies of its rows in order; ``"error"``: none. A copy has the tokens and
        per-row values of its row, but no values of response tokens. No padding row trains. Padding
        rows come last on each rank, and are distributed evenly: a rank has no real row only if
        there are fewer rows than ranks. With `keep_together` this holds for groups instead of rows.
    shard_by
        Assignment of rows to ranks. ``"contiguous"``: consecutive rows, about the same number on
        each rank; ``"strided"``: every `dp_size`-th row; ``"tokens"``: about the same number of
        tokens; ``"flops"``: about the same work, ``24576 * L + L * L`` for a row of L tokens; or
        about the same cost by :class:`fastcollate.planning.Costs` or a function that maps the
        tokens of rows, int64 (rows,), to costs, finite and not negative. Balancing assigns rows in
        descending order, each to the rank with the least so far. Rows of a rank keep their order.
        The default is ``"contiguous"``, or the layout's ``cost`` if packed.
    keep_together
        Keep the rows of each prompt or trajectory on one rank, and in one bin if packed. Ranks are
        then padded to the rank with the most rows, which can take more padding rows than
        divisibility does; only ``"contiguous"`` guarantees the minimum.
    layout
        The layout of the step's batches. Each shard carries it, and ``build_batch`` accepts no
        other for the shard. None leaves the choice to ``build_batch``.

        With :class:`Packed` and a capacity, the rows of each mini-batch are packed. Ranks then have
        the same number of bins, not of rows: the number that all rows fill, rounded up to a
        multiple of `dp_size` (and of ``bins_multiple_of``), or ``num_bins`` each.

        - To balance costs, rows go to ranks costliest first, each to the rank with the least so
          far; then the slowest and the fastest rank exchange rows while that helps. A rank's rows
          go to its bins in the same way, or as in ``pack`` if they do not fit.
        - If a rank would need more bins than others, all rows are packed, and bins go to ranks by
          cost: by largest differencing, or largest first with exchanges, whichever has the faster
          slowest rank; the second if equal.
        - With ``"contiguous"``, ``"strided"`` or ``grow_by="split"``, bins of all rows go to ranks.
        - A rank's bins come costliest first, equal ones in order.
        - The only rows added are synthetic, one for each bin that a mini-batch of few rows cannot
          fill, unless `pad_rows` is ``"error"``. Rows are neither split nor copied.
    allow_partial
        Allow a smaller last mini-batch, which may be the only one.
    trajectory_ids, is_last_step
        Each row's trajectory id, and a flag for its last row. Merge plans, tree plans of merged
        turns and batches have their own.

    Returns
    -------
    StepPlan
        Identical on every machine.

    Raises
    ------
    ValueError
        There are no rows; the number of uids, ids or flags differs from the rows; an id is None or
        NaN; uids or trajectories are not contiguous; a mini-batch size or `dp_size` is below 1; a
        mini-batch size exceeds or does not divide the batch, without `allow_partial`; rows cannot
        be divided among ranks, with ``pad_rows="error"``; a group to be kept together is split by
        mini-batches or, with ``pad_rows="error"``, by ranks; costs are negative or not finite; or
        rows cannot be packed.
    TypeError
        An argument has the wrong type.

    Notes
    -----
    The behaviour matches SkyRL's ``compute_prompt_mini_batch_boundaries`` and
    ``MeshDispatch.stage_chunks`` (mini-batches of prompts, copies of the first row, contiguous
    chunks) and verl's mini-batches of rows; the workload is verl's ``calculate_workload``.
    Unlike SkyRL, an uneven number of prompts can be allowed, and padding rows are not all on the
    last ranks.

    Examples
    --------
    >>> plan = fc.plan_step([5, 6, 7, 8, 9], uids=list("aabcc"), dp_size=2)
    >>> plan
    StepPlan: 5 rows of 3 prompts in 1 mini-batch for 2 ranks, and 1 padding row
    >>> plan.shard(0, 1).rows
    array([ 3,  4, -1])
    """
    _check_options(pad_rows, shard_by, keep_together)
    layout = None if layout is None else check_layout(layout)
    if isinstance(layout, Tree):
        check_tree(layout, rows, keep_together)
    binned = check_bins(layout)
    if binned is not None and pad_rows == "copy_cycle":
        raise ValueError(
            "pad_rows is 'copy_cycle', which copies single rows, but layout is packed and fills "
            "bins; leave pad_rows out"
        )
    if shard_by is None:
        shard_by = "contiguous" if binned is None else binned.cost
    check_bool("allow_partial", allow_partial)
    dp_size = check_count("dp_size", dp_size, "a number of ranks")
    unit, size = _check_unit(prompts_per_mini_batch, rows_per_mini_batch)
    step = StepRows.of(rows)
    if (num_rows := len(step.lengths)) == 0:
        raise ValueError("rows is empty; pass at least one row")
    uids = step.uids if uids is None else step.per_row("uids", uids)

    prompts = _prompts(uids, num_rows, unit, size, keep_together)
    trajectories = None
    if keep_together == "trajectory":
        trajectories = step.trajectories(trajectory_ids, is_last_step)
        if uids is not None:
            _check_nesting(trajectories, prompts, uids)
    mini_batches = _mini_batches(unit, size, prompts, num_rows, allow_partial)
    if dp_size * (len(mini_batches) - 1) > MAX_RANKS:
        raise ValueError(
            f"dp_size is {dp_size}, but dp_size times the number of mini-batches "
            f"({len(mini_batches) - 1}) is at most {MAX_RANKS:,}; pass a smaller dp_size"
        )
    groups = {"prompt": prompts, "trajectory": trajectories, None: None}[keep_together]
    names = _Names(str(keep_together), uids, prompts)
    if groups is not None:
        _check_not_split(groups, mini_batches, names)
    table: dict[str, Any] = {
        "dp_size": dp_size,
        "row_lengths": step.lengths,
        "prompt_offsets": prompts,
        "mini_batch_prompts": np.searchsorted(prompts, mini_batches).astype(np.int64),
        "has_only_totals": step.has_only_totals,
        "layout": layout,
    }
    if binned is not None:
        tree = rows._within(layout) if isinstance(layout, Tree) else None
        lengths = step.totals
        packed = pack_slots(
            tree, lengths, mini_batches, dp_size, binned, groups, pad_rows, shard_by
        )
        return StepPlan._from_own(**packed, **table)
    ranks = ranks_of(dp_size, shard_by, step.totals, pad_rows)
    slots, is_padding, offsets, failure = _fastcollate.split_step(
        mini_batches, groups, ranks, pad_rows
    )
    if failure is not None:
        has_costs = ranks[2] is not None
        found = " by this shard_by" if has_costs else ""
        raise _undivided(*failure, mini_batches, dp_size, groups, names, found)
    return StepPlan._from_own(
        rows=slots, is_padding=is_padding, mini_batch_offsets=offsets, bin_offsets=None, **table
    )


def _prompts(
    uids: Any | None, num_rows: int, unit: str | None, size: int, keep_together: str | None
) -> Integers:
    """Return prompt offsets in rows: by uids, else one for each row."""
    if uids is not None:
        return prompt_offsets(uids)
    if unit == "prompts":
        raise ValueError(
            f"prompts_per_mini_batch is {size}, but uids is None; pass one uid per row"
        )
    if keep_together == "prompt":
        raise ValueError("keep_together is 'prompt', but uids is None; pass one uid per row")
    return np.arange(num_rows + 1, dtype=np.int64)


class _Names(NamedTuple):
    """Names of groups of rows for error messages."""

    kind: str
    uids: Any | None
    prompts: Integers

    def name(self, groups: Integers, group: int) -> str:
        """Name a group by its rows and, if it has one, its uid."""
        start, end = groups[group : group + 2].tolist()
        rows = f"row {start}" if end == start + 1 else f"rows {start} to {end - 1}"
        if self.uids is None:
            return f"{self.kind} {group} ({rows})"
        return f"{self.kind} {group} ({rows}, uid {_item(self.uids, start)!r})"


def _item(uids: Any, row: int) -> Any:
    """Return a uid as a Python object."""
    uid = uids[row]
    for method in ("as_py", "item"):  # Arrow's and NumPy's
        if hasattr(uid, method):
            return getattr(uid, method)()
    return uid


def _check_options(pad_rows: Any, shard_by: Any, keep_together: Any) -> None:
    check_choice("pad_rows", pad_rows, PAD_ROWS)
    check_choice("keep_together", keep_together, (*get_args(KeepTogether), None))
    if shard_by is not None and not isinstance(shard_by, Costs) and not callable(shard_by):
        others = ", fc.planning.Costs(...) or a function of lengths"
        check_choice("shard_by", shard_by, get_args(ShardBy), others)


def _check_unit(prompts: Any, rows: Any) -> tuple[str | None, int]:
    """Return the unit of mini-batch sizes and the size."""
    if prompts is not None and rows is not None:
        raise ValueError(
            "prompts_per_mini_batch and rows_per_mini_batch are both given; pass one of them"
        )
    if prompts is not None:
        return "prompts", check_count("prompts_per_mini_batch", prompts, "a number of prompts")
    if rows is not None:
        return "rows", check_count("rows_per_mini_batch", rows, "a number of rows")
    return None, 0


def _check_nesting(trajectories: Integers, prompts: Integers, uids: Any) -> None:
    """Check that each trajectory belongs to one prompt."""
    starts = np.searchsorted(trajectories, prompts)
    split = np.flatnonzero(trajectories[starts] != prompts)
    if len(split) > 0:
        row = int(prompts[split[0]])
        name = _Names("trajectory", None, prompts).name(trajectories, int(starts[split[0]]) - 1)
        raise ValueError(
            f"{name} has rows of several prompts: uids[{row - 1}] is {_item(uids, row - 1)!r}, "
            f"but uids[{row}] is {_item(uids, row)!r}; pass one uid for all rows of a trajectory"
        )


def _mini_batches(
    unit: str | None, size: int, prompts: Integers, num_rows: int, allow_partial: bool
) -> Integers:
    """Return mini-batch offsets in rows, with the end of the last."""
    if unit is None:
        return np.array([0, num_rows], np.int64)
    units = prompts if unit == "prompts" else np.arange(num_rows + 1, dtype=np.int64)
    count = len(units) - 1
    argument = f"{unit}_per_mini_batch"
    if size > count and not allow_partial:
        raise ValueError(
            f"{argument} is {size}, but there are only {count} {unit}; "
            f"pass at most {count}, or allow_partial=True for one smaller mini-batch"
        )
    if count % size != 0 and not allow_partial:
        raise ValueError(
            f"{argument} is {size}, which does not divide {count} {unit}; "
            f"pass a divisor of {count}, or allow_partial=True for a smaller last mini-batch"
        )
    starts = units[:-1:size]
    return np.append(starts, num_rows)


def _undivided(
    mini_batch: int,
    group: int,
    mini_batches: Integers,
    dp_size: int,
    groups: Integers | None,
    names: _Names,
    found: str,
) -> ValueError:
    """Return the error for a mini-batch that cannot be divided among ranks.

    `group` is the group that is too large; -1 if there are no groups, -2 if ranks would need too
    many padding rows.
    """
    count = int(mini_batches[mini_batch + 1] - mini_batches[mini_batch])
    if group == -2:
        return ValueError(
            f"keep_together is {names.kind!r} and dp_size is {dp_size}, but mini-batch "
            f"{mini_batch} of {count} rows would need more padding rows than can be planned; "
            "leave keep_together out, or pass a smaller dp_size"
        )
    ranks = tally(dp_size, "rank")
    head = f"pad_rows is 'error', but the {count} rows of mini-batch {mini_batch} cannot be"
    if groups is None or group == -1:
        return ValueError(
            f"{head} split evenly over {ranks}; pass a number of rows that dp_size divides, or "
            "another pad_rows"
        )
    return ValueError(
        f"{head} split evenly{found} over {ranks} with all rows of {names.name(groups, group)} on "
        "one rank; leave keep_together out, or pass another pad_rows"
    )


def _check_not_split(groups: Integers, mini_batches: Integers, names: _Names) -> None:
    """Check that every mini-batch begins at the start of a group."""
    found = np.searchsorted(groups, mini_batches)
    split = np.flatnonzero(groups[found] != mini_batches)
    if len(split) > 0:
        mini_batch = int(split[0])
        name = names.name(groups, int(found[mini_batch]) - 1)
        raise ValueError(
            f"keep_together is {names.kind!r}, but {name} is in mini-batches {mini_batch - 1} and "
            f"{mini_batch}; pass mini-batches that end where a {names.kind} does, or leave "
            "keep_together out"
        )
