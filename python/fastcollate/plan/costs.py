"""Costs of rows, for balancing and caps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastcollate._fastcollate import CostSpec, check_range, counts_in, first_no_length
from fastcollate.common.arguments import check_count, check_number, suggests_names, tally
from fastcollate.common.arrays import (
    NUMBERS,
    copied,
    describe,
    is_only_torch,
    is_tensor,
    pieces_of,
    read_array,
    to_numpy,
)
from fastcollate.common.caching import cached_property
from fastcollate.common.names import ListsNames
from fastcollate.common.text import show
from fastcollate.rows.lengths import Integers, check_lengths

if TYPE_CHECKING:
    from fastcollate.plan.fitting import CostFit

CostFunction: TypeAlias = Callable[[Integers], ArrayLike]
"""Maps lengths of rows in tokens, int64 (rows,), to costs of the same shape."""

MOST = (1 << 63) - 1
"""The largest integer weight."""

Weights: TypeAlias = NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64]
"""Finite numbers of 0 or more, summed in their own dtype."""


@suggests_names
@dataclass(frozen=True, repr=False)
class Costs(ListsNames):
    """A linear cost model of the forward and backward pass of a bin (or a micro-batch).

    A bin costs ``per_token * tokens + per_pair * pairs + per_sequence * sequences + per_bin``, and
    its paths ``per_segment * segments + per_key * keys``, in any unit, such as seconds or FLOPs. A
    *pair* is a token and a token that it attends to, itself included, in all layers: a sequence of
    L tokens has ``L * (L + 1) / 2``. A row of a tree costs as much as its new tokens, each paired
    with all tokens up to it in the row: ``sum(d + 1)`` pairs over tokens with d tokens before them.

    Parameters
    ----------
    per_token, per_pair, per_sequence, per_bin
        Finite numbers of 0 or more, at least one above 0.
    window, window_share
        Size of the sliding window, in which a token attends to the last `window` tokens, itself
        included, and the share of layers that have one, from 0 to 1.
    chunk, chunk_share
        Size of attention chunks, in which a token attends to the tokens up to it in its chunk, and
        the share of layers that have them. All other layers attend to all tokens before.
    per_segment, per_key
        Costs of a segment of a tree and of a key on its path, in kernels that take
        :meth:`fastcollate.Batch.attention_paths`; finite numbers of 0 or more. They decide what
        rows of ``fc.Tree(cost=...)`` share. Bins and ranks are balanced with one segment for each
        row, of which the row is the path; what a fork adds to that, one segment, is left out.

    Raises
    ------
    ValueError
        A cost is negative, NaN or infinite; all costs are 0; a window or chunk is below 1; a share
        is not from 0 to 1, or the shares exceed 1 together.
    TypeError
        An argument is not a number.

    Examples
    --------
    >>> costs = fc.planning.Costs(per_token=2.0, per_pair=0.5)
    >>> costs
    Costs(per_token=2.0, per_pair=0.5)
    >>> costs.of([3, 1])
    array([9. , 2.5])
    """

    TERMS: ClassVar = ("per_token", "per_pair", "per_sequence", "per_bin")
    OF_PATHS: ClassVar = ("per_segment", "per_key")
    ALL: ClassVar = (*TERMS, *OF_PATHS)

    per_token: float = 0.0
    per_pair: float = 0.0
    per_sequence: float = 0.0
    per_bin: float = 0.0
    _: KW_ONLY
    window: int | None = None
    window_share: float = 1.0
    chunk: int | None = None
    chunk_share: float = 1.0
    per_segment: float = 0.0
    per_key: float = 0.0

    def __post_init__(self) -> None:
        for name in self.ALL:
            object.__setattr__(self, name, _parse_cost(name, getattr(self, name)))
        if not any(getattr(self, name) for name in self.ALL):
            raise ValueError(f"{', '.join(self.TERMS)} are all 0; pass one above 0")
        shares = 0.0
        for name in ("window", "chunk"):
            share = _parse_cost(f"{name}_share", getattr(self, f"{name}_share"))
            if (size := getattr(self, name)) is None:
                if share != 1:
                    raise ValueError(
                        f"{name}_share is {share}, but {name} is None; pass {name}, or leave "
                        f"{name}_share out"
                    )
                object.__setattr__(self, f"{name}_share", 1.0)
                continue
            object.__setattr__(self, name, check_count(name, size, "a number of tokens"))
            shares += share
            if shares > 1 + 1e-9:
                raise ValueError(
                    f"{name}_share is {share}, so layers with window and chunk are {shares:g} of "
                    "all; pass shares of at most 1 together"
                )
            object.__setattr__(self, f"{name}_share", share)

    @classmethod
    def from_config(cls, config: Any) -> Costs:
        """Return the floating-point operations of a Hugging Face model.

        These are the matrix products of a forward and backward pass, where backward has two for
        each; norms, activations and embeddings are left out. With h hidden dimensions, and H query
        heads and K key-value heads of d dimensions in each of N layers:

        - ``per_token`` is 6 times the active weights per token (Kaplan et al., 2020, "Scaling
          laws for neural language models", table 1 with ``C = 6 N``): ``2 * h * (H + K) * d`` of
          attention's projections, ``3 * h * f`` of an MLP of f dimensions with a gate (Shazeer,
          2020, "GLU variants improve transformer") or ``2 * h * f`` of one without, and ``h * v``
          of the output head over a vocabulary of v. For experts, the router's ``h * experts``,
          the active experts of a token and the shared experts count.
        - ``per_pair`` is ``12 * N * H * d``: the products of queries with keys and of weights with
          values, ``4 * d`` per head forward, and twice that backward (Dao et al., 2022,
          "FlashAttention"; Megatron-LM's ``num_floating_point_operations``).
        - Layers with a sliding window (``sliding_window``) or chunks (``attention_chunk_size``) are
          those named by ``layer_types``; without types, all have a window.

        Parameters
        ----------
        config
            ``model.config``, or the same as a dict. For multimodal models, the text part is used.

        Returns
        -------
        Costs
            In FLOPs; divide by a GPU's FLOP/s for seconds.

        Raises
        ------
        ValueError
            A number is missing, or attention is of another kind: latent or linear.

        Examples
        --------
        >>> config = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        >>> fc.planning.Costs.from_config(config | {"intermediate_size": 16, "vocab_size": 32})
        Costs(per_token=9216.0, per_pair=192.0)
        """
        from fastcollate.plan.model_costs import parameters_of

        return cls(**parameters_of(config))

    @classmethod
    def fit(cls, timings: Any, *, like: Costs | None = None) -> CostFit:
        """Fit costs to measured times of micro-batches.

        The fit minimizes relative errors by non-negative least squares. Costs of segments and keys
        are fitted if a micro-batch is a batch of a tree; they are counted as in its attention.

        Parameters
        ----------
        timings
            A :class:`StepTimer`, or pairs of a micro-batch and the seconds of its forward and
            backward pass. A micro-batch is a :class:`Batch`, a shard, or the tokens of each
            sequence, integers (n,). The length of a padded row is its width.
        like
            Costs with the windows and chunks of the model, e.g. from :meth:`from_config`; without
            them, tokens attend to all before.

        Returns
        -------
        CostFit
            The costs, in seconds, and residuals.

        Warns
        -----
        UserWarning
            Some terms are proportional in all timings, so that their costs are indistinguishable.

        Raises
        ------
        ValueError
            There are fewer than five timings; all have one shape; or seconds are not above 0.
        TypeError
            An item is not a pair of a micro-batch and a number.

        Examples
        --------
        >>> lengths = [[100], [900], [300, 300], [50, 50, 50], [500, 20], [1000, 200]]
        >>> seconds = [0.01 + 1e-5 * sum(micro) for micro in lengths]
        >>> fit = fc.planning.Costs.fit(list(zip(lengths, seconds)))
        >>> round(fit.costs.per_token, 8), round(fit.costs.per_bin, 5)
        (1e-05, 0.01)
        """
        from fastcollate.plan.fitting import fit

        if like is None:
            like = cls(per_token=1.0)
        elif not isinstance(like, Costs):
            raise TypeError(f"like is {describe(like)}; pass Costs.from_config(...) or other costs")
        return fit(timings, like)

    def predict(self, micro_batches: Any) -> NDArray[np.float64]:
        """Return the costs of micro-batches, in any form that :meth:`fit` takes, float64 (n,)."""
        from fastcollate.plan.fitting import Work, predict

        named = enumerate(micro_batches)
        return predict(self, [Work.of(what, f"micro_batches[{index}]") for index, what in named])

    def of(self, lengths: Any) -> NDArray[np.float64]:
        """Return the costs of sequences of the given lengths, float64 (n,), without `per_bin`."""
        return self.spec.of(check_lengths("lengths", lengths, "sequence"))

    def of_added(self, lengths: Integers, shared: Integers) -> NDArray[np.float64]:
        """Return the costs of rows that share their first tokens with another row, float64 (n,).

        `lengths` and `shared` are int64 (n,); shared tokens cost nothing here.
        """
        added: NDArray[np.float64] = self.of(lengths) - self.of_shared(shared)
        return added

    def of_shared(self, lengths: Integers) -> NDArray[np.float64]:
        """Return the costs of the first tokens of sequences, float64 (n,).

        They include tokens and pairs: rows that share tokens have a path each.
        """
        of_rows = self.per_sequence + self.per_segment + self.per_key * lengths
        shared: NDArray[np.float64] = self.of(lengths) - of_rows
        return shared

    def pairs(self, lengths: Any) -> NDArray[np.float64]:
        """Return the number of pairs of each sequence, float64 (n,), averaged over layers."""
        return self.spec.pairs(check_lengths("lengths", lengths, "sequence"))

    @cached_property
    def spec(self) -> CostSpec:
        """The compiled form."""
        window = None if self.window is None else (self.window, self.window_share)
        chunk = None if self.chunk is None else (self.chunk, self.chunk_share)
        terms = self.per_token, self.per_pair, self.per_sequence, self.per_bin
        return CostSpec(*terms, self.per_segment, self.per_key, window, chunk)

    @property
    def has_paths(self) -> bool:
        """True if segments or keys of paths have costs."""
        return self.per_segment > 0 or self.per_key > 0

    def to_dict(self) -> dict[str, float]:
        """Return the parameters that differ from their defaults as a JSON-compatible dict."""
        return {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> Costs:
        """Return the costs that :meth:`to_dict` wrote.

        Raises
        ------
        TypeError, ValueError
            `parameters` are not such a dict, or are invalid.
        """
        if not isinstance(parameters, Mapping):
            raise TypeError(
                f"parameters is {describe(parameters)}; pass the dict that to_dict returned"
            )
        return cls(**parameters)

    def __reduce__(self) -> tuple[Callable[..., Costs], tuple[Any, ...]]:
        return Costs.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        parts = (f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"Costs({', '.join(parts)})"


_DEFAULTS = {field.name: field.default for field in fields(Costs)}

CostArgument: TypeAlias = Costs | CostFunction
"""Costs other than a name."""


def _parse_cost(name: str, value: Any) -> float:
    number = check_number(name, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} is {number}; pass a finite number of 0 or more")
    return number


FLOPS_PER_TOKEN = 24_576
"""Cost of a token without attention, in units of a pair of tokens in attention."""


def flops_costs(lengths: Integers) -> Integers:
    """Return ``24576 * L + L * L`` for rows of L tokens, the workload of verl: ``"flops"``."""
    costs = np.empty_like(lengths)
    for at in pieces_of(len(lengths)):
        costs[at] = FLOPS_PER_TOKEN * lengths[at] + lengths[at] * lengths[at]
    return costs


NAMED_COSTS: dict[str, CostFunction] = {"tokens": lambda lengths: lengths, "flops": flops_costs}
"""The named cost functions."""


def costs_of(name: str, cost: Any, lengths: Integers, noun: str = "row") -> NDArray[np.float64]:
    """Return the costs of rows of the given lengths, float64 (rows,).

    Parameters
    ----------
    name
        The argument's name, for errors.
    cost
        A name in :data:`NAMED_COSTS`, :class:`Costs`, a function of lengths, or one cost per row.
    lengths
        Tokens of rows.
    noun
        The word for a row in errors.

    Raises
    ------
    ValueError
        The name is unknown; not one number per row is passed or returned; or a cost is negative or
        not finite.
    TypeError
        `cost` is of another type.
    """
    return weights_of(name, cost, lengths, noun).astype(np.float64)


def is_function(cost: Any) -> bool:
    """Return True for a function of lengths; False for a class, of which an object is meant."""
    return callable(cost) and not isinstance(cost, type)


def weights_of(name: str, cost: Any, lengths: Integers, noun: str = "row") -> Weights:
    """Return the costs of :func:`costs_of` in their own dtype.

    Integers become int64; float16 and bfloat16 become float32.
    """
    names = ", ".join(map(repr, NAMED_COSTS))
    advice = f"pass {names}, fc.planning.Costs(...), a function of lengths or one number per {noun}"
    if isinstance(cost, str):
        if cost not in NAMED_COSTS:
            raise ValueError(f"{name} is {show(cost)}; {advice}")
        cost = NAMED_COSTS[cost]
    if isinstance(cost, Costs):
        return cost.spec.of(lengths)
    if is_function(cost):
        found = cost(copied(lengths, np.int64))
        found_by, verb = f"the function {name} returned", "return"
    elif hasattr(cost, "__array__") or isinstance(cost, (list, tuple)):
        found, found_by, verb = cost, f"{name} is", "pass"
    else:
        raise TypeError(f"{name} is {describe(cost)}; {advice}")
    weights = check_weights(found_by, found, noun)
    if len(weights) != len(lengths):
        raise ValueError(
            f"{found_by} {describe(weights)} for {len(lengths)} lengths; {verb} one number for each"
        )
    return weights


def check_weights(found_by: str, values: Any, noun: str) -> Weights:
    """Return numbers in their own dtype, checked to be finite and not negative.

    Parameters
    ----------
    found_by
        The beginning of error messages: the argument, and a verb.
    values
        An array, a tensor or a sequence (n,).
    noun
        The word for an item in errors.

    Raises
    ------
    TypeError
        `values` are not numbers.
    ValueError
        One of them is negative, NaN or infinite, or their sum overflows the dtype.
    """
    if type(values) is list and (counts := counts_in(values, MOST)) is not None:
        return counts
    if getattr(values, "null_count", 0):  # of Arrow; NumPy would hold NaN
        raise ValueError(f"{found_by} {tally(values.null_count, 'null')}; fill or drop nulls first")
    found = _as_array(values)
    if found.ndim != 1 or found.dtype.kind not in NUMBERS:
        is_of_numbers = found.ndim > 0 and found.dtype.kind != "O"
        shown = describe(found if is_of_numbers else values)
        raise TypeError(f"{found_by} {shown}; pass one number per {noun}")
    weights: Weights  # aligned, too, unlike some views of file bytes
    if found.dtype.kind != "f":
        weights = integers = np.require(found, np.int64, ["C", "A"])
        row = first_no_length(integers, MOST)  # unsigned ones beyond int64 are negative there
    else:
        weights = np.require(found, np.float64 if found.itemsize > 4 else np.float32, ["C", "A"])
        wrong = ~(np.isfinite(weights) & (weights >= 0))
        row = int(np.argmax(wrong)) if wrong.any() else None
    if row is not None:
        raise ValueError(
            f"{found_by} {found[row]} for {noun} {row}; pass numbers that are finite, not negative "
            f"and fit {weights.dtype}"
        )
    with np.errstate(over="ignore"):
        if found.dtype.kind == "f" and np.isinf(weights.sum()):
            raise ValueError(
                f"{found_by} numbers whose sum does not fit {weights.dtype}; pass smaller ones"
            )
    return weights


def _read_list(values: list[Any]) -> np.ndarray:
    """Return `read_array` of a list, slice by slice where all items are of one kind."""
    found = np.empty(0)
    for at in pieces_of(len(values)):
        part = read_array(values[at])
        if at.start == 0:
            found = np.empty(len(values), part.dtype)
        if part.dtype != found.dtype or part.shape != found[at].shape:
            return read_array(values)
        found[at] = part
    return found


def _as_array(values: Any) -> np.ndarray:
    """Return numbers as an array, including dtypes that NumPy lacks."""
    if is_tensor(values) and is_only_torch(values.dtype):
        values = values.float()
    check_range(values)
    try:
        found = _read_list(values) if type(values) is list else read_array(to_numpy(values))
    except ValueError:  # rows of different lengths
        return np.array(None)
    return found.astype(np.int64) if found.shape == (0,) and found.dtype.kind == "f" else found
