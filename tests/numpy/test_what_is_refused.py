"""Calls that were once taken silently, and gave something else than was meant: one error, whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn

V, M, Z = mnp.ones(3), mnp.ones((2, 3)), mnp.ones(3, "complex64")
T = mnp.ones((2, 2, 3))
Q = mnp.ones((1, 2, 2, 4))
NO_ORDER = "complex numbers have no order", "x.real, x.imag or mnp.abs(x)"
REAL = "it is one real number", "1.0, or x[0]"
BRANCHES = "The branches of cond return different types."
AGREE = "convert with .astype(…) or reshape so that all branches agree"
ATTENTION = "nn.dot_product_attention cannot take f32[1,2,2,4] and "
DIMS = (
    "with queries (…, T, N, H), keys are (…, S, K, H) and values (…, S, K, any)",
    "mnp.broadcast_to(key, (*query.shape[:-3], *key.shape[-3:]))",
)
PLACE = "give a sharding, a device, or a P on the current mesh", 'mw.NamedSharding(mesh, mw.P("x", None))'
INDEX = (
    "f32[3] is not a Python index.",
    "an index is an integer array of rank 0; a list or a text times an array asks for one, too",
    "int(x) of one number, or mnp.array([…]) * x",
)


@pytest.mark.parametrize(
    ("call", "what", "why", "fix"),
    [
        (
            lambda: mnp.piecewise(V, [V > 0, V[:, None] < 0], [1, 2, 3]),
            "mnp.piecewise cannot take conditions bool[3] and bool[3,1].",
            "they are rows of one array, and so of one shape",
            "[x < 0, x > 0]",
        ),
        # Numbers that have no order
        (lambda: mnp.clip(Z, 0, 1), "mnp.clip cannot take c64[3].", *NO_ORDER),
        (lambda: mnp.clip(V, 0, 1j), "mnp.clip cannot take ~c64[].", *NO_ORDER),
        (lambda: mnp.heaviside(Z, 0), "mnp.heaviside cannot take c64[3].", *NO_ORDER),
        (lambda: mnp.interp(Z, V, V), "mnp.interp cannot take c64[3].", *NO_ORDER),
        (lambda: nn.standardize(Z), "nn.standardize cannot take c64[3].", *NO_ORDER),
        (
            lambda: lax.cond(Z[0], abs, abs, 1.0),
            "The predicate of cond is complex64[].",
            "it is a bool, or a real number that holds where it is not 0",
            "lax.cond(z != 0, f, g, x)",
        ),
        # Arrays where one number is meant
        (lambda: mnp.var(V, ddof=[1]), "ddof of mnp.var is i32[1].", *REAL),
        (lambda: mnp.nanstd(V, ddof=1j), "ddof of mnp.var is ~c64[].", *REAL),
        (lambda: mnp.fft.fftfreq(4, d=V), "d of mnp.fft.fftfreq is f32[3].", *REAL),
        (lambda: mnp.nonzero(V, size=2, fill_value=[1]), "fill_value of mnp.nonzero is i32[1].", *REAL),
        (lambda: mnp.histogram(V, range=(0, V)), "An end of the range of mnp.histogram is f32[3].", *REAL),
        (
            lambda: V.at[7].get(fill_value=V),
            "fill_value of x.at[…].get is f32[3].",
            "it is one number",
            "1.0, or x[0]",
        ),
        (
            lambda: lax.full_like(M, V),
            "lax.full_like cannot take f32[3].",
            "it fills an array with one number",
            "mnp.full_like(x, values), which broadcasts",
        ),
        (
            lambda: mnp.var(V, ddof=1, correction=1),
            "mnp.var is given ddof=1 and correction=1.",
            "both say what is taken from the number of elements",
            "correction=1 alone",
        ),
        # Ranks and shapes
        (
            lambda: mnp.split(V, [[1, 2]]),
            "mnp.split cannot cut at places of shape (1, 2).",
            "they have one dim",
            "mnp.split(x, [1, 3])",
        ),
        (
            lambda: mnp.cov(T),
            "mnp.cov cannot take f32[2,2,3].",
            "a row is a variable, so there are two dims or one",
            "x.reshape(-1, x.shape[-1])",
        ),
        (
            lambda: mnp.histogram(V, weights=M),
            "mnp.histogram cannot weigh f32[3] by f32[2,3].",
            "each element has one weight",
            "mnp.broadcast_to(weights, x.shape)",
        ),
        (
            lambda: mnp.nonzero(V[0]),
            "mnp.nonzero cannot take f32[].",
            "places are counted along dims, and there is none",
            "mnp.atleast_1d(x), or x != 0",
        ),
        (
            lambda: mnp.sum(V, where=M > 0),
            "where= is bool[2,3], and the array f32[3].",
            "it says of each element whether it counts, so it broadcasts to the shape of the array",
            "mnp.broadcast_to(x, where.shape) repeats the array",
        ),
        (
            lambda: mnp.put_along_axis(M, mnp.array([[0]]), M, 1, inplace=False),
            "mnp.put_along_axis cannot take f32[2,3] and i32[2,1].",
            "there is one value for each index, or fewer that broadcast",
            "values[:1], or as many values as indices",
        ),
        (
            lambda: mnp.fft.fft2(T, axes=None),
            "An axis of mnp.fft.fft2 is None.",
            "it must be an integer",
            "int(…)",
        ),
        (
            lambda: mnp.fft.fft2(T, axes=(0, 1, 2)),
            "mnp.fft.fft2 cannot take axes=(0, 1, 2).",
            "there are two",
            "axes=(-2, -1)",
        ),
        (
            lambda: lax.clamp(0.0, V[0], V),
            "lax.clamp cannot take f32[] and f32[3].",
            "a bound is one number, or has the shape of x",
            "mnp.clip(x, low, high), which broadcasts",
        ),
        (
            lambda: lax.select(V > 0, V[0], V[1]),
            "lax.select_n cannot take bool[3] and f32[] and f32[].",
            "what chooses is one number, or has the shape of the arrays",
            "mnp.where(which, x, y), which broadcasts",
        ),
        (
            lambda: lax.dot(M, T),
            "lax.dot cannot take f32[2,3] and f32[2,2,3].",
            "without dimension_numbers it multiplies vectors and matrices",
            "x @ y, or lax.dot_general(x, y, dimension_numbers)",
        ),
        (
            lambda: lax.batch_matmul(T, mnp.ones((3, 2))),
            "lax.batch_matmul cannot take f32[2,2,3] and f32[3,2].",
            "both have one rank, 2 or more",
            "x @ y, which broadcasts",
        ),
        (
            lambda: lax.concatenate([M, V], 1),
            "concatenate cannot take f32[2,3], f32[3].",
            "the operands differ in rank",
            "x[None] adds a dim of size 1",
        ),
        (
            lambda: lax.conv(T, mnp.ones((1, 2, 1)), (1,), [(-4, 0)]),
            "A convolution of f32[2,2,3] cannot take padding=((-4, 0),).",
            "it takes away 4 of 3 elements",
            "lax.conv(x[:, :, :0], w, …) of no elements, or less negative padding",
        ),
        (lambda: nn.dot_product_attention(Q, Q[..., :1], Q), f"{ATTENTION}f32[1,2,2,1] and f32[1,2,2,4].", *DIMS),
        (lambda: nn.dot_product_attention(Q, Q, Q[:, :1]), f"{ATTENTION}f32[1,2,2,4] and f32[1,1,2,4].", *DIMS),
        (lambda: nn.dot_product_attention(Q, Q[0], Q[0]), f"{ATTENTION}f32[2,2,4] and f32[2,2,4].", *DIMS),
        # Dtypes
        (
            lambda: nn.dot_product_attention(Q, Q.astype("int8"), Q),
            f"{ATTENTION}f32[1,2,2,4] and f32[1,2,2,4].",
            "they have one dtype, and here are float32 and int8",
            "key.astype(query.dtype)",
        ),
        (
            lambda: lax.pad(M, mnp.int32(0), [(0, 0, 0)] * 2),
            "lax.pad cannot take f32[2,3] and i32[].",
            "operand and padding_value have one dtype",
            "padding_value.astype(operand.dtype)",
        ),
        (lambda: lax.iota(None, 3), "dtype of lax.iota is None.", "it must be a dtype", "'float32'"),
        (
            lambda: lax.convert_element_type(V, None),
            "new_dtype of lax.convert_element_type is None.",
            "it must be a dtype",
            "'float32'",
        ),
        (lambda: mnp.can_cast(None, "int8"), "A dtype of mnp.can_cast is None.", "it must be a dtype", "'float32'"),
        (
            lambda: mnp.iinfo("float32"),
            "mnp.iinfo cannot take float32.",
            "it has the limits of integers",
            "mnp.finfo(dtype)",
        ),
        (
            lambda: mnp.finfo("int8"),
            "mnp.finfo cannot take int8.",
            "it has the limits of floats and complex numbers",
            "mnp.iinfo(dtype)",
        ),
        # Numbers that would lose digits where branches or steps meet
        (
            lambda: lax.cond(True, lambda x: 1.5, lambda x: mnp.int32(3), V),
            BRANCHES,
            "result 0 is int32[] in branch 0 and float32[] in branch 1",
            AGREE,
        ),
        (
            lambda: lax.cond(True, lambda x: x * 2, lambda x: x, V[0] > 0),
            BRANCHES,
            "result 0 is bool[] in branch 0 and int32[] in branch 1",
            AGREE,
        ),
        (
            lambda: lax.while_loop(lambda c: c < 2, lambda c: mnp.int32(3), 1.5),
            "The body of while_loop changes the type of its carry: it takes float32[] and returns int32[].",
            "every step must return a carry of the type it was given",
            "carry.astype('float32') in the body, or start from a carry of dtype int32",
        ),
        # What is no argument at all
        (lambda: [2.5] * V, *INDEX),
        (lambda: V * "a", *INDEX),
        (
            lambda: mw.jacrev(lambda x: x, argnums=(0, -1))(V),
            "A Jacobian is asked for one argument twice: argnums=(0, -1).",
            "each argument has one derivative",
            "argnums=(0,)",
        ),
        (lambda: mw.jit(abs, in_shardings="yes"), "An array cannot be put onto 'yes'.", *PLACE),
        (lambda: mw.jit(abs, out_shardings=...), "An array cannot be put onto Ellipsis.", *PLACE),
        (lambda: mw.ShapeDtypeStruct((2,), "int32", sharding=99), "An array cannot be put onto 99.", *PLACE),
        (lambda: mnp.copy(V, order=99), "order of mnp.copy is 99.", "it is one of None, 'K'", "None"),
        (lambda: mnp.argsort(V, kind="quick"), "kind of mnp.argsort is 'quick'.", "it is one of None", "None"),
        (lambda: mnp.roll(V[:0], ...), "The shift of mnp.roll is Ellipsis.", "it must be an integer", "int(…)"),
        (
            lambda: mnp.delete(V, slice(0, 1.5)),
            "A slice has the bound 1.5.",
            "bounds are integers or None",
            "int(…)",
        ),
    ],
)
def test_one_error_says_all(call: Callable[[], Any], what: str, why: str, fix: str) -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        call()
    assert str(caught.value) == f"{what}\n  at:   {caught.value.where}\n  why:  {why}\n  fix:  {fix}"
    assert caught.value.where.startswith("test_what_is_refused.py:")


def test_a_number_in_one_branch_takes_the_dtype_that_has_its_value() -> None:
    for which in (True, False):
        narrow = lax.cond(which, lambda: 1.5, lambda: mnp.float16(3))
        assert (narrow.dtype, float(narrow)) == (mnp.float16, 1.5 if which else 3.0)
        assert float(lax.cond(which, lambda: 2, lambda: 1.5)) == (2.0 if which else 1.5)


def test_the_dtype_that_is_asked_for_is_that_of_the_result() -> None:
    kind = {"preferred_element_type": "float16"}
    assert mnp.convolve(V, V, **kind).dtype == mnp.correlate(V, V, **kind).dtype == mnp.float16
    kernel = mnp.ones((1, 2, 1))
    assert lax.conv_with_general_padding(T, kernel, (1,), "SAME", None, None, **kind).dtype == mnp.float16


def test_slices_are_deleted() -> None:
    for where in (slice(0, 2), slice(None, None, -2), slice(-1, None), slice(5, 1)):
        kept = [n for n in range(6) if n not in range(6)[where]]
        assert mnp.delete(mnp.arange(6), where).tolist() == kept
