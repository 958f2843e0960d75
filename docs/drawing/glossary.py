"""Pictures of the glossary, from results of the library."""

from __future__ import annotations

from svg import Picture

import fastcollate as fc

CELL, ROW = 30, 26
PROMPTS = [[11, 12], [11, 12, 21, 22, 31], [11, 12, 21, 22, 31, 23, 24, 32]]
RESPONSES = [[21, 22], [23, 24], [25]]


def turns() -> Picture:
    """Draw the turns of a trajectory, and the row that they make."""
    batch = fc.build_batch(
        PROMPTS, RESPONSES, pad_token_id=0, array_type="numpy", trajectory_ids=["t"] * 3,
        merge="exact",
    )  # fmt: skip
    (ids,), (mask,) = batch.input_ids.tolist(), batch.loss_mask.tolist()
    left = 70
    picture = Picture(
        left + CELL * len(ids) + 16, 230,
        "Three turns of a trajectory. Each prompt repeats all earlier turns. The row that they "
        "make has every token once; its pieces are the three responses; tool outputs are masked.",
    )  # fmt: skip
    for number, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        y = 14 + 31 * number
        picture.write(16, y + ROW / 2, f"turn {number}", "bold")
        for column, token in enumerate([*prompt, *response]):
            kind = "prompt" if column < len(prompt) else "trained"
            picture.box(left + CELL * column, y, CELL, ROW, kind, str(token))
    picture.write(left + CELL * len(ids), 27, "one trajectory: three turns", "small dim", "end")
    y = 128.0
    picture.arrow(left + CELL * len(ids) / 2, 108, left + CELL * len(ids) / 2, y - 4)
    picture.write(16, y + ROW / 2, "row", "bold")
    begin = len(ids) - len(mask)
    for column, token in enumerate(ids):
        kind = "prompt" if column < begin else "trained" if mask[column - begin] else "masked"
        picture.box(left + CELL * column, y, CELL, ROW, kind, str(token))
    end = 0
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        start = left + CELL * len(prompt)
        end = start + CELL * len(response)
        picture.brace(start, end, y + ROW + 2, "piece")
    picture.legend(
        16, 192, prompt="prompt", trained="sampled, trains", masked="tool output, masked"
    )
    return picture


def groups() -> Picture:
    """Draw the rows of two prompts."""
    uids, lengths = ["p0", "p0", "p0", "p1", "p1"], [(3, 5), (3, 2), (3, 4), (5, 2), (5, 4)]
    left, cell = 70, 24
    picture = Picture(
        430, 32 + 31 * len(uids),
        "Five rows: three with the uid p0 and the same prompt, two with the uid p1.",
    )  # fmt: skip
    for row, (prompt, response) in enumerate(lengths):
        y = 14 + 31 * row
        picture.write(16, y + ROW / 2, f"row {row}", "bold")
        for column in range(prompt + response):
            kind = "prompt" if column < prompt else "trained"
            picture.box(left + cell * column, y, cell, ROW, kind)
    x = left + cell * 9 + 12
    for first, end in fc.planning.prompt_boundaries(uids):
        top, bottom = 16 + 31 * first, 14 + 31 * (end - 1) + ROW
        picture.parts.append(f'<path d="M{x} {top}h5V{bottom}h-5" class="line"/>')
        picture.write(x + 14, (top + bottom) / 2, f"prompt group {uids[first]}")
    return picture


def bins() -> Picture:
    """Draw rows in bins."""
    lengths, capacity = [7, 5, 4, 3, 3, 2], 10
    plan = fc.planning.pack(lengths, fc.Packed(capacity))
    left, kinds = 70, ["prompt", "trained", "masked", "shared", "other", "plain"]
    picture = Picture(
        left + CELL * capacity + 16, 26 + 31 * len(plan.bins) + 22,
        f"Six rows in {len(plan.bins)} bins of {capacity} tokens; free positions are padding.",
    )  # fmt: skip
    for number, rows in enumerate(plan.bins):
        y, x = 14 + 31 * number, float(left)
        picture.write(16, y + ROW / 2, f"bin {number}", "bold")
        for row in rows:
            width = CELL * lengths[row]
            picture.box(x, y, width, ROW, kinds[row], f"row {row}", "small")
            x += width
        while x < left + CELL * capacity:
            picture.box(x, y, CELL, ROW, "padding")
            x += CELL
    y = 14 + 31 * len(plan.bins)
    picture.brace(left, left + CELL * capacity, y, f"capacity: {capacity} tokens")
    return picture


def step() -> Picture:
    """Draw the mini-batches, shards and micro-batches of a step."""
    uids, lengths = list("aabbbcdd"), [5, 4, 3, 6, 2, 4, 3, 5]
    plan = fc.plan_step(lengths, uids=uids, prompts_per_mini_batch=2, dp_size=2)
    kinds = dict(zip("abcd", ("prompt", "trained", "masked", "shared"), strict=True))
    left, unit, gap, shard_width = 16, 12, 12, 200
    most = max(len(plan.shard(mini, 0).rows) for mini in range(plan.num_mini_batches))
    height = 22 * most + 14
    picture = Picture(
        left + 2 * (shard_width + gap), 26 + plan.num_mini_batches * (height + 30),
        "Two mini-batches of two prompts each, as shards for two ranks. A shard has the same "
        "number of slots on every rank, and is processed in two micro-batches. Padding rows fill "
        "free slots.",
    )  # fmt: skip
    for rank in range(2):
        x = left + rank * (shard_width + gap)
        picture.write(x + 6, 20, f"rank {rank}", "bold")
    for mini in range(plan.num_mini_batches):
        top = 56 + mini * (height + 30)
        picture.write(left, top - 12, f"mini-batch {mini}: 2 prompts", "small dim")
        for rank in range(2):
            x = left + rank * (shard_width + gap)
            shard = plan.shard(mini, rank)
            size = f'width="{shard_width}" height="{22 * len(shard.rows) + 10}"'
            picture.parts.append(f'<rect x="{x}" y="{top}" {size} rx="5" class="line"/>')
            y = top + 5.0
            for number, micro in enumerate(shard.micro_batches(2)):
                first = y
                for row in micro.rows.tolist():
                    kind = "padding" if row < 0 else kinds[uids[row]]
                    length = 2 if row < 0 else lengths[row]
                    text = "" if row < 0 else f"row {row}"
                    picture.box(x + 6, y, unit * max(length, 2) + 18, 22, kind, text, "small")
                    y += 22
                picture.line(x + 106, first + 3, x + 106, y - 3)
                picture.write(x + 114, (first + y) / 2, f"micro-batch {number}", "small dim")
    return picture


def segments() -> Picture:
    """Draw the segments of rows in the two-segment layout."""
    rows = [([11, 12], [21, 22, 23]), ([13, 14, 15], [24])]
    batch = fc.build_batch(
        [row[0] for row in rows], [row[1] for row in rows], pad_token_id=0, array_type="numpy",
        layout="two_segment",
    )  # fmt: skip
    picture = Picture(
        340, 232,
        "Two rows of tokens, and below them the grid of the two-segment layout. Each row "
        "is two segments: its prompt ends in column 2, its response begins in column 3.",
    )  # fmt: skip
    left, top = 70, 136
    for row, (prompt, response) in enumerate(rows):
        y = 14 + 31 * row
        picture.write(16, y + ROW / 2, f"row {row}", "bold")
        for column, token in enumerate([*prompt, *response]):
            kind = "prompt" if column < len(prompt) else "trained"
            picture.box(left + CELL * column, y, CELL, ROW, kind, str(token))
    for row, attended in enumerate(batch.attention_mask.tolist()):
        for column, is_token in enumerate(attended):
            if not is_token:
                picture.box(left + CELL * column, top + 31 * row, CELL, ROW, "padding")
    picture.arrow(left + CELL * 3, 104, left + CELL * 3, top - 6)
    segments = batch.plan.read_segments().tolist()
    for row, start, length, to_row, to_column in segments:
        kind = "prompt" if start == 0 else "trained"
        x, y = left + CELL * to_column, top + 31 * to_row
        tokens = [*rows[row][0], *rows[row][1]][start : start + length]
        picture.box(x, y, CELL * length, ROW, kind, " ".join(map(str, tokens)))
    row, start, length, to_row, to_column = segments[2]
    picture.brace(left + CELL * start, left + CELL * (start + length), 73, f"a span of row {row}")
    text = f"a segment: {(row, start, length)} to {(to_row, to_column)}"
    picture.brace(left + CELL * to_column, left + CELL * (to_column + length), top + 59, text)
    return picture


def tree() -> Picture:
    """Draw rows that share tokens, and the bin that holds the tokens once."""
    prompts, responses = [[11, 12, 13]] * 3, [[21, 22], [21, 23, 24], [25]]
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, array_type="numpy", layout=fc.Tree(capacity=16)
    )
    plan = fc.planning.prefix_tree(prompts, responses)
    left = 110
    picture = Picture(
        440, 182,
        "Three rows that begin with the same tokens; the bin stores each shared token once.",
    )  # fmt: skip
    tokens = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    stored = []
    shared_with_next = [*plan.shared[1:].tolist(), 0]
    for line, (row, shared, shares) in enumerate(
        zip(plan.order.tolist(), plan.shared.tolist(), shared_with_next, strict=True)
    ):
        y = 14 + 31 * line
        picture.write(16, y + ROW / 2, f"row {row}", "bold")
        for column, token in enumerate(tokens[row]):
            kind = "padding" if column < shared else "shared" if column < shares else "trained"
            picture.box(left + CELL * column, y, CELL, ROW, kind, str(token))
            if column >= shared:
                stored.append((token, kind))
    y = 140.0
    picture.arrow(left + CELL, 110, left + CELL, y - 4)
    text = "dashed: shared with the row above, stored once"
    picture.write(left + CELL + 14, 122, text, "small dim")
    picture.write(16, y + ROW / 2, "tree (a bin)", "bold")
    assert batch.input_ids.tolist() == [[token for token, _ in stored]]
    for column, (token, kind) in enumerate(stored):
        picture.box(left + CELL * column, y, CELL, ROW, kind, str(token))
    return picture


def draw() -> dict[str, Picture]:
    """Draw every picture of the glossary."""
    pictures = (turns, groups, bins, step, segments, tree)
    return {picture.__name__: picture() for picture in pictures}
