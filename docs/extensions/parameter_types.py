"""Types of parameters, behind their names in the descriptions of the reference.

Signatures stay short: `autodoc_typehints` is "none". Aliases of literals are written out, others
are in words.
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any, Literal, get_args, get_origin

from sphinx.application import Sphinx

WORDS = {
    "AnyField": "Field | PerRow",
    "CostArgument": "Costs",
    "Bins": "list[list[int]]",
    "Examples": "Sequence[Mapping]",
    "Floats": "floats",
    "Integers": "integers",
    "LayoutArgument": "Layout | str",
    "PoolArgument": "BufferPool | str | None",
    "Rows": "rows",
    "Widths": "tuple[int, int, int]",
}
"""Aliases, and what they stand for; the descriptions say more."""

MANY = 4
"""Types of names that share a description, which would be a list to count."""


def literals() -> dict[str, Any]:
    """Return the aliases of literals in the package."""
    modules = [module for name, module in sys.modules.items() if name.startswith("fastcollate")]
    found = {name: value for module in modules for name, value in vars(module).items()}
    return {name: value for name, value in found.items() if get_origin(value) is Literal}


def written(parameter: inspect.Parameter, known: dict[str, Any]) -> str:
    """Return a parameter's type, without the None of its default; nothing for any type."""
    if parameter.annotation is parameter.empty:
        return ""
    given = parameter.annotation
    text = given if isinstance(given, str) else inspect.formatannotation(given)

    def in_words(match: re.Match[str]) -> str:
        values = get_args(known.get(match[0]))
        return " | ".join(map(repr, values)) or WORDS.get(match[0], match[0])

    text = re.sub(r"Literal\[([^]]*)\]", lambda match: match[1].replace(", ", " | "), text)
    text = re.sub(r"(?<!')\b[A-Z]\w+\b(?!')", in_words, re.sub(r"\[(Any|T)\]", "", text))
    if parameter.default is None:
        text = text.removesuffix(" | None")
    return "" if text == "Any" else text.replace("'", '"')


def add_types(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Write types behind the names of parameters in a docstring."""
    try:
        parameters = inspect.signature(obj).parameters
        first = lines.index("Parameters") + 2
    except (TypeError, ValueError):
        return
    known = literals()
    for number, line in enumerate(lines[first:], first):
        if lines[number + 1 : number + 2] and lines[number + 1].startswith("---"):
            return
        names = [one.lstrip("*") for one in line.split(", ")]
        if parameters.keys() >= {*names}:
            types = [*dict.fromkeys(written(parameters[one], known) for one in names)]
            if "" not in types and len(types) in (1, len(names)) and len(types) < MANY:
                lines[number] = f"{line} : {', '.join(f'``{one}``' for one in types)}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler."""
    app.connect("autodoc-process-docstring", add_types, priority=400)  # before numpydoc's
    return {"parallel_read_safe": True, "parallel_write_safe": True}
