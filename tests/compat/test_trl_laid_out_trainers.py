"""TRL's trainers on bins and trees of rows train as on padded rows."""

import pytest
from trl_process import NEEDS_TRL, results_of

pytestmark = NEEDS_TRL

TRAINERS = ["grpo", "rloo", "sft", "dpo", "kto"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of("trl_laid_out.py", tmp_path_factory.mktemp("trl"))


def positions(shapes):
    return sum(rows * width for rows, width in shapes)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("layout", ["bins", "one bin", "groups", "tree", "trees"])
def test_trainers_train_alike(found, trainer, layout):
    """With groups, TRL's metrics are means of other slices, and gradients are the same sums."""
    of_layout = found[trainer][layout]
    assert of_layout["parameters"] < 2e-5
    assert of_layout["logs"] < (1e-3 if layout == "groups" else 2e-5)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_model_runs_on_bins(found, trainer):
    own, of_bins = found[trainer]["own"], found[trainer]["bins"]["shapes"]
    padded = [shape for shape in own if shape[1] > 1]
    bins = [shape for shape in of_bins if shape[1] > 1 and shape not in own]
    assert all(rows == 1 for rows, _ in bins)
    assert all(width <= 64 for _, width in bins)
    assert positions(bins) < positions(padded)


def test_samples_of_a_prompt_share_it(found):
    """So do the two rows of a preference pair; texts of SFT have little in common."""

    def tokens(trainer, layout):
        own = found[trainer]["own"]
        return positions(each for each in found[trainer][layout]["shapes"] if each not in own)

    assert tokens("grpo", "tree") < tokens("grpo", "one bin")
    assert tokens("rloo", "tree") < tokens("rloo", "one bin")
    assert tokens("dpo", "tree") < tokens("dpo", "one bin")


def test_the_asynchronous_trainer_trains_the_same_on_our_rows(tmp_path):
    """With a layout, too: its rows are laid out already."""
    for of_batcher in results_of("trl_async.py", tmp_path).values():
        own = of_batcher.pop("own")
        for patch in of_batcher.values():
            assert patch == {"logs": 0, "parameters": 0, "shapes": own}
