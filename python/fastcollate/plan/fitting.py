"""Costs fitted to measured times of micro-batches."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arguments import check_count, check_number, suggests_names, tally
from fastcollate.common.arrays import describe
from fastcollate.common.names import ListsNames
from fastcollate.plan.forecast import new_axes
from fastcollate.rows.lengths import Integers, check_lengths

if TYPE_CHECKING:
    from fastcollate.plan.costs import Costs

Floats: TypeAlias = NDArray[np.float64]

LEAST_SECONDS = 1e-30
"""Shortest time that can be fitted: reciprocals of shorter ones are beyond floats."""

ALIKE = 1e-3
"""Minimum share of a term that the other terms leave unexplained."""


class Work(NamedTuple):
    """The contents of a measured part of a step."""

    lengths: Integers
    """Tokens of each sequence; in a tree, the depth of each token, itself included."""
    shared: Integers | None
    """In a tree, the number of tokens before each token."""
    tokens: int
    """Computed positions, padding included."""
    sequences: int
    bins: int
    paths: tuple[int, int] | None = None
    """In a tree, the number of segments in attention, and of keys on their paths."""

    @classmethod
    def of(cls, what: Any, name: str) -> Work:
        """Read a batch, a shard, or the lengths of sequences."""
        if isinstance(what, Work):
            return what
        if hasattr(what, "bin_offsets"):  # a shard
            lengths = what.lengths
            if lengths is None:
                raise ValueError(f"{name} has no lengths; pass a shard of fastcollate.plan_step")
            bins = 1 if what.bin_offsets is None else len(what.bin_offsets) - 1
            tokens = int(lengths.sum()) if what.bin_offsets is None else bins * what.bin_width
            return cls(lengths, None, tokens, len(lengths), bins)
        if hasattr(what, "prompt_lens"):
            return cls._of_batch(what)
        lengths = check_lengths(name, what, "sequence")
        return cls(lengths, None, int(lengths.sum()), len(lengths), 1)

    @classmethod
    def _of_batch(cls, batch: Any) -> Work:
        """Read a batch by its plan: to read outputs would wait for the GPU."""
        plan, shape = batch.plan, tuple(batch.input_ids.shape)
        lengths, before, paths = plan.prompt_lens + plan.response_lens, None, None
        count, tokens = len(lengths), math.prod(shape)
        if plan.is_tree:
            before = plan.depths().astype(np.int64)
            lengths = before + 1
            paths = plan.path_sizes()
        elif not (plan.has_bins or plan.is_jagged):
            lengths = np.full(shape[0], shape[1], np.int64)  # padding is attended to, too
        return cls(lengths, before, tokens, count, 1, paths)

    def terms(self, like: Costs) -> list[float]:
        """Return the factor of each cost; windows and chunks come from `like`."""
        pairs = like.spec.pairs(self.lengths).sum()
        if self.shared is not None:
            pairs -= like.spec.pairs(self.shared).sum()
        paths = self.paths
        if paths is None:
            paths = self.sequences, int(self.lengths.sum())
        return [self.tokens, float(pairs), self.sequences, self.bins, *paths]


@dataclass(frozen=True, eq=False)
class CostFit:
    """Costs fitted to timings; made by :meth:`Costs.fit`.

    Parameters
    ----------
    costs
        In seconds.
    measured, predicted
        Seconds of each timing, float64 (n,).
    """

    costs: Costs
    measured: Floats
    predicted: Floats

    @property
    def median_error(self) -> float:
        """The median of ``|predicted / measured - 1|``."""
        return float(np.median(np.abs(self.predicted / self.measured - 1)))

    def plot(self, axes: Any = None) -> Any:
        """Plot predicted against measured seconds.

        Parameters
        ----------
        axes
            The matplotlib axes to draw on; new ones by default.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        axes = new_axes() if axes is None else axes
        most = float(max(self.measured.max(), self.predicted.max()))
        axes.plot([0, most], [0, most], color="black", linewidth=1)
        axes.scatter(self.measured, self.predicted, s=12)
        axes.set(xlabel="measured, seconds", ylabel="predicted, seconds")
        axes.set_title(f"median error {self.median_error:.1%}")
        return axes

    def __repr__(self) -> str:
        timings = tally(len(self.measured), "timing")
        return f"CostFit: {self.costs!r} from {timings}, median error {self.median_error:.1%}"


@suggests_names
class StepTimer(ListsNames):
    """Measures parts of training steps for :meth:`Costs.fit`.

    Enclose the measured forward and backward pass in ``with timer(batch):``. On a GPU, CUDA events
    measure it, without synchronization until `timings` is read.

    Parameters
    ----------
    warmup
        Number of first measurements to leave out, in which kernels are compiled and memory is
        allocated.

    Raises
    ------
    TypeError, ValueError
        `warmup` is not an integer, or below 0.

    Examples
    --------
    >>> timer = fc.planning.StepTimer(warmup=0)
    >>> with timer([5, 3]):  # a batch, or the tokens of its sequences
    ...     pass
    >>> len(timer)
    1
    """

    def __init__(self, warmup: int = 1) -> None:
        self._warmup = check_count("warmup", warmup, "a number of measurements", least=0)
        self._measured: list[tuple[Work, Any]] = []

    @contextmanager
    def __call__(self, batch: Any) -> Iterator[None]:
        """Measure a part of a step; parts that raise are left out.

        Parameters
        ----------
        batch
            The computed :class:`Batch`, shard, or tokens of each sequence.
        """
        work = Work.of(batch, "batch")
        ids = getattr(batch, "input_ids", None)
        if getattr(ids, "is_cuda", False):
            import torch

            cuda: Any = torch.cuda
            with cuda.device(batch.input_ids.device):
                start, end = (cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                yield
                end.record()
            seconds: Any = start, end
        else:
            begin = time.perf_counter()
            yield
            seconds = time.perf_counter() - begin
        if self._warmup > 0:
            self._warmup -= 1
        else:
            self._measured.append((work, seconds))

    def __len__(self) -> int:
        return len(self._measured)

    @property
    def timings(self) -> list[tuple[Work, float]]:
        """The measured work and its seconds; synchronizes with the GPU."""
        return [(work, _seconds(taken)) for work, taken in self._measured]

    def __repr__(self) -> str:
        return f"StepTimer: {tally(len(self), 'timing')}"


def _seconds(taken: Any) -> float:
    if isinstance(taken, float):
        return taken
    start, end = taken
    end.synchronize()
    return float(start.elapsed_time(end)) / 1_000


def fit(timings: Any, like: Costs) -> CostFit:
    """Fit costs; :meth:`Costs.fit` has the arguments."""
    works, measured = check_timings(timings)
    has_paths = any(work.paths is not None for work in works)
    names = like.ALL if has_paths else like.TERMS
    num_terms = len(names)
    terms = np.array([work.terms(like)[:num_terms] for work in works], np.float64)
    if len(measured) < num_terms + 1:
        raise ValueError(
            f"timings has {tally(len(measured), 'item')}, but {num_terms} costs are fitted; "
            f"pass at least {num_terms + 1}, better 50, of micro-batches with different numbers "
            "of tokens and of sequences"
        )
    if (terms == terms[0]).all():
        tokens, _, sequences = terms[0][:3]
        raise ValueError(
            f"all {len(measured)} timings are of one shape, {tally(int(sequences), 'sequence')} "
            f"with {tally(int(tokens), 'token')} in all; pass timings of micro-batches with "
            "different numbers of tokens and of sequences"
        )
    # Relative errors, so that short micro-batches count as much as long ones.
    columns = terms / measured[:, None]
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    columns /= scale
    _warn_of_terms_alike(names, columns)
    found = _non_negative(columns, np.ones(len(measured))) / scale
    if not found.any():
        raise ValueError(
            "timings do not grow with the tokens of a batch; measure its forward and backward pass"
        )
    costs = replace(like, **dict(zip(names, found.tolist(), strict=True)))
    return CostFit(costs, measured, terms @ found)


def predict(costs: Costs, works: Iterable[Work]) -> Floats:
    """Return the predicted cost of each part of a step."""
    terms = np.array([work.terms(costs) for work in works], np.float64)
    predicted: Floats = terms @ np.array([getattr(costs, name) for name in costs.ALL])
    return predicted


def check_timings(timings: Any) -> tuple[list[Work], Floats]:
    """Return the measured work and its seconds."""
    if isinstance(timings, StepTimer):
        timings = timings.timings
    if not isinstance(timings, (list, tuple)):
        raise TypeError(
            f"timings is {describe(timings)}; pass a StepTimer, or a list of pairs (batch, seconds)"
        )
    works, measured = [], []
    for index, pair in enumerate(timings):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"timings[{index}] is {describe(pair)}; pass a pair (batch, seconds)")
        what, seconds = pair
        works.append(Work.of(what, f"timings[{index}]"))
        seconds = check_number(f"timings[{index}][1]", seconds, "seconds")
        if not LEAST_SECONDS <= seconds < np.inf:
            raise ValueError(
                f"timings[{index}][1] is {seconds}; pass seconds, finite and at least "
                f"{LEAST_SECONDS:g}"
            )
        measured.append(seconds)
    return works, np.array(measured)


def _non_negative(columns: Floats, target: Floats) -> Floats:
    """Solve non-negative least squares by trying every subset of nonzero terms.

    Six terms have 63 subsets. The optimum is an unconstrained solution of one of them.
    """
    count = columns.shape[1]
    best, least = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            found = np.linalg.lstsq(columns[:, chosen], target, rcond=None)[0]
            error = target - columns[:, chosen] @ found
            if (found >= 0).all() and error @ error < least * (1 - 1e-12):
                best, least = np.zeros(count), float(error @ error)
                best[chosen] = found
    return best


def _warn_of_terms_alike(names: Sequence[str], columns: Floats) -> None:
    """Warn of terms that are nearly linear combinations of others in all timings."""
    alike = []
    for term, name in enumerate(names):
        others = np.delete(columns, term, axis=1)
        found = np.linalg.lstsq(others, columns[:, term], rcond=None)[0]
        if np.linalg.norm(columns[:, term] - others @ found) < ALIKE**0.5 * np.linalg.norm(
            columns[:, term]
        ):
            alike.append(name)
    if alike:
        warnings.warn(
            f"timings cannot separate {', '.join(alike)}, since their counts grow together: the "
            "sum is right, but single costs may be wrong; add micro-batches with other numbers of "
            "tokens and sequences, and with longer or shorter sequences",
            stacklevel=4,
        )
