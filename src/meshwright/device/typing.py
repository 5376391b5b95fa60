"""Types for every value of a device program, where the text leaves them out."""

from __future__ import annotations

from meshwright.device.attributes import check_results
from meshwright.device.classes import is_tensor_eqn, tensor_of
from meshwright.device.dims import divide
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand
from meshwright.device.named_ops import NAMED
from meshwright.device.tensor_ops import infer, signature
from meshwright.device.types import UNKNOWN, Device, Tensor, Tuple, Type, elements
from meshwright.errors import DeviceError


def typed(fn: Function) -> Function:
    """The same function with a type on every value, as far as it follows without a device map."""
    if _is_typed(fn):
        return fn
    return _Typing(fn).function


def in_steps(fn: Function) -> Function:
    """The same function, typed, with equations that can be split further in place of those that are made of them.

    y = Gemm(x, w, b)        ==>        y_product = MatMul(x, w)
                                        b_rows = broadcast_in_dim(b, shape=(B, H), dims=(1,))
                                        y = add(y_product, b_rows)
    """
    fn = typed(fn)
    if not _has_steps(fn):
        return fn
    eqns: list[DeviceEqn] = []
    for eqn in fn.eqns:
        if eqn.body is not None:
            eqn = DeviceEqn(eqn.op, eqn.inputs, eqn.outputs, eqn.attributes, in_steps(eqn.body))
        steps = NAMED[eqn.op].steps if eqn.op in NAMED else None
        eqns += steps(eqn) if steps is not None else (eqn,)
    return fn.with_(eqns=tuple(eqns))


def _has_steps(fn: Function) -> bool:
    here = any(eqn.op in NAMED and NAMED[eqn.op].steps is not None for eqn in fn.eqns)
    return here or any(map(_has_steps, fn.bodies()))


def _is_typed(fn: Function) -> bool:
    values = (*fn.inputs, *(v for eqn in fn.eqns for v in eqn.outputs))
    return all(v.type is not None for v in values) and all(_is_typed(body) for body in fn.bodies())


class _Typing:
    def __init__(self, fn: Function) -> None:
        self.env: dict[DeviceValue, DeviceValue] = {}
        for v in fn.inputs:
            if v.type is None:
                raise DeviceError(
                    f"The input {v.name} has no type.",
                    why="its shape and device are not known",
                    fix=f"{v.name}: Tensor[(B, F), 0]",
                )
            self.env[v] = v
        eqns = [self.eqn(eqn) for eqn in fn.eqns]
        self.function = fn.with_(eqns=tuple(eqns), outputs=tuple(self.env[v] for v in fn.outputs))

    def eqn(self, eqn: DeviceEqn) -> DeviceEqn:
        inputs: list[Operand] = [x if isinstance(x, Number) else self.env[x] for x in eqn.inputs]
        body = typed(eqn.body) if eqn.body is not None else None
        types = [v.type for v in eqn.outputs]
        if any(t is None for t in types):
            found = self.types(eqn, inputs, body)
            check_results(eqn, len(found))
            types = [t if t is not None else f for t, f in zip(types, found, strict=True)]
        outputs = []
        for v, t in zip(eqn.outputs, types, strict=True):
            self.env[v] = v if v.type is not None else DeviceValue(v.name, t)
            outputs.append(self.env[v])
        return DeviceEqn(eqn.op, tuple(inputs), tuple(outputs), eqn.attributes, body)

    def types(self, eqn: DeviceEqn, inputs: list[Operand], body: Function | None) -> list[Type]:
        values = [x for x in inputs if isinstance(x, DeviceValue)]
        if body is not None:
            count = values[0].type
            assert count is not None
            if eqn.op == "call":
                return [_typed(v) for v in body.outputs]
            return [_spread(elements(_typed(v)), count) for v in body.outputs]
        if is_tensor_eqn(eqn):
            device = tensor_of(values[0]).device if values else eqn.attributes.get("device", UNKNOWN)
            if eqn.op == "constant":
                array = eqn.attributes["value"]
                return [Tensor(array.shape, device, array.dtype)]
            params = {k: v for k, v in eqn.attributes.items() if k != "device"}
            signatures = [signature(x if isinstance(x, Number) else tensor_of(x)) for x in inputs]
            return [Tensor(shape, device, dtype) for shape, dtype in infer(eqn.op, signatures, params)]
        return self.moved(eqn, values)

    def moved(self, eqn: DeviceEqn, values: list[DeviceValue]) -> list[Type]:
        given = values[0].type
        assert given is not None
        x, op, dim = elements(given), eqn.op, eqn.attributes.get("dim", 0)
        if op in ("scatter", "broadcast"):
            devices = eqn.attributes.get("devices")
            if devices is None:
                raise DeviceError(
                    f"{eqn.outputs[0].name} has no type.",
                    why="how many devices there are is known once a device map is given",
                    fix=f"{eqn.outputs[0].name}: Tuple[{x}, ...] = {op}(…)",
                )
            part = x.resized(dim, divide(x.shape[dim], len(devices))) if op == "scatter" else x
            whole: Type = Tuple(tuple(part.on(d if isinstance(d, Device) else Device(d)) for d in devices))
            return [whole]
        if op == "split":
            parts = eqn.attributes["parts"]
            return [Tuple((x.resized(dim, divide(x.shape[dim], parts)),) * parts)]
        if op == "tuple":
            return [Tuple(tuple(_typed(v) for v in values))]
        if op == "send":
            return [x.on(eqn.attributes["to_device"])]
        if op == "item":
            assert isinstance(given, Tuple)
            return [given.items[min(eqn.attributes["index"], len(given.items) - 1)]]
        count = len(given.items) if isinstance(given, Tuple) else len(values)
        if op == "gather":
            return [x.resized(dim, x.shape[dim] * count).on(eqn.attributes["to_device"])]
        if op == "allreduce":
            part = x
        elif op == "allgather":
            part = x.resized(dim, x.shape[dim] * count)
        else:
            part = x.resized(dim, divide(x.shape[dim], count))
        return [_spread(part, given)]


def _typed(value: DeviceValue) -> Type:
    assert value.type is not None
    return value.type


def _spread(part: Tensor, like: Type) -> Type:
    if isinstance(like, Tensor):
        return part
    return Tuple(tuple(part.on(elements(item).device) for item in like.items), like.more)
