"""Comparisons of fastcollate with its plain references and with frameworks, on random input.

Each subject has a module here, named as in `fastcollate.compat`, with a `Subject` of the same name
in capitals and one function per compared function::

    SKYRL = Subject("SkyRL", "skyrl")
    SKYRL.not_compared["PackingStrategy"] = "an enumeration of names"

    @SKYRL.compares("compute_prompt_boundaries")
    def prompt_boundaries(draw: Draw, skyrl: Peer) -> Case:
        uids = draw(...)
        return Case(
            theirs=lambda: skyrl("skyrl.train.dataset.preprocess").compute_prompt_boundaries(uids),
            ours=lambda: compat.compute_prompt_boundaries(uids),
            given={"uids": uids},
        )

``draw`` draws from a Hypothesis strategy, as in ``st.composite``; ``skyrl`` returns a module of the
framework by its name, and has its ``version``. ``theirs`` and ``ours`` are called in this order,
and must not change ``given``, which a message shows. Ours is looked up in the module of ``compat``
at the time of the call, so that a test can replace it. Results are mappings, lists, arrays,
tensors, Arrow tables, scalars, or other values with ``==``, and compared by type, dtype, shape and
bits. If theirs raises, ours has to raise the same type or a subclass. Input for which results
differ by design is not drawn: the docstring of the ``compat`` function names it.

A comparison may cover several names: ``compares("one", "other")``.
"""

from importlib import import_module

from fastcollate.testing.verifying.subjects import Subject

FRAMEWORKS = ("nemo_rl", "skyrl", "transformers", "trl", "verl")


def subject_of(name: str) -> Subject:
    """Return the comparisons with a framework, or with the ``"references"``."""
    found: Subject = getattr(import_module(f"{__name__}.{name}"), name.upper())
    return found
