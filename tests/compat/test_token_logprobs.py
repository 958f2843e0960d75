"""Log-probabilities of a block in bins and trees are those of its rows one by one."""

import random
import sys
import types
from importlib.util import find_spec

import pytest
from small_llama import SIZES, llama, qwen2
from snippets import SNIPPETS

import fastcollate as fc
from fastcollate.compat.transformers import register_tree_attention, token_logprobs
from frameworks import installed

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)


SKYRL_MODEL = "skyrl.backends.skyrl_train.workers.model_wrapper"
SKYRL_TORCH = "skyrl.backends.skyrl_train.utils.torch_utils"
VERL_ENGINE = "verl.workers.engine.fsdp.transformer_impl"


def code_of(page):
    """Return the snippets of a framework's page."""
    return [snippet.code for snippet in SNIPPETS[f"docs/frameworks/{page}.md"]]


def gpt2():
    import torch
    import transformers

    torch.manual_seed(2)
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    drops = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **drops))


def mistral():
    """Return a model with a sliding window of 4 tokens in each layer."""
    import torch
    import transformers

    torch.manual_seed(3)
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=4))


MODELS = {
    "paths": lambda: llama(register_tree_attention()),
    "llama": llama,
    "qwen2": qwen2,
    "windows": lambda: qwen2(
        use_sliding_window=True,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention"],
    ),
    "mistral": mistral,
    "gpt2": gpt2,
}

LAYOUTS = [
    fc.Tree(),
    fc.Tree(24),
    fc.Tree(40, min_shared=3, multiple_of=4),
    fc.Packed(24),
    fc.Packed.single_row(),
    fc.Packed(num_bins=2),
    fc.Packed(32, multiple_of=4),
]


def in_float64(model):
    """Convert a model, of which normalization computes in float32 otherwise."""
    import torch

    def normalized(self, hidden):
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden * torch.rsqrt(variance + self.variance_epsilon)

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(normalized, module)
    return model.double()


def block(seed):
    """Return rows with padding at both ends and inside, most of which begin as another row."""
    import torch

    rng = random.Random(seed)
    count, width = rng.randint(1, 7), rng.randint(2, 16)
    ids = torch.randint(1, 4, (count, width), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(count, width, dtype=torch.long)
    for row in range(count):
        kind = rng.choice(["left", "right", "holes", "whole", "empty" if row else "whole"])
        size = rng.randint(0, width - 1)
        if kind == "left":
            mask[row, :size] = 0
        elif kind == "right":
            mask[row, width - size :] = 0
        elif kind == "empty":
            mask[row] = 0
        elif kind == "holes":
            mask[row] = torch.tensor([rng.random() < 0.7 for _ in range(width)])
        if row and rng.random() < 0.7:
            size = rng.randint(0, width)
            ids[row, :size], mask[row, :size] = ids[row - 1, :size], mask[row - 1, :size]
    loss_mask = torch.tensor([[rng.random() < 0.6 for _ in range(width)] for _ in range(count)])
    return ids, mask, loss_mask


def one_by_one(model, ids, mask, loss_mask, temperature):
    """Return log-probabilities and entropies of each row by itself."""
    import torch

    count, width = ids.shape
    shape = (count, width - 1)
    found = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
    for row in range(count):
        columns = mask[row].nonzero()[:, 0]
        if len(columns) < 2:
            continue
        logits = model(ids[row, columns][None], use_cache=False).logits[0, :-1] / temperature
        logps = logits.log_softmax(-1)
        targets = ids[row, columns[1:], None]
        values = logps.gather(-1, targets)[:, 0], -(logps.exp() * logps).sum(-1)
        is_scored = loss_mask[row, columns[1:]]
        place = torch.full_like(columns[1:], row), columns[1:] - 1
        found = [
            each.index_put(place, value * is_scored)
            for each, value in zip(found, values, strict=True)
        ]
    return found


def gradients(model, values, weights):
    model.zero_grad()
    sum((value * weight).sum() for value, weight in zip(values, weights, strict=True)).backward()
    return [each.grad.clone() for each in model.parameters()]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients_are_those_of_rows(name, layout):
    import torch

    model = in_float64(MODELS[name]())
    for seed in range(6):
        ids, mask, loss_mask = block(seed)
        expected = one_by_one(model, ids, mask, loss_mask, 0.7)
        found = token_logprobs(model, ids, mask, loss_mask, layout=layout, temperature=0.7)
        weights = [torch.rand(value.shape, dtype=torch.float64) for value in expected]
        for one, other in zip(expected, found, strict=True):
            assert other.dtype == torch.float64
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
        if not any(value.requires_grad for value in expected):
            continue
        both = (gradients(model, each, weights) for each in (expected, found))
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_the_model_runs_once_for_each_bin():
    import torch

    model = llama()
    shapes = []
    model.model.register_forward_pre_hook(
        lambda _, __, inputs: shapes.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    ids = torch.arange(24).view(4, 6)
    mask = torch.ones_like(ids)
    log_probs, entropies = token_logprobs(model, ids, mask, mask, layout=fc.Packed(12))
    assert shapes == [(1, 12), (1, 12)]
    assert log_probs.dtype == entropies.dtype == torch.float32
    assert log_probs.shape == (4, 5)
    assert log_probs.requires_grad


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({}, [8, 6]),
        ({"multiple_of": 3}, [9, 6]),
        ({"pad_to_multiple_of": 4}, [8, 8]),
        ({"pad_to": 11}, [11, 11]),
    ],
)
@pytest.mark.parametrize("kind", [fc.Packed, fc.Tree])
@pytest.mark.parametrize("attention", ["sdpa", "paths"])
def test_bins_are_as_wide_as_their_tokens(monkeypatch, kind, options, widths, attention):
    """All are laid out in one call."""
    import torch

    module = sys.modules["fastcollate.compat.transformers.token_logprobs"]
    calls, build = [], module.build_batch
    monkeypatch.setattr(module, "build_batch", lambda **rows: calls.append(rows) or build(**rows))
    model = llama(register_tree_attention() if attention == "paths" else attention).double()
    shapes = []
    model.model.register_forward_pre_hook(
        lambda _, __, inputs: shapes.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    ids = torch.arange(16).view(2, 8)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    found = token_logprobs(model, ids, mask, mask, layout=kind(11, **options))
    assert shapes == [(1, width) for width in widths]
    assert len(calls) == 1
    torch.testing.assert_close(
        found.log_probs, one_by_one(model, ids, mask, mask, 1.0)[0], rtol=1e-5, atol=1e-5
    )


def test_half_precision_gives_single_precision():
    import torch

    ids = torch.arange(12).view(2, 6)
    mask = torch.ones_like(ids)
    model = llama().bfloat16()
    found = token_logprobs(model, ids, mask, mask, layout=fc.Packed(12))
    assert {value.dtype for value in found} == {torch.float32}


def test_bad_arguments():
    import torch

    ids = torch.ones(2, 3, dtype=torch.long)
    for wrong in ((ids, ids, ids[:, 1:]), (ids[0], ids[0], ids[0])):
        with pytest.raises(ValueError, match="pass three tensors of \\(B, L\\)"):
            token_logprobs(llama(), *wrong, layout=fc.Packed(8))
    with pytest.raises(ValueError, match="capacity"):
        token_logprobs(llama(), ids, ids, ids, layout=fc.Packed(2))
    with pytest.raises(TypeError, match="temperature is 'warm'"):
        token_logprobs(llama(), ids, ids, ids, layout=fc.Packed(8), temperature="warm")


def test_the_recipe_for_skyrl(monkeypatch):
    """The class of the page has the results of SkyRL's, which is made with a model."""
    import torch

    monkeypatch.setattr(installed, "ABSENT", set())
    monkeypatch.setattr(installed, "MODULES", installed.MODULES | {SKYRL_MODEL, SKYRL_TORCH})
    if (module := installed.real(SKYRL_MODEL)) is None:
        pytest.skip("needs `make peers`")
    monkeypatch.setitem(sys.modules, SKYRL_MODEL, module)
    ids = torch.randint(1, 4, (4, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    model = in_float64(llama())
    names = {}
    (snippet,) = [code for code in code_of("skyrl") if "class LaidOutModel" in code]
    exec(snippet, names)
    arguments = {"attention_mask": mask, "temperature": 0.7, "return_output": True}
    own, output = module.HFModelWrapper(model)(ids, 4, **arguments, compute_entropy=True)
    ours, our_output = names["LaidOutModel"](model)(ids, 4, **arguments, compute_entropy=True)
    torch.testing.assert_close(own, ours, rtol=0, atol=1e-9)
    entropies = (each["entropy"][:, -5:-1] for each in (output, our_output))
    torch.testing.assert_close(*entropies, rtol=0, atol=1e-9)


def test_the_recipe_for_verl():
    import torch

    names = {}
    (snippet,) = [code for code in code_of("verl") if "def laid_out" in code]
    exec(snippet, names)
    rows = [torch.tensor(row) for row in ([5, 6, 7, 8], [5, 6, 9], [5, 6, 7, 2, 1])]
    ids = torch.nested.nested_tensor(rows, layout=torch.jagged)
    model = in_float64(llama())
    found = names["laid_out"](model, {"input_ids": ids, "temperature": 0.7})
    for row, log_probs, entropy in zip(
        rows, *(each.unbind() for each in found.values()), strict=True
    ):
        logits = (model(row[None]).logits[0, :-1] / 0.7).log_softmax(-1)
        expected = logits.gather(-1, row[1:, None])[:, 0]
        torch.testing.assert_close(log_probs[:-1], expected, rtol=0, atol=1e-9)
        expected = -(logits.exp() * logits).sum(-1)
        torch.testing.assert_close(entropy[:-1], expected, rtol=0, atol=1e-9)
        assert log_probs[-1] == entropy[-1] == 0


def test_the_recipe_for_verl_in_its_engine(monkeypatch):
    """The function has the results of a step of the engine, which calls the packed rows."""
    import torch

    class MicroBatch(dict):
        batch_size = (3,)

        def to(self, _):
            return self

    monkeypatch.setattr(installed, "MODULES", installed.MODULES | {VERL_ENGINE})
    modes = {"DatasetPadMode": types.SimpleNamespace(NO_PADDING="no_padding")}
    monkeypatch.setitem(installed.GIVEN, "verl.utils.dataset.dataset_utils", modes)
    if (module := installed.real(VERL_ENGINE)) is None:
        pytest.skip("needs `make peers`")
    engine = module.FSDPEngineWithLMHead
    functions = installed.real("verl.utils.torch_functional")
    monkeypatch.setattr(functions, "NPU_CROSS_ENTROPY_LOSS_AVAILABLE", False)
    rows = [torch.tensor(row) for row in ([5, 6, 7, 8], [5, 6, 9], [5, 6, 7, 2, 1])]
    ids, positions = (
        torch.nested.nested_tensor(each, layout=torch.jagged)
        for each in (rows, [torch.arange(len(row)) for row in rows])
    )
    batch = MicroBatch(
        input_ids=ids, position_ids=positions, temperature=0.5, calculate_entropy=True
    )
    model = in_float64(llama())
    own = types.SimpleNamespace(
        module=model,
        use_ulysses_sp=False,
        pad_to_length=None,
        engine_config=types.SimpleNamespace(
            entropy_checkpointing=False, entropy_from_logits_with_chunking=False
        ),
        _autocast_dtype=torch.float32,
        _get_packed_pad_size=lambda _: 0,
        _gather_and_unpad_packed=lambda values, _: values,
        compute_entropy_from_logits=functions.entropy_from_logits,
        get_data_parallel_group=lambda: None,
    )
    for name in "prepare_model_inputs", "prepare_model_outputs":
        setattr(own, name, types.MethodType(getattr(engine, name), own))
    monkeypatch.setattr(module, "detach_tree", lambda tree: tree)
    _, output = engine.forward_step(own, batch, lambda **_: (torch.zeros(()), {}), False)
    names = {}
    (snippet,) = [code for code in code_of("verl") if "def laid_out" in code]
    exec(snippet, names)
    found = names["laid_out"](model, batch)
    assert found.keys() == output["model_output"].keys()
    for name, values in found.items():
        expected = output["model_output"][name]
        assert torch.equal(values.offsets(), expected.offsets())
        for ours, theirs in zip(values.unbind(), expected.unbind(), strict=True):
            torch.testing.assert_close(ours[:-1], theirs[:-1], rtol=0, atol=1e-9)


def test_pairs_share_their_prompts():
    """A preference loss of a tree has the log-probabilities of padded rows."""
    import torch

    model = in_float64(llama())
    pairs = [
        {"prompt_ids": [1, 2, 3], "chosen_ids": [4, 5], "rejected_ids": [4, 6, 7]},
        {"prompt_ids": [1, 2], "chosen_ids": [9], "rejected_ids": [8]},
    ]
    found = []
    for layout in ("right", fc.Tree(), fc.Tree(8)):
        batch = fc.Collator(pad_token_id=0, layout=layout, kernel="dense")(pairs)
        hidden = model.model(**batch.model_inputs(model=model)).last_hidden_state
        pos, inv = batch.loss_positions()
        logps = model.lm_head(hidden.flatten(0, 1)[pos]).log_softmax(-1)[inv, batch.targets]
        rows = batch.gather(logps * batch.loss_mask, align="response")
        chosen, rejected = torch.stack([row.sum() for row in rows]).chunk(2)
        found.append(-torch.nn.functional.logsigmoid(chosen - rejected).sum())
    for loss in found[1:]:
        torch.testing.assert_close(loss, found[0], rtol=0, atol=1e-12)
    assert batch.metrics["batch/token_ratio"] > 1.4
