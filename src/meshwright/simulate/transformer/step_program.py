"""A whole train step without a pipeline as the program of one device, out of the programs of `regions`.

Microbatches are a loop that adds up gradients; the last one is after it and sums over replicas layer by layer, beside
its backward. Then the optimizer: parameters in bfloat16, a copy of them and two moments in float32 (`StepDtypes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.arrays.tracing import ShapeDtypeStruct, make_program
from meshwright.core import tree
from meshwright.core.dtypes import as_dtype
from meshwright.core.program import Program
from meshwright.core.source import here
from meshwright.core.trace import run
from meshwright.core.types import TensorType, union
from meshwright.errors import HardwareError
from meshwright.hardware.arguments import checked, checked_fields, instance
from meshwright.hardware.transformer import TransformerShape
from meshwright.sharding.spec import P
from meshwright.simulate.transformer import program as model
from meshwright.simulate.transformer import regions
from meshwright.simulate.transformer.arguments import STEP, computed
from meshwright.simulate.transformer.strategy import Strategy
from meshwright.transform.regions.scan import scan as scan_op

_DTYPES = ("parameters", "master", "moments", "gradients", "gradient_copy")


@checked_fields("a step's dtypes", **dict.fromkeys(_DTYPES, computed))
@dataclass(frozen=True)
class StepDtypes:
    """The dtypes of a train step. The default is everywhere the same: 14 bytes of state for each parameter.

    ``master`` is the optimizer's own copy of the parameters, ``moments`` are Adam's two; None leaves them out.
    ``gradients`` are added up in float32 where there are several microbatches, else they are as the parameters.
    ``gradient_copy`` is the optimizer's own copy of them, which frameworks have that add up in 16 bits.

    >>> StepDtypes().state_bytes, StepDtypes(master=None).state_bytes
    (12, 8)
    >>> StepDtypes(gradients="bfloat16", gradient_copy="float32").state_bytes
    16
    """

    parameters: str = "bfloat16"
    master: str | None = "float32"
    moments: str | None = "float32"
    gradients: str | None = None
    gradient_copy: str | None = None

    @property
    def optimizer(self) -> list[str]:
        """The dtypes of what the optimizer has for each parameter: (copy,) (moment, moment,) (copy of the gradient)."""
        kinds = (self.master, self.moments, self.moments, self.gradient_copy)
        return [one for one in kinds if one is not None]

    @property
    def state_bytes(self) -> int:
        """Bytes that the optimizer has for each parameter."""
        return sum(as_dtype(one).itemsize for one in self.optimizer)

    def summed(self, microbatches: int) -> str:
        """The dtype of gradients."""
        return self.gradients or ("float32" if microbatches > 1 else self.parameters)


class StepRegions:
    """The programs that a step of a model under a strategy is made of."""

    def __init__(
        self, shape: TransformerShape, strategy: Strategy, batch: int, sequence: int, dtypes: StepDtypes
    ) -> None:
        self.shape, self.strategy, self.dtypes, self.sequence = shape, strategy, dtypes, sequence
        self.kv, self.flash = regions.kv_heads(shape), strategy.flash
        self.rows = batch // (strategy.data * strategy.expert * strategy.microbatches)
        self.gradients = dtypes.summed(strategy.microbatches)
        self.traced = (*regions.traced_as(shape, strategy), self.rows, sequence, dtypes.parameters)
        self.names = sorted(model.layer_dims(shape))

    @cached_property
    def layer(self) -> regions.ForwardBackward:
        """A layer."""
        return regions.layer_split(*self.traced)

    @cached_property
    def embed(self) -> regions.ForwardBackward:
        """The embedding of tokens."""
        return regions.embed_split(*self.edges)

    @cached_property
    def head(self) -> regions.ForwardBackward:
        """The last norm, the head and the loss."""
        return regions.head_split(*self.edges)

    @property
    def edges(self) -> tuple[Any, ...]:
        """What embeddings and the head are traced as: recomputation is of layers."""
        shape, strategy, *rest = self.traced
        return shape, replace(strategy, recompute="none"), *rest

    @cached_property
    def forward(self) -> Program:
        """A layer's forward."""
        zero, data = self.shares(3, False)
        return regions.forward_body(*self.traced, zero, data)

    def shares(self, least: int, last: bool) -> tuple[int, int]:
        """The zero and data that a program depends on in which replicas share something out from ``least`` on."""
        s = self.strategy
        if s.zero >= least or (last and s.zero):
            return s.zero, s.data
        return 0, min(s.data, 2)

    def key(self, least: int, last: bool = False) -> tuple[Any, ...]:
        """What the programs of embeddings and the head depend on."""
        zero, data = self.shares(least, last)
        s, count = self.strategy, min(self.strategy.microbatches, 2)
        part = replace(self.edges[1], data=data, zero=zero, microbatches=count)
        return self.edges[0], part, self.rows * data * s.expert * count, self.sequence, self.dtypes

    def backward(self, adds: bool, last: bool) -> Program:
        """A layer's backward: ``adds`` to gradients there are, and is or is not the ``last`` microbatch."""
        zero, data = self.shares(2, last)
        return regions.backward_body(*self.traced, zero, data, self.gradients, adds, last)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(axis for axis in model.REPLICAS if axis in self.strategy.mesh)

    # Types of what a device holds

    def tree(self, layers: int, dtype: str, zero: bool) -> dict[str, Any]:
        """The types of a device's parts of all parameters, or of what there is one of for each."""
        s, kv, dims = self.strategy, self.kv, model.layer_dims(self.shape)
        table = regions.table_type(self.shape, s, dtype, zero)
        found: dict[str, Any] = {
            "embed": table,
            "norm": regions.block((self.shape.width,), ((),), s, kv, dtype),
            "layers": {
                n: regions.block(dims[n], model.split_of(n, dims[n], s, kv, zero), s, kv, dtype, layers)
                for n in self.names
            },
        }
        if not self.shape.tied:
            found["head"] = table
        return found

    def state(self, layers: int) -> list[dict[str, Any]]:
        """Parameters, and what the optimizer has for each."""
        p, zero = self.dtypes, self.strategy.zero
        own = (self.tree(layers, one, zero > 0) for one in p.optimizer)
        return [self.tree(layers, p.parameters, zero == 3), *own]

    def sums(self, layers: int) -> dict[str, Any]:
        """The types of gradients that microbatches are added up in."""
        made = self.tree(layers, self.gradients, self.strategy.zero >= 2)

        def varying(name: str, t: TensorType, lead: int) -> TensorType:
            return t.with_(varying=union([t.varying, model.replicas(name, t.ndim - lead, self.strategy)]))

        found = {name: varying(name, t, 0) for name, t in made.items() if name != "layers"}
        return {**found, "layers": {name: varying(name, t, 1) for name, t in made["layers"].items()}}

    # What a device does

    def microbatch(self, params: Mapping[str, Any], tokens: Any, sums: Any, last: bool) -> tuple[Any, dict[str, Any]]:
        """The loss of a microbatch and its gradients, added to ``sums``."""
        s = self.strategy
        weights = [params["layers"][n] for n in self.names]
        tables = {n: model.whole(n, params[n], s) for n in ("embed", "head") if n in params}
        head = "head" if "head" in params else "embed"
        tokens, targets = model.tokens_and_targets(tokens, s)
        x, *kept = run(self.embed.forward, [tables["embed"], tokens])
        x, residuals = _loop(self.forward, [x], weights)
        given = [params["norm"], tables[head]]
        loss, *inner = run(self.head.forward, [*given, x, targets])
        count = s.microbatches * prod(s.mesh[axis] for axis in self.replicas)
        cotangent = regions.spread(mnp.full((), 1 / count, mnp.float32), self.replicas)
        dx, scale, table = run(self.head.backward, [*given, *inner, cotangent])
        found: dict[str, Any] = {"norm": scale, head: table}
        old = [sums["layers"][n] for n in self.names] if sums is not None else []
        dx, layers = _loop(self.backward(sums is not None, last), [dx], [*weights, *residuals, *old], reverse=True)
        (rows,) = run(self.embed.backward, [tables["embed"], *kept, dx])
        found["embed"] = rows if head == "head" else found["embed"] + rows
        grown = {
            n: regions.collected(n, g, None if sums is None else sums[n], s, self.gradients, last)
            for n, g in found.items()
        }
        return loss, {**grown, "layers": dict(zip(self.names, layers, strict=True))}

    def gradient(self, params: Mapping[str, Any], tokens: Any) -> tuple[Any, dict[str, Any]]:
        """The loss of a batch and its gradients, summed over replicas."""
        count = self.strategy.microbatches
        total, sums = 0.0, None
        if count > 1:
            parts = tokens.reshape(count, self.rows, tokens.shape[1])
            layers = params["layers"]["wq"].shape[0]
            zeros = tree.map(lambda t: regions.spread(mnp.zeros(t.shape, t.dtype), t.varying), self.sums(layers))
            start = regions.spread(mnp.zeros((), mnp.float32), self.replicas)

            def step(before: Any, part: Any) -> Any:
                loss, grown = self.microbatch(params, part, before[1], False)
                return (before[0] + loss, grown), None

            (total, sums), _ = lax.scan(step, (start, zeros), parts[:-1])
            tokens = parts[-1]
        loss, found = self.microbatch(params, tokens, sums, True)
        mean = (total + loss) / count
        return lax.pmean(mean, self.replicas) if self.replicas else mean, found

    def update(self, params: Any, state: Sequence[Any], gradients: Any) -> list[Any]:
        """The optimizer: parameters and its state anew."""
        names = tree.leaves({**{n: n for n in params}, "layers": {n: f"layers.{n}" for n in self.names}})
        rows = zip(names, tree.leaves(params), tree.leaves(gradients), *map(tree.leaves, state), strict=True)
        found = [self.adam(name, p, g, rest) for name, p, g, *rest in rows]
        structure = tree.flatten(params)[1]
        return [tree.unflatten(structure, [one[k] for one in found]) for k in range(1 + len(state))]

    def adam(self, name: str, p: Any, g: Any, state: Sequence[Any], rate: float = 1e-3) -> list[Any]:
        """One parameter anew, from its gradient and the optimizer's state, as `StepDtypes.optimizer` has it."""
        stacked = name.startswith("layers.")
        name = name.removeprefix("layers.")
        axes = model.replicas(name, p.ndim - stacked, self.strategy)
        dim = model.zero_dim(name, p.ndim - stacked)
        shared = bool(axes) and dim is not None and self.strategy.zero in (1, 2)
        at = (dim or 0) + stacked
        rest = list(state)
        copied = []
        if self.dtypes.gradient_copy is not None:
            before = rest.pop()  # zeroed and added to: it is held from step to step, and read as often as written
            copied = [g.astype(before.dtype) + 0.0 * before]
        own = rest.pop(0) if self.dtypes.master is not None else lax.pscatter(p, axes, axis=at) if shared else p
        new, wide, after = own.astype(mnp.float32), g.astype(mnp.float32), []
        if rest:
            m = 0.9 * rest[0].astype(mnp.float32) + 0.1 * wide
            v = 0.99 * rest[1].astype(mnp.float32) + 0.01 * wide * wide
            after = [m.astype(rest[0].dtype), v.astype(rest[1].dtype)]
            new = new - rate * m / (mnp.sqrt(v) + 1e-8)
        else:
            new = new - rate * wide
        if self.dtypes.master is not None:
            after.insert(0, new.astype(own.dtype))
        new = new.astype(p.dtype)
        return [lax.all_gather_invariant(new, axes, axis=at, tiled=True) if shared else new, *after, *copied]


def _loop(body: Program, carry: list[Any], rows: list[Any], reverse: bool = False) -> tuple[Any, list[Any]]:
    """A loop over layers whose body is a program: what it carries, and what each iteration returns."""
    found = scan_op(*carry, *rows, body=body, consts=0, carry=1, length=rows[0].shape[0], reverse=reverse)
    return found[0], list(found[1:])


def step_program(
    shape: TransformerShape,
    strategy: Strategy,
    batch: int,
    sequence: int,
    dtypes: StepDtypes = StepDtypes(),  # noqa: B008 - it is frozen
    optimizer: bool = True,
) -> tuple[Program, dict[str, int]]:
    """The program of one device, and its mesh: parameters and the optimizer's state in, the loss and both out."""
    model.check(shape, strategy, batch, sequence)
    if strategy.pipeline > 1:
        raise HardwareError(
            f"There is no one program of {strategy.pipeline} stages.",
            where=here(),
            why="the stages of a pipeline run different programs, in the order of a schedule",
            fix="transformer.train(shape, hardware, strategy, batch, sequence), or pipeline=1",
        )
    step = StepRegions(shape, strategy, batch, sequence, dtypes)
    held = step.state(shape.layers)[: None if optimizer else 1]
    tokens = regions.token_type(shape, strategy, step.rows * strategy.microbatches, sequence)
    leaves, structure = tree.flatten((held, tokens))

    def whole(*flat: Any) -> list[Any]:
        state, tokens = tree.unflatten(structure, flat)
        loss, gradients = step.gradient(state[0], tokens)
        results = step.update(state[0], state[1:], gradients) if optimizer else [gradients]
        return [loss, *tree.leaves(results)]

    found = regions.local(whole, leaves, strategy, step.kv)
    return found, regions.mesh_of(strategy, step.kv)[0]


@checked("a step", dtype=computed, dtypes=partial(instance, "StepDtypes", "StepDtypes()"), **STEP)
def train_program(
    shape: TransformerShape,
    strategy: Strategy,
    batch: int,
    sequence: int,
    dtype: Any = "bfloat16",
    optimizer: bool = True,
    dtypes: StepDtypes | None = None,
) -> Program:
    """A train step with Adam on ``batch`` sequences: parameters and the optimizer's state in, the loss and both out.

    Without ``optimizer``: parameters in, the loss and the gradient out.

    >>> shape = TransformerShape(layers=2, width=64, hidden=256, heads=4, head_dim=16, vocab=128)
    >>> program = train_program(shape, Strategy(data=2, tensor=2), batch=4, sequence=32)
    >>> program.out_types[0].short()
    'f32[]'
    """
    dtypes = dtypes or StepDtypes(parameters=str(as_dtype(dtype)))
    found, _ = step_program(shape, strategy, batch, sequence, dtypes, optimizer)
    kinds = [dtypes.parameters, *(dtypes.optimizer if optimizer else [])]
    params = [model.parameters(shape, one, strategy.tensor) for one in kinds]
    layouts = [model.specs(p, strategy, strategy.zero > (0 if k else 2)) for k, p in enumerate(params)]
    results = layouts if optimizer else [model.specs(params[0], strategy, strategy.zero > 0)]
    leaves, structure = tree.flatten(results)

    def step(*args: Any) -> Any:
        loss, *rest = run(found, tree.leaves(args))
        return loss, *tree.unflatten(structure, rest)

    assert leaves
    run_ = model.mapped(step, strategy, (*layouts, model.batch_spec(strategy)), (P(), *results))
    return make_program(run_)(*params, ShapeDtypeStruct((batch, sequence), "int32"))
