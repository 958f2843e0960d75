"""Times that no plan of a tree step beats, for tests and benchmarks."""

import numpy as np


def bound_of(tree, costs, ranks, capacity):
    """Return a time that no plan of a tree step beats.

    Whoever holds tokens of a subtree holds those above it, too: a node is copied to as many bins as
    the tokens below it take, and to as many ranks as their cost takes in that time.
    """
    nodes, rows = tree.nodes, costs.of(tree.lengths)
    ends = nodes.depths + nodes.lengths
    down_to = costs.of(ends)
    added = down_to - costs.of(nodes.depths)
    sums = np.append(0.0, added.cumsum())
    last = np.searchsorted(nodes.starts, nodes.subtree_ends)
    below = np.maximum(sums[last] - sums[1:], 0.0)
    tokens = nodes.subtree_ends - nodes.starts - nodes.lengths
    by_capacity = np.ceil(tokens / np.maximum(capacity - ends, 1))

    def is_enough(time):
        by_cost = np.ceil(below / np.maximum(time - down_to, 1e-9) - 1e-9)
        copies = np.maximum(np.maximum(by_capacity, by_cost), 1)
        return (added * copies).sum() <= ranks * time

    low, high = max(sums[-1] / ranks, rows.max()), rows.sum()
    if is_enough(low):
        return low
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
