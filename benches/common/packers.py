"""How others pack: the frameworks' own functions where they are installed, else ports of them.

Installed means that the package's files are found, as `pip install --no-deps` leaves them: only the
file that packs is loaded, and what it imports for other purposes is replaced by nothing.
"""

from __future__ import annotations

import bisect
import heapq
import importlib.util
import logging
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int64]
Bins = list[list[int]]


class Peer(NamedTuple):
    """Another implementation."""

    name: str
    algorithm: str
    """Ours with the same bins."""
    pack: Callable[[Any, int], Bins]
    prepare: Callable[[Lengths], Any]
    """Makes what it takes of lengths, outside the time."""


def peers() -> list[Peer]:
    """Return the frameworks' packers, and ports of those that are not installed."""
    found = [*skyrl(), nemo_rl(), trl(), axolotl()]
    return [peer for peer in found if peer is not None]


def skyrl() -> list[Peer]:
    """Return SkyRL's packers."""
    module = module_alone("skyrl", "train/dataset/bin_packing.py")
    if module is None:
        ffd = Peer("SkyRL, NeMo-RL (port)", "ffd", first_fit_decreasing, to_list)
        return [ffd, Peer("SkyRL balanced (port)", "balanced", balanced, to_list)]

    def packer(name: str) -> Callable[[Any, int], Bins]:
        return lambda lengths, capacity: module.make_seq_packer(name, capacity).pack(lengths)

    return [
        Peer("SkyRL", "ffd", packer("first_fit_decreasing"), to_list),
        Peer("SkyRL balanced", "balanced", packer("balanced"), to_list),
    ]


def nemo_rl() -> Peer:
    """Return NeMo-RL's packer of its own. It is on no index, so this is a port."""
    return Peer("NeMo-RL (port)", "mffd", modified_first_fit_decreasing, to_list)


def trl() -> Peer:
    """Return TRL's packer. The real one moves tokens, too: here they are of one byte."""
    unused = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")
    stubs = {"datasets": unused, "transformers": ("PreTrainedTokenizerBase", "ProcessorMixin")}
    is_there = importlib.util.find_spec("pyarrow") is not None
    module = module_alone("trl", "data_utils.py", stubs) if is_there else None
    if module is None:
        return Peer("TRL (port)", "bfd", best_fit_decreasing, to_list)
    import pyarrow as pa

    def prepare(lengths: Lengths) -> Any:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = pa.array(np.zeros(offsets[-1], np.int8))
        return pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, tokens)})

    def pack(table: Any, capacity: int) -> Bins:
        counts = module._pack_bfd(table, capacity)["seq_lengths"].combine_chunks()
        return [[0] * count for count in np.diff(counts.offsets)]  # which they are is not told

    return Peer("TRL, with tokens", "bfd", pack, prepare)


def axolotl() -> Peer:
    """Return axolotl's packer, compiled by numba."""
    stubs = {
        "axolotl.utils.distributed": ("reduce_and_broadcast",),
        "axolotl.utils.logging": ("get_logger",),
    }
    is_there = importlib.util.find_spec("numba") is not None
    module = module_alone("axolotl", "utils/samplers/multipack.py", stubs) if is_there else None
    if module is None:
        return Peer("axolotl (port, no numba)", "ff", first_fit, to_list)

    def pack(lengths: Lengths, capacity: int) -> Bins:
        return list(module.pack_group(lengths, 0, capacity, len(lengths), capacity))

    return Peer("axolotl, numba", "ff", pack, np.asarray)


def module_alone(
    package: str, file: str, stubs: Mapping[str, Sequence[str]] | None = None
) -> ModuleType | None:
    """Load one file of a package, if it is there, without the package.

    Parameters
    ----------
    package, file
        The package, and the file's path in it.
    stubs
        Modules that it imports names from and that are not needed; these names are None there, or
        a class.
    """
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    path = next((path for folder in folders if (path := Path(folder, file)).exists()), None)
    if path is None:
        return None
    modules: dict[str, ModuleType] = {}
    for name, members in (stubs or {}).items():
        modules[name] = ModuleType(name)
        for parent in name.split(".")[:-1]:
            modules.setdefault(parent, ModuleType(parent))
        for member in members:
            value = logging.getLogger if member == "get_logger" else type(member, (), {})
            setattr(modules[name], member, value)
    own = importlib.util.spec_from_file_location(f"peer_{package}", path)
    assert own is not None
    assert own.loader is not None
    module = importlib.util.module_from_spec(own)
    # What is there already, or loaded meanwhile, stays: numba must not be loaded twice.
    added = {name: stub for name, stub in modules.items() if name not in sys.modules}
    sys.modules.update(added)
    try:
        own.loader.exec_module(module)
    finally:
        for name in added:
            del sys.modules[name]
    return module


def to_list(lengths: Lengths) -> list[int]:
    """Return lengths as a list."""
    return lengths.tolist()


def first_fit(lengths: Sequence[int], capacity: int, order: Sequence[int] | None = None) -> Bins:
    """Place each in the first bin with room, looked for from the first bin on."""
    bins: Bins = []
    rooms: list[int] = []
    for index in range(len(lengths)) if order is None else order:
        length = lengths[index]
        for number, room in enumerate(rooms):
            if length <= room:
                bins[number].append(index)
                rooms[number] = room - length
                break
        else:
            bins.append([index])
            rooms.append(capacity - length)
    return bins


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Pack as SkyRL and NeMo-RL, in quadratic time."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i), reverse=True)
    return first_fit(lengths, capacity, order)


def balanced(lengths: Sequence[int], capacity: int) -> Bins:
    """Pack as SkyRL's balanced packer: a heap of bins by tokens."""
    bins: Bins = []
    heap: list[tuple[int, int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[index]
        if heap and heap[0][0] + length <= capacity:
            load, number = heap[0]
            heapq.heapreplace(heap, (load + length, number))
            bins[number].append(index)
        else:
            heapq.heappush(heap, (length, len(bins)))
            bins.append([index])
    return bins


def modified_first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Pack as NeMo-RL's modified first fit decreasing, with lists that items are removed from."""
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


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Pack as TRL: queues of bins by their room, and a tree of the rooms that there are."""
    width = 1 << (capacity - 1).bit_length()
    tree = [0] * (2 * width)

    def set_room(room: int, value: int) -> None:
        node = width + room - 1
        tree[node] = value
        while node > 1:
            node //= 2
            tree[node] = max(tree[2 * node], tree[2 * node + 1])

    set_room(capacity, capacity)
    queues: defaultdict[int, deque[list[int]]] = defaultdict(deque)
    bins: Bins = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[index]
        node = 1
        while node < width:
            node *= 2
            node += tree[node] < length
        room = tree[node]
        if room < capacity:
            contents = queues[room].popleft()
            if not queues[room]:
                set_room(room, 0)
        else:
            contents = []
            bins.append(contents)
        contents.append(index)
        room -= length
        queues[room].append(contents)
        if room > 0:
            set_room(room, room)
    return bins
