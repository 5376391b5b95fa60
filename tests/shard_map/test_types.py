"""What varies over which mesh axis, and where values are lifted: the type of everything inside of a shard_map."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, ShapeDtypeStruct, make_program
from meshwright.core import dtypes
from meshwright.core.op import REGISTRY
from meshwright.core.types import Variance
from tests.ops.drawing import draw

MESH = mw.make_mesh((4, 2), ("i", "j"))
ONE = (dtypes.FLOAT32, dtypes.INT32, dtypes.UINT32, dtypes.BOOL, dtypes.COMPLEX64)


def operand(text):
    """A block and its spec from a type as programs print it: ``"f32[3]{i}"``."""
    dtype, _, rest = text.partition("[")
    shape, _, varying = rest.partition("]")
    block = tuple(int(n) for n in shape.split(",") if n)
    names = set(varying.strip("{}").split(",")) if varying else set()
    dtype = {"f32": "float32", "i32": "int32", "bool": "bool", "c64": "complex64"}[dtype]
    return np.ones(block, dtype), P(replicated=names)


def typed(function, *operands, **options):
    """The types of what a function returns inside of a shard_map over i and j, for operands of these types."""
    found = []

    def body(*args):
        found[:] = [mw.typeof(x).short() for x in mw.tree.leaves(function(*args))]
        return ()

    values, specs = zip(*map(operand, operands), strict=True) if operands else ((), ())
    mw.shard_map(body, mesh=MESH, in_specs=specs, out_specs=(), **options)(*values)
    return found[0] if len(found) == 1 else found


def program(function, in_specs, out_specs, *shapes, mesh=MESH, **options):
    """The program of a shard_map on arguments of these shapes."""
    mapped = mw.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    return make_program(mapped)(*(ShapeDtypeStruct(shape, "float32") for shape in shapes))


def ops(found, path=()):
    """Every op of a program with the ops whose regions it is in."""
    for eqn in found.eqns:
        yield path, eqn.op.name
        for _, region in eqn.regions():
            yield from ops(region, (*path, eqn.op.name))


def count(found, name):
    return sum(op == name for _, op in ops(found))


# First-order ops


def walked():
    for name, op in sorted(REGISTRY.items()):
        if op.variance is Variance.EQUAL:
            for index, sample in enumerate(op.samples()):
                if sample.operands:
                    yield pytest.param(op, index, sample, id=f"{name}-{index}")


def stacked(op, index, sample, which):
    """An op on two devices, with the operands ``which`` different on each: its types, and its values per device."""
    dtype = next((d for d in ONE if d in op.dtypes), op.dtypes[0])
    draws = [draw(sample, dtype, op.name, index, device) for device in range(2)]
    rows = [np.stack([np.asarray(d[n]) for d in draws]) if n in which else draws[0][n] for n in range(len(draws[0]))]
    types = []

    def body(*args):
        outs = op(*(x[0] if n in which else x for n, x in enumerate(args)), **sample.params)
        outs = outs if isinstance(outs, tuple) else (outs,)
        types[:] = [mw.typeof(x) for x in outs]
        return [x[None] for x in outs]

    specs = tuple(P("i") if n in which else P() for n in range(len(rows)))
    mapped = mw.shard_map(body, mesh=mw.make_mesh((2,), ("i",)), in_specs=specs, out_specs=P("i"))
    found = mapped(*rows)
    expected = []
    for device in range(2):
        outs = op(*(mnp.asarray(draws[device if n in which else 0][n]) for n in range(len(rows))), **sample.params)
        expected.append(outs if isinstance(outs, tuple) else (outs,))
    return types, found, [np.stack([np.asarray(x) for x in outs]) for outs in zip(*expected, strict=True)]


@pytest.mark.parametrize("op, index, sample", walked())
def test_results_vary_as_the_operands_do(op, index, sample):
    for which in ({0}, set(range(len(sample.operands)))):
        types, found, expected = stacked(op, index, sample, which)
        assert [t.varying for t in types] == [("i",)] * len(types)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(x), y, rtol=1e-4, atol=1e-5)
    types, _, _ = stacked(op, index, sample, set())
    assert [t.varying for t in types] == [()] * len(types)
