"""Atomic writing of output files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def check_writable(path: Path, inputs: Iterable[Path | None]) -> None:
    """Check that a file can be written and is not an input, before the work starts.

    Raises
    ------
    OSError
        The file cannot be written; the message has the cause.
    ValueError
        The file is one of the inputs, by this name or through a link.
    """
    try:
        path.exists()
    except OSError as error:  # such as a name that is too long
        raise OSError(f"--output is {path}: {error.strerror}; pass another name") from error
    for one in inputs:
        if one is not None and one.exists() and path.exists() and path.samefile(one):
            raise ValueError(
                f"--output is {path}, which is also an input ({one}); pass another file"
            )
    folder = path.parent
    if path.name == "-":
        raise ValueError("--output is -; pass the name of a file")
    if path.is_dir():
        raise IsADirectoryError(f"--output is {path}, which is a folder; pass the name of a file")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"--output is {path}, but there is no folder {folder}; make it first"
        )
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise PermissionError(
            f"--output is {path}, but permission to write it is denied; pass another path"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a temporary file in the same folder, and rename it when done."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:  # which names the temporary file
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error


def _umask() -> int:
    """Return the process's umask."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
