"""A decoder-only transformer written for one device: data, tensor, sequence, context, expert and pipeline parallelism.

    axis      what is split over it
    data      the batch
    expert    the batch, and the experts: tokens are sent to them by all-to-all
    context   positions, a block from either end of the sequence; keys and values are gathered
    tensor    heads, the hidden dim of the MLP, the vocabulary; with ``sequence_parallel`` positions between them
    pipeline  layers; microbatches go from stage to stage

Where there are more devices of ``tensor`` than key and value heads, neighbours have copies of a head. The vocabulary is
padded to a multiple of ``tensor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from meshwright import lax, nn
from meshwright import numpy as mnp
from meshwright.api.custom import checkpoint
from meshwright.api.shard_map import shard_map
from meshwright.arrays.tracing import ShapeDtypeStruct, make_program
from meshwright.core import tree
from meshwright.core.dtypes import as_dtype, holds_integers
from meshwright.core.program import Program
from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.arguments import checked
from meshwright.hardware.transformer import TransformerShape
from meshwright.sharding.mesh import AbstractMesh
from meshwright.sharding.spec import P, PartitionSpec
from meshwright.simulate.transformer.arguments import STEP, computed, stored
from meshwright.simulate.transformer.strategy import Strategy

REPLICAS = ("data", "expert", "context")  # the axes along which devices have the same of most parameters
EXPERTS = ("gate", "up", "down")  # the parameters that experts have of their own
_MOST_TRIED = 1 << 12  # degrees that are tried for a fix

Arrays = Mapping[str, Any]


def layer_dims(shape: TransformerShape) -> dict[str, tuple[int, ...]]:
    """The dims of the parameters of a layer."""
    kv = shape.heads if shape.kv_heads is None else shape.kv_heads
    experts = (shape.experts,) if shape.experts > 1 else ()
    found = {
        "wq": (shape.width, shape.heads, shape.head_dim),
        "wk": (shape.width, kv, shape.head_dim),
        "wv": (shape.width, kv, shape.head_dim),
        "wo": (shape.heads, shape.head_dim, shape.width),
        "up": (*experts, shape.width, shape.hidden),
        "down": (*experts, shape.hidden, shape.width),
        "attention_norm": (shape.width,),
        "mlp_norm": (shape.width,),
    }
    if shape.gated:
        found["gate"] = (*experts, shape.width, shape.hidden)
    if experts:
        found["router"] = (shape.width, shape.experts)
    return found


def parameters(shape: TransformerShape, dtype: Any = "bfloat16", tensor: int = 1) -> dict[str, Any]:
    """The shapes of all parameters; those of layers are stacked."""
    table = ShapeDtypeStruct((-(-shape.vocab // tensor) * tensor, shape.width), dtype)
    found: dict[str, Any] = {
        "embed": table,
        "norm": ShapeDtypeStruct((shape.width,), dtype),
        "layers": {name: ShapeDtypeStruct((shape.layers, *dims), dtype) for name, dims in layer_dims(shape).items()},
    }
    if not shape.tied:
        found["head"] = table
    return found


# What each dim of a parameter is split over; "zero" is the dim that replicas share out if they do.
_SPLIT = {
    "wq": ("zero", "tensor", None),
    "wk": ("zero", "kv", None),
    "wv": ("zero", "kv", None),
    "wo": ("tensor", None, "zero"),
    "gate": ("zero", "tensor"),
    "up": ("zero", "tensor"),
    "down": ("tensor", "zero"),
    "router": (None, None),
    "attention_norm": (None,),
    "mlp_norm": (None,),
    "embed": ("tensor", "zero"),
    "head": ("tensor", "zero"),
    "norm": (None,),
}


def replicas(name: str, ndim: int, strategy: Strategy) -> tuple[str, ...]:
    """The axes along which devices have the same of a parameter, and sum its gradient."""
    own = name in EXPERTS and ndim > len(_SPLIT[name])
    return tuple(axis for axis in REPLICAS if axis in strategy.mesh and not (own and axis == "expert"))


def split_of(
    name: str, dims: tuple[int, ...], strategy: Strategy, kv_heads: int, zero: bool = False
) -> tuple[tuple[str, ...], ...]:
    """The mesh axes that each dim of a parameter (of one layer) is split over; with ``zero`` replicas share it out."""
    own = ("expert",) if len(dims) > len(_SPLIT[name]) else ()
    kv = ("tensor",) if strategy.tensor <= kv_heads else (f"tensor:(1){kv_heads}",)
    axes = {
        "tensor": ("tensor",),
        "kv": kv if kv_heads > 1 else (),
        "expert": ("expert",),
        "zero": replicas(name, len(dims), strategy) if zero else (),
        None: (),
    }
    found = [axes[dim] for dim in (*own, *_SPLIT[name])]
    return tuple(tuple(a for a in one if a.split(":")[0] in strategy.mesh) for one in found)


def zero_dim(name: str, ndim: int) -> int | None:
    """The dim of a parameter that replicas share out."""
    dims = _SPLIT[name]
    return ndim - len(dims) + dims.index("zero") if "zero" in dims else None


def specs(params: Mapping[str, Any], strategy: Strategy, zero: bool | None = None) -> dict[str, Any]:
    """The partition spec of each parameter."""
    shared = strategy.zero == 3 if zero is None else zero
    kv = params["layers"]["wk"].shape[2]

    def spec(name: str, shape: tuple[int, ...], lead: tuple[Any, ...]) -> PartitionSpec:
        axes = split_of(name, shape[len(lead) :], strategy, kv, shared)
        return P(*lead, *(one if len(one) > 1 else one[0] if one else None for one in axes))

    found: dict[str, Any] = {name: spec(name, p.shape, ()) for name, p in params.items() if name != "layers"}
    stage = "pipeline" if strategy.pipeline > 1 else None
    found["layers"] = {name: spec(name, p.shape, (stage,)) for name, p in params["layers"].items()}
    return found


# Along an axis of one device there is nothing to do.


def _sum(x: Any, strategy: Strategy, axis: str = "tensor") -> Any:
    return lax.psum(x, axis) if axis in strategy.mesh else x


def _place(strategy: Strategy, axis: str = "tensor") -> Any:
    return lax.axis_index(axis) if axis in strategy.mesh else 0


def gathered(x: Any, strategy: Strategy) -> Any:
    """All positions, of which a device may have a part between tensor-parallel layers."""
    parts = strategy.sequence_parallel and strategy.tensor > 1
    return lax.all_gather(x, "tensor", axis=1, tiled=True) if parts else x


def scattered(x: Any, strategy: Strategy) -> Any:
    """The sum over "tensor", of all positions or of a device's own."""
    if strategy.sequence_parallel and strategy.tensor > 1:
        return lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True)
    return _sum(x, strategy)


def whole(name: str, w: Any, strategy: Strategy) -> Any:
    """A parameter of one layer with its parts from along the axes of its replicas."""
    axes, dim = replicas(name, w.ndim, strategy), zero_dim(name, w.ndim)
    if strategy.zero < 3 or not axes or dim is None:
        return w
    return lax.all_gather_invariant(w, axes, axis=dim, tiled=True)


def norm(x: Any, scale: Any) -> Any:
    """x / sqrt(mean x²), scaled."""
    wide = x.astype(mnp.float32)
    return (wide * lax.rsqrt(mnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def positions_of(place: Any, length: int, strategy: Strategy) -> Any:
    """The positions of a sequence that a device along "context" has, of which there are ``length``.

    A block from either end of the sequence, so that a causal mask leaves every device the same work; of an odd number
    of positions, one block.
    """
    own = mnp.arange(length)
    if length % 2:
        return place * length + own
    half = length // 2
    return own + mnp.where(own < half, place * half, (2 * strategy.context - 2 - place) * half)


def _attend(q: Any, k: Any, v: Any, queries: Any, keys: Any) -> Any:
    """Queries [batch, block, kv heads, groups, dim] over keys [batch, length, kv, dim], at their positions."""
    scores = mnp.einsum("bqhgk,bshk->bhgqs", q, k).astype(mnp.float32) * q.shape[-1] ** -0.5
    causal = queries[:, None] >= keys[None, :]
    weights = nn.softmax(mnp.where(causal, scores, -1e9), axis=-1).astype(q.dtype)
    return mnp.einsum("bhgqs,bshk->bqhgk", weights, v)


def _attention(layer: Arrays, x: Any, strategy: Strategy) -> Any:
    q = mnp.einsum("bld,dhk->blhk", x, layer["wq"])
    k = mnp.einsum("bld,dhk->blhk", x, layer["wk"])
    v = mnp.einsum("bld,dhk->blhk", x, layer["wv"])
    batch, length, heads, dim = q.shape
    queries = keys = mnp.arange(length)
    if strategy.context > 1:
        k, v = (lax.all_gather(one, "context", axis=1, tiled=True) for one in (k, v))
        queries = positions_of(_place(strategy, "context"), length, strategy)
        keys = positions_of(mnp.arange(strategy.context)[:, None], length, strategy).reshape(-1)
    grouped = q.reshape(batch, length, k.shape[2], heads // k.shape[2], dim)
    step = checkpoint(_attend) if strategy.recompute == "attention" else _attend
    mixed = step(grouped, k, v, queries, keys)
    return mnp.einsum("blhk,hkd->bld", mixed.reshape(batch, length, heads, dim), layer["wo"])


def _mlp(layer: Arrays, y: Any) -> Any:
    up = y @ layer["up"]
    return (nn.silu(y @ layer["gate"]) * up if "gate" in layer else nn.gelu(up)) @ layer["down"]


def _experts(layer: Arrays, y: Any, strategy: Strategy, active: int) -> Any:
    """Each token through ``active`` experts, which take an equal share of the tokens each and drop what is more."""
    tokens = y.reshape(-1, y.shape[-1])
    count = layer["router"].shape[-1]
    capacity = -(-tokens.shape[0] * active // count)
    weights, chosen = lax.top_k(nn.softmax((tokens @ layer["router"]).astype(mnp.float32), axis=-1), active)
    taken = nn.one_hot(chosen, count, dtype=mnp.int32)
    order = mnp.cumsum(taken.reshape(-1, count), axis=0).reshape(taken.shape)
    slots = mnp.sum(order * taken, axis=-1) - 1
    weights = (weights * (slots < capacity)).astype(y.dtype)
    slots = mnp.where(slots < capacity, slots, capacity)
    sent = mnp.broadcast_to(tokens[:, None, :], (*chosen.shape, tokens.shape[-1]))
    buffers = mnp.zeros((count, capacity, tokens.shape[-1]), y.dtype).at[chosen, slots].add(sent, mode="drop")
    if strategy.expert > 1:
        buffers = lax.all_to_all(buffers, "expert", 0, 1, tiled=True)
    hidden = mnp.einsum("ecd,edf->ecf", buffers, layer["up"])
    if "gate" in layer:
        hidden = nn.silu(mnp.einsum("ecd,edf->ecf", buffers, layer["gate"])) * hidden
    else:
        hidden = nn.gelu(hidden)
    results = mnp.einsum("ecf,efd->ecd", hidden, layer["down"])
    if strategy.expert > 1:
        results = lax.all_to_all(results, "expert", 1, 0, tiled=True)
    received = results.at[chosen, slots].get(mode="fill", fill_value=0)
    return mnp.einsum("tk,tkd->td", weights, received).reshape(y.shape)


def layer(x: Any, w: Arrays, strategy: Strategy, active: int = 1) -> Any:
    """One layer on whole parameters."""

    def mlp(w: Arrays, y: Any) -> Any:
        return _experts(w, y, strategy, active) if "router" in w else _mlp(w, y)

    for name, function in (("attention_norm", partial(_attention, strategy=strategy)), ("mlp_norm", mlp)):
        y = gathered(norm(x, w[name]), strategy)
        x = x + scattered(function(w, y), strategy)
    return x


def embed(table: Any, tokens: Any, strategy: Strategy, dtype: Any = None) -> Any:
    """Rows of a table that is split by rows: each device looks up its own, and the sum has all."""
    mine = tokens - _place(strategy) * table.shape[0]
    here_ = (mine >= 0) & (mine < table.shape[0])
    rows = table[mnp.clip(mine, 0, table.shape[0] - 1)].astype(dtype or table.dtype)
    rows = mnp.where(here_[..., None], rows, 0)
    return scattered(rows, strategy)


def head_loss(x: Any, scale: Any, table: Any, targets: Any, strategy: Strategy) -> Any:
    """The mean cross entropy of a device's tokens, with logits split by words."""
    logits = (gathered(norm(x, scale), strategy) @ table.T).astype(mnp.float32)
    top = lax.stop_gradient(logits.max(-1))
    top = lax.pmax(top, "tensor") if strategy.tensor > 1 else top
    total = _sum(mnp.exp(logits - top[..., None]).sum(-1), strategy)
    mine = targets - _place(strategy) * table.shape[0]
    here_ = (mine >= 0) & (mine < table.shape[0])
    picked = mnp.take_along_axis(logits, mnp.clip(mine, 0, table.shape[0] - 1)[..., None], axis=-1)[..., 0]
    return mnp.mean(mnp.log(total) + top - _sum(mnp.where(here_, picked, 0.0), strategy))


def tokens_and_targets(tokens: Any, strategy: Strategy) -> tuple[Any, Any]:
    """The tokens at the positions that a device has, given those of its block of the sequence; and the ones after."""
    if strategy.context == 1:
        return tokens, mnp.roll(tokens, -1, axis=1)
    all_ = lax.all_gather(tokens, "context", axis=1, tiled=True)
    own = positions_of(_place(strategy, "context"), tokens.shape[1], strategy)
    return mnp.take(all_, own, axis=1), mnp.take(mnp.roll(all_, -1, axis=1), own, axis=1)


def _stage(x: Any, layers: Arrays, strategy: Strategy, active: int) -> Any:
    def step(x: Any, one: Arrays) -> Any:
        return layer(x, {name: whole(name, w, strategy) for name, w in one.items()}, strategy, active)

    run = checkpoint(step) if strategy.keeps_inputs else step
    x, _ = lax.scan(lambda x, one: (run(x, one), None), x, layers)
    return x


def _pipeline(x: Any, layers: Arrays, strategy: Strategy, active: int) -> Any:
    """Microbatches through the stages: at each tick a stage takes what the one before it made at the last."""
    stages, count = strategy.pipeline, strategy.microbatches
    parts = x.reshape(count, x.shape[0] // count, *x.shape[1:])
    stage = lax.axis_index("pipeline")
    ring = [(n, (n + 1) % stages) for n in range(stages)]
    idle = mnp.zeros((stages - 1, *parts.shape[1:]), x.dtype)
    if strategy.data > 1 and not strategy.fsdp:  # gradients are summed over "data" once, not at every tick
        layers = tree.map(lambda w: lax.pbroadcast(w, "data"), layers)

    def tick(before: Any, part: Any) -> tuple[Any, Any]:
        after = _stage(mnp.where(stage == 0, part, before), layers, strategy, active)
        return lax.ppermute(after, "pipeline", ring), after

    _, outs = lax.scan(tick, mnp.zeros(parts.shape[1:], x.dtype), mnp.concatenate([parts, idle]))
    done = outs[stages - 1 :].reshape(x.shape)
    return lax.psum(mnp.where(stage == stages - 1, done, 0), "pipeline")


def loss(params: Arrays, tokens: Any, strategy: Strategy, active: int = 1) -> Any:
    """The loss on one device's part of a batch; equal on all devices. A pipeline's stages run in lock step."""
    tokens, targets = tokens_and_targets(tokens, strategy)
    x = embed(whole("embed", params["embed"], strategy), tokens, strategy)
    run = _pipeline if strategy.pipeline > 1 else _stage
    x = run(x, params["layers"], strategy, active)
    table = "embed" if "head" not in params else "head"
    found = head_loss(x, params["norm"], whole(table, params[table], strategy), targets, strategy)
    axes = tuple(axis for axis in REPLICAS if axis in strategy.mesh)
    return lax.pmean(found, axes) if axes else found


def stage_layers(layers: int, stages: int) -> list[int] | None:
    """The layers of each stage: equally many, or one fewer in the first and the last, which have the vocabulary."""
    if layers % stages == 0:
        return [layers // stages] * stages
    most, rest = divmod(layers + 2, stages)
    return [most - 1, *[most] * (stages - 2), most - 1] if not rest and stages > 2 and most > 1 else None


class _EqualParts(NamedTuple):
    """A size that is split into equal parts, what the number of parts is, and which degree of a strategy lowers it."""

    name: str
    size: int
    parts: int
    why: str
    degree: str = ""


def splits(shape: TransformerShape, strategy: Strategy, batch: int, sequence: int) -> list[_EqualParts]:
    """The sizes that a strategy splits, each a multiple of its parts if the strategy is one for the model."""
    kv = shape.heads if shape.kv_heads is None else shape.kv_heads
    positions = strategy.context * (strategy.tensor if strategy.sequence_parallel else 1)
    shared = strategy.data * strategy.expert * strategy.context if strategy.zero else 1
    stages = strategy.pipeline * strategy.chunks
    uneven = 1 if stage_layers(shape.layers, stages) else stages
    rows = strategy.data * strategy.expert * strategy.microbatches
    return [
        _EqualParts("heads", shape.heads, kv, "kv_heads"),
        _EqualParts("heads", shape.heads, strategy.tensor, "tensor", "tensor"),
        _EqualParts("kv_heads", max(kv, strategy.tensor), min(kv, strategy.tensor), "tensor", "tensor"),
        _EqualParts("hidden", shape.hidden, strategy.tensor, "tensor", "tensor"),
        _EqualParts("width", shape.width, shared, "what zero shares out", "data"),
        _EqualParts("experts", shape.experts, strategy.expert, "expert", "expert"),
        _EqualParts("layers", shape.layers, uneven, "pipeline", "pipeline"),
        _EqualParts("batch", batch, rows, "data times microbatches"),
        _EqualParts("sequence", sequence, positions, "what positions are shared by"),
    ]


def check(shape: TransformerShape, strategy: Strategy, batch: int, sequence: int) -> None:
    """That everything which is split is a multiple of the number of its parts."""
    for one in splits(shape, strategy, batch, sequence):
        if one.size % one.parts:
            raise HardwareError(
                f"{one.name}={one.size} is not split into {one.parts} equal parts.",
                where=here(),
                why=f"{one.why} is {one.parts}, and every device does the same",
                fix=_fix(one, shape, strategy),
            )


def _fix(bad: _EqualParts, shape: TransformerShape, strategy: Strategy) -> str:
    """What to change: a batch or a sequence to the next multiple, else the degree that splits a size of the model."""
    if not bad.degree:
        return f"{bad.name}={-(-bad.size // bad.parts) * bad.parts}"
    most = min(getattr(strategy, bad.degree) - 1, bad.size, _MOST_TRIED)
    for degree in range(most, 0, -1):
        other = replace(strategy, **{bad.degree: degree})  # type: ignore[arg-type]
        if not any(one.size % one.parts for one in splits(shape, other, 0, 0) if one.degree == bad.degree):
            return f"{bad.degree}={degree}"
    return "zero=0" if bad.name == "width" else "schedule='1f1b', chunks=1"


def batch_spec(strategy: Strategy) -> PartitionSpec:
    """How tokens [batch, sequence] are split."""
    rows = tuple(axis for axis in ("data", "expert") if axis in strategy.mesh)
    return P(rows if len(rows) > 1 else rows[0] if rows else None, "context" if strategy.context > 1 else None)


def mapped(function: Any, strategy: Strategy, in_specs: Any, out_specs: Any) -> Any:
    """The function of one device on all devices of the strategy's mesh."""
    mesh = strategy.mesh
    if not mesh:
        return function
    made = AbstractMesh(tuple(mesh.values()), tuple(mesh))
    return shard_map(function, mesh=made, in_specs=in_specs, out_specs=out_specs)


@checked("a step", dtype=computed, **STEP)
def forward_program(
    shape: TransformerShape, strategy: Strategy, batch: int, sequence: int, dtype: Any = "bfloat16"
) -> Program:
    """The loss of ``batch`` sequences, without a gradient."""
    check(shape, strategy, batch, sequence)
    params = parameters(shape, dtype, strategy.tensor)
    held = (specs(params, strategy), batch_spec(strategy))
    run = mapped(partial(loss, strategy=strategy, active=shape.experts_per_token), strategy, held, P())
    return make_program(run)(params, ShapeDtypeStruct((batch, sequence), "int32"))


def _stored_parameters(shape: TransformerShape, tensor: int, dtype: Any) -> tuple[dict[str, Any], Any]:
    """Parameters with matrices of a dtype, which may be an integer one, and the dtype of everything else."""
    computed = "bfloat16" if holds_integers(as_dtype(dtype)) else dtype
    params = parameters(shape, computed, tensor)
    for one in (params, params["layers"]):
        matrices = {name: w for name, w in one.items() if name in _SPLIT and set(_SPLIT[name]) != {None}}
        one.update({name: ShapeDtypeStruct(w.shape, dtype) for name, w in matrices.items()})
    return params, computed


def _cache_axis(shape: TransformerShape, strategy: Strategy) -> Any:
    """What the heads of a cache are split over."""
    kv = shape.heads if shape.kv_heads is None else shape.kv_heads
    axes = split_of("wk", (shape.width, kv, shape.head_dim), strategy, kv)[1]
    return axes[0] if axes else None


@checked("a step", dtype=stored, cache_dtype=stored, **STEP)
def prefill_program(
    shape: TransformerShape, tensor: int, batch: int, sequence: int, dtype: Any = "bfloat16", cache_dtype: Any = None
) -> Program:
    """The prompts of ``batch`` sequences at once: the logits of the tokens after them, and the caches to decode with.

    Dtypes are those of `decode_program`.
    """
    strategy = Strategy(tensor=tensor)
    check(shape, strategy, batch, sequence)
    params, computed = _stored_parameters(shape, tensor, dtype)

    def layer_step(x: Any, stored: Any) -> tuple[Any, tuple[Any, Any]]:
        layer = {name: w.astype(x.dtype) for name, w in stored.items()}
        y = norm(x, layer["attention_norm"])
        q, k, v = (mnp.einsum("bld,dhk->blhk", y, layer[name]) for name in ("wq", "wk", "wv"))
        grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
        mixed = _attend(grouped, k, v, mnp.arange(sequence), mnp.arange(sequence)).reshape(q.shape)
        x = x + _sum(mnp.einsum("blhk,hkd->bld", mixed, layer["wo"]), strategy)
        y = norm(x, layer["mlp_norm"])
        out = _experts(layer, y, strategy, shape.experts_per_token) if "router" in layer else _mlp(layer, y)
        return x + _sum(out, strategy), tuple(one.astype(cache_dtype or dtype) for one in (k, v))  # type: ignore[return-value]

    def step(params: Any, tokens: Any) -> Any:
        x = embed(params["embed"], tokens, strategy, computed)
        x, caches = lax.scan(layer_step, x, params["layers"])
        head = params["embed"] if "head" not in params else params["head"]
        return norm(x[:, -1], params["norm"]) @ head.astype(x.dtype).T, caches

    made = P(None, None, None, _cache_axis(shape, strategy))
    words = P(None, "tensor" if tensor > 1 else None)
    run = mapped(step, strategy, (specs(params, strategy), P()), (words, (made, made)))
    return make_program(run)(params, ShapeDtypeStruct((batch, sequence), "int32"))


@checked("a step", dtype=stored, cache_dtype=stored, **STEP)
def decode_program(
    shape: TransformerShape, tensor: int, batch: int, context: int, dtype: Any = "bfloat16", cache_dtype: Any = None
) -> Program:
    """One step of decoding: a token of each sequence, over caches of ``context`` tokens; the next tokens' logits.

    Of an integer dtype are the matrices and caches, which products read as they are stored; the rest is bf16. Scales
    are left out.
    """
    strategy = Strategy(tensor=tensor)
    check(shape, strategy, batch, 1)
    params, computed = _stored_parameters(shape, tensor, dtype)
    kv = shape.heads if shape.kv_heads is None else shape.kv_heads
    cache = ShapeDtypeStruct((shape.layers, batch, context, kv, shape.head_dim), cache_dtype or dtype)

    def layer_step(x: Any, one: Any) -> tuple[Any, tuple[Any, Any]]:
        stored, keys, values = one
        layer = {name: w.astype(x.dtype) for name, w in stored.items()}
        y = norm(x, layer["attention_norm"])
        q = mnp.einsum("bd,dhk->bhk", y, layer["wq"])
        k = mnp.einsum("bd,dhk->bhk", y, layer["wk"])
        v = mnp.einsum("bd,dhk->bhk", y, layer["wv"])
        grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[2])
        scale = q.shape[2] ** -0.5
        scores = mnp.einsum("bhgk,bshk->bhgs", grouped, keys.astype(q.dtype)).astype(mnp.float32) * scale
        own = mnp.einsum("bhgk,bhk->bhg", grouped, k).astype(mnp.float32) * scale
        top = mnp.maximum(scores.max(-1), own)
        weights, mine = mnp.exp(scores - top[..., None]), mnp.exp(own - top)
        mixed = mnp.einsum("bhgs,bshk->bhgk", weights.astype(q.dtype), values.astype(q.dtype))
        mixed = mixed + mine[..., None].astype(q.dtype) * v[:, :, None, :]
        mixed = mixed / (weights.sum(-1) + mine)[..., None].astype(q.dtype)
        out = mnp.einsum("bhk,hkd->bd", mixed.reshape(q.shape), layer["wo"])
        x = x + _sum(out, strategy)
        y = norm(x, layer["mlp_norm"])
        out = _experts(layer, y, strategy, shape.experts_per_token) if "router" in layer else _mlp(layer, y)
        x = x + _sum(out, strategy)
        return x, (k.astype(keys.dtype), v.astype(values.dtype))

    def step(params: Any, keys: Any, values: Any, tokens: Any) -> Any:
        x = embed(params["embed"], tokens, strategy, computed)
        x, new = lax.scan(layer_step, x, (params["layers"], keys, values))
        head = params["embed"] if "head" not in params else params["head"]
        return norm(x, params["norm"]) @ head.astype(x.dtype).T, new

    split = _cache_axis(shape, strategy)
    held, new = P(None, None, None, split), P(None, None, split)
    words = P(None, "tensor" if tensor > 1 else None)
    run = mapped(step, strategy, (specs(params, strategy), held, held, P()), (words, (new, new)))
    return make_program(run)(params, cache, cache, ShapeDtypeStruct((batch,), "int32"))
