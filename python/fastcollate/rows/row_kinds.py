"""Arguments and fields of the rows of a builder, which all of its rows have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import numpy as np

from fastcollate.rows.captured import Captures
from fastcollate.rows.fields import Field, FieldOptions

NUMBERS = ("rewards", "advantages")
"""Arguments of one number per token, or one per row."""

_ADVICE = "pass it for every row or for none"


class RowKinds(NamedTuple):
    """Arguments and fields of a row, besides its prompt and response."""

    values: dict[str, bool]
    """Arguments; True for objects, False for arrays of numbers."""
    fields: dict[str, FieldOptions]
    options: dict[str, FieldOptions]
    """Dtypes and defaults of arguments, whose rows are along responses by now."""

    def columns(
        self, arrays: Iterator[Any], objects: Iterator[Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arguments and fields of all rows.

        Columns come in the order of arguments, then of fields by sorted key.
        """
        values = {
            name: next(objects if is_object else arrays) for name, is_object in self.values.items()
        }
        of_fields = {
            key: next(objects if self.fields[key].is_of_rows else arrays)
            for key in sorted(self.fields)
        }
        starts = {
            key: {"starts": np.array(next(objects))}
            for key in sorted(self.fields)
            if self.fields[key].make in get_args(Captures)
        }
        fields = {
            key: kind.make(of_fields[key], **kind.options, **starts.get(key, {}))
            for key, kind in self.fields.items()
        }
        for key, kind in self.options.items():
            values[key] = kind.make(values[key], **kind.options)
        return values, fields


def difference(index: int, own: RowKinds, first: RowKinds) -> Exception | None:
    """Return an error if a row has other arguments or fields than the first one."""
    if own == first:
        return None
    # Fields first: weight versions may have made the loss mask.
    for known, names in ((first.fields, own.fields), (first.values, own.values)):
        for name in {**known, **names}:
            if (name in known) != (name in names):
                lacks, but = ("no ", "has") if name in known else ("", "has not")
                return ValueError(f"row {index} has {lacks}{name}, but row 0 {but}; {_ADVICE}")
    for name in NUMBERS:
        if own.values.get(name) != first.values.get(name):
            kinds = ("one per response token", "one number")
            was, advice = kinds[first.values[name]], "pass the same kind for all rows"
            if first.values[name] and name in first.options:  # which of both None is, is not known
                was, advice = f"{was} or None", f"{advice}, in place of None in row 0, too"
            return TypeError(
                f"{name}[{index}] is {kinds[own.values[name]]}, but {name}[0] is {was}; {advice}"
            )
    plain = FieldOptions(Field, {})
    for known, kinds_of in ((first.fields, own.fields), (first.options, own.options)):
        for key in {**known, **kinds_of}:
            kind, other = (found.get(key, plain) for found in (kinds_of, known))
            if kind != other:
                return ValueError(
                    f"row {index} has {key} as {kind}, but row 0 as {other}; pass the same for all "
                    "rows"
                )
    return None
