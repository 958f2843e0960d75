"""Objects that claim to be arrays: by DLPack, `__array__` or a class's attributes. No crash.

What NumPy reads by a false pointer is not ours to check, so pointers are true here.
"""

from importlib.util import find_spec

import numpy as np
import pytest

import fastcollate as fc
from fastcollate import planning

OPTIONS = {"pad_token_id": 0, "array_type": "numpy"}
VALUES = np.array([1, 2, 3])


class Claims:
    """Three numbers with other attributes than they have."""

    def __init__(self, **claims):
        vars(self).update({"shape": (3,), "ndim": 1, "dtype": VALUES.dtype, "strides": (8,)})
        vars(self).update(claims)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return VALUES[index]


class Capsule(Claims):
    """Has DLPack's methods."""

    def __dlpack__(self, **_):
        return VALUES.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


class NoCapsule(Capsule):
    def __dlpack__(self, **_):
        return object()


class Elsewhere(Capsule):
    def __dlpack_device__(self):
        return (2, 1 << 40)


class Raises(Capsule):
    def __dlpack__(self, **_):
        raise BufferError("no")

    __array__ = __dlpack__


class Converts(Claims):
    """Gives NumPy an array that is not what the attributes say."""

    def __array__(self, dtype=None, copy=None):
        return self.gives


class Subclass(np.ndarray):
    """An array whose Python attributes lie; its own fields do not."""

    shape = property(lambda self: (1 << 50,))
    strides = property(lambda self: (-8,))
    ndim = property(lambda self: 7)
    size = property(lambda self: -1)
    dtype = property(lambda self: np.dtype("float64"))

    def __len__(self):
        return 1 << 40


class Grows(np.ndarray):
    def __len__(self):
        return int(np.ndarray.__len__(self)) + 5


LIES = {
    "claims": Claims(),
    "huge shape": Claims(shape=(1 << 60,)),
    "negative shape": Claims(shape=(-1,)),
    "no shape": Claims(shape=None),
    "dtype by name": Claims(dtype="float32"),
    "dtype of others": Claims(dtype=object()),
    "strides": Claims(strides=(0,)),
    "ndim": Claims(ndim=-1),
    "capsule": Capsule(),
    "capsule, huge": Capsule(shape=(1 << 60,), dtype="int8"),
    "no capsule": NoCapsule(),
    "elsewhere": Elsewhere(),
    "raises": Raises(),
    "gives floats": Converts(gives=np.array([0.5, 1.5, 2.5])),
    "gives fewer": Converts(gives=np.array([1])),
    "gives a table": Converts(gives=np.ones((3, 2))),
    "gives nothing": Converts(gives=None),
    "gives objects": Converts(gives=np.array([None, [], "x"], object)),
    "gives views": Converts(gives=np.lib.stride_tricks.as_strided(VALUES, (3,), (0,))),
    "gives others' bytes": Converts(gives=VALUES.astype(">i8")),
    "subclass": VALUES.view(Subclass),
    "subclass, longer": VALUES.view(Grows),
}

if find_spec("torch") is not None:
    import torch

    class Tensor(torch.Tensor):
        """A tensor whose attributes lie."""

        shape = property(lambda self: (1 << 50,))
        dtype = property(lambda self: torch.float64)

        def __len__(self):
            return 1 << 40

        def stride(self, *_):
            return (-1,)

        def data_ptr(self):
            return 8

        def size(self, *_):
            return 1 << 50

        def numel(self):
            return 1 << 50

    LIES["tensor"] = torch.tensor([1, 2, 3]).as_subclass(Tensor)
    LIES["tensor of no memory"] = torch.empty(3, dtype=torch.int64, device="meta")


def build(**options):
    columns = {"prompts": [[1], [2], [3]], "responses": [[4, 5, 6], [7], [8]]}
    return fc.build_batch(**{**columns, **options}, **OPTIONS)


def add(lie):
    builder = fc.BatchBuilder(**OPTIONS)
    builder.add(lie, lie)
    return builder.finish()


BATCH = build()
USES = {
    "prompts": lambda lie: build(prompts=lie),
    "a prompt": lambda lie: build(prompts=[lie, [2], lie]),
    "responses": lambda lie: build(responses=[lie, lie, lie]),
    "rewards": lambda lie: build(rewards=lie),
    "a reward": lambda lie: build(rewards=[lie, [1.0], [2.0]]),
    "loss_mask": lambda lie: build(loss_mask=[lie, [1], [0]]),
    "uids": lambda lie: build(uids=lie),
    "field": lambda lie: build(fields={"x": fc.Field([lie, [1], [2]])}),
    "per row": lambda lie: build(fields={"x": fc.PerRow(lie)}),
    "arrays per row": lambda lie: build(fields={"x": fc.PerRow([lie] * 3, concat=True)}),
    "prompt_lens": lambda lie: build(
        prompts=None, responses=None, sequences=[[1, 2, 3, 4]] * 3, prompt_lens=lie
    ),
    "builder": add,
    "ragged": fc.ragged,
    "ragged rows": lambda lie: fc.ragged([lie, lie]),
    "pad": lambda lie: fc.pad([lie], array_type="numpy"),
    "unpad": lambda lie: fc.unpad(np.ones((3, 4)), lie, side="right"),
    "pack": lambda lie: planning.pack(lie, fc.Packed(8)),
    "costs": lambda lie: planning.pack([1, 2, 3], fc.Packed(8, max_cost=9), costs=lie),
    "partition": lambda lie: planning.partition(lie, 2),
    "plan_step": fc.plan_step,
    "uids of a step": lambda lie: fc.plan_step([3, 4, 5], uids=lie),
    "merge_turns": lambda lie: fc.merge_turns([lie] * 2, [lie] * 2, trajectory_ids=[1, 1]),
    "gather": lambda lie: BATCH.gather(lie, align="response"),
}


def outcome(call, lie):
    """Return the exception of a call, if any."""
    try:
        call(lie)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("lie", LIES)
def test_a_result_or_a_named_error(lie):
    # The object's own exceptions are passed on.
    known = (TypeError, ValueError, BufferError) if lie == "raises" else (TypeError, ValueError)
    for use, call in USES.items():
        error = outcome(call, LIES[lie])
        assert error is None or (isinstance(error, known) and str(error)), use
    # And what was built before is still right.
    assert BATCH.input_ids[0].tolist() == [1, 4, 5, 6]


def test_values_are_read_whatever_else_an_array_claims():
    found = build(prompts=[LIES["subclass"], [2], [3]]).input_ids
    assert found.tolist() == build(prompts=[VALUES, [2], [3]]).input_ids.tolist()
