"""``emit_pipeline``: a grid inside a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.kernel.blocks import BlockSpec
from meshwright.kernel.faults import KernelError
from meshwright.kernel.pipeline import Pipeline, PipelineArg, broadcast
from meshwright.kernel.refs import Ref
from meshwright.kernel.tasks import Task, current


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
) -> Callable[..., None]:
    """A function of refs that runs ``body`` over a grid while blocks of the refs' memory come and go.

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
    make = partial(_pipeline, body, grid, in_specs, out_specs, should_accumulate_out, no_pipelining)
    pipeline = make()

    def run(*refs: Ref, scratches: Sequence[Any] = (), scratchs: Sequence[Any] = (), allocations: Any = None) -> None:
        task = current("emit_pipeline")
        _require_refs(refs)
        windows = None if allocations is None else _bound(pipeline, task, allocations)
        mine = pipeline
        if (core_axis is not None or core_axis_name is not None) and task.machine.cores > 1:
            mine = make()
            mine.divide(task, dimension_semantics)
        mine.run(task, refs, [*scratches, *scratchs], windows)

    return run


def emit_pipeline_with_allocations(
    body: Callable[..., Any],
    *,
    grid: Any,
    in_specs: Any = (),
    out_specs: Any = (),
    should_accumulate_out: Any = False,
    dimension_semantics: Any = None,
) -> tuple[Callable[..., None], Callable[..., PipelineArg]]:
    """As ``emit_pipeline``, with memory that outlives one run: the pipeline, and a function that says what it needs.

    The memory is made by the parent (as scratch memory of its call) and passed as ``allocations``; a run may then leave
    fetches for the next one and writes that the next one waits for, as its callbacks say. ``postyeet`` is called in
    the first step of a run, when what the run before it wrote is in main memory.
    """
    pipeline = _pipeline(body, grid, in_specs, out_specs, should_accumulate_out, False)

    def run(
        *refs: Ref,
        scratches: Sequence[Any] = (),
        scratchs: Sequence[Any] = (),
        allocations: Any = None,
        init_allocations: Any = False,
        prologue: Callable[[Any], Any] | None = None,
        epilogue: Callable[[Any], Any] | None = None,
        out_prologue: Callable[[Any], Any] | None = None,
        out_epilogue: Callable[[Any], Any] | None = None,
        postyeet: Callable[[Any], Any] | None = None,
    ) -> None:
        task = current("emit_pipeline_with_allocations")
        _require_refs(refs)
        windows = None if allocations is None else _bound(pipeline, task, allocations)
        pipeline.run(
            task, refs, [*scratches, *scratchs], windows,
            init_allocations=init_allocations, prologue=prologue, epilogue=epilogue,
            out_prologue=out_prologue, out_epilogue=out_epilogue, postyeet=postyeet, allocations=allocations,
        )  # fmt: skip

    return run, lambda *types: pipeline.allocation_types(types)


def _pipeline(
    body: Callable[..., Any], grid: Any, in_specs: Any, out_specs: Any, accumulate: Any, no_pipelining: bool
) -> Pipeline:
    sizes = grid if isinstance(grid, tuple | list) else (grid,)
    ins, outs = specs_list(in_specs), specs_list(out_specs)
    return Pipeline(
        body, sizes, ins, outs, broadcast(accumulate, len(outs), "should_accumulate_out"), no_pipelining=no_pipelining
    )


def specs_list(specs: Any) -> list[BlockSpec]:
    """Specs as a list: of one, or of a container's leaves; None is the spec of all of an operand."""
    found = [BlockSpec() if spec is None else spec for spec in (specs if isinstance(specs, tuple | list) else [specs])]
    leaves = tree.leaves(found)
    for leaf in leaves:
        if not isinstance(leaf, BlockSpec):
            raise KernelError(
                f"A pipeline is given {leaf!r} as the spec of an operand.",
                where=here(),
                why="a BlockSpec says which block of it each step sees",
                fix="pl.BlockSpec((8, 128), lambda i, j: (i, j))",
            )
    return leaves


def _require_refs(refs: Sequence[Any]) -> None:
    for n, ref in enumerate(refs):
        if not isinstance(ref, Ref):
            raise KernelError(
                f"Operand {n} of a pipeline is a {type(ref).__name__}.",
                where=here(),
                why="blocks come from memory and go to memory",
                fix="pass the ref or a part of it, ref.at[...], not what a load returned",
            )


def _bound(pipeline: Pipeline, task: Task, allocations: Any) -> PipelineArg:
    """The windows over memory of the parent; the same ones each time, so that they know how far they are."""
    key = id(allocations)
    known = task.windows.get(key)
    if known is None:
        known = task.windows[key] = (allocations, pipeline.windows(allocations))
    return known[1]  # type: ignore[no-any-return]
