"""Programs: frozen, typed, printable lists of equations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshwright.core.source import Source
from meshwright.core.types import TensorType, Variance, union
from meshwright.errors import MeshwrightError

if TYPE_CHECKING:
    from meshwright.core.op import Op

Params = Mapping[str, Any]


class Var:
    """A value of a program, given once. It has a type and no name: names belong to the text."""

    __slots__ = ("type",)

    def __init__(self, type: TensorType) -> None:
        self.type = type

    def __repr__(self) -> str:
        return f"Var({self.type.short()})"


class Literal:
    """A number written where it is used."""

    __slots__ = ("type", "value")

    def __init__(self, value: bool | int | float | complex, type: TensorType) -> None:
        self.value = value
        self.type = type

    def key(self) -> tuple[str, TensorType]:
        """What makes two literals the same; ``repr`` tells 0.0 from -0.0 and lets nan equal nan."""
        return repr(self.value), self.type

    def __repr__(self) -> str:
        return f"{self.value}:{self.type.short()}"


Atom = Var | Literal


class Eqn:
    """``outputs = op inputs params``, and the user's line it came from. Frozen by convention: passes make new ones."""

    __slots__ = ("_regions", "inputs", "op", "outputs", "params", "source")

    def __init__(
        self, op: Op, inputs: Sequence[Atom], params: Params, outputs: Sequence[Var], source: Source | None = None
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.params = params
        self.outputs = outputs
        self.source = source
        self._regions: tuple[tuple[str, Program], ...] | None = None

    def regions(self) -> tuple[tuple[str, Program], ...]:
        """The programs among the params, by name; those in a tuple are numbered."""
        if self._regions is None:
            self._regions = tuple(self._found_regions())
        return self._regions

    def _found_regions(self) -> Iterator[tuple[str, Program]]:
        for name, value in self.params.items():
            if isinstance(value, Program):
                yield name, value
            elif isinstance(value, tuple):
                for index, item in enumerate(value):
                    if isinstance(item, Program):
                        yield f"{name}[{index}]", item

    @property
    def effects(self) -> bool:
        """Whether it does more than compute its outputs."""
        return self.op.effects or any(program.effects for _, program in self.regions())

    def __repr__(self) -> str:
        outs = ", ".join(v.type.short() for v in self.outputs)
        return f"{outs} = {self.op.name} {' '.join(a.type.short() for a in self.inputs)}"


def operand_types(op: Op, atoms: Sequence[Atom]) -> list[TensorType]:
    """The types that an op's type rule sees: a number written in its place varies as the other operands do."""
    types = [a.type for a in atoms]
    if op.variance is Variance.OWN or not any(t.varying for t in types):
        return types
    varying = union(t.varying for t in types)
    return [t.with_(varying=varying) if a.__class__ is Literal else t for a, t in zip(atoms, types, strict=True)]


class Missing(NamedTuple):
    """A constant known by its digest alone: what text keeps of a large array."""

    digest: str


class Rule:
    """A user's Python function kept as a param: text keeps its name alone, so a program read back cannot use it."""

    __slots__ = ("function", "name")

    def __init__(self, name: str, function: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.function = function

    def __call__(self, *args: Any) -> Any:
        if self.function is None:
            raise MeshwrightError(
                f"The derivative rule {self.name!r} is not part of this program.",
                why="the program was read from text, which keeps the name of a user's rule and not its Python code",
                fix="trace the function again with mw.make_program(f)(…)",
            )
        return self.function(*args)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self.name == other.name

    def __hash__(self) -> int:
        return hash(("Rule", self.name))

    def __repr__(self) -> str:
        return f"rule({self.name!r})"


def digest(array: np.ndarray[Any, Any]) -> str:
    """The name of an array's contents in the text; all NaNs are one, as the text has one word for them."""
    data = np.ascontiguousarray(array)
    if data.dtype.kind == "c":
        data = data.view(data.real.dtype)
    if data.dtype.kind not in "biu" and np.isnan(data).any():
        data = np.where(np.isnan(data), np.asarray(np.nan, data.dtype), data)
    from hashlib import sha256  # loads OpenSSL, which few programs need

    return sha256(data.tobytes()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Program:
    """A function of ``inputs`` computed by ``eqns`` in order. ``constants`` are arrays bound to vars beforehand.

    Two programs are equal when they are the same up to the names of their variables; source lines do not count.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> print(mw.make_program(lambda x: mnp.sin(x) * 2)(mnp.ones(3)).to_text(sources=False))
    program(a: f32[3]) {
      b: f32[3] = sin a
      c: f32[3] = mul b 2.0
      return c
    }
    """

    inputs: tuple[Var, ...]
    eqns: tuple[Eqn, ...]
    outputs: tuple[Atom, ...]
    constants: tuple[tuple[Var, Any], ...] = ()

    @property
    def in_types(self) -> tuple[TensorType, ...]:
        return tuple(v.type for v in self.inputs)

    @cached_property
    def effects(self) -> bool:
        """Whether it does more than compute its outputs: an op with effects is among its equations or in a region."""
        return any(eqn.effects for eqn in self.eqns)

    @property
    def out_types(self) -> tuple[TensorType, ...]:
        return tuple(a.type for a in self.outputs)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, sources: bool = True, constants: bool = False) -> str:
        """The program as text: with the user's lines as comments, and (``constants``) large arrays in full."""
        return _printer(self, sources, constants)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from meshwright.report.notebook import program_html

        return program_html(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and (self is other or canonical_key(self) == canonical_key(other))

    def __hash__(self) -> int:
        return hash(canonical_key(self))

    @property
    def names_devices(self) -> bool:
        """Whether its types say on which device a value is, as those of device programs do."""
        return False

    def key_rule(self, outer: KeyRule) -> KeyRule:
        """How its types and params enter its key, given the rule of the program around it."""
        return outer

    def key_parts(self) -> tuple[Any, ...]:
        """What else two equal programs have in common."""
        return ()


def below(program: Program, caller: Source) -> Program:
    """A program whose lines, those of its regions too, are reached from the line that calls it."""

    def moved(value: Any) -> Any:
        if isinstance(value, Program):
            return below(value, caller)
        return tuple(map(moved, value)) if value.__class__ is tuple else value

    eqns = []
    for eqn in program.eqns:
        params = {name: moved(value) for name, value in eqn.params.items()} if eqn.regions() else eqn.params
        source = caller if eqn.source is None else eqn.source.below(caller)
        eqns.append(Eqn(eqn.op, eqn.inputs, params, eqn.outputs, source))
    return replace(program, eqns=tuple(eqns))


_printer: Callable[[Program, bool, bool], str]


def set_printer(printer: Callable[[Program, bool, bool], str]) -> None:
    """Called once by ``core.text.parse``, which imports this module."""
    global _printer
    _printer = printer


class KeyRule:
    """How the types and params of a program enter its key. A program whose types bind names has a rule of its own."""

    def type(self, type: Any) -> Any:
        return type

    def value(self, value: Any) -> Any:
        """A param as a hashable value; ``True`` and ``1`` differ, and so do ``1`` and ``1.0``."""
        if isinstance(value, Program):
            return canonical_key(value, self)
        if isinstance(value, tuple | list):
            return tuple([self.value(item) for item in value])
        if isinstance(value, float | complex):
            return type(value).__name__, repr(value)
        if isinstance(value, np.ndarray):
            return digest(value), value.dtype, value.shape
        return type(value).__name__, value


_PLAIN = KeyRule()


def canonical_key(program: Program, outer: KeyRule = _PLAIN) -> tuple[Any, ...]:
    """A value equal for two programs exactly when they are equal up to names. Computed once per program.

    A region is asked with the rule of the program ``outer`` around it, whose names its types may have.
    """
    found = program.__dict__.get("_key") if outer is _PLAIN else None
    if found is not None:
        return found  # type: ignore[no-any-return]
    number: dict[int, int] = {}
    rule = program.key_rule(outer)

    def define(var: Var) -> Any:
        number[id(var)] = len(number)
        return rule.type(var.type)

    def use(atom: Atom) -> Any:
        return atom.key() if isinstance(atom, Literal) else number.get(id(atom), atom)

    constants = tuple(
        (define(v), value.digest if isinstance(value, Missing) else digest(value)) for v, value in program.constants
    )
    inputs = tuple(define(v) for v in program.inputs)
    eqns = tuple(
        (
            eqn.op,  # not its name, which another op may have had
            tuple(use(a) for a in eqn.inputs),
            param_key(eqn.params, rule),
            tuple(define(v) for v in eqn.outputs),
        )
        for eqn in program.eqns
    )
    key = (constants, inputs, eqns, tuple(use(a) for a in program.outputs), *program.key_parts())
    if outer is _PLAIN:
        object.__setattr__(program, "_key", key)
    return key


def param_key(params: Params, rule: KeyRule = _PLAIN) -> tuple[Any, ...]:
    """The params as a hashable value."""
    return tuple((name, rule.value(params[name])) for name in sorted(params))
