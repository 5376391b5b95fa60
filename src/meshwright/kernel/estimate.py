"""Costs of functions, as a kernel hands them to a compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from meshwright.arrays.tracing import make_program
from meshwright.core.facts import Fusion
from meshwright.core.op import fusion_of
from meshwright.core.program import Eqn, Program
from meshwright.ops.pointwise import TRANSCENDENTAL


@dataclass(frozen=True)
class CostEstimate:
    """Work of a call: operations, of which transcendental functions are counted apart, and bytes."""

    flops: int
    transcendentals: int
    bytes_accessed: int
    remote_bytes_transferred: int = 0


def estimate_cost(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> CostEstimate:
    """The work of a function of arrays, or of what has their shapes and dtypes.

    Bytes are those of its arguments and results.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> x = mw.ShapeDtypeStruct((8, 16), mnp.float32)
    >>> estimate_cost(lambda x: mnp.exp(x @ x.T), x)
    CostEstimate(flops=2048, transcendentals=64, bytes_accessed=768, remote_bytes_transferred=0)
    """
    program = make_program(partial(fun, **kwargs))(*args)
    flops, special = _work(program)
    nbytes = sum(x.type.nbytes for x in (*program.inputs, *program.outputs))
    return CostEstimate(int(flops), int(special), int(nbytes))


def _work(program: Program) -> tuple[float, float]:
    flops = special = 0.0
    for eqn in program.eqns:
        regions = [(name, region) for name, region in eqn.params.items() if isinstance(region, Program)]
        for name, region in regions:
            inside = _work(region)
            times = eqn.op.runs(eqn, name).times or 1
            flops, special = flops + times * inside[0], special + times * inside[1]
        if not regions:
            count = eqn.op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params).flops
            size = sum(v.type.size for v in eqn.outputs)
            if _is_special(eqn, count, size):
                special += size
            else:
                flops += count
    return flops, special


def _is_special(eqn: Eqn, flops: float, size: int) -> bool:
    """Whether an op computes a transcendental function: elementwise, and more than a few operations for each."""
    return fusion_of(eqn) in (Fusion.CHEAP, Fusion.ELEMENTWISE) and flops >= TRANSCENDENTAL * size > 0
