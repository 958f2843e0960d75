"""compat.trl packs datasets as TRL does."""

import sys
import types
import warnings

import pytest
from raising import raises
from recorded import recorded

pa = pytest.importorskip("pyarrow")

from fastcollate.compat.trl import pack_dataset  # noqa: E402

GOLDEN = recorded("trl_pack_dataset")
STRATEGIES = ("bfd", "bfd_split", "wrapped")


def packed(table, seq_length, strategy="bfd"):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cut off.*")
        result = pack_dataset(table, seq_length, strategy)
    result.validate(full=True)
    return result


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_what_trl_itself_gave(case):
    table = pa.table(case["columns"])
    result = packed(table, case["seq_length"], case["strategy"])
    assert result.to_pydict() == case["result"]


ROWS = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10], [11]]


def test_whatever_hands_over_arrow_can_be_packed():
    table = pa.table({"input_ids": ROWS})
    expected = pack_dataset(table, 5)
    (batch,) = table.to_batches()
    assert pack_dataset(batch, 5).equals(expected)

    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return table.__arrow_c_stream__(requested_schema)

    assert pack_dataset(Stream(), 5).equals(expected)
    polars = pytest.importorskip("polars")
    from_polars = pack_dataset(polars.from_arrow(table), 5)
    assert from_polars.to_pydict() == expected.to_pydict()


def test_sequences_without_tokens_and_none_are_left_out():
    table = pa.table({"a": [[1, 2], None, [], [3]]})
    assert pack_dataset(table, 4).to_pydict() == {"a": [[1, 2, 3]], "seq_lengths": [[2, 1]]}
    assert pack_dataset(table, 4, "wrapped").to_pydict() == {"a": [[1, 2, 3]]}
    for strategy in STRATEGIES:
        empty = pack_dataset(table.slice(1, 2), 4, strategy)
        assert empty["a"].to_pylist() == []
        assert pack_dataset(table.slice(0, 0), 4, strategy).schema == empty.schema


def test_what_lies_under_none_is_not_packed():
    """Arrow leaves the values of a None undefined, so it may have some."""
    column = pa.ListArray.from_arrays(
        [0, 2, 4, 5], [1, 2, 3, 4, 5], mask=pa.array([False, True, False])
    )
    assert column.to_pylist() == [[1, 2], None, [5]]
    for strategy in STRATEGIES:
        assert pack_dataset(pa.table({"a": column}), 4, strategy)["a"].to_pylist() == [[1, 2, 5]]


REFUSED = [
    (
        {"a": [1, 2]},
        {},
        "TypeError: Packing requires all columns to be lists.* column 'a' of type int64",
    ),
    ({"a": [[1]], "b": ["x"]}, {}, "TypeError: column 'b' of type string"),
    (
        {"a": [[1], [2]], "b": [[1], [2, 3]]},
        {},
        "All columns must have values of the same length.* row 1 of column 'b' has 2",
    ),
    ({"seq_lengths": [[1]]}, {}, "KeyError: seq_lengths"),
    ({}, {}, "no columns"),
    ({"a": [[1]]}, {"strategy": "ffd"}, "Invalid packing strategy 'ffd', must be one of bfd,"),
    ({"a": [[1]]}, {"seq_length": 0}, "seq_length is 0"),
    ({"a": [[1]]}, {"seq_length": 1.5}, "TypeError: seq_length is 1.5"),
    ({"a": [[1]]}, {"map_kwargs": {"num_proc": 2}}, "TypeError: map_kwargs is"),
]


@pytest.mark.parametrize(("columns", "changes", "message"), REFUSED)
def test_bad_input(columns, changes, message):
    with raises(message):
        pack_dataset(pa.table(columns), **{"seq_length": 4, **changes})


@pytest.mark.parametrize("dataset", [None, [[1, 2]], {"input_ids": [[1]]}, 3])
def test_other_things_are_no_datasets(dataset):
    with pytest.raises(TypeError, match=r"dataset is .*; pass an Arrow table"):
        pack_dataset(dataset, 4)


class Dataset:
    """The part of a dataset that `pack_dataset` uses."""

    def __init__(self, table, format=None):
        self.table = table
        self.format = format or {"type": None, "format_kwargs": {}, "columns": table.column_names}
        self.calls = []

    def with_format(self, type=None, columns=None, **kwargs):
        result = Dataset(self.table, {"type": type, "format_kwargs": kwargs, "columns": columns})
        result.calls = self.calls
        return result

    def map(self, function, *, batched, fn_kwargs, batch_size=1000):
        assert batched
        assert self.format["type"] == "arrow"
        self.calls.append(batch_size)
        batches = [
            function(self.table.slice(start, batch_size), **fn_kwargs)
            for start in range(0, len(self.table), batch_size)
        ]
        result = Dataset(pa.concat_tables(batches))
        result.calls = self.calls
        return result


class IterableDataset(Dataset):
    """One that keeps its format elsewhere."""

    def __init__(self, table, format=None):
        super().__init__(table, format)
        self._formatting = format and types.SimpleNamespace(format_type=format["type"])


@pytest.fixture
def datasets(monkeypatch):
    """Replace the library by a stand-in with the given parts."""
    module = types.ModuleType("datasets")
    module.Dataset = Dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_a_dataset_is_mapped_in_batches(datasets):
    dataset = Dataset(pa.table({"input_ids": ROWS})).with_format("torch", ["input_ids"], device="x")
    with pytest.warns(UserWarning, match="more than seq_length=3 tokens are cut off"):
        result = pack_dataset(dataset, 3, map_kwargs={"batch_size": 2})
    assert result.calls == [2]
    assert result.table.to_pydict() == {
        "input_ids": [[1, 2, 3], [6, 7], [8, 9, 10], [11]],
        "seq_lengths": [[3], [2], [3], [1]],
    }
    assert result.format == {
        "type": "torch",
        "format_kwargs": {"device": "x"},
        "columns": ["input_ids", "seq_lengths"],
    }
    result = pack_dataset(dataset, 3, "wrapped")
    assert result.calls == [2, 1000]
    assert result.format["columns"] == ["input_ids"]
    assert dataset.format["columns"] == ["input_ids"]


def test_the_format_of_an_iterable_dataset_stays(datasets):
    datasets.Dataset = type("OtherDataset", (), {})
    table = pa.table({"input_ids": ROWS})
    assert pack_dataset(IterableDataset(table), 5).format["type"] is None
    dataset = IterableDataset(table).with_format("numpy")
    dataset._formatting = types.SimpleNamespace(format_type="numpy")
    assert pack_dataset(dataset, 5).format["type"] == "numpy"


def test_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"^pack_dataset needs pyarrow: pip install pyarrow$"):
        pack_dataset(pa.table({"a": [[1]]}), 4)
