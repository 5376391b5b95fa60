"""Equal layers of a program that is written out, and the same program with few of them.

A model of 80 layers, traced, is the same run of equations 80 times, and so are its backward pass and its update. What
such a program costs is that of a few layers and so many times that of one: `find_layers` finds the runs, and
`Layers.shortened` takes layers out of their midst.

A run is a stretch of equations that repeats after a period. The layer of a period counts up in the forward pass and
down in the backward pass; it follows from what the run reads of runs whose layers are known. Two neighbouring layers
are equal if every equation of one reads, in the other, the same of the layer it stands in, of its neighbours, or of the
rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.program import Atom, Eqn, Literal, Program, Var

FEWEST = 5  # periods, below which a run is not looked at
PERIODS = 24  # that are tried
WIDEST = 64  # equations, that are compared to find periods
EDGE = 2  # layers at the ends of a model that may differ
BASES = 3  # runs from which layers are counted that are tried


class Run(NamedTuple):
    """Equations that repeat: where they start, after how many they come again, and how often they come."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.times


class LaidRun(NamedTuple):
    """A run whose layers are known: that of its first period, and whether they count up (1) or down (-1)."""

    run: Run
    first: int
    direction: int

    def layer(self, eqn: int) -> int:
        return self.first + self.direction * ((eqn - self.run.start) // self.run.period)

    def eqn(self, layer: int, place: int) -> int:
        return self.run.start + (layer - self.first) * self.direction * self.run.period + place

    @property
    def layers(self) -> tuple[int, int]:
        """Its lowest and its highest layer."""
        ends = self.first, self.first + self.direction * (self.run.times - 1)
        return min(ends), max(ends)


@dataclass(frozen=True, eq=False)
class EqualLayers:
    """A program with few of its equal layers; those at its ends that differ stay.

    ``inputs`` and ``outputs`` are the numbers of its inputs and outputs in the whole program, and ``repeated`` the
    values of the layer that stands for ``count - kept + 1`` of them. ``alike`` gives, for values of the whole program
    that are not in it, those of that layer; ``like``, for each input of the whole program, the number of its own.

    >>> import meshwright as mw
    >>> def model(ws, x):
    ...     for w in ws:
    ...         x = mw.lax.tanh(x @ w)
    ...     return x
    >>> f32 = lambda *shape: mw.ShapeDtypeStruct(shape, "float32")
    >>> whole = mw.make_program(model)([f32(4, 4)] * 12, f32(2, 4))
    >>> short = equal_layers(whole, kept=4)
    >>> len(whole.eqns), len(short.program.eqns), short.removed
    (24, 10, 7)
    """

    program: Program
    count: int
    kept: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    repeated: frozenset[Var]
    alike: Mapping[Var, Var]
    like: tuple[int, ...]

    @property
    def removed(self) -> int:
        """How many layers were taken out."""
        return self.count - self.kept


def equal_layers(program: Program, kept: int = 4) -> EqualLayers | None:
    """The program with so many of its equal layers; None if it has no more."""
    found = find_layers(program)
    return None if found is None else found.shortened(kept)


def find_layers(program: Program) -> Layers | None:
    """The equal layers of a program; None if there are none."""
    runs = list(_runs(_signatures(program)))
    most = max(runs, key=lambda run: run.period * run.times, default=None)
    if most is None:
        return None
    best: Layers | None = None
    first = sorted((run for run in runs if abs(run.times - most.times) <= EDGE), key=lambda run: run.start)
    for base in first[:BASES]:
        found = Layers(program, runs, base)
        if found.count and (best is None or found.count * found.size > best.count * best.size):
            best = found
        if found.count >= most.times - EDGE and 2 * found.size > most.period:
            break
    return best


class Layers:
    """The equal layers of a program."""

    def __init__(self, program: Program, runs: Sequence[Run], base: Run) -> None:
        self.program = program
        self.made: dict[Var, tuple[int, int]] = {}
        for n, eqn in enumerate(program.eqns):
            self.made.update((v, (n, k)) for k, v in enumerate(eqn.outputs))
        self.given = {v for v, _ in program.constants} | set(program.inputs)
        self.runs: list[LaidRun] = []
        self.of: dict[int, LaidRun] = {}  # by the number of an equation
        self.coordinate: dict[Var, int] = {}  # the layer of an input
        self._lay(runs, base)
        self.next: dict[Var, Var] = {}  # the input that the next layer has for one
        self.reach = 1  # how many layers away one reads
        self.first, self.last = self._equal()

    @property
    def count(self) -> int:
        """How many layers are equal."""
        return max(0, self.last - self.first + 1)

    @property
    def size(self) -> int:
        """The equations of a layer."""
        return sum(laid.run.period for laid in self.runs)

    # Which layer each equation belongs to

    def _lay(self, runs: Sequence[Run], base: Run) -> None:
        self._add(LaidRun(base, 0, 1))
        waiting = [run for run in runs if run is not base]
        known = -1
        while waiting and known != len(waiting):
            known, left = len(waiting), []
            for run in waiting:
                laid = self._laid(run, base.times)
                if laid is None:
                    left.append(run)
                else:
                    self._add(laid)
            waiting = left

    def _add(self, laid: LaidRun) -> None:
        self.runs.append(laid)
        for n in range(laid.run.start, laid.run.end):
            self.of[n] = laid
            for atom in self.program.eqns[n].inputs:
                if isinstance(atom, Var) and atom in self.given:
                    self.coordinate.setdefault(atom, laid.layer(n))

    def layer_of(self, atom: Atom) -> int | None:
        """The layer of a value, as far as it is known."""
        if isinstance(atom, Literal):
            return None
        if atom in self.given:
            return self.coordinate.get(atom)
        n = self.made[atom][0]
        return self.of[n].layer(n) if n in self.of else None

    def _laid(self, run: Run, count: int) -> LaidRun | None:
        """A run with its layers, from what it reads; of equal parameters in a layer, the period is several times as
        long."""
        times = max(1, round(run.times / count))
        run = Run(run.start, run.period * times, run.times // times)
        if run.times < 3:
            return None
        middle = run.times // 2
        eqns = self.program.eqns
        for place in range(run.period):
            here = run.start + middle * run.period + place
            for a, b in zip(eqns[here].inputs, eqns[here + run.period].inputs, strict=True):
                one, other = self.layer_of(a), self.layer_of(b)
                if one is not None and other is not None and abs(other - one) == 1:
                    return LaidRun(run, one - (other - one) * middle, other - one)
        return None

    # Which layers are equal

    def _equal(self) -> tuple[int, int]:
        """The first and the last of the layers that are equal."""
        low = max(run.layers[0] for run in self.runs)
        high = min(run.layers[1] for run in self.runs)
        differs = sorted({layer for run in self.runs for layer in self._differing(run)} - {*range(low)})
        best, start = (0, -1), low
        for layer in [*(n for n in differs if n < high), high]:
            if layer - start > best[1] - best[0]:
                best = start, layer
            start = layer + 1
        return best

    def _differing(self, laid: LaidRun) -> Iterator[int]:
        """The layers of a run from which the next one differs."""
        run = laid.run
        for n in range(run.start, run.end - run.period):
            one, other = self.program.eqns[n], self.program.eqns[n + run.period]
            if not all(self._same(laid, n, a, b) for a, b in zip(one.inputs, other.inputs, strict=True)):
                yield min(laid.layer(n), laid.layer(n + run.period))

    def _same(self, laid: LaidRun, n: int, a: Atom, b: Atom) -> bool:
        """Whether what an equation reads is, for that of the next period, the same of its layer, or the same value."""
        if isinstance(a, Literal) or isinstance(b, Literal):
            return isinstance(a, Literal) and isinstance(b, Literal) and a.key() == b.key()
        if a is b:
            return True
        if a in self.given or b in self.given:
            if a not in self.given or b not in self.given:
                return False
            low, high = (a, b) if laid.direction == 1 else (b, a)
            return self.next.setdefault(low, high) is high
        (m, output), (k, other) = self.made[a], self.made[b]
        run = self.of.get(m)
        if run is None or self.of.get(k) is not run or output != other:
            return False
        if (m - k) % run.run.period or run.layer(k) - run.layer(m) != laid.direction:
            return False
        self.reach = max(self.reach, abs(run.layer(m) - laid.layer(n)))
        return True

    # The program with fewer

    def shortened(self, kept: int) -> EqualLayers | None:
        """The program with so many of its equal layers; None if it has no more, or if all are read together."""
        edge = self.reach + 1
        kept = max(kept, 2 * edge)
        removed = self.count - kept
        if removed < 1:
            return None
        first = self.first + kept // 2
        try:
            return _Shortening(self, first, removed).result(kept)
        except _ReadElsewhere:
            return None


class _ReadElsewhere(Exception):
    """A value of a layer that is taken out is read by what belongs to no layer."""


class _Shortening:
    """Takes so many layers out, from the first of them on."""

    def __init__(self, layers: Layers, first: int, removed: int) -> None:
        self.layers, self.first, self.removed = layers, first, removed
        self.chains = self._chains()

    def out(self, layer: int | None) -> bool:
        return layer is not None and self.first <= layer < self.first + self.removed

    def _chains(self) -> dict[Var, tuple[list[Var], int]]:
        """For inputs that layers have in turn: all of them in order, and the place of each."""
        found: dict[Var, tuple[list[Var], int]] = {}
        after = self.layers.next
        for start in set(after) - set(after.values()):
            chain = [start]
            while chain[-1] in after:
                chain.append(after[chain[-1]])
            found.update((var, (chain, k)) for k, var in enumerate(chain))
        return found

    def layer(self, var: Var) -> int | None:
        """The layer of a value; of an input that others do not take the place of, none."""
        if var in self.layers.given and var not in self.chains:
            return None
        return self.layers.layer_of(var)

    def moved(self, var: Var, by: int) -> Var:
        """The value in a layer so many further on."""
        if var in self.chains:
            chain, k = self.chains[var]
            if not 0 <= k + by < len(chain):
                raise _ReadElsewhere
            return chain[k + by]
        n, output = self.layers.made[var]
        run = self.layers.of[n]
        eqns = self.layers.program.eqns
        return eqns[n + by * run.direction * run.run.period].outputs[output]

    def operand(self, atom: Atom, reader: int | None) -> Atom:
        if isinstance(atom, Literal) or not self.out(self.layer(atom)):
            return atom
        if reader is None:
            raise _ReadElsewhere
        return self.moved(atom, self.removed if reader < self.first else -self.removed)

    def result(self, kept: int) -> EqualLayers:
        whole = self.layers.program
        eqns, repeated = [], set[Var]()
        alike: dict[Var, Var] = {}
        unit = self.first - 1
        for n, eqn in enumerate(whole.eqns):
            run = self.layers.of.get(n)
            layer = run.layer(n) if run is not None else None
            if self.out(layer):
                assert layer is not None
                alike.update((v, self.moved(v, unit - layer)) for v in eqn.outputs)
                continue
            if layer == unit:
                repeated.update(eqn.outputs)
            eqns.append(Eqn(eqn.op, [self.operand(a, layer) for a in eqn.inputs], eqn.params, eqn.outputs, eqn.source))
        for var in (*whole.inputs, *(v for v, _ in whole.constants)):
            at = self.layer(var)
            if at is not None and self.out(at):
                alike[var] = self.moved(var, unit - at)
            elif at == unit:
                repeated.add(var)
        inputs = [n for n, v in enumerate(whole.inputs) if v not in alike]
        outputs = [n for n, a in enumerate(whole.outputs) if not (isinstance(a, Var) and a in alike)]
        number = {whole.inputs[n]: k for k, n in enumerate(inputs)}
        program = Program(
            tuple(whole.inputs[n] for n in inputs),
            tuple(eqns),
            tuple(whole.outputs[n] for n in outputs),
            tuple((v, value) for v, value in whole.constants if v not in alike),
        )
        like = tuple(number[alike.get(v, v)] for v in whole.inputs)
        return EqualLayers(
            program, kept + self.removed, kept, tuple(inputs), tuple(outputs), frozenset(repeated), alike, like
        )


# What repeats


def _signatures(program: Program) -> np.ndarray:
    """A number for each equation: the same for the same op on the same types."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(_signature(eqn), len(known)) for eqn in program.eqns], int)


def _signature(eqn: Eqn) -> Hashable:
    types = tuple((a.type.shape, a.type.dtype) for a in (*eqn.inputs, *eqn.outputs))
    params = tuple((name, value if _is_hashable(value) else repr(value)) for name, value in eqn.params.items())
    return eqn.op.name, params, types, len(eqn.inputs)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _runs(numbers: np.ndarray) -> Iterator[Run]:
    """The longest run, and those before and after it."""
    stretches = [(0, len(numbers))]
    while stretches:
        start, end = stretches.pop()
        found = _longest(numbers[start:end])
        if found is not None:
            run = Run(start + found.start, found.period, found.times)
            yield run
            stretches += [(start, run.start), (run.end, end)]


def _longest(numbers: np.ndarray) -> Run | None:
    """The run that covers most; of those that cover as much, the one of the shortest period."""
    best: tuple[int, int, Run] | None = None
    for period in _periods(numbers):
        same = np.concatenate(([0], numbers[period:] == numbers[:-period], [0])).astype(np.int8)
        edges = np.flatnonzero(np.diff(same)).reshape(-1, 2)
        if not len(edges):
            continue
        start, end = edges[np.argmax(edges[:, 1] - edges[:, 0])]
        count = int(end - start) // period + 1
        if count >= FEWEST and (best is None or (count * period, -period) > best[:2]):
            best = count * period, -period, Run(int(start), period, count)
    return None if best is None else best[2]


def _periods(numbers: np.ndarray) -> Sequence[int]:
    """After how many equations the same ones come again, most often, by windows of several lengths: a layer that has
    each of its ops twice does not repeat by any one of them."""
    gaps = Counter[int]()
    window, numbered = 1, numbers
    while window <= WIDEST and len(numbered) > window:
        last: dict[int, int] = {}
        for n, number in enumerate(numbered.tolist()):
            if number in last:
                gaps[n - last[number]] += 1
            last[number] = n
        pairs = np.stack([numbered[:-window], numbered[window:]], axis=1)
        numbered = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        window *= 2
    return [gap for gap, _ in gaps.most_common(PERIODS)]
