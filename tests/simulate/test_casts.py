"""A contraction reads what is cast or dequantized for it as it is stored, in time and in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.engine.compile import compile_program
from meshwright.hardware import roofline
from meshwright.simulate.fusion import fuse
from meshwright.transform.stack import inline_calls
from tests.simulate.test_fusion import run_by_kernels

M, K, N = 32, 256, 1024
BF16 = "bfloat16"


def struct(*shape: int, dtype: str = BF16) -> Any:
    return mw.ShapeDtypeStruct(shape, dtype)


def grouped(w: Any, scale: Any) -> Any:
    parts = w.reshape(scale.shape[0], -1, w.shape[1]).astype(BF16)
    return (parts * scale[:, None, :]).reshape(w.shape)


X, W, COLUMN = struct(M, K), struct(K, N, dtype="int8"), struct(N)
DEQUANTIZED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cast": (lambda x, w: x @ w.astype(BF16), (X, W)),
    "cast on the left": (lambda x, w: w.T.astype(BF16) @ x.T, (X, W)),
    "turned": (lambda x, w: x @ w.astype(BF16).T, (X, struct(N, K, dtype="int8"))),
    "turned before the cast": (lambda x, w: x @ w.T.astype(BF16), (X, struct(N, K, dtype="int8"))),
    "a number's scale": (lambda x, w: x @ (w.astype(BF16) * 0.02), (X, W)),
    "a scale per column": (lambda x, w, s: x @ (w.astype(BF16) * s), (X, W, COLUMN)),
    "scale and zero point": (lambda x, w, s, z: x @ ((w.astype(BF16) - z) * s), (X, W, COLUMN, COLUMN)),
    "groups": (lambda x, w, s: x @ grouped(w, s), (X, W, struct(K // 32, N))),
    "by way of f32": (lambda x, w, s: x @ (w.astype("float32") * s).astype(BF16), (X, W, struct(N, dtype="float32"))),
    "einsum of heads": (
        lambda q, k: mnp.einsum("bhd,bshd->bhs", q, k.astype(BF16)),
        (struct(4, 8, 64), struct(4, 512, 8, 64, dtype="int8")),
    ),
    "f8": (lambda x, w: x @ w.astype(BF16), (X, struct(K, N, dtype="float8_e4m3fn"))),
    "narrowed": (lambda x, w: x @ w.astype(BF16), (X, struct(K, N, dtype="float32"))),
    "repeated": (
        lambda x, w: mnp.einsum("hmk,hkn->hmn", x, mnp.repeat(w, 4, axis=0)),
        (struct(8, M, K), struct(2, K, N)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEQUANTIZED)
def test_operands_are_read_as_they_are_stored_and_never_written(name: str) -> None:
    function, args = DEQUANTIZED[name]
    program = mw.make_program(function)(*args)
    (kernel,) = fuse(inline_calls(program)).kernels
    given = [a.type.nbytes for a in program.inputs]
    assert kernel.nbytes == sum(given) + sum(t.nbytes for t in program.out_types)
    found = mw.simulate.memory(program)
    assert found.peak_bytes == kernel.nbytes and found.temporary_bytes == 0


@pytest.mark.parametrize("name", DEQUANTIZED)
def test_kernels_compute_what_the_program_does(name: str) -> None:
    function, structs = DEQUANTIZED[name]
    rng = np.random.default_rng(0)
    args = [rng.integers(-4, 5, one.shape).astype(one.dtype) for one in structs]
    program = inline_calls(mw.make_program(function)(*args))
    for a, b in zip(run_by_kernels(program, args), compile_program(program)(*args), strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


@pytest.mark.parametrize("chip", ["tpu v5e", "h100"])
@pytest.mark.parametrize("rows", [1, 32, 512, 8192])
def test_the_time_is_that_of_the_closed_form(chip: str, rows: int) -> None:
    k, n = 8192, 28672
    for dtype in ("int8", BF16, "float32"):
        program = mw.make_program(lambda x, w: x @ w.astype(BF16))(struct(rows, k), struct(k, n, dtype=dtype))
        found = mw.simulate(program, chip)
        assert found.seconds == pytest.approx(roofline.matmul(rows, k, n, chip, BF16, weight_dtype=dtype).seconds)


def test_weights_of_one_byte_take_half_as_long_as_those_of_two() -> None:
    def seconds(dtype: str, mode: str) -> float:
        program = mw.make_program(lambda x, w: x @ w.astype(BF16))(struct(32, 8192), struct(8192, 28672, dtype=dtype))
        return mw.simulate(program, "h200", mode=mode).seconds

    for mode in ("exact", "calibrated"):
        assert 0.5 < seconds("int8", mode) / seconds(BF16, mode) < 0.56


def test_layers_in_a_loop_read_weights_as_they_are_stored() -> None:
    def layers(x: Any, ws: Any) -> Any:
        return lax.scan(lambda x, w: (mnp.tanh(x @ w.astype(BF16)), None), x, ws)[0]

    def nbytes(dtype: str) -> float:
        program = mw.make_program(layers)(struct(8, 512), struct(6, 512, 512, dtype=dtype))
        found = mw.simulate(program, "tpu v5e")
        return sum(times * task.cost.nbytes for task, times in found.leaves())

    assert nbytes(BF16) - nbytes("int8") == 6 * 512 * 512


def test_a_cast_for_several_products_is_written_where_that_is_less_to_read() -> None:
    def function(count: int, dtype: str) -> list[int]:
        def products(w: Any, *xs: Any) -> Any:
            wide = w.astype(BF16)
            return [x @ wide for x in xs]

        xs = [struct(M, K) for _ in range(count)]
        program = mw.make_program(products)(struct(K, N, dtype=dtype), *xs)
        return [len(kernel.eqns) for kernel in fuse(inline_calls(program)).kernels]

    assert function(5, "int8") == [2] * 5  # n·R < R + W + n·W for every n if R < W
    assert function(2, "float32") == [2, 2]  # 8 < 10 bytes an element
    assert function(3, "float32") == [1, 1, 1, 1]  # 12 = 12


def test_what_is_returned_or_handed_to_a_loop_is_written_once() -> None:
    def returned(x: Any, w: Any) -> Any:
        wide = w.astype(BF16)
        return x @ wide, wide

    def handed(x: Any, w: Any) -> Any:
        wide = w.astype(BF16)
        return lax.scan(lambda c, _: (c @ wide, None), x @ wide, None, length=3)[0]

    for function in (returned, handed):
        program = inline_calls(mw.make_program(function)(struct(M, K), struct(K, K, dtype="int8")))
        assert [k.eqns[0].op.name for k in fuse(program).kernels][:2] == ["convert", "dot_general"]


def test_what_is_not_stored_is_no_operand_to_compute_on_reading() -> None:
    def function(x: Any, w: Any) -> Any:
        return mnp.tanh(x.astype("float32")).astype(BF16) @ w  # tanh is computed once, and written narrow

    kernels = fuse(inline_calls(mw.make_program(function)(struct(M, K), struct(K, N)))).kernels
    assert [[eqn.op.name for eqn in k.eqns] for k in kernels] == [["convert", "tanh", "convert"], ["dot_general"]]


def test_products_of_arrays_of_one_width_are_kernels_of_their_own() -> None:
    kernels = fuse(inline_calls(mw.make_program(lambda x, y, w: (x * y) @ w)(X, X, struct(K, N)))).kernels
    assert [[eqn.op.name for eqn in k.eqns] for k in kernels] == [["mul"], ["dot_general"]]


def test_a_comparison_on_the_way_is_no_cast() -> None:
    kernels = fuse(inline_calls(mw.make_program(lambda x, w: mw.nn.relu(x) @ w)(X, struct(K, N)))).kernels
    assert [len(kernel.eqns) for kernel in kernels if kernel.alone] == [1]


# Four bits


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_four_bits_are_half_a_byte(dtype: str) -> None:
    weights = mw.ShapeDtypeStruct((8192, 28672), dtype)
    program = mw.make_program(lambda x, w: x @ w.astype(BF16))(struct(32, 8192), weights)
    found = mw.simulate(program, "tpu v5e")
    assert program.inputs[1].type.nbytes == 8192 * 28672 // 2
    assert found.seconds == roofline.matmul(32, 8192, 28672, "tpu v5e", BF16, weight_dtype="int4").seconds
    assert found.memory.temporary_bytes == 0
    assert mw.parse_program(str(program)) == program


def test_four_bits_are_cast_as_jax_casts_them() -> None:
    import jax.numpy as jnp

    numbers = np.array([-1e9, -9.0, -8.4, -1.5, -0.2, 0.0, 0.9, 3.7, 7.5, 8.0, 15.2, 16.0, np.inf, np.nan], np.float32)
    for dtype in ("int4", "uint4"):
        given = np.asarray(mnp.array(numbers).astype(dtype).astype("float32"))
        np.testing.assert_array_equal(given, np.asarray(jnp.array(numbers).astype(dtype).astype("float32")))


def test_four_bits_are_saved_and_loaded(tmp_path: Any) -> None:
    x = mnp.arange(-8, 8).astype("int4").reshape(4, 4)
    mw.save(tmp_path / "x", {"x": x})
    back = mw.load(tmp_path / "x")["x"]
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(back, np.int8), np.asarray(x, np.int8))


def test_no_op_computes_with_four_bits() -> None:
    x = mnp.arange(8).astype("int4")
    with pytest.raises(mw.MeshwrightError) as error:
        x + x
    assert str(error.value).splitlines()[0] == "add cannot take i4[8], i4[8]."
