"""Measuring through jax."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Iterator
from math import ceil, prod
from typing import Any

import numpy as np

from meshwright.engine.measuring.cases import Case, Scale, Unsupported
from meshwright.engine.measuring.ops import TYPES, function

SEEDS = 2**16  # how far apart arrays of random numbers start in one block of them


class Jax:
    """Jitted functions; calls are queued and waited for together."""

    name = "jax"

    def __init__(self, quick: bool) -> None:
        import jax
        import jax.numpy as jnp

        self.jax: Any = jax
        self.np: Any = jnp
        device = jax.devices()[0]
        self.on_accelerator = device.platform != "cpu"
        self.facts = {
            "version": jax.__version__,
            "device": device.device_kind,
            "platform": device.platform,
            "devices": jax.device_count(),
            "units": getattr(device, "core_count", None),
            "matmul_f32": "default precision",
        }
        size = 2**18 if quick else 2**26 if self.on_accelerator else 2**22
        self.numbers = jnp.asarray(np.random.default_rng(0).standard_normal(2**18).astype(np.float32))
        self.numbers = jnp.tile(self.numbers, size // 2**18)
        self._take = jax.jit(self._taken, static_argnums=(2, 3))

    def _taken(self, numbers: Any, start: Any, shape: tuple[int, ...], dtype: str) -> Any:
        count = prod(shape)
        if count + SEEDS > numbers.size:
            numbers = self.np.tile(numbers, ceil((count + SEEDS) / numbers.size))
        taken = self.jax.lax.dynamic_slice(numbers, (start,), (count,)).reshape(shape)
        if dtype.startswith("below"):
            return (self.np.abs(taken) * 1e6).astype(self.np.int32) % int(dtype.split()[1])
        return taken.astype(TYPES[dtype])

    def array(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        return self._take(self.numbers, 7919 * seed % SEEDS, shape, dtype)

    def spread(self, array: Any, devices: int) -> Any:
        """The array, a part on each device."""
        mesh = self.jax.make_mesh((devices,), ("x",), axis_types=(self.jax.sharding.AxisType.Auto,))
        return self.jax.device_put(array, self.jax.sharding.NamedSharding(mesh, self.jax.sharding.PartitionSpec("x")))

    def wait(self, value: Any) -> None:
        self.jax.block_until_ready(value)

    def function(self, case: Case) -> Any:
        if case.op == "fused_attention" and not self.on_accelerator:
            raise Unsupported("fused attention needs a GPU")
        return self.jax.jit(self._collective(case) if case.op.startswith("all_") else function(case, self.jax))

    def repeated(self, case: Case, times: int) -> Any:
        """A jitted function of groups of inputs: the op on each group, in a loop that runs ``times`` times.

        The inputs of an iteration hang on the one before, by a barrier, so that nothing is taken out of the loop.
        """
        once, lax, jax = self.function(case), self.jax.lax, self.jax

        def every(groups: list[list[Any]]) -> list[Any]:
            return jax.tree.leaves([once(*group) for group in groups])  # type: ignore[no-any-return]

        def run(groups: list[list[Any]]) -> Any:
            def body(_: Any, carried: Any) -> Any:
                inputs, token = lax.optimization_barrier((groups, carried[0]))
                return token, every(inputs)

            return lax.fori_loop(0, times - 1, body, (self.np.zeros((), self.np.int32), every(groups)))

        return jax.jit(run)

    def _collective(self, case: Case) -> Any:
        jax, spec = self.jax, self.jax.sharding.PartitionSpec
        kinds = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((case.sizes["devices"],), ("x",), axis_types=kinds)
        if case.op == "all_reduce":
            reduce: Callable[..., Any] = lambda x: jax.lax.psum(x, "x")
            return jax.shard_map(reduce, mesh=mesh, in_specs=spec("x"), out_specs=spec())
        gather: Callable[..., Any] = lambda x: jax.lax.all_gather(x, "x", tiled=True)
        return jax.shard_map(gather, mesh=mesh, in_specs=spec("x"), out_specs=spec("x"))

    def collectives(self, scale: Scale) -> Iterator[Case]:
        """All-reduces and all-gathers of several sizes, if there are several devices."""
        count = self.jax.device_count()
        for power in (16, 20, 24, 27) if count > 1 else ():
            for op in ("all_reduce", "all_gather"):
                part = "held out" if power == 24 else "calibration"
                yield Case(part, op, "f32", {"elements": count * scale.element(2**power), "devices": count})

    def compiled(self, function: Any, *arguments: Any) -> tuple[Any, dict[str, Any]]:
        """A compiled step, with XLA's own count of its work and its top-level instructions."""
        compiled = function.lower(*arguments).compile()
        counted = compiled.cost_analysis() or {}
        found = {key: counted[key] for key in ("flops", "bytes accessed", "transcendentals") if key in counted}
        return compiled, {"xla": found, "program": top_level(compiled.as_text()) if self.on_accelerator else []}

    def kernels(self, run: Callable[[], Any]) -> list[list[Any]]:
        """Name, count and total seconds of each kernel that ``run`` starts."""
        totals: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            with self.jax.profiler.trace(folder):
                self.wait(run())
            for path in glob.glob(f"{folder}/**/*.xplane.pb", recursive=True):
                for plane in self.jax.profiler.ProfileData.from_file(path).planes:
                    for line in plane.lines if "GPU" in plane.name else ():
                        for event in line.events if "Stream" in line.name else ():
                            total = totals.setdefault(event.name[:80], [0, 0.0])
                            total[0] += 1
                            total[1] += event.duration_ns * 1e-9
        return [[name, *total] for name, total in sorted(totals.items(), key=lambda item: -item[1][1])][:150]

    def step(self, case: Case) -> tuple[Any, Any, tuple[Any, ...]]:
        """A jitted train step ``(state, *batch) -> (state, loss)``, its first state, and a batch."""
        jnp, jax, s = self.np, self.jax, case.sizes
        half, f32 = jnp.bfloat16, jnp.float32
        seeds = iter(range(1, 1000))

        def weight(*shape: int) -> Any:
            return self.array(shape, "f32", next(seeds)) * (prod(shape[:-1]) ** -0.5)

        if case.op == "mlp_step":
            parameters: Any = [(weight(s["width"], s["width"]), jnp.zeros(s["width"])) for _ in range(s["layers"])]
            batch = tuple(self.array((s["batch"], s["width"]), "bf16", seed) for seed in (1001, 1002))

            def loss(parameters: Any, x: Any, y: Any) -> Any:
                for w, b in parameters:
                    x = jax.nn.relu(x @ w.astype(half) + b.astype(half))
                return jnp.mean((x - y).astype(f32) ** 2)

        elif case.op == "conv_step":
            parameters, before, channels = [], s["channels"], s["channels"]
            for _stage in range(s["stages"]):
                for _ in range(s["depth"]):
                    parameters.append((weight(3, 3, before, channels), jnp.zeros(channels)))
                    before = channels
                channels *= 2
            parameters.append((weight(before, 1024), jnp.zeros(1024)))
            batch = (self.array((s["images"], s["side"], s["side"], s["channels"]), "bf16", 1001),
                     self.array((s["images"],), "below 1024", 1002))  # fmt: skip

            def loss(parameters: Any, x: Any, y: Any) -> Any:
                layers = iter(parameters)
                for _stage in range(s["stages"]):
                    for _ in range(s["depth"]):
                        w, b = next(layers)
                        x = jax.lax.conv_general_dilated(
                            x, w.astype(half), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                        )
                        x = jax.nn.relu(x + b.astype(half))
                    n, h, _, c = x.shape
                    x = x.reshape(n, h // 2, 2, h // 2, 2, c).astype(f32).mean((2, 4)).astype(half)
                w, b = next(layers)
                logits = x.astype(f32).mean((1, 2)) @ w + b
                return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

        else:
            d, heads = s["width"], s["heads"]
            shapes = ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d))
            parameters = [
                weight(s["vocabulary"], d),
                [[weight(*shape) for shape in shapes] for _ in range(s["layers"])],
                weight(d, s["vocabulary"]),
            ]
            shape = (s["batch"], s["tokens"])
            batch = tuple(self.array(shape, f"below {s['vocabulary']}", seed) for seed in (1001, 1002))

            def norm(x: Any) -> Any:
                y = x.astype(f32)
                return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(half)

            def loss(parameters: Any, x: Any, y: Any) -> Any:
                targets, (table, blocks, out) = y, parameters
                x = table[x].astype(half)
                b, t, _ = x.shape
                allowed = jnp.tril(jnp.ones((t, t), bool))
                for qkv, projection, up, down in blocks:
                    y = (norm(x) @ qkv.astype(half)).reshape(b, t, 3, heads, d // heads)
                    q, k, v = (y[:, :, i].swapaxes(1, 2) for i in range(3))
                    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(f32) * (d // heads) ** -0.5
                    weights = jax.nn.softmax(jnp.where(allowed, scores, -1e9), -1).astype(half)
                    y = jnp.einsum("bhqk,bhkd->bhqd", weights, v).swapaxes(1, 2).reshape(b, t, d)
                    x = x + y @ projection.astype(half)
                    x = x + jax.nn.gelu(norm(x) @ up.astype(half)) @ down.astype(half)
                logits = (norm(x) @ out.astype(half)).astype(f32)
                logarithms = jax.nn.log_softmax(logits, -1)
                return -jnp.take_along_axis(logarithms, targets[..., None], -1).mean()

        moments = 2 if case.op == "transformer_step" else 1
        zeros = [jax.tree.map(jnp.zeros_like, parameters) for _ in range(moments)]

        def step(state: Any, *batch: Any) -> Any:
            parameters, *moment = state
            value, gradient = jax.value_and_grad(loss)(parameters, *batch)
            m = jax.tree.map(lambda m, g: 0.9 * m + g, moment[0], gradient)
            if moments == 1:
                return (jax.tree.map(lambda p, m: p - 1e-4 * m, parameters, m), m), value
            v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moment[1], gradient)
            new = jax.tree.map(lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), parameters, m, v)
            return (new, m, v), value

        return jax.jit(step, donate_argnums=0), (parameters, *zeros), batch


def top_level(text: str) -> list[str]:
    """The instructions of compiled HLO outside of fusions, types and metadata cut short."""
    out, inside = [], False
    for line in text.splitlines():
        if not line.startswith(" "):
            inside = line.startswith(("ENTRY", "%command_buffer", "%while", "%body", "%region_while"))
        elif inside and not any(f" {op}(" in line for op in ("parameter", "get-tuple-element", "bitcast", "constant")):
            out.append(line.strip().split(", backend_config")[0].split(", metadata")[0][:300])
    return out[:800]
