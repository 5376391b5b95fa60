"""A step and its layouts: what was simulated of each, compiled, and as code to paste."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from meshwright.arrays.tracing import check_function, leaf_type, trace_flat
from meshwright.chart.amounts import size_text, time_text
from meshwright.compile.compiled import Compiled
from meshwright.compile.jit import jit
from meshwright.core import tree
from meshwright.core.facts import Structure
from meshwright.core.op import is_elementwise
from meshwright.core.program import Atom, Program, Var
from meshwright.core.source import Source, here
from meshwright.core.trace import run
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.hardware.topology import Topology
from meshwright.search.layout.evaluate import constrained, evaluated, simplified
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.simulate.simulation import Simulation


class Constraint(NamedTuple):
    """A value of the step that is to be laid out so, and the line that makes it."""

    source: Source | None
    type: TensorType
    spec: PartitionSpec

    def __str__(self) -> str:
        return f"{self.source or '?'}  {self.type.short()}  {self.spec}"


@dataclass(frozen=True, eq=False)
class FoundLayout:
    """One layout of a step: its mesh, the shardings of arguments and results, and what it takes."""

    mesh: Mesh
    in_shardings: Any
    out_shardings: Any
    simulation: Simulation = field(repr=False)
    memory: float
    name: str
    constraints: tuple[Constraint, ...] = ()
    step: Step | None = field(default=None, repr=False)
    program: Program | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        """The simulated seconds of the step."""
        return self.simulation.seconds

    @property
    def peak_bytes_per_device(self) -> int:
        """The most that a device holds at a time."""
        return self.simulation.peak_bytes_per_device

    @property
    def fits(self) -> bool:
        """Whether that is no more than there is."""
        return self.peak_bytes_per_device <= self.memory

    def compile(self) -> Compiled:
        """The step compiled in this layout: what was simulated."""
        assert self.step is not None and self.program is not None
        return self.step.compiled(self)

    def code(self, to: str = "meshwright") -> str:
        """The layout as Python to paste, for Meshwright or (``to="jax"``) for JAX."""
        if to not in ("meshwright", "jax"):
            raise MeshwrightError(
                f"There is no code for {to!r}.", where=here(), why="there is meshwright and jax", fix='to="jax"'
            )
        assert self.step is not None
        return self.step.code(self, to)


@dataclass(frozen=True, eq=False)
class FoundLayouts:
    """What a search found, the fastest that fits first, and the seconds that nothing in its space is below."""

    found: tuple[FoundLayout, ...]
    bound_seconds: float

    @property
    def best(self) -> FoundLayout:
        """The fastest that fits."""
        return self.found[0]

    def __iter__(self) -> Iterator[FoundLayout]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, n: int) -> FoundLayout:
        return self.found[n]

    def table(self) -> str:
        """A line for each layout: its mesh, what is split, seconds by kind, and memory."""
        heads = ("mesh", "layout", "seconds", "compute", "exposed", "memory", "")
        rows = [
            (
                " ".join(f"{name}={size}" for name, size in one.mesh.shape.items()),
                one.name,
                time_text(one.seconds),
                time_text(one.simulation.compute_seconds),
                time_text(one.simulation.exposed_seconds),
                size_text(one.peak_bytes_per_device),
                "" if one.fits else "does not fit",
            )
            for one in self.found
        ]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                 for row in (heads, *rows)]  # fmt: skip
        gap = self.best.seconds / self.bound_seconds - 1 if self.bound_seconds else inf
        return "\n".join([*lines, f"no layout takes less than {time_text(self.bound_seconds)} (the first: {gap:+.0%})"])

    __str__ = table


class Step:
    """A traced step: its program, the trees of its arguments and results, and which results are arguments anew."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], batch_args: Any) -> None:
        check_function(function, "find_layout", 'mw.find_layout(f, *args, topology="h100 64")')
        if not args:
            raise ShapeError(
                "find_layout is given no arguments of the step.",
                where=here(),
                why="their shardings are what it looks for",
                fix='mw.find_layout(f, params, batch, topology="h100 64")',
            )
        self.function, self.args = function, tuple(args)
        self.name = getattr(function, "__name__", "step")
        leaves, self.in_tree = tree.flatten((self.args, {}))
        self.types = tuple(leaf_type(x) for x in leaves)
        traced = trace_flat(function, self.in_tree, self.types)
        self.out_tree = traced.out_tree
        self.program = simplified(traced.closed, self.out_tree)
        _check_structure(self.program)
        self.argument = [n for n, arg in enumerate(self.args) for _ in tree.leaves(arg)]
        self.batch = self._batch(batch_args)
        self.returned = self._returned()
        self.state = {n for n in range(len(self.args)) if self._is_state(n)}
        if batch_args is None:
            self.batch -= {n for n, arg in enumerate(self.argument) if arg in self.state}

    def _is_state(self, number: int) -> bool:
        mine = [n for n, arg in enumerate(self.argument) if arg == number]
        return bool(mine) and all(n in self.returned.values() for n in mine)

    def _returned(self) -> dict[int, int]:
        """By the number of a result, the argument that it is anew: trees of results that arguments have, too, each of
        which follows from that argument by elementwise ops, as an update does."""
        results = tree.unflatten(self.out_tree, range(self.out_tree.num_leaves))
        made_of = self._made_of()
        found: dict[int, int] = {}
        parts = [results, *(results if isinstance(results, tuple | list) else [])]
        first = 0
        for arg in self.args:
            count = len(tree.leaves(arg))
            mine = range(first, first + count)
            first += count
            for part in parts:
                numbers = tree.leaves(part)
                same = tree.flatten(arg)[1] == tree.flatten(part)[1] and not any(n in found for n in numbers)
                if same and count and all(n in made_of[m] for n, m in zip(mine, numbers, strict=True)):
                    found.update(zip(numbers, mine, strict=True))
                    break
        return found

    def _made_of(self) -> list[frozenset[int]]:
        """For each result the arguments of its type from which it follows by elementwise ops."""
        known: dict[Atom, frozenset[int]] = {v: frozenset((n,)) for n, v in enumerate(self.program.inputs)}
        for eqn in self.program.eqns:
            sets = [known[a] for a in eqn.inputs if a in known]
            if sets and is_elementwise(eqn):
                known.update(dict.fromkeys(eqn.outputs, frozenset().union(*sets)))
        return [
            frozenset(
                n
                for n in known.get(atom, ())
                if (self.types[n].shape, self.types[n].dtype) == (atom.type.shape, atom.type.dtype)
            )
            for atom in self.program.outputs
        ]

    def _batch(self, given: Any) -> set[int]:
        """The leaves that have the batch as their first dim."""
        numbers = (
            range(len(self.args)) if given is None else given if isinstance(given, tuple | list | set) else (given,)
        )
        wrong = [n for n in numbers if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < len(self.args)]
        if wrong:
            raise ShapeError(
                f"There is no argument {wrong[0]!r}.",
                where=here(),
                why=f"batch_args are positions of the {len(self.args)} arguments of {self.name}",
                fix=f"batch_args={len(self.args) - 1}",
            )
        return {n for n, arg in enumerate(self.argument) if arg in numbers and self.types[n].ndim}

    @property
    def donated(self) -> tuple[bool, ...]:
        return tuple(arg in self.state and n not in self.batch for n, arg in enumerate(self.argument))

    @property
    def donate(self) -> tuple[int, ...]:
        """The arguments whose memory results may take: those that the step returns anew."""
        return tuple(sorted({arg for arg, given in zip(self.argument, self.donated, strict=True) if given}))

    def results(self, given: Sequence[NamedSharding]) -> list[NamedSharding | None]:
        """The shardings of results: those that are arguments anew have theirs."""
        return [given[self.returned[n]] if n in self.returned else None for n in range(self.out_tree.num_leaves)]

    def laid_out(
        self, given: Sequence[TensorSharding], topology: Topology, name: str, specs: Mapping[Var, PartitionSpec],
        memory: float, mode: str,
    ) -> FoundLayout:  # fmt: skip
        """A layout, simulated."""
        named = [s.to_named() for s in given]
        asked = self.results(named)
        program = constrained(self.program, specs)
        found = evaluated(program, self.out_tree, topology, named, asked, self.donated, self.argument, mode)
        mesh = named[0].mesh
        assert isinstance(mesh, Mesh)
        return FoundLayout(
            mesh,
            tree.unflatten(self.in_tree, named)[0],
            tree.unflatten(self.out_tree, asked),
            found,
            memory,
            name,
            tuple(_listed(self.program, specs)),
            self,
            program,
        )

    def compiled(self, layout: FoundLayout) -> Compiled:
        function = self.function
        if layout.constraints:
            program, out_tree = layout.program, self.out_tree

            def function(*args: Any) -> Any:
                assert program is not None
                return tree.unflatten(out_tree, run(program, tree.leaves(args)))

        options: dict[str, Any] = {"in_shardings": layout.in_shardings, "out_shardings": layout.out_shardings}
        made = jit(function, donate_argnums=self.donate, **options)
        found: Compiled = made.lower(*self.args).compile()
        return found

    def code(self, layout: FoundLayout, to: str) -> str:
        """The layout as Python."""
        jax = to == "jax"
        specs = [_text(s.spec) for s in tree.leaves(layout.in_shardings)]
        mesh = layout.mesh
        call = "jax.make_mesh" if jax else "mw.make_mesh"
        head = ["import jax", "from jax.sharding import NamedSharding, PartitionSpec as P"] if jax else [
            "import meshwright as mw", "from meshwright import NamedSharding, P"]  # fmt: skip
        auto = f", axis_types=(jax.sharding.AxisType.Auto,) * {len(mesh.axis_names)}" if jax else ""
        lines = [*head, "", f"mesh = {call}({mesh.axis_sizes}, {mesh.axis_names}{auto})"]
        trees = tree.unflatten(self.in_tree, [_Code(s) for s in specs])[0]
        names = []
        for n, part in enumerate(trees):
            names.append(f"argument_{n}")
            lines.append(f"argument_{n} = {_tree_text(part)}")
        placed = ("jax.tree.map(lambda spec: NamedSharding(mesh, spec), ({0},), is_leaf=lambda x: isinstance(x, P))"
                  if jax else "mw.tree.map(lambda spec: NamedSharding(mesh, spec), ({0},))")  # fmt: skip
        lines.append(f"in_shardings = {placed.format(', '.join(names))}")
        outs = self._out_text(tree.unflatten(self.out_tree, range(self.out_tree.num_leaves)))
        lines.append(f"out_shardings = {outs}")
        donate = self.donate
        jit_name = "jax.jit" if jax else "mw.jit"
        extra = f", donate_argnums={donate}" if donate else ""
        lines.append(
            f"{_identifier(self.name)} = {jit_name}({_identifier(self.name)}, in_shardings=in_shardings, "
            f"out_shardings=out_shardings{extra})"
        )
        if layout.constraints:
            constraint = "jax.lax.with_sharding_constraint" if jax else "mw.lax.with_sharding_constraint"
            lines += ["", "# In the step, values to be laid out so:"]
            shown = dict.fromkeys(
                f"#   {c.source or '?'}: {constraint}(…, NamedSharding(mesh, {_text(c.spec)}))  of {c.type.short()}"
                for c in layout.constraints
            )
            lines += shown
        return "\n".join(lines)

    def _out_text(self, part: Any) -> str:
        """The shardings of results as code: those of the arguments that they are anew, None for others."""
        numbers = tree.leaves(part)
        if not any(n in self.returned for n in numbers):
            return "None"
        for k, arg in enumerate(self.args):
            mine = [n for n, one in enumerate(self.argument) if one == k]
            if tree.flatten(arg)[1] == tree.flatten(part)[1] and mine == [self.returned.get(n) for n in numbers]:
                return f"in_shardings[{k}]"
        if isinstance(part, dict):
            return "{" + ", ".join(f"{key!r}: {self._out_text(one)}" for key, one in part.items()) + "}"
        inner = ", ".join(map(self._out_text, part))
        return f"[{inner}]" if isinstance(part, list) else f"({inner}{',' if len(part) == 1 else ''})"


class _Code(str):
    """A piece of code among the leaves of a tree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _text(spec: PartitionSpec) -> str:
    """A spec as code."""
    entries = [tuple(e) if isinstance(e, tuple | list) else e for e in spec.partitions]
    while entries and entries[-1] is None:
        entries.pop()
    return f"P({', '.join(repr(e) for e in entries)})"


def _tree_text(part: Any) -> str:
    """A tree of pieces of code as code."""
    if isinstance(part, _Code):
        return str(part)
    if isinstance(part, dict):
        return "{" + ", ".join(f"{key!r}: {_tree_text(value)}" for key, value in part.items()) + "}"
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        fields = zip(part._fields, part, strict=True)
        return f"{type(part).__name__}({', '.join(f'{name}={_tree_text(value)}' for name, value in fields)})"
    if isinstance(part, tuple):
        return f"({', '.join(map(_tree_text, part))}{',' if len(part) == 1 else ''})"
    if isinstance(part, list):
        return f"[{', '.join(map(_tree_text, part))}]"
    return "None" if part is None else repr(part)


def _identifier(name: str) -> str:
    """The name of a function, or one for what has none."""
    return name if name.isidentifier() else "step"


def _listed(program: Program, specs: Mapping[Var, PartitionSpec]) -> Iterator[Constraint]:
    """The constraints on values of a program and its regions, in order."""
    for eqn in program.eqns:
        for _, region in eqn.regions():
            yield from _listed(region, specs)
        for var in eqn.outputs:
            if var in specs:
                yield Constraint(eqn.source, var.type, specs[var])


def _check_structure(program: Program) -> None:
    """Refuse a step that is written for a mesh."""
    for eqn in program.eqns:
        if eqn.op.structure is Structure.DEVICE:
            raise MeshwrightError(
                "The step has a shard_map.",
                where=eqn.source.show() if eqn.source else here(),
                why="it is written for one device of a mesh, and find_layout is to choose the mesh",
                fix="the same computation without shard_map, or mw.jit(f, in_shardings=…) on the mesh that it names",
            )
        for _, region in eqn.regions():
            _check_structure(region)
