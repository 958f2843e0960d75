"""Facts about a trie of rows: depths, attention and tokens."""

import numpy as np


def depths_of(trie):
    """Return the number of tokens before each position."""
    depths = []
    for parent in trie.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def mask_of(trie):
    """Return which position looks at which: at itself, and at what is before it in its rows."""
    mask = np.eye(len(trie.parents), dtype=np.bool_)
    for position, parent in enumerate(trie.parents):
        if parent >= 0:
            mask[position] |= mask[parent]
    return mask


def count_tokens(trie, rows):
    """Count the tokens of some rows, shared ones once."""
    return len({position for row in rows for position in trie.paths[row]})
