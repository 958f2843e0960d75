"""Fields: values per token or row of a batch, in addition to the token ids."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np

from fastcollate._fastcollate import LAYOUTS, FieldSpec, OutputSpec, OutputTable
from fastcollate.common.arguments import check_choice, suggests_names
from fastcollate.common.arrays import (
    check_dtype_name,
    concatenate,
    convert,
    describe,
    is_tensor,
    offsets_of,
    to_tensor,
)
from fastcollate.common.names import fold
from fastcollate.common.row_columns import OTHER_NAMES
from fastcollate.common.text import in_words, show
from fastcollate.rows.captured import Captured, Captures, RoutedExperts, captured_rows
from fastcollate.rows.lengths import Integers
from fastcollate.rows.per_row import (
    IMAGES,
    SOUNDS,
    PerRow,
    SomeRows,
    as_arrays,
    common_dtype,
    dtype_of,
    numbers_of_rows,
    per_row_values,
)
from fastcollate.rows.ragged_fields import OwnToken, ragged_columns, ragged_specs
from fastcollate.rows.versions import WeightVersions

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from fastcollate.rows.columns import Ragged

Rows: TypeAlias = "Sequence[Any] | NDArray[Any] | torch.Tensor | Ragged | Any"
"""A per-token field: one row of numbers per training row (see :func:`fastcollate.build_batch`)."""


LOSS_MASK = FieldSpec("loss_mask", "loss_mask", plain=True, weighs=True)
REWARDS = FieldSpec("rewards", "rewards", plain=True, spread="last_of_row")
LOGPROBS = FieldSpec("logprobs", "logprobs", plain=True)
ADVANTAGES = FieldSpec("advantages", "advantages", plain=True, spread="trained")


Spread: TypeAlias = Literal["all", "trained", "last"]
"""Tokens of a row that get its one number."""


@suggests_names
@dataclass(frozen=True, eq=False)
class Field:
    """A per-token field of a batch, for ``fields=`` of :func:`fastcollate.build_batch`.

    Parameters
    ----------
    rows
        One row per row of the batch, in any form of rows. Rows may have trailing dimensions,
        (tokens, ...), the same in all rows. With `spread`, one number per row.
    align
        ``"response"``: one value per response token, written as (B, R, ...). ``"sequence"``: one
        value per prompt and response token, written as (B, W, ...).
    fill
        The value of padding, which must fit `dtype`. Floats round, but not to infinity; integers
        may be given as whole floats.
    gap_fill
        The value of response-aligned fields on observations of merged turns (and on tokens that
        realigning masks); `fill` if None.
    dtype
        ``"float32"`` if None, whatever the values are: integers beyond 2**24 are then rounded.
        Or bool, uint8, int16, int32, int64, float16, bfloat16 or float64, as a name, NumPy dtype
        or torch dtype: integers that do not fit are errors, floats are rounded (Python floats in
        lists keep all bits in float64).
    spread
        Write one number per row, such as an advantage, to ``"all"`` response tokens, to those that
        are ``"trained"`` (where ``loss_mask`` is not 0, or would not be if it is not given), or to
        the ``"last"``. All other positions hold `fill`. With merged turns, each turn's number goes
        to its own tokens, and none to observations. A number for the last token of an empty
        response is an error, as is NaN for tokens that are trained; if none of a row is, its number
        is ignored.
    default
        The value of each token of a row that is None, or null in Arrow; with `spread`, the number
        of such a row. If None, such rows are errors.
    ragged
        Each token has any number of values, such as the ids that sampling chose from. A row is a
        list of one list of numbers per token, a tuple ``(values, counts)`` of two 1-D arrays, or a
        :class:`Ragged` of its tokens; `rows` may also be two :class:`Ragged` in a tuple, of the
        values and the counts of all rows, or an Arrow array of lists of lists. Written as two
        outputs: the values, (values,), and ``<key>_offsets``, int64 (positions + 1,): position i of
        the flattened (B, R) or (B, W) has ``values[offsets[i]:offsets[i + 1]]``, none on padding
        and observations. `dtype` is int32 if None, and there is no `fill`.
    own_token
        What to do with a `ragged` list that lacks the id of its own token: ``"keep"`` it,
        ``"add"`` the id at its end, or raise an ``"error"``. The last two refuse negative values,
        such as padding.
    """

    rows: Rows
    align: Literal["response", "sequence"] = "response"
    fill: float = 0
    gap_fill: float | None = None
    dtype: Any = None
    spread: Spread | None = None
    default: float | None = None
    ragged: bool = False
    own_token: OwnToken = "keep"

    def check_align(self, key: str) -> None:
        """Check `align`."""
        check_choice(f"align of {key}", self.align, ("response", "sequence"))

    def spec(self, key: str) -> FieldSpec:
        """Return how the field is read and written under a key."""
        self.check_align(key)
        if self.own_token != "keep":
            raise ValueError(
                f"{key} has own_token={self.own_token!r}, but is not ragged; leave own_token out"
            )
        if self.spread is not None:
            check_choice(f"spread of {key}", self.spread, get_args(Spread), " or None")
            if self.align == "sequence" or self.gap_fill is not None:
                name = "gap_fill" if self.gap_fill is not None else "align"
                raise ValueError(
                    f"{key} has spread={self.spread!r}, which puts numbers on response tokens and "
                    f"fill elsewhere, and {name}={getattr(self, name)!r}; leave {name} out"
                )
        dtype = "float32" if self.dtype is None else check_dtype_name(self.dtype, key)
        gap_fill = self.fill if self.gap_fill is None else self.gap_fill
        numbers: dict[str, Any] = {"fill": self.fill, "gap_fill": gap_fill, "default": self.default}
        for name, number in numbers.items():
            is_number = isinstance(number, (int, float, np.number, np.bool_))
            if not is_number and (name != "default" or number is not None):
                raise TypeError(f"{name} of {key} is {describe(number)}; pass a number")
        try:
            return FieldSpec(key, key, align=self.align, dtype=dtype, spread=self.spread, **numbers)
        except (TypeError, OverflowError) as error:
            given = (f"{name}={describe(number)}" for name, number in numbers.items())
            raise ValueError(
                f"{key} has {', '.join(given)}, which do not all fit {dtype}; pass other numbers, "
                "or another dtype"
            ) from error


AnyField: TypeAlias = Field | PerRow | RoutedExperts | Captured | WeightVersions

FIELDS = in_words([f"fc.{kind.__name__}" for kind in get_args(AnyField)], "or")
"""Those of the argument ``fields``, for messages."""


def read_align(rows: Any, spec: FieldSpec) -> tuple[Any, FieldSpec]:
    """Return the rows of an argument with its own key, and the spec to read them.

    A :class:`Field` gives their alignment, dtype and default; the output is response-aligned.
    """
    if not isinstance(rows, Field):
        return rows, spec
    if name := refused_option(rows):
        instead = (
            f"pass the numbers themselves: {spec.key}=[...]"
            if name == "spread"
            else "pass align, dtype and default alone"
        )
        raise ValueError(
            f"{spec.key} is an fc.Field with {name}={show(getattr(rows, name))}, but has an output "
            f"of its own: {instead}"
        )
    typed = rows.spec(spec.key)
    if spec.weighs and rows.default is not None and not rows.default >= 0:
        raise ValueError(f"default of {spec.key} is {rows.default}; pass 0 or more")
    aligned = _with_align(spec, rows.align, rows.default)
    return rows.rows, aligned if rows.dtype is None else aligned.with_dtype(typed.dtype)


def refused_option(field: Field) -> str | None:
    """Return an option that is given, but that arguments with their own key refuse, if any."""
    given = (name for name, default in _REFUSED.items() if getattr(field, name) != default)
    return next(given, None)


_REFUSED = {
    one.name: one.default
    for one in dataclasses.fields(Field)
    if one.name in ("fill", "gap_fill", "spread", "ragged", "own_token")
}
"""Options of :class:`Field` that such arguments refuse, and the defaults."""

_with_align = functools.cache(FieldSpec.with_align)
"""Cached, as only the constant specs are passed."""


class FieldOptions(NamedTuple):
    """A field without its values."""

    make: type[Any]
    options: dict[str, Any]

    @property
    def is_of_rows(self) -> bool:
        """True if a row has one object, whatever its number of tokens."""
        return (
            self.make in (PerRow, WeightVersions)
            or self.options.get("spread") is not None
            or self.options.get("ragged", False)
        )

    def __repr__(self) -> str:
        name, options = self.make.__name__, self.options
        if "lag" in options:  # versions that have been read
            name, lag = WeightVersions.__name__, options["lag"]
            options = {} if lag is None else lag._asdict()
        return f"{name}({', '.join(f'{name}={value!r}' for name, value in options.items())})"


def options_of(field: Any) -> FieldOptions:
    """Return a field without its values: the first attribute, and first tokens of rows."""
    if not isinstance(field, AnyField):
        return FieldOptions(type(field), {})
    names = [item.name for item in dataclasses.fields(field)][1:]
    options = {name: getattr(field, name) for name in names if name != "starts"}
    return FieldOptions(type(field), options)


def row_of(field: AnyField, row: int) -> Any:
    """Return a field of one row."""
    kind, first = options_of(field), dataclasses.fields(field)[0].name
    starts = getattr(field, "starts", None)
    more = {} if starts is None else {"starts": starts[row]}
    return kind.make(getattr(field, first)[row], **kind.options, **more)


def object_outputs(
    table: OutputTable, fields: Sequence[tuple[Any, FieldSpec]], sources: Sequence[int] | None
) -> dict[str, Any]:
    """Return the outputs of fields of one array or object per row, which the core does not write.

    Values of the rows in `sources`, as a list or joined; empty arrays or None for negative rows.
    """
    data: dict[str, Any] = {}
    offsets_keys = {one.field: one.key for one in table if one.align == "joined_offsets"}
    for output in table:
        if output.field is None or output.align not in ("object", "joined"):
            continue
        given: Any = fields[output.field][0]
        arrays = list(given.values.values()) if isinstance(given, SomeRows) else given
        dtype = common_dtype(output.key, arrays) if output.align == "joined" else None
        if sources is not None:
            nothing = None if fields[output.field][1].align == "object" else given[0][:0]
            arrays = [given[row] if row >= 0 else nothing for row in sources]
        if output.align == "object":
            data[output.key] = arrays
        else:
            # In the common dtype of all rows of the step, whichever of them are here.
            joined, offsets = _join(arrays, dtype)
            data |= {output.key: joined, offsets_keys[output.field]: offsets}
    return data


def check_images(
    fields: Sequence[tuple[Any, FieldSpec]], turn_rows: Integers, sources: Integers
) -> None:
    """Check that the images of merged turns begin those of their row's last turn, which it keeps.

    `turn_rows` has the row of each turn, `sources` the last turn of each row. Only turns that were
    read are compared.

    Raises
    ------
    ValueError
        A turn would be trained with the images of another.
    """
    for rows, spec in fields:
        if spec.key not in (*IMAGES, *SOUNDS) or not isinstance(rows, SomeRows):
            continue
        for turn, array in rows.values.items():
            last = sources[turn_rows[turn]] if turn_rows[turn] >= 0 else turn
            whole = rows.values.get(last, array)
            first = whole[: len(array)]
            if array.shape != first.shape or not bool((array == first).all()):
                raise ValueError(
                    f"{spec.key}[{turn}] is not the beginning of {spec.key}[{last}], which the "
                    "merged row keeps; pass the values of the whole prompt with each turn, give "
                    "turns with other values another trajectory id, or leave merge out"
                )


def _join(arrays: list[Any], dtype: Any) -> tuple[Any, Any]:
    """Return arrays concatenated in one dtype, and the offsets of the rows."""
    arrays = [array if array.dtype == dtype else convert(array, dtype) for array in arrays]
    offsets: Any = offsets_of([len(array) for array in arrays])
    joined = concatenate(arrays)
    return joined, to_tensor(offsets) if is_tensor(joined) else offsets


def check_keys(fields: Any) -> None:
    """Check that the argument ``fields`` is a mapping of strings, and that each may be a key.

    A field ``loss_mask`` is refused, as its zeros would still train.
    """
    if not isinstance(fields, Mapping):
        raise TypeError(f"fields is {show(fields)}; pass a mapping of keys to fc.Field")
    for key in fields:
        if not (isinstance(key, str) and key.isprintable()):
            kind = ValueError if isinstance(key, str) else TypeError
            raise kind(f"fields has the key {show(key)}; pass printable strings as keys")
    if LOSS_MASK.key in fields:
        raise ValueError(
            "fields has 'loss_mask', but a field does not decide which tokens train; pass "
            "loss_mask=fc.Field(rows, align='sequence'), and for an output along sequences a field "
            "under another key"
        )
    for key in fields:
        check_key(key)


_MASKS = {fold(name) for name in OTHER_NAMES["loss_mask"]}
"""Keys of masks that say what trains, as one word in the singular."""

_TRAINS = {"loss", "train", "trained", "training", "trainable", "target", "response", "assistant"}
"""Words in keys of masks and weights that say what trains."""


def _says_what_trains(key: str) -> bool:
    words = key.lower().split("_")
    is_mask = fold(words[-1]) in ("mask", "weight") and not _TRAINS.isdisjoint(words)
    return is_mask or fold(key) in _MASKS


def check_mask_is_used(fields: Mapping[str, Any], loss_mask: Any) -> None:
    """Check that a loss mask is not a mere field: without `loss_mask` all response tokens train."""
    for key, field in fields.items():
        is_own = key == "loss_mask" or is_reserved(key)  # another error says so
        is_mask = isinstance(key, str) and not is_own and _says_what_trains(key)
        if loss_mask is None and is_mask and not isinstance(field, PerRow):
            raise ValueError(
                f"fields has {key!r}, but there is no loss_mask, so all response tokens train; "
                "pass the mask as loss_mask, and as a field only to have it in the batch, too"
            )


LABELS = ("labels", "shift_labels")
"""Keys of labels, which are written from the ids and the loss mask."""


def check_key(key: str) -> None:
    """Refuse a field that the batch would hide, or that a model would take for its labels."""
    if key in LABELS:
        raise ValueError(
            f"fields has {key!r}, but labels are the ids of tokens that train, and -100 elsewhere; "
            "pass labels='aligned' or 'shifted', with loss_mask=... for the tokens that train. "
            f"Other targets need another key, such as {other_key(key)!r}, and fill=-100 if they "
            "are along sequences"
        )
    if is_reserved(key):
        raise ValueError(
            f"fields has {key!r}, but batch.{key} is an attribute or method of every batch, or an "
            f"output of some layouts; pass the field under another key, such as {other_key(key)!r}"
        )


def other_key(key: str) -> str:
    """Return a key to suggest instead of a reserved one."""
    return f"my_{key}"


Batches = TypeVar("Batches")

_reserved = {
    "sequence_offsets",  # of trees that have fields along sequences
    *(
        output.key
        for layout in LAYOUTS
        for output in OutputTable.of_layout(layout, True, 0, [], OutputSpec())
        if output.key != "position_ids"  # may be left out
    ),
}
"""Outputs that a layout always has: a batch can change its layout, and blocks are stored in one of
their own. The module of batches, which imports this one, adds their attributes."""


def reserves_keys(batches: type[Batches]) -> type[Batches]:
    """Refuse the public attributes and methods of a class of batches as keys of fields.

    Those of every mapping are not attributes to look for data in: a field ``values`` is read as
    ``batch["values"]``.
    """
    public = (name for name in dir(batches) if not name.startswith("_"))
    _reserved.update(set(public).difference(dir(Mapping)))
    return batches


def is_reserved(key: str) -> bool:
    """Return True for what no field may have as key in any layout."""
    return key in _reserved


def check_fields(
    fields: Mapping[str, Any], array_type: str, own: Sequence[int] | None = None
) -> list[tuple[Any, FieldSpec]]:
    """Return the values and spec of each item of the argument ``fields``, checked.

    `own` has the rows of a shard, if others are not read.
    """
    check_keys(fields)
    specs: list[tuple[Any, FieldSpec]] = []
    for key, field in fields.items():
        if isinstance(field, Captures):
            specs.append((captured_rows(key, field), field.spec(key)))
        elif isinstance(field, Field) and field.ragged:
            specs.extend(
                zip(ragged_columns(key, field.rows), ragged_specs(key, field), strict=True)
            )
        elif isinstance(field, Field):
            spec = field.spec(key)
            is_spread = field.spread is not None
            specs.append((numbers_of_rows(key, field.rows) if is_spread else field.rows, spec))
        elif isinstance(field, PerRow):
            form, values, rows = per_row_values(key, field, own)
            if form == "object":
                specs.append((values, FieldSpec(key, key, align="object", dtype=None)))
            elif form == "array":
                arrays = as_arrays(key, values, field, array_type, rows)
                align = "joined" if field.concat else "array"
                specs.append((arrays, FieldSpec(key, key, align=align, dtype=None)))
            else:
                dtype = (
                    dtype_of(values) if field.dtype is None else check_dtype_name(field.dtype, key)
                )
                specs.append((values, FieldSpec(key, key, align="row", dtype=dtype)))
        else:
            raise TypeError(f"fields[{key!r}] is {show(field)}; pass {FIELDS}")
    if sum(isinstance(field, RoutedExperts) for field in fields.values()) > 1:
        raise ValueError(
            "fields has more than one fc.RoutedExperts, but router_padding_mask belongs to one; "
            "pass the others as fc.Captured"
        )
    return specs
