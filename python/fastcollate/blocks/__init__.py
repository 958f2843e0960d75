"""Blocks: rows of one step that lie in many processes, whatever carries them between.

`storing`
    A process's rows as compact columns, and a table of what is known of them without a token.
`sharing`
    Which tokens a process's rows have in common.
`joining`
    The tables of all blocks as one step.
`trees`
    Which tokens the rows of all blocks have in common.
`reading`
    The rows of a shard, built from the few columns that it needs.
`spans`
    Shards of a batch that one process holds, as few spans of its memory.

Nothing here knows how objects get from one process to another: :mod:`fastcollate.ray` does.
"""
