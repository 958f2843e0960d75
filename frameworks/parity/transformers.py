"""transformers: its collator without padding."""

from __future__ import annotations

from hypothesis import strategies as st

from fastcollate.compat import transformers as compat
from frameworks.parity.framework import Case, Draw, Framework, Peer

TRANSFORMERS = Framework("transformers", "transformers", "pip install transformers")

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
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=8))
    tokens = st.integers(-(2**63), 2**63 - 1)
    features = [
        {
            name: draw(st.lists(tokens, min_size=length, max_size=length))
            for name in ("input_ids", *["labels"] * has_labels)
        }
        for length in lengths
    ]
    module = transformers("transformers.data.data_collator")
    return Case(
        theirs=lambda: module.DataCollatorWithFlattening(**options)(features),
        ours=lambda: compat.DataCollatorWithFlattening(**options)(features),
        given={"features": features, **options},
    )
