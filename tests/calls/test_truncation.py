"""Collators that truncate rows, if asked to."""

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.testing.reference import assert_same, collate_loops

IDS = st.lists(st.integers(1, 99), max_size=8)
LIMITS = {"max_length": st.integers(1, 9), "keep": st.sampled_from(["start", "end"])}
LAYOUTS = ["left", "right", "two_segment", "jagged"]


@st.composite
def sequences(draw):
    """Draw samples whose trained tokens are given in one way or another, and a value per token."""
    form = draw(st.sampled_from(["alone", "prompt_len", "labels", "completion_mask", "both"]))
    samples = []
    for ids in draw(st.lists(IDS, min_size=1, max_size=5)):
        marks = draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
        sample = {"input_ids": ids, "weights": [one / 2 for one in ids]}
        if form == "prompt_len":
            sample["prompt_len"] = draw(st.integers(0, len(ids)))
        if form in ("labels", "both"):
            sample["labels"] = [one if mark else -100 for one, mark in zip(ids, marks, strict=True)]
        if form in ("completion_mask", "both"):
            sample["completion_mask"] = draw(st.permutations(marks))
        samples.append(sample)
    return samples


def cut_of(lengths, limit):
    """Count the rows and tokens that are cut off."""
    cut = [max(0, length - limit["max_length"]) for length in lengths]
    return [float(np.count_nonzero(cut)), float(sum(cut))]


def kernel_of(layout):
    """Return the kernel to name where no model is known."""
    return "dense" if layout == "jagged" or isinstance(layout, (fc.Packed, fc.Tree)) else None


def counted(batch):
    return [batch.metrics[f"batch/truncated_{what}"] for what in ("rows", "tokens")]


FIELDS = {"weights": fc.Field("weights", align="sequence")}


def test_counts_stay_with_other_layouts_and_selected_rows():
    samples = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5]}, {"input_ids": [6, 7, 8]}]
    batch = fc.Collator(pad_token_id=0, max_length=2)(samples)
    assert counted(batch) == [2.0, 3.0]
    for again in (batch.to_layout("jagged"), batch.to_layout(fc.Packed(8)), batch.select(rows=[1])):
        assert counted(again) == [2.0, 3.0]


@share(2)
@given(samples=sequences(), limit=st.fixed_dictionaries(LIMITS), layout=st.sampled_from(LAYOUTS))
def test_sequences_are_truncated(samples, limit, layout, array_type):
    options = {"pad_token_id": 0, "layout": layout, "fields": FIELDS}
    collate = fc.Collator(**options, **limit, kernel=kernel_of(layout), array_type=array_type)
    batch = collate(samples)
    assert_same(batch._data, collate_loops(samples, **options, **limit))
    assert counted(batch) == cut_of([len(sample["input_ids"]) for sample in samples], limit)
    columns = {key: [sample[key] for sample in samples] for key in samples[0]}
    assert_same(collate(columns)._data, batch._data)


@share(2)
@given(
    pairs=st.lists(
        st.fixed_dictionaries(dict.fromkeys(("prompt_ids", "chosen_ids", "rejected_ids"), IDS)),
        min_size=1,
        max_size=5,
    ),
    limit=st.fixed_dictionaries(LIMITS),
    layout=st.sampled_from(LAYOUTS),
)
def test_pairs_are_truncated(pairs, limit, layout, array_type):
    options = {"pad_token_id": 0, "layout": layout}
    collate = fc.Collator(**options, **limit, kernel=kernel_of(layout), array_type=array_type)
    try:
        expected = collate_loops(pairs, **options, **limit)
    except ValueError:
        with pytest.raises(ValueError, match=r"_ids\[\d\] would be lost: .*; pass keep='end'"):
            collate(pairs)
        return
    batch = collate(pairs)
    assert_same(batch._data, expected)
    lengths = [
        len(pair["prompt_ids"]) + len(pair[key])
        for key in ("chosen_ids", "rejected_ids")
        for pair in pairs
    ]
    assert counted(batch) == cut_of(lengths, limit)


def test_values_per_row_are_kept():
    fields = {"level": fc.PerRow("level"), "values": fc.Field("values", align="sequence")}
    collate = fc.Collator(
        pad_token_id=0, array_type="numpy", layout="right", fields=fields, max_length=2, keep="end"
    )
    rows = [[[0.5, 1.5]] * 3, [[2.5, 3.5]]]
    samples = [
        {"input_ids": ids, "level": at, "uid": str(at), "values": rows[at]}
        for at, ids in enumerate([[1, 2, 3], [4]])
    ]
    batch = collate(samples)
    assert batch.input_ids.tolist() == [[2, 3], [4, 0]]
    assert (batch.level.tolist(), batch.uids) == ([0, 1], ["0", "1"])
    assert batch["values"].tolist() == [[[0.5, 1.5]] * 2, [[2.5, 3.5], [0.0, 0.0]]]
    assert "batch/truncated_rows" in batch.select(rows=[1]).metrics
    whole = fc.Collator(pad_token_id=0, array_type="numpy")([{"input_ids": [1, 2, 3]}])
    assert "batch/truncated_rows" not in whole.metrics
    assert "max_length=2, keep='end'" in repr(collate)


PAIR = {"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4, 5]}


@pytest.mark.parametrize(
    ("sample", "options", "message"),
    [
        ({"prompt": [1], "response": [2]}, {}, "max_length truncates 'input_ids' and"),
        (
            {"input_ids": [1, 2], "seq_lengths": [1, 1]},
            {},
            "samples are packed, as they have 'seq_lengths', but max_length is 3; pass it to the",
        ),
        (
            {"input_ids": [1, 2], "prompt_len": 1, "rewards": [1.0]},
            {},
            "max_length is 3, but 'rewards' belongs to a response, which it may cut; leave",
        ),
        (
            {"input_ids": [1, 2], "prompt_len": 1, "x": [1.0]},
            {"fields": {"x": fc.Field("x")}},
            r"'x' belongs to a response.*fc.Field\(..., align='sequence'\)",
        ),
        (
            {**PAIR, "x": [1.0], "y": [1.0, 2.0]},
            {"fields": {"z": fc.Field(("x", "y"))}},
            r"max_length is 3, but fields\['z'\] has values of tokens.*; pass fc.PerRow",
        ),
        (
            PAIR,
            {"max_length": 2},
            r"chosen_ids\[0\] would be lost: prompt_ids\[0\] has 2 tokens, and max_length is 2;",
        ),
        (PAIR, {"max_length": 0}, "max_length is 0; pass a number of tokens, 1 or"),
        (PAIR, {"max_length": 2.5}, "TypeError: max_length is 2.5; pass a number of tokens"),
        (PAIR, {"keep": "middle"}, "keep is 'middle'; pass 'start', 'end'"),
        (
            PAIR,
            {"max_length": None, "keep": None},
            "TypeError: keep is None .*; pass 'start', 'end'",
        ),
    ],
)
def test_what_cannot_be_truncated(sample, options, message):
    options = {"pad_token_id": 0, "array_type": "numpy", "max_length": 3, **options}
    with raises(message):
        fc.Collator(**options)([sample])


@pytest.mark.parametrize("layout", ["right", "jagged", fc.Packed(8), fc.Tree(8)])
def test_numbers_of_pairs_have_halves(layout, array_type):
    pairs = [
        {**PAIR, "ref_chosen_logps": -1.5 - at, "ref_rejected_logps": -2.5 - at, "level": at}
        for at in range(3)
    ]
    options = {"pad_token_id": 0, "layout": layout, "array_type": array_type}
    options["kernel"] = kernel_of(layout)
    assert fc.Collator(**options, ignore=["level"])(pairs).ref_logps.tolist() == [
        *(-1.5, -2.5, -3.5, -2.5, -3.5, -4.5)
    ]
    outputs = ("loss_mask", "ref_chosen_logps", "ref_rejected_logps", "rejected_level")
    fields = {"level": fc.PerRow("level")}
    made = fc.Collator(**options, fields=fields, outputs=outputs)(pairs)
    assert list(made) == list(outputs)
    assert made["ref_chosen_logps"].tolist() == [-1.5, -2.5, -3.5]
    assert made["ref_rejected_logps"].tolist() == [-2.5, -3.5, -4.5]
    assert str(made["ref_chosen_logps"].dtype).endswith("float32")
    assert made["rejected_level"].tolist() == [0, 1, 2]
    if layout == "right":
        with pytest.raises(ValueError, match="outputs has 'chosen_completion_mask', which is not"):
            fc.Collator(**options, ignore="rest", outputs=["chosen_completion_mask"])(pairs)
    del pairs[0]["ref_chosen_logps"], pairs[1:]
    with pytest.raises(ValueError, match="'ref_rejected_logps', but no 'ref_chosen_logps'; pass"):
        fc.Collator(**options, ignore="rest")(pairs)
