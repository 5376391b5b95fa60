"""Where a function takes a Python int, NumPy's integers do as well, and none of them gets into the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn

X = mnp.arange(12.0).reshape(4, 3)
MESH = mw.make_mesh((2,), ("x",))
IMAGE, KERNEL = mnp.ones((1, 2, 5, 5)), mnp.ones((3, 2, 2, 2))


def dims(i: Callable[[int], Any]) -> Any:
    return lax.ConvDimensionNumbers(*[(i(0), i(1), i(2), i(3))] * 3)


def mapped(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return mw.shard_map(body, mesh=MESH, in_specs=mw.P("x"), out_specs=mw.P("x"))


# Each is a function of an array and of what makes an integer.
CALLS: dict[str, Callable[[Any, Callable[[int], Any]], Any]] = {
    "all_gather": lambda x, i: mapped(lambda a: lax.all_gather(a, "x", axis=i(0), tiled=True))(x),
    "all_to_all": lambda x, i: mapped(lambda a: lax.all_to_all(a, "x", i(0), i(0), tiled=True))(x),
    "argmax": lambda x, i: mnp.argmax(x, axis=i(1)),
    "broadcast_to": lambda x, i: mnp.broadcast_to(x, (i(2), i(4), i(3))),
    "concatenate": lambda x, i: mnp.concatenate([x, x], axis=i(1)),
    "conv": lambda x, i: lax.conv_general_dilated(IMAGE, KERNEL, (i(1), i(2)), [(i(0), i(1))] * 2),
    "conv in groups": lambda x, i: lax.conv_general_dilated(
        IMAGE, KERNEL[:2, :1], (1, 1), "SAME", dimension_numbers=dims(i), feature_group_count=i(2)
    ),
    "cumsum": lambda x, i: lax.cumsum(x, axis=i(0)),
    "diag": lambda x, i: mnp.diag(x, i(1)),
    "diag of a vector": lambda x, i: mnp.diag(x[0], i(-1)),
    "diagflat": lambda x, i: mnp.diagflat(x, i(1)),
    "diagonal": lambda x, i: mnp.diagonal(x, i(1), i(1), i(0)),
    "dot_general": lambda x, i: lax.dot_general(x, x, (((i(0),), (i(0),)), ((), ()))),
    "dynamic_slice": lambda x, i: lax.dynamic_slice(x, (1, 0), (i(2), i(2))),
    "expand_dims": lambda x, i: mnp.expand_dims(x, i(1)),
    "eye": lambda x, i: mnp.eye(i(3), i(4), i(1)),
    "fft": lambda x, i: mnp.fft.fft(x, n=i(4), axis=i(1)),
    "fori_loop": lambda x, i: lax.fori_loop(i(0), i(3), lambda n, c: c * 2, x),
    "full": lambda x, i: mnp.full((i(2), i(2)), 1.0),
    "gather": lambda x, i: lax.gather(
        x, mnp.array([[0], [2]]), lax.GatherDimensionNumbers((i(1),), (i(0),), (i(0),)), (i(1), i(3))
    ),
    "index": lambda x, i: x[i(1), i(0) : i(3) : i(2)],
    "integer_pow": lambda x, i: lax.integer_pow(x, i(3)),
    "iota": lambda x, i: lax.broadcasted_iota("int32", (i(4), i(2)), i(0)),
    "one_hot": lambda x, i: nn.one_hot(mnp.arange(3), i(4)),
    "pad": lambda x, i: mnp.pad(x, ((i(1), i(2)), (i(0), i(1)))),
    "pad inside": lambda x, i: lax.pad(x, 0.0, [(i(1), i(1), i(0)), (i(0), i(0), i(1))]),
    "polygamma": lambda x, i: lax.polygamma(i(1), x + 1),
    "ppermute": lambda x, i: mapped(lambda a: lax.ppermute(a, "x", [(i(0), i(1)), (i(1), i(0))]))(x),
    "psum_scatter": lambda x, i: mapped(lambda a: lax.psum_scatter(a, "x", scatter_dimension=i(0), tiled=True))(x),
    "reduce_precision": lambda x, i: lax.reduce_precision(x, i(8), i(7)),
    "reduce_window": lambda x, i: lax.reduce_window(x, 0.0, lax.add, (i(2), i(1)), (i(1), i(1)), "VALID"),
    "repeat": lambda x, i: mnp.repeat(x, i(2), axis=i(0)),
    "reshape": lambda x, i: mnp.reshape(x, (i(3), i(-1))),
    "rev": lambda x, i: lax.rev(x, (i(0),)),
    "roll": lambda x, i: mnp.roll(x, i(1), i(0)),
    "scan": lambda x, i: lax.scan(lambda c, row: (c + row, row), X[0], x, length=i(4)),
    "scatter": lambda x, i: lax.scatter_add(
        x, mnp.array([[0], [2]]), X[:2], lax.ScatterDimensionNumbers((i(1),), (i(0),), (i(0),))
    ),
    "slice": lambda x, i: lax.slice(x, (i(0), i(1)), (i(2), i(3)), (i(1), i(2))),
    "sort": lambda x, i: lax.sort(x, dimension=i(0)),
    "sort together": lambda x, i: lax.sort((x, X), num_keys=i(2)),
    "split": lambda x, i: mnp.split(x, i(2)),
    "sum": lambda x, i: mnp.sum(x, axis=(i(0), i(1))),
    "swapaxes": lambda x, i: mnp.swapaxes(x, i(0), i(1)),
    "take_along_axis": lambda x, i: mnp.take_along_axis(x, mnp.zeros((4, 1), int), axis=i(1)),
    "tensordot": lambda x, i: mnp.tensordot(x, x.T, axes=i(1)),
    "tile": lambda x, i: mnp.tile(x, (i(2), i(1))),
    "top_k": lambda x, i: lax.top_k(x, i(2)),
    "transpose": lambda x, i: mnp.transpose(x, (i(1), i(0))),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [np.int64, np.int8], ids=lambda kind: kind.__name__)
def test_a_numpy_integer_is_as_good_as_an_int(name: str, kind: type) -> None:
    call = CALLS[name]
    expected = mw.make_program(lambda x: call(x, int))(X)
    found = mw.make_program(lambda x: call(x, kind))(X)
    assert str(found) == str(expected)
    for a, b in zip(mw.tree.leaves(call(X, kind)), mw.tree.leaves(call(X, int)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
