"""``fastcollate report``: an HTML report on the rollouts of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fastcollate.cli.files import Source
from fastcollate.cli.options import (
    AsJson,
    BatchRows,
    Capacity,
    CostsPath,
    Debug,
    EndIds,
    Input,
    Ranks,
    SchemaName,
    TokenizerPath,
    costs_of,
    reads_columns,
)
from fastcollate.cli.printing import print_text
from fastcollate.cli.reporting.collecting import Collector
from fastcollate.cli.reporting.page import noun_of, page_of
from fastcollate.cli.tokenizers import FileTokenizer
from fastcollate.cli.writing import check_writable, write_whole
from fastcollate.common.arguments import tally
from fastcollate.plan.merge import Policy


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
    merge: Annotated[
        Policy,
        typer.Option(
            metavar="POLICY",
            help="How turns of trajectories are merged: exact, branch or realign.",
        ),
    ] = "exact",
    batch_rows: BatchRows = 256,
    dp: Ranks = 8,
    capacity: Capacity = None,
    costs: CostsPath = None,
    as_json: AsJson = False,
    debug: Debug = False,
    names: dict[str, str],
) -> None:
    """Write a report as one HTML file: lengths, padding, merging, bins, ranks and findings."""
    source = Source.of(path, names, schema)
    text = None if tokenizer is None else FileTokenizer(tokenizer)
    tokenizer_file = None if text is None else text.path
    check_writable(output, [*source.paths, costs, tokenizer_file])
    collector = Collector(
        policy=merge,
        batch_rows=batch_rows,
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
    summary = collector.close(path.name, source.title)
    write_whole(output, page_of(summary))
    if as_json:
        print(json.dumps({"report": str(output), **summary.figures}, indent=2))
        return
    numbers = {found["kind"]: found["number"] for found in summary.figures["findings"]}
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in numbers.items())
    print_text(
        f"{tally(summary.figures['turns'], noun_of(summary.figures))}, "
        f"{tally(sum(numbers.values()), 'finding')}{f' ({kinds})' if kinds else ''}; "
        f"wrote {output}"
    )
