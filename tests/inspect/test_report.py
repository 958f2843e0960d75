"""The report: its content, that it is self-contained, and its rendering in a browser."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("typer")
pytest.importorskip("tokenizers")

import pyarrow.parquet as pq  # noqa: E402

import fastcollate as fc  # noqa: E402
from fastcollate.cli import files  # noqa: E402
from fastcollate.cli.app import run  # noqa: E402
from fastcollate.cli.reporting.outcomes import Outcomes  # noqa: E402
from fastcollate.cli.reporting.plots import histogram  # noqa: E402
from fastcollate.cli.rows import FileRows  # noqa: E402
from fastcollate.common.arguments import tally  # noqa: E402
from fastcollate.plan.breaks import SHORT_PROMPT  # noqa: E402
from fastcollate.rollouts import Calls  # noqa: E402

ROOT = Path(__file__).parents[2]
ROLLOUTS = ROOT / "examples" / "rollouts" / "rollouts.jsonl.gz"
TOKENIZER = ROOT / "examples" / "rollouts" / "tokenizer.json"


def report_of(path, output, capsys, *options):
    """Write a report; return its output and the page."""
    code = run(["report", str(path), "-o", str(output), "--json", *map(str, options)])
    found = capsys.readouterr()
    assert code == 0, found.err
    return json.loads(found.out), output.read_text("utf-8")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    output = tmp_path_factory.mktemp("report") / "report.html"
    options = ["--tokenizer", str(TOKENIZER), "-o", str(output)]
    assert run(["report", str(ROLLOUTS), *options]) == 0
    return output


def test_the_recorded_rollouts(tmp_path, capsys):
    from rollouts import load_rollouts

    rollouts = load_rollouts()
    options = ["--tokenizer", TOKENIZER, "--rows-per-mini-batch", 2000, "--dp-size", 4]
    found, page = report_of(ROLLOUTS, tmp_path / "r.html", capsys, *options)
    columns = rollouts.prompts, rollouts.responses
    batch = fc.build_batch(*columns, pad_token_id=0, array_type="numpy")
    assert found["turns"] == len(rollouts)
    assert found["prompt_tokens"] == int(batch.prompt_lens.sum())
    left = found["layouts"]["turns"]["left, right"]
    assert left["positions"] == batch.input_ids.size
    assert left["padding"] == pytest.approx(batch.metrics["batch/padding_fraction"])
    merged = fc.build_batch(
        *columns, pad_token_id=0, array_type="numpy", trajectory_ids=rollouts.trajectory_ids,
        is_last_step=rollouts.is_last_step, merge="exact",
    )  # fmt: skip
    assert found["layouts"]["merged"]["left, right"]["positions"] == merged.input_ids.size
    two = merged.to_layout("two_segment").input_ids.size
    assert found["layouts"]["merged"]["two_segment"]["positions"] == two
    report = merged.merge_plan.report
    assert found["merging"]["num_rows"] == report.num_rows
    assert found["merging"]["kinds"] == dict(report.breaks.kinds)
    assert sum(found["merging"]["hints"].values()) == len(report.breaks)
    tree = merged.to_layout(fc.Tree(16_384)).input_ids.size
    assert found["layouts"]["merged"]["tree"]["positions"] == tree
    assert len(found["ranks"]["loads"][0]["per_rank"]) == 4
    assert sum(found["ranks"]["loads"][0]["per_rank"]) == report.tokens_after
    assert found["findings"] == []  # equal rows are samples of one prompt
    assert len(batch.check(4096)[0].rows) == 152
    text = re.sub(r"<[^>]*>", " ", page)
    for said in ("1,544", "372", "the same text in other tokens", "idle", "rank 3"):
        assert said in text


def test_the_page_needs_nothing_else(recorded):
    page = recorded.read_text("utf-8")
    assert len(page) < 2_000_000
    outside = r"src=|href=(?!.#)|@import|url\((?!#)|https?://|<link|<iframe|fetch\("
    assert not re.search(outside, page)
    assert "<script" not in page
    titles = re.findall(r"<title>([^<]*)</title>", page)
    assert len(titles) > 100
    for section in ("Findings", "Lengths", "Padding by layout", "Merging", "Ranks"):
        assert f"<h2>{section}</h2>" in page


def write_turns(path, trajectories, seed=0):
    """Write turns of which some break, of ids and lengths drawn at random."""
    rng = np.random.default_rng(seed)
    table = {"prompt_ids": [], "response_ids": [], "uid": [], "trajectory_id": []}
    for trajectory in range(trajectories):
        prompt = rng.integers(1, 4000, rng.integers(20, 100)).tolist()
        for _ in range(5):
            response = rng.integers(1, 4000, rng.integers(5, 60)).tolist()
            for name, value in zip(
                table, (prompt, response, f"p{trajectory // 4}", f"t{trajectory}"), strict=True
            ):
                table[name].append(value)
            prompt = prompt + response + rng.integers(1, 4000, rng.integers(1, 9)).tolist()
            if rng.random() < 0.1:
                prompt = [*prompt[:-5], 7, *prompt[-4:]]
    pq.write_table(pa.table(table), path)
    return path


def test_chunks_change_nothing(tmp_path, monkeypatch, capsys):
    path = write_turns(tmp_path / "r.parquet", 200)
    whole, _ = report_of(path, tmp_path / "r.html", capsys)
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(files, "CHUNK_TOKENS", 1 << 14)
    parts, _ = report_of(path, tmp_path / "r.html", capsys)
    assert parts["merging"].pop("trees") != whole["merging"].pop("trees")  # of the first chunk
    for found in (whole, parts):
        del found["advice"]  # of layouts
        del found["findings"][0]["examples"]  # up to three of each chunk
        for by_layout in found["layouts"].values():
            for name in ("packed", "tree"):  # chunks are packed by themselves
                del by_layout[name]["positions"], by_layout[name]["padding"]
                if name == "tree":
                    del by_layout[name]["tokens"]
    assert parts == whole


@pytest.mark.parametrize("more", [{}, {"advantages": 1.0}])
def test_the_source_is_named_with_its_columns(more, tmp_path, capsys):
    row = {"tokens": [1, 2, 3], "response_length": 1, "reward": 1.0, "rollout_log_probs": [-0.5]}
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({**row, "status": "completed", **more}))
    found, _ = report_of(path, tmp_path / "report.html", capsys)
    assert found["source"].startswith("slime: tokens, response_length, ")
    assert found["source"].endswith("".join(more) or "status")


def test_rows_of_the_file(tmp_path, monkeypatch, capsys):
    """Findings name rows of the file, also in later chunks."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(files, "CHUNK_TOKENS", 1 << 6)
    rows = 100
    table = {
        "prompts": [[1, i + 1] for i in range(rows)],
        "responses": [[i, 5] for i in range(rows)],
    }
    table["loss_mask"] = [[1, 1]] * rows
    table["loss_mask"][77] = [0, 0]
    table["prompts"][92], table["responses"][92] = table["prompts"][91], table["responses"][91]
    pq.write_table(pa.table(table), tmp_path / "r.parquet", row_group_size=10)
    found, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    by_kind = {one["kind"]: one["examples"] for one in found["findings"]}
    assert by_kind["trains_nothing"] == ["row 78: none of its 2 response tokens trains"]
    assert by_kind["duplicate"] == ["row 93: it has the same tokens as row 92"]
    assert {one["kind"]: one["rows"] for one in found["findings"]}["duplicate"] == [93]
    assert [shown["row"] for shown in found["shown_rows"]][:2] == [78, 93]
    assert "row 78, prompt 2" in page.replace("\xa0", " ")
    assert found["merging"] is None
    assert "No trajectory ids, so turns were not merged" in page


def test_outcomes(tmp_path, monkeypatch, capsys):
    """A trajectory has the reward of its last turn; prompts may lie in several chunks."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 7)
    monkeypatch.setattr(files, "CHUNK_TOKENS", 1 << 4)
    nan = float("nan")
    # Prompt, trajectory, tokens of the response, rewards by token.
    turns = [
        *[("p", "a", 2, [0.0, 0.0]), ("p", "a", 4, [0.1, 0.2, 0.3, 0.4])],
        *[("p", "b", 3, [0.5, 0.25, 0.25]), ("q", "c", 4, [0, 0, 0, 1]), ("q", "d", 1, [2.0])],
        ("alone", "e", 2, [0.0, 0.0]),
    ]
    table = {
        "prompts": [[row + 1] for row in range(len(turns))],
        "responses": [[5] * turn[2] for turn in turns],
        "rewards": [turn[3] for turn in turns],
        "uids": [turn[0] for turn in turns],
        "trajectory_ids": [turn[1] for turn in turns],
        "logprobs": [[-1.0] * turn[2] for turn in turns],
    }
    table["logprobs"][3] = [nan, -2.5, 0.0, -float("inf")]
    table["logprobs"][4] = [-9999.0]
    table["logprobs"][5] = [0.0, 0.0]
    pq.write_table(pa.table(table), tmp_path / "r.parquet", row_group_size=2)
    found, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    rewards = found["rewards"]
    assert rewards.pop("by_length") == [
        {"shortest": 1, "longest": 2, "number": 2, "mean": 1.0},
        {"shortest": 3, "longest": 3, "number": 1, "mean": 1.0},
        {"shortest": 4, "longest": 4, "number": 1, "mean": 1.0},
        {"shortest": 6, "longest": 6, "number": 1, "mean": 1.0},  # two turns
    ]
    assert rewards.pop("by_turns") == [
        {"turns": 1, "number": 4, "mean": 1.0},
        {"turns": 2, "number": 1, "mean": 1.0},
    ]
    assert rewards.pop("equal_prompts") == [
        {"uid": "p", "samples": 2, "reward": 1.0, "rows": [2, 3]}
    ]
    assert rewards.pop("std") == pytest.approx(0.4**0.5)
    assert rewards == {
        "number": 5, "not_finite": 0, "of_tokens": True, "are_summed": False,
        "mean": 1.0, "median": 1.0, "least": 0.0, "most": 2.0, "p1": 1.0, "p99": 1.0,
        "most_samples": 2, "are_guessed": False,
        "groups": 2, "equal_groups": 1, "equal_at_least": 0, "equal_at_most": 0, "samples": [2, 2],
    }  # fmt: skip
    assert found["logprobs"].pop("std") == pytest.approx(np.std([-1.0] * 9 + [-2.5] + [0.0] * 3))
    assert found["logprobs"] == {
        "number": 16, "bad": 3, "zero": 3, "rare": 0, "rows_of_zeros": 1, "least": -2.5,
        "most": 0.0, "mean": (9 * -1.0 - 2.5) / 13,
    }  # fmt: skip
    assert found["longest_responses"] == 2
    text = re.sub(r"<[^>]*>", " ", page)
    assert "1 of 2 prompts, of 2 samples each, has equal rewards, so all advantages are 0" in text
    assert "1 mini-batch of 6 rows for 8 ranks" in text  # as many as there are
    assert "In 1 row all are 0: probably placeholders." in text
    assert "3 of 16 trained tokens are missing, NaN, infinite or -9999, and 3 are exactly" in text
    shown = {one["row"]: one["why"] for one in found["shown_rows"]}
    assert shown[5].endswith("; highest reward: 2")
    assert re.match("zero_logprobs: .*; lowest reward: 0$", shown[6])
    assert "1 of 2 prompts (50%) train nothing" in text
    titles = re.findall(r"<title>([^<]*) tokens?</title>", page)
    assert [one for one in titles if one.startswith(("-1.25", "-0.25", "-2.75"))] == [
        *("-2.75 to -2.5: 1", "-1.25 to -1: 9", "-0.25 to 0: 3"),
    ]


def test_warnings_of_the_library_are_in_the_report(tmp_path, capsys):
    path = tmp_path / "r.parquet"
    rows = {"prompts": [[1, 2], [3]], "responses": [[4], [5]], "trajectory_ids": ["a", "a"]}
    pq.write_table(pa.table(rows | {"loss_mask": [[0], [0]]}), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, page = report_of(path, tmp_path / "r.html", capsys)
    assert [one["kind"] for one in found["findings"]] == ["all_masked", "unmerged_turns"]
    assert "1 break" in page


def test_too_few_logprobs_are_a_finding(tmp_path, capsys):
    rows = {"prompts": [[1]] * 3, "responses": [[2, 3]] * 3, "logprobs": [[-0.5, -0.2], [-0.1], []]}
    pq.write_table(pa.table(rows), tmp_path / "r.parquet")
    found, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    first, *_ = found["findings"]
    assert (first["kind"], first["number"]) == ("short_logprobs", 1)
    assert first["examples"] == ["row 2: logprobs has 1 value for 2 response tokens"]
    assert "if the first is missing, all others are shifted" in page


@pytest.mark.parametrize("rewards", [[1.0, float("nan"), 0.0], [[2.0], [float("-inf")], [-1.0]]])
def test_rewards_that_are_not_finite_are_counted(tmp_path, capsys, rewards):
    rows = {"prompts": [[1]] * 3, "responses": [[2], [3], [4]], "rewards": rewards}
    pq.write_table(pa.table(rows | {"uids": ["a", "a", "b"]}), tmp_path / "r.parquet")
    found, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    assert found["rewards"]["not_finite"] == 1
    assert found["rewards"]["mean"] == 0.5
    assert found["rewards"]["equal_groups"] == 0
    assert [one["mean"] for one in found["rewards"]["by_length"]] == [0.5]  # of equal lengths
    assert "1 of 3 are NaN or infinite." in page
    pq.write_table(pa.table(rows | {"rewards": [float("nan")] * 3}), tmp_path / "r.parquet")
    found, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    assert found["rewards"] == {
        "number": 3, "not_finite": 3, "groups": 0, "most_samples": 3, "equal_groups": 0,
        "are_guessed": True,
        "equal_at_least": 0,
        "equal_at_most": 0, "samples": None, "by_length": [], "by_turns": [],
        "equal_prompts": [], "of_tokens": False, "are_summed": False,
    }  # fmt: skip
    assert "3 of 3 are NaN or infinite." in page


def test_advice(tmp_path, recorded, capsys):
    page = recorded.read_text("utf-8")
    said = r"Merge turns \(merge=&quot;exact&quot;\), then layout=fc.Tree\(16_384\): 17.5 times"
    assert re.search(said, page)
    rows = {"prompts": [[1], [2]], "responses": [[3], [4]]}
    _, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert "2 rows: too few to choose a layout by" in page
    rows = {"prompts": [[n + 40] for n in range(32)], "responses": [[3], [4]] * 16}
    pq.write_table(pa.table(rows), tmp_path / "r.parquet")
    _, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    assert "Padding costs little here" in page
    assert "No rewards" in page
    assert "turn" not in re.sub(r"<style>.*?</style>|No trajectory ids[^<]*", "", page)
    assert "No log-probabilities" in page
    assert "read as columns: prompts, responses." in page
    rows["responses"] = [[3] * 99, [4]] * 16
    pq.write_table(pa.table(rows), tmp_path / "r.parquet")
    _, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    said = "Use layout=fc.Packed(16_384): 2.0 times fewer positions than padded rows in one "
    assert f"{said}batch." in page
    rows = {"prompts": [[9] * 20] * 32, "responses": [[n + 10] * (99, 1)[n % 2] for n in range(32)]}
    pq.write_table(pa.table(rows), tmp_path / "r.parquet")
    _, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    assert re.search(r"Packed\(16_384\): .* \(fc\.Tree: .* it saves 27.7% of the tokens", page)


def test_groups_of_equal_rewards(tmp_path, capsys):
    rows = {"prompts": [[1], [1], [3], [3]], "responses": [[2]] * 4, "uids": list("aabb")}
    for rewards, is_said in ([1, 1, 0, 0], True), ([1, 1, 0, 1], False):
        pq.write_table(pa.table(rows | {"rewards": rewards}), tmp_path / "r.parquet")
        found, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
        assert ("equal_rewards" in [one["kind"] for one in found["findings"]]) == is_said
        assert ("in each of 2 prompts, all samples have equal rewards" in page) == is_said
        assert ("1 error: equal_rewards" in page) == is_said


def test_one_row(tmp_path, capsys):
    row = {"prompts": [[1]], "responses": [[2]], "rewards": [1]}
    pq.write_table(pa.table(row), tmp_path / "r.parquet")
    _, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    page = re.sub(r"<title>.*?</title>", "", page)
    assert not re.search(r"\b1(</b>| consecutive )? ?(rows|findings)", page)


def test_reasons_are_drawn_evenly(tmp_path, monkeypatch, capsys):
    """Half of the breaks, all in later chunks, change the first prompt."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr(files, "CHUNK_TOKENS", 1 << 9)
    table = {"prompts": [], "responses": [], "trajectory_ids": []}
    for trajectory in range(4000):
        second = [1, 2, 9, 8, 5] if trajectory < 2000 else [7, 2, 3, 4, 5]
        table["prompts"] += [[1, 2], second]
        table["responses"] += [[3, 4], [6]]
        table["trajectory_ids"] += [trajectory] * 2
    pq.write_table(pa.table(table), tmp_path / "r.parquet")
    found, page = report_of(tmp_path / "r.parquet", tmp_path / "r.html", capsys)
    first, second = found["merging"]["hints"].values()
    assert abs(first - second) <= 1
    assert 150 <= first + second == found["merging"]["num_looked_at"] <= 300
    assert re.search(r"\d not known without a tokenizer: pass --tokenizer\.", page)
    assert "drawn evenly" in page


def test_text_of_rollouts_is_no_markup(tmp_path, capsys):
    name = "<img src=x onerror=alert(1)>.parquet"
    table = {"prompts": [[1]], "responses": [[2]], "trajectory_ids": ["<b>&"], "uids": ["<i>"]}
    table = {column: values * 2 for column, values in table.items()}
    pq.write_table(pa.table(table), tmp_path / name)
    _, page = report_of(tmp_path / name, tmp_path / "r.html", capsys)
    assert "<img" not in page
    assert "<b>&" not in page


def test_plots_of_few_values():
    for values in ([0], [3], [0, 0, 5], [1] * 4):
        drawn = histogram(np.array(values), "row")
        counts = [int(n) for n in re.findall(r": (\d+) rows?</title>", drawn)]
        assert sum(count > 0 for count in counts) == len(set(values))
        assert sum(counts) == len(values)
        assert "nan" not in drawn
    even = histogram(np.arange(150), "row")
    assert set(re.findall(r": (\d+) rows</title>", even)) <= {"2", "3", "4"}
    assert "0 to 3: 4 rows" in even


def test_weight_versions(tmp_path, capsys):
    """The lag of tokens behind the latest version, weighted by tokens; names have none."""

    def response(*spans):
        given = [{"version": one, "start": start, "end": end} for one, start, end in spans]
        tokens = [[-0.5, token, None] for token in (3, 4, 5)]
        meta = {"weight_versions": given, "output_token_logprobs": tokens}
        return {"prompt_token_ids": [1], "output_ids": [3, 4, 5], "meta_info": meta}

    path = tmp_path / "calls.jsonl"
    for names, expected in [
        (["3", "9", "8"], {"latest": 9, "lag_mean": (6 + 2 * 0 + 3 * 1) / 6, "lag_max": 6}),
        (["3", "b", "8"], {}),
    ]:
        calls = [response((names[0], 0, 1), (names[1], 1, 3)), response((names[2], 0, 3))]
        path.write_text("\n".join(map(json.dumps, calls)))
        found, page = report_of(path, tmp_path / "report.html", capsys)
        by_version = {names[1]: 2, names[2]: 3, names[0]: 1}
        assert found["versions"].pop("by_version") == by_version
        assert found["versions"] == {
            "number": 3, "tokens": 6, "unknown": 0, "mixed": 1, **expected
        }  # fmt: skip
        assert "6 trained tokens of 3 versions; 1 response has several" in page
        assert ("versions old" in " ".join(found["advice"])) == bool(expected)


@pytest.mark.parametrize(
    ("first", "second"),
    [(7, 5), ([7, 7], [5]), ([7, 7, -1], 5), ([{"version": 7, "start": 0, "end": 2}], 5)],
)
def test_weight_versions_of_calls_and_tokens(first, second):
    """Integers of calls, of tokens, and spans are counted by token; -1 is unknown."""
    outcomes = Outcomes()
    is_part = isinstance(first, list) and len(first) == 3
    calls = Calls([[1], [2]], [[3, 3, 3][: 2 + is_part], [4]], versions=[first, second])
    outcomes.add(FileRows(1, calls))
    found = outcomes.figures()["versions"]
    assert found.pop("unknown") == is_part
    assert found.pop("mixed") == 0
    known = {"latest": 7, "lag_mean": 2 / 3, "lag_max": 2, "by_version": {"7": 2, "5": 1}}
    assert found == {"number": 2, "tokens": 3, **known}


def written(path, rows):
    pq.write_table(pa.table(rows), path)
    return path


def test_breaks_have_the_rows_of_the_file(tmp_path, capsys):
    """As all else in the report; turns of a plan count from 0."""
    prompts = [[1, 2], [1, 2, 5, 6], [1], [1, 9, 7]]
    rows = {"prompts": prompts, "responses": [[5], [7], [8], [3]], "trajectory_ids": list("aabb")}
    path = written(tmp_path / "r.parquet", rows)
    found, page = report_of(path, tmp_path / "r.html", capsys)
    (tree,) = found["merging"]["trees"]
    assert re.findall(r"rows? \d.*?(?=,| leaves)", tree) == ["row 3", "row 4", "row 4"]
    assert "turn 3" not in page


def test_findings_in_the_terminal(tmp_path, capsys):
    rows = {"prompts": [[1, 2]] * 3, "responses": [[3], [3], [4]], "logprobs": [[-1], [-1], [0.5]]}
    path = written(tmp_path / "r.parquet", rows | {"note": ["a", "b", "c"]})
    assert run(["report", str(path), "-o", str(tmp_path / "r.html")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    read = "read as columns: prompts, responses, logprobs; not read: note "
    assert re.match(rf"{read}3 rows, 1 error, 1 warning; wrote \S*r\.html error: ", text)
    first = text.index("positive_logprob in 1 row: row 3, token 2: logprobs has 0.5")
    second = text.index("warning: duplicate in 1 row: row 2: it has the same tokens as row 1; drop")
    assert first < second  # the worst first
    assert text.endswith("3 rows: too few to choose a layout by. Write a report on a whole step.")
    for severity in ("error", "warning"):
        assert (
            run(["report", str(path), "-o", str(tmp_path / "r.html"), "--fail-on", severity]) == 3
        )
    del rows["logprobs"]  # leaves a warning
    good = written(tmp_path / "g.parquet", rows)
    for severity, code in (("error", 0), ("warning", 3)):
        options = ["-o", str(tmp_path / "r.html"), "--fail-on", severity]
        assert run(["report", str(good), *options]) == code


@pytest.mark.parametrize(
    ("output", "message"), [("-", "pass the name of a file"), ("r.txt", "the report is HTML")]
)
def test_outputs_that_are_no_page(output, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written("r.parquet", {"prompts": [[1]], "responses": [[2]]})
    assert run(["report", path, "-o", output]) == 2
    assert message in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["r.parquet"]


def test_the_largest_length_says_nothing_if_ends_are_known(tmp_path, capsys):
    responses = [[3, 3, 2], [4, 4, 2], [5, 5, 2], *[[6, 2]] * 4]
    path = written(tmp_path / "r.parquet", {"prompts": [[1]] * 7, "responses": responses})
    found, page = report_of(path, tmp_path / "r.html", capsys, "--eos", 2)
    assert (found["longest_responses"], "probably the engine" in page) == (3, False)
    assert "3 responses (42.9%) have the largest length, 3." in page
    found, page = report_of(path, tmp_path / "r.html", capsys)
    assert (found["longest_responses"], "probably the engine" in page) == (3, True)


@pytest.mark.parametrize("pad", [0, 7])
def test_padding_is_found_without_its_token(pad, tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [rng.integers(10, 90, n).tolist() for n in rng.integers(3, 20, 30)]
    padded = {
        "prompts": [[pad] * (20 - len(row)) + row for row in rows],
        "responses": [row[::-1] + [pad] * (20 - len(row)) for row in rows],
    }
    found, _ = report_of(written(tmp_path / "r.parquet", padded), tmp_path / "r.html", capsys)
    prompts, responses = (one for one in found["findings"] if one["kind"] == "padded_column")
    run = tally(20 - len(rows[0]), "token")
    first = f"its prompt begins with {run} of id {pad}, and all prompts have 20 tokens"
    assert prompts["examples"][0] == f"row 1: {first}"
    assert "its response ends with" in responses["examples"][0]
    for one in (prompts, responses):
        assert one["rows"] == [row + 1 for row in range(30)]
        assert one["number"] == 30
    whole = {"prompts": rows, "responses": [[*row[::-1], 2] for row in rows]}
    found, _ = report_of(written(tmp_path / "r.parquet", whole), tmp_path / "r.html", capsys)
    assert [one["kind"] for one in found["findings"]] == []


def test_files_in_which_every_token_trains(tmp_path, capsys):
    for rows, all_train in (
        ({"input_ids": [[1, 2, 3], [4, 5]]}, True),
        ({"input_ids": [[1, 2, 3], [4, 5]], "labels": [[-100, 2, 3], [-100, 5]]}, False),
        ({"prompts": [[1], [2]], "responses": [[3], [4]]}, False),
    ):
        path = written(tmp_path / "r.parquet", rows)
        _, page = report_of(path, tmp_path / "r.html", capsys)
        assert ("Every token trains" in page) == all_train


def test_finish_reasons(tmp_path, capsys):
    """Each with its share, and the mean reward of the rows that it ended."""
    rows = {
        "prompts": [[1]] * 40,
        "responses": [[2, 3]] * 40,
        "rewards": [1.0, 0.0] * 20,
        "finish_reason": ["stop", "length"] * 20,
    }
    path = written(tmp_path / "r.parquet", rows)
    found, page = report_of(path, tmp_path / "r.html", capsys)
    assert found["finish_reasons"] == {
        "stop": {"number": 20, "mean_reward": 1.0},
        "length": {"number": 20, "mean_reward": 0.0},
    }
    assert "20 responses (50%) finished with 'length'. Raise" in found["advice"][-1]
    assert "probably the engine" not in page


def test_prompts_at_the_ends_of_rewards(tmp_path, capsys):
    """Equal rewards are the lowest, where a prompt is too hard, the highest, or between."""
    rewards = [0, 0, 1, 1, 1, 1, 0.5, 0.5, 0, 1]
    rows = {"prompts": [[1]] * 10, "responses": [[2]] * 10, "uids": [n // 2 for n in range(10)]}
    path = written(tmp_path / "r.parquet", rows | {"rewards": rewards})
    found, page = report_of(path, tmp_path / "r.html", capsys)
    of_groups = [found["rewards"][name] for name in ("equal_groups", "groups")]
    assert (*of_groups, found["rewards"]["equal_at_least"]) == (4, 5, 1)
    assert found["rewards"]["equal_at_most"] == 2
    assert "are 0: 1 with the lowest reward, 0; 2 with the highest reward, 1." in page
    assert "<td>0.5</td><td>2</td><td>40.0%</td>" in page  # two prompts with this mean


def turns_with(rewards):
    """Return 40 trajectories of two turns, the second of which continues the first."""
    rows = {"prompts": [], "responses": [], "trajectory_ids": [], "uids": [], "rewards": []}
    for number in range(40):
        prompt = [number + 10, number % 7 + 1]
        rows["prompts"] += [prompt, [*prompt, 5, 6, 9]]
        rows["responses"] += [[5, 6], [7]]
        rows["trajectory_ids"] += [number] * 2
        rows["uids"] += [number // 2] * 2
        rows["rewards"] += rewards(number)
    return rows


@pytest.mark.parametrize(
    ("rewards", "are_summed", "mean"),
    [
        (lambda n: [0.0, float(n % 2)], False, 0.5),
        (lambda n: [float(n % 2)] * 2, False, 0.5),  # of the trajectory, on each turn
        (lambda n: [1.0, 0.5], True, 1.5),
    ],
)
def test_rewards_of_earlier_turns(tmp_path, capsys, rewards, are_summed, mean):
    """They are added up, unless they are 0 or repeat the last one; merging is told to, too."""
    path = written(tmp_path / "r.parquet", turns_with(rewards))
    found, page = report_of(path, tmp_path / "r.html", capsys)
    assert (found["rewards"]["are_summed"], found["rewards"]["mean"]) == (are_summed, mean)
    assert ("each the sum of its turns" in page) == are_summed
    assert ("fc.planning.Merge(&quot;exact&quot;, rewards=&quot;sum&quot;)" in page) == are_summed
    (by_turns,) = found["rewards"]["by_turns"]
    assert by_turns == {"turns": 2, "number": 40, "mean": mean}


def test_turns_in_the_wrong_order(tmp_path, capsys):
    """Nothing merges, so merging is not advised."""
    rows = turns_with(lambda n: [0.0, 1.0])
    order = [at ^ 1 for at in range(80)]
    rows = {name: [values[at] for at in order] for name, values in rows.items()}
    found, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert "unmerged_turns" in [one["kind"] for one in found["findings"]]
    assert found["advice"] == ["Put the turns in order first: rows and layouts depend on it."]
    assert re.search(r">\d errors?[^<]*: [^<]*unmerged_turns", page)
    assert page.count(found["advice"][0]) == 5  # also in the sections that it concerns
    assert found["merging"]["hints"] == {SHORT_PROMPT: 40}


def test_policies_are_compared_where_turns_break(tmp_path, capsys):
    rows = turns_with(lambda n: [0.0, 1.0])
    rows["prompts"][1] = [*rows["prompts"][0], 5, 8, 9]  # drift: 8 for 6
    path = written(tmp_path / "r.parquet", rows)
    found, page = report_of(path, tmp_path / "r.html", capsys, "--merge", "exact")
    policies = found["merging"]["policies"]
    assert [policies[name]["num_rows"] for name in ("exact", "branch", "realign")] == [41, 41, 40]
    assert [policies[name]["masked_tokens"] for name in ("exact", "realign")] == [0, 1]
    assert "<td>realign</td><td>40</td>" in page
    batch = fc.build_batch(
        rows["prompts"], rows["responses"], trajectory_ids=rows["trajectory_ids"],
        merge="realign", pad_token_id=0, array_type="numpy",
    )  # fmt: skip
    lens = batch.prompt_lens + batch.response_lens
    assert policies["realign"]["tokens_after"] == lens.sum()


def test_bins_are_those_of_the_step(tmp_path, capsys):
    """As many on every rank, within mini-batches: as `plan` has them."""
    rng = np.random.default_rng(0)
    rows = {"prompts": [[1]] * 70, "responses": [[2] * int(n) for n in rng.integers(1, 60, 70)]}
    path = written(tmp_path / "r.parquet", rows)
    found, page = report_of(path, tmp_path / "r.html", capsys, "--capacity", 100, "--dp-size", 4)
    lens = [len(row) + 1 for row in rows["responses"]]
    plan = fc.plan_step(
        lens, rows_per_mini_batch=70, dp_size=4, allow_partial=True, layout=fc.Packed(100),
        shard_by="tokens",
    )  # fmt: skip
    assert found["bins"]["number"] == len(plan.bin_offsets) - 1
    step = fc.build_batch(**rows, pad_token_id=0, array_type="numpy", shard=plan.shard(0, 0))
    assert found["bins"]["width"] == step.input_ids.shape[1]
    positions = found["bins"]["number"] * step.input_ids.shape[1]
    assert found["bins"]["padding"] == pytest.approx(1 - sum(lens) / positions)
    assert f"Packed in {found['bins']['number']} bins of up to 100 tokens" in page


def test_a_row_above_the_capacity_is_an_error(tmp_path, capsys):
    rows = {"prompts": [[1]] * 3, "responses": [[2] * 5, [3] * 30, [4] * 9]}
    path = written(tmp_path / "r.parquet", rows)
    assert run(["report", str(path), "-o", str(tmp_path / "r.html"), "--capacity", "30"]) == 2
    said = "--capacity is 30, but row 2 has 31 tokens; pass at least 31"
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "r.html").exists()


def test_padding_leaves_no_other_advice(tmp_path, capsys):
    """Layouts and lengths of padded rows say nothing; values that were filled in are no finding."""
    rows = {"prompts": [[1, 5]] * 40, "responses": [[n + 10, *[0] * 9] for n in range(40)]}
    path = written(tmp_path / "r.parquet", rows)
    found, _ = report_of(path, tmp_path / "r.html", capsys)
    assert found["findings"][0]["kind"] == "padded_column"
    assert found["advice"] == [
        "Take the padding out first: lengths and layouts count it as tokens."
    ]
    short = {"prompts": [[1]] * 2, "responses": [[2, 3]] * 2, "logprobs": [[-0.5, -0.2], [-0.1]]}
    found, _ = report_of(written(path, short), tmp_path / "r.html", capsys)
    assert [one["kind"] for one in found["findings"]] == ["short_logprobs", "duplicate"]


def test_rows_to_look_at_have_the_values(tmp_path, capsys):
    rows = {"prompts": [[1]] * 2, "responses": [[2, 3], [4, 5]], "logprobs": [[-0.5, 0.75]] * 2}
    path = written(tmp_path / "r.parquet", rows)
    _, page = report_of(path, tmp_path / "r.html", capsys)
    shown = re.sub(r"<[^>]*>", "", page.rpartition("Rows to look at<")[2])
    assert re.search(r"logprobs.*0\.75", shown)


def test_advantages(tmp_path, capsys):
    rows = {"prompts": [[1]] * 4, "responses": [[2]] * 4, "rewards": [0.0, 1.0, 0.0, 1.0]}
    advantages = [[1.0], [-1.0], [0.0], [2.0]]
    path = written(tmp_path / "r.parquet", rows | {"advantages": advantages})
    found, page = report_of(path, tmp_path / "r.html", capsys)
    assert found["advantages"]["mean"] == 0.5
    assert "Advantages: mean 0.5, std 1.12, min -1, max 2; 25.0% are 0." in page


@pytest.mark.parametrize("reward", [0.5, float("nan")])
def test_a_reward_without_a_token(tmp_path, capsys, reward):
    """Aborted samples are ordinary data: a finding, and no error."""
    rows = {"prompts": [[1], [2]], "responses": [[3], []], "rewards": [1.0, reward]}
    path = written(tmp_path / "r.parquet", rows)
    found, _ = report_of(path, tmp_path / "r.html", capsys)
    assert [one["kind"] for one in found["findings"]] == ["trains_nothing"]
    assert run(["view", str(path), "--row", "2", "--field", "rewards"]) == 0


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_earlier_turns_without_a_reward(tmp_path, capsys, missing):
    """Only the last turn has one: that is the trajectory's."""
    rows = turns_with(lambda n: [missing, float(n % 2)])
    found, _ = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    rewards = found["rewards"]
    assert (rewards["are_summed"], rewards["not_finite"], rewards["mean"]) == (False, 0, 0.5)


def test_turns_that_are_not_merged(tmp_path, capsys):
    """They are turns of trajectories all the same."""
    path = written(tmp_path / "r.parquet", turns_with(lambda n: [0.0, float(n % 2)]))
    found, page = report_of(path, tmp_path / "r.html", capsys, "--merge", "none")
    assert (found["merging"], found["rewards"]["number"]) == (None, 40)
    assert "<b>80</b>turns" in page
    assert "<b>40</b>trajectories" in page
    assert "Rewards of trajectories, each of its last turn" in page
    assert "Options: --merge none " in page
    assert "No trajectory ids" not in page


@pytest.mark.parametrize("rows_per_mini_batch", [7, 64, 1000])
def test_trees_are_those_of_batches(rows_per_mini_batch, tmp_path, monkeypatch, capsys):
    """Of what the advised call builds, also across prompts; a chunk divides a batch."""
    rng = np.random.default_rng(0)
    rows = {"prompts": [], "responses": [], "uids": []}
    for row in rng.permutation(96).tolist():  # samples of a prompt are apart
        rows["prompts"].append([1, 2, 3, 4, 5, 6, *range(10 + row % 24, 30)])
        rows["responses"].append(rng.integers(40, 90, 9).tolist())
        rows["uids"].append(f"p{row % 24:02}")
    order = np.argsort(rows["uids"], kind="stable") if rows_per_mini_batch == 64 else range(96)
    rows = {name: [values[at] for at in order] for name, values in rows.items()}
    path = written(tmp_path / "r.parquet", rows)
    options = ["--rows-per-mini-batch", rows_per_mini_batch, "--capacity", 100]
    found, page = report_of(path, tmp_path / "r.html", capsys, *options)
    positions = 0
    for start in range(0, 96, rows_per_mini_batch):
        part = {name: rows[name][start:][:rows_per_mini_batch] for name in ("prompts", "responses")}
        batch = fc.build_batch(**part, pad_token_id=0, array_type="numpy", layout=fc.Tree(100))
        positions += batch.input_ids.size
    assert found["layouts"]["turns"]["tree"]["positions"] == positions
    assert ("Rows in one batch;" in page) == (rows_per_mini_batch == 1000)
    assert ("padded rows in one batch" in page) == (rows_per_mini_batch == 1000)


def test_rewards_that_are_not_finite(tmp_path, capsys):
    """They are errors of their rows, and of no group."""
    rewards = [1.0, float("inf"), float("nan"), float("nan"), 0.0, 0.0, 1.0, float("nan")]
    rows = {"prompts": [[n + 1] for n in range(8)], "responses": [[2]] * 7 + [[]]}
    path = written(tmp_path / "r.parquet", rows | {"rewards": rewards, "uids": list("aabbccdd")})
    found, _ = report_of(path, tmp_path / "r.html", capsys)
    (finding,) = (one for one in found["findings"] if one["kind"] == "nan")
    assert (finding["rows"], finding["severity"]) == ([2, 3, 4], "error")
    assert finding["examples"][:2] == ["row 2: its reward is inf", "row 3: its reward is NaN"]
    assert found["rewards"]["not_finite"] == 4  # also the last, without a token
    assert (found["rewards"]["groups"], found["rewards"]["equal_groups"]) == (1, 1)


def test_figures_are_of_tokens_that_train(tmp_path, capsys):
    rows = {
        "prompts": [[1], [2]],
        "responses": [[3, 4, 5], [6, 7]],
        "loss_mask": [[1, 0, 1], [0, 1]],
        "logprobs": [[-1.0, 0.0, -2.0], [0.0, 0.0]],
        "versions": [[5, 4, 5], [4, 4]],
    }
    found, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    logprobs = found["logprobs"]
    assert [logprobs[name] for name in ("number", "zero", "mean")] == [3, 1, -1.0]
    assert logprobs["rows_of_zeros"] == 1
    assert found["versions"]["by_version"] == {"5": 2, "4": 1}
    assert "None of 3 trained tokens is missing" in page
    assert "mean -1 per token, min -2, max 0;" in page


def test_samples_of_no_group(tmp_path, capsys):
    rows = {"prompts": [[1], [2]], "responses": [[3], [4]], "rewards": [0.0, 1.0]}
    _, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert "No prompt ids: no two rows have equal prompts. Name ids with --uids." in page
    path = written(tmp_path / "r.parquet", rows | {"uids": ["a", "b"]})
    found, page = report_of(path, tmp_path / "r.html", capsys)
    assert found["advice"][0].startswith("Every prompt has one sample:")
    assert "Every prompt has one sample." in page
    path = written(path, rows | {"uids": ["a", "a"], "rewards": [float("nan")] * 2})
    found, page = report_of(path, tmp_path / "r.html", capsys)
    assert "No prompt has several samples with finite rewards." in page
    assert "one sample" not in " ".join(found["advice"])


def test_outliers(tmp_path, capsys):
    """They are named, and plots end before them."""
    rows = {
        "prompts": [[1]] * 100,
        "responses": [[2, 3 + n] for n in range(99)] + [[2] * 499 + [3]],
        "rewards": [0.0, 1.0] * 49 + [0.5, 300.0],
        "versions": [9] * 99 + [5],
    }
    found, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert found["advice"][1:4] == [
        "The highest reward, 300, is far from most others (0 to 1). Check it.",
        "Tokens come from weights up to 4 versions old (2.87 on average). "
        "fc.WeightVersions(..., max_lag=...) masks old ones.",
        "The longest row has 501 tokens, 167 times the 95th percentile. Cut or drop it if you can: "
        "it sets the width of padded rows, the capacity of bins, and how long ranks wait.",
    ]
    assert "<title>4 to 500: 1 row</title>" in page
    assert page.count("and above</text>") == 2  # responses and rows


def test_many_versions_are_plotted(tmp_path, capsys):
    rows = {"prompts": [[1]] * 60, "responses": [[2]] * 60, "versions": list(range(60))}
    _, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert "<title>0 to 1 behind: 2 tokens</title>" in page
    assert "<title>58 to 59 behind: 2 tokens</title>" in page
    rows["versions"] = ["before", "after"] * 30
    _, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert "60 trained tokens of 2 versions." in page
    assert "<td>before</td><td>30</td><td>50.0%</td>" in page


def test_prompts_and_their_ids(tmp_path, capsys):
    """Groups of several prompts, and prompts of several groups, also in later chunks."""
    rows = {
        "prompts": [[1], [1], [3], [3], [5], [5]],
        "responses": [[7, n] for n in range(6)],
        "uids": list("aabacd"),
    }
    found, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    known = {one["kind"]: (one["rows"], one["examples"]) for one in found["findings"]}
    assert known == {
        "prompts_of_uid": ([4], ["row 4: it has another prompt than earlier rows of its uid, a"]),
        "uids_of_prompt": (
            [4, 6],
            [
                "row 4: earlier rows with its prompt have another uid than its own, a",
                "row 6: earlier rows with its prompt have another uid than its own, d",
            ],
        ),
    }
    assert {one["severity"] for one in found["findings"]} == {"warning"}
    del rows["uids"]
    path = written(tmp_path / "r.parquet", rows | {"rewards": [0.0] * 6})
    found, page = report_of(path, tmp_path / "r.html", capsys)
    assert "rows with equal prompts count as samples of one" in page
    assert "3 of 3 prompts, of 2 samples each, have equal rewards" in page
    assert found["findings"] == []


def test_turns_without_trajectories(tmp_path, capsys):
    rows = {
        "prompts": [[1], [1, 2, 3], [1, 2, 3, 4], [5], [5, 6]],
        "responses": [[2], [4], [8], [6], [7]],
        "uids": list("aaabb"),
    }
    found, _ = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    (finding,) = found["findings"]  # prompts of later turns are no other prompts
    assert (finding["kind"], finding["rows"]) == ("turns_without_ids", [2, 3, 5])
    assert finding["examples"][0] == "row 2: it continues row 1, as the next turn does"
    assert found["advice"][0].startswith("Name the trajectories first")
    path = written(tmp_path / "r.parquet", rows | {"trajectory_ids": list("aaabb")})
    assert report_of(path, tmp_path / "r.html", capsys)[0]["findings"] == []


def test_missing_logprobs(tmp_path, capsys):
    """Those that are filled in are no NaN of the file."""
    rows = {
        "prompts": [[1], [2], [3], [4]],
        "responses": [[5, 6]] * 4,
        "logprobs": [[-0.5, -0.5], [-0.5], None, [-0.5, float("nan")]],
    }
    found, _ = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    known = [(one["kind"], one["rows"]) for one in found["findings"]]
    assert known == [("short_logprobs", [2]), ("missing_logprobs", [3]), ("nan", [4])]


def test_columns_that_are_not_read(tmp_path, capsys):
    rows = {"prompts": [[1]], "responses": [[2]], "reward": ["good"], "logprobs": [None], "x": [1]}
    found, _ = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    (finding,) = found["findings"]
    assert (finding["kind"], finding["number"]) == ("unread_column", 2)
    said = "not read: reward (text, not numbers), logprobs (null)"
    assert finding["examples"] == [said]


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_logprobs_that_are_structs_are_not_read(name, tmp_path, capsys):
    logprobs = [{"token_id": 3, "logprob": -0.5}]
    rows = {"prompts": [[1]], "responses": [[3]], "logprobs": [logprobs]}
    path = tmp_path / name
    if name == "r.jsonl":
        path.write_text(json.dumps({of: values[0] for of, values in rows.items()}))
    else:
        written(path, rows)
    found, _ = report_of(path, tmp_path / "r.html", capsys)
    assert found["unread"] == ["logprobs (a list of structs, not numbers)"]
    assert [one["kind"] for one in found["findings"]] == ["unread_column"]


def test_rewards_of_any_size(tmp_path, capsys):
    rows = {
        "prompts": [[n + 1] for n in range(200)],
        "responses": [[2]] * 200,
        "rewards": [-1e6, *np.linspace(0, 1, 199).tolist()],
        "advantages": [1.0, -1.0] * 100,
    }
    found, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert "The lowest reward, -1,000,000, is far" in found["advice"][0]
    assert "and below</text>" in page
    assert "and above</text>" not in page
    assert "and below (from -1,000,000): " in page
    assert "Advantages: mean 0, std 1, min -1, max 1; 0.0% are 0." in page


def test_turns_that_drop_reasoning(tmp_path, capsys):
    """All turns break, after the first prompt: they are in order."""
    rows = {"prompts": [], "responses": [], "trajectory_ids": []}
    for trajectory in range(20):
        rows["prompts"] += [[1, trajectory + 5], [1, trajectory + 5, 9, 3, trajectory + 6]]
        rows["responses"] += [[7, 8, 9, 3], [4, 3]]
        rows["trajectory_ids"] += [trajectory] * 2
    found, _ = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert found["merging"]["num_rows"] == 40
    assert [one["kind"] for one in found["findings"]] == []
    assert any('merge="realign" would make 20 rows' in one for one in found["advice"])


@pytest.mark.parametrize("reason", ["truncated", "max_tokens", "MAX_TOKENS"])
def test_reasons_of_cut_responses(reason, tmp_path, capsys):
    rows = {"prompts": [[n] for n in range(9)], "responses": [[2, n] for n in range(9)]}
    path = written(tmp_path / "r.parquet", rows | {"finish_reason": ["stop"] * 5 + [reason] * 4})
    found, _ = report_of(path, tmp_path / "r.html", capsys)
    assert found["advice"][0].startswith(f"4 responses (44%) finished with '{reason}'.")
    rows["responses"][:2] = [[2], [3]]  # most have the largest length
    path = written(tmp_path / "r.parquet", rows | {"finish_reason": [None] * 9})
    found, _ = report_of(path, tmp_path / "r.html", capsys)
    assert found["advice"][0].startswith("7 responses (78%) have the largest length, 2, probably")


def test_rewards_that_differ_by_rounding(tmp_path, capsys):
    rows = {"prompts": [[1], [1], [3], [3]], "responses": [[7, n] for n in range(4)]}
    rewards = [0.1 + 0.2 + 0.7, 0.7 + 0.2 + 0.1, 0.3, 0.1 + 0.2]
    path = written(tmp_path / "r.parquet", rows | {"rewards": rewards, "uids": list("aabb")})
    found, page = report_of(path, tmp_path / "r.html", capsys)
    assert [one["kind"] for one in found["findings"]] == ["equal_rewards"]
    assert page.count("<td>0.3</td>") == 3  # of rows, of prompts, and among equal ones


def test_versions_of_parts(tmp_path, capsys):
    """One version for each part of a response, of unknown lengths."""
    rows = {"prompts": [[1]] * 2, "responses": [[2, 3, 4]] * 2, "versions": [[5, 5], [5, 6]]}
    found, page = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert found["versions"]["by_version"] == {"5": 3}
    assert "3 trained tokens of 1 version; of 3 more it is unknown." in page


def test_copies_of_samples(tmp_path, capsys):
    rows = {"prompts": [[1]] * 4 + [[3]], "responses": [[7], [8], [7], [7], [7]], "uids": [0] * 5}
    rows |= {"rewards": [0.0, 1.0] * 2 + [0.0]}
    found, _ = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    assert found["copies"] == 2
    assert found["advice"][0].startswith("2 of 5 responses are copies of another one")


def test_lengths_at_a_limit_are_apart(tmp_path, capsys):
    rows = {
        "prompts": [[1]] * 40,
        "responses": [[2] * (n + 1) for n in range(28)] + [[3] * 50] * 12,
        "rewards": [1.0] * 28 + [0.0] * 12,
    }
    found, _ = report_of(written(tmp_path / "r.parquet", rows), tmp_path / "r.html", capsys)
    *others, last = found["rewards"]["by_length"]
    assert last == {"shortest": 50, "longest": 50, "number": 12, "mean": 0.0}
    assert [one["number"] for one in others] == [7] * 4


def test_a_column_that_begins_with_null_is_read(tmp_path, capsys):
    rows = [
        {"prompts": [1], "responses": [2], "finish_reason": None, "weight_version": None},
        {"prompts": [1], "responses": [3], "finish_reason": "stop", "weight_version": 7},
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found, _ = report_of(path, tmp_path / "r.html", capsys)
    assert found["unread"] == []
    assert found["finish_reasons"].keys() == {"(null)", "stop"}


def test_the_verdict_is_green_only_without_advice_on_training(tmp_path, capsys):
    rows = {"prompts": [[1], [1], [3], [3]], "responses": [[7, n] for n in range(4)]}
    rows["uids"] = list("aabb")
    for rewards, color in ([0, 1, 1, 0], "verdict good"), ([0, 1, 1, 1], "verdict"):
        path = written(tmp_path / "r.parquet", rows | {"rewards": rewards})
        _, page = report_of(path, tmp_path / "r.html", capsys)
        assert f'<p class="{color}">No errors, no warnings</p>' in page
