"""Arguments that print badly, compare item by item or have no values: one line names them."""

import functools

import numpy as np
import pytest

import fastcollate as fc
from fastcollate import planning

torch = functools.partial(pytest.importorskip, "torch")
ROWS = {"prompts": [[5, 6], [7]], "responses": [[8], [9, 10]], "pad_token_id": 0}


def build(**options):
    return fc.build_batch(**ROWS, **{"array_type": "numpy", **options})


def gather(**options):
    batch = build()
    return batch.gather(np.zeros(batch.response_mask.shape), **options)


ARGUMENTS = {
    **{
        name: lambda value, name=name: build(**{name: value})
        for name in ("array_type", "dtypes", "layout", "merge", "fields", "loss_mask")
    },
    "labels": lambda value: build(labels=value),
    "position_ids": lambda value: build(position_ids=value),
    "pool": lambda value: build(pool=value),
    "pad_token_id": lambda value: fc.build_batch([[1]], [[2]], pad_token_id=value),
    "dtype of input_ids": lambda value: build(dtypes={"input_ids": value}),
    "per": lambda value: gather(align="response", per=value),
    "align": lambda value: gather(align=value),
    "shift": lambda value: gather(align="response", shift=value),
    "on": lambda value: build().broadcast(np.zeros(2), on=value),
    "align of x": lambda value: build(fields={"x": fc.Field([[1], [1, 2]], align=value)}),
    "fields": lambda value: build(fields={"x": value}),
    "capacity": fc.Packed,
    "policy": planning.Merge,
    "rows": lambda value: fc.plan_step(value, dp_size=1),
    "is_last_step": lambda value: build(is_last_step=value, trajectory_ids=[0, 1]),
}


class Prints:
    """An object whose repr is a text, or fails."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        if self.text is None:
            raise RuntimeError("no repr")
        return self.text


def deep():
    rows = []
    for _ in range(5000):
        rows = [rows]
    return rows


VALUES = {
    "no repr": lambda: Prints(None),
    "no text": lambda: Prints(3),
    "many lines": lambda: Prints("a\nb\n" * 10_000),
    "long": lambda: "x" * 100_000,
    "surrogates": lambda: Prints("\ud800"),
    "deep": deep,
    "huge": lambda: 10**5000,
    "array": lambda: np.zeros((2, 2, 2, 2)),
    "structured": lambda: np.zeros(2, [("a", "i8")]),
    "tensor": lambda: torch().ones(2, 2, 2, 2, requires_grad=True),
    "nested": lambda: torch().nested.nested_tensor([torch().ones(1), torch().ones(2)]),
    "meta": lambda: torch().ones(2, 3, device="meta"),
    "sparse": lambda: torch().eye(2).to_sparse(),
    "complex": lambda: torch().ones(2, dtype=torch().complex64).conj(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_one_line_names_the_argument(argument, value):
    if (argument, value) in {("fields", "nested"), ("fields", "meta"), ("loss_mask", "nested")}:
        pytest.skip("rows of values, which are read")
    with pytest.raises((TypeError, ValueError)) as caught:
        ARGUMENTS[argument](VALUES[value]())
    message = str(caught.value)
    assert argument.split()[-1] in message
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize("key", ["\ud800", "a\nb", Prints(None), 7])
def test_keys_that_cannot_be_printed(key):
    for rows in ([[1.0], [1.0, 2.0]], fc.PerRow([1, 2])):
        with pytest.raises((TypeError, ValueError), match=r"^fields"):
            build(fields={key: rows})


def test_private_keys_are_read_as_items():
    batch = build(fields={"_x": [[1.0], [1.0, 2.0]]})
    assert batch["_x"].tolist() == [[0, 1], [1, 2]]
    with pytest.raises(AttributeError, match=r"is batch\['_x'\]"):
        _ = batch._x


def test_lists_that_claim_any_length():
    class Lying(list):
        def __len__(self):
            return 10**15

    assert fc.plan_step(Lying([1, 2]), dp_size=1).num_rows == 2
    batch = build(uids=Lying([1, 2]), fields={"x": fc.PerRow(Lying([1, 2]))})
    assert batch["x"].tolist() == [1, 2]
    assert len(build().select(rows=Lying([0])).prompt_lens) == 1


def test_batches_without_values():
    batch = fc.build_batch(**ROWS).to("meta")
    assert "2 rows" in batch._repr_html_()
    for call in (batch.check, lambda: str(batch.show())):
        with pytest.raises(TypeError, match="device 'meta', which has no values to read; pass one"):
            call()
    with pytest.raises(TypeError, match="mask is a tensor of the device 'meta'"):
        fc.unpad(torch().ones(2, 3), mask=torch().ones(2, 3, device="meta"))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("name", ["loss_mask", "advantages"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
@pytest.mark.parametrize("kind", [list, np.array, lambda row: np.array(row, np.float32)])
def test_numbers_that_no_loss_can_use(name, value, kind):
    columns = {name: [kind([1.0]), kind([1.0, value])]}
    if name == "advantages" and value == value:  # infinity is a number
        assert np.isinf(build(**columns)[name][1, 1])
        return
    shown = "NaN" if value != value else "inf"
    message = rf"^{name}\[1\]\[1\] is {shown}; pass a finite number( \(if all rewards .*)?$"
    with pytest.raises(ValueError, match=message):
        build(**columns)
