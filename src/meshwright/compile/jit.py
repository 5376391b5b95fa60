"""jit: trace once per argument types, compile once, then call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import update_wrapper
from types import MethodType
from typing import Any, NamedTuple

from meshwright.arrays.tracing import (
    ShapeDtypeStruct,
    TracedFunction,
    argument_numbers,
    check_function,
    is_of_jax,
    leaf_type,
    leaf_value,
    trace_flat,
    typed_by_jax,
)
from meshwright.compile.compiled import Compiled, JitCall, Lowered, TracedCall
from meshwright.compile.direct import WrittenCall, called_by
from meshwright.compile.engines import check_engine
from meshwright.compile.executable import Executable, keep_on_devices
from meshwright.compile.placement import NOWHERE, Placement, Where
from meshwright.compile.stages import SIMPLIFY, Compilation, StageRecord, run_stages
from meshwright.core import dtypes, tree
from meshwright.core.collection import no_collection
from meshwright.core.current import current_engine, current_mesh, written_below
from meshwright.core.op import Op
from meshwright.core.program import Params, Program, below
from meshwright.core.source import Source, here, traced_apart, traced_source
from meshwright.core.trace import Array, Mapped, Tracer, leaked, run, set_left_open, set_places, state, to_array
from meshwright.core.types import TensorType
from meshwright.engine.chunks import Repeated
from meshwright.errors import MeshError, MeshwrightError, StaticError

Function = Callable[..., Any]
Static = tuple[int | str, type, Any]  # a place, and the value with its type: 1, 1.0 and True differ
Statics = tuple[Static, ...]


class Donated(NamedTuple):
    """The donated arguments, by position and by name: a caller may pass them either way."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]


def _as_laid_out(where: Where, types: Sequence[TensorType]) -> Any:
    """What a program depends on of where its arguments are: the same for shardings that are written differently."""
    placement, device = where
    if placement is None:
        return device
    laid_out = [s and s.to_tensor_sharding(t.ndim) for s, t in zip(placement.in_shardings, types, strict=True)]
    return device, placement.mesh, placement.others, *laid_out


class Jitted:
    """A function compiled for each combination of argument types it meets."""

    def __init__(
        self,
        fun: Function,
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        donate: Donated,
        in_shardings: Any,
        out_shardings: Any,
        overlap: Any,
        thorough: bool,
        hardware: Any,
        engine: str | None,
    ) -> None:
        update_wrapper(self, fun)
        self.fun = fun
        self.in_shardings = in_shardings
        self.out_shardings = out_shardings
        self.overlap = overlap
        self.thorough = thorough
        self.hardware = hardware
        self.engine = engine
        self.static_argnums = static_argnums
        self.static_argnames = static_argnames
        self.donate = donate
        self._compiled: dict[Any, Executable] = {}
        self._alike: dict[Any, Executable] = {}  # the same by what they depend on
        self._written: dict[Any, WrittenCall | None] = {}  # calls on arrays, from the second of a kind on
        self._last: tuple[Any, ...] = (None,)  # what the last call depended on, and what was called
        self._traced: dict[Any, TracedInside] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._general(args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A jitted function in a class is a method."""
        return self if instance is None else MethodType(self, instance)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call on any arguments."""
        if current_engine.disabled:
            return self.fun(*args, **kwargs)
        statics: Statics = ()
        if self.static_argnums or self.static_argnames:
            statics, args, kwargs = self._separate(args, kwargs)
        leaves, in_tree = tree.flatten((args, kwargs))
        if state.builder is not None:
            return self._inline(leaves, in_tree, statics)
        data, types, places = [], [], []
        for x in leaves:
            value = x if x.__class__ is Array else _concrete(x, args, kwargs)
            contents = value._data
            data.append(value.data if contents is None or contents.__class__ is Repeated else contents)
            types.append(value.type)
            places.append(value._sharding)
        engine = self.engine or current_engine.name
        settings = (in_tree, statics, dtypes.config._enable_x64, current_mesh.get(), engine)
        if self._last[:-1] == (settings, types, places):  # which finds the same objects, most often
            compiled = self._last[-1]
        else:
            compiled = self._compiled_for(args, kwargs, settings, places, types)
        self._last = settings, types, places, compiled
        if engine == "xla":
            keep_on_devices(leaves, data, places)
        if not kwargs:
            kinds = *map(type, leaves), *map(type, data)
            self._write_direct(compiled, (*settings, *places, *types, *kinds), args, leaves, data)
        if compiled.donated:
            del contents, value  # which refer to the last argument
            compiled.take(leaves, data)
        return compiled.run(data)

    def _compiled_for(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: tuple[Any, ...],
        places: Sequence[Any],
        types: Sequence[TensorType],
    ) -> Executable:
        """What was compiled for all that a call depends on, now if it was not before."""
        in_tree, statics, _, _, engine = settings
        key = (*settings, *places, *types)
        compiled = self._compiled.get(key)
        if compiled is None:
            where = self._where(args, kwargs, statics, places, types)
            alike = (*settings, *types, _as_laid_out(where, types))
            compiled = self._alike.get(alike)
            if compiled is None:
                with typed_by_jax(tree.leaves((args, kwargs))):
                    start, stages, device = self._start(in_tree, statics, types, where)
                compiled = self._alike[alike] = Executable(replace(start, engine=engine), stages, device)
            self._compiled[key] = compiled
        return compiled

    def _write_direct(
        self,
        compiled: Executable,
        key: tuple[Any, ...],
        args: tuple[Any, ...],
        leaves: Sequence[Any],
        data: Sequence[Any],
    ) -> None:
        """Let the next call on arrays like these be a direct one, if it can and this is not the first."""
        if not compiled.may_be_direct(leaves, data):
            return
        if key not in self._written:
            self._written[key] = None
            return
        if self._written[key] is None:
            engine = None if self.engine is not None else compiled.engine
            statics = {place: value for place, _, value in key[1] if isinstance(place, int)}
            self._written[key] = compiled.written_for(tree.structure(args), leaves, data, statics, engine)
        called_by(self, self._written[key])

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function traced for these arguments (arrays, or ``ShapeDtypeStruct``s in their place).

        >>> import meshwright.numpy as mnp
        >>> print(jit(lambda x: x * 2).lower(mnp.ones(3)).program.to_text(sources=False))
        program(a: f32[3]) {
          b: f32[3] = mul a 2.0
          return b
        }
        """
        statics, args, kwargs = self._separate(args, kwargs)
        given, in_tree = tree.flatten((args, kwargs))
        leaves = [_standing_for(x) if is_of_jax(x) else x for x in given]
        types = tuple(leaf_type(x) for x in leaves)
        places = [x._sharding if x.__class__ is Array else getattr(x, "sharding", None) for x in leaves]
        where = self._where(args, kwargs, statics, places, types)
        with typed_by_jax(given):
            start, stages, device = self._start(in_tree, statics, types, where)
            context, wide = copy_context(), dtypes.config._enable_x64
        name = getattr(self.fun, "__name__", "function")
        parameters = self._parameters(statics, len(args))
        shapes_alone = any(isinstance(x, ShapeDtypeStruct) for x in leaves)

        def again(inside: AbstractContextManager[Any]) -> Compilation | None:
            def traced() -> Compilation:
                with inside:
                    return self._start(in_tree, statics, types, where)[0]

            return context.copy().run(traced) if dtypes.config._enable_x64 == wide else None

        call = JitCall(name, parameters, in_tree, start.out_tree, start.placement, again)

        def compiled(engine: str | None) -> Compiled:
            chosen = replace(start, engine=engine or self.engine or current_engine.name)
            return Compiled(Executable(chosen, stages, device, shapes_alone), in_tree, types, call.parameters, call)

        return Lowered(compiled, start.program, call)

    def trace(self, *args: Any, **kwargs: Any) -> TracedCall:
        """The function traced for these arguments: ``.lower().compile()`` goes on from there.

        >>> import meshwright.numpy as mnp
        >>> jit(lambda x: x * 2).trace(mnp.ones(3)).out_info
        ShapeDtypeStruct(shape=(3,), dtype=float32)
        """
        return TracedCall(self.lower(*args, **kwargs), args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and dtypes of the results for these arguments."""
        return self.trace(*args, **kwargs).out_info

    def clear_cache(self) -> None:
        """Forget what was compiled."""
        called_by(self, None)
        for kept in (self._compiled, self._alike, self._written, self._traced):
            kept.clear()

    def _separate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Statics, tuple[Any, ...], dict[str, Any]]:
        """The static arguments, as hashable values with their places, and the others."""
        for n in self.static_argnums:
            if n < -len(args):  # only a function of any number of arguments is given a position from the end
                raise MeshwrightError(
                    f"jit is given argument {n}, and the call has {len(args)} positional arguments.",
                    where=here(),
                    why="static_argnums counts them from 0, or from -1 at the end",
                    fix=f"a position between {-len(args)} and {max(len(args) - 1, 0)}",
                )
        numbers = [n % len(args) for n in self.static_argnums if n < len(args)]
        statics: list[Static] = [(n, type(args[n]), args[n]) for n in numbers]
        statics += [(name, type(kwargs[name]), kwargs[name]) for name in self.static_argnames if name in kwargs]
        for place, _, value in statics:
            try:
                hash(value)
            except TypeError:
                raise StaticError(
                    f"The static argument {place!r} cannot be hashed: its type is {type(value).__name__}.",
                    where=here(),
                    why="a static argument is part of the key under which the compiled function is kept",
                    fix="pass a tuple instead of a list, or do not mark the argument static",
                ) from None
        rest = tuple(x for n, x in enumerate(args) if n not in numbers)
        return tuple(statics), rest, {k: v for k, v in kwargs.items() if k not in self.static_argnames}

    def _parameters(self, statics: Statics, count: int) -> list[str]:
        """What the function calls its first ``count`` positional arguments that are not static."""
        static = [place for place, _, _ in statics if isinstance(place, int)]
        try:
            found = inspect.signature(self.fun).parameters.values()
        except (TypeError, ValueError):
            return []
        names = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        rest = next((p.name for p in found if p.kind is p.VAR_POSITIONAL), None)
        if rest is not None:
            names += [f"{rest}[{n}]" for n in range(count + len(static) - len(names))]
        return [name for n, name in enumerate(names) if n not in static]

    def _with_statics(self, statics: Statics) -> Function:
        if not statics:
            return self.fun
        at = {place: value for place, _, value in statics if isinstance(place, int)}
        named = {place: value for place, _, value in statics if isinstance(place, str)}

        def function(*args: Any, **kwargs: Any) -> Any:
            rest = iter(args)
            full = [at[n] if n in at else next(rest) for n in range(len(args) + len(at))]
            return self.fun(*full, **kwargs, **named)

        return function

    def _where(
        self, args: Any, kwargs: Any, statics: Statics, places: Sequence[Any], types: Sequence[TensorType]
    ) -> Where:
        """Where arguments are and results go, as far as anybody says."""
        nowhere = self.in_shardings is None and self.out_shardings is None and all(place is None for place in places)
        if nowhere and current_mesh.get() is None:
            return NOWHERE
        from meshwright.compile.partitioning import placement_of

        shapes = [t.shape for t in types]
        names = self._parameters(statics, len(args)) if kwargs else []
        return placement_of(args, kwargs, names, places, shapes, self.in_shardings, self.out_shardings)

    def _start(
        self, in_tree: tree.TreeDef, statics: Statics, types: Sequence[TensorType], where: Where
    ) -> tuple[Compilation, list[StageRecord], Any]:
        """The function traced and simplified, with the record of that, and the one device that it runs on, if any."""
        traced, where = self._trace(in_tree, statics, types, where)
        donated = _donated_leaves(in_tree, self.donate, statics)
        records: list[StageRecord] = []
        start = Compilation(traced.closed, traced.out_tree, donated, where.on_mesh, device=where.device)
        return run_stages(SIMPLIFY, start, records), records, where.device

    @traced_apart
    @no_collection()
    def _trace(
        self, in_tree: tree.TreeDef, statics: Statics, types: Sequence[TensorType], where: Where
    ) -> tuple[TracedFunction, Where]:
        """The traced function, and where things are: a mesh that only the function itself names counts, too."""
        placement, device = where
        before = state.meshes, state.mesh
        state.meshes, state.mesh = [], None
        if placement is not None:
            from meshwright.arrays.explicit import typed

            types = typed(types, placement.in_shardings)
        try:
            traced = trace_flat(self._with_statics(statics), in_tree, types)
            # Arrays from outside whose layout is part of their type.
            state.meshes += [x._sharding.mesh for x in traced.captured if x.__class__ is Array and x.type.sharding]
            meshes = [one for one in state.meshes if not isinstance(one, Mapped)]
            mapped = {str(one.mesh): one.mesh for one in state.meshes if isinstance(one, Mapped)}
            if not meshes and len(mapped) == 1:  # several shard_maps can be over a mesh each, which then none is on
                meshes = list(mapped.values())
            if placement is None and meshes:
                from meshwright.compile.partitioning import on_one_device

                on_one_device([device], meshes[:1])
                placement = Placement(meshes[0], (None,) * len(types), None)
            if placement is not None:
                if len(mapped) == 1:  # what is written for the devices of a mesh runs on it, if all are views of them
                    from meshwright.compile.partitioning import views

                    (named,) = mapped.values()
                    if named.explicit_mesh is None and all(views(named, mesh) for mesh in (placement.mesh, *meshes)):
                        placement = placement._replace(mesh=named)
                if any(str(mesh) != str(placement.mesh) for mesh in meshes):
                    _check_devices(placement.mesh, meshes)
                    state.mesh = placement.mesh
                    traced = trace_flat(self._with_statics(statics), in_tree, types)
                placement = placement._replace(
                    overlap=self.overlap,
                    thorough=self.thorough,
                    hardware=self.hardware,
                    others=(*placement.others, *meshes),
                )
        finally:
            state.meshes, state.mesh = before
        return traced, Where(placement, device if placement is None else None)

    def _inline(self, leaves: Sequence[Any], in_tree: tree.TreeDef, statics: Statics) -> Any:
        """Inside another trace: add this function's equations to it, tracing it once per argument types."""
        values = [leaf_value(x, "an argument of a jitted function") for x in leaves]
        found = trace_inside(self._traced, self._with_statics(statics), in_tree, statics, [x.type for x in values])
        program = found.called_from(state.source or traced_source())
        return tree.unflatten(found.traced.out_tree, run(program, [*found.traced.captured, *values]))


def trace_inside(
    kept: dict[Any, TracedInside], fun: Function, in_tree: tree.TreeDef, statics: Any, types: Sequence[TensorType]
) -> TracedInside:
    """A function traced inside of another, once for all that its program depends on, unless it closes over values of
    the trace around it."""
    around = None if state.manual is None else state.manual.key
    settings = dtypes.config._enable_x64, current_mesh.get(), written_below.get()
    key = (in_tree, statics, *settings, around, state.mesh, *types)
    found = kept.get(key)
    if found is None:
        outer, state.meshes = state.meshes, []
        try:
            apart = traced_apart(trace_flat)(fun, in_tree, types)
            found = TracedInside(apart, state.meshes, {})
        finally:
            state.meshes = outer
        if all(isinstance(x, Array) for x in found.traced.captured):
            kept[key] = found
    if state.meshes is not None:
        state.meshes += found.meshes
    return found


class TracedInside(NamedTuple):
    """A function traced inside of another: the meshes it names, and its program by the line that calls it."""

    traced: TracedFunction
    meshes: list[Any]
    by_caller: dict[int, tuple[Source, Program]]

    def called_from(self, caller: Source | None) -> Program:
        """The program, its lines reached from the one that calls it."""
        if caller is None:
            return self.traced.program
        if id(caller) not in self.by_caller:
            self.by_caller[id(caller)] = caller, below(self.traced.program, caller)
        return self.by_caller[id(caller)][1]


def _check_devices(mesh: Any, named: Sequence[Any]) -> None:
    """Several meshes of a program are views of the same devices, which types tell apart where axes are Explicit."""
    from meshwright.compile.partitioning import views

    for other in named:
        if str(other) == str(mesh):  # though the types of its axes may be seen differently
            continue
        if not views(mesh, other):
            typed = mesh.has_devices_of(other)
            raise MeshError(
                "One program names two meshes.",
                where=here(),
                why=f"it runs on {mesh}, and a constraint in it is about {other}"
                + (", and types do not tell the two apart" if typed else ", which has other devices"),
                fix="mw.NamedSharding(mesh, spec) with one mesh for all, or two jitted functions",
            )


def _standing_for(x: Any) -> ShapeDtypeStruct:
    from meshwright.interop.jaxpr.arguments import standing_for

    return standing_for(x)


def _concrete(x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Array:
    """A leaf of the arguments as an array; the arguments are there to name it in an error."""
    try:
        if is_of_jax(x):
            from meshwright.interop.jaxpr.arguments import array_of

            value = array_of(x)
        else:
            value = to_array(x)
    except (MeshwrightError, TypeError, ValueError):
        found = zip(tree.leaves((args, kwargs)), tree.argument_names(args, kwargs), strict=True)
        value = leaf_value(x, next(name for leaf, name in found if leaf is x))
    if isinstance(value, Tracer):
        raise leaked(value)  # no trace is going on, so its own is over
    assert isinstance(value, Array)
    return value


def _donated_leaves(in_tree: tree.TreeDef, donate: Donated, statics: Statics) -> tuple[bool, ...]:
    """Which leaves belong to a donated argument; ``donate`` counts the arguments as the user wrote them."""
    if not donate.numbers and not donate.names:
        return ()
    args, kwargs = tree.unflatten(in_tree, range(in_tree.num_leaves))  # trees of the numbers of their leaves
    static = {place for place, _, _ in statics if isinstance(place, int)}
    total = len(args) + len(static)
    numbers = {n + total if n < 0 else n for n in donate.numbers}
    places = [n for n in range(total) if n not in static]
    donated = [arg for place, arg in zip(places, args, strict=True) if place in numbers]
    donated += [arg for name, arg in kwargs.items() if name in donate.names]
    found = set(tree.leaves(donated))
    return tuple(n in found for n in range(in_tree.num_leaves))


def jit(
    fun: Function | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    overlap: Any = None,
    thorough: bool = False,
    hardware: Any = None,
    engine: str | None = None,
) -> Any:
    """Compile ``fun`` for the types of its arguments, once for each combination.

    Static arguments are Python values the function may branch on; the contents of donated ones may be overwritten.
    ``overlap`` puts gathers and reduce-scatters beside the matmuls next to them where that pays on a machine (the name
    of a chip, a `hardware.Topology`), or always (True); see `Overlap`. Values are laid out in whole axes and in parts
    that you wrote; ``thorough`` tries layouts in other parts, too, which may move less and takes longer. Layouts are
    chosen for the least time on ``hardware`` (a chip's name, a `hardware.Topology`); without it, for arrays so large
    that the time in which collectives start does not count. ``engine`` is what runs it, by default that of
    `set_engine`: ``"numpy"`` runs all devices in this process, ``"xla"`` the code of each device on a real one.

    >>> import meshwright.numpy as mnp
    >>> @jit
    ... def f(x):
    ...     return mnp.sum(x * 2)
    >>> float(f(mnp.ones(3)))
    6.0
    """
    if fun is None:
        return lambda f: jit(
            f,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            overlap=overlap,
            thorough=thorough,
            hardware=hardware,
            engine=engine,
        )
    check_function(fun, "jit")
    check_engine(engine)
    numbers, names = _match_names(fun, _ints(static_argnums), _strings(static_argnames))
    donate = Donated(*_match_names(fun, _ints(donate_argnums), _strings(donate_argnames)))
    if set(numbers) & set(donate.numbers) or set(names) & set(donate.names):
        raise MeshwrightError(
            f"jit is given one argument as static and as donated: {_shown(numbers, names, donate)}.",
            where=here(),
            why="a static argument is a Python value, and a donated one an array",
            fix="leave it out of donate_argnums and donate_argnames",
        )
    if in_shardings is not None or out_shardings is not None:
        from meshwright.arrays.device_put import check_places

        check_places(tree.leaves((in_shardings, out_shardings)))
    if overlap is not None:
        from meshwright.partition.overlap.matmuls import read_overlap

        overlap = read_overlap(overlap)
    if hardware is not None:
        from meshwright.hardware.machines import check_machine

        check_machine(hardware, "program", "hardware")
    return Jitted(fun, numbers, names, donate, in_shardings, out_shardings, overlap, bool(thorough), hardware, engine)


@contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Inside, jitted functions run op by op, and Python sees their values.

    >>> f = jit(lambda x: print("x is", x))
    >>> with disable_jit():
    ...     f(1.0)
    x is 1.0
    """
    current_engine.disabled += bool(disable)
    try:
        yield
    finally:
        current_engine.disabled -= bool(disable)


def _on_its_mesh(op: Op, operands: Sequence[Array], params: Params) -> Any:
    """An op computed by each device on its block, whose results are summands."""
    return jit(lambda *xs: op(*xs, **params))(*operands)


set_left_open(_on_its_mesh)


def _places(op: Op, operands: Sequence[Array], types: Sequence[TensorType], params: Params) -> Sequence[Any]:
    """Where the results of an op that is computed at once are."""
    if current_mesh.get() is None and all(
        x._sharding is None or not getattr(x._sharding, "committed", True) for x in operands
    ):
        return [None] * len(types)
    from meshwright.propagate.eager import places  # no program without a mesh needs to load it

    return places(op, operands, types, params)


set_places(_places)


def _shown(numbers: Sequence[int], names: Sequence[str], donate: Donated) -> str:
    both = [*sorted(set(names) & set(donate.names)), *sorted(set(numbers) & set(donate.numbers))]
    return repr(both[0])


def _ints(given: int | Sequence[int] | None) -> tuple[int, ...]:
    return () if given is None else argument_numbers(given, "jit", "positions of arguments")


def _strings(given: str | Sequence[str] | None) -> tuple[str, ...]:
    several = isinstance(given, list | tuple | set | frozenset)
    names: tuple[Any, ...] = () if given is None else tuple(given) if several else (given,)
    for name in names:
        if not isinstance(name, str):
            raise MeshwrightError(
                f"jit is given {name!r} as the name of an argument.",
                where=here(),
                why="static_argnames and donate_argnames are strings",
                fix="static_argnames=('config',)",
            )
    return names


def _match_names(
    fun: Function, numbers: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The positions and the names of arguments given as either."""
    if not numbers and not names:
        return (), ()
    try:
        declared = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return numbers, names
    every = {p.name for p in declared}
    parameters = [p.name for p in declared if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in declared)
    named = any(p.kind is p.VAR_KEYWORD for p in declared)
    places = f"{fun.__name__} takes {', '.join(parameters)}" if hasattr(fun, "__name__") else str(parameters)
    for n in numbers:
        if not -len(parameters) <= n < len(parameters) and not variadic:
            raise MeshwrightError(
                f"jit is given argument {n}, which the function does not have.",
                where=here(),
                why=places,
                fix=f"a position between 0 and {max(len(parameters) - 1, 0)}",
            )
    for name in names:
        if name not in every and not named:
            raise MeshwrightError(
                f"jit is given argument {name!r}, which the function does not have.",
                where=here(),
                why=places,
                fix="the name of one of its arguments",
            )
    # With any number of arguments, positions from the end are counted when the function is called.
    found = {n % len(parameters) if n < 0 and not variadic else n for n in numbers}
    found |= {parameters.index(name) for name in names if name in parameters}
    both = {parameters[n] for n in found if 0 <= n < len(parameters)} | set(names)
    return tuple(sorted(found)), tuple(sorted(both))
