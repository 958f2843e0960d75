"""Figures of a report, collected from chunks of rows: lengths are kept, tokens are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fastcollate.cli.reporting.advice import advice_on
from fastcollate.cli.reporting.findings import FileFindings, in_file
from fastcollate.cli.reporting.outcomes import Outcomes, RowRewards
from fastcollate.cli.reporting.wording import decimal
from fastcollate.cli.rows import FileRows, check_capacity
from fastcollate.inspect.batch_view import BatchView
from fastcollate.plan.costs import Costs
from fastcollate.plan.layouts import Packed, Tree
from fastcollate.plan.merge import Policy
from fastcollate.plan.merging import MergePlan
from fastcollate.plan.packing import pack
from fastcollate.plan.sharing import prefix_tree
from fastcollate.plan.stepping import plan_step
from fastcollate.rollouts.sources import ROW_PATHS
from fastcollate.rows.lengths import Integers

if TYPE_CHECKING:
    from fastcollate.batch import Batch
    from fastcollate.plan.breaks import Tokenizer
    from fastcollate.plan.step_plan import StepPlan
    from fastcollate.plan.tree_plan import TreePlan

COMPARED = ("num_rows", "tokens_after", "masked_tokens")
"""Figures by which policies of merging are compared."""

NEED_TOKENIZER = "pass --tokenizer"
"""The hint on breaks of ids alone."""

MOST_BREAKS = 300
"""Most breaks that are counted by reason, sampled evenly from all."""

VALUES = ("logprobs", "rewards", "loss_mask")
"""Outputs whose values are shown below the tokens of a row with a finding on them."""

MOST_TREES = 5
MOST_SHOWN = 12
"""Trajectories that are drawn, and rows with findings that are shown."""

SMALLEST_CAPACITY = 16_384


class ShownRow(NamedTuple):
    """A row to look at, of the file."""

    row: int
    why: str
    view: BatchView


class Summary(NamedTuple):
    """All figures of a report, and what its page draws."""

    figures: dict[str, Any]
    """As ``--json`` prints them."""
    lengths: dict[str, Integers]
    """Tokens of prompts, responses and rows; rows are merged ones, if trajectories are known."""
    rewards: NDArray[np.float64]
    """Of trajectories or else rows; empty if there are none."""
    group_means: NDArray[np.float64]
    """Mean rewards of prompts with several samples."""
    logprob_bars: NDArray[np.int64]
    """Tokens by log-probability, down from 0."""
    shown_rows: list[ShownRow]


class _Rows(NamedTuple):
    """The lengths of rows of a chunk, and the tokens that they share."""

    first: int
    """Number of rows before."""

    prompt_lens: Integers
    response_lens: Integers
    tree: TreePlan


class Collector:
    """Collects figures of rows chunk by chunk.

    Parameters
    ----------
    policy
        The merge policy for turns of trajectories; None to leave each turn a row.
    batch_rows
        Rows of a mini-batch.
    dp_size
        Number of ranks.
    capacity
        Tokens of a bin; None to choose one.
    costs
        Costs of rows; None for tokens.
    tokenizer, vocab_size, eos_token_ids
        Used to check and show token ids.
    """

    def __init__(
        self,
        *,
        policy: Policy | None,
        batch_rows: int,
        dp_size: int,
        capacity: int | None,
        costs: Costs | None,
        tokenizer: Tokenizer | None,
        vocab_size: int | None,
        eos_token_ids: Sequence[int] | None,
    ) -> None:
        self.policy, self.batch_rows, self.dp_size = policy, batch_rows, dp_size
        self.capacity, self.costs, self.tokenizer = capacity, costs, tokenizer
        self.vocab_size, self.eos_token_ids = vocab_size, eos_token_ids
        self._chunks: dict[str, list[_Rows]] = {"turns": [], "merged": []}
        self._trained, self._has_mask = 0, False
        self._outcomes = Outcomes()
        self._kinds: Counter[str] = Counter()
        self._hints: list[str] = []
        self._num_breaks, self._stride = 0, 1
        self._spread: Counter[int] = Counter()
        self._merged: Counter[str] = Counter()
        self._policies: dict[Policy, Counter[str]] = {one: Counter() for one in get_args(Policy)}
        self._uids: set[Any] = set()
        self._trajectories = 0
        self._trees: list[str] = []
        self._findings = FileFindings()
        self._num_shown: Counter[str] = Counter()
        self._shown: list[ShownRow] = []
        self._extremes: dict[str, tuple[float, ShownRow]] = {}

    def add(self, rows: FileRows) -> None:
        """Add rows of whole trajectories."""
        tokens = rows.calls.prompts, rows.calls.responses
        batch = rows.build()
        self._trained += int(batch.metrics["batch/trained_tokens"])
        self._has_mask |= "loss_mask" in rows.values
        of_row = rows.trajectories
        self._trajectories += 0 if of_row is None else int(of_row.max(initial=-1)) + 1
        rewards = self._outcomes.add(rows)
        self._uids.update(rows.ids.get("uids", ()))
        lens = tokens[0].lengths, tokens[1].lengths
        self._add_rows("turns", *lens, prefix_tree(*tokens))
        if self.policy is not None and of_row is not None:
            plan = rows.merge(self.policy, self.tokenizer)
            self._add_merge(plan, rows)
            tree = prefix_tree(*tokens, merge=plan)
            self._add_rows("merged", plan.prompt_lens, plan.response_lens, tree)
        self._check(batch, rows)
        self._show_extremes(batch, rows, lens[0] + lens[1], rewards)

    def _add_rows(
        self, of: str, prompt_lens: Integers, response_lens: Integers, tree: TreePlan
    ) -> None:
        chunks = self._chunks[of]
        first = chunks[-1].first + len(chunks[-1].prompt_lens) if chunks else 0
        chunks.append(_Rows(first, prompt_lens, response_lens, tree))

    def _add_merge(self, plan: MergePlan, rows: FileRows) -> None:
        """Add the report of merging, and what other policies would make of breaks."""
        report = plan.report
        for policy, found in self._policies.items():
            is_same = policy == self.policy or not report.breaks
            other = report if is_same else rows.merge(policy).report
            found.update({name: getattr(other, name) for name in COMPARED})
        names = ("num_trajectories", "num_turns", "num_rows", "tokens_before", "tokens_after")
        self._merged.update({name: getattr(report, name) for name in (*names, "masked_tokens")})
        self._kinds.update(dict(report.breaks.kinds))
        self._spread.update(report.rows_per_trajectory.tolist())
        unknown = NEED_TOKENIZER if self.tokenizer is None else "of no known kind"
        first = -self._num_breaks % self._stride
        self._hints += [broken.hint or unknown for broken in report.breaks[first :: self._stride]]
        self._num_breaks += len(report.breaks)
        while len(self._hints) > MOST_BREAKS:  # keep every second one
            self._hints, self._stride = self._hints[::2], 2 * self._stride
        if rows.first_row == 1:  # turns are the rows of the file
            most_broken = report.breaks.most_broken(MOST_TREES)
            self._trees = [report.tree(one).drawn(of_file=True) for one in most_broken]

    def _check(self, batch: Batch, rows: FileRows) -> None:
        """Add the findings of a chunk, and rows that have them."""
        first_row = rows.first_row
        is_filled = rows.missing_logprobs.any()  # then fillers would be found
        checked = rows.build(is_filled=True) if is_filled else batch
        in_batch = checked.check(self.vocab_size, self.eos_token_ids)
        for finding in self._findings.add(rows, in_batch):
            kind = finding.kind
            for row, reason in zip(finding.rows[:2].tolist(), finding.reasons, strict=False):
                is_known = any(one.row == row + first_row for one in self._shown)
                if is_known or len(self._shown) == MOST_SHOWN or self._num_shown[kind] == 2:
                    continue
                self._num_shown[kind] += 1
                why = f"{kind}: {in_file(reason, first_row)}"
                fields = [name for name in VALUES if name in reason and name in batch]
                self._shown.append(self._view(batch, rows, row, why, fields))

    def _show_extremes(
        self, batch: Batch, rows: FileRows, lens: Integers, rewards: RowRewards | None
    ) -> None:
        """Keep the longest row, and those with the lowest and the highest reward."""
        longest = int(lens.argmax())
        found = [("longest row", " tokens", longest, float(lens[longest]), 1)]
        if rewards is not None and np.isfinite(rewards.values).any():
            low, high = int(np.nanargmin(rewards.values)), int(np.nanargmax(rewards.values))
            for name, at, sign in (("lowest reward", low, -1), ("highest reward", high, 1)):
                found.append((name, "", int(rewards.rows[at]), rewards.values[at], sign))
        for name, unit, row, value, sign in found:
            if name not in self._extremes or sign * value > self._extremes[name][0]:
                why = f"{name}: {decimal(value)}{unit}"
                self._extremes[name] = sign * value, self._view(batch, rows, row, why)

    def _view(
        self, batch: Batch, rows: FileRows, row: int, why: str, fields: Sequence[str] = ()
    ) -> ShownRow:
        number = row + rows.first_row
        names = {row: rows.title(row, f"row {number:,}")}
        view = BatchView(batch._state, row, self.tokenizer, fields, names=names)
        return ShownRow(number, why, view)

    def close(self, name: str, source: str, unread: Sequence[str] = ()) -> Summary:
        """Return the summary of all rows of a file, with the columns that were not read.

        Raises
        ------
        ValueError
            If a row exceeds the capacity, or rows cannot be sharded.
        """
        lens = {
            of: [np.concatenate(column) for column in list(zip(*chunks, strict=True))[1:3]]
            for of, chunks in self._chunks.items()
            if chunks
        }
        prompt_lens, response_lens = lens["turns"]
        row_lens = np.add(*lens.get("merged", lens["turns"]))
        longest = int((prompt_lens + response_lens).max())  # a merged row is a last turn
        capacity = self.capacity or max(SMALLEST_CAPACITY, 1 << max(longest - 1, 1).bit_length())
        check_capacity(prompt_lens + response_lens, range(1, len(prompt_lens) + 1), capacity)
        lengths = {"prompts": prompt_lens, "responses": response_lens, "rows": row_lens}
        loads, packed = self._loads(row_lens, capacity)
        shown = self._rows_to_look_at()
        figures = {
            "name": name,
            "source": source,
            "turns": len(prompt_lens),
            "prompts": len(self._uids) or None,
            "copies": self._findings.num_copies,
            "trajectories": self._trajectories or None,
            "prompt_tokens": int(prompt_lens.sum()),
            "response_tokens": int(response_lens.sum()),
            "trained_tokens": self._trained,
            "all_train": not self._has_mask and not prompt_lens.any(),
            "longest_responses": int((response_lens == response_lens.max()).sum()),
            "eos_token_ids": self.eos_token_ids,
            **self._outcomes.figures(),
            "lengths": {of: _spread(values) for of, values in lengths.items()},
            "batch_rows": self.batch_rows,
            "capacity": capacity,
            "layouts": {
                of: self._layouts(self._chunks[of], *values, capacity=capacity)
                for of, values in lens.items()
            },
            "merging": self._merging() if "merged" in lens else None,
            "bins": _bins(packed),
            "ranks": {
                "number": self.dp_size,
                "rows": len(row_lens),
                "cost": "tokens" if self.costs is None else repr(self.costs),
                "mini_batches": packed.num_mini_batches,
                "loads": loads,
            },
            "shown_rows": [{"row": one.row, "why": one.why} for one in shown],
        }
        # The first value of a column that is read may be null.
        names = ((one, ROW_PATHS.get(one.partition(" ")[0], "")) for one in unread)
        figures["unread"] = [one for one, name in names if figures.get(name) is None]
        figures["findings"] = self._findings.all(
            figures["rewards"], figures["merging"], figures["unread"]
        )
        figures["advice"] = [one.text for one in advice_on(figures)]
        outcomes = self._outcomes
        return Summary(
            figures,
            lengths,
            outcomes.rewards(),
            outcomes.group_means(),
            outcomes.logprob_bars,
            shown,
        )

    def _rows_to_look_at(self) -> list[ShownRow]:
        """Return rows with findings, and the extreme ones, each once."""
        lowest, highest = (self._extremes.get(f"{one} reward") for one in ("lowest", "highest"))
        if lowest is not None and highest is not None and -lowest[0] == highest[0]:
            del self._extremes["lowest reward"], self._extremes["highest reward"]
        shown = {one.row: one for one in self._shown}
        for _, one in self._extremes.values():
            same = shown.get(one.row)
            why = one.why if same is None else f"{same.why}; {one.why}"
            shown[one.row] = (same or one)._replace(why=why)
        return list(shown.values())

    def _merging(self) -> dict[str, Any]:
        """Return the results of merging."""
        return {
            "policy": self.policy,
            **self._merged,
            "policies": {policy: dict(found) for policy, found in self._policies.items()},
            "kinds": dict(self._kinds.most_common()),
            "hints": dict(Counter(self._hints).most_common()),
            "num_looked_at": len(self._hints),
            "rows_per_trajectory": dict(sorted(self._spread.items())),
            "trees": self._trees,
        }

    def _layouts(
        self,
        chunks: Sequence[_Rows],
        prompt_lens: Integers,
        response_lens: Integers,
        *,
        capacity: int,
    ) -> dict[str, dict[str, Any]]:
        """Count tokens and positions of each layout, in batches of contiguous rows."""
        lens = prompt_lens + response_lens
        starts = np.arange(0, len(lens), self.batch_rows)
        counts = np.diff(np.append(starts, len(lens)))
        tokens = int(lens.sum())

        def padded(*columns: Integers) -> tuple[int, int]:
            widths = sum(np.maximum.reduceat(column, starts) for column in columns)
            return tokens, int((counts * widths).sum())

        batches = np.split(lens, starts[1:])
        packed = [pack(one, Packed(capacity)).loads for one in batches]
        shared = [
            one.tree.select(part).pack(Tree(capacity)).loads
            for one in chunks
            for part in self._batches(one)
        ]
        found = {
            "left, right": padded(lens),
            "two_segment": padded(prompt_lens, response_lens),
            "jagged": (tokens, tokens),
        }
        for name, loads in (("packed", packed), ("tree", shared)):
            positions = sum(len(one) * int(one.max()) for one in loads if len(one))
            found[name] = sum(int(one.sum()) for one in loads), positions
        return {
            name: {
                "tokens": filled,
                "positions": positions,
                "padding": 1 - filled / positions if positions else 0.0,
            }
            for name, (filled, positions) in found.items()
        }

    def _batches(self, chunk: _Rows) -> list[Integers]:
        """Return the rows of each batch that lie in a chunk."""
        rows = np.arange(len(chunk.prompt_lens))
        return np.split(rows, np.flatnonzero((rows[1:] + chunk.first) % self.batch_rows == 0) + 1)

    def _loads(self, lens: Integers, capacity: int) -> tuple[list[dict[str, Any]], StepPlan]:
        """Shard rows in several ways: the load of each rank, and the idle share of their time.

        Also return the packed plan, which is the last.
        """
        costs = self.costs or Costs(per_token=1.0)
        rows = min(self.batch_rows, len(lens))
        loads = []
        balanced = {"shard_by": "tokens" if self.costs is None else self.costs}
        layout = {"layout": Packed(capacity)}
        for name, options in (
            ("in order", {}),
            ("balanced", balanced),
            (f"packed at {capacity:,}", balanced | layout),
        ):
            plan = plan_step(
                lens, rows_per_mini_batch=rows, dp_size=self.dp_size, allow_partial=True, **options
            )
            times = plan.forecast(costs, computes_padding=False)
            per_rank = times.rank_times.sum(0).tolist()
            loads.append({"name": name, "per_rank": per_rank, "idle": times.idle})
        return loads, plan


def _bins(plan: StepPlan) -> dict[str, Any]:
    """Return the number of bins of a step, all as wide as the fullest, and their padding."""
    assert plan.bin_offsets is not None
    number, tokens = len(plan.bin_offsets) - 1, int(plan.added_tokens.sum())
    padding = 1 - tokens / (number * plan.bin_width) if tokens else 0.0
    return {"number": number, "width": plan.bin_width, "padding": padding}


def _spread(lens: Integers) -> dict[str, float]:
    middle, most = np.percentile(lens, [50, 95]).tolist()
    return {"median": middle, "p95": most, "longest": int(lens.max())}
