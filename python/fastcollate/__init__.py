"""Collation for LLM post-training: ragged rollouts to training tensors in one call.

>>> import fastcollate as fc
>>> batch = fc.build_batch([[5, 6], [7]], [[8], [9, 10]], pad_token_id=0, array_type="numpy")
>>> batch.input_ids
array([[ 5,  6,  8],
       [ 7,  9, 10]])

- Rows to a batch: `build_batch`; `BatchBuilder` as rollouts arrive; `Collator` in a data loader
- Layouts: `Left`, `Right`, `TwoSegment`, `Jagged`, `Packed`, `Tree`
- More values: `Field`, `PerRow`, `RoutedExperts`, `Captured`, `WeightVersions`
- Turns to rows, and rows to ranks: `merge_turns`, `plan_step`
- Without a batch: `pad`, `unpad`, `ragged`, `Ragged`; ahead of the training loop: `prefetch`

:mod:`fastcollate.planning` has packing, costs and prefix trees, :mod:`fastcollate.rollouts` reads
responses of engines, and :mod:`fastcollate.compat` has functions of frameworks. See also
:mod:`fastcollate.memory`, :mod:`fastcollate.ray` and :mod:`fastcollate.testing`.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from fastcollate.common.requirements import check_requirements

check_requirements()

# isort: split
from fastcollate import memory as memory
from fastcollate import planning as planning
from fastcollate._fastcollate import __version__ as __version__
from fastcollate.batch import Batch
from fastcollate.build import build_batch
from fastcollate.plan.layout import Jagged, Left, Right, TwoSegment
from fastcollate.plan.layouts import Packed, Tree
from fastcollate.plan.merging import merge_turns
from fastcollate.rows.captured import Captured, RoutedExperts
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.fields import Field
from fastcollate.rows.per_row import PerRow
from fastcollate.rows.versions import WeightVersions

if TYPE_CHECKING:
    from fastcollate import compat as compat
    from fastcollate import rollouts as rollouts
    from fastcollate import testing as testing
    from fastcollate.builder import BatchBuilder
    from fastcollate.collator import Collator
    from fastcollate.device.prefetching import prefetch
    from fastcollate.ops.padding import pad
    from fastcollate.ops.unpadding import unpad
    from fastcollate.plan.stepping import plan_step

__all__ = [
    "Batch",
    "BatchBuilder",
    "Captured",
    "Collator",
    "Field",
    "Jagged",
    "Left",
    "Packed",
    "PerRow",
    "Ragged",
    "Right",
    "RoutedExperts",
    "Tree",
    "TwoSegment",
    "WeightVersions",
    "build_batch",
    "merge_turns",
    "pad",
    "plan_step",
    "prefetch",
    "ragged",
    "unpad",
]

_ON_USE = {
    "BatchBuilder": "builder",
    "Collator": "collator",
    "pad": "ops.padding",
    "plan_step": "plan.stepping",
    "prefetch": "device.prefetching",
    "unpad": "ops.unpadding",
}
"""Modules of names that are imported on use."""

_MODULES = ("compat", "rollouts", "testing")
"""Public modules that are imported on use."""

if not TYPE_CHECKING:  # type checkers would take any name for one of the package

    def __dir__():
        """List the public names and modules; `ray` needs an import of its own."""
        special = (name for name in globals() if name.startswith("__"))
        return [*__all__, *_MODULES, "memory", "planning", "ray", *special]

    def __getattr__(name):
        """Import a name on first use; the error of another one names its module."""
        if name in _ON_USE:
            value = getattr(import_module(f"fastcollate.{_ON_USE[name]}"), name)
            globals()[name] = value
            return value
        if name in _MODULES:
            return import_module(f"fastcollate.{name}")
        from fastcollate.common.names import no_such_name, public_names, same_word

        for module in (planning, memory):
            if name in module.__all__:
                place = f"{module.__name__}.{name}"
                raise no_such_name(f"fastcollate has no attribute {name!r}; it is {place}")
        advice = {
            "ray": "; import fastcollate.ray",
            **dict.fromkeys(("collate", "default_collate"), "; see fastcollate.build_batch"),
            **dict.fromkeys(
                ("concat", "concatenate", "cat"),
                "; see fastcollate.Ragged.concat for rows, or build one batch of all rows",
            ),
            **dict.fromkeys(("pad_sequence", "pad_sequences"), "; see fastcollate.pad"),
            **dict.fromkeys(("DataCollator", "data_collator"), "; see fastcollate.Collator"),
            **dict.fromkeys(
                ("skyrl", "verl", "trl", "transformers", "nemo_rl"),
                f"; import fastcollate.compat.{name}",
            ),
            **dict.fromkeys(("parse", "read"), f"; it is fastcollate.rollouts.{name}"),
            **dict.fromkeys(public_names(Batch), f"; a batch has it: batch.{name}"),
            "patch": "; each framework has its own: fastcollate.compat.trl.patch()",
            "merge": "; see fastcollate.merge_turns",
            "tokenize": "; tokenize by another library: rows are token ids",
            "collate_fn": "; see fastcollate.Collator",
        }.get(name, "")
        similar = same_word(name, __all__)
        if not advice and similar is not None:
            advice = f"; did you mean {similar!r}?"
        if name.startswith(("read_", "load", "from_")):
            advice = "; read files by another library, and pass the table to a fastcollate.Collator"
        if not advice and not name.startswith("_"):
            advice = f"; it has {', '.join(__all__)}"
        raise no_such_name(f"module 'fastcollate' has no attribute {name!r}{advice}")


logging.getLogger(__name__).addHandler(logging.NullHandler())
