"""Layers and training losses as they are split by hand, against ``jax.shard_map``: values and derivatives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shard_map.counterparts import Case, Cases, Kit, check_case

CASES = Cases()
D, F, B, S, H, V = 8, 16, 4, 8, 4, 6  # model, hidden, batch, sequence, heads, vocabulary


@CASES.add((B, D), (D, F), (F, D), orders=2)
def megatron_mlp(k: Kit) -> Any:
    """The hidden dim is cut over y, the batch over x; one psum."""

    @k.map(mesh=k.mesh(x=2, y=4), ins=(k.P("x"), k.P(None, "y"), k.P("y", None)), outs=k.P("x"))
    def f(x: Any, w1: Any, w2: Any) -> Any:
        return k.lax.psum(k.np.tanh(x @ w1) @ w2, "y")

    return f


@CASES.add((B, S, D), (D, D), (D, D), (D, D), (D, D))
def megatron_attention(k: Kit) -> Any:
    """Heads are cut over y."""

    @k.map(mesh=k.mesh(x=2, y=4), ins=(k.P("x"), *[k.P(None, "y")] * 3, k.P("y", None)), outs=k.P("x"))
    def f(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        heads = H // k.lax.axis_size("y")
        q, key, v = (k.np.reshape(x @ w, (*x.shape[:2], heads, D // H)) for w in (wq, wk, wv))
        scores = k.np.einsum("bshd,bthd->bhst", q, key)
        mask = k.np.tril(k.np.ones((S, S), bool))
        p = k.package.nn.softmax(k.np.where(mask, scores, -1e9), axis=-1)
        y = k.np.einsum("bhst,bthd->bshd", p, v).reshape(*x.shape[:2], -1)
        return k.lax.psum(y @ wo, "y")

    return f


@CASES.add((B, S, D), (D, F), (F, D), (D,))
def sequence_parallel_block(k: Kit) -> Any:
    """Norms run on blocks of the sequence: all_gather before the layer, psum_scatter after it."""

    @k.map(mesh=k.mesh(x=2, y=4), ins=(k.P("x", "y"), k.P(None, "y"), k.P("y", None), k.P(None)), outs=k.P("x", "y"))
    def f(x: Any, w1: Any, w2: Any, g: Any) -> Any:
        h = x * k.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g
        h = k.lax.all_gather(h, "y", axis=1, tiled=True)
        h = k.np.tanh(h @ w1) @ w2
        return x + k.lax.psum_scatter(h, "y", scatter_dimension=1, tiled=True)

    return f


@CASES.add((B, S, D), (D, D), (D, D), (D, D))
def sequence_parallel_attention(k: Kit) -> Any:
    """Queries stay in their block of the sequence; keys and values are gathered."""

    @k.map(mesh=k.mesh(s=8), ins=(k.P(None, "s"), k.P(), k.P(), k.P()), outs=k.P(None, "s"))
    def f(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        key = k.lax.all_gather(x @ wk, "s", axis=1, tiled=True)
        v = k.lax.all_gather(x @ wv, "s", axis=1, tiled=True)
        rows = k.lax.axis_index("s") * x.shape[1] + k.np.arange(x.shape[1])
        scores = k.np.einsum("bsd,btd->bst", x @ wq, key)
        scores = k.np.where(rows[:, None] >= k.np.arange(S)[None, :], scores, -1e9)
        return k.package.nn.softmax(scores, axis=-1) @ v

    return f


@CASES.add((16, D), (D, F), (F, D))
def fsdp_layer(k: Kit) -> Any:
    """Weights live in blocks, are gathered for use, and their gradients leave as blocks."""

    @k.map(mesh=k.mesh(d=8), ins=(k.P("d"), k.P("d"), k.P(None, "d")), outs=k.P())
    def f(x: Any, w1: Any, w2: Any) -> Any:
        w1 = k.lax.all_gather(w1, "d", axis=0, tiled=True)
        w2 = k.lax.all_gather(w2, "d", axis=1, tiled=True)
        return k.lax.pmean((k.np.sin(x @ w1) @ w2).sum(), "d")

    return f


@CASES.add((16, D), (8, F), (F, D))
def fsdp_gradient_step(k: Kit) -> Any:
    """The gradient is taken inside, and scattered by hand: the update of ZeRO."""

    @k.map(mesh=k.mesh(d=8), ins=(k.P("d"), k.P("d"), k.P("d")), outs=(k.P("d"), k.P("d")))
    def f(x: Any, w1: Any, w2: Any) -> Any:
        whole = [k.lax.all_gather(w, "d", axis=0, tiled=True) for w in (w1, w2)]
        g1, g2 = k.package.grad(lambda w: (k.np.sin(x @ w[0]) @ w[1]).sum())(whole)
        return (
            w1 - 0.1 * k.lax.psum_scatter(g1, "d", scatter_dimension=0, tiled=True),
            w2 - 0.1 * k.lax.psum_scatter(g2, "d", scatter_dimension=0, tiled=True),
        )

    return f


LAYERS = [{"w": (D, F), "b": (F,)}, {"w": (F, V), "b": (V,)}]


@CASES.add(LAYERS, {"x": (16, D), "y": (16, V)}, orders=2)
def data_parallel_loss(k: Kit) -> Any:
    """A tree of parameters that all devices hold; one spec for all of it."""

    @k.map(mesh=k.mesh(batch=8), ins=(k.P(), k.P("batch")), outs=k.P())
    def loss(params: Any, data: Any) -> Any:
        h = data["x"]
        for layer in params:
            h = k.np.tanh(h @ layer["w"] + layer["b"])
        return k.lax.pmean(((h - data["y"]) ** 2).mean(), "batch")

    return loss


@CASES.add(LAYERS, {"x": (16, D), "y": (16, V)})
def data_parallel_step(k: Kit) -> Any:
    """value_and_grad around the shard_map, and an update, all differentiated once more from outside."""

    @k.map(mesh=k.mesh(batch=8), ins=(k.P(), k.P("batch")), outs=k.P())
    def loss(params: Any, data: Any) -> Any:
        h = data["x"]
        for layer in params:
            h = k.np.tanh(h @ layer["w"] + layer["b"])
        return k.lax.psum(((h - data["y"]) ** 2).sum(), "batch")

    def step(params: Any, data: Any) -> Any:
        value, g = k.package.value_and_grad(loss)(params, data)
        return value, k.package.tree.map(lambda p, d: p - 0.01 * d, params, g)

    return step


@CASES.add((B, D), (D, F), (F, D), (B, D))
def data_and_tensor_parallel_loss(k: Kit) -> Any:
    """Batch over x, hidden over y, loss over both."""

    @k.map(mesh=k.mesh(x=4, y=2), ins=(k.P("x"), k.P(None, "y"), k.P("y"), k.P("x")), outs=k.P())
    def f(x: Any, w1: Any, w2: Any, t: Any) -> Any:
        out = k.lax.psum(k.np.maximum(x @ w1, 0) @ w2, "y")
        return k.lax.pmean(((out - t) ** 2).mean(), "x")

    return f


def _ring(k: Kit, causal: bool) -> Any:
    n = 8
    right = [(i, (i + 1) % n) for i in range(n)]

    @k.map(mesh=k.mesh(s=n), ins=k.P(None, "s"), outs=k.P(None, "s"))
    def f(q: Any, key: Any, v: Any) -> Any:
        block = q.shape[1]
        me = k.lax.axis_index("s")

        def step(carry: Any, i: Any) -> Any:
            key, v, out, total, most = carry
            scores = k.np.einsum("bsd,btd->bst", q, key)
            if causal:
                rows = me * block + k.np.arange(block)
                columns = ((me - i) % n) * block + k.np.arange(block)
                scores = k.np.where(rows[:, None] >= columns[None, :], scores, -1e9)
            above = k.lax.stop_gradient(k.np.maximum(most, scores.max(-1, keepdims=True)))
            p = k.np.exp(scores - above)
            shrink = k.np.exp(most - above)
            out = out * shrink + p @ v
            total = total * shrink + p.sum(-1, keepdims=True)
            key, v = k.lax.ppermute(key, "s", right), k.lax.ppermute(v, "s", right)
            return (key, v, out, total, above), None

        zero = k.vary(k.np.zeros((*q.shape[:2], 1)), "s")
        start = (key, v, k.vary(k.np.zeros(q.shape), "s"), zero, zero - 1e9)
        (_, _, out, total, _), _ = k.lax.scan(step, start, k.np.arange(n))
        return out / total

    return f


@CASES.add((2, 16, 4), (2, 16, 4), (2, 16, 4))
def ring_attention(k: Kit) -> Any:
    """Keys and values go around while every device keeps its queries."""
    return _ring(k, causal=False)


@CASES.add((2, 8, 4), (2, 8, 4), (2, 8, 4))
def causal_ring_attention(k: Kit) -> Any:
    return _ring(k, causal=True)


@CASES.add((6, 3, D), (4, D, D))
def pipeline_loop(k: Kit) -> Any:
    """Microbatches enter at the first device and leave at the last, moved on by ppermute in a scan."""
    n, micro = 4, 6

    @k.map(mesh=k.mesh(p=n), ins=(k.P(), k.P("p")), outs=k.P("p"))
    def f(x: Any, w: Any) -> Any:
        me = k.lax.axis_index("p")
        x = k.vary(x, "p")

        def step(carry: Any, t: Any) -> Any:
            held, outs = carry
            new = k.lax.dynamic_index_in_dim(x, k.np.clip(t, 0, micro - 1), 0, keepdims=False)
            now = k.np.tanh(k.np.where(me == 0, new, held) @ w[0])
            at = k.np.clip(t - (n - 1), 0, micro - 1)
            old = k.lax.dynamic_index_in_dim(outs, at, 0, keepdims=False)
            put = k.np.where((me == n - 1) & (t >= n - 1), now, old)
            outs = k.lax.dynamic_update_index_in_dim(outs, put, at, 0)
            return (k.lax.ppermute(now, "p", [(i, i + 1) for i in range(n - 1)]), outs), None

        start = (k.vary(k.np.zeros(x.shape[1:]), "p"), k.vary(k.np.zeros(x.shape), "p"))
        (_, outs), _ = k.lax.scan(step, start, k.np.arange(micro + n - 1))
        return outs[None]

    return f


@CASES.add((32, D), (D, 8), (8, D, F), (8, F, D))
def mixture_of_experts(k: Kit) -> Any:
    """One expert per device; tokens travel by all_to_all, at most `capacity` from each device to each expert."""
    experts, capacity = 8, 3

    @k.map(mesh=k.mesh(e=8), ins=(k.P("e"), k.P(), k.P("e"), k.P("e")), outs=k.P("e"))
    def f(x: Any, router: Any, w1: Any, w2: Any) -> Any:
        gates = k.package.nn.softmax(x @ router, axis=-1)
        chosen = gates.argmax(-1)
        one_hot = (chosen[:, None] == k.np.arange(experts)).astype(x.dtype)
        place = (k.np.cumsum(one_hot, axis=0) - 1.0) * one_hot
        keep = one_hot * (place < capacity)
        slot = (place.sum(-1)[:, None] == k.np.arange(capacity)).astype(x.dtype)
        send = k.np.einsum("te,tc->tec", keep, slot)
        bags = k.np.einsum("tec,td->ecd", send, x)
        bags = k.lax.all_to_all(bags, "e", 0, 1, tiled=True)  # [1, from · capacity, D]
        done = k.np.tanh(bags[0] @ w1[0]) @ w2[0]
        back = k.lax.all_to_all(done[None], "e", 1, 0, tiled=True)
        return k.np.einsum("tec,ecd->td", send, back) * (gates * one_hot).sum(-1, keepdims=True)

    return f


@CASES.add((8, 4, D), (D, 4), (4, D, D))
def mixture_of_experts_on_a_grid(k: Kit) -> Any:
    """Experts over y, data over x, tokens to experts by a soft mixture and an untiled all_to_all."""

    @k.map(mesh=k.mesh(x=2, y=4), ins=(k.P(("x", "y")), k.P(), k.P("y")), outs=k.P(("x", "y")))
    def f(x: Any, router: Any, w: Any) -> Any:
        gates = k.package.nn.softmax(x[0] @ router, axis=-1)  # [t, e]
        bags = k.np.einsum("te,td->etd", gates, x[0])
        bags = k.lax.all_to_all(bags, "y", 0, 0, tiled=True)
        done = k.np.tanh(bags @ w[0])
        return k.lax.all_to_all(done, "y", 0, 0, tiled=True).sum(0)[None]

    return f


@CASES.add((8, D), (V, D), (8,))
def split_vocabulary_cross_entropy(k: Kit) -> Any:
    """Logits are cut along the vocabulary; the log of the sum of exponentials is put together by psum."""

    @k.map(mesh=k.mesh(x=4, v=2), ins=(k.P("x"), k.P("v"), k.P("x")), outs=k.P())
    def f(x: Any, w: Any, t: Any) -> Any:
        logits = x @ w.T
        most = k.lax.pmax(k.lax.stop_gradient(logits.max(-1)), "v")
        total = k.lax.psum(k.np.exp(logits - most[:, None]).sum(-1), "v")
        index = k.np.floor(k.np.abs(k.lax.stop_gradient(t))).astype("int32") % V
        mine = k.lax.axis_index("v") * logits.shape[1] + k.np.arange(logits.shape[1])
        at = k.lax.psum(k.np.where(mine == index[:, None], logits, 0.0).sum(-1), "v")
        return k.lax.pmean((k.np.log(total) + most - at).mean(), "x")

    return f


@CASES.add((8, 8), (8, 8))
def gathering_matmul_by_a_ring(k: Kit) -> Any:
    """An all_gather overlapped with a matmul: a Python loop of ppermutes and products."""
    n = 4

    @k.map(mesh=k.mesh(x=n), ins=(k.P("x"), k.P(None, "x")), outs=k.P(None, "x"))
    def f(a: Any, b: Any) -> Any:
        me = k.lax.axis_index("x")
        out = k.vary(k.np.zeros((8, b.shape[1])), "x")
        for i in range(n):
            start = ((me + i) % n) * a.shape[0]
            out = k.lax.dynamic_update_slice(out, a @ b, (start, k.np.zeros_like(start)))
            a = k.lax.ppermute(a, "x", [(j, (j - 1) % n) for j in range(n)])
        return out

    return f


@CASES.add((8, 8), (8, 8))
def scattering_matmul_by_a_ring(k: Kit) -> Any:
    """A psum_scatter overlapped with a matmul."""
    n = 4

    @k.map(mesh=k.mesh(x=n), ins=(k.P(None, "x"), k.P("x")), outs=k.P("x"))
    def f(a: Any, b: Any) -> Any:
        me = k.lax.axis_index("x")
        rows = a.shape[0] // n

        def part(i: Any) -> Any:
            return k.lax.dynamic_slice_in_dim(a, ((me + i) % n) * rows, rows, 0) @ b

        out = part(n - 1)
        for i in range(n - 2, -1, -1):
            out = k.lax.ppermute(out, "x", [(j, (j + 1) % n) for j in range(n)]) + part(i)
        return out

    return f


@CASES.add((8, D, D), (16, D), orders=2)
def layers_in_a_scan_sharded(k: Kit) -> Any:
    """Layers whose weights are cut along y are scanned; the carry stays whole along y."""

    @k.map(mesh=k.mesh(x=2, y=4), ins=(k.P(None, None, "y"), k.P("x")), outs=k.P("x"))
    def f(ws: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            mine = k.np.tanh(h @ w)
            out = k.lax.psum(mine @ w.T, "y")
            return out / 4.0, out.sum()

        h, sums = k.lax.scan(layer, x, ws)
        return h + sums.sum()

    return f


@CASES.add((3, D, D), (16, D))
def layers_in_a_scan_replicated(k: Kit) -> Any:
    """Weights that all devices hold, scanned: one sum of gradients for the whole stack."""

    @k.map(mesh=k.mesh(b=8), ins=(k.P(), k.P("b")), outs=k.P())
    def f(ws: Any, x: Any) -> Any:
        h, _ = k.lax.scan(lambda h, w: (k.np.sin(h @ w), None), x, ws)
        return k.lax.psum((h * h).sum(), "b")

    return f


@CASES.add((4, 8, 6), (6, 5), (5,))
def batch_statistics(k: Kit) -> Any:
    """Means and variances over all devices, used by each."""

    @k.map(mesh=k.mesh(x=4, y=2), ins=(k.P("x", "y"), k.P(), k.P()), outs=k.P("x", "y"))
    def f(x: Any, w: Any, b: Any) -> Any:
        mean = k.lax.pmean(x.mean((0, 1)), ("x", "y"))
        spread = k.lax.pmean(((x - mean) ** 2).mean((0, 1)), ("x", "y"))
        return ((x - mean) * k.lax.rsqrt(spread + 1e-5)) @ w + b

    return f


@CASES.add((8, 6, 5), (3, 5, 4))
def convolution_with_halos(k: Kit) -> Any:
    """The sequence is cut; each device fetches one row from either neighbour."""
    n = 4

    @k.map(mesh=k.mesh(s=n), ins=(k.P("s"), k.P()), outs=k.P("s"))
    def f(x: Any, w: Any) -> Any:
        left = k.lax.ppermute(x[-1:], "s", [(i, i + 1) for i in range(n - 1)])
        right = k.lax.ppermute(x[:1], "s", [(i + 1, i) for i in range(n - 1)])
        wide = k.np.concatenate([left, x, right], axis=0)
        return sum(wide[i : i + x.shape[0]] @ w[i] for i in range(3))

    return f


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_to_jax(case: Case, x64: None) -> None:
    check_case(case)
