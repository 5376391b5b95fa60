"""Device programs: functions whose values stand on devices, with pmaps as regions, and their text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from meshwright.core.dtypes import BOOL, FLOAT32, INT32, DType, short_name
from meshwright.core.op import Op
from meshwright.core.program import Eqn, KeyRule, Literal, Program, Var, digest
from meshwright.core.text.printing import LARGEST_INLINE, print_number, print_program, print_value
from meshwright.core.types import TensorType
from meshwright.device.device_map import DeviceMap, Devices
from meshwright.device.dims import Dim
from meshwright.device.ops import known_op
from meshwright.device.types import Device, Tensor, Tuple, Type

# What runs a program that is called: it stands above this module, and registers itself.
CALLS: list[Callable[..., Any]] = []


class DeviceValue(Var):
    """A value of a device program, by the name its text has; ``type`` is None where the text says nothing about it.

    In a resolved program, ``origin`` is the value that it is one device's part of, and which time it is made there.
    """

    __slots__ = ("name", "origin")

    type: Type | None  # type: ignore[assignment]

    def __init__(self, name: str, type: Type | None = None, origin: tuple[DeviceValue, int] | None = None) -> None:
        self.name, self.type, self.origin = name, type, origin

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}" if self.type is not None else self.name


class Number(Literal):
    """A number written where it is used; it has no device."""

    __slots__ = ()

    def __init__(self, value: bool | int | float | complex, dtype: Any = FLOAT32) -> None:
        super().__init__(value, TensorType((), np.dtype(dtype)))

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def key(self) -> tuple[str, TensorType]:
        return str(self), self.type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __str__(self) -> str:
        value, bare = self.value, {bool: BOOL, int: INT32, float: FLOAT32}.get(type(self.value))
        text = print_attribute(value) if isinstance(value, complex) else print_number(value, self.dtype)
        return text if bare == self.dtype else f"{text}:{short_name(self.dtype)}"

    __repr__ = __str__


Operand = DeviceValue | Number


class DeviceEqn(Eqn):
    """``outputs = op(inputs, attributes)``; ``body`` is the function of a pmap or a call, a region among its params."""

    __slots__ = ("attributes", "body")

    inputs: tuple[Operand, ...]
    outputs: tuple[DeviceValue, ...]

    def __init__(
        self,
        op: Op | str,
        inputs: tuple[Operand, ...],
        outputs: tuple[DeviceValue, ...],
        attributes: Mapping[str, Any] | None = None,
        body: Function | None = None,
    ) -> None:
        self.attributes: Mapping[str, Any] = {} if attributes is None else attributes
        self.body = body
        params = self.attributes if body is None else {**self.attributes, "body": body}
        super().__init__(known_op(op) if isinstance(op, str) else op, inputs, params, outputs)

    def with_(self, **changes: Any) -> DeviceEqn:
        """This equation with some of its inputs, outputs, attributes and body replaced."""
        given = {"inputs": self.inputs, "outputs": self.outputs, "attributes": self.attributes, "body": self.body}
        return DeviceEqn(self.op, **{**given, **changes})

    @property
    def values(self) -> tuple[DeviceValue, ...]:
        """The operands that are values."""
        return tuple([x for x in self.inputs if x.__class__ is DeviceValue])  # type: ignore[misc]

    def __repr__(self) -> str:
        attributes = [f"{name}={print_attribute(value)}" for name, value in self.attributes.items()]
        operands = ", ".join([*map(_operand, self.inputs), *attributes])
        return f"{', '.join(map(repr, self.outputs))} = {self.op}({operands})"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Function(Program):
    """A device program. The body of a pmap is one too: ``variable`` then stands for the device it runs on.

    Two functions are equal when they are the same up to names of values and device variables.
    """

    inputs: tuple[DeviceValue, ...]
    eqns: tuple[DeviceEqn, ...]
    outputs: tuple[DeviceValue, ...]
    name: str = ""
    device_map: DeviceMap | None = None
    variable: str | None = None
    slips: tuple[str, ...] = ()
    map_input: tuple[str, int] | None = None  # the name of a device map among the inputs, and its place
    unfolded: ClassVar[tuple[Function, DeviceMap | None, dict[str, int]] | None] = None  # what a folded one is made of

    def __init__(
        self,
        name: str,
        inputs: tuple[DeviceValue, ...],
        eqns: tuple[DeviceEqn, ...],
        outputs: tuple[DeviceValue, ...],
        device_map: DeviceMap | None = None,
        variable: str | None = None,
        slips: tuple[str, ...] = (),
        map_input: tuple[str, int] | None = None,
        constants: tuple[tuple[Var, Any], ...] = (),
    ) -> None:
        super().__init__(inputs, eqns, outputs, constants)
        given = {"device_map": device_map, "variable": variable, "slips": slips, "map_input": map_input}
        self.__dict__.update(given, name=name)

    def to_text(self, *, sources: bool = True, constants: bool = False) -> str:
        """The function in the notation that `dist.parse` reads; names used twice get numbers."""
        return "\n".join(_lines(self))

    @property
    def names_devices(self) -> bool:
        return True

    def __call__(self, *inputs: Any, device_map: Any = None, **by_name: Any) -> Any:
        """Its outputs for arrays, in the order of its inputs or by their names.

        Inside of a function that ``mw.grad`` or ``mw.jit`` traces it is traced; inside of a device program that is
        being built, its equations become part of that one.
        """
        return CALLS[0](self, inputs, by_name, device_map)

    def with_(self, **changes: Any) -> Function:
        """This function with some fields replaced."""
        return replace(self, **changes)

    def input(self, name: str) -> DeviceValue | None:
        """The input of that name."""
        return next((v for v in self.inputs if v.name == name), None)

    def bodies(self) -> Iterator[Function]:
        """The functions of its pmaps and calls, each once."""
        seen: set[int] = set()
        for eqn in self.eqns:
            if eqn.body is not None and id(eqn.body) not in seen:
                seen.add(id(eqn.body))
                yield eqn.body

    def with_bodies(self, change: Callable[[Function], Function]) -> Function:
        """This function with other bodies of its pmaps and calls; equations that share one share what it becomes."""
        new = {id(body): change(body) for body in self.bodies()}
        if all(new[id(body)] is body for body in self.bodies()):
            return self
        return self.with_(eqns=tuple(e if e.body is None else e.with_(body=new[id(e.body)]) for e in self.eqns))

    def key_rule(self, outer: KeyRule) -> KeyRule:
        variables = dict(outer.variables) if isinstance(outer, DeviceKeyRule) else {}
        if self.variable is not None:
            variables[self.variable] = f"${len(variables)}"
        return DeviceKeyRule(variables)

    def key_parts(self) -> tuple[Any, ...]:
        return self.device_map, self.map_input[1] if self.map_input is not None else None


class DeviceKeyRule(KeyRule):
    """Types and attributes with numbers for the device variables that pmaps around bind."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables

    def type(self, type: Any) -> Any:
        if isinstance(type, Tuple):
            return tuple([self.type(item) for item in type.items]), type.more
        return type.on(self.device(type.device)) if isinstance(type, Tensor) else type

    def device(self, device: Device) -> Device:
        base = self.variables.get(device.base) if isinstance(device.base, str) else None
        return device if base is None else Device(base, device.sub, device.offset)

    def value(self, value: Any) -> Any:
        if isinstance(value, Device):
            return self.device(value)
        if isinstance(value, range | Devices):
            value = tuple(value)
        if isinstance(value, np.generic):
            value = value.item()
        return self.variables.get(value, value) if isinstance(value, str) else super().value(value)


# Text


_RESERVED = frozenset(
    {"return", "def", "lambda", "device_map", "Tensor", "Tuple", "DeviceMap", "complex", "program", "array"}
    | {"True", "False", "None", "inf", "nan"}
)
# Arrays that a text names by their digest, as long as a program has them. Some differ in dtype or shape alone.
PRINTED: WeakValueDictionary[str, Any] = WeakValueDictionary()
_SHARED: set[str] = set()


def _by_digest(array: np.ndarray[Any, Any]) -> str:
    """The name of a large array; the text of a program that is here can be read back."""
    name = digest(array)
    other = PRINTED.get(name)
    if other is not None and (other.dtype, other.shape) != (array.dtype, array.shape):
        _SHARED.add(name)
    if name in _SHARED:
        PRINTED.pop(name, None)
    else:
        PRINTED[name] = array
    return f"@{name}"


def _identifier(name: str) -> str:
    """A name as a text can have it."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    return found if found and not found[0].isdigit() else f"v_{found}"


class _ValueNames:
    def __init__(self, *taken: str) -> None:
        self.names: dict[DeviceValue, str] = {}
        self.taken: set[str] = {*_RESERVED, *taken}

    def __call__(self, value: Operand) -> str:
        if isinstance(value, Number):
            return str(value)
        name = self.names.get(value)
        if name is None:
            name = stem = _identifier(value.name)
            count = 1
            while name in self.taken:
                count += 1
                name = f"{stem}_{count}"
            self.taken.add(name)
            self.names[value] = name
        return name


def _lines(fn: Function) -> list[str]:
    names = _ValueNames(*([fn.map_input[0]] if fn.map_input is not None else []))
    params = [_declare(v, names) for v in fn.inputs]
    if fn.map_input is not None:
        params.insert(fn.map_input[1], f"{fn.map_input[0]}: DeviceMap")
    lines = [f"def {_identifier(fn.name)}({', '.join(params)}):"]
    if fn.device_map is not None:
        name = fn.map_input[0] if fn.map_input is not None else "device_map"
        lines.append(f"    {name}: DeviceMap = {fn.device_map}")
    lines.extend(f"    {line}" for line in _statements(fn, names))
    return lines


def _statements(fn: Function, names: _ValueNames) -> list[str]:
    lines: list[str] = []
    for eqn in fn.eqns:
        lines.extend(_statement(eqn, names))
    lines.append(f"return {', '.join(names(v) for v in fn.outputs)}")
    return lines


def _declare(value: DeviceValue, names: _ValueNames) -> str:
    return names(value) if value.type is None else f"{names(value)}: {value.type}"


def _statement(eqn: DeviceEqn, names: _ValueNames) -> list[str]:
    inputs = [names(x) for x in eqn.inputs]
    attributes = [f"{name}={print_attribute(value)}" for name, value in eqn.attributes.items()]
    head = ", ".join(_declare(v, names) for v in eqn.outputs)
    if eqn.body is None:
        return [f"{head} = {eqn.op}({', '.join([*inputs, *attributes])})"]
    inner = _ValueNames()
    params = ", ".join(_declare(v, inner) for v in eqn.body.inputs)
    operands = f"({', '.join(inputs)}{',' if len(inputs) == 1 else ''})"
    return [
        f"{head} = {eqn.op}(",
        f"    lambda {eqn.body.variable}:",
        f"    lambda ({params}): {{",
        *(f"        {line}" for line in _statements(eqn.body, inner)),
        "    },",
        f"    {', '.join([*attributes, operands])}",
        ")",
    ]


def _operand(x: Operand) -> str:
    return str(x) if isinstance(x, Number) else x.name


def print_attribute(value: Any) -> str:
    """An attribute as text."""
    return print_value(value, _own_text)


def _own_text(value: Any) -> str | None:
    """What device programs write in another way than programs do."""
    if isinstance(value, Keys | range | Devices):  # scatter(x, dim=0, devices=[1, 2]); params of ops are tuples
        return f"[{', '.join(map(print_attribute, value))}]"
    if isinstance(value, Device | Dim | DeviceMap | _Name):
        return str(value)
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, Program):
        return f"program({print_program(value, sources=False, constants=True)!r})"
    if isinstance(value, np.ndarray):
        small = value.size <= LARGEST_INLINE
        return f"array({value.tolist()!r}, {short_name(value.dtype)})" if small else _by_digest(value)
    if isinstance(value, np.generic | list):
        return print_attribute(value.item() if isinstance(value, np.generic) else tuple(value))
    return None if isinstance(value, tuple | np.dtype) else repr(value)


class _Name(str):
    """A device variable among keys: printed without quotes."""

    __slots__ = ()


class Keys(tuple[Any, ...]):
    """A list of devices or keys among the attributes, printed with brackets. It may be long, and is hashed once.

    Devices at equal distances stay a range.
    """

    _hash: int | None = None

    def __new__(cls, items: Collection[Any] = ()) -> Keys:
        if isinstance(items, Keys | range | Devices):
            return items  # type: ignore[return-value]
        return super().__new__(cls, [_Name(item) if item.__class__ is str else item for item in items])

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash
