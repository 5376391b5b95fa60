"""``meshwright simulate``: a program on a machine, as a timeline."""

from __future__ import annotations

import argparse
import json
from typing import Any

from meshwright.commands.assumptions import assumptions
from meshwright.commands.machines import read_machine
from meshwright.commands.programs import describe_program, simulated
from meshwright.kernel.timing.timeline import Timeline
from meshwright.simulate.schedule import OVERLAPS
from meshwright.simulate.simulation import Share, Simulation
from meshwright.simulate.spmd import simulate

UNFIT = "Exit code 1: the program does not fit into the memory of a chip."


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Play a program on a machine: its time, what bounds it, a Gantt chart, where the time goes."
    parser.epilog = f"{UNFIT} {assumptions()}"
    describe_program(parser)
    parser.add_argument("--overlap", default="loops", choices=OVERLAPS, help="what may run at once (default: loops)")
    parser.add_argument("--perfetto", metavar="FILE", help="write the timeline for https://ui.perfetto.dev")


def run(args: argparse.Namespace) -> int:
    """Simulate and print; 1 if the program does not fit into the chip's memory."""
    result: Simulation | Timeline = simulated(args, read_machine(args.hardware), simulate, overlap=args.overlap)
    if args.perfetto is not None:
        result.to_perfetto(args.perfetto)
    if isinstance(result, Timeline):
        print(json.dumps(kernel_facts(result), indent=2) if args.json else f"{result}\n\n{result.gantt()}")
        return 0
    if args.json:
        print(json.dumps(facts(result), indent=2))
    else:
        print(result, result.gantt(), result.breakdown(), result.memory, sep="\n\n")
    return 0 if result.fits else 1


def facts(result: Simulation) -> dict[str, Any]:
    """A simulation as JSON has it."""
    use = result.memory
    return {
        "hardware": result.topology.text,
        "devices": result.topology.size,
        "idle_chips": result.idle_chips,
        "mesh": dict(result.mesh),
        "mode": result.machine.mode,
        "seconds": result.seconds,
        "bound": result.bound,
        "compute_seconds": result.compute_seconds,
        "communication_seconds": result.communication_seconds,
        "exposed_seconds": result.exposed_seconds,
        "host_seconds": result.host_seconds,
        "axis_seconds": result.axis_seconds(),
        "unit_seconds": result.unit_seconds(),
        "flops": result.flops,
        "mfu": result.mfu,
        "hfu": result.hfu,
        "fits": result.fits,
        "memory": {
            "peak_bytes_per_device": use.peak_bytes,
            "argument_bytes": use.argument_bytes,
            "output_bytes": use.output_bytes,
            "temporary_bytes": use.temporary_bytes,
            "alias_bytes": use.alias_bytes,
            "host_bytes": use.host_bytes,
        },
        "by_op": [_share(share) for share in result.by_op()],
        "by_line": [_share(share) for share in result.by_line()],
        "notes": list(result.notes),
    }


def kernel_facts(result: Timeline) -> dict[str, Any]:
    """The timeline of a kernel as JSON has it."""
    devices = sorted({span.device for span in result.spans})
    return {
        "hardware": result.topology.text,
        "devices": result.topology.size,
        "mesh": dict(result.mesh),
        "kernel": result.name,
        "seconds": result.seconds,
        "flops": result.flops,
        "memory_bytes": result.nbytes,
        "busy_seconds": [
            {"device": device, **{lane: result.busy(device, lane) for lane in result.lanes(device)}}
            for device in devices
        ],
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "name": share.name,
        "times": share.times,
        "seconds": share.seconds,
        "flops": share.flops,
        "memory_bytes": share.nbytes,
        "bytes_received": share.moved,
    }
