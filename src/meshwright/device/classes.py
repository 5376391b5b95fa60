"""Which dims go together: splitting one of a class across devices splits them all.

A class is found from factor rules alone: dims that lead with the same factor of an op are of one class, and so are a
dim and the same dim after a scatter, a send or a pmap's boundary.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.core.factors import Dims, Factors
from meshwright.core.linearity import Does, Magnitude, magnitude_of_moved, stays_finite
from meshwright.device.dims import Size
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand
from meshwright.device.ops import CONSTANT
from meshwright.device.tensor_ops import is_tensor_eqn, linear_groups, plain, rule_of, signatures, tensor_of

Place = tuple[DeviceValue, int]  # a dim of a value; of a tuple, that dim of its elements


class Classes:
    """A union of places, over a function and the bodies of its pmaps."""

    def __init__(self, fn: Function) -> None:
        self._parent: dict[Place, Place] = {}
        self._seen: set[int] = set()
        self.rules: dict[DeviceEqn, Factors | None] = {}
        self._free: dict[DeviceEqn, frozenset[str]] = {}
        self._zeros: set[DeviceValue] = set()
        self.magnitudes: dict[DeviceValue, Magnitude] = {}
        self._linear: dict[tuple[DeviceEqn, tuple[int, ...]], bool] = {}
        self.walk(fn)

    def root(self, place: Place) -> Place:
        """What stands for the class of a place."""
        parent = self._parent.setdefault(place, place)
        while parent != self._parent[parent]:
            self._parent[parent] = parent = self._parent[self._parent[parent]]
        return parent

    def join(self, a: Place, b: Place) -> None:
        self._parent[self.root(a)] = self.root(b)

    def walk(self, fn: Function) -> None:
        if id(fn) in self._seen:
            return
        self._seen.add(id(fn))
        users: dict[int, list[DeviceEqn]] = {}
        for eqn in fn.eqns:
            if eqn.body is not None:
                users.setdefault(id(eqn.body), []).append(eqn)
        for eqn in fn.eqns:
            if eqn.body is not None:
                for outer, inner in zip(eqn.values, eqn.body.inputs, strict=True):
                    self.same(outer, inner)
                    # A body that several equations share is given the same value by all of them, or not known.
                    if outer in self._zeros and all(outer in other.values for other in users[id(eqn.body)]):
                        self._zeros.add(inner)
                self.walk(eqn.body)
                for inner, outer in zip(eqn.body.outputs, eqn.outputs, strict=True):
                    self.same(outer, inner)
                    self._zeros |= {outer} if inner in self._zeros else set()
            elif is_tensor_eqn(eqn):
                self.tensor(eqn)
            else:
                for x in eqn.values:
                    for out in eqn.outputs:
                        self.same(x, out)
                        self._zeros |= {out} if x in self._zeros and len(eqn.values) == 1 else set()

    def same(self, a: DeviceValue, b: DeviceValue) -> None:
        for dim in range(len(tensor_of(a).shape)):
            self.join((a, dim), (b, dim))

    def tensor(self, eqn: DeviceEqn) -> None:
        rule = self.rules[eqn] = rule_of(eqn)
        self.note_magnitude(eqn)
        if _is_zero(eqn):
            self._zeros.update(eqn.outputs)
        if rule is None:
            return
        free = self._free[eqn] = self._splittable(eqn, rule)
        first: dict[str, Place] = {}
        for operand, dims in zip((*eqn.inputs, *eqn.outputs), (*rule.operands, *rule.results), strict=True):
            if isinstance(operand, Number):
                continue
            for dim in range(len(dims)):
                factor = leading(dims, dim, rule)
                if factor is not None and factor in free and factor not in rule.blocked:
                    self.join((operand, dim), first.setdefault(factor, (operand, dim)))

    def _splittable(self, eqn: DeviceEqn, rule: Factors) -> frozenset[str]:
        free = frozenset(rule.sizes) - rule.replicated - rule.permuted - rule.guarded
        if rule.combine != "sum" or all(group.does is not Does.ADDS for group in linear_groups(eqn)):
            return free
        # A sum onto something, such as scatter_add, may be split where that something is zero: each part adds it.
        unreduced = set(rule.reduced & rule.guarded)
        for x, dims in zip(eqn.inputs, rule.operands, strict=True):
            if not (isinstance(x, DeviceValue) and x in self._zeros):
                unreduced &= {name for dim in dims for name in dim}
        return free | unreduced

    def splittable(self, eqn: DeviceEqn) -> frozenset[str]:
        """The factors along which the op on parts gives parts, or summands, of the results."""
        return self._free.get(eqn, frozenset())

    def magnitude_of(self, x: Operand) -> Magnitude | None:
        """Bounds on the numbers in an operand that is written in the program, None for any other."""
        return Magnitude.of(x.value) if isinstance(x, Number) else self.magnitudes.get(x)

    def note_magnitude(self, eqn: DeviceEqn) -> None:
        """Remember the bounds of a constant, and of what it is moved into."""
        if eqn.op is CONSTANT:
            self.magnitudes[eqn.outputs[0]] = Magnitude.of(eqn.attributes["value"])
        elif eqn.inputs and None not in (found := [self.magnitude_of(x) for x in eqn.inputs]):
            types, result = ([plain(arg) for arg in signatures(xs)] for xs in (eqn.inputs, eqn.outputs))
            moved = magnitude_of_moved(linear_groups(eqn), types, result[0], found)
            self.magnitudes.update({} if moved is None else {eqn.outputs[0]: moved})

    def is_linear_in(self, eqn: DeviceEqn, operands: tuple[int, ...]) -> bool:
        """Whether the op on summands of some operands, and copies of the others, gives summands of its results."""
        found = self._linear.get((eqn, operands))
        if found is None:
            types = [plain(arg) for arg in signatures(eqn.inputs)]
            magnitudes = [self.magnitude_of(x) for x in eqn.inputs]
            found = self._linear[eqn, operands] = any(
                group.operands == operands and stays_finite(group, types, magnitudes.__getitem__)
                for group in linear_groups(eqn)
            )
        return found

    def members(self) -> Iterator[tuple[Place, Place]]:
        """Every place met so far, with what stands for its class."""
        for place in list(self._parent):
            yield place, self.root(place)


def _is_zero(eqn: DeviceEqn) -> bool:
    if eqn.op is CONSTANT:
        return not eqn.attributes["value"].any()
    if len(eqn.inputs) != 1 or not isinstance(eqn.inputs[0], Number) or eqn.inputs[0].value != 0:
        return False
    return bool(linear_groups(eqn))


def leading(dims: Dims, dim: int, rule: Factors) -> str | None:
    """The factor that a split of a dim splits: its major one, sizes of 1 aside."""
    return next((factor for factor in dims[dim] if rule.sizes[factor] != 1), None)


def divides(size: Size, parts: Size) -> bool:
    """Whether a dim can be cut; where a symbol decides, resolution will tell."""
    if isinstance(size, int) and size <= 1:
        return False
    return not isinstance(size, int) or not isinstance(parts, int) or size % parts == 0
