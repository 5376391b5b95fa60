"""Repairs of slips in the text of a device program: which reading the annotations allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.op import Op
from meshwright.device.dims import Size, divide, solve
from meshwright.device.function import DeviceValue, Number, Operand
from meshwright.device.ops import BROADCAST, SCATTER, is_structural
from meshwright.device.tensor_ops import infer, signature
from meshwright.device.types import Tensor, Tuple, Type, elements
from meshwright.errors import MeshwrightError


def fits(op: Op, operands: Sequence[Operand | None], attributes: dict[str, Any], annotated: Type) -> bool:
    """Whether annotations allow this op on these operands; what cannot be told from them is allowed."""
    types = []
    for x in operands:
        if x is None:
            return False
        if isinstance(x, DeviceValue) and x.type is None:
            return True
        types.append(x if isinstance(x, Number) else x.type)
    try:
        want = elements(annotated)
        if is_structural(op) and op not in (SCATTER, BROADCAST):
            return True
        if any(isinstance(t, Tuple) for t in types):
            return False
        if op is SCATTER:
            shape = _scattered(types[0], attributes, annotated)
        elif op is BROADCAST:
            shape = types[0].shape  # type: ignore[union-attr]
        else:
            shape = infer(op, [signature(t) for t in types], attributes)[0][0]  # type: ignore[arg-type]
    except MeshwrightError:
        return False
    return len(shape) == len(want.shape) and all(
        a == b or (solve(b, a) is not None) or (solve(a, b) is not None) for a, b in zip(shape, want.shape, strict=True)
    )


def _scattered(type: Any, attributes: dict[str, Any], annotated: Type) -> tuple[Size, ...]:
    if not isinstance(annotated, Tuple) or annotated.more or not isinstance(type, Tensor):
        return elements(annotated).shape
    dim = attributes.get("dim", 0)
    if not isinstance(dim, int) or not 0 <= dim < len(type.shape):
        return ()
    return type.resized(dim, divide(type.shape[dim], len(annotated.items))).shape
