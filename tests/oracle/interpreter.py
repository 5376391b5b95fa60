"""StableHLO's own interpreter: slow, without XLA, and right where XLA's optimizations are not."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tests.oracle.apart import one_apart
from tests.oracle.shardy import context as context

_DOT = re.compile(r"stablehlo\.dot (%\S+), (%\S+)( \{.*\})? : \((tensor<[^>]*>),")


def interpreted(text: str, values: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """What a module gives; None where the interpreter, which then ends its process, does not know an op."""
    found: list[np.ndarray] | None = one_apart(_run, with_general_dots(text), list(values))
    return found


def with_general_dots(text: str) -> str:
    """The same module with products of two tensors as the interpreter knows them."""
    return _DOT.sub(_general, text)


def _general(found: re.Match[str]) -> str:
    left, right, attributes, kind = found.groups()
    last = kind.count("x") - 1
    return f"stablehlo.dot_general {left}, {right}, contracting_dims = [{last}] x [0]{attributes or ''} : ({kind},"


def _run(text: str, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    with context() as known:
        stablehlo.register_interpreter_dialect(known)
        module = ir.Module.parse(text)
        made = stablehlo.eval_module(module, [ir.DenseElementsAttr.get(np.ascontiguousarray(v)) for v in values])
        return [np.array(one) for one in made]
