"""shard_map and collectives as sdy and StableHLO have them: groups of devices, by their position on the mesh."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from meshwright.core.program import Eqn
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.groups import group_digits, groups_of
from meshwright.interop.stablehlo.context import type_text
from meshwright.interop.stablehlo.text import BodyText, Operand, Write
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import NamedSharding, TensorSharding

Types = list[TensorType]
_U32 = TensorType((), np.dtype(np.uint32))
_I32 = TensorType((), np.dtype(np.int32))


def _groups(b: BodyText, eqn: Eqn) -> str:
    if not b.axes:
        raise MeshwrightError(
            f"{eqn.op.name} cannot be written as StableHLO outside of a shard_map.",
            where=eqn.source.show() if eqn.source is not None else "",
            why="it is over axes of a mesh, and the program does not say which mesh",
            fix="mlir.dump(…) of a program that has the shard_map",
        )
    groups = groups_of(b.axes, eqn.params["axes"])
    kind = f"tensor<{groups.shape[0]}x{groups.shape[1]}xi64>"
    return f"replica_groups = dense<{groups.tolist()}> : {kind}, {_channel(b)}"


def _channel(b: BodyText) -> str:
    b.channels += 1
    return f"channel_handle = #stablehlo.channel_handle<handle = {b.channels}, type = 1>"


def _reduced(how: str) -> Write:
    """One all-reduce for each operand, which XLA takes together where it finds them next to each other: it reads no
    all-reduce of several in manual code, and to write them as one array would copy them twice."""

    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: Types) -> list[str]:
        found = []
        for name, t in operands:
            text = f"{_groups(b, eqn)}, use_global_device_ids"
            plain = TensorType(t.shape, t.dtype)
            found += b.op("all_reduce", [(name, plain)], [plain], text, b.scalar_region(how, t.dtype))
        return found

    return write


def _all_gather(b: BodyText, eqn: Eqn, operands: list[Operand], results: Types) -> list[str]:
    text = f"all_gather_dim = {eqn.params['dim']} : i64, {_groups(b, eqn)}, use_global_device_ids"
    return b.op("all_gather", operands, results, text)


def _reduce_scatter(b: BodyText, eqn: Eqn, operands: list[Operand], results: Types) -> list[str]:
    text = f"scatter_dimension = {eqn.params['dim']} : i64, {_groups(b, eqn)}, use_global_device_ids"
    return b.op("reduce_scatter", operands, results, text, b.scalar_region("add", results[0].dtype))


def _all_to_all(b: BodyText, eqn: Eqn, operands: list[Operand], results: Types) -> list[str]:
    p = eqn.params
    dims = f"split_dimension = {p['split']} : i64, concat_dimension = {p['concat']} : i64"
    return b.op("all_to_all", operands, results, f"{dims}, split_count = {prod(p['sizes'])} : i64, {_groups(b, eqn)}")


def _permute(b: BodyText, eqn: Eqn, operands: list[Operand], results: Types) -> list[str]:
    groups = groups_of(b.axes, eqn.params["axes"]).tolist()
    pairs = sorted([row[source], row[target]] for row in groups for source, target in eqn.params["permutation"])
    text = f"source_target_pairs = dense<{pairs or ''}> : tensor<{len(pairs)}x2xi64>, {_channel(b)}"
    return b.op("collective_permute", operands, results, text)


def _position(b: BodyText, axes: Any) -> str:
    """The device's place along some axes, from major to minor."""
    (whole,) = b.op("partition_id", [], [_U32])

    def joined(name: str, one: str, other: str) -> str:
        return b.op(name, [(one, _U32), (other, _U32)], [_U32])[0]

    place: str | None = None
    for stride, size in group_digits(b.axes, axes)[1]:
        count = b.constant(size, _U32)
        digit = joined("remainder", joined("divide", whole, b.constant(stride, _U32)), count)
        place = digit if place is None else joined("add", joined("multiply", place, count), digit)
    return b.constant(0, _I32) if place is None else b.op("convert", [(place, _U32)], [_I32])[0]


def _axis_index(b: BodyText, eqn: Eqn, operands: list[Operand], results: Types) -> list[str]:
    return [_position(b, eqn.params["axes"])]


def _scatter(b: BodyText, eqn: Eqn, operands: list[Operand], results: Types) -> list[str]:
    """Each device takes its part of what all have."""
    dim, t = eqn.params["dim"], results[0]
    place, size, zero = _position(b, eqn.params["axes"]), b.constant(t.shape[dim], _I32), b.constant(0, _I32)
    (start,) = b.op("multiply", [(place, _I32), (size, _I32)], [_I32])
    starts = [(start if d == dim else zero, _I32) for d in range(t.ndim)]
    sizes = ", ".join(map(str, t.shape))
    return b.op("dynamic_slice", [*operands, *starts], results, f"slice_sizes = array<i64: {sizes}>")


def _shard_map(b: BodyText, eqn: Eqn, operands: list[Operand], results: Types) -> list[str]:
    """What each device does on its own blocks; axes that are not its own stay open to propagation. One device alone has
    whole arrays, and XLA takes no manual code for one."""
    p = eqn.params
    if all(size == 1 for name, size in p["mesh"] if name in p["manual"]):
        around, b.axes = b.axes, p["mesh"]
        outs = b.program(p["body"], [name for name, _ in operands])
        b.axes = around
        return outs
    mesh = b.mesh_of(p["mesh"])
    free = len(p["manual"]) < len(p["mesh"])

    def listed(specs: Any, types: Types) -> str:
        found = []
        for spec, t in zip(specs, types, strict=True):
            sharding = NamedSharding(mesh, spec.update(replicated=())).to_tensor_sharding(t.ndim)
            if free:
                dims = [DimensionSharding(dim.axes, is_open=True) for dim in sharding.dims]
                sharding = TensorSharding(mesh, dims, (), sharding.unreduced)
            found.append(b.declared(sharding).removeprefix("#sdy.sharding"))
        return f"[{', '.join(found)}]"

    body = p["body"]
    before, axes = b.lines, b.axes
    b.lines, b.axes = [], p["mesh"]
    arguments = [b.name() for _ in body.inputs]
    returned = b.program(body, arguments)
    types = ", ".join(map(type_text, body.out_types))
    inner, b.lines, b.axes = b.lines, before, axes
    name, count = b.name(), len(results)
    given = ", ".join(f"{x}: {type_text(t)}" for x, t in zip(arguments, body.in_types, strict=True))
    kinds = [", ".join(map(type_text, part)) for part in ([t for _, t in operands], results)]
    manual = ", ".join(f'"{axis}"' for axis in p["manual"])
    left = f"{name}{f':{count}' if count != 1 else ''} = " if count else ""
    b.lines += [
        f"{left}sdy.manual_computation({', '.join(x for x, _ in operands)}) "
        f"in_shardings={listed(p['in_specs'], [t for _, t in operands])} "
        f"out_shardings={listed(p['out_specs'], results)} manual_axes={{{manual}}} ({given}) {{",
        *inner,
        f"sdy.return {', '.join(returned)} : {types}" if returned else "sdy.return",
        f"}} : ({kinds[0]}) -> ({kinds[1]})",
    ]
    return [name] if count == 1 else [f"{name}#{index}" for index in range(count)]


COLLECTIVES: dict[str, Write] = {
    "shard_map": _shard_map,
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
    "pbroadcast": lambda b, eqn, operands, results: [name for name, _ in operands],
    "pinvariant": lambda b, eqn, operands, results: [name for name, _ in operands],
}
