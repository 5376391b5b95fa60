"""Random grids, blocks and orders of a sum over blocks: right ones as in JAX, and mistakes in them named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas as jax_pl
import jax.experimental.pallas.tpu as jax_pltpu
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu


class Plan(NamedTuple):
    """Twice the sum over ``sums`` of blocks of rows and columns, and a row to add at the end."""

    counts: tuple[int, int, int]  # blocks of rows and of columns, and sums
    block: tuple[int, int]
    lacks: tuple[int, int]  # rows and columns that the last blocks lack
    columns_first: bool
    backward: bool  # whether rows are walked from the last
    scratch: bool  # whether sums are kept beside the result
    buffers: int
    parallel: bool


def plan(seed: int) -> Plan:
    draw = np.random.default_rng(seed)
    block = (int(draw.choice([4, 8])), int(draw.choice([8, 16])))
    lacks = tuple(int(draw.integers(n)) if draw.integers(2) else 0 for n in block)
    counts = tuple(int(n) for n in draw.integers(1, 4, size=3))
    flags = [bool(n) for n in draw.integers(2, size=4)]
    return Plan(counts, block, lacks, flags[0], flags[1], flags[2], int(draw.integers(1, 4)), flags[3])  # type: ignore[arg-type]


def operands(one: Plan) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = (n * size - lack for n, size, lack in zip(one.counts, one.block, one.lacks, strict=False))
    draw = np.random.default_rng(1)
    x, row = (draw.integers(-4, 5, size=s).astype(np.float32) for s in ((one.counts[2], rows, columns), (1, columns)))
    return x, row


def expected(one: Plan) -> np.ndarray:
    x, row = operands(one)
    return np.asarray(2 * x.sum(axis=0) + row)


def run(k: Any, one: Plan, mistake: str = "") -> Any:
    x, row = operands(one)
    many, wide, sums = one.counts
    # The axis that is summed over comes last, so that a block of the result is worked on in consecutive steps.
    axes = ("j", "i", "k") if one.columns_first else ("i", "j", "k")
    axes = ("k", *axes[:2]) if mistake == "sums first" else axes
    sizes = {"i": many, "j": wide, "k": sums}

    def at(step: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        named = dict(zip(axes, step, strict=True))
        return (many - 1 - named["i"] if one.backward else named["i"]), named["j"], named["k"]

    def of_x(*step: Any) -> Any:
        i, j, n = at(step)
        return n + (mistake == "outside"), i, j

    def kernel(x_ref: Any, row_ref: Any, out_ref: Any, *rest: Any) -> None:
        acc = rest[0] if one.scratch else out_ref
        n = k.pl.program_id(axes.index("k"))

        if mistake != "no start":

            @k.pl.when(n == 0)
            def _() -> None:
                acc[...] = k.np.zeros_like(acc)

        acc[...] += 2 * x_ref[...]
        if mistake == "store to an input":
            x_ref[...] = k.np.zeros_like(x_ref)

        @k.pl.when(n == sums - 1)
        def _() -> None:
            found = acc[...] + row_ref[...]
            if mistake == "half":
                out_ref[0:1] = found[0:1]
            elif mistake != "no end":
                out_ref[...] = found

    mode = k.pl.Buffered(one.buffers) if one.buffers != 2 else None
    last = "parallel" if mistake == "parallel sums" else "arbitrary"
    semantics = ("parallel" if one.parallel or last == "parallel" else "arbitrary",) * 2
    call = k.pl.pallas_call(
        kernel,
        k.struct(x.shape[1:], np.float32),
        grid=tuple(sizes[axis] for axis in axes),
        in_specs=[
            k.pl.BlockSpec((None, *one.block), of_x, pipeline_mode=mode),
            k.pl.BlockSpec((1, one.block[1]), lambda *step: (0, at(step)[1])),
        ],
        out_specs=k.pl.BlockSpec(one.block, lambda *step: at(step)[:2]),
        scratch_shapes=[k.pltpu.VMEM(one.block, np.float32)] if one.scratch else [],
        compiler_params=k.pltpu.CompilerParams(dimension_semantics=(*semantics, last)),
        **k.options,
    )
    return call(x, row)


def ours(debug: Any) -> Any:
    return SimpleNamespace(np=mnp, pl=pl, pltpu=pltpu, struct=mw.ShapeDtypeStruct, options={"debug": debug})


JAX = SimpleNamespace(
    np=jnp, pl=jax_pl, pltpu=jax_pltpu, struct=jax.ShapeDtypeStruct, options={"interpret": jax_pltpu.InterpretParams()}
)


def mistakes(one: Plan) -> dict[str, type]:
    """What can be done wrong, and what it is called."""
    many, wide, sums = one.counts
    found: dict[str, type] = {
        "no start": pltpu.UninitializedError,
        "outside": pltpu.BoundsError,
        "store to an input": pltpu.CopyError,
    }
    if one.scratch:
        found["no end"] = pltpu.UninitializedError
        if many * one.block[0] - one.lacks[0] > 1:  # a row is not all there is
            found["half"] = pltpu.UninitializedError
    if sums > 1:
        found["parallel sums"] = pltpu.KernelError
        if many * wide > 1:
            found["sums first"] = pltpu.KernelError
    return found


def check(seed: int, debug: Any) -> None:
    one = plan(seed)
    np.testing.assert_array_equal(run(ours(debug), one), expected(one), err_msg=str(one))
    for mistake, error in mistakes(one).items():
        with pytest.raises(error):
            run(ours(debug), one, mistake)
            pytest.fail(f"{mistake} in {one} is not found", pytrace=False)


@pytest.mark.parametrize("seed", range(12))
def test_a_sum_over_blocks_is_right_and_mistakes_in_it_are_named(seed):
    check(seed, pl.Debug(schedules=4))


@pytest.mark.parametrize("seed", range(3))
def test_jax_says_the_same(seed):
    np.testing.assert_array_equal(run(JAX, plan(seed)), expected(plan(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_sums_over_blocks(seed):
    check(seed, pl.Debug(schedules=64, seed=seed))
    if seed % 5 == 0:
        np.testing.assert_array_equal(run(JAX, plan(seed)), expected(plan(seed)))
