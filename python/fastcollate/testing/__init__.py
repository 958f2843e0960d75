"""Test tools of fastcollate, also for tests of code that uses it.

`fastcollate.testing.reference`
    Plain implementations of every contract (the *oracles*) and `assert_same`, which compares
    results bit for bit. Needs NumPy only; torch for torch results.
`fastcollate.testing.strategies`
    Hypothesis strategies for rollouts and for every accepted kind of input. Needs
    Hypothesis: `pip install 'fastcollate[testing]'`.

Nothing is imported here, so that each of them loads only its own dependencies.
"""
