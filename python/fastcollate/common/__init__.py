"""What all rooms use: checks of arguments, arrays of NumPy and torch, names of columns."""
