"""``mnp.linalg``, ``mnp.fft`` and ``lax.linalg`` against JAX."""

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ShapeError
from tests.numpy.against_jax import compare, draw

pytestmark = pytest.mark.usefixtures("x32")

X = draw((2, 3, 4))
C = draw((3, 6), "complex64")
SQUARE = draw((2, 3, 3))
POSITIVE = SQUARE @ SQUARE.swapaxes(1, 2) + 3 * np.eye(3, dtype=np.float32)
LOWER = np.linalg.cholesky(POSITIVE).astype(np.float32)

CASES = {
    "norm": lambda m: [m.np.linalg.norm(m.np.asarray(X)), m.np.linalg.norm(m.np.asarray(X), axis=1)],
    "norm of matrices": lambda m: [
        m.np.linalg.norm(m.np.asarray(X), ord, axis=(0, 2)) for ord in (None, "fro", 1, -1, np.inf, -np.inf)
    ],
    "norm of vectors": lambda m: [
        m.np.linalg.norm(m.np.asarray(X), ord, axis=-1, keepdims=True) for ord in (None, 0, 1, 2, 3, np.inf, -np.inf)
    ],
    "norm keepdims": lambda m: m.np.linalg.norm(m.np.asarray(X), 1, axis=(2, 1), keepdims=True),
    "norm complex": lambda m: m.np.linalg.norm(m.np.asarray(C), axis=0),
    "vector_norm": lambda m: m.np.linalg.vector_norm(m.np.asarray(X), axis=(0, 1)),
    "matrix_norm": lambda m: m.np.linalg.matrix_norm(m.np.asarray(X)),
    "cholesky": lambda m: [
        m.np.linalg.cholesky(m.np.asarray(POSITIVE)),
        m.np.linalg.cholesky(m.np.asarray(POSITIVE), upper=True),
    ],
    "multi_dot": lambda m: m.np.linalg.multi_dot([m.np.ones((2, 3)), m.np.ones((3, 4)), m.np.ones((4, 2))]),
    "matrix_power": lambda m: m.np.linalg.matrix_power(m.np.asarray(SQUARE), 5),
    "triangular_solve": lambda m: [
        m.lax.linalg.triangular_solve(
            m.np.asarray(LOWER), m.np.asarray(SQUARE), left_side=left, lower=True, transpose_a=t
        )
        for left in (False, True)
        for t in (False, True)
    ],
    "fft": lambda m: [
        m.np.fft.fft(m.np.asarray(X)),
        m.np.fft.fft(m.np.asarray(C), 4),
        m.np.fft.fft(m.np.asarray(C), 9),
    ],
    "fft axis": lambda m: m.np.fft.fft(m.np.asarray(X), axis=1, norm="ortho"),
    "ifft": lambda m: [m.np.fft.ifft(m.np.asarray(C), norm=n) for n in ("backward", "ortho", "forward")],
    "rfft": lambda m: [m.np.fft.rfft(m.np.asarray(X)), m.np.fft.rfft(m.np.asarray(X), 5, 1)],
    "irfft": lambda m: [
        m.np.fft.irfft(m.np.asarray(C)),
        m.np.fft.irfft(m.np.asarray(C), 9),
        m.np.fft.irfft(m.np.asarray(C), 5),
    ],
    "fft2": lambda m: [
        m.np.fft.fft2(m.np.asarray(X)),
        m.np.fft.ifft2(m.np.asarray(C)),
        m.np.fft.rfft2(m.np.asarray(X)),
    ],
    "fftn": lambda m: [
        m.np.fft.fftn(m.np.asarray(X)),
        m.np.fft.rfftn(m.np.asarray(X), (4, 6), (0, 2)),
        m.np.fft.irfftn(m.np.asarray(C)),
    ],
    "frequencies": lambda m: [m.np.fft.fftfreq(7, 0.5), m.np.fft.rfftfreq(8), m.np.fft.fftfreq(4)],
    "shift": lambda m: [m.np.fft.fftshift(m.np.asarray(X)), m.np.fft.ifftshift(m.np.asarray(X), 1)],
    "integers": lambda m: m.np.fft.fft(m.np.arange(4)),
    "lax.fft": lambda m: [m.lax.fft(m.np.asarray(C), "FFT", (6,)), m.lax.fft(m.np.asarray(X), "RFFT", (3, 4))],
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    compare(CASES[name], weak=False)


def test_solving_with_a_cholesky_factor():
    b = draw((2, 3, 2))
    for factor, lower in ((LOWER, True), (LOWER.swapaxes(1, 2), False)):
        found = mnp.linalg.cho_solve((mnp.asarray(factor), lower), b)
        np.testing.assert_allclose(POSITIVE @ np.asarray(found), b, rtol=1e-4, atol=1e-4)
    vector = mnp.linalg.solve_triangular(mnp.asarray(LOWER[0]), b[0, :, 0], lower=True)
    np.testing.assert_allclose(LOWER[0] @ np.asarray(vector), b[0, :, 0], rtol=1e-4, atol=1e-4)


def test_errors():
    with pytest.raises(ShapeError, match="cannot take ord=7"):
        mnp.linalg.norm(mnp.ones((2, 2)), 7)
    with pytest.raises(ShapeError, match="reals"):
        mnp.fft.rfft(mnp.ones(3, "complex64"))
    with pytest.raises(ShapeError, match="ortho"):
        mnp.fft.fft(mnp.ones(3), norm="unitary")
    with pytest.raises(AttributeError):
        mnp.not_a_function  # noqa: B018


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (
            [(2, 3), (2, 3, 4), (4,)],
            "mnp.linalg.multi_dot cannot take f32[2,3,4] as array 1 of 3.\n"
            "  why:  it multiplies matrices; the first and the last may be vectors\n"
            "  fix:  mnp.matmul(x, y), which takes batches of matrices",
        ),
        (
            [(2, 3), (2, 3)],
            "mnp.linalg.multi_dot cannot multiply [2, 3] by [2, 3].\n"
            "  why:  the last dim of one has 3 elements, the first of the next 2\n"
            "  fix:  mnp.linalg.multi_dot([x, y.T])",
        ),
    ],
)
def test_a_chain_of_products_that_does_not_fit_is_refused(shapes, text):
    with pytest.raises(ShapeError) as caught:
        mnp.linalg.multi_dot([mnp.ones(shape) for shape in shapes])
    assert "\n".join(line for line in str(caught.value).splitlines() if "  at:" not in line) == text
    with pytest.raises(Exception):  # noqa: B017
        jax.numpy.linalg.multi_dot([np.ones(shape) for shape in shapes])


def test_a_chain_of_products_multiplies_first_what_saves_the_most():
    """A matrix, a matrix and a vector are two products of a matrix and a vector."""
    given = [mnp.ones((64, 64)), mnp.ones((64, 64)), mnp.ones(64)]
    program = mw.make_program(lambda *xs: mnp.linalg.multi_dot(xs))(*given)
    assert [eqn.outputs[0].type.shape for eqn in program.eqns if eqn.op.name == "dot_general"] == [(64,), (64,)]
