"""``meshwright.nn`` and ``meshwright.lax`` against JAX; slopes against JAX's gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright.numpy as mnp
from meshwright import lax, nn
from meshwright.core.trace import trace
from meshwright.errors import ShapeError, TreeError
from meshwright.transform.jvp import jvp_program
from tests.numpy.against_jax import compare, draw

pytestmark = pytest.mark.usefixtures("x32")

ACTIVATIONS = [
    "celu",
    "elu",
    "gelu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "squareplus",
    "swish",
    "tanh",
    "identity",
    "softmax",
    "log_softmax",
    "logsumexp",
    "standardize",
]
POINTS = np.array([[-7.0, -3.0, -1.0, -0.3], [0.0, 0.4, 1.0, 3.0], [6.0, 6.5, 20.0, -20.0]], np.float32)
# Where JAX's rule at a corner differs from the slope of either side by design of the formula.
SMOOTH = POINTS + 0.013


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values(name):
    for x in (POINTS, draw((2, 4), "bfloat16"), draw((3,), "int32")):
        if x.dtype.kind == "i" and name in ("identity", "sigmoid", "silu", "swish"):
            continue
        compare(lambda m, x: getattr(m.nn, name)(x), x, weak=x.dtype.kind == "f" and name != "squareplus")


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n not in ("logsumexp",)])
def test_slopes(name):
    function, theirs = getattr(nn, name), getattr(jax.nn, name)
    corners = name in ("relu", "relu6", "leaky_relu", "elu", "selu", "softplus", "sigmoid", "silu", "hard_tanh", "gelu")
    x = POINTS if corners else SMOOTH
    t = draw(x.shape, seed=4)
    program, _ = trace(lambda x: [function(x)], [mnp.asarray(x).type])
    _, (slope,) = jvp_program(program, [mnp.asarray(x)], [mnp.asarray(t)])
    _, expected = jax.jvp(theirs, (jnp.asarray(x),), (jnp.asarray(t),))
    np.testing.assert_allclose(np.asarray(slope), np.asarray(expected), rtol=2e-5, atol=2e-5)


def test_relu_keeps_nan_and_has_slope_zero_at_zero():
    assert np.isnan(np.asarray(nn.relu(mnp.array([np.nan])))).all()
    program, _ = trace(lambda x: [nn.relu(x)], [mnp.zeros(1).type])
    assert float(jvp_program(program, [mnp.zeros(1)], [mnp.ones(1)])[1][0][0]) == 0.0


CASES = {
    "gelu exact": lambda m, x: m.nn.gelu(x, approximate=False),
    "softmax axis": lambda m, x: m.nn.softmax(x, axis=0),
    "softmax axes": lambda m, x: m.nn.softmax(x, axis=(0, 1)),
    "softmax where": lambda m, x: m.nn.softmax(x, where=x > -1),
    "log_softmax axis": lambda m, x: m.nn.log_softmax(x, axis=0),
    "logsumexp axis": lambda m, x: m.nn.logsumexp(x, axis=1, keepdims=True),
    "logsumexp weights": lambda m, x: m.nn.logsumexp(x, axis=1, b=m.np.array([1.0, 2.0, 0.0, 3.0])),
    "logsumexp sign": lambda m, x: m.nn.logsumexp(x, b=m.np.array([1.0, -2.0, 0.5, -3.0]), return_sign=True),
    "logsumexp infinite": lambda m, x: m.nn.logsumexp(m.np.where(x > 0, -m.np.inf, -m.np.inf), axis=1),
    "logsumexp where": lambda m, x: m.nn.logsumexp(x, axis=1, where=x > -5),
    "glu": lambda m, x: m.nn.glu(x),
    "leaky_relu": lambda m, x: m.nn.leaky_relu(x, 0.3),
    "elu": lambda m, x: m.nn.elu(x, 2.0),
    "celu": lambda m, x: m.nn.celu(x, 0.5),
    "one_hot": lambda m, x: m.nn.one_hot(m.np.array([0, 2, 5, -1]), 3),
    "one_hot axis": lambda m, x: m.nn.one_hot(m.np.array([[0, 2], [1, 1]]), 3, axis=1, dtype="int8"),
    "standardize": lambda m, x: m.nn.standardize(x, axis=(0, 1), epsilon=1e-3),
    "attention": lambda m, x: m.nn.dot_product_attention(*heads(m, 4, 4)),
    "attention causal": lambda m, x: m.nn.dot_product_attention(*heads(m, 4, 2), is_causal=True),
    "attention mask": lambda m, x: m.nn.dot_product_attention(
        *heads(m, 4, 2), mask=m.np.asarray(draw((2, 1, 5, 5), "bool")) | m.np.eye(5, dtype=bool), scale=0.3
    ),
    "attention bias": lambda m, x: m.nn.dot_product_attention(*heads(m, 4, 1), bias=m.np.asarray(draw((2, 4, 5, 5)))),
}


def heads(m, queries, keys):
    return [m.np.asarray(draw((2, 5, n, 8), seed=s)) for s, n in enumerate((queries, keys, keys))]


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    compare(CASES[name], POINTS, weak=name not in ("one_hot axis", "logsumexp infinite"))


def test_errors():
    with pytest.raises(ShapeError, match="halve"):
        nn.glu(mnp.ones((2, 3)))
    with pytest.raises(ShapeError, match="query heads"):
        nn.dot_product_attention(mnp.ones((1, 2, 3, 4)), mnp.ones((1, 2, 2, 4)), mnp.ones((1, 2, 2, 4)))


X, W = draw((2, 3, 8, 7)), draw((4, 3, 3, 2), seed=1)
SORTED = np.array([[3, 1, 2], [1, 1, 0]], np.int32)

LAX = {
    "elementwise": lambda m: [
        getattr(m.lax, f)(m.np.asarray(X)) for f in ["neg", "abs", "sign", "exp", "sin", "tanh", "floor", "square"]
    ],
    "elementwise domain": lambda m: [
        getattr(m.lax, f)(m.np.asarray(np.abs(X) + 0.1))
        for f in ["log", "sqrt", "rsqrt", "log1p", "cbrt", "lgamma", "digamma", "erf"]
    ],
    "pairs": lambda m: [
        getattr(m.lax, f)(m.np.asarray(X), m.np.asarray(X[::-1]))
        for f in ["add", "sub", "mul", "div", "max", "min", "atan2", "rem", "eq", "ge"]
    ],
    "scalars": lambda m: [m.lax.add(m.np.asarray(X), 1.0), m.lax.max(m.np.asarray(X), 0.0)],
    "bits": lambda m: [
        m.lax.bitwise_and(m.np.asarray(SORTED), 1),
        m.lax.shift_left(m.np.asarray(SORTED), m.np.asarray(SORTED)),
        m.lax.population_count(m.np.asarray(SORTED)),
        m.lax.clz(m.np.asarray(SORTED)),
        m.lax.bitwise_not(m.np.asarray(SORTED)),
    ],
    "powers": lambda m: [m.lax.pow(m.np.asarray(np.abs(X)), 2.5), m.lax.integer_pow(m.np.asarray(X), 3)],
    "round": lambda m: [
        m.lax.round(m.np.array([0.5, 1.5, -2.5])),
        m.lax.round(m.np.array([0.5, 1.5]), m.lax.RoundingMethod.TO_NEAREST_EVEN),
    ],
    "clamp": lambda m: m.lax.clamp(-1.0, m.np.asarray(X), 1.0),
    "select": lambda m: m.lax.select(m.np.asarray(X) > 0, m.np.asarray(X), -m.np.asarray(X)),
    "select_n": lambda m: m.lax.select_n(m.np.array([0, 2, 1]), m.np.zeros(3), m.np.ones(3), m.np.full(3, 2.0)),
    "convert": lambda m: [
        m.lax.convert_element_type(m.np.asarray(X), "int32"),
        m.lax.bitcast_convert_type(m.np.asarray(X), "int32"),
    ],
    "full": lambda m: [m.lax.full((2,), 3.0), m.lax.full_like(m.np.asarray(X), 2)],
    "iota": lambda m: [m.lax.iota("int32", 3), m.lax.broadcasted_iota("float32", (2, 3), 1)],
    "reshape": lambda m: [m.lax.reshape(m.np.asarray(X), (6, 56)), m.lax.collapse(m.np.asarray(X), 1, 3)],
    "broadcast": lambda m: [
        m.lax.broadcast(m.np.arange(3), (2,)),
        m.lax.broadcast_in_dim(m.np.arange(3), (3, 2), (0,)),
    ],
    "squeeze": lambda m: [m.lax.squeeze(m.np.ones((1, 2)), (0,)), m.lax.expand_dims(m.np.ones(2), (0, 2))],
    "concatenate": lambda m: m.lax.concatenate([m.np.asarray(X), m.np.asarray(X)], 1),
    "pad": lambda m: m.lax.pad(m.np.asarray(SORTED), 7, ((1, 0, 0), (-1, 2, 1))),
    "rev": lambda m: m.lax.rev(m.np.asarray(X), (1, 3)),
    "reductions": lambda m: [
        getattr(m.lax, f"reduce_{f}")(m.np.asarray(X), (1, 3)) for f in ("sum", "max", "min", "prod")
    ],
    "reduce": lambda m: [
        m.lax.reduce(m.np.asarray(X), 0.0, m.lax.add, (0,)),
        m.lax.reduce(m.np.asarray(X), 1.0, m.lax.max, (0, 1)),
    ],
    "argmax": lambda m: [m.lax.argmax(m.np.asarray(X), 1, "int32"), m.lax.argmin(m.np.asarray(X), 2, "int32")],
    "cumulative": lambda m: [
        getattr(m.lax, f)(m.np.asarray(X), 2, reverse=r)
        for f in ("cumsum", "cummax", "cumlogsumexp")
        for r in (False, True)
    ],
    "sort": lambda m: [
        m.lax.sort(m.np.asarray(X), 1),
        m.lax.sort((m.np.asarray(SORTED), m.np.asarray(SORTED) * 2), num_keys=2),
    ],
    "sort_key_val": lambda m: m.lax.sort_key_val(m.np.asarray(SORTED), m.np.arange(6).reshape(2, 3)),
    "top_k": lambda m: m.lax.top_k(m.np.asarray(X), 3),
    "dot_general": lambda m: m.lax.dot_general(m.np.asarray(X), m.np.asarray(X), (((3,), (3,)), ((0, 1), (0, 1)))),
    "dot": lambda m: [m.lax.dot(m.np.ones((2, 3)), m.np.ones((3, 4))), m.lax.dot(m.np.ones(3), m.np.ones(3))],
    "batch_matmul": lambda m: m.lax.batch_matmul(m.np.asarray(X), m.np.asarray(X.swapaxes(2, 3))),
    "slice": lambda m: [
        m.lax.slice(m.np.asarray(X), (0, 1, 0, 2), (2, 3, 8, 7), (1, 1, 3, 2)),
        m.lax.slice_in_dim(m.np.asarray(X), 1, -2, 2, axis=2),
    ],
    "index_in_dim": lambda m: m.lax.index_in_dim(m.np.asarray(X), -1, 2, keepdims=False),
    "dynamic_slice": lambda m: [
        m.lax.dynamic_slice(m.np.asarray(SORTED), (m.np.array(1), m.np.array(2)), (1, 2)),
        m.lax.dynamic_slice(m.np.asarray(SORTED), (-1, -2), (1, 2)),
    ],
    "dynamic_slice_in_dim": lambda m: m.lax.dynamic_slice_in_dim(m.np.asarray(X), m.np.array(-3), 2, axis=2),
    "dynamic_index_in_dim": lambda m: m.lax.dynamic_index_in_dim(m.np.asarray(X), 2, 2, keepdims=False),
    "dynamic_update_slice": lambda m: m.lax.dynamic_update_slice(m.np.zeros((3, 4)), m.np.ones((2, 2)), (2, -1)),
    "dynamic_update_slice_in_dim": lambda m: m.lax.dynamic_update_slice_in_dim(
        m.np.zeros((3, 4)), m.np.ones((3, 2)), 1, axis=1
    ),
    "dynamic_update_index_in_dim": lambda m: m.lax.dynamic_update_index_in_dim(
        m.np.zeros((3, 4)), m.np.ones((3,)), 1, axis=1
    ),
    "gather": lambda m: [
        m.lax.gather(
            m.np.asarray(X[0, 0]),
            m.np.array([[0], [9]]),
            m.lax.GatherDimensionNumbers((1,), (0,), (0,)),
            (1, 7),
            mode=mode,
            fill_value=fill,
        )
        for mode, fill in (("clip", None), ("fill", None), ("fill", 3.0))
    ],
    "scatter": lambda m: [
        getattr(m.lax, f)(
            m.np.asarray(X[0, 0]),
            m.np.array([[0], [9], [2]]),
            m.np.ones((3, 7)),
            m.lax.ScatterDimensionNumbers((1,), (0,), (0,)),
        )
        for f in ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")
    ],
    "conv": lambda m: [m.lax.conv(m.np.asarray(X), m.np.asarray(W), (1, 2), p) for p in ("SAME", "VALID")],
    "conv dims": lambda m: m.lax.conv_general_dilated(
        m.np.asarray(X.transpose(0, 2, 3, 1)),
        m.np.asarray(W.transpose(2, 3, 1, 0)),
        (2, 1),
        ((1, 2), (0, 3)),
        rhs_dilation=(2, 1),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ),
    "conv groups": lambda m: m.lax.conv_general_dilated(
        m.np.asarray(X),
        m.np.asarray(draw((6, 1, 2, 2))),
        (1, 1),
        ((1, 0), (0, 1)),
        lhs_dilation=(2, 1),
        feature_group_count=3,
    ),
    "conv_transpose": lambda m: [
        m.lax.conv_transpose(m.np.asarray(X.transpose(0, 2, 3, 1)), m.np.asarray(W.transpose(2, 3, 1, 0)), (2, 3), p)
        for p in ("SAME", "VALID")
    ],
    "reduce_window": lambda m: [
        m.lax.reduce_window(m.np.asarray(X), init, f, (1, 1, 2, 3), (1, 1, 2, 2), p)
        for init, f in ((-np.inf, m.lax.max), (0.0, m.lax.add), (np.inf, m.lax.min))
        for p in ("SAME", "VALID")
    ],
    "barrier": lambda m: m.lax.optimization_barrier((m.np.ones(2), m.np.zeros(3))),
    "stop_gradient": lambda m: m.lax.stop_gradient([m.np.ones(2), m.np.arange(3)]),
    "complex": lambda m: [
        m.lax.complex(m.np.ones(2), m.np.arange(2.0)),
        m.lax.conj(m.np.array([1 + 2j])),
        m.lax.real(m.np.array([1 + 2j])),
    ],
}


@pytest.mark.parametrize("name", LAX)
def test_lax(name):
    compare(LAX[name], weak=False)


def test_lax_does_not_promote_or_broadcast():
    with pytest.raises(ShapeError):
        lax.add(mnp.ones(3), mnp.arange(3))
    with pytest.raises(ShapeError):
        lax.add(mnp.ones(3), mnp.ones((2, 3)))
    with pytest.raises(ShapeError):
        lax.add(mnp.ones((3, 2)), mnp.ones((2, 3)))
    compare(lambda m: m.lax.add(m.np.ones((1, 3)), m.np.ones((2, 1))), weak=False)  # JAX spreads dims of size 1


COMBINATIONS = {
    "first": lambda x, y: x,
    "second": lambda x, y: y,
    "number": lambda x, y: 1.0,
    "smaller": lambda x, y: -(-x).clip(-y),
}


@pytest.mark.parametrize("name", [*COMBINATIONS, "add"])
def test_lax_reduces_by_any_function_and_is_weak_where_jax_is(name):
    def results(m):
        combine = COMBINATIONS.get(name, m.lax.add)
        weak, own = m.np.broadcast_to(m.np.asarray(2.0), (3,)), m.np.arange(1, 4, dtype="float32")
        found = []
        for x in (weak, own):
            for init in (0.0, m.np.float32(0)):
                found += [
                    m.lax.reduce(x, init, combine, (0,)),
                    m.lax.reduce_window(x, init, combine, (3,), (1,), "SAME"),
                ]
        return found

    compare(results, weak=True)


def test_a_function_that_lax_reduces_by_returns_what_it_is_given():
    for wrong in (lambda x, y: x[None], lambda x, y: mnp.int32(3), lambda x, y: (x, y)):
        with pytest.raises(TreeError, match="are combined into one of them"):
            lax.reduce(mnp.ones(3), 0.0, wrong, (0,))
        with pytest.raises(TreeError, match="are combined into one of them"):
            lax.reduce_window(mnp.ones(3), 0.0, wrong, (2,), (1,), "SAME")


def test_approx_max_k_is_given_at_most_its_input():
    for size in (-1, 4, 9):
        found = lax.approx_max_k(mnp.arange(4.0), 2, reduction_input_size_override=size)
        expected = jax.lax.approx_max_k(jnp.arange(4.0), 2, reduction_input_size_override=size)
        assert [x.tolist() for x in found] == [x.tolist() for x in expected]
    with pytest.raises(ShapeError, match="cannot take reduction_input_size_override=3"):
        lax.approx_max_k(mnp.arange(4.0), 2, reduction_input_size_override=3)


def test_scaled_products_are_those_of_scaled_blocks():
    x, y = draw((2, 3, 4)), draw((2, 5, 4), seed=1)
    xs, ys = draw((2, 3, 2), seed=2), draw((2, 5, 2), seed=3)
    found = nn.scaled_matmul(x, y, xs, ys, "bfloat16")
    expected = np.einsum("bmk,bnk->bmn", x * np.repeat(xs, 2, -1), y * np.repeat(ys, 2, -1))
    assert found.dtype == "bfloat16"
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=2e-2, atol=2e-2)
    with pytest.raises(ShapeError, match="block"):
        nn.scaled_matmul(x, y, xs, ys[..., :1])
