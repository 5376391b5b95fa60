"""``emit_pipeline``: a grid inside a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import optree

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.semaphores import SemaphoreRef
from meshwright.kernel.pipeline.arguments import PipelineArg, flags
from meshwright.kernel.pipeline.blocks import BlockSpec
from meshwright.kernel.pipeline.pipelines import Pipeline
from meshwright.kernel.run.faults import KernelError
from meshwright.kernel.run.tasks import KernelTask, current


def emit_pipeline(
    body: Callable[..., Any],
    *,
    grid: Any,
    in_specs: Any = (),
    out_specs: Any = (),
    should_accumulate_out: Any = False,
    dimension_semantics: Any = None,
    core_axis: int | None = None,
    core_axis_name: str | None = None,
    trace_scopes: bool = True,
    no_pipelining: bool = False,
    tiling: Any = None,
    output_wait_read_only: bool = False,
    _explicit_indices: bool = False,
) -> Callable[..., None]:
    """A function of refs that runs ``body`` over a grid while blocks of the refs' memory come and go.

    ``tiling`` and ``output_wait_read_only``, how memory is laid out and which of two waits comes first, change no
    number. Of blocks that are there before the pipeline starts, ``pl.Buffered(2, prefetched_count=1)``, the memory is
    named among the ``allocations``: ``allocation.with_window_ref(ref)``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> spec, whole = pl.BlockSpec((2,), lambda i: (i,)), pl.BlockSpec(memory_space=pl.ANY)
    >>> def add_index(x_ref, out_ref):
    ...     out_ref[...] = x_ref[...] + pl.program_id(0)
    >>> def kernel(x_ref, out_ref):
    ...     emit_pipeline(add_index, grid=(3,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)
    >>> call = pl.pallas_call(kernel, mw.ShapeDtypeStruct((6,), mnp.float32), in_specs=[whole], out_specs=whole)
    >>> call(mnp.zeros(6))
    Array([0., 0., 1., 1., 2., 2.], dtype=float32)
    """
    emitted = Emitted(body, grid, in_specs, out_specs, should_accumulate_out, no_pipelining, _explicit_indices)

    def run(*refs: Any, scratches: Any = (), scratchs: Any = (), allocations: Any = None) -> None:
        task = current("emit_pipeline")
        pipeline, flat = emitted.on(refs)
        windows = None if allocations is None else _bound(pipeline, task, allocations)
        if (core_axis is not None or core_axis_name is not None) and task.machine.cores > 1:
            pipeline, _ = emitted.on(refs, anew=True)
            pipeline.divide(task, dimension_semantics)
        pipeline.run(task, flat, [*_listed(scratches), *_listed(scratchs)], windows)

    return run


def emit_pipeline_with_allocations(
    body: Callable[..., Any],
    *,
    grid: Any,
    in_specs: Any = (),
    out_specs: Any = (),
    should_accumulate_out: Any = False,
    dimension_semantics: Any = None,
) -> tuple[Callable[..., None], Callable[..., Any]]:
    """As ``emit_pipeline``, with memory that outlives one run: the pipeline, and a function that says what it needs.

    The memory is made by the parent (as scratch memory of its call) and passed as ``allocations``; a run may then leave
    fetches for the next one and writes that the next one waits for, as its callbacks say. ``postyeet`` is called in
    the first step of a run, when what the run before it wrote is in main memory.
    """
    emitted = Emitted(body, grid, in_specs, out_specs, should_accumulate_out)

    def run(
        *refs: Any,
        scratches: Any = (),
        scratchs: Any = (),
        allocations: Any = None,
        init_allocations: Any = False,
        prologue: Callable[[Any], Any] | None = None,
        epilogue: Callable[[Any], Any] | None = None,
        out_prologue: Callable[[Any], Any] | None = None,
        out_epilogue: Callable[[Any], Any] | None = None,
        postyeet: Callable[[Any], Any] | None = None,
    ) -> None:
        task = current("emit_pipeline_with_allocations")
        pipeline, flat = emitted.on(refs)
        windows = None if allocations is None else _bound(pipeline, task, allocations)
        pipeline.run(
            task, flat, [*_listed(scratches), *_listed(scratchs)], windows,
            init_allocations=init_allocations, prologue=prologue, epilogue=epilogue,
            out_prologue=out_prologue, out_epilogue=out_epilogue, postyeet=postyeet, allocations=allocations,
        )  # fmt: skip

    def make_allocations(*types: Any) -> Any:
        pipeline, flat = emitted.on(types)
        made = pipeline.allocation_types(flat)
        return made if made.in_out else (*made.input, *made.out)

    return run, make_allocations


def emit_pipeline_with_async_prefetch(
    body: Callable[..., Any],
    *,
    grid: Any,
    in_specs: Any = (),
    out_specs: Any = (),
    mesh: Any,
    tiling: Any = None,
    core_axis: int | None = None,
    core_axis_name: str | None = None,
    dimension_semantics: Any = None,
    trace_scopes: bool = True,
    no_pipelining: bool = False,
    _explicit_indices: bool = False,
) -> tuple[Callable[..., None], Callable[..., Any]]:
    """As ``emit_pipeline``, and a function to be called before the kernel, whose result is passed as ``allocations``.

    On a chip that one starts to fetch the first ``prefetched_count`` blocks of each input. Here nothing is under way
    between two kernels: the pipeline fetches them when it starts, and computes the same.
    """

    def fetched_late(specs: Any) -> Any:
        return tree.map(
            lambda spec: (
                spec.replace(pipeline_mode=replace(spec.pipeline_mode, prefetched_count=0))
                if isinstance(spec, BlockSpec) and spec.pipeline_mode is not None
                else spec
            ),
            specs,
        )

    pipeline = emit_pipeline(
        body, grid=grid, in_specs=fetched_late(in_specs), out_specs=out_specs, core_axis=core_axis,
        core_axis_name=core_axis_name, dimension_semantics=dimension_semantics, no_pipelining=no_pipelining,
        _explicit_indices=_explicit_indices,
    )  # fmt: skip
    count = len(_arguments(in_specs))

    def run(*refs: Any, scratches: Any = (), allocations: Any = ()) -> None:
        if len(allocations) != count or any(one is not None for one in allocations):
            raise KernelError(
                f"A pipeline of {count} inputs is given {allocations!r} as what was prefetched for it.",
                where=here(),
                why="it is what its second function returned for the same inputs",
                fix="pipeline(x_ref, out_ref, allocations=async_prefetch(x))",
            )
        pipeline(*refs, scratches=scratches)

    def async_prefetch(*inputs: Any) -> tuple[None, ...]:
        if len(inputs) != count:
            raise KernelError(
                f"{len(inputs)} arrays are prefetched for a pipeline of {count} inputs.",
                where=here(),
                why="there is one for each of in_specs",
                fix="async_prefetch(x, y)",
            )
        return (None,) * count

    return run, async_prefetch


class Emitted:
    """A body, a grid and specs; a pipeline once the operands are there, which may be trees."""

    def __init__(
        self,
        body: Callable[..., Any],
        grid: Any,
        in_specs: Any,
        out_specs: Any,
        accumulate: Any,
        no_pipelining: bool = False,
        explicit: bool = False,
    ) -> None:
        self.body = body
        self.explicit = explicit
        self.grid = grid if isinstance(grid, tuple | list) else (grid,)
        self.ins, self.outs = _arguments(in_specs), _arguments(out_specs)
        self.accumulate = accumulate
        self.no_pipelining = no_pipelining
        self.known: dict[Any, Pipeline] = {}
        self.on([tree.map(lambda _: 0, specs) for specs in (*self.ins, *self.outs)])  # what is wrong is wrong at once

    def on(self, operands: Sequence[Any], anew: bool = False) -> tuple[Pipeline, list[Any]]:
        """The pipeline for some operands, inputs first, and their leaves: refs, or types of them."""
        ins, outs = self.ins, self.outs
        if len(operands) != len(ins) + len(outs):  # one for each leaf
            ins, outs = tree.leaves(ins), tree.leaves(outs)
        if len(operands) != len(ins) + len(outs):
            raise KernelError(
                f"A pipeline of {len(self.ins)} inputs and {len(self.outs)} outputs gets {len(operands)} operands.",
                where=here(),
                why="it takes one ref per in_spec and one per out_spec",
                fix="emit_pipeline(…)(x_ref, y_ref, out_ref)",
            )
        flat = [tree.flatten(operand) for operand in operands]
        trees = tuple(structure for _, structure in flat)
        pipeline = None if anew else self.known.get(trees)
        if pipeline is None:
            pipeline = self.known[trees] = self._pipeline(ins, outs, trees)
        return pipeline, [leaf for leaves, _ in flat for leaf in leaves]

    def _pipeline(self, ins: Sequence[Any], outs: Sequence[Any], trees: Sequence[tree.TreeDef]) -> Pipeline:
        specs = [_spread(one, t, n) for n, (one, t) in enumerate(zip((*ins, *outs), trees, strict=True))]
        n = len(ins)
        return Pipeline(
            self.body,
            self.grid,
            [leaf for leaves in specs[:n] for leaf in leaves],
            [leaf for leaves in specs[n:] for leaf in leaves],
            flags(self.accumulate, trees[n:], "should_accumulate_out"),
            no_pipelining=self.no_pipelining,
            trees=(trees[:n], trees[n:]),
            explicit=self.explicit,
        )


def _spread(specs: Any, operand: tree.TreeDef, n: int) -> list[BlockSpec]:
    """A spec per leaf of an operand, from a prefix of its tree."""
    whole = tree.unflatten(operand, range(operand.num_leaves))
    try:
        return list(optree.broadcast_prefix(specs, whole, namespace=tree.NAMESPACE))
    except ValueError:
        raise KernelError(
            f"Operand {n} of a pipeline is {tree.outline(whole, '*')}, its specs are {tree.outline(specs, '*')}.",
            where=here(),
            why="the specs of an operand are a prefix of its tree: one for all of it, or its containers with specs",
            fix="pl.BlockSpec((8, 128), lambda i, j: (i, j)) for all of it",
        ) from None


def _arguments(specs: Any) -> list[Any]:
    """The specs of each operand: trees of them; None is the spec of all of an operand."""
    found = [BlockSpec() if spec is None else spec for spec in (specs if isinstance(specs, tuple | list) else [specs])]
    for leaf in tree.leaves(found):
        if not isinstance(leaf, BlockSpec):
            raise KernelError(
                f"A pipeline is given {leaf!r} as the spec of an operand.",
                where=here(),
                why="a BlockSpec says which block of it each step sees",
                fix="pl.BlockSpec((8, 128), lambda i, j: (i, j))",
            )
    return found


def _listed(scratches: Any) -> list[Any]:
    """Scratch memory for a body, as a list."""
    found = list(scratches) if isinstance(scratches, tuple | list) else [scratches]
    for one in tree.leaves(found):
        if not isinstance(one, Ref | SemaphoreRef):
            raise KernelError(
                f"A pipeline is given {one!r} as scratch memory.",
                where=here(),
                why="its body is given refs, which the parent has allocated",
                fix="scratches=[scratch_ref]",
            )
    return found


def _bound(pipeline: Pipeline, task: KernelTask, allocations: Any) -> PipelineArg:
    """The windows over memory of the parent; the same ones each time, so that they know how far they are."""
    key = id(allocations)
    known = task.windows.get(key)
    if known is None:
        known = task.windows[key] = (allocations, pipeline.windows(allocations))
    return known[1]  # type: ignore[no-any-return]
