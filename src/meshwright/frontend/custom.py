"""Functions with derivative rules of their own, and functions that are recomputed rather than remembered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper, wraps
from typing import Any, Generic, TypeVar

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.trace import Value, run
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, TreeError
from meshwright.frontend.tracing import Traced, leaf_value, trace_flat
from meshwright.ops import control, custom
from meshwright.ops.basic import zeros

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


def _split_args(args: Sequence[Any], nondiff: Sequence[int]) -> tuple[list[Any], list[Any]]:
    fixed = [args[n] for n in nondiff]
    return fixed, [x for n, x in enumerate(args) if n not in nondiff]


def _join_args(fixed: Sequence[Any], rest: Sequence[Any], nondiff: Sequence[int]) -> list[Any]:
    values = iter(rest)
    at = dict(zip(nondiff, fixed, strict=True))
    return [at[n] if n in at else next(values) for n in range(len(fixed) + len(rest))]


def _bind_kwargs(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments given by name, and defaults, in their positions."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def _no_rule(name: str, method: str) -> MeshwrightError:
    return MeshwrightError(
        f"{name} has no derivative rule yet.",
        where=here(),
        why="the function was wrapped but its rule was never given",
        fix=f"{name}.{method}(…) before calling it",
    )


class custom_jvp(Generic[F]):
    """A function whose forward derivative is a rule you give.

    >>> import meshwright as mw
    >>> @custom_jvp
    ... def f(x):
    ...     return x * x
    >>> @f.defjvp
    ... def f_jvp(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return f(x), 10 * x * t
    >>> float(mw.grad(f)(3.0))
    30.0
    """

    def __init__(self, fun: F, nondiff_argnums: Sequence[int] = ()) -> None:
        update_wrapper(self, fun)
        self.fun = fun
        self.nondiff = tuple(nondiff_argnums)
        self.jvp: Function | None = None

    def defjvp(self, jvp: Function, symbolic_zeros: bool = False) -> Function:
        """Give the rule: ``jvp(primals, tangents) -> (out, out_tangent)``."""
        self.jvp = jvp
        return jvp

    def defjvps(self, *jvps: Function | None) -> None:
        """Give one rule per argument: ``jvp(tangent, out, *primals)``."""

        def total(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
            out = self(*primals)
            terms = [f(t, out, *primals) for f, t in zip(jvps, tangents, strict=True) if f is not None]
            result = tree.map(lambda x: zeros(x.type), out) if not terms else terms[0]
            for term in terms[1:]:
                result = tree.map(lambda a, b: a + b, result, term)
            return out, result

        self.jvp = total

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rule = self.jvp
        if rule is None:
            raise _no_rule(getattr(self.fun, "__name__", "This function"), "defjvp")
        fixed, rest = _split_args(_bind_kwargs(self.fun, args, kwargs), self.nondiff)
        leaves, structure = tree.flatten((tuple(rest), {}))
        values = [leaf_value(x, "An argument") for x in leaves]
        types = [x.type for x in values]
        call = trace_flat(lambda *xs: self.fun(*_join_args(fixed, xs, self.nondiff)), structure, types)
        n = len(values)

        def both(*flat: Any) -> Any:
            primals, tangents = (tree.unflatten(structure, part)[0] for part in (flat[:n], flat[n:]))
            result = rule(*fixed, primals, tangents)
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise TreeError(
                    "A custom jvp rule must return a pair (out, out_tangent).",
                    where=here(),
                    why=f"it returned {type(result).__name__}",
                    fix="return out, tangent",
                )
            out, tangent = result
            if tree.structure(out) != tree.structure(tangent):
                raise TreeError(
                    "A custom jvp rule returned an output and a tangent of different structures.",
                    where=here(),
                    why=f"{tree.structure(out)} is not {tree.structure(tangent)}",
                    fix="return one tangent for each output",
                )
            return out, tangent

        flat_tree = tree.structure((tuple(range(2 * n)), {}))
        pushed = trace_flat(both, flat_tree, types + types)
        captured = [*call.captured, *pushed.captured]
        n_call, n_rule = len(call.captured), len(pushed.captured)
        # The outside values that either region uses become operands of both, with tangents the rule does not look at.
        all_types = [*(x.type for x in captured), *types]
        call_program = control.region(lambda *xs: run(call.program, [*xs[:n_call], *xs[n_call + n_rule :]]), all_types)

        def rule_program(*xs: Any) -> list[Any]:
            primals, tangents = xs[: len(all_types)], xs[len(all_types) :]
            outs = run(
                pushed.program,
                [*primals[n_call : n_call + n_rule], *primals[n_call + n_rule :], *tangents[n_call + n_rule :]],
            )
            wanted = [*call_program.out_types, *call_program.out_types]
            return [control.as_type(x, t) for x, t in zip(outs, wanted, strict=True)]

        outs = custom.custom_jvp_call(
            *captured, *values,
            call=call_program, jvp=control.region(rule_program, all_types + all_types), captured=len(captured),
        )  # fmt: skip
        return tree.unflatten(call.out_tree, outs)


class custom_vjp(Generic[F]):
    """A function whose backward derivative is a pair of rules you give.

    >>> import meshwright as mw
    >>> @custom_vjp
    ... def f(x):
    ...     return x * x
    >>> f.defvjp(lambda x: (f(x), x), lambda x, ct: (10 * x * ct,))
    >>> float(mw.grad(f)(3.0))
    30.0
    """

    def __init__(self, fun: F, nondiff_argnums: Sequence[int] = ()) -> None:
        update_wrapper(self, fun)
        self.fun = fun
        self.nondiff = tuple(nondiff_argnums)
        self.rules: tuple[Function, Function] | None = None

    def defvjp(self, fwd: Function, bwd: Function) -> None:
        """Give the rules: ``fwd(*args) -> (out, residuals)`` and ``bwd(residuals, cotangent) -> cotangents``."""
        self.rules = (fwd, bwd)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.rules is None:
            raise _no_rule(getattr(self.fun, "__name__", "This function"), "defvjp")
        fwd, bwd = self.rules
        fixed, rest = _split_args(_bind_kwargs(self.fun, args, kwargs), self.nondiff)
        leaves, structure = tree.flatten((tuple(rest), {}))
        values = [leaf_value(x, "An argument") for x in leaves]
        types = [x.type for x in values]
        call = trace_flat(lambda *xs: self.fun(*_join_args(fixed, xs, self.nondiff)), structure, types)
        forward = trace_flat(lambda *xs: fwd(*_join_args(fixed, xs, self.nondiff)), structure, types)
        pair = tree.unflatten(forward.out_tree, range(forward.out_tree.num_leaves))
        if not isinstance(pair, tuple | list) or len(pair) != 2 or tree.structure(pair[0]) != call.out_tree:
            raise TreeError(
                "The fwd rule of a custom vjp must return a pair (out, residuals).",
                where=here(),
                why=f"the function returns {call.out_tree}, its fwd rule {forward.out_tree}",
                fix="return f(x), (x,)",
            )
        n_out = len(call.program.outputs)
        res_tree = tree.structure(pair[1])
        res_types = forward.program.out_types[n_out:]
        out_types = call.program.out_types
        backward = _trace_bwd(bwd, fixed, res_tree, res_types, call.out_tree, out_types, rest, types)
        outs = _bind_vjp(call, forward, backward, values)
        return tree.unflatten(call.out_tree, outs)


def _trace_bwd(
    bwd: Function,
    fixed: Sequence[Any],
    res_tree: tree.TreeDef,
    res_types: Sequence[TensorType],
    out_tree: tree.TreeDef,
    out_types: Sequence[TensorType],
    args: Sequence[Any],
    types: Sequence[TensorType],
) -> Traced:
    n = len(res_types)

    def pull(*flat: Any) -> list[Any]:
        found = bwd(*fixed, tree.unflatten(res_tree, flat[:n]), tree.unflatten(out_tree, flat[n:]))
        if not isinstance(found, tuple | list) or len(found) != len(args):
            raise TreeError(
                f"The bwd rule of a custom vjp must return a tuple of {len(args)}, one cotangent per argument.",
                where=here(),
                why=f"it returned {len(found) if isinstance(found, tuple | list) else type(found).__name__}",
                fix="return (ct_x,)" if len(args) == 1 else "return ct_x, ct_y, …",
            )
        flat_cts: list[Any] = []
        for ct, arg in zip(found, args, strict=True):
            wanted = tree.structure(arg)
            if ct is None:
                flat_cts += [None] * wanted.num_leaves
            elif tree.structure(ct) != wanted:
                raise TreeError(
                    "The bwd rule of a custom vjp returned a cotangent of another structure than its argument.",
                    where=here(),
                    why=f"{tree.structure(ct)} is not {wanted}",
                    fix="return cotangents with the same containers and keys as the arguments",
                )
            else:
                flat_cts += tree.leaves(ct)
        return [_fit(ct, t) for ct, t in zip(flat_cts, types, strict=True)]

    flat_tree = tree.structure((tuple(range(n + len(out_types))), {}))
    return trace_flat(pull, flat_tree, [*res_types, *out_types])


def _fit(ct: Any, type: TensorType) -> Any:
    if ct is None:
        return zeros(type)
    value = leaf_value(ct, "A cotangent")
    if value.shape != type.shape:
        raise TreeError(
            f"The bwd rule of a custom vjp returned a cotangent {value.type} for an argument {type}.",
            where=here(),
            why="a cotangent has the shape of its argument",
            fix=f"reshape or sum it to {type.shape}",
        )
    return control.as_type(value, type)


def _bind_vjp(call: Traced, forward: Traced, backward: Traced, values: Sequence[Value]) -> Any:
    """One op whose operands are the arguments and every outside value its three regions use."""
    captured = [*call.captured, *forward.captured, *backward.captured]
    a, b, c = len(call.captured), len(forward.captured), len(backward.captured)
    n_out = len(call.program.outputs)
    all_types = [*(x.type for x in captured), *(x.type for x in values)]

    def run_fwd(*xs: Any) -> list[Any]:
        outs = run(forward.program, [*xs[a : a + b], *xs[a + b + c :]])
        fitted = [control.as_type(x, t) for x, t in zip(outs, call.program.out_types, strict=False)]
        return fitted + outs[n_out:] + list(xs[a + b : a + b + c])

    def run_bwd(*xs: Any) -> list[Any]:
        n_res = len(forward.program.outputs) - n_out
        residuals, outside, cts = control.cut(xs, n_res, c)
        found = run(backward.program, [*outside, *residuals, *cts])
        return [*(zeros(x.type) for x in captured), *found]

    call_program = control.region(lambda *xs: run(call.program, [*xs[:a], *xs[a + b + c :]]), all_types)
    fwd_program = control.region(run_fwd, all_types)
    bwd_types = [*fwd_program.out_types[n_out:], *fwd_program.out_types[:n_out]]
    return custom.custom_vjp_call(
        *captured, *values,
        call=call_program, fwd=fwd_program, bwd=control.region(run_bwd, bwd_types), captured=len(captured),
    )  # fmt: skip


def checkpoint(
    fun: Function | None = None, *, prevent_cse: bool = True, static_argnums: int | Sequence[int] = ()
) -> Any:
    """``fun``, whose derivative recomputes its intermediate values instead of keeping them.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> float(mw.grad(checkpoint(lambda x: mnp.sin(mnp.sin(x))))(0.0))
    1.0
    """
    if fun is None:
        return lambda f: checkpoint(f, prevent_cse=prevent_cse, static_argnums=static_argnums)
    static = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    @wraps(fun)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        fixed, rest = _split_args(args, static)
        leaves, in_tree = tree.flatten((tuple(rest), kwargs))
        values = [leaf_value(x, "An argument") for x in leaves]
        found = trace_flat(
            lambda *xs, **named: fun(*_join_args(fixed, xs, static), **named), in_tree, [x.type for x in values]
        )
        outs = custom.checkpoint(*found.captured, *values, program=found.program)
        return tree.unflatten(found.out_tree, outs)

    return recomputed
