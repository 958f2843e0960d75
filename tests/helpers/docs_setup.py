"""What snippets of pages need but do not define: packages, and objects of frameworks.

`PAGES` has a function for each page with such objects, which returns them by name.
"""

import itertools
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
from small_llama import llama

import fastcollate as fc

NEEDS = (  # the reason to skip a snippet that matches, unless the condition holds
    (r"\bskyrl\.(train|backends)\b", lambda: find_spec("skyrl") is not None, "needs skyrl"),
    (r"\bray\.(get|put_turns|plan_step|collate|data)\b", lambda: False, "in test_docs_ray.py"),
    (r"\b(SFT|GRPO)Trainer\(", lambda: False, "in test_trl_trainers.py"),
    *(
        (rf"\b{pattern}\b", lambda name=name: find_spec(name) is not None, f"needs {name}")
        for pattern, name in {
            "pyarrow": "pyarrow", "polars": "polars", "duckdb": "duckdb", "pandas": "pandas",
            "datasets": "datasets", "Trainer": "accelerate",
            "nemo_rl.distributed": "nemo_rl", "import transformers": "transformers",
            "tokenizer": "tokenizers", "model": "transformers", "flash_attn": "flash_attn",
            "verl.patch": "verl",
        }.items()
    ),
)  # fmt: skip

# Packages without which most of a page fails; by default torch alone.
PAGE_NEEDS = {
    "docs/balance.md": (), "docs/frameworks/index.md": ("transformers",),
    "docs/frameworks/trl.md": ("torch", "pyarrow"),
    "docs/frameworks/verl.md": ("torch", "tensordict"), "docs/looking.md": ("torch", "tokenizers"),
    "docs/merging.md": ("torch", "transformers", "tokenizers"),
    "docs/tables.md": ("torch", "pyarrow"),
    **{
        f"docs/{page}.md": ("torch", "transformers")
        for page in ("attention", "batches", "collators", "engine_fields", "packing", "steps",
                     "trees", "troubleshooting", "frameworks/transformers")
    },
}  # fmt: skip


def turns():
    """Return 256 turns: of 64 prompts, with two trajectories each, of two turns that continue."""
    rng = np.random.default_rng(0)
    columns = {name: [] for name in ("prompts", "responses", "uids", "ids", "rewards")}
    for prompt, sample in itertools.product(range(64), range(2)):
        ids = [1, 2 + prompt % 8]
        for turn in range(2):
            response = rng.integers(10, 60, rng.integers(1, 9)).tolist()
            columns["prompts"].append(ids)
            columns["responses"].append(response)
            columns["uids"].append(f"p{prompt}")
            columns["ids"].append(f"p{prompt}/{sample}")
            columns["rewards"].append(float(turn * sample))
            ids = [*ids, *response, 3]
    responses = columns["responses"]
    columns["masks"] = [(rng.random(len(row)) < 0.9).astype(int).tolist() for row in responses]
    columns["logprobs"] = [(-rng.random(len(row))).tolist() for row in responses]
    return columns


def some(columns, *names):
    return {name: columns[name] for name in names}


def with_model(attention="sdpa"):
    return {"model": llama(attention)} if find_spec("transformers") else {}


def trl():
    import pyarrow
    import torch

    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 60, length).tolist() for length in rng.integers(1, 20, 32)]
    columns = turns()
    prompts, responses = columns["prompts"], columns["responses"]
    rollouts = [
        {"input_ids": torch.tensor([*prompt, *response]), "advantage": 0.5, "group_id": uid,
         "completion_mask": torch.tensor([0] * len(prompt) + [1] * len(response)),
         "old_log_probs": torch.zeros(len(prompt) + len(response))}
        for prompt, response, uid in zip(prompts, responses, columns["uids"], strict=True)
    ]  # fmt: skip
    return {
        "rollouts": rollouts,
        "dataset": pyarrow.table({"input_ids": rows}),
        "prompt_ids": prompts, "completion_ids": responses,
        "sampling_logps": columns["logprobs"], "tool_mask": columns["masks"],
    }  # fmt: skip


def verl():
    import torch

    columns = {name: values[:8] for name, values in turns().items()}
    batch = fc.build_batch(columns["prompts"], columns["responses"], pad_token_id=0)
    return {
        **some(columns, "prompts", "responses", "masks", "rewards", "logprobs", "uids"),
        "batch": dict(batch), "sources": ["math"] * 8,
        "model_logprobs": lambda input_ids, **more: torch.zeros(input_ids.shape),
    }  # fmt: skip


def skyrl():
    columns = turns()
    ids = [SimpleNamespace(instance_id=uid, repetition_id=int(name[-1]))
           for uid, name in zip(columns["uids"], columns["ids"], strict=True)]  # fmt: skip
    responses = columns["responses"]
    output = {
        "prompt_token_ids": columns["prompts"], "response_ids": responses,
        "rewards": [[0.0] * (len(row) - 1) + [1.0] for row in responses],
        "loss_masks": columns["masks"], "rollout_logprobs": columns["logprobs"],
        "trajectory_ids": ids, "is_last_step": [False, True] * (len(ids) // 2),
    }  # fmt: skip
    return {"generator_output": output, "tokenizer": SimpleNamespace(pad_token_id=0)}


PAGES = {
    "docs/frameworks/skyrl.md": skyrl, "docs/frameworks/trl.md": trl,
    "docs/frameworks/verl.md": verl,
}  # fmt: skip
