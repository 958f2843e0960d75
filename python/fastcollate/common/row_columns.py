"""The columns that hold the rows of a batch, by their names in `build_batch`."""

TOKENS = {
    "prompts": "prompt",
    "responses": "response",
    "sequences": "sequence",
    "prompt_lens": "prompt_len",
}
"""Columns of tokens, and their names where there is one row."""

VALUES = ("rewards", "loss_mask", "logprobs", "advantages")
"""Columns of values, with the same names where there is one row."""

IDS = {"uids": "uid", "trajectory_ids": "trajectory_id", "is_last_step": "is_last_step"}
"""Ids of rows, which are attributes of a batch, and their names where there is one row."""

COLUMNS = (*TOKENS, *VALUES, "fields", *IDS)
"""All columns."""

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "prompts": (
        *("prompt_ids", "prompt_token_ids", "raw_prompt_ids", "prompt_tokens", "question_ids"),
    ),
    "responses": (
        *("response_ids", "response_token_ids", "completion_ids", "completion_token_ids"),
        *("response_tokens", "completion_tokens", "completions", "output_ids", "generated_ids"),
    ),
    "sequences": ("input_ids", "token_ids", "tokens"),
    "prompt_lens": ("prompt_len", "prompt_length", "prompt_lengths", "num_prompt_tokens"),
    "rewards": ("reward", "token_level_rewards", "token_level_scores", "score", "scores"),
    "loss_mask": (
        *("loss_masks", "response_mask", "completion_mask", "assistant_masks", "action_mask"),
        *("label_mask", "loss_weights", "token_weights", "tool_mask", "token_loss_mask", "mask"),
    ),
    "logprobs": (
        *("rollout_logprobs", "rollout_log_probs", "response_logprobs", "completion_logprobs"),
        *("sampling_per_token_logps", "sampling_logprobs", "output_token_logprobs"),
        *("inference_logprobs", "generation_logprobs"),
    ),
    "advantages": ("adv", "advs"),
    "uids": ("uid", "prompt_id", "group_id", "group_ids", "groups", "prompt_uids", "problem_ids"),
    "trajectory_ids": (
        *("trajectory_id", "rollout_id", "rollout_ids", "episode_ids", "traj_ids", "traj_uids"),
    ),
    "is_last_step": ("is_last", "last_step", "is_final", "dones"),
}
"""What other libraries call the columns: SkyRL (`prompt_token_ids`, `response_ids`, `loss_masks`,
`rollout_logprobs`), verl (`response_mask`, `uid`), TRL (`prompt_ids`, `completion_ids`,
`completion_mask`; `input_ids`, `assistant_masks`), prime-rl (`completion_logprobs`) and others."""
