"""Collectives along a mesh axis, written as kernels. They are called in a ``shard_map``, as those of ``lax`` are."""

from __future__ import annotations

from math import prod
from typing import Any

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.api.custom import custom_vjp
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.operands import require_blocks
from meshwright.pallas.ops.ring import DMA, REGULAR, WHOLE, collective, directions, halves, meet, ring, struct


def _linear(forward: Any, transposed: Any) -> Any:
    """A linear function of an array, with its transpose as its derivative."""
    function = custom_vjp(forward)
    function.defvjp(lambda x: (forward(x), None), lambda _, ct: (transposed(ct),))
    return function


def right_permute(x: Any, axis_name: str, *, debug: Any = None) -> Any:
    """Hand an array to the next device: ``lax.ppermute`` by one.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> f = lambda x: ops.right_permute(x, "x")
    >>> mw.shard_map(f, mesh=mw.make_mesh((4,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))(mnp.arange(4.0))
    Array([3., 0., 1., 2.], dtype=float32)
    """

    return _linear(lambda x: _permute(x, axis_name, True, debug), lambda ct: _permute(ct, axis_name, False, debug))(x)


def _permute(x: Any, axis_name: str, right: bool, debug: Any) -> Any:
    def kernel(x_ref: Any, out_ref: Any, send: Any, receive: Any) -> None:
        at = ring(axis_name)
        meet(axis_name, at.left, at.right)
        copy = pltpu.make_async_remote_copy(
            x_ref, out_ref, send, receive, device_id={axis_name: at.right if right else at.left}
        )
        copy.start()
        copy.wait()

    return pl.pallas_call(
        kernel, struct(x.shape, x.dtype), in_specs=[WHOLE], out_specs=WHOLE, scratch_shapes=[DMA, DMA],
        compiler_params=collective(1), debug=debug,
    )(x)  # fmt: skip


def all_gather(x: Any, axis_name: str, *, bidirectional: bool = False, debug: Any = None) -> Any:
    """The arrays of all devices, stacked: ``lax.all_gather(x, axis_name, tiled=False)``.

    Every device hands on what came in the step before, each step on semaphores of its own. Both ways it takes half as
    many steps.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> f = lambda x: ops.all_gather(x, "x", bidirectional=True)
    >>> mw.shard_map(f, mesh=mw.make_mesh((4,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))(mnp.arange(4.0))[:4].T
    Array([[0., 1., 2., 3.]], dtype=float32)
    """
    options = {"bidirectional": bidirectional, "debug": debug}
    return _linear(
        lambda x: _all_gather(x, axis_name, **options), lambda ct: _reduce_scatter(ct, axis_name, **options)
    )(x)


def _all_gather(x: Any, axis_name: str, bidirectional: bool, debug: Any) -> Any:
    devices = lax.axis_size(axis_name)

    def kernel(x_ref: Any, out_ref: Any, local: Any, send: Any, receive: Any) -> None:
        at = ring(axis_name)
        own = pltpu.make_async_copy(x_ref, out_ref.at[at.me], local)
        own.start()
        meet(axis_name, at.left, at.right)
        own.wait()
        both = directions(at, bidirectional)
        steps = [at.size // 2, (at.size - 1) // 2] if bidirectional else [at.size - 1]
        for step in range(steps[0]):
            copies = []
            for direction, count in zip(both, steps, strict=True):
                if step < count:
                    block = out_ref.at[direction.owner(at, step)]
                    copy = pltpu.make_async_remote_copy(
                        block, block, send.at[direction.number, step], receive.at[direction.number, step],
                        device_id={axis_name: direction.target},
                    )  # fmt: skip
                    copy.start()
                    copies.append(copy)
            for copy in copies:
                copy.wait()

    return pl.pallas_call(
        kernel, struct((devices, *x.shape), x.dtype), in_specs=[WHOLE], out_specs=WHOLE,
        scratch_shapes=[DMA, DMA((2, devices)), DMA((2, devices))], compiler_params=collective(2), debug=debug,
    )(x)  # fmt: skip


def reduce_scatter(x: Any, axis_name: str, *, bidirectional: bool = False, debug: Any = None) -> Any:
    """The sum over devices of block ``i`` of ``x``, on device ``i``: ``lax.psum_scatter(x, axis_name, tiled=False)``.

    Sums go round the ring in two buffers, every device adding its block; it says when it has room for the next. Both
    ways, the first half of a block's rows goes one way, the rest the other.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> f = lambda x: ops.reduce_scatter(x, "x")
    >>> mesh = mw.make_mesh((4,), ("x",))
    >>> mw.shard_map(f, mesh=mesh, in_specs=mw.P(None), out_specs=mw.P("x"))(mnp.arange(4.0)[:, None])
    Array([ 0.,  4.,  8., 12.], dtype=float32)
    """
    require_blocks(x, lax.axis_size(axis_name), "reduce_scatter")
    options = {"bidirectional": bidirectional, "debug": debug}
    return _linear(
        lambda x: _reduce_scatter(x, axis_name, **options), lambda ct: _all_gather(ct, axis_name, **options)
    )(x)


def _reduce_scatter(x: Any, axis_name: str, bidirectional: bool, debug: Any) -> Any:
    block = x.shape[1:]
    bidirectional = bidirectional and bool(block) and block[0] > 1
    cuts = halves(block[0] if block else 1, bidirectional)

    def part(ref: Any, start: int, size: int) -> Any:
        return ref.at[pl.ds(start, size)] if block else ref

    def kernel(x_ref: Any, out_ref: Any, sums: Any, mine: Any, local: Any, send: Any, receive: Any, room: Any) -> None:
        at = ring(axis_name)
        both = directions(at, bidirectional)
        meet(axis_name, at.left, at.right)
        for direction, cut in zip(both, cuts, strict=True):
            first = part(x_ref.at[direction.owner(at, 1)], *cut)
            pltpu.sync_copy(first, sums[direction.number].at[0])
        for step in range(at.size - 1):
            slot = step % 2
            copies = []
            for direction, cut in zip(both, cuts, strict=True):
                n = direction.number
                fetch = pltpu.make_async_copy(
                    part(x_ref.at[direction.owner(at, step + 2)], *cut), mine[n], local.at[n]
                )  # fmt: skip
                fetch.start()
                if step > 0:
                    pltpu.semaphore_wait(room.at[n])
                copy = pltpu.make_async_remote_copy(
                    sums[n].at[slot], sums[n].at[1 - slot], send.at[n], receive.at[n, slot],
                    device_id={axis_name: direction.target},
                )  # fmt: skip
                copy.start()
                copies.append((fetch, copy))
            for direction, (fetch, copy) in zip(both, copies, strict=True):
                n = direction.number
                fetch.wait()
                copy.wait()
                sums[n][1 - slot] += mine[n][...]
                if step < at.size - 2:
                    pltpu.semaphore_signal(room.at[n], device_id={axis_name: direction.source})
        for direction, cut in zip(both, cuts, strict=True):
            pltpu.sync_copy(sums[direction.number].at[(at.size - 1) % 2], part(out_ref, *cut))

    shapes = [(size, *block[1:]) if block else () for _, size in cuts]
    return pl.pallas_call(
        kernel, struct(block, x.dtype), in_specs=[WHOLE], out_specs=WHOLE,
        scratch_shapes=[
            [pltpu.VMEM((2, *shape), x.dtype) for shape in shapes], [pltpu.VMEM(shape, x.dtype) for shape in shapes],
            DMA((2,)), DMA((2,)), DMA((2, 2)), REGULAR((2,)),
        ],
        compiler_params=collective(3), debug=debug,
    )(x)  # fmt: skip


def all_reduce(x: Any, axis_name: Any, *, bidirectional: bool = False, debug: Any = None) -> Any:
    """The sum over devices, on all of them: ``lax.psum``. Parts are summed round the ring, then gathered.

    Of several axes, a torus: parts are summed along the first, those parts along the others, then gathered.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> f = lambda x: ops.all_reduce(x, "x")
    >>> mw.shard_map(f, mesh=mw.make_mesh((4,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))(mnp.arange(4.0))
    Array([6., 6., 6., 6.], dtype=float32)
    """
    first, *others = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
    devices = lax.axis_size(first)
    size = prod(x.shape)
    each = -(-size // devices)
    flat = mnp.reshape(x, (size,))
    if each * devices != size:
        flat = mnp.concatenate([flat, mnp.zeros((each * devices - size,), x.dtype)])
    total = reduce_scatter(flat.reshape(devices, each), first, bidirectional=bidirectional, debug=debug)
    if others:
        total = all_reduce(total, tuple(others), bidirectional=bidirectional, debug=debug)
    return all_gather(total, first, bidirectional=bidirectional, debug=debug).reshape(-1)[:size].reshape(x.shape)


def all_to_all(x: Any, axis_name: str, *, debug: Any = None) -> Any:
    """Block ``i`` of device ``j`` becomes block ``j`` of device ``i``: ``lax.all_to_all`` along the first dim.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> f = lambda x: ops.all_to_all(x[0], "x")[None]
    >>> mesh = mw.make_mesh((2,), ("x",))
    >>> mw.shard_map(f, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"))(mnp.arange(4.0).reshape(2, 2))
    Array([[0., 2.],
           [1., 3.]], dtype=float32)
    """
    devices = lax.axis_size(axis_name)
    require_blocks(x, devices, "all_to_all")
    return _linear(lambda x: _all_to_all(x, axis_name, debug), lambda ct: _all_to_all(ct, axis_name, debug))(x)


def _all_to_all(x: Any, axis_name: str, debug: Any) -> Any:
    devices = lax.axis_size(axis_name)

    def kernel(x_ref: Any, out_ref: Any, send: Any, receive: Any) -> None:
        at = ring(axis_name)
        others = [lax.rem(at.me + k, at.size) for k in range(1, at.size)]
        meet(axis_name, *others)
        copies = []
        for k, to in enumerate([at.me, *others]):
            copy = pltpu.make_async_remote_copy(
                x_ref.at[to], out_ref.at[at.me], send.at[k], receive.at[k], device_id={axis_name: to}
            )
            copy.start()
            copies.append(copy)
        for copy in copies:
            copy.wait()

    return pl.pallas_call(
        kernel, struct(x.shape, x.dtype), in_specs=[WHOLE], out_specs=WHOLE,
        scratch_shapes=[DMA((devices,)), DMA((devices,))], compiler_params=collective(4), debug=debug,
    )(x)  # fmt: skip
