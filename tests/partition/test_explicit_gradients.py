"""Explicit axes: on every sharding, what has a type has a gradient of its argument's type, and values are right."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax

MESH = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.AxisType.Explicit,) * 2)
ENTRIES = (None, "x", "y", ("x", "y"), ("y", "x"))
RUN = (("x", "y"), (None, "x"), (("y", "x"), None))  # the shardings on which values are compared
DATA = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "pad": lambda x: mnp.pad(x, ((2, 2), (0, 4))),
    "roll": lambda x: mnp.roll(x, 1, 0),
    "concatenate": lambda x: mnp.concatenate([x, x], 1),
    "stack": lambda x: mnp.stack([x, x], 1),
    "rows": lambda x: x[mnp.array([0, 3, 3])],
    "cumsum": lambda x: mnp.cumsum(x, 1),
    "sort": lambda x: mnp.sort(x, 1),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(),
    "prod": lambda x: x.prod(0),
    "var": lambda x: x.var(1),
    "softmax": lambda x: mw.nn.softmax(x, 0),
    "repeat": lambda x: mnp.repeat(x, 2, 0),
    "tile": lambda x: mnp.tile(x, (2, 1)),
    "split": lambda x: x.reshape(4, 2, 8),
    "heads": lambda x: x.reshape(8, 2, 4).swapaxes(0, 1),
    "flat": lambda x: x.reshape(-1),
    "slice": lambda x: x[:4, 2:6],
    "reverse": lambda x: x[:, ::-1],
    "diagonal": mnp.diagonal,
    "tril": mnp.tril,
    "set a row": lambda x: x.at[0].set(1.0),
    "add to a column": lambda x: x.at[:, 2].add(3.0),
    "max pool": lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID"),
    "sum pool": lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "VALID"),
    "scan": lambda x: lax.scan(lambda c, _: (mnp.tanh(c), c * 2), x, None, length=2),
    "map": lambda x: lax.map(lambda row: row * row, x),
    "inner": lambda x: mnp.einsum("ij,ij->i", x, x),
    "gram": lambda x: x @ x.T,
    "norm": lambda x: mnp.linalg.norm(x, axis=1),
    "dynamic slice": lambda x: lax.dynamic_slice(x, (1, 0), (4, 8)),
    "where": lambda x: mnp.where(x > 0, x, -x),
    "clip": lambda x: mnp.clip(x, -1, 1),
    "largest": lambda x: mw.nn.one_hot(mnp.argmax(x, 1), 8) * x,
    "outer by row": mw.vmap(lambda row: mnp.outer(row, row)),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x, x),
    "top k": lambda x: lax.top_k(x, 2)[0],
    "take along": lambda x: mnp.take_along_axis(x, mnp.zeros((8, 1), int), 1),
    "half": lambda x: mnp.split(x, 2, 1)[1],
    "narrow": lambda x: x.astype("bfloat16"),
    "strided": lambda x: x[::2],
    "inside": lambda x: x[1:5],
    "set a row to a sum": lambda x: x.at[1].set(x.sum()),
    "add a sum to rows": lambda x: x.at[mnp.array([0, 2])].add(x[:2].sum()),
}
OF_EIGHT = {"split", "heads", "largest", "take along", "half", "diagonal", "max pool", "dynamic slice"}


def specs() -> list[tuple[Any, ...]]:
    def axes(entries: tuple[Any, ...]) -> list[str]:
        return [axis for entry in entries if entry for axis in ((entry,) if isinstance(entry, str) else entry)]

    return [e for e in product(ENTRIES, repeat=2) if len(axes(e)) == len(set(axes(e)))]


@pytest.mark.parametrize(
    "name, rows",
    [(name, rows) for name in FUNCTIONS for rows in (8, 7) if rows == 8 or name not in OF_EIGHT],
)
def test_gradients(name: str, rows: int) -> None:
    f, data = FUNCTIONS[name], DATA[:rows]

    def loss(x: Any) -> Any:
        return sum((y.astype("float32") ** 2).sum() for y in mw.tree.leaves(f(x)))

    step = mw.value_and_grad(loss)
    want, gradient = mw.jit(step)(data)
    typed = 0
    for spec in specs():
        struct = mw.ShapeDtypeStruct((rows, 8), "float32", sharding=mw.NamedSharding(MESH, P(*spec)))
        try:
            mw.make_program(f)(struct)
        except mw.MeshwrightError:
            continue
        typed += 1
        assert mw.make_program(mw.grad(loss))(struct).out_types == (struct.type,), spec
        if spec in RUN:
            x = mw.device_put(mnp.array(data), struct.sharding)
            value, got = mw.jit(step)(x)
            assert got.sharding.is_equivalent_to(x.sharding, 2)
            np.testing.assert_allclose(np.asarray(value), np.asarray(want), rtol=2e-3)
            np.testing.assert_allclose(np.asarray(got), np.asarray(gradient), rtol=2e-3, atol=2e-3)
    assert typed
