"""Work in parts: the same numbers, whoever asks; the first error is raised; BLAS has its threads back afterwards."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

from meshwright.engine import blas, threads
from meshwright.engine.chunks import reduce_from_nothing, sum_rows


@pytest.fixture(autouse=True)
def several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "cpus", lambda: 3)
    monkeypatch.setattr(blas, "PER_THREAD_MACS", 1 << 8)
    monkeypatch.setattr(blas, "ONE_THREAD_MACS", 1 << 4)


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int32, np.float16])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((64, 32), (32, 48)),
        ((33, 7), (7, 129)),
        ((129, 7), (7, 33)),
        ((6, 40, 30), (6, 30, 50)),
        ((4, 40, 30), (4, 30, 50)),
        ((2, 3, 20, 30), (2, 3, 30, 20)),
        ((2, 1, 20, 30), (1, 3, 30, 20)),
        ((64, 30), (5, 30, 20)),
        ((1, 64), (64, 200)),
        ((200, 64), (64, 1)),
        ((64,), (64, 200)),
        ((0, 64), (64, 200)),
        ((64, 0), (0, 200)),
    ],
)
def test_a_matmul_in_parts_is_that_of_numpy(x: Any, y: Any, dtype: Any) -> None:
    one, other = (10 * draw(*x)).astype(dtype), (10 * draw(*y)).astype(dtype)
    found = blas.matmul(one, other)
    expected = np.matmul(one, other)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype != np.float16 else 1e-2, atol=1e-3)


@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True)])
def test_transposed_operands(turned: tuple[bool, bool]) -> None:
    x, y = draw(90, 100), draw(100, 80)
    x, y = (np.asfortranarray(a) if t else a for a, t in zip((x, y), turned, strict=True))
    np.testing.assert_allclose(blas.matmul(x, y), x @ y, rtol=1e-5, atol=1e-5)


def test_blas_has_its_threads_back() -> None:
    known = blas.blas_threads()
    if known is None:
        pytest.skip("NumPy has another BLAS")
    before = known.get()
    x = draw(64, 64)
    calls = [threading.Thread(target=lambda: [blas.matmul(x, x) for _ in range(50)]) for _ in range(4)]
    for one in calls:
        one.start()
    for one in calls:
        one.join()
    with blas.one_blas_thread() as had, blas.one_blas_thread():
        assert known.get() == 1 and had == before
    assert known.get() == before


def test_the_first_error_is_raised_when_all_have_ended() -> None:
    done = []

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        threads.run_all([lambda: done.append(1), fail, lambda: done.append(2)])
    with pytest.raises(ValueError, match="no"):
        threads.run_all([fail, lambda: done.append(3)])
    assert sorted(done) == [1, 2, 3]


def test_parts_warn_where_the_whole_does() -> None:
    x = np.full((64, 64), np.inf, np.float32)
    x[:, ::2] = -np.inf
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        blas.matmul(x, x)
    with np.errstate(all="ignore"):
        assert np.isnan(blas.matmul(x, x)).all()


def test_parts_cover_everything_once() -> None:
    for size in (0, 1, 5, 16, 17, 100):
        for parts in (0, 1, 3, 7):
            for unit in (1, 4, 16):
                seen: list[int] = []
                threads.in_parts(lambda part, size=size, seen=seen: seen.extend(range(size)[part]), size, parts, unit)  # type: ignore[misc]
                assert sorted(seen) == list(range(size))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    threads.run_all([lambda: None, lambda: None])
    assert threads._pool.executor is not None
    process = multiprocessing.get_context("fork").Process(
        target=lambda: threads.run_all([lambda: None, lambda: None, lambda: None])
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("bare", [False, True])
def test_a_sum_of_rows_by_blas(bare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.engine.chunks._BLOCK", 1 << 10)
    monkeypatch.setattr("meshwright.engine.chunks._SUMMED_BYTES", 1 << 12)
    x = draw(3, 5000)
    x[:, ::7] = -0.0
    x[1, ::14] = 0.0
    x[:, 3::11] = np.array([[-1.0], [0.5], [0.5]])
    found = sum_rows(np.add, bare)(x, (0,), x.dtype)
    expected = reduce_from_nothing(x, (0,), x.dtype) if bare else np.add.reduce(x, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    if bare:
        np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[found == 0]))
