"""Calls after one another on XLA's devices: random functions of arrays that other functions left where they are, in
other layouts, of mixed dtypes, with dims that do not divide, parts of axes and donated arguments; against plain NumPy,
and against engine ``numpy``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P

Generator = np.random.Generator
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(name) for name in ("float32", "int8", "bool", "int32", "complex64")] + [BF16]
MESHES = [
    mw.make_mesh((8,), ("k",)),
    mw.make_mesh((2, 4), ("i", "j")),
    mw.make_mesh((2, 2, 2), ("a", "b", "c")),
    mw.make_mesh((3, 2), ("i", "j")),
    mw.Mesh(np.array([[6, 1, 4], [3, 0, 5]]), ("i", "j")),
    mw.Mesh(np.array([7, 2]), ("k",)),
]


class Step(NamedTuple):
    """An op on values by their numbers: by Meshwright, and by NumPy."""

    ours: Callable[..., Any]
    plain: Callable[..., Any]
    operands: tuple[int, ...]


def wide(x: np.ndarray) -> np.ndarray:
    """In which NumPy computes: narrow floats at the width of f32."""
    return x.astype(np.float32) if x.dtype == BF16 else x


def is_float(x: np.ndarray) -> bool:
    return x.dtype in (np.float32, BF16)


def unary(rng: Generator, x: np.ndarray) -> list[tuple[Any, Any]]:
    """Ops of one value, each with its counterpart in NumPy."""
    found: list[tuple[Any, Any]] = [(lambda x: x.T, lambda x: x.T), (lambda x: x.reshape(-1), lambda x: x.reshape(-1))]
    if x.ndim:
        dim = int(rng.integers(x.ndim))
        n = x.shape[dim]
        start, step = int(rng.integers(n)), int(rng.integers(1, 3))
        index = (slice(None),) * dim + (slice(start, None, step),)
        found += [
            (lambda x: x[index], lambda x: x[index]),
            (lambda x: mnp.flip(x, dim), lambda x: np.flip(x, dim)),
            (lambda x: mnp.roll(x, start, dim), lambda x: np.roll(x, start, dim)),
            (lambda x: mnp.concatenate([x, x[index]], dim), lambda x: np.concatenate([x, x[index]], dim)),
            (lambda x: mnp.take(x, mnp.array([0, n - 1, 0]), dim), lambda x: np.take(x, [0, n - 1, 0], dim)),
        ]
        if x.dtype.kind != "c":
            found += [
                (lambda x: mnp.max(x, dim), lambda x: np.max(x, dim)),
                (lambda x: mnp.sort(x, dim), lambda x: np.sort(x, dim)),
                (lambda x: mnp.argmax(x, dim), lambda x: np.argmax(x, dim).astype(np.int32)),
            ]
        if x.dtype == bool:
            found += [(lambda x: mnp.any(x, dim), lambda x: np.any(x, dim)), (lambda x: ~x, lambda x: ~x)]
        if is_float(x) or x.dtype.kind == "c":
            found += [
                (lambda x: mnp.mean(x, dim), lambda x: np.mean(wide(x), dim).astype(x.dtype)),
                (lambda x: mnp.cumsum(x, dim) / n, lambda x: (np.cumsum(wide(x), dim) / n).astype(x.dtype)),
            ]
    if is_float(x):
        found += [
            (lambda x: mnp.tanh(x), lambda x: np.tanh(wide(x)).astype(x.dtype)),
            (lambda x: mnp.exp(-mnp.abs(x)), lambda x: np.exp(-np.abs(wide(x))).astype(x.dtype)),
        ]
    if x.dtype.kind == "c":
        found += [(lambda x: x.conj(), np.conj), (lambda x: mnp.real(x), np.real)]
    if x.dtype.kind in "ib":
        found += [(lambda x: x.astype("float32") / 8, lambda x: x.astype(np.float32) / np.float32(8))]
    return found


def binary(x: np.ndarray, y: np.ndarray) -> list[tuple[Any, Any]]:
    """Ops of two values of one shape and dtype."""
    if x.dtype == bool:
        return [(lambda x, y: x ^ y, lambda x, y: x ^ y), (lambda x, y: x | y, lambda x, y: x | y)]
    found: list[tuple[Any, Any]] = [(lambda x, y: x - y, lambda x, y: x - y)]
    if x.dtype.kind != "c":
        found += [
            (lambda x, y: mnp.minimum(x, y), np.minimum),
            (lambda x, y: x < y, lambda x, y: x < y),
            (lambda x, y: mnp.where(x > y, x, -y), lambda x, y: np.where(x > y, x, -y)),
        ]
    if x.ndim == 2 and (is_float(x) or x.dtype.kind == "c"):
        scale = max(x.shape[1], 1)
        found += [(lambda x, y: x @ y.T / scale, lambda x, y: (wide(x) @ wide(y).T / scale).astype(x.dtype))] * 3
    return found


def drawn_step(rng: Generator, values: list[np.ndarray]) -> Step:
    """An op on some of the values."""
    n = int(rng.integers(len(values)))
    x = values[n]
    others = [m for m, y in enumerate(values) if y.shape == x.shape and y.dtype == x.dtype]
    if rng.random() < 0.4:
        m = int(rng.choice(others))
        ours, plain = binary(x, values[m])[int(rng.integers(len(binary(x, values[m]))))]
        return Step(ours, plain, (n, m))
    choices = unary(rng, x)
    ours, plain = choices[int(rng.integers(len(choices)))]
    return Step(ours, plain, (n,))


def drawn_sharding(rng: Generator, mesh: mw.Mesh, ndim: int) -> mw.NamedSharding:
    """A sharding of an array over some axes, or parts of them."""
    names = list(mesh.axis_names)
    if mesh.size == 8 and names == ["k"]:
        names = [["k"], ["k:(1)2", "k:(2)4"], ["k:(1)4", "k:(4)2"]][int(rng.integers(3))]
    spec: list[Any] = [None] * ndim
    for name in rng.permutation(names).tolist() if ndim else []:
        dim = int(rng.integers(ndim + 1))
        if dim < ndim:
            spec[dim] = (*(spec[dim] or ()), name)
    whole = {tuple(names): "k"} if names[0].startswith("k:") else {}  # parts that make up an axis are written as it
    return mw.NamedSharding(mesh, P(*(whole.get(entry, entry) for entry in spec)))


def drawn_array(rng: Generator) -> np.ndarray:
    dtype = DTYPES[int(rng.integers(len(DTYPES)))]
    shape = tuple(int(n) for n in rng.integers(1, 10, size=int(rng.integers(0, 4))))
    x = rng.integers(-40, 40, size=shape)
    if dtype.kind == "c":
        return (x / 8 + 1j * rng.integers(-8, 8, size=shape)).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(x % 2 == 0)
    return np.asarray(x if dtype.kind == "i" else x / 8).astype(dtype)


def same(found: Any, expected: np.ndarray, what: str) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape, f"{what}: {found.type}"
    loose = 4e-2 if expected.dtype == BF16 else 1e-4
    contents = np.asarray(found)
    exact = expected.dtype.kind in "bi"
    for part, wanted in (
        (contents, expected),
        *((np.asarray(s.data), expected[s.index]) for s in found.addressable_shards),
    ):
        if exact:
            np.testing.assert_array_equal(part, wanted, err_msg=what)
        else:
            np.testing.assert_allclose(wide(part), wide(wanted), rtol=loose, atol=loose, err_msg=what)


def calls_after_one_another(seed: int, engine: str, calls: int = 4) -> None:
    """Each call takes arrays of a pool, and leaves its results there, beside what NumPy says they are."""
    rng = np.random.default_rng(seed)
    pool: list[tuple[Any, np.ndarray]] = []
    for number in range(calls):
        what = f"seed {seed}, call {number}, {engine}"
        mesh = MESHES[int(rng.integers(len(MESHES)))]
        chosen: list[tuple[Any, np.ndarray]] = []
        for _ in range(int(rng.integers(1, 4))):
            if pool and rng.random() < 0.7:
                chosen.append(pool[int(rng.integers(len(pool)))])
            else:
                new = drawn_array(rng)
                chosen.append((mw.device_put(mnp.asarray(new), drawn_sharding(rng, mesh, new.ndim)), new))
        chosen = list({id(array): (array, plain) for array, plain in chosen}.values())
        values = [plain for _, plain in chosen]
        steps: list[Step] = []
        for _ in range(int(rng.integers(2, 7))):
            step = drawn_step(rng, values)
            values.append(step.plain(*(values[n] for n in step.operands)))
            steps.append(step)
        kept = [n for n in range(len(values)) if n >= len(values) - 3]

        def function(*args: Any, steps: list[Step] = steps, kept: list[int] = kept) -> Any:
            found = list(args)
            for step in steps:
                found.append(step.ours(*(found[n] for n in step.operands)))
            return [found[n] for n in kept]

        stays = [getattr(x.sharding, "mesh", None) == mesh and rng.random() < 0.5 for x, _ in chosen]
        ins = tuple(
            x.sharding if own else drawn_sharding(rng, mesh, plain.ndim)
            for own, (x, plain) in zip(stays, chosen, strict=True)
        )
        given = [x if own else mw.device_put(x, where) for own, (x, _), where in zip(stays, chosen, ins, strict=True)]
        outs = [drawn_sharding(rng, mesh, values[n].ndim) if rng.random() < 0.5 else None for n in kept]
        donated = (int(rng.integers(len(chosen))),) if rng.random() < 0.4 else ()
        options: dict[str, Any] = {"in_shardings": ins, "out_shardings": outs}
        plain = mw.jit(function, engine="numpy", **options)(*(mnp.asarray(plain) for _, plain in chosen))
        found = mw.jit(function, engine=engine, donate_argnums=donated, **options)(*given)
        for one, other, n in zip(found, plain, kept, strict=True):
            assert one.sharding == other.sharding, what
            same(other, values[n], f"{what} (numpy)")
            same(one, values[n], what)
        gone = {id(given[n]) for n in donated}
        pool = [pair for pair in [*pool, *chosen] if id(pair[0]) not in gone]
        pool = list({id(array): (array, plain) for array, plain in pool}.values())
        for array, expected in pool:  # what was not donated is as it was
            same(array, expected, f"{what}, afterwards")
        pool += [(one, values[n]) for one, n in zip(found, kept, strict=True)]


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n > 0)) for n in range(40)])
@pytest.mark.parametrize("engine", ["xla", "xla-stacked"])
def test_calls_after_one_another(engine: str, seed: int) -> None:
    calls_after_one_another(seed, engine)


def test_factorizations_of_matrices() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32)
    mesh = mw.make_mesh((2,), ("i",))

    def f(x: Any) -> Any:
        inverse = mnp.linalg.inv(x)
        q, r = mnp.linalg.qr(x)
        u, s, v = mnp.linalg.svd(x)
        values, vectors = mnp.linalg.eigh(x)
        return inverse, q @ r, (u * s[:, None]) @ v, values, mnp.abs(vectors), mnp.linalg.eigvals(x).sum(-1)

    expected = mw.jit(f)(x)
    for engine in ("xla", "xla-stacked"):
        found = mw.jit(f, engine=engine)(mw.device_put(x, mw.NamedSharding(mesh, mw.P("i"))))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-3)
    gradient = mw.grad(lambda x: mnp.linalg.svd(x, compute_uv=False).sum())
    np.testing.assert_allclose(mw.jit(gradient, engine="xla")(x), gradient(mnp.asarray(x)), atol=1e-4)


def test_what_a_checkpoint_computes_again_is_not_joined_with_the_first_run() -> None:
    def layer(w: Any, x: Any) -> Any:
        return mnp.tanh(mnp.sin(x @ w) @ w)

    def text(kept: Callable[..., Any]) -> str:
        def loss(ws: Any, x: Any) -> Any:
            for w in ws:
                x = kept(w, x)
            return x.sum()

        args = [mnp.full((8, 8), 0.1)] * 3, mnp.ones((4, 8))
        compiled = mw.jit(mw.grad(loss), engine="xla").lower(*args).compile()
        for one, other in zip(compiled(*args), mw.grad(loss)(*args), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
        return compiled.stages[-1].text

    plain, again = text(layer), text(mw.checkpoint(layer))
    first = re.compile(r"stablehlo.dot_general (%\w+), (%\w+)")
    assert not len(first.findall(plain)) - len({*first.findall(plain)})
    assert len(first.findall(again)) == len({*first.findall(again)}) > len(first.findall(plain))
    assert "optimization_barrier" in again and "optimization_barrier" not in plain
