"""``-sdy-remove-all-gather-reduce-scatter-for-cmv1``: matmuls that take parts and leave parts.

What gathers the operands or scatters the sum is then part of the matmul, for a compiler that overlaps the two.
A matmul either takes parts or leaves them, not both.
"""

from __future__ import annotations

from typing import Any

from meshwright.interop.shardy.module_shardings import per_value_text
from meshwright.interop.shardy.module_walk import SHARDING, walk
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import context

_MATMULS = ("stablehlo.dot", "stablehlo.dot_general")


def merge_collectives_into_matmuls(module: Any) -> None:
    """Take away the gather before a matmul and the reduce-scatter behind it, where nobody else uses what is between.

    %1 = sdy.all_gather [{"x"}, {}] %0       ==>   %2 = dot_general %0, %b
    %2 = dot_general %1, %b
    """
    known = ValueShardings(module)
    with context():
        for op in [op for op in walk(module.operation) if op.name in _MATMULS]:
            gathers = [(n, made) for n, value in enumerate(op.operands) if (made := _gather_of(value)) is not None]
            for number, gather in gathers:
                op.operands[number] = gather.operands[0]
                gather.erase()
            users = [use.owner.operation for use in op.results[0].uses]
            if not gathers and len(users) == 1 and users[0].name == "sdy.reduce_scatter":
                _scatter(op, users[0], known)


def _gather_of(value: Any) -> Any | None:
    """The gather that made a value which is used once."""
    from jaxlib.mlir import ir

    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "sdy.all_gather":
        return None
    return value.owner.operation if len(list(value.uses)) == 1 else None


def _scatter(op: Any, scatter: Any, known: ValueShardings) -> None:
    """Let a matmul have the result of the reduce-scatter behind it."""
    from jaxlib.mlir import ir

    (now,) = known.of_results(op)
    if now is not None and now.unreduced:
        return
    (target,) = known.of_results(scatter)
    assert target is not None
    op.attributes[SHARDING] = ir.Attribute.parse(per_value_text([target]))
    scatter.results[0].replace_all_uses_with(op.results[0])
    scatter.erase()
