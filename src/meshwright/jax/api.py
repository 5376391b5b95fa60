"""Transformations by JAX's names and arguments. What only says how XLA is to compile is taken and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np

from meshwright.api import custom
from meshwright.api import grad as gradients
from meshwright.api import jacobian as jacobians
from meshwright.api import vmap as batching
from meshwright.api.reshard import reshard as _reshard
from meshwright.arrays.device_put import device_put
from meshwright.arrays.tracing import ShapeDtypeStruct, leaf_value, make_program, trace_flat
from meshwright.arrays.tracing import typeof as _type_of
from meshwright.compile.jit import jit as _jit
from meshwright.core import tree
from meshwright.core.source import here, named_scope
from meshwright.core.trace import Array, Value, state
from meshwright.core.trace import run as run_program
from meshwright.errors import MeshwrightError
from meshwright.jax.core import ShapedArray
from meshwright.jax.lax.primitives import asked_of_primitives
from meshwright.sharding.device import Device
from meshwright.sharding.mesh import get_mesh
from meshwright.sharding.named import NamedSharding

Function = Callable[..., Any]


def jit(
    fun: Function | None = None,
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    device: Device | None = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
) -> Any:
    """``mw.jit``; ``device`` is where the arguments are put.

    >>> float(jit(lambda x: x + 1, inline=True)(1.0))
    2.0
    """
    options = {
        "in_shardings": in_shardings if device is None else device,
        "out_shardings": out_shardings,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames if isinstance(static_argnames, str | None) else tuple(static_argnames),
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames if isinstance(donate_argnames, str | None) else tuple(donate_argnames),
    }
    return (lambda f: jit(f, **options)) if fun is None else _jit(fun, **options)


def grad(
    fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False, reduce_axes: Sequence[str] = (),
) -> Function:  # fmt: skip
    """``mw.grad``."""
    return gradients.grad(fun, argnums, has_aux, holomorphic, allow_int)


def value_and_grad(
    fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False, reduce_axes: Sequence[str] = (),
) -> Function:  # fmt: skip
    """``mw.value_and_grad``."""
    return gradients.value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)


def vjp(fun: Function, *primals: Any, has_aux: bool = False, reduce_axes: Sequence[str] = ()) -> Any:
    """``mw.vjp``."""
    return gradients.vjp(fun, *primals, has_aux=has_aux)


def linear_transpose(fun: Function, *primals: Any, reduce_axes: Sequence[str] = ()) -> Function:
    """``mw.linear_transpose``."""
    return gradients.linear_transpose(fun, *primals)


def jacobian(
    fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:  # fmt: skip
    """``mw.jacrev``."""
    return jacobians.jacrev(fun, argnums, has_aux, holomorphic, allow_int)


def vmap(
    fun: Function, in_axes: Any = 0, out_axes: Any = 0, axis_name: Any = None, axis_size: int | None = None,
    spmd_axis_name: Any = None, sum_match: bool = False,
) -> Function:  # fmt: skip
    """``mw.vmap``."""
    if sum_match:
        raise MeshwrightError(
            "vmap is given sum_match=True.",
            where=here(),
            why="a result whose out_axes is None is the same for all examples here",
            fix="mnp.sum over the batch after vmap",
        )
    return batching.vmap(fun, in_axes, out_axes, axis_name, axis_size, spmd_axis_name)


def checkpoint(
    fun: Function | None = None, *, prevent_cse: Any = True, policy: Any = None, static_argnums: Any = (),
    static_argnames: Any = (), concrete: bool = False,
) -> Any:  # fmt: skip
    """``mw.checkpoint``."""
    flag = prevent_cse if isinstance(prevent_cse, bool) else any(prevent_cse)
    asked = asked_of_primitives(policy)
    return custom.checkpoint(
        fun, prevent_cse=flag, policy=asked, static_argnums=static_argnums, static_argnames=static_argnames
    )


def fwd_and_bwd(
    fun: Function, argnums: int | Sequence[int], has_aux: bool = False, jitted: bool = True
) -> tuple[Function, Function]:
    """The two halves of a derivative: the value with what the second needs, and the cotangents from that.

    >>> forward, backward = fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
    >>> out, kept = forward(2.0, 3.0)
    >>> [float(ct) for ct in backward(kept, 1.0)]
    [3.0, 2.0]
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def forward(*args: Any, **kwargs: Any) -> Any:
        def of_selected(*chosen: Any) -> Any:
            full = list(args)
            for n, x in zip(numbers, chosen, strict=True):
                full[n] = x
            return fun(*full, **kwargs)

        return gradients.vjp(of_selected, *(args[n] for n in numbers), has_aux=has_aux)

    def backward(kept: Function, ct: Any) -> Any:
        found = kept(ct)
        return found[0] if isinstance(argnums, int) else found

    return forward, backward


def custom_gradient(fun: Function) -> Function:
    """A function that returns its value and the function of cotangents that is its derivative.

    >>> f = custom_gradient(lambda x: (x * x, lambda ct: (10 * x * ct,)))
    >>> float(gradients.grad(f)(3.0))
    30.0
    """

    @wraps(fun)
    def value_of(*args: Any) -> Any:
        called = custom.custom_vjp(lambda *xs: fun(*xs)[0])

        def forward(*xs: Any) -> Any:
            return fun(*xs)[0], xs

        def backward(kept: Any, ct: Any) -> Any:
            found = fun(*kept)[1](ct)
            return found if isinstance(found, tuple | list) else (found,)

        called.defvjp(forward, backward)
        return called(*args)

    return value_of


def closure_convert(fun: Function, *example_args: Any) -> tuple[Function, list[Any]]:
    """A function without the traced values that ``fun`` closes over, and these, which it takes as further arguments.

    >>> f, outside = closure_convert(lambda x: x + 1, 1.0)
    >>> float(f(2.0, *outside))
    3.0
    """
    leaves, structure = tree.flatten((example_args, {}))
    found = trace_flat(fun, structure, [leaf_value(x, "an argument").type for x in leaves])
    kept = [x for x in found.captured if not isinstance(x, Array)]

    def converted(*args: Any) -> Any:
        from_outside = iter(args[len(example_args) :])
        given = [x if isinstance(x, Array) else next(from_outside) for x in found.captured]
        own = [leaf_value(x, "an argument") for x in tree.leaves((args[: len(example_args)], {}))]
        return tree.unflatten(found.out_tree, run_program(found.program, [*given, *own]))

    return converted, kept


def make_jaxpr(
    fun: Function, static_argnums: int | Sequence[int] = (), axis_env: Any = None, return_shape: bool = False
) -> Function:
    """The program of a function for given arguments: Meshwright's own, which prints in its own notation.

    >>> print(make_jaxpr(lambda x: x + 1)(1.0).to_text(sources=False))
    program(a: ~f32[]) {
      b: ~f32[] = add a 1.0
      return b
    }
    """
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    @wraps(fun)
    def maker(*args: Any, **kwargs: Any) -> Any:
        fixed = {n % len(args): args[n] for n in numbers}
        rest = [x for n, x in enumerate(args) if n not in fixed]

        def of_rest(*xs: Any, **named: Any) -> Any:
            given = iter(xs)
            return fun(*(fixed[n] if n in fixed else next(given) for n in range(len(args))), **named)

        program = make_program(of_rest)(*rest, **kwargs)
        return (program, eval_shape(of_rest, *rest, **kwargs)) if return_shape else program

    return maker


def eval_shape(fun: Function, *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes that a function returns; over Explicit axes, with their shardings."""
    leaves, structure = tree.flatten((args, kwargs))
    found = trace_flat(fun, structure, [_leaf(x) for x in leaves])
    outs = [ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak) for t in found.program.out_types]
    return tree.unflatten(found.out_tree, outs)


def _leaf(x: Any) -> Any:
    if hasattr(x, "type"):
        return x.type
    if hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, np.ndarray):  # what only looks like an array
        return ShapeDtypeStruct(x.shape, x.dtype).type
    return leaf_value(x, "an argument").type


def typeof(x: Any) -> ShapedArray:
    """The type of a value: shape, dtype, ``sharding`` with a ``spec`` and a ``mesh``, and ``vma``, what it varies over.

    >>> import meshwright.numpy as mnp
    >>> typeof(mnp.ones((2, 3))).sharding.spec
    P(None, None)
    """
    return ShapedArray.of(x if isinstance(x, Value | ShapeDtypeStruct) else leaf_value(x, "a value"), _type_of(x))


def reshard(xs: Any, out_shardings: Any) -> Any:
    """``mw.reshard``."""
    return _reshard(xs, out_shardings)


def named_call(fun: Function, *, name: str | None = None) -> Function:
    """``fun`` in a ``named_scope`` of its own name, or of the one given."""
    return named_scope(name or str(getattr(fun, "__name__", "function")))(fun)


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Inside, ops on known values compute at once, whatever is being traced around it.

    >>> import meshwright.numpy as mnp
    >>> @jit
    ... def f(x):
    ...     with ensure_compile_time_eval():
    ...         n = int(mnp.sum(mnp.ones(3)))
    ...     return x * n
    >>> float(f(2.0))
    6.0
    """
    before, state.builder = state.builder, None
    try:
        yield
    finally:
        state.builder = before


def copy_to_host_async(x: Any) -> Any:
    """``x``: arrays are on the host already."""
    return x


def live_arrays(platform: str | None = None) -> list[Any]:
    """An empty list: arrays belong to Python, and nothing keeps a list of them."""
    return []


def shard_alike(x: Any, y: Any) -> tuple[Any, Any]:
    """Two arrays laid out in the same way: as the first lies, if it was put somewhere, else as the second.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> place = mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x"))
    >>> shard_alike(mw.device_put(mnp.ones(2), place), mnp.ones(2))[1].sharding == place
    True
    """
    for one, other in ((x, y), (y, x)):
        place = getattr(one, "_sharding", None) if isinstance(one, Array) else None
        if isinstance(place, NamedSharding):
            moved = device_put(other, place)
            return (x, moved) if one is x else (moved, y)
    mesh = get_mesh()
    if mesh is not None and isinstance(x, Value) and x.type.sharding is not None:
        return x, _reshard(y, typeof(x).sharding)
    return x, y
