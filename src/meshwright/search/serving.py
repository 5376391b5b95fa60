"""How to serve a transformer: replicas, each on some chips, and the batch and context with which they answer in time.

The chips of a machine are divided into replicas of ``tensor`` neighbours. A step of decoding takes what
`simulate.transformer.decode` says, that of a prompt what `simulate.transformer.prefill` says; both with their caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from typing import Any

from meshwright.chart.amounts import size_text, time_text
from meshwright.chart.gantt import Chart, Charted
from meshwright.core.source import here
from meshwright.errors import ShapeError
from meshwright.hardware.arguments import amount, checked, one_of, whole
from meshwright.hardware.arguments import sequence as listed
from meshwright.hardware.arguments import topology as machine_of_chips
from meshwright.hardware.machines import for_mesh
from meshwright.hardware.roofline import MODES
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape
from meshwright.search.explained import (
    LayoutParts,
    WhatIf,
    bound_lines,
    changed_machines,
    compare_chart,
    memory_line,
    parts_of,
    table_of,
    what_if_lines,
    with_chip,
)
from meshwright.search.layered import GPT
from meshwright.search.transformer_plan import fits_on, transformer_of
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.transformer import decode, kv_cache_bytes, prefill
from meshwright.simulate.transformer.arguments import stored
from meshwright.simulate.transformer.strategy import Strategy

STEPS = ("decode", "prefill")
CONTEXTS = tuple(2**n for n in range(11, 21))  # tried where nothing is said, as long as there is an answer
MOST_BATCH = 1 << 16  # sequences of a replica
FINE, ROUGH = 16, 3  # the largest batch is found up to this part of it, and after a change


@dataclass(frozen=True)
class ServingLayout:
    """One way to serve: ``replicas`` on ``tensor`` chips each, ``batch`` sequences on all of them together.

    ``tokens_per_s`` are those of all replicas: tokens made where the step is decoding, else tokens of prompts.
    ``in_time`` says whether the bounds of the search are kept.
    """

    tensor: int
    replicas: int
    batch: int
    context: int
    seconds_per_token: float
    seconds_to_first_token: float
    tokens_per_s: float
    peak_bytes_per_device: int
    fits: bool
    in_time: bool
    simulation: Simulation = field(repr=False, compare=False)

    @property
    def answers(self) -> bool:
        """Whether it fits into memory and keeps the bounds."""
        return self.fits and self.in_time


@dataclass(frozen=True, eq=False)
class ServingResult(Charted):
    """What a search for a way to serve found, the most tokens per second within the bounds first."""

    layouts: tuple[ServingLayout, ...]
    search: Serving = field(repr=False)

    @property
    def best(self) -> ServingLayout | None:
        """The most tokens per second that fits and keeps the bounds, of all contexts."""
        return next((one for one in self.layouts if one.answers), None)

    @property
    def by_context(self) -> dict[int, ServingLayout]:
        """The best for each context that has one, the shortest first."""
        found: dict[int, ServingLayout] = {}
        for one in self.layouts:
            if one.answers:
                found.setdefault(one.context, one)
        return dict(sorted(found.items()))

    def front(self, context: int | None = None) -> tuple[ServingLayout, ...]:
        """Latency against throughput: layouts that fit, of one context (the shortest), that none beats in both."""
        wanted = min((one.context for one in self.layouts), default=0) if context is None else context
        found: list[ServingLayout] = []
        for one in sorted(self.layouts, key=lambda one: (self.search.latency(one), -one.tokens_per_s)):
            if one.context == wanted and one.fits and (not found or one.tokens_per_s > found[-1].tokens_per_s):
                found.append(one)
        return tuple(found)

    def __iter__(self) -> Iterator[ServingLayout]:
        return iter(self.layouts)

    def __len__(self) -> int:
        return len(self.layouts)

    def table(self, rows: Sequence[ServingLayout] | None = None) -> str:
        """Layouts as a table: by default the best for each context and, of the shortest, for each number of chips."""
        shown = self._shown() if rows is None else rows
        heads = ("context", "tensor", "replicas", "batch", "a token", "first token", "tokens/s", "memory", "")
        cells: list[tuple[str, ...]] = [heads]
        for one in shown:
            why = "" if one.answers else "does not fit" if not one.fits else "too late"
            cells.append(
                (
                    *map(str, (one.context, one.tensor, one.replicas, one.batch)),
                    time_text(one.seconds_per_token) if one.seconds_per_token < inf else "",
                    time_text(one.seconds_to_first_token),
                    f"{one.tokens_per_s:,.0f}",
                    size_text(one.peak_bytes_per_device),
                    why,
                )
            )
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)

    __str__ = table

    def _shown(self) -> list[ServingLayout]:
        best = self.best
        if best is None:
            return list(self.layouts[:1])
        others: dict[int, ServingLayout] = {}
        for one in self.layouts:
            if one.answers and one.context == best.context:
                others.setdefault(one.tensor, one)
        return [*others.values(), *(one for c, one in self.by_context.items() if c != best.context)]

    def compare(self) -> tuple[LayoutParts, ...]:
        """Where the seconds of a step go, of the best and of the best on other numbers of chips."""
        best = self.best
        rows = [one for one in self._shown() if best is not None and one.context == best.context]
        return tuple(
            LayoutParts(
                f"tensor={one.tensor} replicas={one.replicas}",
                one.simulation.seconds,
                parts_of(one.simulation),
                self.search.memory(one),
                one.fits,
                f"batch {one.batch}, {one.tokens_per_s:,.0f} tokens/s",
            )
            for one in rows
        )

    def what_if(self) -> tuple[WhatIf, ...]:
        """Which number of chips a replica is best on after one change: other links, memory, chips, or bounds."""
        best = self.best
        if best is None:
            return ()
        per = {one.tensor: one for one in self._shown() if one.context == best.context}
        return tuple(self.search.after(change, other, best, per) for change, other in self.search.changes())

    def explain(self) -> str:
        """What bounds the best, what others take, and which single change would make another best.

        >>> from meshwright import dist, hardware
        >>> llama = hardware.TransformerShape(32, 4096, 14336, heads=32, kv_heads=8, head_dim=128, vocab=128256)
        >>> found = dist.serving_search(llama, "h100 4", batch=64, context=4096, seconds_per_token=0.02)
        >>> "half the memory: " in found.explain()
        True
        """
        best, rows = self.best, self.compare()
        if best is None:
            return self.table()
        first = f"best: {best.replicas} replicas on {best.tensor} chips each, {best.batch} sequences"
        lines = [first, *bound_lines(best.simulation, sources=False)]
        lines.append(memory_line(rows[0].memory, self.search.memory_bytes))
        return "\n".join([*lines, "", table_of(rows, loses=False), "", *what_if_lines(self.what_if())])

    def chart(self) -> Chart:
        """A row for each of `compare`, made up of compute and of waits."""
        return compare_chart(f"{self.search.topology.text}: seconds of a step", self.compare())


@dataclass(frozen=True, eq=False)
class Serving:
    """A model on a machine with bounds, and what each way to serve it takes."""

    shape: TransformerShape
    topology: Topology
    step: str
    seconds_per_token: float
    seconds_to_first_token: float
    memory_bytes: float
    dtype: Any
    cache_dtype: Any
    mode: str
    batches: tuple[int, ...] | None = None
    known: dict[tuple[Any, ...], Simulation] = field(default_factory=dict)

    @cached_property
    def cache_bytes(self) -> int:
        """The cache of a token on all devices."""
        return kv_cache_bytes(self.shape, 1, 1, self.cache_dtype or self.dtype)

    def degrees(self) -> list[int]:
        """The numbers of chips that a replica can be on."""
        return [t for t in range(1, min(self.topology.size, self.shape.heads) + 1)
                if self.topology.size % t == 0 and fits_on(self.shape, Strategy(tensor=t), 1, 1)]  # fmt: skip

    def latency(self, one: ServingLayout) -> float:
        """What a user waits for: the next token, or the first."""
        return one.seconds_per_token if self.step == "decode" else one.seconds_to_first_token

    def _played(self, play: Callable[..., Simulation], tensor: int, batch: int, length: int) -> Simulation:
        key = (play, tensor, batch, length)
        if key not in self.known:
            machine = for_mesh(self.topology.chip, {"tensor": tensor} if tensor > 1 else {"data": 1})
            sizes = {"tensor": tensor, "dtype": self.dtype, "cache_dtype": self.cache_dtype, "mode": self.mode}
            self.known[key] = play(self.shape, machine, batch, length, **sizes)
        return self.known[key]

    def layout(self, tensor: int, each: int, context: int) -> ServingLayout:
        """What replicas on so many chips take, with so many sequences each."""
        replicas = self.topology.size // tensor
        if self.step == "prefill":
            found = self._played(prefill, tensor, each, context)
            first, token, made = found.seconds, inf, replicas * each * context / found.seconds
            peak = found.peak_bytes_per_device
            in_time = first <= self.seconds_to_first_token
        else:
            found = self._played(decode, tensor, each, context)
            prompt = self._played(prefill, tensor, 1, context)
            first, token, made = prompt.seconds, found.seconds, replicas * each / found.seconds
            peak = found.peak_bytes_per_device
            if self.seconds_to_first_token < inf:  # prompts come in beside the caches of the others
                others = self._cache(found, tensor, each - 1, context)
                peak = max(peak, prompt.peak_bytes_per_device + others)
            in_time = token <= self.seconds_per_token and first <= self.seconds_to_first_token
        fits = peak <= self.memory_bytes
        return ServingLayout(tensor, replicas, replicas * each, context, token, first, made, peak, fits, in_time, found)

    def _cache(self, found: Simulation, tensor: int, each: int, context: int) -> int:
        """Bytes of caches on a device; heads that there are too few of are there more than once."""
        kv = self.shape.heads if self.shape.kv_heads is None else self.shape.kv_heads
        return each * context * self.cache_bytes // min(tensor, kv)

    def memory(self, one: ServingLayout) -> dict[str, int]:
        """What a device holds at the peak: parameters, caches, and the rest."""
        caches = self._cache(one.simulation, one.tensor, one.batch // one.replicas, one.context)
        given = one.simulation.memory.argument_bytes
        parameters = given - (caches if self.step == "decode" else 0)
        return {"parameters": parameters, "caches": caches, "other": one.peak_bytes_per_device - parameters - caches}

    def tried(self, tensor: int, context: int, start: int = 1, fine: int = FINE) -> list[ServingLayout]:
        """Replicas of so many chips with the batches asked for, or with as many sequences as there is an answer for."""
        if self.batches is None:
            return self.most(tensor, context, start, fine)
        replicas = self.topology.size // tensor
        return [self.layout(tensor, n // replicas, context) for n in self.batches if n % replicas == 0]

    def most(self, tensor: int, context: int, start: int = 1, fine: int = FINE) -> list[ServingLayout]:
        """Replicas of so many chips with ever more sequences, up to about the most with which there is an answer."""
        tried = [self.layout(tensor, start, context)]
        low = high = start  # the most with which there is an answer, and the least with which there is none
        while not tried[-1].answers and low > 1:
            low, high = low // 2, low
            tried.append(self.layout(tensor, low, context))
        if not tried[-1].answers:
            return tried
        while low == high and 2 * low <= MOST_BATCH:
            tried.append(self.layout(tensor, 2 * low, context))
            low, high = (2 * low, 2 * low) if tried[-1].answers else (low, 2 * low)
        while high - low > max(1, low // fine):
            middle = (low + high) // 2
            tried.append(self.layout(tensor, middle, context))
            low, high = (middle, high) if tried[-1].answers else (low, middle)
        return tried

    def changes(self) -> Iterator[tuple[str, Serving]]:
        """The same on changed machines, and with other bounds."""
        for one in changed_machines(self.topology):
            yield one.change, self._with(topology=one.topology, memory_bytes=self.memory_bytes * one.memory)
        for word, chips in (("twice", 2 * self.topology.size), ("half", self.topology.size // 2)):
            if chips:
                yield f"{word} the chips", self._with(topology=with_chip(self.topology, self.topology.chip, chips))
        name = "seconds_per_token" if self.step == "decode" else "seconds_to_first_token"
        if getattr(self, name) < inf:
            for word, factor in (("twice", 2.0), ("half", 0.5)):
                yield f"{word} the {name}", self._with(**{name: factor * getattr(self, name)})

    def _with(self, **changed: Any) -> Serving:
        names = [name for name in self.__dataclass_fields__ if name != "known"]
        same = "topology" not in changed or changed["topology"].chip == self.topology.chip
        kept = {"known": self.known} if same else {}
        return Serving(**{**{name: getattr(self, name) for name in names}, **changed, **kept})

    def after(self, change: str, other: Serving, best: ServingLayout, per: dict[int, ServingLayout]) -> WhatIf:
        """What is best after a change; batches start from those that are best now."""
        found: dict[int, ServingLayout] = {}
        for tensor in other.degrees():
            start = per[tensor].batch // per[tensor].replicas if tensor in per else 1
            answers = [one for one in other.tried(tensor, best.context, start, ROUGH) if one.answers]
            if answers:
                found[tensor] = max(answers, key=lambda one: one.tokens_per_s)
        if not found:
            return WhatIf(change, "", inf, inf, True)
        first = max(found.values(), key=lambda one: one.tokens_per_s)
        kept = found.get(best.tensor)
        is_other = first.tensor != best.tensor
        name = f"tensor={first.tensor} with a batch of {first.batch}"
        seconds, kept_seconds = first.simulation.seconds, kept.simulation.seconds if kept else inf
        return WhatIf(
            change, name, seconds, kept_seconds, is_other, first.tokens_per_s, kept.tokens_per_s if kept else None
        )


@checked(
    "a search",
    shape=lambda name, value, of: value,
    topology=machine_of_chips,
    step=partial(one_of, STEPS),
    batch=lambda name, value, of: _several(name, value, of),
    context=lambda name, value, of: _several(name, value, of),
    tensor=lambda name, value, of: _several(name, value, of),
    seconds_per_token=partial(amount, least=1e-12),
    seconds_to_first_token=partial(amount, least=1e-12),
    memory_bytes=partial(amount, least=1.0),
    dtype=stored,
    cache_dtype=stored,
    mode=partial(one_of, MODES),
)
def serving_search(
    shape: TransformerShape | GPT,
    topology: Topology | str,
    *,
    step: str = "decode",
    batch: int | Sequence[int] | None = None,
    context: int | Sequence[int] | None = None,
    tensor: int | Sequence[int] | None = None,
    seconds_per_token: float | None = None,
    seconds_to_first_token: float | None = None,
    memory_bytes: float | None = None,
    dtype: Any = "bfloat16",
    cache_dtype: Any = None,
    mode: str = "exact",
) -> ServingResult:
    """The ways to serve a transformer with the most tokens per second that fit, and answer in time.

    The machine is divided into replicas of ``tensor`` chips; ``batch`` sequences, on all of them together, have
    ``context`` tokens each. What is None is free: every number of chips that the model can be split over, as many
    sequences as memory and bounds allow, contexts from 2,048 on, each twice the one before, as long as there is an
    answer. ``step`` is "decode" (tokens made per second, a token within ``seconds_per_token``) or "prefill" (tokens of
    prompts per second). ``seconds_to_first_token`` bounds a prompt of ``context`` tokens, of decoding alone on its
    replica, which then has room for it beside the caches of the other sequences.

    >>> from meshwright import dist, hardware
    >>> llama = hardware.TransformerShape(32, 4096, 14336, heads=32, kv_heads=8, head_dim=128, vocab=128256)
    >>> found = dist.serving_search(llama, "h100 8", context=4096, seconds_per_token=0.02)
    >>> found.best.fits, found.best.seconds_per_token <= 0.02, len(found.front()) > 2
    (True, True, True)
    """
    assert isinstance(topology, Topology)
    sizes = transformer_of(shape)
    if sizes is None:
        raise ShapeError(
            f"The model to serve is {shape!r}.",
            where=here(),
            why="it is a transformer, of which caches are known",
            fix="hardware.TransformerShape(layers=32, width=4096, hidden=14336, heads=32, head_dim=128, vocab=128256)",
        )
    memory = topology.chip.known("hbm_bytes", inf) if memory_bytes is None else memory_bytes
    token, first = (inf if one is None else one for one in (seconds_per_token, seconds_to_first_token))
    asked = None if batch is None else tuple(_list(batch))
    search = Serving(sizes[0], topology, step, token, first, memory, dtype, cache_dtype, mode, asked)
    degrees = [t for t in search.degrees() if tensor is None or t in _list(tensor)]
    if not degrees:
        raise ShapeError(
            f"No replica is on {tensor} chips.",
            where=here(),
            why=f"the machine has {topology.size}, and replicas are on {', '.join(map(str, search.degrees()))}",
            fix=f"tensor={search.degrees()[-1]}",
        )
    layouts: dict[tuple[int, int, int], ServingLayout] = {}
    for length in CONTEXTS if context is None else _list(context):
        made = [one for t in degrees for one in search.tried(t, length)]
        layouts.update(((one.tensor, one.batch, one.context), one) for one in made)
        if context is None and not any(one.answers for one in made):
            break
    if not layouts:
        raise ShapeError(
            f"A batch of {batch} is not divided evenly among replicas.",
            where=here(),
            why=f"there are {', '.join(str(topology.size // t) for t in degrees)} of them",
            fix=f"batch={topology.size}",
        )
    order = sorted(layouts.values(), key=lambda one: (not one.answers, -one.tokens_per_s, one.tensor))
    return ServingResult(tuple(order), search)


def _several(name: str, value: Any, of: str) -> Any:
    """A whole number, or several."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return listed(partial(whole, most=1 << 32), name, value, of, least=1)
    return whole(name, value, of, most=1 << 32)


def _list(value: Any) -> list[int]:
    return list(value) if isinstance(value, Sequence) else [value]
