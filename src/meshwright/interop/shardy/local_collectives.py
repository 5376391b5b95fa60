"""The collectives of sdy on what each device holds: StableHLO's, with the groups of devices that take part together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.made_ops import (
    constant,
    dense,
    int_array,
    int_attribute,
    made_op,
    reshaped,
    tensor,
    transposed,
    zeros,
)
from meshwright.interop.stablehlo.context import integer
from meshwright.sharding.axes import Axes, AxisRef, merged, quoted, total_size
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.text_sdy import unquoted

_COMBINED_BY = {"sum": "stablehlo.add", "max": "stablehlo.maximum", "min": "stablehlo.minimum"}
_KINDS = ("sum", "max", "min")


class LocalCollectives:
    """Writes collectives of sdy as StableHLO's; their operands are local already.

    ``by_axes``: groups are written as axes of the mesh, which newer versions of StableHLO can, not as lists of devices.
    ``by_replica``: devices are replicas of one partition. ``gathers_alone``: each dim is gathered by itself, the last
    first, not all together.
    """

    def __init__(self, by_axes: bool, by_replica: bool = False, gathers_alone: bool = False) -> None:
        self._by_axes, self._gathers_alone = by_axes, gathers_alone
        self._number = "stablehlo.replica_id" if by_replica else "stablehlo.partition_id"
        self._channels = count(1)

    def lower(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        """What a collective makes, between two shardings; the op itself stays."""
        from jaxlib.mlir import ir

        with ir.InsertionPoint(op), op.location:
            return _LOWERED[op.name](self, op, source, target)

    # Tables of devices

    def offset(self, mesh: BaseMesh, axes: Axes, size: int) -> Any:
        """The first index of this device's part of a dim that is split over some axes into parts of a size."""
        if total_size(axes) == 1:
            return constant(np.int32(0))
        return self._looked_up(mesh, (indices(mesh, axes) * size).astype(np.int32))

    def _looked_up(self, mesh: BaseMesh, table: NDArray[Any]) -> Any:
        """What a table has for this device's position on a mesh."""
        device = made_op(self._number, [], [tensor((), "ui32")])
        by_device = np.empty_like(table)
        by_device[devices(mesh)] = table
        known = constant(by_device)
        made = tensor((1,), known.type.element_type)
        one = made_op("stablehlo.dynamic_slice", [known, device], [made], slice_sizes=int_array([1]))
        return reshaped(one, ())

    def part(self, value: Any, mesh: BaseMesh, axes: Sequence[Axes], shape: Sequence[int]) -> Any:
        """This device's part of a value, of which each dim is split over some axes."""
        starts = [self.offset(mesh, dim, size) for dim, size in zip(axes, shape, strict=True)]
        made = tensor(shape, value.type.element_type)
        return made_op("stablehlo.dynamic_slice", [value, *starts], [made], slice_sizes=int_array(shape))

    def _groups(self, mesh: BaseMesh, axes: Axes) -> Any:
        from jaxlib.mlir import ir

        if self._by_axes and mesh.name:  # what Shardy writes for a mesh without a name cannot be read again
            written = ", ".join(map(_axis_text, merged(axes)))
            return ir.Attribute.parse(
                f"#stablehlo.replica_group_mesh_axes<mesh = {mesh.reference()}, axes = [{written}]>"
            )
        return dense(groups(mesh, axes))

    def _channel(self) -> Any:
        from jaxlib.mlir import ir

        return ir.Attribute.parse(f"#stablehlo.channel_handle<handle = {next(self._channels)}, type = 1>")

    # Collectives

    def all_reduce(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        axes = _axes(op.attributes["reduction_axes"], source.mesh)
        return self._reduced("stablehlo.all_reduce", op.operands[0], source.mesh, axes, _reduction(op))

    def _reduced(self, name: str, value: Any, mesh: BaseMesh, axes: Axes, how: str, **more: Any) -> Any:
        from jaxlib.mlir import ir

        shape = more.pop("shape", value.type.shape)
        element = value.type.element_type
        made = ir.Operation.create(
            name,
            results=[tensor(shape, element)],
            operands=[value],
            regions=1,
            attributes={
                "channel_handle": self._channel(),
                "replica_groups": self._groups(mesh, axes),
                "use_global_device_ids": ir.UnitAttr.get(),
                **more,
            },
        )
        scalar = tensor((), element)
        block = made.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            both = made_op(_COMBINED_BY[how], list(block.arguments), [scalar])
            ir.Operation.create("stablehlo.return", operands=[both])
        return made.result

    def reduce_scatter(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        value = op.operands[0]
        for dim, axes in enumerate(_axis_lists(op.attributes["reduce_scatter_axes"], source.mesh)):
            if axes:
                shape = list(value.type.shape)
                shape[dim] //= total_size(axes)
                number = int_attribute(dim)
                value = self._reduced(
                    "stablehlo.reduce_scatter", value, source.mesh, axes, _reduction(op),
                    shape=shape, scatter_dimension=number,
                )  # fmt: skip
        return value

    def all_gather(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        lists = _axis_lists(op.attributes["gathering_axes"], source.mesh)
        value, mesh = op.operands[0], source.mesh
        shape = list(value.type.shape)
        split = [dim for dim, axes in enumerate(lists) if axes]
        if len(split) == 1 or self._gathers_alone:
            for dim in reversed(split):
                value = self._gathered(value, mesh, lists[dim], dim)
            return value
        together = tuple(axis for axes in lists for axis in axes)
        value = self._gathered(reshaped(value, (1, *shape)), mesh, together, 0)
        value = reshaped(value, (*(total_size(lists[dim]) for dim in split), *shape))
        order = [
            n for dim in range(len(shape)) for n in (*(k for k, d in enumerate(split) if d == dim), len(split) + dim)
        ]
        value = transposed(value, order)
        return reshaped(value, [n * total_size(axes) for n, axes in zip(shape, lists, strict=True)])

    def _gathered(self, value: Any, mesh: BaseMesh, axes: Axes, dim: int) -> Any:
        from jaxlib.mlir import ir

        shape = list(value.type.shape)
        shape[dim] *= total_size(axes)
        return made_op(
            "stablehlo.all_gather",
            [value],
            [tensor(shape, value.type.element_type)],
            all_gather_dim=int_attribute(dim),
            channel_handle=self._channel(),
            replica_groups=self._groups(mesh, axes),
            use_global_device_ids=ir.UnitAttr.get(),
        )

    def all_slice(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        lists = _axis_lists(op.attributes["slicing_axes"], target.mesh)
        value = op.operands[0]
        shape = [n // total_size(axes) for n, axes in zip(value.type.shape, lists, strict=True)]
        return self.part(value, target.mesh, lists, shape)

    def all_to_all(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        value = op.operands[0]
        for axes, gathered, split in _exchanges(op.attributes["params"], source.mesh):
            size = total_size(axes)
            shape = list(value.type.shape)
            shape[split] //= size
            shape[gathered] *= size
            value = made_op(
                "stablehlo.all_to_all",
                [value],
                [tensor(shape, value.type.element_type)],
                split_dimension=int_attribute(split),
                concat_dimension=int_attribute(gathered),
                split_count=int_attribute(size),
                channel_handle=self._channel(),
                replica_groups=self._groups(source.mesh, axes),
            )
        return value

    def collective_permute(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        value = op.operands[0]
        return made_op(
            "stablehlo.collective_permute",
            [value],
            [value.type],
            source_target_pairs=dense(permuted_pairs(source, target)),
            channel_handle=self._channel(),
        )

    # Partial sums of what was none

    def replicated_to_unreduced(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        axes = _axes(op.attributes["axes"], target.mesh)
        return self.on_first(op.operands[0], target, axes)

    def on_first(self, value: Any, target: TensorSharding, axes: Axes) -> Any:
        """The value on the first device along some axes, zeros on the others; all have it where max or min is taken."""
        if target.reduction != "sum" or total_size(axes) == 1:
            return value
        first = self._looked_up(target.mesh, indices(target.mesh, axes) == 0)
        return made_op("stablehlo.select", [first, value, zeros(value.type)], [value.type])

    def sharded_to_unreduced(self, op: Any, source: TensorSharding, target: TensorSharding) -> Any:
        lists = _axis_lists(op.attributes["axes"], target.mesh)
        if target.reduction != "sum":
            return self._gathered_from(op.operands[0], lists, source.mesh)
        value = op.operands[0]
        shape = list(value.type.shape)
        starts = [self.offset(target.mesh, axes, size) for axes, size in zip(lists, shape, strict=True)]
        whole = tensor([n * total_size(axes) for n, axes in zip(shape, lists, strict=True)], value.type.element_type)
        return made_op("stablehlo.dynamic_update_slice", [zeros(whole), value, *starts], [whole])

    def _gathered_from(self, value: Any, lists: Sequence[Axes], mesh: BaseMesh) -> Any:
        for dim, axes in enumerate(lists):
            if axes:
                value = self._gathered(value, mesh, axes, dim)
        return value


Lower = Callable[[LocalCollectives, Any, TensorSharding, TensorSharding], Any]
_LOWERED: dict[str, Lower] = {
    "sdy.all_gather": LocalCollectives.all_gather,
    "sdy.all_reduce": LocalCollectives.all_reduce,
    "sdy.all_slice": LocalCollectives.all_slice,
    "sdy.all_to_all": LocalCollectives.all_to_all,
    "sdy.collective_permute": LocalCollectives.collective_permute,
    "sdy.reduce_scatter": LocalCollectives.reduce_scatter,
    "sdy.replicated_to_unreduced": LocalCollectives.replicated_to_unreduced,
    "sdy.sharded_to_unreduced": LocalCollectives.sharded_to_unreduced,
}
COLLECTIVES = frozenset(_LOWERED)


# Devices of a mesh


def indices(mesh: BaseMesh, axes: Iterable[AxisRef]) -> NDArray[np.int64]:
    """For each position on the mesh, its index along some axes, the first of which counts most.

    >>> from meshwright.sharding.mesh import Mesh
    >>> mesh = Mesh.parse('<["x"=2, "y"=4]>')
    >>> x, y = mesh.axes
    >>> print(indices(mesh, [x]), indices(mesh, [*y.split(2, 2)[1:], x]))
    [0 0 0 0 1 1 1 1] [0 2 0 2 1 3 1 3]
    """
    positions = np.arange(prod(mesh.shape.values()))
    found = np.zeros_like(positions)
    for axis in axes:
        found = found * axis.size + positions // _stride(mesh, axis) % axis.size
    return found


def groups(mesh: BaseMesh, axes: Axes) -> NDArray[np.int64]:
    """The devices of each group along some axes, a row for each group."""
    along = indices(mesh, axes)
    first = np.arange(len(along)) - sum(indices(mesh, [axis]) * _stride(mesh, axis) for axis in axes)
    order = np.lexsort((along, first))
    return devices(mesh)[order].reshape(-1, total_size(axes))


def permuted_pairs(source: TensorSharding, target: TensorSharding) -> NDArray[np.int64]:
    """From which device each takes its part: of those that hold it, each gives it to one."""
    held, wanted = (indices(s.mesh, [axis for dim in s.dims for axis in dim.axes]) for s in (source, target))
    givers = devices(source.mesh)[np.argsort(held, kind="stable")]
    takers = devices(target.mesh)[np.argsort(wanted, kind="stable")]
    pairs = np.stack([givers, takers], axis=1)
    return pairs[np.argsort(pairs[:, 0], kind="stable")]


def _stride(mesh: BaseMesh, axis: AxisRef) -> int:
    """How far apart the positions are of two neighbours along an axis."""
    names = list(mesh.shape)
    minor = prod(list(mesh.shape.values())[names.index(axis.name) + 1 :])
    return minor * (axis.whole // (axis.pre * axis.size))


def devices(mesh: BaseMesh) -> NDArray[np.int64]:
    """The device at each position."""
    return np.arange(prod(mesh.shape.values())) if mesh.order is None else np.array(mesh.order)


# Axes in attributes of collectives, as sdy prints them

_AXIS = re.compile(r'("(?:[^"\\\\]|\\\\.)*")(?::\((\d+)\)(\d+))?')
_BRACES = re.compile(r'\{((?:"(?:[^"\\\\]|\\\\.)*"|[^{}"])*)\}')
_EXCHANGE = re.compile(_BRACES.pattern + r": (\d+)->(\d+)")


def _axes(attribute: Any, mesh: BaseMesh) -> Axes:
    """``{"x", "y":(1)2}``."""
    found = []
    for name, pre, size in _AXIS.findall(str(attribute)):
        whole = mesh.shape[unquoted(name)]
        found.append(AxisRef(unquoted(name), int(pre or 1), int(size or whole), whole))
    return tuple(found)


def _axis_lists(attribute: Any, mesh: BaseMesh) -> list[Axes]:
    """``[{"x"}, {}]``."""
    return [_axes(part, mesh) for part in _BRACES.findall(str(attribute))]


def _exchanges(attribute: Any, mesh: BaseMesh) -> list[tuple[Axes, int, int]]:
    """``[{"x"}: 0->1]``: axes, the dim that they leave, and the one that they come to."""
    found = _EXCHANGE.findall(str(attribute))
    return [(_axes(part, mesh), int(source), int(target)) for part, source, target in found]


# StableHLO


def _axis_text(axis: AxisRef) -> str:
    if axis.size == axis.whole:
        return f"#stablehlo.axis_ref<name = {quoted(axis.name)}>"
    return f"#stablehlo.axis_ref<name = {quoted(axis.name)}, sub_axis_info = ({axis.pre}){axis.size}>"


def _reduction(op: Any) -> str:
    number = integer(op.attributes["reduction_op"]) if "reduction_op" in op.attributes else 0
    if number >= len(_KINDS):
        raise MeshwrightError(f"{op.name} reduces in a way that is not known: {number}.", fix="a sum, max or min")
    return _KINDS[number]
