"""Pieces of the texts and of the code that a layout is printed as."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meshwright.core import tree
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.placement import block_size
from meshwright.sharding.spec import PartitionSpec

if TYPE_CHECKING:
    from meshwright.search.layout.found import FoundLayout


class UnevenDim(NamedTuple):
    """A dim of an argument, by its name, in so many parts of which the last are smaller, and what it would be with
    padding."""

    name: str
    dim: int
    length: int
    parts: int
    padded: int


def uneven_dims(layout: FoundLayout) -> list[UnevenDim]:
    """The dims of arguments that are not in equal parts."""
    step = layout.step
    assert step is not None
    found = []
    for name, s, t in zip(step.leaf_names, tree.leaves(layout.in_shardings), step.types, strict=True):
        for dim, (length, parts) in enumerate(zip(t.shape, s.to_tensor_sharding(t.ndim).shards, strict=True)):
            if length % parts:
                found.append(UnevenDim(name, dim, length, parts, parts * block_size(length, parts)))
    return found


def heading(mesh: Mesh, to: str, constraints: bool = True) -> list[str]:
    """Imports and the mesh, and what puts a constraint around an expression."""
    jax = to == "jax"
    call, module = ("jax.make_mesh", "jax") if jax else ("mw.make_mesh", "mw")
    lines = ["import jax", "from jax.sharding import NamedSharding, PartitionSpec as P"] if jax else [
        "import meshwright as mw", "from meshwright import NamedSharding, P"]  # fmt: skip
    auto = f", axis_types=(jax.sharding.AxisType.Auto,) * {len(mesh.axis_names)}" if jax else ""
    lines += ["", f"mesh = {call}({mesh.axis_sizes}, {mesh.axis_names}{auto})"]
    if constraints:
        lines += ["", "", "def constrained(x, spec):",
                  f"    return {module}.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))"]  # fmt: skip
    return lines


def spec_text(spec: PartitionSpec) -> str:
    """A spec as code."""
    entries = [tuple(e) if isinstance(e, tuple | list) else e for e in spec.partitions]
    while entries and entries[-1] is None:
        entries.pop()
    return f"P({', '.join(repr(e) for e in entries)})"
