"""The page of a report: one file without scripts and network access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import __version__
from fastcollate.cli.reporting.collecting import Summary
from fastcollate.common.arguments import tally
from fastcollate.inspect.markup import CSS, columns, element, fold, shares, table, text

STYLE = """
:root{color-scheme:light dark}
.fastcollate{font-size:15px;max-width:1080px;margin:0 auto;padding:16px}
.fastcollate h2{font-size:1.15rem;border-top:1px solid rgba(128,128,128,.4);padding-top:12px}
.fastcollate .grid{display:flex;flex-wrap:wrap;gap:10px 32px}
.fastcollate .grid b{display:block;font-size:1.25rem}
.fastcollate .row{overflow-x:auto;margin:10px 0}
"""

BINS = 48
"""Columns of a histogram."""

KINDS = {
    "drift": "inside the last response, e.g. after decoded text was tokenised again",
    "diverged": "elsewhere: the tokens before were changed",
    "shorter": "the prompt ends early: a retry, or a context that was cut",
}

ALL_TRAIN = (
    "Every token trains: the file has no prompts, masks or labels. If it should have, name their "
    "columns."
)

EQUAL_REWARDS = (
    "Every prompt has equal rewards for all of its samples: advantages within groups are 0, and "
    "nothing trains."
)

MOST_LINES = 60
"""Lines of a drawn trajectory."""


def page_of(summary: Summary) -> str:
    """Return the report as HTML."""
    figures = summary.figures
    sections = {
        "Lengths": _lengths(summary),
        "Rewards": _rewards(summary),
        "Log-probabilities": _logprobs(figures["logprobs"]),
        **({} if (found := figures["versions"]) is None else {"Weight versions": _versions(found)}),
        "Padding by layout": _layouts(figures),
        "Merging": _merging(figures["merging"]),
        "Bins": _bins(summary),
        "Ranks": _ranks(figures),
        "Findings": _findings(figures),
        "Rows to look at": _worst(summary),
    }
    body = "".join(
        element("section", text("h2", title) + "".join(parts)) for title, parts in sections.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{text('title', figures['name'] + ': rollouts')}<style>{CSS}{STYLE}</style></head>"
        f'<body><main class="fastcollate">{_head(figures)}{body}</main></body></html>\n'
    )


def noun_of(figures: Mapping[str, Any]) -> str:
    """Return the word for the rows of a file: they are turns if trajectories are known."""
    return "row" if figures["merging"] is None else "turn"


def _note(content: str) -> str:
    return text("p", content, "note")


def _counted(number: int, noun: str) -> tuple[str, str]:
    """Return a noun and its number."""
    count, _, name = tally(number, noun).partition(" ")
    return name, count


def _head(figures: Mapping[str, Any]) -> str:
    """Return the title and the first numbers."""
    sampled, merging = figures["response_tokens"], figures["merging"]
    cards = [_counted(figures["turns"], noun_of(figures))]
    if merging is not None:
        name, number = _counted(merging["num_rows"], "row")
        cards.append((f"{name} when merged", number))
    cards.append(("prompt tokens", _short(figures["prompt_tokens"])))
    cards.append(("response tokens", _short(sampled)))
    share = f"{figures['trained_tokens'] / sampled:.1%}" if sampled else "0"
    cards.append(("of these train", share))
    if (rewards := figures["rewards"]) is not None and "mean" in rewards:
        cards.append(("mean reward", f"{rewards['mean']:.3g}"))
    cards.append(_counted(sum(one["number"] for one in figures["findings"]), "finding"))
    shown = (element("div", f"<b>{value}</b>{name}") for name, value in cards)
    return (
        text("h1", figures["name"])
        + _note(f"Report of fastcollate {__version__}, read as {figures['source']}.")
        + text("p", advice(figures), "title")
        + (text("p", EQUAL_REWARDS, "title") if _are_equal(figures["rewards"]) else "")
        + (text("p", ALL_TRAIN, "title") if figures["all_train"] else "")
        + element("div", "".join(shown), "grid")
    )


def _are_equal(rewards: Mapping[str, Any] | None) -> bool:
    """Return True if there are groups, none of which has an advantage."""
    return rewards is not None and 0 < rewards["groups"] == rewards["equal_groups"]


def advice(figures: Mapping[str, Any]) -> str:
    """Return a line on the layout with the fewest positions; a tree has to save a tenth."""
    layouts, capacity = figures["layouts"], figures["capacity"]
    turns = layouts["turns"]
    found, merge = layouts.get("merged", turns), ""
    if found is not turns:
        merge = f'Merge turns (merge="{figures["merging"]["policy"]}"), then '
    packed, tree = (found[name]["positions"] for name in ("packed", "tree"))
    kind, positions = ("Tree", tree) if tree < 0.9 * packed else ("Packed", packed)
    times = turns["left, right"]["positions"] / max(positions, 1)
    if times < 1.1:
        return "Padding costs little here: the default layout is enough."
    layout = f"layout=fc.{kind}({capacity:,})".replace(",", "_")
    rows = "padded rows" if not merge else "a padded row for each turn"
    return f"{merge or 'Use '}{layout}: {times:.1f} times fewer positions than {rows}."


def histogram(values: NDArray[Any], what: str, unit: str = "") -> str:
    """Return a histogram of lengths, or of fractions (``"%"``), with three of its numbers.

    Parameters
    ----------
    values
        At least one non-negative number.
    what
        The items that are counted, as "prompts".
    unit
        "%" for fractions.
    """

    def number(value: float) -> str:
        return f"{value:.0%}" if unit else f"{value:,.0f}"

    most = float(values.max())
    if unit:
        edges = np.linspace(0, max(1.0, most), BINS // 2 + 1)
    else:  # bins of integer width, so that all hold equally many integers
        step = int(most) // BINS + 1
        edges = np.arange(0, most + step + 1, step)
    counts, edges = np.histogram(values, edges)
    ranges = zip(edges[:-1], edges[1:] - (0 if unit else 1), strict=True)
    titles = [
        f"{' to '.join(map(number, dict.fromkeys(ends)))}: {count:,} {what}"
        for ends, count in zip(ranges, counts.tolist(), strict=True)
    ]
    middle, p95 = np.percentile(values, [50, 95]).tolist()
    return (
        columns(counts.tolist(), titles)
        + _note(f"0 to {number(float(edges[-1]))}")
        + _note(f"median {number(middle)}, p95 {number(p95)}, max {number(most)}")
    )


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _lengths(summary: Summary) -> Iterator[str]:
    rows = "Rows, merged" if summary.figures["merging"] else "Rows"
    titles = ("Prompts", "Responses", rows)
    plots = (
        element("div", text("h3", title) + histogram(values, what))
        for title, (what, values) in zip(titles, summary.lengths.items(), strict=True)
    )
    yield element("div", "".join(plots), "grid")
    yield _note("In tokens.")


def _rewards(summary: Summary) -> Iterator[str]:
    if (rewards := summary.figures["rewards"]) is None:
        yield text(
            "p", "No rewards: no column of a known name has numbers. Name another with --rewards."
        )
        return
    if summary.figures["merging"] is None:
        of = tally(rewards["number"], "row")
    else:
        trajectories = tally(rewards["number"], "trajectory", "trajectories")
        of = f"{trajectories}, each from its last turn"
    yield _note(f"Of {of}.")
    if rewards["not_finite"]:
        number = f"{rewards['not_finite']:,} of {rewards['number']:,}"
        yield text("p", f"{number} are NaN or infinite.")
    if "mean" in rewards:
        counts, edges = np.histogram(summary.rewards[np.isfinite(summary.rewards)], BINS // 2)
        ends = pairwise(edges.tolist())
        titles = [
            f"{low:.3g} to {high:.3g}: {count:,}"
            for (low, high), count in zip(ends, counts.tolist(), strict=True)
        ]
        yield columns(counts.tolist(), titles)
        yield _note(
            f"min {rewards['least']:.3g}, mean {rewards['mean']:.3g}, max {rewards['most']:.3g}"
        )
    if groups := rewards["groups"]:
        yield text(
            "p",
            f"{rewards['equal_groups']:,} of {tally(groups, 'prompt')} with several samples have "
            "equal rewards: their advantages are 0.",
        )
    parts = (
        (_span(part["shortest"], part["longest"]), f"{part['mean']:.3g}")
        for part in rewards["by_length"]
    )
    yield table(("tokens of the response", "mean reward"), parts)
    longest = int(summary.lengths["responses"].max())
    if (cut := summary.figures["longest_responses"] or 0) > 1:
        share = cut / summary.figures["turns"]
        yield text(
            "p",
            f"{cut:,} responses ({share:.1%}) have the largest length, {longest:,}: if the engine "
            "stops there, they were cut off.",
        )


def _logprobs(logprobs: Mapping[str, Any] | None) -> Iterator[str]:
    if logprobs is None:
        yield text(
            "p",
            "No log-probabilities: no column of a known name has numbers. Name another with "
            "--logprobs.",
        )
        return
    if "least" in logprobs:
        yield text("p", f"{logprobs['least']:.4g} to {logprobs['most']:.4g}.")
    number = f"of {logprobs['number']:,}"
    if logprobs["bad"]:
        yield text("p", f"{logprobs['bad']:,} {number} are missing, NaN, infinite or -9999.")
    if logprobs["zero"]:
        yield text("p", f"{logprobs['zero']:,} {number} are exactly 0.")
    if rows := logprobs["rows_of_zeros"]:
        yield text("p", f"All are 0 in {tally(rows, 'row')}: probably placeholders.")


def _versions(versions: Mapping[str, Any]) -> Iterator[str]:
    tokens = f"{versions['tokens']:,} tokens of {tally(versions['number'], 'version')}"
    if "latest" not in versions:
        yield text("p", f"{tokens}.")
        return
    yield text(
        "p",
        f"{tokens}, up to {versions['latest']:,}: {versions['lag_mean']:.3g} behind it on average, "
        f"at most {versions['lag_max']:,}. WeightVersions(max_lag=...) masks older ones.",
    )


def _layouts(figures: Mapping[str, Any]) -> Iterator[str]:
    layouts = figures["layouts"]
    most = max(found["positions"] for of in layouts.values() for found in of.values())
    yield _note(
        f"Batches of {tally(figures['batch_rows'], 'consecutive row')}; packed and tree in bins of "
        f"{figures['capacity']:,}. Tree stores each shared prefix once. Filled: tokens; hatched: "
        "padding."
    )
    for of, by_layout in layouts.items():
        if figures["merging"] is not None:
            yield text("h3", "Each turn a row" if of == "turns" else "Turns merged to rows")
        for name, found in by_layout.items():
            tokens, positions = found["tokens"], found["positions"]
            line = f"{name}: {_short(tokens)} tokens in {_short(positions)} positions, "
            yield text("div", f"{line}{found['padding']:.1%} padding")
            parts = ("filled", tokens), ("padding", positions - tokens), ("rest", most - positions)
            yield shares(parts)


def _merging(merging: Mapping[str, Any] | None) -> Iterator[str]:
    if merging is None:
        yield text(
            "p",
            "No trajectory ids, so turns were not merged. Name the column with --trajectory-ids or "
            "--is-last-step.",
        )
        return
    before, after = merging["tokens_before"], merging["tokens_after"]
    trajectories = tally(merging["num_trajectories"], "trajectory", "trajectories")
    yield text(
        "p",
        f"{tally(merging['num_turns'], 'turn')} of {trajectories} make "
        f"{tally(merging['num_rows'], 'row')} with policy {merging['policy']}: {after:,} tokens "
        f"in place of {before:,}, {before / after if after else 1.0:.1f}x fewer.",
    )
    if merging["masked_tokens"]:
        yield text("p", f"Realigning masked {tally(merging['masked_tokens'], 'sampled token')}.")
    spread = ", ".join(f"{n:,} have {rows}" for rows, n in merging["rows_per_trajectory"].items())
    yield _note(f"Rows per trajectory: {spread}.")
    breaks = sum(merging["kinds"].values())
    if breaks == 0:
        yield text("p", "No breaks: every turn continues the one before it.")
        return
    yield text("h3", f"{tally(breaks, 'break')}: where a prompt differs from the tokens before it")
    yield _counts((f"{kind}: {KINDS[kind]}", count) for kind, count in merging["kinds"].items())
    looked_at = merging["num_looked_at"]
    yield text("h3", f"Reasons{f', of {looked_at:,} drawn evenly' if looked_at < breaks else ''}")
    yield _counts(merging["hints"].items())
    if trees := merging["trees"]:
        drawn = (text("div", _shorten(tree), "tokens row") for tree in trees)
        yield fold(
            f"The {tally(len(trees), 'trajectory', 'trajectories')} with the most breaks",
            _note("Numbers are rows of the file; each row is below the row it branches from.")
            + "".join(drawn),
        )


def _counts(items: Iterable[tuple[str, int]]) -> str:
    return table(("", "number"), [(name, f"{count:,}") for name, count in items])


def _shorten(tree: str) -> str:
    lines = tree.splitlines()
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"... {more:,} more lines"] if more > 0 else [])])


def _bins(summary: Summary) -> Iterator[str]:
    fill, capacity = summary.bin_fill, summary.figures["capacity"]
    yield text(
        "p",
        f"{tally(len(summary.lengths['rows']), 'row')} fill {tally(len(fill), 'bin')} of "
        f"{capacity:,} tokens to {fill.mean():.1%} on average.",
    )
    yield histogram(fill, "bins", "%")


def _ranks(figures: Mapping[str, Any]) -> Iterator[str]:
    ranks = figures["ranks"]
    yield _note(
        f"{tally(ranks['mini_batches'], 'mini-batch', 'mini-batches')} of "
        f"{tally(figures['batch_rows'], 'row')} for {tally(ranks['number'], 'rank')}, by cost in "
        f"{ranks['cost']}. Idle: the share of time ranks wait for the slowest in each mini-batch."
    )
    plots = []
    for load in ranks["loads"]:
        costs = load["per_rank"]
        titles = [f"rank {rank}: cost {cost:,.6g}" for rank, cost in enumerate(costs)]
        plot = columns(costs, titles)
        ends = _note(f"rank 0 to rank {ranks['number'] - 1}")
        plots.append(text("h3", f"{load['name']}: {load['idle']:.1%} idle") + plot + ends)
    yield element("div", "".join(element("div", plot) for plot in plots), "grid")


def _findings(figures: Mapping[str, Any]) -> Iterator[str]:
    findings = figures["findings"]
    if not findings:
        yield text("p", "No findings.")
        return
    yield _note(
        f"batch.check() on {noun_of(figures)}s, with the row numbers of the file; a few findings "
        "of each kind."
    )
    for found in findings:
        yield text("p", f"{found['kind']} ({found['number']:,})", "title")
        for line in (*found["examples"], f"→ {found['advice']}"):
            yield text("div", line, "part")


def _worst(summary: Summary) -> Iterator[str]:
    yield _note(
        "The first rows with each kind of finding, and the longest row, of "
        f"{tally(summary.figures['turns'], noun_of(summary.figures))}."
    )
    for worst in summary.worst:
        yield element("div", text("p", worst.why) + worst.view.rows_html(), "row")


def _short(number: float) -> str:
    """Format a number of tokens."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:,.0f}"
