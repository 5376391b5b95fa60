"""Transformers by building them: parameters, FLOPs, caches, memory and time by strategy, and where each stops paying.

Every number is read off a program (`transformer_program`) or off its simulation; `hardware.transformer` and
`hardware.parallelism` have the closed forms, which the tests hold against these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from meshwright.chart.amounts import size_text, time_text
from meshwright.core import tree
from meshwright.core.dtypes import as_dtype
from meshwright.core.facts import Fusion
from meshwright.core.op import fusion_of
from meshwright.core.program import Program
from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.arguments import KINDS, checked, instance, sequence
from meshwright.hardware.chips import Chip
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape
from meshwright.simulate.memory import MemoryUse
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.spmd import simulate
from meshwright.simulate.transformer.arguments import STEP, computed, stored
from meshwright.simulate.transformer.program import (
    decode_program,
    forward_program,
    parameters,
    prefill_program,
)
from meshwright.simulate.transformer.step import StepSimulation, step_memory, train_step
from meshwright.simulate.transformer.step_program import StepDtypes, train_program
from meshwright.simulate.transformer.strategy import Strategy

__all__ = [
    "StepDtypes",
    "StepSimulation",
    "Strategy",
    "TransformerShape",
    "compare",
    "data_parallel_tokens",
    "decode",
    "decode_program",
    "flops_per_token",
    "forward_program",
    "kv_cache_bytes",
    "microbatches_for",
    "parameter_count",
    "prefill",
    "prefill_program",
    "product_flops",
    "tensor_parallel_ways",
    "train",
    "train_memory",
    "train_program",
]

Hardware = str | Chip | Topology
_DTYPES = partial(instance, "StepDtypes", "StepDtypes()")


@checked()
def product_flops(program: Program) -> float:
    """FLOPs of the matrix products of a program, regions included: of one device, inside of a shard_map.

    Of a cond the dearest branch counts, of a while loop of unknown length one step.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> product_flops(mw.make_program(lambda x: mnp.tanh(x @ x))(mnp.ones((8, 8))))
    1024.0
    """
    return _product_flops(program)


def _product_flops(program: Program) -> float:
    total = 0.0
    for eqn in program.eqns:
        if fusion_of(eqn) is Fusion.CONTRACTION:
            total += eqn.op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params).flops
            continue
        runs = [(eqn.op.runs(eqn, name), _product_flops(region)) for name, region in eqn.regions()]
        inner = [(1 if one.times is None else one.times) * flops for one, flops in runs]
        if inner:
            total += max(inner) if runs[0][0].or_another else sum(inner)
    return total


# Counts.


@checked()
def parameter_count(shape: TransformerShape) -> int:
    """The number of all parameters.

    >>> parameter_count(TransformerShape(80, 8192, 28672, heads=64, kv_heads=8, head_dim=128, vocab=128256))
    70553706496
    """
    return sum(leaf.type.size for leaf in tree.leaves(parameters(shape)))


@checked("a step", **STEP)
def flops_per_token(shape: TransformerShape, sequence: int, *, train: bool = True, remat: bool = False) -> float:
    """FLOPs of matmuls per token, forward or in a train step; attention looks at all positions, masked or not.

    Where attention is one kernel its scores are computed again backward; that is not counted.

    >>> shape = TransformerShape(layers=4, width=256, hidden=1024, heads=4, head_dim=64, vocab=1000)
    >>> flops_per_token(shape, 128) == 3 * flops_per_token(shape, 128, train=False)
    True
    """
    strategy = Strategy(recompute=remat, flash=False)
    if not train:
        return product_flops(forward_program(shape, strategy, 1, sequence)) / sequence
    return product_flops(train_program(shape, strategy, 1, sequence, optimizer=False)) / sequence


@checked("a cache", dtype=stored, **STEP)
def kv_cache_bytes(shape: TransformerShape, context: int, batch: int = 1, dtype: Any = "bfloat16") -> int:
    """Bytes of the keys and values that decoding keeps, of all devices.

    >>> llama = TransformerShape(80, 8192, 28672, heads=64, kv_heads=8, head_dim=128, vocab=128256)
    >>> kv_cache_bytes(llama, 1, dtype="int8")
    163840
    """
    program = decode_program(shape, 1, batch, context, cache_dtype=dtype)
    return sum(v.type.nbytes for v in program.inputs if v.type.ndim == 5)


# Training.


@checked("a step", dtype=computed, dtypes=_DTYPES, **STEP)
def train(
    shape: TransformerShape,
    hardware: Hardware,
    strategy: Strategy,
    batch: int,
    sequence: int,
    *,
    dtype: Any = "bfloat16",
    dtypes: StepDtypes | None = None,
    mode: str = "exact",
    overlap: str = "loops",
) -> StepSimulation:
    """A train step with Adam, whose state is updated in place; ``mode`` and ``overlap`` are those of `simulate`.

    Without a pipeline it is the simulation of `train_program`.

    >>> shape = TransformerShape(layers=32, width=4096, hidden=11008, heads=32, head_dim=128, vocab=32000)
    >>> step = train(shape, "h100", Strategy(data=8, fsdp=True), batch=16, sequence=2048)
    >>> step.bound, step.fits
    ('compute-bound by 2.6x over axis data', True)
    """
    dtypes = _step_dtypes(dtype, dtypes)
    return train_step(shape, hardware, strategy, batch, sequence, dtypes=dtypes, mode=mode, overlap=overlap)


def _step_dtypes(dtype: Any, given: StepDtypes | None) -> StepDtypes:
    return StepDtypes(parameters=str(as_dtype(dtype))) if given is None else given


@checked("a step", dtype=computed, dtypes=_DTYPES, **STEP)
def train_memory(
    shape: TransformerShape,
    strategy: Strategy,
    batch: int,
    sequence: int,
    dtype: Any = "bfloat16",
    dtypes: StepDtypes | None = None,
    hardware: Hardware | None = None,
) -> MemoryUse:
    """What a device holds in a train step: parameters, moments, gradients, activations.

    Kernels run in the order of the program, or in that of the clock on ``hardware``, if that is given: then it is the
    memory of `train`.

    >>> shape = TransformerShape(layers=32, width=4096, hidden=11008, heads=32, head_dim=128, vocab=32000)
    >>> alone = train_memory(shape, Strategy(data=8), batch=8, sequence=2048)
    >>> split = train_memory(shape, Strategy(data=8, fsdp=True), batch=8, sequence=2048)
    >>> alone.argument_bytes // split.argument_bytes
    7
    """
    given = _step_dtypes(dtype, dtypes)
    if hardware is not None:
        return train_step(shape, hardware, strategy, batch, sequence, dtypes=given).memory
    return step_memory(shape, strategy, batch, sequence, given)


_COLUMNS = ("data", "tensor", "pipeline", "microbatches", "zero", "recompute")


@dataclass(frozen=True)
class Ranking:
    """Strategies for one model on one kind of machine, from the fastest that fits on."""

    rows: tuple[tuple[Strategy, StepSimulation], ...]

    @property
    def best(self) -> tuple[Strategy, StepSimulation] | None:
        """The fastest that fits, if any does."""
        return next(((s, r) for s, r in self.rows if r.fits), None)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [(*_COLUMNS, "time", "memory", "bound")]
        for strategy, result in self.rows:
            shown = (str(getattr(strategy, name)) for name in _COLUMNS)
            bound = result.bound + ("" if result.fits else "; does not fit")
            rows.append((*shown, time_text(result.seconds), size_text(result.peak_bytes_per_device), bound))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([*(cell.rjust(n) for cell, n in zip(row[:-1], widths[:-1], strict=True)), row[-1]])
            for row in rows
        ]
        return "\n".join(lines)


@checked("a step", options=train, strategies=partial(sequence, KINDS["Strategy"]), **STEP)
def compare(
    shape: TransformerShape,
    hardware: Hardware,
    strategies: Sequence[Strategy],
    batch: int,
    sequence: int,
    **options: Any,
) -> Ranking:
    """A train step under each strategy.

    >>> shape = TransformerShape(layers=8, width=1024, hidden=4096, heads=16, head_dim=64, vocab=32000)
    >>> found = compare(shape, "tpu v5e", [Strategy(data=8), Strategy(tensor=8)], batch=64, sequence=512)
    >>> found.best[0].data
    8
    """
    rows = [(strategy, train(shape, hardware, strategy, batch, sequence, **options)) for strategy in strategies]
    return Ranking(tuple(sorted(rows, key=lambda row: (not row[1].fits, row[1].seconds))))


# Where a strategy stops paying.


@checked("a step", options=simulate, **STEP)
def data_parallel_tokens(
    shape: TransformerShape,
    hardware: Hardware,
    data: int,
    *,
    fsdp: bool = False,
    tensor: int = 1,
    sequence: int = 128,
    **options: Any,
) -> float:
    """Tokens per device from which on the gradient's kernels take longer than its communication along "data".

    In steps of ``sequence`` tokens; the optimizer is left out, as in the closed form.

    >>> shape = TransformerShape(layers=4, width=4096, hidden=16384, heads=32, head_dim=128, vocab=32000)
    >>> round(data_parallel_tokens(shape, "tpu v5p", 64))
    640
    """
    strategy = Strategy(data=data, tensor=tensor, fsdp=fsdp)

    def pays(count: int) -> bool:
        program = train_program(shape, strategy, data * count, sequence, optimizer=False)
        result = simulate(program, hardware, **options)
        return result.axis_seconds().get("data", 0.0) <= result.compute_seconds

    return float(sequence * _first(pays, 2**16))


def _first(holds: Callable[[int], bool], most: int) -> int:
    """The least number for which a property that stays true once it is holds."""
    high = 1
    while not holds(high):
        high *= 2
        if high > most:
            raise HardwareError(
                f"Communication takes longer than compute even with {most} sequences on each device.",
                where=here(),
                why="both grow alike",
                fix="fewer devices, or a faster network",
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@checked("a step", options=simulate, **STEP)
def tensor_parallel_ways(
    shape: TransformerShape, hardware: Hardware, batch: int, sequence: int, most: int = 64, **options: Any
) -> int:
    """The most ways of tensor parallelism, a power of two, for which kernels take longer than sums along "tensor".

    >>> shape = TransformerShape(layers=4, width=8192, hidden=32768, heads=64, head_dim=128, vocab=32768)
    >>> tensor_parallel_ways(shape, "tpu v5p", batch=4, sequence=512)
    4
    """
    ways = 1
    while 2 * ways <= most:
        program = forward_program(shape, Strategy(tensor=2 * ways), batch, sequence)
        result = simulate(program, hardware, **options)
        if result.axis_seconds().get("tensor", 0.0) > result.compute_seconds:
            break
        ways *= 2
    return ways


@checked("a step", options=simulate, **STEP)
def microbatches_for(
    shape: TransformerShape,
    hardware: Hardware,
    pipeline: int,
    sequence: int,
    *,
    idle: float = 0.1,
    **options: Any,
) -> int:
    """The fewest microbatches with which stages of a pipeline are idle for no more than a share of the forward pass.

    Idle is what a tick costs beyond the microbatches: by (pipeline - 1) ticks of (microbatches + pipeline - 1).

    >>> shape = TransformerShape(layers=8, width=1024, hidden=4096, heads=16, head_dim=64, vocab=1024)
    >>> microbatches_for(shape, "tpu v5e", 4, 512)
    27
    """

    def ticks(count: int) -> float:
        strategy = Strategy(pipeline=pipeline, microbatches=count)
        result = simulate(forward_program(shape, strategy, count, sequence), hardware, **options)
        loop = next(
            event for event in result.timeline if event.task.body is not None and not event.rest and not event.depth
        )
        return loop.seconds

    one, more = ticks(1), ticks(2)
    each = more - one  # of a tick, once the pipeline is full

    def pays(count: int) -> bool:
        return 1 - count * each / ticks(count) <= idle * (1 + 1e-9)

    return _first(pays, 2**16)


# Inference.


@checked("a step", options=simulate, dtype=stored, cache_dtype=stored, **STEP)
def decode(
    shape: TransformerShape,
    hardware: Hardware,
    batch: int,
    context: int,
    *,
    tensor: int = 1,
    dtype: Any = "bfloat16",
    cache_dtype: Any = None,
    **options: Any,
) -> Simulation:
    """One step of decoding ``batch`` sequences with ``context`` tokens in their caches.

    >>> shape = TransformerShape(layers=40, width=5120, hidden=13824, heads=40, head_dim=128, vocab=32000)
    >>> step = decode(shape, "tpu v5e", batch=4, context=2048, tensor=8)
    >>> f"{step.seconds * 1e3:.1f} ms a token", step.bound.split()[0]
    ('6.2 ms a token', 'memory-bound')
    """
    program = decode_program(shape, tensor, batch, context, dtype, cache_dtype)
    return simulate(program, hardware, **options)


@checked("a step", options=simulate, dtype=stored, cache_dtype=stored, **STEP)
def prefill(
    shape: TransformerShape,
    hardware: Hardware,
    batch: int,
    sequence: int,
    *,
    tensor: int = 1,
    dtype: Any = "bfloat16",
    cache_dtype: Any = None,
    **options: Any,
) -> Simulation:
    """The prompts of ``batch`` sequences of ``sequence`` tokens, up to the first token after them and to their caches.

    >>> shape = TransformerShape(layers=40, width=5120, hidden=13824, heads=40, head_dim=128, vocab=32000)
    >>> step = prefill(shape, "tpu v5p", batch=1, sequence=2048, tensor=4)
    >>> f"{step.seconds * 1e3:.0f} ms to the first token", step.bound.split()[0]
    ('61 ms to the first token', 'compute-bound')
    """
    program = prefill_program(shape, tensor, batch, sequence, dtype, cache_dtype)
    return simulate(program, hardware, **options)
