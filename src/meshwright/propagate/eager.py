"""Where the results of an op are that is computed at once: on the mesh of its operands, as propagation says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from meshwright.core.facts import Structure
from meshwright.core.op import Op
from meshwright.core.program import Eqn, Params, Program, Var
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import MeshError
from meshwright.propagate.from_program import propagate_program
from meshwright.sharding.explicit import explicit_placement
from meshwright.sharding.mesh import Mesh, both
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec


def places(op: Op, operands: Sequence[Any], types: Sequence[TensorType], params: Params) -> Sequence[Any]:
    """Where each result of an op on these arrays is; None: nowhere.

    Over Explicit axes that is as its type says, over Auto axes as it would be if the op alone were jitted. An array on
    another mesh of the same devices says nothing of it.
    """
    found = [explicit_placement(op.name, operands, t) for t in types]
    if any(place is not None for place in found):
        return found
    given = [x._sharding if isinstance(x._sharding, NamedSharding) else None for x in operands]
    mesh = next((place.mesh for place in given if place is not None), None)
    if not isinstance(mesh, Mesh):
        return found
    for place in given:
        if place is not None and place.mesh != mesh and not mesh.has_devices_of(place.mesh):
            if op.structure is Structure.DEVICE:  # has axes alone, which are those of each of these meshes
                return found
            raise MeshError(
                f"The operands of {op.name} are on different meshes.",
                where=here(),
                why="one is on " + ", another on ".join(both(mesh, place.mesh)),
                fix="mw.device_put(x, mw.NamedSharding(mesh, spec)) with one mesh for all",
            )
    own = tuple(place if place is not None and place.mesh == mesh else None for place in given)
    return _propagated(op, mesh, own, tuple(x.type for x in operands), tuple(types), tuple(params.items()))


@lru_cache(maxsize=8192)
def _propagated(
    op: Op,
    mesh: Mesh,
    given: tuple[NamedSharding | None, ...],
    operands: tuple[TensorType, ...],
    results: tuple[TensorType, ...],
    params: tuple[tuple[str, Any], ...],
) -> list[NamedSharding]:
    inputs, outputs = tuple(map(Var, operands)), tuple(map(Var, results))
    program = Program(inputs, (Eqn(op, inputs, dict(params), outputs, None),), outputs)
    known = [None if s is None else s.to_tensor_sharding(t.ndim) for s, t in zip(given, operands, strict=True)]
    found = propagate_program(program, mesh, known, [None] * len(results)).shardings
    specs = [found[v].to_named().spec.closed() if v in found else PartitionSpec(*[None] * v.type.ndim) for v in outputs]
    return [NamedSharding(mesh, spec) for spec in specs]
