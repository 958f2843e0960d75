"""SkyRL."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastcollate.testing.verifying.subjects import (
    Draw,
    Peer,
    Subject,
    draw_numbers,
    draw_rows,
    draw_values,
)


def plain(result: Any) -> Any:
    """Return a result with SkyRL's batches, packed tensors and lists of tensors as plain values."""
    if isinstance(result, tuple):
        return tuple(map(plain, result))
    if hasattr(result, "metadata"):
        batch = {key: getattr(value, "tensors", value) for key, value in result.items()}
        return {**batch, "metadata": result.metadata}
    if hasattr(result, "cu_seqlens"):
        return {"values": result.values, "cu_seqlens": result.cu_seqlens}
    return result


SKYRL = Subject("SkyRL", "skyrl", plain)

PREPROCESS = "skyrl.train.dataset.preprocess"
COLLATORS = "skyrl.train.dataset.collators"
NUMBERS = (0.0, 1.5, -0.0, float("nan"), float("-inf"), 1e-40, 3, -(2**53), True, False)
TOKENIZER = SimpleNamespace(pad_token_id=9)


def uids_of(draw: Draw, skyrl: Peer) -> list[str]:
    """Draw the uids of rows."""
    counts = draw_numbers(draw, skyrl.scale, 1, 4, 8)
    return [f"p{prompt}" for prompt, count in enumerate(counts) for _ in range(count)]


@SKYRL.calls(PREPROCESS, "convert_prompts_responses_to_batch_tensors")
def batch_tensors(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw fields of any length up to the longest response, and routes and support or none."""
    lengths = draw_numbers(draw, skyrl.scale, 1, 9 * skyrl.scale, 5)
    response_lens = [draw(st.integers(0, 9 * skyrl.scale)) for _ in lengths]
    longest = max(response_lens)

    def field() -> list[list[Any]]:
        return draw_values(draw, [draw(st.integers(0, longest)) for _ in lengths], NUMBERS)

    given: dict[str, Any] = {
        "pad_token_id": draw(st.integers(0, 2**63 - 1)),
        "prompts": draw_rows(draw, lengths, 0, 2**63 - 1),
        "responses": draw_rows(draw, response_lens, 0, 2**63 - 1),
        "rewards": field(),
        "loss_masks": field(),
        "logprobs": field() if draw(st.booleans()) else None,
        "max_seq_len": draw(st.none() | st.integers(1, 20 * skyrl.scale)),
    }
    if draw(st.booleans()):
        totals = map(sum, zip(lengths, response_lens, strict=True))
        captured = [draw(st.integers(1, total)) for total in totals]
        given["rollout_expert_indices"] = arrays(draw, captured, ["uint8", "int16", "int32"], 3)
    if draw(st.booleans()):
        given["rollout_sample_support"] = arrays(draw, response_lens, ["int32"], 2)
    return given


def arrays(draw: Draw, lengths: list[int], dtypes: list[str], ndim: int) -> list[Any]:
    """Draw one array for each length, of a common shape apart from it."""
    shape = [draw(st.integers(1, 3)) for _ in range(ndim - 1)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [
        rng.integers(0, 100, (length, *shape)).astype(draw(st.sampled_from(dtypes)))
        for length in lengths
    ]


@SKYRL.calls(PREPROCESS, "make_router_padding_mask")
def router_padding_masks(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw left-padded rows and numbers of captured tokens, some beyond the row."""
    import torch

    width = draw(st.integers(0, 9)) * skyrl.scale
    tokens = draw_numbers(draw, skyrl.scale, 0, width, 5)
    captured = [draw(st.integers(0, count) | st.integers(-1, count + 1)) for count in tokens]
    mask = torch.tensor([[0] * (width - count) + [1] * count for count in tokens])
    return {"attention_mask": mask, "captured_route_lengths": captured}


@SKYRL.calls(PREPROCESS, "compute_prompt_boundaries")
def boundaries(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw uids, some of which come again."""
    uids = uids_of(draw, skyrl) if draw(st.booleans()) else draw(st.lists(st.sampled_from("abc")))
    return {"uids": uids}


@SKYRL.calls(
    PREPROCESS,
    "compute_prompt_mini_batch_boundaries",
    by=lambda function, uids, numbers: function(uids, *numbers),
)
def mini_batch_boundaries(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw uids and numbers of prompts, which need not fit."""
    uids = uids_of(draw, skyrl)
    numbers = draw(st.integers(1, 4)), len(set(uids)) + draw(st.sampled_from([0, 0, 0, 1]))
    return {"uids": uids, "numbers": (*numbers, draw(st.booleans()), draw(st.integers(1, 3)))}


@SKYRL.calls(
    "skyrl.train.dataset.bin_packing",
    "make_seq_packer",
    by=lambda make, options, lengths: make(*options).pack(lengths),
)
def packers(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw lengths, most of which fit."""
    algorithm = draw(st.sampled_from(["first_fit_decreasing", "balanced", "BALANCED"]))
    counts = draw(st.none() | st.integers(0, 9)), draw(st.none() | st.integers(1, 4))
    return {
        "options": (algorithm, draw(st.integers(28, 99)), *counts),
        "lengths": draw_numbers(draw, skyrl.scale, 0, 30, 30, min_size=0),
    }


def examples_of(draw: Draw, skyrl: Peer, weights: Sequence[float]) -> list[dict[str, Any]]:
    """Draw tokenized examples; each has a token."""
    lengths = draw_numbers(draw, skyrl.scale, 1, 40, 10)
    actions = [draw(st.integers(0, length)) for length in lengths]
    ids = draw_rows(draw, lengths, 0, 2**63 - 1)
    masks = draw_values(draw, actions, weights)
    return [
        {
            "input_ids": row,
            "attention_mask": [1] * len(row),
            "num_actions": len(mask),
            "loss_mask": mask,
        }
        for row, mask in zip(ids, masks, strict=True)
    ]


@SKYRL.calls(
    "skyrl.train.sft_trainer",
    "collate_sft_batch",
    by=lambda function, examples: function(examples, TOKENIZER),
)
def sft_batches(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw examples with weights, of which SkyRL drops the fractions."""
    return {"examples": examples_of(draw, skyrl, (0, 1, -3, -1, 2, -0.5, 0.25, 3.75))}


@SKYRL.calls(
    COLLATORS, "DefaultCollator", by=lambda collator, examples: collator(TOKENIZER, 1)(examples, 2)
)
def default_collators(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw examples whose tokens train or do not."""
    return {"examples": examples_of(draw, skyrl, (0, 1))}


@SKYRL.calls(
    COLLATORS,
    "PackedDataCollator",
    by=lambda collator, examples, **options: collator(TOKENIZER, **options)(examples, 4),
)
def packed_collators(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw examples, sizes of groups of ranks, and fp8 with a recipe or none."""
    given = {f"{axis}_size": draw(st.integers(1, 4)) for axis in ("tp", "cp", "dp")}
    given |= {"pp_size": 1, "batch_size": 4, "micro_train_batch_size_per_gpu": 1}
    given |= {"max_tokens_per_microbatch": draw(st.integers(40, 999))}
    given |= {"fp8_enabled": draw(st.booleans())}
    given["fp8_recipe"] = draw(st.sampled_from([None, "blockwise", "mxfp8", "auto"]))
    return {"examples": examples_of(draw, skyrl, (0, 1, 0.5, 3.25)), **given}


def merged(function: Any, generator_output: dict[str, Any]) -> dict[str, Any]:
    """Merge turns; means that are computed in another order round apart."""
    result = dict(function(copy.deepcopy(generator_output)))
    metrics = result.pop("rollout_metrics")
    given = {key: value for key, value in result.items() if value is not None}
    return {**given, "rollout_metrics": {key: round(one, 9) for key, one in metrics.items()}}


@SKYRL.calls("skyrl.train.generators.utils", "merge_stepwise_output", by=merged)
def merged_turns(draw: Draw, skyrl: Peer) -> dict[str, Any]:
    """Draw turns of trajectories, most of which continue the turn before."""
    per_token = draw(st.booleans())
    names = ["prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons"]
    names += ["rollout_logprobs", "trajectory_ids", "is_last_step"]
    output: dict[str, Any] = {name: [] for name in names}
    some = st.lists(st.integers(0, 2), max_size=4)
    for trajectory in range(draw(st.integers(1, 3))):
        stream = draw(some)
        turns = draw(st.integers(1, 5))
        for turn in range(turns):
            change = draw(st.sampled_from(["none"] * 5 + ["new", "shorter", "other"]))
            at = draw(st.integers(0, len(stream)))
            if change != "none":
                rest = [3, *stream[at + 1 :]] if change == "other" else []
                stream = rest if change == "new" else stream[:at] + rest
            stream = stream + (draw(some) if turn else [])
            response = draw(some)
            count = len(response)
            values = st.lists(
                st.floats(-2, 2, width=16) | st.integers(-1, 1), min_size=count, max_size=count
            )
            columns = [list(stream), response, draw(values) if per_token else 0.5, draw(values)]
            columns += [draw(st.sampled_from(["stop", None])), draw(values)]
            columns += [f"t{trajectory}", turn == turns - 1]
            for name, value in zip(names, columns, strict=True):
                output[name].append(value)
            stream = stream + response
    for name in ("stop_reasons", "rollout_logprobs"):
        if draw(st.sampled_from([False, False, True])):
            output[name] = None
    if draw(st.booleans()):
        output["rollout_sample_support"] = [
            np.full((len(response), 2), turn, np.int32)
            for turn, response in enumerate(output["response_ids"])
        ]
    return {"generator_output": output}
