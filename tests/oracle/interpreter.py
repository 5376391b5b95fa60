"""StableHLO's own interpreter: slow, without XLA, and right where XLA's optimizations are not."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tests.oracle.apart import one_apart
from tests.oracle.shardy import context as context

_DOT = re.compile(r"stablehlo\.dot (%\S+), (%\S+)( \{.*?\})? : \((tensor<[^>]*>),")


def interpreted(text: str, values: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """What a module gives; None where the interpreter, which then ends its process, does not know an op."""
    found: list[np.ndarray] | None = one_apart(_run, _DOT.sub(_general, text), list(values))
    return found


def _general(found: re.Match[str]) -> str:
    """A product of two tensors in the words that the interpreter knows."""
    last = found[4].count("x") - 1
    return f"stablehlo.dot_general {found[1]}, {found[2]}, contracting_dims = [{last}] x [0] : ({found[4]},"


def _run(text: str, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    with context() as known:
        stablehlo.register_interpreter_dialect(known)
        module = ir.Module.parse(text)
        made = stablehlo.eval_module(module, [ir.DenseElementsAttr.get(np.ascontiguousarray(v)) for v in values])
        return [np.array(one) for one in made]
