"""Collator: samples, as rows or columns, give the batch that build_batch gives."""

import pickle
import re
import subprocess
import sys
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
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
MASKS = ("completion_mask", "assistant_masks")
LAYOUTS = ["left", "two_segment", "right", "jagged"]


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


@share(2)
@given(samples=rollouts().map(samples_of) | sequences() | pairs, options=options)
def test_samples_of_every_form(samples, options, array_type):
    same_or_refused(
        lambda: fc.Collator(**options, array_type=array_type)(samples),
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


# Columns and tables


def columns_of(samples):
    return {key: [sample[key] for sample in samples] for key in samples[0]}


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
TURNS = [
    {
        "prompt": [1, 2],
        "response": [3],
        "rewards": 0.5,
        "loss_mask": [1],
        "logprobs": [-0.5],
        "uid": "a",
        "trajectory_id": 4,
        "is_last_step": True,
    },
    {
        "prompt": [4],
        "response": [5, 6, 7],
        "rewards": 1.0,
        "loss_mask": [1, 0, 1],
        "logprobs": [-1.0, -2.0, -3.0],
        "uid": "b",
        "trajectory_id": 5,
        "is_last_step": False,
    },
    {
        "prompt": [8],
        "response": [9, 9],
        "rewards": -1.0,
        "loss_mask": [0, 1],
        "logprobs": [-1.0, -2.0],
        "uid": "b",
        "trajectory_id": 5,
        "is_last_step": True,
    },
]
LABELLED = [
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1]},
    {"input_ids": [4, 5, 6, 7], "labels": [-100, 5, -100, 7], "attention_mask": [1] * 4},
    {"input_ids": [8, 9], "labels": [-100, -100], "attention_mask": [1, 1]},
]
MASKED = [
    {"input_ids": [1, 2, 3], "completion_mask": [0, 1, 1], "assistant_masks": [1, 1, 1]},
    {"input_ids": [4, 5, 6, 7], "completion_mask": [0, 1, 1, 1], "assistant_masks": [0, 1, 0, 1]},
    {"input_ids": [8, 9], "completion_mask": [0, 1], "assistant_masks": [1, 0]},
]
PAIRS = [
    {"prompt_ids": [1, 2, 3], "chosen_ids": [4, 5], "rejected_ids": [6]},
    {"prompt_ids": [7, 8], "chosen_ids": [9], "rejected_ids": [10, 11]},
    {"prompt_ids": [7, 8], "chosen_ids": [12], "rejected_ids": [13]},
]
ALONE = [{"input_ids": sample["input_ids"]} for sample in MASKED]
SPLIT = [
    {"input_ids": [1, 2, 3], "prompt_len": 1, "logprobs": [-1.0, -2.0]},
    {"input_ids": [4, 5, 6, 7], "prompt_len": 0, "logprobs": [-1.0, -2.0, -3.0, -4.0]},
    {"input_ids": [8, 9], "prompt_len": 1, "logprobs": [-5.0]},
]


@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("samples", [TURNS, LABELLED, MASKED, ALONE, PAIRS, SPLIT, LABELLED[:1]])
@pytest.mark.parametrize("layout", ["left", "jagged"])
def test_tables(samples, form, layout, array_type):
    collate = fc.Collator(pad_token_id=0, layout=layout, array_type=array_type)
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
        "shift_labels": [[2, 3, -100, -100], [5, -100, 7, -100], [-100, -100, -100, -100]],
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


def test_a_mask_may_be_a_field_instead(array_type):
    samples = [{"input_ids": [1, 2], "prompt_len": 1, "completion_mask": [0, 5]}]
    fields = {"weights": fc.Field("completion_mask", align="sequence")}
    batch = fc.Collator(pad_token_id=0, fields=fields, array_type=array_type)(samples)
    assert batch.weights.tolist() == [[0, 5]]


OF_PAIRS = (
    *("response_mask", "completion_mask", "loss_mask"),
    *("scores", "levels", "advantages"),
)


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


# Fields


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
    keys = ["labels", "input_ids"]
    collate = fc.Collator(pad_token_id=0, outputs=keys, array_type=array_type)
    given = collate(LABELLED)
    assert type(given) is dict
    full = fc.Collator(pad_token_id=0, array_type=array_type)(LABELLED)
    assert_same(given, {key: full[key] for key in keys})


def test_outputs_can_be_named(array_type):
    names = {"labels": "targets", "cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k")}
    options = {"layout": fc.Packed.single_row(), "array_type": array_type}
    collate = fc.Collator(pad_token_id=0, outputs=names, **options)
    full = fc.Collator(pad_token_id=0, **options)(LABELLED)
    bounds = full.cu_seqlens
    expected = {"targets": full.labels, "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    for made in (collate(LABELLED), pickle.loads(pickle.dumps(collate))(LABELLED)):
        assert type(made) is dict
        assert list(made) == list(expected)
        assert_same(made, expected)


@pytest.mark.parametrize("outputs", [["cu_seq_lens_q"], {"cu_seq_lens_q": "cu_seqlens"}])
def test_outputs_that_no_batch_has(outputs):
    pattern = r"outputs has 'cu_seq_lens_q', .* pass some of \['attention_mask', .*from these to"
    refuses(LABELLED, ValueError, pattern, outputs=outputs)


# Other names


NAMED = {
    "question_ids": [[1, 2], [3]],
    "completion_ids": [[4], [5, 6]],
    "gid": ["a", "b"],
    "adv": [0.5, -1.0],
    "lp": [[-0.5], [-1.0, -2.0]],
    "text": ["hi", "there"],
}
RENAMED = {"question_ids": "prompts", "completion_ids": "response", "gid": "uids"}
RENAMED |= {"adv": "advantages", "lp": "logprobs"}


@pytest.mark.parametrize("kind", ["list", "columns", "arrow", "dataset", "pandas"])
def test_columns_of_other_names(kind):
    samples = NAMED
    if kind == "list":
        samples = [dict(zip(NAMED, row, strict=True)) for row in zip(*NAMED.values(), strict=True)]
    elif kind == "arrow":
        samples = pytest.importorskip("pyarrow").table(NAMED)
    elif kind == "dataset":
        samples = pytest.importorskip("datasets").Dataset.from_dict(NAMED)
    elif kind == "pandas":
        samples = pytest.importorskip("pandas").DataFrame(NAMED)
    collate = fc.Collator(pad_token_id=0, columns=RENAMED, ignore=["text"], array_type="numpy")
    expected = fc.build_batch(
        NAMED["question_ids"], NAMED["completion_ids"], pad_token_id=0, uids=NAMED["gid"],
        advantages=NAMED["adv"], logprobs=NAMED["lp"], array_type="numpy",
    )  # fmt: skip
    for one in (collate, pickle.loads(pickle.dumps(collate))):
        found = one(samples)
        assert_same(found, expected)
        assert found.uids == ["a", "b"]
    assert "columns={'question_ids': 'prompt', 'completion_ids': 'response', 'gid'" in repr(collate)
    ignoring = fc.Collator(pad_token_id=0, columns=RENAMED, ignore="rest", array_type="numpy")
    assert_same(ignoring(samples), expected)


def test_sequences_of_other_names():
    columns = {"tokens": "sequences", "n": "prompt_lens"}
    collate = fc.Collator(pad_token_id=0, columns=columns, array_type="numpy")
    found = collate([{"tokens": [1, 2, 3], "n": 2}])
    assert_same(found, collate_loops([{"input_ids": [1, 2, 3], "prompt_len": 2}], pad_token_id=0))


def test_one_key_for_another():
    """A known key may be another column's, and text a key that the samples need not have."""
    columns = {"prompt_ids": "prompt", "completion_ids": "response"}
    collate = fc.Collator(pad_token_id=0, columns=columns, ignore=["prompt"], array_type="numpy")
    sample = {"prompt": "hi", "prompt_ids": [1, 2], "completion_ids": [3]}
    assert collate([sample]).input_ids.tolist() == [[1, 2, 3]]
    with pytest.raises(ValueError, match=r"samples have 'prompt', and columns has 'prompt_ids'"):
        fc.Collator(pad_token_id=0, columns=columns)([sample])


@pytest.mark.parametrize(
    ("options", "exception", "pattern"),
    [
        ({"columns": ["a"]}, TypeError, r"columns is \['a'\] .*pass a mapping"),
        ({"columns": {1: "prompt"}}, TypeError, "columns has 1: 'prompt'; pass strings"),
        ({"columns": {"a": 1}}, TypeError, "columns has 'a': 1; pass strings"),
        ({"columns": {"a": "x"}}, ValueError, r"columns\['a'\] is 'x', .*pass one of \['prompt',"),
        ({"columns": {"a": "promts"}}, ValueError, "did you mean 'prompts'"),
        (
            {"columns": {"a": "prompt", "b": "prompts"}},
            ValueError,
            "two keys for 'prompts', 'a' and 'b'",
        ),
        ({"columns": {"a": "prompt"}, "ignore": ["a"]}, ValueError, "'a', but ignore has it"),
        (
            {"columns": {"a": "uid"}, "fields": {"x": fc.PerRow("a")}},
            ValueError,
            r"columns has 'a', but fields\['x'\] reads it",
        ),
    ],
)
def test_columns_that_cannot_be(options, exception, pattern):
    with pytest.raises(exception, match=pattern):
        fc.Collator(pad_token_id=0, **options)


def test_a_column_that_is_missing():
    collate = fc.Collator(pad_token_id=0, columns={"q": "prompts"})
    with pytest.raises(ValueError, match=r"columns has 'q', which samples do not .*\['response'\]"):
        collate([{"response": [1]}])
    samples = [{"q": [1], "response": [2]}, {"response": [2]}]
    with pytest.raises(ValueError, match=r"samples\[1\] has no 'q', but samples\[0\] has"):
        collate(samples)


@pytest.mark.parametrize("kind", ["list", "columns", "arrow"])
def test_one_error_names_all_unknown_keys(kind):
    samples = NAMED | {"mask": [[1], [1, 0]], "score": [0.5, 1.5]}
    if kind == "list":
        samples = [
            dict(zip(samples, row, strict=True)) for row in zip(*samples.values(), strict=True)
        ]
    elif kind == "arrow":
        samples = pytest.importorskip("pyarrow").table(samples)
    with pytest.raises(ValueError, match="samples have the keys") as raised:
        fc.Collator(pad_token_id=0)(samples)
    assert str(raised.value) == (
        "samples have the keys 'question_ids', 'completion_ids', 'gid', 'adv', 'lp', 'text', "
        "'mask' and 'score', which are not known (text in 'gid' and 'text' has to be tokenized "
        "first); pass columns={'question_ids': 'prompts', 'completion_ids': 'responses', 'adv': "
        "'advantages', 'score': 'rewards'}, fields={'lp': fc.Field('lp'), 'mask': "
        "fc.Field('mask')} and ignore=['gid', 'text'], or ignore=['question_ids', "
        "'completion_ids', 'gid', 'adv', 'lp', 'text', 'mask', 'score']"
    )


@pytest.mark.parametrize(
    ("sample", "advice"),
    [
        (
            {"prompt_ids": [1], "completion_ids": [2]},
            "pass columns={'completion_ids': 'responses', 'prompt_ids': 'prompts'}, or ignore",
        ),
        ({"prompt": [1], "response": [2], "reward": 1}, "pass columns={'reward': 'rewards'}, or"),
        ({"prompt": [1], "response": [2], "group_id": "a"}, "pass columns={'group_id': 'uids'}"),
        ({"prompt": [1], "response": [2], "promt": [1]}, "fields={'promt': fc.Field('promt')}"),
        ({"input_ids": [1], "completion_ids": [1, 2]}, "; pass ignore=['completion_ids']"),
        ({"prompt": [1], "response": [2], "ref_logprobs": [1]}, "fields={'ref_logprobs': fc.F"),
        ({**PAIRS[0], "reward": 1}, "fields={'reward': fc.PerRow('reward')}"),
    ],
)
def test_advice_for_names_of_other_libraries(sample, advice):
    with pytest.raises(ValueError, match=re.escape(advice)):
        fc.Collator(pad_token_id=0)([sample])


@pytest.mark.parametrize("key", ["prompt", "response"])
def test_text_is_not_token_ids(key):
    sample = {"prompt": [1], "response": [2], key: "What is"}
    for samples in ([sample], columns_of([sample])):
        with pytest.raises(TypeError, match=f"^{key} holds text, 'What is', .*tokenize it first"):
            fc.Collator(pad_token_id=0)(samples)


# Bad input


def refuses(samples, exception, pattern, **options):
    collate = fc.Collator(pad_token_id=0, array_type="numpy", **options)
    with pytest.raises(exception, match=pattern):
        collate(samples)


@pytest.mark.parametrize(
    ("change", "exception", "pattern"),
    [
        (
            {"loss_masks": [1]},
            ValueError,
            r"'loss_masks', which .* pass columns={'loss_masks': 'loss_mask'}, or ignore=",
        ),
        ({"text": "hi"}, ValueError, r"'text', which .*ignore=\['text'\]"),
        (
            {"input_ids": [1]},
            ValueError,
            "'input_ids' besides 'prompt' and 'response'; leave it out",
        ),
        ({"labels": [1]}, ValueError, "'labels' beside"),
    ],
)
def test_keys_without_a_meaning(change, exception, pattern):
    samples = [{"prompt": [1], "response": [2], **change}]
    refuses(samples, exception, pattern)
    refuses(columns_of(samples), exception, pattern)
    for ignore in (list(change), "rest" if "text" in change else set(change)):
        collate = fc.Collator(pad_token_id=0, ignore=ignore, array_type="numpy")
        assert collate(samples).input_ids.tolist() == [[1, 2]]
        assert collate(columns_of(samples)).input_ids.tolist() == [[1, 2]]


TOKENS = {"input_ids": [1, 2, 3], "prompt_len": 1}
ONE_TURN = {"prompt": [1, 2], "response": [3]}


@pytest.mark.parametrize("kind", ["list", "columns", "arrow", "dataset"])
@pytest.mark.parametrize(
    ("tokens", "value", "advice"),
    [
        (TOKENS, [0, 1, 1], "fields={'x': fc.Field('x', align='sequence')}, or ignore=['x']"),
        (TOKENS, [0, 1], "fields={'x': fc.Field('x')}, or ignore=['x']"),
        (TOKENS, [0, 1, 2, 3], "; pass ignore=['x']"),
        (TOKENS, 0.5, "fields={'x': fc.PerRow('x')}, or ignore=['x']"),
        (TOKENS, "abc", " (text in 'x' has to be tokenized first); pass ignore=['x']"),
        (ONE_TURN, [0, 1, 1], "fields={'x': fc.Field('x', align='sequence')}, or ignore=['x']"),
        (ONE_TURN, [0], "fields={'x': fc.Field('x')}, or ignore=['x']"),
        (ONE_TURN, [0, 1], "; pass ignore=['x']"),
    ],
)
def test_advice_for_unknown_keys_fits_their_rows(tokens, value, advice, kind):
    sample = {**tokens, "x": value}
    samples = [sample]
    if kind != "list":
        samples = {key: [row] for key, row in sample.items()}
    if kind == "arrow":
        samples = pytest.importorskip("pyarrow").table(samples)
    elif kind == "dataset":
        samples = pytest.importorskip("datasets").Dataset.from_dict(samples)
    with pytest.raises(ValueError, match=r"'x', which is not known.*; pass ") as raised:
        fc.Collator(pad_token_id=0, array_type="numpy")(samples)
    assert str(raised.value).endswith(advice)


@pytest.mark.parametrize(
    ("samples", "exception", "pattern"),
    [
        ([], ValueError, "samples is empty"),
        ({}, ValueError, "no tokens"),
        (3, TypeError, "samples is 3 .*pass a list of dicts"),
        ("text", TypeError, "pass a list of dicts"),
        ([[1, 2]], TypeError, r"samples\[0\] is \[1, 2\] \(list\); pass a mapping"),
        ([TURNS[0], None], TypeError, r"samples\[1\] is None"),
        ([{"prompt": [1]}], ValueError, "no 'response'"),
        ([{"response": [1]}], ValueError, "no 'prompt'"),
        ([{"rewards": [1]}], ValueError, r"no tokens; .*\['rewards'\]"),
        (
            [{"input_ids": [1], "prompt_len": 1, "labels": [1]}],
            ValueError,
            "'prompt_len' and 'labels', which both mark .*; pass one",
        ),
        (
            [{"input_ids": [1], "prompt_len": 1, "assistant_masks": [1]}],
            ValueError,
            "'prompt_len' and 'assistant_masks', which both mark",
        ),
        (
            [{"input_ids": [1], "assistant_masks": [1], "loss_mask": [1]}],
            ValueError,
            "'loss_mask' and 'assistant_masks', which both mark",
        ),
        (
            [{"prompt_ids": [1], "chosen_ids": [2]}],
            ValueError,
            "have 'prompt_ids', but no 'rejected_ids'; pass 'prompt_ids', 'chosen_ids' and 'rej",
        ),
        ([{"rejected_ids": [1]}], ValueError, "have 'rejected_ids', but no 'prompt_ids'"),
        ([PAIRS[0], {"prompt_ids": [1]}], ValueError, r"samples\[1\] has no 'chosen_ids', but"),
        ([{**PAIRS[0], "input_ids": [1]}], ValueError, "pairs, .* but 'input_ids' belongs to one"),
        ([{**PAIRS[0], "rewards": 1}], ValueError, r"'rewards' belongs to one row; .*fc.Field\("),
        ([{**PAIRS[0], "chosen_ids": [0.5]}], TypeError, r"chosen_ids\[0\]\[0\] is 0.5"),
        ([{**PAIRS[0], "score": 1}], ValueError, "'score', which is not known"),
        (
            [{"prompt": [1], "response": [2], "completion_mask": [0, 1]}],
            ValueError,
            "'completion_mask' besides 'prompt' and 'response'",
        ),
        ([{"input_ids": [1], "labels": [1], "loss_mask": [1]}], ValueError, "'loss_mask' and 'lab"),
        (
            [{"prompt": [1], "response": [2], "uid": 1}, {"prompt": [1], "response": [2]}],
            ValueError,
            r"samples\[1\] has no 'uid', but samples\[0\] has",
        ),
        (
            [{"prompt": [1], "response": [2]}, {"prompt": [1], "response": [2], "uid": 1}],
            ValueError,
            r"samples\[0\] has no 'uid', but samples\[1\] has",
        ),
        (
            [{"prompt": [1], "response": [2]}, {"prompt": [1], "response": [2], "nonsense": 1}],
            ValueError,
            "'nonsense', which is not known; pass",
        ),
        (
            [{"prompt": [1], "response": [2, 3], "logprobs": [0]}],
            ValueError,
            r"logprobs\[0\] has 1 items, but responses\[0\] has 2",
        ),
    ],
)
def test_bad_samples(samples, exception, pattern):
    refuses(samples, exception, pattern)


GOOD = {"input_ids": [1, 2], "labels": [-100, 2], "attention_mask": [1, 1], "prompt_len": 1}
GOOD |= {key: [0, 1] for key in MASKS}
BAD_MASKS = [
    ([0], ValueError, r" has 1 items, but input_ids\[1\] has 2; pass one value per tok"),
    ([0, 2], ValueError, r"\[1\] is 2; pass 1 for tokens that train and 0 for others"),
    ([-1, 1], ValueError, r"\[0\] is -1; pass 1"),
    ([0, 0.5], TypeError, r"\[1\] is 0.5"),
    (None, TypeError, " is None"),
]


@pytest.mark.parametrize(
    ("key", "bad", "exception", "pattern"),
    [
        ("labels", [-100, 3], ValueError, r"\[1\] is 3, but input_ids\[1\]\[1\] is 2"),
        ("labels", [2], ValueError, r" has 1 items, but input_ids\[1\] has 2"),
        ("labels", 3, TypeError, " is 3"),
        ("labels", [0.5, 2], TypeError, r"\[0\] is 0.5"),
        ("input_ids", ["a", 2], TypeError, r"\[0\] is 'a'"),
        ("attention_mask", [1, 0], ValueError, r"\[1\] is 0.*padded"),
        ("attention_mask", [1], ValueError, " has 1 items"),
        ("prompt_len", 3, ValueError, r" is 3, but input_ids\[1\] has 2 tokens"),
        ("prompt_len", -1, ValueError, " is -1"),
        ("prompt_len", 1.0, TypeError, " is 1.0; pass an integer"),
        ("prompt_len", None, TypeError, " is None"),
        ("prompt_len", 2**70, ValueError, " is 1180591620717411303424"),
        *((key, *bad) for key in MASKS for bad in BAD_MASKS),
    ],
)
def test_bad_values_of_a_sample(key, bad, exception, pattern):
    good = {"input_ids": [1, 2], key: GOOD[key]}
    refuses([good, {**good, key: bad}], exception, rf"{key}\[1\]{pattern}")


@pytest.mark.parametrize(
    ("columns", "exception", "pattern"),
    [
        (
            {"input_ids": [[1]], "labels": [[1], [2]]},
            ValueError,
            "labels has 2 rows, but input_ids",
        ),
        ({"input_ids": [[1]], "prompt_len": [1, 1]}, ValueError, "prompt_len has 2 rows, but inp"),
        ({"input_ids": [[1]], "prompt_len": 1}, TypeError, "prompt_len is 1; pass a sequence"),
        ({"prompt": [[1]], "response": [[1], [2]]}, ValueError, "responses has 2 rows"),
        ({"input_ids": np.zeros((1, 2)), "prompt_len": [1]}, TypeError, "input_ids holds float64"),
        ({"input_ids": 3, "prompt_len": [1]}, TypeError, "input_ids cannot be read"),
        ({"prompt": [1], "response": [2]}, ValueError, "samples is one sample: its 'prompt'"),
        (PAIRS[0], ValueError, "samples is one sample: its 'prompt_ids'"),
        (
            {"prompt_ids": [[1]], "chosen_ids": [[1]], "rejected_ids": [[1], [2]]},
            ValueError,
            "rejected_ids has 2 rows, but prompt_ids has 1; pass one row per sample",
        ),
        ({"input_ids": np.arange(2), "prompt_len": 1}, ValueError, "pass a list of samples"),
    ],
)
def test_bad_columns(columns, exception, pattern):
    refuses(columns, exception, pattern)


@pytest.mark.parametrize(
    ("options", "exception", "pattern"),
    [
        ({"pad_token": 3}, TypeError, "no argument 'pad_token'; pass the .* as pad_token_id"),
        ({"rewards": [1]}, TypeError, "no argument 'rewards'.*come with the samples"),
        ({"x": None}, TypeError, r"no argument 'x'; help\(fc.Collator\) lists its arg"),
        ({"layout": "up"}, ValueError, "layout"),
        ({"pad_to": 8}, TypeError, r"pass layout=fc.Left\(pad_to="),
        ({"array_type": "list"}, ValueError, "array_type"),
        ({"fields": [1]}, TypeError, "fields is"),
        ({"fields": {"a": "a"}}, TypeError, r"fields\['a'\] is 'a' .*fc.Field\('a'\)"),
        ({"fields": {"a": fc.Field([[1]])}}, TypeError, r"fields\['a'\] holds .*fc.Field\('a'\)"),
        ({"fields": {"a": fc.PerRow(("x", 1))}}, TypeError, r"fields\['a'\] holds .*PerRow\('a'\)"),
        ({"fields": {"a": fc.PerRow([1])}}, TypeError, r"fc.PerRow\('a'\)"),
        ({"ignore": "text"}, TypeError, r"ignore is 'text'; pass .* ignore=\['text'\]"),
        ({"ignore": [3]}, TypeError, "ignore has 3"),
        ({"outputs": "labels"}, TypeError, "outputs is 'labels'"),
        ({"outputs": ["labels", "labels"]}, ValueError, "outputs has 'labels' twice"),
        (
            {"outputs": {"labels": "x", "input_ids": "x"}},
            ValueError,
            r"outputs\['input_ids'\] has the name 'x', which outputs\['labels'\] has too; pass",
        ),
        (
            {"outputs": {"labels": ["x", "x"]}},
            ValueError,
            r"outputs\['labels'\] has the name 'x', wh",
        ),
        ({"outputs": {"labels": 3}}, TypeError, r"outputs\['labels'\] is 3"),
        (
            {"outputs": {"labels": [3]}},
            TypeError,
            r"outputs\[.labels.\] has 3; pass strings as keys",
        ),
        ({"outputs": {3: "x"}}, TypeError, "outputs has 3; pass strings as keys"),
    ],
)
def test_bad_options(options, exception, pattern):
    with pytest.raises(exception, match=pattern):
        fc.Collator(**{"pad_token_id": 0, "array_type": "numpy", **options})


def test_fields_that_no_sample_has():
    refuses(
        TURNS,
        ValueError,
        "fields.'adv'. reads 'x', which samples do not have; pass",
        fields={"adv": fc.Field("x")},
    )


def test_fields_of_two_keys_are_those_of_pairs():
    fields = {"adv": fc.Field(("logprobs", "rewards"))}
    refuses(TURNS, ValueError, "fields.'adv'. reads two keys, .* pass one key", fields=fields)
    refuses(PAIRS, ValueError, "fields.'adv'. reads 'logprobs', which samples do", fields=fields)


def test_a_pool_stays_in_its_process():
    collate = fc.Collator(pad_token_id=0, pool=fc.memory.BufferPool(1 << 20), array_type="numpy")
    assert collate(TURNS).uids == ["a", "b", "b"]
    with pytest.raises(TypeError, match="pool='default'"):
        pickle.dumps(collate)


def test_repr_says_what_was_given():
    collate = fc.Collator(pad_token_id=3, layout="right", ignore=["text"])
    assert repr(collate) == "Collator(pad_token_id=3, ignore=['text'], layout='right')"


# Threads and processes


def test_many_threads_may_call_it(array_type):
    collate = fc.Collator(pad_token_id=0, array_type=array_type)
    expected = collate_loops(LABELLED, pad_token_id=0)
    with ThreadPoolExecutor(4) as executor:
        for batch in executor.map(collate, [LABELLED] * 100):
            assert_same(batch, expected)


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_data_loader(context, workers, tmp_path):
    if context == "fork" and sys.platform == "win32":
        pytest.skip("needs fork")
    code = f"""if True:
        import warnings
        import torch
        import fastcollate as fc

        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 12

            def __getitem__(self, index):
                ids = list(range(index, 2 * index + 2))
                labels = [-100, *ids[1:]]
                return {{"input_ids": ids, "labels": labels, "uid": index, "text": "x"}}

        def main():
            warnings.simplefilter("ignore")  # forks of a process with threads
            collate = fc.Collator(pad_token_id=-1, position_ids="zero", ignore=["text"])
            loader = torch.utils.data.DataLoader(
                Samples(), batch_size=3, collate_fn=collate, num_workers={workers},
                multiprocessing_context={context!r},
            )
            expected = torch.utils.data.DataLoader(Samples(), batch_size=3, collate_fn=collate)
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
    outputs = ("input_ids", "attention_mask", "labels")
    collate = fc.Collator(pad_token_id=0, layout=side, outputs=outputs)
    assert_same(collate(samples), {key: expected[key] for key in outputs})


def test_labels_that_outputs_name_are_made():
    samples = [{"prompt": [1, 2], "response": [3, 4]}, {"prompt": [], "response": [5]}]
    outputs = ("input_ids", "labels")
    collate = fc.Collator(pad_token_id=0, layout="right", outputs=outputs, array_type="numpy")
    assert collate(samples)["labels"].tolist() == [[-100, -100, 3, 4], [-100] * 4]


def test_field_with_the_key_of_the_mask_of_pairs():
    collate = fc.Collator(pad_token_id=0, fields={"completion_mask": fc.PerRow("a")})
    sample = {"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3], "a": 1}
    with pytest.raises(ValueError, match=r"two outputs would be 'completion_mask': .* fields\['"):
        collate([sample])


@pytest.mark.parametrize(
    ("fields", "sample", "exception", "message"),
    [
        (
            {"loss_mask": fc.Field("other")},
            {"loss_mask": [1, 0], "other": [0, 1]},
            ValueError,
            "samples have 'loss_mask', and fields['loss_mask'] reads 'other' for the same output; "
            "leave the field out, or name 'loss_mask' in ignore",
        ),
        (
            {"kept": fc.Field("loss_mask"), "loss_mask": fc.Field("other")},
            {"loss_mask": [1, 0], "other": [0, 1]},
            ValueError,
            "samples have 'loss_mask', and fields['loss_mask'] reads 'other' for the same output",
        ),
        (
            {"loss_mask": fc.PerRow("other")},
            {"loss_mask": [1, 0], "other": 1},
            ValueError,
            "samples have 'loss_mask', and fields['loss_mask'] reads 'other' for the same output",
        ),
        (
            {"loss_mask": fc.RoutedExperts("loss_mask")},
            {"loss_mask": [[[1]], [[0]]]},
            TypeError,
            "fields['loss_mask'] is an fc.RoutedExperts, but a loss mask has one value per token; "
            "pass fc.Field",
        ),
        (
            {"loss_mask": fc.PerRow("other")},
            {"other": 1},
            TypeError,
            "fields['loss_mask'] is an fc.PerRow, but a loss mask has one value per token",
        ),
    ],
)
def test_two_loss_masks_and_those_of_other_fields(fields, sample, exception, message):
    collate = fc.Collator(pad_token_id=0, fields=fields, array_type="numpy")
    with pytest.raises(exception, match=re.escape(message)):
        collate([{"prompt": [1], "response": [2, 3], **sample}])


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
    ("key", "other", "advice"),
    [
        ("chosen_scores", "rejected_scores", "fields={'scores': fc.PerRow((%r, %r))}"),
        ("rejected", "chosen", "fields={'chosen': fc.PerRow((%r, %r))}"),
    ],
)
def test_a_pairs_unknown_keys_make_one_field(key, other, advice):
    pair = {"prompt_ids": [1], "chosen_ids": [2, 3], "rejected_ids": [4, 5, 6]}
    both = sorted((key, other))
    keys = f"{key!r} and {other!r}, which are not known"
    message = f"samples have the keys {keys}; pass {advice % tuple(both)}, or ignore={[key, other]}"
    with pytest.raises(ValueError, match=re.escape(message)):
        fc.Collator(pad_token_id=0)([{**pair, key: 0.5, other: 1.5}])


def test_a_pairs_unknown_keys_have_one_value_per_token():
    pair = {"prompt_ids": [1], "chosen_ids": [2, 3], "rejected_ids": [4, 5, 6]}
    for before, align in ((0, ""), (1, ", align='sequence'")):
        values = {
            f"{name}_adv": [0.5] * (before + len(pair[f"{name}_ids"]))
            for name in ("chosen", "rejected")
        }
        field = f"fields={{'adv': fc.Field(('chosen_adv', 'rejected_adv'){align})}}, or"
        with pytest.raises(ValueError, match=re.escape(field)):
            fc.Collator(pad_token_id=0)([{**pair, **values}])


@pytest.mark.parametrize(
    "options", [{"labels": "shifted"}, {"layout": fc.Packed(8, shift="next_token")}], ids=str
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
