"""Programs with few of their equal layers, against the same model written with fewer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core import tree
from meshwright.core.trace import run
from meshwright.transform.layers import equal_layers, find_layers
from meshwright.transform.simplify import cse, dce

WIDTH = 4


def simple(p: Any, x: Any) -> Any:
    return mnp.tanh(x @ p["a"])


def residual(p: Any, x: Any) -> Any:
    y = x * mw.lax.rsqrt(mnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * p["s"]
    return x + mw.nn.gelu(y @ p["a"] + p["s"]) @ p["b"]


def mixed(p: Any, x: Any) -> Any:
    positions = mnp.arange(x.shape[0])
    scores = (x @ p["a"]) @ (x @ p["b"]).T
    weights = mw.nn.softmax(mnp.where(positions[:, None] >= positions, scores, -1e9), axis=-1)
    return x + (weights @ x) * p["s"]


BLOCKS: dict[str, Callable[[Any, Any], Any]] = {
    "simple": simple,
    "residual": residual,
    "attention": mixed,
    "checkpoint": mw.checkpoint(residual),
    "with the first value": lambda p, x: residual(p, x) + 0.0 * mnp.sum(p["s"]),
}


def layer(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: mnp.asarray(rng.normal(size=shape).astype(np.float32) * 0.3)
    return {"a": draw(WIDTH, WIDTH), "b": draw(WIDTH, WIDTH), "s": draw(WIDTH)}


def updated(block: Callable[[Any, Any], Any], clip: bool = False, named: bool = False) -> Callable[[Any, Any], Any]:
    def loss(params: Any, x: Any) -> Any:
        first = x
        for p in (params[name] for name in sorted(params, key=lambda n: int(n[1:]))) if named else params:
            x = block(p, x)
        return mnp.mean((x - first) ** 2)

    def step(params: Any, x: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(params, x)
        scale = 0.1
        if clip:
            norm = mnp.sqrt(sum(mnp.sum(g * g) for g in tree.leaves(gradient)))
            scale = 0.1 / mnp.maximum(norm, 1.0)
        return value, mw.tree.map(lambda p, g: p - scale * g, params, gradient)

    return step


def simplified(step: Callable[..., Any], *args: Any) -> mw.Program:
    return dce(cse(mw.make_program(step)(*args)))


def check(
    step: Callable[[Any, Any], Any], params: Callable[[int], Any], count: int, kept: int, found_anyway: bool = True
) -> None:
    """With the same parameters in every layer, the short program computes what the model with fewer layers does."""
    x = mnp.asarray(np.random.default_rng(3).normal(size=(3, WIDTH)).astype(np.float32))
    whole = simplified(step, params(count), x)
    short = equal_layers(whole, kept)
    if short is None and not found_anyway:
        return
    assert short is not None
    fewer = params(count - short.removed)
    flat = tree.leaves((params(count), x))
    found = run(short.program, [flat[n] for n in short.inputs])
    value, new = step(fewer, x)
    np.testing.assert_allclose(found[0], value, rtol=1e-6)
    # Parameters by their values: which of equal layers are kept is free.
    got = sorted(np.concatenate([np.ravel(one) for one in found[1:]]).tolist())
    want = sorted(np.concatenate([np.ravel(one) for one in tree.leaves(new)]).tolist())
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert len(short.program.eqns) == len(simplified(step, fewer, x).eqns)
    assert [whole.in_types[n] for n in short.inputs] == list(short.program.in_types)
    assert [short.program.in_types[n] for n in short.like] == list(whole.in_types)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_fewer_layers_are_the_model_with_fewer_layers(name: str, clip: bool) -> None:
    check(updated(BLOCKS[name], clip), lambda n: [layer(0)] * n, 12, 4)


def test_layers_in_a_dict_of_names() -> None:
    """Sorted by name, the tenth stands before the second, in updates as in the arguments."""
    check(updated(residual, named=True), lambda n: {f"n{k}": layer(0) for k in range(n)}, 9, 4)


@settings(max_examples=15, deadline=None)
@given(
    ops=st.lists(st.sampled_from(["product", "tanh", "scale", "skip", "mean"]), min_size=1, max_size=5),
    count=st.integers(9, 14),
    kept=st.integers(4, 6),
)
@example(ops=["product", "product", "product", "scale", "scale"], count=9, kept=4)
def test_fewer_layers_of_random_blocks(ops: list[str], count: int, kept: int) -> None:
    def block(p: Any, x: Any) -> Any:
        kept_x = x
        for op in ops:
            if op == "product":
                x = x @ p["a"]
            elif op == "tanh":
                x = mnp.tanh(x @ p["b"])
            elif op == "scale":
                x = x * p["s"]
            elif op == "skip":
                x = x + kept_x
            else:
                x = x - mnp.mean(x, axis=-1, keepdims=True)
        return mnp.tanh(x * p["s"])

    # A few elementwise ops in a row may look like layers of another length.
    check(updated(block), lambda n: [layer(0)] * n, count, kept, {"product", "tanh"} & {*ops} != set())


def test_the_repeated_layer_stands_for_those_taken_out() -> None:
    params = [layer(n) for n in range(20)]
    x = mnp.ones((3, WIDTH))
    whole = simplified(updated(residual), params, x)
    short = equal_layers(whole, 4)
    assert short is not None
    weights = [short.removed + 1 if eqn.outputs[0] in short.repeated else 1 for eqn in short.program.eqns]
    assert sum(weights) == len(whole.eqns)
    assert len(short.program.inputs) + len([v for v in short.alike if v in whole.inputs]) == len(whole.inputs)
    assert set(short.alike.values()) <= short.repeated


def test_two_lengths_of_one_program_differ_by_a_layer() -> None:
    found = find_layers(simplified(updated(residual), [layer(n) for n in range(20)], mnp.ones((3, WIDTH))))
    assert found is not None
    four, five = found.shortened(4), found.shortened(5)
    assert four is not None and five is not None
    assert four.removed == five.removed + 1
    assert len(five.program.eqns) - len(four.program.eqns) == len(
        [eqn for eqn in five.program.eqns if eqn.outputs[0] in five.repeated]
    )


def different(ws: Any, x: Any) -> Any:
    for n, w in enumerate(ws):
        x = mnp.tanh(x @ w) * (n + 1.0)
    return x


def joined(ws: Any, x: Any) -> Any:
    made = []
    for w in ws:
        x = mnp.tanh(x @ w)
        made.append(x)
    return mnp.concatenate(made)


@pytest.mark.parametrize("model", [different, joined])
def test_layers_that_differ_or_are_read_together_stay(model: Callable[[Any, Any], Any]) -> None:
    whole = mw.make_program(model)([mnp.ones((WIDTH, WIDTH))] * 12, mnp.ones((3, WIDTH)))
    assert equal_layers(whole, 4) is None


def test_few_layers_stay() -> None:
    assert equal_layers(simplified(updated(residual), [layer(n) for n in range(3)], mnp.ones((3, WIDTH)))) is None
