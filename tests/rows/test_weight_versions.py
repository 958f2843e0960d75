"""Weight versions of response tokens: every form, and tokens that are too old to train."""

import pickle
import re

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from strategies import rollouts
from ways import by_builder

import fastcollate as fc
from fastcollate.blocks.storing import store
from fastcollate.rollouts import Calls
from fastcollate.testing.reference import assert_same

PROMPTS, RESPONSES = [[1], [1, 2, 3, 4], [5]], [[2, 3], [5], [6, 7, 8]]
OPTIONS = {"pad_token_id": 0, "array_type": "numpy"}


def span(version, start, end):
    return {"version": version, "start": start, "end": end}


def build(field, **options):
    options = {**OPTIONS, "layout": "right", **options}
    return fc.build_batch(PROMPTS, RESPONSES, fields={"versions": field}, **options)


WRITTEN = [[3, 3, -1], [5, -1, -1], [-1, -1, -1]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([3, 5, None], WRITTEN),
        (np.array([3, 5, -1]), WRITTEN),
        (["3", "5", None], WRITTEN),
        (["b", "5", None], [[0, 0, -1], [1, -1, -1], [-1, -1, -1]]),
        ([[3, 3], [5], None], WRITTEN),
        (fc.ragged([[3, 3], [5], [-1, -1, -1]]), WRITTEN),
        ([[(3, 0, 2)], [("5", 0, 1)], []], WRITTEN),
        (
            [
                None,
                [],
                [{"version": 4, "start": 0, "end": 1}, {"version": 6, "start": 2, "end": 3}],
            ],
            [[-1] * 3, [-1] * 3, [4, -1, 6]],
        ),
    ],
)
def test_forms_written_out(rows, expected):
    batch = build(fc.WeightVersions(rows))
    assert_same({"x": batch.versions}, {"x": np.array(expected, np.int32)})
    assert not any("lag" in key for key in batch.metrics)


@NEEDS_TORCH
def test_rows_and_columns_of_tensors():
    import torch

    rows = [torch.tensor([3, 3]), torch.tensor([5])]
    for last, expected in ((None, [-1] * 3), (torch.tensor([4, 5, 6]), [4, 5, 6])):
        found = build(fc.WeightVersions([*rows, last])).versions
        assert_same({"x": found}, {"x": np.array([*WRITTEN[:2], expected], np.int32)})
    per_row = build(fc.WeightVersions(torch.tensor([3, 5, -1]))).versions
    assert_same({"x": per_row}, {"x": np.array(WRITTEN, np.int32)})
    with pytest.raises(TypeError, match="versions has versions of float32; pass integers"):
        build(fc.WeightVersions([torch.ones(2), torch.ones(1), torch.ones(3)]))


def test_samples_of_whole_sequences_and_of_pairs():
    """Their tokens are spans of larger arrays."""
    field = fc.WeightVersions("version", current=7, max_lag=1)
    options = {**OPTIONS, "layout": "right", "fields": {"version": field}}
    samples = [
        {"input_ids": [1, 2, 3], "prompt_len": 1, "version": 7},
        {"input_ids": [4, 5], "prompt_len": 1, "version": 2},
    ]
    batch = fc.Collator(**options)(samples)
    assert batch.loss_mask.tolist() == [[1, 1], [0, 0]]
    assert batch.version.tolist() == [[7, 7], [2, -1]]
    pairs = [{"prompt_ids": [1], "chosen_ids": [2, 3], "rejected_ids": [4], "version": 5}]
    assert fc.Collator(**options)(pairs).loss_mask.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("form", [list, np.array])
def test_versions_of_whole_sequences(form):
    """As of samples whose responses follow from a mask."""
    responses = [[3, 7], [5], [-1, 2, 7]]
    rows = [form([0] * len(prompt) + row) for prompt, row in zip(PROMPTS, responses, strict=True)]
    options = {"current": 7, "max_lag": 3}
    expected = build(fc.WeightVersions(responses, **options))
    found = build(fc.WeightVersions(rows, **options))
    assert_same(found, expected)
    assert found.metrics == expected.metrics
    columns = {"prompts": PROMPTS, "responses": RESPONSES}
    columns["fields"] = {"versions": fc.WeightVersions(rows, **options)}
    assert_same(by_builder(columns, **OPTIONS, layout="right"), expected)
    collate = fc.Collator(
        **OPTIONS, layout="right", fields={"versions": fc.WeightVersions("v", **options)}
    )
    samples = [
        {"input_ids": prompt + response, "v": row,
         "completion_mask": [0] * len(prompt) + [1] * len(response)}
        for prompt, response, row in zip(PROMPTS, RESPONSES, rows, strict=True)
    ]  # fmt: skip
    found = collate(samples)
    assert found.loss_mask.tolist() == expected.loss_mask.tolist()
    assert found.versions.tolist() == expected.versions.tolist()


def test_lag_written_out():
    spans = [[(3, 0, 1), (6, 1, 2)], [(5, 0, 1)], [(2, 1, 3)]]
    field = fc.WeightVersions(spans, current=7, max_lag=3)
    batch = build(field, labels="aligned")
    assert batch.loss_mask.tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]
    assert batch.versions.tolist() == [[3, 6, -1], [5, -1, -1], [-1, 2, 2]]
    assert batch.labels.tolist() == [
        [-100, -100, 3, *[-100] * 2],
        [*[-100] * 4, 5],
        [-100, 6, *[-100] * 3],
    ]
    found = {key: one for key, one in batch.metrics.items() if "versions" in key}
    assert found == {
        "batch/versions_lag_mean": (4 + 1 + 2 + 5 + 5) / 5,
        "batch/versions_lag_max": 5.0,
        "batch/versions_stale_tokens": 3.0,
        "batch/versions_stale_fraction": 3 / 5,
    }
    for again in (
        pickle.loads(pickle.dumps(batch)),
        batch.to_layout("left"),
        batch.to_layout("jagged"),
    ):
        assert {key: again.metrics[key] for key in found} == found


@pytest.mark.parametrize(
    "mask",
    [
        [[2, 1], [0], [1, 1, 3]],
        fc.Field([[9, 2, 1], [9] * 4 + [0], [9, 1, 1, 3]], align="sequence"),
        [[2.0, 1], [0], np.array([1, 1, 3])],
    ],
)
def test_a_loss_mask_keeps_its_weights(mask):
    field = fc.WeightVersions([[1, 9], [9], [9, 1, 9]], current=9, max_lag=1)
    batch = build(field, loss_mask=mask)
    assert batch.loss_mask.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 3]]


def merged(prompts, responses, versions, current, max_lag, ids, layout):
    field = fc.WeightVersions(versions, current=current, max_lag=max_lag)
    return fc.build_batch(
        prompts,
        responses,
        **OPTIONS,
        fields={"versions": field},
        trajectory_ids=ids,
        merge="exact",
        layout=layout,
    )


def test_merged_rows_have_the_versions_of_each_turn():
    prompts, responses = [[1], [1, 2, 3, 4]], [[2, 3], [5]]
    for versions in ([4, 6], [[4, 4], [6]], [[(4, 0, 2)], [(6, 0, 1)]]):
        batch = merged(prompts, responses, versions, 7, 2, [0, 0], "left")
        assert batch.versions.tolist() == [[4, 4, -1, 6]]
        assert batch.loss_mask.tolist() == [[0, 0, 0, 1]]
        assert batch.metrics["batch/versions_stale_fraction"] == 2 / 3


LAYOUTS = ["left", "right", "two_segment", "jagged", fc.Packed.single_row(), fc.Tree()]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@given(drawn=st.data())
def test_every_layout_is_that_of_plain_fields(layout, drawn):
    data = drawn.draw(rollouts())
    count = len(data.responses)
    versions = [
        [drawn.draw(st.integers(-1, 5)) for _ in range(min(len(row), 20))]
        + [drawn.draw(st.integers(-1, 5))] * max(len(row) - 20, 0)
        for row in data.responses
    ]
    max_lag = drawn.draw(st.sampled_from([None, 0, 2]))
    least = 0 if max_lag is None else 5 - max_lag
    fresh = [[int(one == -1 or one >= least) for one in row] for row in versions]
    mask = drawn.draw(st.booleans())
    given_mask = [[2] * len(row) for row in versions] if mask else None
    spans = [[(one, at, at + 1) for at, one in enumerate(row) if one >= 0] for row in versions]
    rows = drawn.draw(st.sampled_from([versions, spans])) if any(map(any, spans)) else versions
    options = {**OPTIONS, "layout": layout, "labels": None}
    if count > 1 and drawn.draw(st.booleans()):
        lens = [len(p) + len(r) for p, r in zip(data.prompts, data.responses, strict=True)]
        if layout in LAYOUTS[:4]:
            plan = fc.plan_step(lens, dp_size=2, pad_rows="copy_first")
            options["shard"] = plan.shard(0, 1)
    built = fc.build_batch(
        data.prompts,
        data.responses,
        loss_mask=given_mask,
        fields={"versions": fc.WeightVersions(rows, current=5, max_lag=max_lag)},
        **options,
    )
    weights = [[one * (2 if mask else 1) for one in row] for row in fresh]
    expected = fc.build_batch(
        data.prompts,
        data.responses,
        loss_mask=weights if mask or max_lag is not None else None,
        fields={"versions": fc.Field(versions, dtype="int32", fill=-1)},
        **options,
    )
    assert_same(built, expected)


def test_calls_have_versions():
    spans = [[span("3", 0, 2)], None, [span("4", 1, 3)]]
    calls = Calls(PROMPTS, RESPONSES, versions=spans)
    found = fc.build_batch(**calls.batch, **OPTIONS, layout="right")
    assert_same(found, build(fc.WeightVersions(spans)))


def test_workers_number_names_anew():
    with pytest.raises(ValueError, match="versions that each worker numbers anew; pass numbers"):
        store(PROMPTS, RESPONSES, fields={"versions": fc.WeightVersions(["a", "b", "c"])})


def test_tables_of_arrow():
    """One version per row, strings, and spans, as read from a file."""
    pa = pytest.importorskip("pyarrow")
    spans = [[{"version": 4, "start": 0, "end": 1}], None, []]
    for rows in ([5, None, 3], ["5", "4", None], spans, [[5, 5], [4], [3, 3, -1]]):
        table = pa.array(rows)
        for column in (table, pa.chunked_array([table[:1], table[1:]])):
            found = build(fc.WeightVersions(column))
            assert_same(found, build(fc.WeightVersions(rows)))


@NEEDS_TORCH
def test_tensors():
    import torch

    field = fc.WeightVersions(torch.tensor([1, 2, 3]), current=4, max_lag=1)
    batch = build(field, array_type="torch", loss_mask=[torch.ones(len(row)) for row in RESPONSES])
    assert batch.versions.dtype == torch.int32
    assert batch.loss_mask.tolist() == [[0] * 3, [0] * 3, [1] * 3]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([[(1, 0, 2), (2, 1, 2)], [], []], {}, "versions[0] has the span 1 to 2, which is not one"),
        ([[], [(1, 0, 2)], []], {}, "versions[1] has the span 0 to 2, which is not one"),
        ([[], [(1, 0)], []], {}, "versions[1] has (1, 0); pass integers, or spans"),
        ([1, 8, 2], {"current": 7}, "versions[1] is version 8, but current is 7; pass the version"),
        ([[1, 1], [1], [1, 8, 1]], {"current": 7}, "versions[2][1] is version 8, but current is 7"),
        ([1, -2, 2], {}, "versions[1] is version -2; pass 0 to 2147483647, or -1 if unknown"),
        ([1, 2**31, 2], {}, "versions[1] is version 2147483648; pass 0 to 2147483647"),
        (
            np.array([1, 2**63, 2], "u8"),
            {},
            "versions[1] is version 2147483648; pass 0 to 2147483647",
        ),
        ([1, True, 2], {}, "versions[1] has the version True; pass an integer or a string"),
        (["a", "b", "c"], {"current": 7}, "versions has versions that are not numbers"),
        ([1, 2], {}, "versions has 2 rows, but the batch has 3; pass the versions of each row"),
        ([1, 2, 3], {"max_lag": 1}, "max_lag of versions is 1, but current is None"),
        ([1, 2, 3], {"current": 3, "max_lag": -1}, "max_lag of versions is -1"),
        ([[1], [1], [1] * 3], {}, "versions[0] has 1 item, but responses[0] has 2"),
        ([[0.5, 1], [1], [1] * 3], {}, "versions[0] has 0.5; pass integers, or spans"),
        ([5.0, 4, 3], {}, "versions[0] has the version 5.0; pass an integer or a string"),
        ([[], 4.0, [3]], {}, "versions[0] has the version []; pass an integer or a string"),
    ],
)
def test_versions_that_cannot_be(rows, options, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        build(fc.WeightVersions(rows, **options))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 2], [3, "a"]], "versions[1][1] is 'a'; pass an integer for each token"),
        ([[1, 2.5], [3, 4]], "versions[0][1] is 2.5; pass an integer for each token"),
        ([[1, 2], (3, True)], "versions[1][1] is True; pass an integer for each token"),
        ([[2, np.False_], [3, 4]], "versions[0][1] is "),
        (3, "versions is 3; pass integers: one of each row, or a row of one per token"),
        ([{"version": 1}, [3, 4]], "versions[0] has the version {'version': 1}; pass an integer"),
    ],
)
def test_wrong_versions_are_named_by_row_and_token(rows, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        fc.build_batch(
            *([[1], [2]], [[3, 4], [5, 6]]),
            pad_token_id=0,
            fields={"versions": fc.WeightVersions(rows)},
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "of row 1 is 3: one number; pass fc.WeightVersions(3), fc.Field("),
        ([(3, 0, 1)], "pass fc.WeightVersions([(3, 0, 1)]), fc.Field("),
        ([3], "row 1 has versions as Field(align='response'"),
        (fc.WeightVersions(3), "but row 0 as WeightVersions(current=4, max_lag=None); pass"),
    ],
)
def test_rows_of_a_builder_that_are_no_versions(given, message):
    builder = fc.BatchBuilder(pad_token_id=0)
    builder.add([1], [2], fields={"versions": fc.WeightVersions(3, current=4)})
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        builder.add([1], [2], fields={"versions": given})


def test_a_row_without_versions_is_told_so():
    """Their age limit has made the loss mask of the first row."""
    builder = fc.BatchBuilder(pad_token_id=0)
    field = fc.WeightVersions([1], current=3, max_lag=1)
    builder.add([1], [2], fields={"versions": field})
    with pytest.raises(ValueError, match="row 1 has no versions, but row 0 has"):
        builder.add([1], [2])
