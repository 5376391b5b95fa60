"""``-sdy-resolve-single-device-sharding``: what runs on one device only, as a branch that only this device takes."""

from __future__ import annotations

from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.communication import all_reduced
from meshwright.interop.shardy.local_collectives import devices
from meshwright.interop.shardy.made_ops import made_op, parsed, tensor, zeros
from meshwright.interop.shardy.module_walk import SHARDING, walk
from meshwright.interop.shardy.problem_reader import place_of
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import context
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding


def resolve_single_devices(module: Any, by_replica: bool = False) -> None:
    """Run each op whose results are on a single device there, and sum its results with zeros of the others.

    %1 = f %0 {<@maximal_mesh_3, []>}  ==>  %1 = if partition_id == 3 { f %0 } else { 0.0 }
                                            %2 = sdy.all_reduce {"x"} %1 out_sharding=<@mesh, [{}]>

    ``by_replica``: devices are replicas of one partition. What is inside such an op is on its device anyway.
    """
    from jaxlib.mlir import ir

    known = ValueShardings(module)
    mesh = next((mesh for mesh in known.shardings.meshes.values() if not mesh.is_maximal), None)
    if mesh is None:
        return
    with context(), ir.Location.unknown():
        for op in _outermost(module, known):
            _branch(
                op, _device(op, known, mesh), mesh, "stablehlo.replica_id" if by_replica else "stablehlo.partition_id"
            )


def _outermost(module: Any, known: ValueShardings) -> list[Any]:
    """The ops on a single device that are in no other such op."""
    from jaxlib.mlir import ir

    found: list[Any] = []
    inside: set[Any] = set()
    for op in walk(module.operation):
        if op in inside or op.name.startswith(("sdy.", "func.func")) or not len(op.results):
            continue
        if not all(isinstance(value.type, ir.RankedTensorType) for value in op.results):
            continue
        if SHARDING in op.attributes and any(s is not None and s.mesh.is_maximal for s in known.of_results(op)):
            found.append(op)
            inside.update(walk(op))
    return found


def _device(op: Any, known: ValueShardings, mesh: Mesh) -> int:
    found = {s.mesh.order[0] for s in known.of_results(op) if s is not None and s.mesh.is_maximal and s.mesh.order}
    listed = " and ".join(map(str, sorted(found)))
    if len(found) > 1:
        raise MeshwrightError(
            f"{op.name} at {place_of(op)} has conflicting single-device result shardings.",
            why=f"its results are on the devices {listed}",
            fix="an op for each device",
        )
    if not found.issubset(devices(mesh).tolist()):
        raise MeshwrightError(
            f"{op.name} at {place_of(op)} is on a device that @{mesh.name} does not have.",
            why=f"it is on device {listed}, and the mesh has {mesh.size} devices; nobody would compute it",
            fix="a device of the mesh",
        )
    return found.pop()


def _branch(op: Any, device: int, mesh: Mesh, position: str) -> None:
    from jaxlib.mlir import ir

    with ir.InsertionPoint(op), op.location:
        here = made_op(position, [], [tensor((), "ui32")])
        there = made_op("stablehlo.constant", [], [tensor((), "ui32")], value=parsed(f"dense<{device}> : tensor<ui32>"))
        equal = parsed("#stablehlo<comparison_direction EQ>")
        is_here = made_op("stablehlo.compare", [here, there], [tensor((), "i1")], comparison_direction=equal)
        kinds = [value.type for value in op.results]
        branch = ir.Operation.create("stablehlo.if", results=kinds, operands=[is_here], regions=2)
        taken, other = (region.blocks.append() for region in branch.regions)
    with ir.InsertionPoint(taken), op.location:
        inner = op.clone()
        for one in (inner.operation, *walk(inner)):
            if SHARDING in one.attributes:
                del one.attributes[SHARDING]
        ir.Operation.create("stablehlo.return", operands=list(inner.results))
    with ir.InsertionPoint(other), op.location:
        ir.Operation.create("stablehlo.return", operands=[zeros(kind) for kind in kinds])
    place = ir.InsertionPoint(op)
    for value, made in zip(op.results, branch.results, strict=True):
        whole = TensorSharding(mesh, [None] * len(value.type.shape))
        value.replace_all_uses_with(all_reduced(place, made, mesh.axes, whole))
    op.erase()
