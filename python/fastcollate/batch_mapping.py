"""The mapping behaviour of a batch: its items and attributes, and the plan of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, overload

import numpy as np

from fastcollate.common.arguments import tally
from fastcollate.common.arrays import describe
from fastcollate.common.names import NamesAttributesOfMapping, public_names
from fastcollate.ops.attention import subtree_end
from fastcollate.ops.batch_state import BatchState, missing_plan
from fastcollate.ops.loss_positions import label_key, targets, with_masked_labels
from fastcollate.ops.masks import MASK_KEYS
from fastcollate.ops.metrics import padding_of
from fastcollate.ops.missing_outputs import (
    NO_ARITHMETIC,
    NOT_JOINED,
    READ_ONLY,
    missing_key,
    missing_output,
    no_tensor,
    not_assigned,
    refused,
)
from fastcollate.ops.model_inputs import (
    KEYS,
    check_made_positions,
    inputs_without_masks,
    is_input,
    masks_of,
    positions,
)
from fastcollate.ops.parts import listed
from fastcollate.ops.pickling import own_memory, restore
from fastcollate.ops.tree_labels import tree_label_keys, tree_labels
from fastcollate.plan.bin_plan import BinPlan

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self, TypeVar  # with defaults

    from fastcollate._fastcollate import Plan
    from fastcollate.ops.batch_state import BatchSpec
    from fastcollate.plan.merging import MergePlan

    Array = TypeVar("Array", covariant=True, default=torch.Tensor)
else:
    from typing import TypeVar

    Array = TypeVar("Array", covariant=True)

_NEEDS_PLAN = frozenset(
    {
        *("plan", "spec", "prompt_lens", "response_lens", "metrics", "bin_plan"),
        *("subtree_end", "targets"),
    }
)


class BatchMapping(Mapping[str, Any], Generic[Array], metaclass=NamesAttributesOfMapping):
    """The items and attributes of :class:`fastcollate.Batch`."""

    __slots__ = (
        *("__weakref__", "_current", "_first_labels", "_inputs", "_label_key", "_masks"),
        *("_positions", "_versions"),
    )

    _current: BatchState
    # The labels that follow the loss mask, and torch's counts of changes to both.
    _label_key: str | None
    _first_labels: Any
    _versions: tuple[int, int, int]
    # Made on first access: the items of a collator's batch without masks, the masks, and positions.
    _inputs: dict[str, Any] | None
    _masks: dict[str, Any] | None
    _positions: Any

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

    def __init__(self, data: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        try:
            self._begin(BatchState(dict(data)))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"data is {describe(data)}; pass a mapping of outputs, or make a batch of rows by "
                "fc.build_batch"
            ) from error

    def _begin(self, state: BatchState) -> None:
        put = object.__setattr__  # its own takes three times as long
        put(self, "_current", state)
        put(self, "_label_key", key := label_key(state))
        for name in ("_inputs", "_masks", "_positions"):
            put(self, name, None)
        if key is not None:
            self._first_labels = state.data[key]
            self._versions = self._versions_of(state, key)

    @classmethod
    def _of(cls, state: BatchState) -> Self:
        """Return the batch of a state."""
        batch = object.__new__(cls)
        batch._begin(state)
        return batch

    def _copy(self, state: BatchState) -> Self:
        """Return the batch of a state that was made from this batch's."""
        check_made_positions(self._state, self._positions)
        return self._of(state)

    @property
    def _state(self) -> BatchState:
        """All that the batch holds; its labels follow a loss mask that was changed in place."""
        state, key = self._current, self._label_key
        if key is None or (versions := self._versions_of(state, key)) == self._versions:
            return state
        labels = self._first_labels, state.data[key]
        counts = zip(labels, versions[1:], self._versions[1:], strict=True)
        own = [given for given, now, before in counts if now != before]
        if state.has_own_labels:
            own.append(labels[1])
        state = state._replace(has_own_labels=len(own) > 0)
        if versions[0] != self._versions[0] or any(given is not labels[1] for given in own):
            state = with_masked_labels(state, key, self._first_labels, own)
            self._inputs = self._masks = None
        self._current, self._versions = state, self._versions_of(state, key)
        return state

    def _versions_of(self, state: BatchState, key: str) -> tuple[int, int, int]:
        """Return the numbers of changes in place of the loss mask, the first labels and these."""
        data = state.data
        return data["loss_mask"]._version, self._first_labels._version, data[key]._version

    def _replace(self, **state: Any) -> Self:
        """Return a copy with other values in its state; batches are not changed elsewhere."""
        return self._of(self._state._replace(**state))

    def _with_data(self, data: dict[str, Any], **state: Any) -> Self:
        """Return a batch of other outputs, in their own memory."""
        return self._replace(data=data, owner=None, **state)

    @property
    def _data(self) -> dict[str, Any]:
        """All outputs."""
        return self._state.data

    def _mapping(self) -> dict[str, Any]:
        """Return the items: all outputs, or what a model is called with."""
        state = self._state
        if state.call is None:
            return {**state.data, **no_mask} if (no_mask := refused(state)) else state.data
        inputs = self._inputs_of("input_ids")
        return {"input_ids": inputs["input_ids"], **self._inputs_of("attention_mask"), **inputs}

    def _inputs_of(self, key: object) -> dict[str, Any]:
        """Return the model's inputs that have this one, if any: the masks, or all others."""
        state = self._current  # callers have read `_state`
        if key not in MASK_KEYS:
            if self._inputs is None:
                self._inputs = inputs_without_masks(state, self._position_ids)
            return self._inputs
        if self._masks is None:
            assert state.call is not None
            self._masks = masks_of(state, state.call)
        return self._masks

    @property
    def _position_ids(self) -> Any:
        """The output, or else positions made from the plan; None if they were left out."""
        if self._positions is None:
            self._positions = positions(self._state)
        return self._positions

    # Values per row may be lists instead of arrays: attributes of other names are `Any`.
    @overload
    def __getitem__(self, key: Literal["max_seqlen", "max_seqlen_padded"]) -> int: ...
    @overload
    def __getitem__(
        self, key: Literal["row_cu_seqlens", "row_cu_seqlens_padded"]
    ) -> list[Array]: ...
    @overload
    def __getitem__(self, key: str) -> Array: ...
    def __getitem__(self, key: str) -> Any:
        state = self._state
        try:
            has_inputs = state.call is not None and is_input(state, key)
            return self._inputs_of(key)[key] if has_inputs else listed(state.data[key])
        except (KeyError, TypeError) as error:  # slices have no hash
            if isinstance(key, str) and key in (no_mask := refused(state)):
                return no_mask[key]
            message = missing_key(
                state.known_plan, state.data, key, self._is_attribute(key), public_names(type(self))
            )
            raise KeyError(message) from error

    def _is_attribute(self, key: Any) -> bool:
        """Return True for the name of a public attribute or method."""
        if not isinstance(key, str) or key.startswith("_"):
            return False
        return hasattr(self if key == "position_ids" else type(self), key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())

    def __contains__(self, key: object) -> bool:
        has_inputs = self._state.call is not None
        return key in (self._inputs_of(key) if has_inputs else self._mapping())

    def __setitem__(self, key: str, value: Any) -> None:
        if not self._has(key, value):
            self._of_mapping()[key] = value

    def _has(self, key: object, value: Any) -> bool:
        """Return True for an output that is assigned to itself, as by ``batch.loss_mask *= 2``."""
        return isinstance(key, str) and value is not None and self._data.get(key) is value

    def __delitem__(self, key: str) -> None:
        del self._of_mapping()[key]

    def pop(self, key: str, *default: Any) -> Any:
        """Remove an item of a batch made from a mapping, as trainers do with its labels."""
        return self._of_mapping().pop(key, *default)

    def _of_mapping(self) -> dict[str, Any]:
        """Return the items, which may change if no plan describes them."""
        if self._state.made_by is not None:
            raise TypeError(READ_ONLY)
        return self._state.data

    def __getattr__(self, name: str) -> Any:
        # Called if no method or property has that name, or a property finds no plan. Private
        # names are never keys: looking up `_state` here before it is set would recurse forever.
        if name.startswith("_"):
            raise AttributeError(
                f"Batch has no attribute {name!r}; an output of that name is batch[{name!r}]"
            )
        if name in _NEEDS_PLAN:
            raise missing_plan(name)
        state = self._state
        is_input = state.call is not None and name in KEYS
        if not is_input and name in state.data:
            return listed(state.data[name])
        if is_input and name in (inputs := self._inputs_of(name)):
            return inputs[name]
        if name == "position_ids" and (found := self._position_ids) is not None:
            return found
        if name in tree_label_keys(state):
            return tree_labels(state, name)
        names = public_names(type(self))
        raise AttributeError(missing_output(state.known_plan, state.data, name, names))

    if not TYPE_CHECKING:  # type checkers would let batches be added

        def __add__(self, other):
            raise TypeError(NOT_JOINED)

        __radd__ = __or__ = __ror__ = __add__

        def __mul__(self, other):
            raise TypeError(NO_ARITHMETIC)

        __rmul__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __mul__
        __lt__ = __le__ = __gt__ = __ge__ = __mul__

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            # Called by torch's functions and layers that get a batch in place of a tensor.
            raise TypeError(no_tensor(getattr(function, "__name__", function)))

        def __setattr__(self, name, value):
            try:
                object.__setattr__(self, name, value)
            except AttributeError:
                if not self._has(name, value):
                    raise AttributeError(not_assigned(self._data, name)) from None

        def __delattr__(self, name):
            raise AttributeError(READ_ONLY)

    def __dir__(self) -> list[str]:
        names = (name for name in super().__dir__() if name.startswith("__") or name[0] != "_")
        return sorted({*names, *map(str, self._known_keys), *map(str, self._data)})

    def __eq__(self, other: object) -> bool:
        # A mapping would compare its tensors and take the truth value of the result.
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        state = self._state
        check_made_positions(state, self._positions)
        data, plan = own_memory(state.data), state.known_plan
        return restore, (
            type(self),
            *state._replace(data=data, made_by=plan, owner=None, transfer=None),
        )

    @property
    def uids(self) -> Sequence[Any] | None:
        """The id of each row's prompt group, as it was passed; None if not given."""
        return self._state.uids

    @property
    def trajectory_ids(self) -> Sequence[Any] | None:
        """The id of each row's trajectory, as it was passed; None if not given."""
        return self._state.trajectory_ids

    @property
    def is_last_step(self) -> Sequence[bool] | None:
        """True for rows that hold their trajectory's last turn; None if not given."""
        return self._state.is_last_step

    @property
    def merge_plan(self) -> MergePlan | None:
        """The plan by which turns were merged; None without merging."""
        return self._state.merge_plan

    @property
    def is_padding(self) -> Sequence[bool] | None:
        """True for padding rows; None if the batch can have none."""
        return self._state.is_padding

    @property
    def plan(self) -> Plan:
        """The lengths of the rows and their positions in the outputs.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping; the other properties raise it too.
        """
        return self._state.plan

    @property
    def spec(self) -> BatchSpec:
        """The options that the batch was built with, in addition to its plan."""
        return self._state.spec

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
        self._state.check_whole()
        data = self._data
        if "subtree_end" in data:
            return cast("Array", data["subtree_end"])
        return cast("Array", subtree_end(self.plan, data["input_ids"]))

    @property
    def targets(self) -> Array:
        """The token of each response-aligned value, of the dtype of ``input_ids``.

        (B, R), packed (N, W), jagged (response tokens,). 0 where there is no token, so that it can
        index logits (:meth:`loss_positions`). Computed on each access: keep them in a variable to
        change them. If there is an output of that key, as in trees, that one is returned.
        """
        if "targets" in self._data:
            return cast("Array", self._data["targets"])
        self._state.check_whole()
        return cast("Array", targets(self.plan, self._data["input_ids"]))

    def _like_outputs(self, array: np.ndarray) -> Array:
        """Return an array of the outputs' kind."""
        found: Any = array
        if not isinstance(next(iter(self._data.values()), array), np.ndarray):
            import torch

            found = torch.from_numpy(array)
        return cast("Array", found)

    def __repr__(self) -> str:
        cells = self._outputs
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
        return "\n".join((self._head, *lines))

    def _repr_html_(self) -> str:
        from fastcollate.inspect.batch_view import batch_page

        return batch_page(self._state, repr(self))

    @property
    def _head(self) -> str:
        """A summary of the batch's size."""
        state = self._state
        if (plan := state.known_plan) is None:
            return "Batch without a plan"
        tokens = int((plan.prompt_lens + plan.response_lens)[state.is_real].sum())
        bins = f" in {tally(plan.num_output_rows, 'bin')}" if plan.has_bins else ""
        return (
            f"Batch of {tally(plan.num_rows, 'row')}{bins}, {tally(tokens, 'token')}, "
            f"{padding_of(plan):.1%} padding"
        )

    @property
    def _outputs(self) -> list[tuple[str, ...]]:
        """The key, dtype and shape of each output."""
        return [(str(key), *_describe(self[key])) for key in self._known_keys]

    @property
    def _known_keys(self) -> list[str]:
        """The keys, without masks if those depend on a model that is not known, or are refused."""
        try:
            return [*self] if self._state.call is not None else [*self._data]
        except ValueError:  # of a collator's batch in another layout
            return [*self._inputs_of("input_ids")]


def _describe(value: Any) -> tuple[str, str]:
    """Return the dtype and shape of an output, or its type and contents."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(value.dtype).removeprefix("torch."), str(tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, f"({len(value)} items)"
    return type(value).__name__, repr(value)
