"""Every op on Explicit axes, on operands in layouts drawn at random: it is refused, or runs on its operands as they are
typed. What it sends is its own partial sum, or what its `out_sharding` asks for; the few others are listed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P
from meshwright.core.factors import Dims, Factors
from meshwright.core.facts import Across
from meshwright.core.op import Linearity, No, Op, Sample
from meshwright.core.trace import to_array
from meshwright.errors import ShardingError
from meshwright.sharding import enumerate_shardings
from meshwright.sharding.spec import PartitionSpec, entry_axes
from tests.ops.drawing import rng
from tests.partition.partitioning import assert_equal, tolerance_of
from tests.partition.test_every_op import OPS, drawn, program_of

AUTO = mw.make_mesh((2, 2), ("x", "y"))
MESH = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.AxisType.Explicit,) * 2)
TRIES = {"few": 2, "many": 12}

# What lies across the end of a block comes from its neighbours: the dim stays split, and they exchange that.
EXCHANGES = {
    Across.CUT, Across.PADDED, Across.REVERSED, Across.JOINED, Across.CONVOLVED, Across.WINDOWED, Across.UNWINDOWED,
}  # fmt: skip
# There is no collective that multiplies, or combines bits, and none that says where an extreme stands.
GATHERED = ("prod", "and", "or")


class Axes(NamedTuple):
    """The axes that split what an op sums over, and what it looks across."""

    summed: frozenset[str]
    across: frozenset[str]
    taken: frozenset[str]  # what is summed over, although no sum can be taken over them
    single: frozenset[str]  # a dim of one element, which has no parts

    @staticmethod
    def of(rule: Factors, specs: Sequence[PartitionSpec]) -> Axes:
        """Those of operands in these layouts."""
        returned = {name for dims in rule.results for dim in dims for name in dim}
        summed = rule.reduced | (rule.replicated - returned)

        def split(which: Any) -> frozenset[str]:
            return frozenset(
                axis for dims, spec in zip(rule.operands, specs, strict=True) for axis in over(dims, spec, which)
            )

        looked = rule.permuted | rule.guarded | rule.replicated
        one = split({name for name, size in rule.sizes.items() if size == 1})
        inner = {name for dims in rule.operands for dim in dims for name in dim[1:]}  # of groups, which stay whole
        return Axes(split(summed), split(looked), (split(summed) & split(returned)) | split(summed & inner), one)


def over(dims: Dims, spec: PartitionSpec, which: Any) -> list[str]:
    """The axes that split dims with one of some factors."""
    found = zip(dims, (*spec.partitions, *[None] * len(dims)), strict=False)
    return [axis for names, entry in found if set(names) & set(which) for axis in map(str, entry_axes(entry))]


def is_its_own(op: Op, rule: Factors, axes: Axes, kind: str, names: frozenset[str]) -> bool:
    """Whether a collective is one that the op may need."""
    if kind in ("all_reduce", "reduce_scatter") and names <= axes.summed:
        return True
    if kind == "all_gather" and names <= axes.single:
        return True
    if (
        kind == "all_gather"
        and names <= axes.summed
        and (rule.combine in GATHERED or op.split.across is Across.EXTREME)
    ):
        return True
    if op.split.across in EXCHANGES and names <= axes.across:
        return True
    # A product whose one operand alone is split along what is summed over takes it as if it were whole. Where the axis
    # splits a dim of the result, too, or groups of features, no sum can be taken over it: that operand is gathered.
    return op.linear is Linearity.EACH and bool(axes.taken) and names <= axes.summed


def case(op: Op, sample: Sample, index: int, tries: int) -> int:
    """Try an op in layouts; how often it was not refused."""
    arrays = drawn(op, sample, index)
    generator = rng("explicit layouts", op.name, index)
    program = program_of(op, sample, arrays)
    types = [to_array(x).type for x in arrays]
    rule = None if isinstance(op.factors, No) else op.factors(types, program.out_types, dict(sample.params))

    def function(*values: Any) -> Any:
        return op(*values, **sample.params)

    expected = mw.tree.leaves(mw.jit(function)(*arrays))
    accepted = 0
    for _ in range(tries):
        every = [[s.spec for s in enumerate_shardings(AUTO, x.ndim, compound=True)] for x in arrays]
        specs = [found[generator.integers(len(found))] for found in every]
        what = f"{op.name} {dict(sample.params)} on {specs}"
        with mw.set_mesh(MESH):
            placed = [mw.device_put(x, mw.NamedSharding(MESH, spec)) for x, spec in zip(arrays, specs, strict=True)]
            try:
                lowered = mw.jit(function).lower(*placed)
            except ShardingError as error:
                assert error.what.startswith("The layout of "), what
                assert error.why, what
                assert "mw.reshard(" in error.fix or "out_sharding=" in error.fix, what
                continue
            compiled = lowered.compile()
            found = mw.tree.leaves(compiled(*placed))
        accepted += 1
        for x, t in zip(found, lowered.program.out_types, strict=True):
            assert x.sharding.typed(x.type).sharding is t.sharding, what
        assert_equal([np.asarray(x) for x in found], [np.asarray(x) for x in expected], tolerance_of(program), what)
        assert rule is not None or not compiled.collectives, what
        axes = None if rule is None else Axes.of(rule, specs)
        for one in compiled.collectives:
            assert rule is not None and axes is not None
            names = frozenset(axis.split(":(")[0] for axis in one.axes)
            assert is_its_own(op, rule, axes, one.kind, names), f"{what}: {one}"
    return accepted


@pytest.mark.parametrize("tries", ["few", pytest.param("many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", OPS, ids=lambda op: f":{op.name}:")
def test_ops_send_their_own_sums(op: Op, tries: str) -> None:
    for index, sample in enumerate(op.samples()):
        case(op, sample, index, TRIES[tries])


def sent(function: Any, *args: Any) -> list[tuple[str, tuple[str, ...]]]:
    compiled = mw.jit(function).lower(*args).compile()
    return [(one.kind, one.axes) for one in compiled.collectives]


def struct(shape: tuple[int, ...], *spec: Any) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(MESH, P(*spec)))


@pytest.mark.parametrize("rows", [8, 1024])
@pytest.mark.parametrize("columns", [8, 1024])
def test_a_product_takes_its_sum_whatever_it_costs(rows: int, columns: int) -> None:
    """Gathering a small operand may be faster; the operands are where they were put, and so is the result."""
    a, b = struct((rows, 64), None, "y"), struct((64, columns), "y")
    with mw.set_mesh(MESH):
        assert sent(lambda a, b: mnp.matmul(a, b, out_sharding=P()), a, b) == [("all_reduce", ("y",))]
        assert sent(lambda a, b: mnp.matmul(a, b, out_sharding=P("y")), a, b) == [("reduce_scatter", ("y",))]
        assert sent(lambda a, b: mnp.matmul(a, b, out_sharding=P(unreduced={"y"})), a, b) == []
        assert sent(lambda a, b: a @ b, a, struct((64, columns))) == [("all_reduce", ("y",))]
        assert sent(lambda a, b: a @ b, struct((rows, 64), "x"), struct((64, columns), "y")) == [("all_reduce", ("y",))]


def test_a_weight_split_along_the_sum_is_not_gathered() -> None:
    x, w = struct((32, 16, 64), "x", None, "y"), struct((64, 256), "y")
    with mw.set_mesh(MESH):
        found = sent(lambda x, w: mnp.einsum("bsd,dh->bsh", x, w, out_sharding=P("x", None, None)), x, w)
    assert found == [("all_reduce", ("y",))]
