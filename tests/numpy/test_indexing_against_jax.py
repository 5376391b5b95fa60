"""``x[…]`` and ``x.at[…]`` against JAX (and NumPy): basic, advanced, mixed, traced."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.trace import trace
from meshwright.core.types import tensor
from meshwright.errors import IndexingError, MeshwrightError, ShapeError, TracerError
from tests.numpy.against_jax import compare, draw, program_text, run_traced

pytestmark = pytest.mark.usefixtures("x32")

X = draw((4, 5, 6))
ROWS, COLUMNS = np.array([0, 3, -1]), np.array([[1], [3]])
MASK = draw((4, 5), "bool")
LONG = draw((6,), "bool", seed=3)

INDICES = {
    "int": 1,
    "negative": -2,
    "ints": (1, 2, 3),
    "slice": slice(1, 3),
    "open slice": (slice(None), slice(2, None)),
    "strided": slice(0, 4, 2),
    "strided far": (slice(1, None, 3), slice(None), slice(5, None, 4)),
    "reversed": slice(None, None, -1),
    "reversed strided": (slice(None), slice(4, 0, -2), slice(None, None, -3)),
    "empty": slice(3, 1),
    "empty reversed": slice(1, 3, -1),
    "out of range slice": slice(2, 99),
    "none": None,
    "none inside": (0, None, slice(1, 3), None),
    "ellipsis": ...,
    "ellipsis last": (..., 2),
    "ellipsis middle": (1, ..., slice(None, None, 2)),
    "ellipsis none": (..., None),
    "empty tuple": (),
    "array": ROWS,
    "array 2d": COLUMNS,
    "two arrays": (ROWS, np.array([1, 1, 2])),
    "broadcast arrays": (ROWS, COLUMNS),
    "array and slice": (ROWS, slice(1, 3)),
    "slice and array": (slice(1, 3), ROWS),
    "array last": (..., ROWS),
    "array int": (ROWS, 2),
    "int array": (1, ROWS),
    "int slice array": (1, slice(None), ROWS),
    "array slice array": (ROWS, slice(1, 4), ROWS),
    "array none array": (ROWS, None, ROWS),
    "none array": (None, ROWS, None),
    "slices around": (slice(1, None), ROWS, slice(None, None, -2)),
    "stride and array": (slice(None, None, 2), slice(None), COLUMNS),
    "three arrays": (ROWS, COLUMNS, np.array([0, 5, 2])),
    "empty array": np.zeros((0,), np.int32),
    "scalar array": np.array(2),
    "uint array": np.array([0, 2], np.uint8),
    "mask": MASK,
    "mask last": (..., LONG),
    "mask and int": (MASK, 2),
    "mask and array": (slice(None), slice(None), LONG),
    "int and mask": (1, ..., LONG),
    "whole mask": X > 0,
    "numpy int": np.int64(2),
    "array reversed slice": (ROWS, slice(None, None, -1), 2),
}


def places(key):
    """An index whose arrays are those of either library."""
    return lambda m: (
        tuple(m.np.asarray(k) if isinstance(k, np.ndarray) else k for k in key)
        if isinstance(key, tuple)
        else (m.np.asarray(key) if isinstance(key, np.ndarray) else key)
    )


@pytest.mark.parametrize("name", INDICES)
def test_reading(name):
    key = INDICES[name]
    expected = X[key]
    found = mnp.asarray(X)[key]
    assert found.shape == expected.shape and np.array_equal(np.asarray(found), expected)
    compare(lambda m, x: x[places(key)(m)], X)


WRITES = [name for name in INDICES if name not in ("empty array",)]


@pytest.mark.parametrize("name", WRITES)
def test_writing(name):
    key = INDICES[name]
    shape = X[key].shape
    new = draw(shape, seed=5)
    compare(lambda m, x: x.at[places(key)(m)].set(2.5), X)
    compare(lambda m, x, y: x.at[places(key)(m)].add(y), X, new)
    if name not in ("array", "array 2d", "broadcast arrays", "three arrays") or np.unique(ROWS % 4).size == 3:
        changed = X.copy()
        if np.unique(np.arange(X.size).reshape(X.shape)[key]).size == np.prod(shape, dtype=int):
            changed[key] = new
            found = mnp.asarray(X).at[key].set(new)
            assert np.array_equal(np.asarray(found), changed)


@pytest.mark.parametrize(
    "method", ("set", "add", "multiply", "mul", "divide", "power", "min", "max", "subtract", "apply")
)
@pytest.mark.parametrize("name", ("int", "slice", "array", "strided", "two arrays", "array slice array", "whole mask"))
def test_every_way_of_writing(method, name):
    key = INDICES[name]
    x = np.abs(X) + 0.5
    if method == "apply":
        if name in ("array", "two arrays", "array slice array", "whole mask"):
            return  # JAX applies the function once for each time an index occurs
        compare(lambda m, x: x.at[places(key)(m)].apply(m.np.sqrt), x)
        return
    if name != "array" or method != "set":
        compare(lambda m, x: getattr(x.at[places(key)(m)], method)(2.0), x)
    y = np.abs(draw(x[key].shape, seed=2)) + 0.5
    if name in ("int", "slice", "strided"):
        compare(lambda m, x, y: getattr(x.at[places(key)(m)], method)(y), x, y)


def test_writing_broadcasts_and_converts():
    compare(lambda m, x: x.at[1:3].set(m.np.arange(6.0)), X)
    compare(lambda m, x: x.at[:, 0].add(m.np.ones((4, 1), "bfloat16")), X)
    compare(lambda m: m.np.zeros((2, 3), "int32").at[0].set(m.np.arange(3)))
    compare(lambda m: m.np.zeros((3,), bool).at[1].set(True))
    compare(lambda m, x: x.at[None, 1].set(7.0), X)


def test_repeated_indices_all_count_in_add():
    compare(lambda m: m.np.zeros(3).at[m.np.array([0, 1, 1, 0, 0])].add(m.np.arange(5.0)))
    compare(lambda m: m.np.ones(3).at[m.np.array([0, 1, 1, 0, 0])].multiply(m.np.arange(1.0, 6.0)))
    compare(lambda m: m.np.ones(3).at[m.np.array([0, 1, 1, 0, 0])].max(m.np.arange(5.0)))


def test_positions_outside():
    far = np.array([7, -9, 2, -1])
    compare(lambda m, x, i: x[i], X, far)
    compare(lambda m, x, i: x.at[i].set(1.0), X, far)
    compare(lambda m, x, i: x.at[i].add(1.0, mode="drop"), X, far)
    compare(lambda m, x, i: x.at[:, i].add(1.0, mode="clip"), X, far)
    compare(lambda m, x, i: x.at[i].get(mode="fill"), X, far)
    compare(lambda m, x, i: x.at[i, :, i].get(mode="fill", fill_value=9.0), X, far)
    compare(lambda m, x, i: x.at[i].get(mode="clip"), X, far)
    compare(lambda m, x, i: x.at[2, i].get(mode="fill", fill_value=9), X.astype(np.int32), far)
    compare(lambda m, x: x.at[99].get(mode="fill", fill_value=0.0), X)


TRACED = {
    "scalar": lambda m, x, i, j, k: x[i],
    "scalar last": lambda m, x, i, j, k: x[..., i],
    "scalars": lambda m, x, i, j, k: x[i, j],
    "scalar and int": lambda m, x, i, j, k: x[i, 2],
    "scalar and slice": lambda m, x, i, j, k: x[1:3, i, ::-2],
    "scalar and none": lambda m, x, i, j, k: x[i, None, :, j],
    "array": lambda m, x, i, j, k: x[k],
    "array and scalar": lambda m, x, i, j, k: x[k, i],
    "array slice scalar": lambda m, x, i, j, k: x[k, 1:, i],
    "array and known array": lambda m, x, i, j, k: x[k, m.np.array([[1], [2]])],
    "computed": lambda m, x, i, j, k: x[k % 3, :, k + 1],
    "set scalar": lambda m, x, i, j, k: x.at[i].set(3.0),
    "set scalars": lambda m, x, i, j, k: x.at[i, :, j].set(m.np.arange(5.0)),
    "set slice": lambda m, x, i, j, k: x.at[1:3, i].add(1.0),
    "set strided": lambda m, x, i, j, k: x.at[::2, i, ::-3].add(m.np.ones((2, 2))),
    "set array": lambda m, x, i, j, k: x.at[k, :, i].add(2.0),
    "set array between": lambda m, x, i, j, k: x.at[::2, k, 1:4].add(m.np.ones((2, 3, 3))),
    "set array apart": lambda m, x, i, j, k: x.at[k, ::2, k].add(m.np.ones((3, 3))),
    "scalar outside": lambda m, x, i, j, k: x[i + 90],
    "set outside": lambda m, x, i, j, k: x.at[i + 90].set(0.0),
    "small integers": lambda m, x, i, j, k: x[i.astype("uint8"), j.astype("int8")],
}


@pytest.mark.parametrize("name", TRACED)
def test_traced_indices(name):
    for i, j in ((1, 3), (-1, -2)):
        compare(TRACED[name], X, np.asarray(i, np.int32), np.asarray(j, np.int32), np.array([0, 2, -1], np.int32))


def test_a_traced_mask_chooses_where_a_number_is_written():
    expected = np.where(X > 0, 7.0, X)
    same_ = run_traced(lambda x: x.at[x > 0].set(7.0), mnp.asarray(X))
    assert np.array_equal(np.asarray(same_), expected)
    rows = run_traced(lambda x: x.at[x[:, 0, 0] > 0].add(1.0), mnp.asarray(X))
    assert np.allclose(np.asarray(rows), X + (X[:, 0, 0] > 0)[:, None, None])


def test_lone_booleans_add_a_dim():
    x = mnp.arange(3)
    assert (
        x[True].shape == (1, 3) and x[False].shape == (0, 3) and x[None, True].shape == np.arange(3)[None, True].shape
    )
    assert np.array_equal(np.asarray(x[True]), np.arange(3)[True])


def test_lists_are_arrays():
    assert np.array_equal(np.asarray(mnp.asarray(X)[[0, 2]]), X[[0, 2]])
    assert np.array_equal(np.asarray(mnp.asarray(X)[:, [True, False, True, False, True]]), X[:, [0, 2, 4]])


def test_the_program_of_an_index_is_the_cheapest():
    x = tensor((4, 5), "float32")
    assert "slice a limits=(2, 5) starts=(1, 0) strides=(1, 1)" in program_text(lambda x: x[1], x)
    assert "gather" not in program_text(lambda x: x[::-1, 1:3, None], x)
    i = tensor((), "int32")
    assert "dynamic_slice" in program_text(lambda x, i: x[i], x, i)
    assert "dynamic_update_slice" in program_text(lambda x: x.at[1:3].set(0.0), x)
    assert program_text(lambda x: x[...], x) == program_text(lambda x: x, x)
    table = program_text(lambda x, i: x[i], x, tensor((2, 3), "int32"))
    assert "offset_dims=(2,)" in table and "slice_sizes=(1, 5)" in table


def test_iteration_and_length():
    compare(lambda m, x: [row.sum() for row in x], X)
    assert len(mnp.asarray(X)) == 4
    first, *rest = mnp.arange(3)
    assert float(first) == 0 and len(rest) == 2


ERRORS = {
    "too many": (lambda x: x[0, 0, 0, 0], IndexingError, "4 indices"),
    "outside": (lambda x: x[9], IndexingError, "-4 to 3"),
    "outside write": (lambda x: x.at[9].set(0.0), IndexingError, "-4 to 3"),
    "float": (lambda x: x[1.5], ShapeError, "integers"),
    "float array": (lambda x: x[np.ones(2)], ShapeError, "integers"),
    "string": (lambda x: x["a"], ShapeError, "integers"),
    "mask": (lambda x: x[np.ones(3, bool)], IndexingError, "sizes of the dims"),
    "two dots": (lambda x: x[..., ...], IndexingError, "keep one"),
    "arrays": (lambda x: x[np.arange(2), np.arange(3)], IndexingError, "rows[:, None]"),
    "values": (lambda x: x.at[0].set(np.ones(4)), ShapeError, "(5, 6)"),
    "in place": (lambda x: x.__setitem__(0, 1.0), ShapeError, ".at["),
    "mode": (lambda x: x.at[0].add(1.0, mode="nearest"), ShapeError, "drop"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    function, kind, words = ERRORS[name]
    with pytest.raises(kind) as caught:
        function(mnp.asarray(X))
    said = f"{caught.value.what} {caught.value.why} {caught.value.fix}"  # its line has the words that are looked for
    assert words in said and caught.value.why and caught.value.fix
    assert isinstance(caught.value, MeshwrightError)


def test_traced_slices_and_masks_say_what_to_do():
    with pytest.raises(TracerError) as caught:
        run_traced(lambda x, i: x[i : i + 2], mnp.asarray(X), mnp.asarray(1))
    assert "dynamic_slice_in_dim" in caught.value.fix
    with pytest.raises(TracerError) as caught:
        run_traced(lambda x: x[x > 0], mnp.asarray(X))
    assert "mnp.where" in caught.value.fix


def test_known_values_are_read_while_tracing():
    x = mnp.arange(5.0)

    def rows(x, n):
        return [x[: int(n)], x[n], x[: n + 1]]

    program, _ = trace(rows, [x.type, tensor((), "int32")], [x, mnp.asarray(2, "int32")])
    assert [t.shape for t in program.out_types] == [(2,), (), (3,)]


@pytest.mark.parametrize(
    "key", [(np.array([False, True, True]), slice(1, None)), np.array([0, 2, 2])], ids=["mask", "array"]
)
def test_a_function_applied_at_known_places_has_a_derivative(key):
    """JAX has none; the slope of x^(2^n), n how often the index names a place, is known."""
    x = np.array([[0.5, 1.5], [2.0, 3.0], [0.3, 0.7]], np.float32)
    times = np.zeros(x.shape, int)
    np.add.at(times, key, 1)
    found = mw.grad(lambda x: x.at[key].apply(mnp.square).sum())(mnp.asarray(x))
    assert np.allclose(found, 2**times * x ** (2**times - 1), rtol=1e-6)


@pytest.mark.parametrize("mode", [None, "fill", "drop", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("key", ["int", "scalar", "array", "window", "two"])
def test_positions_below_zero_may_be_outside(key: str, mode: str | None) -> None:
    below, places = np.array(-2), np.array([-1, 2, -7, 9])
    options = {"mode": mode, "wrap_negative_indices": False}
    keys = {
        "int": lambda i, js: -1,
        "scalar": lambda i, js: i,
        "array": lambda i, js: js,
        "window": lambda i, js: (slice(None), js, slice(1, 3)),
        "two": lambda i, js: (js, -3, js),
    }
    at = keys[key]
    compare(lambda m, x, i, js: x.at[at(i, js)].get(**options), X, below, places)
    compare(lambda m, x, i, js: x.at[at(i, js)].set(2.5, **options), X, below, places)
    compare(lambda m, x, i, js: x.at[at(i, js)].add(2.5, **options), X, below, places)
    compare(lambda m, x, i, js: x.at[at(i, js)].apply(lambda v: v * 2, **options), X, below, places)
