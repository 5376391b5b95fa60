"""One equation of JAX by itself: as a function of JAX, and as a program by way of StableHLO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshwright.core.program import Eqn, Program
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.interop.mlir import load

_loaded: dict[Any, Program] = {}


def alone(eqn: Any) -> Callable[..., Any]:
    """One equation as a function of JAX, of all its inputs, numbers too."""
    from jax.extend import core

    kinds: Any = core
    inputs = [kinds.Var(x.aval) for x in eqn.invars]
    names = kinds.DebugInfo(
        "from_jax", eqn.primitive.name, tuple(f"x{n}" for n in range(len(inputs))), ("result",) * len(eqn.outvars)
    )
    jaxpr = kinds.Jaxpr((), inputs, eqn.outvars, [eqn.replace(invars=inputs)], eqn.effects, names)
    return kinds.jaxpr_as_fun(kinds.ClosedJaxpr(jaxpr, ()))  # type: ignore[no-any-return]


def stablehlo_of(eqn: Any) -> Program:
    """One equation as a program, by way of the StableHLO that JAX lowers it to."""
    import jax

    key = _key(eqn)
    if key in _loaded:
        return _loaded[key]
    make: Any = jax.ShapeDtypeStruct
    types = [make(x.aval.shape, x.aval.dtype) for x in eqn.invars]
    try:
        program = load(jax.jit(alone(eqn), keep_unused=True).lower(*types).as_text())
    except MeshwrightError as error:
        raise MeshwrightError(
            f"JAX's {eqn.primitive.name} cannot become part of a program.",
            where=here(),
            why=f"{error.what} {error.why or ''}".strip(),
            fix="compute it outside of the function, or of others that jax.lax has",
        ) from None
    eqns = [Eqn(eqn.op, eqn.inputs, eqn.params, eqn.outputs, None) for eqn in program.eqns]  # lines are the caller's
    program = replace(program, eqns=tuple(eqns))
    if key is not None:
        _loaded[key] = program
    return program


def _key(eqn: Any) -> Any:
    """What the program of an equation depends on; None if that cannot be compared."""
    try:
        found = eqn.primitive.name, tuple(sorted(eqn.params.items())), tuple(str(x.aval) for x in eqn.invars)
        hash(found)
    except TypeError:
        return None
    return found
