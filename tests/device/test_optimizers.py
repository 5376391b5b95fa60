"""Optimizer steps of several weights under random stacks of transforms, against the same step in plain NumPy."""

import random
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

from meshwright import dist
from meshwright.errors import ShapeError
from tests.device.models import transformed

BATCH = {"x": 0, "z": 0}
RATES = {"SGDOptimizer": "lr=0.1", "AdamOptimizer": "lr=0.1, eps=0.001"}


class Step(NamedTuple):
    text: str
    inputs: dict[str, np.ndarray]
    expected: list[np.ndarray]


def random_step(seed: int, optimizer: str) -> Step:
    """A chain of matmuls, some with a bias or a relu, its gradients, and updates of any number of weights each."""
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    layers = choose.randint(1, 4)
    dims = [choose.choice([4, 8, 12]) for _ in range(layers + 1)]
    biased = [choose.random() < 0.5 for _ in range(layers)]
    rectified = [choose.random() < 0.5 for _ in range(layers)]
    inputs: dict[str, np.ndarray] = {}
    for n in range(layers):
        inputs[f"w{n}"] = rng.standard_normal((dims[n], dims[n + 1])) / dims[n] ** 0.5
        if biased[n]:
            inputs[f"b{n}"] = rng.standard_normal(dims[n + 1])
    weights = list(inputs)
    if optimizer == "AdamOptimizer":
        inputs |= {f"m_{w}": rng.standard_normal(inputs[w].shape) for w in weights}
        inputs |= {f"v_{w}": rng.random(inputs[w].shape) for w in weights}
    inputs |= {"x": rng.standard_normal((8, dims[0])), "z": rng.standard_normal((8, dims[-1]))}
    inputs = {name: value.astype("f4") for name, value in inputs.items()}

    lines, values = [], {name: value.astype("f8") for name, value in inputs.items()}
    x = "x"
    for n in range(layers):
        lines.append(f"y{n} = MatMul({x}, w{n})")
        values[f"y{n}"] = values[x] @ values[f"w{n}"]
        before = x
        x = f"y{n}"
        if biased[n]:
            lines.append(f"c{n} = broadcast_in_dim(b{n}, shape=(8, {dims[n + 1]}), dims=(1,))")
            lines.append(f"s{n} = add({x}, c{n})")
            values[f"s{n}"] = values[x] + values[f"b{n}"]
            x = f"s{n}"
        values[f"in{n}"], values[f"at{n}"] = values[before], values[x]
        lines.append(f"r{n} = {'Relu' if rectified[n] else 'Identity'}({x})")
        values[f"r{n}"] = np.maximum(values[x], 0) if rectified[n] else values[x]
        x = f"r{n}"
    size = 8 * dims[-1]
    lines.append(f"dr{layers - 1} = LossGrad({x}, z, {size})")
    dr = 2 * (values[x] - values["z"]) / size
    gradients: dict[str, np.ndarray] = {}
    for n in reversed(range(layers)):
        at = f"s{n}" if biased[n] else f"y{n}"
        lines.append(f"ds{n} = ReluGrad({at}, dr{n})" if rectified[n] else f"ds{n} = Identity(dr{n})")
        ds = np.where(values[f"at{n}"] > 0, dr, 0) if rectified[n] else dr
        if biased[n]:
            lines.append(f"g_b{n} = reduce_sum(ds{n}, axes=(0,))")
            gradients[f"b{n}"] = ds.sum(0)
        lines.append(f"dr{n - 1}, g_w{n} = MatMulGrad({f'r{n - 1}' if n else 'x'}, w{n}, ds{n})".replace("-1,", "x,"))
        gradients[f"w{n}"] = values[f"in{n}"].T @ ds
        dr = ds @ values[f"w{n}"].T
    left, outputs, expected = weights[:], [], []
    choose.shuffle(left)
    while left:
        here = [left.pop() for _ in range(choose.randint(1, len(left)))]
        kinds = ["", "g_", "m_", "v_"] if optimizer == "AdamOptimizer" else ["", "g_"]
        operands = [f"{kind}{w}" for kind in kinds for w in here] + (["3"] if len(kinds) > 2 else [])
        results = [f"new_{kind}{w}" for kind in kinds if kind != "g_" for w in here]
        lines.append(f"{', '.join(results)} = {optimizer}({', '.join(operands)}, {RATES[optimizer]})")
        outputs += results
        columns = [updated(optimizer, values, gradients[w], w) for w in here]
        expected += [column[n] for n in range(len(columns[0])) for column in columns]
    params = ", ".join(
        f"{name}: Tensor[({', '.join(map(str, value.shape))}{',' * (value.ndim == 1)}), 0]"
        for name, value in inputs.items()
    )
    body = "\n    ".join(lines)
    return Step(f"def step({params}):\n    {body}\n    return {', '.join(outputs)}", inputs, expected)


def updated(optimizer: str, values: dict[str, np.ndarray], g: np.ndarray, w: str) -> list[np.ndarray]:
    """A weight and its state after the third step."""
    if optimizer == "SGDOptimizer":
        return [values[w] - 0.1 * g]
    m, v = 0.9 * values[f"m_{w}"] + 0.1 * g, 0.999 * values[f"v_{w}"] + 0.001 * g * g
    return [values[w] - 0.1 * (m / (1 - 0.9**3)) / (np.sqrt(v / (1 - 0.999**3)) + 0.001), m, v]


def check_step(seed: int, optimizer: str) -> bool:
    """Whether a random stack of transforms applies; then what it makes of a step computes the step."""
    step, choose = random_step(seed, optimizer), random.Random(-seed)
    word = "".join(choose.choice("DH123P") for _ in range(choose.randint(1, 3)))
    regular = choose.random() < 0.5 or "P" in word
    numbers = iter(range(1, 100))

    def tree(depth: int) -> Any:
        group = [next(numbers) for _ in range(2 if regular else choose.choice([1, 2]))]
        return group if depth == 1 else {d: tree(depth - 1) for d in group}

    device_map = tree(len(word))
    fn = dist.parse(step.text, strict=True)
    if regular and choose.random() < 0.5:
        fn = fn.with_(device_map=dist.DeviceMap(device_map))
    for depth, letter in enumerate(word):
        try:
            fn = transformed(fn, letter, ["d", "dd", "ddd"][:depth], BATCH)
        except ShapeError as error:
            if "no dim to split" in error.what or "does not divide" in error.what:
                return False
            raise
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fn = dist.parse(str(fn))
    try:
        found = dist.execute(fn, step.inputs, device_map)
    except ShapeError as error:
        if "does not divide" in error.what:
            return False
        raise
    for out, x, y in zip(fn.outputs, found if isinstance(found, tuple) else (found,), step.expected, strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4, err_msg=f"{seed} {word} {device_map} {out.name}")
    return True


@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_random_steps_under_random_stacks_of_transforms(optimizer):
    assert sum(check_step(seed, optimizer) for seed in range(30)) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_random_steps_under_random_stacks_of_transforms_at_length(optimizer):
    assert sum(check_step(seed, optimizer) for seed in range(30, 1000)) >= 400
