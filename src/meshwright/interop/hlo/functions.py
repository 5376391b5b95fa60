"""Functions that HLO has no instruction for, as XLA writes them out in terms of others. This needs jaxlib."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

from meshwright.core.program import Eqn, Program, Var, param_key
from meshwright.core.types import TensorType
from meshwright.errors import WITH_JAX, MeshwrightError
from meshwright.interop.hlo.writer import Computation, HloValue
from meshwright.interop.stablehlo.dumping import dump


def by_xla(c: Computation, eqn: Eqn, operands: list[HloValue], results: list[TensorType]) -> list[HloValue]:
    """A call of a computation that is XLA's own."""
    types = [TensorType(x.type.shape, x.type.dtype) for x in operands]
    key = (eqn.op.name, *types, param_key(eqn.params))
    name = c.module.known(key, lambda: _computation(c, eqn, types, results))
    return c.op("call", operands, results, f"to_apply={name}")


def _computation(c: Computation, eqn: Eqn, types: list[TensorType], results: list[TensorType]) -> str:
    if find_spec("jaxlib") is None:
        raise MeshwrightError(
            f"{eqn.op.name} cannot be written as HLO without jaxlib.",
            where=eqn.source.show() if eqn.source is not None else "",
            why="HLO has no instruction for it, and how it is made of others is taken from XLA",
            fix=WITH_JAX,
        )
    inputs, outputs = [tuple(Var(t) for t in part) for part in (types, results)]
    text = _by_xla(dump(Program(inputs, (Eqn(eqn.op, inputs, eqn.params, outputs),), outputs)))
    _, _, body = text.partition("\n")
    name = c.module.unique(eqn.op.name)
    entry = re.search(r"ENTRY ([\w.-]+)", body)
    assert entry is not None
    defined = set(re.findall(r"^\s*(?:ROOT )?([\w.-]+) = |^(?:ENTRY )?([\w.-]+) .*\{$", body, re.MULTILINE))
    names = {found: f"{name}.{found}" for pair in defined for found in pair if found}
    names[entry[1]] = name
    body = re.sub(r"[A-Za-z_][\w-]*\.\d+", lambda found: names.get(found[0], found[0]), body.replace("ENTRY ", ""))
    c.module.computations.append(body.strip())
    return name


def _by_xla(module: str) -> str:
    from jaxlib import _jax

    computation: Any = _jax.mlir.mlir_module_to_xla_computation(module, use_tuple_args=False, return_tuple=False)
    return str(computation.as_hlo_text())
