"""Comparisons of fastcollate with its plain references and with frameworks, on random input.

Each subject has a module here, named as in `fastcollate.compat`, with a `Subject` of the same name
in capitals and one function per comparison, which draws the arguments::

    SKYRL = Subject("SkyRL", "skyrl")

    @SKYRL.calls("skyrl.train.dataset.preprocess", "compute_prompt_boundaries")
    def boundaries(draw: Draw, skyrl: Peer) -> dict[str, Any]:
        return {"uids": draw(...)}

``draw`` draws from a Hypothesis strategy, as in ``st.composite``; ``skyrl`` returns a module of the
framework by its name, and has its ``version``. Theirs and ours are called in this order, by the
same arguments, which they must not change, as a message shows them. `compares` registers other
comparisons, which return both calls as a `Case`. Ours is looked up at the time of the call, so that
a test can replace it. Results are mappings, lists, arrays, tensors, Arrow tables, scalars, or other
values with ``==``, and compared by type, dtype, shape and bits. If theirs raises, ours has to raise
the same type or a subclass. Input for which results differ by design is not drawn: the docstring of
the ``compat`` function names it.
"""

from importlib import import_module

from fastcollate.testing.verifying.subjects import Subject

FRAMEWORKS = ("nemo_rl", "skyrl", "transformers", "trl", "verl")


def subject_of(name: str) -> Subject:
    """Return the comparisons with a framework, or with the ``"references"``."""
    found: Subject = getattr(import_module(f"{__name__}.{name}"), name.upper())
    return found
