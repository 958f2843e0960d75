"""Exceptions outside `Exception` pass through the library, wherever a user's code raises them."""

import pytest

import fastcollate as fc
from fastcollate.common.text import show_id
from fastcollate.plan.grouping import group_offsets

INTERRUPTS = [KeyboardInterrupt, SystemExit, GeneratorExit]


def raising(exception, *methods, base=object, but=0):
    """Make an object that raises in these methods, from call number `but` on."""
    calls = iter(range(but))

    def method(self, *_):
        if next(calls, None) is None:
            raise exception
        return 0

    return type("Raises", (base,), dict.fromkeys(methods, method))()


def error_with(exception):
    """Make an exception whose own text cannot be had."""
    return type("Odd", (ValueError,), {"__str__": lambda _: (_ for _ in ()).throw(exception())})()


def build(**arguments):
    data = {"prompts": [[1]], "responses": [[2]], "pad_token_id": 0, "array_type": "numpy"}
    return fc.build_batch(**{**data, **arguments})


class Large(int):
    """An integer beyond any dtype."""

    def __new__(cls):
        return int.__new__(cls, 2**70)


class Incomparable:
    """An id without a hash, whose comparison fails."""

    __hash__ = None

    def __eq__(self, _):
        return 1 / 0


def group(*ids):
    return group_offsets("uids", list(ids), "uid", "sort")


def compared_with(exception):
    return raising(error_with(exception), "__eq__", base=Incomparable)


PLACES = {
    "repr of an item": lambda e: build(prompts=[[raising(e, "__repr__")]]),
    "repr of a row": lambda e: build(prompts=[raising(e, "__repr__")]),
    "repr of a column": lambda e: build(prompts=raising(e, "__repr__")),
    "str of a large int": lambda e: build(prompts=[[raising(e, "__str__", base=Large)]]),
    "str of an exception": lambda e: build(prompts=[[raising(error_with(e), "__index__")]]),
    "hash of an id": lambda e: group(raising(e, "__hash__"), 1),
    "repr of an id": lambda e: group(*(raising(e, "__repr__", base=Incomparable) for _ in "ab")),
    "str of an exception of an id": lambda e: group(*(compared_with(e) for _ in "ab")),
    "repr of an id that is shown": lambda e: show_id(raising(e, "__repr__")),
    "index of a fill": lambda e: build(
        fields={"x": fc.Field([[1.0]], fill=raising(e, "__index__", base=float))}
    ),
    "index of max_bytes": lambda e: fc.memory.BufferPool(raising(e, "__index__")),
    "repr of max_bytes": lambda e: fc.memory.BufferPool(raising(e, "__repr__", "__str__")),
    "length of an item": lambda e: build(prompts=[[raising(e, "__len__")]]),
    "class of a column": lambda e: build(
        prompts=type("Odd", (), {"__class__": property(lambda _: (_ for _ in ()).throw(e()))})()
    ),
}


@pytest.mark.parametrize("exception", INTERRUPTS)
@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_passes(place, exception):
    with pytest.raises(exception) as caught:
        PLACES[place](exception)
    assert type(caught.value) is exception


@pytest.mark.parametrize(
    "place",
    [place for place in PLACES if not any(word in place for word in ("hash", "shown", "fill"))],
)
def test_an_exception_does_not_hide_what_is_wrong(place):
    with pytest.raises((TypeError, ValueError, ZeroDivisionError)):
        PLACES[place](ZeroDivisionError)
