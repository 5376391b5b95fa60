"""Collectives as HLO has them: between groups of devices, numbered by their position on the mesh.

A device's position is a number with one digit per axis. The groups along some axes are the digits of the other axes,
and inside of a group those of the axes: ``[2,2]<=[2,2]T(1,0)`` is the positions 0, 1, 2, 3 as a 2 x 2 array, transposed
and read as two groups of two, {0,2} and {1,3}.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshwright.core.program import Eqn
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.groups import MeshAxes, group_digits, groups_of
from meshwright.interop.hlo.writer import S32, U32, Computation, HloValue, Write, numbers
from meshwright.sharding.placement import merged
from meshwright.sharding.text_hlo import iota_text


def groups_text(mesh: MeshAxes, axes: Sequence[str], iota: bool = True) -> str:
    """The groups along some axes of a mesh, by digits or as lists.

    >>> groups_text([("x", 2), ("y", 2)], ["x"]), groups_text([("x", 2), ("y", 2)], ["x"], iota=False)
    ('[2,2]<=[2,2]T(1,0)', '{{0,2},{1,3}}')
    """
    outer, inner = group_digits(mesh, axes)
    digits = merged([*outer, *inner])
    if iota and digits:
        sizes = (prod(digit.size for digit in part) for part in (outer, inner))
        return f"[{','.join(map(str, sizes))}]<={iota_text(digits)}"
    return f"{{{','.join(numbers(row) for row in groups_of(mesh, axes).tolist())}}}"


def _groups(c: Computation, eqn: Eqn) -> str:
    wrong = [axis for axis in eqn.params["axes"] if axis not in dict(c.module.axes)]
    if wrong:
        raise MeshwrightError(
            f"{eqn.op.name} over {', '.join(wrong)} cannot be written as HLO.",
            where=eqn.source.show() if eqn.source is not None else "",
            why=f"the module is for a mesh with the axes {', '.join(name for name, _ in c.module.axes)}",
            fix="compiled.as_text() of a function jitted for arrays on that mesh",
        )
    groups = groups_text(c.module.axes, eqn.params["axes"], c.module.iota)
    return f"{c.module.channel()}, replica_groups={groups}"


def _reduced(opcode: str) -> Write:
    """All operands of one element type at once."""

    def write(c: Computation, eqn: Eqn, operands: list[HloValue], results: list[TensorType]) -> list[HloValue]:
        found: dict[int, HloValue] = {}
        for dtype in dict.fromkeys(x.type.dtype for x in operands):
            places = [n for n, x in enumerate(operands) if x.type.dtype == dtype]
            text = f"{_groups(c, eqn)}, use_global_device_ids=true, to_apply={c.module.scalar(opcode, dtype)}"
            outs = c.op("all-reduce", [operands[n] for n in places], [results[n] for n in places], text)
            found.update(zip(places, outs, strict=True))
        return [found[n] for n in range(len(operands))]

    return write


def _all_gather(c: Computation, eqn: Eqn, operands: list[HloValue], results: list[TensorType]) -> list[HloValue]:
    text = f"{_groups(c, eqn)}, dimensions={{{eqn.params['dim']}}}, use_global_device_ids=true"
    return c.op("all-gather", operands, results, text)


def _reduce_scatter(c: Computation, eqn: Eqn, operands: list[HloValue], results: list[TensorType]) -> list[HloValue]:
    add = c.module.scalar("add", results[0].dtype)
    text = f"{_groups(c, eqn)}, use_global_device_ids=true, dimensions={{{eqn.params['dim']}}}, to_apply={add}"
    return c.op("reduce-scatter", operands, results, text)


def _all_to_all(c: Computation, eqn: Eqn, operands: list[HloValue], results: list[TensorType]) -> list[HloValue]:
    """Parts are given out along a dim of their own, which is then joined with another."""
    (x,) = operands
    split, concat, parts = eqn.params["split"], eqn.params["concat"], prod(eqn.params["sizes"])
    if split == concat:
        return c.op("all-to-all", [x], results, f"{_groups(c, eqn)}, dimensions={{{split}}}")
    shape = x.type.shape
    x = c.reshape(x, [*shape[:split], parts, shape[split] // parts, *shape[split + 1 :]])
    (x,) = c.op("all-to-all", [x], [x.type], f"{_groups(c, eqn)}, dimensions={{{split}}}")
    others = [d for d in range(x.type.ndim) if d != split]
    x = c.transpose(x, [*others[:concat], split, *others[concat:]])
    return [c.reshape(x, results[0].shape)]


def _permute(c: Computation, eqn: Eqn, operands: list[HloValue], results: list[TensorType]) -> list[HloValue]:
    groups = groups_of(c.module.axes, eqn.params["axes"]).tolist()
    pairs = sorted((row[source], row[target]) for row in groups for source, target in eqn.params["permutation"])
    text = f"{c.module.channel()}, source_target_pairs={{{','.join(numbers(pair) for pair in pairs)}}}"
    return c.op("collective-permute", operands, results, text)


def _position(c: Computation, axes: Sequence[str]) -> HloValue:
    """The device's place along some axes, from major to minor."""
    scalar = TensorType((), U32)
    (whole,) = c.op("partition-id", [], [scalar])
    _, inner = group_digits(c.module.axes, axes)
    place: HloValue | None = None
    for stride, size in merged(inner):
        (digit,) = c.op("divide", [whole, c.number(stride, U32)], [scalar]) if stride > 1 else [whole]
        (digit,) = c.op("remainder", [digit, c.number(size, U32)], [scalar])
        if place is not None:
            (place,) = c.op("multiply", [place, c.number(size, U32)], [scalar])
            (digit,) = c.op("add", [place, digit], [scalar])
        place = digit
    if place is None:
        return c.number(0)
    return c.op("convert", [place], [TensorType((), S32)])[0]


def _axis_index(c: Computation, eqn: Eqn, operands: list[HloValue], results: list[TensorType]) -> list[HloValue]:
    return [_position(c, eqn.params["axes"])]


def _scatter(c: Computation, eqn: Eqn, operands: list[HloValue], results: list[TensorType]) -> list[HloValue]:
    """Each device takes its part of what all have."""
    dim, t = eqn.params["dim"], results[0]
    place, zero = _position(c, eqn.params["axes"]), c.number(0)
    (start,) = c.op("multiply", [place, c.number(t.shape[dim])], [place.type])
    starts = [start if d == dim else zero for d in range(t.ndim)]
    return c.op("dynamic-slice", [*operands, *starts], results, f"dynamic_slice_sizes={numbers(t.shape)}")


COLLECTIVES: dict[str, Write] = {
    "psum": _reduced("add"),
    "pmax": _reduced("maximum"),
    "pmin": _reduced("minimum"),
    "all_gather": _all_gather,
    "all_gather_invariant": _all_gather,
    "psum_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _permute,
    "axis_index": _axis_index,
    "pscatter": _scatter,
    "pbroadcast": lambda c, eqn, operands, results: operands,
    "pinvariant": lambda c, eqn, operands, results: operands,
}
