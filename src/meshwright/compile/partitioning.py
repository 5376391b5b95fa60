"""Programs on a mesh: shardings of arguments and results, propagated, partitioned and explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import prod
from typing import Any, NamedTuple

from meshwright.arrays.device_put import sharding_for, spread
from meshwright.arrays.explicit import untyped, with_sums_taken
from meshwright.arrays.shards import Sharding
from meshwright.compile.partial_sums import finished_sums, with_rows
from meshwright.compile.placement import Placement, Where
from meshwright.compile.stages import PARTITION, Compilation, run_stages
from meshwright.core import tree
from meshwright.core.facts import Structure
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.source import BACKWARD, FORWARD, RECOMPUTED, Source, here, user_source
from meshwright.core.types import TensorType
from meshwright.errors import CommunicationError, MeshError, ShardingError
from meshwright.partition.alternatives import Instead, cheapest_partition
from meshwright.partition.combine import CollectiveReason, CollectiveRecord, LoopAround, OverlapOutcome, Within, records
from meshwright.partition.cost import Planning, cost_on
from meshwright.partition.cuts import apart
from meshwright.partition.layouts import closed, on_mesh, replicated
from meshwright.partition.partition import combined, overlapped
from meshwright.propagate.from_program import ProgramGraph, Propagated
from meshwright.propagate.own_regions import own_regions
from meshwright.sharding.explicit import new_place, only_typed
from meshwright.sharding.mesh import AbstractMesh, BaseMesh, Device, Mesh, both, get_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.single_device import SingleDeviceSharding, one_device
from meshwright.sharding.spec import PartitionSpec, pasted
from meshwright.transform.stack import inline_calls

DEVICES = (SingleDeviceSharding, Device)


@dataclass(frozen=True)
class Collective:
    """A collective of a partitioned program: what it moves, and why it is there.

    ``times`` is how often it runs: more than once inside of a loop; in a while loop of unknown length, in one step.
    ``within`` has these loops, and branches of a cond that need not be taken, from the outermost on. ``implicit``:
    nobody wrote it. ``values`` are the global values that it is for. ``overlap`` is what jit's ``overlap`` made of it.
    ``shift`` is how far along its last axis a permute sends, None where devices differ in that. ``loops`` are those of
    known length that it is in. ``reason`` is None if the user wrote it, and ``result`` what it gives first in the
    local program.
    """

    kind: str
    axes: tuple[str, ...]
    bytes_received_per_device: int
    total_bytes: int
    source: Source | None
    why: str
    implicit: bool
    values: tuple[TensorType, ...]
    times: int
    volume: int
    mesh: BaseMesh
    overlap: OverlapOutcome | None = None
    within: tuple[Within, ...] = ()
    shift: int | None = None
    loops: tuple[LoopAround, ...] = ()
    reason: CollectiveReason | None = None
    result: Var | None = None

    @cached_property
    def whole_axes(self) -> tuple[str, ...]:
        """The axes, all parts of one as the whole: ``("model:(1)2", "model:(2)2")`` is ``("model",)``."""
        found: dict[str, int] = {}
        for axis in self.axes:
            name, _, part = axis.partition(":")
            found[name] = found.get(name, 1) * (int(part.rpartition(")")[2]) if part else self.mesh.shape.get(name, 1))
        whole = {name for name, size in found.items() if self.mesh.shape.get(name) == size}
        names = ((axis.partition(":")[0], axis) for axis in self.axes)
        return tuple(dict.fromkeys(name if name in whole else axis for name, axis in names))

    @property
    def var(self) -> Atom | None:
        """The value that it is for, of the program before it was partitioned, if it is one of that."""
        return self.reason.var if self.reason is not None else None

    @property
    def origin(self) -> Source | None:
        """The line that it comes from: of partial sums, that of the op which left them, else of the one which needs
        the value otherwise."""
        made = self.reason.made if self.reason is not None else None
        return made if made is not None and self.kind in ("all_reduce", "reduce_scatter") else self.source

    @property
    def direction(self) -> str:
        """``forward``, ``backward`` or ``recomputed``: which pass it is in, or finishes."""
        made = self.reason.made if self.reason is not None else None
        passes = {one.call.direction for one in (self.source, made) if one is not None}
        return next((one for one in (RECOMPUTED, BACKWARD) if one in passes), FORWARD)

    def seconds(self, hardware: Any) -> float:
        """The modelled time of one run on a topology, or a machine of the named chip."""
        return cost_on(hardware, self.mesh).along(self.kind, self.volume, self.axes, self.shift)

    def __str__(self) -> str:
        times = f" × {self.times}" if self.times > 1 else ""
        where = f"  {self.source}" if self.source else ""
        return (
            f"{self.kind} over {', '.join(self.axes)}: {self.bytes_received_per_device} bytes per device{times}"
            f"  {', '.join(t.short() for t in self.values[:3])}{', …' if len(self.values) > 3 else ''}{where}"
            f"\n    {self.why}{''.join(f'; {one}' for one in self.within)}"
        )


class PartitionedProgram(NamedTuple):
    """A program for all devices of a mesh, and what is known about it."""

    program: Program
    local: Program
    mesh: Mesh
    in_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]
    collectives: tuple[Collective, ...]
    propagated: Propagated
    source: Program  # before it was partitioned
    placement: Placement
    out_tree: tree.TreeDef
    moved: Mapping[int, TensorSharding]  # the layouts that arguments are first brought into, by number
    written: Mapping[Var, str]  # by the results of collectives that were put in, the op that they are for
    whole: Program  # as it was traced, but for calls
    vars: Mapping[Atom, Var]  # of ``whole`` to ``source``, where types had shardings
    out_types: tuple[TensorType, ...]  # of the results; the program has rows for what is a partial sum
    instead: Instead | None  # of the shardings that propagation found
    compilation: Compilation  # that it comes from

    def refuse_implicit(self) -> None:
        """Raise if there is a collective that nobody wrote, inside of ``no_implicit_comms``."""
        implicit = [one for one in self.collectives if one.implicit] if _silent.get() else []
        if implicit:
            first = implicit[0]
            raise CommunicationError(
                f"The program needs {len(implicit)} collective{'s' * (len(implicit) > 1)} that nobody wrote.",
                where=first.source.show() if first.source else here(),
                why=f"the first is {first.kind} over {', '.join(first.axes)}: {first.why}",
                fix="lay the arrays out so that no data moves, or leave mw.no_implicit_comms()",
            )


def placement_of(
    args: Sequence[Any],
    kwargs: Any,
    names: Sequence[str],
    found: Sequence[Any],
    shapes: Sequence[tuple[int, ...]],
    in_shardings: Any,
    out_shardings: Any,
) -> Where:
    """Where things are: by ``in_shardings``, or else where the arguments are, as far as anybody says.

    ``names`` are what the function calls its positional arguments, for those that are passed by name.
    """
    given: list[Any] = [None] * len(shapes)
    if in_shardings is not None:
        given = spread(*_by_argument(in_shardings, args, kwargs, names), "jit's in_shardings")
    chosen: list[NamedSharding | None] = []
    devices: list[Sharding] = [sharding_for(p, ()) for p in tree.leaves(out_shardings) if isinstance(p, DEVICES)]
    for place, own, shape in zip(given, found, shapes, strict=True):
        said = own if place is None else place
        sharding = own if said is own and isinstance(own, NamedSharding | None) else sharding_for(said, shape)
        if said is not own and sharding is not None:
            _check_agreed(sharding, own, len(shape))
        if not isinstance(sharding, NamedSharding):
            devices += [sharding] if sharding is not None else []
            chosen.append(None)
            continue
        if sharding.mesh.explicit_mesh is not None and not sharding.mesh.auto_axes and not sharding.spec.is_closed:
            raise only_typed(sharding)
        chosen.append(sharding)
    meshes: list[BaseMesh] = [s.mesh for s in chosen if s is not None]
    meshes += [
        s.mesh
        for s in tree.leaves(out_shardings)
        if isinstance(s, NamedSharding | TensorSharding) and not s.mesh.is_maximal
    ]
    current = get_mesh()
    if not meshes and current is not None:
        new = new_place(0) is not None and not devices
        if new or any(isinstance(s, PartitionSpec) for s in tree.leaves(out_shardings)):
            meshes += [current]
    device = on_one_device(devices, meshes[:1])
    if not meshes:
        for place in tree.leaves(out_shardings):
            if not isinstance(place, NamedSharding | TensorSharding):
                sharding_for(place, ())  # an error if it is no place, or a spec without a mesh
        return Where(device=device)
    first = meshes[0]
    other = next((mesh for mesh in meshes if mesh != first and not views(first, mesh)), None)
    if other is not None:
        raise MeshError(
            "The arguments and results of one program are on different meshes.",
            where=here(),
            why="one is on " + ", another on ".join(both(first, other)),
            fix="mw.device_put(x, mw.NamedSharding(mesh, spec)) with one mesh for all",
        )
    if not isinstance(meshes[0], Mesh):
        raise MeshError(
            f"A program cannot be compiled for {meshes[0].short()}.",
            where=here(),
            why="the mesh has no devices",
            fix=f"mw.make_mesh({meshes[0].axis_sizes}, {meshes[0].axis_names}), which needs no machine",
        )
    groups = [n for n, arg in enumerate([*args, kwargs]) for _ in tree.leaves(arg)]
    told, others = tuple(place is not None for place in given), tuple(meshes[1:])
    return Where(Placement(meshes[0], tuple(chosen), out_shardings, groups=tuple(groups), others=others, told=told))


def _check_agreed(asked: Sharding, own: Any, ndim: int) -> None:
    """Refuse ``in_shardings`` for an argument that was put elsewhere: a call moves nothing that somebody placed."""
    if own is None or not getattr(own, "committed", True) or own == asked:
        return
    if isinstance(asked, NamedSharding) and not asked.spec.is_closed:
        return
    if isinstance(own, NamedSharding) and not own.spec.is_closed:
        return
    if not own.is_equivalent_to(asked, ndim):
        raise ShardingError(
            f"jit's in_shardings say {_placed_as(asked)} of an argument that is placed as {_placed_as(own)}.",
            where=here(),
            why="an argument that was put somewhere stays there, and a call does not move it",
            fix=f"mw.device_put(x, {_on_mesh(asked)}) before the call, or in_shardings of {_on_mesh(own)}",
        )


def _placed_as(place: Any) -> str:
    return pasted(place.spec) if isinstance(place, NamedSharding) else repr(place)


def _on_mesh(place: Any) -> str:
    """A place as code, with ``mesh`` for the mesh that it is on."""
    if isinstance(place, NamedSharding):
        return f"mw.NamedSharding(mesh, {pasted(place.spec)})"
    return f"mw.devices()[{place.device.id}]" if isinstance(place, SingleDeviceSharding) else repr(place)


def on_one_device(places: Sequence[Any], meshes: Sequence[BaseMesh]) -> SingleDeviceSharding | None:
    """The device that arguments or results of a program are on, if they are, and then no mesh of others."""
    whole = [NamedSharding(mesh, PartitionSpec()) for mesh in meshes]
    return one_device("The arguments and results of one program", [*places, *whole])


def views(mesh: BaseMesh, other: BaseMesh) -> bool:
    """Whether two meshes are views of the same devices that one program can have.

    If their axes are Explicit, types are on either, and say by the names of axes on which.
    """
    if not isinstance(mesh, Mesh) or not mesh.has_devices_of(other):
        return False
    if mesh.explicit_mesh is None and other.explicit_mesh is None:
        return True
    return not (mesh.auto_axes or other.auto_axes or {*mesh.axis_names} & {*other.axis_names})


def _by_argument(
    shardings: Any, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
) -> tuple[Any, Any]:
    """``in_shardings`` in the containers of the arguments, and the arguments: those by name have the sharding of their
    place in the function's signature."""
    if not kwargs:
        return tuple(shardings) if isinstance(shardings, list) else shardings, tuple(args)
    if not isinstance(shardings, list | tuple):
        return shardings, (tuple(args), kwargs)
    for name in kwargs:
        if name not in names or names.index(name) >= len(shardings):
            raise ShardingError(
                f"jit's in_shardings say nothing of the argument {name!r}.",
                where=here(),
                why=f"they are {len(shardings)}, for the positional arguments {', '.join(names) or 'there are'}",
                fix="one sharding for each argument in the order of the signature, or one for all",
            )
    by_name = {name: shardings[names.index(name)] for name in kwargs}
    return (tuple(shardings[: len(args)]), by_name), (tuple(args), kwargs)


_silent: ContextVar[bool] = ContextVar("no_implicit_comms", default=False)


@contextmanager
def no_implicit_comms() -> Iterator[None]:
    """Inside, a program that needs a collective nobody wrote is an error when it is compiled, or run again.

    Collectives in a ``shard_map`` are written, and so are those that a ``reshard`` or a constraint asks for.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("x",))
    >>> x = mw.device_put(mnp.ones((4, 4)), mw.NamedSharding(mesh, mw.P("x")))
    >>> with no_implicit_comms():
    ...     _ = mw.jit(lambda x: x * 2)(x)
    """
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class Inlined(NamedTuple):
    """What the types of a program and the caller say of its shardings, before they are propagated."""

    whole: Program  # as it was traced, but for calls
    vars: Mapping[Atom, Var]  # of ``whole`` to the program, where types had shardings
    fixed: Mapping[Var, TensorSharding]  # by types
    given: tuple[TensorSharding | None, ...]  # of arguments
    asked: tuple[TensorSharding | None, ...]  # of results
    given_at: tuple[str, ...]  # the lines that say so
    asked_at: tuple[str, ...]
    out_types: tuple[TensorType, ...]  # of the results; the program has rows for what is a partial sum
    placement: Placement  # with rows, too


class Layouts(NamedTuple):
    """What propagation found, and the shardings in which arguments enter and results leave, as far as that is known."""

    propagated: Propagated
    entering: tuple[TensorSharding, ...]
    leaving: tuple[TensorSharding | None, ...]


def inline(given: Compilation) -> Compilation:
    """The program without calls, of plain types; what these said of shardings is kept beside it."""
    placement, program, out_tree = given.placement, given.program, given.out_tree
    assert placement is not None
    mesh = placement.mesh
    _check_maps(program, mesh)
    results = tree.unflatten(out_tree, range(out_tree.num_leaves))
    written: Sequence[Any] = spread(placement.out_shardings, results, "jit's out_shardings")
    program = finished_sums(program, written)
    out_types = program.out_types
    program, given_in, written = with_rows(program, mesh, placement.in_shardings, written)
    placement = placement._replace(in_shardings=tuple(given_in), out_shardings=tree.unflatten(out_tree, written))
    whole = own_regions(inline_calls(program, shard_maps=apart(program, mesh)))
    program, fixed, vars = untyped(whole, mesh, placement.others)
    found = Inlined(
        whole,
        vars,
        fixed,
        _tensor_shardings(placement.in_shardings, program.in_types),
        tuple(None if s is None else _out_sharding(s, t) for s, t in zip(written, program.out_types, strict=True)),
        tuple(map(_where, placement.in_shardings)),
        tuple(map(_where, written)),
        out_types,
        placement,
    )
    return replace(given, program=program, inlined=found)


def propagate(given: Compilation) -> Compilation:
    """A sharding for every value of the program."""
    found, program = given.inlined, given.program
    assert found is not None
    mesh = found.placement.mesh
    graph = given.layouts.propagated.graph if given.layouts is not None else ProgramGraph(program, mesh, found.fixed)
    propagated = graph.propagate(found.given, found.asked, found.given_at, found.asked_at)
    entering = [
        s if s is not None and s.is_closed else propagated.shardings.get(v, replicated(mesh, v.type.ndim))
        for s, v in zip(found.given, program.inputs, strict=True)
    ]
    leaving = [
        with_sums_taken(propagated.shardings.get(atom), t) if out is None else out if out.is_closed else open  # type: ignore[arg-type]
        for out, open, atom, t in zip(found.asked, propagated.results, program.outputs, found.out_types, strict=True)
    ]
    propagated.shardings = {var: s if s.mesh is mesh else on_mesh(s, mesh) for var, s in propagated.shardings.items()}
    return replace(given, layouts=Layouts(propagated, tuple(entering), tuple(leaving)))


def partition(given: Compilation) -> Compilation:
    """The program of one device, in the layouts that propagation found or in others that are clearly cheaper."""
    found, layouts = given.inlined, given.layouts
    assert found is not None and layouts is not None
    placement, mesh = found.placement, found.placement.mesh
    typed = bool(found.fixed) and not any(mesh.shape[name] > 1 for name in mesh.auto_axes)
    chosen = cheapest_partition(
        layouts.propagated,
        mesh,
        [None if s is None else on_mesh(s, mesh) for s in found.given],
        [on_mesh(s, mesh) for s in layouts.entering],
        [None if s is None else on_mesh(s, mesh) for s in layouts.leaving],
        None if found.fixed else placement.groups or (0,) * len(found.given),  # types say what goes where
        Planning(cost_on(placement.hardware, mesh), placement.thorough, typed),
        given.cheapest,
    )
    return replace(given, program=chosen.local.program, cheapest=chosen)


def combine(given: Compilation) -> Compilation:
    """The program of one device with collectives taken together."""
    chosen = given.cheapest
    assert chosen is not None
    local = chosen.combined or combined(chosen.local)
    return replace(given, program=local.program, local=local)


def overlap(given: Compilation) -> Compilation:
    """The program of one device with collectives beside matmuls, where the caller asks for it."""
    assert given.local is not None and given.placement is not None and given.placement.overlap is not None
    local = overlapped(given.local, given.placement.overlap)
    return replace(given, program=local.program, local=local)


def placed(done: Compilation) -> PartitionedProgram:
    """What is known of a program that went through the stages of `PARTITION`."""
    found, layouts, chosen, local = done.inlined, done.layouts, done.cheapest, done.local
    assert found is not None and layouts is not None and chosen is not None and local is not None
    return PartitionedProgram(
        local.whole,
        local.program,
        found.placement.mesh,
        tuple(closed(s).to_named() for s in layouts.entering),
        tuple(_as_given(s, left).to_named() for s, left in zip(local.out_shardings, layouts.leaving, strict=True)),
        tuple(_collective(one, local.mesh) for one in local.records),
        layouts.propagated,
        layouts.propagated.program,
        found.placement,
        done.out_tree,
        local.moved,
        local.written(),
        found.whole,
        found.vars,
        found.out_types,
        chosen.instead,
        done,
    )


def partitioned(start: Compilation) -> PartitionedProgram:
    """A program that was traced for a mesh, partitioned."""
    return placed(run_stages(PARTITION, start))


class OtherShardings(NamedTuple):
    """Other shardings: of arguments and results by their numbers, of constraints by those of their equations."""

    arguments: Mapping[int, NamedSharding] = {}
    results: Mapping[int, NamedSharding] = {}
    constraints: Mapping[int, NamedSharding] = {}


def changed(program: PartitionedProgram, changes: OtherShardings) -> PartitionedProgram:
    """The program partitioned anew with other shardings: what `jit` would make of them, though the program is not
    traced again, and read again only if constraints in it are others."""
    found, source = program.compilation.inlined, program.source
    assert found is not None
    given, asked, eqns = list(found.given), list(found.asked), list(source.eqns)
    for index, sharding in changes.arguments.items():
        given[index] = sharding.to_tensor_sharding(source.inputs[index].type.ndim)
    for index, sharding in changes.results.items():
        asked[index] = sharding.to_tensor_sharding(found.out_types[index].ndim)
    for index, sharding in changes.constraints.items():
        eqn = eqns[index]
        eqns[index] = Eqn(eqn.op, eqn.inputs, {**eqn.params, "spec": sharding.spec}, eqn.outputs, eqn.source)
    if changes.constraints:
        source = replace(source, eqns=tuple(eqns))
    # Which of several layouts is the cheapest may be another one now.
    start = replace(
        program.compilation,
        program=source,
        inlined=found._replace(given=tuple(given), asked=tuple(asked)),
        layouts=None if changes.constraints else program.compilation.layouts,
        cheapest=None,
    )
    return placed(run_stages(PARTITION[1:], start))


def _tensor_shardings(
    shardings: Sequence[NamedSharding | None], types: Sequence[TensorType]
) -> tuple[TensorSharding | None, ...]:
    found = zip(shardings, types, strict=True)
    return tuple(None if s is None else s.to_tensor_sharding(t.ndim) for s, t in found)


def _as_given(found: TensorSharding, wanted: TensorSharding | None) -> TensorSharding:
    """The sharding of a result, on the mesh that it was asked for on, or that propagation found it on."""
    if wanted is None or wanted.mesh == found.mesh:
        return found
    return closed(wanted) if wanted.is_equivalent_to(found) else found


def _where(place: Any) -> str:
    """The line on which a sharding was written; that of the call, if it was only a spec."""
    source = place.source if isinstance(place, NamedSharding) else user_source() if place is not None else None
    return str(source or "")


def _check_maps(program: Program, mesh: BaseMesh) -> None:
    """Raise if a shard_map in the program is over other devices than the mesh that the program runs on has."""
    for eqn in program.eqns:
        if eqn.op.structure is Structure.DEVICE and prod(size for _, size in eqn.params["mesh"]) != mesh.size:
            raise MeshError(
                "One program names two meshes.",
                where=eqn.source.show() if eqn.source else here(),
                why=f"it runs on {mesh}, and a shard_map in it is over "
                + ", ".join(f"{name}={size}" for name, size in eqn.params["mesh"]),
                fix="mw.device_put(x, mw.NamedSharding(mesh, spec)) with the mesh of the shard_map",
            )
        for _, region in eqn.regions():
            _check_maps(region, mesh)


def _out_sharding(place: Any, t: TensorType) -> TensorSharding:
    spec = place.spec if isinstance(place, NamedSharding) else place
    if isinstance(spec, PartitionSpec) and len(spec) > t.ndim:
        raise ShardingError(
            f"A result {t} cannot go out as {spec}.",
            where=here(),
            why=f"the spec has {len(spec)} dims, the result {t.ndim}",
            fix=f"out_shardings={pasted(spec.update(spec.partitions[: t.ndim], unreduced=()))}",
        )
    found = sharding_for(place, t.shape)
    assert isinstance(found, NamedSharding)
    return found.to_tensor_sharding(t.ndim)


def _collective(record: CollectiveRecord, mesh: BaseMesh) -> Collective:
    why = record.why.text if record.why is not None else "the program asks for it"
    implicit = record.why is not None and not record.why.asked
    return Collective(
        record.kind, record.axes, record.bytes_received_per_device, record.total_bytes, record.source, why,
        implicit, record.values, record.times, record.volume, mesh, record.overlap, record.within,
        record.shift, record.loops, record.why, record.result,
    )  # fmt: skip


def written_collectives(program: Program) -> tuple[Collective, ...]:
    """The collectives in the shard_maps of a program that nobody put on a mesh."""
    program = inline_calls(program, shard_maps=False)
    found: list[Collective] = []
    numbers = count()
    for eqn in program.eqns:
        if eqn.op.structure is Structure.DEVICE:
            mesh = AbstractMesh.of_parts(eqn.params["mesh"])
            listed = records(eqn.params["body"], dict(eqn.params["mesh"]), {}, {}, numbers=numbers)
            found += [_collective(record, mesh) for record in listed]
    return tuple(found)
