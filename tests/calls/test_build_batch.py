"""build_batch has the results of both references: values, dtypes, shapes and contiguity."""

import warnings
from array import array

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from strategies import (
    TOKEN_KINDS,
    Rollouts,
    as_inputs,
    as_kind,
    rollouts,
)

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops
from frameworks.numpy_rows import build_batch_numpy

LARGE_KINDS = ["list", "numpy.int32", "torch.int64"]
PAD_IDS = st.sampled_from([0, 7, -1, 2**63 - 1, -(2**63)])


def reference(data: Rollouts, pad_token_id=0):
    return build_batch_loops(**data._asdict(), pad_token_id=pad_token_id)


@share(2)
@given(drawn=st.data(), pad_token_id=PAD_IDS)
def test_every_kind_of_input_gives_what_lists_give(drawn, pad_token_id, array_type):
    data = drawn.draw(rollouts())
    inputs = drawn.draw(as_inputs(data))
    expected = reference(data, pad_token_id)
    assert_same(build_batch_loops(**inputs, pad_token_id=pad_token_id), expected)
    assert_same(build_batch_numpy(**inputs, pad_token_id=pad_token_id), expected)
    assert_same(
        fc.build_batch(**inputs, pad_token_id=pad_token_id, array_type=array_type), expected
    )


def test_the_left_layout_written_out():
    batch = fc.build_batch(
        [[1, 2], [3]],
        [[4], [5, 6, 7]],
        pad_token_id=9,
        rewards=[[0.5], [1, 2, 3]],
        loss_mask=[[1], [0, 1, 1]],
        logprobs=[[-0.25], [-1, -2, -3]],
        array_type="numpy",
    )
    assert {key: value.tolist() for key, value in batch.items()} == {
        "input_ids": [[9, 1, 2, 4], [3, 5, 6, 7]],
        "attention_mask": [[0, 1, 1, 1], [1, 1, 1, 1]],
        "response_mask": [[0, 0, 1], [1, 1, 1]],
        "loss_mask": [[0, 0, 1], [0, 1, 1]],
        "rewards": [[0, 0, 0.5], [1, 2, 3]],
        "logprobs": [[0, 0, -0.25], [-1, -2, -3]],
    }
    assert batch.prompt_lens.tolist() == [2, 1]
    assert batch.response_lens.tolist() == [1, 3]


def test_torch_is_the_default():
    torch = pytest.importorskip("torch")
    batch = fc.build_batch([[1]], [[2]], pad_token_id=0)
    assert all(type(value) is torch.Tensor for value in batch.values())
    assert type(batch.prompt_lens) is torch.Tensor


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Float:
    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value


class IntSubclass(int):
    pass


class FloatSubclass(float):
    pass


def test_items_that_are_numbers_by_protocol():
    ids = [IntSubclass(1), IntSubclass(2), np.int32(3), np.uint64(4), Index(5)]
    numbers = [FloatSubclass(0.5), Float(1.5), Index(2), np.float16(3.5), np.bool_(True)]
    batch = make_batch([ids], [ids], rewards=[numbers])
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5] * 2]
    assert batch.rewards.tolist() == [[0.5, 1.5, 2.0, 3.5, 1.0]]


# Halfway between the float32 2**60 and 2**60 + 2**37 but for its last bit, which float64 drops.
ALMOST_HALFWAY = 2**60 + 2**36 + 1


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([ALMOST_HALFWAY], 2.0**60),
        (np.array([ALMOST_HALFWAY]), 2.0**60 + 2**37),
        (np.array([ALMOST_HALFWAY], np.uint64), 2.0**60 + 2**37),
        (np.array([ALMOST_HALFWAY], ">i8"), 2.0**60 + 2**37),
        (array("q", [ALMOST_HALFWAY]), 2.0**60 + 2**37),
        ([2**70], 2.0**70),
        ([1 + 2**-24], 1.0),
        ([1 + 3 * 2**-24], 1 + 2**-22),
        (np.array([1 + 2**-24]), 1.0),
        ([1e300], np.inf),
        (np.array([-1e300]), -np.inf),
        ([10**300], np.inf),
        ([1e-300], 0.0),
        ([-1e-300], -0.0),
        ([1e-45], 2.0**-149),
        (np.array([6e-8], np.float16), 2.0**-24),
        (np.array([65504], np.float16), 65504.0),
    ],
)
def test_numbers_round_as_numpy_rounds_them(row, expected, array_type):
    batch = make_batch([[]], [[1]], rewards=[row], array_type=array_type)
    assert_same({"rewards": batch.rewards}, {"rewards": np.array([[expected]], np.float32)})


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long double is no wider here")
def test_longdouble_rounds_once():
    row = np.longdouble(1) + np.longdouble(2) ** -24 + np.longdouble(2) ** -60
    batch = make_batch([[]], [[1]], rewards=[row[None]])
    assert batch.rewards.tolist() == [[1 + 2**-23]]


def test_every_float16_and_bfloat16():
    torch = pytest.importorskip("torch")
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        row = bits.view(dtype)
        expected = row.float().numpy()[None]
        rows = [row, row.numpy()] if dtype is torch.float16 else [row]
        for values in rows:
            batch = make_batch([[]], [bits], rewards=[values])
            assert_same({"rewards": batch.rewards}, {"rewards": expected})


def test_torch_rows_of_unusual_kinds():
    torch = pytest.importorskip("torch")
    negated = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert negated.is_neg()
    rows = [
        negated,
        torch._neg_view(torch.tensor([2.0, 4.0])),
        torch.nn.Parameter(torch.tensor([0.5, 1.5])),
        torch.tensor(2.5).expand(2),
        torch.tensor([0.25, 1], requires_grad=True) * 2,
    ]
    ids = [[1, 2]] * len(rows)
    with torch.inference_mode():
        rows.append(torch.tensor([7.0, 8.0]))
    batch = fc.build_batch([*ids, []], [*ids, [1, 2]], pad_token_id=0, logprobs=rows)
    assert batch.logprobs.tolist() == [[-2, -4], [-2, -4], [0.5, 1.5], [2.5, 2.5], [0.5, 2], [7, 8]]
    assert not batch.logprobs.requires_grad
    with pytest.raises(ValueError, match=r"^logprobs\[0\] could not be read: .* ZeroTensor"):
        make_batch([[]], [[1, 2]], logprobs=[torch._efficientzerotensor(2)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in TOKEN_KINDS if k in LARGE_KINDS])
def test_a_large_batch(kind, array_type):
    """Large enough for threads, and for memory that was used before and has to be cleared."""
    for seed, pad_token_id in enumerate([7, 0]):
        rng = np.random.default_rng(seed)
        lens = rng.integers(0, 3000, (2, 300))
        ids = [[rng.integers(0, 10**6, n).tolist() for n in row] for row in lens]
        field = [rng.standard_normal(n).tolist() for n in lens[1]]
        masks = [rng.random(n).tolist() for n in lens[1]]
        prompts, responses = [[as_kind(row, kind, ids=True) for row in rows] for rows in ids]
        batch = fc.build_batch(
            prompts,
            responses,
            pad_token_id=pad_token_id,
            logprobs=field,
            loss_mask=masks,
            array_type=array_type,
        )
        expected = build_batch_numpy(
            *ids, pad_token_id=pad_token_id, logprobs=field, loss_mask=masks
        )
        assert_same(batch, expected)
        del batch


def test_many_rows(array_type):
    rows = [[n] * (n % 4 + 1) for n in range(10_000)]
    batch = make_batch(rows, rows, rewards=range(10_000), array_type=array_type)
    assert_same(batch, build_batch_numpy(rows, rows, pad_token_id=0, rewards=range(10_000)))


@pytest.mark.parametrize("layout", ["left", "right", fc.Packed(8), "jagged", fc.Jagged()])
@pytest.mark.parametrize("pad_token_id", [-100, -1, 0])
def test_a_negative_padding_id_is_a_warning(layout, pad_token_id):
    """No embedding has it. Jagged batches have no padding."""
    warned = []
    for build in (
        lambda **options: fc.build_batch([[1]], [[2]], **options),
        fc.BatchBuilder,
        lambda **options: fc.Collator(kernel="flash", **options),
    ):
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            build(pad_token_id=pad_token_id, layout=layout)
        warned.append([str(one.message).partition(",")[0] for one in record])
    is_padded = layout != "jagged" and not isinstance(layout, fc.Jagged)
    expected = [f"pad_token_id is {pad_token_id}"] if is_padded and pad_token_id < 0 else []
    assert warned == [expected] * 3


def test_a_negative_padding_id_beside_a_wrong_layout():
    with pytest.raises(TypeError, match="layout is float64 ndarray"):
        fc.build_batch([[1]], [[2]], pad_token_id=-1, layout=np.zeros(3))
