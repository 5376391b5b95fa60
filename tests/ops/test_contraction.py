"""dot_general and convolution beyond their samples: layouts, exact integers, every mix of convolution params."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from meshwright.core import dtypes
from meshwright.core.trace import to_array, trace
from meshwright.core.types import TensorType
from meshwright.engine import convolution
from meshwright.errors import ShapeError
from meshwright.ops.contraction import blas_layout, conv_general_dilated, dot_general
from meshwright.transform.batch import batch_program
from meshwright.transform.jvp import linearize_program
from meshwright.transform.transpose import transpose_program

NONE: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def pull_back(function: Any, operands: list[Any], ct: Any) -> tuple[list[Any], list[str]]:
    """The cotangents of a function linear in each operand, and the ops of the program that computes them."""
    program, _ = trace(lambda *xs: [function(*xs)], [to_array(x).type for x in operands])
    _, linear = linearize_program(program, [to_array(x) for x in operands], [True] * len(operands))
    count = len(linear.residuals)

    def backward(*values: Any) -> list[Any]:
        flags = [False] * count + [True] * len(operands)
        args = [*values[:count], *[None] * len(operands)]
        return transpose_program(linear.program, flags, args, [values[-1]])[count:]

    values = [*linear.residuals, to_array(ct)]
    ops = [eqn.op.name for eqn in trace(backward, [v.type for v in values])[0].eqns]
    return [x.data for x in backward(*values)], ops


# dot_general


@pytest.mark.parametrize(
    ("x", "y", "contract", "batch"),
    [
        ((5, 3), (3, 4), ((1,), (0,)), NONE),
        ((5, 3), (4, 3), ((1,), (1,)), NONE),
        ((3, 5), (3, 4), ((0,), (0,)), NONE),
        ((2, 5, 3), (3, 4), ((2,), (0,)), NONE),
        ((2, 5, 3), (3, 2, 4), ((2,), (0,)), NONE),
        ((2, 5, 3), (2, 3, 4), ((2,), (1,)), ((0,), (0,))),
        ((2, 6, 5, 3), (2, 6, 4, 3), ((3,), (3,)), ((0, 1), (0, 1))),
    ],
)
def test_cotangents_come_out_in_the_order_of_their_operands(x: Any, y: Any, contract: Any, batch: Any) -> None:
    operands = [normal(0, *x), normal(1, *y)]
    function = lambda a, b: dot_general(a, b, contract=contract, batch=batch, dtype=None)
    counterpart = lambda a, b: lax.dot_general(a, b, (contract, batch))
    out, pull = jax.vjp(counterpart, *operands)
    ct = normal(2, *out.shape)
    cts, ops = pull_back(function, operands, ct)
    assert ops == ["dot_general", "dot_general"]
    for actual, expected in zip(cts, pull(ct), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_views_that_blas_takes_are_not_copied() -> None:
    x = normal(0, 4, 6, 8)
    for view in (x, x.swapaxes(1, 2), x.transpose(1, 0, 2), x[:, ::2], x[:, :, :5]):
        assert np.shares_memory(blas_layout(view), x)
    for view in (x.transpose(2, 0, 1), x[:, :, ::2], x[:, ::-1], np.broadcast_to(x[0, 0], (6, 8))):
        assert blas_layout(view).flags.c_contiguous


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_product_does_not_depend_on_the_layout_of_its_operands(axes: tuple[int, ...]) -> None:
    x, y = normal(0, 4, 6, 8), normal(1, 8, 6, 5)
    strange = np.ascontiguousarray(x.transpose(axes)).transpose(np.argsort(axes))
    for view in (strange, strange[::-1][::-1], np.repeat(strange, 2, axis=2)[:, :, ::2]):
        out = dot_general(view, y[:, ::-1], contract=((2, 1), (0, 1)), batch=NONE, dtype=None)
        np.testing.assert_allclose(out.data, np.einsum("ijk,kjl->il", x, y[:, ::-1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
@pytest.mark.parametrize("small", [True, False])
def test_integer_products_wrap_around(dtype: Any, small: bool, x64: None) -> None:
    info = np.iinfo(dtype)
    generator = np.random.default_rng(0)
    low, high = (max(info.min, -9), 9) if small else (info.min, info.max)
    x, y = (generator.integers(low, high, (40, 40), dtype=dtype, endpoint=True) for _ in range(2))
    out = dot_general(x, y, contract=((1,), (0,)), batch=NONE, dtype=None).data
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, np.matmul(x, y))


def test_narrow_floats_are_rounded_once() -> None:
    # The exact sum is 256 + 64 * 0.5 = 288; adding one by one in bf16 would stay at 256.
    x = np.array([[256.0] + [0.5] * 64], ml_dtypes.bfloat16)
    ones = np.ones((65, 1), ml_dtypes.bfloat16)
    assert float(dot_general(x, ones, contract=((1,), (0,)), batch=NONE, dtype=None).data[0, 0]) == 288.0


def test_an_empty_sum_is_zero() -> None:
    out = dot_general(normal(0, 3, 0), normal(0, 0, 2), contract=((1,), (0,)), batch=NONE, dtype=None)
    np.testing.assert_array_equal(out.data, np.zeros((3, 2), np.float32))


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="differ in number or size"):
        dot_general(normal(0, 3, 4), normal(0, 5, 2), contract=((1,), (0,)), batch=NONE, dtype=None)
    with pytest.raises(ShapeError, match="named twice"):
        dot_general(normal(0, 3, 3), normal(0, 3, 3), contract=((1,), (0,)), batch=((1,), (1,)), dtype=None)
    with pytest.raises(ShapeError, match="both integers, both floats"):
        dot_general(normal(0, 3, 3), np.ones((3, 3), np.int32), contract=((1,), (0,)), batch=NONE, dtype=None)


# Convolution


def random_convolution(seed: int) -> tuple[Any, Any, dict[str, Any]]:
    generator = np.random.default_rng(seed)
    draw = lambda low, high, *shape: np.asarray(generator.integers(low, high, shape)).tolist()
    spatial, groups = draw(0, 4), draw(1, 4)
    features, batches = ((groups, 1), (1, groups), (1, 1))[draw(0, 3)]
    space, window = draw(3, 8, spatial), draw(1, 4, spatial)
    params = {
        "strides": tuple(draw(1, 4, spatial)),
        "padding": tuple((a, b) for a, b in draw(-1, 4, spatial, 2)),
        "lhs_dilation": tuple(draw(1, 4, spatial)),
        "rhs_dilation": tuple(draw(1, 3, spatial)),
        "dims": tuple(tuple(generator.permutation(spatial + 2).tolist()) for _ in range(3)),
        "feature_groups": features,
        "batch_groups": batches,
    }
    if seed % 3 == 0:
        params["strides"] = params["rhs_dilation"] = (1,) * spatial
    inputs, outputs, examples = draw(1, 4), draw(1, 4) * features * batches, draw(1, 4) * batches
    lhs, rhs, _ = params["dims"]
    x = normal(seed, examples, inputs * features, *space).transpose(np.argsort(lhs))
    w = normal(seed + 1, outputs, inputs, *window).transpose(np.argsort(rhs))
    return np.ascontiguousarray(x), np.ascontiguousarray(w), params


def jax_conv(x: Any, w: Any, params: dict[str, Any]) -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        params["strides"],
        params["padding"],
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=lax.ConvDimensionNumbers(*params["dims"]),
        feature_group_count=params["feature_groups"],
        batch_group_count=params["batch_groups"],
    )


@pytest.mark.parametrize("seed", range(24))
def test_any_convolution_is_that_of_jax(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "BUFFER_BYTES", (64, 1024, 1 << 20)[seed % 3])
    x, w, params = random_convolution(seed)
    out, pull = jax.vjp(lambda a, b: jax_conv(a, b, params), x, w)
    np.testing.assert_allclose(conv_general_dilated(x, w, **params).data, out, rtol=1e-4, atol=1e-4)
    ct = normal(seed + 2, *out.shape)
    cts, _ = pull_back(lambda a, b: conv_general_dilated(a, b, **params), [x, w], ct)
    for actual, expected in zip(cts, pull(ct), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_of_convolutions_is_a_loop(seed: int) -> None:
    x, w, params = random_convolution(seed)
    program, _ = trace(lambda a, b: [conv_general_dilated(a, b, **params)], [to_array(x).type, to_array(w).type])
    for flags in ((True, False), (False, True), (True, True)):
        args = [normal(5, 3, *a.shape) if f else a for a, f in zip((x, w), flags, strict=True)]
        (out,), _ = batch_program(program, 3, [to_array(a) for a in args], flags)
        for n in range(3):
            one = [a[n] if f else a for a, f in zip(args, flags, strict=True)]
            np.testing.assert_allclose(out.data[n], jax_conv(*one, params), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [dtypes.INT8, dtypes.UINT8, dtypes.INT32, dtypes.INT64], ids=str)
def test_integer_convolutions_wrap_around(dtype: Any, x64: None) -> None:
    info = np.iinfo(dtype)
    generator = np.random.default_rng(0)
    x, w = (generator.integers(info.min, info.max, s, dtype=dtype, endpoint=True) for s in ((1, 3, 5), (2, 3, 3)))
    params = {**random_convolution(0)[2], "dims": ((0, 1, 2),) * 3, "feature_groups": 1, "batch_groups": 1}
    params |= {"strides": (1,), "padding": ((1, 1),), "lhs_dilation": (1,), "rhs_dilation": (1,)}
    np.testing.assert_array_equal(conv_general_dilated(x, w, **params).data, jax_conv(x, w, params))


def test_a_kernel_that_does_not_fit_is_refused() -> None:
    params = {**random_convolution(0)[2], "dims": ((0, 1, 2),) * 3, "feature_groups": 1, "batch_groups": 1}
    params |= {"strides": (1,), "padding": ((1, 1),), "lhs_dilation": (1,), "rhs_dilation": (1,)}
    f32 = dtypes.FLOAT32
    with pytest.raises(ShapeError, match="3 features and the kernel takes 2"):
        conv_general_dilated.type(TensorType((1, 3, 5), f32), TensorType((4, 2, 3), f32), **params)
