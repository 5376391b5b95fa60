"""Constants before and after propagation: every user has one of its own, so that they tie nobody together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from meshwright.propagate.graph import (
    Graph,
    GraphBlock,
    GraphOp,
    GraphValue,
    callees_first,
    copy_function,
    inside_first,
    sweep,
)
from meshwright.propagate.problem import Kind


def split_constants(graph: Graph) -> None:
    """Copy each constant expression, and each broadcast of a scalar, for each of its users."""
    splitter = _Splitter(graph)
    for function in callees_first(graph):
        for op in list(inside_first(function.block)):
            if op.kind is Kind.NAMED:
                splitter.split(op.blocks[0])
        splitter.split(function.block)


class _Splitter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.functions = {function.name: function for function in graph.functions}
        self.keeps: dict[str, bool] = {}
        self.numbers = count()

    def split(self, body: GraphBlock) -> None:
        """Split what is in a block, but for computations in it, which are done already."""
        self.constants: dict[GraphOp | None, None] = {}
        self.spread: dict[GraphOp, None] = {}
        self.before: dict[GraphOp, list[GraphOp]] = {}
        for op in list(_walk_outside(body)):
            if op.kind is Kind.GROUP:
                op.operands[0].set(op.operands[0].value)
                continue
            if self.is_constant(op):
                self.constants[op] = None
                continue
            if op.node is not None and op.node.spreads_scalar:
                self.spread[op] = None
                continue
            for use in op.operands:
                maker = use.value.op
                if maker is not None and (maker in self.constants or maker in self.spread):
                    use.set(self.copy(use.value, {}))
                else:
                    use.set(use.value)
        self.insert(body)
        for made in reversed([*self.constants, *self.spread]):
            if made is not None:
                _erase_unused(made)
        sweep(body)

    def is_constant(self, op: GraphOp) -> bool:
        """Whether the op makes the same value at every run."""
        return self.keeps_constant(op) and all(
            use.value.op is not None and use.value.op in self.constants for use in op.operands
        )

    def body_keeps(self, op: GraphOp) -> bool:
        """Whether a computation is made of ops only whose results are constant if their operands are."""
        if op.kind is Kind.NAMED:
            return all(map(self.keeps_constant, op.blocks[0].ops[:-1]))
        known = self.keeps.get(op.callee)
        if known is None:
            body = self.functions[op.callee].block.ops[:-1]
            known = self.keeps[op.callee] = all(map(self.keeps_constant, body))
        return known

    def keeps_constant(self, op: GraphOp) -> bool:
        """Whether an op's results are constant if its operands are."""
        if op.kind in (Kind.NAMED, Kind.CALL):
            return self.body_keeps(op)
        if op.kind in (Kind.BARRIER, Kind.RESHARD, Kind.GROUP):
            return True
        return op.kind is Kind.OP and op.node is not None and (op.node.constant or op.node.folds)

    def copy(self, value: GraphValue, mapping: dict[GraphValue, GraphValue]) -> GraphValue:
        """A copy of what makes a value, right before the original; scalars are shared."""
        if value in mapping:
            return mapping[value]
        op = value.op
        if op is None or value.shape == ():
            return value
        for use in op.operands:
            if use.value.op is not None and (use.value.op in self.constants):
                self.copy(use.value, mapping)
        copy = self.graph.clone(op, mapping)
        place = self.before.setdefault(op, [])
        place.append(copy)
        if op.kind is Kind.CALL:
            made = copy_function(self.graph, self.functions[op.callee], self.numbers)
            copy.callee, self.functions[made.name] = made.name, made
        # The newest use comes first, but constants were made anew before, which turned the order of their uses.
        made_anew = op.node is not None and op.node.constant and op.node.key is not None
        for use in value.uses if made_anew else reversed(value.uses):
            if use.op.kind is Kind.GROUP:
                place.append(self.graph.clone(use.op, mapping))
        return mapping[value]

    def insert(self, block: GraphBlock) -> None:
        """Put the copies into the program."""
        ops: list[GraphOp] = []
        for op in block.ops:
            for copy in self.before.get(op, ()):
                copy.parent = block
                ops.append(copy)
            ops.append(op)
            for inner in op.blocks:
                self.insert(inner)
        block.ops = ops


def _walk_outside(block: GraphBlock) -> Iterator[GraphOp]:
    """All ops of a block, an op before those inside it, without those inside named computations."""
    for op in block.ops:
        yield op
        if op.kind is not Kind.NAMED:
            for inner in op.blocks:
                yield from _walk_outside(inner)


def _erase_unused(op: GraphOp) -> None:
    """Erase an op and the groups it is in, unless somebody else uses it."""
    users = [use.op for value in op.results for use in value.uses]
    if all(user.kind is Kind.GROUP for user in users):
        for gone in (*users, op):
            for inner in (gone, *(one for block in gone.blocks for one in inside_first(block))):
                for use in inner.operands:
                    use.drop()
                inner.erased = True
