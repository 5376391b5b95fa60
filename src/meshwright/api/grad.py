"""grad and its relatives, by tracing a function, linearizing its program and transposing what is linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from meshwright.arrays.static import static_flag
from meshwright.arrays.tracing import (
    TracedFunction,
    argument_numbers,
    check_function,
    leaf_type,
    leaf_value,
    trace_flat,
)
from meshwright.core import dtypes, tree
from meshwright.core.source import here
from meshwright.core.trace import Array, Value, run
from meshwright.core.types import TensorType
from meshwright.errors import DifferentiationError, TreeError
from meshwright.ops.basic import convert, zeros
from meshwright.transform.jvp import Linearized, jvp_program, linearize_program
from meshwright.transform.transpose import transpose_program

Function = Callable[..., Any]


def _trace_on(
    function: Function, args: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> tuple[TracedFunction, list[Value]]:
    leaves, in_tree = tree.flatten((tuple(args), kwargs or {}))
    names = tree.argument_names(args, kwargs)
    values = [leaf_value(x, name) for x, name in zip(leaves, names, strict=True)]
    return trace_flat(function, in_tree, [v.type for v in values], values), values


def _differentiable(x: Value) -> bool:
    return dtypes.is_inexact(x.type.dtype)


def _vjp_values(
    traced: TracedFunction, values: Sequence[Value]
) -> tuple[list[Value], Callable[[Sequence[Value | None]], list[Value | None]]]:
    """The outputs, and the map from output cotangents to input cotangents (None where zero)."""
    active = [False] * len(traced.captured) + [_differentiable(x) for x in values]
    outs, linear = linearize_program(traced.program, [*traced.captured, *values], active)

    def pull(cts: Sequence[Value | None]) -> list[Value | None]:
        found = iter(_transpose_linear(linear, cts))
        return [next(found) if _differentiable(x) else None for x in values]

    return outs, pull


def _transpose_linear(linear: Linearized, cts: Sequence[Value | None]) -> list[Value | None]:
    n = len(linear.residuals)
    inputs = len(linear.program.inputs) - n
    nonzero = [ct for ct, kept in zip(cts, linear.nonzero, strict=True) if kept]
    flags = [False] * n + [True] * inputs
    return transpose_program(linear.program, flags, [*linear.residuals, *[None] * inputs], nonzero)[n:]


def argument_positions(numbers: Sequence[int], count: int, asked: str, call: str) -> list[int]:
    """Where the arguments to differentiate stand among ``count``, each once."""
    for n in numbers:
        if not -count <= n < count:
            raise DifferentiationError(
                f"{asked} is asked for argument {n}, but the call has {count} positional arguments.",
                where=here(),
                why="argnums counts positional arguments from 0",
                fix=f"{call.format(count - 1)}, or pass the argument by position",
            )
    positions = [n % count for n in numbers]
    if len(set(positions)) != len(positions):
        raise DifferentiationError(
            f"{asked} is asked for one argument twice: argnums={tuple(numbers)}.",
            where=here(),
            why="each argument has one derivative",
            fix=call.format(tuple(dict.fromkeys(positions))),
        )
    return positions


def value_and_grad(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """A function that returns ``(value, gradient)`` of a scalar function.

    ``argnums`` says which positional arguments to differentiate; with ``has_aux`` the function returns
    ``(value, aux)`` and so does the result's first entry. With ``allow_int`` arguments may be integers, whose gradients
    are NumPy arrays of dtype ``float0``.

    >>> import meshwright.numpy as mnp
    >>> value, gradient = value_and_grad(lambda x: mnp.sum(x**2))(mnp.array([1.0, 2.0]))
    >>> float(value), gradient.tolist()
    (5.0, [2.0, 4.0])
    """
    check_function(fun, "grad")
    has_aux = static_flag(has_aux, "has_aux of grad")
    holomorphic = static_flag(holomorphic, "holomorphic of grad")
    numbers = argument_numbers(argnums, "grad", "argnums")

    @wraps(fun)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        positions = argument_positions(numbers, len(args), "grad", "mw.grad(f, argnums={})")

        def of_selected(*selected: Any) -> Any:
            full = list(args)
            for n, x in zip(positions, selected, strict=True):
                full[n] = x
            out = fun(*full, **kwargs)
            if has_aux and not (isinstance(out, tuple) and len(out) == 2):
                raise TreeError(
                    "With has_aux=True the function must return a pair (value, aux).",
                    where=here(),
                    why=f"it returned {_describe(out)}",
                    fix="return loss, aux",
                )
            return out

        traced, values = _trace_on(of_selected, [args[n] for n in positions])
        _check_inputs(values, [args[n] for n in positions], positions, holomorphic, allow_int)
        n_main = (
            1 if not has_aux else tree.structure(tree.unflatten(traced.out_tree, traced.program.outputs)[0]).num_leaves
        )
        _check_output(traced.program.out_types[:n_main], traced, has_aux, holomorphic)
        outs, pull = _vjp_values(traced, values)
        seed = Array(np.ones((), outs[0].dtype), TensorType((), outs[0].dtype))
        cts = pull([seed, *[None] * (len(outs) - 1)])
        grads = [zeros(x.type) if ct is None else _strengthen(ct, x.type) for ct, x in zip(cts, values, strict=True)]
        grads = [_beside(ct, x) if _differentiable(x) else _float0(x) for ct, x in zip(grads, values, strict=True)]
        gradient = tree.unflatten(tree.structure(tuple(args[n] for n in positions)), grads)
        return tree.unflatten(traced.out_tree, outs), gradient[0] if isinstance(argnums, int) else gradient

    return differentiated


def _float0(x: Value) -> Any:
    """The derivative of an integer."""
    return np.zeros(x.shape, dtypes.FLOAT0)


def grad(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """A function that returns the gradient of a scalar function (and its aux, with ``has_aux``).

    >>> float(grad(lambda x: x**3)(2.0))
    12.0
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    @wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def _beside(ct: Value, x: Value) -> Value:
    """A gradient on the devices of what it is the gradient of, where its type says how it lies there."""
    if ct.__class__ is Array and x.__class__ is Array and ct.type.sharding is not None and not ct.committed:  # type: ignore[attr-defined]
        return Array(ct.data, ct.type, x._sharding)
    return ct


def _strengthen(ct: Value, type: TensorType) -> Value:
    """A gradient has the dtype and weakness of what it is the gradient of."""
    same = ct.type.dtype == type.dtype and ct.type.weak == type.weak
    return ct if same else convert(ct, dtype=type.dtype, weak=type.weak)


def _check_inputs(
    values: Sequence[Value], args: Sequence[Any], positions: Sequence[int], holomorphic: bool, allow_int: bool
) -> None:
    names = [f"argument {n}{path}" for n, arg in zip(positions, args, strict=True) for path in tree.path_names(arg)]
    for value, name in zip(values, names, strict=True):
        if not _differentiable(value) and not allow_int:
            raise DifferentiationError(
                f"grad needs real inputs, but {name} is {value.type}.",
                where=here(),
                why="integers and booleans have no derivative",
                fix="x.astype('float32'), or leave the argument out of argnums",
            )
        if holomorphic and not dtypes.is_complex(value.type.dtype):
            raise DifferentiationError(
                f"grad of a holomorphic function needs complex inputs, but {name} is {value.type}.",
                where=here(),
                why="holomorphic=True says that the derivative is a complex number",
                fix="leave holomorphic out, or x.astype('complex64')",
            )


def _check_output(types: Sequence[TensorType], traced: TracedFunction, has_aux: bool, holomorphic: bool) -> None:
    wanted = has_aux or traced.out_tree.num_leaves == 1
    if len(types) != 1 or not wanted:
        raise DifferentiationError(
            f"grad needs a function that returns one scalar, but this one returns {traced.out_tree.num_leaves} values.",
            where=here(),
            why="a gradient is the derivative of one number",
            fix="return the scalar alone, or (scalar, aux) with has_aux=True",
        )
    out = types[0]
    if out.shape != ():
        raise DifferentiationError(
            f"grad needs a function that returns a scalar, but this one returns {out}.",
            where=here(),
            why="a gradient is the derivative of one number",
            fix="reduce the result, for instance mnp.sum(result), or use mw.jacrev / mw.vjp",
        )
    if not dtypes.is_inexact(out.dtype) or (dtypes.is_complex(out.dtype) and not holomorphic):
        raise DifferentiationError(
            f"grad needs a function that returns a real scalar, but this one returns {out}.",
            where=here(),
            why="integers and booleans have no derivative, and complex results need holomorphic=True",
            fix="return a float, for instance result.astype('float32')",
        )


def _describe(out: Any) -> str:
    return f"a tuple of {len(out)}" if isinstance(out, tuple) else f"a {type(out).__name__.lower()}"


def jvp(fun: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """``fun(*primals)`` and its derivative in the direction ``tangents``; with ``has_aux``, also the aux.

    >>> out, tangent = jvp(lambda x: x**2, (3.0,), (1.0,))
    >>> float(out), float(tangent)
    (9.0, 6.0)
    """
    check_function(fun, "jvp", "mw.jvp(f, (x,), (t,))")
    has_aux = static_flag(has_aux, "has_aux of jvp")
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise TreeError(
            "jvp takes its primals and tangents as tuples.",
            where=here(),
            why=f"it was given {_describe(primals)} and {_describe(tangents)}",
            fix="mw.jvp(f, (x,), (t,))",
        )
    traced, values = _trace_on(fun, primals)
    leaves, structure = tree.flatten((tuple(tangents), {}))
    if structure != tree.structure((tuple(primals), {})):
        raise TreeError(
            "The tangents of jvp have another structure than the primals.",
            where=here(),
            why=f"{structure} is not {tree.structure((tuple(primals), {}))}",
            fix="give one tangent of the same shape and dtype for each primal",
        )
    ts = [_fit(x.type, t, "tangent", "primal") for x, t in zip(values, leaves, strict=True)]
    outs, out_ts = jvp_program(traced.program, [*traced.captured, *values], [*[None] * len(traced.captured), *ts])
    full = [zeros(x.type) if t is None else t for x, t in zip(outs, out_ts, strict=True)]
    out, tangent = tree.unflatten(traced.out_tree, outs), tree.unflatten(traced.out_tree, full)
    return (out[0], tangent[0], out[1]) if has_aux else (out, tangent)


def _fit(type: TensorType, t: Any, what: str, owner: str, whole: bool = False) -> Value | None:
    """A tangent or cotangent in the type of what it belongs to; None where that has no derivative, being ``whole``."""
    if not whole and not dtypes.is_inexact(type.dtype):
        return None
    value = leaf_value(t, f"a {what}")
    fits = dtypes.promote((type.dtype, False), (value.type.dtype, value.type.weak))[0] == type.dtype
    if value.type.shape != type.shape or (value.type.dtype != type.dtype and not (value.type.weak and fits)):
        raise DifferentiationError(
            f"A {what} of type {value.type} does not fit the {owner} {type}.",
            where=here(),
            why=f"a {what} has the shape and dtype of its {owner}",
            fix=f"mnp.asarray({what}, '{type.dtype.name}').reshape({type.shape})",
        )
    return _strengthen(value, type)


def vjp(fun: Function, *primals: Any, has_aux: bool = False) -> Any:
    """``fun(*primals)`` and the function from cotangents of its result to cotangents of the primals.

    >>> out, pull = vjp(lambda x, y: x * y, 2.0, 3.0)
    >>> float(out), [float(ct) for ct in pull(1.0)]
    (6.0, [3.0, 2.0])
    """
    check_function(fun, "vjp", "mw.vjp(f, x)")
    has_aux = static_flag(has_aux, "has_aux of vjp")
    traced, values = _trace_on(fun, primals)
    outs, pull = _vjp_values(traced, values)
    out = tree.unflatten(traced.out_tree, outs)
    main = tree.structure(out[0]) if has_aux else traced.out_tree
    in_tree = tree.structure(tuple(primals))

    def backward(ct: Any) -> Any:
        leaves, structure = tree.flatten(ct)
        if structure != main:
            raise TreeError(
                "The cotangent given to a vjp function has another structure than the function's result.",
                where=here(),
                why=f"{structure} is not {main}",
                fix="give one cotangent for each result",
            )
        cts = [_fit(x.type, t, "cotangent", "result") for x, t in zip(outs, leaves, strict=False)]
        found = pull([*cts, *[None] * (len(outs) - len(cts))])
        return tree.unflatten(
            in_tree,
            [_cotangent(c, x) for c, x in zip(found, values, strict=True)],
        )

    return (out[0], backward, out[1]) if has_aux else (out, backward)


def _cotangent(ct: Value | None, x: Value) -> Any:
    if not _differentiable(x):
        return _float0(x)
    return zeros(x.type) if ct is None else _strengthen(ct, x.type)


def linearize(fun: Function, *primals: Any, has_aux: bool = False) -> Any:
    """``fun(*primals)`` and its derivative there as a linear function of tangents, computed once; with ``has_aux``
    also the aux.

    >>> out, push = linearize(lambda x: x**2, 3.0)
    >>> float(out), float(push(1.0)), float(push(2.0))
    (9.0, 6.0, 12.0)
    """
    check_function(fun, "linearize", "mw.linearize(f, x)")
    traced, values = _trace_on(fun, primals)
    flags = [_differentiable(x) for x in values]
    all_values = [*traced.captured, *values]
    outs, linear = linearize_program(traced.program, all_values, [False] * len(traced.captured) + flags)

    def push(*tangents: Any) -> Any:
        leaves = tree.leaves(tuple(tangents))
        if tree.structure(tuple(tangents)) != tree.structure(tuple(primals)):
            raise TreeError(
                "The tangents have another structure than the primals of linearize.",
                where=here(),
                why=f"{tree.structure(tuple(tangents))} is not {tree.structure(tuple(primals))}",
                fix="give one tangent of the same shape and dtype for each primal",
            )
        ts = [_fit(x.type, t, "tangent", "primal") for x, t, f in zip(values, leaves, flags, strict=True) if f]
        found = iter(run(linear.program, [*linear.residuals, *ts]))
        full = [next(found) if kept else zeros(x.type) for x, kept in zip(outs, linear.nonzero, strict=True)]
        pushed = tree.unflatten(traced.out_tree, full)
        return pushed[0] if has_aux else pushed

    out = tree.unflatten(traced.out_tree, outs)
    return (out[0], push, out[1]) if has_aux else (out, push)


def linear_transpose(fun: Function, *primals: Any) -> Function:
    """The transpose of a linear function, for arguments of the types of ``primals`` (arrays or shapes).

    >>> import meshwright.numpy as mnp
    >>> back = linear_transpose(lambda x: mnp.sum(2 * x), mnp.ones(3))
    >>> back(1.0)[0].tolist()
    [2.0, 2.0, 2.0]
    """
    check_function(fun, "linear_transpose", "mw.linear_transpose(f, x)(ct)")
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    types = [leaf_type(x) for x in leaves]
    traced = trace_flat(fun, in_tree, types)
    outs = traced.program.out_types
    _check_one_field(types, outs)

    def transposed(ct: Any) -> Any:
        ct_leaves, structure = tree.flatten(ct)
        if structure != traced.out_tree:
            raise TreeError(
                "The cotangent has another structure than the function's result.",
                where=here(),
                why=f"{structure} is not {traced.out_tree}",
                fix="give one cotangent for each result",
            )
        cts = [_fit(t, c, "cotangent", "result", whole=True) for c, t in zip(ct_leaves, outs, strict=True)]
        flags = [False] * len(traced.captured) + [True] * len(types)
        found = transpose_program(traced.program, flags, [*traced.captured, *[None] * len(types)], cts)
        full = [
            zeros(t) if c is None else _strengthen(c, t)
            for c, t in zip(found[len(traced.captured) :], types, strict=True)
        ]
        return tree.unflatten(in_tree, full)[0]

    return transposed


def _check_one_field(types: Sequence[TensorType], outs: Sequence[TensorType]) -> None:
    """What is transposed is linear over real and complex numbers, or over integers: truth values have no sum, and what
    becomes an integer was rounded."""
    both = (*types, *outs)
    if all(dtypes.is_inexact(t.dtype) for t in both) or all(dtypes.is_integer(t.dtype) for t in both):
        return
    raise DifferentiationError(
        f"linear_transpose cannot take a function from {_shown(types)} to {_shown(outs)}.",
        where=here(),
        why="a linear function goes from floats or complex numbers to such numbers, or from integers to integers",
        fix="x.astype('float32') for the arguments, and a function that does not round",
    )


def _shown(types: Sequence[TensorType]) -> str:
    return ", ".join(t.short() for t in types) or "nothing"
