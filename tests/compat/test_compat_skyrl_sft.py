"""compat.skyrl collates examples of supervised fine-tuning as SkyRL does, packed and not."""

import logging
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from raising import raises
from recorded import as_tensors, recorded

torch = pytest.importorskip("torch")

from stand_ins import installed  # noqa: E402

from fastcollate.compat.skyrl import (  # noqa: E402
    DefaultCollator,
    PackedDataCollator,
    collate_sft_batch,
)
from fastcollate.testing.reference import assert_same  # noqa: E402
from frameworks.skyrl import sft as port  # noqa: E402

GOLDEN = recorded("skyrl_sft")
RAISED = {
    error.__name__: error
    for error in (AssertionError, KeyError, RuntimeError, TypeError, ValueError)
}


def tokenizer(pad_token_id=9):
    return SimpleNamespace(pad_token_id=pad_token_id)


def plain(batch):
    """Give a batch's tensors and metadata as one mapping."""
    return {**batch, **batch.metadata}


def check_recorded(case, call):
    if "raises" in case:
        with pytest.raises(RAISED[case["raises"]]):
            call()
    else:
        expected = as_tensors(case["result"])
        assert_same(plain(call()), {**expected["data"], **expected["metadata"]})


@pytest.mark.parametrize("case", GOLDEN["unpacked"])
def test_what_skyrl_itself_gave(case):
    examples, pad = case["examples"], tokenizer(case["pad_token_id"])
    check_recorded(case["plain"], lambda: collate_sft_batch(examples, pad))
    check_recorded(case["scaled"], lambda: DefaultCollator(pad, 1)(examples, batch_size=4))


PACKING_UTILS = "skyrl.backends.skyrl_train.distributed.megatron.packing_utils"


@pytest.mark.parametrize("case", GOLDEN["packed"])
def test_what_skyrl_itself_packed(case):
    collator = PackedDataCollator(tokenizer(case["pad_token_id"]), **case["arguments"])
    check_recorded(case, lambda: collator(case["examples"], case["arguments"]["batch_size"]))


def test_the_installed_skyrl_says_what_places_are_rounded_up_to(monkeypatch):
    """Its workers compute them anew."""
    calls = []

    def get_packed_seq_align_size(tp_size, cp_size, fp8_enabled=False, fp8_recipe=None):
        calls.append((tp_size, cp_size, fp8_enabled, fp8_recipe))
        return 8

    installed(monkeypatch, PACKING_UTILS, get_packed_seq_align_size=get_packed_seq_align_size)
    arguments = {"tp_size": 2, "cp_size": 3, "fp8_enabled": True, "fp8_recipe": "mxfp8"}
    batch = packer(**arguments)([example(3, 1), example(5, 1)], 4)
    assert batch["attention_mask"].tolist() == [[1] * 5 + [0] * 3, [1] * 3 + [0] * 5]
    assert calls == [(2, 3, True, "mxfp8")]


def test_a_skyrl_that_places_examples_in_another_way_is_refused(monkeypatch):
    installed(monkeypatch, PACKING_UTILS)
    with pytest.raises(RuntimeError, match="has no get_packed_seq_align_size"):
        packer()(EXAMPLES, 4)


def test_a_recipe_that_is_not_resolved_is_refused():
    with pytest.raises(ValueError, match="fp8_recipe is 'auto'"):
        packer(fp8_enabled=True, fp8_recipe="auto")(EXAMPLES, 4)
    packer(fp8_recipe="auto")(EXAMPLES, 4)


SIZES = {"batch_size": 4, "micro_train_batch_size_per_gpu": 1}


def packer(**changes):
    arguments = {
        "max_tokens_per_microbatch": 8,
        **{f"{axis}_size": 1 for axis in ("tp", "pp", "cp", "dp")},
        **SIZES,
    }
    return PackedDataCollator(tokenizer(), **{**arguments, **changes})


def example(length, actions, **more):
    return {
        "input_ids": list(range(1, length + 1)),
        "attention_mask": [1] * length,
        "num_actions": actions,
        "loss_mask": [1] * actions,
        **more,
    }


EXAMPLES = [example(3, 2), example(5, 1), example(4, 4), example(1, 1)]


def test_rows_of_a_rank_are_together():
    """Bins go round robin to ranks, and a batch is cut into one span of rows for each."""
    examples = [example(length, 1) for length in (8, 7, 6, 5)]
    for ranks, lengths in ((1, [8, 7, 6, 5]), (2, [8, 6, 7, 5]), (4, [8, 7, 6, 5])):
        batch = packer(dp_size=ranks)(examples, 4)
        assert [row.item() for row in batch["sub_seq_lengths"]] == lengths


def test_an_evaluation_is_not_packed():
    collator = packer()
    for batch_size in (3, 5):
        batch = collator(EXAMPLES, batch_size)
        assert_same(plain(batch), port.collate_default(EXAMPLES, 9))
    assert collator(EXAMPLES, 3)["pixel_values"] is None


def test_the_tokenizer_can_be_changed():
    collator = packer()
    collator.tokenizer = tokenizer(7)
    assert collator.tokenizer.pad_token_id == 7
    assert collator(EXAMPLES, 3)["sequences"][0].tolist() == [7, 7, 1, 2, 3]
    assert collator(EXAMPLES, 4)["sequences"][1].tolist() == [1, 2, 3, 4, 1, 7, 7, 7]


def test_what_was_packed_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="fastcollate"):
        packer(dp_size=2)(EXAMPLES, 4)
    (record,) = caplog.records
    assert record.getMessage() == (
        "sequence packing | packed 4 samples into 2 bins (~1/DP rank, bin_capacity=8 tokens)"
    )


def test_arrays_and_tuples_will_do():
    kinds = (tuple, np.array, torch.tensor)
    examples = [
        {key: value if key == "num_actions" else kind(value) for key, value in given.items()}
        for given, kind in zip(EXAMPLES, kinds * 2, strict=False)
    ]
    expected = plain(collate_sft_batch(EXAMPLES, tokenizer()))
    assert_same(plain(collate_sft_batch(examples, tokenizer())), expected)
    assert_same(plain(packer()(examples, 4)), plain(packer()(EXAMPLES, 4)))


def test_no_padding_token_where_nothing_is_padded():
    examples = [example(3, 1), example(3, 2)]
    batch = collate_sft_batch(examples, tokenizer(None))
    assert batch["sequences"].tolist() == [[1, 2, 3]] * 2
    with pytest.raises(TypeError, match="pad_token_id is None"):
        collate_sft_batch(EXAMPLES, tokenizer(None))
    with pytest.raises(AttributeError, match="pad_token_id"):
        collate_sft_batch(examples, SimpleNamespace())


IMAGE = {"pixel_values": [[0.5, 1.5]], "image_grid_thw": np.ones((1, 3), np.int64)}


def test_images_pass_through():
    pixels = torch.ones(4, 2)
    examples = [example(2, 1, **IMAGE), example(3, 1, **{**IMAGE, "pixel_values": pixels})]
    batch = collate_sft_batch(examples, tokenizer())
    assert [image.tolist() for image in batch["pixel_values"]] == [[[0.5, 1.5]], [[1.0, 1.0]] * 4]
    assert batch["pixel_values"][1] is pixels
    assert [grid.dtype for grid in batch["image_grid_thw"]] == [torch.int64] * 2
    with pytest.raises(ValueError, match="examples have pixel_values, but"):
        packer()(examples, 4)
    with pytest.raises(ValueError, match="1 of 2 examples have pixel_values"):
        packer()([*examples[:1], example(3, 1)], 4)


REFUSED = [
    ([], "at least one"),
    (
        [example(2, 1, **IMAGE), example(2, 1)],
        r"Mixed text\+image batches are not supported: 1 of 2 examples have pixel_values",
    ),
    ([example(2, 1, pixel_values=[[0.5]])], "KeyError: image_grid_thw"),
    ([example(2, 1), {"input_ids": [1]}], "KeyError: num_actions"),
    ([None], "TypeError: NoneType"),
    ([example(2, 1), example(2, 3)], r"\[1\]\['num_actions'\] is 3, .* has 2 tokens"),
    ([example(2, 1, num_actions=-1)], r"\[0\]\['num_actions'\] is -1"),
    ([example(2, 1, loss_mask=[1, 1])], r"\[0\]\['loss_mask'\] has 2 .* of 1"),
    ([example(2, 1, attention_mask=[1])], r"\[0\]\['attention_mask'\] has 1 .* of 2"),
    (
        [example(1, 1), example(2, 1, input_ids=[1, None])],
        r"TypeError: ^examples\[1\]\['input_ids'\]\[1\] is None",
    ),
    ([example(1, 1, input_ids=[2**63])], r"^examples\[0\]\['input_ids'\]\[0\] is"),
    ([example(1, 1, loss_mask=[float("nan")])], r"RuntimeError: ^examples\[0\]\['loss_mask'\]"),
    ([example(1, 1, loss_mask=["x"])], r"^examples\[0\]\['loss_mask'\]"),
    ([example(1, 1, loss_mask=[None])], r"TypeError: ^examples\[0\]\['loss_mask'\]\[0\] is"),
    ([example(1, 1, attention_mask=[[1]])], r"^examples\[0\]\['attention_mask'\]"),
]


@pytest.mark.parametrize(("examples", "message"), REFUSED)
def test_bad_examples(examples, message):
    for collate in (collate_sft_batch, lambda e, t: DefaultCollator(t, 1)(e, batch_size=1)):
        with raises(message):
            collate(examples, tokenizer())


REFUSED_PACKED = [
    ([example(2, 1), example(9, 1)], r"examples\[1\] has 9 tokens, which exceeds max_"),
    ([], "dp_size=1, .* no bin may be empty"),
    ([example(0, 0)], "examples have no tokens; pass"),
    ([example(3, 1, loss_mask=[1, 1])], r"AssertionError: examples\[0\] .* num_actions=1, .* of 2"),
    ([example(3, 1, loss_mask=None)], "TypeError: NoneType"),
    ([{"input_ids": [1]}], "KeyError: num_actions"),
    ([example(2, 1, input_ids=[1.5, 2])], r"TypeError: ^examples\[0\]\['input_ids'\]\[0\] is 1.5"),
    ([example(2, 1, input_ids=[1, None])], r"TypeError: ^examples\[0\]\['input_ids'\]\[1\] is"),
    ([example(3, 2, loss_mask=[1, float("nan")])], r"examples\[0\]\['loss_mask'\]\[1\] is NaN"),
    ([example(3, 2, loss_mask=[1, float("inf")])], "OverflowError: infinity"),
]


@pytest.mark.parametrize(("examples", "message"), REFUSED_PACKED)
def test_bad_examples_to_pack(examples, message):
    with raises(message):
        packer()(examples, 4)


def test_bad_arguments_of_the_packer():
    with pytest.raises(ValueError, match=r"requires max_tokens_per_microbatch to be set.* is None"):
        packer(max_tokens_per_microbatch=None)
    with pytest.raises(ValueError, match="dp_size=0"):
        packer(dp_size=0)(EXAMPLES, 4)
    with pytest.raises(ValueError, match="no bin may be empty"):
        packer(dp_size=5)(EXAMPLES, 4)
    collator = packer()
    collator.tokenizer = tokenizer(None)
    with pytest.raises(TypeError, match="pad_token_id is None"):
        collator(EXAMPLES, 4)


class TensorList:
    def __init__(self, tensors):
        self.tensors = tensors


class TrainingInputBatch(dict):
    pass


@pytest.fixture
def skyrl(monkeypatch):
    """Stand in for SkyRL's types."""
    name = "skyrl.backends.skyrl_train.training_batch"
    types = {"TensorList": TensorList, "TrainingInputBatch": TrainingInputBatch}
    installed(monkeypatch, name, **types)


def test_with_skyrl_its_types_are_returned(skyrl):
    batch = packer()(EXAMPLES, 4)
    assert type(batch) is TrainingInputBatch
    assert type(batch["sub_seq_lengths"]) is TensorList
    assert batch.metadata == {"response_length": 7}
    batch = collate_sft_batch([example(2, 1, **IMAGE)], tokenizer())
    assert type(batch) is TrainingInputBatch
    assert type(batch["pixel_values"]) is type(batch["image_grid_thw"]) is TensorList
    assert packer()(EXAMPLES, 3)["pixel_values"] is None


def test_without_skyrl_batches_are_dicts_that_can_be_sent():
    batch = packer()(EXAMPLES, 4)
    assert isinstance(batch, dict)
    again = pickle.loads(pickle.dumps(batch))
    assert_same(plain(again), plain(batch))
    assert all(row.untyped_storage().nbytes() == 8 * len(row) for row in batch["sub_seq_lengths"])
