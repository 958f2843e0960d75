"""``batch.rows()``: each row's own tokens and values, from every layout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_batch

import fastcollate as fc

torch = pytest.importorskip("torch")

LAYOUTS = [
    *("left", "two_segment", "right", "jagged"),
    fc.Packed.single_row(),
    fc.Packed(24, multiple_of=3),
    fc.Packed(24, shift="next_token"),
    fc.Tree(24),
    fc.Tree(40, fork_early=True),
]
TOKENS = st.lists(st.integers(1, 3), max_size=6)


@given(st.data(), st.sampled_from(LAYOUTS), st.sampled_from(["numpy", "torch"]))
@settings(max_examples=200)
def test_each_row_is_what_was_given(data, layout, array_type):
    # A row without a prompt has no position before its first token, where "next_token" puts values.
    prompts = data.draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1))
    count = len(prompts)
    responses = data.draw(st.lists(TOKENS, min_size=count, max_size=count))
    values = [
        [-0.5 * place - row for place in range(len(ids))] for row, ids in enumerate(responses)
    ]
    masks = [[(row + place) % 2 for place in range(len(ids))] for row, ids in enumerate(responses)]
    whole = [
        [float(row + place) for place in range(len(prompt) + len(response))]
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ]
    batch = make_batch(
        prompts,
        responses,
        logprobs=values,
        loss_mask=masks,
        fields={
            "score": fc.PerRow([float(row) for row in range(count)]),
            "whole": fc.Field(whole, align="sequence"),
            "image": fc.PerRow([np.full((row, 2), row) for row in range(count)], concat=True),
        },
        uids=[f"{row // 2}" for row in range(count)],
        array_type=array_type,
        layout=layout,
    )
    rows = list(batch.rows())
    assert len(rows) == count
    for index, row in enumerate(rows):
        assert row["input_ids"].tolist() == prompts[index] + responses[index]
        assert row["prompt_len"] == len(prompts[index])
        assert row["logprobs"].tolist() == values[index]
        assert row["loss_mask"].tolist() == masks[index]
        assert row["whole"].tolist() == whole[index]
        assert row["score"] == index
        assert row["image"].tolist() == [[index, index]] * index
        assert row["uid"] == f"{index // 2}"
        kind = torch.Tensor if array_type == "torch" else np.ndarray
        assert isinstance(row["input_ids"], kind)
        assert row["input_ids"].dtype == batch.input_ids.dtype


def test_rows_of_padding_are_left_out():
    step = fc.plan_step([3, 3, 2], dp_size=2)
    rows = [
        row["input_ids"].tolist()
        for rank in range(2)
        for row in make_batch(
            [[1], [2], [3]], [[5, 6], [7, 8], [9]], shard=step.shard(0, rank)
        ).rows()
    ]
    assert sorted(rows) == [[1, 5, 6], [2, 7, 8], [3, 9]]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (fc.Packed(8, shift="next_token"), "row 1 of the batch has no prompt"),
        (fc.Packed(2, algorithm="concat"), "row 0 of the batch was split"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*split")
def test_rows_that_are_not_whole_name_the_way_out(layout, message):
    how = {"pad_token_id": 0, "array_type": "numpy"}
    batch = fc.build_batch([[1], []], [[5, 6], [7]], layout=layout, **how)
    for read in (batch.rows, lambda: batch.to_layout("left")):
        with pytest.raises(ValueError, match=f"^{message}.*; call build_batch with another layout"):
            read()
