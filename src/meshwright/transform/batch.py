"""Batching: the program that does for a whole batch what a program does for one example."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshwright.core.op import No
from meshwright.core.program import Atom, Eqn, Literal, Program
from meshwright.core.trace import Array, apply, read, state
from meshwright.errors import MeshwrightError


class _BatchState(threading.local):
    axis: str | None = None  # the mesh axis whose devices are the examples of the batch
    spmd: tuple[str, ...] = ()  # the mesh axes that the batch itself is to be split over
    split: tuple[str, ...] = ()  # the mesh axes that it is split over, inside of a shard_map


_state = _BatchState()


@contextmanager
def batching_over(axis: str | None, spmd: tuple[str, ...] = (), split: tuple[str, ...] = ()) -> Iterator[None]:
    """Let the batch be the devices along a mesh axis, so that collectives over it work across the batch; or let the
    batch be split over the axes ``spmd`` where it enters a shard_map, in which it is ``split`` then."""
    before = _state.axis, _state.spmd, _state.split
    _state.axis, _state.spmd, _state.split = axis, spmd, split
    try:
        yield
    finally:
        _state.axis, _state.spmd, _state.split = before


def batch_axis() -> str | None:
    """The mesh axis whose devices are the batch."""
    return _state.axis


def spmd_axes() -> tuple[str, ...]:
    """The mesh axes that the batch is to be split over."""
    return _state.spmd


def batch_split() -> tuple[str, ...]:
    """The mesh axes that the batch is split over: batched values vary over them."""
    return _state.split


def batch_program(
    program: Program, size: int, args: Sequence[Any], batched: Sequence[bool]
) -> tuple[list[Any], list[bool]]:
    """The outputs for a batch of ``size``, and which of them are batched. A batched value has the batch as dim 0."""
    values: dict[Atom, Any] = dict(zip(program.inputs, args, strict=True))
    is_batched: set[Atom] = {v for v, b in zip(program.inputs, batched, strict=True) if b}
    for var, data in program.constants:
        values[var] = Array(data, var.type)
    outer = state.source
    try:
        for eqn in program.eqns:
            state.source = eqn.source or outer
            ins = [read(values, a) for a in eqn.inputs]
            flags = [a.__class__ is not Literal and a in is_batched for a in eqn.inputs]
            if _state.axis is not None and _state.axis in eqn.params.get("axes", ()) and eqn.op.stack is not None:
                operands = list(zip(ins, flags, strict=True)) or [(None, False)]
                found = [eqn.op.stack(_state.axis, size, x, stacked, eqn.params) for x, stacked in operands]
                outs: Sequence[Any] = [out for out, _ in found]
                is_batched.update(v for v, (_, stacked) in zip(eqn.outputs, found, strict=True) if stacked)
            elif not any(flags) and not _reaches(eqn, _state.axis):
                outs = apply(eqn.op, ins, eqn.params)
                outs = outs if outs.__class__ is tuple else (outs,)
            else:
                rule = eqn.op.batch
                if isinstance(rule, No):
                    raise MeshwrightError(
                        f"{eqn.op.name} cannot be batched.",
                        where=eqn.source.show() if eqn.source else "",
                        why=rule.reason,
                        fix=_without_batch(eqn.op.name, _state.axis),
                    )
                outs, out_flags = rule(eqn.op, size, ins, flags, eqn.params)
                is_batched.update(v for v, b in zip(eqn.outputs, out_flags, strict=True) if b)
            values.update(zip(eqn.outputs, outs, strict=True))
    finally:
        state.source = outer
    return (
        [read(values, a) for a in program.outputs],
        [a.__class__ is not Literal and a in is_batched for a in program.outputs],
    )


def _reaches(eqn: Eqn, axis: str | None) -> bool:
    """Whether a region of the equation has anything to do with the axis: without it, it is another region."""
    return axis is not None and any(uses_axis(region, axis) for _, region in eqn.regions())


def uses_axis(program: Program, axis: str) -> bool:
    """Whether a collective over a mesh axis, or a value that varies over it, is anywhere in the program."""
    return any(axis in v.type.varying for v in program.inputs) or any(
        (eqn.op.stack is not None and axis in eqn.params["axes"])
        or any(uses_axis(region, axis) for _, region in eqn.regions())
        for eqn in program.eqns
    )


def _without_batch(op: str, axis: str | None) -> str:
    """What to write where an op has no batch rule; devices along an axis are a batch, too."""
    if axis is None:
        return "write the loop with mw.lax.map(f, xs) instead of mw.vmap(f)(xs)"
    return f"the devices along {axis!r} run as a batch: define_op({op!r}, batch=…) with a rule"
