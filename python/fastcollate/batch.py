"""The batch: a mapping of tensors that knows how it was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fastcollate._fastcollate import Lease, Plan
from fastcollate.memory import release

_NEEDS_PLAN = frozenset({"plan", "prompt_lens", "response_lens", "metrics"})


class MissingPlanError(RuntimeError, AttributeError):
    """A :class:`Batch` made from a mapping is asked for what only its plan would know.

    Also an ``AttributeError``, so that ``hasattr`` says no.
    """


class ClosedBatchError(RuntimeError):
    """A :class:`Batch` is used whose memory a later batch has taken over."""


class Batch(Mapping[str, Any]):
    """A read-only mapping from output names to arrays, with the plan they were written by.

    Goes into a model call or a framework's dict as it is: ``model(**batch)``, ``dict(batch)``.
    Every key can also be read as an attribute, unless a method or property has that name. Two
    batches are equal only if they are the same object. All outputs lie in one allocation: any one
    of them keeps it alive, so ``clone`` what is to outlive the batch.

    Parameters
    ----------
    data
        The outputs. Any mapping will do, and without a plan: code that rebuilds its inputs by
        ``type(batch)({...})`` (Hugging Face's ``Trainer``, the pinning of torch's ``DataLoader``)
        gets a batch of the same keys.
    plan
        What :func:`fastcollate.build_batch` wrote the outputs by.
    """

    # A closed batch has none of them, so that no access can miss that it is closed.
    __slots__ = ("__weakref__", "_data", "_lease", "_plan")

    _data: dict[str, Any]
    _plan: Plan | None
    _lease: Lease | None

    def __init__(
        self, data: Mapping[str, Any] | Iterable[tuple[str, Any]], plan: Plan | None = None
    ) -> None:
        self._data = dict(data)
        self._plan = plan
        self._lease = None

    @classmethod
    def _of_lease(
        cls, data: Mapping[str, Any] | Iterable[tuple[str, Any]], plan: Plan, lease: Lease
    ) -> Batch:
        """Make a batch whose memory can be taken over."""
        batch = cls(data, plan)
        batch._lease = lease
        return batch

    def _close(self) -> Lease:
        """Give the memory up, if nothing but the batch's own outputs sees it."""
        if self._lease is None:
            raise ValueError(
                "out has no memory of its own: it is a copy or was made from a mapping; "
                "pass a Batch that build_batch returned"
            )
        lease = self._lease.claim()
        if lease is None:
            raise ClosedBatchError("another thread is taking over the memory of out")
        outputs, plan = self._data, self._plan
        del self._data, self._plan, self._lease
        if (user := release(outputs, lease)) is None:
            return lease
        self._data, self._plan, self._lease = outputs, plan, lease
        raise ValueError(
            f"out cannot be taken over: {user} still uses its memory; "
            "delete that first, or clone what is to be kept"
        )

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __getattr__(self, name: str) -> Any:
        # Called where no method or property has that name, or a property finds no plan. Private
        # names are never keys: looking `_data` up here before it is set would not end.
        if name in Batch.__slots__:
            raise ClosedBatchError(
                "this Batch is closed: build_batch(..., out=batch) has taken its memory over; "
                "use the Batch that it returned"
            )
        if name.startswith("_"):
            raise AttributeError(f"Batch has no attribute {name!r}")
        if name in _NEEDS_PLAN:
            raise MissingPlanError(f"{name} needs a plan, but this Batch was made from a mapping")
        if name in self._data:
            return self._data[name]
        raise AttributeError(f"Batch has no attribute or key {name!r}; its keys are {list(self)}")

    def __dir__(self) -> list[str]:
        names = (name for name in super().__dir__() if name.startswith("__") or name[0] != "_")
        return sorted({*names, *map(str, self._data)})

    def __eq__(self, other: object) -> bool:
        # A mapping would compare its tensors and ask whether the result is true.
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[type[Batch], tuple[dict[str, Any], Plan | None]]:
        return type(self), (self._data, self._plan)

    @property
    def plan(self) -> Plan:
        """What the rows are made of and where they lie.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping. So do the other properties.
        """
        if self._plan is None:
            raise MissingPlanError(
                "this Batch was made from a mapping and has no plan; "
                "use the Batch that build_batch returned"
            )
        return self._plan

    @property
    def prompt_lens(self) -> Any:
        """Prompt tokens of each row: int64 (rows,), an array of the batch's kind."""
        return self._like_outputs(self.plan.prompt_lens)

    @property
    def response_lens(self) -> Any:
        """Response tokens of each row: int64 (rows,), an array of the batch's kind."""
        return self._like_outputs(self.plan.response_lens)

    @property
    def metrics(self) -> dict[str, float]:
        """Sizes of the batch, flat and ready to be logged.

        Returns
        -------
        dict
            ``batch/rows``; ``batch/tokens``, of which ``batch/prompt_tokens`` and
            ``batch/response_tokens``; ``batch/padded_tokens``, the positions of ``input_ids``, and
            ``batch/padding_fraction``, the share of them that is padding (0 to 1); the lengths
            ``batch/longest_row``, ``batch/longest_prompt`` and ``batch/longest_response``.
        """
        plan = self.plan
        prompt_lens, response_lens = plan.prompt_lens, plan.response_lens
        prompt_tokens, response_tokens = int(prompt_lens.sum()), int(response_lens.sum())
        tokens = prompt_tokens + response_tokens
        padded_tokens = plan.num_rows * plan.width
        return {
            "batch/rows": float(plan.num_rows),
            "batch/tokens": float(tokens),
            "batch/prompt_tokens": float(prompt_tokens),
            "batch/response_tokens": float(response_tokens),
            "batch/padded_tokens": float(padded_tokens),
            "batch/padding_fraction": 1 - tokens / padded_tokens if padded_tokens else 0.0,
            "batch/longest_row": float(plan.longest_row),
            "batch/longest_prompt": float(prompt_lens.max()),
            "batch/longest_response": float(response_lens.max()),
        }

    def __repr__(self) -> str:
        try:
            plan = self._plan
        except ClosedBatchError:
            return "Batch, closed: a later one has taken its memory over"
        if plan is None:
            head = "Batch without a plan"
        else:
            metrics = self.metrics
            head = (
                f"Batch of {metrics['batch/rows']:,.0f} rows, {metrics['batch/tokens']:,.0f} "
                f"tokens, {metrics['batch/padding_fraction']:.1%} padding"
            )
        cells = [(str(key), *_describe(value)) for key, value in self._data.items()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  " + "  ".join(map(str.ljust, row, widths)).rstrip()  # one output a line
            for row in cells
        )
        return "\n".join((head, *lines))

    def _like_outputs(self, array: np.ndarray) -> Any:
        """Return an array of the kind that the outputs are of."""
        if isinstance(next(iter(self._data.values()), array), np.ndarray):
            return array
        import torch

        return torch.from_numpy(array)


def _describe(value: Any) -> tuple[str, str]:
    """Dtype and shape of an output, or what else it is."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(value.dtype).removeprefix("torch."), str(tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, f"({len(value)} items)"
    return type(value).__name__, repr(value)
