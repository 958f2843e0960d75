"""Objects that run their own code while they are read: clear errors, and no crash."""

from array import array
from collections import UserList
from contextlib import suppress

import pytest
from small_input import (
    ROWS,
    Acts,
    build,
    build_or_refuse,
    good_input,
    refuses,
    with_item,
    with_row,
)


def throw(exception):
    raise exception


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("cause", [ZeroDivisionError("mine"), TypeError("mine"), OverflowError()])
def test_exceptions_of_items_are_chained(name, cause):
    with pytest.raises((TypeError, ValueError), match=rf"{name}\[1\]\[0\]") as caught:
        build(**with_item(name, Acts(lambda: throw(cause))))
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    "exception", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, RecursionError]
)
def test_exceptions_that_nobody_may_swallow(name, exception):
    with pytest.raises(exception):
        build(**with_item(name, Acts(lambda: throw(exception))))


@pytest.mark.parametrize("name", ROWS)
def test_protocols_that_give_something_else(name):
    class Wrong:
        def __index__(self):
            return "5"

        def __float__(self):
            return "5"

    refuses(with_item(name, Wrong()), TypeError, rf"{name}\[1\]\[0\]")


def test_reprs_that_raise():
    class Unspeakable:
        def __repr__(self):
            raise RuntimeError

    refuses(with_item("prompts", Unspeakable()), TypeError, r"prompts\[1\]\[0\]", "Unspeakable")


CHANGES = {
    "clear": lambda row: row.clear(),
    "pop": lambda row: row.pop(),
    "extend": lambda row: row.extend(range(10_000)),
    "replace": lambda row: row.__setitem__(slice(None), [object() for _ in row]),
    "reverse": lambda row: row.reverse(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("length", [1, 2, 100])
def test_rows_that_change_while_they_are_read(name, change, length):
    """Whatever comes of it, nothing is read that is gone: this is for crashes and sanitizers."""
    for position in {0, length // 2, length - 1}:
        # Fresh numbers, of which the list holds the only references.
        rows = {key: [list(range(10**6, 10**6 + length)) for _ in range(3)] for key in ROWS}
        row = rows[name][1]
        row[position] = Acts(lambda row=row: CHANGES[change](row))
        batch = build_or_refuse(rf"{name}\[1\]", **rows)
        if batch is not None:
            assert batch.input_ids.shape == (3, 2 * length)
            assert change not in ("clear", "pop", "extend") or position == length - 1


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("victim", ROWS)
@pytest.mark.parametrize("change", ["clear", "extend"])
def test_rows_that_change_while_another_is_read(name, victim, change):
    inputs = {**good_input(), **with_item(name, None)}
    rows = inputs[victim]
    inputs[name][1][0] = Acts(lambda: [CHANGES[change](row) for row in rows if row is not None])
    build_or_refuse(rf"{victim}\[\d\]", **inputs)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("victim", ROWS)
@pytest.mark.parametrize("change", ["clear", "pop", "extend"])
def test_outer_lists_that_change_while_a_row_is_read(name, victim, change):
    inputs = {**good_input(), **with_item(name, None)}
    inputs[name][1][0] = Acts(lambda: CHANGES[change](inputs[victim]))
    batch = build_or_refuse(victim, **inputs)
    assert batch is None or batch.input_ids.shape == (3, 5)


def test_buffers_that_change_while_another_row_is_read():
    """An array.array either refuses to grow while it is viewed, or is read to its old end."""
    row = array("q", range(1000))

    def grow():
        with suppress(BufferError):
            row.extend(range(100_000))

    batch = build_or_refuse(r"prompts\[", prompts=[[Acts(grow)], row, row])
    assert batch is None or batch.input_ids[1, -1002:-2].tolist() == list(range(1000))


def test_tensors_that_change_while_another_row_is_read():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(1000)

    def shrink_and_grow():
        with suppress(RuntimeError):
            tensor.resize_(0).resize_(10**6)

    batch = build_or_refuse(r"prompts\[", prompts=[[Acts(shrink_and_grow)], tensor, tensor])
    assert batch is None or batch.input_ids[1, -1002:-2].tolist() == list(range(1000))


class Hostile(UserList):
    """A sequence whose successive lengths are given by the test."""

    def __init__(self, items, *lengths):
        super().__init__(items)
        self.lengths = list(lengths)

    def __len__(self):
        length = self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]
        if isinstance(length, BaseException):
            raise length
        return length


@pytest.mark.parametrize(
    "lengths",
    [(0,), (1,), (2,), (4,), (2**40,), (2**62,), (-1,), (2**64,), (3, 2), (3, 4), (3, 0)],
    ids=repr,
)
@pytest.mark.parametrize("name", ROWS)
def test_lengths_that_lie(name, lengths):
    # Whoever iterates and asks for no length finds the rows that are there.
    batch = build_or_refuse("", **{name: Hostile(good_input()[name], *lengths)})
    assert batch is None or batch.input_ids.shape == (3, 5)


def test_lengths_that_raise():
    with pytest.raises((ZeroDivisionError, ValueError)):
        build(prompts=Hostile([[1]], ZeroDivisionError()))


@pytest.mark.parametrize("name", ROWS)
def test_sequences_that_raise(name):
    class Broken(UserList):
        def __getitem__(self, index):
            raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, ValueError)):
        build(**{name: Broken(good_input()[name])})


@pytest.mark.parametrize("length", [0, 1, 3, 10**6])
@pytest.mark.parametrize("name", ROWS)
def test_subclasses_of_list_that_lie(name, length):
    class Liar(list):
        def __len__(self):
            return length

    row = Liar(good_input()[name][1])
    batch = build_or_refuse(r"\[1\]", **with_row(name, row))
    assert batch is None or batch.input_ids.shape == (3, 5)
