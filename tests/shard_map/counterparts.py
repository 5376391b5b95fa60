"""Programs for many devices, written once and run under Meshwright and under JAX, on eight devices each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core import tree
from meshwright.core.check import check


class Kit:
    """What a program is written with: a package, its ``numpy``, its ``lax``, and shard_map spelled alike in both."""

    def __init__(self, package: Any, numpy: Any, lax: Any) -> None:
        self.package, self.np, self.lax = package, numpy, lax
        self.is_jax = package is jax

    def mesh(self, **axes: int) -> Any:
        """A mesh of the named axes."""
        if not self.is_jax:
            return mw.make_mesh(tuple(axes.values()), tuple(axes))
        count = int(np.prod(tuple(axes.values())))
        auto = (jax.sharding.AxisType.Auto,) * len(axes)
        return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=auto, devices=jax.devices()[:count])

    def P(self, *entries: Any) -> Any:
        """A partition spec."""
        return (jax.P if self.is_jax else mw.P)(*entries)

    def map(self, f: Any = None, mesh: Any = None, ins: Any = None, outs: Any = None, names: Any = ()) -> Any:
        """``shard_map``, also as a decorator; ``names`` are the axes that are manual, all if none are given."""
        if f is None:
            return partial(self.map, mesh=mesh, ins=ins, outs=outs, names=names)
        if self.is_jax:
            return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, axis_names=frozenset(names))
        return mw.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, axis_names=set(names) or None)

    def vary(self, x: Any, *axes: str) -> Any:
        """What JAX wants said, and Meshwright finds out: that a value is to vary over axes."""
        return jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axes, to="varying"), x) if self.is_jax else x


JAX = Kit(jax, jnp, jax.lax)
OURS = Kit(mw, mnp, lax)
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile, not to run


@dataclass
class Case:
    """One program, its arguments (arrays, or shapes to fill with random numbers), and what is compared."""

    name: str
    build: Callable[[Kit], Callable[..., Any]]
    args: Sequence[Any]
    orders: int = 1  # 0: values only; 1: gradient and jvp, too; 2: also the derivative of the gradient
    reference: Callable[[Kit], Callable[..., Any]] | None = None  # the same without devices, where JAX cannot

    def arrays(self, seed: int = 0) -> tuple[Any, ...]:
        """The arguments with shapes filled in."""
        random = np.random.default_rng(seed)
        fill = partial(_fill, random)
        return tuple(jax.tree.map(fill, a, is_leaf=_is_shape) for a in self.args)


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple) and all(isinstance(n, int) for n in x)


def _fill(random: np.random.Generator, x: Any) -> Any:
    return np.asarray(random.normal(size=x)) if _is_shape(x) else x


class Cases(list[Case]):
    """A list of cases that functions enter through a decorator."""

    def add(self, *args: Any, orders: int = 1) -> Callable[[Any], Any]:
        """Enter the decorated ``build(kit)``, whose function takes these arguments."""

        def enter(build: Any) -> Any:
            self.append(Case(build.__name__, build, args, orders))
            return build

        return enter


def _leaves(x: Any) -> list[Any]:
    return list(tree.leaves(x)) if not isinstance(x, np.ndarray) else [x]


def differentiable(x: Any) -> bool:
    """Whether gradients are taken of a value."""
    dtype = np.dtype(x.dtype)
    return np.issubdtype(dtype, np.inexact) or dtype == ml_dtypes.bfloat16


def weights(out: Any, seed: int = 1) -> list[Any]:
    """A random number for each element of each differentiable result."""
    random = np.random.default_rng(seed)
    return [random.normal(size=np.shape(x)) if differentiable(x) else None for x in out]


def everything(kit: Kit, f: Callable[..., Any], orders: int, scale: list[Any], jvp: bool = True) -> Callable[..., Any]:
    """A function of arguments and tangents: the value of ``f``, its gradients, its jvp, and those of the gradient."""
    package, np_ = kit.package, kit.np
    leaves = jax.tree.leaves if kit.is_jax else mw.tree.leaves

    def run(args: tuple[Any, ...], places: tuple[int, ...], tangents: tuple[Any, ...]) -> dict[str, Any]:
        def active(*chosen: Any) -> Any:
            full = list(args)
            for place, x in zip(places, chosen, strict=True):
                full[place] = x
            return f(*full)

        def loss(*chosen: Any) -> Any:
            total = 0.0
            for x, w in zip(leaves(active(*chosen)), scale, strict=True):
                if w is not None:
                    term = (x * w.astype(x.dtype)).sum()
                    total = total + (np_.real(term) if np_.iscomplexobj(term) else term)
            return total

        given = tuple(args[place] for place in places)
        found = {"value": f(*args)}
        if orders and places:
            gradient = package.grad(loss, argnums=tuple(range(len(places))))
            found["gradient"] = gradient(*given)
            if jvp:
                found["jvp"] = package.jvp(active, given, tangents)[1]
            if orders > 1:
                found["jvp of gradient"] = package.jvp(gradient, given, tangents)[1]
        return found

    return run


def check_case(case: Case, rtol: float = 1e-9, atol: float = 1e-11, jvp: bool = True) -> None:
    """Compare everything with JAX: eagerly and under jit; and check the program of it all, and its text."""
    args = case.arrays()
    places = tuple(n for n, a in enumerate(args) if all(differentiable(x) for x in jax.tree.leaves(a)) and orders_of(a))
    random = np.random.default_rng(2)
    tangents = tuple(jax.tree.map(lambda x: random.normal(size=x.shape).astype(x.dtype), args[n]) for n in places)
    theirs, ours = (case.reference or case.build)(JAX), case.build(OURS)
    shapes = jax.tree.leaves(jax.eval_shape(jax.jit(theirs), *args))
    scale = weights(shapes)
    reference = jax.jit(everything(JAX, theirs, case.orders, scale, jvp), static_argnums=1, compiler_options=QUICK)
    expected = reference(args, places, tangents)
    whole = everything(OURS, ours, case.orders, scale, jvp)
    eager = whole(args, places, tangents)
    compare("eager", eager, expected, rtol, atol)
    jitted = mw.jit(whole, static_argnums=1)(args, places, tangents)
    compare("under jit", jitted, expected, rtol, atol)
    program = check(mw.make_program(lambda args, tangents: whole(args, places, tangents))(args, tangents))
    assert mw.parse_program(str(program)) == program


def orders_of(x: Any) -> bool:
    """Whether an argument has leaves at all."""
    return bool(jax.tree.leaves(x))


def compare(label: str, found: dict[str, Any], expected: dict[str, Any], rtol: float, atol: float) -> None:
    """Equal trees of equal dtypes, and values equal up to rounding."""
    assert found.keys() == expected.keys()
    for what in found:  # values first
        paths = jax.tree_util.tree_leaves_with_path(expected[what])
        leaves = mw.tree.leaves(found[what])
        assert len(paths) == len(leaves), (label, what)
        for (path, e), x in zip(paths, leaves, strict=True):
            name = f"{label}: {what}{jax.tree_util.keystr(path)}"
            assert x.shape == e.shape, f"{name}: {x.shape}, not {e.shape}"
            if e.dtype == jax.dtypes.float0:
                continue
            assert x.dtype == e.dtype, f"{name}: {x.dtype}, not {e.dtype}"
            wide = np.complex128 if np.iscomplexobj(e) else np.float64
            np.testing.assert_allclose(
                np.asarray(x).astype(wide), np.asarray(e).astype(wide), rtol=rtol, atol=atol, err_msg=name
            )
