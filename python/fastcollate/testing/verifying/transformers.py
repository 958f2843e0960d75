"""transformers: its collator without padding."""

from __future__ import annotations

from hypothesis import strategies as st

from fastcollate.compat import transformers as compat
from fastcollate.testing.verifying.sizes import draw_numbers, draw_rows
from fastcollate.testing.verifying.subjects import Case, Draw, Peer, Subject

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


@TRANSFORMERS.compares("DataCollatorWithFlattening")
def flattened_features(draw: Draw, transformers: Peer) -> Case:
    """Draw examples with at least one token and as many labels, or without labels."""
    options = draw(OPTIONS)
    has_labels = draw(st.booleans())
    lengths = draw_numbers(draw, transformers.scale, 1, 8 * transformers.scale, 8)
    names = ("input_ids", *["labels"] * has_labels)
    columns = [draw_rows(draw, lengths, -(2**63), 2**63 - 1) for _ in names]
    features = [dict(zip(names, rows, strict=True)) for rows in zip(*columns, strict=True)]
    module = transformers("transformers.data.data_collator")
    return Case(
        theirs=lambda: module.DataCollatorWithFlattening(**options)(features),
        ours=lambda: compat.DataCollatorWithFlattening(**options)(features),
        given={"features": features, **options},
    )
