"""The work of a case: the kernels that run, as XLA, eager torch or NumPy split it.

What XLA makes of an op or a step is read off the programs it compiled for a GPU: a chain of elementwise ops is one
pass; a row norm with its reductions one after another (softmax, root mean square) is one kernel that keeps the row on
the chip; one with two sums side by side (the layer norm here) is a reduction and a pass; values that are cheap are
computed again rather than kept. Eager torch runs an op at a time.
"""

from __future__ import annotations

from typing import Any

from meshwright.engine.measuring.cases import ITEM, Case

Work = dict[str, Any]


def _matmul(
    m: int, k: int, n: int, dtype: str, batch: int = 1, count: int = 1, what: str = "", dense: bool = True
) -> Work:
    sizes = {"batch": batch, "m": m, "k": k, "n": n}
    return {"kind": "matmul", "dtype": dtype, **sizes, "count": count, "what": what} | (
        {} if dense else {"dense": False}
    )


def _moving(kind: str, elements: int, read: float, written: float, count: int = 1, what: str = "") -> Work:
    """A kernel that does little but read and write so many bytes, a thread to each of some elements."""
    return {"kind": kind, "elements": elements, "read": read, "written": written, "count": count, "what": what}


def _pass(elements: int, read: float, written: float, count: int = 1, what: str = "") -> Work:
    """An elementwise kernel; ``read`` and ``written`` are bytes per element."""
    return _moving("stream", elements, read * elements, written * elements, count, what)


def _norm(
    rows: int, columns: int, read: float, written: float, count: int = 1, what: str = "", passes: int = 1
) -> Work:
    """A kernel that keeps rows on the chip, in f32, between reading and writing them, and reduces them some times."""
    n = rows * columns
    return {**_moving("normalize", n, read * n, written * n, count, what), "row": 4 * columns, "passes": passes}


def _conv(op: str, images: int, side: int, channels: int, features: int, kernel: int, dtype: str) -> Work:
    return {"kind": op, "dtype": dtype, "images": images, "side": side, "in": channels, "out": features,
            "kernel": kernel, "count": 1, "what": op}  # fmt: skip


def work(case: Case, framework: str) -> list[Work]:
    """The kernels of a case, with their sizes."""
    s, op, item = case.sizes, case.op, ITEM[case.dtype]
    fuses = framework == "jax"
    if op in _STEPS:
        return _STEPS[op](s, fuses)
    if op == "matmul":
        return [_matmul(s["m"], s["k"], s["n"], case.dtype, s["batch"])]
    if op == "chain":
        return [_matmul(s["m"], s["m"], s["m"], case.dtype, count=s["links"])]
    if op == "nothing":
        return [_pass(0, 0, 0)]
    if op in ("all_reduce", "all_gather"):
        return [{"kind": op, "bytes": s["elements"] * item, "devices": s["devices"], "count": 1, "what": op}]
    if "elements" in s:
        return _elementwise(op, s["elements"], item, fuses)
    if "rows" in s:
        return _rowwise(op, s["rows"], s["columns"], item, fuses)
    if op == "gather":
        n = s["indices"] * s["columns"]
        return [_moving("gather", n, n * item + 4 * s["indices"], n * item)]
    if op == "scatter":
        n, table = s["indices"] * s["columns"], s["table"] * s["columns"]
        return [_pass(table, 0, item, what="zeros"), _moving("scatter", n, 2 * n * item, n * item, what="add rows")]
    if op in ("attention", "fused_attention"):
        b, t, h = s["batch"] * s["heads"], s["tokens"], s["head"]
        if op == "fused_attention":
            return [{"kind": "attention", "dtype": case.dtype, "flops": 4 * b * t * t * h, "exponentials": b * t * t,
                     "bytes": 4 * b * t * h * item, "batch": b, "queries": t, "count": 1, "what": op}]  # fmt: skip
        return [
            _matmul(t, h, t, case.dtype, b, what="scores"),
            _norm(b * t, t, item, item, what="softmax", passes=2),
            _matmul(t, t, h, case.dtype, b, what="weighted sum"),
        ]
    if op.startswith("conv"):
        return [_conv(op, s["images"], s["side"], s["in"], s["out"], s["kernel"], case.dtype)]
    raise ValueError(f"no work is known for {op}")


def _elementwise(op: str, elements: int, item: int, fuses: bool) -> list[Work]:
    # Passes as (arrays read, arrays written).
    whole = {"add": (2, 1), "axpy": (2, 1), "swiglu": (2, 1), "adam": (4, 3), "cast": (1, 0.5)}
    eager: dict[str, list[tuple[float, float]]] = {
        "axpy": [(1, 1), (2, 1)], "swiglu": [(1, 1), (2, 1)], "bias_relu": [(1, 1), (1, 1)],
        "mask": [(1, 0.25), (1.25, 1)],
        # 0.9m, 0.1g, +; gg, 0.01gg, 0.99v, +; |v|, sqrt, + 1e-8; 1e-3m, /, p -
        "adam": [*[(1, 1)] * 2, (2, 1), *[(1, 1)] * 3, (2, 1), *[(1, 1)] * 4, *[(2, 1)] * 2],
    }  # fmt: skip
    passes = [whole.get(op, (1, 1))] if fuses else eager.get(op, [whole.get(op, (1, 1))])
    return [_pass(elements, read * item, written * item) for read, written in passes]


def _rowwise(op: str, rows: int, columns: int, item: int, fuses: bool) -> list[Work]:
    n = rows * columns
    results = {
        "sum_rows": rows,
        "mean_rows": rows,
        "max_rows": rows,
        "sum_all": 1,
        "norm_all": 1,
    }
    if op == "sum_columns":
        return [{**_moving("column_reduce", n, n * item, columns * item), "row": rows}]
    if op in results:
        found = _moving("reduce", n, n * item, results[op] * item)
        return [found, _pass(results[op], item, item, what="division")] if op == "mean_rows" and fuses else [found]
    if op == "transpose":
        return [{**_moving("transpose", n, n * item, n * item), "row": rows * item}]
    if op == "layer_norm" and fuses:
        return [_moving("reduce", n, n * item, 8 * rows, what="moments"), _pass(n, item, item, what="normalize")]
    return [_norm(rows, columns, item, item, passes=2 if "softmax" in op else 1)]


def _mlp(s: dict[str, int], fuses: bool) -> list[Work]:
    """Layers of ``relu(x @ w + b)``; the optimizer is SGD with momentum on f32 parameters."""
    b, w, layers = s["batch"], s["width"], s["layers"]
    x, p = b * w, w * w
    out = [
        _pass(p, 4, 2, layers, "weights to bf16"),
        _matmul(b, w, w, "bf16", count=layers, what="forward", dense=False),
        _matmul(b, w, w, "bf16", count=layers - 1, what="gradient of x", dense=False),
        _matmul(w, b, w, "bf16", count=layers, what="gradient of w", dense=False),
    ]
    if fuses:
        return [
            *out,
            _pass(x, 2, 2, 3 * (layers - 1), "add bias; relu; relu again for the gradient of w"),
            _moving("reduce", x, 4 * x, 4, 1, "add bias, relu, loss"),
            _pass(x, 4, 2, layers, "gradients of relu and bias"),
            _pass(p, 10, 8, layers, "momentum, update"),
        ]
    return [
        *out,
        _pass(x, 2, 2, 2 * layers, "add bias; relu"),
        _pass(x, 4, 2, layers, "gradient of relu"),
        _moving("reduce", x, 2 * x, 2 * w, layers, "gradient of bias"),
        _pass(x, 4, 2, 1, "loss: difference"),
        _pass(x, 2, 4, 1, "loss: to f32"),
        _pass(x, 4, 4, 2, "loss: square; its gradient"),
        _moving("reduce", x, 4 * x, 4, 1, "loss: mean"),
        _pass(x, 4, 2, 1, "loss: gradient to bf16"),
        _pass(p, 2, 4, layers, "gradients to f32"),
        _pass(p, 12, 8, layers, "momentum, update"),
    ]


def _transformer(s: dict[str, int], fuses: bool) -> list[Work]:
    """Pre-norm blocks with plain causal attention and a gelu MLP of 4 times the width; Adam on f32 parameters."""
    n, t, d, layers, vocabulary = s["batch"] * s["tokens"], s["tokens"], s["width"], s["layers"], s["vocabulary"]
    heads, head = s["batch"] * s["heads"], d // s["heads"]
    x, scores, table, logits = n * d, heads * t * t, vocabulary * d, n * vocabulary
    weights = 12 * d * d * layers + table
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
        _matmul(n, d, vocabulary, "bf16", what="logits"),
        _matmul(n, vocabulary, d, "bf16", what="logits: gradient of x"),
        _matmul(d, n, vocabulary, "bf16", what="logits: gradient of w"),
        _pass(weights, 4, 2, 1, "weights to bf16"),
        _moving("gather", x, 4 * x, (2 if fuses else 4) * x, what="embedding"),
        _pass(table, 0, 4, what="gradient of embedding: zeros"),
        _moving("scatter", x, (2 + 4) * x, 4 * x, what="gradient of embedding: add rows"),
    ]
    if fuses:
        return [
            *out,
            _pass(x, 4, 2, 2 * layers, "residual, sum of squares"),
            _pass(x, 2, 2, 2 * layers + 1, "norm"),
            _moving("reduce", x, 4 * x, 4 * n, 2 * layers + 1, "gradient of norm: sums"),
            _pass(x, 6, 2, 2 * layers + 1, "gradients of norm and residual"),
            _moving("transpose", x, 2 * x, 2 * x, 5 * layers, "q, k, v, result and its gradient: heads"),
            _moving("transpose", 3 * x, 6 * x, 12 * x, layers, "gradients of q, k, v: heads"),
            _moving("reduce", scores, 2 * scores, 4 * heads * t, layers, "mask, softmax: maximum"),
            _norm(heads * t, t, 2, 2, layers, "mask, softmax"),
            _norm(heads * t, t, 4, 2, layers, "softmax again, and its gradient"),
            _pass(4 * x, 2, 4, layers, "gelu, and what its gradient needs"),
            _pass(4 * x, 6, 2, layers, "gradient of gelu"),
            _moving("reduce", logits, 2 * logits, 4 * n, 2, "loss: maximum; sum"),
            _pass(logits, 0, 4, what="loss: zeros"),
            _moving("reduce", logits, 4 * logits, 4 * n, what="loss: sum of the gradient"),
            _pass(logits, 6, 2, what="loss: gradient of logits"),
            _pass(weights + table, 14, 12, what="adam"),
        ]
    return [
        *out,
        _norm(n, d, 2, 2, 2 * layers + 1, "norm"),
        _norm(n, d, 4, 2, 2 * layers + 1, "gradient of norm"),
        _pass(x, 4, 2, 4 * layers, "residual; its gradient"),
        _pass(3 * x, 2, 2, layers, "q, k, v: heads"),
        _pass(x, 2, 2, 3 * layers, "result and its gradient: heads"),
        _pass(3 * x, 0, 2, 3 * layers, "gradients of q, k, v: zeros"),
        _pass(x, 2, 2, 3 * layers, "gradients of q, k, v: heads"),
        _pass(3 * x, 4, 2, 2 * layers, "gradients of q, k, v: sum"),
        _pass(scores, 2, 2, 4 * layers, "scale; mask; their gradients"),
        _norm(heads * t, t, 2, 2, layers, "softmax"),
        _norm(heads * t, t, 4, 2, layers, "gradient of softmax"),
        _pass(4 * x, 2, 2, layers, "gelu"),
        _pass(4 * x, 4, 2, layers, "gradient of gelu"),
        _pass(x, 4, 2, what="embedding to bf16"),
        _pass(logits, 2, 4, what="loss: to f32"),
        _norm(n, vocabulary, 4, 4, what="loss: log softmax"),
        _pass(logits, 0, 4, what="loss: zeros"),
        _norm(n, vocabulary, 8, 4, what="loss: gradient of log softmax"),
        _pass(logits, 4, 2, what="loss: gradient to bf16"),
        _pass(weights, 2, 4, what="gradients to f32"),
        _pass(weights + table, 16, 12, what="adam"),
    ]


def _conv_net(s: dict[str, int], fuses: bool) -> list[Work]:
    """Stages of 3x3 convolutions with bias and relu; each stage halves the side by means and doubles the channels."""
    out: list[Work] = []
    side, channels, parameters = s["side"], s["channels"], 0
    before, depth = channels, s["depth"]
    for stage in range(s["stages"]):
        x = s["images"] * side * side * channels
        for layer in range(depth):
            out += [_conv("conv", s["images"], side, before, channels, 3, "bf16"),
                    _conv("conv_filter_grad", s["images"], side, before, channels, 3, "bf16")]  # fmt: skip
            if stage or layer:
                out.append(_conv("conv_input_grad", s["images"], side, before, channels, 3, "bf16"))
            parameters += 9 * before * channels
            before = channels
        if fuses:
            out += [
                _pass(x, 2, 2, depth - 1, "relu"),
                _pass(x, 2, 0.5, 1, "relu, halving"),
                _pass(x, 4, 2, depth - 1, "gradients of relu and bias"),
                _pass(x, 2.5, 2, 1, "gradients of halving, relu and bias"),
            ]
        else:
            out += [
                _pass(x, 2, 2, 2 * depth, "add bias; relu"),
                _pass(x, 4, 2, depth, "gradient of relu"),
                _moving("reduce", x, 2 * x, 2 * channels, depth, "gradient of bias"),
                _pass(x, 2, 0.5, 1, "halving"),
                _pass(x, 0.5, 2, 1, "gradient of halving"),
            ]
        side, channels = side // 2, channels * 2
    return [
        *out,
        _moving("transpose", parameters, 4 * parameters, 2 * parameters, what="weights to bf16"),
        _moving("transpose", parameters, 10 * parameters, 8 * parameters, what="momentum, update"),
    ]


_STEPS = {"mlp_step": _mlp, "transformer_step": _transformer, "conv_step": _conv_net}
