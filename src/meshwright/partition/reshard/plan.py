"""The reshard planner: from any sharding of an array to any other, with the fewest bytes.

`reshard_structure` writes both shardings in common digits, `reshard_search` lists sketches of plans, and here
the cheapest is chosen. Sizes matter only where blocks do not divide, so sketches are found once for all arrays whose
sizes are multiples of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil, gcd, lcm, prod
from typing import Any, NamedTuple

from meshwright.core.dtypes import DType, as_dtype, short_name
from meshwright.core.source import here
from meshwright.errors import MeshError, ShapeError, ShardingError
from meshwright.hardware.topology import Topology
from meshwright.partition.reshard.blocks import MOST_CELLS
from meshwright.partition.reshard.bound import Bound, lower_bound
from meshwright.partition.reshard.cost import copied, step_seconds, topology_for
from meshwright.partition.reshard.direct import direct_sketches, listed_sketch
from meshwright.partition.reshard.search import rest_of, sketches
from meshwright.partition.reshard.sketch import Sketch, View, local_sizes
from meshwright.partition.reshard.steps import Mapped, Received, ReshardStep
from meshwright.partition.reshard.structure import DigitStructure, Frame, frame, seen_from, structure
from meshwright.partition.reshard.through import sketches_through
from meshwright.sharding.axes import Axes, AxisRef
from meshwright.sharding.check import checked_shape
from meshwright.sharding.mesh import BaseMesh, Mesh, get_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.placement import Digit, axes_of
from meshwright.sharding.spec import PartitionSpec, pasted


class ReshardPlan:
    """Steps from one sharding to another, and what they cost. Made by `plan_reshard`.

    ``views`` has one entry more than ``steps``: how the dims of the local array before each step, and at the end, are
    read as digits. Where an array's blocks reach over its end, the padding is moved with them and counted.
    """

    shape: tuple[int, ...]
    source: TensorSharding
    target: TensorSharding

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        source: TensorSharding,
        target: TensorSharding,
        found: _Found,
        sketch: Sketch,
        units: tuple[int, ...],
    ) -> None:
        self.shape, self.dtype, self.source, self.target = shape, dtype, source, target
        self.units = units
        self._found, self._sketch = found, sketch

    @property
    def steps(self) -> tuple[ReshardStep, ...]:
        """The steps of the plan, in order."""
        return self._sketch.steps

    @property
    def mesh(self) -> BaseMesh:
        """The mesh whose axes the steps name: the source's, or the target's if the source is whole everywhere."""
        return self._found.frame.mesh

    @property
    def atoms(self) -> Axes:
        """The axes or parts of axes, major to minor, of which those of all steps are made."""
        used = {axis for axes in (self._sketch.start.values(), *(step.axes for step in self.steps)) for axis in axes}
        found: list[AxisRef] = []
        for whole in self.mesh.axes:
            ends = {1, whole.size, *(end for part in used if part.name == whole.name for end in (part.pre, part.next))}
            found += [whole.part(low, high) for low, high in pairwise(sorted(ends))]
        return tuple(found)

    @property
    def greedy(self) -> bool:
        """Whether there are more blocks than can be matched one by one, so that it may move far more than it must."""
        return self._found.greedy

    @property
    def common_dims(self) -> tuple[bool, ...]:
        """Whether the blocks of both sides nest, by dim: where they do not, `mapped` says nothing."""
        parts = self._found.parts
        return tuple(parts is not None and parts.dims[dim] is not None for dim in range(len(self.shape)))

    @property
    def order(self) -> tuple[int, ...] | None:
        """The rank of the device at each position of the mesh; None if that is the position."""
        return self._found.frame.order

    @property
    def num_devices(self) -> int:
        """How many devices take part."""
        return self.source.mesh.size

    @cached_property
    def mapped(self) -> tuple[Mapped, ...]:
        """The axis that each digit lies on, before each step and at the end."""
        return self._sketch.maps()

    @cached_property
    def views(self) -> tuple[View, ...]:
        """The digits of the local array before each step and at the end."""
        return self._sketch.views(self.units)

    # Bytes

    @property
    def _item(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def _scale(self) -> int:
        return prod(self.units) * self._item

    @cached_property
    def _received(self) -> tuple[Received, ...]:
        """Bytes of each step."""
        scale = self._scale
        return tuple(Received(r.most * scale, r.mean * scale) for r in self._sketch.received())

    @property
    def step_bytes(self) -> tuple[int, ...]:
        """Bytes that the device that receives most takes in during each step."""
        return tuple(ceil(received.most) for received in self._received)

    @property
    def step_total_bytes(self) -> tuple[int, ...]:
        """Bytes that all devices take in during each step."""
        return tuple(ceil(self.num_devices * received.mean) for received in self._received)

    @property
    def bytes_received_per_device(self) -> int:
        """Bytes that the device that receives most takes in."""
        return ceil(sum(received.most for received in self._received))

    @property
    def total_bytes(self) -> int:
        """Bytes that all devices take in."""
        return ceil(self.num_devices * sum(received.mean for received in self._received))

    @cached_property
    def _bound(self) -> Bound:
        return lower_bound(self._found.frame, self._found.parts, self.shape)

    @property
    def lower_bound_bytes(self) -> int:
        """Bytes that some device lacks of its target shard and must receive, whatever the plan."""
        return self._bound.device * self._item

    @property
    def total_lower_bound_bytes(self) -> int:
        """Bytes that all devices together must receive, whatever the plan."""
        return self._bound.total * self._item

    @property
    def num_collectives(self) -> int:
        """How many collectives there are; each round of permutes is one."""
        return sum(step.collectives for step in self.steps)

    @cached_property
    def local_bytes(self) -> tuple[int, ...]:
        """The size of a device's array before each step and at the end."""
        return tuple(size * self._item for size in local_sizes(self.views, self.mapped, self.shape))

    @property
    def peak_bytes(self) -> int:
        """The largest array that a device ever holds; while a step runs, what it receives is in flight beside it."""
        return max(self.local_bytes)

    @property
    def in_flight_bytes(self) -> int:
        """The most that any step brings to a device beside the array that it has."""
        return max(self.step_bytes, default=0)

    @property
    def exceeds_memory(self) -> bool:
        """Whether some array in between is larger than both the source's and the target's."""
        return self.peak_bytes > max(self.local_bytes[0], self.local_bytes[-1])

    # Time

    def seconds(self, hardware: Any) -> float:
        """The modelled time of the collectives, one after another, on a `hardware.Topology` or a machine of the named
        chip.

        >>> from meshwright.sharding.mesh import make_mesh
        >>> from meshwright.sharding.spec import P
        >>> mesh = make_mesh((4, 4), ("x", "y"))
        >>> plan = plan_reshard((4096, 4096), "bf16", NamedSharding(mesh, P("x")), NamedSharding(mesh, P()))
        >>> f"{plan.seconds('tpu v5e') * 1e6:.0f} us"
        '559 us'
        """
        topology = topology_for(hardware, self.mesh)
        steps = zip(self.steps, self.local_bytes, strict=False)
        return sum(step_seconds(step, size, self._scale, topology) for step, size in steps)

    @cached_property
    def copied_bytes(self) -> int:
        """Bytes that a device reads and writes between the collectives: slices, and digits brought side by side."""
        return self._item * copied(self.steps, self.views)

    def seconds_with_copies(self, topology: Topology) -> float:
        """The modelled time of the collectives and of what devices copy between them: what plans are chosen by."""
        return self.seconds(topology) + self.copied_bytes / topology.chip.hbm_bytes_per_s

    # Text

    def __str__(self) -> str:
        kind = short_name(self.dtype)
        ends = [f"{kind}[{','.join(side.type_dims(self.shape))}]{_sums(side)}" for side in (self.source, self.target)]
        lines = [f"{ends[0]} → {ends[1]}"]
        texts = [str(step) for step in self.steps]
        width = max(map(len, texts), default=0)
        for text, step, received in zip(texts, self.steps, self.step_bytes, strict=True):
            cost = f"{show_bytes(received)} per device" if step.collectives else "local"
            lines.append(f"  {text:{width}}  {cost}")
        if not self.steps:
            lines.append("  nothing to do")
        lines.append(
            f"received  {show_bytes(self.bytes_received_per_device)} per device"
            f" (at least {show_bytes(self.lower_bound_bytes)}),"
            f" {show_bytes(self.total_bytes)} in all (at least {show_bytes(self.total_lower_bound_bytes)})"
        )
        more = ", more than either end: no smaller way is known" if self.exceeds_memory else ""
        lines.append(f"memory    {show_bytes(self.peak_bytes)} at most{more}")
        if self.greedy:
            lines.append("greedy    too many blocks to match one by one: this way may move far more than the bound")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ReshardPlan {'; '.join(map(str, self.steps)) or 'nothing to do'}>"


def _sums(sharding: TensorSharding) -> str:
    axes = ",".join(axis.short() for axis in sharding.unreduced)
    kind = "" if sharding.reduction == "sum" else f"{sharding.reduction} "
    return f"{{U:{kind}{axes}}}" if axes else ""


def show_bytes(size: int) -> str:
    """A number of bytes with its unit.

    >>> show_bytes(512), show_bytes(2048), show_bytes(12_582_912), show_bytes(4 * 10**40)
    ('512 B', '2.05 kB', '12.6 MB', '4.00e+40 B')
    """
    if size < 1000:
        return f"{size} B"
    for power, unit in enumerate(("kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"), 1):
        if 2 * size < 1999 * 1000**power:
            return f"{size / 1000**power:.3g} {unit}"
    return f"{Decimal(size):.2e} B"


# Planning


class _Found(NamedTuple):
    """Both sides in one numbering, and the sketches of plans between them, the cheapest in bytes first."""

    frame: Frame
    parts: DigitStructure | None
    sketches: tuple[Sketch, ...]
    greedy: bool = False


def plan_reshard(shape: Sequence[int], dtype: Any, src: Any, dst: Any, *, hardware: Any = None) -> ReshardPlan:
    """The cheapest way to bring an array from one sharding to another: fewest bytes, then fewest collectives.

    With ``hardware`` (a `hardware.Topology`, or the name of a chip) the least modelled time instead.

    >>> from meshwright.sharding.mesh import make_mesh
    >>> from meshwright.sharding.spec import P
    >>> mesh = make_mesh((2, 4), ("x", "y"))
    >>> plan = plan_reshard((64, 64), "f32", NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P(None, "y")))
    >>> print(plan)
    f32[64@x,64] → f32[64,64@y]
      slice dim 1 over y       local
      all_gather dim 0 over x  2.05 kB per device
    received  2.05 kB per device (at least 2.05 kB), 16.4 kB in all (at least 16.4 kB)
    memory    8.19 kB at most
    """
    plans = every_plan(shape, dtype, src, dst, hardware is not None)
    if hardware is None:
        return plans[0]
    topology = topology_for(hardware, plans[0].mesh)
    return min(plans, key=lambda plan: (plan.exceeds_memory, plan.seconds_with_copies(topology)))


def every_plan(shape: Sequence[int], dtype: Any, src: Any, dst: Any, on_machine: bool = False) -> list[ReshardPlan]:
    """All plans that are known, the one with the fewest bytes first; ``on_machine`` those that move more bytes, too."""
    shape, kind = checked_shape(shape), _dtype(dtype)
    source, target = _ends(shape, src, dst)
    base, units = _base(shape, source, target, bool(source.unreduced) or on_machine)
    found = _find(source, target, base, on_machine)
    return [ReshardPlan(shape, kind, source, target, found, sketch, units) for sketch in found.sketches]


def plan_on(
    mesh: BaseMesh, shape: tuple[int, ...], dtype: DType, source: TensorSharding, target: TensorSharding
) -> ReshardPlan:
    """The sketch that sends blocks directly, its steps over the axes of ``mesh``, another view of the same devices."""
    base, units = _base(shape, source, target, False)
    placed = seen_from(mesh, source, target)
    sketch = listed_sketch(placed, base, source.reduction)
    return ReshardPlan(shape, dtype, source, target, _Found(placed, None, (sketch,)), sketch, units)


def _base(
    shape: tuple[int, ...], source: TensorSharding, target: TensorSharding, room: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The smallest sizes that are cut the same, and by how much the real ones are larger.

    With ``room``, what is left of a dim keeps the factors by which devices could split it.
    """
    base, units = [], []
    for size, one, other in zip(shape, source.shards, target.shards, strict=True):
        small = lcm(one, other)
        if size % small:
            small = size
        elif room:
            small *= gcd(size // small, source.mesh.size)
        base.append(small)
        units.append(size // small if small else 0)
    return tuple(base), tuple(units)


@lru_cache(maxsize=4096)
def _find(source: TensorSharding, target: TensorSharding, base: tuple[int, ...], on_machine: bool) -> _Found:
    placed = frame(source.layout, target.layout, source.mesh, target.mesh)
    parts = structure(placed, base)
    names: dict[Digit, AxisRef] = {}

    def name(atom: Digit) -> AxisRef:
        found = names.get(atom)
        if found is None:
            axes = axes_of(placed.mesh, (atom,))
            assert axes is not None and len(axes) == 1, "atoms are parts of the mesh's axes"
            found = names[atom] = axes[0]
        return found

    if parts is None and target.unreduced:
        raise _no_common_axes(source, target)
    greedy = False
    if parts is None:
        every = [listed_sketch(placed, base, source.reduction)]
    elif None in parts.dims:
        every = direct_sketches(placed, parts, base, name, source.reduction, target.reduction, MOST_CELLS)
        if greedy := not every:
            every = sketches_through(placed, parts, base, name, source.reduction, target.reduction)
    else:
        every = sketches(parts, rest_of(parts, base), name, source.reduction, target.reduction, on_machine)
    return _Found(placed, parts, tuple(sorted(every, key=Sketch.score)), greedy)


# Arguments


def _dtype(given: Any) -> DType:
    try:
        return as_dtype(given)
    except TypeError as error:
        raise ShapeError(
            f"plan_reshard cannot take the dtype {given!r}.",
            where=here(),
            why=str(error),
            fix='plan_reshard(shape, "f32", src, dst)',
        ) from None


def _ends(shape: tuple[int, ...], src: Any, dst: Any) -> tuple[TensorSharding, TensorSharding]:
    source, target = (_sharding(given, shape, name) for given, name in ((src, "src"), (dst, "dst")))
    rank = len(shape)
    source, target = _on_any_mesh(source, target.mesh, rank), _on_any_mesh(target, source.mesh, rank)
    source.check_shape(shape)
    target.check_shape(shape)
    if source.mesh is not target.mesh and (why := _apart(source.mesh, target.mesh)):
        raise MeshError(
            "An array cannot be resharded from one set of devices to another.",
            where=here(),
            why=why,
            fix="mw.device_put(x, dst) copies an array to other devices",
        )
    if source.unreduced and target.unreduced and source.reduction != target.reduction:
        shared = set(source.layout.unreduced) & set(target.layout.unreduced)
        if shared:
            raise ShardingError(
                f"An unreduced {source.reduction} cannot become an unreduced {target.reduction}.",
                where=here(),
                why=f"{source} is unreduced by {source.reduction}, {target} by {target.reduction}, over the same axes",
                fix="reshard to a sharding without unreduced axes first",
            )
    return source, target


def _sharding(given: Any, shape: tuple[int, ...], name: str) -> TensorSharding:
    if isinstance(given, TensorSharding):
        return given
    if isinstance(given, PartitionSpec):
        mesh = get_mesh()
        if mesh is not None:
            return _sharding(NamedSharding(mesh, given), shape, name)
        raise ShardingError(
            f"{name}={given} has no mesh.",
            where=here(),
            why="a partition spec names axes of the current mesh, and none is set",
            fix=f"mw.NamedSharding(mesh, {pasted(given)})",
        )
    if hasattr(given, "to_tensor_sharding"):
        given.shard_shape(shape)  # raises if it does not fit
        found = given.to_tensor_sharding(len(shape))
        assert isinstance(found, TensorSharding)
        return found
    raise ShardingError(
        f"plan_reshard cannot take {name}={given!r}.",
        where=here(),
        why="it takes a shape, a dtype, and two shardings",
        fix='mw.plan_reshard((64, 64), "f32", mw.NamedSharding(mesh, mw.P("x")), mw.NamedSharding(mesh, mw.P()))',
    )


def _on_any_mesh(sharding: TensorSharding, other: BaseMesh, rank: int) -> TensorSharding:
    """A sharding on a mesh that stands for any is one on the other's; one on a single device has dims after all."""
    mesh = sharding.mesh
    if mesh.is_maximal:
        assert isinstance(mesh, Mesh) and mesh.order is not None
        one = Mesh._of((1,), ("device",), None, mesh.order, mesh.kind)
        return TensorSharding(one, [None] * rank)
    if mesh.empty and not mesh.axis_names:
        mesh = other if not other.empty else Mesh._of((1,), ("device",))
        return TensorSharding(mesh, [None] * rank)
    return sharding


def _apart(one: BaseMesh, other: BaseMesh) -> str:
    """A text of how the devices of two meshes differ; empty if they do not."""
    if one.size != other.size:
        return f"the source is on {_devices(one.size)}, the target on {_devices(other.size)}"
    if (
        not isinstance(one, Mesh)
        or not isinstance(other, Mesh)
        or (one.kind == other.kind and one.order == other.order)
    ):
        return ""
    if one.kind != other.kind:
        return f"the source is on devices of kind {one.kind}, the target on devices of kind {other.kind}"
    left = set(one.order or range(one.size)) - set(other.order or range(other.size))
    return f"device {min(left)} is in the mesh of the source only" if left else ""


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


def _no_common_axes(source: TensorSharding, target: TensorSharding) -> ShardingError:
    return ShardingError(
        "A sum cannot stay unreduced on a mesh that cuts the devices differently.",
        where=here(),
        why=f"{source.mesh} and {target.mesh} have no common parts of axes that it could be unreduced over",
        fix="leave out the unreduced axes of dst",
    )
