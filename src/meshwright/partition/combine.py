"""Sums over the same axes become one collective, small gathers too; the collectives of a local program as a list."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import count, groupby, islice
from math import ceil, prod
from typing import Any, NamedTuple, Protocol, TypeVar

from meshwright.core.linearity import Does
from meshwright.core.op import is_elementwise
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.source import Source
from meshwright.core.types import TensorType
from meshwright.hardware.collectives import shift_of
from meshwright.ops.collective import psum
from meshwright.partition.packed import SMALL_BYTES, gather_bucket, packed
from meshwright.transform.simplify import dce

LARGEST_BYTES = 1 << 25  # of one collective; larger sums gain nothing by waiting for others
FURTHER_DOWN = 32  # equations among which sums are looked for that one which is needed can be taken with


class CollectiveReason(NamedTuple):
    """Why a collective was put in, the type of the global value that it is for, and whether a user asked for it there.

    ``var`` is the value itself, as the program has it that was partitioned, and ``made`` the line of what left it so.
    ``together`` are the types of all values that it is for, if these are several in one array.
    """

    text: str
    value: TensorType
    asked: bool = False
    var: Atom | None = None
    made: Source | None = None
    together: tuple[TensorType, ...] = ()


class OverlapOutcome(NamedTuple):
    """What overlap made of a collective: permutes beside matmuls, a kernel with one, or nothing, and why not.

    ``saved_seconds`` is what that saves on the machine that was asked about; ``kernel`` the collective it stands for.
    """

    kind: str
    permutes: int = 0
    matmuls: int = 0
    saved_seconds: float | None = None
    why_not: str = ""
    kernel: Eqn | None = None


class Within(NamedTuple):
    """A region that may run or not, or who knows how often: a branch of ``branches``, or what a while loop repeats.

    ``number`` is the equation's own, which tells two on one line apart.
    """

    op: str
    source: Source | None
    number: int
    branch: int = 0
    branches: int = 0

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        if self.branches:
            return f"if branch {self.branch} of the {self.op}{where} is taken"
        return f"in every step of the {self.op} loop{where}"


class LoopAround(NamedTuple):
    """A loop around a collective that runs so many steps."""

    op: str
    source: Source | None
    steps: int

    def __str__(self) -> str:
        return f"{self.op} of {self.steps} steps{f' at {self.source}' if self.source else ''}"


class CollectiveRecord(NamedTuple):
    """A collective of a local program: what it moves, how often, and why it is there (None: the user wrote it).

    ``times`` counts loops in full, but for those of unknown length, of which it counts one step; ``within`` has these,
    and branches that need not be taken, from the outermost on; ``loops`` those of known length. ``shift`` is how far
    along its last axis a permute sends, None where devices differ in that. ``result`` is what it gives first.
    """

    kind: str
    axes: tuple[str, ...]
    bytes_received_per_device: int
    total_bytes: int
    source: Source | None
    why: CollectiveReason | None
    values: tuple[TensorType, ...]
    times: int
    volume: int  # bytes of what one group works on, as costs count it: the gathered array, the summed one
    overlap: OverlapOutcome | None = None
    within: tuple[Within, ...] = ()
    shift: int | None = None
    loops: tuple[LoopAround, ...] = ()
    result: Var | None = None


class Listed(Protocol):
    """A collective as it is listed, with its reason or without."""

    @property
    def bytes_received_per_device(self) -> int: ...
    @property
    def times(self) -> int: ...
    @property
    def within(self) -> tuple[Within, ...]: ...


One = TypeVar("One", bound=Listed)


def combine(program: Program, whys: dict[Var, CollectiveReason] | None = None) -> Program:
    """The program with sums that can be taken together taken together.

    A sum waits until something needs it; then small ones that are little further down are taken with it. What only
    leads elementwise from sums to results, such as the update of parameters by their gradients, comes last, so that
    their sums can wait for each other; and so can small gathers there that have an entry in ``whys``, which gets one
    for what they become.

    c: f32[4] = psum a axes=('i',)             d: f32[4] = neg c      c: f32[4], e: f32[8] = psum a b axes=('i',)
    d: f32[4] = neg c                  ==>     e: f32[8] = psum b     d: f32[4] = neg c
    e: f32[8] = psum b axes=('i',)
    """
    last = _tail(program)
    order = _Order({} if whys is None else whys)
    ahead = deque(eqn for eqn in program.eqns if eqn not in last)
    while ahead:
        eqn = ahead.popleft()
        for key in order.needed_by(eqn):
            order.add_all(_beside(key, [eqn, *islice(ahead, FURTHER_DOWN)], order))
        if eqn not in order.entered:
            order.add(eqn)
    order.gathers_wait = True
    rest = [eqn for eqn in program.eqns if eqn in last]
    while rest:
        blocked: set[Atom] = set(order.bucket_of)
        later = []
        for eqn in rest:
            if blocked.isdisjoint(eqn.inputs):
                order.add(eqn)
                blocked.update(eqn.outputs if order.bucket(eqn) is not None else ())
            else:
                later.append(eqn)
                blocked.update(eqn.outputs)
        rest = later
        # First those for which nobody is still to come.
        coming = {order.bucket(eqn) for eqn in rest} & set(order.waiting)
        order.flush_all(except_for=coming if coming < set(order.waiting) else set())
    order.flush_all()
    return Program(program.inputs, tuple(order.eqns), program.outputs, program.constants)


def _tail(program: Program) -> set[Eqn]:
    """Sums, elementwise equations and rearrangements on which nothing but results and others of this kind depend."""
    needed: set[Atom] = set()
    found: set[Eqn] = set()
    for eqn in reversed(program.eqns):
        if _is_light(eqn) and needed.isdisjoint(eqn.outputs):
            found.add(eqn)
        else:
            needed.update(eqn.inputs)
    return found


def _is_light(eqn: Eqn) -> bool:
    """Whether an equation is a sum, elementwise, or moves and adds up elements."""
    if eqn.op is psum or is_elementwise(eqn):
        return True
    groups = eqn.op.groups([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)
    return any(group.does is not Does.SCALES for group in groups)


class _Order:
    """Equations in order, with sums that still wait for others in buckets."""

    def __init__(self, whys: dict[Var, CollectiveReason]) -> None:
        self.eqns: list[Eqn] = []
        self.whys = whys
        self.gathers_wait = False  # as sums do
        self.entered: set[Eqn] = set()  # before their turn
        self.waiting: dict[Any, list[Eqn]] = {}
        self.bucket_of: dict[Atom, Any] = {}

    def bucket(self, eqn: Eqn) -> Any:
        """Collectives of one bucket can be one; None for what waits for no other."""
        if eqn.op is psum:
            return eqn.params["axes"], eqn.inputs[0].type.dtype
        return gather_bucket(eqn, self.whys) if self.gathers_wait else None

    def needed_by(self, eqn: Eqn) -> list[Any]:
        """The buckets with sums that an equation needs."""
        return list(dict.fromkeys(self.bucket_of[atom] for atom in eqn.inputs if atom in self.bucket_of))

    def add(self, eqn: Eqn) -> None:
        """Enter an equation after the sums that it needs."""
        for key in self.needed_by(eqn):
            self.flush(key)
        key = self.bucket(eqn)
        if key is None:
            if eqn.regions():
                params = {name: self.inside(value) for name, value in eqn.params.items()}
                eqn = Eqn(eqn.op, eqn.inputs, params, eqn.outputs, eqn.source)
            self.eqns.append(eqn)
            return
        held = sum(a.type.nbytes for e in self.waiting.get(key, ()) for a in e.inputs)
        if held and held + sum(a.type.nbytes for a in eqn.inputs) > LARGEST_BYTES:
            self.flush(key)
        self.waiting.setdefault(key, []).append(eqn)
        self.bucket_of.update(dict.fromkeys(eqn.outputs, key))

    def add_all(self, eqns: Sequence[Eqn]) -> None:
        """Enter equations before their turn."""
        for eqn in eqns:
            self.add(eqn)
            self.entered.add(eqn)

    def inside(self, value: Any) -> Any:
        """The value of a param, in which regions are in order."""
        if isinstance(value, Program):
            return combine(dce(value), self.whys)  # what recomputes values needs few of them
        return tuple(map(self.inside, value)) if isinstance(value, tuple) else value

    def flush(self, key: Any) -> None:
        """Take the sums, or gathers, of a bucket."""
        found = self.waiting.pop(key)
        outputs = tuple(v for eqn in found for v in eqn.outputs)
        for var in outputs:
            del self.bucket_of[var]
        if found[0].op is psum:
            inputs = tuple(a for eqn in found for a in eqn.inputs)
            self.eqns.append(Eqn(psum, inputs, found[0].params, outputs, found[0].source))
        elif len(found) == 1:
            self.eqns += found
        else:
            eqns, gathered = packed(found)
            self.eqns += eqns
            reasons = [self.whys[var] for var in outputs]
            together = tuple(t for why in reasons for t in why.together or (why.value,))
            why = _joined(reasons, "gather")
            assert why is not None
            self.whys[gathered] = why._replace(together=together)

    def flush_all(self, except_for: Set[Any] = frozenset()) -> None:
        """Take all sums that wait, but for some."""
        for key in [key for key in self.waiting if key not in except_for]:
            self.flush(key)


def _beside(key: Any, ahead: Sequence[Eqn], order: _Order) -> list[Eqn]:
    """Small sums among the next equations that can be taken with those that wait in a bucket, and what makes them."""

    def joins(eqn: Eqn) -> bool:
        return eqn.op is psum and order.bucket(eqn) == key and sum(a.type.nbytes for a in eqn.inputs) <= SMALL_BYTES

    if not any(map(joins, ahead)):
        return []
    late: set[Atom] = set(order.bucket_of)  # that is not there before the sums which wait
    made: dict[Atom, Eqn] = {}
    found: dict[Eqn, None] = {}
    for eqn in ahead:
        if eqn in order.entered:
            continue
        if not late.isdisjoint(eqn.inputs) or not (joins(eqn) or (eqn.op.collective is None and _is_light(eqn))):
            late.update(eqn.outputs)
        elif eqn.op is psum:
            found.update(dict.fromkeys([*_makers(eqn, made), eqn]))
            late.update(eqn.outputs)
        else:
            made.update(dict.fromkeys(eqn.outputs, eqn))
    return list(found)


def _makers(eqn: Eqn, made: Mapping[Atom, Eqn]) -> Iterator[Eqn]:
    """The equations among ``made`` that an equation needs, in order."""
    for atom in eqn.inputs:
        if atom in made:
            yield from _makers(made[atom], made)
            yield made[atom]


def records(
    program: Program,
    sizes: Mapping[str, int],
    whys: Mapping[Var, CollectiveReason],
    overlaps: Mapping[Var, OverlapOutcome],
    times: int = 1,
    within: tuple[Within, ...] = (),
    numbers: Iterator[int] | None = None,
    loops: tuple[LoopAround, ...] = (),
) -> Iterator[CollectiveRecord]:
    """The collectives of a local program in order, those in loops as often as they run.

    Nothing is sent by a device that is alone along the axes, nor of arrays without elements.
    """
    numbers = count() if numbers is None else numbers
    for eqn in program.eqns:
        kind = eqn.op.collective
        known = overlaps.get(eqn.outputs[0]) if eqn.outputs else None
        if kind is not None and eqn.op.stack is not None:
            if prod(sizes[axis] for axis in eqn.params["axes"]) > 1 and any(a.type.size for a in eqn.inputs):
                yield _record(kind, eqn, sizes, whys, times)._replace(overlap=known, within=within, loops=loops)
        elif known is not None and known.kernel is not None:
            one = _record(known.kind, known.kernel, sizes, whys, times)
            yield one._replace(overlap=known, within=within, loops=loops, result=eqn.outputs[0])
        number, regions = next(numbers), list(eqn.regions())
        for index, (name, region) in enumerate(regions):
            runs = eqn.op.runs(eqn, name)
            inside, around = within, loops
            if runs.or_another:
                inside = (*within, Within(eqn.op.name, eqn.source, number, index, len(regions)))
            elif runs.times is None:
                inside = (*within, Within(eqn.op.name, eqn.source, number))
            elif runs.times > 1:
                around = (*loops, LoopAround(eqn.op.name, eqn.source, runs.times))
            inner = times if runs.times is None else times * runs.times
            yield from records(region, sizes, whys, overlaps, inner, inside, numbers, around)


def written_for(program: Program, whys: Mapping[Var, CollectiveReason]) -> dict[Var, str]:
    """For the results of collectives that were put in, what the user wrote: the op that left a sum, or ``reshard``."""
    made = {var: eqn.op.name for eqn in program.eqns for var in eqn.outputs}
    found: dict[Var, str] = {}
    for eqn in program.eqns:
        why = whys.get(eqn.outputs[0]) if eqn.outputs and eqn.op.stack is not None else None
        if why is not None:
            summed = eqn.op.collective in ("all_reduce", "reduce_scatter")
            left = [made[x] for x in eqn.inputs if isinstance(x, Var) and x in made] if summed else []
            if left or why.asked or summed:
                found[eqn.outputs[0]] = left[0] if left else "reshard"
        for _, region in eqn.regions():
            found.update(written_for(region, whys))
    return found


def dearest(found: Sequence[One], depth: int = 0) -> list[One]:
    """The collectives that run if of every choice between branches the one is taken that receives the most bytes."""
    taken: list[One] = []
    for choice, group in groupby(found, lambda one: _choice(one.within, depth)):
        if choice is None:
            taken += group
            continue
        branches: dict[int, list[One]] = {}
        for one in group:
            branches.setdefault(one.within[depth].branch, []).append(one)
        taken += max([dearest(inside, depth + 1) for inside in branches.values()], key=_weight)
    return taken


def received(found: Sequence[One]) -> int:
    """The bytes that a device receives at most, in one step of each while loop of unknown length."""
    return sum(one.bytes_received_per_device * one.times for one in dearest(found))


def _weight(found: Iterable[Listed]) -> tuple[int, int]:
    """Bytes that a device receives in all, and in how many collectives."""
    weights = [(c.bytes_received_per_device * c.times, c.times) for c in found]
    return sum(n for n, _ in weights), sum(n for _, n in weights)


def _choice(within: tuple[Within, ...], depth: int) -> Within | None:
    """The region around a collective at this depth, whichever its branch."""
    return within[depth]._replace(branch=0) if depth < len(within) else None


def _record(
    kind: str, eqn: Eqn, sizes: Mapping[str, int], whys: Mapping[Var, CollectiveReason], times: int
) -> CollectiveRecord:
    axes = eqn.params["axes"]
    group, devices = prod(sizes[axis] for axis in axes), prod(sizes.values())
    held = sum(a.type.nbytes for a in eqn.inputs)
    share = {
        "all_reduce": 2 * (group - 1) / group, "all_gather": group - 1, "reduce_scatter": (group - 1) / group,
        "all_to_all": (group - 1) / group, "permute": 1,
    }[kind]  # fmt: skip
    received = ceil(held * share)
    total, shift = received * devices, None
    if kind == "permute":
        shift = shift_of(eqn.params["permutation"], tuple(sizes[axis] for axis in axes))
        moving = sum(source != target for source, target in eqn.params["permutation"])
        received, total = (held if moving else 0), held * moving * devices // group
    found = [whys.get(v) for v in eqn.outputs]
    values = tuple(
        t for w, v in zip(found, eqn.outputs, strict=True) for t in (w.together or (w.value,) if w else (v.type,))
    )
    volume = {"all_gather": group * held, "all_to_all": group * held, "permute": group * held}.get(kind, held)
    why = _joined(found)
    return CollectiveRecord(
        kind, axes, received, total, eqn.source, why, values, times, volume, shift=shift, result=eqn.outputs[0]
    )


def _joined(whys: Sequence[CollectiveReason | None], word: str = "sum") -> CollectiveReason | None:
    known = [why for why in whys if why is not None]
    if not known:
        return None
    texts = list(dict.fromkeys(why.text for why in known))
    others = len(known) - 1
    more = f" (and {others} more {word}{'s' * (others > 1)} taken with it)" if others > 0 else ""
    return known[0]._replace(text=texts[0] + more, asked=all(why.asked for why in known))
