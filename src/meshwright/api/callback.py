"""Callbacks: Python functions that a program calls with contents while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.arrays.static import static_flag
from meshwright.arrays.tracing import check_function, leaf_type, leaf_value
from meshwright.core import tree
from meshwright.core.program import Rule
from meshwright.core.source import here
from meshwright.core.trace import Array, Value
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.ops import callback as ops
from meshwright.ops.elementwise import stop_gradient

Function = Callable[..., Any]
METHODS = (None, "sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


def pure_callback(
    callback: Function,
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """What ``callback`` computes of the contents of arrays, as arrays of the shapes and dtypes given.

    It may be called any number of times, or not at all where nothing reads the result. Under ``vmap`` it is called for
    each example (``vmap_method="sequential"``), or once with the batch in front (``"expand_dims"``,
    ``"broadcast_all"``).

    >>> import meshwright as mw, meshwright.numpy as mnp, numpy as np
    >>> f = mw.jit(lambda x: pure_callback(np.sort, mw.ShapeDtypeStruct(x.shape, x.dtype), x) * 2)
    >>> f(mnp.array([3.0, 1.0]))
    Array([2., 6.], dtype=float32)
    """
    check_function(callback, "pure_callback", "mw.pure_callback(np.sort, x, x)")
    if vmap_method not in METHODS:
        raise MeshwrightError(
            f"pure_callback is given vmap_method={vmap_method!r}.",
            where=here(),
            why=f"it is one of {', '.join(repr(m) for m in METHODS)}",
            fix="vmap_method='sequential'",
        )
    return _call(ops.pure_callback, callback, result_shape_dtypes, args, kwargs, vmap_method)


def io_callback(
    callback: Function, result_shape_dtypes: Any, *args: Any, sharding: Any = None, ordered: bool = False, **kwargs: Any
) -> Any:
    """As ``pure_callback``, of a function that does more than compute: it is called once each time the program runs.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> seen = []
    >>> _ = mw.jit(lambda x: io_callback(lambda x: seen.append(float(x)), None, x))(2.0)
    >>> seen
    [2.0]
    """
    check_function(callback, "io_callback", "mw.io_callback(f, None, x)")
    static_flag(ordered, "ordered of io_callback")
    return _call(ops.io_callback, callback, result_shape_dtypes, args, kwargs, None)


def debug_callback(
    callback: Function | None = None, *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any
) -> Any:
    """Call a function with the contents of arrays each time the program runs, also inside of loops and derivatives.

    >>> import meshwright as mw
    >>> seen = []
    >>> f = mw.jit(mw.grad(lambda x: (debug_callback(lambda x: seen.append(float(x)), x), x * x)[1]))
    >>> float(f(3.0)), seen
    (6.0, [3.0])
    """
    if callback is None:
        return lambda f: debug_callback(f, *args, ordered=ordered, partitioned=partitioned, **kwargs)
    check_function(callback, "debug.callback", "mw.debug.callback(print, x)")

    def quiet(*xs: Any, **named: Any) -> None:
        callback(*xs, **named)

    quiet.__name__ = getattr(callback, "__name__", "callback")
    return _call(ops.debug_callback, quiet, None, args, kwargs, None)


def debug_print(
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> None:
    """Print a text with the contents of arrays in it, each time the program runs.

    >>> import meshwright as mw
    >>> f = mw.jit(lambda x: (debug_print("x is {} and {y}", x, y=2 * x), x + 1)[1])
    >>> float(f(1.0))
    x is 1.0 and 2.0
    2.0
    """
    text = " ".join(["{}"] * len(args)) if fmt is None else fmt
    if not skip_format_check:
        try:
            text.format(*args, **kwargs)
        except (IndexError, KeyError) as error:
            raise ShapeError(
                f"debug.print is given {text!r}, which asks for {error}.",
                where=here(),
                why="each {} stands for an argument after the text",
                fix='mw.debug.print("x is {}", x)',
            ) from None
        except Exception:  # a format of numbers, which traced values do not take before they have contents
            pass
    debug_callback(lambda *xs, **named: print(text.format(*xs, **named)), *args, ordered=ordered, **kwargs)


def inspect_array_sharding(value: Any, *, callback: Callable[[Any], None]) -> None:
    """Call a function with the sharding of a value: of an array, where it is; of a traced one, as its type says.

    >>> import meshwright.numpy as mnp
    >>> inspect_array_sharding(mnp.ones(3), callback=print)
    SingleDeviceSharding(device=CpuDevice(id=0))
    """
    check_function(callback, "inspect_array_sharding", "mw.debug.inspect_array_sharding(x, callback=print)")
    for leaf in tree.leaves(value):
        x = leaf_value(leaf, "what is inspected")
        callback(x.sharding if x.__class__ is Array else x.type.sharding)  # type: ignore[attr-defined]


def _call(op: Any, callback: Function, shapes: Any, args: Any, kwargs: Any, method: str | None) -> Any:
    leaves, structure = tree.flatten((args, kwargs))
    values: list[Value] = [leaf_value(x, "an argument of a callback") for x in leaves]
    values = [stop_gradient(x) for x in values] if op is ops.debug_callback else values
    wanted, out_tree = tree.flatten(shapes)
    types = tuple(_plain(x) for x in wanted)

    def flat(*contents: Any) -> list[Any]:
        given = tree.unflatten(structure, [Array(x, TensorType(x.shape, x.dtype)) for x in contents])
        found = callback(*given[0], **given[1])
        if not types:
            return []
        outs, found_tree = tree.flatten(found)
        if found_tree != out_tree:
            raise ShapeError(
                f"The callback {getattr(callback, '__name__', 'given')!r} returned another tree than it was to.",
                where=here(),
                why=f"result_shape_dtypes is {out_tree}, and the result is {found_tree}",
                fix="return arrays in the containers of result_shape_dtypes",
            )
        return [np.asarray(x) for x in outs]

    rule = Rule(getattr(callback, "__name__", type(callback).__name__), flat)
    vectorized = method in ("expand_dims", "broadcast_all", "legacy_vectorized")
    outs = op(*values, function=rule, out=types, rows=(), vectorized=vectorized)
    return tree.unflatten(out_tree, list(outs))


def _plain(x: Any) -> TensorType:
    t = leaf_type(x)
    return TensorType(t.shape, t.dtype)
