"""Straightforward training on a batch gives the gradients of rows one by one."""

import numpy as np
import pytest
from small_llama import llama

import fastcollate as fc

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

PADDED = ("input_ids", "attention_mask", "position_ids", "labels")
PACKED = ("input_ids", "position_ids", "labels")
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
    output = model(**batch, use_cache=False)
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
def test_labels_of_a_collator(model, options, outputs):
    """Without prompts, of rows of one token, and of prompts without a response."""
    samples = [{"prompt": prompt, "response": response} for prompt, response in ROWS]
    collate = fc.Collator(
        pad_token_id=0, labels="aligned", position_ids="zero", outputs=outputs, **options
    )
    batch = collate(samples)
    same(outcome(model, [labelled_loss(model, batch)]), one_by_one(model, whole(ROWS)))


MASKS = {
    (): [],
    ("completion_mask",): [[0, 1, 1, 1], [1], [0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 1], [0, 1]],
    ("assistant_masks",): [[0, 1, 0, 1], [1], [0, 0, 0], [1, 0, 0, 1, 0, 1, 0], [1, 0], [1, 1]],
}
MASKS["completion_mask", "assistant_masks"] = []  # both of the above


@EACH_LAYOUT
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("keys", MASKS)
def test_sequences_of_a_collator(model, keys, is_packed, options, outputs):
    """Alone, with masks with and without holes, and several in a sample."""
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
    if is_packed:
        halves = [rows[:2], rows[2:]]
        samples = [
            {key: [one for row in half for one in row[key]] for key in rows[0]} for half in halves
        ]
        for sample, half in zip(samples, halves, strict=True):
            sample["seq_lengths"] = [len(row["input_ids"]) for row in half]
    else:
        samples = rows
    batch = fc.Collator(pad_token_id=0, position_ids="zero", outputs=outputs, **options)(samples)
    same(outcome(model, [labelled_loss(model, batch)]), expected)


def test_preference_pairs_of_a_collator(model):
    """Log-probabilities of the chosen and rejected responses, as those of rows one by one."""
    pairs = [
        {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": [*chosen[::-1], 1]}
        for prompt, chosen in ROWS
        if prompt
    ]
    outputs = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    outputs["completion_mask"] = "mask"
    batch = fc.Collator(pad_token_id=0, layout="right", outputs=outputs)(pairs)
    mask = batch.pop("mask")[:, 1:]
    logits = model(**batch, use_cache=False).logits
    log_probs = logits[:, :-1].log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    chosen, rejected = (log_probs * mask).sum(-1).chunk(2)
    found = outcome(model, [-torch.nn.functional.logsigmoid(chosen - rejected).sum()])
    sums = {}
    for key in ("chosen_ids", "rejected_ids"):
        sums[key] = []
        for pair in pairs:
            tokens = torch.tensor([pair["prompt_ids"] + pair[key]])
            logits = model(input_ids=tokens, use_cache=False).logits
            of_row = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[0, :, 0]
            sums[key].append(of_row[len(pair["prompt_ids"]) - 1 :].sum())
    margins = torch.stack(sums["chosen_ids"]) - torch.stack(sums["rejected_ids"])
    same(found, outcome(model, [-torch.nn.functional.logsigmoid(margins).sum()]))


@pytest.mark.parametrize("capacity", [3, 5])
def test_labels_of_split_sequences(model, capacity):
    """As their parts one by one."""
    prompts, responses = zip(*ROWS, strict=True)
    layout = fc.Packed(capacity=capacity, algorithm="concat")
    how = {"layout": layout, "labels": "aligned", "position_ids": "zero"}
    batch = fc.build_batch(prompts, responses, pad_token_id=0, **how)
    loss = labelled_loss(model, {key: batch[key] for key in PACKED})
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


@pytest.mark.parametrize("masks", [False, True])
def test_shifted_values_of_packed_rows(model, masks):
    """As README and docs/packing.md do, with a loss of one's own beside the predicting tokens."""
    rows = [(prompt, response) for prompt, response in ROWS if prompt]
    prompts, responses = zip(*rows, strict=True)
    weights = {"loss_mask": [[1] * len(row) for row in responses]} if masks else {}
    how = {"layout": fc.Packed(capacity=9, shift="next_token"), "labels": "shifted"}
    batch = fc.build_batch(prompts, responses, pad_token_id=0, **how, **weights)
    ids, positions = batch.input_ids, batch.position_ids
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    trained = batch.loss_mask > 0
    losses = torch.nn.functional.cross_entropy(
        logits[trained], batch.shift_labels[trained], reduction="none"
    )
    losses = [(losses * batch.loss_mask[trained]).sum()]
    same(outcome(model, losses), one_by_one(model, whole(rows)))


def test_values_that_are_gathered(model):
    """As docs/batches.md does: by rows without padding, and by the width of responses."""
    rows = [(prompt, response) for prompt, response in ROWS if prompt]
    prompts, responses = zip(*rows, strict=True)
    masks = [[1] * len(row) for row in responses]
    batch = fc.build_batch(prompts, responses, pad_token_id=0, loss_mask=masks, position_ids="zero")
    expected = one_by_one(model, whole(rows))
    gathered = batch.gather(log_probs_of(model, batch), align="sequence", shift="next_token")
    same(outcome(model, [-gathered.values.sum()]), expected)
    width, trained = batch.response_mask.shape[1], batch.loss_mask > 0
    same(outcome(model, [-log_probs_of(model, batch)[:, -width:][trained].sum()]), expected)


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


@pytest.mark.parametrize("way", ["numbers", "tokens", "field"])
@pytest.mark.parametrize("layout", ["left", fc.Packed(capacity=9)])
def test_advantages_of_rows_that_are_spread(model, layout, way):
    """As docs/batches.md does: each token that trains counts with the number of its row."""
    rows = [(prompt, response) for prompt, response in ROWS if prompt and response]
    prompts, responses = zip(*rows, strict=True)
    masks = [[int(at % 2 == 0) for at in range(len(row))] for row in responses]
    gains = [0.5 - row for row in range(len(rows))]
    values = {
        "numbers": {"advantages": gains},
        "tokens": {
            "advantages": [
                [gain * at for at in mask] for gain, mask in zip(gains, masks, strict=True)
            ]
        },
        "field": {"fields": {"advantages": fc.Field(gains, spread="trained")}},
    }
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, loss_mask=masks, position_ids="zero", layout=layout,
        dtypes={"loss_mask": "bool", "advantages": "float64"}, **values[way],
    )  # fmt: skip
    log_probs = log_probs_of(model, batch)
    if layout == "left":
        log_probs = log_probs[:, -batch.loss_mask.shape[1] :]
    else:  # beside their own tokens
        log_probs = torch.nn.functional.pad(log_probs, (1, 0))
    trained = batch.loss_mask
    assert ((batch.advantages != 0) == trained).all()
    found = outcome(model, [-(log_probs[trained] * batch.advantages[trained]).sum()])
    losses = []
    for (prompt, response), mask, gain in zip(rows, masks, gains, strict=True):
        ids = torch.tensor([[*prompt, *response]])
        logits = model(input_ids=ids, use_cache=False).logits
        of_row = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[0, :, 0]
        of_response = of_row[len(prompt) - 1 :]
        losses.append(-gain * of_response[torch.tensor(mask, dtype=torch.bool)].sum())
    same(found, outcome(model, losses))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("layout", ["left", "right", fc.Packed(capacity=16)])
def test_advantages_of_merged_turns(model, layout, kind):
    """Each turn counts with its own number, as by itself; observations do not count."""
    model = model if kind == "gpt2" else llama()
    prompts = [[1, 2], [1, 2, 3, 4, 5], [7], [8, 9], [8, 9, 10, 11]]
    responses = [[3, 4], [6], [8, 9], [10], [12, 13]]
    gains = [0.5, -1.0, 2.0, 1.5, -0.25]
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, advantages=gains, trajectory_ids=[0, 0, 1, 2, 2],
        merge="exact", layout=layout, position_ids="zero", dtypes={"advantages": "float64"},
    )  # fmt: skip
    assert batch.plan.num_rows == 3
    trained, log_probs = batch.loss_mask > 0, log_probs_of(model, batch)
    if layout == "left":
        log_probs = log_probs[:, -trained.shape[1] :]
    elif layout == "right":
        starts = batch.prompt_lens[:, None] - 1 + torch.arange(trained.shape[1])
        log_probs = log_probs.gather(1, starts.clamp(max=log_probs.shape[1] - 1))
    else:  # beside their own tokens
        log_probs = torch.nn.functional.pad(log_probs, (1, 0))
    found = outcome(model, [-(log_probs[trained] * batch.advantages[trained]).sum()])
    losses = []
    for prompt, response, gain in zip(prompts, responses, gains, strict=True):
        ids = torch.tensor([[*prompt, *response]])
        logits = model(input_ids=ids, use_cache=False).logits
        of_row = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[0, :, 0]
        losses.append(-gain * of_row[len(prompt) - 1 :].sum())
    expected = outcome(model, losses)
    if kind == "gpt2":
        same(found, expected)
    else:  # in float32
        assert found[0] == pytest.approx(expected[0], rel=1e-6)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-6)


def test_selecting_keeps_what_overflows_out_of_the_loss():
    """As docs/batches.md does: a reference of 0 beside a log-probability of -95."""
    batch = fc.build_batch(
        [[1], [2]], [[3, 4], [5]], pad_token_id=0, loss_mask=[[1, 0], [1]],
        logprobs=[[-1.0, -95.0], [-2.0]],
        fields={"ref_logprobs": fc.Field([[-1.5, 0.0], [-2.5]])},
    )  # fmt: skip
    new = batch.logprobs.clone().requires_grad_()
    trained = batch.loss_mask > 0
    chosen, ref = new[trained], batch.ref_logprobs[trained]
    kl = (ref - chosen).exp() - (ref - chosen) - 1
    kl.sum().backward()
    assert torch.isfinite(new.grad).all()
    by_hand = [np.exp(-0.5) - 0.5] * 2
    assert kl.detach().numpy() == pytest.approx(by_hand)
    # The same by a product with the mask.
    apart = batch.ref_logprobs - batch.logprobs
    assert not torch.isfinite(((apart.exp() - apart - 1) * batch.loss_mask).sum())


@pytest.mark.parametrize("layout", ["left", "right", "jagged", fc.Packed(16)], ids=str)
def test_numbers_of_rows_of_which_some_train_nothing(model, layout):
    """An empty response, one that is masked, and tokens that are: a field and `broadcast` agree."""
    prompts, responses = [[9, 3], [12], [7], [21, 22]], [[4, 2, 1], [], [5, 6], [8, 13]]
    masks, numbers = [[1, 0, 1], [], [0, 0], [1, 1]], [0.5, float("nan"), float("inf"), -2.0]
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, loss_mask=masks, rewards=[1.0, 0.0, 0.0, 2.0],
        fields={"advantages": fc.Field(numbers, spread="trained")}, layout="right",
        position_ids="zero",
    )  # fmt: skip
    assert batch.rewards.sum(1).tolist() == [1, 0, 0, 2]
    log_probs = batch.gather(
        log_probs_of(model, batch), align="sequence", shift="next_token"
    ).values
    expected = one_by_one_weighed(model, prompts, responses, masks, [0.5, 0, 0, -2.0])
    other = batch.to_layout(layout)
    for weights in (other["advantages"], other.broadcast(numbers)):
        weights = other.gather(weights, align="response").values.double()
        found = outcome(model, [-(log_probs * weights).sum()])
        same(found, expected)
        log_probs = batch.gather(log_probs_of(model, batch), align="sequence", shift="next_token")
        log_probs = log_probs.values


def one_by_one_weighed(model, prompts, responses, masks, numbers):
    """Train each row by itself, each token by its mask times the number of the row."""
    losses = []
    for prompt, response, mask, number in zip(prompts, responses, masks, numbers, strict=True):
        ids = torch.tensor([[*prompt, *response]])
        logits = model(input_ids=ids, use_cache=False).logits
        log_probs = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[0, :, 0]
        weights = torch.tensor(mask, dtype=torch.float64) * number
        losses.append(-(log_probs[len(prompt) - 1 :] * weights).sum())
    return outcome(model, losses)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_and_values_as_long_as_responses(model, side):
    """With one prompt token, a model's values have the width of responses, but not their places."""
    rows = [([9], [4, 2, 1]), ([12], [13]), ([7], [5, 6])]
    block = fc.pad([[*p, *r] for p, r in rows], side=side)
    with pytest.raises(ValueError, match="side is None"):
        fc.unpad(block, [4, 2, 3])
    sequences = fc.unpad(block, [4, 2, 3], side=side)
    batch = fc.build_batch(
        sequences=sequences, prompt_lens=[1, 1, 1], pad_token_id=0, layout="right",
        position_ids="zero",
    )  # fmt: skip
    log_probs = log_probs_of(model, batch)
    assert log_probs.shape == batch.response_mask.shape
    with pytest.raises(ValueError, match="align='sequence' with shift='next_token'"):
        batch.gather(log_probs)
    gathered = batch.gather(log_probs, align="sequence", shift="next_token")
    same(outcome(model, [-gathered.values.sum()]), one_by_one(model, whole(rows)))
