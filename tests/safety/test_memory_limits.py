"""Memory that runs out at any point of a call: a result or a ``MemoryError``, never an abort."""

import json
import os
import pickle
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fastcollate as fc
from fastcollate import planning

LIMITS = [int(1.5**k * (1 << 15)) for k in range(24)]
"""Bytes beyond those in use: from 32 KiB to more than any call takes."""


OF_OTHERS = (
    "can't allocate memory",
    "can't start new thread",
    "std::bad_alloc",
    "failed to map segment",  # of a module of NumPy that is imported on use
)
"""Errors of torch, of Python and of its loader for want of memory, which are not MemoryErrors."""


def ragged(lengths, ids):
    values = np.arange(lengths.sum(), dtype=np.int32) % ids
    return fc.Ragged(values, np.append(0, lengths.cumsum()))


def make_calls():
    """Return calls by name, over so many rows that their tables outgrow the heap in use."""
    lens = np.arange(60_000) % 199 + 1
    prompts = ragged(lens[:10_000] % 17, 5)
    turns = (prompts, ragged(lens[:10_000] % 23, 7))
    ids = np.arange(10_000) // 4
    tree = planning.prefix_tree(*turns)
    tables = {"pad_token_id": 0, "array_type": "numpy"}
    packed = fc.Packed(4096)
    batch = fc.build_batch(*turns, **tables, layout=packed)
    padded = fc.build_batch(*turns, **tables)
    step = fc.plan_step(lens, rows_per_mini_batch=15_000, dp_size=4)
    some = fc.plan_step(batch.prompt_lens + batch.response_lens, dp_size=8)
    merge = fc.merge_turns(*turns, trajectory_ids=ids, policy="branch")
    chain = ragged(np.arange(1000), 1 << 30)
    responses = ragged(np.ones(1000, np.int64), 2)

    # Each other token has two values, or indices of its own.
    lens_of = turns[1].lengths
    counts = fc.Ragged(np.arange(lens_of.sum()) % 2 * 2, turns[1].offsets)
    values = ragged(np.diff(np.append(0, counts.values.cumsum())[counts.offsets]), 9)
    sets = fc.Field((values, counts), ragged=True)
    nested = [[[token] * (token % 3) for token in row] for row in turns[1].to_list()]
    new = np.maximum(lens_of - 1, 0)
    indices = fc.Ragged(np.zeros((new.sum(), 1, 2), np.int32), np.append(0, new.cumsum()))
    captured = fc.Captured(indices, starts=turns[0].lengths)
    versions = fc.WeightVersions(counts, current=2, max_lag=1)
    laid_out = fc.build_batch(*turns, **tables, fields={"indices": captured, "sets": sets})
    mask = laid_out.indices_padding_mask
    mask[:, 1::2] = True
    parts = planning.partition(lens, 64)
    flags = fc.Ragged(np.zeros(1 << 26, np.bool_), [0, 1 << 26])

    # A prompt of many samples, which counts for each.
    choices = [{"token_ids": [1], "finish_reason": "stop"}] * 2000
    body = json.dumps({"prompt_token_ids": [7] * 2000, "choices": choices}).encode()

    def build(**options):
        return lambda: fc.build_batch(*turns, **tables, **options)

    def builder():
        builder = fc.BatchBuilder(**tables)
        for row in turns[0].to_list():
            builder.add(row, row)
        builder.finish()

    return {
        "pack": lambda: planning.pack(lens, packed),
        "pack, bins": lambda: planning.pack(lens, packed).bins,
        "pack, split": lambda: planning.pack(lens, fc.Packed(16, oversize="split")),
        "pack, concat": lambda: planning.pack(lens, fc.Packed(4096, algorithm="concat")),
        "pack, grown": lambda: planning.pack(lens, fc.Packed(4096, min_bins=5000)),
        "pack, costs": lambda: planning.pack(lens, fc.Packed(4096, max_cost=1e6), costs=lens),
        "pack, groups": lambda: planning.pack(lens, packed, keep_together=np.arange(60_000) // 7),
        "partition": lambda: planning.partition(lens, 64),
        "partition, equal": lambda: planning.partition(lens, 30_000, equal_size=True),
        "partition, lpt": lambda: planning.partition(lens, 300, algorithm="lpt_swap"),
        "micro_batches": lambda: planning.micro_batches(lens, 4096, dp_size=4),
        "prefix_tree": lambda: planning.prefix_tree(*turns),
        "prefix_tree, chain": lambda: planning.prefix_tree(chain, responses),
        "tree.pack": lambda: tree.pack(fc.Tree(4096)),
        "tree.nodes": lambda: tree.nodes,
        "plan_step": lambda: fc.plan_step(lens, rows_per_mini_batch=15_000, dp_size=4),
        "plan_step, uids": lambda: fc.plan_step(
            lens, uids=list(map(str, np.arange(60_000) // 4)), dp_size=4
        ),
        "plan_step, packed": lambda: fc.plan_step(lens, dp_size=4, layout=packed),
        "plan_step, costs": lambda: fc.plan_step(
            lens, dp_size=4, layout=packed, shard_by=planning.Costs(per_token=1)
        ),
        "plan_step, trees": lambda: fc.plan_step(tree, dp_size=4, layout=fc.Tree(4096)),
        "shards": lambda: [step.shard(0, rank) for rank in range(4)],
        "step, tables": lambda: planning.StepPlan.from_dict(step.to_dict()),
        "merge_turns": lambda: fc.merge_turns(*turns, trajectory_ids=ids),
        "merge_turns, branch": lambda: fc.merge_turns(*turns, trajectory_ids=ids, policy="branch"),
        "merge, report": lambda: (merge.report.tree(), list(merge.report.breaks)),
        "merge, pickle": lambda: pickle.loads(pickle.dumps(merge)),
        "build": build(),
        "build, packed": build(layout=packed),
        "build, tree": build(layout=fc.Tree(4096)),
        "build, merged": build(trajectory_ids=ids, merge="branch"),
        "build, shard": build(shard=some.shard(0, 0)),
        "build, ragged": build(fields={"sets": sets}),
        "build, ragged, tree": build(fields={"sets": sets}, layout=fc.Tree(4096)),
        "build, ragged lists": build(fields={"sets": fc.Field(nested, ragged=True)}),
        "build, own tokens": build(fields={"sets": fc.Field(nested, ragged=True, own_token="add")}),
        "build, captured": build(fields={"indices": captured}),
        "build, captured, tree": build(fields={"indices": captured}, layout=fc.Tree(4096)),
        "build, captured, merged": build(
            fields={"indices": captured}, trajectory_ids=ids, merge="branch"
        ),
        "build, versions": build(fields={"versions": versions}),
        "to_layout": lambda: laid_out.to_layout(packed),
        "rows": lambda: list(laid_out.rows()),
        "grow": lambda: planning.grow(parts, lens, min_bins=9000, grow_by="split"),
        "Arrow": flags.__arrow_c_array__,
        "take": lambda: planning.pack(turns[0].lengths, packed).take(turns[0].to_list()),
        "builder": builder,
        "lists": lambda: fc.ragged(turns[0].to_list()),
        "pad": lambda: fc.pad(turns[0], array_type="numpy"),
        "unpad": lambda: fc.unpad(np.ones((10_000, 50)), np.full(10_000, 20), side="right"),
        "gather": lambda: batch.gather(
            np.zeros(batch.input_ids.shape, np.float32),
            align="sequence",
            shift="next_token",
            missing=0,
        ),
        "attention": batch.attention_ranges,
        "subtree_end": lambda: padded.subtree_end,
        "attention paths": batch.attention_paths,
        "select": lambda: batch.select(rows=range(0, 10_000, 2)),
        "check": batch.check,
        "parse": lambda: fc.rollouts.parse([body]),
        "plan, pickle": lambda: pickle.loads(pickle.dumps(batch.plan)),
    }


def make_more_calls():
    """Return calls that read JSON and objects, use batches and plans, or are frameworks'."""
    pytest.importorskip("torch")
    import torch
    from pinned_stand_in import fake_allocator

    from fastcollate.compat import nemo_rl, skyrl, transformers, trl, verl
    from fastcollate.compat.trl import laid_out
    from fastcollate.device import to_device
    from fastcollate.testing.reference import assert_same

    lens = np.arange(10_000)
    prompts, responses = ragged(lens % 17 + 1, 5), ragged(lens % 23 + 1, 7)
    lists = prompts.to_list(), responses.to_list()
    floats = [[0.5] * len(row) for row in lists[1]]
    masks = [[1] * len(row) for row in lists[1]]
    ids = lens // 4
    uids = list(map(str, ids))
    sizes = prompts.lengths + responses.lengths
    tables = {"pad_token_id": 0, "array_type": "numpy"}

    def build(**options):
        return fc.build_batch(prompts, responses, **{**tables, **options})

    batch, packed, tree = (build(layout=one) for one in (fc.Left(), fc.Packed(4096), fc.Tree(4096)))
    parts = build(layout=fc.Packed(4096, multiple_of=4))
    tensors = build(array_type="torch", layout=fc.Packed(4096))
    few = fc.build_batch(*(rows[:300] for rows in lists), pad_token_id=0, layout=fc.Packed(8192))
    merged = build(trajectory_ids=ids, merge="branch")
    plan = merged.merge_plan
    step = fc.plan_step(sizes, dp_size=8, uids=ids)
    shards = [step.shard(0, rank) for rank in range(8)]
    batches = [build(shard=shard) for shard in shards]
    costs = planning.Costs(per_token=1, per_pair=1e-3)
    shared = planning.prefix_tree(prompts, responses)
    samples = [
        {"prompt": prompt, "response": response, "logprobs": values, "loss_mask": mask}
        for prompt, response, values, mask in zip(*lists, floats, masks, strict=True)
    ]

    def body(prompt, response):
        content = [{"token_id": token, "logprob": -0.5} for token in response]
        choice = {"index": 0, "token_ids": response, "logprobs": {"content": content}}
        return {"prompt_token_ids": prompt, "choices": [{**choice, "finish_reason": "stop"}]}

    def stream(choices):
        event = {"token_ids": [3] * 3, "sampling_mask": [[1, 2]] * 3}
        logprobs = {"content": [{"token_id": 3, "logprob": -0.5}] * 3}
        events = [{**event, "index": number % choices} for number in range(3000)]
        # The first log-probabilities come late.
        events.append({**event, "index": 0, "logprobs": logprobs})
        events = [{"choices": [one]} for one in events]
        return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)

    bodies = [json.dumps(body(*pair)).encode() for pair in zip(*lists, strict=True)][:1500]
    targets = {"target_tokens": {"data": list(range(1, 90_001))}}
    weights = {"weights": {"data": [0.0] * 5 + [1.0] * 89_995}}
    datum = {"model_input": {"chunks": [{"tokens": list(range(90_000))}]}}
    tinker = json.dumps({"data": [{**datum, "loss_fn_inputs": targets | weights}]}).encode()
    columns = {"prompts": [3] * 50_000, "responses": [4] * 50_000}
    masked = json.dumps({**columns, "attention_mask": [0] * 5 + [1] * 99_995}).encode()
    node = {"token_ids": [1] * 20, "mask": [1] * 20, "logprobs": [-0.5] * 20}
    nodes = [{**node, "parent": index - 1 if index % 50 else None} for index in range(5000)]
    trees = json.dumps({"id": "a", "nodes": nodes}).encode()
    calls = fc.rollouts.parse(bodies)
    table = calls.to_arrow()
    flat = SimpleNamespace(start_indices=list(range(30_000)), end_indices=list(range(1, 30_001)))
    vars(flat).update(token_ids=[1] * 30_000, logprobs=[-0.5] * 30_000)
    output = {"index": 0, "token_ids": [1] * 30_000, "logprobs": flat, "finish_reason": "stop"}
    request = SimpleNamespace(
        prompt_token_ids=[1], outputs=[SimpleNamespace(**output)], request_id="x", finished=True
    )

    def extend():
        builder = fc.BatchBuilder(**tables)
        builder.extend(calls)
        builder.finish()

    def pin():
        with fake_allocator():
            assert_same(tensors.pin_memory(), tensors)

    def move():
        """Copy as `Batch.to` does, with the host as the device."""
        state, transfer = tensors._state, to_device.Transfer()
        parts = to_device.check_tensors(state)
        slab = to_device.slab_of(state, parts)
        moves = to_device.copy_tensors(parts, slab, torch.device("cpu"), False, transfer)
        assert_same(tensors._of(to_device.rebuild(state, moves, transfer)), tensors)

    def prefetch():
        with fc.prefetch(build(array_type="torch", shard=shard) for shard in shards) as found:
            for one, other in zip(found, batches, strict=True):
                assert np.array_equal(one.input_ids, other.input_ids)

    def fit():
        timings = zip(np.split(sizes, 500), np.linspace(1, 2, 500), strict=True)
        planning.Costs.fit(list(timings))

    def copy(one):
        return pickle.loads(pickle.dumps(one))

    parse = fc.rollouts.parse
    tokenizer = SimpleNamespace(pad_token_id=0)
    joined = [prompt + response for prompt, response in zip(*lists, strict=True)]
    whole = [{"input_ids": row, "labels": row} for row in joined]
    sft = {
        "input_ids": [1] * 30,
        "attention_mask": [1] * 30,
        "loss_mask": [1] * 4,
        "num_actions": 4,
    }
    turns = {
        "prompt_token_ids": lists[0],
        "response_ids": lists[1],
        "rewards": [1.0] * 10_000,
        "loss_masks": masks,
        "trajectory_ids": [f"t{number}" for number in ids],
        "is_last_step": (lens % 4 == 3).tolist(),
    }
    keys = ("stop_reasons", "rollout_logprobs", "rollout_metrics")
    turns.update(dict.fromkeys(keys))
    token_rewards = [[1.0] * len(row) for row in lists[1]]

    config = SimpleNamespace(_attn_implementation="eager")
    config.get_text_config = lambda: config
    model = SimpleNamespace(config=config, dtype=torch.float64)
    block = torch.arange(60_000).reshape(1000, 60) % 7
    inputs = {"input_ids": block, "labels": block, "attention_mask": torch.ones_like(block)}

    def score(shift_labels, **inputs):
        return {"log_probs": shift_labels.double()}

    def lay_out():
        for layout in (fc.Packed(512), fc.Tree(512)):
            laid_out._forward(model, score, layout, (), **inputs)

    return {
        "collator": lambda: fc.Collator(**tables)(samples[:3000]),
        "builder.extend": extend,
        "parse": lambda: parse(bodies),
        "parse, lines": lambda: parse(b"\n".join(bodies)),
        "parse, streams": lambda: parse(
            [stream(700), stream(1)], prompts=[[7]] * 2, unfinished="keep", bad_logprobs="keep"
        ),
        "parse, targets": lambda: parse([tinker], "tinker"),
        "parse, masks": lambda: parse([masked], "columns"),
        "parse, trees": lambda: parse([trees], "verifiers"),
        "read": lambda: fc.rollouts.read([request]),
        "calls": lambda: fc.rollouts.Calls.concat([calls, calls.select(range(0, 1500, 2))]),
        "calls, Arrow": lambda: fc.rollouts.Calls.from_arrow(table),
        "calls, show": lambda: str(calls.show()),
        "cp_split": lambda: parts.cp_split(2, 0),
        "broadcast": lambda: batch.broadcast(np.ones(10_000)),
        "normalize": lambda: batch.normalize(np.ones(batch.response_mask.shape, np.float32), step),
        "loss_normalizers": lambda: batch.loss_normalizers(step),
        "loss_positions": lambda: (packed.loss_positions(), tree.loss_positions()),
        "model_inputs": lambda: packed.model_inputs(kernel="flash"),
        "show": lambda: str(batch.show(slice(0, 1000))),
        "select, bins": lambda: tree.select(bins=[0, 1, 2]),
        "to_layout, merged": lambda: merged.to_layout(fc.Packed(4096)),
        "gather, tree": lambda: tree.gather(
            np.zeros(tree.input_ids.shape, np.float32),
            align="sequence",
            shift="next_token",
            missing=0,
        ),
        "gather, turns": lambda: merged.gather(
            np.zeros(merged.response_mask.shape, np.float32), per="turn"
        ),
        "check, tree": lambda: tree.check(vocab_size=10, eos_token_id=1),
        "batches, pickle": lambda: [copy(one) for one in (merged, packed, tree)],
        "plans, pickle": lambda: [copy(one) for one in (shared, shards, packed.bin_plan)],
        "shards, micro": lambda: [one.narrow() for one in shards[0].micro_batches(10)],
        "audit": lambda: (
            step.audit(batches, prompts, responses),
            plan.audit(merged, prompts, responses),
        ),
        "forecast": lambda: (step.forecast(costs), planning.compare_plans([step], costs)),
        "block_mask": lambda: (tensors.block_mask(), tensors.block_mask(window=64)),
        "dense_mask": lambda: (few.dense_mask(), few.dense_mask("bool", window=64)),
        "pin_memory": pin,
        "to": move,
        "prefetch": prefetch,
        "Costs.fit": fit,
        "drop_padding": lambda: [
            planning.drop_padding(values, step)
            for values in (step.rows, torch.from_numpy(step.rows), step.rows.tolist())
        ],
        "step": lambda: (step.inverse, step.padding_rows, step.tokens_per_rank, step.row_totals),
        "merge": lambda: (plan.sources, plan.trajectories, plan.to_dict()),
        "tree": lambda: (shared.depth, shared.forks, shared.report, shared.select(lens[::2])),
        "tree, merged": lambda: planning.prefix_tree(prompts, responses, merge=plan),
        "prompt_boundaries": lambda: planning.prompt_boundaries(uids),
        "concat": lambda: fc.Ragged.concat([prompts, responses]),
        "unpad, mask": lambda: fc.unpad(np.ones((1000, 50)), mask=np.ones((1000, 50), bool)),
        "torch": lambda: fc.build_batch(*lists, pad_token_id=0, layout=fc.Packed(4096)),
        "verl": lambda: verl.karmarkar_karp(sizes.tolist(), 64, equal_size=False),
        "SkyRL, tensors": lambda: skyrl.convert_prompts_responses_to_batch_tensors(
            0, *lists, token_rewards, masks
        ),
        "SkyRL, SFT": lambda: skyrl.collate_sft_batch([sft] * 2000, tokenizer),
        "SkyRL, merging": lambda: skyrl.merge_stepwise_output(turns),
        "NeMo-RL": lambda: nemo_rl.get_packer("first_fit_decreasing", 4096).pack(sizes.tolist()),
        "transformers": lambda: transformers.DataCollatorWithFlattening()(whole[:2000]),
        "TRL, layouts": lay_out,
        "TRL": lambda: trl.DataCollatorForLanguageModeling(pad_token_id=0)(whole[:2000]),
    }


def outcome(call, limit):
    """Return how a call ends in a child that may take so many bytes more."""
    import resource

    read, write = os.pipe()
    if (child := os.fork()) == 0:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + limit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        found = b"a result"
        try:
            signal.alarm(60)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            call()
        except MemoryError:
            found = b"MemoryError"
        except BaseException as error:
            is_memory = any(text in str(error) for text in OF_OTHERS)
            found = b"MemoryError" if is_memory else f"{type(error).__name__}: {error}".encode()
        os.write(write, found)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = pipe.read()
    status = os.waitpid(child, 0)[1]
    return found or f"signal {os.WTERMSIG(status)}"


def climb(calls, limits):
    """Print the calls that end otherwise than by a result or a ``MemoryError``."""
    for name, call in calls.items():
        found = {}
        for limit in limits:
            found[limit] = outcome(call, limit)
            if found[limit] != "MemoryError":
                break  # with more memory, it is the same
        if found[limit] != "a result":
            print(name, found)


def climb_all():
    """Climb with all calls."""
    climb(make_calls(), LIMITS)


def climb_more():
    """Climb with all other calls."""
    climb(make_more_calls(), LIMITS[::2])


def climb_finely():
    """Climb with vectors that grow as a body is read: each is grown at a few sizes alone."""
    call = b'{"prompt":[1],"response":[1,2,3]}'
    schema = fc.rollouts.Schema(prompts="prompt", responses="response")
    calls = [call] * 200_000
    bodies = {"a body": [b"[" + b",".join(calls) + b"]"], "lines": b"\n".join(calls)}
    calls = {name: partial(fc.rollouts.parse, body, schema) for name, body in bodies.items()}
    climb(calls, [*(limit << 19 for limit in range(32, 52)), 1 << 28])


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
@pytest.mark.parametrize("climb", ["climb_all", "climb_more", "climb_finely"])
def test_calls_under_limits(climb):
    child = subprocess.run(
        [sys.executable, "-c", f"import test_memory_limits as test; test.{climb}()"],
        cwd=Path(__file__).parent,
        # A backtrace would wait for ever for the memory that it needs itself.
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RUST_BACKTRACE": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (child.returncode, child.stdout) == (0, ""), child.stderr[-2000:]
