"""Loops, branches and custom rules: values, jvp, grad, vmap and their compositions equal JAX's."""

import jax
import numpy as np
import pytest

import meshwright as mw

X = np.array([0.4, -0.3, 0.9], np.float32)
ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def scan_carry_and_outputs(p, np_, lax):
    def f(x):
        def step(carry, row):
            new = np_.sin(carry * row) + carry
            return new, new * row

        last, ys = lax.scan(step, x, ROWS)
        return np_.sum(last) + np_.sum(ys**2)

    return f


def scan_reversed_with_closure(p, np_, lax):
    def f(x):
        scale = np_.exp(x)

        def step(carry, row):
            return carry * 0.5 + row * scale, carry

        last, ys = lax.scan(step, np_.zeros(3), ROWS, reverse=True)
        return np_.sum(last * ys[1])

    return f


def scan_with_an_integer_carry(p, np_, lax):
    def f(x):
        def step(carry, _):
            n, v = carry
            return (n + 1, v * np_.cos(v) + n), n

        (n, v), ns = lax.scan(step, (0, x), None, length=3)
        return np_.sum(v) * n + np_.sum(ns)

    return f


def scan_over_a_tree(p, np_, lax):
    def f(x):
        def step(carry, row):
            return {"a": carry["a"] + row["u"] * carry["b"], "b": np_.tanh(carry["b"])}, (carry["a"], row["v"])

        last, (a, v) = lax.scan(step, {"a": x, "b": 2 * x}, {"u": ROWS, "v": ROWS[::-1] * x})
        return np_.sum(last["a"] * last["b"]) + np_.sum(a * v)

    return f


def nested_scans(p, np_, lax):
    def f(x):
        def outer(carry, row):
            def inner(c, r):
                return np_.sin(c + r * carry), c

            last, cs = lax.scan(inner, carry, row)
            return last, np_.sum(cs)

        last, sums = lax.scan(outer, x, ROWS.reshape(2, 2, 3))
        return np_.sum(last) * np_.sum(sums)

    return f


def scan_where_the_carry_becomes_active_late(p, np_, lax):
    def f(x):
        def step(carry, row):
            a, b, c = carry
            return (b * 1.0, np_.sin(c), c + row * x), a

        (a, b, c), ys = lax.scan(step, (np_.zeros(3), np_.ones(3), np_.zeros(3)), ROWS)
        return np_.sum(a * b + c) + np_.sum(ys)

    return f


def checkpointed_scan_body(p, np_, lax):
    def f(x):
        @p.checkpoint
        def step(carry, row):
            return np_.tanh(carry * row) + carry, np_.sum(carry)

        last, ys = lax.scan(step, x, ROWS)
        return np_.sum(last) + np_.sum(ys * ys)

    return f


def checkpoint_around_a_scan(p, np_, lax):
    return p.checkpoint(scan_carry_and_outputs(p, np_, lax))


def fori_loop_with_static_bounds(p, np_, lax):
    return lambda x: np_.sum(lax.fori_loop(0, 4, lambda i, v: np_.sin(v) * (i + 1), x))


def cond_on_the_value(p, np_, lax):
    def f(x):
        return lax.cond(np_.sum(x) > 0.5, lambda v: np_.sum(np_.sin(v)), lambda v: np_.sum(v**3), x)

    return f


def cond_with_closures_and_several_results(p, np_, lax):
    def f(x):
        y = np_.exp(x)
        a, b = lax.cond(x[0] > 0, lambda v: (v * y, 1.0), lambda v: (np_.cos(v), np_.sum(y)), 2 * x)
        return np_.sum(a) * b

    return f


def switch_by_an_index(p, np_, lax):
    def f(x):
        branches = [lambda v: v, lambda v: v * np_.sin(v), lambda v: np_.zeros(3)]
        total = 0.0
        for n in (-1, 0, 1, 2, 7):
            total = total + np_.sum(lax.switch(np_.asarray(n), branches, x) * (n + 2))
        return total

    return f


def cond_inside_scan(p, np_, lax):
    def f(x):
        def step(carry, row):
            new = lax.cond(np_.sum(row) > 0, lambda c: np_.sin(c) * row, lambda c: c * c, carry)
            return new, np_.max(new)

        last, ys = lax.scan(step, x, ROWS)
        return np_.sum(last) + np_.sum(ys)

    return f


def custom_jvp_rule(p, np_, lax):
    @p.custom_jvp
    def clip(x, scale):
        return np_.clip(x * scale, -1, 1)

    @clip.defjvp
    def clip_jvp(primals, tangents):
        (x, scale), (t, u) = primals, tangents
        return clip(x, scale), t * scale + u * np_.sum(x)

    return lambda x: np_.sum(clip(x, 1.5) * clip(x, x[0]))


def custom_vjp_rule(p, np_, lax):
    @p.custom_vjp
    def f(x, y):
        return np_.sin(x) * y, x + y

    def fwd(x, y):
        return f(x, y), (x, y)

    def bwd(saved, ct):
        x, y = saved
        a, b = ct
        return a * y * 2 + b, a * np_.sin(x)

    f.defvjp(fwd, bwd)

    def g(x):
        a, b = f(x, np_.cos(x))
        return np_.sum(a * b)

    return g


def custom_vjp_with_nondiff_argument(p, np_, lax):
    from functools import partial

    @partial(p.custom_vjp, nondiff_argnums=(0,))
    def apply(function, x):
        return function(x)

    apply.defvjp(lambda function, x: (function(x), x), lambda function, x, ct: (3.0 * ct * function(x),))
    return lambda x: np_.sum(apply(np_.sin, x) * x)


def custom_vjp_in_a_scan(p, np_, lax):
    @p.custom_vjp
    def f(x):
        return np_.sin(x)

    f.defvjp(lambda x: (f(x), np_.cos(x)), lambda c, ct: (c * ct * 2,))

    def g(x):
        return np_.sum(lax.scan(lambda c, row: (f(c) + row, c), x, ROWS)[0])

    return g


CASES = [
    scan_carry_and_outputs, scan_reversed_with_closure, scan_with_an_integer_carry, scan_over_a_tree, nested_scans,
    scan_where_the_carry_becomes_active_late, checkpointed_scan_body, checkpoint_around_a_scan,
    fori_loop_with_static_bounds, cond_on_the_value, cond_with_closures_and_several_results, switch_by_an_index,
    cond_inside_scan, custom_jvp_rule, custom_vjp_rule, custom_vjp_with_nondiff_argument, custom_vjp_in_a_scan,
]  # fmt: skip
BACKWARD_ONLY = (custom_vjp_rule, custom_vjp_with_nondiff_argument, custom_vjp_in_a_scan)

ROUTES = {
    "value": lambda p, f: f(X),
    "jit": lambda p, f: p.jit(f)(X),
    "grad": lambda p, f: p.grad(f)(X),
    "jit of grad": lambda p, f: p.jit(p.grad(f))(X),
    "vmap": lambda p, f: p.vmap(f)(np.stack([X, -X, 2 * X])),
    "vmap of grad": lambda p, f: p.vmap(p.grad(f))(np.stack([X, -X, 2 * X])),
    "grad of vmap": lambda p, f: p.grad(lambda xs: p.vmap(f)(xs).sum())(np.stack([X, -X])),
    "jvp": lambda p, f: p.jvp(f, (X,), (ROWS[1],))[1],
    "jvp of vmap": lambda p, f: p.jvp(p.vmap(f), (ROWS,), (ROWS[::-1].copy(),))[1],
    "linearize": lambda p, f: p.linearize(f, X)[1](ROWS[1]),
    "jvp of grad": lambda p, f: p.jvp(p.grad(f), (X,), (ROWS[1],))[1],
    "grad of grad": lambda p, f: p.grad(lambda x: p.grad(f)(x).sum())(X),
}
FORWARD = ("jvp", "jvp of vmap", "linearize", "jvp of grad")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_program_equals_jax_by_every_route(case, route):
    try:
        expected = ROUTES[route](jax, case(jax, jax.numpy, jax.lax))
    except TypeError as error:  # JAX's refusal of forward mode through a custom vjp
        assert case in BACKWARD_ONLY and route in FORWARD, error
        with pytest.raises(mw.MeshwrightError, match=r"no forward-mode derivative|has no derivative"):
            ROUTES[route](mw, case(mw, mw.numpy, mw.lax))
        return
    actual = ROUTES[route](mw, case(mw, mw.numpy, mw.lax))
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_gradient_program_survives_its_text(case):
    program = mw.make_program(mw.grad(case(mw, mw.numpy, mw.lax)))(X)
    assert mw.parse_program(program.to_text(constants=True)) == program


WHILE = {
    "until large": lambda np_, lax: lambda x: lax.while_loop(lambda v: np_.sum(v * v) < 50.0, lambda v: v * 1.5, x),
    "count": lambda np_, lax: (
        lambda x: lax.while_loop(
            lambda c: c[0] < np_.abs(x[0]) * 10, lambda c: (c[0] + 1.0, np_.sin(c[1]) + x), (0.0, x)
        )[1]
    ),
    "dynamic bounds": lambda np_, lax: (
        lambda x: lax.fori_loop(0, np_.argmax(x) + 2, lambda i, v: v * x + i, np_.ones(3))
    ),
}


@pytest.mark.parametrize("route", ["value", "jit", "vmap", "jvp", "jvp of vmap", "linearize"])
@pytest.mark.parametrize("case", WHILE)
def test_a_while_loop_equals_jax(case, route):
    actual = ROUTES[route](mw, WHILE[case](mw.numpy, mw.lax))
    expected = ROUTES[route](jax, WHILE[case](jax.numpy, jax.lax))
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=2e-5, atol=2e-5)


def test_python_may_branch_on_concrete_values_under_grad():
    def f(x):
        return x**2 if x > 0 else -x

    assert float(mw.grad(f)(3.0)) == 6.0
    assert float(mw.grad(f)(-3.0)) == -1.0
    assert float(mw.grad(mw.grad(lambda x: x**3 if x * 2 > 1 else x))(3.0)) == 18.0


def test_a_checkpoint_remembers_its_inputs_alone():
    def f(x):
        return mw.numpy.sin(mw.numpy.sin(mw.numpy.sin(x)))

    def residuals(function):
        from meshwright.api.grad import _trace_on
        from meshwright.transform.jvp import linearize_program

        traced, values = _trace_on(function, [X])
        return linearize_program(traced.program, values, [True])[1].residuals

    assert len(residuals(f)) == 3
    assert len(residuals(mw.checkpoint(f))) == 1
