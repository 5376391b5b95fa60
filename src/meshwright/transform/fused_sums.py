"""Sums over rows of products: contracted at once, so that the products of all rows never exist together.

c: f32[8,4,5] = dot_general a b batch=((0,), (0,)) contract=((1,), (1,))
d: f32[4,5] = reduce_sum c axes=(0,)
                                             ==>
d: f32[4,5] = dot_general a b batch=((), ()) contract=((0, 1), (0, 1))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.op import Op
from meshwright.core.program import Atom, Eqn, Program, Var, operand_types
from meshwright.core.source import Source
from meshwright.ops.basic import add, neg, reduce_sum, transpose
from meshwright.ops.contraction import dot_general
from meshwright.transform.simplify import dce

Axes = tuple[int, ...]


def fuse_sums(program: Program) -> Program:
    """The program with sums over the batch dims of a product taken inside of the product."""
    if not any(eqn.op is reduce_sum for eqn in program.eqns):
        return program
    return dce(_SumFusion(program).result())


class _SumFusion:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = Counter(a for eqn in program.eqns for a in eqn.inputs) + Counter(program.outputs)
        self.made = {v: eqn for eqn in program.eqns for v in eqn.outputs}
        self.eqns: list[Eqn] = []

    def result(self) -> Program:
        renamed: dict[Atom, Atom] = {}
        for eqn in self.program.eqns:
            inputs = tuple([renamed.get(a, a) for a in eqn.inputs])
            if eqn.op is reduce_sum:
                found = self.summed(eqn.inputs[0], eqn.params["axes"], eqn.source, renamed)
                if found is not None:
                    renamed[eqn.outputs[0]] = found
                    continue
            self.eqns.append(Eqn(eqn.op, inputs, eqn.params, eqn.outputs, eqn.source))
        outputs = tuple(renamed.get(a, a) for a in self.program.outputs)
        return Program(self.program.inputs, tuple(self.eqns), outputs, self.program.constants)

    def summed(self, atom: Atom, axes: Axes, source: Source | None, renamed: Mapping[Atom, Atom]) -> Atom | None:
        """The sum of a value over dims, if it need not be computed first."""
        eqn = self.made.get(atom)  # type: ignore[arg-type]
        if eqn is None or self.uses[atom] != 1 or not axes:
            return None
        if eqn.op is dot_general:
            (left, right), (left_batch, right_batch) = eqn.params["contract"], eqn.params["batch"]
            if any(a >= len(left_batch) for a in axes):
                return None
            kept = [n for n in range(len(left_batch)) if n not in axes]
            params = {
                **eqn.params,
                "contract": (tuple(left_batch[a] for a in axes) + left, tuple(right_batch[a] for a in axes) + right),
                "batch": (tuple(left_batch[n] for n in kept), tuple(right_batch[n] for n in kept)),
            }
            return self.emit(eqn.op, [renamed.get(a, a) for a in eqn.inputs], params, source)
        if eqn.op is transpose:
            order = eqn.params["permutation"]
            inner = self.summed(eqn.inputs[0], tuple(sorted(order[a] for a in axes)), source, renamed)
            if inner is None:
                return None
            rest = [p for n, p in enumerate(order) if n not in axes]
            ranks = tuple(sorted(rest).index(p) for p in rest)
            if ranks == tuple(sorted(ranks)):
                return inner
            return self.emit(transpose, [inner], {"permutation": ranks}, source)
        if eqn.op is neg:
            inner = self.summed(eqn.inputs[0], axes, source, renamed)
            return None if inner is None else self.emit(neg, [inner], {}, source)
        if eqn.op is add and all(a.type.ndim == atom.type.ndim for a in eqn.inputs):
            return self.sum_of_sums(eqn, axes, source, renamed)
        return None

    def sum_of_sums(self, eqn: Eqn, axes: Axes, source: Source | None, renamed: Mapping[Atom, Atom]) -> Atom | None:
        found = [self.summed(a, axes, source, renamed) for a in eqn.inputs]
        if all(a is None for a in found):
            return None
        parts = [
            self.emit(reduce_sum, [renamed.get(a, a)], {"axes": axes}, source) if inner is None else inner
            for a, inner in zip(eqn.inputs, found, strict=True)
        ]
        return self.emit(add, parts, {}, source)

    def emit(self, op: Op, inputs: Sequence[Atom], params: Mapping[str, Any], source: Source | None) -> Var:
        type = op.type(*operand_types(op, inputs), **params)
        assert not isinstance(type, tuple)
        var = Var(type)
        self.eqns.append(Eqn(op, tuple(inputs), params, (var,), source))
        return var
