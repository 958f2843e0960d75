"""Measurements on a GPU as tables, and the comparison with goals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from common.report import Figures, time_text
from device.batches import size_text

Results = Mapping[str, Sequence[Figures]]
"""The figures of each part, by size of the batch."""

OF_BUS = 0.9
"""Goal: the speed of one copy per batch, as a share of the speed of the bus."""

WAITING = 0.01
"""Goal: the share of its time that a device waits for prefetched batches is below this."""

PINNING = ("pageable, first", "pageable, recycled", "pinned, first", "pinned, recycled")
COPIES = ("one copy, pinned", "per tensor, pinned", "one copy, pageable", "per tensor, pageable")
LOOPS = ("without", "prefetch", "DataLoader")
PADDING = (
    ("padded there", "padded here"),
    ("built and padded there", "built and padded here"),
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; numbers are right-aligned."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_pinning(cases: Sequence[Figures]) -> str:
    """Write times of building."""
    rows = [[size_text(of["bytes"]), *(time_text(of[name]) for name in PINNING)] for of in cases]
    return table(["batch", *PINNING], rows)


def of_copies(cases: Sequence[Figures]) -> str:
    """Write rates of copies, and their share of the bus."""

    def cell(of: Figures, name: str) -> str:
        return f"{of['bytes'] / of[name] / 1e9:.1f} GB/s ({percent(of['bus'] / of[name])})"

    rows = [
        [
            size_text(of["bytes"]),
            f"{of['bytes'] / of['bus'] / 1e9:.1f} GB/s",
            *(cell(of, name) for name in COPIES),
        ]
        for of in cases
    ]
    return table(["batch", "the bus", *COPIES], rows)


def of_waiting(cases: Sequence[Figures]) -> str:
    """Write the share of the time that the device waits."""
    rows = [
        [
            size_text(of["bytes"]),
            f"{time_text(of['step'])} ({of['factor']:.0f}x)",
            *(percent(of[name], 2) if name in of else "" for name in LOOPS),
        ]
        for of in cases
    ]
    return table(["batch", "step", *LOOPS], rows)


def of_padding(cases: Sequence[Figures]) -> str:
    """Write times of padding batches on the device."""

    def cells(of: Figures, there: str, here: str) -> list[str]:
        return [f"{time_text(of[there])} ({of[here] / of[there]:.1f}x)", time_text(of[here])]

    rows = [
        [
            size_text(of["bytes"]),
            f"{size_text(of['jagged bytes'])} ({percent(of['jagged bytes'] / of['bytes'])})",
            *(text for pair in PADDING for text in cells(of, *pair)),
        ]
        for of in cases
    ]
    return table(["padded batch", "sent", *(name for pair in PADDING for name in pair)], rows)


def of_trainer(cases: Sequence[Figures]) -> str:
    """Write the share of its step that the example trainer's model waits."""
    rows = [[percent(of["wait"], 1), percent(of["prefetch"], 1)] for of in cases]
    return table(["without", "prefetch"], rows)


def percent(share: float, digits: int = 0) -> str:
    """Write a share."""
    return f"{100 * share:.{digits}f}%"


# Goals


def goal_of_copies(cases: Sequence[Figures]) -> str:
    """Compare rates of copies with the goal."""
    shares = {size_text(of["bytes"]): of["bus"] / of["one copy, pinned"] for of in cases}
    return _reached(shares, lambda share: share >= OF_BUS, 0)


def goal_of_waiting(copied: Sequence[Figures], built: Sequence[Figures]) -> str:
    """Compare the waiting of loops with the goal."""
    shares = {
        f"{size_text(of['bytes'])} {source}, {of['factor']:.0f}x": of["prefetch"]
        for source, cases in {"copied": copied, "built": built}.items()
        for of in cases
    }
    return _reached(shares, lambda share: share < WAITING, 1)


def _reached(values: Mapping[str, float], is_reached: Callable[[float], bool], digits: int) -> str:
    missed = [
        f"{name} ({percent(value, digits)})"
        for name, value in values.items()
        if not is_reached(value)
    ]
    text = f"reached by {len(values) - len(missed)} of {len(values)}"
    return f"{text}; missed by {', '.join(missed)}" if missed else text
