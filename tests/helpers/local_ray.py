"""Ray on this machine alone, for tests that need no nodes of their own."""

import contextlib

import pytest


@contextlib.contextmanager
def local_ray(num_cpus, **options):
    """Start Ray, and no cluster that happens to run; stop it at the end."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options = {"include_dashboard": False, "log_to_driver": False, **options}
        ray.init("local", num_cpus=num_cpus, object_store_memory=80 << 20, **options)
        try:
            yield ray
        finally:
            ray.shutdown()
