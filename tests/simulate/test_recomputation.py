"""What policies of checkpoint cost on a machine: memory, time, and the share of work that is the model's."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P
from meshwright.simulate import Simulation

D, FF, HEADS, LENGTH, BATCH, LAYERS = 1024, 4096, 8, 512, 16, 4
SHAPES = {"q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D), "up": (D, FF), "down": (FF, D)}
POLICIES = mw.checkpoint_policies


def layer(x: Any, w: dict[str, Any]) -> Any:
    q, k, v = ((x @ w[n]).reshape(*x.shape[:2], HEADS, -1) for n in "qkv")
    scores = mw.nn.softmax(mnp.einsum("bshd,bthd->bhst", q, k), axis=-1)
    x = x + mnp.einsum("bhst,bthd->bshd", scores, v).reshape(x.shape) @ w["o"]
    return x + mw.nn.gelu(x @ w["up"]) @ w["down"]


def bf16(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, "bfloat16")


def step(scan: bool, one: Any) -> tuple[Any, tuple[Any, Any]]:
    """The train step of a transformer, and the shapes of its arguments."""

    def loss(w: Any, x: Any) -> Any:
        if scan:
            x, _ = mw.lax.scan(lambda x, w: (one(x, w), None), x, w)
        else:
            for each in w:
                x = one(x, each)
        return (x.astype("float32") ** 2).sum()

    stacked = {n: bf16(LAYERS, *shape) for n, shape in SHAPES.items()}
    weights = stacked if scan else [{n: bf16(*shape) for n, shape in SHAPES.items()}] * LAYERS
    return mw.value_and_grad(loss), (weights, bf16(BATCH, LENGTH, D))


def simulated(scan: bool, one: Any) -> Simulation:
    function, args = step(scan, one)  # without flash, checkpoints alone say what is computed again
    return mw.simulate(mw.make_program(function)(*args), "h100", flash=False)


@pytest.fixture(scope="module", params=[True, False], ids=["scan", "layers"])
def found(request: Any) -> dict[str, Simulation]:
    policies = {
        "dots": POLICIES.dots_saveable,
        "dots without batch": POLICIES.dots_with_no_batch_dims_saveable,
        "full": POLICIES.nothing_saveable,
    }
    runs = {name: simulated(request.param, mw.checkpoint(layer, policy=p)) for name, p in policies.items()}
    return {"none": simulated(request.param, layer), **runs, "scan": request.param}


def test_the_less_is_kept_the_less_memory_and_the_more_work(found: dict[str, Any]) -> None:
    order = [found[name] for name in ("none", "dots", "dots without batch", "full")]
    memory = [run.peak_bytes_per_device for run in order]
    assert memory == sorted(memory, reverse=True) and memory[0] > 2 * memory[-1]
    work = [run.product_flops for run in order]
    assert work == sorted(work)
    assert order[1].seconds < order[2].seconds < order[3].seconds and order[0].seconds < order[3].seconds
    # A loop writes and reads all it keeps, elementwise values too; outside of loops these are computed in fusions.
    assert (order[0].seconds < order[1].seconds) is not found["scan"]


def test_only_the_model_s_own_products_count_as_its_work(found: dict[str, Any]) -> None:
    none, dots, full = (found[name] for name in ("none", "dots", "full"))
    for run in (none, dots, full):
        assert run.mfu * run.seconds == pytest.approx(none.mfu * none.seconds)
        assert run.hfu * run.seconds == pytest.approx(run.product_flops / run.topology.chip.flops_per_s("bf16"))
    assert none.mfu == none.hfu and dots.mfu == dots.hfu and "HFU" not in str(none) + str(dots)
    # Computed again is all but the last matmul, whose result no derivative needs.
    tokens = BATCH * LENGTH
    forward = 2 * tokens * (4 * D * D + 2 * D * FF + 2 * D * LENGTH)
    again = LAYERS * (forward - 2 * tokens * D * FF)
    assert full.product_flops - none.product_flops == again
    assert f"MFU {full.mfu:.1%}, HFU {full.hfu:.1%} with what is computed again" in str(full)


def test_what_is_computed_again_is_known_after_partitioning_and_in_text() -> None:
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    columns, rows = P(None, None, "model"), P(None, "model", None)
    specs = {"q": columns, "k": columns, "v": columns, "o": rows, "up": columns, "down": rows}
    function, (weights, x) = step(True, mw.checkpoint(layer))
    placed = {n: mw.NamedSharding(mesh, spec) for n, spec in specs.items()}
    compiled = mw.jit(function, in_shardings=(placed, mw.NamedSharding(mesh, P("data")))).lower(weights, x).compile()
    run, whole = mw.simulate(compiled, "h100", flash=False), simulated(True, mw.checkpoint(layer))
    assert run.hfu / run.mfu == pytest.approx(whole.hfu / whole.mfu)
    assert run.product_flops * 8 == pytest.approx(whole.product_flops)
    program = mw.make_program(function)(weights, x)
    read = mw.simulate(mw.parse_program(str(program)), "h100", flash=False)
    assert (read.mfu, read.hfu) == (whole.mfu, whole.hfu) and read.mfu < read.hfu


# Offloading, of layers so wide that a value is on its way for less time than it took to compute

WIDE = {"up": (LAYERS, 16384, 65536), "down": (LAYERS, 65536, 16384)}
TOKENS = 8192


def wide(policy: Any, **options: Any) -> Simulation:
    one = mw.checkpoint(lambda x, w: x + mw.nn.gelu(x @ w["up"]) @ w["down"], policy=policy)

    def loss(w: Any, x: Any) -> Any:
        return (mw.lax.scan(lambda x, w: (one(x, w), None), x, w)[0].astype("float32") ** 2).sum()

    weights = {n: bf16(*shape) for n, shape in WIDE.items()}
    return mw.simulate(mw.make_program(mw.value_and_grad(loss))(weights, bf16(TOKENS, 16384)), "h100", **options)


def test_what_is_offloaded_is_on_the_host_and_travels_beside_the_matmuls() -> None:
    dots = POLICIES.dots_with_no_batch_dims_saveable
    away = POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host")
    kept, full, offloaded, serial = wide(dots), wide(None), wide(away), wide(away, overlap="none")
    stacked = LAYERS * TOKENS * 65536 * 2  # the results of the first matmuls; no derivative needs those of the second
    assert offloaded.memory.host_bytes == stacked and kept.memory.host_bytes == full.memory.host_bytes == 0
    assert offloaded.peak_bytes_per_device == full.peak_bytes_per_device < kept.peak_bytes_per_device
    assert offloaded.product_flops == kept.product_flops < full.product_flops
    rate = offloaded.topology.chip.memory_bytes_per_s("pcie")
    assert offloaded.host_seconds == pytest.approx(2 * stacked / rate)
    assert offloaded.unit_seconds()["to host"] == offloaded.unit_seconds()["from host"] == pytest.approx(stacked / rate)
    assert serial.seconds == pytest.approx(serial.compute_seconds + serial.host_seconds)
    # All is hidden but the first value on its way out, or the last on its way in.
    assert offloaded.seconds < offloaded.compute_seconds + 2 * stacked / rate / LAYERS
    assert kept.seconds <= offloaded.seconds * 1.01 < full.seconds
    assert "GB on the host" in str(offloaded) and "to and from the host" in str(offloaded)
    assert f"{stacked / 1e9:.3g} GB offloaded to the host" in str(offloaded.memory)


def test_reloads_wait_until_they_are_nearly_needed() -> None:
    """Layers one after another: what they keep is away until shortly before it is read."""

    def run(policy: Any) -> Simulation:
        one = mw.checkpoint(lambda x, w: x + mw.nn.gelu(x @ w) @ w.T, policy=policy)

        def loss(x: Any, w: Any) -> Any:
            for _ in range(12):
                x = one(x, w)
            return (x.astype("float32") ** 2).sum()

        return mw.simulate(mw.make_program(mw.value_and_grad(loss))(bf16(TOKENS, 16384), bf16(16384, 65536)), "h100")

    offloaded = run(POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host"))
    kept, each = run(POLICIES.dots_saveable), TOKENS * 65536 * 2
    assert offloaded.memory.host_bytes == 12 * each
    assert kept.peak_bytes_per_device - offloaded.peak_bytes_per_device >= 9 * each
    assert offloaded.seconds <= 1.05 * kept.seconds


def test_a_slow_link_decides() -> None:
    away = POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host")
    function, args = step(True, mw.checkpoint(layer, policy=away))
    result = mw.simulate(mw.make_program(function)(*args), "h100")
    assert result.bound == "bound by the link to the host, by 2.2x over compute"
    assert result.seconds >= result.unit_seconds()["to host"] + result.unit_seconds()["from host"]


# Gradient accumulation, as users write it: a scan over microbatches


@pytest.mark.parametrize("microbatches", [1, 4, 16])
def test_accumulated_gradients_need_one_sum_and_the_values_of_one_microbatch(microbatches: int) -> None:
    layers, d, ff, tokens = 4, 2048, 8192, 1024
    one = mw.checkpoint(lambda x, w: x + mw.nn.gelu(x @ w["up"]) @ w["down"], policy=POLICIES.dots_saveable)

    def loss(w: Any, x: Any) -> Any:
        return (mw.lax.scan(lambda x, w: (one(x, w), None), x, w)[0] ** 2).sum()

    def train(w: Any, momentum: Any, xs: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return mw.tree.map(mnp.add, total, mw.grad(loss)(w, x)), None

        total, _ = mw.lax.scan(add, mw.tree.map(mnp.zeros_like, w), xs)
        momentum = mw.tree.map(lambda m, g: 0.9 * m + g, momentum, total)
        return mw.tree.map(lambda w, m: w - 0.01 * m, w, momentum), momentum

    def f32(*shape: int) -> Any:
        return mw.ShapeDtypeStruct(shape, "float32")

    w = {"up": f32(layers, d, ff), "down": f32(layers, ff, d)}
    parameters, batch = 2 * 4 * layers * d * ff, 4 * microbatches * tokens * d
    compiled = mw.jit(train, donate_argnums=(0, 1)).lower(w, w, f32(microbatches, tokens, d)).compile()
    found = mw.simulate(compiled, "h100").memory
    # Parameters, momentum, the sum, and the gradient of one microbatch beside what its derivative keeps of each layer:
    # its argument and the result of its first matmul; with these, some values of the layer that is worked on.
    kept = 4 * layers * tokens * (d + ff)
    assert 4 * parameters + kept <= found.peak_bytes - batch <= 4 * parameters + 1.5 * kept
    assert found.alias_bytes == 2 * parameters  # new parameters and momentum lie where the old ones did
