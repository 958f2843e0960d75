"""The page and the figures that `make gpu` writes, from figures that are made up."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

pytest.importorskip("torch")
BENCHES = Path(__file__).parents[2] / "benches"


@pytest.fixture
def results():
    sizes = (1.0e6, 1.0e9)
    bus = {size: size / 50e9 for size in sizes}
    waits = {1.0e6: 0.03, 1.0e9: 0.004}
    names = ("one copy, pinned", "per tensor, pinned", "one copy, pageable", "per tensor, pageable")
    waiting = [
        {"bytes": size, "factor": 2.0, "step": 0.04, "without": 0.5, "prefetch": waits[size]}
        for size in sizes
    ]
    padding = {"padded there": 0.5, "padded here": 1.0}
    padding |= {f"built and {name}": 2 * seconds for name, seconds in padding.items()}
    pinning = {"pageable, first": 0.4, "pageable, recycled": 0.1}
    pinning |= {"pinned, first": 0.8, "pinned, recycled": 0.1}
    return {
        "pinning": [{"bytes": size, **pinning} for size in sizes],
        "copies": [
            {"bytes": size, "bus": bus[size]}
            | dict.fromkeys(names, bus[size] / (0.4 if size < 1000000000.0 else 0.95))
            for size in sizes
        ],
        "copied": waiting,
        "built": [{**of, "DataLoader": 0.25} for of in waiting],
        "padding": [{"bytes": size, "jagged bytes": size / 4, **padding} for size in sizes],
        "trainer": [{"wait": 0.15, "prefetch": 0.008}],
    }


@pytest.fixture
def benches(monkeypatch):
    monkeypatch.syspath_prepend(BENCHES)


def test_the_page(benches, results):
    from device.page import PARTS, page

    text = page({"GPU": "one of ours", "torch": "2.x"}, results)
    assert "GPU one of ours, torch 2.x." in text
    assert "of the speed of the bus: reached by 1 of 2; missed by 1 MB (40 %)." in text
    missed = "1 MB copied, 2x (3.0 %), 1 MB built, 2x (3.0 %)"
    assert f"with `prefetch`: reached by 2 of 4; missed by {missed}." in text
    for line in (
        "| 1 GB | 400.0 ms | 100.0 ms | 800.0 ms | 100.0 ms |",
        "| 1 GB | 50.0 GB/s | 47.5 GB/s (95 %) |",
        "| 1 GB | 40.0 ms (2x) | 50.00 % | 0.40 % |  |",
        "| 1 GB | 40.0 ms (2x) | 50.00 % | 0.40 % | 25.00 % |",
        "| 1 GB | 250 MB (25 %) | 500.0 ms (2.0x) | 1000.0 ms | 1000.0 ms (2.0x) | 2000.0 ms |",
        "| 15.0 % | 0.8 % |",
    ):
        assert line in text
    assert {part.key for part in PARTS} == set(results)
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == len(PARTS)
    for table in tables:
        assert len({line.count("|") for line in table}) == 1


def test_a_page_of_nothing_and_of_a_part(benches, results):
    from device.page import page

    text = page({}, {})
    assert "Not measured yet" in text
    assert "|" not in text
    assert "](" not in text
    text = page({"GPU": "one of ours"}, {"copies": results["copies"]})
    assert "Not measured yet" not in text
    assert text.count("](") == 1
    assert text.count("reached by") == 1


def test_the_figures(benches, results, tmp_path):
    pytest.importorskip("matplotlib")
    from device.page import PARTS
    from device.plots import draw

    draw(results, tmp_path)
    names = {part.figure for part in PARTS if part.figure}
    assert {path.name for path in tmp_path.iterdir()} == names
    texts = {name: set(ElementTree.parse(tmp_path / name).getroot().itertext()) for name in names}
    assert {"bus", "one copy, pageable", "goal: 90 % of the bus"} <= texts["gpu_copies.svg"]
    assert {"pinned, first", "built, GB/s"} <= texts["gpu_pinning.svg"]
    assert {"1 MB, prefetch", "1 GB, DataLoader"} <= texts["gpu_waiting.svg"]
    assert {"padded there", "built and padded there"} <= texts["gpu_padding.svg"]


def test_the_share_that_a_device_waits(benches):
    """Of ten seconds a step, of which it waits two; the first steps are not counted."""
    from common.clocks import HostClock
    from device.waiting import WARM_UP, waiting_share

    time = [0.0]

    class Clock(HostClock):
        def now(self):
            return time[0]

    def advance(seconds):
        time[0] += seconds

    batches = (advance(100 if number < WARM_UP else 2) for number in range(WARM_UP + 5))
    assert waiting_share(Clock(), batches, lambda: advance(8)) == pytest.approx(0.2)


def test_without_a_gpu(tmp_path):
    pytest.importorskip("matplotlib")
    command = [sys.executable, BENCHES / "gpu.py", "--tests", "--out", tmp_path]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "no GPU: torch.cuda.is_available() is False; nothing was run\n"
    assert list(tmp_path.iterdir()) == []
