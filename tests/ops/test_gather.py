"""The way back: values of response tokens from outputs, and numbers per row onto outputs."""

import numpy as np
import pytest
from any_layout import layouts
from conftest import NEEDS_TORCH, share
from gathering import DTYPES, WAYS, check, like, shape_of, values_of
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from raising import raises
from strategies import rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops, gather_loops
from fastcollate.testing.reference.way_back import broadcast_loops

LAYOUTS = ["left", "two_segment", "right", "jagged"]


@st.composite
def batches(draw, layout, array_type):
    """Draw a batch and the result of the loops for the same rows."""
    data = draw(rollouts(max_long_len=40))
    data = data._replace(rewards=None, loss_mask=None, logprobs=None, advantages=None)
    options = {"pad_token_id": 0, "layout": draw(layouts(layout, data))}
    reference = build_batch_loops(**data._asdict(), **options)
    return fc.build_batch(**data._asdict(), **options, array_type=array_type), reference


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(drawn=st.data())
def test_gather_equals_the_loops(layout, drawn, array_type):
    batch, reference = drawn.draw(batches(layout, array_type))
    align, shift = drawn.draw(st.sampled_from(WAYS))
    options = {"align": align, "shift": shift, "missing": drawn.draw(st.sampled_from([None, 0, 1]))}
    trailing = drawn.draw(st.sampled_from([(), (), (3,), (2, 2), (0,)]))
    x = values_of(drawn.draw, shape_of(reference, align), trailing)
    given_x = like(x, array_type)
    try:
        expected = gather_loops(reference, x, **options)
    except ValueError:
        # Rows with a response and no prompt.
        lens = zip(batch.prompt_lens.tolist(), batch.response_lens.tolist(), strict=True)
        row = [prompt == 0 < response for prompt, response in lens].index(True)
        with pytest.raises(ValueError, match=rf"\b{row}\b"):
            batch.gather(given_x, **options)
        return
    check(batch.gather(given_x, **options), *expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(drawn=st.data())
def test_broadcast_equals_the_loops(layout, drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=40))
    options = {"pad_token_id": 0, "layout": drawn.draw(layouts(layout, data))}
    batch = fc.build_batch(**data._asdict(), **options, array_type=array_type)
    ones = data.loss_mask or [[1] * len(row) for row in data.responses]
    reference = build_batch_loops(**data._replace(loss_mask=ones)._asdict(), **options)
    rng = np.random.default_rng(drawn.draw(st.integers(0, 2**32 - 1)))
    per_row = rng.standard_normal(len(batch.prompt_lens)) * 100
    per_row = per_row.astype(drawn.draw(st.sampled_from(DTYPES)))
    found = batch.broadcast(like(per_row, array_type))
    expected = broadcast_loops(reference, per_row, reference["loss_mask"])
    assert_same({"x": found}, {"x": expected})
    found = batch.broadcast(like(per_row, array_type), on="response")
    assert_same({"x": found}, {"x": broadcast_loops(reference, per_row)})


PROMPTS, RESPONSES = [[1, 2], [3], [4]], [[5], [6, 7], []]


def small(layout="left", array_type="numpy", **more):
    return make_batch(PROMPTS, RESPONSES, layout=layout, array_type=array_type, **more)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_about_the_next_token_may_lack_the_last(layout, array_type):
    """Log-probabilities are often taken from ``logits[:, :-1]``; what is left out is not used."""
    batch = small(layout, array_type)
    found = batch.gather(batch.input_ids[..., :-1], align="sequence", shift="next_token")
    check(found, np.array([2, 3, 6]), np.array([0, 1, 3, 3]))
    with pytest.raises(ValueError, match="shape"):
        batch.gather(batch.input_ids[..., :-1], align="sequence", shift="none")
    with pytest.raises(ValueError, match="shape"):
        batch.gather(batch.input_ids[..., :-2], align="sequence", shift="next_token")


@pytest.mark.parametrize("layout", [*LAYOUTS, fc.Packed(8), fc.Packed(8, shift="next_token")])
@pytest.mark.parametrize("prompt_lens", [(0, 0), (1, 1), (2, 2)])
def test_a_shape_of_two_readings_needs_of(layout, prompt_lens, array_type):
    """Log-probabilities, one shorter than rows of one prompt token, would be read as responses."""
    responses = [[5, 6, 7], [8]] if layout != "jagged" else [[5, 6, 7]]
    prompts = [list(range(n)) for n in prompt_lens][: len(responses)]
    masks = [[0] + [1] * (len(r) - 1) for r in responses]
    batch = make_batch(prompts, responses, loss_mask=masks, layout=layout, array_type=array_type)
    x = batch.loss_mask
    is_packed = isinstance(layout, fc.Packed)
    if prompt_lens[0] == 2 and not is_packed:
        assert batch.gather(x) == batch.gather(x, align="response")
        return
    message = (
        r"align is None, but the shape of x.*pass align='response'.*align='sequence' with shift="
    )
    with pytest.raises(ValueError, match=message):
        batch.gather(x)
    if prompt_lens[0] == 1 and not is_packed:
        assert batch.gather(x, shift="none") == batch.gather(x, align="response")
    else:
        with pytest.raises(ValueError, match=message):
            batch.gather(x, shift="none")
    trailing = like(np.ones((*x.shape, 2)), array_type)
    with pytest.raises(ValueError, match=message):
        batch.gather(trailing)
    assert batch.gather(trailing, align="response", missing=0).values.shape == (
        batch.plan.response_lens.sum(),
        2,
    )


def test_a_shape_of_sequences_alone_is_refused_as_that_of_responses(array_type):
    batch = small("left", array_type)
    with pytest.raises(ValueError, match=r"shape \(3, 3\), but align is 'response'"):
        batch.gather(batch.input_ids)
    with raises("shift is 'next_token', but align is None; pass align='sequence'"):
        batch.gather(batch.input_ids, shift="next_token")
    with pytest.raises(ValueError, match=r"one position shorter.*pass shift='next_token'"):
        batch.gather(batch.input_ids[:, 1:], align="sequence", shift="none")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["Fortran", "reversed", "strided", "read-only"])
def test_values_of_any_memory_layout(layout, kind):
    batch = small(layout)
    x = np.arange(batch.input_ids.size, dtype=np.float64).reshape(batch.input_ids.shape)
    expected = gather_loops(batch, x, align="sequence")
    if kind == "Fortran":
        x = np.asfortranarray(x)
    elif kind == "reversed":
        x = x[..., ::-1].copy()[..., ::-1]
    elif kind == "strided":
        x = np.repeat(x, 2, axis=-1)[..., ::2]
    else:
        x.setflags(write=False)
    check(batch.gather(x, align="sequence", shift="none"), *expected)


def test_gather_copies(array_type):
    batch = small("jagged", array_type, logprobs=[[1], [2, 3], []])
    gathered = batch.gather(batch.logprobs)
    batch.logprobs[...] = 9
    assert gathered.values.tolist() == [1, 2, 3]


@NEEDS_TORCH
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("align", "shift"), WAYS)
@pytest.mark.parametrize("trailing", [(), (2,)])
def test_gradients_of_gather(layout, align, shift, trailing):
    import torch

    batch = small(layout, "torch")
    reference = build_batch_loops(PROMPTS, RESPONSES, pad_token_id=0, layout=layout)
    shape = (*shape_of(reference, align), *trailing)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: batch.gather(x, align=align, shift=shift).values, x)


@NEEDS_TORCH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_values_have_no_gradient(layout):
    import torch

    batch = fc.build_batch([[1], []], [[2], [3, 4]], pad_token_id=0, layout=layout)
    x = torch.ones(batch.input_ids.shape, requires_grad=True)
    values = batch.gather(x, align="sequence", shift="next_token", missing=7.0).values
    assert values.tolist() == [1, 7, 1]
    values.sum().backward()
    assert int(x.grad.sum()) == 2


@NEEDS_TORCH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_broadcast(layout):
    import torch

    batch = small(layout, "torch")
    per_row = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(batch.broadcast, per_row)
    batch.broadcast(per_row).sum().backward()
    assert per_row.grad.tolist() == [1, 2, 0]


@NEEDS_TORCH
def test_dtypes_stay():
    import torch

    batch = small("left", "torch")
    x = torch.ones(3, 2, dtype=torch.bfloat16)
    assert batch.gather(x, align="response").values.dtype is torch.bfloat16
    assert batch.broadcast(torch.ones(3, dtype=torch.bfloat16)).dtype is torch.bfloat16
    assert not batch.gather(x, align="response").values.requires_grad


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("align", ["response", "sequence"])
def test_values_of_a_wrong_shape(layout, align, array_type):
    batch = small(layout, array_type)
    shape = shape_of(batch, align)
    wrong = [(shape[0] + 1, *shape[1:]), (0, *shape[1:]), ()]
    if layout != "jagged":
        wrong += [(shape[0], shape[1] + 1), (shape[0], shape[1] - 1), (shape[0],)]
    for found in wrong:
        x = like(np.zeros(found), array_type)
        with pytest.raises(ValueError, match="shape"):
            batch.gather(x, align=align, shift="none")
    batch.gather(like(np.zeros(shape), array_type), align=align, shift="none")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_per_row_of_a_wrong_shape(layout, array_type):
    batch = small(layout, array_type)
    for shape in [(), (2,), (4,), (3, 1), (1, 3)]:
        with pytest.raises(ValueError, match="shape"):
            batch.broadcast(like(np.zeros(shape), array_type))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align": "prompt"}, "align is 'prompt'"),
        ({"align": None}, "align is None"),
        ({"shift": "last_token"}, "shift is 'last_token'"),
        ({"shift": 1}, "shift is 1"),
        ({"align": "response", "shift": "next_token"}, "align='sequence'|missing"),
        ({"align": "sequence", "shift": "next_token", "missing": "x"}, "missing"),
    ],
)
def test_ways_that_cannot_be(options, message, array_type):
    batch = small("left", array_type)
    shape = shape_of(batch, options["align"] if options.get("align") == "sequence" else "response")
    with pytest.raises((TypeError, ValueError), match=message):
        batch.gather(like(np.zeros(shape), array_type), **options)


UNFIT = {
    "int64": [0.5, float("nan"), float("inf"), 2.0**63, 2**63, 10**400],
    "int32": [2**31, -1.5],
    "uint8": [-1, 256, 255.5],
    "bool": [2, -1, 0.5],
    "float16": [70_000, -65_520.0, 10**400],
    "float32": [1e39, 10**400],
    "float64": [10**400],
    "bfloat16": [3.4e38],
}
FIT = {
    "int64": [-1, 1.0, -(2**63), np.int64(3), True],
    "int32": [2**31 - 1],
    "uint8": [255, 255.0, -0.0],
    "bool": [True, 1, 0.0],
    "float16": [65_504, 0.1, float("-inf"), np.float32(0.5)],
    "float32": [1e38, float("nan"), 1e-60],
    "float64": [1e300, 0.1],
    "bfloat16": [1e38, -1],
}


@pytest.mark.parametrize("dtype", list(UNFIT))
def test_missing_is_a_number_that_x_can_hold(dtype, array_type):
    batch = make_batch([[], [1, 2]], [[3, 4], [5]], layout="right", array_type=array_type)
    x = like(np.zeros(shape_of(batch, "sequence")), array_type)
    if array_type == "torch":
        import torch

        x = x.to(getattr(torch, dtype))
    elif dtype == "bfloat16":
        return
    else:
        x = x.astype(dtype)
    options = {"align": "sequence", "shift": "next_token"}
    for missing in UNFIT[dtype]:
        with pytest.raises(ValueError, match=rf"missing is .*{dtype}, which cannot hold it"):
            batch.gather(x, **options, missing=missing)
    for missing in FIT[dtype]:
        values = batch.gather(x, **options, missing=missing).values
        assert values.dtype == x.dtype
        found, expected = values[0].item(), x[:1, 0] + 0
        expected[0] = missing.item() if isinstance(missing, np.generic) else missing
        assert found == expected[0].item() or missing != missing


@pytest.mark.parametrize("x", [None, 3, "x", object()])
def test_values_that_are_no_array(x):
    with pytest.raises(TypeError):
        small().gather(x)
    with pytest.raises(TypeError):
        small().broadcast(x)


def test_of_that_is_no_text():
    batch = make_batch([[1]], [[2]])
    with pytest.raises(TypeError, match=r"align is .*; pass 'response', 'sequence'"):
        batch.gather(batch.response_mask, align=np.array(["sequence"] * 2))
