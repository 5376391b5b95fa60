"""``-sdy-reshard-to-collectives``: the reshards of a module as the collectives that they take."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.module_walk import walk
from meshwright.interop.shardy.problem_reader import place_of
from meshwright.interop.shardy.reshard_collectives import Move, collectives
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import context
from meshwright.sharding.axes import Axes, AxisRef, difference, in_mesh_order, total_size
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import TensorSharding

_AXES = {"all_slice": "slicing_axes", "all_gather": "gathering_axes"}


def listed(axes: Iterable[AxisRef]) -> str:
    """``{"x", "y":(1)2}``."""
    return "{" + ", ".join(map(str, axes)) + "}"


def reshards_to_collectives(module: Any, keep_redundant: bool = False) -> None:
    """Replace every reshard of a module by collectives; those between meshes of different axes stay.

    ``keep_redundant``: those that move nothing stay, too.
    """
    known = ValueShardings(module)
    with context():
        reshards = [op for op in walk(module.operation) if op.name == "sdy.reshard"]
        for op, source in [(op, known(_before_barriers(op.operands[0]))) for op in reshards]:
            now = known(_before_barriers(op.operands[0]))
            if source is not None and (now is None or (source.mesh != now.mesh and not any(d.axes for d in now.dims))):
                source = now  # a reshard before it that only changed the mesh of a whole value is gone
            _replace(op, source, known, keep_redundant)


def _before_barriers(value: Any) -> Any:
    """The value that propagation barriers were put behind."""
    from jaxlib.mlir import ir

    while not isinstance(value.owner, ir.Block) and value.owner.operation.name == "sdy.propagation_barrier":
        value = value.owner.operation.operands[0]
    return value


def _replace(op: Any, written: TensorSharding | None, known: ValueShardings, keep_redundant: bool) -> None:
    from jaxlib.mlir import ir

    place = ir.InsertionPoint(op)
    (target,) = known.of_results(op)
    assert target is not None
    source = written or TensorSharding(target.mesh, [None] * target.rank)
    if target.mesh.is_maximal or source.mesh.is_maximal:
        return
    before, after = ([dim.axes for dim in s.dims] for s in (source, target))
    same = before == after
    held = {axis for axes in before for axis in axes}
    after = [_without_ones(axes, held) for axes in after]
    if [*source.mesh.shape.items()] != [*target.mesh.shape.items()]:
        if any(after):
            return
        target = laid_out(target, after, source.mesh)
    other = source.mesh.order != target.mesh.order
    if keep_redundant and same and source.unreduced == target.unreduced and not (other and any(before)):
        return
    op.operands[0] = _before_barriers(op.operands[0])
    value = _summed(op, place, source, target)
    mesh = source.mesh
    for move in collectives(before, after, op.results[0].type.shape, other):
        if move.kind == "collective_permute":
            mesh = target.mesh
        value = _insert(place, value, move, laid_out(target, move.dims, mesh))
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _without_ones(axes: Axes, held: set[AxisRef]) -> Axes:
    """The axes of a dim without new ones of size 1, if these are all that is new: they split nothing."""
    new = [axis for axis in axes if axis not in held]
    return axes if total_size(new) > 1 else tuple(axis for axis in axes if axis in held)


def _summed(op: Any, place: Any, source: TensorSharding, target: TensorSharding) -> Any:
    """The operand of a reshard, reduced over the axes that its target is not unreduced over."""
    if difference(target.unreduced, source.unreduced):
        raise MeshwrightError(
            f"The reshard at {place_of(op)} makes a partial sum of a value that was none.",
            why=f"its operand is unreduced over {listed(source.unreduced)}, its result over {listed(target.unreduced)}",
            fix="-sdy-insert-explicit-reshards -sdy-reshard-to-collectives",
        )
    due = difference(source.unreduced, target.unreduced)
    if not due:
        return op.operands[0]
    return all_reduced(place, op.operands[0], due, laid_out(target, [dim.axes for dim in source.dims], source.mesh))


def laid_out(like: TensorSharding, dims: Iterable[Axes], mesh: Any) -> TensorSharding:
    """A closed sharding over the given axes, unreduced as ``like`` is."""
    closed = tuple(map(DimensionSharding, dims))
    return TensorSharding.unchecked(mesh, closed, (), like.unreduced, like.reduction)


def all_reduced(place: Any, value: Any, axes: Axes, sharding: TensorSharding, combine: str = "sum") -> Any:
    """A value summed over axes, or reduced in another way that the dialect has."""
    ordered = in_mesh_order(axes, list(sharding.mesh.shape))
    texts = {"reduction_axes": f"#sdy<axis_ref_list{listed(ordered)}>"}
    if combine != "sum":
        texts["reduction_op"] = f"{_REDUCTIONS[combine]} : i32"
    return created(place, "all_reduce", value, sharding, **texts)


_REDUCTIONS = {"max": 1, "min": 2}


@cache
def can_reduce(combine: str) -> bool:
    """Whether the dialect that is installed has an all-reduce that combines in this way: older ones have sums only."""
    from jaxlib.mlir import ir

    if combine not in _REDUCTIONS:
        return combine == "sum"
    text = f"""sdy.mesh @m = <["x"=2]>
        func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {{
          %0 = sdy.all_reduce {combine} {{"x"}} %a out_sharding=<@m, [{{}}]> : tensor<8xf32>
          return %0 : tensor<8xf32>
        }}"""
    with context():
        try:
            ir.Module.parse(text)
        except ir.MLIRError:
            return False
    return True


def resharded(place: Any, value: Any, sharding: TensorSharding) -> Any:
    """A value laid out otherwise."""
    return _made(place, "reshard", value, {"sharding": str(sharding)})


def created(place: Any, name: str, value: Any, sharding: TensorSharding, **texts: str) -> Any:
    """The result of a collective of sdy on a value."""
    return _made(place, name, value, {**texts, "out_sharding": str(sharding)})


def _made(place: Any, name: str, value: Any, texts: dict[str, str]) -> Any:
    from jaxlib.mlir import ir

    attributes = {key: ir.Attribute.parse(text) for key, text in texts.items()}
    made = ir.Operation.create(
        f"sdy.{name}", results=[value.type], operands=[value], attributes=attributes, loc=value.location, ip=place
    )
    return made.result


def _insert(place: Any, value: Any, move: Move, sharding: TensorSharding) -> Any:
    if move.kind == "all_to_all":
        text = f"#sdy<all_to_all_param_list[{listed(move.axes[0])}: {move.source}->{move.target}]>"
        return created(place, move.kind, value, sharding, params=text)
    if move.kind == "collective_permute":
        return created(place, move.kind, value, sharding)
    text = f"#sdy<list_of_axis_ref_lists[{', '.join(map(listed, move.axes))}]>"
    return created(place, move.kind, value, sharding, **{_AXES[move.kind]: text})
