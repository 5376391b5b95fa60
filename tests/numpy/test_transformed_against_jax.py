"""Gradients and batches of the functions of ``meshwright.numpy``, ``lax`` and ``nn`` against JAX."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn
from tests.numpy.against_jax import draw

pytestmark = pytest.mark.usefixtures("x32")

OURS = SimpleNamespace(np=mnp, lax=lax, nn=nn)
THEIRS = SimpleNamespace(np=jnp, lax=jax.lax, nn=jax.nn)

X = draw((4, 6))
W = draw((6, 3), seed=1)
ROWS = np.array([0, 2, 2, -1])

FUNCTIONS = {
    "sum of squares": lambda m, x: m.np.sum(x**2),
    "broadcasting": lambda m, x: x * x[0] + x[:, :1] - 2.0 / (3 + x.sum()),
    "mean var std": lambda m, x: [m.np.mean(x, 0), m.np.var(x, 1), m.np.std(x)],
    "max min": lambda m, x: [x.max(0), x.min(1), m.np.maximum(x, 0.3), m.np.minimum(x, x[::-1])],
    "clip": lambda m, x: m.np.clip(x, -1.0, 1.0),
    "where": lambda m, x: m.np.where(x > 0, x * 2, m.np.sin(x)),
    "matmul": lambda m, x: x @ W @ W.T,
    "einsum": lambda m, x: m.np.einsum("ij,kj,jl->ikl", x, x, W),
    "einsum trace": lambda m, x: m.np.einsum("ii->i", x[:, :4]) + m.np.einsum("ij->i", x),
    "tensordot": lambda m, x: m.np.tensordot(x, x, ((1,), (1,))),
    "basic index": lambda m, x: [x[1], x[:, ::-2], x[1:3, None], x[-1, ..., 2]],
    "gather": lambda m, x: [x[ROWS], x[:, ROWS], x[ROWS, ROWS], x[ROWS[:, None], ROWS]],
    "mask": lambda m, x: x[:, np.array([True, False, True, True, False, False])],
    "set": lambda m, x: [x.at[1].set(0.5), x.at[1:3, ::2].set(x[:2, :3]), x.at[np.array([0, 3])].set(x[:2] ** 2)],
    "add at": lambda m, x: [x.at[ROWS].add(x**2), x.at[:, 1].add(1.0), x.at[0, 0].multiply(x[1, 1])],
    "extremes at": lambda m, x: [x.at[1].max(x[0]), x.at[:, 2].min(0.1)],
    "traced index": lambda m, x: x[(x[0, 0] > 0).astype("int32")],
    "take_along_axis": lambda m, x: m.np.take_along_axis(x, m.np.argsort(x, 1), 1) * m.np.arange(6.0),
    "sort": lambda m, x: m.np.sort(x, 0) * m.np.arange(4.0)[:, None],
    "top_k": lambda m, x: m.lax.top_k(x, 3)[0] * m.np.arange(3.0),
    "cumsum": lambda m, x: [m.np.cumsum(x, 1) ** 2, m.np.cumprod(x, 0)],
    "prod": lambda m, x: m.np.prod(x, 1),
    "concatenate": lambda m, x: m.np.concatenate([x, x**2], 1) * m.np.arange(12.0),
    "stack": lambda m, x: m.np.stack([x, m.np.cos(x)]) ** 2,
    "pad": lambda m, x: [m.np.pad(x, 1) ** 2, m.np.pad(x, 2, mode="reflect") ** 2, m.np.pad(x, 1, mode="edge") ** 3],
    "roll tile repeat": lambda m, x: [m.np.roll(x, 2, 1) * x, m.np.tile(x, (2, 1)) ** 2, m.np.repeat(x, 3, 0) ** 2],
    "split": lambda m, x: [part**n for n, part in enumerate(m.np.split(x, 3, 1), 1)],
    "reshape": lambda m, x: x.reshape(2, 2, 6).transpose(2, 0, 1).ravel() * m.np.arange(24.0),
    "diagonals": lambda m, x: [m.np.diag(x[0]) ** 2, m.np.diagonal(x) ** 2, m.np.tril(x) ** 2, m.np.trace(x) ** 2],
    "powers": lambda m, x: [x**3, m.np.abs(x) ** 2.5, m.np.sqrt(m.np.abs(x)), m.np.cbrt(m.np.abs(x)), 2.0**x],
    "logarithms": lambda m, x: [
        m.np.log(m.np.abs(x)),
        m.np.logaddexp(x, x[::-1]),
        m.np.log2(m.np.abs(x)),
        m.np.exp2(x),
    ],
    "trigonometry": lambda m, x: [m.np.tan(x / 3), m.np.arctan2(x, x[::-1]), m.np.sinc(x), m.np.hypot(x, 2.0)],
    "rounding": lambda m, x: [m.np.floor(x) * x, m.np.round(x) * x, x % 0.7, m.np.sign(x) * x],
    "linalg": lambda m, x: [m.np.linalg.norm(x, axis=1), m.np.linalg.cholesky(x @ x.T + 3 * m.np.eye(4))],
    "fft": lambda m, x: m.np.abs(m.np.fft.rfft(x, axis=1)) ** 2,
    "quantile": lambda m, x: [m.np.quantile(x, 0.3, axis=1), m.np.median(x, 0)],
    "interp": lambda m, x: m.np.interp(x, m.np.arange(-3.0, 4.0), m.np.arange(7.0) ** 2),
    "softmax": lambda m, x: [m.nn.softmax(x) ** 2, m.nn.log_softmax(x, 0) * x, m.nn.logsumexp(x, 1)],
    "activations": lambda m, x: [m.nn.gelu(x), m.nn.relu(x), m.nn.silu(x), m.nn.softplus(x), m.nn.elu(x), m.nn.glu(x)],
    "attention": lambda m, x: m.nn.dot_product_attention(*[x.reshape(1, 4, 2, 3)] * 3, is_causal=True),
    "one_hot": lambda m, x: m.nn.one_hot(ROWS % 4, 4) @ x,
    "standardize": lambda m, x: m.nn.standardize(x) ** 2,
    "conv": lambda m, x: m.lax.conv(x.reshape(1, 1, 4, 6), m.np.asarray(draw((2, 1, 3, 3))), (1, 1), "SAME") ** 2,
    "pooling": lambda m, x: m.lax.reduce_window(x, -np.inf, m.lax.max, (2, 3), (2, 3), "VALID") ** 2,
    "slices": lambda m, x: [
        m.lax.dynamic_slice(x, (1, 2), (2, 3)) ** 2,
        m.lax.dynamic_update_slice(x, x[:2, :2] ** 2, (1, 1)),
        m.lax.slice_in_dim(x, 1, 5, 2, axis=1) ** 2,
    ],
    "nan-aware": lambda m, x: [m.np.nansum(x**2), m.np.nanmean(x), m.np.nanmax(x, 0)],
    "stop_gradient": lambda m, x: x * m.lax.stop_gradient(x),
    "kron cross outer": lambda m, x: [
        m.np.kron(x[:2, :2], x[:2, :2]),
        m.np.cross(x[:, :3], x[:, 3:]),
        m.np.outer(x[0], x[1]),
    ],
}


def total(m, function, x):
    """One number from all results, each element weighted differently."""
    outs = function(m, x)
    outs = outs if isinstance(outs, list | tuple) else [outs]
    return sum(m.np.sum(out * m.np.cos(m.np.arange(out.size) + 0.5).reshape(out.shape)) for out in outs)


def close(found, expected):
    expected = np.asarray(expected)
    scale = max(1.0, float(np.abs(expected).max())) if expected.size else 1.0
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    function = FUNCTIONS[name]
    expected = jax.jit(jax.grad(lambda x: total(THEIRS, function, x)))(X)
    close(mw.grad(lambda x: total(OURS, function, x))(X), expected)
    close(mw.jit(mw.grad(lambda x: total(OURS, function, x)))(X), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches(name):
    function = FUNCTIONS[name]
    batch = draw((3, 4, 6), seed=2)
    expected = jax.jit(jax.vmap(lambda x: function(THEIRS, x)))(batch)
    found = mw.vmap(lambda x: function(OURS, x))(batch)
    for a, b in zip(jax.tree.leaves(mw.tree.map(np.asarray, found)), jax.tree.leaves(expected), strict=True):
        close(a, b)
