"""What a device's memory holds, kernel by kernel: the peak, and what is alive at it.

Arguments are there all the time unless they are donated, in which case they go after their last use. A value is there
from the kernel that writes it to the last that reads it. A fused kernel writes over an operand of the same size that
nobody reads again, and so do updates and sums over devices. Views take no memory and keep what they are of. The stacked
results of a scan are there from its start, and its carry once, in the place of what it starts from if that dies there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.core.factors import pointwise
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.source import Source
from meshwright.ops.stacked import inline_calls
from meshwright.simulate.kernels import Kernel, Kernels, fuse

IN_PLACE = frozenset(
    {"dynamic_update_slice", "scatter_add", "scatter_set", "scatter_max", "scatter_min", "scatter_mul"}
    | {"psum", "pmax", "pmin"}
)


class Alive(NamedTuple):
    """A value in memory at the peak: what it is, its bytes, and the line that made it."""

    what: str
    nbytes: int
    source: Source | None


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device: at the peak, of arguments, constants and results, of everything else at its own peak.

    ``curve`` has the bytes during each kernel, in the order in which they run.
    """

    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    constant_bytes: int
    temporary_bytes: int
    at_peak: tuple[Alive, ...]
    peak_source: Source | None
    curve: tuple[int, ...]

    @property
    def reserved_bytes(self) -> int:
        """What a compiler asks for that sets memory for results aside from the start, as XLA does."""
        return self.argument_bytes + self.constant_bytes + self.output_bytes + self.temporary_bytes

    def __str__(self) -> str:
        lines = [f"peak {size_text(self.peak_bytes)} a device: arguments {size_text(self.argument_bytes)}, "
                 f"constants {size_text(self.constant_bytes)}, results {size_text(self.output_bytes)}, "
                 f"other values up to {size_text(self.temporary_bytes)}"]  # fmt: skip
        if self.peak_source is not None:
            lines[0] += f"; reached at {self.peak_source}"
        shown = self.at_peak[:8]
        width = max([len(size_text(one.nbytes)) for one in shown], default=0)
        for one in shown:
            where = f"  {one.source}" if one.source else ""
            lines.append(f"  {size_text(one.nbytes):>{width}}  {one.what}{where}")
        if len(self.at_peak) > len(shown):
            rest = sum(one.nbytes for one in self.at_peak[len(shown) :])
            lines.append(f"  {size_text(rest):>{width}}  in {len(self.at_peak) - len(shown)} more values")
        return "\n".join(lines)


def size_text(nbytes: float) -> str:
    """Three digits and a unit.

    >>> size_text(1536), size_text(16_000_000_000)
    ('1.54 kB', '16 GB')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}" if nbytes < 999.5 * scale else f"{nbytes / scale:.0f} {unit}"
    return f"{nbytes:.0f} B"


def memory(
    program: Program,
    *,
    donated: Sequence[bool] = (),
    fused: bool = True,
    views_of: Collection[str] = (),
    kept: Collection[str] = (),
    fresh: Collection[str] = (),
    positions: bool = False,
    order: Sequence[int] | None = None,
    kernels: Kernels | None = None,
) -> MemoryUse:
    """What the memory of a device holds while it runs a local program.

    Without ``fused`` every equation's result is written, as on an engine that runs one op at a time; ``views_of`` names
    ops whose results then are views of their first operand, ``kept`` those whose results are never written over,
    ``fresh`` those that never write over an operand.
    ``positions`` says that the largest element of each window of a pool is found by positions, as XLA does on CPUs.
    ``order`` is that of the kernels, if it is not the program's.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> program = mw.make_program(lambda x: mnp.sum(mnp.exp(x) @ x))(mnp.ones((256, 256)))
    >>> memory(program).peak_bytes // (4 * 256 * 256)
    3
    """
    if kernels is None:
        program = inline_calls(program)
        kernels = fuse(program, fused, frozenset(views_of))
    return _Liveness(program, kernels, donated, order, fused, frozenset(kept), frozenset(fresh), positions).run()


class _Liveness:
    def __init__(
        self,
        program: Program,
        kernels: Kernels,
        donated: Sequence[bool],
        order: Sequence[int] | None = None,
        fused: bool = True,
        kept: frozenset[str] = frozenset(),
        fresh: frozenset[str] = frozenset(),
        positions: bool = False,
    ) -> None:
        self.program, self.kernels, self.fused, self.positions = program, kernels, fused, positions
        self.fresh = fresh
        self.kept = {v for eqn in program.eqns if eqn.op.name in kept for v in eqn.outputs}
        self.order = list(order) if order is not None else list(range(len(kernels.kernels)))
        given = list(donated) or [False] * len(program.inputs)
        self.donated = {v for v, flag in zip(program.inputs, given, strict=True) if flag}
        self.fixed = {v for v in program.inputs if v not in self.donated} | {v for v, _ in program.constants}

    def run(self) -> MemoryUse:
        program, stored = self.program, self.kernels.stored
        last: dict[Atom, int] = {}
        for time, number in enumerate(self.order):
            for var in self.kernels.kernels[number].reads:
                last[var] = time
        for atom in program.outputs:
            last[stored(atom)] = len(self.order)
        arguments = sum(v.type.nbytes for v in program.inputs)
        constants = sum(v.type.nbytes for v, _ in program.constants)
        made: dict[Var, Eqn | None] = dict.fromkeys((*program.inputs, *(v for v, _ in program.constants)))
        steps = []
        for time, number in enumerate(self.order):
            kernel = self.kernels.kernels[number]
            dying = [v for v in kernel.reads if last.get(v) == time and v not in self.fixed]
            steps.append((kernel, dying, self.reused(kernel, dying, kernel.writes)))
        returned = {stored(a) for a in program.outputs}
        live, temporary = arguments + constants, 0
        alive: set[Var] = set(made)
        peak, at, inside_peak, most, peak_alive = live, -1, 0, 0, set(alive)
        curve = []
        for time, (kernel, dying, reused) in enumerate(steps):
            inside = self.inside(kernel, dying)
            live += sum(v.type.nbytes for v in kernel.writes if v not in reused)
            temporary += sum(v.type.nbytes for v in kernel.writes if v not in reused and v not in returned)
            curve.append(live + inside)
            most = max(most, temporary + inside)
            made.update((v, eqn) for eqn in kernel.eqns for v in eqn.outputs if v in kernel.writes)
            alive.update(kernel.writes)
            if live + inside > peak:
                peak, at, inside_peak, peak_alive = live + inside, time, inside, alive - set(reused.values())
            moved = {old for new, old in reused.items() if new not in returned}
            for var in [*dying, *(v for v in kernel.writes if v not in last)]:
                alive.discard(var)
                live -= 0 if var in reused.values() else var.type.nbytes
                temporary -= 0 if var in self.donated or var in moved else var.type.nbytes
        shown = [_alive(v, made[v], self.program) for v in peak_alive if v.type.nbytes]
        if inside_peak > 0:
            shown.append(Alive("inside of the loop", inside_peak, None))
        shown.sort(key=lambda one: (-one.nbytes, one.what))
        source = self.kernels.kernels[self.order[at]].eqns[-1].source if at >= 0 else None
        out_bytes = sum(a.type.nbytes for a in returned if a.__class__ is Var and a not in self.fixed)
        return MemoryUse(peak, arguments, out_bytes, constants, most, tuple(shown), source, tuple(curve))

    def reused(self, kernel: Kernel, dying: Sequence[Var], new: Sequence[Var]) -> dict[Var, Var]:
        """Results that are written over operands which nobody reads again, with these."""
        eqn = kernel.eqns[0]
        if kernel.alone and (eqn.op.name in self.fresh or (eqn.op.name not in IN_PLACE and not _is_elementwise(eqn))):
            return {}
        # A compiler writes over any memory of the right size, an engine over an array of the same type.
        kind = (lambda v: v.type.nbytes) if self.fused else (lambda v: (v.type.shape, v.type.dtype))
        room = [v for v in dying if v not in self.kept]
        found: dict[Var, Var] = {}
        for var in new:
            old = next((v for v in room if kind(v) == kind(var)), None)
            if old is not None:
                room.remove(old)
                found[var] = old
        return found

    def inside(self, kernel: Kernel, dying: Sequence[Var]) -> int:
        """Bytes that the iterations of a loop need beside its operands and results."""
        eqn = kernel.eqns[0]
        if kernel.alone and eqn.op.name == "select_and_scatter_add" and self.positions:
            return _positions(eqn)
        if not kernel.alone or eqn.op.name not in ("scan", "while", "cond"):
            return 0
        if eqn.op.name == "cond":
            return max(_inner(branch, 0, 0) for branch in eqn.params["branches"])
        body: Program = eqn.params["body"]
        if eqn.op.name == "scan":
            consts, carry = eqn.params["consts"], eqn.params["carry"]
        else:
            consts, carry = eqn.params["body_consts"], len(eqn.outputs)
        starts = {self.kernels.stored(a) for a in eqn.inputs[len(eqn.inputs) - len(body.inputs) + consts :][:carry]}
        saved = sum(v.type.nbytes for v in dying if v in starts)
        return _inner(body, consts, carry) - saved


def _inner(body: Program, consts: int, carry: int) -> int:
    """The peak of an iteration beyond operands and results.

    What is stacked goes straight to its place in the whole. The new carry takes the place of the old one, which is that
    of the loop's result, if the old one is not read any more when it is written.
    """
    program = inline_calls(body)
    kernels = fuse(program)
    stored = kernels.stored
    last: dict[Atom, int] = {}
    for time, kernel in enumerate(kernels.kernels):
        for var in kernel.reads:
            last[var] = time
    made = {v: time for time, kernel in enumerate(kernels.kernels) for v in kernel.writes}
    outside = {*program.inputs, *(v for v, _ in program.constants), *(stored(a) for a in program.outputs[carry:])}
    for var, atom in zip(program.inputs[consts : consts + carry], program.outputs[:carry]):
        root = stored(atom)
        if root in made and last.get(var, -1) <= made[root]:  # type: ignore[index]
            outside.add(root)
    for atom in program.outputs:
        last[stored(atom)] = len(kernels.kernels)
    liveness = _Liveness(program, kernels, ())
    live = peak = 0
    for time, kernel in enumerate(kernels.kernels):
        dying = [v for v in kernel.reads if last.get(v) == time and v not in outside]
        new = [v for v in kernel.writes if v not in outside]
        reused = liveness.reused(kernel, dying, new)
        live += sum(v.type.nbytes for v in new if v not in reused)
        peak = max(peak, live + liveness.inside(kernel, dying))
        live -= sum(v.type.nbytes for v in dying if v not in reused.values())
        live -= sum(v.type.nbytes for v in new if v not in last)
    return peak


def _positions(eqn: Eqn) -> int:
    """What finding the largest element of each window takes: int32 positions of all elements, and of those found."""
    source, operand = eqn.inputs[0].type, eqn.outputs[0].type
    return 4 * operand.ndim * (operand.size + source.size) + source.nbytes


def _is_elementwise(eqn: Eqn) -> bool:
    return eqn.op.factors is pointwise


def _alive(var: Var, eqn: Eqn | None, program: Program) -> Alive:
    kind = var.type.short().split("{")[0]
    if eqn is not None:
        return Alive(f"{kind} of {eqn.op.name}", var.type.nbytes, eqn.source)
    return Alive(f"{kind}, an argument" if var in program.inputs else f"{kind}, a constant", var.type.nbytes, None)
