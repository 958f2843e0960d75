"""The batch: a mapping of tensors that knows how it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

import numpy as np

from fastcollate._fastcollate import Owner, Plan
from fastcollate.arguments import check_bool, counted, suggests_names, warn_user
from fastcollate.core_call import BatchSpec, Collated
from fastcollate.handover.to_device import moved, pinned_batch
from fastcollate.ops.attention import (
    AttentionRanges,
    attention_ranges,
    block_mask,
    dense_mask,
    subtree_end,
)
from fastcollate.ops.broadcast import broadcasted
from fastcollate.ops.check import checked
from fastcollate.ops.findings import Findings
from fastcollate.ops.gather import gathered
from fastcollate.ops.loss_positions import LossPositions, loss_positions, targets
from fastcollate.ops.normalize import LossNormalizers, loss_normalizers, normalized
from fastcollate.ops.places import RowPlaces, trained_places
from fastcollate.ops.relayout import relayout
from fastcollate.ops.select import selected
from fastcollate.ops.select_bins import selected_bins
from fastcollate.pickling import own_memory, unpickled
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.layouts import LayoutArgument, Shift, checked_layout, split_message
from fastcollate.plan.lengths import percentiles
from fastcollate.plan.step_rows import StepRows
from fastcollate.view.batch_view import FOLD, BatchView, batch_page

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
    from typing_extensions import TypeVar  # with defaults

    from fastcollate.ingest.columns import Ragged
    from fastcollate.plan.merging import MergePlan
    from fastcollate.plan.shard import Shard
    from fastcollate.plan.step_plan import StepPlan

    Array = TypeVar("Array", covariant=True, default=Any)
else:
    from typing import TypeVar

    Array = TypeVar("Array", covariant=True)

_NEEDS_PLAN = frozenset(
    {
        *("plan", "spec", "prompt_lens", "response_lens", "metrics", "bin_plan"),
        *("subtree_end", "targets"),
    }
)


class MissingPlanError(RuntimeError, AttributeError):
    """A :class:`Batch` made from a mapping is asked for what only its plan would know.

    Also an ``AttributeError``, so that ``hasattr`` says no.
    """


def _missing(name: str) -> MissingPlanError:
    return MissingPlanError(
        f"this Batch was made from a mapping and has no {name}; "
        "use the Batch that build_batch returned"
    )


@suggests_names
class Batch(Mapping[str, Any], Generic[Array]):
    """A read-only mapping from output names to arrays, with the plan they were written by.

    Goes into a framework's dict as it is: ``dict(batch)``, ``f(**batch)``.
    Every key can also be read as an attribute, unless a method or property has that name. Two
    batches are equal only if they are the same object. For type checkers, ``Batch[torch.Tensor]``
    has tensors and ``Batch[np.ndarray]`` arrays. All outputs lie in one allocation: any one
    of them keeps it alive, so ``clone`` what is to outlive the batch.

    Parameters
    ----------
    data
        The outputs. Any mapping will do, and without a plan: code that rebuilds its inputs by
        ``type(batch)({...})``, as torch's ``default_collate`` does, gets a batch of the same keys.
    plan, spec
        What :func:`fastcollate.build_batch` wrote the outputs by.
    uids, trajectory_ids
        What names each row's prompt group and trajectory, as it was handed in.
    is_last_step
        Whether each row holds its trajectory's last turn.
    merge_plan
        How turns were merged.
    is_padding
        Whether each row is there for the number of rows alone.

    Attributes
    ----------
    uids, trajectory_ids, is_last_step, merge_plan, is_padding
        As above; None if not given.
    """

    __slots__ = (
        "__weakref__",
        "_data",
        "_handover",
        "_masked_rewards",
        "_owner",
        "_plan_or_call",
        "_spec",
        "is_last_step",
        "is_padding",
        "merge_plan",
        "trajectory_ids",
        "uids",
    )

    _data: dict[str, Any]
    _plan_or_call: Plan | Callable[[], Plan] | None
    _spec: BatchSpec | None
    _handover: dict[str, float] | None
    _masked_rewards: int
    _owner: Owner | None
    uids: Sequence[Any] | None
    trajectory_ids: Sequence[Any] | None
    is_last_step: Sequence[bool] | None
    merge_plan: MergePlan | None
    is_padding: Sequence[bool] | None

    # What outputs are, for type checkers: they are read by `__getattr__`.
    input_ids: Array
    attention_mask: Array
    response_mask: Array
    loss_mask: Array
    rewards: Array
    logprobs: Array
    position_ids: Array
    labels: Array
    sequence_ids: Array
    router_padding_mask: Array
    offsets: Array
    response_offsets: Array
    sequence_offsets: Array
    predictors: Array
    row_bins: Array
    cu_seqlens: Array
    cu_seqlens_padded: Array
    row_cu_seqlens: list[Array]
    row_cu_seqlens_padded: list[Array]
    max_seqlen: int
    max_seqlen_padded: int

    def __init__(
        self,
        data: Mapping[str, Any] | Iterable[tuple[str, Any]],
        plan: Plan | None = None,
        spec: BatchSpec | None = None,
        uids: Sequence[Any] | None = None,
        trajectory_ids: Sequence[Any] | None = None,
        is_last_step: Sequence[bool] | None = None,
        merge_plan: MergePlan | None = None,
        is_padding: Sequence[bool] | None = None,
    ) -> None:
        self._data = dict(data)
        self._plan_or_call = plan
        self._spec = spec
        self._owner = self._handover = None
        self._masked_rewards = 0
        self.uids = uids
        self.trajectory_ids = trajectory_ids
        self.is_last_step = is_last_step
        self.merge_plan = merge_plan
        self.is_padding = is_padding

    @classmethod
    def _of(cls, collated: Collated) -> Batch[Any]:
        """Return the batch of what the core made."""
        batch = object.__new__(cls)
        batch._data = collated.data
        batch._plan_or_call = collated.plan
        batch._spec = collated.spec
        batch.uids = collated.uids
        batch.trajectory_ids = collated.trajectory_ids
        batch.is_last_step = collated.is_last_step
        batch.merge_plan = collated.merge_plan
        batch.is_padding = collated.is_padding
        batch._masked_rewards = collated.masked_rewards
        batch._owner = collated.owner
        batch._handover = None
        return batch

    def _replace(self, **state: Any) -> Batch[Array]:
        """Return a batch that differs in these slots: batches are not changed anywhere else."""
        again = object.__new__(type(self))
        for name in Batch.__slots__:
            if name != "__weakref__":
                setattr(again, name, state[name] if name in state else getattr(self, name))
        return again

    def _with_data(self, data: dict[str, Any], **state: Any) -> Batch:
        """Return a batch of other outputs, in memory of their own."""
        return self._replace(_data=data, _owner=None, **state)

    def _step_rows(self) -> StepRows:
        """Return the rows as a step is planned for them."""
        if self.is_padding is not None and any(self.is_padding):
            raise ValueError(
                "rows is a Batch with padding rows, which a plan would take for real ones; pass "
                "the Batch without them"
            )
        return StepRows(
            np.stack([self.plan.prompt_lens, self.plan.response_lens], 1),
            uids=self.uids,
            trajectory_ids=self.trajectory_ids,
            is_last_step=self.is_last_step,
            # Rows that were picked from a merged batch are not those of its plan any more.
            merge=self.merge_plan if self.is_padding is None else None,
        )

    def __getitem__(self, key: str) -> Any:
        try:
            return self._data[key]
        except (KeyError, TypeError) as error:  # slices have no hash
            message = f"Batch has no output {key!r}; its outputs are {list(self)}"
            raise KeyError(message) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __getattr__(self, name: str) -> Any:
        # Called where no method or property has that name, or a property finds no plan. Private
        # names are never keys: looking `_data` up here before it is set would not end.
        if name.startswith("_"):
            raise AttributeError(f"Batch has no attribute {name!r}")
        if name in _NEEDS_PLAN:
            raise _missing(name)
        if name in self._data:
            return self._data[name]
        if name == "attention_mask" and self._plan_or_call is not None:
            raise AttributeError(
                "Batch has no attention_mask, since rows of its layout share output rows; pass "
                "batch.dense_mask() or batch.block_mask() to the model"
            )
        raise AttributeError(f"Batch has no attribute or key {name!r}; its keys are {list(self)}")

    def __dir__(self) -> list[str]:
        names = (name for name in super().__dir__() if name.startswith("__") or name[0] != "_")
        return sorted({*names, *map(str, self._data)})

    def __eq__(self, other: object) -> bool:
        # A mapping would compare its tensors and ask whether the result is true.
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...], tuple[None, Any]]:
        names = (self.uids, self.trajectory_ids, self.is_last_step)
        how = (self._plan, self._spec, *names, self.merge_plan, self.is_padding)
        state = {"_masked_rewards": self._masked_rewards}
        return unpickled, (type(self), own_memory(self._data), *how), (None, state)

    @property
    def _plan(self) -> Plan | None:
        """The plan, which is made when it is first read, if that was put off."""
        plan = self._plan_or_call
        if callable(plan):
            plan = self._plan_or_call = plan()
        return plan

    @property
    def plan(self) -> Plan:
        """What the rows are made of and where they lie.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping. So do the other properties.
        """
        plan = self._plan
        if plan is None:
            raise _missing("plan")
        return plan

    @property
    def spec(self) -> BatchSpec:
        """What the batch was asked to be, beside its plan."""
        if self._spec is None:
            raise _missing("spec")
        self._check_whole()
        return self._spec

    def _check_whole(self) -> None:
        """Check that all positions of the plan are there."""
        if self._spec is not None and self._spec.cp is not None:
            size, rank = self._spec.cp
            raise ValueError(
                f"the batch holds the chunks of context-parallel rank {rank} of {size} alone; use "
                "the whole batch, built without cp and not split"
            )

    @property
    def bin_plan(self) -> BinPlan | None:
        """Which rows share a row of the outputs, in the packed layout; None in others.

        Its capacity is the width.
        """
        if (bins := self.plan.bins()) is None:
            return None
        plan = self.plan
        offsets, indices, starts, lengths = bins
        return BinPlan(
            offsets,
            indices,
            starts,
            lengths,
            num_sequences=plan.num_rows,
            capacity=max(plan.width, 1),
            multiple_of=plan.multiple_of,
        )

    @property
    def prompt_lens(self) -> Array:
        """Prompt tokens of each row: int64 (rows,), an array of the batch's kind."""
        return self._like_outputs(self.plan.prompt_lens)

    @property
    def response_lens(self) -> Array:
        """Response tokens of each row: int64 (rows,), an array of the batch's kind."""
        return self._like_outputs(self.plan.response_lens)

    @property
    def subtree_end(self) -> Array:
        """The attention mask as one integer a position: int32, in the shape of ``input_ids``.

        Position q of an output row looks at k if and only if ``k <= q < subtree_end[k]``. Positions
        count within the output row, (N, W), and in the jagged layout over all tokens, (total,). A
        token's subtree ends where its sequence does, that of padding after itself. Padding sees
        itself only, also where `padding_as` makes it part of a segment of ``cu_seqlens``.

        Made anew each time, on the device of ``input_ids``. If an output has that key, as one of
        a tree, it is that.
        """
        self._check_whole()
        found = self._data["subtree_end"] if "subtree_end" in self._data else subtree_end(self)
        return cast("Array", found)

    @property
    def targets(self) -> Array:
        """The token that each response-aligned value belongs to, of the dtype of ``input_ids``.

        (B, R), packed (N, W), jagged (response tokens,). 0 where there is no token, so that it can
        index logits (:meth:`loss_positions`). If an output has that key, it is that.
        """
        if "targets" in self._data:
            return cast("Array", self._data["targets"])
        self._check_whole()
        return cast("Array", targets(self))

    @property
    def metrics(self) -> dict[str, float]:
        """Sizes of the batch, flat and ready to be logged. Padding rows count as padding.

        Returns
        -------
        dict
            ``batch/rows``, and in bins ``batch/bins``; of a tree ``batch/token_ratio``, how many
            times fewer tokens there are than those of all rows; ``batch/tokens``, of which
            ``batch/prompt_tokens`` and ``batch/response_tokens``; ``batch/padded_tokens``, the
            positions of ``input_ids``, and ``batch/padding_fraction``, the share of them that is
            padding (0 to 1); the lengths ``batch/longest_row``, ``batch/longest_prompt`` and
            ``batch/longest_response``, and the percentiles of each, from ``batch/row_length_p50``
            to ``batch/response_length_p99`` (50, 90 and 99). ``batch/trained_tokens``: those whose
            loss mask is not 0; ``batch/rows_without_loss``: rows that have none of them.
            ``batch/tokens_without_predecessor``: sampled tokens at the
            first place of a sequence, or of a part of a split one, which no token predicts; their
            loss mask is 0, and they have no label. Of merged batches also
            ``generate/num_seq_before_merge`` and what else :attr:`MergeReport.metrics` holds, and
            ``generate/num_rewards_masked_by_merge``: rewards that are not 0 on tokens that
            realigning masked. Those per token are lost; a turn's one number whose last token is
            masked has moved to the end of the row (``merge_rewards="sum"``). These are of the whole
            step, also in a shard.
        """
        plan = self.plan
        is_real = self._is_real
        prompt_lens, response_lens = plan.prompt_lens[is_real], plan.response_lens[is_real]
        prompt_tokens, response_tokens = int(prompt_lens.sum()), int(response_lens.sum())
        tokens, padded_tokens = prompt_tokens + response_tokens, plan.num_positions
        merging: dict[str, float] = {}
        if self.merge_plan is not None:
            masked = {"generate/num_rewards_masked_by_merge": float(self._masked_rewards)}
            merging = self.merge_plan.report.metrics | masked
        bins = {"batch/bins": float(plan.num_output_rows)} if plan.has_bins else {}
        if plan.is_tree:
            bins["batch/token_ratio"] = tokens / plan.num_placed if plan.num_placed else 1.0
        training: dict[str, float] = {}
        # Without a table of outputs, nothing says which one is the mask; a part has not all of it,
        # and a tensor of the device "meta" nothing.
        has_values = not getattr(self["input_ids"], "is_meta", False)
        if self._spec is not None and self._spec.cp is None and has_values:
            spans = RowPlaces.of(plan).responses
            trained = spans.counts_in(trained_places(self), plan.num_rows)[is_real]
            training = {
                "batch/trained_tokens": float(trained.sum()),
                "batch/rows_without_loss": float(np.count_nonzero(trained == 0)),
            }
        return {
            "batch/rows": float(len(prompt_lens)),
            **bins,
            "batch/tokens": float(tokens),
            "batch/prompt_tokens": float(prompt_tokens),
            "batch/response_tokens": float(response_tokens),
            "batch/padded_tokens": float(padded_tokens),
            "batch/padding_fraction": _padding(plan),
            "batch/longest_row": float((prompt_lens + response_lens).max(initial=0)),
            "batch/longest_prompt": float(prompt_lens.max(initial=0)),
            "batch/longest_response": float(response_lens.max(initial=0)),
            **percentiles("batch/row_length", prompt_lens + response_lens),
            **percentiles("batch/prompt_length", prompt_lens),
            **percentiles("batch/response_length", response_lens),
            **training,
            "batch/tokens_without_predecessor": float(plan.num_unpredicted),
            **merging,
            **(self._handover or {}),
        }

    def show(
        self,
        rows: int | slice | Iterable[int] | None = None,
        tokenizer: Any = None,
        fields: str | Iterable[str] = (),
        fold: int | None = FOLD,
    ) -> BatchView:
        """Show rows as people read them: what is prompt, what trains, what is masked or padding.

        Parameters
        ----------
        rows
            Which ones, counted as in ``prompt_lens``; None shows the first few. Of a packed batch,
            their bins are shown, with the other sequences left out.
        tokenizer
            What makes text of ids: anything with ``decode(list_of_ids)``, as tokenizers of Hugging
            Face have it, or a function. None shows ids. Ids that it does not have are marked.
        fields
            Outputs whose values stand beneath the tokens, such as ``["rewards", "logprobs"]``; the
            value of one that has one per row stands in the title of the row.
        fold
            How many tokens are shown at the beginning and end of a long run of one kind; None
            shows all of it.

        Returns
        -------
        BatchView
            It shows itself at a prompt and in a notebook; elsewhere ``print`` it. ``str`` is plain
            text, ``rich.print`` has colours, and ``text(width)`` has lines of a width.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping.
        IndexError
            If there is no such row.
        ValueError
            If a field is no output, or has no value per token or row.
        TypeError
            If `tokenizer` decodes nothing, or not to text.

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[5, 6], [7]], [[8, 9], [3]], loss_mask=[[1, 0], [1]], pad_token_id=0,
        ...     array_type="numpy",
        ... )
        >>> print(batch.show().text(width=60))
        prompt «trained» ‹masked› ·padding· …n… left out
        <BLANKLINE>
        row 0, prompt 2, response 2, 1 trained
          5 6 «8» ‹9›
        <BLANKLINE>
        row 1, prompt 1, response 1, 1 trained
          ·2 padding· 7 «3»
        """
        return BatchView(self, rows, tokenizer, fields, fold)

    def check(self, vocab_size: int | None = None, eos_token_id: Any = None) -> Findings:
        """Look for what is probably a mistake, in whole outputs at once.

        Padding rows are not looked at.

        Parameters
        ----------
        vocab_size
            Number of token ids; None does not look at ids.
        eos_token_id
            The id that ends an answer, or several; None does not look for answers that are cut off.

        Returns
        -------
        Findings
            A list of :class:`fastcollate.planning.Finding`, one per row and kind, that prints as a
            table; empty if nothing was found. The kinds: ``"all_masked"``, nothing of the batch
            trains, else ``"trains_nothing"``, a row of which nothing does;
            ``"trains_first_token"``, a label or loss mask of a token that no token predicts;
            ``"nan"``, in an output of floats per token; ``"positive_logprob"`` and
            ``"infinite_logprob"`` in ``logprobs``; ``"untrained_reward"``, one of ``rewards``
            beside a token that does not train, in a row that does; ``"outside_vocabulary"``;
            ``"cut_off"``, the last token that trains ends no answer; ``"duplicate"``, the tokens
            of an earlier row; ``"padding"``, half of the positions or more, in a layout of blocks.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping.
        TypeError, ValueError
            If `vocab_size` is no number of ids, or `eos_token_id` no id.

        Examples
        --------
        >>> masks = [[0, 0], [1]]
        >>> batch = fc.build_batch(
        ...     [[5], [6]], [[7, 8], [9]], loss_mask=masks, pad_token_id=0, array_type="numpy"
        ... )
        >>> batch.check(eos_token_id=9)
        1 finding
        <BLANKLINE>
        trains_nothing (1)
          row 0: none of its 2 response tokens trains
          -> leave the row out, or look at its loss_mask
        """
        return checked(self, vocab_size, eos_token_id)

    def gather(
        self,
        x: Any,
        of: Literal["response", "sequence"] = "response",
        shift: Shift | None = None,
        missing: float | None = None,
        per: Literal["row", "turn"] = "row",
        gaps: bool = True,
    ) -> Ragged:
        """Take the values of all response tokens out of a model's per-token outputs.

        Nothing is guessed from shapes: what `x` stands for is said, and its shape is checked.

        Parameters
        ----------
        x
            An array or tensor, on any device; trailing dimensions are kept. A tensor's gradients
            flow through.
        of
            ``"response"``: `x` has the shape of this batch's response-aligned fields, (B, R, ...),
            and stands beside them (of a packed batch as its `shift` says).
            ``"sequence"``: it has that of ``input_ids``, (B, W, ...).
        shift
            With ``of="sequence"``, it has to be said. ``"next_token"``: position p of a sequence
            holds the value of token p + 1, as the log-probabilities of a model do; then `x` may be
            one position shorter. ``"none"``: position p holds the value of token p, as
            ``input_ids`` does. With ``of="response"`` there is only ``"none"``.
        missing
            With ``"next_token"``, no position holds the value of the first token of a row without
            a prompt, nor of a part of a row that was split. It is this number, which `x` has to be
            able to hold, or an error if None. So are tokens that are asked for by turn and are in
            no row.
        per
            ``"row"``: one item per row of the batch; of a packed batch, but for padding rows, and
            in the order of rows, not of bins. ``"turn"``: one per turn, in the order of the
            input, with its response tokens; those that merging masked or dropped are missing.
        gaps
            Whether rows come with the observations between their responses, and with tokens that
            realigning masked.

        Returns
        -------
        Ragged
            Each row's or turn's response values: over a tensor if `x` is one.

        Raises
        ------
        ValueError
            If `x` has another shape, a row has no prompt, or a turn is not in the batch (see
            `missing`).
        TypeError
            If `shift` is not given with ``of="sequence"``.
        """
        return gathered(self.plan, x, of, shift, missing, per, gaps)

    def dense_mask(self, dtype: Any = "bool", window: int | None = None) -> Array:
        """Return the attention mask as an array over all pairs of positions.

        True where a position looks at another, as :attr:`subtree_end` says: for
        ``scaled_dot_product_attention``, and as `attention_mask` for models of transformers with
        ``attn_implementation="sdpa"``.

        Parameters
        ----------
        dtype
            ``bool``, or the dtype of floats that the model computes in: then the mask is additive,
            0 or the dtype's minimum. Eager attention takes that; it would add booleans to scores.
        window
            For layers with a sliding window: a token looks at the last `window` tokens of its
            sequence, itself included. None: at all.

        Returns
        -------
        array or tensor
            (N, 1, W, W), of the batch's kind and on the device of ``input_ids``; in the jagged
            layout (1, 1, total, total).

        Raises
        ------
        TypeError, ValueError
            A dtype of integers, or one that the batch's library has not; a window below 1.
        """
        self._check_whole()
        return cast("Array", dense_mask(self, dtype, window))

    def block_mask(
        self, block_size: int = 128, device: Any = None, window: int | None = None
    ) -> BlockMask:
        """Return the attention mask for torch's FlexAttention.

        The same tables as ``create_block_mask`` makes, but written from the plan, without a look at
        each pair of positions.

        Parameters
        ----------
        block_size
            Positions of a block, of queries and of keys.
        device
            Where the mask is needed; None: where ``input_ids`` is.
        window
            As :meth:`dense_mask`.

        Returns
        -------
        torch.nn.attention.flex_attention.BlockMask
            Of shape (N, 1, W, W); in the jagged layout (1, 1, total, total). Made anew each time:
            keep it for all layers of a step. It cannot be pickled.

        Raises
        ------
        TypeError, ValueError
            If the outputs are NumPy arrays; sizes below 1.
        RuntimeError
            If torch has no FlexAttention.
        """
        self._check_whole()
        return block_mask(self, block_size, device, window)

    def attention_ranges(self) -> AttentionRanges:
        """Return the attention mask as spans of queries that look at spans of keys.

        For kernels that take ranges, such as MagiAttention's ``flex_flash_attn_func``.

        Returns
        -------
        AttentionRanges
            The tuple ``(q_ranges, k_ranges, is_causal)``: int32 (ranges, 2) twice and bool
            (ranges,), on the device of ``input_ids``. Positions count over all output rows, N * W,
            as in ``hidden.flatten(0, 1)``. Each sequence is a causal square; in a tree each node is
            one, and what follows it in its subtree looks at all of it. No two ranges have a pair of
            positions in common. Padding is in none.

        Raises
        ------
        ValueError
            If there are more positions than int32 can count.
        """
        self._check_whole()
        return attention_ranges(self)

    def loss_positions(self) -> LossPositions:
        """Return which positions the loss reads, so that the LM head runs on no other.

        Returns
        -------
        LossPositions
            The tuple ``(pos, inv)``, int64, on the device of ``input_ids``. ``pos``: the flat
            positions whose outputs predict a trained token, unique and ascending. ``inv``: in the
            shape of response-aligned fields, the index into `pos` for each value; 0 where nothing
            trains. If nothing trains at all, `pos` is the first position.

        Raises
        ------
        ValueError
            If ``loss_mask`` was written into, and trains a token that no token predicts.

        Notes
        -----
        What trains is where ``loss_mask`` is not 0; without one, sampled tokens that a token
        predicts. Where that is on a device, this waits for it.

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[5, 6], [7]], [[8, 9], [3]], pad_token_id=0, array_type="numpy", layout="jagged"
        ... )
        >>> pos, inv = batch.loss_positions()
        >>> pos, inv, batch.targets
        (array([1, 2, 4]), array([0, 1, 2]), array([8, 9, 3]))

        With ``hidden``, (N, W, hidden), as a model without its head returns it::

            logits = lm_head(hidden.flatten(0, 1)[pos])
            logp = logits.log_softmax(-1)[inv, batch.targets]
        """
        self._check_whole()
        return loss_positions(self)

    def broadcast(self, per_row: Any, on: Literal["trained", "response"] = "trained") -> Any:
        """Put one value per row onto the sampled tokens of the row.

        A loss mask is not read: select by it, or pass ``fc.Field(per_row, spread="trained")`` to
        :func:`build_batch`, which is 0 on masked tokens, too.

        Parameters
        ----------
        per_row
            One number per row, (B,): an array, a tensor (gradients flow through) or a sequence.
            Padding rows count, which :meth:`gather` leaves out of packed batches.
        on
            ``"trained"``: the sampled tokens that stand in rows that are no padding, whatever their
            loss mask. ``"response"``: all tokens of responses, observations, masked tokens and
            padding rows too.

        Returns
        -------
        array or tensor
            In the shape of this batch's response-aligned fields, (B, R), packed (N, W) or jagged
            (response tokens,), and 0 elsewhere; of `per_row`'s dtype and device (floats of a list
            become float32).

        Raises
        ------
        ValueError
            If `per_row` has another shape.
        """
        if isinstance(per_row, (list, tuple)):
            numbers = np.asarray(per_row)
            is_float = numbers.dtype == np.float64
            per_row = self._like_outputs(numbers.astype(np.float32) if is_float else numbers)
        self._check_whole()
        return broadcasted(self.plan, per_row, on)

    def normalize(
        self,
        advantages: Any,
        plan: StepPlan,
        per: Literal["mini_batch", "batch", "prompt"] = "mini_batch",
    ) -> Any:
        """Take the mean of the advantages away and divide them by their deviation.

        ``(x - mean) / sqrt(max(var, 1e-8))``, with the population variance, over the trained tokens
        of the real rows within each boundary: those where ``loss_mask`` is not 0 (weights only
        select), or ``response_mask`` if there is no loss mask.

        Parameters
        ----------
        advantages
            An array or tensor in the shape of this batch's response-aligned fields, (B, R) or
            jagged (response tokens,), on any device that has float64. Gradients flow through.
        plan
            Of the step whose rows this batch holds: all of them in their order, without padding, or
            one per slot of the plan, in the order of slots. If the plan has no padding, there are
            as many of both: then a batch whose ``is_padding`` is not None is in the order of slots.
        per
            ``"mini_batch"``, ``"batch"`` (the whole step) or ``"prompt"``, also where that is in
            two mini-batches.

        Returns
        -------
        array or tensor
            In the kind, shape and dtype of `advantages` (what is not floats becomes float32). 0
            where nothing is trained and on padding rows, whatever `advantages` holds there. NaN and
            inf make NaN of their own boundary only.

        Raises
        ------
        ValueError
            If the shape does not fit, or the plan is of another batch.
        TypeError
            If `advantages` is no array or tensor, or `plan` no step plan.

        Notes
        -----
        One pass, with sums in float64. SkyRL's ``RayPPOTrainer._normalize_advantages`` takes its
        mean over all positions, padding included; this one does not.

        A batch that was made from a mapping has no table of outputs. There the mask is the key
        ``loss_mask``, else ``response_mask``, else all tokens that ``response_offsets`` count.
        """
        return normalized(self, advantages, plan, per)

    def loss_normalizers(self, plan: StepPlan) -> LossNormalizers:
        """Return what the losses of each mini-batch are to be divided by; padding does not count.

        They are of all ranks together: the losses of ranks, divided by them, add up to that of the
        mini-batch. Where gradients are averaged over ranks (DDP, FSDP), multiply by their number.

        Parameters
        ----------
        plan
            As :meth:`normalize`.

        Returns
        -------
        LossNormalizers
            ``tokens``, float64 (mini-batches,): the sum of ``loss_mask`` over real rows (of
            ``response_mask`` if there is no loss mask); and ``rows``, int64 (mini-batches,): the
            number of real rows, also of those that are masked. NumPy arrays. 1 instead of 0, so
            that a loss of nothing becomes 0 and not NaN.

        Raises
        ------
        ValueError, TypeError
            If the plan is of another batch, or no step plan.
        """
        return loss_normalizers(self, plan)

    def to_layout(
        self,
        layout: LayoutArgument,
    ) -> Batch[Array]:
        """Lay the same rows out in another way.

        No value is lost: with the layout that this batch was built with, the way back gives the
        same outputs bit for bit.

        Parameters
        ----------
        layout
            As :func:`fastcollate.build_batch`.

        Returns
        -------
        Batch
            In memory of its own, on the host.

        Raises
        ------
        ValueError
            Options that cannot be; a packed batch that has no place for a value, or only one for
            each part of a split row.
        """
        again = relayout(self, checked_layout(layout).spec)
        if (message := split_message(again.plan)) is not None:
            warn_user(message)
        return again

    def to(self, device: Any, non_blocking: bool = False) -> Batch[Array]:
        """Copy the batch to a device: all outputs at once, as they lie in one allocation.

        Parameters
        ----------
        device
            Such as ``"cuda"``, ``"cuda:1"``, a ``torch.device`` or ``"cpu"``.
        non_blocking
            Return before the copy is done, if the batch is pinned (``build_batch(pin_memory=True)``
            or :meth:`pin_memory`). The device's streams keep the order; on the host, nothing must
            change the batch until the copy is done (``FASTCOLLATE_DEBUG=1`` looks for that). A copy
            to the host is done when this returns.

        Returns
        -------
        Batch
            With everything that this one knows. On the device the outputs share one storage, but
            each has a version counter of its own. This batch, if all of it is there already.

        Raises
        ------
        TypeError
            If the outputs are NumPy arrays, or `non_blocking` is no bool: dtypes are those that the
            batch was built with.
        """
        check_bool("non_blocking", non_blocking)
        return moved(self, device, non_blocking)

    def pin_memory(self) -> Batch[Array]:
        """Copy the batch into pinned memory, if it is not there.

        That is what ``DataLoader(pin_memory=True)`` calls; without workers, and where the batch is
        built in the process that trains, ``build_batch(pin_memory=True)`` saves the copy.

        Returns
        -------
        Batch
            With everything that this one knows, or this one if nothing can be pinned (one warning).

        Raises
        ------
        TypeError
            If the outputs are NumPy arrays.
        """
        return pinned_batch(self)

    def select(
        self, shard: Shard | None = None, *, bins: Sequence[int] | None = None
    ) -> Batch[Array]:
        """Take the rows of a shard, with its padding rows; or some bins of a tree.

        Parameters
        ----------
        shard
            Of a plan that :func:`fastcollate.plan_step` made of this batch.
        bins
            In place of it, which rows of the outputs of a tree to take, in this order. Rows of the
            batch that lie in them keep their order; ``predictors`` count the positions of the new
            batch.

        Returns
        -------
        Batch
            As wide as this one. Views of its outputs where the rows of a shard follow each other
            and none is padding; else written anew, in memory of its own: of a shard on the host, of
            bins where this batch lies.

        Raises
        ------
        ValueError
            The plan was made for another batch, or with a layout in which these rows would lie
            otherwise, or this one has rows in bins; bins that are not there or given twice, or of
            another layout than a tree.
        TypeError
            Neither of the two is given, or both, or one is nothing of that.
        """
        if (shard is None) == (bins is None):
            found = "None" if shard is None else "given"
            raise TypeError(f"shard and bins are both {found}; pass one of them")
        return selected(self, shard) if shard is not None else selected_bins(self, bins)

    def __repr__(self) -> str:
        cells = self._outputs
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  " + "  ".join(map(str.ljust, row, widths)).rstrip()  # one output a line
            for row in cells
        )
        return "\n".join((self._head, *lines))

    def _repr_html_(self) -> str:
        return batch_page(self)

    @property
    def _head(self) -> str:
        """How large the batch is, in words."""
        plan = self._plan
        if plan is None:
            return "Batch without a plan"
        tokens = int((plan.prompt_lens + plan.response_lens)[self._is_real].sum())
        bins = f" in {counted(plan.num_output_rows, 'bin')}" if plan.has_bins else ""
        return (
            f"Batch of {counted(plan.num_rows, 'row')}{bins}, {counted(tokens, 'token')}, "
            f"{_padding(plan):.1%} padding"
        )

    @property
    def _outputs(self) -> list[tuple[str, ...]]:
        """The key of each output, and what it is."""
        return [(str(key), *_describe(value)) for key, value in self._data.items()]

    @property
    def _is_real(self) -> np.ndarray:
        """Which rows are no padding, bool (rows,)."""
        if self.is_padding is None:
            return np.ones(self.plan.num_rows, np.bool_)
        return ~np.array(self.is_padding, np.bool_)

    def _like_outputs(self, array: np.ndarray) -> Array:
        """Return an array of the kind that the outputs are of."""
        found: Any = array
        if not isinstance(next(iter(self._data.values()), array), np.ndarray):
            import torch

            found = torch.from_numpy(array)
        return cast("Array", found)


def _padding(plan: Plan) -> float:
    """Return the share of positions that hold no token of a row that is no padding."""
    return 1 - plan.num_placed / plan.num_positions if plan.num_positions else 0.0


def _describe(value: Any) -> tuple[str, str]:
    """Dtype and shape of an output, or what else it is."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(value.dtype).removeprefix("torch."), str(tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, f"({len(value)} items)"
    return type(value).__name__, repr(value)
