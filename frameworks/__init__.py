"""What frameworks do, in our own words: slow, and right for the inputs of tests and benchmarks."""
