"""Which collectives typical programs are partitioned into: none where none is needed, halos and totals instead of
whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.arrays.tracing import trace_flat
from meshwright.core import tree
from meshwright.core.trace import close, to_array
from meshwright.engine.compile import compile_program
from meshwright.partition.layouts import closed
from meshwright.sharding.named import TensorSharding
from tests.partition.partitioning import partitioned

MESH = mw.make_mesh((2, 4), ("x", "y"))


def layout(spec: P, rank: int) -> TensorSharding:
    return closed(mw.NamedSharding(MESH, spec).to_tensor_sharding(rank))


def collectives(
    function: Callable[..., Any], arrays: Sequence[Any], ins: Sequence[P], outs: Sequence[P]
) -> list[tuple[str, int]]:
    """The kind of each collective, and the bytes that a device receives in it; the results are right."""
    _, in_tree = tree.flatten((tuple(arrays), {}))
    traced = trace_flat(function, in_tree, [to_array(x).type for x in arrays])
    program = close(traced.program, traced.captured)
    found = [layout(spec, np.ndim(x)) for spec, x in zip(ins, arrays, strict=True)]
    wanted = [layout(spec, t.ndim) for spec, t in zip(outs, program.out_types, strict=True)]
    done = partitioned(program, MESH, found, wanted)
    for x, y in zip(compile_program(done.whole)(*arrays), compile_program(program)(*arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)
    return [(record.kind, record.bytes_received_per_device) for record in done.records]


def drawn(*shape: int) -> Any:
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)


ROWS = drawn(8, 4096)
TOKENS = np.random.default_rng(1).integers(0, 16, (8, 128)).astype(np.int32)
LOGITS = drawn(8, 128, 1024)
IMAGES, KERNEL = drawn(4, 16, 16, 4), drawn(3, 3, 4, 4)
CACHE = drawn(8, 128, 64)
STEP, STEPS = np.int32(3), np.arange(8, dtype=np.int32) * 17
BOTH = P("x", "y")


def conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pool(x: Any, size: int) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, size, size, 1), (1, 2, 2, 1), "VALID")


def likelihood(logits: Any, labels: Any) -> Any:
    return -mnp.take_along_axis(mw.nn.log_softmax(logits), labels[..., None], axis=-1).mean()


def squares(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    """The gradient of the sum of squares of what a function returns."""
    return mw.grad(lambda *args: (function(*args) ** 2).sum(), **given)  # type: ignore[no-any-return]


Case = tuple[Callable[..., Any], Sequence[Any], Sequence[P], Sequence[P], list[tuple[str, int]]]
ROW_BYTES = 4 * 4  # one column of a device's rows
CASES: dict[str, Case] = {
    # A table much larger than what is read from it: partial rows are summed, 2 · 3/4 of them received.
    "rows of a split table": (
        lambda table, rows: table[rows], [drawn(16384, 64), TOKENS[:, :4]], [P("y"), P("x")], [P("x")],
        [("all_reduce", 2 * 3 * (4 * 4 * 64 * 4) // 4)],
    ),
    "rows of a split table, backward": (
        lambda table, rows, ct: mw.vjp(lambda table: table[rows], table)[1](ct)[0],
        [drawn(16384, 64), TOKENS[:, :4], drawn(8, 4, 64)], [P("y"), P("x"), P("x")], [P("y")],
        [("all_gather", 4 * 4 * 64 * 4), ("all_gather", 4 * 4 * 4)],
    ),
    "rows of a table, backward, many tokens": (
        lambda table, rows, ct: mw.vjp(lambda table: table[rows], table)[1](ct)[0],
        [drawn(16, 64), TOKENS, drawn(8, 128, 64)], [P(), P("x"), P("x")], [P()],
        [("all_reduce", 16 * 64 * 4)],
    ),
    "likelihood of labels, split vocabulary": (
        likelihood, [LOGITS, TOKENS], [P("x", None, "y"), P("x")], [P()],
        [("all_reduce", 3072), ("all_reduce", 3072), ("all_reduce", 7)],
    ),
    "likelihood of labels, backward": (
        mw.grad(likelihood), [LOGITS, TOKENS], [P("x", None, "y"), P("x")], [P("x", None, "y")],
        [("all_reduce", 3072)] * 3,
    ),
    "convolution": (conv, [IMAGES, KERNEL], [BOTH, P()], [BOTH], [("permute", 2 * 16 * 4 * 4)] * 2),
    # The halo of the input is fetched once, for the convolution and for the gradient of its kernel.
    "convolution, backward": (
        squares(conv, argnums=(0, 1)), [IMAGES, KERNEL], [BOTH, P()], [BOTH, P()],
        [("permute", 2 * 16 * 4 * 4)] * 4 + [("all_reduce", 2 * 7 * (3 * 3 * 4 * 4 * 4) // 8)],
    ),
    "pooling": (lambda x: pool(x, 2), [IMAGES], [BOTH], [BOTH], []),
    "pooling, backward": (squares(lambda x: pool(x, 2)), [IMAGES], [BOTH], [BOTH], []),
    "running sum": (
        lambda x: mnp.cumsum(x, axis=1), [ROWS], [BOTH], [BOTH], [("all_gather", 3 * ROW_BYTES)],
    ),
    "running sum, backward": (
        squares(lambda x: mnp.cumsum(x, axis=1)), [ROWS], [BOTH], [BOTH], [("all_gather", 3 * ROW_BYTES)] * 2,
    ),
    "position of the largest": (
        lambda x: mnp.argmax(x, axis=1), [ROWS], [BOTH], [P("x")], [("all_gather", 3 * ROW_BYTES)] * 2,
    ),
    "the eight largest": (
        lambda x: lax.top_k(x, 8), [ROWS], [BOTH], [P("x"), P("x")], [("all_gather", 3 * 8 * ROW_BYTES)] * 2,
    ),
    "sorting": (lambda x: mnp.sort(x, axis=1), [ROWS], [BOTH], [BOTH], [("all_to_all", 3 * 1024 * 4)] * 2),
    "the last element": (
        lambda x: x[:, -1], [CACHE], [BOTH], [P("x")], [("all_reduce", 2 * 3 * (4 * 64 * 4) // 4)],
    ),
    "every other element": (lambda x: x[:, ::2], [ROWS], [BOTH], [BOTH], []),
    "turned around": (lambda x: x[:, ::-1], [ROWS], [BOTH], [BOTH], [("permute", 1024 * ROW_BYTES)]),
    "moved by one": (
        lambda x: mnp.pad(x, ((0, 0), (1, 0)))[:, :-1], [ROWS], [BOTH], [BOTH],
        [("permute", 2 * ROW_BYTES), ("permute", 3 * ROW_BYTES)],  # 4,097 columns are blocks of 1,025
    ),
    "an entry of a cache written": (
        lambda c, u, i: lax.dynamic_update_slice(c, u, (0, i, 0)), [CACHE, drawn(8, 1, 64), STEP],
        [BOTH, P("x"), P()], [BOTH], [],
    ),
    "an entry of a cache read": (
        lambda c, i: lax.dynamic_slice(c, (0, i, 0), (8, 1, 64)), [CACHE, STEP], [BOTH, P()], [P("x")],
        [("all_reduce", 2 * 3 * (4 * 64 * 4) // 4)],
    ),
    "entries of a cache written, each at a place of its own": (
        mw.vmap(lambda c, u, i: lax.dynamic_update_slice(c, u, (i, 0))), [CACHE, drawn(8, 1, 64), STEPS],
        [BOTH, P("x"), P("x")], [BOTH], [],
    ),
    "entries of a cache read, each at a place of its own": (
        mw.vmap(lambda c, i: lax.dynamic_slice(c, (i, 0), (1, 64))), [CACHE, STEPS], [BOTH, P("x")], [P("x")],
        [("all_reduce", 2 * 3 * (4 * 64 * 4) // 4)],
    ),
    "random numbers": (
        lambda key: mw.random.normal(key, (8, 4096)), [np.zeros(2, np.uint32)], [P()], [BOTH], [],
    ),
    "uneven rows, normalized": (
        lambda x: x / x.sum(1, keepdims=True), [drawn(101, 53)], [BOTH], [BOTH], [("all_reduce", 2 * 3 * 51 * 4 // 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_collectives(name: str) -> None:
    function, arrays, ins, outs, expected = CASES[name]
    assert sorted(collectives(function, arrays, ins, outs)) == sorted(expected)
