"""The tasks: docstrings that the agent replays, and the chat around them."""

from __future__ import annotations

import doctest
import importlib
import inspect
import multiprocessing
from collections.abc import Callable, Iterator
from typing import NamedTuple, ParamSpec, TypeVar

from .console import Console, matches_documentation

MODULES = [
    "_pydecimal",
    "_threading_local",
    "collections",
    "difflib",
    "enum",
    "fractions",
    "heapq",
    "http.cookiejar",
    "http.cookies",
    "importlib.metadata",
    "importlib.metadata._collections",
    "importlib.metadata._functools",
    "importlib.metadata._itertools",
    "importlib.metadata._text",
    "json",
    "json.encoder",
    "pickle",
    "pickletools",
    "statistics",
    "typing",
    "unittest.mock",
    "zipfile",
]
"""Modules whose examples need nothing but a console, and give the same output every time."""

MAX_TURNS = 12
LONGEST_DESCRIPTION = 600  # characters

SPECIAL_TOKENS = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|console|>", "<|end|>"]
SYSTEM = "You are at a Python console. Write one statement at a time; you will see what it prints."
END_OF_TURN = "<|end|>"
ASSISTANT = "<|assistant|>\n"

P = ParamSpec("P")
T = TypeVar("T")


class Task(NamedTuple):
    """One docstring's examples, and their output in the console."""

    test: doctest.DocTest
    examples: list[doctest.Example]
    outputs: list[str]

    @property
    def prompt(self) -> str:
        """The chat until the agent's first turn."""
        prose = doctest.DocTestParser().parse(self.test.docstring or "")[0]
        about = inspect.cleandoc(str(prose))[:LONGEST_DESCRIPTION].strip()
        user = f"Show with examples what {self.test.name} does.\n\n{about}".strip()
        return message("system", SYSTEM) + message("user", user) + ASSISTANT


def find_tasks() -> Iterator[Task]:
    """Find the docstrings whose first `MAX_TURNS` examples print the documented output."""
    for module in MODULES:
        for test in doctest.DocTestFinder().find(importlib.import_module(module)):
            examples = test.examples[:MAX_TURNS]
            outputs = in_fresh_process(replay, test, examples)
            if len(examples) > 1 and outputs:
                yield Task(test, examples, outputs)


def replay(test: doctest.DocTest, examples: list[doctest.Example]) -> list[str]:
    """Run the examples; return their outputs, or none if one is not as documented."""
    console = Console(test.globs)
    observations = [console.run(example.source) for example in examples]
    if not all(map(matches_documentation, examples, observations)):
        return []
    return [observation.text for observation in observations]


def documented_chat(task: Task) -> str:
    """Write the chat of an agent without mistakes."""
    return task.prompt + "".join(
        example.source.rstrip("\n") + END_OF_TURN + console_message(output)
        for example, output in zip(task.examples, task.outputs, strict=True)
    )


def message(role: str, content: str) -> str:
    """Write one message of the chat."""
    return f"<|{role}|>\n{content}{END_OF_TURN}\n"


def console_message(output: str) -> str:
    """Write the text between two responses."""
    return "\n" + message("console", output.rstrip("\n")) + ASSISTANT


def in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a forked process, to discard its side effects."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=lambda: sender.send(function(*args, **kwargs)))
    process.start()
    sender.close()  # else `recv` would wait for a child that died
    result: T = receiver.recv()
    process.join()
    return result
