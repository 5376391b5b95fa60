"""Calls of kernels: what ``pallas_call`` is given, and how it runs on all devices of a mesh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright.api import direct
from meshwright.arrays import scalars
from meshwright.core import trace, tree
from meshwright.core.collection import no_collection
from meshwright.core.source import Source, here
from meshwright.core.types import TensorType
from meshwright.engine.blas import one_blas_thread
from meshwright.hardware.topology import Topology
from meshwright.kernel.language.body import mismatch, named_too, scoped
from meshwright.kernel.language.position import TaskPosition
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.semaphores import SemaphoreArray, SemaphoreRef
from meshwright.kernel.language.spaces import MemorySpace, MemoryType, Semaphores, SemaphoreType, memory_of, semantics
from meshwright.kernel.pipeline.arguments import PipelineArg
from meshwright.kernel.pipeline.blocks import BlockSpec
from meshwright.kernel.pipeline.pipelines import Pipeline, renest
from meshwright.kernel.races.history import race_error
from meshwright.kernel.run.faults import BarrierError, KernelError
from meshwright.kernel.run.machine import ACTIONS, KernelMachine
from meshwright.kernel.run.memory import Data
from meshwright.kernel.run.schedules import Adversarial, Seeded, TaskSchedule, nth
from meshwright.kernel.run.tasks import KernelTask
from meshwright.kernel.run.watch import SECONDS
from meshwright.kernel.timing.chip import HardwareClock
from meshwright.kernel.timing.clock import Clock
from meshwright.kernel.timing.slots import SlotClock, Slots
from meshwright.kernel.timing.timeline import Timeline
from meshwright.sharding.text_sdy import LARGEST


@dataclass(frozen=True)
class Debug:
    """How to look for mistakes: ``races`` and reads of what nobody wrote, over ``schedules`` legal orders of the run.

    ``order`` says what is known of copies: ``"fifo"``, those on one link arrive in the order they were sent; None,
    nothing. With one schedule it also chooses it: ``"adversarial"`` or ``"seeded"``. ``replay`` runs one schedule of an
    exploration again. ``tiles`` asks that blocks in VMEM be made of whole tiles, as a compiler for a TPU would.

    A body is stopped that does not come to an end: that runs for ``most_seconds`` without a signal, a wait or a copy,
    or does more than ``most_actions`` of these for each core in one step of its grid.

    >>> Debug(races=True, seed=0, schedules=64)
    Debug(races=True, seed=0, schedules=64, order=None, replay=None, tiles=False)
    """

    races: bool = True
    seed: int = 0
    schedules: int = 1
    order: str | None = None
    replay: int | None = None
    tiles: bool = False
    most_seconds: float = field(default=SECONDS, repr=False)
    most_actions: int = field(default=ACTIONS, repr=False)

    def __post_init__(self) -> None:
        if not (self.most_seconds > 0 and self.most_actions > 0):
            raise KernelError(
                f"Debug is given most_seconds={self.most_seconds} and most_actions={self.most_actions}.",
                why="a body takes some time, and some signals, waits and copies",
                fix="pl.Debug(most_seconds=3600, most_actions=10**9)",
            )
        if self.order not in (None, "fifo", "adversarial", "seeded") or self.schedules < 1:
            raise KernelError(
                f"Debug is given order={self.order!r} and schedules={self.schedules}.",
                why="the order is 'fifo', 'adversarial' or 'seeded', and at least one schedule is run",
                fix="pl.Debug(races=True, seed=0, schedules=64)",
            )

    def again(self, number: int, races: bool | None = None) -> str:
        """How to run one schedule of an exploration again."""
        order = f", order={self.order!r}" if self.order == "fifo" else ""
        return f"pl.Debug(races={self.races if races is None else races}, seed={self.seed}{order}, replay={number})"


@dataclass(frozen=True)
class CompilerParams:
    """What a kernel asks of the machine it runs on. What it tells a compiler alone changes nothing here, and no check
    is left out.
    """

    dimension_semantics: Any = None
    allow_input_fusion: Any = None
    vmem_limit_bytes: int | None = None
    collective_id: int | None = None
    has_side_effects: Any = False
    flags: Any = None
    internal_scratch_in_bytes: int | None = None
    serialization_format: int = 1
    disable_bounds_checks: bool = False
    disable_semaphore_checks: bool = False
    skip_device_barrier: bool = False
    allow_collective_id_without_custom_barrier: bool = False
    shape_invariant_numerics: bool = True
    use_tc_tiling_on_sc: bool | None = None
    needs_layout_passes: bool = True
    fuse_transposed_lhs_in_matmul: bool = False
    opt_level: Any = None
    num_cores: int = 1


@dataclass(frozen=True, eq=False)
class KernelCall:
    """One ``pallas_call``, with its operands flattened."""

    kernel: Callable[..., Any]
    name: str
    grid: tuple[int | None, ...]  # None: the size is one of the last inputs
    in_specs: tuple[BlockSpec, ...]
    out_specs: tuple[BlockSpec, ...]
    labels: tuple[str, ...]  # what the kernel calls its arguments, then its outputs and scratch memory
    out_types: tuple[TensorType, ...]  # of semaphores, the type of their counts
    out_axes: tuple[frozenset[str] | None, ...]  # the mesh axes results vary over; None: not said
    out_semaphores: tuple[Semaphores | None, ...]
    in_trees: tuple[tree.TreeDef, ...]  # one per argument
    out_trees: tuple[tree.TreeDef, ...]
    scratch: Any
    scalars: int  # how many arguments are numbers that index maps see
    aliases: tuple[tuple[int, int], ...]
    params: CompilerParams = field(default_factory=CompilerParams)
    debug: Debug | None = None
    cores: int = 1
    core_axis: str = "core"
    grid_names: tuple[str | None, ...] = ()
    source: Source | None = None
    in_axes: tuple[frozenset[str], ...] = ()
    given: Any = None  # what ``pallas_call`` was given, for JAX's

    @cached_property
    def names(self) -> list[str]:
        """What the kernel calls each of its operands and results."""
        arguments = zip(self.labels, (*self.in_trees, *self.out_trees), strict=False)
        return [name for name, t in arguments for _ in range(t.num_leaves)]

    @cached_property
    def scalar_leaves(self) -> int:
        """How many operands are numbers that index maps see."""
        return sum(t.num_leaves for t in self.in_trees[: self.scalars])

    @cached_property
    def parallel(self) -> list[int]:
        """The axes of the grid whose steps may be run in any order."""
        return [n for n, one in enumerate(self.params.dimension_semantics or ()) if semantics(one) != "arbitrary"]

    @property
    def defined_at(self) -> Source | None:
        """The line at which the kernel's function is defined, or that of the call."""
        function = self.kernel
        while isinstance(function, partial):
            function = function.func
        code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
        return Source(code.co_filename, code.co_firstlineno) if code is not None else self.source

    def summary(self, types: Sequence[TensorType]) -> str:
        """What is run on what, in one line: what ``debug=True`` prints."""
        given, made = (", ".join(map(str, some)) for some in (types, self.out_types))
        return f"{self.name} over the grid {self.grid}: ({given}) -> ({made})"

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"


def run_kernel(
    call: KernelCall,
    mesh: dict[str, int],
    inputs: Sequence[Sequence[Data]],
    places: Sequence[Sequence[Data]] | None = None,
) -> list[list[Data]]:
    """Run a kernel on all devices of a mesh (axis sizes in order; none: one device); inputs and results per device.

    ``places`` is memory for the results; they may be elsewhere all the same.
    """
    debug = call.debug
    if debug is None:
        return _run(call, mesh, inputs, TaskSchedule(True), False, places)
    in_order = debug.order == "fifo"
    if debug.replay is not None or debug.schedules > 1:
        return _explore(call, mesh, inputs, debug, in_order)
    kinds: dict[str, Callable[[], TaskSchedule]] = {"adversarial": Adversarial, "seeded": lambda: Seeded(debug.seed)}
    return _run(call, mesh, inputs, kinds.get(debug.order or "", lambda: TaskSchedule(in_order))(), debug.races, places)


def run_on_clock(
    call: KernelCall, mesh: dict[str, int], inputs: Sequence[Sequence[Data]], topology: Topology, dry: bool = True
) -> Timeline:
    """How long a kernel takes on the chips of a topology; ``dry``, without its numbers."""
    clock = HardwareClock(topology, mesh, dry)
    _run(call, mesh, inputs, TaskSchedule(True), False, None, clock)
    seconds = max([span.end for span in clock.spans], default=0.0)
    most = max(clock.flops.values(), default=0.0), float(max(clock.moved.values(), default=0))
    return Timeline(seconds, tuple(clock.spans), topology, mesh, call.name, *most)


@dataclass(frozen=True, eq=False)
class Runner:
    """What runs a call: for its results, or for its time."""

    call: KernelCall

    def __call__(
        self,
        mesh: dict[str, int],
        inputs: Sequence[Sequence[Data]],
        places: Sequence[Sequence[Data]] | None = None,
    ) -> list[list[Data]]:
        return run_kernel(self.call, mesh, inputs, places)

    def timeline(
        self,
        mesh: dict[str, int],
        types: Sequence[TensorType],
        topology: Topology,
        known: Mapping[int, Data | None] = MappingProxyType({}),
    ) -> Timeline:
        """How long the kernel takes on operands of these types, of which some are known."""
        return run_on_clock(self.call, mesh, self._no_numbers(mesh, types, "How long {} takes", known), topology)

    def slots(self, mesh: dict[str, int], types: Sequence[TensorType]) -> Slots:
        """What the kernel does at the same time, on operands of these types."""
        clock = SlotClock()
        inputs = self._no_numbers(mesh, types, "What {} does at the same time")
        _run(self.call, mesh, inputs, TaskSchedule(True), False, None, clock)
        return Slots(self.call.name, mesh, tuple(clock.works))

    def _no_numbers(
        self,
        mesh: dict[str, int],
        types: Sequence[TensorType],
        asked: str,
        known: Mapping[int, Data | None] = MappingProxyType({}),
    ) -> list[list[Data]]:
        """Operands of all devices that take no memory, where they do not decide what is asked for."""
        unknown = ""
        head = self.call.scalar_leaves
        sizes = range(len(types) - self.call.grid.count(None), len(types))
        if any(known.get(n) is None for n in sizes):
            unknown = f"sizes of its grid are computed: {self.call.grid}"
            fix = "grid=(4, 4), numbers of Python, in the program that is simulated"
        elif any(known.get(n) is None for n in range(head)):
            unknown = "which blocks it fetches may depend on the numbers that are prefetched"
            fix = "make them constants of the program: mw.make_program(lambda x: f(x, numbers))(…), not arguments of it"
        if unknown:
            raise KernelError(
                f"{asked.format(self.call.name)} is not known before it runs.",
                where=self.call.source.show() if self.call.source else "",
                why=unknown,
                fix=fix,
            )
        device = [np.broadcast_to(np.zeros((), t.dtype), t.shape) for t in types]
        for n, value in known.items():
            if value is not None and value.dtype.kind in "biu":  # what a kernel may decide by
                device[n] = value
        return [device] * prod(mesh.values())


def _explore(
    call: KernelCall, mesh: dict[str, int], inputs: Sequence[Sequence[Data]], debug: Debug, in_order: bool
) -> list[list[Data]]:
    """Run several schedules; the first one's results, or the first mistake."""
    first = TaskSchedule(in_order)
    results = None
    for number in range(debug.schedules) if debug.replay is None else dict.fromkeys((0, debug.replay)):
        schedule = nth(number, debug.seed, first.decisions, in_order) if number else first
        try:
            found = _run(call, mesh, inputs, schedule, debug.races and (debug.replay is None or number == debug.replay))
        except KernelError as error:
            if number:
                error.why += f"\nin schedule {number} ({schedule.name}); to repeat it: {debug.again(number)}"
            raise
        if results is None:
            results = found
        else:
            _require_same(call, results, found, first, schedule, number, debug)
    assert results is not None
    return results


def _require_same(
    call: KernelCall,
    results: list[list[Data]],
    found: list[list[Data]],
    first: TaskSchedule,
    schedule: TaskSchedule,
    number: int,
    debug: Debug,
) -> None:
    """Hold a kernel to one result: the order of copies, of devices and of steps along parallel axes does not show."""
    for device, (before, now) in enumerate(zip(results, found, strict=True)):
        for n, (a, b) in enumerate(zip(before, now, strict=True)):
            same = (a == b) | ((a != a) & (b != b))
            if same.all():
                continue
            at = np.unravel_index(int(np.argmin(same)), a.shape)
            place = str([int(i) for i in at]) if at else ""
            others = f"{int((~same).sum())} of {a.size} elements of result {n} of device {device} are others"
            both = (
                f"result {n}{place} is {a[at]} in schedule 0 ({first.name}) "
                f"and {b[at]} in schedule {number} ({schedule.name})\nto repeat it: {debug.again(number)}"
            )
            where = call.source.show() if call.source else ""
            if call.parallel:
                axes = ", ".join(map(str, call.parallel))
                raise KernelError(
                    f"The results of {call.name} depend on the order of its grid steps.",
                    where=where,
                    why=f"axis {axes} of its grid is said to be parallel, but {others}\n"
                    f"when it is run in another order: schedule {number} ({schedule.name})\n{both}",
                    fix='"arbitrary" in the place of "parallel" in dimension_semantics',
                )
            raise KernelError(
                f"The results of {call.name} depend on the order in which devices run and copies arrive.",
                where=where,
                why=f"{others}\n{both}",
                fix="wait for what a value depends on; pltpu.semaphore_read orders nothing"
                if debug.races
                else f"find the race: {debug.again(number, races=True)}",
            )


LARGEST_VMEM = 128 << 20  # bytes; no chip in the data of ``hardware`` has more


@no_collection()
def _run(
    call: KernelCall,
    mesh: dict[str, int],
    inputs: Sequence[Sequence[Data]],
    schedule: TaskSchedule,
    races: bool,
    places: Sequence[Sequence[Data]] | None = None,
    clock: Clock | None = None,
) -> list[list[Data]]:
    limit: float | None = call.params.vmem_limit_bytes
    if limit is None and clock is not None and clock.vmem_bytes:
        limit = clock.vmem_bytes
    elif limit is None and call.debug is not None:
        limit = LARGEST_VMEM
    machine = KernelMachine(
        mesh,
        cores=call.cores,
        schedule=schedule,
        races=races,
        # Without an id of its own a kernel starts behind a barrier of all devices.
        all_entered=call.params.collective_id is None,
        limits={MemorySpace.VMEM: limit} if limit is not None else {},
        home=call.source,
        core_axis=call.core_axis,
        tiles=call.debug is not None and call.debug.tiles,
        checks=call.debug is not None,
        clock=clock,
        most_seconds=SECONDS if call.debug is None else call.debug.most_seconds,
        most_actions=ACTIONS if call.debug is None else call.debug.most_actions,
    )
    machine.collective_id = call.params.collective_id
    machine.grid_names = call.grid_names
    machine.parallel = call.parallel
    ready = [
        _prepare(call, machine, task, inputs[task.device], None if places is None else places[task.device])
        for task in machine.tasks
    ]
    before = direct.state.place, trace.state.manual, trace.state.watch, scalars.state.active, scalars.state.compiling
    direct.state.place, trace.state.manual = TaskPosition(), None
    scalars.state.active, scalars.state.compiling = True, clock is None
    trace.state.watch = clock.watch if clock is not None else None
    try:
        with trace.building(None), one_blas_thread():
            machine.run(lambda task: ready[task.entity].run())
        if clock is not None and clock.dry:
            return []
        if races:
            _require_written(call, machine, ready)
        _note_in_flight(call, mesh, ready, races)
        results = [[_taken(ref) for ref in operands.outs] for operands in ready[:: call.cores]]
        machine.finish()
    except Exception as error:
        # What goes wrong after a race goes wrong because of it.
        if machine.history is not None and machine.history.races:
            raise race_error(list(machine.history.races.values())) from error
        raise
    finally:
        direct.state.place, trace.state.manual, trace.state.watch, scalars.state.active, scalars.state.compiling = (
            before
        )
        machine.close()
    if machine.history is not None and machine.history.races:
        raise race_error(list(machine.history.races.values()))
    return results


def _require_written(call: KernelCall, machine: KernelMachine, ready: Sequence[_Operands]) -> None:
    """Refuse results that were not written, or not all of them, and a ``collective_id`` that nothing uses."""
    if machine.history is None or machine.history.races:
        return
    for operands in ready[:: call.cores]:
        for ref in operands.outs:
            if isinstance(ref, Ref) and ref.buffer.accesses is not None:
                ref.buffer.accesses.require_defined(call.name, call.defined_at, len(operands.outs) == 1)
    params = call.params
    if params.collective_id is None or params.allow_collective_id_without_custom_barrier or machine.size == 1:
        return
    if not any(
        isinstance(made, SemaphoreArray) and made.kind is SemaphoreType.BARRIER for made in machine.memory.values()
    ):
        raise BarrierError(
            f"{call.name} has collective_id={call.params.collective_id}, and uses no barrier semaphore.",
            where=call.defined_at.show() if call.defined_at else "",
            why="with an id of its own a kernel starts without a barrier, and has to make one",
            fix="compiler_params without collective_id, or\nbarrier = pltpu.get_barrier_semaphore()\n"
            "pltpu.semaphore_signal(barrier, device_id=neighbor)\npltpu.semaphore_wait(barrier)",
        )


class _InFlight(threading.local):
    """Kernels that have handed over semaphores with something on them, by collective id and mesh."""

    kernels: dict[Any, tuple[str, Source | None]]

    def __init__(self) -> None:
        self.kernels = {}


_in_flight = _InFlight()


def _note_in_flight(call: KernelCall, mesh: dict[str, int], ready: Sequence[_Operands], races: bool) -> None:
    """Refuse a kernel with the collective id of one that is still in flight: started, and not waited for."""
    if any(isinstance(ref, SemaphoreRef) for ref in ready[0].ins):
        _in_flight.kernels.clear()  # it goes on with what another has started
    number = call.params.collective_id
    if number is None:
        return
    key = (number, *mesh.items())
    name, source = _in_flight.kernels.pop(key, ("", None))
    if name and races:
        raise BarrierError(
            f"{call.name} has collective_id={number}, as {name} has, which is still in flight.",
            where=call.source.show() if call.source else "",
            why=f"copies of {name} are not waited for yet"
            + (f" (it is called at {source.show()})" if source else "")
            + ";\nthe barrier semaphore is one for both, so a signal of the one may let the other pass",
            fix=f"pltpu.CompilerParams(collective_id={number + 1}) for one of them",
        )
    handed = [s for one in ready for ref in one.outs if isinstance(ref, SemaphoreRef) for s in ref.array]
    if any(s.count for s in handed):
        _in_flight.kernels[key] = (call.name, call.source)


def _taken(ref: Any) -> Any:
    """A result: what is in memory, or the counts of semaphores, which go on in the next kernel."""
    if isinstance(ref, SemaphoreRef):
        return ref.array.hand_over()
    ref.buffer.fill_unwritten()
    return ref.data


@dataclass
class _Operands:
    """The memory of one task, and the pipeline that the call is."""

    task: KernelTask
    pipeline: Pipeline
    ins: list[Any]
    outs: list[Any]
    windows: Any

    def run(self) -> None:
        self.pipeline.run(self.task, [*self.ins, *self.outs], windows=self.windows)


def check_grid(sizes: Sequence[int]) -> None:
    """Refuse sizes of a grid that cannot be."""
    if any(not 0 <= n <= LARGEST for n in sizes):
        raise KernelError(
            f"The grid is {tuple(sizes)}.",
            where=here(),
            why="sizes are not negative, and fit into 64 bits",
            fix="grid=(4, 4)",
        )


def _prepare(
    call: KernelCall, machine: KernelMachine, task: KernelTask, inputs: Sequence[Data], places: Sequence[Data] | None
) -> _Operands:
    """Allocate what a call needs on one core: the same addresses everywhere, before any device starts."""
    split = len(inputs) - call.grid.count(None)
    inputs, sizes = inputs[:split], iter(inputs[split:])
    grid = tuple(int(next(sizes)) if n is None else n for n in call.grid)
    check_grid(grid)
    shared = task.core > 0
    scalar_leaves, names = call.scalar_leaves, call.names
    to_out = dict(call.aliases)

    def operand(key: Any, label: str, kind: MemoryType, data: Data | None, place: Data | None = None) -> Ref:
        found = machine.memory.get((task.device, -1, key)) if shared and not kind.memory_space.of_core else None
        return Ref(found or machine.allocate(task, key, label, kind, data, place))

    def output(n: int, t: TensorType) -> Any:
        label, semaphores = names[len(inputs) + n], call.out_semaphores[n]
        if semaphores is not None:
            return SemaphoreRef(machine.allocate(task, ("out", n), label, semaphores))
        given = inputs[of_out[n]].copy() if n in of_out else None
        place = None if places is None else places[n]
        # The whole of an output in a memory of its own is that memory; on a clock it is also written back.
        spec = call.out_specs[n]
        whole = spec.block_shape is None and spec.index_map is None and call.cores == 1 and not machine.clock.runs
        space = spec.memory_space if whole and spec.memory_space is not None else MemorySpace.ANY
        return operand(("out", n), label, memory_of(space, t.shape, t.dtype), given, place)

    of_out = {out: n for n, out in to_out.items()}
    outs = [output(n, t) for n, t in enumerate(call.out_types)]
    scalars: list[Ref] = []
    ins: list[Any] = []
    for n, data in enumerate(inputs):
        if n < scalar_leaves:
            kind = memory_of(MemorySpace.SMEM, data.shape, data.dtype)
            scalars.append(operand(("scalar", n), names[n], kind, np.array(data)))
        elif n in to_out:
            ins.append(outs[to_out[n]])
        elif call.in_specs[n - scalar_leaves].memory_space is MemorySpace.SEMAPHORE:
            array = machine.allocate(
                task, ("in", n), names[n], Semaphores(SemaphoreType.of_counts(data.dtype), data.shape)
            )
            array.restore(data)
            ins.append(SemaphoreRef(array))
        else:
            ref = operand(("in", n), names[n], memory_of(MemorySpace.ANY, data.shape, data.dtype), data)
            ref.buffer.readonly = True
            ins.append(ref)
    made: list[Any] = []
    body = _body(call, scalars, _scratch(call, task, made))
    pipeline = Pipeline(body, grid, call.in_specs, call.out_specs, [False] * len(outs))
    if call.params.num_cores > 1:
        pipeline.divide(task, call.params.dimension_semantics)
    else:
        pipeline.parallel = {axis: machine.schedule.order(axis, grid[axis]) for axis in call.parallel}
    pipeline.scalars = tuple(renest(scalars, call.in_trees[: call.scalars]))
    if machine.wanted is None:  # the same on every core
        types = pipeline.allocation_types([*ins, *outs])
        machine.wanted = [None if one is None else tree.flatten(one) for one in (*types.input, *types.out)]
    labels = [f"the window of {name}" for name in (*names[scalar_leaves : len(inputs)], *names[len(inputs) :])]
    slots = [
        None if one is None else tree.unflatten(one[1], [scoped(task, wanted, label, made) for wanted in one[0]])
        for one, label in zip(machine.wanted, labels, strict=True)
    ]
    _note_axes(call, machine, scalars, [*ins, *outs], slots)
    windows = pipeline.windows(PipelineArg(slots[: len(ins)], slots[len(ins) :], []))
    return _Operands(task, pipeline, ins, outs, windows)


def _note_axes(
    call: KernelCall, machine: KernelMachine, scalars: Sequence[Ref], refs: Sequence[Any], slots: Sequence[Any]
) -> None:
    """Tell the machine over which axes the operands vary, and their windows as they do."""
    count = len(scalars) + len(refs) - len(call.out_axes)
    in_axes = call.in_axes[:count] or (None,) * count
    for ref, axes in zip((*scalars, *refs), (*in_axes, *call.out_axes), strict=True):
        machine.axes[_address(ref)] = axes
    for slot, ref in zip(slots, refs, strict=True):
        if slot is not None:
            machine.axes[_address(slot.window_ref)] = machine.axes.get(_address(ref))


def _scratch(call: KernelCall, task: KernelTask, made: list[Any]) -> Any:
    """The scratch memory of a call, by name or in order."""
    if isinstance(call.scratch, dict):
        return {name: _allocated(task, name, wanted, made) for name, wanted in call.scratch.items()}
    rest = [*call.labels[len(call.in_trees) + len(call.out_trees) :], *["scratch memory"] * len(call.scratch)]
    return [_allocated(task, name, wanted, made) for name, wanted in zip(rest, call.scratch, strict=False)]


def _body(call: KernelCall, scalars: Sequence[Ref], scratch: Any) -> Callable[..., Any]:
    """The kernel as a function of the refs of one grid step, its inputs before its outputs."""
    heads = renest(scalars, call.in_trees[: call.scalars])
    rest = [*call.in_trees[call.scalars :], *call.out_trees]
    plain = all(one.is_leaf() for one in rest)  # whether refs are the arguments

    named, last = (scratch, []) if isinstance(scratch, dict) else ({}, scratch)

    def body(*refs: Ref) -> Any:
        args = [*heads, *(refs if plain else renest(refs, rest)), *last]
        try:
            return call.kernel(*args, **named)
        except TypeError:
            _require_parameters(call, args, named)
            raise

    return body


def _address(ref: Ref | SemaphoreRef) -> Any:
    return ref.array.key if isinstance(ref, SemaphoreRef) else ref.buffer.key


def _require_parameters(call: KernelCall, args: list[Any], named: dict[str, Any]) -> None:
    """Refuse a kernel that does not take the refs it is given."""
    wrong = mismatch(call.kernel, args, named)
    if wrong:
        scratch, more = len(call.scratch), named_too(call.kernel)
        raise KernelError(
            f"The kernel {call.name} cannot take the {len(args) + len(named)} refs it is given.",
            where=call.source.show() if call.source else "",
            why=f"{wrong}; it is given {len(call.in_trees)} operands, {len(call.out_trees)} results and "
            f"{scratch} of scratch memory, in this order",
            fix=f"one parameter for each: def {call.name}(x_ref, …, out_ref, …, scratch_ref, …{more})",
        ) from None


def _allocated(task: KernelTask, name: str, wanted: Any, made: list[Any]) -> Any:
    if isinstance(wanted, MemoryType | Semaphores | SemaphoreType):
        return scoped(task, wanted, name, made)
    return tree.map(lambda leaf: scoped(task, leaf, name, made), wanted)
