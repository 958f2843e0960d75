"""Target: `build_batch`, and all ways from a batch."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import fastcollate as fc
from calls import TOKENS, Call, draw_call, draw_layout, give_columns, packed_places
from choices import Choices
from fastcollate.common.arrays import on_host
from fastcollate.testing.reference import (
    assert_same,
    gather_loops,
)
from fastcollate.testing.reference.way_back import broadcast_loops
from spoiling import BUILDING, MERGING, Way, spoil
from verdicts import Verdict, outcome


def build(choices: Choices) -> None:
    """Build a batch of rows."""
    _build(choices, draw_call(choices), BUILDING)


def build_merged(choices: Choices) -> None:
    """Build a batch of turns."""
    _build(choices, draw_call(choices, merges=True), [*BUILDING, *MERGING])


def _build(choices: Choices, call: Call, ways: Sequence[Way]) -> None:
    give_columns(choices, call)
    pool = choices.pick([fc.memory.BufferPool(1 << 20), None])
    call.arguments["pool"] = pool
    verdict = spoil(choices, call, ways)
    expected = None
    if verdict == Verdict.RIGHT:
        try:
            expected = call.expected()
        except ValueError:  # rewards that have no place
            verdict = Verdict.REFUSED
    batch = outcome(fc.build_batch, verdict, call)
    if batch is None or expected is None:
        return
    assert_same(batch, expected)
    choices.pick([check_again, check_sequences, check_layout, check_layout, check_pickle])(
        choices, batch, call, expected
    )
    del batch
    if pool is not None:
        assert pool.live_bytes == 0, f"{pool.live_bytes} bytes are still in use"


def check_again(_: Choices, batch: fc.Batch, call: Call, expected: Any) -> None:
    """Build it twice more, of inputs that are as before: then in memory that was used."""
    for _ in range(2):
        assert_same(fc.build_batch(**call.arguments), expected)


def check_sequences(_: Choices, __: fc.Batch, call: Call, expected: Any) -> None:
    """Build it of whole sequences with the lengths of their prompts."""
    others = {name: value for name, value in call.arguments.items() if name not in TOKENS}
    pairs = zip(call.plain["prompts"], call.plain["responses"], strict=True)
    sequences = [[*prompt, *response] for prompt, response in pairs]
    found = fc.build_batch(sequences=sequences, prompt_lens=call.prompt_lens, **others)
    assert_same(found, expected)


def check_pickle(_: Choices, batch: fc.Batch, __: Call, expected: Any) -> None:
    """Send a batch to another process and back."""
    assert_same(pickle.loads(pickle.dumps(batch)), expected)


def check_layout(choices: Choices, batch: fc.Batch, call: Call, _: Any) -> None:
    """Lay a batch out in another way, and go the way back from there."""
    layout = draw_layout(choices, call)
    if batch.plan.layout == "packed" and batch.bin_plan.is_split:
        with suppress(ValueError):
            batch.to_layout(layout.given)
            raise AssertionError("parts of rows were laid out again")
        return
    other = batch.to_layout(layout.given)
    assert_same(other, call.expected(layout.plain))
    places = packed_places(call, layout.plain) if other.plan.layout == "packed" else other
    check_way_back(choices, other, places, call)


def check_way_back(choices: Choices, batch: fc.Batch, places: Any, call: Call) -> None:
    """Gather from a batch and broadcast into it; `places` are its own, for the references."""
    of: Any = choices.pick(["response", "sequence"])
    shift: Any = choices.pick(["none", "next_token"]) if of == "sequence" else "none"
    plan = batch.plan
    width = plan.response_width if of == "response" else plan.width
    rows = len(batch["input_ids"])  # of the packed layout, bins
    leading = (width,) if plan.layout == "jagged" else (rows, width)
    x = choices.rng.normal(size=(*leading, *choices.pick([(), (2,)])))
    how = {"align": of, "shift": shift, "missing": 7}
    if call.merge is None or choices.one_in(2):
        values, offsets = gather_loops(places, x, **how)
        gathered = batch.gather(x, **how)
    else:
        values, offsets = gather_loops(places, x, call.merged, per="turn", **how)
        gathered = batch.gather(x, per="turn", **how)
    assert_same({"x": gathered.values}, {"x": values})
    assert_same({"x": gathered.offsets}, {"x": offsets})
    per_row = choices.rng.normal(size=plan.num_rows)
    on: Any = "response" if call.merge else choices.pick([None, "response"])
    found = batch.broadcast(per_row, on=on) if on else batch.broadcast(per_row)
    mask = None if on else on_host(batch.loss_mask)
    assert_same({"x": found}, {"x": broadcast_loops(places, per_row, mask)})
    for other in (x[:-1], x[None], per_row):
        with suppress(ValueError):  # or it has the shape of responses by chance
            batch.gather(other, align="response")
    with suppress(ValueError):
        batch.broadcast(per_row[:-1])
        raise AssertionError("broadcast took too few rows")
