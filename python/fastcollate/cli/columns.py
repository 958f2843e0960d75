"""Columns of a file, by the frameworks' names or by given ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastcollate.build import build_batch
from fastcollate.common.arguments import tally
from fastcollate.common.arrays import offsets_of, ranges_of
from fastcollate.common.row_columns import IDS, OTHER_NAMES
from fastcollate.plan.merge import Policy
from fastcollate.plan.merging import MergePlan, merge_turns
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.lengths import Integers

if TYPE_CHECKING:
    from fastcollate.batch import Batch
    from fastcollate.plan.breaks import Tokenizer

Where = Callable[[int], str]
"""Returns the place of a row in its file."""


def _is_list(kind: pa.DataType) -> bool:
    kinds = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    return any(is_of(kind) for is_of in kinds)


def _is_integer(kind: pa.DataType) -> bool:
    return any(is_of(kind) for is_of in (pa.types.is_integer, pa.types.is_null))


def _is_number(kind: pa.DataType) -> bool:
    kinds = pa.types.is_floating, pa.types.is_boolean
    return _is_integer(kind) or any(is_of(kind) for is_of in kinds)


class Kind(NamedTuple):
    """A kind of column."""

    title: str
    fits: Callable[[pa.DataType], bool]


TOKENS = Kind("lists of integers", lambda kind: _is_list(kind) and _is_integer(kind.value_type))
PER_TOKEN = Kind("lists of numbers", lambda kind: _is_list(kind) and _is_number(kind.value_type))
REWARDS = Kind(
    "numbers or lists of numbers",
    lambda kind: _is_number(kind.value_type if _is_list(kind) else kind),
)
INTEGERS = Kind("integers", pa.types.is_integer)
BOOLEANS = Kind("bools", pa.types.is_boolean)
NAMES = Kind("names", lambda kind: not _is_list(kind))

ROLES: dict[str, tuple[Kind, str]] = {
    "prompts": (TOKENS, "Token ids of prompts."),
    "responses": (TOKENS, "Token ids of responses."),
    "sequences": (TOKENS, "Token ids of prompts with their responses, in place of both."),
    "prompt_lens": (INTEGERS, "Number of prompt tokens of each sequence."),
    "loss_mask": (PER_TOKEN, "Loss mask, per token of responses or of sequences."),
    "rewards": (REWARDS, "Rewards, per response token or per row."),
    "logprobs": (PER_TOKEN, "Log-probabilities of response tokens."),
    "attention_mask": (PER_TOKEN, "0 where prompts and responses are padded (verl)."),
    "uids": (NAMES, "Id of the prompt of each row."),
    "trajectory_ids": (NAMES, "Id of the trajectory of each row."),
    "is_last_step": (BOOLEANS, "True for the last turn of each trajectory."),
}
"""Roles of columns, each with its kind and a description."""


def names_of(role: str) -> tuple[str, ...]:
    """Return the names of columns to look for, in order."""
    # verl's, of the trainer's policy: elsewhere they are no log-probabilities of the sampler.
    more = ("old_log_probs",) if role == "logprobs" else ()
    return (role, *OTHER_NAMES.get(role, ()), *more)


class FileColumns(NamedTuple):
    """The columns of a file by role."""

    names: dict[str, str]

    @classmethod
    def of(cls, schema: pa.Schema, given: Mapping[str, str], place: str) -> FileColumns:
        """Find the columns of a schema.

        Raises
        ------
        ValueError
            If a given one is missing or of another type, or there are no token ids.
        """
        names: dict[str, str] = {}
        for role, (kind, _) in ROLES.items():
            known = (given[role],) if role in given else names_of(role)
            there = [name for name in known if name in schema.names]
            fit = [name for name in there if kind.fits(schema.field(name).type)]
            if fit:
                names[role] = fit[0]
            if fit or role not in given:
                continue
            option = f"--{role.replace('_', '-')}"
            if there:
                raise ValueError(
                    f"column {there[0]!r} of {place} is {schema.field(there[0]).type}; pass a "
                    f"column of {kind.title} as {option}"
                )
            raise ValueError(
                f"{place} has no column {known[0]!r} ({option}); it has {_all(schema)}"
            )
        # Attention masks are those of prompts and responses that are padded separately.
        unused: tuple[str, ...] = ("sequences", "prompt_lens")
        if "sequences" in given or not {"prompts", "responses"} <= names.keys():
            if "sequences" not in names:
                missing = [role for role in ("prompts", "responses") if role not in names]
                options = " and ".join(f"--{role}" for role in missing)
                raise ValueError(
                    f"{place} has no token ids of {' and '.join(missing)} under a known name; it "
                    f"has {_all(schema)}; name a column of lists of integers by {options}, or by "
                    "--sequences"
                )
            unused = ("prompts", "responses", "attention_mask")
        return cls({role: name for role, name in names.items() if role not in unused})

    @property
    def used(self) -> list[str]:
        """Names of the columns that are read."""
        return list(dict.fromkeys(self.names.values()))

    @property
    def tokens(self) -> list[str]:
        """Names of the columns of token ids."""
        return [name for role, name in self.names.items() if ROLES[role][0] is TOKENS]

    @property
    def has_trajectories(self) -> bool:
        """True if rows are turns of trajectories."""
        return "trajectory_ids" in self.names or "is_last_step" in self.names

    def read(self, table: pa.Table, first_row: int, place: str) -> FileRows:
        """Read the rows of a table that begins at `first_row` of the file.

        Raises
        ------
        ValueError
            Rows of different lengths, or nulls.
        """

        def where(row: int) -> str:
            return f"{place}, row {first_row + row}"

        columns = {}
        for role, name in self.names.items():
            column = table.column(name)
            if column.null_count > 0:
                row = column.is_null().to_pylist().index(True)
                raise ValueError(f"{where(row)}: {name} is null; leave such rows out")
            try:
                columns[role] = _values(column, ROLES[role][0])
            except (TypeError, ValueError) as error:
                raise ValueError(f"{place}, column {name}: {error}") from error
        if "sequences" in columns:
            prompts, responses = self._split(columns, where)
        else:
            prompts, responses = self._without_padding(columns, where)
        for role, column in columns.items():
            if isinstance(column, Ragged):
                columns[role] = self._along(role, column, prompts, responses, where)
        ids = {role: columns.pop(role) for role in IDS if role in columns}
        return FileRows(first_row, prompts, responses, columns, ids)

    def _split(self, columns: dict[str, Any], where: Where) -> tuple[Ragged, Ragged]:
        """Take the sequences out of the columns; return their prompts and responses."""
        whole, lens = columns.pop("sequences"), columns.pop("prompt_lens", None)
        if lens is None:
            lens = np.zeros(len(whole), np.int64)
            mask = columns.get("loss_mask")
            if mask is not None and np.array_equal(mask.lengths, whole.lengths):
                lens = _leading_zeros(mask)
        if (wrong := (lens < 0) | (lens > whole.lengths)).any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{where(row)}: {self.names['prompt_lens']} is {lens[row]}, but "
                f"{self.names['sequences']} has {tally(int(whole.lengths[row]), 'token')}"
            )
        return _part(whole, 0 * lens, lens), _part(whole, lens, whole.lengths - lens)

    def _without_padding(self, columns: dict[str, Any], where: Where) -> tuple[Ragged, Ragged]:
        """Take prompts and responses out, without tokens at 0 of a mask that spans both."""
        prompts, responses = columns.pop("prompts"), columns.pop("responses")
        mask = columns.pop("attention_mask", None)
        if mask is None:
            return prompts, responses
        lens = prompts.lengths + responses.lengths
        if (wrong := mask.lengths != lens).any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{where(row)}: {self.names['attention_mask']} has {mask.lengths[row]} items, but "
                f"prompt and response have {lens[row]} tokens"
            )
        of_prompts = _part(mask, 0 * lens, prompts.lengths)
        of_responses = _part(mask, prompts.lengths, responses.lengths)
        for role, column in columns.items():
            if isinstance(column, Ragged) and np.array_equal(column.lengths, responses.lengths):
                columns[role] = _keep(column, of_responses)
        return _keep(prompts, of_prompts), _keep(responses, of_responses)

    def _along(
        self, role: str, column: Ragged, prompts: Ragged, responses: Ragged, where: Where
    ) -> Ragged:
        """Return a column per response token, also if it spans whole rows."""
        whole = prompts.lengths + responses.lengths
        if np.array_equal(column.lengths, responses.lengths):
            return column
        if np.array_equal(column.lengths, whole):
            return _part(column, prompts.lengths, responses.lengths)
        of_tokens = "responses" if "responses" in self.names else "sequences"
        expected = responses.lengths if of_tokens == "responses" else whole
        row = int((column.lengths != expected).argmax())
        raise ValueError(
            f"{where(row)}: {self.names[role]} has {tally(int(column.lengths[row]), 'item')}, but "
            f"{self.names[of_tokens]} has {tally(int(expected[row]), 'token')}"
        )


class FileRows(NamedTuple):
    """Rows of a file."""

    first_row: int
    prompts: Ragged
    responses: Ragged
    values: dict[str, Any]
    """Loss mask, rewards and log-probabilities, those that there are."""
    ids: dict[str, list[Any]]
    """Ids of prompts and trajectories, and flags of last turns, those that there are."""

    def build(self) -> Batch:
        """Return the rows as a jagged batch."""
        tokens = self.prompts, self.responses
        return build_batch(
            *tokens, pad_token_id=0, array_type="numpy", layout="jagged", **self.values
        )

    def merge(self, policy: Policy, tokenizer: Tokenizer | None = None) -> MergePlan:
        """Return the plan that merges turns of trajectories."""
        return merge_turns(
            self.prompts,
            self.responses,
            trajectory_ids=self.ids.get("trajectory_ids"),
            is_last_step=self.ids.get("is_last_step"),
            policy=policy,
            allow_unfinished=True,
            tokenizer=tokenizer,
        )


def _values(column: pa.ChunkedArray, kind: Kind) -> Any:
    """Return a column as rows, numbers, or a list of objects."""
    if _is_list(column.type):
        if pa.types.is_null(column.type.value_type):
            column = column.cast(pa.list_(pa.int64() if kind is TOKENS else pa.float64()))
        if pa.types.is_boolean(column.type.value_type):
            column = column.cast(pa.list_(pa.uint8()))
        return ragged(column.combine_chunks())
    if kind in (INTEGERS, REWARDS):
        return column.to_numpy()
    # Ids have to be comparable: structs become text.
    return [
        "/".join(map(str, one.values())) if isinstance(one, dict) else one
        for one in column.to_pylist()
    ]


def _all(schema: pa.Schema) -> str:
    """Name all columns of a schema, each with its type."""
    names = [f"{field.name} ({str(field.type)[:40]})" for field in schema]
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "") or "no columns"


def _part(rows: Ragged, starts: Integers, lengths: Integers) -> Ragged:
    """Return a part of each row."""
    values = np.asarray(rows.values)[ranges_of(rows.offsets[:-1] + starts, lengths)]
    return Ragged(values, offsets_of(lengths))


def _keep(rows: Ragged, mask: Ragged) -> Ragged:
    """Return rows without the tokens at 0 of a mask."""
    keep: NDArray[np.bool_] = np.asarray(mask.values) != 0
    counts = np.diff(np.append(0, np.cumsum(keep))[rows.offsets])
    return Ragged(np.asarray(rows.values)[keep], offsets_of(counts))


def _leading_zeros(mask: Ragged) -> Integers:
    """Return the number of leading zeros of each row."""
    values = np.flatnonzero(np.append(np.asarray(mask.values), 1) != 0)
    firsts = values[np.searchsorted(values, mask.offsets[:-1])]
    lens: Integers = np.minimum(firsts - mask.offsets[:-1], mask.lengths)
    return lens
