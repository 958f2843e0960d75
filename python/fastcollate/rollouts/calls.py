"""Calls of a model: a table of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arguments import check_choice, tally
from fastcollate.common.arrays import offsets_of, ranges_of
from fastcollate.common.text import show
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.per_row import PerRow

if TYPE_CHECKING:
    from fastcollate.inspect.batch_view import BatchView

BadLogprobs = Literal["error", "mask", "keep"]
BAD_LOGPROBS = get_args(BadLogprobs)
Unfinished = Literal["error", "skip", "keep"]
UNFINISHED_CHOICES = get_args(Unfinished)

LogprobsAre = Literal["raw", "processed"]

BAD_KINDS = ("nan", "infinite", "placeholder", "missing")
"""Kinds of log-probabilities that are none: NaN or null, infinite, -9999, and missing."""

UNFINISHED = ("abort", "aborted", "error", "failed", "pending", None)
"""Reasons of calls that did not finish. A reached length limit is a reason to finish."""


@final
class Calls:
    r"""Calls of a model: what went in, what was sampled, and what is known of it.

    Parameters
    ----------
    prompts, responses
        Token ids, one row per call.
    logprobs
        Log-probabilities of response tokens, as rows of numbers.
    loss_mask
        1 for response tokens that train, 0 for others; None: all train.
    rewards
        One number per call, or one per response token.
    logprobs_are
        ``"raw"`` for log-probabilities of the model, ``"processed"`` for those after temperature
        and filters, of the distribution that was sampled from; None if unknown.
    bad_logprobs
        Counts of log-probabilities that were none, (calls, 4): NaN or null, infinite, -9999, and
        missing ones. None: there were none.
    skipped
        Number of calls that were left out as unfinished.
    columns
        Other columns, one item per call. ``uids``, ``trajectory_ids`` and ``is_last_step`` mean
        what they mean in :func:`fastcollate.build_batch`; all others are kept under their names.

    Attributes
    ----------
    columns : dict
        The other columns.
    report : dict
        Counts of calls, tokens, and what was wrong with them.

    Raises
    ------
    ValueError
        If a column has another number of calls or tokens than ``responses``.

    Examples
    --------
    >>> calls = fc.rollouts.Calls([[5, 6], [5, 6]], [[7], [8, 9]], uids=["a", "a"])
    >>> calls.select([1])
    Calls of 1 call: 2 prompt tokens, 2 response tokens; uids
    """

    __slots__ = (
        "bad_logprobs",
        "columns",
        "logprobs",
        "logprobs_are",
        "loss_mask",
        "prompts",
        "responses",
        "rewards",
        "skipped",
    )

    def __init__(
        self,
        prompts: Any,
        responses: Any,
        *,
        logprobs: Any = None,
        loss_mask: Any = None,
        rewards: Any = None,
        logprobs_are: LogprobsAre | None = None,
        bad_logprobs: Any = None,
        skipped: int = 0,
        **columns: Any,
    ) -> None:
        if logprobs_are is not None:
            check_choice("logprobs_are", logprobs_are, ("raw", "processed"))
        self.logprobs_are, self.skipped = logprobs_are, skipped
        self.prompts, self.responses = ragged(prompts), ragged(responses)
        self.logprobs = None if logprobs is None else ragged(logprobs)
        self.loss_mask = None if loss_mask is None else ragged(loss_mask)
        self.rewards = rewards
        self.columns = {name: column for name, column in columns.items() if column is not None}
        count = len(self.responses)
        kinds = len(BAD_KINDS)
        bad = np.zeros((count, kinds), np.int64) if bad_logprobs is None else bad_logprobs
        self.bad_logprobs = np.asarray(bad, np.int64).reshape(-1, kinds)
        of_calls = {"prompts": self.prompts, "rewards": rewards, "bad_logprobs": self.bad_logprobs}
        for name, column in {**of_calls, **self.columns}.items():
            if column is not None and len(column) != count:
                raise ValueError(
                    f"{name} has {tally(len(column), 'item')}, but responses has {count}"
                )
        for name in ("logprobs", "loss_mask"):
            column = getattr(self, name)
            if column is None:
                continue
            lengths, expected = column.lengths, self.responses.lengths
            if len(lengths) != count or (lengths != expected).any():
                raise ValueError(
                    f"{name} has other lengths than responses; pass one value per token"
                )

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.responses)

    def __getattr__(self, name: str) -> Any:
        """Return one of the other columns."""
        if name in self.__slots__:  # while it is unpickled
            raise AttributeError(name)
        if not name.startswith("_") and name in (columns := self.columns):
            return columns[name]
        raise AttributeError(
            f"these calls have no column {name!r}; they have {', '.join(self._names())}"
        )

    def __repr__(self) -> str:
        """Show counts, and the names of other columns."""
        parts = [
            f"Calls of {tally(len(self), 'call')}: "
            f"{tally(len(self.prompts.values), 'prompt token')}, "
            f"{tally(len(self.responses.values), 'response token')}",
        ]
        named = [name for name in self._names() if name not in ("prompts", "responses")]
        if named:
            parts.append(", ".join(named))
        if bad := int(self.bad_logprobs.sum()):
            parts.append(f"{tally(bad, 'log-probability', 'log-probabilities')} without a value")
        return "; ".join(parts)

    def _names(self) -> list[str]:
        """Return the names of the columns that are there."""
        own = ("prompts", "responses", "logprobs", "loss_mask", "rewards")
        return [*(name for name in own if getattr(self, name) is not None), *self.columns]

    @property
    def report(self) -> dict[str, int]:
        """Counts of calls and tokens.

        ``calls``, ``prompt_tokens``, ``response_tokens``; ``unfinished`` calls, whether kept or
        skipped; and log-probabilities that were none: ``logprobs_nan`` (or null),
        ``logprobs_infinite``, ``logprobs_placeholder`` (-9999) and ``logprobs_missing``.
        """
        bad = dict(zip(BAD_KINDS, self.bad_logprobs.sum(axis=0).tolist(), strict=True))
        return {
            "calls": len(self),
            "prompt_tokens": len(self.prompts.values),
            "response_tokens": len(self.responses.values),
            "unfinished": self.skipped + len(_unfinished(self)),
            **{f"logprobs_{kind}": count for kind, count in bad.items()},
        }

    @property
    def batch(self) -> dict[str, Any]:
        """Arguments of :func:`fastcollate.build_batch`, which makes one row of each call.

        Columns that it has no argument for are under ``fields``, as objects per row.
        """
        given = {"logprobs": self.logprobs, "rewards": self.rewards}
        given |= {name: self.columns.get(name) for name in ("advantages", "uids")}
        arguments = self.turns | {name: one for name, one in given.items() if one is not None}
        others = {
            name: PerRow(list(column), object)
            for name, column in self.columns.items()
            if name not in arguments
        }
        return arguments | ({"fields": others} if others else {})

    @property
    def turns(self) -> dict[str, Any]:
        """Arguments of :func:`fastcollate.merge_turns`."""
        columns: dict[str, Any] = {"prompts": self.prompts, "responses": self.responses}
        if self.loss_mask is not None:
            columns["loss_mask"] = self.loss_mask
        ids = ("trajectory_ids", "is_last_step")
        return columns | {name: self.columns[name] for name in ids if name in self.columns}

    def show(
        self,
        calls: Any = None,
        tokenizer: Any = None,
        fields: str | Iterable[str] = (),
        fold: int | None = 16,
    ) -> BatchView:
        """Show calls as text, with prompt, trained and masked tokens marked.

        Parameters
        ----------
        calls
            Indices of calls, or a mask; None for the first few.
        tokenizer, fields, fold
            As in :meth:`fastcollate.Batch.show`: a tokenizer, ``"logprobs"`` and ``"rewards"``, and
            the number of tokens that are shown of a long run.

        Returns
        -------
        BatchView
            Displayed at a prompt and in a notebook; elsewhere ``print`` it.
        """
        from fastcollate.inspect.call_view import view_calls

        return view_calls(self, calls, tokenizer, fields, fold)

    def to_arrow(self) -> Any:
        """Return the calls as a ``pyarrow.Table``, which Parquet and Arrow files can hold.

        Rows of tokens are lists, and objects what Arrow makes of them; what is known of all calls
        is in the schema's metadata.

        Raises
        ------
        ImportError
            If PyArrow is not installed.
        """
        from fastcollate.rollouts.tables import to_arrow

        return to_arrow(self)

    @staticmethod
    def from_arrow(table: Any) -> Calls:
        """Return the calls of a table that :meth:`to_arrow` made.

        Raises
        ------
        ValueError
            If it has no columns of calls. :func:`read` reads tables of other sources.
        """
        from fastcollate.rollouts.tables import from_arrow

        return from_arrow(table)

    def to_parquet(self, path: Any) -> None:
        """Write the calls to a Parquet file, by PyArrow."""
        import pyarrow.parquet as pq

        pq.write_table(self.to_arrow(), path)

    @staticmethod
    def from_parquet(path: Any) -> Calls:
        """Return the calls of a file that :meth:`to_parquet` wrote."""
        import pyarrow.parquet as pq

        return Calls.from_arrow(pq.read_table(path))

    def select(self, calls: Any) -> Calls:
        """Return some of the calls.

        Parameters
        ----------
        calls
            Indices, or a mask of one bool per call.

        Raises
        ------
        IndexError
            If an index is out of range.
        """
        given = np.asarray(calls)
        index = np.arange(len(self))[given if given.size else given.astype(np.int64)]
        columns = {name: _taken(getattr(self, name), index) for name in self._names()}
        bad = self.bad_logprobs[index]
        return Calls(**columns, logprobs_are=self.logprobs_are, bad_logprobs=bad)

    @staticmethod
    def concat(parts: Sequence[Calls]) -> Calls:
        """Join calls; each part has the same columns.

        Raises
        ------
        ValueError
            If there are no parts, or their columns differ.
        """
        if not parts:
            raise ValueError("parts is empty; pass calls to join")
        names = parts[0]._names()
        for index, part in enumerate(parts):
            if part._names() != names:
                raise ValueError(
                    f"parts[{index}] has the columns {', '.join(part._names())}, but parts[0] has "
                    f"{', '.join(names)}"
                )
        columns = {name: _joined([getattr(part, name) for part in parts]) for name in names}
        are = {part.logprobs_are for part in parts}
        return Calls(
            **columns,
            logprobs_are=parts[0].logprobs_are if len(are) == 1 else None,
            bad_logprobs=np.concatenate([part.bad_logprobs for part in parts]),
            skipped=sum(part.skipped for part in parts),
        )


def _taken(column: Any, index: NDArray[Any]) -> Any:
    """Return some items of a column."""
    if isinstance(column, Ragged):
        return taken(column, index)
    return column[index] if isinstance(column, np.ndarray) else [column[i] for i in index.tolist()]


def taken(rows: Ragged, index: NDArray[Any]) -> Ragged:
    """Return some rows of a column."""
    lengths = rows.lengths[index]
    values = rows.values[ranges_of(rows.offsets[:-1][index], lengths)]
    return Ragged(values, offsets_of(lengths))


def _joined(columns: list[Any]) -> Any:
    """Join the columns of several tables."""
    if isinstance(columns[0], Ragged):
        return Ragged.concat(columns)
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    return [item for column in columns for item in column]


def finished(calls: Calls, unfinished: Unfinished) -> Calls:
    """Return the calls that finished, or all of them.

    Raises
    ------
    ValueError
        If calls did not finish, and that is an error.
    """
    if "finish_reasons" not in calls.columns:
        return calls
    # SGLang's generate responses have objects with the type of the reason.
    reasons = calls.columns["finish_reasons"]
    reasons = [one.get("type") if isinstance(one, Mapping) else one for one in reasons]
    calls.columns["finish_reasons"] = reasons
    open_calls = _unfinished(calls)
    if not open_calls or unfinished == "keep":
        return calls
    if unfinished == "skip":
        found = calls.select(np.setdiff1d(np.arange(len(calls)), open_calls))
        found.skipped = len(open_calls)
        return found
    first, others = open_calls[0], len(open_calls) - 1
    more = f", nor did {tally(others, 'other call')}" if others else ""
    stream = " (a stream finishes with [DONE])" if reasons[first] is None else ""
    raise ValueError(
        f"call {first} did not finish: finish_reason is {show(reasons[first])}{stream}{more}; pass "
        "unfinished='skip' or 'keep'"
    )


def _unfinished(calls: Calls) -> list[int]:
    """Return the calls that did not finish."""
    reasons = calls.columns.get("finish_reasons", ())
    return [index for index, reason in enumerate(reasons) if reason in UNFINISHED]


def logprob_columns(found: Any, mask: Any, offsets: Any, policy: BadLogprobs) -> dict[str, Any]:
    """Return columns of log-probabilities as the core settled them, and the loss mask.

    Tokens without a log-probability leave the mask, if the policy is ``"mask"``.
    """
    values, bad, counts = found
    if policy == "mask" and len(bad):
        mask = np.ones(len(values), np.int32) if mask is None else mask
        mask[bad] = 0
    if mask is not None and ((mask == 0) | (mask == 1)).all():
        mask = mask.astype(np.int32)
    return {
        "logprobs": None if values is None else Ragged(values, offsets),
        "loss_mask": None if mask is None else Ragged(mask, offsets),
        "bad_logprobs": counts,
    }
