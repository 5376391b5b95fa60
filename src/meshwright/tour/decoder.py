"""The main job: a decoder's train step, laid out, explained, simulated, improved, searched."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.tour import TourStop

LAYERS, WIDTH, HEADS, WORDS = 2, 64, 4, 128
WIDE = 4096  # of the model that is simulated, which no laptop needs to hold


def norm(x: Any) -> Any:
    """Rows of mean square one."""
    return x / mnp.sqrt(mnp.mean(x * x, -1, keepdims=True) + 1e-6)


@mw.named_scope("attention")
def attention(x: Any, w: Any) -> Any:
    """Causal attention of several heads."""
    q, k, v = (mnp.einsum("bsd,dhk->bshk", x, w[name]) for name in "qkv")
    scores = mnp.einsum("bqhk,bshk->bhqs", q, k) * q.shape[-1] ** -0.5
    later = mnp.triu(mnp.ones(scores.shape[-2:], bool), 1)
    mixed = mnp.einsum("bhqs,bshk->bqhk", mw.nn.softmax(mnp.where(later, -1e9, scores)), v)
    return mnp.einsum("bqhk,hkd->bqd", mixed, w["out"])


def loss(params: Any, tokens: Any) -> Any:
    """Mean cross-entropy of the next token, by a decoder."""
    x = params["embed"][tokens[:, :-1]]
    for n, w in enumerate(params["layers"]):
        with mw.named_scope(f"layer{n}"):
            x = x + attention(norm(x), w)
            x = x + mw.nn.relu(norm(x) @ w["up"]) @ w["down"]
    logits = (norm(x) @ params["embed"].T).astype("float32")
    return -mnp.mean(mnp.take_along_axis(mw.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1))


def step(params: Any, tokens: Any) -> Any:
    """One step of gradient descent."""
    value, gradient = mw.value_and_grad(loss)(params, tokens)
    return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


SPECS = {
    "embed": mw.P(None, "model"), "q": mw.P(None, "model"), "k": mw.P(None, "model"), "v": mw.P(None, "model"),
    "out": mw.P(None, None, "model"), "up": mw.P(None, "model"), "down": mw.P("model"),
}  # fmt: skip


def shapes(width: int, words: int, heads: int, dtype: str) -> Any:
    """The parameters, as shapes."""

    def of(*dims: int) -> Any:
        return mw.ShapeDtypeStruct(dims, dtype)

    each = width // heads
    layer = {name: of(width, heads, each) for name in "qkv"} | {"out": of(heads, each, width)}
    layer |= {"up": of(width, 4 * width), "down": of(4 * width, width)}
    return {"embed": of(words, width), "layers": [layer] * LAYERS}


def placed(params: Any, mesh: Any, specs: Any, put: Any) -> Any:
    """The parameters with their shardings."""
    at = {name: mw.NamedSharding(mesh, spec) for name, spec in specs.items()}
    layers = [{name: put(w, at[name]) for name, w in layer.items()} for layer in params["layers"]]
    return {"embed": put(params["embed"], at["embed"]), "layers": layers}


def steps(folder: str = ".") -> Iterator[TourStop]:
    """A decoder's train step: written, traced, laid out, explained, checked, simulated, improved, searched, shown."""
    yield TourStop(
        "You write a train step, for one device", inspect.getsource(loss) + "\n" + inspect.getsource(step).rstrip()
    )
    numbers = np.random.default_rng(0)
    small = shapes(WIDTH, WORDS, HEADS, "float32")
    params = mw.tree.map(lambda s: mnp.asarray(numbers.normal(size=s.shape, scale=0.1), "float32"), small)
    tokens = mnp.asarray(numbers.integers(0, WORDS, (8, 33)))
    program = mw.make_program(step)(params, tokens)
    head = "\n".join(program.to_text().splitlines()[:8])
    yield TourStop(
        "It is traced and differentiated into one typed program",
        f"{head}\n  …\n\n{len(program.eqns)} equations, each with a type and the line it came from.",
        {"equations": len(program.eqns)},
    )
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    there = placed(params, mesh, SPECS, mw.device_put)
    batch = mw.device_put(tokens, mw.NamedSharding(mesh, mw.P("data")))
    compiled = mw.jit(step).lower(there, batch).compile()
    one, many = float(step(params, tokens)[0]), float(compiled(there, batch)[0])
    close = mw.tree.map(
        lambda a, b: float(abs(np.asarray(a) - np.asarray(b)).max()), step(params, tokens), compiled(there, batch)
    )
    worst = max(mw.tree.leaves(close))
    given = "\n".join(f"  {name:<6} {spec}" for name, spec in SPECS.items())
    yield TourStop(
        "You say how a few arrays are laid out on 8 devices, and it runs there",
        f"mesh data=2, model=4; the batch over data; parameters:\n{given}\n\n"
        f"loss on 8 devices {many:.6f}, on one {one:.6f}; no updated parameter differs by more than {worst:.1e}",
        {"losses": [many, one], "largest_difference": worst},
    )
    yield from _large(folder)


def _large(folder: str) -> Iterator[TourStop]:
    """The same step of a size that is worth many chips: explained, simulated, improved, searched, shown."""
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    wide = shapes(WIDE, 32768, WIDE // 128, "bfloat16")
    tokens = mw.ShapeDtypeStruct((16, 1025), "int32", sharding=mw.NamedSharding(mesh, mw.P("data")))

    def on(s: Any, sharding: Any) -> Any:
        return mw.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding)

    def compiled(specs: Any) -> Any:
        return mw.jit(step, donate_argnums=0).lower(placed(wide, mesh, specs, on), tokens).compile()

    before = compiled(SPECS)
    yield TourStop(
        f"The same step, {WIDE} wide: where does the time of communication go, and why?",
        before.explain("tpu v5e", top=3),
        {"collectives": len(before.collectives)},
    )
    runs = {name: before.simulate(name) for name in ("tpu v5e", "h100")}
    yield TourStop(
        "How long does it take on hardware that is not here?",
        "\n\n".join(map(str, runs.values())),
        {name: run.seconds for name, run in runs.items()},
    )
    hints = before.explanation("tpu v5e").cheaper()
    best = next(hint for hint in hints if hint.kind == "argument")
    name = best.argument.split("'")[-2]
    after = compiled({**SPECS, name: best.spec})
    saved = runs["tpu v5e"].seconds - after.simulate("tpu v5e").seconds
    changed = "\n".join(str(before.diff(after, "tpu v5e")).splitlines()[:12])
    yield TourStop(
        "What do I change? A hint that was tried, applied",
        f"{best}\n\n{changed}\n…\n\npromised {best.saved_seconds * 1e6:.0f} µs, saved {saved * 1e6:.0f} µs",
        {"promised_seconds": best.saved_seconds, "saved_seconds": saved},
    )
    machine = mw.hardware.Topology("h100", 64)
    plain = mw.ShapeDtypeStruct((64, 1025), "int32")
    found = mw.find_layout(step, wide, plain, topology=machine, fixed={"data": 8, "model": 8})
    yield TourStop(
        "And on 64 H100s, data=8 and model=8: which sharding of every parameter is fastest?",
        f"{found.best.seconds * 1e3:.2f} ms a step, {found.best.peak_bytes_per_device / 1e9:.1f} GB a device\n\n"
        f"{found.best.code()}",
        {"seconds": found.best.seconds},
    )
    page, trace = (os.path.join(folder, name) for name in ("tour.html", "tour.perfetto.json"))
    before.report(page, "tpu v5e", other=after)
    runs["tpu v5e"].to_perfetto(trace)
    yield TourStop(
        "See for yourself",
        f"{page}: open it in a browser. Sort the collectives by what is exposed; zoom into the timeline;\n"
        "choose a value of the program to see which device holds which block; compare before and after the hint.\n"
        f"{trace}: the same timeline for https://ui.perfetto.dev.",
        {"page": page, "trace": trace},
    )
