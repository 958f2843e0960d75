"""Lists that an item empties while NumPy or torch asks it for its values."""

import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import fastcollate as fc
from fastcollate import planning
from fastcollate.compat import skyrl, verl
from fastcollate.compat.skyrl.stepwise import rollout_metrics
from fastcollate.planning import StepPlan

TOKENS = [[5, 6], [7, 8]]
OPTIONS = {"pad_token_id": 0, "array_type": "torch" if find_spec("torch") else "numpy"}
PLAN = fc.plan_step([4] * 4, rows_per_mini_batch=2, dp_size=2)


class Empties:
    """An item that empties the list it is in, and is a number or an array."""

    def __init__(self, items, value):
        self.items = items
        self.value = value

    def _empty(self):
        size = 8 * len(self.items)
        self.items.clear()
        # What reads the list's memory from now on finds no objects.
        self.junk = [b"\xff" * max(size - 33, 0) for _ in range(40)]

    def __array__(self, dtype=None, copy=None):
        self._empty()
        return np.asarray(self.value)

    def __index__(self):
        self._empty()
        return 1

    def __float__(self):
        self._empty()
        return 1.0


def items(value, count):
    """Return a list of which the first item empties it."""
    found = []
    found += [Empties(found, value), *[value] * (count - 1)]
    return found


def build_from(rows):
    return fc.build_batch(rows, TOKENS * 32, **OPTIONS)


def build(**options):
    return fc.build_batch(TOKENS, TOKENS, **{**OPTIONS, **options})


def add(**columns):
    builder = fc.BatchBuilder(**OPTIONS)
    builder.add([5, 6], [7, 8], **columns)
    return builder.finish()


def restored(name):
    return StepPlan.from_dict({**PLAN.to_dict(), name: items(1, 64)})


class Tokenizer:
    pad_token_id = 0


def sft(**columns):
    example = {"input_ids": [1] * 64, "attention_mask": [1] * 64, "loss_mask": [1] * 8}
    return skyrl.collate_sft_batch([{**example, "num_actions": 8, **columns}] * 2, Tokenizer())


CALLS = {
    "tokens": lambda: build_from(items([1], 64)),
    "items": lambda: build_from([items(1, 64)] * 64),
    "prompt_lens": lambda: fc.build_batch(
        sequences=TOKENS * 32, prompt_lens=items(1, 64), **OPTIONS
    ),
    "ragged": lambda: fc.ragged([items(1, 64)]),
    "ragged, rows": lambda: fc.ragged(items([1], 64)),
    "ragged, of blocks": lambda: fc.ragged([[items(1, 64)], [[1] * 64]]),
    "offsets": lambda: fc.Ragged(np.arange(64), items(1, 64)),
    "concat": lambda: fc.Ragged.concat(items(fc.ragged([[1]]), 64)),
    "field": lambda: build(fields={"x": fc.Field([items(1, 2), [1, 1]], align="response")}),
    "field of blocks": lambda: build(
        fields={"x": fc.Field([[items(1, 64)] * 2, [[1] * 64] * 2], align="response")}
    ),
    "routes": lambda: build(fields={"x": fc.RoutedExperts([[[items(1, 64)]] * 4] * 2)}),
    "numbers": lambda: build(fields={"x": fc.PerRow(items(1, 64))}),
    "arrays": lambda: build(fields={"x": fc.PerRow([items(1, 64), [1] * 64])}),
    "arrays of NumPy": lambda: build(
        fields={"x": fc.PerRow([items(1, 64), [1] * 64])}, array_type="numpy"
    ),
    "rewards": lambda: build(rewards=items(1.0, 2)),
    "rewards of tokens": lambda: build(rewards=[items(1.0, 2), [1.0] * 2]),
    "advantages": lambda: build(advantages=items(1.0, 2)),
    "advantages of tokens": lambda: build(advantages=[items(1.0, 2), [1.0] * 2]),
    "uids": lambda: build(uids=items("a", 2)),
    "add, tokens": lambda: fc.BatchBuilder(**OPTIONS).add(items(1, 64), [1]),
    "add, routes": lambda: add(fields={"x": fc.RoutedExperts([items(1, 64)] * 4)}),
    "add, array": lambda: add(fields={"x": fc.PerRow(items(1, 64))}),
    "add, advantages": lambda: add(advantages=items(1.0, 2)),
    "plan_step": lambda: fc.plan_step(items(2, 64)),
    "plan_step, uids": lambda: fc.plan_step([4] * 64, uids=items(1, 64)),
    "prompt_boundaries": lambda: planning.prompt_boundaries(items(1, 64)),
    "pack": lambda: planning.pack(items(2, 64), fc.Packed(4)),
    "pack, costs": lambda: planning.pack([2] * 64, fc.Packed(4, max_cost=8), costs=items(2, 64)),
    "pack, keep_together": lambda: planning.pack(
        [2] * 64, fc.Packed(4), keep_together=items(1, 64)
    ),
    "partition": lambda: planning.partition(items(2, 64), 4),
    "micro_batches": lambda: planning.micro_batches(items(2, 64), 4),
    "bins": lambda: fc.Packed(plan=[items(1, 64)]),
    "Costs.fit": lambda: planning.Costs().fit(items(([4, 4], 1.0), 64)),
    "merge_turns": lambda: fc.merge_turns(TOKENS * 32, TOKENS * 32, trajectory_ids=items("a", 64)),
    "merge_turns, flags": lambda: fc.merge_turns(
        TOKENS * 32, TOKENS * 32, is_last_step=items(True, 64)
    ),
    "prefix_tree": lambda: planning.prefix_tree([[1] * 64] * 64, items([1], 64)),
    "prefix_tree, uids": lambda: planning.prefix_tree(TOKENS, TOKENS, uids=items(1, 2)),
    "unpad": lambda: fc.unpad(np.ones((64, 2)), items(1, 64)),
    "unpad, mask": lambda: fc.unpad(np.ones((1, 64)), mask=[items(1, 64)]),
    "pad": lambda: fc.pad([items(1, 64)]),
    "select": lambda: build().select(rows=items(0, 64)),
    "gather": lambda: build().gather([items(1.0, 2)] * 2),
    "gather, missing": lambda: build().gather(np.ones((2, 2)), missing=items(0.0, 64)),
    "broadcast": lambda: build().broadcast(items(1.0, 2)),
    "step plan": lambda: restored("rows"),
    "step plan, offsets": lambda: restored("mini_batch_offsets"),
    "verl, partition": lambda: verl.karmarkar_karp(items(2, 64), 4, equal_size=False),
    "rollout_metrics": lambda: rollout_metrics([[1] * 64], [items(1.0, 64)], [[1] * 64]),
    "rollout_metrics, masks": lambda: rollout_metrics([[1] * 64], [1.0], [items(1, 64)]),
    "sft": lambda: sft(input_ids=items(1, 64)),
    "sft, mask": lambda: sft(loss_mask=items(1, 8)),
    "sft, images": lambda: sft(pixel_values=items(1, 8), image_grid_thw=items(1, 8)),
    "router mask": lambda: skyrl.make_router_padding_mask([items(1, 64)], [2]),
    "router mask, lengths": lambda: skyrl.make_router_padding_mask(np.ones((64, 2)), items(1, 64)),
}


def call_all():
    """Make each call with such a list: a result or an error, but no crash."""
    for name, call in CALLS.items():
        print(name, flush=True)
        for _ in range(10):
            with suppress(TypeError, ValueError, IndexError, KeyError, RuntimeError, ImportError):
                call()


def test_emptied_lists():
    program = "import test_emptied_lists; test_emptied_lists.call_all()"
    child = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert child.returncode == 0, (child.stdout.splitlines()[-1:], child.stderr[-2000:])
