"""One function, its value, gradient and Hessian by seven routes each, all equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

X = np.array([0.3, -0.7, 1.2], np.float32)
W = np.array([[0.2, -0.4, 0.1], [0.5, 0.3, -0.2], [-0.1, 0.6, 0.4]], np.float32)


def f(np_, lax_, package):
    """A function with a loop, a branch, a custom rule, a checkpoint, a gather and a contraction."""

    @package.custom_jvp
    def softsign(x):
        return x / (1 + np_.abs(x))

    @softsign.defjvp
    def softsign_jvp(primals, tangents):
        (x,), (t,) = primals, tangents
        return softsign(x), t / (1 + np_.abs(x)) ** 2

    @package.checkpoint
    def layer(x, w):
        return np_.tanh(w @ x) + softsign(x)

    def function(x):
        def step(carry, n):
            value = lax_.cond(n % 2 == 0, lambda v: layer(v, W), lambda v: np_.sin(v) * v[::-1], carry)
            return value, np_.sum(value * value)

        last, energies = lax_.scan(step, x, np_.arange(3))
        return np_.sum(last[np_.array([0, 2, 1])] * x) + np_.log1p(np_.sum(energies))

    return function


OURS = f(mnp, lax, mw)
THEIRS = f(jnp, jax.lax, jax)


def close(a, b, tol=2e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tol, atol=tol)


VALUE_ROUTES = {
    "called": lambda: OURS(mnp.asarray(X)),
    "jitted": lambda: mw.jit(OURS)(X),
    "value_and_grad": lambda: mw.value_and_grad(OURS)(X)[0],
    "jvp": lambda: mw.jvp(OURS, (X,), (X,))[0],
    "vjp": lambda: mw.vjp(OURS, X)[0],
    "vmapped": lambda: mw.vmap(OURS)(X[None])[0],
    "parsed": lambda: run_text(OURS),
}


def run_text(function):
    from meshwright.engine.compile import compile_program

    program = mw.make_program(function)(X)
    return compile_program(mw.parse_program(program.to_text(constants=True)))(X)[0]


GRAD_ROUTES = {
    "grad": lambda: mw.grad(OURS)(X),
    "jitted grad": lambda: mw.jit(mw.grad(OURS))(X),
    "grad of jit": lambda: mw.grad(mw.jit(OURS))(X),
    "jvp along a basis": lambda: mw.vmap(lambda t: mw.jvp(OURS, (X,), (t,))[1])(mnp.eye(3)),
    "linearize": lambda: mnp.stack([mw.linearize(OURS, X)[1](e) for e in np.eye(3, dtype=np.float32)]),
    "vjp under vmap": lambda: mw.vmap(lambda x: mw.vjp(OURS, x)[1](mnp.float32(1))[0])(X[None])[0],
    "grad of vmap": lambda: mw.grad(lambda x: mnp.sum(mw.vmap(OURS)(x)))(X[None])[0],
}

HESSIAN_ROUTES = {
    "hessian": lambda: mw.hessian(OURS)(X),
    "jacrev of grad": lambda: mw.jacrev(mw.grad(OURS))(X),
    "jacfwd of jacfwd": lambda: mw.jacfwd(mw.jacfwd(OURS))(X),
    "jacrev of jacfwd": lambda: mw.jacrev(mw.jacfwd(OURS))(X),
    "jitted": lambda: mw.jit(mw.hessian(OURS))(X),
    "grad of jvp": lambda: mnp.stack(
        [mw.grad(lambda x, e=e: mw.jvp(OURS, (x,), (e,))[1])(X) for e in np.eye(3, dtype=np.float32)]
    ),
    "jvp of jitted checkpointed grad": lambda: mw.vmap(
        lambda t: mw.jvp(mw.jit(mw.grad(mw.checkpoint(OURS))), (X,), (t,))[1]
    )(mnp.eye(3)),
}


@pytest.mark.parametrize("route", VALUE_ROUTES)
def test_the_value_is_the_same_by_every_route(route):
    close(VALUE_ROUTES[route](), THEIRS(X))


@pytest.mark.parametrize("route", GRAD_ROUTES)
def test_the_gradient_is_the_same_by_every_route(route):
    close(GRAD_ROUTES[route](), jax.grad(THEIRS)(X))


@pytest.mark.parametrize("route", HESSIAN_ROUTES)
def test_the_hessian_is_the_same_by_every_route(route):
    close(HESSIAN_ROUTES[route](), jax.hessian(THEIRS)(X), 1e-4)


def test_the_gradient_is_that_of_finite_differences():
    mw.config.enable_x64 = True
    try:
        x = X.astype(np.float64)
        steps = 1e-6 * np.eye(3)
        numeric = [(float(OURS(x + e)) - float(OURS(x - e))) / 2e-6 for e in steps]
        np.testing.assert_allclose(np.asarray(mw.grad(OURS)(x)), numeric, rtol=1e-6)
    finally:
        mw.config.enable_x64 = False
