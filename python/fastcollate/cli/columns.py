"""Columns of a file, by the frameworks' names or by given ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastcollate.common.arguments import tally
from fastcollate.common.arrays import offsets_of, ranges_of
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.lengths import Integers

ROLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "prompts": (
        "Token ids of prompts.",
        ("prompts", "prompt_ids", "prompt_token_ids", "raw_prompt_ids"),
    ),
    "responses": (
        "Token ids of responses.",
        ("responses", "response_ids", "response_token_ids", "completion_ids"),
    ),
    "sequences": (
        "Token ids of prompts with their responses, in place of both.",
        ("sequences", "input_ids", "token_ids", "tokens"),
    ),
    "prompt_lens": (
        "Number of prompt tokens of each sequence.",
        ("prompt_lens", "prompt_len", "prompt_length"),
    ),
    "loss_mask": (
        "Loss mask, per token of responses or of sequences.",
        ("loss_mask", "loss_masks", "response_mask", "completion_mask", "assistant_masks"),
    ),
    "rewards": (
        "Rewards, per response token or per row.",
        ("rewards", "reward", "token_level_rewards", "token_level_scores", "score"),
    ),
    "logprobs": (
        "Log-probabilities of response tokens.",
        (
            *("logprobs", "rollout_logprobs", "rollout_log_probs", "response_logprobs"),
            *("completion_logprobs", "old_log_probs", "sampling_per_token_logps"),
        ),
    ),
    "attention_mask": (
        "0 where prompts and responses are padded (verl).",
        ("attention_mask",),
    ),
    "uids": ("Id of the prompt of each row.", ("uids", "uid", "prompt_id", "group_id")),
    "trajectory_ids": (
        "Id of the trajectory of each row.",
        ("trajectory_ids", "trajectory_id", "rollout_id"),
    ),
    "is_last_step": (
        "True for the last turn of each trajectory.",
        ("is_last_step", "is_last"),
    ),
}
"""Roles of columns: a description, and the names to look for, in order.

The names are ours and those of SkyRL (`prompt_token_ids`, `response_ids`, `loss_masks`,
`rollout_logprobs`), verl (`prompts`, `responses`, `response_mask`, `attention_mask`, `uid`), TRL
(`prompt_ids`, `completion_ids`, `completion_mask`; `input_ids`, `assistant_masks`) and prime-rl
(`prompt_ids`, `completion_ids`, `completion_mask`, `completion_logprobs`).
"""

_IDS = {"prompts", "responses", "sequences"}
_PER_TOKEN = {"loss_mask", "logprobs", "attention_mask"}


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
        for role, (_, known) in ROLES.items():
            if role in given:
                name = given[role]
                if name not in schema.names:
                    raise ValueError(
                        f"{place} has no column {name!r} (--{_option(role)}); it has {_all(schema)}"
                    )
                if not _fits(role, schema.field(name).type):
                    raise ValueError(
                        f"column {name!r} of {place} is {schema.field(name).type}; pass a column "
                        f"of {_list_wanted(role)} as --{_option(role)}"
                    )
                names[role] = name
                continue
            fit = (n for n in known if n in schema.names and _fits(role, schema.field(n).type))
            if (found := next(fit, None)) is not None:
                names[role] = found
        if "sequences" in given or not {"prompts", "responses"} <= names.keys():
            if "sequences" not in names:
                missing = [role for role in ("prompts", "responses") if role not in names]
                options = " and ".join(f"--{role}" for role in missing)
                raise ValueError(
                    f"{place} has no token ids of {' and '.join(missing)} under a known name; it "
                    f"has {_all(schema)}; name a column of lists of integers by {options}, or by "
                    "--sequences"
                )
            # Attention masks are those of prompts and responses that are padded separately.
            for role in ("prompts", "responses", "attention_mask"):
                names.pop(role, None)
        else:
            names.pop("sequences", None)
            names.pop("prompt_lens", None)
        return cls(names)

    @property
    def used(self) -> list[str]:
        """Names of the columns that are read."""
        return list(dict.fromkeys(self.names.values()))

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
        columns = {role: self._column(table, role, first_row, place) for role in self.names}
        tokens = {role: columns.pop(role) for role in list(columns) if role in _IDS}
        weights = columns.get("loss_mask")
        if "sequences" in tokens:
            whole = tokens["sequences"]
            lens = columns.get("prompt_lens")
            if lens is None:
                lens = np.zeros(len(whole), np.int64)
                if weights is not None and np.array_equal(weights.lengths, whole.lengths):
                    lens = _leading_zeros(weights)
            if (wrong := (lens < 0) | (lens > whole.lengths)).any():
                row = int(wrong.argmax())
                raise ValueError(
                    f"{place}, row {first_row + row}: {self.names['prompt_lens']} is {lens[row]}, "
                    f"but {self.names['sequences']} has {tally(int(whole.lengths[row]), 'token')}"
                )
            prompts, responses = _part(whole, 0 * lens, lens), _part(whole, lens, None)
        else:
            prompts, responses = tokens["prompts"], tokens["responses"]
            prompts, responses, columns = self._without_padding(
                prompts, responses, columns, first_row, place
            )
        rewards = columns.get("rewards")
        per_token = {
            role: self._along(role, columns[role], prompts, responses, first_row, place)
            for role in ("loss_mask", "logprobs")
            if role in columns
        }
        if isinstance(rewards, Ragged):
            rewards = self._along("rewards", rewards, prompts, responses, first_row, place)
        return FileRows(
            first_row,
            prompts,
            responses,
            per_token.get("loss_mask"),
            rewards,
            per_token.get("logprobs"),
            columns.get("uids"),
            columns.get("trajectory_ids"),
            columns.get("is_last_step"),
        )

    def _column(self, table: pa.Table, role: str, first_row: int, place: str) -> Any:
        """Return a column as rows, numbers, or a list of objects."""
        name = self.names[role]
        column = table.column(name)
        if column.null_count > 0:
            row = first_row + column.is_null().to_pylist().index(True)
            raise ValueError(f"{place}, row {row}: {name} is null; leave such rows out")
        if _is_list(column.type):
            if pa.types.is_null(column.type.value_type):
                kind = pa.int64() if role in _IDS else pa.float64()
                column = column.cast(pa.list_(kind))
            if pa.types.is_boolean(column.type.value_type):
                column = column.cast(pa.list_(pa.uint8()))
            try:
                return ragged(column.combine_chunks())
            except (TypeError, ValueError) as error:
                raise ValueError(f"{place}, column {name}: {error}") from error
        if role in ("prompt_lens", "rewards"):
            return column.to_numpy()
        if role == "is_last_step":
            return column.to_pylist()
        return [_hashable(one) for one in column.to_pylist()]

    def _without_padding(
        self,
        prompts: Ragged,
        responses: Ragged,
        columns: dict[str, Any],
        first_row: int,
        place: str,
    ) -> tuple[Ragged, Ragged, dict[str, Any]]:
        """Remove tokens at 0 of an attention mask, if it spans prompts and responses."""
        mask = columns.pop("attention_mask", None)
        if mask is None:
            return prompts, responses, columns
        lens = prompts.lengths + responses.lengths
        if (wrong := mask.lengths != lens).any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{place}, row {first_row + row}: {self.names['attention_mask']} has "
                f"{mask.lengths[row]} items, but prompt and response have {lens[row]} tokens"
            )
        values = np.asarray(mask.values) != 0
        in_prompt = values[ranges_of(mask.offsets[:-1], prompts.lengths)]
        in_response = values[ranges_of(mask.offsets[:-1] + prompts.lengths, responses.lengths)]
        for role, column in columns.items():
            if isinstance(column, Ragged) and np.array_equal(column.lengths, responses.lengths):
                columns[role] = _keep(column, in_response)
        return _keep(prompts, in_prompt), _keep(responses, in_response), columns

    def _along(
        self,
        role: str,
        column: Ragged,
        prompts: Ragged,
        responses: Ragged,
        first_row: int,
        place: str,
    ) -> Ragged:
        """Return a column per response token, also if it spans whole rows."""
        if np.array_equal(column.lengths, responses.lengths):
            return column
        whole = prompts.lengths + responses.lengths
        if np.array_equal(column.lengths, whole):
            return _part(column, prompts.lengths, None)
        of_tokens = self.names.get("responses") or self.names["sequences"]
        wrong = column.lengths != (responses.lengths if "responses" in self.names else whole)
        row = int(wrong.argmax())
        expected = (responses.lengths if "responses" in self.names else whole)[row]
        raise ValueError(
            f"{place}, row {first_row + row}: {self.names[role]} has "
            f"{tally(int(column.lengths[row]), 'item')}, but {of_tokens} has "
            f"{tally(int(expected), 'token')}"
        )


class FileRows(NamedTuple):
    """Rows of a file."""

    first_row: int
    prompts: Ragged
    responses: Ragged
    loss_mask: Ragged | None
    rewards: Any
    logprobs: Ragged | None
    uids: list[Any] | None
    trajectory_ids: list[Any] | None
    is_last_step: list[bool] | None

    @property
    def fields(self) -> dict[str, Any]:
        """Arguments of `build_batch` beside the tokens and names."""
        values = {
            "loss_mask": self.loss_mask,
            "rewards": self.rewards,
            "logprobs": self.logprobs,
        }
        return {name: value for name, value in values.items() if value is not None}


def _fits(role: str, kind: pa.DataType) -> bool:
    """Return True if a column of a type can have a role."""
    if role in _IDS:
        return _is_list(kind) and (
            pa.types.is_integer(kind.value_type) or pa.types.is_null(kind.value_type)
        )
    if role in _PER_TOKEN:
        return _is_list(kind) and _is_number(kind.value_type)
    if role == "rewards":
        return _is_number(kind.value_type if _is_list(kind) else kind)
    if role == "prompt_lens":
        return bool(pa.types.is_integer(kind))
    if role == "is_last_step":
        return bool(pa.types.is_boolean(kind))
    return not _is_list(kind)


def _list_wanted(role: str) -> str:
    if role in _IDS:
        return "lists of integers"
    if role in _PER_TOKEN:
        return "lists of numbers"
    names = {"rewards": "numbers or lists of numbers", "prompt_lens": "integers"}
    return names.get(role, "bools" if role == "is_last_step" else "names")


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_null(kind)
    )


def _option(role: str) -> str:
    return role.replace("_", "-")


def _all(schema: pa.Schema) -> str:
    """Name all columns of a schema, each with its type."""
    names = [f"{field.name} ({str(field.type)[:40]})" for field in schema]
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "") or "no columns"


def _hashable(name: Any) -> Any:
    """Return a row's id as a comparable object: structs become text."""
    if isinstance(name, dict):
        return "/".join(str(part) for part in name.values())
    return name


def _part(rows: Ragged, starts: Integers, lengths: Integers | None) -> Ragged:
    """Return a part of each row, by default to its end."""
    lengths = rows.lengths - starts if lengths is None else lengths
    values = np.asarray(rows.values)[ranges_of(rows.offsets[:-1] + starts, lengths)]
    return Ragged(values, offsets_of(lengths))


def _keep(rows: Ragged, keep: NDArray[np.bool_]) -> Ragged:
    """Return rows without some of their tokens."""
    counts = np.diff(np.append(0, np.cumsum(keep))[rows.offsets])
    return Ragged(np.asarray(rows.values)[keep], offsets_of(counts))


def _leading_zeros(mask: Ragged) -> Integers:
    """Return the number of leading zeros of each row."""
    values = np.flatnonzero(np.append(np.asarray(mask.values), 1) != 0)
    firsts = values[np.searchsorted(values, mask.offsets[:-1])]
    lens: Integers = np.minimum(firsts - mask.offsets[:-1], mask.lengths)
    return lens
