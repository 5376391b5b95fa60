"""``-mw-propagate``: a module whose independent ops are written in another order has the same shardings."""

from __future__ import annotations

import random
from typing import Any

import pytest
from jaxlib.mlir import ir

from meshwright.interop.shardy.module_walk import walk
from meshwright.interop.shardy.order_free import moved_by
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import context, parse_module
from tests.oracle.random_modules import Recipe, random_module
from tests.oracle.random_ops import Settings

RECIPE = Recipe(features=(), settings=Settings(unreduced=False))


def tagged(seed: int) -> Any:
    """A random module whose ops have numbers."""
    module = parse_module(random_module(seed, RECIPE))
    with context():
        for number, op in enumerate(walk(module.operation)):
            op.attributes["tag"] = ir.Attribute.parse(f"{number} : i64")
    return parse_module(str(module))


def shuffled(module: Any, rng: random.Random) -> Any:
    """The same module, the ops of each function in another order in which each comes after what it uses."""
    module = parse_module(str(module))
    with context():
        for function in module.body.operations:
            if function.operation.name != "func.func":
                continue
            *ops, end = [op.operation for op in function.operation.regions[0].blocks[0].operations]
            made: set[Any] = {value for op in ops for value in op.results}
            while ops:
                ready = [op for op in ops if not any(value in made for value in _used(op))]
                op = rng.choice(ready)
                op.move_before(end)
                made.difference_update(op.results)
                ops.remove(op)
    return module


def _used(op: Any) -> list[Any]:
    return [*op.operands, *(value for inner in walk(op) for value in inner.operands)]


def shardings(module: Any) -> dict[str, str]:
    """The sharding of each op, by its number, and those of the function."""
    found: dict[str, str] = {}
    for op in walk(module.operation):
        written = [str(op.attributes[key]) for key in ("sdy.sharding", "sharding") if key in op.attributes]
        if op.name == "func.func":
            written = [str(op.attributes.get("arg_attrs")), str(op.attributes.get("res_attrs"))]
        if "tag" in op.attributes:  # an op that another one prints as its own has none
            found[str(op.attributes["tag"])] = " ".join(written)
    return found


def results(seed: int, orders: int) -> tuple[int, float, float]:
    """How many results there are in so many orders; the bytes that ours moves, and Shardy's order."""
    module, rng = tagged(seed), random.Random(seed)
    different = set()
    for number in range(orders):
        given = shuffled(module, rng) if number else module
        different.add(str(sorted(shardings(apply_passes(given, ["mw-propagate"]).module).items())))
    ours = moved_by(apply_passes(parse_module(str(module)), ["mw-propagate"]).module)
    theirs = moved_by(apply_passes(parse_module(str(module)), ["sdy-user-priority-propagate"]).module)
    return len(different), ours.received_bytes, theirs.received_bytes


def test_the_order_of_independent_ops_does_not_matter() -> None:
    found = [results(seed, 3) for seed in range(25)]
    assert [seed for seed, (count, _, _) in enumerate(found) if count > 1] == []
    assert sum(ours for _, ours, _ in found) <= sum(theirs for _, _, theirs in found)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 11000, 500))
def test_the_order_of_independent_ops_does_not_matter_for_many_programs(first: int) -> None:
    found = [results(seed, 5) for seed in range(first, first + 500)]
    assert [first + n for n, (count, _, _) in enumerate(found) if count > 1] == []
    print("bytes, in those of Shardy:", sum(ours for _, ours, _ in found) / sum(theirs for _, _, theirs in found))
