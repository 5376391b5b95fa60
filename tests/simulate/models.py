"""Programs to simulate: the examples' train steps, and layers of a transformer written with shard_map."""

from __future__ import annotations

import pathlib
import sys
from functools import cache
from typing import Any

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, Program, lax

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

from twins import load

BF16 = "bfloat16"


def struct(*shape: int, dtype: Any = BF16) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype)


def example(name: str, batch: dict[str, int] | None = None, **config: Any) -> tuple[Program, Any]:
    """The train step of an example, and its arguments."""
    module = load(name, "meshwright")
    settings = module.Config(**config)
    params = module.init(mw.random.key(0), settings)
    rows = module.make_batch(mw.random.key(1), settings, **(batch or {}))
    program = mw.make_program(lambda p, b: module.train_step(p, b, settings))(params, rows)
    return program, (params, rows)


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return lax.psum(mw.nn.silu(x @ w1) @ w2, "model")


@cache
def megatron(data: int = 2, model: int = 4, rows: int = 2048, width: int = 1024, hidden: int = 4096) -> Program:
    """A tensor-parallel MLP: one sum along "model"."""
    mesh = mw.AbstractMesh((data, model), ("data", "model"))
    specs = (P("data", None), P(None, "model"), P("model", None))
    mapped = mw.shard_map(mlp, mesh=mesh, in_specs=specs, out_specs=P("data", None))
    return mw.make_program(mapped)(struct(data * rows, width), struct(width, hidden), struct(hidden, width))


@cache
def fsdp(devices: int = 8, rows: int = 1024, width: int = 1024, layers: int = 8, scan: bool = True) -> Program:
    """Layers whose matrices are gathered where they are used; the loss's gradient scatters them back."""
    mesh = mw.AbstractMesh((devices,), ("data",))

    def loss(w: Any, x: Any) -> Any:
        @mw.checkpoint
        def layer(x: Any, part: Any) -> Any:
            return mnp.tanh(x @ lax.all_gather(part, "data", axis=0, tiled=True))

        if scan:
            x, _ = lax.scan(lambda x, part: (layer(x, part), None), x, w)
        else:
            for n in range(layers):
                x = layer(x, w[n])
        return lax.pmean(mnp.mean(x.astype(mnp.float32) ** 2), "data")

    specs = (P(None, "data", None), P("data", None))
    mapped = mw.shard_map(mw.grad(loss), mesh=mesh, in_specs=specs, out_specs=specs[0])
    return mw.make_program(mapped)(struct(layers, width, width), struct(devices * rows, width))
