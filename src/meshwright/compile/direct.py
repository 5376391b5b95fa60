"""Calls of a compiled function on arrays, in straight code written for their containers, types and shardings.

    def call(self, *args, **kwargs):
        try:
            if kwargs or len(args) != 2 or state.builder is not None or …: return self._general(args, kwargs)
            x0, c1, = args
            if c1.__class__ is not dict or len(c1) != 1: return …
            x1 = c1[k0]
            if (d0 := x0._data).__class__ is not kind or x0.type is not t0 … or x0._sharding is not s0 …: return …
            …
        except MISFITS: return self._general(args, kwargs)
        outs = function(d0, d1)
        r0 = new(Array); r0._data = outs[0]; r0.type = …; r0._sharding = …
        return [r0]

What the general call does in loops over arguments, and looks up in a table, takes longer than a small function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np

from meshwright.core import tree
from meshwright.core.current import (
    current_device,
    current_engine,
    current_mesh,
    current_processes,
    current_width,
    device_chosen,
)
from meshwright.core.trace import Array, state
from meshwright.core.types import TensorType

WrittenCall = Callable[..., Any]  # a method: the instance, and what it is called with
MOST_LEAVES = 1024
ANY = "any"  # engine: that of a call that depends on no settings
MISFITS = (AttributeError, KeyError, TypeError)  # of arguments that are something else: no array, another key
_MISS = "return self._general(args, kwargs)"


class DirectSignature(NamedTuple):
    """What a direct call is written for: the containers, types, shardings and the kinds of contents of its arguments,
    which leaves of these are donated, and the values of static arguments by their positions. A leaf whose kind is None
    is an array of NumPy itself, of which a copy is taken, as everywhere."""

    in_tree: tree.TreeDef  # of the positional arguments that are not static
    types: Sequence[TensorType]
    shardings: Sequence[Any]
    kinds: Sequence[type | None]
    donated: Sequence[int]
    statics: dict[int, Any]


class DirectResults(NamedTuple):
    """The containers, types and shardings of results; ``bare``: of a single one, the function returns itself."""

    out_tree: tree.TreeDef
    types: Sequence[TensorType]
    shardings: Sequence[Any]
    bare: bool


def direct_call(
    function: Callable[..., Any],
    given: DirectSignature,
    results: DirectResults,
    engine: str | None,
    on_devices: bool,
    allowed: Callable[[], None] | None,
) -> WrittenCall | None:
    """A method for calls on arrays like those given, while all that a program depends on is as it is now; for others it
    calls the ``_general`` of its instance. None for containers of other kinds than dicts, lists and tuples.

    ``engine`` is the current one if the call depends on that, `ANY` if it depends on no settings at all; ``on_devices``
    says that the function is JAX's, which refuses arrays that are elsewhere; ``allowed`` raises if it may not run now.
    """
    writer = _Writer()
    bound = writer.bound
    bound.update(
        Array=Array, MISFITS=MISFITS, width=current_width, current_engine=current_engine, current_mesh=current_mesh,
        current_device=current_device, chosen=device_chosen, current_processes=current_processes, function=function,
        ndarray=np.ndarray, mesh=current_mesh.get(), state=state, wide=current_width.wide, engine=engine,
        new=object.__new__, allowed=allowed, getrefcount=getrefcount,
    )  # fmt: skip
    tests = _settings(engine)
    if None in given.kinds and engine != ANY:  # which are where all is that was put nowhere
        bound["default"] = current_device.place
        tests.append("(current_device.place if chosen.ever else None) is not default")
    if len(given.types) > MOST_LEAVES or not writer.arguments(given, tests):
        return None
    writer.call(given, on_devices, allowed is not None)
    if not writer.results(results):
        return None
    text = "\n".join(["def call(self, *args, **kwargs):", *writer.lines])  # names are ours
    exec(compile(text, __file__, "exec"), bound)  # a file of this package: no error is about a line of it
    found: WrittenCall = bound["call"]
    return found


def called_by(instance: Any, call: WrittenCall | None) -> None:
    """Let this one instance of its class be called by what was written for it; None: as all others. A method that
    looks for what was written would take as long as it saves."""
    kind = type(instance)
    if "_of_one" in kind.__dict__:
        if call is not None:
            kind.__call__ = call
            return
        instance.__class__ = kind.__base__
    elif call is not None:
        same = {"__slots__": (), "__doc__": kind.__doc__, "__module__": kind.__module__, "_of_one": True}
        instance.__class__ = type(kind.__name__, (kind,), {**same, "__call__": call})


def _settings(engine: str | None) -> list[str]:
    """Tests of which any says that what a program depends on has changed."""
    tests = ["state.builder is not None"]
    if engine != ANY:
        tests += ["current_engine.disabled", "width.wide is not wide", "current_mesh.get() is not mesh"]
    if engine not in (ANY, None):
        tests.append("current_engine.name != engine")
    return tests


class _Writer:
    """The lines of a direct call, and what its names are bound to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bound: dict[str, Any] = {}
        self._names: dict[tuple[str, int], str] = {}
        self._containers = 0

    def arguments(self, given: DirectSignature, tests: Sequence[str]) -> bool:
        """Write how leaves are taken out of the arguments and checked; False if containers are of other kinds."""
        rest: list[Any] = list(tree.unflatten(given.in_tree, range(len(given.types))))
        for position in sorted(given.statics):
            rest.insert(position, _Static(given.statics[position]))
        self.lines += [" try:", f"  if kwargs or len(args) != {len(rest)} or {' or '.join(tests)}:", f"   {_MISS}"]
        if rest and not self._taken(rest, "args"):
            return False
        for n, (t, s) in enumerate(zip(given.types, given.shardings, strict=True)):
            if given.kinds[n] is None:
                dtype, shape = self._name("dt", t.dtype), self._name("sh", t.shape)
                self.lines += [
                    f"  if x{n}.__class__ is not ndarray or x{n}.shape != {shape} or x{n}.dtype != {dtype}:",
                    f"   {_MISS}",
                    f"  d{n} = x{n}.copy()",
                ]
                continue
            kind, place = self._name("t", t), self._name("s", s)
            differs = f"x{n}._sharding is not {place}" + ("" if s is None else f" and x{n}._sharding != {place}")
            contents = f"(d{n} := x{n}._data).__class__ is not {self._name('kind', given.kinds[n])}"
            self.lines += [
                f"  if {contents} or x{n}.type is not {kind} and x{n}.type != {kind} or {differs}:",
                f"   {_MISS}",
            ]
        self.lines += [" except MISFITS:", f"  {_MISS}"]
        return True

    def call(self, given: DirectSignature, on_devices: bool, asks: bool) -> None:
        """Write the call of the function. Contents of donated arrays are taken from them; what somebody else refers to,
        too, is copied."""
        if asks:
            self.lines.append(" allowed()")
        donated = [n for n in given.donated if given.kinds[n] is not None]
        for n in donated:
            self.lines.append(f" x{n}._data = None")
        for n in donated:
            self.lines += [f" if getrefcount(d{n}) > 2:", f"  d{n} = d{n}.copy()"]
        call = f"outs = function({', '.join(f'd{n}' for n in range(len(given.types)))})"
        if not on_devices:
            self.lines.append(f" {call}")
            return
        self.lines += [" try:", f"  {call}", " except (ValueError, TypeError):"]
        self.lines += [f"  x{n}._data = d{n}" for n in donated]
        self.lines += [
            f"  {_MISS}",
            " except RuntimeError as error:",
            "  raise current_processes.all.lost(error) from None",
        ]

    def results(self, results: DirectResults) -> bool:
        """Write how results come into their containers; False if these are of other kinds."""
        if None in results.shardings:
            self.lines.append(" place = current_device.place if chosen.ever else None")
        for n, (t, s) in enumerate(zip(results.types, results.shardings, strict=True)):
            kind, where = self._name("t", t if s is None else s.typed(t)), "place" if s is None else self._name("s", s)
            data = "outs" if results.bare else f"outs[{n}]"
            self.lines += [
                f" r{n} = new(Array)",
                f" r{n}._data = {data}",
                f" r{n}.type = {kind}",
                f" r{n}._sharding = {where}",
            ]
        text = self._literal(tree.unflatten(results.out_tree, range(len(results.types))))
        self.lines.append(f" return {text}")
        return text is not None

    def _taken(self, items: Any, name: str) -> bool:
        """Write how the items of a container come into variables, those of containers in it after them."""
        names, inside = [], []
        keyed = items.__class__ is dict
        for value in items.values() if keyed else items:
            if value.__class__ is int:
                names.append(f"x{value}")
            else:
                self._containers += 1
                names.append(f"c{self._containers}")
                inside.append((names[-1], value))
        if keyed:
            self.lines += [f"  {x} = {name}[{self._name('k', key)}]" for x, key in zip(names, items, strict=True)]
        else:
            self.lines.append(f"  {', '.join(names)}, = {name}")
        return all(self._container(inner, value) for inner, value in inside)

    def _container(self, name: str, value: Any) -> bool:
        """Write the test that something is a container like this one, and how its items are taken."""
        if value.__class__ is _Static:
            expected, kind = self._name("v", value.value), self._name("o", value.value.__class__)
            test = f"{name} is not {expected} and ({name}.__class__ is not {kind} or {name} != {expected})"
        elif value is None:
            test = f"{name} is not None"
        elif value.__class__ in (dict, list, tuple) or _is_named_tuple(value):
            test = f"{name}.__class__ is not {self._name('o', value.__class__)} or len({name}) != {len(value)}"
        else:
            return False
        self.lines += [f"  if {test}:", f"   {_MISS}"]
        if value is None or value.__class__ is _Static or not len(value):
            return True
        return self._taken(value, name)

    def _literal(self, value: Any) -> str | None:
        """Containers of results as Python writes them."""
        if value.__class__ is int:
            return f"r{value}"
        if value is None:
            return "None"
        if value.__class__ not in (dict, list, tuple) and not _is_named_tuple(value):
            return None
        inside = [self._literal(item) for item in (value.values() if value.__class__ is dict else value)]
        if None in inside:
            return None
        if value.__class__ is dict:
            keys = [self._name("k", key) for key in value]
            return f"{{{', '.join(f'{key}: {x}' for key, x in zip(keys, inside, strict=True))}}}"
        items = "".join(f"{x}, " for x in inside)
        if value.__class__ is list:
            return f"[{items}]"
        return f"({items})" if value.__class__ is tuple else f"{self._name('o', value.__class__)}({items})"

    def _name(self, letter: str, value: Any) -> str:
        """The name that a value is bound to, one for the same object."""
        key = letter, id(value)  # which `bound` keeps alive
        if key not in self._names:
            self._names[key] = f"{letter}_{len(self._names)}"
            self.bound[self._names[key]] = value
        return self._names[key]


class _Static(NamedTuple):
    """The value of a static argument, in its place among the others."""

    value: Any


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields") and value.__class__ is not _Static
