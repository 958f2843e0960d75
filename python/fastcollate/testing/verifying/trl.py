"""TRL: packing of datasets and of trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastcollate.compat import trl as compat
from fastcollate.testing.verifying.subjects import (
    Case,
    Draw,
    Peer,
    Subject,
    draw_numbers,
    draw_rows,
    draw_values,
)

TRL = Subject("TRL", "trl")


@TRL.compares("pack_dataset")
def packed_tables(draw: Draw, trl: Peer) -> Case:
    """Draw a table of list columns; at least one row has tokens, which TRL needs."""
    import pyarrow as pa

    list_type = draw(st.sampled_from([pa.list_, pa.large_list]))
    lengths = [*draw_numbers(draw, trl.scale, 0, 9, 20, min_size=0), draw(st.integers(1, 9))]
    columns: dict[str, Any] = {"input_ids": draw_rows(draw, lengths, 0, 99)}
    values = {
        "float64": (0.0, 0.25, 1.0),
        "int8": (-128, 127, None),
        "string": ("", "a", "\u00e9"),
        "bool": (True, False),
    }
    for name in draw(st.sets(st.sampled_from(sorted(values)))):
        columns[name] = draw_values(draw, lengths, values[name])
    types = {name: list_type(pa.type_for_alias(name)) for name in columns if name in values}
    types["input_ids"] = list_type(pa.int64())
    ahead, cut = draw(st.integers(0, 2)), draw(st.integers(0, len(lengths)))
    arrays = {
        name: pa.array([*[[]] * ahead, *rows], types[name])[ahead:]
        for name, rows in columns.items()
    }
    table = pa.table(
        {name: pa.chunked_array([one[:cut], one[cut:]]) for name, one in arrays.items()}
    )
    seq_length = draw(st.integers(1, 12))
    strategy = draw(st.sampled_from(["bfd", "bfd_split", "wrapped", "best"]))
    return Case(
        theirs=lambda: trl("trl.data_utils").pack_dataset(Mapped(table), seq_length, strategy).made,
        ours=lambda: compat.pack_dataset(table, seq_length, strategy),
        given={**columns, "types": types, "seq_length": seq_length, "strategy": strategy},
    )


def filled(kind: Any, samples: list[dict[str, Any]], budget: int) -> dict[str, Any]:
    """Add samples while they fit."""
    row, fits = kind(), []
    for sample in samples:
        fits.append(row.fits(sample, budget))
        if fits[-1] or not row.samples:
            row.add(sample)
    kept = [sample is known for sample, known in zip(samples, row.samples, strict=False)]
    state = {"tokens": row.tokens, "load": row.load, "trained": row.trained, "fits": fits}
    return {**row.pack(), **state, "groups": sorted(row.groups), "kept": kept}


@TRL.calls("trl.experimental.async_grpo.packing", "TreeRow", by=filled)
def tree_rows(draw: Draw, trl: Peer) -> dict[str, Any]:
    """Draw samples, most of which begin as another one, and a budget of tokens."""
    import torch

    array = draw(st.sampled_from([torch.tensor, np.array]))
    streams: list[list[int]] = [[]]
    samples = []
    for length in draw_numbers(draw, trl.scale, 1, 6 * trl.scale, 8):
        begin = draw(st.sampled_from(streams))
        begin = begin[: draw(st.integers(0, len(begin)))]
        ids = begin + draw_rows(draw, [length if not begin else length - 1], 0, 2)[0]
        streams.append(ids)
        sample = {
            "input_ids": array(ids),
            "completion_mask": array(draw_rows(draw, [len(ids)], 0, 1)[0]),
            "old_log_probs": array(draw_values(draw, [len(ids)], (-9.0, -0.1, -1e-40))[0]),
            "advantage": draw(st.sampled_from([-0.3, 0.0, 1.5])),
            "group_id": draw(st.integers(0, 2)),
        }
        samples.append(sample)
    return {"samples": samples, "budget": draw(st.integers(0, sum(map(len, streams))))}


def collated(
    kind: Any, samples: list[dict[str, Any]], padding_free: bool, multiple: int | None
) -> Any:
    """Make a batch, with positions if it is padded."""
    return kind(0, padding_free, not padding_free, multiple).torch_call(samples)


@TRL.calls("trl.trainer.sft_trainer", "DataCollatorForLanguageModeling", by=collated)
def language_modeling_samples(draw: Draw, trl: Peer) -> dict[str, Any]:
    """Draw samples with labels, packed or not."""
    is_packed, has_labels = draw(st.booleans()), draw(st.booleans())
    samples = []
    for length in draw_numbers(draw, trl.scale, 1, 6 * trl.scale, 6):
        lengths = [length] * draw(st.integers(1, 3 if is_packed else 1))
        (ids,), (are_labels,) = (draw_rows(draw, [sum(lengths)], 0, most) for most in (99, 1))
        labels = [
            token if is_label else -100 for token, is_label in zip(ids, are_labels, strict=True)
        ]
        sample = {"input_ids": ids} | ({"labels": labels} if has_labels else {})
        samples.append(sample | {"seq_lengths": lengths} if is_packed else sample)
    return {
        "samples": samples,
        "padding_free": draw(st.booleans()),
        "multiple": draw(st.sampled_from([None, 4])),
    }


class Mapped:
    """Stands in for a dataset of one batch, for which the library ``datasets`` takes 10 ms."""

    _formatting = None

    def __init__(self, table: Any) -> None:
        self.made = table

    def with_format(self, type: str | None = None) -> Mapped:
        """Return itself: its format is Arrow."""
        return self

    def map(self, function: Any, batched: bool, fn_kwargs: dict[str, Any]) -> Mapped:
        """Call a function on the table."""
        return Mapped(function(self.made, **fn_kwargs))
