"""Which collectives the usual layouts of the example models lead to, and how many bytes beside XLA's program."""

from __future__ import annotations

import pathlib
import sys
from collections import Counter
from typing import Any

import jax
import pytest

import meshwright as mw
from tests.partition.models import LAYOUTS, by_name, load

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
from hlo_bytes import moved_bytes

SHAPE, AXES = (2, 4), ("data", "model")
LAYERS = 2
CONFIGS: dict[str, dict[str, Any]] = {
    "transformer": {"vocab": 512, "dim": 256, "layers": LAYERS, "heads": 8, "kv_heads": 8, "hidden": 1024},
    "moe": {"dim": 64, "hidden": 256, "experts": 8, "capacity": 64, "layers": LAYERS},
    "mlp": {"inputs": 64, "dim": 256, "layers": LAYERS, "outputs": 64},
}


def compiled(package: Any, model: str, layout: str, **batch: int) -> Any:
    """A train step, compiled by Meshwright or by JAX."""
    ours, chosen = package is mw, LAYOUTS[layout]
    module = load(model, "meshwright" if ours else "jax")
    if ours:
        mesh = mw.make_mesh(SHAPE, AXES)
        named = lambda *spec: mw.NamedSharding(mesh, mw.P(*spec))
    else:
        mesh = jax.make_mesh(SHAPE, AXES, axis_types=(jax.sharding.AxisType.Auto,) * 2)
        named = lambda *spec: jax.NamedSharding(mesh, jax.P(*spec))
    if chosen.prepare is not None:
        chosen.prepare(module, mesh)
    config = module.Config(**CONFIGS[model])
    struct = lambda x, *spec: package.ShapeDtypeStruct(x.shape, x.dtype, sharding=named(*spec))
    shapes = package.eval_shape(lambda key: module.init(key, config), package.random.key(0))
    params = by_name(lambda name, x: struct(x, *chosen.spec(model, name, x.shape)), shapes)
    data = package.eval_shape(lambda key: module.make_batch(key, config, **batch), package.random.key(0))
    data = package.tree.map(lambda x: struct(x, chosen.batch), data)
    results = package.tree.map(lambda x: x.sharding, params)
    step = package.jit(module.train_step, static_argnames="config", out_shardings=(None, results))
    return step.lower(params, data, config=config).compile()


def kinds(found: Any) -> dict[tuple[str, tuple[str, ...]], int]:
    """How many collectives there are of each kind over which axes, scalars aside."""
    counted = Counter[tuple[str, tuple[str, ...]]]()
    for one in found.collectives:
        if any(t.ndim for t in one.values):
            counted[one.kind, one.axes] += one.times
    return dict(counted)


def test_data_parallel_takes_all_gradients_in_one_sum() -> None:
    found = compiled(mw, "transformer", "data parallel", batch=8, length=129)
    assert kinds(found) == {("all_reduce", ("data",)): 1}
    assert len(found.collectives) == 1  # the loss is among them


@pytest.mark.parametrize("length", [2, 65, 300])
def test_data_parallel_moves_no_more_than_gradients_however_few_rows_there_are(length: int) -> None:
    found = compiled(mw, "transformer", "data parallel", batch=2, length=length)
    module = load("transformer", "meshwright")
    params = mw.eval_shape(lambda key: module.init(key, module.Config(**CONFIGS["transformer"])), mw.random.key(0))
    sums = sum(x.size for x in mw.tree.leaves(params)) + 1
    assert sum(one.bytes_received_per_device * one.times for one in found.collectives) <= sums * 4  # of two devices


def test_tensor_parallel_sums_twice_per_layer_each_way() -> None:
    found = compiled(mw, "transformer", "tensor parallel", batch=8, length=129)
    assert kinds(found) == {("all_reduce", ("model",)): 4 * LAYERS, ("all_reduce", ("data",)): 1}


def test_fully_sharded_gathers_each_parameter_and_scatters_its_gradient() -> None:
    found = compiled(mw, "transformer", "fully sharded, activations by batch", batch=32, length=129)
    params = 9 * LAYERS + 2  # those of each layer, the embedding, and the last norm
    assert kinds(found) == {
        ("all_gather", ("data",)): params + 1,  # the embedding as a table, and turned round for the logits
        ("reduce_scatter", ("data",)): params,
    }


def test_an_axis_that_nothing_is_split_over_makes_nothing_worse() -> None:
    """Fully sharded over 16 devices, and over 16 × 8 of which nobody uses the 8."""
    module = load("transformer", "meshwright")
    config = module.Config(**CONFIGS["transformer"])
    shapes = mw.eval_shape(lambda key: module.init(key, config), mw.random.key(0))

    def received(mesh: mw.sharding.Mesh) -> int:
        named = lambda *spec: mw.NamedSharding(mesh, mw.P(*spec))
        split = lambda name, x: mw.P(*[None] * (x.ndim - 2), "data") if x.ndim > 1 else mw.P()
        params = by_name(lambda name, x: mw.ShapeDtypeStruct(x.shape, x.dtype, sharding=named(*split(name, x))), shapes)
        batch = mw.ShapeDtypeStruct((64, 129), "int32", sharding=named("data"))
        results = mw.tree.map(lambda x: x.sharding, params)
        step = mw.jit(module.train_step, static_argnames="config", out_shardings=(None, results))
        found = step.lower(params, batch, config=config).compile().collectives
        assert not [one for one in found if any(":(" in axis for axis in one.axes)]
        return sum(one.bytes_received_per_device * one.times for one in found)

    alone, beside = (received(mw.make_mesh(*mesh)) for mesh in (((16,), ("data",)), ((16, 8), ("data", "idle"))))
    assert beside <= alone


def test_axes_that_are_used_together_are_as_one() -> None:
    """Parameters and batch are split over one axis of 32, or over three that make up as many."""

    def received(sizes: tuple[int, ...], names: tuple[str, ...], data: tuple[str, ...]) -> list[tuple[str, int, int]]:
        mesh = mw.make_mesh(sizes, names)
        placed = lambda shape, *spec: mw.ShapeDtypeStruct(
            shape, "float32", sharding=mw.NamedSharding(mesh, mw.P(*spec))
        )
        weights = [placed((256, 1024), data, "t"), placed((1024, 256), "t", data)] * 4

        def loss(weights: Any, x: Any) -> Any:
            for one, other in zip(weights[::2], weights[1::2], strict=True):
                x = x + mw.nn.relu(x @ one) @ other
            return (x * x).mean()

        step = mw.jit(mw.grad(loss), out_shardings=[w.sharding for w in weights])
        found = step.lower(weights, placed((512, 16, 256), data)).compile().collectives
        return [(one.kind, one.bytes_received_per_device, one.times) for one in found]

    one = received((32, 8), ("d", "t"), ("d",))
    assert received((2, 4, 4, 8), ("p", "q", "r", "t"), ("p", "q", "r")) == one
    assert received((4, 8, 8), ("p", "q", "t"), ("p", "q")) == one


def test_sequence_parallel_gathers_and_scatters_where_tensor_parallel_sums() -> None:
    found = compiled(mw, "transformer", "sequence parallel", batch=2, length=129)
    activations = [
        one.kind for one in found.collectives if one.axes == ("model",) and one.values[0].shape == (2, 128, 256)
    ]
    each_way = ["all_gather", "reduce_scatter"] * 2 * LAYERS
    assert activations == [*each_way, "all_gather", *each_way]  # between them the gradient of the embedding
    assert ("all_reduce", ("model",)) not in kinds(found)


def test_expert_parallel_sends_tokens_to_experts() -> None:
    found = compiled(mw, "moe", "expert parallel", batch=128)
    weights = {(8, 64, 256), (8, 256, 64), (1, 8, 64, 256), (1, 8, 256, 64)}
    assert not [one for one in found.collectives if any(t.shape[-4:] in weights for t in one.values)]
    assert kinds(found) == {
        ("all_gather", AXES): 2 * LAYERS,  # how many tokens each device has for each expert, and their places
        ("all_to_all", AXES): 7 * LAYERS,
        ("all_reduce", AXES): 2,
    }


MODELS_AND_LAYOUTS = [
    ("transformer", "data parallel", {"batch": 8, "length": 129}),
    ("transformer", "tensor parallel", {"batch": 8, "length": 129}),
    ("transformer", "fully sharded", {"batch": 32, "length": 129}),
    ("transformer", "fully sharded, activations by batch", {"batch": 32, "length": 129}),
    ("transformer", "fully sharded and tensor parallel", {"batch": 8, "length": 129}),
    ("transformer", "sequence parallel", {"batch": 2, "length": 129}),
    ("transformer", "sequence parallel", {"batch": 8, "length": 129}),
    ("moe", "tensor parallel", {"batch": 128}),
    ("moe", "expert parallel", {"batch": 128}),
    ("mlp", "tensor parallel", {"batch": 64}),
    ("mlp", "fully sharded and tensor parallel", {"batch": 64}),
]


@pytest.mark.slow
@pytest.mark.parametrize("model, layout, batch", MODELS_AND_LAYOUTS)
def test_no_more_bytes_than_xla(model: str, layout: str, batch: dict[str, int]) -> None:
    ours = sum(one.total_bytes * one.times for one in compiled(mw, model, layout, **batch).collectives)
    theirs, _ = moved_bytes(compiled(jax, model, layout, **batch).as_text(), SHAPE[0] * SHAPE[1])
    assert ours <= theirs
