"""The user's Python files: they are imported and called, and what they raise becomes one message."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NamedTuple

from meshwright.arrays.tracing import ShapeDtypeStruct, make_program
from meshwright.commands.files import read_text
from meshwright.compile.compiled import Compiled, Lowered
from meshwright.compile.jit import Jitted, jit
from meshwright.core.program import Program
from meshwright.core.source import Source, is_users
from meshwright.core.types import TensorType
from meshwright.errors import WITH_JAX, MeshwrightError

FORM = "FILE.py:NAME"
CALL = "(f, args), (f, args, kwargs), f.lower(*args) or f.lower(*args).compile()"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@contextmanager
def running(path: str, what: str, fix: str = "") -> Iterator[None]:
    """Around the code of a user's file: its folder is on the path, and what it prints goes to standard error.

    What it raises becomes an error that says that ``what`` raised it; ``fix`` is for an argument of the wrong kind.
    """
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    before = list(sys.path)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except MeshwrightError as error:
        if fix and error.what.startswith("A value str "):  # a dict is meant where an array is
            error.fix = fix
        raise
    except (Exception, SystemExit) as error:
        no_jax = isinstance(error, ModuleNotFoundError) and error.name in ("jax", "jaxlib")
        wrong = isinstance(error, TypeError | KeyError | IndexError | AttributeError)
        raise MeshwrightError(
            f"{what} raised {type(error).__name__}.",
            where=_where(error),
            why=_brief(error),
            fix=WITH_JAX if no_jax else fix if wrong else "",
        ) from error
    finally:
        if sys.path == before:
            sys.path.pop(0)


def _brief(error: BaseException) -> str:
    """The first lines of what an exception says."""
    text = str(error).strip() or "it says nothing more"
    return text if len(text) <= 2000 else text[:2000] + "…"


def _where(error: BaseException) -> str:
    """The line of the user's that raised: the innermost outside this package and the standard library."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return Source(error.filename, error.lineno or 1).show()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return Source(frames[-1].filename, frames[-1].lineno or 1).show() if frames else ""


def load(path: str, wanted: str = "NAME") -> ModuleType:
    """The module of a Python file, of which a function is ``wanted``."""
    read_text(path, _near_file(path, wanted))
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules:  # the file may be called as a package is that others import
        name = f"{name} of {os.path.abspath(path)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise MeshwrightError(f"{path} is not a Python file.", why="its name does not end in .py", fix=FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with running(path, path):
        spec.loader.exec_module(module)
    return module


class Named(NamedTuple):
    """What ``FILE.py:NAME`` names."""

    text: str
    path: str
    name: str
    module: ModuleType
    value: Any

    def example(self) -> str:
        """What to write for a command that needs a function and its arguments, which this is not."""
        ready = _ready(self.module, self.name)
        if ready:
            return f"{self.path}:{ready}"
        others = {self.name: self.value} | {name: getattr(self.module, name) for name in _own(self.module)}
        takes = {name: _needed(value) for name, value in others.items() if callable(value)}
        name = next((name for name, needed in takes.items() if needed), "")
        if not name:
            return f"a function of no arguments that returns {CALL}"
        return (
            f"{self.path}:example, after this in {self.path}, with arrays or "
            f"mw.ShapeDtypeStruct(shape, dtype) for {', '.join(takes[name])}:\n{_written(name, takes[name])}"
        )


def _written(name: str, needed: Sequence[str]) -> str:
    """The function ``example`` of a file that has this one, and the arguments that it needs."""
    return f"def example(): return {name}, ({', '.join(needed)}{',' * (len(needed) == 1)})"


def _near_file(path: str, wanted: str) -> str:
    """What to write if there is no such file: the Python file beside it that is called nearly so."""
    folder, base = os.path.split(path)
    try:
        files = [one for one in sorted(os.listdir(folder or ".")) if one.endswith(".py") and one != base]
    except OSError:
        files = []
    near = get_close_matches(base, files, 1)
    return f"{os.path.join(folder, near[0])}:{wanted}" if near else FORM


def named(text: str) -> Named:
    """What ``FILE.py:NAME`` names, of the file as it is imported."""
    path, _, name = text.rpartition(":")
    if not path or not name or os.path.isfile(text):
        raise _nameless(text.removesuffix(":"))
    value: Any = load(path, name)
    module = value
    for part in name.split("."):
        if not hasattr(value, part):
            raise MeshwrightError(f"{path} has no {name!r}.", why=_functions(module), fix=_example(path, module, name))
        value = getattr(value, part)
    return Named(text, path, name, module, value)


def called(one: Named, types: Sequence[TensorType] | None = None, fix: str = "") -> Any:
    """What a name stands for: a program or what has one, or what a function of no arguments returns.

    With ``types`` a function is traced on arguments of these, and a jitted one compiled, with its shardings and what is
    donated to it. ``fix`` is for one that takes others, if not --args.
    """
    text, path, name, _, value = one
    if not callable(value) or isinstance(getattr(value, "program", value), Program):
        if types is not None:
            raise typed_already(text, kind_of(value))
        return value
    _check_call(one, types or (), fix)
    arguments = f"for arguments that are no arrays: {_written(name, _needed(value))}, and {path}:example"
    with running(path, text, arguments if types else ""):
        if types is None:
            return value()
        args = [ShapeDtypeStruct(one.shape, one.dtype) for one in types]
        return value.lower(*args).compile() if isinstance(value, Jitted) else make_program(value)(*args)


def compiled(found: Any, text: str) -> Compiled | None:
    """A function and its arguments, or what was made of them, compiled; ``text`` names where it is from."""
    if isinstance(found, Compiled):
        return found
    with running(text.rpartition(":")[0], f"The function that {text} gives"):
        if isinstance(found, Lowered):
            return found.compile()
        if isinstance(found, tuple) and len(found) in (2, 3) and callable(found[0]) and isinstance(found[1], tuple):
            f, args, kwargs = (*found, {})[:3]
            if isinstance(kwargs, dict):
                return (f if isinstance(f, Jitted) else jit(f)).lower(*args, **kwargs).compile()
    return None


def typed_already(text: str, kind: str) -> MeshwrightError:
    """The error for types of arguments of what is no function."""
    return MeshwrightError(
        f"--args does not go with {text}.",
        why=f"it is {kind}, and types are of a function's arguments",
        fix="leave out --args",
    )


def kind_of(value: object) -> str:
    """What a value is, for a message."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _nameless(path: str) -> MeshwrightError:
    """The error for a file without the name of a function in it."""
    if not path.endswith(".py"):
        return MeshwrightError(f"{path!r} names no function of a Python file.", why=f"it is not {FORM}", fix=FORM)
    module = load(path)
    return MeshwrightError(
        f"{path} is a Python file, and the name of a function in it is missing.",
        why=_functions(module),
        fix=_example(path, module),
    )


def _own(module: ModuleType) -> list[str]:
    """The functions that a module defines, in its order."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def _functions(module: ModuleType) -> str:
    """The functions of a module as a message lists them."""
    found = _own(module)
    return f"it has {', '.join(found)}" if found else "it has no functions"


def _needed(function: Callable[..., Any]) -> list[str]:
    """The positional arguments that a function cannot be called without."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # nothing says what it takes
        return []
    return [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind in _POSITIONAL]


def _ready(module: ModuleType, but: str = "") -> str:
    """A function of a module that can be called as it is, other than ``but``: ``example``, or else the first."""
    values = vars(module)
    found = [n for n in _own(module) if n != but and not isinstance(values[n], type) and not _needed(values[n])]
    return "example" if "example" in found else next(iter(found), "")


def _example(path: str, module: ModuleType, name: str = "") -> str:
    """A function of the file as it is named on the command line: the one nearest to ``name``, or one to call."""
    found = _own(module)
    near = get_close_matches(name, found, 1)
    return f"{path}:{near[0] if near else _ready(module) or next(iter(found), 'NAME')}"


def _check_call(one: Named, types: Sequence[TensorType], fix: str) -> None:
    """Raise if a function does not take this many positional arguments."""
    try:
        signature = inspect.signature(one.value)
    except (TypeError, ValueError):  # nothing says what it takes
        return
    try:
        signature.bind(*types)
    except TypeError as error:
        needed = _needed(one.value)
        wanted = [*(one.short() for one in types), *["f32[8,4]"] * len(needed)][: len(needed)]
        count = f"{len(types)} argument{'s' if len(types) > 1 else ''}" if types else "no arguments"
        if not fix:
            fix = f"--args '{' '.join(wanted)}'" if wanted else "leave out --args"
            if not types:
                ready = _ready(one.module, one.name)
                fix = f"{one.path}:{ready}, or " * bool(ready) + f"{fix} with the types of {', '.join(needed)}"
        raise MeshwrightError(
            f"{one.name}({', '.join(signature.parameters)}) cannot be called with {count}.", why=str(error), fix=fix
        ) from error
