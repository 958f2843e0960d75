"""Values of merged rows, by row, sampled token and turn."""

from itertools import pairwise

import numpy as np

from fastcollate.testing.reference import gather_loops

# Arguments of gather, and the loop with the expected result.
ROW, SAMPLED, TURN = {}, {"gaps": False}, {"per": "turn"}


def expected_of(asked, reference, x, merged, **options):
    if asked is ROW:
        return gather_loops(reference, x, **options)
    return gather_loops(reference, x, merged, per=asked.get("per", "row"), **options)


def rows_of(gathered):
    bounds = np.asarray(gathered.offsets).tolist()
    values = gathered.values.tolist()
    return [values[start:stop] for start, stop in pairwise(bounds)]
