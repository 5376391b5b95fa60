"""Programs as a command is told them: a file of program text, a function in a Python file, or a transformer's sizes."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, replace
from typing import Any

from meshwright.commands.files import read_text
from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import check_number, describe_machine, read_sizes
from meshwright.commands.user_code import CALL, FORM, called, compiled, kind_of, named, typed_already
from meshwright.core.check import check
from meshwright.core.program import Program
from meshwright.core.text.parse import parse_program
from meshwright.core.text.types import parse_types
from meshwright.errors import HardwareError, MeshwrightError, TextError
from meshwright.hardware.arguments import called_here, one_of
from meshwright.hardware.transformer import TransformerShape
from meshwright.sharding.text_command import read_mesh
from meshwright.simulate.pipelines import SCHEDULES
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.transformer import decode, train
from meshwright.simulate.transformer.strategy import ELSEWHERE, RECOMPUTE, Strategy


def describe_program(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a program and a machine."""
    parser.add_argument(
        "program",
        nargs="?",
        metavar="PROGRAM",
        help="FILE.py:NAME in a Python file: a function of --args, a program, or a function without arguments that "
        f"returns a program, {CALL}; or a file with a program's text, - for stdin",
    )
    parser.add_argument("--args", metavar="TYPES", help="types of the function's arguments: 'bf16[64,128] f32[128]'")
    sizes = f"{SIZES}; also kv_heads=8,gated=0,tied=1; or one of {', '.join(SHAPES)}"
    parser.add_argument("--transformer", metavar="SIZES", help=f"a step of a transformer instead of PROGRAM: {sizes}")
    parser.add_argument("--strategy", metavar="SIZES",
                        help="of the transformer: data=8,tensor=4,pipeline=2,fsdp=1,sequence_parallel=1,microbatches=8,"
                        "zero=2,recompute=full,schedule=interleaved,chunks=2 (default: data=1)")  # fmt: skip
    parser.add_argument(
        "--decode",
        action="store_true",
        help="of the transformer: a step of decoding, with --strategy tensor=8, instead of training",
    )
    parser.add_argument("--context", type=int, metavar="N", help="tokens in each cache of --decode (default: 2048)")
    parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="of the transformer's parameters: bf16, f16, f32, fp8; of --decode int8 and int4, too",
    )
    parser.add_argument("--cache-dtype", metavar="DTYPE", help="of the caches of --decode (default: --dtype)")
    parser.add_argument("--batch", type=int, metavar="N", help="sequences in the transformer's batch (default: 8)")
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens in each of them (default: 2048)")
    parser.add_argument("--mesh", help="x=2,y=4, for a program of one device that does not say")
    describe_machine(parser)
    parser.add_argument("--while-steps", type=int, metavar="N", help="how often while loops run")
    parser.add_argument("--no-flash", action="store_true", help="attention as several kernels, with its scores written")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def simulated(args: argparse.Namespace, hardware: Any, play: Callable[..., Simulation], **options: Any) -> Simulation:
    """The simulation that the arguments ask for: by ``play`` with ``options``, or of a transformer."""
    if args.while_steps is not None and args.while_steps < 0:
        raise TextError(
            f"--while-steps is {args.while_steps}.", why="it is how often loops run", fix="--while-steps 100"
        )
    check_number(args, "while_steps", 100, 0)
    options |= {"mode": args.mode, "while_steps": args.while_steps, "flash": not args.no_flash}
    if (args.program is None) == (args.transformer is None):
        found = "neither PROGRAM nor --transformer is" if args.program is None else "PROGRAM and --transformer are both"
        raise TextError(
            "One program is wanted.",
            why=f"{found} given",
            fix=f"meshwright {args.command} model.py:train_step --args 'f32[8,4]'",
        )
    of, others = ("--transformer", _FUNCTIONS) if args.program is None else ("PROGRAM", _TRANSFORMERS)
    for name in others:
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise TextError(f"{option} does not go with {of}.", why=others[name], fix=f"leave out {option}")
    if args.decode and args.transformer is None:
        raise TextError("--decode does not go with PROGRAM.", why="it is of a --transformer", fix="leave out --decode")
    if args.transformer is not None:
        return _transformer(args, hardware, {"overlap": options.get("overlap", "none"), "mode": args.mode})
    mesh = dict(read_mesh(args.mesh).shape) if args.mesh is not None else None
    program = read_program(args.program, args.args)
    if not isinstance(program, Program) and not isinstance(getattr(program, "program", None), Program):
        raise not_a_program(args.command, args.program, program)
    if mesh is not None and getattr(program, "mesh", None) is not None:
        raise TextError(
            f"--mesh does not go with {args.program}.",
            why=f"it is compiled for the mesh {program.mesh}",
            fix="leave out --mesh",
        )
    with as_typed():
        return play(program, hardware, mesh, **options)


def not_a_program(command: str, text: str, found: object) -> MeshwrightError:
    """The error for what ``FILE.py:NAME`` gives that is no program."""
    return MeshwrightError(
        f"{text} gives {kind_of(found)}, not a program.",
        why="a function without arguments returns a program or a function with its arguments, and others are traced on "
        "the types of theirs",
        fix=f"a function with arguments: meshwright {command} {text.rpartition(':')[0]}:f --args 'f32[8,4]'",
    )


_FUNCTIONS = {"args": "they are of a function", "mesh": "--strategy says how it is laid out"}
_TRANSFORMERS = dict.fromkeys(
    ("strategy", "batch", "sequence", "context", "dtype", "cache_dtype"), "it is of a --transformer"
)
SIZES = "layers=32,width=4096,hidden=11008,heads=32,head_dim=128,vocab=32000"
# Published models, by the sizes in their papers.
SHAPES = {
    "gpt2": TransformerShape(12, 768, 3072, 12, 64, 50257, gated=False, tied=True),
    "gpt2-medium": TransformerShape(24, 1024, 4096, 16, 64, 50257, gated=False, tied=True),
    "gpt2-large": TransformerShape(36, 1280, 5120, 20, 64, 50257, gated=False, tied=True),
    "gpt2-xl": TransformerShape(48, 1600, 6400, 25, 64, 50257, gated=False, tied=True),
    "gpt3-175b": TransformerShape(96, 12288, 49152, 96, 128, 50257, gated=False, tied=True),
    "llama3-8b": TransformerShape(32, 4096, 14336, 32, 128, 128256, kv_heads=8),
    "llama3-70b": TransformerShape(80, 8192, 28672, 64, 128, 128256, kv_heads=8),
    "llama3-405b": TransformerShape(126, 16384, 53248, 128, 128, 128256, kv_heads=8),
    "mixtral-8x7b": TransformerShape(32, 4096, 14336, 32, 128, 32000, kv_heads=8, experts=8, experts_per_token=2),
}


def read_shape(text: str, option: str = "--transformer") -> TransformerShape:
    """The transformer that a name or sizes say.

    >>> read_shape("llama3-70b").parameters
    70553706496
    """
    found: TransformerShape = SHAPES.get(text) or _fields(TransformerShape, text, option, SIZES)
    return found


def _transformer(args: argparse.Namespace, hardware: Any, options: dict[str, Any]) -> Simulation:
    """The step of the transformer asked for: of training, or of decoding."""
    shape = read_shape(args.transformer)
    try:
        strategy = _fields(Strategy, args.strategy if args.strategy is not None else "data=1", "--strategy", "data=8")
    except HardwareError as error:
        error.fix = _typed_fix(error.fix, args.strategy)
        raise
    strategy = replace(strategy, flash=strategy.flash and not args.no_flash)
    absent = {"sequence": "--context"} if args.decode else {"context": "--sequence", "cache_dtype": "--dtype"}
    for name, other in absent.items():
        if getattr(args, name) is not None:
            step = "a step of decoding" if args.decode else "a train step"
            option = f"--{name.replace('_', '-')}"
            raise TextError(f"{option} does not go with {step}.", why=f"it has {other}", fix=f"leave out {option}")
    numbers: dict[str, Any] = {"batch": 8, "context" if args.decode else "sequence": 2048}
    for name, default in numbers.items():
        check_number(args, name, default)
        value = getattr(args, name)
        numbers[name] = default if value is None else value
    dtypes: dict[str, Any] = {
        "dtype": args.dtype or "bf16",
        **({"cache_dtype": args.cache_dtype} if args.decode else {}),
    }
    try:
        with as_typed():
            if not args.decode:
                return train(shape, hardware, strategy, **numbers, **dtypes, **options)
            if strategy != Strategy(tensor=strategy.tensor, flash=strategy.flash):
                raise TextError(
                    f"{strategy} is for a train step.",
                    why="a step of decoding is laid out by tensor alone",
                    fix=f"--strategy tensor={strategy.devices}",
                )
            options["flash"] = strategy.flash
            return decode(shape, hardware, **numbers, tensor=strategy.tensor, **dtypes, **options)
    except HardwareError as error:
        error.fix = _typed_fix(error.fix, args.strategy or "")
        raise


def _typed_fix(fix: str, strategy: str) -> str:
    """A fix of a step as it is typed: sizes of the batch are options, degrees go into what --strategy says already."""
    found = re.findall(r"(\w+)=('[^']*'|\w+)", fix)
    if not found or ", ".join(f"{name}={value}" for name, value in found) != fix:
        return fix
    given = {name: value.strip("'") for name, value in found}
    if given.keys() <= {"batch", "sequence", "context"}:
        return " ".join(f"--{name} {value}" for name, value in given.items())
    if given.keys() <= TransformerShape.__dataclass_fields__.keys():
        return f"{fix} in --transformer"
    if given.keys() <= Strategy.__dataclass_fields__.keys():
        return f"--strategy {_changed(strategy, given)}"
    return fix


def _changed(text: str, given: Mapping[str, str]) -> str:
    """``data=2,tensor=3`` with other values for some of its names.

    >>> _changed("data=2, tensor=3", {"tensor": "2", "zero": "1"})
    'data=2,tensor=2,zero=1'
    """
    parts = dict(part.replace(" ", "").partition("=")[::2] for part in text.split(",") if part.strip())
    return ",".join(f"{name}={value}" for name, value in {**parts, **given}.items())


def _fields(kind: Any, text: str, option: str, example: str) -> Any:
    known: dict[str, Any] = kind.__dataclass_fields__
    kinds = {**{name: one.type for name, one in known.items()}, **(_ALSO if kind is Strategy else {})}
    words: dict[str, Any] = {}
    numbers: list[str] = []
    for part in text.split(","):
        name, _, word = (piece.strip() for piece in part.partition("="))
        if kinds.get(name) == "str" and not word.isdigit():
            words[name] = _word(name, word, text, option)
        else:
            numbers.append(part)
    sizes = read_sizes(",".join(numbers), f"a part of {option}", example) if numbers else {}
    for name, size in sizes.items():
        if name not in kinds:
            meant = called_here(name, list(kinds))
            why = f"{name} is called {meant} here" if meant else f"it has {', '.join(known)}"
            rest = ",".join(part for part in text.split(",") if part.partition("=")[0].strip() != name)
            fix = _changed(rest, {meant: str(size)}) if meant else rest or example
            raise TextError(f"{option} has no {name!r}.", why=why, fix=f"{option} {fix}")
        flag, least = kinds[name] == "bool" or name in words or name == "recompute", int(name != "zero")
        if (flag and size > 1) or (not flag and size < least):
            why = "it is 0 or 1" if flag else f"it is a number from {least}"
            raise TextError(f"{name} of {option} is {size}.", why=why, fix=f"{name}=1")
        words[name] = bool(size) if flag else size
    needed = [name for name, one in known.items() if one.default is MISSING]
    absent = [name for name in needed if name not in words]
    if absent:
        raise TextError(
            f"{option} has no {absent[0]!r}.", why=f"it needs {', '.join(needed)}", fix=f"{option} {example}"
        )
    return kind(**words)


_ALSO = {"fsdp": "bool"}  # the other name of zero=3
_WORDS = {"recompute": RECOMPUTE, "schedule": tuple(SCHEDULES)}


def _word(name: str, word: str, text: str, option: str) -> str:
    """The word that a field is given, one of those it may be."""
    try:
        return str(one_of(_WORDS[name], name, word, option, ELSEWHERE))
    except HardwareError as error:
        meant = error.fix.partition("=")[2].strip("'")
        raise TextError(error.what, why=error.why, fix=f"{option} {_changed(text, {name: meant})}") from error


def read_program(text: str, types: str | None = None) -> Any:
    """A program, or what has one, by name.

    A function with ``types`` is traced on arguments of these; without, it is called and returns the program, or a
    function and its arguments, for which it is compiled.
    """
    if (":" not in text or os.path.exists(text)) and not text.endswith(".py"):
        if types is not None:
            raise typed_already(text, "the text of a program")
        return check(parse_program(read_text(text, f"{FORM}, a file with the text of a program, or -")), "reading")
    found = called(named(text), None if types is None else parse_types(types))
    result = compiled(found, text)
    return found if result is None else result
