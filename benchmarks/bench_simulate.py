"""Simulating a 32-layer transformer's train step on 8 to a million devices, in units of the time on 8.

python benchmarks/bench_simulate.py [--repeats 7] [--json]
"""

from __future__ import annotations

import argparse
import sys

from timing import Row, compare, report, row, show_time

import meshwright as mw
from meshwright.simulate.transformer import Strategy, TransformerShape, train_program

SHAPE = TransformerShape(layers=32, width=4096, hidden=11008, heads=32, head_dim=128, vocab=32000)
DATA = (2, 64, 2048, 125_000)  # 8 to 1,000,000 devices; on 8, tensor parallelism is 4 ways
LONGEST_SECONDS = 2.0


def program(data: int) -> mw.Program:
    tensor = 8 if data > 2 else 4
    return train_program(SHAPE, Strategy(data=data, tensor=tensor), data, 2048)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    programs = {data: program(data) for data in DATA}
    rows: list[Row] = []
    for data in DATA[1:]:
        measured = compare(
            lambda data=data: mw.simulate(programs[data], "h100"),  # type: ignore[misc]
            lambda: mw.simulate(programs[DATA[0]], "h100"),
            repeats=args.repeats,
        )
        rows.append(row(f"{8 * data:,} devices", measured, 1.1))
    worst = max(r.ours_seconds for r in rows)
    code = report(rows, as_json=args.json, peer="8 devices", longest_seconds=worst)
    if not args.json:
        print(f"the longest takes {show_time(worst)} of {show_time(LONGEST_SECONDS)}")
    return code or int(worst > LONGEST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
