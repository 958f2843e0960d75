"""Errors in tables: one message each, after the type of the error if it is not ValueError."""

import builtins
import re

import pytest


def raises(message, *, is_text=False):
    """Expect a ValueError with this message, or another error: ``"TypeError: x is 'y'"``.

    The message is a pattern, or text if it `is_text`.
    """
    name, _, rest = message.partition(": ")
    if not name.endswith("Error"):
        name, rest = "ValueError", message
    return pytest.raises(getattr(builtins, name), match=re.escape(rest) if is_text else rest)
