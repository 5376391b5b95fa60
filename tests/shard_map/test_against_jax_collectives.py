"""Every collective along every dim, over one axis and over several in either order, tiled or not, against JAX."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
from tests.shard_map.counterparts import Case, Kit, check_case

MESHES = {"x2_y4": {"x": 2, "y": 4}, "x2_y2_z2": {"x": 2, "y": 2, "z": 2}, "x1_y4": {"x": 1, "y": 4}, "x1": {"x": 1}}


def _axes(mesh: dict[str, int]) -> list[Any]:
    names = list(mesh)
    return [n if len(n) > 1 else n[0] for r in (1, 2, 3) for n in itertools.permutations(names, r)]


def _size(mesh: dict[str, int], axes: Any) -> int:
    return int(np.prod([mesh[a] for a in ([axes] if isinstance(axes, str) else axes)]))


def _sweep(mesh: dict[str, int], collective: str) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Calls of one collective, by name: the shape of a block, and a function of a kit and a block."""
    found: dict[str, tuple[tuple[int, ...], Any]] = {}
    for axes in _axes(mesh):
        if collective == "ppermute" and list(axes) != sorted(axes):
            continue  # JAX counts positions in the order of the mesh, whatever order is written: see below
        n = _size(mesh, axes)
        name = axes if isinstance(axes, str) else "".join(axes)
        if collective in ("psum", "pmean", "pmax", "pmin"):
            found[name] = (2, 3), lambda k, x, axes=axes: getattr(k.lax, collective)(x, axes)
            found[f"{name}_scalar"] = (), lambda k, x, axes=axes: getattr(k.lax, collective)(x, axes)
        elif collective == "all_gather":
            for dim, tiled in itertools.product((0, 1, -1), (True, False)):
                found[f"{name}_{dim}_{tiled}"] = (
                    (2, 3),
                    (lambda k, x, axes=axes, dim=dim, tiled=tiled: k.lax.all_gather(x, axes, axis=dim, tiled=tiled)),
                )
            found[f"{name}_scalar"] = (), lambda k, x, axes=axes: k.lax.all_gather(x, axes, tiled=False)
        elif collective == "psum_scatter":
            for dim, tiled in itertools.product((0, 1), (True, False)):
                shape = tuple(n * (2 if tiled else 1) if d == dim else 3 for d in range(2))
                found[f"{name}_{dim}_{tiled}"] = (
                    shape,
                    (
                        lambda k, x, axes=axes, dim=dim, tiled=tiled: k.lax.psum_scatter(
                            x, axes, scatter_dimension=dim, tiled=tiled
                        )
                    ),
                )
        elif collective == "all_to_all":
            for split, concat in itertools.product((0, 1, 2), repeat=2):
                shape = tuple(2 * n if d == split else 3 for d in range(3))
                found[f"{name}_{split}_{concat}"] = (
                    shape,
                    (
                        lambda k, x, axes=axes, split=split, concat=concat: k.lax.all_to_all(
                            x, axes, split, concat, tiled=True
                        )
                    ),
                )
        elif collective == "ppermute":
            random = np.random.default_rng(n)
            whole = [(int(s), int(t)) for s, t in zip(random.permutation(n), random.permutation(n), strict=True)]
            for label, perm in (("whole", whole), ("some", whole[: n // 2]), ("none", [])):
                found[f"{name}_{label}"] = (2,), lambda k, x, axes=axes, perm=perm: k.lax.ppermute(x, axes, perm)
        elif collective == "axis_index":
            found[name] = (2,), lambda k, x, axes=axes: x * (1.0 + k.lax.axis_index(axes) * 1.5) + k.lax.axis_size(axes)
    return found


def _build(mesh: dict[str, int], calls: dict[str, tuple[tuple[int, ...], Any]], invariant: bool) -> Any:
    """All calls in one body; a block of its own for each, so that gradients do not mix."""
    everywhere = tuple(mesh)

    def build(k: Kit) -> Any:
        ins = k.P() if invariant else k.P(everywhere)

        def body(blocks: dict[str, Any]) -> dict[str, Any]:
            outs = {}
            for name, (_, call) in calls.items():
                x = blocks[name]
                x = k.vary(x, *everywhere) if invariant else x[0]
                y = call(k, k.np.sin(x))
                outs[name] = (y * (1.0 + k.lax.axis_index(everywhere)))[None]
            return outs

        return k.map(body, mesh=k.mesh(**mesh), ins=(ins,), outs=k.P(everywhere))

    return build


COLLECTIVES = ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute", "axis_index")


def _check(
    collective: str, mesh: dict[str, int], calls: dict[str, tuple[tuple[int, ...], Any]], invariant: bool
) -> None:
    count = int(np.prod(list(mesh.values())))
    blocks = {name: shape if invariant else (count, *shape) for name, (shape, _) in calls.items()}
    orders = 0 if collective in ("pmax", "pmin") else 1  # JAX has no derivative of these
    check_case(Case(collective, _build(mesh, calls, invariant), [blocks], orders))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_some_ways_to_call_it(collective: str, x64: None) -> None:
    """Of the many below, a few."""
    calls = _sweep({"x": 2, "y": 4}, collective)
    chosen = list(calls)[:: max(1, len(calls) // 6)]
    _check(collective, {"x": 2, "y": 4}, {name: calls[name] for name in chosen}, invariant=False)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_on_an_axis_of_one_device(collective: str, x64: None) -> None:
    calls = _sweep({"x": 1}, collective)
    _check(collective, {"x": 1}, dict(list(calls.items())[:4]), invariant=False)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_way_to_call_it(collective: str, mesh: str, x64: None) -> None:
    _check(collective, MESHES[mesh], _sweep(MESHES[mesh], collective), invariant=False)


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "axis_index"])
def test_of_a_value_that_all_devices_hold(collective: str, x64: None) -> None:
    """Nothing needs to be sent; the numbers are those of the collective all the same."""
    calls = _sweep({"x": 2, "y": 2}, collective)
    chosen = list(calls)[1 :: max(1, len(calls) // 5)]
    _check(collective, {"x": 2, "y": 2}, {name: calls[name] for name in chosen}, invariant=True)


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x"), ("y",), ("z", "x", "y"), ("y", "z", "x"), ("z", "x")])
def test_ppermute_counts_positions_as_its_axes_are_written(axes: tuple[str, ...]) -> None:
    """As ``axis_index`` of the same axes does. Compared with a loop over devices."""
    sizes = {"x": 2, "y": 3, "z": 2}
    n = int(np.prod([sizes[a] for a in axes]))
    random = np.random.default_rng(n)
    pairs = [(int(s), int(t)) for s, t in zip(random.permutation(n), random.permutation(n), strict=True)][: n - 1]
    x = np.arange(1.0, 13.0)
    devices = list(np.ndindex(*sizes.values()))

    def position(device: tuple[int, ...]) -> int:
        return int(np.ravel_multi_index([device["xyz".index(a)] for a in axes], [sizes[a] for a in axes]))

    def others(device: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(c for a, c in zip("xyz", device, strict=True) if a not in axes)

    matrix = np.zeros((12, 12))  # from where each device gets its value
    for (t, target), (s, source) in itertools.product(enumerate(devices), repeat=2):
        if others(target) == others(source) and (position(source), position(target)) in pairs:
            matrix[t, s] = 1.0

    mesh = mw.make_mesh(tuple(sizes.values()), tuple(sizes))
    spec = mw.P(("x", "y", "z"))
    f = mw.shard_map(lambda x: mw.lax.ppermute(x, axes, pairs), mesh=mesh, in_specs=spec, out_specs=spec)
    value, back = mw.vjp(f, x)
    assert value.tolist() == (matrix @ x).tolist()
    assert back(mw.numpy.asarray(x))[0].tolist() == (matrix.T @ x).tolist()


DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
    "int8": np.int8,
    "uint32": np.uint32,
    "int64": np.int64,
    "complex64": np.complex64,
    "complex128": np.complex128,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, x64: None) -> None:
    """Each collective of each dtype; small integers, so that sums are exact in any order."""
    random = np.random.default_rng(0)
    x = random.integers(-4, 5, size=(8, 8, 2)).astype(DTYPES[dtype])
    if np.iscomplexobj(x):
        x = (x + 1j * random.integers(-4, 5, size=x.shape)).astype(DTYPES[dtype])
    perm = [(i, (i + 3) % 4) for i in range(4)]

    def build(k: Kit) -> Any:
        def body(x: Any) -> Any:
            x = x[0]
            outs = [
                k.vary(k.lax.psum(x, ("x", "y")), "x", "y"),
                k.lax.all_gather(x, "y", axis=1, tiled=True),
                k.lax.psum_scatter(x, "y", scatter_dimension=0, tiled=True),
                k.lax.all_to_all(x, "y", 0, 1, tiled=True),
                k.lax.ppermute(x, "y", perm),
            ]
            if not np.iscomplexobj(np.zeros(1, DTYPES[dtype])):
                still = k.lax.stop_gradient(x)
                outs += [k.vary(k.lax.pmax(still, "y"), "y"), k.vary(k.lax.pmin(still, ("y", "x")), "x", "y")]
            if np.issubdtype(np.dtype(DTYPES[dtype]), np.inexact):
                outs.append(k.vary(k.lax.pmean(x, "y"), "y"))
            return [out[None] for out in outs]

        return k.map(body, mesh=k.mesh(x=2, y=4), ins=(k.P(("x", "y")),), outs=k.P(("x", "y")))

    loose = dtype in ("bfloat16", "float16")
    check_case(Case(dtype, build, [x]), rtol=2e-2 if loose else 1e-5, atol=1e-1 if loose else 1e-5)
