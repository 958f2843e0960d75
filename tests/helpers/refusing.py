"""Batches that oracles refuse have to be refused, all others have to be theirs."""

import pytest

from fastcollate.testing.reference import assert_same


def same_or_refused(build, oracle):
    """Check that a batch is the oracle's, or that both refuse rows that begin without a prompt.

    Return the batch, None if it was refused.
    """
    try:
        expected = oracle()
    except ValueError:
        with pytest.raises(ValueError, match=r"has no prompt|marks the first token of row"):
            build()
        return None
    batch = build()
    assert_same(batch, expected)
    return batch
