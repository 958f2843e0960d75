"""Samples of several sequences each, as packers of datasets make them, are split again."""

from itertools import pairwise

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.testing.reference import assert_same, collate_loops

LAYOUTS = {
    "left": {},
    "two_segment": {"layout": "two_segment"},
    "right": {"layout": "right", "position_ids": "zero"},
    "jagged": {"layout": "jagged", "position_ids": "zero"},
    "single": {"layout": fc.Packed.single_row()},
    "bins": {"layout": fc.Packed(32)},
}
OPTIONS = {"pad_token_id": 0, "array_type": "numpy"}


@st.composite
def documents(draw):
    """Draw sequences with labels, values per token, and how many share a sample."""
    lens = draw(st.lists(st.integers(1, 12), min_size=1, max_size=12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for count in lens:
        ids = rng.integers(1, 99, count)
        labels = np.where(rng.random(count) < 0.5, ids, -100)
        labels[0] = -100  # no token comes before the first one
        weights = rng.normal(size=count)
        values = {"input_ids": ids, "labels": labels, "weights": weights}
        rows.append({key: value.tolist() for key, value in values.items()})
    ends = sorted(draw(st.sets(st.integers(0, len(rows)), max_size=4)) | {0, len(rows)})
    return rows, ends


def packed(rows, ends):
    """Join sequences to samples by hand."""
    samples = []
    for first, end in pairwise(ends):
        sample = {key: [one for row in rows[first:end] for one in row[key]] for key in rows[0]}
        sample["attention_mask"] = [1] * len(sample["input_ids"])
        sample["seq_lengths"] = [len(row["input_ids"]) for row in rows[first:end]]
        samples.append(sample)
    return samples


FIELDS = {"weights": fc.Field("weights", align="sequence", dtype="float64")}


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(drawn=documents())
def test_every_sequence_is_a_row(layout, drawn, array_type):
    rows, ends = drawn
    options = {"pad_token_id": 0, "array_type": array_type, "fields": FIELDS, **LAYOUTS[layout]}
    kernel = "dense" if layout in ("jagged", "single", "bins") else None
    collate = fc.Collator(**options, kernel=kernel)
    expected, batch = collate(rows), collate(packed(rows, ends))
    assert_same(batch, expected)
    assert batch.plan.num_rows == len(rows)
    if not layout.startswith(("single", "bins")):
        del options["array_type"]
        assert_same(batch, collate_loops(rows, **options))


@given(drawn=documents(), kind=st.sampled_from(["list", "numpy", "arrow", "columns"]))
def test_every_kind_of_samples(drawn, kind):
    rows, ends = drawn
    samples = packed(rows, ends)
    if kind == "numpy":
        samples = [{key: np.array(row) for key, row in sample.items()} for sample in samples]
    columns = {key: [sample[key] for sample in samples] for key in samples[0]}
    if kind == "arrow":
        samples = pytest.importorskip("pyarrow").table(columns)
    elif kind == "columns":
        samples = columns
    collate = fc.Collator(**OPTIONS, fields=FIELDS)
    assert_same(collate(samples), collate(rows))


def texts():
    """Make documents of which all tokens but some at their beginning train."""
    rng = np.random.default_rng(0)
    made = []
    for count in rng.integers(2, 14, 24):
        ids = rng.integers(1, 32, count)
        labels = np.where(np.arange(count) < rng.integers(1, count), -100, ids)
        made.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
    return made


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split"])
def test_samples_of_pack_dataset(strategy):
    pa = pytest.importorskip("pyarrow")
    from fastcollate.compat.trl import pack_dataset

    table = pack_dataset(pa.Table.from_pylist(texts()), 16, strategy)
    batch = fc.Collator(**OPTIONS, layout=fc.Packed.single_row(), kernel="flash")(table)
    lens = [count for row in table["seq_lengths"].to_pylist() for count in row]
    assert np.diff(batch.cu_seqlens).tolist() == lens
    assert batch.position_ids[0].tolist() == [at for count in lens for at in range(count)]
    assert batch.input_ids[0].tolist() == [
        one for row in table["input_ids"].to_pylist() for one in row
    ]


def test_seq_lengths_of_a_field_or_ignored_are_left_alone():
    samples = packed(texts(), [0, 3, 24])
    whole = [{key: row[key] for key in ("input_ids", "labels")} for row in samples]
    expected = fc.Collator(**OPTIONS)(whole)
    collate = fc.Collator(**OPTIONS, ignore=["seq_lengths"])
    assert_same(collate(samples), expected)
    kept = fc.Collator(**OPTIONS, fields={"parts": fc.PerRow("seq_lengths", concat=True)})(samples)
    assert kept["parts"].tolist() == [count for row in samples for count in row["seq_lengths"]]
    assert_same({"input_ids": kept.input_ids}, {"input_ids": expected.input_ids})
    rest = fc.Collator(**OPTIONS, ignore="rest")([{**row, "note": "x"} for row in samples])
    assert_same(rest, fc.Collator(**OPTIONS)(texts()))


IDS = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}


@pytest.mark.parametrize(
    ("more", "fields", "message"),
    [
        ({"seq_lengths": [2, 2]}, {}, r"seq_lengths\[1\] adds up to 4, but input_ids\[1\] has 3"),
        ({"seq_lengths": [3, 0]}, {}, r"seq_lengths\[1\]\[1\] is 0; pass lengths of 1 or more"),
        ({"seq_lengths": [4, -1]}, {}, r"seq_lengths\[1\]\[1\] is -1"),
        ({"seq_lengths": []}, {}, r"seq_lengths\[1\] adds up to 0"),
        ({"seq_lengths": [1.5, 1.5]}, {}, r"seq_lengths\[1\]\[0\] is 1.5"),
        ({"seq_lengths": 3}, {}, r"seq_lengths\[1\] is 3"),
        ({"seq_lengths": [3], "uid": "a"}, {}, "'uid' belongs to one sequence"),
        ({"seq_lengths": [3], "rewards": 1.0}, {}, "'rewards' belongs to one sequence"),
        ({"seq_lengths": [3], "logprobs": [0, 0]}, {}, "'logprobs' belongs to one sequence"),
        ({"seq_lengths": [3], "x": 1}, {"x": fc.PerRow("x")}, "'x' belongs to one sequence"),
        ({"seq_lengths": [3], "x": [1, 2]}, {"x": fc.Field("x")}, "'x' belongs to one sequence"),
        (
            {"seq_lengths": [3], "x": [1, 2]},
            {"x": fc.Field("x", align="sequence")},
            r"x\[1\] has 2 items, but input_ids\[1\] has 3",
        ),
        (
            {"seq_lengths": [1, 2], "labels": [5, -100, 9]},
            {},
            r"labels\[1\]\[2\] is 9, but input_ids\[1\]\[2\] is 7",
        ),
    ],
)
def test_packed_samples_that_cannot_be(more, fields, message):
    good = {key: value for key, value in more.items() if key not in ("seq_lengths", *IDS)}
    good = {key: [1, 2, 3] if key == "x" and value != 1 else value for key, value in good.items()}
    samples = [{**IDS, **good, "seq_lengths": [3]}, {**IDS, **more}]
    with pytest.raises((TypeError, ValueError), match=message):
        fc.Collator(**OPTIONS, fields=fields)(samples)


def test_prompts_have_no_seq_lengths():
    with pytest.raises(ValueError, match="'seq_lengths' besides 'prompt' and 'response'"):
        fc.Collator(**OPTIONS)([{"prompt": [1], "response": [2], "seq_lengths": [2]}])
    with pytest.raises(ValueError, match="'prompt_len' belongs to one sequence"):
        fc.Collator(**OPTIONS)([{"input_ids": [1, 2], "prompt_len": 1, "seq_lengths": [2]}])
    with pytest.raises(ValueError, match="seq_lengths has no lengths; pass"):
        fc.Collator(**OPTIONS)([{"input_ids": [], "labels": [], "seq_lengths": []}])


@pytest.mark.parametrize("lengths", [[2**63 - 1, 2**63 - 1, 8], [2, 2**63 - 1, 2**63 - 1, 6]])
def test_lengths_whose_sum_wraps_around(lengths):
    collate = fc.Collator(pad_token_id=0, array_type="numpy", layout="right")
    sample = {"input_ids": [1, 2, 3, 4, 5, 6], "labels": [-100, 2, 3, -100, 5, 6]}
    with pytest.raises(ValueError, match=r"seq_lengths\[0\]\[\d\] is 9223372036854775807, but"):
        collate([{**sample, "seq_lengths": lengths}])
