"""Where in the user's code something was written."""

from __future__ import annotations

import inspect
import linecache
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from types import CodeType, FrameType
from typing import ClassVar, NamedTuple, ParamSpec, TypeVar

from meshwright.errors import MeshwrightError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_WRITTEN_AS_USERS = tuple(
    os.path.join(_PACKAGE, *parts) for parts in (("tour", "decoder.py"), ("tour", "topics", ""), ("pallas", "ops", ""))
)
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_CALLS_BACK = ("jax", "numpy", "optree")  # packages through which this one calls itself
_LARGEST_SOURCE = 1 << 24  # bytes; a line of a larger file is named and not shown
_internal: dict[str, bool] = {}  # by file
_recent: dict[FrameType, _Recent] = {}
_MOST_FRAMES = 32  # that are kept at a time
_traced_apart: CodeType | None = None  # of what traces a function that may be used in several places
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # called anew, maybe from elsewhere
FORWARD, BACKWARD, RECOMPUTED = "forward", "backward", "recomputed"
_expressions = False  # whether lines say which expression on them it is


class Call(NamedTuple):
    """How a line was reached: the function it stands in, the line that called that, the named scopes around what came
    from it, and whether that is computed forward, backward, or a second time."""

    function: str = ""
    outer: Source | None = None
    scopes: tuple[str, ...] = ()
    direction: str = FORWARD


_PLAIN = Call()


class Source(NamedTuple):
    """A line of a file. Two are equal if file and line are, however they were reached."""

    file: str
    line: int

    @property
    def call(self) -> Call:
        """How it was reached, as far as that is known."""
        return _PLAIN

    @property
    def again(self) -> bool:
        """Whether what came from the line is computed there a second time, for a derivative that did not keep it."""
        return self.call.direction == RECOMPUTED

    def second(self) -> Source:
        """The line, of what is computed a second time."""
        return self.reached(self.call._replace(direction=RECOMPUTED))

    def backward(self) -> Source:
        """The line, of what belongs to the backward pass."""
        return self.reached(self.call._replace(direction=BACKWARD)) if self.call.direction == FORWARD else self

    def below(self, caller: Source) -> Source:
        """The line, in a function that ``caller`` calls: its own scopes and lines are inside of that one's."""
        call = self.call
        outer = caller.reached(caller.call._replace(scopes=(), direction=FORWARD))
        return self.reached(
            call._replace(
                outer=outer if call.outer is None else call.outer.below(outer),
                scopes=(*caller.call.scopes, *call.scopes),
            )
        )

    def reached(self, call: Call) -> Source:
        """The line, reached in another way."""
        return CallSource.of(self.file, self.line, call)

    def stack(self) -> list[Source]:
        """The lines of the user's that led here: this one, then the one that called its function, and so on."""
        found: list[Source] = []
        one: Source | None = self
        while one is not None:
            found.append(one)
            one = one.call.outer
        return found

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    def show(self) -> str:
        """``loss.py:41   total = partial + bias``: the place and the text of the line."""
        text = self.text
        return f"{self}   {text}" if text else str(self)

    @property
    def text(self) -> str:
        """The text of the line, if there is a file that it can be read from."""
        return linecache.getline(self.file, self.line).strip() if _may_be_opened(self.file) else ""


class CallSource(Source):
    """A line, and how it was reached. There is one object for each way to reach a line."""

    call = _PLAIN
    pulled: Source | None = None  # the line, of what belongs to the backward pass, once somebody asked
    known: ClassVar[dict[tuple[str, int, str, int, tuple[str, ...], str], CallSource]] = {}

    @classmethod
    def of(cls, file: str, line: int, call: Call) -> CallSource:
        """The one object for a line reached in a way."""
        key = (file, line, call.function, id(call.outer), call.scopes, call.direction)
        found = cls.known.get(key)
        if found is None:
            found = cls.known[key] = cls(file, line)
            found.call = call
        return found

    def backward(self) -> Source:
        if self.pulled is None:
            self.pulled = super().backward()
        return self.pulled


class ExpressionSource(Source):
    """A line, and the expression on it that is being evaluated: where that begins and ends, in lines and bytes; equal
    to any other of the line."""

    span: tuple[int, int, int, int]


class ReadSource(Source):
    """A line that a text says something came from. Whoever wrote the text may name any file, so none is opened."""

    call = _PLAIN

    def reached(self, call: Call) -> Source:
        found = ReadSource(self.file, self.line)
        found.call = call
        return found

    @property
    def text(self) -> str:
        """Nothing, as the file is not opened."""
        return ""


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
    return None if frame is None else Source(frame.f_code.co_filename, frame.f_lineno)


def traced_source() -> Source | None:
    """The user's innermost line, and how it was reached: by which lines, from the function that is traced on, and in
    which scopes. Frames that were asked for are kept until `forget_frames`."""
    frame = _user_frame(sys._getframe(1))
    if frame is None:
        return None
    if _expressions:
        return _expression(frame)
    scopes = _open.scopes
    known = _recent.get(frame)
    if known is not None:
        if known.instruction == frame.f_lasti and known.source.call.scopes == scopes:
            return known.source
        outer = known.source.call.outer
    else:
        outer = _caller(frame)
    source = _reached(frame, outer, scopes)
    if not frame.f_code.co_flags & _RESUMED:
        if len(_recent) >= _MOST_FRAMES:
            _recent.clear()
        _recent[frame] = _Recent(frame.f_lasti, source)
    return source


class _Recent(NamedTuple):
    """Where a frame was when it was last asked for. Its callers stay where they are as long as it runs."""

    instruction: int
    source: Source


def forget_frames() -> None:
    """Let go of the frames that were asked for, and so of what is in their variables."""
    _recent.clear()


def _reached(frame: FrameType, outer: Source | None, scopes: tuple[str, ...] = ()) -> Source:
    code = frame.f_code
    return CallSource.of(code.co_filename, frame.f_lineno, Call(code.co_qualname, outer, scopes))


def _caller(frame: FrameType) -> Source | None:
    """The user's line that called the function of a frame, inside of what is being traced."""
    above = frame.f_back
    while above is not None and above.f_code is not _traced_apart:
        if _internal.get(above.f_code.co_filename) or _user_frame(above) is not above:
            above = above.f_back
            continue
        known = _recent.get(above)
        return _reached(above, known.source.call.outer if known is not None else _caller(above))
    return None


Made = TypeVar("Made")
Given = ParamSpec("Given")


def traced_apart(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """A function that traces another which may be used in several places: lines and scopes begin anew in it."""

    @wraps(function)
    def alone(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with _scopes(()):
            return function(*args, **kwargs)

    global _traced_apart
    _traced_apart = getattr(alone, "__code__", None)  # the same for all functions
    return alone


class _OpenScopes(threading.local):
    scopes: tuple[str, ...] = ()


_open = _OpenScopes()


@contextmanager
def _scopes(names: tuple[str, ...]) -> Iterator[None]:
    before, _open.scopes = _open.scopes, names
    try:
        yield
    finally:
        _open.scopes = before


@contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Give what is traced inside a name, which `explain` shows; scopes nest. Also a decorator of functions.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> @mw.named_scope("block")
    ... def f(x):
    ...     with mw.named_scope("norm"):
    ...         return x - x.mean(0)
    >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x")))
    >>> mw.jit(f).lower(x).compile().explain(json=True)[0]["scopes"]
    ['block', 'norm']
    """
    if not isinstance(name, str):
        raise MeshwrightError(
            f"The name of a scope is {name!r}.",
            where=here(),
            why="a scope is named by a string",
            fix='with mw.named_scope("attention"): …',
        )
    with _scopes((*_open.scopes, name)):
        yield


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
        return Source(found.file, found.line)
    found.span = line, column, end_line, end_column
    return found


def user_call() -> tuple[int, int] | None:
    """Which call the user's code is in: equal for all that one library function does, and different for two."""
    frame = _user_frame(sys._getframe(1))
    return None if frame is None else (id(frame), frame.f_lasti)


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None:  # the innermost loop of tracing
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


def _is_internal(file: str) -> bool:
    """Whether a file is part of the package, of the standard library, or of what calls the package back.

    The tours and the kernels of ``pallas.ops`` are written as a user would.
    """
    if file.startswith(tuple(LEFT_OUT)):
        return True
    if file.startswith(_PACKAGE):
        return not file.startswith(_WRITTEN_AS_USERS)
    for folder in _INSTALLED:
        if folder in file:
            return file.rpartition(folder)[2].split(os.sep)[0] in _CALLS_BACK
    return file.startswith((_STANDARD, "<frozen", "<meshwright"))


LEFT_OUT: list[str] = []  # files and folders of libraries that do not want their own lines to be shown


def leave_out(path: str) -> None:
    """Show the line that called a library instead of those in this file or folder."""
    LEFT_OUT.append(path)
    _internal.clear()


def is_users(file: str) -> bool:
    """Whether a file is the user's: neither of this package nor of what it is built on."""
    return not _is_internal(file)


def is_library(file: str) -> bool:
    """Whether a file is of an installed package."""
    return any(folder in file for folder in _INSTALLED)


def here() -> str:
    """The user's line for an error's ``where``."""
    source = user_source()
    return source.show() if source else ""
