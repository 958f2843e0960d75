"""The commands and their exit codes."""

from __future__ import annotations

import re
import shutil
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from fastcollate import __version__
from fastcollate.cli.errors import in_flags
from fastcollate.cli.printing import print_text
from fastcollate.common.names import advice_for, same_word


def _option_meant(name: str, options: Sequence[Any]) -> str | None:
    """Return the option of nearly this name, the only one with this unit, or ours for another's."""
    with_unit = [one.opts[0] for one in options if f"--{one.metavar}".lower() == name]
    meant = same_word(name, [one.opts[0] for one in options])
    if meant is not None or len(with_unit) == 1:
        return meant or with_unit[0]
    names = {one.opts[0].lstrip("-").replace("-", "_"): one.opts[0] for one in options}
    advice = advice_for(name.lstrip("-").replace("-", "_"), names)
    if ours := re.match(r"pass (\w+)", advice or ""):
        return names.get(ours[1])
    return next(iter(get_close_matches(name, names.values(), 1, 0.8)), None)


def _misfit(error: Any) -> str:
    """Return what is wrong with the value of an option, of an error by pydantic."""
    found = error.__cause__.errors()[0]
    if found["type"] == "greater_than_equal":
        return f"it is {found['input']}; pass at least {found['ctx']['ge']}"
    what = "an integer" if found["type"].startswith("int") else "a number"
    again = f"; repeat {error.param.opts[0]} for several" if error.param.multiple else ""
    return f"it is {found['input']!r}; pass {what}{again}"


class Commands(TyperGroup):
    """The commands; errors for other commands and options list them."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except Exception as raised:
            error: Any = raised
            if hasattr(error, "possibilities"):  # the error for an unknown option
                options = [one for one in error.ctx.command.params if one.opts[0][0] == "-"]
                own = [one.opts[0] for one in options if one.rich_help_panel is None]
                meant = _option_meant(error.option_name, options)
                error.possibilities = own if meant is None else [meant]
            elif "Input should be" in str(getattr(error, "message", "")):
                error.message = _misfit(error)
            elif "is not one of" in str(getattr(error, "message", "")):
                error.message = error.message.removeprefix("Value error, ")
            elif "extra argument" in str(getattr(error, "message", "")):
                takes_file = any(one.opts[0] == "path" for one in error.ctx.command.params)
                advice = "pass one file, or a folder of files"
                other = (
                    f"{error.ctx.command.name} takes no file; use view, report or plan for files"
                )
                error.message += f"; {advice if takes_file else other}"
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        if args[0] not in self.commands:
            near = get_close_matches(args[0], self.commands, 1)
            names = ", ".join(self.commands)
            meant = f"did you mean {near[0]}?" if near else f"use one of {names}, before the file."
            ctx.fail(f"No such command {args[0]!r}; {meant}")
        name, _, others = super().resolve_command(ctx, args)
        return name, loaded(args[0]), others


SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "rich" if shutil.get_terminal_size().columns >= 80 else None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(
    name="fastcollate",
    cls=Commands,
    help="Inspect rollouts before you train on them.",
    no_args_is_help=True,
    **SETTINGS,
)
COMMANDS = {
    "view": (
        "Show rows: the prompt, the tokens that train and the masked ones.",
        "view rollouts.jsonl --tokenizer tokenizer.json --row 13",
        "view rollouts.parquet --responses output --field logprobs",
    ),
    "report": (
        "Write an HTML report: advice, findings, rewards, log-probabilities, lengths and layouts.",
        "report rollouts.jsonl --tokenizer tokenizer.json -o report.html",
        "report rollouts.parquet --rewards score --fail-on error",
    ),
    "plan": (
        "Plan a training step on the rows of a file: mini-batches, ranks, bins and their load.",
        "plan rollouts.jsonl --dp-size 8 --capacity 16384",
        "plan rollouts.parquet --prompts-per-mini-batch 64 -o plan.json",
    ),
    "verify": (
        "Compare results with plain loops and installed frameworks; exit with 1 if any differ.",
        "verify",
        "verify --framework verl --seconds 60",
    ),
}
"""Commands, each with what it does and examples."""

for name, (what, *_) in COMMANDS.items():
    app.command(name, help=what)(lambda: None)

ALL_NAMES = (
    "All names of columns: https://fastcollate.github.io/fastcollate/command-line.html#columns"
)


def loaded(name: str) -> Any:
    """Return a command, whose module is imported only if it runs."""
    what, *examples = COMMANDS[name]
    shown = ["Examples:", *(f"fastcollate {one}" for one in examples)]
    shown += [] if name == "verify" else [ALL_NAMES]
    alone = typer.Typer(**SETTINGS)
    module = import_module(f"fastcollate.cli.{name}")
    alone.command(name, help=what, epilog="\n\n".join(shown))(getattr(module, name))
    return typer.main.get_command(alone)


@app.callback(invoke_without_command=True)
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Inspect rollouts before you train on them."""
    if version:
        print(__version__)
        raise typer.Exit


FAILURES = OSError, ValueError, TypeError, LookupError, ImportError, MemoryError, RuntimeError
"""Errors that are printed as one line, with all of Arrow, which only commands import."""


def run(arguments: Sequence[str]) -> int:
    """Run a command; return the exit code: 0, 1 for a failure, 2 for wrong usage.

    A failure is one line on standard error, wrapped in a terminal; one that begins with an option
    is wrong usage. With ``--debug`` anywhere among the arguments it is a traceback.
    """
    wants_traceback = "--debug" in arguments
    arguments = [one for one in arguments if one != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # commands say what they would
            code = app(arguments, standalone_mode=False)
    except SystemExit:  # typer's, if the reader has ended, as head does
        return 0
    except Exception as raised:
        error: Any = raised
        is_usage = hasattr(error, "format_message")
        is_failure = isinstance(error, FAILURES) or type(error).__module__ == "pyarrow.lib"
        if not is_usage and (wants_traceback or not is_failure):
            raise
        said = error.format_message().rstrip(".") if is_usage else str(error)
        if is_usage and not said:  # help was printed, since there are no arguments
            return 2
        text = in_flags(" ".join(said.split()) or type(error).__name__)
        print_text(f"fastcollate: {text}", sys.stderr)
        return 2 if is_usage or text.startswith("--") else 1
    return code or 0
