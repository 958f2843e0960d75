"""Memory, threads and signals: nothing is changed, shared, leaked or hung."""

import gc
import os
import subprocess
import sys
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from small_input import FIELDS, ROWS, build_or_refuse, good_input, with_item
from strategies import FIELD_KINDS, TOKEN_KINDS, as_inputs, as_kind, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same
from frameworks.numpy_rows import build_batch_numpy


def large_input(rows=200, longest=2000):
    rng = np.random.default_rng(0)
    prompts, responses = (
        [rng.integers(0, 10**6, n).tolist() for n in rng.integers(0, longest, rows)]
        for _ in range(2)
    )
    field = [rng.standard_normal(len(row)).tolist() for row in responses]
    return {"prompts": prompts, "responses": responses, "pad_token_id": 3, "rewards": field}


# Inputs and outputs


@share(2)
@given(inputs=rollouts(max_rows=4).flatmap(as_inputs))
def test_inputs_are_never_changed(inputs, array_type):
    before = build_batch_numpy(**inputs, pad_token_id=0)
    batch = fc.build_batch(**inputs, pad_token_id=0, array_type=array_type)
    for value in [*batch.values(), batch.prompt_lens, batch.response_lens]:
        value[...] = 1
    assert_same(build_batch_numpy(**inputs, pad_token_id=0), before)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_nothing_shares_memory(library, rows, array_type):
    """Not even where the input could be handed on: one length, and the dtypes of the outputs."""
    if f"{library}.int64" not in TOKEN_KINDS:
        pytest.skip("torch is not installed")
    ids = as_kind([[1, 2, 3]] * rows, f"{library}.int64", ids=True)
    nothing = as_kind([[]] * rows, f"{library}.int64", ids=True)
    field = as_kind([[1.0, 0.0, 1.0]] * rows, f"{library}.float32", ids=False)
    batch = fc.build_batch(
        nothing,
        ids,
        pad_token_id=0,
        rewards=field,
        loss_mask=field,
        logprobs=field,
        array_type=array_type,
    )
    outputs = [np.asarray(value) for value in batch.values()]
    for output in outputs:
        assert output.flags.writeable
        assert not np.shares_memory(output, np.asarray(ids))
        assert not np.shares_memory(output, np.asarray(field))
    assert not any(np.shares_memory(one, other) for one, other in combinations(outputs, 2))


# Reference counts and memory


def everything_in(inputs):
    """List the containers, the rows and the items of the rows that hold objects."""
    found = []
    for rows in inputs.values():
        found.append(rows)
        for row in rows:
            found.append(row)
            if isinstance(row, (list, tuple)):
                found.extend(row)
    return found


def check_reference_counts(inputs, act):
    objects = everything_in(inputs)
    gc.freeze()  # what was there is no garbage
    before = [sys.getrefcount(item) for item in objects]
    act()
    gc.collect()
    after = [sys.getrefcount(item) for item in objects]
    assert after == before


@pytest.mark.parametrize("kind", FIELD_KINDS)
def test_reference_counts_of_each_kind(kind, array_type):
    # Lists get numbers of their own, not the small ones of which Python keeps one each.
    first = 10**6 if kind in ("list", "tuple") else 100
    ids = [[first, first + 1], [], [first + 2, first + 3, first + 4]]
    floats = [[float(token) for token in row] for row in ids]
    tokens = [as_kind(row, kind, ids=True) if kind in TOKEN_KINDS else row for row in ids]
    fields = {name: [as_kind(row, kind, ids=False) for row in floats] for name in FIELDS}
    inputs = {"prompts": tokens, "responses": tokens, **fields}
    check_reference_counts(
        inputs, lambda: fc.build_batch(**inputs, pad_token_id=0, array_type=array_type)
    )


def test_reference_counts_of_numbers_per_row(array_type):
    inputs = {"prompts": [[1]], "responses": [[2]], "rewards": [10.0**3]}
    check_reference_counts(
        inputs, lambda: fc.build_batch(**inputs, pad_token_id=0, array_type=array_type)
    )


class Raises:
    def __float__(self):
        raise ZeroDivisionError

    __index__ = __float__


BAD_ITEMS = ["word", 2.0**80, 10**400, [7.5], 1j, np.complex64(1), Raises(), object()]
BAD_ROWS = [[], [0.5] * 4, "words", np.zeros((2, 2)), np.array([None, 1]), np.zeros(5), object()]


def numbers_of_their_own():
    """Make good input whose numbers are held by its lists alone."""
    large = {"prompts": 10**6, "responses": 10**6}
    return {
        name: [[large.get(name, 1e6) + item for item in row] for row in good_input()[name]]
        for name in ROWS
    }


@pytest.mark.parametrize("bad", BAD_ITEMS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ROWS)
def test_reference_counts_on_bad_items(name, bad):
    inputs = numbers_of_their_own()
    inputs[name][1][-1] = bad
    check_reference_counts(inputs, lambda: build_or_refuse("", **inputs))


@pytest.mark.parametrize("bad", BAD_ROWS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ROWS)
def test_reference_counts_on_bad_rows(name, bad):
    inputs = numbers_of_their_own()
    inputs[name][1] = bad
    check_reference_counts(inputs, lambda: build_or_refuse("", **inputs))


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_memory(act, *, calls, allowed):
    for _ in range(calls // 10):
        act()
    before = resident_bytes()
    for _ in range(calls):
        act()
    assert resident_bytes() - before < allowed


NEEDS_STATM = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")


@NEEDS_STATM
@pytest.mark.parametrize("last_reward", [1.0, "bad"])
def test_large_batches_leave_no_memory_behind(last_reward, array_type):
    inputs = {**dict.fromkeys(FIELDS), **large_input(rows=50)}
    inputs["responses"][-1] = [1]
    inputs["rewards"][-1] = [last_reward]
    act = partial(build_or_refuse, r"rewards\[49\]\[0\]", **inputs, array_type=array_type)
    # Each call takes about 4 MB.
    check_memory(act, calls=100, allowed=40e6)


@pytest.mark.slow
@NEEDS_STATM
@pytest.mark.parametrize("item", [1, "bad", Raises(), 2**80])
def test_small_batches_leave_no_memory_behind(item):
    act = partial(build_or_refuse, r"prompts\[1\]\[0\]", **with_item("prompts", item))
    check_memory(act, calls=20_000, allowed=4e6)


# Imports


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("fastcollate.testing", "hypothesis"),
        ("fastcollate.testing.reference", "torch"),
        ("fastcollate.testing.reference", "hypothesis"),
        ("strategies", "torch"),
    ],
)
def test_imports_are_lean(module, absent):
    code = f"import sys, {module}; assert {absent!r} not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_numpy_batches_need_no_torch():
    code = """if True:
        import sys
        import numpy as np
        import fastcollate as fc
        batch = fc.build_batch([[1], np.ones(2, int)], [[2], (3,)], pad_token_id=0, rewards=[1, 2],
                               array_type="numpy")
        repr(batch), batch.metrics, batch.prompt_lens
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)
