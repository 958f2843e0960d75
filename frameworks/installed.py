"""Frameworks' own modules, out of the packages that `make peers` downloads.

Of a package, only the modules in `MODULES` are run. What they import apart from each other, the
standard library and `USED` is replaced by stubs, so that nothing else needs to be installed and
nothing of it is loaded. The modules are not in `sys.modules`: for the library, no framework is
installed.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FOLDER = Path(__file__).parents[1] / ".peers"

PROJECTS = {
    "axolotl": ("Project-URL", "Repository, https://github.com/axolotl-ai-cloud/axolotl.git"),
    # There is no link to the project.
    "skyrl": ("Summary", "Unified API for training and inference"),
    "trl": ("Project-URL", "Homepage, https://github.com/huggingface/trl"),
    "verl": ("Home-page", "https://github.com/verl-project/verl"),
}
"""A field of each package's metadata by which other projects are told apart."""

MODULES = {
    "axolotl.utils.samplers.multipack",
    "nemo_rl.data.packing.algorithms",
    "nemo_rl.data.packing.metrics",
    "nemo_rl.utils.timer",
    "skyrl.backends.skyrl_train.distributed.megatron.packing_utils",
    "skyrl.backends.skyrl_train.distributed.megatron.quantization_utils",
    "skyrl.backends.skyrl_train.distributed.megatron.token_metadata",
    "skyrl.backends.skyrl_train.training_batch",
    "skyrl.backends.skyrl_train.utils.packed_tensor",
    "skyrl.backends.skyrl_train.utils.replay_utils",
    "skyrl.backends.skyrl_train.utils.routed_experts",
    "skyrl.backends.skyrl_train.utils.sample_support",
    "skyrl.backends.skyrl_train.workers.worker_utils",
    "skyrl.train.dataset.bin_packing",
    "skyrl.train.dataset.collators",
    "skyrl.train.dataset.preprocess",
    "skyrl.train.generators.utils",
    "skyrl.train.sft_trainer",
    "skyrl.train.trainer",
    "skyrl.train.utils.trainer_utils",
    "trl.data_utils",
    "trl.experimental.async_distillation.async_distillation_trainer",
    "trl.experimental.async_grpo.packing",
    "trl.trainer.dpo_trainer",
    "trl.trainer.sft_trainer",
    "trl.trainer.utils",
    "verl.trainer.ppo.core_algos",
    "verl.trainer.ppo.padding_utils",
    "verl.utils.attention_utils",
    "verl.utils.model",
    "verl.utils.seqlen_balancing",
    "verl.utils.torch_functional",
    "verl.workers.utils.padding",
}

USED = {"numba", "numpy", "pyarrow", "torch"}

ABSENT = {"flash_attn", "transfer_queue"}
"""Packages that modules can do without."""


class DataProto:
    """In place of verl's: a batch of tensors, arrays of objects, and what belongs to no row."""

    def __init__(self, batch: Any, non_tensor_batch: Any, meta_info: Any) -> None:
        self.batch = batch
        self.non_tensor_batch = non_tensor_batch
        self.meta_info = meta_info

    @classmethod
    def from_dict(cls, tensors: Any, non_tensors: Any, meta_info: Any) -> DataProto:
        """Make one, as verl's classmethod."""
        return cls(tensors, non_tensors, meta_info)


def _rows(batch: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    return {key: value[rows] for key, value in batch.items()}


GIVEN: dict[str, dict[str, Any]] = {
    # The base of TRL's collators, whose methods are called by themselves.
    "transformers.data.data_collator": {"DataCollatorMixin": object},
    "verl.protocol": {"DataProto": DataProto},
    # Of dicts in place of TensorDicts.
    "verl.utils.tensordict_utils": {
        "assign_non_tensor_data": dict.__setitem__,
        "get_non_tensor_data": lambda data, key, default: data.get(key, default),
        "index_select_tensor_dict": _rows,
    },
    "verl.utils.device": {
        "get_device_name": lambda: "cpu",
        "is_torch_npu_available": lambda check_device: False,
    },
}
"""Attributes of stubs that are called, by module."""


def version(package: str) -> str | None:
    """Return the version of a downloaded package, by its import name; None if missing."""
    found = distributions(name=package.replace("_", "-"), path=[str(FOLDER)])
    return next((each.version for each in found), None)


def real(name: str) -> Any:
    """Return one of `MODULES`, or None if its package was not downloaded."""
    if name not in _loaded:
        path = FOLDER.joinpath(*name.split(".")).with_suffix(".py")
        if not path.exists():
            return None
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        _loaded[name] = module = importlib.util.module_from_spec(spec)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        spec.loader.exec_module(module)
    return _loaded[name]


_loaded: dict[str, ModuleType] = {}


def load(name: str) -> Any:
    """Return one of `MODULES`, or the attributes given in place of another."""
    return SimpleNamespace(**GIVEN[name]) if name in GIVEN else real(name)


@contextmanager
def as_installed(package: str) -> Iterator[None]:
    """Let the library find the modules of a package, as if it were installed."""
    names = [name for name in MODULES if name.startswith(f"{package}.")]
    modules = {package: ModuleType(package)} | {name: real(name) for name in names}
    found = {name: module for name, module in modules.items() if module is not None}
    assert sys.modules.keys().isdisjoint(found), f"{package} is installed"
    sys.modules.update(found)
    try:
        yield
    finally:
        for name in found:
            del sys.modules[name]


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """Import for modules of frameworks, also when their functions are called."""
    if level:
        assert globals is not None
        name, level = importlib.util.resolve_name("." * level + name, globals["__package__"]), 0
    top = name.partition(".")[0]
    if top in ABSENT:
        raise ModuleNotFoundError(f"No module named {top!r}", name=top)
    if top in sys.stdlib_module_names or (top in USED and importlib.util.find_spec(top)):
        return builtins.__import__(name, globals, locals, fromlist, level)
    if name in MODULES:
        return real(name) if fromlist else _Package(top)
    return _Package(name)


class _Package:
    """Stands in for a package that is not run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        path = f"{self.name}.{name}"
        if path in MODULES:
            return real(path)
        if path in GIVEN or any(module.startswith(f"{path}.") for module in MODULES):
            return _Package(path)
        return GIVEN.get(self.name, {}).get(name) or _Stub(name, (), {})


class _Stub(type):
    """Stands in for a class, a type with parameters, a decorator or a logger."""

    def __getattr__(cls, name: str) -> _Stub:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub(name, (), {})

    def __getitem__(cls, parameters: Any) -> _Stub:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else cls


def check(package: Distribution) -> None:
    """Check that a package is of the project that is meant.

    Raises
    ------
    ValueError
        If its metadata says another thing.
    """
    name = package.metadata["Name"]
    key, expected = PROJECTS[name]
    found = package.metadata.get_all(key) or []
    if expected not in found:
        raise ValueError(f"{name} is another project: {key} is {found}, expected {expected!r}")
    print(f"{name} {package.version} ({key}: {expected})")


if __name__ == "__main__":
    if sys.version_info < (3, 11):
        raise SystemExit("the compared modules of SkyRL need Python 3.11 or newer")
    found = list(distributions(path=[str(FOLDER)]))
    assert {package.metadata["Name"] for package in found} == PROJECTS.keys()
    for package in found:
        check(package)
