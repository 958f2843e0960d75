"""References by short names: `Batch.select` in a docstring of any module. Signatures as in code."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

MEMBERS = ("attribute", "method", "property")


def resolve(app: Sphinx, env: Any, node: Any, content: Any) -> nodes.reference | None:
    """Link to the public name that ends as the target does; of several to that nearest the top."""
    if node.get("refdomain") != "py":
        return None
    domain, target = env.domains["py"], node["reftarget"]
    found = [
        name
        for name, entry in domain.objects.items()
        if name.endswith(f".{target}") and ("." in target or entry.objtype not in MEMBERS)
    ]
    if not found:
        return None
    name = min(found, key=lambda name: (name.count("."), name))
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], name, node, content
    )


def hide(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out fields of named tuples: the class documents them."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field") else None


def short_types(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, result: Any
) -> tuple[str, Any] | None:
    """Write `cost=float` for a default that is a class."""
    if signature is None:
        return None
    return re.sub(r"<class '([\w.]+)'>", r"\1", signature), result


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handlers."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", hide)
    app.connect("autodoc-process-signature", short_types)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
