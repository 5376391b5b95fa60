"""Ways to serve a transformer, against every number of chips and every batch; the program of a prompt; texts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import dist, hardware
from meshwright.cli import main
from meshwright.engine.compile import compile_program
from meshwright.errors import ShapeError
from meshwright.simulate import transformer
from meshwright.simulate.transformer import TransformerShape

SMALL = TransformerShape(4, 1024, 4096, heads=8, kv_heads=4, head_dim=128, vocab=8192)
MEMORY = 4e8


BOUNDS = {"decode": ("seconds_per_token", 2.5e-4), "prefill": ("seconds_to_first_token", 2e-3)}


@cache
def searched(step: str = "decode", chips: int = 2) -> Any:
    name, bound = BOUNDS[step]
    return dist.serving_search(SMALL, f"h100 {chips}", step=step, context=512, memory_bytes=MEMORY, **{name: bound})


@pytest.mark.parametrize(
    ("step", "chips", "every"),
    [
        ("decode", 2, 71),
        pytest.param("prefill", 2, 1, marks=pytest.mark.slow),
        pytest.param("decode", 4, 3, marks=pytest.mark.slow),
        pytest.param("prefill", 4, 1, marks=pytest.mark.slow),
    ],
)
def test_no_number_of_chips_and_no_batch_is_better(step: str, chips: int, every: int) -> None:
    found, bound = searched(step, chips), BOUNDS[step][1]
    play, tokens, most = (transformer.decode, 1, 500) if step == "decode" else (transformer.prefill, 512, 30)
    best = 0.0
    for tensor in (n for n in (1, 2, 4) if n <= chips):
        for each in range(1, most, every):
            one = play(SMALL, "h100", each, 512, tensor=tensor)
            if one.peak_bytes_per_device <= MEMORY and one.seconds <= bound:
                best = max(best, tokens * each * chips // tensor / one.seconds)
    assert best > 0
    assert found.best.tokens_per_s >= best * (1 - 1 / 16)
    assert found.search.latency(found.best) <= bound
    assert found.best.peak_bytes_per_device <= MEMORY


def test_layouts_are_what_simulations_say() -> None:
    for one in list(searched())[::9]:
        step = transformer.decode(SMALL, "h100", one.batch // one.replicas, 512, tensor=one.tensor)
        assert (one.seconds_per_token, one.peak_bytes_per_device) == (step.seconds, step.peak_bytes_per_device)
        assert one.tokens_per_s == pytest.approx(one.batch / step.seconds)
        assert one.tensor * one.replicas == 2
        assert sum(searched().search.memory(one).values()) == one.peak_bytes_per_device


def test_the_front_and_contexts() -> None:
    front = searched().front()
    assert [one.tokens_per_s for one in front] == sorted(one.tokens_per_s for one in front)
    assert [one.seconds_per_token for one in front] == sorted(one.seconds_per_token for one in front)
    for one in searched():
        if one.fits:
            better = [f for f in front if f.seconds_per_token <= one.seconds_per_token]
            assert max(f.tokens_per_s for f in better) >= one.tokens_per_s
    free = dist.serving_search(SMALL, "h100 2", tensor=2, batch=[4, 64], memory_bytes=MEMORY)
    assert list(free.by_context) == sorted(free.by_context)
    longest = max(free.by_context)
    assert not any(one.answers for one in free if one.context == 2 * longest)


def test_a_prompt_needs_room_beside_the_caches_of_others() -> None:
    alone = dist.serving_search(SMALL, "h100 2", tensor=2, batch=16, context=4096)
    both = dist.serving_search(SMALL, "h100 2", tensor=2, batch=16, context=4096, seconds_to_first_token=1.0)
    prompt = transformer.prefill(SMALL, "h100", 1, 4096, tensor=2)
    assert both.best.seconds_to_first_token == prompt.seconds
    caches = transformer.kv_cache_bytes(SMALL, 4096, 15) // 2
    wanted = max(alone.best.peak_bytes_per_device, prompt.peak_bytes_per_device + caches)
    assert both.best.peak_bytes_per_device == wanted
    late = dist.serving_search(SMALL, "h100 2", context=4096, seconds_to_first_token=prompt.seconds / 2)
    assert late.best is None
    assert "too late" in late.table()
    assert late.explain() == late.table()


@pytest.mark.slow
def test_what_changes_do() -> None:
    found = searched().what_if()
    said = {one.change: one for one in found}
    assert all(str(one).startswith(f"{one.change}: ") for one in found)
    assert "caches" in list(searched().compare()[0].memory)
    assert {"twice the memory", "half the chips", "half the seconds_per_token"} <= set(said)
    again = dist.serving_search(SMALL, "h100 2", context=512, memory_bytes=MEMORY, seconds_per_token=1.25e-4)
    half = said["half the seconds_per_token"]
    assert half.tokens_per_s == pytest.approx(again.best.tokens_per_s, rel=1 / 3)
    assert "compute" in searched().gantt(80)


def test_an_explanation() -> None:
    found = dist.serving_search(SMALL, "h100 2", batch=64, context=512)
    text = found.explain()
    assert text.startswith(f"best: {found.best.replicas} replicas on {found.best.tensor} chips each, 64 sequences\n")
    assert "parameters" in text and "caches" in text
    said = {one.change: one for one in found.what_if()}
    wider = transformer.decode(SMALL, "h200", 64 // found.best.replicas, 512, tensor=found.best.tensor)
    assert said["h200 chips"].kept_tokens_per_s == pytest.approx(64 / wider.seconds)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError) as refused:
        dist.serving_search(dist.MLP(2, 8, 8), "h100 4")  # type: ignore[arg-type]
    assert str(refused.value).startswith("The model to serve is MLP(")
    with pytest.raises(ShapeError) as refused:
        dist.serving_search(SMALL, "h100 4", tensor=3)
    assert (refused.value.what, refused.value.why, refused.value.fix) == (
        "No replica is on 3 chips.",
        "the machine has 4, and replicas are on 1, 2, 4",
        "tensor=4",
    )
    with pytest.raises(ShapeError) as refused:
        dist.serving_search(SMALL, "h100 4", tensor=1, batch=3)
    assert (refused.value.what, refused.value.why, refused.value.fix) == (
        "A batch of 3 is not divided evenly among replicas.",
        "there are 4 of them",
        "batch=4",
    )


@pytest.mark.parametrize("sizes", [{}, {"experts": 4, "experts_per_token": 4}])
def test_a_prompt_and_a_step_of_decoding_are_a_longer_prompt(sizes: dict[str, int]) -> None:
    shape = TransformerShape(layers=2, width=12, hidden=20, heads=4, kv_heads=2, head_dim=6, vocab=16, **sizes)
    longer, shorter = (transformer.prefill_program(shape, 1, 3, n, "float32") for n in (6, 5))
    step = transformer.decode_program(shape, 1, 3, 5, "float32")
    rng = np.random.default_rng(0)
    params = [np.asarray(rng.normal(size=t.shape), t.dtype) for t in longer.in_types[:-1]]
    tokens = rng.integers(0, 16, (3, 6)).astype(np.int32)
    wanted, keys, values = compile_program(longer)(*params, tokens)
    _, *caches = compile_program(shorter)(*params, tokens[:, :5])
    found, new_keys, new_values = compile_program(step)(*params, *caches, tokens[:, 5])
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(new_keys, keys[:, :, 5], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(new_values, values[:, :, 5], rtol=1e-3, atol=1e-4)


def test_a_prompt_takes_its_flops_and_is_split_over_tensor() -> None:
    shape = hardware.TransformerShape(8, 4096, 11008, heads=32, head_dim=128, vocab=32000)
    one, four = (transformer.prefill(shape, "h100", 4, 2048, tensor=n) for n in (1, 4))
    tokens = 4 * 2048
    closed = 2 * (shape.attention_parameters + shape.mlp_parameters) * tokens
    closed += 4 * 4 * 2048 * shape.heads * shape.head_dim * shape.layers * 1024 + 2 * 4 * shape.vocab * shape.width
    assert one.product_flops == pytest.approx(closed, rel=0.01)
    assert four.product_flops == pytest.approx(one.product_flops / 4, rel=0.01)
    assert mw.hardware.prefill_seconds(shape.parameters, tokens, "h100") == pytest.approx(one.seconds, rel=0.25)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["serving", "--model", "gpt2", "--chips", "2", "--batch", "8", "--context", "256"]
    assert main([*given, "--latency", "5ms", "--front"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("context  tensor  replicas")
    assert "latency against throughput" in out
    assert main([*given, "--json", "--first-token", "1s"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["batch"] == 8
    assert found["best"]["in_time"]
    assert main([*given, "--prefill", "--latency", "1us"]) == 1
    assert "too late" in capsys.readouterr().out
    for more, said in (
        (
            ["--latency", "fast"],
            "--latency is 'fast'.\n  why:  it is a time above 0, in s, ms or us\n  fix:  --latency 50ms\n",
        ),
        (
            ["--context", "0"],
            "--context is '0'.\n  why:  it is numbers of tokens from 1\n  fix:  --context 2048,8192\n",
        ),
        (
            ["--prefill", "--first-token", "1s"],
            "--first-token does not go with --prefill.\n  why:  --latency bounds its prompts\n  fix:  --latency 1s\n",
        ),
    ):
        assert main([*given, *more]) == 2
        assert capsys.readouterr().err == said
