"""Our ops as StableHLO text: the other direction of the table in ``stablehlo``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from meshwright.core.op import Op
from meshwright.core.program import Eqn, Program
from meshwright.core.types import TensorType
from meshwright.interop.decompositions import neutral
from meshwright.interop.stablehlo.context import type_text
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding

Operand = tuple[str, TensorType]


class BodyText(Protocol):
    """What an op is written into."""

    lines: list[str]
    axes: Sequence[tuple[str, int]]  # of the mesh around, inside of a shard_map
    channels: int
    functions: list[str]  # of the module beside main

    def name(self) -> str: ...
    def op(
        self,
        name: str,
        operands: Sequence[Operand],
        results: Sequence[TensorType],
        properties: str = "",
        regions: str = "",
    ) -> list[str]: ...
    def constant(self, value: Any, t: TensorType) -> str: ...
    def broadcast(self, operand: Operand, t: TensorType, dims: Sequence[int] = ()) -> str: ...
    def program(self, program: Program, inputs: Sequence[str] | None = None) -> list[str]: ...
    def region(self, program: Program, names: Sequence[str], own: Sequence[TensorType] = ()) -> str: ...
    def close_region(
        self, before: list[str], arguments: Sequence[Operand], returned: Sequence[str], types: Sequence[TensorType]
    ) -> str: ...
    def scalar_region(self, name: str, dtype: Any) -> str: ...
    def decomposed(self, parts: Callable[..., list[Any]], params: Any, operands: Sequence[Operand]) -> list[str]: ...
    def constraint(self, params: Any, t: TensorType) -> str: ...
    def declared(self, sharding: TensorSharding) -> str: ...
    def mesh_of(self, axes: Sequence[tuple[str, int]]) -> BaseMesh: ...


Write = Callable[[Any, Eqn, list[Operand], list[TensorType]], list[str]]


# Numbers


def dense(value: np.ndarray[Any, Any], t: TensorType) -> str:
    """The contents of a constant: one number for all, or all bytes.

    >>> dense(np.full((2, 2), 3, np.int32), TensorType((2, 2), np.dtype("int32")))
    'dense<3>'
    """
    value = np.ascontiguousarray(value, t.dtype)
    if value.size and value.tobytes() == value.flat[0].tobytes() * value.size:  # the two zeros differ
        return f"dense<{_number(value.flat[0], t.dtype)}>"
    if t.dtype.kind == "b" or not value.size:
        words = np.where(value, "true", "false").tolist() if value.size else []
        return f"dense<{str(words).replace(chr(39), '') if value.size else ''}>"
    return f'dense<"0x{value.tobytes().hex().upper()}">'


def _number(number: Any, dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b":
        return "true" if number else "false"
    if dtype.kind in "iu":
        return str(int(number))
    if dtype.kind == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        parts = np.asarray(number, dtype).reshape(1).view(half)
        return f"({_number(parts[0], half)}, {_number(parts[1], half)})"
    return "0x" + np.asarray(number, dtype).tobytes()[::-1].hex().upper()


def _array(numbers: Sequence[int]) -> str:
    return f"array<i64{': ' if len(numbers) else ''}{', '.join(map(str, numbers))}>"


def _pairs(rows: Sequence[Sequence[int]]) -> str:
    return f"dense<{[list(row) for row in rows] if rows else ''}> : tensor<{len(rows)}x2xi64>"


def _list(numbers: Sequence[int]) -> str:
    return str(list(numbers))


def _flag(value: bool) -> str:
    return str(bool(value)).lower()


# Elementwise


def _pointwise(name: str) -> Write:
    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
        t = results[0]
        given = [(b.broadcast(x, t), TensorType(t.shape, x[1].dtype)) for x in operands]
        return b.op(name, given, results)

    return write


def _compare(direction: str) -> Write:
    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
        t = results[0]
        given = [(b.broadcast(x, t), TensorType(t.shape, x[1].dtype)) for x in operands]
        return b.op("compare", given, results, f"comparison_direction = #stablehlo<comparison_direction {direction}>")

    return write


def _select(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    t = results[0]
    pred = operands[0]
    chosen = [(b.broadcast(x, t), TensorType(t.shape, x[1].dtype)) for x in operands[1:]]
    return b.op("select", [pred, *chosen], results)


def _convert(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    (name, t), made = operands[0], results[0]
    if t.dtype == made.dtype:
        return [name]
    if t.dtype.kind == "c" and made.dtype.kind != "c":
        half = TensorType(t.shape, np.dtype(f"f{t.dtype.itemsize // 2}"))
        (name,) = b.op("real", [(name, t)], [half])
        if half.dtype == made.dtype:
            return [name]
        return b.op("convert", [(name, half)], results)
    return b.op("convert", [(name, t)], results)


def _round(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    return b.op("round_nearest_afz" if eqn.params["away"] else "round_nearest_even", operands, results)


def _reduce_precision(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    bits = ", ".join(f"{name} = {eqn.params[name]} : i32" for name in ("exponent_bits", "mantissa_bits"))
    return b.op("reduce_precision", operands, results, bits)


def _same(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    return [name for name, _ in operands]


def _plain(name: str) -> Write:
    return lambda b, eqn, operands, results: b.op(name, operands, results)


def _with(name: str, properties: Callable[[Any, list[TensorType]], str]) -> Write:
    """An op whose properties follow from its params and the types of its operands."""

    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
        return b.op(name, operands, results, properties(eqn.params, [t for _, t in operands]))

    return write


def _dynamic_slice(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    if not results[0].ndim:  # StableHLO's text has no way to write that of a scalar
        return [operands[0][0]]
    return b.op("dynamic_slice", operands, results, f"slice_sizes = {_array(eqn.params['sizes'])}")


def _polygamma(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    scalar = TensorType((), results[0].dtype)
    order = b.broadcast((b.constant(eqn.params["order"], scalar), scalar), results[0])
    return b.op("chlo.polygamma", [(order, results[0]), *operands], results)


# Contractions


def _dot(p: Any, types: list[TensorType]) -> str:
    (lc, rc), (lb, rb) = p["contract"], p["batch"]
    return (
        f"dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {_list(lb)}, "
        f"rhs_batching_dimensions = {_list(rb)}, lhs_contracting_dimensions = {_list(lc)}, "
        f"rhs_contracting_dimensions = {_list(rc)}>, "
        "precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]"
    )


def _convolution(p: Any, types: list[TensorType]) -> str:
    lhs, rhs, out = p["dims"]

    def layout(dims: Sequence[int], first: str, second: str) -> str:
        names = {dims[0]: first, dims[1]: second, **{d: str(n) for n, d in enumerate(dims[2:])}}
        return "[" + ", ".join(names[d] for d in range(len(dims))) + "]"

    numbers = f"{layout(lhs, 'b', 'f')}x{layout(rhs, 'o', 'i')}->{layout(out, 'b', 'f')}"
    return (
        f"window_strides = {_array(p['strides'])}, padding = {_pairs(p['padding'])}, "
        f"lhs_dilation = {_array(p['lhs_dilation'])}, rhs_dilation = {_array(p['rhs_dilation'])}, "
        f"dimension_numbers = #stablehlo.conv<{numbers}>, feature_group_count = {p['feature_groups']} : i64, "
        f"batch_group_count = {p['batch_groups']} : i64"
    )


# Reductions

_BODIES = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}


def _reduce(how: str) -> Write:
    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
        dtype = results[0].dtype
        scalar = TensorType((), dtype)
        start = b.constant(neutral(how, dtype), scalar)
        region = b.scalar_region(_BODIES[how], dtype)
        dims = f"dimensions = {_array(eqn.params['axes'])}"
        return b.op("reduce", [*operands, (start, scalar)], results, dims, region)

    return write


def _window(how: str, params: Callable[[Any, TensorType], dict[str, Any]] = lambda p, t: p) -> Write:
    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
        p = params(eqn.params, operands[0][1])
        dtype = results[0].dtype
        scalar = TensorType((), dtype)
        start = b.constant(neutral(how, dtype), scalar)
        properties = (
            f"window_dimensions = {_array(p['window'])}, window_strides = {_array(p['strides'])}, "
            f"base_dilations = {_array(p['base_dilation'])}, window_dilations = {_array(p['window_dilation'])}, "
            f"padding = {_pairs(p['padding'])}"
        )
        region = b.scalar_region(_BODIES[how], dtype)
        return b.op("reduce_window", [operands[0], (start, scalar)], results, properties, region)

    return write


def _running(p: Any, t: TensorType) -> dict[str, Any]:
    """A running reduction as windows that reach back to the first element (or on to the last)."""
    ones, n = (1,) * t.ndim, t.shape[p["axis"]]
    reach = (0, n - 1) if p["reverse"] else (n - 1, 0)
    return {
        "window": tuple(n if d == p["axis"] else 1 for d in range(t.ndim)),
        "strides": ones,
        "base_dilation": ones,
        "window_dilation": ones,
        "padding": tuple(reach if d == p["axis"] else (0, 0) for d in range(t.ndim)),
    }


def _best_place(how: str) -> Write:
    """The place of the largest (smallest) element: values reduced with their places, NaN and the first place ahead."""

    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
        name, t = operands[0]
        place, axis = eqn.params["dtype"], eqn.params["axis"]
        places = TensorType(t.shape, place)
        value, number = TensorType((), t.dtype), TensorType((), place)
        (numbers,) = b.op("iota", [], [places], f"iota_dimension = {axis} : i64")
        starts = b.constant(neutral(how, t.dtype), value), b.constant(0, number)
        before, b.lines = b.lines, []
        x, i, y, j = (b.name() for _ in range(4))
        truth = TensorType((), np.dtype(bool))

        def test(one: str, other: str, direction: str, of: TensorType) -> Operand:
            text = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
            return b.op("compare", [(one, of), (other, of)], [truth], text)[0], truth

        def joined(op: str, one: Operand, other: Operand) -> Operand:
            return b.op(op, [one, other], [truth])[0], truth

        ahead = joined("or", test(x, y, "GT" if how == "max" else "LT", value), test(x, x, "NE", value))
        tied = joined("and", test(x, y, "EQ", value), test(i, j, "LT", number))
        (best,) = b.op("select", [ahead, (x, value), (y, value)], [value])
        (where,) = b.op("select", [joined("or", ahead, tied), (i, number), (j, number)], [number])
        arguments = [(x, value), (i, number), (y, value), (j, number)]
        region = b.close_region(before, arguments, [best, where], [value, number])
        given = [(name, t), (numbers, places), (starts[0], value), (starts[1], number)]
        outs = b.op("reduce", given, [TensorType(results[0].shape, t.dtype), results[0]],
                    f"dimensions = {_array([axis])}", region)  # fmt: skip
        return outs[1:]

    return write


def _select_and_scatter(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    """Each summand is added to the place of its window that has the largest (smallest) element."""
    p, t = eqn.params, results[0]
    source, x = operands
    scalar, truth = TensorType((), x[1].dtype), TensorType((), np.dtype(bool))
    before, b.lines = b.lines, []
    one, other = (b.name(), scalar), (b.name(), scalar)
    direction = "GE" if p["select"] == "max" else "LE"
    test = b.op(
        "compare", [one, other], [truth], f"comparison_direction = #stablehlo<comparison_direction {direction}>"
    )
    select = b.close_region(before, [one, other], test, [truth])
    start = b.constant(0, scalar)
    properties = (
        f"window_dimensions = {_array(p['window'])}, window_strides = {_array(p['strides'])}, "
        f"padding = {_pairs(p['padding'])}"
    )
    regions = f"{select}, {b.scalar_region('add', t.dtype)}"
    return b.op("select_and_scatter", [x, source, (start, scalar)], results, properties, regions)


def _sort(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    """Ascending by the first ``num_keys`` operands, NaN last, the two zeros equal."""
    truth = TensorType((), np.dtype(bool))
    before, b.lines = b.lines, []
    arguments: list[Operand] = [(b.name(), TensorType((), t.dtype)) for _, t in operands for _ in range(2)]

    def test(one: Operand, other: Operand, direction: str) -> Operand:
        total = one[1].dtype.kind not in "biu"
        kind = ", compare_type = #stablehlo<comparison_type TOTALORDER>" if total else ""
        text = f"comparison_direction = #stablehlo<comparison_direction {direction}>{kind}"
        return b.op("compare", [one, other], [truth], text)[0], truth

    def plain(x: Operand) -> Operand:
        """One zero, one NaN, so that the total order of floating point numbers is the usual one."""
        t = x[1]
        if t.dtype.kind in "biu":
            return x
        zero, nan = (b.constant(0, t), t), (b.constant(np.nan, t), t)
        direction = "comparison_direction = #stablehlo<comparison_direction {}>"
        is_zero = b.op("compare", [x, zero], [truth], direction.format("EQ"))[0], truth
        is_nan = b.op("compare", [x, x], [truth], direction.format("NE"))[0], truth
        x = b.op("select", [is_zero, zero, x], [t])[0], t
        return b.op("select", [is_nan, nan, x], [t])[0], t

    found: Operand | None = None
    for key in reversed(range(eqn.params["num_keys"])):
        one, other = plain(arguments[2 * key]), plain(arguments[2 * key + 1])
        less = test(one, other, "LT")
        if found is not None:
            later = b.op("and", [test(one, other, "EQ"), found], [truth])[0], truth
            less = b.op("or", [less, later], [truth])[0], truth
        found = less
    assert found is not None
    region = b.close_region(before, arguments, [found[0]], [truth])
    return b.op("sort", operands, results, f"dimension = {eqn.params['dim']} : i64, is_stable = true", region)


# Gather and scatter


def _gather(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    p = eqn.params
    properties = (
        f"dimension_numbers = #stablehlo.gather<offset_dims = {_list(p['offset_dims'])}, "
        f"collapsed_slice_dims = {_list(p['collapsed_dims'])}, "
        f"operand_batching_dims = {_list(p['operand_batch_dims'])}, "
        f"start_indices_batching_dims = {_list(p['indices_batch_dims'])}, "
        f"start_index_map = {_list(p['start_index_map'])}, index_vector_dim = {operands[1][1].ndim - 1}>, "
        f"slice_sizes = {_array(p['slice_sizes'])}"
    )
    return b.op("gather", operands, results, properties)


def _scatter(how: str) -> Write:
    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
        p, t = eqn.params, results[0]
        if b.axes and prod(operands[1][1].shape[:-1]) == 1:
            # XLA writes one window by slices, which it joins with the slice that a device's block is. It reads another
            # device's block then, where the window is out of bounds.
            name, given = operands[0]
            operands = [(b.op("optimization_barrier", [(name, given)], [given])[0], given), *operands[1:]]
        numbers = (
            f"update_window_dims = {_list(p['update_window_dims'])}, "
            f"inserted_window_dims = {_list(p['inserted_window_dims'])}, "
            f"input_batching_dims = {_list(p['operand_batch_dims'])}, "
            f"scatter_indices_batching_dims = {_list(p['scatter_indices_batch_dims'])}, "
            f"scatter_dims_to_operand_dims = {_list(p['scatter_dims_to_operand_dims'])}, "
            f"index_vector_dim = {operands[1][1].ndim - 1}"
        )
        properties = f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = {_flag(p['unique'])}"
        if how:
            region = b.scalar_region(how, t.dtype)
        else:
            scalar = TensorType((), t.dtype)
            before, b.lines = b.lines, []
            old, new = b.name(), b.name()
            region = b.close_region(before, [(old, scalar), (new, scalar)], [new], [scalar])
        return b.op("scatter", operands, results, properties, region)

    return write


# Control flow


def _while(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    p = eqn.params
    names = [name for name, _ in operands]
    first, second = p["cond_consts"], p["cond_consts"] + p["body_consts"]
    carried = [(name, TensorType(t.shape, t.dtype)) for name, t in operands[second:]]
    types = [t for _, t in carried]
    regions = f"{b.region(p['cond'], names[:first], types)}, {b.region(p['body'], names[first:second], types)}"
    return b.op("while", carried, types, "", regions)


def _cond(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    (index, t), *rest = operands
    branches = eqn.params["branches"]
    number = TensorType((), np.dtype(np.int32))
    if t.dtype != number.dtype:
        (index,) = b.op("convert", [(index, t)], [number])
    low, high = b.constant(0, number), b.constant(len(branches) - 1, number)
    (index,) = b.op("clamp", [(low, number), (index, number), (high, number)], [number])
    regions = ", ".join(b.region(branch, [name for name, _ in rest]) for branch in branches)
    return b.op("case", [(index, number)], results, "", regions)


def _scan(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    """A loop that counts, reads a row of each scanned array and writes a row of each result."""
    p = eqn.params
    consts, carry, length = p["consts"], p["carry"], p["length"]
    number = TensorType((), np.dtype(np.int32))
    outputs = p["body"].out_types[carry:]
    rows = [(name, t) for name, t in operands[consts + carry :]]
    zero = b.constant(0, number)
    buffers = []
    for t in outputs:
        scalar = TensorType((), t.dtype)
        made = TensorType((length, *t.shape), t.dtype)
        buffers.append((b.broadcast((b.constant(0, scalar), scalar), made), made))
    carried: list[Operand] = [(zero, number), *operands[consts : consts + carry], *buffers]
    carried = [(name, TensorType(t.shape, t.dtype)) for name, t in carried]
    types = [t for _, t in carried]
    truth = TensorType((), np.dtype(bool))

    before, b.lines = b.lines, []
    arguments = [(b.name(), t) for t in types]
    limit = b.constant(length, number)
    less = "comparison_direction = #stablehlo<comparison_direction LT>"
    test = b.op("compare", [arguments[0], (limit, number)], [truth], less)
    condition = b.close_region(before, arguments, test, [truth])

    before, b.lines = b.lines, []
    arguments = [(b.name(), t) for t in types]
    count = arguments[0]
    at = count
    if p["reverse"]:
        at = b.op("subtract", [(b.constant(length - 1, number), number), count], [number])[0], number
    start: Operand = (b.constant(0, number), number)
    given = []
    for name, t in rows:
        row = TensorType((1, *t.shape[1:]), t.dtype)
        places = [at, *([start] * (t.ndim - 1))]
        (cut,) = b.op("dynamic_slice", [(name, t), *places], [row], f"slice_sizes = {_array(row.shape)}")
        given += b.op("reshape", [(cut, row)], [TensorType(t.shape[1:], t.dtype)])
    names = [name for name, _ in operands[:consts]]
    outs = b.program(p["body"], [*names, *(name for name, _ in arguments[1 : 1 + carry]), *given])
    new = []
    for out, t, (buffer, made) in zip(outs[carry:], outputs, arguments[1 + carry :], strict=True):
        row = TensorType((1, *t.shape), t.dtype)
        (cut,) = b.op("reshape", [(out, TensorType(t.shape, t.dtype))], [row])
        new += b.op("dynamic_update_slice", [(buffer, made), (cut, row), at, *([start] * t.ndim)], [made])
    (following,) = b.op("add", [count, (b.constant(1, number), number)], [number])
    body = b.close_region(before, arguments, [following, *outs[:carry], *new], types)
    return b.op("while", carried, types, "", f"{condition}, {body}")[1:]


def _inlined(param: str) -> Write:
    return lambda b, eqn, operands, results: b.program(eqn.params[param], [name for name, _ in operands])


def _constraint(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    operand, t = operands[0]
    return [constrained(b, operand, t, b.constraint(eqn.params, t))]


def constrained(b: BodyText, operand: str, t: TensorType, sharding: str) -> str:
    """A value that has a sharding."""
    name = b.name()
    b.lines.append(f"{name} = sdy.sharding_constraint {operand} {sharding} : {type_text(t)}")
    return name


def _solve(p: Any, types: list[TensorType]) -> str:
    turned = "ADJOINT" if p["conjugate_a"] and p["transpose_a"] else "TRANSPOSE" if p["transpose_a"] else "NO_TRANSPOSE"
    flags = ", ".join(f"{name} = {_flag(p[name])}" for name in ("left_side", "lower", "unit_diagonal"))
    return f"{flags}, transpose_a = #stablehlo<transpose {turned}>"


def writer_of(op: Op) -> Write | None:
    """How an op is written that StableHLO has."""
    found = OPS.get(op.name)
    return found if found is not None or op.stablehlo is None else _pointwise(op.stablehlo.removeprefix("stablehlo."))


OPS: dict[str, Write] = {
    **{name: _compare(name.upper()) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"reduce_{how}": _reduce(how) for how in _BODIES},
    **{f"reduce_window_{how}": _window(how) for how in ("sum", "max", "min")},
    **{f"cum{how}": _window(how, _running) for how in ("sum", "prod", "max", "min")},
    "argmax": _best_place("max"),
    "argmin": _best_place("min"),
    "bitcast": _plain("bitcast_convert"),
    "broadcast_in_dim": _with("broadcast_in_dim", lambda p, types: f"broadcast_dimensions = {_array(p['dims'])}"),
    "checkpoint": _inlined("program"),
    "cholesky": _with("cholesky", lambda p, types: "lower = true"),
    "concatenate": _with("concatenate", lambda p, types: f"dimension = {p['dim']} : i64"),
    "cond": _cond,
    "conv_general_dilated": _with("convolution", _convolution),
    "convert": _convert,
    "custom_jvp_call": _inlined("call"),
    "custom_vjp_call": _inlined("call"),
    "dot_general": _with("dot_general", _dot),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _plain("dynamic_update_slice"),
    "fft": _with(
        "fft",
        lambda p, types: f"fft_type = #stablehlo<fft_type {p['kind'].upper()}>, fft_length = {_array(p['lengths'])}",
    ),
    "iota": _with("iota", lambda p, types: f"iota_dimension = {p['dim']} : i64"),
    "polygamma": _polygamma,
    "select_and_scatter_add": _select_and_scatter,
    "optimization_barrier": _plain("optimization_barrier"),
    "pad": _with(
        "pad",
        lambda p, types: (
            f"edge_padding_low = {_array(p['low'])}, edge_padding_high = {_array(p['high'])}, "
            f"interior_padding = {_array(p['interior'])}"
        ),
    ),
    "reduce_precision": _reduce_precision,
    "reshape": _plain("reshape"),
    "reverse": _with("reverse", lambda p, types: f"dimensions = {_array(p['dims'])}"),
    "round": _round,
    "scan": _scan,
    "select": _select,
    "sharding_constraint": _constraint,
    "slice": _with(
        "slice",
        lambda p, types: (
            f"start_indices = {_array(p['starts'])}, limit_indices = {_array(p['limits'])}, "
            f"strides = {_array(p['strides'])}"
        ),
    ),
    "sort": _sort,
    "stop_gradient": _same,
    "checkpoint_name": _same,
    "offload": _same,
    "reload": _same,
    "top_k": _with("chlo.top_k", lambda p, types: f"k = {p['k']} : i64"),
    "transpose": _with("transpose", lambda p, types: f"permutation = {_array(p['permutation'])}"),
    "triangular_solve": _with("triangular_solve", _solve),
    "while": _while,
    "gather": _gather,
    "scatter_add": _scatter("add"),
    "scatter_max": _scatter("maximum"),
    "scatter_min": _scatter("minimum"),
    "scatter_mul": _scatter("multiply"),
    "scatter_set": _scatter(""),
}
