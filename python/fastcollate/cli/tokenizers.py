"""Tokenizers from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastcollate.cli.rows import FileRows


class FileTokenizer:
    """A tokenizer from a file that shows special tokens too."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.exists():
            raise FileNotFoundError(
                f"--tokenizer is {path}, but {file} does not exist; pass the path of the "
                "model's tokenizer.json"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises its own type
            raise ValueError(
                f"--tokenizer is {path}, but {file} is not a tokenizer: {error}; pass the path of "
                "the model's tokenizer.json"
            ) from error
        self.path = file
        self.vocab_size = max(self._tokenizer.get_vocab(True).values(), default=-1) + 1

    def __len__(self) -> int:
        """Return the number of ids, of which views do not decode others."""
        return self.vocab_size

    def decode(self, ids: Any) -> str:
        """Return the text of ids."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def check(self, rows: FileRows, path: Path, numbers: Sequence[int] | None = None) -> None:
        """Check that the tokenizer has most ids; `numbers` are the numbers of rows.

        Raises
        ------
        ValueError
            If more than half of the ids are missing.
        """
        columns = {"prompt": rows.calls.prompts, "response": rows.calls.responses}
        is_missing = {
            name: np.asarray(column.values) >= self.vocab_size for name, column in columns.items()
        }
        missing = int(sum(map(np.sum, is_missing.values())))
        if 2 * missing <= sum(map(len, is_missing.values())):
            return
        name = next(name for name, one in is_missing.items() if one.any())
        column, place = columns[name], int(is_missing[name].argmax())
        at = int(np.searchsorted(column.offsets, place, side="right")) - 1
        row = rows.first_row + at if numbers is None else numbers[at]
        raise ValueError(
            f"--tokenizer is {self.path}, which knows ids below {self.vocab_size}, but the {name} "
            f"of {path}, row {row} has the id {column.values[place]}, and most other ids are as "
            "high; pass the tokenizer of the model that sampled these"
        )
