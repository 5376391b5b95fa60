"""Settings that tests ask for by name: 64-bit types on or off, in Meshwright and in JAX alike; which tests are slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from zlib import crc32

# JAX reads these when it is imported: the devices that programs for many devices are compared on, and instructions that
# all machines have, for numbers that are the same on all: some round a product and a sum of float16 once, others twice.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8 --xla_cpu_max_isa=AVX2"
)

import pytest
from hypothesis import settings

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


# Long tables of cases, by file: about one case in so many runs with the quick tests, the others are slow.
SAMPLED = {
    "device/test_to_mesh.py": 2,
    "device/test_transforms.py": 4,
    "partition/test_matmul_plan.py": 2,
    "engine/test_compile.py": 2,
    "interop/test_hlo.py": 2,
    "interop/test_hlo_models.py": 2,
    "interop/test_jax.py": 2,
    "interop/test_load_and_dump.py": 2,
    "kernel/test_conformance_devices.py": 2,
    "kernel/test_library.py": 4,
    "kernel/test_mutants.py": 2,
    "models/test_models_against_jax.py": 3,
    "numpy/test_indexing_against_jax.py": 2,
    "numpy/test_more_numpy.py": 2,
    "numpy/test_nn.py": 2,
    "numpy/test_numpy_against_jax.py": 6,
    "numpy/test_operators.py": 2,
    "numpy/test_single_calls.py": 5,
    "numpy/test_transformed_against_jax.py": 2,
    "ops/test_contraction.py": 2,
    "ops/test_every_op.py": 7,
    "ops/test_indexing.py": 2,
    "ops/test_reduction.py": 2,
    "partition/test_bools_and_nothing.py": 2,
    "partition/test_every_layout.py": 3,
    "partition/test_every_op.py": 3,
    "partition/test_explicit_against_jax.py": 2,
    "partition/test_explicit_gradients.py": 2,
    "partition/test_models.py": 4,
    "partition/test_reshard_on_jax.py": 2,
    "partition/test_reshard_pairs.py": 2,
    "propagate/test_reasons.py": 3,
    "random/test_random_against_jax.py": 6,
    "search/test_search.py": 2,
    "shard_map/test_against_jax_collectives.py": 4,
    "shard_map/test_against_jax_control.py": 4,
    "shard_map/test_against_jax_models.py": 4,
    "shard_map/test_against_jax_transforms.py": 4,
    "shard_map/test_beyond_jax.py": 4,
    "simulate/test_memory.py": 2,
    "simulate/test_published_runs.py": 2,
    "transform/test_checkpoint_policies.py": 3,
    "transform/test_composition.py": 2,
    "transform/test_control_against_jax.py": 8,
}


def pytest_configure(config: pytest.Config) -> None:
    """The quick tests draw the same random cases in every run, the others new ones."""
    settings.register_profile("quick", derandomize=True)
    if config.option.markexpr == "not slow":
        settings.load_profile("quick")


def _sample(items: list[pytest.Item]) -> None:
    """Leave most cases of long tables to the slow tests: all checks of a case, and no op without a case."""
    seen: set[tuple[str, str]] = set()
    for item in items:
        one_in = SAMPLED.get("/".join(item.path.parts[-2:]), 1)
        if one_in == 1 or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        case = item.callspec.params.get("case")
        op = case.op.name if hasattr(case, "sample") else ""
        chosen = crc32(item.callspec.id.encode()) % one_in == 0 or (item.originalname, op) not in seen
        if not chosen:
            item.add_marker(pytest.mark.slow)
        elif not any(item.iter_markers("slow")):
            seen.add((item.originalname, op))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all checks of one case one after another, so that what JAX computed for one serves the next."""
    _sample(items)

    def order(item: pytest.Item) -> tuple[str, str, int, str]:
        callspec = getattr(item, "callspec", None)
        case = callspec.params.get("case") if callspec else None
        file = str(item.path)
        return (file, case.op.name, case.index, str(case.dtype)) if hasattr(case, "sample") else (file, "", 0, "")

    items.sort(key=order)
