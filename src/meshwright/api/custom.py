"""Functions with derivative rules of their own, and functions that are recomputed rather than remembered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import update_wrapper, wraps
from types import MethodType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from meshwright.api.cotangents import going_back
from meshwright.arrays.static import static_flag
from meshwright.arrays.tracing import argument_numbers, check_function, leaf_value, trace_flat
from meshwright.compile.jit import TracedInside, trace_inside
from meshwright.core import tree
from meshwright.core.program import Rule
from meshwright.core.source import here, traced_source
from meshwright.core.trace import is_number, state
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, TreeError
from meshwright.ops import residual
from meshwright.ops.basic import zeros
from meshwright.transform.policies import policy_rule
from meshwright.transform.regions import custom
from meshwright.transform.regions import region as regions

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


def _with_named(fun: Function, numbers: tuple[int, ...], names: str | Sequence[str], taker: str) -> tuple[int, ...]:
    """Positions of arguments that are given by number and by name."""
    given = (names,) if isinstance(names, str) else tuple(names)
    if not given:
        return numbers
    declared = list(inspect.signature(fun).parameters)
    unknown = next((name for name in given if name not in declared), None)
    if unknown is not None:
        raise MeshwrightError(
            f"{taker} is given the argument {unknown!r}, which the function does not have.",
            where=here(),
            why=f"it takes {', '.join(declared)}",
            fix="the name of one of its arguments",
        )
    return tuple(sorted({*numbers, *map(declared.index, given)}))


def _no_rule(name: str, method: str) -> MeshwrightError:
    return MeshwrightError(
        f"{name} has no derivative rule yet.",
        where=here(),
        why="the function was wrapped but its rule was never given",
        fix=f"{name}.{method}(…) before calling it",
    )


def _in_place(rule: Function) -> Function:
    """A rule that a transform will run, when it does, over the mesh axes that the function is called over now."""
    manual = state.manual
    if manual is None:
        return rule

    def run(*args: Any) -> Any:
        before = state.manual
        level = state.builder.level if state.builder is not None else 0
        state.manual = replace(manual, level=dict.fromkeys(manual.axes, level))
        try:
            return rule(*args)
        finally:
            state.manual = before

    return run


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

    def __init__(
        self, fun: F, nondiff_argnums: int | Sequence[int] = (), nondiff_argnames: str | Sequence[str] = ()
    ) -> None:
        check_function(fun, "custom_jvp")
        update_wrapper(self, fun)
        self.fun = fun
        numbers = argument_numbers(nondiff_argnums, "custom_jvp", "nondiff_argnums")
        self.nondiff = _with_named(fun, numbers, nondiff_argnames, "custom_jvp")
        self.jvp: Function | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """In a class, a method."""
        return self if instance is None else MethodType(self, instance)

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
        values = [leaf_value(x, "an argument") for x in leaves]
        types = [x.type for x in values]
        call = trace_flat(lambda *xs: self.fun(*_join_args(fixed, xs, self.nondiff)), structure, types)
        n, out_types = len(values), call.program.out_types

        def push(*flat: Any) -> list[Any]:
            primals, tangents = (tree.unflatten(structure, part)[0] for part in (flat[:n], flat[n:]))
            result = rule(*fixed, primals, tangents)
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise TreeError(
                    "A custom jvp rule must return a pair (out, out_tangent).",
                    where=here(),
                    why=f"it returned {type(result).__name__}",
                    fix="return out, tangent",
                )
            for part, what in zip(result, ("an output", "a tangent"), strict=True):
                if tree.structure(part) != call.out_tree:
                    raise TreeError(
                        f"A custom jvp rule returned {what} of another structure than the function's result.",
                        where=here(),
                        why=f"{tree.structure(part)} is not {call.out_tree}",
                        fix="return one output and one tangent for each result of the function",
                    )
            outs = [leaf_value(x, "a result of a custom jvp rule") for x in tree.leaves(result)]
            return [_fit(x, t, "A custom jvp rule") for x, t in zip(outs, [*out_types, *out_types], strict=True)]

        outs = custom.custom_jvp_call(
            *call.captured, *values,
            call=call.program, jvp=Rule(_name(rule), _in_place(push)), captured=len(call.captured),
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

    def __init__(
        self, fun: F, nondiff_argnums: int | Sequence[int] = (), nondiff_argnames: str | Sequence[str] = ()
    ) -> None:
        check_function(fun, "custom_vjp")
        update_wrapper(self, fun)
        self.fun = fun
        numbers = argument_numbers(nondiff_argnums, "custom_vjp", "nondiff_argnums")
        self.nondiff = _with_named(fun, numbers, nondiff_argnames, "custom_vjp")
        self.rules: tuple[Function, Function] | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """In a class, a method."""
        return self if instance is None else MethodType(self, instance)

    def defvjp(self, fwd: Function, bwd: Function) -> None:
        """Give the rules: ``fwd(*args) -> (out, residuals)`` and ``bwd(residuals, cotangent) -> cotangents``."""
        check_function(fwd, "custom_vjp")
        check_function(bwd, "custom_vjp")
        self.rules = (fwd, bwd)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.rules is None:
            raise _no_rule(getattr(self.fun, "__name__", "This function"), "defvjp")
        fwd, bwd = self.rules
        fixed, rest = _split_args(_bind_kwargs(self.fun, args, kwargs), self.nondiff)
        leaves, structure = tree.flatten((tuple(rest), {}))
        values = [leaf_value(x, "an argument") for x in leaves]
        types = [x.type for x in values]
        call = trace_flat(lambda *xs: self.fun(*_join_args(fixed, xs, self.nondiff)), structure, types)
        out_types = call.program.out_types

        def forward(*flat: Any) -> tuple[list[Any], list[Any], Rule]:
            given = [x if is_number(x) else v for x, v in zip(leaves, flat, strict=True)]
            xs = tree.unflatten(structure, given)[0]
            pair = fwd(*_join_args(fixed, xs, self.nondiff))
            if not isinstance(pair, tuple | list) or len(pair) != 2 or tree.structure(pair[0]) != call.out_tree:
                raise TreeError(
                    "The fwd rule of a custom vjp must return a pair (out, residuals).",
                    where=here(),
                    why=f"the function returns {call.out_tree}, its fwd rule {tree.structure(pair)}",
                    fix="return f(x), (x,)",
                )
            outs = [leaf_value(x, "a result of a fwd rule") for x in tree.leaves(pair[0])]
            kept, saved_tree = tree.flatten(pair[1])
            saved = [x for x in kept if not is_number(x)]  # Python's numbers stay what they are

            def backward(*values: Any) -> list[Any]:
                arrays = iter(values)
                residuals = tree.unflatten(saved_tree, [x if is_number(x) else next(arrays) for x in kept])
                with going_back(values[len(saved) :]):
                    found = bwd(*fixed, residuals, tree.unflatten(call.out_tree, values[len(saved) :]))
                return _cotangents(found, rest, types)

            fitted = [_fit(x, t, "A fwd rule") for x, t in zip(outs, out_types, strict=True)]
            return fitted, [leaf_value(x, "a residual") for x in saved], Rule(_name(bwd), _in_place(backward))

        outs = custom.custom_vjp_call(
            *call.captured, *values,
            call=call.program, vjp=Rule(_name(fwd), _in_place(forward)), captured=len(call.captured),
        )  # fmt: skip
        return tree.unflatten(call.out_tree, outs)


def _name(rule: Function) -> str:
    return getattr(rule, "__name__", type(rule).__name__)


def _cotangents(found: Any, args: Sequence[Any], types: Sequence[TensorType]) -> list[Any]:
    """What a bwd rule returned, checked against the arguments and flattened."""
    if not isinstance(found, tuple | list) or len(found) != len(args):
        raise TreeError(
            f"The bwd rule of a custom vjp must return a tuple of {len(args)}, one cotangent per argument.",
            where=here(),
            why=f"it returned {len(found) if isinstance(found, tuple | list) else type(found).__name__}",
            fix="return (ct_x,)" if len(args) == 1 else "return ct_x, ct_y, …",
        )
    flat: list[Any] = []
    for ct, arg in zip(found, args, strict=True):
        wanted = tree.structure(arg)
        if ct is None:
            flat += [None] * wanted.num_leaves
        elif tree.structure(ct) != wanted:
            raise TreeError(
                "The bwd rule of a custom vjp returned a cotangent of another structure than its argument.",
                where=here(),
                why=f"{tree.structure(ct)} is not {wanted}",
                fix="return cotangents with the same containers and keys as the arguments",
            )
        else:
            flat += tree.leaves(ct)
    return [zeros(t) if ct is None else _fit(ct, t, "A bwd rule") for ct, t in zip(flat, types, strict=True)]


def _fit(x: Any, type: TensorType, rule: str) -> Any:
    """A value a rule returned, in the type it must have."""
    value = leaf_value(x, f"a result of {rule.lower()}")
    if value.shape != type.shape:
        raise TreeError(
            f"{rule} returned {value.type} where {type} belongs.",
            where=here(),
            why="derivatives have the shape of what they are the derivative of",
            fix=f"reshape or sum it to {type.shape}",
        )
    return regions.as_type(value, type)


def checkpoint(
    fun: Function | None = None,
    *,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    policy: Callable[..., Any] | None = None,
) -> Any:
    """``fun``, whose derivative computes intermediate values again instead of keeping them.

    Its arguments are kept, and the intermediate values that a policy names (``mw.checkpoint_policies``); without one,
    none. A policy of your own is asked of each equation of the forward run, ``policy(op, *operand_types, **params)``,
    and answers True where the results are to be kept.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> float(mw.grad(checkpoint(lambda x: mnp.sin(mnp.sin(x))))(0.0))
    1.0
    >>> layer = checkpoint(lambda x, w: mnp.tanh(x @ w), policy=mw.checkpoint_policies.dots_saveable)
    >>> mw.grad(lambda x, w: layer(x, w).sum())(mnp.ones((2, 3)), mnp.zeros((3, 4))).shape
    (2, 3)
    """
    if fun is None:
        return lambda f: checkpoint(
            f, prevent_cse=prevent_cse, static_argnums=static_argnums, static_argnames=static_argnames, policy=policy
        )
    check_function(fun, "checkpoint")
    kept = {} if policy is None else {"policy": policy_rule(policy)}
    prevent_cse = static_flag(prevent_cse, "prevent_cse of checkpoint")
    numbers = argument_numbers(static_argnums, "checkpoint", "static_argnums")
    numbers = _with_named(fun, numbers, static_argnames, "checkpoint")
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    @wraps(fun)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        static = [n % len(args) for n in numbers if -len(args) <= n < len(args)]
        fixed, rest = _split_args(args, static)
        known = {name: kwargs[name] for name in names if name in kwargs}
        others = {name: x for name, x in kwargs.items() if name not in known}
        leaves, in_tree = tree.flatten((tuple(rest), others))
        values = [leaf_value(x, "an argument") for x in leaves]
        statics = tuple((n, type(x), x) for n, x in (*zip(static, fixed, strict=True), *known.items()))
        found = trace_inside(
            _traced_before(fun, statics),
            lambda *xs, **named: fun(*_join_args(fixed, xs, static), **named, **known),
            in_tree,
            statics,
            [x.type for x in values],
        )
        # While another program is read, each of its equations says itself how it was reached.
        program = found.traced.program if state.source is not None else found.called_from(traced_source())
        outs = custom.checkpoint(*found.traced.captured, *values, program=program, **kept)
        return tree.unflatten(found.traced.out_tree, outs)

    return recomputed


_TRACED: WeakKeyDictionary[Function, dict[Any, TracedInside]] = WeakKeyDictionary()


def _traced_before(fun: Function, statics: Any) -> dict[Any, TracedInside]:
    """What a function was traced to, by all that this depends on: kept as long as the function is."""
    try:
        hash(statics)
        return _TRACED.setdefault(fun, {})
    except TypeError:  # of a static argument, or a function, that nothing can be kept for
        return {}


def checkpoint_name(x: Any, name: str) -> Any:
    """``x``, an array or a tree of them, by a name that policies of ``checkpoint`` know it by.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> policy = mw.checkpoint_policies.save_only_these_names("hidden")
    >>> f = checkpoint(lambda x: mnp.sin(checkpoint_name(mnp.sin(x), "hidden")), policy=policy)
    >>> float(mw.grad(f)(0.0))
    1.0
    """
    if not isinstance(name, str):
        raise MeshwrightError(
            f"checkpoint_name cannot take the name {name!r}.",
            where=here(),
            why=f"a name is a string, and this is of type {type(name).__name__}",
            fix="mw.checkpoint_name(x, 'hidden')",
        )
    leaves, structure = tree.flatten(x)
    return tree.unflatten(
        structure, [residual.checkpoint_name(leaf_value(v, "a named value"), name=name) for v in leaves]
    )
