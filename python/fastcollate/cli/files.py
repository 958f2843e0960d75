"""Rollout files, read in batches of rows by PyArrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from fastcollate.cli.columns import FileColumns, FileRows

SUFFIXES = {
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".ipc", ".feather"),
    "json": (".jsonl", ".ndjson", ".json"),
}
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")

CHUNK_BYTES = 32 << 20
"""Approximate bytes of values per read."""

CHUNK_TOKENS = 2 << 20
"""Tokens after which a chunk ends at the next end of a group."""

_MOST_ROWS = 1 << 16


class File(NamedTuple):
    """A file of rows."""

    path: Path
    kind: str
    schema: pa.Schema

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
        kind = _kind(path)
        with _names_file(path, kind):
            if kind == "parquet":
                return cls(path, kind, pq.read_schema(path))
            if kind == "json":
                _check_lines(path)
            with _opened(path, kind) as reader:
                return cls(path, kind, reader.schema)

    def batches(self, columns: FileColumns) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows."""
        names = columns.used
        with _names_file(self.path, self.kind):
            if self.kind == "parquet":
                with pq.ParquetFile(self.path, pre_buffer=False, memory_map=True) as file:
                    rows = CHUNK_BYTES * file.metadata.num_rows // max(_size(file.metadata), 1)
                    yield from file.iter_batches(int(np.clip(rows, 16, _MOST_ROWS)), columns=names)
                return
            with _opened(self.path, self.kind, self._schema(columns)) as reader:
                for batch in reader:
                    rows = max(batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1), 16)
                    for start in range(0, batch.num_rows, rows):
                        yield batch.slice(start, rows).select(names)

    def _schema(self, columns: FileColumns) -> pa.Schema:
        """Return the used columns; floats of JSON lines are floats, if the first are integers."""
        fields = [self.schema.field(name) for name in columns.used]
        floats = {columns.names.get(role) for role in ("rewards", "logprobs")}
        return pa.schema([_of_floats(one) if one.name in floats else one for one in fields])


_TITLES = {"parquet": "Parquet", "arrow": "Arrow IPC", "json": "JSON lines"}


@contextmanager
def _names_file(path: Path, kind: str) -> Iterator[None]:
    """Name the file in Arrow's errors."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as {_TITLES[kind]}: {error}") from error


class Source(NamedTuple):
    """One file, or several with the same columns, as rows."""

    path: Path
    files: list[File]
    columns: FileColumns

    @classmethod
    def of(cls, path: Path, names: Mapping[str, str]) -> Source:
        """Open a file or a folder.

        Raises
        ------
        OSError
            If there is none, or it cannot be read.
        ValueError
            If it has no rows of tokens.
        """
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; pass a file, or a folder of files")
        paths = [path]
        if path.is_dir():
            paths = sorted(one for one in path.rglob("*") if one.is_file() and _by_name(one))
            if not paths:
                raise ValueError(
                    f"{path} has no file of rollouts; pass a folder of .parquet, .arrow or .jsonl "
                    "files"
                )
        files = [File.of(one) for one in paths]
        columns = FileColumns.of(files[0].schema, names, str(files[0].path))
        for file in files[1:]:
            if FileColumns.of(file.schema, names, str(file.path)) != columns:
                raise ValueError(
                    f"{file.path} has other columns than {files[0].path}; pass files of the same "
                    "columns"
                )
        return cls(path, files, columns)

    @property
    def paths(self) -> list[Path]:
        """The files that are read."""
        return [file.path for file in self.files]

    def tables(self) -> Iterator[tuple[pa.Table, int]]:
        """Yield tables as they are read, each with its first row."""
        row = 0
        for batch in chain.from_iterable(file.batches(self.columns) for file in self.files):
            if batch.num_rows > 0:
                yield pa.Table.from_batches([batch]), row
                row += batch.num_rows
        if row == 0:
            raise ValueError(f"{self.path} has no rows; pass a file of rollouts")

    def chunks(self) -> Iterator[FileRows]:
        """Yield chunks of whole groups.

        The rows of a prompt, or of a trajectory, are contiguous in one chunk of any size. So memory
        is bounded by a group and :data:`CHUNK_TOKENS`.
        """
        waiting: pa.Table | None = None
        first = 0
        for table, row in self.tables():
            if waiting is None:
                waiting, first = table, row
            else:
                waiting = pa.concat_tables([waiting, table], promote_options="permissive")
            if self._tokens(waiting) < CHUNK_TOKENS:
                continue
            end = self._last_start(waiting)
            if end > 0:
                yield self._read(waiting.slice(0, end), first)
                waiting, first = waiting.slice(end).combine_chunks(), first + end
        if waiting is not None and waiting.num_rows > 0:
            yield self._read(waiting, first)

    def row(self, number: int) -> FileRows:
        """Return one row.

        Raises
        ------
        IndexError
            If there are fewer rows.
        """
        count = 0
        for table, first in self.tables():
            count = first + table.num_rows
            if first <= number < count:
                return self._read(table.slice(number - first, 1), number)
        raise IndexError(f"--row is {number}, but {self.path} has rows 0 to {count - 1:,}")

    def _read(self, table: pa.Table, first: int) -> FileRows:
        return self.columns.read(table, first, str(self.path))

    def _tokens(self, table: pa.Table) -> int:
        return sum(
            len(chunk.values) if hasattr(chunk, "values") else len(chunk)
            for name in self.columns.tokens
            for chunk in table.column(name).chunks
        )

    def _last_start(self, table: pa.Table) -> int:
        """Return the first row of a table's last group, which may continue in the next table."""
        names = self.columns.names
        for role in ("uids", "trajectory_ids"):
            if role in names:
                ids = table.column(names[role]).to_pylist()
                last = len(ids) - 1
                while last > 0 and ids[last - 1] == ids[-1]:
                    last -= 1
                return last
        if "is_last_step" in names:
            flags = table.column(names["is_last_step"]).to_pylist()
            return max((i + 1 for i, is_last in enumerate(flags) if is_last), default=0)
        return int(table.num_rows)


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
    if kind is not None:
        raise ValueError(f"{path} is named as {_TITLES[kind]}, but does not begin as such a file")
    raise ValueError(
        f"{path} is no Parquet, Arrow IPC or JSON lines; pass a .parquet, .arrow or .jsonl file"
    )


@contextmanager
def _opened(path: Path, kind: str, schema: pa.Schema = None) -> Iterator[Any]:
    """Open Arrow IPC, a file or a stream, or JSON lines; yield a reader.

    Parameters
    ----------
    schema
        Columns of JSON lines to read; None for all.
    """
    with pa.OSFile(str(path), "rb") as source:
        if kind == "json":
            parse = pyarrow.json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else "ignore",
            )
            read = pyarrow.json.ReadOptions(block_size=CHUNK_BYTES)  # the largest row
            with pyarrow.json.open_json(_lines(source, path), read, parse) as reader:
                yield reader
        elif source.read(6) == b"ARROW1":
            yield _Batches(pa.ipc.open_file(source))
        else:
            source.seek(0)
            yield pa.ipc.open_stream(source)


class _Batches:
    """The batches of an Arrow file, in order."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.schema = reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return map(self._reader.get_batch, range(self._reader.num_record_batches))


def _check_lines(path: Path) -> None:
    """Check that JSON lines begin with an object. Arrow's reader crashes on nulls alone."""
    with pa.OSFile(str(path), "rb") as raw, _lines(raw, path) as lines:
        head = lines.read(1 << 16).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        raise ValueError(f"{path} has no rows; pass a file of rollouts")
    if not head.startswith(b"{"):
        raise ValueError(
            f"{path} cannot be read as JSON lines: it does not begin with '{{'; write one object "
            "of a row per line"
        )


def _lines(raw: Any, path: Path) -> Any:
    """Open a file, decompressed by its extension."""
    codec = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}.get(path.suffix.lower())
    return raw if codec is None else pa.CompressedInputStream(raw, codec)


def _of_floats(field: pa.Field) -> pa.Field:
    """Return a field of the same nesting with float values."""
    is_list = hasattr(field.type, "value_type")
    return field.with_type(pa.list_(pa.float64()) if is_list else pa.float64())
