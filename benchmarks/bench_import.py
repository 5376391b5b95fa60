"""How long ``import meshwright`` takes in a fresh interpreter, in units of ``import jax``.

python benchmarks/bench_import.py [--repeats 9] [--json]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory

from timing import Measured, report, row

BAR = 0.35

# Timed inside the interpreter, so that starting it (the same for both) does not count.
PROGRAM = """
from time import perf_counter
start = perf_counter()
import {module}
print(perf_counter() - start)
"""


def import_seconds(module: str, bytecode: str) -> float:
    """Seconds of importing ``module`` in a new interpreter, which keeps compiled files in the folder ``bytecode``."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return float(done.stdout)


def measure(repeats: int) -> Measured:
    """The medians of importing each in turn, after a round that only compiles both, as installing them does."""
    taken: dict[str, list[float]] = {"meshwright": [], "jax": []}
    with TemporaryDirectory() as bytecode:
        for turn in range(repeats + 1):
            for module in ("meshwright", "jax") if turn % 2 else ("jax", "meshwright"):
                elapsed = import_seconds(module, bytecode)
                if turn:
                    taken[module].append(elapsed)
    return Measured(median(taken["meshwright"]), median(taken["jax"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="interpreters started for each module")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    measured = measure(options.repeats)
    return report([row("import", measured, BAR)], as_json=options.json, repeats=options.repeats)


if __name__ == "__main__":
    sys.exit(main())
