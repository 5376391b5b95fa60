"""Runs of pipelines: the steps, and the blocks that come and go meanwhile.

Each step, in this order: start to fetch what a later step needs; wait for what this step needs; run the body; start
to write back a block the next step no longer writes. A block that the next step works on again stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from meshwright.api.direct import integer
from meshwright.core import tree
from meshwright.core.source import Source, here
from meshwright.kernel.language.body import mismatch
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.pipeline.arguments import (
    PipelineArg,
    PipelineCallbackArgs,
    PipelinePrefetchArgs,
    PipelineStep,
    flags,
    pair,
)
from meshwright.kernel.pipeline.blocks import BlockSpec
from meshwright.kernel.pipeline.operands import BlockIndices, PipelineOperand
from meshwright.kernel.pipeline.windows import Window, add_into, copy_into
from meshwright.kernel.run.faults import KernelError
from meshwright.kernel.run.tasks import KernelTask

if TYPE_CHECKING:
    from meshwright.kernel.pipeline.pipelines import Pipeline

MOST_STEPS = 1 << 24  # of a grid


class PipelineRun:
    """One run of a pipeline over its grid."""

    def __init__(
        self,
        pipeline: Pipeline,
        task: KernelTask,
        windows: PipelineArg,
        refs: Sequence[Ref],
        scratches: Sequence[Any],
        *,
        init_allocations: Any = False,
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
        self.fresh = init_allocations is not False and all(
            flags(init_allocations, [tree.structure(0)], "init_allocations")
        )
        self.prologue, self.epilogue = prologue, epilogue
        self.out_prologue, self.out_epilogue, self.postyeet = out_prologue, out_epilogue, postyeet

        maps: dict[Any, BlockIndices] = {}

        def operand(kind: str, n: int, window: Window | None, ref: Ref, spec: BlockSpec) -> PipelineOperand:
            return PipelineOperand(pipeline, task, window, ref, spec, f"{kind} {n} of the pipeline", maps)

        ins = zip(windows.input, self.grouped.input, pipeline.in_specs, strict=True)
        outs = list(zip(windows.out, self.grouped.out, pipeline.out_specs, strict=True))
        adding = [n for n, add in enumerate(pipeline.accumulate) if add]
        self.inputs = [operand("input", n, *row) for n, row in enumerate(ins)]
        self.outs = [operand("output", n, *row) for n, row in enumerate(outs)]
        self.sums = {n: operand("output", n, w, *outs[n][1:]) for n, w in zip(adding, windows.in_out, strict=True)}
        for out, spec in zip(self.outs, pipeline.out_specs, strict=True):
            if out.window is not None and spec.revisits:
                out.window.comes = True
        for one in self.inputs:
            if one.window is not None and one.prefetched:
                one.window.reset()  # its slots are filled anew for each run, from the first
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
        self.parents = list(task.grids)
        self.line = task.source()  # of the call: that of the pipeline's own copies
        self.after: dict[int, tuple[Ref, Source | None]] = {}  # sums to fetch once they are written, from where

    def go(self) -> None:
        """All steps."""
        task, whole = self.task, self.pipeline.whole
        if self.steps == 0:
            return
        self._start()
        self._protect(True)
        task.grids.append((self.pipeline.first, whole))
        machine = task.machine
        for step, indices in enumerate(self.pipeline.walk()):
            task.grids[-1] = (indices, whole)
            machine.step(task)
            self._step(step)
        task.grids.pop()
        self._protect(False)
        self._end()

    def _protect(self, protect: bool) -> None:
        """Where mistakes are looked for, let nothing but the pipeline write to windows of inputs."""
        if self.task.machine.history is not None:
            for operand in self.inputs:
                if operand.window is not None:
                    operand.window.slots[0].buffer.readonly = protect

    # The parts of a step

    def _start(self) -> None:
        """Before the first step: fetch the first blocks, unless an earlier run has."""
        if self.prologue is None:
            skipped = forced = [False] * (len(self.inputs) + len(self.sums))
        else:
            answer = self._ask(self.prologue)
            skips, waits = pair(answer, "What the prologue returns", "which copies it skips and which it waits for")
            skipped = self._both(skips, "What the prologue skips")
            forced = self._both(waits, "What the prologue waits for")
        self.wait_first: dict[int, bool] = {}
        self.before = {id(x): x.window.started for x in self.fetched if x.window is not None}  # fetched by other runs
        first = [*self.inputs, *self.sums.values()]
        rest = [operand for operand in self.reading if operand not in first]
        none = [False] * len(rest)
        for operand, skip, force in zip([*first, *rest], [*skipped, *none], [*forced, *none], strict=True):
            window = operand.window
            if window is None or operand not in self.reading:
                continue
            changed = window.last is None or window.last != operand.index(0)
            self.wait_first[id(operand)] = not skip or force or changed
            window.target = 1 if skip else 0
            if not skip:
                self._fetch_ahead(operand, max(window.count - 2, 0), window.arrived)
        left = self._of_outs(self.out_prologue, "What the out_prologue returns")
        self.earlier = [
            0 if out.window is None or skip else out.window.opened for out, skip in zip(self.outs, left, strict=True)
        ]

    def _land(self) -> None:
        """In the first step: wait for what the run before has left to be written."""
        for out, number in zip(self.outs, self.earlier, strict=True):
            if out.window is not None:
                out.window.await_before(self.task, number)
        if self.postyeet is not None:
            self._ask(self.postyeet)

    def _finish(self, operand: PipelineOperand, step: int) -> None:
        """Before a sum is read again, let the copy that writes it be over."""
        if operand.window is not None and operand.window.comes:
            operand.window.await_before(self.task, operand.window.started - operand.window.count + 1)
            operand.window.await_left(self.task, operand.index(step))
        for n, total in self.sums.items():
            window = self.outs[n].window
            if total is operand and window is not None:
                window.await_left(self.task, operand.index(step))

    def _fetch_ahead(self, operand: PipelineOperand, limit: int, oldest: int) -> None:
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
            if operand.changes(window.target) and self._is_there(operand, window):
                window.take(self.task)
            elif operand.changes(window.target):
                if window.comes or self.sums:
                    self._finish(operand, window.target)
                window.fetch(self.task, operand.index(window.target), self.line, own=True)
            window.target += 1

    def _is_there(self, operand: PipelineOperand, window: Window) -> bool:
        """Whether a block was in its window before the run: as many steps of it as its spec says, or blocks."""
        return operand.prefetched > (window.started if window.lookahead else window.target)

    def _step(self, step: int) -> None:
        task, last = self.task, step == self.steps - 1
        comes = []
        for operand in self.fetched:
            window: Any = operand.window
            new = operand.changes(step) if step else self.wait_first[id(operand)]
            comes.append(new)
            limit = step + window.count - 1
            if window.target <= limit or window.lookahead:
                self._fetch_ahead(operand, limit, window.arrived - (not new))
        if last and self.epilogue is not None:
            self._ask(self.epilogue)
        for operand, new in zip(self.fetched, comes, strict=True):
            window = operand.window
            if new:
                window.await_fetch(task, operand.index(step))
            if not step and window.arrived <= self.before[id(operand)]:
                operand.require_held(new, self.line)
        for n, out in enumerate(self.outs):
            if out.window is not None and out.changes(step):
                if n not in self.sums and not self.pipeline.out_specs[n].revisits:
                    out.require_new(step)
                out.window.open(task)
        self._body(step)
        if step == 0:
            self._land()
        for n, out in enumerate(self.outs):
            if out.window is not None and (last or out.changes(step + 1)):
                self._write_back(n, out, step, last)

    def _body(self, step: int) -> None:
        first = [self._place(step)] if self.pipeline.explicit else []
        refs = [x.direct(step) if x.window is None else x.window.current for x in self.inputs]
        refs += [x.direct(step) if x.window is None else x.window.open_view for x in self.outs]
        if self.pipeline.trees:
            refs = self.pipeline.nested(refs)
        try:
            result = self.pipeline.body(*first, *refs, *self.scratches)
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

    def _place(self, step: int) -> PipelineStep:
        return PipelineStep(tuple(map(integer, self.task.grids[-1][0])), integer(step))

    def _write_back(self, n: int, out: PipelineOperand, step: int, last: bool) -> None:
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
                sums.carry(out.index(step), self.line)
        window.leave(self.task, out.index(step), self.line)
        if last and total is not None and n in self.after:
            self._fetch_for_next(total, *self.after.pop(n))

    def _end(self) -> None:
        """After the last step: wait for what is still being written, unless a later run will."""
        for operand in (*self.inputs, *self.sums.values()):
            if operand.window is not None:
                operand.window.last = operand.index(self.steps - 1)
        left = self._of_outs(self.out_epilogue, "What the out_epilogue returns")
        for out, skip in zip(self.outs, left, strict=True):
            if out.window is not None and not skip:
                out.window.await_left(self.task)

    # Callbacks

    def _ask(self, callback: Callable[[Any], Any]) -> Any:
        """Call a callback: a part of the parent, so that ``program_id`` is of the parent's grid."""
        arguments = self._arguments()
        grids, self.task.grids = self.task.grids, self.parents
        try:
            return callback(arguments)
        except TypeError:
            wrong = mismatch(callback, [arguments])
            if not wrong:
                raise
            raise KernelError(
                f"{callback!r} cannot be a callback of a pipeline."
                if not callable(callback)
                else "A callback of a pipeline cannot take what it is given.",
                where=here(),
                why=wrong if callable(callback) else "it is called while the pipeline runs",
                fix="a function of one argument: lambda args: …",
            ) from None
        finally:
            self.task.grids = grids

    def _both(self, prefix: Any, what: str) -> list[bool]:
        """A flag per input, then one per sum, from a prefix of both."""
        inputs, sums = pair(prefix, what, "for inputs and for accumulating outputs")
        found = flags(inputs, self.pipeline.in_trees, what)
        count = len(self.sums)
        if isinstance(sums, tuple | list) and len(sums) not in (1, count):
            every = flags(sums, self.pipeline.out_trees, what)
            return found + [every[n] for n in self.sums]
        return found + flags(sums, [tree.structure(0)] * count, what)

    def _of_outs(self, callback: Callable[[Any], Any] | None, what: str) -> list[bool]:
        """What a callback says of each output."""
        if callback is None:
            return [False] * len(self.outs)
        return flags(self._ask(callback), self.pipeline.out_trees, what)

    def _arguments(self) -> PipelineCallbackArgs:
        def buffers(operands: Sequence[PipelineOperand]) -> list[tuple[int, int]]:
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
        refs = getattr(prefetch_args, "pipeline_refs", None)
        counts = len(self.inputs), len(self.sums)
        if not isinstance(refs, PipelineArg) or (len(refs.input), len(refs.in_out)) != counts:
            raise KernelError(
                "start_pipeline_prefetch is not given the refs of the next run.",
                where=here(),
                why="it takes PipelinePrefetchArgs with what make_pipeline_refs returns for them",
                fix="pltpu.PipelinePrefetchArgs(\n"
                "    args.make_pipeline_refs(x_ref, out_ref), args.pipeline_allocations, args.pipeline_buffers\n)",
            )
        forced, skipped = self._both(force_copy, "force_copy"), self._both(force_skip, "force_skip")
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

    def _fetch_for_next(self, operand: PipelineOperand, ref: Ref, line: Source | None) -> None:
        """Start to fetch the first block of the next run, which is of another ref."""
        window, own = operand.window, operand.ref
        assert window is not None
        if (ref.shape, ref.dtype) != (own.shape, own.dtype):
            raise KernelError(
                f"{ref.dtype.name}{list(ref.shape)} is prefetched for {operand.blocks.label}.",
                where=line.show() if line else "",
                why=f"in this run it is {own.dtype.name}{list(own.shape)}, and both are cut into the same blocks",
                fix="refs of the shapes that the pipeline is called with, in the same order: "
                "args.make_pipeline_refs(x_ref, out_ref)",
            )
        self._finish(operand, 0)
        window.bind(ref, operand.blocks)
        window.fetch(self.task, operand.index(0), line)
        window.bind(own, operand.blocks)


def _pair(window: Window | None) -> tuple[int, int]:
    """The slots (current, next) of a window."""
    if window is None:
        return (0, 0)
    return (max(window.started - 1, 0) % window.count, window.started % window.count)
