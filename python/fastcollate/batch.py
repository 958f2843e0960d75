"""The batch: a mapping of tensors with the plan that they were built by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

import numpy as np

from fastcollate._fastcollate import Owner, Plan
from fastcollate.arguments import check_bool, counted, suggests_names, warn_user
from fastcollate.core_call import BatchSpec, Collated
from fastcollate.handover.to_device import moved, pinned_batch
from fastcollate.ingest.fields import reserves_keys
from fastcollate.missing_outputs import missing_key, missing_output
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
from fastcollate.ops.model_inputs import KEYS, Mask, model_inputs, positions
from fastcollate.ops.normalize import LossNormalizers, loss_normalizers, normalized
from fastcollate.ops.places import RowPlaces, trained_places
from fastcollate.ops.relayout import relayout
from fastcollate.ops.select import selected, selected_rows
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
    """A property that needs a plan is read on a :class:`Batch` made from a mapping.

    Also an ``AttributeError``, so that ``hasattr`` returns False.
    """


def _missing(name: str) -> MissingPlanError:
    return MissingPlanError(
        f"this Batch was made from a mapping and has no {name}; "
        "use the Batch that build_batch returned"
    )


@reserves_keys
@suggests_names
class Batch(Mapping[str, Any], Generic[Array]):
    """A read-only mapping from output names to arrays, with the plan they were written by.

    ``dict(batch)`` is the data; models are called with :meth:`model_inputs`. Keys are also
    attributes. Batches compare by identity. For type checkers, ``Batch[torch.Tensor]`` has tensors
    and ``Batch[np.ndarray]`` arrays. All outputs share one allocation, which any one of them keeps
    alive: ``clone`` outputs that outlive the batch.

    The keys of a :class:`Collator`'s batch are those of :meth:`model_inputs`, for trainers that
    call the model with all of them; the other outputs, such as ``loss_mask``, are attributes only.

    Parameters
    ----------
    data
        The outputs, as any mapping. A plan is not required: ``type(batch)({...})``, as in torch's
        ``default_collate``, gives a batch of the same keys.
    plan, spec
        The plan and options by which :func:`fastcollate.build_batch` wrote the outputs.
    uids, trajectory_ids
        Ids of each row's prompt group and trajectory, as they were passed.
    is_last_step
        True for rows that hold their trajectory's last turn.
    merge_plan
        The plan by which turns were merged.
    is_padding
        True for padding rows.

    Attributes
    ----------
    uids, trajectory_ids, is_last_step, merge_plan, is_padding
        As above; None if not given.
    """

    __slots__ = (
        "__weakref__",
        "_data",
        "_handover",
        "_inputs",
        "_made_positions",
        "_masked_rewards",
        "_model_mask",
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
    _model_mask: Mask | Literal["default"] | None  # of a Collator's batch
    _inputs: dict[str, Any] | None  # the items of a Collator's batch, made on first access
    _made_positions: Any
    _masked_rewards: int
    _owner: Owner | None
    uids: Sequence[Any] | None
    trajectory_ids: Sequence[Any] | None
    is_last_step: Sequence[bool] | None
    merge_plan: MergePlan | None
    is_padding: Sequence[bool] | None

    # Types of outputs, for type checkers: they are read by `__getattr__`.
    input_ids: Array
    attention_mask: Array
    response_mask: Array
    loss_mask: Array
    rewards: Array
    logprobs: Array
    advantages: Array
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
        self._owner = self._handover = self._model_mask = None
        self._inputs = self._made_positions = None
        self._masked_rewards = 0
        self.uids = uids
        self.trajectory_ids = trajectory_ids
        self.is_last_step = is_last_step
        self.merge_plan = merge_plan
        self.is_padding = is_padding

    @classmethod
    def _of(cls, collated: Collated) -> Batch[Any]:
        """Return the batch of the core's outputs."""
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
        batch._handover = batch._model_mask = batch._inputs = batch._made_positions = None
        return batch

    def _replace(self, **state: Any) -> Batch[Array]:
        """Return a copy with other values in these slots; batches are not changed elsewhere."""
        again = object.__new__(type(self))
        for name in Batch.__slots__:
            if name != "__weakref__":
                setattr(again, name, state[name] if name in state else getattr(self, name))
        again._inputs = again._made_positions = None
        return again

    def _mapping(self) -> dict[str, Any]:
        """Return the items: all outputs, or what a model is called with."""
        if self._model_mask is None:
            return self._data
        if self._inputs is None:
            mask = None if self._model_mask == "default" else self._model_mask
            self._inputs = self.model_inputs(mask)
        return self._inputs

    @property
    def _position_ids(self) -> Any:
        """The output, or else positions made from the plan."""
        if "position_ids" in self._data:
            return self._data["position_ids"]
        if self._made_positions is None:
            self._check_whole()
            self._made_positions = positions(self)
        return self._made_positions

    def _with_data(self, data: dict[str, Any], **state: Any) -> Batch:
        """Return a batch of other outputs, in their own memory."""
        return self._replace(_data=data, _owner=None, **state)

    def _step_rows(self) -> StepRows:
        """Return the rows as input of a step plan."""
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
            # Rows selected from a merged batch are not those of its plan any more.
            merge=self.merge_plan if self.is_padding is None else None,
        )

    def __getitem__(self, key: str) -> Any:
        try:
            is_input = self._model_mask is not None and key in KEYS
            return self._mapping()[key] if is_input else self._data[key]
        except (KeyError, TypeError) as error:  # slices have no hash
            raise KeyError(missing_key(self, key)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())

    def __contains__(self, key: object) -> bool:
        return key in self._mapping()

    def __setitem__(self, key: str, value: Any) -> None:
        self._of_mapping()[key] = value

    def __delitem__(self, key: str) -> None:
        del self._of_mapping()[key]

    def pop(self, key: str, *default: Any) -> Any:
        """Remove an item of a batch made from a mapping, as trainers do with its labels."""
        return self._of_mapping().pop(key, *default)

    def _of_mapping(self) -> dict[str, Any]:
        """Return the items, which may change if no plan describes them."""
        if self._plan_or_call is not None:
            raise TypeError("a Batch is read-only; pass dict(batch), whose items may change")
        return self._data

    def __getattr__(self, name: str) -> Any:
        # Called if no method or property has that name, or a property finds no plan. Private
        # names are never keys: looking up `_data` here before it is set would recurse forever.
        if name.startswith("_"):
            raise AttributeError(f"Batch has no attribute {name!r}")
        if name in _NEEDS_PLAN:
            raise _missing(name)
        if (self._model_mask is None or name not in KEYS) and name in self._data:
            return self._data[name]
        if name in KEYS and name in (items := self._mapping()):
            return items[name]
        are_left_out = self._spec is None or self._spec.outputs.position_ids[0] == "omitted"
        if name == "position_ids" and not are_left_out:
            return self._position_ids
        raise AttributeError(missing_output(self, name))

    def __dir__(self) -> list[str]:
        names = (name for name in super().__dir__() if name.startswith("__") or name[0] != "_")
        return sorted({*names, *map(str, self._mapping()), *map(str, self._data)})

    def __eq__(self, other: object) -> bool:
        # A mapping would compare its tensors and take the truth value of the result.
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...], tuple[None, Any]]:
        names = (self.uids, self.trajectory_ids, self.is_last_step)
        how = (self._plan, self._spec, *names, self.merge_plan, self.is_padding)
        state = {"_masked_rewards": self._masked_rewards, "_model_mask": self._model_mask}
        return unpickled, (type(self), own_memory(self._data), *how), (None, state)

    @property
    def _plan(self) -> Plan | None:
        """The plan, made on first access if it was deferred."""
        plan = self._plan_or_call
        if callable(plan):
            plan = self._plan_or_call = plan()
        return plan

    @property
    def plan(self) -> Plan:
        """The lengths of the rows and their positions in the outputs.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping; the other properties raise it too.
        """
        plan = self._plan
        if plan is None:
            raise _missing("plan")
        return plan

    @property
    def spec(self) -> BatchSpec:
        """The options that the batch was built with, in addition to its plan."""
        if self._spec is None:
            raise _missing("spec")
        self._check_whole()
        return self._spec

    def _check_whole(self) -> None:
        """Check that the batch holds all positions of the plan."""
        if self._spec is not None and self._spec.cp is not None:
            size, rank = self._spec.cp
            raise ValueError(
                f"the batch holds the chunks of context-parallel rank {rank} of {size} alone; use "
                "the whole batch, built without cp and not split"
            )

    @property
    def bin_plan(self) -> BinPlan | None:
        """The bins of the packed layout, with the width as capacity; None in other layouts."""
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
        """The attention mask as one integer per position: int32, in the shape of ``input_ids``.

        Position q of an output row attends to k if and only if ``k <= q < subtree_end[k]``.
        Positions count within the output row, (N, W), and in the jagged layout over all tokens,
        (total,). A token's subtree ends with its sequence. Padding attends to itself only, even if
        `padding_as` makes it part of a segment of ``cu_seqlens``.

        Computed on each access, on the device of ``input_ids``. If there is an output of that key,
        as in trees, that one is returned.
        """
        self._check_whole()
        found = self._data["subtree_end"] if "subtree_end" in self._data else subtree_end(self)
        return cast("Array", found)

    @property
    def targets(self) -> Array:
        """The token of each response-aligned value, of the dtype of ``input_ids``.

        (B, R), packed (N, W), jagged (response tokens,). 0 where there is no token, so that it can
        index logits (:meth:`loss_positions`). If there is an output of that key, that one is
        returned.
        """
        if "targets" in self._data:
            return cast("Array", self._data["targets"])
        self._check_whole()
        return cast("Array", targets(self))

    @property
    def metrics(self) -> dict[str, float]:
        """Sizes of the batch as a flat dict for logging. Padding rows count as padding.

        Returns
        -------
        dict
            ``batch/rows``; in layouts with bins ``batch/bins``; in trees ``batch/token_ratio``, the
            tokens of all rows divided by those of the tree; ``batch/tokens``, of which
            ``batch/prompt_tokens`` and ``batch/response_tokens``; ``batch/padded_tokens``, the
            positions of ``input_ids``, and ``batch/padding_fraction``, the share of them that is
            padding (0 to 1); the lengths ``batch/longest_row``, ``batch/longest_prompt`` and
            ``batch/longest_response``, and the percentiles of each, from ``batch/row_length_p50``
            to ``batch/response_length_p99`` (50, 90 and 99). ``batch/trained_tokens``: tokens whose
            loss mask is not 0; ``batch/rows_without_loss``: rows without trained tokens.
            ``batch/tokens_without_predecessor``: sampled tokens at the start of a sequence, or of a
            part of a split one, which no token predicts; their loss mask is 0, and they have no
            label. In merged batches also :attr:`MergeReport.metrics`, such as
            ``generate/num_seq_before_merge``, and ``generate/num_rewards_masked_by_merge``: nonzero
            rewards on tokens that realigning masked. Rewards per token are lost there; one reward
            per turn whose last token is masked moves to the end of the row
            (``rewards="sum"``). The metrics of merging are those of the whole step, also in a
            shard.
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
        # Without a table of outputs the mask is not known, a context-parallel part has only some
        # of it, and tensors of the device "meta" have no values.
        has_values = not getattr(self._data["input_ids"], "is_meta", False)
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
        MissingPlanError
            If the batch was made from a mapping.
        IndexError
            If there is no such row.
        ValueError
            If a field is no output, or has no value per token or row.
        TypeError
            If `tokenizer` cannot decode, or does not return text.

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
        """Look for probable mistakes in the batch. Padding rows are skipped.

        Parameters
        ----------
        vocab_size
            Number of token ids; if None, ids are only checked to be 0 or more.
        eos_token_id
            The id or ids that end a response; None skips the check for responses that are cut off.

        Returns
        -------
        Findings
            A list of :class:`fastcollate.planning.Finding`, one per row and kind, that prints as a
            table; empty if nothing was found. The kinds: ``"all_masked"``, no token of the batch
            trains, else ``"trains_nothing"``, no token of a row trains;
            ``"trains_first_token"``, a label or loss mask on a token that no token predicts;
            ``"labels_as_mask"``, a loss mask of token ids and -100, and ``"negative_mask"``, other
            negative weights (:func:`build_batch` refuses them, but masks can be modified);
            ``"nan"``, in a float output with one value per token; ``"zero_logprobs"``, 0 on the
            whole response of a row that trains, ``"positive_logprob"`` and ``"infinite_logprob"``
            in ``logprobs``; ``"untrained_reward"``, a reward on a token that does not train, in a
            row that does; ``"outside_vocabulary"``, an id below 0, or not below `vocab_size`;
            ``"cut_off"``, the last trained token is not in `eos_token_id`; ``"duplicate"``, the
            tokens of an earlier row; ``"padding"``, half of the positions or more, in padded
            layouts.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping.
        TypeError, ValueError
            If `vocab_size` is no count, or `eos_token_id` no id.

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
        of: Literal["response", "sequence"] | None = None,
        shift: Shift | None = None,
        missing: float | None = None,
        per: Literal["row", "turn"] = "row",
        gaps: bool = True,
    ) -> Ragged:
        """Gather the values of all response tokens from a model's per-token outputs.

        The alignment of `x` is given, never inferred; its shape is checked.

        Parameters
        ----------
        x
            An array or tensor, on any device; trailing dimensions are kept. A tensor's gradients
            flow through. In a tree, a position that several tokens follow has one value for all of
            them: for log-probabilities use :meth:`loss_positions` instead.
        of
            ``"response"``: `x` is aligned with this batch's response-aligned fields, (B, R, ...)
            (packed: with the batch's `shift`). ``"sequence"``: `x` is aligned with ``input_ids``,
            (B, W, ...). None means ``"response"``, and is refused if the shape of `x` fits both, as
            it always does in packed batches.
        shift
            Required with ``of="sequence"``. ``"next_token"``: position p of a sequence holds the
            value of token p + 1, as in log-probabilities of a model; then `x` may be one position
            shorter. ``"none"``: position p holds the value of token p, as in ``input_ids``. With
            ``of="response"`` only ``"none"``.
        missing
            Number for values that `x` does not have, in its dtype; None raises an error. With
            ``"next_token"`` these are the first tokens of rows without a prompt and of parts of
            split rows; with ``per="turn"`` also tokens that are in no row.
        per
            ``"row"``: one item per row of the batch; in packed batches in the order of rows, not of
            bins, and without padding rows. ``"turn"``: one per turn, in the order of the input,
            with its response tokens; those that merging masked or dropped are missing.
        gaps
            Include the observations between a row's responses, and tokens that realigning masked.

        Returns
        -------
        Ragged
            Response values of each row or turn, over a tensor if `x` is one.

        Raises
        ------
        ValueError
            If `x` has another shape, or one that fits both alignments and `of` is None; if values
            are missing and `missing` is None.
        TypeError
            If `shift` is not given with ``of="sequence"``.
        """
        return gathered(self.plan, x, of, shift, missing, per, gaps)

    def model_inputs(self, mask: Mask | None = None, dtype: Any = "float32") -> dict[str, Any]:
        """Return what a transformers model is called with: ``model(**batch.model_inputs())``.

        Parameters
        ----------
        mask
            For packed rows, jagged rows and trees: ``"dense"`` adds :meth:`dense_mask` as
            ``attention_mask``, and ``"block"`` :meth:`block_mask`, for models with
            ``attn_implementation="flex_attention"``. None adds the dense mask only where the
            model needs it.
        dtype
            Dtype of the dense mask, which is additive. float32 suits models of float32, bfloat16
            and float16; pass ``"float64"`` for a model of float64, for which torch's
            ``scaled_dot_product_attention`` misreads a mask of float32.

        Returns
        -------
        dict
            ``input_ids``, (B, W), jagged (1, tokens). ``attention_mask`` of padded rows; the dense
            mask of trees; none for packed and jagged rows, whose sequences models find by their
            positions, unless those are left out. ``position_ids``, unless left out. With `labels`,
            both ``labels``, each at its own token, and ``shift_labels``, each at the token before:
            a model takes the second for its loss, and a trainer counts the first.
            ``use_cache=False``, except for padded rows: a cache would take the place of masks.
            Fields of ``PerRow(concat=True)``, such as ``pixel_values``.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping: it is what a model is called with.
        TypeError, ValueError
            If `mask` does not fit the layout or the array type.

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[5, 6], [7]], [[8], [9]], pad_token_id=0, labels="aligned", array_type="numpy"
        ... )
        >>> for name, value in batch.model_inputs().items():
        ...     print(name, value.tolist())
        input_ids [[5, 6, 8], [0, 7, 9]]
        attention_mask [[1, 1, 1], [0, 1, 1]]
        position_ids [[0, 1, 2], [0, 0, 1]]
        labels [[-100, -100, 8], [-100, -100, 9]]
        shift_labels [[-100, 8, -100], [-100, 9, -100]]
        """
        if self._plan is None:
            raise _missing("model_inputs")
        self._check_whole()
        return model_inputs(self, mask, dtype)

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
        self._check_whole()
        return cast("Array", dense_mask(self, dtype, window))

    def block_mask(
        self, block_size: int = 128, device: Any = None, window: int | None = None
    ) -> BlockMask:
        """Return the attention mask for torch's FlexAttention.

        The same tables as those of ``create_block_mask``, but written from the plan, without
        evaluating each pair of positions.

        Parameters
        ----------
        block_size
            Number of positions of a block, for queries and keys.
        device
            Device of the mask; None: that of ``input_ids``.
        window
            As :meth:`dense_mask`.

        Returns
        -------
        torch.nn.attention.flex_attention.BlockMask
            Of shape (N, 1, W, W); in the jagged layout (1, 1, total, total). Computed on each call:
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
        self._check_whole()
        return attention_ranges(self)

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
            If ``loss_mask`` was modified and trains a token that no token predicts.

        Notes
        -----
        Trained tokens are those whose ``loss_mask`` is not 0. If the mask is on a device, this call
        synchronizes.

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[5, 6], [7]], [[8, 9], [3]], pad_token_id=0, array_type="numpy", layout="jagged"
        ... )
        >>> pos, inv = batch.loss_positions()
        >>> pos, inv, batch.targets
        (array([1, 2, 4]), array([0, 1, 2]), array([8, 9, 3]))

        With ``hidden``, (N, W, hidden), from a model without its head::

            logits = lm_head(hidden.flatten(0, 1)[pos])
            logp = logits.log_softmax(-1)[inv, batch.targets]
        """
        self._check_whole()
        return loss_positions(self)

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
            numbers = np.asarray(per_row)
            is_float = numbers.dtype == np.float64
            per_row = self._like_outputs(numbers.astype(np.float32) if is_float else numbers)
        self._check_whole()
        return broadcasted(self, per_row, on)

    def normalize(
        self,
        advantages: Any,
        plan: StepPlan,
        per: Literal["mini_batch", "batch", "prompt"] = "mini_batch",
    ) -> Any:
        """Normalize advantages to mean 0 and standard deviation 1.

        ``(x - mean) / sqrt(max(var, 1e-8))``, with the population variance, over the trained tokens
        of the real rows within each boundary: those where ``loss_mask`` is not 0 (weights only
        select).

        Parameters
        ----------
        advantages
            An array or tensor in the shape of this batch's response-aligned fields, (B, R) or
            jagged (response tokens,), on any device that has float64. Gradients flow through.
        plan
            The plan of this batch's step. The batch holds either all rows of the step in their
            order, without padding, or one row per slot of the plan, in slot order. If the plan has
            no padding, both counts are equal: then a batch whose ``is_padding`` is not None is in
            slot order.
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
        ValueError
            If the shape does not fit, or the plan is of another batch.
        TypeError
            If `advantages` is no array or tensor, or `plan` no step plan.

        Notes
        -----
        One pass, with sums in float64. SkyRL's ``RayPPOTrainer._normalize_advantages`` takes its
        mean over all positions, padding included; this one does not.

        In a batch made from a mapping the mask is the key ``loss_mask``, else ``response_mask``,
        else all tokens that ``response_offsets`` count.
        """
        self._check_whole()
        return normalized(self, advantages, plan, per)

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
        self._check_whole()
        return loss_normalizers(self, plan)

    def to_layout(
        self,
        layout: LayoutArgument,
    ) -> Batch[Array]:
        """Convert the batch to another layout.

        No value is lost: converting back to the original layout gives the same outputs bit for bit.

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
        again = relayout(self, checked_layout(layout).spec)
        if (message := split_message(again.plan)) is not None:
            warn_user(message)
        return again

    def to(self, device: Any, non_blocking: bool = False) -> Batch[Array]:
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
            If the outputs are NumPy arrays, or `non_blocking` is no bool (dtypes cannot be
            changed here).
        """
        check_bool("non_blocking", non_blocking)
        return moved(self, device, non_blocking)

    def pin_memory(self) -> Batch[Array]:
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
        return pinned_batch(self)

    def select(
        self,
        shard: Shard | None = None,
        *,
        rows: Sequence[int] | None = None,
        bins: Sequence[int] | None = None,
    ) -> Batch[Array]:
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

        Examples
        --------
        >>> batch = fc.build_batch(
        ...     [[5, 6], [7], [8]], [[8, 9], [3], [4]], pad_token_id=0, array_type="numpy"
        ... )
        >>> batch.select(rows=[2, 0]).input_ids
        array([[0, 0, 8, 4],
               [5, 6, 8, 9]])
        """
        arguments = {"shard": shard, "rows": rows, "bins": bins}
        given = [name for name, value in arguments.items() if value is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "shard, rows and bins are None"
            raise TypeError(f"{found}; pass one of shard, rows and bins")
        if rows is not None:
            return selected_rows(self, rows)
        return selected(self, shard) if bins is None else selected_bins(self, bins)

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
        """A summary of the batch's size."""
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
        """The key, dtype and shape of each output."""
        return [(str(key), *_describe(value)) for key, value in self._mapping().items()]

    @property
    def _is_real(self) -> np.ndarray:
        """True for rows that are not padding, bool (rows,)."""
        if self.is_padding is None:
            return np.ones(self.plan.num_rows, np.bool_)
        return ~np.array(self.is_padding, np.bool_)

    def _like_outputs(self, array: np.ndarray) -> Array:
        """Return an array of the outputs' kind."""
        found: Any = array
        if not isinstance(next(iter(self._data.values()), array), np.ndarray):
            import torch

            found = torch.from_numpy(array)
        return cast("Array", found)


def _padding(plan: Plan) -> float:
    """Return the share of positions without a token of a real row."""
    return 1 - plan.num_placed / plan.num_positions if plan.num_positions else 0.0


def _describe(value: Any) -> tuple[str, str]:
    """Return the dtype and shape of an output, or its type and contents."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(value.dtype).removeprefix("torch."), str(tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, f"({len(value)} items)"
    return type(value).__name__, repr(value)
