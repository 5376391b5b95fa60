"""What MLIR and the passes say about a module, and ``-verify-diagnostics``: whether that is what its comments expect.

A comment ``// expected-error @+1 {{text}}`` expects an error whose message contains the text, one line below. So do
``expected-warning``, ``expected-note`` and ``expected-remark``; ``@above``, ``@below``, ``@-2`` and ``@unknown`` say
where, and ``expected-error-re`` has regular expressions between further braces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from meshwright.errors import MeshwrightError
from meshwright.interop.stablehlo.context import context

_PLACE = re.compile(r'(?:"[^"]*"|line )?:?(\d+):(\d+)')


class Diagnostic(NamedTuple):
    """One message: its kind (error, warning, note or remark), where it points (0 if nowhere), and what it says."""

    kind: str
    line: int
    column: int
    message: str


class ExpectedDiagnostic(NamedTuple):
    """A message that a comment expects, and the line of that comment."""

    kind: str
    line: int | None  # None: anywhere
    text: str
    is_pattern: bool
    at: int

    def fits(self, found: Diagnostic) -> bool:
        """Whether a message is the one expected."""
        if found.kind != self.kind or (self.line is not None and found.line != self.line):
            return False
        if not self.is_pattern:
            return self.text in found.message
        parts = re.split(r"\{\{(.*?)\}\}", self.text)
        pattern = "".join(f"(?:{part})" if n % 2 else re.escape(part) for n, part in enumerate(parts))
        return re.search(pattern, found.message) is not None


@contextmanager
def gathered(found: list[Diagnostic]) -> Iterator[None]:
    """Add to ``found`` what MLIR says meanwhile, the notes of a message after it."""

    def handle(diagnostic: Any) -> bool:
        _add(diagnostic, found)
        return True

    with context():
        handler = context().attach_diagnostic_handler(handle)
        try:
            yield
        finally:
            handler.detach()


def _add(diagnostic: Any, found: list[Diagnostic]) -> None:
    found.append(located(diagnostic.severity.name.lower(), str(diagnostic.location), diagnostic.message))
    for note in diagnostic.notes:
        _add(note, found)


def located(kind: str, where: str, message: str) -> Diagnostic:
    """A message at a place that is written as ``"-":3:8`` or ``line 3:8``."""
    place = _PLACE.search(where)
    return Diagnostic(kind, int(place[1]) if place else 0, int(place[2]) if place else 0, message)


def said_by(error: Exception) -> list[Diagnostic]:
    """What an error of a pass or of MLIR says, in Shardy's words where it has such."""
    if isinstance(error, MeshwrightError):
        return [located("error", error.where, getattr(error, "message", "") or error.what)]
    found: list[Diagnostic] = []
    for one in getattr(error, "error_diagnostics", ()):
        found.append(located("error", str(one.location), one.message))
        found += [located("note", str(note.location), note.message) for note in one.notes]
    return found


_COMMENT = re.compile(
    r"expected-(error|warning|note|remark)(-re)?\s*(?:@([+-]\d+|above|below|unknown))?\s*\{\{(.*)\}\}\s*$"
)


def expected_in(text: str) -> list[ExpectedDiagnostic]:
    """The messages that the comments of a module expect."""
    lines = text.splitlines()

    def next_plain(start: int, step: int) -> int:
        """The nearest line that has no such comment."""
        at = start + step
        while 0 <= at < len(lines) and _COMMENT.search(lines[at]):
            at += step
        return at

    found = []
    for number, line in enumerate(lines):
        for comment in _COMMENT.finditer(line):
            kind, pattern, place, message = comment.groups()
            at: int | None = number
            if place == "unknown":
                at = None
            elif place in ("above", "below"):
                at = next_plain(number, -1 if place == "above" else 1)
            elif place:
                at = number + int(place)
            found.append(
                ExpectedDiagnostic(kind, None if at is None else at + 1, message, pattern is not None, number + 1)
            )
    return found


def verified(text: str, said: Sequence[Diagnostic], file: str) -> list[str]:
    """What was said and not expected, or expected and not said, a line each.

    >>> verified("// expected-error @+1 {{no such op}}", [Diagnostic("error", 2, 1, "no such op: x")], "m.mlir")
    []
    >>> verified("// expected-error @+1 {{no such op}}", [], "m.mlir")
    ['m.mlir:1: error: expected error "no such op" was not produced']
    """
    waiting = expected_in(text)
    found = []
    for one in said:
        fitting = next((expected for expected in waiting if expected.fits(one)), None)
        if fitting is not None:
            waiting.remove(fitting)
        elif one.kind in ("error", "warning", "remark"):
            found.append(f"{file}:{one.line}:{one.column}: error: unexpected {one.kind}: {one.message}")
    for expected in waiting:
        found.append(f'{file}:{expected.at}: error: expected {expected.kind} "{expected.text}" was not produced')
    return found


def diagnosed(text: str, run: Callable[[], Any]) -> list[Diagnostic]:
    """All that is said while something runs, its error too."""
    from jaxlib.mlir import ir

    found: list[Diagnostic] = []
    with gathered(found):
        try:
            run()
        except (MeshwrightError, ir.MLIRError) as error:
            said = said_by(error)
            found += [one for one in said if one not in found]
    return found
