"""Shared by all tests: Hypothesis profiles, the two array types, and the marks of GPUs."""

import gc
import os
from importlib.util import find_spec

import pytest
from hypothesis import Phase, settings

# Threads of torch and of NumPy would wait for one another: models are small, and cores busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray's workers would give way to all other processes: imports of torch then take half a minute.
os.environ.setdefault("RAY_worker_niceness", "0")

# Most tests build batches of tensors, the default.
ABSENT = [name for name in ("torch", "tokenizers") if find_spec(name) is None]

# Without torch, there is nothing to learn from shrinking the examples of tests that need it.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate] if "torch" in ABSENT else list(Phase)

# In CI the same examples every time, so that a red build is red for the change that is in it;
# on a developer's machine new ones, so that somebody finds what they miss. Few of them are drawn
# with --hypothesis-profile=quick.
for name, examples in {"ci": 100, "dev": 100, "quick": 10}.items():
    settings.register_profile(
        name, phases=PHASES, max_examples=examples, deadline=None, derandomize=name == "ci"
    )
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def share(tests):
    """Give each of several tests that draw from one space its share of the profile's examples."""
    return settings(max_examples=max(5, settings.default.max_examples // tests))


NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


# One per session: Hypothesis rejects fixtures that are made anew for each test.
@pytest.fixture(scope="session", params=["numpy", pytest.param("torch", marks=NEEDS_TORCH)])
def array_type(request):
    return request.param


# Files whose tests start a cluster or many processes, or measure how soon something happens: they
# do not share the machine with others (`make test`).
ALONE = {
    *("test_builder_interrupts", "test_collator_ray", "test_docs_ray", "test_forks"),
    *(
        "test_interrupts",
        "test_merge_growth",
        "test_pinning",
        "test_prefetch",
        "test_ray",
        "test_train_grpo",
    ),
    "test_tutorial_ray",
}


# Files that start compilers, type checkers, interpreters or threads by the dozen, or import
# transformers.
SLOW = {
    *("test_attention_kernels", "test_cli", "test_collator_trainer", "test_memory_limits"),
    *("test_packed_workers", "test_parity", "test_report", "test_threads"),
    *(
        "test_token_logprobs",
        "test_trl_laid_out_trainers",
        "test_trl_trainers",
        "test_tutorials",
        "test_typing",
    ),
}


def pytest_collection_modifyitems(items):
    # First, so that no worker is left with one at the end.
    items.sort(key=lambda item: item.path.stem not in SLOW)
    for item in items:
        for marker, files in (("alone", ALONE), ("slow", SLOW)):
            if item.path.stem in files:
                item.add_marker(marker)


def pytest_ignore_collect(collection_path, config):
    # Files that a marker leaves out are not even imported, nor Ray and transformers with them.
    marked = config.option.markexpr
    is_alone, is_slow = collection_path.stem in ALONE, collection_path.stem in SLOW
    if marked == "alone":
        return True if collection_path.is_file() and not is_alone else None
    is_out = ("not alone" in marked and is_alone) or ("not slow" in marked and is_slow)
    return True if is_out else None


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Exclude all objects imported so far, half a million of torch's, from collections."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # else its modules would not be torn down


def pytest_runtest_setup(item):
    for marker in item.iter_markers("gpu"):
        needed = marker.kwargs.get("count", 1)
        if gpus() < needed:
            pytest.skip("needs a GPU" if needed == 1 else f"needs {needed} GPUs")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Make skips of the errors about packages that are not installed."""
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, ImportError) and any(name in str(error) for name in ABSENT):
        skipped = pytest.skip.Exception(str(error)).with_traceback(error.__traceback__)
        call.excinfo = pytest.ExceptionInfo.from_exception(skipped)
    return (yield)


def gpus():
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
