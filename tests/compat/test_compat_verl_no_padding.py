"""compat.verl takes padding out of batches, and puts it back, as verl does."""

import pytest
from recorded import as_tensors, recorded

import fastcollate as fc
from fastcollate.compat.verl import left_right_2_no_padding, no_padding_2_padding

torch = pytest.importorskip("torch")

GOLDEN = recorded("verl_no_padding")


def plain(value):
    """Give all that is to be the same of a tensor: dtype, shape, values, and where rows begin."""
    if not torch.is_tensor(value):
        return value
    if value.is_nested:
        return plain(value.values()), plain(value.offsets()), value._ragged_idx
    return str(value.dtype), tuple(value.shape), value.tolist()


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
    for key in ("input_ids", "position_ids"):
        assert data[key].to_padded_tensor(0).shape == (2, 4)  # not as wide as all tokens
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


@pytest.mark.parametrize("trailing", [(), (2, 3)])
def test_back_to_padding(trailing):
    """Of flat and nested outputs, by batches padded and not, and nested ones with a width."""
    mask = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    batch = {
        **dict.fromkeys(("input_ids", "position_ids", "attention_mask"), mask),
        "prompts": mask[:, :2],
        "responses": mask[:, 2:],
        "response_mask": mask[:, 2:],
    }
    values = torch.arange(1, 7.0).reshape(-1, *(1 for _ in trailing)).expand(-1, *trailing)
    offsets = torch.tensor([0, 3, 6])
    expected = torch.zeros(2, 3, *trailing)
    expected[0, :2], expected[1, 0] = values[:2], values[4]  # one token in front of each
    nested = {
        key: fc.ragged([[0] * n for n in lens]).to_torch_nested()
        for key, lens in (("prompts", (1, 2)), ("responses", (2, 1)))
    }
    for tensor in (values, torch.nested.nested_tensor_from_jagged(values, offsets)):
        for data in (batch, left_right_2_no_padding(dict(batch))):
            assert torch.equal(no_padding_2_padding(tensor, data), expected)
        assert torch.equal(no_padding_2_padding(tensor, nested), expected[:, :2])
        for width in (0, 1, 3):
            found = no_padding_2_padding(tensor, nested | {"max_response_len": width})
            assert torch.equal(found, expected[:, :width])


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
    data = as_tensors(case["data"])
    found = left_right_2_no_padding(data)
    assert found.keys() == case["result"].keys()
    for key, value in case["result"].items():
        assert plain(found[key]) == plain(as_tensors(value)), key


@pytest.mark.parametrize("case", GOLDEN["to_padding"])
def test_outputs_are_those_of_verl(case):
    data = as_tensors(case["data"])
    found = no_padding_2_padding(as_tensors(case["tensor"]), data)
    assert plain(found) == plain(as_tensors(case["result"]))


def test_a_tensordict():
    tensordict = pytest.importorskip("tensordict")
    case = GOLDEN["without_padding"][0]
    fields = as_tensors(case["data"])
    data = tensordict.TensorDict(fields, batch_size=[len(fields["input_ids"])])
    assert left_right_2_no_padding(data) is data
    for key, value in case["result"].items():
        found = data[key]
        assert plain(found) == plain(as_tensors(value)), key
    tokens = len(data["input_ids"].values())
    padded = no_padding_2_padding(torch.arange(tokens), data)
    assert padded.shape == data["response_mask"].shape


def test_bad_input():
    data = as_tensors(GOLDEN["without_padding"][0]["data"])
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
