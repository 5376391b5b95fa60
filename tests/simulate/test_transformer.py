"""Calculators: what programs say against closed forms; and the programs against each other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import hardware
from meshwright.engine.compile import compile_program
from meshwright.hardware import Topology
from meshwright.simulate import transformer
from meshwright.simulate.transformer import Strategy, TransformerShape
from meshwright.simulate.transformer.program import loss, parameters, specs

SMALL = TransformerShape(layers=4, width=32, hidden=64, heads=4, kv_heads=4, head_dim=8, vocab=64)
LLAMA_7B = TransformerShape(layers=32, width=4096, hidden=11008, heads=32, head_dim=128, vocab=32000)
LLAMA_70B = TransformerShape(layers=80, width=8192, hidden=28672, heads=64, kv_heads=8, head_dim=128, vocab=128256)
GPT = TransformerShape(layers=4, width=64, hidden=256, heads=4, head_dim=16, vocab=128, gated=False, tied=True)


@pytest.mark.parametrize("shape", [SMALL, LLAMA_7B, LLAMA_70B, GPT])
def test_parameters_and_caches(shape: TransformerShape) -> None:
    assert transformer.parameter_count(shape) == shape.parameters
    for dtype in ("bfloat16", "int8"):
        short = {"bfloat16": "bf16", "int8": "int8"}[dtype]
        assert transformer.kv_cache_bytes(shape, 100, 3, dtype) == 300 * shape.kv_bytes_per_token(short)


@pytest.mark.parametrize("shape", [SMALL, LLAMA_7B, GPT])
def test_flops_per_token(shape: TransformerShape) -> None:
    matrices = shape.attention_parameters + shape.mlp_parameters + shape.vocab * shape.width
    attention = 4 * 256 * shape.heads * shape.head_dim * shape.layers
    assert transformer.flops_per_token(shape, 256, train=False) == 2 * matrices + attention
    assert transformer.flops_per_token(shape, 256) == 3 * (2 * matrices + attention)
    assert transformer.flops_per_token(shape, 256) == pytest.approx(
        hardware.train_flops(matrices, 1) + 3 * attention, rel=1e-12
    )
    again = transformer.flops_per_token(shape, 256, remat=True)
    layers = 2 * (shape.attention_parameters + shape.mlp_parameters)  # the whole forward of each runs again
    assert again - transformer.flops_per_token(shape, 256) == layers + attention


STRATEGIES = [
    Strategy(data=4),
    Strategy(tensor=4),
    Strategy(data=2, tensor=2, fsdp=True),
    Strategy(data=2, tensor=2, sequence_parallel=True, recompute=False),
    Strategy(pipeline=2, data=2, microbatches=2),
    Strategy(pipeline=4, microbatches=4, recompute=False),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_every_strategy_computes_the_same_loss(strategy: Strategy) -> None:
    rng = np.random.default_rng(0)
    shapes = parameters(SMALL, "float32")
    params = mw.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32) * 0.3, shapes)
    tokens = rng.integers(0, SMALL.vocab, size=(8, 16)).astype(np.int32)
    expected = mw.value_and_grad(partial(loss, strategy=Strategy(recompute=False)))(params, tokens)
    layout = specs(shapes, strategy)
    rows = mw.P("data") if strategy.data > 1 else mw.P()
    mesh = mw.make_mesh(tuple(strategy.mesh.values()), tuple(strategy.mesh))
    step = mw.shard_map(
        mw.value_and_grad(partial(loss, strategy=strategy)),
        mesh=mesh,
        in_specs=(layout, rows),
        out_specs=(mw.P(), layout),
    )
    found = mw.jit(step)(params, tokens)
    np.testing.assert_allclose(np.asarray(found[0]), np.asarray(expected[0]), rtol=1e-5)
    for a, b in zip(mw.tree.leaves(found[1]), mw.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-5)


def test_state_by_strategy() -> None:
    def state(**options: Any) -> int:
        return transformer.train_memory(LLAMA_7B, Strategy(**options), batch=8, sequence=512).argument_bytes

    whole = hardware.state_bytes(LLAMA_7B.parameters, master_dtype="f32")
    assert state(data=8) == pytest.approx(whole, rel=1e-6)
    assert state(data=8, fsdp=True) == pytest.approx(whole / 8, rel=0.001)
    assert state(data=2, tensor=4) == pytest.approx(whole / 4, rel=0.001)
    assert state(pipeline=4, data=2) > whole / 4  # the embeddings are on every stage


def test_decoding_takes_what_its_bytes_do() -> None:
    for tensor, batch, context in ((8, 4, 2048), (8, 32, 8192), (4, 1, 512)):
        machine = Topology("tpu v5e", tensor, mesh={"tensor": tensor})
        step = transformer.decode(LLAMA_7B, machine, batch, context, tensor=tensor)
        parameter_bytes = 2 * (LLAMA_7B.parameters - LLAMA_7B.vocab * LLAMA_7B.width)  # of embeddings, a few rows
        caches = LLAMA_7B.kv_bytes_per_token() * context
        closed = hardware.decode_seconds(machine, parameter_bytes, caches, batch)
        assert step.compute_seconds == pytest.approx(closed, rel=0.1)
        assert step.seconds == pytest.approx(step.compute_seconds + step.communication_seconds, rel=0.01)


WIDE = TransformerShape(layers=2, width=8192, hidden=32768, heads=64, head_dim=128, vocab=1024, gated=False)


def test_where_data_parallelism_pays() -> None:
    """Gradients of P parameters: 6·P·B FLOPs against 4·P bytes of sums, so B = 2/3 · α.

    Memory-bound kernels and attention make compute a little longer, and the threshold a little lower.
    """
    machine = Topology("tpu v5p", (4, 4, 4), mesh={"data": 64})
    found = transformer.data_parallel_tokens(WIDE, machine, 64, sequence=16)
    closed = 2 / 3 * hardware.data_parallel_tokens(machine, "data")
    assert 0.75 * closed < found < 1.02 * closed


def test_where_tensor_parallelism_pays() -> None:
    """The MLP alone allows F/α ways; attention, with one sum more for half its FLOPs, allows fewer."""
    machine = Topology("h100", 8)
    closed = hardware.tensor_parallel_limit(32768, machine)
    found = transformer.tensor_parallel_ways(WIDE, "h100", batch=8, sequence=512, most=8)
    assert closed / 4 < found <= closed


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("idle", [0.2, 0.1])
def test_where_pipelines_pay(stages: int, idle: float) -> None:
    shape = TransformerShape(layers=4, width=1024, hidden=4096, heads=16, head_dim=64, vocab=1024)
    found = transformer.microbatches_for(shape, "tpu v5e", stages, 256, idle=idle)
    closed = (stages - 1) * (1 - idle) / idle
    assert found == pytest.approx(closed, abs=1.01)


def test_strategies_are_compared() -> None:
    found = transformer.compare(
        LLAMA_7B, "h100", [Strategy(data=8), Strategy(data=8, fsdp=True), Strategy(tensor=8)], batch=16, sequence=2048
    )
    best = found.best
    assert best is not None and best[0].fsdp
    assert not found.rows[-1][1].fits
    lines = str(found).splitlines()
    assert lines[0].split() == [
        *["data", "tensor", "pipeline", "microbatches", "zero", "recompute", "time", "memory", "bound"]
    ]
    assert len(lines) == 4 and lines[-1].endswith("does not fit")
    assert transformer.compare(LLAMA_7B, "tpu v5e", [Strategy()], batch=1, sequence=512).best is None


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        transformer.train(SMALL, "h100", Strategy(pipeline=5), 8, 16)
    error = caught.value
    assert (error.what, error.why) == (
        "layers=4 is not split into 5 equal parts.",
        "pipeline is 5, and every device does the same",
    )
    assert error.fix == "pipeline=4"


@pytest.mark.parametrize("cache", ["weights alone", "both"])
def test_decoding_with_narrow_weights_takes_as_long_as_their_bytes(cache: str) -> None:
    shape = TransformerShape(layers=4, width=4096, hidden=11008, heads=32, head_dim=128, vocab=32000)
    seconds, arguments = {}, {}
    for dtype in ("bfloat16", "int8", "int4"):
        held = "bfloat16" if cache == "weights alone" else dtype
        step = transformer.decode(shape, "tpu v5e", batch=4, context=2048, dtype=dtype, cache_dtype=held)
        seconds[dtype], arguments[dtype] = step.seconds, step.memory.argument_bytes
        bound = step.memory.argument_bytes / step.topology.chip.hbm_bytes_per_s
        assert 0.85 * bound < step.seconds < 1.12 * bound  # of the table of embeddings, a few rows are read
    assert seconds["int4"] < seconds["int8"] < seconds["bfloat16"]
    if cache == "both":
        assert arguments["int4"] * 4 == pytest.approx(arguments["bfloat16"], rel=1e-3)


def test_a_step_of_decoding_attends_to_the_cache_and_to_itself() -> None:
    shape = TransformerShape(layers=2, width=12, hidden=20, heads=4, kv_heads=2, head_dim=6, vocab=16)
    program = transformer.decode_program(shape, 1, 3, 5, "float32")
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=t.shape).astype(t.dtype) if t.dtype != np.int32 else rng.integers(0, 16, t.shape)
              for t in program.in_types]  # fmt: skip
    logits, new_keys, new_values = compile_program(program)(*[np.asarray(x, t.dtype) for x, t in
                                                              zip(inputs, program.in_types, strict=True)])  # fmt: skip
    structs = parameters(shape, "float32")
    params = mw.tree.unflatten(mw.tree.structure(structs), inputs[:-3])
    keys, values, tokens = inputs[-3:]

    def norm(x: Any, scale: Any) -> Any:
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    x = params["embed"][tokens]
    for n in range(shape.layers):
        w = {name: one[n] for name, one in params["layers"].items()}
        y = norm(x, w["attention_norm"])
        q, k, v = (np.einsum("bd,dhk->bhk", y, w[name]) for name in ("wq", "wk", "wv"))
        np.testing.assert_allclose(new_keys[n], k, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(new_values[n], v, rtol=1e-4, atol=1e-5)
        every_k, every_v = (np.repeat(np.concatenate([c[n], one[:, None]], 1), 2, axis=2)
                            for c, one in ((keys, k), (values, v)))  # fmt: skip
        p = np.exp(np.einsum("bhk,bshk->bhs", q, every_k) * 6**-0.5)
        mixed = np.einsum("bhs,bshk->bhk", p / p.sum(-1, keepdims=True), every_v)
        x = x + np.einsum("bhk,hkd->bd", mixed, w["wo"])
        y = norm(x, w["mlp_norm"])
        up, gate = y @ w["up"], y @ w["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"]
    head = params["head"] if "head" in params else params["embed"]
    np.testing.assert_allclose(logits, norm(x, params["norm"]) @ head.T, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sizes", [{"data": 2}, {"pipeline": 2}])
def test_inputs_of_layers_on_the_host(sizes: dict[str, int]) -> None:
    strategy = Strategy(tensor=2, microbatches=4, **sizes)
    shape = TransformerShape(layers=8, width=2048, hidden=8192, heads=16, head_dim=128, vocab=8192)
    full, away = (
        transformer.train(shape, "h100", replace(strategy, recompute=again), 16, 2048) for again in ("full", "offload")
    )
    rows = 16 // strategy.data // strategy.microbatches
    layers, alive = shape.layers // strategy.pipeline, strategy.pipeline
    inputs = layers * alive * rows * 2048 * shape.width * 2
    assert away.memory.host_bytes == inputs
    assert full.memory.host_bytes == 0
    # One input is here at a time, on its way back.
    assert 0 < full.peak_bytes_per_device - away.peak_bytes_per_device <= inputs
    assert away.seconds >= full.seconds
    assert away.host_seconds == pytest.approx(2 * strategy.microbatches * inputs / alive / 64e9)


CAUSAL = [
    Strategy(),
    Strategy(data=4),
    Strategy(tensor=4),
    Strategy(pipeline=2, microbatches=4),
    Strategy(data=2, zero=3),
]


@pytest.mark.parametrize("strategy", CAUSAL, ids=str)
def test_a_causal_mask_leaves_half_of_the_pairs_on_every_layout(strategy: Strategy) -> None:
    shape = TransformerShape(2, 512, 2048, 8, 64, 32000)
    found = transformer.train(shape, "h100", strategy, 8, 4096)
    work = {share.name: share.flops for share in found.by_op()}
    all_pairs = 4 * 8 * 4096**2 * 512 * 2
    stages = strategy.pipeline  # by_op is of one of them
    assert 0.5 < work["attention"] * strategy.devices / stages * stages / all_pairs < 0.56
    assert found.mfu < found.hfu < 1.15 * found.mfu  # scores are computed again


@pytest.mark.parametrize("recompute", ["none", "attention", "full"])
@pytest.mark.parametrize(
    "layout", [{"data": 2}, {"pipeline": 2, "microbatches": 2}, {"tensor": 2, "sequence_parallel": True}]
)
def test_devices_that_share_positions_compute_no_more_than_one_that_has_all(layout: Any, recompute: str) -> None:
    """With a causal mask each pair of positions is computed once, however many devices share a sequence."""
    shape = TransformerShape(layers=4, width=512, hidden=1024, heads=8, head_dim=64, vocab=512)
    found = [
        transformer.train(shape, "h100", Strategy(context=n, recompute=recompute, **layout), 8, 4096)
        for n in (1, 2, 4, 8)
    ]
    for step in found[1:]:
        assert step.executed_flops == pytest.approx(found[0].executed_flops, rel=0.01)
        assert step.hfu >= step.mfu * 0.99


@pytest.mark.parametrize("layout", [{}, {"tensor": 4}, {"data": 4, "zero": 1}, {"tensor": 2, "data": 2}], ids=str)
@pytest.mark.parametrize("schedule", [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_the_timeline_of_a_pipeline_has_what_each_part_of_the_machine_does(schedule: Any, layout: Any) -> None:
    """Rows add up to the work of each part; hidden is what is neither waited for nor in the bubble."""
    shape = TransformerShape(layers=8, width=1024, hidden=4096, heads=8, head_dim=128, vocab=1024)
    strategy = Strategy(pipeline=2, microbatches=4, schedule=schedule[0], chunks=schedule[1], **layout)
    for chip, mode in (("h100", "exact"), ("tpu v5e", "exact"), ("h100", "calibrated")):
        step = transformer.train(shape, chip, strategy, 16, 2048, mode=mode)
        lanes = {lane.unit.split(" (")[0]: lane.spans for lane in step.chart().lanes}
        for unit, seconds in step.unit_seconds().items():
            assert sum(bar.seconds * bar.share for bar in lanes[unit]) == pytest.approx(seconds, rel=0.02), unit
            assert all(0 <= bar.start <= bar.start + bar.seconds <= step.seconds * (1 + 1e-9) for bar in lanes[unit])
        waits = sum(seconds for name, seconds in step.parts.items() if name not in ("compute", "bubble", "optimizer"))
        assert step.exposed_seconds == pytest.approx(waits, abs=1e-12)
        assert step.seconds == pytest.approx(step.compute_seconds + step.idle_seconds + step.exposed_seconds)
        assert step.exposed_seconds <= step.communication_seconds
        sends = step.axis_seconds()["pipeline"]
        assert sends == pytest.approx(sum(bar.seconds for bars in lanes.values() for bar in bars if bar.kind == "send"))
        if not layout:
            assert step.exposed_seconds == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("layout", [{}, {"tensor": 4}, {"tensor": 4, "sequence_parallel": True}], ids=str)
@pytest.mark.parametrize("schedule", [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)])
def test_without_overlap_stages_wait_for_what_they_send(schedule: Any, layout: Any) -> None:
    shape = TransformerShape(layers=8, width=1024, hidden=4096, heads=8, head_dim=128, vocab=1024)
    strategy = Strategy(pipeline=2, microbatches=4, schedule=schedule[0], chunks=schedule[1], **layout)
    beside, alone = (transformer.train(shape, "h100", strategy, 16, 2048, overlap=one) for one in ("loops", "none"))
    assert "pipeline" not in beside.parts
    assert alone.parts["pipeline"] == pytest.approx(alone.axis_seconds()["pipeline"])
    assert sum(alone.parts.values()) == pytest.approx(alone.seconds)
    assert alone.seconds >= beside.seconds + alone.parts["pipeline"] / 2
    lanes = alone.chart().lanes
    assert all(bar.start + bar.seconds <= alone.seconds * (1 + 1e-9) for lane in lanes for bar in lane.spans)


def test_a_message_is_sent_in_parts_where_that_is_faster() -> None:
    """Tensor-parallel devices of two nodes have copies: each sends an eighth, gathered within the node."""
    shape = TransformerShape(layers=8, width=4096, hidden=16384, heads=32, head_dim=128, vocab=1024)
    seconds = {}
    for tensor, data in ((1, 8), (8, 1)):
        strategy = Strategy(data=data, tensor=tensor, pipeline=2, microbatches=4)
        step = transformer.train(shape, Topology("a100", 16), strategy, 4 * data, 2048, overlap="none")
        seconds[tensor] = step.axis_seconds()["pipeline"]
    sent = 2048 * 4096 * 2
    machine = Topology("a100", 16, mesh={"pipeline": 2, "tensor": 8})
    parts = hardware.collective_cost("permute", 2 * sent / 8, machine, ("pipeline",), shift=1).seconds
    parts += hardware.collective_cost("all_gather", sent, machine, ("tensor",)).seconds
    assert seconds[8] == pytest.approx(4 * parts)
    assert seconds[8] < seconds[1] / 2


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_copy_of_the_gradients_is_held(pipeline: int, microbatches: int) -> None:
    shape = TransformerShape(layers=2, width=1024, hidden=4096, heads=8, head_dim=128, vocab=1024)
    strategy = Strategy(pipeline=pipeline, microbatches=microbatches)
    kinds = [
        transformer.StepDtypes(gradients="bfloat16"),
        transformer.StepDtypes(gradients="bfloat16", gradient_copy="float32"),
    ]
    plain, copied = (transformer.train(shape, "h100", strategy, 4, 128, dtypes=one) for one in kinds)
    more = copied.memory_by_kind["optimizer"] - plain.memory_by_kind["optimizer"]
    assert 3 * more == plain.memory_by_kind["optimizer"]
    assert copied.peak_bytes_per_device == pytest.approx(plain.peak_bytes_per_device + more, rel=0.05)


@pytest.mark.parametrize(
    "layers, width, vocab",
    [
        pytest.param(
            *sizes, vocab, marks=[] if (sizes, vocab) in (((2, 64), 1000), ((4, 256), 64)) else pytest.mark.slow
        )
        for sizes in ((2, 64), (4, 256), (2, 1024))
        for vocab in (64, 1000, 32000)
    ],
)
def test_the_more_replicas_share_the_less_each_holds(layers: int, width: int, vocab: int) -> None:
    """One after another nothing is held longer; where gathers run ahead, two tables more."""
    shape = TransformerShape(layers=layers, width=width, hidden=4 * width, heads=4, head_dim=width // 4, vocab=vocab)
    for microbatches, recompute, sequence in ((1, "none", 64), (2, "full", 64), (4, "none", 512)):
        for overlap, ahead in (("none", 0), ("loops", 2 * 2 * vocab * width)):
            held = [
                transformer.train(
                    shape,
                    "h100",
                    Strategy(data=4, microbatches=microbatches, zero=zero, recompute=recompute),
                    16,
                    sequence,
                    overlap=overlap,
                ).peak_bytes_per_device
                for zero in range(4)
            ]
            assert all(more <= less + ahead * (n == 2) for n, (less, more) in enumerate(pairwise(held))), held
