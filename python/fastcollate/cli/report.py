"""``fastcollate report``: an HTML report on the rollouts of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastcollate.cli.files import Source
from fastcollate.cli.options import (
    RANKS,
    AsJson,
    Capacity,
    CostsPath,
    Debug,
    EndIds,
    Input,
    MergePolicy,
    Ranks,
    SchemaName,
    TokenizerPath,
    costs_of,
    reads_columns,
    rows_option,
)
from fastcollate.cli.printing import print_json, print_text
from fastcollate.cli.reporting.collecting import Collector, Summary
from fastcollate.cli.reporting.page import page_of
from fastcollate.cli.reporting.wording import counted_findings, line_of, noun_of, read_as
from fastcollate.cli.tokenizers import FileTokenizer
from fastcollate.cli.writing import check_writable, write_whole
from fastcollate.common.arguments import tally
from fastcollate.inspect.findings import Severity


@reads_columns
def report(
    *,
    path: Input,
    schema: SchemaName = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML file to write.")
    ] = Path("report.html"),
    tokenizer: TokenizerPath = None,
    eos: EndIds = None,
    merge: MergePolicy = "exact",
    rows_per_mini_batch: Annotated[
        int, rows_option("Rows per mini-batch, and per padded batch.")
    ] = 256,
    dp: Ranks = RANKS,
    capacity: Capacity = None,
    costs: CostsPath = None,
    as_json: AsJson = False,
    fail_on: Annotated[
        Severity | None,
        typer.Option(
            "--fail-on",
            metavar="SEVERITY",
            help="Exit with 3 if there is an error, or with warning, if there is any finding.",
        ),
    ] = None,
    debug: Debug = False,
    names: dict[str, str],
) -> None:
    """Write an HTML report: advice, findings, rewards, log-probabilities, lengths and layouts."""
    source = Source.of(path, names, schema)
    text = None if tokenizer is None else FileTokenizer(tokenizer)
    tokenizer_file = None if text is None else text.path
    check_writable(output, [*source.paths, costs, tokenizer_file])
    if output.suffix not in (".html", ".htm"):
        raise ValueError(f"--output is {output}, but the report is HTML; pass a name with .html")
    collector = Collector(
        policy=None if merge == "none" else merge,
        batch_rows=rows_per_mini_batch,
        dp_size=dp,
        capacity=capacity,
        costs=costs_of(costs),
        tokenizer=text,
        vocab_size=None if text is None else text.vocab_size,
        eos_token_ids=eos or None,
    )
    for rows in source.chunks():
        if text is not None:
            text.check(rows, path)
        collector.add(rows)
    summary = collector.close(path.name, source.title, source.unread)
    write_whole(output, page_of(summary))
    if as_json:
        print_json({"report": str(output), **summary.figures}, indent=2)
    else:
        _print_summary(summary, output)
    found = {one["severity"] for one in summary.figures["findings"]}
    if fail_on in found or (fail_on == "warning" and found):
        raise typer.Exit(3)


def _print_summary(summary: Summary, output: Path) -> None:
    """Print what was read, the first finding of each kind, and what to do."""
    figures = summary.figures
    print_text(read_as(figures))
    rows = tally(figures["turns"], noun_of(figures))
    print_text(f"{rows}, {counted_findings(figures)}; wrote {output}")
    for found in figures["findings"]:
        print_text(line_of(found))
    print_text("\n".join(figures["advice"]))
