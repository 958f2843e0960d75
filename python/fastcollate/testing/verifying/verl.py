"""verl: partitions, micro-batches, padding, and padding rows."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastcollate.testing.verifying.subjects import Draw, Peer, Subject, draw_numbers, draw_rows

VERL = Subject("verl", "verl")

BALANCING = "verl.utils.seqlen_balancing"
PADDING = "verl.workers.utils.padding"
UPSAMPLING = "verl.trainer.ppo.padding_utils"

LIMITS = st.sampled_from([5, 100_000])


@VERL.calls(BALANCING, "calculate_workload")
def workloads(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw lengths of several dtypes; those of 8 and 32 bits wrap around."""
    import torch

    dtype = draw(st.sampled_from([torch.int64, torch.int32, torch.uint8, torch.float32]))
    lengths = draw_numbers(draw, verl.scale, 0, draw(LIMITS), 8, min_size=0)
    return {"seqlen_list": torch.tensor(lengths, dtype=torch.int64).to(dtype)}


@VERL.calls(BALANCING, "karmarkar_karp", "get_seqlen_balanced_partitions")
def partitions(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw at least one length, and a number of parts."""
    import torch

    lengths = draw_numbers(draw, verl.scale, 0, draw(LIMITS), 16)
    return {
        "seqlen_list": torch.tensor(lengths) if draw(st.booleans()) else lengths,
        "k_partitions": draw(st.integers(1, 8)),
        "equal_size": draw(st.booleans()),
    }


@VERL.calls(BALANCING, "get_group_balanced_partitions")
def parts_of_groups(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw rows of prompt groups, some of which recur."""
    uids = ["abc"[number] for number in draw_numbers(draw, verl.scale, 0, 2, 16)]
    return {
        "seqlen_list": draw_rows(draw, [len(uids)], 0, draw(LIMITS))[0],
        "uid_list": uids,
        "k_partitions": draw(st.integers(1, 4)),
    }


def padded(lengths: list[int]) -> dict[str, Any]:
    """Return left-padded rows of the given lengths."""
    import torch

    width = max(lengths)
    mask = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    ids = torch.arange(mask.numel()).reshape(mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask.to(torch.int64)}


def options_of(draw: Draw) -> dict[str, Any]:
    """Draw options that both functions of micro-batches have."""
    options = {
        "num_batches_divided_by": st.integers(1, 3),
        "min_num_micro_batch": st.integers(1, 4),
        "use_dynamic_bsz_balance": st.booleans(),
    }
    given = draw(st.fixed_dictionaries({}, optional=options))
    return {"max_token_len": draw(st.integers(6, 20)), **given}


def rearranged(function: Any, batch: Any, **options: Any) -> Any:
    """Return the micro-batches of a TensorDict as dicts, and their rows."""
    found, indices = function(tensordict_of(batch), **options)
    return [dict(one.items()) for one in found], indices


@VERL.calls(BALANCING, "rearrange_micro_batches", by=rearranged)
def micro_batches(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw a batch, the options, and the number of rows that stay together."""
    batch = padded(draw_numbers(draw, verl.scale, 1, 9, 12))
    return {"batch": batch, **options_of(draw), "force_group_size": draw(st.integers(1, 2))}


def divided(function: Any, data: Any, **options: Any) -> Any:
    """Return the micro-batches of a DataProto as dicts, and their rows."""
    found, indices = function(data, **options)
    assert all(isinstance(one, type(data)) for one in found)
    return [parts_of(one) for one in found], indices


@VERL.calls(BALANCING, "prepare_dynamic_batch", by=divided)
def dynamic_batches(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw a DataProto and the options."""
    lengths = draw_numbers(draw, verl.scale, 1, 9, 12)
    uids = np.array([f"row {row}" for row in range(len(lengths))], dtype=object)
    data = verl("verl.protocol").DataProto.from_dict(
        padded(lengths), {"uid": uids}, meta_info={"steps": [1]}
    )
    return {"data": data, **options_of(draw)}


def parts_of(data: Any) -> dict[str, Any]:
    """Return the contents of a DataProto."""
    names = {key: value.tolist() for key, value in data.non_tensor_batch.items()}
    return {"batch": dict(data.batch.items()), "names": names, "meta_info": data.meta_info}


@VERL.calls(BALANCING, "restore_dynamic_batch")
def restored_rows(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw rows in another order, padded or nested."""
    import torch

    lengths = draw_numbers(draw, verl.scale, 0, 4, 8)
    order = draw(st.permutations(range(len(lengths))))
    split = draw(st.integers(0, len(order)))
    data = torch.arange(3 * len(lengths)).reshape(-1, 3)
    if draw(st.booleans()):
        rows = [torch.full((length, 2), row) for row, length in enumerate(lengths)]
        data = torch.nested.nested_tensor(rows, layout=torch.jagged)
    return {"data": data, "batch_idx_list": [order[:split], order[split:]]}


def tensordict_of(batch: dict[str, Any]) -> Any:
    """Return a TensorDict for the installed verl; one that is only downloaded takes dicts."""
    if find_spec("verl") is None:
        return dict(batch)
    from tensordict import TensorDict

    return TensorDict(batch, batch_size=[len(batch["input_ids"])])


def two_segments(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw left-padded prompts, of a token or more, and right-padded responses."""
    import torch

    prompt_lens = torch.tensor(draw_numbers(draw, verl.scale, 1, 4 * verl.scale, 5))
    response_lens = torch.tensor(draw_rows(draw, [len(prompt_lens)], 0, 4 * verl.scale)[0])
    prompts, responses = int(prompt_lens.max()), int(response_lens.max())
    places = torch.arange(prompts + responses)
    mask = places >= prompts - prompt_lens[:, None]
    mask &= places < prompts + response_lens[:, None]
    ids = torch.arange(mask.numel()).reshape(mask.shape)
    shapes = {"routed_experts": (3, 2), "teacher_ids": (2,), "teacher_logprobs": (2,)}
    more = draw(st.sets(st.sampled_from(sorted(shapes))))
    values = {
        name: ids.reshape(*ids.shape, *(1 for _ in shape)).expand(*ids.shape, *shape)
        for name, shape in shapes.items()
        if name in more
    }
    return {
        "input_ids": ids,
        "attention_mask": mask.to(draw(st.sampled_from([torch.int64, torch.bool]))),
        "response_mask": mask[:, prompts:].to(torch.int64),
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "prompts": ids[:, :prompts],
        "responses": ids[:, prompts:],
        **values,
    }


@VERL.calls(
    PADDING,
    "left_right_2_no_padding",
    by=lambda function, **batch: dict(function(tensordict_of(batch)).items()),
)
def without_padding(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw a padded batch, which both change in place."""
    return two_segments(draw, verl)


@VERL.calls(
    PADDING,
    "no_padding_2_padding",
    by=lambda function, tensor, **batch: function(tensor, tensordict_of(batch)),
)
def with_padding(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw a padded batch, and outputs for all of its tokens."""
    import torch

    batch = two_segments(draw, verl)
    shape = draw(st.sampled_from([(), (2,)]))
    values = torch.arange(int(batch["attention_mask"].sum())).reshape(-1, *(1 for _ in shape))
    return {"tensor": values.expand(-1, *shape).to(torch.float32), **batch}


@VERL.calls(UPSAMPLING, "construct_minimal_padding_template")
def padding_rows(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw a trajectory of prompt and response tokens."""
    import torch

    prompt, response = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    source = {
        "prompts": torch.arange(prompt),
        "responses": torch.arange(response),
        "input_ids": torch.arange(prompt + response),
        "position_ids": torch.arange(prompt + response),
        "attention_mask": torch.ones(prompt + response, dtype=torch.int64),
        "response_mask": torch.ones(response, dtype=torch.int64),
        "rm_scores": torch.ones(response),
        "data_source": "math",
    }
    if draw(st.booleans()):
        source["routed_experts"] = torch.ones(prompt + response, 2, 3, dtype=torch.int16)
    return {"source_td": source, "source_tag": {"status": "success"}, "eos_token_id": 7}


@VERL.calls(UPSAMPLING, "build_padding_position_ids")
def padding_positions(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw position ids of one or two dimensions, or none, and a mask."""
    import torch

    shape = draw(st.sampled_from([None, (), (4,)]))
    mask = draw(st.lists(st.integers(0, 1), min_size=1, max_size=8))
    source = None if shape is None else torch.zeros(*shape, 5, dtype=torch.int32)
    return {"source_position_ids": source, "attention_mask": torch.tensor(mask)}


@VERL.calls(UPSAMPLING, "build_padding_routed_experts")
def padding_routes(draw: Draw, verl: Peer) -> dict[str, Any]:
    """Draw routes of layers and experts, or none."""
    import torch

    shape = draw(st.sampled_from([None, (3, 2), (3, 2, 4)]))
    source = None if shape is None else torch.ones(shape, dtype=torch.int16)
    return {"source_routed_experts": source, "seq_len": draw(st.integers(0, 5))}
