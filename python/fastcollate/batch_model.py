"""What a model is called with, and what becomes of its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from fastcollate.batch_mapping import Array, BatchMapping
from fastcollate.common.arrays import check_array, read_array
from fastcollate.ops.attention import (
    AttentionPaths,
    AttentionRanges,
    attention_paths,
    attention_ranges,
    block_mask,
    dense_mask,
)
from fastcollate.ops.batch_state import missing_plan
from fastcollate.ops.context_parallel import cp_merge
from fastcollate.ops.gather import broadcast, gather
from fastcollate.ops.loss_positions import LossPositions, loss_positions
from fastcollate.ops.masks import Kernel
from fastcollate.ops.model_inputs import model_inputs
from fastcollate.ops.normalize import LossNormalizers, loss_normalizers, normalize
from fastcollate.ops.row_views import row_views
from fastcollate.plan.layouts import Shift

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from fastcollate._fastcollate import Plan
    from fastcollate.plan.step_plan import StepPlan
    from fastcollate.rows.columns import Ragged


class ModelBatch(BatchMapping[Array]):
    """The operations of :class:`fastcollate.Batch` before and after a model."""

    __slots__ = ()

    @overload
    def gather(
        self, x: Ragged, align: Literal["response", "sequence"] | None = None,
        shift: Shift | None = None, missing: None = None,
        per: Literal["row", "turn"] = "row", gaps: bool = True,
    ) -> tuple[Ragged, Ragged]: ...  # fmt: skip
    @overload
    def gather(
        self, x: Any, align: Literal["response", "sequence"] | None = None,
        shift: Shift | None = None, missing: float | None = None,
        per: Literal["row", "turn"] = "row", gaps: bool = True,
    ) -> Ragged: ...  # fmt: skip
    def gather(
        self,
        x: Any,
        align: Literal["response", "sequence"] | None = None,
        shift: Shift | None = None,
        missing: float | None = None,
        per: Literal["row", "turn"] = "row",
        gaps: bool = True,
    ) -> Ragged | tuple[Ragged, Ragged]:
        """Gather the values of all response tokens from a model's per-token outputs.

        Parameters
        ----------
        x
            An array or tensor, on any device; trailing dimensions are kept. A tensor's gradients
            flow through. In a tree, a position that several tokens follow has one value for all: it
            warns, as log-probabilities need :meth:`loss_positions`. A :class:`Ragged` has a list
            of values for each position: ``fc.Ragged(batch[key], batch[f"{key}_offsets"])``.
        align
            ``"response"``: `x` is aligned with this batch's response-aligned fields, (B, R, ...)
            (packed: with the batch's `shift`). ``"sequence"``: `x` is aligned with ``input_ids``,
            (B, W, ...). None means ``"response"``, and is refused if the shape of `x` fits both, as
            it always does in packed batches.
        shift
            Required with ``align="sequence"``. ``"next_token"``: position p of a sequence holds the
            value of token p + 1, as in log-probabilities of a model; then `x` may be one position
            shorter. ``"none"``: position p holds the value of token p, as in ``input_ids``. With
            ``align="response"`` only ``"none"``.
        missing
            Number for values that `x` does not have, in its dtype; None raises an error. With
            ``"next_token"`` these are the first tokens of rows without a prompt and of parts of
            split rows; with ``per="turn"`` also tokens that are in no row.
        per
            ``"row"``: one item per row of the batch; in packed batches in the order of rows, not of
            bins, and without padding rows. ``"turn"``: one per turn, in the order of the input,
            with its response tokens; those that merging masked or dropped are missing. In the batch
            of a step's shard, turns of other shards have no tokens.
        gaps
            Include observations between a row's responses, and tokens that realigning masked.

        Returns
        -------
        Ragged
            Response values of each row or turn, over a tensor if `x` is one. Of lists
            ``(values, counts)``, as ``fc.Field(ragged=True)`` takes them; missing ones are empty.

        Raises
        ------
        ValueError, TypeError
            `x` of another shape, or of one that fits both alignments without `align`; no `shift`
            with ``align="sequence"``; missing values without `missing`; unknown names.
        """
        return gather(self._state, x, align, shift, missing, per, gaps)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows one by one in input order, without padding, from every layout.

        Returns
        -------
        iterator of dict
            For each real row its values of all outputs, by their keys: views of a jagged batch, of
            any other of one copy. They are as long as its tokens, or its response in ``loss_mask``
            and the like. Also ``prompt_len``, and ``uid``, ``trajectory_id`` and the like if given.

        Raises
        ------
        ValueError
            As :meth:`to_layout`.

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[5, 6], [7]], [[8, 9], [4]], pad_token_id=0, array_type="numpy", layout="tree"
        ... )
        >>> [row["input_ids"].tolist() for row in batch.rows()]
        [[5, 6, 8, 9], [7, 4]]
        """
        return row_views(self._state)

    def model_inputs(
        self, kernel: Kernel | None = None, model: Any = None, dtype: Any = None
    ) -> dict[str, Any]:
        """Return arguments of transformers models: ``model(**batch.model_inputs(model=model))``.

        Parameters
        ----------
        kernel
            The form of the attention mask. ``"dense"``: :meth:`dense_mask`; ``"block"``:
            :meth:`block_mask`, for ``attn_implementation="flex_attention"``; ``"flash"``: the
            offsets of sequences, for flash attention, but not of trees; ``"paths"``:
            :meth:`attention_paths`, for
            :func:`fastcollate.compat.transformers.register_tree_attention`. None: the one that
            suits the attention of `model`. Padded rows, and packed ones under ``"sdpa"`` and
            ``"eager"``, need none, if the model reads positions. All but padded rows need `model`
            or `kernel`.
        model
            The transformers model to be called: its config has the attention and the sliding
            windows of layers. With several kinds of layers, the mask is a dict of one for each.
        dtype
            Dtype of the dense mask, which is additive; by default the dtype of `model`, or else
            float32, which suits models of float32, bfloat16 and float16. A model of float64 needs
            float64: torch's ``scaled_dot_product_attention`` misreads a mask of float32 there.

        Returns
        -------
        dict
            - ``input_ids``, (B, W), jagged (1, tokens), and ``position_ids``, unless left out; a
              field ``position_ids`` with 3 values per token as (3, B, W).
            - ``attention_mask``: of padded rows (B, W); a dense or block mask; of ``"paths"`` an
              empty tensor, which other attention refuses.
            - ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q`` and ``max_length_k`` for
              ``"flash"``; ``tree_kv_index``, ``tree_cu_seqlens_q``, ``tree_cu_seqlens_k``,
              ``tree_max_seqlen_q`` and ``tree_max_seqlen_k`` for ``"paths"``.
            - With `labels`, ``labels``, each at its own token; of ``labels="shifted"`` and of trees
              also ``shift_labels``, each at the token before, which a model takes for its loss, so
              change these; of a tree with ``labels="shifted"`` these alone.
            - ``use_cache=False``, except for padded rows: a cache would take the place of masks.
            - Fields of ``PerRow(concat=True)``, such as ``pixel_values``, in the order of the rows'
              tokens; of tokens that rows of a tree share, once; none if no row has any.
            - Along the ids, ``mm_token_type_ids``, ``cross_attention_mask`` and the like.

        Raises
        ------
        TypeError, ValueError
            If `kernel` does not fit the layout or the array type; a model without a config, of
            unknown attention, or that would mix rows or count padding in this layout, or that takes
            labels without a shift; joined fields of a split row, or beside token types of rows that
            share an output row; token types and own positions of trees.

        Warns
        -----
        UserWarning
            Images that are not joined; image grids without token types or positions of their own.
        """
        if self._state.made_by is None:
            raise missing_plan("model_inputs")
        self._state.check_whole()
        return model_inputs(self._state, self._position_ids, kernel, model, dtype)

    def dense_mask(self, dtype: Any = "float32", window: int | None = None) -> Array:
        """Return the attention mask as an array over all pairs of positions (:attr:`subtree_end`).

        For ``scaled_dot_product_attention``, and as `attention_mask` of transformers models with
        ``attn_implementation="sdpa"`` or ``"eager"``.

        Parameters
        ----------
        dtype
            The dtype of an additive mask: 0 where a position attends to another, and the dtype's
            minimum elsewhere. Or ``bool``, True where it attends: a quarter of the memory, but not
            for eager attention, which would add booleans to scores. For models of float64 pass
            ``"float64"``: torch's ``scaled_dot_product_attention`` misreads float32 there.
        window
            Sliding window: a token attends to the last `window` tokens of its sequence, itself
            included. None: to all.

        Returns
        -------
        array or tensor
            (N, 1, W, W), of the batch's kind and on the device of ``input_ids``; in the jagged
            layout (1, 1, total, total).

        Raises
        ------
        TypeError, ValueError
            An integer dtype, or one that the batch's library lacks; a window below 1.
        """
        plan, like = self._plan_and_ids()
        return cast("Array", dense_mask(plan, like, dtype, window))

    def block_mask(
        self, block_size: int = 128, device: Any = None, window: int | None = None
    ) -> BlockMask:
        """Return the attention mask for torch's FlexAttention.

        The same tables as from ``create_block_mask``, but written from the plan, without
        evaluating each pair of positions.

        Parameters
        ----------
        block_size
            Number of positions of a block, for queries and keys.
        device
            Device of the mask; None: the device of ``input_ids``.
        window
            As :meth:`dense_mask`.

        Returns
        -------
        torch.nn.attention.flex_attention.BlockMask
            Of shape (N, 1, W, W); in the jagged layout (1, 1, total, total). Computed on each call:
            keep it for all layers of a step. It cannot be pickled.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            If the outputs are NumPy arrays; sizes below 1; if torch has no FlexAttention.
        """
        plan, like = self._plan_and_ids()
        return block_mask(plan, like, block_size, device, window)

    def attention_ranges(self) -> AttentionRanges:
        """Return the attention mask as pairs of query spans and key spans.

        For kernels that take ranges, such as MagiAttention's ``flex_flash_attn_func``.

        Returns
        -------
        AttentionRanges
            The tuple ``(q_ranges, k_ranges, is_causal)``: int32 (ranges, 2) twice and bool
            (ranges,), on the device of ``input_ids``. Positions count over all output rows, N * W,
            as in ``hidden.flatten(0, 1)``. Each sequence is a causal square; in a tree each node is
            one, and the rest of its subtree attends to all of it. Ranges do not overlap, and
            exclude padding.

        Raises
        ------
        ValueError
            If the number of positions exceeds int32.
        """
        return attention_ranges(*self._plan_and_ids())

    def attention_paths(self, bin: int | None = None) -> AttentionPaths:
        """Return the attention mask as paths from roots to segments, for kernels of offsets.

        For flash attention of variable lengths, over keys and values gathered by ``kv_index``. A
        *segment* is a span of positions without a fork inside; its path are the positions from the
        root of its tree to its end. The last position of a segment attends to the whole path, each
        one before it to one key less: causal attention aligned at the end. Paths are made in each
        layout; without shared tokens a row is one segment, and ``kv_index`` counts from 0 on.

        Parameters
        ----------
        bin
            The output row whose positions are counted; None: all of them, N * W, as in
            ``hidden.flatten(0, 1)``.

        Returns
        -------
        AttentionPaths
            The tuple ``(kv_index, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)``: int64
            (K,), int32 (segments + 1,) twice, on the device of ``input_ids``, and two ints. K, also
            in :attr:`metrics` as ``batch/path_keys``, is the sum of the lengths of paths: in a
            chain of forks it grows with the square of their number. Each run of padding is a
            segment whose positions attend to those of the run up to themselves.

        Raises
        ------
        ValueError, TypeError
            There is no such bin, or K exceeds int32.

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[5, 6], [5, 6]], [[8, 9], [7]], pad_token_id=0,
        ...     array_type="numpy", layout="tree",
        ... )
        >>> batch.input_ids
        array([[5, 6, 7, 8, 9]])
        >>> paths = batch.attention_paths()
        >>> paths.cu_seqlens_q, paths.cu_seqlens_k
        (array([0, 2, 3, 5], dtype=int32), array([0, 2, 5, 9], dtype=int32))
        >>> paths.kv_index
        array([0, 1, 0, 1, 2, 0, 1, 3, 4])
        """
        return attention_paths(*self._plan_and_ids(), bin)

    def loss_positions(self) -> LossPositions:
        """Return the positions that the loss reads, so that the LM head runs on these only.

        Returns
        -------
        LossPositions
            The tuple ``(pos, inv)``, int64, on the device of ``input_ids``. ``pos``: the flat
            positions whose outputs predict a trained token, unique and ascending. ``inv``: in the
            shape of response-aligned fields, the index into `pos` for each value; 0 where no token
            trains. If no token trains at all, `pos` is the first position.

        Raises
        ------
        ValueError
            If ``loss_mask`` was changed to train padding, or a token that no token predicts; also
            in :meth:`normalize`, :meth:`loss_normalizers` and :attr:`metrics`.

        Notes
        -----
        Trained tokens are those whose ``loss_mask`` is not 0. If the mask is on a device, this call
        synchronizes.

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[5, 6], [7]], [[8, 9], [3]], pad_token_id=0,
        ...     array_type="numpy", layout="jagged",
        ... )
        >>> pos, inv = batch.loss_positions()
        >>> pos, inv, batch.targets
        (array([1, 2, 4]), array([0, 1, 2]), array([8, 9, 3]))

        With ``hidden``, (N, W, hidden), from a model without its head::

            logits = lm_head(hidden.flatten(0, 1)[pos])
            logp = logits.log_softmax(-1)[inv, batch.targets]
        """
        self._state.check_whole()
        return loss_positions(self._state)

    def broadcast(self, per_row: Any, on: Literal["trained", "response"] = "trained") -> Any:
        """Broadcast one value per row to the tokens of the row that train.

        As ``fc.Field(per_row, spread="trained")`` in :func:`build_batch`, for numbers that are
        computed after the batch.

        Parameters
        ----------
        per_row
            One number per row, (B,): an array, a tensor (gradients flow through) or a sequence.
            Padding rows count, unlike in :meth:`gather` of packed batches.
        on
            ``"trained"``: the tokens whose ``loss_mask`` is not 0, or would not be if it was not
            given. ``"response"``: all response tokens, including observations, masked tokens and
            padding rows.

        Returns
        -------
        array or tensor
            In the shape of this batch's response-aligned fields, (B, R), packed (N, W) or jagged
            (response tokens,), and 0 elsewhere; of the dtype and device of `per_row` (floats of a
            list become float32).

        Raises
        ------
        ValueError
            If `per_row` has another shape.

        Notes
        -----
        If the loss mask is on another device than `per_row`, ``on="trained"`` synchronizes.
        """
        if isinstance(per_row, (list, tuple)):
            numbers = check_array("per_row", read_array(per_row))
            is_float = numbers.dtype == np.float64
            per_row = self._like_outputs(numbers.astype(np.float32) if is_float else numbers)
        self._state.check_whole()
        return broadcast(self.plan, self._data["loss_mask"], per_row, on)

    def normalize(
        self,
        advantages: Any,
        plan: StepPlan,
        per: Literal["mini_batch", "batch", "prompt"] = "mini_batch",
    ) -> Any:
        """Normalize advantages to mean 0 and standard deviation 1.

        ``(x - mean) / sqrt(max(var, 1e-8))``, with the population variance, over the trained tokens
        of the real rows within each boundary: those where ``loss_mask`` is not 0 (weights only
        select). Every token counts once, so long responses weigh more. GRPO's advantages count
        rows: compute these from rewards, and write them to tokens by :meth:`broadcast`.

        Parameters
        ----------
        advantages
            An array or tensor in the shape of this batch's response-aligned fields, (B, R) or
            jagged (response tokens,), on any device that has float64. Gradients flow through.
        plan
            The plan of this batch's step. The batch holds either all rows of the step in their
            order, without padding, or one row per slot of the plan, in slot order. If the plan has
            no padding, both counts are equal: then a batch whose ``is_padding`` is not None is in
            slot order, unless its lengths or uids say otherwise.
        per
            ``"mini_batch"``, ``"batch"`` (the whole step) or ``"prompt"``, even if its rows are in
            two mini-batches.

        Returns
        -------
        array or tensor
            Of the kind, shape and dtype of `advantages` (other dtypes than floats become float32).
            0 on tokens that do not train and on padding rows, whatever `advantages` holds there.
            NaN and inf turn only their own boundary into NaN.

        Raises
        ------
        ValueError, TypeError
            If the shape does not fit; if ``plan`` is not a step plan, or belongs to another batch.

        Notes
        -----
        One pass, with sums in float64. SkyRL's ``RayPPOTrainer._normalize_advantages`` takes its
        mean over all positions, padding included; this one does not.
        """
        self._state.check_whole()
        return normalize(self._state, advantages, plan, per)

    def loss_normalizers(self, plan: StepPlan) -> LossNormalizers:
        """Return the divisors for the losses of each mini-batch; padding does not count.

        They cover all ranks: the ranks' losses, divided by them, add up to the loss of the
        mini-batch. If gradients are averaged over ranks (DDP, FSDP), multiply by the number of
        ranks.

        Parameters
        ----------
        plan
            As :meth:`normalize`.

        Returns
        -------
        LossNormalizers
            ``tokens``, float64 (mini-batches,): the sum of ``loss_mask`` over real rows; and
            ``rows``, int64 (mini-batches,): the number of real rows, masked ones included. NumPy
            arrays. 1 instead of 0, so that the loss of an empty mini-batch is 0 and not NaN.

        Raises
        ------
        ValueError, TypeError
            If the plan is of another batch, or no step plan.
        """
        self._state.check_whole()
        return loss_normalizers(self._state, plan)

    def cp_merge(self, parts: Sequence[Any]) -> Any:
        """Merge per-token outputs of all context-parallel ranks.

        Called on the batch that was split, or on any part of it.

        Parameters
        ----------
        parts
            One array or tensor (N, W / cp_size, ...) of each rank, in order, on one device.
            Gradients of tensors flow through.

        Returns
        -------
        array or tensor
            (N, W, ...), in the order before :meth:`cp_split`.

        Raises
        ------
        ValueError, TypeError, MissingPlanError
            Parts that are not arrays of the batch's shapes, or of different kinds; another layout;
            a batch that was made from a mapping.
        """
        return cp_merge(self.plan, parts)

    def _plan_and_ids(self) -> tuple[Plan, Any]:
        """Return the plan and the token ids of a whole batch."""
        self._state.check_whole()
        return self.plan, self._data["input_ids"]
