"""Factor rules of StableHLO ops that have no counterpart among ours, and what neighbours change about a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core.factors import FactorBuilder, Factors, name
from meshwright.interop.stablehlo.context import integer, string
from meshwright.interop.stablehlo.instance import Instance

# Custom calls whose operands and results are alike, dim by dim.
ALIKE = frozenset({
    "Cholesky", "CompactWyHelper", "InspectSharding", "LayoutConstraint", "MoveToDevice", "MoveToHost", "X64SplitHigh",
    "X64SplitLow", "annotate_device_placement", "mhlo.erf", "xla.megascale.provide_metadata",
    "_SPMDInternalOp_MultiPad", "_SPMDInternalOp_MultiRotate", "_SPMDInternalOp_MultiSlice",
    "_SPMDInternalOp_RotateRight", "_SPMDInternalOp_Wrap",
})  # fmt: skip


def alike(x: Instance) -> Factors:
    """One factor per dim of the first result, on every tensor; a tensor of lower rank has the first of them."""
    shape = x.results[0].shape
    letters = [name(index) for index in range(len(shape))]
    dims = [tuple((letter,) for letter in letters[: t.ndim]) for t in x.tensors]
    count = len(x.operands)
    return Factors(tuple(dims[:count]), tuple(dims[count:]), dict(zip(letters, shape, strict=True)))


def _custom_call(x: Instance) -> Factors | None:
    target = string(x.attributes["call_target_name"])
    rule = _CALLS.get(target)
    if rule is None:
        return None if target not in ALIKE else alike(x)
    return rule(x)


def _top_k(x: Instance) -> Factors:
    """Dims that change size must be whole."""
    build = FactorBuilder(x.operands, x.results)
    for dim, size in enumerate(x.operands[0].shape):
        places = [(tensor, dim) for tensor, t in enumerate(x.tensors) if t.ndim]
        changed = x.results[0].shape[dim] != size
        build.add(size, *places, kind="replicated" if changed else "", blocked=changed)
    return build.build()


def _approximate_top_k(x: Instance) -> Factors:
    """Dims that change size have one factor in the operands and one, which must be whole, in the results."""
    build = FactorBuilder(x.operands, x.results)
    inside = [tensor for tensor, t in enumerate(x.operands) if t.ndim]
    outside = [len(x.operands) + index for index in range(len(x.results))]
    for dim, (size, new) in enumerate(zip(x.operands[0].shape, x.results[0].shape, strict=True)):
        if size == new:
            build.add(size, *((tensor, dim) for tensor in (*inside, *outside)))
        else:
            build.add(size, *((tensor, dim) for tensor in inside))
            build.add(new, *((tensor, dim) for tensor in outside), kind="replicated", blocked=True)
    return build.build()


def _eigenvectors(x: Instance) -> Factors:
    """Eigenvalues go with the last dim of the eigenvectors."""
    build = FactorBuilder(x.operands, x.results)
    rank = x.operands[0].ndim
    for dim, size in enumerate(x.operands[0].shape):
        places = [(0, dim), (1, dim)]
        if dim != rank - 2:
            places.append((2, min(dim, rank - 2)))
        build.add(size, *places)
    return build.build()


def _matrix_and_row(x: Instance) -> Factors:
    """A matrix and a matrix of its shape, with a row per matrix: all of them whole, batch dims shared."""
    build = FactorBuilder(x.operands, x.results)
    matrices = [tensor for tensor, t in enumerate(x.tensors) if t.ndim == x.operands[0].ndim]
    rows = [tensor for tensor in range(len(x.tensors)) if tensor not in matrices]
    rank = x.operands[0].ndim
    for dim, size in enumerate(x.operands[0].shape):
        batch = dim < rank - 2
        places = [(tensor, dim) for tensor in (*matrices, *(rows if batch else ()))]
        build.add(size, *places, kind="" if batch else "replicated")
    build.add(x.tensors[rows[0]].shape[-1], *((tensor, rank - 2) for tensor in rows), kind="replicated")
    return build.build()


def _combined_words(x: Instance) -> Factors:
    """Two halves of 64-bit words; the state of a random generator is not split."""
    rule = alike(x)
    users = (use.owner.operation.name for use in x.op.results[0].uses)
    if any(user == "stablehlo.rng_bit_generator" for user in users):
        every = frozenset(rule.sizes)
        return rule._replace(replicated=every, blocked=every)
    return rule


_CALLS: dict[str, Callable[[Instance], Factors]] = {
    "ApproxTopK": _approximate_top_k,
    "Eigh": _eigenvectors,
    "PartialReduce": _approximate_top_k,
    "ProductOfElementaryHouseholderReflectors": _matrix_and_row,
    "Qr": _matrix_and_row,
    "X64Combine": _combined_words,
    "mhlo.topk": _top_k,
}


def _batch_norm_inference(x: Instance) -> Factors:
    build = FactorBuilder(x.operands, x.results)
    feature = integer(x.attributes["feature_index"])
    for dim, size in enumerate(x.operands[0].shape):
        rows = [(tensor, 0) for tensor in range(1, 5)] if dim == feature else []
        build.add(size, (0, dim), *rows, (5, dim))
    return build.build()


def _random_bits(x: Instance) -> Factors:
    """The state is whole everywhere; the numbers may be split in any way."""
    build = FactorBuilder(x.operands, x.results)
    for dim, size in enumerate(x.operands[0].shape):
        build.add(size, (0, dim), (1, dim), kind="replicated", blocked=True)
    for dim, size in enumerate(x.results[1].shape):
        build.add(size, (2, dim))
    return build.build()


def _resized(*names: str) -> Callable[[Instance], Factors]:
    """Collectives: the dims named by these attributes are whole, apart in operand and result; the others are shared."""

    def rule(x: Instance) -> Factors:
        build = FactorBuilder(x.operands, x.results)
        changed = list(dict.fromkeys(integer(x.attributes[attribute]) for attribute in names))
        count = len(x.operands)
        for dim, size in enumerate(x.operands[0].shape):
            if dim not in changed:
                build.add(size, *((tensor, dim) for tensor in range(2 * count)))
        for dim in changed:
            build.add(x.operands[0].shape[dim], *((t, dim) for t in range(count)), kind="replicated")
            build.add(x.results[0].shape[dim], *((count + t, dim) for t in range(count)), kind="replicated")
        return build.build()

    return rule


FOREIGN: dict[str, Callable[[Instance], Factors | None]] = {
    "sdy.sharding_constraint": alike,
    "stablehlo.all_gather": _resized("all_gather_dim"),
    "stablehlo.all_reduce": alike,
    "stablehlo.all_to_all": _resized("split_dimension", "concat_dimension"),
    "stablehlo.batch_norm_inference": _batch_norm_inference,
    "stablehlo.collective_broadcast": alike,
    "stablehlo.collective_permute": alike,
    "stablehlo.cross-replica-sum": alike,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.reduce_scatter": _resized("scatter_dimension"),
    "stablehlo.rng_bit_generator": _random_bits,
}

# Neighbours


def _concatenate(x: Instance, rule: Factors) -> Factors:
    """What is joined can stay split if it was cut out before: of anything, or of the one thing that is joined too."""
    joined = frozenset(rule.results[0][integer(x.attributes["dimension"])])
    sources = [_sliced(value) for value in x.op.operands]
    cut = [source is not None for source in sources]
    whole = {source or value for source, value in zip(sources, x.op.operands, strict=True)}
    if all(cut) or (len(whole) == 1 and any(cut)):
        return rule._replace(replicated=frozenset(), permuted=joined, guarded=joined)
    return rule._replace(replicated=joined, permuted=frozenset(), guarded=joined)


def _sliced(value: Any) -> Any:
    """What a value was sliced from, or None if it was not."""
    owner = value.owner
    operation = getattr(owner, "operation", None)
    return operation.operands[0] if operation is not None and operation.name == "stablehlo.slice" else None


NEIGHBOURS: dict[str, Callable[[Instance, Factors], Factors]] = {
    "stablehlo.concatenate": _concatenate,
}


# A conservative rule passes nothing on along dims that change.


def _nothing_where_it_moves(x: Instance, rule: Factors) -> Factors:
    return rule._replace(blocked=rule.blocked | rule.permuted)


def _nothing_where_it_scatters(x: Instance, rule: Factors) -> Factors:
    return rule._replace(blocked=rule.blocked | rule.permuted | rule.replicated)


def _nothing_where_it_grows(x: Instance, rule: Factors) -> Factors:
    sizes = zip(rule.operands[0], x.operands[0].shape, x.results[0].shape, strict=True)
    grown = frozenset(factor for dim, before, after in sizes if before != after for factor in dim)
    return rule._replace(blocked=rule.blocked | (rule.permuted & grown))


def _concatenated_apart(x: Instance, rule: Factors) -> Factors:
    return _apart(rule, rule.permuted | rule.replicated)


def _windows_apart(x: Instance, rule: Factors) -> Factors:
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.ConvDimensionNumbers(x.attributes["dimension_numbers"])
    sides = ((rule.operands[1], dims.kernel_spatial_dimensions), (rule.results[0], dims.output_spatial_dimensions))
    windows = frozenset(factor for tensor, places in sides for dim in places for factor in tensor[dim])
    kernel, made = (
        rule.operands[1][dims.kernel_output_feature_dimension],
        rule.results[0][dims.output_feature_dimension],
    )
    alone = frozenset({*kernel} ^ {*made})  # of one feature: nothing that the two have in common
    return _apart(rule, windows | alone)


def _apart(rule: Factors, gone: frozenset[str]) -> Factors:
    """The rule without some factors: each dim that has none left has one of size 1 of its own."""
    kept = {factor: size for factor, size in rule.sizes.items() if factor not in gone}
    renamed = {factor: name(number) for number, factor in enumerate(kept)}
    sizes = {renamed[factor]: size for factor, size in kept.items()}

    def dims_of(tensor: Any) -> Any:
        found = []
        for dim in tensor:
            factors = tuple(renamed[factor] for factor in dim if factor in renamed)
            if not factors:
                factors = (name(len(sizes)),)
                sizes[factors[0]] = 1
            found.append(factors)
        return tuple(found)

    def names(factors: frozenset[str]) -> frozenset[str]:
        return frozenset(renamed[factor] for factor in factors if factor in renamed)

    operands = tuple(map(dims_of, rule.operands))
    results = tuple(map(dims_of, rule.results))
    kinds = {key: names(getattr(rule, key)) for key in ("replicated", "permuted", "blocked", "reduced", "guarded")}
    return Factors(operands, results, sizes, combine=rule.combine, fillable=rule.fillable, **kinds)


CONSERVATIVE: dict[str, Callable[[Instance, Factors], Factors]] = {
    "stablehlo.concatenate": _concatenated_apart,
    "stablehlo.convolution": _windows_apart,
    "stablehlo.pad": _nothing_where_it_grows,
    "stablehlo.reduce_window": _nothing_where_it_moves,
    "stablehlo.select_and_scatter": _nothing_where_it_scatters,
    "stablehlo.slice": _nothing_where_it_moves,
}
