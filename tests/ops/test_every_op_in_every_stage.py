"""Every op through the stages that ask for facts of it: simulation, memory, all devices in one program, texts.

An op is called on its first sample, between equations that could be fused with it. Ops with regions and ops across
devices, which have no samples, have calls of their own here. That every op is partitioned as it is meant is in
`tests/partition/test_every_op.py`, its StableHLO and HLO beside XLA in `tests/interop`, its text in `test_every_op.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core import dtypes
from meshwright.core.check import check
from meshwright.core.facts import Fusion
from meshwright.core.op import REGISTRY, No, Op, fusion_of
from meshwright.core.program import Eqn, Program
from meshwright.core.text.parse import parse_program
from meshwright.core.trace import close, run, to_array, trace
from meshwright.engine.compile import compile_program
from meshwright.interop import mlir
from meshwright.ops.basic import neg
from meshwright.ops.collective import pinvariant
from meshwright.simulate.memory import memory
from tests.interop.test_load_and_dump import by_xla
from tests.ops.drawing import draw
from tests.ops.test_every_op import ACROSS_DEVICES, CALLING_BACK, WALKED, WITH_REGIONS
from tests.partition.test_every_op import dtype_of
from tests.simulate.test_fusion import run_by_kernels
from tests.simulate.test_memory import held_by_the_engine

MESH = mw.make_mesh((4,), ("i",))
EACH = pytest.mark.parametrize("op", WALKED, ids=lambda op: f":{op.name}:")


class Call(NamedTuple):
    """A program with an op in it, and arguments of it."""

    program: Program
    arrays: list[Any]


@cache
def call_of(op: Op) -> Call:
    """The op between equations that could be fused with it."""
    sample = op.samples()[0]
    arrays = [np.asarray(to_array(x)) for x in draw(sample, dtype_of(op), op.name, 0)]

    def body(*xs: Any) -> list[Any]:
        outs = op(*[_turned(_turned(x)) for x in xs], **sample.params)
        return [_turned(x) for x in (outs if isinstance(outs, tuple) else (outs,))]

    return Call(close(*trace(body, [to_array(x).type for x in arrays])), arrays)


def _turned(x: Any) -> Any:
    return neg(x) if dtypes.is_inexact(x.dtype) else x


def evaluated(program: Program, arrays: list[Any]) -> list[Any]:
    """Equation by equation, each by the op's own rule."""
    return [x.data for x in run(program, [to_array(x) for x in arrays])]


def assert_close(found: Any, expected: Any, what: str) -> None:
    for one, other in zip(found, expected, strict=True):
        x, y = np.asarray(one), np.asarray(other)
        assert (x.shape, x.dtype) == (y.shape, y.dtype), what
        kind = np.complex128 if x.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(x.astype(kind), y.astype(kind), rtol=1e-4, atol=1e-5, err_msg=what)


def alone(eqn: Eqn) -> Program:
    """An equation as a program."""
    return close(*trace(lambda *xs: _listed(eqn.op(*xs, **eqn.params)), [a.type for a in eqn.inputs]))


def _listed(outs: Any) -> list[Any]:
    return list(outs) if isinstance(outs, tuple) else [outs]


# Simulation and memory


@EACH
def test_its_kernels_compute_what_it_does(op: Op) -> None:
    program, arrays = call_of(op)
    assert_close(run_by_kernels(program, arrays), evaluated(program, arrays), op.name)


@EACH
def test_its_work_is_counted_and_fusing_it_costs_nothing(op: Op) -> None:
    program, _ = call_of(op)
    found = mw.simulate(program, "v5e")
    (eqn,) = [eqn for eqn in program.eqns if eqn.op is op and eqn.op is not neg] or program.eqns[:1]
    cost = op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)
    view, product = fusion_of(eqn) is Fusion.VIEW, fusion_of(eqn) is Fusion.CONTRACTION
    assert view or found.flops >= cost.flops
    assert found.product_flops == (cost.flops if product else 0.0)
    written = sum(v.type.nbytes for v in {*program.outputs} - {*program.inputs})
    assert view or found.seconds >= written / found.topology.chip.hbm_bytes_per_s
    apart = sum(mw.simulate(alone(eqn), "v5e").seconds for eqn in program.eqns)
    assert found.seconds <= apart * 1.001


@EACH
def test_its_memory_is_what_it_reads_and_writes(op: Op) -> None:
    """A compiler keeps no more than an engine that runs it line by line; both keep operands and results."""
    program, arrays = call_of(op)
    fused, by_line = memory(program), memory(program, fused=False)
    held = held_by_the_engine(program, arrays)
    touched = sum(x.type.nbytes for eqn in program.eqns if eqn.op is op for x in (*eqn.inputs, *eqn.outputs))
    beside = by_line.peak_bytes - by_line.argument_bytes - by_line.constant_bytes
    assert abs(held - beside) <= touched
    assert fused.peak_bytes <= by_line.peak_bytes
    assert fused.argument_bytes == sum(v.type.nbytes for v in program.inputs)
    assert fused.output_bytes == sum(a.type.nbytes for a in program.outputs)
    assert fused.peak_bytes >= max(fused.argument_bytes, fused.output_bytes)


# All devices in one program


@EACH
def test_each_device_computes_what_it_would_alone(op: Op) -> None:
    """Devices with operands of their own, and with some that all of them share."""
    sample = op.samples()[0]
    if not sample.operands or isinstance(op.batch, No):
        return
    rows = [[np.asarray(to_array(x)) for x in draw(sample, dtype_of(op), op.name, 0, n)] for n in range(4)]
    for shared in ((), (0,)) if len(sample.operands) > 1 else ((),):
        given = [rows[0][k] if k in shared else np.stack([row[k] for row in rows]) for k in range(len(rows[0]))]
        specs = tuple(mw.P() if k in shared else mw.P("i") for k in range(len(given)))

        def body(*blocks: Any, shared: Any = shared) -> Any:
            outs = op(*[x if k in shared else x[0] for k, x in enumerate(blocks)], **sample.params)
            return tuple(x[None] for x in _listed(outs))

        function = mw.shard_map(body, mesh=MESH, in_specs=specs, out_specs=mw.P("i"))
        found = mw.jit(function)(*map(mnp.asarray, given))
        for n in range(4):
            operands = [rows[0][k] if k in shared else rows[n][k] for k in range(len(given))]
            expected = [x.data for x in _listed(op(*operands, **sample.params))]
            assert_close([x[n] for x in found], expected, f"{op.name}, device {n}")


# Ops with regions


@mw.custom_jvp
def cubed(x: Any) -> Any:
    return x * x * x


cubed.defjvp(lambda xs, ts: (cubed(xs[0]), 3.0 * xs[0] * xs[0] * ts[0]))


@mw.custom_vjp
def squared(x: Any) -> Any:
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, ct: (2.0 * x * ct,))

X = np.arange(1.0, 13.0, dtype=np.float32).reshape(4, 3)

# A function whose program has the op, and what it is of `X`.
REGIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "scan": (lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x)[0], X[0] + X.sum(0)),
    "while": (lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2.0), (0, x))[1], X * 8),
    "cond": (lambda x: lax.cond(mnp.sum(x) > 0.0, lambda x: x * 2.0, lambda x: -x, x), X * 2),
    "custom_jvp_call": (cubed, X**3),
    "custom_vjp_call": (squared, X**2),
    "checkpoint": (mw.checkpoint(lambda x: mnp.sin(x) * 2.0), np.sin(X) * 2),
    "shard_map": (
        mw.shard_map(lambda x: x * 2.0, mesh=MESH, in_specs=mw.P("i"), out_specs=mw.P("i")),
        X * 2,
    ),
}

# A function of a block of `X` on each of four devices, and what all of them hold of it together.
FORWARD = [(n, (n + 1) % 4) for n in range(4)]
ACROSS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "psum": (lambda x: lax.psum(x, "i"), np.tile(X.sum(0), (4, 1))),
    "pmax": (lambda x: lax.pmax(x, "i"), np.tile(X.max(0), (4, 1))),
    "pmin": (lambda x: lax.pmin(x, "i"), np.tile(X.min(0), (4, 1))),
    "pbroadcast": (lambda x: x * lax.pbroadcast(mnp.ones(3), "i"), X),
    "pinvariant": (lambda x: pinvariant(lax.all_gather(x, "i", tiled=True), axes=("i",), sizes=(4,))[:1], None),
    "all_gather": (lambda x: lax.all_gather(x, "i", tiled=True), np.tile(X, (4, 1))),
    "all_gather_invariant": (lambda x: lax.all_gather_invariant(x, "i", tiled=True), np.tile(X, (4, 1))),
    "psum_scatter": (
        lambda x: lax.psum_scatter(mnp.tile(x, (4, 1)), "i", tiled=True),
        np.tile(X.sum(0), (4, 1)),
    ),
    "pscatter": (
        lambda x: lax.pscatter(lax.psum(mnp.tile(x, (4, 1)), "i"), "i", tiled=True),
        np.tile(X.sum(0), (4, 1)),
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(mnp.tile(x, (4, 1)), "i", 0, 0, tiled=True)[:1],
        np.tile(X[0], (4, 1)),
    ),
    "ppermute": (lambda x: lax.ppermute(x, "i", FORWARD), np.roll(X, 1, 0)),
    "axis_index": (lambda x: x + lax.axis_index("i"), X + np.arange(4.0)[:, None]),
}


def ops_of(program: Program) -> set[str]:
    return {eqn.op.name for eqn in program.eqns} | {
        name for eqn in program.eqns for _, region in eqn.regions() for name in ops_of(region)
    }


def checked(name: str, program: Program, expected: Any) -> None:
    """A program with an op through text, simulation and memory, and run."""
    assert name in ops_of(program)
    check(program)
    assert parse_program(program.to_text()) == program
    found = mw.simulate(program, "v5e")
    assert found.seconds > 0
    assert found.memory.peak_bytes >= found.memory.argument_bytes > 0
    assert_close(compile_program(program)(X)[:1], [expected], name)


@pytest.mark.parametrize("name", REGIONS)
def test_an_op_with_regions(name: str) -> None:
    function, expected = REGIONS[name]
    program = mw.make_program(function)(X)
    checked(name, program, expected.astype(np.float32))
    if name != "shard_map":  # whose text is for several devices
        assert_close(by_xla(mlir.dump(program), [X])[:1], [expected.astype(np.float32)], name)
        mesh = mw.NamedSharding(MESH, mw.P("i"))
        assert_close([mw.jit(function)(mw.device_put(X, mesh))], [expected.astype(np.float32)], name)


@pytest.mark.parametrize("name", ACROSS)
def test_an_op_across_devices(name: str) -> None:
    function, expected = ACROSS[name]
    expected = np.tile(X[:1], (4, 1)) if expected is None else expected
    program = mw.make_program(mw.shard_map(function, mesh=MESH, in_specs=mw.P("i"), out_specs=mw.P("i")))(X)
    checked(name, program, expected.astype(np.float32))


def test_a_sum_that_is_finished() -> None: ...


def test_every_op_has_a_call() -> None:
    """An op that is defined and walked nowhere is found here."""
    assert {*REGIONS, "custom_vjp_tangents"} == WITH_REGIONS
    assert {*ACROSS, "finish_sum", "pallas_call"} == ACROSS_DEVICES
    walked = {op.name for op in WALKED} | CALLING_BACK
    assert walked | WITH_REGIONS | ACROSS_DEVICES == {*REGISTRY, *REGISTRY.LATE, "pallas_call"}
