"""Hypothesis strategies for rollouts, and for every kind of input that they may come as.

Examples
--------
>>> @given(rollouts().flatmap(as_inputs))
... def test_my_trainer(inputs):
...     batch = fc.build_batch(**inputs, pad_token_id=0)
"""

from __future__ import annotations

from array import array
from collections import UserList, deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

if TYPE_CHECKING:
    import torch

__all__ = [
    "FIELD_KINDS",
    "LAYOUTS",
    "OUTERS",
    "TOKEN_KINDS",
    "Rollouts",
    "as_inputs",
    "as_kind",
    "rollouts",
]

Array: TypeAlias = npt.NDArray[Any]
Number: TypeAlias = int | float


class Rollouts(NamedTuple):
    """Rollouts as plain Python lists, under the names of `fastcollate.build_batch`'s arguments."""

    prompts: list[list[int]]
    responses: list[list[int]]
    rewards: list[list[Number]] | list[Number] | None = None
    loss_masks: list[list[Number]] | None = None
    logprobs: list[list[Number]] | None = None


# Bulk values come from a NumPy generator, as drawing each of them from Hypothesis would take
# most of a test's time. Hypothesis draws, and shrinks, lengths, families of values and the seed.
Family: TypeAlias = Callable[[np.random.Generator, int], list[Any]]

_INT64 = np.iinfo(np.int64)
_MIXED: list[Number] = [0, 1, True, False, 0.5, -0.0, 2**24 + 1, -3]
# Halfway between two float32, over the largest, under the smallest, and denormal there.
_ROUNDED = [1 + 2**-24, 1 + 3 * 2**-24, 1e300, 3.4028236e38, 1e-300, 1e-40]

_TOKENS: dict[str, Family] = {
    "characters": lambda rng, n: rng.integers(0, 128, n).tolist(),
    "vocabulary": lambda rng, n: rng.integers(0, 200_000, n).tolist(),
    "negative": lambda rng, n: rng.integers(-(2**31), 2**31, n).tolist(),
    "int64": lambda rng, n: rng.integers(_INT64.min, _INT64.max, n, endpoint=True).tolist(),
    "limits": lambda rng, n: rng.choice([_INT64.min, _INT64.max, -1, 2**53 + 1], n).tolist(),
}
_MASKS: dict[str, Family] = {
    "zeros and ones": lambda rng, n: rng.integers(0, 2, n).tolist(),
    "booleans": lambda rng, n: (rng.random(n) < 0.5).tolist(),
    "eighths": lambda rng, n: (rng.integers(-128, 128, n) / 8).tolist(),
    "normal": lambda rng, n: rng.standard_normal(n).tolist(),
    "mixed types": lambda rng, n: [_MIXED[i] for i in rng.integers(0, len(_MIXED), n)],
}
_NUMBERS: dict[str, Family] = {
    **_MASKS,
    "not finite": lambda rng, n: rng.choice([np.inf, -np.inf, np.nan, -0.0, 1.5], n).tolist(),
    "rounded": lambda rng, n: rng.choice(_ROUNDED, n).tolist(),
}


@st.composite
def rollouts(
    draw: st.DrawFn,
    *,
    max_rows: int = 6,
    max_len: int = 5,
    max_long_len: int = 600,
    nan_in_masks: bool = False,
) -> Rollouts:
    """Draw a batch of rollouts.

    Most prompts and responses are tiny or empty, because that is where layouts go wrong; at times
    one row is long, and at times all are of the same length.

    Parameters
    ----------
    max_rows
        The most rows of a batch; there is at least one.
    max_len
        The most tokens in a prompt or response.
    max_long_len
        The same for the one long row that some batches have.
    nan_in_masks
        Whether a loss mask may hold NaN and infinity, as rewards and log-probabilities may.

    Returns
    -------
    SearchStrategy[Rollouts]
        Token ids are any int64. Fields hold ints, floats and bools, and may be absent; rewards
        are per token, or at times one number per row where no response is empty.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length = st.integers(0, max_len)
    rows = draw(st.integers(1, max_rows))
    lens = draw(st.lists(st.tuples(length, length), min_size=rows, max_size=rows))
    spread = draw(st.sampled_from(["as drawn", "one long", "all the same"]))
    if spread == "one long":
        long = st.integers(0, max_long_len)
        lens[draw(st.integers(0, rows - 1))] = draw(st.tuples(long, long))
    elif spread == "all the same":
        lens = lens[:1] * rows

    def values(families: dict[str, Family], counts: list[int]) -> list[list[Any]]:
        family = families[draw(st.sampled_from(list(families)))]
        return [family(rng, count) for count in counts]

    def field(families: dict[str, Family]) -> list[list[Number]] | None:
        return values(families, response_lens) if draw(st.booleans()) else None

    prompt_lens, response_lens = [p for p, _ in lens], [r for _, r in lens]
    rewards: list[list[Number]] | list[Number] | None = field(_NUMBERS)
    if rewards is not None and all(response_lens) and draw(st.booleans()):
        (rewards,) = values(_NUMBERS, [rows])
    return Rollouts(
        prompts=values(_TOKENS, prompt_lens),
        responses=values(_TOKENS, response_lens),
        rewards=rewards,
        loss_masks=field(_NUMBERS if nan_in_masks else _MASKS),
        logprobs=field(_NUMBERS),
    )


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "fresh": lambda values: values,
    "strided": lambda values: np.repeat(values, 3, axis=-1)[..., 1::3],
    "reversed": lambda values: values[..., ::-1].copy()[..., ::-1],
    "column": lambda values: np.stack([values, values], axis=-1)[..., 1],
    "Fortran": lambda values: np.asfortranarray(np.stack([values, values]))[1],
    # Bytes are immutable, so these are read-only too; behind one byte, items are misaligned.
    "read-only": lambda values: _over_bytes(values, offset=0),
    "unaligned": lambda values: _over_bytes(values, offset=1),
}
"""Ways in which the items of a NumPy array may lie in memory."""


def _over_bytes(values: Array, offset: int) -> Array:
    data = bytes(offset) + values.tobytes()
    return np.ndarray(values.shape, values.dtype, data, offset)


def _kinds(typecodes: str, numpy_dtypes: list[str], torch_dtypes: list[str]) -> list[str]:
    kinds = ["list", "tuple", *(f"array.{code}" for code in typecodes)]
    kinds += [f"numpy.{dtype}" for dtype in numpy_dtypes]
    if find_spec("torch") is not None:
        kinds += [f"torch.{dtype}" for dtype in torch_dtypes]
    return kinds


_SIGNED = ["int8", "int16", "int32", "int64"]
_UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
_FLOATS = ["float16", "float32", "float64"]

TOKEN_KINDS = _kinds(
    "bBhHiIlLqQ", [*_SIGNED, *_UNSIGNED, ">i2", ">i4", ">i8", ">u4"], ["uint8", *_SIGNED]
)
"""What a row of token ids may be; torch's kinds where it is installed."""

FIELD_KINDS = [
    *TOKEN_KINDS,
    *_kinds(
        "fd",
        ["bool", *_FLOATS, "longdouble", ">f2", ">f4", ">f8"],
        ["bool", "bfloat16", *_FLOATS],
    )[2:],
]
"""What a row of a field may be, or a row of token ids that is empty."""


def as_kind(values: Sequence[Any], kind: str, *, ids: bool, layout: str = "fresh") -> Any:
    """Give a list of numbers as another kind of input.

    Parameters
    ----------
    values
        A row, or for NumPy and torch also a list of rows of the same length.
    kind
        One of `FIELD_KINDS`, which include `TOKEN_KINDS`.
    ids
        Whether these are token ids, which end as int64, or a field's, which end as float32.
    layout
        One of `LAYOUTS`: how a NumPy array lies in memory. Under any but "fresh", torch tensors
        are strided, and require gradients if they are of floats.

    Returns
    -------
    object
        The input, or `values` themselves where that kind cannot hold what they end as.
    """
    library, _, dtype = kind.partition(".")
    if library in ("list", "tuple"):
        return tuple(values) if library == "tuple" else values

    source = np.array(values, np.int64 if ids else np.float64)
    if library == "array" and source.ndim > 1:
        return values
    with np.errstate(all="ignore"):
        if library == "torch":
            tensor = _as_tensor(source, dtype, layout)
            ends_as = tensor.detach().to(_torch_dtype("int64" if ids else "float32")).numpy()
        else:
            cast = source.astype(dtype)
            # A negative id would survive the way to unsigned and back, but not as an input.
            if cast.dtype.kind == "u" and (source < 0).any():
                return values
            ends_as = cast.astype(np.int64 if ids else np.float32)
        wanted = source.astype(ends_as.dtype)
    same = (ends_as.view(f"i{ends_as.itemsize}") == wanted.view(f"i{wanted.itemsize}")) | (
        np.isnan(ends_as) & np.isnan(wanted)
    )
    if not same.all():
        return values
    if library == "torch":
        return tensor
    return array(dtype, cast.tolist()) if library == "array" else LAYOUTS[layout](cast)


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _as_tensor(source: Array, dtype: str, layout: str) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(source).to(_torch_dtype(dtype))
    if layout == "fresh":
        return tensor
    tensor = torch.stack([tensor, tensor], dim=-1)
    return tensor.requires_grad_(tensor.is_floating_point())[..., 1]


def _object_array(rows: Sequence[Any]) -> Array:
    outer = np.empty(len(rows), object)
    # Assigned one by one: from rows of one length NumPy would make a table of numbers.
    for index, row in enumerate(rows):
        outer[index] = row
    return outer


OUTERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "UserList": UserList,
    "object array": _object_array,
}
"""What the rows may be held in; besides, NumPy and torch hold rows of one length as 2-D arrays."""


@st.composite
def as_inputs(draw: st.DrawFn, data: Rollouts) -> dict[str, Any]:
    """Draw kinds of input for rollouts: one for each row, and one for what holds the rows.

    Parameters
    ----------
    data
        The rollouts; see `rollouts`.

    Returns
    -------
    SearchStrategy[dict[str, object]]
        Keyword arguments for `fastcollate.build_batch`, without ``pad_token_id``. They must give
        the same batch as the lists of `data` do.
    """

    def convert(values: Sequence[Any], *, ids: bool) -> Any:
        kind = draw(st.sampled_from(TOKEN_KINDS if ids and len(values) else FIELD_KINDS))
        return as_kind(values, kind, ids=ids, layout=draw(st.sampled_from(list(LAYOUTS))))

    inputs: dict[str, Any] = {}
    for name, rows in data._asdict().items():
        if rows is None:
            continue
        ids = name in ("prompts", "responses")
        one_number_a_row = not isinstance(rows[0], list)
        one_length = not one_number_a_row and len({len(row) for row in rows}) == 1
        if one_number_a_row or (one_length and draw(st.booleans())):
            inputs[name] = convert(rows, ids=ids)
        else:
            outer = OUTERS[draw(st.sampled_from(list(OUTERS)))]
            inputs[name] = outer([convert(row, ids=ids) for row in rows])
    return inputs
