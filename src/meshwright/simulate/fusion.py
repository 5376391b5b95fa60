"""Which kernels a program becomes: what is fused, what is written to memory, what each kernel reads.

Compilers fuse chains of elementwise ops, so that only what leaves a chain is written. The rules here:

- Reshapes, lifts between devices and transposes that only products read are views: they cost nothing.
- Products, convolutions, collectives, scatters, sorts and loops are kernels of their own.
- A contraction computes an operand as it reads it that is a cast, or cheap elementwise ops of stored values with fewer
  bytes (int8 weights times their scale): they are read as they are stored, and the operand is never written.
- Everything else is fused. A cheap elementwise value that is read by fused ops alone is computed where it is read, as
  often as that is; an expensive one (``exp``, ``gather``, a reduction) is computed once, and written if several kernels
  read it.
- A reduction over trailing dims whose rows fit on the chip may have its readers in its kernel (softmax, norms). Any
  other is the end of its kernel.
- Kernels of one level that hand arrays to each other are one; numbers are a kernel of their own. The level of a value
  is the number of kernels of their own, and ends of kernels, on the longest way to it; so kernels never wait for each
  other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from meshwright.core.dtypes import array_bytes
from meshwright.core.facts import Fusion
from meshwright.core.op import fusion_of
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.simulate.attention import Attention
from meshwright.simulate.remembered import remembered
from meshwright.simulate.units import Unit, stored, units

_ELEMENTWISE = (Fusion.CHEAP, Fusion.ELEMENTWISE, Fusion.PERMUTATION)
ROW_BYTES = 2**17  # of the longest row that a kernel keeps on the chip


@dataclass
class Kernel:
    """Equations that run as one, the values that they read from memory with the bytes of each, and those written.

    One that runs ``alone`` is its last equation; those before it compute operands of that as they are read.
    """

    eqns: list[Eqn]
    reads: dict[Var, int] = field(default_factory=dict)
    writes: list[Var] = field(default_factory=list)
    alone: bool = False
    attention: Attention | None = None

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return sum(self.reads.values()) + sum(v.type.nbytes for v in self.writes)


@dataclass
class Fusions:
    """The kernels of a program in an order in which they can run, and the value that each view is of."""

    kernels: list[Kernel]
    views: dict[Var, Atom]

    def stored(self, atom: Atom) -> Atom:
        """The value in whose memory an atom is."""
        return stored(atom, self.views)


@remembered
def fuse(
    program: Program,
    fused: bool = True,
    views_of: frozenset[str] = frozenset(),
    attentions: Sequence[Attention] = (),
) -> Fusions:
    """The kernels of a program; without ``fused`` every equation is one.

    ``views_of`` names ops whose results are views of their first operand, beyond those that always are. Each of the
    ``attentions``, which `fuse_attention` finds, is one kernel.
    """
    views = _views(program, views_of)
    eqns = [eqn for eqn in program.eqns if not all(v in views for v in eqn.outputs) or eqn.effects]
    if not fused:
        return Fusions([_kernel(eqn, views) for eqn in eqns], views)
    return Fusions(_FusionPass(program, units(program, eqns, views, attentions), views).run(), views)


def _views(program: Program, more: frozenset[str]) -> dict[Var, Atom]:
    """The values that are another value in other words."""
    readers: dict[Atom, set[Fusion | None]] = {}
    fusions = [fusion_of(eqn) for eqn in program.eqns]
    for eqn, fusion in zip(program.eqns, fusions, strict=True):
        for atom in eqn.inputs:
            readers.setdefault(atom, set()).add(fusion)
    for atom in program.outputs:
        readers.setdefault(atom, set()).add(None)
    found: dict[Var, Atom] = {}
    for eqn, fusion in zip(program.eqns, fusions, strict=True):
        turned = fusion is Fusion.PERMUTATION and readers.get(eqn.outputs[0], set()) <= {Fusion.CONTRACTION}
        if fusion is Fusion.VIEW or turned or eqn.op.name in more:
            found.update(zip(eqn.outputs, eqn.inputs))
    return found


def _kernel(eqn: Eqn, views: dict[Var, Atom]) -> Kernel:
    reads = {}
    for atom in eqn.inputs:
        root = stored(atom, views)
        if root.__class__ is Var:
            reads[root] = root.type.nbytes
    return Kernel([eqn], reads, list(eqn.outputs), alone=True)  # type: ignore[arg-type]


def is_row_reduction(eqn: Eqn) -> bool:
    """Whether an equation reduces trailing dims whose rows stay on the chip."""
    operand, axes = eqn.inputs[0].type, eqn.params.get("axes", ())
    if (
        fusion_of(eqn) is not Fusion.REDUCTION
        or not axes
        or sorted(axes) != list(range(operand.ndim - len(axes), operand.ndim))
        or len(axes) == operand.ndim
    ):
        return False
    row = operand.dtype.itemsize
    for axis in axes:
        row *= operand.shape[axis]
    return row <= ROW_BYTES


class _FusionPass:
    """One pass forward for levels, one backward that gives each equation its kernels, one that puts them in order."""

    def __init__(self, program: Program, found: Sequence[Unit], views: dict[Var, Atom]) -> None:
        self.program, self.units, self.views = program, found, views
        self.eqns = [unit.eqn for unit in found]
        self.fusions = [unit.fusion for unit in found]
        self.made: dict[Var, int] = {v: n for n, unit in enumerate(found) for v in unit.outputs}
        self.level: list[int] = []
        self.parent: list[int] = []  # of kernels that became one
        self.kernel_level: list[int] = []
        self.homes: list[set[int]] = [set() for _ in found]  # the kernels that an equation runs in
        self.kept: set[Var] = set()  # values that are written to memory
        self.readers: list[list[int]] = [[] for _ in found]  # the equations that read the results of each

    def sources(self, n: int) -> Iterable[Var]:
        if self.units[n].reads is not None:
            yield from self.units[n].reads  # type: ignore[misc]
            return
        for atom in self.eqns[n].inputs:
            root = stored(atom, self.views)
            if root.__class__ is Var:
                yield root  # type: ignore[misc]

    def run(self) -> list[Kernel]:
        self.levels()
        self.assign()
        return self.collect()

    def ends(self, n: int) -> bool:
        """Whether what reads the results of an equation is in a later kernel."""
        eqn, fusion = self.eqns[n], self.fusions[n]
        if fusion.alone:
            return True
        if fusion is Fusion.REDUCTION:
            return not is_row_reduction(eqn)
        return fusion is not Fusion.CHEAP and all(v.type.size <= 1 for v in eqn.outputs)

    def read_bytes(self, n: int, at: int) -> int:
        """What a fused equation reads of an operand: no more of one that it goes through than it is asked for."""
        eqn = self.eqns[n]
        operand = eqn.inputs[at].type
        if not eqn.outputs:
            return operand.nbytes
        result = eqn.outputs[0].type
        passes = operand.size == result.size or (at == 0 and operand.size > result.size)
        if not passes or self.fusions[n] not in _ELEMENTWISE:
            return operand.nbytes
        return array_bytes(operand.dtype, self.asked_for(n))

    def asked_for(self, n: int) -> int:
        """The elements of an equation's result that are read, if one equation of its kernel alone reads it."""
        result = self.eqns[n].outputs[0]
        size, readers = result.type.size, self.readers[n]
        if len(readers) != 1 or result in self.kept or self.fusions[readers[0]] not in _ELEMENTWISE:
            return size
        reader = self.eqns[readers[0]]
        if stored(reader.inputs[0], self.views) != result or reader.outputs[0].type.size > size:
            return size
        return self.asked_for(readers[0])

    def levels(self) -> None:
        for n in range(len(self.eqns)):
            level = 0
            for var in self.sources(n):
                made = self.made.get(var)
                if made is not None:
                    level = max(level, self.level[made] + (1 if self.ends(made) else 0))
            self.level.append(level)

    def find(self, kernel: int) -> int:
        parent = self.parent
        while parent[kernel] != kernel:
            parent[kernel] = parent[parent[kernel]]
            kernel = parent[kernel]
        return kernel

    def new(self, level: int) -> int:
        self.parent.append(len(self.parent))
        self.kernel_level.append(level)
        return len(self.parent) - 1

    def assign(self) -> None:
        readers = self.readers
        for n in range(len(self.eqns)):
            for var in set(self.sources(n)):
                if var in self.made:
                    readers[self.made[var]].append(n)
        returned = {stored(atom, self.views) for atom in self.program.outputs}
        for n in reversed(range(len(self.eqns))):
            eqn = self.eqns[n]
            if self.fusions[n].alone:
                self.homes[n] = {self.new(-1)}
                self.kept.update(self.units[n].outputs)
                continue
            level = self.level[n]
            homes = {self.find(k) for reader in readers[n] for k in self.homes[reader]
                     if not self.fusions[reader].alone}  # fmt: skip
            must = any(v in returned for v in eqn.outputs) or any(self.fusions[r].alone for r in readers[n])
            if not must and not self.ends(n):
                reduction = self.fusions[n] is Fusion.REDUCTION
                near = all(self.kernel_level[k] == level for k in homes)
                if (self.fusions[n] is Fusion.CHEAP and len(homes) <= 8) or (
                    len(homes) == 1 and (near or not reduction)
                ):
                    self.homes[n] = homes
                    continue
            self.kept.update(eqn.outputs)
            same = [] if self.ends(n) else [k for k in homes if self.kernel_level[k] == level]
            home = same[0] if same else self.new(level)
            for other in same[1:]:
                self.parent[other] = home
            self.homes[n] = {home}

    def collect(self) -> list[Kernel]:
        members: dict[int, list[int]] = {}
        for n, homes in enumerate(self.homes):
            for home in {self.find(k) for k in homes}:
                members.setdefault(home, []).append(n)
        kernels: list[Kernel] = []
        for numbers in members.values():
            inside = {v for n in numbers for v in self.eqns[n].outputs}
            kernel = Kernel([self.eqns[n] for n in numbers], alone=self.fusions[numbers[0]].alone)
            unit = self.units[numbers[0]]
            if unit.reads is not None:
                kernels.append(Kernel(list(unit.eqns), dict(unit.reads), list(unit.outputs), True, unit.attention))
                continue
            for n in numbers:
                eqn = self.eqns[n]
                for at, atom in enumerate(eqn.inputs):
                    var = stored(atom, self.views)
                    if var.__class__ is Var and var not in inside:
                        bytes = self.read_bytes(n, at)
                        kernel.reads[var] = min(var.type.nbytes, kernel.reads.get(var, 0) + bytes)  # type: ignore[index]
                home_here = len(self.homes[n]) == 1
                kernel.writes += [v for v in eqn.outputs if v in self.kept and home_here]
            kernels.append(kernel)
        first = {id(k): numbers[0] for k, numbers in zip(kernels, members.values(), strict=True)}
        # A kernel stands where its first written value does: what is computed again elsewhere says nothing about it.
        for kernel, numbers in zip(kernels, members.values(), strict=True):
            own = [n for n in numbers if any(v in self.kept for v in self.eqns[n].outputs)]
            first[id(kernel)] = own[0] if own else numbers[0]
        return _in_order(kernels, first)


def _in_order(kernels: list[Kernel], place: dict[int, int]) -> list[Kernel]:
    """As near to the program's order as what they read from each other allows."""
    maker = {v: n for n, kernel in enumerate(kernels) for v in kernel.writes}
    waits = [len({maker[v] for v in kernel.reads if v in maker}) for kernel in kernels]
    readers: list[list[int]] = [[] for _ in kernels]
    for n, kernel in enumerate(kernels):
        for made in {maker[v] for v in kernel.reads if v in maker}:
            readers[made].append(n)
    ready = [(place[id(kernel)], n) for n, kernel in enumerate(kernels) if not waits[n]]
    heapify(ready)
    out: list[Kernel] = []
    while ready:
        _, n = heappop(ready)
        out.append(kernels[n])
        for reader in readers[n]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (place[id(kernels[reader])], reader))
    assert len(out) == len(kernels), "kernels wait for each other in a circle"
    return out
