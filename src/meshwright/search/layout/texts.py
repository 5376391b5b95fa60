"""Pieces of the code that a layout is printed as."""

from __future__ import annotations

from meshwright.sharding.mesh import Mesh
from meshwright.sharding.spec import PartitionSpec


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
