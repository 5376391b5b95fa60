"""Special functions against SciPy and JAX: values in two precisions, at odd places, gradients, on a mesh, in chains."""

from __future__ import annotations

from typing import Any

import jax
import jax.image
import jax.scipy.special
import numpy as np
import pytest
import scipy.special

import meshwright as mw
import meshwright.jax as ours
import meshwright.scipy.special as special
from tests.jax_names.special_calls import GRIDS, OF_ONE
from tests.numpy.test_chains import width

LINES = OF_ONE.strip().splitlines()
# Derivatives by these are JAX's own that are not those of the function, or that JAX has not.
NOT_COMPARED = ("sp.polygamma(np_.array", "sp.zeta")


def close_to_scipy(name: str, wide: bool) -> None:
    dtype, tolerance = (np.float64, 1e-10) if wide else (np.float32, 1e-5)
    operands = [x.astype(dtype) for x in GRIDS[name]]
    with width(wide):
        found = getattr(special, name)(*(ours.numpy.asarray(x) for x in operands))
    wanted = getattr(scipy.special, name)(*(x.astype(np.float64) for x in operands))
    for actual, expected in zip(_listed(found), _listed(wanted), strict=True):
        assert actual.dtype == dtype
        with np.errstate(over="ignore"):
            expected = np.asarray(expected).astype(dtype)
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=tolerance, atol=tolerance)


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


@pytest.mark.parametrize("name", sorted(GRIDS)[::3])
def test_some_functions_are_those_of_scipy(name: str) -> None:
    close_to_scipy(name, wide=False)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("name", sorted(GRIDS))
def test_functions_are_those_of_scipy(name: str, wide: bool) -> None:
    close_to_scipy(name, wide)


ODD = np.array([0.0, 1.0, -1.0, 2.0, 0.5, np.inf, np.nan])
# Where SciPy's value is a convention of its own, or that of the complex plane.
CONVENTIONS = {"exp1": [-1.0], "spence": [np.inf]}


@pytest.mark.parametrize("name", [n for n in sorted(GRIDS) if len(GRIDS[n]) == 1])
def test_odd_places_are_those_of_scipy(name: str) -> None:
    points = ODD[~np.isin(ODD, CONVENTIONS.get(name, []))]
    found = getattr(special, name)(ours.numpy.asarray(points, "float32"))
    wanted = getattr(scipy.special, name)(points)
    for actual, expected in zip(_listed(found), _listed(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5, atol=1e-6)


def test_complex_functions_are_those_of_scipy() -> None:
    drawn = np.random.default_rng(0).normal(size=(2, 200)) * 3
    z = (drawn[0] + 1j * drawn[1]).astype(np.complex64)
    for name in ("wofz", "loggamma"):
        found = np.asarray(getattr(special, name)(ours.numpy.asarray(z)))
        wanted = getattr(scipy.special, name)(z.astype(np.complex128))
        usual = np.abs(wanted) < 1e30
        np.testing.assert_allclose(found[usual], wanted[usual], rtol=2e-5, atol=2e-5)


def test_bessel_functions_and_harmonics_are_those_of_scipy() -> None:
    x = np.array([0.0, 1e-3, 1.0, 5.5, 20.0], np.float32)
    found = np.asarray(special.bessel_jn(ours.numpy.asarray(x), v=5))
    np.testing.assert_allclose(found, scipy.special.jv(np.arange(6)[:, None], x), rtol=1e-5, atol=1e-6)
    n, m = np.array([0, 1, 2, 5, 7]), np.array([0, -1, 2, -3, 7])
    angles = np.linspace(0.1, 3, 5).astype(np.float32)
    found = np.asarray(special.sph_harm_y(n, m, angles, 2 * angles))
    np.testing.assert_allclose(found, scipy.special.sph_harm_y(n, m, angles, 2 * angles), atol=1e-6)
    np.testing.assert_allclose(np.asarray(special.bernoulli(20)), scipy.special.bernoulli(20), rtol=1e-6)


def test_integers_and_narrow_floats_are_taken() -> None:
    assert special.gamma(ours.numpy.array([3, 4])).dtype == "float32"
    narrow = special.erfcx(ours.numpy.array([0.5, 2.0], "bfloat16"))
    assert narrow.dtype == "bfloat16"
    np.testing.assert_allclose(np.asarray(narrow, np.float32), scipy.special.erfcx([0.5, 2.0]), rtol=1e-2)
    with pytest.raises(mw.MeshwrightError, match="real numbers"):
        special.erfcx(ours.numpy.array([1j]))


# On a mesh, and in chains


def evaluated(j: Any, text: str) -> Any:
    return eval(f"lambda x: {text}", {"np_": j.numpy, "sp": j.scipy.special, "image": j.image})


def sharded(x: Any, *names: str | None) -> Any:
    mesh = mw.make_mesh((2, 4), ("i", "j"))
    return mw.device_put(x, mw.NamedSharding(mesh, mw.P(*names)))


def with_slope(j: Any, function: Any) -> Any:
    parts = lambda out: [y for y in j.tree.leaves(out) if j.numpy.issubdtype(y.dtype, j.numpy.inexact)]
    loss = lambda x: sum((j.numpy.sin(y).real.sum() for y in parts(function(x))), j.numpy.float32(0))
    return lambda x: (function(x), j.grad(loss)(x))


def check_sharded(text: str) -> None:
    x = np.random.default_rng(0).uniform(0.1, 0.9, (8, 4)).astype(np.float32)
    slope = not text.startswith(NOT_COMPARED)
    their, our = (evaluated(j, text) for j in (jax, ours))
    expected = with_slope(jax, their)(jax.numpy.asarray(x)) if slope else their(jax.numpy.asarray(x))
    for names in (("i", "j"), (None, "j")):
        found = ours.jit(with_slope(ours, our) if slope else our)(sharded(x, *names))
        close(found, expected)


def close(found: Any, expected: Any) -> None:
    for a, b in zip(ours.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("text", LINES[::9])
def test_some_functions_of_a_sharded_array_are_those_of_jax(text: str) -> None:
    check_sharded(text)


@pytest.mark.slow
@pytest.mark.parametrize("text", LINES)
def test_functions_of_a_sharded_array_are_those_of_jax(text: str) -> None:
    check_sharded(text)


BEFORE = ("x", "np_.sin(x) ** 2", "x[::-1] * 0.9 + 0.05", "np_.sort(x, 0)", "x.astype('bfloat16').astype('float32')")
AFTER = ("y", "np_.cumsum(y, 0)", "y @ y.T", "np_.tanh(y) + y[0]", "y.astype('float16')")


def check_chain(seed: int) -> None:
    """A function before, one or two special ones, and one after: each real, of the shape of its operand."""
    random = np.random.default_rng(seed)
    others = ("sici", "fresnel", "wofz", "image", "axis", "sph", "np_")
    whole = [text for text in LINES if not any(word in text for word in others)]
    first, second = (whole[n] for n in random.integers(len(whole), size=2))
    before, after = (group[random.integers(len(group))] for group in (BEFORE, AFTER))
    x = random.uniform(0.15, 0.85, (8, 4)).astype(np.float32)

    def run(j: Any, x: Any) -> Any:
        y = evaluated(j, before)(x)
        y = evaluated(j, first)(y)
        y = evaluated(j, second)(0.2 + 0.6 / (1 + y * y)) if seed % 2 else y
        return eval(after, {"np_": j.numpy, "y": y})

    expected = np.asarray(run(jax, jax.numpy.asarray(x)), np.float32)
    found = np.asarray(ours.jit(lambda x: run(ours, x))(sharded(x, "i", "j")), np.float32)
    scale = 2e-2 if "float16" in after or "bfloat16" in before else 1e-3
    size = max(1.0, float(np.abs(expected).max()))
    text = f"{before} | {first} | {second} | {after}"
    np.testing.assert_allclose(found, expected, rtol=scale, atol=scale * size, err_msg=text)


def test_a_few_chains_on_a_mesh_are_those_of_jax() -> None:
    for seed in range(3):
        check_chain(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_chains_on_a_mesh_are_those_of_jax(block: int) -> None:
    for seed in range(100 + 12 * block, 112 + 12 * block):
        check_chain(seed)
