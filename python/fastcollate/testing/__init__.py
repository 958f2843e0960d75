"""Plain implementations of every contract (the *oracles*), also for tests of code that uses it.

They are in `fastcollate.testing.reference`, with `assert_same`, which compares results bit for bit.
They need NumPy only; torch for torch results.
"""
