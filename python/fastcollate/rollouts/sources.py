"""The table of sources: the schema of each."""

from __future__ import annotations

from fastcollate.common.row_columns import OTHER_NAMES
from fastcollate.rollouts.schema import Schema, key_of

_OF_EVENTS: dict[str, str | tuple[str, ...]] = {
    "event.index": ("choices[].index", "index"),
    "event.total": "meta_info.completion_tokens",
    "first.versions": "metadata.weight_versions",
    "first.routed_experts": "sglext.routed_experts",
}
"""What events of streams are, and values of the first call: names that no user can give."""


def _meta(key: str) -> tuple[str, str]:
    """Return the paths of SGLang's, of a choice and of a body."""
    return f"choices[].meta_info.{key}", f"meta_info.{key}"


# fmt: off
ENGINES = Schema(
    ("choices[]", "sglext.output_ids[]"),
    prompts=("prompt_token_ids", "choices[].prompt_token_ids", "sglext.input_ids"),
    responses=(
        "choices[].token_ids", "choices[].response_token_ids", "output_ids", "sglext.output_ids[]",
    ),
    logprobs=(
        "choices[].logprobs.content[].logprob", "choices[].logprobs.token_logprobs",
        "meta_info.output_token_logprobs[][0]",
    ),
    logprob_ids=(
        "choices[].logprobs.content[].token_id", "meta_info.output_token_logprobs[][1]",
    ),
    logprob_tokens=("choices[].logprobs.content[].token", "choices[].logprobs.tokens"),
    finish_reasons=("choices[].finish_reason", "meta_info.finish_reason"),
    request_ids=("request_id", "id", "meta_info.id"),
    versions=("choices[].weight_versions", *_meta("weight_versions")),
    routed_experts=("choices[].routed_experts", *_meta("routed_experts")),
    support=("choices[].sampling_mask", *_meta("output_token_sampling_mask")),
    **_OF_EVENTS,
)
# fmt: on
"""The responses of vLLM (generate, chat, completions), SGLang (generate, chat) and other servers of
OpenAI's API that return token ids. Their keys differ, so one schema reads all of them.

vLLM 0.33 (``return_token_ids``; ``return_tokens_as_token_ids`` for servers without), SGLang 0.5.23
(``return_logprob``, ``return_prompt_token_ids``).
"""

OUTPUTS = Schema(
    ("", "outputs[]", "sequences[]"),
    prompts="prompt_token_ids",
    responses=(".output_ids", ".token_ids", ".tokens"),
    logprobs=("meta_info.output_token_logprobs", ".logprobs"),
    finish_reasons=("meta_info.finish_reason", ".finish_reason", ".stop_reason"),
    request_ids=("meta_info.id", "request_id"),
    versions=("meta_info.weight_versions", ".weight_versions"),
    routed_experts=("meta_info.routed_experts", ".routed_experts"),
    support=("meta_info.output_token_sampling_mask", ".sampling_mask.token_ids"),
)
"""The objects of engines in the same process: SGLang's dictionaries, ``RequestOutput`` of vLLM and
TensorRT-LLM, and tinker's sequences."""


_OF_SAMPLES = {"prompts": ("prompt",), "responses": ("response", "completion")}
"""Names that are more often those of text, which is skipped."""


def _names(column: str) -> tuple[str, ...]:
    return (column, *OTHER_NAMES.get(column, ()), *_OF_SAMPLES.get(column, ()))


COLUMNS = Schema(
    None,
    **{name: _names(name) for name in ("prompts", "responses", "sequences", "prompt_lens")},
    **{name: _names(name) for name in ("loss_mask", "rewards", "advantages")},
    # verl's, of the trainer's policy: elsewhere they are not the sampler's.
    logprobs=(*_names("logprobs"), "old_log_probs"),
    labels="labels",
    attention_mask="attention_mask",
    versions=("weight_versions", "weight_version", "policy_versions", "versions"),
    **{name: _names(name) for name in ("uids", "trajectory_ids", "is_last_step")},
)
"""Rows of the columns that other libraries name so."""

# fmt: off
_SKYRL = {
    "prompts": "prompt_token_ids[]", "responses": "response_ids[]", "loss_mask": "loss_masks[]",
    "logprobs": "rollout_logprobs[]", "rewards": "rewards[]", "finish_reasons": "stop_reasons[]",
    "trajectory_ids": "trajectory_ids[]", "is_last_step": "is_last_step[]",
}
_HARBOR = {
    "prompts": "prompt_token_ids[]", "responses": "completion_token_ids[]",
    "logprobs": "logprobs[]",
}
_DETAILS = ("", "rollout_details[].", "agent_result.rollout_details[].")

SOURCES: dict[str, Schema] = {
    "engines": ENGINES,
    "rllm": Schema(
        ("", "steps[]", "trajectories[].steps[]"), prompts=".prompt_ids",
        responses=".response_ids", logprobs=".logprobs", versions=".weight_version",
        trajectory_ids=("trajectories[].uid", "uid"), rewards=("trajectories[].reward", "reward"),
    ),
    "agent-lightning": Schema(
        ("", "triplets[]"), prompts=".prompt.token_ids", responses=".response.token_ids",
        logprobs=(".response.logprobs[].logprob", ".response.log_probs"),
        rewards=("final_reward", "reward"), trajectory_ids="rollout_id",
        routed_experts=".response.routed_experts",
    ),
    "art": Schema(
        ("", "histories[]", "trajectories[]?", "trajectories[].histories[]"),
        sequences=(".tokens", ".token_ids"), logprobs=".logprobs", loss_mask=".flags&2",
        rewards=("trajectories[].reward", "reward"),
    ),
    "skyrl": Schema(tuple(_SKYRL.values()), **_SKYRL),
    "slime": Schema(
        ("", "samples[]"), sequences=".tokens", response_lens=".response_length",
        loss_mask=".loss_mask", logprobs=".rollout_log_probs", masked=".remove_sample",
        rewards=".reward", uids=".group_index", finish_reasons=".status",
        versions=".weight_versions", routed_experts=".rollout_routed_experts",
    ),
    "verl": Schema(
        prompts="prompt_ids", responses="response_ids", loss_mask="response_mask",
        logprobs="response_logprobs", rewards="reward_score", routed_experts="routed_experts",
    ),
    "areal": Schema(
        prompts="input_tokens", responses="output_tokens", logprobs="output_logprobs",
        versions="output_versions", finish_reasons="stop_reason", routed_experts="routed_experts",
    ),
    "xtuner": Schema(
        prompts="prompt_ids", responses="response_ids", logprobs="logprobs",
        loss_mask="response_mask", versions="response_model_steps",
        finish_reasons="finish_reason", uids="group_id", rewards="reward.score",
        routed_experts="routed_experts",
    ),
    "nemo-gym": Schema(
        ("", "output[]?", "response.output[]?"), prompts=".prompt_token_ids",
        responses=".generation_token_ids", logprobs=".generation_log_probs",
        routed_experts=".routed_experts", trajectory_ids="rollout_id", rewards="reward",
    ),
    "nemo-rl": Schema(
        nodes="message_log[]", responses=".token_ids", logprobs=".generation_logprobs",
        loss_mask=".token_loss_mask", trains="loss_multiplier", uids="idx",
        rewards="total_reward",
    ),
    "openenv": Schema(
        ("", "trace[]"), prompts=".prompt_token_ids", responses=".completion_token_ids",
        logprobs=".per_token_logps", loss_mask=".loss_mask", rewards=".reward",
    ),
    "openenv.sequences": Schema(
        "sequences[]", sequences=".input_ids", prompt_lens=".prompt_len", loss_mask=".loss_mask",
        logprobs=".logprobs", trains=".trainable", uids="session_id",
    ),
    "openenv.nodes": Schema(
        nodes="nodes[]", prompts=".prompt_ids", responses=".sampled_ids",
        logprobs=".sampled_logprobs", node_ids=".node_id", parents=".parent_id",
        finish_reasons=".finish_reason",
    ),
    "harbor": Schema(
        tuple(base + path for base in _DETAILS for path in _HARBOR.values()),
        **{name: tuple(base + path for base in _DETAILS) for name, path in _HARBOR.items()},
        rewards="verifier_result.rewards.reward",
    ),
    "atif": Schema(
        "steps[]?", prompts=".metrics.prompt_token_ids",
        responses=".metrics.completion_token_ids", logprobs=".metrics.logprobs",
        masked=".is_copied_context", trajectory_ids=("trajectory_id", "session_id"),
    ),
    "ms-swift": Schema(
        "response.choices[]", prompts="response.prompt_token_ids", responses=".token_ids",
        logprobs=".logprobs.content[].logprob", finish_reasons=".finish_reason",
    ),
    "tinker": Schema(
        ("", "data[]"), sequences=".model_input.chunks[].tokens",
        targets=".loss_fn_inputs.target_tokens.data",
        loss_mask=(".loss_fn_inputs.weights.data", ".loss_fn_inputs.mask.data"),
        logprobs=".loss_fn_inputs.logprobs.data", advantages=".loss_fn_inputs.advantages.data",
    ),
    "verifiers": Schema(
        nodes="nodes[]", responses=".token_ids", loss_mask=".mask", logprobs=".logprobs",
        parents=".parent", links=".semantic_parents", trace_ids="id",
    ),
    "verifiers.steps": Schema(
        "trajectory[]", prompts=".tokens.prompt_ids", responses=".tokens.completion_ids",
        loss_mask=".tokens.completion_mask", logprobs=".tokens.completion_logprobs",
        rewards="reward", uids="example_id",
    ),
    "columns": COLUMNS,
}
# fmt: on
"""Sources by name.

Their fields: rLLM's ``Step``, ``Trajectory`` and ``Episode``; agent-lightning's ``Triplet``
(0.3, and 1.0, whose log-probabilities are plain numbers);
ART's ``TokenizedHistory`` (its flags have 2 for sampled tokens); SkyRL's ``GeneratorOutput``
(0.4); ``Sample`` of slime and miles (``tokens`` hold the prompt, all else is the response's);
verl's ``AgentLoopOutput`` (0.9.1); AReaL's ``ModelResponse`` (1.0.4); xtuner's ``RolloutState``;
NeMo Gym's token entries and output items; NeMo-RL's message logs (messages with log-probabilities
were sampled); OpenEnv's ``TraceEntry`` (its mask spans prompt and completion), its export and the
nodes of its ``RolloutGraph``; Harbor's ``RolloutDetail`` and ATIF steps; ms-swift's
``RolloutOutput`` of one turn (4.6); tinker's ``Datum`` (0.38); verifiers' ``Trace`` (0.4) and the
trajectories of older versions.
"""

OTHER = (
    "leave it out, so that keys tell the source, or pass 'columns' for rows of plain columns, as "
    "of TRL and OpenRLHF, 'engines' for responses of vLLM, SGLang and other servers, or one of "
    + ", ".join(sorted({*SOURCES} - {"columns", "engines"}))
)
"""Advice for a name that is none of them."""

ROW_PATHS = {
    path: name
    for schema in SOURCES.values()
    for name, paths in schema.columns.items()
    for path in paths
    if "" in schema.calls and "[" not in path
}
"""The column of each path that rows of any source have, as plain columns have it if they do."""

ROW_KEYS = {*map(key_of, ROW_PATHS)} - {"prompt_token_ids", "output_ids"}
"""Keys of rows that responses of engines do not have, whose names of tokens rows may share."""
