"""Functions of frameworks for comparison: their own modules after `make peers`, else ports.

Ports are slow, and correct for the inputs of tests and benchmarks. `numpy_rows` has
the batches that one would write by hand in NumPy.
"""
