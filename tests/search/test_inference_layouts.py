"""`find_layout` on steps of inference, with caches that are handed on, against layouts written by hand."""

from __future__ import annotations

from functools import cache as once
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, hardware, lax, nn
from meshwright.search.layout.step import Step

WIDTH, HEADS, DIM, HIDDEN, WORDS, LAYERS = 1024, 8, 128, 4096, 8192, 2


def shape(*dims: int, dtype: str = "bfloat16") -> Any:
    return mw.ShapeDtypeStruct(dims, dtype)


def norm(x: Any) -> Any:
    return (x * lax.rsqrt(mnp.mean(x.astype("float32") ** 2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def attend(q: Any, keys: Any, values: Any, seen: Any) -> Any:
    scores = mnp.einsum("bqhk,bshk->bhqs", q, keys).astype("float32") * q.shape[-1] ** -0.5
    weights = nn.softmax(mnp.where(seen, scores, -1e9), axis=-1).astype(q.dtype)
    return mnp.einsum("bhqs,bshk->bqhk", weights, values)


def step(params: Any, cache: Any, tokens: Any, position: Any) -> Any:
    """Tokens from a position on, over the caches of those before: a prompt, or one token of each sequence."""
    x = params["embed"][tokens]
    new = []
    places = position + mnp.arange(tokens.shape[1])
    for w, (keys, values) in zip(params["layers"], cache, strict=True):
        y = norm(x)
        q, k, v = (mnp.einsum("bld,dhk->blhk", y, w[name]) for name in "qkv")
        keys = lax.dynamic_update_slice(keys, k, (0, position, 0, 0))
        values = lax.dynamic_update_slice(values, v, (0, position, 0, 0))
        new.append((keys, values))
        mixed = attend(q, keys, values, mnp.arange(keys.shape[1]) <= places[:, None])
        x = x + mnp.einsum("blhk,hkd->bld", mixed, w["o"])
        y = norm(x)
        x = x + (nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
    return norm(x[:, -1]) @ params["embed"].T, new


def arguments(batch: int, tokens: int, context: int, dtype: str = "bfloat16") -> Any:
    def one(*dims: int) -> Any:
        return shape(*dims, dtype=dtype)

    layer = {name: one(WIDTH, HEADS, DIM) for name in "qkv"}
    layer |= {"o": one(HEADS, DIM, WIDTH), "gate": one(WIDTH, HIDDEN), "up": one(WIDTH, HIDDEN)}
    params = {"embed": one(WORDS, WIDTH), "layers": [{**layer, "down": one(HIDDEN, WIDTH)}] * LAYERS}
    held = [(one(batch, context, HEADS, DIM),) * 2] * LAYERS
    return params, held, shape(batch, tokens, dtype="int32"), shape(dtype="int32")


DECODE, PREFILL = (64, 1, 1024), (4, 1024, 1024)


def by_hand(kind: str, chips: int) -> Any:
    """The shardings that somebody would write: heads and hidden units over all chips, or sequences."""
    mesh = mw.make_mesh((chips,), ("x",))

    def on(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    if kind == "batch":
        params = mw.tree.map(lambda _: on(), arguments(*DECODE)[0])
        return params, [(on("x"),) * 2] * LAYERS, on("x"), on()
    wide = {name: on(None, "x") for name in ("q", "k", "v", "gate", "up")} | {"o": on("x"), "down": on("x")}
    table = on("x") if kind == "tensor" else on()
    return {"embed": table, "layers": [wide] * LAYERS}, [(on(None, None, "x"),) * 2] * LAYERS, on(), on()


@once
def found(sizes: tuple[int, int, int], chips: int) -> Any:
    return mw.find_layout(step, *arguments(*sizes), topology=f"h100 {chips}")


SIZES = (DECODE, PREFILL, (4, 1, 4096))
CASES = [(DECODE, 4), *(pytest.param(s, n, marks=pytest.mark.slow) for s in SIZES for n in (4, 8))]


@pytest.mark.parametrize(("sizes", "chips"), CASES)
def test_no_layout_written_by_hand_is_faster(sizes: tuple[int, int, int], chips: int) -> None:
    args = arguments(*sizes)
    for kind in ("tensor", "tensor, table whole", *(("batch",) if sizes[0] % chips == 0 else ())):
        given = by_hand(kind, chips)
        laid = mw.jit(step, in_shardings=given, out_shardings=(None, given[1]), donate_argnums=(1,))
        written = mw.simulate(laid.lower(*args).compile(), hardware.Topology("h100", chips))
        assert found(sizes, chips).best.seconds <= written.seconds * (1 + 1e-9), kind


def test_caches_are_donated_and_split() -> None:
    best = found(DECODE, 4).best
    assert best.step.donate == (1,)
    assert best.out_shardings[1] == best.in_shardings[1]
    assert {str(n) for n in best.step.batch} == {str(best.step.leaf_names.index("tokens"))}
    caches = mw.tree.leaves(best.in_shardings[1])
    assert all(np.prod(one.shard_shape((64, 1024, HEADS, DIM))) * 4 == 64 * 1024 * HEADS * DIM for one in caches)
    said = {one.change for one in found(DECODE, 4).what_if()}
    assert {"twice the batch", "half the batch"} <= said


def test_what_is_pasted_is_what_was_simulated() -> None:
    best = found(DECODE, 4).best
    names: dict[str, Any] = {"step": step}
    exec(best.code(), names)
    compiled = names["step"].lower(*arguments(*DECODE)).compile()
    machine = hardware.Topology("h100", 4, mesh=best.mesh.shape)
    assert mw.simulate(compiled, machine).seconds == best.seconds


def scanned(params: Any, cache: Any, tokens: Any, position: Any) -> Any:
    def layer(x: Any, one: Any) -> Any:
        w, keys = one
        keys = keys.at[:, position].set(x @ w)
        return x + mnp.einsum("bs,bsd->bd", nn.softmax(mnp.einsum("bd,bsd->bs", x, keys), -1), keys), keys

    x, cache = lax.scan(layer, params["embed"][tokens], (params["layers"], cache))
    return x @ params["embed"].T, cache


def test_caches_of_scanned_layers_are_state() -> None:
    params = {"embed": shape(256, 64), "layers": shape(3, 64, 64)}
    traced = Step(scanned, (params, shape(3, 8, 32, 64), shape(8, dtype="int32"), shape(dtype="int32")), None)
    assert traced.donate == (1,)
    assert [traced.leaf_names[n] for n in traced.batch] == ["tokens"]


def test_what_is_not_written_over_is_no_state() -> None:
    def other(params: Any, cache: Any, x: Any) -> Any:
        return x @ params, mnp.flip(cache, 0)

    assert Step(other, (shape(8, 8), shape(8, 8), shape(4, 8)), None).donate == ()
