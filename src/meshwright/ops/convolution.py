"""Convolution of any rank, with strides, padding, dilation of either operand, and groups."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from meshwright.core import dtypes
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across, Fusion, Memory, Split
from meshwright.core.op import Cost, Linear, Linearity, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import OutSharding, Shape, TensorType
from meshwright.ops.basic import Derivatives, move_dim, reshape, transpose, zeros
from meshwright.ops.layout import as_primal, sums_taken
from meshwright.ops.rules import bad_operands, traffic
from meshwright.ops.shape import before, rearranged, reverse

# Where the dims of the three arrays are: (batch, feature, *spatial) of the input and of the result, and
# (output feature, input feature, *spatial) of the kernel.
DimNumbers = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def dilated(size: int, dilation: int) -> int:
    """The extent of ``size`` elements with ``dilation - 1`` holes between neighbours."""
    return (size - 1) * dilation + 1 if size else 0


def _conv_type(
    x: TensorType,
    w: TensorType,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dims: DimNumbers,
    feature_groups: int,
    batch_groups: int,
    out_sharding: OutSharding | None = None,
) -> TensorType:
    def refuse(why: str, fix: str) -> Exception:
        return bad_operands("conv_general_dilated", [x, w], why, fix)

    if x.dtype != w.dtype or x.dtype not in dtypes.NUMBERS:
        raise refuse("the operands are numbers of one dtype", "w.astype(x.dtype)")
    lhs, rhs, out = dims
    if x.ndim != w.ndim or x.ndim < 2 or any(sorted(spec) != list(range(x.ndim)) for spec in dims):
        raise refuse(f"dims {dims} do not number the dims of both operands", "dims=((0, 1, 2, 3),) * 3 for NCHW")
    spatial = x.ndim - 2
    if any(len(given) != spatial for given in (strides, padding, lhs_dilation, rhs_dilation)):
        raise refuse(
            f"strides, padding and dilations need one entry for each of {spatial} spatial dims",
            f"strides={(1,) * spatial}",
        )
    if any(n < 1 for n in (*strides, *lhs_dilation, *rhs_dilation, feature_groups, batch_groups)):
        raise refuse("strides, dilations and groups are at least 1", f"strides={(1,) * spatial}")
    if feature_groups > 1 and batch_groups > 1:
        raise refuse("features and batch are grouped at once", "feature_groups=1 or batch_groups=1")
    batch, features = x.shape[lhs[0]], x.shape[lhs[1]]
    out_features, in_features = w.shape[rhs[0]], w.shape[rhs[1]]
    if features != in_features * feature_groups:
        raise refuse(
            f"the input has {features} features and the kernel takes {in_features} for each of {feature_groups} groups",
            f"a kernel with {features // feature_groups} input features",
        )
    if out_features % (feature_groups * batch_groups) or batch % batch_groups:
        raise refuse(
            f"{out_features} output features and a batch of {batch} do not divide into"
            f" {max(feature_groups, batch_groups)} groups",
            "a number of groups that divides both",
        )
    shape = [0] * x.ndim
    shape[out[0]], shape[out[1]] = batch // batch_groups, out_features
    for n in range(spatial):
        padded = dilated(x.shape[lhs[n + 2]], lhs_dilation[n]) + sum(padding[n])
        window = dilated(w.shape[rhs[n + 2]], rhs_dilation[n])
        shape[out[n + 2]] = (padded - window) // strides[n] + 1 if padded >= window else 0
    return TensorType(tuple(shape), x.dtype, x.weak and w.weak)


def _conv_factors(operands: Types, results: Types, params: Params) -> Factors:
    (x, w), result = operands, results[0]
    lhs, rhs, out = params["dims"]
    build = FactorBuilder(operands, results)
    filled: set[tuple[int, int]] = set()

    def add(size: int, *places: tuple[int, int], kind: str = "", guarded: bool | None = None) -> None:
        """A factor of ``size``; one of size 1 only on those dims that have none yet."""
        where = [place for place in places if size > 1 or place not in filled]
        if where:
            filled.update(where)
            build.add(size, *where, kind=kind, guarded=guarded)

    groups, batch_groups = params["feature_groups"], params["batch_groups"]
    if batch_groups > 1:
        add(batch_groups, (0, lhs[0]), (1, rhs[0]), (2, out[1]))
    add(result.shape[out[0]], (0, lhs[0]), (2, out[0]))
    for n in range(x.ndim - 2):
        size, window, count = x.shape[lhs[n + 2]], w.shape[rhs[n + 2]], result.shape[out[n + 2]]
        at_x, at_w, at_out = (0, lhs[n + 2]), (1, rhs[n + 2]), (2, out[n + 2])
        # Windows that lie side by side make up the dim: (which window, which place in it). Others overlap or stick out,
        # so that neighbours must be seen; then each factor takes what is left of the dim.
        side_by_side = _abut(params, n, size, window, count) and (params["strides"][n] == window or count == 1)
        guarded = not side_by_side or window > count > 1
        left = size
        pairs = [(count, (at_x, at_out), "permuted"), (window, (at_x, at_w), "reduced")]
        for extent, places, kind in sorted(pairs, key=lambda pair: -pair[0]):
            if min(extent, left) > 1:
                add(min(extent, left), *places, kind=kind, guarded=guarded)
                left //= min(extent, left)
            elif extent > 1:
                add(extent, places[1], kind="permuted")  # what nothing was left for
    if groups > 1:
        add(groups, (0, lhs[1]), (1, rhs[0]), (2, out[1]))
    add(w.shape[rhs[1]], (0, lhs[1]), (1, rhs[1]), kind="reduced")
    if w.shape[rhs[0]] > groups * batch_groups:
        add(w.shape[rhs[0]] // (groups * batch_groups), (1, rhs[0]), (2, out[1]))
    return build.build()


def _abut(params: Params, n: int, size: int, window: int, count: int) -> bool:
    """Whether ``count`` windows side by side fill spatial dim ``n``."""
    plain = params["padding"][n] == (0, 0) and params["lhs_dilation"][n] == 1
    undilated = params["rhs_dilation"][n] == 1 or window == 1
    return plain and undilated and size == count * window


def _conv_localize(params: Params, operands: Types, results: Types) -> Params:
    (x, w), result = operands, results[0]
    lhs, rhs, out = params["dims"]
    local = dict(params)
    if params["feature_groups"] > 1 and w.shape[rhs[1]]:
        local["feature_groups"] = x.shape[lhs[1]] // w.shape[rhs[1]]
    if params["batch_groups"] > 1 and result.shape[out[0]]:
        local["batch_groups"] = x.shape[lhs[0]] // result.shape[out[0]]
    # Windows that lie side by side still do when each of them shrinks.
    sizes = [(x.shape[lhs[d]], w.shape[rhs[d]], result.shape[out[d]]) for d in range(2, x.ndim)]
    local["strides"] = tuple(
        min(window, stride) if _abut(params, n, size, window, count) else stride
        for n, ((size, window, count), stride) in enumerate(zip(sizes, params["strides"], strict=True))
    )
    return local


# Derivatives: the cotangent of either operand is a convolution again.


def _conv_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    ct, (x, w) = cts[0], inputs
    if isinstance(x, Linear):
        return [_input_cotangent(ct, x.type, w, params), None]
    assert isinstance(w, Linear)
    return [None, _kernel_cotangent(ct, x, w.type, params)]


def _input_cotangent(ct: Value, x: TensorType, w: Value, params: Params) -> Value:
    """The cotangent spread by the strides, convolved with the reversed kernel."""
    if not ct.size or not x.size:
        return zeros(x)
    lhs, rhs, out = params["dims"]
    padding = []
    for n in range(x.ndim - 2):
        window = dilated(w.shape[rhs[n + 2]], params["rhs_dilation"][n])
        low = window - 1 - params["padding"][n][0]
        total = dilated(x.shape[lhs[n + 2]], params["lhs_dilation"][n]) + window - 1
        padding.append((low, total - low - dilated(ct.shape[out[n + 2]], params["strides"][n])))
    plain = before(reverse, w, dims=tuple(rhs[2:]))
    kernel = w if plain is None else plain
    groups = params["feature_groups"] * params["batch_groups"]
    if groups > 1:
        # The groups of the kernel's output features become groups of its input features.
        kernel = _fold(_split(kernel, rhs[0], groups), rhs[1])
    if plain is None and x.ndim > 2:
        kernel = reverse(kernel, dims=tuple(rhs[2:]))
    found = conv_general_dilated(
        ct,
        kernel,
        strides=params["lhs_dilation"],
        padding=tuple(padding),
        lhs_dilation=params["strides"],
        rhs_dilation=params["rhs_dilation"],
        dims=(out, (rhs[1], rhs[0], *rhs[2:]), lhs),
        feature_groups=groups,
        batch_groups=1,
        **(as_primal(x, (ct.type, w.type)) if params["batch_groups"] == 1 else sums_taken(x.ndim, (ct.type, w.type))),
    )
    if params["batch_groups"] > 1:
        found = _fold(_split(found, lhs[1], groups), lhs[0])
    return found


def _kernel_cotangent(ct: Value, x: Value, w: TensorType, params: Params) -> Value:
    """The input convolved with the cotangent: batch and features change places, and so do strides and dilation."""
    if not ct.size or not w.size:
        return zeros(w)
    lhs, rhs, out = params["dims"]
    padding = []
    for n in range(w.ndim - 2):
        low = params["padding"][n][0]
        window = dilated(ct.shape[out[n + 2]], params["strides"][n])
        total = (w.shape[rhs[n + 2]] - 1) * params["rhs_dilation"][n] + window
        padding.append((low, total - low - dilated(x.shape[lhs[n + 2]], params["lhs_dilation"][n])))
    return conv_general_dilated(
        x,
        ct,
        strides=params["rhs_dilation"],
        padding=tuple(padding),
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["strides"],
        dims=(
            (lhs[1], lhs[0], *lhs[2:]),
            (out[1], out[0], *out[2:]),
            (rhs[1], rhs[0], *rhs[2:]),
        ),
        feature_groups=params["batch_groups"],
        batch_groups=params["feature_groups"],
        **as_primal(w, (ct.type, x.type)),
    )


# Batching


def _conv_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    """The batch joins a dim: the input's own batch, the kernel's output features, or (both batched) the groups."""
    (x, w), (lhs, rhs, out) = args, params["dims"]
    features, batches = params["feature_groups"], params["batch_groups"]
    if params.get("out_sharding") is not None:  # the batch joins one of the dims that it is about
        params = {**params, **sums_taken(len(out), (x.type, w.type))}
    if not batched[1]:
        found = op(_fold(x, lhs[0], batches), w, **params)
        return [_unfold(found, out[0], size)], [True]
    if not batched[0]:
        found = op(x, _fold(w, rhs[0], features * batches), **params)
        return [_unfold(found, out[1], size, features * batches)], [True]
    if features == 1:
        x, changed = _fold(x, lhs[0]), {"batch_groups": size * batches}
    else:
        x, changed = _fold(x, lhs[1]), {"feature_groups": size * features}
    found = op(x, _fold(w, rhs[0]), **{**params, **changed})
    return [_unfold(found, out[1], size)], [True]


def _split(x: Value, dim: int, groups: int) -> Value:
    """``x`` with the ``groups`` of a dim in front, as a dim of their own."""
    shape = x.shape
    x = rearranged(reshape, x, shape=(*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :]))
    return _moved(x, dim, 0)


def _moved(x: Value, source: int, target: int) -> Value:
    """``x`` with a dim at another position."""
    order = [d for d in range(x.ndim) if d != source]
    order.insert(target, source)
    return x if source == target else rearranged(transpose, x, permutation=tuple(order))


def _fold(x: Value, dim: int, groups: int = 1) -> Value:
    """``x`` with its first dim merged into dim ``dim`` of the others: minor to the ``groups`` there, major to the rest.

    f32[5,2,6] -> f32[2,30], where the 30 are (groups, 5, 6 / groups).
    """
    size, *shape = x.shape
    if groups > 1:
        x = rearranged(reshape, x, shape=(size, *shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :]))
        x = _moved(x, 0, dim + 1)
    else:
        x = _moved(x, 0, dim)
    return rearranged(reshape, x, shape=(*shape[:dim], size * shape[dim], *shape[dim + 1 :]))


def _unfold(x: Value, dim: int, size: int, groups: int = 1) -> Value:
    """What ``_fold`` merged, as the first dim again."""
    shape = x.shape
    rest = shape[dim] // size
    if groups > 1:
        x = reshape(x, shape=(*shape[:dim], groups, size, rest // groups, *shape[dim + 1 :]))
        x = move_dim(x, dim + 1, 0)
        return reshape(x, shape=(size, *shape[:dim], rest, *shape[dim + 1 :]))
    return move_dim(reshape(x, shape=(*shape[:dim], size, rest, *shape[dim + 1 :])), dim, 0)


def _conv_cost(operands: Types, results: Types, params: Params) -> Cost:
    (_, w), rhs = operands, params["dims"][1]
    per_element = prod(n for d, n in enumerate(w.shape) if d != rhs[0])
    per_point = 8.0 if dtypes.is_complex(w.dtype) else 2.0
    return Cost(per_point * results[0].size * per_element, traffic(operands, results))


_NCHW = (0, 1, 2, 3)
_NHWC: DimNumbers = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


def _conv_samples() -> list[Sample]:
    def sample(x: Shape, w: Shape, dims: Any = None, **given: Any) -> Sample:
        spatial = len(x) - 2
        params = {
            "strides": (1,) * spatial,
            "padding": ((0, 0),) * spatial,
            "lhs_dilation": (1,) * spatial,
            "rhs_dilation": (1,) * spatial,
            "dims": dims or (tuple(range(len(x))),) * 3,
            "feature_groups": 1,
            "batch_groups": 1,
            **given,
        }
        return Sample((Operand(x), Operand(w)), params)

    return [
        sample((2, 3, 5, 4), (4, 3, 3, 2), padding=((1, 1), (0, 1))),
        sample((2, 5, 6, 2), (3, 3, 2, 4), _NHWC, strides=(2, 1), padding=((1, 2), (-1, 1))),
        sample((2, 3, 4, 4), (5, 2, 3, 2), ((3, 0, 2, 1), (0, 3, 1, 2), (2, 1, 0, 3)), padding=((0, 0), (1, 0))),
        sample((2, 2, 6), (3, 2, 3), lhs_dilation=(2,), rhs_dilation=(3,), padding=((2, 1),)),
        sample((2, 2, 5), (3, 2, 2), lhs_dilation=(3,), strides=(2,), padding=((-2, 3),)),
        sample((2, 4, 5), (6, 2, 3), feature_groups=2, padding=((1, 0),)),
        sample((2, 4, 4, 3), (2, 2, 1, 6), _NHWC, feature_groups=3),
        sample((4, 2, 5), (6, 2, 3), batch_groups=2, padding=((0, 1),), strides=(2,)),
        sample((2, 4, 6, 3), (2, 3, 3, 2), _NHWC, strides=(2, 3)),
        sample((2, 3, 4), (2, 3, 4)),
        sample((2, 3, 4), (4, 3, 1)),
        sample((2, 3, 4), (4, 3, 1), strides=(2,)),
        sample((2, 2, 2), (3, 2, 5), padding=((1, 0),)),
        sample((3, 2), (4, 2)),
        sample((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), padding=((0, 1), (1, 0), (0, 0))),
    ]


conv_general_dilated: Op = define_op(
    "conv_general_dilated",
    word="convolution",
    type=_conv_type,
    factors=_conv_factors,
    linear=Linearity.EACH,
    jvp=Derivatives(
        lambda t, out, x, w, **params: conv_general_dilated(t, w, **params),
        lambda t, out, x, w, **params: conv_general_dilated(x, t, **params),
    ),
    transpose=_conv_transpose,
    batch=_conv_batch,
    split=Split(Across.CONVOLVED),
    fusion=Fusion.CONTRACTION,
    memory=Memory.FRESH,
    evaluate=lambda xp, x, w, out_sharding=None, **params: xp.conv_general_dilated(x, w, **params),
    cost=_conv_cost,
    localize=_conv_localize,
    dtypes=dtypes.NUMBERS,
    samples=_conv_samples,
)
