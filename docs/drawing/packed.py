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
        LEFT + 8 * CELL + 16, 236,
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
                kind = "trained" if trains[column] else "prompt"
            picture.box(LEFT + CELL * column, y, CELL, ROW, kind, f"{value:g}")
    y = 16.0 + 34 * 4
    picture.write(16, y + 8, "cu_seqlens", "code bold")
    offsets = batch.cu_seqlens.tolist()
    for offset in offsets:
        picture.write(LEFT + CELL * offset, y + 8, str(offset), "small code", "middle")
    for number, (start, end) in enumerate(pairwise(offsets)):
        is_row = sequences[start] >= 0
        text = f"row {number}" if is_row else "padding"
        picture.brace(LEFT + CELL * start, LEFT + CELL * end, y + 19, text)
    picture.legend(16, 216, prompt="prompt", trained="response", padding="padding")
    return {"packed": picture}
