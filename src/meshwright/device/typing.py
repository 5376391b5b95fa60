"""Types for every value of a device program, where the text leaves them out."""

from __future__ import annotations

from typing import Any

from meshwright.device.dims import unwitness
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Operand
from meshwright.device.ops import BROADCAST, SCATTER, DeviceOp
from meshwright.device.tensor_ops import infer, is_tensor_eqn, params_of, plain_types, signatures, tensor_of
from meshwright.device.types import UNKNOWN, Tensor, Type
from meshwright.errors import DeviceError, ShapeError


def typed(fn: Function) -> Function:
    """The same function with a type on every value, as far as it follows without a device map."""
    if _is_typed(fn):
        return fn
    fn = fn.with_bodies(typed)
    unknown = next((v.name for v in fn.inputs if v.type is None), None)
    if unknown is not None:
        raise DeviceError(
            f"The input {unknown} has no type.",
            why="its shape and device are not known",
            fix=f"{unknown}: Tensor[(B, F), 0]",
        )
    env: dict[Operand, DeviceValue] = {}
    eqns = []
    for eqn in fn.eqns:
        made = eqn.with_(inputs=tuple(env.get(x, x) for x in eqn.inputs))
        if any(v.type is None for v in eqn.outputs):
            found = _types(made)
            check_results(eqn, len(found))
            env |= {v: DeviceValue(v.name, t) for v, t in zip(eqn.outputs, found, strict=True) if v.type is None}
        eqns.append(made.with_(outputs=tuple(env.get(v, v) for v in eqn.outputs)))
    return fn.with_(eqns=tuple(eqns), outputs=tuple(env.get(v, v) for v in fn.outputs))


def in_steps(fn: Function) -> Function:
    """The same function, typed, with equations that can be split further in place of those that are made of them.

    y = Gemm(x, w, b)        ==>        y_product = MatMul(x, w)
                                        b_rows = broadcast_in_dim(b, shape=(B, H), dims=(1,))
                                        y = add(y_product, b_rows)
    """
    fn = typed(fn).with_bodies(in_steps)
    eqns: list[DeviceEqn] = []
    for eqn in fn.eqns:
        steps = eqn.op.steps if isinstance(eqn.op, DeviceOp) else None
        found = steps(plain_types(eqn.inputs), eqn.attributes) if steps is not None else ()
        operands, (out, *_) = [*eqn.inputs], eqn.outputs
        for n, step in enumerate(found):
            taken = tuple(operands[at] for at in step.operands)
            owner, params = (taken[0] if len(taken) == 1 else out), {k: unwitness(v) for k, v in step.params.items()}
            if isinstance(owner, DeviceValue):  # a number is as large as what it meets
                made = out if n == len(found) - 1 else DeviceValue(f"{owner.name}_{step.name}", out.type)
                eqns.append(DeviceEqn(step.op, taken, (made,), params))
                operands.append(made)
            else:
                operands.append(owner)
        eqns += [] if found else [eqn]
    return fn if len(eqns) == len(fn.eqns) else fn.with_(eqns=tuple(eqns))


def _is_typed(fn: Function) -> bool:
    values = (*fn.inputs, *(v for eqn in fn.eqns for v in eqn.outputs))
    return all(v.type is not None for v in values) and all(_is_typed(body) for body in fn.bodies())


def _types(eqn: DeviceEqn) -> list[Type]:
    """The types of an equation's results, of which some are not written."""
    if is_tensor_eqn(eqn):
        device = tensor_of(eqn.values[0]).device if eqn.values else eqn.attributes.get("device", UNKNOWN)
        found = infer(eqn.op, signatures(eqn.inputs), params_of(eqn))
        return [Tensor(shape, device, dtype) for shape, dtype in found]
    if eqn.op in (SCATTER, BROADCAST) and eqn.attributes.get("devices") is None:
        raise DeviceError(
            f"{eqn.outputs[0].name} has no type.",
            why="how many devices there are is known once a device map is given",
            fix=f"{eqn.outputs[0].name}: Tuple[{tensor_of(eqn.values[0])}, ...] = {eqn.op}(…)",
        )
    made: Any = eqn.op.type(*(v.type for v in eqn.values), **eqn.params)  # type: ignore[arg-type]
    return list(made) if isinstance(made, tuple) else [made]


def check_results(eqn: DeviceEqn, count: int) -> None:
    """Refuse an equation that names more or fewer results than there are."""
    if count != len(eqn.outputs):
        names = [v.name for v in eqn.outputs]
        fix = [*names, *(f"{names[-1]}_{n}" for n in range(2, count + 2))][:count]
        raise ShapeError(
            f"{eqn.op} gives {count} results, not {len(names)}.",
            why=f"named are {', '.join(names)}",
            fix=f"{', '.join(fix)} = {eqn.op}(…)",
        )
