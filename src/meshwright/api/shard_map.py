"""shard_map: a function written for one device, run by all devices of a mesh, each on its own blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from itertools import pairwise
from typing import Any

import optree

from meshwright.api.axis_names import AxisCutNeeded, manual_axes
from meshwright.arrays.tracing import TracedFunction, check_function, leaf_value, trace_flat
from meshwright.core import dtypes, tree
from meshwright.core.source import here
from meshwright.core.trace import Array, Manual, Mapped, Value, make_varying, state
from meshwright.core.types import TensorType, union
from meshwright.errors import MeshError, MeshwrightError, ShardingError, TreeError, VarianceError
from meshwright.ops.collective import pinvariant
from meshwright.ops.layout import laid_out
from meshwright.sharding.axes import AxisRef, merged
from meshwright.sharding.explicit import spec_of
from meshwright.sharding.mesh import BaseMesh, Mesh, get_mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.single_device import one_device
from meshwright.sharding.spec import PartitionSpec, entry_axes, pasted, read_axis
from meshwright.transform.regions import shard_map as op

Function = Callable[..., Any]
Cuts = frozenset[tuple[str, int, int]]  # parts of axes: name, what lies before, size


def shard_map(
    f: Function | None = None,
    *,
    mesh: BaseMesh | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    auto_pbroadcast: bool = True,
    axis_names: Iterable[str] | None = None,
    check_vma: bool = True,
    check_rep: bool = True,
) -> Any:
    """``f``, written for one device, run on every device of a mesh.

    ``in_specs`` says how each argument is cut into blocks, ``out_specs`` how results are put together: a ``P``, or a
    tree of them that is a prefix of the arguments. Axes that a spec does not name leave the value whole: all devices
    get the same, and must return the same. ``P(sum="i")`` sums what the devices return. Without ``in_specs`` arguments
    come in as they lie on the mesh. ``axis_names`` are the axes that ``f`` is written for (all, if not given). With
    ``auto_pbroadcast=False`` every ``lax.pbroadcast`` is yours to write. With ``check_vma=False`` all values vary over
    all axes, as if each device knew of itself alone: nothing is asked of results, a gradient taken inside is each
    device's own, and the transpose of a psum is a psum.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> @mw.shard_map(mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P())
    ... def total(x):
    ...     return lax.psum(x.sum(), "i")
    >>> float(total(mnp.arange(8.0)))
    28.0
    """
    axis_names = _names(axis_names)
    given = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs, "auto_pbroadcast": auto_pbroadcast,
             "axis_names": axis_names, "check_vma": check_vma, "check_rep": check_rep}  # fmt: skip
    if f is None:
        return partial(shard_map, **given)
    check_function(f, "shard_map")
    if out_specs is None:
        raise _no_specs("out_specs")

    @wraps(f)
    def mapped(*args: Any, **keywords: Any) -> Any:
        if keywords:
            raise MeshwrightError(
                f"A function under shard_map is called with {', '.join(f'{name}=…' for name in keywords)}.",
                where=here(),
                why="in_specs has one entry for each argument by position",
                fix=f"pass {', '.join(keywords)} by position",
            )
        return _Call(f, _mesh(mesh), axis_names, in_specs, out_specs, auto_pbroadcast, check_vma and check_rep)(args)

    return mapped


def shmap(*args: Any, **options: Any) -> Any:
    """``shard_map`` with the specs by position: ``shmap(f, in_specs, out_specs)``, also through ``partial``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.set_mesh(mw.make_mesh((8,), ("i",))).__enter__().size
    8
    >>> shmap(lambda x: mw.lax.psum(x, "i"), mw.P("i"), mw.P())(mnp.arange(8.0)).tolist()
    [28.0]
    >>> _ = mw.set_mesh(None)
    """
    functions = [x for x in args if callable(x)]
    specs = [x for x in args if not callable(x)]
    if len(functions) > 1 or len(specs) > 2:
        raise ShardingError(
            f"shmap is given {len(functions)} functions and {len(specs)} specs.",
            where=here(),
            why="it takes a function, in_specs and out_specs",
            fix="mw.shmap(f, mw.P('i'), mw.P())",
        )
    options = {**dict(zip(("in_specs", "out_specs"), specs, strict=False)), **options}
    return shard_map(*functions, **options) if functions else partial(shmap, **options)


def _names(axis_names: Any) -> tuple[Any, ...] | None:
    if axis_names is None or isinstance(axis_names, str):
        return None if axis_names is None else (axis_names,)
    try:
        return tuple(axis_names)
    except TypeError:
        raise MeshError(
            f"shard_map is given axis_names={axis_names!r}.",
            where=here(),
            why="they are the names of the mesh axes that the function is written for",
            fix="axis_names={'i'}",
        ) from None


def _mesh(given: BaseMesh | None) -> BaseMesh:
    enclosing = state.manual.mesh if state.manual is not None else None
    mesh = given if given is not None else enclosing if enclosing is not None else get_mesh()
    if not isinstance(mesh, BaseMesh) or mesh.empty:
        raise MeshError(
            "shard_map has no mesh." if given is None else f"shard_map is given {given!r} as its mesh.",
            where=here(),
            why="none was given, and none is current" if given is None else "it is not a mesh with devices",
            fix="mesh=mw.make_mesh((8,), ('i',)), or mw.set_mesh(mesh) before the call",
        )
    if enclosing is not None and dict(mesh.shape) != dict(enclosing.shape):
        raise MeshError(
            f"shard_map is given the mesh {mesh} inside of a shard_map over {enclosing}.",
            where=here(),
            why="both are about the same devices",
            fix="leave out mesh=, and name the axes of the inner one: axis_names={…}",
        )
    return mesh


def _manual_names(mesh: BaseMesh, axis_names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The axes that the function is written for, in the order of the mesh."""
    taken = tuple(state.manual.axes) + tuple(state.manual.parts) if state.manual is not None else ()
    if not axis_names:
        names = tuple(name for name in mesh.axis_names if name not in taken)
    else:
        for name in axis_names:
            if name not in mesh.axis_names or name in taken:
                raise MeshError(
                    f"shard_map's axis_names has {name!r}.",
                    where=here(),
                    why="an enclosing shard_map works over it already"
                    if name in taken
                    else f"the mesh has the axes {', '.join(mesh.axis_names)}",
                    fix=_free_axes([n for n in mesh.axis_names if n not in taken]),
                )
        names = tuple(name for name in mesh.axis_names if name in axis_names)
    if not names:
        raise MeshError(
            "shard_map has no mesh axis to work over.",
            where=here(),
            why=f"enclosing shard_maps work over all axes of the mesh: {', '.join(mesh.axis_names)}",
            fix=_free_axes([]),
        )
    return names


def _free_axes(names: Sequence[str]) -> str:
    if not names:
        return "leave the inner shard_map out, or leave it an axis: axis_names={…} in the outer one"
    return f"axis_names={{{', '.join(map(repr, names))}}}"


class _Call:
    """One call: the mesh with its axes cut where parts of them are named, and the specs in these terms."""

    def __init__(
        self,
        function: Function,
        mesh: BaseMesh,
        axis_names: tuple[str, ...] | None,
        in_specs: Any,
        out_specs: Any,
        automatic: bool,
        checked: bool,
    ) -> None:
        self.function = function
        self.mesh = mesh
        self.names = _manual_names(mesh, axis_names)
        self.in_specs, self.out_specs = in_specs, out_specs
        self.automatic, self.checked = bool(automatic), bool(checked)
        self.cuts: Cuts = frozenset()

    def __call__(self, args: tuple[Any, ...]) -> Any:
        leaves, in_tree = tree.flatten((args, {}))
        labels = tree.argument_names(args)
        values = [leaf_value(x, f"{label} of shard_map") for x, label in zip(leaves, labels, strict=True)]
        if self.in_specs is None:
            specs = [_own_spec(x, self.names) for x in values]
        else:
            prefix = self.in_specs if isinstance(self.in_specs, PartitionSpec) else _as_tuple(self.in_specs, args)
            specs = _specs_for(prefix, args, "in_specs")
        while True:
            try:
                return self.run(values, labels, specs, in_tree)
            except AxisCutNeeded as needed:
                if needed.cut[0] not in self.names:  # an enclosing shard_map's
                    raise
                self.cuts |= {needed.cut}

    def run(self, values: list[Value], labels: list[str], specs: list[Any], in_tree: tree.TreeDef) -> Any:
        if state.meshes is not None and isinstance(self.mesh, Mesh):
            state.meshes.append(Mapped(self.mesh))
        manual, axes = self.manual()
        in_specs = [
            self.spec(spec, x.type, label, manual, "in_specs")
            for spec, x, label in zip(specs, values, labels, strict=True)
        ]
        if isinstance(self.mesh, Mesh):
            places = [*(x._sharding for x in values if x.__class__ is Array), NamedSharding(self.mesh, PartitionSpec())]
            one_device("The arguments and the mesh of a shard_map", places)
        types = [_block(x.type, spec, axes, label) for x, spec, label in zip(values, in_specs, labels, strict=True)]
        written: list[PartitionSpec] = []  # the specs of results as the user wrote them, one for each
        out_specs: list[PartitionSpec] = []

        def body(*args: Any) -> Any:
            with _running(manual):
                result = self.function(*(args if self.checked else self.made_varying(args)))
                leaves, out_tree = tree.flatten(result)
                outs = [leaf_value(x, "a result of the function") for x in leaves]
                written[:] = _specs_for(self.out_specs, result, "out_specs")
                names = tree.path_names(result)
                out_specs[:] = [
                    self.spec(spec, x.type, f"the result{f' {name}' if name else ''}", manual, "out_specs")
                    for spec, x, name in zip(written, outs, names, strict=True)
                ]
                outs = [self.taken_as_same(x, spec) for x, spec in zip(outs, out_specs, strict=True)]
                found = [self.leave(x, s, n) for x, s, n in zip(outs, out_specs, names, strict=True)]
            return tree.unflatten(out_tree, found)

        traced = trace_flat(body, in_tree, types)
        _check_captured(traced)
        outs = op.shard_map(
            *traced.captured, *values,
            body=traced.program, mesh=axes, manual=self.here(manual),
            in_specs=(*_captured_specs(traced), *in_specs), out_specs=tuple(out_specs),
        )  # fmt: skip
        written = [_joined(spec, self.mesh) for spec in written]
        if isinstance(self.mesh, Mesh):
            for x, spec in zip(outs, written, strict=True):
                if x.__class__ is Array:
                    x._sharding = NamedSharding(self.mesh, spec)
                    x.type = x._sharding.typed(x.type)
        if self.mesh.explicit_mesh is not None and state.manual is None:
            placed = [NamedSharding(self.mesh, spec).typed(x.type) for x, spec in zip(outs, written, strict=True)]
            outs = [laid_out(x, t) for x, t in zip(outs, placed, strict=True)]
        return tree.unflatten(traced.out_tree, outs)

    # Axes

    def manual(self) -> tuple[Manual, op.MeshAxes]:
        """What the function can know, and the axes of the mesh as the program has them."""
        outer = state.manual
        parts = {name: _cut_axis(name, self.mesh.shape[name], self.cuts) for name in self.names}
        axes = {axis: size for found in parts.values() for axis, size in found}
        level = state.builder.level + 1 if state.builder is not None else 0
        cut = {name: tuple(axis for axis, _ in found) for name, found in parts.items() if len(found) > 1}
        manual = Manual(
            self.mesh,
            {**(outer.axes if outer else {}), **axes},
            {**(outer.level if outer else {}), **dict.fromkeys(axes, level)},
            {**(outer.parts if outer else {}), **cut},
            self.automatic,
            self.checked,
        )
        whole = [
            part
            for name, size in self.mesh.shape.items()
            for part in (parts.get(name) or _outer_parts(name, size, outer))
        ]
        return manual, tuple(whole)

    def here(self, manual: Manual) -> tuple[str, ...]:
        """The axes of this shard_map, in the order of the mesh."""
        return tuple(axis for name in self.names for axis in manual.parts.get(name, (name,)))

    # Specs

    def spec(self, spec: Any, t: TensorType, what: str, manual: Manual, argument: str) -> PartitionSpec:
        """A spec in terms of the axes of the program, checked against the value it is for."""
        if not isinstance(spec, PartitionSpec):
            raise ShardingError(
                f"shard_map's {argument} has {spec!r} for {what}.",
                where=here(),
                why="how a value is cut is said by a partition spec",
                fix="mw.P('i'), or mw.P() for a value that is the same on all devices",
            )

        def axes(names: Iterable[str]) -> list[str]:
            return [axis for name in names for axis in self.axes(name, spec, what, manual, argument)]

        found = PartitionSpec(
            *(tuple(axes(entry_axes(entry))) or None for entry in spec.partitions),
            unreduced=axes(sorted(spec.unreduced)),
            replicated=axes(sorted(spec.replicated)),
        )
        used = [*op.split_axes(found), *found.unreduced, *found.replicated]
        twice = next((axis for axis in used if used.count(axis) > 1), None)
        if twice is not None:
            raise ShardingError(
                f"shard_map's {argument} has {spec} for {what}.",
                where=here(),
                why=f"it names the mesh axis {twice!r} twice",
                fix="name each axis once in a spec",
            )
        if len(spec.partitions) > t.ndim:
            fix = pasted(spec.closed().update(spec.closed().partitions[: t.ndim]))
            if argument == "out_specs" and spec.partitions[t.ndim] is not None:
                fix = "return x[None]: the dim to join along" + (f", or {fix}" if not t.varying else "")
            raise ShardingError(
                f"shard_map's {argument} has {spec} for {what}, which is {t}.",
                where=here(),
                why=f"a spec has at most one entry per dim, and the value has {t.ndim or 'none'}",
                fix=fix,
            )
        if not spec.is_closed:
            open_dim = PartitionSpec.UNCONSTRAINED in spec.partitions
            raise ShardingError(
                f"shard_map's {argument} has {spec} for {what}.",
                where=here(),
                why="inside a shard_map every dim is cut as its spec says",
                fix="None instead of P.UNCONSTRAINED" if open_dim else f"mw.{spec.closed()!r}",
            )
        return found

    def axes(self, name: str, spec: PartitionSpec, what: str, manual: Manual, argument: str) -> tuple[str, ...]:
        own = Manual(self.mesh, {axis: manual.axes[axis] for axis in self.here(manual)}, {}, manual.parts, True)
        try:
            return manual_axes(name, own, "a spec")
        except MeshError as error:
            taken = state.manual is not None and name in (*manual.axes, *manual.parts)
            raise ShardingError(
                f"shard_map's {argument} has {spec} for {what}: there is no mesh axis {name!r} to cut it along.",
                where=here(),
                why="an enclosing shard_map has cut along it already" if taken else error.why,
                fix=f"leave {name!r} out of the spec" if taken else error.fix,
            ) from None

    def made_varying(self, args: Any) -> Any:
        """Arguments that vary over all axes, so that their cotangents are each device's own inside of the function."""
        assert state.manual is not None
        mine = self.here(state.manual)
        return tree.map(lambda x: make_varying(x, union((x.type.varying, mine))), args)

    def taken_as_same(self, x: Value, spec: PartitionSpec) -> Value:
        """Without checks, a result that its spec says is the same along an axis is what the first device returns."""
        manual = state.manual
        assert manual is not None
        extra = [a for a in x.type.varying if a in self.here(manual) and a not in op.varying_axes(spec)]
        if self.checked or not extra:
            return x
        return pinvariant(x, axes=tuple(extra), sizes=tuple(manual.axes[a] for a in extra))  # type: ignore[no-any-return]

    def leave(self, x: Value, spec: PartitionSpec, name: str) -> Value:
        """A result as its spec wants it, or an error if it differs between devices that must return the same."""
        assert state.manual is not None
        wanted = op.varying_axes(spec)
        mine = self.here(state.manual)
        extra = tuple(axis for axis in x.type.varying if axis in mine and axis not in wanted)
        label = f"Result{f' {name}' if name else ''}"
        if extra:
            axes = repr(extra[0] if len(extra) == 1 else extra)
            example = f": out_specs=mw.P({axes})" if not spec.partitions else ""
            raise VarianceError(
                f"{label} of the function is {x.type}, but out_specs has {spec}.",
                where=here(),
                why=f"it may differ between devices along {', '.join(extra)}; by the spec all return the same",
                fix=f"lax.psum(x, {axes}) or lax.pmean(x, {axes}) if it is a sum or a mean over devices\n"
                + (f"lax.all_gather_invariant(x, {axes}) if every device needs all of it\n" if x.ndim else "")
                + ("or" if x.ndim else "or return x[None], and")
                + f" name {axes} in the spec to join what the devices return{example}",
            )
        if spec.unreduced and x.dtype == dtypes.BOOL:
            raise VarianceError(
                f"{label} of the function is {x.type}, but out_specs has {spec}.",
                where=here(),
                why="a sum of bools is not a bool",
                fix="x.astype('int32'), whose sum counts",
            )
        missing = tuple(axis for axis in wanted if axis not in x.type.varying)
        if missing and not self.automatic:
            axes = repr(missing[0] if len(missing) == 1 else missing)
            raise VarianceError(
                f"{label} of the function is {x.type}, but out_specs has {spec}.",
                where=here(),
                why=f"it is the same on all devices along {', '.join(missing)}",
                fix=f"lax.pbroadcast(x, {axes}), or leave {axes} out of the spec",
            )
        return make_varying(x, union((x.type.varying, wanted)))  # type: ignore[no-any-return]


def _no_specs(name: str) -> ShardingError:
    return ShardingError(
        f"shard_map needs {name}.",
        where=here(),
        why="they say how arguments are cut and results put together",
        fix=f"{name}=mw.P('i'), or mw.P() for what is the same on all devices",
    )


def _own_spec(x: Value, names: Sequence[str]) -> PartitionSpec:
    """How a value lies over the axes of a shard_map: as its type says, or the sharding of an array."""
    placed = x._sharding if x.__class__ is Array else None
    if x.type.sharding is not None:
        spec = spec_of(x.type)
    elif isinstance(placed, NamedSharding):
        spec = placed.spec
    elif x.ndim == 0 or placed is not None:
        spec = PartitionSpec()
    else:
        raise _no_specs("in_specs")
    entries = [tuple(a for a in entry_axes(entry) if read_axis(a).name in names) for entry in spec.partitions]
    return PartitionSpec(*(entry or None for entry in entries), unreduced=spec.unreduced)


def _check_captured(traced: TracedFunction) -> None:
    unreduced = next((x.type for x in traced.captured if x.type.unreduced), None)
    if unreduced is not None:
        raise VarianceError(
            f"A function under shard_map closes over a value {unreduced.short()}.",
            where=here(),
            why="each device holds a summand of it, and what a function closes over comes in whole",
            fix=f"make it an argument with in_specs=mw.{PartitionSpec(unreduced=unreduced.unreduced)!r},"
            " or sum it first: mw.reshard(x, mw.P())",
        )


def _captured_specs(traced: TracedFunction) -> list[PartitionSpec]:
    return [PartitionSpec()] * len(traced.captured)


def _outer_parts(name: str, size: int, outer: Manual | None) -> list[tuple[str, int]]:
    if outer is not None and name in outer.parts:
        return [(axis, outer.axes[axis]) for axis in outer.parts[name]]
    return [(name, size)]


def _cut_axis(name: str, size: int, cuts: Cuts) -> list[tuple[str, int]]:
    """An axis as the parts it is cut into, from major to minor, with their sizes."""
    places = sorted({1, size} | {n for axis, before, part in cuts if axis == name for n in (before, before * part)})
    for low, high in pairwise(places):
        if high % low:
            raise ShardingError(
                f"Parts of the mesh axis {name!r} overlap without dividing each other.",
                where=here(),
                why=f"one ends at {low}, another at {high}, and {low} does not divide {high}",
                fix="parts that begin where others end, such as 'x:(1)2' and 'x:(2)4'",
            )
    if len(places) <= 2:
        return [(name, size)]
    return [(f"{name}:({low}){high // low}", high // low) for low, high in pairwise(places)]


def _joined(spec: PartitionSpec, mesh: BaseMesh) -> PartitionSpec:
    """A spec in which parts of axes that continue each other are one, as a sharding has them."""

    def axes(names: Iterable[str]) -> tuple[AxisRef, ...]:
        found = [(read_axis(name), mesh.shape[read_axis(name).name]) for name in names]
        return merged(AxisRef(axis.name, axis.pre or 1, axis.size or whole, whole) for axis, whole in found)

    def entry(names: Any) -> Any:
        return names if names is None else axes((names,) if isinstance(names, str) else names)

    def together(names: Iterable[str]) -> tuple[AxisRef, ...]:
        return merged(sorted((ref for name in names for ref in axes([name])), key=lambda ref: (ref.name, ref.pre)))

    return PartitionSpec(
        *map(entry, spec.partitions), unreduced=together(spec.unreduced), replicated=together(spec.replicated)
    )


def _block(t: TensorType, spec: PartitionSpec, axes: op.MeshAxes, label: str) -> TensorType:
    try:
        return op.block_type(t, spec, axes)
    except MeshwrightError as error:
        raise type(error)(
            f"shard_map cannot take {label}: {error.what}", where=here(), why=error.why, fix=error.fix
        ) from None


@contextmanager
def _running(manual: Manual) -> Iterator[None]:
    before, state.manual = state.manual, manual
    try:
        yield
    finally:
        state.manual = before


def _as_tuple(specs: Any, args: Sequence[Any]) -> Any:
    return tuple(specs) if isinstance(specs, list) and len(specs) == len(args) else specs


def _specs_for(specs: Any, target: Any, name: str) -> list[Any]:
    """One spec per leaf of ``target``, from a prefix of its tree."""
    try:
        found = optree.broadcast_prefix(specs, target, none_is_leaf=False, namespace=tree.NAMESPACE)
    except RecursionError:
        raise tree.too_deep() from None
    except ValueError:
        what = "arguments" if name == "in_specs" else "results"
        shown = tree.outline(specs, "P")
        none = ", and mw.P() instead of None for what is the same on all devices" if "None" in shown else ""
        raise TreeError(
            f"shard_map's {name} does not fit the {what}.",
            where=here(),
            why=f"{name} is {shown}, and the {what} are {tree.outline(target, '*')}",
            fix=f"{name}=mw.P(…) for all, or one entry per {what[:-1]}{none}",
        ) from None
    return list(found)
