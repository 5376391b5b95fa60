"""``meshwright serving``: how to serve a transformer on a machine, with answers in time."""

from __future__ import annotations

import argparse
import json
import re
from math import inf
from typing import Any

from meshwright.commands.assumptions import assumptions
from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import check_number
from meshwright.commands.models import NAMED, read_model
from meshwright.commands.search import read_chips
from meshwright.errors import TextError
from meshwright.hardware.roofline import MODES
from meshwright.search.serving import ServingLayout, ServingResult, serving_search
from meshwright.sharding.text_sdy import read_integer

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Divide a machine into replicas of a transformer, and find how many chips each is on, and with which batch, so"
        " that the most tokens are made per second within bounds on the time to each."
    )
    parser.epilog = "Exit code 1: nothing fits and is in time. " + assumptions(modes=False)
    parser.add_argument("--model", required=True, help=f"gpt:LAYERSxWIDTHxHEADS, or one of {NAMED}")
    parser.add_argument("--prefill", action="store_true", help="prompts alone, instead of steps of decoding")
    parser.add_argument("--batch", type=int, metavar="N",
                        help="sequences on all chips together (default: as many as fit and are in time)")  # fmt: skip
    parser.add_argument("--context", metavar="N,N,…",
                        help="tokens in each cache, or prompt (default: from 2048 on, as far as can be)")  # fmt: skip
    parser.add_argument("--latency", metavar="TIME", help="the most that a token may take, or --prefill: 50ms")
    parser.add_argument("--first-token", metavar="TIME", help="the most that the prompt before it may take: 1s")
    parser.add_argument("--dtype", default="bf16", help="of parameters: bf16, f32, fp8, int8, int4 (default: bf16)")
    parser.add_argument("--cache-dtype", metavar="DTYPE", help="of the caches (default: --dtype)")
    parser.add_argument("--memory", type=float, metavar="GB", help="of a device (default: what the chip has)")
    parser.add_argument("--chips", type=int, metavar="N",
                        help="how many (default: all of a machine with a shape)")  # fmt: skip
    parser.add_argument("--hardware", "--chip", dest="hardware", default="h100", metavar="MACHINE",
                        help="a chip ('h100'), or chips in a shape ('tpu v5p 4x4x4') (default: h100)")  # fmt: skip
    parser.add_argument("--mode", default="exact", choices=MODES, help="how times are reckoned (default: exact)")
    parser.add_argument("--front", action="store_true", help="show latency against throughput, too")
    parser.add_argument("--explain", action="store_true", help="say what bounds the best, and what would change it")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Search and print; 1 if nothing fits and is in time."""
    for name in ("batch", "chips"):
        check_number(args, name)
    if args.memory is not None and not args.memory > 0:
        raise TextError(f"--memory is {args.memory:g}.", why="it is a number of GB above 0", fix="--memory 80")
    latency, first = read_seconds(args.latency, "--latency"), read_seconds(args.first_token, "--first-token")
    if args.prefill and first is not None:
        raise TextError(
            "--first-token does not go with --prefill.",
            why="--latency bounds its prompts",
            fix=f"--latency {args.first_token}",
        )
    machine = read_chips(args.hardware, args.chips)
    with as_typed():
        found = serving_search(
            read_model(args.model, 1),  # type: ignore[arg-type]
            machine,
            step="prefill" if args.prefill else "decode",
            batch=args.batch,
            context=_contexts(args.context),
            seconds_per_token=None if args.prefill else latency,
            seconds_to_first_token=latency if args.prefill else first,
            memory_bytes=None if args.memory is None else args.memory * 1e9,
            dtype=args.dtype,
            cache_dtype=args.cache_dtype,
            mode=args.mode,
        )
    if args.json:
        print(json.dumps(facts(found, args), indent=2))
    else:
        print(found.explain() if args.explain and found.best else found.table())
        if args.front:
            print(f"\nlatency against throughput\n{found.table(found.front())}")
    return 0 if found.best is not None else 1


def read_seconds(text: str | None, option: str) -> float | None:
    """A time with its unit, or in seconds.

    >>> read_seconds("50ms", "--latency"), read_seconds("1.5", "--latency")
    (0.05, 1.5)
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(s|ms|us|µs)?\s*", text, re.ASCII | re.IGNORECASE)
    found = float(match[1]) * _UNITS[(match[2] or "s").lower()] if match else 0.0
    if not 0 < found < 1e12:
        raise TextError(f"{option} is {text!r}.", why="it is a time above 0, in s, ms or us", fix=f"{option} 50ms")
    return found


def _contexts(text: str | None) -> list[int] | None:
    if text is None:
        return None
    found = [read_integer(part.strip()) if part.strip().isdecimal() else None for part in text.split(",")]
    if not all(found):
        raise TextError(f"--context is {text!r}.", why="it is numbers of tokens from 1", fix="--context 2048,8192")
    return [n for n in found if n is not None]


def facts(found: ServingResult, args: argparse.Namespace) -> dict[str, Any]:
    """What was found as JSON has it."""
    return {
        "model": args.model,
        "hardware": found.search.topology.text,
        "step": found.search.step,
        "best": None if found.best is None else _facts(found.best),
        "contexts": [_facts(one) for one in found.by_context.values()],
        "front": [_facts(one) for one in found.front()],
        **({"what_if": [_finite(one._asdict()) for one in found.what_if()]} if args.explain else {}),
    }


def _facts(one: ServingLayout) -> dict[str, Any]:
    return _finite({name: getattr(one, name) for name in ServingLayout.__dataclass_fields__ if name != "simulation"})


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts without infinite numbers, which JSON does not have."""
    return {name: None if one == inf else one for name, one in facts.items()}
