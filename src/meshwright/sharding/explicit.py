"""Shardings in types: over the Explicit axes of a mesh, the layout of a result follows from those of the operands.

The layout of each operand says which axes split which factor of the op (see ``core.factors``). A result is split where
its factors are. Nothing is guessed: where operands disagree, where an axis would split two dims of one result, where a
sum would be left open between two split operands, or where a factor cannot stay split, the op is ambiguous, and the
error says what to write. A type without a sharding is whole along all Explicit axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

from meshwright.core.current import current_device
from meshwright.core.factors import Factors, check_fit
from meshwright.core.facts import ExplicitFacts
from meshwright.core.program import Params
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import MeshError, ShardingError
from meshwright.sharding.axes import Axes, AxisRef, overlap
from meshwright.sharding.check import resolve
from meshwright.sharding.mesh import AbstractMesh, AxisType, BaseMesh, Mesh, both, get_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding, type_sharding
from meshwright.sharding.single_device import SingleDeviceSharding, one_device
from meshwright.sharding.spec import PartitionSpec, entry_axes, pasted, read_axis

MeshAxes = tuple[tuple[str, int], ...]
Dims = tuple[Axes, ...]
Asked = tuple[PartitionSpec, MeshAxes]  # the param ``out_sharding``: a spec, and the Explicit axes that it is about


@lru_cache(maxsize=4096)
def explicit_mesh(axes: MeshAxes) -> AbstractMesh:
    """The mesh of these Explicit axes, which is what the shardings in types are on."""
    return AbstractMesh([n for _, n in axes], [name for name, _ in axes], AxisType.Explicit)


def asked(t: TensorType, mesh: AbstractMesh | None = None) -> Asked:
    """The param ``out_sharding`` that asks for the layout of a type."""
    sharding = t.sharding
    mesh = mesh if sharding is None else sharding.mesh
    assert mesh is not None, "a type that is whole does not name its mesh"
    return spec_of(t), tuple(mesh.shape.items())


def asked_by(sharding: NamedSharding, ndim: int) -> Asked:
    """The param ``out_sharding`` that asks for what a sharding says of Explicit axes."""
    mesh = sharding.mesh.explicit_mesh
    assert mesh is not None, "the mesh has Explicit axes"
    entries: list[Any] = []
    for dim in sharding.to_tensor_sharding(ndim).dims:
        if not sharding.mesh.auto_axes and (dim.priority is not None or (dim.is_open and dim.axes)):
            raise only_typed(sharding)
        axes = tuple(axis for axis in dim.axes if axis.name in mesh.axis_by_name)
        entries.append(PartitionSpec.UNCONSTRAINED if dim.is_open and not axes else _entries([axes])[0])
    unreduced = [axis for axis in sharding.spec.unreduced if axis in mesh.axis_by_name]
    return PartitionSpec(*entries, unreduced=unreduced), tuple(mesh.shape.items())


def only_typed(sharding: NamedSharding) -> ShardingError:
    """The error for dims that wait for propagation, where there is none: over Explicit axes types say all."""
    return ShardingError(
        f"A value cannot be sharded as {sharding.spec} over Explicit axes.",
        where=here(),
        why="open dims and priorities are for propagation, and over Explicit axes types say how values are split",
        fix=f"{pasted(sharding.spec.closed())}, or a mesh with Auto axes",
    )


def whole(t: TensorType, dims: Sequence[int]) -> TensorType:
    """A type whose given dims are not split."""
    kept = tuple(() if d in dims else axes for d, axes in enumerate(_dims_of(t)))
    return t.with_(sharding=t.sharding and type_sharding(t.sharding.mesh, kept))


def left_open(ndim: int) -> PartitionSpec:
    """The spec that leaves every dim as the operands have it."""
    return PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * ndim)


def spec_of(t: TensorType) -> PartitionSpec:
    """The layout of a type as a spec."""
    return PartitionSpec(*_entries(_dims_of(t)), unreduced=t.unreduced)


class ResultSharding(NamedTuple):
    """The sharding of a result, as ``out_sharding`` or the operands say it."""

    sharding: TensorSharding | None
    unreduced: tuple[str, ...]


def result_layouts(
    name: str,
    rule: Any,
    facts: ExplicitFacts,
    may_ask: bool,
    types: Sequence[TensorType],
    results: Sequence[TensorType],
    params: Params,
) -> list[ResultSharding]:
    """The shardings of an op's results. ``types`` are those of the operands as they are, ``results`` plain ones; it
    ``may_ask`` for one by an ``out_sharding``."""
    given: Asked | None = params.get("out_sharding")
    if facts.constraint and given is not None and _moves(types[0], explicit_mesh(given[1])):
        return [_moved(types[0], *given)]
    mesh = _one_mesh(name, types, params)
    if not callable(rule):
        split = next((n for n, t in enumerate(types) if t.sharding is not None), None)
        if split is not None:
            raise _error(name, types, f"{name} has no rule for dims that are split", _whole(types, split))
        return [ResultSharding(None, ())] * len(results)
    plain = [t.with_(sharding=None, varying=(), unreduced=()) for t in types]
    own = {k: v for k, v in params.items() if k != "out_sharding"}
    factors = check_fit(name, rule(plain, results, own), plain, results)
    question = _Question(name, types, results, factors, facts, may_ask)
    if given is None:
        question.check_sums(facts.product)
        return [ResultSharding(type_sharding(mesh, dims), ()) for dims in question.dims()]
    natural = question.dims(strict=False)
    return [_as_asked(question, given[0], mesh, dims, t) for dims, t in zip(natural, results, strict=True)]


def explicit_placement(
    name: str, operands: Sequence[Any], t: TensorType
) -> NamedSharding | SingleDeviceSharding | None:
    """Where a result of this type is, computed at once from arrays; None unless one is on a mesh with Explicit axes, or
    was put onto one device, or it is a partial sum, whose summands are where those of the operands are."""
    device = one_device(f"The operands of {name}", [x._sharding for x in operands])
    if device is not None:
        return device
    places = [x._sharding for x in operands if isinstance(x._sharding, NamedSharding)]
    meshes = [place.mesh for place in places if place.mesh.explicit_mesh is not None]
    if not meshes:
        own = next((place for place in places if t.unreduced and place.spec.unreduced), None)
        if own is not None:
            return NamedSharding(own.mesh, PartitionSpec(unreduced=own.spec.unreduced))
        return None if places else new_place(t.ndim)
    other = next((mesh for mesh in meshes if mesh != meshes[0]), None)
    if other is not None:
        raise _apart(name, [x.type for x in operands], meshes[0], other)
    return NamedSharding(meshes[0], spec_of(t))


def new_place(ndim: int) -> NamedSharding | None:
    """Where an array is that is made of nothing that was put anywhere: on all devices of the current mesh, if that has
    Explicit axes."""
    mesh = get_mesh()
    if not isinstance(mesh, Mesh) or mesh.explicit_mesh is None or current_device.place is not None:
        return None
    return NamedSharding(mesh, PartitionSpec(*[None] * ndim))


def _as_asked(
    question: _Question, spec: PartitionSpec, mesh: AbstractMesh, natural: Dims, result: TensorType
) -> ResultSharding:
    """A result laid out as a spec says; what it leaves open as the operands say."""
    dims: list[Axes] = []
    for n in range(result.ndim):
        entry = spec.partitions[n] if n < len(spec.partitions) else None
        if entry is PartitionSpec.UNCONSTRAINED:
            dims.append(natural[n])
        else:
            dims.append(resolve(mesh, [read_axis(axis) for axis in entry_axes(entry)]))
    written = {axis.name for n, axes in enumerate(dims) if not _is_open(spec, n) for axis in axes}
    dims = [  # an axis that the spec gives to one dim is taken from those that it leaves open
        tuple(axis for axis in axes if axis.name not in written) if _is_open(spec, n) else axes
        for n, axes in enumerate(dims)
    ]
    for axis in spec.unreduced:
        if axis not in question.summed():
            raise _error(
                question.name,
                question.types,
                f"out_sharding leaves the sum over {axis} open, and {axis} does not split what both operands are "
                "summed over",
                f"leave it out: out_sharding={_show(spec.update(unreduced=()))}",
            )
    return ResultSharding(type_sharding(mesh, tuple(dims)), tuple(sorted(map(str, spec.unreduced))))


def _is_open(spec: PartitionSpec, dim: int) -> bool:
    return dim < len(spec.partitions) and spec.partitions[dim] is PartitionSpec.UNCONSTRAINED


class _Split(NamedTuple):
    """A factor that a dim of an operand is split along."""

    factor: str
    axes: Axes
    operand: int
    dim: int


class _Question:
    """The factors of one op, and which axes split them."""

    def __init__(
        self,
        name: str,
        types: Sequence[TensorType],
        results: Sequence[TensorType],
        factors: Factors,
        facts: ExplicitFacts,
        may_ask: bool,
    ) -> None:
        self.name, self.facts, self.may_ask = name, facts, may_ask
        self.types = types
        self.results = results
        self.factors = factors
        self.returned = {f for dims in factors.results for dim in dims for f in dim}
        self.splits: list[_Split] = []
        self.overflow: tuple[int, int] | None = None  # the operand and its dim whose split does not fit its factors
        for n, (t, dims) in enumerate(zip(types, factors.operands, strict=True)):
            if t.sharding is not None:
                for d, (names, dim) in enumerate(zip(dims, t.sharding.dims, strict=True)):
                    self._project(n, d, names, dim.axes)

    def _project(self, operand: int, dim: int, names: tuple[str, ...], axes: Axes) -> None:
        """Give the axes of a dim to its factors, from major to minor."""
        if len(names) == 1:
            if axes:
                self.splits.append(_Split(names[0], axes, operand, dim))
            return
        left = list(axes)
        for name in names:
            taken: list[AxisRef] = []
            size = self.factors.sizes[name]
            while left and size > 1:
                axis = left[0]
                common = gcd(size, axis.size)
                if common == 1:
                    self.overflow = (operand, dim)
                    return
                taken.append(axis if common == axis.size else axis.part(axis.pre, axis.pre * common))
                left[:1] = [] if common == axis.size else [axis.part(axis.pre * common, axis.next)]
                size //= common
            if taken:
                self.splits.append(_Split(name, tuple(taken), operand, dim))
        if left:
            self.overflow = (operand, dim)

    def summed(self) -> set[str]:
        """The axes that split, in every operand that has it, a factor that is summed over."""
        found: set[str] = set()
        for factor in self.factors.reduced:
            splits = [s.axes for s in self.splits if s.factor == factor]
            if len(splits) == sum(any(factor in dim for dim in dims) for dims in self.factors.operands):
                found |= {axis.short() for axis in splits[0]}
        return found

    def dims(self, strict: bool = True) -> list[Dims]:
        """The axes of each dim of each result; errors unless not ``strict``, and then what goes without conflict."""
        found: dict[str, _Split] = {}
        if strict and self.overflow is not None:
            raise self._stuck(*self.overflow)
        if strict and self.facts.unwindows:
            self._check_windows()
        for split in self.splits:
            factor = split.factor
            if strict:
                self._check(split)
            if factor not in self.returned or (factor in self.factors.replicated and not strict):
                continue
            other = found.setdefault(factor, split)
            if strict and other.axes != split.axes:
                raise self._differ(other, split)
        return [self._result(n, found, strict) for n in range(len(self.results))]

    def _result(self, number: int, found: dict[str, _Split], strict: bool) -> Dims:
        """The axes of each dim of a result: those of its factors, as long as the factors before are all cut up."""
        dims: list[Axes] = []
        used: dict[str, _Split] = {}
        for names, n in zip(self.factors.results[number], self.results[number].shape, strict=True):
            axes: Axes = ()
            whole_before = False
            for name in names:
                split = found.get(name)
                parts = 1
                if split is not None:
                    twice = next((used[a.name] for a in split.axes if a.name in used and self._meet(a, used)), None)
                    parts = prod(axis.size for axis in split.axes)
                    moved = n != self.types[split.operand].shape[split.dim]
                    uneven = moved and bool((n if len(names) == 1 else self.factors.sizes[name]) % parts)
                    if (whole_before or uneven) and strict:
                        raise self._stuck(split.operand, split.dim)
                    if twice is not None and strict:
                        raise self._twice(twice, split, number)
                    if whole_before or uneven or twice is not None:
                        parts = 1
                    else:
                        axes += split.axes
                        used.update((axis.name, split) for axis in split.axes)
                whole_before = whole_before or parts < self.factors.sizes[name]
            dims.append(axes)
        return tuple(dims)

    def _meet(self, axis: AxisRef, used: dict[str, _Split]) -> bool:
        return any(axis.overlaps(other) for split in used.values() for other in split.axes)

    # What is ambiguous

    def _check(self, split: _Split) -> None:
        """A factor that is split must be summed over, or come out split."""
        factors, factor = self.factors, split.factor
        if factor in factors.replicated:
            passes = self._joins(split) if factor in self.returned else self.facts.compares or self.facts.unwindows
            if not passes:
                raise self._stuck(split.operand, split.dim)
            return
        if factor not in factors.reduced and factor not in self.returned:
            raise self._stuck(split.operand, split.dim)

    def _check_windows(self) -> None:
        """What is put into windows is split as what the windows lie on."""
        into, onto = (_dims_of(t) for t in self.types)
        for d, (mine, other) in enumerate(zip(into, onto, strict=True)):
            if mine != other:
                names = (self.factors.operands[n][d][0] for n in (0, 1))
                one, two = (
                    _Split(name, axes, n, d) for n, (name, axes) in enumerate(zip(names, (mine, other), strict=True))
                )
                raise self._differ(two, one)

    def _joins(self, split: _Split) -> bool:
        """Whether arrays are joined along a dim that all of them are split along in the same way."""
        same = [s for s in self.splits if s.factor == split.factor and s.axes == split.axes]
        return self.facts.joins and len(same) == len(self.types)

    def check_sums(self, product: bool) -> None:
        """What is summed over is split in one way; in several operands of a product, the sum is left open."""
        for factor in sorted(self.factors.reduced):
            splits = [s for s in self.splits if s.factor == factor]
            self._check_apart(splits)
            if len(splits) > 1 and (product or splits[0].axes != splits[1].axes):
                raise self._open_sum(splits, self.dims(strict=False)[0])

    def _check_apart(self, summed: list[_Split]) -> None:
        """An axis that splits what is summed over splits nothing else that is, and, but for products (which may gather
        that operand), no dim of the result."""
        others = [
            s for s in self.splits if s.factor in (self.factors.reduced if self.facts.product else self.factors.sizes)
        ]
        for one in summed:
            for other in others:
                if other.factor != one.factor and overlap(one.axes, other.axes):
                    raise self._summed_and_split(one, other)

    def _summed_and_split(self, one: _Split, other: _Split) -> ShardingError:
        shared = next(axis for axis in one.axes if overlap((axis,), other.axes))
        dims = list(_dims_of(self.types[one.operand]))
        dims[one.dim] = ()
        return self._error(
            f"{shared.short()} splits {self._place(one)}, which it sums over, and {self._place(other)}: devices along "
            "an axis sum over one dim, and then hold the same",
            _reshard(self.types, one.operand, dims),
        )

    def _place(self, split: _Split) -> str:
        return f"dim {split.dim} of operand {split.operand}"

    def _differ(self, one: _Split, other: _Split) -> ShardingError:
        t = self.types[other.operand]
        dims = list(_dims_of(t))
        dims[other.dim] = one.axes
        for d in range(len(dims)):
            if d != other.dim:
                dims[d] = tuple(axis for axis in dims[d] if not any(axis.overlaps(a) for a in one.axes))
        return self._error(
            f"{self._place(one)} is split over {_names(one.axes)}, and {self._place(other)}, which goes with it, over "
            f"{_names(other.axes)}",
            _reshard(self.types, other.operand, dims),
        )

    def _twice(self, one: _Split, other: _Split, number: int) -> ShardingError:
        t = self.types[other.operand]
        taken = one.axes
        dims = [tuple(axis for axis in axes if not any(axis.overlaps(a) for a in taken)) for axes in _dims_of(t)]
        shared = next(axis for axis in other.axes if any(axis.overlaps(a) for a in one.axes))
        result = "the result" if len(self.results) == 1 else f"result {number}"
        return self._error(
            f"{shared.short()} splits {self._place(one)} and {self._place(other)}, and would split two dims of "
            f"{result}: an axis splits one dim",
            _reshard(self.types, other.operand, dims),
        )

    def _open_sum(self, splits: list[_Split], natural: Dims) -> ShardingError:
        one, other = splits[0], splits[1]
        axes = one.axes
        if one.axes != other.axes:
            dims = list(_dims_of(self.types[other.operand]))
            dims[other.dim] = one.axes
            for d in range(len(dims)):
                if d != other.dim:
                    dims[d] = tuple(axis for axis in dims[d] if not any(axis.overlaps(a) for a in one.axes))
            return self._error(
                f"it sums over {self._place(one)}, split over {_names(one.axes)}, and {self._place(other)}, split over "
                f"{_names(other.axes)}",
                _reshard(self.types, other.operand, dims),
            )
        why = (
            f"it sums over {self._place(one)} and {self._place(other)}, both split over {_names(axes)}: the sum can go "
            "to all devices, or each can take a part of it"
        )
        if not self.may_ask:
            dims = list(_dims_of(self.types[other.operand]))
            dims[other.dim] = ()
            return self._error(why, _reshard(self.types, other.operand, dims))
        fix = f"out_sharding={_show(PartitionSpec(*_entries(natural)))} for all of it"
        free = next((d for d, found in enumerate(natural) if not found), None)
        if free is not None and not any(a.overlaps(b) for dim in natural for a in dim for b in axes):
            scattered = tuple(axes if d == free else found for d, found in enumerate(natural))
            fix += f", out_sharding={_show(PartitionSpec(*_entries(scattered)))} for a part on each device"
        return self._error(why, fix)

    def _stuck(self, operand: int, dim: int) -> ShardingError:
        t = self.types[operand]
        dims = [axes if d != dim else () for d, axes in enumerate(_dims_of(t))]
        axes = _dims_of(t)[dim]
        which = f"dim {dim} of " + ("its operand" if len(self.types) == 1 else f"operand {operand}")
        return self._error(
            f"{which} is split over {_names(axes)}, and no dim of the result{'s' * (len(self.results) > 1)} can be "
            "split as it is",
            _reshard(self.types, operand, dims),
        )

    def _error(self, why: str, fix: str) -> ShardingError:
        return _error(self.name, self.types, why, fix)


def _moves(t: TensorType, mesh: AbstractMesh) -> bool:
    """Whether a value is on another mesh than this."""
    return t.sharding is not None and t.sharding.mesh != mesh


def _moved(t: TensorType, spec: PartitionSpec, axes: MeshAxes) -> ResultSharding:
    """The layout of a value that goes to another mesh: what a spec leaves open is whole."""
    mesh = explicit_mesh(axes)
    if spec.unreduced or t.unreduced:
        raise _apart("sharding_constraint", [t], t.sharding.mesh if t.sharding is not None else mesh, mesh)
    entries = [*spec.partitions, *[None] * (t.ndim - len(spec.partitions))]
    dims = tuple(resolve(mesh, [read_axis(axis) for axis in entry_axes(entry)]) for entry in entries)
    return ResultSharding(type_sharding(mesh, dims), ())


def _one_mesh(name: str, types: Sequence[TensorType], params: Params) -> AbstractMesh:
    meshes = [t.sharding.mesh for t in types if t.sharding is not None]
    given: Asked | None = params.get("out_sharding")
    if given is not None:
        meshes.append(explicit_mesh(given[1]))
    other = next((mesh for mesh in meshes if mesh != meshes[0]), None)
    if other is not None:
        raise _apart(name, types, meshes[0], other)
    return meshes[0]  # type: ignore[no-any-return]


def _apart(name: str, types: Sequence[TensorType], one: BaseMesh, other: BaseMesh) -> MeshError:
    return MeshError(
        f"{name} cannot take {', '.join(t.short() for t in types)}.",
        where=here(),
        why="they are on different meshes, " + " and ".join(both(one, other)),
        fix="mw.device_put(x, mw.NamedSharding(mesh, spec)) with one mesh for all",
    )


def _dims_of(t: TensorType) -> Dims:
    return ((),) * t.ndim if t.sharding is None else tuple(dim.axes for dim in t.sharding.dims)


def _entries(dims: Sequence[Axes]) -> list[Any]:
    names = [tuple(axis.short() for axis in axes) for axes in dims]
    return [None if not found else found[0] if len(found) == 1 else found for found in names]


def _names(axes: Axes) -> str:
    return ", ".join(axis.short() for axis in axes) or "nothing"


def _show(spec: PartitionSpec) -> str:
    return pasted(spec)


def _reshard(types: Sequence[TensorType], operand: int, dims: Sequence[Axes]) -> str:
    spec = _show(PartitionSpec(*_entries(dims)))
    if len(types) == 1:
        return f"mw.reshard(x, {spec})"
    return f"lay operand {operand}, {types[operand].short()}, out otherwise: mw.reshard(x, {spec})"


def _whole(types: Sequence[TensorType], operand: int) -> str:
    return _reshard(types, operand, ((),) * types[operand].ndim)


def _error(name: str, types: Sequence[TensorType], why: str, fix: str) -> ShardingError:
    shown = ", ".join(t.short() for t in types)
    return ShardingError(f"The layout of {name} of {shown} is ambiguous.", where=here(), why=why, fix=fix)
