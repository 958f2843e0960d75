"""Measure the merging of turns that share a prefix: `merge_turns` and `build_batch(merge=...)`.

256 trajectories of 2 to 50 turns and 4,000 to 32,000 tokens: 6,600 turns, 63 M tokens in all their
prompts and responses, all of which merge. The turns of "shared" lists hold the same int objects, as
if prompts were joined from the turns before; "distinct" lists have an object for every number, and
take 2.5 GB.

fastcollate, fresh
    One call in steady state, and for batches with `pool=None`, as every first call is; and how many
    times as long SkyRL takes or, without it, the port.
port
    `merge_stepwise_output` of `frameworks.skyrl` on lists, those that share objects if
    fastcollate has arrays or `Ragged`; for batches also `build_batch_numpy` on what it merged. It
    is as fast as the part of SkyRL's function that merges. The whole of that, with its metrics and
    checks, takes 2.1 times as long from shared lists and 1.4 times as long from distinct ones.
SkyRL
    The same with SkyRL's own function, where `make peers` has it.
memcmp
    The bare comparison of as many bytes: 4 a token for arrays, 8, a pointer, for lists.
a token
    Time of fastcollate for one token of a prompt or response.
peak, peak of port
    Peak increase of the process's memory in a call, on fresh memory, as a multiple of the batch
    (Linux only).

The last lines measure `policy="branch"` on trajectories of 1,000 turns. The time of a token
should not grow with their number:

20 branches
    They have a common prefix, and grow in turns of 20 tokens at 1x and 160 at 8x.
long prefix
    200 branches with 50,000 tokens in common at 8x; the first prompts go on differently.
last token
    The same, but the first prompts are equal, and the first responses differ in their last token.
nested
    200 branches that are prefixes of one another, the longest of 50,000 tokens at 8x. Every further
    turn continues them all, and has to join the longest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

import fastcollate as fc
from common.processes import in_process, peak_bytes
from common.report import Effort, Figures, main, time_cell
from common.trajectories import Turns, branches, fields_of, nested, trajectories
from common.workload import Rollouts, arrays_of
from fastcollate.testing import reference
from frameworks import skyrl
from frameworks.installed import real
from frameworks.numpy_rows import build_batch_numpy

Merge = Callable[[Rollouts], Rollouts]

SCALES = [1, 2, 4, 8]


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure everything in separate processes, to free their memory."""
    for form in "shared", "distinct":
        plan, batch = in_process(of_lists, effort, form)
        yield f"plan, {form} lists", plan
        if sys.platform == "linux":
            for name, index in ("peak", 0), ("peak of port", 1):
                batch[name] = in_process(peak, effort.is_smoke, form, index)
        yield f"build, {form} lists", batch
    for case, figures in in_process(of_columns, effort).items():
        yield f"plan, {case}", figures
    for case in "20 branches", "20 branches, lists", "long prefix", "last token", "nested":
        for scale in SCALES[:1] if effort.is_smoke else SCALES:
            yield f"{case}, {scale}x", in_process(of_branches, effort, case, scale)


def of_lists(effort: Effort, form: str) -> tuple[Figures, Figures]:
    """Measure plans and batches of lists."""
    turns = make(effort.is_smoke, form)
    fields = fields_of(turns)
    ours, peer = candidates(turns, fields)
    reference.assert_same(ours(), peer())
    calls: dict[str, Callable[[], object]] = {
        "fastcollate": ours,
        "fresh": partial(ours, pool=None),
    }
    peers = {name: partial(two_steps, merge, turns, fields) for name, merge in list_codes().items()}
    batch = effort.run(calls | peers, slow=list(peers))
    return time_plan(effort, turns, turns, fields, np.int64), batch


def of_columns(effort: Effort) -> dict[str, Figures]:
    """Measure plans of arrays and `Ragged`."""
    arrays = make(effort.is_smoke, "arrays")
    lists = make(effort.is_smoke, "shared")
    fields = fields_of(lists)
    columns = Turns(fc.ragged(arrays.prompts), fc.ragged(arrays.responses), arrays.is_last_step)
    return {
        "arrays": time_plan(effort, arrays, lists, fields, np.int32),
        "Ragged": time_plan(effort, columns, lists, fields, np.int32),
    }


def make(is_smoke: bool, form: str) -> Turns:
    count, tokens = (3, (200, 400)) if is_smoke else (256, (4_000, 32_000))
    return trajectories(count, turns=(2, 50), tokens=tokens, form=form)


# Plans


def time_plan(
    effort: Effort, turns: Turns, lists: Turns, fields: Rollouts, compared: type[np.integer[Any]]
) -> Figures:
    """Measure plans against the merging of the same turns as lists."""
    ours = partial(fc.merge_turns, *turns[:2], is_last_step=turns.is_last_step)
    output = generator_output(lists, fields)
    merged = skyrl.merge_stepwise_output(output)
    assert ours().response_lens.tolist() == list(map(len, merged["response_ids"]))
    peers = {name: partial(merge, output) for name, merge in list_codes().items()}
    calls = {"fastcollate": ours, **peers, "memcmp": memcmp(lists, compared)}
    times = effort.run(calls, slow=list(peers))
    return times | {"a token": times["fastcollate"] / lists.tokens}


def memcmp(turns: Turns, dtype: type[np.integer[Any]]) -> Callable[[], int]:
    """Return a call that compares each turn's bytes with the prefix of the next prompt."""
    prompts = [np.array(row, dtype).tobytes() for row in turns.prompts]
    responses = [np.array(row, dtype).tobytes() for row in turns.responses]
    pairs = [
        (prompt, response, following)
        for prompt, response, following, is_last in zip(
            prompts, responses, prompts[1:], turns.is_last_step, strict=False
        )
        if not is_last
    ]

    def compare() -> int:
        return sum(
            following.startswith(prompt) and following.startswith(response, len(prompt))
            for prompt, response, following in pairs
        )

    assert compare() == len(pairs)
    return compare


# Batches


def candidates(turns: Turns, fields: Rollouts) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Return calls that build the merged batch in one step, and in two."""
    ours = partial(
        fc.build_batch,
        *turns[:2],
        **fields,
        pad_token_id=0,
        is_last_step=turns.is_last_step,
        merge="exact",
        array_type="numpy",
    )
    return ours, partial(two_steps, skyrl.merge_stepwise_output, turns, fields)


def two_steps(merge: Merge, turns: Turns, fields: Rollouts) -> Rollouts:
    """Merge lists, then collate them with NumPy."""
    merged = merge(generator_output(turns, fields))
    return build_batch_numpy(
        merged["prompt_token_ids"],
        merged["response_ids"],
        pad_token_id=0,
        rewards=merged["rewards"],
        loss_mask=merged["loss_masks"],
        logprobs=merged["rollout_logprobs"],
    )


def peak(is_smoke: bool, form: str, index: int) -> float:
    """Return a candidate's peak increase of memory, as a multiple of its batch."""
    turns = make(is_smoke, form)
    candidate = candidates(turns, fields_of(turns))[index]
    fc.memory.set_default_pool(None)
    most, batch = peak_bytes(candidate)
    return most / sum(array.nbytes for array in arrays_of(batch))


# Implementations for comparison


def generator_output(turns: Turns, fields: Rollouts) -> Rollouts:
    """Name turns as SkyRL does."""
    ids = accumulate(turns.is_last_step[:-1], initial=0)
    return {
        "prompt_token_ids": turns.prompts,
        "response_ids": turns.responses,
        "rewards": fields["rewards"],
        "loss_masks": fields["loss_mask"],
        "rollout_logprobs": fields["logprobs"],
        "stop_reasons": None,
        "trajectory_ids": [str(trajectory) for trajectory in ids],
        "is_last_step": turns.is_last_step,
    }


def list_codes() -> dict[str, Merge]:
    """Return calls that merge lists: the port and, if installed, SkyRL's."""
    codes: dict[str, Merge] = {"port": skyrl.merge_stepwise_output}
    if module := real("skyrl.train.generators.utils"):
        codes["SkyRL"] = module.merge_stepwise_output
    return codes


# Branches


def of_branches(effort: Effort, case: str, scale: int) -> Figures:
    """Measure one trajectory of interleaved branches."""
    turns, rows = branched(case, scale, (5, 5, 20) if effort.is_smoke else (20, 200, 6_250))
    call = partial(fc.merge_turns, *turns[:2], is_last_step=turns.is_last_step, policy="branch")
    assert call().num_rows == rows
    times = effort.run({"fastcollate": call})
    return times | {"a token": times["fastcollate"] / turns.tokens}


def branched(case: str, scale: int, sizes: tuple[int, int, int]) -> tuple[Turns, int]:
    """Make a trajectory of 50 or 5 turns a branch; return it and the number of branches."""
    few, many, tokens = sizes[0], sizes[1], sizes[2] * scale
    if case.startswith("20 branches"):
        form = "shared" if case.endswith("lists") else "arrays"
        step = 20 * scale
        return branches(few, turns=50, shared=step, first=2 * step, step=step, form=form), few
    if case == "long prefix":
        return branches(many, turns=5, shared=tokens, first=tokens + 10, step=10), many
    if case == "last token":
        return branches(many, turns=5, shared=tokens, first=tokens - 9, step=10), many
    return nested(many, turns=5 * many, tokens=tokens, step=10), many


def cell(figures: Figures, name: str) -> str:
    """Format a time, or a multiple of the batch's memory."""
    if name.startswith("peak"):
        return f"{figures[name]:.2f}x"
    peer = next((peer for peer in ("SkyRL", "port") if peer in figures), None)
    ours = ["fastcollate", "fresh"] if peer else []
    return time_cell(figures, name, ours=ours, peer=peer or "")


if __name__ == "__main__":
    main(__doc__, measure, cell)
