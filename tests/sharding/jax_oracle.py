"""What JAX says about every partition spec on some meshes: a program that prints JSON, run with eight fake devices."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

MESHES = ((2, 2), (2, 4), (4, 2), (2, 2, 2), (2, 3))
SHAPE = (24, 48, 72)
Spec = tuple[tuple[str, ...], ...]


def specs(names: tuple[str, ...], ndim: int) -> Iterator[Spec]:
    """Every way to give some of the axes, in some order, to the dims."""
    for count in range(len(names) + 1):
        for axes in itertools.permutations(names, count):
            for owners in itertools.combinations_with_replacement(range(ndim), count):
                yield tuple(tuple(a for a, o in zip(axes, owners, strict=True) if o == dim) for dim in range(ndim))


def unique_specs(names: tuple[str, ...], ndim: int) -> list[Spec]:
    return list(dict.fromkeys(specs(names, ndim)))


@cache
def answers() -> Any:
    """What the program prints."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    found: dict[str, Any] = {"shardings": [], "equivalent": []}
    for ndim in (1, 2, 3):
        of_eight = []
        for sizes in MESHES:
            names = tuple("xyz"[: len(sizes)])
            devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
            mesh = Mesh(devices, names)
            for spec in unique_specs(names, ndim):
                sharding = NamedSharding(mesh, PartitionSpec(*spec))
                indices = sharding.devices_indices_map(SHAPE[:ndim])
                found["shardings"].append(
                    {
                        "sizes": sizes,
                        "spec": spec,
                        "shard_shape": sharding.shard_shape(SHAPE[:ndim]),
                        "indices": {d.id: [[s.start, s.stop] for s in index] for d, index in indices.items()},
                        "hlo": str(sharding._to_xla_hlo_sharding(ndim)),
                        "fully_replicated": sharding.is_fully_replicated,
                        "repr": repr(sharding).split(", memory_kind")[0] + ")",
                    }
                )
                if np.prod(sizes) == 8:
                    of_eight.append(((sizes, spec), sharding))
        for (one, first), (other, second) in itertools.combinations(of_eight, 2):
            if first.is_equivalent_to(second, ndim):
                found["equivalent"].append([one, other])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
