"""Feed `build_batch` what a fuzzer makes up: no crash, no hang, no leak, no wrong number.

``python fuzz/ingest.py --seconds 60`` looks for inputs that fail, guided by atheris where that is
installed: it prefers inputs that reach new code. With ``--random`` inputs are random, and some are
repeated to see whether memory is lost; what atheris puts into code to guide it leaks itself.
``python fuzz/ingest.py FILE`` runs the input that was found again.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import os
import shutil
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np

TIMEOUT = 20
"""Seconds that an input may take; a usual one takes some milliseconds."""

FOUND = Path(__file__).parent / "found"
"""Where an input that fails is kept."""


def main() -> None:
    """Look for inputs that fail, or run those that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long to look")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of random choices")
    parser.add_argument("--random", action="store_true", help="do without atheris")
    parser.add_argument("inputs", nargs="*", type=Path, help="inputs to run again, instead")
    options = parser.parse_args()
    FOUND.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    if options.inputs:
        faulthandler.enable()
        for path in options.inputs:
            run(path.read_bytes())
        print(f"{len(options.inputs)} inputs pass")
    elif options.random or find_spec("atheris") is None:
        run_random(options.seconds, options.seed)
    else:
        run_guided(options.seconds, options.seed)


def run_guided(seconds: int, seed: int) -> None:
    """Run what atheris makes of inputs that reached new code of ours."""
    import atheris

    with atheris.instrument_imports(include=["fastcollate"]):
        from target import once

    corpus = Path(tempfile.mkdtemp())
    for index, data in enumerate(islice(random_inputs(seed), 500)):  # not from one byte on
        (corpus / str(index)).write_bytes(data)
    limits = [f"-max_total_time={seconds}", f"-timeout={TIMEOUT}", "-rss_limit_mb=4096"]
    more = [f"-artifact_prefix={FOUND}{os.sep}", f"-seed={seed % 2**32}", "-len_control=0"]
    final = ["-print_final_stats=1", "-verbosity=0", str(corpus)]
    atheris.Setup([sys.argv[0], *limits, *more, *final], once)
    atexit.register(shutil.rmtree, corpus)
    atheris.Fuzz()


def run_random(seconds: int, seed: int) -> None:
    """Run random inputs. The current one lies in a file, for when not even Python is left."""
    faulthandler.enable()
    current = FOUND / "current"
    end, count = time.monotonic() + seconds, 0
    print(f"the input that fails, if any, is {current}", flush=True)
    for data in random_inputs(seed):
        if time.monotonic() > end:
            break
        current.write_bytes(data)
        faulthandler.dump_traceback_later(TIMEOUT, exit=True)
        run(data)
        faulthandler.cancel_dump_traceback_later()
        count += 1
    current.unlink()
    print(f"{count} inputs pass")


def random_inputs(seed: int) -> Iterator[bytes]:
    """Make inputs up, without end."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.bytes(int(rng.integers(8, 512)))


def run(data: bytes) -> None:
    """Do what an input says; some do it many times over."""
    from target import check_memory, once

    once(data)
    if zlib.crc32(data) % 256 == 0:  # the same ones when they are run again
        check_memory(data)


if __name__ == "__main__":
    main()
