"""``simulate``: how long a program takes on machines that need not be at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from meshwright.core import tree
from meshwright.core.facts import Across, Fusion, Structure
from meshwright.core.op import fusion_of
from meshwright.core.program import Atom, Eqn, Literal, Program
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.hardware.arguments import checked, whole
from meshwright.hardware.machines import machine_for
from meshwright.simulate.known import known_values
from meshwright.simulate.machine import Machine, whole_axes
from meshwright.simulate.memory import memory
from meshwright.simulate.schedule import OVERLAPS, Scheduler, order_of
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.tasks import TaskReader, local_program, with_parts


@checked("a simulation", while_steps=partial(whole, least=0))
def simulate(
    program: Any,
    topology: Any,
    mesh_axes: Mapping[str, int] | None = None,
    *,
    mode: str = "exact",
    overlap: str = "loops",
    while_steps: int | None = None,
    donated: Sequence[bool] | None = None,
    flash: bool = True,
) -> Simulation:
    """One run of a program on a machine: its time and timeline, memory, and what bounds it.

    ``program`` is the program of one device with collectives, whose mesh is ``mesh_axes`` or the topology's; a program
    with a shard_map; or what ``jit(…).lower(…)`` returned, compiled or not. ``topology`` is a `hardware.Topology` or
    the name of a chip. ``mode="calibrated"`` uses what was measured of the chip. ``overlap`` says what may run at once:
    "loops" lets transfers of one iteration run beside the one before, "steps" keeps iterations apart, "none" runs one
    task after another. ``while_steps`` is how often while loops run. ``donated`` says of each input whether its memory
    may be written over; by default that is so for what is donated to a compiled function. Without ``flash``, attention
    is several kernels, and its scores are written. Of a program that is one kernel (`pl.pallas_call`), the result is
    its timeline on all devices.

    >>> import meshwright as mw
    >>> mesh = mw.make_mesh((2, 4), ("data", "model"))
    >>> def mlp(x, w1, w2):
    ...     return mw.lax.psum(mw.nn.relu(x @ w1) @ w2, "model")
    >>> specs = (mw.P("data"), mw.P(None, "model"), mw.P("model"))
    >>> f = mw.shard_map(mlp, mesh=mesh, in_specs=specs, out_specs=mw.P("data"))
    >>> shape = lambda *dims: mw.ShapeDtypeStruct(dims, "bfloat16")
    >>> program = mw.make_program(f)(shape(4096, 4096), shape(4096, 16384), shape(16384, 4096))
    >>> print(simulate(program, "tpu v5e"))  # doctest: +ELLIPSIS
    1.3 ms on tpu v5e 2x4 (8 chips, mesh data=2 model=4), exact
      compute-bound by 1.3x over axis model
    ...
    """
    if overlap not in OVERLAPS:
        raise MeshwrightError(
            f"There is no overlap {overlap!r}.", where=here(), why=f"there are {', '.join(OVERLAPS)}", fix="'loops'"
        )
    program = _compiled(program)
    local, machine = _on_machine(program, topology, mesh_axes, mode)
    kernel = _only_kernel(local, machine.known)
    if kernel is not None:
        return machine.written(kernel)[1]  # type: ignore[no-any-return]
    given = getattr(program, "donated", ()) if donated is None else donated
    return _scheduled(local, machine, overlap, while_steps, given, flash)


@checked("a simulation", while_steps=partial(whole, least=0))
def work(
    program: Any,
    topology: Any,
    mesh_axes: Mapping[str, int] | None = None,
    *,
    mode: str = "exact",
    while_steps: int | None = None,
    donated: Sequence[bool] | None = None,
    flash: bool = True,
) -> Simulation:
    """The run of a program on a machine, one task after another; the arguments are those of `simulate`.

    A kernel is one task of it, if need be the only one.
    """
    program = _compiled(program)
    local, machine = _on_machine(program, topology, mesh_axes, mode)
    given = getattr(program, "donated", ()) if donated is None else donated
    return _scheduled(local, machine, "none", while_steps, given, flash)


def _compiled(program: Any) -> Any:
    """What ``jit(…).lower(…)`` returned, compiled: until then it is the program of no device."""
    return program.compile() if callable(getattr(program, "compile", None)) else program


def _on_machine(program: Any, topology: Any, mesh_axes: Mapping[str, int] | None, mode: str) -> tuple[Program, Machine]:
    """The program of one device, and the machine with the program's mesh."""
    local, axes = read_program(program, mesh_axes)
    if not axes:
        axes = dict(getattr(topology, "mesh", {}) or {})
    machine = Machine(machine_for(topology, whole_axes(axes), "program"), axes, mode)
    if any(eqn.op.structure is Structure.KERNEL for eqn in local.eqns):
        machine.known = known_values(local)
    return local, machine


def _scheduled(
    local: Program, machine: Machine, overlap: str, while_steps: int | None, donated: Sequence[bool], flash: bool
) -> Simulation:
    """The tasks of a local program in time."""
    block = TaskReader(machine, while_steps, flash=flash).block(local)
    schedule = Scheduler(overlap).schedule(block)
    order = order_of(block, schedule.starts)
    use = memory(block.program, donated=donated, kernels=block.kernels, order=order, flash=block.flash)
    notes = tuple(machine.notes)
    return Simulation(schedule.seconds, schedule.events, use, machine.topology, machine.axes, notes, block, machine)


def _only_kernel(program: Program, known: Mapping[Atom, Any]) -> Eqn | None:
    """The kernel written by hand that a program is, with views of its operands and results, and what is known."""
    kernels = [eqn for eqn in program.eqns if eqn.op.structure is Structure.KERNEL]
    rest = [eqn for eqn in program.eqns if eqn.op.structure is not Structure.KERNEL and not _is_plain(eqn)]
    others = [eqn for eqn in rest if not all(var in known for var in eqn.outputs)]
    return kernels[0] if len(kernels) == 1 and not others else None


def _is_plain(eqn: Eqn) -> bool:
    """Whether an equation is a view or a part of its operand, or made out of numbers."""
    view = fusion_of(eqn) is Fusion.VIEW or eqn.op.split.across is Across.CUT
    return view or all(isinstance(atom, Literal) for atom in eqn.inputs)


def read_program(program: Any, mesh_axes: Mapping[str, int] | None = None) -> tuple[Program, dict[str, int]]:
    """The program of one device and the mesh it is for, from whatever has them."""
    found = program if isinstance(program, Program) else getattr(program, "local", getattr(program, "program", None))
    if not isinstance(found, Program):
        raise MeshwrightError(
            f"{program!r} is not a program.",
            where=here(),
            why="a simulation plays a program, which knows the shapes of its arguments",
            fix="mw.simulate(mw.make_program(f)(*args), topology)",
        )
    if found.names_devices:
        raise MeshwrightError(
            "A device program is simulated on all its devices.",
            why="mw.simulate looks at the program of one device",
            fix='dist.simulate(fn, device_map, mw.hardware.Topology("h100", 8))',
        )
    if mesh_axes is None and not isinstance(program, Program):
        mesh_axes = _mesh_of(program)
    local, axes = local_program(found, mesh_axes)
    return local, with_parts(local, axes)


def _mesh_of(compiled: Any) -> dict[str, int] | None:
    """The mesh of a compiled function, its own or that of the first sharding it has."""
    shardings = tree.leaves((getattr(compiled, "in_shardings", None), getattr(compiled, "out_shardings", None)))
    for owner in (compiled, *shardings):
        mesh = getattr(owner, "mesh", None)
        if mesh is not None:
            return dict(mesh.shape)
    return None
