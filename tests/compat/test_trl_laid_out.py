"""compat.trl.patch(layout=...): the forward, what it leaves to TRL's, and the groups."""

import logging
import re
import types

import pytest
from conftest import NEEDS_TORCH
from raising import raises

import fastcollate as fc
from fastcollate.compat import trl as compat
from fastcollate.compat.trl import laid_out
from fastcollate.compat.trl.laid_out import Options

pytestmark = NEEDS_TORCH


class Output(dict):
    """A stand-in for TRL's output."""


def own_head(model, temperature=1.0, cast_lm_head_to_fp32=False, outputs=("log_probs",)):
    """Stand in for TRL's function: scores are labels, and calls are recorded."""

    def forward(self, **inputs):
        import torch

        self.calls.append(inputs)
        labels = inputs.get("shift_labels")
        if labels is None:
            labels = inputs["labels"][:, 1:]
        score = torch.where(labels == -100, 0, labels).double() * self.weight
        return Output(dict.fromkeys(("log_probs", *outputs), score), loss=-score.sum())

    model.forward = types.MethodType(forward, model)


def config_of(**options):
    config = types.SimpleNamespace(_attn_implementation="eager", **options)
    config.get_text_config = lambda: config
    return config


@pytest.fixture
def model():
    """A stand-in for a model."""
    import torch

    class Model(torch.nn.Module):
        dtype = torch.float64
        config = config_of()

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
            self.calls = []

        def forward(self, input_ids):
            """Not called."""

    return Model()


@pytest.fixture
def patched(monkeypatch, model):
    """Add the head for a layout, as under `patch()`."""

    def patch(layout, **outputs):
        own = {"add_fused_lm_head": own_head, "shuffle_sequence_dict": lambda rows: rows}
        monkeypatch.setattr(laid_out, "_own", own.get)
        monkeypatch.setattr(laid_out, "_options", lambda: Options(layout, True))
        laid_out.add_fused_lm_head(model, **outputs)
        return model

    return patch


def block():
    import torch

    ids = torch.tensor([[0, 5, 6, 7], [8, 9, 3, 0], [5, 6, 2, 1]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]])
    labels = torch.tensor([[-100, -100, 6, 7], [-100, 9, -100, -100], [-100, -100, 2, 1]])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize(
    ("layout", "bins"),
    [
        (fc.Packed(7), 2),
        (fc.Packed.single_row(), 1),
        (fc.Packed(100), 1),
        (fc.Tree(), 1),
        (fc.Tree(7), 2),
    ],
)
def test_results_are_padded_with_gradients(patched, layout, bins):
    model = patched(layout, outputs=("entropy",))
    out = model.forward(**block(), use_cache=False, fused_lm_head=True)
    assert out["log_probs"].tolist() == [[0, 6, 7], [9, 0, 0], [0, 2, 1]]
    assert out["label_mask"].tolist() == [
        [False, True, True],
        [True, False, False],
        [False, True, True],
    ]
    assert out["entropy"].equal(out["log_probs"])
    assert out["loss"].item() == -25 / 5
    assert len(model.calls) == bins
    assert all(call["use_cache"] is False for call in model.calls)
    (out["log_probs"] * 2).sum().backward()
    assert model.weight.grad.item() == 50
    out = model.forward(**block(), num_items_in_batch=10, fused_lm_head=True)
    assert out["loss"].item() == -2.5


def test_other_calls_are_those_of_trl(patched):
    model = patched(fc.Packed(7))
    model.forward(**block())
    model.forward(**block(), labels_of_others=1)
    assert [call["fused_lm_head"] for call in model.calls] == [False, False]


LONG = {"original_max_position_embeddings": 3}

REASONS = {
    "images": (lambda model, rows: rows | {"pixel_values": 1}, "its inputs are .*pixel_values"),
    "positions": (lambda model, rows: rows | {"position_ids": 1}, "its inputs are .*position_ids"),
    "routers": (lambda model, rows: rows | {"output_router_logits": True}, "balances experts"),
    "layers": (
        lambda model, rows: change(model, rows, layer_types=["linear_attention"]),
        "layers of",
    ),
    "experts": (
        lambda model, rows: change(model, rows, output_router_logits=True),
        "balances experts",
    ),
    "long positions": (
        lambda model, rows: change(
            model,
            rows,
            max_position_embeddings=99,
            rope_parameters=LONG | {"rope_type": "longrope"},
        ),
        "depends on the longest row",
    ),
    "long positions of some layers": (
        lambda model, rows: change(
            model, rows, max_position_embeddings=3, rope_parameters={"a": {"rope_type": "dynamic"}}
        ),
        "depends on the longest row",
    ),
    "PEFT's prompts": (lambda model, rows: with_prompts(model, rows), "PEFT adds tokens of its"),
    "dropout": (lambda model, rows: drop(model, rows), "dropout is on"),
    "functional dropout": (lambda model, rows: drop(model, rows, "dropout"), "dropout is on"),
    "attention dropout": (lambda model, rows: drop(model, rows, "attention_dropout"), "dropout"),
    "labels": (lambda model, rows: rows | {"labels": rows["input_ids"] + 1}, "labels are not"),
    "no predecessor": (lambda model, rows: rows | {"labels": rows["input_ids"]}, "labels are not"),
}


def change(model, rows, **options):
    model.config = config_of(**options)
    return rows


def with_prompts(model, rows):
    """Tune a prompt, as PEFT does."""
    model.active_peft_config = types.SimpleNamespace(is_prompt_learning=True)
    return rows


def drop(model, rows, rate=None):
    """Turn dropout on: as a layer, or by a rate, as layers have for torch's function."""
    import torch

    if rate is None:
        model.inner = torch.nn.Dropout(0.1)
    else:
        setattr(model, rate, 0.1)
    return rows


@pytest.mark.parametrize("name", REASONS)
def test_rows_that_cannot_be_laid_out(patched, caplog, name):
    changed, reason = REASONS[name]
    model = patched(fc.Packed(7))
    rows = changed(model, block())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model.forward(**rows, fused_lm_head=True)
    assert [call["input_ids"].shape for call in model.calls] == [(3, 4)] * 2
    (message,) = caplog.messages
    assert re.match(f"Model is called without a layout: .*{reason}", message)


def test_dropout_counts_in_training_alone(patched):
    model = patched(fc.Packed.single_row())
    rows = drop(model, block())
    model.eval()
    model.forward(**rows, fused_lm_head=True)
    assert model.calls[0]["input_ids"].shape == (1, 10)


def test_groups_are_neighbours(patched):
    import torch

    patched(fc.Packed(7))
    prompts = torch.tensor([[1, 2], [3, 4], [1, 2], [5, 6], [3, 4]])
    rows = {
        "prompt_ids": prompts,
        "advantages": torch.arange(5.0),
        "images": list("abcde"),
        "num_items": torch.tensor(3),
        "missing": None,
    }
    dealt = laid_out.shuffle_sequence_dict(rows)
    assert dealt["prompt_ids"].equal(prompts[[0, 2, 1, 4, 3]])
    assert dealt["advantages"].tolist() == [0, 2, 1, 4, 3]
    assert dealt["images"] == list("acbed")
    assert dealt["num_items"] is rows["num_items"]
    assert dealt["missing"] is None
    assert laid_out.shuffle_sequence_dict({"other": prompts})["other"] is prompts


REFUSED = [
    ("packed", "TypeError: layout is 'packed'.*pass fc.Packed"),
    (fc.Left(), "TypeError: pass fc.Packed"),
    (fc.Packed(plan=[[0]]), "whose plan is of other rows; pass a capacity"),
    (fc.Packed(8, oversize="split"), "which splits rows"),
    (fc.Packed(8, algorithm="concat"), "which splits rows"),
    (fc.Tree(8, share="group"), "have no ids; leave share"),
]


@pytest.mark.parametrize(("layout", "message"), REFUSED)
def test_layouts_that_are_refused(layout, message):
    with raises(message):
        compat.patch(layout=layout)
    assert not compat.PATCHER.is_patched


def test_one_layout_at_a_time(monkeypatch):
    monkeypatch.setattr(compat.PATCHER, "_count", 1)
    with pytest.raises(RuntimeError, match=r"TRL is patched with .*None.*; call unpatch"):
        compat.patch(layout=fc.Packed(8))
