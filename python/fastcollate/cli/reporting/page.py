"""The page: one file without network access, readable without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from fastcollate._fastcollate import __version__
from fastcollate.cli.reporting.collecting import LAYOUTS, Summary
from fastcollate.cli.reporting.plots import DEFINITIONS, columns, histogram, share_bar
from fastcollate.common.arguments import tally

STYLE = """
:root { --back: #ffffff; --text: #1b1f24; --soft: #57606a; --line: #d8dee4; --card: #f6f8fa;
  --bar: #2f6fdb; --pad: #dfe3e8; --hatch: #8c959f; --mark: #b35900; --warn: #b42318; }
@media (prefers-color-scheme: dark) { :root { --back: #10141a; --text: #e6edf3; --soft: #9aa4af;
  --line: #30363d; --card: #181e26; --bar: #6ea8fe; --pad: #2b323b; --hatch: #6e7781;
  --mark: #f0a04b; --warn: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 40px 0 8px; padding-top: 12px; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 20px 0 6px; }
p { margin: 6px 0; }
.note, .axis { color: var(--soft); font-size: .85rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px;
  margin: 16px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 12px; }
.card b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 20px; }
svg { display: block; width: 100%; }
svg.bars { height: 120px; border-bottom: 1px solid var(--line); }
svg.strip { height: 16px; min-width: 90px; }
svg.defs { position: absolute; }
.bar, .tokens-part { fill: var(--bar); }
.bar:hover, .strip rect:hover { opacity: .75; }
.pad { fill: var(--pad); } .hatch { fill: var(--hatch); }
.median { stroke: var(--text); stroke-width: 1.5; }
.p95 { stroke: var(--mark); stroke-width: 1.5; stroke-dasharray: 4 3; }
.axis { display: flex; justify-content: space-between; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.n:first-child, th.n:first-child { width: 4.5rem; }
td.wide { width: 40%; vertical-align: middle; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px;
  overflow-x: auto; font-size: .8rem; line-height: 1.35; }
details { margin: 10px 0; } summary { cursor: pointer; font-weight: 600; }
.warn { color: var(--warn); }
.row { border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; margin: 10px 0;
  overflow-x: auto; }
#tip { position: fixed; z-index: 9; pointer-events: none; background: var(--text);
  color: var(--back); padding: 3px 8px; border-radius: 5px; font-size: .8rem; max-width: 320px;
  display: none; }
@media (max-width: 560px) { td.wide { width: 30%; } th, td { padding-right: 6px; } body {
  font-size: 14px; } .more { display: none; } }
@media print { details > * { display: block; } }
"""

SCRIPT = """
(() => {
  const tip = document.getElementById("tip");
  for (const title of document.querySelectorAll("svg title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  document.addEventListener("pointermove", (event) => {
    const at = event.target.closest && event.target.closest("[data-tip]");
    tip.style.display = at ? "block" : "none";
    if (!at) return;
    tip.textContent = at.dataset.tip;
    const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 16 + tip.offsetHeight < innerHeight;
    tip.style.left = Math.max(left, 4) + "px";
    tip.style.top = (below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 8) + "px";
  });
})();
"""


def page_of(summary: Summary, tokenizer: Any = None) -> str:
    """Return the report as HTML."""
    sections = (
        ("Lengths", _lengths(summary)),
        ("Padding by layout", _layouts(summary)),
        ("Merging", _merging(summary)),
        ("Bins", _bins(summary)),
        ("Ranks", _ranks(summary)),
        ("Findings", _findings(summary)),
        ("Rows to look at", _worst(summary, tokenizer)),
    )
    body = "".join(
        f"<section><h2>{title}</h2>{''.join(parts)}</section>" for title, parts in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(summary.name)}: rollouts</title><style>{STYLE}</style></head><body>"
        f'{DEFINITIONS}<main>{_head(summary)}{body}</main><div id="tip"></div>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _head(summary: Summary) -> str:
    """Return the title and the first numbers."""
    sampled = summary.response_tokens
    cards = [
        ("turns", f"{summary.num_turns:,}"),
        ("prompt tokens", _short(summary.prompt_tokens)),
        ("response tokens", _short(sampled)),
        ("of these train", f"{summary.trained_tokens / sampled:.1%}" if sampled else "0"),
    ]
    if summary.merging is not None:
        cards.insert(1, ("rows when merged", f"{summary.merging.num_rows:,}"))
    if summary.mean_reward is not None:
        cards.append(("mean reward of a turn", f"{summary.mean_reward:.3g}"))
    cards.append(("findings", f"{summary.num_findings:,}"))
    shown = "".join(f'<div class="card"><b>{value}</b>{name}</div>' for name, value in cards)
    return (
        f'<h1>{escape(summary.name)}</h1><p class="note">Report of fastcollate {__version__}. '
        f'{_advice(summary)}</p><div class="cards">{shown}</div>'
    )


def _advice(summary: Summary) -> str:
    """Return the most effective improvement as a sentence."""
    of = "merged" if "merged" in summary.layouts else "turns"
    left = summary.layouts["turns"]["left, right"]
    name, best = min(
        summary.layouts[of].items(), key=lambda item: (item[1].positions, LAYOUTS.index(item[0]))
    )
    if best.positions == 0 or left.positions < 1.2 * best.positions:
        return "No layout would save much here."
    merged = "merged turns, " if of == "merged" else ""
    return (
        f"Padded turns take {_short(left.positions)} positions; {merged}layout {name}: "
        f"{_short(best.positions)}, {left.positions / best.positions:.1f}x fewer."
    )


def _lengths(summary: Summary) -> Iterator[str]:
    plots = [
        ("Prompts of turns", summary.prompt_lens, "prompts"),
        ("Responses of turns", summary.response_lens, "responses"),
        ("Rows, merged" if summary.merging else "Rows", summary.row_lens, "rows"),
    ]
    yield '<div class="grid">'
    for title, values, what in plots:
        yield f"<div><h3>{title}</h3>{histogram(values, what)}</div>"
    yield "</div>"
    yield '<p class="note">In tokens. Solid line: median; dashed: 95th percentile.</p>'


def _layouts(summary: Summary) -> Iterator[str]:
    most = max(found.positions for of in summary.layouts.values() for found in of.values())
    head = '<tr><th>layout</th><th class="n more">tokens</th><th class=n>positions</th>'
    yield (
        f'<p class="note">In batches of {summary.batch_rows:,} rows that follow each other; packed '
        f"and tree in bins of {summary.capacity:,}. Tree holds tokens that rows of a prompt begin "
        "with in common once. Filled: tokens; ruled: padding.</p>"
    )
    for of, by_layout in summary.layouts.items():
        title = "Each turn a row" if of == "turns" else "Turns merged to rows"
        rows = []
        for name, found in by_layout.items():
            padding = found.positions - found.tokens
            bar = share_bar(
                [
                    ("tokens-part", found.tokens, f"{name}: {found.tokens:,} tokens"),
                    ("padding", padding, f"{name}: {padding:,} of padding ({found.padding:.1%})"),
                ],
                most,
            )
            rows.append(
                f'<tr><td>{name}</td><td class="n more">{_short(found.tokens)}</td>'
                f"<td class=n>{_short(found.positions)}</td><td class=n>{found.padding:.1%}</td>"
                f'<td class="wide">{bar}</td></tr>'
            )
        yield (
            f'<h3>{title}</h3><div class="scroll"><table>{head}<th class=n>padding</th>'
            f"<th></th></tr>{''.join(rows)}</table></div>"
        )


def _merging(summary: Summary) -> Iterator[str]:
    merging = summary.merging
    if merging is None:
        yield (
            "<p>Nothing is known of trajectories, so no turns were merged: name a column by "
            "<code>--trajectory-ids</code> or <code>--is-last-step</code>.</p>"
        )
        return
    fewer = merging.tokens_before / merging.tokens_after if merging.tokens_after else 1.0
    yield (
        f"<p>{tally(merging.num_turns, 'turn')} of "
        f"{tally(merging.num_trajectories, 'trajectory', 'trajectories')} make "
        f"{tally(merging.num_rows, 'row')} with policy <code>{merging.policy}</code>: "
        f"{merging.tokens_after:,} tokens in place of {merging.tokens_before:,}, {fewer:.1f}x "
        f"fewer.</p>"
    )
    if merging.masked_tokens:
        yield f"<p>Realigning masked {tally(merging.masked_tokens, 'sampled token')}.</p>"
    spread = ", ".join(f"{n:,} have {rows}" for rows, n in merging.rows_per_trajectory.items())
    yield f'<p class="note">Rows per trajectory: {spread}.</p>'
    breaks = sum(merging.kinds.values())
    if breaks == 0:
        yield "<p>No breaks: every turn goes on from the one before it.</p>"
        return
    yield f"<h3>{tally(breaks, 'break')}: where a prompt differs from the tokens before it</h3>"
    kinds = ((count, kind, _KINDS.get(kind, "")) for kind, count in merging.kinds.items())
    yield _table(("number", "kind", "what it is"), kinds, numbers=(0,))
    looked_at = merging.num_looked_at
    sample = f", of {looked_at:,} drawn evenly" if looked_at < breaks else ""
    yield f"<h3>Reasons{sample}</h3>"
    reasons = ((count, reason) for reason, count in merging.hints.items())
    yield _table(("number", "reason"), reasons, numbers=(0,))
    if merging.trees:
        yield (
            "<details open><summary>The "
            f"{tally(len(merging.trees), 'trajectory', 'trajectories')} with the most breaks"
            '</summary><p class="note">Turns are counted as rows of the file; each row stands '
            "below the row that it leaves.</p>"
        )
        yield "".join(f"<pre>{escape(_shorten(tree))}</pre>" for tree in merging.trees)
        yield "</details>"


_KINDS = {
    "drift": "inside the last response, as where text is tokenised anew",
    "diverged": "elsewhere: the tokens before were changed",
    "shorter": "the prompt ends early: a retry, or a context that was cut",
}


def _shorten(text: str, most: int = 60) -> str:
    lines = text.splitlines()
    if len(lines) <= most:
        return text
    return "\n".join([*lines[:most], f"... {len(lines) - most:,} more lines"])


def _bins(summary: Summary) -> Iterator[str]:
    fill = summary.bin_fill
    yield (
        f"<p>{tally(len(summary.row_lens), 'row')} fill {tally(len(fill), 'bin')} of "
        f"{summary.capacity:,} tokens to {fill.mean():.1%} on average.</p>"
    )
    yield f'<div class="grid"><div>{histogram(fill, "bins", "%")}</div></div>'


def _ranks(summary: Summary) -> Iterator[str]:
    batches = tally(summary.num_mini_batches, "mini-batch", "mini-batches")
    yield (
        f'<p class="note">{batches} of {summary.batch_rows:,} rows for '
        f"{tally(summary.dp_size, 'rank')}, by cost in {escape(summary.cost)}. Idle: the share "
        "of time that ranks wait for the slowest one of each mini-batch. The line is the mean.</p>"
    )
    yield '<div class="grid">'
    for load in summary.loads:
        yield (
            f"<div><h3>{escape(load.name)}: {load.idle:.1%} idle</h3>"
            f"{columns(load.per_rank, 'cost')}"
            f'<div class="axis"><span>rank 0</span><span>rank {summary.dp_size - 1}</span></div>'
            "</div>"
        )
    yield "</div>"


def _findings(summary: Summary) -> Iterator[str]:
    if not summary.findings:
        yield "<p>No findings.</p>"
        return
    yield (
        '<p class="note">What <code>batch.check()</code> found in turns; rows are those of the '
        "file. Of each kind a few are shown.</p>"
    )
    rows = [
        (found.number, found.kind, "\n".join(found.examples), found.advice)
        for found in summary.findings
    ]
    yield _table(("number", "kind", "found", "what to do"), rows, numbers=(0,))


def _worst(summary: Summary, tokenizer: Any) -> Iterator[str]:
    yield (
        '<p class="note">The first rows with a finding of each kind, and the longest; drawn from '
        f"{tally(summary.num_turns, 'turn')}.</p>"
    )
    for worst in summary.worst:
        cut = " (its last tokens)" if worst.is_cut else ""
        name = f"row {worst.row:,}{cut}"
        shown = worst.batch.show(0, tokenizer=tokenizer)._named(name)._repr_html_()
        yield (f'<div class="row"><p class="warn">{escape(worst.why)}</p>{shown}</div>')


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    """Return a table; line breaks in cells are kept."""

    def cell(index: int, value: Any, tag: str) -> str:
        text = f"{value:,}" if isinstance(value, int) else escape(str(value))
        number = " class=n" if index in numbers else ""
        return f"<{tag}{number}>{text.replace(chr(10), '<br>')}</{tag}>"

    lines = ["".join(cell(i, value, "th") for i, value in enumerate(head))]
    lines += ["".join(cell(i, value, "td") for i, value in enumerate(row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table>{body}</table></div>'


def _short(number: float) -> str:
    """Format a number of tokens."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:,.0f}"
