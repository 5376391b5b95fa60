"""Operators and methods of arrays and tracers: promotion, literals in programs, conversions, text, errors."""

import copy
import operator

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright.numpy as mnp
from meshwright.core.trace import Array, trace
from meshwright.core.types import tensor
from meshwright.errors import MeshwrightError, ShapeError, TracerError
from tests.numpy.against_jax import compare, draw, program_text, run_traced

pytestmark = pytest.mark.usefixtures("x32")

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge")
BITS = ("and_", "or_", "xor", "lshift", "rshift")


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", ("float32", "int32", "bfloat16", "uint8"))
def test_operators_with_arrays_and_numbers_on_either_side(name, dtype):
    function = getattr(operator, name)
    x, y = draw((2, 3), dtype, 1.2, 4), draw((3,), dtype, 1.2, 4, seed=1)
    compare(lambda m, x, y: function(x, y), x, y)
    compare(lambda m, x: [function(x, 2), function(3, x), function(x, 2.5)], x, weak=name != "pow")
    host = mnp.asarray(x)
    for found in (function(host, y), function(y, host)):
        assert isinstance(found, Array)


@pytest.mark.parametrize("name", BITS)
def test_bit_operators(name):
    function = getattr(operator, name)
    x, y = draw((2, 3), "int32", 0, 9), draw((3,), "int32", 0, 5, seed=1)
    compare(lambda m, x, y: [function(x, y), function(x, 2), function(2, x)], x, y)
    if name in ("and_", "or_", "xor"):
        compare(lambda m, x, y: [function(x > 2, y > 2), function(x > 2, True)], x, y)


def test_unary_operators():
    compare(lambda m, x: [-x, +x, abs(x), ~(x > 0), round(x), round(x, 1)], draw((3,)))
    compare(lambda m, x: [divmod(x, 2), divmod(7, x)], draw((3,), "int32", 1, 5))


def test_numpy_on_the_left_gives_an_array():
    x = mnp.arange(3.0)
    for found in (np.arange(3.0) + x, np.float32(2) * x, np.arange(3.0) @ x, np.int64(2) - x, np.ones(3) < x):
        assert isinstance(found, Array)
    assert isinstance(np.sin(x), np.ndarray)


def test_numbers_are_literals_and_scalars_are_not_broadcast():
    text = program_text(lambda x: (2.0 * x + 1) / 3 - x * mnp.sum(x), tensor((4,), "float32"))
    assert "broadcast" not in text
    for line in ("mul 2.0 a", "add b 1.0", "div c 3.0"):
        assert line in text, text
    assert "integer_pow" not in program_text(lambda x: x**2, tensor((4,), "float32"))
    assert program_text(lambda x: x + np.float32(1), tensor((4,), "float32")).count(" = ") == 1


def test_vectors_are_broadcast_once():
    text = program_text(lambda x, b: x + b, tensor((2, 3), "float32"), tensor((3,), "float32"))
    assert text.count("broadcast_in_dim") == 1
    both = program_text(lambda x, b: x[:, None] * b[None], tensor((2,), "float32"), tensor((3,), "float32"))
    assert both.count("broadcast_in_dim") == 2 and both.count("reshape") == 2


METHODS = {
    "sum": lambda x: x.sum(),
    "sum axis": lambda x: x.sum(axis=1, keepdims=True),
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(axis=-1),
    "min": lambda x: x.min(),
    "prod": lambda x: x.prod(1),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(),
    "reshape": lambda x: [x.reshape(3, 2), x.reshape((6,)), x.reshape(-1, 3), x.reshape(-1), x.reshape([2, 3])],
    "transpose": lambda x: [x.transpose(), x.transpose(1, 0), x.transpose((1, 0)), x.T, x.mT],
    "astype": lambda x: [x.astype("int32"), x.astype(bool), x.astype("bfloat16")],
    "ravel": lambda x: [x.ravel(), x.flatten()],
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "dot": lambda x: x.dot(x.T),
    "any all": lambda x: [(x > 0).any(), (x > 0).all(axis=0)],
    "std var": lambda x: [x.std(), x.var(axis=1, ddof=1)],
    "cumsum": lambda x: [x.cumsum(), x.cumprod(axis=1)],
    "clip": lambda x: x.clip(-1, 1),
    "round": lambda x: x.round(1),
    "conj": lambda x: [x.conj(), x.real],
    "take": lambda x: x.take(np.array([0, 5])),
    "sort": lambda x: [x.sort(), x.argsort(axis=0)],
    "repeat": lambda x: x.repeat(2, axis=1),
    "trace": lambda x: [x.trace(), x.diagonal()],
    "ptp": lambda x: x.ptp(),
    "nonzero": lambda x: (x > 0).nonzero(size=6),
    "searchsorted": lambda x: x.ravel().sort().searchsorted(0.5),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    compare(lambda m, x: METHODS[name](x), draw((2, 3)))


def test_what_an_array_tells():
    x = mnp.asarray(draw((2, 3), "bfloat16"))
    assert (x.shape, x.ndim, x.size, x.nbytes, x.itemsize, str(x.dtype)) == ((2, 3), 2, 6, 12, 2, "bfloat16")
    assert x.block_until_ready() is x


def test_python_takes_numbers_out():
    x = mnp.array([2.5])
    assert bool(x) and int(x) == 2 and float(x) == 2.5 and complex(x) == 2.5 and x.item() == 2.5 and x.tolist() == [2.5]
    assert [10, 20, 30][mnp.array(1)] == 20 and list(range(mnp.array(2))) == [0, 1]
    assert f"{mnp.array(2.5):.2f}" == "2.50"
    assert mnp.bfloat16(1.5).item() == 1.5
    assert 2 in mnp.arange(3) and 7 not in mnp.arange(3)
    with pytest.raises(TypeError):
        operator.index(mnp.array(1.0))
    with pytest.raises(ShapeError):
        bool(mnp.arange(3))
    with pytest.raises(ShapeError):
        float(mnp.arange(3.0))


def test_numpy_dlpack_and_copies():
    x = mnp.asarray(draw((2, 3)))
    assert np.asarray(x).dtype == np.float32 and np.asarray(x, "float64").dtype == np.float64
    assert np.array_equal(np.from_dlpack(x), np.asarray(x))
    assert np.array_equal(np.asarray(jnp.from_dlpack(x)), np.asarray(x))
    for other in (copy.copy(x), copy.deepcopy(x), x.copy()):
        assert isinstance(other, Array) and np.array_equal(np.asarray(other), np.asarray(x)) and other is not x


def test_arrays_are_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(mnp.arange(3))


def test_text():
    assert repr(mnp.array([1.0, 2.0])) == "Array([1., 2.], dtype=float32)"
    assert repr(mnp.arange(2)) == "Array([0, 1], dtype=int32)"
    assert repr(mnp.asarray(2.0)) == "Array(2., dtype=float32, weak_type=True)"
    assert repr(mnp.zeros((0, 2))) == "Array([], shape=(0, 2), dtype=float32)"
    assert repr(mnp.zeros((2, 2))) == "Array([[0., 0.],\n       [0., 0.]], dtype=float32)"
    assert str(mnp.arange(3)) == "[0 1 2]"
    shown = []
    run_traced(lambda x: (shown.append(repr(x)), x)[1], mnp.ones(3))
    assert shown == ["Traced<float32[3]>"]


PYTHON = {
    "if": (lambda x: x if x[0] > 0 else -x, "lax.cond"),
    "while": (lambda x: [x for _ in iter(lambda: bool(x[0] > 3), True)], "mnp.where"),
    "and": (lambda x: x[0] > 0 and x[1] > 0, "mnp.where"),
    "int": (lambda x: int(x[0]), "static_argnums"),
    "float": (lambda x: float(x[0]), "static_argnums"),
    "complex": (lambda x: complex(x[0]), "static_argnums"),
    "range": (lambda x: list(range(x[0].astype("int32"))), "static_argnums"),
    "item": (lambda x: x[0].item(), "static_argnums"),
    "numpy": (lambda x: np.asarray(x), "meshwright.numpy"),
    "np.sum": (lambda x: np.sin(x), "meshwright.numpy"),
}


@pytest.mark.parametrize("name", PYTHON)
def test_python_asking_a_tracer_is_told_what_to_write(name):
    function, words = PYTHON[name]
    with pytest.raises(TracerError) as caught:
        run_traced(function, mnp.ones(3))
    error = caught.value
    assert words in error.fix and "test_operators.py" in error.where and "traced" in error.why


def test_python_may_branch_on_known_values():
    def function(x):
        return [x * 2 if x[0] > 0 else -x]

    x = mnp.ones(3)
    program, _ = trace(function, [x.type], [x])
    assert "mul a 2.0" in program.to_text(sources=False)


def test_what_is_no_operand_is_left_to_the_other_side():
    class Other:
        def __radd__(self, x):
            return "mine"

    assert mnp.ones(3) + Other() == "mine"
    assert (mnp.ones(3) == "text") is False
    with pytest.raises(TypeError):
        mnp.ones(3) + "text"


def test_broadcasting_errors_suggest_a_dim():
    with pytest.raises(ShapeError) as caught:
        mnp.ones((4, 3)) * mnp.ones(4)
    assert "y[:, None]" in caught.value.fix and "sizes 3 and 4" in caught.value.why


def test_integers_beyond_the_default_dtype_do_not_wrap():
    with pytest.raises(MeshwrightError):
        mnp.ones(3, "uint8") + 2**31
