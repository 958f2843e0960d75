"""What fastcollate is tested with, for the tests of the code that uses it, too.

`fastcollate.testing.reference`
    Plain implementations of every contract (the *oracles*) and `assert_same`, which compares
    results bit for bit. Needs NumPy only; torch where a torch result is asked for.
`fastcollate.testing.strategies`
    Hypothesis strategies for rollouts and for every kind of input that is accepted. Needs
    Hypothesis: `pip install 'fastcollate[testing]'`.

Nothing is imported here, so that each of them costs only what it needs.
"""
