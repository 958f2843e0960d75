"""What can be done with a batch: one module per operation."""
