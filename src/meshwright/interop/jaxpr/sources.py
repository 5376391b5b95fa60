"""Where in the user's code an equation of JAX was written, and how that was reached: JAX notes frames and names."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from meshwright.core.source import BACKWARD, FORWARD, RECOMPUTED, Call, CallSource, Source, is_users

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SECOND = "rematted_computation"  # the scope that JAX puts around what a checkpoint computes again
_lines: dict[Any, tuple[tuple[str, int, str], ...]] = {}  # by the traceback, which JAX keeps once for each place


class Surroundings(NamedTuple):
    """What is around the equations of a region: named scopes, and the direction."""

    scopes: tuple[str, ...] = ()
    direction: str = FORWARD


def surroundings(eqn: Any, outside: Surroundings) -> Surroundings:
    """The scopes and direction of an equation, those of the region it is in included."""
    scopes, direction = list(outside.scopes), outside.direction
    for step in eqn.source_info.name_stack.stack:
        if type(step).__name__ == "Transform":
            direction = BACKWARD if step.name == "transpose" and direction == FORWARD else direction
        elif step.name == _SECOND:
            direction = RECOMPUTED
        elif scopes[-1:] != [step.name]:  # what was transposed has the scopes of both passes
            scopes.append(step.name)
    return Surroundings(tuple(scopes), direction)


def source_of(eqn: Any, inside: Surroundings) -> Source | None:
    """The innermost line of the user's in the frames of an equation, reached by the others; None without frames."""
    lines = _user_lines(eqn.source_info.traceback)
    source: Source | None = None
    for n, (file, line, function) in enumerate(reversed(lines)):
        last = n == len(lines) - 1
        call = Call(function, source, *inside) if last else Call(function, source)
        source = CallSource.of(file, line, call)
    return source


def _user_lines(traceback: Any) -> tuple[tuple[str, int, str], ...]:
    """The lines of the user's that led to an equation, the innermost first, from the function that is read on."""
    if traceback is None:
        return ()
    if traceback not in _lines:
        found = []
        for frame in traceback.frames:
            if frame.file_name.startswith(_HERE):
                break
            if is_users(frame.file_name) and not any(part in frame.file_name for part in _INSTALLED):
                found.append((frame.file_name, frame.line_num, frame.function_name))
        _lines[traceback] = tuple(found)
    return _lines[traceback]
