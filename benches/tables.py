"""Measure batches of rows in tables of other libraries: the recipes of `docs/tables.md`.

1,500 rows of 200 to 6,000 tokens of int32 with log-probabilities. A line of the table is one
interleaved run (see `common.timing`).

batch
    A `Collator`, of what the library handed over, and how many times as long as of `Ragged`.
Ragged
    The same columns as `Ragged`, the form with least to read.
library
    The library's time to read the rows, from a Parquet file or a dataset in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fastcollate as fc
from common.report import Effort, Figures, main, time_text
from common.workload import long_rollouts, rollouts
from fastcollate.testing.reference import assert_same

Forms = dict[str, Callable[[], Any]]
"""Functions that return all rows, by the name of the library's form."""


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure all forms."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = rollouts(8, prompts=(1, 9), responses=(1, 9)) if effort.is_smoke else long_rollouts(1500)
    keys = {"prompt": "prompts", "response": "responses", "logprobs": "logprobs"}
    columns = {key: fc.ragged(rows[name]) for key, name in keys.items()}
    table = pa.table({key: pa.array(column) for key, column in columns.items()})
    collate = fc.Collator(pad_token_id=0, array_type="numpy")
    expected = collate(columns)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rollouts.parquet")
        pq.write_table(table, path)
        for name, make in {**from_file(path), **from_dataset(table)}.items():
            samples = make()
            assert_same(collate(samples), expected)
            calls = {"batch": partial(collate, samples), "Ragged": partial(collate, columns)}
            yield name, effort.run({**calls, "library": make})


def from_file(path: str) -> Forms:
    """Return ways of reading a Parquet file, by the libraries that are installed."""
    import pyarrow.parquet as pq

    forms: Forms = {"PyArrow": lambda: pq.read_table(path)}
    if find_spec("polars"):
        import polars as pl

        forms["Polars"] = lambda: pl.read_parquet(path)
    if find_spec("duckdb"):
        import duckdb

        forms["DuckDB"] = lambda: duckdb.sql(f"from '{path}'").to_arrow_table()
    if find_spec("pandas"):
        import pandas as pd

        def lists() -> pd.DataFrame:
            frame = pd.read_parquet(path)
            return pd.DataFrame({key: [row.tolist() for row in frame[key]] for key in frame})

        kept = partial(pd.read_parquet, path, dtype_backend="pyarrow")
        forms["pandas, dtype_backend='pyarrow'"] = kept
        forms["pandas, arrays"] = partial(pd.read_parquet, path)
        forms["pandas, lists"] = lists
    return forms


def from_dataset(table: Any) -> Forms:
    """Return ways of taking all rows of a dataset in memory, if that library is installed."""
    if not find_spec("datasets"):
        return {}
    import datasets

    data = datasets.Dataset(table)
    streamed, count = data.to_iterable_dataset(), len(data)
    reverse = list(range(count))[::-1]

    def one_batch(data: Any, format: str | None) -> Any:
        return next(iter(data.with_format(format).iter(batch_size=count)))

    forms: Forms = {
        "Dataset": lambda: data,
        "Dataset, by indices": lambda: data.select(reverse).select(reverse),
        "Dataset, a list of its rows": lambda: list(data),
    }
    for format in (None, "numpy", "arrow", *filter(find_spec, ("torch", "pandas", "polars"))):
        forms[f"Dataset.iter, {format}"] = partial(one_batch, data, format)
    for format in (None, "arrow"):
        forms[f"IterableDataset.iter, {format}"] = partial(one_batch, streamed, format)
    return forms


def cell(figures: Figures, name: str) -> str:
    """Format a time."""
    text = time_text(figures[name])
    return f"{text} ({figures['batch'] / figures['Ragged']:.1f}x)" if name == "batch" else text


if __name__ == "__main__":
    main(__doc__, measure, cell)
