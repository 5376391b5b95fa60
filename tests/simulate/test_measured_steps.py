"""Train steps that were timed on an H200: the same steps as programs, simulated with the chip's measured numbers."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.simulate import simulate

RAW = pathlib.Path(__file__).parents[2] / "benchmarks" / "data" / "h200_jax.json"
HALF, F32 = mnp.bfloat16, mnp.float32


def f32(*shape: int) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, "float32")


def mlp(s: dict[str, int]) -> tuple[Any, Any, Any]:
    parameters = [(f32(s["width"], s["width"]), f32(s["width"])) for _ in range(s["layers"])]
    batch = [mw.ShapeDtypeStruct((s["batch"], s["width"]), "bfloat16")] * 2

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        for w, b in parameters:
            x = mw.nn.relu(x @ w.astype(HALF) + b.astype(HALF))
        return mnp.mean((x - y).astype(F32) ** 2)

    return loss, parameters, batch


def convolutions(s: dict[str, int]) -> tuple[Any, Any, Any]:
    parameters, before, channels = [], s["channels"], s["channels"]
    for _stage in range(s["stages"]):
        for _ in range(s["depth"]):
            parameters.append((f32(3, 3, before, channels), f32(channels)))
            before = channels
        channels *= 2
    parameters.append((f32(before, 1024), f32(1024)))
    images = mw.ShapeDtypeStruct((s["images"], s["side"], s["side"], s["channels"]), "bfloat16")

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        layers = iter(parameters)
        for _stage in range(s["stages"]):
            for _ in range(s["depth"]):
                w, b = next(layers)
                numbers = ("NHWC", "HWIO", "NHWC")
                x = lax.conv_general_dilated(x, w.astype(HALF), (1, 1), "SAME", dimension_numbers=numbers)
                x = mw.nn.relu(x + b.astype(HALF))
            n, h, _, c = x.shape
            x = x.reshape(n, h // 2, 2, h // 2, 2, c).astype(F32).mean((2, 4)).astype(HALF)
        w, b = next(layers)
        logits = x.astype(F32).mean((1, 2)) @ w + b
        return -mnp.take_along_axis(mw.nn.log_softmax(logits), y[:, None], 1).mean()

    return loss, parameters, [images, mw.ShapeDtypeStruct((s["images"],), "int32")]


def transformer(s: dict[str, int]) -> tuple[Any, Any, Any]:
    d, heads = s["width"], s["heads"]
    shapes = ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d))
    blocks = [[f32(*shape) for shape in shapes] for _ in range(s["layers"])]
    parameters = [f32(s["vocabulary"], d), blocks, f32(d, s["vocabulary"])]

    def norm(x: Any) -> Any:
        y = x.astype(F32)
        return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(HALF)

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        targets, (table, blocks, out) = y, parameters
        x = table[x].astype(HALF)
        b, t, _ = x.shape
        allowed = mnp.tril(mnp.ones((t, t), bool))
        for qkv, projection, up, down in blocks:
            y = (norm(x) @ qkv.astype(HALF)).reshape(b, t, 3, heads, d // heads)
            q, k, v = (y[:, :, i].swapaxes(1, 2) for i in range(3))
            scores = mnp.einsum("bhqd,bhkd->bhqk", q, k).astype(F32) * (d // heads) ** -0.5
            weights = mw.nn.softmax(mnp.where(allowed, scores, -1e9), -1).astype(HALF)
            y = mnp.einsum("bhqk,bhkd->bhqd", weights, v).swapaxes(1, 2).reshape(b, t, d)
            x = x + y @ projection.astype(HALF)
            x = x + mw.nn.gelu(norm(x) @ up.astype(HALF)) @ down.astype(HALF)
        logits = (norm(x) @ out.astype(HALF)).astype(F32)
        logarithms = mw.nn.log_softmax(logits, -1)
        return -mnp.take_along_axis(logarithms, targets[..., None], -1).mean()

    return loss, parameters, [mw.ShapeDtypeStruct((s["batch"], s["tokens"]), "int32")] * 2


def program(case: dict[str, Any]) -> mw.Program:
    loss, parameters, batch = {"mlp_step": mlp, "conv_step": convolutions, "transformer_step": transformer}[case["op"]](
        case["sizes"]
    )
    moments = 2 if case["op"] == "transformer_step" else 1

    def step(state: Any, *batch: Any) -> Any:
        parameters, *moment = state
        value, gradient = mw.value_and_grad(loss)(parameters, *batch)
        m = mw.tree.map(lambda m, g: 0.9 * m + g, moment[0], gradient)
        if moments == 1:
            return (mw.tree.map(lambda p, m: p - 1e-4 * m, parameters, m), m), value
        v = mw.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moment[1], gradient)
        new = mw.tree.map(lambda p, m, v: p - 1e-4 * m / (mnp.sqrt(v) + 1e-8), parameters, m, v)
        return (new, m, v), value

    return mw.make_program(step)((parameters, *[parameters] * moments), *batch)


STEPS = [row for row in json.loads(RAW.read_text())["measurements"] if row["part"] == "step"]


@pytest.mark.parametrize("case", STEPS, ids=lambda case: case["op"])
def test_a_measured_step_is_predicted(case: dict[str, Any]) -> None:
    result = simulate(program(case), "h200", mode="calibrated", flash=False)  # as XLA ran it
    measured = float(np.median(case["seconds"]))
    assert result.seconds == pytest.approx(measured, rel=0.1)
