"""Samples for collators, in every form, and their columns."""

from raising import raises

import fastcollate as fc

MASKS = ("completion_mask", "assistant_masks")


def columns_of(samples):
    return {key: [sample[key] for sample in samples] for key in samples[0]}


TURNS = [
    {
        "prompt": [1, 2],
        "response": [3],
        "rewards": 0.5,
        "loss_mask": [1],
        "logprobs": [-0.5],
        "uid": "a",
        "trajectory_id": 4,
        "is_last_step": True,
    },
    {
        "prompt": [4],
        "response": [5, 6, 7],
        "rewards": 1.0,
        "loss_mask": [1, 0, 1],
        "logprobs": [-1.0, -2.0, -3.0],
        "uid": "b",
        "trajectory_id": 5,
        "is_last_step": False,
    },
    {
        "prompt": [8],
        "response": [9, 9],
        "rewards": -1.0,
        "loss_mask": [0, 1],
        "logprobs": [-1.0, -2.0],
        "uid": "b",
        "trajectory_id": 5,
        "is_last_step": True,
    },
]

LABELLED = [
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1]},
    {"input_ids": [4, 5, 6, 7], "labels": [-100, 5, -100, 7], "attention_mask": [1] * 4},
    {"input_ids": [8, 9], "labels": [-100, -100], "attention_mask": [1, 1]},
]

MASKED = [
    {"input_ids": [1, 2, 3], "completion_mask": [0, 1, 1], "assistant_masks": [1, 1, 1]},
    {"input_ids": [4, 5, 6, 7], "completion_mask": [0, 1, 1, 1], "assistant_masks": [0, 1, 0, 1]},
    {"input_ids": [8, 9], "completion_mask": [0, 1], "assistant_masks": [1, 0]},
]

PAIRS = [
    {"prompt_ids": [1, 2, 3], "chosen_ids": [4, 5], "rejected_ids": [6]},
    {"prompt_ids": [7, 8], "chosen_ids": [9], "rejected_ids": [10, 11]},
    {"prompt_ids": [7, 8], "chosen_ids": [12], "rejected_ids": [13]},
]

ALONE = [{"input_ids": sample["input_ids"]} for sample in MASKED]

SPLIT = [
    {"input_ids": [1, 2, 3], "prompt_len": 1, "logprobs": [-1.0, -2.0]},
    {"input_ids": [4, 5, 6, 7], "prompt_len": 0, "logprobs": [-1.0, -2.0, -3.0, -4.0]},
    {"input_ids": [8, 9], "prompt_len": 1, "logprobs": [-5.0]},
]


def refuses(samples, message, **options):
    collate = fc.Collator(pad_token_id=0, array_type="numpy", **options)
    with raises(message):
        collate(samples)
