"""TRL: packing of datasets, and collators that ``fc.Collator`` replaces."""

from __future__ import annotations

import warnings
from typing import Any

from hypothesis import strategies as st

from fastcollate.compat import trl as compat
from frameworks.parity.framework import Case, Draw, Framework, Peer

TRL = Framework("TRL", "trl")


@TRL.compares("pack_dataset")
def packed_tables(draw: Draw, trl: Peer) -> Case:
    """Draw a table of list columns; at least one row has tokens, which TRL needs."""
    import pyarrow as pa

    list_type = draw(st.sampled_from([pa.list_, pa.large_list]))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any))
    columns = {
        name: [[draw(values) for _ in range(length)] for length in lengths]
        for name, values in {"input_ids": st.integers(0, 99), "weights": st.floats(0, 1)}.items()
    }
    types = {"input_ids": list_type(pa.int64()), "weights": list_type(pa.float64())}
    table = pa.table({name: pa.array(rows, types[name]) for name, rows in columns.items()})
    seq_length = draw(st.integers(1, 12))
    strategy = draw(st.sampled_from(["bfd", "bfd_split", "wrapped", "best"]))
    return Case(
        theirs=lambda: trl("trl.data_utils").pack_dataset(Mapped(table), seq_length, strategy).made,
        ours=lambda: without_warnings(compat.pack_dataset, table, seq_length, strategy),
        given={**columns, "types": types, "seq_length": seq_length, "strategy": strategy},
    )


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


def without_warnings(function: Any, *arguments: Any) -> Any:
    """Call a function that warns of cut sequences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)
