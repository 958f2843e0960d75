"""Rows of one length that look padded make a warning, as all of them counts as tokens."""

import contextlib
import pickle
import warnings
from functools import partial

import numpy as np
import pytest
from conftest import NEEDS_TORCH

import fastcollate as fc
from fastcollate.rows import padded_blocks

OPTIONS = {"array_type": "numpy"}
PAD = 7


def padded(lens, width, side, pad=PAD, end=None, vocabulary=(100, 200)):
    """Pad rows of these lengths by hand; each may end with a token of its own."""
    rng = np.random.default_rng(0)
    block = np.full((len(lens), width), pad)
    for row, count in zip(block, lens, strict=True):
        ids = rng.integers(*vocabulary, count)
        if end is not None and count < width:
            ids[-1] = end
        row[slice(0, count) if side == "right" else slice(width - count, width)] = ids
    return block


def said(call):
    """Call, and return what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught]


def kinds_of(block):
    yield block
    yield block.tolist()
    yield list(map(tuple, block.tolist()))
    yield list(block)
    yield block.astype(np.int32)
    yield fc.ragged(block.tolist())
    with contextlib.suppress(ImportError):
        import pyarrow as pa

        yield pa.chunked_array([block[:1].tolist(), block[1:].tolist()])
    with contextlib.suppress(ImportError):
        import pandas as pd

        yield pd.Series(block.tolist(), index=range(len(block), 0, -1))


def other(block):
    """Rows of other lengths, with no padding in them."""
    return [[5] * (1 + row % 2) for row in range(len(block))]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["prompts", "responses"])
def test_padded_blocks(side, name):
    lens = [5, 9, 12, 7]
    block = padded(lens, 12, side)
    for rows in kinds_of(block):
        columns = {"prompts": other(block), "responses": other(block), name: rows}
        [message] = said(lambda c=columns: fc.build_batch(**c, pad_token_id=PAD, **OPTIONS))
        assert f"{name} has 4 rows of 12 tokens, of which 3" in message
        assert ("begin" if side == "left" else "end") + " with up to 7 tokens" in message
        assert f"fc.unpad({name}, lengths=..., side={side!r})" in message
    taken = fc.unpad(block, lengths=lens, side=side)
    columns = {"prompts": other(block), "responses": other(block), name: taken}
    assert said(lambda: fc.build_batch(**columns, pad_token_id=PAD, **OPTIONS)) == []


@NEEDS_TORCH
def test_padded_tensors():
    import torch

    block = torch.from_numpy(padded([5, 9, 12], 12, "right"))
    for rows in (block, list(block), block.to(torch.uint16)):
        [message] = said(lambda r=rows: fc.build_batch(other(block), r, pad_token_id=PAD))
        assert "responses has 3 rows of 12 tokens, of which 2 end" in message
    nested = torch.nested.nested_tensor([block[0], block[1]], layout=torch.jagged)
    assert said(lambda: fc.build_batch([[1], [2]], nested, pad_token_id=PAD)) == []


def test_one_warning_a_call():
    prompts, responses = padded([5, 9], 12, "left"), padded([5, 9], 12, "right")
    messages = said(lambda: fc.build_batch(prompts, responses, pad_token_id=PAD, **OPTIONS))
    assert len(messages) == 1
    collate = fc.Collator(pad_token_id=PAD, **OPTIONS)
    assert len(said(lambda: collate({"prompt": prompts, "response": responses}))) == 1


def test_padding_to_a_fixed_width_and_with_the_end_of_sequence():
    for block in (
        padded([5, 9, 7], 16, "right"),  # no row is as long as the block
        padded([5, 9, 12], 12, "right", end=PAD),
        padded([3], 8, "right"),
        padded([0, 5, 8], 8, "right"),  # one of them has no token
    ):
        [message] = said(lambda b=block: fc.build_batch(other(b), b, pad_token_id=PAD, **OPTIONS))
        assert "responses" in message


def test_prompts_of_chats_whose_turns_end_with_the_padding_token():
    block = padded([30, 64, 50, 41], 64, "left")
    block[:, 40] = block[:, 50] = block[:, 62] = PAD
    [message] = said(lambda: fc.build_batch(block, other(block), pad_token_id=PAD, **OPTIONS))
    assert "prompts has 4 rows of 64 tokens, of which 3 begin with up to 34 tokens" in message


def test_one_token_of_padding_on_the_left_of_some_rows():
    """No token of their own: all rows would begin with it, as with a token for their begin."""
    block = padded([9, 10, 10, 9], 10, "left")
    [message] = said(lambda: fc.build_batch(block, other(block), pad_token_id=PAD, **OPTIONS))
    assert f"of which 2 begin with a token that is pad_token_id={PAD}: these count" in message


GENUINE = {
    "all end with it": padded([9] * 8, 10, "right"),
    "some are cut off": padded([9, 10, 9, 10], 10, "right"),
    "all begin with it": padded([9] * 8, 10, "left"),
    "it is nowhere": padded([10] * 8, 10, "left"),
    "random": np.random.default_rng(0).integers(0, 10, (64, 32)),
    "random, many": np.random.default_rng(0).integers(0, 50, (5_000, 16)),
    "zeros": np.full((4, 6), PAD),
    "counted": np.arange(24).reshape(4, 6),
    "two tokens": np.full((3, 2), PAD),
    "no row": np.zeros((0, 4), np.int64),
}


@pytest.mark.parametrize("block", GENUINE.values(), ids=GENUINE.keys())
def test_genuine_rows(block):
    for rows in kinds_of(block):
        if len(block) > 0:
            call = lambda r=rows: fc.build_batch(r, r, pad_token_id=PAD, **OPTIONS)  # noqa: E731
            assert said(call) == []


def test_rows_of_other_lengths_are_not_looked_at():
    rows = [[5, PAD, PAD, PAD], [5, PAD, PAD]]
    assert said(lambda: fc.build_batch(rows, rows, pad_token_id=PAD, **OPTIONS)) == []
    # The first row that differs decides.
    rows = [[5, PAD, PAD], [5], *[object()] * 3]
    with pytest.raises(TypeError, match=r"prompts\[2\]"):
        fc.build_batch(rows, rows, pad_token_id=PAD, **OPTIONS)


def test_samples():
    block = padded([5, 9, 12], 12, "right").tolist()
    labels = [[-100, *row[1:]] for row in block]
    collate = fc.Collator(pad_token_id=PAD, **OPTIONS)
    samples = [{"input_ids": i, "labels": t} for i, t in zip(block, labels, strict=True)]
    [message] = said(lambda: collate(samples))
    assert "input_ids has 3 rows of 12 tokens, of which 2 end with up to 7 tokens" in message
    columns = {"input_ids": np.array(block), "prompt_len": [1, 2, 3]}
    assert len(said(lambda: collate(columns))) == 1
    # If samples mark their tokens, there is no warning.
    told = [{**sample, "attention_mask": [1] * 12} for sample in samples]
    assert said(lambda: collate(told)) == []
    packed = [{**sample, "seq_lengths": [4, 8]} for sample in samples]
    assert said(lambda: collate(packed)) == []


def test_blocks_are_put_without_a_warning():
    from fastcollate.blocks.storing import store

    block = np.zeros((3, 8), np.int64)
    block[:, :2] = 5
    assert said(lambda: store(block, block)) == []
    assert said(lambda: pickle.dumps(store(block.tolist(), block.tolist()))) == []


def test_a_few_rows_that_end_alike_are_genuine():
    """One row that ends so among many, or all rows with the same two tokens, are no padding."""
    one = [[9, 8, 7, PAD, PAD]]
    alike = [[PAD, PAD, 20 + row, 6] for row in range(8)]
    among = [[row + 1, 7, 8, 9] for row in range(40)]
    among[3] = [4, 7, PAD, PAD]
    for block in (one, alike, among):
        made = [np.array(row) for row in block]
        for rows in (block, np.array(block), made):
            prompts = [[1]] * len(block)
            assert said(lambda p=prompts, r=rows: fc.build_batch(p, r, pad_token_id=PAD)) == []


def test_rows_that_are_arrays_are_sampled():
    """Of many, some are looked at; whether all are of one length is asked where that finds any."""
    rows = [np.array(row) for row in padded([5, 9, 7, 12] * 20, 16, "right")]
    assert len(said(lambda: fc.build_batch([[1]] * 80, rows, pad_token_id=PAD))) == 1
    rows[1] = rows[1][:3]
    assert said(lambda: fc.build_batch([[1]] * 80, rows, pad_token_id=PAD)) == []


@pytest.mark.parametrize("row", range(4))
def test_rows_that_another_thread_changes_make_no_error(monkeypatch, row):
    def empties(column, _):
        if column is rows:
            rows[row].clear()
        return column is rows

    monkeypatch.setattr(padded_blocks, "have_padded_edges", empties)
    rows = padded([9, 5, 5, 9], 9, "right").tolist()
    expected = [row.copy() for row in rows]
    batch = fc.build_batch([[]] * 4, rows, pad_token_id=PAD, **OPTIONS)
    assert batch.input_ids.tolist() == expected
    assert [] in rows


def tensor(row):
    torch = pytest.importorskip("torch")
    return torch.tensor(row)


@pytest.mark.parametrize("kind", [list, np.array, tensor])
@pytest.mark.parametrize(
    "layout", ["left", "right", "two_segment", "jagged", fc.Packed(64), fc.Tree()], ids=str
)
def test_responses_that_begin_with_their_prompts(kind, layout):
    """As what `generate` returns: the second copies of prompts would train."""
    prompts, responses = [[5, 6, 7], [8, 9, 10]], [[3, 4], [2]]
    whole = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    short = [prompt[:2] for prompt in prompts]  # by chance
    other = [whole[0], [8, 9, 11, 2]]

    def warnings_of(*given):
        columns = [[kind(row) for row in rows] for rows in given]
        call = partial(fc.build_batch, *columns, pad_token_id=PAD, layout=layout, **OPTIONS)
        return said(call)

    for given in (prompts, whole), (prompts * 2, whole * 2):
        (message,) = warnings_of(*given)
        assert "every response begins with its whole prompt" in message
    for given in (short, whole), (prompts, other), (prompts, responses), (prompts, prompts):
        assert warnings_of(*given) == []
