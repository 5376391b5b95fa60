"""Functions between here and JAX: ``from_jax`` reads what JAX traces, ``to_jax`` runs on XLA what was compiled here,
and ``jit`` is both: a function of JAX that is partitioned here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.arrays.tracing import make_program
from meshwright.compile.compiled import Compiled
from meshwright.core import tree
from meshwright.core.dtypes import KEY
from meshwright.core.source import here
from meshwright.engine.device_arrays import needed
from meshwright.engine.xla import on_devices, runner
from meshwright.errors import MeshwrightError, ShapeError, TreeError
from meshwright.interop.jax_jit import jit
from meshwright.interop.jaxpr.containers import register_containers
from meshwright.interop.jaxpr.function import reading

__all__ = ["from_jax", "jit", "register_containers", "to_jax"]


def from_jax(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of JAX as a function of Meshwright, which can be called, jitted, differentiated and laid out.

    It takes and returns the containers of ``f``. JAX traces it for the shapes it meets; each equation keeps the line of
    the user's that it came from. With arguments (arrays of either side, or ``ShapeDtypeStruct``s), the program of the
    function for these: its inputs are the leaves of the arguments, its outputs those of the results.

    >>> import jax.numpy as jnp, meshwright as mw, meshwright.numpy as mnp
    >>> f = from_jax(lambda x: (jnp.sin(x) * 2).sum())
    >>> mw.grad(f)(mnp.zeros(3))
    Array([2., 2., 2.], dtype=float32)
    >>> print(from_jax(lambda x: jnp.sin(x) * 2, mnp.ones(3)).to_text(sources=False))
    program(a: f32[3]) {
      b: f32[3] = sin a
      c: f32[3] = mul b 2.0:f32
      return c
    }
    """
    needed()
    function = reading(f)
    return make_program(function)(*args, **kwargs) if args or kwargs else function


def to_jax(compiled: Compiled, devices: Sequence[Any] | None = None) -> Callable[..., Any]:
    """A function of JAX arrays that runs on XLA what was compiled here, with the collectives that were chosen here.

    ``devices`` are JAX's, in the order of the mesh; by default the first ones. Arguments are put where the compiled
    function wants them, and results are arrays of JAX. Under ``jax.jit`` it is an op like others, without a derivative.

    >>> import jax.numpy as jnp, meshwright as mw, meshwright.numpy as mnp
    >>> f = to_jax(mw.jit(lambda x: mnp.tanh(x).sum()).lower(mnp.ones(3)).compile())
    >>> print(f"{f(jnp.ones(3)):.4f}")
    2.2848
    """
    needed()
    import jax

    if not isinstance(compiled, Compiled):
        raise MeshwrightError(
            f"to_jax is given a {type(compiled).__name__}.",
            where=here(),
            why="it runs what was compiled, for arguments that are known",
            fix="to_jax(mw.jit(f).lower(*args).compile())",
        )
    placed = compiled._executable.placed
    types = [*compiled.global_program.in_types, *compiled.global_program.out_types]
    if any(t.dtype == KEY for t in types):
        raise MeshwrightError(
            "to_jax is given a program that takes or returns random keys of their own dtype.",
            where=here(),
            why="JAX has keys of its own, and these are not numbers for it",
            fix="random.key_data(keys) outside, and random.wrap_key_data(words) inside",
        )
    found = on_devices(compiled.global_program if placed is None else placed.program, placed is not None, devices)
    run, outs = runner(found).function, compiled._executable.out_tree

    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != compiled._in_tree:
            raise TreeError(
                "This compiled function cannot take these arguments.",
                where=here(),
                why=f"it was compiled for the containers {compiled._in_tree}, and these are {in_tree}",
                fix="to_jax(jitted.lower(*args).compile()) for these arguments; "
                "mw.interop.jax.register_containers(x) makes classes known that JAX knows",
            )
        leaves = [_array(x) for x in leaves]
        shapes = [(tuple(np.shape(x)), np.dtype(x.dtype)) for x in leaves]
        if shapes != [(t.shape, t.dtype) for t in found.program.in_types]:
            raise ShapeError(
                f"This compiled function cannot take ({', '.join(f'{d}{list(s)}' for s, d in shapes)}).",
                where=here(),
                why=f"it was compiled for ({', '.join(map(str, found.program.in_types))})",
                fix="to_jax(jitted.lower(*args).compile()) for these arguments",
            )
        traced = any(isinstance(x, jax.core.Tracer) for x in leaves)
        return tree.unflatten(outs, found.inside(*leaves) if traced else run(*leaves))

    return function


def _array(x: Any) -> Any:
    """A leaf as an array of either side; an error if it is none."""
    import jax

    if hasattr(x, "dtype"):
        return x
    try:
        return jax.numpy.asarray(x)
    except TypeError:
        raise TreeError(
            f"An argument is not an array or a number: its type is {type(x).__name__}.",
            where=here(),
            why="the leaves of what goes into a compiled function must be arrays or numbers",
            fix="pass an array; mw.interop.jax.register_containers(x) makes a container known that JAX knows",
        ) from None
