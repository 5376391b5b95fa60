"""What is measured: ops at sizes, and what they are called with."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import exp, log

ITEM = {"bf16": 2, "f32": 4}


@dataclass(frozen=True)
class Case:
    """One op at one size."""

    part: str
    op: str
    dtype: str
    sizes: dict[str, int] = field(hash=False)

    @property
    def name(self) -> str:
        """``matmul bf16 m=64 k=4096 n=4096``."""
        return " ".join([self.op, self.dtype, *(f"{key}={value}" for key, value in self.sizes.items())])


@dataclass(frozen=True)
class Scale:
    """How much smaller than for a large accelerator the sizes are: matrix dims, rows and elements."""

    dims: int = 1
    rows: int = 1
    elements: int = 1

    def dim(self, size: int) -> int:
        return max(size // self.dims, min(size, 16))

    def row(self, size: int) -> int:
        return max(size // self.rows, min(size, 16))

    def element(self, size: int) -> int:
        return max(size // self.elements, min(size, 1024))


SCALES = {"accelerator": Scale(), "cpu": Scale(8, 32, 32), "quick": Scale(32, 512, 512)}

# Shapes as (batch, m, k, n).
MATMULS = {
    ("calibration", "bf16"): [
        *((1, n, n, n) for n in (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)),
        (1, 16, 4096, 4096), (1, 64, 4096, 16384), (1, 128, 8192, 8192), (1, 256, 4096, 16384), (1, 512, 4096, 4096),
        (1, 1024, 4096, 16384), (1, 2048, 2048, 8192), (1, 65536, 1024, 1024), (1, 16384, 512, 4096),
        (1, 8192, 128, 8192), (1, 512, 65536, 512), (1, 1024, 16384, 1024), (1, 2304, 2304, 2304),
        (1, 5000, 3000, 4000), (128, 1024, 64, 1024), (128, 1024, 1024, 128), (64, 512, 512, 512),
        (32, 2048, 128, 2048), (256, 256, 256, 256),
    ],
    ("calibration", "f32"): [
        *((1, n, n, n) for n in (1024, 2048, 4096, 8192)),
        (1, 64, 4096, 16384), (1, 512, 4096, 4096), (1, 4096, 1024, 4096), (64, 512, 512, 512),
    ],
    ("held out", "bf16"): [
        *((1, n, n, n) for n in (1280, 2560, 5120, 7168)),
        (1, 32, 8192, 8192), (1, 192, 4096, 12288), (1, 768, 3072, 12288), (1, 4096, 11008, 4096),
        (1, 32768, 768, 3072), (1, 3000, 2000, 5000), (96, 1024, 128, 1024), (48, 768, 768, 768),
    ],
    ("held out", "f32"): [(1, 3072, 3072, 3072), (1, 256, 4096, 8192)],
}  # fmt: skip

ELEMENTWISE = {
    "calibration": [
        ("add", "f32", 2**20), ("add", "f32", 2**22), ("add", "f32", 2**24), ("add", "f32", 2**26),
        ("add", "f32", 2**28), ("add", "bf16", 2**25), ("exp", "bf16", 2**24), ("exp", "bf16", 2**27),
        ("axpy", "f32", 2**25), ("relu", "bf16", 2**26), ("tanh", "f32", 2**26),
    ],
    "held out": [
        ("gelu", "bf16", 3 * 2**24), ("swiglu", "bf16", 2**26), ("adam", "f32", 50_000_000), ("mask", "f32", 2**25),
        ("cast", "f32", 100_000_000), ("bias_relu", "bf16", 2**27),
    ],
}  # fmt: skip

# Ops on (rows, columns).
ROWWISE = {
    "calibration": [
        ("sum_rows", "f32", 8192, 8192), ("sum_rows", "bf16", 65536, 1024), ("sum_columns", "f32", 8192, 8192),
        ("sum_columns", "bf16", 1024, 65536), ("max_rows", "bf16", 16384, 4096), ("sum_all", "f32", 8192, 8192),
        ("softmax", "bf16", 32768, 1024), ("softmax", "f32", 8192, 8192), ("softmax", "f32", 65536, 512),
        ("softmax", "f32", 2048, 32768), ("layer_norm", "bf16", 16384, 4096), ("layer_norm", "f32", 8192, 8192),
        ("layer_norm", "bf16", 65536, 1024), ("transpose", "bf16", 8192, 8192), ("transpose", "f32", 16384, 4096),
    ],
    "held out": [
        ("mean_rows", "bf16", 32768, 4096), ("sum_columns", "f32", 16384, 4096), ("norm_all", "f32", 12500, 8000),
        ("softmax", "bf16", 16384, 2048), ("log_softmax", "f32", 8192, 16384), ("layer_norm", "bf16", 32768, 2048),
        ("rms_norm", "bf16", 16384, 8192), ("transpose", "bf16", 4096, 24576),
    ],
}  # fmt: skip

# (table rows, columns, indices).
LOOKUPS = {
    "calibration": [
        ("gather", "f32", 50304, 1024, 65536), ("gather", "bf16", 32768, 4096, 16384),
        ("gather", "bf16", 8192, 8192, 8192), ("scatter", "f32", 32768, 2048, 8192),
        ("scatter", "f32", 50304, 1024, 16384),
    ],
    "held out": [("gather", "bf16", 131072, 2048, 32768), ("scatter", "f32", 65536, 1024, 32768)],
}  # fmt: skip

# (batch, heads, tokens, head dim).
ATTENTIONS = {
    "calibration": [
        ("attention", 8, 16, 1024, 128), ("attention", 4, 16, 2048, 128), ("attention", 16, 12, 512, 64),
        ("fused_attention", 8, 16, 2048, 128), ("fused_attention", 4, 16, 4096, 128),
        ("fused_attention", 16, 12, 1024, 64),
    ],
    "held out": [
        ("attention", 8, 32, 1024, 64), ("attention", 2, 16, 4096, 128), ("fused_attention", 2, 32, 4096, 128),
    ],
}  # fmt: skip

# (images, side, channels in, channels out, kernel side).
CONVOLUTIONS = {
    "calibration": [
        ("conv", 128, 56, 64, 64, 3), ("conv", 128, 28, 256, 256, 3), ("conv", 256, 14, 512, 512, 3),
        ("conv", 128, 56, 256, 64, 1), ("conv_input_grad", 128, 28, 256, 256, 3),
        ("conv_input_grad", 256, 14, 512, 512, 3),
        ("conv_filter_grad", 128, 28, 256, 256, 3), ("conv_filter_grad", 256, 14, 512, 512, 3),
        ("conv_input_grad", 128, 56, 64, 64, 3), ("conv_filter_grad", 128, 56, 64, 64, 3),
    ],
    "held out": [
        ("conv", 128, 28, 128, 256, 3), ("conv", 64, 56, 128, 128, 3), ("conv", 256, 7, 512, 512, 3),
        ("conv_input_grad", 128, 28, 128, 256, 3), ("conv_filter_grad", 64, 56, 128, 128, 3),
    ],
}  # fmt: skip

STEPS = [
    ("mlp_step", {"batch": 8192, "width": 8192, "layers": 4}),
    ("transformer_step", {"batch": 8, "tokens": 1024, "width": 2048, "heads": 16, "layers": 4, "vocabulary": 32768}),
    ("conv_step", {"images": 256, "side": 56, "channels": 128, "stages": 3, "depth": 3}),
]


FAMILIES = ("matmul", "matmul", "matmul", "elementwise", "rows", "lookup", "attention", "conv")
# Random ops that the numbers are fitted to: how many, which, of what families.
DRAWN = ((120, 1, FAMILIES), (30, 2, ("attention", "conv", "conv")))


def cases(scale: Scale) -> list[Case]:
    """Every case, in the order of measuring: what the fit needs most first, train steps before the long tail."""
    out = _listed(scale)
    for count, seed, families in DRAWN:
        out += _drawn(scale, count, seed, "calibration", {case.name for case in out}, families)
    order = {"calibration": 0, "step": 1, "held out": 1}
    out.sort(key=lambda case: (order[case.part], case.part != "step", case.op != "matmul"))
    d, e = scale.dim, scale.element
    checks = [("matmul", "f32", (1, d(4096), d(4096), d(4096))), ("matmul", "bf16", (1, d(8192), d(8192), d(8192)))]
    out += [Case("check", op, dtype, dict(zip(("batch", "m", "k", "n"), shape))) for op, dtype, shape in checks]
    return [*out, Case("check", "add", "f32", {"elements": e(2**28)})]


def _listed(scale: Scale) -> list[Case]:
    """The cases that are listed above."""
    out = []
    d, r, e = scale.dim, scale.row, scale.element
    for (part, dtype), shapes in MATMULS.items():
        for b, m, k, n in shapes:
            out.append(Case(part, "matmul", dtype, {"batch": r(b), "m": d(m), "k": d(k), "n": d(n)}))
    for part in ("calibration", "held out"):
        for op, dtype, n in ELEMENTWISE[part]:
            out.append(Case(part, op, dtype, {"elements": e(n)}))
        for op, dtype, rows, columns in ROWWISE[part]:
            out.append(Case(part, op, dtype, {"rows": r(rows), "columns": columns}))
        for op, dtype, table, columns, indices in LOOKUPS[part]:
            out.append(Case(part, op, dtype, {"table": r(table), "columns": columns, "indices": r(indices)}))
        for op, batch, heads, tokens, head in ATTENTIONS[part]:
            sizes = {"batch": r(batch) if scale.rows == 1 else 1, "heads": heads, "tokens": d(tokens), "head": head}
            out.append(Case(part, op, "bf16", sizes))
        for op, images, side, channels, features, kernel in CONVOLUTIONS[part]:
            sizes = {"images": r(images) if scale.rows == 1 else 1, "side": side if scale.dims < 16 else 7,
                     "in": channels, "out": features, "kernel": kernel}  # fmt: skip
            out.append(Case(part, op, "bf16", sizes))
    out.append(Case("calibration", "nothing", "f32", {"elements": 256}))
    for op, full in STEPS:
        sizes = dict(full)
        for key in ("batch", "images", "width", "channels", "vocabulary", "tokens"):
            if key in sizes:
                least = {"width": 64, "channels": 8, "batch": 1, "images": 1}.get(key, 16)
                sizes[key] = max(sizes[key] // scale.dims, least)
        if scale.dims > 1 and "heads" in sizes:
            sizes["heads"] = max(sizes["width"] // 128, 2)
        if scale.dims > 8 and "side" in sizes:
            sizes["side"] = 8
        out.append(Case("step", op, "bf16", sizes))
    return out


def random_cases(scale: Scale, count: int, seed: int) -> list[Case]:
    """Ops of random kinds and sizes, none of which is among the cases: to test a model that is finished."""
    return _drawn(scale, count, seed, "held out", {case.name for case in cases(scale)}, FAMILIES)


def _drawn(scale: Scale, count: int, seed: int, part: str, known: set[str], families: tuple[str, ...]) -> list[Case]:
    chance = random.Random(seed)
    out: dict[str, Case] = {}
    while len(out) < count:
        case = _one(scale, chance, part, chance.choice(families))
        if case.name not in known:
            out[case.name] = case
    return list(out.values())


def _one(scale: Scale, chance: random.Random, part: str, family: str) -> Case:
    """An op of a family, of random sizes, their logarithms evenly spread."""
    d, r, e = scale.dim, scale.row, scale.element

    def size(low: int, high: int, step: int) -> int:
        return max(step, round(exp(chance.uniform(log(low), log(high))) / step) * step)

    dtype = chance.choice(("bf16", "bf16", "f32"))
    if family == "matmul":
        batch = chance.choice((1, 1, 1, size(4, 128, 4)))
        low, high = (256, 10240) if batch == 1 else (64, 2048)
        step = chance.choice((64, 64, 8))
        m, k, n = (size(low, high, step) for _ in range(3))
        return Case(part, "matmul", dtype, {"batch": r(batch), "m": d(m), "k": d(k), "n": d(n)})
    if family == "elementwise":
        op = chance.choice(
            ("add", "exp", "axpy", "relu", "tanh", "gelu", "swiglu", "mask", "bias_relu", "cast", "adam")
        )
        kind = "f32" if op in ("cast", "adam") else dtype
        return Case(part, op, kind, {"elements": e(size(2**19, 2**28, 8192))})
    if family == "rows":
        ops = ("sum_rows", "mean_rows", "max_rows", "sum_columns", "softmax", "log_softmax", "layer_norm", "rms_norm")
        columns = size(256, 16384, 128)
        rows = max(8, size(2**20, 2**28, 8 * columns) // columns)
        return Case(part, chance.choice((*ops, "transpose")), dtype, {"rows": r(rows), "columns": columns})
    if family == "lookup":
        columns, indices = size(256, 8192, 128), size(1024, 65536, 1024)
        sizes = {"table": r(size(8192, 131072, 1024)), "columns": columns, "indices": r(indices)}
        op = chance.choice(("gather", "gather", "scatter"))
        return Case(part, op, "f32" if op == "scatter" else dtype, sizes)
    if family == "attention":
        sizes = {"batch": chance.randint(1, 8), "heads": 8 * chance.randint(1, 4)}
        sizes |= {"tokens": d(size(256, 4096, 128)), "head": chance.choice((64, 128))}
        return Case(part, chance.choice(("attention", "fused_attention")), "bf16", sizes)
    op = chance.choice(("conv", "conv_input_grad", "conv_filter_grad"))
    sizes = {"images": r(8 * chance.randint(1, 32)), "side": chance.choice((14, 28, 56))}
    sizes |= {"in": 64 * chance.randint(1, 6), "out": 64 * chance.randint(1, 6), "kernel": chance.choice((1, 3, 3))}
    return Case(part, op, "bf16", sizes)


# What an op is called with.


def operands(case: Case) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and types of a case's inputs; type "below N" is of indices."""
    s, op, dtype = case.sizes, case.op, case.dtype
    if op == "matmul":
        b = (s["batch"],) if s["batch"] > 1 else ()
        return [((*b, s["m"], s["k"]), dtype), ((*b, s["k"], s["n"]), dtype)]
    if op == "chain":
        return [((s["m"], s["m"]), dtype)] * 2
    if op == "bias_relu":
        columns = min(8192, s["elements"])
        return [((s["elements"] // columns, columns), dtype), ((columns,), dtype)]
    if "elements" in s:
        count = {"add": 2, "axpy": 2, "swiglu": 2, "adam": 4}.get(op, 1)
        return [((s["elements"],), dtype)] * count
    if "rows" in s:
        return [((s["rows"], s["columns"]), dtype)]
    if op == "gather":
        return [((s["table"], s["columns"]), dtype), ((s["indices"],), f"below {s['table']}")]
    if op == "scatter":
        return [((s["indices"], s["columns"]), dtype), ((s["indices"],), f"below {s['table']}")]
    if op in ("attention", "fused_attention"):
        return [((s["batch"], s["heads"], s["tokens"], s["head"]), dtype)] * 3
    image = (s["images"], s["side"], s["side"])
    x: tuple[tuple[int, ...], str] = ((*image, s["in"]), dtype)
    y: tuple[tuple[int, ...], str] = ((*image, s["out"]), dtype)
    w: tuple[tuple[int, ...], str] = ((s["kernel"], s["kernel"], s["in"], s["out"]), dtype)
    return {"conv": [x, w], "conv_input_grad": [y, w], "conv_filter_grad": [x, y]}[op]


class Unsupported(Exception):
    """The framework at hand does not do this case."""
