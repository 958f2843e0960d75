"""The waiting of the example trainer's model for batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from common.clocks import Clock
from common.report import Effort, Figures


def of_trainer(effort: Effort, clock: Clock) -> Figures:
    """Measure the share of the example trainer's step that its model waits."""
    from grpo.learning import Learner
    from grpo.options import Options
    from grpo.reporting import Clock as Stages
    from train_grpo import train_step

    learned: list[tuple[Any, Any]] = []  # begin and end of each mini-batch

    class Watched(Learner):
        def learn(self, *args: Any) -> Any:
            begin = clock.now()
            share = super().learn(*args)
            learned.append((begin, clock.now()))
            return share

    learner = Watched(Options(device=clock.device))
    shares: dict[str, list[float]] = {"wait": [], "prefetch": []}
    for step in range(2 if effort.is_smoke else 44):
        name = "prefetch" if step % 2 else "wait"
        learner.options = replace(learner.options, prefetch=name == "prefetch")
        turns = learner.play(step)
        learned.clear()
        begin = clock.now()
        train_step(learner, turns, Stages())
        whole = clock.between(begin, learned[-1][1])
        shares[name].append(1 - sum(clock.between(*times) for times in learned) / whole)
    # The first steps take memory and start threads.
    return {name: float(np.median(values[-20:])) for name, values in shares.items()}
