"""Rollout files, read part by part."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fastcollate.cli.rows import FileRows, joined
from fastcollate.cli.schemas import flag, schema_of_file
from fastcollate.common.text import show
from fastcollate.rollouts.calls import Calls
from fastcollate.rollouts.making import Options, Place
from fastcollate.rollouts.parsing import read_bodies
from fastcollate.rollouts.schema import Schema, key_of
from fastcollate.rollouts.tables import example_of, read_table
from fastcollate.rows.columns import Ragged

SUFFIXES = {
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".ipc", ".feather"),
    "json": (".jsonl", ".ndjson", ".json"),
}
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_TITLES = {"parquet": "Parquet", "arrow": "Arrow IPC", "json": "JSON lines"}

CHUNK_BYTES = 32 << 20
"""Approximate bytes of values per read."""

CHUNK_TOKENS = 2 << 20
"""Tokens after which a chunk ends at the next end of a group."""

_MOST_ROWS = 1 << 16

_OF_PART = re.compile(r"(call |reward|advantage)(?:s\[)?(\d+)\]?(?= (?:has|is) )")
"""The beginning of an error that names a call."""

AS_THEY_ARE = Options(None, "keep", "keep")
"""Unfinished calls and log-probabilities that are none are looked at, too."""


ADVICE = "; name their column with --prompts COLUMN, or leave such rows out"


Part = tuple["bytes | pa.Table", int]
"""Some bodies of a file: JSON lines, or a table; and the number of the first, from 1 on."""


class File(NamedTuple):
    """A file of rows."""

    path: Path
    kind: str

    @classmethod
    def of(cls, path: Path) -> File:
        """Determine the format of a file.

        Raises
        ------
        OSError
            If it cannot be read.
        ValueError
            If its format is unknown.
        """
        return cls(path, _kind(path))

    def parts(self, names: list[str] | None = None) -> Iterator[Part]:
        """Yield the bodies of the file, of tables only these columns."""
        first = 1
        with _names_file(self.path, self.kind):
            if self.kind == "json":
                yield from self._lines()
                return
            for batch in self._batches(names):
                rows = max(batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1), 16)
                for start in range(0, batch.num_rows, rows):
                    yield pa.Table.from_batches([batch.slice(start, rows)]), first + start
                first += batch.num_rows

    def _lines(self) -> Iterator[Part]:
        """Yield whole lines of JSON; all of a file that is one text of JSON."""
        with pa.OSFile(str(self.path), "rb") as raw, _decompressed(raw, self.path) as file:
            rest, first, after = b"", 1, file.read(CHUNK_BYTES)
            while block := after:
                after = file.read(CHUNK_BYTES)
                if not after and not block.endswith(b"\n"):
                    block += b"\n"  # the last line goes with those before it
                lines, is_cut, tail = (rest + block).rpartition(b"\n")
                rest = tail if is_cut else rest + block
                if is_cut and not _is_one_text(lines):
                    yield lines, first
                    first += lines.count(b"\n") + 1
                elif is_cut:
                    rest = lines + b"\n" + tail
            if rest.strip():
                is_one = _is_one_text(rest)
                yield json.dumps(json.loads(rest)).encode() if is_one else rest, first

    def _batches(self, names: list[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a table."""
        if self.kind == "parquet":
            with pq.ParquetFile(self.path, pre_buffer=False, memory_map=True) as file:
                rows = CHUNK_BYTES * file.metadata.num_rows // max(_size(file.metadata), 1)
                yield from file.iter_batches(int(np.clip(rows, 16, _MOST_ROWS)), columns=names)
            return
        with pa.OSFile(str(self.path), "rb") as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            if not is_file:
                yield from pa.ipc.open_stream(source)
                return
            reader = pa.ipc.open_file(source)
            yield from map(reader.get_batch, range(reader.num_record_batches))

    def first(self) -> tuple[Any, dict[str, str]] | None:
        """Return the first body, or an example of a table's row, and kinds of its values by name.

        Returns None if there is none.
        """
        if self.kind == "parquet":
            with _names_file(self.path, self.kind):
                return _row_of(pq.read_schema(self.path))
        for bodies, _ in self.parts():
            if isinstance(bodies, pa.Table):
                return _row_of(bodies.schema)
            if bodies.strip():
                body = self._first_body(bodies)
                given = body if isinstance(body, dict) else {}
                kinds = {name: _kind_of(value) for name, value in given.items()}
                return None if body is None else (body, kinds)
        return None

    def _first_body(self, lines: bytes) -> Any:
        """Return the first body of JSON lines; None for an empty array."""
        head = lines.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0]
        if head[:1] not in (b"{", b"["):
            raise ValueError(
                f"{self.path} cannot be read as JSON lines: it does not begin with '{{'; write one "
                "JSON object per line, one line per row"
            )
        try:
            body = json.loads(head)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.path} cannot be read as JSON lines: line 1: {error}; write one JSON object "
                "per line, in UTF-8"
            ) from None
        found = body if isinstance(body, dict) else next(iter(body), None)
        if not isinstance(found, (dict, list, type(None))):
            raise ValueError(
                f"{self.path} has {show(found)} where a row is expected; write one JSON object per "
                "line, one line per row"
            )
        return found

    def calls(self, schema: Schema) -> Iterator[Calls]:
        """Yield the calls of the file."""
        names = None
        if self.kind == "parquet":
            used = {key_of(path) for paths in schema.columns.values() for path in paths}
            names = [name for name in pq.read_schema(self.path).names if name in used]
        for bodies, first in self.parts(names):
            if isinstance(bodies, pa.Table):
                yield read_table(
                    bodies, schema, AS_THEY_ARE, Place(f"{self.path}, row {{}}", first, ADVICE)
                )
            else:
                place = Place(f"{self.path}, line {{}}", first, ADVICE)
                yield read_bodies(bodies, schema, AS_THEY_ARE, place)


class Source(NamedTuple):
    """One file, or several of the same schema, as rows."""

    path: Path
    files: list[File]
    schema: Schema
    title: str
    """The source, and the keys of its columns."""
    unread: list[str]
    """Columns, or keys of a body, that are not read."""
    named: str | None
    """The source that an option names."""
    starts: list[int]
    """The number of rows before each file that was read."""

    @classmethod
    def of(cls, path: Path, names: Mapping[str, str], schema: str | None = None) -> Source:
        """Open a file or a folder; `names` are given columns, `schema` the name of a source.

        Raises
        ------
        OSError
            If there is none, or it cannot be read.
        ValueError
            If it has no rows of tokens.
        """
        is_pipe = path.exists() and not (path.is_file() or path.is_dir())
        if is_pipe or str(path) == "-":
            raise ValueError(f"{path} is a pipe, which cannot be read twice; pass a file")
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; pass a file, or a folder of files")
        paths = [path]
        if path.is_dir():
            paths = sorted(one for one in path.rglob("*") if one.is_file() and _by_name(one))
            if not paths:
                raise ValueError(
                    f"{path} contains no rollouts; pass a folder with .parquet, .arrow or "
                    ".jsonl files"
                )
        files = list(map(File.of, paths))
        found: dict[Path, tuple[Schema, str, list[str]]] = {}
        for file in files:
            if (first := file.first()) is not None:
                found[file.path] = schema_of_file(*first, names, schema, str(file.path))
        if not found:
            raise _no_rows(path)
        known, title, unread = next(iter(found.values()))
        for other, (its, *_) in found.items():
            if its != known:
                raise ValueError(
                    f"{other} has other columns than {next(iter(found))}; pass files with the same "
                    "columns"
                )
        return cls(path, files, known, title, unread, schema, [])

    @property
    def paths(self) -> list[Path]:
        """The files that are read."""
        return [file.path for file in self.files]

    def place(self, row: int) -> str:
        """Name a row, by its number among those of all files, in its own file."""
        file = bisect_left(self.starts, row) - 1
        return f"{self.files[file].path}, row {row - self.starts[file]}"

    def column_of(self, name: str) -> str:
        """Return the column that the file has under this name."""
        found = (column for column, paths in self.schema.columns.items() if name in paths)
        return next(found, name)

    def _parts(self) -> Iterator[Calls]:
        """Yield calls as they are read; errors name rows of the file, not calls of a part."""
        count = 0
        self.starts.clear()
        try:
            for file in self.files:
                self.starts.append(count)
                for calls in file.calls(self.schema):
                    yield calls
                    count += len(calls)
        except (TypeError, ValueError) as error:
            call = _OF_PART.match(text := str(error))
            if call is None:
                raise
            place, its = self.place(count + 1 + int(call[2])), f": its {call[1]}"
            its = "" if call[1] == "call " else its
            raise ValueError(f"{place}{its}{text[call.end() :]}") from error

    def _calls(self) -> Iterator[Calls]:
        """Yield calls, with rewards that are numbers."""
        count, has_bodies, are_lists = 0, False, dict[str, bool]()
        for calls in self._parts():
            for name in ("rewards", "advantages") if len(calls) > 0 else ():
                column = getattr(calls, name, None)
                is_list = isinstance(column, Ragged)
                if are_lists.setdefault(name, is_list) != is_list:
                    found = "missing" if column is None else show(column[0])
                    raise ValueError(
                        f"{self.place(count + 1)}: its {name.removesuffix('s')} is {found}; "
                        "write a list for each row, or for none"
                    )
            for at, reward in enumerate(() if calls.rewards is None else calls.rewards):
                if not isinstance(reward, (int, float, np.ndarray, NoneType)):
                    raise ValueError(
                        f"{self.place(count + at + 1)}: its reward is {show(reward)}; "
                        "leave such rows out, or name other rewards with --rewards COLUMN"
                    )
            count, has_bodies = count + len(calls), True
            yield _without_nulls(calls)
        if count == 0 and has_bodies:
            if self.named is not None:
                raise ValueError(
                    f"--schema is {self.named!r}, but {self.path} has no tokens under its keys; "
                    "leave it out, or pass another one"
                )
            raise ValueError(
                f"{self.path} has no tokens under the keys of its schema, "
                f"{self.title.partition(':')[0]}; name another one with --schema NAME"
            )
        if count == 0:
            raise _no_rows(self.path)

    def chunks(self) -> Iterator[FileRows]:
        """Yield chunks of whole groups.

        The rows of a prompt, or of a trajectory, are contiguous in one chunk of any size. So memory
        is bounded by a group and :data:`CHUNK_TOKENS`.
        """
        waiting: Calls | None = None
        first = 1
        for calls in self._calls():
            waiting = calls if waiting is None else joined([waiting, calls])
            if len(waiting.prompts.values) + len(waiting.responses.values) < CHUNK_TOKENS:
                continue
            end = _last_start(waiting)
            if end > 0:
                yield self._checked(FileRows(first, waiting.select(np.arange(end))))
                waiting, first = waiting.select(np.arange(end, len(waiting))), first + end
        if waiting is not None and len(waiting) > 0:
            yield self._checked(FileRows(first, waiting))

    def _checked(self, rows: FileRows) -> FileRows:
        """Return rows, which all have an id if any has.

        Raises
        ------
        ValueError
            If one has none.
        """
        for name, ids in rows.ids.items():
            for row, one in enumerate(ids, rows.first_row):
                if one is None or one != one:
                    column = self.schema.columns.get(name, (name,))[0]
                    raise ValueError(
                        f"{self.place(row)} has no value in the column {column!r}; fill it, or "
                        f"name another column with {flag(name)} COLUMN"
                    )
        return rows

    def rows(self, numbers: list[int]) -> tuple[Calls, int]:
        """Return rows by their numbers from 1 on, and the number of all rows.

        Raises
        ------
        IndexError
            If there are fewer rows.
        """
        found: dict[int, Calls] = {}
        count = 0
        for calls in self._calls():
            for number in numbers:
                if count < number <= count + len(calls):
                    found[number] = calls.select([number - count - 1])
            count += len(calls)
        for number in numbers:
            if number not in found:
                raise IndexError(
                    f"--row is {number}, but {self.path} has rows 1 to {count:,}; pass one of them"
                )
        return joined([found[number] for number in numbers]), count


def _row_of(schema: pa.Schema) -> tuple[Any, dict[str, str]]:
    """Return an example of a row, and the types of columns."""
    return example_of(schema), {field.name: str(field.type)[:40] for field in schema}


def _kind_of(value: Any) -> str:
    """Name the type of a value, and of a list's items."""
    if isinstance(value, list) and value:
        return f"list of {_kind_of(value[0])}"
    return "null in the first row" if value is None else type(value).__name__


def _without_nulls(calls: Calls) -> Calls:
    """Return calls with NaN in place of rewards that are null, and without rewards if all are."""
    if isinstance(calls.rewards, list) and None in calls.rewards:
        are_null = all(one is None for one in calls.rewards)
        known = [math.nan if one is None else one for one in calls.rewards]
        calls.rewards = None if are_null else known
    return calls


def _no_rows(path: Path) -> ValueError:
    return ValueError(f"{path} has no rows; pass a file of rollouts")


def _last_start(calls: Calls) -> int:
    """Return the first row of the last group, which may continue in the next calls."""
    columns = calls.columns
    for name in ("uids", "trajectory_ids"):
        if name in columns:
            ids = list(columns[name])
            last = len(ids) - 1
            while last > 0 and ids[last - 1] == ids[-1]:
                last -= 1
            return last
    if "is_last_step" in columns:
        flags = columns["is_last_step"]
        return max((row + 1 for row, is_last in enumerate(flags) if is_last), default=0)
    return len(calls)


def _size(metadata: Any) -> int:
    """Return the approximate bytes of a Parquet file's values in memory."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return 8 * sum(int(column.num_values) for column in columns)


def _by_name(path: Path) -> str | None:
    """Return the kind of a file by its name."""
    name = path.name.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return next((kind for kind, ends in SUFFIXES.items() if name.endswith(ends)), None)


def _kind(path: Path) -> str:
    """Return the kind of a file, by its first bytes or by its name."""
    with open(path, "rb") as file:
        head = file.read(8)
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:6] == b"ARROW1" or head[:4] == b"\xff\xff\xff\xff":
        return "arrow"
    kind = _by_name(path)
    if kind == "json" or head.lstrip()[:1] == b"{":
        return "json"
    if not head:
        raise _no_rows(path)
    if kind is not None:
        raise ValueError(
            f"{path} is named as {_TITLES[kind]}, but has another format; rename it, or pass "
            "another file"
        )
    raise ValueError(
        f"{path} is not a Parquet, Arrow IPC or JSON lines file; write its rows as one, such as by "
        "polars.DataFrame(rows).write_parquet(...)"
    )


@contextmanager
def _names_file(path: Path, kind: str) -> Iterator[None]:
    """Name the file in Arrow's errors."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as {_TITLES[kind]}: {str(error).rstrip('.')}; it may be cut "
            "off or have a wrong extension: write or copy it again"
        ) from error


def _decompressed(raw: Any, path: Path) -> Any:
    """Open a file, decompressed by its extension."""
    codec = COMPRESSED.get(path.suffix.lower())
    return raw if codec is None else pa.CompressedInputStream(raw, codec)


def _is_one_text(lines: bytes) -> bool:
    """Return True if the first line is the beginning of a longer text of JSON."""
    head = lines.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0].strip()
    return head in (b"{", b"[")
