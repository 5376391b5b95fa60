"""The functions of ``meshwright.numpy`` against ``jax.numpy``: values, dtypes and weak types, computed and traced."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright.numpy as mnp
from meshwright.errors import MeshwrightError, ShapeError, TracerError
from tests.numpy.against_jax import compare, draw, run_traced

pytestmark = pytest.mark.usefixtures("x32")

UNARY = [
    "abs",
    "absolute",
    "acos",
    "angle",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "cbrt",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "floor",
    "imag",
    "iscomplex",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "nan_to_num",
    "negative",
    "positive",
    "rad2deg",
    "real",
    "reciprocal",
    "rint",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]
DTYPES = ("float32", "bfloat16", "float16", "int32", "int8", "uint8", "bool", "complex64")


def rotated(items, start, count):
    """Some of ``items``, other ones for each ``start``."""
    return [items[(start + n) % len(items)] for n in range(count)]


def refuses(function, *args):
    """Whether JAX refuses the call."""
    try:
        function(*args)
    except (TypeError, ValueError):
        return True
    return False


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    low, high = {"arccosh": (1.1, 3), "arctanh": (-0.9, 0.9), "arcsin": (-0.9, 0.9), "arccos": (-0.9, 0.9)}.get(
        name, (-3, 3)
    )
    low = 0.2 if name.startswith("log") or name in ("sqrt", "reciprocal") else low
    for dtype in rotated(DTYPES, UNARY.index(name), 5):
        x = draw((2, 3), dtype, low, high)
        if name == "reciprocal" and x.dtype.kind in "iub":
            continue
        if refuses(getattr(jnp, name), x):
            continue
        compare(lambda m, x: getattr(m.np, name)(x), x)
    for number in (2, 0.5):
        if not refuses(getattr(jnp, name), number):
            compare(lambda m, n=number: getattr(m.np, name)(n), weak=False)


BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "true_divide",
    "floor_divide",
    "mod",
    "remainder",
    "fmod",
    "power",
    "float_power",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "arctan2",
    "hypot",
    "logaddexp",
    "logaddexp2",
    "copysign",
    "heaviside",
    "nextafter",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "isclose",
]
PAIRS = (
    ("float32", "float32"),
    ("float32", "bfloat16"),
    ("int32", "float32"),
    ("int8", "uint8"),
    ("int32", "int32"),
    ("uint8", "uint8"),
    ("bool", "int32"),
    ("float16", "int8"),
    ("complex64", "float32"),
    ("bool", "bool"),
)


# What programs are full of meets every pair of dtypes, the rest some.
OFTEN = ("add", "multiply", "divide", "floor_divide", "mod", "power", "maximum", "less", "bitwise_and")
MIXED = [
    (name, pair)
    for n, name in enumerate(BINARY)
    for pair in (PAIRS if name in OFTEN else [("float32", "float32"), *rotated(PAIRS[1:], n, 3)])
]


@pytest.mark.parametrize("name, pair", MIXED, ids=lambda p: p if isinstance(p, str) else "-".join(p))
def test_binary(name, pair):
    low = 0.3 if name in ("power", "float_power", "left_shift", "right_shift", "logaddexp2") else -3.0
    x, y = draw((2, 3), pair[0], low), draw((3,), pair[1], low, seed=1)
    if name in ("floor_divide", "mod", "remainder", "fmod", "divide", "true_divide") and y.dtype.kind in "biu":
        y = np.where(y == 0, 2, y).astype(y.dtype)
    if refuses(getattr(jnp, name), x, y):
        return
    if name.startswith("logaddexp") and "complex64" in pair:
        return
    if name == "nextafter" and "float16" in pair:
        return
    compare(lambda m, x, y: getattr(m.np, name)(x, y), x, y)


@pytest.mark.parametrize("name", ("add", "multiply", "subtract", "divide", "power", "maximum", "greater", "where"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_beside_an_array(name, dtype):
    x = draw((3,), dtype, 0.5)
    numbers = (2, 1.5, np.float64(2.5), True, 1 + 1j, np.float32(2.5), np.int8(2))
    for number in numbers if name == "add" else rotated(numbers, len(name) + DTYPES.index(dtype), 3):
        if name == "where":
            compare(lambda m, x, n=number: m.np.where(x > 1 if x.dtype.kind != "c" else x == 1, x, n), x)
            continue
        function = lambda m, x, n=number: (getattr(m.np, name)(x, n), getattr(m.np, name)(n, x))
        if refuses(lambda x: function(type("J", (), {"np": jnp}), x), jnp.asarray(x)):  # noqa: B023
            continue
        compare(function, x, weak=name != "power")


REDUCTIONS = [
    "sum",
    "prod",
    "mean",
    "var",
    "std",
    "max",
    "min",
    "amax",
    "amin",
    "any",
    "all",
    "ptp",
    "count_nonzero",
    "nansum",
    "nanprod",
    "nanmean",
    "nanvar",
    "nanstd",
    "nanmax",
    "nanmin",
    "median",
    "nanmedian",
]


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    forms = ({}, {"axis": 1}, {"axis": -1, "keepdims": True}, {"axis": (0, 2)})
    for n, dtype in enumerate(("float32", "bfloat16", "int32", "int8", "uint8", "bool")):
        x = draw((2, 3, 4), dtype)
        for options in forms if dtype == "float32" else rotated(forms, n, 1):
            if not refuses(lambda x: getattr(jnp, name)(x, **options), jnp.asarray(x)):  # noqa: B023
                compare(lambda m, x, o=options: getattr(m.np, name)(x, **o), x)
    if name.startswith("nan") and name != "nan_to_num":
        x = draw((3, 4))
        x[0, 1] = x[2, :] = np.nan
        compare(lambda m, x: getattr(m.np, name)(x, axis=1), x)
        compare(lambda m, x: getattr(m.np, name)(x), x)


@pytest.mark.parametrize("name", ("sum", "prod", "mean", "var", "std"))
def test_reductions_with_dtype_where_and_initial(name):
    x, mask = draw((3, 4)), draw((3, 4), "bool")
    compare(lambda m, x: getattr(m.np, name)(x, dtype="float16"), x)
    compare(lambda m, x, w: getattr(m.np, name)(x, axis=1, where=w), x, mask)
    if name in ("sum", "prod"):
        compare(lambda m, x: getattr(m.np, name)(x, initial=2.0), x)
    if name in ("var", "std"):
        compare(lambda m, x: getattr(m.np, name)(x, axis=0, ddof=1), x)


@pytest.mark.parametrize("name", ("max", "min"))
def test_extremes_with_initial_and_where(name):
    x, mask = draw((3, 4)), draw((3, 4), "bool")
    compare(lambda m, x: getattr(m.np, name)(x, axis=0, initial=1.0), x)
    compare(lambda m, x, w: getattr(m.np, name)(x, axis=0, initial=0.5, where=w), x, mask)
    with_nan = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    compare(lambda m, x: getattr(m.np, name)(x, axis=1), with_nan)


@pytest.mark.parametrize("name", ("argmax", "argmin", "nanargmax", "nanargmin"))
def test_positions_of_extremes(name):
    for dtype in ("float32", "int32", "bool"):
        x = draw((3, 4), dtype)
        for options in ({}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"keepdims": True}):
            compare(lambda m, x, o=options: getattr(m.np, name)(x, **o), x)


@pytest.mark.parametrize("name", ("cumsum", "cumprod"))
def test_running_reductions(name):
    for dtype in ("float32", "int32", "int8", "bool"):
        x = draw((3, 4), dtype)
        for options in ({}, {"axis": 0}, {"axis": -1}, {"axis": 1, "dtype": "float32"}):
            compare(lambda m, x, o=options: getattr(m.np, name)(x, **o), x)


X = draw((2, 3, 4))
V = draw((5,))
I = draw((3, 4), "int32")  # noqa: E741
SQUARE = draw((3, 3))

CASES = {
    # creation
    "array of lists": lambda m: m.np.array([[1, 2], [3, 4]]),
    "array of floats": lambda m: m.np.array([1.5, 2]),
    "array ndmin": lambda m: m.np.array(3.0, ndmin=2),
    "array of arrays": lambda m: m.np.array([m.np.arange(3), m.np.ones(3)]),
    "array dtype": lambda m: m.np.array([1, 2], dtype="bfloat16"),
    "asarray of a number": lambda m: m.np.asarray(3),
    "zeros": lambda m: m.np.zeros((2, 3)),
    "zeros int": lambda m: m.np.zeros(4, "int8"),
    "ones": lambda m: m.np.ones((2, 3), bool),
    "full": lambda m: m.np.full((2, 2), 7),
    "full float": lambda m: m.np.full((2, 2), 7.5, "float16"),
    "full of an array": lambda m: m.np.full((2, 3), m.np.arange(3)),
    "zeros_like": lambda m: m.np.zeros_like(m.np.ones((2, 2), "int8")),
    "ones_like of a number": lambda m: m.np.ones_like(3),
    "full_like": lambda m: m.np.full_like(m.np.ones((2, 2), "int8"), 2.5),
    "full_like shape": lambda m: m.np.full_like(m.np.ones((2, 2)), 2, shape=(3,), dtype="int32"),
    "arange": lambda m: m.np.arange(5),
    "arange float": lambda m: m.np.arange(5.0),
    "arange bounds": lambda m: m.np.arange(2, 9, 3),
    "arange down": lambda m: m.np.arange(9, 2, -2),
    "arange fractions": lambda m: m.np.arange(0, 1, 0.1),
    "arange dtype": lambda m: m.np.arange(3, dtype="bfloat16"),
    "arange empty": lambda m: m.np.arange(5, 2),
    "linspace": lambda m: m.np.linspace(0, 1, 7),
    "linspace open": lambda m: m.np.linspace(-2.0, 3.0, 5, endpoint=False),
    "linspace int": lambda m: m.np.linspace(0, 10, 5, dtype="int32"),
    "linspace step": lambda m: m.np.linspace(0, 10, 6, retstep=True),
    "linspace arrays": lambda m: m.np.linspace(m.np.zeros(2), m.np.array([1.0, 4.0]), 4, axis=1),
    "linspace one": lambda m: m.np.linspace(3, 4, 1),
    "logspace": lambda m: m.np.logspace(0, 2, 4),
    "geomspace": lambda m: m.np.geomspace(1.0, 16.0, 5),
    "eye": lambda m: m.np.eye(3),
    "eye wide": lambda m: m.np.eye(3, 5, 1, dtype="int32"),
    "identity": lambda m: m.np.identity(2),
    "tri": lambda m: m.np.tri(3, 4, 1),
    "tril": lambda m: m.np.tril(X, -1),
    "triu": lambda m: m.np.triu(X, 1),
    "diag of a vector": lambda m: m.np.diag(V, 1),
    "diag down": lambda m: m.np.diag(V, -2),
    "diag of a matrix": lambda m: m.np.diag(I, 1),
    "diagonal": lambda m: m.np.diagonal(X, 1, 1, 2),
    "diagonal down": lambda m: m.np.diagonal(X, -1, 0, 2),
    "diagonal none": lambda m: m.np.diagonal(I, 7),
    "diagflat": lambda m: m.np.diagflat(SQUARE),
    "meshgrid": lambda m: m.np.meshgrid(m.np.arange(2), m.np.arange(3)),
    "meshgrid ij": lambda m: m.np.meshgrid(m.np.arange(2), m.np.arange(3), m.np.arange(2), indexing="ij"),
    "meshgrid sparse": lambda m: m.np.meshgrid(m.np.arange(2), m.np.arange(3), sparse=True),
    "indices": lambda m: m.np.indices((2, 3)),
    "indices sparse": lambda m: m.np.indices((2, 3), sparse=True),
    "tril_indices": lambda m: m.np.tril_indices(3),
    "triu_indices": lambda m: m.np.triu_indices(3, 1),
    "vander": lambda m: m.np.vander(m.np.array([1, 2, 3])),
    "fromfunction": lambda m: m.np.fromfunction(lambda i, j: i + j, (2, 3), dtype=int),
    # shapes
    "reshape": lambda m: m.np.reshape(m.np.asarray(X), (4, -1)),
    "reshape F": lambda m: m.np.reshape(m.np.asarray(I), (6, 2), order="F"),
    "ravel": lambda m: m.np.ravel(m.np.asarray(X)),
    "transpose": lambda m: m.np.transpose(m.np.asarray(X)),
    "transpose axes": lambda m: m.np.transpose(m.np.asarray(X), (1, -1, 0)),
    "matrix_transpose": lambda m: m.np.matrix_transpose(m.np.asarray(X)),
    "moveaxis": lambda m: m.np.moveaxis(m.np.asarray(X), 0, -1),
    "moveaxis several": lambda m: m.np.moveaxis(m.np.asarray(X), (0, 1), (-1, 0)),
    "swapaxes": lambda m: m.np.swapaxes(m.np.asarray(X), 0, 2),
    "rollaxis": lambda m: m.np.rollaxis(m.np.asarray(X), 2),
    "expand_dims": lambda m: m.np.expand_dims(m.np.asarray(X), (0, -1)),
    "squeeze": lambda m: m.np.squeeze(m.np.ones((1, 3, 1))),
    "squeeze axis": lambda m: m.np.squeeze(m.np.ones((1, 3, 1)), -1),
    "broadcast_to": lambda m: m.np.broadcast_to(m.np.arange(3), (2, 3)),
    "broadcast_arrays": lambda m: m.np.broadcast_arrays(m.np.arange(3), m.np.ones((2, 1))),
    "concatenate": lambda m: m.np.concatenate([m.np.arange(3), m.np.ones(2)]),
    "concatenate axis": lambda m: m.np.concatenate([m.np.asarray(X), m.np.asarray(X)], -1),
    "concatenate flat": lambda m: m.np.concatenate([m.np.asarray(I), m.np.arange(2)], None),
    "stack": lambda m: m.np.stack([m.np.arange(3), m.np.ones(3)], -1),
    "vstack": lambda m: m.np.vstack([m.np.arange(3), m.np.ones((2, 3))]),
    "hstack": lambda m: m.np.hstack([m.np.ones((2, 1)), m.np.ones((2, 3))]),
    "dstack": lambda m: m.np.dstack([m.np.arange(3), m.np.arange(3)]),
    "column_stack": lambda m: m.np.column_stack([m.np.arange(3), m.np.arange(3)]),
    "append": lambda m: m.np.append(m.np.arange(3), m.np.ones((2, 2))),
    "split": lambda m: m.np.split(m.np.arange(6), 3),
    "split places": lambda m: m.np.split(m.np.arange(6), [2, 3], 0),
    "array_split": lambda m: m.np.array_split(m.np.arange(7), 3),
    "hsplit": lambda m: m.np.hsplit(m.np.asarray(X), 3),
    "unstack": lambda m: m.np.unstack(m.np.asarray(X), axis=1),
    "tile": lambda m: m.np.tile(m.np.asarray(I), (2, 3)),
    "tile more": lambda m: m.np.tile(m.np.arange(2), (2, 1, 3)),
    "repeat": lambda m: m.np.repeat(m.np.arange(3), 2),
    "repeat axis": lambda m: m.np.repeat(m.np.asarray(X), 2, 1),
    "repeat each": lambda m: m.np.repeat(m.np.arange(3), np.array([2, 0, 1])),
    "repeat length": lambda m: m.np.repeat(m.np.arange(3), m.np.array([2, 0, 1]), total_repeat_length=5),
    "roll": lambda m: m.np.roll(m.np.asarray(I), 2),
    "roll axis": lambda m: m.np.roll(m.np.asarray(I), -1, 1),
    "roll several": lambda m: m.np.roll(m.np.asarray(X), (1, 2), (0, 2)),
    "roll by an array": lambda m: m.np.roll(m.np.arange(5), m.np.asarray(2)),
    "flip": lambda m: m.np.flip(m.np.asarray(X), (0, 2)),
    "fliplr": lambda m: m.np.fliplr(m.np.asarray(I)),
    "rot90": lambda m: [m.np.rot90(m.np.asarray(I), k) for k in range(-1, 4)],
    "pad": lambda m: m.np.pad(m.np.asarray(I), ((1, 2), (0, 1))),
    "pad value": lambda m: m.np.pad(m.np.arange(3), 2, constant_values=7),
    "pad values": lambda m: m.np.pad(m.np.asarray(I), 1, constant_values=((1, 2), (3, 4))),
    "pad edge": lambda m: m.np.pad(m.np.asarray(I), ((1, 2), (2, 0)), mode="edge"),
    "pad reflect": lambda m: m.np.pad(m.np.asarray(I), ((1, 2), (2, 0)), mode="reflect"),
    "pad reflect far": lambda m: m.np.pad(m.np.arange(3), (5, 4), mode="reflect"),
    "pad symmetric": lambda m: m.np.pad(m.np.asarray(I), ((1, 2), (2, 5)), mode="symmetric"),
    "pad wrap": lambda m: m.np.pad(m.np.asarray(I), ((1, 2), (5, 2)), mode="wrap"),
    "atleast_1d": lambda m: m.np.atleast_1d(m.np.asarray(2.0), m.np.arange(2)),
    "atleast_2d": lambda m: m.np.atleast_2d(m.np.arange(2)),
    "atleast_3d": lambda m: m.np.atleast_3d(m.np.arange(2), m.np.ones((2, 3))),
    "resize": lambda m: m.np.resize(m.np.arange(3), (2, 4)),
    "diff": lambda m: m.np.diff(m.np.asarray(X), 2, 1),
    # choosing
    "where": lambda m: m.np.where(m.np.asarray(I) > 0, m.np.asarray(I), 0.5),
    "where places": lambda m: m.np.where(m.np.asarray(I)),
    "where numbers": lambda m: m.np.where(m.np.asarray(I) > 0, 1, 2),
    "select": lambda m: m.np.select([m.np.asarray(I) > 1, m.np.asarray(I) < 0], [m.np.asarray(I), 7], 9),
    "clip": lambda m: m.np.clip(m.np.asarray(X), -1, 1.5),
    "clip one side": lambda m: m.np.clip(m.np.asarray(I), max=1),
    "round": lambda m: m.np.round(m.np.asarray(X), 1),
    "round tens": lambda m: m.np.round(m.np.asarray([123.0, 167.0]), -1),
    "modf": lambda m: m.np.modf(m.np.asarray(X)),
    "divmod": lambda m: m.np.divmod(m.np.asarray(X), 0.7),
    "divmod int": lambda m: m.np.divmod(m.np.asarray(I), -2),
    "nan_to_num": lambda m: m.np.nan_to_num(m.np.array([np.nan, np.inf, -np.inf, 1.0]), nan=7.0),
    "ldexp": lambda m: m.np.ldexp(m.np.asarray(V), m.np.arange(5)),
    "choose": lambda m: m.np.choose(m.np.array([0, 1, 1]), [m.np.arange(3), m.np.arange(3) * 10], mode="clip"),
    "interp": lambda m: m.np.interp(m.np.linspace(-1, 6, 9), m.np.array([0.0, 2.0, 5.0]), m.np.array([1.0, 3.0, -1.0])),
    "average": lambda m: m.np.average(m.np.asarray(X), 1),
    "average weights": lambda m: m.np.average(m.np.asarray(X), 1, weights=m.np.arange(1.0, 4.0)),
    "average returned": lambda m: m.np.average(m.np.asarray(V), weights=m.np.ones(5), returned=True),
    # products
    "dot": lambda m: m.np.dot(m.np.asarray(X), m.np.ones((4, 2))),
    "dot scalar": lambda m: m.np.dot(2, m.np.asarray(V)),
    "dot deep": lambda m: m.np.dot(m.np.asarray(X), m.np.ones((5, 4, 2))),
    "vdot": lambda m: m.np.vdot(m.np.array([1 + 2j, 3j]), m.np.array([2j, 1.0])),
    "vecdot": lambda m: m.np.vecdot(m.np.asarray(X), m.np.ones(4)),
    "inner": lambda m: m.np.inner(m.np.asarray(X), m.np.ones((2, 4))),
    "outer": lambda m: m.np.outer(m.np.asarray(V), m.np.arange(3)),
    "tensordot": lambda m: m.np.tensordot(m.np.asarray(X), m.np.ones((3, 4, 5))),
    "tensordot axes": lambda m: m.np.tensordot(m.np.asarray(X), m.np.ones((4, 2)), ((0, 2), (1, 0))),
    "kron": lambda m: m.np.kron(m.np.arange(3), m.np.ones((2, 2))),
    "trace": lambda m: m.np.trace(m.np.asarray(X), 1, 1, 2),
    "cross": lambda m: m.np.cross(m.np.asarray(SQUARE), m.np.arange(3.0)),
    "cross along dims": lambda m: m.np.cross(m.np.asarray(SQUARE), m.np.ones((3, 3)), axisa=0, axisc=0),
    "matmul preferred": lambda m: m.np.matmul(
        m.np.ones((2, 3), "bfloat16"), m.np.ones((3, 2), "bfloat16"), preferred_element_type="float32"
    ),
    # order
    "sort": lambda m: m.np.sort(m.np.asarray(X), 1),
    "sort flat": lambda m: m.np.sort(m.np.asarray(I), None),
    "sort descending": lambda m: m.np.sort(m.np.asarray(X), descending=True),
    "sort nan": lambda m: m.np.sort(m.np.array([2.0, np.nan, -1.0])),
    "argsort": lambda m: m.np.argsort(m.np.asarray(I), -1),
    "argsort descending": lambda m: m.np.argsort(m.np.asarray(I), -1, descending=True),
    "lexsort": lambda m: m.np.lexsort((m.np.array([3, 1, 2, 0]), m.np.array([1, 0, 1, 0]))),
    "searchsorted": lambda m: m.np.searchsorted(m.np.array([1, 2, 2, 5]), m.np.array([[0, 2], [5, 9]])),
    "searchsorted right": lambda m: m.np.searchsorted(m.np.array([1.0, 2, 2, 5]), m.np.array([2, 5.0]), "right"),
    "searchsorted nan": lambda m: m.np.searchsorted(m.np.array([1.0, 2, np.nan]), m.np.array([np.nan, 3.0])),
    "digitize": lambda m: m.np.digitize(m.np.array([0.2, 6.4, 3.0]), m.np.array([0.0, 1.0, 2.5, 4.0])),
    "nonzero": lambda m: m.np.nonzero(m.np.asarray(I)),
    "nonzero size": lambda m: m.np.nonzero(m.np.asarray(I), size=20, fill_value=-1),
    "nonzero short": lambda m: m.np.nonzero(m.np.asarray(I), size=2),
    "argwhere": lambda m: m.np.argwhere(m.np.asarray(I), size=14, fill_value=0),
    "flatnonzero": lambda m: m.np.flatnonzero(m.np.asarray(I), size=7),
    "unique": lambda m: m.np.unique(m.np.asarray(I)),
    "unique all": lambda m: m.np.unique(m.np.asarray(I), True, True, True),
    "unique size": lambda m: m.np.unique(m.np.asarray(I), True, True, True, size=8, fill_value=-9),
    "unique size default": lambda m: m.np.unique(m.np.asarray(I), size=7),
    "unique short": lambda m: m.np.unique(m.np.asarray(I), return_counts=True, size=2),
    "bincount": lambda m: m.np.bincount(m.np.array([0, 1, 1, 3])),
    "bincount weights": lambda m: m.np.bincount(m.np.array([0, 1, 1, 3]), m.np.arange(4.0), length=6),
    "take": lambda m: m.np.take(m.np.asarray(X), m.np.array([0, 2, -1]), 1),
    "take flat": lambda m: m.np.take(m.np.asarray(X), m.np.array([[0, 23], [40, 2]])),
    "take clip": lambda m: m.np.take(m.np.asarray(V), m.np.array([7, -9, 1]), mode="clip"),
    "take wrap": lambda m: m.np.take(m.np.asarray(V), m.np.array([7, -9, 1]), mode="wrap"),
    "take fill": lambda m: m.np.take(m.np.asarray(V), m.np.array([7, 1]), mode="fill", fill_value=3.0),
    "take int fill": lambda m: m.np.take(m.np.arange(3), m.np.array([7, 1])),
    "take_along_axis": lambda m: m.np.take_along_axis(m.np.asarray(X), m.np.argsort(m.np.asarray(X), 1), 1),
    "take_along_axis broadcast": lambda m: m.np.take_along_axis(m.np.asarray(X), m.np.array([[[2], [0]]]), 1),
    "take_along_axis outside": lambda m: m.np.take_along_axis(m.np.asarray(I), m.np.array([[9, -1]] * 3), 1),
    "put_along_axis": lambda m: m.np.put_along_axis(
        m.np.asarray(I), m.np.array([[1], [0], [2]]), m.np.array([[9], [8], [7]]), 1, inplace=False
    ),
    "isin": lambda m: m.np.isin(m.np.asarray(I), m.np.array([0, 2])),
    "allclose": lambda m: m.np.allclose(m.np.asarray(V), m.np.asarray(V) + 1e-9),
    "array_equal": lambda m: m.np.array_equal(m.np.arange(3), m.np.arange(3)),
    "array_equal shapes": lambda m: m.np.array_equal(m.np.arange(3), m.np.arange(4)),
    "array_equiv": lambda m: m.np.array_equiv(m.np.ones(3), m.np.ones((2, 3))),
    "quantile": lambda m: m.np.quantile(m.np.asarray(X), 0.3, axis=1),
    "quantile several": lambda m: m.np.quantile(m.np.asarray(X), m.np.array([0.1, 0.5, 0.99]), axis=(0, 2)),
    "quantile keepdims": lambda m: m.np.quantile(m.np.asarray(X), m.np.array([0.1, 0.5]), axis=1, keepdims=True),
    "quantile methods": lambda m: [
        m.np.quantile(m.np.asarray(V), 0.3, method=method) for method in ("lower", "higher", "midpoint", "nearest")
    ],
    "percentile": lambda m: m.np.percentile(m.np.asarray(V), 40),
    "nanquantile": lambda m: m.np.nanquantile(m.np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]]), 0.4, axis=1),
    "quantile nan": lambda m: m.np.quantile(m.np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]]), 0.4, axis=1),
    # dtypes
    "scalar types": lambda m: [m.np.float32(3), m.np.int8(2.7), m.np.bool_(2), m.np.bfloat16(1.01)],
    "astype": lambda m: [m.np.asarray(X).astype(d) for d in ("int32", "bool", "bfloat16", "float16", "complex64")],
    "bitwise": lambda m: ~m.np.asarray(I) & 3 | m.np.asarray(I) ^ 1,
    "bitwise_count": lambda m: m.np.bitwise_count(m.np.array([7, -1, 8])),
    "iscomplexobj": lambda m: m.np.iscomplexobj(m.np.ones(2, "complex64")),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    compare(CASES[name], weak=name not in ("where numbers", "full_like shape"))


TRACED = {
    "matmul": (lambda m, x, y: x @ y, (X, draw((4, 5)))),
    "matmul stack": (lambda m, x, y: x @ y, (draw((5, 1, 2, 3)), draw((4, 3, 2)))),
    "matmul left matrix": (lambda m, x, y: x @ y, (draw((2, 3)), draw((4, 3, 2)))),
    "matmul vectors": (lambda m, x, y: (x @ y, x @ m.np.outer(x, y), m.np.outer(x, y) @ y), (draw((3,)), draw((3,)))),
    "matmul int": (lambda m, x, y: x @ y, (I, I.T)),
    "matmul bool": (lambda m, x, y: x @ y, (I > 0, I.T > 0)),
    "matmul mixed": (lambda m, x, y: x @ y, (I, draw((4, 2), "bfloat16"))),
    "matmul broadcast": (lambda m, x, y: x @ y, (draw((1, 3, 2, 4)), draw((5, 3, 4, 2)))),
    "matmul vector stack": (lambda m, x, y: x @ y, (draw((4,)), draw((5, 3, 4, 2)))),
    "sort of a tracer": (lambda m, x: m.np.sort(x, 1), (X,)),
    "unique of a tracer": (lambda m, x: m.np.unique(x, size=8, return_index=True, return_inverse=True), (I,)),
    "nonzero of a tracer": (lambda m, x: m.np.nonzero(x, size=9), (I,)),
    "repeat of a tracer": (lambda m, x, r: m.np.repeat(x, r, total_repeat_length=9), (V, np.array([2, 1, 0, 3, 1]))),
    "roll of a tracer": (lambda m, x, n: m.np.roll(x, n, 0), (I, np.asarray(2))),
    "bincount of a tracer": (lambda m, x: m.np.bincount(x, length=4), (np.array([1, 3, 9, -2]),)),
    "stack of numbers": (lambda m, x: m.np.stack([x[0], 2.0 * x[1], x.sum()]), (V,)),
    "list of tracers": (lambda m, x: m.np.array([[x[0], 2.0], [x[1], 3]]), (V,)),
    "quantile of a tracer": (lambda m, x, q: m.np.quantile(x, q, axis=1), (X, np.asarray(0.3, np.float32))),
    "linspace of tracers": (lambda m, a, b: m.np.linspace(a, b, 5), (np.float32(1.5) * np.ones(()), 4 * np.ones(()))),
    "where masks": (lambda m, x: m.np.where(x > 0, x, -x).sum(axis=-1), (X,)),
}


@pytest.mark.parametrize("name", TRACED)
def test_traced_case(name):
    function, arrays = TRACED[name]
    compare(function, *arrays)


def test_wide_types_are_kept_when_asked_for(x64):
    for dtype in ("float64", "int64", "uint32", "int8", "bool", "complex128"):
        x = draw((3,), dtype)
        compare(lambda m, x: [m.np.sum(x), m.np.mean(x), x + 1, x * 1.5, m.np.sqrt(x), m.np.arange(3) * x], x)


def test_dtype_questions_agree():
    names = ["bool_", "int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"]
    for a in names:
        ours, theirs = getattr(mnp, a), getattr(jnp, a)
        for b in names:
            assert mnp.promote_types(ours, getattr(mnp, b)) == jnp.promote_types(theirs, getattr(jnp, b))
            assert mnp.result_type(mnp.ones(2, ours), getattr(mnp, b)) == jnp.result_type(theirs, getattr(jnp, b))
        for kind in ("floating", "integer", "inexact", "number", "signedinteger", "unsignedinteger", "complexfloating"):
            assert mnp.issubdtype(ours, getattr(mnp, kind)) == jnp.issubdtype(theirs, getattr(jnp, kind)), (a, kind)
        assert mnp.zeros(2, ours).dtype == ours and ours == mnp.zeros(2, ours).dtype
        assert mnp.result_type(ours, 1.5) == jnp.result_type(theirs, 1.5)
    assert mnp.finfo("bfloat16").max == jnp.finfo("bfloat16").max
    assert mnp.iinfo("int8").min == -128
    assert mnp.issubdtype(mnp.float32, mnp.float32) and not mnp.issubdtype(mnp.float32, mnp.int32)


ERRORS = {
    "broadcasting": (lambda: mnp.ones((2, 3)) + mnp.ones(2), "x[:, None, :]|y[:, None]"),
    "reshape": (lambda: mnp.ones(6).reshape(4, 2), "6 elements"),
    "reshape twice unknown": (lambda: mnp.ones(6).reshape(-1, -1), "only one"),
    "axis": (lambda: mnp.sum(mnp.ones(3), axis=1), "axes are -1 to 0"),
    "axis twice": (lambda: mnp.sum(mnp.ones((3, 3)), axis=(0, 0)), "twice"),
    "matmul": (lambda: mnp.ones((2, 3)) @ mnp.ones((2, 3)), "transpose the left operand: x.T"),
    "matmul scalar": (lambda: mnp.ones((2, 3)) @ mnp.asarray(2.0), "x * y"),
    "concatenate": (lambda: mnp.concatenate([mnp.ones((2, 3)), mnp.ones((3, 2))]), "differ in that dim only"),
    "stack": (lambda: mnp.stack([mnp.ones(2), mnp.ones(3)]), "one shape"),
    "split": (lambda: mnp.split(mnp.ones(5), 2), "array_split"),
    "squeeze": (lambda: mnp.squeeze(mnp.ones((2, 1)), 0), "not 1"),
    "sharding": (lambda: mnp.zeros(3, device="x"), "give a sharding"),
    "max of nothing": (lambda: mnp.max(mnp.ones((0, 2)), 0), "initial"),
    "integer power": (lambda: mnp.arange(3) ** -1, "astype"),
    "broadcast_to": (lambda: mnp.broadcast_to(mnp.ones(3), (3, 2)), "from the right"),
    "strings": (lambda: mnp.array(["a"]), "array of numbers"),
    "transpose": (lambda: mnp.transpose(mnp.ones((2, 3)), (0, 0)), "once"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_why_and_what_to_do(name):
    function, words = ERRORS[name]
    with pytest.raises(MeshwrightError) as caught:
        function()
    error = caught.value
    said = f"{error.what} {error.why} {error.fix}"  # its line has the words that are looked for
    assert any(word in said for word in words.split("|")), said
    assert error.why and error.fix and "test_numpy_against_jax.py" in error.where


def test_a_wrong_dtype_is_a_shape_error():
    with pytest.raises(ShapeError):
        mnp.invert(mnp.ones(3))


def test_what_needs_contents_says_so_of_a_tracer():
    for function, words in (
        (lambda x: mnp.nonzero(x), "size="),
        (lambda x: mnp.unique(x), "size="),
        (lambda x: mnp.zeros(x[0]), "static_argnums"),
        (lambda x: mnp.arange(x[0]), "static_argnums"),
        (lambda x: np.asarray(x), "meshwright.numpy"),
        (lambda x: mnp.bincount(x), "length="),
    ):
        with pytest.raises(TracerError) as caught:
            run_traced(function, mnp.arange(3))
        assert words in caught.value.fix, str(caught.value)


def test_every_public_function_has_a_docstring():
    from meshwright import lax, nn

    for module in (mnp, lax, nn):
        for name in module.__all__:
            member = getattr(module, name)
            if callable(member) and not isinstance(member, type(mnp.float32)):
                assert member.__doc__, name
