"""Traced programs as device programs: everything on one device, ready to be transformed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core.program import Atom, Literal, Missing, Program, Var
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand
from meshwright.device.ops import OPS, written
from meshwright.device.types import Device, Tensor
from meshwright.errors import MeshwrightError


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
    return _EqnReader(device, names).function(program, name)


class _EqnReader:
    def __init__(self, device: int, names: Sequence[str] | None) -> None:
        self.device = Device(device)
        self.names = list(names or ())
        self.taken = set(self.names)
        self.count = 0
        self.env: dict[Var, Operand] = {}
        self.eqns: list[DeviceEqn] = []

    def function(self, program: Program, name: str) -> Function:
        inputs = []
        for n, var in enumerate(program.inputs):
            value = DeviceValue(self.names[n] if self.names else self.fresh(), self.typed(var))
            self.count += bool(self.names)
            self.env[var] = value
            inputs.append(value)
        self.walk(program)
        outputs = [self.returned(a) for a in program.outputs]
        return Function(name, tuple(inputs), tuple(self.eqns), tuple(outputs))

    def typed(self, var: Var) -> Tensor:
        return Tensor(var.type.shape, self.device, var.type.dtype)

    def fresh(self) -> str:
        while True:
            n, name = self.count, ""
            while n or not name:
                n, digit = divmod(n, 26)
                name = chr(ord("a") + digit) + name
            self.count += 1
            if name not in self.taken:
                self.taken.add(name)
                return name

    def read(self, atom: Atom) -> Operand:
        if isinstance(atom, Literal):
            return Number(atom.value, atom.type.dtype)
        return self.env[atom]

    def returned(self, atom: Atom) -> DeviceValue:
        """A returned number has an equation of its own: what a program returns stands on a device."""
        found = self.read(atom)
        return found if isinstance(found, DeviceValue) else self.constant(np.asarray(found.value, found.dtype))

    def constant(self, array: Any) -> DeviceValue:
        value = DeviceValue(self.fresh(), Tensor(array.shape, self.device, array.dtype))
        self.eqns.append(DeviceEqn("constant", (), (value,), {"value": np.asarray(array), "device": self.device}))
        return value

    def walk(self, program: Program) -> None:
        for var, data in program.constants:
            if isinstance(data, Missing):
                raise MeshwrightError(
                    "A constant of the program has no contents.",
                    why="the program was read from text, which keeps small arrays only",
                    fix="make the program again with mw.make_program(f)(…)",
                )
            self.env[var] = self.constant(np.asarray(data))
        for eqn in program.eqns:
            inputs = [self.read(a) for a in eqn.inputs]
            if eqn.op.calls is not None:
                self.inline(eqn.params[eqn.op.calls], inputs, eqn.outputs)
                continue
            outputs = tuple(DeviceValue(self.fresh(), self.typed(v)) for v in eqn.outputs)
            op, params = written(eqn.op), dict(eqn.params)
            if _is_matmul(eqn):
                op, params = OPS["MatMul"], {}
            if not any(isinstance(x, DeviceValue) for x in inputs):
                params = {"device": self.device, **params}
            self.eqns.append(DeviceEqn(op, tuple(inputs), outputs, params))
            self.env.update(zip(eqn.outputs, outputs, strict=True))

    def inline(self, region: Program, inputs: Sequence[Operand], outputs: Sequence[Var]) -> None:
        self.env.update(zip(region.inputs, inputs, strict=True))
        self.walk(region)
        for var, atom in zip(outputs, region.outputs, strict=True):
            self.env[var] = self.read(atom)


def _is_matmul(eqn: Any) -> bool:
    if eqn.op.name != "dot_general":
        return False
    x, y = (a.type for a in eqn.inputs)
    plain = eqn.params["contract"] == ((x.ndim - 1,), (0,)) and eqn.params["batch"] == ((), ())
    return bool(plain and y.ndim == 2 and x.ndim >= 1 and eqn.outputs[0].type.dtype == x.dtype == y.dtype)
