"""Our ops as HLO instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core.op import Op
from meshwright.core.program import Eqn, Params
from meshwright.core.types import TensorType
from meshwright.interop.decompositions import neutral
from meshwright.interop.hlo.collectives import COLLECTIVES
from meshwright.interop.hlo.functions import by_xla
from meshwright.interop.hlo.loops import LOOPS
from meshwright.interop.hlo.writer import PRED, Computation, HloValue, Write, numbers

Types = list[TensorType]


def _spread(c: Computation, operands: Sequence[HloValue], t: TensorType) -> list[HloValue]:
    """All operands in the shape of the result: HLO broadcasts nothing by itself."""
    return [c.spread(x, t.shape) for x in operands]


def _pointwise(opcode: str, attributes: str = "") -> Write:
    return lambda c, eqn, operands, results: c.op(opcode, _spread(c, operands, results[0]), results, attributes)


def _with(opcode: str, attributes: Callable[[Params], str]) -> Write:
    """An instruction whose attributes follow from the params alone."""
    return lambda c, eqn, operands, results: c.op(opcode, operands, results, attributes(eqn.params))


def _same(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    return operands


def _convert(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    (x,) = operands
    if x.type.dtype.kind == "c" and results[0].dtype.kind != "c":
        half = TensorType(x.type.shape, np.dtype(f"f{x.type.dtype.itemsize // 2}"))
        (x,) = c.op("real", [x], [half])
    return [x] if x.type.dtype == results[0].dtype else c.op("convert", [x], results)


def _round(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    return c.op("round-nearest-afz" if eqn.params["away"] else "round-nearest-even", operands, results)


def _atan(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    return c.op("atan2", _spread(c, [*operands, c.number(1, results[0].dtype)], results[0]), results)


def _barrier(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    if len(operands) == 1:
        return c.op("opt-barrier", operands, results)
    return c.from_tuple("opt-barrier", [c.tuple(operands)], results, "")


def _broadcast(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    return [c.spread(operands[0], results[0].shape, eqn.params["dims"])]


def _reshape(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    return [c.reshape(operands[0], results[0].shape)]


def _transpose(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    return [c.transpose(operands[0], eqn.params["permutation"])]


def _iota(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    return c.op("iota", [], results, f"iota_dimension={eqn.params['dim']}")


def _slice(p: Params) -> str:
    bounds = zip(p["starts"], p["limits"], p["strides"], strict=True)
    return "slice={" + ", ".join(f"[{a}:{b}:{s}]" if s != 1 else f"[{a}:{b}]" for a, b, s in bounds) + "}"


def _pad(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    if not results[0].ndim:
        return operands[:1]
    rows = zip(eqn.params["low"], eqn.params["high"], eqn.params["interior"], strict=True)
    return c.op("pad", operands, results, "padding=" + "x".join(f"{a}_{b}_{i}" for a, b, i in rows))


def _dynamic(opcode: str, first: int) -> Write:
    """A box at a place that is computed; a scalar has no other."""

    def write(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
        if not results[0].ndim:
            return [operands[first - 1]]
        sizes = f"dynamic_slice_sizes={numbers(results[0].shape)}" if first == 1 else ""
        return c.op(opcode, operands, results, sizes)

    return write


# Contractions


def _dot(p: Params) -> str:
    (lc, rc), (lb, rb) = p["contract"], p["batch"]
    named = (("lhs_batch", lb), ("lhs_contracting", lc), ("rhs_batch", rb), ("rhs_contracting", rc))
    return ", ".join(f"{name}_dims={numbers(dims)}" for name, dims in named if dims)


def _window(
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[Sequence[int]],
    base: Sequence[int],
    dilation: Sequence[int],
) -> str:
    def times(values: Sequence[Any]) -> str:
        return "x".join(map(str, values))

    pads = times([f"{low}_{high}" for low, high in padding])
    text = f"size={times(sizes)} stride={times(strides)} pad={pads}"
    return f"window={{{text} lhs_dilate={times(base)} rhs_dilate={times(dilation)}}}" if sizes else "window={}"


def _convolution(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    p = eqn.params
    lhs, rhs, out = p["dims"]

    def labels(dims: Sequence[int], first: str, second: str) -> str:
        names = {dims[0]: first, dims[1]: second, **{d: str(n) for n, d in enumerate(dims[2:])}}
        return "".join(names[d] for d in range(len(dims)))

    sizes = [operands[1].type.shape[d] for d in rhs[2:]]
    window = _window(sizes, p["strides"], p["padding"], p["lhs_dilation"], p["rhs_dilation"])
    text = f"{window}, dim_labels={labels(lhs, 'b', 'f')}_{labels(rhs, 'o', 'i')}->{labels(out, 'b', 'f')}"
    for name in ("feature_groups", "batch_groups"):
        text += f", {name[:-1]}_count={p[name]}" if p[name] != 1 else ""
    return c.op("convolution", operands, results, text)


# Reductions

_OPCODES = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}


def _reduce(how: str) -> Write:
    def write(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
        dtype = results[0].dtype
        text = f"dimensions={numbers(eqn.params['axes'])}, to_apply={c.module.scalar(_OPCODES[how], dtype)}"
        return c.op("reduce", [*operands, c.number(neutral(how, dtype), dtype)], results, text)

    return write


def _reduce_window(how: str, window: Callable[[Params, TensorType], str]) -> Write:
    def write(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
        dtype = results[0].dtype
        if not results[0].ndim:
            return operands[:1]
        text = f"{window(eqn.params, operands[0].type)}, to_apply={c.module.scalar(_OPCODES[how], dtype)}"
        return c.op("reduce-window", [operands[0], c.number(neutral(how, dtype), dtype)], results, text)

    return write


def _own_window(p: Params, t: TensorType) -> str:
    return _window(p["window"], p["strides"], p["padding"], p["base_dilation"], p["window_dilation"])


def _running(p: Params, t: TensorType) -> str:
    """Windows that reach back to the first element (or on to the last)."""
    n, ones = t.shape[p["axis"]], (1,) * t.ndim
    reach = (0, n - 1) if p["reverse"] else (n - 1, 0)
    sizes = [n if d == p["axis"] else 1 for d in range(t.ndim)]
    return _window(sizes, ones, [reach if d == p["axis"] else (0, 0) for d in range(t.ndim)], ones, ones)


def _best_place(how: str) -> Write:
    """The place of the largest (smallest) element: values reduced with their places, NaN and the first place ahead."""

    def write(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
        (x,) = operands
        axis, place = eqn.params["axis"], results[0].dtype
        value, number, truth = TensorType((), x.type.dtype), TensorType((), place), TensorType((), PRED)
        inside = Computation(c.module, [value, number, value, number])
        a, i, b, j = inside.parameters

        def test(one: HloValue, other: HloValue, direction: str) -> HloValue:
            return inside.op("compare", [one, other], [truth], f"direction={direction}")[0]

        def joined(opcode: str, one: HloValue, other: HloValue) -> HloValue:
            return inside.op(opcode, [one, other], [truth])[0]

        ahead = joined("or", test(a, b, "GT" if how == "max" else "LT"), test(a, a, "NE"))
        first = joined("or", ahead, joined("and", test(a, b, "EQ"), test(i, j, "LT")))
        best = inside.op("select", [ahead, a, b], [value])
        where = inside.op("select", [first, i, j], [number])
        name = inside.finish(f"best_place_{how}", [*best, *where])
        (places,) = c.op("iota", [], [TensorType(x.type.shape, place)], f"iota_dimension={axis}")
        starts = [c.number(neutral(how, x.type.dtype), x.type.dtype), c.number(0, place)]
        made = [TensorType(results[0].shape, x.type.dtype), results[0]]
        return c.op("reduce", [x, places, *starts], made, f"dimensions={{{axis}}}, to_apply={name}")[1:]

    return write


def _select_and_scatter(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    """Each summand is added to the place of its window that has the largest (smallest) element."""
    p = eqn.params
    source, x = operands
    dtype = x.type.dtype
    direction = "GE" if p["select"] == "max" else "LE"
    select = c.module.scalar("compare", dtype, f"direction={direction}", PRED)
    text = f"{_own_window(p, x.type)}, select={select}, scatter={c.module.scalar('add', dtype)}"
    return c.op("select-and-scatter", [x, source, c.number(0, dtype)], results, text)


def _sort(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    """Ascending by the first ``num_keys`` operands, NaN last, the two zeros equal."""
    truth = TensorType((), PRED)
    inside = Computation(c.module, [TensorType((), x.type.dtype) for x in operands for _ in range(2)])

    def plain(x: HloValue) -> HloValue:
        """One zero, one NaN, so that the total order of floating point numbers is the usual one."""
        if x.type.dtype.kind in "biu":
            return x
        zero, nan = inside.number(0, x.type.dtype), inside.number(np.nan, x.type.dtype)
        is_zero = inside.op("compare", [x, zero], [truth], "direction=EQ")[0]
        is_nan = inside.op("compare", [x, x], [truth], "direction=NE")[0]
        (x,) = inside.op("select", [is_zero, zero, x], [x.type])
        return inside.op("select", [is_nan, nan, x], [x.type])[0]

    def test(one: HloValue, other: HloValue, direction: str) -> HloValue:
        total = "" if one.type.dtype.kind in "biu" else ", type=TOTALORDER"
        return inside.op("compare", [one, other], [truth], f"direction={direction}{total}")[0]

    found: HloValue | None = None
    for key in reversed(range(eqn.params["num_keys"])):
        one, other = (plain(x) for x in inside.parameters[2 * key : 2 * key + 2])
        less = test(one, other, "LT")
        if found is not None:
            (later,) = inside.op("and", [test(one, other, "EQ"), found], [truth])
            (less,) = inside.op("or", [less, later], [truth])
        found = less
    assert found is not None
    name = inside.finish("in_order", [found])
    return c.op("sort", operands, results, f"dimensions={{{eqn.params['dim']}}}, is_stable=true, to_apply={name}")


def _top_k(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    return c.from_tuple("topk", [operands[0].name], results, f"k={eqn.params['k']}, largest=true")


# Gather and scatter


def _gather(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    p = eqn.params
    text = (
        f"offset_dims={numbers(p['offset_dims'])}, collapsed_slice_dims={numbers(p['collapsed_dims'])}, "
        f"start_index_map={numbers(p['start_index_map'])}, "
    )
    if p["operand_batch_dims"]:
        text += f"operand_batching_dims={numbers(p['operand_batch_dims'])}, "
        text += f"start_indices_batching_dims={numbers(p['indices_batch_dims'])}, "
    text += f"index_vector_dim={operands[1].type.ndim - 1}, slice_sizes={numbers(p['slice_sizes'])}"
    return c.op("gather", operands, results, text)


def _scatter(opcode: str) -> Write:
    def write(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
        p, dtype = eqn.params, results[0].dtype
        text = (
            f"update_window_dims={numbers(p['update_window_dims'])}, "
            f"inserted_window_dims={numbers(p['inserted_window_dims'])}, "
            f"scatter_dims_to_operand_dims={numbers(p['scatter_dims_to_operand_dims'])}, "
        )
        if p["operand_batch_dims"]:
            text += f"input_batching_dims={numbers(p['operand_batch_dims'])}, "
            text += f"scatter_indices_batching_dims={numbers(p['scatter_indices_batch_dims'])}, "
        text += f"index_vector_dim={operands[1].type.ndim - 1}, "
        text += "unique_indices=true, " if p["unique"] else ""
        combine = c.module.scalar(opcode, dtype) if opcode else c.module.second(dtype)
        return c.op("scatter", operands, results, f"{text}to_apply={combine}")

    return write


def _solve(p: Params) -> str:
    turned = "ADJOINT" if p["conjugate_a"] and p["transpose_a"] else "TRANSPOSE" if p["transpose_a"] else "NO_TRANSPOSE"
    flags = ", ".join(f"{name}={str(bool(p[name])).lower()}" for name in ("left_side", "lower", "unit_diagonal"))
    return f"{flags}, transpose_a={turned}"


def writer_of(op: Op) -> Write | None:
    """How an op is written that HLO has, or that XLA writes in terms of others."""
    found = OPS.get(op.name)
    if found is not None or op.stablehlo is None:
        return found
    dialect, _, name = op.stablehlo.partition(".")
    return _pointwise(name.replace("_", "-")) if dialect == "stablehlo" else by_xla


OPS: dict[str, Write] = {
    **dict.fromkeys(("erf", "reproducible_erf"), _pointwise("erf")),
    **{name: _pointwise("compare", f"direction={name.upper()}") for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"reduce_{how}": _reduce(how) for how in _OPCODES},
    **{f"reduce_window_{how}": _reduce_window(how, _own_window) for how in ("sum", "max", "min")},
    **{f"cum{how}": _reduce_window(how, _running) for how in ("sum", "prod", "max", "min")},
    **COLLECTIVES,
    **LOOPS,
    "argmax": _best_place("max"),
    "argmin": _best_place("min"),
    "atan": _atan,
    "bitcast": _with("bitcast-convert", lambda p: ""),
    "broadcast_in_dim": _broadcast,
    "cholesky": _with("cholesky", lambda p: "lower=true"),
    "concatenate": _with("concatenate", lambda p: f"dimensions={{{p['dim']}}}"),
    "conv_general_dilated": _convolution,
    "convert": _convert,
    "dot_general": _with("dot", _dot),
    "dynamic_slice": _dynamic("dynamic-slice", 1),
    "dynamic_update_slice": _dynamic("dynamic-update-slice", 2),
    "fft": _with("fft", lambda p: f"fft_type={p['kind'].upper()}, fft_length={numbers(p['lengths'])}"),
    "gather": _gather,
    "iota": _iota,
    "optimization_barrier": _barrier,
    "pad": _pad,
    "polygamma": by_xla,
    "reduce_precision": _with(
        "reduce-precision", lambda p: f"exponent_bits={p['exponent_bits']}, mantissa_bits={p['mantissa_bits']}"
    ),
    "reshape": _reshape,
    "reverse": _with("reverse", lambda p: f"dimensions={numbers(p['dims'])}"),
    "round": _round,
    "scatter_add": _scatter("add"),
    "scatter_max": _scatter("maximum"),
    "scatter_min": _scatter("minimum"),
    "scatter_mul": _scatter("multiply"),
    "scatter_set": _scatter(""),
    "select_and_scatter_add": _select_and_scatter,
    "sharding_constraint": _same,
    "slice": _with("slice", _slice),
    "sort": _sort,
    "stop_gradient": _same,
    "checkpoint_name": _same,
    "offload": _same,
    "reload": _same,
    "top_k": _top_k,
    "transpose": _transpose,
    "triangular_solve": _with("triangular-solve", _solve),
}
