"""Measuring through torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from meshwright.engine.measuring.cases import Case, Scale


class Torch:
    """Eager calls; on a GPU they are queued and timed by the clock after a synchronization."""

    name = "torch"

    def __init__(self, quick: bool) -> None:
        import torch

        self.torch: Any = torch
        self.on_accelerator = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_accelerator else "cpu")
        self.types = {"bf16": torch.bfloat16, "f32": torch.float32}
        properties = torch.cuda.get_device_properties(0) if self.on_accelerator else None
        self.facts = {
            "version": torch.__version__,
            "device": properties.name if properties else "cpu",
            "platform": self.device.type,
            "devices": torch.cuda.device_count() if self.on_accelerator else 1,
            "units": properties.multi_processor_count if properties else None,
            "matmul_f32": torch.get_float32_matmul_precision(),
        }
        torch.manual_seed(0)

    def array(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        if dtype.startswith("below"):
            return self.torch.randint(int(dtype.split()[1]), shape, device=self.device)
        return self.torch.randn(shape, device=self.device, dtype=self.types[dtype])

    def wait(self, value: Any) -> None:
        if self.on_accelerator:
            self.torch.cuda.synchronize()

    def function(self, case: Case) -> Callable[..., Any]:
        torch, s = self.torch, case.sizes
        f = torch.nn.functional

        def adam(p: Any, m: Any, v: Any, g: Any) -> Any:
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * (g * g)
            return p - 1e-3 * m / (v.abs().sqrt() + 1e-8), m, v

        def chain(x: Any, w: Any) -> Any:
            for _ in range(s["links"]):
                x = x @ w
            return x

        def scatter(rows: Any, index: Any) -> Any:
            return torch.zeros(s["table"], s["columns"], device=rows.device, dtype=rows.dtype).index_add_(
                0, index, rows
            )

        def attention(q: Any, k: Any, v: Any) -> Any:
            return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

        def last(x: Any) -> Any:
            """Channels last in memory, as the other frameworks have them."""
            return x.permute(0, 3, 1, 2)

        def conv(x: Any, w: Any) -> Any:
            return f.conv2d(
                last(x), w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last), padding="same"
            )

        def gradient(which: int) -> Callable[..., Any]:
            mask, pad = [which == 0, which == 1, False], s.get("kernel", 1) // 2
            shape = (s.get("out", 1), s.get("in", 1), s.get("kernel", 1), s.get("kernel", 1))

            def run(first: Any, second: Any) -> Any:
                if which == 0:
                    w = second.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
                    y, x = last(first), last(first.new_empty(*first.shape[:3], shape[1]))
                else:
                    x, y = last(first), last(second)
                    w = x.new_empty(shape).contiguous(memory_format=torch.channels_last)
                return torch.ops.aten.convolution_backward(
                    y, x, w, None, [1, 1], [pad, pad], [1, 1], False, [0, 0], 1, mask
                )[which]

            return run

        functions: dict[str, Callable[..., Any]] = {
            "matmul": torch.matmul, "chain": chain, "nothing": lambda x: x + 1, "add": torch.add, "exp": torch.exp,
            "axpy": lambda x, y: 2.5 * x + y, "relu": torch.relu, "tanh": torch.tanh,
            "gelu": lambda x: f.gelu(x, approximate="tanh"), "swiglu": lambda x, y: f.silu(x) * y, "adam": adam,
            "mask": lambda x: torch.where(x > 0.5, x, -1e9), "cast": lambda x: x.to(torch.bfloat16),
            "bias_relu": lambda x, b: torch.relu(x + b), "sum_rows": lambda x: x.sum(1),
            "mean_rows": lambda x: x.mean(1), "sum_columns": lambda x: x.sum(0), "max_rows": lambda x: x.amax(1),
            "sum_all": torch.sum, "norm_all": torch.linalg.vector_norm, "softmax": lambda x: torch.softmax(x, -1),
            "log_softmax": lambda x: torch.log_softmax(x, -1), "layer_norm": lambda x: f.layer_norm(x, x.shape[-1:]),
            "rms_norm": lambda x: f.rms_norm(x, x.shape[-1:]), "transpose": lambda x: x.t().contiguous(),
            "gather": lambda x, i: f.embedding(i, x), "scatter": scatter, "attention": attention,
            "fused_attention": f.scaled_dot_product_attention, "conv": conv, "conv_input_grad": gradient(0),
            "conv_filter_grad": gradient(1),
        }  # fmt: skip
        function = functions[case.op]

        def without_gradients(*arguments: Any) -> Any:
            with torch.no_grad():
                return function(*arguments)

        return without_gradients

    def collectives(self, scale: Scale) -> Iterator[Case]:
        """None: they would need a process for each device."""
        yield from ()

    def compiled(self, function: Any, *arguments: Any) -> tuple[Any, dict[str, Any]]:
        """The function itself: nothing is known of it before it runs."""
        return function, {}

    def kernels(self, run: Callable[[], Any]) -> list[list[Any]]:
        """Name, count and total seconds of each kernel that ``run`` starts."""
        profiler = self.torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
            self.wait(run())
        rows = [
            [e.key[:80], e.count, 1e-6 * getattr(e, "self_device_time_total", 0)]
            for e in profile.key_averages()
            if getattr(e, "self_device_time_total", 0)
        ]
        return sorted(rows, key=lambda row: -row[2])[:150]

    def step(self, case: Case) -> tuple[Any, Any, tuple[Any, ...]]:
        """A train step ``(state, *batch) -> (state, loss)``, its first state, and a batch."""
        torch, s = self.torch, case.sizes
        f, half = torch.nn.functional, torch.bfloat16

        def weight(*shape: int) -> Any:
            return (self.array(shape, "f32", 0) * prod(shape[:-1]) ** -0.5).requires_grad_()

        def bias(size: int) -> Any:
            return torch.zeros(size, device=self.device, requires_grad=True)

        if case.op == "mlp_step":
            layers = [(weight(s["width"], s["width"]), bias(s["width"])) for _ in range(s["layers"])]
            parameters = [p for layer in layers for p in layer]
            batch = tuple(self.array((s["batch"], s["width"]), "bf16", 0) for _ in range(2))

            def loss(x: Any, y: Any) -> Any:
                for w, b in layers:
                    x = torch.relu(x @ w.to(half) + b.to(half))
                return ((x - y).float() ** 2).mean()

        elif case.op == "conv_step":
            layers, before, channels = [], s["channels"], s["channels"]
            for _stage in range(s["stages"]):
                for _ in range(s["depth"]):
                    w = weight(3, 3, before, channels).detach().permute(3, 2, 0, 1)
                    layers.append((w.contiguous(memory_format=torch.channels_last).requires_grad_(), bias(channels)))
                    before = channels
                channels *= 2
            head = (weight(before, 1024), bias(1024))
            parameters = [p for layer in (*layers, head) for p in layer]
            shape = (s["images"], s["side"], s["side"], s["channels"])
            batch = (self.array(shape, "bf16", 0).permute(0, 3, 1, 2), self.array((s["images"],), "below 1024", 0))

            def loss(x: Any, y: Any) -> Any:
                for number, (w, b) in enumerate(layers):
                    x = torch.relu(f.conv2d(x, w.to(half), padding="same") + b.to(half)[:, None, None])
                    if number % s["depth"] == s["depth"] - 1:
                        x = f.avg_pool2d(x, 2)
                return f.cross_entropy(x.float().mean((2, 3)) @ head[0] + head[1], y)

        else:
            d, heads = s["width"], s["heads"]
            table, out = weight(s["vocabulary"], d), weight(d, s["vocabulary"])
            blocks = [(weight(d, 3 * d), weight(d, d), weight(d, 4 * d), weight(4 * d, d)) for _ in range(s["layers"])]
            parameters = [table, out, *(p for block in blocks for p in block)]
            batch = tuple(self.array((s["batch"], s["tokens"]), f"below {s['vocabulary']}", 0) for _ in range(2))
            allowed = torch.ones(s["tokens"], s["tokens"], device=self.device, dtype=torch.bool).tril()

            def loss(x: Any, y: Any) -> Any:
                targets = y
                x = f.embedding(x, table).to(half)
                b, t, _ = x.shape
                for qkv, projection, up, down in blocks:
                    y = (f.rms_norm(x, (d,)) @ qkv.to(half)).reshape(b, t, 3, heads, d // heads)
                    q, k, v = (y[:, :, i].transpose(1, 2) for i in range(3))
                    scores = (q @ k.transpose(-1, -2)) * (d // heads) ** -0.5
                    weights = torch.softmax(scores.masked_fill(~allowed, -1e9), -1)
                    x = x + (weights @ v).transpose(1, 2).reshape(b, t, d) @ projection.to(half)
                    x = x + f.gelu(f.rms_norm(x, (d,)) @ up.to(half), approximate="tanh") @ down.to(half)
                logits = f.rms_norm(x, (d,)) @ out.to(half)
                return f.cross_entropy(logits.float().view(b * t, -1), targets.view(-1))

        if case.op == "transformer_step":
            optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=self.on_accelerator)
        else:
            optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=self.on_accelerator)

        def step(state: Any, *batch: Any) -> Any:
            optimizer.zero_grad(set_to_none=True)
            value = loss(*batch)
            value.backward()
            optimizer.step()
            return state, value

        return step, None, batch
