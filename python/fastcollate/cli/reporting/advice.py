"""What a report advises, beside its findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastcollate.common.arguments import tally

LEAST_ROWS = 32
"""Rows of a file from which on layouts are compared."""

LEAST_SHARE = 0.05
"""Share of responses that were cut off, or of prompts without advantages, that is worth a line."""


def advice_on(figures: Mapping[str, Any]) -> list[str]:
    """Return what to do about the rollouts, what does most harm first."""
    return [
        *_training(figures),
        *_rewards(figures["rewards"]),
        *_lengths(figures),
        *_breaks(figures["merging"]),
        _layout(figures),
    ]


def noun_of(figures: Mapping[str, Any]) -> str:
    """Return the word for the rows of a file: they are turns if trajectories are known."""
    return "row" if figures["merging"] is None else "turn"


def cut_off(figures: Mapping[str, Any]) -> tuple[int, str]:
    """Return how many responses were cut off, or may have been, and how that is known."""
    reasons = figures["finish_reasons"]
    if reasons is not None and "length" in reasons:
        return reasons["length"]["number"], 'finished with "length"'
    longest = figures["longest_responses"] or 0
    if reasons is not None or longest < 2:
        return 0, ""
    most = figures["lengths"]["responses"]["longest"]
    return (
        longest,
        f"have the largest length, {most:,}: if the engine stops there, they are cut off",
    )


def _training(figures: Mapping[str, Any]) -> Iterator[str]:
    if figures["all_train"]:
        yield (
            "Every token trains: the file has no prompts, masks or labels. If it should have, name "
            "their columns."
        )


def _rewards(rewards: Mapping[str, Any] | None) -> Iterator[str]:
    if rewards is None or rewards["equal_groups"] < LEAST_SHARE * rewards["groups"]:
        return
    equal, groups = rewards["equal_groups"], rewards["groups"]
    if equal == groups > 0:
        yield (
            "Every prompt has equal rewards for all of its samples: advantages within groups are "
            "0, and nothing trains."
        )
    elif equal > 0:
        yield (
            f"With advantages within groups (GRPO), {equal:,} of {groups:,} prompts "
            f"({equal / groups:.0%}) train nothing: all of their samples have the same reward."
        )


def _lengths(figures: Mapping[str, Any]) -> Iterator[str]:
    number, how = cut_off(figures)
    if number > LEAST_SHARE * figures["turns"]:
        share = number / figures["turns"]
        yield f"{number:,} responses ({share:.0%}) {how}. Raise the limit, or mask them."


def _breaks(merging: Mapping[str, Any] | None) -> Iterator[str]:
    if merging is not None and (breaks := sum(merging["kinds"].values())):
        turns = tally(merging["num_turns"], "turn")
        verb = "does" if breaks == 1 else "do"
        why = "; the report's section on merging has the reasons"
        yield f"{breaks:,} of {turns} {verb} not continue the turn before{why}."


def _layout(figures: Mapping[str, Any]) -> str:
    """Return a line on the layout with the fewest positions; a tree has to save a tenth."""
    layouts, capacity = figures["layouts"], figures["capacity"]
    turns = layouts["turns"]
    if figures["turns"] < LEAST_ROWS:
        rows = tally(figures["turns"], noun_of(figures))
        return f"{rows}: too few to choose a layout by. Write a report on a whole step."
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
