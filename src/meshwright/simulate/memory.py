"""What a device's memory holds, kernel by kernel: the peak, and what is alive at it.

Arguments are there all the time unless they are donated, in which case they go after their last use, or before the
first kernel if there is none. A value is there from the kernel that writes it to the last that reads it. A fused kernel
writes over an operand of the same size that nobody reads again, and so do updates and sums over devices. Views take no
memory and keep what they are of. The stacked results of a scan are there from its start, and its carry once, in the
place of what it starts from if that dies there; rows that an iteration makes of rows it reads are written over these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.chart.amounts import size_text
from meshwright.core.facts import Across, Fusion, Memory, Structure
from meshwright.core.op import fusion_of, is_elementwise, memory_of
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.source import Source, here
from meshwright.errors import MeshwrightError
from meshwright.simulate.attention import fuse_attention
from meshwright.simulate.forgotten import forget_scores
from meshwright.simulate.fusion import Fusions, Kernel, fuse
from meshwright.simulate.lifetimes import Change, Step, last_reads, lifetimes
from meshwright.transform.stack import inline_calls


class Alive(NamedTuple):
    """A value in memory at the peak: what it is, its bytes, and the line that made it, or the number of the input."""

    what: str
    nbytes: int
    source: Source | None
    input: int | None = None


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device: at the peak, of arguments, constants and results, of everything else at its own peak.

    ``alias_bytes`` are those of results that lie in the memory of donated arguments, and count among both. ``curve``
    has the bytes during each kernel, in the order in which they run. ``host_bytes`` are the most that were offloaded to
    the memory of the host at a time.
    """

    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    constant_bytes: int
    temporary_bytes: int
    at_peak: tuple[Alive, ...]
    peak_source: Source | None
    curve: tuple[int, ...]
    alias_bytes: int = 0
    host_bytes: int = 0

    @property
    def reserved_bytes(self) -> int:
        """What a compiler asks for that sets memory for results aside from the start, as XLA does."""
        fixed = self.argument_bytes + self.constant_bytes + self.output_bytes - self.alias_bytes
        return fixed + self.temporary_bytes

    def __str__(self) -> str:
        donated = f" ({size_text(self.alias_bytes)} of them in donated arguments)" if self.alias_bytes else ""
        lines = [f"peak {size_text(self.peak_bytes)} a device: arguments {size_text(self.argument_bytes)}, "
                 f"constants {size_text(self.constant_bytes)}, results {size_text(self.output_bytes)}{donated}, "
                 f"other values up to {size_text(self.temporary_bytes)}"]  # fmt: skip
        if self.host_bytes:
            lines[0] += f"; {size_text(self.host_bytes)} offloaded to the host"
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
    kernels: Fusions | None = None,
    flash: bool = True,
) -> MemoryUse:
    """The memory of a device while it runs a local program.

    Without ``fused`` every equation's result is written, as on an engine that runs one op at a time; ``views_of`` names
    ops whose results then are views of their first operand, ``kept`` those whose results are never written over,
    ``fresh`` those that never write over an operand.
    ``positions`` says that the largest element of each window of a pool is found by positions, as XLA does on CPUs.
    ``order`` is that of the kernels, if it is not the program's. Without ``flash``, scores of attention are written.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> program = mw.make_program(lambda x: mnp.sum(mnp.exp(x) @ x))(mnp.ones((256, 256)))
    >>> memory(program).peak_bytes // (4 * 256 * 256)
    3
    """
    if kernels is None:
        program = forget_scores(program) if fused and flash else program
        program, kernels = _fused(program, fused, flash, frozenset(views_of))
    found = _Liveness(program, kernels, donated, order, fused, frozenset(kept), frozenset(fresh), positions, flash)
    return found.run()


def _fused(
    program: Program, fused: bool, flash: bool, views_of: frozenset[str] = frozenset()
) -> tuple[Program, Fusions]:
    """The program without calls, and its kernels."""
    program = inline_calls(program)
    program, attentions = fuse_attention(program) if fused and flash else (program, [])
    return program, fuse(program, fused, views_of, attentions)


class _Liveness:
    def __init__(
        self,
        program: Program,
        kernels: Fusions,
        donated: Sequence[bool],
        order: Sequence[int] | None = None,
        fused: bool = True,
        kept: frozenset[str] = frozenset(),
        fresh: frozenset[str] = frozenset(),
        positions: bool = False,
        flash: bool = True,
    ) -> None:
        self.program, self.kernels, self.fused, self.positions = program, kernels, fused, positions
        self.flash = flash and fused
        self.fresh = fresh
        self.kept = {v for eqn in program.eqns if eqn.op.name in kept for v in eqn.outputs}
        self.order = list(order) if order is not None else list(range(len(kernels.kernels)))
        given = _flags(program, donated)
        self.donated = {v for v, flag in zip(program.inputs, given, strict=True) if flag}
        self.fixed = {v for v in program.inputs if v not in self.donated} | {v for v, _ in program.constants}
        # The values in whose memory results are, with these.
        self.returned = {root: a for a in program.outputs if (root := kernels.stored(a)).__class__ is Var}
        self.steps: list[Step[Var]] = [(k.reads, k.writes) for k in (kernels.kernels[n] for n in self.order)]
        self.last = last_reads(self.steps, self.returned)  # type: ignore[arg-type]
        self.host = on_host(program)
        self.place: dict[Var, Var] = {}  # of a value written over another: the one that the memory was first for

    def run(self) -> MemoryUse:
        program, returned = self.program, self.returned
        arguments = sum(self.size(v) for v in program.inputs)
        constants = sum(self.size(v) for v, _ in program.constants)
        made: dict[Var, Eqn | None] = dict.fromkeys((*program.inputs, *(v for v, _ in program.constants)))
        live, temporary, most = arguments + constants, 0, 0
        alive: set[Var] = set(made)
        peak, at, inside_peak, peak_alive = live, -1, 0, set(alive)
        # When the memory of a donated argument is free again.
        freed = {v: -1 for v in program.inputs if v in self.donated and v not in self.last}
        alive.difference_update(freed)
        live -= sum(self.size(v) for v in freed)
        curve = []
        there = most_there = 0  # bytes in the memory of the host
        for time, change in enumerate(self.changes(self.fixed)):
            kernel = self.kernels.kernels[self.order[time]]
            dying, reused, inside = change.dying, change.over, self.inside(kernel)
            live += sum(self.size(v) for v in change.taken)
            temporary += sum(self.size(v) for v in change.taken if v not in returned)
            there += sum(v.type.nbytes for v in kernel.writes if v in self.host)
            most_there = max(most_there, there)
            curve.append(live + inside)
            handed = [old for new, old in self.carried(kernel, dying).items() if new in returned]
            most = max(most, temporary + inside - sum(self.size(v) for v in handed if not self.in_donated(v)))
            made.update((v, eqn) for eqn in kernel.eqns for v in eqn.outputs if v in kernel.writes)
            alive.update(kernel.writes)
            kept = set(reused.values())
            if live + inside > peak:
                peak, at, inside_peak, peak_alive = live + inside, time, inside, alive - kept
            moved = {old for new, old in reused.items() if new not in returned}
            for var in [*dying, *(v for v in kernel.writes if v not in self.last)]:
                alive.discard(var)
                there -= var.type.nbytes if var in self.host else 0
                live -= 0 if var in kept else self.size(var)
                if not self.in_donated(var):
                    temporary -= 0 if var in moved else self.size(var)
                elif var not in kept:
                    freed[self.place.get(var, var)] = time
        shown = [_alive(v, made[v], program) for v in made if v in peak_alive and self.size(v)]
        if inside_peak > 0:
            shown.append(Alive("inside of the loop", inside_peak, None))
        shown.sort(key=lambda one: (-one.nbytes, one.what))
        source = self.kernels.kernels[self.order[at]].eqns[-1].source if at >= 0 else None
        results = [v for v in returned if v not in self.fixed]
        return MemoryUse(
            peak, arguments, sum(self.size(v) for v in results), constants, most, tuple(shown), source, tuple(curve),
            self.aliased(results, freed), most_there,
        )  # fmt: skip

    def changes(self, fixed: Collection[Atom]) -> Iterator[Change[Var]]:
        """What each kernel does to memory, in the order in which they run."""
        kernels = [self.kernels.kernels[number] for number in self.order]
        return lifetimes(self.steps, self.last, fixed, lambda time, dying, new: self.reused(kernels[time], dying, new))

    def size(self, var: Var) -> int:
        """The bytes of a value in the memory of the device."""
        return 0 if var in self.host else var.type.nbytes

    def in_donated(self, var: Var) -> bool:
        """Whether a value is in memory that came with a donated argument."""
        return self.place.get(var, var) in self.donated

    def aliased(self, results: Sequence[Var], freed: Mapping[Var, int]) -> int:
        """Bytes of results in donated arguments: written over one, or made after the last use of one of their type."""
        written = {v: time for time, n in enumerate(self.order) for v in self.kernels.kernels[n].writes}
        free, found = dict(freed), 0
        for var in sorted(results, key=lambda v: written.get(v, -1)):
            old: Var | None = self.place.get(var, var)
            result = self.returned[var]
            if not self.in_donated(var):
                old = next((v for v, time in free.items() if time < written[var] and _same_array(v, result)), None)
                free.pop(old, None)  # type: ignore[arg-type]
            found += var.type.nbytes if old is not None and _same_array(old, result) else 0
        return found

    def reused(self, kernel: Kernel, dying: Sequence[Var], new: Sequence[Var]) -> dict[Var, Var]:
        """Results that are written over operands which nobody reads again, with these."""
        eqn = kernel.eqns[-1]
        found: dict[Var, Var] = {}
        if kernel.alone and _is_loop(eqn):
            found = {var: old for var, old in self.carried(kernel, dying).items() if var in new}
        elif self.in_place(kernel):
            found = self.over(dying, new)
        self.place.update((var, self.place.get(old, old)) for var, old in found.items())
        return found

    def in_place(self, kernel: Kernel) -> bool:
        """Whether a kernel may write its results over what it reads."""
        eqn = kernel.eqns[-1]
        special = kernel.attention is not None or eqn.op.structure in _TRANSFERS
        free = eqn.op.name not in self.fresh and not special
        return not kernel.alone or (free and (memory_of(eqn) is Memory.IN_PLACE or is_elementwise(eqn)))

    def over(self, dying: Sequence[Var], new: Sequence[Var]) -> dict[Var, Var]:
        """As many of the new values as there is room for, each over one that dies."""
        # A compiler writes over any memory of the right size, an engine over an array of the same type. Results go to
        # donated arguments, which is what these are for.
        room = [v for v in dying if v not in self.kept]
        found: dict[Var, Var] = {}
        for var in sorted(new, key=lambda v: v not in self.returned):
            fits = [v for v in room if (v.type.nbytes == var.type.nbytes if self.fused else _same_array(v, var))]
            if fits:
                result = self.returned.get(var)
                wanted = [v for v in fits if self.in_donated(v) and (result is None or _same_array(v, result))]
                others = [v for v in fits if v not in wanted]
                old = ((wanted or others) if result is not None else (others or wanted))[0]
                room.remove(old)
                found[var] = old
        return found

    def carried(self, kernel: Kernel, dying: Sequence[Var]) -> dict[Var, Var]:
        """The last carries of a loop in the memory of what they start from, where nobody reads that again."""
        eqn = kernel.eqns[-1]
        if not kernel.alone or not _is_loop(eqn):
            return {}
        consts, carry = _carry(eqn)
        starts = eqn.inputs[len(eqn.inputs) - len(eqn.params["body"].inputs) + consts :][:carry]
        room, found = set(dying), {}
        for var, atom in zip(eqn.outputs, starts):
            root = self.kernels.stored(atom)
            if root in room and root.type.nbytes == var.type.nbytes:
                room.remove(root)  # type: ignore[arg-type]
                found[var] = root
        found.update((var, root) for var, root in self.rows_over(kernel).items() if root in room)
        return found  # type: ignore[return-value]

    def rows_over(self, kernel: Kernel) -> dict[Var, Var]:
        """Stacked results of a scan with the stacked operands that they may be written over, row by row.

        An iteration writes the row in place of the one it reads: gradients that are added to those of layers before.
        """
        eqn = kernel.eqns[-1]
        if not self.fused or not kernel.alone or eqn.op.structure is not Structure.ROWS:
            return {}
        consts, carry = _carry(eqn)
        body = inline_calls(eqn.params["body"])
        rows, operands = body.inputs[consts + carry :], eqn.inputs[consts + carry :]
        same = [
            (n, k)
            for n, out in enumerate(eqn.outputs[carry:])
            for k, atom in enumerate(operands)
            if _same_array(out, atom)
        ]
        if not same:
            return {}
        body, kernels = _fused(body, True, self.flash)
        last = {v: time for time, one in enumerate(kernels.kernels) for v in one.reads}
        made = {v: time for time, one in enumerate(kernels.kernels) for v in one.writes}
        found: dict[Var, Var] = {}
        for n, k in same:
            row, root = kernels.stored(body.outputs[carry + n]), self.kernels.stored(operands[k])
            time = made.get(row)  # type: ignore[arg-type]
            if time is None or last.get(rows[k]) != time or kernels.kernels[time].alone or root in found.values():
                continue
            found.setdefault(eqn.outputs[carry + n], root)  # type: ignore[arg-type]
        return found

    def inside(self, kernel: Kernel) -> int:
        """Bytes that the iterations of a loop need beside its operands and results."""
        eqn = kernel.eqns[-1]
        if kernel.alone and eqn.op.split.across is Across.UNWINDOWED and self.positions:
            return _positions(eqn)
        if kernel.alone and eqn.op.structure is Structure.BRANCH:
            return max(_inner(branch, 0, 0, self.flash) for branch in eqn.params["branches"])
        return _inner(eqn.params["body"], *_carry(eqn), self.flash) if kernel.alone and _is_loop(eqn) else 0


_TRANSFERS = (Structure.OFFLOAD, Structure.RELOAD)


def on_host(program: Program, entering: Collection[Var] = ()) -> set[Var]:
    """The values of a program that are in the memory of the host: what was offloaded, and what a loop stacked of it."""
    found = set(entering)
    for eqn in program.eqns:
        if eqn.op.structure is Structure.OFFLOAD:
            found.update(eqn.outputs)
        elif eqn.op.structure is Structure.ROWS:
            body = eqn.params["body"]
            inside = on_host(body, {v for v, a in zip(body.inputs, eqn.inputs, strict=True) if a in found})
            found.update(v for v, a in zip(eqn.outputs, body.outputs, strict=True) if a in inside)
        elif eqn.op.structure is Structure.BRANCH:
            branches = eqn.params["branches"]
            given = [{v for v, a in zip(b.inputs, eqn.inputs[1:], strict=True) if a in found} for b in branches]
            inside = set().union(*(on_host(b, g) for b, g in zip(branches, given, strict=True)))
            found.update(v for n, v in enumerate(eqn.outputs) if any(b.outputs[n] in inside for b in branches))
        elif fusion_of(eqn) is Fusion.VIEW and eqn.inputs[0] in found:
            found.update(eqn.outputs)
    return found


def _is_loop(eqn: Eqn) -> bool:
    return eqn.op.structure in (Structure.ROWS, Structure.LOOP)


def _carry(eqn: Eqn) -> tuple[int, int]:
    """How many constants the body of a loop takes, and how many values it hands on."""
    if eqn.op.structure is Structure.ROWS:
        return eqn.params["consts"], eqn.params["carry"]
    return eqn.params["body_consts"], len(eqn.outputs)


def _inner(body: Program, consts: int, carry: int, flash: bool) -> int:
    """The peak of an iteration beyond operands and results.

    What is stacked goes straight to its place in the whole. The new carry takes the place of the old one, which is that
    of the loop's result, if the old one is not read any more when it is written.
    """
    program, kernels = _fused(body, True, flash)
    stored = kernels.stored
    made = {v: time for time, kernel in enumerate(kernels.kernels) for v in kernel.writes}
    liveness = _Liveness(program, kernels, (), flash=flash)
    last = last_reads(liveness.steps, ())
    outside = {*program.inputs, *(v for v, _ in program.constants), *(stored(a) for a in program.outputs[carry:])}
    for var, atom in zip(program.inputs[consts : consts + carry], program.outputs[:carry]):
        root = stored(atom)
        if root not in made:
            continue
        time, read = made[root], last.get(var, -1)  # type: ignore[index]
        writer = kernels.kernels[time]
        if read < time or (read == time and (liveness.in_place(writer) or liveness.rows_over(writer).get(root) is var)):
            outside.add(root)
    live = peak = 0
    for kernel, change in zip(kernels.kernels, liveness.changes(outside), strict=True):
        live += sum(v.type.nbytes for v in change.taken)
        new = {*change.taken, *change.over}
        handed = sum(old.type.nbytes for v, old in liveness.carried(kernel, change.dying).items() if v not in new)
        peak = max(peak, live + liveness.inside(kernel) - handed)
        live -= sum(v.type.nbytes for v in change.freed)
    return peak


def _positions(eqn: Eqn) -> int:
    """What finding the largest element of each window takes: int32 positions of all elements, and of those found."""
    source, operand = eqn.inputs[0].type, eqn.outputs[0].type
    return 4 * operand.ndim * (operand.size + source.size) + source.nbytes


def _flags(program: Program, donated: Sequence[bool]) -> list[bool]:
    """Which inputs of a program are donated; none, if nothing is said."""
    given = list(donated) or [False] * len(program.inputs)
    if len(given) != len(program.inputs):
        raise MeshwrightError(
            f"donated has {len(given)} entries, and the program {len(program.inputs)} inputs.",
            where=here(),
            why="it says of each input whether its memory may be written over",
            fix=f"donated={[True] + [False] * (len(program.inputs) - 1) if program.inputs else []}",
        )
    return given


def _same_array(one: Atom, other: Atom) -> bool:
    return one.type.shape == other.type.shape and one.type.dtype == other.type.dtype


def _alive(var: Var, eqn: Eqn | None, program: Program) -> Alive:
    kind = var.type.short().split("{")[0]
    if eqn is not None:
        return Alive(f"{kind} of {eqn.op.name}", var.type.nbytes, eqn.source)
    if var in program.inputs:
        return Alive(f"{kind}, an argument", var.type.nbytes, None, program.inputs.index(var))
    return Alive(f"{kind}, a constant", var.type.nbytes, None)
