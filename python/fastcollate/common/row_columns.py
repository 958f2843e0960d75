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
