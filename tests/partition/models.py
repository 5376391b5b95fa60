"""The example models and the layouts they are trained in: of parameters by name, of the batch, and of activations."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import meshwright as mw
from meshwright import P

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
from twins import load

__all__ = ["LAYOUTS", "MESH", "MODELS", "USUAL", "Layout", "Setting", "by_name", "constrain", "load", "setting"]

Spec = tuple[Any, ...]
Prepare = Callable[[ModuleType, Any], None]  # changes a model, on Meshwright or JAX, for a mesh
AXES = ("data", "model")
MESH = mw.make_mesh((2, 2), AXES)
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "convnet": {},
    "moe": {},
    "transformer": {},
    "transformer, scanned": {"scan": True},
    "transformer, scanned and recomputed": {"scan": True, "checkpoint": True},
}

# Columns of what comes first and rows of what comes second: between them activations are split and nothing is sent.
TENSOR: dict[str, dict[str, Spec]] = {
    "mlp": {"first": (None, "model"), "w": (None, "model"), "last": ("model",)},
    "convnet": {
        "stem": (None, None, None, "model"),
        "w": (None, None, None, None, "model"),
        "scale": (None, "model"),
        "head": ("model",),
    },
    "moe": {"up": (None, None, None, "model"), "down": (None, None, "model")},
    "transformer": {
        "wq": (None, None, "model"),
        "wk": (None, None, "model"),
        "wv": (None, None, "model"),
        "wo": (None, "model"),
        "gate": (None, None, "model"),
        "up": (None, None, "model"),
        "down": (None, "model"),
    },
}
EXPERTS: dict[str, dict[str, Spec]] = {"moe": {"up": (None, AXES), "down": (None, AXES)}}


def constrain(x: Any, mesh: Any, *spec: Any) -> Any:
    """A value in a layout, under Meshwright or JAX."""
    if isinstance(mesh, mw.Mesh):
        return mw.lax.with_sharding_constraint(x, mw.NamedSharding(mesh, P(*spec)))
    import jax

    return jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P(*spec)))


def split_batch(module: ModuleType, mesh: Any) -> None:
    """Activations stay split over the batch, wherever parameters are."""
    name = "hidden_layer" if hasattr(module, "hidden_layer") else "block"
    layer = getattr(module, name)

    def constrained(x: Any, *args: Any, **config: Any) -> Any:
        return constrain(layer(constrain(x, mesh, "data"), *args, **config), mesh, "data")

    setattr(module, name, constrained)


def split_sequence(module: ModuleType, mesh: Any) -> None:
    """Between products the sequence is split over the axis that the products are split over."""
    whole = lambda x: constrain(x, mesh, "data")
    split = lambda x: constrain(x, mesh, "data", "model")

    def block(x: Any, layer: Any, config: Any) -> Any:
        x = split(x + module.attention(layer, whole(module.rms_norm(x, layer["attention_norm"])), config))
        y = whole(module.rms_norm(x, layer["mlp_norm"]))
        return split(x + (module.mw.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"])

    module.block = block  # type: ignore[attr-defined]


class Layout(NamedTuple):
    """How a model is trained on a mesh of the axes ``data`` and ``model``."""

    tensor: Mapping[str, Mapping[str, Spec]] = MappingProxyType({})
    fully: bool = False  # whether parameters are split over data besides
    batch: Any = "data"
    prepare: Prepare | None = None

    def spec(self, model: str, name: str, shape: tuple[int, ...], parts: int = 2) -> Spec:
        """The layout of a parameter."""
        spec = list(self.tensor.get(model, {}).get(name, ()))
        spec += [None] * (len(shape) - len(spec))
        stacked = name not in ("first", "last", "stem", "head", "embed", "norm")
        for dim in reversed(range(int(stacked), len(shape))):
            if self.fully and spec[dim] is None and shape[dim] % parts == 0:
                spec[dim] = "data"
                break
        return tuple(spec)


LAYOUTS = {
    "data parallel": Layout(),
    "tensor parallel": Layout(TENSOR),
    "fully sharded": Layout(fully=True),
    "fully sharded, activations by batch": Layout(fully=True, prepare=split_batch),
    "fully sharded and tensor parallel": Layout(TENSOR, fully=True),
    "sequence parallel": Layout(TENSOR, prepare=split_sequence),
    "expert parallel": Layout(EXPERTS, batch=AXES),
}


def by_name(f: Callable[[str, Any], Any], params: Any, name: str = "") -> Any:
    """A function of each parameter and its name."""
    if isinstance(params, dict):
        return {key: by_name(f, value, key) for key, value in params.items()}
    if isinstance(params, list):
        return [by_name(f, value, name) for value in params]
    return f(name, params)


USUAL = ("data parallel", "tensor parallel", "fully sharded", "fully sharded and tensor parallel")  # of every model


class Setting(NamedTuple):
    """A model made ready for a layout, its parameters and a batch, on one device and on the mesh."""

    module: ModuleType
    config: Any
    params: Any
    batch: Any
    placed: Any
    split: Any

    @property
    def step(self) -> Any:
        """A train step that leaves parameters where they are."""
        shardings = mw.tree.map(lambda x: x.sharding, self.placed)
        return mw.jit(self.module.train_step, static_argnames="config", out_shardings=(None, shardings))


def setting(name: str, layout: str) -> Setting:
    """A model in a layout."""
    model, chosen = name.split(",")[0], LAYOUTS[layout]
    module = load(model)
    if chosen.prepare is not None:
        chosen.prepare(module, MESH)
    config = module.Config(**MODELS[name])
    params = module.init(mw.random.key(0), config)
    tokens = {"length": 17} if chosen.prepare is split_sequence else {}  # 16 of them, and those after them
    batch = module.make_batch(mw.random.key(1), config, **tokens)

    def place(name: str, x: Any) -> Any:
        return mw.device_put(x, mw.NamedSharding(MESH, P(*chosen.spec(model, name, x.shape))))

    split = mw.tree.map(lambda x: mw.device_put(x, mw.NamedSharding(MESH, P(chosen.batch))), batch)
    return Setting(module, config, params, batch, by_name(place, params), split)
