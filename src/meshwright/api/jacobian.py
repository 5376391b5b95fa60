"""Jacobians and Hessians: vmap of jvp or vjp over a basis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from meshwright.api.grad import argument_positions, jvp, vjp
from meshwright.api.vmap import vmap
from meshwright.arrays.tracing import argument_numbers, check_function, leaf_value
from meshwright.core import dtypes, tree
from meshwright.core.limits import refuse_unheld
from meshwright.core.source import here
from meshwright.core.trace import Array, Value
from meshwright.core.types import TensorType
from meshwright.errors import DifferentiationError
from meshwright.ops.basic import move_dim, reshape

Function = Callable[..., Any]


def _basis(leaves: Sequence[Value]) -> list[Array]:
    """For each leaf, the identity of the flattened whole restricted to it: shape (total, *leaf.shape)."""
    total = sum(x.size for x in leaves)
    refuse_unheld("a Jacobian", [x.type.with_(shape=(total, *x.shape)) for x in leaves])
    found, start = [], 0
    for x in leaves:
        eye = np.zeros((total, x.size), x.dtype)
        eye[start : start + x.size] = np.eye(x.size, dtype=x.dtype)
        found.append(Array(eye.reshape(total, *x.shape), TensorType((total, *x.shape), x.dtype)))
        start += x.size
    return found


def _cut(rows: Value, leaves: Sequence[Value]) -> list[Value]:
    """Rows along dim 0 cut into one block per leaf, each with the leaf's shape in front."""
    blocks, start = [], 0
    for x in leaves:
        block = rows[start : start + x.size]  # type: ignore[index]
        blocks.append(reshape(block, shape=(*x.shape, *rows.shape[1:])))
        start += x.size
    return blocks


def _select(
    fun: Function,
    argnums: int | Sequence[int],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    holomorphic: bool,
    ints: bool,
) -> tuple[Function, tuple[Any, ...]]:
    numbers = argument_numbers(argnums, "jacobian", "argnums")
    argument_positions(numbers, len(args), "A Jacobian", "argnums={}")
    chosen = [args[n] for n in numbers]
    for name, leaf in zip(tree.argument_names(chosen), tree.leaves(chosen), strict=True):
        found = leaf_value(leaf, name)
        if holomorphic and not dtypes.is_complex(found.dtype):
            raise DifferentiationError(
                f"A Jacobian of a holomorphic function needs complex inputs, but {name} is {found.type}.",
                where=here(),
                why="holomorphic=True says that the derivative is a complex number",
                fix="leave holomorphic out, or x.astype('complex64')",
            )
        if not dtypes.is_inexact(found.dtype) and not ints:
            raise DifferentiationError(
                f"A Jacobian needs real or complex inputs, but {name} is {found.type}.",
                where=here(),
                why="integers and booleans have no derivative",
                fix="x.astype('float32'), or leave the argument out of argnums",
            )

    def of_selected(*selected: Any) -> Any:
        full = list(args)
        for n, x in zip(numbers, selected, strict=True):
            full[n] = x
        return fun(*full, **kwargs)

    return of_selected, tuple(chosen)


def jacfwd(
    fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function:
    """The Jacobian column by column, by forward mode: best when there are few inputs. With ``has_aux`` the function
    returns ``(value, aux)``, and its Jacobian comes with the aux.

    >>> import meshwright.numpy as mnp
    >>> jacfwd(lambda x: x**2)(mnp.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    check_function(fun, "jacfwd")

    @wraps(fun)
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        of_selected, chosen = _select(fun, argnums, args, kwargs, holomorphic, False)
        leaves, in_tree = tree.flatten(chosen)
        values = [leaf_value(x, "an argument") for x in leaves]

        def push(*tangents: Any) -> Any:
            found = jvp(of_selected, tree.unflatten(in_tree, values), tree.unflatten(in_tree, tangents), has_aux)
            return found[1:] if has_aux else (found[1], ())

        columns, aux = vmap(push, out_axes=(0, None))(*_basis(values))

        def of_output(rows: Value) -> Any:
            # each block has the input's dims in front; they belong behind the output's
            blocks = [_rotate(block, x.ndim) for block, x in zip(_cut(rows, values), values, strict=True)]
            found = tree.unflatten(in_tree, blocks)
            return found[0] if isinstance(argnums, int) else found

        found = tree.map(of_output, columns)
        return (found, aux) if has_aux else found

    return jacobian_of


def _rotate(x: Value, count: int) -> Value:
    for _ in range(count):
        x = move_dim(x, 0, x.ndim - 1)
    return x


def jacrev(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """The Jacobian row by row, by reverse mode: best when there are few outputs. With ``has_aux`` the function returns
    ``(value, aux)``, and its Jacobian comes with the aux.

    >>> import meshwright.numpy as mnp
    >>> jacrev(lambda x: mnp.sum(x**2))(mnp.array([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """

    check_function(fun, "jacrev")

    @wraps(fun)
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        of_selected, chosen = _select(fun, argnums, args, kwargs, holomorphic, allow_int)
        out, pull, *aux = vjp(of_selected, *chosen, has_aux=has_aux)
        leaves, out_tree = tree.flatten(out)

        def back(*cotangents: Any) -> Any:
            return pull(tree.unflatten(out_tree, cotangents))

        rows = vmap(back)(*_basis(leaves))
        in_leaves, in_tree = tree.flatten(rows)
        per_input = [_cut(x, leaves) for x in in_leaves]
        found = []
        for n in range(len(leaves)):
            inputs = tree.unflatten(in_tree, [blocks[n] for blocks in per_input])
            found.append(inputs[0] if isinstance(argnums, int) else inputs)
        result = tree.unflatten(out_tree, found)
        return (result, *aux) if has_aux else result

    return jacobian_of


jacobian = jacrev


def hessian(
    fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function:
    """The matrix of second derivatives, forward over reverse; with ``has_aux``, also the aux.

    >>> import meshwright.numpy as mnp
    >>> hessian(lambda x: mnp.sum(x**3))(mnp.array([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)
