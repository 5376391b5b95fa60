"""A train step of 336M parameters and calls of a small function on the first GPU, beside the same source under jax.jit.

python benchmarks/bench_gpu.py [--repeats 7] [--json] [--small] [--loops]

``--small`` takes a small model of the same form, on whatever JAX has. ``--loops`` needs no GPU, either: what the loops
of both steps keep for their derivatives and read and write slice by slice, in that model, as the XLA of this machine
compiles them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from typing import Any

from bench_xla import Case, calls, measured, steps
from timing import report

LARGE = {"vocab": 32000, "dim": 1024, "layers": 24, "heads": 16, "kv_heads": 16, "hidden": 2816, "scan": True}
SMALL = {"vocab": 512, "dim": 128, "layers": 6, "heads": 4, "kv_heads": 4, "hidden": 352, "scan": True}
ROWS = {"batch": 8, "length": 513}
FEW_ROWS = {"batch": 4, "length": 65}


def cases(name: str, config: dict[str, Any], rows: dict[str, int]) -> Iterator[Case]:
    for checkpoint in (True, False):
        yield (
            f"{name} step, checkpoint={checkpoint}",
            "gpu",
            *steps({**config, "checkpoint": checkpoint}, rows, "dp", 1),
        )
    yield from calls()


def lowered(checkpoint: bool) -> tuple[str, str]:
    """The small step of both sides as XLA has optimized it."""
    import jax
    from twins import load

    import meshwright as mw

    config = {**SMALL, "checkpoint": checkpoint}
    ours, theirs = load("transformer"), load("transformer", "jax")
    mine, yours = ours.Config(**config), theirs.Config(**config)
    shapes = jax.eval_shape(lambda key: theirs.init(key, yours), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((4, 65), "int32")
    like = lambda x: mw.ShapeDtypeStruct(x.shape, str(x.dtype))
    step = mw.jit(lambda p, b: ours.train_step(p, b, mine)).lower(jax.tree.map(like, shapes), like(tokens)).compile()
    found = jax.jit(mw.interop.jax.to_jax(step)).lower(shapes, tokens).compile().as_text()
    other = jax.jit(lambda p, b: theirs.train_step(p, b, yours)).lower(shapes, tokens).compile().as_text()
    return found, other


def loops(text: str) -> list[dict[str, Any]]:
    """Of each loop: the arrays with a row per layer that it carries, their bytes, and its slices."""
    bodies = dict(re.findall(r"^%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    found = []
    for carried, body in re.findall(r" = \((.*?)\) while\(.*?body=%?([\w.\-]+)", text):
        stacks = re.findall(rf"f32\[{SMALL['layers']},([\d,]+)\]", carried)
        whole = bodies[body] + "".join(bodies.get(name, "") for name in re.findall(r"calls=%?([\w.\-]+)", bodies[body]))
        size = 0
        for dims in stacks:
            count = SMALL["layers"] * 4
            for dim in dims.split(","):
                count *= int(dim)
            size += count
        reads, writes = (len(re.findall(rf" {op}\(", whole)) for op in ("dynamic-slice", "dynamic-update-slice"))
        found.append({"stacks": len(stacks), "bytes": size, "slices read": reads, "slices written": writes})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true", help="a small model, on whatever JAX has")
    parser.add_argument("--loops", action="store_true", help="what loops keep and move, without a GPU")
    args = parser.parse_args()
    import jax

    if args.loops:
        for checkpoint in (True, False):
            for name, text in zip(("meshwright", "jax"), lowered(checkpoint), strict=True):
                for which, found in zip(("forward", "backward"), loops(text), strict=True):
                    shown = ", ".join(f"{key} {value:,}" for key, value in found.items())
                    print(f"checkpoint={checkpoint!s:5}  {name:10}  {which:8}  {shown}")
        return 0
    if jax.default_backend() != "gpu" and not args.small:
        print(f"not measured: JAX has no GPU here, but {jax.devices()[0]}; --small and --loops need none")
        return 0
    chosen = cases("small", SMALL, FEW_ROWS) if args.small else cases("336M", LARGE, ROWS)
    rows = measured(chosen, args.repeats)
    return report(rows, as_json=args.json, peer="jax", version=jax.__version__, device=str(jax.devices()[0]))


if __name__ == "__main__":
    sys.exit(main())
