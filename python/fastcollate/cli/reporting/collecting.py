"""Figures of a report, collected from chunks of rows: lengths are kept, tokens are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate.build import build_batch
from fastcollate.plan.costs import Costs
from fastcollate.plan.layouts import Packed, Tree
from fastcollate.plan.merge import Policy
from fastcollate.plan.merging import MergePlan, merge_turns
from fastcollate.plan.packing import pack
from fastcollate.plan.sharing import prefix_tree
from fastcollate.plan.stepping import plan_step
from fastcollate.rows.columns import Ragged, pick
from fastcollate.rows.lengths import Integers

if TYPE_CHECKING:
    from fastcollate.batch import Batch
    from fastcollate.cli.columns import FileRows
    from fastcollate.inspect.findings import Finding
    from fastcollate.plan.breaks import Tokenizer

LAYOUTS = ("left, right", "two_segment", "jagged", "packed", "tree")
"""The layouts that are compared."""

MOST_BREAKS = 300
"""Most breaks that are counted by reason, sampled evenly from all."""

MOST_TREES = 5
MOST_WORST = 12
WORST_TOKENS = 2_000
"""Trajectories that are drawn, rows that are rendered, and most tokens of a rendered row."""

SMALLEST_CAPACITY = 16_384


class Positions(NamedTuple):
    """Tokens and positions of a layout."""

    tokens: int
    positions: int

    @property
    def padding(self) -> float:
        """The fraction of positions that is padding."""
        return 1 - self.tokens / self.positions if self.positions else 0.0


class MergingSummary(NamedTuple):
    """Results of merging."""

    policy: str
    num_trajectories: int
    num_turns: int
    num_rows: int
    tokens_before: int
    tokens_after: int
    masked_tokens: int
    kinds: dict[str, int]
    """Breaks by kind."""
    hints: dict[str, int]
    """Breaks by reason, of those examined."""
    num_looked_at: int
    rows_per_trajectory: dict[int, int]
    trees: list[str]


class Load(NamedTuple):
    """The load of ranks under one way to shard rows."""

    name: str
    per_rank: list[float]
    """Load of each rank over all mini-batches."""
    idle: float
    """The fraction of time that ranks wait for the slowest one of each mini-batch."""


class Found(NamedTuple):
    """Findings of one kind."""

    kind: str
    number: int
    examples: list[str]
    advice: str


class Worst(NamedTuple):
    """A row that is rendered."""

    row: int
    why: str
    batch: Batch
    is_cut: bool


class Summary(NamedTuple):
    """All figures of a report."""

    name: str
    num_turns: int
    prompt_tokens: int
    response_tokens: int
    trained_tokens: int
    mean_reward: float | None
    prompt_lens: Integers
    response_lens: Integers
    row_lens: Integers
    """Tokens of rows: merged ones, if trajectories are known."""
    batch_rows: int
    capacity: int
    layouts: dict[str, dict[str, Positions]]
    """For ``"turns"`` and, if trajectories are known, ``"merged"``, by layout."""
    merging: MergingSummary | None
    bin_fill: NDArray[np.float64]
    dp_size: int
    cost: str
    loads: list[Load]
    num_mini_batches: int
    findings: list[Found]
    num_findings: int
    worst: list[Worst]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, ready to be written as JSON."""
        merging = self.merging
        return {
            "name": self.name,
            "turns": self.num_turns,
            "prompt_tokens": self.prompt_tokens,
            "response_tokens": self.response_tokens,
            "trained_tokens": self.trained_tokens,
            "mean_reward": self.mean_reward,
            "lengths": {
                "prompts": _spread(self.prompt_lens),
                "responses": _spread(self.response_lens),
                "rows": _spread(self.row_lens),
            },
            "batch_rows": self.batch_rows,
            "capacity": self.capacity,
            "layouts": {
                of: {
                    name: {**found._asdict(), "padding": found.padding}
                    for name, found in by_layout.items()
                }
                for of, by_layout in self.layouts.items()
            },
            "merging": None if merging is None else merging._asdict(),
            "bins": {
                "number": len(self.bin_fill),
                "mean_fill": float(self.bin_fill.mean()) if len(self.bin_fill) else None,
            },
            "ranks": {
                "number": self.dp_size,
                "cost": self.cost,
                "mini_batches": self.num_mini_batches,
                "loads": [load._asdict() for load in self.loads],
            },
            "findings": [found._asdict() for found in self.findings],
            "worst_rows": [{"row": worst.row, "why": worst.why} for worst in self.worst],
        }


def _spread(lens: Integers) -> dict[str, float]:
    middle, most = np.percentile(lens, [50, 95]).tolist()
    return {"median": middle, "p95": most, "longest": int(lens.max())}


class Collector:
    """Collects figures of rows chunk by chunk.

    Parameters
    ----------
    policy
        The merge policy for turns of trajectories.
    batch_rows
        Rows of a mini-batch.
    dp_size
        Number of ranks.
    capacity
        Tokens of a bin; None to choose one.
    costs
        Costs of rows; None for tokens.
    tokenizer, vocab_size, eos_token_ids
        Used to check and render token ids.
    """

    def __init__(
        self,
        *,
        policy: Policy = "exact",
        batch_rows: int = 256,
        dp_size: int = 8,
        capacity: int | None = None,
        costs: Costs | None = None,
        tokenizer: Tokenizer | None = None,
        vocab_size: int | None = None,
        eos_token_ids: Sequence[int] | None = None,
    ) -> None:
        self.policy, self.batch_rows, self.dp_size = policy, batch_rows, dp_size
        self.capacity, self.costs, self.tokenizer = capacity, costs, tokenizer
        self.vocab_size, self.eos_token_ids = vocab_size, eos_token_ids
        self._chunks: list[_Chunk] = []
        self._trained = 0
        self._rewards: list[float] = []
        self._kinds: Counter[str] = Counter()
        self._hints: list[str] = []
        self._num_breaks, self._stride = 0, 1
        self._spread: Counter[int] = Counter()
        self._merged: Counter[str] = Counter()
        self._trees: list[str] = []
        self._found: dict[str, list[Finding]] = {}
        self._counts: Counter[str] = Counter()
        self._worst: list[Worst] = []
        self._longest: tuple[int, FileRows | None] = (0, None)

    def add(self, rows: FileRows) -> None:
        """Add rows of whole trajectories."""
        prompt_lens, response_lens = rows.prompts.lengths, rows.responses.lengths
        batch = build_batch(
            rows.prompts, rows.responses, pad_token_id=0, array_type="numpy", layout="jagged",
            **rows.fields,
        )  # fmt: skip
        self._trained += int(batch.metrics["batch/trained_tokens"])
        rewards = rows.rewards
        if rewards is not None:
            is_ragged = isinstance(rewards, Ragged)
            total = float(np.sum(rewards.values if is_ragged else rewards))
            self._rewards.append(total)
        plan = None
        if rows.trajectory_ids is not None or rows.is_last_step is not None:
            plan = merge_turns(
                rows.prompts,
                rows.responses,
                trajectory_ids=rows.trajectory_ids,
                is_last_step=rows.is_last_step,
                policy=self.policy,
                allow_unfinished=True,
                tokenizer=self.tokenizer,
            )
            self._add_merge(plan, rows.first_row)
        self._check(rows, batch)
        self._chunks.append(_Chunk(prompt_lens, response_lens, *_merge(plan), *_share(rows, plan)))

    def _add_merge(self, plan: MergePlan, first_row: int) -> None:
        """Add the report of merging."""
        report = plan.report
        self._merged.update(
            num_trajectories=report.num_trajectories,
            num_turns=report.num_turns,
            num_rows=report.num_rows,
            tokens_before=report.tokens_before,
            tokens_after=report.tokens_after,
            masked_tokens=report.masked_tokens,
        )
        self._kinds.update(dict(report.breaks.kinds))
        for rows, count in enumerate(np.bincount(report.rows_per_trajectory).tolist()):
            self._spread[rows] += count
        unknown = "not known without a tokenizer" if self.tokenizer is None else "of no known kind"
        first = -self._num_breaks % self._stride
        self._hints += [broken.hint or unknown for broken in report.breaks[first :: self._stride]]
        self._num_breaks += len(report.breaks)
        while len(self._hints) > MOST_BREAKS:  # keep every second one
            self._hints, self._stride = self._hints[::2], 2 * self._stride
        if first_row == 0:  # turn numbers equal those in the file
            self._trees = [str(report.tree(one)) for one in report.breaks.most_broken(MOST_TREES)]

    def _check(self, rows: FileRows, batch: Batch) -> None:
        """Add the findings of a chunk, and the rows worth rendering."""
        findings = batch.check(self.vocab_size, self.eos_token_ids)
        for finding in findings:
            of_kind = self._found.setdefault(finding.kind, [])
            self._counts[finding.kind] += 1
            if len(of_kind) < 5:
                row = None if finding.row is None else finding.row + rows.first_row
                reason = _in_file(finding.reason, rows.first_row)
                of_kind.append(replace(finding, row=row, reason=reason))
            if finding.row is not None and self._counts[finding.kind] <= 2:
                reason = _in_file(finding.reason, rows.first_row)
                self._keep(rows, finding.row, f"{finding.kind}: {reason}")
        lens = rows.prompts.lengths + rows.responses.lengths
        longest = int(lens.argmax())
        if int(lens[longest]) > self._longest[0]:
            self._longest = int(lens[longest]), _one(rows, longest)

    def _keep(self, rows: FileRows, row: int, why: str) -> None:
        """Keep a row to be rendered, up to the limit."""
        is_known = any(one.row == rows.first_row + row for one in self._worst)
        if len(self._worst) < MOST_WORST - 1 and not is_known:
            self._worst.append(_worst(_one(rows, row), why))

    def close(self, name: str) -> Summary:
        """Return the summary of all rows.

        Raises
        ------
        ValueError
            If rows cannot be packed or sharded.
        """
        prompt_lens = np.concatenate([chunk.prompt_lens for chunk in self._chunks])
        response_lens = np.concatenate([chunk.response_lens for chunk in self._chunks])
        turn_lens = prompt_lens + response_lens
        is_merged = self._chunks[0].merged_prompt_lens is not None
        rows = prompt_lens, response_lens
        if is_merged:
            rows = tuple(
                np.concatenate([getattr(chunk, name) for chunk in self._chunks])
                for name in ("merged_prompt_lens", "merged_response_lens")
            )  # type: ignore[assignment]
        row_lens = rows[0] + rows[1]
        longest = int(turn_lens.max())
        capacity = self.capacity or max(SMALLEST_CAPACITY, 1 << max(longest - 1, 1).bit_length())
        layouts = {"turns": self._positions(prompt_lens, response_lens, capacity, "turns")}
        if is_merged:
            layouts["merged"] = self._positions(*rows, capacity, "merged")
        bins = pack(row_lens, Packed(capacity, oversize="own_bin"))
        if self._longest[1] is not None:
            self._worst.append(_worst(self._longest[1], f"the longest turn: {longest:,} tokens"))
        merging = None
        if is_merged:
            merging = MergingSummary(
                self.policy,
                **self._merged,
                kinds=dict(self._kinds.most_common()),
                hints=dict(Counter(self._hints).most_common()),
                num_looked_at=len(self._hints),
                rows_per_trajectory={
                    n: count for n, count in sorted(self._spread.items()) if count
                },
                trees=self._trees,
            )
        loads, mini_batches = self._loads(row_lens, capacity)
        return Summary(
            name=name,
            num_turns=len(prompt_lens),
            prompt_tokens=int(prompt_lens.sum()),
            response_tokens=int(response_lens.sum()),
            trained_tokens=self._trained,
            mean_reward=sum(self._rewards) / len(prompt_lens) if self._rewards else None,
            prompt_lens=prompt_lens,
            response_lens=response_lens,
            row_lens=row_lens,
            batch_rows=self.batch_rows,
            capacity=capacity,
            layouts=layouts,
            merging=merging,
            bin_fill=bins.loads / capacity,
            dp_size=self.dp_size,
            cost="tokens" if self.costs is None else repr(self.costs),
            loads=loads,
            num_mini_batches=mini_batches,
            findings=[self._of_kind(kind) for kind in self._found],
            num_findings=sum(self._counts.values()),
            worst=self._worst,
        )

    def _of_kind(self, kind: str) -> Found:
        """Return the findings of a kind."""
        found = self._found[kind]
        examples = [f"{one.place}: {one.reason}" for one in found]
        return Found(kind, self._counts[kind], examples, found[0].advice)

    def _positions(
        self, prompt_lens: Integers, response_lens: Integers, capacity: int, of: str
    ) -> dict[str, Positions]:
        """Count tokens and positions of each layout, in batches of contiguous rows."""
        lens = prompt_lens + response_lens
        starts = np.arange(0, len(lens), self.batch_rows)
        counts = np.diff(np.append(starts, len(lens)))

        def widest(values: Integers) -> Integers:
            return np.maximum.reduceat(values, starts)

        tokens = int(lens.sum())
        packed, shared = Positions(0, 0), Positions(0, 0)
        for chunk in self._chunks:
            found = chunk.tree if of == "turns" else chunk.merged_tree
            of_chunk = found.lengths
            bins = pack(of_chunk, Packed(capacity, oversize="own_bin"))
            packed = _sum(packed, int(of_chunk.sum()), bins.num_bins * max(bins.loads))
            trees = found.pack(Tree(capacity, oversize="own_bin"))
            shared = _sum(shared, int(trees.loads.sum()), trees.num_bins * max(trees.loads))
        by_name = (
            Positions(tokens, int((counts * widest(lens)).sum())),
            Positions(tokens, int((counts * (widest(prompt_lens) + widest(response_lens))).sum())),
            Positions(tokens, tokens),
            packed,
            shared,
        )
        return dict(zip(LAYOUTS, by_name, strict=True))

    def _loads(self, lens: Integers, capacity: int) -> tuple[list[Load], int]:
        """Shard rows in several ways."""
        costs = self.costs or Costs(per_token=1.0)
        rows = min(self.batch_rows, len(lens))
        loads, mini_batches = [], 0
        balanced = {"shard_by": "tokens" if self.costs is None else self.costs}
        layout = {"layout": Packed(capacity, oversize="own_bin")}
        for name, options in (
            ("in order", {}),
            ("balanced", balanced),
            (f"packed at {capacity:,}", balanced | layout),
        ):
            plan = plan_step(
                lens, rows_per_mini_batch=rows, dp_size=self.dp_size, allow_partial=True, **options
            )
            times = plan.forecast(costs, computes_padding=False)
            slowest = float(times.step_times.sum())
            idle = 1 - float(times.rank_times.mean(1).sum()) / slowest if slowest else 0.0
            loads.append(Load(name, times.rank_times.sum(0).tolist(), idle))
            mini_batches = plan.num_mini_batches
        return loads, mini_batches


class _Chunk(NamedTuple):
    """The figures kept of a chunk of rows."""

    prompt_lens: Integers
    response_lens: Integers
    merged_prompt_lens: Integers | None
    merged_response_lens: Integers | None
    tree: Any
    merged_tree: Any


def _merge(plan: MergePlan | None) -> tuple[Integers | None, Integers | None]:
    return (None, None) if plan is None else (plan.prompt_lens, plan.response_lens)


def _share(rows: FileRows, plan: MergePlan | None) -> tuple[Any, Any]:
    """Return the shared tokens of turns and of merged rows: within a prompt, if uids are known."""
    options: dict[str, Any] = {}
    if rows.uids is not None:
        options = {"share": "group", "uids": rows.uids}
    tree = prefix_tree(rows.prompts, rows.responses, **options)
    if plan is None:
        return tree, None
    return tree, prefix_tree(rows.prompts, rows.responses, merge=plan, **options)


def _sum(before: Positions, tokens: int, positions: int) -> Positions:
    return Positions(before.tokens + tokens, before.positions + int(positions))


def _in_file(reason: str, first_row: int) -> str:
    """Return a reason with row numbers of the file, not of the chunk."""
    return re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + first_row}", reason)


def _one(rows: FileRows, row: int) -> FileRows:
    """Return a copy of one row."""

    def of(column: Any) -> Any:
        if isinstance(column, Ragged):
            return pick(column, np.array([row]))
        return None if column is None else column[row : row + 1]

    first, *columns = rows
    return type(rows)(first + row, *map(of, columns))


def _worst(rows: FileRows, why: str) -> Worst:
    """Return a row to be rendered: a long one without its middle."""
    lens = rows.prompts.lengths + rows.responses.lengths
    is_cut = int(lens[0]) > WORST_TOKENS
    if is_cut:
        half = WORST_TOKENS // 2
        rows = rows._replace(
            prompts=_last(rows.prompts, half),
            responses=_last(rows.responses, half),
            loss_mask=_last(rows.loss_mask, half),
            rewards=_last(rows.rewards, half),
            logprobs=_last(rows.logprobs, half),
        )
    batch = build_batch(
        rows.prompts, rows.responses, pad_token_id=0, array_type="numpy", layout="jagged",
        **rows.fields,
    )  # fmt: skip
    return Worst(rows.first_row, why, batch, is_cut)


def _last(column: Any, count: int) -> Any:
    """Return the last tokens of a column of one row; values without tokens are unchanged."""
    if not isinstance(column, Ragged):
        return column
    values = column.values[-count:]
    return Ragged(values, [0, len(values)])
