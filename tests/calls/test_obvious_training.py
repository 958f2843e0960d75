"""Straightforward training on a batch gives the gradients of rows one by one."""

import types
from itertools import pairwise

import pytest

import fastcollate as fc

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

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
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=32, n_embd=16, n_layer=2, n_head=2,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).double()


def outcome(model, losses):
    """Return the sum of losses, and its gradients in one line."""
    model.zero_grad()
    total = sum(losses)
    total.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return total.item(), torch.cat(gradients)


def one_by_one(model, parts):
    """Train each part of a row by itself: ids, and how many of them are prompt."""
    losses = []
    for ids, prompt_len in parts:
        ids = torch.tensor([ids])
        logits = model(input_ids=ids, use_cache=False).logits
        log_probs = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[0, :, 0]
        losses.append(-log_probs[max(prompt_len - 1, 0) :].sum())
    return outcome(model, losses)


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

MASKS = {
    (): [],
    ("completion_mask",): [[0, 1, 1, 1], [1], [0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 1], [0, 1]],
    ("assistant_masks",): [[0, 1, 0, 1], [1], [0, 0, 0], [1, 0, 0, 1, 0, 1, 0], [1, 0], [1, 1]],
}
MASKS["completion_mask", "assistant_masks"] = []  # both of the above


@EACH_LAYOUT
@pytest.mark.parametrize("keys", MASKS)
def test_sequences_of_a_collator(model, keys, options, outputs):
    """Alone, and with masks with and without holes."""
    ids = [[5, 6, 7, 8], [9], [3, 4, 2], [11, 12, 13, 14, 15, 16, 17], [18, 19], [20, 21]]
    rows = [{"input_ids": row} for row in ids]
    losses = []
    for index, row in enumerate(rows):
        row |= {key: MASKS[key,][index] for key in keys}
        trained = [all(row[key][at] for key in keys) for at in range(len(ids[index]))]
        tokens = torch.tensor([row["input_ids"]])
        logits = model(input_ids=tokens, use_cache=False).logits
        log_probs = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[0, :, 0]
        losses.append(-log_probs[torch.tensor(trained)[1:]].sum())
    expected = outcome(model, losses)
    batch = fc.Collator(pad_token_id=0, position_ids="zero", outputs=outputs, **options)(rows)
    same(outcome(model, [labelled_loss(model, batch)]), expected)


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
    same(outcome(model, [loss]), one_by_one(model, [([5, 6, 7, 8], 2), ([9, 3, 4], 2)]))


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
    fc.Collator(outputs=by_offsets, model=types.SimpleNamespace(config=flash), **how)
    if layout == fc.Packed(12):
        refused("cu_seq_lens_q", flash, PACKED)
    else:
        fc.Collator(outputs=PACKED, model=types.SimpleNamespace(config=flash), **how)


def test_offsets_that_are_not_those_of_positions():
    """With rounded widths they count tokens, and without padding those of several bins."""
    rows = [{"input_ids": ids} for ids in ([5, 6, 7], [8, 9], [3, 4, 2, 1, 10])]
    outputs = ["input_ids", "labels", "cu_seqlens"]

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
    same(outcome(model, [loss]), one_by_one(model, parts))
    sampled = sum(len(response) for response in responses)
    lost = batch.metrics["batch/tokens_without_predecessor"]
    assert count(batch) == sampled - lost
    assert batch.loss_mask.sum() == sampled - lost


def log_probs_of(model, batch):
    """Return the log-probability of each position's next token: (B, W - 1)."""
    mask = {"attention_mask": batch.attention_mask} if "attention_mask" in batch else {}
    logits = model(batch.input_ids, position_ids=batch.position_ids, use_cache=False, **mask).logits
    return logits[:, :-1].log_softmax(-1).gather(-1, batch.input_ids[:, 1:, None])[..., 0]


@pytest.mark.parametrize("layout", ["left", "right", "packed"])
@pytest.mark.parametrize("pad_rows", ["synthetic", "copy_first"])
@pytest.mark.parametrize("masks", [False, True])
def test_shards_of_merged_turns(model, layout, pad_rows, masks):
    """Every sampled token is trained once, whatever ranks and padding rows there are."""
    prompts = [[1, 2], [1, 2, 3, 4, 5], [7], [8, 9], [8, 9, 10, 11]]
    responses = [[3, 4], [6], [8, 9], [10], [12, 13]]
    rewards = [[1.0] * len(response) for response in responses]
    columns = {
        "prompts": prompts,
        "responses": responses,
        "pad_token_id": 0,
        "uids": [0, 0, 1, 2, 2],
        "trajectory_ids": [0, 0, 1, 2, 2],
        "rewards": rewards,
        **({"loss_mask": [[1] * len(row) for row in responses]} if masks else {}),
    }
    merge = fc.merge_turns(prompts, responses, trajectory_ids=columns["trajectory_ids"])
    how = {"layout": fc.Packed(capacity=16)} if layout == "packed" else {"pad_rows": pad_rows}
    plan = fc.plan_step(merge, uids=columns["uids"], dp_size=4, **how)
    losses, trained, rewarded = [], 0, 0
    for rank in range(4):
        batch = fc.build_batch(
            **columns, merge=merge, shard=plan.shard(0, rank), layout=layout, position_ids="zero"
        )
        places = batch.loss_mask > 0
        log_probs = log_probs_of(model, batch)
        if layout == "left":
            log_probs = log_probs[:, -places.shape[1] :]
        elif layout == "right":
            starts = batch.prompt_lens[:, None] - 1 + torch.arange(places.shape[1])
            log_probs = log_probs.gather(1, starts.clamp(max=log_probs.shape[1] - 1))
        else:  # beside their own tokens
            log_probs = torch.nn.functional.pad(log_probs, (1, 0))
        losses.append(-log_probs[places].sum())
        trained += int(places.sum())
        rewarded += float(batch.rewards.sum())
    assert trained == rewarded == sum(map(len, responses))
    tokens = fc.build_batch(**columns, merge=merge).loss_normalizers(plan).tokens
    assert tokens.tolist() == [trained]
    same(outcome(model, losses), one_by_one(model, whole(zip(prompts, responses, strict=True))))
