"""Context parallelism: packed rows split over several ranks.

- :func:`cp_split`: a rank's part of a packed batch, two chunks of each sequence.
- :func:`cp_merge`: per-token outputs of all ranks, in the order of the batch's tokens.
"""

from fastcollate.ops.context_parallel import cp_merge, cp_split

__all__ = ["cp_merge", "cp_split"]
