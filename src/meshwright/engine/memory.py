"""Which values of a program share memory, and when a buffer may be written over.

A result is *owned* when its op always returns memory that nobody else refers to. Everything else (a view, an input, a
constant, what an unknown op returns) is never written to, and neither is an owned buffer while anything that might be
a view of it can still be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from meshwright.core.facts import Memory
from meshwright.core.op import memory_of
from meshwright.core.program import Eqn, Program, Var


class ResultMemory(IntEnum):
    """What an equation returns, as far as memory goes."""

    FRESH = 0  # an array with memory of its own
    SCALAR = 1  # memory of its own, but maybe a NumPy scalar, which cannot be written to
    WHOLE = 2  # its first operand or a copy, each element at one place: reshape, stop_gradient
    SHARED = 3  # perhaps views of any of its operands


def result_of(eqn: Eqn) -> ResultMemory:
    """What is known of an equation's results by its op; the engine knows more of what it writes out itself."""
    if memory_of(eqn) is Memory.SHARED:
        return ResultMemory.SHARED
    return ResultMemory.FRESH if all(v.type.ndim for v in eqn.outputs) else ResultMemory.SCALAR


class Lifetimes:
    """The lifetimes of a program's values and of the memory they live in."""

    def __init__(self, program: Program, results: Sequence[ResultMemory], donated: Sequence[bool]) -> None:
        self.last: dict[Var, int] = {}  # the last equation that reads a var; outputs are read after the last one
        for index, eqn in enumerate(program.eqns):
            for atom in eqn.inputs:
                if atom.__class__ is Var:
                    self.last[atom] = index
        for atom in program.outputs:
            if atom.__class__ is Var:
                self.last[atom] = len(program.eqns)
        self.owned: set[Var] = set()
        self.donated: set[Var] = set()
        self._group: dict[Var, int] = {}  # vars that may share memory; those never written to have none
        self._parent: list[int] = []
        self._gather(program, results, donated)
        self._latest()

    def may_overwrite(self, var: Var, index: int) -> bool:
        """Whether equation ``index`` is the last to read ``var``, whose memory is then nobody's."""
        if self.last.get(var) != index or (var not in self.owned and var not in self.donated):
            return False
        group = self._find(self._group[var])
        return self._last_of[group] == index and self._next_last_of[group] < index

    def _gather(self, program: Program, results: Sequence[ResultMemory], donated: Sequence[bool]) -> None:
        for var, given in zip(program.inputs, donated):
            if given and var.type.ndim:  # one of rank 0 is not worth it
                self.donated.add(var)
                self._new_group(var)
        for eqn, result in zip(program.eqns, results, strict=True):
            if result is ResultMemory.FRESH:
                for var in eqn.outputs:
                    self.owned.add(var)
                    self._new_group(var)
            if result is ResultMemory.FRESH or result is ResultMemory.SCALAR:
                continue
            groups = [self._group[a] for a in eqn.inputs if a in self._group]  # type: ignore[index]
            if not groups:
                continue
            for group in groups[1:]:
                self._parent[self._find(group)] = self._find(groups[0])
            for var in eqn.outputs:
                self._group[var] = groups[0]
                if result is ResultMemory.WHOLE and eqn.inputs[0] in self.owned:
                    self.owned.add(var)

    def _latest(self) -> None:
        """Per group, the last two times its vars are read; a var is read at its definition at the earliest."""
        self._last_of = [-1] * len(self._parent)
        self._next_last_of = [-1] * len(self._parent)
        for var, group in self._group.items():
            root, time = self._find(group), self.last.get(var, -1)
            if time > self._last_of[root]:
                self._next_last_of[root], self._last_of[root] = self._last_of[root], time
            elif time > self._next_last_of[root]:
                self._next_last_of[root] = time

    def _new_group(self, var: Var) -> None:
        self._group[var] = len(self._parent)
        self._parent.append(len(self._parent))

    def _find(self, group: int) -> int:
        parent = self._parent
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group
