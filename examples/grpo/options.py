"""Options of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import fastcollate as fc

TIMEOUT = timedelta(minutes=2)
"""The longest wait of a rank for the others."""


@dataclass(frozen=True)
class Options:
    """The options of `examples/train_grpo.py`, and arguments derived from them."""

    steps: int = 400
    seconds: float = math.inf
    merge: bool = True
    pack: bool = True
    tree: bool = False  # in place of packed rows
    balance: bool = True
    narrow: bool = False  # batches as wide as the rank's own rows
    prefetch: bool = True
    ranks: int = 1
    prompts: int = 16  # of a step
    samples: int = 16  # games of each prompt
    prompts_per_mini_batch: int = 4
    capacity: int = 128  # tokens of a packed row
    learning_rate: float = 1e-3
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; pass 1 or more")
        if not self.seconds >= 0:  # nor is NaN
            raise ValueError(f"seconds is {self.seconds}; pass 0 or more")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; pass 0 or more")
        if self.prompts % self.ranks:
            raise ValueError(f"prompts is {self.prompts}, no multiple of the {self.ranks} ranks")

    @property
    def merging(self) -> Literal["exact"] | None:
        """Argument `merge` of `build_batch` and `put_turns`."""
        return "exact" if self.merge else None

    @property
    def planning(self) -> dict[str, Any]:
        """Arguments of `plan_step`."""
        return {
            "prompts_per_mini_batch": self.prompts_per_mini_batch,
            "dp_size": self.ranks,
            "shard_by": "flops" if self.balance else "strided",
            "layout": self.layout,
        }

    @property
    def layout(self) -> fc.Tree | fc.Packed | fc.Left:
        """The layout of training batches."""
        if self.tree:
            return fc.Tree(self.capacity)
        return fc.Packed(self.capacity, shift="next_token") if self.pack else fc.Left()
