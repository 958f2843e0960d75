"""Batch: a read-only mapping that goes into model calls and frameworks as it is."""

import copy
import pickle
from collections.abc import Mapping

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from making import make_batch

import fastcollate as fc
from fastcollate.testing.reference import assert_same

KEYS = ["input_ids", "attention_mask", "response_mask", "loss_mask", "rewards", "logprobs"]


@pytest.fixture
def batch(array_type):
    field = [[0.5], [1.0, 2.0, 3.0]]
    return make_batch(
        [[1, 2], [3]],
        [[4], [5, 6, 7]],
        logprobs=field,
        loss_mask=field,
        rewards=field,
        array_type=array_type,
    )


def test_is_a_mapping(batch):
    assert isinstance(batch, Mapping)
    assert list(batch) == list(batch.keys()) == list(dict(batch)) == KEYS
    assert len(batch) == len(KEYS)
    assert "input_ids" in batch
    assert "missing" not in batch
    assert batch.get("missing") is None
    assert all(batch[key] is value for key, value in batch.items())
    with pytest.raises(KeyError, match="missing"):
        batch["missing"]


def test_attributes_are_the_items(batch):
    assert all(getattr(batch, key) is batch[key] for key in KEYS)
    assert not hasattr(batch, "missing")
    with pytest.raises(AttributeError, match="missing"):
        _ = batch.missing


def test_attributes_never_shadow_methods_and_properties(batch):
    names = ["keys", "get", "plan", "metrics", "prompt_lens", "__len__", "__class__", "_items"]
    shadow = fc.Batch({name: number for number, name in enumerate(names)})
    assert list(shadow.keys()) == names
    assert shadow.get("plan") == 2
    assert shadow["keys"] == 0
    assert len(shadow) == len(names)
    assert type(shadow) is fc.Batch
    with pytest.raises(RuntimeError):
        _ = shadow.plan


def test_is_read_only(batch):
    value = batch["input_ids"]
    with pytest.raises(TypeError):
        batch["input_ids"] = value + 1
    with pytest.raises(TypeError):
        del batch["input_ids"]
    for name in ("input_ids", "plan", "prompt_lens", "new"):
        with pytest.raises(AttributeError):
            setattr(batch, name, value + 1)
    with pytest.raises(AttributeError):
        del batch.input_ids
    assert batch["input_ids"] is value
    assert list(batch) == KEYS


def test_tensors_can_be_changed_in_place(batch):
    batch.rewards[0, 0] = 9.0
    batch.input_ids[0, 0] = 9
    assert batch["rewards"][0, 0] == 9
    assert batch["input_ids"][0, 0] == 9


def test_is_compared_by_identity(batch):
    assert batch == batch
    assert batch != fc.Batch(batch)
    assert batch != dict(batch)
    assert batch in {batch}


def test_lengths(batch, array_type):
    for lens, expected in ((batch.prompt_lens, [2, 1]), (batch.response_lens, [1, 3])):
        assert type(lens) is type(batch.input_ids)
        assert str(lens.dtype).removeprefix("torch.") == "int64"
        assert lens.tolist() == expected


def test_metrics(batch):
    metrics = batch.metrics
    assert all(type(key) is str and type(value) is float for key, value in metrics.items())
    assert metrics["batch/rows"] == 2
    assert metrics["batch/tokens"] == 7
    assert metrics["batch/padded_tokens"] == 8
    assert metrics["batch/padding_fraction"] == 1 / 8
    assert metrics["batch/longest_row"] == 4


def test_metrics_of_no_tokens():
    metrics = make_batch([[]], [[]]).metrics
    assert metrics["batch/tokens"] == 0
    assert metrics["batch/padding_fraction"] == 0


def test_repr_is_a_table(batch):
    lines = repr(batch).splitlines()
    for key in KEYS:
        (line,) = (line for line in lines if key in line.split())
        assert "(2, " in line
        assert str(batch[key].dtype).removeprefix("torch.") in line


def test_plan_is_inspectable(batch):
    plan = batch.plan
    assert isinstance(plan, fc.planning.Plan)
    assert "Plan" in repr(plan)
    tables = plan.to_dict()
    assert all(type(table) is np.ndarray for table in tables.values())
    for again in (fc.planning.Plan._from_dict(tables), pickle.loads(pickle.dumps(plan))):
        assert again == plan
        assert again.prompt_lens.tolist() == [2, 1]
        assert again.response_lens.tolist() == [1, 3]
        assert list(again.to_dict()) == list(tables)


@pytest.mark.parametrize("value", [-1, 4, 2**31, 2**62, 2**63 - 1, "gone", "float", "flat"])
def test_plan_of_broken_tables(batch, value):
    """An error, or a plan that can be used: tables may come from another process or a file."""
    tables = batch.plan.to_dict()
    for name, table in tables.items():
        broken = {"gone": None, "float": table.astype(np.float64), "flat": table.reshape(-1, 1)}
        changed = broken.get(value, table.copy())
        if isinstance(value, int):
            changed.flat[0] = value
        others = {key: other for key, other in tables.items() if key != name}
        try:
            plan = fc.planning.Plan._from_dict(
                others if changed is None else {**others, name: changed}
            )
        except (TypeError, ValueError):
            continue
        assert isinstance(value, int)
        assert value >= 0
        assert fc.Batch(batch)._replace(made_by=plan).metrics["batch/rows"] == 2
        assert pickle.loads(pickle.dumps(plan)) == plan


def test_of_a_mapping_has_no_plan(batch):
    source = dict(batch)
    bare = fc.Batch(source)
    source["late"] = 1
    assert list(bare) == KEYS
    assert all(bare[key] is batch[key] for key in KEYS)
    assert "Batch" in repr(bare)
    assert "Batch" in repr(fc.Batch({}))
    for name in ("plan", "prompt_lens", "response_lens", "metrics"):
        with pytest.raises(RuntimeError):
            getattr(bare, name)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda batch: batch.gather(batch.logprobs), "has no plan"),
        (lambda batch: batch.broadcast(batch.rewards[:, 0]), "has no plan"),
        (lambda batch: batch.to_layout("right"), "has no plan"),
        (lambda batch: batch.rows(), "has no plan"),
        (lambda batch: batch.dense_mask(), "has no plan"),
        (lambda batch: batch.loss_positions(), "has no plan"),
        (lambda batch: batch.subtree_end, "has no subtree_end"),
        (lambda batch: batch.targets, "has no targets"),
    ],
)
def test_what_needs_a_plan(batch, call, message):
    with pytest.raises(fc.planning.MissingPlanError, match=message):
        call(fc.Batch(batch))


@pytest.mark.parametrize("source", [None, 3, ["input_ids"], "input_ids"])
def test_of_no_mapping_is_refused(source):
    with pytest.raises((TypeError, ValueError)):
        fc.Batch(source)


def test_values_may_be_ints_and_lists_of_tensors(batch):
    mixed = fc.Batch({"num_items": 3, "images": [batch.rewards, batch.logprobs], "note": None})
    assert mixed.num_items == 3
    for key in mixed:
        assert key in repr(mixed)
    again = pickle.loads(pickle.dumps(mixed))
    assert again["num_items"] == 3
    assert_same({"image": again["images"][1]}, {"image": batch.logprobs})


def rebuild(data, change):
    """Rebuild nested data as Hugging Face's Trainer does when it moves inputs to a device."""
    if isinstance(data, Mapping):
        return type(data)({key: rebuild(value, change) for key, value in data.items()})
    if isinstance(data, (list, tuple)):
        return type(data)(rebuild(value, change) for value in data)
    return change(data) if hasattr(data, "dtype") else data


def test_is_rebuilt_by_frameworks(batch):
    nested = fc.Batch({**batch, "images": [batch.rewards], "num_items": 3})
    again = rebuild(nested, copy.copy)
    assert type(again) is fc.Batch
    assert again["num_items"] == 3
    assert again["images"][0] is not batch.rewards
    assert_same({key: again[key] for key in batch}, batch)


@NEEDS_TORCH
@pytest.mark.parametrize("array_type", ["torch"])
def test_goes_through_a_data_loader(array_type, batch):
    import torch

    loader = torch.utils.data.DataLoader([batch, batch], batch_size=None)
    stacked = torch.utils.data.default_collate([batch, batch])
    for again in (torch.utils.data.default_convert(batch), *loader):
        assert type(again) is fc.Batch
        assert_same(again, batch)
    assert type(stacked) is fc.Batch
    assert_same({key: value[1] for key, value in stacked.items()}, batch)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_with_its_plan(batch, protocol):
    again = pickle.loads(pickle.dumps(batch, protocol))
    assert type(again) is fc.Batch
    assert_same(again, batch)
    assert again.prompt_lens.tolist() == [2, 1]
    assert again.metrics == batch.metrics


def test_copies(batch):
    shallow, deep = copy.copy(batch), copy.deepcopy(batch)
    for again in (shallow, deep):
        assert type(again) is fc.Batch
        assert_same(again, batch)
        assert again.response_lens.tolist() == [1, 3]
    assert shallow.rewards is batch.rewards
    deep.rewards[0, 0] = 9
    assert batch.rewards[0, 0] == 0


@pytest.mark.parametrize("layout", ["left", "two_segment", "right", "jagged", "packed"])
def test_the_table_describes_every_output(layout, array_type):
    images = [np.zeros((1, 2)), np.zeros((3, 2))]
    routes = [np.ones((2, 1, 1), np.int64), np.zeros((4, 1, 1), np.int64)]
    batch = fc.build_batch(
        [[1, 2], [3]],
        [[4], [5, 6, 7]],
        pad_token_id=9,
        rewards=[0.5, 1.0],
        fields={
            "images": fc.PerRow(images),
            "joined": fc.PerRow(images, concat=True),
            "routes": fc.RoutedExperts(routes),
            "scores": fc.PerRow([1, 2]),
        },
        labels="aligned",
        position_ids="repeat_last",
        array_type=array_type,
        layout=fc.Packed.single_row(multiple_of=4) if layout == "packed" else layout,
    )
    table = batch.spec.table
    assert [output.key for output in table] == list(batch._data)
    assert "other" not in table
    with pytest.raises(KeyError, match="other"):
        table["other"]
    for output in table:
        value = batch[output.key]
        if output.dtype is not None:
            assert str(value.dtype).removeprefix("torch.") == output.dtype
        if output.align in ("row", "object"):
            assert len(value) == 2
        if output.align.endswith("_offsets"):
            assert len(value) == 3
        if output.align == "sequence":
            assert value.shape[: batch.input_ids.ndim] == batch.input_ids.shape
    assert table["input_ids"].fill == 9
    assert table["labels"].fill == -100
    assert table["position_ids"].fill == "repeat_last"
    assert (table["routes"].fill, table["routes"].field) == ("indices", 3)
    assert (table["router_padding_mask"].fill, table["router_padding_mask"].field) == (1, 3)
    assert table["joined_offsets"].field == table["joined"].field == 2
    again = pickle.loads(pickle.dumps(batch)).spec.table
    assert again == table
    assert repr(again["joined"]) == "Output('joined', align='joined')"
    with pytest.raises(ValueError, match="align is 'b'"):
        type(again["joined"])("a", "b", None, None, None)


@pytest.mark.parametrize("array_type", ["numpy", pytest.param("torch", marks=NEEDS_TORCH)])
def test_offsets_of_bins_are_one_array_until_their_list_is_read(array_type, monkeypatch):
    from fastcollate.ops.parts import Parts

    read = []
    monkeypatch.setattr(Parts, "views", property(lambda parts: read.append(parts) or ["a list"]))
    rows = [[1, 2], [3], [4, 5, 6], [7]]
    options = {"pad_token_id": 0, "layout": fc.Packed(4), "array_type": array_type}
    batch = fc.build_batch(rows, [[8]] * 4, **options)
    again = pickle.loads(pickle.dumps(batch))
    assert read == []
    for one in (batch, again):
        assert one.row_cu_seqlens == one["row_cu_seqlens"] == dict(one)["row_cu_seqlens"]
    monkeypatch.undo()
    for one in (batch, again):
        found = one.row_cu_seqlens
        assert one["row_cu_seqlens"] is found is dict(one)["row_cu_seqlens"]
        assert [part.tolist() for part in found] == [[0, 4], [0, 3, 4], [0, 2, 4]]
        assert "list" in repr(one)


@NEEDS_TORCH
def test_code_that_takes_tensors_takes_a_batch_for_none():
    import torch
    from torch.utils.checkpoint import checkpoint
    from torch.utils.data import default_collate, default_convert

    batch = make_batch([[1, 2], [3]], [[4], [5, 6]], array_type="torch")
    rows = fc.ragged(torch.ones(2, 3))
    assert default_collate([batch, batch])["input_ids"].shape == (2, 2, 3)
    assert default_convert(batch)["input_ids"] is batch.input_ids
    for one in (batch, rows):
        assert not torch.is_tensor(one)
        assert (torch.ones(3) == one) is (one == torch.ones(3)) is False
        assert one not in [torch.ones(3)]
        assert type(copy.deepcopy(one)) is type(one)
        assert torch.utils._pytree.tree_leaves([one]) == [one]
    found = checkpoint(lambda batch: batch["input_ids"] + 1, batch, use_reentrant=False)
    assert (found == batch.input_ids + 1).all()

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(batch):
        return [batch[key] + 1 for key in batch if key in batch], (batch.loss_mask * 2).sum()

    assert compiled(batch)[1] == batch.loss_mask.sum() * 2


@NEEDS_TORCH
def test_accelerate_moves_a_batch_as_a_mapping():
    import torch

    utils = pytest.importorskip("accelerate.utils")
    batch = make_batch([[1, 2], [3]], [[4], [5, 6]], array_type="torch")
    assert utils.send_to_device(batch, torch.device("cpu")) is batch
    assert utils.find_batch_size(batch) == 2
    assert utils.slice_tensors(batch, slice(0, 1))["input_ids"].shape == (1, 3)
    assert utils.concatenate([batch, batch])["input_ids"].shape == (4, 3)
