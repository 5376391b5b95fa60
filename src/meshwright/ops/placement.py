"""What a program says about where its values are: nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from meshwright.core.factors import pointwise
from meshwright.core.facts import Fusion, Structure
from meshwright.core.op import Cost, Linear, Linearity, Op, Operand, Sample, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import OutSharding, Spec, TensorType
from meshwright.ops.basic import linear_jvp
from meshwright.sharding.mesh import BaseMesh, Mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.spec import PartitionSpec


def _batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    found: dict[str, Any] = {"spec": _behind(params["spec"])}
    if params.get("out_sharding") is not None:
        spec, mesh = params["out_sharding"]
        found["out_sharding"] = (_behind(spec), mesh)
    if params.get("mesh") is not None:
        found["mesh"] = params["mesh"]
    return [op(args[0], **found)], [True]


def _behind(spec: PartitionSpec) -> PartitionSpec:
    """A spec for arrays with one more dim in front, of which it says nothing."""
    return spec.update((PartitionSpec.UNCONSTRAINED, *spec.partitions))


def _transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    """Where layouts are in types, the transposition itself sees to it that a cotangent has that of its primal."""
    return [cts[0] if params.get("out_sharding") is not None else op(cts[0], **params)]


def _type(x: TensorType, spec: Spec, out_sharding: OutSharding | None = None, mesh: str | None = None) -> TensorType:
    return x


@lru_cache(maxsize=1024)
def named_mesh(text: str, kind: str) -> Mesh:
    """The mesh that the param ``mesh`` of a constraint names: one of several of a program, other than the first."""
    return Mesh.parse(text).with_(kind=kind)


def constraint_sharding(params: Params, ndim: int, mesh: BaseMesh) -> TensorSharding:
    """What a constraint says of a value of ``ndim`` dims in a program on ``mesh``, on the mesh that it is about."""
    on = mesh if params.get("mesh") is None else named_mesh(params["mesh"], getattr(mesh, "kind", "cpu"))
    return NamedSharding(on, params["spec"]).to_tensor_sharding(ndim)


sharding_constraint: Op = define_op(
    "sharding_constraint",
    type=_type,
    factors=pointwise,
    linear=Linearity.MOVES,
    jvp=linear_jvp,
    transpose=_transpose,
    batch=_batch,
    structure=Structure.CONSTRAINT,
    fusion=Fusion.VIEW,
    evaluate=lambda xp, x, spec, out_sharding=None, mesh=None: x,
    cost=lambda operands, results, params: Cost(0.0, 0.0),
    samples=lambda: [Sample((Operand((2, 4)),), {"spec": PartitionSpec("x", None)})],
)
