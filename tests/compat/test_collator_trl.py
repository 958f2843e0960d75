"""Samples of TRL's datasets give the batches of its collators."""

import pytest
from conftest import NEEDS_TORCH
from recorded import as_tensors, recorded

import fastcollate as fc
from fastcollate.testing.reference import assert_same
from frameworks.trl_collators import preference

pytest.importorskip("torch")
from fastcollate.compat.trl import DataCollatorForLanguageModeling

pytestmark = NEEDS_TORCH

MODELING = recorded("trl_language_modeling")
PREFERENCE = recorded("trl_preference")


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
    expected, options = as_tensors(case["result"]), case["arguments"]
    assert_same(DataCollatorForLanguageModeling(0, **options)(labelled), expected)
    if not options["padding_free"]:  # from masks, without labels of first tokens
        layout = fc.Right(multiple_of=options["pad_to_multiple_of"] or 1)
        collate = fc.Collator(pad_token_id=0, layout=layout, outputs=list(expected))
        expected["labels"][:, 0] = -100
        assert_same(collate(case["samples"]), expected)


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
    assert_same(preference(case["samples"], **case["arguments"]), as_tensors(case["result"]))
