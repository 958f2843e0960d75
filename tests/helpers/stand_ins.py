"""Stand-ins for modules of frameworks that are not installed."""

import sys
import types


def installed(patch, name, **contents):
    """Put a module in place for the time of a patch."""
    for end in [place for place, letter in enumerate(name) if letter == "."]:
        if name[:end] not in sys.modules:
            package = types.ModuleType(name[:end])
            package.__path__ = []
            patch.setitem(sys.modules, name[:end], package)
    module = types.ModuleType(name)
    vars(module).update(contents)
    patch.setitem(sys.modules, name, module)
