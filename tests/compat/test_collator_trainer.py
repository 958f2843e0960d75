"""Collators in Hugging Face's Trainer: the losses of its own collator, padded or packed."""

from importlib.util import find_spec

import numpy as np
import pytest
from small_llama import llama
from small_models import small_model

import fastcollate as fc

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # theirs
    pytest.mark.skipif(
        find_spec("accelerate") is None or find_spec("transformers") is None,
        reason="accelerate or transformers is not installed",
    ),
]

OUTPUTS = ("input_ids", "attention_mask", "position_ids", "labels")
PACKED = ("input_ids", "position_ids", "labels", "use_cache")


def rows():
    """Make samples of which about half of the tokens have a label."""
    rng = np.random.default_rng(0)
    samples = []
    for count in rng.integers(4, 12, 16):
        ids = rng.integers(1, 32, count)
        labels = np.where(np.arange(count) < count // 2, -100, ids)
        samples.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
    return samples


def padded(samples):
    """Pad samples without any library's collator."""
    width = max(len(sample["input_ids"]) for sample in samples)
    fills = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    batch = {key: [] for key in fills}
    for sample in samples:
        values = {**sample, "attention_mask": [1] * len(sample["input_ids"])}
        for key, fill in fills.items():
            batch[key].append(values[key] + [fill] * (width - len(values[key])))
    return {key: torch.tensor(values) for key, values in batch.items()}


def losses(collate, folder, model=None, **options):
    """Train a small model for a few steps, and return what the Trainer logs."""
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=3,
        logging_steps=1,
        learning_rate=0.01,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **options,
    )
    trainer = transformers.Trainer(
        model or llama(use_cache=False),
        arguments,
        train_dataset=rows(),
        data_collator=collate,
    )
    trainer.train()
    return [one["loss"] for one in trainer.state.log_history if "loss" in one]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return losses(padded, tmp_path_factory.mktemp("padded"))


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "right", "outputs": OUTPUTS},
        {"layout": "left", "outputs": OUTPUTS},
        {"layout": fc.Packed.single_row(), "outputs": PACKED},
        {"layout": fc.Packed(capacity=24), "outputs": PACKED},
    ],
    ids=["right", "left", "single", "packed"],
)
def test_losses_are_those_of_padding_by_hand(options, expected, tmp_path):
    assert len(expected) == 3
    assert expected[0] != expected[-1]
    found = losses(fc.Collator(pad_token_id=0, **options), tmp_path)
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_batch_goes_to_the_model_from_worker_processes(expected, tmp_path):
    collate = fc.Collator(pad_token_id=0, layout="right", outputs=OUTPUTS)
    found = losses(collate, tmp_path, dataloader_num_workers=2)
    assert found == pytest.approx(expected, abs=1e-5)


LAYOUTS = {
    "left": "left",
    "right": "right",
    "two_segment": "two_segment",
    "jagged": "jagged",
    "packed": fc.Packed(capacity=24),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_as_it_is_trains_learned_positions(layout, workers, tmp_path):
    """The Trainer makes each batch again from its items, and a model of its own shifts labels."""
    if workers and layout != "left":
        pytest.skip("workers do the same in every layout")
    by_hand, ours = small_model("gpt2", "eager"), small_model("gpt2", "eager")
    expected = losses(padded, tmp_path / "padded", by_hand)
    collate = fc.Collator(pad_token_id=0, layout=layout, model=ours)
    found = losses(collate, tmp_path / "ours", ours, dataloader_num_workers=workers)
    assert found == pytest.approx(expected, abs=1e-6)
    for one, other in zip(ours.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("layout", ["left", "right", "packed"])
def test_labels_are_smoothed(layout, tmp_path):
    """The smoother takes labels out of the inputs, and shifts them."""
    by_hand, ours = small_model("gpt2", "eager"), small_model("gpt2", "eager")
    smoothing = {"label_smoothing_factor": 0.1}
    expected = losses(padded, tmp_path / "padded", by_hand, **smoothing)
    collate = fc.Collator(pad_token_id=0, layout=LAYOUTS[layout], model=ours)
    found = losses(collate, tmp_path / "ours", ours, **smoothing)
    assert found == pytest.approx(expected, abs=1e-6)


def test_items_change_where_no_plan_describes_them():
    batch = fc.Collator(pad_token_id=0)(rows())
    again = type(batch)({key: batch[key] for key in batch})
    assert again.pop("labels") is batch["labels"]
    assert again.pop("labels", None) is None
    again["use_cache"] = False
    assert "labels" not in again
    assert again.use_cache is False
    for change in (lambda: batch.pop("labels"), lambda: batch.__setitem__("labels", None)):
        with pytest.raises(TypeError, match=r"read-only; .*pass dict\(batch\)"):
            change()
    assert "labels" in batch
