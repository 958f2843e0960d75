"""The lines of the page on further frameworks give what the frameworks' own functions gave."""

import copy
from types import SimpleNamespace

import pytest
from recorded import recorded
from snippets import snippets_of

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import fastcollate as fc  # noqa: E402

GOLDEN = recorded("framework_lines")

# Modules of frameworks that the lines use, as far as tokens go.
PRIME_RL = SimpleNamespace(
    _MicroBatchBin=lambda samples, length: (samples, length),
    _materialize_bin=lambda found: [token for one in found[0] for token in one.input_ids],
)


class TensorData(list):
    """Data and dtype as recorded of rLLM; tinker-cookbook's are tensors."""

    from_torch = staticmethod(lambda value: value)

    def __init__(self, data, dtype):
        super().__init__([dtype, data])


TINKER = SimpleNamespace(
    Datum=lambda model_input, loss_fn_inputs: {"model_input": model_input, **loss_fn_inputs},
    ModelInput=SimpleNamespace(from_ints=torch.tensor),
    TensorData=TensorData,
)


@pytest.fixture(scope="module")
def lines():
    names = {"fc": fc, "np": np, "torch": torch, "batch": PRIME_RL, "tinker": TINKER}
    for snippet in snippets_of("docs/frameworks/more.md"):
        exec(snippet.code, names)
    return names


def decoded(value):
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if isinstance(value, dict) and value.get("dtype") == "numpy":
        return np.array(value["values"])
    if isinstance(value, dict) and value.keys() == {"dtype", "values"}:
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"][6:]))
    if isinstance(value, dict):
        return {key: decoded(item) for key, item in value.items()}
    return value


def encoded(value):
    if torch.is_tensor(value):
        return {"dtype": str(value.dtype), "values": value.tolist()}
    if isinstance(value, np.ndarray):
        return {"dtype": "numpy", "values": value.tolist()}
    if isinstance(value, (list, tuple)):
        return list(map(encoded, value))
    return {key: encoded(item) for key, item in value.items()} if isinstance(value, dict) else value


def expand_bins(function, bins, count, lengths):
    bins = copy.deepcopy(bins)
    function(bins, count, lengths)
    return bins


def pack_samples(function, ids, size, workers, coefficients):
    linear, quadratic = coefficients
    samples = [SimpleNamespace(input_ids=row, mm_kwargs=None) for row in ids]
    cost = lambda lens: linear * sum(lens) + quadratic * sum(n * n for n in lens)  # noqa: E731
    return function(samples, size, workers, cost)


def data_of_trajectory(function, observations, actions, logprobs, advantage, masked=()):
    turns = [
        SimpleNamespace(
            ob=SimpleNamespace(to_ints=lambda ids=ids: ids),
            ac=SimpleNamespace(tokens=tokens, logprobs=logps),
            metrics={"parse_error_masked": 1.0} if index in masked else {},
        )
        for index, (ids, tokens, logps) in enumerate(
            zip(observations, actions, logprobs, strict=True)
        )
    ]
    return function(SimpleNamespace(transitions=turns), advantage)


def datums_of_trajectory(function, prompts, responses, logprobs, advantages):
    steps = [
        SimpleNamespace(prompt_ids=prompt, response_ids=response, logprobs=logps, advantage=gain)
        for prompt, response, logps, gain in zip(
            prompts, responses, logprobs, advantages, strict=True
        )
    ]
    return function(SimpleNamespace(steps=steps))


NAMES = {"PackedDataset": "packs_of", "_pad_sequence_batch": "pad_sequence_batch"}
BY = {
    "expand_bins_by_splitting": expand_bins,
    "packed_samples_into_micro_bs": pack_samples,
    "trajectory_to_data": data_of_trajectory,
    "trajectory_to_datums": datums_of_trajectory,
}


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["function"])
def test_results_are_those_of_the_framework(lines, case):
    name = case["function"]
    function = lines[NAMES.get(name, name)]
    arguments, options = decoded(case["arguments"]), decoded(case["options"])
    if name in BY:
        found = BY[name](function, *arguments, **options)
    else:
        found = function(*arguments, **options)
    assert encoded(found) == case["result"]


@pytest.mark.parametrize(("image", "replay"), [(True, False), (False, True)])
def test_images_and_routes_are_left_to_rllm(lines, image, replay):
    step = SimpleNamespace(
        prompt_ids=[3, object()] if image else [3], response_ids=[4], logprobs=[-0.5], advantage=1.0
    )
    rollout = SimpleNamespace(steps=[step])
    lines["of_rllm"] = lambda *arguments: arguments  # in place of rLLM's own
    assert lines["trajectory_to_datums"](rollout, replay) == (rollout, replay)
