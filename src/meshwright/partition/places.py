"""Ops that know where they are: what they compute on a block depends on the block's place in the whole."""

from __future__ import annotations

from meshwright.core.op import Value
from meshwright.core.program import Eqn
from meshwright.ops.basic import add, convert, mul
from meshwright.ops.collective import axis_index
from meshwright.ops.shape import iota
from meshwright.partition.layouts import closed, finished, is_even, replicated
from meshwright.partition.localize import SPECIAL, Localizer, Version


def block_start(local: Localizer, version_axes: tuple[object, ...], size: int) -> Value | None:
    """Where a device's block of ``size`` begins along a dim split over axes; None if the dim is whole."""
    position: Value | None = None
    for axis in version_axes:
        for name, count in local.names(axis):  # type: ignore[arg-type]
            one = axis_index(axes=(name,), sizes=(count,))
            position = one if position is None else add(mul(position, count), one)
    return None if position is None else mul(position, size)


def _iota(local: Localizer, eqn: Eqn) -> list[Version]:
    """Each device counts from where its block begins."""
    t = eqn.outputs[0].type
    wanted = local.wanted.get(eqn.outputs[0])
    layout = finished(closed(wanted)) if wanted is not None else replicated(local.mesh, t.ndim)
    if not is_even(layout, t.shape):
        layout = replicated(local.mesh, t.ndim)
    shape, dim = layout.local_shape(t.shape), eqn.params["dim"]
    value = iota(**{**eqn.params, "shape": shape})
    start = block_start(local, layout.dims[dim].axes, shape[dim])
    if start is not None:
        value = add(value, convert(start, dtype=t.dtype, weak=False))
    return [Version(layout, value)]


SPECIAL["iota"] = _iota
