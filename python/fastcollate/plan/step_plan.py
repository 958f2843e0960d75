"""The step plan: the rows of each mini-batch and rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate._fastcollate import SYNTHETIC_LENS
from fastcollate.common.arguments import check_index, suggests_names, tally
from fastcollate.common.arrays import describe, offsets_of, read_array
from fastcollate.common.caching import cached_property
from fastcollate.plan.costs import Costs
from fastcollate.plan.layout import Layout
from fastcollate.plan.layouts import LEFT, Packed, Tree, layout_of
from fastcollate.plan.shard import Shard, Widths, layout_defect
from fastcollate.plan.tables import Table, contradiction, not_valid
from fastcollate.plan.tree_plan import TreePlan
from fastcollate.rows.lengths import Integers

if TYPE_CHECKING:
    from fastcollate.plan.audit_report import Audit
    from fastcollate.plan.forecast import Forecast, Sync
    from fastcollate.plan.merging import MergePlan
    from fastcollate.rows.fields import Field, Rows


@dataclass(frozen=True, eq=False)
class StepPlan(Table):
    """The rows of each mini-batch and data-parallel rank.

    Made by :func:`fastcollate.plan_step`. It holds no tokens, can be pickled, and is written as
    JSON by ``to_dict``. A *slot* is the position of a written row, real or padding: slots are
    ordered by mini-batch, then rank, then position. Every rank of a mini-batch has the same number
    of slots. Two plans are equal if all their values are.

    Parameters
    ----------
    rows
        The row of the step in each slot, int64 (slots,); -1 for a synthetic row. For a copied row,
        which is padding, the original row.
    is_padding
        True for padding slots, bool (slots,).
    mini_batch_offsets
        Start of each mini-batch in slots, int64 (mini-batches + 1,), with the number of slots last.
    dp_size
        Number of data-parallel ranks.
    row_lengths
        Prompt and response tokens of the step's rows, int64 (rows, 2).
    prompt_offsets
        Start of each prompt group in rows of the step, int64 (prompts + 1,). Without uids, every
        row is a group.
    mini_batch_prompts
        The first prompt that begins in each mini-batch, int64 (mini-batches + 1,), with the number
        of prompts last.
    has_only_totals
        True if only total row lengths were known. `row_lengths` then has no prompt tokens.
    bin_offsets
        If rows are packed, start of each bin in slots, int64 (bins + 1,). Slots are then ordered by
        bin within ranks, and every rank of a mini-batch has the same number of bins, not of rows.
    layout
        The layout of all batches of the step, if it was planned with one.
    shared
        If bins are trees, the number of tokens that the row in each slot shares with the one before
        it in its bin, int64 (slots,).

    Raises
    ------
    ValueError
        The tables are inconsistent: a row is not in exactly one slot, ranks have different numbers
        of rows, or offsets do not fit.
    """

    _what: ClassVar[str] = "step plan"

    rows: Integers
    is_padding: NDArray[np.bool_]
    mini_batch_offsets: Integers
    dp_size: int
    row_lengths: Integers
    prompt_offsets: Integers
    mini_batch_prompts: Integers
    has_only_totals: bool = False
    bin_offsets: Integers | None = None
    layout: Layout | None = None
    shared: Integers | None = None

    def _defect(self) -> str | None:
        if self.row_lengths.ndim != 2 or self.row_lengths.shape[1] != 2:
            return f"row_lengths has shape {self.row_lengths.shape}, but must be of shape (rows, 2)"
        if (self.row_lengths < 0).any():
            row, column = np.argwhere(self.row_lengths < 0)[0].tolist()
            found = self.row_lengths[row, column]
            return f"row_lengths[{row}, {column}] is {found}, but must be 0 or more"
        if not 1 <= self.dp_size < 1 << 62:
            return f"dp_size is {self.dp_size}, but must be from 1 to 2**62 - 1"
        if (reason := layout_defect(self.layout, self.bin_offsets, self.shared)) is not None:
            return reason
        columns = ("rows", "is_padding", "mini_batch_offsets", "prompt_offsets")
        for name in (*columns, "mini_batch_prompts", "bin_offsets", "shared"):
            column = getattr(self, name)
            if column is not None and column.ndim != 1:
                return f"{name} has shape {column.shape}, but must have one dimension"
        reason = _fastcollate.step_defect(
            self.rows,
            self.is_padding,
            self.mini_batch_offsets,
            self.dp_size,
            len(self.row_lengths),
            self.prompt_offsets,
            self.mini_batch_prompts,
            self.bin_offsets,
        )
        bins = self.bin_offsets
        if reason is None and self.shared is not None and bins is not None:
            lengths = self.row_totals[self.rows]
            reason = _fastcollate.shared_defect(self.shared, lengths, self.is_padding, bins)
        return reason

    @property
    def num_mini_batches(self) -> int:
        """Number of mini-batches, i.e. optimizer steps."""
        return len(self.mini_batch_offsets) - 1

    @property
    def num_rows(self) -> int:
        """Number of written rows, padding included."""
        return len(self.rows)

    @property
    def num_real_rows(self) -> int:
        """Number of rows of the step, without padding."""
        return len(self.row_lengths)

    @property
    def num_prompts(self) -> int:
        """Number of prompt groups."""
        return len(self.prompt_offsets) - 1

    @property
    def mini_batches(self) -> list[tuple[int, int]]:
        """First row of each mini-batch and one past its last, without padding."""
        return list(pairwise(self._row_offsets.tolist()))

    @property
    def padding_rows(self) -> Integers:
        """Slots that are padding, int64 (padding rows,)."""
        return np.flatnonzero(self.is_padding)

    @property
    def inverse(self) -> Integers:
        """The slot of each row, int64 (rows of the step,).

        ``results[plan.inverse]`` reorders results of all shards, concatenated in slot order, to
        the order of the step's rows, without padding.
        """
        inverse = np.empty(self.num_real_rows, np.int64)
        slots = np.flatnonzero(~self.is_padding)
        inverse[self.rows[slots]] = slots
        return inverse

    @cached_property
    def widths(self) -> Widths:
        """Tokens of the step's longest prompt, response and row, synthetic rows included.

        If only total row lengths were known, prompt and response are 0, or belong to synthetic
        rows.
        """
        lengths, synthetic = self.row_lengths, (self.rows < 0).any()
        if synthetic:
            lengths = np.concatenate([lengths, [SYNTHETIC_LENS]])
        prompt, response = lengths.max(0, initial=0).tolist()
        longest = int((lengths[:, 0] + lengths[:, 1]).max(initial=0))
        if self.has_only_totals:
            prompt, response = SYNTHETIC_LENS if synthetic else (0, 0)
        return prompt, response, longest

    @property
    def added_tokens(self) -> Integers:
        """Tokens of each slot's row, int64 (slots,); in trees, without shared tokens."""
        tokens: Integers = self.row_totals[self.rows]
        return tokens if self.shared is None else tokens - self.shared

    @property
    def tokens_per_rank(self) -> Integers:
        """Tokens of each rank, padding rows included, int64 (mini-batches, dp_size).

        Tokens shared by rows of a bin count once.
        """
        running = offsets_of(self.added_tokens)
        tokens: Integers = np.diff(running[self._rank_offsets], axis=1)
        return tokens

    @cached_property
    def bin_width(self) -> int:
        """Width of the widest bin in positions; 0 if rows are not packed."""
        if self.bin_offsets is None:
            return 0
        assert isinstance(self.layout, (Packed, Tree))
        multiple = self.layout.multiple_of
        tokens, ends = self.added_tokens, self.bin_offsets
        if self.shared is not None:
            # Widths are rounded up per tree, not per row.
            trees = np.flatnonzero(self.shared == 0)
            tokens = np.add.reduceat(tokens, trees)
            ends = np.searchsorted(trees, ends)
        places = -(-tokens // multiple) * multiple
        return int(np.diff(offsets_of(places)[ends]).max(initial=0))

    @property
    def written_width(self) -> int | None:
        """Width of the step's output rows in positions; None if rows lie end to end.

        Without a layout, rows count as padded to the longest.
        """
        layout: Any = LEFT if self.layout is None else self.layout
        has_bins = self.bin_offsets is not None
        if layout.name == "jagged" or (layout.name == "packed" and not has_bins):
            return None
        prompt, response, longest = self.widths
        parts: list[int] = [self.bin_width if has_bins else longest]
        if layout.name == "two_segment" and not self.has_only_totals:
            parts = [layout.pad_prompt_to or prompt, layout.pad_response_to or response]
        is_binned = isinstance(layout, (Packed, Tree))
        multiple: int = layout.width_multiple if is_binned else layout.multiple_of
        least: int = getattr(layout, "pad_to", None) or 0
        return max(least, sum(-(-part // multiple) * multiple for part in parts))

    @suggests_names
    def shard(self, mini_batch: int, rank: int) -> Shard:
        """Return a rank's shard of a mini-batch.

        Raises
        ------
        IndexError
            There is no such mini-batch or rank; both are numbered from 0.
        """
        of = "of shard(mini_batch, rank)"
        mini_batch = check_index(f"mini_batch {of}", mini_batch, self.num_mini_batches)
        rank = check_index(f"rank {of}", rank, self.dp_size)
        begin = int(self.mini_batch_offsets[mini_batch])
        start, end = self._rank_offsets[mini_batch, rank : rank + 2].tolist()
        bins = self.bin_offsets
        if bins is not None:
            first, last = np.searchsorted(bins, [start, end])
            bins = bins[first : last + 1] - start
        rows = self.rows[start:end]
        return Shard._trusted(
            rows=rows,
            is_padding=self.is_padding[start:end],
            num_rows=self.num_real_rows,
            widths=self.widths,
            first_pad=int(np.count_nonzero(self.is_padding[begin:start])),
            lengths=self.row_totals[rows],
            bin_offsets=bins,
            bin_width=self.bin_width,
            layout=self.layout,
            shared=None if self.shared is None else self.shared[start:end],
            is_narrow=False,
            prompt_lengths=None if (lens := self._row_prompts) is None else lens[rows],
        )

    def shards(self) -> list[list[Shard]]:
        """Return the shards of all ranks, by mini-batch: ``shards[mini_batch][rank]``."""
        ranks = range(self.dp_size)
        return [
            [self.shard(index, rank) for rank in ranks] for index in range(self.num_mini_batches)
        ]

    @suggests_names
    def audit(
        self,
        batches: Iterable[Mapping[str, Any] | Shard | Sequence[Mapping[str, Any] | Shard]],
        prompts: Rows | None = None,
        responses: Rows | None = None,
        *,
        sequences: Rows | None = None,
        prompt_lens: Any | None = None,
        loss_mask: Rows | Field | None = None,
        merge: MergePlan | None = None,
    ) -> Audit:
        """Check that every sampled token of every turn is trained exactly once.

        Untrained tokens are counted by reason: masked, merged away, cut. Anything else is a
        finding, with turn, position, rank, output row and column.

        Parameters
        ----------
        batches
            The batches of all ranks, ordered by mini-batch, then rank:
            ``[build(plan.shard(m, r)) for m in ... for r in ...]``. An item may be a list of the
            batches of a rank's micro-batches. Shards, as received by their ranks, can be passed
            instead of batches.
        prompts, responses, sequences, prompt_lens
            The turns, as passed to ``build_batch``. Without them, masks, labels, padding and
            positions are checked, but not token ids.
        loss_mask
            The turns' loss mask, if any. Without it, tokens count as masked where the loss mask of
            their batch is 0.
        merge
            For shards, the plan that merged turns into rows. Batches hold their own.

        Returns
        -------
        Audit

        Raises
        ------
        ValueError
            The number of batches differs from the ranks of all mini-batches, or batches or turns
            are of another step.
        TypeError
            An item is neither a batch nor a shard.
        MissingPlanError
            A batch was made from a mapping.

        Notes
        -----
        Time is linear in tokens: each is read once per output. Batches on a device are copied to
        the host.

        Examples
        --------
        >>> plan = fc.plan_step([[2, 2, 2], [3, 4, 5]], dp_size=2)
        >>> shards = [plan.shard(0, rank) for rank in range(2)]
        >>> plan.audit(shards)
        Audit passed: 12 sampled tokens of 3 turns: 12 trained
        >>> finding = plan.audit([shards[0], shards[0]]).findings[-1]
        >>> finding.reason, finding.turn
        ('missing', 2)
        """
        from fastcollate.inspect.auditing import audit_step

        turns = prompts, responses, sequences, prompt_lens, loss_mask
        return audit_step(self, batches, turns, merge)

    @suggests_names
    def forecast(
        self,
        costs: Costs,
        sync: Sync = "step",
        *,
        micro_batches: int | None = None,
        computes_padding: bool = True,
        tree: TreePlan | None = None,
    ) -> Forecast:
        """Predict the compute and idle time of each rank in each mini-batch.

        Parameters
        ----------
        costs
            Cost of bins: from measurements with :meth:`Costs.fit`, or from a model's configuration
            with :meth:`Costs.from_config`.
        sync
            Synchronization of ranks. ``"step"``: once per mini-batch, as with DDP;
            ``"micro_batch"``: after every micro-batch, as with FSDP and expert parallelism; the
            time is then the sum over the slowest micro-batches.
        micro_batches
            Number of micro-batches of a rank's rows in a mini-batch, one by default. If packed,
            each bin is a micro-batch.
        computes_padding
            True if padding takes as long as other tokens. Bins then have the width of the step's
            widest; padded rows attend to all positions before, padding included, and without a
            layout they are padded to the longest of the step. False for models that skip padding.
        tree
            The tree plan of the step's rows, to count duplicated tokens.

        Returns
        -------
        Forecast

        Raises
        ------
        TypeError, ValueError
            `costs` are not :class:`Costs`; `sync` is unknown; there are more micro-batches than
            rows; or ``micro_batches`` is given for packed rows.

        Examples
        --------
        >>> plan = fc.plan_step([8, 2, 2, 4], dp_size=2, layout="jagged", shard_by="strided")
        >>> plan.forecast(fc.planning.Costs(per_token=1.0))
        Forecast: 1 mini-batch in 10, of which ranks wait 20.0%; no plan takes less than 8
        """
        from fastcollate.inspect.forecasting import forecast_step

        return forecast_step(self, costs, sync, micro_batches, computes_padding, tree)

    def describe(self) -> str:
        """Return a table of the mini-batches.

        Rows exclude padding; tokens per rank include it. The imbalance is the maximum over ranks
        divided by the mean. Ranks with only padding rows are counted below the table.
        """
        from fastcollate.inspect.step_table import step_lines

        return "\n".join((repr(self), *step_lines(self)))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-compatible dict of lists and numbers.

        Returns
        -------
        dict
            The parameters by name; `row_lengths` as one list, with two numbers per row.
        """
        layout = None if self.layout is None else self.layout.to_dict()
        named = {**self._named(), "layout": layout}
        # A list for each row would be work for the garbage collector.
        arrays = {
            name: one.reshape(-1).tolist()
            for name, one in named.items()
            if isinstance(one, np.ndarray)
        }
        return named | arrays

    @classmethod
    @suggests_names
    def from_dict(cls, tables: Mapping[str, Any]) -> StepPlan:
        """Return the plan that ``to_dict`` wrote.

        Raises
        ------
        ValueError
            `tables` do not belong to a step plan.
        """
        if not isinstance(tables, Mapping):
            raise TypeError(f"tables is {describe(tables)}; pass the dict that to_dict returned")
        for name in sorted({*cls._names()} - {*tables}):
            raise contradiction("step plan", f"tables has no {name!r}")
        for key in {*tables} - {*cls._names()}:
            raise contradiction("step plan", f"tables has the unknown key {key!r}")
        read, name = dict(tables), "row_lengths"
        try:
            lengths = read_array(tables[name])
            read[name] = lengths.reshape(-1, 2) if lengths.ndim == 1 else lengths
            name = "layout"
            if tables[name] is not None:
                read[name] = layout_of(tables[name])
        except (TypeError, ValueError) as error:
            raise not_valid("step plan", f"{name} cannot be read: {error}") from error
        return cls(**read)

    def __repr__(self) -> str:
        mini_batches = tally(self.num_mini_batches, "mini-batch", "mini-batches")
        rows = tally(self.num_real_rows, "row")
        prompts, ranks = tally(self.num_prompts, "prompt"), tally(self.dp_size, "rank")
        padding = tally(len(self.padding_rows), "padding row")
        bins = self.bin_offsets
        packed = "" if bins is None else f", packed in {tally(len(bins) - 1, 'bin')}"
        return f"StepPlan: {rows} of {prompts} in {mini_batches} for {ranks}, and {padding}{packed}"

    @cached_property
    def row_totals(self) -> Integers:
        """Tokens of the step's rows and, last, of a synthetic row, whose index is -1."""
        return np.append(self.row_lengths.sum(1), sum(SYNTHETIC_LENS))

    @cached_property
    def _row_prompts(self) -> Integers | None:
        """Prompt tokens of the step's rows and, last, of a synthetic row, if they are known."""
        if self.has_only_totals:
            return None
        return np.append(self.row_lengths[:, 0], SYNTHETIC_LENS[0])

    @cached_property
    def _rank_offsets(self) -> Integers:
        """Offsets of ranks in slots, with the end of the last, (mini-batches, dp_size + 1)."""
        bins = self.bin_offsets
        # Ranks have the same number of units: slots, or bins.
        ends = self.mini_batch_offsets
        units = ends if bins is None else np.searchsorted(bins, ends).astype(np.int64)
        counts: Integers = np.diff(units) // self.dp_size
        found = units[:-1, None] + counts[:, None] * np.arange(self.dp_size + 1)
        offsets: Integers = found if bins is None else bins[found]
        return offsets

    @cached_property
    def _row_offsets(self) -> Integers:
        """Offsets of mini-batches in rows of the step."""
        real = offsets_of(~self.is_padding)
        return real[self.mini_batch_offsets]

    def _repr_html_(self) -> str:
        from fastcollate.inspect.markup import text_page

        return text_page(self.describe())
