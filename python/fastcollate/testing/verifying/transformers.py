"""transformers: its collator without padding."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fastcollate.testing.verifying.subjects import Draw, Peer, Subject, draw_numbers, draw_rows

TRANSFORMERS = Subject("transformers", "transformers")

OPTIONS = st.fixed_dictionaries(
    {
        "return_tensors": st.sampled_from(["pt", "np"]),
        "return_position_ids": st.booleans(),
        "separator_id": st.sampled_from([-100, 7]),
        "return_flash_attn_kwargs": st.booleans(),
        "return_seq_idx": st.booleans(),
        "position_ids_start": st.sampled_from([0, 2]),
    }
)


@TRANSFORMERS.calls(
    "transformers.data.data_collator",
    "DataCollatorWithFlattening",
    by=lambda collator, features, **options: collator(**options)(features),
)
def flattened_features(draw: Draw, transformers: Peer) -> dict[str, Any]:
    """Draw examples with at least one token and as many labels, or without labels."""
    lengths = draw_numbers(draw, transformers.scale, 1, 8 * transformers.scale, 8)
    names = ("input_ids", *["labels"] * draw(st.booleans()))
    columns = [draw_rows(draw, lengths, -(2**63), 2**63 - 1) for _ in names]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return {"features": rows, **draw(OPTIONS)}
