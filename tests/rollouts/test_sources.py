"""Every source of the table: bytes, objects and dictionaries end in batches that train the sampled
tokens."""

import json
import math
from enum import Enum
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import share
from helpers.source_bodies import BODIES, as_objects, schema_name
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.rollouts import SOURCES, Calls, Schema, parse, read

pa = pytest.importorskip("pyarrow")

Status = Enum("Status", {"ABORTED": "aborted"})

EXPECTED = {
    "rllm": [
        ([1, 2], [3, 4], [1, 1], [-0.5, -0.25]),
        ([1, 2, 3, 4, 5], [6], [1], [-1.0]),
        ([1, 2], [7], [1], [-2.0]),
    ],
    "slime": [([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0, -0.25]), ([1, 2], [6], [0], [-1.0])],
    "verl": [([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0, -0.25])],
    "areal": [([1, 2], [3, 4], [1, 1], [-0.5, -0.25])],
    "xtuner": [([1, 2], [3, 4], [1, 0], [-0.5, -0.25])],
    "agent-lightning": [
        ([1, 2], [3, 4], [1, 1], [-0.5, -0.25]),
        ([1, 2, 3, 4, 5], [6], [1], [-1.0]),
    ],
    "nemo-gym": [([1, 2], [3, 4], [1, 1], [-0.5, -0.25])],
    "nemo-rl": [([1, 2], [3, 4, 5, 6], [1, 1, 0, 1], [-0.5, -0.25, 0, -1])],
    "tinker": [([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0, -0.25])],
    # The last leaf is an attempt at a compaction; the first two share a sampled message.
    "verifiers": [
        ([1, 2, 10], [3, 4, 5, 6], [1, 1, 0, 1], [-0.5, -0.25, 0, -1]),
        ([1, 2, 10], [3, 4, 5, 7, 8], [0, 0, 0, 1, 1], [0, 0, 0, -2, -3]),
    ],
    "ms-swift": [([1, 2], [3, 4], [1, 1], [-0.5, -0.25])],
    "art": [([1, 2], [3, 4], [1, 1], [-0.5, -1]), ([1], [5, 6], [1, 0], [-2, 0])],
    "skyrl": [([1, 2], [3, 4], [1, 0], [-0.5, 0]), ([1], [5], [1], [-1])],
    "openenv": [([1, 2], [3, 4], [1, 0], [-0.5, -1])],
    "openenv.sequences": [([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0, -1]), ([9], [8], [0], [-1])],
    "openenv.nodes": [
        ([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0, -1]),
        ([1, 2], [3, 6], [0, 1], [0, -2]),
    ],
    "harbor": [
        ([1], [2], [1], [-0.5]),
        ([1, 2, 3], [4, 5], [1, 1], [-1, -2]),
        ([7], [8], [1], [-3]),
    ],
    "atif": [([1], [2], [0], [-0.5]), ([1, 2, 3], [4, 5], [1, 1], [-1, -2])],
    "verifiers.steps": [([1, 2], [3, 4], [1, 0], [-0.5, -1])],
    "columns": [([1, 2], [3, 4], [1, 0], [-0.5, -1])],
}  # fmt: skip
EXPECTED |= {
    "miles": EXPECTED["slime"],
    "nemo-rl.raw": EXPECTED["nemo-rl"],
    "agent-lightning.1": EXPECTED["agent-lightning"],
}


def as_arrays(value):
    """Return lists of numbers as arrays."""
    if isinstance(value, dict):
        return {key: as_arrays(one) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    if value and all(isinstance(one, (int, float)) for one in value):
        return np.array(value)
    return [as_arrays(one) for one in value]


def as_table(body):
    """Return a body as a table of one row, in which texts that stand for NaN are NaN."""
    return pa.Table.from_pylist([json.loads(json.dumps(body).replace('"NaN"', "NaN"))])


FORMS = {
    "bytes": lambda body, **options: parse([json.dumps(body).encode()], **options),
    "lines": lambda body, **options: parse(json.dumps(body).encode() + b"\n", **options),
    "dictionaries": lambda body, **options: read([body], **options),
    "objects": lambda body, **options: read([as_objects(body)], **options),
    "arrays": lambda body, **options: read([as_arrays(body)], **options),
    "tables": lambda body, **options: read(as_table(body), **options),
}


def rows_of(calls):
    """Return the rows of calls as lists."""
    mask = calls.loss_mask
    return [
        (
            calls.prompts[row].tolist(),
            calls.responses[row].tolist(),
            [1] * len(calls.responses[row]) if mask is None else mask[row].tolist(),
            None if calls.logprobs is None else calls.logprobs[row].tolist(),
        )
        for row in range(len(calls))
    ]


def test_every_source_has_a_body():
    assert {schema_name(name) for name in BODIES} | {"engines"} == set(SOURCES)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("source", BODIES)
def test_sources(source, is_named, form):
    options = {"schema": schema_name(source)} if is_named else {}
    calls = FORMS[form](BODIES[source], unfinished="keep", **options)
    assert rows_of(calls) == EXPECTED[source]
    batch = fc.build_batch(**calls.batch, pad_token_id=0, array_type="numpy", layout="two_segment")
    mask = batch.loss_mask
    trained = batch.input_ids[:, -mask.shape[1] :][mask == 1].tolist()
    assert trained == [
        token
        for _, response, mask, _ in EXPECTED[source]
        for token, trains in zip(response, mask, strict=True)
        if trains
    ]


@pytest.mark.parametrize("source", BODIES)
def test_forms_have_the_same_columns(source):
    found = [form(BODIES[source], unfinished="keep") for form in FORMS.values()]
    for calls in found:
        assert list(calls.columns) == list(found[0].columns)
        for name in ("rewards", *calls.columns):
            one, first = getattr(calls, name), getattr(found[0], name)
            is_ragged = isinstance(one, fc.Ragged)
            assert one == first if is_ragged else np.array_equal(one, first)


@pytest.mark.parametrize("form", FORMS)
def test_ids_of_samples_under_names_of_text(form):
    rows = {"prompt": [1, 2], "completion": [3]}, {"prompt": [4], "response": [5], "text": "x"}
    calls = [FORMS[form](row, unfinished="keep") for row in rows]
    assert [rows_of(one)[0][:2] for one in calls] == [([1, 2], [3]), ([4], [5])]
    beside = {"prompt": "x", "response": "y", "input_ids": [6, 7, 8], "prompt_len": 1}
    assert rows_of(FORMS[form](beside, unfinished="keep"))[0][:2] == ([6], [7, 8])


@pytest.mark.parametrize("form", FORMS)
def test_masks_of_rows_have_any_of_their_names(form):
    """Each row has its own; null is none, and of two masks neither is chosen alone."""
    row = {"prompt_ids": [1], "completion_ids": [2, 3]}
    both = {"loss_mask": [1, 0], "response_mask": [1, 1]}
    others = [{"response_mask": [0, 1]}, {"loss_mask": None, "response_mask": [0, 1]}]
    rows = [row | one for one in (both, *others)]
    calls = read(pa.Table.from_pylist(rows)) if form == "tables" else FORMS[form](rows)
    assert calls.loss_mask.to_list() == [[1, 0], [0, 1], [0, 1]]
    masks = {"completion_mask": [1, 1], "tool_mask": [0, 1]}
    with raises("rows have the masks 'completion_mask' and 'tool_mask'; multiply them into"):
        FORMS[form](row | masks)
    for wrong in (0, "01", [[0, 1]]):
        with raises("'loss_mask' of rows is not a list of numbers; pass one number per token"):
            FORMS[form](row | {"loss_mask": wrong})
    schema = Schema(prompts="prompt_ids", responses="completion_ids", loss_mask="tool_mask")
    assert FORMS[form](row | masks, schema=schema).loss_mask.to_list() == [[0, 1]]
    assert FORMS[form](row | masks | {"loss_mask": [0, 1]}).loss_mask.to_list() == [[0, 1]]


def test_tensors_of_rows_that_numpy_does_not_read():
    """Those of bfloat16, and with a gradient, as a schema of their names reads them."""
    torch = pytest.importorskip("torch")
    row = {"prompt_ids": [1], "response_ids": [2, 3], "loss_mask": torch.tensor([0.0, 1.0])}
    row["logprobs"] = torch.tensor([-0.5, -1.0], requires_grad=True)
    for dtype in (torch.float32, torch.bfloat16):
        calls = read([row | {"loss_mask": row["loss_mask"].to(dtype)}])
        assert rows_of(calls) == [([1], [2, 3], [0, 1], [-0.5, -1.0])]


@pytest.mark.parametrize("form", ["bytes", "dictionaries", "objects"])
def test_keys_that_the_first_row_leaves_out(form):
    """Writers may leave out what is null, or the default; NaN of pandas is null."""

    def calls(**second):
        row = {"prompt_ids": [1], "response_ids": [2, 3]}
        return FORMS[form]([row, row | second])

    with raises("did not finish: finish_reason is"):
        calls(finish_reason="abort")
    assert calls(remove_sample=True).loss_mask.to_list() == [[1, 1], [0, 0]]
    assert calls(weight_version=3).versions == [None, 3]
    assert calls(group_id="a").uids == [None, "a"]
    row = {"tokens": [1, 2], "response_length": 1}
    with raises("call 1 did not finish: finish_reason is None"):
        read([row | {"status": one} for one in ("completed", math.nan)])


def test_status_of_samples_is_an_enum():
    sample = {"tokens": [1, 2, 3], "response_length": 2, "reward": 1.0, "status": Status.ABORTED}
    with raises("call 0 did not finish: finish_reason is 'aborted'"):
        read([SimpleNamespace(**sample)])
    assert read([SimpleNamespace(**sample)], unfinished="keep").finish_reasons == ["aborted"]


def test_what_else_sources_have():
    def calls(source):
        return parse([json.dumps(BODIES[source]).encode()], unfinished="keep")

    assert calls("rllm").trajectory_ids == ["t0", "t0", "t1"]
    assert calls("rllm").rewards == [1.0, 1.0, 0.0]
    assert calls("skyrl").trajectory_ids == ["a/0", "a/1"]
    assert calls("slime").uids == [4, 4]
    assert calls("slime").finish_reasons == ["completed", "truncated"]
    assert calls("agent-lightning").rewards == [1.0, 1.0]
    assert calls("tinker").advantages.to_list() == [[2.0, 0.0, 2.0]]
    assert calls("atif").trajectory_ids == ["t", "t"]
    assert calls("xtuner").uids == [3]
    assert calls("harbor").rewards == [1.0] * 3


def test_a_schema_of_ones_own():
    schema = Schema(prompts="in", responses="out")
    for form in FORMS.values():
        calls = form({"in": [1, 2], "out": [3]}, schema=schema)
        assert (calls.prompts.to_list(), calls.responses.to_list()) == ([[1, 2]], [[3]])
    assert schema == Schema(prompts="in", responses="out") != Schema(responses="out")
    assert len({schema, Schema(prompts="in", responses="out")}) == 1
    with pytest.raises(ValueError, match=r"schema is 'nothing'; leave it out, .*or one of agent"):
        parse([b"{}"], "nothing")
    with pytest.raises(TypeError, match=r"schema is 3; pass a fc.rollouts.Schema, or the name"):
        read([{}], 3)
    with pytest.raises(ValueError, match="does not end with"):
        Schema("choices", responses="choices.x")


def test_the_first_name_that_fits_is_read():
    ids = {"prompts": "text", "prompt_ids": [1], "responses": [2], "tokens": [7, 8]}
    body = ids | {"rewards": 1.0, "reward": 2.0}
    for form in FORMS.values():
        calls = form(body)
        assert (calls.prompts.to_list(), calls.responses.to_list()) == ([[1]], [[2]])
        assert calls.rewards == [1.0]


@pytest.mark.parametrize(
    "more", [{}, {"weight_version": 3}, {"finish_reason": "stop"}, {"id": "a", "text": "hi"}]
)
@pytest.mark.parametrize(
    "names", [("prompt_ids", "response_ids"), ("prompt_token_ids", "output_ids")]
)
def test_rows_that_share_names_with_other_sources(names, more):
    """An engine's response has no loss mask, and the uid of a trajectory of rLLM is not a row's."""
    tokens = dict(zip(names, ([1, 2], [3, 4]), strict=True))
    row = {**tokens, "logprobs": [-0.5, -1], "loss_mask": [0, 1], "reward": 1.0, "uid": "a", **more}
    for calls in (parse(json.dumps(row).encode()), read([row]), read(pa.Table.from_pylist([row]))):
        assert (calls.prompts.to_list(), calls.responses.to_list()) == ([[1, 2]], [[3, 4]])
        assert (calls.logprobs.to_list(), calls.loss_mask.to_list()) == ([[-0.5, -1]], [[0, 1]])
        assert (calls.rewards, calls.uids, "trajectory_ids" in calls.batch) == ([1.0], ["a"], False)
        assert hasattr(calls, "versions") == ("weight_version" in more)
        assert hasattr(calls, "finish_reasons") == ("finish_reason" in more)


def names_of_rows():
    """Return the column of each path of rows, for the first source that has it."""
    sources = ("columns", *SOURCES)
    paths = {
        path: name
        for source in sources[::-1]
        for name, paths in SOURCES[source].columns.items()
        for path in paths
        if "" in SOURCES[source].calls and "[" not in path
    }
    return {path: name for path, name in paths.items() if name not in ("sequences", "targets")}


ROWS = names_of_rows()

VALUES = {
    "prompts": [1, 2],
    "responses": [3, 4],
    "prompt_lens": 2,
    "response_lens": 2,
    "logprobs": [-0.5, -1.0],
    "loss_mask": [0, 1],
    "labels": [-100, 4],
    "attention_mask": [1] * 4,
    "masked": False,
    "rewards": 0.5,
    "advantages": 2.0,
    "versions": 3,
    "routed_experts": [[[1]]] * 4,
}


@pytest.mark.parametrize("form", FORMS)
@share(10)
@given(st.randoms(use_true_random=False))
def test_no_column_of_a_row_vanishes(form, random):
    """Whatever source is recognised, the names of other sources beside it are read."""
    row, known = {}, {}
    for path, name in random.sample([*ROWS.items()], len(ROWS)):
        key, *below = path.partition("&")[0].split(".")
        is_wanted = name in ("prompts", "responses") or random.random() < 0.3
        if name in known or key in row or not is_wanted:
            continue
        known[name] = VALUES.get(name, "a")
        value = [0, 3] if "&" in path else known[name]
        row[key] = reduce(lambda value, key: {key: value}, below[::-1], value)
    for key in ("id", "request_id", "index"):
        if random.random() < 0.3:
            row[key] = "a" if key != "index" else 0
    for options in ({}, {"prompts": [[1, 2]]}):
        calls = FORMS[form](row, **options)
        for name in ("prompts", "responses", "logprobs", "loss_mask"):
            assert name not in known or getattr(calls, name).to_list() == [known.pop(name)]
        assert "labels" not in known or calls.loss_mask.to_list() == [[0, 1]]
        others = {"labels", "prompt_lens", "response_lens", "attention_mask", "masked"}
        for name in {*known} - others:
            assert getattr(calls, name) is not None, (name, row)


def test_alignment_of_values():
    """Masks and log-probabilities of the response, of the sequence, or of what trains."""
    schema = Schema(prompts="p", responses="r", loss_mask="m", logprobs="l")
    for mask in ([1, 0, 1], [0, 0, 1, 0, 1]):
        for logprobs in ([-1, 0, -2], [0, 0, -1, 0, -2], [-1, -2]):
            body = {"p": [1, 2], "r": [3, 4, 5], "m": mask, "l": logprobs}
            for form in FORMS.values():
                calls = form(body, schema=schema)
                assert rows_of(calls) == [([1, 2], [3, 4, 5], [1, 0, 1], [-1, 0, -2])]
    for wrong in ({"m": [1, 0]}, {"m": [1] * 6}, {"l": [0] * 6}):
        body = {"p": [1, 2], "r": [3, 4, 5], "m": [1, 1, 1], "l": [-1, -1, -1]} | wrong
        for form in FORMS.values():
            with pytest.raises(ValueError, match=r"call 0 has .*, but its response has 3 tokens"):
                form(body, schema=schema)


def test_values_over_padding():
    """They cover the response, or prompt and response."""
    schema = Schema(prompts="p", responses="r", attention_mask="a", loss_mask="m", logprobs="l")
    body = {"p": [0, 7], "r": [3, 4, 5, 0], "a": [0, 1, 1, 1, 1, 0]}
    for mask in ([1, 0, 1, 0], [0, 0, 1, 0, 1, 0]):
        for logprobs in ([-1, 0, -2, 0], [0, 0, -1, 0, -2, 0]):
            for form in FORMS.values():
                calls = form(body | {"m": mask, "l": logprobs}, schema=schema)
                assert rows_of(calls) == [([7], [3, 4, 5], [1, 0, 1], [-1, 0, -2])]


@pytest.mark.parametrize("form", FORMS)
def test_rewards_advantages_and_labels_over_padding(form):
    schema = Schema(
        prompts="p", responses="r", attention_mask="a", labels="l",
        rewards="token_level_rewards", advantages="advantages",
    )  # fmt: skip
    body = {"p": [0, 7], "r": [3, 4, 5, 0], "a": [0, 1, 1, 1, 1, 0]}
    body |= {"token_level_rewards": [0, 0, 2.5, 0], "advantages": [1, 2, 3, 0]}
    calls = FORMS[form](body | {"l": [-100, 4, 5, -100]}, schema=schema)
    assert calls.rewards.to_list() == [[0, 0, 2.5]]
    assert calls.advantages.to_list() == [[1, 2, 3]]
    assert calls.loss_mask.to_list() == [[0, 1, 1]]
    with pytest.raises(ValueError, match=r"5 rewards, but its response has 3 .* none for padding"):
        FORMS[form](body | {"token_level_rewards": [0] * 5}, schema=schema)


@pytest.mark.parametrize("form", FORMS)
def test_sequences_beside_their_prompt_or_response(form):
    """The other part is what is left of the sequence; a mask may span it, or the response."""
    for padding in ([], [0]):
        row = {"input_ids": [*padding, 1, 2, 5, 6, *padding]}
        row |= {"attention_mask": [int(token > 0) for token in row["input_ids"]]}
        for part in ({"prompt_ids": [*padding, 1, 2]}, {"response_ids": [5, 6, *padding]}):
            calls = FORMS[form](row | part)
            assert (calls.prompts.to_list(), calls.responses.to_list()) == ([[1, 2]], [[5, 6]])
            masks = [0, 1, *padding], [*padding, 0, 0, 0, 1, *padding]
            for mask in masks:
                calls = FORMS[form](row | part | {"loss_mask": mask})
                pairs = zip(calls.responses[0].tolist(), calls.loss_mask[0].tolist(), strict=True)
                assert [token for token, trains in pairs if trains] == [6]
    for part in ({"prompt_ids": [1, 3]}, {"response_ids": [5]}, {"prompt_ids": [1, 2, 3, 4]}):
        with raises("call 0 has a sequence that does not begin with its prompt, or end with its"):
            FORMS[form]({"input_ids": [1, 2, 3]} | part)


def test_padding_of_sequences():
    """It is removed before the prompt, and behind the response."""
    schema = Schema(
        sequences="s", attention_mask="a", loss_mask="m", logprobs="l",
        prompt_lens="p", response_lens="r",
    )  # fmt: skip
    padded = {"s": [0, 7, 3, 4, 0], "a": [0, 1, 1, 1, 0]}
    masked = {"m": [0, 0, 1, 1, 0], "l": [0, 0, -1, -2, 0]}
    behind = {"s": [7, 3, 4, 0], "a": [1, 1, 1, 0], "l": [0, -1, -2, 0]}
    for form in FORMS.values():
        for body in (padded | masked, behind | {"p": 1}, behind | {"p": 1, "m": [1, 1, 0]}):
            assert rows_of(form(body, schema=schema)) == [([7], [3, 4], [1, 1], [-1, -2])]
        for length in ({"p": 1}, {"r": 2}, {"p": 2} | masked):
            with pytest.raises(ValueError, match=r"call 0 has padding, so .* leave out tokens"):
                form(padded | length, schema=schema)
        with pytest.raises(ValueError, match=r"attention mask of 4 items, but .* have 5 tokens"):
            form(padded | {"a": [1] * 4}, schema=schema)
    labels = [-100, -100, 3, 4, -100]
    for form in FORMS.values():
        body = {"input_ids": padded["s"], "attention_mask": padded["a"], "labels": labels}
        calls = form(body, schema="columns")
        assert (calls.prompts.to_list(), calls.responses.to_list()) == ([[7]], [[3, 4]])


@pytest.mark.parametrize("known", [{"prompt_len": 1}, {"loss_mask": [0, 1, 1]}])
def test_sequences_that_would_train_their_prompts(known):
    """If other calls say where theirs end."""
    ids = {"input_ids": [5, 6, 7]}
    assert rows_of(read([ids, ids])) == [([], [5, 6, 7], [1] * 3, None)] * 2
    others = {"prompt_ids": [5], "response_ids": [6, 7]}
    for rows in ([ids | known, ids], [ids, ids | known], [ids, others]):
        for form in (read, lambda rows: parse([json.dumps(row).encode() for row in rows])):
            with pytest.raises(ValueError, match="neither the length of its prompt nor a loss"):
                form(rows)


@pytest.mark.parametrize(
    "text", ["token_id:3x", "token_id:", "token_id:03", "token_id:3.0", "3", None]
)
def test_texts_that_are_no_ids(text):
    """Their tokens are not compared with the response."""
    schema = Schema(prompts="p", responses="r", logprobs="l", logprob_tokens="t")
    for form in FORMS.values():
        calls = form({"p": [1], "r": [9], "l": [-1.0], "t": [text]}, schema=schema)
        assert rows_of(calls) == [([1], [9], [1], [-1.0])]


@pytest.mark.parametrize("path", ["t", "t[].t"])
@pytest.mark.parametrize("gap", ["x", None])
def test_texts_that_are_no_ids_keep_their_places(path, gap):
    schema = Schema(prompts="p", responses="r", logprob_tokens=path)
    texts = ["token_id:7", gap, "token_id:9"]
    body = {"p": [1], "t": [{"t": text} for text in texts] if "[]" in path else texts}
    for form in FORMS.values():
        assert rows_of(form(body | {"r": [7, 8, 9]}, schema=schema))[0][1] == [7, 8, 9]
        with pytest.raises(ValueError, match="token 2 is 9, but 6 in the response"):
            form(body | {"r": [7, 8, 6]}, schema=schema)
        with pytest.raises(ValueError, match="no token ids of a response"):
            form(body, schema=schema)


@pytest.mark.parametrize("form", ["bytes", "dictionaries", "table"])
def test_labels_are_the_loss_mask(form):
    """Those of datasets for transformers' trainers: -100, or the token itself."""

    def form_of(rows):
        if form == "bytes":
            return parse([json.dumps(row).encode() for row in rows])
        return read(rows if form == "dictionaries" else pa.Table.from_pylist(rows))

    ids = {"input_ids": [1, 2, 3]}
    all_labels = [-100, 2, 3], [-100, -100, -100], [1, -100, 3], [-100, 2, -100]
    calls = form_of([{**ids, "labels": labels} for labels in all_labels])
    assert [row[:3] for row in rows_of(calls)] == [
        ([1], [2, 3], [1, 1]),
        ([1, 2, 3], [], []),
        ([], [1, 2, 3], [1, 0, 1]),
        ([1], [2, 3], [1, 0]),
    ]
    assert not hasattr(calls, "labels")
    values = {"logprobs": [0.0, -1.0, -2.0], "rewards": [0.0, 0.0, 1.0]}
    calls = form_of([{**ids, "labels": [-100, 2, 3], **values}])
    assert rows_of(calls) == [([1], [2, 3], [1, 1], [-1, -2])]
    assert calls.rewards.to_list() == [[0, 1]]
    parts = {"prompt_ids": [1], "response_ids": [2, 3]}
    for labels in ([-100, -100, 3], [-100, 3]):
        assert rows_of(form_of([{**parts, "labels": labels}]))[0][:3] == ([1], [2, 3], [0, 1])
    weights = form_of([{**ids, "labels": [-100, 2, 3], "loss_mask": [0, 0.5, 1]}])
    assert weights.loss_mask.to_list() == [[0.5, 1]]
    for wrong, message in [
        ({**ids, "labels": [2, 3, -100]}, "has the label 2 for response token 0, which is 1"),
        ({**parts, "labels": [1, 2, 3]}, "labels train tokens of prompts"),
        ({**ids, "labels": [-100, 2, 3], "loss_mask": [0, 1, 0]}, "with a loss mask of 0"),
        ({**ids, "labels": [-100, 2]}, "has 2 labels, but its response has 3 tokens"),
    ]:
        with pytest.raises(ValueError, match=message):
            form_of([wrong])


@pytest.mark.parametrize(
    ("items", "of_objects"),
    [
        ([{"t": [3, 4]}, {}], "where items have a list each, or a value"),
        ([{"t": [3, 4]}, {"t": 5}], "where items have a list each, or a value"),
        ([{"t": [3], "m": 1}, {"t": []}], "has NaN at item 1 of its loss mask"),
    ],
)
def test_items_that_lack_a_value(items, of_objects):
    schema = Schema(prompts="p", responses="items[].t", loss_mask="items[].m")
    for form in ("bytes", "dictionaries", "objects"):
        message = "items of this array have no value" if form == "bytes" else of_objects
        with pytest.raises(ValueError, match=message):
            FORMS[form]({"p": [1], "items": items}, schema=schema)


def test_optional_items_of_other_kinds_hold_no_calls():
    histories = BODIES["art"]["histories"]
    for form in ("bytes", "dictionaries", "objects"):
        body = {"trajectories": ["text", 3, None, {"histories": histories}]}
        assert rows_of(FORMS[form](body, schema="art")) == EXPECTED["art"]


def test_log_probabilities_without_an_id():
    """Those behind them are compared with their own tokens."""
    schema = Schema(prompts="p", responses="r", logprobs="i[].l", logprob_ids="i[].id")
    for last, is_wrong in ((5, False), (6, True)):
        items = [{"l": -1, "id": 3}, {"l": -2}, {"l": -3, "id": last}]
        body = json.dumps({"p": [1], "r": [3, 4, 5], "i": items}).encode()
        if is_wrong:
            with pytest.raises(ValueError, match="token 2 is 6, but 5 in the response"):
                parse([body], schema)
        else:
            assert parse([body], schema).logprobs.to_list() == [[-1, -2, -3]]


def test_bad_log_probabilities_of_tokens_that_train_count():
    body = {"p": [1], "r": [2, 3, 4], "m": [1, 0, 1], "l": [-1.0, None, math.nan]}
    schema = Schema(prompts="p", responses="r", loss_mask="m", logprobs="l")
    for form in FORMS.values():
        if form is FORMS["arrays"]:
            continue
        with raises("call 0 has the invalid log-probability NaN at response token 2"):
            form(body, schema=schema)
        calls = form(body, schema=schema, bad_logprobs="mask")
        assert rows_of(calls) == [([1], [2, 3, 4], [1, 0, 0], [-1, 0, 0])]
        assert calls.bad_logprobs.sum() == 1


def test_weights_stay_floats():
    schema = Schema(prompts="p", responses="r", loss_mask="m")
    calls = parse([b'{"p": [1], "r": [2, 3], "m": [0.5, 0]}'], schema)
    assert calls.loss_mask.to_list() == [[0.5, 0.0]]
    assert calls.loss_mask.dtype == np.float32


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0])
def test_masks_that_are_not_weights(weight):
    columns = Schema(prompts="p", responses="r", loss_mask="m")
    for form in FORMS.values():
        with raises(r"call 0 has .* at item 1 of its loss mask, whose values are"):
            form({"p": [1], "r": [2, 3], "m": [1.0, weight]}, schema=columns)
    with pytest.raises(ValueError, match=r"loss_mask\[1\]\[0\] is .*; pass weights, finite and"):
        Calls([[1], [1]], [[2], [3]], loss_mask=[[1.0], [weight]])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tokens": [1, 2], "response_length": 3}, "has 3 response tokens, but its sequence has 2"),
        ({"tokens": [1, 2], "response_length": -1}, "-1"),
    ],
)
def test_sequences_that_are_shorter(body, message):
    for form in FORMS.values():
        with pytest.raises(ValueError, match=message):
            form(body, schema="slime")


def test_shifted_sequences():
    def datum(targets, **more):
        return {
            "model_input": {"chunks": [{"tokens": [1, 2]}]},
            "loss_fn_inputs": {"target_tokens": {"data": targets}, **more},
        }

    for form in FORMS.values():
        with pytest.raises(ValueError, match="has targets that are not its sequence"):
            form(datum([3, 4], weights={"data": [0.0, 1.0]}), schema="tinker")
        with pytest.raises(ValueError, match="has targets, but neither weights nor a mask"):
            form(datum([2, 3]), schema="tinker")
        # The first token has no prediction: it is the prompt's, whatever its length.
        own = Schema(sequences="s", targets="t", loss_mask="m", prompt_lens="n")
        body = {"s": [1, 2], "t": [2, 3], "m": [1, 1], "n": 0}
        calls = form(body, schema=own)
        assert (calls.prompts.to_list(), calls.responses.to_list()) == ([[1]], [[2, 3]])


def test_a_call_has_one_length():
    """Lengths and flags do not lie below items, of which a call may have several."""
    for name in ("prompt_lens", "trains"):
        with pytest.raises(ValueError, match=r"'parts\[\].n' has several values for a call"):
            Schema(sequences="s", **{name: "parts[].n"})
    schema = Schema(sequences="s", prompt_lens="n", trains="t")
    for wrong in ({"n": [1]}, {"t": [1]}):
        for form in FORMS.values():
            with pytest.raises((TypeError, ValueError), match=r"line 1|\[0\]|row 0"):
                form({"s": [1, 2, 3], "n": 1, "t": 1} | wrong, schema=schema)


def test_traces_that_write_json_are_read_as_objects():
    """Their JSON may have fewer digits, as that of verifiers has."""

    class Model(SimpleNamespace):
        def model_dump_json(self):
            raise AssertionError("the JSON of a trace is not read")

    body = Model(**as_objects(BODIES["verl"]).__dict__)
    for options in ({}, {"schema": "verl"}):
        assert rows_of(read([body], **options)) == EXPECTED["verl"]
