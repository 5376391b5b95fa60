"""``jax.extend.core``: programs, and which trace is going on."""

from __future__ import annotations

from typing import Any

from meshwright.core.program import Eqn as JaxprEqn
from meshwright.core.program import Literal, Var
from meshwright.core.program import Program as ClosedJaxpr
from meshwright.core.program import Program as Jaxpr
from meshwright.core.trace import state
from meshwright.jax.absent import absent


class Effect:
    """What an op does beside computing its results."""


class OpaqueTraceState:
    """The trace that is going on: equal to another of the same moment, and to nothing else."""

    __slots__ = ("_builder",)

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueTraceState) and self._builder is other._builder

    def __hash__(self) -> int:
        return hash(id(self._builder))

    def __repr__(self) -> str:
        return "OpaqueTraceState()"


def get_opaque_trace_state(*, convention: str = "flax") -> OpaqueTraceState:
    """Which trace is going on, to be compared with later ones.

    >>> get_opaque_trace_state() == get_opaque_trace_state()
    True
    """
    return OpaqueTraceState(state.builder)


__getattr__ = absent("jax.extend.core")

__all__ = ["ClosedJaxpr", "Effect", "Jaxpr", "JaxprEqn", "Literal", "Var", "get_opaque_trace_state"]
