"""The page of a report: one file without scripts and network access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, chain
from typing import Any

import numpy as np

from fastcollate._fastcollate import __version__
from fastcollate.cli.reporting import plots
from fastcollate.cli.reporting.advice import advice_on, saves_rows, what_first
from fastcollate.cli.reporting.collecting import COMPARED, NEED_TOKENIZER, Summary
from fastcollate.cli.reporting.plots import columns, histogram, of_lags, of_logprobs, of_rewards
from fastcollate.cli.reporting.wording import (
    batches_of,
    counted_findings,
    decimal,
    line_of,
    noun_of,
    read_as,
    short,
    span,
)
from fastcollate.common.arguments import tally
from fastcollate.inspect.findings import title_of
from fastcollate.inspect.markup import CSS, element, fold, shares, table, text

STYLE = """
:root{color-scheme:light dark}
.fastcollate{font-size:15px;max-width:1140px;margin:0 auto;padding:16px}
.fastcollate h2{font-size:1.3rem;border-top:1px solid rgba(128,128,128,.4);padding-top:12px}
.fastcollate h3{font-size:1rem}
.fastcollate .verdict{border-left:6px solid rgba(128,128,128,.6);padding:2px 10px;font-weight:600}
.fastcollate .verdict.good{border-color:#2da44e}
.fastcollate .verdict.warning{border-color:#bf8700}
.fastcollate .verdict.error{border-color:#cf222e}
.fastcollate .wide{width:min(40em,45vw)}
@media(max-width:600px){.fastcollate td,.fastcollate th{padding:.1em .3em;font-size:12px}
.fastcollate .wide{width:38vw}.fastcollate td:first-child{min-width:5em}
.fastcollate .layouts :is(td,th):nth-child(2){display:none}}
.fastcollate th{white-space:normal;overflow-wrap:normal}
.fastcollate a{color:inherit}
.fastcollate .grid>div{min-width:0;max-width:100%}
.fastcollate .grid{display:flex;flex-wrap:wrap;gap:10px 32px}
.fastcollate .grid b{display:block;font-size:1.25rem}
.fastcollate .row{overflow-x:auto;margin:10px 0}
"""

BREAKS = {
    "drift": "inside the last response, e.g. after decoded text was tokenised again",
    "diverged": "elsewhere: the tokens before were changed",
    "shorter": "the prompt ends early: a retry, turns out of order, or a context that was cut",
}

DOUBTED = ("Lengths", "Padding by layout", "Merging", "Ranks")
"""Sections that mean nothing before padding is taken out, and turns are in order."""

OF_SPEED = ("padding-by-layout", "ranks")
"""Sections whose advice is not on what trains."""

MOST_LINES = 60
"""Lines of a drawn trajectory."""

MOST_NUMBERS = 4
"""Rows of a prompt that are listed."""

MOST_LISTED = 12
"""Rows of a table of versions, or of numbers of turns."""


def page_of(summary: Summary) -> str:
    """Return the report as HTML."""
    figures = summary.figures
    versions, merging = figures["versions"], figures["merging"]
    sections = {
        "Findings": _findings(figures),
        "Rewards": _rewards(summary),
        "Log-probabilities": _logprobs(summary),
        **({} if versions is None else {"Weight versions": _versions(versions)}),
        "Lengths": _lengths(summary),
        "Padding by layout": _layouts(figures),
        **({} if merging is None else {"Merging": _merging(merging)}),
        "Ranks": _ranks(figures),
        "Rows to look at": _rows(summary),
    }
    doubt = what_first(figures)
    note = "" if doubt is None else text("p", doubt, "title")
    body = "".join(
        f'<section id="{_anchor(title)}">{text("h2", title)}'
        f"{note if title in DOUBTED else ''}{''.join(parts)}</section>"
        for title, parts in sections.items()
    )
    links = element(
        "p", " · ".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in sections), "note"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{text('title', figures['name'] + ': rollouts')}"
        f"<style>{CSS}{plots.STYLE}{STYLE}</style></head>"
        f'<body><main class="fastcollate">{_head(figures)}{links}{_to_do(figures)}{body}'
        "</main></body></html>\n"
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _note(content: str) -> str:
    return text("p", content, "note")


def _counted(number: int, noun: str, plural: str | None = None) -> tuple[str, str]:
    """Return a noun and its number."""
    count, _, name = tally(number, noun, plural).partition(" ")
    return name, count


def _head(figures: Mapping[str, Any]) -> str:
    """Return the title and the first numbers."""
    sampled, merging = figures["response_tokens"], figures["merging"]
    cards = [_counted(figures["turns"], noun_of(figures))]
    if figures["trajectories"] is not None:
        cards.append(_counted(figures["trajectories"], "trajectory", "trajectories"))
    if merging is not None:
        name, number = _counted(merging["num_rows"], "row")
        cards.append((f"{name} when merged", number))
    if figures["prompts"] is not None:
        cards.append(_counted(figures["prompts"], "prompt"))
    cards.append(("prompt tokens", short(figures["prompt_tokens"])))
    cards.append(("response tokens", short(sampled)))
    share = f"{figures['trained_tokens'] / sampled:.1%}" if sampled else "0"
    cards.append(("of these train", share))
    if (rewards := figures["rewards"]) is not None and "mean" in rewards:
        cards.append(("mean reward", decimal(rewards["mean"])))
    shown = (element("div", f"<b>{value}</b>{name}") for name, value in cards)
    return (
        text("h1", figures["name"])
        + _note(f"Report of fastcollate {__version__}, {read_as(figures)}.")
        + element("div", "".join(shown), "grid")
        + _note(f"Options: {' '.join(_options(figures))}")
    )


def _to_do(figures: Mapping[str, Any]) -> str:
    """Return what to do, with links to sections: errors, then warnings, then advice."""
    lines: dict[str, list[tuple[str, str]]] = {"error": [], "warning": [], "advice": []}
    for found in figures["findings"]:
        lines[found["severity"]].append((f"{line_of(found)}.", "findings"))
    lines["advice"] += advice_on(figures)
    items = (
        element("li", f'{escape(line)} <a href="#{section}">More</a>')
        for line, section in chain.from_iterable(lines.values())
    )
    worst = next((one for one in ("error", "warning") if lines[one]), "")
    is_good = not worst and all(section in OF_SPEED for _, section in lines["advice"])
    kinds = ", ".join(dict.fromkeys(found["kind"] for found in figures["findings"]))
    verdict = f"{counted_findings(figures)}: {kinds}" if worst else "No errors, no warnings"
    color = "good" if is_good else worst
    head = text("h2", "What to do") + text("p", verdict, f"verdict {color}".rstrip())
    return head + element("ol", "".join(items))


def _options(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that the figures depend on."""
    if figures["trajectories"] is not None:
        merging = figures["merging"]
        yield f"--merge {'none' if merging is None else merging['policy']}"
    yield f"--rows-per-mini-batch {figures['batch_rows']}"
    yield f"--capacity {figures['capacity']}"
    yield f"--dp-size {figures['ranks']['number']}"


def _lengths(summary: Summary) -> Iterator[str]:
    rows = "Rows, merged" if summary.figures["merging"] else "Rows"
    titles = ("Prompts", "Responses", rows)
    nouns = (noun_of(summary.figures), noun_of(summary.figures), "row")
    plots = (
        element("div", text("h3", title) + histogram(values, noun))
        for title, noun, values in zip(titles, nouns, summary.lengths.values(), strict=True)
    )
    yield element("div", "".join(plots), "grid")
    figures = summary.figures
    longest = figures["lengths"]["responses"]["longest"]
    number = figures["longest_responses"]
    verb = "has" if number == 1 else "have"
    yield text(
        "p",
        f"{tally(number, 'response')} ({_share(number, summary)}) {verb} the largest length, "
        f"{longest:,}.",
    )
    if (reasons := figures["finish_reasons"]) is not None:
        yield text("h3", "Finish reasons")
        yield table(
            ("finish reason", "responses", "share", "mean reward"),
            [
                (reason, f"{one['number']:,}", _share(one["number"], summary), _mean(one))
                for reason, one in reasons.items()
            ],
        )


def _share(number: int, summary: Summary) -> str:
    return f"{number / summary.figures['turns']:.1%}"


def _mean(of_reason: Mapping[str, Any]) -> str:
    mean = of_reason["mean_reward"]
    return "" if mean is None else decimal(mean)


def _rewards(summary: Summary) -> Iterator[str]:
    if (rewards := summary.figures["rewards"]) is None:
        yield text(
            "p", "No rewards: no column of a known name has numbers. Name another with --rewards."
        )
        return
    what, of = "rows", ""
    if summary.figures["trajectories"] is not None:
        what = "trajectories"
        of = ", each the sum of its turns" if rewards["are_summed"] else ", each of its last turn"
    if rewards["not_finite"]:
        number = f"{rewards['not_finite']:,} of {rewards['number']:,}"
        yield text("p", f"{number} are NaN or infinite.")
    drawn = []
    if "mean" in rewards:
        plot = of_rewards(summary.rewards[np.isfinite(summary.rewards)], what)
        numbers = {"least": "min", "median": "median", "mean": "mean", "std": "std", "most": "max"}
        line = ", ".join(f"{word} {decimal(rewards[name])}" for name, word in numbers.items())
        drawn.append(text("h3", f"Rewards of {what}{of}") + plot + _note(line))
    if len(summary.group_means) > 0:
        plot = of_rewards(summary.group_means, "prompts")
        drawn.append(text("h3", "Mean reward of prompts with several samples") + plot)
    if len(by_length := rewards["by_length"]) > 1:
        of = f"response tokens{'' if what == 'rows' else ', all turns'}"
        parts = [(span(part["shortest"], part["longest"]), part) for part in by_length]
        drawn.append(text("h3", "By length") + _means(of, what, parts))
    if len(by_turns := rewards["by_turns"]) > 1:
        parts = [(f"{part['turns']:,}", part) for part in by_turns[:MOST_LISTED]]
        more = len(by_turns) - MOST_LISTED
        note = _note(f"and {more:,} larger numbers of turns") if more > 0 else ""
        drawn.append(text("h3", "By number of turns") + _means("turns", what, parts) + note)
    yield element("div", "".join(element("div", plot) for plot in drawn), "grid")
    if rewards["are_guessed"]:
        are_some = "rows with equal prompts count as samples of one"
        note = are_some if rewards["most_samples"] > 1 else "no two rows have equal prompts"
        yield text("p", f"No prompt ids: {note}. Name ids with --uids.")
    elif rewards["most_samples"] == 1:
        yield text("p", "Every prompt has one sample.")
    if rewards["groups"]:
        yield from _groups(rewards)
    elif rewards["most_samples"] > 1:
        yield text("p", "No prompt has several samples with finite rewards.")
    if (advantages := summary.figures["advantages"]) is not None and "mean" in advantages:
        zero = f"{advantages['zero'] / advantages['number']:.1%}"
        noise = 1e-6 * advantages["std"]  # a mean of float32
        mean, std, least, most = (
            decimal(advantages[name], noise) for name in ("mean", "std", "least", "most")
        )
        yield text(
            "p",
            f"Advantages: mean {mean}, std {std}, min {least}, max {most}; {zero} are 0.",
        )


def _means(of: str, what: str, parts: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Return a table of the mean rewards of parts."""
    lines = [(name, f"{part['number']:,}", decimal(part["mean"])) for name, part in parts]
    return table((of, what, "mean reward"), lines)


def _groups(rewards: Mapping[str, Any]) -> Iterator[str]:
    """Describe the prompts with several samples."""
    samples = f"{tally(rewards['groups'], 'prompt')}, of {span(*rewards['samples'])} samples each,"
    equal = rewards["equal_groups"]
    if equal == 0:
        yield text("p", f"Of {samples} none has equal rewards.")
        return
    ends = ""
    if rewards["least"] < rewards["most"]:
        least, most = (
            f"{rewards[f'equal_at_{end}'] or 'none'} with the {word}, {decimal(rewards[end])}"
            for end, word in (("least", "lowest reward"), ("most", "highest reward"))
        )
        ends = f": {least}; {most}"
    yield text(
        "p",
        f"{equal:,} of {samples} {'has' if equal == 1 else 'have'} equal rewards, so all "
        f"advantages are 0{ends}.",
    )
    shown = rewards["equal_prompts"]
    lines = [
        (one["uid"] or "", f"{one['samples']:,}", decimal(one["reward"]), _listed(one["rows"]))
        for one in shown
    ]
    first = "" if len(shown) == rewards["equal_groups"] else f"The first {len(shown)} "
    title = f"{first}prompts with equal rewards".capitalize()
    yield fold(title, table(("prompt", "samples", "reward", "rows"), lines))


def _listed(rows: Sequence[int]) -> str:
    """List the first of some rows."""
    first = ", ".join(f"{row:,}" for row in rows[:MOST_NUMBERS])
    return first + (" ..." if len(rows) > MOST_NUMBERS else "")


def _logprobs(summary: Summary) -> Iterator[str]:
    if (logprobs := summary.figures["logprobs"]) is None:
        yield text(
            "p",
            "No log-probabilities: no column of a known name has numbers. Name another with "
            "--logprobs.",
        )
        return
    if "least" in logprobs:
        yield text("h3", "Tokens by log-probability")
        yield of_logprobs(summary.logprob_bars, logprobs["most"] > 0)
        rare = f"{tally(logprobs['rare'], 'token')} ({logprobs['rare'] / logprobs['number']:.2%})"
        mean, least, most = (decimal(logprobs[name]) for name in ("mean", "least", "most"))
        yield _note(
            f"mean {mean} per token, min {least}, max {most}; {rare} had a probability below 1%"
        )
    bad, zero = (logprobs[name] for name in ("bad", "zero"))
    of = f"of {logprobs['number']:,} trained tokens"
    is_bad = f"{bad:,} {of} are" if bad else f"None {of} is"
    is_zero = f"{zero:,} are" if zero else "none is"
    yield text("p", f"{is_bad} missing, NaN, infinite or -9999, and {is_zero} exactly 0.")
    if rows := logprobs["rows_of_zeros"]:
        yield text("p", f"In {tally(rows, 'row')} all are 0: probably placeholders.")


def _versions(versions: Mapping[str, Any]) -> Iterator[str]:
    tokens = f"{versions['tokens']:,} trained tokens of {tally(versions['number'], 'version')}"
    unknown = f"; of {versions['unknown']:,} more it is unknown" if versions["unknown"] else ""
    by_version = list(versions["by_version"].items())
    if mixed := versions["mixed"]:
        unknown += f"; {tally(mixed, 'response')} {'has' if mixed == 1 else 'have'} several"
    if "latest" not in versions:
        yield text("p", f"{tokens}{unknown}.")
        lines = [(name, f"{count:,}", _of(count, versions)) for name, count in by_version]
        yield table(("version", "tokens", "share"), lines[:MOST_LISTED])
        return
    latest = versions["latest"]
    yield text(
        "p",
        f"{tokens}{unknown}. They are {versions['lag_mean']:.3g} versions behind the newest, "
        f"{latest:,}, on average, and {versions['lag_max']:,} at most. "
        f"fc.WeightVersions(versions, current={latest}, max_lag=...) masks older ones.",
    )
    behind = [(latest - int(name), count) for name, count in by_version]
    if len(by_version) > MOST_LISTED:
        yield text("h3", "Tokens by versions behind the newest")
        yield of_lags(behind)
        return
    so_far = accumulate(count for _, count in behind)
    yield table(
        ("version", "behind", "tokens", "share", "up to here"),
        [
            (f"{latest - lag}", f"{lag:,}", f"{count:,}", _of(count, versions), _of(all_, versions))
            for (lag, count), all_ in zip(behind, so_far, strict=True)
        ],
    )


def _of(count: int, versions: Mapping[str, Any]) -> str:
    return f"{count / max(versions['tokens'], 1):.1%}"


def _layouts(figures: Mapping[str, Any]) -> Iterator[str]:
    layouts, merging = figures["layouts"], figures["merging"]
    if merging is not None and not saves_rows(merging):
        layouts = {"turns": layouts["turns"]}
    most = max(found["positions"] for of in layouts.values() for found in of.values())
    yield _note(
        f"Rows in {batches_of(figures)}; packed and tree in bins of {figures['capacity']:,}. "
        "Tree stores each shared prefix once. Filled: tokens; hatched: padding."
    )
    if figures["trajectories"] is None:
        yield _note(
            "No trajectory ids, so turns were not merged. If rows are turns, name the column with "
            "--trajectory-ids or --is-last-step."
        )
    for of, by_layout in layouts.items():
        if len(layouts) > 1:
            yield text("h3", "Each turn a row" if of == "turns" else "Turns merged to rows")
        lines, bars = [], []
        for name, found in by_layout.items():
            tokens, positions = found["tokens"], found["positions"]
            lines.append((name, f"{tokens:,}", f"{positions:,}", f"{found['padding']:.1%}"))
            parts = ("filled", tokens), ("padding", positions - tokens), ("rest", most - positions)
            bars.append(shares(parts))
        drawn = table(("layout", "tokens", "positions", "padding"), lines, bars)
        yield element("div", drawn, "layouts")


def _merging(merging: Mapping[str, Any]) -> Iterator[str]:
    before, after = merging["tokens_before"], merging["tokens_after"]
    trajectories = tally(merging["num_trajectories"], "trajectory", "trajectories")
    saved = f", {before / after:.1f}x fewer" if 0 < after < before else ""
    yield text(
        "p",
        f"{tally(merging['num_turns'], 'turn')} of {trajectories} make "
        f"{tally(merging['num_rows'], 'row')} with policy {merging['policy']}: {after:,} tokens "
        f"in place of {before:,}{saved}.",
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
    yield _counts((f"{kind}: {BREAKS[kind]}", count) for kind, count in merging["kinds"].items())
    yield text("h3", "Policies")
    yield table(
        ("policy", "rows", "tokens", "masked tokens"),
        [
            (policy, *(f"{found[name]:,}" for name in COMPARED))
            for policy, found in merging["policies"].items()
        ],
    )
    yield _note("Masked tokens do not train.")
    looked_at = merging["num_looked_at"]
    yield text("h3", f"Reasons{f', of {looked_at:,} drawn evenly' if looked_at < breaks else ''}")
    hints = dict(merging["hints"])
    unknown = hints.pop(NEED_TOKENIZER, 0)
    if hints:
        yield _counts(hints.items())
    if unknown:
        yield _note(f"{unknown:,} not known without a tokenizer: {NEED_TOKENIZER}.")
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


def _ranks(figures: Mapping[str, Any]) -> Iterator[str]:
    ranks = figures["ranks"]
    yield _note(
        f"{tally(ranks['mini_batches'], 'mini-batch', 'mini-batches')} of "
        f"{'up to ' * (ranks['mini_batches'] > 1)}"
        f"{tally(min(figures['batch_rows'], ranks['rows']), 'row')} for "
        f"{tally(ranks['number'], 'rank')} (--dp-size); columns are costs in {ranks['cost']}. "
        "Idle: the share of time that ranks wait for the slowest in each mini-batch."
    )
    bins = figures["bins"]
    yield _note(
        f"Packed in {tally(bins['number'], 'bin')} of up to {figures['capacity']:,} tokens, the "
        f"same number on every rank: the fullest has {bins['width']:,}, and padding to its width "
        f"is {bins['padding']:.1%} of positions."
    )
    most = max(max(load["per_rank"]) for load in ranks["loads"])
    drawn = []
    for load in ranks["loads"]:
        costs = load["per_rank"]
        titles = [f"rank {rank}: cost {cost:,.6g}" for rank, cost in enumerate(costs)]
        last = [(1.0, f"rank {len(costs) - 1}")] if len(costs) > 1 else []
        plot = columns(costs, titles, [(0.0, "rank 0"), *last], most)
        drawn.append(text("h3", f"{load['name']}: {load['idle']:.1%} idle") + plot)
    yield element("div", "".join(element("div", plot) for plot in drawn), "grid")


def _findings(figures: Mapping[str, Any]) -> Iterator[str]:
    findings = figures["findings"]
    if not findings:
        yield text("p", "None: batch.check() found nothing.")
        return
    yield _note(
        f"batch.check() on {noun_of(figures)}s, with the row numbers of the file, the worst kinds "
        "first; a few rows of each kind. Tokens are counted from 0, from the prompt on."
    )
    for found in findings:
        yield text("p", title_of(found["kind"], len(found["rows"])), "title")
        for line in (*found["examples"], f"→ {found['advice']}"):
            yield text("div", line, "part")


def _rows(summary: Summary) -> Iterator[str]:
    figures = summary.figures
    extremes = "and the longest one"
    if figures["rewards"] is not None:
        of = "the ones" if figures["trajectories"] is None else "the last turns of trajectories"
        extremes = f"the longest one, and {of} with the lowest and the highest reward"
    noun = tally(figures["turns"], noun_of(figures))
    yield _note(f"Of {noun}: the first ones with each kind of finding, {extremes}.")
    for at, shown in enumerate(summary.shown_rows):
        view = shown.view.rows_html(has_legend=at == 0)
        yield element("div", text("p", shown.why, "title") + view, "row")
