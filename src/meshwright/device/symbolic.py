"""Work and bytes where sizes may be symbols: for comparisons, a symbol counts as `SYMBOL_SIZE`."""

from __future__ import annotations

from math import prod

from meshwright.device.classes import signatures, tensor_of
from meshwright.device.dims import Dim, Size
from meshwright.device.function import DeviceEqn, DeviceValue
from meshwright.device.tensor_ops import cost, params_of
from meshwright.device.types import Tensor

SYMBOL_SIZE = 1024


def _number(size: Size) -> int:
    return int(size.coefficient * SYMBOL_SIZE) if isinstance(size, Dim) else size


def nbytes_of(value: DeviceValue) -> float:
    """Bytes of a value; symbols count as `SYMBOL_SIZE`."""
    t = tensor_of(value)
    return float(prod(_number(n) for n in t.shape) * t.dtype.itemsize)


def _sized(value: DeviceValue) -> DeviceValue:
    t = tensor_of(value)
    return DeviceValue(value.name, Tensor(tuple(_number(n) for n in t.shape), t.device, t.dtype))


def flops_of(eqn: DeviceEqn) -> float:
    """Work of an equation; symbols count as `SYMBOL_SIZE`."""
    inputs = [_sized(x) if isinstance(x, DeviceValue) else x for x in eqn.inputs]
    outputs = [_sized(v) for v in eqn.outputs]
    return cost(eqn.op, signatures(inputs), signatures(outputs), params_of(eqn)).flops
