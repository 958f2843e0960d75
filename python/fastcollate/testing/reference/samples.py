"""Batches of samples (rows as dicts), one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.row_columns import VALUES
from fastcollate.rows.fields import Field
from fastcollate.testing.reference.loops import build_batch_loops


def collate_loops(
    samples: Sequence[Mapping[str, Any]],
    *,
    fields: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    keep: str = "start",
    **options: Any,
) -> dict[str, Any]:
    """Split every sample into a prompt and a response, and build their batch.

    Parameters
    ----------
    samples
        Dicts of ``prompt`` and ``response``, or of ``input_ids``, alone or with ``prompt_len``,
        ``labels``, ``completion_mask`` or ``assistant_masks``, and of what belongs to the response;
        as `fastcollate.Collator`. The numbers are Python's. Or pairs of ``prompt_ids``,
        ``chosen_ids`` and ``rejected_ids``, without fields.
    fields
        Fields by key, with the samples' key in place of rows.
    max_length, keep
        As `fastcollate.Collator`.
    **options
        More arguments of `build_batch_loops`.

    Returns
    -------
    dict[str, object]
        As `build_batch_loops`. All samples but pairs and rollouts give labels, aligned unless asked
        otherwise.

    Raises
    ------
    ValueError
        If a pair would lose a response.
    """
    are_pairs = "chosen_ids" in samples[0]
    if are_pairs:
        samples = _rows_of_pairs(samples)
        fields = {"completion_mask": Field("completion_mask", align="sequence", dtype="int64")}
    if max_length is not None:
        samples = [_cut(sample, max_length, keep) for sample in samples]
    columns: dict[str, Any] = {"prompts": [], "responses": []}
    for sample in samples:
        prompt, response, mask = _parts(sample)
        columns["prompts"].append(prompt)
        columns["responses"].append(response)
        if mask is not None:
            columns.setdefault("loss_mask", []).append(mask)
        for key in VALUES:
            if key in sample:
                columns.setdefault(key, []).append(sample[key])
    of_rollouts = {"rewards", "logprobs", "advantages"}.intersection((*columns, *(fields or ())))
    if not (are_pairs or of_rollouts):
        options["labels"] = options.get("labels") or "aligned"
    if fields is not None:
        options["fields"] = {key: _fill(field, samples) for key, field in fields.items()}
    return build_batch_loops(**columns, **options)


def _rows_of_pairs(pairs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the two samples of each pair, all chosen ones first."""
    rows = []
    for key in ("chosen_ids", "rejected_ids"):
        for pair in pairs:
            prompt, response = pair["prompt_ids"], pair[key]
            mask = [0] * len(prompt) + [1] * len(response)
            rows.append({"prompt": prompt, "response": response, "completion_mask": mask})
    return rows


def _cut(sample: Mapping[str, Any], max_length: int, keep: str) -> dict[str, Any]:
    """Return the first or last tokens of a sequence, or of a row of a pair."""
    kept = slice(max_length) if keep == "start" else slice(-max_length, None)
    if "input_ids" in sample:
        rows = {key: row for key, row in sample.items() if isinstance(row, list)}
        found: dict[str, Any] = {key: row[kept] for key, row in rows.items()}
        if "prompt_len" in sample:
            trains = [0] * sample["prompt_len"] + [1] * len(sample["input_ids"])
            found["prompt_len"] = trains[: len(sample["input_ids"])][kept].count(0)
        return found
    ids = [*sample["prompt"], *sample["response"]][kept]
    mask = sample["completion_mask"][kept]
    if sample["response"] and 1 not in mask:
        raise ValueError(f"{sample} would lose its response")
    prompt = mask.count(0)
    return {"prompt": ids[:prompt], "response": ids[prompt:], "completion_mask": mask}


def _parts(sample: Mapping[str, Any]) -> tuple[Any, Any, list[int] | None]:
    """Return prompt, response and loss mask."""
    if "prompt" in sample:
        return sample["prompt"], sample["response"], None
    ids = sample["input_ids"]
    if "prompt_len" in sample:
        return ids[: sample["prompt_len"]], ids[sample["prompt_len"] :], None
    masks = [sample[key] for key in ("completion_mask", "assistant_masks") if key in sample]
    if "labels" in sample:
        masks = [[label != IGNORE_INDEX for label in sample["labels"]]]
    if not masks:
        return [], ids, None
    trained = [int(all(values)) for values in zip(*masks, strict=True)]
    count = trained.index(1) if 1 in trained else len(ids)
    return ids[:count], ids[count:], trained[count:]


def _fill(field: Any, samples: Sequence[Mapping[str, Any]]) -> Any:
    name = dataclasses.fields(field)[0].name
    key = getattr(field, name)
    return dataclasses.replace(field, **{name: [sample[key] for sample in samples]})
