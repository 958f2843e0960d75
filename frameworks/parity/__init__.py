"""Comparison of `fastcollate.compat` with the frameworks themselves, on random input.

``python -m frameworks.parity trl verl --seconds 20`` calls each function of ``compat`` and the
framework's own with the same arguments, and prints the first difference. The framework is the
installed one, else the one that ``make peers`` downloads.

Each framework has a module here, named as in `compat`, with a `Framework` of the same name in
capitals and one function per compared function::

    SKYRL = Framework("SkyRL", "skyrl")
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

Modules of `.peers` are loaded one by one, with stubs in place of what they import; they are listed
in `frameworks.installed`. A comparison may cover several names: ``compares("one", "other")``.
`tests/compat/test_parity.py` checks that each public name of ``compat`` is compared or has a reason
not to be, that nothing differs, and that a broken function of ours is found.
"""

from importlib import import_module

from frameworks.parity.framework import Framework

NAMES = ("nemo_rl", "skyrl", "transformers", "trl", "verl")


def framework(name: str) -> Framework:
    """Return the comparisons of a framework, by its name in `NAMES`."""
    found: Framework = getattr(import_module(f"frameworks.parity.{name}"), name.upper())
    return found
