"""Solving, determinants, eigenvalues and singular values against JAX: values, derivatives, batches and meshes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

RANDOM = np.random.default_rng(0)
SQUARE = (RANDOM.normal(size=(4, 4)) * 0.4 + np.diag([2.0, 3.5, 5.0, 7.0])).astype(np.float32)
TALL = RANDOM.normal(size=(5, 3)).astype(np.float32)
RIGHT = RANDOM.normal(size=(4, 2)).astype(np.float32)

# Each takes a module, as its first argument what is differentiated; what has a sign of its own is multiplied out.
CALLS: dict[str, tuple[Any, np.ndarray]] = {
    "inv": (lambda n, x: n.linalg.inv(n.sin(x) + 3 * n.eye(4)) @ x, SQUARE),
    "det": (lambda n, x: n.linalg.det(x * 0.5), SQUARE),
    "det of 3": (lambda n, x: n.linalg.det(x[:3, :3]), SQUARE),
    "det of 2": (lambda n, x: n.linalg.det(x[:2, :2]), SQUARE),
    "slogdet": (lambda n, x: n.linalg.slogdet(x)[1] + n.linalg.slogdet(-x[:3, :3])[0], SQUARE),
    "solve": (lambda n, x: n.linalg.solve(x, n.asarray(RIGHT)), SQUARE),
    "solve for a vector": (lambda n, x: n.linalg.solve(x, x[:, 0] ** 2), SQUARE),
    "qr": (lambda n, x: n.concatenate([a.ravel() for a in n.linalg.qr(x)]), TALL),
    "r": (lambda n, x: n.abs(n.linalg.qr(x, mode="r")), TALL),
    "eigh": (lambda n, x: n.abs(n.linalg.eigh(x @ x.T).eigenvectors[:, -1]), SQUARE),
    "eigvalsh": (lambda n, x: n.linalg.eigvalsh(x + x.T), SQUARE),
    "eigvals": (lambda n, x: n.sort(n.abs(n.linalg.eigvals(x))), SQUARE),
    "svd": (lambda n, x: (lambda s: (s.U[:, :2] * s.S[:2]) @ s.Vh[:2])(n.linalg.svd(x, full_matrices=False)), TALL),
    "svdvals": (lambda n, x: n.linalg.svdvals(x.T), TALL),
    "pinv": (lambda n, x: n.linalg.pinv(x), TALL),
    "lstsq": (lambda n, x: n.linalg.lstsq(x, n.arange(5.0))[0], TALL),
    "cond": (lambda n, x: n.linalg.cond(x) + n.linalg.cond(x, 1), SQUARE),
    "norm": (lambda n, x: n.linalg.norm(x, "nuc") + n.linalg.norm(x, 2) + n.linalg.norm(x, -2), TALL),
    "tensorinv": (lambda n, x: n.linalg.tensorinv(x.reshape(2, 2, 4), ind=2), SQUARE),
    "tensorsolve": (lambda n, x: n.linalg.tensorsolve(x.reshape(2, 2, 4), n.ones((2, 2))), SQUARE),
}

CASES = pytest.mark.parametrize("name", CALLS)


def close(actual: Any, expected: Any, tolerance: float = 2e-4) -> None:
    expected = np.asarray(expected)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=tolerance, atol=tolerance * scale)


@CASES
def test_values_and_gradients_are_those_of_jax(name: str):
    call, x = CALLS[name]
    close(call(mnp, mnp.asarray(x)), call(jnp, jnp.asarray(x)))
    found = mw.jit(mw.grad(lambda x: mnp.sum(mnp.cos(call(mnp, x)))))(x)
    close(found, jax.grad(lambda x: jnp.sum(jnp.cos(call(jnp, x))))(x), 2e-3)


@CASES
def test_a_batch_is_each_matrix_alone(name: str):
    call, x = CALLS[name]
    several = np.stack([x, x * 1.3, x + 0.1])
    found = mw.vmap(lambda x: call(mnp, x))(several)
    close(found, np.stack([np.asarray(call(mnp, mnp.asarray(one))) for one in several]))


@pytest.mark.parametrize("name", ["inv", "det", "solve", "qr", "eigvalsh", "svd", "pinv"])
def test_on_a_mesh_as_on_one_device(name: str):
    call, x = CALLS[name]
    mesh = mw.make_mesh((2, 2), ("x", "y"))
    several = np.stack([x, x * 1.3, x + 0.1, x - 0.2])
    f = lambda x: mnp.sum(mnp.cos(mw.vmap(lambda x: call(mnp, x))(x)))
    placed = mw.device_put(several, mw.NamedSharding(mesh, mw.P("x", None, "y" if x.shape[1] % 2 == 0 else None)))
    close(mw.jit(mw.grad(f))(placed), mw.grad(f)(mnp.asarray(several)), 1e-5)


@pytest.mark.parametrize("name", ["solve", "svd", "eigh", "qr", "det"])
def test_complex_matrices(name: str):
    call, x = CALLS[name]
    z = (x + 0.3j * x[::-1]).astype(np.complex64)
    if name == "eigh":
        assert float(mnp.abs(mnp.linalg.eigh(z @ z.conj().T).eigenvectors[:, -1]).sum()) > 0
        close(mnp.linalg.eigvalsh(z @ z.conj().T), jnp.linalg.eigvalsh(z @ z.conj().T))
    elif name == "qr":
        q, r = mnp.linalg.qr(z)
        close(q @ r, z)
    else:
        close(call(mnp, mnp.asarray(z)), call(jnp, jnp.asarray(z)))


def test_matrices_without_full_rank():
    x = np.outer(np.arange(1.0, 5.0), np.ones(3)).astype(np.float32)
    assert int(mnp.linalg.matrix_rank(x)) == 1
    close(mnp.linalg.pinv(x), jnp.linalg.pinv(x))
    assert np.isnan(np.asarray(mnp.linalg.svdvals(np.full((2, 2), np.nan, np.float32)))).all()


def test_what_is_no_square_matrix_is_refused():
    with pytest.raises(mw.MeshwrightError) as caught:
        mnp.linalg.inv(mnp.ones((2, 3)))
    assert str(caught.value).splitlines()[0] == "mnp.linalg.inv cannot take f32[2,3]."
    assert str(caught.value).splitlines()[2:] == [
        "  why:  it takes a square matrix, or a stack of them",
        "  fix:  x @ x.mT is one",
    ]
