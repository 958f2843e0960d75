"""compat.verl fills up batches as verl does, with rows that train nothing."""

import copy
import math
import threading

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from recorded import as_tensors, recorded

import fastcollate as fc
from fastcollate.compat.verl import (
    build_padding_position_ids,
    build_padding_routed_experts,
    construct_minimal_padding_template,
    upsample_batch,
)
from frameworks import verl as port

torch = pytest.importorskip("torch")

EOS = 9
CONSTRUCTORS = [
    construct_minimal_padding_template,
    port.construct_minimal_padding_template,
]


def plain(value):
    """Give all that is to be the same: library, dtype, shape, types, values."""
    if isinstance(value, torch.Tensor):
        return ("torch", str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, np.ndarray):
        return ("numpy", value.dtype.str, value.shape, value.tolist())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [plain(item) for item in value]
    return type(value), value


def memory(value):
    """Give where everything is that could be written to."""
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage().data_ptr()} - {0}
    if isinstance(value, np.ndarray):
        return {value.__array_interface__["data"][0]} if value.size else set()
    if isinstance(value, dict):
        return {id(value)}.union(*map(memory, value.values()))
    if isinstance(value, list):
        return {id(value)}.union(*map(memory, value))
    return set()


def assert_apart(*values):
    """Check that no two of them share memory."""
    places = [memory(value) for value in values]
    assert len(set().union(*places)) == sum(map(len, places))


def array(values, dtype, array_type):
    if array_type == "numpy":
        return np.array(values, dtype=dtype)
    return torch.tensor(values, dtype=getattr(torch, dtype))


def zeros(shape, dtype, array_type):
    return array(np.zeros(shape).tolist(), dtype, array_type).reshape(shape)


def row(array_type, prompt=3, response=2, **more):
    """Make the fields of a trajectory as verl's agent loop writes them."""
    ints = {
        "prompts": range(prompt),
        "responses": range(response),
        "input_ids": [*range(prompt), *range(response)],
        "position_ids": range(prompt + response),
        "response_mask": [1] * response,
        "loss_mask": [1] * response,
    }
    floats = {"rm_scores": [1] * response, "rollout_log_probs": [-0.5] * response}
    return {
        **{key: array(list(values), "int64", array_type) for key, values in ints.items()},
        **{key: array(list(values), "float32", array_type) for key, values in floats.items()},
        "num_turns": 3,
        "uid": "p0",
        "session_id": 4,
        "raw_prompt": [{"role": "user"}],
        **more,
    }


def template(source, tag=None, eos=EOS):
    """Make a row, and check that the source neither changes nor is shared."""
    before = plain(source), plain(tag)
    sample, made = construct_minimal_padding_template(source, tag or {}, eos)
    assert (plain(source), plain(tag)) == before
    assert_apart(source, tag, *sample.values(), made)
    return sample, made


# Against verl itself

GOLDEN = recorded("verl_padding")


@pytest.mark.parametrize("construct", CONSTRUCTORS)
@pytest.mark.parametrize("case", GOLDEN["templates"])
def test_the_rows_that_verl_itself_made(case, construct):
    """Recorded from verl 0.9.1."""
    source = as_tensors(case["source_td"])
    sample, tag = construct(source, case["source_tag"], case["eos_token_id"])
    assert plain(sample) == plain(as_tensors(case["sample"]))
    assert plain(tag) == plain(case["tag"])


@pytest.mark.parametrize("case", GOLDEN["position_ids"])
def test_the_position_ids_that_verl_itself_made(case):
    found = build_padding_position_ids(as_tensors(case["source"]), torch.tensor(case["mask"]))
    assert plain(found) == plain(as_tensors(case["result"]))


@pytest.mark.parametrize("case", GOLDEN["upsampled"])
def test_as_many_rows_as_verl_itself_added(case, array_type):
    samples = [row(array_type) for _ in range(case["rows"])]
    tags = [{} for _ in samples]
    sizes = ("dp_size", "actor_mini_batch_rows", "critic_mini_batch_rows")
    found, found_tags = upsample_batch(
        samples, tags, eos_token_id=EOS, **{key: case[key] for key in sizes}
    )
    assert (found is samples) == (found_tags is tags) == case["same"]
    assert len(found) == len(found_tags) == case["total"]
    added = found[len(samples) :]
    assert [sample["session_id"] for sample in added] == case["session_ids"]
    assert all(len(sample["uid"]) == len("pad") + 32 for sample in added)


# Written out


def test_gradients_are_left_behind():
    scores = torch.ones(6, requires_grad=True) * 2
    sample, _ = template(row("torch", features=scores))
    assert not sample["features"].requires_grad


# Upsampling


def test_one_new_uid_for_all_and_sessions_from_zero(array_type):
    samples = [row(array_type), row(array_type, uid="p1")]
    tags = [{"session_id": 7, "uid": "p0", "is_padding": False}, {}]
    calls = [upsample_batch(samples, tags, dp_size=5, eos_token_id=EOS) for _ in range(2)]
    uids = []
    for found, found_tags in calls:
        assert len({sample["uid"] for sample in found[2:]}) == 1
        assert [sample["session_id"] for sample in found[2:]] == [0, 1, 2]
        assert [tag["session_id"] for tag in found_tags[2:]] == [0, 1, 2]
        assert all(tag["uid"] == found[2]["uid"] for tag in found_tags[2:])
        assert all(tag["is_padding"] is True for tag in found_tags[2:])
        uids.append(found[2]["uid"])
    assert all(uid.startswith("pad") for uid in uids)
    assert uids[0] != uids[1]
    without = {key: value for key, value in samples[0].items() if key != "session_id"}
    found, found_tags = upsample_batch([without], [{}], dp_size=2, eos_token_id=EOS)
    assert "session_id" not in found[1]
    assert found_tags[1].keys() == {"is_padding", "prompt_len", "response_len", "seq_len"}


def test_all_samples_tell_what_is_per_token(array_type):
    """Five numbers in every row are none per token, even where a row has five tokens."""
    features = array([1, 2, 3, 4, 5], "float32", array_type)
    mask = zeros((2,), "int64", array_type)
    samples = [
        row(array_type, 0, 5, features=features, loss_mask=zeros((5,), "int64", array_type)),
        row(array_type, 2, 5, features=features, loss_mask=zeros((7,), "int64", array_type)),
        row(array_type, 1, 2, features=features, response_mask=mask, loss_mask=None),
    ]
    found, _ = upsample_batch(samples, [{}] * 3, dp_size=4, eos_token_id=EOS)
    assert plain(found[3]["features"]) == plain(features)
    assert len(found[3]["loss_mask"]) == 128  # all of the sequence, though the first has no prompt
    assert len(found[3]["response_mask"]) == 1
    assert len(template(samples[0])[0]["features"]) == 1  # alone, the first does not determine it


# Against the reference


@st.composite
def batches(draw, array_type):
    """Draw rows that have the same fields, each of the same kind in all rows."""
    kind = st.sampled_from(["response", "sequence", "prompt", "fixed", "scalar", "list"])
    known = ["response_mask", "loss_mask", "rm_scores", "rollout_log_probs"]
    known += ["teacher_ids", "teacher_logprobs", "advantages", "extra"]
    dtypes = st.sampled_from(["int64", "int32", "float32", "float64", "bool"])
    layout = {
        key: (draw(kind), draw(dtypes), draw(st.sampled_from([(), (2,), (2, 3)])))
        for key in draw(st.sets(st.sampled_from(known)))
    }
    leading = draw(st.sampled_from([None, (), (4,), (2, 2)]))
    experts = draw(st.sampled_from([None, "uint8", "int16", "none"]))
    numbers = draw(
        st.sets(st.sampled_from(["num_turns", "session_id", "uid", "multi_modal_inputs"]))
    )
    is_array = draw(st.booleans())
    samples, tags = [], []
    for index in range(draw(st.integers(1, 6))):
        prompt, response = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        sample = {
            "prompts": zeros((prompt,), "int64", array_type),
            "responses": zeros((response,), "int64", array_type),
        }
        if draw(st.booleans()):
            sample["input_ids"] = zeros((prompt + response,), "int64", array_type)
        lens = {"response": response, "sequence": prompt + response, "prompt": prompt, "fixed": 3}
        for key, (part, dtype, trailing) in layout.items():
            if part == "list":
                sample[key] = [1.5] * response
            elif part == "scalar":
                sample[key] = array(1, dtype, array_type)
                if key.startswith("teacher"):
                    del sample[key]
            else:
                sample[key] = zeros((lens[part], *trailing), dtype, array_type)
                sample[key][...] = 1
        if leading is not None:
            sample["position_ids"] = zeros((*leading, prompt + response), "int32", array_type)
        if experts is not None:
            shape = (prompt + response, 2, 3)
            sample["routed_experts"] = (
                None if experts == "none" else zeros(shape, experts, array_type)
            )
        if "multi_modal_inputs" in numbers:
            sample["multi_modal_inputs"] = {"image": [index]}
        if "uid" in numbers:
            sample["uid"] = f"p{index}"
        for key in {"num_turns", "session_id"} & numbers:
            sample[key] = array(index, "int64", array_type) if is_array else index
        samples.append(sample)
        tags.append(dict.fromkeys(draw(st.sets(st.sampled_from(["session_id", "uid"]))), index))
    return samples, tags


@share(2)
@given(data=st.data())
def test_equals_the_reference(array_type, data):
    samples, tags = data.draw(batches(array_type))
    sizes = data.draw(
        st.fixed_dictionaries(
            {"dp_size": st.integers(1, 16)},
            optional={
                "actor_mini_batch_rows": st.none() | st.integers(1, 12),
                "critic_mini_batch_rows": st.none() | st.integers(1, 12),
            },
        )
    )
    eos = data.draw(st.integers(0, 1))
    before = plain(samples), plain(tags)
    found, found_tags = upsample_batch(samples, tags, eos_token_id=eos, **sizes)
    assert (plain(samples), plain(tags)) == before

    multiple_of = [size for size in sizes.values() if size is not None]
    assert len(found) % math.lcm(*multiple_of) == 0
    assert 0 <= len(found) - len(samples) < math.lcm(*multiple_of)
    assert_apart(*samples, *found[len(samples) :])
    uid = found[-1].get("uid")
    expected = port.upsample_batch(
        copy.deepcopy(samples),
        copy.deepcopy(tags),
        multiple_of=multiple_of,
        eos_token_id=eos,
        uid=uid,
    )
    assert plain(list(found)) == plain(expected[0])
    assert plain(list(found_tags)) == plain(expected[1])

    alone = template(samples[0], tags[0], eos)
    expected = port.construct_minimal_padding_template(samples[0], tags[0], eos)
    assert plain(alone) == plain(expected)


# Errors


SIZES = ["dp_size", "actor_mini_batch_rows", "critic_mini_batch_rows"]
REFUSED = [
    *(
        (error, rf"{name} is {text}", {name: value})
        for name in SIZES
        for error, text, value in [
            (ValueError, "0; pass a number of r.*, 1 or more", 0),
            (ValueError, "-2; pass a number of r.*, 1 or more", -2),
            (TypeError, r"1\.5; pass a number of r", 1.5),
            (TypeError, "'8'; pass a number of r", "8"),
            (ValueError, ".*does not fit int64", 1 << 64),
        ]
    ),
    (TypeError, "dp_size is None", {"dp_size": None}),
    (TypeError, "eos_token_id is None; pass one token id", {"eos_token_id": None}),
    (TypeError, r"eos_token_id is \[1, 2\]", {"eos_token_id": [1, 2]}),
    (ValueError, "eos_token_id is -1", {"eos_token_id": -1}),
    (TypeError, "samples is <.*; pass a list", {"samples": iter([]), "tags": []}),
    (TypeError, "tags is {}; pass a list", {"tags": {}}),
    (TypeError, "samples is 'ab'; pass a list", {"samples": "ab"}),
    (TypeError, r"samples\[1\] is 5; pass a dict", {"samples": [{}, 5, {}]}),
    (TypeError, r"tags\[0\] is None; pass a dict", {"tags": [None, {}, {}]}),
    (ValueError, "tags has 1 item, but samples has 3; pass", {"tags": [{}]}),
    # Also where nothing is to be added.
    (ValueError, "tags has 1 item, but samples has 2", {"samples": [{}, {}], "tags": [{}]}),
    (
        ValueError,
        r"samples\[2\] has 6 input_ids, 3 prompts and 2 responses",
        {"samples": [row("numpy")] * 2 + [row("numpy", input_ids=np.zeros(6, int))]},
    ),
    (
        TypeError,
        r"tags\[0\]\['lock'\] is .* cannot be copied .*; leave it out",
        {"samples": [{}], "tags": [{"lock": threading.Lock()}]},
    ),
]


@pytest.mark.parametrize(("error", "match", "arguments"), REFUSED)
def test_what_cannot_be_upsampled(error, match, arguments):
    samples = arguments.get("samples", [row("numpy")] * 3)
    tags = [{} for _ in samples] if "tags" not in arguments else arguments["tags"]
    given = {"dp_size": 2, "eos_token_id": EOS, "samples": samples, "tags": tags, **arguments}
    with pytest.raises(error, match=match):
        upsample_batch(**given)


def test_templates_that_cannot_be(array_type):
    def zeros_of(*shape, dtype="int64"):
        return zeros(shape, dtype, array_type)

    wrong = row(array_type, input_ids=zeros_of(6))
    short = {"prompts": wrong["prompts"], "input_ids": wrong["input_ids"][:2]}
    of_two = row(array_type, prompts=zeros_of(1, 3))
    teacher = row(array_type, teacher_ids=zeros_of(5, 1, dtype="uint8"))
    lock = {"lock": threading.Lock()}
    for error, match, arguments in [
        (TypeError, "eos_token_id is None", (row("numpy"), {}, None)),
        (TypeError, "source_td is None; pass a dict", (None, {}, EOS)),
        (TypeError, "source_tag is None; pass a dict", ({}, None, EOS)),
        (ValueError, "source_td has 6 input_ids", (wrong, {}, EOS)),
        (ValueError, "2 input_ids, 3 prompts and -1 responses", (short, {}, EOS)),
        (ValueError, r"\['prompts'\] is .*pass the tokens of one row", (of_two, {}, EOS)),
        (ValueError, r"is 256, .* fit uint8, .*'teacher_ids'\]; pass", (teacher, {}, 256)),
        (TypeError, r"source_td\['lock'\] is .* cannot be copied .*; leave it", (lock, {}, EOS)),
    ]:
        with pytest.raises(error, match=match):
            construct_minimal_padding_template(*arguments)
    for call, error, match, arguments in [
        (build_padding_position_ids, TypeError, "attention_mask is None", (None, None)),
        (build_padding_position_ids, ValueError, "the mask of one row", (None, zeros_of(1, 2))),
        (build_padding_routed_experts, TypeError, "seq_len is None", (zeros_of(2, 1), None)),
        (build_padding_routed_experts, ValueError, "seq_len is -1", (zeros_of(2, 1), -1)),
    ]:
        with pytest.raises(error, match=match):
            call(*arguments)


@pytest.mark.parametrize("layout", ["left", "two_segment", "right", "jagged"])
def test_a_batch_is_upsampled(layout):
    batch = fc.build_batch(
        [[1], [2, 3], [4]],
        [[5, 6], [7], [8]],
        pad_token_id=0,
        loss_mask=[[1, 1], [1], [1]],
        rewards=[1.0, 2.0, 3.0],
        uids=["a", "a", "b"],
        layout=layout,
        array_type="numpy",
    )
    more = upsample_batch(batch, dp_size=2, eos_token_id=9, actor_mini_batch_rows=5)
    assert more.plan.num_rows == 10
    assert more.is_padding == [False] * 3 + [True] * 7
    assert more.uids[:3] == ["a", "a", "b"]
    assert len(set(more.uids[3:])) == 1
    assert more.uids[3].startswith("pad")
    synthetic = more.gather(more.input_ids, align="sequence", shift="none")
    assert synthetic[3:].to_list() == [[9]] * 7
    assert int((more.input_ids == 9).sum()) == 14
    assert more.loss_mask.sum() == batch.loss_mask.sum()
    assert more.rewards.sum() == batch.rewards.sum()
    again = upsample_batch(batch, dp_size=3, eos_token_id=9)
    assert again is batch
    with pytest.raises(TypeError, match="tags is"):
        upsample_batch(batch, [{}], dp_size=2, eos_token_id=9)
