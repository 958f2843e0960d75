"""The plain references of fastcollate's own functions."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.testing import drawing, reference
from fastcollate.testing.reference import partitioning
from fastcollate.testing.reference.stepping import prompt_boundaries_loops
from fastcollate.testing.reference.way_back import broadcast_loops
from fastcollate.testing.verifying.subjects import Case, Draw, Peer, Subject, draw_numbers

REFERENCES = Subject("plain references", "fastcollate")

LAYOUTS = ("left", "right", "two_segment", "jagged")
OPTIONS = st.fixed_dictionaries(
    {"pad_token_id": st.integers(0, 9), "layout": st.sampled_from(LAYOUTS)},
    optional={
        "labels": st.sampled_from(["aligned", "shifted"]),
        "position_ids": st.sampled_from(["zero", "one", "repeat_last", False]),
    },
)
COSTS: dict[str, Any] = {"tokens": int, "flops": lambda length: 24_576 * length + length * length}


def rows_of(draw: Draw, scale: int, *, has_prompts: bool = False) -> dict[str, Any]:
    """Draw the columns of a batch."""
    limits = {"max_rows": 6 * scale, "max_len": 5 * scale, "max_long_len": 30 * scale}
    data: dict[str, Any] = draw(drawing.batches(**limits))
    if has_prompts:
        data["prompts"] = [prompt or [3] for prompt in data["prompts"]]
    return data


def lengths_of(given: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the prompt and response tokens of each row."""
    return [(len(p), len(r)) for p, r in zip(given["prompts"], given["responses"], strict=True)]


def built(**given: Any) -> dict[str, Any]:
    """Return the outputs of `build_batch`."""
    return dict(fc.build_batch(**given, array_type="numpy"))


@REFERENCES.functions("build_batch", reference.build_batch_loops, built)
def batches(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw a batch, its layout, labels and positions."""
    return {**rows_of(draw, plain.scale), **draw(OPTIONS)}


def packed_loops(capacity: int, shift: str, **given: Any) -> dict[str, Any]:
    """Pack rows, and write them into the bins."""
    bins = reference.pack_loops([sum(pair) for pair in lengths_of(given)], capacity)
    return reference.build_batch_loops(**given, layout="packed", bins=bins, shift=shift)


@REFERENCES.functions(
    "build_batch(layout=Packed)",
    packed_loops,
    lambda capacity, shift, **given: built(**given, layout=fc.Packed(capacity, shift=shift)),
)
def packed_batches(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw a batch and a capacity."""
    given = rows_of(draw, plain.scale, has_prompts=True)
    most = max(sum(pair) for pair in lengths_of(given))
    return given | {
        "pad_token_id": draw(st.integers(0, 9)),
        "capacity": most + draw(st.integers(0, 20)),
        "shift": draw(st.sampled_from(["none", "next_token"])),
    }


def forks(draw: Draw, scale: int) -> dict[str, Any]:
    """Draw rows that begin with some of the tokens of an earlier one."""
    streams: list[list[int]] = []
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for length in draw_numbers(draw, scale, 2, 6 * scale, 6):
        earlier = streams[rng.integers(len(streams))] if streams else []
        kept = earlier[: rng.integers(len(earlier) + 1)]
        streams.append(kept + rng.integers(0, 3, length).tolist())
    ends = [int(rng.integers(1, len(stream) + 1)) for stream in streams]
    rows = list(zip(streams, ends, strict=True))
    return {
        "prompts": [stream[:end] for stream, end in rows],
        "responses": [stream[end:] for stream, end in rows],
    }


@REFERENCES.functions("build_batch(layout=Tree)", reference.build_batch_loops, built)
def tree_batches(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw rows with shared prefixes."""
    return {**forks(draw, plain.scale), "pad_token_id": 0, "layout": fc.Tree()}


def trie(**rows: Any) -> Any:
    """Return the order of rows in a trie, the tokens that they share, and those that remain."""
    found = reference.prefix_tree_loops(**rows)
    return found.order, found.shared, len(found.tokens)


def tree(**rows: Any) -> Any:
    """Return the same of a plan."""
    plan = fc.planning.prefix_tree(**rows)
    return plan.order.tolist(), plan.shared.tolist(), plan.tokens_after


@REFERENCES.functions("planning.prefix_tree", trie, tree)
def prefix_trees(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw rows with shared prefixes."""
    return forks(draw, plain.scale)


def turns_of(draw: Draw, scale: int) -> dict[str, Any]:
    """Draw turns of trajectories, most of which continue the turn before."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found: dict[str, Any] = {"prompts": [], "responses": [], "is_last_step": []}
    for count in draw_numbers(draw, scale, 1, 5, 3):
        stream: list[int] = []
        for turn in range(count):
            kept = rng.choice([len(stream)] * 4 + [max(len(stream) - 1, 0), 0])
            observed, response = (
                rng.integers(0, 3, rng.integers(0, 4 * scale)).tolist() for _ in range(2)
            )
            found["prompts"].append(stream[:kept] + observed)
            found["responses"].append(response)
            found["is_last_step"].append(turn == count - 1)
            stream = found["prompts"][-1] + response
    return found


ALGORITHMS = ("ffd", "stable_ffd", "ff", "bfd", "mffd", "next_fit", "balanced")
POLICIES = st.sampled_from(["exact", "branch", "realign"])


def merged_loops(**given: Any) -> Any:
    """Return the source, trajectory and lengths of merged rows."""
    rows = reference.merge_turns_loops(**given).rows
    return [(row.source, row.trajectory, len(row.prompt), len(row.response)) for row in rows]


def merged(**given: Any) -> Any:
    """Return the same of a plan."""
    plan = fc.merge_turns(**given)
    return columns(plan.sources, plan.trajectories, plan.prompt_lens, plan.response_lens)


def columns(*arrays: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a table, given by its columns."""
    return list(zip(*(array.tolist() for array in arrays), strict=True))


@REFERENCES.functions("merge_turns", merged_loops, merged)
def merged_turns(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw turns and a policy."""
    return turns_of(draw, plain.scale) | {"policy": draw(POLICIES)}


@REFERENCES.functions("build_batch(merge=)", reference.build_merged_batch_loops, built)
def merged_batches(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw turns with log-probabilities, a policy and a layout."""
    given = {**turns_of(draw, plain.scale), **draw(OPTIONS), "merge": draw(POLICIES)}
    return given | {"logprobs": [[-0.5 * token for token in row] for row in given["responses"]]}


def collated(samples: Any, keys: list[str], **options: Any) -> dict[str, Any]:
    """Return outputs of a collator's batch, of which a model takes some."""
    batch = fc.Collator(**options, array_type="numpy")(samples)
    return {key: getattr(batch, key) for key in keys}


@REFERENCES.functions("Collator", lambda keys, **given: reference.collate_loops(**given), collated)
def samples(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw samples of prompts and responses."""
    options = draw(OPTIONS) | {"layout": draw(st.sampled_from(["left", "right", "two_segment"]))}
    data = rows_of(draw, plain.scale)
    names = {"prompts": "prompt", "responses": "response"}
    rows = [
        {names.get(name, name): column[row] for name, column in data.items()}
        for row in range(len(data["prompts"]))
    ]
    keys: list[str] = []
    with suppress(ValueError):  # then both refuse the samples
        keys += reference.collate_loops(rows, **options)
    return {"samples": rows, "keys": keys, **options}


def bins(lengths: list[int], capacity: int, **options: Any) -> Any:
    """Return the pieces of each bin."""
    plan = fc.planning.pack(lengths, fc.Packed(capacity, **options))
    pieces = columns(plan.indices, plan.starts, plan.lengths)
    return [pieces[start:end] for start, end in pairwise(plan.offsets.tolist())]


@REFERENCES.functions("planning.pack", reference.pack_loops, bins)
def packings(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw lengths that fit, an algorithm, and limits of bins."""
    limits = {"max_sequences": st.integers(1, 5), "bins_multiple_of": st.integers(1, 3)}
    return {
        "lengths": draw_numbers(draw, plain.scale, 0, 30, 40),
        "capacity": draw(st.integers(30, 80)),
        "algorithm": draw(st.sampled_from(ALGORITHMS)),
        **draw(st.fixed_dictionaries({}, optional=limits)),
    }


def parts(lengths: list[int], k: int, algorithm: str) -> Any:
    """Return the items of each part."""
    return getattr(partitioning, f"{algorithm}_loops")(list(map(float, lengths)), k)


@REFERENCES.functions("planning.partition", parts, lambda **given: fc.planning.partition(**given))
def partitions(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw weights, a number of parts and an algorithm."""
    weights = draw_numbers(draw, plain.scale, 0, 99, 30)
    algorithm = draw(st.sampled_from(["lpt", "lpt_swap"]))
    return {"lengths": weights, "k": draw(st.integers(1, len(weights))), "algorithm": algorithm}


def micro_loops(cost: str, bins_multiple_of: int, **given: Any) -> Any:
    """Return the micro-batches of each rank."""
    cost_of = COSTS[cost]
    found = reference.micro_batches_loops(**given, multiple_of=bins_multiple_of, cost=cost_of)
    if found is None:
        raise ValueError("too few sequences")
    return found


def micro(dp_size: int, **given: Any) -> Any:
    """Return the same of a plan."""
    plan = fc.planning.micro_batches(**given, dp_size=dp_size)
    return [plan.of_rank(rank) for rank in range(dp_size)]


@REFERENCES.functions("planning.micro_batches", micro_loops, micro)
def micro_batches(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw lengths that fit, a number of ranks, an order and costs."""
    return {
        "lengths": draw_numbers(draw, plain.scale, 0, 9, 25),
        "capacity": draw(st.integers(9, 30)),
        "dp_size": draw(st.integers(1, 3)),
        "bins_multiple_of": draw(st.integers(1, 2)),
        "order": draw(st.sampled_from(["small_ends", "descending", "ascending"])),
        "min_bins": draw(st.integers(1, 3)),
        "cost": draw(st.sampled_from(list(COSTS))),
    }


@REFERENCES.compares("plan_step")
def steps(draw: Draw, plain: Peer) -> Case:
    """Draw rows of prompts, ranks, and the rows that stay together."""
    samples = draw_numbers(draw, plain.scale**2, 1, 3, 6)
    uids = [f"p{prompt}" for prompt, count in enumerate(samples) for _ in range(count)]
    starts = np.cumsum([0, *samples]).tolist()
    lengths = [index * 7919 % 21 for index in range(len(uids))]
    size = draw(st.integers(1, len(samples)))
    keep = draw(st.sampled_from([None, "prompt"]))
    common: dict[str, Any] = {
        "dp_size": draw(st.integers(1, 4)),
        "pad_rows": draw(st.sampled_from(["copy_first", "copy_cycle", "synthetic"])),
    }
    shard_by = draw(st.sampled_from(["contiguous", "strided", "tokens"]))
    given = {"rows": lengths, "uids": uids, "keep_together": keep, "shard_by": shard_by, **common}
    given |= {"prompts_per_mini_batch": size, "allow_partial": True}

    def theirs() -> Any:
        return reference.plan_step_loops(
            lengths,
            list(pairwise([*starts[:-1:size], len(uids)])),
            **common,
            shard_by="balanced" if shard_by == "tokens" else shard_by,
            cost=float,
            groups=None if keep is None else list(pairwise(starts)),
        )

    def ours() -> Any:
        shards = fc.plan_step(**given).shards()
        return [[columns(one.rows, one.is_padding) for one in ranks] for ranks in shards]

    return Case(theirs, ours, given)


@REFERENCES.functions("build_batch(shard=)", reference.build_shard_loops, built)
def shards(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw a batch, and a rank of a step of its rows."""
    given = rows_of(draw, plain.scale)
    given |= {"pad_token_id": 0, "layout": draw(st.sampled_from(LAYOUTS))}
    dp_size = draw(st.integers(1, 3))
    lengths = tuple(map(list, zip(*lengths_of(given), strict=True)))
    shard = fc.plan_step(lengths, dp_size=dp_size).shard(0, draw(st.integers(0, dp_size - 1)))
    return {**given, "shard": shard}


@REFERENCES.compares("Batch.gather")
def gathered(draw: Draw, plain: Peer) -> Case:
    """Draw a batch, and an output of a model for its tokens."""
    given = rows_of(draw, plain.scale, has_prompts=True)
    given = {name: given[name] for name in ("prompts", "responses")}
    given |= {"pad_token_id": 0, "layout": draw(st.sampled_from(LAYOUTS))}
    shift = draw(st.sampled_from(["none", "next_token"]))
    batch = fc.build_batch(**given, array_type="numpy")
    loops = reference.build_batch_loops(**given)
    x = np.arange(batch.input_ids.size, dtype=np.float32).reshape(batch.input_ids.shape)
    options: dict[str, Any] = {"align": "sequence", "shift": shift}

    def ours() -> Any:
        found = batch.gather(x, **options)
        return found.values, found.offsets

    return Case(lambda: reference.gather_loops(loops, x, **options), ours, {**given, **options})


@REFERENCES.compares("Batch.broadcast")
def broadcast(draw: Draw, plain: Peer) -> Case:
    """Draw a batch, and a number for each row."""
    given = rows_of(draw, plain.scale)
    given |= {"pad_token_id": 0, "layout": draw(st.sampled_from(LAYOUTS))}
    batch = fc.build_batch(**given, array_type="numpy")
    loops = reference.build_batch_loops(**given)
    numbers = np.arange(len(batch.prompt_lens), dtype=np.float32) - 1.5
    return Case(
        lambda: broadcast_loops(loops, numbers, loops["loss_mask"]),
        lambda: batch.broadcast(numbers),
        given,
    )


@REFERENCES.functions(
    "planning.prompt_boundaries",
    prompt_boundaries_loops,
    lambda uids: list(fc.planning.prompt_boundaries(uids)),
)
def boundaries(draw: Draw, plain: Peer) -> dict[str, Any]:
    """Draw uids, some of which come again."""
    uids = [f"p{number}" for number in draw_numbers(draw, plain.scale**2, 0, 2, 6)]
    return {"uids": uids if draw(st.integers(0, 3)) == 0 else sorted(uids)}
