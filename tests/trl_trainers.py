"""Train by TRL with its own functions and with ours, and print the losses as JSON."""

import copy
import json
import random
import sys
import tempfile

import datasets
import transformers
from small_llama import llama
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import fastcollate as fc
from fastcollate.compat import trl as compat
from frameworks.parity.trl import PADDING_FREE

PAD, EOS = 30, 31
STEPS = 3

SFT = fc.Collator(
    pad_token_id=PAD,
    layout=fc.Packed.single_row(),
    outputs=PADDING_FREE,
    dtypes={"sequence_ids": "int32"},
)
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
    found["bindings"] = patched.bindings
    # TRL's trainers print their logs.
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    main()
