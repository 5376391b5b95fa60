"""Kernels written here, run by JAX's Pallas.

A kernel is a Python function of refs; what makes it ours are the names it uses: ``pl``, ``pltpu``, ``lax``, ``mnp``.
``to_jax`` makes the same function (the same code object) with JAX's modules under those names, in its globals, closures
and defaults, and in those of the functions it calls. Nothing is written anew, so a kernel that JAX runs is the kernel
that runs here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from meshwright.arrays.tracing import ShapeDtypeStruct
from meshwright.core import tree
from meshwright.core.source import here, is_users
from meshwright.core.trace import Array
from meshwright.errors import WITH_JAX, MeshwrightError
from meshwright.kernel.calling import Given
from meshwright.kernel.language.body import trace
from meshwright.kernel.language.indexing import Slice
from meshwright.kernel.language.spaces import MemorySpace, MemoryType, Semaphores, SemaphoreType, semantics
from meshwright.kernel.pipeline.blocks import Blocked, BlockSpec, BoundedSlice, Buffered, Element, Indirect, Squeezed


def to_jax(call: Callable[..., Any], *, interpret: Any = True) -> Callable[..., Any]:
    """A function of JAX arrays that runs by JAX's Pallas a kernel of ours, as ``pl.pallas_call`` returned it.

    Also of a function that calls kernels, as those of ``meshwright.pallas.ops`` do: JAX may differentiate it, and call
    it in a ``shard_map``. ``interpret`` is JAX's: True runs on a CPU, False compiles for the device that is there.
    Where a kernel uses what JAX has not, an error says so.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> def double(x_ref, out_ref):
    ...     out_ref[...] = mnp.where(x_ref[...] > 1, x_ref[...] * 2, 0)
    >>> call = pl.pallas_call(double, out_shape=mw.ShapeDtypeStruct((3,), mnp.float32))
    >>> print(call(mnp.arange(3.0)), to_jax(call)(mnp.arange(3.0)))
    [0. 0. 4.] [0. 0. 4.]
    """
    given = getattr(call, "given", None)
    if not isinstance(given, Given) and not isinstance(call, FunctionType | functools.partial):
        raise MeshwrightError(
            f"to_jax is given {call!r}.",
            where=here(),
            why="it takes a kernel as pl.pallas_call returns it, or a function that calls kernels",
            fix="mw.interop.pallas.to_jax(pl.pallas_call(kernel, out_shape, …))",
        )
    if find_spec("jax") is None:
        raise MeshwrightError("JAX is not installed.", fix=WITH_JAX)
    import jax

    theirs = _Theirs(interpret)
    concrete = jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError

    whole: Any = None if isinstance(given, Given) else theirs.of(call)

    def function(*args: Any, **named: Any) -> Any:
        arrays = tree.map(lambda x: np.asarray(x) if isinstance(x, Array) else x, args)
        made = whole or theirs.call(call.given, args)  # type: ignore[attr-defined]
        try:
            return made(*arrays, **theirs.of(named))
        except (*concrete, jax.errors.ConcretizationTypeError) as error:
            raise MeshwrightError(
                "The kernel asks for a number that JAX does not have while it reads the kernel.",
                why="JAX runs a body once for all grid steps and devices; only here it is run for each, on values\n"
                + str(error).splitlines()[0],
                fix="pl.when(condition), lax.cond, lax.fori_loop or pl.loop in the place of if, for and int()",
            ) from error

    return function


class _ModuleNames:
    """A module of JAX in the place of one of ours; ``own`` are names that mean the same and are spelled otherwise."""

    def __init__(self, title: str, modules: Sequence[Any], own: dict[str, Any]) -> None:
        self._title = title
        self._modules = modules
        self._own = own

    def __getattr__(self, name: str) -> Any:
        for module in (self._own, *map(vars, self._modules)):
            if name in module:
                return module[name]
        for one in self._modules:  # what a module loads on first use
            if hasattr(one, name):
                return getattr(one, name)
        raise _lacking(f"{self._title}.{name}")


class _Converted:
    """The library of kernels, whose functions are as a user would write them, with JAX's names in them."""

    def __init__(self, title: str, of: Callable[[Any], Any]) -> None:
        self._title = title
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return self._of(getattr(import_module(self._title), name))


def _lacking(
    name: str,
    why: str = "the kernel runs on our machine alone",
    fix: str = "call what pl.pallas_call returned, without to_jax",
) -> MeshwrightError:
    return MeshwrightError(f"JAX has no {name}.", where=here(), why=why, fix=fix)


class _Theirs:
    """JAX's counterparts of objects of ours; an object that has none is left as it is."""

    def __init__(self, interpret: Any) -> None:
        import jax
        import jax.experimental.pallas as pl
        import jax.experimental.pallas.tpu as pltpu
        import jax.numpy as jnp

        self.jax, self.pl, self.pltpu, self.interpret = jax, pl, pltpu, interpret
        spaces = {space.name: self._space(space) for space in MemorySpace if space.name in dir(pltpu)}
        spaces["ANY"] = pl.ANY
        own = {"BlockSpec": self._block_spec, "load": _load, "store": _store, "pallas_call": self._pallas_call}
        ours_pl = _ModuleNames("pl", [pl, pltpu], own)
        ours_pltpu = _ModuleNames(
            "pltpu",
            [pltpu, pl],
            {
                "ANY": pl.ANY,
                "TPUMemorySpace": _ModuleNames("pltpu.TPUMemorySpace", [], spaces),
                "TPUCompilerParams": pltpu.CompilerParams,
                "emit_pipeline": self._emit_pipeline,
                "emit_pipeline_with_allocations": _no_allocations,
                "trace": jax.named_scope,
            },
        )
        self.modules: dict[str, Any] = {
            "meshwright.pallas": ours_pl,
            "meshwright.pallas.tpu": ours_pltpu,
            "meshwright.lax": jax.lax,
            "meshwright.numpy": jnp,
            "meshwright.nn": jax.nn,
        }
        nested = {"lax": jax.lax, "nn": jax.nn, "numpy": jnp, "pallas": ours_pl, "random": jax.random}
        self.modules["meshwright"] = _ModuleNames("mw", [jax], nested)
        library = "meshwright.pallas.ops"
        self.modules[library] = _Converted(library, self.of)
        self.classes: dict[type, type] = {}
        self.found: dict[int, Any] = {}
        self.kept: list[Any] = []  # keys of ``found`` stand for living objects
        # The modules a kernel uses are loaded; those that are not, it cannot use.
        for title, names in self.modules.items():
            for name, value in vars(sys.modules.get(title, _EMPTY)).items():
                if title == library or (title == "meshwright" and not hasattr(jax, name)):
                    continue
                if not name.startswith("_") and not isinstance(value, ModuleType | int | float | str | tuple | None):
                    self.found.setdefault(id(value), functools.partial(getattr, names, name))

    def of(self, value: Any) -> Any:
        """What JAX has in the place of a value."""
        if isinstance(value, ModuleType):
            return self.modules.get(value.__name__, value)
        known = self.found.get(id(value))
        if known is not None and not isinstance(value, FunctionType | type):
            return known() if isinstance(known, functools.partial) else known
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            inner: Any = value.__func__
            return MethodType(self._function(inner), value.__self__) if isinstance(inner, FunctionType) else value
        if isinstance(value, functools.partial):
            return functools.partial(self.of(value.func), *map(self.of, value.args), **self.of(value.keywords))
        if isinstance(value, type):
            return known() if known is not None else self._class(value)
        return self._object(value)

    def _class(self, kind: type) -> type:
        """A class of the user's whose methods have JAX's names; any other as it is."""
        if kind in self.classes:
            return self.classes[kind]
        methods = {
            name: one
            for name, one in vars(kind).items()
            if isinstance(one, FunctionType) and _is_users(one) and (not name.startswith("_") or name == "__call__")
        }
        self.classes[kind] = kind
        if methods and not issubclass(kind, BaseException):
            made = type(kind.__name__, (kind,), {"__slots__": ()})
            self.classes[kind] = made
            for name, one in methods.items():
                setattr(made, name, self._function(one))
        return self.classes[kind]

    def _object(self, value: Any) -> Any:
        if isinstance(value, Array):
            return np.asarray(value)
        if isinstance(value, ShapeDtypeStruct):
            return self._struct(value)
        if isinstance(value, BlockSpec):
            return self._block_spec(
                value.block_shape,
                value.index_map,
                memory_space=value.memory_space,
                pipeline_mode=value.pipeline_mode,
                indexing_mode=value.indexing_mode,
            )
        if isinstance(value, Blocked | Squeezed | Element | BoundedSlice | Indirect | Buffered):
            fields = vars(value).values() if isinstance(value, Buffered) else value
            return getattr(self.pl, type(value).__name__)(*fields)
        if isinstance(value, Slice):
            return self.pl.ds(value.start, value.size, value.stride)
        if isinstance(value, MemorySpace):
            return self._space(value)
        if isinstance(value, MemoryType):
            return self._space(value.memory_space)(value.shape, value.dtype)
        if isinstance(value, SemaphoreType):
            return self.pltpu.SemaphoreType[value.name]
        if isinstance(value, Semaphores):
            return self.pltpu.SemaphoreType[value.kind.name](value.shape)
        if isinstance(value, trace):
            return self.jax.named_scope(value.name)
        if value.__class__ in (list, tuple):
            return value.__class__(map(self.of, value))
        if value.__class__ is dict:
            return {key: self.of(one) for key, one in value.items()}
        return self._instance(value)

    def _instance(self, value: Any) -> Any:
        """An object of a user's class, with the methods of its counterpart."""
        made = self._class(type(value))
        if made is type(value):
            return value
        if isinstance(value, tuple):
            return tuple.__new__(made, map(self.of, value))
        found = copy(value)
        try:
            object.__setattr__(found, "__class__", made)
        except TypeError:  # of another layout in memory
            return value
        return found

    def _space(self, space: MemorySpace) -> Any:
        return self.pl.ANY if space is MemorySpace.ANY else getattr(self.pltpu, space.name)

    # Functions

    def _function(self, function: FunctionType) -> Any:
        """The function with JAX's names: the same code over other globals and closures."""
        known = self.found.get(id(function))
        if known is not None:
            return known() if isinstance(known, functools.partial) else known
        if function.__module__ == "meshwright.pallas.ops.operands":
            return function  # it asks for shapes and dtypes alone, which arrays of JAX have, too
        if not _is_users(function):
            if (function.__module__ or "").startswith("meshwright."):
                raise _lacking(f"{function.__module__}.{function.__qualname__}")
            return function
        cells = tuple(CellType() for _ in function.__closure__ or ())
        names: dict[str, Any] = {"__builtins__": __builtins__, "__name__": function.__module__}
        made = FunctionType(function.__code__, names, function.__name__, None, cells)
        self.found[id(function)] = made
        self.kept.append(function)
        made.__defaults__ = self.of(function.__defaults__)
        made.__kwdefaults__ = self.of(function.__kwdefaults__)
        made.__qualname__ = function.__qualname__
        for cell, other in zip(cells, function.__closure__ or (), strict=True):
            try:
                cell.cell_contents = self.of(other.cell_contents)
            except ValueError:  # a name that is not bound yet
                continue
        for name in _names_used(function.__code__):
            if name in function.__globals__:
                names[name] = self.of(function.__globals__[name])
        return made

    # What is spelled otherwise

    def _block_spec(
        self,
        block_shape: Any = None,
        index_map: Any = None,
        *,
        memory_space: Any = None,
        pipeline_mode: Any = None,
        indexing_mode: Any = None,
    ) -> Any:
        if callable(block_shape) or (index_map is not None and not callable(index_map)):
            block_shape, index_map = index_map, block_shape
        if indexing_mode is not None:
            raise _lacking("BlockSpec(…, indexing_mode=…)", "there, each dim says how it is indexed: pl.Element(n)")
        shape = None if block_shape is None else tuple(self.of(dim) for dim in block_shape)
        return self.pl.BlockSpec(
            shape, self.of(index_map), memory_space=self.of(memory_space), pipeline_mode=self.of(pipeline_mode)
        )

    def _emit_pipeline(self, body: Any, *, should_accumulate_out: Any = False, **options: Any) -> Any:
        if any(tree.leaves(should_accumulate_out)):
            raise _lacking("emit_pipeline(…, should_accumulate_out=True)")
        pipeline = self.pltpu.emit_pipeline(body, **options)

        def run(*refs: Any, **given: Any) -> None:
            try:
                pipeline(*refs, **given)
            except ValueError as error:
                if "device kind" not in str(error):
                    raise
                raise _lacking("emit_pipeline here", f"it needs to know the TPU it runs on: {error}") from error

        return run

    def _pallas_call(self, kernel: Any, out_shape: Any = None, *, debug: Any = None, **options: Any) -> Any:
        """A call of a kernel in a function that has JAX's names; what looks for mistakes here has no place there."""
        function = self._kernel(kernel, []) if not isinstance(kernel, FunctionType) else kernel
        return self.pl.pallas_call(function, out_shape, **options, interpret=self.interpret)

    def call(self, given: Given, args: Sequence[Any]) -> Any:
        """JAX's ``pallas_call`` of a kernel of ours on such operands."""
        spec, head = given.spec, given.spec.num_scalar_prefetch
        many = isinstance(given.out_shape, tuple | list) or given.out_shape is None
        outs = list(given.out_shape or ()) if many else [given.out_shape]
        in_specs = self._specs(spec.in_specs, args[head:])
        out_specs = self._specs(spec.out_specs if many else [spec.out_specs], outs)
        scratch = spec.scratch_shapes
        params = given.params
        if params.num_cores != 1:
            raise _lacking("CompilerParams(num_cores=…)", "a CPU has no cores to divide the grid among")
        grid_spec = self.pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=head,
            grid=tuple(spec.grid) if isinstance(spec.grid, tuple | list) else (spec.grid,),
            in_specs=in_specs,
            out_specs=out_specs if many else out_specs[0],
            scratch_shapes=self.of(list(scratch.values() if isinstance(scratch, dict) else scratch or ())),
        )
        return self.pl.pallas_call(
            self._kernel(given.kernel, list(scratch) if isinstance(scratch, dict) else []),
            out_shape=tree.map(self._struct, given.out_shape),
            grid_spec=grid_spec,
            input_output_aliases=given.aliases,
            compiler_params=self.pltpu.CompilerParams(
                dimension_semantics=params.dimension_semantics and tuple(map(semantics, params.dimension_semantics)),
                collective_id=params.collective_id,
                vmem_limit_bytes=params.vmem_limit_bytes,
                has_side_effects=params.has_side_effects,
            ),
            interpret=self.interpret,
            name=given.name,
        )

    def _kernel(self, kernel: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
        """The kernel with JAX's names; ``names`` are those of scratch memory that it takes by name."""
        if not isinstance(kernel, FunctionType | MethodType | functools.partial):
            kernel = MethodType(type(kernel).__call__, kernel)
        function = self.of(kernel)
        if not names:
            return function  # type: ignore[no-any-return]
        return lambda *refs: function(*refs[: -len(names)], **dict(zip(names, refs[-len(names) :], strict=True)))

    def _specs(self, specs: Any, operands: Sequence[Any]) -> list[Any]:
        """A spec for every array: one that is given for a tree of them is the spec of each."""
        given = list(specs) if isinstance(specs, tuple | list) else [specs] * len(operands)
        if given == [None]:
            given *= len(operands)
        return [
            tree.map(lambda _, one=one: self.of(one or BlockSpec()), operand)
            if one is None or isinstance(one, BlockSpec)
            else self.of(one)
            for one, operand in zip(given, operands, strict=True)
        ]

    def _struct(self, out: Any) -> Any:
        if isinstance(out, Semaphores | SemaphoreType):
            return self.of(out)
        return self.jax.ShapeDtypeStruct(tuple(out.shape), out.dtype)  # type: ignore[no-untyped-call]


_EMPTY = ModuleType("empty")


def _is_users(function: FunctionType) -> bool:
    """Whether a function is a user's, or written as a user would: not of this package or another that is installed."""
    package = (function.__module__ or "").split(".")[0]
    if package == "meshwright":
        return is_users(function.__code__.co_filename)
    return package not in ("numpy", "jax", "jaxlib")


def _names_used(code: CodeType) -> set[str]:
    """The names that a function and those defined in it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_used(constant)
    return names


def _load(ref: Any, idx: Any = ..., *, mask: Any = None, other: Any = None) -> Any:
    import jax.numpy as jnp

    value = ref[idx]
    return value if mask is None else jnp.where(mask, value, jnp.zeros((), value.dtype) if other is None else other)


def _store(ref: Any, idx: Any, val: Any, *, mask: Any = None) -> None:
    import jax.numpy as jnp

    ref[idx] = val if mask is None else jnp.where(mask, val, ref[idx])


def _no_allocations(*_: Any, **__: Any) -> Any:
    raise _lacking(
        "emit_pipeline_with_allocations with callbacks",
        "there, a run of a pipeline knows of no other run",
        "pltpu.emit_pipeline(…), whose runs start and end on their own; of ops.all_gather_matmul, fused=False",
    )
