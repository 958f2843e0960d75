"""Train by TRL with its own functions and with ours, and print the losses as JSON."""

import copy
import functools
import json
import os
import random
import sys
import tempfile

import datasets
import transformers
from small_llama import llama
from snippets import SNIPPETS, run
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import fastcollate as fc
from fastcollate.compat import trl as compat

PAD, EOS = 30, 31
EIGHT_ROWS = {"per_device_train_batch_size": 8}
STEPS = 3

SFT = compat.DataCollatorForLanguageModeling(PAD, padding_free=True)
DPO = fc.Collator(
    pad_token_id=PAD, layout="right", outputs=("input_ids", "attention_mask", "completion_mask")
)


def tokenizer():
    words = {f"w{index}": index for index in range(PAD)} | {"<pad>": PAD, "<eos>": EOS}
    rust = Tokenizer(models.WordLevel(words, unk_token="w0"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, pad_token="<pad>", eos_token="<eos>"
    )


def texts(count):
    rng = random.Random(0)
    for _ in range(count):
        yield " ".join(f"w{rng.randrange(PAD)}" for _ in range(rng.randrange(2, 20)))


def options(folder):
    return {
        "output_dir": folder,
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def losses(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def sft(folder, strategy, collator=None):
    """Train on rows packed by TRL; with a collator, on rows packed before."""
    words = tokenizer()
    data = datasets.Dataset.from_dict({"text": list(texts(64))})
    packing = {"packing": True, "packing_strategy": strategy}
    if collator is not None:
        ids = [[*words(text)["input_ids"], EOS] for text in data["text"]]
        data = compat.pack_dataset(datasets.Dataset.from_dict({"input_ids": ids}), 24, strategy)
        packing = {}
    arguments = SFTConfig(max_length=24, **packing, **options(folder))
    trainer = SFTTrainer(
        llama(), arguments, data_collator=collator, train_dataset=data, processing_class=words
    )
    return losses(trainer)


def dpo(folder, collator=None):
    words = list(texts(48))
    pairs = {"prompt": words[:16], "chosen": words[16:32], "rejected": words[32:]}
    policy = llama()
    trainer = DPOTrainer(
        policy,
        ref_model=copy.deepcopy(policy),
        args=DPOConfig(**options(folder)),
        data_collator=collator,
        train_dataset=datasets.Dataset.from_dict(pairs),
        processing_class=tokenizer(),
    )
    return losses(trainer)


def page(folder):
    """Run all snippets of docs/frameworks/trl.md, and train by the trainers that they make."""
    os.chdir(folder)
    tokenizer().save_pretrained("model")
    llama().save_pretrained("model")
    words = list(texts(48))
    pairs = {"prompt": words[:16], "chosen": words[16:32], "rejected": words[32:]}
    trainers = []

    def kept(trainer):
        @functools.wraps(trainer)
        def make(*args, **kwargs):
            trainers.append(trainer(*args, **kwargs))
            return trainers[-1]

        return make

    names = {
        "fc": fc,
        "model": "model",
        "preferences": datasets.Dataset.from_dict(pairs),
        "SFTConfig": functools.partial(SFTConfig, **options("output")),
        "DPOConfig": functools.partial(DPOConfig, **options("output")),
        "SFTTrainer": kept(SFTTrainer),
        "DPOTrainer": kept(DPOTrainer),
        "GRPOConfig": functools.partial(
            GRPOConfig, max_completion_length=8, **options("output") | EIGHT_ROWS
        ),
        "GRPOTrainer": functools.partial(kept(GRPOTrainer), processing_class=tokenizer()),
        "reward_funcs": lambda completions, **_: [float(len(text)) for text in completions],
        "prompts": datasets.Dataset.from_dict({"prompt": words}),
    }
    for snippet in SNIPPETS["docs/frameworks/trl.md"]:
        run(snippet, names)
        if compat.PATCHER.is_patched:
            compat.unpatch()
    return [losses(trainer) for trainer in trainers]


def main():
    datasets.disable_progress_bars()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for strategy in ("bfd_split", "wrapped"):
            found[f"sft {strategy}"] = [sft(folder, strategy)]
            with compat.patch() as patched:
                found[f"sft {strategy}"].append(sft(folder, strategy))
        found["sft bfd_split"].append(sft(folder, "bfd_split", SFT))
        found["dpo"] = [dpo(folder), dpo(folder, DPO)]
        found["page"] = page(folder)
    found["bindings"] = patched.bindings
    # TRL's trainers print their logs.
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    main()
