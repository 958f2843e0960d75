"""Blocks: rows of one step that are held by many processes, for any transport.

`storing`
    A process's rows as compact columns, and a table of their lengths, ids and flags.
`sharing`
    The tokens that a process's rows share.
`checking`
    Checks of tables and columns that other processes stored.
`joining`
    The tables of all blocks as one step.
`trees`
    The tokens that the rows of all blocks share.
`reading`
    The rows of a shard, built from the few columns that it needs.
`spans`
    Shards of one process's batch as few spans of its memory.

Objects are moved between processes by :mod:`fastcollate.ray`, not here.
"""
