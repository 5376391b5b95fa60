"""Refs of ``jax``: arrays that are read and written by index."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

from meshwright.kernel import state
from meshwright.kernel.language.indexing import ds
from meshwright.kernel.state import StateRef as Ref
from meshwright.kernel.state import freeze


class Space(enum.Enum):
    """The memory of a device, or of its host."""

    Device = enum.auto()
    Host = enum.auto()
    Any = enum.auto()


memory = SimpleNamespace(Space=Space)


def new_ref(init_val: Any, *, memory_space: Any = None, kind: str | None = None, pin: Any = None) -> Ref:
    """A ref to a copy of an array; wherever it is, it is read and written in the same way.

    >>> ref = new_ref(1.0)
    >>> ref[...] = 2.0
    >>> float(freeze(ref))
    2.0
    """
    return state.new_ref(init_val)


def empty_ref(ty: Any, memory_space: Any = None, *, pin: Any = None) -> Ref:
    """A ref to an array whose contents are arbitrary, of a shape and a dtype."""
    return state.empty_ref(ty)


def free_ref(ref: Ref) -> None:
    """Let a ref hold nothing any more."""
    freeze(ref)
    ref._value = None


__all__ = ["Ref", "ds", "empty_ref", "free_ref", "freeze", "memory", "new_ref"]
