"""Collate recorded rollouts, check and time the result, merge their turns, and train on them.

Run it from the root of the repository: ``python examples/demo.py``.
"""

from __future__ import annotations

import tutorials.preflight  # isort: skip  # noqa: F401  # errors of one line

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

sys.path.append(str(Path(__file__).parents[1]))  # for frameworks

import fastcollate as fc
from fastcollate.planning import Merge
from fastcollate.testing import reference
from frameworks.numpy_rows import build_batch_numpy
from policy import Policy, response_log_probs
from rollouts import PAD_TOKEN_ID, Rollouts, load_rollouts, load_tokenizer

ROUNDS = 9
ASSISTANT = "<|assistant|>"
SHOWN = "difflib.SequenceMatcher.ratio"  # a prompt group
SHOWN_TURNS = 2  # at the end of a chat
SHOWN_COLUMNS = 6
SHOWN_LINES = 16  # of a report
TRAINED_GROUPS = 6

Batch = Mapping[str, Any]


def main() -> None:
    """Run the demo; exit with an error if the three collations differ."""
    console = Console(highlight=False)
    rollouts = load_rollouts()
    tokenizer = load_tokenizer()
    batch = fc.build_batch(**columns(rollouts), array_type="torch")

    console.rule("[bold]One batch, three ways to collate it")
    console.print(compare(rollouts, batch))

    console.rule("[bold]Two of its rows")
    last_turns = [
        row for row, uid in enumerate(rollouts.uids) if uid == SHOWN and rollouts.is_last_step[row]
    ]
    for row in (last_turns[0], last_turns[-1]):
        console.print(shown(rollouts, batch, row, tokenizer))

    console.rule("[bold]One row per trajectory instead of one per turn")
    plan = merge(rollouts, policy=Merge("realign", mask_drift="span"), tokenizer=tokenizer)
    report = str(plan.report).splitlines()[:SHOWN_LINES]
    console.print(Text("\n".join(report)), no_wrap=True, overflow="ellipsis")

    console.rule("[bold]The same rollouts in fewer positions")
    console.print(positions(rollouts))

    console.rule("[bold]One policy-gradient step")
    groups = first_groups(rollouts, TRAINED_GROUPS)
    console.print(train_steps(groups, tokenizer.get_vocab_size()))


def columns(rollouts: Rollouts) -> dict[str, Any]:
    """Return the columns by the argument names of `build_batch`."""
    return {
        "prompts": rollouts.prompts,
        "responses": rollouts.responses,
        "pad_token_id": PAD_TOKEN_ID,
        "rewards": rollouts.rewards,
        "loss_mask": rollouts.loss_mask,
        "logprobs": rollouts.logprobs,
    }


def compare(rollouts: Rollouts, batch: Batch) -> Table:
    """Compare `batch` with the references, and time all three in turns."""
    arguments = columns(rollouts)
    ways: dict[str, Callable[[], Batch]] = {
        "Python, token by token": lambda: reference.build_batch_loops(**arguments),
        "NumPy, row by row": lambda: build_batch_numpy(**arguments),
        "fastcollate": lambda: fc.build_batch(**arguments, array_type="torch"),
    }
    for name, build in ways.items():
        try:
            reference.assert_same(batch, build())
        except AssertionError as difference:
            sys.exit(f"fastcollate and {name!r} differ: {difference}")

    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, build in ways.items():
            start = time.perf_counter()
            build()
            seconds[name].append(time.perf_counter() - start)

    rows, width = batch["input_ids"].shape
    tokens = int(batch["attention_mask"].sum())
    table = Table(
        title=f"{rows:,} rows, {tokens:,} tokens, {1 - tokens / (rows * width):.0%} padding",
        caption=f"Equal bit for bit. Medians of {ROUNDS} interleaved rounds.",
    )
    table.add_column("from lists of Python numbers")
    for heading in ("milliseconds", "ns per token", "times as fast"):
        table.add_column(heading, justify="right")
    median = {name: statistics.median(times) for name, times in seconds.items()}
    slowest = max(median.values())
    for name, time_taken in median.items():
        table.add_row(
            name,
            f"{time_taken * 1e3:,.1f}",
            f"{time_taken * 1e9 / tokens:,.1f}",
            f"{slowest / time_taken:,.1f}",
            style="bold" if name == "fastcollate" else None,
        )
    return table


def shown(rollouts: Rollouts, batch: Batch, row: int, tokenizer: Tokenizer) -> Group:
    """Decode one row of the batch, and the last columns of its response-aligned fields."""
    ids = batch["input_ids"][row][batch["attention_mask"][row].bool()]
    response_len = int(batch["response_mask"][row].sum())
    prompt, response = (
        tokenizer.decode(part.tolist(), skip_special_tokens=False)
        for part in (ids[:-response_len], ids[-response_len:])
    )
    turns = prompt.split(ASSISTANT)[-SHOWN_TURNS:]
    chat = Text.assemble(
        (ASSISTANT.join(["...\n", *turns]), "dim"),
        (response, "green" if batch["rewards"][row].sum() > 0 else "red"),
    )

    last = slice(-SHOWN_COLUMNS, None)
    tokens = (
        repr(tokenizer.decode([i], skip_special_tokens=False))
        for i in batch["input_ids"][row, last].tolist()
    )
    fields = Table(box=box.SIMPLE)
    fields.add_column(f"last {SHOWN_COLUMNS} columns", style="dim")
    for token in tokens:
        fields.add_column(token, justify="right")
    for key in ("response_mask", "loss_mask", "logprobs", "rewards"):
        fields.add_row(key, *(f"{value:.3g}" for value in batch[key][row, last].tolist()))
    title = Text(f"\nRow {row:,}: trajectory {rollouts.trajectory_ids[row]}", "bold")
    return Group(title, Padding(chat, (0, 0, 0, 2)), fields)


def first_groups(rollouts: Rollouts, groups: int) -> Rollouts:
    """Return the turns of the first prompt groups."""
    uids = list(dict.fromkeys(rollouts.uids))
    end = rollouts.uids.index(uids[groups])
    return Rollouts(**{name: column[:end] for name, column in vars(rollouts).items()})


def merge(rollouts: Rollouts, **options: Any) -> fc.planning.MergePlan:
    """Plan the merging of turns into rows."""
    return fc.merge_turns(
        rollouts.prompts,
        rollouts.responses,
        trajectory_ids=rollouts.trajectory_ids,
        is_last_step=rollouts.is_last_step,
        **options,
    )


def positions(rollouts: Rollouts) -> Table:
    """Count the positions that a model computes in a layout."""
    merged = merge(rollouts)
    ways: dict[str, tuple[fc.planning.MergePlan | None, Any]] = {
        "padded, a row per turn": (None, "left"),
        "merged": (merged, "left"),
        "merged and packed": (merged, fc.Packed.single_row()),
        "a tree": (merged, fc.Tree()),
        "a tree of turns that are not merged": (None, fc.Tree()),
    }
    table = Table(caption="Packed rows and trees lie in one bin, without padding.")
    table.add_column("layout", no_wrap=True)
    for heading in ("rows", "positions", "times fewer"):
        table.add_column(heading, justify="right")
    most = 0
    for name, (plan, layout) in ways.items():
        batch = fc.build_batch(
            **columns(rollouts), trajectory_ids=rollouts.trajectory_ids, merge=plan, layout=layout
        )
        count = batch.input_ids.numel()
        most = max(most, count)
        table.add_row(name, f"{batch.plan.num_rows:,}", f"{count:,}", f"{most / count:.1f}")
    return table


def train_steps(rollouts: Rollouts, vocab_size: int) -> Table:
    """Take one REINFORCE step with a fresh policy, with and without merging turns.

    The recorded log-probabilities are not used: they are another model's, so ratios to them mean
    nothing for this one.
    """
    plans = {
        "one row per turn": None,
        "exact": merge(rollouts),
        "branch": merge(rollouts, policy="branch"),
        **{
            f"realign, {masked}": merge(rollouts, policy=Merge("realign", mask_drift=masked))
            for masked in ("response", "tail", "span")
        },
    }
    table = Table(
        title=f"{TRAINED_GROUPS} prompt groups",
        caption="The loss is a sum over tokens: exact merging leaves it as it is.",
    )
    table.add_column("merge", no_wrap=True)
    for heading in ("rows", "tokens", "trained", "seconds", "loss", "then"):
        table.add_column(heading, justify="right")
    for name, plan in plans.items():
        table.add_row(name, *train_step(rollouts, plan, vocab_size))
    return table


def train_step(
    rollouts: Rollouts, plan: fc.planning.MergePlan | None, vocab_size: int
) -> list[str]:
    """Take the step on the rows of a plan, and report it."""
    batch = fc.build_batch(
        **columns(rollouts),
        uids=rollouts.uids,
        trajectory_ids=rollouts.trajectory_ids,
        merge=plan,
    )
    trained = batch.loss_mask != 0
    weights = (batch.broadcast(group_advantages(batch)) * batch.loss_mask)[trained]

    torch.manual_seed(0)
    policy = Policy(vocab_size, max_positions=batch.input_ids.shape[1])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)

    def loss() -> torch.Tensor:
        total: torch.Tensor = -(weights * response_log_probs(policy, batch)[trained]).sum()
        return total

    start = time.perf_counter()
    before = loss()
    before.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        after = loss()
    return [
        f"{batch.plan.num_rows:,}",
        f"{int(batch.attention_mask.sum()):,}",
        f"{int(batch.loss_mask.sum()):,}",
        f"{seconds:.1f}",
        f"{before.item():+,.1f}",
        f"{after.item():+,.1f}",
    ]


def group_advantages(batch: fc.Batch) -> torch.Tensor:
    """Normalise the trajectories' returns within their prompt groups, as GRPO does.

    Every row of a trajectory gets the trajectory's advantage.
    """
    _, first_row, trajectory = np.unique(
        batch.trajectory_ids, return_index=True, return_inverse=True
    )
    _, group = np.unique(np.array(batch.uids)[first_row], return_inverse=True)
    returns = np.bincount(trajectory, batch.rewards.sum(dim=1).numpy())
    sizes = np.bincount(group)
    centred = returns - (np.bincount(group, returns) / sizes)[group]
    deviations = np.sqrt(np.bincount(group, centred**2) / sizes)[group]
    return torch.from_numpy((centred / (deviations + 1e-6))[trajectory]).float()


if __name__ == "__main__":
    main()
