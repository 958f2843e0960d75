"""Call the library with the inputs of a fuzzer: no crash, no hang, no leak, no wrong number.

``python fuzz/run.py --seconds 60`` looks for inputs that fail, guided by atheris where that is
installed: it prefers inputs that reach new code. With ``--random`` inputs are random, and some are
repeated to see whether memory is lost; what atheris puts into code to guide it leaks itself. Both
begin with the corpus: few inputs that reach all code that inputs ever reached.
``python fuzz/run.py --keep --seconds 600`` makes that anew. ``python fuzz/run.py FILE`` runs again
what was found.
"""

from __future__ import annotations

import argparse
import base64
import faulthandler
import os
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path

import numpy as np

TIMEOUT = 20
"""Seconds that an input may take; a usual one takes some milliseconds."""

REPEATS = 30
"""The factor of `TIMEOUT` for an input that is repeated to detect leaks."""

HERE = Path(__file__).parent

FOUND = HERE / "found"
"""The folder of inputs that fail."""

SOURCES, TESTING = HERE.parent / "python", "fastcollate/testing/**/*.py"

CORPUS = HERE / "corpus.txt"
"""Inputs that reach all code that inputs reached, one a line."""

ATHERIS = [sys.executable, __file__, "--atheris"]
"""The command that runs this file as atheris, which ends its process."""


def main() -> None:
    """Look for inputs that fail, or run those that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long to look")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of random choices")
    parser.add_argument("--random", action="store_true", help="do without atheris")
    parser.add_argument("--keep", action="store_true", help="make the corpus anew after that")
    parser.add_argument("--atheris", nargs=argparse.REMAINDER, help="call it with these arguments")
    parser.add_argument("inputs", nargs="*", type=Path, help="inputs to run again, instead")
    options = parser.parse_args()
    FOUND.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    sys.path.append(str(HERE.parent / "tests" / "helpers"))  # for check_plan, which tests use, too
    if options.atheris:
        call_atheris(options.atheris)
    elif options.inputs:
        faulthandler.enable()
        for path in options.inputs:
            run(path.read_bytes())
        print(f"{len(options.inputs)} inputs pass")
    elif options.random or find_spec("atheris") is None:
        run_random(options.seconds, options.seed)
    else:
        run_guided(options.seconds, options.seed, keep=options.keep)


def read_corpus() -> list[bytes]:
    """Read the inputs that were kept."""
    return list(map(base64.b64decode, CORPUS.read_text().splitlines()))


def write_corpus(inputs: Iterable[bytes]) -> None:
    """Write the inputs to keep."""
    lines = sorted(base64.b64encode(data).decode() for data in inputs)
    CORPUS.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} inputs are kept")


def run_guided(seconds: int, seed: int, *, keep: bool) -> None:
    """Run the inputs that atheris derives from those that reached new code."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, kept = Path(folder, "inputs"), Path(folder, "kept")
        inputs.mkdir()
        kept.mkdir()
        for index, data in enumerate(chain(read_corpus(), islice(random_inputs(seed), 500))):
            (inputs / str(index)).write_bytes(data)
        calls = [[f"-max_total_time={seconds}", f"-seed={seed % 2**32}", str(inputs)]]
        if keep:
            # By what is reached, not how often: a few hundred suffice.
            calls.append(["-set_cover_merge=1", "-use_counters=0", str(kept), str(inputs)])
        for arguments in calls:
            subprocess.run([*ATHERIS, *arguments], check=True)
        if keep:
            write_corpus([path.read_bytes() for path in kept.iterdir()])


def call_atheris(arguments: list[str]) -> None:
    """Run atheris, or libFuzzer in it, with these arguments."""
    import atheris

    # Coverage of the references does not count.
    references = (path.relative_to(SOURCES).with_suffix("") for path in SOURCES.glob(TESTING))
    names = [".".join(path.parts).removesuffix(".__init__") for path in references]
    with atheris.instrument_imports(include=["fastcollate"], exclude=names):
        from target import once

    limits = [f"-timeout={TIMEOUT}", "-rss_limit_mb=4096", "-len_control=0", "-max_len=512"]
    more = [f"-artifact_prefix={FOUND}{os.sep}", "-print_final_stats=1", "-verbosity=0"]
    # To merge, it calls itself by the first of these.
    atheris.Setup([shlex.join(ATHERIS), *limits, *more, *arguments], once)
    atheris.Fuzz()


def run_random(seconds: int, seed: int) -> None:
    """Run random inputs. The current one lies in a file, for when not even Python is left."""
    begin = armed = time.monotonic()
    from target import name_of

    faulthandler.enable()
    current = FOUND / "current"
    counts: Counter[str] = Counter()
    print(f"the input that fails, if any, is {current}", flush=True)
    for data in chain(corpus := read_corpus(), random_inputs(seed)):
        now = time.monotonic()
        if now > begin + seconds and counts.total() >= len(corpus):
            break
        if is_repeated(data) or now > armed + 1 or not counts:  # arming starts a thread
            limit = TIMEOUT * (REPEATS if is_repeated(data) else 1)
            faulthandler.dump_traceback_later(limit, exit=True)
            armed = now
        current.write_bytes(data)
        run(data)
        counts[name_of(data)] += 1
    faulthandler.cancel_dump_traceback_later()
    current.unlink()
    of_each = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"{counts.total()} inputs pass, {len(corpus)} of them from the corpus: {of_each}")


def random_inputs(seed: int) -> Iterator[bytes]:
    """Make inputs up, without end."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.bytes(int(rng.integers(8, 512)))


def run(data: bytes) -> None:
    """Run an input; some are repeated."""
    from target import check_memory, once

    once(data)
    if is_repeated(data):
        check_memory(data)


def is_repeated(data: bytes) -> bool:
    """Return True if an input is repeated; it depends on the input alone."""
    return zlib.crc32(data) % 1024 == 0  # it takes as long as some hundred inputs


if __name__ == "__main__":
    main()
