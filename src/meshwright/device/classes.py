"""Which dims go together: splitting one of a class across devices splits them all.

A class is found from factor rules alone: dims that lead with the same factor of an op are of one class, and so are a
dim and the same dim after a scatter, a send or a pmap's boundary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.core.factors import Dims, Factors
from meshwright.core.linearity import UNBOUNDED, Does, LinearGroup, Magnitude, magnitude_of_moved, stays_finite
from meshwright.device.dims import Size
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand
from meshwright.device.ops import CONSTANT, DeviceOp
from meshwright.device.tensor_ops import is_tensor_eqn, linear_groups, plain, rule_of, signatures, tensor_of

Place = tuple[DeviceValue, int]  # a dim of a value; of a tuple, that dim of its elements


def places(values: Sequence[DeviceValue]) -> list[Place]:
    """All dims of some values."""
    return [(v, d) for v in values for d in range(len(tensor_of(v).shape))]


class Classes:
    """A union of places, over a function and the bodies of its pmaps; ``rules`` are the factor rules of equations."""

    def __init__(self, fn: Function) -> None:
        self._parent: dict[Place, Place] = {}
        self._seen: set[int] = set()
        self.rules: dict[DeviceEqn, Factors | None] = {}
        self.magnitudes: dict[DeviceValue, Magnitude] = {}
        self.answers: dict[tuple[object, ...], Any] = {}  # what is known of how equations are split
        self.walk(fn)

    def root(self, place: Place) -> Place:
        """What stands for the class of a place."""
        parent = self._parent.setdefault(place, place)
        while parent != self._parent[parent]:
            self._parent[parent] = parent = self._parent[self._parent[parent]]
        return parent

    def join(self, a: Place, b: Place) -> None:
        self._parent[self.root(a)] = self.root(b)

    def members(self) -> Iterator[tuple[Place, Place]]:
        """Every place met so far, with what stands for its class."""
        for place in list(self._parent):
            yield place, self.root(place)

    def walk(self, fn: Function) -> None:
        if id(fn) in self._seen:
            return
        self._seen.add(id(fn))
        users: dict[int, list[DeviceEqn]] = {}
        for eqn in fn.eqns:
            users.setdefault(id(eqn.body), []).append(eqn)
        for eqn in fn.eqns:
            if eqn.body is not None:
                for outer, inner in zip(eqn.values, eqn.body.inputs, strict=True):
                    # A body that several equations share is given the same value by all of them, or not known.
                    self.same(outer, inner, all(outer in other.values for other in users[id(eqn.body)]))
                self.walk(eqn.body)
                for inner, outer in zip(eqn.body.outputs, eqn.outputs, strict=True):
                    self.same(inner, outer)
            elif is_tensor_eqn(eqn):
                self.tensor(eqn)
            else:
                for x in eqn.values:
                    for out in eqn.outputs:
                        self.same(x, out, len(eqn.values) == 1)

    def same(self, a: DeviceValue, b: DeviceValue, everywhere: bool = True) -> None:
        """Join the dims of a value and of the same elsewhere; zeros are zeros there, if it is all there is."""
        for dim in range(len(tensor_of(a).shape)):
            self.join((a, dim), (b, dim))
        if everywhere and self.is_zero(a):
            self.magnitudes[b] = self.magnitudes[a]

    def tensor(self, eqn: DeviceEqn) -> None:
        self.note_magnitude(eqn)
        found = rule_of(eqn)
        rule = self.rules[eqn] = None if found is None else self._guarded(eqn, found)
        if rule is None:
            return
        first: dict[str, Place] = {}
        for operand, dims in zip((*eqn.inputs, *eqn.outputs), (*rule.operands, *rule.results), strict=True):
            for dim in range(len(dims) if isinstance(operand, DeviceValue) else 0):
                factor = leading(dims, dim, rule)
                if factor is not None and factor in rule.separable - rule.blocked:
                    self.join((operand, dim), first.setdefault(factor, (operand, dim)))  # type: ignore[arg-type]

    def _guarded(self, eqn: DeviceEqn, rule: Factors) -> Factors:
        """A rule whose separable factors are those along which this equation on parts gives parts or summands."""
        guarded = rule.guarded | rule.permuted
        if not isinstance(eqn.op, DeviceOp):
            # The ops of device programs sum over a factor wherever a result lacks it, also one that another has.
            named = [{factor for dim in dims for factor in dim} for dims in rule.results]
            guarded |= frozenset().union(*named) - frozenset(rule.sizes).intersection(*named)
        if rule.combine == "sum" and any(group.does is Does.ADDS for group in linear_groups(eqn)):
            # A sum onto something, such as scatter_add, may be split where that something is zero: each part adds it.
            unreduced = set(rule.reduced & rule.guarded)
            for x, dims in zip(eqn.inputs, rule.operands, strict=True):
                if not (isinstance(x, DeviceValue) and self.is_zero(x)):
                    unreduced &= {name for dim in dims for name in dim}
            guarded -= unreduced
        return rule._replace(guarded=guarded)

    # Numbers that are written in the program

    def magnitude_of(self, x: Operand) -> Magnitude | None:
        """Bounds on the numbers in an operand that is written in the program, None for any other."""
        return Magnitude.of(x.value) if isinstance(x, Number) else self.magnitudes.get(x)

    def is_zero(self, value: DeviceValue) -> bool:
        return self.magnitudes.get(value, UNBOUNDED).most == 0

    def note_magnitude(self, eqn: DeviceEqn) -> None:
        """Remember the bounds of a constant, and of what it is moved into."""
        if eqn.op is CONSTANT:
            self.magnitudes[eqn.outputs[0]] = Magnitude.of(eqn.attributes["value"])
        elif eqn.inputs and None not in (found := [self.magnitude_of(x) for x in eqn.inputs]):
            types, result = ([plain(arg) for arg in signatures(xs)] for xs in (eqn.inputs, eqn.outputs))
            moved = magnitude_of_moved(linear_groups(eqn), types, result[0], found)
            self.magnitudes.update({} if moved is None else {eqn.outputs[0]: moved})

    def linear_in(self, eqn: DeviceEqn, operands: tuple[int, ...]) -> list[LinearGroup]:
        """The group of these operands, if the op on summands of them, and copies of the others, gives summands."""
        types = [plain(arg) for arg in signatures(eqn.inputs)]
        magnitudes = [self.magnitude_of(x) for x in eqn.inputs]
        return [
            group
            for group in linear_groups(eqn)
            if group.operands == operands and stays_finite(group, types, magnitudes.__getitem__)
        ]


def leading(dims: Dims, dim: int, rule: Factors) -> str | None:
    """The factor that a split of a dim splits: its major one, sizes of 1 aside."""
    return next((factor for factor in dims[dim] if rule.sizes[factor] != 1), None)


def divides(size: Size, parts: Size) -> bool:
    """Whether a dim can be cut; where a symbol decides, resolution will tell."""
    if isinstance(size, int) and size <= 1:
        return False
    return not isinstance(size, int) or not isinstance(parts, int) or size % parts == 0
