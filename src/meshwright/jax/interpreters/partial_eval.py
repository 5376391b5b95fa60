"""``jax.interpreters.partial_eval``: a function run on what is known, and traced for what is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshwright.core.program import Program
from meshwright.core.trace import Builder, Tracer, building, state, to_array
from meshwright.jax.absent import absent
from meshwright.jax.core import ShapedArray
from meshwright.jax.extend.linear_util import WrappedFun


class PartialVal(NamedTuple):
    """A known value, or the type of one that is not."""

    aval: Any
    const: Any

    @classmethod
    def known(cls, const: Any) -> PartialVal:
        return cls(None, const)

    @classmethod
    def unknown(cls, aval: Any) -> PartialVal:
        return cls(aval, None)

    def is_known(self) -> bool:
        return self.aval is None

    def get_known(self) -> Any:
        return self.const if self.is_known() else None


def trace_to_jaxpr_nounits(
    fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool | Sequence[bool] = False
) -> tuple[Program, list[PartialVal], list[Any]]:
    """The program of what depends on unknown arguments, each result as far as it is known, and outside values.

    >>> from meshwright.jax.extend.linear_util import wrap_init
    >>> known, unknown = PartialVal.known(2.0), PartialVal.unknown(ShapedArray((3,), "float32"))
    >>> program, outs, _ = trace_to_jaxpr_nounits(wrap_init(lambda x, y: [x * 2, x * y]), [known, unknown])
    >>> outs[0].get_known(), outs[1].aval, len(program.eqns)
    (4.0, ShapedArray(float32[3]), 1)
    """
    builder = Builder(state.builder)
    try:
        args = [p.const if p.is_known() else builder.input(p.aval.type) for p in pvals]
        with building(state.builder):
            outs = fun.call_wrapped(*args)
        every = isinstance(instantiate, bool) and instantiate
        flags = [every] * len(outs) if isinstance(instantiate, bool) else list(instantiate)
        found = [_as_far_as_known(x, flag or _made_in(builder, x)) for x, flag in zip(outs, flags, strict=True)]
        traced = [to_array(x) for x, p in zip(outs, found, strict=True) if not p.is_known()]
        program, captured = builder.finish(traced)
        return program, found, captured
    finally:
        builder.closed = True


def _as_far_as_known(x: Any, unknown: bool) -> PartialVal:
    return PartialVal.unknown(ShapedArray.of(x, to_array(x).type)) if unknown else PartialVal.known(x)


def _made_in(builder: Builder, x: Any) -> bool:
    return isinstance(x, Tracer) and x.builder is builder


__getattr__ = absent("jax.interpreters.partial_eval")

__all__ = ["PartialVal", "trace_to_jaxpr_nounits"]
