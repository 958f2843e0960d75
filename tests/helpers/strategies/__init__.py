"""Hypothesis strategies for rollouts and for every kind of input.

Examples
--------
>>> from hypothesis import given
>>> @given(rollouts().flatmap(as_inputs))
... def test_my_trainer(inputs):
...     batch = fc.build_batch(**inputs, pad_token_id=0)
"""

from fastcollate.testing.drawing import Rollouts, rollouts, with_fields
from strategies.columns import COLUMN_KINDS, as_column
from strategies.fields import FIELD_DTYPES, extras, ragged_fields, spread_fields, token_fields
from strategies.forks import forks
from strategies.inputs import OUTERS, as_inputs, as_sequences
from strategies.kinds import FIELD_KINDS, LAYOUTS, TOKEN_KINDS, as_kind
from strategies.trajectories import (
    REALIGNING,
    Trajectories,
    TrajectoryID,
    merge_options,
    name_turns,
    taking_numbers,
    trajectories,
)

__all__ = [
    "COLUMN_KINDS",
    "FIELD_DTYPES",
    "FIELD_KINDS",
    "LAYOUTS",
    "OUTERS",
    "REALIGNING",
    "TOKEN_KINDS",
    "Rollouts",
    "Trajectories",
    "TrajectoryID",
    "as_column",
    "as_inputs",
    "as_kind",
    "as_sequences",
    "extras",
    "forks",
    "merge_options",
    "name_turns",
    "ragged_fields",
    "rollouts",
    "spread_fields",
    "taking_numbers",
    "token_fields",
    "trajectories",
    "with_fields",
]
