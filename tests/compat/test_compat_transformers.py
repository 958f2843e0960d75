"""compat.transformers flattens batches as transformers does."""

import array
from importlib.util import find_spec

import numpy as np
import pytest
from raising import raises
from recorded import recorded

from fastcollate.compat import transformers as compat
from fastcollate.compat.transformers import DataCollatorWithFlattening
from fastcollate.testing.reference import assert_same
from frameworks import transformers as port

GOLDEN = recorded("transformers_flattening")
FEATURES = [{"input_ids": [1, 2, 3]}, {"input_ids": [4]}, {"input_ids": [5, 6]}]


def as_tensors(batch):
    torch = pytest.importorskip("torch")
    return {
        key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for key, value in batch.items()
    }


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_what_transformers_itself_gave(case):
    expected = {
        key: np.array(value["values"], value["dtype"]).reshape(value["shape"])
        if isinstance(value, dict)
        else value
        for key, value in case["result"].items()
    }
    collator = DataCollatorWithFlattening("np", **case["arguments"])
    assert_same(collator(case["features"]), expected)


def test_arguments_of_the_call_come_first(array_type):
    name = {"torch": "pt", "numpy": "np"}[array_type]
    collator = DataCollatorWithFlattening({"pt": "np", "np": "pt"}[name], separator_id=7)
    expected = port.flatten_features(FEATURES, separator_id=-1)
    for kind in (list, tuple, np.array, lambda row: array.array("q", row)):
        given = [{"input_ids": kind(each["input_ids"]), "text": "x"} for each in FEATURES]
        batch = collator(given, name, -1)
        assert_same(batch, as_tensors(expected) if array_type == "torch" else expected)
        assert batch["labels"].tolist() == [[-1, 2, 3, -1, -1, 6]]


def test_outputs_share_no_memory_with_each_other_or_the_input():
    features = [{"input_ids": np.arange(3)}]
    batch = DataCollatorWithFlattening("np", return_flash_attn_kwargs=True)(features)
    for key in ("input_ids", "labels", "cu_seq_lens_q"):
        batch[key][...] = -5
    assert features[0]["input_ids"].tolist() == [0, 1, 2]
    assert batch["input_ids"].tolist() == [[-5] * 3]
    assert batch["cu_seq_lens_k"].tolist() == [0, 3]


def test_tensors_of_the_examples():
    torch = pytest.importorskip("torch")
    features = [{"input_ids": torch.tensor([1, 2]), "labels": torch.tensor([3, 4])}]
    batch = DataCollatorWithFlattening()(features)
    assert batch["input_ids"].tolist() == [[1, 2]]
    assert batch["labels"].tolist() == [[-100, 4]]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "IndexError: at least one"),
        ([{"labels": [1]}], "KeyError: input_ids"),
        ([{"input_ids": [1], "labels": [1]}, {"input_ids": [1]}], "KeyError: labels"),
        ([{"input_ids": [1]}, {"input_ids": []}], r"features\[1\].* has no tokens"),
        (
            [{"input_ids": [1], "labels": [1, 2]}],
            r"\['labels'\] has 2 .*\['input_ids'\] has 1 token; pass one value per token$",
        ),
        ([{"input_ids": [1, None]}], r"TypeError: features\[0\]\['input_ids'\]\[1\] is None"),
        ([{"input_ids": [1.5]}], r"TypeError: features\[0\]\['input_ids'\]\[0\] is 1.5"),
        ([{"input_ids": [1], "labels": ["a"]}], r"TypeError: features\[0\]\['labels'\] is"),
        ([{"input_ids": [2**70]}], r"features\[0\]\['input_ids'\]\[0\] is"),
        ([None], "TypeError: NoneType"),
    ],
)
def test_bad_input(features, message):
    with raises(message):
        DataCollatorWithFlattening("np")(features)


@pytest.mark.parametrize("name", ["tf", "torch", None, ["pt"]])
def test_other_libraries_are_refused(name):
    with pytest.raises(ValueError, match="pass 'pt' or 'np'"):
        DataCollatorWithFlattening(name)(FEATURES)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("is_bound", [False, True], ids=["lazy", "bound"])
def test_patch_replaces_the_class_and_unpatch_restores_it(is_bound):
    import transformers
    from transformers.data import data_collator

    modules = transformers, transformers.data, data_collator
    original = data_collator.DataCollatorWithFlattening
    if is_bound:
        assert transformers.DataCollatorWithFlattening is original
    else:
        vars(transformers).pop("DataCollatorWithFlattening", None)
    with compat.patch() as patched:
        for module in modules:
            assert module.DataCollatorWithFlattening is DataCollatorWithFlattening
        from transformers import DataCollatorWithFlattening as imported

        assert imported is DataCollatorWithFlattening
        collator = transformers.DataCollatorWithFlattening(return_tensors="np")
        assert collator(FEATURES)["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6]]
    for module in modules:
        assert module.DataCollatorWithFlattening is original
    names = ["transformers.data.data_collator", *["transformers"] * is_bound, "transformers.data"]
    assert list(patched.bindings) == [f"{name}.DataCollatorWithFlattening" for name in names]
