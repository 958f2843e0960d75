"""The computation of forecasts, from the cost of bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from fastcollate.common.arguments import (
    check_bool,
    check_choice,
    check_count,
    suggests_names,
    tally,
)
from fastcollate.common.arrays import describe, even_sizes, offsets_of
from fastcollate.common.text import table_of
from fastcollate.plan.costs import Costs
from fastcollate.plan.forecast import Floats, Forecast, Sync
from fastcollate.plan.tree_plan import TreePlan

if TYPE_CHECKING:
    from fastcollate.plan.step_plan import StepPlan
    from fastcollate.plan.tree_bins import TreeBins


def forecast_step(
    plan: StepPlan,
    costs: Any,
    sync: Any,
    micro_batches: Any,
    computes_padding: Any,
    tree: TreePlan | None,
) -> Forecast:
    """Forecast a step; :meth:`StepPlan.forecast` has the arguments."""
    _check(costs, sync, tree)
    check_bool("computes_padding", computes_padding)
    lengths = plan.added_tokens
    bins = plan.bin_offsets
    times, tokens, padding, bounds, duplicates = [], [], [], [], []
    row_lengths = plan.row_totals[plan.rows]
    alone = costs.of(row_lengths)
    row_costs = alone if plan.shared is None else costs.of_added(row_lengths, plan.shared)
    width = plan.written_width
    if bins is None:
        if computes_padding and width is not None:
            written = np.full(len(lengths), width)
            computed = np.full(len(lengths), costs.of([width])[0])
        else:
            written, computed = lengths, row_costs
    else:
        if micro_batches is not None:
            raise ValueError(
                f"micro_batches is {micro_batches!r}, but rows are packed and each bin is a "
                "micro-batch; leave micro_batches out"
            )
        sizes = np.diff(offsets_of(lengths)[bins])
        assert width is not None
        written = np.full(len(sizes), width) if computes_padding else sizes
        computed = np.add.reduceat(row_costs, bins[:-1])
        computed = computed + costs.per_token * (written - sizes) + costs.per_bin
    count = 1 if micro_batches is None else check_count("micro_batches", micro_batches, "a number")
    units = (
        plan.mini_batch_offsets if bins is None else np.searchsorted(bins, plan.mini_batch_offsets)
    )
    for index, (start, end) in enumerate(pairwise(units)):
        of_ranks = computed[start:end].reshape(plan.dp_size, -1)
        if bins is None:
            of_ranks = _per_micro_batch(of_ranks, count) + costs.per_bin
        times.append(of_ranks)
        slots = slice(*plan.mini_batch_offsets[index : index + 2])
        real = ~plan.is_padding[slots]
        tokens.append(lengths[slots][real].sum())
        padding.append(written[start:end].sum() - tokens[-1])
        bounds.append(_bound(row_costs[slots][real], alone[slots][real], costs, plan.dp_size))
        of_tree = None if tree is None else tree.select(plan.rows[slots][real])
        duplicates.append(0 if of_tree is None else tokens[-1] - of_tree.tokens_after)
    return Forecast(
        tuple(times),
        sync,
        np.array(bounds),
        np.array(tokens, np.int64),
        np.array(padding, np.int64),
        np.array(duplicates, np.int64),
    )


def forecast_tree(
    bins: TreeBins, costs: Any, dp_size: Any, sync: Any, tree: TreePlan | None
) -> Forecast:
    """Forecast a mini-batch of trees; :meth:`TreeBins.forecast` has the arguments."""
    _check(costs, sync, tree)
    of_bins = bins.costs(costs) + costs.per_bin
    ranks = bins.of_ranks(dp_size, shard_by=costs)
    alone = costs.of(bins.sequence_lengths)
    tokens = int(bins.tokens.sum())
    least, duplicates = of_bins, 0
    if tree is not None:
        of_rows = costs.of_added(tree.lengths[tree.order], tree.shared)
        least = np.array([of_rows.sum() + costs.per_bin])
        duplicates = tokens - tree.tokens_after
    bound = max(least.sum() / len(ranks), float(alone.max(initial=0.0)) + costs.per_bin)
    return Forecast(
        (of_bins[np.array(ranks)],),
        sync,
        np.array([bound]),
        np.array([tokens], np.int64),
        np.array([int(bins.loads.sum()) - tokens], np.int64),
        np.array([duplicates], np.int64),
    )


@suggests_names
def compare_plans(
    plans: Mapping[str, Any] | Sequence[Any],
    costs: Costs,
    *,
    sync: Sync = "step",
    dp_size: int | None = None,
) -> str:
    """Return a table of the time and idle share of several plans of one step.

    Parameters
    ----------
    plans
        Step plans, bins of trees or forecasts, by name, or in a list.
    costs
        The cost of bins.
    sync
        Synchronization of ranks, as in :meth:`StepPlan.forecast`.
    dp_size
        Number of ranks, required for bins of trees.

    Returns
    -------
    str
        A row for each plan: the time of all mini-batches, its ratio to the fastest plan's, the idle
        share, padding and duplicated tokens.

    Raises
    ------
    ValueError
        There are no plans, or bins of trees without `dp_size`.
    TypeError
        An item is not a plan.

    Examples
    --------
    >>> costs = fc.planning.Costs(per_token=1.0)
    >>> lengths = [8, 2, 2, 4]
    >>> padded = fc.plan_step(lengths, dp_size=2, layout=fc.Right())
    >>> packed = fc.plan_step(lengths, dp_size=2, layout=fc.Packed(8))
    >>> print(fc.planning.compare_plans({"padded": padded, "packed": packed}, costs))
      plan  time  slower  waiting  padding  duplicates
    padded    16   2.00x     0.0%       16           0
    packed     8   1.00x     0.0%        0           0
    """
    if not isinstance(plans, Mapping):
        if not isinstance(plans, (list, tuple)):
            raise TypeError(f"plans is {describe(plans)}; pass a list of plans, or a dict by name")
        plans = {f"plan {index}": plan for index, plan in enumerate(plans)}
    if not plans:
        raise ValueError("plans is empty; pass at least one plan")
    forecasts: dict[str, Forecast] = {}
    for name, plan in plans.items():
        if isinstance(plan, Forecast):
            forecasts[name] = plan
        elif not hasattr(plan, "forecast"):
            raise TypeError(
                f"plans[{name!r}] is {describe(plan)}; pass what fastcollate.plan_step or "
                "TreePlan.pack returned, or a forecast"
            )
        elif hasattr(plan, "mini_batch_offsets"):
            forecasts[name] = plan.forecast(costs, sync=sync)
        elif dp_size is None:
            raise ValueError(
                f"plans[{name!r}] has bins of trees, but dp_size is None; pass dp_size"
            )
        else:
            forecasts[name] = plan.forecast(costs, dp_size, sync=sync)
    fastest = min(forecast.time for forecast in forecasts.values())
    cells = [["plan", "time", "slower", "waiting", "padding", "duplicates"]]
    cells += [
        [
            str(name),
            f"{found.time:.4g}",
            f"{found.time / fastest:.2f}x" if fastest > 0 else "1.00x",
            f"{found.idle:.1%}",
            f"{found.padding.sum():,}",
            f"{found.duplicates.sum():,}",
        ]
        for name, found in forecasts.items()
    ]
    return table_of(cells)


def _check(costs: Any, sync: Any, tree: Any) -> None:
    if not isinstance(costs, Costs):
        raise TypeError(f"costs is {describe(costs)}; pass fastcollate.planning.Costs(...)")
    check_choice("sync", sync, get_args(Sync))
    if tree is not None and not isinstance(tree, TreePlan):
        raise TypeError(f"tree is {describe(tree)}; pass what prefix_tree returned, or None")


def _bound(row_costs: Floats, alone: Floats, costs: Costs, ranks: int) -> float:
    """Return a lower bound of a mini-batch: each rank computes a bin, and one a whole row."""
    largest = float(alone.max(initial=0.0))
    return max(float(row_costs.sum()) / ranks, largest) + costs.per_bin


def _per_micro_batch(of_ranks: Floats, count: int) -> Floats:
    """Sum costs of rows over micro-batches, divided as in `Shard.micro_batches`."""
    rows = of_ranks.shape[1]
    if count > rows:
        raise ValueError(
            f"micro_batches is {count}, but a rank has {tally(rows, 'row')} of a mini-batch; "
            f"pass a number from 1 to {rows}"
        )
    sums: Floats = np.add.reduceat(of_ranks, offsets_of(even_sizes(rows, count))[:-1], axis=1)
    return sums
