"""Packed batches drawn at random."""

import contextlib
import warnings

from hypothesis import strategies as st
from packings import lens_of, packed_options
from strategies import as_inputs, extras, rollouts


@contextlib.contextmanager
def quiet():
    """Let warnings pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@st.composite
def with_prompts(draw, data):
    """Draw data in which every sequence has a prompt, as shifted fields require, or any data."""
    if draw(st.integers(0, 3)) > 0:
        return data._replace(prompts=[prompt or [3] for prompt in data.prompts])
    return data


@st.composite
def cases(draw, array_type, **limits):
    """Draw rollouts and packing options.

    Returns
    -------
    data, inputs
        The same as lists and as any kind of input.
    options, reference
        Packing options, for build_batch and for the loops.
    more
        Arguments of both.
    """
    data = draw(rollouts(max_long_len=30).flatmap(with_prompts))
    options, reference = draw(packed_options(lens_of(data), **limits))
    more = draw(extras(data, array_type)) | {"pad_token_id": draw(st.integers(0, 2))}
    if options["layout"].shift == "next_token" and "labels" in more:
        more["labels"] = "aligned"
    return data, draw(as_inputs(data)), options, reference, more
