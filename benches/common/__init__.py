"""Shared code of the benchmarks."""

import sys
from pathlib import Path

# Benchmarks are scripts: only their own folder is on the path.
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # for frameworks
sys.path.append(str(ROOT / "tests" / "helpers"))  # for bounds
sys.path.append(str(ROOT / "examples"))  # for the example trainer and the recorded rollouts
