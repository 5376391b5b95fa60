"""What the compiler did: ``f.lower(*args)`` is the traced program, ``.compile()`` the one that runs, with reasons."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from meshwright.arrays.tracing import ShapeDtypeStruct, leaf_array
from meshwright.chart.page import page
from meshwright.compile.diff import CommsDiff
from meshwright.compile.direct import ANY, WrittenCall, called_by
from meshwright.compile.engines import check_engine
from meshwright.core import tree
from meshwright.core.files import write_whole
from meshwright.core.first_use import no_attribute
from meshwright.core.program import Program
from meshwright.core.source import here
from meshwright.core.trace import Array, Value
from meshwright.core.types import TensorType
from meshwright.engine.chunks import Repeated
from meshwright.errors import MeshwrightError, ShapeError, TreeError

if TYPE_CHECKING:
    from meshwright.compile.executable import Executable
    from meshwright.compile.explain import Explanation
    from meshwright.compile.partitioning import Collective
    from meshwright.compile.sharding_reasons import ShardingReasons
    from meshwright.compile.stages import Compilation, StageRecord
    from meshwright.sharding.mesh import Mesh
    from meshwright.simulate.memory import MemoryUse
    from meshwright.simulate.simulation import Simulation


# Names that JAX has, and what to write.
_OF_LOWERED = {"compiler_ir": "lowered.as_text()"}


class MemoryAnalysis(NamedTuple):
    """The bytes of one device by the names that XLA's own analysis has."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    host_temp_size_in_bytes: int
    peak_memory_in_bytes: int


class JitCall(NamedTuple):
    """What is known of a call of a jitted function: its name, arguments, results, and where they are; ``again`` traces
    and simplifies it as it did then, inside of a context manager, or not at all where a setting is another now."""

    name: str
    parameters: Sequence[str]
    in_tree: tree.TreeDef
    out_tree: tree.TreeDef
    placement: Any
    again: Callable[[AbstractContextManager[Any]], Compilation | None]


def _contents(x: Array) -> Any:
    """The contents of an array as they are, written out if they are not yet."""
    return x.data if x._data is None or x._data.__class__ is Repeated else x._data


class Compiled:
    """A function compiled for arguments of given types and places. Calling it runs it."""

    def __init__(
        self,
        executable: Executable,
        in_tree: tree.TreeDef,
        types: tuple[Any, ...],
        parameters: Sequence[str],
        call: JitCall,
    ) -> None:
        self._executable = executable
        self._in_tree = in_tree
        self._types = types
        self._parameters = parameters  # what the function calls its arguments, as far as they have names
        self._call = call
        self._written: dict[Any, WrittenCall | None] = {}  # calls on arrays, from the second of a kind on

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._general(args, kwargs)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call on any arguments; the second one on arrays writes a direct call for those like them."""
        leaves, in_tree = tree.flatten((args, kwargs))
        values = [x if x.__class__ is Array else leaf_array(x) for x in leaves]
        if in_tree != self._in_tree:
            was, now = (tree.unflatten(t, range(t.num_leaves)) for t in (self._in_tree, in_tree))
            raise TreeError(
                "This compiled function cannot take arguments in these containers.",
                where=here(),
                why=f"it was compiled for {_outline(was)}, and is given {_outline(now)}",
                fix="f(*args) compiles for what it is given",
            )
        if not all(map(_fits, values, self._types)):
            shown = ", ".join(str(x.type) for x in values)
            raise ShapeError(
                f"This compiled function cannot take ({shown}).",
                where=here(),
                why=f"it was compiled for ({', '.join(map(str, self._types))})",
                fix="f(*args) compiles for what it is given",
            )
        data = [_contents(x) for x in values if isinstance(x, Array)]
        del values  # which refer to the arguments
        if not kwargs:
            self._write_direct(args, leaves, data)
        self._executable.take(leaves, data)
        return self._executable.run(data)

    def _write_direct(self, args: tuple[Any, ...], leaves: Sequence[Any], data: Sequence[Any]) -> None:
        """Let the next call on arrays like these be a direct one, if it can and this is not the first."""
        if not self._executable.may_be_direct(leaves, data):
            return
        key = *map(type, leaves), *map(type, data), *(getattr(x, "_sharding", None) for x in leaves)
        if key not in self._written:
            self._written[key] = None
            return
        if self._written[key] is None:
            self._written[key] = self._executable.written_for(tree.structure(args), leaves, data, {}, ANY)
        called_by(self, self._written[key])

    def _repr_html_(self) -> str:
        from meshwright.report.notebook import compiled_html

        return compiled_html(self)

    if not TYPE_CHECKING:  # which knows what is there

        def __getattr__(self, name):
            if hasattr(Compiled, name):  # a property that failed: its own error
                return object.__getattribute__(self, name)
            raise no_attribute("'Compiled' object", name, {})

    @property
    def program(self) -> Program:
        """The program of one device; of the only one, if nothing is on a mesh."""
        placed = self._executable.placed
        return placed.local if placed is not None else self._executable.program  # type: ignore[no-any-return]

    @property
    def mesh(self) -> Mesh | None:
        """The mesh of the devices that run it, or None; of several views of the same devices, that of the collectives.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> x = mw.device_put(mnp.ones(8), mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x")))
        >>> print(mw.jit(lambda x: x * 2).lower(x).compile().mesh)
        <["x"=4]>
        """
        placed = self._executable.placed
        return None if placed is None else placed.mesh

    def as_text(self, *, iota: bool = True) -> str:
        """The program of one device as a module of HLO, with its collectives; XLA reads it.

        Partition ``k`` is the device at position ``k`` of the mesh. Groups of devices are ``[2,2]<=[2,2]T(1,0)``, the
        positions reshaped, transposed and reshaped again; with ``iota=False`` they are listed, ``{{0,2},{1,3}}``.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> mesh = mw.make_mesh((2, 2), ("x", "y"))
        >>> a = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mesh, mw.P("x")))
        >>> turned = mw.jit(lambda a: a, out_shardings=mw.NamedSharding(mesh, mw.P(None, "x")))
        >>> lines = turned.lower(a).compile().as_text().splitlines()
        >>> print(next(line.split(", dim")[0] for line in lines if "all-to-all(" in line).strip())
        %all-to-all = f32[4,2,8]{2,1,0} all-to-all(%reshape), channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0)
        """
        from meshwright.compile.texts import compiled_text

        return compiled_text(self, self._call, self._executable.placed, iota)

    @property
    def global_program(self) -> Program:
        """The program before it was partitioned, without calls."""
        placed = self._executable.placed
        return placed.whole if placed is not None else self._executable.program  # type: ignore[no-any-return]

    @property
    def collectives(self) -> list[Collective]:
        """The collectives of the program, in order, each with its reason."""
        placed = self._executable.placed
        if placed is not None:
            return list(placed.collectives)
        from meshwright.compile.partitioning import written_collectives

        return list(written_collectives(self._executable.program))

    @property
    def in_shardings(self) -> Any:
        """The shardings of the arguments, in their containers; None for what is on no mesh."""
        from meshwright.compile.partial_sums import summed_shardings

        placed = self._executable.placed
        found = summed_shardings(placed.in_shardings, self._types) if placed is not None else [None] * len(self._types)
        return tree.unflatten(self._in_tree, found)

    @property
    def out_shardings(self) -> Any:
        """The shardings of the results, in their containers; None for what is on no mesh."""
        return tree.unflatten(self._executable.out_tree, self._executable.out_shardings)

    @property
    def donated(self) -> tuple[bool, ...]:
        """Of each array among the arguments, in order, whether its memory may be written over."""
        given = set(self._executable.donated)
        return tuple(n in given for n in range(len(self._types)))

    @property
    def stages(self) -> list[StageRecord]:
        """What each stage of the compiler made of the program, and the seconds it took.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x")))
        >>> stages = mw.jit(lambda x: x.sum(0)).lower(x).compile().stages
        >>> [stage.name for stage in stages]
        ['simplify', 'inline', 'propagate', 'partition', 'combine', 'stack', 'emit']
        >>> print(stages[4])
        program(a: f32[2,16]{x}) {
          b: f32[16]{x} = reduce_sum a axes=(0,)
          c: f32[16] = psum b axes=('x',)
          return c
        }
        """
        return self._executable.stages

    @overload
    def explain(self, hardware: Any = None, *, json: Literal[False] = False, **wanted: Any) -> str: ...

    @overload
    def explain(self, hardware: Any = None, *, json: Literal[True], **wanted: Any) -> list[dict[str, Any]]: ...

    def explain(self, hardware: Any = None, *, json: bool = False, **wanted: Any) -> str | list[dict[str, Any]]:
        """Every collective with its time and share of the step on a machine, its line and its reason, those of equal
        layers in one row; shardings that would be cheaper, which were tried; what is held twice.

        The machine is ``hardware``, or what jit was told, or a TPU v5e. Wanted may be those over an ``axis``, of a
        ``kind``, of a ``line`` (``"model.py:41"``), in a ``scope``, and the ``top`` rows. With ``json=True``, a dict
        for each collective.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> mesh = mw.make_mesh((4,), ("x",))
        >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mesh, mw.P("x")))
        >>> compiled = mw.jit(lambda x: x.sum(0)).lower(x).compile()
        >>> print(compiled.explain().splitlines()[0])
        1 collective: all_reduce 1; 96 bytes received per device
        >>> compiled.explain("h100", json=True, kind="all_reduce")[0]["why"]
        'the reduce_sum leaves partial sums over x; the program returns it replicated'
        """
        from meshwright.compile.explain import Filter

        unknown = [name for name in wanted if name not in Filter._fields]
        if unknown:
            raise MeshwrightError(
                f"explain knows nothing of {', '.join(unknown)}.",
                where=here(),
                why=f"collectives are chosen by {', '.join(Filter._fields)}",
                fix='compiled.explain(axis="model", top=5)',
            )
        found, chosen = self.explanation(hardware), Filter(**wanted)
        return found.records(chosen) if json else found.text(chosen)

    def diff(self, other: Compiled, hardware: Any = None) -> CommsDiff:
        """What is different in ``other``: collectives that appeared, went or grew; bytes, seconds and memory before
        (here) and after (there), by line and scope; as text, or ``.to_json()``. It is true if collectives differ.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> mesh = mw.make_mesh((4,), ("x",))
        >>> def summed(*spec):
        ...     x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mesh, mw.P(*spec)))
        ...     return mw.jit(lambda x: x.sum(0)).lower(x).compile()
        >>> diff = summed("x").diff(summed(None, "x"))
        >>> [(row.record["kind"], row.is_gone) for row in diff.rows]
        [('all_reduce', True)]
        """
        if not isinstance(other, Compiled):
            raise MeshwrightError(
                f"diff is given a {type(other).__name__}.",
                where=here(),
                why="what is sent is known of a function that is compiled for given arguments",
                fix="compiled.diff(mw.jit(f).lower(*args).compile())",
            )
        found = [one.explanation(hardware, tries=False).to_json() for one in (self, other)]
        return CommsDiff(*found)

    def report(
        self,
        path: str | os.PathLike[str],
        hardware: Any = None,
        *,
        other: Compiled | None = None,
        tries: bool = True,
    ) -> list[dict[str, Any]]:
        """Write a page about it on a machine: time, what bounds it, memory, collectives with their reasons, timeline,
        the program with its shardings; with ``other``, about both, to compare. It is one file that loads nothing from a
        network. What it shows is returned. Other shardings of arguments are tried if ``tries``.

        >>> import meshwright as mw, meshwright.numpy as mnp, tempfile, pathlib
        >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x")))
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "out.html"
        >>> shown = mw.jit(lambda x: x.sum(0)).lower(x).compile().report(file, "h100")
        >>> shown[0]["machine"], [one["kind"] for one in shown[0]["collectives"]]
        ('h100 4', ['all_reduce'])
        """
        from meshwright.compile.report import report_data

        listed = [(self, self._call.name)] if other is None else [(self, self._call.name), (other, other._call.name)]
        if len({name for _, name in listed}) < len(listed):
            listed = [(one, f"{name} ({when})") for (one, name), when in zip(listed, ("before", "after"), strict=True)]
        shown = [report_data(one.explanation(hardware, tries=tries), name) for one, name in listed]
        write_whole(path, page(shown))
        return shown

    def explanation(self, hardware: Any = None, *, tries: bool = True) -> Explanation:
        """What `explain` says, as an object: its ``rows()``, ``findings`` and ``cheaper()`` shardings of arguments, of
        which none are tried unless ``tries``.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x")))
        >>> mw.jit(lambda x: x.sum(0)).lower(x).compile().explanation("h100").rows()[0].times
        1
        """
        from meshwright.compile.explain import Explanation
        from meshwright.compile.sharding_reasons import argument_paths, result_paths

        names = argument_paths(self._in_tree, self._parameters)
        results = result_paths(self._executable.out_tree)
        placed = self._executable.placed
        program = self._executable.program
        again = self._call.again, program
        of = self._in_tree
        return Explanation(self.collectives, placed, program, names, results, self, hardware, tries, again, of)

    def simulate(self, hardware: Any, **options: Any) -> Simulation:
        """One run on hardware: a topology, or a machine of the named chip, with its timeline and memory.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> mesh = mw.make_mesh((4,), ("x",))
        >>> x = mw.device_put(mnp.ones((4096, 4096)), mw.NamedSharding(mesh, mw.P("x")))
        >>> run = mw.jit(lambda x: x @ x.T).lower(x).compile().simulate("tpu v5e")
        >>> run.seconds > 0, run.peak_bytes_per_device > 4096 * 4096
        (True, True)
        """
        from meshwright.simulate.spmd import simulate

        return simulate(self, hardware, **options)

    def cost(self, hardware: Any, *, mode: str = "exact", while_steps: int | None = None, flash: bool = True) -> str:
        """What it costs on hardware without overlap, as text; the options are those of ``simulate``.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> x = mnp.ones((1024, 1024))
        >>> print(mw.jit(lambda x: x @ x).lower(x).compile().cost("tpu v5e").splitlines()[1].strip())
        2.15e+09 FLOPs, 2.15e+09 of them in products
        """
        from meshwright.simulate.spmd import work

        return work(self, hardware, mode=mode, while_steps=while_steps, flash=flash).cost()

    def memory(self, *, flash: bool = True) -> MemoryUse:
        """What the memory of a device holds at most, and what is alive then; ``flash`` is that of ``simulate``.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> x = mnp.ones(1024)
        >>> mw.jit(lambda x: x * 2).lower(x).compile().memory().peak_bytes
        8192
        >>> mw.jit(lambda x: x * 2, donate_argnums=0).lower(x).compile().memory().peak_bytes
        4096
        """
        from meshwright.simulate.memory import memory
        from meshwright.simulate.spmd import read_program

        return memory(read_program(self)[0], donated=self.donated, flash=flash)

    @property
    def input_shardings(self) -> Any:
        """``in_shardings`` as JAX has them: those of the arguments by position, and those by name."""
        return self.in_shardings

    @property
    def output_shardings(self) -> Any:
        """``out_shardings`` by their name in JAX."""
        return self.out_shardings

    @property
    def out_info(self) -> Any:
        """The shapes and dtypes of the results."""
        return _out_info(self._call.out_tree, self._executable.out_types)

    @property
    def in_tree(self) -> tree.TreeDef:
        """The containers of the arguments, by position and by name."""
        return self._call.in_tree

    @property
    def out_tree(self) -> tree.TreeDef:
        """The containers of the results."""
        return self._call.out_tree

    def cost_analysis(self) -> dict[str, float]:
        """FLOPs and bytes of memory that one device computes with, by XLA's names.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> x = mnp.ones((8, 8))
        >>> mw.jit(lambda x: x @ x).lower(x).compile().cost_analysis()["flops"]
        1024.0
        """
        from meshwright.simulate.spmd import work

        found = work(self, "tpu v5e", mode="exact", while_steps=1, flash=True)
        moved = sum(times * task.cost.nbytes for task, times in found.leaves())
        return {"flops": float(found.flops), "bytes accessed": float(moved)}

    def memory_analysis(self) -> MemoryAnalysis:
        """``memory`` by XLA's names.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> mw.jit(lambda x: x * 2).lower(mnp.ones(1024)).compile().memory_analysis().argument_size_in_bytes
        4096
        """
        use = self.memory()
        sizes = use.argument_bytes, use.output_bytes, use.alias_bytes, use.temporary_bytes, use.host_bytes
        return MemoryAnalysis(*sizes, use.peak_bytes)

    def explain_sharding(self, value: Any) -> ShardingReasons:
        """Where each axis of a value's sharding came from: what a user wrote, and the equations on the way.

        ``value`` is an argument or a result by name (``"params['w']"``, ``"result[0]"``), the number of a result, a
        variable of ``global_program``, or a line (``"model.py:41"``) for all values made there.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> mesh = mw.make_mesh((4,), ("x",))
        >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mesh, mw.P("x")))
        >>> compiled = mw.jit(lambda x: mnp.tanh(x).T).lower(x).compile()
        >>> reason = compiled.explain_sharding(0)[0].reasons[0]
        >>> reason.dim, [step.op for step in reason.steps]
        (1, ['transpose', 'tanh', 'argument x'])
        """
        from meshwright.compile.sharding_reasons import explain_sharding

        return explain_sharding(self._executable, self._in_tree, self._parameters, value)


def _outline(arguments: Any) -> str:
    """The containers of the arguments of a call: ``(*, {'w': *}), scale=*``."""
    args, kwargs = arguments
    return ", ".join([tree.outline(args, "*"), *(f"{name}={tree.outline(x, '*')}" for name, x in kwargs.items())])


def _fits(x: Value, t: TensorType) -> bool:
    """Whether a value has a type; one that was put nowhere goes where the type says, a number is of its dtype."""
    have = x.type if x.type.weak is t.weak else x.type.with_(weak=t.weak)
    return have is t or (getattr(x, "_sharding", None) is None and have is t.with_(sharding=None))


def _out_info(structure: tree.TreeDef, types: Sequence[TensorType]) -> Any:
    return tree.unflatten(structure, [ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak) for t in types])


class Lowered:
    """A function traced for given arguments."""

    def __init__(self, compile: Any, traced: Program, call: JitCall) -> None:
        self._compile = compile
        self._call = call
        self.program = traced

    if not TYPE_CHECKING:  # which knows what is there

        def __getattr__(self, name):
            of_compiled = {one: f"lowered.compile().{one}" for one in dir(Compiled) if not one.startswith("_")}
            raise no_attribute("'Lowered' object", name, of_compiled | _OF_LOWERED)

    def as_text(self) -> str:
        """The traced program as a module of StableHLO, with sdy's shardings where they were asked for.

        It is checked and printed by jaxlib, which has to be installed.

        >>> import meshwright as mw, meshwright.numpy as mnp
        >>> print(mw.jit(lambda x: mnp.tanh(x)).lower(mnp.ones(3)).as_text())
        module @jit__lambda_ attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
          func.func public @main(%arg0: tensor<3xf32>) -> (tensor<3xf32> {jax.result_info = "result"}) {
            %0 = stablehlo.tanh %arg0 : tensor<3xf32>
            return %0 : tensor<3xf32>
          }
        }
        """
        from meshwright.compile.texts import lowered_text

        return lowered_text(self.program, self._call)

    @property
    def out_info(self) -> Any:
        """The shapes and dtypes of the results."""
        return _out_info(self._call.out_tree, self.program.out_types)

    @property
    def in_tree(self) -> tree.TreeDef:
        """The containers of the arguments, by position and by name."""
        return self._call.in_tree

    @property
    def out_tree(self) -> tree.TreeDef:
        """The containers of the results."""
        return self._call.out_tree

    @property
    def args_info(self) -> Any:
        """The shapes and dtypes of the arguments: those by position, and those by name."""
        return _out_info(self._call.in_tree, self.program.in_types)

    def cost_analysis(self) -> dict[str, float]:
        """FLOPs and bytes of what it compiles to, by XLA's names."""
        return self.compile().cost_analysis()

    def compile(self, engine: str | None = None) -> Compiled:
        """The program that runs, on an engine: that of ``jit``, or of `set_engine`, if none is named."""
        check_engine(engine)
        return self._compile(engine)  # type: ignore[no-any-return]


class TracedCall:
    """A function traced for the types of some arguments."""

    def __init__(self, lowered: Lowered, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._lowered, self.args, self.kwargs = lowered, args, kwargs

    @property
    def jaxpr(self) -> Program:
        """The program."""
        return self._lowered.program

    @property
    def out_info(self) -> Any:
        """The shapes and dtypes of the results."""
        return self._lowered.out_info

    @property
    def fun_name(self) -> str:
        """The name of the function."""
        return self._lowered._call.name

    def lower(self, **options: Any) -> Lowered:
        """The function as it is handed to the compiler."""
        return self._lowered
