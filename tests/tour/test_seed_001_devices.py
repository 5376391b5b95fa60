"""Seed 001, setup: devices as the document prints them, and the order in which a mesh takes them, which is JAX's."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest

import meshwright as mw

mesh_utils = pytest.importorskip("jax.experimental.mesh_utils")


def test_devices_print_as_in_the_document():
    assert repr(mw.devices("tpu", count=4)) == (
        "[TpuDevice(id=0, process_index=0, coords=(0,0,0), core_on_chip=0), "
        "TpuDevice(id=1, process_index=0, coords=(1,0,0), core_on_chip=0), "
        "TpuDevice(id=2, process_index=0, coords=(0,1,0), core_on_chip=0), "
        "TpuDevice(id=3, process_index=0, coords=(1,1,0), core_on_chip=0)]"
    )


def shapes(count: int) -> set[tuple[int, ...]]:
    """Every shape of a mesh of so many devices, up to four axes, some of size 1."""
    found = {(count,)}
    for first in range(1, count + 1):
        if count % first == 0:
            for second in range(1, count // first + 1):
                if count // first % second == 0:
                    found |= set(permutations((first, second, count // first // second)))
                    found.add((first, count // first))
    return found


def theirs(shape: tuple[int, ...]) -> list[int] | None:
    """The order of JAX's mesh utilities on a TPU v4 slice; None where they find none."""
    devices = [
        SimpleNamespace(
            id=d.id,
            coords=d.coords,
            core_on_chip=0,
            device_kind="TPU v4",
            platform="tpu",
            process_index=d.process_index,
        )
        for d in mw.devices("tpu", count=int(np.prod(shape)))
    ]
    try:
        made = mesh_utils.create_device_mesh(shape, devices)
    except NotImplementedError:
        return None
    return [device.id for device in made.ravel()]


@pytest.mark.parametrize("count", [1, 2, 4, 8, 12, 16, 32, 64])
def test_a_mesh_of_tpus_takes_them_in_the_order_of_jax(count):
    compared = 0
    for shape in sorted(shapes(count)):
        expected = theirs(shape)
        if expected is not None:
            made = mw.make_mesh(shape, tuple("xyzw"[: len(shape)]), kind="tpu")
            assert made.device_ids.ravel().tolist() == expected, shape
            compared += 1
    assert compared >= min(count, 4)
