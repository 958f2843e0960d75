"""Plans: which rows share a bin, a rank or an optimizer step, from lengths and ids alone.

Three functions group sequences; they differ in what is given:

- :func:`pack`: a capacity of bins, of which few are wanted; with ``algorithm="balanced"``, each
  sequence goes to the emptiest bin. For rows of the packed layout.
- :func:`partition`: a number of parts, without a capacity; they weigh about the same.
- :func:`micro_batches`: a capacity and a number of ranks; every rank gets the same number of
  micro-batches, and all cost about the same.

Seven plans hold what was decided. None holds a token (but :class:`MergePlan` the few around
breaks):

- :class:`Plan`: what the rows of a batch are made of and where they lie; ``batch.plan``.
- :class:`MergePlan`: which turns make which rows; :func:`fastcollate.merge_turns` makes it.
- :class:`BinPlan`: which sequences lie in which bin; :func:`pack` makes it.
- :class:`MicroBatches`: which sequences form which micro-batch of which rank;
  :func:`micro_batches` makes it.
- :class:`TreePlan`: which tokens rows begin with in common; :func:`prefix_tree` makes it.
- :class:`TreeBins`: which rows lie in which bin, where tokens in common lie once;
  :meth:`TreePlan.pack` makes it.
- :class:`StepPlan`: which rows form which mini-batch and go to which rank;
  :func:`fastcollate.plan_step` makes it.

What belongs to them:

- :class:`Shard`: one rank's rows of a mini-batch or micro-batch.
- :class:`MergeReport`, :class:`Break`, :class:`TrajectoryTree` and :class:`Branch`: what merging
  saved, each turn that it could not join, and the rows that a trajectory became.
- :class:`Audit` and :class:`AuditSpan`: what became of every sampled token; the ``audit`` of plans
  makes it.
- :class:`TreeReport` and :class:`SharedTokens`: what sharing saves, and who shares what with whom.
- :class:`TreeNodes`: runs of tokens that belong to the same rows.
- :func:`prompt_boundaries` and :class:`PromptBoundaries`: the first row of each prompt, and one
  past its last.
- :class:`Costs`: what tokens, pairs in attention, sequences and bins cost, for every argument that
  takes costs.
- :class:`CostFit` and :class:`StepTimer`: costs by measurements, and what measures.
- :class:`Forecast`: how long ranks compute and wait; :meth:`StepPlan.forecast` makes it.
- :func:`compare_plans`: the forecasts of several plans, as a table.
- :class:`LossNormalizers`: what the losses of each mini-batch are divided by.
- :func:`broadcast_last_step`: the value of a trajectory's last step, on all its steps.
- :func:`drop_padding`: results of all shards in the order of the step's rows, without padding rows.
- :class:`Finding`: what ``batch.check()`` found.
- :class:`MissingPlanError`: a batch made from a mapping has no plan.
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
