"""Settings that tests ask for by name: 64-bit types on or off, in Meshwright and in JAX alike; which tests are slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from zlib import crc32

# JAX reads this when it is imported: the devices that programs for many devices are compared on.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import pytest

from meshwright.core.dtypes import config

try:
    import jax
except ModuleNotFoundError:  # `make lowest` runs tests without it
    jax = None
else:
    jax.config.update("jax_platforms", "cpu")


@contextmanager
def _wide(enabled: bool) -> Iterator[None]:
    before = config.enable_x64
    config.enable_x64 = enabled
    with jax.enable_x64(enabled) if jax else nullcontext():
        yield
    config.enable_x64 = before


@pytest.fixture
def x64() -> Iterator[None]:
    """Keep 64-bit types for the length of one test."""
    with _wide(True):
        yield


@pytest.fixture
def x32() -> Iterator[None]:
    """Narrow 64-bit types to 32-bit ones for the length of one test."""
    with _wide(False):
        yield


# Long comparisons with JAX, by file: one test in so many runs with the quick ones, the others are slow.
SAMPLED = {
    "transform/test_control_against_jax.py": 3,
    "frontend/test_numpy_against_jax.py": 2,
    "frontend/test_more_numpy.py": 2,
    "frontend/test_nn.py": 2,
    "random/test_random_against_jax.py": 2,
    "shard_map/test_against_jax_collectives.py": 2,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of the long comparisons to the slow tests. Run all checks of one case one after another, so that what
    JAX computed for one serves the next."""
    for item in items:
        one_in = SAMPLED.get("/".join(item.path.parts[-2:]), 1)
        if crc32(item.name.encode()) % one_in:
            item.add_marker(pytest.mark.slow)

    def order(item: pytest.Item) -> tuple[str, str, int, str]:
        callspec = getattr(item, "callspec", None)
        case = callspec.params.get("case") if callspec else None
        file = str(item.path)
        return (file, case.op.name, case.index, str(case.dtype)) if hasattr(case, "sample") else (file, "", 0, "")

    items.sort(key=order)
