"""Ragged columns: all values in one array, and the offsets of rows."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final, overload

import numpy as np

from fastcollate._fastcollate import arrow_lists
from fastcollate.common.arguments import suggests_names, tally
from fastcollate.common.arrays import (
    check_array,
    concatenate,
    describe,
    dtype_name,
    first_misfit,
    is_only_torch,
    is_tensor,
    misfit,
    offsets_of,
    ranges_of,
    read_array,
    take,
    tensor_of_bits,
    to_array,
    to_numpy,
    to_tensor,
)
from fastcollate.common.names import unknown_attribute

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray


@final
@suggests_names
class Ragged:
    r"""Rows of different lengths in one flat array.

    Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``. Rows and slices of rows are views: nothing
    is copied, and gradients of a tensor flow through them. The attributes of a ``Ragged``
    cannot be changed; the numbers in ``values``, the caller's own array, can.

    :func:`fastcollate.ragged` makes one from lists, padded arrays, Arrow and nested tensors.

    Parameters
    ----------
    values
        NumPy array or torch tensor, (tokens, \*trailing): for instance (tokens,) token ids or
        (tokens, layers, topk) routed experts. On any device.
    offsets
        Integers, (rows + 1,), from 0 to ``len(values)`` and never decreasing. Copied as int64.

    Raises
    ------
    TypeError
        If ``values`` is not an array or tensor of numbers, or ``offsets`` are not integers.
    ValueError
        If the offsets do not fit the values; the message names the index.

    Notes
    -----
    ``==`` is one bool: True if both hold the same rows, in the same dtype, in arrays of the same
    library on the same device. NaN equals NaN here.

    NumPy arrays and CPU tensors are pickled as buffers (protocol 5), which Ray and others transfer
    out of band without a copy. Tensors that require a gradient, or are on another device, are
    pickled by torch. Memory from Ray is read-only: do not write into it.

    Examples
    --------
    >>> rows = fc.Ragged(np.array([5, 6, 7]), [0, 2, 2, 3])
    >>> rows[0], rows.to_list()
    (array([5, 6]), [[5, 6], [], [7]])
    >>> rows[1:]
    Ragged of 2 rows, 1 token: int64 array, lengths 0 to 1
    """

    __slots__ = ("__weakref__", "_offsets", "_values")

    _values: Any
    _offsets: NDArray[np.int64]

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise AttributeError(unknown_attribute(Ragged, name))

        def __add__(self, other):
            raise TypeError("rows of a Ragged have no arithmetic; compute with rows.values")

        __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __add__

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            name = getattr(function, "__name__", function)
            advice = "pass rows.values, or fastcollate.pad(rows)"
            raise TypeError(f"{name} takes tensors, but got a Ragged; {advice}")

    def __init__(self, values: Any, offsets: Any) -> None:
        self._values = check_array("values", values)
        self._offsets = _check_offsets(offsets, len(values))

    @classmethod
    def _of(cls, values: Any, offsets: NDArray[np.int64]) -> Ragged:
        """Make a ``Ragged`` without checks."""
        self = object.__new__(cls)
        offsets.setflags(False)  # type: ignore[call-arg]  # by name, twice as slow
        self._values, self._offsets = values, offsets
        return self

    @property
    def values(self) -> Any:
        r"""The flat NumPy array or torch tensor: (tokens, \*trailing)."""
        return self._values

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Offsets of rows in the values: int64 (rows + 1,), read-only."""
        return self._offsets

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row: int64 (rows,)."""
        return np.diff(self._offsets)

    @property
    def dtype(self) -> Any:
        """The dtype of the values, NumPy's or torch's."""
        return self._values.dtype

    @property
    def trailing(self) -> tuple[int, ...]:
        """The shape of one token's values: () for plain numbers."""
        return tuple(self._values.shape[1:])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Any]:
        for begin, end in pairwise(self._offsets.tolist()):
            yield self._values[begin:end]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Ragged: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return a row, or a ``Ragged`` of adjacent rows; both are views.

        Raises
        ------
        IndexError
            If there is no such row.
        ValueError
            If a slice skips or reverses rows, which cannot be a view. Use
            ``fc.ragged([rows[i] for i in ...])``, which copies them.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(
                    f"the slice has a step of {step}, but a view has adjacent rows only; "
                    "copy rows with fastcollate.ragged([rows[i] for i in ...])"
                )
            offsets = self._offsets[start : max(start, stop) + 1]
            return self._of(self._values[offsets[0] : offsets[-1]], offsets - offsets[0])
        try:
            row = operator.index(index)
        except TypeError as error:
            raise TypeError(
                f"the index is {describe(index)}; pass an integer or a slice, or copy rows with "
                "fastcollate.ragged([rows[i] for i in ...])"
            ) from error
        if not -len(self) <= row < len(self):
            raise IndexError(
                f"row {row} is out of range; pass an index from {-len(self)} to {len(self) - 1}"
                if len(self) > 0
                else f"row {row} is out of range; there are 0 rows"
            )
        row %= len(self)
        begin, end = self._offsets[row : row + 2].tolist()
        return self._values[begin:end]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return (
            _kind(self._values) == _kind(other._values)
            and np.array_equal(self._offsets, other._offsets)
            and _equal(self._values, other._values)
        )

    def __repr__(self) -> str:
        lengths = self.lengths
        span = f", lengths {lengths.min()} to {lengths.max()}" if len(self) else ""
        kind = "tensor" if is_tensor(self._values) else "array"
        if is_tensor(self._values) and self._values.device.type != "cpu":
            kind += f" on {self._values.device}"
        trailing = f" with {self.trailing} a token" if self.trailing else ""
        return (
            f"Ragged of {tally(len(self), 'row')}, {tally(len(self._values), 'token')}: "
            f"{dtype_name(self.dtype)} {kind}{trailing}{span}"
        )

    def to_list(self) -> list[list[Any]]:
        """Return the rows as lists of Python numbers (nested, with trailing dimensions)."""
        values = self._values.tolist()
        return [values[begin:end] for begin, end in pairwise(self._offsets.tolist())]

    def to_torch_nested(self) -> torch.Tensor:
        r"""Return a jagged nested tensor, (rows, jagged, \*trailing), over the same values.

        Only the offsets are copied, to the values' device. The shortest and the longest length are
        passed, so that torch need not compute them there.
        """
        import torch

        values = self._values if is_tensor(self._values) else to_tensor(self._values)
        lengths = self.lengths
        nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(
            values,
            torch.tensor(self._offsets, device=values.device),
            min_seqlen=int(lengths.min(initial=len(values))),
            max_seqlen=int(lengths.max(initial=0)),
        )
        return nested

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Export as an Arrow array of large lists, with trailing dimensions as fixed-size lists.

        Contiguous values are not copied; booleans, which Arrow packs, are. Gradients are dropped.
        A requested schema may have 32-bit instead of 64-bit offsets, but no other dtype of values.

        Raises
        ------
        TypeError
            If the values are on another device, or of a dtype that Arrow lacks (bfloat16).
        ValueError
            If another type is requested, or the offsets exceed 32 bits.
        """
        values = self._values
        if is_tensor(values):
            if is_only_torch(values.dtype):
                raise TypeError(
                    f"Arrow has no {dtype_name(values.dtype)}; "
                    "pass fastcollate.ragged(x, 'float32')"
                )
            values = to_array(values)
        aligned = np.require(values, requirements=["C", "A"])
        return arrow_lists(aligned, self._offsets, requested_schema)

    def __reduce__(self) -> tuple[Callable[..., Ragged], tuple[Any, ...]]:
        values, offsets = self._values, self._offsets
        if isinstance(values, np.ndarray):
            return Ragged, (np.ascontiguousarray(values), offsets)
        if values.device.type == "cpu" and not values.requires_grad:
            array = np.ascontiguousarray(to_array(values))
            return _tensors, (array, offsets, dtype_name(values.dtype))
        if values.untyped_storage().nbytes() > values.nbytes:
            values = values.clone()  # torch would pickle the whole storage of a view
        return Ragged, (values, offsets)

    @staticmethod
    def concat(parts: Sequence[Ragged]) -> Ragged:
        """Return the rows of several ``Ragged`` as one; they are copied.

        Raises
        ------
        TypeError, ValueError
            If `parts` is empty, or its items differ in library, device, dtype or trailing shape.
        """
        parts = list(parts)
        for index, part in enumerate(parts):
            if not isinstance(part, Ragged):
                raise TypeError(f"parts[{index}] is {describe(part)}; pass a sequence of Ragged")
            if (found := _kind(part._values)) != (expected := _kind(parts[0]._values)):
                raise TypeError(
                    f"parts[{index}] holds {found}, but parts[0] {expected}; pass parts of one "
                    "library, device and dtype"
                )
            if part.trailing != parts[0].trailing:
                raise ValueError(
                    f"parts[{index}] has tokens of shape {part.trailing}, but parts[0] of "
                    f"{parts[0].trailing}; pass tokens of one shape"
                )
        if not parts:
            raise ValueError("parts is empty; pass at least one Ragged")
        values = concatenate([part._values for part in parts])
        ends = np.cumsum([0, *(len(part._values) for part in parts)], dtype=np.int64)
        starts = [part._offsets[:-1] + end for part, end in zip(parts, ends, strict=False)]
        return Ragged._of(values, np.concatenate([*starts, ends[-1:]]))


def pick(column: Ragged, rows: NDArray[np.int64]) -> Ragged:
    """Return copies of some rows."""
    lengths = column.lengths[rows]
    places = ranges_of(column.offsets[rows], lengths)
    return Ragged._of(take(column.values, places), offsets_of(lengths))


def _tensors(values: np.ndarray, offsets: NDArray[np.int64], dtype: str) -> Ragged:
    """Unpickle a ``Ragged`` over a tensor from the tensor's memory."""
    return Ragged(tensor_of_bits(values, dtype), offsets)


def _check_offsets(offsets: Any, total: int) -> NDArray[np.int64]:
    """Return a read-only copy of offsets into `total` values."""
    given = read_array(to_numpy(offsets))
    if given.ndim != 1 or len(given) == 0:
        raise ValueError(f"offsets has shape {given.shape}; pass rows + 1 integers")
    if given.dtype.kind not in "iu":
        raise TypeError(f"offsets is of dtype {given.dtype}; pass integers")
    if (index := first_misfit(given, np.dtype(np.int64))) is not None:
        raise misfit(f"offsets[{index}]", given[index], "int64", "smaller offsets")
    checked = np.array(given, dtype=np.int64)
    if checked[0] != 0 or checked[-1] != total:
        raise ValueError(
            f"offsets must start at 0 and end at {total} (the number of values), but go from "
            f"{checked[0]} to {checked[-1]}; pass offsets of these values"
        )
    _check_rising("offsets", checked)
    checked.setflags(write=False)
    return checked


def _check_rising(name: str, offsets: NDArray[np.int64]) -> None:
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        index = int(falls.argmax()) + 1
        raise ValueError(
            f"{name} fall from {offsets[index - 1]} to {offsets[index]} at index {index}; "
            "pass offsets that never fall"
        )


def jagged_rows(name: str, x: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets of a jagged nested tensor and the length of each row, int64 both.

    Raises
    ------
    ValueError
        If the offsets decrease, do not fit the values, or are closer together than a length.
    """
    offsets = np.asarray(to_numpy(x.offsets()), np.int64)
    total = int(x.values().shape[x._ragged_idx - 1])
    if offsets[0] < 0:
        raise ValueError(
            f"the offsets of {name} start at {offsets[0]}; make {name} with offsets of 0 or more"
        )
    _check_rising(f"the offsets of {name}", offsets)
    if offsets[-1] > total:
        raise ValueError(
            f"the offsets of {name} end at {offsets[-1]}, but it has {total} values; make {name} "
            "with offsets of these values"
        )
    rooms = np.diff(offsets)
    if x.lengths() is None:
        return offsets, rooms
    lengths = np.asarray(to_numpy(x.lengths()), np.int64)
    if lengths.shape != rooms.shape:
        raise ValueError(
            f"{name} has {len(lengths)} lengths, but {len(offsets)} offsets; make {name} with one "
            "offset more than lengths"
        )
    if (misfits := (lengths < 0) | (lengths > rooms)).any():
        row = int(misfits.argmax())
        raise ValueError(
            f"row {row} of {name} has a length of {lengths[row]}, but its offsets are {rooms[row]} "
            f"apart; make {name} with a length from 0 to {rooms[row]}"
        )
    return offsets, lengths


def _kind(values: Any) -> str:
    """Describe the attributes that values must share to be equal or concatenated."""
    if is_tensor(values):
        return f"a {dtype_name(values.dtype)} tensor on {values.device}"
    return f"a {values.dtype} array"


def _equal(values: Any, other: Any) -> bool:
    """Compare two arrays of one library, NaN equal to NaN."""
    if values.shape != other.shape:
        return False
    same = values == other
    if "float" in dtype_name(values.dtype):
        same |= (values != values) & (other != other)
    return bool(same.all())
