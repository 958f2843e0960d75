"""compat.verl takes padding out of batches, and puts it back, as verl does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded

import fastcollate as fc
from fastcollate.compat.verl import left_right_2_no_padding, no_padding_2_padding
from frameworks import verl as port
from frameworks.installed import real

torch = pytest.importorskip("torch")

GOLDEN = recorded("verl_no_padding")


def decoded(value):
    if not isinstance(value, dict):
        return value
    tensor = torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))
    tensor = tensor.reshape(value["shape"])
    if "offsets" not in value:
        return tensor
    offsets = torch.tensor(value["offsets"], dtype=getattr(torch, value["offsets_dtype"]))
    dim = value["jagged_dim"]
    return torch.nested.nested_tensor_from_jagged(tensor, offsets, jagged_dim=dim)


def plain(value):
    """Give all that is to be the same of a tensor: dtype, shape, values, and where rows begin."""
    if not torch.is_tensor(value):
        return value
    if value.is_nested:
        return plain(value.values()), plain(value.offsets()), value._ragged_idx
    return str(value.dtype), tuple(value.shape), value.tolist()


@st.composite
def batches(draw):
    """Draw a batch with padding on both sides, as a dict, and the lengths in it."""
    rows = draw(st.integers(1, 5))
    prompts, responses = draw(st.integers(1, 5)), draw(st.integers(0, 5))
    prompt_lens = [draw(st.integers(1, prompts)) for _ in range(rows)]
    response_lens = [draw(st.integers(0, responses)) for _ in range(rows)]
    width = prompts + responses
    places = torch.arange(width)
    starts = prompts - torch.tensor(prompt_lens)[:, None]
    mask = (places >= starts) & (places < prompts + torch.tensor(response_lens)[:, None])
    ids = torch.arange(rows * width).reshape(rows, width)
    batch = {
        "input_ids": ids,
        "attention_mask": mask.to(draw(st.sampled_from([torch.int64, torch.bool]))),
        "response_mask": mask[:, prompts:].to(torch.int64),
        "position_ids": ids + 100,
        "prompts": ids[:, :prompts],
        "responses": ids[:, prompts:],
    }
    if draw(st.booleans()):
        batch["position_ids"] = torch.arange(4 * rows * width).reshape(rows, 4, width)
    if draw(st.booleans()):
        batch["routed_experts"] = torch.arange(6 * rows * width).reshape(rows, width, 3, 2)
    for key in draw(st.sets(st.sampled_from(["teacher_ids", "teacher_logprobs"]))):
        batch[key] = torch.arange(2.0 * rows * width).reshape(rows, width, 2)
    return batch, prompt_lens, response_lens


verl = real("verl.workers.utils.padding")


def rows_of(nested):
    return [row.tolist() for row in nested.unbind()]


@given(batches())
def test_without_padding(drawn):
    batch, _, _ = drawn
    data = dict(batch)
    assert left_right_2_no_padding(data) is data
    if verl:
        there = verl.left_right_2_no_padding(dict(batch))
        assert data.keys() == there.keys()
        for key, value in there.items():
            if key == "position_ids":  # of several dimensions, torch chooses the ragged one
                assert rows_of(data[key]) == rows_of(value)
            else:
                assert plain(data[key]) == plain(value), key
    mask = batch["attention_mask"].tolist()

    def expected(key):
        return port.no_padding_loops(batch[key].tolist(), mask)

    assert rows_of(data["input_ids"]) == expected("input_ids")
    if batch["position_ids"].dim() == 2:
        assert rows_of(data["position_ids"]) == expected("position_ids")
    else:
        by_dimension = [
            port.no_padding_loops(batch["position_ids"][:, dim].tolist(), mask) for dim in range(4)
        ]
        assert rows_of(data["position_ids"]) == [
            list(rows) for rows in zip(*by_dimension, strict=True)
        ]
    if "routed_experts" in batch:
        assert rows_of(data["routed_experts"]) == expected("routed_experts")
    teacher = {"teacher_ids", "teacher_logprobs"} & batch.keys()
    for key in teacher:
        if len(teacher) == 2:
            assert rows_of(data[key]) == expected(key)
        else:
            assert data[key] is batch[key]
    assert data["loss_mask"] is data["response_mask"] is batch["response_mask"]
    assert data["attention_mask"] is batch["attention_mask"]
    assert data["max_seq_len"] == batch["input_ids"].shape[1]
    assert data["max_response_len"] == batch["response_mask"].shape[1]
    assert plain(data["indices"]) == plain(batch["attention_mask"].flatten().nonzero().flatten())
    assert data["input_ids"].offsets().dtype is torch.int32
    assert data["position_ids"].offsets().dtype is torch.int64


OBSERVED = torch.tensor([[1, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("loss_mask", "is_kept"),
    [
        (OBSERVED.float(), True),
        (OBSERVED.bool(), True),
        (torch.tensor([[0.5, 0, 0], [1, 1, 1]]), True),
        (torch.tensor([[1.0, 1, 0], [1, 1, 1]]), False),
        (torch.ones(2, 5), False),  # of all tokens
        (fc.ragged([[1], [1, 1, 1]]).to_torch_nested(), False),
    ],
)
def test_a_loss_mask_that_differs_is_the_response_mask_of_verl(loss_mask, is_kept):
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    response_mask = mask[:, 2:]
    batch = {"input_ids": mask, "attention_mask": mask, "position_ids": mask}
    data = left_right_2_no_padding(
        {**batch, "response_mask": response_mask, "loss_mask": loss_mask}
    )
    expected = loss_mask if is_kept else response_mask
    assert data["loss_mask"] is data["response_mask"] is expected
    assert data["max_response_len"] == 3


def test_a_batch_of_merged_turns_does_not_train_its_observations():
    batch = fc.build_batch(
        [[1], [1, 2, 3]],
        [[2], [4]],
        pad_token_id=0,
        rewards=[[0.0], [1.0]],
        loss_mask=[[1], [1]],
        trajectory_ids=["x", "x"],
        is_last_step=[False, True],
        merge="exact",
        position_ids="zero",
    )
    data = left_right_2_no_padding(dict(batch))
    assert data["loss_mask"].tolist() == data["response_mask"].tolist() == [[1, 0, 1]]


@given(batches(), st.sampled_from([(), (2,), (2, 3)]), st.data())
def test_back_to_padding(drawn, trailing, data):
    batch, prompt_lens, response_lens = drawn
    tokens = sum(prompt_lens) + sum(response_lens)
    values = torch.rand((tokens, *trailing))
    zero = torch.zeros(trailing).tolist()

    def expected(width):
        args = values.tolist(), prompt_lens, response_lens, width, zero
        return torch.tensor(port.response_outputs_loops(*args)).reshape(
            (len(prompt_lens), width, *trailing)
        )

    width = batch["responses"].shape[1]
    offsets = torch.tensor(
        [sum(lens) for lens in zip(prompt_lens, response_lens, strict=True)]
    ).cumsum(0)
    nested = torch.nested.nested_tensor_from_jagged(
        values, torch.nn.functional.pad(offsets, (1, 0))
    )
    for tensor in (values, nested):
        assert torch.equal(no_padding_2_padding(tensor, batch), expected(width))
        no_padding = left_right_2_no_padding(dict(batch))
        assert torch.equal(no_padding_2_padding(tensor, no_padding), expected(width))
        if verl:
            assert torch.equal(verl.no_padding_2_padding(tensor, batch), expected(width))
            there = verl.no_padding_2_padding(tensor, no_padding)
            assert torch.equal(no_padding_2_padding(tensor, no_padding), there)
        ragged = {
            "prompts": fc.ragged([[0] * n for n in prompt_lens]).to_torch_nested(),
            "responses": fc.ragged([[0] * n for n in response_lens]).to_torch_nested(),
        }
        found = no_padding_2_padding(tensor, ragged)
        assert torch.equal(found, expected(max(response_lens)))
        ragged["max_response_len"] = data.draw(st.integers(0, 7))
        found = no_padding_2_padding(tensor, ragged)
        assert torch.equal(found, expected(ragged["max_response_len"]))


def test_gradients_flow():
    batch = {
        "prompts": torch.zeros(2, 2),
        "responses": torch.zeros(2, 3),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]]),
    }
    values = torch.arange(6.0, requires_grad=True)
    padded = no_padding_2_padding(values, batch)
    assert padded.tolist() == [[0, 1, 0], [4, 0, 0]]
    (padded * torch.tensor([[1.0, 2, 3], [4, 5, 6]])).sum().backward()
    assert values.grad.tolist() == [1, 2, 0, 0, 4, 0]


@pytest.mark.parametrize("case", GOLDEN["without_padding"])
def test_results_are_those_of_verl(case):
    data = {key: decoded(value) for key, value in case["data"].items()}
    found = left_right_2_no_padding(data)
    assert found.keys() == case["result"].keys()
    for key, value in case["result"].items():
        assert plain(found[key]) == plain(decoded(value)), key


@pytest.mark.parametrize("case", GOLDEN["to_padding"])
def test_outputs_are_those_of_verl(case):
    data = {key: decoded(value) for key, value in case["data"].items()}
    found = no_padding_2_padding(decoded(case["tensor"]), data)
    assert plain(found) == plain(decoded(case["result"]))


def test_a_tensordict():
    tensordict = pytest.importorskip("tensordict")
    case = GOLDEN["without_padding"][0]
    fields = {key: decoded(value) for key, value in case["data"].items()}
    data = tensordict.TensorDict(fields, batch_size=[len(fields["input_ids"])])
    assert left_right_2_no_padding(data) is data
    for key, value in case["result"].items():
        found = data[key]
        assert plain(found) == plain(decoded(value)), key
    tokens = len(data["input_ids"].values())
    padded = no_padding_2_padding(torch.arange(tokens), data)
    assert padded.shape == data["response_mask"].shape


def test_bad_input():
    data = {key: decoded(value) for key, value in GOLDEN["without_padding"][0]["data"].items()}
    for key in ("input_ids", "attention_mask", "response_mask", "position_ids"):
        with pytest.raises(AssertionError, match=f"data has no {key}"):
            left_right_2_no_padding({other: data[other] for other in data if other != key})
    with pytest.raises(TypeError, match="data is 3"):
        left_right_2_no_padding(3)
    batch = fc.build_batch([[1]], [[2]], pad_token_id=0)
    with pytest.raises(TypeError, match="a Batch has to_layout"):
        left_right_2_no_padding(batch)
    tokens = int(data["attention_mask"].sum())
    with pytest.raises(AssertionError, match=f"tensor has {tokens + 1} tokens, but the rows of"):
        no_padding_2_padding(torch.zeros(tokens + 1), data)
    with pytest.raises(TypeError, match="tensor is"):
        no_padding_2_padding([0.0] * tokens, data)
    with pytest.raises(KeyError, match="prompts"):
        no_padding_2_padding(torch.zeros(tokens), {})
    one, other = (fc.ragged(rows).to_torch_nested() for rows in ([[], [1]], [[1], []]))
    with pytest.raises(AssertionError, match="row 0 has no prompt"):
        no_padding_2_padding(torch.zeros(2), {"prompts": one, "responses": other})
