"""``meshwright rules``: the factor rules of ops, in our words and in sdy's."""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches
from typing import Any

from meshwright.core.dtypes import FLOAT32
from meshwright.core.op import REGISTRY, No, Op, Sample
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.sharding_rules import rule_text
from meshwright.interop.stablehlo.ops import spellings


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Print the factor rules of an op on some operands; without OP, one rule for every op."
    parser.add_argument("op", metavar="OP", nargs="?", help="dot_general, or stablehlo.dot_general")
    parser.add_argument("--json", action="store_true", help="print the rules as JSON")


def run(args: argparse.Namespace) -> int:
    """Print one rule of each op, or all examples of one."""
    names = spellings()
    if args.op is None:
        found = [_facts(op, samples[0], names) for op in REGISTRY.values() if (samples := _samples(op))]
    else:
        op = _find(args.op, names)
        if isinstance(op.factors, No):
            raise MeshwrightError(f"{op.name} has no factor rule.", why=op.factors.reason)
        found = [_facts(op, sample, names) for sample in _samples(op)]
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    if args.op is None:
        width = max(len(entry["op"]) for entry in found)
        for entry in found:
            print(f"{entry['op']:<{width}}  {entry['rule']}")
        return 0
    print(", ".join([found[0]["op"], *found[0]["spellings"]]))
    for entry in found:
        params = " ".join(f"{name}={value}" for name, value in entry["params"].items())
        print(f"\n  {' '.join(entry['operands'])} -> {' '.join(entry['results'])}{'  ' if params else ''}{params}")
        print(f"  {entry['rule']}\n  {entry['sdy']}")
    return 0


def _find(name: str, names: dict[str, list[str]]) -> Op:
    if name in REGISTRY:
        return REGISTRY[name]
    for ours, theirs in names.items():
        if name in theirs or f"stablehlo.{name}" in theirs:
            return REGISTRY[ours]
    near = get_close_matches(name, [*REGISTRY, *(n for theirs in names.values() for n in theirs)], 1)
    raise MeshwrightError(
        f"There is no op {name!r}.",
        why="it is neither an op of meshwright nor one of StableHLO that it knows",
        fix=f"meshwright rules {near[0]}" if near else "meshwright rules",
    )


def _samples(op: Op) -> list[Sample]:
    return [] if isinstance(op.factors, No) else list(op.samples())


def _facts(op: Op, sample: Sample, names: dict[str, list[str]]) -> dict[str, Any]:
    default = FLOAT32 if FLOAT32 in op.dtypes else op.dtypes[0]
    operands = [TensorType(o.shape, default if o.dtype is None else o.dtype) for o in sample.operands]
    made = op.type(*operands, **sample.params)
    results = list(made) if isinstance(made, tuple) else [made]
    rule = op.factors(operands, results, sample.params)  # type: ignore[operator]
    return {
        "op": op.name,
        "spellings": names.get(op.name, []),
        "operands": [t.short() for t in operands],
        "results": [t.short() for t in results],
        "params": {name: str(value) for name, value in sample.params.items()},
        "rule": str(rule),
        "sdy": rule_text(rule),
    }
