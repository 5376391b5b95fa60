"""``-sdy-insert-explicit-reshards``: a reshard wherever an op meets values that are not laid out as it is run.

By default, as in Shardy, only those that a partitioner of HLO would not find by itself: before calls, around
concatenations and some products, and sums of what is unreduced. The full version makes every op run on parts that fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.core.factors import Factors, names
from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.common_axes import SplitOp, common_axes, within_reach
from meshwright.interop.shardy.communication import all_reduced, can_reduce, created, laid_out, listed, resharded
from meshwright.interop.shardy.module_shardings import per_value_text
from meshwright.interop.shardy.module_walk import RULE, SHARDING, Rules
from meshwright.interop.shardy.problem_reader import place_of
from meshwright.interop.shardy.sharding_rules import WITHOUT
from meshwright.interop.shardy.value_shardings import ValueShardings, manual_axes, without_axes
from meshwright.interop.stablehlo.context import Types, context, integer, string
from meshwright.interop.stablehlo.ops import COMBINATIONS, body_operation
from meshwright.propagate.after import dividing
from meshwright.propagate.problem import FactorRule, Refusal
from meshwright.propagate.project import project, shapes_of, unproject
from meshwright.sharding.axes import Axes, common_prefix, difference, in_mesh_order, merged, overlap
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding

_ENDS = ("stablehlo.return", "sdy.return")
_FLOWS = ("stablehlo.while", "stablehlo.case", "stablehlo.optimization_barrier")
_COMPUTATIONS = ("sdy.manual_computation", "sdy.named_computation")
_OWN_SHARDING = ("sdy.sharding_constraint", "sdy.reshard")
_MATMULS = ("stablehlo.dot", "stablehlo.dot_general")
# What these do on a part is not a part of what they do on the whole, or nobody knows.
_AS_A_WHOLE = ("stablehlo.custom_call", "stablehlo.rng", "stablehlo.rng_bit_generator")


def insert_reshards(
    module: Any, full: bool = False, rules_before: bool = False, separable: bool = False, marks_sums: bool = False
) -> None:
    """Put in the reshards and sums that a partitioner of HLO would not find by itself, or (``full``) all there are.

    ``rules_before``: the rules of concatenations, which depend on the ops around, are those of the module as it is.
    ``separable``: each op is also split evenly, and only along factors of which parts make parts. ``marks_sums``: what
    is then summed says that it is a partial sum.
    """
    with context():
        functions = {
            string(op.attributes["sym_name"]): op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        for function in functions.values():
            inserter = _Inserter(module, function, functions, full, separable, marks_sums)
            inserter.check_function()
            inserter.run(rules_before)


def _inside_out(op: Any) -> Iterator[Any]:
    """All operations inside one, each after those inside it."""
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield from _inside_out(inner.operation)
                yield inner.operation


class _Inserter:
    def __init__(
        self, module: Any, function: Any, functions: dict[str, Any], full: bool, separable: bool, marks_sums: bool
    ) -> None:
        self._marks_sums = marks_sums
        self._function, self._functions, self._full, self._separable = function, functions, full, separable
        self._known = ValueShardings(module)
        self._types = Types()
        self._rules = Rules(self._types)
        self._kept: dict[Any, Factors | None] = {}
        self._numbers: dict[Any, int] = {}
        self._gone: set[int] = set()

    def check_function(self) -> None:
        """Refuse a function with an argument or a result on a single device: all devices run it."""
        for side, word in (("arg_attrs", "argument"), ("res_attrs", "result")):
            written = self._function.attributes.get(side)
            for number, sharding in enumerate(self._known.of_function(self._function, side, 0) if written else ()):
                message = f"'func.func' op function {word} {number} cannot have a single-device sharding attribute"
                if sharding is not None and sharding.mesh.is_maximal:
                    raise Refusal(
                        f"The {word} {number} of a function is on a single device.",
                        message=message,
                        where=place_of(self._function),
                        why=f"its sharding is {sharding}, and all devices run the function",
                        fix="a sharding on a mesh of all devices",
                    )

    def run(self, rules_before: bool) -> None:
        """Visit every op, those inside of others first."""
        ops = list(_inside_out(self._function))
        if rules_before:
            self._kept = {op.results[0]: self._rules(op) for op in ops if op.name == "stablehlo.concatenate"}
        self._numbers = {op.results[0]: number for number, op in enumerate(ops) if op.name == "sdy.all_reduce"}
        for number, op in enumerate(ops):
            if number in self._gone:
                continue
            if op.name == "func.return":
                self._return(op)
            elif op.name not in _ENDS:
                self._visit(op)

    def _visit(self, op: Any) -> None:
        if op.name == "func.call":
            self._call(op)
            return
        if op.name == "sdy.reshard" and self._to_unreduced(op):
            return
        if op.name in (*_FLOWS, *_COMPUTATIONS):
            self._flow(op)
            return
        self._sum_operands(op)
        if self._full or self._hidden(op):
            self._fit(op)
        else:
            if op.name in _MATMULS:
                self._matmul_like_operands(op)
            self._reduce_unreduced(op)

    def _rule(self, op: Any) -> Factors | None:
        if RULE in op.attributes and "custom" in str(op.attributes[RULE]):
            return None
        kept = op.name == "stablehlo.concatenate" and op.results[0] in self._kept
        return self._kept[op.results[0]] if kept else self._rules(op)

    def _size(self, value: Any) -> int:
        t = self._types(value.type)
        return 1 if t is None else t.size

    # Values on their way to an owner that says how they are laid out

    def _return(self, op: Any) -> None:
        targets = self._known.of_function(self._function, "res_attrs", len(op.operands))
        for number, target in enumerate(targets):
            self._bring(op, number, target)

    def _call(self, op: Any) -> None:
        callee = self._functions[str(op.attributes["callee"]).removeprefix("@")]
        targets = self._known.of_function(callee, "arg_attrs", len(op.operands))
        given = next((target.mesh for target in targets if target is not None), None)
        sources = [self._known(value) for value in op.operands]
        first = next((source.mesh for source in sources if source is not None), None)
        for number, (target, source) in enumerate(zip(targets, sources, strict=True)):
            if target is None and source is not None:
                target = _whole(first, source.rank) if given is None else _open(given, source.rank)
            self._bring(op, number, target, after_source=True, always=True)

    def _flow(self, op: Any) -> None:
        """Loops, branches and computations: what flows into them becomes what they say."""
        outputs: Sequence[TensorSharding | None] = self._known.of_results(op)
        inputs: Sequence[TensorSharding | None] = outputs
        if op.name in _COMPUTATIONS:
            inputs = self._known.of_side(op, "in_shardings", len(op.operands))
        elif op.name == "stablehlo.case":
            inputs = ()
        bound = manual_axes(op)
        blocks = [region.blocks[0] for region in op.regions][op.name == "stablehlo.while" :]
        ends = [block.operations[len(block.operations) - 1].operation for block in blocks]
        for number in range(max(len(inputs), len(outputs))):
            if number < len(inputs):
                self._bring(op, number, inputs[number], after_source=True)
            for end in ends if number < len(outputs) else ():
                sharding = outputs[number]
                inside = None if sharding is None else without_axes(sharding, bound)
                self._bring(end, number, inside, after_source=True)

    def _bring(
        self, op: Any, number: int, target: TensorSharding | None, after_source: bool = False, always: bool = False
    ) -> None:
        """Lay an operand out as its user says."""
        value = op.operands[number]
        source = self._known(value)
        if (source is None and target is None) or self._types(value.type) is None:
            return
        like = target or source
        assert like is not None
        if source is None and like.unreduced:
            return  # nobody says that it is not unreduced so already
        nothing = _whole(like.mesh, like.rank)
        source, target = source or nothing, target or nothing
        place = _after(value) if after_source else _before(op)
        due = difference(source.unreduced, target.unreduced)
        if due:
            source = _with_sums(source, difference(source.unreduced, due))
            value = all_reduced(place, value, due, source)
        new = difference(target.unreduced, source.unreduced)
        if new:
            value, source = self._as_partial_sum(place, value, source, target)
        if (self._full or always) and not same_sharding(source, target):
            value = resharded(place, value, target)
        op.operands[number] = value

    def _as_partial_sum(
        self, place: Any, value: Any, source: TensorSharding, target: TensorSharding
    ) -> tuple[Any, TensorSharding]:
        """Make a value a partial sum over more axes: one device has each part of it and the others zeros.

        Its sharding is then on the mesh that it was on, unless it must be moved.
        """
        new = difference(target.unreduced, source.unreduced)
        dims: list[Axes] = []
        moved: list[Axes] = []
        for before, after in zip(source.dims, target.dims, strict=True):
            begins = common_prefix(before.axes, after.axes) == after.axes
            rest = difference(before.axes, after.axes) if begins else ()
            kept = rest if all(overlap([axis], new) for axis in rest) else ()
            dims.append((*after.axes, *kept))
            moved.append(kept)
        parts = tuple(DimensionSharding(axes, dim.is_open) for axes, dim in zip(dims, target.dims, strict=True))
        middle = TensorSharding.unchecked(target.mesh, parts, (), source.unreduced, target.reduction)
        if not same_placement(source, middle):
            value = resharded(place, value, middle)
        elif _same_devices(source.mesh, target.mesh):
            middle = TensorSharding.unchecked(source.mesh, parts, (), source.unreduced, target.reduction)
        idle = difference(new, [axis for dim in moved for axis in dim])
        if idle:
            unreduced = in_mesh_order((*middle.unreduced, *idle), list(target.mesh.shape))
            middle = TensorSharding.unchecked(middle.mesh, parts, target.replicated, unreduced, target.reduction)
            value = created(place, "replicated_to_unreduced", value, middle, axes=f"#sdy<axis_ref_list{listed(idle)}>")
        if any(moved):
            text = f"#sdy<list_of_axis_ref_lists[{', '.join(map(listed, moved))}]>"
            middle = target
            value = created(place, "sharded_to_unreduced", value, target, axes=text)
        return value, middle

    # Ops

    def _to_unreduced(self, op: Any) -> bool:
        """Replace a reshard to something unreduced that was not."""
        source, (target,) = self._known(op.operands[0]), self._known.of_results(op)
        assert target is not None
        if not difference(target.unreduced, source.unreduced if source is not None else ()):
            return False
        value = op.operands[0]
        if source is None:  # the collectives below are on values that say how they are laid out
            source = _whole(target.mesh, target.rank)
            value = resharded(_before(op), value, source)
        op.results[0].replace_all_uses_with(self._as_partial_sum(_before(op), value, source, target)[0])
        op.erase()
        return True

    def _sum_operands(self, op: Any) -> None:
        """Reduce operands over axes that the result is not unreduced over."""
        if op.name.startswith("sdy.") and "out_sharding" in op.attributes:
            return
        first = self._known.of_results(op)[0] if len(op.results) else None
        kept = first.unreduced if first is not None else ()
        for number, value in enumerate(op.operands):
            source = self._known(value)
            due = difference(source.unreduced, kept) if source is not None else ()
            if source is not None and due:
                summed = _with_sums(source, difference(source.unreduced, due))
                op.operands[number] = all_reduced(_before(op), value, due, summed)

    def _hidden(self, op: Any) -> bool:
        """Whether a partitioner of HLO would replicate the operands of an op without telling."""
        if op.name != "stablehlo.concatenate":
            return False
        (result,) = self._known.of_results(op)
        return any(not _same(self._known(value), result) for value in op.operands)

    def _fit(self, op: Any) -> None:
        """Lay out the operands of an op so that it can be run on their parts, and its results as they were."""
        rule = self._rule(op)
        values = [*op.operands, *op.results]
        given = [self._known(value) for value in values]
        mesh = _common_mesh(given)
        if self._separable and op.name not in WITHOUT and not op.name.startswith("sdy."):
            rule = self._separated(op, rule)
        if rule is None or mesh is None:
            return
        combine = _combination(op, rule)
        if not can_reduce(combine):  # what is reduced must be whole
            rule = rule._replace(replicated=rule.replicated | rule.reduced, reduced=frozenset())
        shapes, operands = shapes_of(FactorRule.of(rule))
        whole = [s or _whole(mesh, len(shape.dims)) for s, shape in zip(given, shapes, strict=True)]
        sizes = [self._size(value) for value in values]
        projections = [project(shape, s) for shape, s in zip(shapes, whole, strict=True)]
        chosen = common_axes(SplitOp.of(rule, sizes, projections))
        if self._separable:
            chosen = within_reach(shapes, {n: dividing(size, chosen[n]) for n, size in enumerate(rule.sizes.values())})
        wanted = []
        for shape, s, known in zip(shapes, whole, projections, strict=True):
            closed = {n: known[n][2] if n in known else True for n in shape.factors}
            dims = unproject(shape, {n: (chosen[n], (), closed[n], False) for n in shape.factors})
            merged_dims = tuple(DimensionSharding(merged(dim.axes), dim.is_open) for dim in dims)
            wanted.append(TensorSharding.unchecked(mesh, merged_dims, s.replicated, s.unreduced, s.reduction))
        for number in range(operands):
            if not same_placement(whole[number], wanted[number]):
                op.operands[number] = resharded(_before(op), op.operands[number], wanted[number])
        before = whole[operands:]
        if all(s is None for s in given[operands:]):  # the first result that is given a sharding opens the others
            before[1:] = [_open(mesh, s.rank) for s in before[1:]]
        self._reduce_results(op, rule, chosen, before, wanted[operands:], combine)

    def _separated(self, op: Any, rule: Factors | None) -> Factors | None:
        """The rule of an op of which all but separable factors must be whole; without a rule, everything must."""
        shapes = [[self._types(value.type) for value in side] for side in (op.operands, op.results)]
        if rule is None or op.name in _AS_A_WHOLE or _has_groups(op):
            if any(t is None for side in shapes for t in side):
                return None
            letters = iter(names(sum(len(t.shape) for side in shapes for t in side if t is not None)))
            sizes: dict[str, int] = {}
            sides = []
            for side in shapes:
                tensors = []
                for t in side:
                    assert t is not None
                    dims = tuple((next(letters),) for _ in t.shape)
                    sizes.update((dim[0], size) for dim, size in zip(dims, t.shape, strict=True))
                    tensors.append(dims)
                sides.append(tuple(tensors))
            return Factors(sides[0], sides[1], sizes, replicated=frozenset(sizes))
        whole = frozenset(rule.sizes) - rule.separable
        if op.name == "stablehlo.scatter":  # what is scattered into would be added once for each part
            whole |= rule.reduced
        return rule._replace(
            replicated=rule.replicated | whole, reduced=rule.reduced - whole, permuted=rule.permuted - whole
        )

    def _reduce_results(
        self, op: Any, rule: Factors, chosen: dict[int, Axes], before: list[TensorSharding], now: list[TensorSharding],
        combine: str = "sum",
    ) -> None:  # fmt: skip
        from jaxlib.mlir import ir

        reduced = [axis for n, name in enumerate(rule.sizes) if name in rule.reduced for axis in chosen[n]]
        made_of = now  # what the op itself says
        if self._marks_sums and reduced:
            written = [one if same_placement(one, other) else other for one, other in zip(before, now, strict=True)]
            made_of = [_with_more_sums(s, difference(reduced, s.unreduced), combine) for s in written]
        on_no_axes = reduced and any(one.mesh.empty for one in before)  # a sum is over axes of its mesh
        if on_no_axes or any(not same_placement(one, other) for one, other in zip(before, made_of, strict=True)):
            if not on_no_axes:
                made_of = [
                    one if same_placement(one, other) else other for one, other in zip(before, made_of, strict=True)
                ]
            if op.name in _OWN_SHARDING:
                op.attributes["sharding"] = ir.Attribute.parse(str(made_of[0]))
            else:
                op.attributes[SHARDING] = ir.Attribute.parse(per_value_text(made_of))
        for result, new in zip(list(op.results) if self._separable else (), now, strict=False):
            if not new.unreduced:
                self._take_back_sums(result)
        place = ir.InsertionPoint.after(op)
        for result, old, new in zip(list(op.results), before, now, strict=True):
            due = difference(reduced, new.unreduced)
            if not due and same_placement(old, new):
                continue
            uses = [(use.owner, use.operand_number) for use in result.uses]
            value = result
            if due:
                made = old if same_placement(old, new) and not on_no_axes else new  # what the op itself says
                value = all_reduced(place, value, merged(in_mesh_order(due, list(new.mesh.shape))), made, combine)
            if not same_placement(old, new):
                value = resharded(place, value, old)
            for owner, number in uses:
                owner.operands[number] = value

    def _take_back_sums(self, value: Any) -> None:
        """Take out all-reduces that were put in for the parts of a value: how it is split may change."""
        for use in list(value.uses):
            op = use.owner.operation
            if op.name == "sdy.all_reduce":
                self._gone.add(self._numbers.get(op.results[0], -1))
                op.results[0].replace_all_uses_with(value)
                op.erase()

    def _reduce_unreduced(self, op: Any) -> None:
        """Reduce an unreduced result over the other axes that split what it sums over."""
        results = self._known.of_results(op)
        if not any(s is not None and s.unreduced for s in results):
            return
        rule = self._rule(op)
        if rule is None or not rule.reduced:
            return
        shapes, operands = shapes_of(FactorRule.of(rule))
        found: dict[int, Axes] = {}
        for value, shape in zip(op.operands, shapes[:operands], strict=True):
            for factor, (axes, _, _, _) in project(shape, self._known(value)).items():
                if found.setdefault(factor, axes) != axes and list(rule.sizes)[factor] in rule.reduced:
                    raise MeshwrightError(
                        f"The operands of {op.name} at {place_of(op)} are split differently where it sums over them.",
                        why=f"one over {listed(found[factor])}, one over {listed(axes)}, "
                        "and its result is a partial sum",
                        fix="-sdy-insert-explicit-reshards=enable-full-version=true",
                    )
        whole = [s for s in results if s is not None]
        if len(whole) == len(results):
            self._reduce_results(op, rule, found, whole, whole)

    def _matmul_like_operands(self, op: Any) -> None:
        """Split a matmul as its operands are, if its result is split over what it sums over instead."""
        (result,) = self._known.of_results(op)
        rule = self._rule(op)
        given = [self._known(value) for value in (*op.operands, *op.results)]
        mesh = _common_mesh(given)
        if rule is None or mesh is None or result is None:
            return
        shapes, _ = shapes_of(FactorRule.of(rule))
        whole = [s or _whole(mesh, len(shape.dims)) for s, shape in zip(given, shapes, strict=True)]
        left, right, made = (
            {factor: axes for factor, (axes, _, _, _) in project(shape, s).items()}
            for shape, s in zip(shapes, whole, strict=True)
        )
        if any(left[n] != right[n] for n in left if n in right):
            return
        if any(overlap(left[n], right[k]) for n in left for k in right if n != k):
            return  # no one result is split as both are
        both = {**left, **right}
        summed = [axis for n, name in enumerate(rule.sizes) if name in rule.reduced for axis in both[n]]
        differing = [n for n in made if made[n] != both[n]]
        if len(differing) != 1 or not both[differing[0]] or not summed or list(made[differing[0]]) != summed:
            return
        operand = next(k for k, one in enumerate((left, right)) if differing[0] in one)
        if self._size(op.results[0]) > self._size(op.operands[operand]):
            return
        dims = unproject(shapes[2], {n: (both[n], (), True, False) for n in made})
        new = laid_out(whole[2], [dim.axes for dim in dims], mesh)
        self._reduce_results(op, rule._replace(reduced=frozenset()), both, [whole[2]], [new])


def _before(op: Any) -> Any:
    """The place right before an op."""
    from jaxlib.mlir import ir

    return ir.InsertionPoint(op)


def _after(value: Any) -> Any:
    """The place right after a value."""
    from jaxlib.mlir import ir

    if isinstance(value.owner, ir.Block):
        return ir.InsertionPoint.at_block_begin(value.owner)
    return ir.InsertionPoint.after(value.owner)


def _whole(mesh: Any, rank: int) -> TensorSharding:
    """The sharding of a value that all devices hold whole."""
    return TensorSharding.unchecked(mesh, (DimensionSharding(),) * rank)


def _open(mesh: Any, rank: int) -> TensorSharding:
    """The sharding of a value that nobody says anything about."""
    return TensorSharding.unchecked(mesh, (DimensionSharding(is_open=True),) * rank)


def _combination(op: Any, rule: Factors) -> str:
    """How the parts of a reduced factor are combined; "" if no one op does that."""
    if op.name == "stablehlo.reduce":
        return COMBINATIONS.get(body_operation(op.regions[0]), "")
    if op.name == "stablehlo.scatter" and len(op.results) == 1:
        return COMBINATIONS.get(body_operation(op.regions[0]), rule.combine)
    return rule.combine


def _has_groups(op: Any) -> bool:
    """Whether a convolution is one of several side by side, which its attributes count."""
    keys = ("feature_group_count", "batch_group_count")
    return any(key in op.attributes and integer(op.attributes[key]) > 1 for key in keys)


def _with_more_sums(sharding: TensorSharding, more: Axes, reduction: str) -> TensorSharding:
    unreduced = merged(in_mesh_order((*sharding.unreduced, *more), list(sharding.mesh.shape)))
    how = reduction if more else sharding.reduction
    return TensorSharding.unchecked(sharding.mesh, sharding.dims, sharding.replicated, unreduced, how)


def _with_sums(sharding: TensorSharding, unreduced: Axes) -> TensorSharding:
    return TensorSharding.unchecked(sharding.mesh, sharding.dims, sharding.replicated, unreduced, sharding.reduction)


def same_placement(one: TensorSharding, other: TensorSharding) -> bool:
    """Whether two shardings mean the same placement, open dims or not."""
    dims = [tuple(dim.axes for dim in s.dims) for s in (one, other)]
    same = dims[0] == dims[1] and one.unreduced == other.unreduced
    return same and (not any(dims[0]) or _same_devices(one.mesh, other.mesh))


def _same_devices(one: BaseMesh, other: BaseMesh) -> bool:
    """Whether two meshes have the same axes over the same devices, whatever their names are."""
    return one.order == other.order and one.shape == other.shape


def same_sharding(one: TensorSharding, other: TensorSharding) -> bool:
    """Whether two shardings mean the same placement, and are on one mesh by name if they split anything."""
    whole = not one.unreduced and not any(dim.axes for dim in one.dims)
    return same_placement(one, other) and (one.mesh.name == other.mesh.name or whole)


def _same(one: TensorSharding | None, other: TensorSharding | None) -> bool:
    if one is None or other is None:
        sharding = one or other
        return sharding is None or not (any(dim.axes for dim in sharding.dims) or sharding.unreduced)
    return same_sharding(one, other)


def _common_mesh(shardings: Sequence[TensorSharding | None]) -> Any:
    """The mesh that most are split on, or else are on; None if none is on one, or if two have different axes."""
    told = [s for s in shardings if s is not None and not s.mesh.empty]
    known = [s.mesh for s in told]
    if not known or any(mesh.is_maximal or [*mesh.shape.items()] != [*known[0].shape.items()] for mesh in known):
        return None
    known = [s.mesh for s in told if any(dim.axes for dim in s.dims)] or known
    counts = Counter(mesh.name for mesh in known)
    return max(known, key=lambda mesh: counts[mesh.name])
