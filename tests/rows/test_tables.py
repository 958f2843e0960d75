"""Tables of pandas, Polars, DuckDB and PyArrow: all give the batch of their rows."""

import numpy as np
import pytest
from raising import raises

import fastcollate as fc
from fastcollate.testing.reference import assert_same

pa = pytest.importorskip("pyarrow")

OPTIONS = {"pad_token_id": 0, "array_type": "numpy"}
ROWS = [
    {
        "prompt": list(range(10 * row, 10 * row + row % 3)),
        "response": list(range(100 * row, 100 * row + 1 + row % 4)),
        "logprobs": [float("nan"), -0.5, -1.5, -2.5][: 1 + row % 4],
        "rewards": row / 4,
        "uid": f"prompt {row}",
    }
    for row in range(9)
]
KEPT = [row for row in ROWS if row["rewards"] > 0.5]
"""Rows whose index does not begin at 0 in pandas."""


def collate(samples):
    return fc.Collator(**OPTIONS)(samples)


def by_column(table):
    """Build a batch of the columns of a table."""
    names = ("logprobs", "rewards")
    columns = {name: table[name] for name in names}
    uids = table["uid"]
    return fc.build_batch(table["prompt"], table["response"], uids=uids, **columns, **OPTIONS)


def check(table, rows):
    expected = collate(rows)
    for batch in collate(table), by_column(table):
        assert_same(batch, expected)
        assert batch.uids == expected.uids


def of_lists():
    return pytest.importorskip("pandas").DataFrame(ROWS)


def of_arrays():
    pytest.importorskip("pandas")
    return pa.Table.from_pylist(ROWS).to_pandas()


def of_arrow():
    pd = pytest.importorskip("pandas")
    return pa.Table.from_pylist(ROWS).to_pandas(types_mapper=pd.ArrowDtype)


FRAMES = pytest.mark.parametrize("make", [of_lists, of_arrays, of_arrow])


@FRAMES
def test_pandas(make):
    frame = make()
    check(frame, ROWS)
    check({name: frame[name] for name in frame}, ROWS)
    kept = frame[frame["rewards"] > 0.5]
    check(kept, KEPT)
    check(kept[::-1], KEPT[::-1])


@FRAMES
def test_a_series_is_read_by_all_that_takes_rows(make):
    kept = make()[3:]
    rows = [row["response"] for row in ROWS[3:]]
    for series in kept["response"], kept[["response"]]:
        assert fc.ragged(series).to_list() == rows
        assert_same(
            {"x": fc.pad(series, array_type="numpy")}, {"x": fc.pad(rows, array_type="numpy")}
        )
        field = {"x": fc.Field(series)}
        expected = {"x": fc.Field(rows)}
        assert_same(
            fc.build_batch(rows, rows, fields=field, **OPTIONS),
            fc.build_batch(series, series, fields=expected, **OPTIONS),
        )
    lens = kept["prompt"].map(len)
    whole = [row["prompt"] + row["response"] for row in ROWS[3:]]
    assert_same(
        fc.build_batch(sequences=kept.assign(x=whole)["x"], prompt_lens=lens, **OPTIONS),
        fc.build_batch(kept["prompt"], kept["response"], **OPTIONS),
    )


def test_arrow_of_pandas_is_viewed():
    pd = pytest.importorskip("pandas")
    column = pa.array([[1, 2], [3]])
    series = pd.Series(column, dtype=pd.ArrowDtype(column.type), index=[7, 7])
    values = fc.ragged(series).values
    assert np.shares_memory(values, fc.ragged(column).values)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1], None], r"TypeError: prompts\[1\] is None"),
        ([[1], [2.5]], r"TypeError: prompts\[1\]\[0\] is 2\.5"),
        ([1, 2], r"TypeError: prompts\[0\] is 1"),
    ],
)
def test_bad_series(rows, message):
    pd = pytest.importorskip("pandas")
    with raises(message):
        fc.build_batch(pd.Series(rows, index=[5, 6]), [[1], [2]], **OPTIONS)


def test_bad_frames():
    frame = of_lists()
    with pytest.raises(TypeError, match=r"prompts is a table of .* columns; pass one of them"):
        fc.build_batch(frame, frame, **OPTIONS)
    with raises(r"the key 'note', .* fields={'note': fc.PerRow\('note'\)}"):
        collate(frame.assign(note=1)[4:])
    with pytest.raises(TypeError, match=r"samples\[0\] is a table \(DataFrame\)"):
        collate([frame, frame])


def test_arrow():
    table = pa.Table.from_pylist(ROWS)
    check(table, ROWS)
    check(pa.concat_tables([table[:4], table[4:]]), ROWS)
    check(table.to_batches()[0], ROWS)


def test_polars():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(ROWS)
    check(frame, ROWS)
    check(frame.filter(pl.col("rewards") > 0.5), KEPT)


def test_duckdb():
    duckdb = pytest.importorskip("duckdb")
    table = pa.Table.from_pylist(ROWS)
    relation = duckdb.from_arrow(table).filter("rewards > 0.5").order("rewards")
    check(relation.to_arrow_table(), KEPT)
    parts = list(map(collate, relation.to_arrow_reader(100)))
    assert_same(parts[0], collate(KEPT))


def unread():
    """Yield functions that make objects without rows in memory, and the call that reads them."""
    from pyarrow import dataset

    table = pa.Table.from_pylist(ROWS)
    yield "read_all", lambda: table.to_reader()
    yield "to_table", lambda: dataset.dataset(table)
    yield "collect", lambda: pytest.importorskip("polars").DataFrame(ROWS).lazy()
    yield "to_arrow_table", lambda: pytest.importorskip("duckdb").from_arrow(table)


@pytest.mark.parametrize(("reader", "make"), list(unread()))
def test_what_is_not_read_yet(reader, make):
    samples = make()
    message = rf"the rows of samples \(.*\) are not read yet; pass samples\.{reader}\(\)"
    with pytest.raises(TypeError, match=message):
        collate(samples)
    check(getattr(samples, reader)(), ROWS)


def test_an_iterator():
    message = r"samples \(generator\) has no length; .* list\(itertools\.islice\(samples"
    with pytest.raises(TypeError, match=message):
        collate(row for row in ROWS)
