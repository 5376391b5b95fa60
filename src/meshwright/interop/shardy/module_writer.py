"""A propagation problem as a module again: the ops it was read from, in their new places, with their new shardings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from meshwright.interop.shardy.module_shardings import Shardings, filled_text, per_value_text
from meshwright.interop.shardy.module_walk import ORIGINAL_NAME, RULE, SHARDING, walk
from meshwright.interop.shardy.problem_reader import captured
from meshwright.interop.shardy.sharding_rules import identity_factors, rule_text
from meshwright.interop.stablehlo.context import context, string
from meshwright.propagate.problem import Kind, Problem, ProblemBlock, ProblemFunction, ProblemNode
from meshwright.sharding.axes import quoted
from meshwright.sharding.named import TensorSharding

_NAMES = {
    Kind.CONSTRAINT: "sdy.sharding_constraint",
    Kind.RESHARD: "sdy.reshard",
    Kind.EDGE: "sdy.data_flow_edge",
    Kind.FUNC_EDGE: "sdy.func_data_flow_edge",
}
_REBUILT = frozenset({Kind.WHILE, Kind.CASE, Kind.MANUAL, Kind.NAMED, Kind.CALL})


_GROUPS = re.compile(r"(#stablehlo\.replica_group_mesh_axes<mesh = @)(\w+)")


class ModuleWriter:
    """Writes a problem that was read from ``module`` and changed. The module itself stays as it is.

    ``constants`` renames ``stablehlo.constant``; ``lifted`` says which meshes are gone and which are new.
    """

    def __init__(
        self,
        module: Any,
        problem: Problem,
        constants: str = "stablehlo.constant",
        declared_meshes: Shardings | None = None,
    ) -> None:
        self._module, self._problem, self._constants, self._declared_meshes = (
            module,
            problem,
            constants,
            declared_meshes,
        )
        self._values: dict[int, Any] = {}
        self._parsed: dict[Any, Any] = {}
        self._originals: dict[str, Any] = {}
        self._callees: dict[str, ProblemFunction] = {f.name: f for f in problem.functions}
        self._signatures: dict[str, list[Any]] = {}

    def write(self) -> Any:
        """The module."""
        from jaxlib.mlir import ir

        with context(), self._module.operation.location:
            new = ir.Module.create()
            for name, attribute in self._module.operation.attributes.items():
                new.operation.attributes[name] = attribute
            place = ir.InsertionPoint(new.body)
            before: list[Any] = []
            after: list[Any] = []
            for op in self._module.body.operations:
                if op.operation.name == "func.func":
                    self._originals[string(op.attributes["sym_name"])] = op.operation
                else:
                    (after if self._originals else before).append(op.operation)
            for function in self._problem.functions:
                self._sign(function)
            for op in before:
                self._declaration(op, place)
            for name in self._declared_meshes.added if self._declared_meshes is not None else ():
                text = f"sdy.mesh @{name} = {self._declared_meshes.meshes[name]}"  # type: ignore[union-attr]
                self._described(ir.Operation.parse(text), place)
            for function in self._problem.functions:
                self._function(function, place)
            for op in after:
                self._declaration(op, place)
            if self._declared_meshes is not None:
                self._rename_groups(new, self._declared_meshes)
            return new

    def _rename_groups(self, new: Any, declared_meshes: Shardings) -> None:
        """Let groups of devices that are axes of a mesh which is gone be axes of the equal one that is left."""
        for op in walk(new.operation) if declared_meshes.dropped else ():
            groups = op.attributes.get("replica_groups")
            found = _GROUPS.match(str(groups)) if groups is not None else None
            if found is not None and found[2] in declared_meshes.dropped:
                kept = f"{found[1]}{declared_meshes.kept(found[2])}{str(groups)[found.end() :]}"
                op.attributes["replica_groups"] = self._attribute(kept)

    def _declaration(self, op: Any, place: Any) -> None:
        if self._declared_meshes is None or op.name != "sdy.mesh":
            op.clone(ip=place)
        elif string(op.attributes["sym_name"]) not in self._declared_meshes.dropped:
            self._described(op.clone(), place)

    def _described(self, op: Any, place: Any) -> None:
        """A mesh, with what it is in StableHLO's own words."""
        from jaxlib.mlir.dialects import sdy

        mesh = sdy.MeshAttr(op.attributes["mesh"])
        axes = ", ".join(
            f"{{name = {quoted(axis.name)}, size = {axis.size} : i64}}" for axis in map(sdy.MeshAxisAttr, mesh.axes)
        )
        ids = list(mesh.device_ids)
        order = f", device_ids = dense<{ids if len(ids) > 1 else ids[0]}> : tensor<{len(ids)}xi64>" if ids else ""
        op.attributes["stablehlo.mesh"] = self._attribute(f"{{axes = [{axes}]{order}}}")
        place.insert(op)

    # Functions

    def _original(self, function: ProblemFunction) -> Any:
        """The function that it is, or is a copy of, or the op that it was made of."""
        return self._originals[function.origin or function.name] if function.ref is None else function.ref

    def _sign(self, function: ProblemFunction) -> None:
        from jaxlib.mlir import ir

        original = self._original(function)
        if function.ref is None:
            kind = ir.FunctionType(ir.TypeAttr(original.attributes["function_type"]).value)
            self._signatures[function.name] = list(kind.results)
        else:
            self._signatures[function.name] = [value.type for value in original.results]

    def _function(self, function: ProblemFunction, place: Any) -> None:
        from jaxlib.mlir import ir

        original = self._original(function)
        if function.calls is not None:
            original.clone(ip=place)
            return
        if function.ref is None:
            attributes = dict(original.attributes.items())
            block = original.regions[0].blocks[0]
            types = [value.type for value in block.arguments]
        else:
            types, block = [value.type for value in original.operands], _only_block(original)
            kind = ir.FunctionType.get(types, self._signatures[function.name])
            attributes = {"function_type": ir.TypeAttr.get(kind)}
        attributes["sym_name"] = ir.StringAttr.get(function.name)
        if function.private:
            attributes["sym_visibility"] = ir.StringAttr.get("private")
        attributes.pop(ORIGINAL_NAME, None)
        if function.original_name:
            attributes[ORIGINAL_NAME] = ir.StringAttr.get(function.original_name)
        shardings = [self._problem.values[number].sharding for number in function.block.arguments]
        for key, side in (("arg_attrs", shardings), ("res_attrs", function.result_shardings)):
            self._dictionaries(attributes, key, side)
        op = ir.Operation.create("func.func", attributes=attributes, regions=1, loc=original.location, ip=place)
        self._block(op.regions[0], function.block, types, block, "func.return")

    def _dictionaries(self, attributes: dict[str, Any], key: str, shardings: Sequence[TensorSharding | None]) -> None:
        from jaxlib.mlir import ir

        old = attributes.pop(key, None)
        entries = [ir.DictAttr(part) for part in ir.ArrayAttr(old)] if old is not None else [None] * len(shardings)
        new = []
        for entry, sharding in zip(entries, shardings, strict=True):
            found = {} if entry is None else {entry[i].name: entry[i].attr for i in range(len(entry))}
            found.pop(SHARDING, None)
            if sharding is not None:
                found[SHARDING] = self._attribute(str(sharding))
            new.append(ir.DictAttr.get(found))
        if any(len(entry) for entry in new):
            attributes[key] = ir.ArrayAttr.get(new)

    def _attribute(self, text: str) -> Any:
        from jaxlib.mlir import ir

        found = self._parsed.get(text)
        if found is None:
            found = self._parsed[text] = ir.Attribute.parse(text)
        return found

    # Blocks

    def _block(self, region: Any, block: ProblemBlock, types: Sequence[Any], original: Any, end: str) -> None:
        from jaxlib.mlir import ir

        locations = [ir.Location.unknown()] * len(types)
        if original is not None and len(original.arguments) == len(types):
            locations = [value.location for value in original.arguments]
        made = region.blocks.append(*types, arg_locs=locations)
        self._values.update(zip(block.arguments, made.arguments, strict=True))
        place = ir.InsertionPoint(made)
        for node in block.nodes:
            self._node(node, place)
        returned = [self._values[number] for number in block.returns]
        last = original.operations[len(original.operations) - 1].operation if original is not None else None
        location, attributes = (None, {}) if last is None else (last.location, dict(last.attributes.items()))
        ir.Operation.create(end, operands=returned, attributes=attributes, loc=location, ip=place)

    def _node(self, node: ProblemNode, place: Any) -> None:
        operands = [self._values[number] for number in node.operands]
        if node.kind in _NAMES:
            op = self._own(node, operands, place)
        elif node.kind in _REBUILT or node.regions:
            op = self._rebuilt(node, operands, place)
        elif self._constants != "stablehlo.constant" and node.name == "stablehlo.constant":
            op = self._renamed(node, place)
            self._share(op, node)
        else:
            op = node.ref.clone(ip=place)
            count = len(op.operands)
            for index, value in enumerate(operands[:count]):
                op.operands[index] = value
            if len(operands) > count:
                self._recapture(op, dict(zip(captured(node.ref), operands[count:], strict=True)))
            if node.kind is Kind.GROUP:
                op.attributes["group_id"] = self._attribute(f"{node.group} : i64")
            self._share(op, node)
        self._values.update(zip(node.results, op.results, strict=True))

    def _recapture(self, op: Any, values: dict[Any, Any]) -> None:
        """Let ops inside an op use other values from outside."""
        for inner in walk(op):
            for index, value in enumerate(inner.operands):
                if value in values:
                    inner.operands[index] = values[value]

    def _renamed(self, node: ProblemNode, place: Any) -> Any:
        from jaxlib.mlir import ir

        (made,) = [value.type for value in node.ref.results]
        try:
            value = node.ref.attributes["value"]
        except TypeError:  # the bindings cannot hold a constant of complex numbers, but they can read one
            found = re.search(r"(dense<.*>) : tensor", str(node.ref), re.DOTALL)
            assert found is not None
            op = ir.Operation.parse(f'"{self._constants}"() <{{value = {found[1]} : {made}}}> : () -> {made}')
            place.insert(op)
            return op
        attributes = {"value": value, **_discardable(node.ref)}
        return ir.Operation.create(
            self._constants, results=[made], attributes=attributes, loc=node.ref.location, ip=place
        )

    def _shardings(self, node: ProblemNode) -> list[TensorSharding | None]:
        return [self._problem.values[number].sharding for number in node.results]

    def _share(self, op: Any, node: ProblemNode) -> None:
        """Write the shardings of the results onto an op; results that have none beside others are open."""
        if not node.results:
            return
        shapes = (self._problem.values[number].shape for number in node.results)
        text = filled_text(self._shardings(node), [0 if shape is None else len(shape) for shape in shapes])
        if "out_sharding" in op.attributes:
            (sharding,) = self._shardings(node)
            op.attributes["out_sharding"] = self._attribute(str(sharding))
            return
        if text is not None:
            op.attributes[SHARDING] = self._attribute(text)
        elif SHARDING in op.attributes:
            del op.attributes[SHARDING]

    def _own(self, node: ProblemNode, operands: list[Any], place: Any) -> Any:
        """Ops of sdy that hold the sharding of their result themselves."""
        from jaxlib.mlir import ir

        (sharding,) = self._shardings(node)
        attributes = _discardable(node.ref)
        if sharding is not None and node.kind is Kind.FUNC_EDGE:
            attributes[SHARDING] = self._attribute(per_value_text([sharding]))
        elif sharding is not None:
            attributes["sharding"] = self._attribute(str(sharding))
        if node.shows_rule and RULE not in attributes:
            shape = self._problem.values[node.results[0]].shape or ()
            attributes[RULE] = self._attribute(rule_text(identity_factors(shape)))
        location = node.ref.location if node.ref is not None else _location(operands[0])
        return ir.Operation.create(
            _NAMES[node.kind],
            results=[operands[0].type],
            operands=operands,
            attributes=attributes,
            loc=location,
            ip=place,
        )

    def _rebuilt(self, node: ProblemNode, operands: list[Any], place: Any) -> Any:
        """An op with regions, or a call."""
        from jaxlib.mlir import ir

        ref = node.ref
        computation = node.kind in (Kind.MANUAL, Kind.NAMED)
        name = {Kind.CALL: "func.call", Kind.NAMED: "sdy.named_computation"}.get(node.kind, node.name)
        same = ref is not None and ref.name == name
        attributes = dict(ref.attributes.items()) if same else _discardable(ref)
        attributes.pop(SHARDING, None)
        if node.kind is Kind.CALL:
            attributes["callee"] = ir.FlatSymbolRefAttr.get(node.callee)
        if node.kind is Kind.NAMED:
            attributes["name"] = ir.StringAttr.get(node.callee)
        if node.kind is Kind.MANUAL:
            attributes["manual_axes"] = self._attribute(
                f"#sdy<manual_axes{{{', '.join(map(quoted, node.manual_axes))}}}>"
            )
        if computation:
            for side, found in (("in_shardings", node.in_shardings), ("out_shardings", node.out_shardings)):
                if found is not None:
                    attributes[side] = self._attribute(per_value_text(found))
        types = [value.type for value in ref.results] if ref is not None else self._signatures[node.callee]
        op = ir.Operation.create(
            name,
            results=types,
            operands=operands,
            attributes=attributes,
            regions=len(node.regions),
            loc=ref.location if ref is not None else None,
            ip=place,
        )
        for index, block in enumerate(node.regions):
            original = ref.regions[index].blocks[0] if same and len(ref.regions) > index else None
            arguments = (
                [value.type for value in original.arguments] if original is not None else [v.type for v in operands]
            )
            end = "sdy.return" if computation else "stablehlo.return"
            self._block(op.regions[index], block, arguments, original, end)
        if not computation:
            self._share(op, node)
        return op


def _location(value: Any) -> Any:
    return value.location


def _only_block(op: Any) -> Any:
    return op.regions[0].blocks[0] if len(op.regions) else None


_INHERENT = frozenset({
    "callee", "name", "in_shardings", "out_shardings", "manual_axes", "sharding", "value", "arg_attrs", "res_attrs",
    "no_inline", SHARDING,
})  # fmt: skip


def _discardable(op: Any) -> dict[str, Any]:
    """The attributes of an op that it keeps when it becomes another one: those that are not its own."""
    if op is None:
        return {}
    return {name: value for name, value in op.attributes.items() if name not in _INHERENT}


def write_module(
    module: Any, problem: Problem, constants: str = "stablehlo.constant", declared_meshes: Shardings | None = None
) -> Any:
    """The module of a problem that was read from ``module`` and changed since."""
    return ModuleWriter(module, problem, constants, declared_meshes).write()
