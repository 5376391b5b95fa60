"""Small gathers that can be taken together become one: a collective of a few bytes takes as long as one of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from meshwright.core.op import Op
from meshwright.core.program import Atom, Eqn, Params, Var
from meshwright.core.source import Source
from meshwright.ops.basic import reshape, transpose
from meshwright.ops.shape import concatenate, slice_

SMALL_BYTES = 1 << 16  # of what is gathered: above, the copies cost what a collective does


def gather_bucket(eqn: Eqn, known: Mapping[Var, Any]) -> Any:
    """Gathers of one bucket can be one collective; None for what is none, is large, or was written by the user."""
    kind = eqn.op.collective
    if kind != "all_gather" or eqn.outputs[0] not in known:
        return None
    if not 0 < eqn.outputs[0].type.nbytes <= SMALL_BYTES:
        return None
    t = eqn.inputs[0].type
    return eqn.op, eqn.params["axes"], t.dtype, t.weak, t.varying, t.unreduced, known[eqn.outputs[0]].asked


def packed(gathers: Sequence[Eqn]) -> tuple[list[Eqn], Var]:
    """The equations of several gathers as one, and what that one gives: a row from each device.

    c: f32[8] = all_gather a axes=('i',) dim=0             r: f32[1,7] = concatenate (a as a row) (b as a row) dim=1
    d: f32[3,4] = all_gather b axes=('i',) dim=1   ==>     s: f32[2,7] = all_gather r axes=('i',) dim=0
                                                           c, d: its columns, with the rows where their dims are
    """
    eqns: list[Eqn] = []
    source = gathers[0].source

    def new(op: Op, inputs: Sequence[Atom], params: Params, source: Source | None, out: Var | None = None) -> Var:
        found = Var(op.type(*[x.type for x in inputs], **params)) if out is None else out  # type: ignore[arg-type]
        eqns.append(Eqn(op, tuple(inputs), params, (found,), source))
        return found

    rows = [new(reshape, eqn.inputs, {"shape": (1, eqn.inputs[0].type.size)}, eqn.source) for eqn in gathers]
    row = new(concatenate, rows, {"dim": 1}, source)
    first = gathers[0]
    table = new(first.op, [row], {**first.params, "dim": 0}, source)
    count, start = prod(first.params["sizes"]), 0
    for eqn in gathers:
        block, dim = eqn.inputs[0].type.shape, eqn.params["dim"]
        stop = start + prod(block)
        place = {"starts": (0, start), "limits": (count, stop), "strides": (1, 1)}
        x = new(slice_, [table], place, eqn.source)
        if prod(block[:dim]) > 1:
            x = new(reshape, [x], {"shape": (count, *block)}, eqn.source)
            order = (*range(1, dim + 1), 0, *range(dim + 1, len(block) + 1))
            x = new(transpose, [x], {"permutation": order}, eqn.source)
        new(reshape, [x], {"shape": eqn.outputs[0].type.shape}, eqn.source, eqn.outputs[0])
        start = stop
    return eqns, table
