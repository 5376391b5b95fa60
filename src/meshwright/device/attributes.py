"""Attributes of equations: which there are, what they are where sizes are known, and those that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.core.dtypes import is_inexact
from meshwright.device.dims import Dim, bind
from meshwright.device.function import DeviceEqn, DeviceValue
from meshwright.device.ops import PMAP
from meshwright.device.types import Tensor, Tuple, Type
from meshwright.errors import ShapeError


def bound(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute with numbers for its symbols."""
    if isinstance(value, Dim):
        return bind(value, sizes)
    return type(value)(bound(item, sizes) for item in value) if type(value) is tuple else value


def dim_of(eqn: DeviceEqn) -> int:
    """The dim that an op cuts or joins."""
    found = attribute(eqn, "dim")
    if not isinstance(found, int) or isinstance(found, bool):
        raise ShapeError(f"The dim of {eqn.op} is a whole number.", why=f"it is {found!r}", fix="dim=0")
    return found


def attribute(eqn: DeviceEqn, name: str) -> Any:
    """An attribute that an op cannot do without."""
    if name not in eqn.attributes:
        raise ShapeError(
            f"{eqn.op} needs {name}.", why="it does not follow from the operands", fix=f"{eqn.op}(…, {name}=0)"
        )
    return eqn.attributes[name]


def nested(type: Type | None) -> bool:
    """Whether a type is a tuple of tuples."""
    return isinstance(type, Tuple) and bool(type.items) and isinstance(type.items[0], Tuple)


def tupled(eqn: DeviceEqn, value: DeviceValue) -> bool:
    """Whether the result of a replica is written as a tuple."""
    return nested(value.type) if eqn.op is PMAP else isinstance(value.type, Tuple)


# How allreduce combines tensors, and the kinds of dtypes it combines so.
REDUCTIONS = {"sum": "numbers", "mean": "floats", "max": "numbers", "min": "numbers", "prod": "numbers"}
REDUCTIONS |= {"or": "bools", "and": "bools"}


def check_reduce(eqn: DeviceEqn, how: Any, type: Tensor) -> None:
    """Refuse an allreduce that there is not, or not of this dtype."""
    if how not in REDUCTIONS:
        raise ShapeError(
            f"There is no allreduce by {how!r}.",
            why=f"it combines tensors by {', '.join(REDUCTIONS)}",
            fix=f'allreduce({eqn.values[0].name}, reduce="sum")',
        )
    kind = "bools" if type.dtype == bool else "floats" if is_inexact(type.dtype) else "integers"
    wanted = REDUCTIONS[how]
    if wanted != kind and not (wanted == "numbers" and kind != "bools"):
        dtype, name = ("bool" if wanted == "bools" else "f32"), eqn.values[0].name
        raise ShapeError(
            f"An allreduce by {how} takes {wanted}.",
            why=f"{eqn.values[0].name} is {type}",
            fix=f"pmap(lambda d: lambda (x): {{ y = convert(x, dtype={dtype}) return y }}, ({name},)) first",
        )


def check_results(eqn: DeviceEqn, count: int) -> None:
    """Refuse an equation that names more or fewer results than there are."""
    if count != len(eqn.outputs):
        names = [v.name for v in eqn.outputs]
        fix = [*names, *(f"{names[-1]}_{n}" for n in range(2, count + 2))][:count]
        raise ShapeError(
            f"{eqn.op} gives {count} results, not {len(names)}.",
            why=f"named are {', '.join(names)}",
            fix=f"{', '.join(fix)} = {eqn.op}(…)",
        )
