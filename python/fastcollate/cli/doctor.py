"""``fastcollate doctor``: versions and settings of this machine, and their compatibility."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

import fastcollate as fc
from fastcollate import _fastcollate
from fastcollate.cli.options import AsJson, Debug
from fastcollate.compat.versions import VERIFIED
from fastcollate.memory import pinning

LIBRARIES = ("numpy", "torch", "pyarrow", "ray", "tokenizers", "transformers", "datasets")

UNPATCHED: dict[str, dict[str, tuple[str, ...]]] = {
    "nemo_rl": {"nemo_rl.data.packing.algorithms": ("get_packer",)},
    "verl": {
        "verl.trainer.ppo.padding_utils": (
            *("construct_minimal_padding_template", "build_padding_position_ids"),
            *("build_padding_routed_experts",),
        ),
    },
}
"""Functions of frameworks that fastcollate has, but ``patch()`` does not replace, by module."""

_DISTRIBUTIONS = {"nemo_rl": "nemo-rl"}

_MEASURED = 64 << 20
"""Bytes of the batch that measures memory."""


class Finding(NamedTuple):
    """One line of the output."""

    section: str
    name: str
    value: str
    is_wrong: bool = False


def doctor(*, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show versions, memory, threads and frameworks here; exit with 1 if something is wrong."""
    findings = [
        finding
        for look in (_versions, _device, _memory, _threads, _frameworks)
        for finding in look()
    ]
    is_wrong = any(one.is_wrong for one in findings)
    if as_json:
        table: dict[str, Any] = {}
        for one in findings:
            table.setdefault(one.section, {})[one.name] = one.value
        wrong = [f"{one.name}: {one.value}" for one in findings if one.is_wrong]
        print(json.dumps({"ok": not is_wrong, "wrong": wrong, **table}, indent=2))
    else:
        _print(findings)
    if is_wrong:
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    width = max(len(one.name) for one in findings)
    section = None
    for one in findings:
        if one.section != section:
            section = one.section
            console.print(Text(section, style="bold"))
        style = "bold red" if one.is_wrong else ""
        mark = "!" if one.is_wrong else " "
        line = Text(f"{mark} {one.name:<{width}}  {one.value}", style=style)
        line.truncate(
            max(console.width, 40) if console.is_terminal else 10_000, overflow="ellipsis"
        )
        console.print(line, soft_wrap=True)


def _versions() -> Iterator[Finding]:
    """Yield the versions of libraries."""
    section = "versions"
    build = Path(_fastcollate.__file__ or "").name
    yield Finding(section, "fastcollate", f"{fc.__version__} ({build})")
    free = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", free-threaded"
    system = f"{platform.system()} {platform.machine()}"
    yield Finding(section, "Python", f"{platform.python_version()}{free} on {system}")
    found = {name: _version(name) for name in LIBRARIES}
    yield Finding(section, "libraries", ", ".join(f"{n} {v}" for n, v in found.items() if v))
    absent = [name for name, version in found.items() if version is None]
    if absent:
        yield Finding(section, "not installed", ", ".join(absent))


def _version(name: str) -> str | None:
    """Return the version of an installed library."""
    try:
        return metadata.version(_DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        return None


def _device() -> Iterator[Finding]:
    """Yield torch's devices and the speedup of pinned memory."""
    section = "devices"
    if _version("torch") is None:
        yield Finding(section, "torch", "not installed: batches are NumPy arrays")
        return
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding(section, "torch", f"cannot be imported: {error}", is_wrong=True)
        return
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        yield Finding(section, "CUDA", f"{torch.version.cuda}: {kinds}")
    else:
        yield Finding(section, "CUDA", "no device")
    if (obstacle := pinning.obstacle()) is not None or not torch.cuda.is_available():
        yield Finding(section, "pinned memory", obstacle or "no use without a device")
        return
    try:
        pinned = torch.empty(_MEASURED, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        yield Finding(section, "pinned memory", f"cannot be locked: {reason}", is_wrong=True)
        return
    rates = []
    for source in (pinned, torch.zeros(_MEASURED, dtype=torch.uint8)):
        source.to("cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        source.to("cuda")
        torch.cuda.synchronize()
        rates.append(_MEASURED / (time.perf_counter() - start) / 1e9)
    yield Finding(
        section, "pinned memory", f"{rates[0]:.1f} GB/s to the device, {rates[1]:.1f} without"
    )


def _memory() -> Iterator[Finding]:
    """Yield the speedups of recycled memory and huge pages."""
    section = "memory"
    rows = fc.Ragged(np.ones(_MEASURED // 16, np.int64), np.arange(0, _MEASURED // 16 + 1, 4096))
    empty = fc.Ragged(np.empty(0, np.int64), np.zeros(len(rows) + 1, np.int64))
    rates = {}
    for name, pool in (("fresh", None), ("recycled", fc.memory.BufferPool(1 << 30))):
        best = float("inf")
        for _ in range(4):
            start = time.perf_counter()
            batch = fc.build_batch(empty, rows, pad_token_id=0, array_type="numpy", pool=pool)
            best = min(best, time.perf_counter() - start)
            size = sum(batch[key].nbytes for key in batch)
            del batch
        rates[name] = size / best / 1e9
    yield Finding(
        section,
        "writing a batch",
        f"{rates['recycled']:.1f} GB/s to recycled memory, {rates['fresh']:.1f} to fresh",
    )
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if path.exists():
        words = path.read_text().split()
        mode = next((word.strip("[]") for word in words if word.startswith("[")), "unknown")
        says = {
            "never": "never: fresh memory is mapped in pages of 4 kB",
            "madvise": "madvise: fresh slabs from 32 MiB on get them",
            "always": "always: fresh slabs get them",
        }
        yield Finding(section, "huge pages", says.get(mode, mode))
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Finding(section, "of the machine", f"{size / 2**30:,.0f} GiB")


def _threads() -> Iterator[Finding]:
    """Yield the number of threads."""
    section = "threads"
    count = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    text = f"{own} of {count} for this process"
    if (quota := _quota()) is not None:
        text += f", with a quota of {quota:g}"
    yield Finding(section, "cores", text)
    if "torch" in sys.modules:
        yield Finding(section, "torch", f"{sys.modules['torch'].get_num_threads()} threads")
    if (given := os.environ.get("OMP_NUM_THREADS")) is not None:
        yield Finding(section, "OMP_NUM_THREADS", given)


def _quota() -> float | None:
    """Return the container's limit of CPU cores, if any."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if most == "max" else int(most) / int(period)


def _frameworks() -> Iterator[Finding]:
    """Compare the parameters of installed frameworks' functions with fastcollate's."""
    section = "frameworks"
    for package in VERIFIED:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            yield Finding(section, package, "not installed")
            continue
        compat = import_module(f"fastcollate.compat.{package}")
        root = Path(next(iter(spec.submodule_search_locations)))
        same, wrong = 0, []
        version = _version(package)
        for module, name in replaced(package, version):
            theirs = parameters(root.joinpath(*module.split(".")[1:]), name)
            if theirs is None:
                wrong.append(f"{module}.{name} is not there")
                continue
            ours = list(inspect.signature(getattr(compat, name)).parameters)
            # Ours may have more parameters, and another name for the first, positional one.
            if lacking := [one for one in theirs[1:] if one not in ours]:
                wrong.append(f"{module}.{name} has {', '.join(lacking)}, which ours has not")
            else:
                same += 1
        text = f"{version or 'of unknown version'}: {same} functions match"
        yield Finding(section, package, "; ".join([text, *wrong]), bool(wrong))


def replaced(package: str, version: str | None) -> list[tuple[str, str]]:
    """Return modules and names of a framework's functions that fastcollate has, too."""
    modules = UNPATCHED.get(package, {})
    found = [(module, name) for module, names in modules.items() for name in names]
    if hasattr(import_module(f"fastcollate.compat.{package}"), "patch"):
        patcher = import_module(f"fastcollate.compat.{package}.patches").PATCHER
        found += [
            (each.module, each.name)
            for each in patcher.replacements
            if not each.versions or version not in VERIFIED[package] or version in each.versions
        ]
    return found


def parameters(source: Path, name: str) -> list[str] | None:
    """Return the parameters of a function or class in a module's file, which is not run."""
    path = source.with_suffix(".py")
    path = path if path.exists() else source / "__init__.py"
    if not path.exists():
        return None
    for node in ast.parse(path.read_text("utf-8")).body:
        if getattr(node, "name", None) != name:
            continue
        if isinstance(node, ast.ClassDef):
            made = (n for n in node.body if getattr(n, "name", None) == "__init__")
            function = next(made, None)
            if function is None:
                return []
            skipped = 1
        else:
            function, skipped = node, 0
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = function.args
            names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            return names[skipped:]
    return None
