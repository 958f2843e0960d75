"""The command line: one module per command. Needs the extra ``cli``."""
