"""What rules of ops with regions are made of: tracing a region, masks over operands, fixpoints of carries, batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.dtypes import is_inexact
from meshwright.core.op import Cost, No, Value
from meshwright.core.program import Atom, Program
from meshwright.core.source import here
from meshwright.core.trace import close, make_varying, trace
from meshwright.core.types import TensorType, union
from meshwright.errors import ShapeError
from meshwright.ops.basic import broadcast_in_dim, convert, zeros
from meshwright.ops.layout import laid_out
from meshwright.transform.batch import batch_axis, batch_split

Mask = tuple[bool, ...]
NO_FACTORS = No("propagation goes through its regions, not over it")


def region(function: Callable[..., Sequence[Any]], types: Sequence[TensorType]) -> Program:
    """The program of ``function`` for use as a region: what it captures, if anything, is constant."""
    return close(*trace(function, types))


def region_with(function: Callable[..., tuple[Sequence[Any], Any]], types: Sequence[TensorType]) -> tuple[Program, Any]:
    """The region of a function that returns its outputs and something to know about them."""
    facts = []

    def outputs_only(*args: Any) -> Sequence[Any]:
        outputs, fact = function(*args)
        facts.append(fact)
        return outputs

    return region(outputs_only, types), facts[0]


def program_cost(program: Program) -> Cost:
    """The work of a whole program, region ops included."""
    costs = [e.op.cost([a.type for a in e.inputs], [v.type for v in e.outputs], e.params) for e in program.eqns]
    return Cost(sum(c.flops for c in costs), sum(c.nbytes for c in costs))


def instantiate(value: Value | None, type: TensorType) -> Value:
    """A value where None stands for zero."""
    return zeros(type) if value is None else value


def as_type(value: Value, type: TensorType) -> Value:
    """``value`` with the weakness, the variance and the sharding of ``type``, so that a loop's carry keeps its type."""
    if value.dtype != type.dtype or value.type.weak != type.weak:
        value = convert(value, dtype=type.dtype, weak=type.weak)
    return laid_out(make_varying(value, type.varying), type)


def pick(items: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """The items that the mask marks."""
    return [item for item, keep in zip(items, mask, strict=True) if keep]


def spread(items: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """The items in the places that the mask marks, None elsewhere."""
    rest = iter(items)
    return [next(rest) if keep else None for keep in mask]


def present(values: Sequence[Any]) -> Mask:
    return tuple(v is not None for v in values)


def cut(items: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Consecutive parts of the given sizes, and the rest."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(items[start : start + size]))
        start += size
    return [*parts, list(items[start:])]


def fixpoint(initial: Mask, step: Callable[[Mask], tuple[Mask, Any]], likely: Mask | None = None) -> tuple[Mask, Any]:
    """The least mask above ``initial`` that ``step`` does not grow, and what ``step`` returned with it.

    A ``likely`` one is tried first: what transforms a body twice takes twice as long for every loop around it.
    """
    if likely is not None and likely != initial:
        grown, result = step(likely)
        if tuple(a or b for a, b in zip(initial, grown, strict=True)) == likely:
            return likely, result
    mask = initial
    while True:
        grown, result = step(mask)
        joined = tuple(a or b for a, b in zip(mask, grown, strict=True))
        if joined == mask:
            return mask, result
        mask = joined


def depends(program: Program, mask: Sequence[bool]) -> Mask:
    """Which outputs depend on the inputs that the mask marks, seen through regions."""
    found: set[Atom] = set(pick(program.inputs, mask))
    for eqn in program.eqns:
        if found.isdisjoint(eqn.inputs):
            continue
        if eqn.op.reaches is None:
            found.update(eqn.outputs)
        else:
            found.update(pick(eqn.outputs, eqn.op.reaches(eqn, [a in found for a in eqn.inputs])))
    return tuple(a in found for a in program.outputs)


def reached(body: Program, before: Mask, carry: Mask, after: Mask = (), inexact: bool = False) -> Mask:
    """Which carries depend, after any number of steps, on the operands that the masks mark: what a derivative (of those
    that are ``inexact``) or a batch most likely reaches."""
    count = len(carry)
    able = [not inexact or is_inexact(a.type.dtype) for a in body.outputs[:count]]

    def step(mask: Mask) -> tuple[Mask, None]:
        found = depends(body, (*before, *mask, *after))[:count]
        return tuple(a and b for a, b in zip(found, able, strict=True)), None

    return fixpoint(carry, step)[0]


def same_type(a: TensorType, b: TensorType) -> bool:
    """Equal but for weakness."""
    return a.shape == b.shape and a.dtype == b.dtype and a.varying == b.varying and a.unreduced == b.unreduced


def same_types(left: Sequence[TensorType], right: Sequence[TensorType]) -> bool:
    return len(left) == len(right) and all(map(same_type, left, right))


def check_call(what: str, program: Program, types: Sequence[TensorType]) -> None:
    """Refuse operands of other types than a region takes."""
    if not same_types(program.in_types, types):
        raise ShapeError(
            f"{what} does not fit its operands.",
            where=here(),
            why=f"it takes ({show_types(program.in_types)}) and is given ({show_types(types)})",
            fix="pass operands of the types it takes",
        )


def check_counts(op: str, operands: int, **counts: int) -> None:
    """Refuse numbers of leading operands that there are not."""
    if min(counts.values()) < 0 or sum(counts.values()) > operands:
        shown = " and ".join(f"{name}={n}" for name, n in counts.items())
        raise ShapeError(
            f"{op} cannot take {operands} operand{'s' * (operands != 1)}.",
            where=here(),
            why=f"{shown} of them come first",
            fix="counts from 0 that add up to no more than there are",
        )


def show_types(types: Sequence[TensorType]) -> str:
    return ", ".join(t.short() for t in types)


def fill(values: Sequence[Any], linear: Mask) -> list[Any]:
    """The values in the places that are not linear."""
    return spread(values, [not is_linear for is_linear in linear])


def broadcast_batch(x: Value, is_batched: bool, size: int) -> Value:
    """``x`` with a batch dim in front, repeated if it has none."""
    if is_batched:
        return x
    repeated = broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))
    return make_varying(repeated, union((x.type.varying, batch_split())))


def batch_type(t: TensorType, is_batched: bool, size: int) -> TensorType:
    """The type of a value in a batch; where the batch is the devices along an axis, nothing varies over it any more."""
    axis = batch_axis()
    if axis in t.varying:
        t = t.with_(varying=tuple(a for a in t.varying if a != axis))
    return t.stack(size).with_(varying=union((t.varying, batch_split()))) if is_batched else t
