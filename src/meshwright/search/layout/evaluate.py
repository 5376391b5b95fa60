"""What a layout really takes: the step partitioned as ``jit`` does it, and simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.compile.placement import Placement
from meshwright.compile.stages import PARTITION, SIMPLIFY, Compilation, run_stages
from meshwright.core import tree
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.hardware.topology import Topology
from meshwright.ops.placement import sharding_constraint
from meshwright.partition.alternatives import Cheapest
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.spmd import simulate

Specs = Mapping[Var, PartitionSpec]


def simplified(program: Program, out_tree: tree.TreeDef) -> Program:
    """The program without dead and repeated equations, as ``jit`` partitions it."""
    return run_stages(SIMPLIFY, Compilation(program, out_tree)).program


def constrained(program: Program, specs: Specs) -> Program:
    """The program with constraints behind the equations that make these values, in regions, too."""
    if not specs:
        return program
    new: dict[Atom, Atom] = {}
    eqns = []
    for eqn in program.eqns:
        params: Any = eqn.params
        for name, region in eqn.regions():
            if isinstance(params.get(name), Program):  # of a scan; branches are laid out by what enters them
                params = {**params, name: constrained(region, specs)}
        eqns.append(Eqn(eqn.op, [new.get(a, a) for a in eqn.inputs], params, eqn.outputs, eqn.source))
        for var in eqn.outputs:
            if var in specs:
                new[var] = Var(var.type)
                made = (new[var],)
                eqns.append(Eqn(sharding_constraint, [var], {"spec": specs[var]}, made, eqn.source))  # type: ignore[arg-type]
    return Program(program.inputs, tuple(eqns), tuple(new.get(a, a) for a in program.outputs), program.constants)


@dataclass(frozen=True)
class Evaluated:
    """A program of one device, simulated, and the kind of layouts that were taken inside."""

    simulation: Simulation
    cheapest: Cheapest | None


def evaluated(
    program: Program,
    out_tree: tree.TreeDef,
    topology: Topology,
    given: Sequence[NamedSharding | None],
    asked: Sequence[NamedSharding | None],
    donated: Sequence[bool],
    arguments: Sequence[int],
    mode: str,
    like: Cheapest | None = None,
) -> Evaluated:
    """The simulation of a program with its inputs and results so laid out; ``arguments`` says of which argument of the
    step each input is a part, and ``like`` which kind of layouts to take inside, if that is known."""
    mesh = next(s.mesh for s in given if s is not None)
    assert isinstance(mesh, Mesh)
    placement = Placement(mesh, tuple(given), tree.unflatten(out_tree, asked), groups=tuple(arguments))
    done = run_stages(PARTITION, Compilation(program, out_tree, tuple(donated), placement, cheapest=like))
    assert done.local is not None
    axes = dict(done.local.cuts.axes)
    return Evaluated(simulate(done.local.program, topology, axes, mode=mode, donated=donated), done.cheapest)
