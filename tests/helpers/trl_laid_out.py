"""Train by TRL's trainers on padded rows, and on bins and trees of them; print what differs."""

import copy
import json
import sys
import tempfile

import datasets
from small_llama import llama, qwen2
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl_trainers import options, texts, tokenizer

import fastcollate as fc
from fastcollate.compat import trl as compat

LAYOUTS = {
    "bins": {"layout": fc.Packed(64)},
    "one bin": {"layout": fc.Packed.single_row()},
    "groups": {"layout": fc.Tree(64), "keep_groups": True},
    "tree": {"layout": fc.Tree()},
    "trees": {"layout": fc.Tree(64)},
}


FOUR_ROWS = {"learning_rate": 1e-3, "per_device_train_batch_size": 4}


def sampling(trainer, config, model, folder, **more):
    arguments = config(
        num_generations=4,
        max_completion_length=6,
        num_iterations=2,
        gradient_accumulation_steps=2,
        **options(folder) | FOUR_ROWS | {"max_steps": 4},
        **more,
    )
    return trainer(
        model,
        reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"prompt": list(texts(6))}),
        processing_class=tokenizer(),
    )


def grpo(model, folder):
    return sampling(GRPOTrainer, GRPOConfig, model, folder, loss_type="grpo")


def rloo(model, folder):
    model.save_pretrained(folder)  # the reference model is read there
    model.config.name_or_path = folder
    return sampling(RLOOTrainer, RLOOConfig, model, folder)


def sft(model, folder):
    words = list(texts(32))
    rows = {"prompt": words[:16], "completion": words[16:]}
    return SFTTrainer(
        model,
        SFTConfig(max_length=24, **options(folder) | FOUR_ROWS),
        train_dataset=datasets.Dataset.from_dict(rows),
        processing_class=tokenizer(),
    )


def dpo(model, folder):
    words = list(texts(48))
    pairs = {"prompt": words[:16], "chosen": words[16:32], "rejected": words[32:]}
    return DPOTrainer(
        model,
        ref_model=copy.deepcopy(model),
        args=DPOConfig(**options(folder) | FOUR_ROWS),
        train_dataset=datasets.Dataset.from_dict(pairs),
        processing_class=tokenizer(),
    )


def kto(model, folder):
    words = list(texts(16))
    rows = {"prompt": words[:8] * 2, "completion": words, "label": [True, False] * 8}
    return KTOTrainer(
        model,
        ref_model=copy.deepcopy(model),
        args=KTOConfig(**options(folder) | FOUR_ROWS),
        train_dataset=datasets.Dataset.from_dict(rows),
        processing_class=tokenizer(),
    )


TRAINERS = {
    "grpo": (grpo, llama),
    "rloo": (rloo, qwen2),
    "sft": (sft, qwen2),
    "dpo": (dpo, llama),
    "kto": (kto, llama),
}


def trained(make, model):
    """Return what a trainer logs, the parameters after training, and the shapes of inputs."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(model, folder)
        shapes = []
        training_step = trainer.training_step

        def recorded(*args, **kwargs):
            hook = trainer.model.model.register_forward_pre_hook(
                lambda _, __, inputs: shapes.append(list(inputs["input_ids"].shape)),
                with_kwargs=True,
            )
            loss = training_step(*args, **kwargs)
            hook.remove()
            return loss

        trainer.training_step = recorded
        trainer.train()
    timed = ("runtime", "per_second", "time", "flos", "perf")
    logs = [
        {key: value for key, value in entry.items() if not any(word in key for word in timed)}
        for entry in trainer.state.log_history
    ]
    return logs, [value.detach().clone() for value in trainer.model.parameters()], shapes


def compared(own, ours):
    """Return the largest difference of logs and of parameters, and all shapes of our inputs."""
    (logs, parameters, _), (our_logs, our_parameters, shapes) = own, ours
    assert [entry.keys() for entry in logs] == [entry.keys() for entry in our_logs]
    of_logs = [
        abs(value - our[key])
        for entry, our in zip(logs, our_logs, strict=True)
        for key, value in entry.items()
    ]
    of_parameters = [
        (a - b).abs().max().item() for a, b in zip(parameters, our_parameters, strict=True)
    ]
    return {"logs": max(of_logs), "parameters": max(of_parameters), "shapes": shapes}


def main():
    datasets.disable_progress_bars()
    found = {}
    for name, (make, model) in TRAINERS.items():
        own = trained(make, model())
        found[name] = {"own": own[2]}
        for layout, arguments in LAYOUTS.items():
            with compat.patch(**arguments):
                found[name][layout] = compared(own, trained(make, model()))
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    main()
