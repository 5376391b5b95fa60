"""``-sdy-populate-op-sharding-rules``: the factor rule of every op, written on it."""

from __future__ import annotations

from typing import Any

from meshwright.interop.shardy.module_walk import RULE, Rules, walk
from meshwright.interop.shardy.sharding_rules import rule_text
from meshwright.interop.stablehlo.context import Types, context


def populate_rules(module: Any) -> None:
    """Write its rule on every op that has one and carries none."""
    from jaxlib.mlir import ir

    rules = Rules(Types())
    with context():
        for op in walk(module.operation):
            if RULE in op.attributes:
                continue
            rule = rules(op)
            if rule is not None:
                op.attributes[RULE] = ir.Attribute.parse(rule_text(rule))
