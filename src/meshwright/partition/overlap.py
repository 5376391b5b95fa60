"""Overlap: a gather or reduce-scatter next to products becomes a ring of permutes beside partial products.

When that pays: ``chips`` devices gather ``[m, k]`` and multiply it by ``[k, n]``, of which each has ``n / chips``
columns. A step computes ``2·m·k/chips · n/chips`` operations and sends ``2·m·k/chips`` bytes of bf16, so that computing
hides sending if ``n > chips · flops / bandwidth``. Of any product, ``n`` is ``chips`` times the products that each
element which is sent takes part in; of a reduce-scatter, the products that are summed up in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from meshwright.core import dtypes
from meshwright.core.mesh import BaseMesh
from meshwright.core.op import Cost
from meshwright.core.partition_spec import read_axis
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.sharding_check import resolve
from meshwright.core.source import here
from meshwright.errors import HardwareError, MeshwrightError
from meshwright.hardware.chips import Chip, dtype_name, get
from meshwright.hardware.collectives import collective_seconds
from meshwright.hardware.roofline import Roofline, work
from meshwright.hardware.topology import Topology
from meshwright.ops.collective import all_gather, all_gather_invariant, pbroadcast, ppermute, psum_scatter
from meshwright.ops.contraction import dot_general
from meshwright.ops.scan import scan
from meshwright.partition.combine import KINDS, Beside, Why
from meshwright.partition.reshard_cost import refined_for, topology_for
from meshwright.partition.rings import (
    Around,
    Product,
    Use,
    gather_ring,
    kernel_call,
    kernel_takes,
    roles,
    scatter_ring,
)
from meshwright.transform.simplify import dce

GATHERS = (all_gather, all_gather_invariant)


@dataclass(frozen=True)
class Overlap:
    """When collectives next to products become rings beside them: where that pays on ``hardware``; None, always.

    ``product(x, y, axis_name)`` multiplies matrices whose left one is gathered along its columns, such as
    `pallas.ops.all_gather_matmul`; it takes the place of a ring where it can.

    >>> Overlap("tpu v5e").hardware
    'tpu v5e'
    """

    hardware: str | Chip | Topology | None = None
    product: Product | None = None

    def __post_init__(self) -> None:
        if isinstance(self.hardware, str):
            get(self.hardware)  # an error that lists the chips
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
    """What jit's ``overlap`` stands for.

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
        why="they are put beside products always (True), or where that pays on a machine: a chip's name, a Topology",
        fix='mw.jit(f, overlap="tpu v5e")',
    )


class Overlapped(NamedTuple):
    """A program with rings, and what became of its collectives: why they are there, and what is beside them."""

    program: Program
    whys: dict[Var, Why]
    beside: dict[Var, Beside]


def overlap(
    program: Program, mesh: BaseMesh, axes: Mapping[str, int], whys: Mapping[Var, Why], how: Overlap
) -> Overlapped:
    """The local program with rings where ``how`` says so, inside of its regions, too.

    b: f32[8,4]{i} = all_gather a axes=('i',) dim=0          d: f32[8,6]{i} = … scan: of what is at hand, a
    d: f32[8,6]{i} = dot_general b c …               ==>         dot_general with c, and a ppermute to the next
    """
    found = _Pass(mesh, axes, whys, how)
    return Overlapped(found.program(program), found.whys, found.beside)


class _Node(NamedTuple):
    """Equations that stay together, what they read and what they make."""

    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    eqns: tuple[Eqn, ...]


class _Ring(NamedTuple):
    """A ring in place of a collective and the products next to it."""

    collective: Eqn
    around: Around
    products: tuple[Eqn, ...]
    program: Program
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    gone: tuple[Var, ...]  # values that nothing reads any more
    use: Use | None = None  # of a gather, if it is the only one
    kernel: bool = False


class _Refused(Exception):
    """Why a collective stays what it is."""


class _Pass:
    def __init__(self, mesh: BaseMesh, axes: Mapping[str, int], whys: Mapping[Var, Why], how: Overlap) -> None:
        self.axes, self.how = axes, how
        self.whys: dict[Var, Why] = dict(whys)
        self.beside: dict[Var, Beside] = {}
        self.machine = None if how.hardware is None else _Machine(topology_for(how.hardware, mesh), mesh)

    def program(self, program: Program) -> Program:
        eqns = [Eqn(e.op, e.inputs, {k: self.inside(v) for k, v in e.params.items()}, e.outputs, e.source)
                for e in program.eqns]  # fmt: skip
        nodes = [_Node(tuple(eqn.inputs), tuple(eqn.outputs), (eqn,)) for eqn in eqns]
        constants = list(program.constants)
        # Where two collectives are next to one product, the one that sends more is hidden.
        asked = [eqn for eqn in eqns if (eqn.op in GATHERS or eqn.op is psum_scatter) and prod(eqn.params["sizes"]) > 1]
        for eqn in sorted(asked, key=_sent, reverse=True):
            kind = KINDS[eqn.op.name]
            try:
                ring = (_gathered if eqn.op in GATHERS else _scattered)(eqn, nodes, program.outputs)
                ring = self.as_kernel(ring)
                saved = self.machine.saved(ring, kind) if self.machine is not None else None
            except _Refused as refused:
                self.beside[eqn.outputs[0]] = Beside(kind, why_not=str(refused))
                continue
            constants += ring.program.constants
            nodes = self.placed(ring, nodes, Beside(kind, ring.around.size - 1, len(ring.products), saved))
        found = Program(program.inputs, tuple(_in_order(nodes)), program.outputs, tuple(constants))
        return dce(found) if len(nodes) < len(eqns) else found

    def inside(self, value: Any) -> Any:
        if isinstance(value, Program):
            return self.program(value)
        return tuple(map(self.inside, value)) if isinstance(value, tuple) else value

    def as_kernel(self, ring: _Ring) -> _Ring:
        """The same by the kernel that was given, if it can do it."""
        kernel, use = self.how.product, ring.use
        if kernel is None or use is None:
            return ring
        shard, dim = ring.collective.inputs[0].type, ring.collective.params["dim"]
        if not kernel_takes(use, dim, ring.around, list(self.axes)):
            return ring
        program = kernel_call(ring.around, shard, dim, use, kernel, list(self.axes.items()))
        return ring._replace(program=program, kernel=True)

    def placed(self, ring: _Ring, nodes: list[_Node], beside: Beside) -> list[_Node]:
        """The nodes with a ring in place of what it stands for."""
        names: dict[Atom, Any] = dict(zip(ring.program.inputs, ring.inputs, strict=True))
        names.update(zip(ring.program.outputs, ring.outputs, strict=True))
        eqns = tuple(
            Eqn(e.op, [names.get(a, a) for a in e.inputs], e.params, [names.get(v, v) for v in e.outputs], e.source)
            for e in ring.program.eqns
        )
        why = self.whys.get(ring.collective.outputs[0])
        if ring.kernel:
            self.beside[ring.outputs[0]] = beside._replace(permutes=0, kernel=ring.collective)
        else:
            for var in _permuted(ring.program):
                self.beside[var] = beside
                if why is not None:
                    self.whys[var] = why
        gone = {*ring.gone, *ring.outputs}
        kept = []
        for node in nodes:
            if node.outputs and node.outputs[0] in gone:
                if node.outputs[0] is ring.outputs[0]:
                    kept.append(_Node(ring.inputs, ring.outputs, eqns))
            else:
                kept.append(node)
        return kept


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


def _in_order(nodes: Sequence[_Node]) -> Iterator[Eqn]:
    """The equations in the order of the nodes, but each after what it reads."""
    makers = {var: n for n, node in enumerate(nodes) for var in node.outputs}
    done = [False] * len(nodes)
    for number in range(len(nodes)):
        waiting = [number]
        while waiting:
            n = waiting[-1]
            missing = [] if done[n] else [makers[a] for a in nodes[n].inputs if a in makers and not done[makers[a]]]  # type: ignore[index]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if not done[n]:
                done[n] = True
                yield from nodes[n].eqns


# What stands next to a collective


def _gathered(eqn: Eqn, nodes: Sequence[_Node], outputs: Sequence[Atom]) -> _Ring:
    """The products that read what is gathered, at the place of the first; whatever else reads it, or needs it already
    for its other operand, reads what the ring collects."""
    around, dim = Around(eqn.params["axes"], eqn.params["sizes"], eqn.source), eqn.params["dim"]
    same: list[Var] = list(eqn.outputs)  # what is gathered, lifted or not
    depends: set[Atom] = set(same)
    uses: list[Use] = []
    read: set[Atom] = set()
    for node in nodes:
        if depends.isdisjoint(node.inputs):
            continue
        one = node.eqns[0] if len(node.eqns) == 1 else None
        if one is not None and one.op is pbroadcast and one.inputs[0] in same:
            same += one.outputs
        else:
            places = [n for n, atom in enumerate(node.inputs) if atom in same]
            use = Use(one, places[0]) if one is not None and one.op is dot_general and len(places) == 1 else None
            if use is not None and node.inputs[1 - use.operand] not in depends and _in_parts(use, dim, around):
                uses.append(use)
            else:
                read.update(atom for atom in node.inputs if atom in same)
        depends.update(node.outputs)
    read.update(atom for atom in outputs if atom in same)
    if not uses:
        raise _Refused("no product that could take it in parts reads it")
    collected = [var for var in same if var in read]
    if not all(set(around.axes) <= set(var.type.varying) for var in collected):
        raise _Refused("it is also needed as a value that is known to be the same on all devices")
    if len({var.type for var in collected}) < len(collected):
        raise _Refused("it is needed as two values of one type")
    program = gather_ring(around, eqn.inputs[0].type, dim, uses, [var.type for var in collected])
    return _Ring(
        eqn,
        around,
        tuple(use.eqn for use in uses),
        program,
        (eqn.inputs[0], *(use.eqn.inputs[1 - use.operand] for use in uses)),
        (*(use.eqn.outputs[0] for use in uses), *collected),
        tuple(same),
        uses[0] if len(uses) == 1 and not collected else None,
    )


def _in_parts(use: Use, dim: int, around: Around) -> bool:
    """Whether a product can be taken in parts along a dim of an operand, each device in an order of its own."""
    summed = roles(use.eqn, use.operand, dim).result is None
    return set(around.axes) <= set(use.result.varying) and not (summed and use.result.dtype == dtypes.BOOL)


def _scattered(eqn: Eqn, nodes: Sequence[_Node], outputs: Sequence[Atom]) -> _Ring:
    """The product whose sum is scattered."""
    around, dim, summand = Around(eqn.params["axes"], eqn.params["sizes"], eqn.source), eqn.params["dim"], eqn.inputs[0]
    made = next((node.eqns[0] for node in nodes if summand in node.outputs and len(node.eqns) == 1), None)
    if made is None or made.op is not dot_general or summand.__class__ is not Var:
        raise _Refused("what it sums is not a product")
    if summand in outputs or sum(node.inputs.count(summand) for node in nodes) > 1:
        raise _Refused("the product that it sums is also needed as it is")
    program = scatter_ring(around, made, dim, eqn.outputs[0].type)
    return _Ring(eqn, around, (made,), program, tuple(made.inputs), tuple(eqn.outputs), tuple(made.outputs))


# Whether it pays


class _Machine:
    """What rings take on a machine, by its roofline."""

    def __init__(self, topology: Topology, mesh: BaseMesh) -> None:
        self.topology, self.mesh = topology, mesh

    def saved(self, ring: _Ring, kind: str) -> float:
        """Seconds that a ring saves; refused where computing does not hide sending, or memory costs more."""
        eqn, around = ring.collective, ring.around
        axes, topology = refined_for(resolve(self.mesh, map(read_axis, around.axes)), self.topology)
        block = (eqn.inputs[0] if eqn.op in GATHERS else eqn.outputs[0]).type
        shift = 1 if len(around.axes) == 1 else None
        send = collective_seconds("permute", around.size * block.nbytes, topology, axes, shift=shift)
        try:
            compute = sum(self.product(one).compute_seconds for one in ring.products) / around.size
            apart = sum(self.product(one).seconds for one in ring.products)
            beside = self.seconds(ring.program, send)
        except HardwareError as error:
            raise _Refused(error.what.rstrip(".")) from None
        chips, operations = around.size, sum(_cost(one).flops for one in ring.products)
        if not operations:
            raise _Refused("there is nothing to compute")
        n = operations / (2 * block.size)
        if compute < send:
            need = n * send / compute
            raise _Refused(f"n = {n:.0f} < {need:.0f} = {chips} chips · {need / chips:.0f}")
        volume = around.size * block.nbytes
        saved = collective_seconds(kind, volume, topology, axes) + apart - beside
        if saved <= 0:
            raise _Refused(f"n = {n:.0f} hides it, but partial products need more of the memory's time than is saved")
        return saved

    def product(self, eqn: Eqn) -> Roofline:
        """The work of a product."""
        cost = _cost(eqn)
        return work(cost.flops, cost.nbytes, self.topology.chip, dtype_name(eqn.inputs[0].type.dtype))

    def seconds(self, program: Program, send: float) -> float:
        """The time of a ring: the steps of its loop compute and send at once."""
        total, sends = 0.0, 0.0
        for eqn in program.eqns:
            if eqn.op is scan:
                total += eqn.params["length"] * self.seconds(eqn.params["body"], send)
            elif eqn.op is ppermute:
                sends += send
            elif eqn.op is dot_general:
                total += self.product(eqn).seconds
            elif any(v.type.ndim for v in eqn.outputs) and eqn.op is not pbroadcast:
                total += work(0, _cost(eqn).nbytes, self.topology.chip).seconds
        return max(total, sends)


def _cost(eqn: Eqn) -> Cost:
    return eqn.op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)
