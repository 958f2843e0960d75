"""The command line: all forms and names of files, one line for each error."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("typer")
pytest.importorskip("tokenizers")

import pyarrow.parquet as pq  # noqa: E402

import fastcollate as fc  # noqa: E402
from fastcollate.cli import files  # noqa: E402
from fastcollate.cli.app import in_flags, run  # noqa: E402
from fastcollate.testing.verifying import verification  # noqa: E402
from fastcollate.testing.verifying.running import Outcome  # noqa: E402

ROOT = Path(__file__).parents[2]
ROLLOUTS = ROOT / "examples" / "rollouts" / "rollouts.jsonl.gz"
TOKENIZER = ROOT / "examples" / "rollouts" / "tokenizer.json"

TABLE = {
    "prompts": [[1, 2], [1, 2, 3, 9], [5], [5, 6, 7], [8]],
    "responses": [[3], [4, 5], [6], [7, 8], [9, 9]],
    "loss_mask": [[1], [1, 0], [1], [1, 1], [0, 0]],
    "rewards": [0.0, 1.0, 0.0, 0.5, 0.0],
    "uids": ["a", "a", "b", "b", "c"],
    "trajectory_ids": ["a0", "a0", "b0", "b0", "c0"],
}


@pytest.fixture(autouse=True)
def whole_lines(monkeypatch):
    """Workers of pytest have ``COLUMNS``."""
    monkeypatch.delenv("COLUMNS", raising=False)


def write(path, table=TABLE):
    """Write a table in the format of a file name."""
    name = path.name
    table = table if isinstance(table, pa.Table) else pa.table(table)
    if ".parquet" in name:
        pq.write_table(table, path, row_group_size=2)
    elif ".arrow" in name or ".stream" in name:
        make = pa.ipc.new_file if ".arrow" in name else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    else:
        text = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
        opened = gzip.open if name.endswith(".gz") else open
        with opened(path, "wt", encoding="utf-8") as file:
            file.write(text)
    return path


@pytest.fixture
def rollouts(tmp_path):
    return write(tmp_path / "rollouts.parquet")


def shown(capsys, *arguments):
    """Run a command that ends well, and return what it prints as JSON."""
    code = run([*map(str, arguments), "--json"])
    found = capsys.readouterr()
    assert code == 0, found.err
    return json.loads(found.out)


def rows_of(path, capsys, *arguments):
    numbers = [option for row in range(1, 6) for option in ("--row", row)]
    return shown(capsys, "view", path, *numbers, *arguments)


EXPECTED = [
    {
        "row": row + 1,
        "prompt": TABLE["prompts"][row],
        "response": TABLE["responses"][row],
        **{name: TABLE[name][row] for name in ("loss_mask", "rewards", "uids", "trajectory_ids")},
    }
    for row in range(5)
]


@pytest.mark.parametrize(
    "name",
    ["r.parquet", "r.arrow", "r.stream", "r.jsonl", "r.json", "r.jsonl.gz", "parquet.without_name"],
)
def test_forms(name, tmp_path, capsys):
    path = write(tmp_path / name)
    assert rows_of(path, capsys) == EXPECTED


def test_an_option_that_is_nearly_one(rollouts, capsys):
    for wrong in ("--prompt", "--promts"):
        assert run(["view", str(rollouts), wrong, "prompts"]) == 2
        assert f"No such option: {wrong} (Possible options: --prompts)" in capsys.readouterr().err


def test_an_option_by_its_unit(rollouts, capsys):
    assert run(["plan", str(rollouts), "--ranks", "4"]) == 2
    assert "No such option: --ranks (Possible options: --dp-size)" in capsys.readouterr().err
    assert run(["plan", "rollouts.jsonl", "--world-size=2"]) == 2
    assert "--world-size (Possible options: --dp-size)" in capsys.readouterr().err


def test_a_folder(tmp_path, capsys):
    table = pa.table(TABLE)
    write(tmp_path / "0.parquet", table.slice(0, 1))
    write(tmp_path / "1.jsonl", table.slice(1, 2))
    write(tmp_path / "2.arrow", table.slice(3))
    (tmp_path / "README.txt").write_text("no rollouts")
    assert rows_of(tmp_path, capsys) == EXPECTED
    assert shown(capsys, "plan", tmp_path)["rows"] == 3  # a trajectory is in two files


NAMES = {
    "ours": {},
    "skyrl": {
        "prompts": "prompt_token_ids", "responses": "response_ids", "loss_mask": "loss_masks",
        "trajectory_ids": "trajectory_id", "uids": "uid",
    },
    "trl": {"prompts": "prompt_ids", "responses": "completion_ids", "loss_mask": "completion_mask"},
    "prime-rl": {
        "prompts": "prompt_ids", "responses": "completion_ids", "loss_mask": "completion_mask",
        "rewards": "reward",
    },
    "verl": {"loss_mask": "response_mask", "rewards": "token_level_rewards", "uids": "uid"},
    "samples": {"prompts": "prompt", "responses": "completion"},
}  # fmt: skip


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_names_of_frameworks(names, tmp_path, capsys):
    table = {names.get(name, name): values for name, values in TABLE.items()}
    table |= {"prompt": ["text"] * 5} if "prompt" not in table else {}  # which is left alone
    assert rows_of(write(tmp_path / "r.parquet", table), capsys) == EXPECTED


def test_names_that_are_given(tmp_path, capsys):
    table = {"in": TABLE["prompts"], "out": TABLE["responses"], "mask": TABLE["loss_mask"]}
    table |= dict.fromkeys(("completion_mask", "tool_mask"), TABLE["responses"])
    path = write(tmp_path / "r.parquet", table)
    found = rows_of(path, capsys, "--prompts", "in", "--responses", "out", "--loss-mask", "mask")
    assert found == [
        {name: row[name] for name in ("row", "prompt", "response", "loss_mask")} for row in EXPECTED
    ]


def test_padded_rows_of_verl(tmp_path, capsys):
    """Prompts are padded on the left to 4 tokens, responses on the right to 2."""
    lens = [(len(p), len(r)) for p, r in zip(TABLE["prompts"], TABLE["responses"], strict=True)]
    rewards = [[0.0] * (r - 1) + [1.0] for _, r in lens]
    table = {
        "prompts": [[0] * (4 - len(row)) + row for row in TABLE["prompts"]],
        "responses": [row + [0] * (2 - len(row)) for row in TABLE["responses"]],
        "response_mask": [row + [0] * (2 - len(row)) for row in TABLE["loss_mask"]],
        "token_level_rewards": [row + [0.0] * (2 - len(row)) for row in rewards],
        "advantages": [row + [0.0] * (2 - len(row)) for row in rewards],
        "attention_mask": [[0] * (4 - p) + [1] * (p + r) + [0] * (2 - r) for p, r in lens],
    }
    found = rows_of(write(tmp_path / "r.parquet", table), capsys)
    assert [row["prompt"] for row in found] == TABLE["prompts"]
    assert [row["response"] for row in found] == TABLE["responses"]
    assert [row["loss_mask"] for row in found] == TABLE["loss_mask"]
    assert [row["rewards"] for row in found] == rewards


@pytest.mark.parametrize("how", ["mask", "prompt_lens", "neither"])
def test_whole_sequences(how, tmp_path, capsys):
    pairs = list(zip(TABLE["prompts"], TABLE["responses"], strict=True))
    table = {"input_ids": [p + r for p, r in pairs]}
    if how == "mask":
        table["completion_mask"] = [[0] * len(p) + [1] * len(r) for p, r in pairs]
    elif how == "prompt_lens":
        table["prompt_len"] = [len(p) for p, _ in pairs]
    found = rows_of(write(tmp_path / "r.parquet", table), capsys)
    if how == "neither":
        assert [row["response"] for row in found] == table["input_ids"]
        return
    assert [(row["prompt"], row["response"]) for row in found] == pairs


def test_names_of_trajectories_that_are_structs(tmp_path, capsys):
    ids = [{"instance_id": name[0], "repetition_id": 0} for name in TABLE["trajectory_ids"]]
    path = write(tmp_path / "r.parquet", TABLE | {"trajectory_ids": ids})
    assert rows_of(path, capsys)[2]["trajectory_ids"] == "b/0"


def test_numbers_that_are_whole_at_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "CHUNK_BYTES", 4 * 1024)
    rows = 400
    table = {"prompts": [[1, 2]] * rows, "responses": [[3, 4]] * rows}
    table["rewards"] = [0] * (rows - 1) + [0.5]
    path = tmp_path / "r.jsonl"
    with open(path, "w") as file:
        for row in range(rows):
            file.write(json.dumps({name: values[row] for name, values in table.items()}) + "\n")
    assert shown(capsys, "view", path, "--row", rows)[0]["rewards"] == 0.5


GOLDEN = json.loads((ROOT / "tests" / "golden" / "rollout_sources.json").read_text())


TRACES = ["verifiers", "rllm", "tinker", "slime", "nemo-rl", "verl"]


@pytest.mark.parametrize("options", [[], ["--schema"]])
@pytest.mark.parametrize(
    ("source", "name"),
    [
        *((source, "r.jsonl") for source in TRACES),
        *((source, "r.parquet") for source in TRACES),
        *(("verifiers", name) for name in ("r.jsonl.gz", "r.arrow", "whole.json")),
    ],
)
def test_traces(source, name, options, tmp_path, capsys):
    """Files of traces need no options; a row is a call, or a leaf of a tree."""
    body = GOLDEN[source]["body"]
    bodies = [body] * 3
    path = tmp_path / name
    if name == "whole.json":
        path.write_text(json.dumps(bodies, indent=1))
    else:
        write(path, pa.Table.from_pylist(json.loads(json.dumps(bodies))))
    options = [*options, source] if options else []
    calls = fc.rollouts.parse([json.dumps(body).encode()] * 3, source, unfinished="keep")
    found = shown(capsys, "view", path, "--row", len(calls), "--row", 1, *options)
    assert [row["row"] for row in found] == [len(calls), 1]
    for row, call in zip(found, (len(calls) - 1, 0), strict=True):
        assert row["prompt"] == calls.prompts[call].tolist()
        assert row["response"] == calls.responses[call].tolist()
        mask = [1] * len(row["response"])
        expected = mask if calls.loss_mask is None else calls.loss_mask[call].tolist()
        assert row.get("loss_mask", mask) == expected
        assert row["logprobs"] == calls.logprobs[call].tolist()
    if source not in ("rllm",):  # each of whose lines would be the same trajectories
        assert shown(capsys, "report", path, "-o", tmp_path / "r.html", *options)["turns"] == len(
            calls
        )
    assert run(["view", str(path), "--row", "1", "--row", "2"]) == 0
    text = capsys.readouterr().out.replace("\xa0", " ")
    assert f"row 1 of {len(calls)}, " in text
    assert text.count("left out") == 1  # one legend


def test_responses_of_engines(tmp_path, monkeypatch, capsys):
    """A body is a group, also of those in later parts of a file."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 400)
    bodies = [
        {"prompt_token_ids": [1, i], "choices": [{"token_ids": [2, j]} for j in range(2)]}
        for i in range(20)
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, bodies)))
    for options in ([], ["--schema", "engines"]):
        found = shown(capsys, "plan", path, "--prompts-per-mini-batch", 1, *options)
        assert (found["rows"], found["mini_batches"]) == (40, 20)


def test_chunks_are_whole_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_TOKENS", 8)
    monkeypatch.setattr(files, "CHUNK_BYTES", 1024)
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, 100)
    ids = np.repeat(np.arange(len(sizes)), sizes).tolist()
    table = {"prompts": [[i] for i in ids], "responses": [[i, 1] for i in ids], "uids": ids}
    for name in ("r.parquet", "r.jsonl", "r.arrow"):
        source = files.Source.of(write(tmp_path / name, table), {})
        chunks = list(source.chunks())
        assert len(chunks) > 10
        assert [uid for rows in chunks for uid in rows.ids["uids"]] == ids
        assert [rows.first_row for rows in chunks] == np.cumsum(
            [1, *(len(rows.calls) for rows in chunks[:-1])]
        ).tolist()
        for one, after in pairwise(chunks):
            assert one.ids["uids"][-1] != after.ids["uids"][0]


@pytest.mark.parametrize("end", ["\n", ""])
def test_the_last_line_is_read_with_those_before_it(end, tmp_path, capsys):
    """Whether or not the file ends with a line break."""
    path = tmp_path / "r.jsonl"
    rows = [{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}, {"input_ids": [1, 2, 3]}]
    path.write_text("\n".join(map(json.dumps, rows)) + end)
    assert run(["view", str(path)]) == 1
    assert "line 2 has neither the length of its prompt" in capsys.readouterr().err


def test_a_plan(rollouts, tmp_path, capsys):
    output = tmp_path / "plan.json"
    found = shown(capsys, "plan", rollouts, "--dp-size", 2, "--capacity", 8, "-o", output)
    assert (found["rows_are"], found["rows"], found["ranks"]) == ("merged turns", 3, 2)
    assert sum(found["load_per_rank"]) == 6 + 5 + 3
    plan = fc.planning.StepPlan.from_dict(json.loads(output.read_text()))
    assert plan.dp_size == 2
    assert plan.row_lengths.sum(1).tolist() == [6, 5, 3]
    assert len(plan.bin_offsets) - 1 == found["bins"]
    (one,) = found["per_mini_batch"]
    assert (found["prompts"], one["prompts"], one["rows"], one["padding_rows"]) == (3, 3, 3, 0)
    assert one["tokens_per_rank"] == plan.tokens_per_rank[0].tolist()
    assert one["bins_per_rank"] * 2 == found["bins"]
    assert one["imbalance"] == max(one["tokens_per_rank"]) / (14 / 2)
    assert found["remarks"] == []
    few = shown(capsys, "plan", rollouts, "--dp-size", 2, "--prompts-per-mini-batch", 2)
    assert [one["rows"] for one in few["per_mini_batch"]] == [2, 1]
    assert few["remarks"] == [
        "mini-batch 1: 1 rank without a real row",
        "the last mini-batch is smaller: it has 1 of 2",
    ]
    turns = shown(capsys, "plan", rollouts, "--merge", "none", "--prompts-per-mini-batch", 1)
    assert (turns["rows_are"], turns["rows"], turns["mini_batches"]) == ("turns", 5, 3)
    assert run(["plan", str(rollouts), "--dp-size", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("read as columns: prompts, responses, loss_mask, rewards, uids, traj")
    assert "StepPlan: 3 rows of 3 prompts" in printed
    assert run(["plan", str(rollouts), "--prompts-per-mini-batch", "2"]) == 0
    assert "the last mini-batch is smaller: it has 1 of 2" in capsys.readouterr().out
    assert run(["plan", str(rollouts), "--rows-per-mini-batch", "9"]) == 0
    printed = capsys.readouterr().out
    assert "the only mini-batch is smaller: it has 3 of 9" in printed
    assert printed.count("padding rows") == 1  # figures of the description are not repeated


def test_rows_of_a_plan_that_are_apart(tmp_path, capsys):
    """Only mini-batches of prompts need the rows of each next to each other."""
    table = {name: TABLE[name] for name in ("prompts", "responses")}
    path = write(tmp_path / "r.jsonl", table | {"uids": ["a", "b", "a", "b", "c"]})
    found = shown(capsys, "plan", path)
    assert (found["rows_are"], found["rows"], found["prompts"]) == ("rows", 5, 5)
    assert "so each row counts as a prompt" in found["remarks"][-1]
    assert run(["plan", str(path)]) == 0
    assert "so each row counts as a prompt" in capsys.readouterr().out
    assert run(["plan", str(path), "--prompts-per-mini-batch", "1"]) == 1
    assert "the rows of prompt 'a' are not next to each other" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["response", "completion"])
@pytest.mark.parametrize("options", [[], ["--schema", "engines"]])
def test_columns_around_responses(key, options, tmp_path, capsys):
    """The plain columns of a row belong to all calls inside it."""
    choices = [{"token_ids": [2, at], "finish_reason": "stop"} for at in range(2)]
    body = {"prompt_token_ids": [1], "choices": choices}
    around = {"uid": "a", "reward": 0.5, "weight_version": 3}
    path = tmp_path / "r.jsonl"
    for row in ({key: body, **around}, body | around):
        path.write_text(json.dumps(row))
        found = shown(capsys, "view", path, "--row", 1, "--row", 2, *options)
        assert [(row["response"], row["uids"], row["rewards"]) for row in found] == [
            ([2, 0], "a", 0.5),
            ([2, 1], "a", 0.5),
        ]
        figures = shown(capsys, "report", path, "-o", tmp_path / "r.html", *options)
        assert (figures["versions"]["latest"], figures["unread"]) == (3, [])
        assert figures["source"].startswith("engines: ")


def test_outputs_of_ms_swift(tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(GOLDEN["ms-swift"]["body"]))
    assert shown(capsys, "plan", path)["source"].startswith("ms-swift: ")


def test_values_that_are_not_numbers(tmp_path, capsys):
    """Null is NaN, which JSON lacks; a known name with other values is not read."""
    table = TABLE | {"rewards": [0.0, None, float("nan"), 0.5, 0.0]}
    table["logprobs"] = [[float("-inf")] * len(row) for row in TABLE["responses"]]
    path = write(tmp_path / "r.parquet", table)
    rows = rows_of(path, capsys)
    assert [row["rewards"] for row in rows] == [0.0, None, None, 0.5, 0.0]
    assert rows[0]["logprobs"] == [None]
    assert run(["view", str(path), "--row", "2", "--field", "rewards"]) == 0
    assert "nan" in capsys.readouterr().out
    assert run(["report", str(path), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    assert "NaN" not in re.sub(r'"[^"]*"', "", capsys.readouterr().out)
    for rewards, why in (
        (["0.5"] * 5, "reward (text, not numbers)"),
        ([{"name": "a", "acc": 1.0}] * 5, "reward (a struct: pass --rewards reward.acc)"),
    ):
        table = {name: TABLE[name] for name in ("prompts", "responses")} | {"reward": rewards}
        for name in ("r.parquet", "r.jsonl"):
            path = write(tmp_path / name, table)
            figures = shown(capsys, "report", path, "-o", tmp_path / "r.html")
            assert figures["unread"] == [why]


def test_ids_that_the_tokenizer_lacks(tmp_path, capsys):
    table = TABLE | {"responses": [[3], [4, 5000], [6], [7, 8], [9, 9]]}
    path = write(tmp_path / "r.parquet", table)
    options = ["--tokenizer", str(TOKENIZER)]
    assert run(["view", str(path), "--row", "2", *options]) == 0
    assert "⟨?5000⟩" in capsys.readouterr().out
    found = shown(capsys, "report", path, "-o", tmp_path / "r.html", *options)["findings"]
    assert "outside_vocabulary" in [one["kind"] for one in found]


def test_labels_split_sequences(tmp_path, capsys):
    pairs = list(zip(TABLE["prompts"], TABLE["responses"], strict=True))
    table = {"input_ids": [p + r for p, r in pairs]}
    table["labels"] = [[-100] * len(p) + r for p, r in pairs]
    for name in ("r.parquet", "r.jsonl"):
        found = rows_of(write(tmp_path / name, table), capsys)
        assert [(row["prompt"], row["response"]) for row in found] == pairs


def test_costs(rollouts, tmp_path, capsys):
    costs = fc.planning.Costs(per_token=2.0, per_pair=1.0)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs.to_dict()))
    found = shown(capsys, "plan", rollouts, "--costs", path, "--dp-size", 3)
    assert found["cost"] == repr(costs)
    assert sum(found["load_per_rank"]) == costs.of([6, 5, 3]).sum()
    path.write_text('{"per_token": 1e6}')
    assert run(["plan", str(rollouts), "--costs", str(path), "--dp-size", "2"]) == 0
    assert "load per rank: 9,000,000, 7,000,000\n" in capsys.readouterr().out


def test_a_view(rollouts, capsys):
    assert run(["view", str(ROLLOUTS), "--tokenizer", str(TOKENIZER), "--row", "13"]) == 0
    text = capsys.readouterr().out.replace("\xa0", " ")
    assert "row 13 of 1,544, uid decimal, trajectory decimal/1" in text
    assert "decimal" in text
    assert run(["view", str(rollouts), "--row", "4", "--field", "rewards", "--all"]) == 0
    assert "2 trained, rewards 0.5\n" in (text := capsys.readouterr().out).replace("\xa0", " ")
    named = write(rollouts.with_name("named.parquet"), {**TABLE, "reward": TABLE["rewards"]})
    options = ["--row", "4", "--rewards", "reward", "--field", "reward", "--all"]
    assert run(["view", str(named), *options]) == 0
    assert capsys.readouterr().out == text
    found = shown(capsys, "view", ROLLOUTS, "--tokenizer", TOKENIZER, "--row", 13)
    assert isinstance(found[0]["response_text"], str)


@pytest.mark.parametrize("advantages", [TABLE["rewards"], TABLE["responses"]])
def test_fields_of_a_view(advantages, tmp_path, capsys):
    path = write(tmp_path / "r.parquet", {**TABLE, "advantages": advantages})
    assert rows_of(path, capsys)[3]["advantages"] == advantages[3]
    for field in ("advantages", "loss_mask"):
        assert run(["view", str(path), "--row", "4", "--field", field]) == 0
        assert field in capsys.readouterr().out.replace("\xa0", " ")
    assert run(["view", str(path), "--field", "logprobs"]) == 2
    assert "only loss_mask, rewards, advantages" in capsys.readouterr().err


ERRORS = {
    "no file": (["view", "absent.parquet"], "absent.parquet does not exist; pass a file"),
    "no form": (
        ["view", "text.txt"],
        "text.txt is not a Parquet, Arrow IPC or JSON lines file; write its rows as one",
    ),
    "another form": (["view", "wrong.parquet"], "named as Parquet, but has another format"),
    "broken": (["view", "broken.parquet"], "broken.parquet cannot be read as Parquet: "),
    "bad line": (["report", "bad.jsonl"], "bad.jsonl, line 2, byte 14: the body"),
    "what to do": (["report", "bad.jsonl"], "; correct this line, or remove it"),
    "no columns": (
        ["report", "other.parquet"],
        "no token ids of prompts and responses under a known name; it has id (string), count "
        "(int64); name columns of lists of integers with --prompts COLUMN and --responses COLUMN, ",
    ),
    "no such column": (
        ["view", "r.parquet", "--prompts", "ids"],
        "--prompts is 'ids', but r.parquet has no such column; name one of prompts (list",
    ),
    "another type": (
        ["view", "r.parquet", "--prompts", "uids"],
        "--prompts is 'uids', which is string in r.parquet; name a column of token ids",
    ),
    "no rows": (["report", "empty.parquet"], "empty.parquet has no rows; pass a file of"),
    "empty folder": (["plan", "folder"], "folder contains no rollouts; pass a folder with"),
    "lengths": (
        ["report", "ragged.parquet"],
        "ragged.parquet, row 4 has a loss mask of 1 item, but its response has 2 tokens",
    ),
    "null lines": (["plan", "null.jsonl"], "null.jsonl cannot be read as JSON lines: it does not"),
    "packed null lines": (["view", "null.jsonl.gz"], "JSON lines: it does not begin with '{'"),
    "an array": (["report", "array.json"], "array.json has no rows; pass a file of rollouts"),
    "no lines": (["view", "empty.jsonl"], "empty.jsonl has no rows; pass a file of rollouts"),
    "null": (["plan", "null.parquet"], "null.parquet, row 2 has no prompt ids; name their"),
    "no such row": (["view", "r.parquet", "--row", "6"], "--row is 6, but r.parquet has rows 1 to"),
    "no tokenizer": (
        ["view", "r.parquet", "--tokenizer", "t.json"],
        "--tokenizer is t.json, but t.json does not exist; pass",
    ),
    "bad tokenizer": (
        ["view", "r.parquet", "--tokenizer", "bad.jsonl"],
        "--tokenizer is bad.jsonl, but bad.jsonl is not a tokenizer: ",
    ),
    "another tokenizer": (
        ["report", "large.parquet", "--tokenizer", str(TOKENIZER)],
        f"--tokenizer is {TOKENIZER}, which knows ids below 4096, but the prompt of large.parquet, "
        "row 1 has the id 5001, and most other ids are as high; pass the tokenizer of the model",
    ),
    "no folder": (
        ["report", "r.parquet", "-o", "no/r.html"],
        "--output is no/r.html, but there is no folder no; make it",
    ),
    "a folder": (
        ["report", "r.parquet", "-o", "folder"],
        "--output is folder, which is a folder; pass the name of",
    ),
    "no costs": (
        ["plan", "r.parquet", "--costs", "bad.jsonl"],
        "--costs is bad.jsonl, which has no costs: ",
    ),
    "too small": (
        ["plan", "r.parquet", "--capacity", "4"],
        "--capacity is 4, but row 2 has 6 tokens; pass at least 6",
    ),
    "no field": (["view", "r.parquet", "--field", "logprobs"], "--field is 'logprobs', but r."),
    "turns that are apart": (
        ["report", "apart.parquet"],
        "apart.parquet: the turns of trajectory 'a' are not next to each other; sort the file, or",
    ),
    "prompts that are apart": (
        ["plan", "apart.parquet", "--merge", "none", "--prompts-per-mini-batch", "1"],
        "apart.parquet: the rows of prompt 'x' are not next to each other; sort the file, or ",
    ),
    "a reward that is text": (
        ["report", "reward.jsonl"],
        "reward.jsonl, row 2: its reward is 'good'; leave such rows out, or name other rewards",
    ),
    "a flag that differs": (
        ["report", "flags.parquet"],
        "flags.parquet: is_last_step of row 2 is False, but trajectory_ids of rows 2 and 3 differ",
    ),
    "no id": (
        ["plan", "ids.parquet"],
        "ids.parquet, row 2 has no value in the column 'uids'; fill it, or name another column "
        "with --uids COLUMN",
    ),
    "pairs": (
        ["view", "chosen.jsonl"],
        "chosen.jsonl has preference pairs (chosen, rejected), which the commands do not read; ",
    ),
    "pairs of ids": (
        ["view", "chosen_ids.parquet"],
        "has preference pairs (chosen_input_ids, rejected_input_ids), which the commands do not",
    ),
    "no ids of responses": (
        ["view", "openai.jsonl"],
        "openai.jsonl has OpenAI responses without token ids of prompts and responses; ask the "
        "server for return_token_ids=True",
    ),
    "a float": (["view", "float.jsonl"], "float.jsonl, line 2, byte 31: 1.5 is not a token id, "),
    "a table of another source": (
        ["view", "other.parquet", "--schema", "engines"],
        "--schema is 'engines', but other.parquet has no tokens under its keys; leave it out, or ",
    ),
    "a pipe": (["view", "-"], "- is a pipe, which cannot be read twice; pass a file"),
    "chat": (["view", "chat.jsonl"], "chat.jsonl has chat messages (messages), but no token ids; "),
    "chat of prompts and completions": (
        ["view", "pairs.jsonl"],
        "pairs.jsonl has chat messages (prompt, completion), but no token ids; ",
    ),
    "chat in a table": (
        ["view", "pairs.parquet"],
        "pairs.parquet has chat messages (prompt), but no token ids; ",
    ),
    "text": (
        ["view", "text.jsonl"],
        "text.jsonl has text (prompt, completion), but no token ids; ",
    ),
    "no such source": (
        ["view", "r.parquet", "--schema", "x"],
        "--schema is 'x'; leave it out, so that",
    ),
    "another source": (
        ["view", "r.parquet", "--schema", "tinker"],
        "--schema is 'tinker', but r.parquet has no tokens of responses under its keys; leave it "
        "out: the rows are recognised as columns",
    ),
    "a long name": (
        ["report", "r.parquet", "-o", "x" * 300],
        f"--output is {'x' * 300}: File name too long; pass another name",
    ),
    "cut off": (["view", "cut.jsonl.gz"], "cut.jsonl.gz cannot be read as JSON lines: "),
    "no bytes": (["view", "nothing.parquet"], "nothing.parquet has no rows; pass a file of"),
    "numbers": (["plan", "numbers.json"], "numbers.json has 5 where a row is expected; write one"),
    "floats": (["plan", "floats.jsonl"], "it has prompt_ids (list of float), response_ids"),
    "null at first": (
        ["report", "floats.jsonl", "--logprobs", "logprobs"],
        "--logprobs is 'logprobs', which is null in the first row in floats.jsonl; name a column",
    ),
    "flags that are none": (
        ["report", "r.parquet", "--is-last-step", "uids"],
        "--is-last-step is 'uids', which is string in r.parquet; name a column of booleans",
    ),
    "padded rewards": (
        ["view", "padded.jsonl"],
        "padded.jsonl, row 2 has 3 rewards, but its response has 1 token; pass one per token, and ",
    ),
    "two kinds of rewards": (
        ["report", "kinds.jsonl"],
        "kinds.jsonl, row 2: its reward is 1.0 (float); write a list for each row, or for none",
    ),
    "two kinds of rewards in two parts": (
        ["report", "kinds-parts"],
        "kinds-parts/1.jsonl, row 1: its reward is 1.0; write a list for each row, or for none",
    ),
    "a line without a response": (
        ["plan", "half.jsonl"],
        "; name their column with --responses COLUMN, or remove this line",
    ),
    "a line of text": (
        ["view", "line.jsonl"],
        "line.jsonl, line 2: 'no rollouts' is not JSON; correct or remove this line",
    ),
    "another encoding": (
        ["view", "latin.jsonl"],
        ": this is not UTF-8 text; write the file in UTF-8",
    ),
    "a bad first line": (
        ["view", "first.jsonl"],
        "(char 1); write one JSON object per line, in UTF-8",
    ),
    "two masks": (
        ["view", "masks.jsonl"],
        "multiply them into a column 'loss_mask', or name one with --loss-mask COLUMN",
    ),
    "two sizes": (
        ["plan", "r.parquet", "--rows-per-mini-batch", "1", "--prompts-per-mini-batch", "1"],
        "--prompts-per-mini-batch and --rows-per-mini-batch are both given; pass one of them",
    ),
    "no uids": (
        ["plan", "plain.parquet", "--prompts-per-mini-batch", "2"],
        "--prompts-per-mini-batch needs the prompts of rows; name their column with --uids COLUMN",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_are_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(Path("r.parquet"))
    write(Path("plain.parquet"), {name: TABLE[name] for name in ("prompts", "responses")})
    write(Path("other.parquet"), {"id": ["a"], "count": [1]})
    write(Path("empty.parquet"), pa.table(TABLE).slice(0, 0))
    write(Path("ragged.parquet"), TABLE | {"loss_mask": [[1], [1, 0], [1], [1], [0, 0]]})
    write(Path("null.parquet"), TABLE | {"prompts": [[1], None, [2], [3], [4]]})
    large = {
        name: [[5000 + token for token in row] for row in TABLE[name]]
        for name in ("prompts", "responses")
    }
    write(Path("large.parquet"), TABLE | large)
    apart = {"trajectory_ids": ["a", "b", "a", "c", "d"], "uids": ["x", "y", "x", "z", "z"]}
    write(Path("apart.parquet"), TABLE | apart)
    write(Path("flags.parquet"), TABLE | {"is_last_step": [False] * 5})
    write(Path("ids.parquet"), TABLE | {"uids": ["a", None, "b", "b", "c"]})
    row = {"prompt_ids": [1], "response_ids": [2], "reward": 1.0}
    Path("reward.jsonl").write_text("\n".join(map(json.dumps, [row, {**row, "reward": "good"}])))
    lines = '{"prompts": [1], "responses": [2]}', '{"prompts": [1], "responses": [1.5]}'
    Path("float.jsonl").write_text("\n".join(lines))
    turn = {"prompts": [1], "responses": [2]}
    for name, others in {
        "padded": {"rewards": [1.0, 0.0, 0.0]},
        "kinds": {"rewards": 1.0},
        "half": {"responses": None},
        "masks": {"tool_mask": [1], "completion_mask": [1]},
    }.items():
        rows = [turn | ({"rewards": [1.0]} if name != "masks" else others), turn | others]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(f"{name}-parts").mkdir()
        for part, row in enumerate(rows):
            Path(f"{name}-parts", f"{part}.jsonl").write_text(json.dumps(row))
    Path("line.jsonl").write_text(json.dumps(turn) + "\nno rollouts\n")
    latin = '\n{"prompts": [1], "responses": [2], "uid": "\xe9"}'
    Path("latin.jsonl").write_bytes((json.dumps(turn) + latin).encode("latin-1"))
    Path("first.jsonl").write_text("{1")
    pairs = {"prompt": "x", "chosen": "y", "rejected": "z"}
    Path("chosen.jsonl").write_text(json.dumps(pairs))
    ids = ("prompt_input_ids", "chosen_input_ids", "rejected_input_ids")
    write(Path("chosen_ids.parquet"), {key: [[1]] for key in ids})
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}}
    Path("openai.jsonl").write_text(json.dumps({"choices": [choice]}))
    Path("text.txt").write_text("no rollouts")
    chat = [{"role": "user", "content": "x"}]
    Path("chat.jsonl").write_text(json.dumps({"messages": chat}))
    Path("pairs.jsonl").write_text(json.dumps({"prompt": chat, "completion": chat}))
    write(Path("pairs.parquet"), {"prompt": [chat]})
    Path("text.jsonl").write_text('{"prompt": "x", "completion": "y"}\n')
    Path("wrong.parquet").write_text("no rollouts")
    Path("broken.parquet").write_bytes(Path("r.parquet").read_bytes()[:100])
    Path("bad.jsonl").write_text('{"prompts": [1], "responses": [2]}\n{"prompts": [1\n')
    Path("null.jsonl").write_text("null\n")
    Path("null.jsonl.gz").write_bytes(gzip.compress(b"null\n"))
    Path("array.json").write_text("[]")
    Path("empty.jsonl").write_text("\n")
    Path("cut.jsonl.gz").write_bytes(gzip.compress(b"null\n")[:-6])
    Path("nothing.parquet").write_bytes(b"")
    Path("numbers.json").write_text("[5, 7]")
    floats = {"prompt_ids": [1.0], "response_ids": [2.0], "logprobs": None}
    Path("floats.jsonl").write_text(json.dumps(floats))
    Path("folder").mkdir()
    before = sorted(Path().rglob("*"))
    code = run(arguments)
    found = capsys.readouterr()
    assert code == (2 if message.startswith("--") else 1)
    assert found.out == ""
    assert found.err.startswith("fastcollate: ")
    assert found.err.count("\n") == 1
    assert message in found.err
    assert sorted(Path().rglob("*")) == before  # nothing half-written
    with pytest.raises(Exception, match=r".") as caught:
        run([*arguments, "--debug"])
    assert in_flags(" ".join(str(caught.value).split())) in found.err


def test_errors_in_a_folder_name_the_file(tmp_path, capsys):
    table = pa.table(TABLE | {"uids": ["a", "a", "b", None, "c"]})
    write(tmp_path / "0.parquet", table.slice(0, 2))
    write(tmp_path / "1.parquet", table.slice(2))
    assert run(["plan", str(tmp_path)]) == 1
    assert "1.parquet, row 2 has no value in the column 'uids'" in capsys.readouterr().err


def test_wrong_usage(rollouts, capsys):
    for arguments in (["nothing"], ["view"], ["view", "x", "y"], ["view", "x", "--nope"]):
        assert run(arguments) == 2
        assert re.fullmatch("fastcollate: .*[^.]\n", capsys.readouterr().err)
    assert run([]) == 2
    assert "Commands" in "".join(capsys.readouterr())
    for arguments in (
        ["view", rollouts, "--schema", "foo"],
        ["view", rollouts, "--row", "0"],
        ["view", rollouts, "--field", "x"],
        ["view", rollouts, "--tokenizer", "/nope"],
        ["plan", rollouts, "--rows-per-mini-batch", "1", "--prompts-per-mini-batch", "1"],
        ["plan", rollouts, "--dp-size", "0"],
        ["plan", rollouts, "--costs", "nope"],
        ["report", rollouts, "--merge", "always"],
        ["verify", "--seconds", "0"],
        ["verify", "--framework", "foo"],
    ):
        assert run([*map(str, arguments)]) == 2
        assert capsys.readouterr().err.startswith("fastcollate: --")
    assert run(["report", str(rollouts), "--batch-rows", "5"]) == 2
    assert "(Possible options: --rows-per-mini-batch)" in capsys.readouterr().err
    assert run(["--version"]) == 0
    assert fc.__version__ in capsys.readouterr().out
    assert run(["report", "--help"]) == 0
    assert "--trajectory-ids" in (text := capsys.readouterr().out)
    assert text.count("fastcollate report ") == 2  # examples


@pytest.mark.parametrize("columns", ["40", "80"])
def test_help_has_whole_names(columns):
    command = [sys.executable, "-m", "fastcollate", "plan", "--help"]
    environment = os.environ | {"COLUMNS": columns}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "--prompts-per-mini-batch" in shown.stdout


def test_the_list_of_commands_imports_none():
    """They would take a quarter of the time."""
    program = (
        "import sys\n"
        "from fastcollate.cli.app import run\n"
        "assert run(['--help']) == 0\n"
        "assert not {'pyarrow', 'fastcollate.cli.view'} & sys.modules.keys()\n"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Show rows: the prompt" in shown
    assert "Compare results with" in shown


def test_a_file_that_cannot_be_replaced(rollouts, tmp_path, monkeypatch, capsys):
    output = tmp_path / "plan.json"
    output.write_text("before")

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    assert run(["plan", str(rollouts), "-o", str(output)]) == 1
    assert "no space left" in capsys.readouterr().err
    assert output.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "rollouts.parquet"]


@pytest.mark.parametrize("columns", [40, 200])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("view r.parquet", 0),
        ("view r.parquet --all --row 1 --row 2 --field rewards", 0),
        ("plan r.parquet --capacity 8 --dp-size 4 -o plan.json", 0),
        ("plan r.parquet --dp-size 4 --rows-per-mini-batch 4", 0),
        ("report r.parquet -o report-of-all-the-rollouts.html", 0),
        ("verify", 0),
        *((f"{command} --help", 0) for command in ("", "view", "plan", "report", "verify")),
        ("view absent.parquet", 1),
        ("view " + "x" * 99, 1),
        ("report r.parquet --capacity 1 -o no-such-folder/report.html", 2),
        ("plan", 2),
        ("plan r.parquet --dp-size none", 2),
    ],
)
def test_lines_are_as_wide_as_the_terminal(columns, arguments, code, tmp_path, monkeypatch, capsys):
    """Also through a pipe, if ``COLUMNS`` is set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    same = verification.Line("plain references", "f" * 45, Outcome(40, None, 39.9, None))
    absent = verification.Line("TRL 1", "collate", Outcome(0, None, None, "torch, and a long name"))
    monkeypatch.setattr(verification, "_compare_all", lambda *_: iter([same, absent]))
    write(tmp_path / "r.parquet")
    assert run(arguments.split()) == code
    found = capsys.readouterr()
    text = found.err if code else found.out
    assert text
    assert max(map(len, text.splitlines())) <= columns


def test_commands_do_without_pandas(rollouts):
    """PyArrow imports it on several ways to NumPy, which takes a second."""
    program = (
        "import sys\n"
        "from fastcollate.cli.app import run\n"
        f"assert run(['view', {str(rollouts)!r}]) == 0\n"
        f"assert run(['plan', {str(rollouts)!r}]) == 0\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def test_as_a_module(tmp_path):
    write(tmp_path / "r.parquet")
    command = [sys.executable, "-m", "fastcollate", "plan", "r.parquet", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout)["rows"] == 3
    assert done.stderr == ""


def test_a_command_that_is_interrupted(rollouts, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.Source, "of", stop)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert run(["view", str(rollouts)]) == 130


def test_a_reader_that_ends(rollouts):
    """As head does."""
    command = [sys.executable, "-m", "fastcollate", "plan", str(rollouts), "--json"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipe) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("prompts", "responses"), [([[]], [[]]), ([[1]], [[]]), ([[]], [[1]]), ([[1], []], [[], [2]])]
)
def test_rows_of_few_tokens(prompts, responses, tmp_path, capsys):
    table = {
        "prompts": prompts,
        "responses": responses,
        "trajectory_ids": list("ab")[: len(prompts)],
    }
    for name in ("r.parquet", "r.jsonl"):
        path = write(tmp_path / name, table)
        found = shown(capsys, "report", path, "-o", tmp_path / "r.html")
        assert found["turns"] == len(prompts)
        assert found["response_tokens"] == sum(map(len, responses))
        assert shown(capsys, "view", path)[0]["prompt"] == prompts[0]
        assert shown(capsys, "plan", path)["rows"] == len(prompts)


def test_without_the_extra(tmp_path):
    program = (
        "import sys\n"
        "import fastcollate\n"
        "assert not {'pyarrow', 'rich', 'typer', 'tokenizers'} & sys.modules.keys()\n"
        "sys.modules['typer'] = None\n"
        "from fastcollate.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        done.stderr == "fastcollate: typer is not installed; run pip install 'fastcollate[cli]'\n"
    )


@pytest.mark.parametrize("command", ["report", "plan"])
@pytest.mark.parametrize("link", ["itself", "symlink", "hard link", "of a folder", "costs"])
def test_an_output_that_is_an_input(command, link, rollouts, tmp_path, capsys):
    costs = tmp_path / "costs.json"
    costs.write_text('{"per_token": 1}')
    output, path = rollouts, rollouts
    if link == "symlink":
        output = tmp_path / "link"
        output.symlink_to(rollouts)
    elif link == "hard link":
        output = tmp_path / "link"
        os.link(rollouts, output)
    elif link == "of a folder":
        path = tmp_path / "folder"
        path.mkdir()
        output = rollouts.rename(path / "r.parquet")
    elif link == "costs":
        output = costs
    before = output.read_bytes()
    assert run([command, str(path), "--costs", str(costs), "-o", str(output)]) == 2
    assert re.search(
        r"--output is .*, which is also an input \(.*\); pass", capsys.readouterr().err
    )
    assert output.read_bytes() == before


def test_names_that_a_terminal_would_obey(tmp_path, capsys):
    table = {**TABLE, "uids": ["\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\u202ea", "b", "c"]}
    path = write(tmp_path / "r.parquet", table)
    assert run(["view", str(path), "--row", "1", "--row", "2", "--row", "3"]) == 0
    strange = tmp_path / "\x1b[31mred.parquet"
    assert run(["view", str(strange)]) == 1
    path.rename(strange)
    assert run(["plan", str(strange), "--rows-per-mini-batch", "2"]) == 0
    output = tmp_path / "\x1b[31m.html"
    assert run(["report", str(strange), "-o", str(output)]) == 0
    found = capsys.readouterr()
    for text in (found.out, found.err):
        assert all(one.isprintable() or one == "\n" for one in text.replace("\xa0", " "))
    assert r"\x1b[2J\x1b]0;owned\x07" in found.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "x.jsonl"], "use one of view, report, plan, verify"),
        (["plan", "x.jsonl", "--layout", "packed"], "--capacity"),
        (["view", "x.jsonl", "y.jsonl"], "a folder of files"),
        (
            ["view", "x.jsonl", "--row", "1,2"],
            "--row is '1,2'; pass an integer; repeat --row for sev",
        ),
        (["view", "x.jsonl", "--rwo", "2"], "(Possible options: --row)"),
        (["plan", "x.jsonl", "--capacity", "16k"], "--capacity is '16k'; pass an integer"),
        (["plan", "x.jsonl", "--dp-size", "0"], "--dp-size is 0; pass at least 1"),
        (["report", "x.jsonl", "--eos", "-1"], "--eos is -1; pass at least 0"),
        (["verify", "--seconds", "long"], "--seconds is 'long'; pass a number"),
    ],
)
def test_wrong_usage_names_what_there_is(arguments, message, capsys):
    assert run(arguments) == 2
    assert message in capsys.readouterr().err


def test_verify_takes_no_file(rollouts, capsys):
    assert run(["verify", str(rollouts)]) == 2
    assert "verify takes no file; use view, report or plan for files" in capsys.readouterr().err


def test_view_says_how_to_see_other_rows(rollouts, capsys):
    for options, is_said in ([], True), (["--row", "2"], False):
        assert run(["view", str(rollouts), *options]) == 0
        assert ("row 1 of 5; pass --row N for another" in capsys.readouterr().out) == is_said
