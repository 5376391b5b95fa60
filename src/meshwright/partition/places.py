"""Ops that know where they are: what they compute on a block depends on the block's place in the whole."""

from __future__ import annotations

from meshwright.core.program import Eqn
from meshwright.ops.basic import add, convert
from meshwright.ops.shape import iota
from meshwright.partition.blocks import block_start
from meshwright.partition.layouts import closed, finished, replicated
from meshwright.partition.localize import SPECIAL, Localizer, Version


def _iota(local: Localizer, eqn: Eqn) -> list[Version]:
    """Each device counts from where its block begins."""
    t = eqn.outputs[0].type
    wanted = local.wanted.get(eqn.outputs[0])
    layout = finished(closed(wanted)) if wanted is not None else replicated(local.mesh, t.ndim)
    shape, dim = layout.local_shape(t.shape), eqn.params["dim"]
    value = iota(**{**eqn.params, "shape": shape})
    start = block_start(local.names, layout.dims[dim].axes, shape[dim])
    if start is not None:
        value = add(value, convert(start, dtype=t.dtype, weak=False))
    return [Version(layout, value)]


SPECIAL["iota"] = _iota
