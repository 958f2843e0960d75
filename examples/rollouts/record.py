"""Record the rollouts again: ``cd examples && PYTHONHASHSEED=0 python -m rollouts.record``.

An agent replays the examples in the standard library's docstrings at a live Python console, one
statement a turn. It forgets statements and makes slips, so some outputs are not the documented
ones: that is the reward.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import sys
import sysconfig
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console as Terminal
from rich.progress import track
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from . import PAD_TOKEN_ID, ROLLOUTS, TOKENIZER
from .agent import Agent
from .console import Console, matches_documentation
from .language_model import NGramModel
from .tasks import (
    END_OF_TURN,
    MAX_TURNS,
    SPECIAL_TOKENS,
    Task,
    console_message,
    documented_chat,
    find_tasks,
    in_fresh_process,
)

SEED = 20
VOCAB_SIZE = 4096
ENCODINGS = ["tokens", "text"]

FORGET = 0.15  # probability that a statement is skipped
SLIP = 0.2  # probability that a statement has a wrong token
RETRY = 0.6  # probability that a statement is repeated after a failed slip

NOT_SOURCE = {"ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo"}

Turn = dict[str, Any]


def main() -> None:
    """Train the tokenizer, fit the model, let the agent act, and write both files."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("Outputs may depend on string hashes: run with PYTHONHASHSEED=0")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads would not survive the forks below
    terminal = Terminal()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        tasks = list(find_tasks())
        with terminal.status("Training the tokenizer and the language model"):
            texts = [*standard_library(), *map(documented_chat, tasks)]
            tokenizer = train_tokenizer(texts)
            agent = Agent(fit_model(texts, tokenizer), tokenizer, END_OF_TURN)
        turns = list(record(tasks, agent, tokenizer))

    tokenizer.save(str(TOKENIZER), pretty=False)
    lines = "".join(json.dumps(turn, separators=(",", ":")) + "\n" for turn in turns)
    ROLLOUTS.write_bytes(gzip.compress(lines.encode(), mtime=0))
    terminal.print(summary(turns))


def standard_library() -> Iterator[str]:
    """Read the sources of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if NOT_SOURCE.isdisjoint(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="replace")


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.token_to_id(SPECIAL_TOKENS[0]) == PAD_TOKEN_ID
    return tokenizer


def fit_model(texts: list[str], tokenizer: Tokenizer) -> NGramModel:
    """Fit the language model on the text that the tokenizer was trained on."""
    tokens = np.concatenate(
        [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch_fast(texts)]
    )
    return NGramModel(tokens, VOCAB_SIZE)


def record(tasks: list[Task], agent: Agent, tokenizer: Tokenizer) -> Iterator[Turn]:
    """Run the agent two to four times on every task, with different trajectories."""
    seeds = np.random.SeedSequence(SEED)
    for number, task in enumerate(track(tasks, "Recording rollouts")):
        group: list[list[str]] = []
        while len(group) < 2 + number % 3:
            trajectory_id = f"{task.test.name}/{len(group)}"
            encoding = ENCODINGS[(number + len(group)) % 2]
            rng = np.random.default_rng(seeds.spawn(1)[0])
            turns = in_fresh_process(play, task, trajectory_id, encoding, agent, tokenizer, rng)
            said = tokenizer.decode_batch([turn["response_ids"] for turn in turns])
            if said not in group:
                group.append(said)
                yield from turns


def play(
    task: Task,
    trajectory_id: str,
    encoding: str,
    agent: Agent,
    tokenizer: Tokenizer,
    rng: np.random.Generator,
) -> list[Turn]:
    """Record one trajectory at a console of its own."""
    console = Console(task.test.globs)
    in_mind = deque(example for example in task.examples if rng.random() >= FORGET)
    in_mind = in_mind or deque(task.examples[-1:])
    chat = task.prompt
    prompt_ids = tokenizer.encode(chat).ids
    turns: list[Turn] = []
    while in_mind and len(turns) < MAX_TURNS:
        example = in_mind.popleft()
        slips = rng.random() < SLIP
        response = agent.respond(prompt_ids, example.source.rstrip("\n"), slips, rng)
        said = tokenizer.decode(response.ids, skip_special_tokens=False)
        observation = console.run(said.removesuffix(END_OF_TURN))
        reward = float(matches_documentation(example, observation))
        if slips and not reward and rng.random() < RETRY:
            in_mind.appendleft(example)
        turns.append(
            {
                "uid": task.test.name,
                "trajectory_id": trajectory_id,
                "turn": len(turns),
                "is_last_step": False,
                "encoding": encoding,
                "prompt_ids": prompt_ids,
                "response_ids": response.ids,
                "loss_mask": [1] * len(response.ids),
                "logprobs": [round(logprob, 5) for logprob in response.logprobs],
                "rewards": [0.0] * (len(response.ids) - 1) + [reward],
            }
        )
        reply = console_message(observation.text)
        chat += said + reply
        if encoding == "text":
            prompt_ids = tokenizer.encode(chat).ids
        else:
            prompt_ids = prompt_ids + response.ids + tokenizer.encode(reply).ids
    turns[-1]["is_last_step"] = True
    return turns


def summary(turns: list[Turn]) -> Table:
    """Return a table of the numbers of recorded turns, by encoding."""
    columns = [[turn for turn in turns if turn["encoding"] == kind] for kind in ENCODINGS]
    table = Table("encoding", title="Recorded rollouts", title_justify="left")
    for kind in ENCODINGS:
        table.add_column(kind, justify="right")

    def add(name: str, count: Callable[[list[Turn]], float], form: str = ",.0f") -> None:
        table.add_row(name, *(format(count(column), form) for column in columns))

    add("prompt groups", lambda turns: len({turn["uid"] for turn in turns}))
    add("trajectories", lambda turns: sum(turn["is_last_step"] for turn in turns))
    add("turns", len)
    add("most turns", lambda turns: max(turn["turn"] for turn in turns) + 1)
    add("prompt tokens", lambda turns: sum(len(turn["prompt_ids"]) for turn in turns))
    add("response tokens", lambda turns: sum(len(turn["response_ids"]) for turn in turns))
    add("longest row", lambda turns: max(map(len, map(tokens, turns))))
    add("continuations", lambda turns: sum(turn["turn"] > 0 for turn in turns))
    add("broken prefixes", broken_prefixes)
    add("mean reward", lambda turns: float(np.mean([turn["rewards"][-1] for turn in turns])), ".3f")
    return table


def tokens(turn: Turn) -> list[int]:
    """Return a turn's prompt and response."""
    ids: list[int] = turn["prompt_ids"] + turn["response_ids"]
    return ids


def broken_prefixes(turns: list[Turn]) -> int:
    """Count the turns whose prompt does not begin with the previous turn."""
    return sum(
        after["turn"] > 0 and after["prompt_ids"][: len(tokens(turn))] != tokens(turn)
        for turn, after in itertools.pairwise(turns)
    )


if __name__ == "__main__":
    main()
