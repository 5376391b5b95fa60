"""The part of ``meshwright.lax`` with solutions of equations whose derivatives follow from the equation alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api.custom import custom_vjp
from meshwright.api.grad import vjp
from meshwright.arrays.static import static_flag
from meshwright.arrays.tracing import check_function, leaf_value, trace_flat
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.trace import Array, run
from meshwright.errors import MeshwrightError
from meshwright.ops.arithmetic import stop_gradient
from meshwright.ops.basic import zeros

Function = Callable[..., Any]
Solver = Callable[[Function, Any], Any]


def _opened(fun: Function, example: Any) -> tuple[Function, list[Any]]:
    """A function of one argument as one of the traced values that it closes over and of the argument; and these."""
    leaves, container = tree.flatten(((example,), {}))
    found = trace_flat(fun, container, [leaf_value(x, "an argument").type for x in leaves])
    outside = [x for x in found.captured if not isinstance(x, Array)]

    def opened(outside: list[Any], x: Any) -> Any:
        given = iter(outside)
        captured = [y if isinstance(y, Array) else next(given) for y in found.captured]
        own = [leaf_value(y, "an argument") for y in tree.leaves(x)]
        return tree.unflatten(found.out_tree, run(found.program, [*captured, *own]))

    return opened, outside


def custom_linear_solve(
    matvec: Function, b: Any, solve: Solver, transpose_solve: Solver | None = None, symmetric: bool = False,
    has_aux: bool = False,
) -> Any:  # fmt: skip
    """``solve(matvec, b)``, the ``x`` with ``matvec(x) == b``; its derivative solves the transposed system.

    ``solve`` need not be differentiable: ``matvec`` is differentiated, by what it closes over. Derivatives go back
    (``grad``, ``vjp``), and need ``transpose_solve`` unless the system is ``symmetric``. With ``has_aux``, the solvers
    return more beside the solution, which has no derivative.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> a = mnp.array([[2.0, 1.0], [0.0, 4.0]])
    >>> f = lambda a: custom_linear_solve(lambda x: a @ x, mnp.ones(2), lambda mv, b: mnp.linalg.solve(
    ...     mw.jacobian(mv)(b), b), lambda mv, b: mnp.linalg.solve(mw.jacobian(mv)(b), b)).sum()
    >>> [[round(float(g), 4) for g in row] for row in mw.grad(f)(a)]
    [[-0.1875, -0.125], [-0.0469, -0.0312]]
    """
    for one in (matvec, solve):
        check_function(one, "lax.custom_linear_solve", "lax.custom_linear_solve(matvec, b, solve)")
    more = static_flag(has_aux, "has_aux of lax.custom_linear_solve")
    same = static_flag(symmetric, "symmetric of lax.custom_linear_solve")
    back = solve if same and transpose_solve is None else transpose_solve
    product, outside = _opened(matvec, b)

    def turned(outside: list[Any], y: Any) -> Any:
        return vjp(lambda x: product(outside, x), tree.map(lambda x: 0 * x, y))[1](y)[0]

    going = _opened(lambda b: solve(matvec, b), b)
    coming = None if back is None else _opened(lambda b: back(lambda y: turned(outside, y), b), b)
    first, second = ([stop_gradient(x) for x in one[1]] if one else [] for one in (going, coming))
    return _implicit((product, turned), (going[0], coming and coming[0]), more, outside, first, second, b)


def _implicit(
    products: tuple[Function, Function], solvers: tuple[Any, Any], more: bool, outside: list[Any], going: list[Any],
    coming: list[Any], b: Any,
) -> Any:  # fmt: skip
    """A solution by the first of two solvers (one for each of two products, transposed to each other), of ``b`` and of
    values that it closes over; a derivative is a solution of the other system, and so has derivatives as well."""

    @custom_vjp
    def solved(outside: list[Any], going: list[Any], coming: list[Any], b: Any) -> Any:
        return solvers[0](going, b)

    def forward(outside: list[Any], going: list[Any], coming: list[Any], b: Any) -> Any:
        found = solved(outside, going, coming, b)
        return found, (outside, going, coming, found[0] if more else found)

    def backward(kept: Any, ct: Any) -> Any:
        outside, going, coming, x = kept
        if solvers[1] is None:
            raise MeshwrightError(
                "lax.custom_linear_solve has no derivative here.",
                where=here(),
                why="going back solves the transposed system, and transpose_solve= was not given",
                fix="transpose_solve=solve, if it solves the system of any function; symmetric=True, if it is its own",
            )
        ct = ct[0] if more else ct
        found = _implicit(products[::-1], solvers[::-1], more, outside, coming, going, ct)
        found = found[0] if more else found
        slopes = vjp(lambda outside: products[0](outside, x), outside)[1](tree.map(lambda y: -y, found))[0]
        return slopes, _zeros(going), _zeros(coming), found

    solved.defvjp(forward, backward)
    return solved(outside, going, coming, b)


def _zeros(x: Any) -> Any:
    return tree.map(lambda y: zeros(y.type), x)


def custom_root(f: Function, initial_guess: Any, solve: Solver, tangent_solve: Solver, has_aux: bool = False) -> Any:
    """``solve(f, initial_guess)``, an ``x`` with ``f(x) == 0``; its derivative is that of the implicit function.

    ``solve`` need not be differentiable: ``f`` is differentiated, by what it closes over, and ``tangent_solve(g, y)``
    solves ``g(x) == y`` for a linear ``g``. Derivatives go back (``grad``, ``vjp``).

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> root = lambda a: custom_root(lambda x: x**2 - a, 1.0, lambda f, x: mnp.sqrt(a), lambda g, y: y / g(1.0))
    >>> float(mw.grad(root)(4.0))
    0.25
    """
    for one in (f, solve, tangent_solve):
        check_function(one, "lax.custom_root", "lax.custom_root(f, x0, solve, tangent_solve)")
    more = static_flag(has_aux, "has_aux of lax.custom_root")
    function, outside = _opened(f, initial_guess)

    whole, closed = _opened(lambda guess: solve(f, guess), initial_guess)

    @custom_vjp
    def solved(outside: list[Any], closed: list[Any], guess: Any) -> Any:
        return whole(closed, guess)

    def forward(outside: list[Any], closed: list[Any], guess: Any) -> Any:
        found = solved(outside, closed, guess)
        return found, (outside, closed, found[0] if more else found)

    def backward(kept: Any, ct: Any) -> Any:
        outside, closed, x = kept
        turned = vjp(lambda y: function(outside, y), x)[1]
        found = custom_linear_solve(lambda y: turned(y)[0], ct[0] if more else ct, tangent_solve, tangent_solve)
        slopes = vjp(lambda outside: function(outside, x), outside)[1](tree.map(lambda y: -y, found))[0]
        return slopes, _zeros(closed), _zeros(x)

    solved.defvjp(forward, backward)
    return solved(outside, [stop_gradient(x) for x in closed], initial_guess)
