"""The real Shardy, as jaxlib has it: reads, checks and prints meshes and shardings."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from jax._src.interpreters import mlir
from jaxlib.mlir import ir

# What Shardy says when a rule is broken, and the error that says it here.
REASONS = {
    "axis size must be": "MeshError",
    "device id must be": "MeshError",
    "axes is empty and device_ids": "MeshError",
    "duplicate axis name": "MeshError",
    "total product of axis sizes": "MeshError",
    "sorted device ids must be": "MeshError",
    "unknown mesh": "UnknownMeshError",
    "a maximal sharding can only": "MaximalError",
    "a single-device sharding can only": "MaximalError",
    "doesn't match tensor rank": "RankError",
    "has a priority": "PriorityError",
    "unknown axis name": "UnknownAxisError",
    "duplicate axis ref": "RepeatedAxisError",
    "consecutive sub-axes can be merged": "MergeableAxesError",
    "axes are not ordered": "AxisOrderError",
    "sub-axis pre-size must": "SubAxisError",
    "sub-axis sizes must": "SubAxisError",
    "doesn't divide the size of the full axis": "SubAxisError",
    "sub-axis size is equal": "SubAxisError",
    "both sub-axis and full-axis": "OverlapError",
    "overlapping sub-axes": "OverlapError",
}


class Verdict(NamedTuple):
    """What became of a text: printed again, or refused for a reason."""

    printed: str | None
    reason: str | None = None


@cache
def context() -> Any:
    return mlir.make_ir_context()


def _reason(error: Exception) -> str:
    text = str(error)
    return next((kind for stem, kind in REASONS.items() if stem in text), "TextError")


def mesh_verdict(text: str) -> Verdict:
    """Read ``<["x"=2]>``."""
    with context():
        try:
            return Verdict(str(ir.Attribute.parse(f"#sdy.mesh{text}")).removeprefix("#sdy.mesh"))
        except (ir.MLIRError, ValueError) as error:
            return Verdict(None, _reason(error))


def sharding_verdict(mesh: str, text: str, rank: int) -> Verdict:
    """Read ``#sdy.sharding<…>`` on a tensor of some rank, in a module with ``@mesh``."""
    with context():
        try:
            printed = str(ir.Attribute.parse(text))
            tensor = f"tensor<{'8x' * rank}f32>"
            ir.Module.parse(f"sdy.mesh @mesh = {mesh}\nfunc.func private @f({tensor} {{sdy.sharding = {printed}}})")
        except (ir.MLIRError, ValueError) as error:
            return Verdict(None, _reason(error))
        return Verdict(printed)
