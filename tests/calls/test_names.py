"""Names of arguments: each wrong one is an error that gives the right one."""

import copy
import inspect
import pickle
import re
from collections import UserDict
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from making import make_batch

import fastcollate as fc
from fastcollate import _fastcollate
from fastcollate.common import names
from fastcollate.common.row_columns import IDS, OTHER_NAMES, TOKENS
from fastcollate.compat import skyrl, trl
from fastcollate.device.prefetching import Prefetcher
from fastcollate.options import BatchOptions, RowOptions
from fastcollate.plan import binned, layouts, merge, partitioning, stepping
from fastcollate.plan.costs import NAMED_COSTS

MODULES = [fc, fc.planning, fc.memory]
MADE_BY_USERS = [
    *(fc.BatchBuilder, fc.Collator, fc.Field, fc.PerRow, fc.Ragged, fc.RoutedExperts),
    *(fc.Left, fc.Right, fc.TwoSegment, fc.Jagged, fc.Packed),
    *(fc.memory.BufferPool, Prefetcher),
]
FUNCTIONS = [getattr(module, name) for module in MODULES for name in module.__all__]
CALLED = [*MADE_BY_USERS, *filter(inspect.isfunction, FUNCTIONS)]

SMALL = {"prompts": [[1]], "responses": [[2]], "pad_token_id": 0, "array_type": "numpy"}

ADD = fc.BatchBuilder(pad_token_id=0).add


@pytest.mark.parametrize(
    ("call", "name", "advice"),
    [
        (fc.build_batch, "values", "pass fields={'values': fc.Field(...)}"),
        (fc.build_batch, "ref_logprobs", "pass fields={'ref_logprobs': fc.Field(...)}"),
        (ADD, "versions", "pass fields={'versions': fc.WeightVersions(...)}"),
        (ADD, "ref_log_probs", "pass fields={'ref_log_probs': fc.Field(...)}"),
        (
            fc.build_batch,
            "old_log_probs",
            "pass fields={'old_log_probs': fc.Field(...)}, or logprobs if the sampler returned",
        ),
        (fc.pad, "value", "pass fill"),
        (fc.Batch.check, "tokenizer", "pass vocab_size=len(tokenizer), and eos_token_id="),
        (fc.build_batch, "non_tensor_batch", "pass uids, and others as fields of fc.PerRow"),
        (fc.build_batch, "rollout_log_probs", "pass logprobs"),
        (fc.build_batch, "input_ids", "pass sequences, with the lengths of their prompts as prom"),
        (ADD, "input_ids", "pass sequence, with the length of its prompt as prompt_len"),
        (fc.build_batch, "completions", "pass responses"),
        (fc.merge_turns, "merge", "pass policy"),
        (fc.merge_turns, "uids", "pass trajectory_ids, one per turn; uids are of build_batch"),
        (fc.merge_turns, "completion_ids", "pass responses"),
        (ADD, "completion_ids", "pass response"),
        (fc.build_batch, "completion_mask", "pass loss_mask"),
        (fc.build_batch, "response_mask", "pass loss_mask: the batch's response_mask is made fr"),
        (fc.build_batch, "max_length", "rows are never truncated: cut them first; layout=fc.Le"),
        (fc.BatchBuilder, "max_seq_len", "rows are never truncated: cut them first; layout=fc.L"),
        (fc.Packed, "max_length", "pass capacity, the tokens of a bin; rows are never truncated"),
        (
            fc.build_batch,
            "max_prompt_len",
            "rows are never truncated: cut them first; layout=fc.TwoSegment(pad_prompt_to=...)",
        ),
        (
            fc.Batch.pad_on_device,
            "max_response_len",
            "rows are never truncated: cut them first; layout=fc.Left(pad_response_to=...)",
        ),
        (fc.Right, "max_response_len", "rows are never truncated: cut them first; pad_response_to"),
        (fc.build_batch, "truncation", "rows are never truncated: cut them first"),
        (fc.build_batch, "padding", "rows are as wide as the longest; pass layout="),
        (fc.build_batch, "padding_side", "pass layout='left' or 'right'"),
        (fc.unpad, "padding_side", "pass side"),
        (fc.build_batch, "return_tensors", "pass array_type='torch' or 'numpy'"),
        (fc.Collator, "truncation_side", "pass keep='start' or 'end', with max_length"),
        (fc.Collator, "max_seq_len", "pass max_length"),
        (fc.Collator, "device", "batches are built in host memory: call batch.to(device)"),
        (fc.build_batch, "capacity", "pass layout=fc.Packed(capacity=...)"),
        (fc.Collator, "oversize", "pass layout=fc.Packed(capacity=..., oversize=...)"),
        (fc.plan_step, "algorithm", "pass layout=fc.Packed(capacity=..., algorithm=...)"),
        (fc.build_batch, "attention_mask", "it is made from the lengths: pass rows without pad"),
        (ADD, "attention_mask", "it is made from the lengths: pass a row without padding"),
        (fc.build_batch, "out", "outputs are written to memory of a pool: pass pool=fc.memory."),
        (fc.build_batch, "rows", "pass prompts and responses, or sequences with prompt_lens"),
        (fc.build_batch, "multiple_of", "pass layout=fc.Right(multiple_of=...)"),
        (fc.BatchBuilder, "pad_to_multiple_of", "pass layout=fc.Right(multiple_of=...)"),
        (fc.pad, "batch_first", "leave it out"),
        (fc.prefetch, "num_workers", "depth is the number of batches ahead"),
        (fc.planning.pack, "pad_to_multiple_of", "pass layout=fc.Packed(multiple_of=...)"),
        (fc.planning.pack, "capacity", "pass layout=fc.Packed(capacity=...)"),
        (fc.pad, "pad_to_multiple_of", "pass multiple_of"),
        (fc.build_batch, "pad_to", "pass layout=fc.Left(pad_to=...)"),
        (fc.plan_step, "balance", "pass shard_by, such as shard_by='tokens'"),
        (fc.Packed, "bins", "pass num_bins for their number, or the bins themselves as plan"),
        (fc.build_batch, "bins", "pass layout=fc.Packed(plan=bins)"),
        (fc.build_batch, "packing", "pass layout=fc.Packed(capacity=...)"),
        (fc.plan_step, "pack", "pass layout=fc.Packed(capacity=...)"),
        (fc.Packed, "max_tokens", "pass capacity"),
        (fc.build_batch, "max_tokens", "pass layout=fc.Packed(capacity=...)"),
        (fc.build_batch, "tokenizer", "tokenize rows first; pass pad_token_id="),
        (fc.build_batch, "group_ids", "pass uids"),
        (ADD, "group_ids", "pass uid"),
        # The same word.
        (fc.build_batch, "prompt", "did you mean 'prompts'?"),
        (fc.build_batch, "logprob", "did you mean 'logprobs'?"),
        (fc.build_batch, "log_probs", "did you mean 'logprobs'?"),
        (fc.build_batch, "loss_masks", "did you mean 'loss_mask'?"),
        (fc.build_batch, "PadTokenID", "did you mean 'pad_token_id'?"),
        (fc.build_batch, "repsonses", "did you mean 'responses'?"),
        (ADD, "uids", "pass uid: each call takes one row"),
        (ADD, "responses", "pass response: each call takes one row"),
        (fc.Collator, "mlm", "leave it out: labels are those of causal models"),
        # Neither.
        (fc.build_batch, "sharding", "pass some of prompts, responses, sequences, "),
        (fc.build_batch, "cpu", "pass some of prompts, responses, sequences, "),
        (fc.planning.pack, "sharding", "pass some of lengths, layout, keep_together, costs"),
        (fc.Packed, "sharding", "pass some of capacity, plan, "),
        (ADD, "truncation", "pass some of prompt, response, sequence, "),
        (fc.Left, "capacity", "pass some of pad_to, pad_response_to, multiple_of"),
        (fc.Jagged, "pad_to", "it takes none"),
    ],
)
def test_names_of_other_libraries(call, name, advice):
    with pytest.raises(TypeError, match=re.escape(f"has no argument '{name}'; {advice}")) as caught:
        call(**{name: None})
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_advice_names_arguments_that_there_are():
    known = {name for call in [*CALLED, ADD] for name in inspect.signature(call).parameters}
    known |= set(inspect.signature(fc.Batch.check).parameters)
    known |= set(inspect.signature(fc.Batch.to).parameters)
    known |= set(inspect.signature(trl.pack_dataset).parameters)
    for others, needs, text in names.ADVICE:
        assert set(needs.split()) <= known, others
        assert not text.endswith("."), others
    assert set(OTHER_NAMES) | {*TOKENS, *IDS} <= known
    ours = inspect.signature(fc.build_batch).parameters.keys()
    for column, others in OTHER_NAMES.items():
        assert not ours & set(others), column


def test_former_values():
    with pytest.raises(ValueError, match="dtypes is 'reference'; pass 'default', 'compact'"):
        fc.build_batch(**SMALL, dtypes="reference")
    with pytest.raises(ValueError, match=r"pad_rows is 'copy'; .*'copy_first', 'copy_cycle'"):
        fc.plan_step([2], pad_rows="copy")


@pytest.mark.parametrize("call", CALLED, ids=lambda call: call.__name__)
def test_a_typing_error_in_any_argument(call):
    for name in inspect.signature(call).parameters:
        if len(name) < names._LEAST_EXTENDED:
            continue
        with pytest.raises(TypeError, match=f"no argument '{name}x'; did you mean '{name}'"):
            call(**{f"{name}x": None})


def test_a_name_like_no_other():
    with pytest.raises(TypeError, match=r"^prompt_boundaries has no argument 'q'; pass some of u"):
        fc.planning.prompt_boundaries(q=1)


PLAN = fc.plan_step([2, 3], uids=["a", "b"], dp_size=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fc.plan_step(["a", "b"]), "rows[0] is 'a'; pass the number of tokens of each row"),
        (lambda: fc.plan_step(uids=["a"]), "plan_step is called without rows; pass rows"),
        (lambda: PLAN.shard(0), "shard is called without rank; pass mini_batch, rank"),
        (lambda: PLAN.shard(rank=0), "shard is called without mini_batch; pass mini_batch, rank"),
        (lambda: PLAN.forecast(), "StepPlan.forecast is called without costs; pass costs=fast"),
        (lambda: PLAN.shard(dp_rank=0), "no argument 'dp_rank'; pass some of mini_batch, rank"),
        (lambda: fc.BatchBuilder.add(prompt=[1], response=[2]), "add is called on the class; make"),
        (lambda: fc.Batch(), "Batch is called without data; fc.build_batch makes one"),
        (lambda: fc.Batch(input_ids=1), "no argument 'input_ids'; fc.build_batch makes one"),
        (lambda: fc.Batch([[1, 2, 3]]), "data is [[1, 2, 3]] (list); pass a mapping of outputs"),
        (
            lambda: fc.build_batch([[[1]]], [[2]], pad_token_id=0),
            "pass one list of integers per row: flatten",
        ),
        (lambda: fc.BatchBuilder(pad_token_id=0).add([[1]], [[2]]), "takes one row per call"),
        (lambda: fc.BatchBuilder(pad_token_id=0).add({"prompt": [1]}), "pass columns by name, as"),
        (
            lambda: fc.build_batch(Path("r.parquet"), pad_token_id=0),
            "calls = fc.rollouts.read(...)",
        ),
        (lambda: fc.build_batch("r.parquet", pad_token_id=0), "calls = fc.rollouts.read(...)"),
        (lambda: fc.build_batch([{"prompt": [1]}]), "pad_token_id; a fastcollate.Collator takes"),
        (
            lambda: fc.plan_step([3], shard_by=fc.planning.Costs),
            "shard_by is the class Costs; pass",
        ),
        (lambda: fc.Packed(8, cost=fc.planning.Costs), "cost is the class Costs; pass 'tokens'"),
        (lambda: fc.build_batch(**SMALL, layout=fc.Left), "layout is the class Left; pass 'left'"),
        (
            lambda: fc.prefetch(fc.Collator(pad_token_id=0)),
            "such as map(collate, lists_of_samples)",
        ),
    ],
)
def test_typical_mistakes_are_told_what_to_do(call, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


@NEEDS_TORCH
def test_patch_has_no_options():
    from fastcollate.compat import verl

    with pytest.raises(TypeError, match=r"no argument 'layout'; .* fastcollate.compat.trl.patch"):
        verl.patch(layout="packed")


def test_groups_of_a_table_are_not_rows():
    table = pytest.importorskip("pandas").DataFrame({"uid": ["a", "b"], "prompt": [[1], [2]]})
    with pytest.raises(TypeError, match=r"prompts could .* GroupBy.* uids=table"):
        fc.build_batch(table.groupby("uid")["prompt"], [[3], [4]], pad_token_id=0)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("rewards", "pass rewards=... to build_batch"),
        ("response_ids", "it is row['input_ids'][row['prompt_len']:]"),
        ("images", "their keys are ['prompt_len', 'input_ids'"),
    ],
)
def test_keys_that_rows_of_a_batch_lack(key, advice):
    (row,) = fc.build_batch(**SMALL).rows()
    with pytest.raises(KeyError) as caught:
        row[key]
    assert advice in caught.value.args[0]


def test_other_errors_of_calls():
    with pytest.raises(TypeError, match="build_batch is called without pad_token_id; pass pad_"):
        fc.build_batch([[1]], [[2]])
    takes = r"build_batch takes prompts, responses without a name; .*by name: pad_token_id="
    with pytest.raises(TypeError, match=takes):
        fc.build_batch([[1]], [[2]], 0)
    with pytest.raises(
        TypeError, match=r"^plan_step takes rows .*; pass a batch, or .*len\(prompt"
    ):
        fc.plan_step([[1]], [[2]])
    plan = fc.merge_turns([[1]], [[2]], trajectory_ids=["a"])
    with pytest.raises(TypeError, match=r"pass the plan as merge=, beside prompts and responses"):
        fc.build_batch(plan, pad_token_id=0)
    with pytest.raises(TypeError, match=r"has no argument 'num_mini_batches'; pass rows_per_mini"):
        fc.plan_step([1], num_mini_batches=2)
    normalizers = fc.build_batch(**SMALL).loss_normalizers(fc.plan_step([2]))
    with pytest.raises(TypeError, match=r"divide by \.tokens\[mini_batch\]"):
        1.0 / normalizers
    with pytest.raises(TypeError, match=r"^Collator takes nothing without a name"):
        fc.Collator(0)
    with pytest.raises(TypeError, match="multiple values for argument 'prompts'"):
        fc.build_batch([[1]], **SMALL)


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_columns_in_place_of_rows(kind):
    """As a tokenizer returns them."""
    with pytest.raises(TypeError, match="pass the column with token ids, such as its 'input_ids'"):
        fc.build_batch(kind(input_ids=[[1]]), [[2]], pad_token_id=0)


@pytest.mark.parametrize("prompts", [["[5, 6]"], [["5", "6"]], ["5 6"]])
def test_ids_as_text(prompts):
    """Tokenizing it would train on digits and brackets."""
    with pytest.raises(TypeError, match=r"convert this text to integers first, as by json\.loads"):
        fc.build_batch(prompts, [[2]], pad_token_id=0)
    with pytest.raises(TypeError, match=r"^prompt holds text, .*convert it to integers first"):
        fc.Collator(pad_token_id=0)([{"prompt": "[5, 6]", "response": [2]}])


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (
            {"responses": [[2]] * 6},
            r"has 6 rows, .*\[row for row in prompts for _ in range\(3\)\]$",
        ),
        ({"advantages": [[1.0]]}, r"has 1 row, .*repeat what .*values\.reshape\(-1\)$"),
        ({"advantages": [[1.0]]}, "; pass one for each row of prompts: repeat what is per group"),
        ({"responses": [[2]] * 3}, r"has 3 rows, but prompts has 2; pass one row per prompt$"),
        ({"rewards": [1.0] * 3}, "has 3 rows, but prompts has 2; pass one for each row of prompts"),
    ],
)
def test_samples_by_group(given, advice):
    with pytest.raises(ValueError, match=advice):
        fc.build_batch(**{"prompts": [[1]] * 2, "responses": [[2]] * 2, **given}, pad_token_id=0)


@pytest.mark.parametrize("prompts", [["hi"], ["2+2?"], [["hi"]], [[{"role": "user"}]]])
def test_text_in_place_of_ids(prompts):
    with pytest.raises(TypeError, match="; tokenize it first, and pass the ids"):
        fc.build_batch(prompts, [[2]], pad_token_id=0)
    with pytest.raises(TypeError, match=r"'1' \(str\); pass a list with one number per row"):
        fc.build_batch([[1]], [[2]], pad_token_id=0, rewards=["1"])


@pytest.mark.parametrize("name", ["rewards", "advantages"])
def test_a_column_of_one_number_per_row(name):
    with pytest.raises(ValueError, match="response token, or a flat list of one number per row"):
        fc.build_batch([[1]], [[2, 3]], pad_token_id=0, **{name: [[1.0]]})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("completion_mask", "response_mask is 1 on responses, and loss_mask on tokens that train"),
        ("response_ids", "see batch.targets, or batch.rows"),
        ("prompt_ids", "see batch.prompt_lens, or batch.rows"),
        ("cuda", r"call batch.to\(device\)"),
        ("split", r"batch\.select\(rows=.*batch\.shards\(plan"),
        ("concat", "build one batch of all rows"),
        ("half", "pass dtypes="),
        ("update", r"pass dict\(batch\)"),
        ("shape", "batch.input_ids.shape"),
        ("mean", "batch.input_ids.mean"),
        ("sequence_loss_mask", "to build_batch, or see batch.loss_mask"),
        ("num_tokens", r"see batch.metrics, such as batch.metrics\['batch/tokens'\]"),
        ("lengths", "add up batch.prompt_lens and batch.response_lens"),
        ("loss", r"and see batch.loss_positions\(\)"),
        ("decode", r"call batch.show\(tokenizer="),
        ("pad_token_id", "keep it beside it"),
        ("mini_batches", r"call batch.shards\(plan\)"),
        ("pack", r"call batch.to_layout\(layout\)"),
        ("report", "see batch.merge_plan.report"),
        ("repeat", r"call batch.select\(rows="),
        ("save", r"torch.save\(batch, path\)"),
    ],
)
def test_outputs_by_the_names_of_other_libraries(name, advice):
    with pytest.raises(AttributeError, match=advice):
        getattr(fc.build_batch(**SMALL), name)


def test_paths_and_rows_of_tables():
    collate = fc.Collator(pad_token_id=0)
    with pytest.raises(TypeError, match=r"\(of a file: pyarrow.parquet.read_table\(path\)\)"):
        collate("r.parquet")
    with pytest.raises(TypeError, match=r"samples\[0\] is .*; pass .* or the whole table"):
        collate([([1], [2])])


def test_values_that_need_ragged():
    with pytest.raises(ValueError, match=r"of different lengths; pass fc.Field\(..., ragged=True"):
        fc.build_batch(**SMALL | {"responses": [[2, 3]]}, fields={"s": fc.Field([[[1], [1, 2]]])})


def test_errors_from_within_are_as_they_were():
    def costs(lengths):
        raise TypeError("plan_step() got an unexpected keyword argument 'x'")

    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        fc.plan_step([1], shard_by=costs)
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        fc.plan_step([1], shard_by=lambda lengths: costs(x=lengths))


@pytest.mark.parametrize("call", CALLED, ids=lambda call: call.__name__)
def test_callables_stay_what_they_are(call):
    assert pickle.loads(pickle.dumps(call)) is call
    assert call.__doc__ is not None
    kinds = [parameter.kind for parameter in inspect.signature(call).parameters.values()]
    assert inspect.Parameter.VAR_POSITIONAL not in kinds
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_options_are_those_of_build_batch():
    written = inspect.signature(fc.build_batch).parameters
    own = ("prompts", "responses", "pad_token_id", "array_type")
    types = {
        name: getattr(hint, "__forward_arg__", hint)
        for name, hint in BatchOptions.__annotations__.items()
    }
    assert types == {name: one.annotation for name, one in written.items() if name not in own}
    for passed_on in (fc.BatchBuilder, fc.Collator):
        spelled_out = inspect.signature(passed_on).parameters
        for name in ("pad_token_id", "array_type", *RowOptions.__annotations__):
            assert spelled_out[name] == written[name]


@pytest.mark.parametrize("by", ["function", "builder", "collator", "batch"])
def test_warnings_point_at_the_callers_line(by):
    options = {"pad_token_id": 0, "array_type": "numpy"}
    prompts, responses = [[0, 0, 0, 0, 5], [0, 0, 1, 2, 6]], [[1], [2]]  # looks padded
    layout = fc.Packed(2, algorithm="concat", shift="next_token")
    builder = fc.BatchBuilder(**options, layout=layout)
    builder.add([1], [2, 3])
    samples = [{"prompt": p, "response": r} for p, r in zip(prompts, responses, strict=True)]
    batch = make_batch([[1]], [[2, 3]])
    plan = fc.planning.pack([3], fc.Packed(2, algorithm="concat"))
    calls = {
        "function": lambda: fc.build_batch(prompts, responses, **options),
        "builder": builder.finish,
        "collator": lambda: fc.Collator(**options)(samples),
        "batch": lambda: batch.to_layout(fc.Packed(plan=plan, shift="next_token")),
    }
    with pytest.warns(UserWarning, match="tokens that are pad_token_id=|packing split") as record:
        calls[by]()
    assert [one.filename for one in record] == [__file__]


@pytest.mark.parametrize("layout", ["left", "jagged"])
def test_position_ids_as_a_flag(layout):
    def build(**options):
        return dict(fc.build_batch(**SMALL, layout=layout, **options))

    assert np.array_equal(
        build(position_ids=True)["position_ids"], build(position_ids="zero")["position_ids"]
    )
    assert "position_ids" not in build(position_ids=False)
    assert fc.Collator(pad_token_id=0, position_ids=True, array_type="numpy")(
        [{"prompt": [1], "response": [2]}]
    ).position_ids.tolist() == [[0, 1]]


def test_the_top_level_is_small():
    assert len(fc.__all__) <= 22
    modules = {"compat", "memory", "planning", "ray", "rollouts", "testing"}
    assert {name for name in dir(fc) if not name.startswith("_")} == {*fc.__all__, *modules}
    assert "__version__" in dir(fc)
    assert all(inspect.ismodule(getattr(fc, name)) for name in modules - {"ray"})
    for module in MODULES:
        for name in module.__all__:
            assert hasattr(module, name)
            assert f"`{name}`" in module.__doc__ or module is fc


@pytest.mark.parametrize("module", MODULES[1:])
def test_names_that_are_in_modules(module):
    for name in module.__all__:
        assert not hasattr(fc, name)
        with pytest.raises(AttributeError, match=f"'{name}'; it is {module.__name__}.{name}$"):
            getattr(fc, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'packs'; it has Batch, BatchBu"):
        _ = fc.packs


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("DataCollator", "see fastcollate.Collator"),
        ("collate", "see fastcollate.build_batch"),
        ("pad_sequence", "see fastcollate.pad"),
        ("concat", "see fastcollate.Ragged.concat for rows, or build one batch of all rows"),
        ("buildBatch", "did you mean 'build_batch'?"),
        ("batch_builder", "did you mean 'BatchBuilder'?"),
        ("check", "a batch has it: batch.check"),
        ("normalize", "a batch has it: batch.normalize"),
        ("patch", "each framework has its own: fastcollate.compat.trl.patch()"),
        ("parse", "it is fastcollate.rollouts.parse"),
        ("merge", "see fastcollate.merge_turns"),
        ("collate_fn", "see fastcollate.Collator"),
        ("tokenize", "tokenize by another library: rows are token ids"),
        ("read_parquet", "read files by another library, and pass the table to a fastcollate.Co"),
    ],
)
def test_other_names_of_the_top_level(name, advice):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; {re.escape(advice)}"):
        getattr(fc, name)
    with pytest.raises(ImportError, match=f"has no attribute '{name}'; {re.escape(advice)}"):
        exec(f"from fastcollate import {name}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from fastcollate import skyrl", "'skyrl'; import fastcollate.compat.skyrl"),
        ("from fastcollate import pack", "'pack'; it is fastcollate.planning.pack"),
        ("from fastcollate.planning import Packed", "'Packed'; it is fastcollate.Packed"),
        (
            "from fastcollate.compat import slime",
            "'slime'; import fastcollate.compat.skyrl, or .ne",
        ),
        ("from fastcollate.compat.trl import pack", "'pack'; it has DataCollatorForLanguageModel"),
        ("from fastcollate.memory import Pool", "'Pool'; it has BufferPool, set_default_pool"),
        ("from fastcollate.testing import check", "'check'; it has batches, verify"),
        ("from fastcollate.testing.reference import pack", "'pack'; it has assert_same, build_b"),
        ("from fastcollate.compat.nemo_rl import pack", "'pack'; it has PackingAlgorithm, Packing"),
        ("from fastcollate.rollouts import load", "'load'; it has SOURCES, Calls, Schema, parse"),
    ],
)
def test_imports_of_other_names(line, message):
    with pytest.raises(ImportError, match=re.escape(message)):
        exec(line)


def test_names_of_the_top_level_in_a_module():
    with pytest.raises(AttributeError, match=r"no attribute 'plan_step'; it is fastcollate\.plan_"):
        _ = fc.planning.plan_step
    with pytest.raises(AttributeError, match=r"no attribute 'plan_steps'; it has BinPlan, C"):
        _ = fc.planning.plan_steps


def test_unknown_attributes_of_builders_and_plans():
    builder, plan = fc.BatchBuilder(pad_token_id=0), fc.plan_step([3, 4])
    with pytest.raises(
        AttributeError, match=r"BatchBuilder has no .*'append'; add\(...\) .*finish\(\)"
    ):
        _ = builder.append
    with pytest.raises(AttributeError, match=r"StepPlan has no .*'rank_rows'; it has .*shard, "):
        _ = plan.rank_rows
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan
    assert plan
    assert not builder


@pytest.mark.parametrize("rewards", [1.0, {"a": 1.0}])
def test_rewards_that_are_no_rows(rewards):
    with pytest.raises(TypeError, match=r"^rewards is .* one number per row, or rows with one"):
        fc.build_batch([[1]], [[2]], pad_token_id=0, rewards=rewards)


def test_a_builder_takes_calls_and_no_lists():
    with pytest.raises(
        TypeError, match=r"^calls is \[\[1\]\] \(list\); pass what fc.rollouts.parse"
    ):
        fc.BatchBuilder(pad_token_id=0).extend([[1]])


@pytest.mark.parametrize(
    ("hint", "names"),
    [
        (merge.Policy, _fastcollate.POLICIES),
        (merge.MaskDrift, _fastcollate.MASK_DRIFTS),
        (merge.MergeRewards, _fastcollate.MERGE_REWARDS),
        (stepping.PadRows, _fastcollate.PAD_ROWS),
    ],
)
def test_type_hints_are_the_names_that_the_core_reads(hint, names):
    assert get_args(hint) == names


@pytest.mark.parametrize(
    ("hint", "call"),
    [
        (layouts.Shift, lambda name: fc.Packed(8, shift=name)),
        (layouts.PaddingAs, lambda name: fc.Packed(8, padding_as=name)),
        (layouts.Share, lambda name: fc.Tree(8, share=name)),
        (layouts.Share, lambda name: fc.planning.prefix_tree([[1]], [[2]], share=name)),
        (binned.Algorithm, lambda name: fc.Packed(8, algorithm=name)),
        (binned.Oversize, lambda name: fc.Tree(8, oversize=name)),
        (binned.Growth, lambda name: fc.Packed(8, grow_by=name)),
        (partitioning.Algorithm, lambda name: fc.planning.partition([1], 1, algorithm=name)),
        (partitioning.Order, lambda name: fc.planning.micro_batches([1], 8, order=name)),
    ],
)
def test_errors_list_the_names_of_type_hints(hint, call):
    names = ", ".join(map(repr, get_args(hint)))
    for given, error in ("other", ValueError), (3, TypeError), (None, TypeError):
        if (given, hint) != (None, binned.Oversize):
            with pytest.raises(error, match=rf" is {given!r}.*; pass {names}$"):
                call(given)


def test_every_layout_and_cost_has_a_name_that_the_core_reads():
    assert set(layouts._CLASSES) == set(_fastcollate.LAYOUTS)
    assert tuple(NAMED_COSTS) == _fastcollate.COSTS
    *_, by_name = get_args(layouts.LayoutArgument)
    assert set(get_args(by_name)) == set(layouts.BY_NAME) == set(_fastcollate.LAYOUTS) - {"packed"}
    for layout in layouts.BY_NAME.values():
        assert layout.spec.name == layout.name


def test_errors_of_inherited_methods_name_the_public_class():
    batch = fc.build_batch(**SMALL)
    with pytest.raises(TypeError, match=r"^Batch\.gather has no argument 'alignment'; pass"):
        batch.gather(alignment="response")
    with pytest.raises(TypeError, match=r"^Batch has no argument 'plan'; fc.build_batch makes one"):
        fc.Batch({}, plan=batch.plan)


def test_help_of_a_batch_begins_with_all_of_its_names():
    public = {name for name in vars_of(fc.Batch) if not name.startswith("_")}
    head = inspect.getdoc(fc.Batch).partition("Parameters\n")[0]  # 3.13 and newer dedent it
    rows = re.findall(r"^(`.+?`)  ", head, re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(listed) == sorted(public - {"get", "items", "keys", "values", "pop"})


def vars_of(cls):
    return set().union(*(vars(one) for one in cls.__mro__ if one.__module__.startswith("fastc")))


MISTAKES = {
    "fc.plan_step([3, 4])[0]": "a StepPlan has no items; call plan.shard(mini_batch, rank)",
    "list(fc.plan_step([3, 4]))": "a StepPlan has no items; call plan.shard(mini_batch, rank)",
    "fc.planning.pack([3], fc.Packed(4))[0]": "a BinPlan has no items; plan.bins lists the rows",
    "fc.planning.Costs.for_model": "Costs has no attribute 'for_model'; it has fit, from_config",
    "fc.Ragged([[1], [2]])": "Ragged is called without offsets; fc.ragged makes one of rows",
    "fc.Batch(1, 2)": "Batch takes data; fc.build_batch makes one of all rows",
    "fc.skyrl": "no attribute 'skyrl'; import fastcollate.compat.skyrl",
    "batch.micro_batches": "no micro_batches; a shard of fc.plan_step(batch, ...) has it",
    "batch + batch": "batches cannot be joined: build one batch of all rows",
    "batch | batch": "batches cannot be joined: build one batch of all rows",
    "fc.Batch.concat([batch, batch])": "attribute 'concat'; fc.build_batch makes one of all rows",
    "batch * 2": "a Batch has no arithmetic; compute with its outputs, as batch.loss_mask",
    "torch.ones(3) * batch": "a Batch has no arithmetic; compute with its outputs",
    "torch.cat([batch, batch])": "cat takes tensors, but got a Batch; build one batch of all rows",
    "torch.stack([batch, batch])": "stack takes tensors, but got a Batch; build one batch of all",
    "torch.nn.Embedding(9, 2)(batch)": "embedding takes tensors, but got a Batch; call the model "
    "with **batch.model_inputs(model=model)",
    "torch.nn.functional.cross_entropy(batch, 1)": "with an output, as batch.input_ids",
    "torch.exp(fc.ragged([[1]]))": "exp takes tensors, but got a Ragged; pass rows.values, or",
    "batch.model_inputs(torch.nn.Linear(1, 1))": "kernel is a model; pass it by name: model=model",
    "fc.BatchBuilder(pad_token_id=0).build()": "finish() returns the batch of all rows",
    "fc.Collator(tokenizer)": "one first, fc.Collator(pad_token_id=tokenizer.pad_token_id), then",
    "fc.build_batch([[1]], [[2]])": "pass pad_token_id=tokenizer.pad_token_id",
    "fc.build_batch(calls, pad_token_id=0)": "columns of calls by name, as **calls.batch",
    "fc.build_batch(pyarrow.table({'prompt': [[1]]}), pad_token_id=0)": "prompts=table['prompt'",
    "fc.build_batch([1, 2], [3], pad_token_id=0)": "array or tensor of numbers per row, as in",
    "fc.build_batch([[1]], [[2]], pad_token_id=0, fields={'a': fc.Field([0.1])})": "spread='all'",
    "fc.build_batch(torch.ones(3), [[2]], pad_token_id=0)": "([x] for a single row x)",
    "fc.build_batch([[1], None], [[2], [3]], pad_token_id=0)": "fill or drop missing rows first",
    "sum([batch, batch])": "batches cannot be joined: build one batch of all rows",
    "batch.plan.shard": "Plan has no attribute 'shard'; it has the positions of a batch's rows",
    "pickle.dumps(fc.BatchBuilder(pad_token_id=0))": "pickled; pickle the batch of finish()",
    "fc.build_batch('prompt', [[1]], pad_token_id=0)": "the column of a table, not its name",
    "batch.select(fc.plan_step([2]))": "pass plan.shard(mini_batch, rank) of a plan of fastcoll",
    "len(fc.plan_step([3, 4]))": "a StepPlan has no length; it has num_mini_batches, num_prompts",
    "setattr(batch, 'loss_mask', 1)": "write into it: batch.loss_mask[...] = values",
    "setattr(batch, 'advantages', 1)": "assigned; pass advantages=... to build_batch",
    "setattr(batch, 'uids', 1)": "batch.uids cannot be assigned; pass values of rows",
    "delattr(batch, 'loss_mask')": "write into an output, as batch.loss_mask",
    "setattr(collate, 'max_length', 1)": "max_length of a Collator cannot be changed; make another",
    "setattr(fc.Packed(4), 'capacity', 8)": "capacity of a Packed cannot be changed; make another",
    "setattr(fc.Field([[1]]), 'dtype', 'int64')": "dtype of a Field cannot be changed; make",
    "setattr(calls, 'uids', ['a'])": "write calls.columns['uids'] = ... to change this column",
    "fc.ragged([[1]]) - 1.0": "rows of a Ragged have no arithmetic; compute with rows.values",
    "fc.ragged([[1]]).tolist()": "Ragged has no attribute 'tolist'; it has values (the numbers of",
    "next(batch.rows()).input_ids": "a row is a dict, without attributes; read row['input_ids']",
    "next(batch.rows()).responses": "it is row['input_ids'][row['prompt_len']:]",
    "fc.build_batch(**calls)": "**calls.batch to build_batch and **calls.turns to merge_turns",
    "batch.to_layout(fc.Tree()).cu_seqlens": "see batch.attention_paths() and batch.subtree_end",
    "batch.prompt_length": "Batch has no prompt_length; see batch.prompt_lens",
    "batch.tokens": "Batch has no tokens; see batch.input_ids",
    "batch.adv": "Batch has no adv; pass advantages=... to build_batch",
    "batch['chosen_ids']": "Batch has no chosen_ids; the first half of the rows of pairs is chosen",
    "batch.quality": "its outputs are ['input_ids', 'attention_mask', 'response_mask', 'loss_mask'",
    "batch.show(tokenizer)": "pass tokenizer=... by name",
    "calls[0]": "a Calls has no items; call calls.select([0]) for some calls",
    "calls + calls": "Calls cannot be added; call Calls.concat([...])",
    "fc.rollouts.Calls.concat(calls, calls)": "Calls.concat takes parts; pass a list of calls",
    "fc.rollouts.Calls.concat(calls)": "parts is Calls; pass a list of calls",
    "calls.select([1])": "axis 0 with size 1; pass indices from 0 to 0",
    "calls.select(rows=[0])": "Calls.select has no argument 'rows'; pass some of calls",
    "batch.to('cpu', dtype='bfloat16')": "pass dtypes= to build_batch, or cast an output, as",
    "fc.build_batch(batch, pad_token_id=0)": "prompts and responses of the batch, or call its to_",
    "fc.planning.prefix_tree(batch)": "pass the prompts and responses of the batch",
    "fc.Collator(pad_token_id=0)([{'input_ids': np.ones((1, 2), int)}])": "(x[0] of a batch x of",
    "calls.to_pandas": "and can do batch, concat, from_arrow",
    "fc.rollouts.parse(['{}'])": "bodies[0].encode() of a text",
    "skyrl.merge_stepwise_output([{}])": "generator_output is [{}] (list); pass a dict with a list",
    "skyrl.merge_stepwise_output({'response_ids': [[1]]})": "has no 'is_last_step'; add it, for",
    "skyrl.collate_sft_batch([{'input_ids': [1]}], None)": "examples[0] has no 'num_actions'",
    "trl.TreeRow().add([1])": "sample is [1] (list); pass a dict of input_ids, ",
    "trl.TreeRow().add({'input_ids': [1], 'completion_mask': [1]})": "sample has no 'old_log",
    "trl.TreeRow().roots": "TreeRow has no attribute 'roots'; it has add, fits, pack, tokens",
}
"""Mistakes, and what their errors advise."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors_of_mistakes_name_what_to_do(mistake):
    calls = fc.rollouts.Calls([[1]], [[2]])
    tokenizer = UserDict()
    tokenizer.decode = str
    known = {"fc": fc, "batch": fc.build_batch(**SMALL), "calls": calls, "tokenizer": tokenizer}
    known |= {
        "np": np,
        "pickle": pickle,
        "skyrl": skyrl,
        "trl": trl,
        "collate": fc.Collator(pad_token_id=0),
    }
    for name in ("torch", "pyarrow"):
        if f"{name}." in mistake:
            known[name] = pytest.importorskip(name)
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError)) as caught:
        eval(mistake, known)
    assert MISTAKES[mistake] in str(caught.value)


def test_remedies_of_slips():
    """Each names what was meant: padding beside rows, values one short, swapped ranks, forks."""
    rows = {"prompts": [[1], [2]], "responses": [[1, 2, 3], [4]], "pad_token_id": 0}
    for given, message in (
        ({"loss_mask": np.ones((2, 5))}, r"loss_mask\[0\] has 5 .* \(fc.unpad\(values, lengths\)"),
        ({"fields": {"ref": [[-1.0, -2.0], []]}}, "all rows lack one, as of values whose first or"),
        ({"cp": (0, 2), "layout": fc.Packed(8)}, r"cp_size of cp is 0; .* cp=\(cp_size, cp_rank\)"),
    ):
        with pytest.raises(ValueError, match=message):
            fc.build_batch(**rows, **given)
    tree = fc.build_batch(**rows, layout=fc.Tree(8))
    with pytest.raises(ValueError, match=r"log-probabilities by batch.loss_positions\(\) and"):
        tree.gather(tree.input_ids.double())
