"""Every public name of ``jax.experimental.pallas`` and ``.tpu`` is here, or is listed with the reason why not."""

from __future__ import annotations

import importlib
import inspect

import jax
import jax.experimental.pallas
import jax.experimental.pallas.tpu
import pytest

from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu

_GLOBAL = "memory that outlives calls is GPUs'; here it goes from call to call as a result"
MISSING = {
    "pl": {
        "get_global": _GLOBAL,
        "pallas_call_p": "a primitive of JAX's programs; the module for JAX's imports has it",
    },
    "pltpu": {},
}
PAIRS = {"pl": (jax.experimental.pallas, pl), "pltpu": (jax.experimental.pallas.tpu, pltpu)}


@pytest.mark.parametrize("title", PAIRS)
def test_every_public_name_is_here_or_has_a_reason(title):
    theirs, ours = PAIRS[title]
    # Modules are imported by their names, and are there once somebody has.
    public = {name for name in dir(theirs) if not name.startswith("_") and not inspect.ismodule(getattr(theirs, name))}
    found = {name for name in public if hasattr(ours, name)}
    assert public - found <= set(MISSING[title]), sorted(public - found - set(MISSING[title]))
    assert not {name for name in MISSING[title] if hasattr(ours, name)}
    assert found <= set(ours.__all__)


@pytest.mark.parametrize("title", PAIRS)
def test_the_same_names_are_there_with_jaxs_imports(title):
    theirs, ours = PAIRS[title]
    stand_in = importlib.import_module(theirs.__name__.replace("jax.", "meshwright.jax.", 1))
    assert [name for name in ours.__all__ if getattr(stand_in, name, None) is not getattr(ours, name)] == []


def test_the_newest_names_of_semaphores_are_in_pl():
    for name in ("semaphore_signal", "semaphore_wait", "semaphore_read", "DeviceIdType", "get_barrier_semaphore"):
        assert getattr(pl, name) is getattr(pltpu, name)
    assert callable(pl.delay)
