"""Programs as a command is told them: a file of program text, a function in a Python file, or a transformer's sizes."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from dataclasses import MISSING
from typing import Any

from meshwright.commands.machines import read_sizes
from meshwright.core.check import check
from meshwright.core.program import Program
from meshwright.core.text import parse_program, parse_type
from meshwright.errors import MeshwrightError, TextError
from meshwright.frontend.tracing import ShapeDtypeStruct, make_program
from meshwright.hardware.roofline import MODES
from meshwright.hardware.transformer import TransformerShape
from meshwright.simulate.schedule import OVERLAPS
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.spmd import simulate
from meshwright.simulate.transformer import train
from meshwright.simulate.transformer_program import Strategy


def describe_program(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a program and a machine."""
    parser.add_argument(
        "program",
        nargs="?",
        metavar="PROGRAM",
        help="FILE.py:NAME, a function or program in a Python file, or a file with the text of a program",
    )
    parser.add_argument("--args", metavar="TYPES", help="types of the function's arguments: 'bf16[64,128] f32[128]'")
    sizes = "layers=32,width=4096,hidden=11008,heads=32,head_dim=128,vocab=32000; also kv_heads=8,gated=0,tied=1"
    parser.add_argument("--transformer", metavar="SIZES", help=f"a train step instead of PROGRAM: {sizes}")
    parser.add_argument("--strategy", default="data=1", metavar="SIZES",
                        help="of the transformer: data=8,tensor=4,pipeline=2,fsdp=1,sequence_parallel=1,microbatches=8,"
                        "remat=0")  # fmt: skip
    parser.add_argument("--batch", type=int, default=8, help="sequences in the transformer's batch (default: 8)")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens in each of them (default: 2048)")
    parser.add_argument("--mesh", help="x=2,y=4, for a program of one device that does not say")
    machine_help = "a chip ('tpu v5e', 'h100', a calibrated chip's file) or chips in a shape ('tpu v5p 4x4x4')"
    parser.add_argument("--hardware", default="tpu v5e", metavar="MACHINE", help=f"{machine_help} (default: tpu v5e)")
    parser.add_argument("--mode", default="exact", choices=MODES, help="how times are reckoned (default: exact)")
    parser.add_argument("--overlap", default="loops", choices=OVERLAPS, help="what may run at once (default: loops)")
    parser.add_argument("--while-steps", type=int, metavar="N", help="how often while loops run")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def simulated(args: argparse.Namespace, hardware: Any) -> Simulation:
    """The simulation that the arguments ask for."""
    options = {"mode": args.mode, "overlap": args.overlap, "while_steps": args.while_steps}
    if (args.program is None) == (args.transformer is None):
        raise TextError(
            "One program is simulated.",
            why="PROGRAM and --transformer are both given" if args.program else "neither PROGRAM nor --transformer is",
            fix="meshwright simulate model.py:train_step --args 'f32[8,4]'",
        )
    if args.transformer is not None:
        shape = _fields(TransformerShape, args.transformer, "--transformer")
        return train(
            shape, hardware, _fields(Strategy, args.strategy, "--strategy"), args.batch, args.sequence, **options
        )
    mesh = read_sizes(args.mesh) if args.mesh else None
    return simulate(read_program(args.program, args.args), hardware, mesh, **options)


def _fields(kind: Any, text: str, option: str) -> Any:
    sizes = read_sizes(text)
    known: dict[str, Any] = kind.__dataclass_fields__
    for name in sizes:
        if name not in known:
            raise TextError(
                f"{option} has no {name!r}.", why=f"it has {', '.join(known)}", fix=f"{next(iter(known))}=…"
            )
    values = {name: bool(size) if known[name].type == "bool" else size for name, size in sizes.items()}
    needed = [name for name, one in known.items() if one.default is MISSING]
    absent = [name for name in needed if name not in values]
    if absent:
        raise TextError(f"{option} has no {absent[0]!r}.", why=f"it needs {', '.join(needed)}", fix=f"{absent[0]}=…")
    return kind(**values)


def read_program(text: str, types: str | None = None) -> Any:
    """A program, or what has one, by name.

    A function with ``types`` is traced on arguments of these; without, it is called and returns the program.
    """
    path, _, name = text.rpartition(":")
    if not path or os.path.exists(text):
        return check(parse_program(_read(text)), "reading")
    value: Any = _module(path)
    for part in name.split("."):
        if not hasattr(value, part):
            raise MeshwrightError(f"{path} has no {name!r}.", why="no such name is defined in it", fix=f"{path}:NAME")
        value = getattr(value, part)
    if not callable(value) or isinstance(getattr(value, "program", value), Program):
        return value
    if types is None:
        try:
            return value()
        except TypeError as error:
            raise MeshwrightError(
                f"{name} cannot be called without arguments.", why=str(error), fix="--args 'f32[8,4] f32[4]'"
            ) from error
    return make_program(value)(*[_struct(one) for one in types.split()])


def _struct(text: str) -> ShapeDtypeStruct:
    found = parse_type(text)
    return ShapeDtypeStruct(found.shape, found.dtype)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise MeshwrightError(f"{path} cannot be read.", why=why or str(error), fix="FILE.py:NAME") from error


def _module(path: str) -> Any:
    """The module of a Python file, with its folder on the path as if it were run."""
    _read(path)
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(path))[0], path)
    if spec is None or spec.loader is None:
        raise MeshwrightError(f"{path} is not a Python file.", why="its name does not end in .py", fix="FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except MeshwrightError:
        raise
    except Exception as error:
        raise MeshwrightError(
            f"{path} cannot be imported.", why=f"{type(error).__name__}: {error}", fix=f"python {path} says where"
        ) from error
    finally:
        sys.path.pop(0)
    return module
