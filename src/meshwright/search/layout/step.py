"""A step as it was traced: its program, what its arguments and results are, and one layout of it simulated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from meshwright.api.microbatched import checked_arguments, microbatched
from meshwright.arrays.tracing import check_function, leaf_type, trace_flat
from meshwright.compile.compiled import Compiled
from meshwright.compile.jit import jit
from meshwright.compile.updates import arguments_anew
from meshwright.core import tree
from meshwright.core.facts import Structure
from meshwright.core.program import Program, Var
from meshwright.core.source import here
from meshwright.core.trace import run
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.hardware.topology import Topology
from meshwright.search.layout.evaluate import constrained, evaluated, simplified
from meshwright.search.layout.expected import Expected
from meshwright.search.layout.found import Constraint, FoundLayout
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.spec import PartitionSpec, entry_axes
from meshwright.simulate.simulation import Simulation


class Step:
    """A traced step: its program, the trees of its arguments and results, and which results are arguments anew."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], batch_args: Any) -> None:
        check_function(function, "find_layout", 'mw.find_layout(f, *args, topology="h100 64")')
        if not tree.leaves(tuple(args)):
            raise ShapeError(
                f"find_layout is given no {'arrays' if args else 'arguments'} of the step.",
                where=here(),
                why="their shardings are what it looks for",
                fix='mw.find_layout(f, params, batch, topology="h100 64")',
            )
        self.function, self.args, self.batch_args = function, tuple(args), batch_args
        self.given: Callable[..., Any] | None = None  # the user's function, if this is one with constraints
        self.microbatches = 1
        self.name = getattr(function, "__name__", "step")
        leaves, self.in_tree = tree.flatten((self.args, {}))
        self.types = tuple(leaf_type(x) for x in leaves)
        traced = trace_flat(function, self.in_tree, self.types)
        self.out_tree = traced.out_tree
        self.program = simplified(traced.closed, self.out_tree)
        check_for_one_device(self.program, "find_layout is to choose the mesh", "mw.jit(f, in_shardings=…)")
        self.names = _names(function, self.args)
        self.argument = [n for n, arg in enumerate(self.args) for _ in tree.leaves(arg)]
        self.batch = self._batch(batch_args)
        self.returned = arguments_anew(self.program, self.args, self.out_tree)
        self.state = {n for n in range(len(self.args)) if self._is_state(n)}
        if batch_args is None:
            self.batch -= {n for n, arg in enumerate(self.argument) if arg in self.state}
            self.batch -= self._without_samples()

    def with_function(self, function: Callable[..., Any]) -> Step:
        """Another function as the step, on the same arguments."""
        found = Step(function, self.args, self.batch_args)
        found.given = self.given or self.function
        return found

    def with_arguments(self, args: Sequence[Any]) -> Step:
        """The same step on other arguments."""
        found = Step(self.function, args, self.batch_args)
        found.microbatches = self.microbatches
        return found

    def in_microbatches(self, count: int) -> Step:
        """The step with its batch in so many parts, one after the other."""
        if count == 1:
            return self
        numbers = tuple(sorted({self.argument[n] for n in self.batch}))
        if not numbers:
            raise ShapeError(
                f"{self.name} has no batch that comes in {count} microbatches.",
                where=here(),
                why="no argument has the batch as its first dim",
                fix=f"batch_args={len(self.args) - 1}, or microbatches=1",
            )
        found = Step(microbatched(self.function, count, batch_args=numbers), self.args, numbers)
        found.microbatches = count
        return found

    @property
    def leaf_names(self) -> list[str]:
        """What each leaf of the arguments is called: ``params['up']``."""
        return [name + path for name, arg in zip(self.names, self.args, strict=True) for path in tree.path_names(arg)]

    @property
    def last_of_batch(self) -> set[int]:
        """The leaves of the last argument that may be a batch."""
        last = max((self.argument[n] for n in self.batch), default=-1)
        return {n for n in self.batch if self.argument[n] == last}

    def _is_state(self, number: int) -> bool:
        mine = [n for n, arg in enumerate(self.argument) if arg == number]
        return bool(mine) and all(n in self.returned.values() for n in mine)

    def _without_samples(self) -> set[int]:
        """Leaves of arguments that are no batch: of a step that returns something for each sample, as one that decodes
        does, what has no such first dim. A training step, which returns a loss, says nothing of the kind, and neither
        does one of whose arguments none has it."""
        outs = [atom.type for n, atom in enumerate(self.program.outputs) if n not in self.returned]
        rows = {t.shape[0] for t in outs if t.ndim}
        other = {self.argument[n] for n in self.batch if self.types[n].shape[0] not in rows} if rows else set()
        without = {n for n in self.batch if self.argument[n] in other}
        return without if without < self.batch else set()

    def _batch(self, given: Any) -> set[int]:
        """The leaves that have the batch as their first dim."""
        count = len(self.args)
        numbers = range(count) if given is None else checked_arguments(given, count, self.name)
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
        memory: float, mode: str, expected: Callable[[Callable[[], Simulation]], Expected] | None = None,
    ) -> FoundLayout:  # fmt: skip
        """A layout: simulated, or what is ``expected`` of it beside what simulates it."""
        named = [s.to_named() for s in given]
        asked = self.results(named)
        program = constrained(self.program, specs)
        mesh = named[0].mesh
        assert isinstance(mesh, Mesh)

        def whole() -> Simulation:
            rest = (self.donated, self.argument, mode)
            return evaluated(program, self.out_tree, topology, named, asked, *rest).simulation

        return FoundLayout(
            mesh,
            tree.unflatten(self.in_tree, named)[0],
            tree.unflatten(self.out_tree, asked),
            whole() if expected is None else expected(whole),
            memory,
            name,
            tuple(_listed(self.program, specs)),
            self,
            program,
            dict(specs),
        )

    def compiled(self, layout: FoundLayout) -> Compiled:
        function = self.function
        if layout.specs:
            program, out_tree = layout.program, self.out_tree

            def function(*args: Any) -> Any:
                assert program is not None
                return tree.unflatten(out_tree, run(program, tree.leaves(args)))

        options: dict[str, Any] = {"in_shardings": layout.in_shardings, "out_shardings": layout.out_shardings}
        made = jit(function, donate_argnums=self.donate, **options)
        found: Compiled = made.lower(*self.args).compile()
        return found


def _names(function: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """What the function calls its arguments; ``argument_1`` where it does not say."""
    try:
        given = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        given = []
    plain = [p.name for p in given if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    return [plain[n] if n < len(plain) else f"argument_{n}" for n in range(len(args))]


def _listed(program: Program, specs: Mapping[Var, PartitionSpec]) -> Iterator[Constraint]:
    """The constraints on values of a program and its regions, in order."""
    for eqn in program.eqns:
        for _, region in eqn.regions():
            yield from _listed(region, specs)
        for var in eqn.outputs:
            if var in specs:
                yield Constraint(eqn.source, var.type, specs[var])


def check_for_one_device(program: Program, looks: str, instead: str) -> None:
    """Refuse a step that is written for a mesh, or is as long as nobody knows: whoever looks for a mesh, and what to
    write instead."""
    for eqn in program.eqns:
        if eqn.op.structure is Structure.LOOP and eqn.op.runs(eqn, "body").times is None:
            raise MeshwrightError(
                "The step has a while loop, and how often it runs is not known.",
                where=eqn.source.show() if eqn.source else here(),
                why="it ends when its condition says so, which depends on values, and so does what the step takes",
                fix="a lax.fori_loop or a lax.scan, whose length is known",
            )
        if eqn.op.structure is Structure.DEVICE:
            raise MeshwrightError(
                "The step has a shard_map.",
                where=eqn.source.show() if eqn.source else here(),
                why=f"it is written for one device of a mesh, and {looks}",
                fix=f"the same computation without shard_map, or {instead} on the mesh that it names",
            )
        for _, region in eqn.regions():
            check_for_one_device(region, looks, instead)


def check_constraints(program: Program, axes: Collection[str] | None) -> None:
    """Refuse constraints on axes that the meshes do not have on which a step is looked at; with None, on any."""
    for eqn in program.eqns:
        if eqn.op.structure is Structure.CONSTRAINT:
            spec: PartitionSpec = eqn.params["spec"]
            written = [*spec.unreduced, *(axis for entry in spec.partitions for axis in entry_axes(entry))]
            other = next((one for one in written if one.split(":")[0] not in (axes or ())), None)
            if other is not None:
                raise MeshwrightError(
                    f"The step has a constraint along {other!r}.",
                    where=eqn.source.show() if eqn.source else here(),
                    why="find_layout is to choose the mesh"
                    if axes is None
                    else f"the mesh to stay on has {', '.join(map(repr, axes))}",
                    fix="the same step without the constraint, or fixed=mesh with the mesh that it names",
                )
        for _, region in eqn.regions():
            check_constraints(region, axes)
