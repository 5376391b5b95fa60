"""Ops, types and attributes of StableHLO, made at the current insertion point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def made_op(name: str, operands: list[Any], results: list[Any], **attributes: Any) -> Any:
    """The first result of a new op."""
    from jaxlib.mlir import ir

    return ir.Operation.create(name, results=results, operands=operands, attributes=attributes).result


def parsed(text: str) -> Any:
    """An attribute, read from its text."""
    from jaxlib.mlir import ir

    return ir.Attribute.parse(text)


def tensor(shape: Sequence[int], element: Any) -> Any:
    """A tensor's type; the element type may be its name."""
    from jaxlib.mlir import ir

    return ir.RankedTensorType.get(shape, ir.Type.parse(element) if isinstance(element, str) else element)


def int_array(numbers: Sequence[int]) -> Any:
    """``array<i64: 1, 2>``."""
    from jaxlib.mlir import ir

    return ir.DenseI64ArrayAttr.get(numbers)


def int_attribute(number: int) -> Any:
    """``3 : i64``."""
    from jaxlib.mlir import ir

    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def dense(numbers: Any) -> Any:
    """``dense<[1, 2]>``."""
    from jaxlib.mlir import ir

    return ir.DenseElementsAttr.get(np.asarray(numbers))  # type: ignore[call-overload]


def constant(value: Any) -> Any:
    """A constant of NumPy's array."""
    from jaxlib.mlir import ir

    if value.dtype == bool:
        listed = ", ".join("true" if one else "false" for one in value)
        attribute = ir.Attribute.parse(f"dense<[{listed}]> : tensor<{len(value)}xi1>")
    else:
        attribute = dense(value)
    return made_op("stablehlo.constant", [], [attribute.type], value=attribute)


def constant_of(text: str, type: str) -> Any:
    """A constant of an attribute's text: the bindings cannot hold one of complex numbers."""
    from jaxlib.mlir import ir

    made = ir.Operation.parse(f'%0 = "stablehlo.constant"() <{{value = {text}}}> : () -> {type}')
    ir.InsertionPoint.current.insert(made)
    return made.operation.results[0]


def zeros(type: Any) -> Any:
    """Zeros of a type."""
    return filled(type, "0")


def filled(type: Any, digit: str) -> Any:
    """Zeros or ones of a type."""
    element = str(type.element_type)
    number = digit if element.startswith(("i", "ui", "si")) else f"{digit}.0"
    if element == "i1":
        number = ("false", "true")[digit == "1"]
    elif element.startswith("complex"):
        number = f"({digit}.0,0.0)"
    return constant_of(f"dense<{number}> : {type}", str(type))


def reshaped(value: Any, shape: Sequence[int]) -> Any:
    """A value in another shape."""
    return made_op("stablehlo.reshape", [value], [tensor(shape, value.type.element_type)])


def transposed(value: Any, order: Sequence[int]) -> Any:
    """A value with its dims in another order."""
    shape = [value.type.shape[n] for n in order]
    return made_op(
        "stablehlo.transpose", [value], [tensor(shape, value.type.element_type)], permutation=int_array(order)
    )
