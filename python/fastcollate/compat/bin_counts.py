"""How many bins packers of frameworks may be asked for."""

from __future__ import annotations


def check_bin_counts(min_bin_count: int | None, bin_count_multiple: int | None) -> None:
    """Refuse numbers of bins that cannot be, as SkyRL and NeMo-RL do."""
    if min_bin_count is not None and min_bin_count < 0:
        raise ValueError(f"min_bin_count is {min_bin_count}; pass a number from 0 on or None")
    if bin_count_multiple is not None and bin_count_multiple < 1:
        raise ValueError(
            f"bin_count_multiple is {bin_count_multiple}; pass a number from 1 on or None"
        )
