"""Every hint is applied: the program then receives, takes and holds exactly as much less as was said."""

from __future__ import annotations

import pathlib
import random
import sys
from functools import partial
from typing import Any

import pytest

import meshwright as mw
from meshwright.core import tree
from meshwright.partition.combine import received
from meshwright.sharding.spec import PartitionSpec

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
from twins import load

MESH = mw.make_mesh((2, 4), ("data", "model"))


def compiled(name: str, specs: Any, machine: str) -> Any:
    """The train step of an example, its parameters laid out by ``specs(path, shape)``."""
    example = load(name)
    config = example.Config()
    params = mw.eval_shape(lambda: example.init(mw.random.key(0), config))
    batch = mw.eval_shape(lambda: example.make_batch(mw.random.key(1), config))

    def on(leaf: Any, spec: PartitionSpec) -> Any:
        return mw.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=mw.NamedSharding(MESH, spec))

    leaves, whole = tree.flatten((params, batch))
    names = [name + path for name, one in (("params", params), ("batch", batch)) for path in tree.path_names(one)]
    args = tree.unflatten(whole, [on(leaf, specs(name, leaf.shape)) for name, leaf in zip(names, leaves, strict=True)])
    step = mw.jit(lambda params, batch: example.train_step(params, batch, config), hardware=machine)
    return step.lower(*args).compile()


def _changed(specs: Any, applied: dict[str, PartitionSpec], path: str, shape: tuple[int, ...]) -> PartitionSpec:
    return applied[path] if path in applied else specs(path, shape)


def assert_hints_hold(name: str, specs: Any, machine: str) -> int:
    """Apply every hint for a layout; how many there were."""
    before = compiled(name, specs, machine)
    hints = before.explanation().cheaper()
    run = before.simulate(machine)
    for hint in hints:
        applied = dict.fromkeys(hint.arguments, hint.spec)
        after = compiled(name, partial(_changed, specs, applied), machine)
        now = after.simulate(machine)
        assert received(before.collectives) - received(after.collectives) == hint.saved_bytes, str(hint)
        assert run.seconds - now.seconds == pytest.approx(hint.saved_seconds, rel=1e-9, abs=1e-15), str(hint)
        assert run.peak_bytes_per_device - now.peak_bytes_per_device == hint.saved_memory, str(hint)
        assert str(hint) in before.explain()
    return len(hints)


def last_dim(path: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Everything that can be is split along its last dim."""
    fits = shape and shape[-1] % 4 == 0
    if path.startswith("batch"):
        return mw.P("data")
    return mw.P(*[None] * (len(shape) - 1), "model") if fits else mw.P()


def drawn(seed: int) -> Any:
    """Parameters laid out at random: those of one name but for numbers alike."""

    def specs(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        if path.startswith("batch"):
            return mw.P("data")
        numbers = random.Random(f"{seed} {''.join(c for c in path if not c.isdigit())} {shape}")
        dims: list[Any] = [None] * len(shape)
        for axis, size in numbers.sample([("data", 2), ("model", 4)], numbers.choice([0, 1, 1, 2])):
            fits = [n for n, d in enumerate(shape) if d % size == 0 and dims[n] is None]
            if fits:
                dims[numbers.choice(fits)] = axis
        return mw.P(*dims)

    return specs


@pytest.mark.parametrize("machine", ["h100"])
def test_hints_for_an_example_hold(machine: str) -> None:
    assert assert_hints_hold("mlp", last_dim, machine) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "transformer", "gpt", "convnet", "moe"])
def test_hints_for_every_example_hold(name: str) -> None:
    assert_hints_hold(name, last_dim, "tpu v5e")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_hints_for_random_layouts_hold(seed: int) -> None:
    assert_hints_hold(("mlp", "transformer")[seed % 2], drawn(seed), ("tpu v5e", "h100")[seed // 5])
