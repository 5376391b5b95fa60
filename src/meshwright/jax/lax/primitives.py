"""``jax.lax.exp_p`` and its like: JAX's first-order operations as objects, to be named, compared and applied."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from meshwright.arrays.operands import value
from meshwright.core.op import REGISTRY, Op
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.interop.jaxpr.primitives import RULES
from meshwright.transform.policies import Policy

# Ops whose primitive in JAX has another name, and names in `lax` of primitives that have another one themselves.
_OF_OPS = {
    "maximum": "max", "minimum": "min", "convert": "convert_element_type", "bitcast": "bitcast_convert_type",
    "reverse": "rev", "select": "select_n",
}  # fmt: skip
_IN_LAX = {f"scatter_{name}": f"scatter-{name}" for name in ("add", "mul", "min", "max", "sub")}
# What stands in programs of JAX and is an op of no name here, or a structure that functions make.
_NAMES_ALONE = frozenset({
    "after_all", "create_token", "dce_sink", "device_put", "linear_solve", "reduce", "reduce_window",
    "select_and_scatter", "ragged_all_to_all", "rng_bit_generator", "random_gamma",
})  # fmt: skip
_SEVERAL = frozenset({
    "approx_top_k", "eig", "eigh", "lu", "optimization_barrier", "qr", "sort", "split", "svd", "threefry2x32", "top_k",
    "unstack", "hessenberg", "tridiagonal", "psum", "pmax", "pmin", "scan", "while", "cond", "reduce", "reduce_window",
    "linear_solve", "dce_sink",
})  # fmt: skip


class Primitive:
    """One operation of JAX's programs: its ``name``, and ``bind``, which applies it with the parameters JAX gives it.

    >>> import meshwright.jax as jax
    >>> jax.lax.reduce_sum_p.bind(jax.numpy.ones((2, 3)), axes=(1,)).tolist()
    [3.0, 3.0]
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.multiple_results = name in _SEVERAL

    def bind(self, *args: Any, **params: Any) -> Any:
        """The result on arrays, or a list of results."""
        rule = RULES.get(self.name)
        if rule is None:
            raise MeshwrightError(
                f"The primitive {self.name} cannot be applied by itself.",
                where=here(),
                why="its parameters hold programs or tokens of JAX, which are not made here",
                fix="the function of its name in jax.lax",
            )
        found = rule(*map(value, args), **params)
        return list(found) if isinstance(found, tuple | list) else found

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


@cache
def primitive(name: str) -> Primitive:
    """The one object of a primitive."""
    return Primitive(name)


def find_primitive(name: str) -> Primitive | None:
    """What ``lax.exp_p`` is, if the name ends so and JAX's operation is known here."""
    if not name.endswith("_p"):
        return None
    bare = name.removesuffix("_p")
    bare = _IN_LAX.get(bare, bare)
    known = bare in RULES or bare in _NAMES_ALONE or (REGISTRY.find(bare) is not None and bare not in _OF_OPS)
    return primitive(bare) if known else None


def primitive_of(op: Op) -> Primitive:
    """The primitive that an op is in JAX: policies of ``checkpoint`` compare it."""
    name = _OF_OPS.get(op.name, op.name)
    return primitive(_IN_LAX.get(name, name))


def asked_of_primitives(policy: Any) -> Any:
    """A policy of ``checkpoint`` as JAX calls it, with primitives, as one that is asked of ops."""
    if policy is None or isinstance(policy, Policy) or not callable(policy):
        return policy

    @wraps(policy)
    def asked(op: Op, *types: Any, **params: Any) -> Any:
        return policy(primitive_of(op), *types, **params)

    return asked
