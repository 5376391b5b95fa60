"""How each name of ``meshwright.lax`` and ``meshwright.nn`` may be called."""

from __future__ import annotations

from tests.numpy.calls.drawing import (
    ANY,
    INEXACT,
    NUMBER,
    REAL,
    WHOLE,
    Calls,
    Drawer,
    NotDrawn,
    Operand,
    calls,
)
from tests.numpy.calls.numpy_calls import _positive, _triangular, indices, unary

DEVICES = NotDrawn("of devices: tests/shard_map compares it")
NO_FUNCTION = NotDrawn("not a function")


def strict(kinds: str) -> Calls:
    """Two arrays of one dtype and one shape, or an array and a number."""

    def draw(d: Drawer) -> str:
        x = d.array(kinds)
        if d.flag(0.15):
            return f"{x}, {d.number('f' if x.kind in 'fc' else 'i' if x.kind in 'iu' else 'b')}"
        return f"{x}, {same(d, x)}"

    return calls(draw)


def same(d: Drawer, x: Operand, shape: tuple[int, ...] | None = None) -> str:
    """A value of the dtype of ``x``."""
    shape = x.shape if shape is None else shape
    found = [y for y in d.scope.values() if y.dtype == x.dtype and y.shape == shape]
    return str(d.choose(found) if found and d.flag() else d.argument(shape, x.dtype))


def axes(kinds: str) -> Calls:
    """``(x, axes)`` with the axes counted from the left."""

    def draw(d: Drawer) -> str:
        x = d.array(kinds)
        return f"{x}, {tuple(n % x.ndim for n in d.axes(x))}"

    return calls(draw)


def running(kinds: str) -> Calls:
    def draw(d: Drawer) -> str:
        x = d.array(kinds, rank=(1, 3))
        return f"{x}, axis={d.axis(x) % x.ndim}" + d.option(", reverse=True")

    return calls(draw)


def found_at(d: Drawer) -> str:
    x = d.array(REAL, rank=(1, 3), test=lambda x: x.size > 0)
    return f"{x}, {d.axis(x) % x.ndim}, {d.choose(('int32', 'uint8', 'int16'))!r}"


def bitcasts(d: Drawer) -> str:
    x = d.array(ANY.replace("c", ""), rank=(1, 2))
    return f"{x}, {d.dtype('iuf')}"


def batched(d: Drawer) -> str:
    b, i, k, j = (d.integer(1, 3) for _ in range(4))
    x = d.array("if", (b, i, k))
    return f"{x}, {same(d, x, (b, k, j))}"


def dots(d: Drawer) -> str:
    x = d.array(rank=(1, 2))
    return f"{x}, {same(d, x, d.choose((x.shape[-1:], (x.shape[-1], 2))))}"


def general_dots(d: Drawer) -> str:
    x = d.array(rank=(1, 3))
    order = d.shuffled(range(x.ndim))
    contracted, batch = order[:1] if d.flag(0.7) else [], order[1:2] if d.flag() else []
    shape = (*(x.shape[n] for n in batch), *(x.shape[n] for n in contracted), 2)
    theirs = tuple(range(len(batch) + len(contracted)))
    numbers = (tuple(contracted), theirs[len(batch) :]), (tuple(batch), theirs[: len(batch)])
    wide = d.option(", preferred_element_type='float32'", chance=0.15) if x.kind == "f" else ""
    return f"{x}, {same(d, x, shape)}, {numbers}{wide}"


def broadcasts(d: Drawer) -> str:
    x = d.array(rank=(0, 2))
    return f"{x}, {d.shape(0, 1)}"


def broadcasts_in_dim(d: Drawer) -> str:
    shape = d.shape(0, 3)
    kept = [n for n in range(len(shape)) if d.flag(0.6)]
    x = d.array(ANY, tuple(1 if d.flag(0.3) else shape[n] for n in kept))
    return f"{x}, {shape}, {tuple(kept)}"


def clamps(d: Drawer) -> str:
    x = d.array("iuf")
    if d.flag():
        return f"{d.integer(0, 1)}, {x}, {d.integer(1, 3)}"
    return f"{same(d, x, ())}, {x}, {same(d, x, ())}"


def joined(d: Drawer) -> str:
    x = d.array(rank=(1, 3))
    dim = d.axis(x) % x.ndim
    shape = (*x.shape[:dim], d.integer(0, 2), *x.shape[dim + 1 :])
    return f"[{x}, {same(d, x, shape)}], {dim}"


def convs(general: bool = False, transposed: bool = False, padding_only: bool = False) -> Calls:
    def draw(d: Drawer) -> str:
        spatial = d.integer(1, 2)
        channels = d.integer(1, 2)
        x = d.array("f", (d.integer(1, 2), channels, *(d.integer(2, 4) for _ in range(spatial))))
        kernel = tuple(d.integer(1, 2) for _ in range(spatial))
        shape = (channels, d.integer(1, 2), *kernel) if transposed else (d.integer(1, 2), channels, *kernel)
        strides = tuple(d.integer(1, 2) for _ in range(spatial))
        pads = [(d.integer(0, 2), d.integer(-1, 1)) for _ in range(spatial)]
        padding = repr(d.choose(("SAME", "VALID", pads)) if not transposed else d.choose(("SAME", "VALID")))
        text = f"{x}, {same(d, x, shape)}, {strides}, {padding}"
        dilation = tuple(d.integer(1, 2) for _ in range(spatial))
        if general:
            text += d.options(f", rhs_dilation={dilation}")
            if padding.startswith("["):
                text += d.options(f", lhs_dilation={dilation}")
        if padding_only:
            text = f"{x}, {same(d, x, shape)}, {strides}, {pads}, {dilation}, None"
        if transposed:
            letters = "HW"[:spatial]
            text += f", dimension_numbers=('NC{letters}', 'IO{letters}', 'NC{letters}')"
        return text

    return calls(draw)


def windows(d: Drawer) -> str:
    x = d.array("if", rank=(1, 3))
    window = tuple(d.integer(1, 2) for _ in x.shape)
    strides = tuple(d.integer(1, 2) for _ in x.shape)
    kind, start = d.choose((("add", "0"), ("max", "-np_.inf"), ("min", "np_.inf")))
    if x.kind == "i" and "inf" in start:
        start = "np_.iinfo({x}.dtype).min" if kind == "max" else "np_.iinfo({x}.dtype).max"
    start = f"np_.array({start.format(x=x)}, {x}.dtype)"
    padding = d.choose(("SAME", "VALID", [(d.integer(0, 1), d.integer(0, 1)) for _ in x.shape]))
    dilation = tuple(d.integer(1, 2) for _ in x.shape)
    text = f"{x}, {start}, lax.{kind}, {window}, {strides}, {padding!r}"
    return text + d.options(f", base_dilation={dilation}", f", window_dilation={dilation}")


def reductions(d: Drawer) -> str:
    x = d.array("if")
    kind, start = d.choose((("add", 0), ("mul", 1), ("max", -9), ("min", 9)))
    return f"{x}, np_.array({start}, {x}.dtype), lax.{kind}, {tuple(n % x.ndim for n in d.axes(x))}"


def starts(d: Drawer, x: Operand) -> str:
    """A start for each dim, perhaps beyond the ends."""
    return (
        f"({', '.join(d.choose((str(d.integer(-3, 4)), str(d.array('i', ())))) for _ in x.shape)}{',' * (x.ndim == 1)})"
    )


def dynamic_slices(d: Drawer) -> str:
    x = d.array()
    return f"{x}, {starts(d, x)}, {tuple(d.integer(0, n) for n in x.shape)}"


def dynamic_updates(d: Drawer) -> str:
    x = d.array()
    return f"{x}, {same(d, x, tuple(d.integer(0, n) for n in x.shape))}, {starts(d, x)}"


def in_dim(update: bool, index: bool) -> Calls:
    def draw(d: Drawer) -> str:
        x = d.array(rank=(1, 3), test=lambda x: x.size > 0)
        axis = d.axis(x)
        start = d.choose((str(d.integer(-3, 4)), str(d.array("i", ()))))
        size = 1 if index else d.integer(0, x.shape[axis])
        if update:
            shape = list(x.shape)
            shape[axis] = size
            return f"{x}, {same(d, x, tuple(shape))}, {start}, {axis}"
        if index:
            return f"{x}, {start}, {axis}" + d.option(", keepdims=False")
        return f"{x}, {start}, {size}, {axis}"

    return calls(draw)


def static_index(d: Drawer) -> str:
    x = d.array(rank=(1, 3), test=lambda x: x.size > 0)
    axis = d.axis(x)
    return f"{x}, {d.integer(-x.shape[axis], x.shape[axis] - 1)}, {axis}" + d.option(", keepdims=False")


def slices(d: Drawer) -> str:
    x = d.array()
    start = tuple(d.integer(0, n) for n in x.shape)
    limit = tuple(d.integer(a, n) for a, n in zip(start, x.shape))
    return f"{x}, {start}, {limit}" + d.option(f", {tuple(d.integer(1, 2) for _ in x.shape)}")


def slice_in_dim(d: Drawer) -> str:
    x = d.array(rank=(1, 3))
    axis = d.axis(x)
    size = x.shape[axis]
    start = d.integer(0, size)
    return f"{x}, {start}, {d.choose((None, d.integer(start, size)))}, {d.integer(1, 2)}, {axis}"


def gathers(d: Drawer) -> str:
    """Rows, or windows of rows, of a matrix."""
    x = d.array(ANY, rank=2, test=lambda x: x.size > 0)
    rows = indices(d, x.shape[0], (d.integer(1, 3), 1))
    width = d.integer(1, x.shape[1])
    numbers = "lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))"
    return f"{x}, {rows}, {numbers}, slice_sizes=(1, {width})" + d.option(", mode='clip'", ", mode='fill'")


def scatters(kinds: str) -> Calls:
    def draw(d: Drawer) -> str:
        x = d.array(kinds, rank=2, test=lambda x: x.size > 0)
        rows = indices(d, x.shape[0], (d.integer(1, 3), 1))
        updates = same(d, x, (rows.shape[0], x.shape[1]))
        numbers = (
            "lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,),"
            " scatter_dims_to_operand_dims=(0,))"
        )
        return f"{x}, {rows}, {updates}, {numbers}" + d.option(", mode='clip'", ", mode='drop'")

    return calls(draw)


def pads(d: Drawer) -> str:
    x = d.array()
    config = [(d.integer(-1, 2), d.integer(-1, 2), d.integer(0, 2)) for _ in x.shape]
    return f"{x}, {same(d, x, ())}, {config}"


def reshapes(d: Drawer) -> str:
    x = d.array()
    return f"{x}, {d.reshaped(x)}" + d.option(f", {tuple(d.shuffled(range(x.ndim)))}", chance=0.2)


def sorts(d: Drawer) -> str:
    x = d.array(REAL, rank=(1, 3))
    if d.flag():
        return f"{x}, dimension={d.axis(x)}"
    return f"({x}, {d.array(ANY, x.shape)}), dimension={d.axis(x)}" + d.option(", num_keys=2" if d.flag() else "")


def sorted_pairs(d: Drawer) -> str:
    x = d.array(REAL, rank=(1, 3))
    return f"{x}, {d.array(ANY, x.shape)}, {d.axis(x)}"


def splits(d: Drawer) -> str:
    x = d.array(rank=(1, 3))
    axis = d.axis(x) % x.ndim
    cut = d.integer(0, x.shape[axis])
    return f"{x}, ({cut}, {x.shape[axis] - cut}), {axis}"


def tops(d: Drawer) -> str:
    x = d.array(REAL, rank=(1, 3))
    return f"{x}, {d.integer(0, x.shape[-1])}"


def squeezes(d: Drawer) -> str:
    x = d.array(test=lambda x: 1 in x.shape)
    ones = [n for n, size in enumerate(x.shape) if size == 1]
    return f"{x}, ({d.choose(ones)},)"


def expansions(d: Drawer) -> str:
    x = d.array(rank=(0, 2))
    return f"{x}, ({d.integer(-x.ndim - 1, x.ndim)},)"


def collapses(d: Drawer) -> str:
    x = d.array(rank=(1, 3))
    start = d.integer(0, x.ndim - 1)
    return f"{x}, {start}, {d.integer(start + 1, x.ndim)}"


def associative(d: Drawer) -> str:
    x = d.array("if", rank=(1, 2))
    return f"{d.choose(('lax.add', 'lax.mul', 'lax.max'))}, {x}, axis={d.axis(x)}" + d.option(", reverse=True")


def transforms(d: Drawer) -> str:
    x = d.array(INEXACT, rank=(1, 2), test=lambda x: x.size > 1 and x.shape[-1] > 1)
    kind = d.choose(("FFT", "IFFT")) if x.kind == "c" else "RFFT"
    return f"{x}, lax.FftType.{kind}, ({x.shape[-1]},)"


def selections(d: Drawer) -> str:
    count = d.integer(1, 3)
    x = d.array()
    which = d.array("i", x.shape, within=(0, count - 1), fresh=True) if count != 2 else d.array("b", x.shape)
    return ", ".join([str(which), str(x), *(same(d, x) for _ in range(count - 1))])


# Functions of functions: what they call is drawn from a few.

STEPS = ("lambda c, x: (c + x, c * x)", "lambda c, x: (np_.sin(c), x * 2)", "lambda c, x: (c, c + x)")


def scans(d: Drawer) -> str:
    x = d.array(d.choose(("i", "f")), rank=(1, 2))
    carry = same(d, x, x.shape[1:])
    step = d.choose(STEPS if x.kind == "f" else (STEPS[0], STEPS[2]))
    return f"{step}, {carry}, {x}" + d.options(", reverse=True", ", unroll=2")


def conds(d: Drawer) -> str:
    x = d.array(d.choose(("i", "f")))
    return f"{d.array('b', ())}, lambda v: v * 2, lambda v: v - 1, {x}"


def switches(d: Drawer) -> str:
    x = d.array(d.choose(("i", "f")))
    return f"{d.array('i', ())}, [lambda v: v * 2, lambda v: v - 1, lambda v: v * v], {x}"


def counted(d: Drawer) -> str:
    x = d.array(d.choose(("i", "f")))
    return f"{d.integer(-1, 2)}, {d.integer(0, 4)}, lambda i, v: v + i.astype(v.dtype), {x}"


def whiles(d: Drawer) -> str:
    x = d.array(d.choose(("i", "f")), within=(-3, 3))
    return f"lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * 2), (0, {x})"


def maps(d: Drawer) -> str:
    x = d.array(NUMBER, rank=(1, 3))
    return f"lambda v: v * v, {x}" + d.option(f", batch_size={d.integer(1, 3)}")


def orders(d: Drawer) -> str:
    x = d.array("f", within=(0.3, 3.0))
    return f"np_.full({x.shape}, {d.integer(0, 3)}, {x}.dtype), {x}"


FAMILIES: dict[str, tuple[str, Calls]] = {
    "of numbers": ("abs neg sign square real imag conj integer_pow", unary(NUMBER)),
    "smooth": ("asinh atan cos cosh exp exp2 expm1 logistic sin sinh tan tanh erf erfc", unary(INEXACT)),
    "near one": ("acos asin atanh erf_inv", unary(INEXACT, (-0.95, 0.95))),
    "above one": ("acosh", unary(INEXACT, (1.05, 3.0))),
    "above zero": ("log log1p sqrt rsqrt reciprocal lgamma digamma", unary(INEXACT, (0.1, 3.0))),
    "real": ("cbrt ceil floor is_finite", unary("f")),
    "roundings": ("round", calls(lambda d: f"{d.array('f')}" + d.option(", lax.RoundingMethod.TO_NEAREST_EVEN"))),
    "of bits": ("bitwise_not clz population_count", unary("iu")),
    "two numbers": ("add sub mul div eq ne", strict(NUMBER)),
    "two real ones": ("atan2 nextafter", strict("f")),
    "in an order": ("ge gt le lt max min", strict(REAL)),
    "remainders": ("rem", strict("iuf")),
    "the bits of two": ("bitwise_and bitwise_or bitwise_xor", strict(WHOLE)),
    "reductions": ("reduce_max reduce_min reduce_prod reduce_sum", axes("iuf")),
    "truths": ("reduce_and reduce_or", axes("b")),
    "running": ("cumlogsumexp", running("f")),
    "running numbers": ("cummax cummin cumprod cumsum", running("iuf")),
    "where": ("argmax argmin", calls(found_at)),
    "of devices": ("", calls()),
    "reversals": ("rev", axes(ANY)),
    "scattering": ("scatter_add scatter_max scatter_min scatter_mul scatter_sub", scatters("if")),
}

BY_NAME: dict[str, Calls | NotDrawn] = {
    "associative_scan": calls(associative),
    "batch_matmul": calls(batched),
    "bitcast_convert_type": calls(bitcasts),
    "broadcast": calls(broadcasts),
    "broadcast_in_dim": calls(broadcasts_in_dim),
    "broadcast_shapes": calls(lambda d: (lambda s: f"{s}, {d.thinner(s)}")(d.shape())),
    "broadcasted_iota": calls(
        lambda d: (lambda s: f"{d.dtype('iuf')}, {s}, {d.integer(0, len(s) - 1)}")(d.shape(1, 3))
    ),
    "clamp": calls(clamps),
    "collapse": calls(collapses),
    "complex": calls(lambda d: (lambda x: f"{x}, {same(d, x)}")(d.array("f", test=lambda x: x.dtype.itemsize > 2))),
    "concatenate": calls(joined),
    "cond": calls(conds),
    "conv": convs(),
    "conv_dimension_numbers": NotDrawn("names of dims, not arrays"),
    "conv_general_dilated": convs(general=True),
    "conv_transpose": convs(transposed=True),
    "conv_with_general_padding": convs(padding_only=True),
    "convert_element_type": calls(lambda d: f"{d.array()}, {d.dtype()}"),
    "dot": calls(dots),
    "dot_general": calls(general_dots),
    "dynamic_index_in_dim": in_dim(False, True),
    "dynamic_slice": calls(dynamic_slices),
    "dynamic_slice_in_dim": in_dim(False, False),
    "dynamic_update_index_in_dim": in_dim(True, True),
    "dynamic_update_slice": calls(dynamic_updates),
    "dynamic_update_slice_in_dim": in_dim(True, False),
    "expand_dims": calls(expansions),
    "fft": calls(transforms),
    "fori_loop": calls(counted),
    "full": calls(lambda d: f"{d.shape()}, {d.number('bif')}" + d.option(f", {d.dtype()}")),
    "full_like": calls(
        lambda d: f"{d.array()}, {d.number('bif')}" + d.options(f", dtype={d.dtype()}", f", shape={d.shape()}")
    ),
    "gather": calls(gathers),
    "index_in_dim": calls(static_index),
    "integer_pow": calls(
        lambda d: f"{d.array(NUMBER)}, {d.integer(0, 4)}", lambda d: f"{d.array(INEXACT)}, {d.integer(-3, 4)}"
    ),
    "iota": calls(lambda d: f"{d.dtype('iuf')}, {d.integer(0, 5)}"),
    "map": calls(maps),
    "optimization_barrier": calls(lambda d: f"{d.array()}"),
    "pad": calls(pads),
    "padtype_to_pads": NotDrawn("widths, not arrays"),
    "polygamma": calls(orders, concrete=True),  # our order is a known number
    "pow": calls(
        lambda d: (lambda x: f"{x}, {same(d, x)}")(d.array(INEXACT, within=(0.2, 3) if d.flag() else None)),
        lambda d: f"{d.array(INEXACT)}, {d.integer(-2, 4)}",
        lambda d: (lambda x: f"{x}, {d.array('i', x.shape)}")(d.array(INEXACT)),
    ),
    "reduce": calls(reductions),
    "reduce_precision": calls(lambda d: f"{d.array('f')}, {d.integer(2, 8)}, {d.integer(0, 10)}"),
    "reduce_window": calls(windows),
    "reshape": calls(reshapes),
    "scan": calls(scans),
    "scatter": scatters(ANY),
    "select": calls(lambda d: (lambda x: f"{d.array('b', d.choose((x.shape, ())))}, {x}, {same(d, x)}")(d.array())),
    "select_n": calls(selections),
    "shift_left": calls(lambda d: shift(d)),
    "shift_right_arithmetic": calls(lambda d: shift(d)),
    "shift_right_logical": calls(lambda d: shift(d)),
    "slice": calls(slices),
    "slice_in_dim": calls(slice_in_dim),
    "sort": calls(sorts),
    "sort_key_val": calls(sorted_pairs),
    "split": calls(splits),
    "squeeze": calls(squeezes),
    "stop_gradient": calls(lambda d: f"{d.array()}"),
    "switch": calls(switches),
    "top_k": calls(tops),
    "transpose": calls(lambda d: (lambda x: f"{x}, {tuple(d.shuffled(range(x.ndim)))}")(d.array())),
    "while_loop": calls(whiles),
    "with_sharding_constraint": DEVICES,
}


def shift(d: Drawer) -> str:
    x = d.array("iu")
    y = d.argument(x.shape, x.dtype, (0, 7) if d.flag(0.8) else (0, 40))
    return f"{x}, {y}"


def _table() -> dict[str, Calls | NotDrawn]:
    found: dict[str, Calls | NotDrawn] = {}
    for names, family in FAMILIES.values():
        found.update(dict.fromkeys(names.split(), family))
    found.update(
        dict.fromkeys(
            [
                "ConvDimensionNumbers",
                "FftType",
                "GatherDimensionNumbers",
                "GatherScatterMode",
                "Precision",
                "RoundingMethod",
                "ScatterDimensionNumbers",
                "linalg",
            ],
            NO_FUNCTION,
        )
    )
    found.update(
        dict.fromkeys(
            [
                "all_gather",
                "all_gather_invariant",
                "all_to_all",
                "axis_index",
                "axis_size",
                "pbroadcast",
                "pcast",
                "pmax",
                "pmean",
                "pmin",
                "ppermute",
                "pscatter",
                "psum",
                "psum_scatter",
                "pvary",
            ],
            DEVICES,
        )
    )
    return found | BY_NAME


LAX = _table()


def triangular_solves(d: Drawer) -> str:
    matrix = _triangular(d)
    name = matrix.split()[0]
    x = d.scope[name]
    left = d.flag()
    shape = (*x.shape[:-2], x.shape[-1], 2) if left else (*x.shape[:-2], 2, x.shape[-1])
    text = f"{matrix}, {same(d, x, shape)}, left_side={left}"
    return text + d.options(", lower=True", ", transpose_a=True", ", unit_diagonal=True", ", conjugate_a=True")


LAX_LINALG: dict[str, Calls | NotDrawn] = {
    "cholesky": calls(_positive),
    "triangular_solve": calls(triangular_solves),
}


# nn


def attention(d: Drawer) -> str:
    batch, length, heads, depth = (d.integer(1, 2) for _ in range(4))
    q = d.array("f", (batch, length, heads, depth))
    k, v = same(d, q), same(d, q)
    return f"{q}, {k}, {v}" + d.options(", is_causal=True", ", scale=0.5")


def softmaxes(d: Drawer) -> str:
    x = d.array("f", rank=(1, 3))
    text = f"{x}" + d.option(f", axis={d.choose((d.axis(x), d.axes(x, 1)))}")
    return text + (f", where={d.fitting(x.shape, 'b')}" if d.flag(0.15) else "")


def logsums(d: Drawer) -> str:
    x = d.array("iuf")
    return f"{x}{d.over(x)}" + d.options(
        ", keepdims=True", f", b={d.array('f', x.shape)}", ", return_sign=True", chance=0.2
    )


def hot(d: Drawer) -> str:
    x = d.array("iu", rank=(0, 2))
    return f"{x}, {d.integer(0, 4)}" + d.options(f", dtype={d.dtype('if')}", f", axis={d.integer(-x.ndim - 1, x.ndim)}")


def with_number(text: str, kinds: str = "f") -> Calls:
    return calls(lambda d: f"{d.array(kinds)}" + d.option(text))


def glus(d: Drawer) -> str:
    x = d.array("f", rank=(1, 3), test=lambda x: any(n % 2 == 0 for n in x.shape))
    even = [n for n, size in enumerate(x.shape) if size % 2 == 0]
    return f"{x}, axis={d.choose(even)}"


def standardized(d: Drawer) -> str:
    x = d.array("f", rank=(1, 3), test=lambda x: x.size > 0)
    return f"{x}" + d.option(f", axis={d.choose((d.axis(x), d.axes(x, 1)))}") + d.options(", epsilon=0.1", ", mean=0.5")


NN: dict[str, Calls | NotDrawn] = {
    **dict.fromkeys(
        [
            "hard_sigmoid",
            "hard_silu",
            "hard_swish",
            "hard_tanh",
            "identity",
            "log_sigmoid",
            "mish",
            "relu",
            "relu6",
            "selu",
            "sigmoid",
            "silu",
            "soft_sign",
            "softplus",
            "sparse_plus",
            "sparse_sigmoid",
            "swish",
            "tanh",
        ],
        unary("f", numbers="f"),
    ),
    "celu": with_number(", alpha=0.7"),
    "elu": with_number(", alpha=0.7"),
    "leaky_relu": with_number(", 0.3"),
    "log1mexp": unary("f", within=(0.01, 5.0), numbers="f"),
    "logmeanexp": calls(lambda d: (lambda x: f"{x}{d.over(x)}" + d.option(", keepdims=True"))(d.array("iuf"))),
    "scaled_matmul": NotDrawn("JAX runs it on GPUs alone; compared with its definition in tests/numpy/test_nn"),
    "squareplus": with_number(", 1.5"),
    "gelu": with_number(", approximate=False"),
    "dot_product_attention": calls(attention),
    "glu": calls(glus),
    "log_softmax": calls(softmaxes),
    "softmax": calls(softmaxes),
    "logsumexp": calls(logsums),
    "one_hot": calls(hot),
    "standardize": calls(standardized),
    "initializers": NO_FUNCTION,
}

__all__ = ["LAX", "LAX_LINALG", "NN"]

LAX.update(
    dict.fromkeys(
        ("RaggedDotDimensionNumbers", "ragged_dot", "ragged_dot_general"),
        NotDrawn("compared by name: their groups have to fit"),
    )
)
BY_CASES = NotDrawn("compared by name in tests/lax")
LAX.update(
    dict.fromkeys(
        [
            "approx_max_k", "approx_min_k", "betainc", "broadcast_like", "broadcast_to_rank",
            "conv_general_dilated_local", "conv_general_dilated_patches", "conv_general_permutations",
            "conv_general_shape_tuple", "conv_shape_tuple", "conv_transpose_shape_tuple",
            "custom_linear_solve", "custom_root", "empty", "igamma",
            "igamma_grad_a", "igammac", "ragged_all_to_all", "random_gamma_grad", "reduce_window_shape_tuple",
            "scaled_dot", "scatter_apply", "stack", "tile", "unstack", "zeta",
        ],
        BY_CASES,
    )
)  # fmt: skip
LAX |= {"bessel_i0e": unary("f"), "bessel_i1e": unary("f"), "mulhi": strict("iu"), "reduce_xor": axes("biu")}
LAX_LINALG.update(
    dict.fromkeys(
        [
            "EigImplementation", "EighImplementation", "SvdAlgorithm", "cholesky_update", "eig", "eigh", "hessenberg",
            "householder_product", "lu", "lu_pivots_to_permutation", "ormqr", "qdwh", "qr", "svd",
            "symmetric_product", "tridiagonal", "tridiagonal_solve",
        ],
        BY_CASES,
    )
)  # fmt: skip
