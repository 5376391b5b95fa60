"""Walking a module: its ops as instances, and their rules, each kind of instance once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.core.factors import Factors
from meshwright.interop.shardy.foreign_rules import NEIGHBOURS
from meshwright.interop.shardy.sharding_rules import WITHOUT, factor_rule, read_rule
from meshwright.interop.stablehlo.context import Types
from meshwright.interop.stablehlo.instance import Instance

SHARDING = "sdy.sharding"
RULE = "sdy.sharding_rule"
ORIGINAL_NAME = "sdy.original_func_name"


def walk(op: Any) -> Iterator[Any]:
    """All operations inside one, an op before those inside it."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from walk(inner.operation)


class Rules:
    """Factor rules of instances. Instances of equal name, types and attributes have one rule, which is made once."""

    def __init__(self, types: Types, conservative: bool = False) -> None:
        self.types, self.conservative = types, conservative
        self._made: dict[Any, Factors | None] = {}
        self.unknown: list[str] = []

    def instance(self, op: Any, attributes: dict[str, Any]) -> Instance | None:
        """The op with its types; None if one of them is no tensor of static shape."""
        operands = tuple(self.types(value.type) for value in op.operands)
        results = tuple(self.types(value.type) for value in op.results)
        if None in operands or None in results:
            return None
        return Instance(op.name, operands, results, attributes, op)  # type: ignore[arg-type]

    def __call__(self, op: Any) -> Factors | None:
        """The rule of an op: the one written on it, or its own."""
        if op.name in WITHOUT:
            return None
        attributes = dict(op.attributes.items())
        written = attributes.pop(RULE, None)
        attributes.pop(SHARDING, None)
        if written is not None:
            key: Any = written
        elif op.name in NEIGHBOURS or op.name == "stablehlo.custom_call":
            key = None
        else:
            key = (
                op.name,
                tuple(attributes.values()),
                tuple(value.type for value in op.operands),
                tuple(value.type for value in op.results),
            )
            if len(op.regions):
                key = (*key, tuple(_body_key(region.blocks[0]) for region in op.regions if len(region.blocks)))
        if key is not None and key in self._made:
            return self._made[key]
        if written is not None:
            rule: Factors | None = read_rule(str(written))[0]
        else:
            instance = self.instance(op, attributes)
            rule = None if instance is None else factor_rule(instance, self.conservative)
        if key is not None:
            self._made[key] = rule
        return rule


def _body_key(block: Any) -> tuple[Any, ...]:
    """What a block does, comparable: printing a block would number the whole module around it."""
    numbers = {value: number for number, value in enumerate(block.arguments)}
    found: list[Any] = []
    for inner in block.operations:
        op = inner.operation
        regions = tuple(_body_key(inside) for region in op.regions for inside in region.blocks)
        operands = tuple(numbers.get(value, value) for value in op.operands)
        types = tuple(value.type for value in op.results)
        try:
            attributes: Any = tuple(dict(op.attributes.items()).values())
        except TypeError:  # the bindings cannot say what a constant of complex numbers is
            attributes = str(op)
        found.append((op.name, operands, types, attributes, regions))
        for value in op.results:
            numbers[value] = len(numbers)
    return tuple(found)
