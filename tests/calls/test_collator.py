"""Collator: samples, as rows or columns, give the batch that build_batch gives."""

import pickle
import subprocess
import sys
import warnings
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
from collator_samples import ALONE, LABELLED, MASKED, MASKS, PAIRS, SPLIT, TURNS, columns_of
from conftest import NEEDS_TORCH, share
from hypothesis import assume, given
from hypothesis import strategies as st
from refusing import same_or_refused
from strategies import as_kind, rollouts
from strategies.kinds import FIELD_KINDS, TOKEN_KINDS

import fastcollate as fc
from fastcollate.testing.reference import assert_same, collate_loops

NEEDS_PYARROW = pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
NEEDS_POLARS = pytest.mark.skipif(find_spec("polars") is None, reason="needs polars")

KEYS = {
    "prompts": "prompt",
    "responses": "response",
    "rewards": "rewards",
    "loss_mask": "loss_mask",
    "logprobs": "logprobs",
    "advantages": "advantages",
}
LAYOUTS = ["left", "two_segment", "right", "jagged"]
KERNELS = {"jagged": "dense"}


def samples_of(data):
    """Give rollouts as dicts, one a row."""
    columns = {KEYS[name]: rows for name, rows in data._asdict().items() if rows is not None}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@st.composite
def sequences(draw, forms=("alone", "prompt_len", "labels", "masks")):
    """Draw samples for supervised fine-tuning, as lists of Python numbers."""
    form = draw(st.sampled_from(forms))
    masks = draw(st.sets(st.sampled_from(MASKS), min_size=1))
    samples = []
    for prompt, response in zip(*draw(rollouts())[:2], strict=True):
        ids = [*prompt, *response]
        sample = {"input_ids": ids}
        if form == "prompt_len":
            sample["prompt_len"] = len(prompt)
        elif form == "masks":
            for key in sorted(masks):
                mask = st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids))
                sample[key] = draw(mask)
        elif form == "labels":
            trained = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
            # Some ids may be -100 themselves: they are no labels then.
            sample["labels"] = [i if t else -100 for i, t in zip(ids, trained, strict=True)]
        samples.append(sample)
    if draw(st.booleans()):
        for sample in samples:
            sample["attention_mask"] = [1] * len(sample["input_ids"])
    return samples


tokens = st.lists(st.integers(0, 2**31 - 1), max_size=6)
pairs = st.lists(
    st.fixed_dictionaries(dict.fromkeys(("prompt_ids", "chosen_ids", "rejected_ids"), tokens)),
    min_size=1,
    max_size=6,
)
options = st.fixed_dictionaries(
    {
        "pad_token_id": st.sampled_from([0, 7, -1]),
        "layout": st.sampled_from(LAYOUTS),
        "position_ids": st.sampled_from([None, "repeat_last"]),
        "labels": st.sampled_from([None, "aligned", "shifted"]),
    }
)


@pytest.mark.filterwarnings("ignore:loss_mask has weights")
@share(2)
@given(samples=rollouts().map(samples_of) | sequences() | pairs, options=options)
def test_samples_of_every_form(samples, options, array_type):
    same_or_refused(
        lambda: fc.Collator(
            **options, kernel=KERNELS.get(options["layout"]), array_type=array_type
        )(samples),
        lambda: collate_loops(samples, **options),
    )


@given(samples=rollouts().map(samples_of) | sequences() | pairs, drawn=st.data())
def test_values_of_every_kind(samples, drawn):
    def convert(key, value):
        if key == "prompt_len":
            return drawn.draw(st.sampled_from([int, np.int32, np.array]))(value)
        if not isinstance(value, list):
            return value
        kinds = FIELD_KINDS if key in KEYS and key not in ("prompt", "response") else TOKEN_KINDS
        return as_kind(value, drawn.draw(st.sampled_from(kinds)), ids=kinds is TOKEN_KINDS)

    converted = [
        UserDict((key, convert(key, value)) for key, value in sample.items()) for sample in samples
    ]
    collate = fc.Collator(pad_token_id=0, array_type="numpy")
    assert_same(collate(tuple(converted)), collate_loops(samples, pad_token_id=0))


def numpy_columns(samples):
    """As Ray Data has them: a table of rows of one length, else an array of arrays."""

    def column(values):
        if not isinstance(values[0], list):
            return np.array(values)
        if len({len(row) for row in values}) == 1:
            return np.array(values)
        rows = np.empty(len(values), object)
        rows[:] = [np.array(row) for row in values]
        return rows

    return {key: column(values) for key, values in columns_of(samples).items()}


def arrow_table(samples):
    import pyarrow as pa

    return pa.table(columns_of(samples))


def arrow_chunks(samples):
    import pyarrow as pa

    half = len(samples) // 2
    parts = [part for part in (samples[:half], samples[half:]) if part]
    schema = arrow_table(samples).schema
    return pa.concat_tables([pa.Table.from_pylist(part, schema) for part in parts])


def arrow_batch(samples):
    return arrow_table(samples).to_batches()[0]


def polars_table(samples):
    import polars as pl

    return pl.DataFrame(columns_of(samples))


def ragged_columns(samples):
    return {
        key: fc.ragged(values) if isinstance(values[0], list) else values
        for key, values in columns_of(samples).items()
    }


TABLES = [
    columns_of,
    numpy_columns,
    ragged_columns,
    *(pytest.param(form, marks=NEEDS_PYARROW) for form in (arrow_table, arrow_chunks, arrow_batch)),
    pytest.param(polars_table, marks=NEEDS_POLARS),
]


@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("samples", [TURNS, LABELLED, MASKED, ALONE, PAIRS, SPLIT, LABELLED[:1]])
@pytest.mark.parametrize("layout", ["left", "jagged"])
def test_tables(samples, form, layout, array_type):
    kernel = KERNELS.get(layout)
    collate = fc.Collator(pad_token_id=0, layout=layout, kernel=kernel, array_type=array_type)
    batch = collate(form(samples))
    assert_same(batch, collate_loops(samples, pad_token_id=0, layout=layout))
    if "uid" in samples[0]:
        assert batch.uids == [sample["uid"] for sample in samples]
        assert batch.trajectory_ids == [sample["trajectory_id"] for sample in samples]
        assert batch.is_last_step == [sample["is_last_step"] for sample in samples]


@pytest.mark.parametrize("samples", [LABELLED, MASKED])
def test_written_out(samples, array_type):
    batch = fc.Collator(pad_token_id=0, layout="right", array_type=array_type)(samples)
    assert {key: value.tolist() for key, value in batch.items()} == {
        "input_ids": [[1, 2, 3, 0], [4, 5, 6, 7], [8, 9, 0, 0]],
        "attention_mask": [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]],
        "position_ids": [[0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 0, 0]],
        "labels": [[-100, 2, 3, -100], [-100, 5, -100, 7], [-100, -100, -100, -100]],
    }
    outputs = ("shift_labels", "labels")
    shifted = fc.Collator(pad_token_id=0, layout="right", array_type=array_type, outputs=outputs)
    assert {key: value.tolist() for key, value in shifted(samples).items()} == {
        "shift_labels": [[2, 3, -100, -100], [5, -100, 7, -100], [-100, -100, -100, -100]],
        "labels": batch.labels.tolist(),
    }
    assert batch.response_mask.tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
    assert batch.loss_mask.tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 0]]
    assert batch.prompt_lens.tolist() == [1, 1, 2]


@pytest.mark.parametrize("one", [int, bool, np.int8, np.bool_])
def test_masks_of_every_type(one, array_type):
    samples = [
        {key: np.array(row, one) if key in MASKS else row for key, row in sample.items()}
        for sample in MASKED
    ]
    collate = fc.Collator(pad_token_id=0, array_type=array_type)
    assert_same(collate(samples), collate(MASKED))


def test_a_mask_may_be_a_field_too_or_instead(array_type):
    samples = [{"input_ids": [1, 2], "prompt_len": 1, "completion_mask": [0, 5]}]
    fields = {"weights": fc.Field("completion_mask", align="sequence")}
    batch = fc.Collator(pad_token_id=0, fields=fields, array_type=array_type)(samples)
    assert batch.weights.tolist() == [[0, 5]]
    samples = [{"input_ids": [1, 2, 3], "completion_mask": [0, 1, 0]}]
    batch = fc.Collator(pad_token_id=0, fields=fields, array_type=array_type)(samples)
    assert batch.weights.tolist() == [[0, 1, 0]]
    assert batch.loss_mask.tolist() == [[1, 0]]  # else all tokens would train


def test_labels_hold_no_weights(array_type):
    samples = [{"input_ids": [1, 2, 3], "loss_mask": [0, 0.5, 2]}]
    options = {"pad_token_id": 0, "layout": "right", "array_type": array_type}
    has = "loss_mask has weights, such as 0.5, but "
    with pytest.warns(UserWarning, match=f"{has}labels hold none.*with batch.loss_mask"):
        fc.Collator(**options)(samples)
    keys = ["input_ids", "attention_mask", "labels"]
    with pytest.raises(ValueError, match=f"{has}outputs are .*add 'loss_mask' to outputs"):
        fc.Collator(**options, outputs=keys)(samples)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fc.Collator(**options, outputs=[*keys, "loss_mask"])(samples)
        fc.Collator(**options, outputs=["input_ids", "loss_mask"])(samples)
        fc.Collator(**options)([{"input_ids": [1, 2, 3], "loss_mask": [1, 1, 0]}])

    def built(labels, mask):
        return fc.build_batch([[1]], [[2, 3]], loss_mask=[mask], labels=labels, **options)

    for labels in ("aligned", "shifted"):
        with pytest.warns(UserWarning, match=f"{has}labels hold none.*with batch.loss_mask"):
            built(labels, [0.5, 2])
        builder = fc.BatchBuilder(labels=labels, **options)
        builder.add([1], [2, 3], loss_mask=[0.5, 2])
        with pytest.warns(UserWarning, match=f"{has}labels hold none.*with batch.loss_mask"):
            builder.finish()
        built(labels, [0, 1])
    built(None, [0.5, 2])


OF_PAIRS = (*("response_mask", "completion_mask", "loss_mask"), *("scores", "levels", "advantages"))


@pytest.mark.parametrize("form", TABLES)
def test_pairs_written_out(form, array_type):
    uids = ["a", "b", "b"]
    numbers = [[0.5, 1.5], [-1.0, 2.0], [3.0, 4.0]]
    samples = [
        {
            **pair, "uid": uid, "level": index, "of_chosen": one, "of_rejected": other,
            "chosen_adv": [one] * len(pair["chosen_ids"]),
            "rejected_adv": [other] * len(pair["rejected_ids"]),
        }
        for index, (pair, uid, (one, other)) in enumerate(zip(PAIRS, uids, numbers, strict=True))
    ]  # fmt: skip
    fields = {
        "scores": fc.PerRow(("of_chosen", "of_rejected")),
        "levels": fc.PerRow("level"),
        "advantages": fc.Field(("chosen_adv", "rejected_adv")),
    }
    collate = fc.Collator(pad_token_id=0, layout="right", fields=fields, array_type=array_type)
    batch = pickle.loads(pickle.dumps(collate))(form(samples))
    assert list(batch) == ["input_ids", "attention_mask", "position_ids"]
    assert {key: batch[key].tolist() for key in (*list(batch)[:2], *OF_PAIRS)} == {
        "input_ids": [
            [1, 2, 3, 4, 5],
            [7, 8, 9, 0, 0],
            [7, 8, 12, 0, 0],
            [1, 2, 3, 6, 0],
            [7, 8, 10, 11, 0],
            [7, 8, 13, 0, 0],
        ],
        "attention_mask": [[1] * n + [0] * (5 - n) for n in (5, 3, 3, 4, 4, 3)],
        "response_mask": [[1, 1], [1, 0], [1, 0], [1, 0], [1, 1], [1, 0]],
        "completion_mask": [
            [0, 0, 0, 1, 1],
            [0, 0, 1, 0, 0],
            [0, 0, 1, 0, 0],
            [0, 0, 0, 1, 0],
            [0, 0, 1, 1, 0],
            [0, 0, 1, 0, 0],
        ],
        "loss_mask": [[1, 1], [1, 0], [1, 0], [1, 0], [1, 1], [1, 0]],
        "scores": [0.5, -1, 3, 1.5, 2, 4],
        "levels": [0, 1, 2] * 2,
        "advantages": [[0.5, 0.5], [-1, 0], [3, 0], [1.5, 0], [2, 2], [4, 0]],
    }
    assert batch.uids == ["a", "b", "b"] * 2


def test_pairs_without_uids_are_not_divided_among_ranks():
    """Chosen rows would go to one rank, and rejected ones to another."""
    samples = [{key: value for key, value in pair.items() if key != "uid"} for pair in PAIRS]
    batch = fc.Collator(pad_token_id=0, ignore="rest")(samples)
    assert batch.uids == [0, 1, 2] * 2
    with pytest.raises(ValueError, match="uid 0 appears in non-contiguous positions"):
        fc.plan_step(batch, dp_size=2)
    pairs = batch.select(rows=[0, 3, 1, 4, 2, 5])
    plan = fc.plan_step(pairs, dp_size=2, keep_together="prompt")
    assert [pairs.select(plan.shard(0, rank)).uids for rank in range(2)] == [
        [0, 0, 1, 1],
        [2, 2, "pad0", "pad1"],
    ]


@pytest.mark.parametrize("form", [list, columns_of, numpy_columns])
def test_fields_come_from_the_samples(form, array_type):
    samples = [
        {**sample, "adv": [0.5] * len(sample["response"]), "ent": [[1, 2]] * n, "level": n}
        for n, sample in zip((3, 4, 3), TURNS, strict=True)
    ]
    fields = {
        "advantages": fc.Field("adv"),
        "entropy": fc.Field("ent", align="sequence", dtype="int32", fill=-1),
        "again": fc.Field("adv", fill=9),
        "difficulty": fc.PerRow("level"),
    }
    collate = fc.Collator(pad_token_id=0, fields=fields, array_type=array_type)
    expected = collate_loops(samples, pad_token_id=0, fields=fields)
    assert_same(collate(form(samples)), expected)
    assert_same(pickle.loads(pickle.dumps(collate))(form(samples)), expected)


@NEEDS_PYARROW
@pytest.mark.parametrize("form", ["table", "batch", "columns"])
def test_columns_of_rays_types(form, array_type):
    """The shape of rows follows from their arrays, not from their storage."""
    import pyarrow as pa

    class Pairs(pa.ExtensionArray):
        def to_numpy(self, zero_copy_only=True):
            return np.array(self.storage.to_pylist(), np.int64).reshape(len(self), -1, 2)

    class PairsType(pa.ExtensionType):
        def __init__(self):
            super().__init__(pa.list_(pa.int64(), 4), "ray.data.pairs")

        def __arrow_ext_serialize__(self):
            return b""

        def __arrow_ext_class__(self):
            return Pairs

    pairs = PairsType()
    storage = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pairs.storage_type)
    columns = {"prompt": [[1], [2]], "response": [[3, 4], [5, 6]]}
    columns["top"] = pa.ExtensionArray.from_storage(pairs, storage)
    if form != "columns":
        columns = pa.table(columns) if form == "table" else pa.record_batch(columns)
    collate = fc.Collator(pad_token_id=0, fields={"top": fc.Field("top")}, array_type=array_type)
    assert collate(columns).top.tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_samples_are_read_once(array_type):
    """A data set may make them anew each time, and may not say where it ends."""

    class Samples:
        reads = 0

        def __len__(self):
            return 3

        def __getitem__(self, index):
            self.reads += 1
            return {"prompt": [self.reads], "response": [self.reads]}

    samples = Samples()
    batch = fc.Collator(pad_token_id=0, array_type=array_type)(samples)
    assert batch.input_ids.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert samples.reads == 3


@pytest.mark.parametrize("lengths", [(2, 3), (2, 2)])
def test_arrays_of_rows_are_joined_whether_they_have_one_shape_or_not(lengths, array_type):
    """Ray Data, among others, hands rows of one shape over as one array."""
    images = [np.full((length, 2), length, np.float32) for length in lengths]
    samples = [{"prompt": [1], "response": [2], "pixels": image} for image in images]
    collate = fc.Collator(
        pad_token_id=0, fields={"images": fc.PerRow("pixels", concat=True)}, array_type=array_type
    )
    column = np.stack(images) if lengths[0] == lengths[1] else images
    expected = collate(samples)
    assert expected.images_offsets.tolist() == [0, lengths[0], sum(lengths)]
    assert_same(collate({**columns_of(samples), "pixels": column}), expected)


def test_outputs_can_be_chosen(array_type):
    keys = ["labels", "attention_mask", "position_ids", "input_ids"]
    collate = fc.Collator(pad_token_id=0, outputs=keys, array_type=array_type)
    given = collate(LABELLED)
    assert type(given) is dict
    full = fc.Collator(pad_token_id=0, array_type=array_type)(LABELLED)
    assert_same(given, {key: full[key] for key in keys})


def test_outputs_can_be_named(array_type):
    names = {"labels": "targets", "cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k")}
    options = {"layout": fc.Packed.single_row(), "array_type": array_type}
    collate = fc.Collator(pad_token_id=0, outputs=names, **options)
    full = fc.Collator(pad_token_id=0, kernel="flash", **options)(LABELLED)
    bounds = full.cu_seqlens
    expected = {"targets": full.labels, "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    for made in (collate(LABELLED), pickle.loads(pickle.dumps(collate))(LABELLED)):
        assert type(made) is dict
        assert list(made) == list(expected)
        assert_same(made, expected)


def test_a_pool_stays_in_its_process():
    collate = fc.Collator(pad_token_id=0, pool=fc.memory.BufferPool(1 << 20), array_type="numpy")
    assert collate(TURNS).uids == ["a", "b", "b"]
    with pytest.raises(TypeError, match="pool='default'"):
        pickle.dumps(collate)


def test_repr_says_what_was_given():
    collate = fc.Collator(pad_token_id=3, layout="right", ignore=["text"])
    assert repr(collate) == "Collator(pad_token_id=3, ignore=['text'], layout='right')"


def test_many_threads_may_call_it(array_type):
    collate = fc.Collator(pad_token_id=0, array_type=array_type)
    expected = collate_loops(LABELLED, pad_token_id=0)
    with ThreadPoolExecutor(4) as executor:
        for batch in executor.map(collate, [LABELLED] * 100):
            assert_same(batch, expected)


@pytest.mark.slow
@NEEDS_TORCH
def test_workers_of_a_data_loader(tmp_path):
    """Forked ones, where there are any, and spawned ones."""
    code = """if True:
        import os
        import warnings
        import torch
        import fastcollate as fc

        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 12

            def __getitem__(self, index):
                ids = list(range(index, 2 * index + 2))
                labels = [-100, *ids[1:]]
                return {"input_ids": ids, "labels": labels, "uid": index, "text": "x"}

        def main():
            warnings.simplefilter("ignore")  # forks of a process with threads
            collate = fc.Collator(pad_token_id=-1, position_ids="zero", ignore=["text"])
            expected = torch.utils.data.DataLoader(Samples(), batch_size=3, collate_fn=collate)
            for context, workers in [("fork", 2)] * hasattr(os, "fork") + [("spawn", 1)]:
                loader = torch.utils.data.DataLoader(
                    Samples(), batch_size=3, collate_fn=collate, num_workers=workers,
                    multiprocessing_context=context,
                )
                count = 0
                for found, wanted in zip(loader, expected, strict=True):
                    assert type(found) is fc.Batch
                    assert list(found) == list(wanted)
                    for key, value in wanted.items():
                        assert torch.equal(found[key], value), key
                    assert found.uids == wanted.uids == [count, count + 1, count + 2]
                    assert found.plan.prompt_lens.tolist() == [1, 1, 1]
                    count += 3
                assert count == 12

        if __name__ == "__main__":
            main()
    """
    script = tmp_path / "script.py"  # spawned processes import it again
    script.write_text(code)
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)


@NEEDS_TORCH
@given(samples=sequences(["labels"]), side=st.sampled_from(["right", "left"]))
def test_sequences_are_padded_as_transformers_does(samples, side):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("torch")
    assume(any(sample["input_ids"] for sample in samples))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"pad": 0}, unk_token="pad"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="pad")
    tokenizer.padding_side = side
    theirs = transformers.DataCollatorForSeq2Seq(tokenizer, padding=True)
    expected = theirs([dict(sample) for sample in samples])
    # Theirs labels first tokens, which nothing predicts but the padding in front of them.
    width = expected["labels"].shape[1]
    for row, sample in enumerate(samples):
        first = 0 if side == "right" else width - len(sample["labels"])
        expected["labels"][row, first : first + 1] = -100
    outputs = ("input_ids", "attention_mask", "labels", "position_ids")
    found = fc.Collator(pad_token_id=0, layout=side, outputs=outputs)(samples)
    assert found.pop("position_ids").shape == expected["labels"].shape
    assert_same(found, {key: expected[key] for key in found})


def test_all_samples_but_rollouts_have_labels(array_type):
    collate = fc.Collator(pad_token_id=0, layout="right", array_type=array_type)
    parts, whole = {"prompt": [1], "response": [2, 3]}, {"input_ids": [1, 2, 3], "prompt_len": 1}
    for sample in parts, whole:
        assert collate([sample])["labels"].tolist() == [[-100, 2, 3]]
        for name in ("rewards", "logprobs", "advantages"):
            assert "labels" not in collate([{**sample, name: [0.5, 0.5]}])


def test_labels_that_outputs_name_are_made():
    samples = [{"prompt": [1, 2], "response": [3, 4], "rewards": 0.5}]
    samples += [{"prompt": [], "response": [5], "rewards": 0.5}]
    outputs = ("input_ids", "labels")
    collate = fc.Collator(pad_token_id=0, layout="right", outputs=outputs, array_type="numpy")
    assert collate(samples)["labels"].tolist() == [[-100, -100, 3, 4], [-100] * 4]


@NEEDS_TORCH
def test_items_that_were_read_follow_a_changed_mask():
    batch = fc.Collator(pad_token_id=0)([{"input_ids": [1, 2, 3], "completion_mask": [0, 1, 1]}])
    assert batch["labels"].tolist() == [[-100, 2, 3]]
    batch.loss_mask[batch.targets == 2] = 0
    assert dict(batch)["labels"].tolist() == [[-100, -100, 3]]


def test_a_loss_mask_in_place_of_that_of_samples():
    fields = {"loss_mask": fc.Field("other")}
    collate = fc.Collator(pad_token_id=0, fields=fields, ignore=["loss_mask"], array_type="numpy")
    sample = {"prompt": [1], "response": [2, 3], "loss_mask": [1, 0], "other": [0, 1]}
    assert collate([sample]).loss_mask.tolist() == [[0, 1]]


def test_a_loss_mask_of_pairs(array_type):
    fields = {"loss_mask": fc.Field(("of_chosen", "of_rejected"))}
    collate = fc.Collator(pad_token_id=0, layout="right", fields=fields, array_type=array_type)
    pair = {"prompt_ids": [1], "chosen_ids": [2, 3], "rejected_ids": [4, 5, 6]}
    batch = collate([{**pair, "of_chosen": [0, 1], "of_rejected": [1, 0, 1]}])
    assert batch.loss_mask.tolist() == [[0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    "options",
    [{"labels": "shifted"}, {"layout": fc.Packed(8, shift="next_token"), "kernel": "dense"}],
    ids=str,
)
@pytest.mark.parametrize(
    ("key", "marks", "more"),
    [
        ("labels", [[-100, 1], [], [5, -100]], {}),
        ("completion_mask", [[0, 1], [], [1, 1]], {}),
        ("assistant_masks", [[0, 1], [], [1, 0]], {"completion_mask": [[1, 1], [], [0, 1]]}),
        ("labels", [[-100, 1, 5]], {"seq_lengths": [[2, 1]]}),
    ],
)
def test_first_tokens_that_train_have_no_position(options, key, marks, more):
    ids = [[3, 1], [], [5, 6]] if len(marks) > 1 else [[3, 1, 5]]
    columns = {"input_ids": ids, key: marks, **more}
    collate = fc.Collator(pad_token_id=0, array_type="numpy", **options)
    batch = collate(columns)
    unpredicted = 0 if more.get("completion_mask") else 1  # both have to be 1
    trained = {"labels": 1, "completion_mask": 2, "assistant_masks": 1}[key]
    assert batch.metrics["batch/tokens_without_predecessor"] == unpredicted
    assert batch.loss_mask.sum() == trained
    assert (batch["labels"] != -100).sum() == trained


@pytest.mark.parametrize(
    ("key", "marks", "options", "message"),
    [
        ("labels", [-100, -100, -100], {}, "; check their labels$"),
        ("assistant_masks", [0, 0, 0], {}, "; check their assistant_masks: .*{% generation %}$"),
        ("prompt_len", 3, {}, "; check their prompt_len$"),
        ("labels", [-100, -100, 7], {"max_length": 2}, " within max_length=2; check their labels$"),
    ],
)
def test_samples_of_which_nothing_trains(array_type, key, marks, options, message):
    collate = fc.Collator(pad_token_id=0, layout="right", array_type=array_type, **options)
    sample = {"input_ids": [5, 6, 7], key: marks}
    with pytest.warns(UserWarning, match=f"no token of these samples trains{message}"):
        collate([sample, sample])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained = {"prompt_len": 1}.get(key, [-100, 6, 7] if key == "labels" else [0, 1, 1])
        collate([sample, {**sample, key: trained}])
