"""Gathers, scatters, slices and pads beyond their samples: any dimension numbers, repeated indices, ties, wide rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright.engine.namespace  # noqa: F401
from meshwright.core import dtypes
from meshwright.core.trace import to_array, trace
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError
from meshwright.ops import indexing
from meshwright.ops.index_windows import Windows
from meshwright.ops.shape import concatenate, iota, pad, reverse, slice_
from meshwright.transform.jvp import jvp_program, linearize_program
from meshwright.transform.transpose import transpose_program
from tests.ops.jax_counterparts import COUNTERPARTS

ROWS = Windows((1,), (0,), (), (), (0,))
ELEMENTS = Windows((), (0,), (), (), (0,))
SCATTERS = ("scatter_add", "scatter_set", "scatter_max", "scatter_min", "scatter_mul")


@pytest.fixture(autouse=True)
def _sixty_four_bits(x64: None) -> None:
    pass


def random_windows(rng: np.random.Generator) -> tuple[tuple[int, ...], Any, Windows, tuple[int, ...], tuple[int, ...]]:
    """The shape of an operand, indices, dimension numbers, and the sizes and shape of the windows."""
    rank = int(rng.integers(1, 5))
    shape = [int(n) for n in rng.integers(1, 6, rank)]
    if rng.random() < 0.3:
        shape[-1] = 40  # wide enough for whole rows to be combined at once
    batch = [int(n) for n in rng.integers(1, 5, int(rng.integers(0, 4)))]
    dims = [int(d) for d in rng.permutation(rank)]
    shared = int(rng.integers(0, min(len(batch), rank) + 1)) if rng.random() < 0.5 else 0
    operand_batch, others = sorted(dims[:shared]), dims[shared:]
    indices_batch = [int(d) for d in rng.permutation(len(batch))[:shared]]
    for d, b in zip(operand_batch, indices_batch, strict=True):
        batch[b] = shape[d]
    index_map = others[: int(rng.integers(0 if shared else 1, len(others) + 1))]
    dropped = sorted(d for d in others if rng.random() < 0.4)
    sizes = [1 if d in operand_batch or d in dropped else int(rng.integers(1, n + 1)) for d, n in enumerate(shape)]
    sizes = [n if rng.random() < 0.6 or n == 1 else shape[d] for d, n in enumerate(sizes)]
    kept = [d for d in range(rank) if d not in operand_batch and d not in dropped]
    window_dims = sorted(int(d) for d in rng.permutation(len(batch) + len(kept))[: len(kept)])
    inner, outer = iter([sizes[d] for d in kept]), iter(batch)
    windows = tuple(next(inner) if r in window_dims else next(outer) for r in range(len(batch) + len(kept)))
    numbers = Windows(*map(tuple, (window_dims, dropped, operand_batch, indices_batch, index_map)))
    dtype = [np.int32, np.int64, np.int8, np.uint8][int(rng.integers(4))]
    indices = rng.integers(0 if dtype is np.uint8 else -2, 6, (*batch, len(index_map))).astype(dtype)
    return tuple(shape), indices, numbers, tuple(sizes), windows


@pytest.mark.parametrize("seed", range(25))
def test_any_windows_are_read_and_written_as_jax_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, indices, numbers, sizes, windows = random_windows(rng)
    x, updates = rng.standard_normal(shape), rng.standard_normal(windows)
    for mode in ("clip", "fill", "zero"):
        params = numbers.gather(sizes, mode)
        found = indexing.gather(x, indices, **params)
        np.testing.assert_array_equal(found.data, COUNTERPARTS["gather"](x, indices, **params))
    if indices.shape[-1] == 0:
        return  # XLA then applies one update only
    for n, name in enumerate(SCATTERS):
        params = numbers.scatter(("clip", "drop")[(seed + n) % 2], unique=False)
        found = getattr(indexing, name)(x, indices, updates, **params)
        np.testing.assert_allclose(found.data, COUNTERPARTS[name](x, indices, updates, **params), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, dtypes.BFLOAT16, np.complex64])
def test_what_is_out_of_bounds_reads_nan(dtype: Any) -> None:
    x = np.arange(4).astype(dtype)
    found = indexing.gather(x, np.array([[1], [-1], [4]]), **ELEMENTS.gather((1,), "fill")).data
    assert found.dtype == x.dtype
    assert np.isnan(found).tolist() == [False, True, True]
    assert found[0] == x[1]


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("rows", ["spread", "same", "few"])
def test_wide_rows_meet_in_order(name: str, rows: str) -> None:
    rng = np.random.default_rng(7)
    where = {"spread": rng.integers(0, 50, 300), "same": rng.integers(0, 2, 300), "few": np.array([3, 3, 1])}[rows]
    x, updates = rng.uniform(0.9, 1.1, (50, 64)), rng.uniform(0.9, 1.1, (len(where), 64))
    combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "set": lambda old, new: new}
    expected = x.copy()
    for row, update in zip(where, updates, strict=True):
        expected[row] = combine[name.removeprefix("scatter_")](expected[row], update)
    found = getattr(indexing, name)(x, where[:, None], updates, **ROWS.scatter("drop", unique=False))
    np.testing.assert_array_equal(found.data, expected)


def scatter_derivatives(name: str, x: Any, where: Any, updates: Any) -> tuple[Any, Any]:
    """The derivatives of the sum of cubes of a scatter, by x and by updates."""
    op, params = getattr(indexing, name), ELEMENTS.scatter("drop", unique=False)
    types = [to_array(v).type for v in (x, updates)]
    program, _ = trace(lambda a, b: [op(a, np.asarray(where)[:, None], b, **params)], types)
    captured = [to_array(np.asarray(where)[:, None])]
    values = [*captured, to_array(x), to_array(updates)]
    outs, linear = linearize_program(program, values, [False, True, True])
    ct = to_array(3 * outs[0].data ** 2)
    known = [False] * len(linear.residuals) + [True, True]
    pulled = transpose_program(linear.program, known, [*linear.residuals, None, None], [ct])
    pushed = jvp_program(program, values, [None, to_array(np.ones_like(x)), to_array(np.ones_like(updates))])[1][0]
    by_x, by_updates = (v.data for v in pulled[len(linear.residuals) :])
    np.testing.assert_allclose(np.sum(ct.data * pushed.data), by_x.sum() + by_updates.sum())
    return by_x, by_updates


def slopes(name: str, x: Any, where: Any, updates: Any) -> tuple[Any, Any]:
    op, params = getattr(indexing, name), ELEMENTS.scatter("drop", unique=False)

    def value(x: Any, updates: Any) -> float:
        return float((op(x, np.asarray(where)[:, None], updates, **params).data ** 3).sum())

    step = 1e-5
    by_x = [value(x + step * e, updates) - value(x - step * e, updates) for e in np.eye(len(x))]
    by_updates = [value(x, updates + step * e) - value(x, updates - step * e) for e in np.eye(len(updates))]
    return np.array(by_x) / (2 * step), np.array(by_updates) / (2 * step)


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize(
    "updates", [[0.5, 2.0, -1.5, 0.7, 3.0], [0.0, 2.0, -1.5, 0.7, 3.0], [0.0, 2.0, 0.0, 0.7, 0.0]], ids=str
)
def test_repeated_indices_have_the_slope_of_the_value(name: str, updates: list[float]) -> None:
    x, where = np.array([1.0, 0.5, -2.0, 0.25]), [1, 1, 1, 2, 9]
    given = np.array(updates)
    for found, expected in zip(scatter_derivatives(name, x, where, given), slopes(name, x, where, given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_the_last_writer_has_the_whole_derivative() -> None:
    by_x, by_updates = scatter_derivatives("scatter_set", np.ones(3), [1, 1, 7], np.array([2.0, 3.0, 4.0]))
    assert by_x.tolist() == [3.0, 0.0, 3.0]
    assert by_updates.tolist() == [0.0, 27.0, 0.0]


@pytest.mark.parametrize("name", ["scatter_max", "scatter_min"])
def test_a_tie_is_shared_and_nan_is_left_alone(name: str) -> None:
    by_x, by_updates = scatter_derivatives(name, np.array([1.0, 1.0, 2.0]), [1, 1], np.array([1.0, 1.0]))
    assert by_x.tolist() == [3.0, 1.0, 12.0]
    assert by_updates.tolist() == [1.0, 1.0]
    by_x, _ = scatter_derivatives(name, np.array([1.0, np.nan]), [0], np.array([1.0]))
    assert by_x[0] == 1.5


def test_empty_arrays_pass() -> None:
    x = np.ones((0, 3), np.float32)
    none = np.zeros((0, 1), np.int32)
    assert indexing.gather(np.ones((2, 3)), none, **ROWS.gather((1, 3), "fill")).shape == (0, 3)
    for name in SCATTERS:
        op = getattr(indexing, name)
        assert op(x, none, x, **ROWS.scatter("clip", unique=False)).shape == (0, 3)
        some = np.zeros((2, 1), np.int32)
        assert op(x, some, np.ones((2, 3), np.float32), **ROWS.scatter("drop", unique=False)).shape == (0, 3)
    assert reverse(x, dims=(0, 1)).shape == (0, 3)
    assert slice_(np.ones((4, 3)), starts=(2, 0), limits=(2, 3), strides=(1, 1)).shape == (0, 3)
    assert concatenate(x, x, dim=0).shape == (0, 3)
    assert pad(x, np.float32(1), low=(2, 0), high=(0, 0), interior=(3, 0)).data.tolist() == [[1.0] * 3] * 2
    assert iota(dtype=dtypes.INT32, shape=(2, 0), dim=1).shape == (2, 0)
    assert indexing.dynamic_slice(x, np.int32(0), np.int32(5), sizes=(0, 2)).shape == (0, 2)


f32, i32 = (lambda *shape: TensorType(shape, dtypes.FLOAT32)), (lambda *shape: TensorType(shape, dtypes.INT32))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: indexing.gather.type(f32(5, 4), f32(3, 1), **ROWS.gather((1, 4), "clip")), "indices are integers"),
        (lambda: indexing.gather.type(f32(5, 4), i32(3, 1), **ROWS.gather((1, 5), "clip")), "do not fit into (5, 4)"),
        (lambda: indexing.gather.type(f32(5, 4), i32(3, 1), **ROWS.gather((1, 4), "wrap")), "there is no mode 'wrap'"),
        (lambda: indexing.gather.type(f32(5, 4), i32(3, 2), **ROWS.gather((1, 4), "clip")), "2 components"),
        (lambda: indexing.gather.type(f32(5, 4), i32(3, 1), **ROWS.gather((2, 4), "clip")), "more than one element"),
        (
            lambda: indexing.scatter_add.type(f32(5, 4), i32(3, 1), f32(2, 4), **ROWS.scatter("drop", False)),
            "(3,) index vectors and (2,) windows",
        ),
        (
            lambda: indexing.scatter_add.type(f32(5, 4), i32(3, 1), i32(3, 4), **ROWS.scatter("drop", False)),
            "one dtype",
        ),
        (lambda: indexing.dynamic_slice.type(f32(5, 4), i32(), sizes=(1, 1)), "begins at 2 integer scalars"),
        (lambda: indexing.dynamic_slice.type(f32(5), i32(), sizes=(6,)), "a slice of (6,) does not fit"),
        (lambda: indexing.dynamic_update_slice.type(f32(5), f32(6), i32()), "does not fit"),
        (lambda: slice_.type(f32(5), starts=(1,), limits=(6,), strides=(1,)), "1:6:1 is not within"),
        (lambda: pad.type(f32(5), f32(), low=(-3,), high=(-3,), interior=(0,)), "cut off more than there is"),
        (lambda: concatenate.type(f32(5, 2), f32(5, 3), dim=0), "differ in another dim than 0"),
        (lambda: reverse.type(f32(5), dims=(1,)), "not distinct dims"),
        (lambda: iota.type(dtype=dtypes.BOOL, shape=(3,), dim=0), "no iota of bool"),
    ],
)
def test_operands_that_do_not_fit_are_refused(call: Any, why: str) -> None:
    with pytest.raises(ShapeError) as error:
        call()
    assert why in error.value.why
    assert error.value.fix
