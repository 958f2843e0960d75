"""verl's own functions, also where only its files are installed."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

BALANCING = "verl.utils.seqlen_balancing"


def seqlen_balancing() -> ModuleType | None:
    """Return verl's module of partitions; None if verl is not installed.

    After ``pip install --no-deps verl``, most of what it imports is missing. Then its file is run
    with stand-ins for that. Of these one is called: that which takes rows out of a batch, a dict.
    """
    if find_spec("verl") is None:
        return None
    try:
        return importlib.import_module(BALANCING)
    except ImportError:
        return _alone()


def _alone() -> ModuleType:
    """Run the file of the module, and nothing else of verl's."""
    package = find_spec("verl")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "utils" / "seqlen_balancing.py"
    spec = spec_from_file_location(BALANCING, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with patch.dict(sys.modules, _stand_ins()):
        spec.loader.exec_module(module)
    return module


def _stand_ins() -> dict[str, ModuleType]:
    names = {
        "verl": {},
        "verl.protocol": {"DataProto": object},
        "verl.utils": {},
        "verl.utils.tensordict_utils": {"index_select_tensor_dict": _picked},
        "verl.utils.device": {"get_device_name": lambda: "cpu"},
    }
    modules = {}
    for name, attributes in names.items():
        modules[name] = ModuleType(name)
        modules[name].__dict__.update(attributes)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, modules[name])
    return modules


def _picked(batch: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    return {key: value[rows] for key, value in batch.items()}
