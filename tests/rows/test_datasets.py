"""Datasets of the library ``datasets``: read by column as Arrow, in the order of their own rows."""

import numpy as np
import pytest

import fastcollate as fc
from fastcollate.testing.reference import assert_same

datasets = pytest.importorskip("datasets")

OPTIONS = {"pad_token_id": 0, "array_type": "numpy"}


def rows_of(count=12):
    """Make turns, each with ids that no other one has."""
    rng = np.random.default_rng(0)
    rows = []
    for index in range(count):
        lens = rng.integers(1, 5, 2)
        prompt, response = (
            (100 * index + 10 * part + np.arange(n)).tolist() for part, n in enumerate(lens)
        )
        rows.append(
            {
                "prompt": prompt,
                "response": response,
                "logprobs": rng.normal(size=len(response)).tolist(),
                "rewards": index / 4,
                "uid": f"prompt {index}",
                "routes": rng.integers(0, 9, (len(prompt) + len(response), 1, 2)).tolist(),
                "note": "of no use",
            }
        )
    return rows


ORDERS = {
    "plain": lambda data: data,
    "shuffled": lambda data: data.shuffle(seed=1),
    "filtered": lambda data: data.filter(lambda row: row["rewards"] > 1),
    "selected": lambda data: data.select([7, 2, 2, 5]),
    "sliced": lambda data: data.select(range(3, 9)),
    "twice": lambda data: data.shuffle(seed=2).select(range(2, 7)),
    "joined": lambda data: datasets.concatenate_datasets(
        [data.select([4, 1]), data.shuffle(seed=3)]
    ),
}


@pytest.fixture(params=list(ORDERS))
def data(request):
    return ORDERS[request.param](datasets.Dataset.from_list(rows_of()))


FIELDS = {"routes": fc.Field("routes", align="sequence", dtype="uint8")}

FORMATS = [None, "numpy", "torch", "arrow", "pandas", "polars"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_dataset_gives_the_batch_of_its_rows(data, format):
    if format in ("torch", "pandas", "polars"):
        pytest.importorskip(format)
    collate = fc.Collator(**OPTIONS, ignore=["note"], fields=FIELDS)
    rows = list(data)
    expected = collate(rows)
    assert expected.uids == [row["uid"] for row in rows]
    shown = data.with_format(format)
    for samples in (shown, {key: data[key] for key in data.column_names}):
        batch = collate(samples)
        assert_same(batch, expected)
        assert batch.uids == expected.uids


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_iter_gives(is_streamed, format):
    if format in ("torch", "pandas", "polars"):
        pytest.importorskip(format)
    data = datasets.Dataset.from_list(rows_of()).remove_columns(["routes", "note"])
    collate = fc.Collator(**OPTIONS)
    rows = list(data)
    shown = (data.to_iterable_dataset() if is_streamed else data).with_format(format)
    batches = list(map(collate, shown.iter(batch_size=5)))
    expected = [collate(rows[begin : begin + 5]) for begin in range(0, len(rows), 5)]
    for batch, other in zip(batches, expected, strict=True):
        assert_same(batch, other)
        assert batch.uids == other.uids


def test_whole_sequences(data):
    ids, lens = ([row["prompt"] + row["response"] for row in data], list(map(len, data["prompt"])))
    whole = datasets.Dataset.from_dict({"input_ids": ids, "prompt_len": lens})
    expected = fc.build_batch(data["prompt"], data["response"], **OPTIONS)
    found = fc.build_batch(sequences=whole["input_ids"], prompt_lens=whole["prompt_len"], **OPTIONS)
    assert_same(found, expected)
    expected = fc.build_batch(data["prompt"], data["response"], **OPTIONS, labels="aligned")
    assert_same(fc.Collator(**OPTIONS)(whole), expected)


def test_what_is_no_batch():
    data = datasets.Dataset.from_list(rows_of())
    streamed = data.to_iterable_dataset()
    collate = fc.Collator(**OPTIONS, ignore="rest")
    for samples, message in (
        (streamed, r"samples \(IterableDataset\) has no length; pass .* samples\.iter\(batch_size"),
        (datasets.DatasetDict(train=data), r"samples \(DatasetDict\) has splits; .*\['train'\]"),
        (datasets.IterableDatasetDict(test=streamed), r"has splits; pass one: samples\['test'\]"),
        (list(data.with_format("arrow")), r"samples\[0\] is a table \(Table\); pass one table of"),
    ):
        with pytest.raises(TypeError, match=message):
            collate(samples)


def test_columns_are_read_by_all_that_takes_rows(data):
    rows = list(data)
    prompts, responses = ([row[key] for row in rows] for key in ("prompt", "response"))
    logprobs, rewards = ([row[key] for row in rows] for key in ("logprobs", "rewards"))
    expected = fc.build_batch(prompts, responses, **OPTIONS, logprobs=logprobs, rewards=rewards)
    found = fc.build_batch(
        data["prompt"],
        data["response"],
        **OPTIONS,
        logprobs=data["logprobs"],
        rewards=data["rewards"],
    )
    assert_same(found, expected)
    assert fc.ragged(data["prompt"]).to_list() == prompts
    assert fc.ragged(data["logprobs"]).values.dtype == np.float64


def test_no_row_is_made_of_python_objects(data, monkeypatch):
    """Columns are read instead: `datasets` takes as long for a row if one column of it is read."""
    collate = fc.Collator(**OPTIONS, ignore=["note", "routes"])
    columns = {key: data[key] for key in data.column_names}
    expected = collate(data)
    column = type(data["prompt"])
    monkeypatch.setattr(column, "__iter__", None)
    monkeypatch.setattr(column, "__getitem__", None)
    assert_same(collate(columns), expected)
    assert_same(
        fc.build_batch(data["prompt"], data["response"], **OPTIONS),
        {
            key: expected[key]
            for key in ("input_ids", "attention_mask", "response_mask", "loss_mask")
        },
    )


def test_rows_that_a_function_makes():
    data = datasets.Dataset.from_list(rows_of()).shuffle(seed=0)

    def longer(rows):
        return {"prompt": [[*row, 5] for row in rows["prompt"]], "response": rows["response"]}

    made = data.with_transform(longer)
    collate = fc.Collator(**OPTIONS)
    expected = collate([made[index] for index in range(len(made))])
    assert_same(collate(made), expected)
    assert fc.ragged(made["prompt"]).to_list() == [[*row, 5] for row in data["prompt"]]


def test_formats_that_show_some_columns():
    data = datasets.Dataset.from_list(rows_of()).shuffle(seed=0)
    shown = data.with_format("numpy", columns=["prompt", "response"])
    batch = fc.Collator(**OPTIONS)(shown)
    columns = data["prompt"][:], data["response"][:]
    assert_same(batch, fc.build_batch(*columns, **OPTIONS, labels="aligned"))
    with pytest.raises(ValueError, match="the key 'note'"):
        fc.Collator(**OPTIONS)(data.select_columns(["prompt", "response", "note"]))
    with pytest.raises(ValueError, match="samples is empty"):
        fc.Collator(**OPTIONS)(data.select([]))


def test_columns_of_columns_and_of_what_arrow_has_not():
    images = [[[row, 1], [2, 3]] for row in range(3)]
    features = datasets.Features(
        {
            "meta": {"prompt": datasets.List(datasets.Value("int64"))},
            "image": datasets.Array2D((2, 2), "int64"),
        }
    )
    rows = {"meta": [{"prompt": [row, row]} for row in range(3)], "image": images}
    data = datasets.Dataset.from_dict(rows, features).select([2, 0])
    assert fc.ragged(data["meta"]["prompt"]).to_list() == [[2, 2], [0, 0]]
    table = data.map(
        lambda row: {"prompt": row["meta"]["prompt"], "response": [4]}, remove_columns=["meta"]
    )
    collate = fc.Collator(**OPTIONS, fields={"pixels": fc.PerRow("image", concat=True)})
    assert collate(table)["pixels"].tolist() == [*images[2], *images[0]]
