"""Pipelines: a body run over a grid while blocks of its operands come and go.

Each step, in this order: start to fetch what a later step needs; wait for what this step needs; run the body; start
to write back a block the next step no longer writes. A block that the next step works on again stays where it is.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.kernel.allocations import allocation, window_of
from meshwright.kernel.blocks import BlockSpec, Buffered, blocks_of
from meshwright.kernel.faults import KernelError
from meshwright.kernel.indexing import as_int
from meshwright.kernel.language import close_scope, scoped
from meshwright.kernel.refs import Ref
from meshwright.kernel.spaces import MemorySpace, semantics
from meshwright.kernel.tasks import Task
from meshwright.kernel.windows import Window, add_into, copy_into

MOST_STEPS = 1 << 24  # of a grid


class PipelineArg(NamedTuple):
    """Something for each operand of a pipeline, by what it is to the pipeline."""

    input: Any
    out: Any
    in_out: Any


PipelineRefs = PipelineArg
PipelineBuffers = PipelineArg  # per operand the slots (current, next)
PipelineAllocations = PipelineArg


@dataclass(frozen=True)
class PipelineCallbackArgs:
    """What a callback of a pipeline is given."""

    pipeline_specs: PipelineArg
    pipeline_refs: PipelineArg
    pipeline_buffer_refs: PipelineArg
    pipeline_allocations: PipelineArg
    pipeline_buffers: PipelineArg
    make_pipeline_refs: Callable[..., PipelineArg]
    start_pipeline_prefetch: Callable[..., tuple[Any, Any]]


class PipelinePrefetchArgs(NamedTuple):
    """What to prefetch: the operands of the next run, and the buffers to fetch into."""

    pipeline_refs: PipelineArg
    pipeline_allocations: PipelineArg
    pipeline_buffers: PipelineArg


def broadcast(prefix: Any, count: int, what: str) -> list[bool]:
    """A flag per operand from one for all or a list of them; a list of one stands for all."""
    values = list(prefix) if isinstance(prefix, tuple | list) else [prefix] * count
    if len(values) == 1:
        values *= count
    if len(values) != count:
        raise KernelError(
            f"{what} has {len(values)} flags for {count} operands.",
            where=here(),
            why="it is one flag for all, or one for each",
            fix="[True, False]",
        )
    return [bool(value) for value in values]


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
    ) -> None:
        if no_pipelining:
            once = Buffered(1)
            in_specs, out_specs = ([s.replace(pipeline_mode=once) for s in specs] for specs in (in_specs, out_specs))
        self.body = body
        self.grid = tuple(as_int(n) for n in grid)
        self.in_specs = list(in_specs)
        self.out_specs = list(out_specs)
        self.accumulate = list(accumulate)
        self.first = (0,) * len(self.grid)  # where the part of the grid that this core runs starts
        self.whole = self.grid
        self.parallel: dict[int, Sequence[int]] = {}  # the order of steps along axes where it must not matter
        self.scalars: tuple[Any, ...] = ()  # refs that index maps see after the grid indices

    def divide(self, task: Task, named: Any) -> None:
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
        inputs = [allocation(spec, t) for spec, t in zip(self.in_specs, types[:n], strict=True)]
        given = list(zip(self.out_specs, types[n:], self.accumulate, strict=True))
        outs = [allocation(spec, t, add) for spec, t, add in given]
        again = [allocation(spec, t, add) for spec, t, add in given if add]
        return PipelineArg(inputs, outs, again)

    def windows(self, allocations: Any) -> PipelineArg:
        """Windows over allocated memory: by what they are to the pipeline, or one per operand, inputs first."""
        if not isinstance(allocations, PipelineArg):
            n = len(self.in_specs)
            allocations = PipelineArg(allocations[:n], allocations[n:], [])
        return PipelineArg(*([window_of(a) for a in group] for group in allocations))

    # Running

    def require_parameters(self, scratches: int) -> None:
        """Refuse a body that does not take the refs it is given."""
        ins, outs = len(self.in_specs), len(self.out_specs)
        try:
            inspect.signature(self.body).bind(*range(ins + outs + scratches))
        except TypeError as error:
            raise KernelError(
                f"The body of a pipeline cannot take the {ins + outs + scratches} refs it is given.",
                where=here(),
                why=f"{error}; it is given blocks of {ins} inputs and {outs} outputs and {scratches} of scratch "
                "memory, in this order",
                fix="one parameter for each: def body(x_ref, …, out_ref, …, scratch_ref, …)",
            ) from None

    def run(
        self,
        task: Task,
        refs: Sequence[Ref],
        scratches: Sequence[Any] = (),
        windows: PipelineArg | None = None,
        **callbacks: Any,
    ) -> None:
        """Run the body over the grid."""
        if len(refs) != len(self.in_specs) + len(self.out_specs):
            raise KernelError(
                f"A pipeline of {len(self.in_specs)} inputs and {len(self.out_specs)} outputs gets {len(refs)} refs.",
                where=here(),
                why="it takes one ref per in_spec and one per out_spec",
                fix="emit_pipeline(…)(x_ref, y_ref, out_ref)",
            )
        made: list[Any] = []
        if windows is None:
            types = self.allocation_types(refs)
            windows = self.windows(
                tree.map(lambda wanted: scoped(task, wanted, "a buffer of the pipeline", made), types)
            )
        Run(self, task, windows, refs, scratches, **callbacks).go()
        close_scope(task, made)

    def make_refs(self, *refs: Ref) -> PipelineArg:
        """Refs by what they are to the pipeline; an accumulating output is both ``out`` and ``in_out``."""
        n = len(self.in_specs)
        outs = list(refs[n:])
        return PipelineArg(list(refs[:n]), outs, [ref for ref, add in zip(outs, self.accumulate, strict=True) if add])

    def walk(self) -> Iterator[tuple[int, ...]]:
        """The grid indices of all steps; the last axis runs fastest."""
        ranges: list[Sequence[int]] = [range(a, a + n) for a, n in zip(self.first, self.grid, strict=True)]
        for axis in self.parallel:
            ranges[axis] = self.parallel[axis]
        return itertools.product(*ranges)


class _Operand:
    """One operand in one run: its window, or a view of its own memory where there is none."""

    __slots__ = ("blocks", "changed", "indices", "pipeline", "ref", "steps", "visited", "window")

    def __init__(self, run: Run, window: Window | None, ref: Ref, spec: BlockSpec, label: str) -> None:
        self.pipeline = run.pipeline
        self.ref = ref
        self.blocks = blocks_of(spec, ref.shape, label)
        self.steps = run.pipeline.walk()
        self.indices: list[tuple[Any, ...]] = []  # the block of each step so far
        self.changed: list[bool] = []  # and whether it is another than the one before
        self.visited: set[tuple[Any, ...]] = set()
        self.window = window
        wanted = spec.memory_space or MemorySpace.VMEM
        if window is None and wanted.addressable and ref.memory_space not in (wanted, MemorySpace.SEMAPHORE):
            raise KernelError(
                f"{label[0].upper()}{label[1:]} is in {ref.memory_space.name}, and no buffer is allocated for it.",
                where=here(),
                why=f"the allocations are for an operand in {wanted.name}, which needs none",
                fix=f"make_allocations(pltpu.{ref.memory_space.name}({ref.shape}, '{ref.dtype.name}'), …) for it",
            )
        if window is not None:
            window.bind(ref, self.blocks)
            if run.task.machine.tiles and window.slots[0].memory_space is MemorySpace.VMEM:
                self.blocks.require_tiles(ref.dtype)
            window.lookahead = spec.pipeline_mode is not None and spec.pipeline_mode.use_lookahead

    def index(self, step: int) -> tuple[Any, ...]:
        """The block that a step works on."""
        while len(self.indices) <= step:
            found = self.blocks.index((*next(self.steps), *self.pipeline.scalars))
            self.changed.append(not self.indices or found != self.indices[-1])
            self.indices.append(found)
        return self.indices[step]

    def changes(self, step: int) -> bool:
        """Whether a step works on another block than the one before."""
        if len(self.changed) <= step:
            self.index(step)
        return self.changed[step]

    def require_new(self, step: int) -> None:
        """Refuse to come back to a block of an output that was left: what was written is no longer in its window."""
        index = self.index(step)
        if index in self.visited:
            at = next(itertools.islice(self.pipeline.walk(), step, None))
            raise KernelError(
                f"Block {index} of {self.blocks.label} is written again after another one.",
                where=self.blocks.where(),
                why=f"grid step {at} comes back to it, and the copy that wrote it the first "
                "time may still be under way",
                fix="let all steps of a block follow each other: put the axes that the index map does not use last",
            )
        self.visited.add(index)

    def direct(self, step: int) -> Ref:
        """The block in the operand's own memory."""
        if self.blocks.whole or self.ref.memory_space is MemorySpace.SEMAPHORE:
            return self.ref
        outside, inside = self.blocks.parts(self.index(step))
        if inside is not None:
            raise KernelError(
                f"Block {self.index(step)} of {self.blocks.label} reaches beyond it, and it has no buffer.",
                where=self.blocks.where(),
                why=f"the operand has shape {self.ref.shape}, its blocks {self.blocks.sizes}; "
                "the body works on the operand's own memory, which is smaller there",
                fix="blocks that divide the operand",
            )
        cut = tuple(part if kept else part.start for part, kept in zip(outside, self.blocks.kept, strict=True))
        return self.ref.at[cut]


class Run:
    """One run of a pipeline over its grid."""

    def __init__(
        self,
        pipeline: Pipeline,
        task: Task,
        windows: PipelineArg,
        refs: Sequence[Ref],
        scratches: Sequence[Any],
        *,
        init_allocations: Any = None,
        prologue: Callable[[Any], Any] | None = None,
        epilogue: Callable[[Any], Any] | None = None,
        out_prologue: Callable[[Any], Any] | None = None,
        out_epilogue: Callable[[Any], Any] | None = None,
        postyeet: Callable[[Any], Any] | None = None,
        allocations: Any = None,
    ) -> None:
        self.pipeline = pipeline
        self.task = task
        self.windows = windows
        self.scratches = list(scratches)
        self.allocations = allocations
        self.grouped = pipeline.make_refs(*refs)
        self.fresh = init_allocations is not None and bool(init_allocations)
        self.prologue, self.epilogue = prologue, epilogue
        self.out_prologue, self.out_epilogue, self.postyeet = out_prologue, out_epilogue, postyeet
        specs = pipeline.in_specs
        self.inputs = [
            _Operand(self, w, r, s, f"input {n} of the pipeline")
            for n, (w, r, s) in enumerate(zip(windows.input, self.grouped.input, specs, strict=True))
        ]
        self.outs = [
            _Operand(self, w, r, s, f"output {n} of the pipeline")
            for n, (w, r, s) in enumerate(zip(windows.out, self.grouped.out, pipeline.out_specs, strict=True))
        ]
        adding = [n for n, add in enumerate(pipeline.accumulate) if add]
        self.sums = {
            n: _Operand(self, w, self.grouped.out[n], pipeline.out_specs[n], f"output {n} of the pipeline")
            for n, w in zip(adding, windows.in_out, strict=True)
        }
        # A fresh run has no sums to go on from.
        self.reading = [*self.inputs, *([] if self.fresh else self.sums.values())]
        self.reading += [out for out in self.outs if out.window is not None and out.window.comes]
        if self.fresh:
            for group in windows:
                for window in group:
                    if window is not None:
                        window.reset()
        self.fetched = [operand for operand in self.reading if operand.window is not None]
        self.steps = prod(pipeline.grid)
        if self.steps > MOST_STEPS:
            raise KernelError(
                f"A grid of {self.steps} steps is not run.",
                where=here(),
                why=f"the grid is {tuple(pipeline.grid)}, and steps are run one after the other, up to {MOST_STEPS}",
                fix="larger blocks, and a smaller grid",
            )
        self.line = task.source()  # of the call: that of the pipeline's own copies
        self.after: dict[int, tuple[Ref, Any]] = {}  # sums to fetch once they are written: of which ref, at which line

    def go(self) -> None:
        """All steps."""
        task, whole = self.task, self.pipeline.whole
        if self.steps == 0:
            return
        self._start()
        task.grids.append((self.pipeline.first, whole))
        machine = task.machine
        for step, indices in enumerate(self.pipeline.walk()):
            task.grids[-1] = (indices, whole)
            machine.step(task)
            self._step(step)
        task.grids.pop()
        self._end()

    # The parts of a step

    def _start(self) -> None:
        """Before the first step: fetch the first blocks, unless an earlier run has."""
        n, m = len(self.inputs), len(self.sums)
        (skip_in, skip_sum), (force_in, force_sum) = (False, False), (False, False)
        if self.prologue is not None:
            (skip_in, skip_sum), (force_in, force_sum) = self.prologue(self._arguments())
        skipped = broadcast(skip_in, n, "The prologue's skip condition") + broadcast(skip_sum, m, "The prologue")
        forced = broadcast(force_in, n, "The prologue's wait") + broadcast(force_sum, m, "The prologue's wait")
        self.wait_first: dict[int, bool] = {}
        first = [*self.inputs, *self.sums.values()]
        rest = [operand for operand in self.reading if operand not in first]
        flags = zip([*first, *rest], [*skipped, *[False] * len(rest)], [*forced, *[False] * len(rest)], strict=True)
        for operand, skip, force in flags:
            window = operand.window
            if window is None or operand not in self.reading:
                continue
            changed = window.last is None or window.last != operand.index(0)
            self.wait_first[id(operand)] = not skip or force or changed
            window.target = 1 if skip else 0
            if not skip:
                self._fetch_ahead(operand, max(window.count - 2, 0), window.arrived)
        skip_out = self.out_prologue is not None and bool(self.out_prologue(self._arguments()))
        self.earlier = [0 if out.window is None or skip_out else out.window.opened for out in self.outs]

    def _land(self) -> None:
        """In the first step: wait for what the run before has left to be written."""
        for out, number in zip(self.outs, self.earlier, strict=True):
            if out.window is not None:
                out.window.await_before(self.task, number)
        if self.postyeet is not None:
            self.postyeet(self._arguments())

    def _settle(self, operand: _Operand, step: int) -> None:
        """Before a sum is read again, let the copy that writes it be over."""
        if operand.window is not None and operand.window.comes:
            operand.window.await_before(self.task, operand.window.started - operand.window.count + 1)
            operand.window.await_left(self.task, operand.index(step))
        for n, total in self.sums.items():
            window = self.outs[n].window
            if total is operand and window is not None:
                window.await_left(self.task, operand.index(step))

    def _fetch_ahead(self, operand: _Operand, limit: int, oldest: int) -> None:
        """Start the fetches of steps up to ``limit``; with lookahead, of as many changed blocks as there is room for.

        ``oldest`` is the number of the oldest block that is still needed.
        """
        window = operand.window
        assert window is not None
        while window.target < self.steps:
            if window.lookahead:
                if window.started - oldest >= window.count:
                    return
            elif window.target > limit:
                return
            if operand.changes(window.target):
                self._settle(operand, window.target)
                window.fetch(self.task, operand.index(window.target), self.line)
            window.target += 1

    def _step(self, step: int) -> None:
        task, last = self.task, step == self.steps - 1
        comes = [x.changes(step) if step else self.wait_first[id(x)] for x in self.fetched]
        for operand, new in zip(self.fetched, comes, strict=True):
            window = operand.window
            assert window is not None
            self._fetch_ahead(operand, step + window.count - 1, window.arrived - (not new))
        if last and self.epilogue is not None:
            self.epilogue(self._arguments())
        for operand, new in zip(self.fetched, comes, strict=True):
            if new:
                operand.window.await_fetch(task, operand.index(step))  # type: ignore[union-attr]
        for n, out in enumerate(self.outs):
            if out.window is not None and out.changes(step):
                if n not in self.sums:
                    out.require_new(step)
                out.window.open(task)
        self._body(step)
        if step == 0:
            self._land()
        for n, out in enumerate(self.outs):
            if out.window is not None and (last or out.changes(step + 1)):
                self._write_back(n, out, step, last)

    def _body(self, step: int) -> None:
        refs = [
            operand.window.current if operand.window is not None else operand.direct(step) for operand in self.inputs
        ]
        refs += [out.window.open_view if out.window is not None else out.direct(step) for out in self.outs]
        try:
            result = self.pipeline.body(*refs, *self.scratches)
        except TypeError:
            self.pipeline.require_parameters(len(self.scratches))
            raise
        if result is not None:
            source = self.task.source()
            raise KernelError(
                f"The body of a kernel returns {type(result).__name__}.",
                where=source.show() if source else "",
                why="results are what it stores to its output refs",
                fix="out_ref[...] = value",
            )

    def _write_back(self, n: int, out: _Operand, step: int, last: bool) -> None:
        window = out.window
        assert window is not None
        total = self.sums.get(n)
        if total is not None and total.window is not None:
            sums = total.window
            if not self.fresh or sums.arrived:
                add_into(window.last_opened, sums.last_arrived, self.task)
            if last and n not in self.after and out.index(0) == out.index(step):
                # The next run goes on with this block: it finds the sum so far where it looks for it.
                if not sums.arrived:
                    sums.started = sums.arrived = 1
                copy_into(sums.last_arrived, window.last_opened, self.task)
        window.leave(self.task, out.index(step), self.line)
        if last and total is not None and n in self.after:
            self._fetch_for_next(total, *self.after.pop(n))

    def _end(self) -> None:
        """After the last step: wait for what is still being written, unless a later run will."""
        for operand in (*self.inputs, *self.sums.values()):
            if operand.window is not None:
                operand.window.last = operand.index(self.steps - 1)
        if self.out_epilogue is not None and bool(self.out_epilogue(self._arguments())):
            return
        for out in self.outs:
            if out.window is not None:
                out.window.await_left(self.task)

    # Callbacks

    def _arguments(self) -> PipelineCallbackArgs:
        def buffers(operands: Sequence[_Operand]) -> list[tuple[int, int]]:
            return [_pair(operand.window) for operand in operands]

        return PipelineCallbackArgs(
            pipeline_specs=PipelineArg(self.pipeline.in_specs, self.pipeline.out_specs, self.pipeline.accumulate),
            pipeline_refs=self.grouped,
            pipeline_buffer_refs=self.windows,
            pipeline_allocations=self.allocations,
            pipeline_buffers=PipelineArg(buffers(self.inputs), buffers(self.outs), buffers(list(self.sums.values()))),
            make_pipeline_refs=self.pipeline.make_refs,
            start_pipeline_prefetch=self._prefetch,
        )

    def _prefetch(
        self, prefetch_args: PipelinePrefetchArgs, *, force_copy: Any = (False, False), force_skip: Any = (False, False)
    ) -> tuple[Any, Any]:
        """Start to fetch the first blocks of the next run: those that change, and those that are forced."""
        refs = prefetch_args.pipeline_refs
        n, m = len(self.inputs), len(self.sums)
        forced = broadcast(force_copy[0], n, "force_copy") + broadcast(force_copy[1], m, "force_copy")
        skipped = broadcast(force_skip[0], n, "force_skip") + broadcast(force_skip[1], m, "force_skip")
        operands = [*self.inputs, *self.sums.values()]
        for operand, ref, force, skip in zip(operands, [*refs.input, *refs.in_out], forced, skipped, strict=True):
            window = operand.window
            if window is None or skip:
                continue
            moves = operand.index(0) != operand.index(self.steps - 1)
            total = next((n for n, one in self.sums.items() if one is operand), None)
            if force and not moves and total is not None:
                self.after[total] = ref, self.task.source()  # the last step has still to write it
            elif force or moves:
                self._fetch_for_next(operand, ref, self.task.source())
        return (
            [_pair(operand.window) for operand in self.inputs],
            [_pair(operand.window) for operand in self.sums.values()],
        )


    def _fetch_for_next(self, operand: _Operand, ref: Ref, line: Any) -> None:
        """Start to fetch the first block of the next run, which is of another ref."""
        window = operand.window
        assert window is not None
        self._settle(operand, 0)
        own = window.ref
        window.bind(ref, operand.blocks)
        window.fetch(self.task, operand.index(0), line)
        window.bind(own, operand.blocks)


def _pair(window: Window | None) -> tuple[int, int]:
    """The slots (current, next) of a window."""
    if window is None:
        return (0, 0)
    return (max(window.started - 1, 0) % window.count, window.started % window.count)
