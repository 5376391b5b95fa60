"""``meshwright layout``: the mesh and the shardings in which a step is fastest on a machine."""

from __future__ import annotations

import argparse
import json
import sys
from math import inf
from typing import Any

from meshwright.arrays.tracing import eval_shape
from meshwright.commands.assumptions import assumptions
from meshwright.commands.files import check_folder
from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import check_number
from meshwright.commands.models import step_of_file
from meshwright.commands.progress import say
from meshwright.commands.search import read_chips
from meshwright.commands.user_code import running
from meshwright.core import tree
from meshwright.errors import HardwareError, TextError
from meshwright.hardware.roofline import MODES
from meshwright.search.explained import parts_of, waits_of
from meshwright.search.layout.explain import memory_of
from meshwright.search.layout.find import NoLayoutFits, find_layout
from meshwright.search.layout.found import FoundLayout, FoundLayouts
from meshwright.search.layout.texts import uneven_dims


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Find the mesh and the sharding of every argument in which a step, written for one device, is fastest on a"
        " machine and fits into its memory; and print it as code to paste."
    )
    parser.epilog = assumptions(modes=False)
    parser.add_argument("program", metavar="FILE.py[:NAME]",
                        help="a Python file with a step: NAME, else `model`, else Config(): a configuration of init, "
                        "make_batch and train_step, or a function that returns (step, params, batch), or (step, …) "
                        "with the arguments of another step")  # fmt: skip
    parser.add_argument("--config", metavar="FIELDS", help="fields of the file's configuration: layers=24,dim=1024")
    parser.add_argument("--batch", type=int, help="samples or sequences of a configuration's step (default: 512)")
    parser.add_argument("--chips", type=int, metavar="N",
                        help="how many (default: all of a machine with a shape)")  # fmt: skip
    parser.add_argument("--hardware", "--chip", dest="hardware", default="h100", metavar="MACHINE",
                        help="a chip ('h100'), or chips in a shape ('tpu v5p 4x4x4') (default: h100)")  # fmt: skip
    parser.add_argument("--memory", type=float, metavar="GB", help="of a device (default: what the chip has)")
    parser.add_argument("--microbatches", metavar="N,…",
                        help="parts that the batch may come in, one after the other (default: 1)")  # fmt: skip
    parser.add_argument("--mode", default="exact", choices=MODES, help="how times are reckoned (default: exact)")
    parser.add_argument("--explain", action="store_true",
                        help="say what bounds the best, what others lose, what would make another best")  # fmt: skip
    parser.add_argument("--html", metavar="FILE.html", help="write a picture of where the seconds go")
    parser.add_argument("--jax", action="store_true", help="print the code for JAX; arguments are in equal parts then")
    parser.add_argument("--even", action="store_true", help="only arguments in equal parts, as JAX takes them")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many to show (default: 10)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Search and print; 1 if nothing fits into memory."""
    for name in ("batch", "chips", "top"):
        check_number(args, name)
    if args.memory is not None and not args.memory > 0:
        raise TextError(f"--memory is {args.memory:g}.", why="it is a number of GB above 0", fix="--memory 80")
    check_folder(args.html)
    machine = read_chips(args.hardware, args.chips)
    if args.chips is not None and args.chips != machine.size:
        raise HardwareError(
            f"{machine.text} has {machine.size} chips, not {args.chips}.",
            why="a layout is looked for on all chips of a machine",
            fix=f"--chips {machine.size}, or --hardware '{machine.chip.name}' --chips {args.chips}",
        )
    step, *given = step_of_file(args.program, args.config, args.batch)
    if callable(step):
        with running(args.program, args.program, "def model(): return train_step, params, batch"):
            eval_shape(step, *given)
    memory = None if args.memory is None else args.memory * 1e9
    counts = None if args.microbatches is None else _numbers(args.microbatches)
    try:
        with as_typed():
            found = find_layout(
                step, *given, topology=machine, batch_args=1 if len(given) == 2 else None, memory=memory,
                microbatches=counts, even=args.even or args.jax, mode=args.mode,
                progress=lambda mesh: say(f"mesh {mesh} …"),
            )  # fmt: skip
    except NoLayoutFits as error:
        error.where = ""  # the line of this command
        print(error, file=sys.stderr)
        return 1
    finally:
        say("")
    if args.html:
        found.to_html(args.html)
    if args.json:
        print(json.dumps(facts(found, args.top, machine.text, args.explain), indent=2))
    else:
        print(FoundLayouts(found.found[: args.top], found.bound_seconds).table())
        if args.explain:
            print(f"\n{found.explain()}")
        print(f"\n{found.best.code('jax' if args.jax else 'meshwright')}")
    return 0


def _numbers(text: str) -> list[int]:
    """Numbers between commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise TextError(f"--microbatches is {text!r}.", why="it is numbers between commas", fix="--microbatches 1,2,4")
    return [int(part) for part in parts]


def facts(found: FoundLayouts, top: int, hardware: str, explain: bool) -> dict[str, Any]:
    """Layouts as JSON has them."""
    explained: dict[str, Any] = {}
    if explain:
        explained["bound"] = found.best.simulation.bound
        explained["waits"] = [
            {**one._asdict(), "source": str(one.source or "")} for one in waits_of(found.best.simulation)
        ]
        explained["runners_up"] = [one._asdict() for one in found.compare()[1:]]
        explained["what_if"] = [_finite(one._asdict()) for one in found.what_if()]
    return {
        "hardware": hardware,
        "bound_seconds": found.bound_seconds,
        "layouts": [_facts(one) for one in found.found[:top]],
        **({"explanation": explained} if explain else {}),
        "code": found.best.code(),
        "jax": None if uneven_dims(found.best) else found.best.code("jax"),
    }


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts without infinite numbers, which JSON does not have."""
    return {name: None if one == inf else one for name, one in facts.items()}


def _facts(one: FoundLayout) -> dict[str, Any]:
    assert one.step is not None
    specs = [str(s.spec) for s in tree.leaves(one.in_shardings)]
    return {
        "mesh": dict(one.mesh.shape),
        "microbatches": one.microbatches,
        "name": one.name,
        "in_shardings": dict(zip(one.step.leaf_names, specs, strict=True)),
        "constraints": [str(constraint) for constraint in one.constraints],
        "seconds": one.seconds,
        "parts": parts_of(one.simulation),
        "peak_bytes_per_device": one.peak_bytes_per_device,
        "memory": memory_of(one),
        "fits": one.fits,
    }
