"""Samples of TRL's datasets give the batches of its collators."""

import json

import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from recorded import FOLDER

from fastcollate.testing.reference import assert_same
from frameworks.installed import real
from frameworks.trl_collators import language_modeling, preference

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


def same_as_trl(found, expected):
    """Compare all but the labels of padded rows' first tokens, which nothing predicts."""
    if "position_ids" not in expected:
        expected["labels"][:, 0] = -100
    assert_same(found, {key: expected[key] for key in found})
    assert found.keys() == expected.keys()


@pytest.mark.parametrize("case", MODELING["cases"])
def test_what_trl_itself_made_of_samples(case):
    found = language_modeling(**case["arguments"])(case["samples"])
    same_as_trl(found, tensors(case["result"]))


def labels_of(sample):
    """Build labels as ``SFTTrainer`` does while it prepares a dataset."""
    masks = [sample[key] for key in ("completion_mask", "assistant_masks") if key in sample]
    return [
        token if all(mask[at] for mask in masks) else -100
        for at, token in enumerate(sample["input_ids"])
    ]


@st.composite
def samples_of_masks(draw):
    """Draw samples with masks, packed or not."""
    keys = draw(st.sets(st.sampled_from(["completion_mask", "assistant_masks"])))
    is_packed = draw(st.booleans())
    samples = []
    for _ in range(draw(st.integers(1, 5))):
        lens = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3 if is_packed else 1))
        count = sum(lens)
        sample = {"input_ids": draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))}
        for key in sorted(keys):
            sample[key] = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        if is_packed:
            sample["seq_lengths"] = lens
        samples.append(sample)
    return samples


sft_trainer = real("trl.trainer.sft_trainer")


@pytest.mark.skipif(sft_trainer is None, reason="needs `make peers`")
@given(samples_of_masks(), st.booleans())
def test_batches_are_those_of_trl(samples, padding_free):
    padding_free = padding_free or "seq_lengths" in samples[0]
    theirs = sft_trainer.DataCollatorForLanguageModeling(0, padding_free=padding_free)
    labelled = [{**sample, "labels": labels_of(sample)} for sample in samples]
    expected = theirs.torch_call(labelled)
    same_as_trl(language_modeling(padding_free, None)(samples), expected)


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
