"""Random StableHLO operations, written in MLIR's generic form: one function per family."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from meshwright.sharding.axes import AxisRef, merged
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from tests.sharding.random_shardings import pieces

DIMS = (1, 2, 2, 3, 4, 4, 5, 6, 8, 8, 12, 16, 24)
LARGEST = 2**15  # elements of one tensor

UNARY = [
    "abs",
    "ceil",
    "cosine",
    "exponential",
    "exponential_minus_one",
    "floor",
    "log",
    "log_plus_one",
    "logistic",
    "negate",
    "round_nearest_afz",
    "round_nearest_even",
    "rsqrt",
    "sign",
    "sine",
    "sqrt",
    "tan",
    "tanh",
    "cbrt",
]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "atan2"]
INTEGER_BINARY = ["add", "and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical", "maximum"]
LABELLED = ("dot_general", "dot", "convolution", "gather", "transpose", "reverse", "pad")  # never cloned as constants
IDENTITY_CALLS = ("LayoutConstraint", "mhlo.erf", "MoveToHost", "MoveToDevice", "annotate_device_placement")


class Value(NamedTuple):
    """A value: its name in the text, its shape and its element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"

    @property
    def type(self) -> str:
        return tensor(self.shape, self.dtype)


def tensor(shape: Sequence[int], dtype: str = "f32") -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


def array(numbers: Sequence[int]) -> str:
    return f"array<i64{': ' if numbers else ''}{', '.join(map(str, numbers))}>"


def dense(rows: Sequence[Sequence[int]]) -> str:
    width = len(rows[0]) if rows else 2
    return f"dense<{[list(row) for row in rows]}> : tensor<{len(rows)}x{width}xi64>"


class Settings(NamedTuple):
    """What a module may contain."""

    sub_axes: bool = True
    priorities: bool = True
    replicated: bool = True
    unreduced: bool = True


class Body:
    """A block being written: its lines, and the values that can be used in it."""

    def __init__(self, rng: random.Random, mesh: Mesh, settings: Settings, counter: list[int] | None = None) -> None:
        self.rng, self.mesh, self.settings = rng, mesh, settings
        self.counter = counter if counter is not None else [0]
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.arguments: list[Value] | None = None  # of a function, which can be given more
        self.taken: frozenset[str] = frozenset()  # mesh axes that an enclosing region is manual over
        self.density = 0.1  # of shardings on results

    def inner(self, values: Sequence[Value] = ()) -> Body:
        """A block inside this one that sees ``values``."""
        body = Body(self.rng, self.mesh, self.settings, self.counter)
        body.values, body.taken, body.density = list(values), self.taken, self.density
        return body

    def name(self) -> str:
        self.counter[0] += 1
        return f"%v{self.counter[0]}"

    # Shapes and operands

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        rank = self.rng.randint(least, most)
        while True:
            found = tuple(self.rng.choice(DIMS) for _ in range(rank))
            if prod(found) <= LARGEST:
                return found

    def pick(self, allowed: Callable[[Value], bool]) -> Value | None:
        """A value that may be used, often a recent one."""
        fitting = [v for v in self.values if allowed(v)]
        if not fitting:
            return None
        return self.rng.choice(fitting[-4:] if self.rng.random() < 0.6 else fitting)

    def any(self, least: int = 0, most: int = 4, dtype: str = "f32") -> Value:
        found = self.pick(lambda v: least <= len(v.shape) <= most and v.dtype == dtype)
        return found or self.fresh(self.shape(least, most), dtype)

    def of(self, shape: tuple[int, ...], dtype: str = "f32") -> Value:
        """A value of this shape: one that is there, a reshaped one, or a new one."""
        if self.rng.random() < 0.8:
            found = self.pick(lambda v: v.shape == shape and v.dtype == dtype)
            if found:
                return found
            found = self.pick(lambda v: prod(v.shape) == prod(shape) and v.dtype == dtype)
            if found and self.rng.random() < 0.5:
                return self.op("reshape", [found], [(shape, dtype)])[0]
        return self.fresh(shape, dtype)

    def fresh(self, shape: tuple[int, ...], dtype: str = "f32") -> Value:
        """A new argument, a constant, or a scalar broadcast."""
        how = self.rng.random()
        if self.arguments is not None and how < 0.7:
            value = Value(f"%a{len(self.arguments)}", shape, dtype)
            self.arguments.append(value)
            self.values.append(value)
            return value
        if how < 0.85 or dtype not in ("f32", "i32"):
            return self.constant(shape, dtype)
        if how < 0.92 and shape:
            dim = self.rng.randrange(len(shape))
            return self.op("iota", [], [(shape, dtype)], f"iota_dimension = {dim} : i64")[0]
        scalar = self.constant((), dtype)
        return self.op("broadcast_in_dim", [scalar], [(shape, dtype)], "broadcast_dimensions = array<i64>")[0]

    def constant(self, shape: tuple[int, ...], dtype: str = "f32") -> Value:
        number = {"f32": "1.5", "i1": "true", "complex<f32>": "(1.0, 2.0)"}.get(dtype, "1")
        return self.op("constant", [], [(shape, dtype)], f"value = dense<{number}> : {tensor(shape, dtype)}")[0]

    # Text

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[tuple[tuple[int, ...], str]],
        properties: str = "",
        regions: str = "",
        attributes: str = "",
    ) -> list[Value]:
        """Write one operation, now and then with shardings on its results."""
        name = name if "." in name else f"stablehlo.{name}"
        base = self.name()
        count = len(results)
        found = [Value(base if count == 1 else f"{base}#{i}", shape, dtype) for i, (shape, dtype) in enumerate(results)]
        attrs = [attributes] if attributes else []
        if results and self.rng.random() < self.density:
            calm = self.arguments is None or name.removeprefix("stablehlo.") not in LABELLED
            shardings = ", ".join(
                self.sharding(len(shape), plain=len(results) > 1, labels=not calm).removeprefix("#sdy.sharding")
                for shape, _ in results
            )
            attrs.append(f"sdy.sharding = #sdy.sharding_per_value<[{shardings}]>")
        left = f"{base}{f':{count}' if count > 1 else ''} = " if count else ""
        text = f'{left}"{name}"({", ".join(v.name for v in operands)})'
        text += f" <{{{properties}}}>" if properties else ""
        text += f" {regions}" if regions else ""
        text += f" {{{', '.join(attrs)}}}" if attrs else ""
        text += f" : ({', '.join(v.type for v in operands)}) -> ({', '.join(v.type for v in found)})"
        self.lines.append(text)
        self.values += found
        if re.search(r"\}p\d", " ".join(attrs)):
            self.keep(found)
        return found

    def keep(self, values: Sequence[Value]) -> None:
        """A use that cannot be erased: Shardy does not survive dead values with priorities, nor dead computations."""
        self.op("custom_call", values, [((), "ui8")], 'call_target_name = "keep", has_side_effect = true')

    def sharding(self, rank: int, plain: bool = False, labels: bool = True) -> str:
        """A random valid sharding for a tensor of this rank, as an attribute."""
        rng, settings = self.rng, self.settings
        axes = [axis for axis in self.mesh.axes if axis.name not in self.taken]
        cut = 0.25 if settings.sub_axes else 0.0
        parts = [p for axis in axes for p in (pieces(rng, axis) if rng.random() < cut else (axis,))]
        rng.shuffle(parts)
        dims: list[list[AxisRef]] = [[] for _ in range(rank)]
        apart: tuple[list[AxisRef], list[AxisRef]] = ([], [])
        for part in parts:
            chance = rng.random()
            if rank and chance < 0.6:
                dims[rng.randrange(rank)].append(part)
            elif chance < 0.65 and settings.replicated and not plain:
                apart[0].append(part)
            elif chance < 0.68 and settings.unreduced and not plain:
                apart[1].append(part)
        ordered = [
            merged(a for axis in axes for a in sorted(found, key=lambda a: a.pre) if a.name == axis.name)
            for found in apart
        ]
        written = []
        for found in dims:
            is_open = rng.random() < 0.6
            labelled = settings.priorities and labels and not plain and (found or is_open) and rng.random() < 0.15
            written.append(DimensionSharding(merged(found), is_open, rng.choice([0, 1, 2, 5]) if labelled else None))
        return str(TensorSharding(self.mesh, written, *ordered))

    def scalar_region(self, name: str, dtype: str = "f32") -> str:
        """A region ``(a, b) -> a OP b`` on scalars."""
        a, b, c = self.name(), self.name(), self.name()
        t = tensor((), dtype)
        return (
            f'({{ ^bb0({a}: {t}, {b}: {t}): {c} = "stablehlo.{name}"({a}, {b}) : ({t}, {t}) -> {t} '
            f'"stablehlo.return"({c}) : ({t}) -> () }})'
        )


# Elementwise


def unary(b: Body) -> None:
    x = b.any()
    b.op(b.rng.choice(UNARY), [x], [(x.shape, "f32")])


def binary(b: Body) -> None:
    x = b.any()
    y = x if b.rng.random() < 0.1 else b.of(x.shape)
    operands = [x, y] if b.rng.random() < 0.5 else [y, x]
    b.op(b.rng.choice(BINARY), operands, [(x.shape, "f32")])


def integers(b: Body) -> None:
    x = b.any(dtype="i32")
    kind = b.rng.random()
    if kind < 0.4:
        b.op(b.rng.choice(INTEGER_BINARY), [x, b.of(x.shape, "i32")], [(x.shape, "i32")])
    elif kind < 0.7:
        b.op(b.rng.choice(["not", "popcnt", "count_leading_zeros", "negate"]), [x], [(x.shape, "i32")])
    else:
        b.op("convert", [x], [(x.shape, "f32")])


def choosing(b: Body) -> None:
    x = b.any()
    y = b.of(x.shape)
    direction = b.rng.choice(["EQ", "LT", "GE"])
    where = b.op(
        "compare", [x, y], [(x.shape, "i1")], f"comparison_direction = #stablehlo<comparison_direction {direction}>"
    )
    kind = b.rng.random()
    if kind < 0.4:
        b.op("select", [where[0], x, y], [(x.shape, "f32")])
    elif kind < 0.6:
        b.op("select", [b.of((), "i1"), x, y], [(x.shape, "f32")])
    elif kind < 0.8:
        low, high = (b.of(()), b.of(())) if b.rng.random() < 0.5 else (b.of(x.shape), y)
        b.op("clamp", [low, x, high], [(x.shape, "f32")])
    else:
        b.op("is_finite", [x], [(x.shape, "i1")])


def conversions(b: Body) -> None:
    x = b.any()
    kind = b.rng.randrange(6)
    if kind == 0:
        b.op("convert", [x], [(x.shape, b.rng.choice(["bf16", "i32", "f64", "i1"]))])
    elif kind == 1:
        (z,) = b.op("complex", [x, b.of(x.shape)], [(x.shape, "complex<f32>")])
        b.op(b.rng.choice(["real", "imag"]), [z], [(x.shape, "f32")])
    elif kind == 2:
        b.op("reduce_precision", [x], [(x.shape, "f32")], "exponent_bits = 5 : i32, mantissa_bits = 10 : i32")
    elif kind == 3:
        b.op("bitcast_convert", [x], [(x.shape, "i32")])
    elif kind == 4:
        (z,) = b.op("bitcast_convert", [x], [((*x.shape, 4), "i8")])
        b.op("bitcast_convert", [z], [(x.shape, "f32")])
    else:
        (z,) = b.op("convert", [x], [(x.shape, "bf16")])
        b.op("convert", [z], [(x.shape, "f32")])


# Shapes


def broadcast(b: Body) -> None:
    x = b.any(0, 3)
    rank = b.rng.randint(len(x.shape), 4)
    dims = sorted(b.rng.sample(range(rank), len(x.shape)))
    shape = list(b.shape(rank, rank))
    for dim, n in zip(dims, x.shape, strict=True):
        if n != 1 or b.rng.random() < 0.5:
            shape[dim] = n
    if prod(shape) <= 4 * LARGEST:
        b.op("broadcast_in_dim", [x], [(tuple(shape), "f32")], f"broadcast_dimensions = {array(dims)}")


def transposed(b: Body) -> None:
    x = b.any(1)
    order = list(range(len(x.shape)))
    b.rng.shuffle(order)
    b.op("transpose", [x], [(tuple(x.shape[d] for d in order), "f32")], f"permutation = {array(order)}")


def reversed_(b: Body) -> None:
    x = b.any(1)
    dims = sorted(b.rng.sample(range(len(x.shape)), b.rng.randint(1, len(x.shape))))
    b.op("reverse", [x], [(x.shape, "f32")], f"dimensions = {array(dims)}")


def reshape(b: Body) -> None:
    x = b.any()
    left, shape = prod(x.shape), []
    while left > 1 and len(shape) < 3 and b.rng.random() < 0.8:
        n = b.rng.choice([k for k in range(1, left + 1) if left % k == 0])
        shape.append(n)
        left //= n
    if left > 1 or b.rng.random() < 0.2:
        shape.append(left)
    b.op("reshape", [x], [(tuple(shape), "f32")])


def slice_of(b: Body, x: Value) -> Value:
    starts, limits, strides, shape = [], [], [], []
    for n in x.shape:
        if b.rng.random() < 0.5:
            start, limit, stride = 0, n, 1
        else:
            start = b.rng.randrange(n)
            limit = b.rng.randint(start + 1, n)
            stride = b.rng.choice([1, 1, 2])
        starts.append(start), limits.append(limit), strides.append(stride)
        shape.append(-(-(limit - start) // stride))
    properties = f"start_indices = {array(starts)}, limit_indices = {array(limits)}, strides = {array(strides)}"
    return b.op("slice", [x], [(tuple(shape), x.dtype)], properties)[0]


def sliced(b: Body) -> None:
    slice_of(b, b.any(1))


def pad(b: Body) -> None:
    x = b.any(1)
    low, high, inside, shape = [], [], [], []
    for n in x.shape:
        if b.rng.random() < 0.5:
            one = (0, 0, 0)
        else:
            one = (b.rng.randint(0, 3), b.rng.randint(0, 3), b.rng.choice([0, 0, 1]))
        if b.rng.random() < 0.15 and n > 2:
            one = (-1, b.rng.choice([1, 0]), 0)
        low.append(one[0]), high.append(one[1]), inside.append(one[2])
        shape.append(n + one[0] + one[1] + (n - 1) * one[2])
    properties = (
        f"edge_padding_low = {array(low)}, edge_padding_high = {array(high)}, interior_padding = {array(inside)}"
    )
    b.op("pad", [x, b.of(())], [(tuple(shape), "f32")], properties)


def indices_for(b: Body, rank: int) -> list[Value]:
    return [b.constant((), "i32") if b.rng.random() < 0.5 else b.of((), "i32") for _ in range(rank)]


def dynamic_slices(b: Body) -> None:
    x = b.any(1)
    shape = tuple(n if b.rng.random() < 0.5 else b.rng.randint(1, n) for n in x.shape)
    if b.rng.random() < 0.5:
        b.op("dynamic_slice", [x, *indices_for(b, len(shape))], [(shape, "f32")], f"slice_sizes = {array(shape)}")
    else:
        b.op("dynamic_update_slice", [x, b.of(shape), *indices_for(b, len(shape))], [(x.shape, "f32")])


def concatenate(b: Body) -> None:
    x = b.any(1)
    dim = b.rng.randrange(len(x.shape))
    kind, count = b.rng.random(), b.rng.choice([1, 2, 2, 3])
    if kind < 0.3:
        parts = [slice_along(b, x, dim) for _ in range(count)]
        if b.rng.random() < 0.4:
            parts[b.rng.randrange(count)] = x
    elif kind < 0.45:
        parts = [slice_along(b, b.of(x.shape), dim) for _ in range(count)]
    else:
        parts = [x if b.rng.random() < 0.2 else b.of((*x.shape[:dim], b.rng.choice(DIMS), *x.shape[dim + 1 :]))
                 for _ in range(count)]  # fmt: skip
    total = sum(v.shape[dim] for v in parts)
    if total * prod(x.shape) // x.shape[dim] > 4 * LARGEST:
        return
    b.op("concatenate", parts, [((*x.shape[:dim], total, *x.shape[dim + 1 :]), "f32")], f"dimension = {dim} : i64")


def slice_along(b: Body, x: Value, dim: int) -> Value:
    start = b.rng.randrange(x.shape[dim])
    limit = b.rng.randint(start + 1, x.shape[dim])
    starts = [start if d == dim else 0 for d in range(len(x.shape))]
    limits = [limit if d == dim else n for d, n in enumerate(x.shape)]
    shape = tuple(last - first for first, last in zip(starts, limits, strict=True))
    ones = [1] * len(limits)
    properties = f"start_indices = {array(starts)}, limit_indices = {array(limits)}, strides = {array(ones)}"
    return b.op("slice", [x], [(shape, x.dtype)], properties)[0]


# Contractions, reductions, windows


def dot_general(b: Body) -> None:
    x = b.any(1)
    dims = list(range(len(x.shape)))
    b.rng.shuffle(dims)
    batch = dims[: b.rng.choice([0, 0, 1, 1, 2]) if len(dims) > 1 else 0]
    rest = dims[len(batch) :]
    contracted = rest[: b.rng.choice([0, 1, 1, 1, 2])]
    free = sorted(set(dims) - set(batch) - set(contracted))
    others = [b.rng.choice(DIMS) for _ in range(b.rng.choice([0, 1, 1, 2]))]
    roles = [("b", d) for d in batch] + [("c", d) for d in contracted] + [("f", i) for i in range(len(others))]
    b.rng.shuffle(roles)
    shape = tuple(others[d] if role == "f" else x.shape[d] for role, d in roles)
    out = (*(x.shape[d] for d in batch), *(x.shape[d] for d in free))
    out = (*out, *(others[d] for role, d in roles if role == "f"))
    if prod(shape) > LARGEST or prod(out) > 4 * LARGEST:
        return
    y = b.of(shape)
    places = {(role, d): at for at, (role, d) in enumerate(roles)}
    properties = (
        f"dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {batch}, "
        f"rhs_batching_dimensions = {[places['b', d] for d in batch]}, lhs_contracting_dimensions = {contracted}, "
        f"rhs_contracting_dimensions = {[places['c', d] for d in contracted]}>"
    )
    b.op("dot_general", [x, y], [(out, "f32")], properties)


def matmul(b: Body) -> None:
    x = b.any(2, 2)
    n = b.rng.choice(DIMS)
    y = b.of((x.shape[1], n))
    dims = "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]"
    b.op("dot_general", [x, y], [((x.shape[0], n), "f32")], f"dot_dimension_numbers = #stablehlo.dot<{dims}>")


def dot(b: Body) -> None:
    x = b.any(1, 2)
    shape = (x.shape[-1],) if b.rng.random() < 0.3 else (x.shape[-1], b.rng.choice(DIMS))
    b.op("dot", [x, b.of(shape)], [((*x.shape[:-1], *shape[1:]), "f32")])


def reduce(b: Body) -> None:
    x = b.any(1)
    dims = sorted(b.rng.sample(range(len(x.shape)), b.rng.randint(1, len(x.shape))))
    shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
    how = b.rng.choice(["add", "maximum", "minimum", "multiply"])
    if b.rng.random() < 0.8:
        init = b.constant(())
        b.op("reduce", [x, init], [(shape, "f32")], f"dimensions = {array(dims)}", b.scalar_region(how))
        return
    t = "tensor<f32>"
    a, c, d, e = (b.name() for _ in range(4))
    region = f'({{ ^bb0({a}: {t}, {c}: {t}, {d}: {t}, {e}: {t}): "stablehlo.return"({a}, {c}) : ({t}, {t}) -> () }})'
    operands = [x, b.of(x.shape), b.constant(()), b.of(())]
    b.op("reduce", operands, [(shape, "f32")] * 2, f"dimensions = {array(dims)}", region)


def reduce_window(b: Body) -> None:
    x = b.any(1)
    window, strides, padding, shape = [], [], [], []
    for n in x.shape:
        size, stride, low, high = 1, 1, 0, 0
        if b.rng.random() < 0.5:
            size, stride = b.rng.randint(1, min(n, 3)), b.rng.choice([1, 1, 2])
            low, high = b.rng.choice([(0, 0), (0, 0), (size - 1, 0), (1, 1)])
        window.append(size), strides.append(stride), padding.append((low, high))
        shape.append((n + low + high - size) // stride + 1)
    properties = f"window_dimensions = {array(window)}, window_strides = {array(strides)}, padding = {dense(padding)}"
    b.op("reduce_window", [x, b.constant(())], [(tuple(shape), "f32")], properties, b.scalar_region("add"))


def select_and_scatter(b: Body) -> None:
    x = b.any(1)
    window, strides, shape = [], [], []
    for n in x.shape:
        size = b.rng.choice([k for k in (1, 1, 2, 3) if n % k == 0])
        window.append(size), strides.append(size), shape.append(n // size)
    source = b.of(tuple(shape))
    a, c, d = (b.name() for _ in range(3))
    compare = (
        f'({{ ^bb0({a}: tensor<f32>, {c}: tensor<f32>): {d} = "stablehlo.compare"({a}, {c}) '
        "<{comparison_direction = #stablehlo<comparison_direction GE>}> : (tensor<f32>, tensor<f32>) -> tensor<i1> "
        f'"stablehlo.return"({d}) : (tensor<i1>) -> () }}'
    )
    regions = f"{compare}, {b.scalar_region('add')[1:]}"
    properties = f"window_dimensions = {array(window)}, window_strides = {array(strides)}"
    b.op("select_and_scatter", [x, source, b.constant(())], [(x.shape, "f32")], properties, regions)


def convolution(b: Body) -> None:
    rng, spatial = b.rng, b.rng.choice([1, 2])
    groups, batch_groups = rng.choice([(1, 1), (1, 1), (2, 1), (4, 1), (1, 2)])
    batch, features, out = (
        batch_groups * rng.choice([1, 2, 4, 8]),
        groups * rng.choice([1, 2, 4]),
        rng.choice([1, 2, 4]),
    )
    out *= groups * batch_groups
    sizes = [rng.choice([4, 6, 8, 12]) for _ in range(spatial)]
    kernel = [rng.choice([1, 2, 3, n]) for n in sizes]
    strides = [rng.choice([1, 1, 2]) for _ in sizes]
    padding = [rng.choice([(0, 0), (0, 0), (k // 2, k // 2)]) for k in kernel]
    results = [(n + lo + hi - k) // s + 1 for n, k, s, (lo, hi) in zip(sizes, kernel, strides, padding, strict=True)]

    def arrange(first: tuple[str, int], second: tuple[str, int], rest: list[int]) -> tuple[str, tuple[int, ...]]:
        parts = [first, second, *((str(i), n) for i, n in enumerate(rest))]
        if rng.random() < 0.6:
            rng.shuffle(parts)
        return ", ".join(name for name, _ in parts), tuple(n for _, n in parts)

    left, lhs = arrange(("b", batch), ("f", features), sizes)
    middle, rhs = arrange(("i", features // groups), ("o", out), kernel)
    right, result = arrange(("b", batch // batch_groups), ("f", out), results)
    properties = (
        f"window_strides = {array(strides)}, padding = {dense(padding)}, "
        f"dimension_numbers = #stablehlo.conv<[{left}]x[{middle}]->[{right}]>, "
        f"feature_group_count = {groups} : i64, batch_group_count = {batch_groups} : i64"
    )
    if prod(lhs) <= LARGEST:
        b.op("convolution", [b.of(lhs), b.of(rhs)], [(result, "f32")], properties)


# Gather, scatter, sort, linear algebra


class Windows(NamedTuple):
    """Random dimension numbers shared by gather and scatter."""

    operand: Value
    indices: Value
    offset_dims: list[int]
    collapsed: list[int]
    operand_batch: list[int]
    indices_batch: list[int]
    index_map: list[int]
    vector_dim: int
    sizes: list[int]
    result: tuple[int, ...]


def windows(b: Body) -> Windows:
    rng, x = b.rng, b.any(1)
    rank = len(x.shape)
    dims = list(range(rank))
    indexed = rng.sample(dims, rng.randint(1, min(rank, 2)))
    rest = [d for d in dims if d not in indexed]
    batching = rng.sample(rest, 1) if rest and rng.random() < 0.3 else []
    collapsed = sorted(d for d in indexed if rng.random() < 0.7)
    sizes = [
        1 if d in collapsed or d in batching else n if rng.random() < 0.7 else rng.randint(1, n)
        for d, n in enumerate(x.shape)
    ]
    places = [x.shape[d] for d in batching] + [rng.choice([2, 3, 4, 8]) for _ in range(rng.choice([0, 1, 1, 2]))]
    order = list(range(len(places)))
    rng.shuffle(order)
    shape = [places[i] for i in order]
    vector_dim = rng.randint(0, len(shape)) if rng.random() < 0.4 else len(shape)
    at = order.index(0) if batching else 0
    indices_batch = [at + (vector_dim <= at)] if batching else []
    full = (*shape[:vector_dim], len(indexed), *shape[vector_dim:])
    if len(indexed) == 1 and vector_dim == len(shape) and rng.random() < 0.4:
        full = tuple(shape)
    window = [n for d, n in enumerate(sizes) if d not in collapsed and d not in batching]
    total = len(shape) + len(window)
    offset_dims = sorted(rng.sample(range(total), len(window)))
    ahead, inside = iter(shape), iter(window)
    result = tuple(next(inside) if d in offset_dims else next(ahead) for d in range(total))
    indices = b.of(full, "i32")
    return Windows(x, indices, offset_dims, collapsed, batching, indices_batch, indexed, vector_dim, sizes, result)


def gather(b: Body) -> None:
    w = windows(b)
    if prod(w.result) > 4 * LARGEST:
        return
    numbers = (
        f"offset_dims = {w.offset_dims}, collapsed_slice_dims = {w.collapsed}, operand_batching_dims = "
        f"{w.operand_batch}, start_indices_batching_dims = {w.indices_batch}, start_index_map = {w.index_map}, "
        f"index_vector_dim = {w.vector_dim}"
    )
    properties = f"dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = {array(w.sizes)}"
    b.op("gather", [w.operand, w.indices], [(w.result, "f32")], properties)


def scatter(b: Body) -> None:
    w = windows(b)
    if prod(w.result) > 4 * LARGEST:
        return
    numbers = (
        f"update_window_dims = {w.offset_dims}, inserted_window_dims = {w.collapsed}, input_batching_dims = "
        f"{w.operand_batch}, scatter_indices_batching_dims = {w.indices_batch}, scatter_dims_to_operand_dims = "
        f"{w.index_map}, index_vector_dim = {w.vector_dim}"
    )
    how = b.rng.choice(["add", "maximum", "multiply"])
    b.op(
        "scatter",
        [w.operand, w.indices, b.of(w.result)],
        [(w.operand.shape, "f32")],
        f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>",
        b.scalar_region(how),
    )


def sort(b: Body) -> None:
    x = b.any(1)
    more = [b.of(x.shape)] if b.rng.random() < 0.4 else []
    names = [b.name() for _ in range(2 + 2 * len(more))]
    arguments = ", ".join(f"{n}: tensor<f32>" for n in names)
    out = b.name()
    region = (
        f'({{ ^bb0({arguments}): {out} = "stablehlo.compare"({names[0]}, {names[1]}) '
        "<{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1> "
        f'"stablehlo.return"({out}) : (tensor<i1>) -> () }})'
    )
    results = [(x.shape, "f32")] * (1 + len(more))
    b.op("sort", [x, *more], results, f"dimension = {b.rng.randrange(len(x.shape))} : i64", region)


def fft(b: Body) -> None:
    x = b.any(1)
    count = b.rng.randint(1, min(3, len(x.shape)))
    lengths = x.shape[-count:]
    kind = b.rng.choice(["RFFT", "FFT", "IFFT", "IRFFT"])
    properties = f"fft_type = #stablehlo<fft_type {kind}>, fft_length = "
    half = (*x.shape[:-1], x.shape[-1] // 2 + 1)
    if kind == "RFFT":
        b.op("fft", [x], [(half, "complex<f32>")], properties + array(lengths))
    elif kind == "IRFFT":
        b.op("fft", [b.of(half, "complex<f32>")], [(x.shape, "f32")], properties + array(lengths))
    else:
        (z,) = b.op("complex", [x, b.of(x.shape)], [(x.shape, "complex<f32>")])
        b.op("fft", [z], [(x.shape, "complex<f32>")], properties + array(lengths))


def linear_algebra(b: Body) -> None:
    n, m = b.rng.choice(DIMS), b.rng.choice(DIMS)
    batch = b.shape(0, 2)
    if prod(batch) * n * max(n, m) > LARGEST:
        return
    square = b.of((*batch, n, n))
    kind = b.rng.randrange(3)
    if kind == 0:
        b.op("cholesky", [square], [(square.shape, "f32")], "lower = true")
    else:
        left = b.rng.random() < 0.5
        shape = (*batch, n, m) if left else (*batch, m, n)
        properties = (
            f"left_side = {str(left).lower()}, lower = true, unit_diagonal = false, "
            "transpose_a = #stablehlo<transpose NO_TRANSPOSE>"
        )
        b.op("triangular_solve", [square, b.of(shape)], [(shape, "f32")], properties)


def batch_norm(b: Body) -> None:
    x = b.any(2)
    dim = b.rng.randrange(len(x.shape))
    row = [b.of((x.shape[dim],)) for _ in range(4)]
    properties = f"epsilon = 0.001 : f32, feature_index = {dim} : i64"
    b.op("batch_norm_inference", [x, *row], [(x.shape, "f32")], properties)


def random_bits(b: Body) -> None:
    state = b.of((2,), "ui64")
    shape = b.shape(1, 3)
    properties = "rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>"
    b.op("rng_bit_generator", [state], [((2,), "ui64"), (shape, "ui32")], properties)


# Calls into the unknown, and what sdy adds


def custom_call(b: Body) -> None:
    x = b.any()
    kind = b.rng.random()
    if kind < 0.6:
        target = b.rng.choice(IDENTITY_CALLS)
        b.op("custom_call", [x], [(x.shape, "f32")], f'call_target_name = "{target}"')
    elif kind < 0.75:
        b.op("custom_call", [x], [(x.shape, "f32")], 'call_target_name = "something_else"')
    elif kind < 0.9 and x.shape:
        k = b.rng.randint(1, x.shape[-1])
        shape = (*x.shape[:-1], k)
        properties = 'call_target_name = "mhlo.topk"'
        b.op("custom_call", [x], [(shape, "f32"), (shape, "i32")], properties)
    elif x.shape:
        letters = "ijklm"[: len(x.shape)]
        dims = ", ".join(letters)
        sizes = ", ".join(f"{c}={n}" for c, n in zip(letters, x.shape, strict=True))
        rule = f"sdy.sharding_rule = #sdy.op_sharding_rule<([{dims}])->([{dims}]) {{{sizes}}}, custom>"
        b.op("custom_call", [x], [(x.shape, "f32")], 'call_target_name = "mine"', attributes=rule)


def constraint(b: Body) -> None:
    x = b.any()
    sharding = b.sharding(len(x.shape), plain=True).replace("#sdy.sharding", "", 1)
    name = b.name()
    b.lines.append(f"{name} = sdy.sharding_constraint {x.name} {sharding} : {x.type}")
    if b.rng.random() < 0.8:
        b.values.append(Value(name, x.shape))


def barrier(b: Body) -> None:
    x = b.any()
    name = b.name()
    direction = b.rng.choice(["NONE", "FORWARD", "BACKWARD"])
    b.lines.append(f"{name} = sdy.propagation_barrier {x.name} allowed_direction={direction} : {x.type}")
    b.values.append(Value(name, x.shape))


ELEMENTWISE = (unary, binary, binary, integers, choosing, conversions)
SHAPES = (broadcast, transposed, reversed_, reshape, reshape, sliced, pad, dynamic_slices, concatenate)
HEAVY = (dot_general, dot_general, matmul, dot, reduce, reduce, reduce_window, select_and_scatter, convolution)
RARE = (gather, scatter, sort, fft, linear_algebra, batch_norm, random_bits, custom_call, barrier)
FAMILIES = (*ELEMENTWISE * 2, *SHAPES, *HEAVY, *RARE, constraint, constraint)
