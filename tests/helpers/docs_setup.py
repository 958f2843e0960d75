"""Names that the snippets of README.md and docs/*.md need but do not define.

`PAGES` has a function for each page, which returns the names that are there when it begins.
`BEFORE` has names that change on the way: those that a snippet finds which has the given text.
"""

import itertools
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
from small_llama import SIZES, llama

import fastcollate as fc

NEEDS = (  # the reason to skip a snippet that matches, unless the condition holds
    (r"\bskyrl\.(train|backends)\b", lambda: find_spec("skyrl") is not None, "needs skyrl"),
    (r"\bray\.(get|put_turns|plan_step|collate)\b", lambda: False, "in test_docs_ray.py"),
    (r"\b(SFT|GRPO)Trainer\(", lambda: False, "in test_trl_trainers.py"),
    *(
        (rf"\b{pattern}\b", lambda name=name: find_spec(name) is not None, f"needs {name}")
        for pattern, name in {
            "pyarrow": "pyarrow", "polars": "polars", "duckdb": "duckdb", "pandas": "pandas",
            "datasets": "datasets", "Trainer": "accelerate",
            "nemo_rl.distributed": "nemo_rl", "import transformers": "transformers",
            "for_ray_data": "ray", "tokenizer": "tokenizers", "model": "transformers",
            "model_logprobs": "transformers", "flex_model": "transformers",
            "windowed_model": "transformers",
            "verl.patch": "verl",
        }.items()
    ),
)  # fmt: skip

# Packages without which most of a page fails; by default torch alone.
PAGE_NEEDS = {
    "docs/attention.md": ("torch", "transformers"), "docs/balance.md": (),
    "docs/batches.md": ("torch", "transformers"), "docs/looking.md": ("torch", "tokenizers"),
    "docs/frameworks/index.md": ("transformers",),
    "docs/frameworks/transformers.md": ("torch", "transformers"),
    "docs/frameworks/trl.md": ("torch", "pyarrow"),
    "docs/frameworks/verl.md": ("torch", "tensordict"), "docs/merging.md": ("torch", "tokenizers"),
    "docs/tables.md": ("torch", "pyarrow"), "docs/troubleshooting.md": ("torch", "transformers"),
}  # fmt: skip


def qwen():
    import transformers

    layers = ["sliding_attention", "full_attention"]
    config = transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=3, layer_types=layers
    )
    return transformers.Qwen2ForCausalLM(config)


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


def predicted(batch):
    """Stand in for a model: a number for every position but the last."""
    import torch

    return -torch.rand(*batch.input_ids.shape[:-1], batch.input_ids.shape[-1] - 1)


def samples(columns, n=4):
    pairs = zip(columns["prompts"], columns["responses"], strict=True)
    rows = [{"prompt": prompt, "response": response} for prompt, response in pairs]
    return [rows[:n], rows[n : 2 * n]]


def attention():
    prompts, responses = [[1, 2, 3], [1, 2, 3], [4]], [[5, 6], [5, 7, 8], [9, 3, 4, 5]]
    names = {
        "prompts": prompts, "responses": responses, "masks": [[1] * len(row) for row in responses],
        "old": [[0.0] * len(row) for row in responses],
        "advantages": [[1.0] * len(row) for row in responses],
    }  # fmt: skip
    if find_spec("transformers"):
        import torch

        names |= {
            "flash_attn_varlen_func": lambda q, k, v, *offsets, causal: q,
            **dict.fromkeys("qkv", torch.zeros(64, 2, 4)),
        }
        names |= {"model": llama(), "flex_model": llama("flex_attention"), "windowed_model": qwen()}
    return names


def balance():
    lengths = np.random.default_rng(0).lognormal(7, 0.8, 256).astype(int).clip(1, 16384)
    rng = np.random.default_rng(1)

    def compute(lengths):
        """Take a time proportional to tokens."""
        np.zeros(int(lengths.sum()) * 8).cumsum()

    micro_batches = [lengths[rng.integers(0, 256, rng.integers(1, 9))] for _ in range(40)]
    return {"lengths": lengths, "micro_batches": micro_batches, "train": compute}


def batches():
    import torch

    columns = turns()
    rows = {name: column[:24] for name, column in columns.items()}
    prompts, responses = rows["prompts"], rows["responses"]
    sequences = [[*prompt, *row] for prompt, row in zip(prompts, responses, strict=True)]
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, loss_mask=rows["masks"], logprobs=rows["logprobs"],
        fields={"ref_logprobs": fc.Field(rows["logprobs"])},
    )  # fmt: skip
    names = with_model() | {
        **some(rows, "prompts", "responses", "uids", "rewards"), "sampled": rows["logprobs"],
        "batch": batch, "logprobs": batch.logprobs + 0.1, "x": responses, "ids": sequences,
        "lens": [len(row) for row in prompts], "masks": [[1] * len(row) for row in sequences],
        "trajectories": rows["ids"], "builder": fc.BatchBuilder(pad_token_id=0),
        "advantages": torch.ones(batch.logprobs.shape), "old": rows["logprobs"],
        "entropy": [[0.5] * len(row) for row in sequences],
        "top": [np.zeros((len(row), 20), np.int32) for row in responses],
        "routes": [np.zeros((len(row), 2, 2), np.uint8) for row in sequences],
        "indices": [np.full((len(row) - 1, 2, 4), -1, np.int32) for row in sequences],
        "difficulty": [0.5] * 24, "coefs": [0.1] * 24, "names": ["a"] * 24,
        "images": [np.zeros((row % 3, 4), np.float32) for row in range(24)],
        "per_row_advantages": torch.ones(24), "pad_token_id": 0,
        "prompt": [1, 2], "response": [3, 4], "mask": [1, 1],
    }  # fmt: skip
    if find_spec("pyarrow"):
        import pyarrow

        names["pyarrow"] = pyarrow
    return names


def engine_fields():
    rows = {name: column[:24] for name, column in turns().items()}
    responses = rows["responses"]
    return with_model() | {
        **some(rows, "prompts", "responses"),
        "support": [[[1, 2, 3][: id_ % 4] for id_ in row] for row in responses],
        "padded_support": [np.array([[2, -1]] * len(row)) for row in responses],
    }  # fmt: skip


class Dataset:
    """Stand in for a dataset of Ray, which needs a cluster: it hands over Arrow tables."""

    def iter_torch_batches(self, *, batch_size, collate_fn):
        import pyarrow

        rows = {"prompt": [[1, 2]] * batch_size, "response": [[3]] * batch_size}
        collate_fn(pyarrow.table(rows))


def handover():
    from torch.utils.data import DataLoader

    columns = turns()
    data = samples(columns, 32)[0]
    names = with_model() | {
        "columns": some(columns, "prompts", "responses") | {"pad_token_id": 0},
        "lists_of_samples": samples(columns), "train": len, "data": data, "DataLoader": DataLoader,
        "dataset": Dataset(),
    }  # fmt: skip
    if find_spec("transformers") and find_spec("accelerate"):
        from transformers import Trainer, TrainingArguments

        names |= {"Trainer": Trainer, "TrainingArguments": TrainingArguments}
    return names


def looking():
    from rollouts import load_rollouts, load_tokenizer

    rollouts = load_rollouts()
    columns = ("prompts", "responses", "loss_mask", "rewards", "logprobs")
    return {
        "tokenizer": load_tokenizer(),
        "ids": rollouts.trajectory_ids,
        "columns": {name: getattr(rollouts, name) for name in columns},
    }


def merging():
    names = looking()
    columns = names.pop("columns")
    prompts, responses = columns["prompts"], columns["responses"]
    return names | some(columns, "prompts", "responses", "rewards") | {
        "masks": columns["loss_mask"], "model_logprobs": predicted,
        "routes": [np.zeros((len(row), 2, 2), np.uint8) for row in responses],
        "starts": [max(len(row) - 1, 0) for row in prompts],
    }  # fmt: skip


def packing():
    import torch

    columns = turns()
    prompts, responses = columns["prompts"], columns["responses"]
    return with_model() | {
        **some(columns, "prompts", "responses", "masks", "uids"),
        "cross_entropy": torch.nn.functional.cross_entropy,
        "lengths": [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)],
        "padded": fc.build_batch(prompts, responses, pad_token_id=0),
        "capacity": 64, "dp_size": 8, "seq_len": 64, "num_train_workers": 8,
        "merge_plan": fc.merge_turns(prompts, responses, trajectory_ids=columns["ids"]),
        "cp_size": 2, "cp_rank": 1, "model_logprobs": lambda part: part.input_ids.float(),
        "all_gather": lambda tensor: [tensor, tensor],
    }  # fmt: skip


def steps():
    import torch

    columns = turns()
    width = max(map(len, columns["responses"]))
    pairs = zip(columns["prompts"], columns["responses"], strict=True)
    sequences = [[*prompt, *response] for prompt, response in pairs]
    return {
        **some(columns, "prompts", "responses", "masks", "uids"),
        "advantages": columns["rewards"],
        "torch": torch, "np": np, "logprobs": -torch.rand(32, width),
        "is_last_step": [False, True] * 128, "per_trajectory": np.ones(128, np.float32),
        "token_loss": lambda log_probs, advantages: -log_probs * advantages,
        "results_of_all_shards": [torch.zeros(32)] * 8,
        "model": lambda part: part.position_ids.double() - part.input_ids,
        "routes": [np.zeros((len(row), 24, 2), np.uint8) for row in sequences],
        "cp_size": 2, "cp_rank": 1, "trajectories": columns["ids"],
        "log_probs_of": lambda part: -torch.rand(part.loss_mask.shape, requires_grad=True),
        "optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)]),
    }  # fmt: skip


def trees():
    prompts = [[1, 2, 3], [4, 5, 6], [1, 2, 3], [], [1, 2, 3], [4, 5, 6]]
    responses = [[7, 8], [], [7, 9], [], [], []]
    ones = [[1.0] * len(row) for row in responses]
    return with_model("flex_attention") | {
        "prompts": prompts, "responses": responses, "masks": ones, "old": ones, "adv": ones,
    }  # fmt: skip


def with_masks(names):
    """Return a batch of the page's rows, of which all tokens train."""
    masks = [[1] * len(row) for row in names["responses"]]
    rows = some(names, "prompts", "responses") | {"loss_mask": masks} | {"pad_token_id": 0}
    return {"batch": fc.build_batch(**rows)}


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
        "batch": dict(batch), "sources": ["math"] * 8, "torch": torch,
        "model_logprobs": lambda input_ids, **more: torch.zeros(input_ids.shape),
    }  # fmt: skip


def for_trainers():
    names = handover()
    columns = turns()
    return names | some(columns, "prompts", "responses", "masks")


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


def nemo_rl():
    return some(turns(), "prompts", "responses", "masks", "uids")


PAGES = {
    "README.md": dict, "docs/attention.md": attention, "docs/balance.md": balance,
    "docs/batches.md": batches, "docs/concepts.md": dict, "docs/engine_fields.md": engine_fields,
    "docs/faq.md": with_model, "docs/frameworks/depending.md": dict,
    "docs/frameworks/index.md": dict, "docs/frameworks/more.md": dict,
    "docs/frameworks/nemo_rl.md": nemo_rl,
    "docs/frameworks/skyrl.md": skyrl,
    "docs/frameworks/transformers.md": for_trainers, "docs/frameworks/trl.md": trl,
    "docs/frameworks/verl.md": verl,
    "docs/collators.md": handover, "docs/handover.md": handover, "docs/index.md": dict,
    "docs/looking.md": looking,
    "docs/merging.md": merging, "docs/packing.md": packing, "docs/ray.md": dict,
    "docs/rollouts.md": dict, "docs/steps.md": steps, "docs/tables.md": dict,
    "docs/trees.md": trees, "docs/troubleshooting.md": with_model, "docs/which_layout.md": dict,
}  # fmt: skip

BEFORE = {
    ("docs/batches.md", '"old_logprobs":'): lambda names: {
        "old": names["sampled"],
        "advantages": [1.0] * 24,
    },
    ("docs/batches.md", "def model_logprobs"): with_masks,
    ("docs/batches.md", "fc.pad(rows"): lambda names: {
        "rows": names["ids"],
        "lens": [len(row) for row in names["ids"]],
        "hidden": names["batch"].input_ids[..., None].float(),
        "attention_mask": names["batch"].attention_mask,
    },
    ("docs/trees.md", "fc.plan_step"): lambda names: turns(),
}
