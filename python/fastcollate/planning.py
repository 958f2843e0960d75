"""Plans that assign rows to bins, ranks and optimizer steps, from lengths and ids alone.

Three functions group sequences; they differ in their inputs:

- :func:`pack`: a packed layout with its capacity, for few bins; with ``algorithm="balanced"``, each
  sequence goes to the emptiest bin.
- :func:`partition`: a number of parts of about the same weight, without a capacity.
- :func:`micro_batches`: a capacity and a number of ranks; every rank gets the same number of
  micro-batches, all of about the same cost.

:func:`grow` adds bins to existing ones.

Seven plans hold the results. They contain no tokens, except the few around breaks in
:class:`MergePlan`:

- :class:`Plan`: the sources and positions of a batch's rows; ``batch.plan``.
- :class:`MergePlan`: turns to rows; made by :func:`fastcollate.merge_turns`.
- :class:`BinPlan`: sequences to bins; made by :func:`pack`.
- What :func:`micro_batches` returns: sequences to micro-batches and ranks.
- :class:`TreePlan`: the shared prefixes of rows; made by :func:`prefix_tree`.
- What :meth:`TreePlan.pack` returns: rows to bins that hold shared tokens once.
- :class:`StepPlan`: rows to mini-batches and ranks; made by :func:`fastcollate.plan_step`.

Related names:

- :class:`Merge`: the rule by which turns are merged, with its options.
- :class:`Shard`: one rank's rows of a mini-batch or micro-batch.
- :func:`prompt_boundaries`: the first row of each prompt, and one past its last.
- :class:`Costs`: costs of tokens, attention pairs, sequences and bins, for every argument that
  takes costs.
- :class:`StepTimer`: the timer for measurements, to which :meth:`Costs.fit` fits costs.
- :func:`compare_plans`: the forecasts of several plans (:meth:`StepPlan.forecast`), as a table.
- :func:`drop_padding`: results of all shards in the order of the step's rows, without padding rows.
- :class:`MissingPlanError`: raised for batches made from a mapping, which have no plan.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastcollate._fastcollate import Plan
from fastcollate.common.names import no_such_name
from fastcollate.ops.batch_state import MissingPlanError
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.costs import Costs
from fastcollate.plan.merge import Merge
from fastcollate.plan.merging import MergePlan
from fastcollate.plan.packing import grow, pack
from fastcollate.plan.shard import Shard
from fastcollate.plan.tree_plan import TreePlan

if TYPE_CHECKING:
    from fastcollate.inspect.forecasting import compare_plans
    from fastcollate.ops.drop_padding import drop_padding
    from fastcollate.plan.fitting import StepTimer
    from fastcollate.plan.grouping import prompt_boundaries
    from fastcollate.plan.partitioning import micro_batches, partition
    from fastcollate.plan.sharing import prefix_tree
    from fastcollate.plan.step_plan import StepPlan

__all__ = [
    "BinPlan",
    "Costs",
    "Merge",
    "MergePlan",
    "MissingPlanError",
    "Plan",
    "Shard",
    "StepPlan",
    "StepTimer",
    "TreePlan",
    "compare_plans",
    "drop_padding",
    "grow",
    "micro_batches",
    "pack",
    "partition",
    "prefix_tree",
    "prompt_boundaries",
]

_ON_USE = {
    "StepPlan": "plan.step_plan",
    "StepTimer": "plan.fitting",
    "compare_plans": "inspect.forecasting",
    "drop_padding": "ops.drop_padding",
    "micro_batches": "plan.partitioning",
    "partition": "plan.partitioning",
    "prefix_tree": "plan.sharing",
    "prompt_boundaries": "plan.grouping",
}
"""Modules of names that are imported on use."""

if not TYPE_CHECKING:  # type checkers would take any name for one of the module

    def __getattr__(name: str) -> Any:
        """Import a name on first use."""
        if name not in _ON_USE:
            advice = f"it has {', '.join(__all__)}"
            if name in import_module("fastcollate").__all__:
                advice = f"it is fastcollate.{name}"
            raise no_such_name(f"module {__name__!r} has no attribute {name!r}; {advice}")
        value = getattr(import_module(f"fastcollate.{_ON_USE[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the public names."""
        return [*__all__, *(name for name in globals() if name.startswith("__"))]
