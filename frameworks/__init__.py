"""Functions of frameworks for comparison: their own modules after `make peers`, else ports.

Ports are slow, and correct for the inputs of tests and benchmarks.
"""
