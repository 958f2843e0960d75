"""verl: partitions, micro-batches, padding, and padding rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastcollate.compat import verl as compat
from fastcollate.testing.verifying.sizes import draw_numbers, draw_rows
from fastcollate.testing.verifying.subjects import Case, Draw, Peer, Subject

VERL = Subject("verl", "verl")
VERL.not_compared |= {
    "patch": "no function of verl's",
    "to_tensordict": "no function of verl's",
    "unpatch": "no function of verl's",
    "upsample_batch": "verl's reads and writes a transfer queue",
}

BALANCING = "verl.utils.seqlen_balancing"
PADDING = "verl.workers.utils.padding"
UPSAMPLING = "verl.trainer.ppo.padding_utils"

LIMITS = st.sampled_from([5, 100_000])


@VERL.compares("calculate_workload")
def workloads(draw: Draw, verl: Peer) -> Case:
    """Draw lengths of several dtypes; those of 8 and 32 bits wrap around."""
    import torch

    dtype = draw(st.sampled_from([torch.int64, torch.int32, torch.uint8, torch.float32]))
    lengths = draw_numbers(draw, verl.scale, 0, draw(LIMITS), 8, min_size=0)
    seqlens = torch.tensor(lengths, dtype=torch.int64).to(dtype)
    return Case(
        theirs=lambda: verl(BALANCING).calculate_workload(seqlens),
        ours=lambda: compat.calculate_workload(seqlens),
        given={"seqlen_list": seqlens},
    )


def partitions(name: str, draw: Draw, verl: Peer) -> Case:
    """Draw at least one length, and a number of parts."""
    import torch

    lengths = draw_numbers(draw, verl.scale, 0, draw(LIMITS), 16)
    weights = torch.tensor(lengths) if draw(st.booleans()) else lengths
    given = {
        "seqlen_list": weights,
        "k_partitions": draw(st.integers(1, 8)),
        "equal_size": draw(st.booleans()),
    }
    return Case(
        theirs=lambda: getattr(verl(BALANCING), name)(**given),
        ours=lambda: getattr(compat, name)(**given),
        given=given,
    )


@VERL.compares("karmarkar_karp")
def parts_as_grown(draw: Draw, verl: Peer) -> Case:
    """See `partitions`."""
    return partitions("karmarkar_karp", draw, verl)


@VERL.compares("get_seqlen_balanced_partitions")
def sorted_parts(draw: Draw, verl: Peer) -> Case:
    """See `partitions`."""
    return partitions("get_seqlen_balanced_partitions", draw, verl)


@VERL.compares("get_group_balanced_partitions")
def parts_of_groups(draw: Draw, verl: Peer) -> Case:
    """Draw rows of prompt groups, some of which recur."""
    uids = ["abc"[number] for number in draw_numbers(draw, verl.scale, 0, 2, 16)]
    given = {
        "seqlen_list": draw_rows(draw, [len(uids)], 0, draw(LIMITS))[0],
        "uid_list": uids,
        "k_partitions": draw(st.integers(1, 4)),
    }
    return Case(
        theirs=lambda: verl(BALANCING).get_group_balanced_partitions(**given),
        ours=lambda: compat.get_group_balanced_partitions(**given),
        given=given,
    )


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


@VERL.compares("rearrange_micro_batches")
def micro_batches(draw: Draw, verl: Peer) -> Case:
    """Draw a batch, the options, and the number of rows that stay together."""
    lengths = draw_numbers(draw, verl.scale, 1, 9, 12)
    options = options_of(draw)
    options["force_group_size"] = draw(st.integers(1, 2))

    def called(function: Any, batch: Any) -> Any:
        found, indices = function(batch, **options)
        return [dict(one.items()) for one in found], indices

    batch = tensordict_of(verl, padded(lengths))
    return Case(
        theirs=lambda: called(verl(BALANCING).rearrange_micro_batches, batch),
        ours=lambda: called(compat.rearrange_micro_batches, batch),
        given={"lengths": lengths, **options},
    )


@VERL.compares("prepare_dynamic_batch")
def dynamic_batches(draw: Draw, verl: Peer) -> Case:
    """Draw a DataProto and the options."""
    lengths = draw_numbers(draw, verl.scale, 1, 9, 12)
    options = options_of(draw)
    kind = verl("verl.protocol").DataProto
    uids = np.array([f"row {row}" for row in range(len(lengths))], dtype=object)
    data = kind.from_dict(padded(lengths), {"uid": uids}, meta_info={"steps": [1]})

    def called(function: Any) -> Any:
        found, indices = function(data, **options)
        assert all(isinstance(one, kind) for one in found)
        return [parts_of(one) for one in found], indices

    return Case(
        theirs=lambda: called(verl(BALANCING).prepare_dynamic_batch),
        ours=lambda: called(compat.prepare_dynamic_batch),
        given={"lengths": lengths, **options},
    )


def parts_of(data: Any) -> dict[str, Any]:
    """Return the contents of a DataProto."""
    names = {key: value.tolist() for key, value in data.non_tensor_batch.items()}
    return {"batch": dict(data.batch.items()), "names": names, "meta_info": data.meta_info}


@VERL.compares("restore_dynamic_batch")
def restored_rows(draw: Draw, verl: Peer) -> Case:
    """Draw rows in another order, padded or nested."""
    import torch

    lengths = draw_numbers(draw, verl.scale, 0, 4, 8)
    order = draw(st.permutations(range(len(lengths))))
    split = draw(st.integers(0, len(order)))
    if draw(st.booleans()):
        rows = [torch.full((length, 2), row) for row, length in enumerate(lengths)]
        data = torch.nested.nested_tensor(rows, layout=torch.jagged)
    else:
        data = torch.arange(3 * len(lengths)).reshape(-1, 3)
    given: dict[str, Any] = {"data": data, "batch_idx_list": [order[:split], order[split:]]}
    return Case(
        theirs=lambda: verl(BALANCING).restore_dynamic_batch(**given),
        ours=lambda: compat.restore_dynamic_batch(**given),
        given=given,
    )


def tensordict_of(verl: Peer, batch: dict[str, Any]) -> Any:
    """Return a TensorDict for the installed verl; one that is only downloaded takes dicts."""
    if not verl.is_installed:
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
    return {
        "input_ids": ids,
        "attention_mask": mask.to(torch.int64),
        "response_mask": mask[:, prompts:].to(torch.int64),
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "prompts": ids[:, :prompts],
        "responses": ids[:, prompts:],
    }


@VERL.compares("left_right_2_no_padding")
def without_padding(draw: Draw, verl: Peer) -> Case:
    """Draw a padded batch, which both change in place."""
    batch = two_segments(draw, verl)

    def called(function: Any) -> Mapping[str, Any]:
        found = function(tensordict_of(verl, batch))
        return {key: found[key] for key in found.keys()}  # noqa: SIM118

    return Case(
        theirs=lambda: called(verl(PADDING).left_right_2_no_padding),
        ours=lambda: called(compat.left_right_2_no_padding),
        given=batch,
    )


@VERL.compares("no_padding_2_padding")
def with_padding(draw: Draw, verl: Peer) -> Case:
    """Draw a padded batch, and outputs for all of its tokens."""
    import torch

    batch = two_segments(draw, verl)
    shape = draw(st.sampled_from([(), (2,)]))
    values = torch.arange(int(batch["attention_mask"].sum())).reshape(-1, *(1 for _ in shape))
    values = values.expand(-1, *shape).to(torch.float32)
    return Case(
        theirs=lambda: verl(PADDING).no_padding_2_padding(values, tensordict_of(verl, batch)),
        ours=lambda: compat.no_padding_2_padding(values, tensordict_of(verl, batch)),
        given={"tensor": values, **batch},
    )


@VERL.compares("construct_minimal_padding_template")
def padding_rows(draw: Draw, verl: Peer) -> Case:
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
    given: dict[str, Any] = {
        "source_td": source,
        "source_tag": {"status": "success"},
        "eos_token_id": 7,
    }
    return Case(
        theirs=lambda: verl(UPSAMPLING).construct_minimal_padding_template(**given),
        ours=lambda: compat.construct_minimal_padding_template(**given),
        given=given,
    )


@VERL.compares("build_padding_position_ids")
def padding_positions(draw: Draw, verl: Peer) -> Case:
    """Draw position ids of one or two dimensions, or none, and a mask."""
    import torch

    shape = draw(st.sampled_from([None, (), (4,)]))
    mask = torch.tensor(draw(st.lists(st.integers(0, 1), min_size=1, max_size=8)))
    source = None if shape is None else torch.zeros(*shape, 5, dtype=torch.int32)
    return Case(
        theirs=lambda: verl(UPSAMPLING).build_padding_position_ids(source, mask),
        ours=lambda: compat.build_padding_position_ids(source, mask),
        given={"source_position_ids": source, "attention_mask": mask},
    )


@VERL.compares("build_padding_routed_experts")
def padding_routes(draw: Draw, verl: Peer) -> Case:
    """Draw routes of layers and experts, or none."""
    import torch

    shape = draw(st.sampled_from([None, (3, 2), (3, 2, 4)]))
    source = None if shape is None else torch.ones(shape, dtype=torch.int16)
    tokens = draw(st.integers(0, 5))
    return Case(
        theirs=lambda: verl(UPSAMPLING).build_padding_routed_experts(source, tokens),
        ours=lambda: compat.build_padding_routed_experts(source, tokens),
        given={"source_routed_experts": source, "seq_len": tokens},
    )
