"""Programs as modules and modules as programs: values beside XLA's, and back again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.interpreters.mlir import make_ir_context
from jax.extend.backend import get_backend
from jaxlib import xla_client
from jaxlib.mlir import ir

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core import dtypes
from meshwright.core.op import REGISTRY, Op, Sample
from meshwright.core.program import Program
from meshwright.core.trace import Array, close, run, trace
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop import mlir
from meshwright.transform import every_op as every  # noqa: F401  so that the registry knows every op

RNG = np.random.default_rng(0)

# Ops about devices, and ops made of programs (tested by themselves).
LEFT_OUT = frozenset({
    "sharding_constraint", "axis_index", "psum", "pbroadcast", "all_gather",
    "psum_scatter", "all_gather_invariant", "pscatter", "all_to_all", "ppermute", "pmax", "pmin", "finish_sum",
})  # fmt: skip
# Ops that become several of StableHLO's, or one that can mean more; factorizations are custom calls of LAPACK.
NOT_READ_BACK = frozenset({"cumprod", "polygamma", "sort", "lu", "qr", "eigh", "svd", "eig"})


def drawn(op: Op, sample: Sample) -> list[np.ndarray[Any, Any]]:
    default = dtypes.FLOAT32 if dtypes.FLOAT32 in op.dtypes else op.dtypes[0]
    found: list[Any] = []
    for operand in sample.operands:
        dtype = operand.dtype or default
        numbers = RNG.uniform(operand.low, operand.high, operand.shape)
        found.append(numbers > 0 if dtype.kind == "b" else numbers.astype(dtype))
    return [np.asarray(x) for x in (sample.prepare(found) if sample.prepare else found)]


def arrays(values: list[Any]) -> list[Array]:
    return [Array(np.asarray(x), TensorType(np.shape(x), np.asarray(x).dtype)) for x in values]


def program_of(op: Op, values: list[Any], params: Any) -> Program:
    def call(*xs: Any) -> list[Any]:
        outs = op(*xs, **params)
        return list(outs) if isinstance(outs, tuple) else [outs]

    return close(*trace(call, [x.type for x in arrays(values)]))


def by_xla(text: str, values: list[Any]) -> list[np.ndarray[Any, Any]]:
    """The results of a module, compiled and run by XLA."""
    backend = get_backend("cpu")
    with make_ir_context():
        devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
        loaded = backend.compile_and_load(ir.Module.parse(text), devices, xla_client.CompileOptions())
        outs = loaded.execute_sharded([jax.device_put(x) for x in values])
        return [np.asarray(x[0]) for x in outs.disassemble_into_single_device_arrays()]


def assert_close(found: list[Any], expected: list[Any], tolerance: float = 1e-4) -> None:
    for one, other in zip(found, expected, strict=True):
        left, right = np.asarray(one), np.asarray(other)
        assert left.shape == right.shape and left.dtype == right.dtype
        wide = np.complex128 if left.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(left.astype(wide), right.astype(wide), rtol=tolerance, atol=tolerance)


CASES = [(op, index) for op in REGISTRY.values() if op.name not in LEFT_OUT for index in range(len(op.samples()))]
FIRST = [case for case in CASES if case[1] == 0]


@pytest.fixture
def wide() -> Any:
    with jax.enable_x64(True):
        yield


def check_op(op: Op, index: int) -> None:
    sample = op.samples()[index]
    values = drawn(op, sample)
    program = program_of(op, values, sample.params)
    expected = [x.data for x in run(program, arrays(values))]
    text = mlir.dump(program)
    assert_close(by_xla(text, values), expected)
    if op.name not in NOT_READ_BACK and not (op.name == "dynamic_slice" and not values[0].ndim):
        assert_close([x.data for x in run(mlir.load(text), arrays(values))], expected, 1e-5)


@pytest.mark.parametrize(("op", "index"), FIRST, ids=[op.name for op, _ in FIRST])
def test_an_op_written_as_stablehlo_computes_the_same(op: Op, index: int, wide: None) -> None:
    check_op(op, index)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "index"), CASES, ids=[f"{op.name}-{index}" for op, index in CASES])
def test_every_sample_of_an_op_written_as_stablehlo_computes_the_same(op: Op, index: int, wide: None) -> None:
    check_op(op, index)


# Functions of JAX


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def mlp(w1: Any, w2: Any, x: Any) -> Any:
    return jax.nn.softmax(jnp.tanh(x @ w1) @ w2)


def pooled(x: Any) -> Any:
    return (jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2), (1, 2, 2), "VALID") ** 2).sum()


def convolved(x: Any, w: Any) -> Any:
    return (jax.lax.conv_general_dilated(x, w, (2, 2), "SAME") ** 2).sum()


PLACES = np.array([1, 5, 1], np.int32)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mlp": (mlp, (numbers(4, 8), numbers(8, 3), numbers(2, 4))),
    "mlp gradient": (
        jax.grad(lambda *a: (mlp(*a) ** 2).sum(), argnums=(0, 1)), (numbers(4, 8), numbers(8, 3), numbers(2, 4))),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), (numbers(4, 8),)),
    "convolution gradient": (jax.grad(convolved, argnums=(0, 1)), (numbers(2, 3, 8, 8), numbers(4, 3, 3, 3))),
    "pooling gradient": (jax.grad(pooled), (numbers(2, 8, 8),)),
    "gather": (lambda x, i: x[i], (numbers(6, 4), PLACES)),
    "scatter": (lambda x, i, u: x.at[i].add(u), (numbers(6, 4), PLACES, numbers(3, 4))),
    "sort": (lambda x: (jnp.sort(x, axis=1), jnp.argsort(x, axis=0)), (numbers(6, 4),)),
    "scan": (lambda x: jax.lax.scan(lambda c, y: (c * 0.9 + y, c.sum()), x[0], x), (numbers(6, 4),)),
    "while": (lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x), (numbers(3),)),
    "switch": (lambda i, x: jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], x), (np.int32(1), numbers(6, 4))),
    "argmax": (lambda x: (jnp.argmax(x, axis=1), jnp.argmin(x, axis=0)), (numbers(6, 4),)),
    "cumsum": (lambda x: jnp.cumsum(x, axis=1), (numbers(6, 4),)),
    "random": (lambda k: jax.random.normal(k, (4,)), (np.array([0, 7], np.uint32),)),
    "attention": (
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        (numbers(2, 5, 3, 4), numbers(2, 5, 3, 4), numbers(2, 5, 3, 4))),
    "fft": (lambda x: jnp.abs(jnp.fft.rfft(x) * (1 + 2j)), (numbers(6, 4),)),
    "top_k": (lambda x: jax.lax.top_k(x, 2), (numbers(6, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_lowered_by_jax_gives_jax_s_values(name: str) -> None:
    function, values = FUNCTIONS[name]
    program = mlir.load(jax.jit(function).lower(*values).as_text())
    found = [x.data for x in run(program, arrays(list(values)))]
    assert_close(found, jax.tree.leaves(jax.jit(function)(*values)), 2e-5)


# Programs of our own


def test_loops_branches_and_scans_are_written_and_read_back() -> None:
    def function(x: Any) -> Any:
        total, rows = mw.lax.scan(lambda c, row: (c + row, c * 2), x[0], x, reverse=True)
        y = mw.lax.cond(total.sum() > 0, mnp.sin, mnp.cos, rows)
        return mw.lax.while_loop(lambda v: v.sum() < 50, lambda v: v * 1.5 + 1, y)

    values: list[Any] = [numbers(4, 3)]
    program = mw.make_program(function)(values[0])
    expected = [x.data for x in run(program, arrays(values))]
    text = mlir.dump(program)
    assert_close(by_xla(text, values), expected)
    assert_close([x.data for x in run(mlir.load(text), arrays(values))], expected)


def test_shardings_are_written() -> None:
    mesh = mw.Mesh.parse('sdy.mesh @mesh = <["x"=2, "y"=4]>')
    program = mw.make_program(lambda x, w: x @ w)(mnp.ones((8, 4)), mnp.ones((4, 6)))
    places = [mw.NamedSharding(mesh, mw.P("x", None)), None]
    text = mlir.dump(program, in_shardings=places, out_shardings=[mw.NamedSharding(mesh, mw.P(None, "y"))])
    assert text.splitlines()[1:3] == [
        '  sdy.mesh @mesh = <["x"=2, "y"=4]>',
        '  func.func @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, '
        '%arg1: tensor<4x6xf32>) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {',
    ]


def test_a_constraint_is_read_and_written_back() -> None:
    text = """\
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {?}]> : tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}"""
    program = mlir.load(text)
    assert [eqn.op.name for eqn in program.eqns] == ["sharding_constraint"]
    assert mlir.dump(program, mesh=mw.Mesh.parse('sdy.mesh @mesh = <["x"=2]>')) == text


# What cannot be


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "%0 = stablehlo.custom_call @strange(%x) : (tensor<4xf32>) -> tensor<4xf32>",
            """\
stablehlo.custom_call cannot become part of a program.
  at:   "-":2:6
  why:  meshwright has no op that does the same
  fix:  meshwright opt takes it: passes let ops they do not know pass through""",
        ),
        (
            "%0 = func.call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>",
            """\
func.call cannot become part of a program.
  at:   "-":2:6
  why:  @main calls itself
  fix:  meshwright opt takes it: passes let ops they do not know pass through""",
        ),
    ],
)
def test_what_has_no_twin_is_said(body: str, message: str) -> None:
    text = f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\nreturn %0 : tensor<4xf32>\n}}"
    with pytest.raises(MeshwrightError) as error:
        mlir.load(text)
    assert str(error.value) == message


def test_a_constraint_without_a_mesh_is_said() -> None:
    program = mlir.load(
        'sdy.mesh @m = <["x"=2]>\nfunc.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n'
        '%0 = sdy.sharding_constraint %a <@m, [{"x"}]> : tensor<8xf32>\nreturn %0 : tensor<8xf32>\n}'
    )
    with pytest.raises(MeshwrightError, match="there is no mesh"):
        mlir.dump(program)
