"""Work and bytes where sizes may be symbols: for comparisons, a symbol counts as a typical size."""

from __future__ import annotations

from math import prod

from meshwright.device.classes import signatures, tensor_of
from meshwright.device.dims import Dim, Size
from meshwright.device.function import Eqn, Value
from meshwright.device.tensor_ops import cost
from meshwright.device.types import Tensor

TYPICAL = 1024


def _number(size: Size) -> int:
    return int(size.coefficient * TYPICAL) if isinstance(size, Dim) else size


def nbytes_of(value: Value) -> float:
    """Bytes of a value; symbols count as a typical size."""
    t = tensor_of(value)
    return float(prod(_number(n) for n in t.shape) * t.dtype.itemsize)


def _typical(value: Value) -> Value:
    t = tensor_of(value)
    return Value(value.name, Tensor(tuple(_number(n) for n in t.shape), t.device, t.dtype))


def flops_of(eqn: Eqn) -> float:
    """Work of an equation; symbols count as a typical size."""
    inputs = [_typical(x) if isinstance(x, Value) else x for x in eqn.inputs]
    outputs = [_typical(v) for v in eqn.outputs]
    params = {k: v for k, v in eqn.attributes.items() if k != "device"}
    return cost(eqn.op, signatures(inputs), signatures(outputs), params).flops
