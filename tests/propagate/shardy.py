"""Shardy's own passes, as jaxlib has them, and programs with their shardings written line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from jax._src.interpreters import mlir
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy

from meshwright.propagate.graph import Graph, GraphBlock, GraphValue
from meshwright.propagate.problem import Kind
from meshwright.sharding.axes import quoted
from meshwright.sharding.named import TensorSharding
from tests.oracle.apart import apart

NAMES = {
    Kind.CONSTRAINT: "sdy.sharding_constraint",
    Kind.RESHARD: "sdy.reshard",
    Kind.GROUP: "sdy.sharding_group",
    Kind.EDGE: "sdy.data_flow_edge",
    Kind.FUNC_EDGE: "sdy.func_data_flow_edge",
    Kind.BARRIER: "sdy.propagation_barrier",
    Kind.WHILE: "stablehlo.while",
    Kind.CASE: "stablehlo.case",
    Kind.FENCE: "stablehlo.optimization_barrier",
    Kind.MANUAL: "sdy.manual_computation",
    Kind.NAMED: "sdy.named_computation",
    Kind.CALL: "func.call",
}


@cache
def context() -> Any:
    made = mlir.make_ir_context()
    made.enable_multithreading(False)  # so that a fork of this process can use it
    return made


ON_FUNCTIONS = (
    "sdy-constant-or-scalar-merger",
    "sdy-sink-data-flow-edges",
    "sdy-sharding-constraint-to-reshard",
    "sdy-sink-func-data-flow-edges",
    "sdy-verify-unreduced-axes",
)


def spelled(name: str) -> str:
    """A pass as a pass manager wants it."""
    if name in ON_FUNCTIONS:
        return f"func.func({name})"
    if name == "sdy-import-func-calls":
        return f"{name}{{add-data-flow-edges-on-named-computations=true}}"
    return name


def run(text: str, passes: Sequence[str]) -> Any:
    """The module after some passes."""
    with context():
        module = ir.Module.parse(text)
        names = ",".join(map(spelled, passes))
        passmanager.PassManager.parse(f"builtin.module({names})").run(module.operation)
        return module


def shown_apart(texts: Sequence[str], passes: Sequence[str]) -> list[list[str] | None]:
    """The lines of each module after some passes, made in a process apart; None where Shardy refuses or dies.

    Shardy uses memory that it freed when an op that has priorities turns out to be dead.
    """
    found: list[list[str] | None] = []
    while len(found) < len(texts):
        found += apart(_shown, list(texts[len(found) :]), list(passes))
        if len(found) < len(texts):
            found.append(None)  # it died here
    return found


def _shown(texts: Sequence[str], passes: Sequence[str]) -> Iterator[list[str] | None]:
    for text in texts:
        try:
            yield show_module(run(text, passes))
        except ir.MLIRError:
            yield None


def bare(text: object) -> str:
    return str(text).replace("#sdy.sharding<", "<")


class _Numbers:
    """Values numbered as they are met."""

    def __init__(self) -> None:
        self.found: dict[Any, int] = {}

    def __call__(self, value: Any) -> str:
        return f"%{self.found.setdefault(value, len(self.found))}"


def show_module(module: Any, with_uses: bool = False) -> list[str]:
    """One line per function, op and return: the kind of op, its operands, the shardings written, who uses it."""
    lines: list[str] = []
    number = _Numbers()
    with context():
        for function in module.body.operations:
            if function.operation.name != "func.func":
                continue
            op = function.operation
            arguments = op.regions[0].blocks[0].arguments
            attributes = op.attributes
            given = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else [{}] * len(arguments)
            results = list(attributes["res_attrs"]) if "res_attrs" in attributes else []
            types = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value).results
            results = results or [{}] * len(types)
            name = ir.StringAttr(attributes["sym_name"]).value
            lines.append(f"func {name} ({', '.join(map(_attribute, given))}) -> {', '.join(map(_attribute, results))}")
            _show_block(op.regions[0].blocks[0], lines, number, with_uses)
    return lines


def _attribute(given: Any) -> str:
    return bare(given["sdy.sharding"]) if "sdy.sharding" in given else "-"


def _uses(values: Any, number: _Numbers) -> str:
    found = []
    for value in values:
        users = []
        for use in value.uses:
            name, results = use.owner.operation.name, use.owner.operation.results
            label = number(results[0]) if len(results) else "return" if name.endswith("return") else "group"
            users.append(f"{label}:{use.operand_number}")
        found.append(f"{number(value)}<{' '.join(users)}>")
    return f" uses {' '.join(found)}"


def _show_block(block: Any, lines: list[str], number: _Numbers, with_uses: bool) -> None:
    shown = ", ".join(map(number, block.arguments))
    lines.append(f"block {shown}" + (_uses(block.arguments, number) if with_uses else ""))
    for inner in block.operations:
        op = inner.operation
        name = op.name
        attributes = op.attributes
        if name.endswith(".return"):
            lines.append(f"return {', '.join(map(number, op.operands))}")
            continue
        shardings = ["-"] * len(op.results)
        if name in ("sdy.sharding_constraint", "sdy.reshard", "sdy.data_flow_edge"):
            if "sharding" in attributes:
                shardings = [bare(attributes["sharding"])]
        elif "sdy.sharding" in attributes:
            shardings = [bare(s) for s in sdy.TensorShardingPerValueAttr(attributes["sdy.sharding"]).shardings]
        label = name if name in NAMES.values() else "op"
        line = f"{', '.join(map(number, op.results))} = {label} {', '.join(map(number, op.operands))}"
        line += f" {'; '.join(shardings)}"
        if name == "sdy.sharding_group":
            line += f" {ir.IntegerAttr(attributes['group_id']).value}"
        if name == "sdy.manual_computation":
            line += f" {attributes['manual_axes']}"
        if name == "func.call":
            line += f" {ir.FlatSymbolRefAttr(attributes['callee']).value}"
        for key in ("in_shardings", "out_shardings"):
            if key in attributes and name.startswith("sdy."):
                found = sdy.TensorShardingPerValueAttr(attributes[key]).shardings
                if len(found):
                    line += f" {key}={' '.join(map(bare, found))}"
        lines.append(line + (_uses(op.results, number) if with_uses and len(op.results) else ""))
        for region in op.regions:
            if label != "op":
                for inside in region.blocks:
                    _show_block(inside, lines, number, with_uses)


def show_graph(graph: Graph, with_uses: bool = False) -> list[str]:
    """The same of a graph."""
    lines: list[str] = []
    number = _Numbers()
    for function in graph.functions:
        arguments = [_sharding(value.sharding) for value in function.block.arguments]
        results = [_sharding(sharding) for sharding in function.result_shardings]
        lines.append(f"func {function.name} ({', '.join(arguments)}) -> {', '.join(results)}")
        _show_graph_block(function.block, lines, number, with_uses)
    return lines


def _sharding(sharding: TensorSharding | None) -> str:
    return "-" if sharding is None else bare(sharding)


def _graph_uses(values: list[GraphValue], number: _Numbers) -> str:
    found = []
    for value in values:
        users = []
        for use in reversed(value.uses):
            label = number(use.op.results[0]) if use.op.results else "return" if use.op.kind is None else "group"
            users.append(f"{label}:{use.index}")
        found.append(f"{number(value)}<{' '.join(users)}>")
    return f" uses {' '.join(found)}"


def _show_graph_block(block: GraphBlock, lines: list[str], number: _Numbers, with_uses: bool) -> None:
    shown = ", ".join(map(number, block.arguments))
    lines.append(f"block {shown}" + (_graph_uses(block.arguments, number) if with_uses else ""))
    for op in block.ops:
        operands = ", ".join(number(use.value) for use in op.operands)
        if op.kind is None:
            lines.append(f"return {operands}")
            continue
        label = NAMES.get(op.kind, "op")
        line = f"{', '.join(map(number, op.results))} = {label} "
        line += f"{operands} {'; '.join(_sharding(value.sharding) for value in op.results)}"
        if op.kind is Kind.GROUP:
            line += f" {op.group}"
        if op.kind is Kind.MANUAL:
            line += f" #sdy<manual_axes{{{', '.join(map(quoted, op.manual_axes))}}}>"
        if op.kind is Kind.CALL:
            line += f" {op.callee}"
        for key, found in (("in_shardings", op.in_shardings), ("out_shardings", op.out_shardings)):
            if found:
                line += f" {key}={' '.join(map(bare, found))}"
        lines.append(line + (_graph_uses(op.results, number) if with_uses and op.results else ""))
        for inner in op.blocks:
            _show_graph_block(inner, lines, number, with_uses)
