"""``-sdy-pad-for-divisibility``: dims that their axes do not divide are made longer, by what changes nothing.

It runs behind ``-sdy-reshard-to-collectives``. A value that is split unevenly is padded from there on; where it becomes
whole again, the padding is cut off. A reduction over a padded dim is given what it does not notice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.core.factors import Factors
from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.made_ops import (
    constant_of,
    dense,
    filled,
    int_array,
    int_attribute,
    made_op,
    tensor,
    zeros,
)
from meshwright.interop.shardy.module_shardings import per_value_text
from meshwright.interop.shardy.module_walk import RULE, SHARDING, Rules
from meshwright.interop.shardy.problem_reader import place_of
from meshwright.interop.shardy.value_shardings import ValueShardings, manual_axes
from meshwright.interop.stablehlo.context import Types, context, integer, integers, string
from meshwright.interop.stablehlo.ops import body_operation
from meshwright.sharding.axes import total_size
from meshwright.sharding.named import TensorSharding

Shape = tuple[int, ...]
_CONSTANTS = ("stablehlo.constant", "sdy.constant")
_COMPUTATIONS = ("sdy.manual_computation", "sdy.named_computation")
_ENDS = ("func.return", "stablehlo.return", "sdy.return")
_WITH_REGIONS = ("stablehlo.while", "stablehlo.case", "stablehlo.if", *_COMPUTATIONS)
_GENERATORS = ("stablehlo.rng_bit_generator", "stablehlo.rng")
_KEEP_ZEROS = ("sdy.all_slice", "sdy.all_to_all", "sdy.all_gather", "sdy.reduce_scatter")
_MATMULS = ("stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution")
_PREPARED = "-sdy-insert-explicit-reshards=enable-full-version=true -sdy-reshard-to-collectives"


def pad_for_divisibility(module: Any) -> None:
    """Pad each value of a module so that its axes divide its dims; arguments and results of public functions must be.

    %1 = sdy.all_slice [{"x"}] %0 : tensor<6xf32>   ==>   %1 = stablehlo.pad %0 : tensor<8xf32>
    %2 = stablehlo.negate %1 : tensor<6xf32>              %2 = sdy.all_slice [{"x"}] %1 : tensor<8xf32>
    %3 = sdy.all_gather [{"x"}] %2 : tensor<6xf32>        %3 = stablehlo.negate %2 : tensor<8xf32>
                                                          %4 = sdy.all_gather [{"x"}] %3 : tensor<8xf32>
                                                          %5 = stablehlo.slice %4 [0:6] : tensor<6xf32>
    """
    from jaxlib.mlir import ir

    with context(), ir.Location.unknown():
        functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
        _Padder(module).run(functions)


class _Padder:
    def __init__(self, module: Any) -> None:
        self._known = ValueShardings(module)
        self._rules = Rules(Types())
        self._shapes: dict[Any, Shape] = {}  # of padded values, before
        self._zero: dict[Any, set[int]] = {}  # the dims of a value whose padding is zeros

    def run(self, functions: Sequence[Any]) -> None:
        from jaxlib.mlir import ir

        for function in functions:
            if (
                "sym_visibility" not in function.attributes
                or string(function.attributes["sym_visibility"]) != "private"
            ):
                self._check(function)
        for function in functions:
            for block in function.regions[0].blocks:
                for argument in block.arguments:
                    self._retype(argument)
                self._block(block)
                end = block.operations[len(block.operations) - 1]
                kind = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in end.operands])
                function.attributes["function_type"] = ir.TypeAttr.get(kind)

    def _check(self, function: Any) -> None:
        from jaxlib.mlir import ir

        types: Any = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        for side, word, kinds in (("arg_attrs", "argument", types.inputs), ("res_attrs", "result", types.results)):
            for number, (kind, sharding) in enumerate(
                zip(kinds, self._known.of_function(function, side, len(kinds)), strict=True)
            ):
                if isinstance(kind, ir.RankedTensorType) and _padded(kind.shape, sharding) != tuple(kind.shape):
                    raise MeshwrightError(
                        f"The {word} {number} of the function at {place_of(function)} has a non-divisible sharding.",
                        why=f"it is {kind}, split as {sharding}: who calls the function has to know its shapes",
                        fix="-sdy-update-non-divisible-input-output-shardings",
                    )

    def _retype(self, value: Any, shape: Shape | None = None) -> None:
        """Give a value the shape that its axes divide."""
        from jaxlib.mlir import ir

        if not isinstance(value.type, ir.RankedTensorType):
            return
        now = tuple(value.type.shape)
        shape = shape if shape is not None else _padded(now, self._known(value))
        if shape != now:
            self._shapes[value] = now
            value.set_type(ir.RankedTensorType.get(shape, value.type.element_type))

    def _padding(self, value: Any) -> dict[int, int]:
        """The padded dims of a value, and how long they were."""
        before = self._shapes.get(value)
        if before is None:
            return {}
        return {dim: old for dim, (old, new) in enumerate(zip(before, value.type.shape, strict=True)) if old != new}

    def _block(self, block: Any) -> None:
        for op in [op.operation for op in block.operations]:
            if op.name in _WITH_REGIONS:
                self._regions(op)
            elif op.name == "func.call":
                for value in op.results:
                    self._retype(value)
            elif op.name.startswith("sdy.") and len(op.operands) == len(op.results) == 1:
                self._move(op)
            elif op.name == "stablehlo.optimization_barrier":
                for value in op.results:
                    self._retype(value)
            elif op.name not in _ENDS and len(op.results):
                self._ordinary(op)

    # Moves

    def _move(self, op: Any) -> None:
        """A collective: both sides have the longer shape, and what is too long behind it is cut off."""
        from jaxlib.mlir import ir

        value, result = op.operands[0], op.results[0]
        whole = tuple(result.type.shape)
        made = _padded(whole, self._known(result))
        between = tuple(max(pair) for pair in zip(value.type.shape, made, strict=True))
        place = ir.InsertionPoint(op)
        value = op.operands[0] = self._with_zeros(place, value, between)
        self._retype(result, between)
        # As in Shardy, what was moved otherwise may be anything, which costs a mask.
        zero = self._zero.get(value, set()) - self._left(value, result) if op.name in _KEEP_ZEROS else set()
        self._zero[result] = zero
        if made != between:
            uses = list(result.uses)
            after = ir.InsertionPoint.after(op)
            with after, op.location:
                cut = _cut(result, made, self._known(result))
            if made != whole:
                self._shapes[cut], self._zero[cut] = whole, zero
            for use in uses:
                use.owner.operands[use.operand_number] = cut

    def _left(self, value: Any, result: Any) -> set[int]:
        """The dims that axes leave."""
        before, after = self._known(value), self._known(result)
        if before is None or after is None:
            return set()
        return {
            n for n, (dim, now) in enumerate(zip(before.dims, after.dims, strict=True)) if len(now.axes) < len(dim.axes)
        }

    def _with_zeros(self, place: Any, value: Any, shape: Shape) -> Any:
        """A value, made longer with zeros."""
        from jaxlib.mlir import ir

        old = tuple(value.type.shape)
        if shape == old:
            return value
        sharding = self._known(value)
        with place, value.location:
            zero = zeros(ir.RankedTensorType.get([], value.type.element_type))
            none = [0] * len(shape)
            high = [new - n for n, new in zip(old, shape, strict=True)]
            sides = {"edge_padding_low": none, "edge_padding_high": high, "interior_padding": none}
            attributes = {key: int_array(numbers) for key, numbers in sides.items()}
            made = made_op(
                "stablehlo.pad",
                [value, zero],
                [tensor(shape, value.type.element_type)],
                **attributes,
                **_laid(sharding),
            )
        known = {dim for dim, n in enumerate(high) if n and dim not in self._padding(value)}
        self._shapes[made] = self._shapes.get(value, old)
        self._zero[made] = self._zero.get(value, set()) | known
        return made

    # Ops with regions

    def _regions(self, op: Any) -> None:
        for value in op.results:
            self._retype(value)
        local = manual_axes(op)
        for region in op.regions:
            for block in region.blocks:
                for argument, value in zip(block.arguments, op.operands, strict=False):
                    if local:
                        self._check_manual(op, value, local)
                    self._retype(argument)
                    self._zero[argument] = set() if op.name == "stablehlo.while" else self._zero.get(value, set())
                self._block(block)
        if local:
            for value in op.results:
                self._check_manual(op, value, local)

    def _check_manual(self, op: Any, value: Any, local: frozenset[str]) -> None:
        """Refuse padding in a dim that a manual computation splits itself: it would be in each of the parts."""
        sharding = self._known(value)
        for dim in self._padding(value):
            if sharding is not None and any(axis.name in local for axis in sharding.dims[dim].axes):
                raise MeshwrightError(
                    f"The manual computation at {place_of(op)} has a dim that its axes do not divide.",
                    why=f"dim {dim} of {value.type} is split as {sharding}, also by {', '.join(sorted(local))}",
                    fix="a size that all axes of the dim divide",
                )

    # All others

    def _ordinary(self, op: Any) -> None:
        from jaxlib.mlir import ir

        if not all(isinstance(value.type, ir.RankedTensorType) for value in (*op.operands, *op.results)):
            return
        made = [_padded(value.type.shape, self._known(value)) for value in op.results]
        grows = any(shape != tuple(value.type.shape) for shape, value in zip(made, op.results, strict=True))
        if not grows and not any(self._padding(value) for value in op.operands):
            return
        if op.name in _CONSTANTS:
            self._constant(op, made[0])
            return
        if op.name in _GENERATORS and grows:
            raise self._refused(op, "what it draws depends on the shape")
        if op.name == "stablehlo.iota":
            self._retype(op.results[0], made[0])
            return
        rule = self._unpadded(op, lambda: self._rules(op))
        if rule is None:
            raise self._refused(op, "it has no sharding rule, and may do anything with what is behind the end")
        if op.name == "stablehlo.convolution" and self._is_grouped(op, made[0]):
            raise self._refused(op, "its groups are counted by the sizes of its features")
        if op.name == "stablehlo.pad":
            self._pad(op, rule, made[0])
        elif op.name == "stablehlo.slice":
            self._slice(op, made[0])
        else:
            self._check_factors(op, rule, made)
        self._fill(op, rule)
        self._sizes(op)
        for value, shape in zip(op.results, made, strict=True):
            self._retype(value, shape)
        if RULE in op.attributes:
            del op.attributes[RULE]  # it has the sizes of before

    def _is_grouped(self, op: Any, made: Shape) -> bool:
        """Whether a convolution is several side by side, and a dim that they are counted by is padded."""
        from jaxlib.mlir.dialects import stablehlo

        if all(integer(op.attributes[f"{kind}_group_count"]) == 1 for kind in ("feature", "batch")):
            return False
        dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        value, kernel = (set(self._padding(one)) for one in op.operands)
        counted = {dims.input_feature_dimension}
        if integer(op.attributes["batch_group_count"]) > 1:
            counted.add(dims.input_batch_dimension)
        grows = made[dims.output_feature_dimension] != op.results[0].type.shape[dims.output_feature_dimension]
        return bool(value & counted or kernel) or grows

    def _unpadded(self, op: Any, rule: Callable[[], Factors | None]) -> Factors | None:
        """The rule of an op for the shapes that its operands had before."""
        from jaxlib.mlir import ir

        now = {value: value.type for value in op.operands if value in self._shapes}
        for value in now:
            value.set_type(ir.RankedTensorType.get(self._shapes[value], value.type.element_type))
        try:
            return rule()
        finally:
            for value, kind in now.items():
                value.set_type(kind)

    def _check_factors(self, op: Any, rule: Factors, made: Sequence[Shape]) -> None:
        """Refuse dims that are not padded alike, or along which the end of a dim is not the end of the factor."""
        ends = (rule.separable - rule.permuted) | rule.reduced
        new: dict[str, int] = {}
        shapes = [tuple(value.type.shape) for value in op.operands]
        before = [self._shapes.get(value, shape) for value, shape in zip(op.operands, shapes, strict=True)]
        dims = [
            *zip(rule.operands, before, shapes, strict=True),
            *zip(rule.results, [tuple(value.type.shape) for value in op.results], made, strict=True),
        ]
        found = [entry for side in dims for entry in zip(*side, strict=True)]
        for names, n, longer in found:
            if n != longer and (not names or names[0] not in ends or prod(rule.sizes[one] for one in names) != n):
                raise self._refused(op, "along a padded dim its parts are not parts of the whole")
            if not names or names[0] not in ends:
                continue
            minor = prod(rule.sizes[one] for one in names[1:])
            if longer % minor or new.setdefault(names[0], longer // minor) != longer // minor:
                raise self._refused(op, "its operands and results are padded differently")
        taken = {name for dims_of in rule.operands for names in dims_of for name in names}
        made_up = {name for name, size in new.items() if size != rule.sizes[name]} - taken
        if made_up and op.name != "stablehlo.broadcast_in_dim":
            raise self._refused(op, "it makes a dim that is padded, and no operand has")
        if any(new.get(one, rule.sizes[one]) != rule.sizes[one] for names, *_ in found for one in names[1:]):
            raise self._refused(op, "a padded dim is the minor part of another dim")

    def _pad(self, op: Any, rule: Factors, made: Shape) -> None:
        """Dims that a pad makes longer at their end only may be longer before it."""
        from jaxlib.mlir import ir

        value, filler = op.operands
        low, high, interior = (
            list(integers(op.attributes[key])) for key in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        padded = self._padding(value)
        moved = set()
        for dim, (n, longer) in enumerate(zip(op.results[0].type.shape, made, strict=True)):
            if dim not in padded and n == longer:
                continue
            grows = low[dim] == interior[dim] == 0 <= high[dim]
            if not grows or longer < value.type.shape[dim]:
                raise self._refused(op, "along a padded dim its parts are not parts of the whole")
            if high[dim]:
                moved.add(dim)
            high[dim] = longer - value.type.shape[dim]
        op.attributes["edge_padding_high"] = int_array(high)
        if moved & set(padded):
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = self._masked(value, moved & set(padded), filler)

    def _slice(self, op: Any, made: Shape) -> None:
        """Dims that a slice cuts at their end only may be as long as before it."""
        padded, shape = self._padding(op.operands[0]), tuple(op.operands[0].type.shape)
        starts, limits, strides = (
            list(integers(op.attributes[key])) for key in ("start_indices", "limit_indices", "strides")
        )
        for dim, (n, longer) in enumerate(zip(op.results[0].type.shape, made, strict=True)):
            if dim not in padded and n == longer:
                continue
            if starts[dim] != 0 or strides[dim] != 1 or longer != shape[dim]:
                raise self._refused(op, "along a padded dim its parts are not parts of the whole")
            limits[dim] = longer
        op.attributes["limit_indices"] = int_array(limits)

    def _fill(self, op: Any, rule: Factors) -> None:
        """Give a reduction what it does not notice."""
        from jaxlib.mlir import ir

        for number, value in enumerate(op.operands):
            due = {
                dim
                for dim in self._padding(value)
                for names in [rule.operands[number][dim]]
                if len(names) == 1 and names[0] in rule.reduced
            }
            if op.name == "stablehlo.gather" and number == 0 and due:
                self._clamp(op)
                continue
            with ir.InsertionPoint(op), op.location:
                if op.name in _MATMULS and self._padding(value) and not self._is_zero(value):
                    if op.name != "stablehlo.dot_general" and not due:
                        continue
                    zero = zeros(ir.RankedTensorType.get([], value.type.element_type))  # as in Shardy, needed or not
                    op.operands[number] = self._masked(value, due, zero) if due else value
                elif due and op.name not in _MATMULS:
                    op.operands[number] = self._filled(op, rule, number, due)

    def _is_zero(self, value: Any) -> bool:
        """Whether all that a value was padded with is zeros."""
        return set(self._padding(value)) <= self._zero.get(value, set())

    def _clamp(self, op: Any) -> None:
        """Let the indices of a gather end where its operand did."""
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo

        value, indices = op.operands
        numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        sizes, before, at = integers(op.attributes["slice_sizes"]), self._shapes[value], numbers.index_vector_dim
        if at == len(indices.type.shape) or not set(self._padding(value)) & set(numbers.start_index_map):
            raise self._refused(op, "nothing is known that it would not notice behind the end of a dim")
        element, count = indices.type.element_type, len(numbers.start_index_map)
        last = np.array([before[dim] - sizes[dim] for dim in numbers.start_index_map])
        laid = _laid(self._known(indices))
        with ir.InsertionPoint(op), op.location:
            written = f"dense<{last.tolist() if len(set(last)) > 1 else last[0]}> : tensor<{count}x{element}>"
            ends = made_op(
                "stablehlo.broadcast_in_dim",
                [constant_of(written, f"tensor<{count}x{element}>")],
                [indices.type],
                broadcast_dimensions=int_array([at]),
                **laid,
            )
            op.operands[1] = made_op("stablehlo.minimum", [indices, ends], [indices.type], **laid)

    def _filled(self, op: Any, rule: Factors, number: int, due: set[int]) -> Any:
        from jaxlib.mlir import ir

        value = op.operands[number]
        is_zero = self._is_zero(value)
        kind = ir.RankedTensorType.get([], value.type.element_type)
        if op.name == "stablehlo.reduce":
            start = op.operands[len(op.results) + number]
            how = body_operation(op.regions[0])
            if is_zero and (how == "add" or _is_constant(start, "0")):
                return value
            neutral = {"add": "0", "multiply": "1"}.get(how, "")  # what it begins with is counted once
            known = not neutral or _is_constant(start, neutral)
            return self._masked(value, due, start if known else filled(kind, neutral))
        neutral = {"add": "0", "multiply": "1"}.get(body_operation(op.regions[0]) if len(op.regions) else "", "")
        if op.name == "stablehlo.scatter" and neutral and number > len(op.results):
            known = is_zero and neutral == "0"
            return value if known else self._masked(value, due, filled(kind, neutral))
        if op.name == "stablehlo.scatter" and neutral and number == len(op.results):
            return value  # an index of what changes nothing
        raise self._refused(op, "nothing is known that it would not notice behind the end of a dim")

    def _masked(self, value: Any, dims: set[int], filler: Any) -> Any:
        """A value with something else behind the ends of some dims."""
        sharding = self._known(value)
        laid = _laid(sharding)
        shape = value.type.shape
        numbers, flags = tensor(shape, "i32"), tensor(shape, "i1")
        inside: Any = None
        padding = self._padding(value)
        for dim in sorted(dims):
            index = made_op("stablehlo.iota", [], [numbers], iota_dimension=int_attribute(dim), **laid)
            end = _spread(constant_of(f"dense<{padding[dim]}> : tensor<i32>", "tensor<i32>"), numbers, laid)
            before = made_op("stablehlo.compare", [index, end], [flags], comparison_direction=_less(), **laid)
            inside = before if inside is None else made_op("stablehlo.and", [inside, before], [flags], **laid)
        other = _spread(filler, value.type, laid)
        made = made_op("stablehlo.select", [inside, value, other], [value.type], **laid)
        self._shapes[made] = self._shapes[value]
        return made

    def _sizes(self, op: Any) -> None:
        """Attributes that are sizes: along a padded dim, an op takes all of it."""
        if not len(op.operands):
            return
        shape, padded = op.operands[0].type.shape, self._padding(op.operands[0])
        key = "slice_sizes"
        if padded and key in op.attributes:
            sizes = list(integers(op.attributes[key]))
            for dim in set(padded) - _batching(op):
                if op.name == "stablehlo.gather" and sizes[dim] < padded[dim]:
                    continue  # its indices end where the dim did
                if sizes[dim] != padded[dim]:
                    raise self._refused(op, "it takes a part of a padded dim")
                sizes[dim] = shape[dim]
            op.attributes[key] = int_array(sizes)

    def _constant(self, op: Any, shape: Shape) -> None:
        """A constant of one number has more of it; another one has zeros behind its ends."""
        from jaxlib.mlir import ir

        result = op.results[0]
        element = result.type.element_type
        try:
            attribute = op.attributes["value"]
        except TypeError:
            self._complex_constant(op, shape)
            return
        if ir.DenseElementsAttr(attribute).is_splat:
            one = ir.DenseElementsAttr(attribute).get_splat_value()
            op.attributes["value"] = ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get(shape, element), one)
        else:
            array = np.array(attribute)
            ends = [(0, new - n) for n, new in zip(array.shape, shape, strict=True)]
            made = ir.RankedTensorType.get(shape, element)
            op.attributes["value"] = _typed(np.pad(array, ends), made)
            self._zero[result] = {dim for dim, (_, n) in enumerate(ends) if n}
        self._retype(result, shape)

    def _complex_constant(self, op: Any, shape: Shape) -> None:
        """The same for one of complex numbers, which the bindings can write, but not hold."""
        from jaxlib.mlir import ir

        result = op.results[0]
        printed = str(op)
        text = printed[printed.rindex("dense<") + len("dense<") : printed.rindex("> : ")]
        if text.startswith("["):
            nested = json.loads(re.sub(r"\([^()]*\)", lambda one: f'"{one[0]}"', text))
            text = json.dumps(_with_complex_zeros(nested, shape)).replace('"', "")
        kind = ir.RankedTensorType.get(shape, result.type.element_type)
        new = ir.Operation.parse(f'%0 = "{op.name}"() <{{value = dense<{text}> : {kind}}}> : () -> {kind}').operation
        ir.InsertionPoint(op).insert(new)
        if SHARDING in op.attributes:
            new.attributes[SHARDING] = op.attributes[SHARDING]
        value = new.results[0]
        self._shapes[value] = tuple(result.type.shape)
        if text.startswith("["):
            self._zero[value] = {dim for dim, n in enumerate(result.type.shape) if n != shape[dim]}
        result.replace_all_uses_with(value)
        op.erase()

    def _refused(self, op: Any, why: str) -> MeshwrightError:
        return MeshwrightError(
            f"{op.name} at {place_of(op)} cannot be run on dims that are padded to be divisible.",
            why=why,
            fix=f"-sdy-resolve-permutation-factors {_PREPARED} before, or a sharding that divides its dims",
        )


def _with_complex_zeros(nested: Any, shape: Shape) -> Any:
    """Lists of written numbers, made as long as a shape with zeros."""
    if not shape:
        return nested
    rows = [_with_complex_zeros(row, shape[1:]) for row in nested]
    zero: Any = "(0.0,0.0)"
    for n in reversed(shape[1:]):
        zero = [zero] * n
    return rows + [zero] * (shape[0] - len(rows))


def _batching(op: Any) -> set[int]:
    """The dims of the operand of a gather that it takes one index of for one of the indices."""
    from jaxlib.mlir.dialects import stablehlo

    if op.name != "stablehlo.gather":
        return set()
    return set(stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"]).operand_batching_dims)


def _padded(shape: Sequence[int], sharding: TensorSharding | None) -> Shape:
    """The shape that the axes of a sharding divide."""
    if sharding is None or len(sharding.dims) != len(shape):
        return tuple(shape)
    sizes = [total_size(dim.axes) for dim in sharding.dims]
    return tuple(-(-n // size) * size for n, size in zip(shape, sizes, strict=True))


def _laid(sharding: TensorSharding | None) -> dict[str, Any]:
    from jaxlib.mlir import ir

    return {} if sharding is None else {SHARDING: ir.Attribute.parse(per_value_text([sharding]))}


def _cut(value: Any, shape: Shape, sharding: TensorSharding | None) -> Any:
    """The first part of a value."""
    ones = [1] * len(shape)
    places = {"start_indices": [0] * len(shape), "limit_indices": shape, "strides": ones}
    attributes = {key: int_array(numbers) for key, numbers in places.items()}
    return made_op(
        "stablehlo.slice", [value], [tensor(shape, value.type.element_type)], **attributes, **_laid(sharding)
    )


def _spread(scalar: Any, type: Any, laid: dict[str, Any]) -> Any:
    return made_op("stablehlo.broadcast_in_dim", [scalar], [type], broadcast_dimensions=int_array([]), **laid)


def _less() -> Any:
    from jaxlib.mlir import ir

    return ir.Attribute.parse("#stablehlo<comparison_direction LT>")


def _is_constant(value: Any, number: str) -> bool:
    from jaxlib.mlir import ir

    if isinstance(value.owner, ir.Block) or value.owner.operation.name not in _CONSTANTS:
        return False
    text = str(value.owner.operation)
    spellings = {"0": ("0.000000e+00", "-0.000000e+00", "0", "false"), "1": ("1.000000e+00", "1", "true")}
    return any(f"dense<{spelling}>" in text for spelling in spellings[number])


def _typed(array: Any, made: Any) -> Any:
    """A constant's attribute of a type that NumPy may have no number for."""
    from jaxlib.mlir import ir

    found = dense(array)
    return found if found.type == made else ir.DenseElementsAttr.get(array, type=made)  # type: ignore[call-overload]
