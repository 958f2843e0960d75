"""Errors in tables: one message each, after the type of the error if it is not ValueError."""

import builtins

import pytest


def raises(message):
    """Expect a ValueError with this message, or another error: ``"TypeError: x is 'y'"``."""
    name, _, rest = message.partition(": ")
    if not name.endswith("Error"):
        return pytest.raises(ValueError, match=message)
    return pytest.raises(getattr(builtins, name), match=rest)
