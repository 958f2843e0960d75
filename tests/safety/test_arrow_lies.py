"""Invalid structs of Arrow's C interface: a ValueError in every case."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, pointer, py_object

import numpy as np
import pytest

import fastcollate as fc

RELEASE = ctypes.CFUNCTYPE(None, c_void_p)


class Schema(Structure):
    pass


class Array(Structure):
    pass


class Stream(Structure):
    pass


Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_void_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(Schema))),
    ("dictionary", POINTER(Schema)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]
Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(Array))),
    ("dictionary", POINTER(Array)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]
GET_SCHEMA = ctypes.CFUNCTYPE(c_int, POINTER(Stream), POINTER(Schema))
GET_NEXT = ctypes.CFUNCTYPE(c_int, POINTER(Stream), POINTER(Array))
LAST_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(Stream))
Stream._fields_ = [
    ("get_schema", c_void_p),
    ("get_next", c_void_p),
    ("get_last_error", c_void_p),
    ("release", c_void_p),
    ("private_data", c_void_p),
]

# Memory is kept by Python, so there is nothing to release.
_NOTHING = RELEASE(lambda _: None)
NOTHING = ctypes.cast(_NOTHING, c_void_p)

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = py_object
new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]

pointer_of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of_capsule.restype = c_void_p
pointer_of_capsule.argtypes = [py_object, c_char_p]

KEPT = []
"""Memory that capsules point to."""


def keep(value):
    KEPT.append(value)
    return value


@pytest.fixture(autouse=True)
def forget():
    yield
    KEPT.clear()


def capsule(struct, name):
    keep(struct)
    return new_capsule(ctypes.addressof(struct), name, None)


def pointers(kind, structs):
    return keep((POINTER(kind) * len(structs))(*map(pointer, structs)))


def schema(format, *children, **fields):
    made = keep(Schema(format=format, name=b"", release=NOTHING.value, flags=2))
    made.n_children, made.children = len(children), pointers(Schema, children)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def array(length, buffers, *children, **fields):
    """Make an array; its buffers are NumPy arrays, or None."""
    addresses = [None if buffer is None else keep(buffer).ctypes.data for buffer in buffers]
    made = keep(Array(length=length, release=NOTHING.value))
    made.n_buffers, made.buffers = len(buffers), keep((c_void_p * len(buffers))(*addresses))
    made.n_children, made.children = len(children), pointers(Array, children)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Arrow:
    """An object that hands over these structs."""

    def __init__(self, schema, array):
        self.capsules = capsule(schema, b"arrow_schema"), capsule(array, b"arrow_array")

    def __arrow_c_array__(self, requested_schema=None):
        return self.capsules

    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise IndexError


class ArrowStream:
    """An object that hands over a stream of these arrays."""

    def __init__(self, schema, arrays, **fields):
        arrays = iter(arrays)

        def get_schema(_, out):
            out[0] = schema
            return 0

        def get_next(_, out):
            out[0] = next(arrays, Array())
            return 0

        calls = {"get_schema": GET_SCHEMA(get_schema), "get_next": GET_NEXT(get_next)}
        made = Stream(release=NOTHING.value)
        for name, value in {**calls, **fields}.items():
            setattr(made, name, ctypes.cast(keep(value), c_void_p) if value else None)
        self.capsule = capsule(made, b"arrow_array_stream")

    def __arrow_c_stream__(self, requested_schema=None):
        return self.capsule


INTS = np.arange(6)
OFFSETS = {np.int32: np.array([0, 1, 3, 6], np.int32), np.int64: np.array([0, 1, 3, 6])}
VIEWS = {np.int32: np.array([0, 1, 3], np.int32), np.int64: np.array([0, 1, 3])}
SIZES = {np.int32: np.array([1, 2, 3], np.int32), np.int64: np.array([1, 2, 3])}


def items(**fields):
    return array(6, [None, INTS], **fields)


def pairs(**fields):
    return array(3, [None], items(), **fields)


KINDS = {
    "list": lambda: (
        schema(b"+l", schema(b"l")),
        array(3, [None, OFFSETS[np.int32]], items()),
    ),
    "large": lambda: (
        schema(b"+L", schema(b"l")),
        array(3, [None, OFFSETS[np.int64]], items()),
    ),
    "view": lambda: (
        schema(b"+vl", schema(b"l")),
        array(3, [None, VIEWS[np.int32], SIZES[np.int32]], items()),
    ),
    "large view": lambda: (
        schema(b"+vL", schema(b"l")),
        array(3, [None, VIEWS[np.int64], SIZES[np.int64]], items()),
    ),
    "fixed": lambda: (schema(b"+w:2", schema(b"l")), pairs()),
    "table": lambda: (
        schema(b"+s", schema(b"+w:2", schema(b"l"))),
        array(3, [None], pairs()),
    ),
    "trailing": lambda: (
        schema(b"+l", schema(b"+w:2", schema(b"l"))),
        array(2, [None, np.array([0, 1, 3], np.int32)], pairs()),
    ),
}
ROWS = {
    **{kind: [[0, 1], [2, 3], [4, 5]] for kind in ("fixed", "table")},
    "trailing": [[[0, 1]], [[2, 3], [4, 5]]],
}


@pytest.mark.parametrize("kind", KINDS)
def test_structs_that_are_right(kind):
    expected = ROWS.get(kind, [[0], [1, 2], [3, 4, 5]])
    assert fc.ragged(Arrow(*KINDS[kind]())).to_list() == expected
    described, of_values = KINDS[kind]()
    assert fc.ragged(ArrowStream(described, [of_values])).to_list() == expected


def test_nulls_that_are_not_counted():
    for bits, null in ((0b110, 0), (0b011, 2)):
        valid = np.array([bits], np.uint8)
        described, _ = KINDS["list"]()
        of_values = array(3, [valid, OFFSETS[np.int32]], items(), null_count=-1)
        with pytest.raises(ValueError, match=rf"^x\[{null}\] is null"):
            fc.ragged(Arrow(described, of_values))


def refuses(make, *patterns):
    """Check that structs are a ValueError that names the argument."""
    with pytest.raises(ValueError, match=r"^x could not be read: ") as caught:
        fc.ragged(make())
    for pattern in patterns:
        assert pattern in str(caught.value), caught.value


@pytest.mark.parametrize("form", ["array", "stream"])
def test_every_entry_point_refuses_and_names_its_argument(form):
    def make():
        structs = spoilt(1, "list", 1, length=-1)
        return Arrow(*structs) if form == "array" else stream_of(structs)

    good = {"prompts": [[1]] * 3, "responses": [[1]] * 3}
    options = {"pad_token_id": 0, "array_type": "numpy"}
    for name in ("prompts", "responses", "rewards", "logprobs"):
        with pytest.raises(ValueError, match=f"^{name} could not be read: "):
            fc.build_batch(**{**good, name: make()}, **options)
    with pytest.raises(ValueError, match=r"^x could not be read: "):
        fc.build_batch(**good, **options, fields={"x": fc.Field(make())})
    with pytest.raises(ValueError, match=r"^prompts could not be read: "):
        fc.merge_turns(make(), [[1]] * 3, trajectory_ids=[0, 0, 0])
    with pytest.raises(ValueError, match=r"^responses could not be read: "):
        fc.Collator(pad_token_id=0)({"prompt": [[1]] * 3, "response": make()})


DEPTHS = {kind: 3 if kind in ("table", "trailing") else 2 for kind in KINDS}
"""Depth of nested structs, by kind."""

STRUCTS = [
    pytest.param(kind, depth, id=f"{kind}-{depth}")
    for kind in KINDS
    for depth in range(DEPTHS[kind])
]


def struct_at(struct, depth):
    for _ in range(depth):
        struct = struct.children[0].contents
    return struct


def spoilt(which, kind, depth, **fields):
    """Return the structs of a kind, of which the schema or the array at a depth is spoilt."""
    structs = KINDS[kind]()
    found = struct_at(structs[which], depth)
    for name, value in fields.items():
        setattr(found, name, value)
    return structs


ARRAY_LIES = {
    "length -1": {"length": -1},
    "lowest length": {"length": -(2**63)},
    "highest length": {"length": 2**63 - 1},
    "length 2**61": {"length": 2**61},
    "offset -1": {"offset": -1},
    "highest offset": {"offset": 2**63 - 1},
    "more children": {"n_children": 5},
    "children -1": {"n_children": -1},
    "buffers -1": {"n_buffers": -1},
    "more buffers": {"n_buffers": 9},
    "null pointer to buffers": {"buffers": None},
    "nulls nowhere": {"null_count": 1},
    "released": {"release": None},
    "dictionary": {"dictionary": pointer(Array(release=NOTHING.value))},
}


@pytest.mark.parametrize("lie", ARRAY_LIES)
@pytest.mark.parametrize(("kind", "depth"), STRUCTS)
def test_arrays_that_lie(kind, depth, lie):
    refuses(lambda: Arrow(*spoilt(1, kind, depth, **ARRAY_LIES[lie])))
    if (lie, depth) != ("released", 0):  # so a stream ends
        refuses(lambda: stream_of(spoilt(1, kind, depth, **ARRAY_LIES[lie])))


def stream_of(structs):
    described, of_values = structs
    return ArrowStream(described, [of_values])


@pytest.mark.parametrize(("kind", "depth"), STRUCTS)
def test_arrays_that_lack_something(kind, depth):
    """A buffer, but that of nulls; or children, which are missing, null or too short."""
    made = struct_at(KINDS[kind]()[1], depth)
    lies = [({"n_buffers": made.n_buffers - 1}, "buffers")] if made.n_buffers > 1 else []
    if depth < DEPTHS[kind] - 1:
        lies += [({"n_children": 0}, "children"), ({"children": None}, "children")]
        lies += [({"children": keep((POINTER(Array) * 1)())}, "missing")]
    else:
        lies += [({"length": length}, "") for length in (0, 1, 5)]
    if depth == DEPTHS[kind] - 2 and kind in ("fixed", "table", "trailing"):
        lies += [({"offset": offset}, "") for offset in (1, 2**40, 2**62)]
    for fields, pattern in lies:
        refuses(lambda fields=fields: Arrow(*spoilt(1, kind, depth, **fields)), pattern)
        refuses(lambda fields=fields: stream_of(spoilt(1, kind, depth, **fields)), pattern)


@pytest.mark.parametrize(("kind", "depth"), STRUCTS)
def test_data_that_is_nowhere(kind, depth):
    of_values = struct_at(KINDS[kind]()[1], depth)
    for index in range(1, of_values.n_buffers):

        def make(index=index):
            structs = KINDS[kind]()
            struct_at(structs[1], depth).buffers[index] = None
            return Arrow(*structs)

        refuses(make, f"no buffer {index}")


SCHEMA_LIES = {
    "no format": {"format": None},
    "no text": {"format": b"\xff"},
    "unknown": {"format": b"x"},
    "nothing": {"format": b""},
    "lists of nothing": {"format": b"+l", "n_children": 0},
    "children nowhere": {"format": b"+L", "n_children": 1, "children": None},
    "more children": {"format": b"+l", "n_children": 7},
    "fewer than no children": {"format": b"+vl", "n_children": -1},
    "columns nowhere": {"format": b"+s", "n_children": 2**62},
    "lists of -1": {"format": b"+w:-1"},
    "lists of 2**31": {"format": b"+w:2147483648"},
    "lists of text": {"format": b"+w:x"},
    "decimal": {"format": b"d:x"},
    "released": {"release": None},
}


@pytest.mark.parametrize("lie", SCHEMA_LIES)
@pytest.mark.parametrize(("kind", "depth"), STRUCTS)
def test_schemas_that_lie(kind, depth, lie):
    refuses(lambda: Arrow(*spoilt(0, kind, depth, **SCHEMA_LIES[lie])))
    refuses(lambda: stream_of(spoilt(0, kind, depth, **SCHEMA_LIES[lie])))


def test_schemas_without_end():
    def make():
        structs = KINDS["list"]()
        structs[0].children[0] = pointer(structs[0])
        return Arrow(*structs)

    refuses(make, "no end")


OTHERS = {
    b"u": "Utf8",
    b"z": "Binary",
    b"tdD": "Date32",
    b"+m": "Map",
    b"+ud:0,1": "DenseUnion",
    b"+us:0": "SparseUnion",
    b"+r": "RunEndEncoded",
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_types_are_named(other):
    children = [schema(b"+s")] if other.startswith(b"+") else []
    rows = Arrow(schema(b"+l", schema(other, *children)), KINDS["list"]()[1])
    with pytest.raises(TypeError, match=rf"^x is an Arrow array of type List\({OTHERS[other]}\)"):
        fc.ragged(rows)
    rows = Arrow(schema(other, *children), KINDS["list"]()[1])
    with pytest.raises(TypeError, match=f"^x is an Arrow array of type {OTHERS[other]}; pass"):
        fc.ragged(rows)


@pytest.mark.parametrize("children", [2, 100])
@pytest.mark.parametrize(("depth", "reason"), [(20, "131072 types"), (30, "types"), (60, "no end")])
def test_schemas_whose_children_are_shared(depth, reason, children):
    """Each level has the next one as several children: their number grows as a power."""

    def make(form):
        described = schema(b"l")
        for _ in range(depth):
            described = schema(b"+s", *[described] * children)
        return form((schema(b"+l", described), KINDS["list"]()[1]))

    for form in (lambda structs: Arrow(*structs), stream_of):
        refuses(lambda form=form: make(form), reason)


def chunks_of(count, described, of_values):
    """Make a stream of this many arrays, all of the same memory."""
    return ArrowStream(described, iter([of_values] * count))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 1_500])
def test_many_small_arrays(kind, count):
    one = fc.ragged(Arrow(*KINDS[kind]()))
    rows = fc.ragged(chunks_of(count, *KINDS[kind]()))
    assert rows.dtype == one.dtype
    assert rows.to_list() == one.to_list() * count
    batch = fc.pad(chunks_of(count, *KINDS[kind]()), array_type="numpy")
    assert np.array_equal(
        batch, np.tile(fc.pad(one, array_type="numpy"), (count, *[1] * (batch.ndim - 1)))
    )


def test_arrays_small_and_large():
    pa = pytest.importorskip("pyarrow")
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, 99, size).tolist() for size in (3, 0, 20_000, 0, 1, 16_384, 2)]
    rows[4] = None
    chunked = pa.chunked_array([pa.array([row], pa.list_(pa.int64())) for row in rows])
    filled = [[7] * 2 if row is None else row for row in rows]
    field = fc.Field(chunked, dtype="int64", default=7)
    batch = fc.build_batch(
        [[1]] * 7, filled, pad_token_id=0, fields={"x": field}, layout="jagged", array_type="numpy"
    )
    assert batch.x.tolist() == [value for row in filled for value in row]
    with pytest.raises(ValueError, match=r"x\[4\] is null"):
        fc.ragged(chunked)


def test_an_interrupt_inside_a_producer():
    pa = pytest.importorskip("pyarrow")

    def batches():
        yield pa.record_batch({"x": pa.array([[1]])})
        raise KeyboardInterrupt

    described = pa.schema({"x": pa.list_(pa.int64())})
    with pytest.raises(KeyboardInterrupt):
        fc.ragged(pa.RecordBatchReader.from_batches(described, batches()))


@pytest.mark.parametrize("buffers", [[], [None], [np.zeros(1, np.uint8)]])
def test_nulls_without_memory(buffers):
    """Producers give arrays of nulls no buffer, or one."""
    nulls = schema(b"n")

    def rows(length=6, offsets=(0, 0, 0, 0), **fields):
        offsets = np.array(offsets, np.int32)
        child = array(length, list(buffers), null_count=length, **fields)
        return Arrow(schema(b"+l", nulls), array(3, [None, offsets], child))

    assert fc.ragged(rows()).to_list() == [[], [], []]
    assert fc.ragged(rows(0)).to_list() == [[], [], []]
    with pytest.raises(ValueError, match=r"^x\[1\]\[0\] is null"):
        fc.ragged(rows(offsets=(0, 0, 2, 2)))
    refuses(lambda: rows(offsets=(0, 0, 0, 7)), "end beyond its 6 values")
    refuses(lambda: rows(-1))
    refuses(lambda: rows(release=None))
    refuses(lambda: rows(n_buffers=2), "buffers")
    if buffers:
        child = array(6, list(buffers), null_count=6)
        child.buffers = None
        lists = array(3, [None, np.zeros(4, np.int32)], child)
        refuses(lambda: Arrow(schema(b"+l", nulls), lists), "no buffers")
    for size, length in ((2, 2**61), (0, 2**62)):
        child = array(2**62, list(buffers), null_count=2**62)
        lie = Arrow(schema(b"+w:%d" % size, nulls), array(length, [None], child))
        with pytest.raises((ValueError, MemoryError)):
            fc.ragged(lie)


def test_metadata_is_not_read():
    """It has no length, so that a count of entries may be anything."""
    entries = keep(np.array([2**31 - 1, 2**31 - 1], np.int32))
    structs = KINDS["list"]()
    structs[0].metadata = structs[0].children[0].contents.metadata = entries.ctypes.data
    assert fc.ragged(Arrow(*structs)).to_list() == [[0], [1, 2], [3, 4, 5]]


@pytest.mark.parametrize("make", [lambda s: Arrow(*s), stream_of], ids=["array", "stream"])
def test_capsules_that_are_read_twice(make):
    rows = make(KINDS["list"]())
    assert fc.ragged(rows).to_list() == [[0], [1, 2], [3, 4, 5]]
    refuses(lambda: rows, "released")


@pytest.mark.parametrize("kind", KINDS)
def test_structs_are_released_once(kind):
    """Structs are released with the last array over their memory, or at once if invalid."""
    released = []
    release = keep(RELEASE(lambda struct: released.append(end_of(struct))))

    def end_of(struct):
        made = Array.from_address(struct)
        made.release = None
        return made.length

    def counted(length=None):
        described, of_values = KINDS[kind]()
        of_values.release = ctypes.cast(release, c_void_p)
        if length is not None:
            of_values.length = length
        return described, of_values

    for make in (lambda structs: Arrow(*structs), stream_of):
        rows = fc.ragged(make(counted()))
        assert not released
        part = rows[1:].values
        del rows
        assert not released
        assert part.size
        del part
        assert len(released) == 1
        released.clear()
        with pytest.raises(ValueError, match="length"):
            fc.ragged(make(counted(-1)))
        assert released == [-1]
        released.clear()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_is_not_aligned(kind):
    described, of_values = KINDS[kind]()
    memory = {array.ctypes.data: array for array in KEPT if isinstance(array, np.ndarray)}
    for depth in range(DEPTHS[kind]):
        struct = struct_at(of_values, depth)
        for index in range(1, struct.n_buffers):
            aligned = memory[struct.buffers[index]]
            moved = keep(np.frombuffer(b"." + aligned.tobytes(), aligned.dtype, offset=1))
            struct.buffers[index] = moved.ctypes.data
    rows = fc.ragged(Arrow(described, of_values))
    assert rows.to_list() == ROWS.get(kind, [[0], [1, 2], [3, 4, 5]])
    assert rows.values.flags.aligned
    assert not rows.values.flags.writeable


def test_children_that_outlive_their_parent():
    """A consumer that takes a child leaves a released struct, and releases the child itself."""
    rows = fc.ragged([[[1, 2]], [[3, 4], [5, 6]]])
    capsules = rows.__arrow_c_array__()
    address = rows.values.ctypes.data
    del rows
    for kind, of_capsule in zip((Schema, Array), capsules, strict=True):
        name = {Schema: b"arrow_schema", Array: b"arrow_array"}[kind]
        whole = kind.from_address(pointer_of_capsule(of_capsule, name))
        lists = whole.children[0].contents
        taken = kind.from_buffer_copy(lists)
        lists.release = None
        RELEASE(whole.release)(ctypes.addressof(whole))
        assert whole.release is None
        leaf = taken.children[0].contents
        if kind is Schema:
            assert (taken.format, taken.name, leaf.format, leaf.flags) == (
                b"+w:2",
                b"item",
                b"l",
                2,
            )
        else:
            assert (taken.length, leaf.length, leaf.buffers[1]) == (3, 6, address)
            values = np.ctypeslib.as_array((c_int64 * 6).from_address(leaf.buffers[1]))
            assert values.tolist() == [1, 2, 3, 4, 5, 6]
        RELEASE(taken.release)(ctypes.addressof(taken))
        assert taken.release is None


def test_what_is_no_pair_of_capsules():
    class Wrong:
        def __init__(self, answer):
            self.answer = answer

        def __arrow_c_array__(self, requested_schema=None):
            return self.answer

    right = Arrow(*KINDS["list"]()).capsules
    for answer in (None, 5, (), right[:1], [*right], (*right, 1), (1, 2), right[::-1]):
        with pytest.raises((TypeError, ValueError), match=r"^x could not be read: "):
            fc.ragged(Wrong(answer))


def test_streams_that_fail():
    described, of_values = KINDS["list"]()
    text = keep(ctypes.create_string_buffer(b"out of tape"))
    fails = {
        "get_next": GET_NEXT(lambda *_: 5),
        "get_schema": GET_SCHEMA(lambda *_: 5),
    }
    for name, fail in fails.items():
        refuses(lambda name=name, fail=fail: ArrowStream(described, [], **{name: fail}), "code 5")
        refuses(lambda name=name: ArrowStream(described, [of_values], **{name: None}))
        tell = {name: fail, "get_last_error": LAST_ERROR(lambda _: ctypes.addressof(text))}
        refuses(lambda tell=tell: ArrowStream(described, [], **tell), "out of tape")
        silent = {name: fail, "get_last_error": LAST_ERROR(lambda _: None)}
        refuses(lambda silent=silent: ArrowStream(described, [], **silent), "code 5")
    refuses(lambda: ArrowStream(described, [of_values], release=None), "released")


def test_streams_that_end_late():
    described, of_values = KINDS["list"]()
    rows = ArrowStream(described, [of_values, KINDS["list"]()[1]])
    assert len(fc.ragged(rows)) == 6
    wrong = [KINDS["list"]()[1], spoilt(1, "list", 0, length=-1)[1]]
    with pytest.raises(ValueError, match="length -1"):
        fc.ragged(ArrowStream(described, wrong))


def test_requested_schemas_that_lie():
    rows = fc.ragged([[1], [2, 3]])
    for lie in SCHEMA_LIES.values():
        requested = capsule(spoilt(0, "list", 0, **lie)[0], b"arrow_schema")
        with pytest.raises(ValueError, match="request"):
            rows.__arrow_c_array__(requested)
    with pytest.raises(ValueError, match="PyCapsule"):
        rows.__arrow_c_array__(capsule(schema(b"l"), b"other"))
    with pytest.raises(ValueError, match=r"requested_schema is .*Int64"):
        rows.__arrow_c_array__(capsule(schema(b"l"), b"arrow_schema"))


@pytest.mark.parametrize("offsets", [[0, 2, 1, 3], [-1, 0, 1, 3], [0, 1, 2, 4]], ids=str)
def test_offsets_that_were_changed_by_force(offsets):
    rows = fc.ragged([[1], [2], [3]])
    rows.offsets.flags.writeable = True
    rows.offsets[:] = offsets
    with pytest.raises(ValueError, match="offset"):
        rows.__arrow_c_array__()


def texts_elsewhere():
    """Texts whose offsets were valid when PyArrow last looked."""
    pa = pytest.importorskip("pyarrow")
    offsets = np.array([0, 2, 4, 6], np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"abcdef")]
    texts = pa.Array.from_buffers(pa.string(), 3, buffers)
    offsets[:] = [0, 1 << 29, 2, 6]
    return texts


@pytest.mark.parametrize("name", ["uids", "fields"])
def test_texts_that_are_elsewhere(name):
    texts = texts_elsewhere()
    given = {"uids": texts, "fields": {"x": fc.PerRow(texts)}}[name]
    with pytest.raises(ValueError, match="Arrow data is not valid: Offset"):
        fc.build_batch([[1]] * 3, [[2]] * 3, pad_token_id=0, array_type="numpy", **{name: given})


def test_calls_with_texts_that_are_elsewhere():
    texts = texts_elsewhere()
    body = b'{"prompt_token_ids": [1], "choices": [{"token_ids": [2], "finish_reason": "stop"}]}'
    table = fc.rollouts.parse([body] * 3).to_arrow()
    column = table.column_names.index("finish_reasons")
    table = table.set_column(column, "finish_reasons", texts)
    with pytest.raises(ValueError, match="Arrow data is not valid"):
        fc.rollouts.Calls.from_arrow(table)
    schema = fc.rollouts.Schema(
        prompts="prompts", responses="responses", finish_reasons="finish_reasons"
    )
    with pytest.raises(ValueError, match="Arrow data is not valid"):
        fc.rollouts.read(table, schema)


@pytest.mark.parametrize("known", [b"[", b"[]", b"{}", b'{"x": 1}'])
def test_calls_with_other_metadata(known):
    pytest.importorskip("pyarrow")
    body = b'{"prompt_token_ids": [1], "choices": [{"token_ids": [2], "finish_reason": "stop"}]}'
    table = fc.rollouts.parse([body]).to_arrow()
    with pytest.raises(ValueError, match=r"not one of Calls\.to_arrow"):
        fc.rollouts.Calls.from_arrow(table.replace_schema_metadata({b"fastcollate.calls": known}))
