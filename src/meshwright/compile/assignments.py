"""Values that a line of the user's gives a name, and programs traced as if a constraint were written below the line."""

from __future__ import annotations

import ast
import io
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from meshwright.core.current import written_below
from meshwright.core.program import Eqn, Program, Var
from meshwright.core.source import FORWARD, ReadSource, Source


class Assignment(NamedTuple):
    """``name = …``, on lines of its own."""

    file: str
    first: int
    last: int
    name: str

    @property
    def place(self) -> str:
        """The line that something is to be written below."""
        return str(Source(self.file, self.last))

    def __str__(self) -> str:
        return f"{self.name} below {self.place}"


def assignment(source: Source) -> Assignment | None:
    """What a line assigns, if that is one name, with a type or without, or added to one."""
    if isinstance(source, ReadSource) or not source.text:
        return None
    found = _assignments("".join(linecache.getlines(source.file))).get(source.line)
    return None if found is None else Assignment(source.file, *found)


@lru_cache(maxsize=32)
def _assignments(text: str) -> dict[int, tuple[int, int, str]]:
    """By each of its lines, where an assignment begins and ends, and its name."""
    try:
        parsed = ast.parse(text)
    except SyntaxError:  # a cell of a notebook with commands in it
        return {}
    lines = text.splitlines()
    found: dict[int, tuple[int, int, str]] = {}
    for one in ast.walk(parsed):
        if not isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign) or one.value is None:
            continue
        targets = one.targets if isinstance(one, ast.Assign) else [one.target]
        first, last = one.lineno, one.end_lineno or one.lineno
        before = lines[first - 1].encode()[: one.col_offset].strip()
        after = lines[last - 1].encode()[one.end_col_offset or 0 :].strip()
        alone = not before and (not after or after.startswith(b"#"))
        if alone and len(targets) == 1 and isinstance(targets[0], ast.Name):
            found.update(dict.fromkeys(range(first, last + 1), (first, last, targets[0].id)))
    return found


def assigned_values(program: Program) -> dict[tuple[Any, ...], Var]:
    """By the lines that led to equations of the forward pass, what the last of these made: the value that such a line
    assigns, if it assigns one."""
    found: dict[tuple[Any, ...], Var] = {}
    for eqn in _equations(program):
        if eqn.source is not None and eqn.source.call.direction == FORWARD and eqn.outputs:
            found.update(dict.fromkeys(map(reached, eqn.source.stack()), eqn.outputs[0]))
    return found


def reached(line: Source) -> tuple[Any, ...]:
    """A line and how it was reached, the same in both passes."""
    return line.file, line.line, line.call.function, id(line.call.outer)


def _equations(program: Program) -> Iterator[Eqn]:
    for eqn in program.eqns:
        for _, region in eqn.regions():
            yield from _equations(region)
        yield eqn


class WrittenBelow:
    """A call on the value of an assignment as if it were written below that, for all that is traced meanwhile.

    ``times`` is how often it ran.
    """

    def __init__(self, at: Assignment, call: Callable[[Any], Any]) -> None:
        self.at, self.call, self.times = at, call, 0
        self._known: dict[CodeType, bool] = {}
        self._frames: dict[FrameType, tuple[int, Any]] = {}  # the line that each is in, and the value of the name

    @contextmanager
    def __call__(self) -> Iterator[None]:
        before, token = sys.gettrace(), written_below.set(self)
        sys.settrace(self._entered)
        try:
            with redirect_stdout(io.StringIO()):  # what the function prints it has printed when it was traced
                yield
        finally:
            sys.settrace(before)
            written_below.reset(token)
            self._frames.clear()

    def _entered(self, frame: FrameType, *_: Any) -> Any:
        code = frame.f_code
        known = self._known.get(code)
        if known is None:
            lines = (line for *_, line in code.co_lines()) if code.co_filename == self.at.file else ()
            named = self.at.name in (*code.co_varnames, *code.co_cellvars)
            known = self._known[code] = named and any(line == self.at.first for line in lines)
        return self._at_line if known else None

    def _at_line(self, frame: FrameType, event: str, _: Any) -> Any:
        """Called before a line is run: constrain what the one before has assigned."""
        if event == "line":
            line, before = self._frames.get(frame, (0, None))
            value = frame.f_locals.get(self.at.name)
            if self.at.first <= line <= self.at.last and value is not before:
                frame.f_locals[self.at.name] = value = self.call(value)
                self.times += 1
            self._frames[frame] = frame.f_lineno, value
        elif event == "return":
            self._frames.pop(frame, None)
        return self._at_line
