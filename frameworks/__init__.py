"""What frameworks do: their own modules where `make peers` has them, else in our own words.

Ports are slow, and right for the inputs of tests and benchmarks.
"""
