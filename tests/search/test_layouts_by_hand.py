"""`find_layout` of the examples against the layouts that people write: of all of these, none is faster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from examples import convnet, gpt, mlp, moe, transformer

import meshwright as mw
from meshwright import NamedSharding, P
from meshwright.arrays.tracing import eval_shape
from meshwright.core import tree

EXAMPLES: dict[str, Any] = {"mlp": mlp, "moe": moe, "convnet": convnet, "transformer": transformer, "gpt": gpt}

# For each example its sizes and batch, and the dims that tensor parallelism splits over `model`: from the last, by the
# name of a parameter. Experts are split where there are any.
STEPS: dict[str, tuple[str, dict[str, Any], int, dict[str, int]]] = {
    "mlp": ("mlp", {"inputs": 512, "dim": 2048, "outputs": 512}, 8192, {"w": 1, "b": 1, "last": 2}),
    "small mlp": ("mlp", {"inputs": 256, "dim": 1024, "layers": 1, "outputs": 256}, 4096, {"w": 1, "b": 1, "last": 2}),
    "wide mlp": (
        "mlp",
        {"inputs": 4096, "dim": 16384, "outputs": 4096, "layers": 2},
        1024,
        {"w": 1, "b": 1, "last": 2},
    ),
    "scanned mlp": ("mlp", {"inputs": 512, "dim": 4096, "layers": 8, "outputs": 512, "scan": True}, 8192, {"w": 1}),
    "moe": (
        "moe",
        {"dim": 1024, "hidden": 4096, "experts": 64, "capacity": 1024},
        32768,
        {"up": 3, "down": 3},
    ),
    "convnet": ("convnet", {"channels": 256, "layers": 4, "classes": 1024, "size": 56}, 256, {"w": 1, "head": 2}),
    "transformer": (
        "transformer",
        {"vocab": 32768, "dim": 2048, "heads": 16, "kv_heads": 8, "hidden": 8192},
        64,
        {"wq": 2, "wk": 2, "wv": 2, "wo": 3, "gate": 1, "up": 1, "down": 2, "embed": 2},
    ),
    "gpt": (
        "gpt",
        {"vocab": 50304, "length": 1024, "dim": 768, "layers": 12, "heads": 12, "dtype": "bfloat16"},
        64,
        {"qkv": 2, "qkv_bias": 2, "out": 3, "up": 1, "up_bias": 1, "down": 2, "embed": 2},
    ),
}


def made(name: str) -> tuple[Any, Any, Any, dict[str, int]]:
    """A step, its arguments' shapes, and what tensor parallelism splits."""
    file, sizes, rows, split = STEPS[name]
    module = EXAMPLES[file]
    config = module.Config(**sizes)
    more = {"length": 1024} if file == "transformer" else {}
    params = eval_shape(lambda key: module.init(key, config), mw.random.key(0))
    batch = eval_shape(lambda key: module.make_batch(key, config, rows, **more), mw.random.key(0))
    return partial(module.train_step, config=config), params, batch, split


def by_hand(params: Any, batch: Any, split: dict[str, int], chips: int, model: int) -> Iterator[tuple[str, Any, Any]]:
    """Data parallel, FSDP, tensor parallel, FSDP and tensor parallel, and rows of a batch split further: shardings of
    parameters and of a batch."""
    mesh = mw.make_mesh((chips // model, model), ("data", "model"))
    names = tree.path_names(params)
    leaves, structure = tree.flatten(params)

    def spec(name: str, shape: tuple[int, ...], fsdp: tuple[str, ...], tensor: tuple[str, ...]) -> P:
        entries: list[Any] = [None] * len(shape)
        word = name.rsplit("'", 2)[-2] if "'" in name else name
        if tensor and word in split and shape[-split[word]] % mesh.size == 0:
            entries[-split[word]] = tensor
        free = [d for d, size in enumerate(shape) if entries[d] is None and size % mesh.size == 0]
        if fsdp and len(shape) > 1 and free:
            entries[max(free, key=lambda d: shape[d])] = fsdp
        return P(*entries)

    def placed(fsdp: tuple[str, ...], tensor: tuple[str, ...], rows: tuple[str, ...], second: str | None) -> Any:
        given = [NamedSharding(mesh, spec(n, x.shape, fsdp, tensor)) for n, x in zip(names, leaves, strict=True)]

        def batch_spec(x: Any) -> P:
            divides = len(x.shape) > 1 and second is not None and x.shape[1] % model == 0
            return P(rows or None, second) if divides else P(rows or None)

        return (
            tree.unflatten(structure, given),
            tree.map(lambda x: NamedSharding(mesh, batch_spec(x)), batch),
        )

    both = ("data", "model")
    yield "data parallel", *placed((), (), both, None)
    yield "FSDP", *placed(both, (), both, None)
    yield "tensor parallel", *placed((), both, (), None)
    yield "data and tensor parallel", *placed((), ("model",), ("data",), None)
    yield "FSDP and tensor parallel", *placed(("data",), ("model",), ("data",), None)
    yield "FSDP, tensor parallel on split rows", *placed(("data",), ("model",), both, None)
    yield "sequence parallel", *placed((), ("model",), ("data",), "model")


def check(name: str, machine: str, models: tuple[int, ...] = (2, 4, 8)) -> None:
    step, params, batch, split = made(name)
    topology = mw.hardware.Topology(*machine.rsplit(" ", 1))
    found = mw.find_layout(step, params, batch, topology=topology)
    worse = []
    for model in models:
        if topology.size % model == 0 and topology.size > model:
            for kind, given, rows in by_hand(params, batch, split, topology.size, model):
                laid = mw.jit(step, in_shardings=(given, rows), out_shardings=(None, given), donate_argnums=(0,))
                sizes = {"data": topology.size // model, "model": model}
                on = mw.hardware.Topology(topology.chip, topology.shape, mesh=sizes)
                simulated = mw.simulate(laid.lower(params, batch).compile(), on)
                if simulated.fits and simulated.seconds < found.best.seconds * (1 - 1e-9):
                    worse.append(f"{kind}, model={model}: {simulated.seconds:.6f} against {found.best.seconds:.6f}")
    assert not worse, f"{name} on {machine}: {worse}\n{found.table()}"
    assert found.bound_seconds <= found.best.seconds


def test_no_layout_written_by_hand_is_faster_for_a_small_step() -> None:
    check("small mlp", "h100 4", models=(2,))


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h100 8", "h100 16", "h100 64", "a100 16", "tpu v5e 4x4", "tpu v5p 4x4x4"])
@pytest.mark.parametrize("name", STEPS)
def test_no_layout_written_by_hand_is_faster(name: str, machine: str) -> None:
    check(name, machine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h100 64", "a100 16"])
def test_tokens_are_sent_to_experts_where_a_router_says_to_which(machine: str) -> None:
    step, params, batch, _ = made("moe")
    best = mw.find_layout(step, params, batch, topology=machine).best
    parts = {name: best.in_shardings[0][name].to_tensor_sharding(4).shards for name in ("up", "down")}
    assert parts == dict.fromkeys(("up", "down"), (1, best.mesh.size, 1, 1))
