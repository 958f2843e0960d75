"""Bins for rollouts, and what is known of them."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

import fastcollate as fc

SHIFTS = ["none", "next_token"]
PADDING_AS = ["own_segment", "last_segment", "no_segment", "continued_segment"]
ALGORITHMS = ["ffd", "stable_ffd", "ff", "bfd", "mffd", "next_fit", "concat", "balanced"]


def pack(lengths, capacity=None, *, keep_together=None, costs=None, **options):
    """Pack by options of the packed layout, one by one."""
    layout = fc.Packed(capacity, **options)
    return fc.planning.pack(lengths, layout, keep_together=keep_together, costs=costs)


def tables_of(plan):
    """Return the arguments that make a plan, as lists and numbers."""
    values = dict(zip(plan._names(), plan._values(), strict=True))
    return {name: getattr(value, "tolist", lambda v=value: v)() for name, value in values.items()}


def lens_of(data):
    """Tokens of each sequence."""
    return [len(p) + len(r) for p, r in zip(data.prompts, data.responses, strict=True)]


def plan_of(bins, multiple=1, capacity=None):
    """Make a plan of bins of (sequence, start, length)."""
    parts = [part for parts in bins for part in parts]
    indices, starts, lengths = np.array(parts, np.int64).reshape(-1, 3).T
    loads = [sum(-(-length // multiple) * multiple for *_, length in parts) for parts in bins]
    return fc.planning.BinPlan(
        offsets=np.cumsum([0, *map(len, bins)]),
        indices=indices,
        starts=starts,
        lengths=lengths,
        num_sequences=len(set(indices.tolist())),
        capacity=max([1, *loads]) if capacity is None else capacity,
        multiple_of=multiple,
    )


@st.composite
def bins(draw, lens, *, splits=True):
    """Draw bins of sequences: each in one part or in several, at any positions."""
    parts = []
    for sequence, count in enumerate(lens):
        cuts = {0, count}
        if splits and count > 1 and draw(st.integers(0, 3)) == 0:
            cuts |= set(draw(st.lists(st.integers(1, count - 1), max_size=3)))
        ends = sorted(cuts)
        pairs = list(pairwise(ends)) or [(0, 0)]
        parts += [(sequence, start, end - start) for start, end in pairs]
    parts = draw(st.permutations(parts))
    number = draw(st.integers(1, len(parts)))
    cuts = sorted(draw(st.permutations(range(1, len(parts))))[: number - 1])
    ends = [0, *cuts, len(parts)]
    return [parts[start:end] for start, end in pairwise(ends)]


@st.composite
def packed_options(draw, lens, *, splits=True, shifts=SHIFTS):
    """Draw packing options.

    Returns
    -------
    options, reference
        Arguments of build_batch, and those of the loops for the same.
    """
    multiple = draw(st.sampled_from([1, 1, 2, 3, 8]))
    how = {"shift": draw(st.sampled_from(shifts)), "padding_as": draw(st.sampled_from(PADDING_AS))}
    reference = {"layout": "packed", "bins": None, "multiple_of": multiple, **how}
    if draw(st.integers(0, 5)) == 0:
        how["plan"], how["multiple_of"] = "single_row", multiple
        loads = [sum(-(-count // multiple) * multiple for count in lens)]
    else:
        parts = reference["bins"] = draw(bins(lens, splits=splits))
        loads = [sum(-(-part[2] // multiple) * multiple for part in bin_) for bin_ in parts]
        how["plan"] = plan_of(parts, multiple)
        is_whole = len(lens) == sum(map(len, parts))
        if is_whole and draw(st.booleans()):  # bins of somebody else's
            how["plan"] = [[sequence for sequence, *_ in bin_] for bin_ in parts]
            how["multiple_of"] = multiple
        elif draw(st.booleans()):
            how["multiple_of"] = multiple
    if draw(st.booleans()):
        how["pad_to"] = reference["pad_to"] = max(loads) + multiple * draw(st.integers(0, 5))
    elif draw(st.booleans()):
        rounded = draw(st.integers(1, 9))
        how["pad_to_multiple_of"] = reference["pad_to_multiple_of"] = rounded
    return {"layout": fc.Packed(**how)}, reference


def lost_to_splits(data, parts):
    """Count the response tokens that no token of their own part is in front of."""
    starts = [(sequence, start) for bin_ in parts or () for sequence, start, _ in bin_ if start]
    return sum(start >= len(data.prompts[sequence]) for sequence, start in starts)
