"""Random pipelines against NumPy: operands and results in any memory, sums that go on, runs that fuse.

A run that works on another matrix without fetching it, because its block index stays, is to be found out.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import ANY, F32, out

T = 4  # the size of a tile
SPACES = st.sampled_from([pltpu.ANY, pltpu.VMEM, pltpu.HBM])
DEBUGS = st.sampled_from([None, pl.Debug(schedules=3), pl.Debug(order="adversarial"), pl.Debug(order="fifo")])
COUNTS = st.integers(1, 2)


def body(x_ref, y_ref, z_ref, acc_ref, *, acc_steps):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = mnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...] @ y_ref[...]

    @pl.when(pl.program_id(2) == acc_steps - 1)
    def _():
        z_ref[...] = acc_ref[...]


def specs(mode: Any = None) -> tuple[Any, Any, Any]:
    return (
        pl.BlockSpec((T, T), lambda n, m, k: (m, k), pipeline_mode=mode),
        pl.BlockSpec((T, T), lambda n, m, k: (k, n), pipeline_mode=mode),
        pl.BlockSpec((T, T), lambda n, m, k: (m, n)),
    )


def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    """Numbers whose sums of products are exact, in any order."""
    return np.random.default_rng(seed).integers(-3, 4, size=shape).astype(np.float32)


class Sums(NamedTuple):
    """Pipelines one after the other, each adding to its result or not."""

    blocks: tuple[int, int, int]
    ragged: tuple[int, int]  # rows and columns that the last tiles lack
    adds: list[bool]
    spaces: tuple[Any, Any, Any]
    buffers: int
    lookahead: bool
    at_once: bool  # no pipelining
    debug: Any


@st.composite
def sums(draw: Any) -> Sums:
    return Sums(
        draw(st.tuples(COUNTS, COUNTS, COUNTS)),
        draw(st.tuples(st.integers(0, T - 1), st.integers(0, T - 1))),
        [False, *draw(st.lists(st.booleans(), max_size=3))],
        draw(st.tuples(SPACES, SPACES, SPACES)),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(DEBUGS),
    )


def check_sums(case: Sums) -> None:
    bn, bm, bk = case.blocks
    m, n, k = bm * T - case.ragged[0], bn * T - case.ragged[1], bk * T
    left, right, result = specs(pl.Buffered(case.buffers, case.lookahead))

    def kernel(x_ref, y_ref, z_ref, acc_ref):
        for add in case.adds:
            pltpu.emit_pipeline(
                partial(body, acc_steps=bk),
                grid=(bn, bm, bk),
                in_specs=[left, right],
                out_specs=result,
                should_accumulate_out=add,
                no_pipelining=case.at_once,
            )(x_ref, y_ref, z_ref, scratches=[acc_ref])

    where = [pl.BlockSpec(memory_space=space) for space in case.spaces]
    call = pl.pallas_call(
        kernel, out(m, n), in_specs=where[:2], out_specs=where[2], scratch_shapes=[pltpu.VMEM((T, T), F32)],
        debug=case.debug,
    )  # fmt: skip
    x, y = whole_numbers(m, k, seed=0), whole_numbers(k, n, seed=1)
    times = len(case.adds) - max(i for i, add in enumerate(case.adds) if not add)
    np.testing.assert_array_equal(call(x, y), times * (x @ y))


@given(sums())
@settings(max_examples=60, deadline=None)
def test_pipelines_add_to_their_results_wherever_these_are(case):
    check_sums(case)


@pytest.mark.slow
@given(sums())
@settings(max_examples=3000, deadline=None)
def test_many_pipelines_add_to_their_results(case):
    check_sums(case)


class Fused(NamedTuple):
    """Runs of one pipeline, each fetching the first blocks of the next one."""

    runs: int
    blocks: tuple[int, int, int]
    same_right: bool  # whether all runs have the same right side
    force_right: bool  # whether it is fetched again where its block index stays
    force_sum: bool
    lazy: bool  # whether a run leaves its last writes to the next one
    spaces: tuple[Any, Any]
    debug: Any

    @property
    def stale(self) -> bool:
        """Whether a run works on the right side of the one before."""
        bn, _, bk = self.blocks
        return self.runs > 1 and bn == bk == 1 and not (self.same_right or self.force_right)


@st.composite
def fused(draw: Any) -> Fused:
    flags = [draw(st.booleans()) for _ in range(4)]
    blocks = draw(st.tuples(COUNTS, COUNTS, COUNTS))
    return Fused(draw(st.integers(1, 4)), blocks, *flags, draw(st.tuples(SPACES, SPACES)), draw(DEBUGS))


def fused_call(case: Fused) -> Any:
    bn, bm, bk = case.blocks
    left, right, result = specs()
    pipeline, allocate = pltpu.emit_pipeline_with_allocations(
        partial(body, acc_steps=bk),
        grid=(bn, bm, bk),
        in_specs=[left, right],
        out_specs=result,
        should_accumulate_out=True,
    )
    forced = ([True, case.force_right], case.force_sum)

    def kernel(x_ref, y_ref, z_ref, acc_ref, allocations):
        run = pl.program_id(0)
        first, last = run == 0, run == case.runs - 1

        def epilogue(args):
            def prefetch():
                refs = args.make_pipeline_refs(x_ref.at[run + 1], y_ref.at[0 if case.same_right else run + 1], z_ref)
                given = pltpu.PipelinePrefetchArgs(refs, args.pipeline_allocations, args.pipeline_buffers)
                return args.start_pipeline_prefetch(given, force_copy=forced)

            return lax.cond(last, lambda: (args.pipeline_buffers.input, args.pipeline_buffers.in_out), prefetch)

        pipeline(
            x_ref.at[run], y_ref.at[0 if case.same_right else run], z_ref, scratchs=acc_ref,
            allocations=allocations, init_allocations=first,
            prologue=lambda _: (mnp.logical_not(first), forced), epilogue=epilogue,
            out_prologue=(lambda _: first) if case.lazy else None,
            out_epilogue=(lambda _: [mnp.logical_not(last)]) if case.lazy else None,
        )  # fmt: skip

    there, back = (pl.BlockSpec(memory_space=space) for space in case.spaces)
    return pl.pallas_call(
        kernel, out(bm * T, bn * T), grid=(case.runs,), in_specs=[ANY, there], out_specs=back, debug=case.debug,
        scratch_shapes=[pltpu.VMEM((T, T), F32), allocate(F32, mnp.float32, pltpu.ANY((), F32))],
    )  # fmt: skip


def check_fused(case: Fused) -> None:
    bn, bm, bk = case.blocks
    x = whole_numbers(case.runs, bm * T, bk * T, seed=0)
    y = whole_numbers(1 if case.same_right else case.runs, bk * T, bn * T, seed=1)
    if case.stale:
        with pytest.raises(
            pltpu.StaleError, match=r"The window of input 1 of the pipeline holds the window|holds y_ref"
        ):
            fused_call(case)(x, y)
    else:
        np.testing.assert_array_equal(fused_call(case)(x, y), (x @ y).sum(0))


@given(fused())
@settings(max_examples=60, deadline=None)
def test_runs_that_fuse_give_the_sum_of_all_or_are_found_out(case):
    check_fused(case)


@pytest.mark.slow
@given(fused())
@settings(max_examples=3000, deadline=None)
def test_many_runs_that_fuse(case):
    check_fused(case)


@pytest.mark.parametrize("space", [pltpu.ANY, pltpu.VMEM])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("debug", [None, pl.Debug(schedules=8)], ids=["plain", "debug"])
def test_one_output_tile_whose_sum_is_prefetched_by_force(space, lazy, debug):
    check_fused(Fused(3, (1, 1, 2), False, True, True, lazy, (pltpu.ANY, space), debug))
