"""The tutorials: their output, their losses against rows one by one, and their pages."""

import copy
import functools
import re
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
from example_runs import EXAMPLES, numbers, output_of

import fastcollate as fc

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rows_alone import assert_same, log_probs_alone, outcome  # noqa: E402

sys.path += [str(EXAMPLES / "tutorials"), str(EXAMPLES)]

import grpo_loop  # noqa: E402
import served  # noqa: E402
import sft_packing  # noqa: E402
import tool_use  # noqa: E402
import trees  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

DOCS = Path(__file__).parents[2] / "docs" / "tutorials"
SCRIPTS = sorted(path for path in EXAMPLES.glob("tutorials/*.py") if path.stem != "preflight")


# A server


def test_from_a_server():
    losses = numbers("loss +", output_of("tutorials/from_a_server.py", "--steps", "3"))
    assert len(losses) == 3
    assert np.isfinite(losses).all()


def test_streams_of_the_server_are_its_responses():
    turns = served.first_turns()
    prompts = [*{tuple(prompt): None for prompt, *_ in turns}][:3]
    with served.engine() as address:
        bodies, streams = (
            [
                served.generate(address, list(prompt), return_token_ids=True, stream=stream)
                for prompt in prompts
            ]
            for stream in (False, True)
        )
    found, streamed = fc.rollouts.parse(bodies), fc.rollouts.parse(streams)
    sampled = [turn for prompt in prompts for turn in turns if tuple(turn[0]) == prompt]
    assert found.responses.to_list() == [response for _, response, *_ in sampled]
    np.testing.assert_array_equal(
        found.logprobs.values, np.concatenate([one for *_, one, _ in sampled]).astype(np.float32)
    )
    for name in ("prompts", "responses", "logprobs"):
        assert getattr(found, name) == getattr(streamed, name)
    batch = fc.build_batch(**found.batch, pad_token_id=0)
    assert batch.loss_mask.sum() == len(found.responses.values)


# GRPO


def test_grpo_loop():
    printed = output_of("tutorials/grpo_loop.py", "--steps", "30")
    assert float(printed.partition("differ by ")[2].split()[0]) < 1e-5
    rewards = numbers("reward", printed)
    assert len(rewards) == 4
    assert rewards[-1] > rewards[0] + 0.2


@pytest.fixture
def rollouts():
    """Return the model and a step's rollouts, of which some end early."""
    torch.manual_seed(0)
    model = grpo_loop.make_model().double()
    rng = np.random.default_rng(0)
    prompts = [
        prompt for prompt in grpo_loop.draw_prompts(rng, 4) for _ in range(grpo_loop.SAMPLES)
    ]
    responses, log_probs = grpo_loop.sample(model, prompts)
    rewards = rng.random(len(prompts)).tolist()
    return model, prompts, responses, log_probs, rewards


def test_the_grpo_loss_is_that_of_rows_one_by_one(rollouts):
    model, prompts, responses, old, rewards = rollouts
    batch = grpo_loop.collate(prompts, responses, old, rewards)
    plan = fc.plan_step(batch, prompts_per_mini_batch=2)
    tokens = batch.loss_normalizers(plan).tokens
    changed = copy.deepcopy(model)  # so that ratios differ from 1, and some are clipped
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    advantages = grpo_loop.group_advantages(rewards)
    clips = 0
    for index in range(plan.num_mini_batches):
        shard = plan.shard(index, 0)
        mini_batch = batch.select(shard)
        log_probs = grpo_loop.response_log_probs(changed, mini_batch)
        loss = grpo_loop.policy_loss(log_probs, mini_batch, tokens[index])
        expected, count = 0, 0
        for row in shard.rows.tolist():
            new = log_probs_alone(changed, prompts[row], responses[row].tolist())
            for one, other in zip(new, old[row].tolist(), strict=True):
                ratio = (one - np.float32(other).item()).exp()
                clipped = ratio.clamp(0.8, 1.2)
                advantage = np.float32(advantages[row]).item()
                expected -= torch.minimum(ratio * advantage, clipped * advantage)
                clips += bool(ratio != clipped)
                count += 1
        assert count == tokens[index]
        assert_same(outcome(changed, loss), outcome(changed, expected / count))
    assert clips > 10


def packed_loop():
    """Return the script after the changes of the page."""
    code = (EXAMPLES / "tutorials" / "grpo_loop.py").read_text("utf-8")
    changes = blocks((DOCS / "grpo_loop.md").read_text("utf-8"), "diff")
    assert len(changes) == 1
    for change in changes:
        lines = change.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] == "-")
        assert code.count(before) == 1
        code = code.replace(before, "".join(line[1:] for line in lines if line[0] == "+"))
    loop = types.ModuleType("packed_loop")
    exec(code, loop.__dict__)
    return loop


def test_packed_mini_batches_train_as_padded_ones(rollouts, monkeypatch):
    model, *columns = rollouts
    monkeypatch.setattr(grpo_loop, "PROMPTS", 4)
    packed = packed_loop()
    packed.PROMPTS = 4
    trained = []
    for loop in grpo_loop, packed:
        batch = loop.collate(*columns)
        assert loop.largest_difference(model, batch) < 1e-5
        shapes, policy_loss = [], loop.policy_loss

        def recorded(log_probs, batch, tokens, shapes=shapes, policy_loss=policy_loss):
            shapes.append(tuple(batch.input_ids.shape))
            return policy_loss(log_probs, batch, tokens)

        monkeypatch.setattr(loop, "policy_loss", recorded)
        changed = copy.deepcopy(model)
        loop.train_step(changed, torch.optim.SGD(changed.parameters(), lr=0.1), batch)
        trained.append((shapes, torch.cat([each.flatten() for each in changed.parameters()])))
    (padded_shapes, padded), (packed_shapes, parameters) = trained
    before = torch.cat([each.flatten() for each in model.parameters()])
    assert [rows for rows, _ in padded_shapes] == [16, 16]
    assert max(rows for rows, _ in packed_shapes) < 8
    assert (padded - before).abs().max() > 1e-3
    torch.testing.assert_close(parameters, padded, rtol=0, atol=1e-7)


# Tool use


def test_tool_use():
    printed = output_of("tutorials/tool_use.py", "--steps", "20")
    rewards = numbers("reward", printed)
    assert rewards[-1] > rewards[0] + 0.1
    before, after = re.findall(r"tokens ([\d,]+) -> ([\d,]+)", printed)[-1]
    assert int(before.replace(",", "")) > 1.3 * int(after.replace(",", ""))
    assert "follow" in printed.splitlines()[-2] + printed.splitlines()[-1]


def test_the_loss_of_conversations_is_that_of_turns_one_by_one():
    torch.manual_seed(0)
    model = grpo_loop.make_model(len(tool_use.WORDS)).double()
    conversations = tool_use.draw_conversations(np.random.default_rng(0))[:8]
    for number, one in enumerate(conversations):
        # Some calls are right, as after training; some lack an end.
        while not one.is_over:
            page = one.pages[len(one.prompts)] if (number + len(one.prompts)) % 4 else 6
            one.add_turn([page, grpo_loop.END if number % 3 else page], [-0.5, -2.0])
    advantages = grpo_loop.group_advantages([one.reward for one in conversations])
    expected, count = 0, 0
    for one, advantage in zip(conversations, advantages, strict=True):
        for prompt, response in zip(one.prompts, one.responses, strict=True):
            new = log_probs_alone(model, prompt, response)
            ratio = (new - torch.tensor([-0.5, -2.0])).exp()
            gain = np.float32(advantage).item()
            expected -= torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum()
            count += len(response)
    expected = outcome(model, expected / count)
    rows = []
    for merge in "exact", None:
        batch = tool_use.collate(conversations, merge)
        tokens = batch.loss_normalizers(fc.plan_step(batch)).tokens
        assert tokens == [count]
        log_probs = grpo_loop.response_log_probs(model, batch)
        if merge is None:
            batch = batch.select(fc.plan_step(batch).shard(0, 0))  # which has a loss mask
        loss = grpo_loop.policy_loss(log_probs, batch, tokens[0])
        assert_same(outcome(model, loss), expected)
        rows.append(batch.plan.num_rows)
    assert rows[0] == len(conversations) < rows[1]


# Packing


def test_sft_packing():
    printed = output_of("tutorials/sft_packing.py", "--steps", "5")
    padded, packed, first, last = numbers("loss", printed)
    assert padded == pytest.approx(packed, abs=2e-4)
    assert last < first - 0.5
    positions = [int(found.replace(",", "")) for found in re.findall(r"= ([\d,]+) pos", printed)]
    assert positions[0] > 1.5 * positions[1]


def test_masks_are_those_of_merged_turns():
    rollouts = sft_packing.load_rollouts()
    chosen = [turn for turn, how in enumerate(rollouts.encodings) if how == "tokens"]
    batch = fc.build_batch(
        [rollouts.prompts[turn] for turn in chosen],
        [rollouts.responses[turn] for turn in chosen],
        pad_token_id=0,
        trajectory_ids=[rollouts.trajectory_ids[turn] for turn in chosen],
        merge="exact",
        layout="right",
        array_type="numpy",
    )
    samples = sft_packing.load_samples()
    assert len(samples) == batch.plan.num_rows
    for row, sample in enumerate(samples):
        prompt_len, response_len = batch.prompt_lens[row], batch.response_lens[row]
        ids = batch.input_ids[row, : prompt_len + response_len]
        assert sample["input_ids"] == ids.tolist()
        mask = batch.loss_mask[row, :response_len].astype(int).tolist()
        assert sample["assistant_masks"] == [0] * prompt_len + mask


def test_the_packed_loss_is_that_of_conversations_one_by_one():
    torch.manual_seed(0)
    model = sft_packing.make_model()
    samples = sorted(sft_packing.load_samples(), key=lambda sample: len(sample["input_ids"]))[:6]
    expected, count = 0, 0
    for sample in samples:
        new = log_probs_alone(model, [], sample["input_ids"])
        trained = torch.tensor(sample["assistant_masks"])[1:] == 1
        expected -= new[trained].sum()
        count += trained.sum()
    expected = outcome(model, expected / count)
    for collate in sft_packing.make_collators(model):
        loss = model(**collate(samples)).loss
        assert_same(outcome(model, loss), expected)


# Trees


def test_trees():
    printed = output_of("tutorials/trees.py", "--steps", "5")
    *losses, first, last = numbers("loss", printed)
    norms = numbers("norm of gradients", printed)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)
    assert last < first - 0.5
    positions = [int(found.replace(",", "")) for found in re.findall(r"([\d,]+) pos", printed)]
    assert positions[0] > positions[1] > 5 * positions[2]


def test_the_loss_of_a_tree_is_that_of_rows_one_by_one(monkeypatch):
    # torch's scaled_dot_product_attention misreads a float32 mask beside float64.
    in_float64 = functools.partialmethod(fc.Batch.model_inputs, dtype="float64")
    monkeypatch.setattr(fc.Batch, "model_inputs", in_float64)
    torch.manual_seed(0)
    model = trees.make_model().double()
    columns = {name: rows[:6] for name, rows in trees.load_columns().items()}
    expected, count = 0, 0
    for prompt, response, mask in zip(*columns.values(), strict=True):
        if any(mask):
            expected -= log_probs_alone(model, prompt, response).sum()
            count += len(response)
    assert 0 < count < sum(map(len, columns["responses"]))
    expected = outcome(model, expected / count)
    for layout in trees.LAYOUTS.values():
        batch = fc.build_batch(**columns, pad_token_id=0, layout=layout)
        assert_same(outcome(model, trees.loss_of(model, batch)), expected)


# Pages


def blocks(page, language):
    """Return the fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_snippets_stand_in_the_script(script):
    """Each is a run of the script's lines, without their indentation, after the one before."""
    lines = script.read_text("utf-8").splitlines()
    page = (DOCS / f"{script.stem}.md").read_text("utf-8")
    snippets, place = blocks(page, "python"), 0
    assert len(snippets) >= 3
    for snippet in snippets:
        wanted = snippet.splitlines()
        starts = range(place, len(lines) - len(wanted) + 1)
        place = next(
            (
                start + len(wanted)
                for start in starts
                if textwrap.dedent("\n".join(lines[start : start + len(wanted)])).splitlines()
                == wanted
            ),
            None,
        )
        assert place is not None, f"not in {script.name}, or not in this order:\n{snippet}"


def test_every_page_has_a_script():
    pages = {path.stem for path in DOCS.glob("*.md")}
    assert pages == {"index"} | {path.stem for path in SCRIPTS}
