"""A stand-in for torch's allocator of pinned memory."""

import weakref
from contextlib import contextmanager

import pytest

from fastcollate.memory import pinning

torch = pytest.importorskip("torch")

INPUTS = {
    "prompts": [[1, 2], [3]],
    "responses": [[4], [5, 6, 7]],
    "rewards": [0.5, 1.0],
    "pad_token_id": 0,
}


class Allocator:
    """Stands for torch's: counts its blocks, and fills them with values that must not be read."""

    def __init__(self):
        self.sizes = []
        self.slabs = []
        self.fails = False

    def __call__(self, size):
        if self.fails:
            raise RuntimeError("CUDA error: out of memory\nmore about it")
        slab = torch.full((size,), 0xAB, dtype=torch.uint8)
        self.sizes.append(size)
        self.slabs.append(weakref.ref(slab.untyped_storage()))
        return slab


@contextmanager
def fake_allocator():
    allocator = Allocator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pinning, "allocate", allocator)
        patch.setattr(pinning, "obstacle", lambda: None)
        patch.setattr(pinning, "_has_warned", False)
        yield allocator
