"""Traced programs as device programs: everything on one device, ready to be transformed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from typing import Any, TypeVar, cast

import numpy as np

from meshwright.core.program import Atom, Literal, Missing, Program
from meshwright.core.text.printing import letters
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand
from meshwright.device.ops import CONSTANT, OPS, written
from meshwright.device.types import Device, Tensor
from meshwright.errors import MeshwrightError
from meshwright.transform.stack import inline_calls

F = TypeVar("F", bound=Callable[..., Any])


def from_program(
    program: Program, names: Sequence[str] | None = None, *, device: int = 0, name: str = "program"
) -> Function:
    """A traced program as a device program on one device; ``names`` are those of its inputs.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import dist
    >>> program = mw.make_program(lambda w, x: mnp.tanh(x @ w))(mnp.ones((4, 6)), mnp.ones((8, 4)))
    >>> print(dist.from_program(program, ["w", "x"]))
    def program(w: Tensor[(4, 6), 0], x: Tensor[(8, 4), 0]):
        c: Tensor[(8, 6), 0] = MatMul(x, w)
        d: Tensor[(8, 6), 0] = tanh(c)
        return d
    """
    if not isinstance(program, Program):
        raise MeshwrightError(
            "dist.from_program takes a program.",
            why=f"it is given {type(program).__name__}",
            fix="dist.from_program(mw.make_program(f)(*args))",
        )
    if names is not None and len(names) != len(program.inputs):
        raise MeshwrightError(
            f"The program has {len(program.inputs)} inputs, not {len(names)}.",
            why="each input has one name; the leaves of a pytree are inputs of their own",
            fix=f"names={[f'x{n}' for n in range(len(program.inputs))]}",
        )
    program = inline_calls(program, shard_maps=False)
    here, taken, numbers = Device(device), frozenset(names or ()), count(len(names or ()))
    eqns: list[DeviceEqn] = []

    def value(like: Any, name: str = "") -> DeviceValue:
        name = name or next(fresh for n in numbers if (fresh := letters(n)) not in taken)
        return DeviceValue(name, Tensor(like.shape, here, like.dtype))

    def constant(array: Any) -> DeviceValue:
        out = value(array)
        eqns.append(DeviceEqn(CONSTANT, (), (out,), {"value": array, "device": here}))
        return out

    def read(atom: Atom) -> Operand:
        return Number(atom.value, atom.type.dtype) if isinstance(atom, Literal) else env[atom]

    env = {v: value(v.type, names[n] if names else "") for n, v in enumerate(program.inputs)}
    inputs = tuple(env.values())
    for var, data in program.constants:
        if isinstance(data, Missing):
            raise MeshwrightError(
                "A constant of the program has no contents.",
                why="the program was read from text, which keeps small arrays only",
                fix="make the program again with mw.make_program(f)(…)",
            )
        env[var] = constant(np.asarray(data))
    for eqn in program.eqns:
        op, params = (OPS["MatMul"], {}) if _is_matmul(eqn) else (written(eqn.op), eqn.params)
        if all(isinstance(a, Literal) for a in eqn.inputs):
            params = {"device": here, **params}
        operands = tuple(read(a) for a in eqn.inputs)
        env.update((v, value(v.type)) for v in eqn.outputs)
        eqns.append(DeviceEqn(op, operands, tuple(env[v] for v in eqn.outputs), params))
    # What a program returns stands on a device: a returned number has an equation of its own.
    found = [read(a) for a in program.outputs]
    outputs = tuple(constant(np.asarray(x.value, x.dtype)) if isinstance(x, Number) else x for x in found)
    return Function(name, inputs, tuple(eqns), outputs)


def takes_program(transform: F) -> F:
    """A function of device programs that takes traced ones, too, as `from_program` makes them device programs."""

    @wraps(transform)
    def taking(fn: Program, *args: Any, **kwargs: Any) -> Any:
        return transform(fn if isinstance(fn, Function) else from_program(fn), *args, **kwargs)

    return cast(F, taking)


def _is_matmul(eqn: Any) -> bool:
    if eqn.op.name != "dot_general":
        return False
    x, y = (a.type for a in eqn.inputs)
    plain = eqn.params["contract"] == ((x.ndim - 1,), (0,)) and eqn.params["batch"] == ((), ())
    return bool(plain and y.ndim == 2 and x.ndim >= 1 and eqn.outputs[0].type.dtype == x.dtype == y.dtype)
