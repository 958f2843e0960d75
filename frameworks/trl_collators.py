"""TRL's collators beside `fastcollate.Collator`: more comparisons for `frameworks.parity`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.testing.verifying.subjects import (
    Case,
    Draw,
    Peer,
    draw_numbers,
    draw_rows,
    draw_values,
)
from fastcollate.testing.verifying.trl import TRL

PADDED = ("input_ids", "labels", "attention_mask")
PADDING_FREE = {
    "input_ids": "input_ids",
    "labels": "labels",
    "position_ids": "position_ids",
    "cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k"),
    "max_seqlen": ("max_length_q", "max_length_k"),
    "sequence_ids": "seq_idx",
}


def language_modeling(
    padding_free: bool, pad_to_multiple_of: int | None
) -> Callable[[list[Any]], Mapping[str, Any]]:
    """Return a collator in place of TRL's ``DataCollatorForLanguageModeling``."""
    if padding_free:
        return fc.Collator(
            pad_token_id=0,
            layout=fc.Packed.single_row(),
            outputs=PADDING_FREE,
            dtypes={"sequence_ids": "int32"},
        )
    layout = fc.Right(multiple_of=pad_to_multiple_of or 1)
    return fc.Collator(pad_token_id=0, layout=layout, outputs=PADDED)


def preference(
    samples: list[dict[str, Any]], pad_token_id: int, pad_to_multiple_of: int | None
) -> dict[str, Any]:
    """Return the batch of TRL's ``DataCollatorForPreference``."""
    fields = {}
    outputs = {key: key for key in ("input_ids", "attention_mask", "completion_mask")}
    if "ref_chosen_logps" in samples[0]:
        fields = {"ref_logps": fc.PerRow(("ref_chosen_logps", "ref_rejected_logps"))}
        outputs["ref_logps"] = "ref_logps"
    layout = fc.Right(multiple_of=pad_to_multiple_of or 1)
    collate = fc.Collator(pad_token_id=pad_token_id, layout=layout, fields=fields, outputs=outputs)
    made = dict(collate(samples))
    if fields:
        made["ref_chosen_logps"], made["ref_rejected_logps"] = made.pop("ref_logps").chunk(2)
    return made


@TRL.compares("DataCollatorForLanguageModeling (Collator)")
def language_modeling_samples(draw: Draw, trl: Peer) -> Case:
    """Draw samples with labels, packed or not."""
    is_packed = draw(st.booleans())
    padding_free = is_packed or draw(st.booleans())
    multiple = None if padding_free else draw(st.sampled_from([None, 4]))
    samples = []
    for length in draw_numbers(draw, trl.scale, 1, 6 * trl.scale, 6):
        lengths = [length] * draw(st.integers(1, 3 if is_packed else 1))
        (ids,), (are_labels,) = (draw_rows(draw, [sum(lengths)], 0, most) for most in (99, 1))
        labels = [
            token if is_label else -100 for token, is_label in zip(ids, are_labels, strict=True)
        ]
        sample = {"input_ids": ids, "labels": labels}
        samples.append(sample | {"seq_lengths": lengths} if is_packed else sample)

    def theirs() -> dict[str, Any]:
        collate = trl("trl.trainer.sft_trainer").DataCollatorForLanguageModeling(
            0, padding_free=padding_free, pad_to_multiple_of=multiple
        )
        batch: dict[str, Any] = collate.torch_call(samples)
        if not padding_free:
            batch["labels"][:, 0] = -100  # nothing predicts it
        return batch

    return Case(
        theirs=theirs,
        ours=lambda: language_modeling(padding_free, multiple)(samples),
        given={"samples": samples, "padding_free": padding_free, "pad_to_multiple_of": multiple},
    )


@TRL.compares("DataCollatorForPreference (Collator)")
def preference_pairs(draw: Draw, trl: Peer) -> Case:
    """Draw pairs, with log-probabilities of the reference model or without."""
    multiple = draw(st.sampled_from([None, 4]))
    has_logps = draw(st.booleans())
    pairs = []
    for length in draw_numbers(draw, trl.scale, 1, 6 * trl.scale, 6):
        lengths = [length, *(draw(st.integers(0, 6 * trl.scale)) for _ in range(2))]
        keys = ("prompt_ids", "chosen_ids", "rejected_ids")
        pair: dict[str, Any] = dict(zip(keys, draw_rows(draw, lengths, 1, 99), strict=True))
        if has_logps:
            pair |= {"ref_chosen_logps": -0.25 * length, "ref_rejected_logps": -1.5}
        pairs.append(pair)

    def theirs() -> Any:
        trainer = trl("trl.trainer.dpo_trainer")
        return trainer.DataCollatorForPreference(7, pad_to_multiple_of=multiple).torch_call(pairs)

    return Case(
        theirs=theirs,
        ours=lambda: preference(pairs, 7, multiple),
        given={"pairs": pairs, "pad_token_id": 7, "pad_to_multiple_of": multiple},
    )


@TRL.compares("pad (fastcollate.pad)")
def padded_tensors(draw: Draw, trl: Peer) -> Case:
    """Draw tensors of one to three dimensions, of which the first is padded."""
    import torch

    trailing = draw(st.sampled_from([(), (2,), (2, 3)]))
    lengths = [*draw_numbers(draw, trl.scale, 0, 6 * trl.scale, 5), draw(st.integers(1, 6))]
    dtype = draw(st.sampled_from([torch.int64, torch.float32]))
    tensors = [
        torch.tensor(draw(st.integers(0, 99)), dtype=dtype).expand(length, *trailing)
        for length in lengths
    ]
    fill = draw(st.sampled_from([0, -100, 7]))
    side = draw(st.sampled_from(["left", "right"]))
    multiple = draw(st.sampled_from([None, 4]))
    return Case(
        theirs=lambda: trl("trl.trainer.utils").pad(tensors, fill, side, multiple),
        ours=lambda: fc.pad(tensors, side, fill=fill, multiple_of=multiple or 1),
        given={"tensors": tensors, "fill": fill, "side": side, "multiple": multiple},
    )


@TRL.compares("padding of GRPOTrainer (build_batch)")
def completions(draw: Draw, trl: Peer) -> Case:
    """Draw prompts, and completions with log-probabilities and tool masks."""
    import torch

    lengths = draw_numbers(draw, trl.scale, 1, 6 * trl.scale, 6)
    counts = draw_rows(draw, [len(lengths)], 1, 6 * trl.scale)[0]
    rows: dict[str, Any] = {
        "prompts": draw_rows(draw, lengths, 1, 99),
        "responses": draw_rows(draw, counts, 1, 99),
        "logprobs": draw_values(draw, counts, (-9.0, -0.1, -0.0, -1e-40)),
        "loss_mask": draw_rows(draw, counts, 0, 1),
    }

    def theirs() -> dict[str, Any]:
        pad = trl("trl.trainer.utils").pad
        prompts = [torch.tensor(row) for row in rows["prompts"]]
        responses = [torch.tensor(row) for row in rows["responses"]]
        masks = (
            [torch.ones_like(row) for row in prompts],
            [torch.ones_like(row) for row in responses],
        )
        mask = pad(masks[0], 0, "left"), pad(masks[1], 0, "right")
        return {
            "input_ids": torch.cat([pad(prompts, 7, "left"), pad(responses, 7, "right")], 1),
            "attention_mask": torch.cat(mask, 1),
            "response_mask": mask[1],
            "logprobs": pad([torch.tensor(row) for row in rows["logprobs"]], 0.0, "right"),
            "tool_mask": pad([torch.tensor(row) for row in rows["loss_mask"]], 1, "right")
            * mask[1],
        }

    def ours() -> dict[str, Any]:
        batch = dict(fc.build_batch(**rows, pad_token_id=7, layout="two_segment"))
        batch["tool_mask"] = batch.pop("loss_mask").long()
        return batch

    return Case(theirs=theirs, ours=ours, given=rows)
