"""Explicit axes beside JAX: on all shardings of operands, the same types, and errors where it has errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
import meshwright.numpy as mnp

ENTRIES = (None, "x", "y", ("x", "y"), ("y", "x"))
SHAPE = (8, 8)


def specs(rank: int) -> list[tuple[Any, ...]]:
    found = []
    for entries in product(ENTRIES, repeat=rank):
        used = [axis for entry in entries if entry for axis in ((entry,) if isinstance(entry, str) else entry)]
        if len(used) == len(set(used)):
            found.append(entries)
    return found


@pytest.fixture(scope="module", autouse=True)
def _on_both_meshes() -> Iterator[None]:
    types = (jax.sharding.AxisType.Explicit,) * 2
    other = jax.make_mesh((2, 2), ("x", "y"), axis_types=types, devices=jax.devices()[:4])
    mesh = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.AxisType.Explicit,) * 2)
    with jax.set_mesh(other), mw.set_mesh(mesh):
        yield


def ours(f: Callable[..., Any], layouts: tuple[Any, ...], shapes: tuple[Any, ...]) -> str:
    mesh = mw.sharding.get_mesh()
    structs = [
        mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(mesh, mw.P(*spec)))
        for shape, spec in zip(shapes, layouts, strict=True)
    ]
    try:
        program = mw.make_program(lambda *args: f(mw, mnp, *args))(*structs)
    except mw.MeshwrightError as error:
        assert error.fix and error.why
        return "an error"
    return ", ".join(str(t) for t in program.out_types)


def theirs(f: Callable[..., Any], layouts: tuple[Any, ...], shapes: tuple[Any, ...]) -> str:
    mesh = jax.sharding.get_abstract_mesh()
    structs = [
        jax.ShapeDtypeStruct(shape, "float32", sharding=jax.NamedSharding(mesh, jax.P(*spec)))
        for shape, spec in zip(shapes, layouts, strict=True)
    ]
    try:
        return ", ".join(str(t) for t in jax.make_jaxpr(lambda *args: f(jax, jnp, *args))(*structs).out_avals)
    except Exception:
        return "an error"


def compare(f: Callable[..., Any], *shapes: tuple[int, ...], differ: Callable[..., bool] | None = None) -> int:
    """Compare all layouts of operands of these shapes, but those that ``differ`` names; how many were no errors."""
    right = 0
    for layouts in product(*(specs(len(shape)) for shape in shapes)):
        mine, other = ours(f, layouts, shapes), theirs(f, layouts, shapes)
        if differ is not None and differ(*layouts):
            assert mine != other, f"{layouts}: a difference that is none, {mine}"
        else:
            assert mine == other, layouts
            right += mine != "an error"
    return right


UNARY: dict[str, Callable[..., Any]] = {
    "exp": lambda mod, np, x: np.exp(x) * 2 + 1,
    "sum 0": lambda mod, np, x: x.sum(0),
    "sum 1": lambda mod, np, x: x.sum(1),
    "sum": lambda mod, np, x: x.sum(),
    "max": lambda mod, np, x: x.max(0, keepdims=True),
    "argmax": lambda mod, np, x: np.argmax(x, 0),
    "transpose": lambda mod, np, x: x.T,
    "broadcast": lambda mod, np, x: np.broadcast_to(x, (3, *x.shape)),
    "new dims": lambda mod, np, x: x[None, :, None],
    "softmax": lambda mod, np, x: mod.nn.softmax(x),
    "sort": lambda mod, np, x: np.sort(x, 1),
    "cumsum": lambda mod, np, x: np.cumsum(x, 0),
    "half": lambda mod, np, x: x[:4],
    "half of both": lambda mod, np, x: x[2:6, 4:],
    "join 0": lambda mod, np, x: np.concatenate([x, x], 0),
    "join 1": lambda mod, np, x: np.concatenate([x, 2 * x], 1),
    "reverse": lambda mod, np, x: x[::-1],
    "where": lambda mod, np, x: np.where(x > 0, x, 0),
    "split 0": lambda mod, np, x: x.reshape(4, 2, 8),
    "gradient": lambda mod, np, x: mod.grad(lambda x: (np.sin(x) * x).sum())(x),
    "gradient of sums": lambda mod, np, x: mod.grad(lambda x: (x.sum(0) ** 2).sum() + x.max())(x),
    "vmap": lambda mod, np, x: mod.vmap(lambda row: row * row.sum())(x),
}


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name: str) -> None:
    assert compare(UNARY[name], SHAPE) > 0


@pytest.mark.parametrize("name", ["add", "maximum", "mul and grad"])
def test_elementwise(name: str) -> None:
    f: Callable[..., Any] = {
        "add": lambda mod, np, x, y: x + y,
        "maximum": lambda mod, np, x, y: np.maximum(x, y * 2),
        "mul and grad": lambda mod, np, x, y: mod.grad(lambda x, y: (x * y).sum(), argnums=(0, 1))(x, y),
    }[name]
    assert compare(f, SHAPE, SHAPE) > 20


def test_products() -> None:
    assert compare(lambda mod, np, x, y: x @ y, SHAPE, SHAPE) > 20


def test_gradients_of_products() -> None:
    f = lambda mod, np, x, y: mod.grad(lambda x, y: np.sin(x @ y).sum(), argnums=(0, 1))(x, y)
    assert compare(f, SHAPE, SHAPE) > 20


def test_products_of_stacks() -> None:
    def f(mod: Any, np: Any, x: Any, y: Any) -> Any:
        return np.einsum("bij,bjk->bik", x, y)

    for x, y in product([("x", None, "y"), ("x", None, None), ("x", "y", None)], repeat=2):
        shapes = ((4, 8, 8), (4, 8, 8))
        assert ours(f, (x, y), shapes) == theirs(f, (x, y), shapes), (x, y)


def test_merging_dims_moves_no_data() -> None:
    """JAX lets two split dims become one that is split over both, which moves data; here that is written down."""

    def f(mod: Any, np: Any, x: Any) -> Any:
        return x.reshape(-1)

    assert compare(f, SHAPE, differ=lambda spec: spec in (("x", "y"), ("y", "x"))) > 0
