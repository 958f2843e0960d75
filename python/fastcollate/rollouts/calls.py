"""Calls of a model: a table of columns."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import token_ids
from fastcollate.common.arguments import check_choice, suggests_names, tally
from fastcollate.common.arrays import row_and_token, to_numpy
from fastcollate.common.names import INSTEAD, ListsNames, public_names
from fastcollate.common.row_columns import IDS
from fastcollate.common.text import show
from fastcollate.rollouts.columns import fields_of
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged, pick

if TYPE_CHECKING:
    from fastcollate.inspect.batch_view import BatchView

BadLogprobs = Literal["error", "mask", "keep"]
BAD_LOGPROBS = get_args(BadLogprobs)
Unfinished = Literal["error", "skip", "keep"]
UNFINISHED_CHOICES = get_args(Unfinished)

LogprobsAre = Literal["raw", "processed"]

BAD_KINDS = ("nan", "infinite", "placeholder", "missing")
"""Kinds of log-probabilities that are none: NaN or null, infinite, -9999, and missing."""

UNFINISHED = ("abort", "aborted", "cancelled", "error", "failed", "pending", "timeout", None)
"""Reasons of calls that did not finish. A reached length limit is a reason to finish."""


@final
@suggests_names
class Calls(ListsNames):
    r"""Calls of a model: prompts, responses, and the data returned with them.

    Parameters
    ----------
    prompts, responses
        Token ids, one row per call: integers from 0 to 2**31 - 1.
    logprobs
        Log-probabilities of response tokens, as rows of numbers.
    loss_mask
        1 for response tokens that train, or a positive weight, 0 for others; None: all train.
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
        Other columns, one item per call; None where a call has no value. ``uids``,
        ``trajectory_ids`` and ``is_last_step`` mean what they mean in
        :func:`fastcollate.build_batch`; all others are kept under their names.

    Attributes
    ----------
    columns : dict
        The other columns.
    report : dict
        Counts of calls, tokens, and what was wrong with them.

    Raises
    ------
    TypeError, ValueError
        If a column has another number of calls or tokens than ``responses``, ids are not those of
        tokens, or weights of the loss mask are negative or not finite.

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
        self.prompts, self.responses = ids_of("prompts", prompts), ids_of("responses", responses)
        self.logprobs = None if logprobs is None else ragged(logprobs)
        self.loss_mask = None if loss_mask is None else _weights(loss_mask)
        self.rewards = rewards
        self.columns = {name: column for name, column in columns.items() if column is not None}
        count, kinds = len(self.responses), len(BAD_KINDS)
        bad = np.zeros((count, kinds), np.int64) if bad_logprobs is None else bad_logprobs
        self.bad_logprobs = np.asarray(bad, np.int64).reshape(-1, kinds)
        of_calls = {"prompts": self.prompts, "rewards": rewards, "bad_logprobs": self.bad_logprobs}
        for name, column in {**of_calls, **self.columns}.items():
            if name in self.columns and hasattr(Calls, name):
                raise ValueError(f"Calls has a {name} of its own; pass another name for the column")
            if column is not None and len(column) != count:
                raise ValueError(
                    f"{name} has {tally(len(column), 'item')}, but responses has {count}; pass one "
                    "per call"
                )
        for name in ("logprobs", "loss_mask"):
            column = getattr(self, name)
            if column is not None and not np.array_equal(column.lengths, self.responses.lengths):
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
        if name == "keys":  # of `**calls`, whose error is then that of `__getitem__`
            return lambda: [name]
        if not name.startswith("_") and name in (columns := self.columns):
            return columns[name]
        methods = (one for one in public_names(Calls) if one not in self.__slots__)
        raise AttributeError(
            f"these calls have no column {name!r}; they have {', '.join(self._names())}, and can "
            f"do {', '.join(methods)}"
        )

    if not TYPE_CHECKING:

        def __setattr__(self, name, value):
            if name not in self.__slots__:
                raise AttributeError(f"write calls.columns[{name!r}] = ... to change this column")
            object.__setattr__(self, name, value)

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

    def _all(self) -> dict[str, Any]:
        """Return all that there is one of for each call."""
        return {name: getattr(self, name) for name in (*self._names(), "bad_logprobs")}

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

        Columns that it has no argument for are under ``fields``: ``routed_experts`` as
        :class:`fastcollate.RoutedExperts`, ``versions`` that are integers or spans as
        :class:`fastcollate.WeightVersions`, ``support`` as a ragged :class:`fastcollate.Field`,
        empty for calls without it, and all others as objects per row. Arguments that are None for
        all calls are left out.

        Raises
        ------
        ValueError
            If some calls have an id, and others None.
        """
        arguments = self.turns | self._arguments("logprobs", "rewards", "advantages", "uids")
        others = fields_of(self.columns, self.responses.lengths)
        return arguments | ({"fields": others} if others else {})

    @property
    def turns(self) -> dict[str, Any]:
        """Arguments of :func:`fastcollate.merge_turns`."""
        return self._arguments(
            "prompts", "responses", "loss_mask", "trajectory_ids", "is_last_step"
        )

    def _arguments(self, *names: str) -> dict[str, Any]:
        """Return columns by name, without those that are None for all calls."""
        columns = {name: _known(name, getattr(self, name, None)) for name in names}
        return {name: column for name, column in columns.items() if column is not None}

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

        Returns
        -------
        Calls
            ``skipped`` stays what it is. Where the next call is one of another trajectory,
            ``is_last_step`` is True.

        Raises
        ------
        TypeError, IndexError
            If they are neither, or an index is out of range.
        """
        given = np.asarray(calls)
        given = given if given.size else given.astype(np.int64)
        if given.ndim != 1 or given.dtype.kind not in "biu":
            raise TypeError(f"calls is {show(calls)}; pass indices, or one bool per call")
        if given.dtype.kind == "b" and len(given) != len(self):
            raise IndexError(
                f"calls has {tally(len(given), 'bool')}, but there are {tally(len(self), 'call')}; "
                "pass one per call"
            )
        try:
            index = np.arange(len(self))[given]
        except IndexError as error:
            advice = f"pass indices from 0 to {len(self) - 1}"
            raise IndexError(f"calls: {error}; {advice}") from error
        columns = {name: _taken(column, index) for name, column in self._all().items()}
        flags = self.columns.get("is_last_step", ())
        if {*map(type, flags)} <= {bool, int, np.bool_} and len(index) and len(flags):
            trajectories = np.cumsum([0, *flags[:-1]])[index]
            ends = np.diff(trajectories, append=trajectories[-1]) != 0
            columns["is_last_step"] = (ends | np.array(flags)[index]).tolist()
        return Calls(**columns, logprobs_are=self.logprobs_are, skipped=self.skipped)

    @staticmethod
    def concat(parts: Sequence[Calls]) -> Calls:
        """Join calls; each part that has any has the same columns.

        Raises
        ------
        ValueError
            If there are no parts, or their columns differ.
        """
        if isinstance(parts, Calls):
            raise TypeError(f"parts is Calls; {INSTEAD['Calls.concat']}")
        if not parts:
            raise ValueError("parts is empty; pass calls to join")
        full = {index: part for index, part in enumerate(parts) if len(part)} or {0: parts[0]}
        first = min(full)
        names = parts[first]._names()
        for index, part in full.items():
            if part._names() != names:
                raise ValueError(
                    f"parts[{index}] has the columns {', '.join(part._names())}, but "
                    f"parts[{first}] has {', '.join(names)}; read all parts with the same options, "
                    "or set the missing columns"
                )
        of_parts = [part._all() for part in full.values()]
        columns = {name: _joined([one[name] for one in of_parts]) for name in of_parts[0]}
        are = {part.logprobs_are for part in full.values()}
        return Calls(
            **columns,
            logprobs_are=parts[first].logprobs_are if len(are) == 1 else None,
            skipped=sum(part.skipped for part in parts),
        )


def prompt_ids(prompts: NDArray[np.int64]) -> list[str]:
    """Return ids of numbered prompts, which no other read has, in any process."""
    read = secrets.token_hex(8)
    return [f"{read}/{prompt}" for prompt in prompts.tolist()]


def ids_of(name: str, rows: Any) -> Ragged:
    """Return rows of token ids as int32.

    Raises
    ------
    TypeError, ValueError
        If an id is not an integer from 0 to 2**31 - 1. Errors name the column, the row and the
        position.
    """
    values: Any = rows.values if isinstance(rows, Ragged) else None
    is_int32 = isinstance(values, np.ndarray) and values.dtype == np.int32 and values.ndim == 1
    if is_int32 and values.min(initial=0) >= 0:
        found: Ragged = rows
        return found
    return Ragged(*token_ids(name, rows))


def _known(name: str, column: Any) -> Any:
    """Return a column of arguments; None if it is null for all calls.

    Raises
    ------
    ValueError
        If only some ids are null: their calls would form a group.
    """
    nulls = [one is None for one in column] if isinstance(column, (list, tuple)) else [False]
    if nulls and all(nulls):
        return None
    if any(nulls) and name in IDS:
        call = nulls.index(True)
        raise ValueError(
            f"{name}[{call}] is None, but other calls have one; set calls.columns[{name!r}] to the "
            "ids of all calls"
        )
    return column


def _weights(mask: Any) -> Ragged:
    """Return a loss mask, checked."""
    rows = ragged(mask)
    weights = to_numpy(rows.values)
    if (wrong := ~((weights >= 0) & (weights < np.inf))).any():
        token = int(wrong.argmax())
        row, at = row_and_token(rows.offsets, token)
        raise ValueError(
            f"loss_mask[{row}][{at}] is {weights[token]}; pass weights, finite and not negative"
        )
    return rows


def _taken(column: Any, index: NDArray[Any]) -> Any:
    """Return some items of a column."""
    if isinstance(column, Ragged):
        return pick(column, index)
    return column[index] if isinstance(column, np.ndarray) else [column[i] for i in index.tolist()]


def _joined(columns: list[Any]) -> Any:
    """Join the columns of several tables."""
    if isinstance(columns[0], Ragged):
        return Ragged.concat(columns)
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    return [item for column in columns for item in column]


def _reason(given: Any) -> Any:
    """Return a finish reason, of which SGLang has an object and slime an enum."""
    found = given.get("type") if isinstance(given, Mapping) else given
    found = found.value if isinstance(found, Enum) else found
    return found if found == found else None  # NaN of pandas


def finished(calls: Calls, unfinished: Unfinished) -> Calls:
    """Return the calls that finished, or all of them.

    Raises
    ------
    ValueError
        If calls did not finish, and that is an error.
    """
    if "finish_reasons" not in calls.columns:
        return calls
    reasons = list(map(_reason, calls.columns["finish_reasons"]))
    calls.columns["finish_reasons"] = reasons
    open_calls = _unfinished(calls)
    if not open_calls or unfinished == "keep":
        return calls
    if unfinished == "skip":
        found = calls.select(np.setdiff1d(np.arange(len(calls)), open_calls))
        found.skipped = len(open_calls)
        flags = found.columns.get("is_last_step", [])
        if open_calls[-1] == len(calls) - 1 and flags[-1:] == [False]:
            flags[-1] = True  # of a trajectory whose last calls are skipped
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
