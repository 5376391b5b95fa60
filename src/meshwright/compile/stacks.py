"""The lines of a user's stack that say most about where something is: helpers and libraries are folded away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.core.program import Eqn, Program
from meshwright.core.source import Source, is_library


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
    """Knows which functions of a program are helpers."""

    def __init__(self, programs: Iterable[Program]) -> None:
        callers: dict[tuple[str, str], set[Source | None]] = {}
        seen: set[int] = set()
        for program in programs:
            for eqn in _equations(program):
                one = eqn.source
                while one is not None and id(one) not in seen:
                    seen.add(id(one))
                    callers.setdefault((one.file, one.call.function), set()).add(one.call.outer)
                    one = one.call.outer
        self.helpers = {function for function, lines in callers.items() if len(lines) > 1}

    def fold(self, source: Source | None) -> FoldedStack:
        """A line and those that led to it, folded; if all are helpers or of libraries, as they are."""
        stack = source.stack() if source is not None else []
        kept = [one for one in stack if not self.is_folded(one)]
        if not kept:
            return FoldedStack(tuple(stack), ())
        return FoldedStack(tuple(kept), tuple(stack[: stack.index(kept[0])]))

    def is_folded(self, line: Source) -> bool:
        return (line.file, line.call.function) in self.helpers or is_library(line.file)


def _equations(program: Program) -> Iterable[Eqn]:
    for eqn in program.eqns:
        yield eqn
        for _, region in eqn.regions():
            yield from _equations(region)


def _name(line: Source) -> str:
    """What a function is called inside of the one that defines it: ``loss.<locals>.body`` is ``body``."""
    return line.call.function.rpartition("<locals>.")[2]


def _shown(line: Source) -> str:
    name = f" in {_name(line)}" if line.call.function and _name(line) != "<module>" else ""
    text = line.text
    return f"{line}{name}" + (f"   {text}" if text else "")
