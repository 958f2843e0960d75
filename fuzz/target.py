"""What is done with a fuzzer's input, and what must come of it."""

from __future__ import annotations

import ctypes
import gc
import pickle
import sys
from contextlib import suppress
from typing import Any

import numpy as np

import fastcollate as fc
from calls import Call, draw_call, draw_layout, packed_places
from choices import Choices
from fastcollate.testing.reference import assert_same, broadcast_loops, gather_loops
from spoiling import HostileError, HostileInterrupt, Verdict, spoil

ROUNDS = 10
"""How often an input is repeated to see whether each time some memory is lost."""


gc.freeze()  # what is imported need not be looked at each time
fc.set_default_pool(None)


def once(data: bytes) -> None:
    """Do what an input says."""
    choices = Choices(data)
    choices.pick([*[build] * 14, restore_plan, restore_ragged])(choices)


def check_memory(data: bytes) -> None:
    """Repeat an input: the memory in use may not grow each time."""
    for _ in range(60):  # caches grow too, but ever slower
        before = used()
        for _ in range(ROUNDS):
            once(data)
        objects, size = (now - then for now, then in zip(used(), before, strict=True))
        if objects < ROUNDS and size < 8 * ROUNDS:
            return
    raise AssertionError(f"{ROUNDS} rounds left {objects} objects and {size} bytes behind")


def used() -> tuple[int, int]:
    """Count Python's blocks of memory, and the bytes that C and Rust have allocated."""
    gc.collect()
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return sys.getallocatedblocks(), 0
    info = ctypes.CDLL(None).mallinfo2
    info.restype = _MallInfo
    now = info()
    return sys.getallocatedblocks(), now.uordblks + now.hblkhd


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


# Batches


def build(choices: Choices) -> None:
    """Build a batch, twice, and go all ways from there."""
    pool = choices.pick([fc.BufferPool(1 << 20), None])
    call = draw_call(choices)
    call.arguments["pool"] = pool
    verdict = spoil(choices, call)
    try:
        batch = fc.build_batch(**call.arguments)
    except Exception as error:
        judge(error, verdict, call)
        return
    except HostileInterrupt:
        assert verdict == Verdict.EITHER
        return
    assert verdict != Verdict.REFUSED, "this is wrong, but was built"
    if verdict == Verdict.RIGHT:
        check(choices, batch, call)
    elif pool is not None:
        del batch
    if pool is not None and verdict == Verdict.RIGHT:
        del batch
        assert pool.live_bytes == 0, f"{pool.live_bytes} bytes are still in use"


def judge(error: Exception, verdict: Verdict, call: Call) -> None:
    """Say whether an exception is one that may be, and says where it comes from."""
    if verdict == Verdict.RIGHT:
        raise AssertionError("this is right, but was refused") from error
    if verdict == Verdict.EITHER and isinstance(error, (HostileError, MemoryError)):
        return
    if call.pretends and isinstance(error, OverflowError):
        return  # what it says of itself has no place to be named
    if type(error) not in (TypeError, ValueError):
        raise error
    names = [*call.arguments, "dtype", *call.arguments.get("fields", ())]
    if verdict == Verdict.REFUSED and not any(str(name) in str(error) for name in names):
        raise AssertionError("the message names no argument") from error


def check(choices: Choices, batch: fc.Batch, call: Call) -> None:
    """Compare a batch, a second one in its memory and others made of it with the references."""
    expected = call.expected()
    assert_same(batch, expected)
    check_layout(choices, batch, call)
    assert_same(pickle.loads(pickle.dumps(batch)), expected)
    # In the memory of the first, which is not cleared; the inputs have to be as they were.
    batch = fc.build_batch(**call.arguments, out=batch)
    assert_same(batch, expected)


def check_layout(choices: Choices, batch: fc.Batch, call: Call) -> None:
    """Lay a batch out in another way, and go the way back from there."""
    layout = draw_layout(choices, call)
    if batch.plan.layout == "packed" and batch.bin_plan.is_split:
        with suppress(ValueError):
            batch.to_layout(**layout.given)
            raise AssertionError("parts of rows were laid out again")
        return
    other = batch.to_layout(**layout.given)
    assert_same(other, call.expected(layout.plain))
    places = packed_places(call, layout.plain) if other.plan.layout == "packed" else other
    check_way_back(choices, other, places)


def check_way_back(choices: Choices, batch: fc.Batch, places: Any) -> None:
    """Gather from a batch and broadcast into it; `places` are its own, for the references."""
    of: Any = choices.pick(["response", "sequence"])
    shift: Any = choices.pick(["none", "next_token"]) if of == "sequence" else "none"
    plan = batch.plan
    width = plan.response_width if of == "response" else plan.width
    rows = len(batch["input_ids"])  # of the packed layout, bins
    leading = (width,) if plan.layout == "jagged" else (rows, width)
    x = choices.rng.normal(size=(*leading, *choices.pick([(), (2,)])))
    values, offsets = gather_loops(places, x, of=of, shift=shift, missing=7)
    gathered = batch.gather(x, of=of, shift=shift, missing=7)
    assert_same({"x": gathered.values}, {"x": values})
    assert_same({"x": gathered.offsets}, {"x": offsets})
    per_row = choices.rng.normal(size=plan.num_rows)
    assert_same({"x": batch.broadcast(per_row)}, {"x": broadcast_loops(places, per_row)})
    for wrong in (x[:-1], x[None], per_row):
        with suppress(ValueError):
            batch.gather(wrong)
    with suppress(ValueError):
        batch.broadcast(per_row[:-1])
        raise AssertionError("broadcast took too few rows")


# What is unpickled


def restore_plan(choices: Choices) -> None:
    """Change tables of a plan: it is refused, or can be worked with."""
    call = draw_call(choices)
    plan = fc.build_batch(**{**call.arguments, "fields": None}).plan
    tables = plan.to_dict()
    for _ in range(choices.below(4)):
        name = choices.pick(list(tables))
        table = tables[name]
        if table.size and choices.one_in(2):
            flat = table.astype(np.int64).reshape(-1)
            number = choices.pick([0, 1, 2, 5, -1, 2**31, 2**62, 2**63 - 1])
            flat[choices.below(flat.size)] = number
            tables[name] = flat.reshape(table.shape)
        else:
            tables[name] = choices.pick([table[1:], table[:-1], table.astype("int8"), table.T])
    try:
        restored = fc.Plan.from_dict(tables)
    except (TypeError, ValueError):
        return
    assert fc.Plan.from_dict(restored.to_dict()) == restored
    assert restored.num_rows == len(restored.prompt_lens) == len(restored.response_lens)
    repr(restored), restored.row_starts(), restored.num_positions, restored.longest_row
    for of_sequence in (False, True):
        width = restored.width if of_sequence else restored.response_width
        lens = (restored.response_lens, restored.to_dict()["turn_response_lens"])
        tokens = [sum(of_all.tolist()) for of_all in lens]
        if all(n < 1 << 20 or n > 1 << 60 for n in tokens):  # between, it only takes long
            with suppress(ValueError):
                restored.gather_places(
                    of_sequence=of_sequence,
                    next_token=of_sequence,
                    width=width,
                    per_turn=choices.one_in(2),
                    gaps=choices.one_in(2),
                    padding=choices.one_in(2),
                    may_miss=True,
                )


def restore_ragged(choices: Choices) -> None:
    """Unpickle a Ragged of whatever: it is refused, or can be worked with."""
    values: Any = np.arange(choices.below(5)).astype(choices.pick(["i8", "f4", "?", "u2", ">i4"]))
    offsets: Any = [choices.pick([0, 1, 2, 3, 4, -1, 2**62]) for _ in range(choices.below(4))]
    if choices.one_in(2):
        offsets = sorted(offsets)
    rebuild, _ = fc.Ragged(np.zeros(1), [0, 1]).__reduce_ex__(2)
    offsets = np.array(offsets, np.int64).astype(choices.pick(["i8", "u8", "i4", "f8"]))
    try:
        column = rebuild(values, offsets)
    except (TypeError, ValueError):
        return
    assert sum(map(len, column)) == len(column.values)
    assert pickle.loads(pickle.dumps(column, 5)) == column
    with suppress(TypeError, ValueError):
        fc.build_batch(column, column, pad_token_id=0, array_type="numpy")
