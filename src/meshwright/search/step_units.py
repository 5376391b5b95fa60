"""A training step as a sequence of units: one for each product of the forward pass, with what belongs to it.

A unit has seconds of its forward, of the backward pass that others wait for, of weight gradients and of the update, and
the bytes of parameters, gradients, states of the optimizer and activations. Those of layers in a loop, or of the one
that stands for equal layers, come as often as there are layers. Stages of a pipeline are runs of units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshwright.core.facts import Fusion, Structure
from meshwright.core.op import fusion_of
from meshwright.core.program import Atom, Eqn, Literal, Var
from meshwright.search.written_out import DATA
from meshwright.simulate.fusion import Kernel
from meshwright.simulate.machine import COMPUTE
from meshwright.simulate.tasks import Task, TaskBlock

FORWARD, BACKWARD, WEIGHTS, TAIL, SHARED, REDUCE = range(6)
PHASES = 5
KINDS = ("parameters", "gradients", "states", "kept", "matmuls")


@dataclass(eq=False)
class StepUnits:
    """The units of a step: totals over all times that each comes, and how often that is."""

    times: list[int] = field(default_factory=list)
    stands: list[bool] = field(default_factory=list)  # for equal layers
    blocks: list[int] = field(default_factory=list)  # units of one loop, or of one layer, have one number
    seconds: np.ndarray = field(default_factory=lambda: np.zeros((0, PHASES)))
    talks: np.ndarray = field(default_factory=lambda: np.zeros((0, PHASES)))  # seconds of collectives between parts
    cheap: np.ndarray = field(default_factory=lambda: np.zeros(0))  # forward seconds that are not of products
    nbytes: dict[str, np.ndarray] = field(default_factory=dict)
    crossing: np.ndarray = field(default_factory=lambda: np.zeros(0))  # bytes that go from a unit to later ones
    transient: np.ndarray = field(default_factory=lambda: np.zeros(0))  # bytes that only one task at a time has,
    updated: np.ndarray = field(default_factory=lambda: np.zeros(0))  # and one that updates parameters
    summed: float = 0.0  # bytes of all sums over the batch

    @cached_property
    def order(self) -> np.ndarray:
        """The units in the order in which the step comes to them, as often as it does."""
        found: list[int] = []
        start = 0
        while start < len(self.times):
            end = start
            while end < len(self.times) and self.blocks[end] == self.blocks[start]:
                end += 1
            found += list(range(start, end)) * self.times[start]
            start = end
        return np.array(found, int)

    def short(self) -> StepUnits:
        """The units of the program that was read: a layer that stands for others comes once."""
        times = [1 if stands else times for times, stands in zip(self.times, self.stands, strict=True)]
        count = np.array(self.times, float) / np.array(times, float)
        return replace(
            self,
            times=times,
            seconds=(self.seconds.T / count).T,
            talks=(self.talks.T / count).T,
            nbytes={name: array / count for name, array in self.nbytes.items()},
        )

    def each(self, totals: np.ndarray) -> np.ndarray:
        """Totals of units as what each of them has, in the order of the step."""
        times = np.array(self.times, float)
        found: np.ndarray = (totals.T / times).T[self.order]
        return found


@dataclass(eq=False)
class _LoopUnits:
    """A loop of the forward pass: its units, and its length."""

    first: int
    end: int
    length: int


class UnitReader:
    """Reads the tasks of a step on one device into units.

    ``batch`` are the inputs that have the batch, ``marked`` the values of a layer that stands for ``count`` of them.
    Where parts of the batch cannot be told apart, all of the step is one unit.
    """

    def __init__(
        self, block: TaskBlock, batch: Collection[Var], loss: Atom, marked: Collection[Var], count: int, separable: bool
    ) -> None:
        self.block, self.batch, self.marked, self.count = block, set(batch), marked, count
        self.tasks, self.kernels = block.tasks, block.kernels.kernels
        self.units = StepUnits()
        self.products: list[bool] = []  # whether a unit has its product
        self.made: dict[Var, int] = {}  # forward: the unit that makes a value
        self.home: dict[Var, int] = {}  # and the last that has to do with it
        self.at: dict[Var, int] = {}  # backward: the unit that makes a value
        self.loops: list[_LoopUnits] = []
        self.crossing: dict[int, float] = {}  # bytes that go from a unit to later ones
        self.parts: list[tuple[int, int, Task, int, bool]] = []  # unit, phase, task, times, product
        self.phases = self._phases(loss) if separable else [FORWARD] * len(self.tasks)
        self.inner: dict[int, list[tuple[int, int]]] = {}  # phase and unit of the tasks in loops
        self.unit_of: dict[int, int] = {}
        self._forward()
        self._backward()
        self._tail()
        self._sum_up()

    # Phases

    def is_sum(self, n: int) -> bool:
        eqn = self.kernels[n].eqns[-1]
        return eqn.op.collective is not None and tuple(eqn.params["axes"]) == (DATA,)

    def _sums_of_parts(self) -> list[bool]:
        """Whether a task is a sum over the batch that comes after what is done with its parts, and not one that they
        need, which is had before: it takes no products."""
        count = len(self.tasks)
        products, of_rows = [False] * count, [False] * count
        sums: list[set[int]] = []  # without products, that a task follows from
        needed: set[int] = set()
        for n, task in enumerate(self.tasks):
            products[n] = self.is_product(n) or task.body is not None or any(products[a] for a in task.after)
            of_rows[n] = not self.is_sum(n) and (
                any(v in self.batch for v in task.reads) or any(of_rows[a] for a in task.after)
            )
            sums.append(
                {*({n} if self.is_sum(n) and not products[n] else ()), *(k for a in task.after for k in sums[a])}
            )
            if of_rows[n]:
                needed |= sums[n]
        return [self.is_sum(n) and n not in needed for n in range(count)]

    def _phases(self, loss: Atom) -> list[int]:
        count = len(self.tasks)
        late, micro, last_sum = [False] * count, [False] * count, self._sums_of_parts()
        for n, task in enumerate(self.tasks):
            late[n] = any(late[a] or last_sum[a] for a in task.after)
            micro[n] = not late[n] and (any(v in self.batch for v in task.reads) or any(micro[a] for a in task.after))
        needed: set[int] = set()
        root = self.block.kernels.stored(loss)
        waiting = [self.block.makers[root]] if isinstance(root, Var) and root in self.block.makers else []
        while waiting:
            n = waiting.pop()
            if n not in needed:
                needed.add(n)
                waiting += self.tasks[n].after
        last = max((n for n in needed if micro[n] and self.is_product(n)), default=-1)
        found = []
        for n in range(count):
            if last_sum[n]:
                found.append(REDUCE)
            elif late[n]:
                found.append(TAIL)
            elif not micro[n]:
                found.append(SHARED)
            else:
                found.append(FORWARD if n <= last or n in needed else BACKWARD)
        return found

    def times(self, n: int) -> int:
        """How often a task comes: of the layer that stands for others, as often as these."""
        return self.count if any(v in self.marked for v in self.kernels[n].eqns[-1].outputs) else 1

    def amount(self, v: Var) -> float:
        """The bytes of a value, and of those that it stands for."""
        return float(v.type.nbytes) * (self.count if v in self.marked else 1)

    # Forward

    def unit(self, times: int, block: int, product: bool, stands: bool = False) -> int:
        self.units.times.append(times)
        self.units.stands.append(stands)
        self.units.blocks.append(block)
        self.products.append(product)
        return len(self.products) - 1

    def _forward(self) -> None:
        u, blocks, marked = -1, 0, False
        for n, task in enumerate(self.tasks):
            if self.phases[n] != FORWARD:
                continue
            if self.is_layers(n):
                u, blocks = self._forward_loop(n, blocks + 1), blocks + 2
                marked = False
                continue
            product = self.is_product(n)
            if u < 0 or (product and self.products[u]) or (self.loops and self.loops[-1].end == u + 1):
                if (self.times(n) > 1) != marked:
                    marked, blocks = not marked, blocks + 1
                u = self.unit(self.count if marked else 1, blocks, product, marked)
            self.products[u] |= product
            self.unit_of[n] = u
            self.part(n, u)
            for v in task.reads:
                self.home[v] = max(self.home.get(v, -1), u)
            for v in task.writes:
                self.made[v] = u
                self.home.setdefault(v, u)
        mine = [n for n, phase in enumerate(self.phases) if phase == FORWARD]
        units = [self.loops_units(n) for n in mine if n in self.inner or self.is_product(n)]
        for end, u in zip(_narrowest(self.block, mine, self.batch), units, strict=False):
            self.crossing.setdefault(u, end)

    def part(self, n: int, u: int) -> None:
        self.parts.append((u, self.phases[n], self.tasks[n], self.times(n), self.is_product(n)))

    def aligned(self, u: int, marked: bool) -> int:
        """The unit that has a task's or a value's place in a layer, and is of the layer that stands for others if, and
        only if, that is."""
        if not any(self.units.stands):
            return u
        first = self.units.stands.index(True)
        period = sum(self.units.stands)
        if marked == self.units.stands[u]:
            return u
        if marked:
            return first + (u - first) % period
        return u + period if u + period < len(self.products) else max(0, u - period)

    def is_product(self, n: int) -> bool:
        return of_product(self.kernels[n])

    def loops_units(self, n: int) -> int:
        """The last unit of a forward task that has a product."""
        return self.inner[n][-1][1] if n in self.inner else self.unit_of[n]

    def is_layers(self, n: int) -> bool:
        """Whether a task is a loop over layers: one with products in it."""
        task, eqn = self.tasks[n], self.kernels[n].eqns[-1]
        if task.body is None or eqn.op.structure is not Structure.ROWS or task.times < 2:
            return False
        kernels = task.body.kernels.kernels
        return any(map(of_product, kernels))

    def _forward_loop(self, n: int, block: int) -> int:
        task, eqn = self.tasks[n], self.kernels[n].eqns[-1]
        body = task.body
        assert body is not None
        first = u = self.unit(task.times, block, False)
        made: dict[Var, int] = {}
        reads: dict[Var, int] = {}
        for one, kernel in zip(body.tasks, body.kernels.kernels, strict=True):
            product = of_product(kernel)
            if product and self.products[u]:
                u = self.unit(task.times, block, True)
            self.products[u] |= product
            self.parts.append((u, FORWARD, one, task.times, product))
            self.inner.setdefault(n, []).append((FORWARD, u))
            for v in one.reads:
                reads[v] = max(reads.get(v, -1), u)
            made.update(dict.fromkeys(one.writes, u))
        loop = _LoopUnits(first, u + 1, task.times)
        self.loops.append(loop)
        consts, carried = eqn.params["consts"], eqn.params["carry"]
        for atom, var in zip(eqn.inputs, body.program.inputs, strict=True):
            root = self.block.kernels.stored(atom)
            if not isinstance(root, Var):
                continue
            self.home[root] = max(self.home.get(root, -1), reads.get(var, first))
        for k, (atom, var) in enumerate(zip(body.program.outputs, eqn.outputs, strict=True)):
            inner = body.kernels.stored(atom)
            self.made[var] = u if k < carried else made.get(inner, u)  # type: ignore[arg-type]
            self.home.setdefault(var, self.made[var])
        inside = _narrowest(body, range(len(body.tasks)), body.program.inputs[consts : consts + carried])
        places = dict.fromkeys(u for _, u in self.inner[n])
        for place, end in zip(places, inside, strict=False):
            self.crossing[place] = end
        self.crossing[u] = float(sum(v.type.nbytes for v in eqn.outputs[:carried]))
        return u

    # Backward

    def _backward(self) -> None:
        last = len(self.products) - 1
        placed: dict[int, int] = {}
        for n, task in enumerate(self.tasks):
            if self.phases[n] != BACKWARD:
                continue
            loop = self._partner(n)
            if loop is not None:
                self._backward_loop(n, loop)
                continue
            placed[n] = u = _placed(task.reads, self.home, self.at, last)
            self.at.update(dict.fromkeys(task.writes, u))
        self._split_weights(placed)
        for n, u in placed.items():
            self.part(n, u)

    def _partner(self, n: int) -> _LoopUnits | None:
        """The loop of the forward pass that a loop of the backward pass goes back through."""
        if not self.is_layers(n):
            return None
        eqn = self.kernels[n].eqns[-1]
        roots = [self.block.kernels.stored(a) for a in eqn.inputs[eqn.params["consts"] + eqn.params["carry"] :]]
        homes = [self.home[v] for v in roots if isinstance(v, Var) and v in self.home]
        found = Counter(k for u in homes for k, loop in enumerate(self.loops) if loop.first <= u < loop.end)
        best = self.loops[found.most_common(1)[0][0]] if found else None
        return best if best is not None and best.length == self.tasks[n].times else None

    def _backward_loop(self, n: int, loop: _LoopUnits) -> None:
        task, eqn = self.tasks[n], self.kernels[n].eqns[-1]
        body = task.body
        assert body is not None
        carried = eqn.params["carry"]
        home: dict[Var, int] = {}
        for atom, var in zip(eqn.inputs, body.program.inputs, strict=True):
            root = self.block.kernels.stored(atom)
            if isinstance(root, Var) and loop.first <= self.home.get(root, -1) < loop.end:
                home[var] = self.home[root]
        at: dict[Var, int] = {}
        waited = _makers_of(body, body.program.outputs[:carried])
        for k, one in enumerate(body.tasks):
            u = max(loop.first, _placed(one.reads, home, at, loop.end - 1))
            at.update(dict.fromkeys(one.writes, u))
            phase = BACKWARD if k in waited else WEIGHTS
            product = of_product(body.kernels.kernels[k])
            self.parts.append((u, phase, one, task.times, product))
            self.inner.setdefault(n, []).append((phase, u))
        for k, (atom, var) in enumerate(zip(body.program.outputs, eqn.outputs, strict=True)):
            inner = body.kernels.stored(atom)
            self.at[var] = loop.first if k < carried else at.get(inner, loop.first)  # type: ignore[arg-type]

    def _split_weights(self, placed: dict[int, int]) -> None:
        """Weight gradients are what no other unit waits for."""
        waited: set[int] = set()
        for n in reversed(range(len(self.tasks))):
            if self.phases[n] != BACKWARD:
                continue
            if n not in waited and n not in self.inner:
                self.phases[n] = WEIGHTS
            for before in self.tasks[n].after:
                if self.phases[n] == BACKWARD or placed.get(before) != placed[n]:
                    waited.add(before)

    # What is done once

    def _tail(self) -> None:
        where = {**self.home, **self.at}
        for n, task in enumerate(self.tasks):
            if self.phases[n] not in (TAIL, REDUCE, SHARED):
                continue
            known = [v for v in (*task.writes, *task.reads) if v in where and v not in self.batch]
            u = where[max(known, key=lambda v: v.type.nbytes)] if known else 0
            for v in (*task.writes, *task.reads):
                where.setdefault(v, u)
            if self.phases[n] != REDUCE:
                self.part(n, u)
        self.where = where

    # Sums

    def _sum_up(self) -> None:
        units, count = self.units, max(1, len(self.products))
        if not self.products:
            self.unit(1, 0, False)
        units.seconds, units.talks = np.zeros((count, PHASES)), np.zeros((count, PHASES))
        units.cheap, units.crossing = np.zeros(count), np.zeros(count)
        units.transient, units.updated = np.zeros(count), np.zeros(count)
        units.nbytes = {name: np.zeros(count) for name in KINDS}
        if any(units.stands):
            self.parts = [(self.aligned(u, times > 1), *task, times, p) for u, *task, times, p in self.parts]  # type: ignore[misc]
        for u, phase, task, times, product in self.parts:
            kind = units.seconds if COMPUTE in task.cost.units or not task.cost.axes else units.talks
            kind[u, phase] += times * task.cost.seconds
            if phase == FORWARD and not product:
                units.cheap[u] += times * task.cost.seconds
        for u, nbytes in self.crossing.items():
            units.crossing[u] = nbytes
        self._bytes()
        self._transients()

    def _bytes(self) -> None:
        nbytes, phases = self.units.nbytes, self.phases
        readers: dict[Var, set[int]] = {}
        for n, task in enumerate(self.tasks):
            for v in task.reads:
                readers.setdefault(v, set()).add(phases[n])
            if phases[n] == REDUCE:
                amounts = {v: self.amount(v) for v in task.reads}
                self.units.summed += sum(amounts.values())
                for v, amount in amounts.items():
                    if v in self.at:
                        nbytes["gradients"][self.aligned(self.at[v], v in self.marked)] += amount
        for v in self.block.program.inputs:
            if v not in self.batch:
                of_step = readers.get(v, set()) & {FORWARD, BACKWARD, WEIGHTS, SHARED}
                u = self.aligned(self.where.get(v, 0), v in self.marked)
                nbytes["parameters" if of_step else "states"][u] += self.amount(v)
        for u, phase, task, times, product in self.parts:
            if (
                product and phase == FORWARD
            ):  # others are computed from these, whether the backward pass reads them or not
                nbytes["matmuls"][u] += times * sum(v.type.nbytes for v in task.writes)
        self.kept: set[Var] = set()
        for v, u in self.made.items():
            if readers.get(v, set()) & {BACKWARD, WEIGHTS}:
                self.kept.add(v)
                u = self.aligned(u, v in self.marked)
                nbytes["kept"][u] += self.amount(v)

    def _transients(self) -> None:
        found, updated = self.units.transient, self.units.updated
        stored = self.block.kernels.stored
        counted = {*self.block.program.inputs, *self.kept, *map(stored, self.block.program.outputs)}
        counted |= {v for n, task in enumerate(self.tasks) if self.phases[n] == REDUCE for v in task.reads}
        for u, phase, task, _, _ in self.parts:
            most = updated if phase == TAIL else found
            most[u] = max(most[u], _moved(task, counted))
        for n, placed in self.inner.items():
            body = self.tasks[n].body
            assert body is not None
            outside = {*body.program.inputs, *(body.kernels.stored(a) for a in body.program.outputs)}
            for (_, u), task in zip(placed, body.tasks, strict=True):
                found[u] = max(found[u], _moved(task, outside))


def is_product(eqns: Sequence[Eqn]) -> bool:
    """Whether a kernel is a product."""
    return any(fusion_of(eqn) is Fusion.CONTRACTION for eqn in eqns)


def of_product(kernel: Kernel) -> bool:
    """Whether a kernel is a product, or an attention."""
    return kernel.attention is not None or is_product(kernel.eqns)


def _narrowest(block: TaskBlock, tasks: Sequence[int], given: Collection[Var]) -> list[float]:
    """Behind each task that has a product, or is a loop, and up to the next such: the fewest bytes, made of what is
    ``given``, that later ones need.

    It is looked for between equations and not between kernels, because a stage may end inside of one.
    """
    kernels, stored = block.kernels.kernels, block.kernels.stored
    mine = {id(eqn) for n in tasks for eqn in kernels[n].eqns}
    heads = {id(kernels[n].eqns[-1]) for n in tasks if of_product(kernels[n]) or block.tasks[n].body is not None}
    eqns = [eqn for eqn in block.program.eqns if id(eqn) in mine]
    made: dict[Atom, int] = dict.fromkeys(given, -1)
    last: dict[Atom, int] = {}
    for n, eqn in enumerate(eqns):
        read = [root for atom in eqn.inputs if (root := stored(atom)) in made]
        last.update(dict.fromkeys(read, n))
        if read:
            made.update(dict.fromkeys(eqn.outputs, n))
    alive = np.zeros(len(eqns) + 1)
    for atom, end in last.items():
        alive[max(0, made[atom])] += atom.type.nbytes
        alive[end] -= atom.type.nbytes
    alive = np.cumsum(alive)[:-1]
    ends = [n for n, eqn in enumerate(eqns) if id(eqn) in heads]
    return [float(alive[n:end].min()) for n, end in zip(ends, [*ends, len(eqns)][1:], strict=True)]


def _moved(task: Task, counted: Collection[Atom]) -> float:
    """The bytes that a task reads and writes beside what is counted elsewhere."""
    return float(sum(v.type.nbytes for v in {*task.reads, *task.writes} if v not in counted))


def _placed(reads: Sequence[Var], home: dict[Var, int], at: dict[Var, int], last: int) -> int:
    """The unit of a task of the backward pass: that of the forward values it needs, and none above its gradients'."""
    above = [at[v] for v in reads if v in at]
    kept = [home[v] for v in reads if v in home and v not in at]
    return min([max(kept, default=min(above, default=last)), *above])


def _makers_of(block: TaskBlock, atoms: Sequence[Atom]) -> set[int]:
    """The tasks that values of a block depend on."""
    roots = [block.kernels.stored(a) for a in atoms if not isinstance(a, Literal)]
    waiting = [block.makers[v] for v in roots if isinstance(v, Var) and v in block.makers]
    found: set[int] = set()
    while waiting:
        n = waiting.pop()
        if n not in found:
            found.add(n)
            waiting += block.tasks[n].after
    return found
