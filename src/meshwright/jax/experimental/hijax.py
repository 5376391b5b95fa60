"""``jax.experimental.hijax``: types and ops that libraries add to JAX itself. flax names them when it is imported, and
uses them for variables with ``hijax=True`` alone; those are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from meshwright.jax.absent import absent, refused
from meshwright.jax.core import AbstractValue

_WHY = "the types and ops of programs are Meshwright's own, and values are arrays"
_FIX = "variables without hijax=True, which are containers of arrays"


class HiType:
    """A type that a library adds."""


class MutableHiType(HiType):
    """A type of values that change."""


class HiPrimitive:
    """An op that a library adds; it can be named, and not be used."""

    multiple_results = False

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Refused: programs have no such op."""
        refused(f"The op {self.name} of jax.experimental.hijax", _WHY, _FIX)


class VJPHiPrimitive:
    """An op that a library adds, with a derivative; it can be named, and not be used."""

    def __call__(self, *args: Any) -> NoReturn:
        """Refused: programs have no such op."""
        refused(f"The op {type(self).__name__} of jax.experimental.hijax", _WHY, _FIX)


HiPrim = VJPHiPrimitive  # its name since 0.12


class AllowedEffects:
    """Effects that loops and branches may have, by type."""

    def __init__(self) -> None:
        self.types: set[type] = set()

    def add_type(self, kind: type) -> None:
        self.types.add(kind)


control_flow_allowed_effects = AllowedEffects()


class Zero:
    """A tangent that is known to be zero; ours are None, so that there is none of these."""


def register_hitype(value_type: type, type_of: Callable[[Any], Any]) -> None:
    """Nothing: values of this type are refused where they would be made."""


def is_undefined_primal(x: Any) -> bool:
    """Whether ``x`` stands for an argument that a transposed function is linear in; no value here does."""
    return False


def instantiate_zeros(x: Any) -> Any:
    """``x``, since none is a symbolic zero."""
    return x


def aval_method(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a type, for the traced values that have it."""
    return fun


class aval_property(property):
    """A property of a type, for the traced values that have it."""


__getattr__ = absent("jax.experimental.hijax")

__all__ = [
    "AbstractValue",
    "HiPrim",
    "HiPrimitive",
    "HiType",
    "MutableHiType",
    "VJPHiPrimitive",
    "Zero",
    "aval_method",
    "aval_property",
    "control_flow_allowed_effects",
    "instantiate_zeros",
    "is_undefined_primal",
    "register_hitype",
]
