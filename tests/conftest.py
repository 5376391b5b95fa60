"""Settings that tests ask for by name: 64-bit types on or off, in Meshwright and in JAX alike."""

from __future__ import annotations

import os
from collections.abc import Iterator

# JAX reads this when it is imported: the devices that programs for many devices are compared on.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import pytest

from meshwright.core.dtypes import config

jax.config.update("jax_platforms", "cpu")


@pytest.fixture
def x64() -> Iterator[None]:
    """Keep 64-bit types for the length of one test."""
    before = config.enable_x64
    config.enable_x64 = True
    with jax.enable_x64(True):
        yield
    config.enable_x64 = before


@pytest.fixture
def x32() -> Iterator[None]:
    """Narrow 64-bit types to 32-bit ones for the length of one test."""
    before = config.enable_x64
    config.enable_x64 = False
    with jax.enable_x64(False):
        yield
    config.enable_x64 = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all checks of one case one after another, so that what JAX computed for one serves the next."""

    def order(item: pytest.Item) -> tuple[str, str, int, str]:
        callspec = getattr(item, "callspec", None)
        case = callspec.params.get("case") if callspec else None
        file = str(item.path)
        return (file, case.op.name, case.index, str(case.dtype)) if hasattr(case, "sample") else (file, "", 0, "")

    items.sort(key=order)
