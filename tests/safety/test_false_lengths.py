"""Sequences that claim more items than any memory holds: they are read, or named in the error."""

from contextlib import suppress

import pytest
import test_emptied_lists

CLAIMED = 10**18


class LongList(list):
    def __len__(self):
        return CLAIMED


class LongSequence:
    """No list, with an iterator that claims as much."""

    def __init__(self, items):
        self.items = list(items)

    def __len__(self):
        return CLAIMED

    def __getitem__(self, index):
        return self.items[index]

    def __iter__(self):
        return LongIterator(self.items)


class LongIterator:
    def __init__(self, items):
        self.items = iter(items)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.items)

    def __length_hint__(self):
        return CLAIMED


@pytest.mark.parametrize("kind", [LongList, LongSequence])
@pytest.mark.parametrize("name", test_emptied_lists.CALLS)
def test_false_lengths(name, kind, monkeypatch):
    monkeypatch.setattr(test_emptied_lists, "items", lambda value, count: kind([value] * count))
    with suppress(TypeError, ValueError, IndexError):
        try:
            test_emptied_lists.CALLS[name]()
        except MemoryError as error:
            message = str(error)
        else:
            return
        claim = f"is a {kind.__name__} that claims {CLAIMED:,} items; pass one of its true length"
        assert message.endswith(claim)
