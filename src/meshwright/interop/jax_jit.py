"""``jit`` for functions of JAX: JAX traces them, the program is partitioned here, and XLA runs it on JAX's arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, update_wrapper
from typing import Any, NamedTuple

from meshwright.api.microbatched import checked_arguments, microbatched
from meshwright.arrays.tracing import ShapeDtypeStruct
from meshwright.compile.compiled import Compiled, Lowered
from meshwright.compile.jit import jit as jit_here
from meshwright.core import tree
from meshwright.core.dtypes import config
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.engine.device_arrays import needed
from meshwright.engine.xla import OnDevices, on_devices, runner
from meshwright.errors import DonatedError, MeshError, MeshwrightError, ShapeError, ShardingError, TreeError
from meshwright.interop.jaxpr.reader import Reader, type_of_aval
from meshwright.interop.jaxpr.shardings import named
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import entry_axes

SETTINGS = (
    "enable_x64", "threefry_partitionable", "default_prng_impl", "numpy_rank_promotion", "numpy_dtype_promotion",
    "default_matmul_precision", "enable_custom_prng", "legacy_prng_key", "debug_nans", "disable_jit",
)  # fmt: skip

TRANSFORMS = (
    ("JVP", "differentiated", "jax.grad(f)"),
    ("Linearize", "differentiated", "jax.grad(f)"),
    ("Batch", "batched", "jax.vmap(f)"),
)  # what the names of JAX's tracers have in them, what that means, and what to write


def jit(
    f: Callable[..., Any],
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    hardware: Any = None,
    microbatches: int = 1,
    batch_args: int | Sequence[int] = (),
) -> JaxJitted:
    """A function of JAX as one that is partitioned here: it takes and returns JAX's arrays, in the containers of ``f``.

    The arguments are those of ``jax.jit``, and the ``hardware`` of ``mw.jit``, for which layouts are chosen. Arrays on
    a mesh say where they are, as they do there; shardings are JAX's, or those of this package.
    ``lower(*args).compile()`` can be asked what ``mw.jit`` can: ``explain()``, ``collectives``, ``memory()``,
    ``simulate(...)``. Under ``jax.jit`` it is one op, without a derivative: take ``jax.grad`` inside of ``f``.
    With ``microbatches`` the arguments at ``batch_args`` come in so many parts, as by `mw.microbatched`.

    >>> import jax, jax.numpy as jnp
    >>> f = jit(lambda w, x: jnp.tanh(x @ w).sum())
    >>> print(f"{f(jnp.ones((2, 2)), jnp.ones((3, 2))):.4f}")
    5.7842
    """
    needed()
    if microbatches != 1 and batch_args == ():
        raise MeshwrightError(
            f"There are {microbatches!r} microbatches, and no batch.",
            where=here(),
            why="batch_args are the positions of the arguments whose first dim is the batch",
            fix="batch_args=1",
        )
    return JaxJitted(
        f, in_shardings, out_shardings, _numbers(donate_argnums), _numbers(static_argnums), static_argnames, hardware,
        Microbatches(microbatches, _numbers(batch_args)),
    )  # fmt: skip


class Microbatches(NamedTuple):
    """In how many parts a batch comes, and the positions of the arguments that have it."""

    parts: int
    arguments: tuple[int, ...]


class JaxCall(NamedTuple):
    """A call without its static arguments: the leaves, their containers, and what the rest is."""

    leaves: list[Any]
    containers: Any
    static: tuple[Any, ...]


class JaxExecutable(NamedTuple):
    """A call that was compiled: what runs it, alone and while JAX traces something larger."""

    found: OnDevices
    run: Callable[..., tuple[Any, ...]]
    order: tuple[int, ...]
    keys: tuple[bool, ...]  # which leaves are keys, whose numbers are given
    out_tree: Any
    out_keys: tuple[str | None, ...]

    def __call__(self, leaves: Sequence[Any]) -> Any:
        import jax

        if any(self.keys):
            leaves = [jax.random.key_data(x) if is_key else x for x, is_key in zip(leaves, self.keys, strict=True)]
        values = [leaves[n] for n in self.order]
        if {_array_class()}.issuperset(map(type, values)):
            traced = False
            _check_there(values)
        else:
            traced = any(isinstance(x, jax.core.Tracer) for x in values)
        outs = self.found.inside(*values) if traced else self.run(*values)
        if any(self.out_keys):
            outs = [x if kind is None else jax.random.wrap_key_data(x, impl=kind)
                    for x, kind in zip(outs, self.out_keys, strict=True)]  # fmt: skip
        return jax.tree.unflatten(self.out_tree, outs)


class CompiledForJax:
    """What ``lower(*args).compile()`` returns: it runs on JAX's arrays, and answers what ``mw.Compiled`` does."""

    def __init__(self, compiled: Compiled, split: Callable[..., JaxCall], call: JaxCall, ready: JaxExecutable) -> None:
        self._compiled, self._split, self._call, self._ready = compiled, split, call, ready

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, made_for = self._split(args, kwargs), self._call
        if (call.containers, call.static) != (made_for.containers, made_for.static):
            raise TreeError(
                "This compiled function cannot take these arguments.",
                where=here(),
                why="it was compiled for others: containers, names or static values differ",
                fix="f(*args), which compiles for what it is given",
            )
        if [_shape(x) for x in call.leaves] != [_shape(x) for x in made_for.leaves]:
            raise ShapeError(
                f"This compiled function cannot take ({', '.join(map(_shape, call.leaves))}).",
                where=here(),
                why=f"it was compiled for ({', '.join(map(_shape, made_for.leaves))})",
                fix="f(*args), which compiles for what it is given",
            )
        return self._ready(call.leaves)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


class LoweredForJax:
    """What ``lower(*args)`` returns: the program that JAX traced, as read here."""

    def __init__(self, lowered: Lowered, compile: Callable[[], CompiledForJax]) -> None:
        self._lowered, self.compile = lowered, compile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


class JaxJitted:
    """A function of JAX, partitioned here for each combination of arguments it meets."""

    def __init__(
        self,
        function: Callable[..., Any],
        in_shardings: Any,
        out_shardings: Any,
        donated: tuple[int, ...],
        static_numbers: tuple[int, ...],
        static_names: str | Sequence[str],
        hardware: Any,
        microbatches: Microbatches,
    ) -> None:
        update_wrapper(self, function)
        self._hardware, self._microbatches = hardware, microbatches
        self._function = function
        self._in_shardings, self._out_shardings = in_shardings, out_shardings
        names = (static_names,) if isinstance(static_names, str) else tuple(static_names)
        self._parameters = _parameter_names(function)
        count = len(self._parameters)
        static_numbers = tuple(n + count if n < 0 else n for n in static_numbers)
        self._donated = tuple(n + count if n < 0 else n for n in donated)
        self._static_names = {*names, *(self._parameters[n] for n in static_numbers if n < len(self._parameters))}
        self._static_numbers = {*static_numbers, *(self._parameters.index(n) for n in names if n in self._parameters)}
        self._ready: dict[Any, JaxExecutable] = {}
        self._last: tuple[Any, ...] = (None,)  # what the last call depended on, and what was called

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._split(args, kwargs)
        settings = call.containers, call.static, _settings()
        if {_array_class()}.issuperset(map(type, call.leaves)):
            types, places = [x.aval for x in call.leaves], [x.sharding for x in call.leaves]
            if self._last[:-1] == (settings, types, places):  # which finds the same objects, most often
                return self._last[-1](call.leaves)
        else:
            types, places = map(list, zip(*map(_kind, call.leaves), strict=True)) if call.leaves else ([], [])
        key = *settings, *types, *places
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready[key] = self.lower(*args, **kwargs).compile()._ready
        self._last = settings, types, places, ready
        return ready(call.leaves)

    def lower(self, *args: Any, **kwargs: Any) -> LoweredForJax:
        """The function traced by JAX for arguments like these: arrays, or ``jax.ShapeDtypeStruct``s."""
        import jax

        call = self._split(args, kwargs)
        traced = jax.jit(
            self._function,
            keep_unused=True,
            static_argnums=tuple(sorted(self._static_numbers)),
            static_argnames=tuple(sorted(self._static_names)),
        ).trace(*jax.tree.map(_without_sharding, args), **jax.tree.map(_without_sharding, kwargs))
        closed = traced.jaxpr
        in_types = [type_of_aval(aval) for aval in closed.in_avals]
        theirs = self._argument_shardings(call, args)
        results = _broadcast(self._out_shardings, traced.out_info, "out_shardings")
        mesh = _only_mesh([*theirs, *results])
        devices = _devices_of(call.leaves) if mesh is None else list(mesh.devices.flat)
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(_unflattened(call))[0]]
        names, nested, order = _by_name(paths, self._names_of(args))
        donated = {self._names_of(args, static=True)[n] for n in self._donated if n < len(args)}
        flat = _flat(Reader().function(closed), names, order, getattr(self, "__name__", "f"))
        if self._microbatches.parts != 1:
            flat = microbatched(flat, self._microbatches.parts, batch_args=self._batch(args, paths, nested))
        jitted = jit_here(
            flat,
            out_shardings=tuple(_ours(s, mesh) for s in results) if any(s is not None for s in results) else None,
            donate_argnums=tuple(n for n, name in enumerate(names) if name in donated),
            hardware=self._hardware,
        )
        with kept_wide([*in_types, *(type_of_aval(aval) for aval in closed.out_avals)]):
            types = [ShapeDtypeStruct(t.shape, t.dtype, sharding=_ours(s, mesh))
                     for t, s in zip(in_types, theirs, strict=True)]  # fmt: skip
            ours = jitted.lower(*tree.map(lambda n: types[n], nested))

        def compile() -> CompiledForJax:
            compiled = ours.compile()
            placed = compiled._executable.placed
            found = on_devices(
                compiled.global_program if placed is None else placed.program,
                placed is not None,
                devices,
            )
            wanted = [*(theirs[n] for n in order), *results]
            reached = [*[None] * len(order), *compiled.out_shardings]
            types = [*found.program.in_types, *found.program.out_types]
            found = found._replace(
                shardings=tuple(map(_on_mesh(mesh), found.shardings, wanted, reached, types)),
                weak=tuple(aval.weak_type for aval in traced.jaxpr.out_avals),
            )
            out_leaves, out_tree = jax.tree.flatten(traced.out_info)
            ready = JaxExecutable(
                found,
                runner(found, compiled.donated).function,
                order,
                tuple(_is_key(x) for x in call.leaves),
                out_tree,
                tuple(_key_kind(x.dtype) for x in out_leaves),
            )
            return CompiledForJax(compiled, self._split, call, ready)

        return LoweredForJax(ours, compile)

    def _split(self, args: Sequence[Any], kwargs: dict[str, Any]) -> JaxCall:
        import jax

        static = [(n, type(args[n]), args[n]) for n in sorted(self._static_numbers) if n < len(args)]
        named = [(name, type(kwargs[name]), kwargs[name]) for name in sorted(self._static_names) if name in kwargs]
        rest = tuple(x for n, x in enumerate(args) if n not in self._static_numbers)
        rest_named = {name: x for name, x in kwargs.items() if name not in self._static_names}
        leaves, containers = jax.tree.flatten((rest, rest_named))
        return JaxCall(leaves, containers, (*static, *named))

    def _names_of(self, args: Sequence[Any], static: bool = False) -> list[str]:
        """What the arguments by position are called, those that are static included or not."""
        known = [*self._parameters, *(f"argument{n}" for n in range(len(self._parameters), len(args)))]
        return [known[n] for n in range(len(args)) if static or n not in self._static_numbers]

    def _batch(self, args: Sequence[Any], paths: Sequence[Any], nested: Sequence[Any]) -> list[int]:
        """Which of the named arguments are the batch."""
        asked = checked_arguments(self._microbatches.arguments, len(args), getattr(self, "__name__", "f"))
        moving = [n for n in range(len(args)) if n not in self._static_numbers]
        mine = {n for n, path in enumerate(paths) if path[0].idx == 0 and moving[path[1].idx] in asked}
        return [k for k, part in enumerate(nested) if mine.intersection(tree.leaves(part))]

    def _argument_shardings(self, call: JaxCall, args: Sequence[Any]) -> list[Any]:
        """Where arguments are to be: as asked for, or else where they are."""
        if self._in_shardings is None:
            return [_sharding_of(x) for x in call.leaves]
        rest = _unflattened(call)[0]
        wanted = self._in_shardings
        if isinstance(wanted, tuple) and len(wanted) == len(args) != len(rest):
            wanted = tuple(s for n, s in enumerate(wanted) if n not in self._static_numbers)
        asked = _broadcast(wanted, rest, "in_shardings")
        where = [*asked, *[None] * (len(call.leaves) - len(asked))]
        return [_sharding_of(x, asked=s) for x, s in zip(call.leaves, where, strict=True)]


@cache
def _array_class() -> type:
    """The class of JAX's arrays that have contents."""
    import jax

    with jax.ensure_compile_time_eval():  # whoever asks first may be traced
        return type(jax.numpy.zeros(()))


def _check_there(values: Sequence[Any]) -> None:
    """Refuse arrays that were donated: of these, JAX ends the process where they are on several devices."""
    for x in values:
        if x.is_deleted():
            raise DonatedError(
                f"This array {_shape(x)} was donated to a jitted function and no longer has contents.",
                where=here(),
                why="donate_argnums lets the function overwrite its argument",
                fix="use the function's result instead, or do not donate this argument",
            )


def _settings() -> tuple[Any, ...]:
    """What JAX is told that changes the programs it traces."""
    import jax

    return tuple(getattr(jax.config, f"jax_{name}", None) for name in SETTINGS)


def _numbers(numbers: int | Sequence[int]) -> tuple[int, ...]:
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _kind(x: Any) -> Any:
    """What a call is compiled for."""
    import jax

    if not isinstance(x, jax.core.Tracer):
        return jax.typeof(x), getattr(x, "sharding", None)
    _refuse_transforms(x)
    return jax.typeof(x), None


def _shape(x: Any) -> str:
    import jax

    return str(jax.typeof(x).update(weak_type=False) if hasattr(x, "dtype") else jax.typeof(x))


def _sharding_of(x: Any, asked: Any = None) -> Any:
    """Where an argument is, if nothing else is asked for."""
    import jax

    if asked is not None:
        return asked
    if isinstance(x, jax.core.Tracer):
        if len(jax.devices()) > 1:
            raise ShardingError(
                "Under jax.jit the function must say where its arguments are.",
                where=here(),
                why="JAX decides where the values of its program are after it was traced",
                fix="mw.interop.jax.jit(f, in_shardings=...)",
            )
        return None
    return getattr(x, "sharding", None)


def _refuse_transforms(x: Any) -> None:
    """Refuse the tracers of ``jax.grad`` and ``jax.vmap``, for which there is no program yet to be partitioned."""
    for kind, what, instead in TRANSFORMS:
        if kind in type(x).__name__:
            raise MeshwrightError(
                f"A function that is partitioned here is not {what} by JAX.",
                where=here(),
                why="for JAX it is one op, of which only the code is known",
                fix=f"mw.interop.jax.jit({instead})",
            )


def _without_sharding(x: Any) -> Any:
    """A leaf as JAX is to trace it: by its type, where it is does not count."""
    import jax

    if isinstance(x, jax.Array | jax.ShapeDtypeStruct):  # tracers are arrays, too
        struct: Any = jax.ShapeDtypeStruct
        return struct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
    return x


def _unflattened(call: JaxCall) -> Any:
    import jax

    return jax.tree.unflatten(call.containers, call.leaves)


def _broadcast(prefix: Any, containers: Any, what: str) -> list[Any]:
    """The leaf of the prefix for each leaf of the containers; None where nothing is asked for."""
    import jax

    if prefix is None:
        return [None] * len(jax.tree.leaves(containers))
    try:
        found = jax.tree.broadcast(prefix, containers, is_leaf=lambda x: x is None)
    except ValueError as error:
        raise MeshwrightError(
            f"{what} does not fit what it is for.",
            where=here(),
            why=str(error).splitlines()[0],
            fix=f"{what}=sharding for all, or containers like those of the arguments or results",
        ) from None
    return jax.tree.leaves(found, is_leaf=lambda x: x is None)


def _devices_of(leaves: Sequence[Any]) -> list[Any] | None:
    """The one device that arguments were put onto, None if they were put nowhere."""
    import jax

    put = [x for x in leaves if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.committed]
    found = {device for x in put for device in x.devices()}
    if len(found) > 1:
        raise MeshError(
            f"The arguments are on {len(found)} devices, and on no mesh.",
            where=here(),
            why=", ".join(sorted(map(str, found))),
            fix="jax.device_put(x, jax.sharding.NamedSharding(mesh, spec)) for all, or one device for all",
        )
    return list(found) or None


def _only_mesh(shardings: Sequence[Any]) -> Any:
    """The mesh of JAX that all are on, None if there is none."""
    import jax

    found = []
    for sharding in shardings:
        if isinstance(sharding, jax.sharding.NamedSharding) and sharding.mesh not in found:
            found.append(sharding.mesh)
    if len(found) > 1:
        raise MeshError(
            f"The arguments are on {len(found)} meshes.",
            where=here(),
            why=", and on ".join(f"{dict(mesh.shape)}" for mesh in found),
            fix="jax.device_put(x, jax.sharding.NamedSharding(mesh, spec)) with one mesh for all",
        )
    return found[0] if found else None


def _ours(sharding: Any, mesh: Any) -> NamedSharding | None:
    """A sharding of JAX as one of this package; None for what is on no mesh."""
    import jax

    if sharding is None or isinstance(sharding, NamedSharding):
        return sharding
    if isinstance(sharding, jax.sharding.PartitionSpec):
        if mesh is None:
            raise MeshError(
                f"{sharding} is on no mesh.",
                where=here(),
                why="none of the arguments is on one",
                fix="jax.sharding.NamedSharding(mesh, spec)",
            )
        sharding = jax.sharding.NamedSharding(mesh, sharding)
    return None if isinstance(sharding, jax.sharding.SingleDeviceSharding) else named(sharding)


def _on_mesh(mesh: Any) -> Callable[..., Any]:
    """The sharding that an array has in a program, as its user has it: the one asked for, or one on the user's mesh."""
    import jax

    spec_of: Any = jax.sharding.PartitionSpec

    def said(sharding: Any, asked: Any, reached: NamedSharding | None, t: TensorType) -> Any:
        candidates = [asked if isinstance(asked, jax.sharding.NamedSharding) else None]
        if mesh is not None and reached is not None:
            spec = list(reached.spec.partitions)
            while spec and spec[-1] is None:
                spec.pop()
            if {axis for entry in spec for axis in entry_axes(entry)} <= {*mesh.axis_names}:
                candidates.append(jax.sharding.NamedSharding(mesh, spec_of(*spec)))
        return next((c for c in candidates if c is not None and c.is_equivalent_to(sharding, t.ndim)), sharding)

    return said


@contextmanager
def kept_wide(types: Sequence[TensorType]) -> Iterator[None]:
    """Numbers of 64 bits stay so, if a program takes or returns some."""
    before = config.enable_x64
    wide = any(t.dtype.itemsize == (16 if t.dtype.kind == "c" else 8) for t in types)
    config.update("enable_x64", before or wide)
    try:
        yield
    finally:
        config.update("enable_x64", before)


def _by_name(paths: Sequence[Any], positional: Sequence[str]) -> tuple[list[str], list[Any], tuple[int, ...]]:
    """The names of arguments, each argument as dicts of the numbers of its leaves (so that leaves are called as their
    users call them, whatever the containers are), and the order in which these come."""
    nested: dict[str, Any] = {}
    if len({_text(path, positional) for path in paths}) < len(paths):  # keys that are written alike
        return [f"leaf{n}" for n in range(len(paths))], list(range(len(paths))), tuple(range(len(paths)))
    for n, path in enumerate(paths):
        inside, steps = nested, _text(path, positional)
        for step in steps[:-1]:
            inside = inside.setdefault(step, {})
        inside[steps[-1]] = n
    return list(nested), list(nested.values()), tuple(tree.leaves(list(nested.values())))


def _text(path: Any, positional: Sequence[str]) -> tuple[str, ...]:
    """The steps to a leaf as text, from the name of its argument on."""
    of_args = getattr(path[0], "idx", 0) == 0
    return (positional[path[1].idx] if of_args else path[1].key, *map(_step, path[2:]))


def _step(entry: Any) -> str:
    """One step of JAX's path to a leaf, as text: the keys of a dict must be of one kind."""
    return str(next(getattr(entry, name) for name in ("key", "idx", "name") if hasattr(entry, name)))


def _flat(read: Callable[..., Any], names: Sequence[str], order: Sequence[int], name: str) -> Callable[..., Any]:
    """A function of named arguments, in the order that JAX has them, that runs JAX's program."""

    def flat(*nested: Any) -> Any:
        leaves = dict(zip(order, tree.leaves(list(nested)), strict=True))
        return tuple(read(*(leaves[n] for n in range(len(leaves)))))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    flat.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    flat.__name__ = name
    return flat


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and _key_kind(x.dtype) is not None


def _key_kind(dtype: Any) -> str | None:
    """How random keys of a dtype make their numbers, None for numbers."""
    import jax

    dtypes: Any = jax.dtypes
    if not dtypes.issubdtype(dtype, dtypes.prng_key):
        return None
    short = str(dtype).removeprefix("key<").removesuffix(">")
    return {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}.get(short, short)
