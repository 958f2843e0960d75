"""A user's program, for `mypy --strict` and strict pyright (`make lint`): types that help."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import fastcollate as fc

Sample = Mapping[str, Any]


def loss_of(batch: fc.Batch[torch.Tensor], logprobs: torch.Tensor) -> torch.Tensor:
    trained = batch.loss_mask != 0
    assert_type(batch.input_ids.shape, torch.Size)
    return -(logprobs[trained] * batch.rewards[trained] * batch.loss_mask[trained]).sum()


def train(model: torch.nn.Module, batches: Iterable[fc.Batch[torch.Tensor]]) -> None:
    with fc.prefetch(batches, device="cuda") as ready:
        for batch in ready:
            assert_type(batch, fc.Batch[torch.Tensor])
            torch.autograd.backward(loss_of(batch, model(batch.input_ids)))


def of_tensors(batch: fc.Batch) -> torch.Tensor:
    """A batch without a parameter has tensors."""
    assert_type(batch, fc.Batch[torch.Tensor])
    return batch.select(rows=[0]).input_ids


def batches_of(prompts: list[list[int]], responses: list[NDArray[np.int32]]) -> None:
    batch = fc.build_batch(prompts, responses, pad_token_id=0, rewards=[1.0], layout="right")
    assert_type(batch, fc.Batch[torch.Tensor])
    assert_type(batch.position_ids, torch.Tensor)
    assert_type(batch["input_ids"], torch.Tensor)
    assert_type(batch["max_seqlen"], int)
    assert_type(batch.max_seqlen, int)
    assert_type(batch.to("cuda").to_layout(fc.Left(pad_to=8)).labels, torch.Tensor)
    more = {"x": fc.Field([[0.5]])}
    arrays = fc.build_batch(prompts, responses, pad_token_id=0, array_type="numpy", fields=more)
    assert_type(arrays.labels, NDArray[Any])
    assert_type(arrays["x"], NDArray[Any])
    fc.build_batch(
        prompts, responses, pad_token_id=0, uids=np.array([0]), is_last_step=np.array([1])
    )
    fc.build_batch(prompts, [], pad_token_id=0, loss_masks=[[1]])  # type: ignore[call-overload]
    fc.build_batch(prompts, [], pad_token_id=0, layout="middle")  # type: ignore[call-overload]
    fc.build_batch(prompts, [], pad_token_id=0, layout="packed")  # type: ignore[call-overload]
    arrays.labels.cuda()  # type: ignore[attr-defined]
    batch.max_seqlen.item()  # type: ignore[attr-defined]
    fc.pack([3, 2], 4)  # type: ignore[attr-defined]


def steps_of(batch: fc.Batch[torch.Tensor], uids: Sequence[str]) -> fc.planning.StepPlan:
    layout = fc.Packed(4096, shift="next_token")
    plan = fc.plan_step(batch, uids=uids, dp_size=8, shard_by="tokens", layout=layout)
    assert_type(batch.select(plan.shard(0, 1)).prompt_lens, torch.Tensor)
    fc.plan_step(batch, shard_by="rows")  # type: ignore[arg-type]
    return plan


def collators(samples: list[Sample]) -> None:
    assert_type(fc.Collator(pad_token_id=0, layout="right")(samples), fc.Batch[torch.Tensor])
    keys = ("input_ids", "labels")
    inputs = fc.Collator(pad_token_id=0, fields={"adv": fc.Field("adv")}, outputs=keys)(samples)
    assert_type(inputs, dict[str, Any])
    loss_of(inputs, inputs["labels"])  # type: ignore[arg-type]


def builders() -> fc.Batch[NDArray[Any]]:
    pool = fc.memory.BufferPool(1 << 20)
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy", pool=pool)
    builder.add([1, 2], [3], rewards=1.0, loss_mask=[1], uid="p7")
    return builder.finish()


def looks(batch: fc.Batch[torch.Tensor]) -> list[int]:
    print(batch.show([0, 3], fields="rewards", fold=None).text(width=100))
    batch.show(rows="all")  # type: ignore[arg-type]
    findings = batch.check(vocab_size=32000, eos_token_id=[2, 7])
    assert_type(findings[0].reasons, list[str])
    return [row for finding in findings for row in finding.rows.tolist()]


def modules() -> None:
    """Modules that `import fastcollate` makes available; `testing` and others are imported."""
    assert_type(fc.rollouts.parse(b"{}").responses, fc.Ragged)
    assert_type(fc.planning.pack([3, 2], fc.Packed(4)).num_bins, int)
    fc.memory.set_default_pool(None)


def rows_alone(rows: list[list[int]], mask: torch.Tensor) -> None:
    assert_type(fc.pad(rows, "left", fill=-100, multiple_of=8), torch.Tensor)
    assert_type(fc.pad(rows, dtype="int32", array_type="numpy"), NDArray[Any])
    assert_type(fc.unpad(fc.pad(rows), mask=mask), fc.Ragged)
    fc.pad(rows, padding_side="left")  # type: ignore[call-overload]
