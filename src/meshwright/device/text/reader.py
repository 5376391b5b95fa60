"""Reading device programs.

    def matmul(wA: Tensor[(F, H), 0], x: Tensor[(B, F), 0]):
        device_map: DeviceMap = {1: [1, 3], 2: [2, 4]}
        xs: Tuple[Tensor[(B/2, F), 1], Tensor[(B/2, F), 2]] = scatter(x, dim=0, device_keys=[])
        …
        return a

Line breaks and indentation do not matter. A *slip* is a name or a bracket that cannot be meant: a value that does not
exist where it is used, or does not have the annotated type, while exactly one other does. A slip is corrected, with a
warning that says how; ``strict=True`` makes it an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from meshwright.core.op import Op
from meshwright.core.signature import signature_of
from meshwright.core.text.tokens import read_list
from meshwright.device.device_map import DeviceMap
from meshwright.device.dims import Sizes, divide, solve
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Keys, Operand
from meshwright.device.ops import (
    BROADCAST,
    NO_SUCH_OP,
    OPS,
    SCATTER,
    TUPLE,
    is_structural,
    ops_to_write,
    spelled,
    tensor_op,
)
from meshwright.device.tensor_ops import infer, signatures
from meshwright.device.text.types import TypeReader
from meshwright.device.types import Device, Tuple, Type, elements
from meshwright.errors import MeshwrightError, TextError


class SlipWarning(UserWarning):
    """A slip in the text of a device program that was corrected."""


def parse(text: str, *, strict: bool = False) -> Function:
    """Read a device program; ``str`` prints it back.

    >>> fn = parse("def f(x: Tensor[(B, F), 0], w: Tensor[(F, H), 0]): y: Tensor[(B, H), 0] = MatMul(x, w) return y")
    >>> print(fn)
    def f(x: Tensor[(B, F), 0], w: Tensor[(F, H), 0]):
        y: Tensor[(B, H), 0] = MatMul(x, w)
        return y
    >>> parse(str(fn)) == fn
    True
    """
    reader = _FunctionReader(text, strict)
    fn = reader.function()
    for slip in fn.slips:
        warnings.warn(slip, SlipWarning, stacklevel=2)
    return fn


_Scope = dict[str, DeviceValue]  # the values that a body sees, by name


class _FunctionReader(TypeReader):
    def __init__(self, text: str, strict: bool) -> None:
        super().__init__(text, strict)
        self.device_map: DeviceMap | None = None
        self.map_input: tuple[str, int] | None = None
        self.map_names = {"device_map"}

    # Structure

    def function(self) -> Function:
        self.take("def")
        name = self.word("the name of the function")
        self.take("(")
        inputs = self.parameters(")")
        self.take(":")
        scope = {v.name: v for v in inputs}
        eqns, outputs = self.statements(scope, "end")
        if self.kind != "end":
            raise self.fail("There is more after the function's return.", fix="one function per text")
        fn = Function(name, tuple(inputs), tuple(eqns), tuple(outputs), self.device_map, None, tuple(self.slips))
        return _with_one_map(fn.with_(map_input=self.map_input))

    def parameters(self, close: str, *, body: bool = False) -> list[DeviceValue]:
        found: dict[str, DeviceValue] = {}
        while not self.accept(close):
            at = self.position
            name = self.word("the name of an input")
            typed = self.accept(":")
            if name in found or (self.map_input is not None and name == self.map_input[0]):
                raise self.fail(f"The input {name} is listed twice.", fix="give each input a name of its own", at=at)
            if typed and self.accept("DeviceMap"):
                if body or self.map_input is not None:
                    raise self.fail(
                        "A program has one device map among its inputs.",
                        "the body of a pmap sees the map of the program"
                        if body or self.map_input is None
                        else f"{self.map_input[0]} is one",
                        "pmap(lambda d: lambda (x): {…}, device_map={1: [1, 3], 2: [2, 4]}, (xs,))",
                        at,
                    )
                self.map_input = (name, len(found))
                self.map_names.add(name)
            else:
                found[name] = DeviceValue(name, self.type() if typed else None)
            if self.peek() != close:
                self.take(",")
        return list(found.values())

    def statements(self, scope: _Scope, close: str) -> tuple[list[DeviceEqn], list[DeviceValue]]:
        eqns: list[DeviceEqn] = []
        while True:
            if self.accept("return"):
                outputs = [self.use(scope)]
                while self.accept(","):
                    outputs.append(self.use(scope))
                return eqns, outputs
            if self.kind == "end" or self.peek() == close:
                raise self.fail("A function ends in a return.", fix="return y")
            made = self.statement(scope)
            if made is not None:
                eqns.append(made)

    def use(self, scope: _Scope) -> DeviceValue:
        at = self.position
        name = self.word("the name of a value")
        if name not in scope:
            raise self.undefined(name, at, scope)
        return scope[name]

    def undefined(self, name: str, at: int, scope: _Scope) -> TextError:
        known = ", ".join(scope) or "none"
        return self.fail(
            f"{name} is not defined here.",
            f"a body sees its own inputs only; the values here are: {known}",
            f"pass {name} to the pmap, or use one of the values above",
            at,
        )

    def statement(self, scope: _Scope) -> DeviceEqn | None:
        targets: list[tuple[str, Type | None]] = []
        start = self.position
        while True:
            name = self.word("a statement")
            type: Type | None = None
            if self.accept(":"):
                type = None if self.accept("DeviceMap") else self.type()
            targets.append((name, type))
            if not self.accept(","):
                break
        self.take("=")
        if len(targets) == 1 and self.peek() in "{[" and targets[0][1] is None:
            self.map_names.add(targets[0][0])
            self.set_map(self.tree(), start)
            return None
        if len(targets) == 1 and self.peek() == "get_sub_device":
            self.sub_device(targets[0][0], scope, start)
            return None
        if self.peek() == "(" and self.second() == "...":
            for mark in ("(", "...", ")"):
                self.take(mark)
            return None
        eqn = self.expression(scope, [DeviceValue(name, type) for name, type in targets])
        for value in eqn.outputs:
            if value.name in scope:
                raise self.fail(f"{value.name} is defined twice.", fix="give each value a name of its own", at=start)
            scope[value.name] = value
        return eqn

    def sub_device(self, name: str, scope: _Scope, at: int) -> None:
        """``e = get_sub_device(d)``: e is d.1; another one is d.2, and so on."""
        self.take()
        self.take("(")
        below = self.device()
        taken = sum(alias.base == below.base and alias.steps[:-1] == below.steps for alias in self.aliases.values())
        self.take(")")
        if name in scope or name in self.aliases:
            raise self.fail(f"{name} is defined twice.", fix="give each device a name of its own", at=at)
        self.aliases[name] = below.child(taken + 1)

    def set_map(self, tree: Any, at: int) -> None:
        found = DeviceMap(tree)
        if self.device_map is not None and self.device_map != found:
            raise self.fail(
                "There are two device maps.", f"{self.device_map} and {found}", "one device map per program", at
            )
        self.device_map = found

    def tree(self) -> Any:
        """A dict of devices, or a list."""
        if self.accept("["):
            return read_list(self, "]", self.integer)
        self.take("{")
        found: dict[int, Any] = {}
        while not self.accept("}"):
            at = self.position
            key = self.integer()
            if key in found:
                raise self.fail(
                    f"The key {key} of a device map is written twice.", fix="give each group a key of its own", at=at
                )
            self.take(":")
            found[key] = None if self.accept("None") else self.tree()
            if self.peek() != "}":
                self.take(",")
        return found

    def expression(self, scope: _Scope, outputs: Sequence[DeviceValue]) -> DeviceEqn:
        at = self.position
        if self.peek() == "(":
            self.take()
            items = read_list(self, ")", lambda: self.use(scope))
            return DeviceEqn(TUPLE, tuple(items), tuple(outputs))
        name = self.word("an op")
        self.take("(")
        if name in ("pmap", "call"):
            return self.region(name, scope, outputs)
        op = OPS.get(name) if name in OPS else tensor_op(name)
        if op is None:
            raise self.fail(f"There is no op {name}.", NO_SUCH_OP, ops_to_write(), at)
        if op.name != name and spelled(name, {})[0] == name:
            self.slip(f"the op {name} is written {op}", at, op.name)
        operands: list[Operand | tuple[str, int]] = []
        attributes: dict[str, Any] = {}
        while not self.accept(")"):
            if self.kind == "word" and self.second() == "=":
                key = self.take()[1]
                self.take()
                self.attribute(key, attributes)
            elif self.kind == "word" and self.peek() not in ("inf", "nan", "True", "False", "complex"):
                operands.append((self.peek(), self.position))
                self.take()
            else:
                operands.append(self.number())
            if self.peek() != ")":
                self.take(",")
        known = sorted(signature_of(op.type).params)
        unknown = next((key for key in attributes if is_structural(op) and key not in known), None)
        if unknown is not None:
            raise self.fail(
                f"{op} has no attribute {unknown}.",
                f"its attributes are {', '.join(known) or 'none'}",
                f"{op}(x, {', '.join(known[:1])}=…)" if known else f"{op}(x)",
                at,
            )
        attributes = spelled(name, attributes)[1]
        inputs = self.operands(op, operands, attributes, scope, outputs)
        return DeviceEqn(op, inputs, tuple(outputs), attributes)

    def region(self, op: str, scope: _Scope, outputs: Sequence[DeviceValue]) -> DeviceEqn:
        self.take("lambda")
        variable = self.word("a device variable")
        self.take(":")
        self.take("lambda")
        self.take("(")
        inputs = self.parameters(")", body=True)
        self.take(":")
        self.take("{")
        eqns, returned = self.statements({v.name: v for v in inputs}, "}")
        self.take("}")
        body = Function("", tuple(inputs), tuple(eqns), tuple(returned), None, variable)
        operands: list[Operand] = []
        attributes: dict[str, Any] = {}
        while self.accept(","):
            if self.kind == "word" and self.second() == "=":
                at = self.position
                key = self.take()[1]
                if op != "pmap" or key != "device_map" or attributes:
                    raise self.fail(
                        f"A {op} has no attribute {key}." if not attributes else f"{key} is given twice.",
                        "a pmap may have a device_map" if op == "pmap" else "it runs on the device of its operands",
                        "pmap(lambda d: lambda (x): {…}, device_map={1: [1, 3], 2: [2, 4]}, (xs,))",
                        at,
                    )
                self.take("=")
                attributes["device_map"] = DeviceMap(self.tree())
            else:
                self.take("(")
                operands += read_list(self, ")", lambda: self.use(scope))
        at = self.position
        self.take(")")
        for what, given, taken in (("operands", operands, inputs), ("results", outputs, returned)):
            if len(given) != len(taken):
                raise self.fail(
                    f"A {op} has {len(given)} {what}, its body {len(taken)}.",
                    f"the body's are {', '.join(v.name for v in taken) or 'none'}",
                    f"{op}(lambda {variable}: lambda (…): {{…}}, ({', '.join(v.name for v in inputs)}))",
                    at,
                )
        return DeviceEqn(op, tuple(operands), tuple(outputs), attributes, body)

    def operands(
        self,
        op: Op,
        given: Sequence[Operand | tuple[str, int]],
        attributes: dict[str, Any],
        scope: _Scope,
        outputs: Sequence[DeviceValue],
    ) -> tuple[Operand, ...]:
        found: list[Operand | None] = [scope.get(x[0]) if isinstance(x, tuple) else x for x in given]
        annotated = outputs[0].type if len(outputs) == 1 else None
        for n, x in enumerate(given):
            if not isinstance(x, tuple):
                continue
            missing = found[n] is None
            if not missing and (annotated is None or _fits(op, found, attributes, annotated)):
                continue
            candidates = []
            if annotated is not None and (missing or len(given) == 1):
                for value in scope.values():
                    tried = [*found[:n], value, *found[n + 1 :]]
                    if value is not found[n] and None not in tried and _fits(op, tried, attributes, annotated):
                        candidates.append(value)
            if len(candidates) == 1:
                why = f"{x[0]} is not defined here" if missing else f"{op}({x[0]}) has not the annotated type"
                self.slip(why, x[1], f"{op}({candidates[0].name})" if len(given) == 1 else candidates[0].name)
                found[n] = candidates[0]
            elif missing:
                raise self.undefined(x[0], x[1], scope)
        return tuple(x for x in found if x is not None)

    # Attributes

    def attribute(self, key: str, attributes: dict[str, Any]) -> None:
        at = self.position
        if key in attributes or {key, *attributes} >= {"devices", "device_keys"}:
            raise self.fail(
                "The devices are given once." if key in ("devices", "device_keys") else f"{key} is given twice.",
                f"{key}= stands beside {', '.join(f'{name}=' for name in attributes)}",
                "device_keys=[], or devices=[1, 2]" if key in ("devices", "device_keys") else f"one {key}",
                at,
            )
        if key == "devices" and self.peek() in self.map_names and self.second() in (".", "["):
            self.take()
            keys: list[Any] = []
            while self.accept("["):
                keys.append(self.key())
                self.take("]")
            if self.accept("."):
                for mark in ("keys", "(", ")"):
                    self.take(mark)
            attributes["device_keys"] = Keys(keys)
        elif key in ("devices", "device_keys"):
            self.take("[")
            items = read_list(self, "]", self.key if key == "device_keys" else self.device)
            attributes[key] = Keys([d.plain if isinstance(d, Device) and d.is_concrete else d for d in items])
        elif key in ("to_device", "device"):
            attributes[key] = self.device()
        else:
            attributes[key] = self.literal()

    def key(self) -> Any:
        """A key of the map: a number, a variable, or a device near one."""
        found = self.device()
        if found.base is None:
            raise self.fail("A device or a device variable is expected here, not '?'.", fix="device_keys=[d]")
        return found.plain


def _fits(op: Op, operands: Sequence[Operand | None], attributes: dict[str, Any], annotated: Type) -> bool:
    """Whether annotations allow this op on these operands; what cannot be told from them is allowed."""
    for x in operands:
        if x is None or (isinstance(x, DeviceValue) and x.type is None):
            return x is not None
    try:
        want = elements(annotated)
        if is_structural(op) and op not in (SCATTER, BROADCAST):
            return True
        if any(isinstance(x.type, Tuple) for x in operands if isinstance(x, DeviceValue)):
            return False
        args = signatures([x for x in operands if x is not None])
        if op is SCATTER:
            shape = _scattered(args[0][0], attributes.get("dim", 0), annotated)
        else:
            shape = args[0][0] if op is BROADCAST else infer(op, args, attributes)[0][0]
    except MeshwrightError:
        return False
    return len(shape) == len(want.shape) and all(
        a == b or (solve(b, a) is not None) or (solve(a, b) is not None) for a, b in zip(shape, want.shape, strict=True)
    )


def _scattered(shape: Sizes, dim: Any, annotated: Type) -> Sizes:
    if not isinstance(annotated, Tuple) or annotated.more:
        return elements(annotated).shape
    if not isinstance(dim, int) or not 0 <= dim < len(shape):
        return ()
    return (*shape[:dim], divide(shape[dim], len(annotated.items)), *shape[dim + 1 :])


def _with_one_map(fn: Function) -> Function:
    """The program with its device map in one place; maps of pmaps that differ stay where they are."""
    found = [m for m in (fn.device_map, *_maps_of(fn)) if m is not None]
    if not found or any(m != found[0] for m in found):
        return fn
    return _without_maps(fn).with_(device_map=found[0])


def _maps_of(fn: Function) -> list[DeviceMap]:
    own = [eqn.attributes["device_map"] for eqn in fn.eqns if "device_map" in eqn.attributes]
    return own + [m for body in fn.bodies() for m in _maps_of(body)]


def _without_maps(fn: Function) -> Function:
    fn = fn.with_bodies(_without_maps)
    return fn.with_(eqns=tuple(e if e.body is None else e.with_(attributes={}) for e in fn.eqns))
