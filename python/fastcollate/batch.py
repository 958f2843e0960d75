"""The batch: a mapping of tensors with the plan that they were built by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.batch_mapping import Array
from fastcollate.batch_model import ModelBatch
from fastcollate.common.arguments import check_bool, suggests_names, warn_user
from fastcollate.ops.context_parallel import cp_split
from fastcollate.ops.metrics import metrics_of
from fastcollate.ops.relayout import relayout
from fastcollate.ops.select import select_rows, select_shards
from fastcollate.ops.select_bins import select_bins
from fastcollate.plan.binned import split_message
from fastcollate.plan.layouts import LayoutArgument, check_layout
from fastcollate.plan.step_rows import StepRows
from fastcollate.plan.tables import check_step_plan
from fastcollate.rows.fields import reserves_keys

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastcollate.inspect.batch_view import BatchView
    from fastcollate.inspect.findings import Findings
    from fastcollate.ops.batch_state import BatchState
    from fastcollate.plan.dtypes import Preset
    from fastcollate.plan.shard import Shard
    from fastcollate.plan.step_plan import StepPlan


@reserves_keys
@suggests_names
class Batch(ModelBatch[Array]):
    """A read-only mapping from output names to arrays, with the plan that placed them.

    Keys are also attributes, and ``dict(batch)`` is the data. Models are called with
    :meth:`model_inputs`; the item ``attention_mask`` of packed and jagged rows and trees is an
    object whose use is an error.

    ==================================  ==========================================================
    For a model
    ----------------------------------------------------------------------------------------------
    `model_inputs`                      arguments of a transformers model, mask included
    `dense_mask`                        attention mask over all pairs of positions
    `block_mask`                        attention mask for FlexAttention
    `attention_paths`                   attention mask as offsets, for flash attention; trees too
    `attention_ranges`                  attention mask as spans of queries and keys
    `subtree_end`                       attention mask as one integer per position
    For a loss
    ----------------------------------------------------------------------------------------------
    `loss_positions`                    positions that the loss reads
    `targets`                           token of each response-aligned value
    `loss_normalizers`                  divisors for the losses of each mini-batch
    `normalize`                         advantages with mean 0 and standard deviation 1
    `broadcast`                         one value per row, written to its tokens
    To look at it, and back to rows
    ----------------------------------------------------------------------------------------------
    `show`, `check`, `metrics`          rows as text; likely mistakes; sizes for logging
    `gather`                            per-token outputs of a model, by row or turn
    `rows`                              the rows one by one, without padding
    Other batches
    ----------------------------------------------------------------------------------------------
    `select`, `shards`                  some rows, or the rows of one or all ranks
    `to_layout`                         the same rows in another layout
    `to`, `pin_memory`                  on a device; in pinned memory
    `pad_on_device`                     a jagged batch, padded on its device
    `cp_split`, `cp_merge`              context parallelism: a rank's part; outputs of all ranks
    What it holds
    ----------------------------------------------------------------------------------------------
    `prompt_lens`, `response_lens`      tokens of each row
    `uids`, `trajectory_ids`            ids of each row, as they were passed
    `is_last_step`, `is_padding`        flags of each row
    `plan`, `spec`                      places of the rows; options of the batch
    `bin_plan`, `merge_plan`            bins of packed rows; turns of merged rows
    ==================================  ==========================================================

    Batches compare by identity. For type checkers, ``Batch[torch.Tensor]`` has tensors and
    ``Batch[np.ndarray]`` arrays; attributes of your own keys, which may be lists, are ``Any``. All
    outputs share one allocation, which any one of them keeps alive: ``clone`` outputs that outlive
    the batch. The batch of a :class:`Collator` has the keys of :meth:`model_inputs`, since trainers
    pass all of them to the model; its other outputs are attributes only.

    Parameters
    ----------
    data
        The outputs, as any mapping: ``type(batch)({...})``, as in torch's ``default_collate``,
        gives a batch of the same keys. It has no plan: what needs one raises ``MissingPlanError``.
    """

    __slots__ = ()

    @property
    def metrics(self) -> dict[str, float]:
        """Sizes of the batch as a flat dict for logging. Padding rows count as padding.

        Returns
        -------
        dict
            - ``batch/rows``, and in layouts with bins ``batch/bins``.
            - ``batch/tokens``, of which ``batch/prompt_tokens`` and ``batch/response_tokens``.
            - ``batch/padded_tokens``, the positions of ``input_ids``, and
              ``batch/padding_fraction``, the share of them that is padding (0 to 1).
            - ``batch/longest_row``, ``batch/longest_prompt`` and ``batch/longest_response``, and
              the percentiles of these lengths, from ``batch/row_length_p50`` to
              ``batch/response_length_p99`` (50, 90 and 99).
            - ``batch/trained_tokens``: tokens whose loss mask is not 0;
              ``batch/rows_without_loss``: rows without trained tokens.
            - ``batch/tokens_without_predecessor``: sampled tokens at the start of a sequence, or of
              a part of a split one, which no token predicts; their loss mask is 0, and they have no
              label.
            - With log-probabilities ``batch/bad_logprobs``: those that are NaN, infinite or -9999.
            - ``batch/<key>_uncaptured_tokens``: tokens without indices of a captured field.
            - In trees ``batch/token_ratio``, the tokens of all rows divided by the tree's, and
              ``batch/path_keys``, the keys of :meth:`attention_paths`.
            - In merged batches :attr:`MergeReport.metrics`, such as
              ``generate/num_seq_before_merge``, of the whole step, also in a shard; and
              ``generate/num_rewards_masked_by_merge``: nonzero rewards on tokens that realigning
              masked. Rewards per token are lost there; one reward per turn whose last token is
              masked moves to the end of the row (``rewards="sum"``).
        """
        return metrics_of(self._state)

    def show(
        self,
        rows: int | slice | Iterable[int] | None = None,
        tokenizer: Any = None,
        fields: str | Iterable[str] = (),
        fold: int | None = 16,
    ) -> BatchView:
        """Show rows as text, with prompt, trained, masked and padding tokens marked.

        Parameters
        ----------
        rows
            Indices of rows, as in ``prompt_lens``; None for the first few. Packed batches show the
            bins of these rows without the other sequences.
        tokenizer
            Decodes ids to text: an object with ``decode(list_of_ids)``, such as a Hugging Face
            tokenizer, or a function. None shows ids. Ids outside its vocabulary are marked.
        fields
            Outputs whose values are shown below the tokens, such as ``["rewards", "logprobs"]``;
            values per row are shown in the title of the row.
        fold
            Number of tokens shown at the beginning and end of a long run of one kind; None for all.

        Returns
        -------
        BatchView
            Displayed at a prompt and in a notebook; elsewhere ``print`` it. ``str`` gives plain
            text, ``rich.print`` colours, and ``text(width)`` lines of the given width.

        Raises
        ------
        IndexError
            If there is no such row.
        ValueError
            If a field is not an output, or has no value per token or row.
        TypeError
            If `tokenizer` cannot decode, or does not return text.
        """
        from fastcollate.inspect.batch_view import BatchView

        return BatchView(self._state, rows, tokenizer, fields, fold)

    def check(self, vocab_size: int | None = None, eos_token_id: Any = None) -> Findings:
        """Look for probable mistakes in the batch. Padding rows are skipped.

        Parameters
        ----------
        vocab_size
            Number of token ids; if None, ids are only checked to be 0 or more.
        eos_token_id
            The id or ids that end a response; None skips the checks of ends.

        Returns
        -------
        Findings
            A list, empty if nothing was found, which prints as a table, the worst first. Each
            finding has ``kind``, ``severity`` (``"error"``, or ``"warning"`` if it can be right),
            ``rows`` (int64, all rows that have it; none if it concerns the whole batch),
            ``positions`` (int64, the first such token of each row, prompt included, or None),
            ``reasons`` (of the first three rows) and ``advice``. The kinds, explained in the guide
            "Inspecting a batch", are the errors ``padded_row``, ``repeated_prompt``,
            ``all_masked``, ``labels_as_mask``, ``negative_mask``, ``trains_padding``,
            ``trains_first_token``, ``nan``, ``positive_logprob``, ``infinite_logprob``,
            ``zero_logprobs``, ``outside_vocabulary``, ``untrained_reward`` and ``repeated_end``;
            and the warnings ``shifted_logprobs``, ``weighted_labels``, ``trains_nothing``,
            ``cut_off``, ``duplicate`` and ``padding``.

        Raises
        ------
        TypeError, ValueError
            If `vocab_size` is not a count, or `eos_token_id` is not an id.
        """
        from fastcollate.inspect.check import check

        return check(self._state, vocab_size, eos_token_id)

    def to_layout(
        self,
        layout: LayoutArgument,
    ) -> Self:
        """Convert the batch to another layout.

        Converting back to the original layout gives the same outputs bit for bit, or is an error.

        Parameters
        ----------
        layout
            As :func:`fastcollate.build_batch`.

        Returns
        -------
        Batch
            In its own memory, on the host.

        Raises
        ------
        ValueError
            Invalid options; a packed batch that has no place for a value, or only one for each part
            of a split row.
        """
        again = self._copy(relayout(self._state, check_layout(layout).spec))
        if (message := split_message(again.plan)) is not None:
            warn_user(message)
        return again

    def to(self, device: Any, non_blocking: bool = False) -> Self:
        """Copy the batch to a device: all outputs at once, as they share one allocation.

        Parameters
        ----------
        device
            Such as ``"cuda"``, ``"cuda:1"``, a ``torch.device`` or ``"cpu"``.
        non_blocking
            Return before the copy is done, if the batch is pinned (``build_batch(pool="pinned")``
            or :meth:`pin_memory`). The device's streams keep the order; on the host, the batch must
            not change until the copy is done (``FASTCOLLATE_DEBUG=1`` checks this). A copy to the
            host is complete on return.

        Returns
        -------
        Batch
            With the plan and ids of this one. On the device the outputs share one storage, but each
            has its own version counter. This batch, if all of it is already there.

        Raises
        ------
        TypeError
            If the outputs are NumPy arrays, or `non_blocking` is not a bool (dtypes cannot be
            changed here).
        """
        check_bool("non_blocking", non_blocking)
        from fastcollate.device.to_device import move

        return self._with(move(self._state, device, non_blocking))

    def pin_memory(self) -> Self:
        """Copy the batch to pinned memory, if it is not there yet.

        Called by ``DataLoader(pin_memory=True)``. Without workers, or if the batch is built in the
        training process, ``build_batch(pool="pinned")`` saves the copy.

        Returns
        -------
        Batch
            With the plan and ids of this one; this one if memory cannot be pinned (one warning).

        Raises
        ------
        TypeError
            If the outputs are NumPy arrays.
        """
        from fastcollate.device.to_device import pin

        return self._with(pin(self._state))

    def select(
        self,
        shard: Shard | None = None,
        *,
        rows: Sequence[int] | None = None,
        bins: Sequence[int] | None = None,
    ) -> Self:
        """Select some rows, the rows of a shard with its padding rows, or some bins of a tree.

        Parameters
        ----------
        shard
            A shard of a plan that :func:`fastcollate.plan_step` made of this batch.
        rows
            Instead of a shard, the indices of rows, in the order of the result, each once. Padding
            rows stay padding rows.
        bins
            Instead of a shard, the indices of a tree's bins, in the order of the result. Rows of
            these bins keep their order; ``predictors`` index the positions of the new batch.

        Returns
        -------
        Batch
            In the layout of this batch, and as wide. Views of its outputs if the rows are
            consecutive and the shard adds no padding; else a copy: of rows on the host, of bins on
            the device of this batch. Packed rows stay in their bins, in the order of this batch,
            and bins without selected rows are left out; :meth:`to_layout` packs them again.

        Raises
        ------
        ValueError
            The plan was made for another batch, or with a layout that arranges these rows
            differently; a shard of a batch with bins; rows of a tree, or of a packed batch that
            split them; rows or bins that do not exist or are given twice, or none at all; bins of
            another layout than a tree.
        TypeError
            None or several of the arguments are given, or one has the wrong type.
        """
        arguments = {"shard": shard, "rows": rows, "bins": bins}
        given = [name for name, value in arguments.items() if value is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "shard, rows and bins are None"
            raise TypeError(f"{found}; pass one of shard, rows and bins")
        if rows is not None:
            state = select_rows(self._state, rows)
        elif bins is not None:
            state = select_bins(self._state, bins)
        else:
            state = select_shards(self._state, [shard])[0]
        return self._copy(state)

    def shards(self, plan: StepPlan) -> list[list[Self]]:
        """Select the shards of all ranks, by mini-batch, in one call.

        Parameters
        ----------
        plan
            A plan that :func:`fastcollate.plan_step` made of this batch.

        Returns
        -------
        list[list[Batch]]
            ``shards[mini_batch][rank]``: what :meth:`select` returns of each shard, in less time.
            Copies are in one allocation, which any one of them keeps alive.

        Raises
        ------
        ValueError, TypeError
            As :meth:`select`, for a shard; or ``plan`` is not a step plan.
        """
        check_step_plan(plan)
        of_ranks = plan.shards()
        shards = iter(self._select([*chain.from_iterable(of_ranks)]))
        return [[next(shards) for _ in ranks] for ranks in of_ranks]

    def _select(self, shards: Sequence[Shard]) -> list[Self]:
        return [self._copy(state) for state in select_shards(self._state, shards)]

    def cp_split(self, cp_size: int, cp_rank: int) -> Self:
        """Return one context-parallel rank's part of a packed batch.

        ``build_batch(cp=(cp_size, cp_rank))`` writes only this part. Each padded sequence, and the
        padding at the end of a row, is cut into ``2 * cp_size`` chunks of equal length:
        `multiple_of` of the layout is divisible by ``2 * cp_size``. Rank r gets chunks r and ``2 *
        cp_size - 1 - r``, which balances causal attention between ranks. With
        ``shift="next_token"`` every position holds the values of the token that it predicts, so
        that no rank needs another rank's values.

        Parameters
        ----------
        cp_size
            Number of ranks that share a sequence; with 1 the batch is not cut.
        cp_rank
            Index of the rank.

        Returns
        -------
        Batch
            The same keys. Outputs with a value per position, (N, W, ...), become (N, W / cp_size,
            ...): the rank's two chunks of each padded sequence, in order. Others are unchanged,
            including the boundaries of whole sequences, which kernels need. The plan is that of the
            whole batch: merge results by :meth:`cp_merge`, then ``gather`` them. Methods that read
            all values, such as ``to_layout`` and ``normalize``, need the whole batch.

        Raises
        ------
        ValueError
            Another layout; a padded sequence that cannot be cut into chunks; a size below 1, or an
            invalid rank; a batch that is a part already; labels that are aligned.
        TypeError
            A size or rank that is not an integer.

        Notes
        -----
        The chunks follow Megatron-LM's and Transformer Engine's load balancing
        (``thd_get_partitioned_indices`` of ``cu_seqlens_padded``).

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[1, 2], [5]], [[3, 4], [6]], pad_token_id=0, array_type="numpy",
        ...     layout=fc.Packed.single_row(multiple_of=4),
        ... )
        >>> batch.input_ids
        array([[1, 2, 3, 4, 5, 6, 0, 0]])
        >>> batch.cp_split(2, 0).input_ids
        array([[1, 4, 5, 0]])
        >>> batch.cp_split(2, 1).input_ids
        array([[2, 3, 6, 0]])
        """
        return self._copy(cp_split(self._state, cp_size, cp_rank))

    def pad_on_device(
        self,
        layout: LayoutArgument | None = None,
        *,
        dtypes: Preset | Mapping[str, Any] = "default",
    ) -> Self:
        """Pad a jagged batch of tensors on its device, or widen the dtypes of a compact one.

        With ``dtypes="compact"``, padding and masks of a jagged batch do not cross the bus.

        Parameters
        ----------
        layout
            The target layout, :class:`Left`, :class:`Right` or :class:`TwoSegment`, or its name;
            None if the batch is padded already. Widths that are not fixed come from these rows: for
            a shard that was built jagged, fix the widths of its step.
        dtypes
            As in :func:`build_batch`: a preset for the outputs that are not fields, or dtypes by
            key.

        Returns
        -------
        Batch
            The same values, dtypes and shapes as :func:`build_batch` would have written with these
            options, on the device of this batch. Fields keep their dtypes, unless `dtypes` names
            them.

        Raises
        ------
        ValueError
            The batch is neither jagged nor of that layout, a row is wider than fixed widths, or a
            dtype is invalid.
        TypeError
            The outputs are NumPy arrays.

        Notes
        -----
        Takes a few torch operations per output and one small copy of the row offsets, without
        synchronizing with the device.
        """
        from fastcollate.device.device_padding import pad_state

        return self._copy(pad_state(self._state, layout, dtypes))

    def _step_rows(self) -> StepRows:
        """Return the rows as input of a step plan."""
        if self.is_padding is not None and any(self.is_padding):
            raise ValueError(
                "rows is a Batch with padding rows, which a plan would take for real ones; pass "
                "the Batch without them"
            )
        merge = self.merge_plan
        if merge is not None and not np.array_equal(self.plan.sources, merge.sources):
            merge = None  # rows selected from a merged batch differ from the rows of its plan
        return StepRows(
            np.stack([self.plan.prompt_lens, self.plan.response_lens], 1),
            uids=self.uids,
            trajectory_ids=self.trajectory_ids,
            is_last_step=self.is_last_step,
            merge=merge,
        )

    def _with(self, state: BatchState) -> Self:
        """Return the batch of a state; this one, if it is its own."""
        return self if state is self._state else self._copy(state)
