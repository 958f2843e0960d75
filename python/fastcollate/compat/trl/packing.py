"""Packing of datasets in place of ``trl``'s."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fastcollate.common.arguments import check_count, suggests_names, tally
from fastcollate.common.arrays import describe, offsets_of
from fastcollate.plan.layouts import Packed
from fastcollate.plan.packing import pack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.int64]

STRATEGIES = ("bfd", "bfd_split", "wrapped")

SEQ_LENGTHS = "seq_lengths"
"""The column of the sequence lengths of a packed row."""


@suggests_names
def pack_dataset(
    dataset: Any,
    seq_length: int,
    strategy: str = "bfd",
    map_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Pack the sequences of a dataset, as TRL's function of this name does.

    Parameters
    ----------
    dataset
        A table of list columns, with equal row lengths in every column: any object that exports
        Arrow (``pyarrow``, ``polars``, ``duckdb``, ...), or a ``Dataset``, ``DatasetDict``,
        ``IterableDataset`` or ``IterableDatasetDict`` of ``datasets``.
    seq_length
        Most tokens of a packed row.
    strategy
        ``"bfd"``: best fit decreasing. Tokens beyond `seq_length` are cut off with a warning.
        ``"bfd_split"``: the same, but tokens beyond become sequences of their own. ``"wrapped"``:
        all sequences one after the other, cut every `seq_length` tokens.
    map_kwargs
        More arguments for the method ``map`` of datasets, which packs in batches of 1,000 rows
        unless ``batch_size`` is given; a table is packed as a whole.

    Returns
    -------
    pyarrow.Table or Dataset
        The packed rows; for a dataset, of its type and format. Except with ``"wrapped"``, there is
        an additional column ``seq_lengths``: the lengths of each row's sequences. Sequences without
        tokens, and None in place of a sequence, are left out.

    Raises
    ------
    ValueError
        An unknown strategy; `seq_length` is not positive; rows with more values in one column than
        in another; no columns.
    TypeError
        A column that is not of lists; an argument of another type than above.
    KeyError
        A column ``seq_lengths`` exists already, and the strategy makes one.
    ImportError
        ``pyarrow`` is not installed.

    Warns
    -----
    UserWarning
        Sequences are cut off.

    Notes
    -----
    Written against TRL 1.16.0: ``pack_dataset`` of ``trl.data_utils``, with the same rows in the
    same order. Unlike in TRL, a table can be passed, and columns that are views of larger ones or
    have only empty sequences can be packed.
    """
    if strategy not in STRATEGIES:
        raise ValueError(
            f"Invalid packing strategy {strategy!r}, must be one of {', '.join(STRATEGIES)}"
        )
    seq_length = check_count("seq_length", seq_length, "a number of tokens")
    if hasattr(dataset, "with_format") and hasattr(dataset, "map"):
        return _map(dataset, seq_length, strategy, map_kwargs or {})
    if map_kwargs:
        raise TypeError(
            f"map_kwargs is {map_kwargs!r}, but dataset is of type {type(dataset).__name__}, "
            "which is not mapped; leave map_kwargs out"
        )
    table = _as_table(dataset)
    packed, cut = _pack(table, seq_length, strategy)
    if len(cut) > 0:
        warnings.warn(
            f"{tally(len(cut), 'sequence')} of {len(table):,} had more than "
            f"seq_length={seq_length} tokens and were cut off by "
            f"{tally(int(cut.sum()), 'token')} in all; pass strategy='bfd_split' to keep them",
            stacklevel=2,
        )
    return packed


def _map(dataset: Any, seq_length: int, strategy: str, map_kwargs: dict[str, Any]) -> Any:
    """Pack a dataset, in the batches of its own method ``map``."""
    format = _format(dataset)
    dataset = dataset.with_format("arrow").map(
        _pack_batch,
        batched=True,
        fn_kwargs={"seq_length": seq_length, "strategy": strategy},
        **map_kwargs,
    )
    if strategy != "wrapped" and "columns" in format:
        format["columns"] = [*format["columns"], SEQ_LENGTHS]
    return dataset.with_format(**format)


def _format(dataset: Any) -> dict[str, Any]:
    """Return the arguments of ``with_format`` that give a dataset the format it has."""
    from datasets import Dataset

    if isinstance(dataset, Mapping):
        dataset = next(iter(dataset.values()))
    if isinstance(dataset, Dataset):
        format = dict(dataset.format)
        options = format.pop("format_kwargs")
        return {**format, **options}
    formatting = dataset._formatting
    return {"type": None if formatting is None else formatting.format_type}


def _pack_batch(examples: Any, seq_length: int, strategy: str) -> Any:
    """Pack a batch of a dataset. At module level, so that its results are cached."""
    packed, cut = _pack(examples, seq_length, strategy)
    if len(cut) > 0:
        # The same text for every batch, so that it is shown once.
        warnings.warn(
            f"sequences of more than seq_length={seq_length} tokens are cut off; "
            "pass strategy='bfd_split' to keep all tokens",
            stacklevel=2,
        )
    return packed


def _as_table(dataset: Any) -> Any:
    """Return a pyarrow table over the memory of an object that exports Arrow."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise ImportError("pack_dataset needs pyarrow: pip install pyarrow") from error
    if isinstance(dataset, pa.Table):
        return dataset
    if isinstance(dataset, pa.RecordBatch):
        return pa.Table.from_batches([dataset])
    if hasattr(dataset, "__arrow_c_stream__") or hasattr(dataset, "__arrow_c_array__"):
        return pa.table(dataset)
    raise TypeError(
        f"dataset is {describe(dataset)}; pass an Arrow table or a dataset of the library datasets"
    )


def _pack(table: Any, seq_length: int, strategy: str) -> tuple[Any, Integers]:
    """Pack a table; also return the lengths that were cut off sequences."""
    import pyarrow as pa

    columns, starts, lengths = _columns(table)
    names = table.column_names
    if strategy != "wrapped" and SEQ_LENGTHS in names:
        raise KeyError(
            f"dataset has a column {SEQ_LENGTHS!r}, which packing adds; rename or drop it"
        )
    kept = np.minimum(lengths, seq_length) if strategy == "bfd" else lengths
    parts = (_wrap if strategy == "wrapped" else _best_fit)(kept, seq_length)
    packed = []
    for column, start in zip(columns, starts, strict=True):
        begins = start[parts.rows] + parts.starts
        # The parts in their order: the only copy.
        values = pa.LargeListViewArray.from_arrays(begins, parts.lengths, column.values).flatten()
        packed.append(type(column).from_arrays(parts.offsets, values))
    if parts.bins is not None:
        part_lengths = pa.array(parts.lengths, columns[0].offsets.type)
        packed.append(pa.ListArray.from_arrays(pa.array(parts.bins, pa.int32()), part_lengths))
        names = [*names, SEQ_LENGTHS]
    return pa.Table.from_arrays(packed, names=names), (lengths - kept)[lengths > kept]


class _Parts(NamedTuple):
    """The parts of rows that form packed rows, one after the other."""

    rows: Integers
    """The row of each part."""
    starts: Integers
    """The offset of each part in its row."""
    lengths: Integers
    """The number of values of each part."""
    offsets: Integers
    """Offsets of packed rows in the values, with the end."""
    bins: Integers | None
    """Offsets of packed rows in the parts; None if rows begin inside parts."""


def _wrap(lengths: Integers, seq_length: int) -> _Parts:
    """Cut all rows, one after the other, every `seq_length` values."""
    rows, total = np.arange(len(lengths)), lengths.sum()
    offsets = np.append(np.arange(0, total, seq_length), total)
    return _Parts(rows, np.zeros_like(rows), lengths, offsets, None)


def _best_fit(lengths: Integers, seq_length: int) -> _Parts:
    """Pack rows, splitting those that are too long; empty rows have no part."""
    counts = -(-lengths // seq_length)
    rows = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(rows)) - offsets_of(counts)[rows]) * seq_length
    lens = np.minimum(lengths[rows] - starts, seq_length)
    plan = pack(lens, Packed(seq_length, algorithm="bfd"))
    order = plan.indices
    return _Parts(rows[order], starts[order], plan.lengths, offsets_of(plan.loads), plan.offsets)


def _columns(table: Any) -> tuple[list[Any], list[Integers], Integers]:
    """Return contiguous columns, their row starts, and the number of values of each row."""
    import pyarrow as pa

    if table.num_columns == 0:
        raise ValueError("dataset has no columns; pass at least one column of lists")
    columns = []
    starts: list[Integers] = []
    lengths: list[Integers] = []
    for name, chunked in zip(table.column_names, table.columns, strict=True):
        if not (pa.types.is_list(chunked.type) or pa.types.is_large_list(chunked.type)):
            raise TypeError(
                "Packing requires all columns to be lists, but dataset has a column "
                f"{name!r} of type {chunked.type}; drop it"
            )
        column = chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
        offsets = column.offsets.to_numpy().astype(np.int64, copy=False)
        columns.append(column)
        starts.append(offsets[:-1])
        lengths.append(np.diff(offsets))
        if column.null_count > 0:
            lengths[-1][column.is_null().to_numpy(zero_copy_only=False)] = 0
        if not np.array_equal(lengths[0], lengths[-1]):
            row = int(np.argmin(lengths[0] == lengths[-1]))
            raise ValueError(
                "All columns must have values of the same length, but "
                f"row {row} of column {name!r} has {lengths[-1][row]} values "
                f"and {lengths[0][row]} in column {table.column_names[0]!r}; pass rows of one "
                "length in all columns"
            )
    return columns, starts, lengths[0]
