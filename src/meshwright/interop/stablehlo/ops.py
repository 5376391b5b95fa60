"""StableHLO's ops and ours: one table. An entry reads an instance as a call of one of our ops.

From it come the factor rule of an instance and the program of a module. What has no counterpart among our ops has a
rule in ``foreign_rules`` at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core.op import REGISTRY, Op
from meshwright.interop.stablehlo.context import boolean, defaulted, integer, integers, keyword, pairs, string
from meshwright.interop.stablehlo.instance import Instance, Match, TensorPosition, plain_match
from meshwright.transform import every_op as _every_op  # noqa: F401  (fills the registry)


def _same() -> dict[str, str]:
    """Our ops by the names of theirs that are the same; the first that has a name is read from it."""
    found: dict[str, str] = {}
    for op in REGISTRY.values():
        if op.stablehlo is not None:
            found.setdefault(op.stablehlo, op.name)
    return found


SAME: dict[str, str] = {**_same(), "chlo.tan": "tan"}
COMBINATIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "and": "and", "or": "or"}
SCATTERS = {"add": "scatter_add", "multiply": "scatter_mul", "maximum": "scatter_max", "minimum": "scatter_min"}


def counterpart(instance: Instance) -> Match | None:
    """The instance as a call of one of our ops, or None if there is none."""
    name = SAME.get(instance.name)
    if name is not None:
        return plain_match(instance, REGISTRY[name])
    read = _READERS.get(instance.name)
    if read is not None:
        return read(instance)
    defined = next((op for op in REGISTRY.values() if op.stablehlo == instance.name), None)  # by a user, since
    return None if defined is None else plain_match(instance, defined)


def spellings() -> dict[str, list[str]]:
    """What StableHLO calls our ops."""
    found: dict[str, list[str]] = {}
    for theirs, ours in (*SAME.items(), *_OTHERS):
        found.setdefault(ours, []).append(theirs)
    return found


def body_operation(region: Any) -> str:
    """The name of the op that a region of two scalars applies to them in their order; "" if it does anything else.

    ``(a, b) -> b`` is called ``second``.
    """
    block = region.blocks[0]
    ops = [op.operation for op in block.operations]
    arguments = list(block.arguments)
    returned = list(ops[-1].operands)
    if len(arguments) != 2 or len(returned) != 1:
        return ""
    if len(ops) == 1:
        return "second" if returned[0] == arguments[1] else ""
    name = str(ops[0].name).removeprefix("stablehlo.")
    used = list(ops[0].operands)
    commutes = name in COMBINATIONS and used == arguments[::-1]
    if len(ops) != 2 or returned[0] != ops[0].results[0] or not (used == arguments or commutes):
        return ""
    return name


def _op(name: str) -> Op:
    return REGISTRY[name]


def _convert(x: Instance) -> Match:
    return plain_match(x, _op("convert"), dtype=x.results[0].dtype, weak=False)


def _bitcast(x: Instance) -> Match:
    return plain_match(x, _op("bitcast"), dtype=x.results[0].dtype)


def _compare(x: Instance) -> Match:
    return plain_match(x, _op(keyword(x.attributes["comparison_direction"]).lower()))


def _reduce_precision(x: Instance) -> Match:
    bits = {name: integer(x.attributes[name]) for name in ("exponent_bits", "mantissa_bits")}
    return plain_match(x, _op("reduce_precision"), **bits)


def _broadcast(x: Instance) -> Match:
    dims = integers(x.attributes["broadcast_dimensions"])
    if list(dims) == sorted(dims):
        return plain_match(x, _op("broadcast_in_dim"), shape=x.results[0].shape, dims=dims)
    order = tuple(sorted(range(len(dims)), key=dims.__getitem__))
    places = (TensorPosition((0,), order), TensorPosition((1,)))
    return Match(_op("broadcast_in_dim"), {"shape": x.results[0].shape, "dims": tuple(sorted(dims))}, places)


def _transpose(x: Instance) -> Match:
    return plain_match(x, _op("transpose"), permutation=integers(x.attributes["permutation"]))


def _slice(x: Instance) -> Match:
    starts, limits, strides = (integers(x.attributes[name]) for name in ("start_indices", "limit_indices", "strides"))
    return plain_match(x, _op("slice"), starts=starts, limits=limits, strides=strides)


def _pad(x: Instance) -> Match:
    names = {"low": "edge_padding_low", "high": "edge_padding_high", "interior": "interior_padding"}
    return plain_match(x, _op("pad"), **{ours: integers(x.attributes[name]) for ours, name in names.items()})


def _iota(x: Instance) -> Match:
    result = x.results[0]
    return plain_match(
        x, _op("iota"), dtype=result.dtype, shape=result.shape, dim=integer(x.attributes["iota_dimension"])
    )


def _dot_general(x: Instance) -> Match:
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.DotDimensionNumbers(x.attributes["dot_dimension_numbers"])
    params = {
        "contract": (tuple(dims.lhs_contracting_dimensions), tuple(dims.rhs_contracting_dimensions)),
        "batch": (tuple(dims.lhs_batching_dimensions), tuple(dims.rhs_batching_dimensions)),
        "dtype": None if x.results[0].dtype == x.operands[0].dtype else x.results[0].dtype,
    }
    return plain_match(x, _op("dot_general"), **params)


def _dot(x: Instance) -> Match:
    contract = ((x.operands[0].ndim - 1,), (0,))
    dtype = None if x.results[0].dtype == x.operands[0].dtype else x.results[0].dtype
    return plain_match(x, _op("dot_general"), contract=contract, batch=((), ()), dtype=dtype)


def _reduce(x: Instance) -> Match:
    """Several inputs are reduced as one is, whatever combines them."""
    count = len(x.results)
    combine = COMBINATIONS.get(body_operation(x.op.regions[0]), "sum")
    places = (TensorPosition(tuple(range(count))), TensorPosition(tuple(range(2 * count, 3 * count))))
    return Match(_op(f"reduce_{combine}"), {"axes": tuple(sorted(integers(x.attributes["dimensions"])))}, places)


def _windows(x: Instance) -> dict[str, Any]:
    rank = x.operands[0].ndim
    return {
        "window": integers(x.attributes["window_dimensions"]),
        "strides": defaulted(x.get("window_strides", integers), rank),
        "padding": x.get("padding", pairs, ((0, 0),) * rank),
        "base_dilation": defaulted(x.get("base_dilations", integers), rank),
        "window_dilation": defaulted(x.get("window_dilations", integers), rank),
    }


def _reduce_window(x: Instance) -> Match:
    count = len(x.results)
    combine = {"maximum": "max", "minimum": "min"}.get(body_operation(x.op.regions[0]), "sum")
    places = (TensorPosition(tuple(range(count))), TensorPosition(tuple(range(2 * count, 3 * count))))
    return Match(_op(f"reduce_window_{combine}"), _windows(x), places)


def _select_and_scatter(x: Instance) -> Match:
    rank = x.operands[0].ndim
    params = {
        "window": x.get("window_dimensions", integers, (1,) * rank),
        "strides": defaulted(x.get("window_strides", integers), rank),
        "padding": x.get("padding", pairs, ((0, 0),) * rank),
        "base_dilation": (1,) * rank,
        "window_dilation": (1,) * rank,
        "select": "max",
    }
    return Match(
        _op("select_and_scatter_add"), params, (TensorPosition((1,)), TensorPosition((0,)), TensorPosition((3,)))
    )


def _convolution(x: Instance) -> Match:
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.ConvDimensionNumbers(x.attributes["dimension_numbers"])
    spatial = x.operands[0].ndim - 2
    lhs = (dims.input_batch_dimension, dims.input_feature_dimension, *dims.input_spatial_dimensions)
    rhs = (dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension, *dims.kernel_spatial_dimensions)
    out = (dims.output_batch_dimension, dims.output_feature_dimension, *dims.output_spatial_dimensions)
    params = {
        "strides": defaulted(x.get("window_strides", integers), spatial),
        "padding": x.get("padding", pairs, ((0, 0),) * spatial),
        "lhs_dilation": defaulted(x.get("lhs_dilation", integers), spatial),
        "rhs_dilation": defaulted(x.get("rhs_dilation", integers), spatial),
        "dims": (lhs, rhs, out),
        "feature_groups": integer(x.attributes["feature_group_count"]),
        "batch_groups": integer(x.attributes["batch_group_count"]),
    }
    return plain_match(x, _op("conv_general_dilated"), **params)


def _index_order(rank: int, vector_dim: int) -> tuple[int, ...]:
    """Our indices have their vectors last; theirs may have them anywhere, or (each of one component) not at all."""
    others = tuple(d for d in range(rank) if d != vector_dim)
    return (*others, vector_dim if vector_dim < rank else -1)


def _gather(x: Instance) -> Match:
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.GatherDimensionNumbers(x.attributes["dimension_numbers"])
    vector_dim = dims.index_vector_dim
    params = {
        "offset_dims": tuple(dims.offset_dims),
        "collapsed_dims": tuple(dims.collapsed_slice_dims),
        "operand_batch_dims": tuple(dims.operand_batching_dims),
        "indices_batch_dims": tuple(d - (d > vector_dim) for d in dims.start_indices_batching_dims),
        "start_index_map": tuple(dims.start_index_map),
        "slice_sizes": integers(x.attributes["slice_sizes"]),
        "mode": "clip",
    }
    places = (
        TensorPosition((0,)),
        TensorPosition((1,), _index_order(x.operands[1].ndim, vector_dim)),
        TensorPosition((2,)),
    )
    return Match(_op("gather"), params, places)


def _scatter(x: Instance) -> Match:
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.ScatterDimensionNumbers(x.attributes["scatter_dimension_numbers"])
    vector_dim, count = dims.index_vector_dim, len(x.results)
    params = {
        "update_window_dims": tuple(dims.update_window_dims),
        "inserted_window_dims": tuple(dims.inserted_window_dims),
        "operand_batch_dims": tuple(dims.input_batching_dims),
        "scatter_indices_batch_dims": tuple(d - (d > vector_dim) for d in dims.scatter_indices_batching_dims),
        "scatter_dims_to_operand_dims": tuple(dims.scattered_dims_to_operand_dims),
        "mode": "drop",
        "unique": x.get("unique_indices", boolean, False),
    }
    op = SCATTERS.get(scatter_combination(x), "scatter_set")
    places = (
        TensorPosition(tuple(range(count))),
        TensorPosition((count,), _index_order(x.operands[count].ndim, vector_dim)),
        TensorPosition(tuple(range(count + 1, 2 * count + 1))),
        TensorPosition(tuple(range(2 * count + 1, 3 * count + 1))),
    )
    return Match(_op(op), params, places)


def scatter_combination(x: Instance) -> str:
    """The op by which updates meet what is there, each input with its own update; "" if there is no one such op."""
    count = len(x.results)
    if count == 1:
        found = body_operation(x.op.regions[0])
        if x.results[0].dtype.kind == "b":  # truth values are combined by these two
            return {"and": "minimum", "or": "maximum"}.get(found, found)
        return found
    block = x.op.regions[0].blocks[0]
    *inner, end = [op.operation for op in block.operations]
    arguments = list(block.arguments)
    names = {str(op.name).removeprefix("stablehlo.") for op in inner}
    if len(inner) != count or len(names) != 1 or not names <= SCATTERS.keys():
        return ""
    pairs_ = [[arguments[i], arguments[count + i]] for i in range(count)]
    made = {op.results[0]: list(op.operands) for op in inner}
    returned = [made.get(value) for value in end.operands]
    return names.pop() if all(a in (p, p[::-1]) for a, p in zip(returned, pairs_, strict=True)) else ""


def _sort(x: Instance) -> Match:
    return plain_match(x, _op("sort"), dim=x.get("dimension", integer, -1) % x.operands[0].ndim, num_keys=1)


def _fft(x: Instance) -> Match:
    return plain_match(
        x, _op("fft"), kind=keyword(x.attributes["fft_type"]).lower(), lengths=integers(x.attributes["fft_length"])
    )


def _triangular_solve(x: Instance) -> Match:
    transpose = keyword(x.attributes["transpose_a"])
    params = {
        **{name: boolean(x.attributes[name]) for name in ("left_side", "lower", "unit_diagonal")},
        "transpose_a": transpose != "NO_TRANSPOSE",
        "conjugate_a": transpose == "ADJOINT",
    }
    return plain_match(x, _op("triangular_solve"), **params)


def _custom_call(x: Instance) -> Match | None:
    name = {"mhlo.erf": "erf", "LayoutConstraint": "optimization_barrier"}.get(string(x.attributes["call_target_name"]))
    return None if name is None else plain_match(x, _op(name))


_READERS: dict[str, Callable[[Instance], Match | None]] = {
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.cholesky": lambda x: plain_match(x, _op("cholesky")),
    "stablehlo.compare": _compare,
    "stablehlo.concatenate": lambda x: plain_match(x, _op("concatenate"), dim=integer(x.attributes["dimension"])),
    "stablehlo.convert": _convert,
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.dot": _dot,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_slice": lambda x: plain_match(
        x, _op("dynamic_slice"), sizes=integers(x.attributes["slice_sizes"])
    ),
    "stablehlo.dynamic_update_slice": lambda x: plain_match(x, _op("dynamic_update_slice")),
    "stablehlo.fft": _fft,
    "stablehlo.gather": _gather,
    "stablehlo.iota": _iota,
    "stablehlo.pad": _pad,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_precision": _reduce_precision,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.reshape": lambda x: plain_match(x, _op("reshape"), shape=x.results[0].shape),
    "stablehlo.reverse": lambda x: plain_match(x, _op("reverse"), dims=integers(x.attributes["dimensions"])),
    "stablehlo.round_nearest_afz": lambda x: plain_match(x, _op("round"), away=True),
    "stablehlo.round_nearest_even": lambda x: plain_match(x, _op("round"), away=False),
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.slice": _slice,
    "stablehlo.sort": _sort,
    "stablehlo.transpose": _transpose,
    "stablehlo.triangular_solve": _triangular_solve,
    "chlo.top_k": lambda x: plain_match(x, _op("top_k"), k=integer(x.attributes["k"])),
}

# Our ops by the names of those that become them, for people.
_OTHERS = (
    ("stablehlo.bitcast_convert", "bitcast"),
    ("stablehlo.broadcast_in_dim", "broadcast_in_dim"),
    ("stablehlo.cholesky", "cholesky"),
    *(("stablehlo.compare", name) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    ("stablehlo.concatenate", "concatenate"),
    ("stablehlo.convert", "convert"),
    ("stablehlo.convolution", "conv_general_dilated"),
    ("stablehlo.dot_general", "dot_general"),
    ("stablehlo.dot", "dot_general"),
    ("stablehlo.dynamic_slice", "dynamic_slice"),
    ("stablehlo.dynamic_update_slice", "dynamic_update_slice"),
    ("stablehlo.fft", "fft"),
    ("stablehlo.gather", "gather"),
    ("stablehlo.iota", "iota"),
    ("stablehlo.pad", "pad"),
    *(("stablehlo.reduce", f"reduce_{name}") for name in ("sum", "prod", "max", "min", "and", "or")),
    ("stablehlo.reduce_precision", "reduce_precision"),
    *(("stablehlo.reduce_window", f"reduce_window_{name}") for name in ("sum", "max", "min")),
    ("stablehlo.reshape", "reshape"),
    ("stablehlo.reverse", "reverse"),
    ("stablehlo.round_nearest_afz", "round"),
    ("stablehlo.round_nearest_even", "round"),
    *(("stablehlo.scatter", f"scatter_{name}") for name in ("add", "mul", "max", "min", "set")),
    ("stablehlo.select_and_scatter", "select_and_scatter_add"),
    ("stablehlo.slice", "slice"),
    ("stablehlo.sort", "sort"),
    ("stablehlo.transpose", "transpose"),
    ("stablehlo.triangular_solve", "triangular_solve"),
    ("chlo.top_k", "top_k"),
)
