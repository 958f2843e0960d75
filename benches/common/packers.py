"""Packers of the frameworks: their own functions, after `make peers`.

NeMo-RL is not on PyPI, so its packer is a port.
"""

from __future__ import annotations

import bisect
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from frameworks.installed import real

Lengths = npt.NDArray[np.int64]
Bins = list[list[int]]


class Peer(NamedTuple):
    """Another implementation."""

    name: str
    algorithm: str
    """Ours with the same bins."""
    pack: Callable[[Any, int], Bins]
    prepare: Callable[[Lengths], Any]
    """Converts lengths to the input of `pack`, outside the measured time."""


def peers() -> list[Peer]:
    """Return the frameworks' packers."""
    return [*skyrl(), *nemo_rl(), *trl(), *axolotl()]


def skyrl() -> list[Peer]:
    """Return SkyRL's packers."""
    module = real("skyrl.train.dataset.bin_packing")
    if module is None:
        return []

    def packer(name: str) -> Callable[[Any, int], Bins]:
        return lambda lengths, capacity: module.make_seq_packer(name, capacity).pack(lengths)

    return [
        Peer("SkyRL", "ffd", packer("first_fit_decreasing"), to_list),
        Peer("SkyRL balanced", "balanced", packer("balanced"), to_list),
    ]


def nemo_rl() -> list[Peer]:
    """Return the port of NeMo-RL's own packer."""
    return [Peer("NeMo-RL (port)", "mffd", modified_first_fit_decreasing, to_list)]


def trl() -> list[Peer]:
    """Return TRL's packer. It moves tokens, too: here of one byte each."""
    module = real("trl.data_utils") if importlib.util.find_spec("pyarrow") else None
    if module is None:
        return []
    import pyarrow as pa

    def prepare(lengths: Lengths) -> Any:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = pa.array(np.zeros(offsets[-1], np.int8))
        return pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, tokens)})

    def pack(table: Any, capacity: int) -> Bins:
        counts = module._pack_bfd(table, capacity)["seq_lengths"].combine_chunks()
        return [[0] * count for count in np.diff(counts.offsets)]  # without their indices

    return [Peer("TRL, with tokens", "bfd", pack, prepare)]


def axolotl() -> list[Peer]:
    """Return axolotl's packer, compiled by numba."""
    is_there = importlib.util.find_spec("numba") is not None
    module = real("axolotl.utils.samplers.multipack") if is_there else None
    if module is None:
        return []

    def pack(lengths: Lengths, capacity: int) -> Bins:
        return list(module.pack_group(lengths, 0, capacity, len(lengths), capacity))

    return [Peer("axolotl, numba", "ff", pack, np.asarray)]


def to_list(lengths: Lengths) -> list[int]:
    """Return lengths as a list."""
    return lengths.tolist()


def modified_first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Pack as NeMo-RL's modified first fit decreasing, removing items from lists."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    large = [i for i in order if 2 * lengths[i] > capacity]
    medium = [i for i in order if 2 * lengths[i] <= capacity < 3 * lengths[i]]
    small = [i for i in range(len(lengths)) if 3 * lengths[i] <= capacity < 6 * lengths[i]]
    small.sort(key=lengths.__getitem__)
    tiny = [i for i in order if 6 * lengths[i] <= capacity]
    bins = [[index] for index in large]
    rooms = [capacity - lengths[index] for index in large]

    def move(source: list[int], place: int, number: int) -> None:
        index = source.pop(place)
        bins[number].append(index)
        rooms[number] -= lengths[index]

    for number, room in enumerate(rooms):
        place = next((p for p, i in enumerate(medium) if lengths[i] <= room), None)
        if place is not None:
            move(medium, place, number)
    for number in reversed(range(len(bins))):
        fits = len(small) > 1 and lengths[small[0]] + lengths[small[1]] <= rooms[number]
        if len(bins[number]) == 1 and fits:
            move(small, 0, number)
            places = reversed(range(len(small)))
            move(small, next(p for p in places if lengths[small[p]] <= rooms[number]), number)
    rest = sorted(medium + small + tiny, key=lambda i: (-lengths[i], i))
    for number in range(len(bins)):
        while rest and lengths[rest[-1]] <= rooms[number]:
            move(rest, next(p for p, i in enumerate(rest) if lengths[i] <= rooms[number]), number)
    more: Bins = []
    loads: list[int] = []
    for index in rest:
        contents, load = [], 0
        if loads and loads[0] + lengths[index] <= capacity:
            contents, load = more.pop(0), loads.pop(0)
        load += lengths[index]
        place = bisect.bisect(loads, load)
        more.insert(place, [*contents, index])
        loads.insert(place, load)
    return bins + more
