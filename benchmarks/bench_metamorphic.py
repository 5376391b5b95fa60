"""How long rewritten programs compile beside the first: an axis in two or three that are used together, axes renamed or
permuted, arguments permuted, twice the sizes.

Each compile runs in a process of its own, forked from one in which the same program has been compiled on one device, so
that neither finds the plans of the other. What is timed is lowering and compiling.

python benchmarks/bench_metamorphic.py [--programs 20] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

from timing import Measured, Row, report, row

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from tests.partition.metamorphic import Case, doubled, model_case, permuted_arguments, random_case
from tests.partition.test_metamorphic import RELATIONS

BAR = 1.5
MODELS = [("mlp", "fully sharded and tensor parallel"), ("transformer", "tensor parallel")]
MESH = {"data": 8, "model": 4}
Rewritten = Callable[[Case, int], Case]


def alone(case: Case) -> Case:
    """The case on one device."""
    return Case(case.function, case.arguments, dict.fromkeys(case.mesh, 1), case.outs, case.parts, case.order)


def compile_seconds(case: Case) -> float:
    """The seconds in which a process of its own compiles a case."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        start = perf_counter()
        case.compiled()
        os.write(writer, repr(perf_counter() - start).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as found:
        return float(found.read())


def measured(pairs: list[tuple[Case, Case]], rounds: int) -> Measured:
    """The medians of what all of the rewritten and all of the first cases take."""
    totals: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        taken = [(compile_seconds(other), compile_seconds(first)) for first, other in pairs]
        for total, found in zip(totals, zip(*taken, strict=True), strict=True):
            total.append(sum(found))
    return Measured(median(totals[0]), median(totals[1]))


def rows(programs: int, rounds: int) -> list[Row]:
    relations: dict[str, Rewritten] = {**RELATIONS, "twice the size": lambda case, seed: doubled(case)}
    cases = [random_case(seed) for seed in range(programs)]
    for case in cases:
        alone(case).compiled()
    found = []
    for name, rewritten in relations.items():
        pairs = [(case, rewritten(case, seed)) for seed, case in enumerate(cases)]
        found.append(row(f"{programs} random programs, {name}", measured(pairs, rounds), BAR))
    for model, layout in MODELS:
        case = model_case(model, layout, MESH)
        alone(case).compiled()
        for name, rewritten in RELATIONS.items():
            other = permuted_arguments(case, 1) if rewritten is permuted_arguments else rewritten(case, 1)
            found.append(row(f"{model}, {layout}, {name}", measured([(case, other)], rounds), BAR))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return report(rows(options.programs, options.rounds), as_json=options.json, peer="as it was")


if __name__ == "__main__":
    raise SystemExit(main())
