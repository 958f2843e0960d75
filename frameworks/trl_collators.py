"""TRL's collators beside `fastcollate.Collator`: more comparisons for `frameworks.parity`."""

from __future__ import annotations

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


def preference(
    samples: list[dict[str, Any]], pad_token_id: int, pad_to_multiple_of: int | None
) -> dict[str, Any]:
    """Return the batch of TRL's ``DataCollatorForPreference``."""
    logps = ("ref_chosen_logps", "ref_rejected_logps")
    outputs = (
        "input_ids",
        "attention_mask",
        "completion_mask",
        *(logps if logps[0] in samples[0] else ()),
    )
    layout = fc.Right(multiple_of=pad_to_multiple_of or 1)
    return fc.Collator(pad_token_id=pad_token_id, layout=layout, outputs=outputs)(samples)


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
