"""Shardings of the values of a module, wherever they are written: on an op, a function or the loop around."""

from __future__ import annotations

from typing import Any

from meshwright.interop.shardy.module_shardings import Shardings, meshes_of
from meshwright.interop.shardy.module_walk import SHARDING
from meshwright.interop.shardy.problem_reader import axis_names
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import TensorSharding

_OWN = ("sharding", "out_sharding")  # of ops of sdy with one result


class ValueShardings:
    """What each value's sharding is; the module is read as it is asked."""

    def __init__(self, module: Any) -> None:
        self.shardings = Shardings(meshes_of(module))

    def __call__(self, value: Any) -> TensorSharding | None:
        """The sharding of a value, None if nobody says."""
        from jaxlib.mlir import ir

        if isinstance(value.owner, ir.Block):
            return self._argument(ir.BlockArgument(value))
        op = value.owner.operation
        if op.name == "sdy.propagation_barrier" and SHARDING not in op.attributes:
            return self(op.operands[0])
        return self.of_results(op)[ir.OpResult(value).result_number]

    def of_results(self, op: Any) -> tuple[TensorSharding | None, ...]:
        """The shardings of the results of an op."""
        attributes = op.attributes
        for name in _OWN:
            if op.name.startswith("sdy.") and name in attributes:
                return (self.shardings.one(attributes[name]),)
        if op.name in ("sdy.manual_computation", "sdy.named_computation"):
            return self.of_side(op, "out_shardings", len(op.results))
        if SHARDING not in attributes:
            return (None,) * len(op.results)
        return self.shardings.several(attributes[SHARDING])

    def _argument(self, argument: Any) -> TensorSharding | None:
        op: Any = argument.owner.owner.operation
        number: int = argument.arg_number
        if op.name == "func.func":
            return self.of_function(op, "arg_attrs", len(argument.owner.arguments))[number]
        if op.name in ("sdy.manual_computation", "sdy.named_computation"):
            found = self.of_side(op, "in_shardings", len(op.operands))[number]
            return None if found is None else without_axes(found, manual_axes(op))
        if op.name == "stablehlo.while":
            return self.of_results(op)[number]
        return None

    def of_side(self, op: Any, side: str, count: int) -> tuple[TensorSharding | None, ...]:
        """The shardings that a computation says its operands or results have; a named one may say nothing."""
        attributes = op.attributes
        return self.shardings.several(attributes[side]) if side in attributes else (None,) * count

    def of_function(self, op: Any, side: str, count: int) -> list[TensorSharding | None]:
        """The shardings of the arguments (``arg_attrs``) or results (``res_attrs``) of a function."""
        return self.shardings.of_dictionaries(op.attributes.get(side), count)


def manual_axes(op: Any) -> frozenset[str]:
    """The axes that a manual computation is manual over."""
    if op.name != "sdy.manual_computation":
        return frozenset()
    return frozenset(axis_names(str(op.attributes["manual_axes"])))


def without_axes(sharding: TensorSharding, names: frozenset[str]) -> TensorSharding:
    """The sharding inside a computation that is manual over some axes."""
    if not names:
        return sharding
    dims = tuple(
        DimensionSharding(tuple(axis for axis in dim.axes if axis.name not in names), dim.is_open, dim.priority)
        for dim in sharding.dims
    )
    replicated, unreduced = (
        tuple(axis for axis in axes if axis.name not in names) for axes in (sharding.replicated, sharding.unreduced)
    )
    return TensorSharding.unchecked(sharding.mesh, dims, replicated, unreduced, sharding.reduction)
