"""Bodies of every source of calls."""

import json
from pathlib import Path
from types import SimpleNamespace

GOLDEN = Path(__file__).parents[1] / "golden" / "rollout_sources.json"
RECORDED = json.loads(GOLDEN.read_text())
"""Made by the sources' own classes, without fields that are empty or say nothing of tokens."""

DOCUMENTED = {
    "agent-lightning.1": {
        "rollout_id": "r", "data_id": "d", "step": 3, "final_reward": 1.0, "triplets": [
            {"prompt": {"token_ids": [1, 2]}, "reward": None, "metadata": {"server": {}},
             "response": {"token_ids": [3, 4], "log_probs": [-0.5, -0.25], "routed_experts": None}},
            {"prompt": {"token_ids": [1, 2, 3, 4, 5]}, "reward": None, "metadata": {"server": {}},
             "response": {"token_ids": [6], "log_probs": [-1.0], "routed_experts": None}},
        ], "triplet_events": [], "rollout_state": "succeeded",
    },
    "art": {
        "histories": [{"model": "m", "tokens": [1, 2, 3, 4], "logprobs": ["NaN", "NaN", -0.5, -1.0],
                       "flags": [1, 1, 3, 3]},
                      {"model": "m", "tokens": [1, 5, 6], "logprobs": ["NaN", -2.0, "NaN"],
                       "flags": [0, 3, 1]}],
        "reward": 1.5,
    },
    "skyrl": {
        "prompt_token_ids": [[1, 2], [1]], "response_ids": [[3, 4], [5]], "rewards": [1.0, 0.0],
        "loss_masks": [[1, 0], [1]], "rollout_logprobs": [[-0.5, 0.0], [-1.0]],
        "stop_reasons": ["stop", "length"], "rollout_metrics": None,
        "trajectory_ids": [{"instance_id": "a", "repetition_id": 0},
                           {"instance_id": "a", "repetition_id": 1}],
        "is_last_step": [True, True],
    },
    "openenv": {
        "request": {"messages": []}, "response": {"choices": [{"finish_reason": "stop"}]},
        "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "per_token_logps": [-0.5, -1.0],
        "loss_mask": [0, 0, 1, 0], "metadata": {"node_id": "n"}, "reward": 0.5,
    },
    "openenv.sequences": {
        "session_id": "s", "trainable": True,
        "sequences": [
            {"input_ids": [1, 2, 3, 4, 5], "loss_mask": [0, 0, 1, 0, 1], "prompt_len": 2,
             "logprobs": [0.0, 0.0, -0.5, 0.0, -1.0], "trainable": True, "role": "agent"},
            {"input_ids": [9, 8], "loss_mask": [0, 1], "logprobs": [0.0, -1.0], "prompt_len": 1,
             "trainable": False, "role": "auxiliary"},
        ],
    },
    "openenv.nodes": {
        "nodes": [
            {"node_id": "b", "prompt_ids": [1, 2, 3, 4], "sampled_ids": [5], "parent_id": "a",
             "sampled_logprobs": [-1.0], "finish_reason": "stop"},
            {"node_id": "a", "prompt_ids": [1, 2], "sampled_ids": [3], "parent_id": None,
             "sampled_logprobs": [-0.5], "finish_reason": "stop"},
            {"node_id": "c", "prompt_ids": [1, 2, 3], "sampled_ids": [6], "parent_id": "a",
             "sampled_logprobs": [-2.0], "finish_reason": "stop"},
        ]
    },
    "harbor": {
        "agent_result": {"rollout_details": [
            {"prompt_token_ids": [[1], [1, 2, 3]], "completion_token_ids": [[2], [4, 5]],
             "logprobs": [[-0.5], [-1.0, -2.0]]},
            {"prompt_token_ids": [[7]], "completion_token_ids": [[8]], "logprobs": [[-3.0]]},
        ]},
        "verifier_result": {"rewards": {"reward": 1.0}},
    },
    "atif": {
        "schema_version": "ATIF-v1.8", "session_id": "s", "trajectory_id": "t",
        "agent": {"name": "a", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "x"},
            {"step_id": 2, "source": "agent", "message": "y", "is_copied_context": True,
             "metrics": {"prompt_token_ids": [1], "completion_token_ids": [2], "logprobs": [-0.5]}},
            {"step_id": 3, "source": "agent", "message": "z",
             "metrics": {"prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5],
                         "logprobs": [-1.0, -2.0]}},
        ],
    },
    "verifiers.steps": {
        "example_id": 3, "reward": 1.0,
        "trajectory": [{"tokens": {
            "prompt_ids": [1, 2], "prompt_mask": [0, 0], "completion_ids": [3, 4],
            "completion_mask": [1, 0], "completion_logprobs": [-0.5, -1.0]}}],
    },
    "columns": {
        "prompt_ids": [1, 2], "completion_ids": [3, 4], "completion_mask": [1, 0], "uid": "a",
        "score": 0.5, "completion_logprobs": [-0.5, -1.0], "text": "x",
    },
}  # fmt: skip
"""Fields that the sources document."""

BODIES = {name: one["body"] for name, one in RECORDED.items()} | DOCUMENTED
"""A body of each source."""


def schema_name(source):
    """Return the name of a source's schema."""
    others = {"miles": "slime", "nemo-rl.raw": "nemo-rl", "agent-lightning.1": "agent-lightning"}
    return others.get(source, source)


def as_objects(value):
    """Return dictionaries as objects, and lists as they are."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_objects(one) for key, one in value.items()})
    return [as_objects(one) for one in value] if isinstance(value, list) else value
