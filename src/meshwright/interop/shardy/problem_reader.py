"""A module as a propagation problem: every value numbered, every op a node with its factor rule."""

from __future__ import annotations

from typing import Any

from meshwright.core.factors import Factors
from meshwright.core.types import TensorType
from meshwright.interop.shardy.module_shardings import Shardings, meshes_of
from meshwright.interop.shardy.module_walk import ORIGINAL_NAME, RULE, SHARDING, Rules, walk
from meshwright.interop.shardy.sharding_rules import WITHOUT
from meshwright.interop.stablehlo.context import Types, boolean, context, integer, keyword, string
from meshwright.interop.stablehlo.ops import SAME
from meshwright.propagate.problem import (
    Direction,
    FactorRule,
    Kind,
    Problem,
    ProblemBlock,
    ProblemFunction,
    ProblemNode,
    ProblemValue,
)
from meshwright.sharding.text_sdy import unquoted

ELEMENTWISE = frozenset(name for name in SAME if name.startswith("stablehlo.")) - {"stablehlo.optimization_barrier"} | {
    "stablehlo.compare", "stablehlo.convert", "stablehlo.reduce_precision", "stablehlo.round_nearest_afz",
    "stablehlo.round_nearest_even",
}  # fmt: skip
_THROUGH = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
_FORWARD = frozenset({"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"})
_FOLDS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.slice"})
_CONSTANTS = frozenset({"stablehlo.constant", "stablehlo.iota", "sdy.constant"})
_EFFECTS = frozenset({
    "stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all", "stablehlo.collective_broadcast",
    "stablehlo.collective_permute", "stablehlo.cross-replica-sum", "stablehlo.infeed", "stablehlo.outfeed",
    "stablehlo.recv", "stablehlo.reduce_scatter", "stablehlo.rng", "stablehlo.send", "func.call",
    "sdy.sharding_constraint", "sdy.sharding_group",
})  # fmt: skip
_KINDS = {
    "sdy.sharding_constraint": Kind.CONSTRAINT,
    "sdy.reshard": Kind.RESHARD,
    "sdy.sharding_group": Kind.GROUP,
    "sdy.data_flow_edge": Kind.EDGE,
    "sdy.func_data_flow_edge": Kind.FUNC_EDGE,
    "sdy.propagation_barrier": Kind.BARRIER,
    "sdy.manual_computation": Kind.MANUAL,
    "sdy.named_computation": Kind.NAMED,
    "stablehlo.while": Kind.WHILE,
    "stablehlo.case": Kind.CASE,
    "stablehlo.optimization_barrier": Kind.FENCE,
    "func.call": Kind.CALL,
}
_SUMS = frozenset({"sdy.all_reduce", "sdy.reduce_scatter"})
_ACROSS = frozenset({"stablehlo.all_reduce", "stablehlo.reduce_scatter"})
_COMBINES = {"stablehlo.add": "sum", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}
_ENDS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_OWN_SHARDING = frozenset({Kind.CONSTRAINT, Kind.RESHARD, Kind.EDGE})
_DIRECTIONS = {"NONE": Direction.NONE, "FORWARD": Direction.FORWARD, "BACKWARD": Direction.BACKWARD}
# Of one result, without regions, and with a rule that follows from types and attributes.
_ORDINARY = ELEMENTWISE | _THROUGH | _FOLDS | {
    "stablehlo.constant", "stablehlo.iota", "stablehlo.dot_general", "stablehlo.dynamic_slice",
    "stablehlo.dynamic_update_slice", "stablehlo.select", "stablehlo.gather",
}  # fmt: skip
_KNOWN_DIALECTS = ("stablehlo.", "sdy.", "chlo.")


class ModuleReader:
    """Reads the functions of a module into a problem. ``warnings`` tells what passed through unread."""

    def __init__(
        self, module: Any, names: bool = False, declared_meshes: bool = False, conservative: bool = False
    ) -> None:
        self.module = module
        self.types = Types()
        self.rules = Rules(self.types, conservative)
        self.shardings = Shardings(meshes_of(module), declared_meshes)
        self.warnings: list[str] = []
        self._names = names
        self._values: list[ProblemValue] = []
        self._numbers: dict[Any, int] = {}
        self._types: list[TensorType | None] = []  # of values, by number
        self._made: dict[int, tuple[Factors, FactorRule]] = {}
        self._like: dict[Any, tuple[Any, ...]] = {}  # what ops of one name, types and attributes have in common
        self._identity: dict[Any, FactorRule] = {}
        self._defined: dict[str, bool] = {}  # the functions, and whether they are read

    def read(self) -> Problem:
        """The whole module."""
        with context():
            functions = [op.operation for op in self.module.body.operations if op.operation.name == "func.func"]
            self._defined = {string(op.attributes["sym_name"]): _is_read(op) for op in functions}
            found = tuple(self._function(op) if _is_read(op) else self._unread(op) for op in functions)
        return Problem(tuple(self._values), found, tuple(self.shardings.meshes.values()))

    def _function(self, op: Any) -> ProblemFunction:
        attributes = op.attributes
        block = op.regions[0].blocks[0]
        arguments = list(block.arguments)
        given = attributes.get("arg_attrs")
        numbers = [
            self._number(value, sharding)
            for value, sharding in zip(arguments, self.shardings.of_dictionaries(given, len(arguments)), strict=True)
        ]
        body = self._block(op, op.regions[0], numbers)
        original = attributes.get(ORIGINAL_NAME)
        return ProblemFunction(
            string(attributes["sym_name"]),
            body,
            tuple(self.shardings.of_dictionaries(attributes.get("res_attrs"), len(body.returns))),
            private=_is_private(op),
            original_name="" if original is None else string(original),
        )

    def _unread(self, function: Any) -> ProblemFunction:
        """A function that stays as it is."""
        name = string(function.attributes["sym_name"])
        if len(function.regions[0].blocks):
            self.warnings.append(f"@{name} has several blocks: it stays as it is")
        calls = tuple(
            str(op.attributes["callee"]).removeprefix("@").strip('"')
            for op in walk(function)
            if "callee" in op.attributes
        )
        return ProblemFunction(name, ProblemBlock((), (), ()), (), private=_is_private(function), calls=calls)

    def _number(self, value: Any, sharding: Any = None) -> int:
        number = self._numbers[value] = len(self._values)
        t = self.types(value.type)
        name, where = (value.get_name(), place_of(value)) if self._names else ("", "")
        self._types.append(t)
        self._values.append(ProblemValue(None if t is None else t.shape, sharding, name, where))
        return number

    def _block(self, op: Any, region: Any, arguments: list[int] | None = None) -> ProblemBlock:
        block = region.blocks[0]
        if arguments is None:
            arguments = [self._number(value) for value in block.arguments]
        *ops, end = [inner.operation for inner in block.operations]
        nodes = tuple(self._node(inner) for inner in ops)
        returns = tuple(self._numbers[value] for value in end.operands)
        return ProblemBlock(tuple(arguments), nodes, returns, (end.name, place_of(end) if self._names else ""))

    def _node(self, op: Any) -> ProblemNode:
        name, known = op.name, self._numbers
        operands = tuple([known[value] for value in op.operands])
        if name in _ORDINARY and not self._names:
            return self._ordinary(op, name, operands) or self._any_node(op, name, operands)
        return self._any_node(op, name, operands)

    def _ordinary(self, op: Any, name: str, operands: tuple[int, ...]) -> ProblemNode | None:
        """An op of one result and no regions; of those that are alike, the first is read."""
        try:
            attributes = dict(op.attributes.items())
        except TypeError:  # the bindings cannot say what a constant of complex numbers is
            return None
        sharding = attributes.pop(SHARDING, None)
        (result,) = op.results
        t = self.types(result.type)
        types = self._types
        key = (name, id(t), *[id(types[n]) for n in operands], *attributes.items())
        common = self._like.get(key)
        if common is None:
            node = self._any_node(op, name, operands)
            if t is not None and RULE not in attributes:
                self._like[key] = node[3:-2]
            return node
        number = self._numbers[result] = len(types)
        types.append(t)
        written = None if sharding is None else self.shardings.several(sharding)[0]
        self._values.append(ProblemValue(t.shape, written))  # type: ignore[union-attr]
        return tuple.__new__(ProblemNode, (Kind.OP, operands, (number,), *common, op, False))

    def _any_node(self, op: Any, name: str, operands: tuple[int, ...]) -> ProblemNode:
        kind = _KINDS.get(name, Kind.OP)
        regions: tuple[ProblemBlock, ...] = ()
        if len(op.regions) and not all(map(_is_understood, op.regions)):
            operands += tuple(self._numbers[value] for value in captured(op))
            kind = Kind.OP
        elif len(op.regions) and (kind is not Kind.OP or self._matters(op)):
            regions = tuple(self._block(op, region) for region in op.regions if len(region.blocks))
        attributes = op.attributes
        results = list(op.results)
        written = self._written(kind, attributes, len(results))
        numbers = tuple(self._number(value, sharding) for value, sharding in zip(results, written, strict=True))
        where = place_of(op) if self._names else ""
        node = ProblemNode(kind, operands, numbers, regions=regions, name=name, where=where, ref=op)
        if kind is Kind.OP:
            return self._plain(op, name, node)
        return self._special(op, kind, attributes, node)

    def _written(self, kind: Kind, attributes: Any, count: int) -> Any:
        attribute = attributes.get(
            "sharding" if kind in _OWN_SHARDING else "out_sharding" if "out_sharding" in attributes else SHARDING
        )
        if attribute is None or not count:
            return (None,) * count
        return (self.shardings.one(attribute),) if not _is_list(attribute) else self.shardings.several(attribute)

    def _matters(self, op: Any) -> bool:
        """Whether a region that is no control flow uses values from outside, or has shardings in it."""
        inside: set[Any] = set()
        for region in op.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        for inner in walk(op):
            if inner.name.startswith(("sdy.", "func.")) or SHARDING in inner.attributes:
                return True
            if any(value not in inside and value in self._numbers for value in inner.operands):
                return True
            inside.update(inner.results)
        return False

    def _plain(self, op: Any, name: str, node: ProblemNode) -> ProblemNode:
        factors = self.rules(op)
        rule = None if factors is None else self._rule(factors)
        elementwise = name in ELEMENTWISE or (name == "stablehlo.bitcast_convert" and self._same_width(op))
        passes = Direction.NONE
        if elementwise or name in _THROUGH:
            passes = Direction.BOTH
        elif name in _FORWARD:
            passes = Direction.FORWARD
        target = ""
        pure = name.startswith(_KNOWN_DIALECTS) and name not in _EFFECTS
        if name == "stablehlo.custom_call":
            target = string(op.attributes["call_target_name"])
            passes = Direction.BOTH if target in ("MoveToHost", "MoveToDevice") else passes
            effect = op.attributes.get("has_side_effect")
            pure = effect is None or not boolean(effect)
        if factors is None and name not in WITHOUT and RULE not in op.attributes:
            self._warn(target or name)
        constant, broadcast = name in _CONSTANTS, name == "stablehlo.broadcast_in_dim"
        spreads = broadcast and self._values[node.operands[0]].shape == ()
        return node._replace(
            rule=rule,
            elementwise=elementwise,
            passes=passes,
            backward_only=broadcast,
            pure=pure,
            constant=constant,
            folds=elementwise or name in _FOLDS,
            spreads_scalar=spreads,
            sums=name in _SUMS,
            across=_combined(op) if name in _ACROSS else None,
            key=_key(op) if (constant and name != "stablehlo.iota") or spreads else None,
        )

    def _rule(self, factors: Factors) -> FactorRule:
        """The rule with numbered factors; ``factors`` is kept, so that its identity stays its own."""
        found = self._made.get(id(factors))
        if found is None:
            found = self._made[id(factors)] = (factors, FactorRule.of(factors))
        return found[1]

    def _special(self, op: Any, kind: Kind, attributes: Any, node: ProblemNode) -> ProblemNode:
        changes: dict[str, Any] = {"pure": node.name not in _EFFECTS}
        if kind in (Kind.CONSTRAINT, Kind.RESHARD, Kind.BARRIER, Kind.EDGE, Kind.FUNC_EDGE):
            shape = self._values[node.results[0]].shape
            if shape is not None:
                changes |= {"rule": self._identity_rule(shape), "elementwise": True, "passes": Direction.BOTH}
        if kind is Kind.GROUP:
            changes["group"] = integer(attributes["group_id"])
        elif kind is Kind.BARRIER:
            changes["direction"] = _DIRECTIONS.get(_direction(attributes["allowed_direction"]), Direction.BOTH)
        elif kind is Kind.CALL:
            callee = str(attributes["callee"]).removeprefix("@").strip('"')
            if not self._defined.get(callee):
                return node._replace(kind=Kind.OP, pure=False, callee=callee if callee in self._defined else "")
            changes["callee"] = callee
        elif kind in (Kind.MANUAL, Kind.NAMED):
            for side in ("in_shardings", "out_shardings"):
                written = attributes.get(side)
                changes[side] = None if written is None else self.shardings.several(written)
            if kind is Kind.MANUAL:
                changes["manual_axes"] = axis_names(str(attributes["manual_axes"]))
            else:
                changes["callee"] = string(attributes["name"])
        return node._replace(**changes)

    def _identity_rule(self, shape: tuple[int, ...]) -> FactorRule:
        found = self._identity.get(shape)
        if found is None:
            found = self._identity[shape] = FactorRule.identity(shape)
        return found

    def _same_width(self, op: Any) -> bool:
        given, made = self.types(op.operands[0].type), self.types(op.results[0].type)
        return given is not None and made is not None and given.shape == made.shape

    def _warn(self, name: str) -> None:
        text = f"no sharding rule is known for {name}: nothing is propagated through it"
        if text not in self.warnings:
            self.warnings.append(text)


def _is_read(function: Any) -> bool:
    """Whether the body of a function is looked into: it has one, of one block."""
    return len(function.regions[0].blocks) == 1


def _is_understood(region: Any) -> bool:
    """Whether a region has one block that ends as those of StableHLO and sdy do, or none."""
    if len(region.blocks) != 1:
        return not len(region.blocks)
    operations = region.blocks[0].operations
    return len(operations) > 0 and operations[len(operations) - 1].operation.name in _ENDS


def _is_private(function: Any) -> bool:
    visibility = function.attributes.get("sym_visibility")
    return visibility is not None and string(visibility) == "private"


def captured(op: Any) -> list[Any]:
    """The values from outside that ops inside an op use, each once."""
    inside: set[Any] = set()
    found: dict[Any, None] = {}
    for region in op.regions:
        for block in region.blocks:
            inside.update(block.arguments)
    for inner in walk(op):
        found.update((value, None) for value in inner.operands if value not in inside)
        inside.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
    return list(found)


def place_of(thing: Any) -> str:
    """Where a value or an op was written: ``line 3:8``, or what the module itself says about that."""
    return str(thing.location).removeprefix("loc(").removesuffix(")").replace('"-":', "line ")


def _combined(op: Any) -> str:
    """How the region of a collective combines values: by the op that makes what it returns."""
    block = op.regions[0].blocks[0]
    maker = block.operations[len(block.operations) - 1].operands[0].owner
    return _COMBINES.get(getattr(getattr(maker, "operation", None), "name", ""), "")


def _is_list(attribute: Any) -> bool:
    return str(attribute).startswith("#sdy.sharding_per_value")


def _direction(attribute: Any) -> str:
    text = str(attribute)
    numbers = {"0": "NONE", "1": "FORWARD", "2": "BACKWARD", "3": "BOTH"}
    return numbers.get(text.split(" ")[0]) or keyword(attribute)


def axis_names(text: str) -> tuple[str, ...]:
    """The names in ``#sdy<manual_axes{"x", "y"}>``."""
    names, at = [], 0
    while (at := text.find('"', at)) >= 0:
        end = at + 1
        while text[end] != '"':
            end += 2 if text[end] == "\\" else 1
        names.append(unquoted(text[at : end + 1]))
        at = end + 1
    return tuple(names)


def _key(op: Any) -> Any:
    """What makes two constants, or two spread scalars, the same but for their operands and shardings."""
    try:
        attributes = tuple((name, value) for name, value in op.attributes.items() if name != SHARDING)
    except TypeError:  # the bindings cannot say what a constant of complex numbers is
        return str(op)
    return op.name, attributes, tuple(value.type for value in op.results)


def read_problem(module: Any, names: bool = False) -> Problem:
    """A module, as ``parse_module`` gives it, as a propagation problem; ``names`` keeps the names of its values."""
    return ModuleReader(module, names).read()
