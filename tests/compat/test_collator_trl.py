"""Samples of TRL's datasets give the batches of its collators."""

import json

import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from recorded import FOLDER

import fastcollate as fc
from fastcollate.testing.reference import assert_same
from frameworks.installed import real
from frameworks.trl_collators import preference

pytest.importorskip("torch")
from fastcollate.compat.trl import DataCollatorForLanguageModeling

pytestmark = NEEDS_TORCH

GOLDEN = FOLDER
MODELING = json.loads((GOLDEN / "trl_language_modeling.json").read_text())

PREFERENCE = json.loads((GOLDEN / "trl_preference.json").read_text())


def tensors(result):
    import torch

    return {
        key: torch.tensor(value["values"], dtype=getattr(torch, value["dtype"])).view(
            value["shape"]
        )
        if isinstance(value, dict)
        else value
        for key, value in result.items()
    }


def labels_of(sample):
    """Build labels as ``SFTTrainer`` does while it prepares a dataset."""
    if "labels" in sample:
        return sample["labels"]
    masks = [sample[key] for key in ("completion_mask", "assistant_masks") if key in sample]
    return [
        token if all(mask[at] for mask in masks) else -100
        for at, token in enumerate(sample["input_ids"])
    ]


@pytest.mark.parametrize("case", MODELING["cases"])
def test_what_trl_itself_made_of_samples(case):
    labelled = [{**sample, "labels": labels_of(sample)} for sample in case["samples"]]
    expected, options = tensors(case["result"]), case["arguments"]
    assert_same(DataCollatorForLanguageModeling(0, **options)(labelled), expected)
    if not options["padding_free"]:  # from masks, without labels of first tokens
        layout = fc.Right(multiple_of=options["pad_to_multiple_of"] or 1)
        collate = fc.Collator(pad_token_id=0, layout=layout, outputs=list(expected))
        expected["labels"][:, 0] = -100
        assert_same(collate(case["samples"]), expected)


@st.composite
def sft_samples(draw):
    """Draw samples with labels and masks, packed or not."""
    keys = draw(st.sets(st.sampled_from(["labels", "completion_mask", "seq_lengths"])))
    samples = []
    for _ in range(draw(st.integers(1, 5))):
        lens = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
        lens = lens if "seq_lengths" in keys else [sum(lens)]
        ids = draw(st.lists(st.integers(0, 9), min_size=sum(lens), max_size=sum(lens)))
        marks = draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
        labels = [one if mark else -100 for one, mark in zip(ids, marks, strict=True)]
        sample = {"labels": labels, "completion_mask": marks, "seq_lengths": lens}
        samples.append({"input_ids": ids} | {key: sample[key] for key in sorted(keys)})
    return samples


sft_trainer = real("trl.trainer.sft_trainer")
OPTIONS = {
    "padding_free": st.booleans(),
    "return_position_ids": st.booleans(),
    "pad_to_multiple_of": st.sampled_from([None, 1, 4]),
}


@pytest.mark.skipif(sft_trainer is None, reason="needs `make peers`")
@given(sft_samples(), st.fixed_dictionaries(OPTIONS))
def test_batches_are_those_of_trl(samples, options):
    theirs = sft_trainer.DataCollatorForLanguageModeling(7, **options)
    ours = DataCollatorForLanguageModeling(7, **options)
    found, expected = ours(samples), theirs.torch_call(samples)
    assert_same(found, expected)
    assert found.keys() == expected.keys()


def test_what_trl_collators_are_not_called_with():
    with pytest.raises(ValueError, match="return_tensors is 'np'; pass 'pt'"):
        DataCollatorForLanguageModeling(0)([{"input_ids": [1]}], return_tensors="np")
    with pytest.raises(ValueError, match=r"labels\[0\]\[1\] is 3, but input_ids\[0\]\[1\] is 2"):
        DataCollatorForLanguageModeling(0)([{"input_ids": [1, 2], "labels": [1, 3]}])
    for padding_free in (False, True):
        collate = DataCollatorForLanguageModeling(0, padding_free)
        with pytest.raises(ValueError, match="samples is empty; pass at least one sample"):
            collate([])
        assert collate([{"input_ids": []}, {"input_ids": [5]}])["input_ids"].flatten()[-1] == 5


# Preference pairs


@pytest.mark.parametrize("case", PREFERENCE["cases"])
def test_what_trl_itself_made_of_pairs(case):
    assert_same(preference(case["samples"], **case["arguments"]), tensors(case["result"]))


dpo_trainer = real("trl.trainer.dpo_trainer")
pairs = st.lists(
    st.fixed_dictionaries(
        {
            key: st.lists(st.integers(1, 9), min_size=least, max_size=6)
            for key, least in (("prompt_ids", 1), ("chosen_ids", 0), ("rejected_ids", 0))
        }
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.skipif(dpo_trainer is None, reason="needs `make peers`")
@given(pairs, st.sampled_from([None, 4]))
def test_pairs_are_those_of_trl(samples, pad_to_multiple_of):
    theirs = dpo_trainer.DataCollatorForPreference(7, pad_to_multiple_of=pad_to_multiple_of)
    assert_same(preference(samples, 7, pad_to_multiple_of), theirs.torch_call(samples))
