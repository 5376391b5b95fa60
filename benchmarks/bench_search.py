"""Searches: until the first answer, whole, and strategies per second.

python benchmarks/bench_search.py [--workers 2] [--chips 64 …] [--json]

A 70B decoder of 80 layers, as a user's own step (`decoder_step.py`, its layers written out and scanned) and by its
sizes, on 64 and 1,024 H100s; GPT-2, by its sizes and as the step of `examples/gpt.py` with these.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from functools import partial
from time import perf_counter
from typing import Any

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))
FIRST_SECONDS, WHOLE_SECONDS, RATE = 5.0, 60.0, 200.0  # bars


def steps(module: Any, settings: Any) -> Any:
    import meshwright as mw
    from meshwright import dist

    params = mw.eval_shape(lambda key: module.init(key, settings), mw.random.key(0))
    batch = mw.eval_shape(lambda key: module.make_batch(key, settings, batch=8), mw.random.key(0))
    return dist.traced(partial(module.train_step, config=settings), params, batch)


def searched(name: str, make: Any, chips: int, workers: int, batch: int, **options: Any) -> dict[str, Any]:
    """One search, from the trace on."""
    from meshwright import dist
    from meshwright.hardware import Topology

    first: list[float] = []
    start = perf_counter()
    found = dist.grid_search(
        make(), Topology("h100", chips), batch, workers=workers,
        better=lambda _: first.append(perf_counter() - start), **options,
    )  # fmt: skip
    whole = perf_counter() - start
    said = "nothing fits" if found.best is None else f"{found.best.strategy} {found.best.seconds:.3g} s"
    return {
        "name": name, "chips": chips, "first_seconds": first[0] if first else whole, "whole_seconds": whole,
        "strategies": found.considered, "per_second": found.considered / whole, "best": said,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chips", type=int, nargs="*", default=[64, 1024], help="machines for the 70B decoder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    import decoder_step
    from twins import load

    from meshwright import dist
    from meshwright.commands.models import read_model

    rows, gpt = [], load("gpt")
    for chips in args.chips:
        for name, make, options in (
            ("70B step, written out", partial(steps, decoder_step, decoder_step.Config()), {}),
            ("70B step, scanned", partial(steps, decoder_step, decoder_step.Config(scan=True)), {}),
            ("70B by its sizes", partial(read_model, "llama3-70b", 1024), {"sequence": 4096}),
        ):
            rows.append(searched(name, make, chips, args.workers, 1024, **options))
            if not args.json:
                show(rows[-1])
    for name, make in (
        ("GPT-2 by its sizes", partial(dist.GPT, 12, 768, 12)),
        ("GPT-2 step", partial(steps, gpt, gpt.model)),
    ):
        rows.append(searched(name, make, 64, 1, 512))
        if not args.json:
            show(rows[-1])
    if args.json:
        print(json.dumps(rows, indent=2))
    large = [r for r in rows if r["name"].startswith("70B")]
    late = [r for r in large if r["first_seconds"] > FIRST_SECONDS or r["whole_seconds"] > WHOLE_SECONDS]
    return int(bool(late) or any(r["per_second"] < RATE for r in rows[len(large) :]))


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['name']:24}{row['chips']:6} chips  first {row['first_seconds']:5.1f} s"
        f"  whole {row['whole_seconds']:5.1f} s"
        f"  {row['strategies']:6} strategies {row['per_second']:5.0f}/s  {row['best']}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
