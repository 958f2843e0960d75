"""What a GPU takes to get its batches, measured and written down."""
