"""Places, statistics and sequences of ``meshwright.numpy``, ``lax.associative_scan`` and initializers against JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import MeshwrightError, ShapeError
from tests.numpy.against_jax import compare, draw, run_traced

pytestmark = pytest.mark.usefixtures("x32")

X = draw((3, 4))
V = draw((7,))
I = draw((3, 4), "int32")  # noqa: E741

CASES = {
    "ix_": lambda m: m.np.asarray(X)[m.np.ix_(m.np.array([0, 2]), m.np.array([1, 3, 0]))],
    "unravel_index": lambda m: m.np.unravel_index(m.np.array([0, 5, 11, -1, 99]), (3, 4)),
    "ravel_multi_index": lambda m: m.np.ravel_multi_index(
        (m.np.array([0, 2]), m.np.array([1, 3])), (3, 4), mode="clip"
    ),
    "tril_indices_from": lambda m: m.np.tril_indices_from(m.np.asarray(X)),
    "triu_indices_from": lambda m: m.np.triu_indices_from(m.np.asarray(X), 1),
    "fill_diagonal": lambda m: m.np.fill_diagonal(m.np.asarray(X[:, :3]), 7.0, inplace=False),
    "compress": lambda m: m.np.compress(np.array([True, False, True]), m.np.asarray(X), 0),
    "insert": lambda m: m.np.insert(m.np.asarray(X), 1, m.np.arange(4.0), axis=0),
    "insert flat": lambda m: m.np.insert(m.np.asarray(V), -2, 9.0),
    "delete": lambda m: [m.np.delete(m.np.asarray(X), 1, 0), m.np.delete(m.np.asarray(V), np.array([0, 3]))],
    "block": lambda m: m.np.block(
        [[m.np.ones((2, 2)), m.np.zeros((2, 1))], [m.np.zeros((1, 2)), m.np.full((1, 1), 3.0)]]
    ),
    "apply_along_axis": lambda m: m.np.apply_along_axis(lambda v: v[::-1] * v.sum(), 0, m.np.asarray(X)),
    "apply_along_axis scalar": lambda m: m.np.apply_along_axis(lambda v: v.max(), 1, m.np.asarray(X)),
    "vectorize": lambda m: m.np.vectorize(lambda a, b: m.np.where(a > b, a, b))(m.np.asarray(X), m.np.arange(4.0)),
    "vectorize signature": lambda m: m.np.vectorize(m.np.dot, signature="(n),(n)->()")(
        m.np.asarray(draw((5, 1, 3))), m.np.asarray(draw((2, 3)))
    ),
    "gcd": lambda m: m.np.gcd(m.np.array([12, 0, 7, -18]), m.np.array([18, 5, 0, 12])),
    "lcm": lambda m: m.np.lcm(m.np.array([12, 0, 7]), 4),
    "cov": lambda m: [
        m.np.cov(m.np.asarray(X)),
        m.np.cov(m.np.asarray(X), rowvar=False, bias=True),
        m.np.cov(m.np.asarray(V)),
    ],
    "corrcoef": lambda m: m.np.corrcoef(m.np.asarray(X)),
    "histogram": lambda m: m.np.histogram(m.np.asarray(V), 4),
    "histogram edges": lambda m: m.np.histogram(m.np.asarray(V), m.np.array([-2.0, 0.0, 1.0, 2.0])),
    "histogram density": lambda m: m.np.histogram(m.np.asarray(V), 3, range=(-3, 3), density=True),
    "convolve": lambda m: [
        m.np.convolve(m.np.asarray(V), m.np.arange(1.0, 4.0), mode) for mode in ("full", "same", "valid")
    ],
    "correlate": lambda m: [
        m.np.correlate(m.np.asarray(V), m.np.arange(1.0, 4.0), mode) for mode in ("full", "same", "valid")
    ],
    "polyval": lambda m: m.np.polyval(m.np.array([1.0, 2.0, 3.0]), m.np.asarray(X)),
    "trapezoid": lambda m: [
        m.np.trapezoid(m.np.asarray(X)),
        m.np.trapezoid(m.np.asarray(X), m.np.arange(3.0) ** 2, axis=0),
    ],
    "ediff1d": lambda m: m.np.ediff1d(m.np.asarray(I), to_end=m.np.array([7])),
    "cumulative_sum": lambda m: m.np.cumulative_sum(m.np.asarray(X), axis=1, include_initial=True),
    "gradient": lambda m: [m.np.gradient(m.np.asarray(V), 0.5), m.np.gradient(m.np.asarray(X))],
    "nancumsum": lambda m: m.np.nancumsum(m.np.array([1.0, np.nan, 2.0])),
    "broadcast_shapes": lambda m: m.np.broadcast_shapes((2, 1), (3,)),
    "associative_scan": lambda m: [
        m.lax.associative_scan(m.np.add, m.np.asarray(X), axis=axis, reverse=reverse)
        for axis in (0, 1)
        for reverse in (False, True)
    ],
    "associative_scan matrices": lambda m: m.lax.associative_scan(m.np.matmul, m.np.asarray(draw((6, 2, 2)))),
    "associative_scan pairs": lambda m: m.lax.associative_scan(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (m.np.asarray(V), m.np.asarray(V[::-1])), reverse=True
    ),
    "lax.split": lambda m: m.lax.split(m.np.asarray(X), (1, 3), 1),
    "lax.reciprocal": lambda m: m.lax.reciprocal(m.np.asarray(X)),
    "scatter_sub": lambda m: m.lax.scatter_sub(
        m.np.asarray(V), m.np.array([[1], [3]]), m.np.ones(2), m.lax.ScatterDimensionNumbers((), (0,), (0,))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    compare(CASES[name], weak=False, traced=name not in ("tril_indices_from",))


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("normal", (0.5,)),
        ("uniform", (0.5,)),
        ("truncated_normal", (0.5,)),
        ("constant", (2.0,)),
        ("glorot_uniform", ()),
        ("glorot_normal", ()),
        ("he_normal", ()),
        ("he_uniform", ()),
        ("lecun_normal", ()),
        ("lecun_uniform", ()),
        ("variance_scaling", (2.0, "fan_out", "normal")),
    ],
)
def test_initializers_draw_the_same_numbers(name, arguments):
    for shape, dtype in (((4, 6), "float32"), ((3, 2, 4), "bfloat16")):
        found = getattr(mw.nn.initializers, name)(*arguments)(mw.random.key(3), shape, dtype)
        expected = getattr(jax.nn.initializers, name)(*arguments)(jax.random.key(3), shape, jnp.dtype(dtype))
        assert found.dtype == expected.dtype
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(
            np.asarray(found).astype("float32"), np.asarray(expected).astype("float32"), rtol=tolerance, atol=tolerance
        )


def test_constant_initializers():
    assert np.asarray(mw.nn.initializers.zeros(mw.random.key(0), (2,))).tolist() == [0, 0]
    assert np.asarray(mw.nn.initializers.ones(mw.random.key(0), (2,), "int8")).dtype == np.int8
    with pytest.raises(ShapeError, match="inputs and outputs"):
        mw.nn.initializers.he_normal()(mw.random.key(0), (3,))


def test_a_linear_recurrence_is_differentiable():
    a, b = np.abs(draw((9,))) / 4, draw((9,), seed=1)

    def last(a, b, np_, lax_):
        return lax_.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, b))[1][-1]

    found = mw.grad(lambda a: last(a, b, mnp, mw.lax))(a)
    expected = jax.grad(lambda a: last(a, jnp.asarray(b), jnp, jax.lax))(jnp.asarray(a))
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-4, atol=1e-5)


def test_names():
    assert mnp.dtype("float32") == mnp.float32 and mnp.bool == mnp.bool_ and mnp.newaxis is None
    assert mnp.isscalar(2.0) and not mnp.isscalar(mnp.ones(1)) and mnp.iterable([1]) and not mnp.iterable(2)
    assert mnp.from_dlpack(np.arange(3.0, dtype=np.float32)).tolist() == [0, 1, 2]
    assert mnp.array_repr(mnp.arange(2)) == "Array([0, 1], dtype=int32)"
    assert run_traced(lambda x: mnp.gcd(x, 4), mnp.arange(5)).tolist() == [4, 1, 2, 1, 4]
    for name in mnp.__all__:
        assert hasattr(mnp, name), name
    for module in (mw.lax, mw.nn):
        for name in module.__all__:
            assert hasattr(module, name), name


def test_arrays_from_and_to_files_buffers_and_text(tmp_path):
    x = mnp.arange(3, dtype="float32")
    mnp.save(tmp_path / "x.npy", x)
    assert mnp.load(tmp_path / "x.npy").tolist() == [0, 1, 2]
    mnp.savez(tmp_path / "xs.npz", x, b=2 * x)
    assert mnp.load(tmp_path / "xs.npz")["b"].tolist() == [0, 2, 4]
    mnp.save(str(tmp_path / "named"), x)
    assert np.load(tmp_path / "named.npy").tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="allow_pickle"):
        mnp.savez(tmp_path / "xs.npz", x, np.array([{}]), allow_pickle=False)
    assert mnp.load(tmp_path / "xs.npz")["b"].tolist() == [0, 2, 4]  # as it was
    with pytest.raises(MeshwrightError, match="cannot be written"):
        mnp.save(tmp_path / "nowhere" / "x", x)
    data = np.arange(4, dtype=np.int16)
    data.tofile(tmp_path / "raw")
    assert mnp.fromfile(tmp_path / "raw", "int16").tolist() == [0, 1, 2, 3]
    assert mnp.frombuffer(data.tobytes(), "int16", 2, 2).tolist() == [1, 2]
    assert mnp.fromiter((n * n for n in range(3)), "int32").tolist() == [0, 1, 4]
    assert mnp.fromstring("1,2", "float32", sep=",").tolist() == [1, 2]
    with mnp.printoptions(precision=2):
        assert mnp.get_printoptions()["precision"] == 2


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_frexp_of_all_floats_of_8_bits_is_that_of_wider_ones(dtype):
    """JAX has no such; NumPy knows the numbers as wider ones, which hold them exactly."""
    x = np.arange(256, dtype=np.uint8).view(mnp.dtype(dtype))
    mantissa, exponent = mnp.frexp(mnp.array(x))
    right = np.frexp(x.astype(np.float32))
    finite = np.isfinite(right[0])
    assert mantissa.dtype == mnp.dtype(dtype)
    np.testing.assert_array_equal(np.asarray(mantissa).astype(np.float32), right[0])
    np.testing.assert_array_equal(np.asarray(exponent)[finite], right[1][finite])
