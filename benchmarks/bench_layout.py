"""`find_layout`: how long it looks, how far from the bound and from layouts written by hand what it finds is.

python benchmarks/bench_layout.py [--json] [WORD …]   (the rows whose names have one of these)

The peer is a number: AutoParallel's 51 s for a decoder of 8B on 64 chips, as its authors report.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from functools import partial
from time import perf_counter
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
AUTOPARALLEL_SECONDS = 51.0
BAR_SECONDS = 10.0
EIGHT = {"dim": 4096, "heads": 32, "kv_heads": 8, "hidden": 14336, "layers": 32}


def by_hand(step: Any, state: Any, batch: Any, chips: int, kind: str) -> float:
    """The simulated seconds with a batch in parts, and parameters whole, in parts along the last dim that can be
    (FSDP), or experts, which are arrays of four dims, in parts."""
    import meshwright as mw

    mesh = mw.make_mesh((chips,), ("data",))

    def sharding(x: Any, dims: Any) -> Any:
        dim = next((d for d in dims if x.shape[d] % chips == 0), None)
        return mw.NamedSharding(mesh, mw.P(*("data" if d == dim else None for d in range(len(x.shape)))))

    def split(x: Any) -> tuple[int, ...]:
        by_kind = {"split batch": (), "FSDP": range(len(x.shape))[::-1], "experts": (1,) * (len(x.shape) == 4)}
        return tuple(by_kind[kind])

    given = mw.tree.map(lambda x: sharding(x, split(x)), state)
    rows = mw.tree.map(lambda x: sharding(x, (0,)), batch)
    jitted = mw.jit(step, in_shardings=(given, rows), out_shardings=(None, given), donate_argnums=(0,))
    return mw.simulate(jitted.lower(state, batch).compile(), mw.hardware.Topology("h100", chips)).seconds


def measured(name: str, module: Any, config: dict[str, Any], rows: int) -> dict[str, Any]:
    import meshwright as mw

    settings = module.Config(**config)
    state = mw.eval_shape(lambda key: module.init(key, settings), mw.random.key(0))
    batch = mw.eval_shape(lambda key: module.make_batch(key, settings, batch=rows), mw.random.key(0))
    step = partial(module.train_step, config=settings)
    start = perf_counter()
    found = mw.find_layout(step, state, batch, topology="h100 64")
    took = perf_counter() - start
    experts = "up" in state and len(state["up"].shape) == 4
    kinds = ("split batch", "FSDP", "experts")[: 3 if experts else 2]
    row = {
        "name": name, "took_seconds": took, "ratio": took / AUTOPARALLEL_SECONDS, "seconds": found.best.seconds,
        "bound_seconds": found.bound_seconds, "mesh": dict(found.best.mesh.shape),
        "by_hand_seconds": {kind: by_hand(step, state, batch, 64, kind) for kind in kinds},
    }  # fmt: skip
    if experts:
        row["experts_in"] = found.best.in_shardings[0]["up"].to_tensor_sharding(4).shards[1]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    import decoder_step
    from twins import load

    gpt2 = {"vocab": 50304, "length": 1024, "dim": 768, "layers": 12, "heads": 12}
    moe = {"dim": 1024, "hidden": 4096, "experts": 64, "capacity": 320}  # 1.25 times two of 8,192 tokens' share
    rows = []
    for name, module, config, batch in (
        ("8B, 32 layers written out", decoder_step, EIGHT, 64),
        ("8B, 32 layers scanned", decoder_step, {**EIGHT, "scan": True}, 64),
        ("GPT-2", load("gpt"), gpt2, 512),
        ("MoE of 64 experts", load("moe"), moe, 8192),
    ):
        if args.words and not any(word in name for word in args.words):
            continue
        fields = module.Config.__dataclass_fields__
        row = measured(name, module, {k: v for k, v in config.items() if k in fields}, batch)
        rows.append(row)
        if not args.json:
            print(
                f"{name:28} {row['took_seconds']:5.1f} s, {row['ratio']:.2f} of AutoParallel's;  step"
                f" {row['seconds'] * 1e3:.4g} ms on {row['mesh']}, bound {row['bound_seconds'] * 1e3:.4g} ms"
                f" ({row['seconds'] / row['bound_seconds'] - 1:+.0%}), by hand "
                + ", ".join(f"{kind} {seconds * 1e3:.4g} ms" for kind, seconds in row["by_hand_seconds"].items())
                + (f"; experts in {row['experts_in']} parts" if "experts_in" in row else ""),
                flush=True,
            )
    if args.json:
        print(json.dumps(rows, indent=2))
    slower = [r for r in rows if r["seconds"] > 1.0001 * min(r["by_hand_seconds"].values())]
    return int(bool(slower) or any(r["took_seconds"] > BAR_SECONDS for r in rows if r["name"].startswith("8B")))


if __name__ == "__main__":
    sys.exit(main())
