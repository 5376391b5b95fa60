"""Fusion: the kernels of a program compute what it does, and touch as much memory as the rules say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.program import Literal, Program, Var, operand_types
from meshwright.engine.compile import compile_program
from meshwright.engine.namespace import NUMPY
from meshwright.simulate.fusion import Kernel, fuse
from meshwright.transform.stack import inline_calls
from tests.simulate.models import example, struct

F32 = 4


def kernels_of(function: Any, *args: Any) -> list[Kernel]:
    return fuse(inline_calls(mw.make_program(function)(*args))).kernels


def run_by_kernels(program: Program, args: list[Any], attentions: Any = ()) -> list[Any]:
    """The outputs, with each kernel given only what it says it reads, and memory only what kernels say they write."""
    found = fuse(program, attentions=attentions)
    views = {var: eqn for eqn in program.eqns for var in eqn.outputs if var in found.views}
    memory: dict[Var, Any] = dict(program.constants)
    memory.update(zip(program.inputs, args, strict=True))

    def evaluate(eqn: Any, values: dict[Var, Any]) -> None:
        inputs = [get(a, values) for a in eqn.inputs]
        outs = eqn.op.evaluate(NUMPY, *inputs, **eqn.params)
        single = not isinstance(eqn.op.type(*operand_types(eqn.op, eqn.inputs), **eqn.params), tuple)
        values.update(zip(eqn.outputs, [outs] if single else outs, strict=True))

    def get(atom: Any, values: dict[Var, Any]) -> Any:
        if isinstance(atom, Literal):
            return np.asarray(atom.value, atom.type.dtype)
        if atom not in values:
            assert atom in views, f"{atom} is neither read nor made here"
            evaluate(views[atom], values)
        return values[atom]

    for kernel in found.kernels:
        values = {v: memory[v] for v in kernel.reads}
        for eqn in kernel.eqns:
            evaluate(eqn, values)
        memory.update((v, values[v]) for v in kernel.writes)
    return [get(a, dict(memory)) for a in program.outputs]


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", ["mlp", "transformer", "convnet", "moe"])
def test_running_kernel_by_kernel_gives_what_the_program_gives(name: str, scan: bool) -> None:
    program, args = example(name, scan=scan)
    flat = [np.asarray(x) for x in mw.tree.leaves(args)]
    for whole in (inline_calls(program), inline_calls(program, shard_maps=False)):
        expected = compile_program(program)(*flat)
        for a, b in zip(run_by_kernels(whole, flat), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_chain_is_one_kernel_that_reads_and_writes_once() -> None:
    (kernel,) = kernels_of(lambda x, y: mnp.exp(x * 2 + y) - 1, mnp.ones(1000), mnp.ones(1000))
    assert (len(kernel.eqns), kernel.nbytes) == (4, 3 * 1000 * F32)


def test_a_value_used_by_products_is_written() -> None:
    kernels = kernels_of(lambda x: mnp.tanh(x) @ mnp.tanh(x).T, mnp.ones((64, 32)))
    assert [[eqn.op.name for eqn in k.eqns] for k in kernels] == [["tanh"], ["tanh"], ["dot_general"]]


def test_softmax_reads_and_writes_once() -> None:
    (kernel,) = kernels_of(lambda x: mw.nn.softmax(x * 3), mnp.ones((64, 512)))
    assert kernel.nbytes == 2 * 64 * 512 * F32


def test_a_sum_of_everything_ends_its_kernel() -> None:
    first, second = kernels_of(lambda x: x / mnp.sqrt(mnp.sum(x * x)), mnp.ones((64, 512)))[::2]
    assert (first.nbytes, second.nbytes) == (64 * 512 * F32 + F32, 2 * 64 * 512 * F32 + F32)


def test_cheap_values_are_computed_where_they_are_read() -> None:
    def function(x: Any, w: Any) -> Any:
        scaled = x * 2.0  # never written
        return mnp.exp(scaled) @ w, mnp.sum(scaled, axis=0)

    kernels = kernels_of(function, mnp.ones((64, 32)), mnp.ones((32, 16)))
    assert sorted(v.type.shape for k in kernels for v in k.writes) == [(32,), (64, 16), (64, 32)]


def test_a_slice_reads_its_part() -> None:
    (kernel,) = kernels_of(lambda x: x[3:5] * 2, mnp.ones((100, 64)))
    assert kernel.nbytes == 2 * 2 * 64 * F32


def test_reshapes_and_transposes_for_products_cost_nothing() -> None:
    kernels = kernels_of(lambda x, w: x.reshape(-1, 32) @ w.T, mnp.ones((4, 16, 32)), mnp.ones((8, 32)))
    assert [k.eqns[0].op.name for k in kernels] == ["dot_general"]


def test_numbers_that_many_arrays_share_do_not_join_their_kernels() -> None:
    def step(params: list[Any], rate: Any) -> Any:
        scale = mnp.sqrt(rate)
        return [p - scale * p for p in params]

    kernels = kernels_of(step, [struct(64, 64), struct(32, 32)], mnp.ones(()))
    assert [len(k.writes) for k in kernels] == [1, 1, 1]


def test_many_random_programs_have_kernels_in_order() -> None:
    rng = np.random.default_rng(0)
    unary = [mnp.exp, mnp.tanh, lambda x: x * 2, lambda x: x.sum(-1, keepdims=True) + x, lambda x: x.T, mw.nn.softmax]
    for _ in range(60):
        steps = rng.integers(0, 9, size=(14, 3))

        def function(x: Any, steps: Any = steps) -> Any:
            values = [x]
            for kind, a, b in steps:
                left, right = values[a % len(values)], values[b % len(values)]
                if kind < 6:
                    values.append(unary[kind](left))
                else:
                    values.append(left @ right * 0.1 if kind == 6 else left + right)
            return values[-1], values[len(values) // 2]

        x = rng.normal(size=(8, 8)).astype(np.float32) * 0.1
        program = inline_calls(mw.make_program(function)(x))
        for a, b in zip(run_by_kernels(program, [x]), compile_program(program)(x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
