"""``-sdy-resolve-permutation-factors``: ops that would need what neighbours hold are run on whole dims instead.

A slice, a pad, a window or a reversal along a split dim moves elements from part to part. So does a reshape that merges
a dim which its axes do not divide with another: the padding of its end would be in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from meshwright.core.factors import Dims, Factors
from meshwright.interop.shardy.communication import resharded
from meshwright.interop.shardy.module_shardings import per_value_text
from meshwright.interop.shardy.module_walk import RULE, SHARDING, Rules, walk
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import Types, context, integer, integers
from meshwright.propagate.problem import FactorRule
from meshwright.propagate.project import project, shapes_of
from meshwright.sharding.axes import total_size
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import TensorSharding

# What says where an op begins, and how far apart what it takes or makes is.
_FROM_START = {
    "stablehlo.pad": ("edge_padding_low", "interior_padding"),
    "stablehlo.slice": ("start_indices", "strides"),
}
_NO_MOVES = ("stablehlo.custom_call",)


def resolve_permutations(module: Any) -> None:
    """Reshard what an op takes and makes, so that dims along which it moves elements are whole.

    %1 = slice %0 [1:7] {[{"x"}]}   ==>   %1 = sdy.reshard %0 <[{}]>
                                          %2 = slice %1 [1:7] {[{}]}
                                          %3 = sdy.reshard %2 <[{"x"}]>
    """
    known, rules = ValueShardings(module), Rules(Types())
    with context():
        for op in list(walk(module.operation)):
            if op.name in _NO_MOVES or not op.name.startswith("stablehlo.") or not len(op.results):
                continue
            operands = [known(value) for value in op.operands]
            results = list(known.of_results(op))
            if not any(_is_split(sharding) for sharding in (*operands, *results)):
                continue
            rule = rules(op)
            if rule is not None:
                moved = rule.permuted & _split_factors(rule, [*operands, *results])
                moved -= _at_the_end(op, rule, operands, results) | _written_whole(op, rule, operands)
                moved |= _misaligned(op, rule, operands, results)
                moved |= _in_groups(op, rule) | _windowed(op, rule, operands)
                _make_whole(op, rule, _with_others(rule, moved, operands, results), operands, results)


def _is_split(sharding: TensorSharding | None) -> bool:
    return sharding is not None and not sharding.mesh.is_maximal and any(dim.axes for dim in sharding.dims)


def _split_factors(rule: Factors, shardings: Sequence[TensorSharding | None]) -> frozenset[str]:
    """The factors that axes split: of a dim of several, axes may come to the first ones only."""
    shapes, _ = shapes_of(FactorRule.of(rule))
    names = list(rule.sizes)
    return frozenset(
        names[factor]
        for shape, sharding in zip(shapes, shardings, strict=True)
        if sharding is not None and not sharding.mesh.is_maximal
        for factor, (axes, overflow, _, _) in project(shape, sharding).items()
        if axes or overflow
    )


def _at_the_end(
    op: Any, rule: Factors, operands: list[TensorSharding | None], results: list[TensorSharding | None]
) -> frozenset[str]:
    """The dims that a pad or a slice changes at their end only, within the padding that they have for being split."""
    if op.name not in _FROM_START:
        return frozenset()
    source, target = operands[0], results[0]
    if source is None or target is None:
        return frozenset()
    found: set[str] = set()
    low, apart = (integers(op.attributes[key]) for key in _FROM_START[op.name])
    none = 1 if op.name == "stablehlo.slice" else 0
    for dim, names in enumerate(rule.operands[0]):
        parts = total_size(source.dims[dim].axes)
        sizes = [value.type.shape[dim] for value in (op.operands[0], op.results[0])]
        same = source.dims[dim].axes == target.dims[dim].axes and -(-sizes[0] // parts) == -(-sizes[1] // parts)
        if same and low[dim] == 0 and apart[dim] == none:
            found.update(names)
    return frozenset(found)


def _written_whole(op: Any, rule: Factors, operands: list[TensorSharding | None]) -> frozenset[str]:
    """The dims along which all of what is written is on each device, and comes into the part of one of them."""
    target, update = operands[0], operands[1] if len(operands) > 1 else None
    if op.name != "stablehlo.dynamic_update_slice" or target is None:
        return frozenset()
    sizes, written = op.operands[0].type.shape, op.operands[1].type.shape
    found: set[str] = set()
    for dim, names in enumerate(rule.operands[0]):
        if update is not None and update.dims[dim].axes:
            continue
        part, start = -(-sizes[dim] // total_size(target.dims[dim].axes)), _number(op.operands[2 + dim])
        first = None if start is None else min(max(start, 0), sizes[dim] - written[dim])
        if written[dim] == 1 or (first is not None and first // part == (first + written[dim] - 1) // part):
            found.update(names)
    return frozenset(found)


def _number(value: Any) -> int | None:
    """The number that a constant is; None for what is none."""
    from jaxlib.mlir import ir

    if isinstance(value.owner, ir.Block) or value.owner.operation.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    attribute = ir.DenseElementsAttr(value.owner.operation.attributes["value"])
    return int(ir.IntegerAttr(attribute.get_splat_value()).value)


def _misaligned(
    op: Any, rule: Factors, operands: list[TensorSharding | None], results: list[TensorSharding | None]
) -> frozenset[str]:
    """The factors of dims that are merged, and would not be padded alike."""
    new: dict[str, int] = {}
    found: set[str] = set()
    split: set[str] = set()
    uneven: list[tuple[str, ...]] = []
    for dims, values, shardings in ((rule.operands, op.operands, operands), (rule.results, op.results, results)):
        for names_of, value, sharding in zip(dims, values, shardings, strict=True):
            for number, names in enumerate(names_of):
                if not names or (len(names) > 1 and sharding is None):
                    continue
                size = value.type.shape[number]
                if len(names) > 1 and prod(rule.sizes[name] for name in names) != size:
                    continue  # one of them moves between neighbours
                parts = total_size(sharding.dims[number].axes) if sharding is not None else 1
                rest = prod(rule.sizes[name] for name in names[1:])
                longer = -(-size // parts) * parts
                if parts > 1:
                    split.add(names[0])
                if len(names) > 1 and longer != size:
                    uneven.append(names)
                if longer % rest or new.setdefault(names[0], longer // rest) != longer // rest:
                    found.add(names[0])
    found.update(names[0] for names in uneven if split & set(names[1:]))  # a minor part is split by itself
    merged = [names for dims in (*rule.operands, *rule.results) for names in dims if len(names) > 1]
    return frozenset(name for names in merged if found & set(names) for name in names)


def _in_groups(op: Any, rule: Factors) -> frozenset[str]:
    """The factors of dims that number the groups of a convolution, where those have more than one member."""
    from jaxlib.mlir.dialects import stablehlo

    if op.name != "stablehlo.convolution":
        return frozenset()
    by_feature, by_batch = (integer(op.attributes[f"{kind}_group_count"]) > 1 for kind in ("feature", "batch"))
    if not by_feature and not by_batch:
        return frozenset()
    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    numbering = [
        rule.operands[0][dims.input_feature_dimension if by_feature else dims.input_batch_dimension],
        rule.operands[1][dims.kernel_output_feature_dimension],
        rule.results[0][dims.output_feature_dimension],
    ]
    return frozenset(name for names in numbering if len(names) > 1 for name in names)


def _windowed(op: Any, rule: Factors, operands: list[TensorSharding | None]) -> frozenset[str]:
    """The dims of a convolution that nothing but the elements of its window is made of, and that are longer than it."""
    if op.name != "stablehlo.convolution" or operands[0] is None:
        return frozenset()
    shape = op.operands[0].type.shape
    return frozenset(
        names[0]
        for dim, names in enumerate(rule.operands[0])
        if len(names) == 1 and rule.sizes[names[0]] != shape[dim] and operands[0].dims[dim].axes
    )


def _with_others(
    rule: Factors,
    moved: frozenset[str],
    operands: list[TensorSharding | None],
    results: list[TensorSharding | None],
) -> frozenset[str]:
    """The same factors, and those that are split together with one of them in a dim, as far as that goes."""
    sides = [*zip(rule.operands, operands, strict=True), *zip(rule.results, results, strict=True)]
    split = [
        frozenset(names)
        for dims, sharding in sides
        if sharding is not None and not sharding.mesh.is_maximal
        for names, dim in zip(dims, sharding.dims, strict=True)
        if dim.axes
    ]
    while more := [names for names in split if names & moved and not names <= moved]:
        moved = moved.union(*more)
    return moved


def _make_whole(
    op: Any,
    rule: Factors,
    moved: frozenset[str],
    operands: list[TensorSharding | None],
    results: list[TensorSharding | None],
) -> None:
    from jaxlib.mlir import ir

    place = ir.InsertionPoint(op)
    for number, sharding in enumerate(operands):
        whole = _without(sharding, rule.operands[number], moved)
        if whole is not None:
            op.operands[number] = resharded(place, op.operands[number], whole)
    wholes = [_without(sharding, dims, moved) for sharding, dims in zip(results, rule.results, strict=True)]
    if not any(wholes):
        return
    if op.name == "stablehlo.reshape" and RULE in op.attributes:
        del op.attributes[RULE]
    made = [whole or sharding for whole, sharding in zip(wholes, results, strict=True)]
    op.attributes[SHARDING] = ir.Attribute.parse(per_value_text([one for one in made if one is not None]))
    for value, whole, sharding in zip(op.results, wholes, results, strict=True):
        if whole is not None and sharding is not None:
            uses = list(value.uses)
            new = resharded(ir.InsertionPoint.after(op), value, sharding)
            for use in uses:
                use.owner.operands[use.operand_number] = new


def _without(sharding: TensorSharding | None, dims: Dims, moved: frozenset[str]) -> TensorSharding | None:
    """A sharding without the axes of dims that have one of some factors; None if it has none of them."""
    if sharding is None or sharding.mesh.is_maximal:
        return None
    split = [bool(dim.axes and moved & set(names)) for dim, names in zip(sharding.dims, dims, strict=True)]
    if not any(split):
        return None
    new = tuple(
        DimensionSharding((), dim.is_open) if gone else dim for dim, gone in zip(sharding.dims, split, strict=True)
    )
    return TensorSharding.unchecked(sharding.mesh, new, sharding.replicated, sharding.unreduced, sharding.reduction)
