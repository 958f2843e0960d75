"""What a report advises, beside its findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fastcollate.cli.reporting.outcomes import LEAST_EQUAL
from fastcollate.cli.reporting.wording import NO_REASON, batches_of, decimal, noun_of
from fastcollate.common.arguments import tally

LEAST_ROWS = 32
"""Rows of a file from which on layouts are compared."""

LEAST_SHARE = 0.05
"""Share of responses that were cut off, or of prompts without advantages, that is worth a line."""

LEAST_RATIO = 1.5
"""Tokens of rows, to tokens of their tree, from which on a tree is advised."""

LEAST_WORTH_NAMING = 1.05
"""The same ratio from which on the line on packing names the tree."""


CUT = ("length", "max_tokens", "max_length", "truncated", "model_length")
"""Finish reasons of responses that were cut off."""

LEAST_LAG = 4
"""Versions behind the newest from which on old tokens are worth a line."""

LEAST_IDLE = 0.05
"""Share of their time that ranks need not be idle from which on balancing is advised."""

OUTLIER = 8
"""A longest row of so many times the 95th percentile is worth a line."""

FAR = 10
"""So many times the usual range of rewards, outside of it, is far."""

FIRST = {
    "padded_column": "Take the padding out first: lengths and layouts count it as tokens.",
    "padded_row": "Take the padding out first: lengths and layouts count it as tokens.",
    "repeated_prompt": "Cut the prompts off responses first: lengths and layouts depend on it.",
    "turns_without_ids": "Name the trajectories first (--trajectory-ids, or --is-last-step): "
    "rewards, rows and layouts depend on them.",
    "unmerged_turns": "Put the turns in order first: rows and layouts depend on it.",
}
"""What to do first about findings that make figures on lengths and layouts worthless."""


class Advice(NamedTuple):
    """A line on what to do, and the section of the page that has more."""

    text: str
    section: str


def advice_on(figures: Mapping[str, Any]) -> list[Advice]:
    """Return what to do about the rollouts: the layout, then what trains, then ranks."""
    advice = [*_training(figures), *_rewards(figures), *_versions(figures["versions"])]
    if (first := what_first(figures)) is not None:
        return [Advice(first, "findings"), *advice]
    advice += [*_lengths(figures), *_breaks(figures["merging"])]
    if (layout := _layout(figures)) is None:
        advice += [_no_layout(figures)]
    return [*filter(None, [layout]), *advice, *_ranks(figures)]


def what_first(figures: Mapping[str, Any]) -> str | None:
    """Return what to do before figures on lengths and layouts mean anything."""
    kinds = {found["kind"] for found in figures["findings"]}
    return next((first for kind, first in FIRST.items() if kind in kinds), None)


def _cut_off(figures: Mapping[str, Any]) -> tuple[int, str]:
    """Return how many responses were cut off, or may have been, and how that is known."""
    reasons, lens = figures["finish_reasons"] or {}, figures["lengths"]["responses"]
    if reasons.keys() - {NO_REASON}:
        cut = [reason for reason in reasons if reason.lower() in CUT]
        number = sum(reasons[reason]["number"] for reason in cut)
        return number, f"finished with {' or '.join(map(repr, cut))}"
    longest = figures["longest_responses"]
    is_known = figures["eos_token_ids"] is not None  # then a finding tells
    if is_known or longest < LEAST_EQUAL or longest == figures["turns"]:
        return 0, ""
    limit = f"have the largest length, {lens['longest']:,}, probably the engine's limit"
    return longest, f"{limit} (finish reasons, or --eos, would tell)"


def _training(figures: Mapping[str, Any]) -> Iterator[Advice]:
    if figures["all_train"]:
        yield Advice(
            "Every token trains: the file has no prompts, masks or labels. If it should have, name "
            "their columns.",
            "lengths",
        )


def _rewards(figures: Mapping[str, Any]) -> Iterator[Advice]:
    rewards = figures["rewards"]
    if rewards is None:
        return
    equal, groups = rewards["equal_groups"], rewards["groups"]
    if rewards["most_samples"] == 1 and not rewards["are_guessed"] and figures["turns"] > 1:
        yield Advice(
            "Every prompt has one sample: advantages within groups (GRPO) need several.", "rewards"
        )
    if LEAST_SHARE * groups <= equal < groups and equal > 0:
        yield Advice(
            f"With advantages within groups (GRPO), {equal:,} of {groups:,} prompts "
            f"({equal / groups:.0%}) train nothing, since their samples have equal rewards. Leave "
            "them out, or replace them by others.",
            "rewards",
        )
    if figures["copies"] > LEAST_SHARE * figures["turns"]:
        yield Advice(
            f"{figures['copies']:,} of {figures['turns']:,} responses are copies of another one of "
            "their prompt. Check the temperature and seeds of the sampler.",
            "rewards",
        )
    if "mean" in rewards:
        low, high = usual = rewards["p1"], rewards["p99"]
        for word, value in (("lowest", rewards["least"]), ("highest", rewards["most"])):
            if is_far(value, usual):
                yield Advice(
                    f"The {word} reward, {decimal(value)}, is far from most others "
                    f"({decimal(low)} to {decimal(high)}). Check it.",
                    "rewards",
                )


def is_far(reward: float, usual: tuple[float, float]) -> bool:
    """Return True for a reward far outside the usual range."""
    low, high = usual
    return max(low - reward, reward - high) > FAR * (high - low) > 0


def _versions(versions: Mapping[str, Any] | None) -> Iterator[Advice]:
    if versions is not None and versions.get("lag_max", 0) >= LEAST_LAG:
        yield Advice(
            f"Tokens come from weights up to {versions['lag_max']:,} versions old "
            f"({versions['lag_mean']:.3g} on average). fc.WeightVersions(..., max_lag=...) masks "
            "old ones.",
            "weight-versions",
        )


def _lengths(figures: Mapping[str, Any]) -> Iterator[Advice]:
    number, how = _cut_off(figures)
    if number > LEAST_SHARE * figures["turns"]:
        share = number / figures["turns"]
        yield Advice(
            f"{number:,} responses ({share:.0%}) {how}. Raise the limit, or mask them.", "lengths"
        )
    lens = figures["lengths"]["rows"]
    if (times := lens["longest"] / max(lens["p95"], 1)) > OUTLIER:
        yield Advice(
            f"The longest row has {lens['longest']:,} tokens, {times:.0f} times the 95th "
            "percentile. Cut or drop it if you can: it sets the width of padded rows, the capacity "
            "of bins, and how long ranks wait.",
            "rows-to-look-at",
        )


def _breaks(merging: Mapping[str, Any] | None) -> Iterator[Advice]:
    if merging is not None and (breaks := sum(merging["kinds"].values())):
        turns = tally(merging["num_turns"], "turn")
        verb = "does" if breaks == 1 else "do"
        other = merging["policies"]["realign"]
        remedy = (
            f'merge="realign" would make {other["num_rows"]:,} rows in place of '
            f"{merging['num_rows']:,}, and mask {tally(other['masked_tokens'], 'sampled token')}. "
        )
        yield Advice(
            f"{breaks:,} of {turns} {verb} not continue the turn before. "
            f"{remedy if other['num_rows'] < merging['num_rows'] else ''}"
            "The report's section on merging has the reasons.",
            "merging",
        )


def saves_rows(merging: Mapping[str, Any]) -> bool:
    """Return True if merging makes fewer rows."""
    return bool(merging["num_rows"] < merging["num_turns"])


def _no_layout(figures: Mapping[str, Any]) -> Advice:
    """Return why no layout is advised."""
    text = "Padding costs little here: the default layout is enough."
    if figures["turns"] < LEAST_ROWS:
        rows = tally(figures["turns"], noun_of(figures))
        text = f"{rows}: too few to choose a layout by. Write a report on a whole step."
    return Advice(text, "padding-by-layout")


def _layout(figures: Mapping[str, Any]) -> Advice | None:
    """Return a line on the layout, and on merging; None if there is little to say."""
    layouts, capacity, merging = figures["layouts"], figures["capacity"], figures["merging"]
    if figures["turns"] < LEAST_ROWS:
        return None
    found, merge = layouts["turns"], ""
    if merging is not None and saves_rows(merging):
        found, merge = layouts["merged"], f'Merge turns (merge="{merging["policy"]}"), then '
        rewards = figures["rewards"]
        if rewards is not None and rewards["are_summed"] and not rewards["of_tokens"]:
            rule = f'fc.planning.Merge("{merging["policy"]}", rewards="sum")'
            merge = f"Merge turns (merge={rule}), then "
    padded = layouts["turns"]["left, right"]["positions"]
    times = {name: padded / max(found[name]["positions"], 1) for name in ("packed", "tree")}
    ratio = found["packed"]["tokens"] / max(found["tree"]["tokens"], 1)
    if max(times.values()) < 1.1:
        return None
    names = {name: f"fc.{name.title()}({capacity:,})".replace(",", "_") for name in times}
    if ratio >= LEAST_RATIO:
        best, other = "tree", f" (fc.Packed: {times['packed']:.1f})"
    elif ratio < LEAST_WORTH_NAMING:
        best, other = "packed", ""
    else:
        saved = f"it saves {1 - 1 / ratio:.1%} of the tokens, and less than a third seldom pays"
        best, other = "packed", f" (fc.Tree: {times['tree']:.1f}, but {saved})"
    rows = "padded rows" if not merge else "a padded row for each turn"
    return Advice(
        f"{merge or 'Use '}layout={names[best]}: {times[best]:.1f} times fewer positions than "
        f"{rows} in {batches_of(figures)}{other}.",
        "padding-by-layout",
    )


def _ranks(figures: Mapping[str, Any]) -> Iterator[Advice]:
    in_order, balanced, _ = (load["idle"] for load in figures["ranks"]["loads"])
    if figures["turns"] >= LEAST_ROWS and in_order - balanced >= LEAST_IDLE:
        yield Advice(
            f"Balance the ranks (fc.plan_step): with rows in the file's order, "
            f"{figures['ranks']['number']:,} ranks would be idle {in_order:.1%} of the time, "
            f"balanced {balanced:.1%}.",
            "ranks",
        )
