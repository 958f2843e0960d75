"""Keys of samples: other names, unknown ones, and what cannot be collated."""

import pickle
import re

import numpy as np
import pytest
from collator_samples import LABELLED, MASKS, PAIRS, TURNS, columns_of, refuses
from making import make_batch
from raising import raises

import fastcollate as fc
from fastcollate.testing.reference import assert_same, collate_loops

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
    expected = make_batch(
        NAMED["question_ids"],
        NAMED["completion_ids"],
        uids=NAMED["gid"],
        advantages=NAMED["adv"],
        logprobs=NAMED["lp"],
    )
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
    ("options", "pattern"),
    [
        ({"columns": ["a"]}, r"TypeError: columns is \['a'\] .*pass a mapping"),
        ({"columns": {1: "prompt"}}, "TypeError: columns has 1: 'prompt'; pass strings"),
        ({"columns": {"a": 1}}, "TypeError: columns has 'a': 1; pass strings"),
        ({"columns": {"a": "x"}}, r"columns\['a'\] is 'x'; pass one of \['prompt',"),
        (
            {"columns": {"prompt": "q", "response": "a"}},
            r"columns\['prompt'\] is 'q'; .*: pass columns={'q': 'prompt', 'a': 'response'}$",
        ),
        ({"columns": {"a": "promts"}}, "did you mean 'prompts'"),
        ({"columns": {"a": "prompt", "b": "prompts"}}, "two keys for 'prompts', 'a' and 'b'"),
        ({"columns": {"a": "prompt"}, "ignore": ["a"]}, "'a', but ignore has it"),
        (
            {"columns": {"a": "uid"}, "fields": {"x": fc.PerRow("a")}},
            r"columns has 'a', but fields\['x'\] reads it",
        ),
    ],
)
def test_columns_that_cannot_be(options, pattern):
    with raises(pattern):
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
        "'mask' and 'score', which are not known (tokenize text in 'gid' and 'text' first, or keep "
        "it by fields={'gid': fc.PerRow('gid')}); pass columns={'question_ids': 'prompts', "
        "'completion_ids': 'responses', 'adv': 'advantages', 'mask': 'loss_mask', 'score': "
        "'rewards'}, fields={'lp': fc.Field('lp')} and ignore=['gid', 'text'], or "
        "ignore=['question_ids', "
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
        ({"prompt": [1], "response": [2], "tool_mask": [1]}, "columns={'tool_mask': 'loss_mask'}"),
        (
            {"prompts": [1], "responses": [2]},
            "columns={'prompts': 'prompt', 'responses': 'response'}, or",
        ),
        (
            {"prompt": [1], "response": [2], "versions": [1], "routes": [[[0]], [[0]]]},
            "{'versions': fc.WeightVersions('versions'), 'routes': fc.RoutedExperts('routes')}",
        ),
        (
            {"tokens": [1, 2], "mask": [0, 1], "generation_logprobs": [0.0, -1.0]},
            "{'tokens': 'sequences', 'mask': 'loss_mask', 'generation_logprobs': 'logprobs'}",
        ),
        (
            {"label": True, "prompt_ids": [1], "completion_ids": [2]},
            "columns={'completion_ids': 'responses', 'prompt_ids': 'prompts'} and "
            "fields={'label': fc.PerRow('label')}",
        ),
        (
            {"prompt_input_ids": [3], "chosen_input_ids": [1], "rejected_input_ids": [2]},
            "columns={'prompt_input_ids': 'prompt_ids', 'chosen_input_ids': 'chosen_ids', "
            "'rejected_input_ids': 'rejected_ids'}",
        ),
        (
            {"tokens": [1, 2], "response_length": 1},
            "(for 'response_length' pass 'prompt_len', the number of tokens before the response)",
        ),
    ],
)
def test_advice_for_names_of_other_libraries(sample, advice):
    with pytest.raises(ValueError, match=re.escape(advice)):
        fc.Collator(pad_token_id=0)([sample])


def test_keys_that_some_samples_lack():
    for key, value, default in ("labels", [1], ""), ("rewards", 1.0, ", or as a field with a def"):
        samples = [{"input_ids": [1], key: value}, {"input_ids": [1]}]
        with pytest.raises(ValueError, match=f"has no '{key}', .* or in none({default}|$)"):
            fc.Collator(pad_token_id=0)(samples)
    with pytest.raises(ValueError, match="samples have text in 'completion', but no token ids"):
        fc.Collator(pad_token_id=0)([{"prompt": "What", "completion": "This"}])
    with pytest.raises(ValueError, match=r"'response_ids', but .*json\.loads, and pass the ids as"):
        fc.Collator(pad_token_id=0)([{"prompt_ids": "[1, 2]", "response_ids": "[3]"}])
    messages = {"messages": [{"role": "user", "content": "What"}]}
    for sample in messages, {**messages, "score": 1.0}:
        with pytest.raises(ValueError, match=r"; apply the chat template first.*'assistant_masks'"):
            fc.Collator(pad_token_id=0)([sample])


@pytest.mark.parametrize("key", ["prompt", "response"])
def test_text_is_not_token_ids(key):
    sample = {"prompt": [1], "response": [2], key: "What is"}
    for samples in ([sample], columns_of([sample])):
        with pytest.raises(TypeError, match=f"^{key} holds text, 'What is', .*tokenize it first"):
            fc.Collator(pad_token_id=0)(samples)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (
            {"loss_masks": [1]},
            r"'loss_masks', which .* pass columns={'loss_masks': 'loss_mask'}, or ignore=",
        ),
        ({"text": "hi"}, r"'text', which .*ignore=\['text'\]"),
        ({"input_ids": [1]}, "'input_ids' besides 'prompt' and 'response'; leave it out"),
        ({"labels": [1]}, "'labels' beside"),
    ],
)
def test_keys_without_a_meaning(change, pattern):
    samples = [{"prompt": [1], "response": [2], **change}]
    refuses(samples, pattern)
    refuses(columns_of(samples), pattern)
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
        (TOKENS, "abc", " or keep it by fields={'x': fc.PerRow('x')}); pass ignore=['x']"),
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
    ("samples", "pattern"),
    [
        ([], "samples is empty"),
        ({}, "no tokens"),
        (3, "TypeError: samples is 3 .*pass a list of dicts"),
        ("text", "TypeError: pass a list of dicts"),
        ([[1, 2]], r"TypeError: samples\[0\] is \[1, 2\] \(list\); pass a mapping"),
        ([TURNS[0], None], r"TypeError: samples\[1\] is None"),
        (
            [{"input_ids": [1, 2], "position_ids": [0, 0], "seqlens": [1, 1]}],
            "for packed samples pass the lengths of their sequences as 'seq_lengths'",
        ),
        ([{"input_ids": [1, 2], "attention_mask": [1, 2]}], "or packed .* as 'seq_lengths'"),
        ([{"prompt": [1]}], "no 'response'"),
        ([{"response": [1]}], "no 'prompt'"),
        ([{"rewards": [1]}], r"no tokens; .*\['rewards'\]"),
        (
            [{"input_ids": [1], "prompt_len": 1, "labels": [1]}],
            "'prompt_len' and 'labels', which both mark .*; pass one",
        ),
        (
            [{"input_ids": [1], "prompt_len": 1, "assistant_masks": [1]}],
            "'prompt_len' and 'assistant_masks', which both mark",
        ),
        (
            [{"input_ids": [1], "assistant_masks": [1], "loss_mask": [1]}],
            "'loss_mask' and 'assistant_masks', which both mark",
        ),
        (
            [{"prompt_ids": [1], "chosen_ids": [2]}],
            "have 'prompt_ids', but no 'rejected_ids'; pass 'prompt_ids', 'chosen_ids' and 'rej",
        ),
        ([{"rejected_ids": [1]}], "no 'prompt_ids'; .*prompt_ids=.. for whole sequ"),
        ([PAIRS[0], {"prompt_ids": [1]}], r"samples\[1\] has no 'chosen_ids', but"),
        ([{**PAIRS[0], "input_ids": [1]}], "pairs, .* but 'input_ids' belongs to one"),
        ([{**PAIRS[0], "rewards": 1}], r"'rewards' belongs to one row; .*fc.Field\("),
        ([{**PAIRS[0], "chosen_ids": [0.5]}], r"TypeError: chosen_ids\[0\]\[0\] is 0.5"),
        ([{**PAIRS[0], "score": 1}], "'score', which is not known"),
        (
            [{"prompt": [1], "response": [2], "completion_mask": [0, 1]}],
            "'completion_mask' besides 'prompt' and 'response'; pass columns={'completion_mask': "
            "'loss_mask'} if it is along the response, or name it in ignore",
        ),
        (
            [{"prompt": [1], "response": [2], "completion_mask": [0], "loss_mask": [0]}],
            "'completion_mask' besides 'prompt' and 'response'; leave it out, or name it in ign",
        ),
        ([{"input_ids": [1], "labels": [1], "loss_mask": [1]}], "'loss_mask' and 'lab"),
        (
            [{"prompt": [1], "response": [2], "uid": 1}, {"prompt": [1], "response": [2]}],
            r"samples\[1\] has no 'uid', but samples\[0\] has",
        ),
        (
            [{"prompt": [1], "response": [2]}, {"prompt": [1], "response": [2], "uid": 1}],
            r"samples\[0\] has no 'uid', but samples\[1\] has",
        ),
        (
            [{"prompt": [1], "response": [2]}, {"prompt": [1], "response": [2], "nonsense": 1}],
            "'nonsense', which is not known; pass",
        ),
        (
            [{"input_ids": [1]}, {"ids": [1]}],
            r"samples\[1\] has no 'input_ids', but samples\[0\] has",
        ),
        (
            [{"prompt": [1], "response": [2, 3], "logprobs": [0]}],
            r"logprobs\[0\] has 1 item, but responses\[0\] has 2",
        ),
    ],
)
def test_bad_samples(samples, pattern):
    refuses(samples, pattern)


GOOD = {"input_ids": [1, 2], "labels": [-100, 2], "attention_mask": [1, 1], "prompt_len": 1}

GOOD |= {key: [0, 1] for key in MASKS}

BAD_MASKS = [
    ([0], ValueError, r" has 1 item, but input_ids\[1\] has 2; pass one value per tok"),
    ([0, 2], ValueError, r"\[1\] is 2; pass 1 for tokens that train and 0 for others"),
    ([-1, 1], ValueError, r"\[0\] is -1; pass 1"),
    ([0, 0.5], TypeError, r"\[1\] is 0.5"),
    (None, TypeError, " is None"),
]


@pytest.mark.parametrize(
    ("key", "bad", "exception", "pattern"),
    [
        ("labels", [-100, 3], ValueError, r"\[1\] is 3, but input_ids\[1\]\[1\] is 2"),
        ("labels", [2], ValueError, r" has 1 item, but input_ids\[1\] has 2"),
        ("labels", 3, TypeError, " is 3"),
        ("labels", [0.5, 2], TypeError, r"\[0\] is 0.5"),
        ("input_ids", ["a", 2], TypeError, r"\[0\] is 'a'"),
        ("attention_mask", [1, 0], ValueError, r"\[1\] is 0.*padded"),
        ("attention_mask", [1], ValueError, " has 1 item"),
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
    with pytest.raises(exception, match=rf"{key}\[1\]{pattern}"):
        fc.Collator(pad_token_id=0, array_type="numpy")([good, {**good, key: bad}])


@pytest.mark.parametrize(
    ("columns", "pattern"),
    [
        ({"input_ids": [[1]], "labels": [[1], [2]]}, "labels has 2 rows, but input_ids"),
        ({"input_ids": [[1]], "prompt_len": [1, 1]}, "prompt_len has 2 rows, but inp"),
        ({"input_ids": [[1]], "prompt_len": 1}, "TypeError: prompt_len is 1; pass the number of"),
        ({"prompt": [[1]], "response": [[1], [2]]}, "responses has 2 rows"),
        ({"input_ids": np.zeros((1, 2)), "prompt_len": [1]}, "TypeError: input_ids holds float64"),
        ({"input_ids": 3, "prompt_len": [1]}, "TypeError: input_ids cannot be read"),
        ({"prompt": [1], "response": [2]}, "samples is one sample: its 'prompt'"),
        (PAIRS[0], "samples is one sample: its 'prompt_ids'"),
        (
            {"prompt_ids": [[1]], "chosen_ids": [[1]], "rejected_ids": [[1], [2]]},
            "rejected_ids has 2 rows, but prompt_ids has 1; pass one row per sample",
        ),
        ({"input_ids": np.arange(2), "prompt_len": 1}, "pass a list of samples"),
    ],
)
def test_bad_columns(columns, pattern):
    refuses(columns, pattern)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"pad_token": 3}, "TypeError: no argument 'pad_token'; pass the .* as pad_token_id"),
        ({"rewards": [1]}, "TypeError: no argument 'rewards'.*come with the samples"),
        ({"x": None}, r"TypeError: no argument 'x'; pass some of pad_token_id, "),
        ({"layout": "up"}, "layout"),
        ({"pad_to": 8}, r"TypeError: pass layout=fc.Left\(pad_to="),
        ({"array_type": "list"}, "array_type"),
        ({"fields": [1]}, "TypeError: fields is"),
        ({"fields": {"a": "a"}}, r"TypeError: fields\['a'\] is 'a' .*fc.Field\('a'\)"),
        ({"fields": {"a": fc.Field([[1]])}}, r"TypeError: fields\['a'\] holds .*fc.Field\('a'\)"),
        ({"fields": {"a": fc.PerRow(("x", 1))}}, r"TypeError: fields\['a'\] holds .*PerRow\('a'\)"),
        ({"fields": {"a": fc.PerRow([1])}}, r"TypeError: fc.PerRow\('a'\)"),
        ({"ignore": "text"}, r"TypeError: ignore is 'text'; pass .* ignore=\['text'\]"),
        ({"ignore": [3]}, "TypeError: ignore has 3"),
        ({"outputs": "labels"}, "TypeError: outputs is 'labels'"),
        ({"outputs": ["labels", "labels"]}, "outputs has 'labels' twice"),
        (
            {"outputs": {"labels": "x", "input_ids": "x"}},
            r"outputs\['input_ids'\] has the name 'x', which outputs\['labels'\] has too; pass",
        ),
        ({"outputs": {"labels": ["x", "x"]}}, r"outputs\['labels'\] has the name 'x',"),
        ({"outputs": {"labels": 3}}, r"TypeError: outputs\['labels'\] is 3"),
        ({"outputs": {"labels": [3]}}, r"TypeError: outputs\[.labels.\] has 3; pass strings as"),
        ({"outputs": {3: "x"}}, "TypeError: outputs has 3; pass strings as keys"),
    ],
)
def test_bad_options(options, pattern):
    with raises(pattern):
        fc.Collator(**{"pad_token_id": 0, "array_type": "numpy", **options})


TWO_KEYS = {"adv": fc.Field(("logprobs", "rewards"))}
NO_OUTPUT = r"outputs has 'cu_seq_lens_q', .* pass some of \['attention_mask', .*from these to"


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (LABELLED, {"outputs": ["cu_seq_lens_q"]}, NO_OUTPUT),
        (LABELLED, {"outputs": {"cu_seq_lens_q": "cu_seqlens"}}, NO_OUTPUT),
        (
            TURNS,
            {"fields": {"adv": fc.Field("x")}},
            "fields.'adv'. reads 'x', which samples do not",
        ),
        (TURNS, {"fields": TWO_KEYS}, "fields.'adv'. reads two keys, .* pass one key"),
        (PAIRS, {"fields": TWO_KEYS}, "fields.'adv'. reads 'logprobs', which samples do"),
        (
            [{"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3], "a": 1}],
            {"fields": {"completion_mask": fc.PerRow("a")}},
            r"two outputs would be 'completion_mask': .* fields\['",
        ),
    ],
)
def test_samples_that_options_do_not_fit(samples, options, message):
    refuses(samples, message, **options)


@pytest.mark.parametrize(
    ("fields", "sample", "message"),
    [
        (
            {"loss_mask": fc.Field("other")},
            {"loss_mask": [1, 0], "other": [0, 1]},
            "samples have 'loss_mask', and fields['loss_mask'] reads 'other' for the same output; "
            "leave the field out, or name 'loss_mask' in ignore",
        ),
        (
            {"kept": fc.Field("loss_mask"), "loss_mask": fc.Field("other")},
            {"loss_mask": [1, 0], "other": [0, 1]},
            "samples have 'loss_mask', and fields['loss_mask'] reads 'other' for the same output",
        ),
        (
            {"loss_mask": fc.PerRow("other")},
            {"loss_mask": [1, 0], "other": 1},
            "samples have 'loss_mask', and fields['loss_mask'] reads 'other' for the same output",
        ),
        (
            {"loss_mask": fc.RoutedExperts("loss_mask")},
            {"loss_mask": [[[1]], [[0]]]},
            "TypeError: fields['loss_mask'] is an fc.RoutedExperts, but a loss mask has one value "
            "per token; pass fc.Field",
        ),
        (
            {"loss_mask": fc.PerRow("other")},
            {"other": 1},
            "TypeError: fields['loss_mask'] is an fc.PerRow, but a loss mask has one value per "
            "token",
        ),
    ],
)
def test_two_loss_masks_and_those_of_other_fields(fields, sample, message):
    collate = fc.Collator(pad_token_id=0, fields=fields, array_type="numpy")
    with raises(message, is_text=True):
        collate([{"prompt": [1], "response": [2, 3], **sample}])


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


def test_samples_whose_keys_a_trainer_removed():
    with pytest.raises(ValueError, match=r"none is there; .* pass remove_unused_columns=False\)$"):
        fc.Collator(pad_token_id=0)([{}, {}])


def test_unknown_columns_of_polars():
    """Whose error for a column that is not there is neither a KeyError nor a TypeError."""
    pl = pytest.importorskip("polars")
    table = pl.DataFrame({"prompt": [[1]], "response": [[2]], "temperature": [1.0]})
    with pytest.raises(
        ValueError, match=r"pass fields={'temperature': fc\.PerRow\('temperature'\)}"
    ):
        fc.Collator(pad_token_id=0)(table)
