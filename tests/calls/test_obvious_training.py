"""Straightforward training on a batch gives the gradients of rows one by one."""

import types
import warnings
from itertools import pairwise

import pytest

import fastcollate as fc

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rows_alone import log_probs_alone, outcome  # noqa: E402
from small_models import small_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

PADDED = ("input_ids", "attention_mask", "position_ids", "labels")
PACKED = ("input_ids", "position_ids", "labels", "use_cache")
ROWS = [
    ([], [5, 6, 7, 8]),
    ([9, 3], [4, 2, 1]),
    ([], [11]),
    ([12], [13]),
    ([], [14, 15, 16, 17, 18, 19, 20]),
    ([21, 22, 23], []),
]


@pytest.fixture(scope="module")
def model():
    return small_model("gpt2", "eager")


def one_by_one(model, parts):
    """Train each part of a row by itself: ids, and how many of them are prompt."""
    losses = [-log_probs_alone(model, ids[:start], ids[start:]).sum() for ids, start in parts]
    return outcome(model, sum(losses))


def whole(rows):
    return [([*prompt, *response], len(prompt)) for prompt, response in rows]


def same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert torch.allclose(found[1], expected[1], rtol=1e-9, atol=1e-12)


def labelled_loss(model, batch):
    """Sum the losses of labels as transformers shifts them, which rounds logits to float32."""
    output = model(**batch)
    labels = batch["labels"][:, 1:].flatten()
    logits = output.logits[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    assert output.loss.item() * count(batch) == pytest.approx(loss.item(), rel=1e-6)
    return loss


def count(batch):
    return (batch["labels"] != -100).sum().item()


EACH_LAYOUT = pytest.mark.parametrize(
    ("options", "outputs"),
    [
        ({"layout": "right"}, PADDED),
        ({"layout": "left"}, PADDED),
        ({"layout": "two_segment"}, PADDED),
        ({"layout": fc.Packed.single_row()}, PACKED),
        ({"layout": fc.Packed(capacity=9)}, PACKED),
        ({"layout": fc.Packed(capacity=12, multiple_of=4)}, PACKED),
    ],
    ids=["right", "left", "two_segment", "single", "packed", "aligned"],
)


@EACH_LAYOUT
def test_outputs_by_which_a_model_would_mix_rows(options, outputs):
    """It takes padding for tokens, and with a cache all packed rows for one sequence."""
    needed = [key for key in ("attention_mask", "position_ids", "use_cache") if key in outputs]
    without = [key for key in outputs if key not in needed]
    how = {"pad_token_id": 0, "position_ids": "zero", **options}
    if options["layout"] == "right":  # a causal model never reads padding at the end
        assert list(fc.Collator(outputs=without, **how)([{"input_ids": [5, 6]}])) == without
        return
    for count in range(1, len(needed) + 1):
        of = [key for key in outputs if key not in needed[:count]]
        names = " and ".join(map(repr, needed[:count]))
        with pytest.raises(ValueError, match=rf"outputs are .*; add {names} "):
            fc.Collator(outputs=of, **how)
    without.remove("labels")
    fc.Collator(outputs=without, **how)  # a loss of one's own


@pytest.mark.parametrize("layout", ["left", "right", "jagged", fc.Packed(capacity=9)])
def test_labels_that_change_after_the_batch_was_made(model, layout):
    """As in a collator that masks more tokens, around ours."""
    how = {"pad_token_id": 0, "layout": layout, "position_ids": "zero", "model": model}
    batch = fc.Collator(**how)([{"input_ids": row} for row in ([5, 6, 7, 8], [9, 3, 4])])
    batch["labels"][batch["labels"] == 6] = -100
    batch["labels"][batch["labels"] == 3] = -100
    loss = labelled_loss(model, batch)
    assert count(batch) == 3
    same(outcome(model, loss), one_by_one(model, [([5, 6, 7, 8], 2), ([9, 3, 4], 2)]))


@pytest.mark.parametrize("layout", [fc.Packed(12), fc.Packed.single_row(), "jagged"])
def test_outputs_by_which_the_given_model_would_mix_rows(model, layout):
    """gpt-oss ignores positions, flash attention those of several rows, and eager the offsets."""
    offsets = {"cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k"), "max_seqlen": "max_length_q"}
    by_offsets = {"input_ids": "input_ids", "labels": "labels", **offsets}
    how = {"pad_token_id": 0, "layout": layout}

    def refused(needed, config, outputs):
        with pytest.raises(ValueError, match=rf"outputs are .*; add '{needed}'"):
            fc.Collator(outputs=outputs, model=types.SimpleNamespace(config=config), **how)

    blind = transformers.GptOssConfig(attn_implementation="eager")
    refused("attention_mask", blind, PACKED)
    refused("attention_mask", blind, by_offsets)
    fc.Collator(
        outputs=(*PACKED, "attention_mask"), model=types.SimpleNamespace(config=blind), **how
    )
    refused("position_ids", model.config, by_offsets)
    fc.Collator(outputs=PACKED, model=model, **how)
    flash = transformers.LlamaConfig()
    flash._attn_implementation = "flash_attention_2"
    refused("position_ids", flash, by_offsets)
    by_offsets["position_ids"] = "position_ids"
    fc.Collator(outputs=by_offsets, model=types.SimpleNamespace(config=flash), **how)
    if layout == fc.Packed(12):
        refused("cu_seq_lens_q", flash, PACKED)
    else:
        fc.Collator(outputs=PACKED, model=types.SimpleNamespace(config=flash), **how)


@pytest.mark.parametrize("layout", [fc.Packed(12), fc.Packed.single_row(), "jagged"])
def test_outputs_with_a_mask_but_without_positions(model, layout):
    """The model would count through all rows of an output row."""
    how = {"pad_token_id": 0, "layout": layout, "kernel": "dense", "model": model}
    keys = ["input_ids", "labels", "attention_mask"]
    with pytest.raises(
        ValueError, match=r"outputs are .*; add 'position_ids' \(most models would count"
    ):
        fc.Collator(outputs=keys, **how)
    collate = fc.Collator(outputs=[*keys, "position_ids"], **how)
    batch = collate([{"input_ids": row} for row in ([5, 6, 7, 8], [9, 3, 4])])
    loss = labelled_loss(model, batch)
    same(outcome(model, loss), one_by_one(model, [([5, 6, 7, 8], 0), ([9, 3, 4], 0)]))


def test_offsets_that_are_not_those_of_positions():
    """With rounded widths they count tokens, and without padding those of several bins."""
    rows = [{"input_ids": ids} for ids in ([5, 6, 7], [8, 9], [3, 4, 2, 1, 10])]
    outputs = ["input_ids", "labels", "position_ids", "cu_seqlens"]

    def collate(padding_as="own_segment", outputs=outputs, **options):
        layout = fc.Packed(8, padding_as=padding_as, **options)
        found = fc.Collator(pad_token_id=0, layout=layout, outputs=outputs)(rows)
        ids = found["input_ids"].flatten().tolist()
        ends = found[outputs[-1]].tolist()
        spans = [ids[start:end] for start, end in pairwise(ends)]
        return [[token for token in span if token] for span in spans if span[0]]

    expected = [[3, 4, 2, 1, 10], [5, 6, 7], [8, 9]]
    assert collate() == expected
    with pytest.raises(ValueError, match=r"has 'cu_seqlens', which counts.*'cu_seqlens_padded'"):
        collate(multiple_of=4)
    assert sorted(collate(multiple_of=4, outputs=[*outputs, "cu_seqlens_padded"])) == expected
    with pytest.raises(ValueError, match=r"has 'cu_seqlens', which leaves.*'row_cu_seqlens'"):
        collate("no_segment")


@pytest.mark.parametrize("capacity", [3, 5])
def test_labels_of_split_sequences(model, capacity):
    """As their parts one by one."""
    prompts, responses = zip(*ROWS, strict=True)
    layout = fc.Packed(capacity=capacity, algorithm="concat")
    how = {"layout": layout, "labels": "aligned", "position_ids": "zero"}
    batch = fc.build_batch(prompts, responses, pad_token_id=0, **how)
    inputs = batch.model_inputs(model=model)
    loss = labelled_loss(model, {key: inputs[key] for key in PACKED})
    plan = batch.bin_plan
    parts = []
    for row, start, length in zip(plan.indices, plan.starts, plan.lengths, strict=True):
        ids, prompt_len = whole(ROWS)[row]
        parts.append((ids[start : start + length], min(max(prompt_len - start, 0), length)))
    same(outcome(model, loss), one_by_one(model, parts))
    sampled = sum(len(response) for response in responses)
    lost = batch.metrics["batch/tokens_without_predecessor"]
    assert count(batch) == sampled - lost
    assert batch.loss_mask.sum() == sampled - lost


@pytest.mark.parametrize("flags", [list, torch.tensor], ids=["list", "tensor"])
@pytest.mark.parametrize("layout", ["left", fc.Packed(9), "tree"])
def test_flags_of_rows_choose_rows(model, layout, flags):
    """As in KTO's loss, which rises for rows that are not desirable."""
    prompts, responses, good = [[5, 6], [7], [9, 3]], [[4, 2], [1], [8, 8, 6]], [True, False, True]
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, layout=layout,
        fields={"is_good": fc.PerRow(flags(good))},
    )  # fmt: skip
    logits = model(**batch.model_inputs(model=model)).logits
    positions, index = batch.loss_positions()
    log_probs = logits.flatten(0, 1)[positions].log_softmax(-1)[index, batch.targets]
    log_probs = torch.stack([row.sum() for row in batch.gather(log_probs, align="response")])
    loss = log_probs[~batch["is_good"]].sum() - 2 * log_probs[batch["is_good"]].sum()
    alone = [
        log_probs_alone(model, prompt, response).sum() * (-2 if is_good else 1)
        for prompt, response, is_good in zip(prompts, responses, good, strict=True)
    ]
    same(outcome(model, loss), outcome(model, sum(alone)))


@pytest.mark.parametrize("layout", ["left", "jagged", fc.Packed(16), fc.Tree(16)])
@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_what_is_no_log_probability_is_warned_of(layout, sign):
    prompts, responses = zip(*ROWS, strict=True)
    numbers = [[sign * 0.5] * len(row) for row in responses]
    numbers[0][0] = -0.1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fc.build_batch(prompts, responses, logprobs=numbers, pad_token_id=0, layout=layout)
    has_said = ["most log-probabilities are above 0" in str(one.message) for one in caught]
    assert has_said == [True] * (sign > 0)


@pytest.mark.parametrize("layout", ["left", "jagged", fc.Packed(16), fc.Tree(16)])
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_a_mask_of_zeros_is_warned_of(layout, dtype):
    prompts, responses = zip(*ROWS, strict=True)
    options = {"pad_token_id": 0, "layout": layout, "dtypes": {"loss_mask": dtype}}

    def build(value, **more):
        masks = [[value] * len(row) for row in responses]
        return fc.build_batch(prompts, responses, loss_mask=masks, **options, **more)

    with pytest.warns(UserWarning, match="loss_mask is 0 on all response tokens, so nothing trai"):
        build(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(1)
        none = [[]] * len(prompts)
        fc.build_batch(prompts, none, loss_mask=none, **options)
        if layout == "left":
            lens = [[len(row) for row in rows] for rows in (prompts, responses)]
            plan = fc.plan_step(tuple(lens), dp_size=len(prompts))
            build(0, shard=plan.shard(0, 0))
