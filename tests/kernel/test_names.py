"""Every public name of ``jax.experimental.pallas`` and ``.tpu`` is here, or is listed with the reason why not.

Of those that are here, only ``pl.Indirect`` is refused where it is used, as by JAX's interpreter.
"""

from __future__ import annotations

import importlib
import inspect

import jax
import jax.experimental.pallas
import jax.experimental.pallas.tpu
import numpy as np
import pytest

import meshwright as mw
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


def gathered(k, struct, debug):
    """A grid of blocks of eight rows that an array names."""
    spec = k[1].PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[k[0].BlockSpec((k[0].Indirect(8), 128), lambda i, rows: (rows[k[0].ds(i * 8, 8)], 0))],
        out_specs=k[0].BlockSpec((8, 128), lambda i, rows: (i, 0)),
    )

    def kernel(rows, x_ref, out_ref):
        out_ref[...] = x_ref[...]

    return k[0].pallas_call(kernel, struct((16, 128), np.float32), grid_spec=spec, **debug)


def test_blocks_of_rows_that_an_array_names_are_refused_here_and_by_jaxs_interpreter():
    arguments = np.arange(16, dtype=np.int32), np.zeros((16, 128), np.float32)
    theirs = jax.experimental.pallas, jax.experimental.pallas.tpu
    options = {"interpret": jax.experimental.pallas.tpu.InterpretParams()}
    with pytest.raises(ValueError, match="must return integer scalars"):
        gathered(theirs, jax.ShapeDtypeStruct, options)(*arguments)
    with pytest.raises(pltpu.KernelError) as error:
        gathered((pl, pltpu), mw.ShapeDtypeStruct, {})(*arguments)
    lines, first = inspect.getsourcelines(inspect.currentframe())
    line = first + next(n for n, text in enumerate(lines) if "ShapeDtypeStruct, {})(" in text)
    assert str(error.value) == (
        "A block has Indirect(block_size=8) for a dim.\n"
        f"  at:   test_names.py:{line}   gathered((pl, pltpu), mw.ShapeDtypeStruct, {{}})(*arguments)\n"
        "  why:  blocks are boxes here: rows that an array names come one by one\n"
        "  fix:  pl.BlockSpec((1, 128), lambda i, rows: (rows[i], 0)) over a grid of rows, which are prefetched"
    )
