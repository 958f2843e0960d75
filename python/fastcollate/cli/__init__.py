"""The command line: one module per command. It needs what the extra ``cli`` brings."""
