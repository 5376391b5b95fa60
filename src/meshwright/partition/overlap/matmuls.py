"""Overlap: a gather or reduce-scatter next to matmuls becomes a ring of permutes beside partial products.

When that pays: ``chips`` devices gather ``[m, k]`` and multiply it by ``[k, n]``, of which each has ``n / chips``
columns. A step computes ``2·m·k/chips · n/chips`` operations and sends ``2·m·k/chips`` bytes of bf16, so that computing
hides sending if ``n > chips · flops / bandwidth``. Of any matmul, ``n`` is ``chips`` times the multiplications that
each element which is sent takes part in; of a reduce-scatter, the multiplications that are summed up in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from meshwright.core import dtypes
from meshwright.core.facts import Fusion
from meshwright.core.op import Cost, fusion_of
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.source import here
from meshwright.errors import HardwareError, MeshwrightError
from meshwright.hardware.chips import Chip, dtype_name
from meshwright.hardware.machines import named_machine
from meshwright.hardware.roofline import Roofline
from meshwright.hardware.topology import Topology
from meshwright.ops.basic import add, convert, reshape, transpose
from meshwright.ops.collective import all_gather, all_gather_invariant, pbroadcast, ppermute, psum_scatter
from meshwright.ops.contraction import dot_general
from meshwright.ops.shape import slice_
from meshwright.partition.combine import CollectiveReason, OverlapOutcome
from meshwright.partition.cost import MachineCost, cost_on
from meshwright.partition.overlap.rings import (
    Around,
    MatmulOperand,
    Product,
    gather_ring,
    kernel_call,
    kernel_takes,
    roles,
    scatter_ring,
)
from meshwright.sharding.mesh import BaseMesh
from meshwright.transform.regions.scan import scan
from meshwright.transform.simplify import dce

GATHERS = (all_gather, all_gather_invariant)
MOVABLE = (*GATHERS, pbroadcast, transpose, reshape, convert, slice_)  # before the matmul of a ring, for another


@dataclass(frozen=True)
class Overlap:
    """When collectives next to matmuls become rings beside them: where that pays on ``hardware``; None, always.

    ``product(x, y, axis_name)`` multiplies matrices whose left one is gathered along its columns, such as
    `pallas.ops.all_gather_matmul`; it takes the place of a ring where it can.

    >>> Overlap("tpu v5e").hardware
    'tpu v5e'
    """

    hardware: str | Chip | Topology | None = None
    product: Product | None = None

    def __post_init__(self) -> None:
        if isinstance(self.hardware, str):
            named_machine(self.hardware)  # an error that lists the chips
        if self.hardware is not None and not isinstance(self.hardware, str | Chip | Topology):
            raise _unknown(self.hardware)
        if self.product is not None and not callable(self.product):
            raise MeshwrightError(
                f"Overlap is given product={self.product!r}.",
                where=here(),
                why="a product is a function of a left side to gather, a right side and the name of an axis",
                fix="product=pallas.ops.all_gather_matmul",
            )


def read_overlap(given: Any) -> Overlap | None:
    """The `Overlap` that jit's ``overlap`` argument stands for.

    >>> read_overlap(None), read_overlap(True)
    (None, Overlap(hardware=None, product=None))
    """
    if given is None or given is False:
        return None
    if isinstance(given, Overlap):
        return given
    return Overlap(None if given is True else given)


def _unknown(given: Any) -> MeshwrightError:
    return MeshwrightError(
        f"Collectives cannot be overlapped for {given!r}.",
        where=here(),
        why="they are put beside matmuls always (True), or where it pays: on a chip of that name, or a Topology",
        fix='mw.jit(f, overlap="tpu v5e")',
    )


class Overlapped(NamedTuple):
    """A program with rings, and what became of its collectives: why they are there, and what is beside them."""

    program: Program
    whys: dict[Var, CollectiveReason]
    overlaps: dict[Var, OverlapOutcome]


def overlap(
    program: Program, mesh: BaseMesh, axes: Mapping[str, int], whys: Mapping[Var, CollectiveReason], how: Overlap
) -> Overlapped:
    """The local program with rings where ``how`` says so, inside of its regions, too.

    b: f32[8,4]{i} = all_gather a axes=('i',) dim=0          d: f32[8,6]{i} = … scan: of what is at hand, a
    d: f32[8,6]{i} = dot_general b c …               ==>         dot_general with c, and a ppermute to the next
    """
    found = _Pass(mesh, axes, whys, how)
    return Overlapped(found.program(program), found.whys, found.overlaps)


class _Ring(NamedTuple):
    """A ring in place of a collective and the matmuls next to it."""

    collective: Eqn
    around: Around
    matmuls: tuple[Eqn, ...]
    program: Program
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    at: int  # the index of the equation that it replaces
    gone: tuple[int, ...]  # the equations that it stands for
    before: tuple[int, ...] = ()  # the equations that come before it, which came later
    use: MatmulOperand | None = None  # of a gather, if it is the only one
    kernel: bool = False


class _Refused(Exception):
    """Why a collective stays what it is."""


class _Pass:
    def __init__(
        self, mesh: BaseMesh, axes: Mapping[str, int], whys: Mapping[Var, CollectiveReason], how: Overlap
    ) -> None:
        self.axes, self.how = axes, how
        self.whys: dict[Var, CollectiveReason] = dict(whys)
        self.overlaps: dict[Var, OverlapOutcome] = {}
        self.machine = None if how.hardware is None else _RingCosts(cost_on(how.hardware, mesh))

    def program(self, program: Program) -> Program:
        order = _EqnOrder(program, [self.with_regions(eqn) for eqn in program.eqns])
        constants = list(program.constants)
        asked = [eqn for eqn in order.eqns if eqn.op in (*GATHERS, psum_scatter) and prod(eqn.params["sizes"]) > 1]
        # Where two collectives are next to one matmul, the one that sends more is hidden.
        for eqn in sorted(asked, key=_sent, reverse=True):
            kind = str(eqn.op.collective)
            try:
                ring = self.as_kernel(_gathered(eqn, order) if eqn.op in GATHERS else _scattered(eqn, order))
                saved = self.machine.saved(ring, kind) if self.machine is not None else None
            except _Refused as refused:
                self.overlaps[eqn.outputs[0]] = OverlapOutcome(kind, why_not=str(refused))
                continue
            constants += ring.program.constants
            self.note(ring, OverlapOutcome(kind, ring.around.size - 1, len(ring.matmuls), saved))
            order.put(ring)
        found = Program(program.inputs, tuple(order.in_order()), program.outputs, tuple(constants))
        return dce(found) if order.rings else found

    def with_regions(self, eqn: Eqn) -> Eqn:
        if not eqn.regions():
            return eqn
        params = {name: self.inside(value) for name, value in eqn.params.items()}
        return Eqn(eqn.op, eqn.inputs, params, eqn.outputs, eqn.source)

    def inside(self, value: Any) -> Any:
        if isinstance(value, Program):
            return self.program(value)
        return tuple(map(self.inside, value)) if isinstance(value, tuple) else value

    def as_kernel(self, ring: _Ring) -> _Ring:
        """A ring as a call of the kernel that was given, if the kernel can compute it."""
        kernel, use = self.how.product, ring.use
        if kernel is None or use is None:
            return ring
        shard, dim = ring.collective.inputs[0].type, ring.collective.params["dim"]
        if not kernel_takes(use, dim, ring.around, list(self.axes)):
            return ring
        program = kernel_call(ring.around, shard, dim, use, kernel, list(self.axes.items()))
        return ring._replace(program=program, kernel=True)

    def note(self, ring: _Ring, outcome: OverlapOutcome) -> None:
        """Remember what became of a collective, and why it was there."""
        if ring.kernel:
            self.overlaps[ring.outputs[0]] = outcome._replace(permutes=0, kernel=ring.collective)
            return
        why = self.whys.get(ring.collective.outputs[0])
        for var in _permuted(ring.program):
            self.overlaps[var] = outcome
            if why is not None:
                self.whys[var] = why


def _sent(eqn: Eqn) -> int:
    """Bytes that a device receives."""
    group, held = prod(eqn.params["sizes"]), eqn.inputs[0].type.nbytes
    return held * (group - 1) if eqn.op in GATHERS else held * (group - 1) // group


def _permuted(program: Program) -> Iterator[Var]:
    for eqn in program.eqns:
        if eqn.op is ppermute:
            yield eqn.outputs[0]
        for _, inner in eqn.regions():
            yield from _permuted(inner)


class _EqnOrder:
    """Equations, and where each runs once there are rings.

    Everything keeps its index but for matmuls, which run where their ring is, and what is moved before one. A ring
    reads only what was made before its index, and nothing before its index reads what it makes: so what every
    equation reads always comes before it.
    """

    def __init__(self, program: Program, eqns: Sequence[Eqn]) -> None:
        self.eqns = eqns
        self.outputs = set(program.outputs)
        self.made: dict[Atom, int] = {}  # by which equation
        self.readers: dict[Atom, list[int]] = {}
        for n, eqn in enumerate(eqns):
            self.made.update(dict.fromkeys(eqn.outputs, n))
            for atom in dict.fromkeys(eqn.inputs):
                self.readers.setdefault(atom, []).append(n)
        self.at = list(range(len(eqns)))  # where each equation runs
        self.rings: dict[int, _Ring] = {}  # by index
        self.in_ring: set[int] = set()  # the equations that rings stand for

    def read_by(self, var: Atom) -> list[int]:
        """The equations that read a value, in the order they run."""
        return sorted(self.readers.get(var, ()), key=self.at.__getitem__)

    def put(self, ring: _Ring) -> None:
        """Enter a ring."""
        self.rings[ring.at] = ring
        self.in_ring.update(ring.gone)
        for n in (*ring.gone, *ring.before):
            self.at[n] = ring.at
        self.made.update(dict.fromkeys(ring.outputs, ring.at))

    def movable(self, atom: Atom, index: int) -> list[int] | None:
        """The equations to move to an index so that a value is there; None if they are more than views and gathers."""
        n = self.made.get(atom)
        if n is None or self.at[n] < index:
            return []
        if n in self.in_ring or self.eqns[n].op not in MOVABLE:
            return None
        found = [self.movable(a, index) for a in self.eqns[n].inputs]
        return None if None in found else [*(m for part in found for m in part or ()), n]

    def in_order(self) -> Iterator[Eqn]:
        moved = {n for ring in self.rings.values() for n in ring.before}
        for n, eqn in enumerate(self.eqns):
            ring = self.rings.get(n)
            if ring is not None:
                yield from (self.eqns[m] for m in sorted(set(ring.before)) if self.at[m] == n)
                yield from _spliced(ring)
            elif n not in self.in_ring and n not in moved:
                yield eqn


def _spliced(ring: _Ring) -> Iterator[Eqn]:
    """The equations of a ring, on the values of the program it is in."""
    names: dict[Atom, Any] = dict(zip(ring.program.inputs, ring.inputs, strict=True))
    names.update(zip(ring.program.outputs, ring.outputs, strict=True))
    for eqn in ring.program.eqns:
        inputs, outputs = ([names.get(a, a) for a in atoms] for atoms in (eqn.inputs, eqn.outputs))
        yield Eqn(eqn.op, inputs, eqn.params, outputs, eqn.source)


# What stands next to a collective


def _gathered(eqn: Eqn, order: _EqnOrder) -> _Ring:
    """The matmuls that read what is gathered, at the index of the first; what else reads it later reads what the ring
    collects."""
    around, dim = Around(eqn.params["axes"], eqn.params["sizes"], eqn.source), eqn.params["dim"]
    same: dict[Var, int] = {eqn.outputs[0]: order.made[eqn.outputs[0]]}  # what is gathered, made varying or not
    made_varying = list(same)
    for var in made_varying:
        found = [n for n in order.read_by(var) if order.eqns[n].op is pbroadcast]
        same.update((order.eqns[n].outputs[0], n) for n in found)
        made_varying += [order.eqns[n].outputs[0] for n in found]
    readers = {n for var in same for n in order.read_by(var)} - set(same.values())
    uses: list[MatmulOperand] = []
    gone, before = list(same.values()), []
    collected = [var for var in same if var in order.outputs]
    first = -1
    for n in sorted(readers, key=order.at.__getitem__):
        use = _use(order, n, same)
        if not uses:
            first = n
            _check_first(order, n, use, dim, around)
        moved = None if use is None or not _in_parts(use, dim, around) else order.movable(_other(use), first)
        if use is not None and moved is not None and _other(use) not in same:
            uses.append(use)
            gone.append(n)
            before += moved
        else:
            collected += [var for var in same if var in order.eqns[n].inputs and var not in collected]
    if not uses:
        raise _Refused("no matmul reads it")
    if not all(set(around.axes) <= set(var.type.varying) for var in collected):
        raise _Refused("it is also needed as a value that is known to be the same on all devices")
    if len({var.type for var in collected}) < len(collected):
        raise _Refused("it is also needed as two values of one type")
    program = gather_ring(around, eqn.inputs[0].type, dim, uses, [var.type for var in collected])
    return _Ring(
        eqn,
        around,
        tuple(use.eqn for use in uses),
        program,
        (eqn.inputs[0], *map(_other, uses)),
        (*(use.eqn.outputs[0] for use in uses), *collected),
        first,
        tuple(gone),
        tuple(before),
        uses[0] if len(uses) == 1 and not collected else None,
    )


def _use(order: _EqnOrder, n: int, same: Mapping[Var, int]) -> MatmulOperand | None:
    """The matmul that an equation is of what is gathered."""
    eqn = order.eqns[n]
    operands = [number for number, atom in enumerate(eqn.inputs) if atom in same]
    return (
        MatmulOperand(eqn, operands[0])
        if eqn.op is dot_general and len(operands) == 1 and n not in order.in_ring
        else None
    )


def _other(use: MatmulOperand) -> Atom:
    return use.eqn.inputs[1 - use.operand]


def _in_parts(use: MatmulOperand, dim: int, around: Around) -> bool:
    """Whether a matmul can be taken in parts along a dim of an operand, each device in an order of its own."""
    summed = roles(use.eqn, use.operand, dim).result is None
    return set(around.axes) <= set(use.result.varying) and not (summed and use.result.dtype == dtypes.BOOL)


def _check_first(order: _EqnOrder, n: int, use: MatmulOperand | None, dim: int, around: Around) -> None:
    """Refuse if what reads a gathered value first is no matmul that could wait for its parts."""
    if n in order.in_ring:
        raise _Refused("the matmul that reads it hides another collective")
    if use is None and order.eqns[n].op is dot_general:
        raise _Refused("a matmul of it with itself reads it first")
    if use is None:
        raise _Refused(f"{order.eqns[n].op.name} reads it first, and no matmul")
    if not set(around.axes) <= set(use.result.varying):
        raise _Refused(f"all devices along {', '.join(around.axes)} compute the same matmul of it")
    if not _in_parts(use, dim, around):
        raise _Refused("matmuls of bools are not sums")


def _scattered(eqn: Eqn, order: _EqnOrder) -> _Ring:
    """The matmuls whose sum is summed up and scattered."""
    around, dim = Around(eqn.params["axes"], eqn.params["sizes"], eqn.source), eqn.params["dim"]
    summands: list[Atom] = [eqn.inputs[0]]
    matmuls: list[Eqn] = []
    index = order.made[eqn.outputs[0]]
    gone = [index]
    while summands:
        atom = summands.pop()
        n = order.made.get(atom)
        made = None if n is None else order.eqns[n]
        same = made is not None and made.op in (dot_general, add) and atom.type.shape == eqn.inputs[0].type.shape
        if n is None or made is None or not same:
            raise _Refused("what it sums is not a matmul, nor a sum of matmuls")
        if n in order.in_ring:
            raise _Refused("a matmul that it sums hides another collective")
        doubled = made.op is add and made.inputs[0] is made.inputs[1]
        if doubled or atom in order.outputs or len(order.read_by(atom)) > 1:
            raise _Refused("a matmul that it sums is also needed as it is")
        gone.append(n)
        if made.op is add:
            summands += reversed(made.inputs)
        else:
            matmuls.append(made)
    program = scatter_ring(around, matmuls, dim, eqn.outputs[0].type)
    inputs = tuple(atom for matmul in matmuls for atom in matmul.inputs)
    return _Ring(eqn, around, tuple(matmuls), program, inputs, tuple(eqn.outputs), index, tuple(gone))


# Whether it pays


class _RingCosts:
    """What rings take on a machine."""

    def __init__(self, cost: MachineCost) -> None:
        self.cost = cost

    def saved(self, ring: _Ring, kind: str) -> float:
        """Seconds that a ring saves; refused where computing does not hide sending, or memory costs more."""
        eqn, around = ring.collective, ring.around
        block = (eqn.inputs[0] if eqn.op in GATHERS else eqn.outputs[0]).type
        shift = 1 if len(around.axes) == 1 else None
        send = self.cost.along("permute", around.size * block.nbytes, around.axes, shift=shift)
        try:
            compute = sum(self.matmul(one).compute_seconds for one in ring.matmuls) / around.size
            apart = sum(self.matmul(one).seconds for one in ring.matmuls)
            # A kernel sums partial products up where it computes them.
            step = apart / around.size
            together = (around.size - 1) * max(step, send) + step if ring.kernel else self.seconds(ring.program, send)
        except HardwareError as error:
            raise _Refused(error.what.rstrip(".")) from None
        chips, operations = around.size, sum(_cost(one).flops for one in ring.matmuls)
        if not operations:
            raise _Refused("there is nothing to compute")
        n = operations / (2 * block.size)
        if compute < send:
            need = n * send / compute
            raise _Refused(f"n = {n:.0f} < {need:.0f}, by which {chips} chips compute as long as they send")
        volume = around.size * block.nbytes
        saved = self.cost.along(kind, volume, around.axes) + apart - together
        if saved <= 0:
            raise _Refused(f"n = {n:.0f} hides it, but partial products need more of the memory's time than is saved")
        return saved

    def matmul(self, eqn: Eqn) -> Roofline:
        """The work of a matmul."""
        cost = _cost(eqn)
        return self.cost.roofline(cost.flops, cost.nbytes, dtype_name(eqn.inputs[0].type.dtype))

    def seconds(self, program: Program, send: float) -> float:
        """The time of a ring: the steps of its loop compute and send at once."""
        total, sends = 0.0, 0.0
        for eqn in program.eqns:
            if eqn.op is scan:
                total += eqn.params["length"] * self.seconds(eqn.params["body"], send)
            elif eqn.op is ppermute:
                sends += send
            elif fusion_of(eqn) is Fusion.CONTRACTION:
                total += self.matmul(eqn).seconds
            elif any(v.type.ndim for v in eqn.outputs) and eqn.op is not pbroadcast:
                moved = min(_cost(eqn).nbytes, sum(x.type.nbytes for x in (*eqn.inputs, *eqn.outputs)))
                total += self.cost.work(0, moved, "bf16")
        return max(total, sends)


def _cost(eqn: Eqn) -> Cost:
    return eqn.op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)
