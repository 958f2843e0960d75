"""TRL's trainers have the same losses with our functions and collators as with their own."""

import pytest
from trl_process import NEEDS_TRL, results_of

pytestmark = NEEDS_TRL


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of("trl_trainers.py", tmp_path_factory.mktemp("trl"))


@pytest.mark.parametrize(("name", "runs"), [("sft bfd_split", 3), ("sft wrapped", 2), ("dpo", 2)])
def test_losses_are_the_same(found, name, runs):
    own, *ours = found[name]
    assert len(set(own)) == len(own) == 3
    assert ours == [own] * (runs - 1)


def test_the_trainer_calls_ours(found):
    assert "trl.trainer.sft_trainer.pack_dataset" in found["bindings"]


def test_the_snippets_of_the_page(found):
    patched, packed, preferences, generated = found["page"]
    assert patched == packed
    assert len(generated) == 3
    assert len(set(patched)) == len(set(preferences)) == 3
