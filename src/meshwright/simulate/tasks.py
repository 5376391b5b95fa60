"""A program as tasks: kernels and collectives of one device, loops as tasks that hold the tasks of one iteration.

All devices of a mesh run the same program at the same time, so one of them is looked at, however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from meshwright.core.axis_names import axis_part
from meshwright.core.facts import Fusion, Structure
from meshwright.core.op import fusion_of
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.source import Source, here
from meshwright.errors import MeshwrightError
from meshwright.simulate.attention import fuse_attention
from meshwright.simulate.forgotten import forget_scores
from meshwright.simulate.fusion import Fusions, fuse
from meshwright.simulate.machine import COMPUTE, Machine, TaskCost, half_zero
from meshwright.transform.stack import inline_calls


@dataclass(eq=False)
class Task:
    """One kernel, collective or loop: what it is called, what it takes, and the tasks before it.

    ``after`` are numbers of tasks of the same list. A loop has the tasks of one iteration in ``body``, which run
    ``times`` times; ``carried`` are pairs: a task of one iteration that waits for a task of the one before.
    """

    name: str
    op: str
    source: Source | None
    cost: TaskCost
    after: tuple[int, ...] = ()
    reads: tuple[Var, ...] = ()
    writes: tuple[Var, ...] = ()
    body: TaskBlock | None = None
    times: int = 1
    carried: tuple[tuple[int, int], ...] = ()

    @property
    def recomputed(self) -> bool:
        """Whether it computes again what a checkpoint did not keep."""
        return self.source is not None and self.source.again

    @property
    def model_flops(self) -> float:
        """The FLOPs of matmuls that are not computed a second time."""
        if self.cost.again_flops is not None:
            return self.cost.matmul_flops - self.cost.again_flops
        return 0.0 if self.recomputed else self.cost.matmul_flops


@dataclass
class TaskBlock:
    """The tasks of a program, in an order in which they can run, and the program they are of.

    ``flash`` says whether attentions in it are one kernel each.
    """

    program: Program
    kernels: Fusions
    tasks: list[Task]
    makers: dict[Var, int] = field(default_factory=dict)
    flash: bool = True


class TaskReader:
    """Turns programs into tasks on a machine. A region that comes again is read once."""

    def __init__(
        self, machine: Machine, while_steps: int | None = None, fused: bool = True, flash: bool = True
    ) -> None:
        self.machine, self.while_steps, self.fused, self.flash = machine, while_steps, fused, flash and fused
        self.known: dict[int, tuple[Program, TaskBlock]] = {}

    def block(self, program: Program, inside: bool = False) -> TaskBlock:
        """The tasks of a program; one that stands inside of another was rewritten with it."""
        found = self.known.get(id(program))
        if found is not None:
            return found[1]
        block = self._read(program, inside)
        if not inside and self.flash and self._doubtful(block):
            unfused = TaskReader(self.machine, self.while_steps, self.fused, flash=False).block(program)
            block = min(block, unfused, key=lambda one: _of_block(one, 1).seconds)
        self.known[id(program)] = (program, block)
        return block

    def _doubtful(self, block: TaskBlock) -> bool:
        """Whether a fused attention takes longer than its products would, each as a kernel: of short rows it may."""
        return self.machine.measured is not None and any(
            (kernel.attention is not None and task.cost.seconds > self.machine.products_seconds(kernel))
            or (task.body is not None and self._doubtful(task.body))
            for task, kernel in zip(block.tasks, block.kernels.kernels, strict=True)
        )

    def _read(self, program: Program, inside: bool) -> TaskBlock:
        whole = forget_scores(program) if self.flash and not inside else inline_calls(program, shard_maps=False)
        whole, attentions = fuse_attention(whole) if self.flash else (whole, [])
        kernels = fuse(whole, self.fused, attentions=attentions)
        self.machine.half_zero |= half_zero(whole)
        block = TaskBlock(whole, kernels, [], flash=self.flash)
        reloads = _Reloads()
        for number, kernel in enumerate(kernels.kernels):
            eqn = kernel.eqns[-1]
            after = tuple(sorted({block.makers[v] for v in kernel.reads if v in block.makers}))
            after = reloads.after(number, eqn.op.structure is Structure.RELOAD, after)
            reads, writes = tuple(kernel.reads), tuple(kernel.writes)
            task = Task("", eqn.op.name, eqn.source, _NOTHING, after, reads, writes)
            name = eqn.op.name
            if eqn.op.collective is not None:
                task.cost = self.machine.collective(eqn)
                task.name = f"{eqn.op.collective} {','.join(task.cost.axes)} {eqn.outputs[0].type.short()}"
            elif eqn.op.structure is Structure.ROWS:
                self.loop(task, eqn, eqn.params["length"], eqn.params["consts"], eqn.params["carry"])
            elif eqn.op.structure is Structure.LOOP:
                self.while_loop(task, eqn)
            elif eqn.op.structure is Structure.BRANCH:
                self.branches(task, eqn)
            elif eqn.op.structure is Structure.DEVICE:
                raise _inside(eqn)
            elif kernel.attention is not None:
                task.cost = self.machine.kernel(kernel)
                task.op = "attention" + " gradient" * kernel.attention.backward
                task.name = f"{task.op} of {kernel.attention.scores:,} scores"
            else:
                task.cost = self.machine.kernel(kernel)
                task.op = "fused" if len(kernel.eqns) > 1 and not kernel.alone else name
                task.name = _name(kernel.eqns, eqn)
            block.tasks.append(task)
            block.makers.update((v, number) for v in kernel.writes)
        return block

    def loop(self, task: Task, eqn: Eqn, length: int, consts: int, carry: int) -> None:
        body = self.block(eqn.params["body"], inside=True)
        task.body, task.times = body, length
        task.name = f"scan of {length} steps"
        task.cost = _of_block(body, length)
        task.carried = _carried(body, body.program.inputs[consts : consts + carry], body.program.outputs[:carry])

    def while_loop(self, task: Task, eqn: Eqn) -> None:
        """A loop that counts, as often as it runs; any other as often as is assumed."""
        steps = eqn.op.runs(eqn, "body").times
        body, carry = self.block(eqn.params["body"], inside=True), len(eqn.outputs)
        task.name = f"while of {steps} steps"
        if steps is None:
            steps = self.assumed_steps(eqn)
            task.name = f"while, {steps} steps assumed"
        task.body, task.times = body, steps
        task.cost = _of_block(body, steps)
        inputs = body.program.inputs[len(body.program.inputs) - carry :]
        task.carried = _carried(body, inputs, body.program.outputs)

    def assumed_steps(self, eqn: Eqn) -> int:
        """How often a while loop is taken to run whose condition depends on values."""
        if self.while_steps is None:
            raise MeshwrightError(
                "The program has a while loop, and how often it runs is not known.",
                where=eqn.source.show() if eqn.source else here(),
                why="a while loop ends when its condition says so, which depends on values",
                fix="while_steps=100, or a lax.scan, whose length is known",
            )
        where = f" at {eqn.source}" if eqn.source else ""
        self.machine.notes[f"the while loop{where} is taken to run {self.while_steps} steps"] = None
        return self.while_steps

    def branches(self, task: Task, eqn: Eqn) -> None:
        """The branch that takes longest."""
        blocks = [self.block(branch, inside=True) for branch in eqn.params["branches"]]
        body = max(blocks, key=lambda block: sum(t.cost.seconds for t in block.tasks))
        where = f" at {eqn.source}" if eqn.source else ""
        self.machine.notes[f"of the {len(blocks)} branches of the cond{where} the longest is taken"] = None
        task.body, task.name = body, "cond, its longest branch"
        task.cost = _of_block(body, 1)


class _Reloads:
    """When values may come back from the host: with those before them, and no earlier, so that few are there at once.

    Reloads that stand next to each other are a group. One waits for what stands before the group ahead of its own.
    """

    def __init__(self) -> None:
        self.before_group = self.before_last = -1  # the task in front of this group of reloads, and of the last
        self.in_group = False

    def after(self, number: int, reload: bool, after: tuple[int, ...]) -> tuple[int, ...]:
        if reload and not self.in_group:
            first = self.before_group < 0
            self.before_last, self.before_group = (number - 1 if first else self.before_group), number - 1
        self.in_group = reload
        return tuple(sorted({*after, self.before_last})) if reload and self.before_last >= 0 else after


_NOTHING = TaskCost(0.0, (COMPUTE,), "memory")


def _of_block(block: TaskBlock, times: int) -> TaskCost:
    """The sums over a block, ``times`` times; its time is found when it is scheduled."""
    units = dict.fromkeys([COMPUTE, *(unit for task in block.tasks for unit in task.cost.units)])
    costs = [task.cost for task in block.tasks]
    return TaskCost(
        times * sum(t.seconds for t in costs),
        tuple(units),
        "loop",
        times * sum(t.flops for t in costs),
        times * sum(t.nbytes for t in costs),
        times * sum(t.matmul_flops for t in costs),
        moved=times * sum(t.moved for t in costs),
    )


def _carried(block: TaskBlock, inputs: tuple[Var, ...], outputs: tuple[Atom, ...]) -> tuple[tuple[int, int], ...]:
    """Which tasks of an iteration wait for which of the one before: readers of a carry for those that make it."""
    maker: dict[Var, int] = {}
    for var, atom in zip(inputs, outputs, strict=True):
        root = block.kernels.stored(atom)
        if root in block.makers:
            maker[var] = block.makers[root]  # type: ignore[index]
    pairs = {(number, maker[v]) for number, task in enumerate(block.tasks) for v in task.reads if v in maker}
    return tuple(sorted(pairs))


def _name(eqns: list[Eqn], last: Eqn) -> str:
    shapes = "".join(v.type.short().split("{")[0] for v in last.outputs[:1])
    if fusion_of(last) is Fusion.CONTRACTION:
        shapes = " ".join(a.type.short().split("{")[0] for a in last.inputs)
    more = f" and {len(eqns) - 1} more" if len(eqns) > 1 else ""
    return f"{last.op.name} {shapes}".rstrip() + more


def _inside(eqn: Eqn) -> MeshwrightError:
    return MeshwrightError(
        "A shard_map stands inside of another region.",
        where=eqn.source.show() if eqn.source else here(),
        why="a loop or another shard_map around it would have to be divided between devices, too",
        fix="put the loop into the function that is given to shard_map",
    )


def local_program(program: Program, mesh_axes: Mapping[str, int] | None) -> tuple[Program, dict[str, int]]:
    """The program of one device, and the mesh: of a global program, the body of its shard_map.

    What stands around a shard_map is run whole by every device, so it may only touch values that all have whole.
    """
    program = inline_calls(program, shard_maps=False)
    maps = [eqn for eqn in program.eqns if eqn.op.structure is Structure.DEVICE]
    if not maps:
        return program, dict(mesh_axes or {})
    mesh = dict(maps[0].params["mesh"])
    for eqn in maps:
        if dict(eqn.params["mesh"]) != mesh or (mesh_axes is not None and dict(mesh_axes) != mesh):
            other = mesh_axes if mesh_axes is not None else dict(eqn.params["mesh"])
            raise MeshwrightError(
                f"The program has a shard_map over {mesh} and another mesh of {dict(other)}.",
                where=eqn.source.show() if eqn.source else here(),
                why="one machine is simulated, with one mesh on it",
                fix="use one mesh throughout",
            )
    return _flattened(program, mesh), mesh


def with_parts(program: Program, axes: Mapping[str, int]) -> dict[str, int]:
    """The mesh with an axis as the parts that a program talks along, ``x:(1)2`` and ``x:(2)4``, if it does so."""
    cuts: dict[str, set[int]] = {}
    for name in spoken(program):
        part = axis_part(name)
        if part is not None and name not in axes and part[0] in axes:
            cuts.setdefault(part[0], {1, axes[part[0]]}).update((part[1], part[1] * part[2]))
    found: dict[str, int] = {}
    for name, size in axes.items():
        at = sorted(cuts.get(name, ()))
        parts = {f"{name}:({low}){high // low}": high // low for low, high in pairwise(at)}
        found.update(parts or {name: size})
    return found


def spoken(program: Program) -> set[str]:
    """The axes that collectives of a program work along."""
    found: set[str] = set()
    for eqn in program.eqns:
        found.update(eqn.params["axes"] if eqn.op.collective is not None else ())
        for _, region in eqn.regions():
            found |= spoken(region)
    return found


def _flattened(program: Program, mesh: dict[str, int]) -> Program:
    """The bodies of shard_maps one after another, on blocks."""
    env: dict[Atom, Atom] = {}
    split: dict[Atom, Any] = {}  # the spec of a value that devices hold in parts
    renamed: dict[Var, Var] = {}
    eqns: list[Eqn] = []
    constants = list(program.constants)

    def refuse(eqn: Eqn, atom: Atom, why: str) -> MeshwrightError:
        return MeshwrightError(
            f"{eqn.op.name} works on {atom.type.short()} between shard_maps.",
            where=eqn.source.show() if eqn.source else here(),
            why=why,
            fix="put it into the function given to shard_map, or let mw.jit(f, in_shardings=…) divide all of it",
        )

    for eqn in program.eqns:
        if eqn.op.structure is not Structure.DEVICE:
            for atom in eqn.inputs:
                if atom in split:
                    raise refuse(eqn, atom, f"devices hold parts of it, {split[atom]}, and the op is on the whole")
            eqns.append(Eqn(eqn.op, [env.get(a, a) for a in eqn.inputs], eqn.params, eqn.outputs, eqn.source))
            continue
        body = inline_calls(eqn.params["body"], shard_maps=False)
        inner: dict[Atom, Atom] = {}
        for atom, var, spec in zip(eqn.inputs, body.inputs, eqn.params["in_specs"], strict=True):
            cut = _is_cut(spec)
            if atom in split and split[atom] != spec:
                raise refuse(eqn, atom, f"devices hold parts of it, {split[atom]}, and it is wanted as {spec}")
            if cut and atom not in split:
                if atom in program.inputs and atom not in renamed:
                    renamed[atom] = env[atom] = Var(var.type)  # type: ignore[index]
                    split[atom] = spec
                elif atom.__class__ is Var:
                    raise refuse(eqn, atom, f"it is whole on every device, and wanted as {spec}")
            inner[var] = env.get(atom, atom)
        constants.extend(body.constants)
        for e in body.eqns:
            eqns.append(Eqn(e.op, [inner.get(a, a) for a in e.inputs], e.params, e.outputs, e.source))
        for var, atom, spec in zip(eqn.outputs, body.outputs, eqn.params["out_specs"], strict=True):
            env[var] = inner.get(atom, atom)
            if _is_cut(spec):
                split[var] = spec
    inputs = tuple(renamed.get(v, v) for v in program.inputs)
    return Program(inputs, tuple(eqns), tuple(env.get(a, a) for a in program.outputs), tuple(constants))


def _is_cut(spec: Any) -> bool:
    return any(entry is not None for entry in spec.partitions) or bool(spec.unreduced)
