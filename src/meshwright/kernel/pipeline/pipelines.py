"""Pipelines: a body run over a grid while blocks of its operands come and go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.kernel.language.body import close_scope, mismatch, named_too, scoped
from meshwright.kernel.language.indexing import as_int
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.semaphores import SemaphoreRef
from meshwright.kernel.language.spaces import BufferType, semantics
from meshwright.kernel.pipeline.allocations import allocation, window_of
from meshwright.kernel.pipeline.arguments import PipelineArg
from meshwright.kernel.pipeline.blocks import BlockSpec, Buffered
from meshwright.kernel.pipeline.runs import PipelineRun
from meshwright.kernel.run.faults import KernelError
from meshwright.kernel.run.tasks import KernelTask


def renest(refs: Sequence[Any], trees: Sequence[tree.TreeDef]) -> list[Any]:
    """Refs as the trees that arguments were."""
    out, at = [], 0
    for one in trees:
        out.append(tree.unflatten(one, refs[at : at + one.num_leaves]))
        at += one.num_leaves
    return out


class Pipeline:
    """A body, a grid and how each operand is cut; called with refs, in the order inputs, outputs."""

    def __init__(
        self,
        body: Callable[..., Any],
        grid: Sequence[Any],
        in_specs: Sequence[BlockSpec],
        out_specs: Sequence[BlockSpec],
        accumulate: Sequence[bool],
        *,
        no_pipelining: bool = False,
        trees: tuple[Sequence[tree.TreeDef], Sequence[tree.TreeDef]] | None = None,
        explicit: bool = False,
    ) -> None:
        if no_pipelining:
            once = Buffered(1)
            in_specs, out_specs = ([s.replace(pipeline_mode=once) for s in specs] for specs in (in_specs, out_specs))
        self.body = body
        self.explicit = explicit  # whether the body is told which step it is
        self.grid = tuple(as_int(n) for n in grid)
        self.in_specs = list(in_specs)
        self.out_specs = list(out_specs)
        self.accumulate = list(accumulate)
        one = tree.structure(0)
        # Of each argument of the body, inputs and outputs; the specs are those of their leaves.
        self.in_trees, self.out_trees = trees or ([one] * len(self.in_specs), [one] * len(self.out_specs))
        every = (*self.in_trees, *self.out_trees)
        self.trees = () if all(t.is_leaf() for t in every) else every  # none: refs are the arguments
        self.first = (0,) * len(self.grid)  # where the part of the grid that this core runs starts
        self.whole = self.grid
        self.parallel: dict[int, Sequence[int]] = {}  # the order of steps along axes where it must not matter
        self.scalars: tuple[Any, ...] = ()  # refs that index maps see after the grid indices

    def divide(self, task: KernelTask, named: Any) -> None:
        """Let each core run a part of the grid: of the first parallel axis that they divide, or of the longest one."""
        cores = task.machine.cores
        parallel = [n for n, name in enumerate(named or ()) if semantics(name) == "parallel"]
        if not parallel:
            raise KernelError(
                f"A grid is to be divided among {cores} cores, but no axis of it is parallel.",
                where=here(),
                why="the steps of other axes must be run in order",
                fix='dimension_semantics=("parallel", "arbitrary")',
            )
        even = [n for n in parallel if self.grid[n] % cores == 0]
        chosen = even[0] if even else max(parallel, key=lambda n: self.grid[n])
        size, more = divmod(self.grid[chosen], cores)
        start = task.core * size + min(task.core, more)
        self.first = tuple(start if n == chosen else 0 for n in range(len(self.grid)))
        self.grid = tuple(size + (task.core < more) if n == chosen else k for n, k in enumerate(self.grid))

    # Memory

    def allocation_types(self, types: Sequence[Any]) -> PipelineArg:
        """The scratch memory the pipeline needs, for operands of these types."""
        n = len(self.in_specs)
        inputs = [allocation(spec, t, BufferType.INPUT) for spec, t in zip(self.in_specs, types[:n], strict=True)]
        given = list(zip(self.out_specs, types[n:], self.accumulate, strict=True))
        outs = [allocation(spec, t, BufferType.OUTPUT, add) for spec, t, add in given]
        again = [allocation(spec, t, BufferType.INPUT, add) for spec, t, add in given if add]
        return PipelineArg(inputs, outs, again)

    def windows(self, allocations: Any) -> PipelineArg:
        """Windows over allocated memory: by what they are to the pipeline, or one per operand, inputs first."""
        counts = len(self.in_specs), len(self.out_specs), sum(self.accumulate)
        if not isinstance(allocations, PipelineArg):
            flat = list(allocations) if isinstance(allocations, tuple | list) else [allocations]
            allocations = PipelineArg(flat[: counts[0]], flat[counts[0] :], [])
        if tuple(map(len, allocations)) != counts:
            raise KernelError(
                f"A pipeline of {counts[0]} inputs and {counts[1]} outputs, {counts[2]} of them accumulating, gets "
                f"allocations for {', '.join(map(str, map(len, allocations)))}.",
                where=here(),
                why="it takes what its make_allocations says, or one BufferedRef per operand where none accumulates",
                fix="pipeline, make_allocations = pltpu.emit_pipeline_with_allocations(…)",
            )
        specs = (
            self.in_specs,
            self.out_specs,
            [s for s, add in zip(self.out_specs, self.accumulate, strict=True) if add],
        )
        given = zip(allocations, specs, strict=True)
        return PipelineArg(*([window_of(a, s) for a, s in zip(group, of, strict=True)] for group, of in given))

    # Running

    def require_parameters(self, scratches: int) -> None:
        """Refuse a body that does not take the refs it is given."""
        ins, outs = len(self.in_trees), len(self.out_trees)
        wrong = mismatch(self.body, range(ins + outs + scratches))
        if wrong:
            raise KernelError(
                f"The body of a pipeline cannot take the {ins + outs + scratches} refs it is given.",
                where=here(),
                why=f"{wrong}; it is given blocks of {ins} inputs and {outs} outputs and {scratches} of scratch "
                "memory, in this order",
                fix=f"one parameter for each: def body(x_ref, …, out_ref, …, scratch_ref, …{named_too(self.body)})",
            ) from None

    def require_refs(self, refs: Sequence[Any]) -> None:
        """Refuse operands that are no memory, and too many or too few of them."""
        for n, ref in enumerate(refs):
            if not isinstance(ref, Ref | SemaphoreRef):
                raise KernelError(
                    f"Operand {n} of a pipeline is a {type(ref).__name__}.",
                    where=here(),
                    why="blocks come from memory and go to memory",
                    fix="pass the ref or a part of it, ref.at[...], not what a load returned",
                )
        if len(refs) != len(self.in_specs) + len(self.out_specs):
            raise KernelError(
                f"A pipeline of {len(self.in_specs)} inputs and {len(self.out_specs)} outputs gets {len(refs)} refs.",
                where=here(),
                why="it takes one ref per in_spec and one per out_spec",
                fix="emit_pipeline(…)(x_ref, y_ref, out_ref)",
            )

    def nested(self, refs: Sequence[Ref]) -> list[Any]:
        """Refs, inputs first, as the arguments of the body."""
        return renest(refs, self.trees) if self.trees else list(refs)

    def run(
        self,
        task: KernelTask,
        refs: Sequence[Ref],
        scratches: Sequence[Any] = (),
        windows: PipelineArg | None = None,
        **callbacks: Any,
    ) -> None:
        """Run the body over the grid."""
        self.require_refs(refs)
        made: list[Any] = []
        if windows is None:
            types = self.allocation_types(refs)
            windows = self.windows(
                tree.map(lambda wanted: scoped(task, wanted, "a buffer of the pipeline", made), types)
            )
        PipelineRun(self, task, windows, refs, scratches, **callbacks).go()
        close_scope(task, made)

    def make_refs(self, *refs: Any) -> PipelineArg:
        """Refs by what they are to the pipeline; an accumulating output is both ``out`` and ``in_out``."""
        n = len(self.in_specs)
        flat = tree.leaves(refs)
        self.require_refs(flat)
        outs = flat[n:]
        return PipelineArg(flat[:n], outs, [ref for ref, add in zip(outs, self.accumulate, strict=True) if add])

    def walk(self) -> Iterator[tuple[int, ...]]:
        """The grid indices of all steps; the last axis runs fastest."""
        ranges: list[Sequence[int]] = [range(a, a + n) for a, n in zip(self.first, self.grid, strict=True)]
        for axis in self.parallel:
            ranges[axis] = self.parallel[axis]
        return itertools.product(*ranges)
