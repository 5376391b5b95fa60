"""Functions of ``jax.lax`` and ``jax.lax.linalg``, against JAX's: values, derivatives, and under ``jit`` on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.jax as mjax

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype("f")


def positive(*shape: int, most: float = 6.0) -> Any:
    return RANDOM.uniform(0.1, most, shape).astype("f")


def integers(dtype: str, *shape: int) -> Any:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max, shape, dtype, endpoint=True)


class Case(NamedTuple):
    """A call of ``p``, the package; ``by`` are the arguments it is differentiated by."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    by: tuple[int, ...] = ()
    within: float = 3e-5


def hypot(p: Any) -> Any:
    return lambda a, b: p.numpy.sqrt(a * a + b * b)


def larger(p: Any) -> Any:
    """The larger of two numbers, with what came with it."""
    return lambda a, b: (p.numpy.maximum(a[0], b[0]), p.numpy.where(a[0] >= b[0], a[1], b[1]))


SQUARE = normal(8, 4, 4)
HERMITIAN = (SQUARE + SQUARE.swapaxes(1, 2)) / 2
LOCAL_CONV = (normal(2, 3, 8, 8), normal(5, 12, 7, 7))
IMAGE = normal(2, 8, 8, 3)
TALL, TAUS = normal(8, 5, 3), normal(8, 3)
DIAGONALS = normal(8, 6), normal(8, 6) + 3, normal(8, 6), normal(8, 6, 2)
SCATTERED = (normal(8, 4), np.array([[1], [5], [1]], "int32"))

CASES = {
    "igamma": Case(lambda p, a, x: p.lax.igamma(a, x), (positive(8, 4), positive(8, 4)), (0, 1), 2e-4),
    "igammac": Case(lambda p, a, x: p.lax.igammac(a, x), (positive(8, 4), positive(8, 4)), (0, 1), 2e-4),
    "igamma_grad_a": Case(lambda p, a, x: p.lax.igamma_grad_a(a, x), (positive(8, 4), positive(8, 4)), (), 2e-4),
    "random_gamma_grad": Case(lambda p, a, x: p.lax.random_gamma_grad(a, x), (positive(8), positive(8)), (), 2e-4),
    "betainc": Case(
        lambda p, a, b, x: p.lax.betainc(a, b, x), (positive(8), positive(8), positive(8, most=0.95)), (2,), 2e-4
    ),
    "zeta": Case(lambda p, x, q: p.lax.zeta(x, q), (positive(8) + 1, positive(8))),
    "bessel_i0e": Case(lambda p, x: p.lax.bessel_i0e(x), (6 * normal(8, 4),), (0,)),
    "bessel_i1e": Case(lambda p, x: p.lax.bessel_i1e(x), (6 * normal(8, 4),), (0,), 1e-4),
    "bessel_i0e of bf16": Case(lambda p, x: p.lax.bessel_i0e(x.astype("bfloat16")), (normal(8),)),
    "mulhi of i32": Case(lambda p, x, y: p.lax.mulhi(x, y), (integers("int32", 8, 4), integers("int32", 8, 4))),
    "mulhi of u32": Case(lambda p, x, y: p.lax.mulhi(x, y), (integers("uint32", 8), integers("uint32", 8))),
    "mulhi of i8": Case(lambda p, x, y: p.lax.mulhi(x, y), (integers("int8", 8), integers("int8", 8))),
    "mul out_dtype": Case(
        lambda p, x, y: p.lax.mul(x, y, out_dtype="int32"), (integers("int8", 8), integers("int8", 8))
    ),
    "sizes of 1": Case(lambda p, x, y: p.lax.add(x, y), (normal(8, 1), normal(1, 4)), (0, 1)),
    "accuracy": Case(lambda p, x: p.lax.exp(x, accuracy=p.lax.AccuracyMode.HIGHEST), (normal(8),), (0,)),
    "reduce_xor": Case(lambda p, x: p.lax.reduce_xor(x, (1,)), (integers("int32", 8, 5),)),
    "reduce": Case(lambda p, x: p.lax.reduce(x, 0.0, hypot(p), (1, 2)), (normal(8, 3, 5),)),
    "reduce of two": Case(
        lambda p, x, y: p.lax.reduce((x, y), (np.float32(-9), np.float32(0)), larger(p), (1,)),
        (normal(8, 5), normal(8, 5)),
    ),
    "reduce_window": Case(
        lambda p, x: p.lax.reduce_window(x, 0.0, hypot(p), (1, 3), (1, 2), "SAME", (1, 2), (1, 2)), (normal(8, 9),)
    ),
    "reduce_window by mul": Case(
        lambda p, x: p.lax.reduce_window(x, 1.0, p.lax.mul, (1, 3), (1, 1), ((0, 0), (1, 1))), (normal(8, 9),)
    ),
    "reduce_window_shape_tuple": Case(
        lambda p: np.zeros(p.lax.reduce_window_shape_tuple((8, 9), (1, 3), (1, 2), ((0, 0), (1, 1)), (1, 2), (1, 2))),
        (),
    ),
    "approx_max_k": Case(lambda p, x: p.lax.approx_max_k(x, 3), (normal(8, 20),), (0,)),
    "approx_min_k": Case(lambda p, x: p.lax.approx_min_k(x, 3, 0), (normal(20, 8),)),
    "conv_general_dilated_patches": Case(
        lambda p, x: p.lax.conv_general_dilated_patches(
            x, (2, 3), (1, 2), "SAME", rhs_dilation=(2, 1), dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        (IMAGE,), (0,),
    ),
    "conv_general_dilated_local": Case(
        lambda p, x, w: p.lax.conv_general_dilated_local(x, w, (1, 1), "VALID", (2, 2)), LOCAL_CONV, (0, 1), 1e-4
    ),
    "conv_transpose": Case(
        lambda p, x, w: p.lax.conv_transpose(x, w, (2, 2), [(1, 0), (0, 1)], use_consistent_padding=True),
        (IMAGE, normal(3, 3, 3, 4)), (0, 1), 1e-4,
    ),
    "shapes of convolutions": Case(
        lambda p: [
            np.zeros(p.lax.conv_shape_tuple((2, 3, 8, 8), (5, 3, 3, 3), (1, 2), ((0, 0), (1, 1)))),
            np.zeros(p.lax.conv_general_shape_tuple(
                (2, 8, 8, 3), (3, 3, 3, 5), (1, 2), "SAME", ("NHWC", "HWIO", "NHWC"))),
            np.zeros(p.lax.conv_transpose_shape_tuple(
                (2, 8, 8, 3), (3, 3, 3, 5), (1, 2), "SAME", ("NHWC", "HWIO", "NHWC"))),
        ], (),
    ),
    "stack": Case(lambda p, x, y: p.lax.stack([x, y], 1), (normal(8, 4), normal(8, 4)), (0, 1)),
    "unstack": Case(lambda p, x: p.lax.unstack(x, 1), (normal(8, 4),), (0,)),
    "tile": Case(lambda p, x: p.lax.tile(x, (2, 3)), (normal(8, 4),), (0,)),
    "broadcast_to_rank": Case(lambda p, x: p.lax.broadcast_to_rank(x, 3), (normal(8, 4),), (0,)),
    "broadcast_like": Case(lambda p, x, y: p.lax.broadcast_like(x, y), (normal(4), normal(8, 4)), (0,)),
    "index_take": Case(
        lambda p, x: p.lax.index_take(x, [p.numpy.array([1, -1]), p.numpy.array([0, 2])], (0, 1)),
        (normal(8, 4, 2),), (0,),
    ),
    "cond operand": Case(lambda p, x: p.lax.cond(True, lambda y: y + 1, lambda y: y, operand=x), (normal(8),), (0,)),
    "switch operand": Case(lambda p, x: p.lax.switch(1, [lambda y: y, lambda y: 2 * y], operand=x), (normal(8),), (0,)),
    "platform_dependent": Case(
        lambda p, x: p.lax.platform_dependent(x, cpu=lambda y: y + 1, default=lambda y: y), (normal(8),), (0,)
    ),
    "composite": Case(lambda p, x: p.lax.composite(lambda y: y * y, "my.square")(x), (normal(8),)),
    "scatter_apply": Case(
        lambda p, x, i: p.lax.scatter_apply(
            x, i, lambda y: p.numpy.sin(y) + 1, p.lax.ScatterDimensionNumbers((1,), (0,), (0,)), update_shape=(3, 4)
        ),
        SCATTERED,
    ),
    "scaled_dot": Case(
        lambda p, x, y, s: p.lax.scaled_dot(x, y, lhs_scale=s, preferred_element_type="float32"),
        (normal(8, 4, 6), normal(8, 6, 2), positive(8, 4, 3)), (), 1e-2,  # JAX rounds to bf16 on the way
    ),
    "hessenberg": Case(lambda p, x: p.lax.linalg.hessenberg(x), (SQUARE,)),
    "tridiagonal": Case(lambda p, x: p.lax.linalg.tridiagonal(x), (HERMITIAN,)),
    "tridiagonal of the upper half": Case(lambda p, x: p.lax.linalg.tridiagonal(x, lower=False), (HERMITIAN,)),
    "householder_product": Case(lambda p, a, t: p.lax.linalg.householder_product(a, t), (TALL, TAUS), (), 1e-4),
    "ormqr": Case(lambda p, a, t, c: p.lax.linalg.ormqr(a, t, c), (TALL, TAUS, normal(8, 5, 2)), (), 1e-4),
    "ormqr on the right": Case(
        lambda p, a, t, c: p.lax.linalg.ormqr(a, t, c, left=False, transpose=True),
        (TALL, TAUS, normal(8, 2, 5)), (), 1e-4,
    ),
    "lu": Case(lambda p, x: p.lax.linalg.lu(x), (SQUARE,)),
    "lu_pivots_to_permutation": Case(
        lambda p, x: p.lax.linalg.lu_pivots_to_permutation(x, 4), (np.array([[2, 3], [1, 1], [3, 3], [0, 2]], "int32"),)
    ),
    "qr": Case(lambda p, x: p.lax.linalg.qr(x, full_matrices=False), (TALL,), (0,), 1e-3),
    "qr with pivoting": Case(lambda p, x: p.lax.linalg.qr(x, pivoting=True), (normal(8, 3, 5),)),
    "eigh": Case(lambda p, x: p.lax.linalg.eigh(x, lower=False)[1], (HERMITIAN,)),
    "svd": Case(lambda p, x: p.lax.linalg.svd(x, compute_uv=False), (TALL,), (0,), 1e-4),
    "cholesky_update": Case(
        lambda p, r, w: p.lax.linalg.cholesky_update(r, w),
        (np.triu(normal(5, 5)) + 4 * np.eye(5, dtype="f"), normal(5))
    ),
    "symmetric_product": Case(
        lambda p, a, c: p.lax.linalg.symmetric_product(a, c, alpha=0.5, beta=2.0, symmetrize_output=True),
        (normal(8, 4, 3), HERMITIAN),
    ),
    "tridiagonal_solve": Case(lambda p, *xs: p.lax.linalg.tridiagonal_solve(*xs), DIAGONALS, (0, 1, 2, 3), 1e-3),
    "qdwh": Case(lambda p, x: p.lax.linalg.qdwh(x), (TALL[0],)),
    "cholesky": Case(
        lambda p, x: p.lax.linalg.cholesky(x=x), (SQUARE @ SQUARE.swapaxes(1, 2) + np.eye(4, dtype="f"),), (0,), 1e-3
    ),
}  # fmt: skip


def leaves(x: Any) -> list[Any]:
    return [np.asarray(y) for y in (x if isinstance(x, tuple | list) else [x])]


def assert_close(ours: Any, theirs: Any, within: float) -> None:
    for x, y in zip(leaves(ours), leaves(theirs), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        x, y = (z.astype("f") if z.dtype.kind == "V" or z.dtype.name == "bfloat16" else z for z in (x, y))
        np.testing.assert_allclose(x, y, rtol=within, atol=within * max(1.0, np.abs(y).max(initial=0)))


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_jax(name: str) -> None:
    case = CASES[name]
    theirs = case.call(jax, *map(jax.numpy.asarray, case.arguments))
    assert_close(case.call(mjax, *map(mjax.numpy.asarray, case.arguments)), theirs, case.within)
    if not case.arguments:
        return
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    rows = [
        mw.device_put(x, mw.NamedSharding(mesh, mw.P("x" if x.shape[0] % 2 == 0 else None))) for x in case.arguments
    ]
    assert_close(mw.jit(lambda *xs: case.call(mjax, *xs))(*rows), theirs, case.within)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by])
def test_derivatives_are_those_of_jax(name: str) -> None:
    case = CASES[name]

    def total(p: Any) -> Any:
        def function(*xs: Any) -> Any:
            found = case.call(p, *xs)
            found = found if isinstance(found, tuple | list) else [found]
            return sum(p.numpy.sum(p.numpy.sin(x)) for x in found if p.numpy.issubdtype(x.dtype, p.numpy.floating))

        return function

    ours = mjax.grad(total(mjax), case.by)(*case.arguments)
    assert_close(ours, jax.jit(jax.grad(total(jax), case.by))(*case.arguments), 5 * case.within)


def test_derivatives_of_betainc_by_its_parameters_where_the_fraction_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX has none: differences of its values."""
    monkeypatch.setattr(mw.config, "enable_x64", True)
    a, b, x = np.array([1.0, 2.5, 3.0]), np.array([2.0, 1.0, 3.0]), np.array([0.2, 0.7, 0.5])
    ours = mw.grad(lambda a, b: mw.lax.betainc(a, b, x).sum(), (0, 1))(a, b)
    step = 1e-5
    with jax.enable_x64(True):
        f = lambda a, b: np.asarray(jax.lax.betainc(a, b, x))
        by_a = (f(a + step, b) - f(a - step, b)) / (2 * step)
        by_b = (f(a, b + step) - f(a, b - step)) / (2 * step)
    np.testing.assert_allclose(ours[0], by_a, rtol=1e-7)
    np.testing.assert_allclose(ours[1], by_b, rtol=1e-7)
