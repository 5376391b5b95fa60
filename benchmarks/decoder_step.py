"""A decoder of 70B parameters as a user writes it: a list of layers (or a scan over them), Adam in float32."""

from dataclasses import dataclass

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


@dataclass(frozen=True)
class Config:
    vocab: int = 128256
    dim: int = 8192
    layers: int = 80
    heads: int = 64
    kv_heads: int = 8
    hidden: int = 28672
    length: int = 4096
    scan: bool = False


def init(key, c):
    k = c.dim // c.heads
    z = lambda *s: mnp.zeros(s, "bfloat16")
    pre = (c.layers,) if c.scan else ()
    layer = lambda: {
        "wq": z(*pre, c.dim, c.heads, k),
        "wk": z(*pre, c.dim, c.kv_heads, k),
        "wv": z(*pre, c.dim, c.kv_heads, k),
        "wo": z(*pre, c.heads, k, c.dim),
        "gate": z(*pre, c.dim, c.hidden),
        "up": z(*pre, c.dim, c.hidden),
        "down": z(*pre, c.hidden, c.dim),
        "n1": z(*pre, c.dim),
        "n2": z(*pre, c.dim),
    }
    layers = layer() if c.scan else [layer() for _ in range(c.layers)]
    params = {"embed": z(c.vocab, c.dim), "head": z(c.dim, c.vocab), "norm": z(c.dim), "layers": layers}
    f32 = lambda t: mw.tree.map(lambda x: mnp.zeros(x.shape, "float32"), t)
    return {"params": params, "m": f32(params), "v": f32(params), "master": f32(params)}


def make_batch(key, c, batch=8):
    return mnp.zeros((batch, c.length + 1), "int32")


def norm(x, s):
    y = x.astype("float32")
    return (y * lax.rsqrt(mnp.mean(y * y, -1, keepdims=True) + 1e-5)).astype(x.dtype) * s


def rope(x):
    half = x.shape[-1] // 2
    f = 10000.0 ** (-mnp.arange(half, dtype="float32") / half)
    a = mnp.arange(x.shape[1], dtype="float32")[:, None] * f
    s, c = mnp.sin(a)[None, :, None].astype(x.dtype), mnp.cos(a)[None, :, None].astype(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return mnp.concatenate([left * c - right * s, right * c + left * s], -1)


def block(x, p, c):
    y = norm(x, p["n1"])
    q, k, v = (mnp.einsum("bld,dhk->blhk", y, p[n]) for n in ("wq", "wk", "wv"))
    q, k = rope(q), rope(k)
    g = c.heads // c.kv_heads
    q = q.reshape(*q.shape[:2], c.kv_heads, g, -1)
    s = mnp.einsum("bqhgk,bshk->bhgqs", q, k).astype("float32") * q.shape[-1] ** -0.5
    i = mnp.arange(x.shape[1])
    w = mw.nn.softmax(mnp.where(i[:, None] >= i[None], s, -1e9), -1).astype(x.dtype)
    o = mnp.einsum("bhgqs,bshk->bqhgk", w, v).reshape(*x.shape[:2], c.heads, -1)
    x = x + mnp.einsum("blhk,hkd->bld", o, p["wo"])
    y = norm(x, p["n2"])
    return x + (mw.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def loss(params, tokens, c):
    x = params["embed"][tokens[:, :-1]]
    if c.scan:
        x, _ = lax.scan(lambda x, p: (block(x, p, c), None), x, params["layers"])
    else:
        for p in params["layers"]:
            x = block(x, p, c)
    logits = (norm(x, params["norm"]) @ params["head"]).astype("float32")
    lp = mw.nn.log_softmax(logits, -1)
    return -mnp.mean(mnp.take_along_axis(lp, tokens[:, 1:, None], -1))


def train_step(state, batch, config):
    v, g = mw.value_and_grad(loss)(state["params"], batch, config)
    m = mw.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype("float32"), state["m"], g)
    n = mw.tree.map(lambda n, g: 0.95 * n + 0.05 * g.astype("float32") ** 2, state["v"], g)
    w = mw.tree.map(lambda w, m, n: w - 1e-4 * m / (mnp.sqrt(n) + 1e-8), state["master"], m, n)
    p = mw.tree.map(lambda w: w.astype("bfloat16"), w)
    return v, {"params": p, "m": m, "v": n, "master": w}
