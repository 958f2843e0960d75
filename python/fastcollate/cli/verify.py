"""``fastcollate verify``: compare results with plain loops and frameworks."""

from __future__ import annotations

from typing import Annotated

import typer

from fastcollate.cli.options import AsJson, Debug
from fastcollate.cli.printing import print_json, print_text


def verify(
    *,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Time for all comparisons; more if needed, as each has at least 40 cases.",
        ),
    ] = 20,
    framework: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compare with this framework only; repeat for several. By default with plain "
            "loops and all installed frameworks.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="SEED", help="Seed of the first cases.")] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare results with plain loops and installed frameworks; exit with 1 if any differ."""
    from fastcollate.testing import verify as _  # noqa: F401, an error if Hypothesis is missing
    from fastcollate.testing.verifying import verification
    from fastcollate.testing.verifying.running import CASES_PER_SEED

    machine, run = verification.comparisons(framework, seconds, seed)
    if as_json:
        lines = list(run)
        functions = [
            {"subject": line.subject, "function": line.function, **line.outcome._asdict()}
            for line in lines
        ]
        differs = any(line.outcome.difference for line in lines)
        print_json({"ok": not differs, "machine": machine, "functions": functions}, indent=2)
    else:
        print_text(
            f"comparing for {seconds:g} seconds, or longer until each function has "
            f"{2 * CASES_PER_SEED} cases\n"
        )
        differs = verification.print_lines(machine, run, print_text)
    if differs:
        raise typer.Exit(1)
