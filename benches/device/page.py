"""The page of measurements on a GPU: `docs/gpu.md`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from common.report import Figures
from device import tables
from device.tables import Results


class Part(NamedTuple):
    """A part of the page: heading, description, and formatting of the table."""

    key: str
    title: str
    text: str
    table: Callable[[Sequence[Figures]], str]
    figure: str | None = None


PARTS = (
    Part(
        "pinning",
        "Pinned memory",
        "A batch is built from arrays into pageable and into pinned memory, which is new (*first*) "
        "or was used\nbefore (*recycled*).",
        tables.of_pinning,
        "gpu_pinning.svg",
    ),
    Part(
        "copies",
        "Copies",
        '`batch.to("cuda", non_blocking=True)`, which is one copy, and `.to` of each tensor, until '
        "all has arrived;\nin brackets the share of the speed of the *bus*: one pinned `copy_` of "
        "the same size.",
        tables.of_copies,
        "gpu_copies.svg",
    ),
    Part(
        "copied",
        "Waiting for copies",
        "The share of a training loop's time in which the device has no step to do, by its own "
        "events. The batch is in\npinned memory already. A step multiplies matrices for 1, 2 and 5 "
        "times as long as a batch takes *without*\n`prefetch`.",
        tables.of_waiting,
        "gpu_waiting.svg",
    ),
    Part(
        "built",
        "Waiting for batches that are built",
        "The same loop, where each batch is built from arrays first, and steps are longer "
        "accordingly. *DataLoader* has up\nto four workers that build plain dicts, "
        '`pool="pinned"`, and a copy of each tensor; it is left out where shared\nmemory is too '
        "small for it.",
        tables.of_waiting,
    ),
    Part(
        "padding",
        "Padding",
        "A jagged, compact batch that `pad_on_device` pads *there*, against the padded batch, both "
        "in pinned memory; and\nwith the time to build them. *Sent* is what goes over the bus.",
        tables.of_padding,
        "gpu_padding.svg",
    ),
    Part(
        "trainer",
        "The example trainer",
        "The share of a step of `examples/train_grpo.py` that its model waits.",
        tables.of_trainer,
    ),
)


def page(about: Mapping[str, str], results: Results) -> str:
    """Write the page; parts without figures are marked."""
    made = "Not measured yet: `make gpu` has not run on a machine with a GPU."
    if about:
        made = ", ".join(f"{name} {value}" for name, value in about.items()) + "."
    blocks = [
        "# On a GPU",
        "`make gpu` runs the tests that need a GPU, measures host-to-device transfer, and "
        "writes this page. Batches are in\nthe reference layout, of 6 to 6,000 rows of 200 to "
        "6,000 tokens. Figures are medians of rounds in which all\ncandidates take turns.",
        made,
        _goals(results),
    ]
    for part in PARTS:
        blocks += [f"## {part.title}", part.text]
        if results.get(part.key):
            blocks.append(part.table(results[part.key]))
            if part.figure:
                blocks.append(f"![{part.title}]({part.figure})")
    return "\n\n".join(blocks) + "\n"


def _goals(results: Results) -> str:
    copies = f"- One copy per batch reaches {tables.percent(tables.OF_BUS)} of the speed of the bus"
    waiting = (
        f"- The device waits less than {tables.percent(tables.WAITING)} of its time with `prefetch`"
    )
    if results.get("copies"):
        copies += f": {tables.goal_of_copies(results['copies'])}"
    if results.get("copied") and results.get("built"):
        waiting += f": {tables.goal_of_waiting(results['copied'], results['built'])}"
    return f"Goals:\n\n{copies}.\n{waiting}."
