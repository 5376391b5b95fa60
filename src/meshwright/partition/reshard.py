"""The reshard planner: from any sharding of an array to any other, with the fewest bytes.

`reshard_structure` writes both shardings in common digits, `reshard_search` lists the ways from one to the other, and
here the cheapest is chosen. Sizes matter only where blocks do not divide, so ways are found once for all arrays whose
sizes are multiples of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, gcd, lcm, prod
from typing import Any, NamedTuple

from meshwright.core.axes import Axes, AxisRef
from meshwright.core.dtypes import DType, as_dtype, short_name
from meshwright.core.mesh import BaseMesh, Mesh, get_mesh
from meshwright.core.partition_spec import PartitionSpec
from meshwright.core.placement import Digit, axes_of
from meshwright.core.sharding import NamedSharding, TensorSharding
from meshwright.core.sharding_check import checked_shape
from meshwright.core.source import here
from meshwright.errors import MeshError, ShapeError, ShardingError
from meshwright.partition.reshard_blocks import Blocks
from meshwright.partition.reshard_cost import step_seconds, topology_for
from meshwright.partition.reshard_direct import direct_sketches
from meshwright.partition.reshard_search import Sketch, sketches
from meshwright.partition.reshard_steps import Mapped, Place, Received, ReshardStep
from meshwright.partition.reshard_structure import Bound, Frame, Structure, frame, lower_bound, structure


class LocalDigit(NamedTuple):
    """A digit of a dim of the local array; the rest of the dim counts as its last digit."""

    digit: int
    size: int


View = tuple[tuple[LocalDigit, ...], ...]


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
        """What is done, in order."""
        return self._sketch.steps

    @property
    def mesh(self) -> BaseMesh:
        """The mesh whose axes the steps name: the source's, or the target's if the source is whole everywhere."""
        return self._found.frame.mesh

    @property
    def atoms(self) -> Axes:
        """The axes or parts of axes, major to minor, of which those of all steps are made."""
        if self._found.parts is None:
            return self.steps[-1].axes
        return tuple(axis for atom in reversed(self._found.parts.atoms) for axis in axes_of(self.mesh, (atom,)) or ())

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
        return _maps(self._sketch)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """The digits of the local array before each step and at the end."""
        return tuple(_view(self._sketch, index, mapped, self.units) for index, mapped in enumerate(self.mapped))

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
        return tuple(Received(r.most * scale, r.mean * scale) for r in _received(self._sketch))

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
        return tuple(size * self._item for size in _local_sizes(self.views, self.mapped, self.shape))

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
        """The modelled time, one step after another, on a `hardware.Topology` or a machine of the named chip.

        >>> from meshwright.core.mesh import make_mesh
        >>> from meshwright.core.partition_spec import P
        >>> mesh = make_mesh((4, 4), ("x", "y"))
        >>> plan = plan_reshard((4096, 4096), "bf16", NamedSharding(mesh, P("x")), NamedSharding(mesh, P()))
        >>> f"{plan.seconds('tpu v5e') * 1e6:.0f} us"
        '559 us'
        """
        topology = topology_for(hardware, self.mesh)
        before = self.local_bytes
        return sum(
            step_seconds(step, size, self._scale, topology) for step, size in zip(self.steps, before, strict=False)
        )

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
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ReshardPlan {'; '.join(map(str, self.steps)) or 'nothing to do'}>"


def _sums(sharding: TensorSharding) -> str:
    axes = ",".join(axis.short() for axis in sharding.unreduced)
    kind = "" if sharding.reduction == "sum" else f"{sharding.reduction} "
    return f"{{U:{kind}{axes}}}" if axes else ""


def show_bytes(size: int) -> str:
    """A number of bytes with its unit.

    >>> show_bytes(512), show_bytes(2048), show_bytes(12_582_912)
    ('512 B', '2.05 kB', '12.6 MB')
    """
    if size < 1000:
        return f"{size} B"
    value, unit = float(size), 0
    while value >= 999.5:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB', 'ZB', 'YB'][unit]}"


# States


def _maps(sketch: Sketch) -> tuple[Mapped, ...]:
    maps = [dict(sketch.start)]
    for step in sketch.steps:
        maps.append(step.after(maps[-1]))
    return tuple(maps)


def _view(sketch: Sketch, index: int, mapped: Mapped, units: Sequence[int]) -> View:
    view: list[tuple[LocalDigit, ...]] = []
    moved = any(isinstance(step, Blocks) for step in sketch.steps[:index])
    for dim, (sizes, rest, ends) in enumerate(zip(sketch.digits, sketch.rest, sketch.ends, strict=True)):
        if ends is not None and moved:
            view.append((LocalDigit(0, ends[1] * units[dim]),))
            continue
        if ends is not None:
            rest = ends[0] // prod(sizes)
        local = [LocalDigit(digit, size) for digit, size in enumerate(sizes) if Place(dim, digit) not in mapped]
        view.append((*local, LocalDigit(len(sizes), rest * units[dim])))
    return tuple(view)


def _local_sizes(views: Sequence[View], maps: Sequence[Mapped], shape: Sequence[int]) -> list[int]:
    """The elements of each local array; a dim that is whole has no padding."""
    found = []
    for view, mapped in zip(views, maps, strict=True):
        split = {place.dim for place in mapped}
        sizes = [prod(digit.size for digit in dim) for dim in view]
        found.append(prod(size if dim in split else min(size, shape[dim]) for dim, size in enumerate(sizes)))
    return found


def _received(sketch: Sketch) -> tuple[Received, ...]:
    """Elements of each step, in units."""
    units = (1,) * len(sketch.digits)
    found = []
    for index, (step, mapped) in enumerate(zip(sketch.steps, _maps(sketch), strict=False)):
        view = _view(sketch, index, mapped, units)
        found.append(step.received(prod(digit.size for dim in view for digit in dim)))
    return tuple(found)


# Planning


class _Found(NamedTuple):
    """Both sides in one numbering, and the ways from one to the other, the cheapest in bytes first."""

    frame: Frame
    parts: Structure | None
    sketches: tuple[Sketch, ...]


def plan_reshard(shape: Sequence[int], dtype: Any, src: Any, dst: Any, *, hardware: Any = None) -> ReshardPlan:
    """The cheapest way to bring an array from one sharding to another: fewest bytes, then fewest collectives.

    With ``hardware`` (a `hardware.Topology`, or the name of a chip) the least modelled time instead.

    >>> from meshwright.core.mesh import make_mesh
    >>> from meshwright.core.partition_spec import P
    >>> mesh = make_mesh((2, 4), ("x", "y"))
    >>> plan = plan_reshard((64, 64), "f32", NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P(None, "y")))
    >>> print(plan)
    f32[64@x,64] → f32[64,64@y]
      slice dim 1 over y       local
      all_gather dim 0 over x  2.05 kB per device
    received  2.05 kB per device (at least 2.05 kB), 16.4 kB in all (at least 16.4 kB)
    memory    8.19 kB at most
    """
    plans = plan_every_way(shape, dtype, src, dst, hardware is not None)
    if hardware is None:
        return plans[0]
    return min(plans, key=lambda plan: (plan.exceeds_memory, plan.seconds(hardware)))


def plan_every_way(shape: Sequence[int], dtype: Any, src: Any, dst: Any, idle: bool = False) -> list[ReshardPlan]:
    """All ways that are known, the one with the fewest bytes first; with ``idle``, also over axes that are idle."""
    shape, kind = checked_shape(shape), _dtype(dtype)
    source, target = _ends(shape, src, dst)
    base, units = _base(shape, source, target, bool(source.unreduced) or idle)
    found = _find(source, target, base, idle)
    return [ReshardPlan(shape, kind, source, target, found, sketch, units) for sketch in found.sketches]


def _base(
    shape: tuple[int, ...], source: TensorSharding, target: TensorSharding, room: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The smallest sizes that are cut alike, and by how much the real ones are larger.

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
def _find(source: TensorSharding, target: TensorSharding, base: tuple[int, ...], idle: bool) -> _Found:
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
    if parts is None or None in parts.dims:
        blocks = direct_sketches(placed, parts, base, name, source.reduction, target.reduction)
        return _Found(placed, parts, tuple(sorted(blocks, key=_score)))
    rest = [
        -(-size // prod(piece.size for piece in pieces or ())) for size, pieces in zip(base, parts.dims, strict=True)
    ]
    every = sketches(parts, rest, name, source.reduction, target.reduction, idle)
    return _Found(placed, parts, tuple(sorted(every, key=_score)))


def _score(sketch: Sketch) -> tuple[bool, Fraction, int, Fraction]:
    """Memory with padding, which alone is no reason for another way; bytes, collectives, bytes of the worst device."""
    received, units = _received(sketch), (1,) * len(sketch.digits)
    views = [_view(sketch, index, mapped, units) for index, mapped in enumerate(_maps(sketch))]
    sizes = [prod(digit.size for dim in view for digit in dim) for view in views]
    return (
        max(sizes) > max(sizes[0], sizes[-1]),
        sum((r.mean for r in received), Fraction(0)),
        sum(step.collectives for step in sketch.steps),
        sum((r.most for r in received), Fraction(0)),
    )


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
                f"A {source.reduction} that is owed cannot become a {target.reduction} that is owed.",
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
            fix=f"mw.NamedSharding(mesh, {given})",
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
    """How the devices of two meshes differ; nothing if they do not."""
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
        "A sum cannot be owed on a mesh that cuts the devices differently.",
        where=here(),
        why=f"{source.mesh} and {target.mesh} have no common parts of axes to owe it over",
        fix="leave out the unreduced axes of dst",
    )
