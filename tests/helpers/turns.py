"""Turns written as text, and merged rows in one form, whoever found them."""

import numpy as np


def turns(*texts):
    """Make turns of texts such as "ab>c": a prompt of two tokens and a response of one."""
    pairs = [text.split(">") for text in texts]
    return {
        "prompts": [list(map(ord, prompt)) for prompt, _ in pairs],
        "responses": [list(map(ord, response)) for _, response in pairs],
    }


def last_steps(count):
    """Make the flags of one trajectory."""
    return [turn == count - 1 for turn in range(count)]


def text_of(prompt, response):
    """Write token ids as a turn is written."""
    return f"{''.join(map(chr, prompt))}>{''.join(map(chr, response))}"


def runs_of(origins):
    """Sum up where each token of a response comes from as (turn, from, start, len)."""
    runs = []
    for place, origin in enumerate(origins):
        if origin is None:
            continue
        turn, position = origin
        if runs:
            last_turn, first, start, count = runs[-1]
            if (last_turn, first + count, start + count) == (turn, position, place):
                runs[-1] = (turn, first, start, count + 1)
                continue
        runs.append((turn, position, place, 1))
    return runs


def origins_of(plan):
    """Read from a plan where each token of each row's response comes from."""
    tables = plan.to_dict()
    pieces, offsets = tables["pieces"], tables["piece_offsets"]
    assert pieces.shape[1:] == (5,)
    assert offsets.shape == (plan.num_rows + 1,)
    rows = []
    for row, count in enumerate(plan.response_lens.tolist()):
        origins = [None] * count
        for turn, first, start, length, trains in pieces[offsets[row] : offsets[row + 1]].tolist():
            assert trains == 1
            assert 0 <= start <= start + length <= count
            for offset in range(length):
                assert origins[start + offset] is None
                origins[start + offset] = (turn, first + offset)
        rows.append(origins)
    return rows


def check_plan(plan, merged):
    """Check that a plan makes the rows that the loops make, and reports the same."""
    expected = {
        "sources": [row.source for row in merged.rows],
        "trajectories": [row.trajectory for row in merged.rows],
        "prompt_lens": [len(row.prompt) for row in merged.rows],
        "response_lens": [len(row.response) for row in merged.rows],
    }
    for name, values in expected.items():
        found = getattr(plan, name)
        assert found.dtype == np.int64, name
        assert found.tolist() == values, name
    assert origins_of(plan) == [row.origins for row in merged.rows]
    assert plan.num_rows == len(merged.rows)
    assert plan.num_turns == len(merged.response_lens)
    assert plan.num_trajectories == len(merged.trajectories)
    check_report(plan.report, merged)


def check_report(report, merged):
    """Check a report's turns, rows and breaks."""
    assert [found[:9] for found in report.breaks] == [one[:9] for one in merged.breaks]
    assert report.num_trajectories == len(merged.trajectories)
    assert report.num_turns == len(merged.response_lens)
    assert report.num_rows == len(merged.rows)
    assert report.dropped == merged.dropped
    lens = [len(row.prompt) + len(row.response) for row in merged.rows]
    assert report.tokens_after == sum(lens)
    assert report.padded_tokens_after == len(lens) * max(lens, default=0)
    rows_of = [row.trajectory for row in merged.rows]
    counts = [rows_of.count(index) for index in range(len(merged.trajectories))]
    assert report.rows_per_trajectory.dtype == np.int64
    assert report.rows_per_trajectory.tolist() == counts
    if not merged.dropped:
        assert report.masked_tokens == merged.masked_tokens
