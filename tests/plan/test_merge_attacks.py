"""Merging of input that changes while it is read, and plans that somebody else made."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from interrupting import NEEDS_TIMERS, time_after_signal
from restored_plans import restore_merge

import fastcollate as fc


class Fickle:
    """An id that changes on each access."""

    def __init__(self, tape):
        self.tape = tape

    def __index__(self):
        return next(self.tape, 0)


def test_ids_that_change_while_branches_are_compared():
    tape = iter([0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1])
    a, b, c, d, e = (Fickle(tape) for _ in range(5))
    prompts = [[a, 0, 1], [b, 1], [c, 1, 1], [d, 0, e]]
    with pytest.raises(ValueError, match="did not hold the same ids"):
        fc.merge_turns(prompts, [[]] * 4, trajectory_ids=[0] * 4, policy="branch")


def test_ids_that_change_between_comparing_and_reporting():
    tape = iter([0, 0, 1, 1])
    with pytest.raises(ValueError, match="did not hold the same ids"):
        fc.merge_turns(
            [[Fickle(tape)], [Fickle(tape)]], [[], []], trajectory_ids=[0, 0], policy="branch"
        )


def test_lists_that_grow_while_they_are_compared():
    first, second = [1, 2], [1, 2, 3, 4]

    class Growing:
        def __index__(self):
            second.append(5)
            return 1

    first[0] = Growing()
    with pytest.raises(ValueError, match=r"prompts\[1\] changed from 4 to 5 items"):
        fc.merge_turns([first, second], [[3], [4]], trajectory_ids=[0, 0])


def test_lists_that_are_emptied_before_they_are_compared():
    third = [1, 2, 3, 4, 5, 6]

    class Emptying:
        def __index__(self):
            third.clear()
            return 1

    prompts = [[Emptying(), 2], [1, 2, 3, 4], third]
    with pytest.raises(ValueError, match=r"prompts\[2\] changed from 6 to 0 items"):
        fc.merge_turns(prompts, [[3], [5], [7]], trajectory_ids=[0] * 3)


@NEEDS_TIMERS
@pytest.mark.parametrize("kind", [list, np.array])
def test_many_short_comparisons_can_be_interrupted(kind):
    row = kind(range(20_000))
    prompts, responses = [row] * 200_000, [row[:0]] * 200_000
    ids = np.zeros(200_000, int)
    merge = partial(fc.merge_turns, prompts, responses, trajectory_ids=ids)
    assert time_after_signal(merge, 0.2) < 60


PROMPTS = [[1], [1, 2, 9], [5], [7]]
RESPONSES = [[2], [3], [6], [8]]


def tables_with(**tables):
    plan = fc.merge_turns(PROMPTS, RESPONSES, trajectory_ids=list("aabb"))
    return {**plan.to_dict(), **{name: np.array(table) for name, table in tables.items()}}


def test_the_plan_whose_tables_are_spoilt():
    tables = tables_with()
    assert tables["source"].tolist() == [1, 2, 3]
    assert tables["pieces"].tolist() == [
        [0, 0, 0, 1, 1],
        [1, 0, 2, 1, 1],
        [2, 0, 0, 1, 1],
        [3, 0, 0, 1, 1],
    ]


OTHER = [[2, 0, 0, 1, 1], [3, 0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"pieces": [[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], *OTHER]}, "row 0 has a piece of turn 0"),
        ({"pieces": [[1, 0, 0, 1, 1], [0, 0, 2, 1, 1], *OTHER]}, "row 0 has a piece of turn 0"),
        ({"pieces": [[0, 0, 0, 1, 1], [2, 0, 2, 1, 1], *OTHER]}, "row 0 has a piece of turn 2"),
        ({"pieces": [[0, 0, 0, 1, 1], [1, 0, 2, 1, 7], *OTHER]}, "trains of piece 1 must be 0 or"),
        ({"pieces": [[0, 0, 0, 1, 1], [1, 0, 2, 1, 1], *OTHER[:1], *OTHER[:1]]}, "of turn 2"),
        ({"source": [1, 3, 2]}, "row 1 ends with turn 3"),
        ({"trajectories": [0, 0, 1]}, "row 1 ends with turn 2"),
        ({"trajectories": [0, 1, 2]}, "trajectories must have one number per row"),
        ({"trajectory_ends": [2, 3]}, "trajectory_ends must rise"),
        ({"break_found_ids": [1] * 9}, "breaks have too many ids"),
        ({"turn_prompt_lens": [2**62] * 4, "prompt_lens": [2**62] * 3}, "more tokens than can be"),
    ],
)
def test_tables_of_impossible_plans(tables, message):
    with pytest.raises(ValueError, match=message):
        restore_merge(tables_with(**tables))


@dataclasses.dataclass
class Numbered:
    name: str
    number: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(eq=False)
class ByHand:
    name: str
    number: int

    __hash__ = None

    def __eq__(self, other):
        return self.name == other.name


class Unhashable:
    def __hash__(self):
        raise RuntimeError("no hash")


@pytest.mark.parametrize(
    "ids",
    [
        [Numbered("a", 0), Numbered("b", 1), Numbered("a", 2)],
        [ByHand("a", 0), ByHand("b", 1), ByHand("a", 2)],
        [[1, [2]], [1, [3]], [1, [2]]],
        [{"a": 1}, {}, {"a": 1}],
        np.array([[1, 2], [3, 4], [1, 2]]),
        ["x" * 1_000_000, "y", "x" * 1_000_000],
    ],
)
def test_ids_that_come_again(ids):
    with pytest.raises(ValueError, match="non-contiguous positions at index 2") as caught:
        fc.merge_turns([[1], [2], [5]], [[2], [3], [4]], trajectory_ids=ids)
    assert len(str(caught.value)) < 300


def test_ids_whose_hash_raises():
    ids = [Unhashable(), Unhashable(), Unhashable()]
    plan = fc.merge_turns([[1], [2], [5]], [[2], [3], [4]], trajectory_ids=ids)
    assert plan.num_trajectories == 3


def test_ids_that_clear_themselves():
    class Clearing:
        def __eq__(self, other):
            ids.clear()
            return True

        __hash__ = None

    ids = [Clearing(), Clearing()]
    assert fc.merge_turns([[1], [1, 2]], [[2], [3]], trajectory_ids=ids).num_rows == 1


def test_a_builder_refuses_flags_at_once():
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy", merge="exact")
    with pytest.raises(TypeError, match="is_last_step is 'no'; pass True or False"):
        builder.add([1], [2], is_last_step="no")
    builder.add([1], [2], is_last_step=False)
    builder.add([1, 2], [3], is_last_step=True)
    assert builder.finish().input_ids.tolist() == [[1, 2, 3]]
