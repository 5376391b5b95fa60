"""Kernels of many devices on our machine, in units of JAX's TPU interpreter on 8 fake CPU devices.

The same kernels, text for text, on the same numbers; results are equal. Races are looked for by both sides or by none.
A row that begins with "floor" is what NumPy alone takes for the products and copies of the row before.

``--what growth``: how the time of looking for races grows with the number of accesses n; 8 n of them, in units of n of
them times 8 log 8n / log n. ``--what size``: kernels of many devices with race detection, in units of ten seconds.

python benchmarks/bench_kernels.py [--what peer] [--repeats 3] [--only all-gather] [--races both] [--json]
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from math import log
from types import SimpleNamespace
from typing import Any

# Callbacks of eight devices wait for each other: with fewer threads than devices the interpreter stands still.
os.environ["NPROC"] = "16"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # our machine is one thread, and tiles are small
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.experimental.pallas as jax_pl
import jax.experimental.pallas.tpu as jax_pltpu
import jax.numpy as jnp
import numpy as np
from jax._src.pallas.mosaic import tpu_info
from timing import Measured, Row, report, row, seconds

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import pallas as mw_pl
from meshwright.pallas import ops
from meshwright.pallas import tpu as mw_pltpu

warnings.simplefilter("ignore", DeprecationWarning)
# The pipelines of the peer ask the chip how it lays out memory.
_chips: Any = tpu_info if hasattr(tpu_info, "_get_tpu_info_impl") else import_module("jax._src.tpu_info")
tpu_info.registry["cpu"] = lambda: _chips._get_tpu_info_impl(_chips.ChipVersion.TPU_V5E, 1)

BAR = 1 / 20


def jax_side(races: bool) -> SimpleNamespace:
    """The names of JAX, with its interpreter."""
    interpret = jax_pltpu.InterpretParams(detect_races=races)
    return SimpleNamespace(pl=jax_pl, pltpu=jax_pltpu, np=jnp, lax=jax.lax, struct=jax.ShapeDtypeStruct,
                           options={"interpret": interpret})  # fmt: skip


def our_side(races: bool) -> SimpleNamespace:
    """The names of Meshwright, with its machine."""
    debug = mw_pl.Debug() if races else None
    return SimpleNamespace(pl=mw_pl, pltpu=mw_pltpu, np=mnp, lax=mw.lax, struct=mw.ShapeDtypeStruct,
                           options={"debug": debug})  # fmt: skip


def neighbors(k: Any) -> tuple[Any, Any, Any, int]:
    """This device, those to its left and right, and how many there are."""
    n = k.lax.axis_size("x")
    me = k.lax.axis_index("x")
    return me, k.lax.rem(me + n - 1, n), k.lax.rem(me + 1, n), n


def meet(k: Any, left: Any, right: Any) -> None:
    """Wait for both neighbors."""
    barrier = k.pltpu.get_barrier_semaphore()
    k.pl.semaphore_signal(barrier, device_id=(left,), device_id_type=k.pl.DeviceIdType.MESH)
    k.pl.semaphore_signal(barrier, device_id=(right,), device_id_type=k.pl.DeviceIdType.MESH)
    k.pl.semaphore_wait(barrier, 2)


def right_permute(k: Any, x: Any) -> Any:
    def kernel(x_ref: Any, out_ref: Any, send: Any, receive: Any) -> None:
        _, left, right, _ = neighbors(k)
        meet(k, left, right)
        copy = k.pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id=(right,),
                                              device_id_type=k.pl.DeviceIdType.MESH)  # fmt: skip
        copy.start()
        copy.wait()

    whole = k.pl.BlockSpec(memory_space=k.pl.ANY)
    return k.pl.pallas_call(
        kernel, k.struct(x.shape, x.dtype), in_specs=[whole], out_specs=whole,
        scratch_shapes=[k.pltpu.SemaphoreType.DMA] * 2, compiler_params=k.pltpu.CompilerParams(collective_id=0),
        **k.options,
    )(x)  # fmt: skip


def all_gather(k: Any, x: Any) -> Any:
    devices = k.lax.axis_size("x")

    def kernel(x_ref: Any, out_ref: Any, local: Any, send: Any, receive: Any) -> None:
        me, left, right, n = neighbors(k)
        own = k.pltpu.make_async_copy(x_ref, out_ref.at[me], local)
        own.start()
        meet(k, left, right)
        own.wait()

        @k.pl.loop(0, n - 1)
        def _(step: Any) -> None:
            slot = k.lax.rem(me - step + n, n)
            copy = k.pltpu.make_async_remote_copy(
                out_ref.at[slot], out_ref.at[slot], send.at[step], receive.at[step], device_id=(right,),
                device_id_type=k.pl.DeviceIdType.MESH,
            )  # fmt: skip
            copy.start()
            copy.wait()

    whole = k.pl.BlockSpec(memory_space=k.pl.ANY)
    dma = k.pltpu.SemaphoreType.DMA
    return k.pl.pallas_call(
        kernel, k.struct((devices, *x.shape), x.dtype), in_specs=[whole], out_specs=whole,
        scratch_shapes=[dma, dma((devices,)), dma((devices,))],
        compiler_params=k.pltpu.CompilerParams(collective_id=0), **k.options,
    )(x)  # fmt: skip


def reduce_scatter(k: Any, x: Any) -> Any:
    """Sums go round the ring in two buffers; a device says when it has room. ``x`` has a block for every device."""

    def kernel(x_ref: Any, out_ref: Any, sums: Any, send: Any, receive: Any, room: Any) -> None:
        me, left, right, n = neighbors(k)
        meet(k, left, right)
        sums[0] = x_ref[k.lax.rem(me + n - 1, n)]

        @k.pl.loop(0, n - 1)
        def _(step: Any) -> None:
            slot = k.lax.rem(step, 2)

            @k.pl.when(step > 0)
            def _() -> None:
                k.pl.semaphore_wait(room)

            copy = k.pltpu.make_async_remote_copy(
                sums.at[slot], sums.at[1 - slot], send, receive.at[slot], device_id=(right,),
                device_id_type=k.pl.DeviceIdType.MESH,
            )  # fmt: skip
            copy.start()
            copy.wait()
            sums[1 - slot] += x_ref[k.lax.rem(me - step - 2 + 2 * n, n)]

            @k.pl.when(step < n - 2)
            def _() -> None:
                k.pl.semaphore_signal(room, device_id=(left,), device_id_type=k.pl.DeviceIdType.MESH)

        out_ref[...] = sums[k.lax.rem(n - 1, 2)]

    dma = k.pltpu.SemaphoreType.DMA
    return k.pl.pallas_call(
        kernel, k.struct(x.shape[1:], x.dtype),
        scratch_shapes=[k.pltpu.VMEM((2, *x.shape[1:]), x.dtype), dma, dma((2,)), k.pltpu.SemaphoreType.REGULAR],
        compiler_params=k.pltpu.CompilerParams(collective_id=0), **k.options,
    )(x)  # fmt: skip


def product(k: Any, shape: tuple[int, int, int], tile: int) -> Callable[..., None]:
    """A pipeline inside a kernel that multiplies matrices tile by tile."""

    def body(x_ref: Any, y_ref: Any, z_ref: Any) -> None:
        @k.pl.when(k.pl.program_id(2) == 0)
        def _() -> None:
            z_ref[...] = k.np.zeros_like(z_ref)

        z_ref[...] += x_ref[...] @ y_ref[...]

    m, kk, n = shape
    return k.pltpu.emit_pipeline(  # type: ignore[no-any-return]
        body,
        grid=(m // tile, n // tile, kk // tile),
        in_specs=[
            k.pl.BlockSpec((tile, tile), lambda i, j, h: (i, h)),
            k.pl.BlockSpec((tile, tile), lambda i, j, h: (h, j)),
        ],
        out_specs=[k.pl.BlockSpec((tile, tile), lambda i, j, h: (i, j))],
    )


def matmul(k: Any, x: Any, y: Any) -> Any:
    (m, inner), n = x.shape, y.shape[1]

    def kernel(x_ref: Any, y_ref: Any, z_ref: Any) -> None:
        product(k, (m, inner, n), 128)(x_ref, y_ref, z_ref)

    whole = k.pl.BlockSpec(memory_space=k.pl.ANY)
    return k.pl.pallas_call(
        kernel, k.struct((m, n), x.dtype), in_specs=[whole, whole], out_specs=whole, **k.options
    )(x, y)  # fmt: skip


def collective_matmul(k: Any, x: Any, y: Any) -> Any:
    """Rows of the left side go round the ring while those that have come are multiplied."""
    (m, inner), n = x.shape, y.shape[1]
    devices = k.lax.axis_size("x")

    def kernel(x_ref: Any, y_ref: Any, z_ref: Any, rows: Any, local: Any, send: Any, receive: Any) -> None:
        me, left, right, count = neighbors(k)
        own = k.pltpu.make_async_copy(x_ref, rows.at[me], local)
        own.start()
        meet(k, left, right)
        own.wait()

        @k.pl.loop(0, count)
        def _(step: Any) -> None:
            slot = k.lax.rem(me - step + count, count)
            copy = k.pltpu.make_async_remote_copy(
                rows.at[slot], rows.at[slot], send.at[step], receive.at[step], device_id=(right,),
                device_id_type=k.pl.DeviceIdType.MESH,
            )  # fmt: skip

            @k.pl.when(step < count - 1)
            def _() -> None:
                copy.start()

            product(k, (m, inner, n), 128)(rows.at[slot], y_ref, z_ref.at[slot])

            @k.pl.when(step < count - 1)
            def _() -> None:
                copy.wait()

    whole = k.pl.BlockSpec(memory_space=k.pl.ANY)
    dma = k.pltpu.SemaphoreType.DMA
    out = [k.struct((devices, m, n), x.dtype), k.struct((devices, m, inner), x.dtype)]
    return k.pl.pallas_call(
        kernel, out, in_specs=[whole] * 2, out_specs=[whole] * 2,
        scratch_shapes=[dma, dma((devices,)), dma((devices,))],
        compiler_params=k.pltpu.CompilerParams(collective_id=0), **k.options,
    )(x, y)[0]  # fmt: skip


def numbers(*shape: int) -> Any:
    """Small integers, whose sums and products are exact whatever the order."""
    return np.random.default_rng(0).integers(-4, 4, size=shape).astype(np.float32)


def splash_attention(k: Any, q: Any, keys: Any, values: Any) -> Any:
    """Causal attention forward: which blocks of keys a block of rows looks at is prefetched, others are no steps."""
    length, depth = q.shape
    size = 128  # the default of published ones
    pairs = np.array([(i, j) for i in range(length // size) for j in range(i + 1)], np.int32)

    def kernel(rows_ref: Any, keys_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, *state: Any) -> None:
        top, total, acc = state
        step = k.pl.program_id(0)
        row, key = rows_ref[step], keys_ref[step]

        @k.pl.when(key == 0)
        def _() -> None:
            top[...] = k.np.full(top.shape, -1e30, k.np.float32)
            total[...] = k.np.zeros(total.shape, k.np.float32)
            acc[...] = k.np.zeros(acc.shape, k.np.float32)

        scores = k.np.dot(q_ref[...], k_ref[...].T)
        place = [k.lax.broadcasted_iota(k.np.int32, (size, size), n) for n in (0, 1)]
        scores = k.np.where(row * size + place[0] >= key * size + place[1], scores, -1e30)
        largest = k.np.maximum(top[...], scores.max(axis=1, keepdims=True))
        weights = k.np.exp(scores - largest)
        faded = k.np.exp(top[...] - largest)
        total[...] = total[...] * faded + weights.sum(axis=1, keepdims=True)
        acc[...] = acc[...] * faded + k.np.dot(weights, v_ref[...])
        top[...] = largest

        @k.pl.when(key == row)
        def _() -> None:
            out_ref[...] = acc[...] / total[...]

    by_rows = k.pl.BlockSpec((size, depth), lambda s, rows, keys: (rows[s], 0))
    by_keys = k.pl.BlockSpec((size, depth), lambda s, rows, keys: (keys[s], 0))
    spec = k.pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2, grid=(len(pairs),), in_specs=[by_rows, by_keys, by_keys], out_specs=by_rows,
        scratch_shapes=[k.pltpu.VMEM((size, n), k.np.float32) for n in (1, 1, depth)],
    )  # fmt: skip
    call = k.pl.pallas_call(kernel, k.struct((length, depth), k.np.float32), grid_spec=spec, **k.options)
    return call(*(k.np.asarray(np.ascontiguousarray(n)) for n in pairs.T), q, keys, values)


CASES: list[tuple[str, Any, int, list[Any]]] = [
    *((f"right permute, {n} devices, 8x128", right_permute, n, [numbers(n, 8, 128)]) for n in (4, 8)),
    *((f"right permute, {n} devices, 256x1024", right_permute, n, [numbers(n, 256, 1024)]) for n in (4, 8)),
    *((f"ring all-gather, {n} devices, 8x128", all_gather, n, [numbers(n, 8, 128)]) for n in (4, 8)),
    *((f"ring all-gather, {n} devices, 256x1024", all_gather, n, [numbers(n, 256, 1024)]) for n in (4, 8)),
    *((f"reduce-scatter, {n} devices, 8x128", reduce_scatter, n, [numbers(n, n, 8, 128)]) for n in (4, 8)),
    *((f"reduce-scatter, {n} devices, 256x256", reduce_scatter, n, [numbers(n, n, 256, 256)]) for n in (4, 8)),
    *((f"nested matmul {n}^3, tiles of 128", matmul, 1, [numbers(1, n, n), numbers(1, n, n)]) for n in (512, 1024)),
    *((f"collective matmul, {n} devices, 256x512x256", collective_matmul, n,
       [numbers(n, 256, 512), numbers(n, 512, 256)]) for n in (4, 8)),
    ("splash attention, 2048 rows", splash_attention, 1, [numbers(1, 2048, 128) / 8 for _ in range(3)]),
]  # fmt: skip


def jobs(function: Any, devices: int, arrays: list[Any], races: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """One run on our machine, and one on theirs; every device has a row of each array."""
    out = []
    for module, k in ((mw, our_side(races)), (jax, jax_side(races))):

        def rows(*blocks: Any, k: Any = k) -> Any:
            return function(k, *(block[0] for block in blocks))[None]

        if module is mw:
            mesh = mw.make_mesh((devices,), ("x",))
            f = mw.jit(mw.shard_map(rows, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x")))
            given = [mnp.asarray(array) for array in arrays]
            out.append(lambda f=f, given=given: f(*given))
        else:
            mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,),
                                 devices=jax.devices()[:devices])  # fmt: skip
            shards = jax.NamedSharding(mesh, jax.P("x"))
            f = jax.jit(jax.shard_map(rows, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"), check_vma=False))
            given = [jax.device_put(array, shards) for array in arrays]
            out.append(lambda f=f, given=given: jax.block_until_ready(f(*given)))
    return out[0], out[1]


def measure(function: Any, devices: int, arrays: list[Any], races: bool, repeats: int) -> Measured:
    """The shortest of several runs of each side, in turns."""
    ours, theirs = jobs(function, devices, arrays, races)
    # Sums of attention are taken in another order by XLA; the others are of small whole numbers.
    np.testing.assert_allclose(ours(), theirs(), rtol=1e-3 if function is splash_attention else 0)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        taken[0].extend(seconds(ours) for _ in range(3))
        taken[1].append(seconds(theirs))
    return Measured(min(taken[0]), min(taken[1]))


def peer_rows(only: str, races: str, repeats: int) -> Iterator[Row]:
    for name, function, devices, arrays in CASES:
        if only not in name:
            continue
        for found in {"both": (False, True), "on": (True,), "off": (False,)}[races]:
            label = name + (", races" if found else "")
            measured = measure(function, devices, arrays, found, repeats)
            yield row(label, measured, BAR)
        least = min(seconds(floor(name, arrays)) for _ in range(2 * repeats))
        yield row(f"floor of {name}", Measured(least, measured.theirs_seconds), BAR)


def floor(name: str, arrays: list[Any]) -> Callable[[], None]:
    """The products and copies of a case, and nothing else."""
    devices = len(arrays[0])

    def copies() -> None:
        block = arrays[0][0].copy()
        for _ in range(devices * (devices if "gather" in name else 1)):
            np.copyto(block, arrays[0][0])

    def sums() -> None:
        block = arrays[0][0, 0].copy()
        for _ in range(devices * (devices - 1)):
            np.copyto(block, arrays[0][0, 0])
            block += arrays[0][0, 0]

    def products() -> None:
        (m, k), n = arrays[0].shape[1:], arrays[1].shape[2]
        x, y = (np.ascontiguousarray(a[0, :128, :128]) for a in arrays)
        total = np.zeros_like(x)
        for _ in range(devices * devices * m * k * n // 128**3):
            total += x @ y

    def attention() -> None:
        q, keys, values = (a[0, :128] for a in arrays)
        for _ in range(136):
            np.exp(q @ keys.T) @ values

    if "attention" in name:
        return attention
    return products if "matmul" in name else sums if "reduce" in name else copies


def many_loads(n: int) -> Callable[[], Any]:
    """n times a load and a store of one of 8 rows."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        @mw_pl.loop(0, n)
        def _(i: Any) -> None:
            row = mw.lax.rem(i, 8)
            out_ref[row] = x_ref[row]

    call = mw_pl.pallas_call(kernel, mw.ShapeDtypeStruct((8, 128), mnp.float32), debug=mw_pl.Debug())
    return lambda: call(mnp.zeros((8, 128)))


def many_places(n: int) -> Callable[[], Any]:
    """n times a load and a store of an element, each of another one."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        for i in range(n):
            out_ref[i // 128, i % 128] = x_ref[i // 128, i % 128]

    shape = (n // 128, 128)
    call = mw_pl.pallas_call(kernel, mw.ShapeDtypeStruct(shape, mnp.float32), debug=mw_pl.Debug())
    return lambda: call(mnp.zeros(shape))


def many_copies(n: int, at_once: bool, order: str | None = None) -> Callable[[], Any]:
    """n copies on one semaphore: each waited for before the next, or all under way at once."""

    def kernel(x_ref: Any, out_ref: Any, sem: Any) -> None:
        copies = [mw_pltpu.make_async_copy(x_ref.at[i % 8], out_ref.at[i], sem) for i in range(n)]
        for copy in copies:
            copy.start()
            if not at_once:
                copy.wait()
        for copy in copies if at_once else ():
            copy.wait()

    whole = mw_pl.BlockSpec(memory_space=mw_pl.ANY)
    call = mw_pl.pallas_call(
        kernel, mw.ShapeDtypeStruct((n, 8), mnp.float32), in_specs=[whole], out_specs=whole,
        scratch_shapes=[mw_pltpu.SemaphoreType.DMA], debug=mw_pl.Debug(order=order),
    )  # fmt: skip
    return lambda: call(mnp.zeros((8, 8)))


def many_signals(n: int) -> Callable[[], Any]:
    """n signals, then n waits."""

    def kernel(out_ref: Any, sem: Any) -> None:
        for _ in range(n):
            mw_pltpu.semaphore_signal(sem)
        for _ in range(n):
            mw_pltpu.semaphore_wait(sem)
        out_ref[...] = mnp.zeros_like(out_ref)

    call = mw_pl.pallas_call(
        kernel, mw.ShapeDtypeStruct((8,), mnp.float32), scratch_shapes=[mw_pltpu.SemaphoreType.REGULAR],
        debug=mw_pl.Debug(),
    )  # fmt: skip
    return call


ACCESSES: dict[str, Callable[[int], Callable[[], Any]]] = {
    "loads and stores of 8 rows": many_loads,
    "loads and stores of single elements": many_places,
    "copies, one after another": lambda n: many_copies(n, False),
    "copies, all at once": lambda n: many_copies(n, True),
    "copies, all at once, in order": lambda n: many_copies(n, True, "fifo"),
    "signals, then waits": many_signals,
}


def growth_rows(only: str, repeats: int) -> Iterator[Row]:
    """8 n accesses in units of n of them, times 8 log 8n / log n."""
    for name, make in ACCESSES.items():
        if only not in name:
            continue
        for n in (512, 1024, 2048):
            few, many = (min(seconds(make(k)) for _ in range(repeats)) for k in (n, 8 * n))
            expected = few * 8 * log(8 * n) / log(n)
            yield row(f"{8 * n} {name}, units of {n}", Measured(many, expected), 1.0)


def size_rows(only: str, repeats: int) -> Iterator[Row]:
    """Many devices with race detection, in units of ten seconds."""
    x = numbers(256, 8, 128)

    def job(f: Any, sizes: tuple[int, ...]) -> Callable[[], Any]:
        axes = ("x", "y")[: len(sizes)]
        rows = mw.P(axes)
        mesh = mw.make_mesh(sizes, axes)
        g = mw.jit(mw.shard_map(lambda x: f(x[0])[None], mesh=mesh, in_specs=rows, out_specs=rows))
        return lambda: g(x[: mesh.size])

    races = mw_pl.Debug()
    jobs = {
        "ring all-gather, 64 devices": job(lambda x: ops.all_gather(x, "x", debug=races), (64,)),
        "all-reduce, 256 devices, a torus of 16x16": job(
            lambda x: ops.all_reduce(ops.all_reduce(x, "x", debug=races), "y", debug=races), (16, 16)
        ),
        "all-reduce, 256 devices, one ring": job(lambda x: ops.all_reduce(x, "x", debug=races), (256,)),
    }
    for name, run in jobs.items():
        if only in name:
            yield row(name, Measured(min(seconds(run) for _ in range(repeats)), 10.0), 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=("peer", "growth", "size"), default="peer", help="what is measured")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each side")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--races", choices=("on", "off", "both"), default="both", help="whether races are looked for")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    if options.what == "peer":
        rows, against = peer_rows(options.only, options.races, options.repeats), "jax"
    else:
        of = growth_rows if options.what == "growth" else size_rows
        rows, against = of(options.only, options.repeats), "expected"
    return report(rows, as_json=options.json, peer=against, repeats=options.repeats)


if __name__ == "__main__":
    sys.exit(main())
