"""Models called with `Batch.model_inputs` train the rows, in every layout, however it was made."""

import pickle
import types
import warnings
from itertools import pairwise

import numpy as np
import pytest
import ways
from small_models import small_model

import fastcollate as fc
from fastcollate.ops.missing_outputs import REFUSED
from fastcollate.testing.reference import assert_same as same_outputs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rows_alone import loss_of, outcome, trained_alone  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

PROMPTS = [[5, 6, 7], [], [8], [5, 6], [9, 10, 11, 12]]
RESPONSES = [[13, 14], [15, 16, 17], [18, 19, 20, 21], [22], []]
MASKS = [[1, 1], [1, 1, 0], [0, 1, 1, 1], [1], []]

LAYOUTS = {
    "left": fc.Left(),
    "wide": fc.Left(pad_to=16),
    "right": fc.Right(),
    "two_segment": fc.TwoSegment(),
    "jagged": fc.Jagged(),
    "packed": fc.Packed(8),
    "shifted": fc.Packed(8, shift="next_token"),
    "rounded": fc.Packed(12, multiple_of=4, padding_as="last_segment"),
    "single_row": fc.Packed.single_row(),
    "tree": fc.Tree(12),
}
EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
WITH_LABELS = pytest.mark.parametrize(
    "layout", [one for one in LAYOUTS.values() if one.name != "tree"], ids=list(LAYOUTS)[:-1]
)
# Llama's eager attention rounds to float32, where the mask of left padding in float64 is infinite.
EACH_MODEL = pytest.mark.parametrize(
    ("family", "attention"), [("gpt2", "eager"), ("gpt2", "sdpa"), ("llama", "sdpa")]
)


def rows_alone(model):
    return trained_alone(model, PROMPTS, RESPONSES, MASKS)


def by_positions(model, batch):
    return loss_of(model, batch, batch.model_inputs(model=model))


def assert_same(found, expected, tolerance=1e-9):
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    torch.testing.assert_close(found[1], expected[1], rtol=tolerance * 100, atol=tolerance)


def built(layout, **options):
    return fc.build_batch(
        PROMPTS, RESPONSES, pad_token_id=0, loss_mask=MASKS, layout=layout, **options
    )


COLUMNS = {"prompts": PROMPTS, "responses": RESPONSES, "loss_mask": MASKS}


def by_builder(layout, **options):
    return ways.by_builder(COLUMNS, pad_token_id=0, layout=layout, **options)


def by_collator(layout, **options):
    options = {"kernel": kernel_of(layout), **options}
    return ways.by_collator(COLUMNS, pad_token_id=0, layout=layout, **options)


def kernel_of(layout):
    """Return the kernel to name where no model is known."""
    return "dense" if layout.name in ("jagged", "packed", "tree") else None


def converted(layout, **options):
    other = "jagged" if layout.name == "left" else "left"
    return built(other, **options).to_layout(layout)


def of_a_shard(layout, **options):
    tree = fc.planning.prefix_tree(
        sequences=[[*p, *r] for p, r in zip(PROMPTS, RESPONSES, strict=True)],
        prompt_lens=[len(p) for p in PROMPTS],
    )
    rows = tree if layout.name == "tree" else built(fc.Left())
    plan = fc.plan_step(rows, dp_size=1, layout=layout if layout.spec.has_bins else None)
    return built(layout, shard=plan.shard(0, 0), **options)


WAYS = [built, by_builder, by_collator, converted, of_a_shard]


@EACH_MODEL
@EACH_LAYOUT
def test_a_loop_of_ones_own_trains_the_rows(layout, family, attention):
    model = small_model(family, attention)
    expected = rows_alone(model)
    tolerance = 1e-9 if family == "gpt2" else 1e-7  # rotations round to float32
    assert_same(outcome(model, by_positions(model, built(layout))), expected, tolerance)


@EACH_MODEL
@pytest.mark.parametrize("labels", ["aligned", "shifted"])
@WITH_LABELS
def test_the_models_own_loss_trains_the_rows(layout, labels, family, attention):
    model = small_model(family, attention)
    expected = rows_alone(model)
    batch = built(layout, labels=labels)
    loss = model(**batch.model_inputs(model=model)).loss * batch.loss_mask.sum()
    assert_same(outcome(model, loss), expected, 1e-6)  # transformers rounds logits to float32


@EACH_LAYOUT
def test_every_way_to_make_a_batch(layout):
    """A shard has bins of its own; what other ways make is the same batch."""
    options = {} if layout.name == "tree" else {"labels": "aligned"}
    expected = built(layout, **options)
    for way in (by_builder, by_collator, converted):
        same_outputs(way(layout, **options)._data, expected._data)
    model, batch = small_model("gpt2", "eager"), of_a_shard(layout, **options)
    assert_same(outcome(model, by_positions(model, batch)), rows_alone(model))
    if options:
        loss = model(**batch.model_inputs(model=model)).loss * batch.loss_mask.sum()
        assert_same(outcome(model, loss), rows_alone(model), 1e-6)


@pytest.mark.parametrize("layout", [LAYOUTS[name] for name in ("jagged", "packed", "tree")])
def test_masks_by_name(layout):
    model = small_model("llama", "sdpa")
    batch = built(layout)
    block = batch.model_inputs("block")["attention_mask"]
    assert type(block).__name__ == "BlockMask"
    inputs = batch.model_inputs("dense", dtype="float64")
    assert inputs["attention_mask"].dtype == torch.float64
    expected = model(**batch.model_inputs(model=model)).logits
    found = model(**inputs).logits
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@EACH_MODEL
@pytest.mark.parametrize("layout", [LAYOUTS["packed"], LAYOUTS["jagged"]])
def test_positions_of_ones_own_leave_sequences_apart(layout, family, attention):
    model = small_model(family, attention)
    batch = built(layout, position_ids=False)
    inputs = batch.model_inputs("dense", dtype="float64")
    assert "position_ids" not in inputs
    with pytest.raises(AttributeError, match="position_ids=False"):
        batch.position_ids  # noqa: B018
    own = built(layout).model_inputs("dense")["position_ids"]
    loss = loss_of(model, batch, {**inputs, "position_ids": own})
    assert_same(outcome(model, loss), rows_alone(model))


@EACH_LAYOUT
@pytest.mark.parametrize("way", WAYS)
def test_the_loss_mask_is_an_output_of_every_batch(layout, way):
    batch = way(layout)
    assert float(batch.loss_mask.sum()) == 8 - 1  # the first token of a row without a prompt
    assert batch.metrics["batch/tokens_without_predecessor"] == 1
    assert batch.metrics["batch/trained_tokens"] == 7


@EACH_LAYOUT
@pytest.mark.parametrize("labels", [None, "aligned", "shifted"])
def test_positions_are_there_or_made(layout, labels, array_type):
    if layout.name == "tree" and labels:
        return
    batch = built(layout, labels=labels, array_type=array_type)
    pads_left = layout.name in ("left", "two_segment")
    assert ("position_ids" in batch) == (layout.spec.has_bins or (pads_left and labels is not None))
    written = built(layout, labels=labels, array_type=array_type, position_ids=True)
    ids = np.asarray(batch.input_ids)
    is_token = ids != 0
    found, expected = np.asarray(batch.position_ids), np.asarray(written["position_ids"])
    assert found.dtype == expected.dtype == np.int64
    assert found.shape == ids.shape
    assert (found[is_token] == expected[is_token]).all()
    assert batch.position_ids is batch.position_ids
    assert "position_ids" not in built(layout, position_ids=False)


def test_positions_have_their_dtype():
    assert built(LAYOUTS["left"], dtypes="compact").position_ids.dtype == torch.int32
    assert (
        built(LAYOUTS["right"], dtypes={"position_ids": "int32"}).position_ids.dtype == torch.int32
    )


@pytest.mark.parametrize("key", ["pixel_values", "image_sizes", "image_grid_thw", "input_features"])
@pytest.mark.parametrize("is_array", [False, True])
def test_images_that_are_not_joined(key, is_array):
    """A model would read their tokens as text."""
    images = np.ones((len(PROMPTS), 1, 3)) if is_array else [np.ones((1, 3))] * len(PROMPTS)
    message = rf"{key} is not joined.*pass fc.PerRow\(..., concat=True\)"
    batch = built(fc.Left(), fields={key: fc.PerRow(images)})
    with pytest.warns(UserWarning, match=message):
        assert key not in batch.model_inputs()
    collate = fc.Collator(pad_token_id=0, fields={key: fc.PerRow("images")})
    sample = {"prompt": [5], "response": [6], "images": images[0]}
    with pytest.warns(UserWarning, match=message):
        assert key not in collate([sample])
    fields = {
        key: fc.PerRow("images", concat=True),
        "mm_token_type_ids": fc.Field("types", align="sequence", dtype="int64"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert key in fc.Collator(pad_token_id=0, fields=fields)([{**sample, "types": [1, 0]}])


def with_types(layout, key="token_type_ids", images=None):
    types = [[len(p) % 2] * len(p) + [2] * len(r) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    fields = {key: fc.Field(types, align="sequence", dtype="int64")}
    if images is not None:
        fields["pixel_values"] = fc.PerRow([np.ones((1, 2))] * len(PROMPTS), concat=True)
    return types, built(layout, fields=fields)


@WITH_LABELS
def test_token_types_are_inputs(layout):
    """GPT-2 adds an embedding of them to each token's."""
    model = small_model("gpt2", "sdpa")
    types, batch = with_types(layout)
    losses = []
    for prompt, response, mask, kinds in zip(PROMPTS, RESPONSES, MASKS, types, strict=True):
        ids, weights = torch.tensor([[*prompt, *response]]), torch.tensor([0] * len(prompt) + mask)
        logits = model(ids, token_type_ids=torch.tensor([kinds])).logits[0, :-1]
        each = -logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        losses.append((each * weights[1:]).sum())
    inputs = batch.model_inputs(model=model)
    pos, inv = batch.loss_positions()
    logits = model(**inputs).logits.flatten(0, 1)[pos]
    log_probs = logits.log_softmax(-1)[inv, batch.targets][batch.loss_mask != 0]
    assert -log_probs.sum().item() == pytest.approx(sum(losses).item(), rel=1e-9)


def test_token_types_in_the_batch_of_a_collator():
    types = fc.Field("types", align="sequence", dtype="int64")
    for layout in (fc.Left(), fc.Jagged()):
        how = {"layout": layout, "kernel": "dense" if layout == fc.Jagged() else None}
        collate = fc.Collator(pad_token_id=0, fields={"mm_token_type_ids": types}, **how)
        batch = dict(collate([{"input_ids": [5, 6, 7], "types": [0, 1, 1]}]))
        assert batch["mm_token_type_ids"].tolist() == [[0, 1, 1]]


@pytest.mark.parametrize("key", ["token_type_ids", "mm_token_type_ids"])
@pytest.mark.parametrize("layout", [fc.Packed(8), fc.Jagged(), fc.Tree(12)], ids=str)
def test_types_of_images_in_rows_that_share_output_rows(layout, key):
    """Transformers then makes a mask without their boundaries."""
    _, batch = with_types(layout, key, images=True)
    with pytest.raises(ValueError, match=rf"has {key}, with which models let tokens .*left"):
        batch.model_inputs("dense")
    _, batch = with_types(fc.Left(), key, images=True)
    assert {key, "pixel_values"} <= {*batch.model_inputs()}
    _, batch = with_types(fc.Tree(12), key)
    with pytest.raises(ValueError, match=f"has {key}, with which"):
        batch.model_inputs("dense")


def test_images_that_count_in_three_dimensions_have_no_positions_of_ours():
    grids = [np.full((1, 3), 2)] * len(PROMPTS)
    fields = {
        "pixel_values": fc.PerRow([np.ones((4, 2), np.float32)] * len(PROMPTS), concat=True),
        "image_grid_thw": fc.PerRow(grids, concat=True),
    }
    for layout in (fc.Left(), fc.Packed(8)):
        batch = built(layout, labels="aligned", fields=fields)
        inputs = batch.model_inputs(kernel_of(layout))
        assert "position_ids" not in batch
        assert "position_ids" not in inputs
        assert inputs["pixel_values"].shape == (20, 2)
        assert inputs["image_grid_thw"].shape == (5, 3)
        assert "pixel_values_offsets" not in inputs
        assert inputs["attention_mask"].dim() == (2 if layout == fc.Left() else 4)
    for some in (fields, {"image_grid_thw": fc.PerRow([grids[0][:0]] * len(PROMPTS), concat=True)}):
        with pytest.raises(ValueError, match=r"has image_grid_thw, .* rows of a tree; pass anoth"):
            built(fc.Tree(12), fields=some).model_inputs("dense")
    fields_of_samples = {key: fc.PerRow(key, concat=True) for key in fields}
    sample = {"prompt": [5], "response": [6], **{key: one.values[0] for key, one in fields.items()}}
    made = fc.Collator(pad_token_id=0, layout="tree", kernel="dense", fields=fields_of_samples)(
        [sample]
    )
    assert "pixel_values" in repr(made)
    batch = built(fc.Left(), labels="aligned", position_ids=True, fields=fields)
    with pytest.warns(UserWarning, match="image_grid_thw, but position_ids count .* leave the opt"):
        assert "position_ids" in batch.model_inputs()


@pytest.mark.parametrize("key", ["image_grid_thw", "video_grid_thw", "target_sizes"])
def test_grids_need_types_or_positions(key):
    """Qwen2.5-VL counts images as text without them."""
    grids = fc.PerRow([np.full((1, 3), 2)] * len(PROMPTS), concat=True)
    message = f"{key} without mm_token_type_ids, .* pass the field"
    with pytest.warns(UserWarning, match=message):
        built(fc.Left(), fields={key: grids}).model_inputs()
    collate = fc.Collator(pad_token_id=0, fields={key: fc.PerRow("grids", concat=True)})
    with pytest.warns(UserWarning, match=message):
        collate([{"prompt": [5], "response": [6], "grids": np.ones((1, 3))}])
    fields = {
        key: fc.PerRow("grids", concat=True),
        "mm_token_type_ids": fc.Field("types", align="sequence", dtype="int64"),
    }
    sample = {"prompt": [5], "response": [6], "grids": np.ones((1, 3)), "types": [1, 0]}
    outputs = ["input_ids", key]
    with pytest.warns(UserWarning, match=message + ".* and name it in outputs"):
        fc.Collator(pad_token_id=0, fields=fields, outputs=outputs)([sample])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs.append("mm_token_type_ids")
        fc.Collator(pad_token_id=0, fields=fields, outputs=outputs)([sample])
        fc.Collator(pad_token_id=0, fields=fields, outputs=["input_ids"])([sample])
        collate([{"prompt": [5], "response": [6], "grids": np.ones((0, 3))}])
        for other in ("mm_token_type_ids", "position_ids"):
            numbers = [[0] * (len(p) + len(r)) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
            field = fc.Field(numbers, align="sequence", dtype="int64")
            built(fc.Left(), fields={key: grids, other: field}).model_inputs()


def test_a_batch_without_images_is_one_of_text():
    """Models fail on empty arrays of images."""
    images = [np.ones((0, 2))] * len(PROMPTS)
    batch = built(fc.Left(), fields={"pixel_values": fc.PerRow(images, concat=True)})
    assert "pixel_values" not in batch.model_inputs()
    fields = {"pixel_values": fc.PerRow("images", concat=True)}
    batch = fc.Collator(pad_token_id=0, fields=fields)(
        [{"prompt": [5], "response": [6], "images": images[0]}]
    )
    assert "pixel_values" not in dict(batch)
    assert batch["pixel_values"].shape == batch.pixel_values.shape == (0, 2)


@WITH_LABELS
def test_positions_that_begin_again_are_those_of_packed_samples(layout):
    """Its sequences would attend to each other: models take a row for one sequence."""

    def of_positions(*cycle):
        rows = [list(cycle)[: len(p) + len(r)] for p, r in zip(PROMPTS, RESPONSES, strict=True)]
        fields = {"position_ids": fc.Field(rows, align="sequence", dtype="int64")}
        return built(layout, fields=fields).model_inputs(kernel_of(layout))

    of_positions(5, 5, 6, 8, 9)  # of images, for instance
    message = r"position_ids\[0\] goes back from 3 to 0 at token 4, .* 'seq_lengths'"
    with pytest.raises(ValueError, match=message):
        of_positions(0, 1, 2, 3, 0)
    fields = {"position_ids": fc.Field("position_ids", align="sequence", dtype="int64")}
    collate = fc.Collator(pad_token_id=0, layout=layout, kernel=kernel_of(layout), fields=fields)
    with pytest.raises(ValueError, match=r"position_ids\[0\] goes back from 1 to 0 at token 2"):
        collate([{"input_ids": [5, 6, 7], "position_ids": [0, 1, 0]}])


@EACH_LAYOUT
def test_positions_of_three_dimensions_come_first(layout):
    """As models take them that count images by time, height and width."""
    rows = [len(p) + len(r) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    own = [np.arange(3 * count).reshape(count, 3) + 100 * row for row, count in enumerate(rows)]
    fields = {"position_ids": fc.Field(own, align="sequence", dtype="int64")}
    batch = built(layout, fields=fields)
    if layout.name == "tree":
        with pytest.raises(ValueError, match=r"has position_ids, .* rows of a tree; pass another"):
            batch.model_inputs("dense")
        return
    found = batch.model_inputs(kernel_of(layout))
    assert found["position_ids"].shape == (3, *found["input_ids"].shape)
    assert torch.equal(
        found["position_ids"].movedim(0, -1).reshape(batch.position_ids.shape), batch.position_ids
    )
    arrays = built(layout, fields=fields, array_type="numpy").model_inputs(kernel_of(layout))
    assert np.array_equal(arrays["position_ids"], found["position_ids"])


@pytest.mark.parametrize("layout", [fc.Left(), fc.Jagged(), fc.Packed(24)], ids=str)
def test_rows_with_images_train_as_alone(layout):
    """Qwen2.5-VL, by types of tokens in rows of their own, else by positions."""
    model = small_qwen()
    rows = [([5, *[60] * count, 6], [7, 8], count) for count in (2, 0, 1)]
    alone, fields = [], {"pixel_values": [], "image_grid_thw": [], "positions": [], "types": []}
    draw = torch.Generator().manual_seed(0)
    for prompt, response, count in rows:
        ids = torch.tensor([[*prompt, *response]])
        grids = torch.tensor([[1, 2, 2 * count]])[: int(count > 0)]
        given = {"image_grid_thw": grids}
        types = (ids == 60).long()
        pixels = torch.randn(4 * count, 24, generator=draw, dtype=torch.float64)
        fields["positions"].append(torch.arange(ids.numel())[:, None].expand(-1, 3))
        inputs = {}
        if count:
            inputs = {**given, "pixel_values": pixels, "mm_token_type_ids": types}
            positions, _ = model.model.get_rope_index(ids, types, **given)
            fields["positions"][-1] = positions[:, 0].T
        fields["types"].append(types[0])
        fields["pixel_values"].append(pixels)
        fields["image_grid_thw"].append(given["image_grid_thw"])
        log_probs = model(ids, **inputs).logits[0, :-1].log_softmax(-1)
        alone.append(-log_probs.gather(-1, ids[0, 1:, None])[-len(response) :].sum())
    made = {key: fc.PerRow(fields[key], concat=True) for key in ("pixel_values", "image_grid_thw")}
    key, name = ("position_ids", "positions")
    if layout == fc.Left():
        key, name = ("mm_token_type_ids", "types")
    made[key] = fc.Field(fields[name], align="sequence", dtype="int64")
    prompts, responses, _ = zip(*rows, strict=True)
    batch = fc.build_batch(prompts, responses, pad_token_id=0, layout=layout, fields=made)
    logits = model(**batch.model_inputs(model=model)).logits
    pos, inv = batch.loss_positions()
    log_probs = logits.flatten(0, 1)[pos].log_softmax(-1)[inv, batch.targets]
    assert -log_probs[batch.loss_mask != 0].sum().item() == pytest.approx(sum(alone).item(), 1e-6)


@pytest.mark.parametrize("layout", [fc.Left(), fc.Packed(8), fc.Tree(12)], ids=str)
@pytest.mark.parametrize(
    ("family", "key"), [("Gemma3", "token_type_ids"), ("PaliGemma", "token_type_ids"),
                        ("Gemma4", "mm_token_type_ids"), ("Llava", None),
                        ("Mllama", "cross_attention_mask"),
                        ("Ernie4_5_VLMoe", "moe_mm_token_type_ids")]
)  # fmt: skip
def test_images_that_attend_to_all_of_their_tokens(family, key, layout):
    """Without types of tokens their attention is causal, or that of all tokens, silently."""
    config = getattr(transformers, f"{family}Config")()
    text = config.get_text_config()
    if family == "Gemma4":
        text.use_bidirectional_attention = None
    config._attn_implementation = text._attn_implementation = "sdpa"
    model = types.SimpleNamespace(config=config, dtype=torch.float32)
    fields = {"pixel_values": fc.PerRow([np.ones((1, 2))] * len(PROMPTS), concat=True)}
    batch = built(layout, fields=fields)
    if family in ("Gemma4", "Llava"):
        assert "pixel_values" in batch.model_inputs(model=model)
        text.use_bidirectional_attention = "vision"
    if key is None:
        return
    message = f"has pixel_values, but .* by {key}; pass what .* fields={{'{key}': .*left"
    with pytest.raises(ValueError, match=message):
        batch.model_inputs(model=model)
    for other in {"token_type_ids", "mm_token_type_ids", key}:
        _, batch = with_types(layout, other, images=True)
        if other == key and layout == fc.Left():
            assert key in batch.model_inputs(model=model)
            continue
        with pytest.raises(ValueError, match=message):
            batch.model_inputs(model=model)
    assert "pixel_values" not in built(layout).model_inputs(model=model)


def small_qwen():
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 100.0}
    sizes = {"hidden_size": 32, "intermediate_size": 48}
    text = {**sizes, "vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**sizes, "depth": 1, "out_hidden_size": 32, "num_heads": 2, "patch_size": 2}
    vision |= {"fullatt_block_indexes": [0], "window_size": 8}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**text, "num_key_value_heads": 2, "rope_parameters": rope},
        vision_config=vision,
        image_token_id=60,
        video_token_id=61,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config).double().eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.15)
    return model


IMAGE = 63
OF_IMAGES = [2, 0, 3, 1, 0]


def with_images(layout, how, **options):
    """Build rows of which some hold the numbers of their images, after a token for each."""
    prompts = [[IMAGE, 10 + row] * count for row, count in enumerate(OF_IMAGES)]
    responses = [[row + 20] * (row + 1) for row in range(len(OF_IMAGES))]
    images = [np.full((count, 2), 10 + row) for row, count in enumerate(OF_IMAGES)]
    field = fc.PerRow("images" if how == "collator" else images, concat=True)
    options |= {"pad_token_id": 0, "layout": layout, "fields": {"pixel_values": field}}
    if how == "build_batch":
        return fc.build_batch(prompts, responses, **options)
    rows = zip(prompts, responses, images, strict=True)
    collate = fc.Collator(kernel="dense", **options)
    return collate([dict(zip(("prompt", "response", "images"), row, strict=True)) for row in rows])


def images_in(ids):
    ids = ids.flatten().tolist()
    return [after for token, after in pairwise(ids) if token == IMAGE]


@pytest.mark.parametrize("how", ["build_batch", "collator"])
@pytest.mark.parametrize(
    "layout",
    [fc.Packed(13), fc.Packed(13, multiple_of=4), fc.Packed(13, shift="next_token"), fc.Tree(13)],
    ids=str,
)
def test_images_come_in_the_order_of_their_tokens(layout, how):
    """Models assign them in this order, not by row."""
    batch = with_images(layout, how)
    inputs = dict(batch) if how == "collator" else batch.model_inputs("dense")
    assert inputs["pixel_values"][:, 0].tolist() == images_in(inputs["input_ids"])
    assert sorted(images_in(inputs["input_ids"])) == [10, 10, 12, 12, 12, 13]
    assert batch.pixel_values[:, 0].tolist() == [10, 10, 12, 12, 12, 13]  # by their offsets
    assert batch.pixel_values_offsets.tolist() == [0, 2, 2, 5, 6, 6]


def test_images_among_the_outputs_of_a_collator():
    keys = ["input_ids", "position_ids", "use_cache", "pixel_values"]
    found = with_images(fc.Packed(13), "collator", outputs=keys)
    assert found["pixel_values"][:, 0].tolist() == images_in(found["input_ids"])
    by_row = with_images(fc.Packed(13), "collator", outputs=[*keys, "pixel_values_offsets"])
    assert by_row["pixel_values"][:, 0].tolist() == [10, 10, 12, 12, 12, 13]


def test_images_of_tokens_that_rows_share_come_once():
    prompts, responses = [[IMAGE, 11, 1], [IMAGE, 12, 1], [IMAGE, 11, 1]], [[2, 1], [2, 3], [4, 4]]
    images = fc.PerRow([np.full((1, 2), image) for image in (11, 12, 11)], concat=True)
    for capacity, expected in ((7, [11, 12]), (5, [11, 11, 12])):
        layout = fc.Tree(capacity, same_inputs=[1, 2, 1])
        fields = {"pixel_values": images}
        batch = fc.build_batch(prompts, responses, pad_token_id=0, layout=layout, fields=fields)
        inputs = batch.model_inputs("dense")
        assert inputs["pixel_values"][:, 0].tolist() == images_in(inputs["input_ids"])
        assert sorted(images_in(inputs["input_ids"])) == expected


def test_images_of_split_rows_have_no_order():
    batch = with_images(fc.Packed(5, oversize="split"), "build_batch")
    with pytest.raises(ValueError, match=r"row 3 .* has pixel_values, but it was split .* whole"):
        batch.model_inputs("dense")


def test_positions_among_the_fields_take_the_place_of_ours():
    own = [[7] * (len(p) + len(r)) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    field = fc.Field(own, align="sequence", dtype="int64")
    batch = built(fc.Left(), labels="aligned", fields={"position_ids": field})
    assert set(batch.model_inputs()["position_ids"].unique().tolist()) == {0, 7}


@WITH_LABELS
def test_labels_say_where_they_lie(layout, array_type):
    aligned = built(layout, labels="aligned", array_type=array_type)
    shifted = built(layout, labels="shifted", array_type=array_type)
    assert "labels" in aligned
    assert "shift_labels" not in aligned
    assert "shift_labels" in shifted
    assert "labels" not in shifted
    kernel = kernel_of(layout)
    inputs = shifted.model_inputs(kernel)
    labels, moved = np.asarray(inputs["labels"]), np.asarray(inputs["shift_labels"])
    ids = np.asarray(inputs["input_ids"])
    assert (labels[:, 1:] == moved[:, :-1]).all()
    assert (labels[:, 0] == -100).all()
    assert (moved[:, -1] == -100).all()
    assert ((labels == -100) | (labels == ids)).all()
    assert (labels != -100).sum() == 7
    alone = aligned.model_inputs(kernel)
    assert np.array_equal(np.asarray(alone["labels"]), labels)
    assert alone.keys() == inputs.keys() - {"shift_labels"}


def test_a_dense_mask_is_additive():
    mask = built(LAYOUTS["tree"]).model_inputs("dense")["attention_mask"]
    assert mask.dtype == torch.float32
    assert set(mask.unique().tolist()) == {0.0, torch.finfo(torch.float32).min}


def test_a_batch_from_a_mapping_is_what_a_model_is_called_with():
    batch = by_collator(LAYOUTS["left"], labels="aligned")
    again = type(batch)({key: batch[key] for key in batch})
    assert dict(again).keys() == dict(batch).keys()
    with pytest.raises(fc.planning.MissingPlanError, match="model_inputs"):
        again.model_inputs()
    for name in ("loss_mask", "advantages", "difficulty"):
        with pytest.raises(AttributeError, match=f"name '{name}' in the outputs= of the Collator"):
            getattr(again, name)


def test_masks_that_do_not_fit():
    with pytest.raises(ValueError, match="kernel is 'flash', which takes no trees"):
        built(LAYOUTS["tree"]).model_inputs("flash")
    with pytest.raises(ValueError, match="FlexAttention does not take"):
        built(LAYOUTS["tree"], array_type="numpy").model_inputs("block")
    with pytest.raises(ValueError, match="kernel is 'causal'; pass 'dense', 'block'"):
        built(LAYOUTS["tree"]).model_inputs("causal")


@pytest.mark.parametrize("layout", [fc.Jagged(), fc.Packed(8), fc.Packed.single_row(), fc.Tree(12)])
def test_rows_that_share_output_rows_need_a_model_or_a_kernel(layout):
    """Some models do not look at positions, and layers have windows of their own."""
    for make in (
        lambda: built(layout).model_inputs(),
        lambda: fc.Collator(pad_token_id=0, layout=layout),
        lambda: fc.Collator(pad_token_id=0, layout=layout, outputs=["attention_mask"]),
    ):
        with pytest.raises(
            ValueError, match="pass model=model to model_inputs or to the Collator, or"
        ):
            make()


@pytest.mark.parametrize("layout", [fc.Jagged(), fc.Packed(8), fc.Tree(12)])
def test_a_collators_batch_can_be_looked_at_in_another_layout(layout):
    batch = by_collator(fc.Left()).to_layout(layout)
    assert "input_ids" in repr(batch)
    assert "input_ids" in batch._repr_html_()
    assert "loss_mask" in dir(batch)
    with pytest.raises(ValueError, match="pass model=model to model_inputs or to the Collator, or"):
        dict(batch)


@pytest.mark.parametrize("kernel", [None, "dense", "block", "paths"])
def test_outputs_of_trees_have_a_mask_with_their_tokens(kernel):
    """A model called without one would take the branches of a tree for rows of their own."""

    def collated(*outputs):
        collate = fc.Collator(
            pad_token_id=0, layout=LAYOUTS["tree"], kernel=kernel, outputs=outputs
        )
        return collate([{"prompt": [1], "response": [2]}])

    with pytest.raises(ValueError, match="without a mask; add 'subtree_end', or"):
        collated("input_ids", "position_ids", "targets")
    assert collated("targets", "row_bins")["targets"].tolist() == [2]
    with pytest.raises(ValueError, match="add 'position_ids'"):  # depths in the tree
        collated("input_ids", "subtree_end")
    found = collated("input_ids", "position_ids", "subtree_end")
    assert found["subtree_end"].tolist() == [[2, 2]]
    if kernel == "paths":
        with pytest.raises(ValueError, match="add 'position_ids'"):
            collated("input_ids", "tree_kv_index")
        found = collated("input_ids", "position_ids", "tree_kv_index")
        assert found["tree_kv_index"].tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"outputs has 'nothing'.*'input_ids', 'loss_mask'"):
        collated("subtree_end", "nothing")


def test_a_rank_of_several_has_a_part_of_the_context_only():
    layout = fc.Packed(8, multiple_of=4)
    with pytest.raises(ValueError, match="context-parallel"):
        built(layout, cp=(2, 0)).model_inputs()


KERNELS = [
    *((layout, kernel_of(layout)) for layout in LAYOUTS.values()),
    (LAYOUTS["tree"], "block"),
    (LAYOUTS["tree"], "paths"),
    (LAYOUTS["packed"], "flash"),
]


@pytest.mark.parametrize(("layout", "kernel"), KERNELS)
def test_the_items_of_a_collators_batch_are_what_the_model_is_called_with(layout, kernel):
    labels = {} if layout.name == "tree" else {"labels": "aligned"}
    batch, other = by_collator(layout, kernel=kernel, **labels), built(layout, **labels)
    found, expected = dict(**batch), other.model_inputs(kernel)
    assert list(found) == list(batch) == list(expected)
    assert len(batch) == len(expected)
    for key, value in expected.items():
        assert getattr(batch, key) is found[key]
        if torch.is_tensor(value):
            assert torch.equal(found[key], value)
        elif kernel != "block":
            assert found[key] == value
    assert "loss_mask" not in batch
    assert "loss_mask" not in found
    assert torch.equal(batch.loss_mask, other.loss_mask)


@EACH_LAYOUT
def test_a_collators_batch_keeps_its_plan(layout):
    import pickle

    batch = by_collator(layout)
    for again in (batch, pickle.loads(pickle.dumps(batch)), batch.to("meta").to("meta")):
        assert list(again) == list(batch)
        assert again.plan.num_rows == len(PROMPTS)
    assert [len(row) for row in batch.gather(batch.loss_mask, align="response", missing=0)] == [
        2,
        3,
        4,
        1,
        0,
    ]
    assert "response" in str(batch.show())
    assert len(batch.check()) > 0  # a row without a response
    if layout != LAYOUTS["shifted"]:  # it has no value of a first token without a prompt
        left = batch.to_layout("left")
        assert torch.equal(left.input_ids, built(fc.Left()).input_ids)


def test_other_outputs_are_read_without_making_the_inputs():
    batch = by_collator(LAYOUTS["tree"])
    assert batch.loss_mask is batch["loss_mask"]
    assert not hasattr(batch, "nothing")
    assert batch._inputs is None
    assert batch.input_ids is batch["input_ids"]
    assert "position_ids" in batch
    assert batch._masks is None  # a dense mask grows with the square of the width
    assert batch.attention_mask is batch["attention_mask"]


def test_a_rank_of_a_collators_batch_has_the_outputs():
    batch = by_collator(fc.Packed(8, multiple_of=4), labels="shifted")
    part = batch.cp_split(2, 0)
    assert list(part._data) == list(batch._data)
    assert part.loss_mask.shape == (*batch.loss_mask.shape[:1], batch.loss_mask.shape[1] // 2)
    assert part["attention_mask"] is REFUSED


@pytest.mark.parametrize(("family", "attention"), [("gpt2", "eager"), ("llama", "sdpa")])
@pytest.mark.parametrize("name", ["jagged", "packed", "shifted", "single_row", "tree"])
def test_models_refuse_all_outputs_of_rows_that_share_output_rows(name, family, attention):
    """transformers ignores keys that it does not know, and would mix the rows."""
    model, batch = small_model(family, attention), built(LAYOUTS[name])
    for items in batch, dict(batch), {key: value for key, value in batch.items() if key in batch}:
        with pytest.raises(AttributeError, match=r"call the model with \*\*batch\.model_inputs"):
            model(**items)
    again = pickle.loads(pickle.dumps(dict(batch)))["attention_mask"]
    assert again is batch.get("attention_mask").to("cpu") is REFUSED
    assert "attention_mask" not in built(LAYOUTS[name], array_type="numpy")


def test_attributes_that_tensors_refuse_to_have():
    """Those of complex numbers and of matrices raise errors of torch's own."""
    batch = built(LAYOUTS["left"])
    for name in ("imag", "mT"):
        assert not hasattr(batch, name)


def test_fields_are_no_inputs_under_their_names():
    fields = {"use_cache": fc.PerRow([np.ones((1, 2))] * len(PROMPTS), concat=True)}
    assert built(LAYOUTS["jagged"], fields=fields).model_inputs("dense")["use_cache"] is False
