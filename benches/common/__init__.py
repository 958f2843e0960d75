"""What the benchmarks share."""

import sys
from pathlib import Path

# Benchmarks are scripts: only their own folder is on the path.
sys.path.append(str(Path(__file__).parents[2]))  # for frameworks
