"""Costs of rows from a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

from fastcollate.plan.costs import Costs


def costs_of(path: Path | None) -> Costs | None:
    """Read the costs written by ``Costs.to_dict``.

    Raises
    ------
    ValueError
        The file holds no costs.
    """
    if path is None:
        return None
    try:
        return Costs.from_dict(json.loads(path.read_text("utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f'{path} has no costs: {error}; write such as {{"per_token": 1, "per_pair": 0.001}}'
        ) from error
