"""``meshwright matmul``: ways to multiply two split matrices, and which is the fastest."""

from __future__ import annotations

import argparse
import json
from typing import Any

from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import describe_machine, read_machine, read_sizes
from meshwright.errors import TextError
from meshwright.partition.matmul.plan import Alternative, MatmulPlan, plan_matmul
from meshwright.sharding.text_command import read_mesh


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Plan the product of two arrays that are split over a mesh; every sensible way, with its costs."
    )
    parser.add_argument("product", metavar="PRODUCT", help="'A[I_x,J] @ B[J,K_y] -> C[I,K]'; {U_x} is unreduced over x")
    parser.add_argument("--mesh", required=True, help="x=2,y=4 (or sdy: '<[\"x\"=2]>')")
    parser.add_argument("--size", required=True, metavar="SIZES", help="I=1024,J=4096,K=1024")
    parser.add_argument("--dtype", default="bf16", help="element type (default: bf16)")
    describe_machine(parser)
    parser.add_argument("--overlap", action="store_true", help="communication runs beside the product")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Plan and print."""
    mesh, sizes, machine = read_mesh(args.mesh), read_sizes(args.size), read_machine(args.hardware)
    with as_typed():
        plan = plan_matmul(args.product, mesh, sizes, args.dtype, machine, mode=args.mode, overlap=args.overlap)
    unused = [name for name in sizes if name not in plan.problem.sizes]
    if unused:
        wanted = ",".join(f"{name}={size}" for name, size in plan.problem.sizes.items())
        raise TextError(
            f"The product has no index {unused[0]!r}.",
            why=f"its indices are {', '.join(plan.problem.sizes)}",
            fix=f"--size {wanted}",
        )
    print(json.dumps(facts(plan), indent=2) if args.json else plan)
    return 0


def facts(plan: MatmulPlan) -> dict[str, Any]:
    """A plan as JSON: the problem, the case, the alternatives from the fastest on, the regimes."""
    p = plan.problem
    return {
        "product": f"{p.left} @ {p.right} -> {p.result}",
        "mesh": dict(p.mesh),
        "sizes": dict(p.sizes),
        "dtype": p.dtype,
        "hardware": p.topology.text,
        "mode": p.mode,
        "overlap": p.overlap,
        "case": plan.case,
        "cases": dict(plan.cases),
        "natural": plan.natural,
        "alternatives": [_alternative(one) for one in plan.alternatives],
        "regimes": [
            {"low": regime.low, "high": regime.high, "name": regime.alternative.name} for regime in plan.regimes
        ],
    }


def _alternative(one: Alternative) -> dict[str, Any]:
    return {
        "name": one.name,
        "steps": [*map(str, one.before), "multiply", *map(str, one.after)],
        "collectives": [
            {"name": step.name, "kind": step.kind, "axes": list(step.axes), "seconds": cost.seconds}
            for step, cost in zip(one.collectives, one.costs)
        ],
        "flops": one.flops,
        "total_flops": one.total_flops,
        "bytes_received_per_device": one.bytes_received_per_device,
        "compute_seconds": one.work.compute_seconds,
        "memory_seconds": one.work.memory_seconds,
        "communication_seconds": one.communication_seconds,
        "seconds": one.seconds,
        "bound": one.work.bound,
    }
