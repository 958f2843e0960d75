"""Growth of processor time: ten times the work takes at most fifteen times as long."""

import json
import pickle
from time import process_time

import numpy as np
import pytest
from worker_blocks import built

import fastcollate as fc
from fastcollate.blocks.joining import join
from fastcollate.blocks.reading import parts_of
from fastcollate.blocks.spans import pack_arrays
from fastcollate.blocks.storing import store
from fastcollate.compat.trl import TreeRow


def column(rows, width):
    values = np.arange(rows * width, dtype=np.int32) * 7919 % 97
    return fc.Ragged(values, np.arange(rows + 1) * width)


def drop(items):
    """Make all items, and keep none: collecting garbage would take its own time."""
    for _ in items:
        pass


def all_shards(shards):
    step = fc.plan_step(np.full(2 * shards, 4), dp_size=shards)
    return lambda: drop(step.shard(0, rank) for rank in range(shards))


OPTIONS = {"pad_token_id": 0, "array_type": "numpy"}


def step_of(shards, **how):
    """Return the columns of a step with 8 rows in each shard, its plan, and the shards."""
    rows = 8 * shards
    columns = {
        **{name: column(rows, 2).to_list() for name in ("prompts", "responses", "loss_mask")},
        "uids": np.arange(rows).tolist(),
        "rewards": [1.0] * rows,
        "fields": {"extra": fc.Field(column(rows, 2))},
    }
    step = fc.plan_step((np.full(rows, 2), np.full(rows, 2)), dp_size=shards, **how)
    return columns, step, [step.shard(0, rank) for rank in range(shards)]


def built_shards(shards, **how):
    columns, _, taken = step_of(shards, **how)
    return lambda: drop(fc.build_batch(**columns, **OPTIONS, shard=shard) for shard in taken)


def packed_shards(shards):
    return built_shards(shards, layout=fc.Packed(16))


def merged_shards(shards):
    turns = 16 * shards
    prompts = [[turn // 2, 1] if turn % 2 == 0 else [turn // 2, 1, 5, 6] for turn in range(turns)]
    columns = {
        "prompts": prompts,
        "responses": [[5, 6]] * turns,
        "trajectory_ids": [turn // 2 for turn in range(turns)],
    }
    merge = fc.merge_turns(**columns)
    step = fc.plan_step(merge, dp_size=shards)
    taken = [step.shard(0, rank) for rank in range(shards)]
    more = {"merge": merge, "uids": columns["trajectory_ids"], **OPTIONS}
    return lambda: drop(fc.build_batch(**columns, **more, shard=shard) for shard in taken)


def with_fields(shards):
    """Return a step whose fields are lists."""
    columns, step, taken = step_of(shards)
    rows = 8 * shards
    columns["fields"] = {
        "tokens": columns["responses"],
        "names": fc.PerRow([f"row {row}" for row in range(rows)]),
        "images": fc.PerRow([[row, row] for row in range(rows)]),
        "joined": fc.PerRow([[7]] * rows, dtype="int64", concat=True),
        "numbers": fc.PerRow(list(range(rows)), dtype="int64"),
    }
    return columns, step, taken


def selected_shards(shards, **how):
    columns, _, taken = step_of(shards, **how)
    batch = fc.build_batch(**columns, **OPTIONS)
    return lambda: drop(batch.select(shard).plan for shard in taken)


def strided_shards(shards):
    return selected_shards(shards, shard_by="strided")


def shards_together(shards):
    columns, step, _ = step_of(shards, shard_by="strided")
    batch = fc.build_batch(**columns, **OPTIONS)
    return lambda: drop(shard.plan for shard in batch.shards(step)[0])


def pickled_shards(shards):
    columns, _, taken = step_of(shards)
    batch = fc.build_batch(**columns, **OPTIONS)
    return lambda: drop(pickle.dumps(batch.select(shard)) for shard in taken)


def with_step(call):
    """Return a test of a call that takes a batch, its step and the shards of the step."""

    def make(shards):
        columns, step, taken = step_of(shards)
        batch = fc.build_batch(**columns, **OPTIONS)
        return lambda: drop(call(batch, step, taken) for _ in range(8))

    return make


COSTS = fc.planning.Costs(per_token=1, per_pair=1e-3)

OF_STEPS = {
    "drop_padding": lambda batch, step, taken: fc.planning.drop_padding(step.rows, step),
    "drop_padding, list": lambda batch, step, taken: fc.planning.drop_padding(
        step.rows.tolist(), step
    ),
    "normalize": lambda batch, step, taken: batch.normalize(batch.loss_mask, step),
    "loss_normalizers": lambda batch, step, taken: batch.loss_normalizers(step),
    "forecast": lambda batch, step, taken: step.forecast(COSTS),
    "compare_plans": lambda batch, step, taken: fc.planning.compare_plans([step], COSTS),
    "describe": lambda batch, step, taken: step.describe(),
    "tables": lambda batch, step, taken: fc.planning.StepPlan.from_dict(step.to_dict()),
    "pickle": lambda batch, step, taken: pickle.loads(pickle.dumps((step, taken))),
    "narrow": lambda batch, step, taken: [shard.narrow() for shard in taken],
    "micro_batches": lambda batch, step, taken: [shard.micro_batches(4) for shard in taken],
    "put_shards": lambda batch, step, taken: pack_arrays(batch, list(map(batch.select, taken))),
    "predict": lambda batch, step, taken: COSTS.predict(taken),
    "totals": lambda batch, step, taken: (step.inverse, step.tokens_per_rank, step.row_totals),
}


def audit_of_shards(shards):
    columns, step, taken = step_of(shards)
    return lambda: step.audit(taken, columns["prompts"], columns["responses"])


def audit_of_batches(shards):
    columns, step, taken = step_of(shards)
    batches = [fc.build_batch(**columns, **OPTIONS, shard=shard) for shard in taken]
    return lambda: step.audit(batches, columns["prompts"], columns["responses"])


def reports(trajectories):
    turns = 8 * trajectories
    ids = np.arange(turns) // 8
    return fc.merge_turns(
        column(turns, 6), column(turns, 4), trajectory_ids=ids, policy="branch"
    ).report


def all_breaks(trajectories):
    report = reports(trajectories)
    assert len(report.breaks) == 7 * trajectories
    return lambda: drop(report.breaks)


def all_trees(trajectories):
    report = reports(trajectories)
    return lambda: drop(report.tree(index) for index in range(trajectories))


def first_metrics(trajectories):
    """Return a call for the metrics of batches with breaks, of which each is asked once."""
    turns = (column(8 * trajectories, 6), column(8 * trajectories, 4))
    ids = np.arange(8 * trajectories) // 8
    plan = fc.merge_turns(*turns, trajectory_ids=ids, policy="branch")
    batches = [fc.build_batch(*turns, merge=plan, **OPTIONS, layout="jagged") for _ in range(4)]
    return lambda: batches.pop().metrics


def blocks_of(count):
    """Return as many blocks of 8 rows."""
    some = {name: column(8, 2) for name in ("prompts", "responses", "loss_mask")}
    fields = {"extra": fc.Field(column(8, 2)), "number": fc.PerRow(np.arange(8))}
    ids = np.arange(8).tolist()
    return [
        store(
            **some, fields=fields, uids=[block] * 8, trajectory_ids=[8 * block + one for one in ids]
        )
        for block in range(count)
    ]


def joined_blocks(count):
    tables = [table for table, _ in blocks_of(count)]
    names = list(map(str, range(count)))
    return lambda: join(tables, names)


def shards_of_blocks(count):
    """Ten shards of a step of many blocks."""
    blocks = blocks_of(count)
    step = join([table for table, _ in blocks], list(map(str, range(count))))
    lens = step.plan.prompt_lens, step.plan.response_lens
    plan = fc.plan_step(lens, dp_size=count)
    parts = [part for _, of_block in blocks for part in of_block]
    some = [plan.shard(0, rank) for rank in range(0, count, count // 10)]

    def build():
        for shard in some:
            needed = {index: parts[index] for index in parts_of(step, shard)}
            built(step, shard, needed, **OPTIONS)

    return build


def rows_with_findings(rows):
    tokens = fc.Ragged(np.ones(2 * rows, np.int32), np.arange(rows + 1) * 2)
    batch = fc.build_batch(tokens, tokens, **OPTIONS)

    def check():
        findings = batch.check(vocab_size=1, eos_token_id=0)
        assert [one.number for one in findings] == [rows, rows, rows, rows - 1]

    return check


def tree_rows(samples):
    """A star whose branches fork again: a scan of branches would be quadratic."""
    torch = pytest.importorskip("torch")
    made = [
        {
            "input_ids": torch.tensor([7, index // 2, index, 8]),
            "completion_mask": torch.ones(4, dtype=torch.bool),
            "old_log_probs": torch.zeros(4),
            "advantage": 1.0,
            "group_id": 0,
        }
        for index in range(samples)
    ]

    def plan():
        row = TreeRow()
        for sample in made:
            assert row.fits(sample, 4 * samples)
            row.add(sample)
        row.pack()

    return plan


def chain_of_forks(rows):
    """Rows that each begin with all tokens of the one before but the last: paths are a square."""
    tokens = np.arange(1, rows + 2)
    prompts = [tokens[:end] for end in range(1, rows + 1)]
    responses = [tokens[end : end + 1] for end in range(1, rows + 1)]

    def use():
        layout = fc.Tree(fork_early=True)
        batch = fc.build_batch(prompts, responses, **OPTIONS, layout=layout)
        assert batch.metrics["batch/path_keys"] == rows * (rows + 1)
        batch.check(eos_token_id=0)
        batch.show()
        batch.select(bins=[0])

    return use


def of_tokens(tokens):
    """Lists, versions and captured indices of tokens, in bins, gathered and read back by rows."""
    rows = tokens // 100
    prompts, responses = column(rows, 50), column(rows, 50)
    counts = np.arange(50 * rows) % 5
    of_rows = np.arange(rows + 1) * 50
    ends = np.concatenate([[0], counts.cumsum()])
    lists = (
        fc.Ragged(np.arange(ends[-1], dtype=np.int32), ends[of_rows]),
        fc.Ragged(counts, of_rows),
    )
    indices = fc.Ragged(np.zeros((60 * rows, 2, 2), np.int32), np.arange(rows + 1) * 60)
    fields = {
        "support": fc.Field(lists, ragged=True, own_token="add"),
        "versions": fc.WeightVersions([[(7, 0, 20), (8, 20, 50)]] * rows, current=9, max_lag=1),
        "chosen": fc.Captured(indices, starts=np.full(rows, 30)),
    }
    layout = fc.Packed(150, oversize="split", shift="next_token")

    def use():
        batch = fc.build_batch(prompts, responses, **OPTIONS, layout=layout, fields=fields)
        batch.gather(fc.Ragged(batch["support"], batch["support_offsets"]), align="response")
        assert batch.metrics["batch/versions_stale_tokens"] == 20 * rows
        drop(batch.rows())

    return use


def stream_of(events):
    sent = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return lambda: fc.rollouts.parse([sent + b"data: [DONE]\n\n"], unfinished="keep")


def streamed_choices(tokens):
    content = [{"token_id": 3, "logprob": -0.5}]
    choice = {"index": 0, "token_ids": [3], "logprobs": {"content": content}}
    return stream_of([{"prompt_token_ids": [7], "choices": [choice]}] * tokens)


def streamed_totals(tokens):
    """Events with the number of tokens so far, in place of all of them."""
    return stream_of(
        {
            "output_ids": [3],
            "prompt_token_ids": [7],
            "meta_info": {"completion_tokens": total, "output_token_logprobs": [[-0.5, 3, None]]},
        }
        for total in range(1, tokens + 1)
    )


def seconds(call):
    def once():
        start = process_time()
        call()
        return process_time() - start

    return min(once() for _ in range(4))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("make", "count"),
    [
        (all_shards, 1500),
        (built_shards, 100),
        (packed_shards, 100),
        (merged_shards, 100),
        (selected_shards, 300),
        (strided_shards, 50),
        (shards_together, 50),
        (pickled_shards, 100),
        (audit_of_shards, 200),
        (audit_of_batches, 50),
        (all_breaks, 500),
        (all_trees, 500),
        (first_metrics, 1500),
        *((with_step(call), 100) for call in OF_STEPS.values()),
        (joined_blocks, 100),
        (shards_of_blocks, 100),
        (rows_with_findings, 10_000),
        (tree_rows, 300),
        (chain_of_forks, 1000),
        (of_tokens, 100_000),
        (streamed_choices, 6000),
        (streamed_totals, 6000),
    ],
)
def test_growth(make, count):
    # Other programs may run meanwhile.
    ratios = (seconds(make(10 * count)) / seconds(make(count)) for _ in range(3))
    assert any(ratio <= 15 for ratio in ratios)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("make", "of_step"),
    [
        (step_of, lambda columns, shard: fc.build_batch(**columns, **OPTIONS, shard=shard)),
        (
            lambda shards: step_of(shards, layout=fc.Packed(16)),
            lambda columns, shard: fc.build_batch(**columns, **OPTIONS, shard=shard),
        ),
        (with_fields, lambda columns, shard: fc.build_batch(**columns, **OPTIONS, shard=shard)),
    ],
    ids=["padded", "packed", "fields"],
)
def test_a_shard_takes_the_time_of_its_rows(make, of_step):
    def cost(shards):
        columns, _, taken = make(shards)
        some = taken[:: len(taken) // 100][:100]
        return seconds(lambda: drop(of_step(columns, shard) for shard in some))

    ratios = (cost(5000) / cost(500) for _ in range(3))
    assert any(ratio <= 1.5 for ratio in ratios)
