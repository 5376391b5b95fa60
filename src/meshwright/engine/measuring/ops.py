"""The functions of the cases, written once for every library with the interface of jax: jax itself and meshwright.

So that what is timed through one can be traced, and its time predicted, by the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.engine.measuring.cases import Case, operands

TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def function(case: Case, library: Any) -> Callable[..., Any]:
    """The function of a case that is no step and no collective; ``library`` is the module jax or one like it."""
    np, nn, lax, s = library.numpy, library.nn, library.lax, case.sizes
    f32 = np.float32

    def adam(p: Any, m: Any, v: Any, g: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - 1e-3 * m / (np.sqrt(np.abs(v)) + 1e-8), m, v

    def chain(x: Any, w: Any) -> Any:
        for _ in range(s["links"]):
            x = x @ w
        return x

    def scatter(rows: Any, index: Any) -> Any:
        return np.zeros((s["table"], s["columns"]), rows.dtype).at[index].add(rows)

    def layer_norm(x: Any) -> Any:
        y = x.astype(f32)
        mean = y.mean(-1, keepdims=True)
        variance = (y * y).mean(-1, keepdims=True) - mean * mean
        return ((y - mean) * lax.rsqrt(variance + 1e-5)).astype(x.dtype)

    def rms_norm(x: Any) -> Any:
        y = x.astype(f32)
        return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = np.einsum("bhqd,bhkd->bhqk", q, k) * (s["head"] ** -0.5)
        weights = nn.softmax(scores.astype(f32), -1).astype(q.dtype)
        return np.einsum("bhqk,bhkd->bhqd", weights, v)

    def fused_attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.reshape(s["batch"], s["tokens"], s["heads"], s["head"]) for x in (q, k, v))
        return nn.dot_product_attention(q, k, v, implementation="cudnn")

    def conv(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def gradient_of(argument: int) -> Callable[..., Any]:
        shapes = operands(Case(case.part, "conv", case.dtype, s))
        x, w = (library.ShapeDtypeStruct(shape, TYPES[dtype]) for shape, dtype in shapes)

        def gradient(first: Any, second: Any) -> Any:
            if argument == 0:
                return library.linear_transpose(lambda x: conv(x, second), x)(first)[0]
            return library.linear_transpose(lambda w: conv(first, w), w)(second)[0]

        return gradient

    functions: dict[str, Callable[..., Any]] = {
        "matmul": np.matmul, "chain": chain, "nothing": lambda x: x + 1, "add": np.add, "exp": np.exp,
        "axpy": lambda x, y: 2.5 * x + y, "relu": nn.relu, "tanh": np.tanh, "gelu": nn.gelu,
        "swiglu": lambda x, y: nn.silu(x) * y, "adam": adam, "mask": lambda x: np.where(x > 0.5, x, -1e9),
        "cast": lambda x: x.astype(np.bfloat16), "bias_relu": lambda x, b: nn.relu(x + b),
        "sum_rows": lambda x: x.sum(1), "mean_rows": lambda x: x.mean(1), "sum_columns": lambda x: x.sum(0),
        "max_rows": lambda x: x.max(1), "sum_all": np.sum, "norm_all": lambda x: np.sqrt((x * x).sum()),
        "softmax": nn.softmax, "log_softmax": nn.log_softmax, "layer_norm": layer_norm, "rms_norm": rms_norm,
        "transpose": lambda x: np.swapaxes(x, 0, 1).reshape(-1), "gather": lambda x, i: x[i], "scatter": scatter,
        "attention": attention, "fused_attention": fused_attention, "conv": conv,
    }  # fmt: skip
    if case.op.startswith("conv_"):
        return gradient_of(0 if case.op == "conv_input_grad" else 1)
    return functions[case.op]
