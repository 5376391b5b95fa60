"""Dicts come back in key order, by every function that makes trees anew, as JAX makes them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import jax
import pytest

import meshwright.jax

Pair = namedtuple("Pair", "second first")


def orders(lib: Any) -> dict[str, Callable[[], Any]]:
    """Trees that functions of one of the two packages return."""
    jnp, tree, lax = lib.numpy, lib.tree, lib.lax
    one = jnp.ones(2)
    small = {"z": one, "a": one}
    large = {
        "w": one,
        "b": {"z": one, "c": [one, {"y": one, "x": None}]},
        "pair": Pair({"q": one, "p": one}, one),
        "ordered": OrderedDict(z=one, a=one),
        "default": defaultdict(list, {"z": one, "a": one}),
    }
    jitted, made = lib.jit(lambda p: tree.map(lambda x: x * 2, p)), lib.jit(lambda: {"z": 1.0, "a": 2.0})
    total = lambda p: sum(x.sum() for x in tree.leaves(p))
    leaves, structure = tree.flatten(large)
    listed: list[Any] = []
    return {
        "tree.map": lambda: tree.map(lambda x: x, large),
        "tree.unflatten": lambda: tree.unflatten(structure, leaves),
        "unflatten of a structure": lambda: structure.unflatten(leaves),
        "tree.transpose": lambda: tree.transpose(tree.structure([0, 0]), tree.structure(small), [small, small]),
        "tree_map_with_path": lambda: lib.tree_util.tree_map_with_path(lambda _, x: x, large),
        "jit": lambda: [jitted(large) for _ in range(3)],
        "jit without arguments": lambda: [made() for _ in range(3)],
        "what a jitted function is given": lambda: (lib.jit(lambda p: listed.append(list(p)))(small), listed),
        "grad": lambda: lib.grad(total)(large),
        "vmap": lambda: lib.vmap(lambda p: p)(small),
        "scan": lambda: lax.scan(lambda carry, _: (carry, carry), small, None, length=2),
        "cond": lambda: lax.cond(True, lambda: {"z": 1.0, "a": 2.0}, lambda: {"a": 1.0, "z": 2.0}),
        "jvp": lambda: lib.jvp(lambda p: p, (small,), (small,)),
        "eval_shape": lambda: lib.eval_shape(lambda: {"z": 1.0, "a": 2.0}),
        "checkpoint": lambda: lib.checkpoint(lambda p: p)(small),
        "device_put": lambda: lib.device_put(small),
    }


def keys(found: Any) -> Any:
    """The keys of a tree in their order."""
    if isinstance(found, dict):
        return [(key, keys(value)) for key, value in found.items()]
    return [keys(value) for value in found] if isinstance(found, list | tuple) else type(found) is str and found


OURS, THEIRS = orders(meshwright.jax), orders(jax)


@pytest.mark.parametrize("name", OURS)
def test_dicts_are_in_the_order_that_jax_makes(name: str) -> None:
    assert keys(OURS[name]()) == keys(THEIRS[name]())
