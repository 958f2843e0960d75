"""Fields that engines return, against what slime's and miles' own functions make of them."""

import numpy as np
import pytest
from recorded import recorded

import fastcollate as fc

GOLDEN = recorded("engine_fields")
TURNS = [turn for turns in GOLDEN["trajectories"] for turn in turns]
RESULTS = GOLDEN["results"]
SHAPE = (-1, GOLDEN["layers"], GOLDEN["topk"])
BINS = [{"framework": name, **one} for name in RESULTS for one in RESULTS[name]["bins"]]


def arrays(name):
    return [np.array(turn[name], np.int32).reshape(SHAPE) for turn in TURNS]


def build(layout, **options):
    """Merge the turns, of which each captured the routes that were new, and all top-k indices."""
    lens = [len(turns) for turns in GOLDEN["trajectories"]]
    fields = {
        "routes": fc.RoutedExperts(arrays("routes"), starts=[turn["start"] for turn in TURNS]),
        "indexer": fc.Captured(arrays("indexer")),
        "support": fc.Field([turn["support"] for turn in TURNS], ragged=True),
        "versions": fc.WeightVersions([turn["version"] for turn in TURNS]),
    }
    return fc.build_batch(
        [turn["prompt"] for turn in TURNS], [turn["response"] for turn in TURNS],
        logprobs=[turn["logprobs"] for turn in TURNS], fields=fields, layout=layout,
        trajectory_ids=np.repeat(np.arange(len(lens)), lens), merge="exact",
        pad_token_id=0, array_type="numpy", **options,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["left", "right", "two_segment", "jagged"])
def test_samples_of_turns(layout):
    batch = build(layout)
    rows = list(batch.rows())
    for index, (slime, miles) in enumerate(
        zip(RESULTS["slime"]["rows"], RESULTS["miles"]["rows"], strict=True)
    ):
        row = rows[index]
        for sample in (slime, miles):
            assert row["input_ids"].tolist() == sample["tokens"]
            assert row["loss_mask"].tolist() == sample["loss_mask"]
            assert row["logprobs"].tolist() == sample["logprobs"]
            assert row["routes"][:-1].tolist() == sample["routes"]
        assert row["router_padding_mask"].tolist() == [False] * len(slime["routes"]) + [True]
        assert row["indexer"][:-1].tolist() == miles["indexer"]
        assert row["support"].values.tolist() == slime["support"]
        assert row["support"].offsets.tolist() == slime["support_offsets"]
        versions = row["versions"][row["versions"] >= 0]
        assert list(dict.fromkeys(versions.tolist())) == list(map(int, slime["versions"]))
        assert versions.min() == miles["oldest"]


@pytest.mark.parametrize("case", BINS, ids=lambda case: case["framework"])
def test_bins_of_ranks(case):
    size, rank = case["cp"]
    is_chunk = case["allgather"]  # one part of the bin, instead of two of each sequence
    cp = None if is_chunk or size == 1 else (size, rank)
    layout = fc.Packed.single_row(multiple_of=2 * size if cp else 1, shift="next_token")
    if case.get("format") == "bshd":
        layout = fc.Right(multiple_of=8)
    part = build(layout, cp=cp)
    theirs = {key: np.array(case[key]) for key in ("routes", "values") if key in case}
    width = len(next(iter(theirs.values())))
    own = slice(rank * width, (rank + 1) * width) if is_chunk else slice(0, width)

    def of_rank(key):
        return part[key].reshape(-1, *part[key].shape[2:])[own]

    if case["framework"] == "slime":
        lists = fc.Ragged(part["support"], part["support_offsets"])
        kept = [[] if one is None else one for one in case["kept"]]
        kept = kept[: len(lists) - own.start]
        assert [sorted({*one.tolist()}) for one in list(lists)[own]] == kept
        assert not any(case["kept"][len(kept) :])
    key = case.get("field", "routes")
    mask = of_rank("router_padding_mask" if key == "routes" else "indexer_padding_mask")
    found, expected = of_rank(key), next(iter(theirs.values()))
    assert not mask.all()
    if key == "indexer" and case["format"] == "thd" and not is_chunk:
        # Theirs are positions in the bin: those of the sequence, plus its beginning.
        ids = of_rank("sequence_ids")
        begins = np.array([np.argmax(ids == one) for one in ids])
        found = np.where(found < 0, found, found + begins[:, None, None])
    np.testing.assert_array_equal(found[~mask], expected[: len(found)][~mask])
    if case["framework"] == "miles":
        assert (expected[: len(found)][mask] == -1).all()
        assert (expected[len(found) :] == -1).all()
