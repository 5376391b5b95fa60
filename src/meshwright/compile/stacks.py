"""The lines of a user's stack that say most about where something is: helpers and libraries are folded away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.core.program import Eqn, Program
from meshwright.core.source import FORWARD, Source, is_library

Function = tuple[str, str]  # a file, and the name of a function in it
FOR_MANY = 3  # lines


class FoldedStack(NamedTuple):
    """The lines from the innermost outward without those of helpers, and the helpers that were called from the first.

    A helper is a function that is called from several lines of the program, as a wrapper around ``einsum`` is: which
    of these it was says more than its own line does.
    """

    lines: tuple[Source, ...]
    helpers: tuple[Source, ...]

    @property
    def line(self) -> Source | None:
        """The innermost line that is no helper's."""
        return self.lines[0] if self.lines else None

    def show(self) -> list[str]:
        """The lines with their functions and texts; the first also with the helpers that it leads to."""
        shown = [_shown(one) for one in self.lines]
        if self.helpers:
            shown[0] += f"   (in {', '.join(f'{_name(one)} {one}' for one in reversed(self.helpers))})"
        return shown


class StackFolder:
    """Knows which functions of a program are helpers: those that are called from several lines, and what only these
    are made of. The forward pass says which these are: from where a line of the backward pass was reached may be known
    in part only, as of a loop that JAX transposed."""

    def __init__(self, programs: Iterable[Program]) -> None:
        self.reached: dict[int, Source] = {}
        for program in programs:
            for eqn in _equations(program):
                one = eqn.source
                while one is not None and id(one) not in self.reached and one.call.direction == FORWARD:
                    self.reached[id(one)] = one
                    one = one.call.outer
        callers: dict[Function, set[Source | None]] = {}
        for one in self.reached.values():
            callers.setdefault(_function(one), set()).add(one.call.outer)
        self.helpers = {function for function, lines in callers.items() if len(lines) > 1}
        while more := self._made_of_helpers() - self.helpers:
            self.helpers |= more

    def _made_of_helpers(self) -> set[Function]:
        """Functions that helpers call and that say as little as these do.

        They are what a helper with a single line calls there, ``es`` in ``def dense(x, w): return es("bd,df->bf",
        x, w)``, and what helpers and libraries call for three lines or more. What a line of ``__call__`` leads to, the
        ``forward`` of several classes, is none of these: each is asked for by lines of its own.
        """
        lines: dict[Function, set[Source]] = {}
        called: dict[Source, set[Function]] = {}
        asked: dict[Function, set[Source]] = {}
        for one in self.reached.values():
            lines.setdefault(_function(one), set()).add(one)
            if one.call.outer is not None:
                called.setdefault(one.call.outer, set()).add(_function(one))
            above = self._outside(one)
            if above is not None:
                asked.setdefault(_function(one), set()).add(above)
        wrapped = {
            next(iter(functions))
            for line, functions in called.items()
            if len(functions) == 1 and _function(line) in self.helpers and lines[_function(line)] == {line}
        }
        return wrapped | {function for function, outside in asked.items() if len(outside) >= FOR_MANY}

    def _outside(self, line: Source) -> Source | None:
        """The line that a function was called for: the first outside of it that is no helper's."""
        above = line.call.outer
        while above is not None and self.is_folded(above):
            above = above.call.outer
        return above

    def fold(self, source: Source | None) -> FoldedStack:
        """A line and those that led to it, folded; if all are helpers or of libraries, as they are."""
        stack = source.stack() if source is not None else []
        kept = [one for one in stack if not self.is_folded(one)]
        if not kept:
            return FoldedStack(tuple(stack), ())
        return FoldedStack(tuple(kept), tuple(stack[: stack.index(kept[0])]))

    def is_folded(self, line: Source) -> bool:
        return _function(line) in self.helpers or is_library(line.file)


def _equations(program: Program) -> Iterable[Eqn]:
    for eqn in program.eqns:
        yield eqn
        for _, region in eqn.regions():
            yield from _equations(region)


def _function(line: Source) -> Function:
    return line.file, line.call.function


def _name(line: Source) -> str:
    """What a function is called inside of the one that defines it: ``loss.<locals>.body`` is ``body``."""
    return line.call.function.rpartition("<locals>.")[2]


def _shown(line: Source) -> str:
    name = f" in {_name(line)}" if line.call.function and _name(line) != "<module>" else ""
    text = line.text
    return f"{line}{name}" + (f"   {text}" if text else "")
