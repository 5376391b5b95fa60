"""The jvp of a kernel: as JAX's, where it has one, and as that of the function that the kernel computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.experimental.pallas as jax_pl
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as jax_pltpu

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.errors import DifferentiationError
from meshwright.pallas import tpu as pltpu

OURS = SimpleNamespace(pl=pl, pltpu=pltpu, np=mnp, lax=lax, struct=mw.ShapeDtypeStruct, options={}, jvp=mw.jvp)
THEIRS = SimpleNamespace(
    pl=jax_pl, pltpu=jax_pltpu, np=jnp, lax=jax.lax, struct=jax.ShapeDtypeStruct, options={"interpret": True},
    jvp=jax.jvp,
)  # fmt: skip

X = np.linspace(-1.5, 2.0, 32, dtype=np.float32).reshape(4, 8)
T = np.cos(np.arange(32, dtype=np.float32)).reshape(4, 8)


def elementwise(k: Any, x: Any) -> Any:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = k.np.sin(x_ref[...]) * x_ref[...] + 3

    return k.pl.pallas_call(kernel, k.struct((4, 8), k.np.float32), **k.options)(x)


def blocks(k: Any, x: Any) -> Any:
    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = k.np.dot(x_ref[...], y_ref[...].T) ** 2

    row = k.pl.BlockSpec((2, 8), lambda i, j: (i, 0))
    column = k.pl.BlockSpec((2, 8), lambda i, j: (j, 0))
    out = k.pl.BlockSpec((2, 2), lambda i, j: (i, j))
    return k.pl.pallas_call(
        kernel, k.struct((4, 4), k.np.float32), grid=(2, 2), in_specs=[row, column], out_specs=out, **k.options
    )(x, x * 2)  # fmt: skip


def loop(k: Any, x: Any) -> Any:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = k.lax.fori_loop(0, 3, lambda i, a: a * x_ref[...], x_ref[...])

    return k.pl.pallas_call(kernel, k.struct((4, 8), k.np.float32), **k.options)(x)


def two_results(k: Any, x: Any) -> Any:
    def kernel(x_ref: Any, out_ref: Any, top_ref: Any) -> None:
        top_ref[...] = x_ref[...].max(axis=1)
        out_ref[...] = k.np.exp(x_ref[...] - top_ref[...][:, None])

    out = [k.struct((4, 8), k.np.float32), k.struct((4,), k.np.float32)]
    return k.pl.pallas_call(kernel, out, **k.options)(x)


@pytest.mark.parametrize("function", [elementwise, blocks, loop, two_results])
def test_the_jvp_is_that_of_jax(function):
    found = mw.jvp(lambda x: function(OURS, x), (X,), (T,))
    expected = jax.jvp(lambda x: function(THEIRS, x), (X,), (T,))
    for one, other in zip(mw.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)


def summed(x: Any) -> Any:
    """Scratch memory, branches by the grid and by values, numbers in memory: what JAX's jvp of a call does not take."""

    def kernel(n_ref: Any, x_ref: Any, out_ref: Any, total: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            total[...] = mnp.zeros_like(total)

        total[...] += x_ref[...] ** 2 * n_ref[0]
        for at in range(8):
            if x_ref[0, at] > 0:
                total[0, at] = total[0, at] * x_ref[0, at]
        out_ref[...] = mnp.where(total[...] > 2, total[...], 2.0)

    row = pl.BlockSpec((1, 8), lambda i, n: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(4,), in_specs=[row], out_specs=pl.BlockSpec((1, 8), lambda i, n: (0, 0)),
        scratch_shapes=[pltpu.VMEM((1, 8), mnp.float32)],
    )  # fmt: skip
    return pl.pallas_call(kernel, mw.ShapeDtypeStruct((1, 8), mnp.float32), grid_spec=spec)(mnp.array([3]), x)


def plainly_summed(x: Any) -> Any:
    total = jnp.zeros((1, 8))
    for row in x:
        total = total + row[None] ** 2 * 3
        total = jnp.where(row[None] > 0, total * row[None], total)
    return jnp.where(total > 2, total, 2.0)


def test_scratch_memory_branches_and_prefetched_numbers_have_one_too():
    expected = jax.jvp(plainly_summed, (X,), (T,))
    for one, other in zip(mw.jvp(summed, (X,), (T,)), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)
    jacobian = mw.jacfwd(summed)(mnp.asarray(X))
    np.testing.assert_allclose(jacobian, jax.jacfwd(plainly_summed)(X), rtol=2e-5, atol=1e-5)


def test_a_derivative_has_a_derivative_and_a_batch():
    def twice(jvp: Any, f: Any) -> Any:
        return jvp(lambda x: jvp(f, (x,), (T,))[1], (X,), (T,))[1]

    found = twice(mw.jvp, lambda x: elementwise(OURS, x))
    np.testing.assert_allclose(found, twice(jax.jvp, lambda x: jnp.sin(x) * x + 3), rtol=2e-5, atol=1e-5)
    both = np.stack([X, X + 1])
    found = mw.jit(lambda x, t: mw.jvp(mw.vmap(lambda x: elementwise(OURS, x)), (x,), (t,))[1])(both, both)
    expected = jax.jvp(lambda x: jnp.sin(x) * x + 3, (both,), (both,))[1]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def message(run: Any) -> str:
    with pytest.raises(DifferentiationError) as caught:
        run()
    return f"{caught.value.what}\n{caught.value.why}\n{caught.value.fix}"


OWN = "give the call a derivative of its own: mw.custom_vjp, or mw.custom_jvp, around it"
STRUCT = mw.ShapeDtypeStruct((4, 8), mnp.float32)


def test_what_has_no_derivative_is_said():
    def copies(x_ref: Any, out_ref: Any) -> None:
        pltpu.sync_copy(x_ref, out_ref)

    def asks(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * float(x_ref[0, 0])

    def bits(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref.bitcast(mnp.int32)[...].astype(mnp.float32)

    def derivative(kernel: Any, **options: Any) -> Any:
        return lambda: mw.jvp(pl.pallas_call(kernel, STRUCT, **options), (mnp.asarray(X),), (mnp.asarray(T),))

    assert message(derivative(copies)) == (
        "A copy of the window of x_ref is differentiated.\nkernels are differentiated where they load, compute and "
        f"store; copies and semaphores have no derivative\n{OWN}"
    )
    assert message(derivative(asks)) == (
        f"A value that a kernel is differentiated by is used as a number.\nits tangent would be lost there\n{OWN}"
    )
    assert message(derivative(bits)) == (
        f"The bits of the window of x_ref are read as int32, and it is differentiated.\nbits have no tangent\n{OWN}"
    )
    assert message(derivative(asks, input_output_aliases={0: 0})) == (
        "The kernel asks, with input_output_aliases, is differentiated.\nthe derivative of a kernel is a kernel with a "
        f"tangent beside each of its operands and results\n{OWN}"
    )
    reverse = message(lambda: mw.grad(lambda x: elementwise(OURS, x).sum())(mnp.asarray(X)))
    assert reverse.startswith("pallas_call has no transpose.\na kernel is not linear")


def test_prints_show_values(capsys):
    def kernel(x_ref: Any, out_ref: Any) -> None:
        pl.debug_print("first = {}", x_ref[0, 0])
        mw.debug.print("last = {x}", x=x_ref[3, 7])
        out_ref[...] = x_ref[...]

    call = pl.pallas_call(kernel, STRUCT)
    call(mnp.asarray(X))
    plain = capsys.readouterr().out
    assert plain == "[device 0] first = -1.5\nlast = 2.0\n"
    mw.jvp(call, (mnp.asarray(X),), (mnp.asarray(T),))
    assert capsys.readouterr().out == plain
