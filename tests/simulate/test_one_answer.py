"""One question, one answer: every public way to ask for a train step gives the same seconds and the same bytes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

import meshwright as mw
from meshwright import dist, hardware
from meshwright.cli import main
from meshwright.hardware import Topology, TransformerShape
from meshwright.simulate import transformer
from meshwright.simulate.transformer import Strategy

DENSE = TransformerShape(8, 512, 2048, heads=8, head_dim=64, vocab=1024, gated=False, tied=True)
GATED = TransformerShape(8, 512, 1536, heads=8, head_dim=64, vocab=1000)
GROUPED = TransformerShape(8, 512, 1536, heads=8, kv_heads=2, head_dim=64, vocab=1024)
EXPERTS = TransformerShape(4, 512, 1024, heads=8, kv_heads=4, head_dim=64, vocab=1024, experts=8, experts_per_token=2)
BATCH, LENGTH = 32, 256

TRIPLES: list[tuple[TransformerShape, Strategy, str]] = [
    (DENSE, Strategy(data=8), "tpu v5e 2x4"),
    (DENSE, Strategy(data=2, tensor=4, zero=1), "tpu v5e 2x4"),
    (DENSE, Strategy(tensor=2, pipeline=4, microbatches=8), "tpu v5e 2x4"),
    (DENSE, Strategy(data=4, pipeline=2, microbatches=4, zero=2, recompute="full"), "h100 8"),
    (DENSE, Strategy(data=2, pipeline=4, microbatches=4, schedule="interleaved", chunks=2), "a100 8"),
    (DENSE, Strategy(data=2, pipeline=4, microbatches=8, schedule="zb-h1"), "h100 8"),
    (DENSE, Strategy(data=2, pipeline=4, microbatches=8, schedule="gpipe", zero=3), "gb200 8"),
    (GATED, Strategy(data=8, zero=3), "tpu v5p 2x2x2"),
    (GATED, Strategy(data=8, zero=3, microbatches=4), "h100 8"),
    (GATED, Strategy(data=4, tensor=2, sequence_parallel=True, recompute="matmuls"), "a100 8"),
    (GATED, Strategy(data=2, tensor=2, pipeline=2, microbatches=4, sequence_parallel=True), "tpu v5p 2x2x2"),
    (GROUPED, Strategy(data=2, tensor=4, sequence_parallel=True, zero=2), "h100 8"),
    (GROUPED, Strategy(tensor=4, pipeline=2, microbatches=4, recompute="attention"), "gb200 8"),
    (GROUPED, Strategy(data=2, context=2, tensor=2), "tpu v5e 2x4"),
    (GROUPED, Strategy(context=4, pipeline=2, microbatches=2, zero=1), "h100 8"),
    (GROUPED, Strategy(data=16, microbatches=2, recompute="full"), "h100 16"),
    (EXPERTS, Strategy(data=2, expert=4), "h100 8"),
    (EXPERTS, Strategy(expert=4, tensor=2, zero=1, sequence_parallel=True), "tpu v5p 2x2x2"),
    (EXPERTS, Strategy(expert=4, pipeline=2, microbatches=4, zero=2), "a100 8"),
    (EXPERTS, Strategy(data=2, expert=2, context=2, recompute="full"), "gb200 8"),
]


def fields(text: Any) -> str:
    """Fields that are not the default, as the command line has them."""
    found = {name: getattr(text, name) for name, one in text.__dataclass_fields__.items()}
    words = {name: int(value) if isinstance(value, bool) else value for name, value in found.items()}
    return ",".join(f"{name}={value}" for name, value in words.items() if value is not None)


@pytest.mark.parametrize(
    ("shape", "strategy", "machine"),
    [*TRIPLES[::2], *(pytest.param(*one, marks=pytest.mark.slow) for one in TRIPLES[1::2])],
    ids=lambda one: str(one).replace(" ", ""),
)
def test_every_way_to_ask_gives_the_same(
    shape: TransformerShape, strategy: Strategy, machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topology = hardware.machines.named_machine(machine)
    assert isinstance(topology, Topology)
    step = transformer.train(shape, machine, strategy, BATCH, LENGTH)
    wanted = (step.seconds, step.peak_bytes_per_device)
    assert step.seconds == pytest.approx(sum(step.parts.values()), rel=1e-9)
    assert sum(step.memory_by_kind.values()) == step.peak_bytes_per_device
    assert 0 < step.mfu < 1

    (row,) = transformer.compare(shape, machine, [strategy], BATCH, LENGTH).rows
    assert (row[1].seconds, row[1].peak_bytes_per_device) == wanted
    assert transformer.train_memory(shape, strategy, BATCH, LENGTH, hardware=machine).peak_bytes == wanted[1]

    found = dist.estimate(shape, strategy, BATCH, dist.OnTopology(topology), sequence=LENGTH)
    assert (found.seconds, found.peak_bytes_per_device, found.fits) == (*wanted, step.fits)
    assert found.bubble_fraction == step.bubble_fraction
    if shape is DENSE:
        gpt = dist.GPT(shape.layers, shape.width, shape.heads, vocab=shape.vocab, length=LENGTH)
        found = dist.estimate(gpt, strategy, BATCH, dist.OnTopology(topology))
        assert (found.seconds, found.peak_bytes_per_device) == wanted

    every = dist.grid_search(
        shape, topology, BATCH, sequence=LENGTH, microbatches=[strategy.microbatches], schedules=[strategy.schedule],
        chunks=[strategy.chunks], zero=[strategy.zero], recompute=[strategy.recompute], context=[strategy.context],
        expert=[strategy.expert], sequence_parallel=[strategy.sequence_parallel],
    )  # fmt: skip
    assert [(e.seconds, e.peak_bytes_per_device) for e in every.estimates if e.strategy == strategy] == [wanted]

    asked = hardware.train_step(shape, topology, batch=BATCH, sequence=LENGTH, **asdict(strategy))
    assert (asked.seconds, asked.peak_bytes_per_device, asked.mfu) == (*wanted, step.mfu)

    call = ["simulate", "--transformer", fields(shape), "--strategy", fields(strategy), "--hardware", machine]
    assert main([*call, "--batch", str(BATCH), "--sequence", str(LENGTH), "--json"]) == (0 if step.fits else 1)
    said = json.loads(capsys.readouterr().out)
    assert (said["seconds"], said["memory"]["peak_bytes_per_device"]) == wanted

    if strategy.pipeline == 1:
        program = transformer.train_program(shape, strategy, BATCH, LENGTH)
        whole = mw.simulate(program, machine, donated=[True] * (len(program.inputs) - 1) + [False])
        assert (whole.seconds, whole.peak_bytes_per_device) == wanted


LARGE = TransformerShape(16, 2048, 8192, heads=16, head_dim=128, vocab=1024)  # a small head: stages take equally long


def step(**options: Any) -> Any:
    return transformer.train(LARGE, "h100", Strategy(**options), 64, 2048)


def test_more_microbatches_leave_a_smaller_bubble() -> None:
    found = [step(data=2, pipeline=4, microbatches=m).bubble_fraction for m in (4, 8, 16, 32)]
    assert found == sorted(found, reverse=True)
    for m, bubble in zip((4, 8, 16, 32), found, strict=True):
        assert bubble == pytest.approx(3 / (m + 3), abs=0.08)


@pytest.mark.parametrize("pipeline", [1, 4])
def test_what_replicas_share_out_lowers_memory(pipeline: int) -> None:
    found = [step(data=8, pipeline=pipeline, microbatches=8, zero=z) for z in range(3)]
    memory = [one.peak_bytes_per_device for one in found]
    assert memory == sorted(memory, reverse=True)
    assert found[1].memory_by_kind["optimizer"] < found[0].memory_by_kind["optimizer"] / 7
    assert found[2].memory_by_kind["gradients"] < found[1].memory_by_kind["gradients"] / 7
    everything = step(data=8, pipeline=pipeline, microbatches=8, zero=3)
    assert everything.memory_by_kind["parameters"] < found[2].memory_by_kind["parameters"] / 7


@pytest.mark.parametrize("pipeline", [1, 4])
def test_recomputation_lowers_memory_and_takes_time(pipeline: int) -> None:
    ways = ("none", "matmuls", "full")
    found = [step(data=2, tensor=2, pipeline=pipeline, microbatches=4, recompute=one) for one in ways]
    memory, seconds = [one.peak_bytes_per_device for one in found], [one.seconds for one in found]
    assert memory == sorted(memory, reverse=True) and len(set(memory)) == 3
    assert seconds == sorted(seconds) and len(set(seconds)) == 3
    assert found[0].mfu > found[2].mfu and found[2].hfu > found[2].mfu


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("length", [512, 8192, 131072])
def test_mfu_is_that_of_the_program_and_what_is_executed_is_no_less(length: int, flash: bool) -> None:
    shape = TransformerShape(layers=4, width=1024, hidden=4096, heads=8, head_dim=128, vocab=8192)
    strategy = Strategy(flash=flash)
    found = transformer.train(shape, "h100", strategy, 1, length)
    asked = mw.simulate(transformer.train_program(shape, strategy, 1, length), "h100", flash=flash)
    assert found.mfu == pytest.approx(asked.mfu, rel=0.02) and found.hfu == pytest.approx(asked.hfu)
    assert found.mfu <= found.hfu * 1.001 and found.hfu <= 1


def test_1f1b_keeps_as_many_microbatches_as_there_are_stages_ahead() -> None:
    some, all_ = (step(data=2, pipeline=4, microbatches=16, schedule=name) for name in ("1f1b", "gpipe"))
    ratio = all_.memory_by_kind["activations"] / some.memory_by_kind["activations"]
    assert ratio == pytest.approx(16 / 4, rel=0.1)


def test_published_layouts_fit() -> None:
    llama = TransformerShape(126, 16384, 53248, heads=128, kv_heads=8, head_dim=128, vocab=128256)
    layout = Strategy(128, 8, 16, 16, zero=2, recompute="attention", sequence_parallel=True)
    found = transformer.train(llama, "h100", layout, 2048, 8192)
    assert found.fits and found.peak_bytes_per_device > 60e9
    assert not transformer.train(llama, "h100", replace(layout, schedule="gpipe", microbatches=64), 8192, 8192).fits
    # Layers, width, heads, stages, replicas and batch of Megatron's 145B, 310B, 530B and 1T.
    rows = [(80, 12288, 96, 8, 24, 2304), (96, 16384, 128, 16, 15, 2160), (105, 20480, 128, 35, 9, 2520),
            (128, 25600, 160, 64, 6, 3072)]  # fmt: skip
    for layers, width, heads, stages, data, batch in rows:
        shape = TransformerShape(layers, width, 4 * width, heads, width // heads, 51200, gated=False, tied=True)
        one = Strategy(data, 8, stages, batch // data, recompute="full")
        assert transformer.train(shape, hardware.get("a100"), one, batch, 2048).fits
