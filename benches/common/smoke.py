"""Run benchmarks once on little data, in one process: `python -m common.smoke FILE...`."""

import runpy
import sys


def main() -> None:
    """Run the files, and the comparison of builds last: it loads the package again."""
    for file in sorted(sys.argv[1:], key=lambda file: file.endswith("builds.py")):
        print(f"python {file} --smoke", flush=True)
        sys.argv = [file, "--smoke"]
        runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main()
