"""The work of a case: the kernels that should run, as XLA, eager torch or NumPy split it."""

from __future__ import annotations

from typing import Any

from meshwright.engine.measuring.cases import ITEM, Case

Work = dict[str, Any]


def _matmul(m: int, k: int, n: int, dtype: str, batch: int = 1, count: int = 1, what: str = "") -> Work:
    return {"kind": "matmul", "dtype": dtype, "batch": batch, "m": m, "k": k, "n": n, "count": count, "what": what}


def _moving(kind: str, read: float, written: float, count: int = 1, what: str = "") -> Work:
    """A kernel that does little but read and write."""
    return {"kind": kind, "read": read, "written": written, "count": count, "what": what}


def work(case: Case, framework: str) -> list[Work]:
    """The kernels of a case, with their sizes; what framework fuses what is an assumption stated here."""
    s, op, item = case.sizes, case.op, ITEM[case.dtype]
    fuses = framework == "jax"  # a chain of elementwise ops is one pass under XLA, a pass each in eager torch
    if op in _STEP_WORK:
        return _STEP_WORK[op](s, fuses)
    if op == "matmul":
        return [_matmul(s["m"], s["k"], s["n"], case.dtype, s["batch"])]
    if op == "chain":
        return [_matmul(s["m"], s["m"], s["m"], case.dtype, count=s["links"])]
    if op == "nothing":
        return [_moving("stream", 0, 0)]
    if op in ("all_reduce", "all_gather"):
        return [{"kind": op, "bytes": s["elements"] * item, "devices": s["devices"], "count": 1, "what": op}]
    if "elements" in s:
        inputs, outputs = {"add": (2, 1), "axpy": (2, 1), "swiglu": (2, 1), "adam": (4, 3)}.get(op, (1, 1))
        n = s["elements"] * item
        if op == "cast":
            return [_moving("stream", n, n // 2)]
        if fuses or op not in ("axpy", "swiglu", "adam", "bias_relu", "mask"):
            return [_moving("stream", inputs * n, outputs * n)]
        # Passes of the eager form, as (arrays read, arrays written).
        eager: dict[str, list[tuple[float, float]]] = {
            "axpy": [(1, 1), (2, 1)], "swiglu": [(1, 1), (2, 1)], "bias_relu": [(1, 1), (1, 1)],
            "mask": [(1, 0.25), (1.25, 1)],
            "adam": [(1, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (2, 1), (2, 1)],
        }  # fmt: skip
        return [_moving("stream", read * n, written * n) for read, written in eager[op]]
    if "rows" in s:
        n, rows, columns = s["rows"] * s["columns"] * item, s["rows"] * item, s["columns"] * item
        kinds = {
            "sum_rows": ("reduce", n, rows), "mean_rows": ("reduce", n, rows), "max_rows": ("reduce", n, rows),
            "sum_columns": ("reduce", n, columns), "sum_all": ("reduce", n, 4), "norm_all": ("reduce", n, 4),
            "transpose": ("transpose", n, n),
        }  # fmt: skip
        return [_moving(*kinds.get(op, ("normalize", n, n)))]
    if op == "gather":
        n = s["indices"] * s["columns"] * item
        return [_moving("gather", n + 4 * s["indices"], n)]
    if op == "scatter":
        n, table = s["indices"] * s["columns"] * item, s["table"] * s["columns"] * item
        return [_moving("stream", 0, table, what="zeros"), _moving("scatter", 2 * n, n, what="add rows")]
    if op in ("attention", "fused_attention"):
        b, t, h = s["batch"] * s["heads"], s["tokens"], s["head"]
        if op == "fused_attention":
            flops, moved = 4 * b * t * t * h, 4 * b * t * h * item
            return [{"kind": "attention", "dtype": case.dtype, "flops": flops, "bytes": moved, "count": 1}]
        scores = b * t * t * item
        return [
            _matmul(t, h, t, case.dtype, b, what="scores"),
            _moving("normalize", scores, scores, what="softmax"),
            _matmul(t, t, h, case.dtype, b, what="weighted sum"),
        ]
    if op.startswith("conv"):
        return [_conv(op, s["images"], s["side"], s["in"], s["out"], s["kernel"], case.dtype)]
    raise ValueError(f"no work is known for {op}")


def _conv(op: str, images: int, side: int, channels: int, features: int, kernel: int, dtype: str) -> Work:
    return {"kind": op, "dtype": dtype, "images": images, "side": side, "in": channels, "out": features,
            "kernel": kernel, "count": 1, "what": op}  # fmt: skip


def _mlp_work(s: dict[str, int], fuses: bool) -> list[Work]:
    """Layers of ``relu(x @ w + b)``; the optimizer is SGD with momentum on f32 parameters."""
    b, w, layers = s["batch"], s["width"], s["layers"]
    x, p = b * w * 2, w * w
    out = [
        _moving("stream", 4 * p, 2 * p, layers, "weights to bf16"),
        _matmul(b, w, w, "bf16", count=layers, what="forward"),
        _matmul(b, w, w, "bf16", count=layers - 1, what="gradient of x"),
        _matmul(w, b, w, "bf16", count=layers, what="gradient of w"),
        _moving("stream", x, x, layers * (1 if fuses else 2), "bias and relu"),
        _moving("stream", 2 * x, x, layers, "gradient of relu"),
        _moving("reduce", x, 4 * w, layers, "gradient of b"),
        _moving("reduce", 2 * x, 4, 1, "loss"),
    ]
    if fuses:
        return [*out, _moving("stream", (4 + 4 + 2) * p, 8 * p, layers, "momentum, update")]
    return [*out, _moving("stream", 2 * p, 4 * p, layers, "gradients to f32"),
            _moving("stream", 8 * p, 4 * p, 2 * layers, "momentum, update")]  # fmt: skip


def _transformer_work(s: dict[str, int], fuses: bool) -> list[Work]:
    """Pre-norm blocks with plain causal attention and a gelu MLP of 4 times the width; Adam on f32 parameters."""
    n, t, d, layers, vocabulary = s["batch"] * s["tokens"], s["tokens"], s["width"], s["layers"], s["vocabulary"]
    heads, head = s["batch"] * s["heads"], d // s["heads"]
    x, scores = n * d * 2, s["batch"] * s["heads"] * t * t * 2
    block, table = 12 * d * d, vocabulary * d
    out: list[Work] = []
    for k, width, what in ((d, 3 * d, "qkv"), (d, d, "projection"), (d, 4 * d, "up"), (4 * d, d, "down")):
        out += [
            _matmul(n, k, width, "bf16", count=layers, what=what),
            _matmul(n, width, k, "bf16", count=layers, what=f"{what}: gradient of x"),
            _matmul(k, n, width, "bf16", count=layers, what=f"{what}: gradient of w"),
        ]
    out += [
        _matmul(t, head, t, "bf16", heads, 2 * layers, "scores; gradient of weights"),
        _matmul(t, t, head, "bf16", heads, 4 * layers, "weighted sum; gradients of v, q, k"),
        _moving("normalize", scores, scores, layers, "softmax"),
        _moving("normalize", 2 * scores, scores, layers, "gradient of softmax"),
        _moving("transpose", 3 * x, 3 * x, 2 * layers, "heads apart; gradients back"),
        _moving("transpose", x, x, 2 * layers, "heads together; gradient back"),
        _moving("normalize", 2 * x, 2 * x, 2 * layers, "residual and norm"),
        _moving("normalize", 3 * x, x, 2 * layers, "gradient of norm and residual"),
        _moving("stream", 4 * x, 4 * x, layers, "gelu"),
        _moving("stream", 8 * x, 4 * x, layers, "gradient of gelu"),
        _moving("stream", 4 * (block * layers + table), 2 * (block * layers + table), 1, "weights to bf16"),
        _moving("gather", x, x, what="embedding"),
        _moving("stream", 0, 4 * table, what="zeros"),
        _moving("scatter", 2 * 2 * x + x, 2 * x, what="gradient of embedding"),
        _matmul(n, d, vocabulary, "bf16", what="logits"),
        _matmul(n, vocabulary, d, "bf16", what="logits: gradient of x"),
        _matmul(d, n, vocabulary, "bf16", what="logits: gradient of w"),
        _moving("normalize", 2 * 2 * n * vocabulary, 2 * n * vocabulary, what="loss and its gradient"),
    ]
    p = block * layers + 2 * table
    if fuses:
        return [*out, _moving("stream", (2 + 12) * p, 12 * p, 1, "adam")]
    return [*out, _moving("stream", 2 * p, 4 * p, 1, "gradients to f32"), _moving("stream", 16 * p, 12 * p, 1, "adam")]


def _conv_work(s: dict[str, int], fuses: bool) -> list[Work]:
    """Stages of 3x3 convolutions with bias and relu; each stage halves the side by means and doubles the channels."""
    out: list[Work] = []
    side, channels, parameters = s["side"], s["channels"], 0
    before = channels
    for stage in range(s["stages"]):
        x = s["images"] * side * side * channels * 2
        for layer in range(s["depth"]):
            out += [_conv("conv", s["images"], side, before, channels, 3, "bf16"),
                    _conv("conv_filter_grad", s["images"], side, before, channels, 3, "bf16")]  # fmt: skip
            if stage or layer:
                out.append(_conv("conv_input_grad", s["images"], side, before, channels, 3, "bf16"))
            parameters += 9 * before * channels
            before = channels
        out += [
            _moving("stream", x, x, s["depth"] * (1 if fuses else 2), "bias and relu"),
            _moving("stream", 2 * x, x, s["depth"], "gradient of relu"),
            _moving("reduce", x, 4 * channels, s["depth"], "gradient of the bias"),
            _moving("reduce", x, x // 4, 1, "halving"),
            _moving("stream", x // 4, x, 1, "gradient of halving"),
        ]
        side, channels = side // 2, channels * 2
    return [*out, _moving("stream", (4 + 4 + 2) * parameters, 8 * parameters, 1, "momentum, update")]


_STEP_WORK = {"mlp_step": _mlp_work, "transformer_step": _transformer_work, "conv_step": _conv_work}
