"""shard_map with all devices in one process, in units of JAX on 8 fake CPU devices; products of bf16, which are
computed in f32, in units of those of f32.

python benchmarks/bench_shard_map.py [--repeats 7] [--json]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from timing import Row, compare, report, row

import meshwright as mw
import meshwright.numpy as mnp

LAYERS = 4
STEP_BAR, SMALL_STEP_BAR, COLLECTIVE_BAR, NARROW_BAR = 1.0, 0.2, 0.5, 1.25


def mlp_step(module: Any, np_: Any, mesh: Any) -> Callable[..., Any]:
    """A train step of an MLP with each layer split over the axis model, and the batch over the axis data."""
    lax, spec = module.lax, module.P
    specs = [{"up": spec(None, "model"), "down": spec("model", None)}] * LAYERS

    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in params:
            x = x + lax.psum(np_.tanh(x @ layer["up"]) @ layer["down"], "model")
        return lax.pmean(np_.mean((x - y) ** 2), "data")

    mapped = module.shard_map(loss, mesh=mesh, in_specs=(specs, spec("data"), spec("data")), out_specs=spec())

    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = module.value_and_grad(mapped)(params, x, y)
        return value, [{k: w - 0.01 * g[k] for k, w in p.items()} for p, g in zip(params, grads, strict=True)]

    return module.jit(step)  # type: ignore[no-any-return]


def steps(dim: int, hidden: int, batch: int, bar: float, repeats: int) -> Row:
    rng = np.random.default_rng(0)
    draw = lambda *shape: (rng.normal(size=shape) * 0.05).astype(np.float32)
    params = [{"up": draw(dim, hidden), "down": draw(hidden, dim)} for _ in range(LAYERS)]
    x, y = draw(batch, dim), draw(batch, dim)
    auto = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(auto, auto))
    ours = mlp_step(mw, mnp, mw.make_mesh((2, 4), ("data", "model")))
    theirs = mlp_step(jax, jnp, mesh)
    mine = mw.tree.map(mnp.asarray, (params, x, y))
    place = lambda a, spec: jax.device_put(a, jax.NamedSharding(mesh, spec))
    split = {"up": jax.P(None, "model"), "down": jax.P("model", None)}
    others = (
        [{k: place(w, split[k]) for k, w in p.items()} for p in params],
        place(x, jax.P("data")),
        place(y, jax.P("data")),
    )
    np.testing.assert_allclose(float(ours(*mine)[0]), float(theirs(*others)[0]), rtol=1e-4)
    measured = compare(lambda: ours(*mine), lambda: jax.block_until_ready(theirs(*others)), repeats)
    return row(f"Megatron MLP train step, D={dim}, F={hidden}, batch {batch}, mesh (2,4)", measured, bar)


COLLECTIVES: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "psum": lambda lax: lambda x: lax.psum(x, "i"),
    "all_gather": lambda lax: lambda x: lax.all_gather(x, "i", tiled=True),
    "psum_scatter": lambda lax: lambda x: lax.psum_scatter(x, "i", tiled=True),
    "all_to_all": lambda lax: lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
}


def collectives(repeats: int) -> Iterator[Row]:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    my_mesh = mw.make_mesh((8,), ("i",))
    for name, function in COLLECTIVES.items():
        out = "" if name == "psum" else "i"
        ours = mw.jit(mw.shard_map(function(mw.lax), mesh=my_mesh, in_specs=mw.P("i"), out_specs=mw.P(*out)))
        theirs = jax.jit(jax.shard_map(function(jax.lax), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P(*out)))
        for size, label in ((2**10, "1 KB"), (2**20, "1 MB"), (2**24, "16 MB")):
            x = np.random.default_rng(0).normal(size=(8 * (size // 4),)).astype(np.float32)
            mine, other = mnp.asarray(x), jax.device_put(x, jax.NamedSharding(mesh, jax.P("i")))
            np.testing.assert_allclose(np.asarray(ours(mine)), np.asarray(theirs(other)), rtol=1e-3, atol=1e-3)
            measured = compare(
                lambda f=ours, x=mine: f(x),  # type: ignore[misc]
                lambda f=theirs, x=other: jax.block_until_ready(f(x)),  # type: ignore[misc]
                repeats,
            )
            yield row(f"{name} of {label} per device, 8 devices", measured, COLLECTIVE_BAR)


def narrow_products(repeats: int) -> Iterator[Row]:
    multiply = mw.jit(lambda x, y: x @ y)
    for shape in ((512, 512, 512), (2048, 512, 2048)):
        rng = np.random.default_rng(0)
        x, y = (rng.normal(size=size).astype(np.float32) for size in (shape[:2], shape[1:]))
        narrow, wide = ([mnp.asarray(a, dtype=dtype) for a in (x, y)] for dtype in ("bfloat16", "float32"))
        other = np.asarray(jax.jit(jnp.matmul)(*(jnp.asarray(a, jnp.bfloat16) for a in (x, y))), np.float32)
        np.testing.assert_allclose(np.asarray(multiply(*narrow)).astype(np.float32), other, rtol=2**-7, atol=0.1)
        measured = compare(lambda a=narrow: multiply(*a), lambda a=wide: multiply(*a), repeats)  # type: ignore[misc]
        yield row(f"product of bf16 {shape}, beside f32", measured, NARROW_BAR)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each side")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rows = [
        steps(512, 2048, 256, STEP_BAR, options.repeats),
        steps(16, 64, 16, SMALL_STEP_BAR, options.repeats),
        *narrow_products(options.repeats),
        *collectives(options.repeats),
    ]
    return report(rows, as_json=options.json, repeats=options.repeats)


if __name__ == "__main__":
    sys.exit(main())
