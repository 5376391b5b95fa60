"""`find_layout` against layouts of all arguments, of every kind of small step: all along one axis, many along two."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P
from meshwright.core import tree
from meshwright.search.layout.find import mesh_sizes

MANY = 300  # layouts along two axes


def shape(*dims: int, dtype: str = "bfloat16") -> Any:
    return mw.ShapeDtypeStruct(dims, dtype)


def trained(loss: Any) -> Any:
    """The step of gradient descent for a loss of parameters and a batch."""

    def step(params: Any, batch: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(params, batch)
        return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    return step


def attention(w: Any, x: Any) -> Any:
    q, k, v = (mnp.einsum("bsd,dhk->bshk", x, w["qkv"][:, n]) for n in range(3))
    weights = mw.nn.softmax(mnp.einsum("bqhk,bshk->bhqs", q, k) * q.shape[-1] ** -0.5)
    mixed = mnp.einsum("bhqs,bshk->bqhk", weights, v)
    return mnp.mean((x + mnp.einsum("bqhk,hkd->bqd", mixed, w["out"])) ** 2)


def experts(w: Any, x: Any) -> Any:
    scores = x @ w["gate"]
    gates = mw.nn.softmax(scores) * (scores >= mnp.max(scores, -1, keepdims=True))
    h = mw.nn.relu(mnp.einsum("td,edh->eth", x, w["up"]))
    return mnp.mean(mnp.einsum("eth,ehd,te->td", h, w["down"], gates) ** 2)


def convolved(w: Any, batch: Any) -> Any:
    x, y = batch
    h = mw.nn.relu(mw.lax.conv_general_dilated(x, w["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return mnp.mean((mnp.mean(h, (1, 2)) @ w["head"] - y) ** 2)


def tied(w: Any, tokens: Any) -> Any:
    x = mw.nn.relu(w["embed"][tokens] @ w["w"])
    return -mnp.mean(mnp.take_along_axis(mw.nn.log_softmax(x @ w["embed"].T), tokens[..., None], axis=-1))


def decode(w: Any, cache: Any, x: Any) -> Any:
    q, k = (mnp.einsum("bd,dhk->bhk", x, w["qk"][:, n]) for n in range(2))
    cache = cache.at[:, 7].set(k)
    weights = mw.nn.softmax(mnp.einsum("bhk,bshk->bhs", q, cache) * q.shape[-1] ** -0.5)
    return mnp.einsum("bhk,hkd->bd", mnp.einsum("bhs,bshk->bhk", weights, cache), w["out"]), cache


def reshaped(w: Any, x: Any) -> Any:
    heads = mnp.swapaxes((x @ w).reshape(len(x), 8, -1), 1, 2)
    return mnp.mean(mnp.tanh(heads).reshape(len(x), -1).astype("float32") ** 2)


def joined(w: Any, x: Any) -> Any:
    both = mnp.concatenate([x @ w["a"], x @ w["b"]], -1)
    return mnp.mean((mw.nn.relu(both) @ w["c"]).astype("float32") ** 2)


def looped(w: Any, x: Any) -> Any:
    return mnp.mean(mw.lax.scan(lambda h, v: (mnp.tanh(h @ v), None), x, w)[0].astype("float32") ** 2)


def recurrent(w: Any, x: Any) -> Any:
    start = mnp.zeros((x.shape[1], w.shape[0]), x.dtype)
    return mnp.mean(mw.lax.scan(lambda h, row: (mnp.tanh(h @ w + row), None), start, x)[0].astype("float32") ** 2)


def classified(w: Any, batch: Any) -> Any:
    x, classes = batch
    return -mnp.mean(mnp.take_along_axis(mw.nn.log_softmax((x @ w).astype("float32")), classes[:, None], -1))


STEPS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a reshape": (trained(reshaped), (shape(1024, 4096), shape(512, 1024))),
    "a small reshape": (trained(reshaped), (shape(64, 128), shape(4096, 64))),
    "a join": (
        trained(joined),
        ({"a": shape(1024, 1024), "b": shape(1024, 1024), "c": shape(2048, 1024)}, shape(16384, 1024)),
    ),
    "a loop over layers": (trained(looped), (shape(4, 1024, 1024), shape(4096, 1024))),
    "a loop over time": (trained(recurrent), (shape(512, 512), shape(8, 4096, 512))),
    "classes": (trained(classified), (shape(4096, 128), (shape(16384, 4096), shape(16384, dtype="int32")))),
    "attention": (
        trained(attention),
        ({"qkv": shape(1024, 3, 16, 64), "out": shape(16, 64, 1024)}, shape(32, 512, 1024)),
    ),
    "long attention": (
        trained(attention),
        ({"qkv": shape(512, 3, 8, 64), "out": shape(8, 64, 512)}, shape(2, 4096, 512)),
    ),
    "experts": (
        trained(experts),
        ({"gate": shape(512, 8), "up": shape(8, 512, 2048), "down": shape(8, 2048, 512)}, shape(4096, 512)),
    ),
    "convolution": (
        trained(convolved),
        ({"w": shape(3, 3, 128, 256), "head": shape(256, 1024)}, (shape(64, 32, 32, 128), shape(64, 1024))),
    ),
    "tied weights": (
        trained(tied),
        ({"embed": shape(16384, 512), "w": shape(512, 512)}, shape(16, 256, dtype="int32")),
    ),
    "a cache": (
        decode,
        ({"qk": shape(2048, 2, 16, 128), "out": shape(16, 128, 2048)}, shape(32, 2048, 16, 128), shape(32, 2048)),
    ),
}


def every_spec(dims: tuple[int, ...], sizes: dict[str, int]) -> list[P]:
    """Every way to give axes to dims that they divide."""
    found = []
    for spots in product(range(-1, len(dims)), repeat=len(sizes)):
        entries = [tuple(a for a, d in zip(sizes, spots, strict=True) if d == dim) for dim in range(len(dims))]
        if all(n % int(np.prod([sizes[a] for a in e])) == 0 for n, e in zip(dims, entries, strict=True)):
            found.append(P(*(e or None for e in entries)))
    return found


def many_layouts(args: Any, chips: int, many: int) -> list[tuple[dict[str, int], list[P]]]:
    """Meshes and the specs of all arguments: every one along one axis, some of those along two."""
    rng, found = np.random.default_rng(0), []
    for sizes in mesh_sizes(chips):
        choices = [every_spec(x.shape, sizes) for x in tree.leaves(args)]
        total = int(np.prod([len(c) for c in choices]))
        count = min(total, many)
        for number in sorted(rng.choice(total, count, replace=False)) if total < 1 << 40 else ():
            places = np.unravel_index(int(number), [len(c) for c in choices])
            found.append((sizes, [c[int(n)] for c, n in zip(choices, places, strict=True)]))
    return found


def seconds_of(step: Any, args: Any, sizes: dict[str, int], specs: list[P], chip: str) -> float:
    """What a layout takes when it is written by hand: what the step returns anew is where it was."""
    mesh = mw.make_mesh(tuple(sizes.values()), tuple(sizes))
    given = tree.unflatten(tree.flatten(args)[1], [NamedSharding(mesh, spec) for spec in specs])
    out, donated = ((None, given[1]), (1,)) if step is decode else ((None, given[0]), (0,))
    laid = mw.jit(step, in_shardings=given, out_shardings=out, donate_argnums=donated)
    simulated = mw.simulate(laid.lower(*args).compile(), mw.hardware.Topology(chip, mesh.size, mesh=sizes))
    return simulated.seconds if simulated.fits else float("inf")


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["h100", "tpu v5e"])
@pytest.mark.parametrize("name", STEPS)
def test_within_two_percent_of_many_layouts(name: str, chip: str) -> None:
    step, args = STEPS[name]
    found = mw.find_layout(step, *args, topology=f"{chip} 4")
    best, *at = min((seconds_of(step, args, *one, chip), *map(str, one)) for one in many_layouts(args, 4, MANY))
    assert found.best.seconds <= best * 1.02, f"{at}\n{found.table()}"
    assert found.bound_seconds <= best * 1.001
