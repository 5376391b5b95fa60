"""`iota` on blocks: what a device counts depends on where its block begins."""

from __future__ import annotations

from meshwright.core.facts import Across
from meshwright.core.op import Value
from meshwright.core.program import Eqn
from meshwright.ops.basic import add, convert
from meshwright.partition.blocks import block_start
from meshwright.partition.localize import MAKES, Localizer
from meshwright.sharding.named import TensorSharding


def _counted(local: Localizer, eqn: Eqn, need: TensorSharding) -> Value:
    """Each device counts from where its block begins."""
    t = eqn.outputs[0].type
    shape, dim = need.local_shape(t.shape), eqn.params["dim"]
    value = eqn.op(**{**eqn.params, "shape": shape})
    start = block_start(local.names, need.dims[dim].axes, shape[dim])
    return value if start is None else add(value, convert(start, dtype=t.dtype, weak=False))


MAKES[Across.COUNTED] = _counted
