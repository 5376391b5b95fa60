"""``meshwright reshard``: how an array gets from one sharding to another, and what that costs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import read_machine
from meshwright.core.dtypes import short_name
from meshwright.partition.reshard.plan import ReshardPlan, plan_reshard
from meshwright.sharding.text_command import read_mesh, read_shape, read_spec


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Plan the collectives that bring an array from one sharding to another with the fewest bytes."
    spec_help = "x,y or '(x,y),None' or 'x:(1)2,unreduced={y}' or the sdy grammar"
    parser.add_argument("source", metavar="SRC", help=f"the sharding it has: {spec_help}")
    parser.add_argument("target", metavar="DST", help="the sharding it is to have")
    parser.add_argument("--mesh", required=True, help="x=2,y=4 (or sdy: '<[\"x\"=2]>')")
    parser.add_argument("--target-mesh", metavar="MESH", help="the mesh of DST, if it is another")
    parser.add_argument("--shape", required=True, help="64x64")
    parser.add_argument("--dtype", default="f32", help="the type of its elements (default: f32)")
    parser.add_argument("--hardware", metavar="CHIP", help="plan for the least time on this chip, such as 'tpu v5e'")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    mesh, shape = read_mesh(args.mesh), read_shape(args.shape)
    other = read_mesh(args.target_mesh) if args.target_mesh is not None else mesh
    source, target = read_spec(args.source, mesh, shape), read_spec(args.target, other, shape)
    hardware = read_machine(args.hardware) if args.hardware is not None else None
    with as_typed():
        plan = plan_reshard(shape, args.dtype, source, target, hardware=hardware)
        seconds = plan.seconds(hardware) if hardware is not None else None
    if args.json:
        print(json.dumps(facts(plan, seconds), indent=2))
    else:
        print(plan)
        if seconds is not None:
            print(f"time      {seconds * 1e6:.1f} us on {args.hardware}")
    return 0


def facts(plan: ReshardPlan, seconds: float | None) -> dict[str, Any]:
    """The plan as JSON has it."""
    return {
        "shape": list(plan.shape),
        "dtype": short_name(plan.dtype),
        "source": str(plan.source),
        "target": str(plan.target),
        "steps": [
            {
                "kind": step.kind,
                "text": str(step),
                "axes": [axis.short() for axis in step.axes],
                "collectives": step.collectives,
                "bytes_received_per_device": received,
            }
            for step, received in zip(plan.steps, plan.step_bytes, strict=True)
        ],
        "bytes_received_per_device": plan.bytes_received_per_device,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "total_bytes": plan.total_bytes,
        "total_lower_bound_bytes": plan.total_lower_bound_bytes,
        "peak_bytes": plan.peak_bytes,
        "exceeds_memory": plan.exceeds_memory,
        **({} if seconds is None else {"seconds": seconds}),
    }
