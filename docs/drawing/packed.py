"""Two rows in one bin, and the outputs along it: the picture of the page on sequence packing."""

from __future__ import annotations

from itertools import pairwise

from svg import Picture

import fastcollate as fc

CELL, ROW, LEFT = 36, 28, 130


def draw() -> dict[str, Picture]:
    """Draw what `build_batch` returns for a prompt of two tokens and one of one token."""
    layout = fc.Packed(8, pad_to=8)
    batch = fc.build_batch(
        [[11, 12], [21]], [[13, 14], [22, 23]], pad_token_id=0, array_type="numpy", layout=layout
    )
    picture = Picture(
        LEFT + 8 * CELL + 16, 232,
        "Two rows in one bin of eight positions. position_ids count from 0 in each row, "
        "sequence_ids name the row, and loss_mask is 1 on the responses.",
    )  # fmt: skip
    sequences, trains = batch.sequence_ids[0].tolist(), batch.loss_mask[0].tolist()
    for number, name in enumerate(("input_ids", "position_ids", "sequence_ids", "loss_mask")):
        y = 16 + 34 * number
        picture.write(16, y + ROW / 2, name, "code bold")
        for column, value in enumerate(batch[name][0].tolist()):
            kind = "padding"
            if sequences[column] >= 0:
                untrained = "plain" if name == "loss_mask" else "prompt"
                kind = "trained" if trains[column] else untrained
            picture.box(LEFT + CELL * column, y, CELL, ROW, kind, f"{value:g}")
    offsets = batch.cu_seqlens.tolist()
    for number, (start, end) in enumerate(pairwise(offsets)):
        is_row = sequences[start] >= 0
        picture.brace(LEFT + CELL * start, LEFT + CELL * end, 16 + 34 * 4,
                      f"row {number}" if is_row else "padding")  # fmt: skip
    picture.write(16, 16 + 34 * 4 + 16, "cu_seqlens", "code bold")
    picture.legend(16, 212, prompt="prompt", trained="response", padding="padding")
    return {"packed": picture}
