"""Random numbers of a core: a generator that a kernel seeds. They are this machine's, as those of a TPU are its own."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright import random as mw_random
from meshwright.core.source import here
from meshwright.core.trace import Array, to_array
from meshwright.core.types import TensorType
from meshwright.kernel.run.faults import KernelError
from meshwright.kernel.run.tasks import current


def prng_seed(*seeds: Any) -> None:
    """Seed the generator of this core with one or more integers.

    >>> import meshwright as mw
    >>> from meshwright import pallas as pl
    >>> from meshwright.pallas import tpu as pltpu
    >>> def kernel(out_ref):
    ...     pltpu.prng_seed(0, pl.program_id(0))
    ...     out_ref[...] = pltpu.stateful_uniform((8, 128))
    >>> spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    >>> x = pl.pallas_call(kernel, mw.ShapeDtypeStruct((16, 128), mnp.float32), grid=(2,), out_specs=spec)()
    >>> bool((x >= 0).all() & (x < 1).all()), bool((x[:8] == x[8:]).any())
    (True, False)
    """
    words = [int(word) & 0xFFFFFFFF for seed in seeds for word in np.ravel(np.asarray(to_array(seed)))]
    current("prng_seed").generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def _generator(what: str) -> Any:
    found = current(what).generator
    if found is None:
        raise KernelError(
            f"{what} is used before the generator of this core is seeded.",
            where=here(),
            why="without a seed its numbers are those that an earlier kernel has left",
            fix="pltpu.prng_seed(seed, pl.program_id(0))",
        )
    return found


def prng_random_bits(shape: Any) -> Array:
    """Random bits of the generator, as int32."""
    return _bits(shape, np.int32, "prng_random_bits")


def stateful_bits(shape: Any) -> Array:
    """Random bits of the generator, as uint32."""
    return _bits(shape, np.uint32, "stateful_bits")


def _bits(shape: Any, dtype: Any, what: str) -> Array:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (int(shape),)
    data = _generator(what).integers(0, 1 << 32, prod(sizes), np.uint32).reshape(sizes).view(dtype)
    return Array(data, TensorType(sizes, np.dtype(dtype)))


def stateful_uniform(shape: Any, dtype: Any = np.float32, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Numbers that are equally likely from ``minval`` to ``maxval``."""
    low, high = mnp.asarray(minval, dtype), mnp.asarray(maxval, dtype)
    bits: Any = stateful_bits(shape)
    unit = (bits >> 8).astype(np.float32) * np.float32(2.0**-24)
    return unit.astype(dtype) * (high - low) + low


def stateful_normal(shape: Any, dtype: Any = np.float32) -> Any:
    """Numbers of the normal distribution."""
    first = 1 - stateful_uniform(shape)
    angle = np.float32(2 * np.pi) * stateful_uniform(shape)
    return (mnp.sqrt(-2 * mnp.log(first)) * mnp.cos(angle)).astype(dtype)


def stateful_bernoulli(p: Any = 0.5, shape: Any = ()) -> Any:
    """True with probability ``p``."""
    return stateful_uniform(shape) < p


def sample_block(
    sampler_fn: Any,
    global_key: Any,
    block_size: tuple[int, ...],
    tile_size: tuple[int, ...],
    total_size: tuple[int, ...],
    block_index: tuple[Any, ...] | None = None,
    **kwargs: Any,
) -> Any:
    """A block of random numbers that do not depend on the size of blocks: each tile is sampled with a key of its own.

    >>> key = mw_random.key(0)
    >>> whole = sample_block(mw_random.uniform, key, (4, 4), (2, 2), (4, 4), (0, 0))
    >>> part = sample_block(mw_random.uniform, key, (2, 4), (2, 2), (4, 4), (1, 0))
    >>> bool((whole[2:] == part).all())
    True
    """
    task = current("sample_block") if block_index is None else None
    at = task.grids[-1][0] if task is not None else block_index
    if len({len(block_size), len(tile_size), len(total_size), len(at or ())}) != 1 or any(
        block % tile or total % tile for block, tile, total in zip(block_size, tile_size, total_size, strict=True)
    ):
        raise KernelError(
            f"sample_block is given blocks of {block_size}, tiles of {tile_size} and {total_size} in all.",
            where=here(),
            why="blocks and the whole are made of whole tiles, with an index of the block along each dim",
            fix="tile_size: a divisor of all block sizes",
        )
    tiles = [total // tile for total, tile in zip(total_size, tile_size, strict=True)]
    inside = [block // tile for block, tile in zip(block_size, tile_size, strict=True)]

    def sampled(place: tuple[int, ...]) -> Any:
        if len(place) < len(inside):
            rows = [sampled((*place, n)) for n in range(inside[len(place)])]
            return mnp.concatenate(rows, axis=len(place))
        number: Any = 0
        for index, count, block, n in zip(at or (), tiles, inside, place, strict=True):
            number = number * count + index * block + n
        return sampler_fn(mw_random.fold_in(global_key, number), shape=tuple(tile_size), **kwargs)

    return sampled(())


def to_pallas_key(key: Any) -> Any:
    """A key for a kernel, whose data ``prng_seed`` takes."""
    return key
