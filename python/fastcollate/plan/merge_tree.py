"""A trajectory as a tree of its rows and the breaks between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastcollate.common.arguments import tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastcollate.plan.breaks import Break


MOST_LEVELS = 10
"""Maximum indentation of a drawn tree; deeper rows are drawn at the same depth."""


class Branch(NamedTuple):
    """A row of a trajectory.

    Attributes
    ----------
    row : int
        The row; -1 if the trajectory was dropped.
    turns : list of int
        The turns merged into it.
    tokens : int
        Prompt and response tokens of the row.
    parent : int or None
        Index in the tree of the row that its first turn was compared with; None for the first.
    broken : Break or None
        The break between the first turn and that row.
    realigned : list of Break
        The breaks at which later turns were realigned.
    """

    row: int
    turns: list[int]
    tokens: int
    parent: int | None
    broken: Break | None
    realigned: list[Break]


class TrajectoryTree(NamedTuple):
    """The rows of a trajectory, each below its parent row. ``str(tree)`` draws it.

    Attributes
    ----------
    name : str
        The trajectory's id, or its number if it has none.
    branches : list of Branch
        In the order of their first turns: parents come before their children.
    """

    name: str
    branches: list[Branch]

    @classmethod
    def of(
        cls,
        name: str,
        rows: Sequence[int],
        first_turn: int,
        tokens: dict[int, int],
        breaks: Sequence[tuple[Break, int]],
    ) -> TrajectoryTree:
        """Make the tree from the row of each turn, and breaks with the turns compared with."""
        places: dict[int, int] = {}
        branches: list[Branch] = []
        by_turn = {broken.turn: (broken, last) for broken, last in breaks}
        for turn, row in enumerate(rows, first_turn):
            broken, last = by_turn.get(turn, (None, None))
            if row not in places:
                parent = None if last is None else places[rows[last - first_turn]]
                places[row] = len(branches)
                branches.append(Branch(row, [turn], tokens.get(row, 0), parent, broken, []))
                continue
            branch = branches[places[row]]
            branch.turns.append(turn)
            if broken is not None:
                branch.realigned.append(broken)
        return cls(name, branches)

    def __repr__(self) -> str:
        turns = sum(len(branch.turns) for branch in self.branches)
        rows = tally(len(self.branches), "row")
        return f"TrajectoryTree of {self.name}: {tally(turns, 'turn')} in {rows}"

    def __str__(self) -> str:
        return self.drawn()

    def drawn(self, *, of_file: bool = False) -> str:
        """Draw the tree; `of_file` numbers turns as the rows of a file, from 1."""
        turns = sum(len(branch.turns) for branch in self.branches)
        rows = tally(len(self.branches), "row")
        lines = [f"trajectory {self.name}: {tally(turns, 'turn')} in {rows}"]
        below: dict[int | None, list[int]] = {}
        for place, branch in enumerate(self.branches):
            below.setdefault(branch.parent, []).append(place)
        todo = [(place, "", place == below[None][-1]) for place in reversed(below[None])]
        while todo:  # trees may be as deep as trajectories are long
            place, indent, is_last = todo.pop()
            branch, children = self.branches[place], below.get(place, [])
            lines.append(f"{indent}{'└─ ' if is_last else '├─ '}{_head(branch, of_file)}")
            if len(indent) < 3 * MOST_LEVELS:
                indent += "   " if is_last else "│  "
            beside = indent + ("│    " if children else "     ")
            for broken in ([branch.broken] if branch.broken else []) + branch.realigned:
                lines += [f"{beside}{line}" for line in _broken(broken, of_file)]
            todo += [(child, indent, child == children[-1]) for child in reversed(children)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from fastcollate.inspect.markup import text_page

        return text_page(str(self))


def _head(branch: Branch, of_file: bool) -> str:
    """Return the heading of a row: its index, turns and size."""
    turns = _turns(branch.turns, of_file)
    if branch.row < 0:
        return f"dropped: {turns}"
    row = "" if of_file else f"row {branch.row}: "
    return f"{row}{turns}, {tally(branch.tokens, 'token')}"


def _turns(turns: list[int], of_file: bool) -> str:
    """Return turns as text, consecutive ones as spans."""
    noun, first_number = ("row", 1) if of_file else ("turn", 0)
    firsts = np.flatnonzero(np.diff(turns, prepend=turns[0] - 2) != 1).tolist()
    spans = []
    for first, end in zip(firsts, [*firsts[1:], len(turns)], strict=True):
        begin, last = turns[first] + first_number, turns[end - 1] + first_number
        spans.append(f"{begin}" if begin == last else f"{begin} to {last}")
    return f"{noun}{'s' if len(turns) > 1 else ''} {', '.join(spans)}"


def _broken(broken: Break, of_file: bool) -> list[str]:
    """Return the lines that describe a break."""
    head, *ids = str(broken).splitlines()
    _, _, where = head.partition("): ")
    does = "is realigned" if broken.realigned else "leaves"
    return [f"{_turns([broken.turn], of_file)} {does} ({broken.kind}) {where}", *ids]
