"""What a user calls the values of a program: arguments by name, also inside of loops, and what becomes of results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshwright.core.facts import Across, Fusion, Structure
from meshwright.core.op import fusion_of, is_elementwise
from meshwright.core.program import Atom, Eqn, Program, Var

_SAME = (Fusion.VIEW, Fusion.PERMUTATION)
GRADIENT = "gradient of "  # how names of gradients begin
MOST_STEPS = 16  # from a value towards a result
_INDEX = re.compile(r"(?<=\[)\d+(?=\])")
_NUMBER = re.compile(r"\d+")


class ValueNames:
    """Names of the values of a program, given those of its arguments and results."""

    def __init__(self, program: Program, names: Sequence[str], out_names: Sequence[str]) -> None:
        self.arguments: dict[Atom, int] = {}  # by values that are an argument or have its elements, its number
        self.names, self.out_names = names, out_names
        self.results: dict[Atom, str] = {}
        self.readers: dict[Atom, list[Eqn]] = {}
        self.makers: dict[Atom, Eqn] = {}
        for var, name in zip(program.outputs, out_names, strict=True):
            if isinstance(var, Var):
                self.results.setdefault(var, name)
        self._walk(program, dict(zip(program.inputs, range(len(names)), strict=True)))

    def _walk(self, program: Program, known: dict[Atom, int]) -> None:
        self.arguments.update(known)
        for eqn in program.eqns:
            for atom in eqn.inputs:
                self.readers.setdefault(atom, []).append(eqn)
            self.makers.update(dict.fromkeys(eqn.outputs, eqn))
            if len(eqn.inputs) == 1 and eqn.inputs[0] in self.arguments and _keeps_elements(eqn):
                self.arguments[eqn.outputs[0]] = self.arguments[eqn.inputs[0]]
            for name, region in eqn.regions():
                given = zip(region.inputs, _operands(eqn, name, region), strict=False)
                self._walk(region, {var: self.arguments[a] for var, a in given if a in self.arguments})

    def argument(self, atom: Atom | None) -> int | None:
        """The number of the argument that a value is, or has the elements of."""
        return self.arguments.get(atom) if atom is not None else None

    def of(self, atom: Atom | None, backward: bool) -> str:
        """What a user calls a value: its argument, what it is the gradient of, or the result it becomes; else nothing.

        A gradient meets the argument that it is of, of the same shape, in the update, on its way to a result.
        """
        number = self.argument(atom)
        if number is not None:
            return self.names[number]
        if atom is None:
            return ""
        seen: set[Atom] = {atom}
        frontier: list[Atom] = [atom]
        for _ in range(MOST_STEPS):
            for one in frontier:
                if one in self.results:
                    return f"towards {self.results[one]}"
                if backward:
                    met = next((n for n in self._met(one) if n is not None), None)
                    if met is not None:
                        return GRADIENT + self.names[met]
            frontier = [v for one in frontier for eqn in self._onward(one) for v in eqn.outputs if v not in seen]
            seen.update(frontier)
            if not frontier:
                break
        return ""

    def _onward(self, atom: Atom) -> Iterator[Eqn]:
        """The equations that make of a value one of the same shape, or with the same elements."""
        for eqn in self.readers.get(atom, ()):
            if not eqn.regions() and (is_elementwise(eqn) or _keeps_elements(eqn)):
                yield eqn

    def _met(self, atom: Atom) -> Iterator[int | None]:
        """The arguments of the same shape that elementwise equations read together with a value."""
        for eqn in self.readers.get(atom, ()):
            if is_elementwise(eqn):
                others = [a for a in eqn.inputs if a is not atom and a.type.shape == atom.type.shape]
                yield from map(self.arguments.get, others)


def general(name: str) -> str:
    """A name without its numbers, equal for what differs in these alone.

    >>> general("params['layers'][31]['w']"), general("layer31")
    ("params['layers'][*]['w']", 'layer*')
    """
    return _NUMBER.sub("*", name)


def for_all(names: Sequence[str]) -> str:
    """One name for those that differ in indices alone: a star where they do.

    >>> for_all(["result[1][0]['w']", "result[1][1]['w']"])
    "result[1][*]['w']"
    """
    columns = zip(*(_INDEX.findall(name) for name in names), strict=True)
    shown = iter(["*" if len(set(column)) > 1 else column[0] for column in columns])
    return _INDEX.sub(lambda _: next(shown), names[0])


def of_any_index(name: str) -> str:
    """The name of an array in lists, whatever its places in them.

    >>> of_any_index("params['layers'][31]['w1']")
    "params['layers'][*]['w1']"
    """
    return _INDEX.sub("*", name)


def _keeps_elements(eqn: Eqn) -> bool:
    """Whether the result of an equation has elements of its one operand, in other places or of another dtype."""
    if len(eqn.inputs) != 1 or len(eqn.outputs) != 1 or eqn.regions():
        return False
    if fusion_of(eqn) in _SAME or eqn.op.split.across is Across.CUT:
        return True
    return is_elementwise(eqn) and not eqn.op.cost([eqn.inputs[0].type], [eqn.outputs[0].type], eqn.params).flops


def _operands(eqn: Eqn, name: str, region: Program) -> Sequence[Atom]:
    """The operands of an equation that the inputs of its region are, or are rows of."""
    inputs = eqn.inputs
    if eqn.op.structure is Structure.BRANCH:
        return inputs[len(inputs) - len(region.inputs) :]
    if eqn.op.structure is Structure.LOOP:
        first, second = eqn.params["cond_consts"], eqn.params["body_consts"]
        return (*(inputs[:first] if name == "cond" else inputs[first : first + second]), *inputs[first + second :])
    return inputs if len(inputs) == len(region.inputs) else ()
