"""Putting a 64 MB array from one sharding onto another on 8 devices: Meshwright against JAX on 8 CPU devices.

    python benchmarks/bench_device_put.py [--json]

Both have all devices in one process. Meshwright keeps an array's contents once, so device_put only writes down the new
sharding, and bytes move when a shard is read out: the second row of each move copies every shard into NumPy on both
sides. The shards are compared before the clock starts.
"""

from __future__ import annotations

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from timing import Row, compare, report, row

import meshwright as mw

BAR = 1.0
MOVES = (
    (("x", "y"), ("y", "x")),
    (("x", None), (None, "x")),
    ((("x", "y"), None), ()),
    ((), (("x", "y"), None)),
    (("x", "y"), (None, ("y", "x"))),
)


def read_out(put: Callable[[], Any]) -> list[Any]:
    """Every shard of what was put, copied into NumPy."""
    return [np.array(shard.data, order="C") for shard in put().addressable_shards]


def rows() -> Iterator[Row]:
    jax.config.update("jax_platforms", "cpu")
    data = np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float32)
    our_mesh, their_mesh = mw.make_mesh((2, 4), ("x", "y")), jax.make_mesh((2, 4), ("x", "y"))
    for before, after in MOVES:
        ours_to = mw.NamedSharding(our_mesh, mw.P(*after))
        theirs_to = jax.NamedSharding(their_mesh, jax.P(*after))
        our_x = mw.device_put(data, mw.NamedSharding(our_mesh, mw.P(*before)))
        their_x = jax.device_put(data, jax.NamedSharding(their_mesh, jax.P(*before)))
        pairs = zip(
            mw.device_put(our_x, ours_to).addressable_shards,
            jax.device_put(their_x, theirs_to).addressable_shards,
            strict=True,
        )
        for our_shard, their_shard in pairs:
            assert our_shard.device.id == their_shard.device.id
            np.testing.assert_array_equal(np.asarray(our_shard.data), np.asarray(their_shard.data))

        name = f"{mw.P(*before)} -> {mw.P(*after)}"
        ours = partial(mw.device_put, our_x, ours_to)
        theirs = partial(jax.device_put, their_x, theirs_to)
        yield row(name, compare(ours, lambda put=theirs: put().block_until_ready(), repeats=9), BAR)
        yield row(f"{name}, read out", compare(partial(read_out, ours), partial(read_out, theirs), repeats=5), BAR)


if __name__ == "__main__":
    sys.exit(report(rows(), as_json="--json" in sys.argv[1:], bytes=64 * 2**20, devices=8))
