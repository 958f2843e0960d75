"""SkyRL."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastcollate.compat import skyrl as compat
from fastcollate.testing.verifying.sizes import draw_numbers, draw_rows, draw_values
from fastcollate.testing.verifying.subjects import Case, Draw, Peer, Subject

SKYRL = Subject("SkyRL", "skyrl")
SKYRL.not_compared.update(
    PackingStrategy="an enumeration of names",
    SeqPacker="the packers that make_seq_packer returns",
)

PREPROCESS = "skyrl.train.dataset.preprocess"
TOKENS = st.integers(0, 2**63 - 1)
NUMBERS = (0.0, 1.5, -0.0, float("nan"), float("-inf"), 1e-40, 3, -(2**53), True, False)


def uids_of(draw: Draw, skyrl: Peer) -> list[str]:
    """Draw the uids of rows."""
    counts = draw_numbers(draw, skyrl.scale, 1, 4, 8)
    return [f"p{prompt}" for prompt, count in enumerate(counts) for _ in range(count)]


def case(theirs: Callable[[], Any], ours: Callable[[], Any], **given: Any) -> Case:
    """Return a case whose results are plain values."""
    return Case(lambda: plain(theirs()), lambda: plain(ours()), given)


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


@SKYRL.compares("convert_prompts_responses_to_batch_tensors")
def batch_tensors(draw: Draw, skyrl: Peer) -> Case:
    """Draw fields of any length up to the longest response, and routes and support or none."""
    lengths = draw_numbers(draw, skyrl.scale, 1, 9 * skyrl.scale, 5)
    response_lens = [draw(st.integers(0, 9 * skyrl.scale)) for _ in lengths]
    prompts = draw_rows(draw, lengths, 0, 2**63 - 1)
    responses = draw_rows(draw, response_lens, 0, 2**63 - 1)
    longest = max(response_lens)

    def field() -> list[list[Any]]:
        return draw_values(draw, [draw(st.integers(0, longest)) for _ in lengths], NUMBERS)

    given: dict[str, Any] = {
        "prompts": prompts,
        "responses": responses,
        "rewards": field(),
        "loss_masks": field(),
        "logprobs": field() if draw(st.booleans()) else None,
        "max_seq_len": draw(st.none() | st.integers(1, 20 * skyrl.scale)),
    }
    with_support = skyrl.version != "0.3.0"
    if with_support and draw(st.booleans()):
        captured = [
            draw(st.integers(1, len(prompt) + len(response)))
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        given["rollout_expert_indices"] = arrays(draw, captured, ["uint8", "int16", "int32"], 3)
    if with_support and draw(st.booleans()):
        given["rollout_sample_support"] = arrays(draw, list(map(len, responses)), ["int32"], 2)
    name = "convert_prompts_responses_to_batch_tensors"
    pad = draw(TOKENS)
    their_pad = pad if with_support else SimpleNamespace(pad_token_id=pad)
    return case(
        lambda: getattr(skyrl(PREPROCESS), name)(their_pad, **given),
        lambda: compat.convert_prompts_responses_to_batch_tensors(pad, **given),
        pad_token_id=pad,
        **given,
    )


def lists(values: Any, count: int) -> Any:
    """Return a strategy of lists of a given length."""
    return st.lists(values, min_size=count, max_size=count)


def arrays(draw: Draw, lengths: list[int], dtypes: list[str], ndim: int) -> list[Any]:
    """Draw one array for each length, of a common shape apart from it."""
    shape = [draw(st.integers(1, 3)) for _ in range(ndim - 1)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [
        rng.integers(0, 100, (length, *shape)).astype(draw(st.sampled_from(dtypes)))
        for length in lengths
    ]


@SKYRL.compares("make_router_padding_mask")
def router_padding_masks(draw: Draw, skyrl: Peer) -> Case:
    """Draw left-padded rows and numbers of captured tokens, some beyond the row."""
    import torch

    width = draw(st.integers(0, 9)) * skyrl.scale
    tokens = draw_numbers(draw, skyrl.scale, 0, width, 5)
    captured = [draw(st.integers(0, count) | st.integers(-1, count + 1)) for count in tokens]
    mask = torch.tensor([[0] * (width - count) + [1] * count for count in tokens])
    return case(
        lambda: skyrl(PREPROCESS).make_router_padding_mask(mask, captured),
        lambda: compat.make_router_padding_mask(mask, captured),
        attention_mask=mask,
        captured_route_lengths=captured,
    )


@SKYRL.compares("compute_prompt_boundaries")
def boundaries(draw: Draw, skyrl: Peer) -> Case:
    """Draw uids, some of which come again."""
    uids = uids_of(draw, skyrl) if draw(st.booleans()) else draw(st.lists(st.sampled_from("abc")))
    return case(
        lambda: skyrl(PREPROCESS).compute_prompt_boundaries(uids),
        lambda: compat.compute_prompt_boundaries(uids),
        uids=uids,
    )


@SKYRL.compares("compute_prompt_mini_batch_boundaries")
def mini_batch_boundaries(draw: Draw, skyrl: Peer) -> Case:
    """Draw uids and numbers of prompts, which need not fit."""
    uids = uids_of(draw, skyrl)
    numbers = draw(st.integers(1, 4)), len(set(uids)) + draw(st.sampled_from([0, 0, 0, 1]))
    options = draw(st.booleans()), draw(st.integers(1, 3))
    name = "compute_prompt_mini_batch_boundaries"
    return case(
        lambda: getattr(skyrl(PREPROCESS), name)(uids, *numbers, *options),
        lambda: compat.compute_prompt_mini_batch_boundaries(uids, *numbers, *options),
        uids=uids,
        numbers=numbers,
        options=options,
    )


@SKYRL.compares("make_seq_packer")
def packers(draw: Draw, skyrl: Peer) -> Case:
    """Draw lengths, most of which fit."""
    lengths = draw_numbers(draw, skyrl.scale, 0, 30, 30, min_size=0)
    algorithm = draw(st.sampled_from(["first_fit_decreasing", "balanced", "BALANCED"]))
    capacity = draw(st.integers(28, 99))
    counts = draw(st.none() | st.integers(0, 9)), draw(st.none() | st.integers(1, 4))

    def packed(module: Any) -> Any:
        return module.make_seq_packer(algorithm, capacity, *counts).pack(lengths)

    return case(
        lambda: packed(skyrl("skyrl.train.dataset.bin_packing")),
        lambda: packed(compat),
        lengths=lengths,
        algorithm=algorithm,
        capacity=capacity,
        counts=counts,
    )


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


TOKENIZER = SimpleNamespace(pad_token_id=9)


@SKYRL.compares("collate_sft_batch")
def sft_batches(draw: Draw, skyrl: Peer) -> Case:
    """Draw examples with weights, of which SkyRL drops the fractions."""
    examples = examples_of(draw, skyrl, (0, 1, -3, -1, 2, -0.5, 0.25, 3.75))
    return case(
        lambda: skyrl("skyrl.train.sft_trainer").collate_sft_batch(examples, TOKENIZER),
        lambda: compat.collate_sft_batch(examples, TOKENIZER),
        examples=examples,
    )


@SKYRL.compares("DefaultCollator")
def default_collators(draw: Draw, skyrl: Peer) -> Case:
    """Draw examples whose tokens train or do not."""
    examples = examples_of(draw, skyrl, (0, 1))
    return case(
        lambda: skyrl("skyrl.train.dataset.collators").DefaultCollator(TOKENIZER, 1)(examples, 2),
        lambda: compat.DefaultCollator(TOKENIZER, 1)(examples, 2),
        examples=examples,
    )


@SKYRL.compares("PackedDataCollator")
def packed_collators(draw: Draw, skyrl: Peer) -> Case:
    """Draw examples, sizes of groups of ranks, and fp8 with a recipe or none."""
    examples = examples_of(draw, skyrl, (0, 1, 0.5, 3.25))
    options = {f"{axis}_size": draw(st.integers(1, 4)) for axis in ("tp", "cp", "dp")}
    options |= {"pp_size": 1, "batch_size": 4, "micro_train_batch_size_per_gpu": 1}
    options |= {"max_tokens_per_microbatch": draw(st.integers(40, 999))}
    options |= {"fp8_enabled": draw(st.booleans())}
    recipe = draw(st.sampled_from([None, "blockwise", "mxfp8", "auto"]))
    recipes = {} if skyrl.version == "0.3.0" else {"fp8_recipe": recipe}

    def packed(module: Any) -> Any:
        return module.PackedDataCollator(TOKENIZER, **options, **recipes)(examples, 4)

    return case(
        lambda: packed(skyrl("skyrl.train.dataset.collators")),
        lambda: packed(compat),
        examples=examples,
        **options,
        **recipes,
    )


@SKYRL.compares("merge_stepwise_output")
def merged_turns(draw: Draw, skyrl: Peer) -> Case:
    """Draw turns of trajectories, most of which continue the turn before."""
    per_token = draw(st.booleans())
    with_support = skyrl.version != "0.3.0" and draw(st.booleans())
    names = ["prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons"]
    names += ["rollout_logprobs", "trajectory_ids", "is_last_step"]
    output: dict[str, Any] = {name: [] for name in names}
    some = st.lists(st.integers(0, 2), max_size=4)
    for trajectory in range(draw(st.integers(1, 3))):
        stream = draw(some)
        turns = draw(st.integers(1, 5))
        for turn in range(turns):
            is_new = draw(st.sampled_from([False, False, False, True]))
            stream = draw(some) if is_new else stream + (draw(some) if turn else [])
            response = draw(some)
            values = lists(st.floats(-2, 2, width=16) | st.integers(-1, 1), len(response))
            columns = [list(stream), response, draw(values) if per_token else 0.5, draw(values)]
            columns += [draw(st.sampled_from(["stop", None])), draw(values)]
            columns += [f"t{trajectory}", turn == turns - 1]
            for name, value in zip(names, columns, strict=True):
                output[name].append(value)
            stream = stream + response
    if with_support:
        output["rollout_sample_support"] = [
            np.full((len(response), 2), turn, np.int32)
            for turn, response in enumerate(output["response_ids"])
        ]

    def merged(function: Callable[[Any], Any]) -> dict[str, Any]:
        result = dict(function(copy.deepcopy(output)))
        # Means that are computed in another order round apart.
        metrics = result.pop("rollout_metrics")
        rounded = {key: round(value, 9) for key, value in metrics.items()}
        given = {key: value for key, value in result.items() if value is not None}
        return {**given, "rollout_metrics": rounded}

    return case(
        lambda: merged(skyrl("skyrl.train.generators.utils").merge_stepwise_output),
        lambda: merged(compat.merge_stepwise_output),
        generator_output=output,
    )
