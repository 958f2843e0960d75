"""Targets: steps, bins, parts and micro-batches, which are planned from lengths and ids."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

import fastcollate as fc
from calls import Call
from choices import Choices
from fastcollate.testing import reference
from fastcollate.testing.reference import assert_same, build_shard_loops, partitioning
from hostile import Acts, Pretends, hostile
from spoiling import Way, spoil
from verdicts import Verdict, outcome

_COSTS: dict[str, Callable[[Any], Any]] = {
    "tokens": lambda length: length,
    "flops": lambda length: 24_576 * length + length * length,
}


def _numbers(choices: Choices, most: int, count: int) -> list[int]:
    """Draw so many numbers up to one, of which many are equal or few."""
    few = choices.pick([most, most, 1, 3])
    return choices.rng.integers(0, min(few, most) + 1, count).tolist()


def _as_numbers(choices: Choices, numbers: Sequence[int]) -> Any:
    """Give numbers as some kind of input."""
    kind = choices.pick([list, tuple, np.array, torch.tensor, _strided])
    return kind(numbers) if len(numbers) else []


def _strided(numbers: Sequence[int]) -> Any:
    return np.array([numbers, numbers], np.int32).T[:, 0]


def _against(
    choices: Choices,
    function: Callable[..., Any],
    call: Call,
    expected: Callable[[], Any],
    wrong: Sequence[dict[str, Any]],
) -> tuple[Any, Any] | None:
    """Return the results of a function and of its reference, if the call is valid."""

    def wrong_option(choices: Choices, call: Call) -> Verdict:
        call.arguments |= choices.pick(wrong)
        return Verdict.REFUSED

    verdict = spoil(choices, call, [wrong_option, *_WAYS])
    if verdict == Verdict.RIGHT:
        try:
            wanted = expected()
        except ValueError:
            wanted = None
        if wanted is None:
            verdict = Verdict.REFUSED
    found = outcome(function, verdict, call)
    return (found, wanted) if verdict == Verdict.RIGHT else None


# Ways to be wrong


def _odd_number(choices: Choices, call: Call) -> Verdict:
    """Pass a number at the edge of what there may be, or none, for any argument."""
    odd = [0, 1, 2, 7, -1, 2**31, 2**62, 2**63 - 1, 2**64, True, 0.5, None, "5", float("nan")]
    call.arguments[choices.pick(list(call.arguments))] = choices.pick(odd)
    return Verdict.EITHER


def _odd_item(choices: Choices, call: Call) -> Verdict:
    """Put something else where one length, weight or id belongs."""
    name, rows = choices.pick(list(call.arguments.items()))
    if type(rows) not in (list, tuple) or len(rows) == 0:
        return _odd_number(choices, call)
    items = list(rows)
    odd = [-1, 2**62, 2**63, 10**50, 0.5, None, "5", [1], float("inf"), Acts(choices, call)]
    items[choices.below(len(items))] = choices.pick(odd)
    call.arguments[name] = items
    return Verdict.EITHER


def _hostile_argument(choices: Choices, call: Call) -> Verdict:
    name = choices.pick(list(call.arguments))
    call.pretends = True  # arguments are asked for their length as Python does
    items = [choices.below(4) for _ in range(choices.below(6))]
    call.arguments[name] = choices.pick(
        [Acts, Pretends, lambda choices, call: hostile(choices, call, items)]
    )(choices, call)
    return Verdict.EITHER


_WAYS: list[Way] = [_odd_number, _odd_item, _hostile_argument]


def _no_weights() -> list[Any]:
    """Make invalid weights: anew for each call, since hostile items change arguments."""
    return [None, 5, "text", {1, 2}, [-1], np.ones((2, 2)), [None], ["1"]]


def _no_lengths() -> list[Any]:
    return [*_no_weights(), [1.5]]


# Bins


def _wrong_packs() -> list[dict[str, Any]]:
    return [
        *({"lengths": given} for given in _no_lengths()),
        {"capacity": 0},
        {"capacity": 1.5},
        {"algorithm": "best"},
        {"algorithm": None},
        {"max_sequences": 0},
        {"multiple_of": 0},
        {"min_bins": -1},
        {"bins_multiple_of": 0},
        {"oversize": "cut"},
        {"keep_together": [0] * 99},
        {"keep_together": 5},
        {"cost": "time", "max_cost": 1.0, "algorithm": "ff"},
        {"max_cost": -1.0},
    ]


def _pack(
    lengths: Any, capacity: Any, *, keep_together: Any = None, **options: Any
) -> fc.planning.BinPlan:
    """Pack by options of the packed layout, one by one."""
    layout = fc.Packed(capacity, **options)
    return fc.planning.pack(lengths, layout, keep_together=keep_together)


def pack(choices: Choices) -> None:
    """Pack sequences into bins."""
    capacity = 1 + choices.below(40)
    longest = choices.pick([capacity // 3 + 1, capacity, 2 * capacity])
    lengths = _numbers(choices, longest, choices.pick([choices.below(8), choices.below(50)]))
    multiple = choices.pick([1, 1, 2, 3, 8])
    both = {
        "algorithm": choices.pick(
            ["ffd", "stable_ffd", "ff", "bfd", "mffd", "next_fit", "balanced", "concat"],
        ),
        "max_sequences": choices.pick([None, None, 1, 2, 5]),
        "min_bins": choices.pick([0, 0, 3, 7]),
        "bins_multiple_of": choices.pick([1, 1, 2, 3]),
    }
    ours: dict[str, Any] = {**both, "multiple_of": multiple}
    theirs: dict[str, Any] = {**both, "multiple": multiple}
    if both["algorithm"] == "concat":
        multiple = ours["multiple_of"] = theirs["multiple"] = min(multiple, capacity)
    else:
        ours["oversize"] = theirs["oversize"] = choices.pick(["error", "own_bin", "split"])
        if choices.one_in(2):
            groups = _numbers(choices, max(1, 2 * len(lengths)), len(lengths))
            ours["keep_together"] = theirs["groups"] = groups
        if choices.one_in(2):
            name = choices.pick(list(_COSTS))
            cost = _COSTS[name]
            ours["cost"] = name
            theirs["cost"] = lambda length: float(cost(length))
            ours["max_cost"] = theirs["max_cost"] = float(cost(capacity) * choices.pick([1, 0.4]))
    call = Call({"lengths": _as_numbers(choices, lengths), "capacity": capacity, **ours}, {})
    found = _against(
        choices,
        _pack,
        call,
        lambda: reference.pack_loops(lengths, capacity, **theirs),
        _wrong_packs(),
    )
    if found is None:
        return
    plan, expected = found
    columns = (plan.indices, plan.starts, plan.lengths)
    pieces = list(zip(*(column.tolist() for column in columns), strict=True))
    bins = [pieces[start:end] for start, end in pairwise(plan.offsets.tolist())]
    assert bins == expected, f"{bins}, expected {expected}"
    assert plan.sequence_lengths.tolist() == lengths
    _check_tables(plan)


def _check_tables(plan: Any) -> None:
    """Write a plan as JSON and pickle, and read it again."""
    if hasattr(plan, "from_dict"):
        assert type(plan).from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


# Parts


def partition(choices: Choices) -> None:
    """Part sequences by weight."""
    k, equal_size = 1 + choices.below(6), choices.one_in(3)
    count = k * choices.below(6) if equal_size else choices.below(40)
    weights = _numbers(choices, choices.pick([9, 200, 2**31 - 1]), count)
    algorithms = {
        "karmarkar_karp": lambda *args: list(map(sorted, partitioning.karmarkar_karp_loops(*args))),
        "lpt": partitioning.lpt_loops,
        "lpt_swap": partitioning.lpt_swap_loops,
    }
    algorithm = choices.pick(list(algorithms))
    call = Call({"lengths": _as_numbers(choices, weights), "k": k, "algorithm": algorithm}, {})
    call.arguments["equal_size"] = equal_size
    wrong = [
        *({"lengths": given} for given in _no_weights()),
        {"k": 0},
        {"k": 99},
        {"k": 1.5},
        {"algorithm": "kk"},
        {"equal_size": 1},
        {"cost": "time"},
        {"cost": [1] * 99},
        {"cost": lambda lengths: -1 - lengths},
    ]

    def expected() -> Any:
        return algorithms[algorithm](weights, k, equal_size) if count >= k else None

    found = _against(choices, fc.planning.partition, call, expected, wrong)
    if found is not None:
        assert found[0] == found[1], f"{found[0]}, expected {found[1]}"


def micro_batches(choices: Choices) -> None:
    """Split sequences into micro-batches of ranks."""
    capacity = 1 + choices.below(40)
    lengths = _numbers(choices, capacity, choices.below(30))
    options: dict[str, Any] = {
        "dp_size": choices.pick([1, 2, 3]),
        "bins_multiple_of": choices.pick([1, 2, 3]),
        "order": choices.pick(["small_ends", "descending", "ascending"]),
        "min_bins": choices.pick([1, 2, 3]),
    }
    cost = choices.pick(list(_COSTS))
    call = Call({"lengths": _as_numbers(choices, lengths), "capacity": capacity, **options}, {})
    call.arguments["cost"] = cost
    wrong = [
        *({"lengths": given} for given in _no_lengths()),
        {"lengths": [capacity + 1]},
        {"capacity": 0},
        {"dp_size": 0},
        {"bins_multiple_of": -1},
        {"order": "any"},
        {"min_bins": 0},
        {"cost": "time"},
        {"cost": [1] * 99},
    ]
    found = _against(
        choices,
        fc.planning.micro_batches,
        call,
        lambda: reference.micro_batches_loops(lengths, capacity, *options.values(), _COSTS[cost]),
        wrong,
    )
    if found is None:
        return
    micro, expected = found
    ranks = [micro.of_rank(rank) for rank in range(options["dp_size"])]
    assert ranks == expected, f"{ranks}, expected {expected}"
    _check_tables(micro)


# Steps


def _wrong_steps() -> list[dict[str, Any]]:
    return [
        *({"rows": given} for given in _no_lengths()),
        {"rows": [1] * 999},
        {"rows": ([1], [1, 2])},
        {"uids": [0, 1, 0] * 333},
        {"uids": 5},
        {"dp_size": 0},
        {"dp_size": 1.5},
        {"pad_rows": "zero"},
        {"pad_rows": "copy"},
        {"shard_by": "even"},
        {"shard_by": lambda lengths: -1.0 - lengths},
        {"keep_together": "all"},
        {"allow_partial": 1},
        {"prompts_per_mini_batch": 1, "rows_per_mini_batch": 1},
        {"trajectory_ids": [0] * 999, "keep_together": "trajectory"},
        {"layout": 5},
        {"layout": "packed"},
        {"layout": fc.Packed(plan=[[0]])},
        {"layout": fc.Packed(5, oversize="split")},
    ]


def plan_step(choices: Choices) -> None:
    """Plan a step, and build a shard of it."""
    turns = [
        [1 + choices.below(3) for _ in range(1 + choices.below(4))]
        for _ in range(1 + choices.below(7))
    ]
    per_prompt = list(map(sum, turns))
    per_trajectory = [count for prompt in turns for count in prompt]
    prompts, trajectories = ([0, *accumulate(each)] for each in (per_prompt, per_trajectory))
    rows = prompts[-1]
    longest = choices.pick([4, 5000])
    lens = _numbers(choices, longest, rows), _numbers(choices, longest, rows)
    keep = choices.pick([None, "prompt", "trajectory"])
    pad_rows = choices.pick(["synthetic", "copy_first", "copy_cycle", "error"])
    shards = choices.pick(["contiguous", "strided", *_COSTS])
    unit = choices.pick([None, "prompts", "prompts", *["rows"] * (keep is None)])
    size = 1 + choices.below({None: 1, "prompts": len(per_prompt), "rows": rows}[unit])
    starts = {None: [0], "prompts": prompts[:-1:size], "rows": range(0, rows, size)}[unit]
    dp_size = choices.pick([1, 2, 3, 4, 8, 17])
    make_id = choices.pick([int, "p{}".format, lambda index: (index,)])
    arguments: dict[str, Any] = {
        "rows": tuple(_as_numbers(choices, each) for each in lens),
        "uids": [make_id(index) for index, count in enumerate(per_prompt) for _ in range(count)],
        "dp_size": dp_size,
        "pad_rows": pad_rows,
        "shard_by": shards,
        "keep_together": keep,
        "allow_partial": True,
        "layout": choices.pick([None, None, "left", "jagged", fc.Right(multiple_of=2)]),
        "trajectory_ids": [
            make_id(index) for index, count in enumerate(per_trajectory) for _ in range(count)
        ],
    }
    if unit is not None:
        arguments[f"{unit}_per_mini_batch"] = size
    groups = {None: None, "prompt": prompts, "trajectory": trajectories}[keep]

    mini_batches = list(pairwise([*starts, rows]))

    def expected() -> Any:
        return reference.plan_step_loops(
            [sum(pair) for pair in zip(*lens, strict=True)],
            mini_batches,
            dp_size=dp_size,
            pad_rows=pad_rows,
            shard_by="balanced" if shards in _COSTS else shards,
            cost=(lambda length: float(_COSTS[shards](length))) if shards in _COSTS else None,
            groups=None if groups is None else list(pairwise(groups)),
        )

    found = _against(choices, fc.plan_step, Call(arguments, {}), expected, _wrong_steps())
    if found is None:
        return
    plan, shards_of_loops = found
    assert plan.mini_batches == mini_batches
    _check_slots(plan, shards_of_loops)
    _check_tables(plan)
    if longest < 10:
        shard = plan.shard(choices.below(plan.num_mini_batches), choices.below(dp_size))
        _check_shard(choices, shard, [[[7] * count for count in each] for each in lens])


def _check_slots(plan: fc.planning.StepPlan, expected: Any) -> None:
    """Compare the rows of all shards with the reference's."""
    for index, of_mini_batch in enumerate(expected):
        for rank, slots in enumerate(of_mini_batch):
            shard = plan.shard(index, rank)
            pairs = list(zip(shard.rows.tolist(), shard.is_padding.tolist(), strict=True))
            assert pairs == slots, f"shard {index}, {rank} has {pairs}, expected {slots}"


def _check_shard(choices: Choices, shard: Any, rows: list[list[list[int]]]) -> None:
    """Build a shard, at once and of the batch of all rows."""
    layouts = ["left", "two_segment", "right", "jagged"]
    layout: Any = choices.pick(layouts) if shard.layout is None else shard.layout
    how = {"pad_token_id": 0, "layout": layout}
    expected = build_shard_loops(*rows, rewards=rows[1], shard=shard, **how)
    given = dict(zip(("prompts", "responses"), rows, strict=True))
    given |= {"rewards": rows[1], "array_type": "numpy", **how}
    if shard.layout is None:
        assert_same(fc.build_batch(**given).select(shard), expected)
    else:
        given["layout"] = choices.pick([None, layout])
    assert_same(fc.build_batch(**given, shard=shard), expected)
