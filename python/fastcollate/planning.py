"""Plans that assign rows to bins, ranks and optimizer steps, from lengths and ids alone.

Three functions group sequences; they differ in their inputs:

- :func:`pack`: a packed layout with its capacity, for few bins; with ``algorithm="balanced"``, each
  sequence goes to the emptiest bin.
- :func:`partition`: a number of parts of about the same weight, without a capacity.
- :func:`micro_batches`: a capacity and a number of ranks; every rank gets the same number of
  micro-batches, all of about the same cost.

Seven plans hold the results. They contain no tokens, except the few around breaks in
:class:`MergePlan`:

- :class:`Plan`: the sources and positions of a batch's rows; ``batch.plan``.
- :class:`MergePlan`: turns to rows; made by :func:`fastcollate.merge_turns`.
- :class:`BinPlan`: sequences to bins; made by :func:`pack`.
- :class:`MicroBatches`: sequences to micro-batches and ranks; made by :func:`micro_batches`.
- :class:`TreePlan`: the shared prefixes of rows; made by :func:`prefix_tree`.
- :class:`TreeBins`: rows to bins that hold shared tokens once; made by :meth:`TreePlan.pack`.
- :class:`StepPlan`: rows to mini-batches and ranks; made by :func:`fastcollate.plan_step`.

Related names:

- :class:`Shard`: one rank's rows of a mini-batch or micro-batch.
- :class:`MergeReport`, :class:`Break`, :class:`TrajectoryTree` and :class:`Branch`: the savings of
  merging, each turn that it could not join, and the rows of a trajectory.
- :class:`Audit` and :class:`AuditSpan`: the outcome of every sampled token, from the ``audit``
  methods of plans.
- :class:`TreeReport` and :class:`SharedTokens`: the tokens saved by sharing, and the rows that
  share them.
- :class:`TreeNodes`: runs of tokens that belong to the same rows.
- :func:`prompt_boundaries` and :class:`PromptBoundaries`: the first row of each prompt, and one
  past its last.
- :class:`Costs`: costs of tokens, attention pairs, sequences and bins, for every argument that
  takes costs.
- :class:`CostFit` and :class:`StepTimer`: costs from measurements, and the timer for them.
- :class:`Forecast`: compute and idle time of ranks; made by :meth:`StepPlan.forecast`.
- :func:`compare_plans`: the forecasts of several plans, as a table.
- :class:`LossNormalizers`: the divisors of the losses of each mini-batch.
- :func:`broadcast_last_step`: the value of a trajectory's last step, on all its steps.
- :func:`drop_padding`: results of all shards in the order of the step's rows, without padding rows.
- :class:`Finding`: a finding of ``batch.check()``.
- :class:`MissingPlanError`: raised for batches made from a mapping, which have no plan.
"""

from fastcollate._fastcollate import Plan
from fastcollate.batch import MissingPlanError
from fastcollate.ops.drop_padding import drop_padding
from fastcollate.ops.findings import Finding
from fastcollate.ops.last_step import broadcast_last_step
from fastcollate.ops.normalize import LossNormalizers
from fastcollate.plan.audit_report import Audit, AuditSpan
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.costs import Costs
from fastcollate.plan.fitting import CostFit, StepTimer
from fastcollate.plan.forecast import Forecast, compare_plans
from fastcollate.plan.merge_report import Break, MergeReport
from fastcollate.plan.merge_tree import Branch, TrajectoryTree
from fastcollate.plan.merging import MergePlan
from fastcollate.plan.packing import pack
from fastcollate.plan.partitioning import MicroBatches, micro_batches, partition
from fastcollate.plan.prompt_boundaries import PromptBoundaries, prompt_boundaries
from fastcollate.plan.shard import Shard
from fastcollate.plan.sharing import prefix_tree
from fastcollate.plan.step_plan import StepPlan
from fastcollate.plan.tree_bins import TreeBins
from fastcollate.plan.tree_plan import TreeNodes, TreePlan
from fastcollate.plan.tree_report import SharedTokens, TreeReport

__all__ = [
    "Audit",
    "AuditSpan",
    "BinPlan",
    "Branch",
    "Break",
    "CostFit",
    "Costs",
    "Finding",
    "Forecast",
    "LossNormalizers",
    "MergePlan",
    "MergeReport",
    "MicroBatches",
    "MissingPlanError",
    "Plan",
    "PromptBoundaries",
    "Shard",
    "SharedTokens",
    "StepPlan",
    "StepTimer",
    "TrajectoryTree",
    "TreeBins",
    "TreeNodes",
    "TreePlan",
    "TreeReport",
    "broadcast_last_step",
    "compare_plans",
    "drop_padding",
    "micro_batches",
    "pack",
    "partition",
    "prefix_tree",
    "prompt_boundaries",
]
