"""Pickles that one process makes with `patch()` and another one reads without, and the reverse."""

import pickle
import sys

import pytest

torch = pytest.importorskip("torch")

from stand_ins import installed  # noqa: E402

from fastcollate.compat import skyrl, trl  # noqa: E402
from fastcollate.testing.reference import assert_same  # noqa: E402
from frameworks.installed import real  # noqa: E402

EXAMPLES = [
    {
        "input_ids": [5, 6, 7][:count],
        "attention_mask": [1] * count,
        "num_actions": count,
        "loss_mask": [1] * count,
    }
    for count in (3, 2, 1, 3)
]


class Tokenizer:
    pad_token_id = 0


def unpatched(framework, patch, module, name, make):
    """Pickle what `make` returns of the framework's own class, which has the name of ours."""
    theirs = real(module)
    if not theirs:
        pytest.skip(f"no {framework} in .peers")
    cls = getattr(theirs, name)
    installed(patch, module, **vars(theirs))
    data = pickle.dumps(make(cls))
    assert module.encode() in data
    return data


def replaced(patch, module, ours):
    """Set ours in the place of the framework's class, as `patch()` does."""
    patch.setattr(sys.modules[module], ours.__name__, ours)


@pytest.mark.parametrize("name", ["DefaultCollator", "PackedDataCollator"])
def test_collators_of_skyrl(name, monkeypatch):
    module, ours = "skyrl.train.dataset.collators", getattr(skyrl, name)
    sizes = {} if name == "DefaultCollator" else {"max_tokens_per_microbatch": 6, "batch_size": 4}
    if sizes:
        sizes |= dict.fromkeys(("tp_size", "pp_size", "cp_size", "dp_size"), 1)
    arguments = {"micro_train_batch_size_per_gpu": 2, **sizes}
    expected = ours(Tokenizer(), **arguments)(EXAMPLES, batch_size=4)
    data = unpatched("SkyRL", monkeypatch, module, name, lambda cls: cls(Tokenizer(), **arguments))
    replaced(monkeypatch, module, skyrl.DefaultCollator)
    replaced(monkeypatch, module, skyrl.PackedDataCollator)
    again = pickle.loads(data)
    assert type(again) is ours
    assert vars(again).keys() == vars(ours(Tokenizer(), **arguments)).keys()
    assert_same(dict(again(EXAMPLES, batch_size=4)), dict(expected))
    # The reverse: of our class, wherever it is read.
    data = pickle.dumps(again)
    assert module.encode() not in data
    assert_same(dict(pickle.loads(data)(EXAMPLES, batch_size=4)), dict(expected))


def samples():
    for ids in ([5, 6, 7, 8], [5, 6, 7, 9], [5, 3]):
        yield {
            "input_ids": torch.tensor(ids),
            "completion_mask": torch.tensor([0, *[1] * (len(ids) - 1)]),
            "old_log_probs": torch.full((len(ids),), -0.5),
            "advantage": 1.0,
            "group_id": len(ids),
        }


def filled(cls):
    row = cls()
    for sample in samples():
        row.add(sample)
    return row


def test_tree_rows_of_trl(monkeypatch):
    module = "trl.experimental.async_grpo.packing"
    expected = filled(trl.TreeRow)
    data = unpatched("TRL", monkeypatch, module, "TreeRow", filled)
    replaced(monkeypatch, module, trl.TreeRow)
    for again in (pickle.loads(data), pickle.loads(pickle.dumps(expected))):
        assert type(again) is trl.TreeRow
        assert again.tokens == expected.tokens
        assert (again.load, again.trained, again.groups) == (
            expected.load,
            expected.trained,
            expected.groups,
        )
        assert_same(again.pack(), expected.pack())
        again.add(next(samples()))  # it goes on growing
        assert len(again.tokens) == len(expected.tokens)
