"""A decoder-only transformer as the program of one device: data, tensor, sequence and pipeline parallelism by hand.

    axis      what is split over it
    data      the batch; with ``fsdp`` also every matrix, gathered where it is used
    tensor    heads, the hidden dim of the MLP, the vocabulary; with ``sequence_parallel`` positions between them
    pipeline  layers; microbatches go from stage to stage

Gradients are summed where a parameter is the same on several devices: that follows from types. Attention runs over
blocks of queries, so that the scores of one block alone are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from meshwright import lax, nn
from meshwright import numpy as mnp
from meshwright.api.custom import checkpoint
from meshwright.api.grad import value_and_grad
from meshwright.api.shard_map import shard_map
from meshwright.arrays.tracing import ShapeDtypeStruct, make_program
from meshwright.core import tree
from meshwright.core.dtypes import as_dtype, holds_integers
from meshwright.core.program import Program
from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.transformer import TransformerShape
from meshwright.sharding.mesh import AbstractMesh
from meshwright.sharding.spec import P, PartitionSpec
from meshwright.simulate.transformer.strategy import Strategy

QUERY_BLOCK = 512  # queries whose scores are in memory at a time

Arrays = Mapping[str, Any]


def parameters(shape: TransformerShape, dtype: Any = "bfloat16") -> dict[str, Any]:
    """The shapes of all parameters; those of layers are stacked."""
    if shape.experts != 1:
        raise HardwareError(
            f"There is no program for {shape.experts} experts.",
            where=here(),
            why="the transformer that is built here is dense",
            fix="experts=1",
        )
    kv = shape.heads if shape.kv_heads is None else shape.kv_heads
    layer = {
        "wq": (shape.width, shape.heads, shape.head_dim),
        "wk": (shape.width, kv, shape.head_dim),
        "wv": (shape.width, kv, shape.head_dim),
        "wo": (shape.heads, shape.head_dim, shape.width),
        "up": (shape.width, shape.hidden),
        "down": (shape.hidden, shape.width),
        "attention_norm": (shape.width,),
        "mlp_norm": (shape.width,),
    }
    if shape.gated:
        layer["gate"] = (shape.width, shape.hidden)
    found: dict[str, Any] = {
        "embed": ShapeDtypeStruct((shape.vocab, shape.width), dtype),
        "norm": ShapeDtypeStruct((shape.width,), dtype),
        "layers": {name: ShapeDtypeStruct((shape.layers, *dims), dtype) for name, dims in layer.items()},
    }
    if not shape.tied:
        found["head"] = ShapeDtypeStruct((shape.vocab, shape.width), dtype)
    return found


# Where parameters are split: over "tensor", and with fsdp over "data" along the dim of the model's width.
_SPLIT = {
    "wq": (None, "data", "tensor", None),
    "wk": (None, "data", "tensor", None),
    "wv": (None, "data", "tensor", None),
    "wo": (None, "tensor", None, "data"),
    "gate": (None, "data", "tensor"),
    "up": (None, "data", "tensor"),
    "down": (None, "tensor", "data"),
    "attention_norm": (None, None),
    "mlp_norm": (None, None),
    "embed": ("tensor", "data"),
    "head": ("tensor", "data"),
    "norm": (None,),
}


def _spec(name: str, strategy: Strategy, stacked: bool) -> PartitionSpec:
    dims = [None if axis == "data" and not strategy.fsdp else axis for axis in _SPLIT[name]]
    if stacked:
        dims[0] = "pipeline"
    return P(*[axis if axis in strategy.mesh else None for axis in dims])


def specs(params: Mapping[str, Any], strategy: Strategy) -> dict[str, Any]:
    """The partition spec of each parameter."""
    found: dict[str, Any] = {name: _spec(name, strategy, False) for name in params if name != "layers"}
    found["layers"] = {name: _spec(name, strategy, True) for name in params["layers"]}
    return found


# Along an axis of one device there is nothing to do.


def _sum(x: Any, strategy: Strategy, axis: str = "tensor") -> Any:
    return lax.psum(x, axis) if axis in strategy.mesh else x


def _place(strategy: Strategy, axis: str = "tensor") -> Any:
    return lax.axis_index(axis) if axis in strategy.mesh else 0


def _gathered(x: Any, strategy: Strategy) -> Any:
    """All positions, of which a device may have a part between tensor-parallel layers."""
    parts = strategy.sequence_parallel and strategy.tensor > 1
    return lax.all_gather(x, "tensor", axis=1, tiled=True) if parts else x


def _scattered(x: Any, strategy: Strategy) -> Any:
    """The sum over "tensor", of all positions or of a device's own."""
    if strategy.sequence_parallel and strategy.tensor > 1:
        return lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True)
    return _sum(x, strategy)


def _whole(name: str, w: Any, strategy: Strategy) -> Any:
    """A parameter of one layer with its parts from along "data"."""
    if not strategy.fsdp or strategy.data == 1 or "data" not in _SPLIT[name]:
        return w
    dims = _SPLIT[name][1:] if w.ndim < len(_SPLIT[name]) else _SPLIT[name]
    return lax.all_gather(w, "data", axis=dims.index("data"), tiled=True)


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(mnp.float32)
    return (wide * lax.rsqrt(mnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _attend(q: Any, k: Any, v: Any, start: Any) -> Any:
    """Queries [batch, block, kv heads, groups, dim] from position ``start`` on, over keys [batch, length, kv, dim]."""
    scores = mnp.einsum("bqhgk,bshk->bhgqs", q, k).astype(mnp.float32) * q.shape[-1] ** -0.5
    positions = start + mnp.arange(q.shape[1])
    causal = positions[:, None] >= mnp.arange(k.shape[1])[None, :]
    weights = nn.softmax(mnp.where(causal, scores, -1e9), axis=-1).astype(q.dtype)
    return mnp.einsum("bhgqs,bshk->bqhgk", weights, v)


def _attention(layer: Arrays, x: Any) -> Any:
    q = mnp.einsum("bld,dhk->blhk", x, layer["wq"])
    k = mnp.einsum("bld,dhk->blhk", x, layer["wk"])
    v = mnp.einsum("bld,dhk->blhk", x, layer["wv"])
    batch, length, heads, dim = q.shape
    grouped = q.reshape(batch, length, k.shape[2], heads // k.shape[2], dim)
    if length > QUERY_BLOCK and length % QUERY_BLOCK == 0:
        count = length // QUERY_BLOCK
        blocks = mnp.moveaxis(grouped.reshape(batch, count, QUERY_BLOCK, *grouped.shape[2:]), 1, 0)
        starts = mnp.arange(count) * QUERY_BLOCK
        step = checkpoint(_attend)
        _, out = lax.scan(lambda c, xs: (c, step(xs[0], k, v, xs[1])), 0, (blocks, starts))
        mixed = mnp.moveaxis(out, 0, 1)
    else:
        mixed = _attend(grouped, k, v, 0)
    return mnp.einsum("blhk,hkd->bld", mixed.reshape(batch, length, heads, dim), layer["wo"])


def _mlp(layer: Arrays, y: Any) -> Any:
    up = y @ layer["up"]
    return (nn.silu(y @ layer["gate"]) * up if "gate" in layer else nn.gelu(up)) @ layer["down"]


def _layer(x: Any, layer: Arrays, strategy: Strategy) -> Any:
    whole = {name: _whole(name, w, strategy) for name, w in layer.items()}
    for norm, function in (("attention_norm", _attention), ("mlp_norm", _mlp)):
        y = _gathered(_norm(x, whole[norm]), strategy)
        x = x + _scattered(function(whole, y), strategy)
    return x


def _embed(table: Any, tokens: Any, strategy: Strategy, dtype: Any = None) -> Any:
    """Rows of a table that is split by rows: each device looks up its own, and the sum has all."""
    mine = tokens - _place(strategy) * table.shape[0]
    here_ = (mine >= 0) & (mine < table.shape[0])
    rows = table[mnp.clip(mine, 0, table.shape[0] - 1)].astype(dtype or table.dtype)
    rows = mnp.where(here_[..., None], rows, 0)
    return _scattered(rows, strategy)


def _cross_entropy(head: Any, x: Any, targets: Any, strategy: Strategy) -> Any:
    """The mean over tokens, with logits split by words."""
    logits = (x @ head.T).astype(mnp.float32)
    top = lax.stop_gradient(logits.max(-1))
    top = lax.pmax(top, "tensor") if strategy.tensor > 1 else top
    total = _sum(mnp.exp(logits - top[..., None]).sum(-1), strategy)
    mine = targets - _place(strategy) * head.shape[0]
    here_ = (mine >= 0) & (mine < head.shape[0])
    picked = mnp.take_along_axis(logits, mnp.clip(mine, 0, head.shape[0] - 1)[..., None], axis=-1)[..., 0]
    return mnp.mean(mnp.log(total) + top - _sum(mnp.where(here_, picked, 0.0), strategy))


def _stage(x: Any, layers: Arrays, strategy: Strategy) -> Any:
    step = partial(_layer, strategy=strategy)
    if strategy.recompute != "none":
        step = checkpoint(step)
    x, _ = lax.scan(lambda x, layer: (step(x, layer), None), x, layers)
    return x


def _pipeline(x: Any, layers: Arrays, strategy: Strategy) -> Any:
    """Microbatches through the stages: at each tick a stage takes what the one before it made at the last."""
    stages, count = strategy.pipeline, strategy.microbatches
    parts = x.reshape(count, x.shape[0] // count, *x.shape[1:])
    stage = lax.axis_index("pipeline")
    ring = [(n, (n + 1) % stages) for n in range(stages)]
    idle = mnp.zeros((stages - 1, *parts.shape[1:]), x.dtype)
    if strategy.data > 1 and not strategy.fsdp:  # gradients are summed over "data" once, not at every tick
        layers = tree.map(lambda w: lax.pbroadcast(w, "data"), layers)

    def tick(before: Any, part: Any) -> tuple[Any, Any]:
        after = _stage(mnp.where(stage == 0, part, before), layers, strategy)
        return lax.ppermute(after, "pipeline", ring), after

    _, outs = lax.scan(tick, mnp.zeros(parts.shape[1:], x.dtype), mnp.concatenate([parts, idle]))
    done = outs[stages - 1 :].reshape(x.shape)
    return lax.psum(mnp.where(stage == stages - 1, done, 0), "pipeline")


def loss(params: Arrays, tokens: Any, strategy: Strategy) -> Any:
    """The loss on one device's part of a batch; equal on all devices."""
    x = _embed(_whole("embed", params["embed"], strategy), tokens, strategy)
    x = _pipeline(x, params["layers"], strategy) if strategy.pipeline > 1 else _stage(x, params["layers"], strategy)
    x = _gathered(_norm(x, params["norm"]), strategy)
    head = "embed" if "head" not in params else "head"
    targets = mnp.roll(tokens, -1, axis=1)
    found = _cross_entropy(_whole(head, params[head], strategy), x, targets, strategy)
    return lax.pmean(found, "data") if strategy.data > 1 else found


def _adam(p: Any, g: Any, m: Any, v: Any, rate: float = 1e-3) -> tuple[Any, Any, Any]:
    g = g.astype(mnp.float32)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return (p.astype(mnp.float32) - rate * m / (mnp.sqrt(v) + 1e-8)).astype(p.dtype), m, v


def check(shape: TransformerShape, strategy: Strategy, batch: int, sequence: int) -> None:
    """That everything which is split is a multiple of the number of its parts."""
    kv = shape.heads if shape.kv_heads is None else shape.kv_heads
    rules = [
        ("heads", shape.heads, kv, "kv_heads"),
        ("heads", shape.heads, strategy.tensor, "tensor"),
        ("kv_heads", kv, strategy.tensor, "tensor"),
        ("hidden", shape.hidden, strategy.tensor, "tensor"),
        ("vocab", shape.vocab, strategy.tensor, "tensor"),
        ("width", shape.width, strategy.data if strategy.fsdp else 1, "data"),
        ("layers", shape.layers, strategy.pipeline, "pipeline"),
        ("batch", batch, strategy.data * strategy.microbatches, "data times microbatches"),
        ("sequence", sequence, strategy.tensor if strategy.sequence_parallel else 1, "tensor"),
    ]
    for name, size, parts, axis in rules:
        if size % parts:
            raise HardwareError(
                f"{name}={size} is not split into {parts} equal parts.",
                where=here(),
                why=f"{axis} is {parts}, and every device does the same",
                fix=f"{name}={-(-size // parts) * parts}",
            )


def train_program(
    shape: TransformerShape,
    strategy: Strategy,
    batch: int,
    sequence: int,
    dtype: Any = "bfloat16",
    optimizer: bool = True,
) -> Program:
    """A train step with Adam on ``batch`` sequences: parameters and moments in, the loss and both out.

    Without ``optimizer``: parameters in, the loss and the gradient out.

    >>> shape = TransformerShape(layers=2, width=64, hidden=256, heads=4, head_dim=16, vocab=128)
    >>> program = train_program(shape, Strategy(data=2, tensor=2), batch=4, sequence=32)
    >>> program.out_types[0].short()
    'f32[]'
    """
    check(shape, strategy, batch, sequence)
    params = parameters(shape, dtype)
    moments = tree.map(lambda p: ShapeDtypeStruct(p.shape, "float32"), params)
    layout, rows = specs(params, strategy), _batch(strategy)
    tokens = ShapeDtypeStruct((batch, sequence), "int32")
    gradient = value_and_grad(partial(loss, strategy=strategy))
    if not optimizer:
        return make_program(_mapped(gradient, strategy, (layout, rows), (P(), layout)))(params, tokens)

    def step(params: Any, m: Any, v: Any, tokens: Any) -> Any:
        value, found = gradient(params, tokens)
        structure = tree.flatten(params)[1]
        updated = tree.leaves(tree.map(_adam, params, found, m, v))
        return value, *(tree.unflatten(structure, updated[n::3]) for n in range(3))

    held, results = (layout, layout, layout, rows), (P(), layout, layout, layout)
    return make_program(_mapped(step, strategy, held, results))(params, moments, moments, tokens)


def _batch(strategy: Strategy) -> PartitionSpec:
    return P("data" if strategy.data > 1 else None)


def _mapped(function: Any, strategy: Strategy, in_specs: Any, out_specs: Any) -> Any:
    mesh = strategy.mesh
    if not mesh:
        return function
    made = AbstractMesh(tuple(mesh.values()), tuple(mesh))
    return shard_map(function, mesh=made, in_specs=in_specs, out_specs=out_specs)


def forward_program(
    shape: TransformerShape, strategy: Strategy, batch: int, sequence: int, dtype: Any = "bfloat16"
) -> Program:
    """The loss of ``batch`` sequences, without a gradient."""
    check(shape, strategy, batch, sequence)
    params = parameters(shape, dtype)
    held = (specs(params, strategy), _batch(strategy))
    mapped = _mapped(partial(loss, strategy=strategy), strategy, held, P())
    return make_program(mapped)(params, ShapeDtypeStruct((batch, sequence), "int32"))


def decode_program(
    shape: TransformerShape, tensor: int, batch: int, context: int, dtype: Any = "bfloat16", cache_dtype: Any = None
) -> Program:
    """One step of decoding: a token of each sequence, over caches of ``context`` tokens; the next tokens' logits.

    Of an integer dtype are the matrices and caches, which products read as they are stored; the rest is bf16. Scales
    are left out.
    """
    strategy = Strategy(tensor=tensor)
    check(shape, strategy, batch, 1)
    computed = "bfloat16" if holds_integers(as_dtype(dtype)) else dtype
    params = parameters(shape, computed)
    for one in (params, params["layers"]):
        matrices = {name: w for name, w in one.items() if name in _SPLIT and set(_SPLIT[name]) != {None}}
        one.update({name: ShapeDtypeStruct(w.shape, dtype) for name, w in matrices.items()})
    kv = shape.heads if shape.kv_heads is None else shape.kv_heads
    cache = ShapeDtypeStruct((shape.layers, batch, context, kv, shape.head_dim), cache_dtype or dtype)

    def layer_step(x: Any, one: Any) -> tuple[Any, tuple[Any, Any]]:
        stored, keys, values = one
        layer = {name: w.astype(x.dtype) for name, w in stored.items()}
        y = _norm(x, layer["attention_norm"])
        q = mnp.einsum("bd,dhk->bhk", y, layer["wq"])
        k = mnp.einsum("bd,dhk->bhk", y, layer["wk"])
        v = mnp.einsum("bd,dhk->bhk", y, layer["wv"])
        grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[2])
        scores = mnp.einsum("bhgk,bshk->bhgs", grouped, keys.astype(q.dtype)).astype(mnp.float32)
        own = mnp.einsum("bhgk,bhk->bhg", grouped, k).astype(mnp.float32)[..., None]
        weights = nn.softmax(mnp.concatenate([scores, own], axis=-1) * q.shape[2] ** -0.5, axis=-1).astype(q.dtype)
        mixed = mnp.einsum("bhgs,bshk->bhgk", weights[..., :-1], values.astype(q.dtype))
        mixed = mixed + weights[..., -1:] * v[:, :, None, :]
        out = mnp.einsum("bhk,hkd->bd", mixed.reshape(q.shape), layer["wo"])
        x = x + _sum(out, strategy)
        x = x + _sum(_mlp(layer, _norm(x, layer["mlp_norm"])), strategy)
        return x, (k.astype(keys.dtype), v.astype(values.dtype))

    def step(params: Any, keys: Any, values: Any, tokens: Any) -> Any:
        x = _embed(params["embed"], tokens, strategy, computed)
        x, new = lax.scan(layer_step, x, (params["layers"], keys, values))
        head = params["embed"] if "head" not in params else params["head"]
        return _norm(x, params["norm"]) @ head.astype(x.dtype).T, new

    split = "tensor" if tensor > 1 else None
    held, new = P(None, None, None, split), P(None, None, split)
    mapped = _mapped(step, strategy, (specs(params, strategy), held, held, P()), (P(None, split), (new, new)))
    return make_program(mapped)(params, cache, cache, ShapeDtypeStruct((batch,), "int32"))
