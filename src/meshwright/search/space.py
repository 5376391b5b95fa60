"""The strategies that a search looks at: every degree that divides, and what is done along each axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from math import gcd, isqrt
from typing import Any

from meshwright.errors import ShapeError
from meshwright.hardware.transformer import TransformerShape
from meshwright.search import layered_plan, traced_plan
from meshwright.search.layered import Layered, layered
from meshwright.search.strategy import check_kind
from meshwright.search.traced import Traced
from meshwright.search.transformer_plan import fits_on, transformer_of
from meshwright.search.unrolled import MLP
from meshwright.simulate.pipelines import MOST_TASKS
from meshwright.simulate.transformer.program import stage_layers
from meshwright.simulate.transformer.strategy import Strategy

MOST_DEVICES = 10**12
MOST_CHUNKS = 8  # of a device, of those that are tried where nothing is said
MOST_SIZES = 32  # sizes of microbatches, from which on powers of two are tried
LONG = 4096  # positions that a device has at least where sequences are shared out


@dataclass(frozen=True)
class SearchSpace:
    """What strategies of a search may have; None is what the model allows.

    ``microbatches`` are counts, ``microbatch`` sizes of one, in sequences of a replica.
    """

    microbatches: Sequence[int] | None = None
    microbatch: Sequence[int] | None = None
    schedules: Sequence[str] | None = None
    chunks: Sequence[int] | None = None
    zero: Sequence[int] | None = None
    recompute: Sequence[str | bool] | None = None
    context: Sequence[int] | None = None
    expert: Sequence[int] | None = None
    sequence_parallel: Sequence[bool] | None = None
    tensor: Sequence[int] | None = None
    pipeline: Sequence[int] | None = None
    flash: bool = True

    def of(self, model: Any, devices: int, batch: int, sequence: int | None) -> Iterator[Strategy]:
        """Every strategy on exactly so many devices whose degrees divide the model and the batch."""
        sizes = transformer_of(model, sequence)
        if sizes is not None:
            return self._of_transformer(sizes[0], devices, batch, sizes[1])
        return self._of_layers(model, devices, batch)

    def _of_transformer(self, shape: TransformerShape, devices: int, batch: int, sequence: int) -> Iterator[Strategy]:
        contexts = _long_contexts(devices, sequence) if self.context is None else self.context
        experts = divisors(gcd(devices, shape.experts)) if self.expert is None else self.expert
        kinds = _recomputed(self.recompute, ("none", "matmuls", "full") if self.flash else _STORED)
        for c in contexts:
            for e in experts:
                if devices % (c * e) or shape.experts % e or batch % e:
                    continue
                for data, tensor, pipeline in self._degrees(devices // (c * e), batch // e, shape.layers):
                    mesh = Strategy(data, tensor, pipeline, 1, "gpipe", context=c, expert=e, flash=self.flash)
                    if not fits_on(shape, mesh, batch, sequence):
                        continue
                    shared = data * c * e
                    zeros = self._zeros(shared > 1 and shape.width % shared == 0)
                    positions = [sp for sp in self._positions(tensor) if sequence % (c * (tensor if sp else 1)) == 0]
                    possible = self._chunks(pipeline, lambda n: stage_layers(shape.layers, n) is not None)
                    for k in self._counts(batch // (data * e)):
                        for schedule, v in self._schedules(pipeline, k, possible):
                            for kind in kinds:
                                for sp in positions:
                                    for z in zeros:
                                        yield mesh.with_(
                                            microbatches=k, schedule=schedule, chunks=v, zero=z, recompute=kind,
                                            sequence_parallel=sp,
                                        )  # fmt: skip

    def _of_layers(self, model: Any, devices: int, batch: int) -> Iterator[Strategy]:
        """Strategies of a model that is made of layers, or traced."""
        traced = isinstance(model, Traced)
        kinds = _recomputed(self.recompute, ("none", "matmuls", "full") if traced else layered_plan.RECOMPUTED)
        self._check_layers(kinds, traced_plan.RECOMPUTED if traced else layered_plan.RECOMPUTED)
        fits, apart = _divided(model), not isinstance(model, Traced) or model.separable
        most = min(model.most_stages if isinstance(model, Traced) else layered(model).layers, layered_plan.MOST_LAYERS)
        for data, tensor, pipeline in self._degrees(devices, batch, most):
            if not fits(data, tensor, pipeline, pipeline):
                continue
            possible = self._chunks(pipeline, lambda n: fits(data, tensor, pipeline, n))  # noqa: B023 - used at once
            for k in self._counts(batch // data) if apart else (1,):
                for schedule, v in self._schedules(pipeline, k, possible):
                    for z in self._zeros(data > 1):
                        for kind in kinds:
                            yield Strategy(data, tensor, pipeline).with_(
                                microbatches=k, schedule=schedule, chunks=v, zero=z, recompute=kind
                            )

    def _check_layers(self, kinds: Sequence[str], possible: Sequence[str]) -> None:
        """Refuse what is said of transformers alone."""
        positions = any(self.sequence_parallel or ())
        for context, expert in zip_longest(self.context or (), self.expert or (), fillvalue=1):
            fix = "context=[1]" if context != 1 else "expert=[1]"
            check_kind(Strategy(context=context, expert=expert), possible, fix)
        fix = "sequence_parallel=[False]" if positions else "flash=True"
        check_kind(Strategy(tensor=2, sequence_parallel=positions, flash=self.flash), possible, fix)
        for kind in kinds:
            check_kind(Strategy(recompute=kind), possible)

    def _degrees(self, devices: int, batch: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Data, tensor and pipeline degrees whose product is the number of devices."""
        for data in divisors(gcd(devices, batch)):
            left = devices // data
            for pipeline in [n for n in range(min(most, left), 0, -1) if left % n == 0]:
                tensor = left // pipeline
                if (self.tensor is None or tensor in self.tensor) and (
                    self.pipeline is None or pipeline in self.pipeline
                ):
                    yield data, tensor, pipeline

    def _counts(self, rows: int) -> Sequence[int]:
        """How many microbatches a replica's ``rows`` may be cut into."""
        if self.microbatches is not None:
            return [k for k in self.microbatches if rows % k == 0]
        if self.microbatch is not None:
            return [rows // size for size in self.microbatch if rows % size == 0]
        sizes = divisors(rows)
        if len(sizes) > MOST_SIZES:
            twos = {1 << n for n in range(rows.bit_length())}
            sizes = [n for n in sizes if n in twos or rows // n in twos]
        return [rows // n for n in sizes]

    def _schedules(self, pipeline: int, count: int, chunks: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Schedules of so many microbatches, with the chunks of a device."""
        if pipeline == 1:
            yield "1f1b", 1
            return
        for name in self.schedules or ("1f1b", "interleaved", "zb-h1"):
            for v in chunks if name == "interleaved" and count % pipeline == 0 else (1,) * (name != "interleaved"):
                if 2 * pipeline * count * v <= MOST_TASKS:
                    yield name, v

    def _chunks(self, pipeline: int, possible: Callable[[int], bool]) -> Sequence[int]:
        wanted = range(2, MOST_CHUNKS + 1) if self.chunks is None else self.chunks
        return [v for v in wanted if v > 1 and possible(pipeline * v)]

    def _zeros(self, shared: bool) -> Sequence[int]:
        wanted = (0, 1, 2, 3) if self.zero is None else self.zero
        return wanted if shared else [z for z in wanted if z == 0] or (0,) * (0 not in wanted)

    def _positions(self, tensor: int) -> Sequence[bool]:
        wanted = (False, True) if self.sequence_parallel is None else self.sequence_parallel
        return wanted if tensor > 1 else (False,)


_STORED = ("none", "attention", "matmuls", "full")  # where scores are stored, not to do so is something else


def _recomputed(given: Sequence[str | bool] | None, usual: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(Strategy(recompute=kind).recompute for kind in (usual if given is None else given)))


def _long_contexts(devices: int, sequence: int) -> list[int]:
    """Degrees by which long sequences are shared out, so that blocks from either end stay long, too."""
    found = [1]
    while devices % (2 * found[-1]) == 0 and sequence % (4 * found[-1]) == 0 and sequence // (2 * found[-1]) >= LONG:
        found.append(2 * found[-1])
    return found


def _divided(model: Any) -> Callable[[int, int, int, int], bool]:
    """Whether degrees (data, tensor, pipeline, stages) divide a model that is not a transformer."""
    found: Traced | Layered = model if isinstance(model, Traced) else layered(model)

    @cache
    def divides(data: int, tensor: int, pipeline: int, stages: int) -> bool:
        if data > 1 and isinstance(found, Traced) and found.whole:
            return False
        if not _has_stages(found, pipeline) or not _has_stages(found, stages) or not found.divides(tensor):
            return False
        return not (tensor > 1 and isinstance(model, MLP) and (model.layers // pipeline) % 2)

    return divides


def _has_stages(model: Traced | Layered, stages: int) -> bool:
    return stages <= model.most_stages if isinstance(model, Traced) else model.layers % stages == 0


def divisors(n: int) -> list[int]:
    """The numbers that divide one, in order."""
    if n > MOST_DEVICES:
        raise ShapeError(
            f"The parts that {n} has are not looked for.",
            why=f"it is what the number of devices and the batch have in common, and at most {MOST_DEVICES}",
            fix="fewer devices, or a smaller batch",
        )
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
