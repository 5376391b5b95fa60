"""Where in the user's code something was written."""

from __future__ import annotations

import linecache
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_WRITTEN_AS_USERS = (_PACKAGE + "tour.py", os.path.join(_PACKAGE + "pallas", "ops", ""))
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_CALLS_BACK = ("numpy", "optree")  # packages through which this one calls itself
_LARGEST_SOURCE = 1 << 24  # bytes; a line of a larger file is named and not shown
_internal: dict[str, bool] = {}  # by file
_lines: dict[tuple[str, int], Source] = {}
_expressions = False  # whether lines say which expression on them it is


class Source(NamedTuple):
    """A line of a file."""

    file: str
    line: int

    @property
    def again(self) -> bool:
        """Whether what came from the line is computed there a second time, for a derivative that did not keep it."""
        return False

    def second(self) -> Source:
        """The line, of what is computed a second time."""
        return _SecondSource(self.file, self.line)

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    def show(self) -> str:
        """``loss.py:41   total = partial + bias``: the place and the text of the line."""
        text = linecache.getline(self.file, self.line).strip() if _may_be_opened(self.file) else ""
        return f"{self}   {text}" if text else str(self)


class ExpressionSource(Source):
    """A line, and the expression on it that is being evaluated: where that begins and ends, in lines and bytes; equal
    to any other of the line."""

    span: tuple[int, int, int, int]


class ReadSource(Source):
    """A line that a text says something came from. Whoever wrote the text may name any file, so none is opened."""

    __slots__ = ()

    def show(self) -> str:
        """The place alone."""
        return str(self)

    def second(self) -> Source:
        return _ReadSecondSource(self.file, self.line)


class _SecondSource(Source):
    """A line, of what is computed a second time; as a line equal to any other."""

    __slots__ = ()

    @property
    def again(self) -> bool:
        return True


class _ReadSecondSource(ReadSource):
    """The same of a line that a text names."""

    __slots__ = ()

    @property
    def again(self) -> bool:
        return True


def _may_be_opened(file: str) -> bool:
    """Whether a file is one that code can be read from: regular and not huge, or known to be no file on the disk."""
    if file in linecache.cache:
        return True
    try:
        found = os.stat(file)
    except (OSError, ValueError):  # a cell of a notebook, say; no file has a null in its name
        return "\0" not in file
    return stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_SOURCE


def user_source() -> Source | None:
    """The innermost line being executed outside this package and what it calls itself through."""
    frame = _user_frame(sys._getframe(1))
    if frame is None:
        return None
    return _expression(frame) if _expressions else _line(frame.f_code.co_filename, frame.f_lineno)


@contextmanager
def with_expressions() -> Iterator[None]:
    """Have lines say which expression on them is being evaluated."""
    global _expressions
    _expressions = True
    try:
        yield
    finally:
        _expressions = False


def _expression(frame: FrameType) -> Source:
    """The expression that a frame is in, if its code says."""
    line, end_line, column, end_column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    found = ExpressionSource(frame.f_code.co_filename, frame.f_lineno)
    if line is None or end_line is None or column is None or end_column is None:
        return _line(found.file, found.line)
    found.span = line, column, end_line, end_column
    return found


def user_call() -> tuple[int, int] | None:
    """Which call the user's code is in: equal for all that one library function does, and different for two."""
    frame = _user_frame(sys._getframe(1))
    return None if frame is None else (id(frame), frame.f_lasti)


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        file = frame.f_code.co_filename
        internal = _internal.get(file)
        if internal is None:
            internal = _internal[file] = _is_internal(file)
        if not internal and not (file == "<string>" and _is_generated(frame)):
            return frame
        frame = frame.f_back
    return None


def _is_generated(frame: FrameType) -> bool:
    """Whether a function without a file was made for a class of this package, as a dataclass's ``__init__`` is."""
    return str(frame.f_globals.get("__name__")).startswith("meshwright.")


def _line(file: str, line: int) -> Source:
    found = _lines.get((file, line))
    if found is None:
        found = _lines[file, line] = Source(file, line)
    return found


def _is_internal(file: str) -> bool:
    """Whether a file is part of the package, of the standard library, or of what calls the package back.

    The tour and the kernels of ``pallas.ops`` are written as a user would.
    """
    if file.startswith(_PACKAGE):
        return not file.startswith(_WRITTEN_AS_USERS)
    for folder in _INSTALLED:
        if folder in file:
            return file.rpartition(folder)[2].split(os.sep)[0] in _CALLS_BACK
    return file.startswith((_STANDARD, "<frozen", "<meshwright"))


def is_users(file: str) -> bool:
    """Whether a file is the user's: neither of this package nor of what it is built on."""
    return not _is_internal(file)


def here() -> str:
    """The user's line for an error's ``where``."""
    source = user_source()
    return source.show() if source else ""
