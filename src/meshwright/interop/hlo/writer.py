"""HLO text being written: a module of computations, each a list of instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json import dumps
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from meshwright.core.dtypes import KEY, DType
from meshwright.core.op import No, Op
from meshwright.core.program import Atom, Eqn, Literal, Missing, Program, Var
from meshwright.core.source import Source
from meshwright.core.text.printing import print_params
from meshwright.core.trace import close, trace
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.decompositions import custom_target, in_parts

_ELEMENTS: dict[DType, str] = {
    np.dtype(bool): "pred",
    **{np.dtype(f"int{bits}"): f"s{bits}" for bits in (8, 16, 32, 64)},
    **{np.dtype(f"uint{bits}"): f"u{bits}" for bits in (8, 16, 32, 64)},
    **{np.dtype(f"float{bits}"): f"f{bits}" for bits in (16, 32, 64)},
    **{np.dtype(f"complex{bits}"): f"c{bits}" for bits in (64, 128)},
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(ml_dtypes.float8_e4m3fn): "f8e4m3fn",
    np.dtype(ml_dtypes.float8_e5m2): "f8e5m2",
    np.dtype(ml_dtypes.int2): "s2",
    np.dtype(ml_dtypes.uint2): "u2",
    np.dtype(ml_dtypes.int4): "s4",
    np.dtype(ml_dtypes.uint4): "u4",
    KEY: "u64",  # the two words of a key as one number
}
S32, U32, PRED = (np.dtype(name) for name in ("int32", "uint32", "bool"))


def shape_text(t: TensorType, layout: bool = True) -> str:
    """A type as HLO writes it, its dims from minor to major behind it.

    >>> shape_text(TensorType((8, 4), np.dtype("float32")))
    'f32[8,4]{1,0}'
    """
    order = ",".join(map(str, reversed(range(t.ndim))))
    return f"{_ELEMENTS[t.dtype]}[{','.join(map(str, t.shape))}]" + (f"{{{order}}}" if layout and t.ndim else "")


def tuple_text(types: Sequence[TensorType], layout: bool = True) -> str:
    """The type of a tuple."""
    return f"({', '.join(shape_text(t, layout) for t in types)})"


def shapes_text(types: Sequence[TensorType]) -> str:
    """One type, or several as a tuple."""
    return shape_text(types[0]) if len(types) == 1 else tuple_text(types)


def numbers(values: Sequence[int]) -> str:
    """``{1,0}``."""
    return f"{{{','.join(map(str, values))}}}"


# Constants


def number_text(number: Any, dtype: DType) -> str:
    """A number that HLO's parser, which reads doubles, turns back into the same one.

    >>> number_text(np.float32(0.1), np.dtype("float32"))
    '0.1'
    """
    if dtype.kind == "b":
        return "true" if number else "false"
    if dtype.kind in "iu":
        return str(int(number))
    if dtype.kind == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        return f"({number_text(number.real, half)}, {number_text(number.imag, half)})"
    exact = float(number)
    if exact.is_integer() and abs(exact) < 1e15:
        return "-0.0" if exact == 0 and np.signbit(exact) else str(int(exact))
    short = str(np.float32(exact))
    with np.errstate(over="ignore", invalid="ignore"):
        same = dtype.itemsize <= 4 and np.asarray(float(short)).astype(dtype) == number
    return short if same else repr(exact)


def literal_text(value: np.ndarray[Any, Any]) -> str:
    """All numbers of an array, in braces.

    >>> literal_text(np.array([[1, 2], [3, 4]], np.int32))
    '{ { 1, 2 }, { 3, 4 } }'
    """
    if value.ndim == 0:
        return number_text(value[()], value.dtype)
    return "{ " + ", ".join(literal_text(row) for row in value) + " }"


# Modules and computations


class HloValue(NamedTuple):
    """An instruction's name and type."""

    name: str
    type: TensorType


Write = Callable[["Computation", Eqn, list[HloValue], list[TensorType]], list[HloValue]]


class Module:
    """Computations and their names. ``axes`` are those of the mesh with their sizes, from major to minor.

    ``written`` has the ops that collectives are for, by their results.
    """

    def __init__(
        self,
        name: str,
        axes: Sequence[tuple[str, int]],
        writer_of: Callable[[Op], Write | None],
        iota: bool = True,
        written: Mapping[Var, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.axes = tuple(axes)
        self.writer_of = writer_of
        self.iota = iota
        self.written = written
        self.computations: list[str] = []
        self.channels = 0
        self._used: dict[str, int] = {}
        self._small: dict[Any, str] = {}

    def unique(self, base: str) -> str:
        """``%add``, ``%add.1``, ``%add.2``, …"""
        count = self._used.get(base, 0)
        self._used[base] = count + 1
        return f"%{base}.{count}" if count else f"%{base}"

    def channel(self) -> str:
        """A number of its own for each collective."""
        self.channels += 1
        return f"channel_id={self.channels}"

    def known(self, key: Any, write: Callable[[], str]) -> str:
        """The name of a computation that is written once."""
        if key not in self._small:
            self._small[key] = write()
        return self._small[key]

    def scalar(self, opcode: str, dtype: DType, attributes: str = "", result: DType | None = None) -> str:
        """The name of the computation ``(x, y) -> x OP y``."""

        def written() -> str:
            t = TensorType((), dtype)
            inside = Computation(self, [t, t], ["x", "y"])
            outs = inside.op(opcode, inside.parameters, [TensorType((), result or dtype)], attributes)
            return inside.finish(f"{opcode}_{_ELEMENTS[dtype]}", outs)

        return self.known((opcode, dtype, attributes), written)

    def second(self, dtype: DType) -> str:
        """The name of the computation ``(x, y) -> y``."""

        def written() -> str:
            inside = Computation(self, [TensorType((), dtype)] * 2, ["x", "y"])
            return inside.finish(f"second_{_ELEMENTS[dtype]}", inside.parameters[1:])

        return self.known(("second", dtype), written)

    def text(self, entry: str, types: Sequence[TensorType], outs: Sequence[TensorType], partitions: int) -> str:
        """The module with its header; ``entry`` is the text of the computation it begins with."""
        given = ", ".join(map(shape_text, types))
        head = f"HloModule {self.name}, entry_computation_layout={{({given})->{shapes_text(outs)}}}"
        head += f", num_partitions={partitions}" if partitions > 1 else ""
        return "\n\n".join([head, *self.computations, entry])


class Computation:
    """Instructions of one computation being written. What it reads from outside is all among its parameters."""

    def __init__(
        self, module: Module, types: Sequence[TensorType], names: Sequence[str] = (), attributes: Sequence[str] = ()
    ) -> None:
        self.module = module
        self.lines: list[str] = []
        self.values: dict[Var, HloValue] = {}
        self.eqn: tuple[str, Source | None] | None = None  # what instructions are being written for
        self.parameters: list[HloValue] = []
        self._signature: list[str] = []
        self._constants: dict[Any, HloValue] = {}
        for index, t in enumerate(types):
            extra = attributes[index] if attributes else ""
            name = module.unique(names[index] if names else "param")
            self.lines.append(f"{name} = {shape_text(t)} parameter({index}){extra}")
            self._signature.append(f"{name[1:]}: {shape_text(t, layout=False)}")
            self.parameters.append(HloValue(name, t))

    @classmethod
    def of_tuple(cls, module: Module, types: Sequence[TensorType]) -> Computation:
        """A computation whose only parameter is a tuple, taken apart."""
        inside = cls(module, [])
        name = module.unique("param")
        inside.lines.append(f"{name} = {tuple_text(types)} parameter(0)")
        inside._signature.append(f"{name[1:]}: {tuple_text(types, layout=False)}")
        inside.parameters = inside._parts(name, types)
        return inside

    def op(
        self, opcode: str, operands: Sequence[HloValue], results: Sequence[TensorType], attributes: str = ""
    ) -> list[HloValue]:
        """Write one instruction; its results, taken out of their tuple if they are several."""
        name = self.raw(opcode, [x.name for x in operands], shapes_text(results), attributes)
        return [HloValue(name, results[0])] if len(results) == 1 else self._parts(name, results)

    def raw(self, opcode: str, operands: Sequence[str], shape: str, attributes: str = "") -> str:
        """Write one instruction by names; its own name."""
        name = self.module.unique(opcode)
        ends = "".join(f", {text}" for text in (attributes, self._metadata()) if text)
        self.lines.append(f"{name} = {shape} {opcode}({', '.join(operands)}){ends}")
        return name

    def _parts(self, name: str, types: Sequence[TensorType]) -> list[HloValue]:
        return [
            HloValue(self.raw("get-tuple-element", [name], shape_text(t), f"index={index}"), t)
            for index, t in enumerate(types)
        ]

    def _metadata(self) -> str:
        if self.eqn is None:
            return ""
        op, source = self.eqn
        path = f"{self.module.name.replace('jit_', 'jit(', 1)})/{op}" if self.module.name.startswith("jit_") else op
        where = "" if source is None else f' source_file="{_escaped(source.file)}" source_line={source.line}'
        return f'metadata={{op_name="{path}"{where}}}'

    def tuple(self, values: Sequence[HloValue]) -> str:
        """Values as one tuple; its name."""
        return self.raw("tuple", [x.name for x in values], tuple_text([x.type for x in values]))

    def from_tuple(
        self, opcode: str, operands: Sequence[str], types: Sequence[TensorType], text: str
    ) -> list[HloValue]:
        """An instruction whose result is a tuple, of any length; its parts."""
        return self._parts(self.raw(opcode, operands, tuple_text(types), text), types)

    def constant(self, value: Any, t: TensorType) -> HloValue:
        """An array; one number for all its elements is written once and spread."""
        array = np.broadcast_to(np.asarray(value, t.dtype), t.shape)
        if t.ndim and (not array.size or array.tobytes() == array.flat[0].tobytes() * array.size):
            first = array.flat[0] if array.size else np.zeros((), t.dtype)[()]
            return self.spread(self.constant(first, TensorType((), t.dtype)), t.shape)
        if t.dtype.kind == "c" and np.isnan(array.real).any():  # which XLA's parser would put into both parts
            parts = [self.constant(x, TensorType(t.shape, x.dtype)) for x in (array.real, array.imag)]
            return self.op("complex", parts, [TensorType(t.shape, t.dtype)])[0]
        key = (t.shape, t.dtype, array.tobytes()) if array.size <= 16 else None
        found = self._constants.get(key)
        if found is None:
            name = self.module.unique("constant")
            self.lines.append(f"{name} = {shape_text(t)} constant({literal_text(array)})")
            found = HloValue(name, TensorType(t.shape, t.dtype))
            if key is not None:
                self._constants[key] = found
        return found

    def number(self, value: Any, dtype: DType = S32) -> HloValue:
        """A scalar."""
        return self.constant(value, TensorType((), dtype))

    def spread(self, x: HloValue, shape: Sequence[int], dims: Sequence[int] = ()) -> HloValue:
        """``x`` with its dims at ``dims`` of a larger shape; those of size 1 may grow."""
        if x.type.shape == tuple(shape):
            return x
        kept = [n for n, d in enumerate(dims) if x.type.shape[n] == shape[d]]
        x = self.reshape(x, [x.type.shape[n] for n in kept])
        made = TensorType(tuple(shape), x.type.dtype)
        return self.op("broadcast", [x], [made], f"dimensions={numbers([dims[n] for n in kept])}")[0]

    def reshape(self, x: HloValue, shape: Sequence[int]) -> HloValue:
        """The same elements in another shape."""
        if x.type.shape == tuple(shape):
            return x
        return self.op("reshape", [x], [TensorType(tuple(shape), x.type.dtype)])[0]

    def transpose(self, x: HloValue, order: Sequence[int]) -> HloValue:
        """The dims in another order."""
        if list(order) == sorted(order):
            return x
        made = TensorType(tuple(x.type.shape[d] for d in order), x.type.dtype)
        return self.op("transpose", [x], [made], f"dimensions={numbers(order)}")[0]

    # Programs

    def atom(self, atom: Atom) -> HloValue:
        """A number in its place, or the value of a variable."""
        return self.constant(atom.value, atom.type) if isinstance(atom, Literal) else self.values[atom]

    def program(self, program: Program, inputs: Sequence[HloValue]) -> list[HloValue]:
        """Write the equations of a program; its outputs."""
        self.values.update(zip(program.inputs, inputs, strict=True))
        for var, value in program.constants:
            if isinstance(value, Missing):
                raise MeshwrightError(
                    "A constant of this program is not known.",
                    why="it was read from text, which keeps large arrays by digest alone",
                    fix="trace the function again with mw.make_program(f)(…)",
                )
            self.values[var] = self.constant(value, var.type)
        around = self.eqn
        for eqn in program.eqns:
            operands = [self.atom(a) for a in eqn.inputs]
            given = self.module.written.get(eqn.outputs[0]) if eqn.outputs else None
            self.eqn = (given or eqn.op.name, eqn.source)
            outs = self.equation(eqn, operands)
            self.eqn = around
            self.values.update(zip(eqn.outputs, outs, strict=True))
        return [self.atom(a) for a in program.outputs]

    def equation(self, eqn: Eqn, operands: list[HloValue]) -> list[HloValue]:
        """Write one equation; its results."""
        parts = in_parts(eqn, self.module.axes)
        write = self.module.writer_of(eqn.op)
        if parts is None and write is not None:
            return write(self, eqn, operands, [TensorType(v.type.shape, v.type.dtype) for v in eqn.outputs])
        if parts is None and not isinstance(eqn.op.factors, No):  # an op of a user
            results = [TensorType(v.type.shape, v.type.dtype) for v in eqn.outputs]
            config = f"custom_call_target={dumps(custom_target(eqn))}, backend_config={dumps(print_params(eqn.params))}"
            return self.op("custom-call", operands, results, config)
        if parts is None:
            raise MeshwrightError(
                f"{eqn.op.name} cannot be written as HLO.",
                where=eqn.source.show() if eqn.source is not None else "",
                why="no HLO instructions are known that do the same",
                fix="compiled.program.to_text() writes every op",
            )
        return self.decomposed(parts, eqn, operands)

    def decomposed(self, parts: Callable[..., list[Any]], eqn: Eqn, operands: Sequence[HloValue]) -> list[HloValue]:
        """Write an op in terms of others."""
        types = [TensorType(x.type.shape, x.type.dtype) for x in operands]
        small, captured = trace(lambda *xs: parts(*xs, **eqn.params), types)
        small = close(small, captured)
        eqns = tuple(Eqn(e.op, e.inputs, e.params, e.outputs, eqn.source) for e in small.eqns)
        return self.program(Program(small.inputs, eqns, small.outputs, small.constants), operands)

    def finish(self, base: str, outs: Sequence[HloValue], one_as_tuple: bool = False, entry: bool = False) -> str:
        """Add the computation to the module; its name. The entry is not added, and its text returned."""
        types = [x.type for x in outs]
        if len(outs) == 1 and not one_as_tuple:
            root, made = outs[0].name, shape_text(types[0], layout=False)
        else:
            self.eqn = None
            root, made = self.tuple(outs), tuple_text(types, layout=False)
        name = self.module.unique(base)
        body = "\n".join(f"  {'ROOT ' if line.startswith(f'{root} ') else ''}{line}" for line in self.lines)
        text = f"{'ENTRY ' if entry else ''}{name} ({', '.join(self._signature)}) -> {made} {{\n{body}\n}}"
        if entry:
            return text
        self.module.computations.append(text)
        return name


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
