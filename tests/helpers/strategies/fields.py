"""Custom fields, and the other optional arguments of `build_batch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.testing.drawing import Rollouts
from strategies.kinds import LAYOUTS, Array

Values: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Array]

_UNUSUAL = [np.inf, -np.inf, np.nan, -0.0, 1 + 2**-24, 1e300, 1e-40, 65519.0]


def _integers(dtype: str) -> Values:
    limits = np.iinfo(dtype)
    return lambda rng, shape: rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.where(rng.random(shape) < 0.2, rng.choice(_UNUSUAL, shape), rng.normal(size=shape))


FIELD_DTYPES: dict[str, Values] = {
    "bool": lambda rng, shape: rng.random(shape) < 0.5,
    **{dtype: _integers(dtype) for dtype in ("uint8", "int16", "int32", "int64")},
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), _floats),
}
"""Output dtypes of a field, and the generators of its values."""

_SOURCES = {
    "bool": ["bool"],
    "uint8": ["uint8", "int64"],
    "int16": ["int16", "int64"],
    "int32": ["int32", "int64"],
    "int64": ["int64"],
    "float16": ["float16", "float32", "float64"],
    "bfloat16": ["float32", "float64"],
    "float32": ["float32", "float64"],
    "float64": ["float16", "float32", "float64"],
}

_FILLS: dict[str, list[Any]] = {
    "bool": [False, True],
    "uint8": [0, 255],
    **{dtype: [0, 1.0, -100] for dtype in ("int16", "int32", "int64")},
    **{
        dtype: [0, -1.5, np.inf, np.nan, -0.0]
        for dtype in ("float16", "bfloat16", "float32", "float64")
    },
}


@st.composite
def token_fields(draw: st.DrawFn, data: Rollouts, array_type: str = "numpy") -> Any:
    """Draw a `fastcollate.Field` for rollouts.

    Parameters
    ----------
    data
        The rollouts; see `rollouts`.
    array_type
        That of the batch: bfloat16 is for "torch" only.

    Returns
    -------
    SearchStrategy[fastcollate.Field]
        Of any dtype and either alignment, for each token a number or an array of any shape. Rows
        are lists, arrays or tensors, or one array where they have one length.
    """
    dtypes = [name for name in FIELD_DTYPES if array_type == "torch" or name != "bfloat16"]
    dtype = draw(st.sampled_from(dtypes))
    trailing = draw(st.sampled_from([(), (), (2,), (3, 2), (0,), (1,)]))
    align: Literal["response", "sequence"] = draw(st.sampled_from(["response", "sequence"]))
    source = draw(st.sampled_from(_SOURCES[dtype]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lens = [
        len(response) + len(prompt) * (align == "sequence")
        for prompt, response in zip(data.prompts, data.responses, strict=True)
    ]
    with np.errstate(over="ignore"):
        arrays = [FIELD_DTYPES[dtype](rng, (count, *trailing)).astype(source) for count in lens]
    rows, default = draw(_as_rows(arrays)), None
    if isinstance(rows, list) and draw(st.integers(0, 3)) == 0:
        default = draw(st.sampled_from(_FILLS[dtype]))
        rows = [None if draw(st.integers(0, 2)) == 0 else row for row in rows]
        # Rows that are all empty or None do not determine the shape of a token's values.
        rows = arrays if all(row is None or len(row) == 0 for row in rows) else rows
    return fc.Field(
        rows,
        align=align,
        default=default,
        fill=draw(st.sampled_from(_FILLS[dtype])),
        gap_fill=draw(st.sampled_from([None, *_FILLS[dtype]])),
        dtype=draw(_spellings(dtype)),
    )


@st.composite
def spread_fields(draw: st.DrawFn, data: Rollouts, array_type: str = "numpy") -> Any:
    """Draw a `fastcollate.Field` of one number per row, which is None at times.

    Parameters
    ----------
    data, array_type
        As for `token_fields`.

    Returns
    -------
    SearchStrategy[fastcollate.Field]
        Of any dtype, spread to all response tokens or to the last; then None for rows without any.
    """
    dtypes = [name for name in FIELD_DTYPES if array_type == "torch" or name != "bfloat16"]
    dtype = draw(st.sampled_from(dtypes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    numbers: Any = FIELD_DTYPES[dtype](rng, (len(data.responses),))
    if draw(st.booleans()):
        source = draw(st.sampled_from(_SOURCES[dtype]))
        with np.errstate(over="ignore"):
            numbers = numbers.astype(source)
    spread: Literal["all", "last"] = draw(st.sampled_from(["all", "last"]))
    is_none = [draw(st.integers(0, 3)) == 0 for _ in data.responses]
    if spread == "last":
        is_none = [
            one or len(response) == 0 for one, response in zip(is_none, data.responses, strict=True)
        ]
    if any(is_none) or draw(st.booleans()):
        values = zip(is_none, numbers.tolist(), strict=True)
        numbers = [None if one else number for one, number in values]
    elif find_spec("torch") is not None and draw(st.booleans()):
        import torch

        numbers = torch.from_numpy(numbers)
    return fc.Field(
        numbers,
        spread=spread,
        fill=draw(st.sampled_from(_FILLS[dtype])),
        default=draw(st.sampled_from(_FILLS[dtype])) if any(is_none) else None,
        dtype=draw(_spellings(dtype)),
    )


@st.composite
def ragged_fields(draw: st.DrawFn, data: Rollouts, array_type: str = "numpy") -> Any:
    """Draw a `fastcollate.Field` with any number of values per token.

    Parameters
    ----------
    data, array_type
        As for `token_fields`.

    Returns
    -------
    SearchStrategy[fastcollate.Field]
        Of any dtype and either alignment. Rows are nested lists, arrays of values and counts, or
        `Ragged`, or all of them are two `Ragged`.
    """
    dtypes = [name for name in FIELD_DTYPES if array_type == "torch" or name != "bfloat16"]
    dtype = draw(st.sampled_from(["int32", *dtypes]))
    align: Literal["response", "sequence"] = draw(st.sampled_from(["response", "sequence"]))
    source = draw(st.sampled_from(_SOURCES[dtype]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([0, 1, 5]))
    pairs = []
    for prompt, response in zip(data.prompts, data.responses, strict=True):
        tokens = len(response) + len(prompt) * (align == "sequence")
        counts = rng.integers(0, most, tokens, endpoint=True)
        with np.errstate(over="ignore"):
            values = FIELD_DTYPES[dtype](rng, (int(counts.sum()),)).astype(source)
        pairs.append((values, counts))
    spelled = draw(_spellings(dtype))
    options: dict[str, Any] = {"align": align, "dtype": spelled, "ragged": True}
    if dtype == "int32" and draw(st.booleans()):
        options["dtype"] = None
    elif spelled is None:
        options["dtype"] = dtype
    if draw(st.booleans()):
        columns = zip(*pairs, strict=True)
        return fc.Field(tuple(fc.ragged(list(column)) for column in columns), **options)
    return fc.Field([draw(_ragged_row(*pair)) for pair in pairs], **options)


@st.composite
def _ragged_row(draw: st.DrawFn, values: Array, counts: Array) -> Any:
    """Draw the form of a row with any number of values per token."""
    of_tokens = fc.Ragged(values, np.cumsum([0, *counts]))
    kinds = ["pair", "ragged", "lists", "arrays"] + ["torch"] * (find_spec("torch") is not None)
    kind = draw(st.sampled_from(kinds))
    if kind == "ragged":
        return of_tokens
    if kind == "lists":
        return of_tokens.to_list()
    if kind == "arrays":
        return list(of_tokens)
    if kind == "torch":
        import torch

        return torch.from_numpy(values), torch.from_numpy(counts)
    dtype = draw(st.sampled_from(["int64", "int32", "uint8"]))
    return values, counts.astype(dtype)


def _spellings(dtype: str) -> st.SearchStrategy[Any]:
    """Draw a dtype as a name, NumPy's, torch's, or omitted."""
    spellings: list[Any] = [dtype]
    if dtype == "float32":
        spellings.append(None)
    if dtype != "bfloat16":
        spellings.append(np.dtype(dtype))
    if find_spec("torch") is not None:
        import torch

        spellings.append(getattr(torch, dtype))
    return st.sampled_from(spellings)


@st.composite
def _as_rows(draw: st.DrawFn, arrays: Sequence[Array]) -> Any:
    """Draw the container of rows, and the type of each row."""
    holders = ["sequence"] * 3 + ["ragged"]
    if len({len(row) for row in arrays}) == 1:
        holders.append("array")
    holder = draw(st.sampled_from(holders))
    if holder != "sequence":
        return np.stack(arrays) if holder == "array" else fc.ragged(arrays)

    def convert(row: Array) -> Any:
        kinds = ["numpy"] + ["list"] * (row.ndim == 1)
        kinds += ["torch"] * (find_spec("torch") is not None)
        kind = draw(st.sampled_from(kinds))
        if kind == "list":
            return row.tolist()
        if kind == "torch":
            import torch

            return torch.from_numpy(row)
        return LAYOUTS[draw(st.sampled_from(list(LAYOUTS)))](row)

    return [convert(row) for row in arrays]


@st.composite
def captured_fields(draw: st.DrawFn, data: Rollouts, make: Any = None) -> Any:
    """Draw a `fastcollate.RoutedExperts` or `fastcollate.Captured` for rollouts, or the given one.

    Indices may be -1 where the dtype holds it.
    """
    make = make or draw(st.sampled_from([fc.RoutedExperts, fc.Captured]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    experts = draw(st.sampled_from([8, 256, 257, 2**15, 2**15 + 1]))
    layers, topk = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    dtypes = ["int32"] if experts > 2**15 else ["int16", "int32"]
    some: list[dict[str, Any]] = [{}, {"dtype": draw(st.sampled_from(dtypes))}]
    some += [{"num_experts": experts}] * (make is fc.RoutedExperts)
    options = draw(st.sampled_from(some))
    least = draw(st.sampled_from([0, -1]))
    if options.get("num_experts", 2**15) <= 256:
        least = 0
    everything, has_starts = draw(st.booleans()), draw(st.booleans())
    rows, starts = [], []
    for prompt, response in zip(data.prompts, data.responses, strict=True):
        tokens = len(prompt) + len(response)
        some_of = (
            st.integers(0, tokens)
            if has_starts
            else st.sampled_from([0, max(tokens - 1, 0), tokens])
        )
        captured = tokens if everything else draw(some_of)
        starts.append(draw(st.integers(0, tokens - captured)))
        dtype = draw(st.sampled_from(["int32", "int64"]))
        rows.append(rng.integers(least, experts, (captured, layers, topk), dtype))
    if draw(st.integers(0, 2)) == 0:
        first = draw(st.integers(0, layers - 1))
        options = {**options, "layers": range(first, draw(st.integers(first + 1, layers)))}
    if not has_starts:
        return make(rows, **options)
    return make(rows, **options, starts=draw(st.sampled_from([starts, np.array(starts)])))


_OBJECTS: list[Any] = [None, 1, 0.5, "text", b"bytes", {"answer": [1, "a"]}, [1, [2, 3]], (1, None)]


@st.composite
def _per_row(draw: st.DrawFn, rows: int) -> Any:
    number = draw(st.sampled_from([st.integers(-(2**40), 2**40), st.booleans(), st.floats()]))
    numbers = st.lists(number, min_size=rows, max_size=rows)
    kind = draw(st.sampled_from(["list", "numpy", "table", "arrays", "joined", "texts", "objects"]))
    if kind == "texts":
        return fc.PerRow(draw(st.lists(st.text(max_size=3), min_size=rows, max_size=rows)))
    if kind == "objects":
        some = st.lists(st.sampled_from(_OBJECTS), min_size=rows, max_size=rows)
        return fc.PerRow(draw(some), dtype=object)
    if kind in ("list", "numpy"):
        values = draw(numbers)
        dtype = draw(st.sampled_from([None, "float64"]))
        return fc.PerRow(np.array(values) if kind == "numpy" else values, dtype)
    width = draw(st.integers(0, 3))
    dtype = draw(st.sampled_from(["float32", "int64", "uint8"]))
    if kind == "table":
        return fc.PerRow(np.arange(rows * width).reshape(rows, width).astype(dtype))
    counts = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    arrays = [np.arange(count * width).reshape(count, width).astype(dtype) for count in counts]
    return fc.PerRow(arrays, concat=kind == "joined")


@st.composite
def extras(draw: st.DrawFn, data: Rollouts, array_type: str = "numpy") -> dict[str, Any]:
    """Draw optional arguments of `fastcollate.build_batch` for rollouts.

    Parameters
    ----------
    data
        The rollouts; see `rollouts`.
    array_type
        That of the batch.

    Returns
    -------
    SearchStrategy[dict[str, object]]
        Some of ``fields``, ``uids``, ``trajectory_ids``, ``position_ids`` and ``labels``, also for
        `build_batch_loops`.
    """
    rows = len(data.prompts)
    fields = {f"field_{index}": draw(token_fields(data, array_type)) for index in range(draw(_FEW))}
    if draw(st.booleans()):
        fields["field_spread"] = draw(spread_fields(data, array_type))
    fields |= {f"per_row_{index}": draw(_per_row(rows)) for index in range(draw(_FEW))}
    if draw(st.booleans()):
        fields["routed_experts"] = draw(captured_fields(data, fc.RoutedExperts))
    if draw(st.booleans()):
        fields["indexer_topk"] = draw(captured_fields(data, fc.Captured))
    if draw(st.booleans()):
        fields["ragged"] = draw(ragged_fields(data, array_type))
    keys = draw(st.permutations(list(fields)))
    uids = st.none() | st.lists(st.text(max_size=2) | st.integers(), min_size=rows, max_size=rows)
    arguments = {
        "fields": {key: fields[key] for key in keys},
        "uids": draw(uids),
        "trajectory_ids": draw(uids),
        "position_ids": draw(st.sampled_from([None, False, "zero", "one", "repeat_last"])),
        "labels": draw(st.sampled_from([None, "aligned", "shifted"])),
    }
    return {name: value for name, value in arguments.items() if value is not None}


_FEW = st.integers(0, 2)
