"""Results of frameworks' own functions, recorded in `tests/golden`."""

import json
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def recorded(name):
    """Return the results of a file, by its name without suffix."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def as_tensors(value):
    """Make tensors of recorded ones, however deep they lie in dictionaries and lists."""
    import torch

    if isinstance(value, list):
        return [as_tensors(one) for one in value]
    if not isinstance(value, dict):
        return value
    if not {"dtype", "shape", "values"} <= value.keys():
        return {key: as_tensors(one) for key, one in value.items()}
    dtype = getattr(torch, value["dtype"].removeprefix("torch."))
    tensor = torch.tensor(value["values"], dtype=dtype).reshape(value["shape"])
    if "offsets" not in value:
        return tensor
    offsets = torch.tensor(value["offsets"], dtype=getattr(torch, value["offsets_dtype"]))
    return torch.nested.nested_tensor_from_jagged(tensor, offsets, jagged_dim=value["jagged_dim"])
