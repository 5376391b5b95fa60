"""The ops of device programs, by the names their text has: what puts values on devices, and the ops of the registry.

A scatter, a pmap or an allreduce is an op as any other, of types that say where values are; its type rule names its
attributes. Tensor ops that have names in other systems are in `ops.named`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.core.facts import Structure
from meshwright.core.op import REGISTRY, Op
from meshwright.core.types import TensorType
from meshwright.device.dims import divide
from meshwright.device.types import Device, Tensor, Tuple, Type, elements
from meshwright.errors import DeviceError
from meshwright.ops.named import OPS as OPS
from meshwright.ops.named import DeviceOp as DeviceOp
from meshwright.ops.named import Params, define_device_op, find_op
from meshwright.transform import every_op as _every  # noqa: F401  (fills the registry)


@dataclass(frozen=True, eq=False)
class RenamedOp(Op):
    """An op of the registry that goes by another name in device programs."""

    def __reduce__(self) -> tuple[Any, ...]:
        return known_op, (self.name,)


# What puts values on devices. Operands are types of device programs: tensors, and tuples of them.


def _scatter_type(
    x: TensorType, *, dim: int = 0, devices: Any = None, device_keys: Any = None, parts: Any = None
) -> Tuple:
    whole = elements(x)
    return _spread_over(whole.resized(dim, divide(whole.shape[dim], len(devices))), devices)


def _broadcast_type(x: TensorType, *, devices: Any = None, device_keys: Any = None, parts: Any = None) -> Tuple:
    return _spread_over(elements(x), devices)


def _spread_over(part: Tensor, devices: Sequence[Any]) -> Tuple:
    return Tuple(tuple(part.on(d if isinstance(d, Device) else Device(d)) for d in devices))


def _gather_type(*xs: TensorType, dim: int = 0, to_device: Any = None, members: Any = None) -> Tensor:
    return _times(xs, dim, _count(xs)).on(to_device)


def _allreduce_type(*xs: TensorType, reduce: Any = "sum", members: Any = None) -> Type:
    return _spread_as(elements(xs[0]), xs[0])


def _allgather_type(*xs: TensorType, dim: int = 0, members: Any = None) -> Type:
    return _spread_as(_times(xs, dim, _count(xs)), xs[0])


def _own_part_type(*xs: TensorType, dim: int = 0, members: Any = None) -> Type:
    part = elements(xs[0])
    return _spread_as(part.resized(dim, divide(part.shape[dim], _count(xs))), xs[0])


def _send_type(x: TensorType, *, to_device: Any = None, members: Any = None) -> Tensor:
    return elements(x).on(to_device)


def _split_type(x: TensorType, *, dim: int = 0, parts: Any = None) -> Tuple:
    whole = elements(x)
    return Tuple((whole.resized(dim, divide(whole.shape[dim], parts)),) * parts)


def _item_type(x: TensorType, *, index: int) -> Type:
    items: Sequence[Type] = x.items  # type: ignore[attr-defined]
    return items[min(index, len(items) - 1)]


def _tuple_type(*xs: TensorType) -> Tuple:
    return Tuple(xs)  # type: ignore[arg-type]


def _pmap_type(*xs: TensorType, body: Any = None, device_map: Any = None) -> tuple[Type, ...]:
    return tuple(_spread_as(elements(v.type), xs[0]) for v in body.outputs)


def _call_type(*xs: TensorType, body: Any = None) -> tuple[Type, ...]:
    return tuple(v.type for v in body.outputs)


def _count(xs: Sequence[Any]) -> int:
    return len(xs[0].items) if isinstance(xs[0], Tuple) else len(xs)


def _times(xs: Sequence[Any], dim: int, count: int) -> Tensor:
    part = elements(xs[0])
    return part.resized(dim, part.shape[dim] * count)


def _spread_as(part: Tensor, like: Any) -> Type:
    if isinstance(like, Tensor):
        return part
    return Tuple(tuple(part.on(elements(item).device) for item in like.items), like.more)


def _move(name: str, type: Callable[..., Any], structure: Structure = Structure.MOVE, **facts: Any) -> DeviceOp:
    return define_device_op(name, type=type, structure=structure, **facts)


SCATTER = _move("scatter", _scatter_type)
BROADCAST = _move("broadcast", _broadcast_type)
GATHER = _move("gather", _gather_type)
ALLREDUCE = _move("allreduce", _allreduce_type, collective="all_reduce")
ALLGATHER = _move("allgather", _allgather_type, collective="all_gather")
REDUCE_SCATTER = _move("reduce_scatter", _own_part_type, collective="reduce_scatter")
OWN_PART = _move("own_part", _own_part_type)
SEND = _move("send", _send_type)
SPLIT = _move("split", _split_type, Structure.TUPLE)
ITEM = _move("item", _item_type, Structure.TUPLE)
TUPLE = _move("tuple", _tuple_type, Structure.TUPLE)
PMAP = _move("pmap", _pmap_type, Structure.PMAP)
CALL = _move("call", _call_type, Structure.PMAP, calls="body")


def is_structural(op: Op) -> bool:
    """Whether an op says where values are, and computes nothing."""
    return op.__class__ is DeviceOp and op.structure is not None


def _constant_type(*, value: Any) -> TensorType:
    return TensorType(value.shape, value.dtype)


CONSTANT = define_device_op("constant", type=_constant_type, evaluate=lambda xp, *, value: xp.asarray(value))
# In a device program `gather` is the collective; the op that takes windows out of a tensor goes by another name.
TAKE_WINDOWS = RenamedOp(**{**vars(REGISTRY["gather"]), "name": "take_windows"})
OPS[TAKE_WINDOWS.name] = TAKE_WINDOWS
# Names that other systems have for ops of the registry, and for their params.
_SPELLINGS = {"Concat": ("concatenate", {"axis": "dim"})}


def written(op: Op) -> Op:
    """An op of the registry as device programs have it."""
    return TAKE_WINDOWS if op is REGISTRY["gather"] else op


def registered(op: Op) -> Op:
    """The op of the registry that an op of a device program is."""
    return REGISTRY["gather"] if op is TAKE_WINDOWS else op


def spelled(name: str, params: Params) -> tuple[str, dict[str, Any]]:
    """An op and its params under the names that programs print."""
    op, renamed = _SPELLINGS.get(name, (name, {}))
    return op, {renamed.get(key, key): value for key, value in params.items()}


def tensor_op(name: str) -> Op | None:
    """The tensor op of a name, whatever its case; None for anything else."""
    found = find_op(_SPELLINGS.get(name, (name,))[0])
    if found is None:
        known = {other.lower(): op for other, op in (*REGISTRY.items(), *OPS.items())}
        found = known.get(name.lower())
    return None if found is None or found is CONSTANT or is_structural(found) else found


def known_op(name: str) -> Op:
    """The op of a name; an error says which there are."""
    found = find_op(name)
    if found is None:
        raise DeviceError(f"There is no op {name}.", why=NO_SUCH_OP, fix=ops_to_write())
    return found


NO_SUCH_OP = "it is neither a tensor op nor an op of device programs"


def ops_to_write() -> str:
    """What a text may have instead of an op that there is not."""
    structural = sorted(op.name for op in OPS.values() if is_structural(op))
    return f"one of {', '.join(structural)}, or a tensor op such as MatMul, add, tanh"
