"""Programs like those of the README pass a strict type checker."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import fastcollate as fc

pytestmark = pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")

PROGRAM = """
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import assert_type

import fastcollate as fc

Sample = Mapping[str, Any]


def train(batch: fc.Batch) -> float:
    return float(batch.metrics["batch/tokens"])


def main(lists_of_samples: Iterable[Sequence[Sample]], samples: list[Sample]) -> None:
    collate = fc.Collator(pad_token_id=0, layout="right", pin_memory=True)
    with fc.prefetch(map(collate, lists_of_samples), device="cuda", progress=True) as batches:
        for batch in batches:
            train(batch)

    one = collate(samples)
    assert_type(one, fc.Batch)
    print(one.prompt_lens, one.uids)

    keys = ("input_ids", "attention_mask", "labels")
    padded = fc.Collator(pad_token_id=0, fields={"adv": fc.Field("adv")}, outputs=keys)
    inputs = padded(samples)
    assert_type(inputs, dict[str, Any])
    print(inputs["labels"])

    kept: fc.Collator[fc.Batch] = fc.Collator(pad_token_id=0, outputs=None)
    print(kept(samples).plan)

    builder = fc.BatchBuilder(pad_token_id=0)
    builder.add([1, 2], [3], rewards=1.0, loss_mask=[1], uid="p7")
    train(builder.finish())
    train(fc.build_batch([[1]], [[2]], pad_token_id=0, fields={"x": fc.Field([[0.5]])}))

    plan = fc.plan_step([3], layout=fc.Packed(16, shift="next_token"))
    packed = fc.build_batch([[1]], [[2, 3]], pad_token_id=0, shard=plan.shard(0, 0))
    train(packed.to_layout(fc.Left(pad_to=8)).to_layout("right"))
"""

CONFIG = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*]
follow_imports = skip
"""


def checked(program, folder):
    (folder / "program.py").write_text(program)
    (folder / "mypy.ini").write_text(CONFIG)
    # A wheel is found by itself, and mypy wants no path that it finds.
    found = Path(fc.__file__).parent.parent
    path = {} if found.name == "site-packages" else {"MYPYPATH": str(found)}
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "program.py"],
        cwd=folder,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr


def test_a_program_passes(tmp_path):
    code, said = checked(PROGRAM, tmp_path)
    assert code == 0, said
    wrong = PROGRAM.replace('print(inputs["labels"])', "train(inputs)")
    code, said = checked(wrong, tmp_path)
    assert code == 1
    assert 'Argument 1 to "train" has incompatible type "dict[str, Any]"' in said
