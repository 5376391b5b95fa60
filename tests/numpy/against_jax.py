"""Run a call under Meshwright, computed at once and as a traced program, and under JAX, and compare all there is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optree

import meshwright.engine.namespace  # noqa: F401
import meshwright.numpy as mnp
from meshwright import lax, nn
from meshwright.core.check import check
from meshwright.core.trace import Array, Tracer, run, to_array, trace
from meshwright.core.types import TensorType

OURS = {"np": mnp, "lax": lax, "nn": nn}
THEIRS = {"np": jnp, "lax": jax.lax, "nn": jax.nn}


def draw(shape: tuple[int, ...], dtype: Any = "float32", low: float = -3.0, high: float = 3.0, seed: int = 0) -> Any:
    """Reproducible contents of any dtype."""
    random = np.random.default_rng([seed, *shape])
    kind = np.dtype(getattr(ml_dtypes, dtype) if isinstance(dtype, str) and hasattr(ml_dtypes, dtype) else dtype)
    drawn = random.uniform(low, high, shape)
    if kind == np.bool_:
        return drawn > 0
    if kind.kind == "c":
        return (drawn + 1j * random.uniform(low, high, shape)).astype(kind)
    if kind.kind == "u":
        drawn = np.abs(drawn)
    return np.asarray(drawn).astype(kind)


def _tolerance(dtype: Any) -> dict[str, float]:
    if dtype.kind in "biu":
        return {"rtol": 0, "atol": 0}
    size = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return {1: {"rtol": 0.2, "atol": 0.2}, 2: {"rtol": 2e-2, "atol": 2e-2}, 4: {"rtol": 2e-5, "atol": 2e-5}}.get(
        size, {"rtol": 1e-11, "atol": 1e-11}
    )


def _leaves(x: Any) -> list[Any]:
    return optree.tree_leaves(x) if isinstance(x, list | tuple | dict) else [x]


def same(ours: Any, theirs: Any, weak: bool = True) -> None:
    """Equal in structure, dtype, weakness, shape and (to rounding) contents."""
    mine, wanted = _leaves(ours), _leaves(theirs)
    assert len(mine) == len(wanted)
    for a, b in zip(mine, wanted, strict=True):
        if not isinstance(b, jax.Array):
            assert a == b, (a, b)
            continue
        assert isinstance(a, Array | Tracer), type(a)
        assert a.dtype == b.dtype, f"dtype {a.dtype}, JAX has {b.dtype}"
        assert a.shape == b.shape, f"shape {a.shape}, JAX has {b.shape}"
        if weak and b.dtype != bool:
            assert a.weak_type == b.weak_type, f"weak_type {a.weak_type}, JAX has {b.weak_type}"
        mine_, theirs_ = np.asarray(a), np.asarray(b)
        assert mine_.dtype == a.dtype
        if b.dtype.kind == "V":
            mine_, theirs_ = mine_.astype(np.float32), theirs_.astype(np.float32)
        np.testing.assert_allclose(mine_, theirs_, **_tolerance(b.dtype))


def compare(function: Any, *arrays: Any, weak: bool = True, traced: bool = True) -> None:
    """``function(namespace, *arrays)`` of both; ``namespace.np``, ``.lax`` and ``.nn`` are the two libraries."""
    theirs = function(_Names(THEIRS), *[jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in arrays])
    mine = [to_array(x) if isinstance(x, np.ndarray) else x for x in arrays]
    same(function(_Names(OURS), *mine), theirs, weak)
    if traced:
        same(run_traced(lambda *xs: function(_Names(OURS), *xs), *mine), theirs, weak)


class _Names:
    def __init__(self, modules: dict[str, Any]) -> None:
        self.__dict__.update(modules)


def run_traced(function: Any, *arguments: Any) -> Any:
    """The outputs of the checked program of a function of those arguments that are arrays."""
    arrays = [x for x in arguments if isinstance(x, Array)]
    structure: list[Any] = []

    def flat(*tracers: Any) -> list[Any]:
        rest = iter(tracers)
        out = function(*[next(rest) if isinstance(x, Array) else x for x in arguments])
        leaves, spec = optree.tree_flatten(out) if isinstance(out, list | tuple | dict) else ([out], None)
        structure.append((spec, [x if isinstance(x, Array | Tracer) else None for x in leaves], leaves))
        return [x for x in leaves if isinstance(x, Array | Tracer)]

    program, captured = trace(flat, [x.type for x in arrays])
    check(program)
    outs = iter(run(program, [*captured, *arrays]))
    spec, marks, leaves = structure[0]
    found = [next(outs) if mark is not None else leaf for mark, leaf in zip(marks, leaves, strict=True)]
    return found[0] if spec is None else optree.tree_unflatten(spec, found)


def program_text(function: Any, *types: TensorType) -> str:
    """The program of a function, as text without source lines."""
    program, _ = trace(lambda *xs: [function(*xs)], types)
    return check(program).to_text(sources=False)
