"""The programs of one device that a train step is made of: each is traced once for its sizes, and split into forward
and backward.

A layer's forward returns what its backward reads (*residuals*). Of these, views, casts and what follows from parameters
alone are made again backward; so are elementwise values that backward's elementwise kernels read, as fused kernels do,
and gathers, so that sequence parallelism keeps a device's own positions. With ``recompute="matmuls"`` every elementwise
value is; with "full" a layer keeps its input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

from meshwright import lax
from meshwright.api.grad import vjp
from meshwright.core import dtypes
from meshwright.core.facts import Fusion
from meshwright.core.op import fusion_of
from meshwright.core.program import Atom, Eqn, Literal, Program, Var
from meshwright.core.trace import Manual, close, run, state, trace
from meshwright.core.types import TensorType, union
from meshwright.hardware.transformer import TransformerShape
from meshwright.ops.residual import offload, reload
from meshwright.sharding.mesh import AbstractMesh
from meshwright.simulate.attention import fuse_attention
from meshwright.simulate.transformer import program as model
from meshwright.simulate.transformer.strategy import Strategy
from meshwright.transform.simplify import dce
from meshwright.transform.stack import inline_calls

_ELEMENTWISE = (Fusion.CHEAP, Fusion.ELEMENTWISE, Fusion.PERMUTATION)


class ForwardBackward(NamedTuple):
    """A function and its derivative as two programs.

    ``forward`` takes parameters, then the other operands, and returns the result, then residuals; ``backward`` takes
    parameters, residuals and the cotangent of the result, and returns those of the operands that have one, then those
    of parameters. ``kept`` says of each residual whether it is an operand of the function itself.
    """

    forward: Program
    backward: Program
    kept: tuple[bool, ...]

    @property
    def residuals(self) -> tuple[TensorType, ...]:
        return self.forward.out_types[1:]


# Tracing


def kv_heads(shape: TransformerShape) -> int:
    """The number of key and value heads."""
    return shape.heads if shape.kv_heads is None else shape.kv_heads


def mesh_of(strategy: Strategy, kv: int) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """The axes of one stage's mesh; "tensor" in two parts where neighbours have copies of a key and value head."""
    axes: dict[str, int] = {}
    parts: dict[str, tuple[str, ...]] = {}
    for name, size in strategy.mesh.items():
        if name == "tensor" and size > kv > 1:
            parts[name] = (f"tensor:(1){kv}", f"tensor:({kv}){size // kv}")
            axes.update(zip(parts[name], (kv, size // kv), strict=True))
        elif name != "pipeline":
            axes[name] = size
    return axes, parts


def local(function: Callable[..., Sequence[Any]], types: Sequence[TensorType], strategy: Strategy, kv: int) -> Program:
    """The program of a function of one device on values of these types."""
    axes, parts = mesh_of(strategy, kv)
    before = state.manual, state.builder
    mesh = {name: size for name, size in strategy.mesh.items() if name != "pipeline"}
    if mesh:
        abstract = AbstractMesh(tuple(mesh.values()), tuple(mesh))
        state.manual = Manual(abstract, axes, dict.fromkeys(axes, 0), parts, True)
    state.builder = None
    try:
        found, captured = trace(function, types)
    finally:
        state.manual, state.builder = before
    return inline_calls(close(found, captured), shard_maps=False)


def block(
    dims: Sequence[int], split: Sequence[Sequence[str]], strategy: Strategy, kv: int, dtype: Any, lead: int = 0
) -> TensorType:
    """The type of a device's part of an array; a stack of ``lead`` of them, if that is given."""
    sizes, parts = mesh_of(strategy, kv)
    named = [[p for axis in axes for p in parts.get(axis, (axis,))] for axes in split]
    shape = tuple(size // prod(sizes[axis] for axis in axes) for size, axes in zip(dims, named, strict=True))
    varying = union([tuple(axis for axes in named for axis in axes)])
    return TensorType((lead, *shape) if lead else shape, dtypes.as_dtype(dtype), varying=varying)


def split(found: Program, weights: int, every_elementwise: bool) -> ForwardBackward:
    """A program of (parameters, operands, cotangent) -> (result, cotangents) as forward and backward."""
    found = dce(found)
    cotangent, operands = found.inputs[-1], found.inputs[weights:-1]
    late: set[Atom] = {cotangent}
    for eqn in found.eqns:
        if any(a in late for a in eqn.inputs):
            late.update(eqn.outputs)
    ahead = Program(found.inputs[:-1], tuple(e for e in found.eqns if e.outputs[0] not in late), found.outputs[:1])
    needed_ahead = {v for eqn in dce(ahead).eqns for v in eqn.outputs}
    constants = {v for v, _ in found.constants}
    maker = {v: eqn for eqn in ahead.eqns for v in eqn.outputs}
    plain: set[Atom] = {*found.inputs[:weights], *constants}  # parameters, and what follows from them
    for eqn in ahead.eqns:
        if all(a.__class__ is Literal or a in plain for a in eqn.inputs):
            plain.update(eqn.outputs)
    readers: dict[Atom, list[Eqn]] = {}
    wanted: set[Atom] = {a for a in found.outputs[1:] if a not in late and a.__class__ is Var}

    def take(eqn: Eqn) -> None:
        for a in eqn.inputs:
            if a.__class__ is Var:
                readers.setdefault(a, []).append(eqn)
                wanted.add(a)

    def by_kernels_of_its_own(v: Atom) -> bool:
        for eqn in readers.get(v, ()):
            fusion = fusion_of(eqn)
            if fusion.alone or eqn.regions():
                return True
            if fusion in (Fusion.VIEW, Fusion.PERMUTATION) and any(by_kernels_of_its_own(o) for o in eqn.outputs):
                return True
        return False

    def extra(a: Atom, depth: int = 0) -> int:
        """Bytes more to keep if a value is to be had backward."""
        if a.__class__ is Literal or a in plain or (a in wanted and depth):
            return 0
        eqn = maker.get(a)  # type: ignore[arg-type]
        if eqn is None or (depth and not elementwise(eqn)):
            return a.type.nbytes
        below = sum(extra(one, depth + 1) for one in set(eqn.inputs))
        return below if not depth else min(a.type.nbytes, below)

    def elementwise(eqn: Eqn) -> bool:
        return not eqn.regions() and fusion_of(eqn) in (*_ELEMENTWISE, Fusion.VIEW)

    def again(eqn: Eqn) -> bool:
        """Whether backward makes a value itself that forward has made."""
        v = eqn.outputs[0]
        gathers = eqn.op.collective is not None and v.type.nbytes > eqn.inputs[0].type.nbytes
        if v in plain or v not in needed_ahead or fusion_of(eqn) is Fusion.VIEW or gathers:
            return True
        if not elementwise(eqn) or len(eqn.outputs) > 1:
            return False
        return (every_elementwise or not by_kernels_of_its_own(v)) and extra(v) < v.type.nbytes

    own: list[Eqn] = []
    for eqn in reversed(found.eqns):
        if eqn.outputs[0] in late or (any(v in wanted for v in eqn.outputs) and again(eqn)):
            own.append(eqn)
            take(eqn)
    made = {v for eqn in own for v in eqn.outputs}
    given = {*found.inputs[:weights], *constants, cotangent}
    kept = [v for v in (*operands, *maker) if v in wanted and v not in made and v not in given]
    forward = dce(replace(ahead, outputs=(*found.outputs[:1], *kept), constants=found.constants))
    inputs = (*found.inputs[:weights], *kept, cotangent)
    backward = dce(Program(inputs, tuple(reversed(own)), found.outputs[1:], found.constants))  # type: ignore[arg-type]
    return ForwardBackward(forward, backward, tuple(v in operands for v in kept))


def _run_again(found: ForwardBackward, weights: int, strategy: Strategy, kv: int) -> ForwardBackward:
    """Forward and backward of a layer that keeps its operand, or whose host does: backward begins with all of forward.

    Its last product, which backward does not read, is run again, too, as checkpoints of most frameworks do.
    """
    host = strategy.on_host

    def ahead(*args: Any) -> list[Any]:
        return [run(found.forward, args)[0], offload(args[-1]) if host else args[-1]]

    def body(*args: Any) -> list[Any]:
        w, x, cotangent = args[:weights], args[weights], args[-1]
        x = reload(x) if host else x
        return run(found.backward, [*w, *run(found.forward, [*w, x])[1:], cotangent])

    types = [v.type for v in found.forward.inputs]
    forward = dce(local(ahead, types, strategy, kv))
    return ForwardBackward(forward, local(body, [*types, found.backward.inputs[-1].type], strategy, kv), (not host,))


def _differentiated(function: Callable[..., Any], weights: int, others: int, axes: Sequence[Sequence[str]]) -> Any:
    """(parameters, operands, cotangent) -> (result, cotangents of the first ``others`` operands, of parameters).

    Gradients of parameters are left as each replica has them, to be summed when all microbatches are through.
    """

    def both(*args: Any) -> list[Any]:
        w = [spread(x, one) for x, one in zip(args[:weights], axes, strict=True)]
        moving, fixed, cotangent = args[weights : weights + others], args[weights + others : -1], args[-1]
        y, pull = vjp(lambda w, moving: function(w, (*moving, *fixed)), w, moving)
        dw, dx = pull(cotangent)
        return [y, *dx, *dw]

    return both


def spread(x: Any, axes: Sequence[str]) -> Any:
    """A value that is the same along some axes, as one that may differ."""
    missing = tuple(axis for axis in axes if axis not in x.type.varying)
    return lax.pbroadcast(x, missing) if missing else x


def traced_as(shape: TransformerShape, strategy: Strategy) -> tuple[TransformerShape, Strategy]:
    """What the programs of layers, embeddings and the head depend on: not on how many layers or replicas there are."""
    return replace(shape, layers=1), Strategy(
        data=min(strategy.data, 2),
        tensor=strategy.tensor,
        context=strategy.context,
        expert=strategy.expert,
        sequence_parallel=strategy.sequence_parallel and strategy.tensor > 1,
        recompute=strategy.recompute,
        flash=strategy.flash,
    )


def stream(shape: TransformerShape, strategy: Strategy, rows: int, sequence: int, dtype: Any) -> TensorType:
    """The type of a microbatch's activations between layers on one device."""
    tensor = strategy.tensor if strategy.sequence_parallel else 1
    positions = sequence // strategy.context // tensor
    _, parts = mesh_of(strategy, kv_heads(shape))
    over = (*model.REPLICAS, *(("tensor",) if strategy.sequence_parallel and tensor > 1 else ()))
    varying = [p for axis in over if axis in strategy.mesh for p in parts.get(axis, (axis,))]
    return TensorType((rows, positions, shape.width), dtypes.as_dtype(dtype), varying=union([tuple(varying)]))


def token_type(shape: TransformerShape, strategy: Strategy, rows: int, sequence: int) -> TensorType:
    varying = tuple(axis for axis in model.REPLICAS if axis in strategy.mesh)
    return TensorType((rows, sequence // strategy.context), dtypes.as_dtype("int32"), varying=union([varying]))


@lru_cache(maxsize=512)
def layer_split(shape: TransformerShape, strategy: Strategy, rows: int, sequence: int, dtype: str) -> ForwardBackward:
    """A layer, forward and backward; parameters are in the order of their names."""
    dims, kv = model.layer_dims(shape), kv_heads(shape)
    names = sorted(dims)
    step = partial(model.layer, strategy=strategy, active=shape.experts_per_token)

    def function(w: Sequence[Any], moving: Sequence[Any]) -> Any:
        return step(moving[0], dict(zip(names, w, strict=True)))

    types = [block(dims[n], model.split_of(n, dims[n], strategy, kv), strategy, kv, dtype) for n in names]
    x = stream(shape, strategy, rows, sequence, dtype)
    axes = [model.replicas(n, len(dims[n]), strategy) for n in names]
    both = _differentiated(function, len(names), 1, axes)
    traced = local(both, [*types, x, x], strategy, kv)
    whole = fuse_attention(traced)[0] if strategy.flash else traced
    found = split(whole, len(names), strategy.recompute == "matmuls")
    return _run_again(found, len(names), strategy, kv) if strategy.keeps_inputs else found


@lru_cache(maxsize=512)
def embed_split(shape: TransformerShape, strategy: Strategy, rows: int, sequence: int, dtype: str) -> ForwardBackward:
    """The embedding of tokens."""
    kv = kv_heads(shape)
    table = table_type(shape, strategy, dtype)
    tokens, x = token_type(shape, strategy, rows, sequence), stream(shape, strategy, rows, sequence, dtype)

    def function(w: Sequence[Any], given: Sequence[Any]) -> Any:
        return spread(model.embed(w[0], given[0], strategy), x.varying)

    both = _differentiated(function, 1, 0, [model.replicas("embed", 2, strategy)])
    return split(local(both, [table, tokens, x], strategy, kv), 1, False)


@lru_cache(maxsize=512)
def head_split(shape: TransformerShape, strategy: Strategy, rows: int, sequence: int, dtype: str) -> ForwardBackward:
    """The last norm, the head and the loss of a microbatch, from (scale, table, x, targets)."""
    kv = kv_heads(shape)
    scale = block((shape.width,), ((),), strategy, kv, dtype)
    tokens, x = token_type(shape, strategy, rows, sequence), stream(shape, strategy, rows, sequence, dtype)
    cotangent = TensorType((), dtypes.as_dtype("float32"), varying=tokens.varying)

    def function(w: Sequence[Any], given: Sequence[Any]) -> Any:
        return model.head_loss(given[0], w[0], w[1], given[1], strategy)

    both = _differentiated(function, 2, 1, [model.replicas(n, 2, strategy) for n in ("norm", "head")])
    types = [scale, table_type(shape, strategy, dtype), x, tokens, cotangent]
    return split(local(both, types, strategy, kv), 2, False)


def table_type(shape: TransformerShape, strategy: Strategy, dtype: Any, zero: bool = False) -> TensorType:
    """A device's part of the embeddings, or of the head."""
    dims, kv = (-(-shape.vocab // strategy.tensor) * strategy.tensor, shape.width), kv_heads(shape)
    return block(dims, model.split_of("head", dims, strategy, kv, zero), strategy, kv, dtype)


# One iteration of the loops over layers


@lru_cache(maxsize=1024)
def forward_body(
    shape: TransformerShape, strategy: Strategy, rows: int, sequence: int, dtype: str, zero: int, data: int
) -> Program:
    """(x, parameters as they are held) -> (x, residuals)."""
    found = layer_split(shape, strategy, rows, sequence, dtype)
    if zero < 3:
        weights = len(model.layer_dims(shape))
        inputs = (found.forward.inputs[weights], *found.forward.inputs[:weights])
        return replace(found.forward, inputs=inputs)
    held, real = held_types(shape, strategy, dtype, zero, data)

    def body(x: Any, *w: Any) -> list[Any]:
        return run(found.forward, [*gathered_layer(shape, w, real), x])

    return local(body, [found.forward.inputs[len(held)].type, *held], real, kv_heads(shape))


@lru_cache(maxsize=1024)
def backward_body(
    shape: TransformerShape,
    strategy: Strategy,
    rows: int,
    sequence: int,
    dtype: str,
    zero: int,
    data: int,
    gradients: str,
    adds: bool,
    last: bool,
) -> Program:
    """(cotangent, parameters as they are held, residuals, gradients so far) -> (cotangent, gradients).

    Gradients so far are there if ``adds``; the ``last`` microbatch finishes the sums over replicas.
    """
    found = layer_split(shape, strategy, rows, sequence, dtype)
    held, real = held_types(shape, strategy, dtype, zero, data)
    dims, count = model.layer_dims(shape), len(held)
    names = sorted(dims)
    so_far = [gradient_type(n, dims[n], shape, real, gradients) for n in names] if adds else []

    def body(dy: Any, *args: Any) -> list[Any]:
        w, residuals, sums = args[:count], args[count : len(args) - len(so_far)], args[len(args) - len(so_far) :]
        dx, *dw = run(found.backward, [*gathered_layer(shape, w, real), *residuals, dy])
        grown = [
            collected(n, g, sums[k] if adds else None, real, gradients, last)
            for k, (n, g) in enumerate(zip(names, dw, strict=True))
        ]
        return [dx, *grown]

    x = found.backward.inputs[-1].type
    return local(body, [x, *held, *found.residuals, *so_far], real, kv_heads(shape))


def held_types(
    shape: TransformerShape, strategy: Strategy, dtype: str, zero: int, data: int
) -> tuple[list[TensorType], Strategy]:
    """The parameters of a layer as a device holds them, and the strategy with its real number of replicas."""
    real = replace(strategy, data=data, zero=zero)
    dims, kv = model.layer_dims(shape), kv_heads(shape)
    held = [block(dims[n], model.split_of(n, dims[n], real, kv, zero == 3), real, kv, dtype) for n in sorted(dims)]
    return held, real


def gathered_layer(shape: TransformerShape, w: Sequence[Any], strategy: Strategy) -> list[Any]:
    """The parameters of a layer, whole."""
    return [model.whole(n, one, strategy) for n, one in zip(sorted(model.layer_dims(shape)), w, strict=True)]


def gradient_type(
    name: str, dims: tuple[int, ...], shape: TransformerShape, strategy: Strategy, dtype: str
) -> TensorType:
    """A gradient that microbatches are added up in, on one device: with zero from 2 on, its part alone."""
    kv = kv_heads(shape)
    shared = strategy.zero >= 2 and model.zero_dim(name, len(dims)) is not None
    found = block(dims, model.split_of(name, dims, strategy, kv, shared), strategy, kv, dtype)
    return found.with_(varying=union([found.varying, model.replicas(name, len(dims), strategy)]))


def collected(name: str, g: Any, so_far: Any, strategy: Strategy, dtype: str, last: bool) -> Any:
    """A gradient added to those of the microbatches before, and summed over replicas where that is due."""
    axes, dim = model.replicas(name, g.ndim, strategy), model.zero_dim(name, g.ndim)
    shared = bool(axes) and strategy.zero > 0 and dim is not None
    scattered = partial(lax.psum_scatter, axis_name=axes, scatter_dimension=dim or 0, tiled=True)
    if shared and strategy.zero >= 2:
        g = scattered(g)
    g = g.astype(dtype)
    g = g if so_far is None else so_far + g
    if last and axes and not (shared and strategy.zero >= 2):
        return scattered(g) if shared else lax.psum(g, axes)
    return g
